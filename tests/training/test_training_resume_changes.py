"""A resume says what it does in another way than the run did before, and what it offers works when it is said."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from xectool import engine
from xectool.checkpoint import store
from xectool.engine.training_run.result import TrainResult
from xectool.errors import CheckpointError, ConfigError
from xectool.training.process.progress import NullObserver
from xectool.training.saving.refused import ResumeRefused

pytestmark = pytest.mark.usefixtures("shallow")
Config = Callable[..., Path]


class Said(NullObserver):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


def told(result: TrainResult) -> dict[str, str]:
    return {found.code: found.problem for found in result.findings}


def test_a_resume_names_each_key_with_another_value(tiny_config: Config) -> None:
    """Rate, epochs and averaging changed without a word, where the documentation promised one."""
    config = tiny_config(training={"ema_decay": "auto", "epochs": 3})
    engine.train(config, max_steps=2)
    same = engine.train(config, resume="auto", dry_run=True)
    assert not [code for code in told(same) if code.startswith("XT-RESUME")]
    other = ["training.lr=2e-3", "training.epochs=40", "training.ema_decay=null"]
    looked, said = engine.train(config, resume="auto", overrides=other, dry_run=True), Said()
    engine.train(config, resume="auto", overrides=other, max_steps=3, observer=said)
    problem = told(looked)["XT-RESUME-CHANGES"]
    assert problem == (
        "the run goes on with other values: training.ema_decay 0.3333 -> null; training.epochs 3 -> 40; "
        "training.lr 0.001 -> 0.002"
    )
    assert any(problem in line for line in said.lines)


def test_a_file_that_was_replaced_is_told_by_a_resume_and_by_the_diagnosis(tiny_config: Config, tmp_path: Path) -> None:
    """The same name with the same number of events went on without a word, and was healthy."""
    for name, seed in (("a", 5), ("b", 6), ("other", 7)):
        engine.simulate(str(tmp_path / f"{name}.root"), events=20, seed=seed)
    files = [str(tmp_path / "a.root"), str(tmp_path / "b.root")]
    config = tiny_config(data={"train_path": files}, training={"epochs": 4})
    run_dir = engine.train(config, max_steps=2).run_dir
    os.utime(files[0])  # the control: copies have other times
    same = engine.train(config, resume="auto", max_steps=3)
    assert "XT-RESUME-DATA" not in told(same)
    assert "XT-RESUME-DATA" not in [note.code for note in engine.diagnose.run(run_dir).notes]

    sizes = [os.stat(files[0]).st_size, os.stat(tmp_path / "other.root").st_size]
    os.replace(tmp_path / "other.root", files[0])
    assert sizes[0] != sizes[1]
    looked = engine.train(config, resume="auto", dry_run=True)
    problem = f"{files[0]}: {sizes[1]} bytes with 20 entries, before {sizes[0]} with 20"
    assert told(looked)["XT-RESUME-DATA"].endswith(problem)
    said = Said()
    engine.train(config, resume="auto", max_steps=4, observer=said)
    assert any(problem in line for line in said.lines)
    again = engine.train(config, resume="auto", max_steps=5)
    assert "XT-RESUME-DATA" not in told(again), "of the file as it is the run has learned since"
    health = engine.diagnose.run(run_dir)
    (note,) = [note for note in health.notes if note.code == "XT-RESUME-DATA"]
    assert problem in note.problem
    (fix,) = (found.fix for found in looked.findings if found.code == "XT-RESUME-DATA")
    words = shlex.split(fix, comments=True)
    assert words[:4] == ["xectool", "train", f"{run_dir}/config.yaml", "--run-name"]
    overrides = [f"mlflow.run_name={words[4]}", words[6]]
    assert engine.train(words[2], overrides=overrides, max_steps=1).status == "max_steps"


def test_of_a_run_with_nothing_left_to_train_no_step_is_spoken_of(tiny_config: Config) -> None:
    """It was warned of steps with other batches that it did not take; with an epoch or patience more it is."""
    config = tiny_config(training={"epochs": 1})
    path = Path(engine.train(config).run_dir) / store.LAST_NAME
    other = ["data.batch_size=2", "training.ema_decay=null"]

    def warned(*overrides: str) -> set[str]:
        found = told(engine.train(config, resume=str(path), overrides=[*other, *overrides], dry_run=True))
        return found.keys() & {"XT-RESUME-BATCH", "XT-RESUME-AVERAGE"}

    both = {"XT-RESUME-BATCH", "XT-RESUME-AVERAGE"}
    assert (warned(), warned("training.epochs=2")) == (set(), both)
    saved = store.load(path)
    saved.meta["progress"]["epochs_since_best"] = 1
    store.save(path, saved)
    patience = [f"training.early_stop_patience={epochs}" for epochs in (1, 2)]
    assert [warned("training.epochs=3", text) for text in patience] == [set(), both]


def test_an_average_that_is_dropped_or_begins_in_mid_run_is_told(tiny_config: Config) -> None:
    config = tiny_config(training={"epochs": 4})
    engine.train(config, max_steps=3)
    going_on = engine.train(config, resume="auto", max_steps=4)
    dropped = engine.train(config, resume="auto", max_steps=5, overrides=["training.ema_decay=null"])
    anew = engine.train(config, resume="auto", max_steps=6)
    assert "XT-RESUME-AVERAGE" not in told(going_on)
    assert "the weights over 4 steps is dropped" in told(dropped)["XT-RESUME-AVERAGE"]
    assert "a new average of the weights begins at step 5" in told(anew)["XT-RESUME-AVERAGE"]


@pytest.mark.parametrize(
    ("saved_as", "share", "word"),
    [((2, 8, None), "0.5", "lowers"), ((1, 4, {"position": 0, "batch": 0}), "2", "raises")],
)
def test_another_number_of_events_a_step_is_told_with_what_works_then(
    tiny_config: Config, saved_as: tuple[int, int, dict[str, int] | None], share: str, word: str
) -> None:
    """It said "raise" of a batch that got smaller, and its own option was refused in mid-epoch after that."""
    config = tiny_config(training={"epochs": 4})
    path = Path(engine.train(config, max_steps=1).run_dir) / store.LAST_NAME
    saved = store.load(path)
    saved.meta["world_size"], saved.config["data"]["batch_size"], place = saved_as
    saved.meta["progress"] |= place or {}
    store.save(path, saved)
    looked = engine.train(config, resume="auto", dry_run=True)
    (before,) = [found.fix for found in looked.findings if found.code == "XT-RESUME-BATCH"]
    assert word in before
    keeping = shlex.split(before, comments=True)[1]
    mended = engine.train(config, resume="auto", overrides=[keeping], dry_run=True)
    assert "XT-RESUME-BATCH" not in told(mended)
    result = engine.train(config, resume="auto", max_steps=2)
    (running,) = [found.fix for found in result.findings if found.code == "XT-RESUME-BATCH"]
    line, other = running.split("\n")
    assert shlex.split(line, comments=True) == ["xectool", "ctl", str(path.parent), "lr", "--scale", share]
    assert word in line
    assert f"from the end of an epoch: --set {keeping}" in other
    with pytest.raises(CheckpointError):  # why the option alone is not what is offered then
        engine.train(config, resume="auto", overrides=[keeping])
    engine.train(config, resume="auto", overrides=["training.epochs=1"])  # to the end of the epoch
    assert engine.train(config, resume="auto", overrides=[keeping], dry_run=True).status == "dry_run"


def test_a_decay_that_auto_made_is_not_held_against_a_resume(tiny_config: Config) -> None:
    """It was warned of with the line that holds ``auto``, and a fix that dropped the average."""
    config = tiny_config(training={"ema_decay": "auto", "epochs": 20})
    engine.train(config, max_steps=1)
    resumed = engine.train(config, resume="auto", overrides=["training.epochs=4"], dry_run=True)
    asked = engine.train(
        config, resume="auto", overrides=["training.epochs=4", "training.ema_decay=0.99"], dry_run=True
    )
    assert "CFG-65" not in told(resumed)
    assert "CFG-65" in told(asked)


def test_a_refused_resume_gives_whole_lines_with_and_without_it(tiny_config: Config) -> None:
    """A parenthesis in the middle broke the shell, and the new run was offered together with ``--resume``."""
    config = tiny_config()
    run = engine.train(config, max_steps=1).run_dir
    with pytest.raises(ResumeRefused) as caught:
        engine.train(config, resume="auto", overrides=["data.batch_size=4"])
    options = [line.partition("   # ")[0] for line in caught.value.fix.split("\n")]
    anew = f"--set checkpoint.init_from={run}/checkpoint_last.pt --run-name r-again"
    assert options == ["--set data.batch_size=8", anew]
    argv = ["train", str(config), "--resume", "auto", "--set", "data.batch_size=4"]
    whole = [line.partition("   # ")[0] for line in caught.value.with_line(argv).fix.split("\n")]
    going_on, beginning = argv[:4], [*argv[:2], *argv[4:]]  # a key that is set again stands once
    assert whole == [f"xectool {' '.join(going_on)} {options[0]}", f"xectool {' '.join(beginning)} {anew}"]
    again = shlex.split(whole[0])
    settings = [value for word, value in itertools.pairwise(again) if word == "--set"]
    assert engine.train(config, resume="auto", overrides=settings, dry_run=True).status == "dry_run"


def pasted(caught: Any, argv: list[str], number: int) -> list[str]:
    line = caught.value.with_line(argv).fix.split("\n")[number].partition("   # ")[0]
    return shlex.split(line)[3:]


def test_a_refusal_names_all_that_differs_at_once_and_both_lines_work(tiny_config: Config) -> None:
    """Meaning and batches were told one after the other; the new run had a network that its weights did not fit."""
    config = tiny_config(model={"num_fusion_layers": 1})
    run = Path(engine.train(config, max_steps=1).run_dir)
    run.with_name("r-again").mkdir()  # the line that was pasted before: a second one was refused (CFG-53)
    wrong = ["data.batch_size=4", "model.num_fusion_layers=2"]
    with pytest.raises(ResumeRefused, match=r"what the weights mean.* and would serve other batches") as caught:
        engine.train(config, resume="auto", overrides=wrong)
    argv = ["train", str(config), "--resume", "auto", *(word for key in wrong for word in ("--set", key))]
    for number, resume, name in ((0, "auto", None), (1, None, "r-again-2")):
        words = pasted(caught, argv, number)
        settings = [value for word, value in itertools.pairwise(words) if word == "--set"]
        assert ("--resume" in words) == (resume is not None)
        assert name is None or name == words[-1]
        found = engine.train(config, resume=resume, run_name=name, overrides=settings, dry_run=True)
        assert found.status == "dry_run"


def test_the_line_of_a_new_run_unsets_the_key_of_a_resume(tiny_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """It contradicted `checkpoint.resume_from` (CFG-45), and the answer to that led back to the refusal."""
    config = tiny_config()
    run = Path(engine.train(config, max_steps=1).run_dir)
    monkeypatch.chdir(run)  # of a bare name the run was called "./-again", which no run can be
    weights = store.load(run / store.LAST_NAME)
    store.save(run / "bare.pt", replace(weights, training={}))
    asked = ["checkpoint.resume_from=bare.pt", "mlflow.run_name=other"]
    with pytest.raises(ResumeRefused, match="holds weights only") as caught:
        engine.train(config, overrides=asked)
    argv = ["train", str(config), "--run-name", "other", "--set", asked[0]]
    words = pasted(caught, argv, 0)
    assert words[words.index("--run-name") + 1 :] == [f"{run.name}-again"]
    settings = [value for word, value in itertools.pairwise(words) if word == "--set"]
    assert asked[0] not in settings
    assert engine.train(config, run_name=words[-1], overrides=settings, dry_run=True).status == "dry_run"
    with pytest.raises(ConfigError, match="contradict"):  # why it is unset, also where the file has it
        engine.train(config, overrides=[*settings, asked[0]], dry_run=True)
