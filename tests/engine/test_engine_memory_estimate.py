"""What an estimate says about devices, host and disk, and what ``train`` refuses because of it."""

from __future__ import annotations

import dataclasses
import io
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import create_model
from rich.console import Console
from xectool import engine
from xectool.cli.estimate_memory import _below, _show
from xectool.cli.render import show_findings
from xectool.config.host_memory import BASE, READERS, NumEvents, host_memory_bytes, loader_terms
from xectool.config.invalid import InvalidConfigError
from xectool.config.load import config_from_dict, load_config
from xectool.config.platform import ADDRESS_SPACE, Platform, memory_budgets, memory_limits, more_memory
from xectool.config.root import KINDS, RegressorConfig
from xectool.config.rules.capacity import HostMemorySuffices
from xectool.config.rules.platform import Situation
from xectool.detector.platforms import GPUS, find_gpu
from xectool.engine import capacity, memory_verdicts
from xectool.engine import memory_estimate as estimating
from xectool.engine.checking import CheckOptions
from xectool.engine.training_run import preflight
from xectool.errors import ConfigError, UsageError
from xectool.rootio.counting import count_events, count_run_events
from xectool.training.memory_estimate import calibration
from xectool.training.memory_estimate.cure import Need
from xectool.training.memory_estimate.host import checkpoint_bytes_of
from xectool.training.memory_estimate.network import EmptyNetwork
from xectool.training.process.progress import NullObserver


