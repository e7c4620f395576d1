"""``xectool lr-sweep``."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import ConfigArgument, DeviceOption, JsonOption, SetOption, parse_count
from xectool.cli.progress import watcher
from xectool.cli.render import AlreadyShown, Output, table, verdict_box
from xectool.cli.train_line import train_line
from xectool.errors import EXIT_BAD_RESULT, EXIT_INTERRUPTED, UsageError, counted

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.lr_sweeping import LrSweepResult, RateRow

BAR = 40
COLUMNS = ("lr", "first", "last", "decrease", "+-", "norm", "max norm", "bad", "verdict")
HOW_OF_FINAL = (
    "the middle of the rates within one error of the best of the longer run, so it may be one of them or lie between "
    "two; those within two errors may be as good. The first table only chose which ran on: what is best in few steps "
    "is often another rate"
)
SEEDS = 2  # sets of weights and batches, where nothing is said
HOW_OF_GRID = "the centre of the rates that did about as well, so it may lie between two that were tried"
"""The whole rule is in ``--json``."""


def lr_sweep(
    config: ConfigArgument,
    set_: SetOption = None,
    lrs: Annotated[
        str | None, typer.Option(metavar="LR,LR,…", help="Rates of a grid; default 1e-5,3e-5,1e-4,3e-4,1e-3.")
    ] = None,
    range_: Annotated[
        str | None, typer.Option("--range", metavar="LOW:HIGH", help="One run whose rate rises, e.g. 1e-6:1e-1.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            parser=parse_count,
            metavar="COUNT",
            help="Steps at each rate (40; at least 5), or of a ramp (100; at least 20).",
        ),
    ] = None,
    final_steps: Annotated[
        int | None,
        typer.Option(
            parser=parse_count,
            metavar="COUNT",
            help="Steps of the best rates of a grid, which then decide (5 x --steps); 0: the grid alone decides.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Sets of weights and batches, two or more.")] = SEEDS,
    ckpt: Annotated[
        str | None, typer.Option(metavar="PATH", help="Weights to start from; default: those of the seeds.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder for plots and all numbers; default: none are kept.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Put the recommended rate into CONFIG.")] = False,
    show_reference: Annotated[
        bool, typer.Option("--show-reference", help="Show the table of the older notes as well, with its corrections.")
    ] = False,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Try learning rates from the same weights over the same batches, and recommend one."""
    from xectool import engine

    rates = tuple(_number(word, "--lrs") for word in lrs.split(",")) if lrs is not None else ()
    with watcher(quiet=json) as observer:
        result = engine.lr_sweep(
            config,
            overrides=set_ or (),
            lrs=rates,
            ramp=None if range_ is None else _range(range_),
            steps=steps,
            final_steps=final_steps,
            seeds=seeds,
            ckpt=ckpt,
            device=device,
            write=write,
            output=output,
            show_reference=show_reference,
            observer=observer,
        )
    bad, said = result.recommended_lr is None, Output("lr-sweep", json)
    if result.interrupted and json:
        again = next(found.fix for found in result.findings if found.problem.startswith("interrupted"))
        said.interrupted(result.as_dict(), again, result.findings)
    else:
        settings = [*(set_ or ()), *([f"checkpoint.init_from={ckpt}"] if ckpt else [])]
        options = {"--lrs": lrs, "--range": range_, "--steps": steps, "--final-steps": final_steps, "--device": device}
        following = _following(result, config, settings, options | {"--seeds": seeds})
        said.result(
            result.as_dict(), findings=result.findings, bad=bad, human=lambda screen: _show(screen, result, following)
        )
    if bad or result.interrupted:
        raise AlreadyShown(EXIT_INTERRUPTED if result.interrupted else EXIT_BAD_RESULT)


def _number(word: str, option: str) -> float:
    try:
        return float(word)
    except ValueError:
        fix = "--lrs 1e-4,3e-4,1e-3" if option == "--lrs" else "--range 1e-6:1e-1"
        raise UsageError(f"'{word}' is no number", where=option, fix=fix) from None


