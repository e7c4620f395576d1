"""Good files of every sort, of which nothing may be said above a note."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.damage.catalogue import Question, case
from benchmarks.damage.lab import Lab, words_of


def _good(name: str, files: Callable[[Lab], list[Path]], *options: str) -> None:
    @case(f"good: {name}", "data")
    def build(lab: Lab) -> Question:
        return Question(words_of("check-data", "--deep", *options, files=files(lab)))


def _written(**options: str) -> Callable[[Lab], list[Path]]:
    return lambda lab: lab.among_good(lab.write(lab.rows(), **options))


def _simulated(*options: object, events: int = 150) -> Callable[[Lab], list[Path]]:
    def files(lab: Lab) -> list[Path]:
        seed, detector = lab.rng.integers(1, 500_000), lab.rng.integers(1, 1000)
        words = ("--events", events, "--seed", seed, "--detector-seed", detector, *options)
        answer = lab.run("simulate", lab.directory / "good.root", *words)
        return [Path(path) for path in answer.document["result"]["files"]]

    return files


def _small(lab: Lab) -> list[Path]:
    count = int(lab.rng.integers(2, 12))
    return [lab.write({name: values[:count] for name, values in lab.rows().items()})]


def _double(lab: Lab) -> list[Path]:
    return lab.among_good(lab.spoil(lambda rows: rows.update(energyTruth=rows["energyTruth"].astype(np.float64))))


_good("three files", lambda lab: list(lab.good.train))
_good("not compressed", _written(compression="none"))
_good("lz4", _written(compression="lz4:4"))
_good("zstd", _written(compression="zstd:5"))
_good("lzma", _written(compression="lzma:1"))
_good("zlib, level 9", _written(compression="zlib:9"))
_good("RNTuple", _written(format="rntuple", compression="zstd:5"))
_good("a few events", _small)
_good("a truth in double precision", _double)
_good("another tree name", lambda lab: [Path(f"{lab.write(lab.rows(), tree='events')}:events")])
_good("pile-up", _simulated("--pileup", 0.3))
_good("5 % of the sensors dead", _simulated("--dead", 0.05))
_good("no sensor dead, six files", _simulated("--dead", 0, "--files", 6, events=120))
_good("photons of one energy", _simulated("--energy", 0.0528))


@case("good: a configuration with validation", "data")
def configured(lab: Lab) -> Question:
    return Question(words_of("check-data", "--config", lab.good.config, files=lab.good.train))


@case("good: recorded hashes", "data")
def recorded(lab: Lab) -> Question:
    path = lab.write(lab.rows())
    lab.run("check-data", path, "--deep", "--write-digest")
    return Question(words_of("check-data", "--deep", files=lab.among_good(path)))