class Phases(NullObserver):
    """Keeps the names of the phases."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def phase(self, name: str, total: int, done: int = 0) -> None:
        self.names.append(name)


pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("warm_estimates")]

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart.yaml"
GPU_KEYS = {
    "parameters_bytes", "gradients_bytes", "optimizer_bytes", "ema_bytes", "activations_bytes", "inputs_bytes",
    "peak_bytes", "capacity_bytes", "fits", "max_batch_size",
}  # fmt: skip
CPU_KEYS = {"loader_bytes", "predictions_bytes", "peak_bytes", "capacity_bytes", "fits"}
# Remedies that are in use already need no estimate of their own: for tests that look at host and disk alone.
IN_USE = ["model.outer_fine_pool=[5,3]", "training.activation_checkpointing=stages", "training.amp=bf16"]
DISK_KEYS = {"checkpoint_bytes", "predictions_bytes", "cache_bytes", "free_bytes", "fits"}


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("memory")
    engine.simulate(str(directory / "train.root"), events=16, seed=1)
    engine.simulate(str(directory / "val.root"), events=8, seed=2)
    return directory


@pytest.fixture
def tiny_config(tiny_data: Path, tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    content = {
        "kind": "regressor",
        "data": {
            "train_path": str(tiny_data / "train.root"),
            "val_path": str(tiny_data / "val.root"),
            "batch_size": 8,
            "chunksize": 16,
        },
        "model": {"encoder_dim": 32, "num_fusion_layers": 1},
        "tasks": {"energy": {"enabled": True}},
        "training": {"epochs": 2, "warmup_epochs": 0, "device": "cpu"},
        "checkpoint": {"save_dir": str(tmp_path / "runs")},
        "mlflow": {"enabled": False},
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.slow
def test_a_number_of_events_alone_is_enough() -> None:
    found = engine.estimate_memory(events=1_000_000, mask_ratio=0.05, gpu="a100-40gb", max_batch=True)
    result = found.as_dict()
    assert set(result) == {"gpu", "cpu", "disk", "advice"}
    assert set(result["gpu"]) == GPU_KEYS
    assert set(result["cpu"]) == CPU_KEYS
    assert set(result["disk"]) == DISK_KEYS
    assert result["gpu"]["fits"]
    assert result["gpu"]["max_batch_size"] > 1000
    text = "\n".join(line for finding in found.findings for line in (finding.problem, *finding.evidence))
    assert "238,000,000" in text
    assert "47.6 GB" in text
    assert "2.38 GB" in text


@pytest.mark.slow
def test_sizes_far_beyond_this_machine_are_estimated_and_refused() -> None:
    found = engine.estimate_memory(overrides=["model.encoder_dim=8192"], batch_size=65536, gpu="40GB")
    result = found.as_dict()
    assert result["gpu"]["peak_bytes"] > 1e12
    assert not result["gpu"]["fits"]
    assert found.estimate.estimator_bytes < 1.0e9
    error = next(finding for finding in found.findings if finding.code == "CFG-22")
    assert "predicted peak" in error.problem
    # Not even one event fits without the remedies; with those that are proposed it does.
    assert error.fix.startswith("--set data.batch_size=1 --set training.grad_accum_steps=65536 --set training.activ")
    pasted = error.fix.partition("   # ")[0].replace("--set ", "").split()
    cured = engine.estimate_memory(overrides=["model.encoder_dim=8192", *pasted], gpu="40GB")
    assert cured.fits_device


@pytest.mark.slow
def test_a_gpu_on_which_nothing_fits_is_told_the_least_that_does() -> None:
    found = engine.estimate_memory(gpu="512MiB")
    (error,) = (finding for finding in found.findings if finding.code == "CFG-22")
    settings, words = error.fix.split("   # ")
    (size,) = re.findall(r"and a GPU with (\S+) GB, the least that this network needs", words)
    pasted = settings.replace("--set ", "").split()
    assert engine.estimate_memory(gpu=f"{size}GB", overrides=pasted).fits_device
    assert not engine.estimate_memory(gpu=f"{0.97 * float(size)}GB", overrides=pasted).fits_device
    (error,) = (item for item in engine.estimate_memory(gpu=f"{size}GB").findings if item.code == "CFG-22")
    line, words = error.fix.split("   # ")
    assert re.fullmatch(r"takes (8[5-9]|90)% of it: no remedy leaves the 15% for pieces too small", words)
    assert engine.estimate_memory(gpu=f"{size}GB", overrides=line.replace("--set ", "").split()).fits_device


@pytest.mark.usefixtures("shallow")
def test_host_and_disk_of_this_machine_do_not_judge_a_gpu_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings of the disk here stood beside a GPU elsewhere, with a line that moved the run here."""
    monkeypatch.setattr(estimating, "_free", lambda _config: 1_000)
    given = ["training.epochs=20", "checkpoint.save_dir=a b"]
    found = engine.estimate_memory(gpu="h100", events=1_000_000, overrides=given)
    assert found.elsewhere
    assert found.fits
    assert found.as_dict()["disk"]["fits"] is found.as_dict()["cpu"]["fits"] is None
    little = dataclasses.replace(found, limits={"MemAvailable": 1 << 30})
    assert {"CFG-20", "CFG-53"}.isdisjoint(item.code for item in memory_verdicts.verdicts(little))
    (told,) = [item for item in found.findings if item.code == "XT-MEM-ELSEWHERE"]
    words = shlex.split(told.fix, comments=True)
    assert words[:2] == ["xectool", "estimate-memory"]
    assert [word for word in words[2:] if word != "--set"] == [*given, "--events", "1000000"]
    # the control: host and disk of this machine are judged
    here = dataclasses.replace(little, line_there="")
    here = dataclasses.replace(here, findings=memory_verdicts.verdicts(here))
    assert not here.fits
    assert {"CFG-20", "CFG-53"} <= {item.code for item in here.findings}
    shown = printed(found)
    assert (
        shown.index("Verdict") < shown.index("at the peak") < shown.index("not for this network: batches of 8192-16384")
    )
    assert "the step fits; host and disk are another machine's" in shown
    for line in ("h100-80gb, which is not here", f"{found.line_there}   # on that machine"):
        assert shown.count(line) == 1, "it was said by Why, by Next and by the finding"
    assert "training files" not in shown
    remedies = shown.partition("what would save memory")[2].partition("tensors")[0]
    assert "--set data.batch_size=8" in remedies
    assert [word for word in ("takes", "empty_cache", "not useful", "legacy", "older") if word in remedies] == []
    missing = printed(here)
    assert missing.index("CFG-20: ") < missing.index("at the peak")
    for error in (item for item in here.findings if item.severity.value == "error"):
        assert missing.count(error.problem) == 1


