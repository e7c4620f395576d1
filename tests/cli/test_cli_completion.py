"""A shell is offered values, not commands alone, and at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASK = """
import sys
from xectool.cli.app import app
try:
    app(prog_name="xectool")
except SystemExit:
    pass
sys.exit("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("xectool config init --kind in", "inpainter"),
        ("xectool config init --preset a", "a100"),
        ("xectool export CKPT --to torch", "torchscript"),
        ("xectool estimate-memory --gpu h1", "h100-80gb"),
        ("xectool explain oom", "oom-gpu"),
        ("xectool explain XT-OOM", "XT-OOM-GPU"),
        ("xectool explain training.ema", "training.ema_decay"),
        ("xectool train run.yaml --set training.lr_sch", "training.lr_scheduler="),
    ],
)
def test_values_are_offered_without_loading_torch(line: str, offered: str) -> None:
    words = line.split()
    asked = {"_XECTOOL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    found = subprocess.run([sys.executable, "-c", ASK], env=os.environ | asked, capture_output=True, text=True)
    assert offered in found.stdout.split(), found.stderr
    assert found.returncode == 0, "torch was loaded"


def test_the_formats_are_those_that_can_be_exported() -> None:
    from xectool.engine.completions import FORMATS
    from xectool.export.formats import FORMATS as REGISTERED

    assert sorted(REGISTERED.names()) == list(FORMATS)
