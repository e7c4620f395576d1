"""Reads the texts and finds an entry by any of its names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources

from xectool.errors import nearest

_HEADING = re.compile(r"^## (?P<names>[^:]+): (?P<title>.+)$")
_FIELD = re.compile(r"^(?P<label>[A-Z][a-z]+(?: [a-z]+)?): (?P<text>.*)$")
_CODE = re.compile(r"^[A-Z]+(?:-[A-Z0-9]+)+$")
_SEE = "see: "
LITTLE_WORDS = frozenset(
    ["a", "an", "and", "are", "be", "do", "doe", "for", "how", "i", "in", "is", "it", "my", "no", "not", "of", "on",
     "or", "so", "such", "the", "to", "too", "what", "why", "with"]
)  # fmt: skip
"""Words that say nothing of what is asked for."""
_INDENT = "    "
_PASTE = re.compile(rf"^{_INDENT}\S")


@dataclass(frozen=True)
class Entry:
    """One topic or finding code.

    Attributes:
        names: What it answers to; the first is shown.
        title: One line that says what it is about.
        text: The explanation, plain text with indented lines to paste.
        see: Related topics, codes and configuration keys.
        family: Name of the file it stands in.
    """

    names: tuple[str, ...]
    title: str
    text: str
    see: tuple[str, ...] = ()
    family: str = ""

    @property
    def name(self) -> str:
        """The name it is listed under."""
        return self.names[0]

    @property
    def is_code(self) -> bool:
        """Whether it explains a finding code and not a topic."""
        return _CODE.match(self.name) is not None

    @property
    def paste(self) -> tuple[str, ...]:
        """The lines to paste, without their indentation."""
        return tuple(line.strip() for line in self.text.splitlines() if _PASTE.match(line))

    def field(self, label: str) -> str:
        """Return the sentences of a field such as ``Cause`` on one line, without the lines to paste."""
        found: list[str] = []
        inside = False
        for line in self.text.splitlines():
            if line.startswith(_INDENT):
                continue
            match = _FIELD.match(line)
            if match:
                inside = match["label"] == label
                line = match["text"]
            if inside and line.strip():
                found.append(line.strip())
        return " ".join(found)


class Library:
    """All entries.

    Args:
        texts: Content of each file by the name of its family.

    Raises:
        ValueError: Two entries share a name, or a file starts without a heading.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.entries = tuple(entry for family, text in texts.items() for entry in _entries(family, text))
        self._by_key: dict[str, Entry] = {}
        for entry in self.entries:
            for name in entry.names:
                if self._by_key.setdefault(canonical(name), entry) is not entry:
                    raise ValueError(f"two entries answer to '{name}'")

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @cached_property
    def topics(self) -> tuple[Entry, ...]:
        """The entries that are not finding codes, in the order of the files."""
        return tuple(entry for entry in self.entries if not entry.is_code)

    def find(self, name: str) -> Entry | None:
        """Return the entry a name stands for, whatever its case, hyphens and leading zeros; None without one."""
        return self._by_key.get(canonical(name))

    def named(self, words: frozenset[str]) -> list[Entry]:
        """Return the entries in whose names all the words stand."""
        return [entry for entry in self.entries if words <= word_set(" ".join(entry.names))]

    def holding(self, words: frozenset[str]) -> list[Entry]:
        """Return the entries in whose names or title all the words stand, topics before codes, names before titles."""
        of_names = self.named(words)
        of_titles = [entry for entry in self.entries if words <= word_set(" ".join((*entry.names, entry.title)))]
        return sorted(dict.fromkeys([*of_names, *of_titles]), key=lambda entry: entry.is_code)

    def sharing(self, words: frozenset[str]) -> list[Entry]:
        """Return the entries in whose names and title the most of the words stand, if more than half of them do."""
        shared = {entry.name: len(words & word_set(f"{' '.join(entry.names)} {entry.title}")) for entry in self.entries}
        most = max(len(words) // 2 + 1, *shared.values())
        best = (entry for entry in self.entries if shared[entry.name] == most)
        return sorted(best, key=lambda entry: entry.is_code)

    def near(self, name: str, others: tuple[str, ...] = ()) -> list[str]:
        """Return the names that were most likely meant: by spelling, else those whose text has the word; topics first.

        Args:
            name: What was asked for.
            others: Further names that can be asked for.
        """
        known = [own for entry in self.entries for own in entry.names]
        found = nearest(name, [*known, *others])
        word = name.lower()
        mentions = [entry.name for entry in self.entries if word in f"{entry.title} {entry.text}".lower()]
        titles_first = sorted(mentions, key=lambda own: word not in self._by_key[canonical(own)].title.lower())
        topics_first = sorted(titles_first, key=lambda own: self._by_key[canonical(own)].is_code)
        return list(dict.fromkeys([*found, *topics_first]))[:5]


@cache
def library() -> Library:
    """Return the texts that come with this version."""
    folder = resources.files(__package__) / "texts"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".md")), key=lambda file: file.name)
    return Library({file.name.removesuffix(".md"): file.read_text(encoding="utf-8") for file in files})


def word_set(text: str) -> frozenset[str]:
    """Return the words of a name or a title that say something, in small letters and without the s of a plural.

    >>> sorted(word_set("training.ema_decay")), sorted(word_set("Gradients of XT-OOM-GPU"))
    (['decay', 'ema', 'training'], ['gpu', 'gradient', 'oom', 'xt'])
    """
    words = (word.removesuffix("s") for word in re.findall(r"[a-z0-9]+", text.lower()))
    return frozenset(words) - LITTLE_WORDS


def canonical(name: str) -> str:
    """Return the form names are compared in.

    >>> canonical("cfg_7") == canonical("CFG-07"), canonical("K1"), canonical("lr-sweep")
    (True, 'k1', 'lrsweep')
    """
    joined = re.sub(r"[\s_-]+0*(?=\d)|[\s_-]+", "", name.strip().lower())
    return re.sub(r"(?<=[a-z])0+(?=\d)", "", joined)


def _entries(family: str, text: str) -> Iterator[Entry]:
    blocks = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    for block in blocks[1:]:
        heading, _, body = block.partition("\n")
        match = _HEADING.match(heading)
        if match is None:
            raise ValueError(f"{family}: '{heading}' is no heading of the form '## NAME: Title'")
        see: tuple[str, ...] = ()
        if body.startswith(_SEE):
            first, _, body = body.partition("\n")
            see = tuple(name.strip() for name in first.removeprefix(_SEE).split(","))
        yield Entry(tuple(match["names"].split()), match["title"], body.strip("\n"), see, family)
