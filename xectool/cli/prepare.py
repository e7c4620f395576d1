"""``xectool prepare``."""

from __future__ import annotations

from xectool.cli.options import ConfigArgument, JsonOption, SetOption
from xectool.cli.progress import watcher
from xectool.cli.render import AlreadyShown, Output
from xectool.errors import EXIT_BAD_RESULT, counted


def prepare(
    config: ConfigArgument,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Build the event cache and all else that a training reads at its start, once for all ranks."""
    from xectool import engine

    with watcher(quiet=json) as observer:
        found = engine.prepare(config, overrides=set_ or (), observer=observer)
    elsewhere = f", {found.elsewhere} by another process meanwhile" if found.elsewhere else ""
    damaged = f" ({len(found.damaged)} of them had a damaged copy)" if found.damaged else ""
    there = found.files - found.built - found.elsewhere - len(found.failed)
    lines = (
        f"{found.directory}: {found.built} of {counted(found.files, 'file')} copied{damaged}{elsewhere}, "
        f"{there} there before; {found.precision}",
        f"{counted(found.events, 'event')}, {found.cache_bytes / 1e9:.3g} GB in all, {found.seconds:.1f} s",
        f"kept beside them: {', '.join(found.tables) or 'nothing'}",
    )
    Output("prepare", json).result(
        found.as_dict(),
        findings=found.findings,
        bad=bool(found.failed),
        human=lambda screen: screen.print("\n".join(lines), markup=False, soft_wrap=True),
    )
    if found.failed:
        raise AlreadyShown(EXIT_BAD_RESULT)
