"""The order in which causes are listed, whatever leads to what."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xectool.diagnosis import consequences
from xectool.diagnosis.cause import Cause
from xectool.diagnosis.ranking import rank
from xectool.findings import Severity

_CODES = "ABCDEFG"
_causes = st.fixed_dictionaries(
    {
        code: st.builds(
            Cause,
            st.just(f"XT-{code}"),
            st.sampled_from((0.4, 0.5, 0.7, 0.9)),
            st.just(f"problem {code}"),
            step=st.sampled_from((0, 3, 9)),
            severity=st.sampled_from((Severity.ERROR, Severity.WARNING, Severity.INFO)),
        )
        for code in _CODES
    }
)
_leads_to = st.dictionaries(
    st.sampled_from([f"XT-{code}" for code in _CODES]),
    st.frozensets(st.sampled_from([f"XT-{code}" for code in _CODES])),
)


def _ranked(causes: list[Cause], leads_to: Mapping[str, frozenset[str]]) -> list[Cause]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consequences, "LEADS_TO", leads_to)
        return rank(causes, [])


@given(causes=_causes, leads_to=_leads_to)
def test_a_cause_stands_before_what_follows_from_it(
    causes: dict[str, Cause], leads_to: dict[str, frozenset[str]]
) -> None:
    """Consequences were sorted by their likelihood alone: what follows from one of them could stand above it."""
    ranked = _ranked(list(causes.values()), leads_to)
    codes = [cause.code for cause in ranked]
    assert sorted(codes) == sorted(cause.code for cause in causes.values())
    assert all(codes.index(cause.follows) < place for place, cause in enumerate(ranked) if cause.follows)
    roots = [cause for cause in ranked if not cause.follows]
    assert ranked[: len(roots)] == roots, "what to cure first"
    assert [c.confidence for c in roots if c.severity is not Severity.INFO] == sorted(
        (c.confidence for c in roots if c.severity is not Severity.INFO), reverse=True
    )


def test_a_likelier_consequence_of_a_consequence_waits_for_it_and_of_a_circle_the_likeliest_is_the_root() -> None:
    chain = [Cause("XT-A", 0.9, "a"), Cause("XT-B", 0.5, "b"), Cause("XT-C", 0.8, "c")]
    led = {"XT-A": frozenset({"XT-B"}), "XT-B": frozenset({"XT-C"})}
    assert [(cause.code, cause.follows) for cause in _ranked(chain, led)] == [
        ("XT-A", ""),
        ("XT-B", "XT-A"),
        ("XT-C", "XT-B"),
    ]
    circle = led | {"XT-C": frozenset({"XT-A"})}
    assert [cause.code for cause in _ranked(chain[::-1], circle)] == ["XT-A", "XT-B", "XT-C"]
