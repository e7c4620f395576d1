"""Simulates events with truth and writes them to ROOT files."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from xectool.engine.output_places import require_folder, require_replaceable
from xectool.errors import UsageError, XecError, did_you_mean
from xectool.rootio.origin import Origin
from xectool.rootio.recorded import sidecar
from xectool.rootio.writer import FileFormat
from xectool.simulation import physics
from xectool.simulation.dataset import SimulationSettings, file_paths, write_dataset

FORMATS = ("ttree", "rntuple")
_COMMAND = "xectool simulate"
_SHORTER = {"energy_gev": "energy", "dead_fraction": "dead"}


@dataclass(frozen=True)
class SimulateResult:
    """What was written.

    Attributes:
        files: Paths of the files, in the order of their events.
        events: Number of events over all files.
        seconds: Time it took, writing included.
        replaced: Those of the files that were there before, of an earlier simulation.
        removed: Recorded hashes of what lay there before, which went with it.
    """

    files: list[str]
    events: int
    seconds: float
    replaced: list[str]
    removed: list[str]


def simulate(  # noqa: PLR0913  one keyword an option, as on the command line
    output: str | Path,
    *,
    events: int = 20_000,
    seed: int = 1,
    files: int = 1,
    energy_gev: float | tuple[float, float] | None = None,
    dead_fraction: float = 0.01,
    pileup: float = 0.0,
    detector_seed: int = 1,
    format: str = "ttree",
    compression: str = "zlib:1",
) -> SimulateResult:
    """Write simulated events with truth to one or several ROOT files.

    Args:
        output: The file to write; with several files ``OUT_000.root`` and on. Missing directories are made.
        events: Number of events, over all files.
        seed: Seed of the events.
        files: Number of files the events are spread over; each has a run number of its own.
        energy_gev: Energy of the gamma ray, or limits of a flat spectrum; by default flat from 0.015 to 0.060.
        dead_fraction: Share of sensors that are dead.
        pileup: Probability of a second gamma ray in an event.
        detector_seed: Seed of dead channels and efficiencies; sets that share it share a detector.
        format: ``ttree`` or ``rntuple``.
        compression: ``zlib:1``, ``lz4``, ``zstd``, ``lzma`` or ``none``, with an optional level.

    Raises:
        UsageError: An option is out of its range, or a file stands in the way that no simulation wrote.
        DiskError: A file cannot be written.
    """
    if format not in FORMATS:
        fix = f"--format ttree   # {did_you_mean(format, FORMATS) or 'or rntuple'}"
        raise UsageError(f"file format '{format}' is not known", where="--format", fix=fix)
    settings = SimulationSettings(
        events=events,
        seed=seed,
        files=files,
        energy_gev=physics.ENERGY_RANGE_GEV if energy_gev is None else energy_gev,
        dead_fraction=dead_fraction,
        pileup=pileup,
        detector_seed=detector_seed,
    )
    given = vars(settings) | {"format": format, "compression": compression}
    with _keeping(_as_typed(given)):
        require_folder(Path(output).parent, _COMMAND, Path(output).name)
        for path in file_paths(output, files):
            require_replaceable(path, _COMMAND, ".root", Origin.SIMULATED)
    replaced = [str(path) for path in file_paths(output, files) if path.exists()]
    recorded = [place for place in map(sidecar, file_paths(output, files)) if place.is_file()]
    start = time.perf_counter()
    paths = write_dataset(settings, output, format=cast(FileFormat, format), compression=compression)
    removed = [str(place) for place in recorded if not place.exists()]
    return SimulateResult([str(path) for path in paths], events, time.perf_counter() - start, replaced, removed)


def _as_typed(given: Mapping[str, Any]) -> str:
    """Return the options that are not the usual ones, as they are typed; a spectrum of energies has no option."""
    usual = inspect.signature(simulate).parameters
    told = {
        name: value for name, value in given.items() if value != usual[name].default and not isinstance(value, tuple)
    }
    return "".join(f" --{_SHORTER.get(name, name).replace('_', '-')} {value}" for name, value in told.items())


@contextmanager
def _keeping(options: str) -> Iterator[None]:
    """Give the line of a refused place the options that were told."""
    try:
        yield
    except XecError as error:
        line, mark, remark = error.fix.partition("   #")
        if line.startswith(f"{_COMMAND} "):
            error.fix = f"{line}{options}{mark}{remark}"
        raise
