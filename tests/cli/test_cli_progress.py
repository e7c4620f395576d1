"""What a training shows of its progress."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console
from xectool.cli import progress


def test_batches_of_an_attempt_before_took_this_one_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed at 20 of 94: ten batches in 10 s leave 64 s, not 21."""
    now, out = [100.0], io.StringIO()
    clock: Any = type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
    monkeypatch.setattr(progress, "time", clock)
    watcher = progress.LineWatcher(Console(file=out, width=200))
    watcher.phase("train 1/1", 94, 20)
    now[0] += 10
    watcher.advanced(10, {"loss": 1.0})
    assert "30/94  loss 1  ETA 64 s" in out.getvalue()
    now[0] += 10
    watcher.advanced(10, {"run_left_s": 7200.0, "unmeasured_validations": 1.0})
    assert "40/94    ETA 54 s, run > 2.0 h\n" in out.getvalue()
    watcher.phase("validate 1/1", 10)
    now[0] += 10
    watcher.advanced(5, {})
    assert out.getvalue().rstrip().endswith("5/10    ETA 10 s")


def test_a_bar_on_80_columns_tells_the_time_of_the_epoch_and_of_the_run() -> None:
    out = io.StringIO()
    watcher = progress.LiveWatcher(Console(file=out, width=80, force_terminal=True, color_system=None))
    watcher.phase("train 1/6", 19)
    for _ in range(3):
        watcher.advanced(1, {"loss": 0.6541, "events_per_s": 550.0, "data_wait": 0.04, "run_left_s": 60.0})
    watcher._bar.refresh()
    watcher.close()
    assert re.search(r"ETA \d:\d\d:\d\d run 60 s", out.getvalue()), out.getvalue()
