"""``python -m benchmarks.whole_runs``: predicted memory and epoch of whole trainings against what they took.

Ten configurations of all kinds, far from each other: batches of 4 to 128, readers in the process and beside it, with
and without a copy of the events, averaged weights, accumulation, checkpointing, pooling, plots and the tracker.
``xectool estimate-memory`` and ``diagnose loader`` are asked first; then ``xectool train`` runs and is looked at from
outside, from start to end: resident memory of all its processes (pages that they share are counted once), and in the
second epoch the share of the time in which its main thread waited for a core. Epochs are compared as the clock has
them, which counts on a quiet machine, and without that share on both sides, which counts beside other processes; of a
training that waits for its own threads and readers it takes too much.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from xectool import engine
from xectool.errors import EXIT_BAD_RESULT

_TICK_S = 0.05
_VALIDATED = 32
_TASK = {"enabled": True, "scale": "auto", "shift": "auto"}
# name: kind, batch, batches an epoch, then sections of the configuration
CASES: Mapping[str, tuple[str, int, int, dict[str, dict[str, Any]]]] = {
    "batch of 4, two readers": (
        "regressor", 4, 24, {"model": {"encoder_dim": 96}, "data": {"num_workers": 2, "cache": "off"}},
    ),
    "batch of 128, pooled": (
        "regressor", 128, 4, {"model": {"encoder_dim": 64, "outer_fine_pool": [5, 3]}, "data": {"cache": "off"}},
    ),
    "accumulation of 3, split outer face": (
        "regressor", 12, 9,
        {"model": {"encoder_dim": 160, "outer_mode": "split"}, "training": {"grad_accum_steps": 3, "ema_decay": None}},
    ),
    "width 768, checkpointing": (
        "regressor", 6, 8,
        {"model": {"encoder_dim": 768}, "training": {"activation_checkpointing": "stages"}, "data": {"cache": "off"}},
    ),
    "six layers, one reader, plots": (
        "regressor", 24, 6,
        {
            "model": {"encoder_dim": 192, "num_fusion_layers": 6}, "data": {"num_workers": 1},
            "checkpoint": {"save_artifacts": True},
        },
    ),
    "masked, batch of 32": ("mae", 32, 6, {"model": {"encoder_dim": 128, "decoder_dim": 48}}),
    "masked, averaged, no copy": (
        "mae", 10, 8,
        {"model": {"encoder_dim": 320, "mask_ratio": 0.75}, "training": {"ema_decay": 0.99}, "data": {"cache": "off"}},
    ),
    "inpainter, trained whole": (
        "inpainter", 8, 8, {"model": {"encoder_dim": 128, "freeze_encoder": False, "mask_ratio": 0.1}},
    ),
    "inpainter, cross attention, two readers": (
        "inpainter", 20, 6,
        {
            "model": {"encoder_dim": 224, "head_type": "cross_attention", "cross_attn_k": 40},
            "data": {"num_workers": 2, "cache": "off"},
        },
    ),
    "inpainter, masked attention, tracker": (
        "inpainter", 48, 4,
        {
            "model": {"encoder_dim": 64, "use_masked_attention": True, "predict_channels": ["npho", "time"]},
            "mlflow": {"enabled": True},
        },
    ),
}  # fmt: skip


@dataclass
class Watched:
    """What was seen of a process and its children.

    Attributes:
        main_bytes: Most that was ever resident in the main process.
        tree_bytes: Most that was seen resident in all of them, shared pages once.
        waits: Time [s since 1970] and the seconds the main thread had waited for a core until then.
    """

    main_bytes: int = 0
    tree_bytes: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)

    def look(self, pid: int) -> None:
        """Look once; a process that has gone is left out."""
        process = psutil.Process(pid)
        total = 0
        for one in (process, *process.children(recursive=True)):
            try:
                total += one.memory_full_info().pss
            except psutil.Error:
                continue
        status = Path(f"/proc/{pid}/status").read_text()
        highest = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
        self.main_bytes = max([self.main_bytes, *(1024 * size for size in highest)])
        self.tree_bytes = max(self.tree_bytes, total, self.main_bytes)
        self.waits.append((time.time(), 1e-9 * int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])))

    def waited(self, begun: float, ended: float) -> float:
        """Return the seconds that the main thread waited for a core between two times."""
        seen = [waited for at, waited in self.waits if begun <= at <= ended]
        return max(seen, default=0.0) - min(seen, default=0.0)


def write_config(place: Path, name: str) -> Path:
    """Simulate the events of a case and write its configuration."""
    kind, batch, batches, sections = CASES[name]
    for part, events in (("train", batch * batches), ("val", _VALIDATED)):
        engine.simulate(str(place / f"{part}.root"), events=events, seed=len(name) + len(part))
    data = {"train_path": str(place / "train.root"), "val_path": str(place / "val.root"), "batch_size": batch}
    config: dict[str, dict[str, Any]] = {
        "data": data | {"chunksize": 1024, "cache": str(place / "cache")},
        "training": {"epochs": 2, "warmup_epochs": 0, "device": "cpu"},
        "checkpoint": {"save_dir": str(place / "runs"), "save_artifacts": False},
        "mlflow": {"enabled": False},
    }
    if kind == "regressor":
        config["tasks"] = {"energy": _TASK, "uvwFI": _TASK, "timing": _TASK}
    for section, values in sections.items():
        config[section] = config.get(section, {}) | values
    path = place / "config.yaml"
    path.write_text(yaml.safe_dump({"kind": kind, **config}))
    return path


def trained(path: Path) -> tuple[Watched, float, float]:
    """Run ``xectool train`` and return what was seen, the seconds of its second epoch, and those it waited in it."""
    command = [sys.executable, "-m", "xectool", "train", str(path), "--run-name", "measured"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=path.parent) as process:
        watched = Watched()
        while process.poll() is None:
            try:
                watched.look(process.pid)
            except (OSError, psutil.Error):
                break
            time.sleep(_TICK_S)
        said = process.communicate()[1].decode()
    if process.returncode:
        raise SystemExit(said)
    (record,) = path.parent.glob("runs/measured*/")
    query = "SELECT time, seconds FROM epochs WHERE epoch = 2"
    ((ended, seconds),) = engine.diagnose.query(str(record), query).rows
    return watched, seconds, watched.waited(ended - seconds, ended)


def _predicted_epoch(path: Path, seconds: float) -> tuple[float, float]:
    """Return the predicted second epoch, and the same without what other processes took.

    The command is asked, as a user would: it has OpenMP's threads sleep while they wait, as training does, which this
    process does not (steps of 0.9 s were clocked as 30 s beside other processes).
    """
    command = [sys.executable, "-m", "xectool", "diagnose", "loader", str(path), "--seconds", str(seconds), "--json"]
    answered = subprocess.run(command, check=False, capture_output=True, text=True)
    if answered.returncode > EXIT_BAD_RESULT:
        raise SystemExit(answered.stderr)
    loading = json.loads(answered.stdout)["result"]
    told = loading["epoch_s"] if loading["later_epoch_s"] is None else loading["later_epoch_s"]
    (low, high), first = loading["epoch_range_s"], loading["epoch_s"]
    # From (1 - error) of the share of a core that was free, to (1 + error): `epoch_range`.
    return told, told * low / (2 * first - high)


def compare(name: str, seconds: float) -> dict[str, Any]:
    """Predict one case, run it, and return both."""
    with tempfile.TemporaryDirectory() as directory:
        path = write_config(Path(directory), name)
        _, batch, batches, _ = CASES[name]
        estimated = engine.estimate_memory(path, events=batch * batches).estimate
        told, alone = _predicted_epoch(path, seconds)
        watched, took, waited = trained(path)
    return {
        "name": name,
        "terms": {term: round(size / 1e6) for term, size in estimated.host.items()},
        "predicted_mb": estimated.host_bytes / 1e6,
        "main_mb": watched.main_bytes / 1e6,
        "tree_mb": watched.tree_bytes / 1e6,
        "epoch": (told, alone),
        "took": (took, took - waited),
    }


def main() -> None:
    """Print one row a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="part of a name")
    parser.add_argument("--seconds", type=float, default=12.0, help="for each prediction of an epoch")
    parser.add_argument("--details", action="store_true", help="the terms of each estimate too")
    options = parser.parse_args()
    print(
        "| case | predicted MB | measured MB | off | predicted epoch s | took | off | without waiting | took | off |\n"
        f"|{'---|' * 10}"
    )
    offs: list[tuple[float, ...]] = []
    for name in (name for name in CASES if options.only is None or options.only in name):
        row = compare(name, options.seconds)
        memory = row["predicted_mb"] / row["tree_mb"] - 1
        wall, own = (told / took - 1 for told, took in zip(row["epoch"], row["took"], strict=True))
        offs.append((abs(memory), abs(wall), abs(own)))
        epochs = " | ".join(
            f"{told:.3g} | {took:.3g} | {100 * off:+.0f} %"
            for told, took, off in zip(row["epoch"], row["took"], (wall, own), strict=True)
        )
        print(
            f"| {name} | {row['predicted_mb']:.0f} | {row['tree_mb']:.0f} | {100 * memory:+.1f} % | {epochs} |",
            flush=True,
        )
        if options.details:
            print(json.dumps(row), flush=True)
    names = ("memory", "epoch", "epoch without waiting")
    for what, values in zip(names, zip(*offs, strict=True), strict=True):
        print(f"{what}: worst {100 * max(values):.0f} %, median {100 * statistics.median(values):.0f} %")


if __name__ == "__main__":
    main()
