"""One rule is one small pure class; a set of rules runs in the order of what they require.

A rule looks at facts (a configuration, a machine, the counts of a file) and yields findings. It neither reads nor
prints, so its two tests (one passing, one failing) need nothing but facts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import ClassVar, Generic, TypeVar

from xectool.findings import Finding, Report, Severity

Facts = TypeVar("Facts")


class Rule(ABC, Generic[Facts]):
    """Abstract: one rule.

    Attributes:
        code: Stable identifier of its findings, such as ``CFG-15``.
        title: One sentence that says what is required.
        requires: Names of the rules without whose passing this one has nothing to say.
    """

    code: ClassVar[str]
    title: ClassVar[str]
    requires: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        """The name other rules require it by."""
        return type(self).__name__

    @abstractmethod
    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yield what breaks the rule; nothing where it holds."""

    def error(self, where: str, problem: str, fix: str = "") -> Finding:
        """Return a finding that refuses the facts."""
        return Finding(self.code, Severity.ERROR, problem, where, fix=fix)

    def warning(self, where: str, problem: str, fix: str = "") -> Finding:
        """Return a finding that lets the facts pass."""
        return Finding(self.code, Severity.WARNING, problem, where, fix=fix)

    def info(self, where: str, problem: str, fix: str = "") -> Finding:
        """Return a finding worth knowing."""
        return Finding(self.code, Severity.INFO, problem, where, fix=fix)


@dataclass(frozen=True)
class RuleRun:
    """What a set of rules found.

    Attributes:
        report: All findings, in the order of the rules.
        ran: Names of the rules that ran.
        skipped: Names of the rules that did not, with the requirement that failed.
    """

    report: Report
    ran: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)


def run_rules(rules: Sequence[Rule[Facts]], facts: Facts) -> RuleRun:
    """Run rules on facts; a rule is skipped where one it requires found an error or was skipped itself.

    Raises:
        ValueError: Two rules share a name, one requires an unknown rule, or requirements form a circle.
    """
    findings: list[Finding] = []
    ran: list[str] = []
    skipped: dict[str, str] = {}
    failed: set[str] = set()
    for rule in in_order(rules):
        missing = [name for name in rule.requires if name in failed or name in skipped]
        if missing:
            skipped[rule.name] = missing[0]
            continue
        found = list(rule.check(facts))
        ran.append(rule.name)
        findings += found
        if any(finding.severity is Severity.ERROR for finding in found):
            failed.add(rule.name)
    return RuleRun(Report(tuple(findings)), tuple(ran), skipped)


def in_order(rules: Sequence[Rule[Facts]]) -> list[Rule[Facts]]:
    """Return the rules so that each comes after those it requires, otherwise as given."""
    by_name = {rule.name: rule for rule in rules}
    if len(by_name) != len(rules):
        raise ValueError("two rules share a name")
    for rule in rules:
        unknown = [name for name in rule.requires if name not in by_name]
        if unknown:
            raise ValueError(f"rule {rule.name} requires the unknown rule {unknown[0]}")
    sorter = TopologicalSorter({rule.name: rule.requires for rule in rules})
    try:
        return [by_name[name] for name in sorter.static_order()]
    except CycleError as error:
        raise ValueError(f"rules require each other in a circle: {' -> '.join(error.args[1])}") from None
