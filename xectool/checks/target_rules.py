"""Rules on the truth: numbers, units, losses, and whether branches agree with each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from xectool.checks.cells import Cell
from xectool.checks.data_facts import DataFacts, event_place
from xectool.checks.impossible_truth import impossible_truths, in_other_unit, leaving_out_odd
from xectool.checks.known_truth import known_truth_findings, may_be_trained
from xectool.checks.light import ORDER, TIMES
from xectool.checks.sample import ANGLE_TOLERANCE
from xectool.checks.targets import FEWEST_EVENTS, TargetScan, scaled_error
from xectool.checks.unit_mends import truth_marker, units_of_truth
from xectool.config.root import RegressorConfig
from xectool.config.tasks import TaskConfig
from xectool.config.truth_mends import BY_HAND, constant_mends
from xectool.detector.truth_ranges import (
    NEVER_FILLED_FIX,
    RANGES,
    are_few,
    told_never_filled,
)
from xectool.errors import counted
from xectool.findings import Finding, Severity
from xectool.findings.mends import Change, Marker, Mend
from xectool.rules import Rule

_MAD_TO_SIGMA: Final = 1.4826
_FAR, _ALONE, _ABSURD = 8.0, 20.0, 1e4
_ROUND_LOSSES: Final = ("smooth_l1", "huber", "relative_smooth_l1")
_UNLIKE: Final = 0.3
_SHOWN: Final = 10
_ORDER_FIX: Final = "xectool explain DAT-25   # write sensors in the order of the geometry"
_SAME_EVENT: Final = "xectool explain XT-TRUTH-ELSEWHERE   # write"
_TRUTH_FIXES: Final = {
    "uvwFI": f"{_SAME_EVENT} the point of the first conversion of the same event",
    "angle": f"{_SAME_EVENT} the direction of the photon of the same event",
    "angleVec": f"{_SAME_EVENT} the direction of the photon of the same event",
    "energy": f"{_SAME_EVENT} the energy of the photon of the same event",
}

_MORE_THAN_ITS_PART: Final = 1.5


def enabled_tasks(facts: DataFacts) -> dict[str, TaskConfig]:
    """Return the tasks the configuration trains; none without one."""
    return facts.config.tasks.enabled() if isinstance(facts.config, RegressorConfig) else {}


class _Gaps(NamedTuple):
    """Distances of a truth from the median: of one event, of the others far away, of the rest."""

    own: float
    others: Any
    near: Any


class TruthIsSound(Rule[DataFacts]):
    """A truth that is no number, in another unit, or outside of the detector teaches nonsense."""

    code = "DAT-16"
    title = "Targets are finite and in their units"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield an error for truth that is often no number, warnings for a few such, constants, units, values."""
        for task, scan in facts.sample.targets.items():
            where = f"{facts.whole} branch {scan.branch}"
            yield from known_truth_findings(self.code, facts, task, scan)
            if scan.known > sum(count for _, count in scan.unfilled):
                yield from self._values(facts, task, scan, where)

    def _unfilled(self, task: str, scan: TargetScan, where: str, without: str = "") -> Iterator[Finding]:
        """Yield a warning, at the file that has most of such events where not all have their part of them."""
        worst = sorted(scan.unfilled, key=lambda file: -file[1])
        empty, num_files = sum(count for _, count in worst), len(scan.file_means)
        if not 0 < empty < scan.known:
            return
        named = worst[:_SHOWN] if worst[0][1] * num_files > _MORE_THAN_ITS_PART * empty else []
        place = f"{named[0][0]} branch {scan.branch}" if named and num_files > 1 else where
        evidence = tuple(f"{path}: {counted(count, 'event')}" for path, count in named if num_files > 1)
        fix = f"--set {without}   # or {NEVER_FILLED_FIX}" if without else NEVER_FILLED_FIX
        found = self.warning(place, told_never_filled(task, empty, scan.known), fix)
        yield replace(found, evidence=evidence)

    def _values(self, facts: DataFacts, task: str, scan: TargetScan, where: str) -> Iterator[Finding]:
        rows = scan.kept.rows
        units = units_of_truth(facts, task, scan)
        if units.seen:
            yield units.finding(Severity.ERROR if may_be_trained(facts, task) else Severity.WARNING)
        else:
            marked = truth_marker(facts, task, scan)
            yield from impossible_truths(self.code, facts, task, scan)
            yield from self._outlying(facts, task, scan) if marked is None else (marked,)
        without = leaving_out_odd(facts) if scan.zeros and may_be_trained(facts, task) else ""
        yield from self._unfilled(task, scan, where, without)
        if scan.is_constant:
            yield self._constant(facts, task, where, f"the truth of task {task} is {rows[0].tolist()} in every event")

    def _constant(self, facts: DataFacts, task: str, where: str, problem: str) -> Finding:
        """Return the error of a constant that is to have its scale of itself, which training refuses."""
        settings = enabled_tasks(facts).get(task)
        if settings is None:
            return self.info(where, problem, "leave the task out")
        if facts.is_training and "auto" in (settings.scale, settings.shift):
            problem = f"{problem}: training refuses it with an automatic scale"
            return self.error(where, problem, constant_mends(task, enabled_tasks(facts))[0])
        return self.warning(where, problem, "leave the task out")

    def _outlying(self, facts: DataFacts, task: str, scan: TargetScan) -> Iterator[Finding]:
        allowed = RANGES[task]
        rows = scan.kept.rows
        middle = np.median(rows, axis=0)
        spread = _MAD_TO_SIGMA * np.median(np.abs(rows - middle), axis=0)
        for part in range(scan.width):
            for cell, below in ((scan.lowest[part], True), (scan.highest[part], False)):
                if cell is None:
                    continue
                outside = cell.value < allowed.low[part] if below else cell.value > allowed.high[part]
                gaps = np.abs(rows[:, part] - middle[part])
                gap = abs(cell.value - middle[part])
                sigmas = float(gap / spread[part]) if spread[part] > 0 else 0.0
                if outside:  # told of as such
                    continue
                if _ALONE < sigmas <= _ABSURD:
                    near = gaps <= _ALONE * spread[part]
                    far = gaps[~near]
                    others = np.delete(far, np.flatnonzero(far == gap)[:1])
                    yield from self._few(facts, task, scan, cell, sigmas, _Gaps(float(gap), others, gaps[near]))
                else:
                    yield from self._far(facts, task, scan, cell, sigmas)

    def _few(
        self, facts: DataFacts, task: str, scan: TargetScan, cell: Cell, sigmas: float, gaps: _Gaps
    ) -> Iterator[Finding]:
        """Yield a warning where few events have more of the variance, the square of a scale, than all the rest."""
        num_far, square = 1 + len(gaps.others), float((gaps.near**2).mean())
        far = float((gaps.others**2).sum()) / (len(gaps.others) + len(gaps.near)) + gaps.own**2 / scan.known
        factor = float(np.sqrt(1 + far / square))
        if facts.is_compared or factor < np.sqrt(2) or not are_few(num_far, len(gaps.near)):
            yield from self._far(facts, task, scan, cell, sigmas)
            return
        those, them = ("this one makes", "it") if num_far == 1 else (f"{num_far} such make", "them")
        yield self.warning(
            f"{event_place(cell, scan.branch)} component {cell.sensor}",
            f"the truth of task {task} is {cell.value:.6g} {RANGES[task].unit}, {sigmas:.3g} sigma from the rest of "
            f"{scan.known} events: {those} an automatic scale {factor:.2g} times as wide",
            f"leave {them} out, or --set tasks.{task}.scale={np.sqrt(square):.3g}",
        )

    def _far(self, facts: DataFacts, task: str, scan: TargetScan, cell: Cell, sigmas: float) -> Iterator[Finding]:
        where = f"{event_place(cell, scan.branch)} component {cell.sensor}"
        unit = RANGES[task].unit
        if sigmas > _ABSURD:
            marker = Marker(cell.value, cell.sensor if scan.width > 1 else None)
            mend = Mend(*facts.place_of(cell.path), scan.branch, Change((marker,)))
            problem = f"the truth of task {task} is {cell.value:.6g} {unit}: {sigmas:.3g} sigma from the rest"
            yield replace(self.warning(where, problem, BY_HAND), mends=(mend,))
        elif sigmas > _FAR:
            yield self.info(where, f"the truth of task {task} reaches {cell.value:.6g} {unit}, {sigmas:.1f} sigma away")


