"""``xectool diagnose environment``: versions, devices, limits, file systems and variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from xectool.cli.options import JsonOption, run_word
from xectool.cli.render import AlreadyShown, Output, table, verdict_box
from xectool.errors import EXIT_BAD_RESULT, counted

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.diagnose.machine import EnvironmentDiagnosis

_LONGEST: Final = 200  # NVIDIA's containers have a variable of 2000 characters


def environment(
    run: Annotated[
        str | None, typer.Option(metavar="RUN", callback=run_word, help="Run directory that is looked at as well.")
    ] = None,
    tracking_uri: Annotated[
        str | None, typer.Option(metavar="URI", help="Tracking address; default: that of the environment.")
    ] = None,
    root: Annotated[str, typer.Option(metavar="DIR", help="Where proc, sys and dev lie.")] = "/",
    json: JsonOption = False,
) -> None:
    """Look at this machine: versions, devices, memory, limits, file systems, variables. Nothing is changed."""
    from xectool import engine

    result = engine.diagnose.environment(run, tracking_uri=tracking_uri or "", root=root)
    Output("diagnose environment", json).result(
        {"verdict": result.verdict, "facts": result.facts, "rules_run": result.rules_run},
        findings=result.findings,
        bad=not result.healthy,
        human=lambda screen: _show(screen, result),
    )
    if not result.healthy:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _show(screen: Console, result: EnvironmentDiagnosis) -> None:
    facts = result.facts
    rows: list[list[object]] = [
        ["Python", f"{facts.python} on {facts.platform.machine}"],
        ["versions", ", ".join(f"{name} {version}" for name, version in facts.platform.versions.items())],
        ["cores", facts.platform.cores],
        ["memory", f"{_gb(facts.platform.memory_bytes)} free of {_gb(facts.memory_total_bytes)}"],
        ["/dev/shm", f"{_gb(facts.shared_memory.free_bytes)} free of {_gb(facts.shared_memory.total_bytes)}"],
        ["open files", f"{facts.limits['open files'].soft} (at most {facts.limits['open files'].hard})"],
        ["C++ compiler", facts.cxx or "none"],
    ]
    rows += [[group.path, f"limit {_gb(group.limit_bytes)}, used {_gb(group.used_bytes)}"] for group in facts.cgroups]
    rows += [
        [place.role, f"{place.path} ({place.file_system}, {_gb(place.free_bytes)} free)"] for place in facts.places
    ]
    rows += [[name, _begun(value)] for name, value in facts.environment.items()]
    screen.print(table("machine", ("fact", "value"), rows))
    devices: list[list[object]] = [
        [item.index, item.name, _gb(item.total_bytes), item.capability] for item in facts.torch.devices
    ]
    screen.print(table(counted(len(devices), "GPU"), ("number", "name", "memory", "capability"), devices))
    first = result.findings[0] if result.findings else None
    levels = [found.severity.value for found in result.findings]
    counts = ", ".join(f"{levels.count(level)} {level}" for level in ("error", "warning", "info"))
    why = [f"{counted(len(result.rules_run), 'rule')}: {counts}"]
    screen.print(verdict_box(result.verdict, why, first.fix if first else "", result.healthy))


def _begun(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST]} ..."


def _gb(size: int | None) -> str:
    return "no limit" if size is None else "unknown" if size < 0 else f"{size / 1e9:.1f} GB"
