"""A checkpoint's network, rebuilt from what the file stores: whether it is the network that was saved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from xectool.checkpoint.extract import ENCODER
from xectool.checkpoint.inspection.facts import Inspected
from xectool.checkpoint.inspection.layout import XECTOOL, Layout
from xectool.checkpoint.inspection.training_state import scheduler_problem
from xectool.config.load import config_from_dict
from xectool.config.root import RunConfig, require_kind
from xectool.engine.checkpoints.bare import bare_misfits
from xectool.engine.checkpoints.moments import misplaced_moments
from xectool.engine.checkpoints.resume_contract import buffers_of, misfits
from xectool.errors import ConfigError, XecError
from xectool.findings import Finding, Severity
from xectool.models.build import build_model
from xectool.models.fingerprint import RECORDS, moved
from xectool.training.optimization.schedule import LearningRate

_OF_POSITIONS: Final = "cross_attn_head."
"""Tables of a head that may be computed from a file of positions; the weights bring their own."""
_COUNTERS: Final = "num_batches_tracked"
_PREVIEWED_EPOCHS: Final = 4


def rebuilt(facts: Inspected) -> tuple[Inspected, tuple[Finding, ...]]:
    """Return facts with what a network of the stored configuration says to them, and why there can be none.

    Of a file whose bytes or numbers are wrong, names and shapes are compared only.
    """
    layout = facts.layout
    if not layout.is_ours or not layout.main:
        return facts, ()
    if layout.config is None:
        return replace(facts, misfits=bare_misfits(layout)), ()
    if layout.kind == ENCODER or layout.config.get("kind") != layout.kind:
        return facts, ()
    try:
        require_kind(layout.kind, "meta.kind", str(layout.meta.get("kind_package", "")))
    except XecError as error:
        return facts, (Finding(error.code, Severity.ERROR, error.problem, error.where, fix=error.fix),)
    config = _without_positions(layout.config)
    try:
        facts = replace(facts, misfits=misfits(config, layout.main), buffers=buffers_of(config))
    except ConfigError as error:
        problem = f"the stored configuration is not valid: {error.problem}"
        return facts, (Finding("K15", Severity.ERROR, problem, "meta.config", fix="xectool config check CONFIG"),)
    if facts.misfits or facts.nonfinite or not facts.is_intact:
        return facts, ()
    with torch.random.fork_rng(devices=[]):
        network = build_model(config_from_dict(config, "the checkpoint's configuration"))
    tables = _foreign_tables(network.state_dict(), layout.main)
    facts = _with_moments(facts, network)
    differ = {} if tables else dict(_differences(network, layout))
    return replace(facts, foreign_tables=tables, outputs_differ=differ), ()


def _differences(network: nn.Module, layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield how outputs differ from those stored, by the set of weights; of a set with neither nothing is known."""
    shapes = {name: value.shape for name, value in layout.main.items()}
    for role, record in RECORDS.items():
        weights, stored = layout.weights.get(role), layout.meta.get(record)
        if not weights or not isinstance(stored, Mapping) or not stored:
            continue
        if {name: value.shape for name, value in weights.items()} != shapes:  # K09 says so
            continue
        network.load_state_dict(weights)
        if found := moved(network, stored):
            yield role, found


def _with_moments(facts: Inspected, network: nn.Module) -> Inspected:
    if facts.layout.origin != XECTOOL or facts.optimizer is None or facts.optimizer.problems:
        return facts
    found = misplaced_moments(network, facts.layout.training, tuple(facts.layout.weights.values()))
    return replace(facts, optimizer=replace(facts.optimizer, problems=found))


def _foreign_tables(own: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the index tables of a file that are not those of the same network here."""
    tables = {name: value for name, value in own.items() if not value.is_floating_point()}
    return tuple(
        name
        for name, value in tables.items()
        if not name.startswith(_OF_POSITIONS) and not name.endswith(_COUNTERS) and not torch.equal(value, stored[name])
    )


def _without_positions(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration that asks for no file of the machine it was trained on; the weights bring positions."""
    model = config.get("model")
    if not isinstance(model, Mapping) or not model.get("sensor_positions_file"):
        return dict(config)
    return dict(config) | {"model": dict(model) | {"sensor_positions_file": None}}


def outlook(facts: Inspected, run: RunConfig | None) -> dict[str, Any]:
    """Return hashes of what the network reads, and the learning rates of a run that goes on from the file.

    Args:
        facts: What was found out about the file.
        run: The configuration that would go on; None takes the stored one.
    """
    found: dict[str, Any] = dict(_digests(facts.layout))
    if facts.layout.is_ours and facts.misfits == () and facts.layout.training:
        rates = _learning_rates(facts.layout, run)
        found |= {"learning_rates": rates} if rates else {}
    return found


def _digests(layout: Layout) -> dict[str, str]:
    """Return hashes by which two checkpoints are seen to read events in the same way."""
    found = {}
    section = (layout.config or {}).get("normalization")
    if isinstance(section, Mapping):
        found["normalization_sha256"] = _short(json.dumps(section, sort_keys=True).encode())
    tables = {name: value for name, value in layout.main.items() if value.dtype == torch.int64 and value.ndim}
    if tables and layout.is_ours:
        parts = (
            f"{name} {list(tables[name].shape)}".encode() + tables[name].numpy().tobytes() for name in sorted(tables)
        )
        found["geometry_sha256"] = _short(b"".join(parts))
    return found


def _learning_rates(layout: Layout, run: RunConfig | None) -> dict[str, float]:
    """Return the rate of the next step and at the start of the next epochs, by epoch; empty where no run goes on."""
    schedule, progress = layout.meta.get("schedule"), layout.meta.get("progress")
    if not isinstance(schedule, Mapping) or not schedule or not isinstance(progress, Mapping) or not layout.config:
        return {}
    if scheduler_problem(layout):
        return {}
    config = run or config_from_dict(_without_positions(layout.config), "the checkpoint's configuration")
    try:
        rate = LearningRate(config.training, int(schedule["steps_per_epoch"]))
        rate.load_state_dict(dict(schedule))
        epoch, batch = int(progress["epoch"]), int(progress["batch"])
    except (KeyError, TypeError, ValueError):  # bit_exact_missing tells what a resume lacks
        return {}
    last = min(config.training.epochs, epoch + _PREVIEWED_EPOCHS)
    first = {"next step": rate(rate.place(epoch, batch))} if epoch <= config.training.epochs else {}
    return first | {f"epoch {number}": rate(rate.place(number, 0)) for number in range(epoch + 1, last + 1)}


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
