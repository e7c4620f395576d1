"""``export``: a network as ONNX, TorchScript, ``.pt2`` or safetensors, compared with the original before it is kept."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from xectool.checkpoint.format import Checkpoint
from xectool.engine.exports.events import VerifyEvents, yardsticks
from xectool.engine.exports.sources import require_sound, source_of
from xectool.engine.loading import LoadedModel, assumed_losses, check_options, load_checkpoint, ready_model, told_of
from xectool.engine.output_places import files_read, require_file_place
from xectool.errors import UsageError, in_shell, nearest, unknown_choice
from xectool.export import exporter
from xectool.export.description import Description
from xectool.export.exporter import Exported, Order
from xectool.export.formats import ASKED_FOR, FORMATS, SUFFIXES
from xectool.export.graphs import NORMALIZED, RAW, ExportGraph, RegressorGraph, make_graph
from xectool.export.parity import Agreement
from xectool.export.ports import Port
from xectool.findings import Finding
from xectool.training.process.progress import NullObserver, Observer


@dataclass(frozen=True)
class ExportResult:
    """What was exported.

    Attributes:
        path: The file.
        format: ``onnx``, ``torchscript``, ``pt2`` or ``safetensors``.
        inputs: What it takes.
        outputs: What it gives, in order.
        verified_events: Ordinary events on which it was compared.
        max_abs_diff: Largest difference of each output, in its unit.
        max_rel_diff: Largest relative difference of each output.
        agreement: All figures of the comparison, by output.
        edge_cases: Edge cases on which it was compared.
        batch_sizes: Batch sizes on which it was compared.
        verified_on: What the events were.
        weights: Which weights were exported: ``ema``, ``model`` or ``best``.
        tasks: Exported tasks.
        inputs_mode: ``raw`` or ``normalized``.
        opset: ONNX opset; 0 in other formats.
        providers: What ran it for the comparison.
        files: All files written.
        size_bytes: Their size.
        checkpoint_sha256: Digest of the checkpoint.
        findings: What is worth knowing.
    """

    path: str
    format: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    verified_events: int
    max_abs_diff: Mapping[str, float]
    max_rel_diff: Mapping[str, float]
    agreement: tuple[Agreement, ...]
    edge_cases: int
    batch_sizes: tuple[int, ...]
    verified_on: str
    weights: str
    tasks: tuple[str, ...]
    inputs_mode: str
    opset: int
    providers: tuple[str, ...]
    files: tuple[str, ...]
    size_bytes: int
    checkpoint_sha256: str
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}


def export(  # noqa: PLR0913 - the function is the command: one argument an option
    checkpoint: str | Path,
    *,
    to: str | None = None,
    output: str | Path | None = None,
    tasks: Sequence[str] = (),
    inputs: str = RAW,
    weights: str = "auto",
    verify_on: Sequence[str] = (),
    max_events: int | None = None,
    names: Sequence[str] = (),
    observer: Observer | None = None,
) -> ExportResult:
    """Export the network of a checkpoint, and compare what the file gives with the network itself.

    Args:
        checkpoint: Of ours or of the older system; sound, or it is refused.
        to: ``onnx``, ``torchscript``, ``pt2`` or ``safetensors``; None goes by the suffix of ``output``, else ONNX.
        output: The file; None is ``<checkpoint>.<suffix>`` in the working directory.
        tasks: Tasks of a regressor, in the order of the outputs; empty takes all.
        inputs: ``raw`` (readings in, physical units out) or ``normalized`` (network units in and out).
        weights: ``auto`` (EMA where present), ``ema``, ``model`` or ``best``.
        verify_on: ROOT files to compare on too; without, simulated events are taken.
        max_events: Compare on so many events of them at most; None is 1000.
        names: As of `predict`: what a checkpoint of the older system does not tell, and names in ``verify_on``.
        observer: Receives progress.

    Raises:
        OutputsDiffer: The file gives other numbers; it is not kept.
        XecError: Anything else the user can act on.
    """
    watching = observer or NullObserver()
    check_options(weights, 1, max_events)
    source = source_of(Path(os.path.expanduser(checkpoint)), weights)
    format_name, named = _target(source, to, output)
    reads = files_read([checkpoint, source], verify_on, weights)
    target = require_file_place(named, "--output", f"{source.stem}{SUFFIXES[format_name]}", reads)
    _check_mode(format_name, inputs)
    digest = require_sound(source, weights)
    stored = load_checkpoint(source, weights)
    loaded = ready_model(stored, source, weights, "cpu", told_of(stored, names))
    loaded.network.eval()
    graph = make_graph(loaded.network, tasks, inputs)
    watching.phase("predict events to compare on", 0)
    events = VerifyEvents(loaded, verify_on, max_events, [name for name in names if name not in loaded.told])
    first = events.first()
    order = Order(
        loaded.network,
        graph,
        cast(Any, loaded.network).normalizer,
        _description(loaded, graph, (format_name, inputs), (source.name, digest, _used(stored, weights))),
        format_name,
        yardsticks(loaded, graph, inputs, first, events.metrics()),
    )
    written = exporter.export(order, first, events.more(watching), target, watching)
    notes = (*loaded.notes, *assumed_losses(loaded, str(checkpoint), outputs_alone=True), *events.findings)
    return _result(order, written, events.title, notes)


def _result(order: Order, written: Exported, verified_on: str, findings: tuple[Finding, ...]) -> ExportResult:
    description = order.description
    return ExportResult(
        path=str(written.files[0]),
        format=order.format,
        inputs=description.inputs,
        outputs=description.outputs,
        verified_events=written.events,
        max_abs_diff={item.output: item.max_abs for item in written.agreements},
        max_rel_diff={item.output: item.max_rel for item in written.agreements},
        agreement=written.agreements,
        edge_cases=written.edge_cases,
        batch_sizes=written.batch_sizes,
        verified_on=verified_on,
        weights=description.weights,
        tasks=description.tasks,
        inputs_mode=description.inputs_mode,
        opset=description.opset,
        providers=written.providers,
        files=tuple(str(path) for path in written.files),
        size_bytes=sum(path.stat().st_size for path in written.files),
        checkpoint_sha256=description.checkpoint_sha256,
        findings=(*findings, *written.notes),
    )


def _target(source: Path, to: str | None, output: str | Path | None) -> tuple[str, Path]:
    """Return the format and the file, which agree with each other."""
    by_suffix = {suffix: name for name, suffix in _suffixes().items()}
    if to is not None and to not in FORMATS.names():
        raise unknown_choice("format", to, FORMATS.names(), "--to")
    told = (by_suffix | ASKED_FOR).get(Path(output).suffix.lower()) if output is not None else None
    name = to or told or "onnx"
    target = Path(os.path.expanduser(output)) if output is not None else Path(source.stem + SUFFIXES[name])
    if output is not None and told is None and to is None and not os.path.isdir(target):
        raise _no_format(target, output, by_suffix)
    if told is not None and told != name:
        raise UsageError(
            f"--to {name} and a file that ends in {target.suffix} contradict each other",
            where=f"--output {output}",
            fix=f"--output {in_shell(target.with_suffix(SUFFIXES[name]))}",
        )
    return name, target


def _no_format(target: Path, output: str | Path, by_suffix: Mapping[str, str]) -> UsageError:
    """Return that the name of a file does not say what to write."""
    suffix, known = target.suffix, list(by_suffix)
    ending = f"the suffix '{suffix}'" if suffix else "a name without suffix"
    near = nearest(suffix, [*known, *ASKED_FOR], count=1)
    meant = SUFFIXES[(dict(by_suffix) | ASKED_FOR)[near[0]] if near else "onnx"]
    named = target.with_suffix(meant) if suffix else target.with_name(f"{target.name.rstrip('.')}{meant}")
    return UsageError(
        f"the format is not known from {ending}: {', '.join(f'{end} is {by_suffix[end]}' for end in known)}",
        where=f"--output {output}",
        fix=f"--output {in_shell(named)}   # or --to {by_suffix[meant]}, which takes any name",
    )


def _suffixes() -> dict[str, str]:
    FORMATS.names()  # importing the formats registers their suffixes
    return SUFFIXES


def _check_mode(format_name: str, mode: str) -> None:
    if format_name == "safetensors" and mode == NORMALIZED:
        raise UsageError(
            "--inputs has no effect on safetensors: the file holds weights, no graph",
            where="--inputs normalized",
            fix="leave out --inputs, or --to onnx",
        )


def _used(stored: Checkpoint, weights: str) -> str:
    """Return which set of weights ``auto`` and ``best`` come to."""
    if weights == "best" and stored.best:
        return "best"
    if not stored.ema:
        return stored.held
    return "model" if weights == "model" else "ema"


def _description(
    loaded: LoadedModel, graph: ExportGraph, options: tuple[str, str], origin: tuple[str, str, str]
) -> Description:
    """Return what the file says of itself; ``options`` are format and inputs, ``origin`` name, digest and weights."""
    tasks = graph.tasks if isinstance(graph, RegressorGraph) else ()
    config = loaded.config.to_dict() if loaded.told else dict(loaded.checkpoint.config)
    if tasks:
        config["tasks"] = {
            name: {**section, "enabled": name in tasks} for name, section in loaded.config.to_dict()["tasks"].items()
        }
    covered = getattr(loaded.network, "covered", None)
    log_vars = getattr(loaded.network, "channel_log_vars", None)
    state = {
        "conventional": loaded.checkpoint.meta.get("conventional", {}),
        "task": _loss_state(loaded, tasks),
        "uncovered": [] if covered is None else (~covered).nonzero().flatten().tolist(),
        "channel_log_vars": None if log_vars is None else log_vars.detach().tolist(),
        "versions": loaded.checkpoint.meta.get("versions", {}),
    }
    format_name, mode = options
    return Description(
        kind=loaded.config.kind,
        inputs_mode=mode,
        tasks=tasks,
        inputs=graph.inputs,
        outputs=graph.outputs,
        config=config,
        checkpoint=origin[0],
        checkpoint_sha256=origin[1],
        weights=origin[2],
        state=state,
        opset=FORMATS[format_name].opset,
    )


def _loss_state(loaded: LoadedModel, tasks: Sequence[str]) -> dict[str, list[float]]:
    """Return what the loss learnt, of the exported tasks only."""
    chosen = [index for index, term in enumerate(loaded.task.terms) if not tasks or term in tasks]
    found = {}
    for name, value in loaded.task.state_dict().items():
        of_terms = value.ndim == 1 and len(value) == len(loaded.task.terms) and bool(tasks)
        found[name] = (value[chosen] if of_terms else value).flatten().tolist()
    return found
