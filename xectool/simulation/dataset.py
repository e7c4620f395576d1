"""Makes simulated events and writes them, in bounded memory, to ROOT files with truth.

Every event has its own random stream, made of the seed and the number of the event. What an event looks like does not
depend on how many events, files or threads there are.

Legend: E events of a block, S sensors (4760).
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xectool.config.cgroups import num_cores
from xectool.detector import constants as c
from xectool.detector import coordinates
from xectool.errors import UsageError, in_shell
from xectool.rootio.origin import Origin
from xectool.rootio.writer import FileFormat, TreeWriter
from xectool.simulation import physics as p
from xectool.simulation.events import Gamma, make_gamma
from xectool.simulation.light import light_on_sensors
from xectool.simulation.response import DetectorResponse

Rows = dict[str, npt.NDArray[Any]]

BRANCHES: dict[str, tuple[str, tuple[int, ...]]] = {
    "npho": ("f4", (c.NUM_SENSORS,)),
    "relative_time": ("f4", (c.NUM_SENSORS,)),
    "energyTruth": ("f4", ()),
    "timeTruth": ("f4", ()),
    "uvwTruth": ("f4", (3,)),
    "xyzTruth": ("f4", (3,)),
    "emiAng": ("f4", (2,)),
    "emiVec": ("f4", (3,)),
    "xyzVTX": ("f4", (3,)),
    "nGammaTruth": ("f4", (p.MAX_GAMMAS + 1,)),
    "run": ("i4", ()),
    "event": ("i4", ()),
}
"""Branches of the tree; photons, seconds, GeV, cm and degrees."""

BLOCK_EVENTS = 16
"""Events that one thread makes at once; their light arrays stay in the cache."""
MAX_FILES = 1000
MAX_SEED = (2**31 - 1) // MAX_FILES - 1
"""Run numbers are ``seed * 1000 + file`` and have to fit a 32-bit branch."""


@dataclass(frozen=True)
class SimulationSettings:
    """What to simulate.

    Attributes:
        events: Number of events, over all files.
        seed: Seed of the events.
        files: Number of files the events are spread over, as evenly as possible.
        energy_gev: A fixed energy, or the limits of a flat spectrum.
        dead_fraction: Share of sensors that are dead.
        pileup: Probability that a second gamma ray falls into the event; with the same one a third, up to four.
        detector_seed: Seed of efficiencies, calibration errors and dead channels.
    """

    events: int
    seed: int = 1
    files: int = 1
    energy_gev: float | tuple[float, float] = p.ENERGY_RANGE_GEV
    dead_fraction: float = 0.01
    pileup: float = 0.0
    detector_seed: int = 1

    def __post_init__(self) -> None:
        for option, value, good, fix in self._checks():
            if not good:
                looks = ", which looks like MeV" if option == "energy" and _is_mev(self.energy_gev) else ""
                raise UsageError(f"--{option} cannot be {value}{looks}", where=f"--{option}", fix=f"--{option} {fix}")

    def _checks(self) -> Iterator[tuple[str, object, bool, str]]:
        low, high = self.energy_limits_gev
        likely_gev = f"{low / 1000:g}" if _is_mev(self.energy_gev) else "0.0528"
        yield "events", self.events, 1 <= self.events < 2**31, f"20k   # from 1 to {2**31 - 1}"
        yield "seed", self.seed, 0 <= self.seed <= MAX_SEED, f"1   # 0 to {MAX_SEED}"
        good = 1 <= self.files <= min(MAX_FILES, self.events)
        yield "files", self.files, good, f"1   # 1 to {MAX_FILES}, each with an event"
        yield "energy", self.energy_gev, 0.005 <= low <= high <= 1.0, f"{likely_gev}   # GeV, from 0.005 to 1.0"
        yield "dead", self.dead_fraction, 0 <= self.dead_fraction < 1, "0.01   # a share from 0 to below 1"
        yield "pileup", self.pileup, 0 <= self.pileup <= 1, "0.1   # a probability from 0 to 1"
        yield "detector-seed", self.detector_seed, self.detector_seed >= 0, "1   # 0 or more"

    @property
    def energy_limits_gev(self) -> tuple[float, float]:
        """Lowest and highest energy of the signal gamma ray."""
        return self.energy_gev if isinstance(self.energy_gev, tuple) else (self.energy_gev, self.energy_gev)

    def run_number(self, file_index: int) -> int:
        """Return the run number that the events of a file carry."""
        return self.seed * MAX_FILES + file_index

    def events_of_file(self, file_index: int) -> range:
        """Return the numbers of the events in a file; all files together hold each event once."""
        edges = [self.events * index // self.files for index in (file_index, file_index + 1)]
        return range(*edges)


def _is_mev(energy: float | tuple[float, float]) -> bool:
    """Say whether a number given in GeV makes sense in MeV only."""
    return isinstance(energy, int | float) and 5.0 <= energy <= 1000.0


def file_paths(output: str | os.PathLike[str], files: int) -> list[Path]:
    """Return the files to write: the output itself, or OUT_000.root and on where there are several.

    Raises:
        UsageError: The output is no local path of a ROOT file.
    """
    _require_root_path(os.fspath(output))
    path = Path(output)
    if files == 1:
        return [path]
    return [path.with_name(f"{path.stem}_{index:03d}{path.suffix}") for index in range(files)]


def write_dataset(
    settings: SimulationSettings,
    output: str | os.PathLike[str],
    *,
    format: FileFormat = "ttree",
    compression: str = "zlib:1",
) -> list[Path]:
    """Write all files and return their paths; missing directories are made, existing files replaced.

    Raises:
        UsageError: The format or the compression is unknown, or the output is no local path of a ROOT file.
        DiskError: A file cannot be written.
    """
    detector = DetectorResponse.from_seed(settings.detector_seed, settings.dead_fraction)
    paths = file_paths(output, settings.files)
    with ThreadPoolExecutor(max_workers=_num_threads(), thread_name_prefix="simulate") as pool:
        for index, path in enumerate(paths):
            with TreeWriter(path, BRANCHES, format=format, compression=compression, origin=Origin.SIMULATED) as writer:
                blocks = _blocks(pool, settings, detector, settings.events_of_file(index))
                _fill(writer, blocks, settings.run_number(index))
    return paths


def _require_root_path(output: str) -> None:
    # A file of another name would not be read as input again, and a slip such as `simulate run.yaml` would replace it.
    if Path(output).is_dir():
        problem, meant = f"'{output}' is a directory", str(Path(output) / "sim.root")
    elif "://" in output:
        problem, meant = f"'{output}' is a url, and files are written locally only", Path(output).name
    elif not output.endswith(".root"):
        problem, meant = f"'{output}' does not end in .root", str(Path(output).with_suffix(".root"))
    else:
        return
    raise UsageError(problem, where="OUT.root", fix=f"xectool simulate {in_shell(meant)}")


def _fill(writer: TreeWriter, blocks: Iterator[Rows], run_number: int) -> None:
    for rows in blocks:
        writer.extend({**rows, "run": np.full(len(rows["event"]), run_number, dtype=np.int32)})


def _num_threads() -> int:
    # The NumPy parts run without the interpreter lock, the rest does not; more than four threads wait for it.
    return min(4, num_cores())


def _blocks(
    pool: ThreadPoolExecutor, settings: SimulationSettings, detector: DetectorResponse, events: range
) -> Iterator[Rows]:
    """Make blocks ahead of the writer, in order, never more than twice as many as there are threads."""
    pending: deque[Future[Rows]] = deque()
    try:
        for start in range(events.start, events.stop, BLOCK_EVENTS):
            block = range(start, min(start + BLOCK_EVENTS, events.stop))
            pending.append(pool.submit(simulate_block, settings, detector, block))
            if len(pending) > 2 * _num_threads():
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


def simulate_block(settings: SimulationSettings, detector: DetectorResponse, events: range) -> Rows:
    """Return the rows of some events: all of :data:`BRANCHES` but the run number.

    Args:
        settings: What to simulate.
        detector: The sensors.
        events: Numbers of the events.
    """
    streams = [np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(event,))) for event in events]
    gammas = [_gammas_of_event(rng, settings) for rng in streams]
    photons, times_s = _light([gamma for group in gammas for gamma in group])
    rows: Rows = {
        name: np.empty((len(events), *shape), dtype) for name, (dtype, shape) in BRANCHES.items() if name != "run"
    }
    rows["event"][:] = events
    stop = 0
    for row, (rng, group) in enumerate(zip(streams, gammas, strict=True)):
        start, stop = stop, stop + len(group)
        # The light of an event fluctuates as a whole before its photons are counted sensor by sensor.
        common = 1 + p.LIGHT_YIELD_SPREAD * rng.standard_normal()
        merged, arrival_s = _merge(photons[start:stop], times_s[start:stop])
        npho, relative_s, zero_s = detector.read_out(rng, common * merged, arrival_s)
        rows["npho"][row], rows["relative_time"][row] = npho, relative_s
        _fill_truth(rows, row, group, zero_s)
    return rows


def _gammas_of_event(rng: np.random.Generator, settings: SimulationSettings) -> list[Gamma]:
    gammas = [make_gamma(rng, rng.uniform(*settings.energy_limits_gev))]
    while len(gammas) < p.MAX_GAMMAS and rng.uniform() < settings.pileup:
        low, high = p.PILEUP_ENERGY_GEV
        energy_gev = low * (high / low) ** rng.uniform()
        gammas.append(make_gamma(rng, energy_gev, rng.uniform(-p.PILEUP_WINDOW_S, p.PILEUP_WINDOW_S)))
    return gammas


def _light(gammas: list[Gamma]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    sizes = [len(gamma.deposits_cm) for gamma in gammas]
    return light_on_sensors(
        np.concatenate([gamma.deposits_cm for gamma in gammas]),
        np.concatenate([gamma.deposit_energies_gev for gamma in gammas]),
        np.concatenate([gamma.deposit_times_s for gamma in gammas]),
        np.cumsum([0, *sizes[:-1]], dtype=np.int64),
    )


def _merge(
    photons: npt.NDArray[np.float64], times_s: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Join the gamma rays of an event: charges add up, the time follows the one that is brightest in the sensor."""
    if len(photons) == 1:
        return photons[0], times_s[0]
    brightest = photons.argmax(axis=0)[np.newaxis]
    return photons.sum(axis=0), np.take_along_axis(times_s, brightest, axis=0)[0]


def _fill_truth(rows: Rows, row: int, gammas: list[Gamma], zero_s: float) -> None:
    signal = gammas[0]
    rows["energyTruth"][row] = signal.energy_gev
    known = math.isfinite(zero_s) and zero_s < c.DEAD_VALUE
    rows["timeTruth"][row] = signal.conversion_time_s - zero_s if known else c.DEAD_VALUE
    rows["uvwTruth"][row] = coordinates.xyz_to_uvw(signal.conversion_cm)
    rows["xyzTruth"][row] = signal.conversion_cm
    rows["emiAng"][row] = coordinates.direction_to_angles(signal.direction)
    rows["emiVec"][row] = signal.direction
    rows["xyzVTX"][row] = signal.vertex_cm
    rows["nGammaTruth"][row] = np.arange(p.MAX_GAMMAS + 1) == len(gammas)
