"""From what was found in all files to causes, the first one first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xectool.diagnosis.signatures.details import detail_of
from xectool.diagnosis.signatures.scan import QUOTED, UNKNOWN, Hit, Scan
from xectool.diagnosis.signatures.signature import Role
from xectool.errors import in_shell
from xectool.explanations import library
from xectool.findings import Finding, Severity

_QUOTES = 5
_MAX_UNKNOWN = 2
_HALF_YEAR_S = 180 * 86400.0
_YEAR_S = 372 * 86400.0  # of months of 31 days, as times are counted


@dataclass(frozen=True)
class LogCause:
    """One cause that a log shows.

    Attributes:
        code: Finding code; ``xectool explain CODE`` describes it.
        confidence: From 0 to 1.
        problem: What it is, with the line that says so.
        where: ``file:line`` of that line.
        rank: Process that wrote it, -1 where unknown.
        role: ``cause``, ``degraded`` (a run may survive it), ``consequence``, ``wrapper`` or ``victim``.
        count: How often it stands in the logs.
        root_cause: Why it happens.
        evidence: Quoted lines, each with its place.
        fix: Lines to paste, most effective first.
        explain: The command that says more.
    """

    code: str
    confidence: float
    problem: str
    where: str
    rank: int
    role: str
    count: int
    root_cause: str
    evidence: tuple[str, ...]
    fix: tuple[str, ...]
    explain: str

    def finding(self) -> Finding:
        """Return the cause as a finding."""
        severity = Severity.WARNING if self.role == "degraded" else Severity.ERROR
        return Finding(self.code, severity, self.problem, self.where, self.evidence, self.fix[0] if self.fix else "")


def rank_causes(scans: Sequence[Scan]) -> tuple[LogCause, ...]:
    """Return the causes of all files together, what happened first first; what only follows from them comes last.

    By time where every line in question carries one, else by the order of the files and lines.
    """
    order = {scan.path: place for place, scan in enumerate(scans)}
    counts: Counter[str] = sum((scan.counts for scan in scans), Counter())
    groups: dict[str, list[Hit]] = {}
    for hit in (hit for scan in scans for hit in scan.hits):
        alone = f":{hit.where}" if hit.code == UNKNOWN else ""
        groups.setdefault(hit.code + alone, []).append(hit)
    timed = all(hit.time is not None for hits in groups.values() for hit in hits)
    late = _turn_of_year(hit.time for hits in groups.values() for hit in hits) if timed else None

    def age(hit: Hit) -> tuple[int, float, int, int]:
        time = 0.0 if late is None or hit.time is None else hit.time + (_YEAR_S if hit.time < late else 0.0)
        return hit.role, time, order[hit.path], hit.number

    ordered = sorted((sorted(hits, key=age) for hits in groups.values()), key=lambda hits: age(hits[0]))
    causes = [_cause(hits, counts[hits[0].code]) for hits in _without_noise(ordered)]
    return tuple(causes)


def _turn_of_year(times: Iterable[float | None]) -> float:
    """Return the time below which a line belongs to the next year; 0 where the logs do not run over its turn."""
    known = [time for time in times if time is not None]
    return _HALF_YEAR_S if known and max(known) - min(known) > _HALF_YEAR_S else 0.0


def _without_noise(ordered: list[list[Hit]]) -> list[list[Hit]]:
    """Leave out unknown errors where known causes explain the run; never what came before them."""
    first_known = next((place for place, hits in enumerate(ordered) if _is_known_cause(hits)), None)
    unknown = [place for place, hits in enumerate(ordered) if hits[0].code == UNKNOWN]
    shown = [place for place in unknown if first_known is None or ordered[place][0].role is Role.CAUSE][:_MAX_UNKNOWN]
    return [hits for place, hits in enumerate(ordered) if place not in unknown or place in shown]


def _is_known_cause(hits: list[Hit]) -> bool:
    return hits[0].code != UNKNOWN and hits[0].role is Role.CAUSE


def _cause(hits: list[Hit], count: int) -> LogCause:
    first = hits[0]
    entry, detail = library().find(first.code), detail_of(first.code, [hit.text for hit in hits])
    title = "no known signature; the first error" if first.code == UNKNOWN else entry.title if entry else first.code
    by_rank = {hit.rank: hit for hit in reversed(hits)}
    quoted = list(dict.fromkeys([first, *by_rank.values(), *hits]))[:_QUOTES]
    quotes = [_quote(hit) for hit in quoted]
    if first.original:
        quotes.append(f"began with: {first.original}")
    is_ours = first.said != first.text
    said = [hit.fix for hit in hits if hit.fix and (not is_ours or hit.said == first.said)][:1]
    meant = detail.entries or ((entry,) if entry else ())
    paste = [line for one in meant for line in one.paste]
    return LogCause(
        code=first.code,
        confidence=max(hit.confidence for hit in hits),
        problem=f"{title}: {_short(first.said)}{f' ({detail.text})' if detail.text else ''}",
        where=first.where,
        rank=first.rank,
        role=first.role.name.lower(),
        count=1 if first.code == UNKNOWN else count,
        root_cause=meant[0].field("Cause") if meant else "",
        evidence=tuple(quotes),
        fix=tuple(dict.fromkeys([*said, *(_about(line, hits) for line in paste)])),
        explain=f"xectool explain {detail.codes[0] if detail.codes else first.code}",
    )


def _about(line: str, hits: list[Hit]) -> str:
    """Put the logs at hand into a line that asks for the logs of all ranks."""
    folder = in_shell(hits[0].path.parent)
    return line.replace("RANK_LOGS", folder)


def _quote(hit: Hit) -> str:
    rank = f" [rank {hit.rank}]" if hit.rank >= 0 else ""
    return f"{hit.where}{rank}: {_short(hit.text)}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= QUOTED else f"{text[:QUOTED]} ..."