def printed(result: memory_verdicts.MemoryEstimate) -> str:
    """Return what the command shows of an estimate."""
    screen = Console(file=io.StringIO(), width=400)
    _show(screen, result, "xectool train CONFIG")
    show_findings(screen, _below(result))
    return screen.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.usefixtures("shallow")
def test_predictions_are_those_of_the_validation_files_whatever_is_trained_on(
    tiny_config: Path, tmp_path: Path
) -> None:
    cached = [*IN_USE, f"data.cache={tmp_path / 'cache'}"]  # auto makes none where this disk has no room
    few = engine.estimate_memory(tiny_config, overrides=cached, events=1_000).as_dict()["disk"]
    many = engine.estimate_memory(tiny_config, overrides=cached, events=1_000_000).as_dict()["disk"]
    assert many["predictions_bytes"] == few["predictions_bytes"]
    assert many["cache_bytes"] > few["cache_bytes"]


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("files", [1, 30])
def test_all_commands_count_the_memory_of_the_loaders_alike(files: int, tiny_config: Path, tmp_path: Path) -> None:
    """`config init` and `config check` told 21 GB of a configuration of which `estimate-memory` told 50 GB."""
    for number in range(files):
        engine.simulate(str(tmp_path / f"t{number}.root"), events=6, seed=number)
    engine.simulate(str(tmp_path / "v.root"), events=8, seed=99)
    settings = [f"data.train_path={tmp_path}/t*.root", f"data.val_path={tmp_path}/v.root", "data.chunksize=64", *IN_USE]
    config = load_config(tiny_config, settings).config
    terms = host_memory_bytes(config, NumEvents(6 * files, 8))
    estimated = engine.estimate_memory(tiny_config, overrides=settings)
    host = estimated.estimate.host
    assert {BASE: host[BASE], READERS: host[READERS]} == {BASE: terms[BASE], READERS: terms[READERS]}
    assert host["loader"] == round(sum(loader_terms(config, NumEvents(6 * files, 8)).values()))
    options = CheckOptions(config=str(tiny_config), overrides=tuple(settings))
    assert engine.check_data([f"{tmp_path}/t*.root"], options).memory_bytes == terms
    short = Platform(memory_bytes=round(sum(terms.values())))
    (found,) = HostMemorySuffices().check(Situation(config, short, count_run_events(config.data)))
    assert f"estimated host RAM {sum(terms.values()) / 1e9:.3g} GB" in found.problem


@pytest.mark.usefixtures("shallow")
def test_the_cache_of_the_validation_events_is_counted_too(tiny_config: Path, tmp_path: Path) -> None:
    cached = [*IN_USE, f"data.cache={tmp_path / 'cache'}"]
    alone = engine.estimate_memory(tiny_config, overrides=[*cached, "data.val_path="], events=60)
    both = engine.estimate_memory(tiny_config, overrides=cached, events=60)
    validated = count_events(both.config.data.val_path)
    size = {name: found.as_dict()["disk"]["cache_bytes"] for name, found in (("alone", alone), ("both", both))}
    assert size["both"] / size["alone"] == pytest.approx((60 + validated) / 60, rel=0.05)
    ready = engine.prepare(tiny_config, overrides=cached)
    assert engine.estimate_memory(tiny_config, overrides=cached).as_dict()["disk"]["cache_bytes"] == pytest.approx(
        ready.cache_bytes, rel=0.05
    )


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("kind", ["regressor", "mae", "inpainter"])
def test_a_checkpoint_has_the_size_that_was_estimated(kind: str, tiny_config: Path) -> None:
    """Tables that are made anew at loading were counted: 57 % too much of a small inpainter."""
    content = yaml.safe_load(tiny_config.read_text()) | {"kind": kind}
    if kind != "regressor":
        content.pop("tasks")
    content["training"]["ema_decay"] = 0.9
    content["checkpoint"]["save_artifacts"] = False
    tiny_config.write_text(yaml.safe_dump(content))
    run = engine.train(tiny_config, max_steps=2, run_name="two")
    size = (Path(run.run_dir) / "checkpoint_last.pt").stat().st_size
    estimated = engine.estimate_memory(tiny_config, overrides=IN_USE[1:]).as_dict()["disk"]["checkpoint_bytes"]
    assert estimated == pytest.approx(size, rel=0.03)
    loaded = load_config(tiny_config).config
    assert checkpoint_bytes_of(EmptyNetwork.build(loaded).model, loaded) == estimated  # that of check-data and train


