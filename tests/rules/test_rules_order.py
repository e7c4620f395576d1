"""The base of all rules: order, skipping, and what a set of rules refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xectool.findings import Finding, Severity
from xectool.rules import Rule, in_order, run_rules


def make_rule(name: str, *, requires: tuple[str, ...] = (), fails: bool = False, warns: bool = False) -> Rule[int]:
    def check(self: Rule[int], facts: int) -> Iterator[Finding]:
        if fails:
            yield self.error(name, f"{name} broke at {facts}", "repair it")
        if warns:
            yield self.warning(name, f"{name} is odd")

    members = {"code": f"T-{name}", "title": name, "requires": requires, "check": check}
    rule: Rule[int] = type(name, (Rule,), members)()
    return rule


def test_a_rule_runs_after_those_it_requires() -> None:
    run = run_rules([make_rule("Late", requires=("Early",)), make_rule("Early")], 1)
    assert run.ran == ("Early", "Late")


def test_a_rule_is_skipped_where_a_required_one_failed() -> None:
    rules = [make_rule("First", fails=True), make_rule("Second", requires=("First",)),
             make_rule("Third", requires=("Second",))]  # fmt: skip
    run = run_rules(rules, 7)
    assert run.ran == ("First",)
    assert dict(run.skipped) == {"Second": "First", "Third": "Second"}
    assert [found.problem for found in run.report] == ["First broke at 7"]


def test_a_warning_does_not_stop_later_rules() -> None:
    run = run_rules([make_rule("First", warns=True), make_rule("Second", requires=("First",))], 1)
    assert run.ran == ("First", "Second")
    assert run.report.findings[0].severity is Severity.WARNING


def test_an_info_carries_the_code_of_its_rule() -> None:
    found = make_rule("Only").info("there", "note this", "do that")
    assert (found.code, found.severity, found.where, found.fix) == ("T-Only", Severity.INFO, "there", "do that")


def test_an_unknown_requirement_is_named() -> None:
    with pytest.raises(ValueError, match="rule Only requires the unknown rule Nowhere"):
        run_rules([make_rule("Only", requires=("Nowhere",))], 1)


def test_a_circle_of_requirements_is_named() -> None:
    with pytest.raises(ValueError, match="in a circle"):
        run_rules([make_rule("A", requires=("B",)), make_rule("B", requires=("A",))], 1)


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="share a name"):
        in_order([make_rule("A"), make_rule("A")])


@given(st.permutations(range(6)))
def test_order_respects_requirements_whatever_the_order_given(order: list[int]) -> None:
    rules = {i: make_rule(f"R{i}", requires=tuple(f"R{j}" for j in range(i))) for i in range(6)}
    assert [rule.name for rule in in_order([rules[i] for i in order])] == [f"R{i}" for i in range(6)]
