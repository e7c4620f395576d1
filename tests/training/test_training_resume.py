"""A run that is stopped anywhere and resumed ends exactly like the run that was not."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.config.inputs import expand_inputs
from xectool.config.load import config_from_dict, load_config
from xectool.config.training import decay_in
from xectool.data.plan import DataPlan
from xectool.data.source import open_source
from xectool.errors import CheckpointError, ConfigError, DiskError, UsageError
from xectool.probes.repetition.history import RunHistory
from xectool.probes.repetition.replay import Replay, is_reproduced
from xectool.runlog.reader import RunReader
from xectool.training.process.progress import NullObserver
from xectool.training.saving.resume import require_resumable

pytestmark = pytest.mark.usefixtures("shallow")
Config = Callable[..., Path]
KILLS = 3


def final(run_dir: Path) -> Checkpoint:
    return store.load(run_dir / store.LAST_NAME)


def assert_identical(a: Checkpoint, b: Checkpoint) -> None:
    for one, other in ((a.model, b.model), (a.ema, b.ema)):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    for index, moments in a.training["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, b.training["optimizer"]["state"][index][name])
    keys = ("step", "epoch", "best_loss", "best_epoch")
    assert [a.meta["progress"][key] for key in keys] == [b.meta["progress"][key] for key in keys]
    timeless = [
        {k: v for k, v in epoch.items() if not k.startswith("perf/")} for epoch in a.meta["progress"]["history"]
    ]
    assert timeless == [
        {k: v for k, v in epoch.items() if not k.startswith("perf/")} for epoch in b.meta["progress"]["history"]
    ]


@pytest.mark.parametrize(
    "training",
    [
        {"lr_scheduler": "cosine"},
        {"lr_scheduler": "plateau", "lr_patience": 0, "grad_accum_steps": 2},
        {"lr_scheduler": "onecycle", "ema_decay": None},
        {"deterministic": False, "amp": "bf16"},
        {"deterministic": False, "amp": "fp16", "epochs": 1},
        {"deterministic": False, "activation_checkpointing": "stages"},
    ],
)
def test_stop_at_any_step_and_resume_is_bit_identical(tiny_config: Config, training: dict[str, object]) -> None:
    config = tiny_config(training=training)
    whole = engine.train(config, run_name="whole")
    steps = whole.steps
    for stop in (1, steps // 2, steps - 1):  # in the first epoch, between or inside two, before the very last step
        cut = engine.train(config, run_name="cut", resume="auto", max_steps=stop)
        assert (cut.status, cut.steps) == ("max_steps", stop)
    resumed = engine.train(config, run_name="cut", resume="auto")
    assert resumed.steps == steps
    assert_identical(final(Path(whole.run_dir)), final(Path(resumed.run_dir)))


def test_resume_is_bit_identical_on_two_threads_without_deterministic_mode(tiny_config: Config, tmp_path: Path) -> None:
    training = {"deterministic": False, "epochs": 1}
    config = tiny_config(training=training, loss_balance="auto", reweighting={"energy": {"enabled": True}})

    trainings = ("run_name='whole'", "run_name='cut', max_steps=3", "run_name='cut', resume='auto'")
    code = "\n".join(("from xectool import engine", *(f"engine.train({str(config)!r}, {told})" for told in trainings)))
    # a process of its own: threads that spin while they wait are calmed before torch loads, or this takes minutes
    alone = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
    subprocess.run([sys.executable, "-c", code], env=alone, check=True, capture_output=True)
    assert_identical(final(tmp_path / "runs" / "whole"), final(tmp_path / "runs" / "cut"))


def test_resume_is_bit_identical_with_worker_processes(tiny_config: Config) -> None:
    config = tiny_config(data={"num_workers": 1}, training={"epochs": 1})
    whole = engine.train(config, run_name="whole", overrides=["data.num_workers=0"])
    engine.train(config, run_name="cut", max_steps=2)
    resumed = engine.train(config, run_name="cut", resume="auto")
    assert_identical(final(Path(whole.run_dir)), final(Path(resumed.run_dir)))


def test_different_seed_gives_different_weights(tiny_config: Config) -> None:
    runs = [engine.train(tiny_config(training={"seed": seed}), run_name=f"s{seed}", max_steps=1) for seed in (1, 2)]
    a, b = (final(Path(run.run_dir)) for run in runs)
    assert not torch.equal(a.model["backbone.pos_embed"], b.model["backbone.pos_embed"])


def test_record_of_a_resumed_run_counts_each_step_once(tiny_config: Config) -> None:
    config = tiny_config(checkpoint={"save_steps": 2})
    cut = engine.train(config, max_steps=3)
    # as if killed after step 3 with the last save at step 2
    run_dir = Path(cut.run_dir)
    resumed = engine.train(config, resume="auto")
    steps = [record.step for record in RunReader(run_dir).steps()]
    assert steps == list(range(1, resumed.steps + 1))


def test_finished_run_resumes_to_nothing_more(tiny_config: Config) -> None:
    config = tiny_config(training={"epochs": 1})
    done = engine.train(config)
    before = final(Path(done.run_dir))
    again = engine.train(config, resume="auto")
    assert (again.status, again.steps) == ("finished", done.steps)
    assert_identical(before, final(Path(again.run_dir)))


def test_best_name_is_made_up_for_after_a_kill_between_saving_and_naming(tiny_config: Config) -> None:
    config = tiny_config(training={"epochs": 1})
    done = engine.train(config)
    best = Path(done.run_dir) / store.BEST_NAME
    best.unlink()
    engine.train(config, resume="auto")
    assert store.load(best).meta["progress"]["best_epoch"] == 1


def epochs_by_name(run_dir: Path) -> dict[str, int]:
    """Which finished epoch each checkpoint of a run holds."""
    found = {path.name: store.load(path).meta["progress"] for path in run_dir.glob("checkpoint_*.pt")}
    return {name: progress["epoch"] - 1 for name, progress in found.items() if not progress["batch"]}


def test_resume_from_an_earlier_checkpoint_leaves_the_numbered_ones_what_they_are(tiny_config: Config) -> None:
    config = tiny_config(training={"epochs": 3}, checkpoint={"save_interval": 1})
    done = engine.train(config)
    run_dir = Path(done.run_dir)
    engine.train(config, resume=str(run_dir / store.epoch_name(1)), max_steps=6)
    found = epochs_by_name(run_dir)
    assert {name: found[name] for name in map(store.epoch_name, (1, 2, 3))} == {
        store.epoch_name(epoch): epoch for epoch in (1, 2, 3)
    }
    assert found[store.BEST_NAME] == 1


def test_run_that_goes_on_elsewhere_takes_its_best_checkpoint_along(tiny_config: Config) -> None:
    config = tiny_config(training={"epochs": 1})
    first = engine.train(config, run_name="first")
    assert first.checkpoint_last is not None
    ruin = ["training.epochs=2", "training.lr=5.0", "training.grad_clip=0.0"]
    second = engine.train(config, run_name="second", resume=first.checkpoint_last, overrides=ruin)
    assert second.best_epoch == 1
    assert second.checkpoint_best is not None
    assert second.metrics["val/loss"] == pytest.approx(first.metrics["val/loss"], rel=1e-6)


def test_lost_best_checkpoint_is_said_and_set_anew(tiny_config: Config) -> None:
    config = tiny_config(training={"epochs": 1})
    run_dir = Path(engine.train(config, max_steps=5).run_dir)
    engine.train(config, resume="auto")
    (run_dir / store.BEST_NAME).unlink()
    engine.train(config, resume="auto", overrides=["training.epochs=2"], max_steps=6)
    (run_dir / store.BEST_NAME).unlink()
    resumed = engine.train(config, resume="auto", overrides=["training.epochs=2"])
    assert resumed.best_epoch == 2
    assert epochs_by_name(run_dir)[store.BEST_NAME] == 2


def test_overwriting_run_never_uses_the_best_of_the_one_before(tiny_config: Config) -> None:
    engine.train(tiny_config(training={"epochs": 1}))
    again = engine.train(tiny_config(), overrides=["checkpoint.overwrite=true", "model.hidden_dim=16"], max_steps=1)
    with pytest.raises(ConfigError, match="--resume auto"):  # what it leaves does not replace it once more
        engine.train(Path(again.run_dir) / "config.yaml", overrides=[f"mlflow.run_name={Path(again.run_dir).name}"])
    assert again.checkpoint_best is None
    assert [path.name for path in Path(again.run_dir).glob("checkpoint_*.pt")] == [store.LAST_NAME]


def test_resume_into_the_directory_of_another_run_is_refused(tiny_config: Config) -> None:
    first, _ = (engine.train(tiny_config(), run_name=name, max_steps=1) for name in ("first", "other"))
    with pytest.raises(CheckpointError, match="--run-name other-2"):
        engine.train(tiny_config(), run_name="other", resume=first.checkpoint_last)


def test_existing_run_is_not_overwritten(tiny_config: Config) -> None:
    config = tiny_config(training={"epochs": 1})
    engine.train(config, max_steps=1)
    with pytest.raises(ConfigError, match="--resume auto"):
        engine.train(config)


def test_resume_auto_without_a_checkpoint_starts_and_says_so(tiny_config: Config) -> None:
    result = engine.train(tiny_config(), resume="auto", max_steps=1)
    assert result.steps == 1


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("normalization.npho_scale=900", "normalization.npho_scale"),
        ("model.outer_fine_pool=[3,3]", "model.outer_fine_pool"),
        ("model.geometry=compat", "model.geometry"),
        ("normalization.sentinel_time=-2.0", "normalization.sentinel_time"),
        ("tasks.energy.scale=2.0", "tasks.energy.scale"),
        ("tasks.angle.enabled=true", "tasks.angle.enabled"),
    ],
)
def test_resume_with_silently_other_outputs_is_refused(tiny_config: Config, override: str, key: str) -> None:
    config = tiny_config()
    engine.train(config, max_steps=1)
    with pytest.raises(CheckpointError, match=r"checkpoint\.init_from") as caught:
        engine.train(config, resume="auto", overrides=[override])
    assert key in caught.value.problem
    pasted = shlex.split(caught.value.fix.splitlines()[0], comments=True)[1::2]
    assert [text.partition("=")[0] for text in pasted] == [key]
    assert engine.train(config, resume="auto", overrides=[override, *pasted], max_steps=2).steps == 2


def test_resume_with_another_loss_balance_is_refused(tiny_config: Config) -> None:
    config = tiny_config()
    engine.train(config, max_steps=1)
    with pytest.raises(CheckpointError, match="--set loss_balance=manual"):
        engine.train(config, resume="auto", overrides=["loss_balance=auto"])


def test_gradient_scaling_can_be_turned_on_at_a_resume(tiny_config: Config) -> None:
    config = tiny_config(training={"epochs": 1})
    engine.train(config, max_steps=1)
    assert engine.train(config, resume="auto", overrides=["training.amp=fp16"], max_steps=2).steps == 2


def test_weight_decay_follows_the_configuration_at_a_resume(tiny_config: Config) -> None:
    config = tiny_config(training={"epochs": 1})
    engine.train(config, max_steps=1)
    resumed = engine.train(config, resume="auto", overrides=["training.weight_decay=0.25"], max_steps=2)
    groups = final(Path(resumed.run_dir)).training["optimizer"]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.25, 0.0]


def test_averaged_weights_that_are_not_finite_are_refused(tiny_config: Config) -> None:
    config = tiny_config(training={"epochs": 1, "ema_decay": 0.9})
    path = Path(engine.train(config, max_steps=1).run_dir) / store.LAST_NAME
    saved = store.load(path)
    next(tensor for tensor in saved.ema.values() if tensor.ndim > 1).view(-1)[0] = float("nan")
    store.save(path, saved)
    with pytest.raises(CheckpointError, match="averaged weights in the checkpoint are not finite"):
        engine.train(config, resume=str(path))


def test_resume_from_an_older_checkpoint_asks_for_init_from(tiny_config: Config, reference_dir: Path) -> None:
    older = reference_dir / "checkpoints" / "reg_small_checkpoint_best.pth.xz"
    with pytest.raises(CheckpointError, match=r"checkpoint\.init_from="):
        engine.train(tiny_config(), resume=str(older))


def test_other_batches_are_refused_inside_an_epoch_and_allowed_between(tiny_config: Config) -> None:
    config = tiny_config()
    engine.train(config, run_name="inside", max_steps=2)
    for override in ("data.batch_size=4", "data.cache_precision=compact"):
        with pytest.raises(CheckpointError, match=override.partition("=")[0]):
            engine.train(config, run_name="inside", resume="auto", overrides=[override])
    first = f"data.exclude=[{expand_inputs(load_config(config).config.data.train_path)[0]}:0]"
    engine.train(config, run_name="without", max_steps=2, overrides=[first])
    with pytest.raises(CheckpointError, match=r"data\.exclude") as caught:  # its order has no place for it
        engine.train(config, run_name="without", resume="auto")
    assert "train_path" not in caught.value.fix  # the files are the same
    validated = f"data.exclude=[{expand_inputs(load_config(config).config.data.val_path)[0]}:0]"
    assert engine.train(config, run_name="inside", resume="auto", overrides=[validated], max_steps=3).steps == 3
    engine.train(config, run_name="between", overrides=["training.epochs=1"])
    resumed = engine.train(config, run_name="between", resume="auto", overrides=["data.batch_size=4", first])
    assert resumed.epochs == 2


def test_events_excluded_inside_an_epoch_are_left_out_of_the_rest_of_it_and_no_other_batch_changes(
    tiny_config: Config,
) -> None:
    """It was refused, and what was told to do led back to the same refusal."""
    config = tiny_config(guards={"max_quarantined": 0.0})  # what is asked for needs no budget
    inside = Path(engine.train(config, run_name="cut", max_steps=2).run_dir)
    shutil.copytree(inside, inside.with_name("whole"))
    served = {step: planned_events(config, 1, step) for step in (0, 3)}  # one served before, one to come
    gone = [served[step][0] for step in (0, 3)]
    exclusion = [f"data.exclude=[{', '.join(f'{name}:{entry}' for name, entry in gone)}]"]
    said = Said()
    whole = engine.train(config, run_name="whole", resume="auto", overrides=exclusion, observer=said)
    assert any("as data.exclude asks: 2 events" in line for line in said.lines)
    dropped = {record.step: record.dropped for record in RunReader(inside.with_name("whole")).steps()}
    assert [step for step, count in dropped.items() if count] == sorted(
        [4, *(6 + step for step in range(5) if {*gone} & {*planned_events(config, 2, step)})]
    )
    for stop in (3, 5, 7):  # inside the epoch, at its end, in the next
        engine.train(config, run_name="cut", resume="auto", overrides=exclusion, max_steps=stop)
    kept = Said()
    assert engine.train(inside / "config.yaml", run_name="cut", resume="auto", observer=kept).steps == whole.steps
    assert any("still left out, as data.exclude asked inside an earlier epoch: 2 events" in line for line in kept.lines)
    assert_identical(final(inside), final(inside.with_name("whole")))
    history = RunHistory(inside.with_name("whole"))
    replay = Replay(history, 4)
    result = replay.run_until(4)
    replay.close()
    assert result is not None
    assert is_reproduced(result, history.steps(4, 4)[4])


def test_epochs_that_count_anew_are_planned_without_what_was_excluded_inside_an_epoch(tiny_config: Config) -> None:
    """The events kept their places, and those that an earlier resume had left out came back."""
    config = tiny_config()
    run = Path(engine.train(config, max_steps=2).run_dir)
    exclusion = ["data.exclude=[train_000.root:3, train_001.root:4]"]
    engine.train(config, resume="auto", overrides=exclusion, max_steps=3)
    anew = ["checkpoint.reset_epoch=true", "training.epochs=1"]
    for number, more in enumerate((exclusion, [])):  # named again, or by the checkpoint alone
        other = run.with_name(f"anew{number}")
        shutil.copytree(run, other)
        engine.train(run / "config.yaml", run_name=other.name, resume=str(other), overrides=[*anew, *more])
        events = RunReader(other).events()
        (start,) = [event for event in events if event.kind == "run_start" and event.data["num_train"] == 38]
        audit = [event for event in events if event.kind == "audit" and event.time > start.time]
        assert [(event.data["expected"], event.data["seen"]) for event in audit] == [(38, 38)]
        assert not any(event.data.get("quarantined") for event in audit)
        again = load_config(other / "config.yaml").config.data.exclude
        assert len(again) == 2


def test_counts_of_epochs_in_which_events_are_excluded_at_a_resume_add_up(tiny_config: Config) -> None:
    config = tiny_config(guards={"max_quarantined": 0.0})
    run = Path(engine.train(config, max_steps=2).run_dir)
    to_come, next_epoch = planned_events(config, 1, 3)[0], planned_events(config, 1, 0)[0]
    names = ", ".join(f"{file}:{entry}" for file, entry in (to_come, next_epoch))
    engine.train(config, resume="auto", overrides=[f"data.exclude=[{names}]"])
    audits = [event.data for event in RunReader(run).events() if event.kind == "audit"]
    assert [(one["expected"], one["seen"], one["quarantined"]) for one in audits] == [(40, 39, 1), (40, 38, 2)]
    assert not [cause for cause in engine.diagnose.run(run).causes if cause.code == "XT-EVENTS-MISSING"]


def test_an_event_served_before_it_was_excluded_counts_as_served_at_every_later_resume(tiny_config: Config) -> None:
    """At the second resume it had become one that the epoch had left out."""
    config = tiny_config(guards={"max_quarantined": 0.0}, training={"epochs": 1})
    run = Path(engine.train(config, max_steps=2).run_dir)
    names = ", ".join(f"{file}:{entry}" for file, entry in (planned_events(config, 1, step)[0] for step in (0, 2, 4)))
    for stop in (3, 4, None):
        engine.train(config, resume="auto", overrides=[f"data.exclude=[{names}]"], max_steps=stop)
    (audit,) = [event.data for event in RunReader(run).events() if event.kind == "audit"]
    assert (audit["expected"], audit["seen"], audit["quarantined"]) == (40, 38, 2)


def test_a_validation_file_that_was_moved_does_not_change_the_order_of_an_epoch(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    """A saved name of the path that was hid what else was left out, and was asked for again inside an epoch."""
    places = [tmp_path / name / "val.root" for name in ("v1", "v2")]
    places[0].parent.mkdir()
    shutil.copy(tiny_data / "train_001.root", places[0])
    config = tiny_config(data={"train_path": str(tiny_data / "train_000.root"), "val_path": str(places[0])})
    named = [[f"data.val_path={path}", f"data.exclude=[{path}:2]"] for path in places]
    engine.train(config, overrides=named[0], max_steps=1)
    places[0].parent.rename(places[1].parent)
    assert engine.train(config, resume="auto", overrides=named[1], max_steps=2).steps == 2
    more = [named[1][0], f"data.exclude=[{places[1]}:2, train_000.root:3]"]
    since = engine.train(config, resume="auto", overrides=more, max_steps=3)
    listed = json.loads((Path(since.run_dir) / "quarantine.json").read_text())["events"]
    assert [(event["entry"], event["step"]) for event in listed] == [(3, 3)]


def test_an_entry_that_is_not_there_is_refused_inside_an_epoch_too(tiny_config: Config) -> None:
    config = tiny_config()
    engine.train(config, max_steps=2)
    with pytest.raises(ConfigError, match=r"999 is not there: .*entries 0 to 19"):
        engine.train(config, resume="auto", overrides=["data.exclude=[train_000.root:999]"])


def planned_events(config: Path, epoch: int, step: int) -> list[tuple[str, int]]:
    """Return file and entry of the events of a step."""
    loaded = load_config(config).config
    source = open_source(loaded.data, "train", tasks=())
    plan = DataPlan(source.files, 8, seed=loaded.training.seed, num_shards=2, chunksize=16)
    files, entries = plan.batch_events(epoch, step, 0)
    return [(source.files[index].path, int(entry)) for index, entry in zip(files, entries, strict=True)]


class Said(NullObserver):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


def test_a_resume_says_what_was_asked_for_before(tiny_config: Config) -> None:
    """A rate or clip of `xectool ctl` went on holding without a word, beside another one in the configuration."""
    config = tiny_config(training={"epochs": 1, "grad_clip": 1.0})
    path = Path(engine.train(config, max_steps=1).run_dir) / store.LAST_NAME
    quiet = Said()
    engine.train(config, resume="auto", max_steps=2, observer=quiet)
    assert not [line for line in quiet.lines if "still holds" in line]
    saved = store.load(path)
    saved.meta["schedule"]["scale"], saved.meta["progress"]["grad_clip"] = 0.25, 0.5
    store.save(path, saved)
    said = Said()
    engine.train(config, resume="auto", max_steps=3, observer=said)
    (line,) = [line for line in said.lines if line.startswith("still holds from before")]
    assert f"0.25 times the planned learning rate (back: xectool ctl {path.parent} lr --scale 4)" in line
    assert f"clipped at 0.5, not 1 (back: xectool ctl {path.parent} clip 1)" in line


@pytest.mark.parametrize(
    ("before", "now", "batch", "asked"),
    [
        (1, 1, 8, "8   # as in the checkpoint"),
        (1, 2, 4, "4   # as in the checkpoint: 8 events over 2 ranks"),
        (4, 2, 16, "16   # as in the checkpoint: 32 events over 2 ranks"),
        (1, 3, 8, "8   # as in the checkpoint, with 1 rank"),  # cannot be shared among 3
        (1, 16, 8, "8   # as in the checkpoint, with 1 rank"),
    ],
)
def test_the_batch_asked_for_keeps_the_events_of_a_step_over_all_ranks(
    before: int, now: int, batch: int, asked: str
) -> None:
    """With twice the ranks the batch of one was asked for, which doubled the batch of a step."""
    config = config_from_dict({"tasks": {"energy": {"enabled": True}}, "data": {"batch_size": 8}}, "test")
    meta = {"kind": "regressor", "config": config.to_dict(), "progress": {"batch": 3}, "world_size": before}
    checkpoint = Checkpoint(meta, {}, training={"step": 3})
    sized = [
        config.model_copy(update={"data": config.data.model_copy(update={"batch_size": size})}) for size in (3, batch)
    ]
    with pytest.raises(CheckpointError, match="in the middle of an epoch") as caught:
        require_resumable(sized[0], checkpoint, None, Path("a.pt"), now)
    assert caught.value.fix.startswith(f"--set data.batch_size={asked}\n--set checkpoint.init_from=")
    require_resumable(sized[1], checkpoint, None, Path("a.pt"), now)


def test_a_checkpoint_that_names_no_files_is_told_as_that(tiny_config: Config) -> None:
    """Of two files the first was called missing in the checkpoint, and those of the checkpoint asked for."""
    config = tiny_config()
    path = Path(engine.train(config, run_name="inside", max_steps=2).run_dir) / store.LAST_NAME
    saved = store.load(path)
    del saved.meta["train_files"]
    store.save(path, saved)
    with pytest.raises(CheckpointError, match="train_path: no file is named in the checkpoint, 2 files now") as caught:
        engine.train(config, run_name="inside", resume="auto")
    assert caught.value.fix.startswith(f"--set checkpoint.init_from={path} ")
    assert caught.value.fix.endswith("   # without --resume, a new run from its weights")


def test_more_epochs_continue_a_finished_run(tiny_config: Config) -> None:
    config = tiny_config(training={"epochs": 1})
    engine.train(config)
    longer = engine.train(config, resume="auto", overrides=["training.epochs=3"])
    assert longer.epochs == 3


def test_new_run_from_weights_starts_at_epoch_one(tiny_config: Config) -> None:
    config = tiny_config(training={"epochs": 1})
    first = engine.train(config, run_name="first")
    override = f"checkpoint.init_from={first.checkpoint_last}"
    second = engine.train(
        config, run_name="second", overrides=[override, "training.lr=1e-12", "training.ema_decay=null"]
    )
    assert second.epochs == 1
    a, b = final(Path(first.run_dir)), final(Path(second.run_dir))
    name = "backbone.pos_embed"
    assert torch.allclose(a.weights()[name], b.model[name], atol=1e-9)


def test_average_of_a_new_run_starts_at_the_weights_it_is_given(tiny_config: Config) -> None:
    first = engine.train(tiny_config(), run_name="first")
    override = [f"checkpoint.init_from={first.checkpoint_best}"]
    second = engine.train(tiny_config(), run_name="second", overrides=override, max_steps=0)
    assert second.metrics["val/loss"] == pytest.approx(first.metrics["val/loss"], rel=1e-6)


def test_weights_of_another_shape_are_refused_with_the_keys(tiny_config: Config) -> None:
    wide = ["tasks.energy.loss_fn=gaussian_nll", "tasks.uvwFI.loss_fn=l1"]
    first = engine.train(tiny_config(), run_name="first", max_steps=1, overrides=wide)
    other = [f"checkpoint.init_from={first.checkpoint_last}", "model.hidden_dim=16", "tasks.energy.enabled=false"]
    other += ["tasks.uvwFI.loss_fn=gaussian_nll"]
    with pytest.raises(CheckpointError, match="of another shape") as caught:
        engine.train(tiny_config(), run_name="second", overrides=other)
    advised = caught.value.fix.partition("--set ")[2].split(" --set ")
    assert "model.hidden_dim=8" in advised
    network = [option for option in advised if not option.startswith("tasks.")]
    with pytest.raises(CheckpointError, match="of another shape"):  # the control: what shapes heads is needed too
        engine.train(tiny_config(), run_name="second", overrides=[*other, *network], max_steps=1)
    engine.train(tiny_config(), run_name="second", overrides=[*other, *advised], max_steps=1)


@pytest.mark.slow
def test_kill_at_random_moments_and_resume_is_bit_identical(tiny_config: Config, warm: Any, tmp_path: Path) -> None:
    config = tiny_config(training={"epochs": 2}, checkpoint={"save_steps": 1})
    assert warm.start("train", str(config), "--run-name", "whole").wait() == 0
    rng = np.random.default_rng(11)
    run_dir = tmp_path / "runs" / "killed"
    command = ["train", str(config), "--run-name", "killed", "--resume", "auto"]
    kills = 0
    while kills < KILLS:
        process = warm.start(*command)
        began = last_seen = _saved(run_dir)
        while process.poll() is None and last_seen == began:
            time.sleep(0.01)
            last_seen = _saved(run_dir)
        time.sleep(float(rng.uniform(0.0, 0.6)))
        if process.poll() is not None:  # the run was whole before this process came to kill it: from the beginning
            assert process.returncode == 0
            shutil.rmtree(run_dir)
            kills = 0
            continue
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        for path in run_dir.glob("checkpoint_*.pt"):
            store.load(path)
    assert warm.start(*command).wait() == 0
    assert_identical(final(run_dir.with_name("whole")), final(run_dir))
    shutil.rmtree(run_dir)


def _saved(run_dir: Path) -> int:
    path = run_dir / store.LAST_NAME
    return path.stat().st_mtime_ns if path.exists() else 0


class Listener(NullObserver):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def started(self, facts: Mapping[str, Any]) -> None:
        self.messages += facts["note"]


def test_a_run_that_was_moved_says_where_it_goes_on_and_how_it_stays(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record was split in two without a word: the configuration in it names the directory it came from."""
    first = Path(engine.train(tiny_config(), run_name="one", max_steps=1).run_dir)
    moved, listener = tmp_path / "moved" / "one", Listener()
    shutil.move(first, moved)
    monkeypatch.chdir(moved)
    split = engine.train(moved / "config.yaml", resume=".", max_steps=2, observer=listener)
    (told,) = (text for text in listener.messages if "record and checkpoints so far stay in" in text)
    assert split.run_dir == str(first)
    words = told.partition("to go on there: ")[2].removesuffix(")")
    options = shlex.split(words)
    assert options[::2] == ["--set", "--run-name"]
    with pytest.raises(CheckpointError, match="already holds the checkpoints of another run") as refused:
        engine.train(moved / "config.yaml", resume=".", max_steps=3)
    assert f"   # or where it was saved: {words}; or " in refused.value.fix, "it led to a third directory alone"
    shutil.rmtree(first)
    whole = engine.train(
        moved / "config.yaml", overrides=[options[1]], run_name=options[3], resume=str(moved), max_steps=2
    )
    assert Path(whole.run_dir).resolve() == moved.resolve()


