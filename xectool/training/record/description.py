"""Say what a run is: to the user at its start, and to the run directory for later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from xectool.config.document import CONFIG_FILE
from xectool.config.serialize import to_yaml
from xectool.runlog.atomic import write_text
from xectool.runlog.manifest import AttemptFacts, DataFileFacts, write_manifest
from xectool.training.process.device import numerics
from xectool.training.record.run_dir import RunPlace
from xectool.training.stepping.build import RunData
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress
from xectool.training.tracking import TrackerSettings, resolve_uri, run_params


def start_facts(parts: RunParts, data: RunData, place: RunPlace, progress: Progress) -> dict[str, Any]:
    """Return what the user should read before the first step."""
    training, batch = parts.config.training, parts.config.data.batch_size
    effective = batch * training.grad_accum_steps * parts.ranks.world_size
    return {
        "run": str(place.directory),
        "events": f"{data.train.num_events} to train on, {data.val.num_events} to validate on",
        "cache": data.cache,
        "batches": f"{parts.train_loader.plan.num_steps} of {batch} an epoch; effective batch = {effective} "
        "(data.batch_size x training.grad_accum_steps x ranks)",
        "parameters": _counted(parts.model),
        "epochs": f"{progress.epoch} to {training.epochs}"
        if progress.epoch <= training.epochs
        else f"all {training.epochs} done",
        "execution": parts.execution.notes,
        "note": place.notes,
    }


def data_files(data: RunData) -> list[DataFileFacts]:
    """Return the files of a run as they are now, those of training first."""
    samples = (("train", data.train), ("val", data.val))
    return [DataFileFacts.of(file.path, role, file.num_entries, file.tree) for role, of in samples for file in of.files]


def describe_run(parts: RunParts, data: RunData, directory: Path, attempt: int) -> None:
    """Write ``config.yaml`` (resolved) and ``manifest.json`` of an attempt.

    Raises:
        DiskError: The disk refuses.
    """
    write_text(directory / CONFIG_FILE, to_yaml(parts.config))
    facts = AttemptFacts(
        attempt=attempt,
        config=parts.config.to_dict(),
        data_files=data_files(data),
        seeds={"training.seed": parts.config.training.seed},
        extra={
            "execution": list(parts.execution.notes),
            "threads": torch.get_num_threads(),
            "deterministic": parts.config.training.deterministic,
            "numerics": numerics(parts.execution.device),
        },
    )
    write_manifest(directory, facts)


def tracker_settings(parts: RunParts, directory: Path, attempt: int) -> TrackerSettings | None:
    """Return where and as what the run is mirrored; None where tracking is off.

    Raises:
        ConfigError: The tracking URI cannot be used.
    """
    mlflow = parts.config.mlflow
    if not mlflow.enabled:
        return None
    facts = {
        "total_params": num_parameters(parts.model),
        "trainable_params": num_parameters(parts.model, trainable=True),
        "world_size": parts.ranks.world_size,
    }
    return TrackerSettings(
        uri=resolve_uri(mlflow.tracking_uri, parts.config.checkpoint.save_dir),
        experiment=mlflow.experiment,
        run_name=directory.name,
        params=run_params(parts.config.to_dict(), facts),
        attempt=attempt,
    )


def _counted(model: torch.nn.Module) -> str:
    """Return how many parameters are trained, and of how many, as those of ``inspect-ckpt`` are all of them."""
    trained, all_of_them = num_parameters(model, trainable=True), num_parameters(model)
    still = (name.split(".") for name, value in model.named_parameters() if not value.requires_grad)
    tasks: list[str] = []
    frozen: list[str] = []
    for head, *rest in dict.fromkeys(
        (words[0], *words[1:2]) if words[0] == "heads" else (words[0],) for words in still
    ):
        (tasks if rest else frozen).extend(rest or [head])
    why = [f"{', '.join(frozen)} frozen"] if frozen else []
    why += [f"no task {', '.join(tasks)}"] if tasks else []
    return f"{trained:,} trained" + (f" of {all_of_them:,}: {'; '.join(why)}" if why else "")


def num_parameters(model: torch.nn.Module, trainable: bool = False) -> int:
    """Return how many numbers the parameters of a model hold."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable)