class LogarithmsExist(Rule[DataFacts]):
    """The logarithm of what is not positive is no number."""

    code = "DAT-17"
    title = "Targets of log_transform are positive"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield an error for each task with log_transform whose truth is not positive."""
        for task, settings in enabled_tasks(facts).items():
            scan = facts.sample.targets.get(task)
            if scan is None or not settings.log_transform or not scan.nonpositive:
                continue
            low = min((cell for cell in scan.lowest if cell is not None), key=lambda cell: cell.value)
            yield self.error(
                event_place(low, scan.branch),
                f"tasks.{task}.log_transform needs a truth above 0; {scan.nonpositive} of {scan.known} have none "
                f"(smallest {low.value:.6g})",
                f"--set tasks.{task}.log_transform=false",
            )


class BetaSuitsTheError(Rule[DataFacts]):
    """Far above the error the loss is a square, far below it an absolute value, whatever it is called."""

    code = "DAT-18"
    title = "loss_beta suits the typical error"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield a warning for a beta ten times above, or a hundred times below, the typical error."""
        for task, settings in enabled_tasks(facts).items():
            scan = facts.sample.targets.get(task)
            if scan is None or scan.known < 2 or settings.loss_fn not in _ROUND_LOSSES:
                continue
            scale, typical = scaled_error(settings, scan.kept.rows)
            if typical <= 0 or 0.01 * typical <= settings.loss_beta <= 10 * typical:
                continue
            if settings.scale != "auto" and in_other_unit(task, scan):  # its unit is to be mended first
                continue
            fix = "loss_beta=1" if settings.scale == "auto" else f"scale=auto --set tasks.{task}.shift=auto"
            kind = "always in quadratic mode (effectively MSE)" if settings.loss_beta > typical else "effectively L1"
            yield self.warning(
                f"tasks.{task}.loss_beta",
                f"tasks.{task}.loss_beta {settings.loss_beta:g} against a typical error of {typical:.3g} (scale "
                f"{scale:.3g}): {settings.loss_fn} is {kind}",
                f"--set tasks.{task}.{fix}",
            )


