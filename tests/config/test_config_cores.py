"""One count of the cores of a process, which knows the quota of its control group, for all that compute."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from xectool.config import cgroups
from xectool.config.cgroups import allowed_cpus, num_cores, usable_cores
from xectool.config.platform import Platform, compile_threads
from xectool.config.training import TrainingConfig
from xectool.engine.diagnose.compiling import _threads
from xectool.engine.launching import _environment
from xectool.export.runtime import allowed_threads
from xectool.runlog.manifest import machine
from xectool.simulation.dataset import _num_threads
from xectool.training.memory_estimate.host import compile_processes
from xectool.training.process.device import plan_execution

SOURCES = Path(cgroups.__file__).parents[1]
COUNTS = {"sched_getaffinity", "cpu_count", "process_cpu_count", "cpu_affinity"}


@pytest.fixture
def quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a quota on a node of 64 CPUs with memory for many compilers; 2.5 cores to begin with."""
    group = tmp_path / "sys/fs/cgroup/job/cpu.max"
    group.parent.mkdir(parents=True)
    group.write_text("250000 100000\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n")
    read = cgroups._text
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(cgroups, "_text", lambda path: read(tmp_path / str(path).lstrip("/")))
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=64 * 10**9, total=64 * 10**9))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    return group


def test_all_that_compute_count_the_cores_of_the_quota(quota: Path, tmp_path: Path) -> None:
    assert (usable_cores(), num_cores(), num_cores(2), num_cores(8), allowed_cpus()) == (2.5, 2, 1, 1, 64)
    assert (Platform.detect().cores, machine()["cores"], allowed_threads(), _num_threads()) == (2, 2, 2, 2)
    compiled = SimpleNamespace(training=SimpleNamespace(compile="default"))
    assert (compile_threads(), compile_processes(compiled, on_gpu=False)) == (2, 2)  # type: ignore[arg-type]
    assert [_threads()[name] for name in ("training", "pytorch", "cores")] == [2, 32, 2]
    with _environment(tmp_path, 2):
        assert os.environ["OMP_NUM_THREADS"] == "1"


def test_without_a_quota_they_are_those_of_affinity(quota: Path) -> None:
    quota.write_text("max 100000\n")
    assert (num_cores(), Platform.detect().cores, machine()["cores"], allowed_threads()) == (64, 64, 64, 64)
    assert (compile_threads(), _num_threads()) == (4, 4)


def test_where_no_process_is_bound_all_cpus_count(quota: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 48)
    assert (allowed_cpus(), num_cores(), _num_threads()) == (48, 2, 2)


def test_the_estimate_counts_the_compilers_that_a_training_starts(quota: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota.write_text("max 100000\n")
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "7")
    compiled = SimpleNamespace(training=SimpleNamespace(compile="default"))
    assert compile_processes(compiled, on_gpu=False) == _threads()["training"] == 7  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "threads"), [(None, 2), ("3", 3)])
def test_a_training_takes_no_more_threads_than_the_quota_unless_told(
    quota: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, threads: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    try:
        notes = plan_execution(TrainingConfig(device="cpu")).notes
        assert torch.get_num_threads() == threads
        assert ("at most 2 threads: the control group allows 2.5 of 64 CPUs" in notes) is (given is None)
        assert plan_execution(TrainingConfig(device="cpu")).notes == notes  # whatever ran before
    finally:
        torch.set_num_threads(before)


def test_no_other_file_counts_cpus() -> None:
    others = [path for path in SOURCES.rglob("*.py") if path.name != "cgroups.py"]
    named = {
        f"{path.relative_to(SOURCES)}:{node.lineno}"
        for path in others
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in COUNTS
    }
    assert not named
