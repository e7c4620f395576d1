"""A network that is worse than the conventional estimators was called healthy, with nothing to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xectool import engine

Write = Callable[[Any], Path]
EPOCHS = 10


def scored(course: Any, epochs: dict[int, float], estimate: float = 1.0, num_val: int = 1000, **options: Any) -> Any:
    """Return a course of 100 steps an epoch whose energy resolution, in GeV, is recorded for each epoch."""
    status = options.pop("status", "finished")
    end = {"status": status, "metrics": {"energy_res_68pct": epochs[max(epochs)], "baseline_energy": estimate}}
    options = {"start": 0.11, "floor": 0.1, "lr": 3e-4, "noise": 0.01} | options
    run = course(steps=100 * max(epochs), per_epoch=100, end_data=end, **options)
    run.epochs = {epoch: {"metrics": {"energy_res_68pct": value}} for epoch, value in epochs.items()}
    run.event(1, "run_start", num_val=num_val, steps_per_epoch=100)
    return run


def flat(value: float) -> dict[int, float]:
    return dict.fromkeys(range(1, EPOCHS + 1), value)


@pytest.mark.parametrize(
    ("value", "num_val", "named"),
    [(0.5, 1000, False), (1.1, 100, False), (1.1, 10_000, True), (2.0, 100, True), (2.0, 10, False)],
)
def test_it_is_told_where_the_difference_is_more_than_the_events_scatter_by(
    course: Any, write_run: Write, value: float, num_val: int, named: bool
) -> None:
    found = engine.diagnose.run(write_run(scored(course, flat(value), num_val=num_val)))
    assert not found.bad
    assert [note.code for note in found.notes if note.code == "XT-CONVENTIONAL"] == ["XT-CONVENTIONAL"] * named
    assert ("conventional" in found.verdict, "lr-sweep" in found.next) == (named, named)


def test_a_network_that_has_settled_above_it_is_worse_and_sweeps_the_rate(course: Any, write_run: Write) -> None:
    found = engine.diagnose.run(write_run(scored(course, flat(0.004), 0.003)))
    assert found.verdict.endswith("(finished); but worse than the conventional estimate")
    (note,) = (note for note in found.notes if note.code == "XT-CONVENTIONAL")
    assert note.problem == "worse than the conventional estimate: energy_res_68pct [GeV] 0.004 against 0.003"
    assert found.next == note.fix
    assert note.fix.startswith("xectool lr-sweep ")


def test_one_that_still_falls_trains_as_long_as_its_curve_tells(course: Any, write_run: Write) -> None:
    """It falls as the square root of the epochs: a factor of two takes four times as many."""
    curve = {epoch: 10.0 * epoch**-0.5 for epoch in range(1, EPOCHS + 1)}
    found = engine.diagnose.run(write_run(scored(course, curve, curve[EPOCHS] / 1.999)))
    assert found.verdict.endswith("but not yet better than the conventional estimate, and still falling")
    assert "--set training.epochs=40" in found.next


@pytest.mark.parametrize(
    ("epochs", "told"),
    [({1: 3.0, 2: 3.0}, "training.epochs=10"), ({1: 3.0, 2: 1.5}, "training.epochs=4")],
    ids=["flat", "falling"],
)
def test_a_first_try_is_not_yet_better_and_trains_longer(
    course: Any, write_run: Write, epochs: dict[int, float], told: str
) -> None:
    """Two epochs tell no end of a curve, whatever they have not learned."""
    found = engine.diagnose.run(write_run(scored(course, epochs)))
    assert not found.bad
    assert "not yet better than the conventional estimate" in found.verdict
    assert told in found.next


@pytest.mark.parametrize(
    ("status", "words", "line"),
    [("max_steps", "not yet better", "--resume"), ("early_stopped", "worse", "xectool lr-sweep ")],
)
def test_a_limit_of_steps_is_gone_on_from_and_an_early_stop_is_not(
    course: Any, write_run: Write, status: str, words: str, line: str
) -> None:
    found = engine.diagnose.run(write_run(scored(course, {1: 3.0, 2: 1.5}, status=status)))
    assert f"but {words} than the conventional estimate" in found.verdict
    assert line in found.next


def test_hidden_sensors_are_compared_with_the_best_estimate_of_the_last_epoch(course: Any, write_run: Write) -> None:
    run = scored(course, flat(0.5), kind="inpainter")
    estimates = {"baseline_neighbour_mae_npho": 0.3, "baseline_solid_angle_mae_npho": 0.2}
    run.epochs[EPOCHS]["metrics"] |= {"mae_npho": 0.4, **estimates}
    (note,) = (note for note in engine.diagnose.run(write_run(run)).notes if note.code == "XT-CONVENTIONAL")
    assert note.problem.endswith(": mae_npho 0.4 against 0.2")


def test_a_masked_autoencoder_is_compared_with_the_best_constant(course: Any, write_run: Write) -> None:
    """It hides more than what conventional estimates could be made from; nothing said whether it had learned."""
    for rmse, told in ((0.3, []), (0.5, ["worse than a constant: rmse_npho 0.5 against 0.4"])):
        run = scored(course, flat(0.5), kind="mae")
        run.epochs[EPOCHS]["metrics"] |= {"rmse_npho": rmse, "baseline_constant_rmse_npho": 0.4}
        notes = engine.diagnose.run(write_run(run)).notes
        assert [note.problem for note in notes if note.code == "XT-CONVENTIONAL"] == told


def test_a_run_that_goes_on_is_not_compared(course: Any, write_run: Write) -> None:
    found = engine.diagnose.run(write_run(scored(course, flat(2.0), end="killed")))
    assert "XT-CONVENTIONAL" not in [note.code for note in found.notes]


def test_a_verdict_tells_of_a_long_average_and_of_the_estimate(course: Any, write_run: Write) -> None:
    run = scored(course, flat(2.0), config={"training": {"ema_decay": 0.9999}})
    found = engine.diagnose.run(write_run(run))
    told = "but see the note on its averaged weights and worse than the conventional estimate"
    assert found.verdict.endswith(told)
    assert found.next.endswith("--set training.ema_decay=auto")


def test_a_metric_far_beyond_all_numbers_asks_for_the_most_epochs(course: Any, write_run: Write) -> None:
    curve = {epoch: 1e35 * epoch**-0.11 for epoch in range(1, EPOCHS + 1)}
    found = engine.diagnose.run(write_run(scored(course, curve)))
    (note,) = (note for note in found.notes if note.code == "XT-CONVENTIONAL")
    assert "--set training.epochs=100" in note.fix
