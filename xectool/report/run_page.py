"""One HTML file that holds all of a run; it opens without a network, in any browser, at any width.

Everything that comes from a run (names, messages, paths) is escaped; there is no script in the page.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

import jinja2
from matplotlib.figure import Figure

from xectool.report.style import PNG_DPI, house_style

TEMPLATE: Final = "run_page.html.j2"
MOST_PLOTS: Final = 40
READABLE_PX: Final = 70  # pixels of a screen for an inch of a figure, whose small text is 7 points
_PNG_WIDTH: Final = slice(16, 20)
MOST_PLOT_BYTES: Final = 12_000_000


@dataclass(frozen=True)
class PageTable:
    """A table: its title, names of columns, and rows of plain values."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class PageCause:
    """One cause of the verdict, or one note."""

    code: str
    severity: str
    problem: str
    evidence: tuple[str, ...]
    fix: str


@dataclass(frozen=True)
class PagePicture:
    """A picture with its caption, as the address of a page holds it.

    Attributes:
        caption: What it shows.
        address: The PNG file as an address.
        width_px: How wide it has to be shown for its text to be read; a narrow screen scrolls it.
    """

    caption: str
    address: str
    width_px: int


@dataclass(frozen=True)
class RunPage:
    """What the page shows.

    Attributes:
        name: Name of the run.
        facts: Short facts in the head, name to text.
        verdict: One line.
        is_good: Whether nothing is wrong.
        causes: What the verdict rests on, most likely first.
        curves: Pictures of the course of the run.
        plots: Pictures the run has made: resolutions, event displays.
        plots_note: Of what other state than the page these are; empty where of the same.
        tables: Metrics, differences to the default configuration, incidents, events, environment.
        config: The resolved configuration as YAML.
    """

    name: str
    facts: Mapping[str, str]
    verdict: str
    is_good: bool
    causes: Sequence[PageCause]
    curves: Sequence[PagePicture]
    plots: Sequence[PagePicture]
    plots_note: str
    tables: Sequence[PageTable]
    config: str


def render(page: RunPage) -> str:
    """Return the page as HTML."""
    text = files("xectool.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(text).render(page=page)


def picture(figure: Figure, caption: str) -> PagePicture:
    """Return a figure as a picture of the page."""
    buffer = io.BytesIO()
    with house_style():
        figure.savefig(buffer, format="png", dpi=PNG_DPI)
    return _shown(caption, buffer.getvalue())


def pictures(directory: Path) -> tuple[list[PagePicture], list[str]]:
    """Return the PNG files of a directory and its folders as pictures, and those that would make the page too large."""
    found: list[PagePicture] = []
    left_out: list[str] = []
    total = 0
    found_paths = [path.relative_to(directory) for path in directory.rglob("*.png")]
    for name in sorted(found_paths, key=lambda path: (len(path.parts), path)):
        content = (directory / name).read_bytes()
        if len(found) >= MOST_PLOTS or total + len(content) > MOST_PLOT_BYTES:
            left_out.append(str(name))
            continue
        total += len(content)
        caption = ": ".join(name.with_suffix("").parts).replace("_", " ")
        found.append(_shown(caption, content))
    return found, left_out


def _shown(caption: str, content: bytes) -> PagePicture:
    width_px = int.from_bytes(content[_PNG_WIDTH]) * READABLE_PX // PNG_DPI
    return PagePicture(caption, f"data:image/png;base64,{base64.b64encode(content).decode()}", width_px)
