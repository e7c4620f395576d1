"""The rates a grid leaves over run on: a rate that falls fastest in few steps is too high for many.

In 40 steps the best rate of this project's problems is two to four times that of 200 (`docs/benchmarks.md`), by a
factor that differs from problem to problem, so that it is measured rather than assumed.

Which rate is best differs from one set of weights to the next, and two or three of them do not say by how much: a
scatter of so few values is often small by chance. So what counts is the paired difference to the best rate, seed by
seed (same weights, same batches); the variance of its mean is that between the seeds, and as one degree of freedom more
that of the steps, or the least that weights are known to make; and Student's distribution says how many errors have the
probability of one or two errors whose width is known. Where the best rate is only known to be one of several, their
geometric middle has the smallest worst ratio to it, so it is recommended for those within one error; the band holds
those within two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import ndtr, stdtrit

from xectool.training.lr_sweep.choice import (
    Choice,
    as_good_as,
    band_of,
    beyond,
    decreases_of,
    differences,
    rounded,
)
from xectool.training.lr_sweep.curves import Curve, mean_and_errors
from xectool.training.lr_sweep.rows import ERRORS, EXPLODES, RateRow, grid_rows
from xectool.training.lr_sweep.runner import Sweeper
from xectool.training.lr_sweep.sweep import HIGHEST, Sweep

LONGER = 5  # steps of the final over those of the grid
FINALISTS = 3
MOST_MORE = 2  # rates added while the lowest or the highest is the best
LEAST_ERROR = 0.02  # of the largest decrease: closer rates are told apart by the draw of the weights
LEAST_OF_LOSS = 0.05  # of the lowest loss, where that is less: most of a decrease may be that of the first few steps
FINAL_RULE = (
    "the geometric middle of the rates about the best one whose last loss after more steps is within one error of the "
    "lowest: that of the difference between seeds, times Student's factor for so few of them; what explodes does not "
    "count"
)


def run_final(
    sweeper: Sweeper, sweep: Sweep, seeds: int, steps: int, begun: Callable[[str, int], None] = lambda what, steps: None
) -> Sweep:
    """Run the best rates of a grid for more steps, and choose among them.

    While the lowest of them is the best, or none holds, one more below is added, and one above while the highest is; at
    most two.

    Args:
        sweeper: Took the steps of the grid.
        sweep: The grid; it has a choice.
        seeds: Number of sets of weights and batches.
        steps: Steps of each rate.
        begun: Is told what begins, and its steps.

    Returns:
        The sweep with the final; without a choice where every rate explodes.
    """
    assert sweep.choice is not None
    longer = replace(sweeper, steps=steps)
    windows = [longer.windows(number, seeds) for number in range(seeds)]
    for own in windows:
        own.first()
    rates = finalists(sweep)
    begun("final", len(rates) * seeds * steps)
    curves = [curve for number, own in enumerate(windows) for curve in longer.grid(rates, number, own)]
    for _ in range(MOST_MORE):
        lr = one_more(choose_final(curves), rates, sweep)
        if lr is None:
            break
        begun(f"final, also {lr:g}", seeds * steps)
        for number, own in enumerate(windows):
            known = next(curve for curve in curves if curve.seed == number).start_losses
            curves += longer.grid([lr], number, own, known)
        rates = sorted((lr, *rates))
    return replace(sweep, final_curves=tuple(curves), final_rows=grid_rows(curves), choice=choose_final(curves))


def finalists(sweep: Sweep) -> list[float]:
    """Return the best rate of a grid, the next higher ones that are as good, and lower ones, rising, if any."""
    assert sweep.choice is not None
    best = sweep.choice.best
    sound = {row.lr for row in sweep.rows if row.verdict != EXPLODES and math.isfinite(row.loss_decrease)}
    highest = as_good_as(best, [curve for curve in sweep.curves if curve.lr in sound | {best}])[-1]
    rates = sorted({row.lr for row in sweep.rows if row.lr <= highest})
    return rates[: rates.index(best) + FINALISTS][-FINALISTS:]


def below(lowest: float, sweep: Sweep) -> float:
    """Return the next lower rate of the grid; a third where there is none."""
    return max((row.lr for row in sweep.rows if row.lr < lowest), default=rounded(lowest / 3.0))


def above(rates: Sequence[float], sweep: Sweep) -> float | None:
    """Return the next higher rate of the grid, or one beyond it; None where that explodes or no grid goes so high.

    A grid of rates that were asked for is not gone beyond.

    Args:
        rates: Those of the final, rising.
        sweep: The grid.
    """
    higher = min((row for row in sweep.rows if row.lr > rates[-1]), key=lambda row: row.lr, default=None)
    if higher is not None:
        return higher.lr if _holds(higher) else None
    lr = rounded(beyond(rates))
    return lr if lr <= HIGHEST and not sweep.asked else None


def one_more(choice: Choice | None, rates: Sequence[float], sweep: Sweep) -> float | None:
    """Return the rate beyond the end of a final at which its best one lies; None where that lies between others.

    Args:
        choice: What the final says so far; None where every rate explodes, which a lower one may not.
        rates: Those of the final, rising.
        sweep: The grid.
    """
    if choice is None or choice.best == rates[0]:
        return below(rates[0], sweep)
    return above(rates, sweep) if choice.best == rates[-1] else None


def choose_final(curves: Sequence[Curve]) -> Choice | None:
    """Return the rate of a final; None where every rate explodes."""
    sound = {row.lr for row in grid_rows(curves) if _holds(row)}
    usable = [curve for curve in curves if curve.lr in sound and len(curve.gains)]
    if not usable:
        return None
    return Choice(
        rounded(_middle(usable)), band_of(usable, _middle), FINAL_RULE, _within(ERRORS, usable), _best(usable)
    )


def _holds(row: RateRow) -> bool:
    return row.verdict != EXPLODES and math.isfinite(row.loss_decrease)


def _best(curves: Sequence[Curve]) -> float:
    decreases = decreases_of(curves)
    return max(decreases, key=lambda lr: decreases[lr])


def _middle(curves: Sequence[Curve]) -> float:
    """Return the geometric middle of the rates about the best that are all within one error of it."""
    near, best = set(_within(1.0, curves)), _best(curves)
    rates = sorted(decreases_of(curves))
    first = last = rates.index(best)
    while first > 0 and rates[first - 1] in near:
        first -= 1
    while last < len(rates) - 1 and rates[last + 1] in near:
        last += 1
    return math.sqrt(rates[first] * rates[last])


def _within(errors: float, curves: Sequence[Curve]) -> tuple[float, ...]:
    """Return the rates whose last loss misses the lowest by at most so many errors, rising, the best among them.

    Args:
        errors: Of a known width; Student's distribution says how many of an estimated one have their probability.
        curves: Of all rates.
    """
    best, least, found = _best(curves), _least_error(curves), list[float]()
    for lr in decreases_of(curves):
        groups = [group for group in differences(lr, best, curves) if len(group)]
        missed, steps_error, seeds_error = mean_and_errors(groups)
        freedom = max(1, len(groups))
        known = (len(groups) - 1) * seeds_error**2 + max(steps_error, least) ** 2
        if lr == best or missed <= stdtrit(freedom, ndtr(errors)) * math.sqrt(known / freedom):
            found.append(lr)
    return tuple(found)


def _least_error(curves: Sequence[Curve]) -> float:
    """Return the least error of a difference: what the draw of the weights makes."""
    best = _best(curves)
    least = LEAST_ERROR * abs(decreases_of(curves)[best])
    reached = np.concatenate([curve.losses[-len(curve.start_losses) :] for curve in curves if curve.lr == best])
    if np.nanmin(reached) > 0:  # a sum with learnt weights of its terms may be anything
        least = min(least, LEAST_OF_LOSS * float(np.nanmean(reached)))
    return least
