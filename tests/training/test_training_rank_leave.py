"""What several ranks say of themselves: failed ones wait for the first, and one that waits alone can be ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch.distributed import HashStore
from xectool.data.batch import EventBatch
from xectool.training.guards.base import Notice
from xectool.training.guards.inputs import InputScale, Opinion
from xectool.training.ranks import group as rank_group
from xectool.training.ranks.group import RankGroup
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress


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


WAITS = """
import torch
from xectool.cli.signals import hear
from xectool.config.distributed import DistributedConfig
from xectool.training.ranks.group import joined
hear()
with joined(DistributedConfig(), torch.device("cpu")):
    pass
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_whose_others_do_not_come_ends_on_a_signal(rank: int) -> None:
    """It waits in compiled code, where Python hears nothing: neither Ctrl-C nor a batch system ended it."""
    with contextlib.ExitStack() as kept:
        place = kept.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = place.getsockname()[1]
        if rank == 0:
            place.close()
        told = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-c", WAITS]
        started = kept.enter_context(subprocess.Popen(command, env=os.environ | told, stderr=subprocess.PIPE))
        kept.callback(started.kill)
        if rank == 0:
            _until_someone_listens(port)
        else:
            kept.enter_context(place.accept()[0])  # and never answers
        time.sleep(0.5)
        started.send_signal(signal.SIGTERM)
        assert b"KeyboardInterrupt" in started.communicate(timeout=15)[1]


def _until_someone_listens(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as asking:
            if asking.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("nobody listens")


def test_numbers_of_the_scale_are_those_of_the_rank_that_is_judged() -> None:
    """Two ranks look one after the other; each is given what both found, as a collective does."""
    looks: list[Opinion] = []

    def look(factor: float) -> Iterator[Notice]:
        values = factor * torch.rand(2, 30, 2, generator=torch.Generator().manual_seed(1))
        normalizer = SimpleNamespace(normalize=lambda *_: (values, torch.ones_like(values, dtype=torch.bool)))
        ranks = SimpleNamespace(gather=lambda own: looks.append(own) or looks)
        config = SimpleNamespace(guards=SimpleNamespace(on_input_scale="warn"))
        parts = SimpleNamespace(model=SimpleNamespace(normalizer=normalizer), ranks=ranks, config=config)
        batch = SimpleNamespace(num_events=2, npho=values[..., 0], time=values[..., 1])
        return InputScale(cast(RunParts, parts)).before_step(Progress(), cast(list[EventBatch], [batch]))

    list(look(1e4))
    (notice,) = look(1.0)
    assert (notice.data["rank"], notice.data["level"]) == (0, "error")
    assert notice.data["channels"]["npho"]["absmax"] > 1e3