class BranchesAgree(Rule[DataFacts]):
    """The same thing written twice has to be the same; sensors have to be where the geometry says."""

    code = "DAT-25"
    title = "Branches agree with each other"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield a warning where angle and vector, sensors or truth do not fit; an error for times read as light."""
        count, worst, cell = facts.sample.angle_gaps
        angle = facts.sample.targets.get("angle")
        names = facts.settings.data.truth_branches
        if count and cell and not (angle is not None and in_other_unit("angle", angle)):
            yield self.warning(
                event_place(cell, names["angleVec"]),
                f"'{names['angle']}' and '{names['angleVec']}' differ by more than {ANGLE_TOLERANCE:g} in {count} "
                f"events, by up to {worst:.3g}",
                "make both branches from the same direction, theta from +z and phi from -x towards +y, in degrees",
            )
        if facts.exchanged:
            data = facts.settings.data
            problem = f"its numbers are times in s and are read as photons, those of '{data.time_branch}' as times"
            yield self.error(f"{facts.whole} branch {data.npho_branch}", problem, facts.exchanged)
            return
        yield from self._order(facts)
        yield from self._light(facts)

    def _order(self, facts: DataFacts) -> Iterator[Finding]:
        by_file = facts.sample.order_likeness
        odd = [path for path, likeness in by_file.items() if likeness < _UNLIKE]
        where, likeness, many = facts.whole, facts.order_likeness, ""
        if odd and len(odd) < len(facts.sample.usable):
            where, likeness, many = odd[0], by_file[odd[0]], f" in {len(odd)} of {len(facts.sample.usable)} files"
        elif facts.sample.scanned < FEWEST_EVENTS or not likeness < _UNLIKE:
            return
        found = self.warning(
            f"{where} branch {facts.settings.data.npho_branch}",
            f"neighbouring sensors of the inner face do not see the same light{many} (correlation {likeness:.2f}; with "
            "sensors in the order of the geometry it is above 0.5)",
            _ORDER_FIX,
        )
        shown = tuple(f"{path}: correlation {by_file[path]:.2f}" for path in odd[:_SHOWN])
        yield replace(found, evidence=shown)

    def _light(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield where the light of files lies elsewhere; what neighbours tell of explains that as well."""
        judged, data = facts.sample.light, facts.settings.data
        shuffled = {path for path, likeness in facts.sample.order_likeness.items() if likeness < _UNLIKE}
        told = [(ORDER, data.npho_branch, _ORDER_FIX), (TIMES, data.time_branch, _ORDER_FIX)]
        told += [(task, data.truth_branches[task], fix) for task, fix in _TRUTH_FIXES.items()]
        for name, branch, fix in told:
            odd = {path: found[name] for path, found in judged.items() if name in found and path not in shuffled}
            if not odd:
                continue
            path, many = next(iter(odd)), f", in {len(odd)} of {len(judged)} files" if len(judged) > 1 else ""
            shown = tuple(f"{path}: {message}" for path, message in list(odd.items())[:_SHOWN])
            yield replace(self.warning(f"{path} branch {branch}", f"{odd[path]}{many}", fix), evidence=shown)


TARGET_RULES: tuple[Rule[DataFacts], ...] = (
    TruthIsSound(), LogarithmsExist(), BetaSuitsTheError(), BranchesAgree(),
)  # fmt: skip
