"""What pre-training as a masked autoencoder gains a regressor: same events, steps, sizes; paired by seed.

``python -m benchmarks.transfer`` prints the table of ``docs/benchmarks.md``. The autoencoder is trained once, on more
events and without their truth; each seed then trains a regressor from it and one from scratch, on few events.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from xectool import engine

from benchmarks.geometry import METRICS

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# What the two must agree on for the encoder to move: all of normalization, and the encoder's sizes.
SHARED = [
    "normalization.time_scale=5e-9", "normalization.time_shift=0.0", "model.encoder_dim=128",
    "model.outer_fine_pool=[5,3]", "model.dropout=0.0", "data.batch_size=16", "data.chunksize=4096",
    "checkpoint.save_artifacts=false", "mlflow.enabled=false",
]  # fmt: skip


def pretrain(data: Path, epochs: int) -> str:
    """Train the autoencoder and return its best checkpoint."""
    settings = [f"data.train_path={data}/unlabelled.root", f"data.val_path={data}/val.root", "training.seed=1"]
    settings += [f"checkpoint.save_dir={data}/runs", f"training.epochs={epochs}", "training.lr=1e-3"]
    settings += ["training.ema_decay=0.99", "checkpoint.save_predictions=false"]
    run = engine.train(EXAMPLES / "mae.yaml", overrides=[*SHARED, *settings], run_name="mae")
    print(f"# autoencoder: {run.steps} steps, validation loss {run.metrics['val/loss']:.4f}", flush=True)
    return str(run.checkpoint_best)


def regress(seed: int, data: Path, epochs: int, init_from: str | None) -> dict[str, float]:
    """Train a regressor once and return the metrics of its best weights on the validation events."""
    settings = [f"data.train_path={data}/labelled.root", f"data.val_path={data}/val.root", f"training.seed={seed}"]
    settings += [f"checkpoint.save_dir={data}/runs", f"training.epochs={epochs}"]
    start = [f"checkpoint.init_from={init_from}"] if init_from else []
    name = f"{'tuned' if init_from else 'scratch'}_{seed}"
    run = engine.train(EXAMPLES / "quickstart.yaml", overrides=[*SHARED, *settings, *start], run_name=name)
    print(f"# {name}: {run.steps} steps, validation loss {run.metrics['val/loss']:.4f}", flush=True)
    return run.metrics


def show(scratch: list[dict[str, float]], tuned: list[dict[str, float]]) -> None:
    """Print means over the seeds and the paired difference with its error."""
    print("| metric (68 % quantile) | from scratch | from the MAE | better by |\n|---|---|---|---|")
    for name, (label, factor) in METRICS.items():
        old, new = ([factor * metrics[name] for metrics in runs] for runs in (scratch, tuned))
        gains = [100 * (1 - b / a) for a, b in zip(old, new, strict=True)]
        error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
        print(
            f"| {label} | {statistics.mean(old):.3g} | {statistics.mean(new):.3g} "
            f"| {statistics.mean(gains):.1f} ± {error:.1f} % |"
        )


def main() -> None:
    """Pre-train once, then train both regressors with every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unlabelled", type=int, default=4000, help="events of the autoencoder")
    parser.add_argument("--mae-epochs", type=int, default=4)
    parser.add_argument("--labelled", type=int, default=1000, help="events of the regressors")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    began = time.perf_counter()
    scratch: list[dict[str, float]] = []
    tuned: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        engine.simulate(str(data / "unlabelled.root"), events=options.unlabelled, seed=1)
        engine.simulate(str(data / "labelled.root"), events=options.labelled, seed=3)
        engine.simulate(str(data / "val.root"), events=1000, seed=2)
        encoder = pretrain(data, options.mae_epochs)
        for seed in range(1, options.seeds + 1):
            scratch.append(regress(seed, data, options.epochs, None))
            tuned.append(regress(seed, data, options.epochs, encoder))
    print(f"# {time.perf_counter() - began:.0f} s")
    show(scratch, tuned)


if __name__ == "__main__":
    main()
