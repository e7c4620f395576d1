"""Loads exported files for predicting, as `loading` loads checkpoints."""

from __future__ import annotations

from pathlib import Path

import torch

from xectool.checkpoint.format import Checkpoint
from xectool.config.load import config_from_dict
from xectool.config.root import RegressorConfig, RunConfig
from xectool.engine.loading import LoadedModel
from xectool.errors import CheckpointError, UsageError
from xectool.export.formats import FORMATS
from xectool.export.graphs import RAW
from xectool.export.network import network_of
from xectool.findings import Finding, Severity
from xectool.tasks import build_task
from xectool.training.process.device import named_device, plan_execution, resolve_device


def load_exported(path: Path, format_name: str, weights: str, device: str | None) -> LoadedModel:
    """Return an exported file as a model that predicts.

    Args:
        path: The file.
        format_name: As `model_files.exported_format` gives it.
        weights: Must be ``auto``: a graph has one set.
        device: Device that goes before the configuration's; ``cuda`` needs onnxruntime-gpu for ONNX.

    Raises:
        XecError: The file cannot be run, xectool did not export it, or the device does not exist; a ``.pt2`` is never
            opened, as PyTorch unpickles and evaluates what stands in it.
    """
    if format_name == "pt2":
        raise CheckpointError(
            "the file would run code when loaded, so it was not: PyTorch unpickles and evaluates what stands in a .pt2",
            where=str(path),
            fix="predict with its checkpoint, or export that as ONNX: xectool export CKPT --to onnx",
            code="XT-CKPT-UNSAFE",
        )
    if weights != "auto":
        raise UsageError(
            f"--weights {weights} has no effect on an exported file: it holds one set of weights",
            where=f"--weights {weights}",
            fix="leave out --weights, or predict with the checkpoint",
        )
    chosen = _device(device, format_name)
    runtime = FORMATS[format_name].open(path, chosen)
    description = runtime.description
    config = config_from_dict(dict(description.config), str(path), package="")
    section = config.training.model_copy(update={"compile": "none", "amp": "off"})
    execution = plan_execution(section, "cpu" if format_name == "onnx" else chosen)
    network = network_of(runtime, config).to(execution.device)
    task = build_task(config, network).to(execution.device)
    learnt = {name: torch.tensor(value) for name, value in description.state.get("task", {}).items()}
    task.load_state_dict(learnt)
    meta = {
        "kind": description.kind,
        "config": dict(description.config),
        "conventional": description.state.get("conventional", {}),
    }
    origin = Checkpoint(meta, {}, origin=f"exported {format_name}")
    notes = (*runtime.notes, *folded(config, description.inputs_mode, str(path)))
    return LoadedModel(config, network, task, execution, origin, notes, format_name)


def folded(config: RunConfig, inputs_mode: str, where: str) -> tuple[Finding, ...]:
    """Say where photons do not tell what the network predicted: of a square, the sign is lost."""
    scheme = config.normalization.npho_scheme
    if isinstance(config, RegressorConfig) or inputs_mode != RAW or scheme not in ("sqrt", "anscombe"):
        return ()
    if "npho" not in config.model.predict_channels:
        return ()
    return (
        Finding(
            "XT-EXPORT-FOLDED",
            Severity.INFO,
            f"predictions are those of the checkpoint, val/loss may differ: it is of photons, which {scheme} makes the "
            "same of y and -y",
            where,
            fix=f"xectool export CKPT --inputs normalized --output FILE{Path(where).suffix}   # keeps what it says",
        ),
    )


def _device(device: str | None, format_name: str) -> str:
    """Return where to run: where nothing is said, a GPU only if the runtime has one.

    Raises:
        DeviceError: There is no such device; whether ONNX Runtime has a GPU is known when it has started.
    """
    if device not in (None, "auto"):
        return str(named_device(str(device)) if format_name == "onnx" else resolve_device(str(device)))
    if format_name == "onnx":
        from onnxruntime import get_available_providers

        return "cuda" if "CUDAExecutionProvider" in get_available_providers() else "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"
