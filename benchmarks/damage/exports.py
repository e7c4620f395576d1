"""Exported files against the checkpoints they were made from, and checkpoints of which none may be made.

Axes: N predicted rows (events, or sensors of events), K numbers of a task.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uproot
from xectool.checkpoint import format
from xectool.checkpoint.seals import seals
from xectool.config.normalization import NormalizationConfig

from benchmarks.damage.catalogue import Question, Verdict, case
from benchmarks.damage.checkpoint_faults import SECTIONS, UNREADABLE, weight_of
from benchmarks.damage.command import ask
from benchmarks.damage.lab import LIGHT, Lab, words_of

LIMIT = 1e-3  # of the resolution
SUFFIXES = {"onnx": "onnx", "torchscript": "torchscript", "safetensors": "safetensors"}
REFUSALS = ("X-01", UNREADABLE, "K02", "K08", "K15", "K18")


def _in_network_units(name: str, values: Any) -> Any:
    """Return readings as the network sees them: a bright sensor and a dim one are predicted to the same share."""
    constants = NormalizationConfig()
    if name == "npho":
        scaled = np.maximum(values.astype(np.float64) / constants.npho_scale, -0.999)
        return np.log1p(scaled) / constants.npho_scale2
    return values.astype(np.float64) / constants.time_scale if name == "time" else values.astype(np.float64)


def worst_difference(first: Path, second: Path) -> tuple[float, str]:
    """Return the largest difference of two prediction files in units of the first one's resolution, and of what.

    The resolution of a number is the 68 % quantile of what its prediction is off by.
    """
    worst = (0.0, "")
    with uproot.open(f"{first}:tree") as one, uproot.open(f"{second}:tree") as other:
        for branch in (name for name in one.keys() if name.startswith("pred_")):  # noqa: SIM118  no mapping
            name = branch.removeprefix("pred_")
            arrays = [
                file[held].array(library="np")
                for file, held in ((one, f"truth_{name}"), (one, branch), (other, branch))
            ]
            truth, ours, theirs = (_in_network_units(name, array).reshape(len(array), -1) for array in arrays)
            if ours.shape != theirs.shape:
                return np.inf, f"{branch}: {theirs.shape} instead of {ours.shape}"
            known = (arrays[0].reshape(ours.shape) < LIGHT).all(axis=1)
            resolution = np.quantile(np.abs(ours - truth)[known], 0.6827, axis=0)
            gaps = np.abs(theirs - ours) / resolution
            gap = float(np.where(np.isfinite(gaps), gaps, np.inf).max())
            worst = max(worst, (gap, branch))
    return worst


def _agrees(lab: Lab, source: str, exported: Path) -> Verdict:
    """Predict with an exported file and compare."""
    path = lab.directory / "predictions.root"
    answer = ask(["predict", str(exported), str(lab.good.events), "--output", str(path)], lab.directory)
    if answer.code or answer.trouble:
        return Verdict(answer.trouble or str(answer.document.get("findings")), "")
    worst, branch = worst_difference(lab.good.predicted[source], path)
    said = f"{worst:.1e} of the resolution ({branch})" if branch else "equal"
    return Verdict(f"differs by {said}" if not worst <= LIMIT else "", said)


def _exported(source: str, to: str, inputs: str) -> None:
    @case(f"{source} as {to}, {inputs}", "exports")
    def build(lab: Lab) -> Question:
        path = lab.directory / f"model.{SUFFIXES[to]}"
        words = words_of("export", lab.good.checkpoints[source], "--to", to, "--inputs", inputs, "--output", path)
        return Question(words, verify=lambda: _agrees(lab, source, path))


for source in ("regressor", "bf16", "mae", "inpainter"):
    for to in SUFFIXES:
        for inputs in ("raw", "normalized"):
            if (to, inputs) != ("safetensors", "normalized"):  # it has no inputs; refused, see below
                _exported(source, to, inputs)


def _refused(
    name: str,
    change: Callable[[Lab, Path], object],
    *options: str,
    codes: tuple[str, ...] = REFUSALS,
    suffix: str = "onnx",
) -> None:
    @case(f"refused: {name}", "exports", *codes)
    def build(lab: Lab) -> Question:
        path, target = lab.copied(lab.choose(("regressor", "mae"))), lab.directory / f"refused.{suffix}"
        change(lab, path)
        words = words_of("export", path, "--output", target, *options)
        return Question(words, absent=(target, target.with_name(f"{target.name}.part")))


def _rewritten(change: Callable[[Lab, dict[str, Any]], object], sealed: bool = False) -> Callable[[Lab, Path], None]:
    def rewrite(lab: Lab, path: Path) -> None:
        payload = torch.load(path, weights_only=True)
        change(lab, payload)
        content = {part: payload[part] for part in SECTIONS}
        torch.save(payload | ({} if sealed else {"digest": format.digest(content), "seals": seals(content)}), path)

    return rewrite


def _nan(lab: Lab, payload: dict[str, Any]) -> None:
    payload["ema"][weight_of(lab, payload, "ema")].view(-1)[int(lab.rng.integers(50))] = torch.nan


def _gone(lab: Lab, payload: dict[str, Any]) -> None:
    name = weight_of(lab, payload)
    del payload["model"][name], payload["ema"][name]


def _sentinel(_: Lab, payload: dict[str, Any]) -> None:
    payload["meta"] = payload["meta"].replace('"sentinel_time": -1.0', '"sentinel_time": -2.0')


def _cut(lab: Lab, path: Path) -> None:
    path.write_bytes(path.read_bytes()[: int(lab.rng.uniform(0.1, 0.95) * path.stat().st_size)])


def _changed_weight(lab: Lab, payload: dict[str, Any]) -> None:
    payload["ema"][weight_of(lab, payload, "ema")].mul_(1.01)


_refused("a NaN weight", _rewritten(_nan))
_refused("a weight is gone", _rewritten(_gone))
_refused("a weight times 1.01, digest as it was", _rewritten(_changed_weight, sealed=True))
_refused("another sentinel in its configuration", _rewritten(_sentinel))
_refused("cut short", _cut)
_refused("a text file", lambda lab, path: path.write_text("hello\n"))
_refused(
    "safetensors with normalized inputs", lambda lab, path: None, "--inputs", "normalized", suffix="safetensors",
    codes=("XT-USAGE",),
)  # fmt: skip
