"""``ctl`` on a run that cannot answer."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from xectool import engine
from xectool.errors import WorldError
from xectool.runlog.writer import RunWriter


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_that_does_not_answer_is_not_saved_and_its_last_checkpoint_is_named(tmp_path: Path, saved: bool) -> None:
    place, last = tmp_path / "socket", tmp_path / "checkpoint_last.pt"
    with socket.socket(socket.AF_UNIX) as listening, RunWriter(tmp_path) as writer:
        listening.bind(str(place))
        writer.event("control_socket", socket=str(place))
        if saved:
            last.touch()
        words = f"the last good checkpoint is {last}" if saved else "there is no checkpoint yet"
        with pytest.raises(WorldError, match=words) as caught:
            engine.control(tmp_path, "checkpoint", wait_s=0)
        writer.event("interrupted")
    assert caught.value.fix == f"xectool diagnose hang {tmp_path}"


def test_who_looks_at_a_run_does_not_load_torch() -> None:
    names = (
        "xectool.engine.live, xectool.engine.diagnose.hanging, xectool.engine.runs, xectool.cli.watch, xectool.cli.ctl"
    )
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
