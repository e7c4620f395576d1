"""Short trainings with faults put in for real, and sound ones; the diagnosis sees nothing but what they left behind."""

from __future__ import annotations

import contextlib
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import uproot
import yaml
from xectool import engine
from xectool.checkpoint import store
from xectool.data.loader import EventLoader
from xectool.diagnosis.cause import Diagnosis
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.ranking import diagnose
from xectool.errors import XecError
from xectool.findings import Severity
from xectool.rootio.writer import TreeWriter
from xectool.runlog.reader import RunReader
from xectool.training.stepping.step import Stepper

Train = Callable[..., Path]
TASK = {"enabled": True, "scale": "auto", "shift": "auto"}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("events")
    engine.simulate(str(directory / "train.root"), events=40, seed=3)
    engine.simulate(str(directory / "val.root"), events=8, seed=4)
    return directory


@pytest.fixture
def config(events: Path, tmp_path: Path) -> Callable[..., Path]:
    def write(**sections: dict[str, Any]) -> Path:
        content: dict[str, Any] = {
            "kind": "regressor",
            "data": {
                "train_path": f"{events}/train.root",
                "val_path": f"{events}/val.root",
                "batch_size": 8,
                "chunksize": 40,
            },
            "model": {"encoder_dim": 32, "hidden_dim": 8, "outer_fine_pool": [5, 3], "num_fusion_layers": 1},
            "tasks": {"energy": dict(TASK), "uvwFI": dict(TASK)},
            "training": {"epochs": 4, "warmup_epochs": 0, "lr": 1e-3},
            "checkpoint": {"save_dir": str(tmp_path / "runs"), "save_artifacts": False, "save_minutes": None},
            "mlflow": {"enabled": False, "run_name": "r"},
        }
        for name, values in sections.items():
            content[name] = {**content.get(name, {}), **values}
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.fixture
def train(config: Callable[..., Path], tmp_path: Path) -> Train:
    """Train to the end, or to the error that ends it, and return the run directory."""

    def run(*, max_steps: int | None = None, resume: str | None = None, **sections: dict[str, Any]) -> Path:
        with contextlib.suppress(XecError):
            engine.train(config(**sections), max_steps=max_steps, resume=resume)
        return tmp_path / "runs" / "r"

    return run


def look(run_dir: Path) -> Diagnosis:
    return diagnose(gather(run_dir))


def first(run_dir: Path) -> str:
    return look(run_dir).causes[0].code


def test_sound_runs_are_silent_from_the_first_step_on(train: Train) -> None:
    assert look(train(max_steps=3)).causes == ()
    assert look(train(max_steps=9, resume="auto")).causes == ()
    assert look(train(resume="auto")).causes == ()


def test_a_rate_beyond_all_reason(train: Train) -> None:
    assert first(train(training={"lr": 10.0})) in ("XT-SPIKE-LR", "XT-NAN-LR")


def test_a_rate_of_nothing(train: Train) -> None:
    assert first(train(training={"lr": 1e-12, "lr_min": 0.0, "epochs": 5})) == "XT-NO-LEARNING"


def test_inputs_in_their_raw_scale(train: Train) -> None:
    assert first(train(normalization={"npho_scheme": "linear", "npho_scale": 0.01})) == "XT-INPUT-SCALE"


def test_moments_damaged_before_a_resume(train: Train) -> None:
    path = train(max_steps=12, training={"epochs": 6}) / "checkpoint_last.pt"
    saved = store.load(path)
    for entry in saved.training["optimizer"]["state"].values():
        entry["exp_avg"] += 1e3
    store.save(path, saved)
    assert first(train(resume="auto", training={"epochs": 6})) == "XT-NAN-RESUME"


