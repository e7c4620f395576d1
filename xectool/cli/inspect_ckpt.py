"""``xectool inspect-ckpt``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import JsonOption, SetOption, checkpoint_word, config_word
from xectool.cli.render import AlreadyShown, Output, plain, table
from xectool.errors import EXIT_BAD_RESULT, counted

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.inspection import CheckpointInspected

MEBI = 1024.0**2
LATEST_S = 4e9  # of the epoch, the year 2096
SHOWN = 40


def inspect_ckpt(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CKPT",
            callback=checkpoint_word,
            help="Checkpoint of ours or another's, .safetensors, TorchScript, .onnx.",
        ),
    ],
    config: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG", callback=config_word, help="Say what each key of this configuration would do to a resume."
        ),
    ] = None,
    set_: SetOption = None,
    compare: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Compare tensor by tensor; exit code 1 where they differ.")
    ] = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    extract: Annotated[str | None, typer.Option(metavar="encoder", help="Write this part to --output.")] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="File for --extract: .pt or .safetensors.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say what a checkpoint is, whether it is sound, and what it is fit for; nothing in it is ever run."""
    from xectool import engine

    result = engine.inspect_ckpt(
        checkpoint,
        config=config,
        overrides=set_ or (),
        compare_with=compare,
        tensors=tensors,
        extract=extract,
        output=output,
    )
    Output("inspect-ckpt", json).result(
        result.as_dict(), findings=result.findings, bad=result.is_bad, human=lambda screen: _show(screen, result)
    )
    if result.is_bad:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _show(screen: Console, result: CheckpointInspected) -> None:
    from rich.markup import escape

    style = "bold red" if result.is_bad else "bold green"
    screen.print(f"[bold]Verdict[/]  [{style}]{escape(result.verdict)}[/]")
    for number, reason in enumerate(result.why):
        screen.print(f"[bold]{'Why' if not number else '   '}[/]      {escape(reason)}")
    screen.print(f"[bold]Next[/]     [green]{escape(result.next)}[/]")
    if result.extracted is not None:
        screen.print(f"written: {result.extracted}", markup=False)
    screen.print(table(result.path, ["what", "value"], _facts(result)))
    sections = [[part.name, part.tensors, part.numbers, part.bytes / MEBI] for part in result.sections[:SHOWN]]
    screen.print(table("sections", ["section", "tensors", "numbers", "MiB"], sections))
    for title, columns, rows in _tables(result):
        screen.print(f"[bold]{escape(title)}[/]")
        for line in _aligned(columns, rows):
            screen.print(line, markup=False)


def _course(result: CheckpointInspected) -> list[object]:
    """Return the row of epoch and step; ours store the epoch they go on with."""
    if result.format == "xectool" and result.epoch is not None:
        return ["epochs done, step", f"{max(0, result.epoch - 1)}, {_or_dash(result.step)}"]
    return ["epoch, step", f"{_or_dash(result.epoch)}, {_or_dash(result.step)}"]


def _counted(result: CheckpointInspected) -> list[object]:
    """Return the row of parameters; where nothing tells them from buffers, of all numbers."""
    if result.buffers is None:
        return ["numbers in weights", f"{result.parameters:,}"]
    return [
        "parameters",
        f"{result.parameters:,}" + (f" (and {result.buffers:,} in buffers)" if result.buffers else ""),
    ]


def _facts(result: CheckpointInspected) -> list[list[object]]:
    exact = "yes" if result.bit_exact_resume else f"no: {'; '.join(result.bit_exact_missing[:3])}"
    rows: list[list[object]] = [
        ["format", f"{result.format}, stored as {result.container}"],
        ["kind", result.kind],
        _course(result),
        ["tasks", ", ".join(f"{task} ({loss})" for task, loss in result.tasks.items()) or "-"],
        _counted(result),
        ["all finite", "yes" if result.finite else "no"],
        ["optimizer, average", f"{_yes(result.has_optimizer)}, {_yes(result.has_ema)}"],
        ["bit-exact resume", exact],
        ["checksums", result.checksums or "none"],
        ["content digest", result.content_digest],
        ["prefixes", ", ".join(result.prefixes) or "none"],
        ["size, SHA-256", f"{result.size_bytes / MEBI:.1f} MiB, {result.sha256}"],
    ]
    rows += [[item.action, f"{_yes(item.possible)}: {item.why}"] for item in result.fit_for]
    facts = {**result.facts, **result.lineage}
    if isinstance(made := facts.get("created"), float) and 0 < made < LATEST_S:
        facts["created"] = datetime.fromtimestamp(made, UTC).isoformat(" ", "seconds")
    rows += [[name, _short(value)] for name, value in facts.items()]
    return rows


def _tables(result: CheckpointInspected) -> Iterator[tuple[str, list[str], list[list[object]]]]:
    """Yield title, columns and rows of the long lists; names in them stay whole, so they are lines and no tables."""
    if result.contract:
        kept = [item for item in result.contract if item.effect != "same"]
        title = f"resume contract: {len(result.contract) - len(kept)} keys are the same, {len(kept)} are not"
        rows: list[list[object]] = [
            [item.key, _short(item.saved), _short(item.current), item.effect, item.why] for item in kept
        ]
        yield title, ["key", "checkpoint", "configuration", "effect", "why"], rows
    if result.compared is not None:
        found = [item for item in result.differences if hasattr(item, "tensor")]
        rows = [[getattr(item, field.name) for field in dataclasses.fields(item)] for item in found[:SHOWN]]
        title = f"{result.compared} tensors are equal bit for bit, {len(found)} are not{_by_part(result)}"
        yield title, ["tensor", "status", "max abs", "max rel", "different", "detail"], rows
    if result.tensors:
        rows = [
            [row.name, row.dtype, list(row.shape), row.device, row.minimum, row.maximum, row.nonfinite]
            for row in result.tensors
        ]
        yield counted(len(rows), "tensor"), ["tensor", "dtype", "shape", "device", "min", "max", "not finite"], rows


def _by_part(result: CheckpointInspected) -> str:
    """Return which parts of the network are the same in both files, and how much of each other one is."""
    parts = [f"{part.name} {part.same} of {part.tensors} equal" for part in result.parts[:SHOWN]]
    return f" ({', '.join(parts)})" if parts else ""


def _aligned(columns: list[str], rows: list[list[object]]) -> list[str]:
    """Return rows as lines in which every column begins at the same place."""
    cells = [columns, *([f"{cell:.5g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _or_dash(value: object) -> object:
    return "-" if value is None else value


def _short(value: object) -> str:
    text = str(plain(value))
    return text if len(text) <= 100 else text[:100] + " …"
