"""``diagnose reproducibility``: do two short runs of a configuration give the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xectool.config.document import CONFIG_FILE
from xectool.config.load import load_config
from xectool.errors import UsageError, counted, in_shell
from xectool.findings import Finding, Severity
from xectool.probes.repetition.reproducibility import ACROSS, Cure, Difference, Reproducibility, probe

PROCESSES = 2

_DRAWING: Final = ("rand", "bernoulli", "normal", "uniform", "dropout", "exponential", "multinomial")


@dataclass(frozen=True)
class ReproducibilityResult:
    """What two short runs show.

    Attributes:
        identical: Whether all runs are the same bit for bit.
        first_difference: Step, stage, module and operation that first differ; None where nothing does.
        cure: The setting with which the runs were the same; empty where none was found or none is needed.
        tried: Settings that were tried, in order.
        steps: Steps of each run.
        compared: Operations that were compared.
        threads: Threads of the two processes.
        notes: What was not looked at.
        findings: The difference with its cure.
    """

    identical: bool
    first_difference: Difference | None
    cure: str
    tried: tuple[Cure, ...]
    steps: int
    compared: int
    threads: tuple[int, int]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}


def reproducibility(
    config: str | Path,
    *,
    overrides: Sequence[str] = (),
    steps: int = 3,
    threads: Sequence[int] = (),
    device: str | None = None,
) -> ReproducibilityResult:
    """Run the first steps of a configuration twice in one process and once in another, and compare every operation.

    Args:
        config: YAML file or run directory.
        overrides: ``key=value`` settings that go before the file's.
        steps: Steps of each run.
        threads: Threads of the two processes, one number for both or two; by default the machine's choice.
        device: Device that goes before the configuration's.

    Raises:
        XecError: Anything the user can act on.
    """
    if steps < 1:
        raise UsageError(f"nothing can be compared in {counted(steps, 'step')}", where="--steps", fix="--steps 3")
    if len(threads) > PROCESSES or any(number < 1 for number in threads):
        raise UsageError("threads of the two processes: one number or two", where="--threads", fix="--threads 1,2")
    path = Path(config).expanduser()
    path = path / CONFIG_FILE if path.is_dir() else path
    loaded = load_config(path, overrides).config
    found = probe(loaded, str(path), device, steps, threads)
    command = " ".join([in_shell(path), *(f"--set {in_shell(setting)}" for setting in overrides)])
    cure = next((cure.setting for cure in found.cures if cure.identical), "")
    notes = ["steps are run eager, whatever training.compile says"] if loaded.training.compile != "none" else []
    return ReproducibilityResult(
        identical=found.difference is None,
        first_difference=found.difference,
        cure=cure,
        tried=found.cures,
        steps=found.steps,
        compared=found.compared,
        threads=found.threads,
        notes=tuple(notes),
        findings=() if found.difference is None else (_finding(found, found.difference, cure, command),),
    )


def _cause_in_code(op: str, between: str) -> str:
    """Return what in the code of a network makes an operation differ that no setting makes the same."""
    if any(word in op for word in _DRAWING):
        return (
            "most likely it draws from a generator of its own, or the common one is seeded anew; without generator= "
            "and torch.seed() it draws from the stream of the batch"
        )
    if between == ACROSS:
        return "what each process has its own enters: its number, an address (id()), a path, the time it began"
    return "threads of its own work in an order of their own, or the time, or random numbers from elsewhere enter"


def _finding(found: Reproducibility, difference: Difference, cure: str, command: str) -> Finding:
    module = difference.module or "the network itself"
    evidence = [f"sums of its result: {difference.first or 'none'} and {difference.second or 'none'}"]
    evidence += [
        f"{tried.setting}: {tried.problem or ('identical' if tried.identical else 'still different')}"
        for tried in found.cures
    ]
    if not cure:
        evidence.append(f"no setting ends it: {_cause_in_code(difference.op, difference.between)}")
    line = f"xectool train {command} {cure}" if cure.startswith("--set") else f"{cure} xectool train {command}"
    return Finding(
        "XT-NOT-REPRODUCIBLE",
        Severity.ERROR,
        f"two runs {difference.between} differ from step {difference.step} on, first in {difference.op} of {module} "
        f"({difference.stage})",
        where=difference.module or difference.stage,
        evidence=tuple(evidence),
        fix=line if cure else "xectool explain reproducibility",
    )
