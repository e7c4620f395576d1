"""Verdicts, recommendation and refusal of a sweep, on curves whose answer is known."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xectool.config.load import load_config
from xectool.config.rates import settings_of
from xectool.config.training import TrainingConfig
from xectool.errors import ConfigError
from xectool.training.lr_sweep.choice import Choice, choose
from xectool.training.lr_sweep.curves import Curve, mean_and_error, window_length
from xectool.training.lr_sweep.finals import below, choose_final, finalists, one_more
from xectool.training.lr_sweep.ramp import (
    choose_ramp,
    falls,
    longest_fall,
    ramp_rates,
    ramp_rows,
    read_ramp,
    smoothed,
)
from xectool.training.lr_sweep.refusal import InputFacts, bad_batches, refusals
from xectool.training.lr_sweep.remarks import remarks, unsure
from xectool.training.lr_sweep.rows import BORDERLINE, EXPLODES, OPTIMAL, STABLE, TOO_SLOW, grid_rows, with_optimal
from xectool.training.lr_sweep.sweep import Sweep, whole_seeds

SOUND = InputFacts("ok", "", "", {})
STEPS = 40


def curve(lr: float, end: float, seed: int = 0, norm: float = 1.0, noise: float = 0.05) -> Curve:
    """A loss that goes from 1 to ``end``; batches scatter alike at every rate."""
    scatter = noise * np.random.default_rng(seed).normal(size=STEPS)
    losses = 1.0 + (end - 1.0) * np.linspace(0, 1, STEPS) ** 0.5 + scatter
    own = 0.01 * np.random.default_rng(seed + 1000 * int(1e6 * lr)).normal(size=STEPS)
    start = 1.0 + scatter[-window_length(STEPS) :]
    return Curve(lr, seed, losses + own, np.full(STEPS, norm), np.ones(STEPS, dtype=bool), start)


def grid(ends: dict[float, float], **norms: float) -> list[Curve]:
    return [curve(lr, end, seed) for seed in range(2) for lr, end in ends.items()]


def broken(one: Curve, steps: slice) -> Curve:
    losses, finite = one.losses.copy(), one.finite.copy()
    losses[steps], finite[steps] = math.nan, False
    return Curve(one.lr, one.seed, losses, one.grad_norms, finite, one.start_losses)


@pytest.mark.parametrize(
    ("schedule", "lr", "keys"),
    [
        ("lr_scheduler: onecycle\n  max_lr: 1e-3", 1.9e-4, {"training.max_lr": 1.9e-4, "training.lr": 1.9e-4}),
        ("lr_scheduler: onecycle\n  max_lr: 1e-3", 4e-4, {"training.max_lr": 4e-4}),
        ("lr_scheduler: cosine\n  lr_min: 1e-5", 5e-6, {"training.lr": 5e-6, "training.lr_min": 5e-8}),
    ],
)
def test_a_rate_takes_along_the_keys_that_it_would_cross(
    tmp_path: Path, schedule: str, lr: float, keys: dict[str, float]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"kind: mae\ntraining:\n  lr: 3e-4\n  {schedule}\n")
    found = settings_of(load_config(path).config.training, lr)
    assert found == keys
    assert load_config(path, [f"{key}={value:g}" for key, value in found.items()])
    if len(keys) > 1:  # the control
        with pytest.raises(ConfigError):
            load_config(path, [f"{next(iter(keys))}={lr:g}"])


def test_verdicts_of_a_usual_grid() -> None:
    curves = grid({1e-5: 0.999, 1e-4: 0.7, 3e-4: 0.4, 1e-3: 0.6, 1e-2: 5.0})
    rows = grid_rows(curves)
    rows = with_optimal(rows, choose(rows, curves).lr)
    assert [row.verdict for row in rows] == [TOO_SLOW, STABLE, OPTIMAL, BORDERLINE, EXPLODES]
    assert [row.loss_decreasing for row in rows][1:4] == [True] * 3
    assert refusals(rows, curves, SOUND, math.nan, "c.yaml") == ()


def test_the_recommendation_is_near_the_best_and_the_band_holds_it() -> None:
    curves = grid({1e-5: 0.99, 1e-4: 0.7, 3e-4: 0.4, 1e-3: 0.6, 1e-2: 5.0})
    choice = choose(grid_rows(curves), curves)
    assert 1.5e-4 <= choice.lr <= 6e-4
    assert choice.band[0] <= choice.lr <= choice.band[1]


def test_gradients_a_thousand_times_larger_are_an_explosion_though_the_loss_falls() -> None:
    curves = [curve(1e-4, 0.5), curve(1e-3, 0.4, norm=2e3)]
    assert [row.verdict for row in grid_rows(curves)] == [STABLE, EXPLODES]


def test_a_step_that_is_not_finite_at_one_rate_only_is_an_explosion() -> None:
    curves = [curve(1e-4, 0.5), broken(curve(1e-3, 0.4), slice(30, 31))]
    rows = grid_rows(curves)
    assert [row.verdict for row in rows] == [STABLE, EXPLODES]
    assert rows[1].nonfinite_steps == 1
    assert bad_batches(curves, "c.yaml") == ()


def test_a_step_that_is_not_finite_at_every_rate_is_the_fault_of_its_batch() -> None:
    curves = [broken(curve(lr, 0.5), slice(7, 8)) for lr in (1e-4, 1e-3)]
    assert all(row.verdict == STABLE for row in grid_rows(curves))
    (found,) = bad_batches(curves, "c.yaml")
    assert (found.code, found.fix) == ("XT-NAN-DATA", "xectool diagnose nan-batch c.yaml")
    assert "steps of seed 0: 8" in found.evidence


@pytest.mark.parametrize(
    ("curves", "code", "fix"),
    [
        ([broken(curve(lr, 0.5), slice(0, STEPS)) for lr in (1e-4, 1e-3)], "XT-NAN-DATA", "nan-batch"),
        ([curve(lr, 1.0) for lr in (1e-4, 1e-3)], "XT-NO-LEARNING", "--range 1e-6:1e-1"),
        ([curve(lr, 9.0) for lr in (1e-4, 1e-3)], "XT-CONFIG-LR", "--range 1e-08:1e-04"),
        ([curve(lr, 1.0, norm=0.0) for lr in (1e-4, 1e-3)], "XT-NO-LEARNING", "diagnose gradients"),
    ],
    ids=["all not finite", "no decrease", "all explode", "dead"],
)
def test_an_unusable_grid_is_refused_with_its_cause(curves: list[Curve], code: str, fix: str) -> None:
    found = refusals(grid_rows(curves), curves, SOUND, math.nan, "c.yaml")
    assert [item.code for item in found] == [code]
    assert fix in found[0].fix


def test_a_short_grid_without_decrease_is_to_be_longer_and_a_ramp_to_be_looked_into() -> None:
    short = [shortened(curve(lr, 1.0), 8) for lr in (1e-4, 1e-3)]
    assert refusals(grid_rows(short), short, SOUND, math.nan, "c.yaml", " --lrs 1,2")[0].fix.endswith(
        "c.yaml --lrs 1,2 --steps 40"
    )
    ramp = [curve(1e-4, 1.0)]
    (found,) = refusals(grid_rows([curve(lr, 1.0) for lr in (1e-4, 1e-3)]), ramp, SOUND, math.nan, "c.yaml")
    assert found.fix == "xectool diagnose gradients c.yaml"


def test_rates_that_are_all_too_low_are_named_as_such_and_not_as_too_few_steps() -> None:
    def falling(lr: float, share: float) -> Curve:
        steps, window = 8, window_length(8)
        losses = 1.0 - share * np.linspace(0, 1, steps)
        return Curve(lr, 0, losses, np.ones(steps), np.ones(steps, dtype=bool), np.ones(window))

    low = [falling(lr, 100 * lr) for lr in (1e-9, 1e-8, 1e-7)]
    (found,) = refusals(grid_rows(low), low, SOUND, math.nan, "c.yaml")
    assert (found.code, found.fix) == ("XT-CONFIG-LR", "xectool lr-sweep c.yaml --range 1e-06:0.1")
    control = [falling(lr, -100 * lr) for lr in (1e-9, 1e-8, 1e-7)]
    assert [item.code for item in refusals(grid_rows(control), control, SOUND, math.nan, "c.yaml")] == [
        "XT-NO-LEARNING"
    ]


def shortened(whole: Curve, steps: int) -> Curve:
    cut = {name: getattr(whole, name)[:steps] for name in ("losses", "grad_norms", "finite", "start_losses")}
    return replace(whole, **cut)


def test_odd_inputs_are_suspected_before_the_rate() -> None:
    facts = {"absmax": 20.0, "mean": 2.0, "std": 5.0, "raw_min": 0.0, "raw_max": 9.0, "raw_mean": 1.0}
    odd = InputFacts("warning", "npho", "an event reaches 20 in network units", {"npho": facts})
    curves = [curve(lr, 1.0) for lr in (1e-4, 1e-3)]
    found = refusals(grid_rows(curves), curves, odd, math.nan, "c.yaml")
    assert [item.code for item in found] == ["XT-INPUT-SCALE", "XT-NO-LEARNING"]
    none = replace(odd, reason="no event has enough valid readings", channels={"npho": {**facts, "absmax": math.nan}})
    (first,) = refusals(grid_rows(curves), curves, none, math.nan, "c.yaml")
    assert (first.code, first.fix) == ("XT-NAN-DATA", "xectool diagnose nan-batch c.yaml")


def test_a_loss_no_better_than_that_of_a_constant_tells_nothing() -> None:
    curves = [curve(lr, 0.6) for lr in (1e-4, 1e-3)]
    (found,) = refusals(grid_rows(curves), curves, SOUND, 0.55, "c.yaml", " --range 1e-06:0.1")
    assert found.fix == "xectool lr-sweep c.yaml --range 1e-06:0.1 --steps 200"
    assert refusals(grid_rows(curves), curves, SOUND, 2.0, "c.yaml") == ()


def test_a_likelihood_below_zero_is_judged_by_its_changes() -> None:
    def shifted(one: Curve) -> Curve:
        return Curve(one.lr, one.seed, one.losses - 1.0, one.grad_norms, one.finite, one.start_losses - 1.0)

    curves = [shifted(curve(lr, end)) for lr, end in ((1e-4, 0.7), (3e-4, 0.2))]
    assert [row.verdict for row in grid_rows(curves)] == [STABLE, STABLE]


def test_the_same_batches_make_small_differences_visible() -> None:
    noisy = [curve(lr, end, noise=1.0) for lr, end in ((1e-4, 0.9), (3e-4, 0.8))]
    rows = grid_rows(noisy)
    assert all(row.loss_decreasing for row in rows)
    assert rows[0].loss_decrease_error < 0.05


def test_mean_and_error_take_the_larger_scatter() -> None:
    steps = mean_and_error([np.array([0.0, 2.0]), np.array([0.0, 2.0])])
    assert steps == pytest.approx((1.0, math.sqrt(2.0) / 2.0))
    assert mean_and_error([np.array([0.0, 0.0]), np.array([2.0, 2.0])])[1] == pytest.approx(1.0)
    assert math.isnan(mean_and_error([np.empty(0)])[0])


def ramp_loss(rates: np.ndarray, best: float, scale: float = 1.0) -> np.ndarray:
    """The loss of a ramp: flat, falling up to ``best``, then rising fast; flat where it falls by less than 1e-4."""
    place = np.log10(rates / best)
    falling = 0.2 + 0.8 / (1.0 + np.exp(4.0 * (place + 1.0)))
    return scale * np.round(falling + np.where(place > 0, 10.0 ** (2 * place) - 1, 0.0), 4)


@example(best=0.018075133859237442, scale=1.0)  # a level of the floor began within the flat part
@given(best=st.floats(1e-4, 1e-1), scale=st.floats(1e-3, 1e3))
def test_both_readings_of_a_ramp_find_the_slope_whatever_the_size_of_the_loss(best: float, scale: float) -> None:
    rates = np.array(ramp_rates(1e-7, 10, 100))
    reading = read_ramp(list(rates), ramp_loss(rates, best, scale))
    assert reading is not None
    assert reading.agreed is not None
    assert best / 30 <= reading.agreed <= best


def test_a_ramp_is_read_up_to_the_first_nan() -> None:
    rates = np.array(ramp_rates(1e-7, 10, 100))
    losses = ramp_loss(rates, 1e-2)
    whole = read_ramp(list(rates), losses)
    losses[rates > 3e-2] = math.nan
    assert read_ramp(list(rates), losses) is not None
    assert read_ramp(list(rates), np.full(100, math.nan)) is None
    assert whole is not None


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_longest_fall_is_as_long_as_the_longest_of_all_subsequences(values: list[int]) -> None:
    lengths: list[int] = []
    for place, value in enumerate(values):
        lengths.append(1 + max((lengths[i] for i in range(place) if values[i] > value), default=0))
    first, last = longest_fall(np.array(values, dtype=float))
    assert 0 <= first <= last < len(values)
    assert last - first + 1 >= max(lengths)
    assert max(lengths) == 1 or values[last] < values[first]


def test_smoothing_has_no_bias_at_the_start() -> None:
    assert smoothed(np.full(10, 3.0), 5.0) == pytest.approx(np.full(10, 3.0))
    assert all(a >= b for a, b in pairwise(smoothed(np.linspace(2, 1, 20), 5.0)))


def ended(one: Curve, step: int, start_fails: bool = False) -> Curve:
    """A curve without a finite loss from a step on; the first weights may fail on those batches as well."""
    start = np.full_like(one.start_losses, math.nan) if start_fails else one.start_losses
    return replace(broken(one, slice(step, STEPS)), start_losses=start)


def test_a_grid_that_overflows_at_its_lowest_rate_explodes_and_the_data_are_not_blamed() -> None:
    curves = [ended(curve(lr, 0.9), 3) for lr in (1.0, 10.0)]
    rows = grid_rows(curves)
    assert [row.verdict for row in rows] == [EXPLODES, EXPLODES]
    assert [item.code for item in refusals(rows, curves, SOUND, math.nan, "c.yaml")] == ["XT-CONFIG-LR"]
    assert bad_batches(curves, "c.yaml") == ()
    fails = [ended(curve(lr, 0.9), 3, start_fails=True) for lr in (1.0, 10.0)]  # the control
    assert [item.code for item in refusals(grid_rows(fails), fails, SOUND, math.nan, "c.yaml")] == ["XT-NAN-DATA"]


def test_scatter_of_the_batches_is_no_rise_but_one_beyond_the_lowest_rate_is() -> None:
    low, high = curve(1e-5, 0.7), curve(1e-4, 0.5)
    for one in (low, high):
        one.losses[10] += 5.0  # a batch that is hard for any weights
    assert [row.verdict for row in grid_rows([low, high])] == [STABLE, STABLE]
    high.losses[12] += 5.0
    assert [row.verdict for row in grid_rows([low, high])] == [STABLE, BORDERLINE]


def test_of_rates_that_do_as_well_within_errors_a_lower_one_is_taken() -> None:
    def choice(lower_end: float) -> tuple[float, tuple[float, ...]]:
        curves = grid({1e-5: 0.99, 1e-4: lower_end, 1e-3: 0.4, 1e-2: 5.0})
        for one in curves:
            one.losses[-4:] += np.array([0.1, -0.1, 0.1, -0.1]) * (one.lr == 1e-4)  # the error of the difference
        found = choose(grid_rows(curves), curves)
        return found.lr, found.good

    tied, alone = choice(0.4), choice(0.48)
    assert tied[1] == (1e-4, 1e-3)
    assert tied[0] < 2e-4
    assert alone[1] == (1e-3,)
    assert alone[0] > 3e-4


@pytest.mark.parametrize(
    ("ends", "low", "high"),
    [
        ({1e-4: 0.3, 3e-4: 0.6, 1e-3: 0.7}, 0.99e-4, 1.01e-4),  # the lowest is plainly best
        ({1e-4: 0.7, 3e-4: 0.6, 1e-3: 0.3}, 0.99e-3, 1.01e-3),
        ({1e-4: 0.3, 3e-4: 0.3, 1e-3: 0.7}, 1.5e-4, 2e-4),  # two alike: half way, within 2 of either
        ({1e-4: 0.3, 3e-4: 0.3, 1e-3: 9.0}, 1.5e-4, 2e-4),  # what explodes does not count
    ],
)
def test_a_final_names_the_best_rate_and_half_way_between_rates_alike(
    ends: dict[float, float], low: float, high: float
) -> None:
    found = choose_final(grid(ends))
    assert found is not None
    assert low < found.lr < high
    assert found.band[0] <= found.lr <= found.band[1]


def test_the_band_of_seeds_that_differ_holds_the_rate_of_both() -> None:
    """Together they are less sure that the lowest is best than each of them: 1e-4 stood beside 1e-4 to 1e-4."""
    curves = [one for one in grid({1e-4: 0.3, 3e-4: 0.5}) if one.seed == 0]
    found = choose_final(curves + [one for one in grid({1e-4: 0.3, 3e-4: 0.9}) if one.seed == 1])
    assert found is not None
    assert found.good == (1e-4, 3e-4)


def test_two_seeds_that_agree_by_chance_tell_less_than_four() -> None:
    """An inpainter was best at 3e-4 by 15 % with two seeds, and at 1e-4 by 23 % with other weights."""

    def final(seeds: int) -> Choice | None:
        curves = [curve(lr, end, seed) for seed in range(seeds) for lr, end in {1e-4: 0.46, 3e-4: 0.4}.items()]
        return choose_final([replace(one, start_losses=one.start_losses + 30.0) for one in curves])

    two, four = final(2), final(4)
    assert two is not None
    assert four is not None
    assert (two.lr, two.good) == (3e-4, (1e-4, 3e-4))
    assert (four.lr, four.good) == (3e-4, (3e-4,))


def test_a_rate_that_is_best_with_some_weights_only_moves_the_recommendation_between_them() -> None:
    """Twice 3e-4 by 5 % and once 1e-4 by 20 %: the batches tell the rates apart, the weights do not."""
    by_seed = [{1e-4: 0.42, 3e-4: 0.4}, {1e-4: 0.42, 3e-4: 0.4}, {1e-4: 0.33, 3e-4: 0.4}]
    curves = [curve(lr, end, seed) for seed, ends in enumerate(by_seed) for lr, end in ends.items()]
    found = choose_final(curves)
    assert found is not None
    assert found.lr == pytest.approx(math.sqrt(1e-4 * 3e-4), rel=0.03)
    assert found.good == (1e-4, 3e-4)
    assert found.band == (1e-4, 3e-4)


@pytest.mark.parametrize(
    ("ends", "final", "expected"),
    [
        ({1e-4: 0.6, 3e-4: 0.4, 1e-3: 0.5}, {1e-4: 0.6, 3e-4: 0.3}, 1e-3),  # tried for few steps, then left out
        ({1e-4: 0.6, 3e-4: 0.4, 1e-3: 9.0}, {1e-4: 0.6, 3e-4: 0.3}, None),  # it explodes
        ({1e-4: 0.6, 3e-4: 0.4}, {1e-4: 0.6, 3e-4: 0.3}, 9e-4),
        ({3e-3: 0.6, 1e-2: 0.4}, {3e-3: 0.6, 1e-2: 0.3}, None),  # above all that is tried
        ({1e-4: 0.6, 3e-4: 0.4}, {1e-4: 0.3, 3e-4: 0.6}, 3.3e-5),
        ({1e-4: 0.6, 3e-4: 0.4}, {1e-4: 0.6, 3e-4: 0.3, 9e-4: 0.6}, None),
        ({1e-4: 0.6, 3e-4: 0.4}, {1e-4: 0.6, 3e-4: 0.3, 9e-4: 9.0}, None),  # what holds ends there
    ],
)
def test_a_final_goes_on_beyond_the_end_at_which_its_best_rate_lies(
    ends: dict[float, float], final: dict[float, float], expected: float | None
) -> None:
    curves = grid(ends)
    swept = Sweep(tuple(ends), SOUND, tuple(curves), grid_rows(curves), choose(grid_rows(curves), curves))
    assert one_more(choose_final(grid(final)), sorted(final), swept) == expected


def test_a_final_does_not_go_beyond_rates_that_were_asked_for() -> None:
    curves = grid({1e-4: 0.6, 3e-4: 0.4})
    swept = Sweep((1e-4, 3e-4), SOUND, tuple(curves), grid_rows(curves), choose(grid_rows(curves), curves))
    final = choose_final(grid({1e-4: 0.6, 3e-4: 0.3}))
    assert one_more(final, (1e-4, 3e-4), replace(swept, asked=" --lrs 1e-4,3e-4")) is None
    assert one_more(final, (1e-4, 3e-4), swept) == 9e-4


def test_a_rate_between_two_good_ones_that_is_worse_itself_is_not_recommended() -> None:
    found = choose_final(grid({1e-4: 0.3, 3e-4: 0.6, 1e-3: 0.301}))
    assert found is not None
    assert found.lr in found.good == (1e-4, 1e-3)


@pytest.mark.parametrize(
    ("ends", "good"),
    [
        ({1e-4: 0.6, 1e-3: 0.3, 3e-3: 0.302, 1e-2: 0.301}, (1e-3, 3e-3, 1e-2)),  # flat: nothing tells them apart
        ({1e-4: 0.6, 1e-3: 0.4, 3e-3: 0.3, 1e-2: 0.5}, (3e-3,)),
    ],
)
def test_a_flat_final_names_all_rates_that_may_be_the_best(ends: dict[float, float], good: tuple[float, ...]) -> None:
    found = choose_final(grid(ends))
    assert found is not None
    assert found.good == good
    sweep: Any = SimpleNamespace(inputs=SOUND, curves=(), final_rows=(), asked="")
    said = [item.problem for item in remarks(grid_rows(grid(ends)), found, sweep, 20, "c.yaml", TrainingConfig())]
    assert any(text.startswith("0.001 to 0.01") for text in said) == (len(good) > 1)


def test_the_highest_rate_of_a_grid_is_not_called_the_best_where_a_final_has_another() -> None:
    curves = grid({1e-3: 0.6, 3e-3: 0.5, 1e-2: 0.3})
    final, sweep = (
        choose_final(grid({1e-3: 0.4, 3e-3: 0.3, 1e-2: 0.5})),
        SimpleNamespace(inputs=SOUND, curves=(), final_rows=(), asked=""),
    )
    assert final is not None
    for choice, higher in ((choose(grid_rows(curves), curves), True), (final, False)):
        said = remarks(grid_rows(curves), choice, cast(Any, sweep), 20, "c.yaml", TrainingConfig())
        assert any("a higher one may be better" in item.problem for item in said) == higher


def test_a_final_of_rates_that_all_explode_names_none() -> None:
    curves = [broken(one, slice(30, None)) for one in grid({1e-3: 0.3, 3e-3: 0.3})]
    lowest = [replace(one, lr=1e-4, finite=np.ones(STEPS, dtype=bool)) for one in grid({1e-4: 9.0})]
    assert choose_final([*lowest, *curves]) is None


def test_rates_alike_in_what_the_first_steps_gain_are_told_apart_by_the_loss_they_reach() -> None:
    """An inpainter fell from 0.09 to 0.0032, 0.0039 and 0.0056: as good as equal beside 0.09, and 1.3e-4 was named."""
    ends = grid({1e-4: 0.5, 3e-4: 0.4, 1e-3: 0.3})
    found = choose_final([replace(one, start_losses=one.start_losses + 30.0) for one in ends])
    assert found is not None
    assert 0.9e-3 < found.lr < 1.1e-3


def test_a_final_around_zero_goes_by_what_was_gained() -> None:
    """With learnt weights of its terms a loss may reach zero: 5 % of it told apart what noise made."""
    ends = grid({1e-4: 0.31, 3e-4: 0.305, 1e-3: 0.3})
    lowered = [replace(one, losses=one.losses - 0.3, start_losses=one.start_losses - 0.3) for one in ends]
    found, expected = choose_final(lowered), choose_final(ends)
    assert found is not None
    assert expected is not None
    assert found.lr < 1.1 * expected.lr


def test_a_higher_rate_that_is_as_good_as_the_best_of_a_grid_runs_on_too() -> None:
    rates = {3e-5: 0.9, 1e-4: 0.6, 3e-4: 0.3, 1e-3: 0.302}
    alike = dict.fromkeys((1e-5, 3e-5, 1e-4, 3e-4, 1e-3), 0.6) | {3e-5: 0.598}
    for more, expected in (
        ({}, [1e-4, 3e-4, 1e-3]),
        ({1e-3: 9.0}, [3e-5, 1e-4, 3e-4]),
        (alike, [3e-5, 1e-4, 3e-4]),  # the best itself was left out
    ):
        rates = rates | more
        curves = grid(rates)
        rows = grid_rows(curves)
        sweep = Sweep(tuple(rates), SOUND, tuple(curves), rows, choose(rows, curves))
        assert finalists(sweep) == expected


def test_the_best_rate_of_a_grid_and_two_lower_ones_run_on() -> None:
    curves = grid({1e-5: 0.99, 3e-5: 0.9, 1e-4: 0.6, 3e-4: 0.3, 1e-3: 0.9})
    rows = grid_rows(curves)
    sweep = Sweep((1e-5, 3e-5, 1e-4, 3e-4, 1e-3), SOUND, tuple(curves), rows, choose(rows, curves))
    assert finalists(sweep) == [3e-5, 1e-4, 3e-4]
    assert [below(3e-5, sweep), below(1e-5, sweep)] == [1e-5, 3.3e-6]


def test_a_borderline_rate_that_is_best_is_named_beside_the_lower_one_that_does_as_well() -> None:
    curves = grid({1e-5: 0.99, 1e-4: 0.4, 1e-3: 0.4})
    for one in curves:
        one.losses[12] += 5.0 * (one.lr == 1e-3)
        one.losses[-4:] += np.array([0.1, -0.1, 0.1, -0.12]) * (one.lr == 1e-3)
    rows = grid_rows(curves)
    assert rows[-1].verdict == BORDERLINE
    found = choose(rows, curves)
    assert (found.best, found.good) == (1e-3, (1e-4, 1e-3))
    sweep: Any = SimpleNamespace(inputs=SOUND, curves=(), final_rows=(), asked="")
    said = remarks(rows, found, sweep, 20, "c.yaml", TrainingConfig())
    assert [item.problem.split(" do as")[0] for item in said if "do as well" in item.problem] == [
        "0.0001 to 0.001, the highest that was tried,"
    ]


@pytest.mark.parametrize(("between", "told"), [(1.0, "0.0001, 0.01"), (0.4, "0.0001 to 0.01")])
def test_rates_that_do_as_well_are_no_range_where_one_between_them_does_not(between: float, told: str) -> None:
    curves = grid({1e-5: 0.99, 1e-4: 0.4, 1e-3: between, 1e-2: 0.4, 1e-1: 0.9})
    rows = grid_rows(curves)
    sweep: Any = SimpleNamespace(inputs=SOUND, curves=(), final_rows=(), asked="")
    said = remarks(rows, choose(rows, curves), sweep, 20, "c.yaml", TrainingConfig())
    assert [item.problem.split(" do as")[0] for item in said if "do as well" in item.problem] == [told]


@pytest.mark.parametrize(("rates", "fix"), [((1e-12, 1e-11), "--range 1e-06:0.1"), ((1e-4, 1e-3), "--steps")])
def test_rates_far_too_low_for_a_few_steps_are_not_tried_again(rates: tuple[float, float], fix: str) -> None:
    curves = [replace(one, losses=one.losses[:8], grad_norms=one.grad_norms[:8], finite=one.finite[:8])
              for one in grid(dict.fromkeys(rates, 1.0))]  # fmt: skip
    (found,) = refusals(grid_rows(curves), curves, SOUND, math.nan, "c.yaml")
    assert found.code == "XT-NO-LEARNING"
    assert fix in found.fix


def ramp_curve(losses: np.ndarray, seed: int = 0) -> Curve:
    return Curve(1e-7, seed, losses, np.ones(len(losses)), np.isfinite(losses), np.empty(0))


def test_a_ramp_that_ends_in_nan_does_not_blame_the_data_and_one_bad_batch_does_not_end_it() -> None:
    rates = np.array(ramp_rates(1e-7, 10, 100))
    losses = ramp_loss(rates, 1e-3)
    losses[rates > 3e-3] = math.nan
    curves = [ramp_curve(losses, seed) for seed in range(2)]
    whole = choose_ramp(list(rates), curves)
    assert whole is not None
    assert bad_batches(curves, "c.yaml") == ()
    assert refusals(ramp_rows(list(rates), curves), curves, SOUND, math.nan, "c.yaml") == ()
    losses = losses.copy()
    losses[8] = math.nan
    curves[0] = ramp_curve(losses)
    assert choose_ramp(list(rates), curves) == whole
    assert [item.evidence for item in bad_batches(curves, "c.yaml")] == [("steps of seed 0: 9",)]
    assert ramp_rows(list(rates), curves)[0].verdict != EXPLODES


def test_the_band_of_a_ramp_holds_the_rate_that_is_recommended() -> None:
    """The mean curve of two seeds may be read outside of what each is read as: 8.4e-4 had a band of 1.1e-3 alone."""
    rates, rng, found = ramp_rates(1e-5, 1.0, 100), np.random.default_rng(1), 0
    for _ in range(40):
        losses = [ramp_loss(np.array(rates), 10 ** rng.uniform(-2.5, -1.5)) for _ in range(2)]
        curves = [ramp_curve(one + 0.05 * rng.normal(size=100), seed) for seed, one in enumerate(losses)]
        if (choice := choose_ramp(rates, curves)) is not None:
            assert choice.band[0] <= choice.lr <= choice.band[1]
            found += 1
    assert found > 10


def test_a_ramp_that_still_falls_at_its_end_names_no_rate_but_a_wider_range() -> None:
    rates = np.array(ramp_rates(1e-7, 3e-4, 100))
    losses = ramp_loss(rates, 1e-2)
    assert read_ramp(list(rates), losses).open_end  # type: ignore[union-attr]
    sweep = Sweep(tuple(rates), SOUND, (ramp_curve(losses),))
    assert choose_ramp(sweep.rates, sweep.curves) is None
    assert unsure(sweep, "c.yaml").fix == "xectool lr-sweep c.yaml --range 1e-07:0.03"
    short = Sweep(sweep.rates, SOUND, (ramp_curve(np.where(np.arange(100) < 5, 1.0, math.nan)),))
    assert "fewer than 10 steps" in unsure(short, "c.yaml").problem


def test_the_error_of_an_interval_is_the_scatter_of_its_steps() -> None:
    rates = ramp_rates(1e-5, 1e-1, 36)  # three steps an interval, so one at each end
    rows = ramp_rows(rates, [ramp_curve(1.0 + 0.1 * np.random.default_rng(1).normal(size=36))])
    assert 0.05 < np.sqrt(np.mean([row.loss_decrease_error**2 for row in rows])) < 0.3
    assert sum(row.loss_decreasing for row in rows) <= 2


def test_a_ramp_in_small_batches_falls_as_a_whole_where_no_interval_does() -> None:
    """In batches of four, steps scatter by more than the loss falls within an interval: 'falls at none' was wrong."""
    rates, chance = np.array(ramp_rates(1e-6, 1e-1, 100)), np.random.default_rng(5)
    scatter = 1.0 + 0.3 * chance.normal(size=(2, 100))
    falling = [ramp_curve(ramp_loss(rates, 1e-2) * one, seed) for seed, one in enumerate(scatter)]
    rows = [replace(row, loss_decreasing=False) for row in ramp_rows(list(rates), falling)]
    assert falls(falling)
    assert refusals(rows, falling, SOUND, math.nan, "c.yaml") == ()
    flat = [ramp_curve(one, seed) for seed, one in enumerate(scatter)]
    assert not falls(flat)
    assert [item.code for item in refusals(rows, flat, SOUND, math.nan, "c.yaml")] == ["XT-NO-LEARNING"]


def test_of_ramps_that_only_scatter_few_fall() -> None:
    draws = np.exp(0.5 * np.random.default_rng(6).normal(size=(400, 40)))
    assert sum(falls([ramp_curve(draw)]) for draw in draws) <= 8
    assert not falls([ramp_curve(np.array([1.0, 0.5, 0.1]))])


def test_seeds_that_begin_far_apart_fall_each_by_itself() -> None:
    """An inpainter whose loss fell 23-fold was 'falls at none': one seed began at a much larger loss than the other."""

    def scaled(one: Curve, size: float) -> Curve:
        return Curve(one.lr, one.seed, size * one.losses, one.grad_norms, one.finite, size * one.start_losses)

    low, high = curve(1e-3, 0.1), curve(1e-3, 0.1, seed=1)
    (row,) = grid_rows([low, scaled(high, 20.0)])
    assert row.loss_decrease < 2 * row.loss_decrease_error
    assert row.loss_decreasing
    assert row.verdict == STABLE
    rising = curve(1e-3, 1.1, seed=1)
    assert not grid_rows([low, scaled(rising, 20.0)])[0].loss_decreasing
    level = [curve(1e-3, 1.0, seed) for seed in range(2)]
    assert not grid_rows([level[0], scaled(level[1], 20.0)])[0].loss_decreasing


def test_one_fact_about_a_wide_band_is_one_remark() -> None:
    curves = grid({1e-5: 0.99, 1e-4: 0.4, 1e-3: 0.4, 1e-2: 0.9})
    rows = grid_rows(curves)
    sweep: Any = SimpleNamespace(inputs=SOUND, curves=tuple(curves), final_rows=(), asked="")
    (found,) = remarks(rows, choose(rows, curves), sweep, 20, "c.yaml", TrainingConfig())
    assert found.problem.startswith("0.0001 to 0.001 do as well within two errors: the rate is not known better")
    lr = choose(rows, curves).lr
    assert f"better than that; {lr:g} is recommended; a lower one, with a warm-up, is safer" in found.problem
    again, lower = found.fix.split(f"   # or, if the loss jumps at {lr:g}: ")
    assert (" --seeds " in again, lower.split()[:2]) == (True, ["--set", "training.lr=0.0001"])


def test_a_lower_rate_that_does_as_well_is_for_a_loss_that_jumps() -> None:
    """The line of a note said `--set training.lr=` with another rate than the recommended one, and not why."""
    curves = grid({1e-5: 0.99, 1e-4: 0.4, 3e-4: 0.4, 1e-2: 0.9})
    rows = grid_rows(curves)
    sweep: Any = SimpleNamespace(inputs=SOUND, curves=tuple(curves), final_rows=(), asked="")
    found = choose(rows, curves)
    assert found.good[0] < found.lr
    (told,) = remarks(rows, found, sweep, 20, "c.yaml", TrainingConfig())
    assert told.problem.endswith(f"; {found.lr:g} is recommended; a lower one, with a warm-up, is safer")
    assert re.fullmatch(rf"--set training.lr=0.0001   # only if the loss jumps at {found.lr:g}", told.fix)


@pytest.mark.parametrize(
    ("tried", "kept"),
    [
        ([], []),
        ([(0, 1), (0, 2)], []),
        ([(0, 1), (0, 2), (0, 3), (1, 1)], [(0, 1), (0, 2), (0, 3)]),
        ([(s, lr) for s in (0, 1) for lr in (1, 2, 3)] + [(0, 4)], [(s, lr) for s in (0, 1) for lr in (1, 2, 3)]),
    ],
)
def test_of_an_interrupted_grid_whole_seeds_are_kept(tried: list[tuple[int, int]], kept: list[tuple[int, int]]) -> None:
    curves = [curve(float(lr), 0.5, seed) for seed, lr in tried]
    assert [(item.seed, int(item.lr)) for item in whole_seeds(curves, [1.0, 2.0, 3.0])] == kept


@pytest.mark.parametrize(("reached", "likely"), [(1.004, "all too high"), (0.999, "all too low")])
def test_a_loss_that_rises_at_every_rate_is_not_told_of_rates_too_low(reached: float, likely: str) -> None:
    curves = grid({1e-3: reached, 1e-2: reached})
    (found,) = refusals(grid_rows(curves), curves, SOUND, math.nan, "c.yaml")
    assert (found.code, found.evidence[-1].endswith(likely)) == ("XT-NO-LEARNING", True)
