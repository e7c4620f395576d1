"""A helper that asked for it does not outlive the process that started it, however that one ends."""

import os
import signal
import subprocess
import sys
import time

import pytest
from xectool.runlog.process import start_ticks

HELPER = """
import time
from xectool.runlog.process import end_with_parent
{ask}
print("up", flush=True)
time.sleep(60)
"""
PARENT = """
import subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
helper.stdout.readline()
print(helper.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does it")
@pytest.mark.parametrize(
    ("ask", "ends"),
    [("end_with_parent()", True), ("pass", False), ("end_with_parent(); end_with_parent(False)", False)],
    ids=["asked", "not asked", "taken back"],
)
def test_helper_ends_with_its_killed_parent(ask, ends):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, HELPER.format(ask=ask)], stdout=subprocess.PIPE, text=True)
    helper = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + (20.0 if ends else 0.3)
    while start_ticks(helper) and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        assert (start_ticks(helper) == 0) == ends
    finally:
        if start_ticks(helper):
            os.kill(helper, signal.SIGKILL)
