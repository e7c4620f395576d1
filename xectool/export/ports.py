"""What an exported network takes and gives: names, types, shapes and units.

Axes: B events, S sensors (4760), K numbers of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

FLOAT32: Final = "float32"
BOOL: Final = "bool"
BATCH_AXIS: Final = "events"


@dataclass(frozen=True)
class Port:
    """One input or output.

    Attributes:
        name: Its name in the file.
        dtype: ``float32`` or ``bool``.
        shape: Sizes of all axes but the first, which counts events.
        unit: Of its numbers.
        meaning: One sentence.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    unit: str
    meaning: str

    @property
    def axes(self) -> str:
        """Type and shape as one word, such as ``float32[events, 4760]``."""
        return f"{self.dtype}[{', '.join([BATCH_AXIS, *map(str, self.shape)])}]"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"shape": list(self.shape)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Port:
        """Return the port that `as_dict` described.

        Raises:
            KeyError, TypeError, ValueError: It describes none.
        """
        shape = tuple(int(size) for size in stored["shape"])
        return cls(str(stored["name"]), str(stored["dtype"]), shape, str(stored["unit"]), str(stored["meaning"]))
