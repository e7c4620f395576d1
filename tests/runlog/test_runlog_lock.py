"""One holder at a time, whatever happens to the name of the lock."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from xectool.runlog.lock import ProcessLock


def test_a_lock_whose_name_is_removed_while_it_is_taken_is_taken_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking the last holder removes the file: the next one would lock another file."""
    path, original, seen = tmp_path / "x.lock", fcntl.lockf, []

    def removed_first(descriptor: int, operation: int) -> None:
        if not seen:
            path.unlink()
        seen.append(descriptor)
        original(descriptor, operation)

    monkeypatch.setattr(fcntl, "lockf", removed_first)
    with ProcessLock(path) as lock:
        assert lock.acquire()
        assert len(seen) == 2
        assert lock.holder() is not None


def test_a_lock_is_free_again_once_it_is_released(tmp_path: Path) -> None:
    lock = ProcessLock(tmp_path / "x.lock")
    for _ in range(2):
        assert lock.acquire()
        lock.release()
