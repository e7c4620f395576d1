"""Rules on whole samples: events that occur twice, overlap, order, and likeness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from xectool.checks.by_file import odd_stretches
from xectool.checks.data_facts import DataFacts
from xectool.checks.facts import arguments, plain_name
from xectool.checks.identity import SameEvent
from xectool.checks.light import COPIED
from xectool.checks.targets import TargetScan
from xectool.config.serialize import inline_yaml
from xectool.errors import counted, event_named, in_shell
from xectool.findings import Finding, Severity
from xectool.rules import Rule

_WINDOW: Final = 65536  # events that are shuffled among each other, with which an order is told as a note
_DRIFT: Final = 0.25
_CORRELATION: Final = 0.1
_SURE: Final = 5.0  # standard errors
_SHOWN: Final = 10


class EventsAreUnique(Rule[DataFacts]):
    """An event that stands twice counts twice."""

    code = "DAT-19"
    title = "No event stands twice"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield a warning for equal numbers, and for equal readings under others; an error for light of one event."""
        for repeated, what in (
            (facts.repeated, "with the run and event number of another"),
            (facts.copies, "with exactly the photons of another"),
        ):
            if repeated.count and repeated.pairs:
                yield Finding(
                    self.code,
                    Severity.WARNING,
                    f"{counted(repeated.count, 'event')} {what}",
                    _second(repeated.pairs[0]),
                    tuple(
                        f"{_second(pair)} repeats {pair.first_path} entry {pair.first_entry}" for pair in repeated.pairs
                    ),
                    "leave one out, as docs/howto/own-files.md does; merging overlapping files is the usual reason",
                )
        for path, found in facts.sample.light.items():
            if COPIED in found:
                yield self.error(
                    path, found[COPIED], "do not train on it; make the file again: one event was written for all"
                )