def test_a_run_that_goes_on_from_a_checkpoint_alone_names_no_record_there(tiny_config: Config, tmp_path: Path) -> None:
    """A checkpoint in a directory of downloads has none, and that is no place to go on in."""
    first = Path(engine.train(tiny_config(), run_name="one", max_steps=1).run_dir)
    alone, listener = tmp_path / "downloads" / "best.pt", Listener()
    alone.parent.mkdir()
    shutil.copy(first / store.LAST_NAME, alone)
    engine.train(tiny_config(), run_name="two", resume=str(alone), max_steps=2, observer=listener)
    assert not [text for text in listener.messages if "downloads" in text and "to go on there" in text]


def test_a_resumed_run_keeps_where_it_started_from(tiny_config: Config, tmp_path: Path) -> None:
    """It lost `checkpoint.init_from` of its first call, and `train RUN/config.yaml` then began from nothing."""
    config = tiny_config(training={"epochs": 1})
    first = engine.train(config, run_name="first", max_steps=1)
    given = engine.train(
        config, run_name="cut", max_steps=1, overrides=[f"checkpoint.init_from={first.checkpoint_last}"]
    )
    saved = Path(given.run_dir) / "config.yaml"
    for overrides in ([], ["checkpoint.init_from=another.pt"]):  # the second is not what it started from
        engine.train(config, run_name="cut", max_steps=2, resume="auto", overrides=overrides)
        assert load_config(saved).config.checkpoint.init_from == first.checkpoint_last
    assert final(Path(given.run_dir)).config["checkpoint"]["init_from"] == first.checkpoint_last
    engine.train(config, run_name="first", max_steps=2, resume="auto", overrides=overrides)
    assert load_config(Path(first.run_dir) / "config.yaml").config.checkpoint.init_from is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nobody can write to /proc")
