"""Whether the predictions in a run directory are of the state that is shown beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xectool.checkpoint.names import BEST_NAME, LAST_NAME
from xectool.engine.run_files import Measurement
from xectool.errors import in_shell

PREDICTIONS: Final = "predictions.root"


def stale_predictions(directory: Path, config: Mapping[str, Any] | None, shown: Measurement | None) -> str:
    """Return of what else the predictions of a run are, and how they are made anew, in one line; empty where of this.

    Args:
        directory: The run directory; it holds predictions.
        config: Its resolved configuration; None where that is gone.
        shown: What the run is known by; None where nothing was measured yet.
    """
    from xectool.rootio.weights_state import state_of  # uproot, which a look at a record does without

    path = directory / PREDICTIONS
    state = state_of(path)
    if state is not None and shown is not None and state.is_end_of(shown.step, shown.loss, shown.epoch):
        return ""
    what = "does not say of which step it is"
    if state is not None:
        weights = "" if state.validated else " and of weights that it does not validate"
        what = f"is of step {state.step}{weights}"
        if shown is not None and state.step == shown.step and state.validated:
            what += " of another course of the run"
    of = "no epoch is finished" if shown is None else f"{_place(shown)} is step {shown.step}"
    return f"{path} {what}, {of}: {_command(directory, config, shown)}"


def _place(shown: Measurement) -> str:
    return f"epoch {shown.epoch}" if shown.epoch else "the end of the run"


def _command(directory: Path, config: Mapping[str, Any] | None, shown: Measurement | None) -> str:
    """Return what predicts the validation events with the weights of the state that is shown, and plots them."""
    is_best = shown is not None and shown.epoch and math.isfinite(shown.loss)
    checkpoint = directory / (BEST_NAME if is_best else LAST_NAME)
    data, validation = ((config or {}).get(section) or {} for section in ("data", "validation"))
    paths = data.get("val_path") or "DATA"
    words = [in_shell(word) for word in ([paths] if isinstance(paths, str) else paths)]
    limit = validation.get("max_events")
    options = [f"--max-events {limit}"] if limit else []
    options += [f"--report {in_shell(directory / 'plots')}"] if (directory / "plots").is_dir() else []
    return " ".join(
        ["xectool predict", in_shell(checkpoint), *words, "--output", in_shell(directory / PREDICTIONS), *options]
    )
