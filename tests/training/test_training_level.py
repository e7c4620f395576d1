"""A loss that has risen for good without any spike: weights that have lost what they learned are taken back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.config.guards import GuardsConfig
from xectool.rootio.writer import TreeWriter
from xectool.runlog.reader import RunReader
from xectool.training.healing.healer import Healer
from xectool.training.symptoms.spike import LEVEL, Judgement, SpikeDetector

pytestmark = pytest.mark.usefixtures("shallow")
STEPS, JUMP = 140, 80  # the newest state before it is that of step 50
TIMES = 1000.0
COPIES = 20  # of the few events, which are learned by heart: nearly the same in each step


def rises(losses: np.ndarray) -> list[float]:
    """Return what a detector says after each of the losses."""
    detector, found = SpikeDetector(GuardsConfig(), len(losses)), []
    for loss in losses.tolist():
        detector.accept(loss, Judgement.CALM)
        found.append(detector.rise)
    return found


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shape", [0.05, 0.3, 1.0])
def test_a_loss_that_falls_or_stays_never_rises_however_noisy(seed: int, shape: float) -> None:
    chance = np.random.default_rng(seed)
    falling = 0.3 + np.exp(-np.arange(3000) / 400)
    assert max(rises(falling * chance.lognormal(0, shape, 3000))) == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_level_a_third_higher_is_a_rise_within_its_length(seed: int) -> None:
    losses = np.random.default_rng(seed).lognormal(0, 0.1, 300)
    losses[200:] *= 1.4
    found = rises(losses)
    assert max(found[:205]) == 0
    assert found[200 + LEVEL] == pytest.approx(0.4, abs=0.1)


def test_losses_that_were_taken_back_say_nothing_of_the_level() -> None:
    detector = SpikeDetector(GuardsConfig(), 300)
    for number in range(120):
        detector.accept(1.0 if number < 100 else 2.0, Judgement.CALM)
    assert detector.rise > 0
    detector.forget_last(20)
    assert detector.rise == 0
    assert detector.typical == 1.0
    detector.forget_last(1000)
    assert detector.rise == 0


def few_events(directory: Path) -> Path:
    """Write eight events over and over."""
    engine.simulate(str(directory / "once.root"), events=8, seed=3)
    with uproot.open(directory / "once.root") as file:
        columns = {
            name: np.concatenate([values] * COPIES) for name, values in file["tree"].arrays(library="np").items()
        }
    branches = {name: (values.dtype.str[1:], values.shape[1:]) for name, values in columns.items()}
    with TreeWriter(directory / "few.root", branches) as writer:
        writer.extend(columns)
    return directory / "few.root"


def trained(
    tiny_config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, data: Path, max_rewinds: int
) -> tuple[list[float], list[Any]]:
    """Return the losses of a run whose rate is raised as `ctl` does it, and what was taken back."""
    whole = Healer.take

    def take(self: Healer, progress: Any, window: Any, lr: float) -> Any:
        if progress.step == JUMP and not progress.rewinds:
            self.parts.schedule.scale *= TIMES
        return whole(self, progress, window, lr)

    monkeypatch.setattr(Healer, "take", take)
    config = tiny_config(
        tasks={"uvwFI": {"enabled": False}},
        data={"train_path": str(data)},
        training={"epochs": STEPS // COPIES, "lr": 1e-3, "lr_scheduler": "none"},
        guards={"on_spike": "rewind", "spike_factor": 1e6, "max_rewinds": max_rewinds},  # no single loss is a spike
    )
    run = engine.train(config, run_name=f"rewinds{max_rewinds}")
    monkeypatch.setattr(Healer, "take", whole)
    reader = RunReader(Path(run.run_dir))
    losses = [step.loss for step in reader.steps()]
    assert len(losses) == STEPS
    return losses, [event for event in reader.events() if event.kind == "rewind"]


def test_a_rate_that_is_raised_too_far_is_taken_back_with_what_it_did(
    tiny_config: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = few_events(tmp_path)
    lost, never = trained(tiny_config, monkeypatch, data, max_rewinds=0)
    healed, (rewind,) = trained(tiny_config, monkeypatch, data, max_rewinds=3)
    assert never == []  # and a level alone does not end a run
    assert rewind.data["to_step"] == 50
    assert JUMP < rewind.data["from_step"] <= JUMP + LEVEL + 5
    assert rewind.data["lr_scale"] == 1.0
    assert np.mean(healed[-20:]) < np.mean(healed[JUMP - 20 : JUMP])
    assert np.mean(lost[-20:]) > 2 * np.mean(healed[-20:])
