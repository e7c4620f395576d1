"""The verdict box: three lines a reader finds at once, and a last one that can be pasted."""

from __future__ import annotations

import io
import math
import sys

import pytest
from xectool.cli.render import console, keep_readable, show_findings, table, verdict_box
from xectool.cli.watch import sparkline
from xectool.findings import Finding, Severity


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


LINES = "cat > a.yaml <<'EOF'\ndata:\n  train_path: [a b.root, c.root]\nEOF\nxectool train a.yaml" + " --set a.b=1" * 30


def test_several_lines_to_paste_stand_as_they_are_pasted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were indented, so a document in a shell did not end and the lines of YAML were of another section."""
    monkeypatch.setenv("COLUMNS", "60")
    found = Finding("XT-X", Severity.ERROR, "a problem", where="here", fix=LINES)
    show_findings(console(), [found])
    assert capsys.readouterr().err.endswith(f"  fix:\n{LINES}\n")
    console().print(verdict_box("bad", ["a reason"], LINES, False))
    assert f"\n{LINES}\n" in capsys.readouterr().err
    show_findings(console(), [Finding("XT-X", Severity.ERROR, "a problem", fix="--time 1:00:00")])
    assert capsys.readouterr().err.endswith("  fix: --time 1:00:00\n"), "one line stays behind its label"
    show_findings(console(), [Finding("XT-X", Severity.ERROR, "a problem", fix="--resume auto\n# next: xectool runs")])
    assert capsys.readouterr().err.endswith("  fix: --resume auto\n       # next: xectool runs\n"), "a remark is none"


def test_a_box_without_a_next_step_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(verdict_box("healthy", ["26 rules found nothing"], "", True))
    assert "nothing to do" in capsys.readouterr().err


def test_what_does_not_exist_is_no_nan_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(table("norms", ["module", "norm"], [["act", None], ["bad", math.nan], ["good", 1 / 3]]))
    rows = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert [row for row in rows if len(row) == 2][1:] == [["act", "-"], ["bad", "nan"], ["good", "0.33333"]]


def test_a_stream_of_ascii_gets_plain_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*, readable: bool) -> str:
        kept = io.BytesIO()
        stream = io.TextIOWrapper(kept, "ascii", errors="backslashreplace")
        monkeypatch.setattr(sys, "stderr", stream)
        if readable:
            keep_readable(stream)
        console().print(verdict_box("healthy", [f"3 ± 1 ä {sparkline((0.0, 0.5, 1.0))}"], "", True))
        stream.flush()
        return kept.getvalue().decode("ascii")

    plain = shown(readable=True).splitlines()
    assert (plain[0], plain[2]) == ("-" * 80, "Why      3 +- 1 \\xe4 .+@")
    assert "\\u2500" in shown(readable=False), "the control: what such a stream does by itself"


def test_a_long_line_of_several_findings_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A line of 2 kB stood there three times."""
    line = "python3 -c " + "x" * 500
    show_findings(console(), [Finding("DAT-16", Severity.ERROR, "p", f"{name}.root", (), line) for name in "ab"])
    said = capsys.readouterr().err.replace("\n", "")
    assert (said.count("xxxx" * 100), said.count("the line of DAT-16 above, of a.root")) == (1, 1)


def test_what_else_helps_is_said_beside_a_line_that_was_printed(capsys: pytest.CaptureFixture[str]) -> None:
    line = "xectool convert " + "x" * 500
    fixes = [f"{line}   # what was found in 1 file", f"{line}   # what was found in 1 file; or leave it out"]
    found = [Finding("DAT-16", Severity.ERROR, "p", "a.root", (), fix) for fix in fixes]
    show_findings(console(), found, next_line=fixes[0])
    said = capsys.readouterr().err.splitlines()
    assert [text for text in said if "fix:" in text] == [
        "  fix: the line after Next",
        "  fix: the line after Next   # what was found in 1 file; or leave it out",
    ]


COMMAND = "xectool train 'a b.yaml' --set 'data.exclude=[a.root:1, a.root:2]' --run-name again"
SENTENCE = (
    f"confidence 95%: the loss of 3 events jumps at step 17 of file /data/{'long/' * 12}a.root; go on with {COMMAND}"
)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_sentences_fit_the_terminal_and_what_is_pasted_stays_whole(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal broke them inside of words, and below the labels."""
    monkeypatch.setenv("COLUMNS", str(width))
    console().print(verdict_box(f"XT-SPIKE: {SENTENCE}", [SENTENCE] * 2, COMMAND, False))
    show_findings(console(), [Finding("XT-SPIKE", Severity.ERROR, SENTENCE, "a.root", (SENTENCE,), COMMAND)])
    shown = capsys.readouterr().err
    lines = [line for line in shown.splitlines() if not line.startswith("─")]
    assert " ".join(shown.split()).count(" ".join(SENTENCE.split())) == 5, "every word, in its order"
    assert shown.count(COMMAND) == 7
    long = [line for line in lines if len(line) > width]
    assert all(COMMAND in line or "long/" in line for line in long)
    assert all(len(line.split()) <= 2 for line in long if "long/" in line), (
        "nothing stands beside a word that is too long"
    )
    assert f"Next     {COMMAND}" in lines
    assert sum(line.startswith(" " * 9) for line in lines) >= 6, "below their labels"


def test_a_log_has_all_the_room_it_needs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    console().print(verdict_box("bad", [SENTENCE], COMMAND, False))
    assert f"Why      {SENTENCE}" in capsys.readouterr().err.splitlines()
