"""Faults of samples and of the configuration that reads them: DAT-19 to DAT-26."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
from xectool.detector import faces

from benchmarks.damage.catalogue import Question, case
from benchmarks.damage.lab import LIGHT, Lab, event_place, words_of
from benchmarks.damage.structure_faults import BASKET, check
from benchmarks.diagnosis.files import Rows


def _repeated(name: str, *branches: str) -> None:
    @case(name, "data", "DAT-19")
    def build(lab: Lab) -> Question:
        rows = lab.rows()
        first, second = sorted(map(int, lab.rng.choice(len(rows["run"]), 2, replace=False)))
        for branch in branches or tuple(rows):
            rows[branch][second] = rows[branch][first]
        path = lab.write(rows)
        return check(lab, path, f"entry {first}", f"entry {second}")


_repeated("an event that stands twice")
_repeated("two events of one number", "run", "event")
_repeated("the light of an event in another", "npho", "relative_time")


@case("events of one file in another", "data", "DAT-19")
def merged(lab: Lab) -> Question:
    rows, other = lab.rows(), lab.good.train[lab.victim - 1]
    taken = lab.rows(other)
    first, count = int(lab.rng.integers(20)), int(lab.rng.integers(1, 8))
    joined = {name: np.concatenate([rows[name], taken[name][first : first + count]]) for name in rows}
    path = lab.write(joined)
    return check(lab, path, str(other), f"entry {len(rows['run'])}", f"entry {first}")


@case("one event of training in validation", "data", "DAT-20")
def overlap(lab: Lab) -> Question:
    trained, validated = lab.rows(), lab.rows(lab.good.val)
    entry = lab.entry(trained)
    val = {name: np.concatenate([held, trained[name][entry : entry + 1]]) for name, held in validated.items()}
    path = lab.write(val, "val_other.root")
    place = (str(path), f"entry {len(validated['run'])}", str(lab.good.train[lab.victim]), f"entry {entry}")
    return Question(words_of("check-data", "--against", path, files=lab.good.train), place)


@case("a training file under another name in validation", "data", "DAT-20")
def copied(lab: Lab) -> Question:
    copy = lab.directory / "val_other.root"
    shutil.copyfile(lab.good.train[lab.victim], copy)
    options = ("--config", lab.good.config, "--set", f"data.val_path={copy}")
    return Question(words_of("check-data", *options, files=lab.good.train), (str(copy),))


@case("a file sorted by energy", "data", "DAT-21")
def ordered(lab: Lab) -> Question:
    def change(rows: Rows) -> None:
        order = np.argsort(rows["energyTruth"])
        rows.update({name: values[order] for name, values in rows.items()})

    return check(lab, lab.spoil(change))


@case("files sorted by energy", "data", "DAT-21")
def drifting(lab: Lab) -> Question:
    every = [lab.rows(path) for path in lab.good.train]
    rows = {name: np.concatenate([part[name] for part in every]) for name in every[0]}
    order = np.argsort(rows["energyTruth"])
    parts = [lab.rng.permutation(part) for part in np.array_split(order, 3)]
    files = [
        lab.write({name: values[part] for name, values in rows.items()}, path.name)
        for path, part in zip(lab.good.train, parts, strict=True)
    ]
    return Question(words_of("check-data", "--deep", files=files), named=("energy",))


@case("validation with another gain", "data", "DAT-22")
def gain(lab: Lab) -> Question:
    rows, factor = lab.rows(lab.good.val), lab.rng.uniform(1.4, 2.0)
    rows["npho"] = np.where(rows["npho"] < LIGHT, rows["npho"] * factor + 20, rows["npho"]).astype("f4")
    path = lab.write(rows, "val_other.root")
    return Question(words_of("check-data", "--against", path, files=lab.good.train), named=("npho",))


@case("validation of other energies", "data", "DAT-22")
def beam(lab: Lab) -> Question:
    path, energy = lab.directory / "val_other.root", lab.rng.uniform(0.045, 0.058)
    lab.run("simulate", path, "--events", 90, "--energy", f"{energy:.4f}", "--seed", lab.rng.integers(1, 500_000))
    return Question(words_of("check-data", "--against", path, files=lab.good.train), named=("energy",))


def _planned(name: str, code: str, key: str, settings: Callable[[Lab], tuple[str, ...]], **environment: str) -> None:
    @case(name, "data", code)
    def build(lab: Lab) -> Question:
        options = [word for setting in settings(lab) for word in ("--set", setting)]
        words = words_of("check-data", "--config", lab.good.config, *options, files=lab.good.train)
        return Question(words, (key,), environment=environment)


_planned(
    "workers without anything to read", "DAT-23", "data.num_workers",
    lambda lab: (f"data.num_workers={lab.rng.integers(5, 12)}", "data.chunksize=4096"),
)  # fmt: skip
_planned(
    "more ranks than events", "DAT-23", "distributed.num_gpus",
    lambda lab: (f"distributed.num_gpus={lab.rng.integers(400, 900)}", "data.batch_size=1", "training.device=cpu"),
)  # fmt: skip
_planned(
    "less memory than the windows take", "DAT-24", "data.chunksize",
    lambda lab: ("data.chunksize=100000",), SLURM_MEM_PER_NODE="450",
)  # fmt: skip
_planned(
    "less disk than a run writes", "DAT-24", "checkpoint.save_dir",
    lambda lab: ("model.encoder_dim=16384", f"checkpoint.save_dir=/dev/shm/run_{lab.rng.integers(99)}"),
)  # fmt: skip


@case("baskets larger than a window", "data", "DAT-26")
def wide_baskets(lab: Lab) -> Question:
    options = ("--set", "data.chunksize=16", "--set", f"data.num_shards={lab.choose([2, 4])}")
    return Question(words_of("check-data", *options, files=lab.good.train), ("branch npho",))


@case("tiny baskets, sound otherwise", "data")
def tiny_baskets(lab: Lab) -> Question:
    path = lab.write(lab.rows(), basket=int(lab.rng.integers(2, BASKET // 4)))
    return Question(words_of("check-data", "--deep", files=lab.among_good(path)))


def _disagreeing(name: str, branch: str, change: Callable[[Lab, Rows], object], *named: str) -> None:
    @case(name, "data", "DAT-25")
    def build(lab: Lab) -> Question:
        return check(lab, lab.spoil(lambda rows: change(lab, rows)), f"branch {branch}", named=named)


@case("an angle and a vector that disagree", "data", "DAT-25")
def angles(lab: Lab) -> Question:
    rows = lab.rows()
    entry = lab.entry(rows)
    rows["emiVec"][entry] = np.roll(rows["emiVec"][entry], 1)
    path = lab.write(rows)
    return check(lab, path, *event_place(path, "emiVec", rows, entry))


def _permute(lab: Lab, rows: Rows) -> None:
    rows["npho"] = rows["npho"][:, lab.rng.permutation(rows["npho"].shape[1])]


def _exchange(lab: Lab, rows: Rows) -> None:
    us, ds, npho = faces.sensors("us"), faces.sensors("ds"), rows["npho"].copy()
    rows["npho"][:, us], rows["npho"][:, ds] = npho[:, ds], npho[:, us]


def _shuffle(*branches: str) -> Callable[[Lab, Rows], None]:
    def change(lab: Lab, rows: Rows) -> None:
        order = lab.rng.permutation(len(rows["run"]))
        rows.update({name: rows[name][order] for name in branches})

    return change


def _swap(lab: Lab, rows: Rows) -> None:
    rows["npho"], rows["relative_time"] = rows["relative_time"], rows["npho"]


_disagreeing("sensors in another order in one file", "npho", _permute, "same light")
_disagreeing("two faces that changed places in one file", "npho", _exchange, "'us' and 'ds' have changed places")
_disagreeing("the true position of other events", "uvwTruth", _shuffle("uvwTruth", "xyzTruth"))
_disagreeing("the true energy of other events", "energyTruth", _shuffle("energyTruth"))
_disagreeing("the true direction of other events", "emiAng", _shuffle("emiAng", "emiVec"))
_disagreeing(
    "times of the sensor beside", "relative_time",
    lambda lab, rows: rows.update(relative_time=np.roll(rows["relative_time"], 1, axis=1)),
)  # fmt: skip


@case("photons and times exchanged", "data", "DAT-25")
def exchanged(lab: Lab) -> Question:
    files = lab.spoil_all(lambda rows, _: _swap(lab, rows))
    return Question(words_of("check-data", "--deep", files=files), ("branch npho",))
