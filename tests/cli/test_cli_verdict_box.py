"""The verdict box: three lines a reader finds at once, and a last one that can be pasted."""

from __future__ import annotations

import pytest
from xectool.cli.render import console, verdict_box


def test_the_box_reads_verdict_why_next_and_keeps_a_long_command_on_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = "xectool diagnose nan-batch config.yaml --run 'a run with [brackets]' " + "--set data.batch_size=2 " * 9
    console().print(
        verdict_box("XT-NAN-DATA: a bad event", ["first reason", "second [reason]"], command.strip(), False)
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines[1].split(maxsplit=1) == ["Verdict", "XT-NAN-DATA: a bad event"]
    assert lines[2].split(maxsplit=1) == ["Why", "first reason"]
    assert lines[3].strip() == "second [reason]"
    assert lines[4].split(maxsplit=1) == ["Next", command.strip()]


def test_a_box_without_a_next_step_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(verdict_box("healthy", ["26 rules found nothing"], "", True))
    assert "nothing to do" in capsys.readouterr().err
