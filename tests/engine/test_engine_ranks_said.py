"""What later ranks and their reading processes warn of is said by the launcher, and never costs more than itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from xectool.engine.ranks import watch
from xectool.engine.ranks.outcome import DIRECTORY, LAUNCHER
from xectool.engine.ranks.said import RankWarnings
from xectool.engine.ranks.watch import RankWatch

WARNS = """
import logging, multiprocessing, os, sys
from xectool.data.worker_process import become_loader
from xectool.engine.ranks.outcome import run_as_rank
from xectool.errors import WorldError

def read(rank):
    become_loader(None)
    logging.getLogger("xectool.data.cache.store").warning("XT-CACHE-DAMAGED: reader of %s", rank)

def train():
    rank = os.environ["RANK"]
    logging.getLogger("xectool.data.cache.store").warning("XT-CACHE-DAMAGED: %s", "x")
    if rank == "1":
        logging.getLogger("xectool.rootio").warning("XT-CACHE-DAMAGED: own\\n  fix: this")
        logging.getLogger("xectool.rootio").warning("XT-OTHER: second\\n  fix: this")
    reader = multiprocessing.get_context(sys.argv[1]).Process(target=read, args=(rank,))
    reader.start()
    reader.join()
    raise WorldError("done", where=rank)

if __name__ == "__main__":
    raise SystemExit(run_as_rank(train))
"""


@pytest.mark.parametrize("start", ["forkserver", "fork"])
def test_what_later_ranks_and_their_readers_warn_of_is_said_by_the_launcher_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start: str
) -> None:
    given = {**os.environ, DIRECTORY: str(tmp_path), LAUNCHER: str(os.getpid())}
    program = tmp_path / "ranks.py"
    program.write_text(WARNS)
    with RankWatch(1e6, RankWarnings(tmp_path, 3)):
        ranks = [
            subprocess.Popen(
                [sys.executable, str(program), start], env={**given, "RANK": str(rank)}, stderr=subprocess.PIPE
            )
            for rank in range(3)
        ]
        screens = [rank.communicate()[1] for rank in ranks]
    assert [b"XT-CACHE-DAMAGED: x" in screen for screen in screens] == [True, False, False]
    assert b"reader of 0" in screens[0]
    said = sorted(record.getMessage() for record in caplog.records)
    assert [text for text in said if "DAMAGED: x" not in text] == [
        "rank 1: XT-CACHE-DAMAGED: own\n  fix: this",
        "rank 1: XT-CACHE-DAMAGED: reader of 1",
        "rank 1: XT-OTHER: second\n  fix: this",
        "rank 2: XT-CACHE-DAMAGED: reader of 2",
    ]
    assert len(said) == 5


def test_warnings_that_cannot_be_read_end_neither_the_watch_nor_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LOOK_EVERY_S", 0.01)
    looks: list[int] = []
    monkeypatch.setattr(RankWatch, "_late", lambda _: looks.append(1) or set())
    (tmp_path / "warnings.rank0001").mkdir()  # EISDIR, as EIO of a broken disk
    (tmp_path / "warnings.rank0002").write_text('"XT-X: still said"\n"cut')
    with RankWatch(1e6, RankWarnings(tmp_path, 3)):
        deadline = time.monotonic() + 30
        while len(looks) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(looks) >= 3
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "what rank 1 warns of cannot be read any more",
        "rank 2",
    ]
