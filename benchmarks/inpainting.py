"""What an inpainter gains over the conventional estimates of a dead sensor: same events, same hidden sensors, paired.

``python -m benchmarks.inpainting`` prints the table of ``docs/benchmarks.md``. Hidden sensors are drawn at random, as
channels die, whatever they read. Errors are those of resampled events and, added in square, of the seeds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from xectool import engine
from xectool.config.load import config_from_dict
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.models.normalize import NphoScheme
from xectool.rootio.reader import EventFile
from xectool.tasks.neighbour_baselines import NeighbourAverage, SolidAngleWeighted, default_tables

FloatArray = npt.NDArray[np.float64]

CONFIG = Path(__file__).resolve().parents[1] / "examples" / "inpainter.yaml"
NUM_REPLICAS = 400
BRIGHT_PHOTONS = 1000.0
PIECE_EVENTS = 100
SIZES = [
    "model.encoder_dim=128", "model.outer_fine_pool=[5,3]", "model.dropout=0.0", "model.mask_npho_flat=false",
    "data.batch_size=16", "data.chunksize=4096", "training.lr=1e-3", "training.ema_decay=0.99",
    "checkpoint.save_artifacts=false", "mlflow.enabled=false",
]  # fmt: skip


def train(seed: int, data: Path, options: argparse.Namespace) -> Path:
    """Train once and return the run directory."""
    settings = [
        f"data.train_path={data}/train.root", f"data.val_path={data}/val.root", f"checkpoint.save_dir={data}/runs",
        f"training.seed={seed}", f"training.epochs={options.epochs}", f"model.prior={options.prior}",
        f"model.head_type={options.head}",
    ]  # fmt: skip
    return Path(engine.train(CONFIG, overrides=[*SIZES, *settings], run_name=f"seed_{seed}").run_dir)


def event_errors(run: Path, data: Path, scheme: NphoScheme) -> dict[str, dict[str, FloatArray]]:
    """Return for the network and each estimate, by metric, sums over the hidden sensors of each event, shape (B, 2)."""
    with EventFile(run / "predictions.root") as file:
        entry, sensor = (file.read_column(name).astype(np.int64) for name in ("entry", "sensor"))
        truth, network = (file.read_column(name).astype(np.float64) for name in ("truth_npho", "pred_npho"))
    with EventFile(data / "val.root") as file:
        estimates = {"inpainter": network, **conventional(file, entry, sensor)}
    found: dict[str, dict[str, FloatArray]] = {}
    for name, values in estimates.items():
        off = in_units(scheme, values) - in_units(scheme, truth)
        parts = {"MAE": (abs(off), None), "RMS": (off**2, None), "MAE, bright": (abs(off), truth > BRIGHT_PHOTONS)}
        found[name] = {metric: summed(entry, *part) for metric, part in parts.items()}
    return found


def conventional(
    file: EventFile, entry: npt.NDArray[np.int64], sensor: npt.NDArray[np.int64]
) -> Mapping[str, FloatArray]:
    """Return the conventional estimates, clipped at zero, of the hidden sensors, in their order."""
    estimators = {
        "mean of neighbours, 1 hop": NeighbourAverage(default_tables(1)),
        "mean of neighbours, 2 hops": NeighbourAverage(default_tables(2)),
        "by solid angles": SolidAngleWeighted(default_tables(1)),
    }
    found: dict[str, FloatArray] = {name: np.empty(len(entry)) for name in estimators}
    for start in range(0, file.num_entries, PIECE_EVENTS):
        npho = file.read_column("npho", start, min(start + PIECE_EVENTS, file.num_entries)).astype(np.float64)
        rows = (entry >= start) & (entry < start + len(npho))
        place = entry[rows] - start, sensor[rows]
        wanted = np.zeros(npho.shape, dtype=bool)
        wanted[place] = True
        known = np.isfinite(npho) & (npho < UNKNOWN_ABOVE)
        for name, estimator in estimators.items():
            filled = estimator.fill(np.where(known, npho, 0.0), known & ~wanted, wanted)
            found[name][rows] = filled[place].clip(min=0.0)
    return found


def in_units(scheme: NphoScheme, photons: FloatArray) -> FloatArray:
    """Return network units."""
    return np.asarray(scheme(torch.from_numpy(photons)).numpy())


def summed(entry: npt.NDArray[np.int64], values: FloatArray, chosen: npt.NDArray[np.bool_] | None) -> FloatArray:
    """Return sum and count for each event, shape (B, 2)."""
    weights = np.ones(len(values)) if chosen is None else chosen.astype(np.float64)
    return np.stack([np.bincount(entry, weights * values), np.bincount(entry, weights)], axis=1)


def mean_of(metric: str, sums: FloatArray) -> FloatArray:
    """Return the metric from sums (..., 2)."""
    mean = sums[..., 0] / sums[..., 1]
    return np.sqrt(mean) if metric == "RMS" else mean


def gain(metric: str, ours: FloatArray, theirs: FloatArray) -> tuple[float, float]:
    """Return by how much ours is smaller, relative, and its error from resampled events."""
    draws = np.random.default_rng(1).multinomial(len(ours), np.full(len(ours), 1 / len(ours)), NUM_REPLICAS)
    resampled = 1 - mean_of(metric, draws @ ours) / mean_of(metric, draws @ theirs)
    return float(1 - mean_of(metric, ours.sum(axis=0)) / mean_of(metric, theirs.sum(axis=0))), float(resampled.std())


def show(found: list[dict[str, dict[str, FloatArray]]]) -> None:
    """Print the table: each metric of each estimate, and the gain of the inpainter over it."""
    print("| estimate | metric [network units] | of it | of the inpainter | better by |\n|---|---|---|---|---|")
    for name in list(found[0])[1:]:
        for metric in found[0][name]:
            gains = np.array([gain(metric, run["inpainter"][metric], run[name][metric]) for run in found])
            spread = gains[:, 0].std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
            error = float(np.hypot(gains[:, 1].mean(), spread))
            theirs, ours = (
                np.mean([mean_of(metric, run[who][metric].sum(axis=0)) for run in found]) for who in (name, "inpainter")
            )
            print(
                f"| {name} | {metric} | {theirs:.5f} | {ours:.5f} "
                f"| {100 * gains[:, 0].mean():.1f} ± {100 * error:.1f} % |"
            )


def main() -> None:
    """Train with every seed and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--prior", default="auto", help="model.prior; none shows what the network learns by itself")
    parser.add_argument("--head", default="cross_attention", help="model.head_type; per_face costs five times as much")
    options = parser.parse_args()
    normalization = config_from_dict({"kind": "inpainter"}, "defaults").normalization
    scheme = NphoScheme(normalization.npho_scheme, normalization.npho_scale, normalization.npho_scale2)
    found = []
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        engine.simulate(str(data / "train.root"), events=options.events, seed=1)
        engine.simulate(str(data / "val.root"), events=1000, seed=2)
        for seed in range(1, options.seeds + 1):
            began = time.perf_counter()
            found.append(event_errors(train(seed, data, options), data, scheme))
            print(f"# seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)
    show(found)


if __name__ == "__main__":
    main()
