"""Exported files of any format, opened for running."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from xectool.config.cgroups import num_cores
from xectool.errors import CheckpointError
from xectool.export.description import Description
from xectool.export.ports import Port
from xectool.export.reference import Arrays
from xectool.findings import Finding


class Runtime(ABC):
    """Abstract: an exported file that can be run.

    Attributes:
        path: The file.
        description: What it says of itself.
        providers: What computes it, such as ``CPUExecutionProvider``.
        notes: What is worth knowing about how it runs.
    """

    path: Path
    description: Description
    providers: tuple[str, ...]
    notes: tuple[Finding, ...] = ()

    @abstractmethod
    def run(self, given: Arrays) -> Arrays:
        """Return the outputs by name, in the file's order, of inputs by name.

        Raises:
            XecError: Inputs have another name, type or shape, or the file cannot be run.
        """

    def rehearse(self, cases: Mapping[str, Arrays]) -> None:  # noqa: B027 - most runtimes raise, and need no rehearsal
        """Run inputs where a crash does no harm, for a runtime that may take its process with it.

        Args:
            cases: Inputs by what is special about them.

        Raises:
            OutputsDiffer: The runtime died.
        """

    def check_inputs(self, given: Arrays) -> None:
        """Refuse inputs of another name, type or shape before a runtime words it in its own way.

        Raises:
            CheckpointError: They do not fit; the message says what does.
        """
        wanted = {port.name: port for port in self.description.inputs}
        if set(given) != set(wanted):
            raise self._refused(f"it takes {', '.join(wanted)}, and was given {', '.join(given) or 'nothing'}")
        sizes = {value.shape[0] if value.ndim else -1 for value in given.values()}
        for name, port in wanted.items():
            _check_input(self, port, given[name])
        if len(sizes) > 1:
            raise self._refused(f"its inputs are of {sorted(sizes)} events; all must have the same number")

    def _refused(self, problem: str) -> CheckpointError:
        takes = ", ".join(f"{port.name}: {port.axes}" for port in self.description.inputs)
        return CheckpointError(
            f"the exported network cannot take these inputs: {problem}",
            where=str(self.path),
            fix=f"give {takes}",
            code="XT-EXPORT-INPUT",
        )


def _check_input(runtime: Runtime, port: Port, value: npt.NDArray[np.generic]) -> None:
    if str(value.dtype) != port.dtype:
        raise runtime._refused(f"{port.name} is {value.dtype}, not {port.dtype}")
    if value.shape[1:] != port.shape or value.ndim == 0:
        raise runtime._refused(f"{port.name} has shape {list(value.shape)}, not {port.axes}")


def allowed_threads() -> int:
    """Return how many threads may compute: the cores this process may use, or OMP_NUM_THREADS where that is fewer."""
    cores = num_cores()
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return min(cores, int(wanted)) if wanted.isdecimal() and int(wanted) > 0 else cores


def in_order(names: Sequence[str], values: Sequence[npt.NDArray[np.generic]]) -> Arrays:
    """Return arrays by name."""
    return dict(zip(names, values, strict=True))