@pytest.mark.parametrize("spelt", ["kind={}", " kind = {}"])
@pytest.mark.parametrize("kind", ["regressor", "mae", "inpainter", "one_of_a_plugin"])
def test_without_a_configuration_a_kind_may_be_asked_for(kind, spelt, monkeypatch) -> None:
    plugin = create_model("Plugin", __base__=RegressorConfig, kind=(str, "one_of_a_plugin"))
    monkeypatch.setitem(KINDS, "one_of_a_plugin", plugin)
    asked = estimating._loaded(None, [spelt.format(kind), "model.encoder_dim=64"])
    assert (asked.kind, asked.model.encoder_dim, asked.data.batch_size) == (kind, 64, 16)
    if kind == "one_of_a_plugin":
        assert set(asked.tasks.enabled()) == set(estimating.QUICKSTART["tasks"])


@pytest.mark.parametrize("spelt", ["regresor", "[mae]", "{a: b}"])
def test_a_kind_that_is_misspelt_is_the_only_error(spelt) -> None:
    with pytest.raises(InvalidConfigError) as error:
        estimating._loaded(None, [f"kind={spelt}"])
    assert [found.code for found in error.value.findings] == ["CFG-05"]


def test_default_is_the_quickstarts_network() -> None:
    example = yaml.safe_load(QUICKSTART.read_text())
    ours = config_from_dict(dict(estimating.QUICKSTART), "default")
    theirs = config_from_dict(example, "example")
    assert ours.model == theirs.model
    assert ours.data == theirs.data
    assert ours.training.ema_decay == theirs.training.ema_decay
    assert set(ours.tasks.enabled()) == set(theirs.tasks.enabled())  # type: ignore[union-attr]


CARDS = [
    ("40GB", 40.0), ("512MiB", 0.537), ("a100-40gb", 42.3), ("GH200-96GB", 101.5), ("NVIDIA A100-SXM4-40GB", 42.3),
    ("NVIDIA A100 80GB PCIe", 85.0), ("NVIDIA GH200 480GB", 101.5), ("NVIDIA GeForce RTX 4090", 25.4), ("h200", 150.1),
]  # fmt: skip


@pytest.mark.parametrize(("text", "gigabytes"), CARDS)
def test_cards_by_name_and_by_size(text: str, gigabytes: float) -> None:
    assert find_gpu(text).total_bytes / 1e9 == pytest.approx(gigabytes, rel=0.01)


@pytest.mark.parametrize(
    ("text", "least"), [("a100", "a100-40gb"), ("NVIDIA A100", "a100-40gb"), ("V100", "v100-16gb")]
)
def test_a_model_with_several_sizes_is_the_smallest_and_says_so(text: str, least: str) -> None:
    card, model = find_gpu(text), least.split("-")[0]
    assert card.total_bytes == find_gpu(least).total_bytes
    assert card.name == f"{least}, the smallest of {', '.join(name for name in GPUS if name.startswith(model))}"


