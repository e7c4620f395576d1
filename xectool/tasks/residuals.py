"""What the predictions of a set of events are worth, task by task, as numbers under their published names.

Axes: B events, D components of a target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from xectool.config.tasks import HEADLINE_METRICS
from xectool.tasks.directions import one_minus_cosine, opening_angle_deg, vector_angle_deg, wrap_deg

Columns = dict[str, np.ndarray]
Metrics = dict[str, float]

CONTAINED_PERCENT = 68.0


def residual_columns(
    task: str, prediction: np.ndarray, truth: np.ndarray, sigma: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Return what metrics of a task are computed from, as float32.

    Args:
        task: Task name.
        prediction: Physical units, shape (B, D).
        truth: Physical units, all known, shape (B, D).
        sigma: Predicted standard deviations, shape (B, D).

    Returns:
        ``residual`` (prediction - truth, angles wrapped), shape (B, D); ``sigma``; and for directions and positions
        ``opening`` (degrees) or ``cos_loss`` (1 - cos), shape (B,).
    """
    columns = {"residual": prediction - truth}
    if task == "angle":
        columns["residual"] = wrap_deg(torch.from_numpy(prediction - truth)).numpy()
        first, second = torch.from_numpy(prediction), torch.from_numpy(truth)
        columns["opening"] = opening_angle_deg(first, second).numpy()
        columns["cos_loss"] = one_minus_cosine(first, second).numpy()
    elif task in ("uvwFI", "angleVec"):
        angle = vector_angle_deg(torch.from_numpy(prediction), torch.from_numpy(truth)).numpy()
        columns["opening"] = angle
        columns["cos_loss"] = 2 * np.square(np.sin(np.radians(angle) / 2))
    elif task == "n_gamma":
        columns["correct"] = (prediction.argmax(-1) == truth.argmax(-1)).astype(np.float64)
    if sigma is not None:
        columns["sigma"] = sigma
    return {name: column.astype(np.float32) for name, column in columns.items()}


def task_metrics(task: str, columns: Mapping[str, np.ndarray]) -> Metrics:
    """Return the metrics of one task from its residual columns.

    All are NaN when any residual is not finite, and ``val/<task>/nonfinite`` then counts those events: a percentile
    would hide them.

    Args:
        task: Task name.
        columns: As `residual_columns` returns them, at least one event.

    Returns:
        Metrics by name, physical units.
    """
    bad = ~np.isfinite(columns["residual"]).all(axis=-1)
    wide = {name: column.astype(np.float64) for name, column in columns.items()}
    if bad.any():
        finite = {name: np.zeros_like(column) for name, column in wide.items()}
        names = _METRICS[task](finite) | _sigma_metrics(task, finite)
        return {f"val/{task}/nonfinite": float(bad.sum())} | dict.fromkeys(names, float("nan"))
    return _METRICS[task](wide) | _sigma_metrics(task, wide)


def headline(task: str, prediction: np.ndarray, truth: np.ndarray) -> float:
    """Return the task's one number for predictions from anywhere; shapes (B, D), physical units, all truth known."""
    columns = residual_columns(task, prediction.astype(np.float64), truth.astype(np.float64))
    return task_metrics(task, columns)[HEADLINE_METRICS[task]]


def contained(values: np.ndarray) -> float:
    """Return the 68th percentile of absolute values, linearly interpolated."""
    return float(np.percentile(np.abs(values), CONTAINED_PERCENT))


def skewness(values: np.ndarray) -> float:
    """Return the biased skewness ``m3 / m2^1.5``; zero for a constant."""
    centred = values - values.mean()
    variance = float(np.mean(np.square(centred)))
    return float(np.mean(centred**3)) / variance**1.5 if variance > 0 else 0.0


def _angle(columns: Mapping[str, np.ndarray]) -> Metrics:
    found: Metrics = {}
    for index, name in enumerate(("theta", "phi")):
        residual = columns["residual"][:, index]
        found |= {
            f"{name}_bias": float(residual.mean()),
            f"{name}_rms": float(residual.std()),
            f"{name}_skew": skewness(residual),
        }
    return found | {
        "angle_resolution_68pct": contained(columns["opening"]),
        "val/cos": float(columns["cos_loss"].mean()),
    }


def _energy(columns: Mapping[str, np.ndarray]) -> Metrics:
    residual = columns["residual"]
    return {"energy_bias": float(residual.mean()), "energy_res_68pct": contained(residual)}


def _timing(columns: Mapping[str, np.ndarray]) -> Metrics:
    residual = columns["residual"]
    return {"timing_bias": float(residual.mean()), "timing_res_68pct": contained(residual)}


def _uvw(columns: Mapping[str, np.ndarray]) -> Metrics:
    residual = columns["residual"]
    distance = np.sqrt(np.square(residual).sum(axis=-1))
    found = {f"uvw_{axis}_res_68pct": contained(residual[:, i]) for i, axis in enumerate("uvw")}
    found |= {f"uvw_{axis}_bias": float(residual[:, i].mean()) for i, axis in enumerate("uvw")}
    return found | {
        "uvw_dist_68pct": contained(distance),
        "uvw_dist_bias": float(distance.mean()),
        "val/cos_pos": float(columns["cos_loss"].mean()),
    }


def _angle_vec(columns: Mapping[str, np.ndarray]) -> Metrics:
    return {
        "angleVec_resolution_68pct": contained(columns["opening"]),
        "val/cos_vec": float(columns["cos_loss"].mean()),
    }


def _n_gamma(columns: Mapping[str, np.ndarray]) -> Metrics:
    residual = columns["residual"]
    return {
        "n_gamma_bias": float(residual.mean()),
        "n_gamma_res_68pct": contained(residual),
        "n_gamma_accuracy": float(columns["correct"].mean()),
    }


_METRICS: dict[str, Callable[[Mapping[str, np.ndarray]], Metrics]] = {
    "angle": _angle,
    "energy": _energy,
    "timing": _timing,
    "uvwFI": _uvw,
    "angleVec": _angle_vec,
    "n_gamma": _n_gamma,
}


def _sigma_metrics(task: str, columns: Mapping[str, np.ndarray]) -> Metrics:
    """Return how predicted standard deviations compare with the spread of the residuals."""
    if "sigma" not in columns:
        return {}
    spread, mean_sigma = float(columns["residual"].std(axis=0).mean()), float(columns["sigma"].mean())
    ratio = mean_sigma / spread if spread > 0 else float("nan")
    return {f"{task}_pred_std_mean": mean_sigma, f"{task}_calibration_ratio": ratio}
