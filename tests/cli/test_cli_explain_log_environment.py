"""``explain``, ``diagnose log`` and ``diagnose environment`` as a user meets them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.mark.parametrize("words", [("explain",), ("diagnose", "log"), ("diagnose", "environment")])
def test_help_says_what_it_does(xectool: Run, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    outcome = xectool(*words, "--help")
    assert outcome.code == 0
    assert "--json" in outcome.out + outcome.err


def test_explain_prints_text_and_related_names(xectool: Run) -> None:
    outcome = xectool("explain", "XT-OOM-GPU")
    assert outcome.code == 0
    assert outcome.out == ""
    assert all(part in outcome.err for part in ("Cause:", "Fix:", "--max-batch", "see: oom-gpu"))


def test_explain_document(xectool: Run) -> None:
    document = xectool("explain", "batch-sizes", "--json").document
    assert document["command"] == "explain"
    assert set(document["result"]) == {"title", "text", "see"}
    assert "8192-16384" in document["result"]["text"]


def test_explain_alone_lists_topics(xectool: Run) -> None:
    outcome = xectool("explain")
    assert outcome.code == 0
    assert "stale-advice" in outcome.err
    assert "lr-sweep" in xectool("explain", "--json").document["result"]["see"]


def test_unknown_topic_is_exit_2_with_the_nearest(xectool: Run) -> None:
    outcome = xectool("explain", "grad-nrom")
    assert outcome.code == 2
    assert "xectool explain grad-norm" in outcome.err


def test_explain_starts_fast(xectool: Run) -> None:
    xectool("explain", "nan")
    started = time.process_time()
    xectool("explain", "training.lr")
    assert time.process_time() - started < 2


def test_log_tells_cause_place_and_next_line(xectool: Run, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step 1\nRuntimeError: DataLoader timed out after 600 seconds\n")
    outcome = xectool("diagnose", "log", str(tmp_path))
    assert outcome.code == 1
    assert all(part in outcome.err for part in ("XT-LOADER-STALL", "a.log:2", "Next", "--set data.timeout_s=1800"))
    document = xectool("diagnose", "log", str(tmp_path), "--json").document
    assert (document["command"], document["status"]) == ("diagnose log", "bad")
    cause = document["result"]["causes"][0]
    assert (cause["code"], cause["where"]) == ("XT-LOADER-STALL", f"{tmp_path / 'a.log'}:2")
    assert document["findings"][0]["code"] == "XT-LOADER-STALL"


def test_sound_log_is_exit_0_and_unknown_error_exit_1(xectool: Run, tmp_path: Path) -> None:
    (tmp_path / "good.log").write_text("step 1 loss 0.3\n")
    (tmp_path / "odd.log").write_text("acme.FluxError: capacitor\n")
    assert xectool("diagnose", "log", str(tmp_path / "good.log")).code == 0
    outcome = xectool("diagnose", "log", str(tmp_path / "odd.log"))
    assert outcome.code == 1
    assert "no known signature" in outcome.err
    assert xectool("diagnose", "log", str(tmp_path / "none.log")).code == 2
    (tmp_path / "x.root").write_bytes(b"root\x00\x00\xf2\xd0" + bytes(100))
    refused = xectool("diagnose", "log", str(tmp_path / "x.root"))
    assert (refused.code, "this is a ROOT file, not a log" in refused.err) == (2, True)


def test_environment_document_has_facts_and_no_secret(xectool: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_TIMEOUT", "300")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hush-hush")
    outcome = xectool("diagnose", "environment", "--json")
    assert "hush-hush" not in outcome.out
    document = outcome.document
    assert {"platform", "torch", "cgroups", "limits", "shared_memory", "places", "environment"} <= set(
        document["result"]["facts"]
    )
    assert "XT-ENV-UNREAD" in {found["code"] for found in document["findings"]}


def test_environment_shows_how_a_long_value_begins_and_a_short_one_as_it_is(
    xectool: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "x" * 2000)
    monkeypatch.setenv("NCCL_DEBUG", "two  words")
    shown = xectool("diagnose", "environment").err
    assert "x" * 200 + " ..." in shown
    assert "x" * 201 not in shown
    assert "two  words" in shown


def test_environment_fault_is_exit_1(xectool: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIOPEN_DISABLE_CACHE", "1")
    outcome = xectool("diagnose", "environment")
    assert outcome.code == 1
    assert "unset MIOPEN_DISABLE_CACHE" in outcome.err
