"""Options that several commands share, and the units their values may carry."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from xectool.cli.completion import offered
from xectool.errors import UsageError

COUNT_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
COUNT_PATTERN = re.compile(r"^(\d[\d_]*(?:\.\d+)?(?:e\+?\d{1,2})?)\s*([kmg]?)$", re.IGNORECASE)


def parse_count(text: str) -> int:
    """Return a number of things: ``2000``, ``20k``, ``1M``, ``1e6`` or ``1_000_000``.

    Raises:
        UsageError: The text is not a whole number of things.

    >>> parse_count("20k"), parse_count("1_000_000"), parse_count("1.5M"), parse_count("1e12")
    (20000, 1000000, 1500000, 1000000000000)
    """
    match = COUNT_PATTERN.match(str(text).strip())
    value = float(match[1].replace("_", "")) * COUNT_SUFFIXES[match[2].lower()] if match else -1.0
    if value < 0 or value != int(value):
        raise UsageError(f"'{text}' is not a count", where="command line", fix="write 2000, 20k, 1M or 1_000_000")
    return int(value)


def run_word(word: str | None) -> str | None:
    """Return the directory of a run named as ``xectool runs`` lists it; called for each RUN of a command line."""
    from xectool.engine.at_hand import named_run

    return word and named_run(word)


def recorded_run_word(word: str) -> str:
    """Return the directory of a run that is there; called where what looks at it takes seconds to import."""
    from xectool.engine.at_hand import recorded_run

    return recorded_run(word)


def checkpoint_word(word: str) -> str:
    """Return the name of a checkpoint that is there; called for each CKPT of a command line."""
    from xectool.engine.at_hand import present_checkpoint

    return present_checkpoint(word)


def config_word(word: str | None) -> str | None:
    """Return a configuration that can be read; called for each CONFIG of a command line."""
    from xectool.engine.at_hand import readable_config

    return word and readable_config(word)


def config_or_run_word(word: str) -> str:
    """Return a configuration that can be read, or the directory of a run; called for each CONFIG|RUN."""
    from xectool.engine.at_hand import config_or_run

    return config_or_run(word)


ConfigArgument = Annotated[
    str, typer.Argument(metavar="CONFIG", callback=config_word, help="YAML configuration; see: xectool config init")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a configuration key, e.g. training.lr=3e-4; repeatable.",
        autocompletion=offered("settings"),
    ),
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1 or auto; default: the config's.")]
EventsOption = Annotated[int, typer.Option("--events", parser=parse_count, metavar="COUNT", help="Number of events.")]
MaxEventsOption = Annotated[
    int | None,
    typer.Option("--max-events", parser=parse_count, metavar="COUNT", help="Stop after this many events."),
]
