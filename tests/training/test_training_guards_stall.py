"""A machine that stood still is no training that hangs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from xectool.config.guards import GuardsConfig
from xectool.runlog.status_page import StatusPage, Word
from xectool.training.guards import watchdog
from xectool.training.guards.watchdog import Watchdog, Witness

SLEEPS = {
    "the machine stands still, and the training goes on with it": ([5.0, 300.0, 5.0], True, []),
    "the machine stands still, and the training does after it": ([5.0, 300.0, 5.0], False, ["hang"]),
    "the training stands still alone": ([5.0] * 40, False, ["hang"]),
}


@pytest.mark.parametrize("what", SLEEPS)
def test_a_watchdog_that_overslept_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    sleeps, wakes, expected = SLEEPS[what]
    page, said, now_s = StatusPage(tmp_path / "page"), [], [0.0]
    page[Word.STEP] = 0
    witness = Witness(tmp_path / "stacks", lambda kind, *_, **__: said.append(kind))
    dog: Any = Watchdog(page, GuardsConfig(hang_s=100), witness)
    page[Word.STEP] = 1
    page.phase("forward")
    page[Word.PHASE_SINCE_NS] = 1  # 0 stands for one that was said

    def sleeping() -> Iterator[bool]:
        for seconds in sleeps:
            now_s[0] += seconds
            yield False
            if wakes:
                page[Word.PHASE_SINCE_NS] = int(now_s[0] * 1e9)
        yield True

    ends = sleeping()
    monkeypatch.setattr(dog, "_stop", SimpleNamespace(wait=lambda seconds: next(ends)))
    clock = {"monotonic": lambda: now_s[0], "monotonic_ns": lambda: int(now_s[0] * 1e9), "strftime": time.strftime}
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(**clock))
    dog._run()
    assert [kind for kind in said if kind == "hang"] == expected
    page.close()
