"""``diagnose modules``: which modules take time and memory, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xectool.config.document import CONFIG_FILE
from xectool.config.load import load_config
from xectool.errors import UsageError
from xectool.findings import Finding
from xectool.probes.module_costs import CostReport, ModuleCost, measure
from xectool.probes.nonfinite.subject import of_config


@dataclass(frozen=True)
class ModulesResult:
    """What the modules of a network cost in one step.

    Attributes:
        modules: Every module without those in it, the slowest first.
        largest: Names of the modules that keep most for the backward pass, the largest first.
        events: Events of the measured step.
        steps: Measured steps.
        warmup: Steps before them.
        step_s: Seconds of forward and backward pass without clocks, median.
        measured_step_s: The same with clocks.
        overhead: Their ratio minus one; times of modules are larger by about as much.
        parameters: Numbers in all parameters.
        activation_bytes: What the step keeps for the backward pass.
        device: Where it was measured.
        precision: In which precision.
        notes: What should be known of the measurement.
        findings: None so far.
    """

    modules: tuple[ModuleCost, ...]
    largest: tuple[str, ...]
    events: int
    steps: int
    warmup: int
    step_s: float
    measured_step_s: float
    overhead: float
    parameters: int
    activation_bytes: int
    device: str
    precision: str
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}


def modules(
    config: str | Path,
    *,
    overrides: Sequence[str] = (),
    steps: int = 5,
    warmup: int = 2,
    device: str | None = None,
) -> ModulesResult:
    """Measure the modules of a configuration on its own events.

    Args:
        config: YAML file or run directory.
        overrides: ``key=value`` settings that go before the file's.
        steps: Measured steps.
        warmup: Steps before them.
        device: Device; the configuration's without.

    Raises:
        XecError: Anything the user can act on.
    """
    if steps < 1 or warmup < 0:
        raise UsageError(f"{steps} steps after {warmup} are nothing to measure", where="--steps", fix="--steps 5")
    path = Path(config).expanduser()
    loaded = load_config(path / CONFIG_FILE if path.is_dir() else path, overrides).config
    subject = of_config(loaded, None, device, max_events=loaded.data.batch_size)
    try:
        report = measure(subject.bench, list(subject.batches())[:1], steps, warmup)
    finally:
        subject.close()
    return _result(report, subject.bench.model, subject.bench.execution)


def _result(report: CostReport, model: Any, execution: Any) -> ModulesResult:
    largest = sorted(report.modules, key=lambda cost: -cost.activation_bytes)
    return ModulesResult(
        modules=report.modules,
        largest=tuple(cost.module for cost in largest if cost.activation_bytes),
        events=report.events,
        steps=report.steps,
        warmup=report.warmup,
        step_s=report.step_s,
        measured_step_s=report.measured_step_s,
        overhead=report.overhead,
        parameters=sum(p.numel() for p in model.parameters()),
        activation_bytes=sum(cost.activation_bytes for cost in report.modules),
        device=str(execution.device),
        precision=str(execution.autocast_dtype or "float32").removeprefix("torch."),
        notes=("measured eager and without activation checkpointing, whatever the configuration says",),
    )
