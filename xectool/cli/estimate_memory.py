"""``xectool estimate-memory``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.completion import offered
from xectool.cli.options import JsonOption, SetOption, config_word, parse_count
from xectool.cli.render import AlreadyShown, Output, table, verdict_box
from xectool.errors import EXIT_BAD_RESULT, counted

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.memory_verdicts import MemoryEstimate

TOP = 10
PARTS = ("parameters", "buffers", "gradients", "optimizer", "ema", "inputs", "other")


def estimate_memory(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG", callback=config_word, help="YAML configuration; default: the quickstart's network."
        ),
    ] = None,
    set_: SetOption = None,
    events: Annotated[
        int | None,
        typer.Option(
            parser=parse_count,
            metavar="COUNT",
            help="Training events, and those predicted where no validation files tell; default: of the files, or 1M.",
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(parser=parse_count, metavar="COUNT", help="In place of data.batch_size.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|SIZE",
            help="a100-40gb, gh200-96gb, h200-141gb or a size, 40GB; default: the device here.",
            autocompletion=offered("gpus"),
        ),
    ] = None,
    max_batch: Annotated[bool, typer.Option("--max-batch", help="Also look for the largest batch that fits.")] = False,
    chunksize: Annotated[
        int | None, typer.Option(parser=parse_count, metavar="COUNT", help="In place of data.chunksize.")
    ] = None,
    num_workers: Annotated[int | None, typer.Option(min=0, help="In place of data.num_workers.")] = None,
    mask_ratio: Annotated[
        float | None, typer.Option(metavar="RATIO", help="Share of hidden sensors, 0.05 for 5 %.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="First measure one real step here; kept in ~/.cache/xectool.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Say what a training needs of device, host and disk, before anything is allocated."""
    from xectool import engine

    named = {"data.batch_size": batch_size, "data.chunksize": chunksize, "data.num_workers": num_workers}
    settings = [*(set_ or ()), *(f"{key}={value}" for key, value in named.items() if value is not None)]
    result = engine.estimate_memory(
        config,
        overrides=settings,
        events=events,
        gpu=gpu,
        max_batch=max_batch,
        mask_ratio=mask_ratio,
        calibrate=calibrate,
    )
    train = shlex.join(["xectool", "train", config or "CONFIG", *(f"--set={setting}" for setting in settings)])
    Output("estimate-memory", json).result(
        result.as_dict(),
        findings=result.findings,
        bad=not result.fits,
        human=lambda screen: _show(screen, result, train),
    )
    if not result.fits:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _show(screen: Console, result: MemoryEstimate, train: str) -> None:
    found, step = result.estimate, result.estimate.step
    at = step.split(step.peak_at())
    rows = [[name if name != "other" else "activations and temporaries", at[name] / 1e9] for name in PARTS]
    screen.print(
        table(f"at the peak, in {step.phase_of(step.peak_at())} ({found.device.name})", ["tensors", "GB"], rows)
    )
    beside = found.device.overhead(step)
    phases = [[name, peak / 1e9] for name, peak in step.phase_peaks().items() if name not in ("build", "transfer")]
    screen.print(table("peak by phase", ["phase", "GB"], phases))
    kept = list(step.saved_by_module().items())[:TOP]
    title = f"kept for the backward pass: {step.saved() / 1e9:.4g} GB; largest of {len(step.modules)} modules"
    screen.print(table(title, ["module", "MB"], [[name or "(network and loss)", size / 1e6] for name, size in kept]))
    screen.print(table("host", ["term", "GB"], [[name, size / 1e9] for name, size in found.host.items()]))
    screen.print(table("disk", ["term", "GB"], [[name, size / 1e9] for name, size in found.disk.items()]))
    remedies = [
        [item.remedy, f"{item.saves_bytes / 1e9:.3g}", " ".join(f"--set {setting}" for setting in item.settings)]
        for item in found.advice
        if item.settings and item.saves_bytes is not None and item.saves_bytes > 0
    ]
    title = "what would save memory of the device, in this order"
    screen.print(table(title, ["remedy", "GB", "setting"], remedies))
    screen.print(_box(result, beside, train))


def _host(result: MemoryEstimate) -> str:
    """Return what host and disk have to hold, and whether this machine's are what holds it."""
    found = result.estimate
    needed, disk = found.host_bytes / 1e9, sum(found.disk.values()) / 1e9
    if result.elsewhere:
        return (
            f"there is no such GPU here ({found.device.name}): only the step was judged. Host {needed:.4g} GB and disk "
            f"{disk:.4g} GB are needed where it is; machine's numbers: {result.calibration.where}"
        )
    least = min(result.limits, key=lambda name: result.limits[name])
    return (
        f"host {needed:.4g} GB of {result.limits[least] / 1e9:.4g} GB ({least}), disk {disk:.4g} GB of "
        f"{result.free_bytes / 1e9:.4g} GB free; machine's numbers: {result.calibration.where}"
    )


def _largest(result: MemoryEstimate) -> list[str]:
    """Return the line of the largest batch, where it was asked for."""
    most, device = result.estimate.max_batch, result.estimate.device
    if most is None:
        return []
    share = device.planned_bytes / device.total_bytes
    return [f"largest batch to propose, in {share:.0%} of it: {counted(most, 'event')}"]


def _box(result: MemoryEstimate, beside: int, train: str) -> object:
    found, step = result.estimate, result.estimate.step
    errors = [finding for finding in result.findings if finding.severity.value == "error"]
    total = f"{found.device.total_bytes / 1e9:.4g} GB of {found.device.name}"
    why = [
        f"for {result.events:,} training events ({result.counted_from})",
        f"tensors {found.device.tensors(step) / 1e9:.4g} GB, beside them {beside / 1e9:.3g} GB (context, workspaces as "
        f"on an H200; graph pools not measured), of {total}; a step may take 90 % of it; what is proposed takes 85 % "
        "where it can",
        f"largest single tensor {step.largest() / 1e9:.3g} GB; eager: a compiled step needs less",
        _host(result),
        *_largest(result),
        f"not for this network: batches of {result.older_batches[0]} on an A100 40GB and {result.older_batches[1]} on "
        "a GH200 96GB, which instructions of the older software name (legacy), are those of a smaller one",
        *found.notes,
    ]
    fitting = "the step fits; host and disk are another machine's" if result.elsewhere else "it fits"
    verdict = fitting if result.fits else "; ".join(error.problem for error in errors)
    fix = result.line_there if result.fits else errors[0].fix
    following = f"{train} {fix}" if fix.startswith("--set") else f"{fix}   # there" if result.fits and fix else fix
    return verdict_box(verdict, why, following, good=result.fits)
