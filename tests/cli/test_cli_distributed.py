"""``diagnose distributed`` and ``train --nproc``: a clear verdict whatever keeps the ranks apart."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from xectool.engine.diagnose import ranks_together
from xectool.probes.ranks.selftest import CHECKS

Run = Callable[..., Any]
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def finding(outcome: Any, code: int = 1) -> dict[str, Any]:
    assert outcome.code == code
    document = outcome.document
    assert document["status"] == ("bad" if code == 1 else "error")
    found: dict[str, Any] = document["findings"][0]
    assert found["fix"]
    return found


def test_help_names_the_options(xectool: Run) -> None:
    for argv, options in (
        (("diagnose", "distributed"), ("--nproc", "--backend", "--master", "--port", "--timeout", "--json")),
        (("train",), ("--nproc",)),
    ):
        outcome = xectool(*argv, "--help")
        assert outcome.code == 0
        assert [option for option in options if option not in outcome.out] == []


@pytest.mark.slow
def test_ranks_that_work_together_are_healthy(xectool: Run) -> None:
    outcome = xectool("diagnose", "distributed", "--nproc", "2", "--backend", "gloo", "--json")
    assert outcome.code == 0, outcome.out
    result = outcome.document["result"]
    assert "2 ranks work together by gloo" in result["verdict"]
    assert [facts["rank"] for facts in result["ranks"]] == [0, 1]
    for facts in result["ranks"]:
        assert {name: found["ok"] for name, found in facts["checks"].items()} == dict.fromkeys(CHECKS, True)
        assert facts["latency_us"] > 0
        assert facts["bandwidth_gb_s"] > 0
        assert facts["error"] == ""


def test_a_rank_that_says_much_is_not_taken_for_one_that_hangs(tmp_path: Path) -> None:
    talks = [sys.executable, "-c", "import sys; sys.stderr.write('x' * 300_000)"]  # a pipe holds 65 536
    assert ranks_together._start(talks, os.environ, tmp_path / "log").wait(300) == 0
    with subprocess.Popen(talks, stderr=subprocess.PIPE) as unread:
        with pytest.raises(subprocess.TimeoutExpired):
            unread.wait(3)
        unread.kill()


def test_port_in_use_is_named_with_its_holder(xectool: Run) -> None:
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        found = finding(xectool("diagnose", "distributed", "--port", str(port), "--json"))
    assert found["code"] == "XT-PORT"
    assert f"port {port} cannot be used: Address already in use; pid" in found["problem"]


def test_master_that_does_not_resolve_is_named(xectool: Run) -> None:
    found = finding(xectool("diagnose", "distributed", "--master", "no-such-host.invalid", "--port", "29500", "--json"))
    assert found["code"] == "XT-RANK-MASTER"
    assert "no-such-host.invalid cannot be resolved" in found["problem"]


def test_master_that_does_not_answer_is_named(xectool: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xectool.probes.ranks.network.CONNECT_S", 0.5)
    # 192.0.2.0/24 is reserved for documentation: no machine has such an address
    found = finding(xectool("diagnose", "distributed", "--master", "192.0.2.1", "--port", "29500", "--json"))
    assert found["code"] == "XT-RANK-MASTER"
    assert "192.0.2.1" in found["problem"]
    assert "does not answer at port 29500" in found["problem"]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 but not RANK"),
        ({"RANK": "0"}, "not WORLD_SIZE"),
        (
            {"RANK": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
            "RANK=4 of WORLD_SIZE=4",
        ),
    ],
)
def test_environment_of_no_job_is_said(
    xectool: Run, files: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = finding(xectool("diagnose", "distributed", "--json"))
    assert found["code"] == "XT-RANK-ENVIRONMENT"
    assert said in found["problem"]
    found = finding(xectool("train", files / "config.yaml", "--dry-run", "--json"), code=2)
    assert (found["code"], said in found["problem"]) == ("XT-RANK-ENVIRONMENT", True)


def test_interface_that_is_not_here_is_said_with_those_that_are(xectool: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "doesnotexist0")
    found = finding(xectool("diagnose", "distributed", "--json"))
    assert found["code"] == "XT-ENV-INTERFACE"
    assert "doesnotexist0 not found; available: " in found["problem"]
    assert "lo" in found["problem"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with GPUs has NCCL")
def test_backend_that_cannot_work_here_is_said(xectool: Run) -> None:
    found = finding(xectool("diagnose", "distributed", "--backend", "nccl", "--json"))
    assert found["code"] == "XT-NCCL-MISSING"
    assert "--backend gloo" in found["fix"]


def test_wrong_configuration_is_said_once_before_any_rank_starts(xectool: Run, files: Path) -> None:
    outcome = xectool("train", files / "config.yaml", "--nproc", "2", "--set", "data.batch_sise=8", "--json")
    assert outcome.code == 2
    assert "data.batch_size" in outcome.document["findings"][0]["fix"]


@pytest.mark.parametrize("number", ["0", "-1"])
def test_number_of_ranks_that_makes_no_sense_is_refused(xectool: Run, files: Path, number: str) -> None:
    found = finding(xectool("train", files / "config.yaml", "--nproc", number, "--json"), code=2)
    assert found["fix"] == "--nproc 1"
    found = finding(xectool("diagnose", "distributed", "--nproc", "1", "--json"), code=2)
    assert found["fix"] == "--nproc 2"
