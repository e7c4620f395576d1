"""``xectool submit`` and the presets, as a user calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def test_a_rehearsal_prints_the_script_and_one_document(files: Path, xectool: Callable[..., object]) -> None:
    argv = ["submit", files / "config.yaml", "--partition", "p", "--time", "01:00:00", "--gpus", "0", "--dry-run"]
    done = xectool(*argv, "--requeue", "--set", "training.lr=1e-5")
    assert done.code == 0
    assert done.out.startswith("#!/bin/bash")
    assert "at most 10 requeues" in done.err
    assert "--set training.lr=1e-5" in done.err
    document = xectool(*argv, "--json").document
    assert document["status"] == "ok"
    assert document["result"]["run_name"] == "first"
    assert document["result"]["job_id"] is None
    assert "--no-requeue" in document["result"]["script"]


@pytest.mark.parametrize(("words", "gpus"), [((), 1), (("--set", "distributed.num_gpus=4"), 4), (("--gpus", "2"), 2)])
def test_a_job_asks_for_the_gpus_of_its_configuration(
    words: tuple[str, ...], gpus: int, files: Path, xectool: Callable[..., object]
) -> None:
    argv = ("submit", files / "config.yaml", "--partition", "p", "--time", "01:00:00", "--dry-run", "--json")
    found = xectool(*argv, *words).document["result"]
    assert found["ranks"] == gpus
    assert f"--gpus-per-node={gpus}\n" in found["script"]
    assert f"--nproc {gpus}" in found["command"]


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--time", "01:00:00"], "XT-SUBMIT-REQUEST"),
        ([], "XT-SUBMIT-REQUEST"),
        (["--partition", "p", "--time", "1h"], "XT-SUBMIT-TIME"),
    ],
)
def test_what_is_missing_is_said_with_exit_code_2(
    argv: list[str], code: str, files: Path, xectool: Callable[..., object]
) -> None:
    done = xectool("submit", files / "config.yaml", *argv, "--json")
    assert done.code == 2
    assert done.document["findings"][0]["code"] == code


def test_the_presets_are_listed(xectool: Callable[..., object]) -> None:
    assert {"cpu", "a100", "gh200"} <= set(
        xectool("config", "init", "--list-presets", "--json").document["result"]["presets"]
    )
    assert "Grace-Hopper" in xectool("config", "init", "--list-presets").out


def test_the_manifest_states_what_changes_the_numbers(files: Path, xectool: Callable[..., object]) -> None:
    from xectool.runlog.manifest import read_manifest

    settings = ["--set", "training.deterministic=true", "--set", "checkpoint.save_artifacts=false"]
    name = ["--run-name", "stated", "--max-steps", "1"]
    assert xectool("train", files / "config.yaml", *name, *settings).code == 0
    extra = read_manifest(files / "runs" / "stated")["attempts"][0]["extra"]
    assert extra["numerics"]["deterministic_algorithms"] is True
    assert {"cudnn_tf32", "matmul_tf32", "cudnn_benchmark", "cudnn", "matmul_precision"} <= set(extra["numerics"])
