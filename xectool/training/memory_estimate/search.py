"""Looks for the largest batch that fits, in the process that tapes steps: one more tape takes a second there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from xectool.config.root import RunConfig
from xectool.training.memory_estimate.calibration import Calibration
from xectool.training.memory_estimate.device import Device, Tries, largest_batch
from xectool.training.memory_estimate.host import HostSide
from xectool.training.memory_estimate.plan import BASE, FAR, LARGER, line
from xectool.training.memory_estimate.predictions import SensorPredictions
from xectool.training.memory_estimate.recording import Recording

_CLOSE: Final = 0.01  # of the batch: a tape more for less is not worth its second


@dataclass(frozen=True)
class Search:
    """What the largest batch is looked for with.

    Attributes:
        device: The device; for the CPU its memory is that of the host.
        calibration: Numbers of this machine.
        compile_threads: Compile processes at once.
        predictions: Of single sensors, None for a regressor.
        amp: Precision, resolved for the device.
        host_bytes: Memory of the host that may be taken.
        largest: Whether the largest batch is looked for.
    """

    device: Device
    calibration: Calibration
    compile_threads: int
    predictions: SensorPredictions | None
    amp: str = "off"
    host_bytes: int = 0
    largest: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Search:
        """Return what `to_json` was made of."""
        predictions = content["predictions"]
        return cls(
            Device(**content["device"]),
            Calibration(**content["calibration"]),
            content["compile_threads"],
            None if predictions is None else SensorPredictions(**predictions),
            *(content[name] for name in ("amp", "host_bytes", "largest")),
        )

    def find(
        self,
        config: RunConfig,
        tapes: Mapping[str, Recording],
        tape: Callable[[int], Recording],
        loader_bytes: Callable[[RunConfig], int],
    ) -> int:
        """Return the largest batch that fits: by the line through the tapes, else by taping each batch on the way.

        Args:
            config: The run.
            tapes: Of the step, a larger one, one far beyond, and of remedies.
            tape: Tapes the step of a batch.
            loader_bytes: Bound on the loader of a configuration.
        """

        def beside(batch_size: int, checkpoint_bytes: int = 0) -> int:
            if self.device.is_gpu:
                return 0
            data = config.data.model_copy(update={"batch_size": batch_size})
            changed = config.model_copy(update={"data": data})
            around = (self.compile_threads, self.predictions, checkpoint_bytes)
            side = HostSide(changed, loader_bytes(changed), 0, False, *around)
            return sum(side.terms(self.calibration).values())

        if beside(1, tapes[BASE].checkpoint_bytes) > self.device.planned_bytes:
            return 0  # the best checkpoint is read at the end, whatever the batch was
        at = line(tapes)
        if at is not None:
            return largest_batch(self.device, at, beside)
        known = {tapes[name].batch_size: tapes[name] for name in (BASE, LARGER, FAR)}
        tries = Tries(tuple(sorted(known)), _CLOSE)
        return largest_batch(self.device, lambda size: known[size] if size in known else tape(size), beside, tries)
