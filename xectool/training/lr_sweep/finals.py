"""The rates a grid leaves over run on: a rate that falls fastest in few steps is too high for many.

In 40 steps the best rate of this project's problems is two to four times that of 200 (`docs/benchmarks.md`), by a
factor that differs from problem to problem, so that it is measured rather than assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from xectool.training.lr_sweep.choice import (
    Choice,
    as_good_as,
    band_of,
    decreases_of,
    missed_by,
    rounded,
)
from xectool.training.lr_sweep.curves import Curve
from xectool.training.lr_sweep.rows import ERRORS, EXPLODES, grid_rows
from xectool.training.lr_sweep.runner import Sweeper
from xectool.training.lr_sweep.sweep import Sweep

LONGER = 5  # steps of the final over those of the grid
FINALISTS = 3
MOST_BELOW = 2  # rates added below while the lowest is the best
LEAST_ERROR = 0.02  # of the largest decrease: closer rates are told apart by the draw of the weights
LEAST_OF_LOSS = 0.05  # of the lowest loss, where that is less: most of a decrease may be that of the first few steps
FINAL_RULE = (
    "the centre, on the scale of the logarithm, of the best rates of the grid and those below after more steps, each "
    "counted with exp(-z^2 / 2) where z is by how many errors its last loss misses the lowest; rates that explode "
    "do not count"
)


def run_final(
    sweeper: Sweeper, sweep: Sweep, seeds: int, steps: int, begun: Callable[[str, int], None] = lambda what, steps: None
) -> Sweep:
    """Run the highest of the best rates of a grid and the next lower ones for more steps, and choose among them.

    While the lowest of them is the best, or none holds, one more below is added, at most two.

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
    for _ in range(MOST_BELOW):
        choice = choose_final(curves)
        if choice is not None and choice.best > rates[0]:
            break
        lower = below(rates[0], sweep)
        begun(f"final, also {lower:g}", seeds * steps)
        for number, own in enumerate(windows):
            known = next(curve for curve in curves if curve.seed == number).start_losses
            curves += longer.grid([lower], number, own, known)
        rates = [lower, *rates]
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


def choose_final(curves: Sequence[Curve]) -> Choice | None:
    """Return the rate of a final; None where every rate explodes."""
    sound = {row.lr for row in grid_rows(curves) if row.verdict != EXPLODES and math.isfinite(row.loss_decrease)}
    usable = [curve for curve in curves if curve.lr in sound and len(curve.gains)]
    if not usable:
        return None
    good = tuple(lr for lr, errors in _errors_behind(usable).items() if errors <= ERRORS)
    return Choice(rounded(_centre(usable)), band_of(usable, _centre), FINAL_RULE, good, _best(usable))


def _best(curves: Sequence[Curve]) -> float:
    decreases = decreases_of(curves)
    return max(decreases, key=lambda lr: decreases[lr])


def _centre(curves: Sequence[Curve]) -> float:
    """Return the centre of the rates, each counted by how likely it is the best one."""
    behind = _errors_behind(curves)
    weights = [math.exp(-0.5 * errors**2) for errors in behind.values()]
    return math.exp(float(np.average([math.log(lr) for lr in behind], weights=weights)))


def _errors_behind(curves: Sequence[Curve]) -> dict[float, float]:
    """Return by how many errors the last loss of each rate misses the lowest, the lowest rate first."""
    best = _best(curves)
    least = LEAST_ERROR * abs(decreases_of(curves)[best])
    reached = np.concatenate([curve.losses[-len(curve.start_losses) :] for curve in curves if curve.lr == best])
    if np.nanmin(reached) > 0:  # a sum with learnt weights of its terms may be anything
        least = min(least, LEAST_OF_LOSS * float(np.nanmean(reached)))
    missed = {lr: missed_by(lr, best, curves) for lr in decreases_of(curves)}
    return {lr: miss / max(error, least, 1e-30) for lr, (miss, error) in missed.items()}
