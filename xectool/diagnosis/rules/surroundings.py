"""Around the run: the tracking database, ranks that differ, and what the guards noted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.rules.crash import first_line
from xectool.diagnosis.rules.heads import HEADS, silent_blocks
from xectool.errors import counted, in_shell
from xectool.findings import Severity
from xectool.runlog.records import EpochRecord

WARN_AFTER_S: Final = 10.0  # shorter waits are normal where runs share a database
_LOCKED: Final = "locked"
ENCODER: Final = "encoder"  # symptom of a network of which only the heads are trained: the one that leads elsewhere
_FACES: Final = ("head_", "dec_")  # parts of one face each


class TrackerStalled(DiagnosisRule):
    """The mirror of the run cannot write."""

    code = "XT-TRACKER-DOWN"
    title = "tracking stands still: the database is locked or gone"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the run is not tracked."""
        return "" if evidence.tracker or evidence.of("tracker") else "the run is not tracked"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Read what the mirror said last, and what the training was told."""
        state: dict[str, Any] = dict(evidence.tracker)
        event = evidence.last("tracker")
        since = number(state.get("failing_since"))
        late = state.get("status") == "late"  # nothing failed: a training that was stopped gives its mirror seconds
        # The mirror of a run that has ended is done, late or behind; while it pauses it still tries.
        failing = state.get("status") == "behind" or (
            state.get("status") == "paused" and since > 0 and evidence.now - since > WARN_AFTER_S
        )
        if not failing and not late and event is None:
            return
        said = str(state.get("error") or "") if failing or late else ""
        text = first_line(event) if event and not (failing and said) else said
        holder = event.data.get("holder") if event else None
        locked = _LOCKED in f"{text} {event.message if event else ''}".lower()
        uri = str(state.get("uri") or "")  # the mirror wrote it without the password that its settings may hold
        lines = [text or "the mirror is behind", *([f"database {uri}"] if uri else [])]
        if holder:
            lines.append(f"held by {holder}")
        if event and not failing:
            status = state.get("status")
            word = "it has caught up since" if status == "done" else f"its last word: {status}" if status else ""
            lines += [said or word] if said or word else []
        how = "stands still" if failing else "stood still" if event else "is late"
        yield Cause(
            code="XT-DB-LOCKED" if locked else self.code,
            confidence=0.93,
            problem=f"tracking {how}: {text}; the training itself is not affected",
            evidence=tuple(lines),
            fix=_look(uri) if failing else f"xectool runs sync {fixes.quoted(evidence)}",
            severity=Severity.WARNING if failing or event else Severity.INFO,
            step=event.step if event else 0,
            symptom="tracking",
        )


def _look(uri: str) -> str:
    return f"xectool diagnose mlflow {in_shell(uri)}" if uri else "xectool diagnose mlflow"


_OF_THE_PROGRAM: Final = frozenset({"XT-NAN-LOSS", "XT-NAN-GRAD", "XT-AMP-OVERFLOW", "XT-NAN-WEIGHTS"})
"""Reasons for which events of training are left out and which those of validation meet as well."""


class ValidationNotFinite(DiagnosisRule):
    """Validation is finite where training is."""

    code = "XT-NAN-DATA"
    title = "only the validation is not finite"

    def unseen(self, evidence: Evidence) -> str:
        """Return that nothing was validated."""
        return "" if evidence.epochs else "no epoch has ended"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Look for a validation loss that is not finite in an epoch whose steps are."""
        found = [
            epoch
            for epoch in evidence.epochs
            if "val/loss" in epoch.metrics and not abs(epoch.metrics["val/loss"]) < float("inf")
        ]
        bad = evidence.steps.bad
        reasons = {str(event.data.get("reason")) for event in evidence.of("quarantine")}
        if not found or bool(bad.any()):
            return
        first = found[0]
        ruined = next((list(named) for event in evidence.of("validation") if (named := event.data.get("weights"))), [])
        if ruined:
            yield Cause(
                code="XT-NAN-WEIGHTS",
                confidence=0.95,
                problem=f"the weights that are validated are not finite by epoch {first.epoch}, all steps are: "
                f"{', '.join(ruined)}",
                evidence=(f"training.ema_decay {evidence.setting('training.ema_decay')}: their average is validated",),
                fix=fixes.continue_from_best(evidence, step=first.step),
                step=first.step,
                symptom="validation",
            )
            return
        module = next((name for event in evidence.of("validation") if (name := event.data.get("module"))), "")
        always = len(found) == sum("val/loss" in epoch.metrics for epoch in evidence.epochs)
        if module:
            yield _module_at_fault(evidence, module, first)
            return
        if reasons & _OF_THE_PROGRAM:
            return
        yield Cause(
            code=self.code,
            confidence=0.75 if always else 0.55,
            problem=f"the validation loss of epoch {first.epoch} is {first.metrics['val/loss']}, all steps are finite"
            + (" without the events that were left out of them" if reasons else ""),
            evidence=(f"{len(found)} of {len(evidence.epochs)} epochs",),
            fix=fixes.search_data(evidence, "val"),
            step=first.step,
            symptom="validation",
        )


