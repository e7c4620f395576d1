"""``diagnose distributed``: can several processes of this machine train together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from xectool.errors import UsageError, counted
from xectool.findings import Finding, Severity
from xectool.probes.ranks.network import (
    backend_findings,
    environment_findings,
    free_port,
    given_port,
    is_local,
    master_findings,
    port_findings,
)
from xectool.probes.ranks.selftest import CHECKS
from xectool.runlog.atomic import read_json

BACKENDS: Final = ("auto", "gloo", "nccl")
_START_S: Final = 60.0  # the imports of a rank on a busy machine


@dataclass(frozen=True)
class DistributedDiagnosis:
    """How the ranks did.

    Attributes:
        ranks: What each rank has to say: pid, device, checks with seconds, latency, bandwidth, where it stopped.
        verdict: The answer in one line.
        healthy: Whether every rank was right in everything.
        backend: What they talked by.
        findings: What is wrong, first cause first.
    """

    ranks: tuple[dict[str, Any], ...]
    verdict: str
    healthy: bool
    backend: str
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {"ranks": list(self.ranks), "verdict": self.verdict, "backend": self.backend}


def distributed(
    *,
    nproc: int = 2,
    backend: str = "auto",
    master: str | None = None,
    port: int | None = None,
    timeout_s: float = 30.0,
) -> DistributedDiagnosis:
    """Start ranks that go through every collective a training uses, and say which of them failed in what.

    Args:
        nproc: Ranks on this machine.
        backend: ``gloo``, ``nccl``, or ``auto``: nccl where each rank has a GPU.
        master: Host of the first rank; default: ``MASTER_ADDR``, else this machine.
        port: Port of the first rank; default: ``MASTER_PORT``, else a free one.
        timeout_s: Longest wait in one collective.

    Raises:
        UsageError: An argument makes no sense.
    """
    if nproc < 2:
        raise UsageError(f"{nproc} rank has nobody to talk to", where="--nproc", fix="--nproc 2")
    if backend not in BACKENDS:
        raise UsageError(
            f"backend '{backend}' is none of {', '.join(BACKENDS)}", where="--backend", fix="--backend gloo"
        )
    if backend == "auto":
        backend = "nccl" if nproc <= torch.cuda.device_count() else "gloo"
    host = master or os.environ.get("MASTER_ADDR") or "127.0.0.1"
    meeting = given_port() if port is None else port
    findings = [*environment_findings(os.environ), *backend_findings(backend, nproc), *master_findings(host, meeting)]
    if not findings and is_local_name(host):
        findings += port_findings(meeting)
    if findings:
        return DistributedDiagnosis((), findings[0].problem, False, backend, tuple(findings))
    ranks = _tested(nproc, backend, meeting or free_port(), timeout_s)
    return _judged(ranks, nproc, backend)


def is_local_name(host: str) -> bool:
    """Return whether a host is this machine, so that the ranks meet here."""
    return all(is_local(str(found[4][0])) for found in socket.getaddrinfo(host, None))


def _tested(nproc: int, backend: str, port: int, timeout_s: float) -> list[dict[str, Any]]:
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "OMP_NUM_THREADS": "1",
    }
    if backend == "gloo":
        shared["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    with tempfile.TemporaryDirectory(prefix="xectool-selftest-") as name:
        paths = [Path(name) / f"rank{rank}.json" for rank in range(nproc)]
        logs = [path.with_suffix(".log") for path in paths]
        started = []
        try:
            for rank, path in enumerate(paths):
                command = [sys.executable, "-m", "xectool.probes.ranks.selftest", str(path), backend, str(timeout_s)]
                own = {**inherited, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                started.append(_start(command, own, logs[rank]))
            _wait_for(started, _START_S + 2 * timeout_s)
        finally:
            for process in started:
                process.kill()
                process.wait()
        said = [log.read_text(errors="replace", encoding="utf-8") for log in logs]
        return [_facts(read_json(path), rank, started[rank], said[rank]) for rank, path in enumerate(paths)]


def _start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a rank that speaks into a file: nobody reads a pipe while it works, and a full one would block it."""
    with log.open("wb") as stream:
        return subprocess.Popen(command, env=dict(environment), stdout=subprocess.DEVNULL, stderr=stream)


def _wait_for(processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    end = time.monotonic() + limit_s
    for process in processes:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            return


def _facts(written: dict[str, Any], rank: int, process: subprocess.Popen[bytes], said: str) -> dict[str, Any]:
    lines = [line for line in said.strip().splitlines() if line.strip()]
    facts = {"rank": rank, "pid": process.pid, "at": "start", "checks": {}, "error": "", **written}
    facts["exit_code"] = process.returncode
    if process.returncode and not facts["error"]:
        facts["error"] = lines[-1] if lines else f"ended with {process.returncode} in {facts['at']}"
    return facts


def _fault_of(facts: Mapping[str, Any], again: str) -> Finding | None:
    """Return what a rank failed in, None where it did not."""
    wrong = [name for name in CHECKS if not facts["checks"].get(name, {"ok": True})["ok"]]
    if not wrong and not facts["error"]:
        return None
    what = f"gave a wrong answer in {', '.join(wrong)}" if wrong else f"failed in {facts['at']}"
    code = "XT-RANK-MISMATCH" if wrong == ["digests"] else "XT-RANK-SELFTEST"
    problem = f"rank {facts['rank']} {what}{': ' + facts['error'] if facts['error'] else ''}"
    return Finding(code, Severity.ERROR, problem, f"rank {facts['rank']} (pid {facts['pid']})", fix=again)


def _judged(ranks: Sequence[dict[str, Any]], nproc: int, backend: str) -> DistributedDiagnosis:
    again = f"xectool diagnose distributed --nproc {nproc} --backend {'gloo' if backend == 'nccl' else backend}"
    findings = [found for facts in ranks if (found := _fault_of(facts, again)) is not None]
    # a rank that only lost another one is a victim
    findings.sort(key=lambda found: "another rank" in found.problem)
    if findings:
        return DistributedDiagnosis(tuple(ranks), findings[0].problem, False, backend, tuple(findings))
    slowest = max(facts["latency_us"] for facts in ranks)
    least = min(facts["bandwidth_gb_s"] for facts in ranks)
    speed = f"all_reduce of one number {slowest:.0f} us, {least:.2f} GB/s"
    verdict = f"{counted(nproc, 'rank')} work together by {backend}: {speed}"
    return DistributedDiagnosis(tuple(ranks), verdict, True, backend)
