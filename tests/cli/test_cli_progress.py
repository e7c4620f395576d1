"""What a training shows of its progress."""

from __future__ import annotations

import io
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
    watcher.phase("validate 1/1", 10)
    now[0] += 10
    watcher.advanced(5, {})
    assert out.getvalue().rstrip().endswith("5/10    ETA 10 s")
