"""What is expected of a run in trouble, what was said, and the table of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module

from benchmarks.live.lab import Lab

LIMIT_S = 30.0
GROUPS = ("hangs", "kills", "control", "ranks")


@dataclass(frozen=True)
class Answer:
    """What was given.

    Attributes:
        given: The verdict, in a few words.
        right: Whether it is what was expected.
        seconds: How long it took after the fault.
    """

    given: str
    right: bool
    seconds: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """One thing that is done to a run.

    Attributes:
        name: What is done.
        group: One of `GROUPS`.
        expected: What has to be said.
        act: Does it in a lab.
    """

    name: str
    group: str
    expected: str
    act: Callable[[Lab], Answer]


SCENARIOS: dict[str, Scenario] = {}


def scenario(group: str, name: str, expected: str) -> Callable[[Callable[[Lab], Answer]], Callable[[Lab], Answer]]:
    """Register what is done to a run."""

    def register(act: Callable[[Lab], Answer]) -> Callable[[Lab], Answer]:
        if name in SCENARIOS:
            raise ValueError(f"two scenarios are called {name}")
        SCENARIOS[name] = Scenario(name, group, expected, act)
        return act

    return register


def load_scenarios(group: str = "") -> list[Scenario]:
    """Return the scenarios of a group, or all of them, in the order of the table."""
    for name in GROUPS:
        import_module(f"benchmarks.live.{name}")
    return [found for found in SCENARIOS.values() if group in ("", found.group)]


def judged(found: Scenario, lab: Lab) -> Answer:
    """Do it; nothing of the run may be left, and whatever goes wrong on the way is no right answer."""
    try:
        answer = found.act(lab)
    except Exception as error:  # noqa: BLE001  the other scenarios go on
        answer = Answer(f"{type(error).__name__}: {error}", False)
    finally:
        left = lab.close()
    if left:
        answer = Answer(f"{answer.given}; left running: {'; '.join(left)}", False, answer.seconds)
    return answer


def table(group: str, answers: Iterable[tuple[Scenario, Answer]]) -> list[str]:
    """Return a group as lines of Markdown."""
    own = [(one, answer) for one, answer in answers if one.group == group]
    rows = [
        f"| {one.name} | {one.expected} | {answer.given.replace('|', '/')[:160]} | {answer.seconds:.1f} | "
        f"{'yes' if answer.right else '**no**'} |"
        for one, answer in own
    ]
    head = [f"| {group} | expected | given | seconds | right |", "|---|---|---|---|---|"]
    return [*head, *rows, "", f"{group}: {sum(answer.right for _, answer in own)} of {len(own)} right", ""]
