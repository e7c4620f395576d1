"""Which state of a training predictions are of, kept in their file beside the tree."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import uproot

from xectool.errors import DataFileError
from xectool.rootio.files import check_local_file, open_errors
from xectool.rootio.unmapped import local_handler

KEY: Final = "weights"
"""Name of the object beside the tree: text, JSON."""


@dataclass(frozen=True)
class WeightsState:
    """A state of a training, as a checkpoint holds it.

    Attributes:
        step: Optimizer steps that the weights have seen.
        epoch: The last finished epoch.
        loss: Validation loss of that epoch where the state is its end, else NaN; it tells apart two courses of a run.
        validated: Whether the weights are those that the training validates: the average where it has one.
    """

    step: int
    epoch: int
    loss: float = math.nan
    validated: bool = True

    @classmethod
    def of_progress(cls, progress: Mapping[str, Any], validated: bool = True) -> WeightsState | None:
        """Return the state that the progress of a run describes; None where it describes none."""
        try:
            ended = progress["history"][-1] if progress["history"] and not progress["batch"] else {}
            loss = float(ended.get("val/loss", math.nan))
            return cls(int(progress["step"]), int(progress["epoch"]) - 1, loss, validated)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def text(self) -> str:
        """Return the object of the file; a number that is none is written as null."""
        return json.dumps({**asdict(self), "loss": self.loss if math.isfinite(self.loss) else None})

    def is_end_of(self, step: int, loss: float, epoch: int) -> bool:
        """Return whether a run measured this state: at this step, and with this loss where it is a number.

        Args:
            step: Optimizer steps of what was measured.
            loss: Its validation loss.
            epoch: The finished epoch; 0 inside the first one, where no state holds a loss: it is measured afterwards.
        """
        same = not math.isfinite(self.loss) if not (epoch and math.isfinite(loss)) else self.loss == loss
        return self.validated and self.step == step and same


def state_of(path: str | os.PathLike[str]) -> WeightsState | None:
    """Return the state that the predictions of a local file are of; None where it tells none.

    >>> state_of("/tmp/absent.root") is None
    True
    """
    try:
        check_local_file(os.fspath(path))
        with uproot.open({os.fspath(path): None}, handler=local_handler()) as directory:
            found = json.loads(str(directory[KEY]))
        loss = math.nan if found["loss"] is None else float(found["loss"])
        return WeightsState(int(found["step"]), int(found["epoch"]), loss, bool(found["validated"]))
    except (DataFileError, KeyError, TypeError, ValueError):
        return None
    except open_errors():
        return None
