"""A continuation or a run that was given up leaves nothing behind that the next one would go back to."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import uproot
from torch import Tensor
from xectool import engine
from xectool.checkpoint import store
from xectool.rootio.writer import TreeWriter
from xectool.training.saving.ring import GoodState, GoodStates

Config = Callable[..., Path]
Weights = dict[str, Tensor]


def same(a: Weights, b: Weights) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def weights(path: Path) -> Weights:
    return store.load(path).model


def test_good_states_of_an_abandoned_continuation_are_written_anew(tiny_config: Config) -> None:
    config = tiny_config(guards={"on_spike": "rewind", "ring_steps": 5}, checkpoint={"save_interval": 1})
    run_dir = Path(engine.train(config).run_dir)  # 5 steps an epoch
    states = run_dir / "ring"
    abandoned, common = weights(states / "state_10.pt"), (states / "state_5.pt").stat()
    resume = str(run_dir / store.epoch_name(1))
    engine.train(config, run_name="r", resume=resume, overrides=["training.lr=1e-2"])
    assert not same(abandoned, weights(run_dir / store.LAST_NAME))  # another rate, another continuation
    assert same(weights(states / "state_10.pt"), weights(run_dir / store.LAST_NAME))
    assert (states / "state_5.pt").stat().st_ino == common.st_ino  # of both, and so not written again


def test_a_good_state_that_went_missing_is_written_again(tiny_config: Config, tmp_path: Path) -> None:
    result = engine.train(tiny_config(), max_steps=1)
    states = GoodStates(2, 1)
    states.states.append(GoodState(1, store.load(Path(result.run_dir) / store.LAST_NAME)))
    states.write(tmp_path)
    shutil.rmtree(tmp_path / "ring")
    assert states.write(tmp_path) == [1]
    assert (tmp_path / "ring" / "state_1.pt").is_file()


def _write(path: Path, source: Path, factor: float) -> None:
    with uproot.open(source) as file:
        columns = dict(file["tree"].arrays(library="np"))
    columns["energyTruth"] = columns["energyTruth"].copy()
    columns["energyTruth"][[2, 5]] *= np.float32(factor)
    branches = {name: (values.dtype.str[1:], values.shape[1:]) for name, values in columns.items()}
    with TreeWriter(path, branches) as writer:
        writer.extend(columns)


def test_new_start_takes_nothing_from_the_run_it_gives_up(tiny_config: Config, tiny_data: Path, tmp_path: Path) -> None:
    data = tmp_path / "events.root"
    _write(data, tiny_data / "train_000.root", 1e4)
    tasks = {"energy": {"enabled": True, "scale": "auto", "shift": "auto", "loss_fn": "mse"}}
    guards = {"on_spike": "rewind", "ring_steps": 2, "on_input_scale": "warn"}
    config = tiny_config(data={"train_path": str(data), "batch_size": 4}, guards=guards, tasks=tasks)
    run_dir = Path(engine.train(config).run_dir)
    assert (run_dir / "quarantine.json").is_file()
    given_up = sorted(path.name for path in (run_dir / "incidents").iterdir())
    assert given_up
    data.unlink()
    _write(data, tiny_data / "train_000.root", 1.0)  # the file was mended

    again = engine.train(config, overrides=["checkpoint.overwrite=true", "training.lr=1e-4"], max_steps=4)
    assert same(weights(run_dir / "ring" / "state_4.pt"), weights(run_dir / store.LAST_NAME))
    assert sorted(path.name for path in (run_dir / "incidents_given_up").iterdir()) == given_up
    assert not (run_dir / "incidents").exists()

    engine.train(config, resume=again.checkpoint_last)
    assert store.load(run_dir / store.LAST_NAME).meta["quarantine"] == {"events": []}
