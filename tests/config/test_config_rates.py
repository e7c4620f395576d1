"""Rates to set instead of one that makes a training diverge: every line loads, and lowers the peak."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from xectool.config.load import load_config
from xectool.config.rates import gentler, gentler_options, peak_lr


@pytest.mark.parametrize(
    ("kind", "training", "peak"),
    [
        ("regressor", "{lr: 1e-3}", 1e-4),
        ("regressor", "{lr: 5}", 3e-4),
        ("mae", "{lr: 5}", 1e-4),
        ("mae", "{lr: 5e-6}", 5e-7),
        ("regressor", "{lr: 1e-3, lr_min: 3e-4, lr_scheduler: cosine}", 1e-4),
        ("regressor", "{lr: 1e-3, max_lr: 5, lr_scheduler: onecycle, warmup_epochs: 0}", 3e-4),
        ("regressor", "{lr: 1e-5, max_lr: 5e-3, lr_scheduler: onecycle, warmup_epochs: 0}", 5e-4),
    ],
)
def test_a_gentler_rate_is_the_peak_and_its_line_loads(
    write: Callable[..., Path], kind: str, training: str, peak: float
) -> None:
    tasks = "tasks: {energy: {enabled: true}}\n" if kind == "regressor" else ""
    path = write(f"kind: {kind}\ndata: {{train_path: a.root, val_path: b.root}}\n{tasks}training: {training}\n")
    before = load_config(path).config
    after = load_config(path, gentler(before)).config
    assert peak_lr(after.training) == pytest.approx(peak)
    assert peak_lr(after.training) < peak_lr(before.training)
    assert after.training.lr_min <= peak_lr(after.training)
    assert gentler_options(before) == " ".join(f"--set {setting}" for setting in gentler(before))


@pytest.mark.parametrize(
    ("kind", "training", "found"),
    [
        ("regressor", ["lr_scheduler=onecycle", "max_lr=10"], "--set training.max_lr=0.0003"),
        ("mae", ["lr_scheduler=onecycle", "max_lr=10"], "--set training.max_lr=0.0001"),
        ("regressor", ["lr_scheduler=onecycle", "lr=10", "max_lr=10"],
         "--set training.max_lr=0.0003 --set training.lr=0.0003"),
        ("regressor", ["lr=10", "lr_min=1"], "--set training.lr=0.0003 --set training.lr_min=3e-06"),
        ("regressor", ["lr_scheduler=onecycle", "max_lr=1e-3"], None),
    ],
)  # fmt: skip
def test_the_peak_is_judged_and_the_fix_lowers_it(
    write: Callable[..., Path], kind: str, training: list[str], found: str | None
) -> None:
    """A peak of one cycle was never looked at, and the fix of its base left it where it was."""
    tasks = "tasks: {energy: {enabled: true}}\n" if kind == "regressor" else ""
    path = write(f"kind: {kind}\n{tasks}")
    given = ["training.warmup_epochs=0", *(f"training.{text}" for text in training)]

    def fixes(*more: str) -> list[str]:
        return [item.fix for item in load_config(path, [*given, *more]).findings if item.code == "CFG-29"]

    assert fixes() == ([found] if found else [])
    assert fixes(*(found or "").replace("--set ", "").split()) == []
