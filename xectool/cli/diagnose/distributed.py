"""``xectool diagnose distributed``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import JsonOption
from xectool.cli.render import AlreadyShown, Output, table, verdict_box
from xectool.errors import EXIT_BAD_RESULT, counted

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.diagnose.ranks_together import DistributedDiagnosis


def distributed(
    nproc: Annotated[int, typer.Option(metavar="N", help="Ranks on this machine.")] = 2,
    backend: Annotated[
        str, typer.Option(metavar="auto|gloo|nccl", help="auto: nccl where each rank has a GPU.")
    ] = "auto",
    master: Annotated[
        str | None, typer.Option(metavar="HOST", help="Host of the first rank; default: MASTER_ADDR or this machine.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port of the first rank; default: MASTER_PORT or a free one.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Longest wait in one collective.")] = 30.0,
    json: JsonOption = False,
) -> None:
    """Start ranks that go through every collective: ports, interfaces, backends, right answers, speed."""
    from xectool import engine

    result = engine.diagnose.distributed(nproc=nproc, backend=backend, master=master, port=port, timeout_s=timeout)
    Output("diagnose distributed", json).result(
        result.as_dict(),
        findings=result.findings,
        bad=not result.healthy,
        human=lambda screen: _show(screen, result),
    )
    if not result.healthy:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _show(screen: Console, result: DistributedDiagnosis) -> None:
    if result.ranks:
        rows = [
            [facts["rank"], facts["pid"], facts.get("device", "-"), f"{_right(facts)} of {len(facts['checks'])}",
             facts.get("latency_us", "-"), facts.get("bandwidth_gb_s", "-"), facts["error"]]
            for facts in result.ranks
        ]  # fmt: skip
        names = ("rank", "pid", "device", "right", "latency us", "GB/s", "error")
        screen.print(table(f"{counted(len(result.ranks), 'rank')} by {result.backend}", names, rows))
    first = result.findings[0] if result.findings else None
    screen.print(verdict_box(result.verdict, (), first.fix if first else "", result.healthy))


def _right(facts: dict[str, object]) -> int:
    checks = facts["checks"]
    assert isinstance(checks, dict)
    return sum(bool(found["ok"]) for found in checks.values())
