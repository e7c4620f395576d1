"""Ranks that fail together wait for the first one, which writes what they had."""

from __future__ import annotations

import threading
import time

import pytest
from torch.distributed import HashStore
from xectool.training import rank_group
from xectool.training.rank_group import RankGroup


@pytest.mark.parametrize("saves", [True, False])
def test_failed_ranks_wait_for_the_last_save_of_the_first_and_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch, saves: bool
) -> None:
    monkeypatch.setattr(rank_group, "_FAILED_WAIT_S", 0.1)
    store = HashStore()
    first, other = (RankGroup(rank, 2, store, 20.0) for rank in (0, 1))
    if saves:
        first.note_last_work()
    written = threading.Event()

    def save() -> None:
        time.sleep(0.6)
        written.set()
        first.leave(failed=True)

    thread = threading.Thread(target=save)
    thread.start()
    leaving = threading.Thread(target=other.leave, args=(True,))
    leaving.start()
    leaving.join(10)
    assert written.is_set() == saves
    thread.join()
