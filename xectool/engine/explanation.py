"""The ``explain`` command: what a finding code, a configuration key, a metric or a topic means."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace

from xectool.config.key_page import KeyPage, all_keys, key_pages
from xectool.config.keys import nearest_key
from xectool.config.root import KINDS
from xectool.errors import UsageError, counted
from xectool.explanations import Entry, library
from xectool.explanations.library import canonical, word_set
from xectool.registry.plugins import plugins
from xectool.rules import Rule
from xectool.runlog.metrics import Named, find_metric, metric_names

_MAX_RELATED = 8
_MAX_LISTED = 20


@dataclass(frozen=True)
class Explained:
    """An answer.

    Attributes:
        title: What it is about, in one line.
        text: The explanation; lines to paste are indented by four spaces.
        see: Related topics, finding codes and configuration keys, each of which can be asked for.
    """

    title: str
    text: str
    see: tuple[str, ...]


def explain(topic: str = "") -> Explained:
    """Explain finding codes, also of a plugin, configuration keys, metrics or topics; without any, list the topics.

    Args:
        topic: Such as ``XT-OOM-GPU``, ``training.lr``, ``val/loss`` or ``batch-sizes``; all but a metric in any case.
            Several names are each explained; words that make up one name, or stand in one title, are one.

    Raises:
        UsageError: Nothing of that name is known; the nearest names are in the fix.
    """
    if not topic.strip():
        return _topics()
    return _of_name(topic) or _of_names(topic) or _of_words(topic)


def _of_name(topic: str) -> Explained | None:
    """Return what a name stands for; None where nothing has it."""
    entry, pages = library().find(topic), key_pages(topic)
    if entry is None and not pages:
        metric = find_metric(topic)
        return _of_plugin(topic) if metric is None else _of_metric(metric)
    if entry is None and len(pages) > 1:
        lines = [page.title for page in pages]
        return Explained(
            f"{topic}: the name of {counted(len(pages), 'key')}", "\n".join(lines), tuple(page.dotted for page in pages)
        )
    if entry is not None and (entry.is_code or not any(page.dotted == topic.strip() for page in pages)):
        pages = ()
    return _joined(entry, pages[0] if pages else None)


def _of_names(topic: str) -> Explained | None:
    """Return what each of several names stands for; None where the words make up a phrase.

    A plain word counts as a name where it is one of a topic: ``training`` is a section, and a word of many questions.

    Raises:
        UsageError: Beside a name stands a code or key that nothing has.
    """
    words = [word for word in (part.strip(".,:;?!()[]'\"`") for part in topic.split()) if word_set(word)]
    found = {word: _of_name(word) for word in words if _is_written_as_name(word) or library().find(word)}
    sure = any(_is_written_as_name(word) and answer is not None for word, answer in found.items())
    if (
        len(words) < 2
        or not any(found.values())
        or not (sure or (len(found) == len(words) and not library().named(word_set(topic))))
    ):
        return None
    for word, answer in found.items():
        if answer is None and _is_meant_as_name(word):
            raise _unknown(word)
    answers = list(dict.fromkeys(answer for answer in found.values() if answer is not None))
    one = answers[0] if len(answers) == 1 else _listed(answers)
    other = ", ".join(word for word in words if found.get(word) is None)
    return replace(one, text=f"{one.text}\n\nNo name of its own: {other}") if other else one


def _listed(answers: list[Explained]) -> Explained:
    names = ", ".join(answer.title.partition(": ")[0] for answer in answers)
    texts = (f"{answer.title}\n\n{answer.text}" for answer in answers)
    see = dict.fromkeys(name for answer in answers for name in answer.see)
    return Explained(names, "\n\n".join(texts), tuple(see))


def _is_written_as_name(word: str) -> bool:
    """Return whether a word can only be meant as a code, a key, a metric or a topic of several words."""
    entry = library().find(word)
    return any(mark in word for mark in "-./_") or (entry is not None and entry.is_code)


def _is_meant_as_name(word: str) -> bool:
    """Return whether a word that names nothing begins as codes or keys do: ``XT-OOM-GPX``, ``training.lrr``."""
    codes = {entry.name.partition("-")[0] for entry in library() if entry.is_code}
    sections = {key.partition(".")[0] for key in all_keys()}
    return ("-" in word and word.partition("-")[0].upper() in codes) or (
        "." in word and word.partition(".")[0] in sections
    )


def _joined(entry: Entry | None, page: KeyPage | None) -> Explained:
    title = f"{entry.name}: {entry.title}" if entry else page.title if page else ""
    texts = [entry.text] if entry else []
    see = list(entry.see) if entry else []
    if page is not None:
        texts.append(page.text if entry is None else f"Configuration ({page.title})\n{page.text}")
        see += [*page.codes, *_related(page)]
    return Explained(title, "\n\n".join(texts), tuple(dict.fromkeys(see)))


def _related(page: KeyPage) -> list[str]:
    """Return the entries that speak of a key: those that name it as related first."""
    own = [entry for entry in library() if page.dotted in entry.see]
    speaking = [entry for entry in library() if f"{page.dotted}=" in entry.text or f"{page.dotted} " in entry.text]
    topics_first = sorted([*own, *speaking], key=lambda entry: entry.is_code)
    return list(dict.fromkeys(entry.name for entry in topics_first))[:_MAX_RELATED]


def _of_metric(named: Named) -> Explained:
    task = named.words.get("task") or named.words.get("any_term", "")
    keys = [f"tasks.{task}.loss_fn"] if f"tasks.{task}.loss_fn" in all_keys() else []
    return Explained(f"{named.name}: {named.metric.group}", named.text, ("units", "baseline", *keys))


def _topics() -> Explained:
    topics = library().topics
    width = max(len(entry.name) for entry in topics)
    lines = [f"{entry.name:<{width}}  {entry.title}" for entry in sorted(topics, key=lambda entry: entry.name)]
    lines += [
        "",
        "Also: every finding code (xectool explain CFG-20), configuration key (xectool explain training.lr) and metric",
        "(xectool explain val/loss).",
    ]
    return Explained(f"{len(topics)} topics", "\n".join(lines), tuple(sorted(entry.name for entry in topics)))


def _of_words(topic: str) -> Explained:
    """Return the topics, keys and codes in whose names or titles the words stand, in this order.

    Of a sentence that stands in none, most of the words are enough: a code or key that is misspelt is no sentence.

    Raises:
        UsageError: It stands in none.
    """
    words = word_set(topic)
    entries = library().holding(words) if words else []
    keys = [(dotted, key_pages(dotted)[0].title) for dotted in all_keys() if words and words <= word_set(dotted)]
    if not entries and not keys and len(words) > 1 and len(topic.split()) > 1:
        entries = library().sharing(words)
    topics = [(entry.name, entry.title) for entry in entries if not entry.is_code]
    codes = [(entry.name, entry.title) for entry in entries if entry.is_code]
    found = [*topics, *((name, title.removeprefix(f"{name}: ")) for name, title in keys), *codes]
    if not found:
        raise _unknown(topic)
    if len(topics) == 1 or len(found) == 1:
        first = explain(found[0][0])
        return replace(first, see=tuple(dict.fromkeys([*first.see, *(name for name, _ in found[1:])])))
    width = max(len(name) for name, _ in found[:_MAX_LISTED])
    lines = [f"{name:<{width}}  {title}" for name, title in found[:_MAX_LISTED]]
    return Explained(
        f"{topic}: a word of {counted(len(found), 'name')}", "\n".join(lines), tuple(name for name, _ in found)
    )


def _of_plugin(topic: str) -> Explained | None:
    """Return what the rule of a plugin says of itself; None where no installed one has a rule with that code."""
    known = {canonical(rule.code): (rule, package) for rule, package in _plugin_rules()}
    if canonical(topic) not in known:
        return None
    rule, package = known[canonical(topic)]
    text = f"{inspect.cleandoc(rule.__doc__ or '')}\n\nA rule of the package {package}; its authors know more."
    return Explained(f"{rule.code}: {rule.title}", text.strip(), ("XT-PLUGIN",))


def _plugin_rules() -> Iterator[tuple[type[Rule[object]], str]]:
    for family in ("checks", "rules"):
        for point, rule in plugins(family):
            if isinstance(rule, type) and issubclass(rule, Rule):  # others are refused where they are used
                yield rule, point.dist.name if point.dist is not None else point.value


def _unknown(topic: str) -> UsageError:
    others = (rule.code for rule, _ in _plugin_rules())
    keys = (nearest_key(topic.strip(), kind) for kind in KINDS if "." in topic)  # as --set proposes it
    near = list(dict.fromkeys([*filter(None, keys), *library().near(topic, (*all_keys(), *metric_names(), *others))]))
    fix = f"xectool explain {near[0]}" if near else "xectool explain   # lists the topics"
    also = f"; near: {', '.join(near)}" if near else ""
    return UsageError(f"nothing is known about '{topic}'{also}", where="command line", fix=fix)