def test_a_dry_run_says_that_the_run_directory_cannot_be_written(tiny_config: Config, tmp_path: Path) -> None:
    """It said that all is well, and the training failed when all data were read."""
    config, before = tiny_config(), sorted(tmp_path.rglob("*"))
    for refused, kind in (("/proc/runs", DiskError), (str(config), UsageError), (f"{config}/sub", UsageError)):
        with pytest.raises(kind, match=r"the run directory cannot be written[\s\S]*--set checkpoint.save_dir=/"):
            engine.train(config, run_name="r", dry_run=True, overrides=[f"checkpoint.save_dir={refused}"])
    with pytest.raises(DiskError, match=r"its file system lets nothing be made there \(/proc\)"):  # ENOENT of /proc
        engine.train(config, run_name="r", dry_run=True, overrides=["checkpoint.save_dir=/proc/runs"])
    assert engine.train(config, run_name="r", dry_run=True).status == "dry_run"
    assert sorted(tmp_path.rglob("*")) == before


def test_an_automatic_average_is_a_number_in_all_that_a_run_leaves_and_stays_it(tiny_config: Config) -> None:
    """It is that of all epochs, wherever a trial stops; of ten steps or fewer there is none."""
    config = tiny_config(training={"epochs": 20, "ema_decay": "auto"})
    run = Path(engine.train(config, run_name="run", max_steps=2).run_dir)
    decay = store.load(run / store.LAST_NAME).config["training"]["ema_decay"]
    assert load_config(run / "config.yaml").config.training.ema_decay == decay
    cut = engine.train(config, run_name="run", resume="auto", overrides=["training.epochs=3"])
    assert store.load(run / store.LAST_NAME).config["training"]["ema_decay"] == decay
    (whole,) = [engine.train(config, run_name="whole", overrides=["training.epochs=20"])]
    steps = whole.steps
    assert (cut.steps, decay) == (steps * 3 // 20, decay_in("auto", steps))
    short = Path(engine.train(config, run_name="short", overrides=["training.epochs=1"]).run_dir)
    assert not store.load(short / store.LAST_NAME).ema
