"""The loop does what the configuration says, and a run that has to stop leaves everything to go on with."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uproot
from xectool import engine
from xectool.checkpoint import store
from xectool.config.load import load_config
from xectool.detector.constants import NUM_SENSORS
from xectool.errors import ConfigError, DataUnusable, DeviceError, OutOfMemory, RunDiverged, XecError
from xectool.rootio.writer import TreeWriter
from xectool.runlog.reader import RunReader
from xectool.training.process.device import Execution, compile_faults
from xectool.training.process.memory_faults import memory_faults
from xectool.training.process.progress import NullObserver

pytestmark = pytest.mark.usefixtures("shallow")
Config = Callable[..., Path]


class Listener(NullObserver):
    """Keeps what a run says, and may do something at a batch of a phase."""

    def __init__(self, phase: str = "", action: Callable[[], None] = lambda: None) -> None:
        self.messages: list[str] = []
        self.totals: dict[str, int] = {}
        self._wanted, self._action, self._current = phase, action, ""

    def phase(self, name: str, total: int, done: int = 0) -> None:
        self._current = name
        self.totals[name] = total

    def advanced(self, num_batches: int, values: Mapping[str, float]) -> None:
        if self._wanted and num_batches and self._current == self._wanted:
            self._wanted = ""
            self._action()

    def message(self, text: str) -> None:
        self.messages.append(text)


def rewritten(source: Path, target: Path, **changes: Callable[[np.ndarray], np.ndarray]) -> Path:
    """Copy a simulated file with some branches changed."""
    with uproot.open(source) as file:
        columns = dict(file["tree"].arrays(library="np"))
    columns |= {name: change(columns[name]) for name, change in changes.items()}
    branches = {name: (values.dtype.str[1:], values.shape[1:]) for name, values in columns.items()}
    with TreeWriter(target, branches) as writer:
        writer.extend(columns)
    return target


def test_validation_is_cut_to_max_events_in_batches_of_its_own_size(tiny_config: Config) -> None:
    listener = Listener()
    config = tiny_config(validation={"max_events": 5, "batch_size": 2}, training={"epochs": 1})
    result = engine.train(config, observer=listener)
    assert listener.totals["validate 1/1"] == listener.totals["predict"] == 3
    with uproot.open(Path(result.run_dir) / "predictions.root") as file:
        assert file["tree"].num_entries == 5


def test_every_metric_of_the_older_system_is_recorded_under_its_name(tiny_config: Config) -> None:
    result = engine.train(tiny_config(training={"epochs": 1}))
    (record,) = RunReader(Path(result.run_dir)).epochs()
    assert {
        "train/loss", "train/grad_norm_max", "lr", "val/loss", "val/smooth_l1", "val/l1", "val/mse", "energy_bias",
        "energy_res_68pct", "uvw_u_res_68pct", "uvw_v_bias", "uvw_dist_68pct", "uvw_dist_bias", "val/cos_pos",
        "perf/process_rss_GB", "perf/epoch_time_sec",
    } <= record.metrics.keys()  # fmt: skip


def test_profile_says_where_the_time_of_an_epoch_went(tiny_config: Config) -> None:
    listener = Listener()
    engine.train(tiny_config(training={"epochs": 1, "profile": True}), observer=listener)
    line = next(text for text in listener.messages if "ms a step" in text)
    assert all(phase in line for phase in ("data wait", "transfer", "forward", "backward", "optimizer"))


@pytest.mark.parametrize("log_invalid", [True, False])
def test_invalid_numbers_are_named_once_and_never_reach_the_weights(
    tiny_config: Config, tiny_data: Path, tmp_path: Path, log_invalid: bool
) -> None:
    def spoil(npho: np.ndarray) -> np.ndarray:
        npho = npho.copy()
        npho[3, 17], npho[5, 4000], npho[:, 9], npho[2, 33], npho[6, 44] = np.nan, -np.inf, 1e10, 1e30, 500.0
        return npho

    def spoil_time(times: np.ndarray) -> np.ndarray:
        times = times.copy()
        times[6, 44], times[:, 9], times[2, 33] = -np.inf, np.nan, np.nan  # the last two are of dead sensors
        return times

    def spoil_truth(truth: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(truth)) == 4, np.inf, np.where(np.arange(len(truth)) == 5, np.nan, truth))

    changes = {"npho": spoil, "relative_time": spoil_time, "energyTruth": spoil_truth}
    path = rewritten(tiny_data / "train_000.root", tmp_path / "spoilt.root", **changes)
    listener = Listener()
    data = {"train_path": str(path), "log_invalid_npho": log_invalid}
    result = engine.train(tiny_config(data=data), observer=listener)
    named = sorted(text for text in listener.messages if ": invalid " in text)
    fix = f"  fix: xectool diagnose run {result.run_dir}"
    lines = [text for text in listener.messages if "XT-NAN-DATA" in text or text == fix]
    assert (lines.count(fix), lines[1:2]) == ((1, [fix]) if log_invalid else (0, [])), "behind the first of many"
    named = [text.removeprefix("warning XT-NAN-DATA: ") for text in named]
    told = [(text.split(":")[0], text.rpartition("sensor ")[2]) for text in named]
    expected = [("invalid photon number -inf", "4000"), ("invalid photon number 1e+30", "33"),
                ("invalid photon number nan", "17"), ("invalid time -inf", "44")]  # fmt: skip
    assert told[:4] == expected * log_invalid
    assert [text.split(":")[0] for text in named[4:]] == ["invalid truth of energy inf"] * log_invalid
    assert math.isfinite(result.metrics["val/loss"])
    assert result.nonfinite_batches == 0


def test_an_event_of_many_invalid_numbers_takes_one_line(tiny_config: Config, tiny_data: Path, tmp_path: Path) -> None:
    """One event without any reading took all ten lines, and what came after it had none."""

    def spoil(npho: np.ndarray) -> np.ndarray:
        npho = npho.copy()
        npho[3], npho[5, 17] = np.nan, np.inf
        return npho

    path, listener = rewritten(tiny_data / "train_000.root", tmp_path / "spoilt.root", npho=spoil), Listener()
    engine.train(tiny_config(data={"train_path": str(path)}), observer=listener)
    said = sorted(text.rpartition("sensor ")[2] for text in listener.messages if ": invalid " in text)
    assert len(said) == 2
    assert any(line.endswith("sensor 17") for line in listener.messages)
    assert any(line.endswith(f"sensor 0 and {NUM_SENSORS - 1} other sensors") for line in listener.messages)
    assert any(f"{NUM_SENSORS + 1} invalid numbers in epoch 1; " in line for line in listener.messages)


def test_numbers_of_a_validation_file_that_no_event_can_have_are_told_once(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    def spoil(npho: np.ndarray) -> np.ndarray:
        npho = npho.copy()
        npho[3, 17] = np.inf
        return npho

    path = rewritten(tiny_data / "train_000.root", tmp_path / "spoilt.root", npho=spoil)
    listener = Listener()
    data = {"val_path": str(path), "allow_overlap": True}
    result = engine.train(tiny_config(data=data, training={"epochs": 2}), observer=listener)
    named = [text for text in listener.messages if "invalid " in text]
    assert [text.split(":")[:2] for text in named] == [["warning XT-NAN-DATA", " validation"]]
    assert ": invalid photon number inf: " in named[0]
    assert f"entry 3 of {path}:tree, sensor 17" in named[0]
    (cause,) = [cause for cause in engine.diagnose.run(result.run_dir).causes if cause.code == "XT-NAN-DATA"]
    assert "validation files" in cause.problem
    assert str(path) in cause.fix


@pytest.mark.parametrize(("task", "said"), [({"log_transform": True}, "positive"), ({"loss_fn": "l1"}, "known truth")])
def test_truth_that_cannot_be_trained_on_is_said_before_anything_is_written(
    tiny_config: Config, tiny_data: Path, tmp_path: Path, task: dict[str, Any], said: str
) -> None:
    def spoil(energy: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(energy)) == 3, -1.0, energy) if said == "positive" else np.full_like(energy, 1e10)

    path = rewritten(tiny_data / "train_000.root", tmp_path / "spoilt.root", energyTruth=spoil)
    tasks = {"energy": {"enabled": True, "scale": 0.05, **task}}
    with pytest.raises((ConfigError, DataUnusable), match=said):
        engine.train(tiny_config(data={"train_path": str(path)}, tasks=tasks))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("sample", ["train", "val"])
def test_truth_without_a_logarithm_is_told_with_its_file_in_both_samples(
    tiny_config: Config, tiny_data: Path, tmp_path: Path, sample: str
) -> None:
    """In validation, where its loss was that of the smallest number that has one, nothing was told."""

    def spoil(energy: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(energy)) == 3, 0.0, energy)

    path = rewritten(tiny_data / "train_000.root", tmp_path / "spoilt.root", energyTruth=spoil)
    data = {f"{sample}_path": str(path), "allow_overlap": True}
    tasks = {"energy": {"enabled": True, "log_transform": True}}
    with pytest.raises(ConfigError, match=r"tasks.energy.log_transform: false") as caught:
        engine.train(tiny_config(data=data, tasks=tasks))
    assert caught.value.where == f"{path}:tree entry 3, branch energyTruth"


@pytest.mark.parametrize(("batch", "accum"), [(512, 1), (9, 2), (11, 1), (1, 4)])
def test_advice_on_memory_keeps_the_effective_batch(tiny_config: Config, batch: int, accum: int) -> None:
    overrides = [f"data.batch_size={batch}", f"training.grad_accum_steps={accum}", "data.chunksize=512"]
    config = load_config(tiny_config(), overrides).config
    with pytest.raises(OutOfMemory) as caught, memory_faults(config, "forward"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
    assert caught.value.code == "XT-OOM-GPU"
    assert "2.00 GiB" in caught.value.problem
    settings = [word for word in caught.value.fix.rstrip(";").split() if "=" in word]
    advised = load_config(tiny_config(), [*overrides, *(word.rstrip(";") for word in settings)]).config
    assert advised.data.batch_size * advised.training.grad_accum_steps == batch * accum
    assert advised.training.activation_checkpointing == "stages" or batch > 1
    assert advised.data.batch_size < batch or batch == 1


@pytest.mark.parametrize("limited", [True, False])
def test_a_library_that_does_not_say_why_has_no_memory_where_it_is_limited(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch, limited: bool
) -> None:
    """Under `ulimit -v` oneDNN "could not create a primitive": a defect of xectool, it was said."""
    limit = 2**30 if limited else resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, resource.RLIM_INFINITY))
    monkeypatch.setattr("xectool.training.process.memory_faults.available_memory", lambda: 2**34)
    config = load_config(tiny_config()).config
    with pytest.raises(OutOfMemory if limited else RuntimeError) as caught, memory_faults(config, "forward"):
        raise RuntimeError("could not create a primitive")
    assert "could not create a primitive" in str(caught.value)
    assert getattr(caught.value, "code", "XT-OOM-HOST") == "XT-OOM-HOST"


def test_model_that_cannot_be_compiled_names_the_setting() -> None:
    execution = Execution(torch.device("cpu"), None, False, "default")
    with pytest.raises(DeviceError, match=r"training\.compile: none"), compile_faults(execution):
        raise torch._dynamo.exc.TorchDynamoException("C++ compile error")
    with pytest.raises(RuntimeError, match="something else"), compile_faults(execution):
        raise RuntimeError("something else")


def test_float16_overflow_of_a_fresh_scale_is_no_fault(tiny_config: Config) -> None:
    listener = Listener()
    training = {"amp": "fp16", "epochs": 1, "lr": 1e-5, "grad_clip": 1.0}
    config = tiny_config(data={"batch_size": 4}, training=training, guards={"max_consecutive_bad": 1})
    result = engine.train(config, observer=listener)
    steps = list(RunReader(Path(result.run_dir)).steps())
    assert any(record.skipped for record in steps), "the fixture no longer overflows; raise its gradients"
    assert result.nonfinite_batches == 0
    assert any("range of float16" in text for text in listener.messages)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signal_during_the_last_validation_interrupts_and_the_resume_is_identical(
    tiny_config: Config, number: int
) -> None:
    config = tiny_config(training={"epochs": 1}, validation={"batch_size": 4})
    whole = engine.train(config, run_name="whole")
    listener = Listener("validate 1/1", lambda: os.kill(os.getpid(), number))
    cut = engine.train(config, run_name="cut", observer=listener)
    assert (cut.status, cut.epochs) == ("interrupted", 0)
    resumed = engine.train(config, run_name="cut", resume="auto")
    assert resumed.status == "finished"
    assert resumed.metrics["val/loss"] == whole.metrics["val/loss"]
    a, b = (store.load(Path(run.run_dir) / store.LAST_NAME) for run in (whole, resumed))
    assert all(torch.equal(a.model[name], b.model[name]) for name in a.model)


def test_signal_while_the_last_files_are_written_leaves_no_part_and_the_resume_writes_them(tiny_config: Config) -> None:
    config = tiny_config(training={"epochs": 1})
    run = config.parent / "runs" / "r"
    with pytest.raises(KeyboardInterrupt):
        engine.train(config, observer=Listener("predict", lambda: os.kill(os.getpid(), signal.SIGUSR1)))
    assert RunReader(run).status().state == "interrupted"
    assert not [path for path in run.rglob("*") if "predictions" in path.name or path.suffix == ".part"]
    assert engine.train(config, resume="auto").status == "finished"
    assert (run / "predictions.root").exists()


def test_signal_leaves_the_report_out_and_says_how_to_write_it(tiny_config: Config) -> None:
    listener = Listener("train 1/2", lambda: os.kill(os.getpid(), signal.SIGTERM))
    cut = engine.train(tiny_config(checkpoint={"save_artifacts": True}), observer=listener)
    assert cut.status == "interrupted"
    assert listener.messages[-1] == f"no report was written: xectool report {cut.run_dir}"
    assert not list(Path(cut.run_dir).glob("*.html"))


def test_run_that_is_given_up_leaves_the_weights_before_the_fault(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    def huge(energy: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(energy)) >= 8, 8e9, energy).astype(np.float32)

    path = rewritten(tiny_data / "train_000.root", tmp_path / "huge.root", energyTruth=huge)
    tasks = {"energy": {"enabled": True, "loss_fn": "mse", "scale": 1e-30}}
    config = tiny_config(
        data={"train_path": str(path), "shuffle": False},
        tasks=tasks,
        guards={"on_nonfinite": "stop"},
    )
    with pytest.raises(RunDiverged, match="checkpoint_last"):
        engine.train(config)
    saved = store.load(tmp_path / "runs" / "r" / store.LAST_NAME)
    assert saved.meta["progress"]["step"] >= 1
    assert all(bool(torch.isfinite(value).all()) for value in saved.model.values())


@pytest.mark.parametrize("patience", [1, 2])
def test_early_stop_counts_epochs_without_improvement_and_stays_stopped(tiny_config: Config, patience: int) -> None:
    worse = {"epochs": 9, "lr": 1e-30, "ema_decay": None, "early_stop_patience": patience}
    config = tiny_config(training=worse, tasks={"energy": {"enabled": True, "loss_fn": "l1", "scale": 1e3}})
    result = engine.train(config)
    assert result.status == "early_stopped"
    assert result.epochs == result.best_epoch + patience
    again = engine.train(config, resume="auto")
    assert (again.status, again.steps) == ("early_stopped", result.steps)


def test_metrics_and_predictions_are_those_of_the_best_averaged_weights(tiny_config: Config, tiny_data: Path) -> None:
    # The run ends with an epoch that is no better.
    ruin: dict[str, Any] = {
        "epochs": 9, "lr": 3e-2, "ema_decay": 0.5, "grad_clip": 0.0, "early_stop_patience": 1
    }  # fmt: skip
    config = tiny_config(training=ruin, checkpoint={"save_interval": 1})
    result = engine.train(config)
    run_dir = Path(result.run_dir)
    history = store.load(run_dir / store.LAST_NAME).meta["progress"]["history"]
    losses = [epoch["val/loss"] for epoch in history]
    assert losses[-1] > 1.0001 * min(losses), "the last epoch is the best: the test shows nothing"
    assert result.metrics["val/loss"] == pytest.approx(min(losses), rel=1e-6)
    assert result.best_epoch == 1 + losses.index(min(losses))
    assert result.checkpoint_best is not None
    predicted = engine.predict(
        result.checkpoint_best, [str(tiny_data / "val.root")], output=run_dir / "again.root", batch_size=8
    )
    assert predicted.metrics["val/loss"] == pytest.approx(min(losses), rel=1e-5)


@pytest.mark.slow
def test_no_checkpoint_that_is_asked_for_mixes_two_steps(tiny_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every parameter holds the number of the step; saved from another thread, 22 of 40 checkpoints held several."""
    unit, tensors, paths, seen = 2.0**-12, list[torch.Tensor](), list[Path](), list[float]()

    def count(optimizer: torch.optim.Optimizer, *arguments: Any, **options: Any) -> None:
        tensors[:] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        value = tensors[0].flatten()[0].item() if seen else 0.0
        seen.append(value + unit)
        for tensor in tensors:
            tensor.data.fill_(seen[-1])

    def ask(run: Path) -> None:
        while len(paths) < 8:
            with contextlib.suppress(XecError):  # it is still starting
                engine.control(run, "checkpoint", tag=f"t{len(paths)}", wait_s=20)
                paths.append(run / f"checkpoint_t{len(paths)}.pt")
        engine.control(run, "stop")

    monkeypatch.setattr(torch.optim.AdamW, "step", count)
    config = tiny_config(training={"epochs": 1000})
    outside = threading.Thread(target=ask, args=(config.parent / "runs" / "r",))
    outside.start()
    assert engine.train(config).status == "interrupted"
    outside.join()
    for path in paths:
        kept = store.load(path)
        value = unit * kept.meta["progress"]["step"]
        same = [weight for weight in kept.weights("model").values() if bool((weight == value).all())]
        assert not value or len(same) == len(tensors), path
    assert value