def _module_at_fault(evidence: Evidence, module: str, first: EpochRecord) -> Cause:
    """Return that a module of the network is not finite in evaluation."""
    return Cause(
        code="XT-NAN-LOSS",
        confidence=0.9,
        problem=f"module {module} is not finite in validation though its inputs are, from epoch "
        f"{first.epoch} on; all steps are finite",
        evidence=(
            "events whose readings are all finite come out of it as NaN or Inf: no matter of data",
            "look for what it does in evaluation only: kept statistics, `if not self.training`",
        ),
        fix="xectool explain XT-NAN-LOSS",
        step=first.step,
        symptom="validation",
    )


class Noted(DiagnosisRule):
    """Abstract: what a guard noted and a rule passes on."""

    kind: ClassVar[str]
    severity: ClassVar[Severity] = Severity.WARNING
    problem: ClassVar[str]

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Pass on the first note."""
        events = evidence.of(self.kind)
        if not events:
            return
        first = events[0]
        facts = [f"{key}: {value}" for key, value in first.data.items()][:4]
        yield Cause(
            code=self.code,
            confidence=0.85,
            problem=self.problem,
            evidence=tuple(line[:300] for line in [first_line(first), *facts] if line),
            fix=self.fix(evidence),
            severity=self.severity,
            step=first.step,
            symptom=self.kind,
        )

    def fix(self, evidence: Evidence) -> str:
        """Return the explanation of the code."""
        return f"xectool explain {self.code}"


class RanksDiffer(Noted):
    """Ranks were started with different configuration, code or data."""

    code = "XT-RANK-MISMATCH"
    title = "ranks were started with different configuration, code or data"
    kind = "hash_mismatch"
    severity = Severity.ERROR
    problem = "a rank was started with another configuration, code or data"


class LazyState(Noted):
    """A module creates state in its forward pass."""

    code = "XT-LAZY-STATE"
    title = "a module creates state in its forward pass"
    kind = "lazy_state"
    problem = "modules create state in their first forward pass, which several ranks cannot do safely"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Pass on the first note, which is no fault of a single process."""
        started = evidence.last("run_start")
        alone = started is not None and number(started.data.get("world_size")) == 1
        for cause in super().look(evidence):
            yield replace(cause, severity=Severity.INFO) if alone else cause


class MetricKeepsGraph(Noted):
    """A metric keeps the graph alive."""

    code = "XT-METRIC-GRAPH"
    title = "a metric keeps the graph of its step alive"
    kind = "metric_graph"
    problem = "a metric keeps the graph of its step alive, and with it all activations"


class CompileSuppressed(Noted):
    """Failures of the compiler are hidden."""

    code = "XT-COMPILE-SUPPRESSED"
    title = "failures of torch.compile are hidden"
    kind = "compile_suppressed"
    severity = Severity.INFO
    problem = "failures of torch.compile are hidden, so parts may run uncompiled"


class CudagraphSkipped(Noted):
    """Parts run without CUDA graphs."""

    code = "XT-CUDAGRAPH-SKIP"
    title = "compiled graphs run without CUDA graphs"
    kind = "cudagraph_skip"
    severity = Severity.INFO
    problem = "compiled graphs run without CUDA graphs"


class Nondeterministic(Noted):
    """An operation is not deterministic though that was asked for."""

    code = "XT-DETERMINISM"
    title = "an operation is not deterministic"
    kind = "determinism"
    severity = Severity.INFO
    problem = "an operation has no deterministic form, so runs may differ in the last digits"


class ZeroGradient(Noted):
    """Parameters without gradient outside the heads."""

    code = "XT-ZERO-GRADIENT"
    title = "parameters never get a gradient"
    kind = "zero_gradient"
    severity = Severity.INFO
    problem = "some parameters get no gradient"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report whole parts that no step of the run has trained; single parameters are a note."""
        others = (*_FACES, HEADS) if _hides_by_face(evidence) else HEADS
        silent = silent_blocks(evidence)
        parts = [name for name in silent if not name.startswith(others)]
        if not parts:
            yield from super().look(evidence)
            return
        trained = set(evidence.steps.blocks).difference(silent)
        trained = {name for name in trained if not name.startswith((*_FACES, HEADS))}
        rest = "while the rest of the network is" if trained else "only the heads are"
        yield Cause(
            code=self.code,
            confidence=0.87,
            problem=f"{', '.join(parts)}: not trained, {rest}",
            evidence=(f"no gradient in any of {counted(evidence.steps.good_rows.size, 'step')}: {', '.join(parts)}",),
            fix=f"xectool diagnose gradients {fixes.config_path(evidence)}",
            step=1,
            symptom="part" if trained else ENCODER,
        )


def _hides_by_face(evidence: Evidence) -> bool:
    """Return whether sensors are hidden where the configuration says, which may leave whole faces out."""
    patterns = ("model.mask_patterns.origins", "model.mask_patterns.sensors")
    return isinstance(evidence.setting("model.mask_ratio"), Mapping) or any(map(evidence.setting, patterns))


class MemoryNearLimit(Noted):
    """The host memory was nearly used up."""

    code = "XT-MEM-HIGH"
    title = "host memory was nearly used up"
    kind = "memory_warning"
    problem = "host memory was nearly used up"

    def fix(self, evidence: Evidence) -> str:
        """Return the command that shows where the memory goes."""
        return f"xectool diagnose memory {fixes.quoted(evidence)}"
