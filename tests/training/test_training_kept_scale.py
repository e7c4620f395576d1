"""A resume that leaves out the event which widened a scale says that the scale stays, with what it would be."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.cli import app
from xectool.cli.boundary import run as run_cli
from xectool.config.load import load_config
from xectool.data.source import open_source
from xectool.engine.training_run.result import TrainResult
from xectool.findings import Finding
from xectool.rootio.writer import TreeWriter
from xectool.training.events.targets import resolve_target_scaling
from xectool.training.saving import kept_scale

Config = Callable[..., Path]


@pytest.fixture
def stretched(tiny_data: Path, tmp_path: Path, tiny_config: Config) -> Path:
    """A configuration of one file in which entry 7 has 15 times the energy of the others."""
    with uproot.open(tiny_data / "train_000.root") as file:
        columns = {key: values.copy() for key, values in file["tree"].arrays(library="np").items()}
    columns["energyTruth"][7] = 0.8
    with TreeWriter(tmp_path / "odd.root", {k: (v.dtype.str[1:], v.shape[1:]) for k, v in columns.items()}) as writer:
        writer.extend(columns)
    return tiny_config(data={"train_path": str(tmp_path / "odd.root")})


def told(result: TrainResult) -> list[Finding]:
    return [found for found in result.findings if found.code == "XT-TARGET-SCALE" and "keeps" in found.problem]


def scale_of(config: Path, *overrides: str) -> float:
    loaded = load_config(config, overrides).config
    scale = resolve_target_scaling(loaded, open_source(loaded.data, "train", ("energy", "uvwFI"))).tasks.energy.scale
    assert isinstance(scale, float)
    return scale


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"max_steps": 1}, ["data.exclude=[odd.root:7]"]),  # inside an epoch
        ({"overrides": ["training.epochs=1"]}, ["data.exclude=[odd.root:7]"]),  # between two
    ],
)
def test_a_scale_that_an_excluded_event_has_made_is_told_once_with_both_figures(
    stretched: Path, monkeypatch: pytest.MonkeyPatch, first: dict[str, object], second: list[str], tmp_path: Path
) -> None:
    begun = engine.train(stretched, **first)
    assert told(begun) == []
    resumed = engine.train(stretched, resume="auto", overrides=second, max_steps=begun.steps + 1)
    (found,) = told(resumed)
    kept, alone = scale_of(Path(begun.run_dir) / "config.yaml"), scale_of(stretched, *second)
    assert kept > 2 * alone
    assert f"tasks.energy.scale {kept:.3g}, else {alone:.3g}" in found.problem
    assert "uvwFI" not in found.problem
    assert "1 event that it leaves out now" in found.problem
    words = shlex.split(found.fix)[1:]
    assert run_cli(app.app, [*words, "--max-steps", "1"]) == 0
    anew = tmp_path / "runs" / words[words.index("--run-name") + 1] / "config.yaml"
    assert load_config(anew).config.tasks.energy.scale == pytest.approx(alone)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the truth was read again")

    monkeypatch.setattr(kept_scale, "open_source", refuse)  # nothing is left out beyond the checkpoint's list
    again = engine.train(stretched, resume="auto", overrides=second, max_steps=begun.steps + 2)
    assert told(again) == []


def test_a_validation_file_that_was_moved_hides_no_scale(stretched: Path, tiny_data: Path, tmp_path: Path) -> None:
    """The checkpoint leaves out an event of it under its old name, which is no file of now."""
    before, after = tmp_path / "held.root", tmp_path / "moved.root"
    shutil.copy(next(tiny_data.glob("val*.root")), before)
    engine.train(stretched, overrides=[f"data.val_path={before}", "data.exclude=[held.root:2]"], max_steps=1)
    before.rename(after)
    overrides = [f"data.val_path={after}", "data.exclude=[moved.root:2, odd.root:7]"]
    (found,) = told(engine.train(stretched, resume="auto", overrides=overrides, max_steps=2))
    assert "1 event that it leaves out now: tasks.energy.scale" in found.problem, "that of validation is none of it"


def test_the_line_that_measures_anew_repeats_what_was_set_beside_the_file(
    stretched: Path, tiny_data: Path, tiny_config: Config, tmp_path: Path
) -> None:
    config = tiny_config(data={"train_path": str(tiny_data / "train_*.root")})
    asked = [f"data.train_path={tmp_path / 'odd.root'}", "training.lr=2e-3"]
    engine.train(config, overrides=asked, max_steps=1)
    overrides = [*asked, "data.exclude=[odd.root:7]"]
    (found,) = told(engine.train(config, resume="auto", overrides=overrides, max_steps=2))
    words = shlex.split(found.fix)[1:]
    assert run_cli(app.app, [*words, "--max-steps", "1"]) == 0
    anew = load_config(tmp_path / "runs" / words[words.index("--run-name") + 1] / "config.yaml").config
    assert (anew.training.lr, anew.data.train_path) == (2e-3, str(tmp_path / "odd.root"))
    assert not any("resume" in word for word in words)


def test_a_sound_event_and_a_scale_of_the_user_are_not_told(stretched: Path) -> None:
    engine.train(stretched, max_steps=1)
    sound = engine.train(stretched, resume="auto", overrides=["data.exclude=[odd.root:3]"], max_steps=2)
    assert told(sound) == []
    number = ["tasks.energy.scale=5.0", "mlflow.run_name=own"]
    engine.train(stretched, overrides=number, max_steps=1)
    own = engine.train(stretched, resume="auto", overrides=[*number, "data.exclude=[odd.root:7]"], max_steps=2)
    assert told(own) == []


def test_what_is_left_out_inside_an_epoch_counts_as_left_out_at_the_start_of_an_attempt(
    tiny_data: Path, tmp_path: Path, tiny_config: Config
) -> None:
    """More impossible truths than the guards may leave out were told as trained on, though most were excluded."""
    with uproot.open(tiny_data / "train_000.root") as file:
        columns = {key: values.copy() for key, values in file["tree"].arrays(library="np").items()}
    columns["energyTruth"][:9] = np.float32(-0.2)
    with TreeWriter(tmp_path / "odd.root", {k: (v.dtype.str[1:], v.shape[1:]) for k, v in columns.items()}) as writer:
        writer.extend(columns)
    config = tiny_config(data={"train_path": str(tmp_path / "odd.root")})
    begun = [found for found in engine.train(config, max_steps=1).findings if "outside of what is" in found.problem]
    assert [("9 such in all" in found.problem, "left out" in found.problem) for found in begun] == [(True, False)]
    exclude = f"data.exclude=[{', '.join(f'odd.root:{entry}' for entry in range(7))}]"
    resumed = engine.train(config, resume="auto", overrides=[exclude], max_steps=2)
    (found,) = [found for found in resumed.findings if "outside of what is possible" in found.problem]
    assert "2 such in all, left out of the training" in found.problem
    assert found.where.endswith("entry 7")
