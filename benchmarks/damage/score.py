"""Build the cases, ask, compare with what has to be said, and count."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.damage.catalogue import CASES, Case, Question
from benchmarks.damage.command import Answer, ask
from benchmarks.damage.lab import GoodFiles, Lab


@dataclass(frozen=True)
class Outcome:
    """What was said of one variant.

    Attributes:
        case: Name of the case.
        codes: Codes of the findings above a note, in their order.
        missing: What of the place, or of the name of the fault, was not told.
        trouble: A traceback, a hang, a file that must not be there.
        seconds: Time the command took.
        line: The command.
        told: The first findings, for a miss.
        said: What was measured besides.
    """

    case: str
    codes: tuple[str, ...]
    missing: tuple[str, ...]
    trouble: str
    seconds: float
    line: str
    told: str
    said: str = ""

    @property
    def kind(self) -> Case:
        """What was done."""
        return CASES[self.case]

    @property
    def found(self) -> bool:
        """Whether an expected row is among the findings."""
        return bool(set(self.codes) & set(self.kind.codes))

    @property
    def first(self) -> bool:
        """Whether an expected row is the first finding."""
        return bool(self.codes) and self.codes[0] in self.kind.codes

    @property
    def located(self) -> bool:
        """Whether the place is told as well."""
        return self.found and not self.missing

    @property
    def right(self) -> bool:
        """Whether all is as it should be."""
        return not self.trouble and (self.located if self.kind.codes else not self.codes)


def judge(name: str, seed: int, root: Path, good: GoodFiles, keep: bool = False) -> Outcome:
    """Build one case and ask; its files are kept where asked for."""
    directory = root / f"{seed}_{''.join(letter if letter.isalnum() else '_' for letter in name)}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    question = CASES[name].build(Lab(directory, seed, name, good))
    answer = ask(question.words, directory, question.environment)
    outcome = compare(name, question, answer)
    if not outcome.trouble and not answer.code:
        trouble, said = question.verify()
        outcome = replace(outcome, trouble=trouble, said=said)
    if not keep:
        shutil.rmtree(directory)
    return outcome


def compare(name: str, question: Question, answer: Answer) -> Outcome:
    """Return what an answer is worth."""
    codes, findings = CASES[name].codes, answer.document.get("findings", ()) if question.notes else answer.findings
    lacking = [_lacking(question, found) for found in findings if found["code"] in codes]
    told = " | ".join(f"{found['code']} {found['where']}: {found['problem']}" for found in findings[:3])
    line = shlex.join([*(f"{key}={value}" for key, value in question.environment.items()), "xectool", *question.words])
    return Outcome(
        case=name,
        codes=tuple(dict.fromkeys(found["code"] for found in findings)),
        missing=min(lacking, key=len, default=()),
        trouble=answer.trouble or _trouble(question, answer, is_good=not codes),
        seconds=answer.seconds,
        line=line,
        told=told,
    )


def _trouble(question: Question, answer: Answer, is_good: bool) -> str:
    """Return what is wrong with an answer besides its findings."""
    result = answer.document["result"]
    other = [key for key, value in question.result.items() if not _begins(result.get(key), value)]
    left = [part for path in question.absent for part in path.parent.glob("*.part")]
    there = [f"{path} is there" for path in (*question.absent, *left) if path.exists()]
    if answer.code not in ((0,) if is_good and not answer.findings else (0, 1, 2)):
        return f"exit status {answer.code}"
    if not answer.code and any(found["severity"] == "error" for found in answer.findings):
        return "an error, and exit status 0"
    return next(iter(there + [f"{key} is {result.get(key)!r}" for key in other]), "")


def _begins(held: object, wanted: object) -> bool:
    return held == wanted or (isinstance(held, str) and held.startswith(str(wanted)))


def _lacking(question: Question, found: dict[str, Any]) -> tuple[str, ...]:
    """Return the words of the place and of the problem that a finding lacks; a number is not part of a longer one.

    A sound file at the place is as wrong as a damaged one that lacks.
    """
    files = {str(word) for word in question.words if str(word).endswith(".root")}
    if files & set(question.place) and any(path in str(found["where"]) for path in files - set(question.place)):
        return tuple(question.place)
    place = " ".join([str(found["where"]), *map(str, found["evidence"])])
    problem = f"{found['problem']} {place}"
    pairs = [(word, place) for word in question.place] + [(word, problem) for word in question.named]
    return tuple(word for word, text in pairs if not re.search(rf"{re.escape(word)}(?!\d)", text))


def table(group: str, outcomes: Sequence[Outcome]) -> list[str]:
    """Return the score of a group as lines of Markdown."""
    lines = [f"### {group}", "", "| what was done | row | found first | located | time |", "|---|---|---|---|---|"]
    for one in outcomes:
        located = "yes" if one.located else f"no: {', '.join(one.missing) or 'not found'}"
        cells = (
            one.case,
            " or ".join(one.kind.codes) or "good",
            one.trouble or ", ".join(one.codes[:1]) or "nothing",
            located if one.kind.codes else one.said,
            f"{one.seconds:.1f} s",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def totals(outcomes: Sequence[Outcome]) -> list[str]:
    """Return how many faults were found and located, and how many good variants alarmed."""
    faults = [one for one in outcomes if one.kind.codes]
    good = [one for one in outcomes if not one.kind.codes]
    alarmed = sum(not one.right for one in good)
    times = sorted(one.seconds for one in outcomes) or [0.0]
    return [
        f"faults found: {sum(one.found for one in faults)} of {len(faults)}; told first: "
        f"{sum(one.first for one in faults)}; located: {sum(one.located for one in faults)}",
        f"tracebacks, hangs, files that must not be there: {sum(bool(one.trouble) for one in outcomes)}",
        f"seconds a command: median {times[len(times) // 2]:.1f}, longest {times[-1]:.1f}",
        f"good variants: {alarmed or 'none'} of {len(good)} alarmed",
    ]


def misses(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what was not as it should be, with the line that shows it."""
    return [
        f"MISS {one.case}: {one.trouble or ', '.join(one.codes) or 'nothing'}; expected "
        f"{' or '.join(one.kind.codes) or 'nothing'}; lacks {one.missing} -- {one.told[:500]}\n     {one.line}"
        for one in outcomes
        if not one.right
    ]
