"""``xectool check-data``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import JsonOption, MaxEventsOption, SetOption, config_word
from xectool.cli.progress import watcher
from xectool.cli.render import AlreadyShown, Output, table, verdict_box
from xectool.errors import EXIT_BAD_RESULT

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.data_report import DataChecked

MEBI = 1024.0**2
SHOWN_FILES = 40


def check_data(
    data: Annotated[
        list[str], typer.Argument(metavar="DATA", help="ROOT files: paths, globs, directories, @lists, urls.")
    ],
    config: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG",
            callback=config_word,
            help="Also check branches, normalisation, tasks, reading and memory of this run.",
        ),
    ] = None,
    set_: SetOption = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every basket and the values of every event; else 10 000 a file.")
    ] = False,
    max_events: MaxEventsOption = None,
    plots: Annotated[
        str | None, typer.Option(metavar="DIR", help="Draw the sensor map and histograms (PDF and PNG) here.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="OTHER", help="Compare with these files, DATA first: shared events, distributions."),
    ] = None,
    write_digest: Annotated[
        bool,
        typer.Option("--write-digest", help="Write hashes beside each sound file; later checks compare with them."),
    ] = False,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Longest time for the metadata of one file.")
    ] = 25.0,
    json: JsonOption = False,
) -> None:
    """Say whether data files are whole, hold what a training needs, and suit its configuration."""
    from xectool import engine
    from xectool.engine.checking import CheckOptions

    options = CheckOptions(config, set_ or (), deep, max_events, plots, against or (), write_digest, time_limit)
    with watcher(quiet=json) as shown:
        result = engine.check_data(data, options, shown)
    Output("check-data", json).result(
        result.as_dict(),
        findings=result.findings,
        bad=result.is_bad,
        human=lambda screen: _show(screen, result),
        next_line=result.next,
    )
    if result.is_bad:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _show(screen: Console, result: DataChecked) -> None:
    rows = [
        [file.path, file.kind or "-", file.events, file.size_bytes / MEBI, file.compression, len(file.problems)]
        for file in result.files[:SHOWN_FILES]
    ]
    title = f"files: {len(result.files)}, events: {result.events}; {result.events_per_s:.0f} events/s"
    screen.print(table(title, ["file", "kind", "events", "MiB", "compression", "problems"], rows))
    if result.raw:
        _show_readings(screen, result)
    for path in (*result.plots, *result.digests):
        screen.print(f"written: {path}", markup=False)
    why = [*result.why, f"{result.events_scanned} of {result.events} events were looked at"]
    screen.print(verdict_box(result.verdict, why, result.next, good=not result.is_bad))


def _show_readings(screen: Console, result: DataChecked) -> None:
    columns: dict[str, object] = {f"raw {row.feature}": row for row in result.raw}
    columns |= {f"normalised {row.channel}": row for row in result.normalized if row.face == "all"}
    figures = ("min", "max", "mean", "std", "p1", "p99")
    shown = [[name, *(getattr(row, name, "-") for row in columns.values())] for name in figures]
    screen.print(table("readings", ["", *columns], shown))
    better = result.normalization["suggested"]
    fit = "fit" if result.normalization["fits"] else "do not fit" + (f"; {better}" if better else "")
    screen.print(f"normalisation: the constants {fit}", markup=False)
    counts = [[state, result.sensors[state]] for state in ("good", "dead", "constant", "hot", "noisy")]
    screen.print(table(f"sensors, by {result.sensors['events']} events", ["state", "sensors"], counts))
    if result.likeness:
        worst = sorted(result.likeness, key=lambda item: -item.ks)[:8]
        rows: list[list[object]] = [[item.quantity, item.ks, item.p_value, item.effect] for item in worst]
        screen.print(table("largest differences", ["quantity", "KS", "p", "means apart [sigma]"], rows))
    if result.sharing is not None:
        shares: list[list[object]] = [
            [share.rank, share.worker, share.windows, share.events, share.files] for share in result.sharing.shares
        ]
        screen.print(table("who reads what", ["rank", "worker", "windows", "events", "files"], shares[:SHOWN_FILES]))
