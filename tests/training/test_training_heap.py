"""Freed memory goes back to the system while batches go by."""

from __future__ import annotations

import pytest
from xectool.training import heap


def test_batches_pass_unchanged_and_the_heap_is_trimmed_after_each(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(heap, "_malloc_trim", lambda: calls.append)
    assert list(heap.trimmed(range(3))) == [0, 1, 2]
    assert calls == [0, 0, 0]


def test_a_c_library_without_trimming_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert list(heap.trimmed("abcdefgh")) == [*"abcdefgh"]


def test_the_c_library_here_takes_the_call() -> None:
    assert heap._malloc_trim()(0) in (0, 1)
