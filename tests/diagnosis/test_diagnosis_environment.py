# ruff: noqa: E501  one case of the tables a line
"""Each rule on a machine with one case that holds and one that does not; facts are gathered from trees made here."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from xectool.config.cgroups import CgroupMemory, cgroup_memory, usable_cores
from xectool.config.file_systems import is_network
from xectool.config.platform import Platform
from xectool.diagnosis.environment import ENVIRONMENT_RULES, EnvironmentFacts, Reach, gather
from xectool.diagnosis.environment.facts import (
    BigFile,
    DeviceFacts,
    GitFacts,
    Limit,
    Place,
    SharedMemory,
    TorchFacts,
)
from xectool.diagnosis.environment.git_facts import core_files, look_at_repository
from xectool.diagnosis.environment.places import database_of, databases
from xectool.diagnosis.environment.secrets import shown
from xectool.diagnosis.environment.torch_facts import ask_torch
from xectool.engine.diagnose.machine import environment, judge
from xectool.errors import UsageError
from xectool.rules import run_rules

GB = 10**9
GPU = DeviceFacts(0, "NVIDIA A100-SXM4-40GB", 42 * GB, "8.0")
SOUND = EnvironmentFacts(
    platform=Platform(
        cores=8, memory_bytes=64 * GB, has_triton=True, versions={"torch": "2.13.0", "mlflow": "3.17.2"},
        interfaces=("lo", "eth0", "ib0"),
    ),
    python="3.11.7",
    torch=TorchFacts("2.13.0+cu128", cuda="12.8"),
    memory_total_bytes=64 * GB,
    limits={"open files": Limit(65536, 65536), "processes": Limit(-1, -1), "core file size": Limit(0, 0)},
    shared_memory=SharedMemory(32 * GB, 31 * GB),
    places=(Place("working directory", "/home/me", "ext4", free_bytes=100 * GB),),
    cxx="/usr/bin/g++",
)  # fmt: skip


def variables(**values: str) -> EnvironmentFacts:
    return replace(SOUND, environment=values)


def on(facts: EnvironmentFacts = SOUND, **platform: Any) -> EnvironmentFacts:
    return replace(facts, platform=replace(facts.platform, **platform))


def place(role: str, file_system: str, **more: Any) -> EnvironmentFacts:
    return replace(SOUND, places=(Place(role, "/shared/x", file_system, **more),))


GPUS = on(replace(SOUND, torch=replace(SOUND.torch, devices=(GPU,))), num_gpus=1)
FAILING = [
    ("XT-ENV-TORCH", "error", "CVE-2025-32434", replace(SOUND, torch=TorchFacts("2.5.1"))),
    ("XT-ENV-TORCH", "warning", "CVE-2026-24747", replace(SOUND, torch=TorchFacts("2.9.1+cu128"))),
    ("XT-ENV-TORCH", "error", "torch.load", variables(TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1")),
    ("XT-ENV-DEVICES", "error", "libcudart", replace(SOUND, torch=TorchFacts(problem="OSError: libcudart.so"))),
    ("XT-ENV-DEVICES", "error", "2 GPUs", on(num_gpus=2)),
    ("XT-ENV-DEVICES", "info", "hides every GPU", variables(CUDA_VISIBLE_DEVICES="")),
    ("XT-ENV-ARCH", "error", "32-bit", replace(SOUND, pointer_bits=32)),
    ("XT-ENV-ARCH", "warning", "riscv64", on(machine="riscv64")),
    ("XT-ENV-MEMORY", "warning", "1.50 GB", on(memory_bytes=int(1.5 * GB))),
    ("XT-ENV-MEMORY", "warning", "0.30 GB", replace(SOUND, cgroups=(CgroupMemory("/c", 8 * GB, int(7.7 * GB)),))),
    ("XT-ENV-MEMORY", "info", "8.0 GB of the machine's 64.0 GB", replace(SOUND, cgroups=(CgroupMemory("/c", 8 * GB, 0),))),
    ("XT-ENV-OOM-KILLS", "warning", "3 process", replace(SOUND, cgroups=(CgroupMemory("/c", None, 0, 3),))),
    ("XT-ENV-SLURM", "warning", "16, and this process may use 8", variables(SLURM_CPUS_PER_TASK="16")),
    ("XT-ENV-SLURM", "warning", "2.1 GB", variables(SLURM_MEM_PER_NODE="2048")),
    ("XT-ENV-SLURM", "warning", "4 tasks", replace(GPUS, environment={"SLURM_NTASKS_PER_NODE": "4", "SLURM_GPUS_ON_NODE": "4", "OMP_NUM_THREADS": "1"})),
    ("XT-ENV-FILES", "warning", "256 open files", replace(SOUND, limits={"open files": Limit(256, 4096)})),
    ("XT-ENV-PROCESSES", "warning", "128 processes", replace(SOUND, limits={"processes": Limit(128, 128)})),
    ("XT-ENV-SHM", "warning", "64 MB in all", replace(SOUND, shared_memory=SharedMemory(64 * 10**6, 60 * 10**6))),
    ("XT-ENV-SHM", "warning", "5 MB free", replace(SOUND, shared_memory=SharedMemory(32 * GB, 5 * 10**6))),
    ("XT-ENV-TOOLCHAIN", "warning", "neither g++", replace(SOUND, cxx="")),
    ("XT-ENV-TOOLCHAIN", "warning", "CXX=/opt/nothing", replace(variables(CXX="/opt/nothing"), cxx="")),
    ("XT-ENV-TOOLCHAIN", "warning", "triton", on(GPUS, has_triton=False)),
    ("XT-ENV-DISK", "error", "cannot be written", place("run directory", "ext4", writable=False)),
    ("XT-ENV-DISK", "warning", "300 MB", place("run directory", "ext4", free_bytes=300 * 10**6)),
    ("XT-ENV-DISK", "info", "takes memory", place("cache TRITON_CACHE_DIR", "tmpfs", free_bytes=9 * GB)),
    *[("XT-ENV-TRACKER-FS", "warning", kind, place("tracking database", kind)) for kind in ("nfs4", "lustre", "gpfs", "beegfs", "fuse.sshfs")],
    ("XT-ENV-MLFLOW", "error", "refuses", variables(MLFLOW_TRACKING_URI="file:///data/mlruns")),
    ("XT-ENV-MLFLOW", "error", "refuses", variables(MLFLOW_TRACKING_URI="./mlruns")),
    ("XT-ENV-MLFLOW", "warning", "relative", variables(MLFLOW_TRACKING_URI="sqlite:///mlruns.db")),
    ("XT-ENV-SPLIT-HISTORY", "warning", "history is split", replace(SOUND, databases=("/a/mlruns.db", "/a/mlflow.db"))),
    ("XT-ENV-CACHE", "warning", "lustre", place("cache MIOPEN_USER_DB_PATH", "lustre")),
    ("XT-ENV-CACHE", "error", "2 nodes", replace(place("cache TORCHINDUCTOR_CACHE_DIR", "nfs4"), environment={"SLURM_NNODES": "2"})),
    ("XT-ENV-GIT", "error", "1102.61 MB", replace(SOUND, git=GitFacts("/r", (BigFile("core", 1156170711),)))),
    ("XT-ENV-GIT", "warning", "60", replace(SOUND, git=GitFacts("/r", (BigFile("a.root", 63 * 10**6),)))),
    ("XT-ENV-GIT", "error", "history", replace(SOUND, git=GitFacts("/r", (BigFile("core", 2 * GB, True),)))),
    ("XT-ENV-CORE", "warning", "core dump", replace(SOUND, core_files=(BigFile("/r/core.12", 2 * GB),))),
    ("XT-ENV-CORE", "info", "any size", replace(SOUND, limits={"core file size": Limit(-1, -1)})),
    ("XT-ENV-UNREAD", "warning", "has no effect", variables(NCCL_TIMEOUT="300")),
    ("XT-ENV-UNREAD", "info", "TORCH_NCCL_BLOCKING_WAIT", variables(NCCL_BLOCKING_WAIT="1")),
    ("XT-ENV-MALLOC", "warning", "twice as long", variables(LD_PRELOAD="/usr/lib/libjemalloc.so.2")),
    ("XT-ENV-MALLOC", "info", "MALLOC_ARENA_MAX", variables(MALLOC_ARENA_MAX="2")),
    ("XT-ENV-MALLOC", "info", "GLIBC_TUNABLES", variables(GLIBC_TUNABLES="glibc.malloc.arena_max=2")),
    ("XT-ENV-ALLOCATOR", "warning", "contradict", variables(PYTORCH_ALLOC_CONF="expandable_segments:True", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:128")),
    ("XT-ENV-ALLOCATOR", "warning", "did you mean 'expandable_segments'", variables(PYTORCH_ALLOC_CONF="expandable_segment:True")),
    ("XT-ENV-ALLOCATOR", "error", "above 20", variables(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:20")),
    ("XT-ENV-ALLOCATOR", "info", "renamed", variables(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")),
    ("XT-ENV-ALLOCATOR", "warning", "may be ignored", replace(variables(PYTORCH_ALLOC_CONF="expandable_segments:True"), torch=TorchFacts("2.9.1"))),
    ("XT-ENV-ALLOCATOR", "info", "expandable segments", GPUS),
    ("XT-ENV-DEBUG", "warning", "every kernel", variables(CUDA_LAUNCH_BLOCKING="1")),
    ("XT-ENV-DEBUG", "warning", "segmentation fault", variables(TORCH_DISTRIBUTED_DEBUG="detail")),
    ("XT-ENV-DEBUG", "warning", "gigabytes", variables(NCCL_DEBUG_SUBSYS="INIT,ALL")),
    ("XT-ENV-SUPPRESS", "warning", "hidden", variables(TORCHDYNAMO_SUPPRESS_ERRORS="1")),
    ("XT-ENV-SUPPRESS", "info", "does nothing", variables(TORCH_COMPILE_DISABLE="1")),
    ("XT-ENV-MIOPEN", "error", "prevents kernel caching", variables(MIOPEN_DISABLE_CACHE="1")),
    ("XT-ENV-MIOPEN", "info", "10-30 min", variables(MIOPEN_FIND_MODE="1")),
    ("XT-ENV-INTERFACE", "error", "doesnotexist0 not found; available: lo, eth0, ib0", variables(GLOO_SOCKET_IFNAME="doesnotexist0")),
    ("XT-ENV-INTERFACE", "error", "eno1", variables(NCCL_SOCKET_IFNAME="=eno1")),
    ("XT-ENV-THREADS", "warning", "may use 8 cores", variables(OMP_NUM_THREADS="64")),
    ("XT-ENV-THREADS", "warning", "no number", variables(MKL_NUM_THREADS="all")),
    ("XT-ENV-THREADS", "warning", "each of 4 ranks", variables(LOCAL_WORLD_SIZE="4")),
    ("XT-ENV-THREADS", "warning", "nine times", variables(OMP_WAIT_POLICY="active")),
]  # fmt: skip
PASSING = [
    SOUND,
    variables(NCCL_SOCKET_IFNAME="ib,eth"),
    variables(NCCL_SOCKET_IFNAME="^docker0"),
    variables(GLOO_SOCKET_IFNAME="eth0"),
    variables(TORCH_DISTRIBUTED_DEBUG="INFO", CUDA_LAUNCH_BLOCKING="0", MIOPEN_DISABLE_CACHE="0"),
    variables(PYTORCH_ALLOC_CONF="expandable_segments:True", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
    variables(OMP_NUM_THREADS="2", LOCAL_WORLD_SIZE="4"),
    variables(SLURM_CPUS_PER_TASK="8", SLURM_MEM_PER_NODE="64000"),
    variables(MLFLOW_TRACKING_URI="sqlite:////data/mlruns.db"),
    variables(MLFLOW_TRACKING_URI="https://mlflow.example:5000"),
    variables(CUDA_VISIBLE_DEVICES="0"),
    place("tracking database", "ext4"),
    place("cache TRITON_CACHE_DIR", "xfs"),
    replace(SOUND, databases=("/a/mlruns.db",)),
    variables(LD_PRELOAD="/usr/lib/libjemalloc.so.2", MALLOC_CONF="dirty_decay_ms:-1,muzzy_decay_ms:-1"),
    variables(LD_PRELOAD="/usr/lib/libtcmalloc_minimal.so.4", MALLOC_ARENA_MAX="2"),
    replace(SOUND, cgroups=(CgroupMemory("/c", None, 5 * GB),)),
]


@pytest.mark.parametrize(("code", "severity", "said", "facts"), FAILING)
def test_rule_sees_its_fault(code: str, severity: str, said: str, facts: EnvironmentFacts) -> None:
    found = [one for one in run_rules(ENVIRONMENT_RULES, facts).report if one.code == code]
    assert [one.severity.value for one in found if said in one.problem] == [severity], found
    assert all(one.fix for one in found)
    assert judge(facts).healthy is (severity != "error")


@pytest.mark.parametrize("facts", PASSING)
def test_rules_are_silent_on_a_sound_machine(facts: EnvironmentFacts) -> None:
    assert [found.problem for found in run_rules(ENVIRONMENT_RULES, facts).report] == []


def test_every_rule_has_a_failing_case() -> None:
    assert {rule.code for rule in ENVIRONMENT_RULES} == {code for code, *_ in FAILING}


def test_errors_are_told_before_warnings_and_notes() -> None:
    facts = variables(NCCL_TIMEOUT="3", MIOPEN_DISABLE_CACHE="1", CUDA_VISIBLE_DEVICES="")
    assert [found.severity.value for found in judge(facts).findings] == ["error", "warning", "info"]
    assert judge(facts).verdict.startswith("XT-ENV-MIOPEN")


# --- gathering ------------------------------------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_nested_control_groups_of_version_2(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/slurm/job_7/step_0\n")
    groups = tmp_path / "sys/fs/cgroup"
    for path, limit, used in (("slurm/job_7/step_0", "max", 900), ("slurm/job_7", "2000", 1500), ("slurm", "9000", 1)):
        write(groups / path / "memory.max", f"{limit}\n")
        write(groups / path / "memory.current", f"{used}\n")
    write(groups / "slurm/job_7/memory.stat", "anon 1000\ninactive_file 300\n")
    write(groups / "slurm/job_7/memory.events", "low 0\noom 2\noom_kill 2\n")
    found = cgroup_memory(tmp_path)
    assert [group.limit_bytes for group in found] == [None, 2000, 9000]
    assert (found[1].used_bytes, found[1].free_bytes, found[1].oom_kills) == (1200, 800, 2)


def test_nested_control_groups_of_version_1(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "9:cpu:/\n4:memory:/slurm/uid_1/job_2\n0::/\n")
    groups = tmp_path / "sys/fs/cgroup/memory"
    write(groups / "slurm/uid_1/job_2/memory.limit_in_bytes", "5000\n")
    write(groups / "slurm/uid_1/job_2/memory.usage_in_bytes", "4000\n")
    write(groups / "slurm/uid_1/job_2/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    write(groups / "memory.limit_in_bytes", "9223372036854771712\n")
    found = cgroup_memory(tmp_path)
    assert [(group.limit_bytes, group.oom_kills) for group in found] == [(5000, 1), (None, 0)]


def test_a_container_that_sees_its_group_as_the_root(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/../../elsewhere\n")
    write(tmp_path / "sys/fs/cgroup/memory.max", "7000\n")
    assert any(group.limit_bytes == 7000 for group in cgroup_memory(tmp_path))


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        (
            "0::/job/step",
            {"job/step/cpu.max": "max 100000", "job/cpu.max": "200000 100000", "cpu.max": "300000 100000"},
            2,
        ),
        ("0::/job", {"job/cpu.max": "50000 100000"}, 0.5),
        ("0::/../../elsewhere", {"cpu.max": "150000 100000"}, 1.5),
        ("3:cpu,cpuacct:/job", {"cpu/job/cpu.cfs_quota_us": "250000", "cpu/job/cpu.cfs_period_us": "100000"}, 2.5),
        ("3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        ("0::/other", {"job/cpu.max": "100000 100000", "cpu.max": "max 100000"}, 64),
        ("0::/", {"cpu.max": "9900000 100000"}, 64),
        ("", {}, 64),
    ],
)
def test_cores_are_those_of_affinity_or_of_a_smaller_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], cores: float
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    write(tmp_path / "proc/self/cgroup", f"{own}\n")
    for name, text in files.items():
        write(tmp_path / "sys/fs/cgroup" / name, f"{text}\n")
    assert usable_cores(tmp_path) == cores


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    assert cgroup_memory(tmp_path) == ()


def test_facts_of_another_root(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/mounts", f"server:/x {tmp_path} nfs4 rw 0 0\n")
    write(tmp_path / "proc/meminfo", "MemTotal:       16000 kB\n")
    (tmp_path / "dev" / "shm").mkdir(parents=True)
    variables = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/m.db", "TRITON_CACHE_DIR": str(tmp_path / "t")}
    facts = gather(Reach(tmp_path, root=tmp_path, ask_torch=False), variables)
    assert facts.memory_total_bytes == 16000 * 1024
    assert {place.role: place.file_system for place in facts.places} == {
        "working directory": "nfs4",
        "temporary directory": "",
        "tracking database": "nfs4",
        "cache TRITON_CACHE_DIR": "nfs4",
    }
    codes = {found.code for found in judge(facts).findings}
    assert {"XT-ENV-TRACKER-FS", "XT-ENV-CACHE"} <= codes


def test_a_link_to_a_shared_file_system_is_followed(tmp_path: Path) -> None:
    (tmp_path / "lustre").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "lustre")
    write(tmp_path / "proc/self/mounts", f"x {tmp_path} ext4 rw 0 0\ny {tmp_path}/lustre lustre rw 0 0\n")
    facts = gather(Reach(tmp_path / "home", root=tmp_path, ask_torch=False), {})
    assert facts.places[0].on_network


def test_secrets_are_hidden() -> None:
    secrets = {
        "MLFLOW_TRACKING_PASSWORD": "hush", "MLFLOW_TRACKING_TOKEN": "hush", "NCCL_SECRET": "hush", "SLURM_JWT_KEY": "hush",
        "MLFLOW_TRACKING_URI": "https://me:hush@host/x", "AWS_SECRET_ACCESS_KEY": "hush", "OMP_NUM_THREADS": "2",
    }  # fmt: skip
    found = shown(secrets)
    assert "hush" not in str(found)
    assert found["OMP_NUM_THREADS"] == "2"
    assert "AWS_SECRET_ACCESS_KEY" not in found
    assert found["MLFLOW_TRACKING_URI"] == "https://(hidden)@host/x"


def test_torch_that_crashes_hangs_or_is_absent_is_a_fact() -> None:
    assert (
        ask_torch("raise ImportError('libcudart.so.12: not found')").problem
        == "ImportError: libcudart.so.12: not found"
    )
    assert "status -11" in ask_torch("import os; os.kill(os.getpid(), 11)").problem
    assert "no answer" in ask_torch("import time; time.sleep(30)", timeout_s=0.5).problem


def test_torch_is_asked_in_a_process_of_its_own() -> None:
    assert ask_torch().version.startswith("2.")


def test_tracking_databases_are_told_from_others(tmp_path: Path) -> None:
    for name, tables in (("a.db", ("experiments", "runs")), ("b.db", ("experiments", "runs")), ("other.db", ("t",))):
        connection = sqlite3.connect(tmp_path / name)
        for table in tables:
            connection.execute(f"CREATE TABLE {table} (x)")
        connection.close()
    (tmp_path / "text.db").write_text("no database")
    write(tmp_path / "mlruns/0/meta.yaml", "name: Default\n")
    assert [Path(found).name for found in databases((tmp_path, tmp_path))] == ["a.db", "b.db", "mlruns"]


def test_a_database_that_is_being_written_is_looked_at_without_waiting(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
    connection.execute("CREATE TABLE experiments (x)")
    connection.execute("CREATE TABLE runs (x)")
    connection.execute("BEGIN EXCLUSIVE")
    assert len(databases((tmp_path,))) == 1
    connection.close()


@pytest.mark.parametrize("uri", ["http://h:1", "postgresql://h/db", "databricks", ""])
def test_a_server_is_no_file(uri: str) -> None:
    assert database_of(uri) is None


@pytest.fixture
def repository(tmp_path: Path) -> Callable[..., str]:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
                   "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}  # fmt: skip

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(tmp_path), *words], capture_output=True, text=True, check=True, env=environment
        ).stdout

    git("init", "-q")
    return git


def test_large_files_of_a_repository_and_of_its_history(repository: Callable[..., str], tmp_path: Path) -> None:
    with (tmp_path / "core").open("wb") as file:
        file.truncate(101 * 1024**2)
    (tmp_path / "small.py").write_text("x")
    repository("add", ".")
    repository("commit", "-qm", "a core dump")
    assert look_at_repository(tmp_path).big_files == (BigFile("core", 101 * 1024**2),)
    repository("rm", "-q", "--cached", "core")
    repository("commit", "-qm", "gone from the tree")
    assert look_at_repository(tmp_path).big_files == (BigFile("core", 101 * 1024**2, in_history_only=True),)
    assert core_files(tmp_path) == (BigFile(str(tmp_path / "core"), 101 * 1024**2),)


def test_a_directory_outside_of_git_and_one_named_core(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    assert look_at_repository(tmp_path).big_files == ()
    assert core_files(tmp_path) == ()


def test_local_user_space_file_systems_are_local() -> None:
    assert not any(is_network(kind) for kind in ("ext4", "xfs", "overlay", "fuseblk", "fuse.fuse-overlayfs", "tmpfs"))


def test_this_machine_is_looked_at() -> None:
    result = environment()
    assert result.facts.platform.cores >= 1
    assert result.facts.torch.version
    assert len(result.rules_run) == len(ENVIRONMENT_RULES)
    with pytest.raises(UsageError, match="xectool diagnose environment"):
        environment("/no/such/run")