@pytest.mark.parametrize("step", [2, 9])
def test_a_weight_that_becomes_nan(train: Train, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    run, count = Stepper.run, [0]

    def poisoned(self: Stepper, *args: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] == step:
            with torch.no_grad():
                next(p for p in self.model.parameters() if p.ndim > 1).view(-1)[5] = float("nan")
        return run(self, *args, **options)

    monkeypatch.setattr(Stepper, "run", poisoned)
    assert first(train()) == "XT-NAN-WEIGHTS"


@pytest.mark.parametrize("lr", [1e-3, 5.0])
def test_truths_that_are_no_numbers_are_named_and_are_the_root_of_nothing(
    train: Train, events: Path, tmp_path: Path, lr: float
) -> None:
    """Such a run was called healthy, although its start had warned of them (DAT-16)."""
    others = {"uvwTruth": ((11, 1), math.nan), "energyTruth": ([7, 19], math.nan)}
    path = with_other_numbers(events / "train.root", tmp_path / "t.root", **others)
    found = look(train(data={"train_path": path}, training={"epochs": 4, "lr": lr}))
    codes = [cause.code for cause in found.causes if cause.severity is not Severity.INFO]
    assert codes[0] == "XT-NAN-DATA" if lr < 1 else codes[0] != "XT-NAN-DATA"
    (cause,) = (cause for cause in found.causes if cause.code == "XT-NAN-DATA")
    assert "task energy is NaN, infinite or beyond 1e10 in 2 of 40 events" in cause.problem
    assert "task uvwFI is NaN, infinite or beyond 1e10 in 1 of 40 events" in cause.problem
    assert f"energy: first in entry 7 of {tmp_path}/t.root:tree" in cause.evidence
    assert f"uvwFI: first in entry 11 of {tmp_path}/t.root:tree" in cause.evidence
    assert not [other for other in found.causes if other.follows == "XT-NAN-DATA"]


@pytest.mark.parametrize(
    ("value", "task", "quarantine", "codes"),
    [
        (5e8, "energy", True, ("XT-SPIKE-EVENT", "XT-NAN-DATA")),
        (float("inf"), "weight", True, ("XT-NAN-DATA",)),
    ],
)
def test_one_event_with_a_corrupted_truth(
    train: Train, monkeypatch: pytest.MonkeyPatch, value: float, task: str, quarantine: bool, codes: tuple[str, ...]
) -> None:
    corrupt(monkeypatch, task, value)
    found = look(train(guards={"quarantine": quarantine}, training={"epochs": 5}))
    assert found.causes[0].code in codes
    assert any("entry 11" in line for line in found.causes[0].evidence)
    assert "/train.root:tree:11]'" in found.causes[0].fix.partition("   # then train with --set 'data.exclude=[")[2]


def corrupt(monkeypatch: pytest.MonkeyPatch, what: str, value: float) -> None:
    """Give the event of entry 11 another truth or weight whenever it is read."""
    epoch = EventLoader.epoch

    def corrupted(self: EventLoader, *args: Any) -> Any:
        for batch in epoch(self, *args):
            target = batch.weight if what == "weight" else batch.targets[what]
            target[torch.from_numpy(batch.entry == 11)] = value
            yield batch

    monkeypatch.setattr(EventLoader, "epoch", corrupted)


def with_other_numbers(source: Path, path: Path, **others: tuple[Any, float]) -> str:
    """Write a copy of a file with other numbers at some places of some branches, and return its name."""
    with uproot.open(source) as file:
        rows = {name: values.copy() for name, values in file["tree"].arrays(library="np").items()}
    for name, (place, value) in others.items():
        rows[name][place] = value
    with TreeWriter(path, {name: (v.dtype.str[1:], v.shape[1:]) for name, v in rows.items()}) as writer:
        writer.extend(rows)
    return str(path)


@pytest.mark.parametrize(
    ("branch", "value", "guards", "code", "stops"),
    [
        ("energyTruth", 10.0, {"quarantine": False}, "XT-SPIKE-EVENT", (15, 20)),
        ("weight", math.inf, {"quarantine": False}, "XT-NAN-DATA", (15, 20)),
        ("weight", math.inf, {}, "XT-NAN-DATA", (15, 20)),
        ("npho", 1e7, {}, "XT-SPIKE-EVENT", (15, 20)),
        ("npho", 1e7, {"on_input_scale": "warn"}, "XT-SPIKE-EVENT", (15, 20)),
        ("npho", math.inf, {}, "XT-NAN-DATA", (15, 20)),
        ("energyTruth", 10.0, {"quarantine": False}, "XT-SPIKE-EVENT", (14, 18)),
        ("energyTruth", 10.0, {}, "XT-SPIKE-EVENT", (14, 18)),
        ("weight", math.inf, {}, "XT-NAN-DATA", (14, 18)),
    ],
    ids=[
        "spike",
        "skipped",
        "quarantined",
        "implausible",
        "let pass",
        "no reading",
        "spike, inside an epoch",
        "left out, inside",
        "quarantined, inside",
    ],
)
def test_what_bad_events_did_is_a_note_once_the_run_goes_on_without_them(
    train: Train,
    events: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    branch: str,
    value: float,
    guards: dict[str, Any],
    code: str,
    stops: tuple[int, int],
) -> None:
    path = str(events / "train.root")
    if branch == "weight":
        corrupt(monkeypatch, branch, value)
    else:
        place: Any = (11, slice(40)) if branch == "npho" else 11
        path = with_other_numbers(events / "train.root", tmp_path / "train.root", **{branch: (place, value)})

    def excluded(*names: str, **options: Any) -> Diagnosis:
        data = {"train_path": path, "exclude": list(names)}
        return look(train(guards=guards, training={"epochs": 6}, data=data, **options))

    first = excluded(max_steps=stops[0]).causes[0]
    assert first.code == code
    # The network takes no number for a dead sensor: nothing has to be left out.
    assert ("train.root:tree:11]" in first.fix) == (branch != "npho" or value != math.inf)
    said = [line for line in first.evidence if line.startswith("also: energy: entry 11")]
    assert not any("data.exclude" in line for line in said)  # the one list is that of the first line
    assert bool(said) == (branch == "energyTruth")
    other = excluded("train.root:12", max_steps=stops[1], resume="auto")
    assert other.causes[0].code == code
    found = excluded("train.root:12", "train.root:11", resume="auto")
    assert [cause.code for cause in found.causes] == []
    note = next(note for note in found.notes if note.code == code)
    assert "; mended: attempt 3 leaves it out (data.exclude)" in note.problem
    assert "entry 11" in note.problem
    assert note.fix == ""


@pytest.mark.parametrize(("number", "said"), [(signal.SIGKILL, "SIGKILL, out of memory"), (signal.SIGBUS, "Bus error")])
def test_a_process_that_was_killed_or_crashed(
    config: Callable[..., Path], tmp_path: Path, warm: Any, number: signal.Signals, said: str
) -> None:
    process = warm.start("train", str(config(training={"epochs": 500})))
    wait_for_steps(tmp_path / "runs" / "r", process)
    process.send_signal(number)
    assert process.wait() == -number
    cause = look(tmp_path / "runs" / "r").causes[0]
    assert cause.code == "XT-KILLED"
    assert said in cause.problem


FILLED = """
import os, resource, signal, sys
from xectool.runlog.records import StepRecord
from xectool.runlog.writer import RunWriter
with RunWriter(sys.argv[1]) as writer:
    for number in range(1, 31):
        writer.step(StepRecord(1, number, 0.1 * number, 0.3 * number, 0.5, {}))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise OSError(28, "No space left on device")
"""


@pytest.mark.parametrize(("end", "code"), [("failed", "XT-DISK-FULL"), ("killed", "XT-KILLED")])
def test_an_end_that_a_full_disk_did_not_record_is_no_kill(tmp_path: Path, end: str, code: str) -> None:
    outcome = subprocess.run([sys.executable, "-B", "-c", FILLED, tmp_path, end], capture_output=True, check=False)
    assert outcome.returncode == {"failed": 1, "killed": -signal.SIGKILL}[end], outcome.stderr
    found = look(tmp_path)
    assert found.causes[0].code == code
    assert RunReader(tmp_path).status().state == end
    assert ("last word" in found.causes[0].problem) == (end == "failed")


def test_an_end_without_a_word_is_no_full_disk(tmp_path: Path) -> None:
    """The writer was closed, or its last line was not copied: nothing was refused."""
    program = "import sys; from xectool.runlog.writer import RunWriter; RunWriter(sys.argv[1]).close()"
    subprocess.run([sys.executable, "-B", "-c", program, tmp_path], check=True)
    assert RunReader(tmp_path).status().state == "ended"
    assert "XT-DISK-FULL" not in [cause.code for cause in look(tmp_path).causes]


def wait_for_steps(run_dir: Path, process: Any) -> None:
    """Wait until a checkpoint shows that an epoch is over."""
    while process.poll() is None and not (run_dir / "checkpoint_last.pt").exists():
        time.sleep(0.1)
