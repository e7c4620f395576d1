"""Rules that other installed packages bring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from typing import Any

from xectool.findings import Finding
from xectool.registry.plugins import BlamingPlugin, broken, plugins
from xectool.rules import Rule


class PluginRule(Rule[Any]):
    """A rule of another package; what goes wrong inside it is told with its name.

    Args:
        point: The entry point it came by.
        rule: The rule.
    """

    def __init__(self, point: EntryPoint, rule: Rule[Any]) -> None:
        self._point, self._rule = point, rule
        self.code, self.title, self.requires = rule.code, rule.title, rule.requires  # type: ignore[misc]

    @property
    def name(self) -> str:
        """The name other rules require it by."""
        return self._point.name

    def check(self, facts: Any) -> Iterator[Finding]:
        """Yield what breaks the rule."""
        with BlamingPlugin(self._point, f"it checked {self.code}"):
            yield from self._rule.check(facts)


def plugin_rules(family: str, known: Sequence[Rule[Any]]) -> tuple[Rule[Any], ...]:
    """Return the rules under the entry points ``xectool.<family>``, each a subclass of `Rule` without arguments.

    Args:
        family: ``rules`` or ``checks``.
        known: The rules of xectool, whose names and codes cannot be taken.

    Raises:
        UsageError: A plugin cannot be loaded, is no rule, or takes a name or code that exists.
    """
    found: list[Rule[Any]] = []
    names, codes = {rule.name for rule in known}, {rule.code for rule in known}
    for point, kind in plugins(family):
        if not (isinstance(kind, type) and issubclass(kind, Rule)):
            raise broken(point, "is no subclass of xectool.rules.Rule")
        with BlamingPlugin(point, "it was made"):
            rule = PluginRule(point, kind())
        if rule.name in names or rule.code in codes:
            raise broken(point, f"takes a name or code of xectool: {rule.name}, {rule.code}")
        missing = [name for name in rule.requires if name not in names]
        if missing:
            raise broken(point, f"requires the unknown rule {missing[0]}")
        found.append(rule)
    return tuple(found)
