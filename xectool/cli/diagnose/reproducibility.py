"""``xectool diagnose reproducibility``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import DeviceOption, JsonOption, SetOption, config_or_run_word
from xectool.cli.render import AlreadyShown, Output, verdict_box
from xectool.errors import EXIT_BAD_RESULT, UsageError, counted

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.diagnose.repeating import ReproducibilityResult


def reproducibility(
    config: Annotated[
        str,
        typer.Argument(metavar="CONFIG|RUN", callback=config_or_run_word, help="YAML configuration or run directory."),
    ],
    set_: SetOption = None,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 3,
    threads: Annotated[
        str | None,
        typer.Option(metavar="N[,M]", help="Threads of the two processes; default: the machine's choice for both."),
    ] = None,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Compare two short runs bit for bit: the first operation that differs, and the setting that ends it."""
    from xectool import engine

    result = engine.diagnose.reproducibility(
        config, overrides=set_ or (), steps=steps, threads=_threads(threads), device=device
    )
    Output("diagnose reproducibility", json).result(
        result.as_dict(),
        findings=result.findings if json else (),
        bad=not result.identical,
        human=lambda screen: _show(screen, result),
    )
    if not result.identical:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _threads(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    words = text.split(",")
    if not all(word.strip().isdigit() for word in words):
        raise UsageError(f"'{text}' is no number of threads", where="--threads", fix="--threads 1,2")
    return tuple(int(word) for word in words)


def _show(screen: Console, result: ReproducibilityResult) -> None:
    if result.identical:
        verdict = f"identical: {result.compared} results of {counted(result.steps, 'step')} are the same bit for bit"
        why = ["twice in one process, once in another", f"threads: {result.threads[0]} and {result.threads[1]}"]
        screen.print(verdict_box(verdict, [*why, *result.notes], "", good=True))
        return
    found = result.findings[0]
    screen.print(verdict_box(found.problem, [*found.evidence, *result.notes], found.fix, good=False))
