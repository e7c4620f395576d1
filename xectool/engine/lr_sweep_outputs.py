"""What a sweep leaves behind: plots and numbers in a folder, the rate in the configuration."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xectool.config.edit import with_value
from xectool.config.load import load_config
from xectool.errors import ConfigError, in_shell
from xectool.findings import Finding, Severity
from xectool.report.lr_sweep import SweepPoints, plot_lr_sweep
from xectool.runlog.atomic import write_json, write_text
from xectool.training.lr_sweep.curves import Curve
from xectool.training.lr_sweep.rows import RateRow


def draw_sweep(
    result: Mapping[str, Any], rows: Sequence[RateRow], curves: Mapping[str, Sequence[Curve]], folder: Path
) -> str | None:
    """Write plots and numbers; return the path of the PNG, None where there is no curve to draw.

    Args:
        result: Result keys of the command.
        rows: Table of all rates of the grid, or of the intervals of a ramp.
        curves: By the key they are written under.
        folder: Made where it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"rows": [vars(row) for row in rows], "final_rows": [vars(row) for row in result["final_rows"]]}
    numbers = {name: [_numbers(curve) for curve in those] for name, those in curves.items()}
    write_json(folder / "lr_sweep.json", dict(result) | tables | numbers)
    if not rows:
        return None
    band, lr, final = result["band"], result["recommended_lr"], result["final_rows"]
    starts = [row.loss_start for row in rows if math.isfinite(row.loss_start)]
    lines = [_points(f"{result['steps']} steps", rows)]
    if final:
        lines.append(_points(f"{result['final_steps']} steps, which decide", final))
    recommended = None if band is None or lr is None else (band[0], lr, band[1])
    return str(plot_lr_sweep(lines, starts[0] if starts else 0.0, recommended, folder)[1])


def _points(name: str, rows: Sequence[RateRow]) -> SweepPoints:
    return SweepPoints(
        name,
        rates=np.array([row.lr for row in rows]),
        losses=np.array([row.loss_end for row in rows]),
        errors=np.nan_to_num([row.loss_decrease_error for row in rows]),
        norms=np.array([row.grad_norm_max for row in rows]),
    )


def _numbers(curve: Curve) -> dict[str, Any]:
    losses, norms = curve.losses.tolist(), curve.grad_norms.tolist()
    return {"lr": curve.lr, "seed": curve.seed, "losses": losses, "grad_norms": norms}


def edited(path: Path, values: Mapping[str, float]) -> str:
    """Return the text of a configuration with rates in it.

    Raises:
        ConfigError: A line cannot be changed alone, or the file not replaced.
    """
    target = path.expanduser().resolve()
    if not os.access(target.parent, os.W_OK):
        instead = " ".join(f"--set {key}={lr:g}" for key, lr in values.items())
        raise ConfigError("its folder cannot be written", where=str(path), fix=f"leave out --write, then {instead}")
    text = target.read_bytes().decode("utf-8")
    for key, lr in values.items():
        text = with_value(text, key, lr, str(path))
    return text


def told_alone(written: str | None, settings: Sequence[str]) -> tuple[Finding, ...]:
    """Return that a rate was found with settings of the network or its batches that the file does not have."""
    own = [setting for setting in settings if _changes_rate(setting.partition("=")[0].strip())]
    if written is None or not own:
        return ()
    told = " ".join(f"--set {in_shell(setting)}" for setting in own)
    problem = f"the rate in {written} was found with settings that are not in it"
    fix = f"xectool train {in_shell(written)} {told}   # or write them into the file; without them sweep again"
    return (Finding("XT-LR-UNSURE", Severity.WARNING, problem, "--write", evidence=tuple(own), fix=fix),)


def _changes_rate(key: str) -> bool:
    section, _, name = key.partition(".")
    of_training = section == "training" and name not in ("lr", "max_lr", "device", "epochs", "compile", "seed")
    return of_training or key == "data.batch_size" or section in ("model", "tasks", "normalization", "loss_balance")


def write_rate(path: Path, found: Sequence[str], settings: Sequence[str]) -> str:
    """Put rates into a configuration, in one rename; what the command line says of their keys goes.

    Args:
        path: The file.
        found: The rates as ``key=value``.
        settings: ``key=value`` settings of the command line.

    Raises:
        ConfigError: The file cannot be changed, or says the key twice.
    """
    target = path.expanduser().resolve()
    values = {key: float(lr) for key, _, lr in (setting.partition("=") for setting in found)}
    mode = target.stat().st_mode & 0o777
    write_text(target, edited(path, values), mode=mode)
    others = [setting for setting in settings if setting.partition("=")[0].strip() not in values]
    training = load_config(path, others).config.training.model_dump()
    for key, lr in values.items():
        if training[key.partition(".")[2]] != lr:
            raise ConfigError(f"{key} was written but does not count", where=str(path), fix="write it by hand")
    return str(path)