@pytest.mark.parametrize(
    "text",
    ["a100-60gb", "NVIDIA A100 60GB", "A100-80", "RTX 4090 Laptop", "RTX A3000", "gh2000", "0GB", "-3GB", "nan", ""],
)
def test_an_unknown_card_is_refused_with_a_known_one(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_gpu(text)
    assert find_gpu(caught.value.fix.split()[1]).total_bytes > 0


@pytest.mark.parametrize("arguments", [{"events": 0}, {"mask_ratio": 1.5}, {"gpu": "x"}, {"batch_size": 0}])
def test_numbers_that_mean_nothing_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises((UsageError, ConfigError)):
        engine.estimate_memory(**arguments)


def test_predictions_without_a_configuration_are_told_with_the_option() -> None:
    found = {item.code: item.where for item in engine.estimate_memory(mask_ratio=0.05).findings}
    assert found["XT-MEM-PREDICTIONS"] == "--mask-ratio", "the model has no such key"


def test_a_mask_ratio_of_a_network_that_hides_nothing_is_refused(tiny_config: Path) -> None:
    with pytest.raises(UsageError, match="leave --mask-ratio out") as caught:
        engine.estimate_memory(tiny_config, mask_ratio=0.1)
    assert caught.value.where == "--mask-ratio"


def test_a_small_step_costs_no_estimate(tiny_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("a small step was estimated")

    monkeypatch.setattr(capacity, "estimated", never)
    assert engine.train(tiny_config, dry_run=True).status == "dry_run"


@pytest.mark.slow
def test_train_refuses_what_the_host_cannot_hold(tiny_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "memory_budgets", lambda ranks: {"control group /job": 400_000_000})
    watching = Phases()
    with pytest.raises(ConfigError) as caught:
        engine.train(tiny_config, dry_run=True, observer=watching)
    assert watching.names == ["estimate the memory of a step"], "43 s went by without a word"
    finding = caught.value.findings[0]  # type: ignore[attr-defined]
    assert finding.code == "CFG-20"
    assert "estimated host RAM" in finding.problem
    assert "control group /job" in finding.problem
    assert finding.fix.startswith("a machine or job with ")  # the interpreter alone does not fit
    named = finding.problem.partition("largest term: ")[2].rpartition(" ")[0].rpartition(" ")[0]
    assert finding.evidence[0].startswith(f"{named}: "), "data.chunksize was named for any term"
    assert memory_verdicts._KEY_OF_TERM.get(named, "memory of the host") in finding.where


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(96, 20_000), (512, 512)], ids=["window", "step"])
def test_what_train_proposes_for_a_job_is_accepted_when_pasted(
    sizes: tuple[int, int], tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It proposed a window with which the step was refused: the rules do not know what the step takes.

    Where they do not refuse, `config check --deep` asked nobody who does, and called sound what `train` refuses.
    """
    engine.simulate(str(tmp_path / "events.root"), events=500, seed=3)
    for number in range(40):
        (tmp_path / f"link{number}.root").symlink_to(tmp_path / "events.root")
    batch, chunk = sizes
    many = [f"data.train_path={tmp_path}/link*.root", f"data.batch_size={batch}", f"data.chunksize={chunk}"]
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "1200")
    refused = []
    for refuse in (
        lambda: engine.config.check(tiny_config, many, deep=True),
        lambda: engine.train(tiny_config, overrides=many, dry_run=True),
    ):
        with pytest.raises(ConfigError, match="estimated host RAM") as caught:
            refuse()
        refused.append([item.fix for item in caught.value.findings if item.code == "CFG-20"])  # type: ignore[attr-defined]
    assert refused[0] == refused[1] != []
    pasted = [*many, *refused[0][0].replace("--set ", "").split()]
    assert engine.config.check(tiny_config, pasted, deep=True).findings.errors == ()
    assert engine.train(tiny_config, overrides=pasted, dry_run=True).status == "dry_run"


@pytest.mark.parametrize(
    ("variables", "limit", "line"),
    [
        ({}, "SLURM_MEM_PER_NODE", "sbatch --mem=1908M JOB.sh"),
        ({"SLURM_CPUS_ON_NODE": "4"}, "SLURM_MEM_PER_CPU x 4", "sbatch --mem-per-cpu=477M JOB.sh"),
        ({"SLURM_GPUS_ON_NODE": "2"}, "SLURM_MEM_PER_GPU x 2, shared by 2 ranks", "sbatch --mem-per-gpu=954M JOB.sh"),
        ({}, ADDRESS_SPACE, "ulimit -v 3027344"),
        ({}, "--mem 1G, of 1 on a node", "--mem 1908M"),
        ({}, "MemAvailable", "a machine or job with 2 GB of memory"),
    ],
)
def test_a_limit_that_is_too_small_is_raised_by_the_option_that_set_it(
    variables: dict[str, str], limit: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert more_memory(limit, 2e9).startswith(line)


@pytest.mark.parametrize("fits", [True, False])
def test_settings_that_are_proposed_for_the_host_are_those_that_were_estimated(fits: bool) -> None:
    found: Any = SimpleNamespace(host_bytes=1_800_000_000, host_cure=Need(("data.chunksize=64",), 1, fits))
    line = "--set data.chunksize=64" if fits else "sbatch --mem=1908M JOB.sh"
    assert memory_verdicts._host_fix(found, "SLURM_MEM_PER_NODE", 1) == line


def test_what_the_process_holds_already_is_part_of_what_it_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training counted its own libraries twice in a control group: it refused what estimate-memory had proposed."""
    free, held = 10**9, bytearray(200_000_000)
    held[::4096] = b"1" * len(held[::4096])
    group = SimpleNamespace(path="/job", free_bytes=free)
    monkeypatch.setattr("xectool.config.platform.cgroup_memory", lambda limited: [group])
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "1000")
    in_all, left = memory_budgets(), memory_limits()
    assert in_all["control group /job"] > free + len(held)
    assert left["control group /job"] == free
    assert in_all["SLURM_MEM_PER_NODE"] == left["SLURM_MEM_PER_NODE"]  # is the whole already
    shared = "control group /job, shared by 2 ranks"
    assert memory_budgets(2)[shared] > memory_limits(2)[shared] + len(held)


