"""Rules that know the machine: each on a machine that passes and one that fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from xectool.config.document import Document
from xectool.config.host_memory import NumEvents
from xectool.config.load import load_config
from xectool.config.platform import Platform, memory_limits, most_mapped_bytes
from xectool.config.root import RegressorConfig
from xectool.config.rules.capacity import CAPACITY_RULES, capacity_rules
from xectool.config.rules.platform import PLATFORM_RULES, Situation
from xectool.errors import ConfigError
from xectool.findings import Severity

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
ARM = Platform(machine="aarch64", cores=72, memory_bytes=400 * 10**9, num_gpus=1, has_triton=False)
INTEL = Platform(machine="x86_64", cores=8, memory_bytes=24 * 10**9, interfaces=("lo", "eth0"))
RULES = {rule.name: rule for rule in (*PLATFORM_RULES, *CAPACITY_RULES)}


def on(platform: Platform, **facts: Any) -> Platform:
    return dataclasses.replace(platform, **facts)


def with_environment(**variables: str) -> Platform:
    return on(INTEL, environment=variables)


@dataclass(frozen=True)
class Case:
    """What a rule must say on one machine, and a machine or configuration it must let pass."""

    rule: str
    severity: Severity
    platform: Platform
    tokens: tuple[str, ...]
    passing: Platform
    changes: Mapping[str, Any] = field(default_factory=dict)
    passing_changes: Mapping[str, Any] | None = None


NO_CHANGES: dict[str, Any] = {}
CASES = [
    Case("CompileOnArm", ERROR, ARM, ("training.compile: none", "triton", "ARM", "aarch64"), INTEL,
         {"training.compile": "max-autotune"}),
    Case("CompileOnArm", ERROR, on(ARM, machine="arm64"), ("arm64",), ARM, {"training.compile": "default"}, NO_CHANGES),
    Case("CompileOnArm", WARNING, on(ARM, has_triton=True), ("training.compile: none",), ARM,
         {"training.compile": "default"}, {"training.compile": "none"}),
    Case("WorkersFitTheCores", WARNING, INTEL, ("suggested max 8", "data.num_workers 9"), on(INTEL, cores=64),
         {"data.num_workers": 9, "data.num_threads": 1}),
    Case("WorkersFitTheCores", WARNING, INTEL, ("suggested max 4", "data.num_threads 8"), on(INTEL, cores=16),
         {"data.num_workers": 4, "data.num_threads": 8}),
    Case("WorkersFitTheCores", WARNING, INTEL, ("data.num_workers 4 x 4 ranks", "data.num_workers: 2"),
         on(INTEL, cores=16),
         {"data.num_workers": 4, "data.num_threads": 1, "distributed.num_gpus": 4, "training.device": "cpu"}),
    Case("WorkersFitTheCores", WARNING, INTEL, ("data.num_threads 4 x 8 ranks are 32 threads", "data.num_threads: 2"),
         on(INTEL, cores=16), {"data.num_threads": 4, "distributed.num_gpus": 8, "training.device": "cpu"}),
    Case("WorkersOnGraceHopper", INFO, ARM, ("seed recommends 1 on Grace-Hopper",), INTEL, {"data.num_workers": 4}),
    Case("TrackerSurvives", ERROR, on(INTEL, versions={"mlflow": "3.17.2"}), ("file store", "absolute URI"), INTEL,
         {"mlflow.tracking_uri": "./mlruns"}, {"mlflow.tracking_uri": "http://host:5000"}),
    Case("TrackerSurvives", WARNING, on(INTEL, versions={"mlflow": "3.5.0"}), ("file store",), INTEL,
         {"mlflow.tracking_uri": "file:///x/mlruns"}, {"mlflow.tracking_uri": "file:///x", "mlflow.enabled": False}),
    Case("TrackerSurvives", WARNING, with_environment(MLFLOW_TRACKING_URI="sqlite:///mlruns.db"),
         ("relative", "absolute URI"), with_environment(MLFLOW_TRACKING_URI="sqlite:////tmp/mlruns.db")),
    Case("TrackerSurvives", WARNING, on(INTEL, mounts={"/": "ext4", "/home": "nfs4"}), ("nfs4",),
         on(INTEL, mounts={"/": "nfs4", "/home": "ext4"}), {"mlflow.tracking_uri": "sqlite:////home/me/mlruns.db"}),
    Case("TrackerSurvives", WARNING, on(INTEL, mounts={"/": "9p", "/tmp": "tmpfs"}),
         ("9p", "sqlite:////tmp/mlruns.db   # in memory"),
         on(INTEL, mounts={"/": "xfs"}), {"mlflow.tracking_uri": "sqlite:////home/me/mlruns.db"}),
    Case("TrackerSurvives", WARNING, on(INTEL, mounts={"/": "9p", "/var": "ext4"}), ("sqlite:////var/tmp/",),
         on(INTEL, mounts={"/": "xfs"}), {"mlflow.tracking_uri": "sqlite:////home/me/mlruns.db"}),
    Case("TrackerSurvives", WARNING, on(INTEL, mounts={"/": "ext4", "/home": "nfs4", "/tmp": "tmpfs"}),
         ("nfs4", "sqlite:////var/tmp/"),
         on(INTEL, mounts={"/": "xfs"}), {"mlflow.tracking_uri": "sqlite:////home/me/mlruns.db"}),
    Case("TrackerSurvives", WARNING, on(INTEL, mounts={"/": "wekafs"}), ("wekafs", ": http://HOST:5000   # your"),
         on(INTEL, mounts={"/": "xfs"}), {"mlflow.tracking_uri": "sqlite:////home/me/mlruns.db"}),
    Case("TrackerSurvives", WARNING, INTEL, ("sqlit needs a plugin", "sqlite"), INTEL,
         {"mlflow.tracking_uri": "sqlit:////x.db"}, {"mlflow.tracking_uri": "postgresql+psycopg2://host/db"}),
    Case("EnvironmentMeansWhatItSays", WARNING, with_environment(NCCL_TIMEOUT="300"),
         ("NCCL_TIMEOUT has no effect; use distributed.timeout_s",), INTEL),
    Case("EnvironmentMeansWhatItSays", WARNING, with_environment(TORCHDYNAMO_SUPPRESS_ERRORS="1"),
         ("TORCHDYNAMO_SUPPRESS_ERRORS",), with_environment(CUDA_VISIBLE_DEVICES="0")),
    Case("EnvironmentMeansWhatItSays", WARNING, with_environment(MIOPEN_DISABLE_CACHE="1"),
         ("MIOPEN_DISABLE_CACHE",), INTEL),
    Case("EnvironmentMeansWhatItSays", WARNING,
         with_environment(PYTORCH_ALLOC_CONF="expandable_segments:True", PYTORCH_CUDA_ALLOC_CONF="x:1"),
         ("not applied",), with_environment(PYTORCH_ALLOC_CONF="x:1", PYTORCH_CUDA_ALLOC_CONF="x:1")),
    Case("EnvironmentMeansWhatItSays", ERROR,
         on(INTEL, environment={"GLOO_SOCKET_IFNAME": "doesnotexist0", "WORLD_SIZE": "2"}),
         ("interface doesnotexist0 not found; available: lo, eth0",), with_environment(GLOO_SOCKET_IFNAME="eth")),
    Case("EnvironmentMeansWhatItSays", WARNING, with_environment(NCCL_SOCKET_IFNAME="=eth"), ("interface eth",),
         with_environment(NCCL_SOCKET_IFNAME="^lo,=eth0")),
    Case("TorchIsSafe", WARNING, on(INTEL, versions={"torch": "2.9.1+cpu"}), ("CVE-2026-24747",),
         on(INTEL, versions={"torch": "2.13.0+cpu"})),
    Case("TorchIsSafe", ERROR, on(INTEL, versions={"torch": "2.5.1"}), ("CVE-2025-32434",), INTEL),
    Case("PresetFitsTheMachine", WARNING, INTEL, ("preset a100",), on(INTEL, num_gpus=1), {"preset": "a100"}),
    Case("PresetFitsTheMachine", WARNING, on(INTEL, num_gpus=1), ("preset gh200", "x86_64"), ARM, {"preset": "gh200"}),
    Case("HostMemorySuffices", ERROR, on(INTEL, memory_bytes=8 * 10**9),
         ("estimated host RAM", "largest term: shuffling window", "data.chunksize"), INTEL,
         {"data.chunksize": 262_144}),
    Case("HostMemorySuffices", WARNING, on(INTEL, memory_bytes=62 * 10**8), ("estimated host RAM",), INTEL,
         {"data.chunksize": 65_536}),
    Case("RanksHaveDevices", ERROR, on(INTEL, num_gpus=1), ("2 ranks but 1 visible GPU",), on(INTEL, num_gpus=2),
         {"distributed.num_gpus": 2}),
    Case("RanksHaveDevices", ERROR, INTEL, ("distributed.backend: nccl",), on(INTEL, num_gpus=1),
         {"distributed.backend": "nccl"}),
]  # fmt: skip


def situation(platform: Platform, changes: Mapping[str, Any]) -> Situation:
    document = Document("test", {})
    for key, value in changes.items():
        document.put(tuple(key.split(".")), value, "test")
    return Situation(RegressorConfig.model_validate(document.values), platform)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.tokens[0]}")
def test_the_failing_machine_is_found_with_its_tokens(case: Case) -> None:
    found = list(RULES[case.rule].check(situation(case.platform, case.changes)))
    assert [item.severity for item in found] == [case.severity]
    text = f"{found[0].where} {found[0].problem} {found[0].fix}"
    assert [token for token in case.tokens if token not in text] == []
    assert found[0].fix


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.tokens[0]}")
def test_the_passing_machine_is_silent(case: Case) -> None:
    changes = case.changes if case.passing_changes is None else case.passing_changes
    assert list(RULES[case.rule].check(situation(case.passing, changes))) == []


def test_each_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(RULES)


def test_default_configuration_is_fine_everywhere() -> None:
    for platform in (ARM, INTEL, on(INTEL, num_gpus=4)):
        assert [found for rule in RULES.values() for found in rule.check(situation(platform, {}))] == []


@pytest.mark.parametrize(("gigabytes", "chunk"), [(8.0, 262_144), (0.9, 8192)])
def test_the_suggested_chunksize_fits(gigabytes: float, chunk: int) -> None:
    machine = on(INTEL, memory_bytes=int(gigabytes * 1e9))
    facts = situation(machine, {"data.chunksize": chunk})
    (found,) = RULES["HostMemorySuffices"].check(facts)
    chunk = int(found.fix.removeprefix("data.chunksize: "))
    assert chunk % facts.config.data.batch_size == 0
    assert list(RULES["HostMemorySuffices"].check(situation(machine, {"data.chunksize": chunk}))) == []


def test_a_machine_too_small_for_the_libraries_is_not_cured_by_a_chunk() -> None:
    (found,) = RULES["HostMemorySuffices"].check(situation(on(INTEL, memory_bytes=5 * 10**8), {}))
    assert "largest term: interpreter and libraries" in found.problem
    assert found.fix.startswith("a machine or job with 1.52 GB")
    assert "data.chunksize" not in found.problem  # nothing of it is the windows'
    job = on(INTEL, memory_bytes=5 * 10**8, memory_limit="SLURM_MEM_PER_NODE")
    (found,) = RULES["HostMemorySuffices"].check(situation(job, {}))
    assert "available 0.5 GB (SLURM_MEM_PER_NODE)" in found.problem
    assert found.fix.startswith("sbatch --mem=")


@pytest.mark.parametrize(("ranks", "fits"), [(1, True), (4, False)])
def test_ranks_share_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch, ranks: int, fits: bool) -> None:
    """Four ranks of 1.3 GB were let start on a machine of 4 GB, each compared with all of it."""
    monkeypatch.setattr(
        "xectool.config.platform.memory_limits", lambda count, own: {"MemAvailable": 4 * 10**9 // count}
    )
    config = situation(INTEL, {"data.chunksize": 16384}).config
    for platform, config_of in (
        (on(INTEL, environment={"LOCAL_WORLD_SIZE": str(ranks)}), config),
        (INTEL, situation(INTEL, {"data.chunksize": 16384, "distributed.num_gpus": ranks}).config),
    ):
        found = [item for item in capacity_rules(config_of, platform) if item.code == "CFG-20"]
        assert (not found) == fits
        # a window holds no more events than there are: the line that estimate-memory gives was refused
        assert not [item for item in capacity_rules(config_of, platform, NumEvents(1000)) if item.code == "CFG-20"]


def test_compile_on_arm_is_refused_by_the_loader(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("kind: mae\ntraining:\n  compile: max-autotune\n")
    with pytest.raises(ConfigError, match=r"fix: training.compile: none") as caught:
        load_config(path, platform=ARM)
    assert caught.value.where.endswith("run.yaml:3 (training.compile)")
    assert load_config(path).config.training.compile == "max-autotune"


def test_detection_finds_this_machine() -> None:
    found = Platform.detect()
    assert found.cores >= 1
    assert found.memory_bytes > 0
    assert found.version("torch") is not None
    assert found.file_system("/") != "" or not found.mounts


def test_detection_asks_for_the_machine_at_call_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setitem(__import__("sys").modules, "triton", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = Platform.detect()
    assert found.is_arm
    assert not found.has_triton
    assert found.num_gpus == 0


def test_a_job_limit_lowers_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "100")
    assert Platform.detect().memory_bytes <= 100 * 1024 * 1024


def test_a_control_group_lowers_the_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    monkeypatch.setattr("xectool.config.cgroups._MOUNT", tmp_path)
    assert Platform.detect().memory_bytes == 600_000


@pytest.mark.parametrize("has_gpu", [True, False])
def test_memory_of_a_gpu_that_the_kernel_counts_is_not_the_hosts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_gpu: bool
) -> None:
    """As on Grace-Hopper, where it is a node without processors; without a GPU such a node is plain memory."""
    for node, (cpus, free_kib) in enumerate([("0-71", 400 << 20), ("", 90 << 20), ("", 0)]):
        place = tmp_path / f"node{node}"
        place.mkdir()
        (place / "cpulist").write_text(f"{cpus}\n")
        (place / "meminfo").write_text(f"Node {node} MemTotal: 1 kB\nNode {node} MemFree:  {free_kib} kB\n")
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=490 << 30))
    monkeypatch.setattr("xectool.config.platform._NODES", tmp_path)
    monkeypatch.setattr("xectool.config.platform._GPU_DIRECTORY", tmp_path if has_gpu else tmp_path / "none")
    assert memory_limits()["MemAvailable"] == (400 if has_gpu else 490) << 30


def test_an_odd_version_is_not_guessed() -> None:
    assert on(INTEL, versions={"torch": "main"}).version("torch") is None
    assert INTEL.version("torch") is None


@pytest.mark.parametrize(("free", "mapped"), [(1 << 30, 480_000_000), (64 << 30, 4 << 30)])
def test_a_cache_is_mapped_up_to_a_part_of_the_free_memory(
    monkeypatch: pytest.MonkeyPatch, free: int, mapped: int
) -> None:
    monkeypatch.setattr("xectool.config.platform.available_memory", lambda: free)
    assert most_mapped_bytes() == mapped


def test_a_file_for_another_machine_is_not_told_to_fit_this_one(tmp_path: Path) -> None:
    """The lines to paste would have made a file for an A100 one for the login node it was checked on."""
    path = tmp_path / "a100.yaml"
    text = "kind: mae\n{}data: {{num_workers: 9, num_threads: 1, chunksize: 1000000}}\ntraining: {{device: auto}}\n"
    kept = "keep it for the machine of the preset; to train here: "
    for preset, begin, mends in (
        ("preset: a100\n", "on this machine, which the preset is not for: ", f"{kept}--set data.num_workers=8"),
        ("", "", "data.num_workers: 8"),
    ):
        path.write_text(text.format(preset))
        loaded = load_config(path, (), INTEL)
        (found,) = [item for item in loaded.findings if item.code == "CFG-16"]
        assert (found.problem.startswith(f"{begin}data.num_workers 9 "), found.fix) == (True, mends)
        memory = next(item for item in capacity_rules(loaded.config, INTEL) if item.code == "CFG-20")
        assert memory.problem.startswith(f"{begin}estimated host RAM")
        assert memory.fix.startswith(f"{kept}--set data.chunksize=" if preset else "data.chunksize: ")
    path.write_text(text.format("preset: a100\n"))
    (found,) = [item for item in load_config(path, (), INTEL).findings if item.code == "CFG-55"]
    assert found.fix == f"{kept}xectool config init --preset cpu"
    fits = load_config(path, (), on(INTEL, num_gpus=1)).findings
    assert [item.fix for item in fits if item.code in ("CFG-16", "CFG-55")] == ["data.num_workers: 8"]