class SamplesAreDisjoint(Rule[DataFacts]):
    """A network validated on what it has seen always looks good."""

    code = "DAT-20"
    title = "Training and validation share no event"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield an error for one shared event or file; a warning where the configuration allows it."""
        allowed = facts.config is not None and facts.config.data.allow_overlap
        severity = Severity.WARNING if allowed else Severity.ERROR
        if facts.shared_files:
            names = ", ".join(facts.shared_files[:3])
            problem = f"files of the same content are in both samples ({len(facts.shared_files)}): {names}"
            yield Finding(self.code, severity, problem, facts.shared_files[0], fix=_apart(facts))
        elif facts.shared is not None and facts.shared.count:
            pairs = facts.shared.pairs
            yield Finding(
                self.code,
                severity,
                f"validation shares {facts.shared.count} event{'s' if facts.shared.count > 1 else ''} with training",
                _second(pairs[0]) if pairs else facts.whole,
                tuple(f"{_second(pair)} is {pair.first_path} entry {pair.first_entry}" for pair in pairs),
                "split by run, so that no run is in both",
            )


def _apart(facts: DataFacts) -> str:
    """Return the check with the files of the other sample that are in it alone; to fill in where none or many are."""
    others = [file for file in facts.other.files if file.where not in facts.shared_files] if facts.other else []
    alone = [plain_name(file.path, file.tree) for file in others]
    named = alone if 0 < len(alone) <= _SHOWN else ["PATH"]
    remark = "   # without those in both" if named is alone else "   # files that are not in the first sample"
    if facts.together:  # of the configuration
        value = named[0] if len(named) == 1 else inline_yaml(named)
        return f"--set {in_shell(f'data.val_path={value}')}{remark}"
    first = facts.sample.files[0]
    words = " ".join(f"--against {in_shell(name)}" for name in named)
    return f"xectool check-data {arguments(first.path, first.tree)} {words}{remark}"


class EventsComeInNoOrder(Rule[DataFacts]):
    """Events sorted by a target bias every step towards one end of it, unless they are shuffled over all files."""

    code = "DAT-21"
    title = "Events come in no order"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield a warning for light or time that jumps, file means that drift, and neighbours that are alike."""
        yield from odd_stretches(facts, jumps=True)
        yield from (_once_shuffled(found, facts) for found in self._orders(facts))

    def _orders(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield a warning for file means that drift, and for neighbours that are alike."""
        for task, scan in facts.sample.targets.items():
            if scan.odd_units:  # a file in another unit is told of as such, and explains both
                continue
            rows = scan.kept.rows
            sigma = rows.std(axis=0) if len(rows) else np.zeros(scan.width)
            varies = sigma > 0
            where = f"{facts.whole} branch {scan.branch}"
            fix = f"--set data.shuffle=true --set data.chunksize={_WINDOW}"
            if len(scan.file_means) > 1:
                means = np.array([mean for _, _, mean in scan.file_means])
                counts = np.array([count for _, count, _ in scan.file_means])
                gap = np.abs(means - np.average(means, axis=0, weights=counts)) / np.where(varies, sigma, np.inf)
                sure = gap > np.maximum(_DRIFT, _SURE / np.sqrt(counts)[:, None])
                if sure.any():
                    row, part = (int(axis) for axis in np.unravel_index(np.where(sure, gap, 0).argmax(), gap.shape))
                    yield self.warning(
                        f"{scan.file_means[row][0]} branch {scan.branch}",
                        f"the mean of {task}[{part}] drifts from file to file, by up to {gap[row, part]:.2f} sigma",
                        fix,
                    )
            yield from self._neighbours(task, scan, where, fix)

    def _neighbours(self, task: str, scan: TargetScan, where: str, fix: str) -> Iterator[Finding]:
        """Yield a warning where neighbours are alike: in files, where not in all of them, or in the whole stream."""
        odd = [order for order in scan.file_orders if _foretells(*order[1:])]
        found = (where, scan.order.correlation, scan.order.pairs)
        if 0 < len(odd) < len(scan.file_orders):
            found = (f"{odd[0][0]} branch {scan.branch}", *odd[0][1:])
        if not _foretells(*found[1:]):
            return
        likeness = np.abs(found[1])
        part = int(likeness.argmax())
        many = f"; {len(odd)} of {len(scan.file_orders)} files" if found[0] != where else ""
        problem = f"task {task}[{part}] of an event foretells that of the next: correlation {likeness[part]:.2f}{many}"
        yield replace(self.warning(found[0], problem, fix), evidence=tuple(path for path, *_ in odd[:_SHOWN] if many))


def _once_shuffled(found: Finding, facts: DataFacts) -> Finding:
    """Return what is told of an order; a note without a line where the settings hide it: they would be told again."""
    data = facts.settings.data
    is_hidden = data.shuffle and data.chunksize >= _WINDOW
    return replace(found, severity=Severity.INFO, fix="") if is_hidden else found


def _foretells(correlation: Any, pairs: int) -> bool:
    return bool((np.abs(correlation) > max(_CORRELATION, _SURE / np.sqrt(max(pairs, 1)))).any())


class SamplesAreAlike(Rule[DataFacts]):
    """What differs between two samples, a network learns as if it were physics."""

    code = "DAT-22"
    title = "Both samples are alike"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield a warning for each quantity that differs."""
        for item in facts.likeness:
            if item.differs:
                yield self.warning(
                    f"{facts.whole} {item.quantity}",
                    f"{item.quantity} differs between the samples: KS {item.ks:.3f} (p {item.p_value:.1g} with "
                    f"{item.first} and {item.second} events), means {item.effect:+.2f} sigma apart",
                    "expected between simulation and data; training and validation have to be alike",
                )


def _second(pair: SameEvent) -> str:
    return f"{pair.path} entry {pair.entry} {event_named(pair.run, pair.event)}"


SAMPLE_RULES: tuple[Rule[DataFacts], ...] = (
    EventsAreUnique(), SamplesAreDisjoint(), EventsComeInNoOrder(), SamplesAreAlike(),
)  # fmt: skip
