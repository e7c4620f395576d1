"""``inspect_ckpt``: what a checkpoint is, whether it is sound, what it is fit for; nothing in it is ever run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from xectool.checkpoint.another import use_another
from xectool.checkpoint.inspection.byte_rules import BYTE_RULES
from xectool.checkpoint.inspection.compare import PartCompared, TensorDifference, compare
from xectool.checkpoint.inspection.content_rules import CONTENT_RULES, tasks_of
from xectool.checkpoint.inspection.facts import Inspected, inspect
from xectool.checkpoint.inspection.fitness import Fitness, bit_exact, finished_epochs, fitness
from xectool.checkpoint.inspection.layout import OLDER
from xectool.checkpoint.inspection.origin_rules import ORIGIN_RULES
from xectool.checkpoint.inspection.state_rules import STATE_RULES
from xectool.checkpoint.inspection.structure_rules import STRUCTURE_RULES
from xectool.checkpoint.inspection.trust import UnsafeGlobal
from xectool.checkpoint.names import USE_ANOTHER
from xectool.config.document import CONFIG_FILE
from xectool.config.load import load_config
from xectool.config.root import RunConfig
from xectool.config.serialize import starting_from
from xectool.engine.checkpoints.extraction import target_of, write_part
from xectool.engine.checkpoints.facts import Section, TensorRow, lineage_of, parameters_of, sections_of, tensor_rows
from xectool.engine.checkpoints.rebuilding import outlook, rebuilt
from xectool.engine.checkpoints.resume_contract import KeyEffect, resume_contract
from xectool.engine.checkpoints.wording import fine_tuning, next_line, reasons, verdict
from xectool.engine.loading import assumptions
from xectool.findings import Finding, Severity
from xectool.rules import run_rules

_DIGEST: Final = {True: "verified", False: "does not hold", None: "not verified: none is stored"}


@dataclass(frozen=True)
class CheckpointInspected:
    """What was found out about a file.

    Attributes:
        path: The file.
        verdict: One sentence.
        why: Reasons for it, most important first.
        next: A line to paste.
        format: Whose layout it is, such as ``xectool``, ``older system``, ``Lightning 2.5.5``, ``ONNX, by pytorch``.
        container: How it is stored, as ``torch-zip``, ``torchscript``, ``torch-export``, ``safetensors`` or ``onnx``.
        kind: ``regressor``, ``mae``, ``inpainter``, ``encoder``, or a description of another network.
        epoch: Epoch as stored, None where it is not.
        step: Optimizer steps as stored, None where they are not.
        tasks: Loss by task of a regressor.
        parameters: Numbers in the raw weights, but for those of buffers where these are known.
        buffers: Numbers in its buffers, such as tables; None where nothing tells which tensors are buffers.
        finite: Whether every number in the file is finite.
        has_optimizer: Whether an optimizer state is there.
        has_ema: Whether averaged weights are there.
        config: Stored configuration; of the older system in our terms.
        sections: Parts of the file with tensors and bytes.
        sha256: Digest of the file.
        size_bytes: Size of the file.
        differences: Tensors that differ from another file, keys whose effect is not ``same``.
        fit_for: What it can be used for, and why not.
        bit_exact_resume: Whether a resume ends with the weights an uninterrupted run would have.
        bit_exact_missing: What is missing for that.
        checksums: What protects the bytes.
        content_digest: Whether the digest stored with the content holds: ``verified``, ``does not hold``, or ``not
            verified: none is stored``.
        prefixes: What wrappers had put in front of the names.
        unsafe_globals: Names that the safe loader refuses, with their place.
        lineage: Starting checkpoint, training files, versions, hashes of normalisation and geometry, learning rates to
            come (with ``--config`` its own).
        facts: What the format itself says, and what the layout keeps beside weights.
        contract: Effect of every key of ``--config``.
        tensors: Every tensor, where they were asked for.
        compared: Tensors equal bit for bit in the other file; None without one.
        parts: Of them and of those that are not, by part of the network.
        extracted: The file that was written.
        findings: Everything noticed.
    """

    path: str
    verdict: str
    why: tuple[str, ...]
    next: str
    format: str
    container: str
    kind: str
    epoch: int | None
    step: int | None
    tasks: Mapping[str, str]
    parameters: int
    buffers: int | None
    finite: bool
    has_optimizer: bool
    has_ema: bool
    config: Mapping[str, Any] | None
    sections: tuple[Section, ...]
    sha256: str
    size_bytes: int
    fit_for: tuple[Fitness, ...]
    bit_exact_resume: bool
    bit_exact_missing: tuple[str, ...]
    checksums: str
    content_digest: str
    prefixes: tuple[str, ...]
    unsafe_globals: tuple[UnsafeGlobal, ...]
    lineage: Mapping[str, Any]
    facts: Mapping[str, Any]
    differences: tuple[TensorDifference | KeyEffect, ...] = ()
    contract: tuple[KeyEffect, ...] = ()
    tensors: tuple[TensorRow, ...] = ()
    compared: int | None = None
    parts: tuple[PartCompared, ...] = ()
    extracted: str | None = None
    findings: tuple[Finding, ...] = field(default=())

    @property
    def is_bad(self) -> bool:
        """Whether the answer is "bad": damaged, unsafe, different, or not of this configuration."""
        wrong = any(found.severity is Severity.ERROR for found in self.findings)
        different = any(not isinstance(item, KeyEffect) or item.is_bad for item in self.differences)
        return wrong or different

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}


def inspect_ckpt(  # noqa: PLR0913 - the function is the command: one argument an option
    path: Path | str,
    *,
    config: Path | str | None = None,
    overrides: Sequence[str] = (),
    compare_with: Path | str | None = None,
    tensors: bool = False,
    extract: str | None = None,
    output: Path | str | None = None,
) -> CheckpointInspected:
    """Take a checkpoint apart without running anything in it.

    Args:
        path: The file: of ours, of the older system, of Lightning or timm; safetensors, TorchScript, ONNX.
        config: A configuration, to know what each of its keys would do to a resume.
        overrides: ``section.key=value`` strings for it.
        compare_with: Another file to compare tensor by tensor.
        tensors: Whether to list every tensor.
        extract: ``encoder``: write this part as a checkpoint of its own.
        output: Where to, ``.pt`` or ``.safetensors``.

    Raises:
        CheckpointError: The file cannot be read as a checkpoint, has no such part, or none that is sound.
        ConfigError: The configuration is not valid.
        UsageError: Options contradict each other.
    """
    place = Path(os.path.expanduser(path))
    target = target_of(place, extract, output)
    run = load_config(config, overrides).config if config is not None else None
    facts, findings = _judged(place)
    asked = [str(config), *(word for override in overrides for word in ("--set", override))]
    again = shlex.join(("xectool", "inspect-ckpt", str(path), "--config", *asked))
    contract: tuple[KeyEffect, ...] = ()
    if run is not None and extract is None:
        contract, notes = _contract(facts, run, again, shlex.join(("xectool", "train", *asked)))
        findings += () if any(item.code == "XT-PLUGIN" for item in findings) else notes  # nothing can be taken
    comparison = (
        None if compare_with is None else compare(facts.layout, inspect(Path(os.path.expanduser(compare_with))).layout)
    )
    keys = (item for item in contract if item.effect != "same")
    extracted = None if target is None else write_part(facts, findings, run, target)
    result = _described(place, facts, findings, run)
    result = replace(
        result,
        lineage={**result.lineage, **outlook(facts, run)},
        differences=(*keys, *(comparison.differences if comparison else ())),
        contract=contract,
        compared=comparison.num_same if comparison else None,
        parts=comparison.parts if comparison else (),
        extracted=extracted,
        tensors=tensor_rows(facts) if tensors else (),
    )
    result = _concluded(result, again, asked if run is not None else [_config_of(place)], compare_with)
    if extracted is None:
        return result
    return replace(result, next=fine_tuning(extracted, facts.layout.config if run is None else run.to_dict()))


def _config_of(checkpoint: Path) -> str:
    """Return the configuration that lies beside a checkpoint of a run, else the word for one."""
    beside = checkpoint.parent / CONFIG_FILE
    return str(beside) if beside.is_file() else "CONFIG"


def _concluded(
    result: CheckpointInspected, again: str, asked: Sequence[str], compare_with: Path | str | None
) -> CheckpointInspected:
    """Return the result with what it says of another file, and the line to paste for what was asked."""
    said, following = result.verdict, result.next
    fixes = [item.paste() for item in result.contract if item.is_bad]
    if fixes and following.startswith(again):  # nothing is wrong with the file itself
        following = " ".join((again, *fixes))
    number = sum(isinstance(item, TensorDifference) for item in result.differences)
    following = following.replace("train CONFIG", shlex.join(("train", *asked)))
    if number:
        same = [part.name for part in result.parts if part.same == part.tensors]
        said += f"; tensors that differ from {compare_with}: {number}"
        said += f", none in {', '.join(same)}" if same else ""
    return replace(result, verdict=said, next=following)


def _judged(path: Path) -> tuple[Inspected, tuple[Finding, ...]]:
    """Return the facts of a file and what the rules say to them."""
    facts, notes = rebuilt(inspect(path))
    rules = (*BYTE_RULES, *ORIGIN_RULES, *STRUCTURE_RULES, *CONTENT_RULES, *STATE_RULES)
    report = run_rules(rules, facts).report
    taken = assumptions(facts.layout.meta, str(path)) if facts.layout.origin == OLDER else ()
    another = use_another(path)
    named = (replace(found, fix=found.fix.replace(USE_ANOTHER, another)) for found in report)
    return facts, (*named, *notes, *taken)


def _contract(
    facts: Inspected, run: RunConfig, again: str, start: str
) -> tuple[tuple[KeyEffect, ...], tuple[Finding, ...]]:
    """Return the effect of every key, and a finding for each that is bad.

    Args:
        facts: The checkpoint.
        run: What it is held against.
        again: The command that does the same again.
        start: The command that trains the configuration: of another kind, only its encoder can be taken.
    """
    layout = facts.layout
    if not layout.is_ours or layout.config is None:
        problem = "the file stores no configuration to hold this one against"
        return (), (Finding("K15", Severity.WARNING, problem, str(facts.contents.path)),)
    effects = resume_contract(layout.config, run, layout.meta, is_older=layout.origin == OLDER)
    bad = [item for item in effects if item.is_bad]
    view = [item.paste() for item in bad if item.key != "kind"]
    taken = " ".join((start, starting_from(facts.contents.path), *view)) if len(view) < len(bad) else ""
    findings = tuple(
        Finding(
            "CFG-46",
            Severity.ERROR,
            f"{item.line()}: {item.effect} ({item.why})",
            item.key,
            fix=taken or " ".join((again, *view)),  # one of them alone would be refused again
        )
        for item in bad
    )
    return effects, findings


def _described(
    path: Path, facts: Inspected, findings: tuple[Finding, ...], run: RunConfig | None
) -> CheckpointInspected:
    contents, layout = facts.contents, facts.layout
    exact, missing = bit_exact(facts)
    done = finished_epochs(facts.layout, run.training.epochs if run is not None else None)
    fit = fitness(facts, done)
    errors = [found for found in findings if found.severity is Severity.ERROR]
    parameters, buffers = parameters_of(facts)
    return CheckpointInspected(
        path=str(path),
        verdict=verdict(facts, errors),
        why=reasons(fit, errors),
        next=next_line(path, facts, fit, errors, done),
        format=layout.origin,
        container=contents.format,
        kind=layout.kind,
        epoch=layout.epoch,
        step=layout.step,
        tasks=tasks_of(layout),
        parameters=parameters,
        buffers=buffers,
        finite=not facts.nonfinite,
        has_optimizer=facts.optimizer is not None,
        has_ema=bool(layout.weights.get("ema")),
        config=layout.config,
        sections=sections_of(facts),
        sha256=contents.sha256,
        size_bytes=contents.size_bytes,
        fit_for=fit,
        bit_exact_resume=exact,
        bit_exact_missing=missing,
        checksums=contents.checksums,
        content_digest=_DIGEST[facts.digest_holds],
        prefixes=layout.wrappers,
        unsafe_globals=tuple(contents.unsafe),
        lineage=lineage_of(facts),
        facts=dict(contents.facts),
        findings=findings,
    )
