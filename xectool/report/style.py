"""The look of all figures: high-energy physics habits, without touching the state of matplotlib.pyplot."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import mplhep
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from xectool.errors import DiskError, in_shell

BLUE, ORANGE, RED, PURPLE, GREY, VIOLET = "#5790fc", "#f89c20", "#e42536", "#964a8b", "#9c9ca1", "#7a21dd"
BROWN, CYAN = "#a96b59", "#92dadd"
INK = "#222222"
PNG_DPI = 130
PANEL_SIZE_IN = (4.4, 3.5)

_SIZES: dict[str, Any] = {
    "font.size": 11,
    "font.sans-serif": ["TeX Gyre Heros", "Helvetica", "Arial", "DejaVu Sans"],
    "axes.linewidth": 1.0,
    "axes.titlesize": 11,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "legend.fontsize": 9.5,
    "xtick.major.size": 6,
    "xtick.minor.size": 3,
    "ytick.major.size": 6,
    "ytick.minor.size": 3,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "xtick.minor.ndivs": 2,  # the usual five cost a third of a page: each tick is laid out and drawn three times
    "ytick.minor.ndivs": 2,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 5),
    "pdf.fonttype": 42,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Apply the style inside the block only; drawing and saving both have to happen there."""
    settings: Any = {**mplhep.style.ROOT, **_SIZES}
    # Embedding fonts in a PDF makes both libraries log remarks that no user can act on.
    loggers = [logging.getLogger(name) for name in ("fontTools", "matplotlib")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with mpl.rc_context(settings):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return a figure that no pyplot window manager knows, so that nothing has to be closed."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def grid_shape(num_panels: int) -> tuple[int, int]:
    """Return rows and columns of a page: three columns, four from ten panels on."""
    columns = min(3 if num_panels < 10 else 4, num_panels)
    return -(-num_panels // columns), columns


def save(figure: Figure, out_dir: Path, stem: str) -> list[Path]:
    """Write ``<stem>.pdf`` and ``<stem>.png``; returns both paths.

    The PDF carries no creation date: the same input gives the same bytes.

    Raises:
        DiskError: They cannot be written.
    """
    # Laid out once and then without an engine: with one, each format solves the constraints and draws once more.
    if engine := figure.get_layout_engine():
        engine.execute(figure)
    figure.set_layout_engine(None)
    pdf, png = out_dir / f"{stem}.pdf", out_dir / f"{stem}.png"
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        figure.savefig(pdf, metadata={"CreationDate": None})
        figure.savefig(png, dpi=PNG_DPI)
    except OSError as error:
        raise DiskError(
            f"the plot '{stem}' cannot be written: {error.strerror or error}",
            where=str(out_dir),
            fix=f"df -h {in_shell(out_dir.parent)}   # free space there, or name another folder for the plots",
        ) from error
    return [pdf, png]


def say(axes: Axes, text: str, corner: str = "upper left") -> None:
    """Write a short text into a corner of the axes."""
    vertical, horizontal = corner.split()
    x = {"left": 0.04, "right": 0.96}[horizontal]
    y = {"upper": 0.95, "lower": 0.05}[vertical]
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5}
    axes.text(
        x, y, text, transform=axes.transAxes, fontsize=9.5, color=INK, linespacing=1.4, bbox=box,
        ha=horizontal, va={"upper": "top", "lower": "bottom"}[vertical],
    )  # fmt: skip


def say_nothing_to_show(axes: Axes, reason: str) -> None:
    """Say in an otherwise empty panel why it is empty."""
    axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", va="center", color=GREY, fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])
