"""What ``model.geometry: physical`` gains over ``compat`` at equal budget: same events, steps, sizes, several seeds.

``python -m benchmarks.geometry`` prints the table of ``docs/geometry.md``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from xectool import engine

METRICS = {
    "energy_res_68pct": ("energy, absolute residual [MeV]", 1e3),
    "uvw_dist_68pct": ("position, 3-D distance [cm]", 1.0),
    "angle_resolution_68pct": ("direction, opening angle [deg]", 1.0),
    "timing_res_68pct": ("time, absolute residual [ps]", 1e12),
}
CONFIG = Path(__file__).resolve().parents[1] / "examples" / "quickstart.yaml"


def run(geometry: str, seed: int, data: Path, epochs: int) -> dict[str, float]:
    """Train once and return the metrics of the best weights on the validation events."""
    settings = [
        f"data.train_path={data}/train.root", f"data.val_path={data}/val.root", f"checkpoint.save_dir={data}/runs",
        "checkpoint.save_artifacts=false", "mlflow.enabled=false", f"training.seed={seed}",
        f"training.epochs={epochs}", f"model.geometry={geometry}",
    ]  # fmt: skip
    return engine.train(CONFIG, overrides=settings, run_name=f"{geometry}_{seed}").metrics


def main() -> None:
    """Train every geometry with every seed and print means and their errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2500)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"compat": [], "physical": []}
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        engine.simulate(str(data / "train.root"), events=options.events, seed=1)
        engine.simulate(str(data / "val.root"), events=1000, seed=2)
        for seed in range(1, options.seeds + 1):
            for geometry, metrics in found.items():
                metrics.append(run(geometry, seed, data, options.epochs))
                print(f"# {geometry} seed {seed}: {metrics[-1]}", flush=True)
    print("| metric (68 % quantile) | compat | physical | gain |\n|---|---|---|---|")
    for name, (label, factor) in METRICS.items():
        old, new = ([factor * m[name] for m in found[g]] for g in ("compat", "physical"))
        shown = [f"{statistics.mean(v):.3g} ± {statistics.stdev(v) / len(v) ** 0.5:.2g}" for v in (old, new)]
        print(
            f"| {label} | {shown[0]} | {shown[1]} | {100 * (1 - statistics.mean(new) / statistics.mean(old)):.0f} % |"
        )


if __name__ == "__main__":
    main()
