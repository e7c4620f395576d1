"""What the fixes of several findings change on a command line, and the one line with all of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from xectool.config.document import SET, parse_value
from xectool.config.keys import keys_of
from xectool.config.overrides import key_of
from xectool.config.root import KINDS
from xectool.config.serialize import inline_yaml
from xectool.errors import ConfigError

_TO_FILL: Final = frozenset({"PATH", "DIR", "GB", "BRANCH", "CONFIG", "NAME", "VALUE", "FILE", "KEY", "HOST", "RUN"})
_KEY_LINE: Final = re.compile(r"(?P<key>[a-z]\w*(?:\.\w+)*): (?P<value>.+)", re.DOTALL)


@dataclass(frozen=True)
class Mend:
    """Changes of a command line.

    Attributes:
        options: Value of each option, ``--time: 12:00:00``.
        settings: Value of each key as YAML, ``training.lr: 1.0e-4``.
        dropped: Keys of settings that are taken out, for there are no such.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()

    def joined(self, other: Mend) -> Mend:
        """Return both; what is changed already stays, for the next look tells whether that was enough."""
        return Mend(
            {**self.options, **other.options, **self.options},
            {**self.settings, **other.settings, **self.settings},
            self.dropped | other.dropped,
        )

    def overrides(self, given: Iterable[str]) -> tuple[str, ...]:
        """Return ``key=value`` settings with the changes."""
        kept = (text for text in given if key_of(text) not in {*self.dropped, *self.settings})
        return (*kept, *(f"{key}={value}" for key, value in self.settings.items()))

    def on(self, argv: Sequence[str]) -> str:
        """Return a command line with the changes: in the place of what was typed, else behind it.

        >>> Mend({"--time": "12:00:00"}, {"training.lr": "1e-4"}).on(["submit", "c.yaml", "--time=1h", "--gpus", "2"])
        'xectool submit c.yaml --time=12:00:00 --gpus 2 --set training.lr=1e-4'
        """
        end = list(argv).index("--") if "--" in argv else len(argv)
        words, last, left = _without(self.dropped, argv[:end]), list(argv[end:]), {**self.options}
        overridden = dict(self.settings)
        for at, word in enumerate(words):
            option, sign, value = word.partition("=")
            before = words[at - 1] if at else ""
            if option in self.options and sign:
                words[at] = f"{option}={left.pop(option, self.options[option])}"
            elif before in self.options:
                words[at] = self.options[before]
                left.pop(before, None)
            elif before == SET or option == SET:
                text = word if before == SET else value
                key = key_of(text)
                if key in self.settings:
                    head = "" if before == SET else f"{SET}="
                    words[at] = f"{head}{key}={self.settings[key]}"
                    overridden.pop(key, None)
        words += [part for item in left.items() for part in item]
        words += [part for key, value in overridden.items() for part in (SET, f"{key}={value}")]
        return shlex.join(["xectool", *words, *last])


def mend_of(fix: str, options: Collection[str], wrong: str = "") -> Mend | None:
    """Return what a fix changes on a command line; None where it is prose, or has a word to fill in.

    Args:
        fix: Options to paste, or lines of a configuration, each with a remark or none.
        options: Those the command has, without ``--set``.
        wrong: Key of a setting on the command line that is none, and is not to stay beside the right one.
    """
    gone = Mend(dropped=frozenset([wrong] if wrong else []))
    if wrong and fix.startswith(f"leave out {SET} {wrong}"):
        return gone
    found = [_line(line, options) for line in fix.splitlines() if line.strip() and not line.startswith("#")]
    whole = Mend()
    for mend in found:
        if mend is None:
            return None
        whole = whole.joined(mend)
    return whole.joined(gone) if found else None


def all_mends(mends: Iterable[Mend | None]) -> Mend:
    """Return what can be changed of all fixes together."""
    whole = Mend()
    for mend in mends:
        whole = whole.joined(mend or Mend())
    return whole


def _without(keys: Collection[str], words: Sequence[str]) -> list[str]:
    """Return words of a command line without the settings of some keys."""
    gone = set[int]()
    for at, word in enumerate(words):
        is_value = at > 0 and words[at - 1] == SET
        text = word if is_value else word.removeprefix(f"{SET}=")
        if (is_value or text != word) and key_of(text) in keys:
            gone |= {at, at - is_value}
    return [word for at, word in enumerate(words) if at not in gone]


def _line(line: str, options: Collection[str]) -> Mend | None:
    if key_line := _KEY_LINE.fullmatch(line):
        return _setting(key_line["key"], key_line["value"])
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # an apostrophe in prose
        return None
    return _options(words, options)


def _options(words: Sequence[str], options: Collection[str]) -> Mend | None:
    """Return pairs of options and values; None where something else stands among them."""
    parts = [part for word in words for part in (word.split("=", 1) if re.match(r"--[a-z-]+=", word) else [word])]
    if not parts or len(parts) % 2:
        return None
    whole = Mend()
    for option, value in zip(parts[::2], parts[1::2], strict=True):
        key, _, text = value.partition("=")
        one = _setting(key, text) if option == SET else Mend({option: value}) if option in options else None
        if one is None or value in _TO_FILL or value.endswith(","):
            return None
        whole = whole.joined(one)
    return whole


def _setting(key: str, text: str) -> Mend | None:
    """Return the setting of a key that exists, its value as one word of YAML without a remark."""
    if not any(key in keys_of(kind) for kind in KINDS):
        return None
    try:
        value = parse_value(text, SET)
    except ConfigError:
        return None
    if isinstance(value, str) and (value in _TO_FILL or re.search(r"<.*>", value)):
        return None
    return Mend(settings={key: inline_yaml(value)})
