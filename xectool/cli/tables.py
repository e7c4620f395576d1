"""Tables that fit a terminal: no word is cut while there is another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

_WHOLE = 40
"""Letters of a word that are kept together: longer ones are paths, which may go on below."""


@dataclass(frozen=True)
class FittingTable:
    """A table as wide as it likes, closer together in a narrower terminal, and one line a value in one narrower yet.

    Without rows there is the title alone.

    Attributes:
        title: What is above.
        columns: Names of the columns.
        rows: Cells as text.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Draw the widest form that cuts no word."""
        from rich.text import Text

        yield Text(self.title, style="italic", no_wrap=True, overflow="ignore")  # a path is pasted whole
        words = self._widths(_longest_word)
        room = options.max_width - len(words) - 1
        if sum(words) > room or not self.rows:
            yield from self._listed()
        else:
            gap = 1 if sum(words) + 2 * len(words) <= room else 0
            yield self._drawn(_fitting(self._widths(_longest_line), words, room - 2 * gap * len(words)), gap)

    def _widths(self, width: Callable[[str], int]) -> list[int]:
        columns = zip(self.columns, *self.rows, strict=True)
        return [max(map(width, cells)) for cells in columns]

    def _drawn(self, widths: Sequence[int], gap: int) -> Table:
        from rich import box
        from rich.markup import escape
        from rich.table import Table

        drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap))
        for column, width in zip(self.columns, widths, strict=True):
            drawn.add_column(escape(column), overflow="fold", width=width)
        for row in self.rows:
            drawn.add_row(*map(escape, row))
        return drawn

    def _listed(self) -> Iterator[RenderableType]:
        from rich.text import Text

        for row in self.rows:
            yield Text()
            for column, cell in zip(self.columns, row, strict=True):
                yield Text.assemble((f"{column}: " if column else "", "bold"), cell)
        yield Text()


def _longest_line(cell: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, cell.splitlines()), default=0)


def _longest_word(cell: str) -> int:
    from rich.cells import cell_len

    return min(_WHOLE, max(map(cell_len, cell.split()), default=0))


def _fitting(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return widths that fill no more than the room: the widest column that can gives way first.

    >>> _fitting([30, 8], [5, 8], 20)
    [12, 8]
    """
    widths = list(wanted)
    while sum(widths) > room:
        able = [number for number, width in enumerate(widths) if width > least[number]]
        widths[max(able, key=widths.__getitem__)] -= 1
    return widths
