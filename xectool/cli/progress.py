"""Progress of a run: a live bar on a terminal, one line now and then elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from xectool.cli.render import VERBOSITY, Verbosity, console
from xectool.errors import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

ON_SCREEN = 24  # lines that have not scrolled away
LINE_INTERVAL_S = 10.0  # between lines where there is no terminal
EPOCH_METRICS = (
    "train/loss", "val/loss", "energy_res_68pct", "uvw_dist_68pct", "angle_resolution_68pct", "timing_res_68pct",
)  # fmt: skip


class Watcher:
    """Shows what the engine reports.

    Args:
        screen: Where to show it.

    Attributes:
        recent: The last lines.
    """

    def __init__(self, screen: Console) -> None:
        self.screen = screen
        self.recent: deque[str] = deque(maxlen=ON_SCREEN)
        self._phase, self._total, self._done, self._before = "", 0, 0, 0
        self._began = time.monotonic()

    def started(self, facts: Mapping[str, Any]) -> None:
        """Print what is about to run, one fact a line."""
        for name, value in facts.items():
            for line in [value] if isinstance(value, str | int | float) else value:
                self.message(f"{name:>12}  {line}")

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Begin a phase of ``total`` batches, ``done`` before it began; 0 where it is not known how long it takes."""
        self._phase, self._total, self._done, self._before = name, total, done, done
        self._began = time.monotonic()

    def advanced(self, num_batches: int, values: Mapping[str, float]) -> None:
        """Count finished batches."""
        self._done += num_batches

    def epoch_done(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Print the figures of a finished epoch on one line."""
        shown = [f"{name} {metrics[name]:.4g}" for name in EPOCH_METRICS if name in metrics]
        rate = f"{metrics.get('perf/events_per_s', 0.0):.0f} events/s"
        wait = f"data wait {100 * metrics.get('perf/data_wait_fraction', 0.0):.0f} %"
        self.message(f"epoch {epoch}: {', '.join([*shown, rate, wait])}")

    def message(self, text: str) -> None:
        """Print one line."""
        self.recent.append(text)
        self.screen.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Stop showing."""


class QuietWatcher(Watcher):
    """Shows messages only, no facts, bars or epochs."""

    def started(self, facts: Mapping[str, Any]) -> None:
        """Show nothing."""

    def epoch_done(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Show nothing."""


class LineWatcher(Watcher):
    """Prints a line every few seconds; for logs and pipes."""

    _last_line = 0.0

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Begin a phase, and name one that counts nothing."""
        super().phase(name, total, done)
        if not total:
            self.message(name)

    def advanced(self, num_batches: int, values: Mapping[str, float]) -> None:
        """Count finished batches and print a line when one is due."""
        super().advanced(num_batches, values)
        now = time.monotonic()
        own = self._done - self._before
        if now - self._last_line < LINE_INTERVAL_S or not own or not self._total:
            return
        self._last_line = now
        left = (now - self._began) / own * (self._total - self._done)
        self.message(f"{self._phase}  {self._done}/{self._total}  {describe(values)}  ETA {left:.0f} s{of_run(values)}")


class LiveWatcher(Watcher):
    """Draws a progress bar; for terminals."""

    def __init__(self, screen: Console) -> None:
        super().__init__(screen)
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        self._bar: Progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=14),
            MofNCompleteColumn(table_column=Column(min_width=7)),
            TextColumn("ETA"),
            TimeRemainingColumn(table_column=Column(min_width=7)),
            TextColumn("{task.fields[values]}"),  # last, as it is cut on a narrow terminal
            console=screen,
            transient=True,
        )
        self._task: TaskID = self._bar.add_task("start", total=None, values="")  # the imports alone take seconds
        self._bar.start()

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Replace the bar by that of a new phase."""
        super().phase(name, total, done)
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=total or None, completed=done, values="")

    def advanced(self, num_batches: int, values: Mapping[str, float]) -> None:
        """Move the bar."""
        super().advanced(num_batches, values)
        self._bar.advance(self._task, num_batches)
        if values:
            parts = (of_run(values).removeprefix(", "), describe(values))
            self._bar.update(self._task, values="  ".join(part for part in parts if part))

    def close(self) -> None:
        """Remove the bar."""
        self._bar.stop()


def describe(values: Mapping[str, float]) -> str:
    """Return the values worth showing beside a bar on one line."""
    parts = []
    if "loss" in values:
        parts.append(f"loss {values['loss']:.4g}")
    if "events_per_s" in values:
        parts.append(f"{values['events_per_s']:.0f} events/s")
    if "data_wait" in values:
        parts.append(f"data wait {100 * values['data_wait']:.0f} %")
    return "  ".join(parts)


def of_run(values: Mapping[str, float]) -> str:
    """Return how long the whole run will still take, as it follows the time of the phase; empty where not known.

    It takes longer where no validation was measured yet.

    >>> of_run({"run_left_s": 3160.0, "unmeasured_validations": 2.0}), of_run({"run_left_s": 64.2}), of_run({})
    (', run > 53 min', ', run 64 s', '')
    """
    if "run_left_s" not in values:
        return ""
    return f", run {'> ' if values.get('unmeasured_validations') else ''}{duration(round(values['run_left_s']))}"


@contextmanager
def watcher(quiet: bool) -> Iterator[Watcher | None]:
    """Give an observer fit for this terminal, or None when nothing shall be shown.

    Args:
        quiet: Whether only the JSON document is wanted; messages then go to stderr without a bar.
    """
    screen = console()
    if VERBOSITY.get() is Verbosity.QUIET:
        shown: Watcher = QuietWatcher(screen)
    else:
        shown = LiveWatcher(screen) if screen.is_terminal and not quiet else LineWatcher(screen)
    try:
        yield shown
    finally:
        shown.close()
