"""``xectool estimate-memory``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.completion import offered
from xectool.cli.options import JsonOption, SetOption, config_word, parse_count
from xectool.cli.render import AlreadyShown, Output, table, verdict_box
from xectool.errors import EXIT_BAD_RESULT, counted

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.memory_verdicts import MemoryEstimate
    from xectool.findings import Finding

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
        findings=result.findings if json else _below(result),
        bad=not result.fits,
        human=lambda screen: _show(screen, result, train),
    )
    if not result.fits:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _below(result: MemoryEstimate) -> tuple[Finding, ...]:
    """Return the findings that the box on top does not tell: those behind the first one on what to do."""
    return tuple(found for found in result.findings if found is not result.first)


def _show(screen: Console, result: MemoryEstimate, train: str) -> None:
    screen.print(_box(result, train))
    found, step = result.estimate, result.estimate.step
    at = step.split(step.peak_at())
    rows = [[name if name != "other" else "activations and temporaries", at[name] / 1e9] for name in PARTS]
    screen.print(
        table(f"at the peak, in {step.phase_of(step.peak_at())} ({found.device.name})", ["tensors", "GB"], rows)
    )
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
    title = "what would save memory of the device, in this order" + ", were it too little" * result.fits_device
    screen.print(table(title, ["remedy", "GB", "setting"], remedies))
    for line in _details(result):
        screen.print(line, markup=False)


def _box(result: MemoryEstimate, train: str) -> object:
    first = result.first
    why = [*_device(result), *_host(result), f"for {result.events:,} training events ({result.counted_from})"]
    if first is None:
        return verdict_box("it fits", why, "", good=True)
    told = f"{first.code}: {first.problem}"
    if result.fits:
        return verdict_box("the step fits; host and disk are another machine's", [told, *why], first.fix, good=True)
    fix = f"{train} {first.fix}" if first.fix.startswith("--set") else first.fix
    return verdict_box(told, why, fix, good=False)


def _device(result: MemoryEstimate) -> Iterator[str]:
    """Yield what the step takes of a GPU that suffices; of another one the verdict tells it."""
    device, most = result.estimate.device, result.estimate.max_batch
    if not result.fits_device:
        return
    if device.is_gpu:
        needed, total = device.needed(result.estimate.step) / 1e9, device.total_bytes / 1e9
        yield f"device {needed:.4g} GB of {total:.4g} GB ({device.name}), of which a step may take 90 %"
    if most is not None:
        share = device.planned_bytes / device.total_bytes
        more = f" (the training has {result.events:,})" if most > result.events else ""
        yield f"largest batch to propose, in {share:.0%} of it: {counted(most, 'event')}{more}"


def _host(result: MemoryEstimate) -> Iterator[str]:
    """Yield what is taken of host and disk, where this machine's are what holds it."""
    if result.elsewhere:
        return
    least = min(result.limits, key=lambda name: result.limits[name])
    yield (
        f"host {result.estimate.host_bytes / 1e9:.4g} GB of {result.limits[least] / 1e9:.4g} GB ({least}), "
        f"disk {sum(result.estimate.disk.values()) / 1e9:.4g} GB of {result.free_bytes / 1e9:.4g} GB free"
    )


def _details(result: MemoryEstimate) -> list[str]:
    """Return what else the numbers rest on."""
    found, step = result.estimate, result.estimate.step
    tensors, beside = found.device.tensors(step) / 1e9, found.device.overhead(step) / 1e9
    of_gpu = (
        f"tensors {tensors:.4g} GB, beside them {beside:.3g} GB (context, workspaces as on an H200; graph pools not "
        "measured); what is proposed takes 85 % of the device where it can"
    )
    return [
        *[of_gpu] * found.device.is_gpu,
        f"largest single tensor {step.largest() / 1e9:.3g} GB; eager: a compiled step needs less",
        f"machine's numbers: {result.calibration.where}",
        f"not for this network: batches of {result.older_batches[0]} on an A100 40GB and {result.older_batches[1]} on "
        "a GH200 96GB, which instructions of the older software name: its network was smaller",
        *found.notes,
    ]
