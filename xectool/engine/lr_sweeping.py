"""``lr-sweep``: which learning rate, measured with the steps of the run itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xectool.config.load import read_config
from xectool.config.rates import key_of, settings_of
from xectool.config.root import RunConfig
from xectool.config.rules.path import network_rules
from xectool.config.serialize import inline_yaml
from xectool.engine.explanation import explain
from xectool.engine.lr_sweep_outputs import draw_sweep, edited, told_alone, write_rate
from xectool.engine.output_places import require_folder
from xectool.engine.training_run.start import start_from
from xectool.errors import UsageError, counted, in_shell
from xectool.findings import Finding, Severity
from xectool.training.lr_sweep.finals import LONGER, run_final
from xectool.training.lr_sweep.refusal import bad_batches, refusals, unscaled
from xectool.training.lr_sweep.remarks import cut_short, none_holds, remarks, unsure
from xectool.training.lr_sweep.rows import RateRow, with_optimal
from xectool.training.lr_sweep.runner import Sweeper
from xectool.training.lr_sweep.setup import sweep_parts
from xectool.training.lr_sweep.sweep import Sweep, sweep_grid, sweep_ramp
from xectool.training.process.progress import NullObserver, Observer
from xectool.training.stepping.parts import RunParts

__all__ = ["LrSweepResult", "RateRow", "lr_sweep"]

DEFAULT_RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
GRID_STEPS, RAMP_STEPS, FEWEST_STEPS, FEWEST_OF_RAMP = 40, 100, 5, 20  # F046
HIGHEST_RATE = 10.0  # bound of training.lr


@dataclass(frozen=True)
class LrSweepResult:
    """What a sweep found.

    Attributes:
        mode: ``grid`` or ``ramp``.
        rows: The rates that were asked for, the lowest first; of a ramp intervals of the rate.
        beyond: Rates tried above the default grid because its highest was the best.
        recommended_lr: The rate; None where the sweep cannot say.
        band: Lowest and highest rate that one seed or all recommend, or as good as the best within two errors.
        rule: How the rate was found.
        key: Configuration key it belongs to.
        settings: That key with the rate, and those that would lie on its wrong side, as ``key=value``.
        configured_lr: What that key says now.
        steps: Steps at each rate and seed.
        seeds: Sets of weights and batches that were run at every rate.
        start: Where the weights come from.
        inputs: Numbers of each input channel of the first batch.
        final_steps: Steps of the rates that ran on; 0 where none did.
        final_rows: The best rate of the grid and those beside it after these steps.
        plot: PNG; the PDF and ``lr_sweep.json`` lie beside it. None without ``--output``.
        written: Configuration the rate was written into, or None.
        interrupted: Whether Ctrl-C ended the grid or ramp before they were whole, so that there is no rate, or what
            is whole alone decides; nothing is written.
        reference: The table of the older notes with its corrections, where it was asked for.
        findings: Why there is no rate, or what to know about it.
    """

    mode: str
    rows: tuple[RateRow, ...]
    beyond: tuple[RateRow, ...]
    recommended_lr: float | None
    band: tuple[float, float] | None
    rule: str
    key: str
    configured_lr: float
    steps: int
    seeds: int
    start: str
    inputs: dict[str, dict[str, float]]
    final_steps: int = 0
    final_rows: tuple[RateRow, ...] = ()
    plot: str | None = None
    written: str | None = None
    interrupted: bool = False
    reference: str | None = None
    settings: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}


def lr_sweep(  # noqa: PLR0913  the function is the command: one argument an option
    config: str | Path,
    *,
    overrides: Sequence[str] = (),
    lrs: Sequence[float] = (),
    ramp: tuple[float, float] | None = None,
    steps: int | None = None,
    final_steps: int | None = None,
    seeds: int = 2,
    ckpt: str | Path | None = None,
    device: str | None = None,
    write: bool = False,
    output: str | Path | None = None,
    show_reference: bool = False,
    observer: Observer | None = None,
) -> LrSweepResult:
    """Sweep the learning rate of a configuration; nothing of it is changed without ``write``.

    Args:
        config: YAML file.
        overrides: ``key=value`` settings that go before the file's.
        lrs: Rates of a grid; by default 1e-5 to 1e-3, continued upwards while the highest is the best.
        ramp: Lowest and highest rate of a ramp, in place of a grid.
        steps: Steps at each rate (40; 5 or more), or of the ramp (100; 20 or more).
        final_steps: Steps of the best rates of a grid, which decide (five times ``steps``); 0: the grid alone decides.
        seeds: Sets of weights and batches, at least two.
        ckpt: Weights to start from, as ``checkpoint.init_from``.
        device: Device that goes before the configuration's.
        write: Put the recommended rate into the file.
        output: Folder for plots and all numbers.
        show_reference: Add the table of the older notes, with its corrections.
        observer: Receives progress.

    Raises:
        XecError: Anything the user can act on.
        KeyboardInterrupt: Before a seed has all rates of a grid, or ten steps of a ramp; later what is found is kept.
    """
    rates, length = _checked(lrs, ramp, steps, seeds)
    final = _final_steps(final_steps, ramp, length)
    start = [] if ckpt is None else [f"checkpoint.init_from={inline_yaml(str(Path(ckpt).expanduser().absolute()))}"]
    settings = [*overrides, *start]
    loaded = read_config(config, settings)
    loaded = loaded.require(network_rules(loaded.config))
    command = " ".join([in_shell(config), *(f"--set {in_shell(setting)}" for setting in settings)])
    if output is not None:  # what cannot be written is said before the sweep, not after it
        require_folder(output, "--output", "lr_sweep")
    if write:
        edited(Path(config), {key_of(loaded.config.training): DEFAULT_RATES[0]})
    watching = observer or NullObserver()
    with sweep_parts(loaded.config, device) as parts:
        sweeper = _sweeper(parts, length, watching)
        watching.phase("sweep", seeds * length * (1 if ramp else len(rates)))
        if ramp is not None:
            sweep = sweep_ramp(sweeper, *ramp, seeds)
        else:
            sweep = sweep_grid(sweeper, rates, seeds, extend=not lrs, begun=watching.phase)
        sweep, doubts, interrupted = _with_final(sweep, sweeper, (seeds, final), command, watching)
    done = len({curve.seed for curve in sweep.curves}) or seeds
    result = _result(sweep, loaded.config, command, length, done, doubts, ramp is not None)
    curves, rows = {"curves": sweep.curves, "final_curves": sweep.final_curves}, (*result.rows, *result.beyond)
    drawn = None if output is None else draw_sweep(result.as_dict(), rows, curves, Path(output).expanduser())
    sure = write and result.settings and not interrupted
    written = write_rate(Path(config), result.settings, settings) if sure else None
    reference = explain("lr-sweep").text if show_reference else None
    added = {
        "findings": (*result.findings, *told_alone(written, overrides), *loaded.findings),
        "plot": drawn,
        "written": written,
        "interrupted": interrupted,
    }
    return LrSweepResult(**{**vars(result), **added, "reference": reference})


def _with_final(
    sweep: Sweep, sweeper: Sweeper, size: tuple[int, int], command: str, observer: Observer
) -> tuple[Sweep, tuple[Finding, ...], bool]:
    """Return a sweep, what speaks against it, and whether it was interrupted.

    A grid of several rates that nothing speaks against has a final. What the grid found is not lost with it.

    Args:
        sweep: What came out.
        sweeper: Took its steps.
        size: Seeds, and steps of the final; 0 for none.
        command: Configuration and settings as typed.
        observer: Receives progress.
    """
    seeds, steps = size
    nothing = sweep.interrupted and sweep.choice is None
    doubts = () if nothing else _doubts(sweep, sweeper.parts.baseline.objective, command)
    if sweep.interrupted:
        return sweep, (*doubts, cut_short(sweep, command, sweeper.steps, *size)), True
    if not steps or sweep.choice is None or len(sweep.rows) < 2 or _refuses(doubts):
        return sweep, doubts, False
    try:
        sweep = run_final(sweeper, sweep, seeds, steps, observer.phase)
    except KeyboardInterrupt:
        return sweep, (*doubts, cut_short(sweep, command, sweeper.steps, *size)), True
    return sweep, doubts if sweep.choice else (*doubts, none_holds(sweep, command)), False


def _checked(
    lrs: Sequence[float], ramp: tuple[float, float] | None, steps: int | None, seeds: int
) -> tuple[tuple[float, ...], int]:
    """Return the rates of the grid, rising, and the number of steps."""
    length = steps if steps is not None else GRID_STEPS if ramp is None else RAMP_STEPS
    fewest, usual = (FEWEST_STEPS, GRID_STEPS) if ramp is None else (FEWEST_OF_RAMP, RAMP_STEPS)
    if length < fewest:
        needed = f"say nothing about a rate: {'each rate' if ramp is None else 'a ramp'} takes {fewest} or more"
        raise UsageError(f"{counted(length, 'step')} {needed}", where="--steps", fix=f"--steps {usual}")
    if seeds < 2:
        said = "one seed cannot tell a difference of rates from one of weights"
        raise UsageError(said, where="--seeds", fix="--seeds 2")
    _require_rates((*lrs, *(ramp or ())))
    if ramp is not None:
        _require_ramp(ramp, lrs)
    return tuple(sorted(set(lrs))) or DEFAULT_RATES, length


def _final_steps(asked: int | None, ramp: object, length: int) -> int:
    if asked is None:
        return 0 if ramp else LONGER * length
    if asked and (ramp or asked <= length):
        raise UsageError(
            "a ramp has no final" if ramp else f"a final of {asked} steps is no longer than the grid's {length}",
            where="--final-steps",
            fix="leave out --final-steps" if ramp else f"--final-steps {LONGER * length}",
        )
    return asked


def _refuses(findings: Sequence[Finding]) -> bool:
    return any(found.severity is Severity.ERROR for found in findings)


def _require_rates(rates: Sequence[float]) -> None:
    wrong = [lr for lr in rates if not 0 < lr <= HIGHEST_RATE]
    if wrong:
        raise UsageError(f"{wrong[0]:g} is no learning rate", where="--lrs, --range", fix="--lrs 1e-4,3e-4,1e-3")


def _require_ramp(ramp: tuple[float, float], lrs: Sequence[float]) -> None:
    if lrs:
        raise UsageError("a grid and a ramp at once", where="--lrs, --range", fix="leave out one of the two")
    if not ramp[0] * 10 <= ramp[1]:
        raise UsageError("a ramp spans a factor of ten or more", where="--range", fix="--range 1e-6:1e-1")


def _sweeper(parts: RunParts, steps: int, observer: Observer) -> Sweeper:
    path = parts.config.checkpoint.init_from
    said: list[str] = []

    def start() -> None:
        # The same remarks come with each seed; they are worth one reading.
        start_from(parts, Path(str(path)).expanduser(), NullObserver() if said else observer)
        said.append(str(path))

    def taken() -> None:
        observer.advanced(1, {})

    return Sweeper(parts, steps, start if path else lambda: None, on_step=taken)


def _result(  # noqa: PLR0913  what the parts of the result are made of
    sweep: Sweep, config: RunConfig, path: str, steps: int, seeds: int, findings: tuple[Finding, ...], ramp: bool
) -> LrSweepResult:
    training, choice = config.training, None if _refuses(findings) else sweep.choice
    rows = sweep.rows if ramp else with_optimal(sweep.rows, choice.lr if choice else None)
    asked = rows if ramp else tuple(row for row in rows if row.lr in sweep.rates)
    key = key_of(training)
    swept = LrSweepResult(
        mode="ramp" if ramp else "grid",
        rows=asked,
        beyond=tuple(row for row in rows if row not in asked),
        recommended_lr=None,
        band=None,
        rule="",
        key=key,
        configured_lr=float(training.max_lr or 0.0 if key.endswith("max_lr") else training.lr),
        steps=steps,
        seeds=seeds,
        start=config.checkpoint.init_from or f"weights of seeds {training.seed} and on",
        inputs=sweep.inputs.channels,
        final_steps=len(sweep.final_curves[0].losses) if sweep.final_curves else 0,
        final_rows=sweep.final_rows,
        findings=findings,
    )
    if choice is None:
        return swept
    return replace(
        swept,
        recommended_lr=choice.lr,
        band=choice.whole_band,
        rule=choice.rule,
        settings=tuple(f"{name}={lr:g}" for name, lr in settings_of(training, choice.lr).items()),
        findings=(*findings, *remarks(rows, choice, sweep, steps, path, training)),
    )


def _doubts(sweep: Sweep, baseline: float, path: str) -> tuple[Finding, ...]:
    """Return why a sweep recommends nothing, as far as it does not, and the batches that were bad."""
    if not sweep.curves:
        return (unscaled(sweep.inputs, path),)
    findings = refusals(sweep.rows, sweep.curves, sweep.inputs, baseline, path, sweep.asked)
    if not findings and sweep.choice is None:
        findings = (unsure(sweep, path),)
    if any(found.code == "XT-NAN-DATA" for found in findings):
        return findings
    return findings + bad_batches(sweep.curves, path)
