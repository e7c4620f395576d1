"""A whole sweep: seeds, rates, and one more rate where the best one lies at the upper edge of the grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from xectool.training.lr_sweep.choice import Choice, beyond, choose, rounded
from xectool.training.lr_sweep.curves import Curve
from xectool.training.lr_sweep.ramp import FEWEST, choose_ramp, ramp_rates, ramp_rows
from xectool.training.lr_sweep.refusal import InputFacts, input_facts
from xectool.training.lr_sweep.rows import EXPLODES, RateRow, grid_rows
from xectool.training.lr_sweep.runner import Sweeper
from xectool.training.lr_sweep.windows import SharedWindows

HIGHEST = 1.2e-2  # the configuration warns above 1e-2; no grid is continued beyond it
MOST_BEYOND = 3


@dataclass(frozen=True)
class Sweep:
    """What came out.

    Attributes:
        rates: Rates that were asked for; of a ramp that of each step.
        inputs: Scale of the first batch of the seeds, the worst of them.
        asked: Option that asks for the same rates, with a space before it; empty for the rates of the default.
        curves: All curves; empty where the inputs are not on the network's scale.
        rows: Their table, rates beyond the grid included.
        choice: What the rule says, whether or not the curves can be used; None where it says nothing.
        final_curves: Those of the rates that ran on for more steps; empty without a final.
        final_rows: Their table.
        interrupted: Whether Ctrl-C ended grid or ramp: there are the seeds that were whole by then, of a ramp else the
            rates that the first one has reached, and no choice unless all seeds were whole.
        is_ramp: Whether the rate rose within each curve.
    """

    rates: tuple[float, ...]
    inputs: InputFacts
    asked: str = field(default="", kw_only=True)
    curves: tuple[Curve, ...] = ()
    rows: tuple[RateRow, ...] = ()
    choice: Choice | None = field(default=None)
    final_curves: tuple[Curve, ...] = ()
    final_rows: tuple[RateRow, ...] = ()
    interrupted: bool = False
    is_ramp: bool = False


def sweep_grid(
    sweeper: Sweeper,
    rates: Sequence[float],
    seeds: int,
    extend: bool,
    begun: Callable[[str, int], None] = lambda what, steps: None,
) -> Sweep:
    """Sweep a grid of rates, each from the same weights over the same batches.

    Args:
        sweeper: Takes the steps.
        rates: Rising.
        seeds: Number of sets of weights and batches.
        extend: Go on above the grid while the highest rate is the best.
        begun: Is told of each rate above the grid, and of its steps.

    Raises:
        KeyboardInterrupt: Before one seed had all rates; later the sweep is returned as far as it came.
    """
    windows = [sweeper.windows(number, seeds) for number in range(seeds)]
    inputs, hopeless = _inputs(sweeper, windows)
    asked = "" if extend else f" --lrs {','.join(f'{lr:g}' for lr in rates)}"
    if hopeless:
        return Sweep(tuple(rates), inputs)
    curves: list[Curve] = []
    try:
        _run_grid(sweeper, rates, windows, extend, begun, curves)
    except KeyboardInterrupt:
        curves = whole_seeds(curves, rates)
        if not curves:
            raise
        if len({curve.seed for curve in curves}) < seeds:
            return Sweep(tuple(rates), inputs, tuple(curves), grid_rows(curves), asked=asked, interrupted=True)
        return replace(_judged(rates, inputs, curves, asked), interrupted=True)
    return _judged(rates, inputs, curves, asked)


def _judged(rates: Sequence[float], inputs: InputFacts, curves: Sequence[Curve], asked: str) -> Sweep:
    rows = grid_rows(curves)
    usable = any(row.verdict != EXPLODES and row.loss_decrease > 0 for row in rows)
    choice = choose(rows, curves) if usable else None
    return Sweep(tuple(rates), inputs, tuple(curves), rows, choice, asked=asked)


def whole_seeds(curves: Sequence[Curve], rates: Sequence[float]) -> list[Curve]:
    """Return the curves of the seeds that have all of some rates, at rates that each of them has."""
    tried = {seed: {curve.lr for curve in curves if curve.seed == seed} for seed in {curve.seed for curve in curves}}
    whole = {seed: own for seed, own in tried.items() if own.issuperset(rates)}
    common = set[float]().union(*whole.values()).intersection(*whole.values())
    return [curve for curve in curves if curve.seed in whole and curve.lr in common]


def _run_grid(
    sweeper: Sweeper,
    rates: Sequence[float],
    windows: Sequence[SharedWindows],
    extend: bool,
    begun: Callable[[str, int], None],
    curves: list[Curve],
) -> None:
    """Add the curves of a grid to a list, each as soon as it is there, which an interrupt leaves."""
    for number, own in enumerate(windows):
        curves.extend(sweeper.grid(rates, number, own))
    tried = list(rates)
    while extend and len(tried) < len(rates) + MOST_BEYOND and _best_is_last(grid_rows(curves)):
        lr = rounded(beyond(tried))
        if lr > HIGHEST:
            break
        begun(f"sweep, also {lr:g}", len(windows) * sweeper.steps)
        for number, own in enumerate(windows):
            known = next(curve for curve in curves if curve.seed == number).start_losses
            curves.extend(sweeper.grid([lr], number, own, known))
        tried.append(lr)


def sweep_ramp(sweeper: Sweeper, low: float, high: float, seeds: int) -> Sweep:
    """Let the rate rise from ``low`` to ``high`` over the steps, once a seed.

    Raises:
        KeyboardInterrupt: Before the first seed had enough steps to be read; later the sweep is returned as far as it
            came, without a choice unless all seeds are whole: those that are, or else the rates the first has reached.
    """
    rates = ramp_rates(low, high, sweeper.steps)
    windows = [sweeper.windows(number, seeds) for number in range(seeds)]
    inputs, hopeless = _inputs(sweeper, windows)
    if hopeless:
        return Sweep(tuple(rates), inputs)
    sweep, curves = Sweep(tuple(rates), inputs, asked=f" --range {low:g}:{high:g}", is_ramp=True), list[Curve]()
    interrupted = False
    for number, own in enumerate(windows):
        curve, interrupted = sweeper.ramp(rates, number, own)
        if curve is not None and len(curve.losses) == len(rates):
            curves.append(curve)
        if interrupted and len(curves) < seeds:
            return _cut_ramp(replace(sweep, interrupted=True), curves, curve)
    rows, choice = ramp_rows(rates, curves), choose_ramp(rates, curves)
    return replace(sweep, curves=tuple(curves), rows=rows, choice=choice, interrupted=interrupted)


def _cut_ramp(sweep: Sweep, whole: Sequence[Curve], cut: Curve | None) -> Sweep:
    """Return a sweep with the seeds that are whole, or without any with the rates that the first one has reached."""
    curves = tuple(whole) or ((cut,) if cut is not None and len(cut.losses) >= FEWEST else ())
    if not curves:
        raise KeyboardInterrupt
    rates = sweep.rates[: len(curves[0].losses)]
    return replace(sweep, rates=rates, curves=curves, rows=ramp_rows(rates, curves))


def _inputs(sweeper: Sweeper, windows: Sequence[SharedWindows]) -> tuple[InputFacts, bool]:
    """Return the worst first batch of the seeds, and whether no step is worth taking on such data."""
    found = [input_facts(sweeper.parts, own.first()) for own in windows]
    worst = max(found, key=lambda facts: ("ok", "warning", "error").index(facts.level))
    return worst, worst.level == "error" or all(facts.empty for facts in found)


def _best_is_last(rows: Sequence[RateRow]) -> bool:
    sound = [row for row in rows if row.verdict != EXPLODES and row.loss_decreasing]
    return bool(sound) and max(sound, key=lambda row: row.loss_decrease) is rows[-1]