def _range(text: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    if not colon:
        raise UsageError(f"'{text}' is no range", where="--range", fix="--range 1e-6:1e-1")
    return _number(low, "--range"), _number(high, "--range")


def _following(result: LrSweepResult, config: str, settings: Sequence[str], options: Mapping[str, object]) -> str:
    """Return the training at the recommended rate, with all that the sweep was called with, and how it is written."""
    keys = {setting.partition("=")[0] for setting in result.settings}
    kept = [setting for setting in settings if setting.partition("=")[0] not in keys]
    if result.written:
        return f"{train_line(config, kept)}   # {result.key} is written into {result.written}"
    train = train_line(config, kept, result.settings)
    if result.interrupted:
        return f"{train}   # nothing was written: the sweep was interrupted"
    sets = [word for setting in settings for word in ("--set", setting)]
    usual = {"--seeds": SEEDS}
    given = [str(word) for item in options.items() if item[1] != usual.get(item[0]) for word in item]
    again = shlex.join(("xectool", "lr-sweep", config, *sets, *given, "--write"))
    return f"{train}   # or: {again}"


def _show(screen: Console, result: LrSweepResult, following: str) -> None:
    rows, final = (*result.rows, *result.beyond), result.final_rows
    if rows:
        title = f"{len(rows)} {'intervals' if result.mode == 'ramp' else 'rates'}, {counted(result.seeds, 'seed')}"
        title = f"{title}, {result.steps} steps each; {result.start}{'; the longer run below decides' if final else ''}"
        screen.print(table(title, COLUMNS, [_cells(row, bool(final)) for row in rows]))
        screen.print("\n".join(_bars(rows, None if final else result.recommended_lr)), markup=False)
    if final:
        title = f"longer run of the best and those beside it, {counted(result.seeds, 'seed')}"
        screen.print(table(f"{title}, {result.final_steps} steps each", COLUMNS, [_cells(row) for row in final]))
        screen.print("\n".join(_bars(final, result.recommended_lr)), markup=False)
    if result.reference:
        screen.print(result.reference, markup=False)
    lr = result.recommended_lr
    if lr is None:
        first = result.findings[0]
        screen.print(verdict_box("no rate can be recommended", [first.problem], first.fix, good=False))
        return
    low, high = result.band or (lr, lr)
    how = HOW_OF_FINAL if final else HOW_OF_GRID if result.mode == "grid" else result.rule
    as_good = ", which may be as good" if low <= result.configured_lr <= high and result.configured_lr != lr else ""
    why = [_band(low, high, lr, result.seeds), f"configured now: {result.configured_lr:g}{as_good}", f"how: {how}"]
    screen.print(verdict_box(f"use {result.key}: {lr:g}", why, following, good=True))


def _band(low: float, high: float, lr: float, seeds: int) -> str:
    """Return between which rates the right one lies, as far as the seeds can tell."""
    if low == high:
        return f"each of the {seeds} seeds alone gives {lr:g} too" if seeds > 1 else "one seed: no error of it is known"
    return f"any rate from {low:g} to {high:g} may be as good: the seeds do not tell them apart"


def _cells(row: RateRow, decided_later: bool = False) -> list[object]:
    verdict = "stable" if decided_later and row.verdict == "optimal" else row.verdict  # what decides says which is best
    losses = (row.loss_start, row.loss_end, row.loss_decrease, row.loss_decrease_error)
    numbers = [f"{value:.3g}" for value in (row.lr, *losses, row.grad_norm_median, row.grad_norm_max)]
    return [*numbers, row.nonfinite_steps, verdict]


def _bars(rows: Sequence[RateRow], recommended: float | None) -> list[str]:
    """Return the terminal plot: a bar a rate, as long as the loss fell."""
    known = [row.loss_decrease for row in rows if math.isfinite(row.loss_decrease)]
    top = max((fall for fall in known if fall > 0), default=math.nan)
    near = None if recommended is None else min(rows, key=lambda row: abs(math.log(row.lr / recommended)))
    if math.isnan(top):
        return ["  the loss fell at no rate"]
    lines = [f"  how far the loss fell, {BAR} characters are {top:.3g}"]
    for row in rows:
        share = row.loss_decrease / top if math.isfinite(row.loss_decrease) else 0.0
        bar = "#" * round(BAR * min(1.0, max(0.0, share)))
        mark = f"  < use {recommended:g}" if row is near else "  (rose)" if share < 0 else ""
        lines.append(f"  {row.lr:8.2g} |{bar}{mark}")
    return lines
