"""What a run stores of its outputs: of its weights, and of their average, which predictions are made with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from xectool import engine
from xectool.checkpoint import store
from xectool.config.load import config_from_dict
from xectool.models import build_model
from xectool.models.fingerprint import difference, outputs_of

Config = Callable[..., Path]


def edited(source: Path, to: Path, role: str, drop: tuple[str, ...] = ()) -> Path:
    """Write a checkpoint with another head in one set of weights, as a tool does that knows nothing of seals."""
    payload: dict[str, Any] = torch.load(source, weights_only=True)
    name = next(name for name in payload[role] if name.startswith("heads.energy") and name.endswith("weight"))
    payload[role][name] = payload[role][name] * 1.5 + 0.1  # heads of tasks that are off change no prediction
    meta = json.loads(payload["meta"])
    payload["meta"] = json.dumps({key: value for key, value in meta.items() if key not in drop}, sort_keys=True)
    torch.save({key: value for key, value in payload.items() if key not in ("seals", "digest")}, to)
    return to


@pytest.mark.parametrize("decay", [0.5, None])
def test_outputs_of_the_average_are_stored_and_an_edit_of_it_is_seen(
    tiny_config: Config, tmp_path: Path, decay: float | None
) -> None:
    last = Path(engine.train(tiny_config(training={"ema_decay": decay}), max_steps=2).run_dir) / store.LAST_NAME
    saved = store.load(last)
    assert bool(saved.ema) is ("fingerprint_ema" in saved.meta) is (decay is not None)
    network = build_model(config_from_dict(saved.config, "test"))
    network.load_state_dict(saved.weights("auto"))
    assert not difference(saved.meta["fingerprint_ema" if saved.ema else "fingerprint"], outputs_of(network))
    assert not [item for item in engine.inspect_ckpt(last).findings if item.code == "K18"]
    for role in ("model", "ema") if saved.ema else ("model",):
        found = engine.inspect_ckpt(edited(last, tmp_path / f"{role}.pt", role)).findings
        (told,) = [item for item in found if item.code == "K18"]
        assert told.where == ("meta.fingerprint_ema" if role == "ema" else "meta.fingerprint")
        assert ("average of the network" in told.problem) is (role == "ema")
        assert told.severity.value == "error"
    if saved.ema:  # a file from before the average was recorded is read as it was then
        old = edited(last, tmp_path / "old.pt", "ema", drop=("fingerprint_ema",))
        assert not [item for item in engine.inspect_ckpt(old).findings if item.code == "K18"]
