"""The parameters of a run as a tracker shows them: flat names, those of the older system where it had one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_SECTIONS: Final = {
    "data": ("train_path", "val_path", "batch_size", "chunksize", "num_workers", "num_threads"),
    "normalization": (
        "npho_scale",
        "npho_scale2",
        "time_scale",
        "time_shift",
        "sentinel_time",
        "sentinel_npho",
        "npho_threshold",
        "npho_scheme",
    ),
    "model": (
        "geometry",
        "outer_mode",
        "outer_fine_pool",
        "hidden_dim",
        "encoder_dim",
        "dim_feedforward",
        "num_fusion_layers",
    ),
    "training": (
        "epochs",
        "lr",
        "lr_scheduler",
        "warmup_epochs",
        "weight_decay",
        "grad_clip",
        "grad_accum_steps",
        "amp",
        "compile",
        "ema_decay",
        "seed",
        "deterministic",
    ),
}
_FIDUCIAL: Final = ("u_max", "v_max", "w_min", "w_max")
_TASK: Final = ("loss_fn", "loss_beta", "weight")


def run_params(config: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters to track.

    Args:
        config: Resolved configuration as plain values.
        facts: What only the trainer knows: ``total_params``, ``trainable_params``, ``world_size``, …
    """
    found = dict(_section_params(config))
    found.update(_task_params(_mapping(config.get("tasks"))))
    found.update(_other_params(config))
    found.update({name: str(value) for name, value in facts.items()})
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return a section of a configuration that was read from a file, empty where something else stands in its place."""
    return value if isinstance(value, Mapping) else {}


def _section_params(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for section, names in _SECTIONS.items():
        values = _mapping(config.get(section))
        yield from ((name, str(values[name])) for name in names if name in values)


def _task_params(tasks: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    active = [name for name, values in tasks.items() if _mapping(values).get("enabled")]
    if active:
        yield "active_tasks", ",".join(active)
    for task in active:
        yield from ((f"task/{task}_{name}", str(tasks[task][name])) for name in _TASK if name in tasks[task])


def _other_params(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "kind", str(config.get("kind", ""))
    if "loss_balance" in config:
        yield "loss_balance", str(config["loss_balance"])
    checkpoint = _mapping(config.get("checkpoint"))
    yield "save_dir", str(checkpoint.get("save_dir", ""))
    yield "resume_state", str(checkpoint.get("resume_from"))
    fiducial = _mapping(_mapping(config.get("data")).get("fiducial"))
    yield "fiducial_enabled", str(bool(fiducial.get("enabled")))
    if fiducial.get("enabled"):
        yield from ((f"fiducial_{name}", str(fiducial.get(name))) for name in _FIDUCIAL)
