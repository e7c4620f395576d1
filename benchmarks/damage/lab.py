"""A place for one case: what its seed chooses, its good files, and damaged copies of them.

Axes: E events, S sensors.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import uproot
import yaml
from xectool.checks.facts import Units
from xectool.checks.probing import probe
from xectool.detector import faces
from xectool.rootio.writer import TreeWriter, parse_compression

from benchmarks.damage.command import Answer, ask
from benchmarks.diagnosis.files import Rows, generator

LIGHT = 9e9  # readings above it mean that there is none
Change = Callable[[Rows], object]


@dataclass(frozen=True)
class GoodFiles:
    """What is damaged: event files, and a configuration that trains on them.

    Attributes:
        train: Training files.
        val: The validation file.
        config: Configuration of a small regressor.
        checkpoints: Trained ones by name, where a group of cases needs them.
        events: What exported files predict.
        predicted: Predictions of each checkpoint on them.
    """

    train: tuple[Path, ...]
    val: Path
    config: Path
    checkpoints: Mapping[str, Path] = field(default_factory=dict)
    events: Path = Path()
    predicted: Mapping[str, Path] = field(default_factory=dict)


def good_files(root: Path, seed: int) -> GoodFiles:
    """Simulate the files of a seed with ``xectool simulate``: other sizes, energies and dead channels each."""
    rng, place = generator(seed, "files"), root / f"good_{seed}"
    words = ["--dead", f"{rng.uniform(0.002, 0.03):.4f}", "--detector-seed", str(rng.integers(1, 1000))]
    number, events = int(rng.integers(1, 500_000)), int(rng.integers(330, 450))
    train = _simulated(place, "train.root", ["--events", str(events), "--files", "3", "--seed", str(number), *words])
    val = _simulated(place, "val.root", ["--events", "90", "--seed", str(number + 1), *words])
    config = place / "config.yaml"
    config.write_text(yaml.safe_dump(small_config("regressor", train, val[0], place / "runs")))
    return GoodFiles(tuple(train), val[0], config)


def prepared(words: Sequence[str], directory: Path) -> Answer:
    """Run a command that has to succeed."""
    answer = ask(words, directory)
    if answer.code or answer.trouble:
        raise RuntimeError(f"xectool {' '.join(words)}: {answer.trouble} {answer.document.get('findings')}")
    return answer


def _simulated(place: Path, name: str, words: list[str]) -> list[Path]:
    answer = prepared(["simulate", str(place / name), *words], place)
    return [Path(path) for path in answer.document["result"]["files"]]


def small_config(kind: str, train: Sequence[Path], val: Path, runs: Path) -> dict[str, Any]:
    """Return the configuration of a small network of a kind that is trained for a few steps."""
    own = {"regressor": {"hidden_dim": 8}, "mae": {"decoder_dim": 8}, "inpainter": {}}[kind]
    tasks = {name: {"enabled": True, "scale": "auto", "shift": "auto"} for name in ("energy", "timing", "uvwFI")}
    return {
        "kind": kind,
        "data": {"train_path": [str(path) for path in train], "val_path": str(val), "batch_size": 32},
        "model": {"encoder_dim": 32, "outer_fine_pool": [5, 3], "num_fusion_layers": 1, **own},
        "training": {"epochs": 1, "warmup_epochs": 0, "lr": 1e-3, "ema_decay": 0.9},
        "checkpoint": {"save_dir": str(runs), "save_artifacts": False},
        "mlflow": {"enabled": False, "run_name": kind},
    } | ({"tasks": tasks} if kind == "regressor" else {})


def with_checkpoints(good: GoodFiles, kinds: Mapping[str, Mapping[str, Any]]) -> GoodFiles:
    """Train a small network of each kind by ``xectool train``.

    Args:
        good: Files to train on.
        kinds: Name of a checkpoint to ``kind`` and settings of its training.
    """
    place, found = good.config.parent, {}
    for name, settings in kinds.items():
        config = small_config(str(settings["kind"]), good.train, good.val, place / "runs")
        config["training"] |= {key: value for key, value in settings.items() if key != "kind"}
        config["mlflow"]["run_name"] = name
        path = place / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        answer = prepared(["train", str(path)], place)
        found[name] = Path(answer.document["result"]["checkpoint_last"])
    return replace(good, checkpoints=found)


def with_predictions(good: GoodFiles, seed: int, events: int) -> GoodFiles:
    """Simulate events and predict them with every checkpoint."""
    place = good.config.parent
    (path,) = _simulated(place, "events.root", ["--events", str(events), "--seed", str(1_000_000 - seed)])
    predicted = {name: place / f"{name}.root" for name in good.checkpoints}
    for name, checkpoint in good.checkpoints.items():
        prepared(["predict", str(checkpoint), str(path), "--output", str(predicted[name])], place)
    return replace(good, events=path, predicted=predicted)


class Lab:
    """Chooses by the seed what is hit, and writes damaged copies.

    Args:
        directory: Where everything of the case goes; made by the caller.
        seed: Decides everything random, with the name of the case.
        name: Name of the case.
        good: What is damaged.

    Attributes:
        rng: For whatever the case has to choose.
        victim: Index of the training file that is damaged.
    """

    def __init__(self, directory: Path, seed: int, name: str, good: GoodFiles) -> None:
        self.directory = directory
        self.good = good
        self.rng = generator(seed, name)
        self.victim = int(self.rng.integers(len(good.train)))

    def choose(self, values: Sequence[Any]) -> Any:
        """Return one of some values."""
        return values[int(self.rng.integers(len(values)))]

    def rows(self, path: Path | None = None) -> Rows:
        """Return a copy of all branches of a file: the victim without one."""
        with uproot.open(path or self.good.train[self.victim]) as file:
            return {name: np.array(file["tree"][name].array(library="np")) for name in file["tree"].keys()}  # noqa: SIM118

    def entry(self, rows: Rows) -> int:
        """Return one event."""
        return int(self.rng.integers(len(rows["run"])))

    def sensor(self, rows: Rows, face: str | None = None) -> int:
        """Return a sensor, of a face that is drawn, that has a reading in every event."""
        ids = faces.sensors(face or self.choose(faces.FACES))
        return int(self.choose(ids[(rows["npho"][:, ids] < LIGHT).all(axis=0)]))

    def write(self, rows: Rows, name: str = "", basket: int = 0, tree: str = "tree", **options: str) -> Path:
        """Write rows as a file under the name of the victim; ``basket`` is how many events one holds."""
        path = self.directory / (name or self.good.train[self.victim].name)
        specs: Any = {branch: (values.dtype, values.shape[1:]) for branch, values in rows.items()}
        if not basket:
            with TreeWriter(path, specs, tree=tree, **options) as writer:
                writer.extend(rows)
            return path
        with uproot.recreate(path, compression=parse_compression(options.get("compression", "zlib:1"))) as file:
            written = file.mktree(tree, specs)
            for start in range(0, len(rows["run"]), basket):
                written.extend({branch: values[start : start + basket] for branch, values in rows.items()})
        return path

    def spoil(self, change: Change, **options: Any) -> Path:
        """Write the victim with other numbers in it."""
        rows = self.rows()
        change(rows)
        return self.write(rows, **options)

    def spoil_all(self, change: Callable[[Rows, bool], object]) -> list[Path]:
        """Write all training files with other numbers; the change is told which of them is the victim."""
        written = []
        for index, path in enumerate(self.good.train):
            rows = self.rows(path)
            change(rows, index == self.victim)
            written.append(self.write(rows, path.name))
        return written

    def among_good(self, damaged: Path) -> list[Path]:
        """Return the training files with the damaged copy in the place of the victim."""
        return [damaged if index == self.victim else path for index, path in enumerate(self.good.train)]

    def copied(self, kind: str) -> Path:
        """Return a copy of a checkpoint."""
        return Path(shutil.copyfile(self.good.checkpoints[kind], self.directory / "checkpoint.pt"))

    def run(self, *words: object) -> Answer:
        """Run a command that prepares the case."""
        return prepared([str(word) for word in words], self.directory)

    def drawn_basket(self, path: Path, branch: str) -> tuple[int, Units]:
        """Return the index of one basket or page of a branch, and the places of all."""
        units = probe(str(path)).branches[branch].units
        return int(self.rng.integers(len(units))), units


def flip(path: Path, offset: int, mask: int) -> None:
    """Flip bits of one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def face_of(sensor: int) -> str:
    """Return the face of a sensor."""
    return next(face for face in faces.FACES if sensor in faces.sensors(face))


def event_place(path: Path, branch: str, rows: Rows, entry: int, sensor: int | None = None) -> tuple[str, ...]:
    """Return what names a reading or a truth: file, branch, entry, run, event, and sensor with its face."""
    of_event = (f"entry {entry}", f"run {rows['run'][entry]}", f"event {rows['event'][entry]}")
    of_sensor = () if sensor is None else (f"sensor {sensor}", f"face {face_of(sensor)}")
    return (str(path), f"branch {branch}", *of_event, *of_sensor)


def words_of(*words: object, files: Iterable[Path] = ()) -> tuple[str, ...]:
    """Return a command line."""
    first, *rest = words
    return tuple(map(str, (first, *files, *rest)))