def test_ranks_share_the_memory_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "4000")
    assert memory_limits()["SLURM_MEM_PER_NODE"] == 4000 * 2**20
    assert memory_limits(4)["SLURM_MEM_PER_NODE, shared by 4 ranks"] == 1000 * 2**20
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "500")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "6")
    assert memory_limits()["SLURM_MEM_PER_CPU x 6"] == 3000 * 2**20
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "0")  # all of the node, as --mem=0 asks
    assert min(memory_limits().values()) > 0


def test_calibration_is_kept_and_a_damaged_one_is_named() -> None:
    assert calibration.load_calibration().where == "built in"
    measured = calibration.Calibration(5, 1.5, 1.0, "here")
    path = calibration.save_calibration(measured)
    assert calibration.load_calibration() == measured
    path.write_text("{")
    assert "damaged" in calibration.load_calibration().where


def test_calibration_takes_the_slack_from_what_a_larger_batch_adds() -> None:
    measured = {"base_bytes": 600_000_000, "peak_bytes": 1_100_000_000, "allocator_bytes": 0}
    found = calibration.numbers_of(measured, 50_000_000, 450_000_000)
    assert found.slack == pytest.approx(1.25)
    assert found.resident(10**10) < 1.02 * 10**10  # however large the step is
    larger = calibration.numbers_of({**measured, "peak_bytes": 1_300_000_000}, 50_000_000, 450_000_000)
    assert larger.resident(400_000_000) == 700_000_000
    on_gpu = calibration.numbers_of({**measured, "allocator_bytes": 495_000_000}, 50_000_000, 450_000_000)
    assert on_gpu.device_factor == pytest.approx(1.1)
    with pytest.raises(UsageError, match="too small"):
        calibration.numbers_of(measured, 50_000_000, 60_000_000)


@pytest.mark.parametrize(
    ("kind", "batch", "width", "peak"),
    [
        ("regressor", 16, 256, 217_886_277),
        ("regressor", 16, 1024, 1_087_847_277),
        ("mae", 8, 256, 214_967_253),
        ("inpainter", 8, 256, 394_438_651),
    ],
)
def test_crude_bound_lies_above_measured_peaks(kind: str, batch: int, width: int, peak: int) -> None:
    tasks = {"tasks": {"energy": {"enabled": True}}} if kind == "regressor" else {}
    content = {"kind": kind, "data": {"batch_size": batch}, "model": {"encoder_dim": width}, **tasks}
    assert capacity.crude_bytes(config_from_dict(content, "test")) > peak
