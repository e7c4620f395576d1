"""What the launcher of ranks says when one of them is lost."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from xectool.engine.launching import _again
from xectool.engine.rank_verdict import Ending, verdict_of
from xectool.errors import WorldError

GIVEN = ["--run-name", "it's", "--set", "training.epochs=200"]


@pytest.mark.parametrize(("resume", "saved", "expected"), [
    ([], False, "auto"),
    ([], True, "RUN"),
    (["--resume", "old/checkpoint_best.pt"], False, "old/checkpoint_best.pt"),
    (["--resume", "auto"], True, "RUN"),
])  # fmt: skip
def test_the_line_to_paste_starts_the_same_training(
    tmp_path: Path, resume: list[str], saved: bool, expected: str
) -> None:
    if saved:
        (tmp_path / "checkpoint_last.pt").touch()
    words = shlex.split(_again("c.yaml", 2, [*resume, *GIVEN], tmp_path))
    place = str(tmp_path) if expected == "RUN" else expected
    assert words == ["xectool", "train", "c.yaml", "--nproc", "2", *GIVEN, "--resume", place]


@pytest.mark.parametrize(("oom_kills", "says"), [(0, "by somebody"), (2, "ran out"), (-1, "most likely")])
def test_memory_is_blamed_only_where_the_kernel_may_have_killed_for_it(
    tmp_path: Path, oom_kills: int, says: str
) -> None:
    failure = SimpleNamespace(pid=7, exitcode=-signal.SIGKILL, timestamp=1.0)
    ending = Ending(2, tmp_path, {1: failure}, frozenset(), False, oom_kills=oom_kills)  # type: ignore[dict-item]
    with pytest.raises(WorldError, match=says) as caught:
        verdict_of(ending, "xectool train c.yaml")
    assert caught.value.fix == "xectool train c.yaml"
