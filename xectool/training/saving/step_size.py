"""Whether a resume goes on with as many events a step as the run had."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from xectool.checkpoint.format import Checkpoint
from xectool.config.root import RunConfig
from xectool.config.serialize import inline_yaml
from xectool.errors import counted, in_shell


@dataclass(frozen=True)
class StepSizeChange:
    """Another number of events in each step of a run that goes on.

    Attributes:
        before: Events a step had.
        now: Events it has from here on.
        ranks: Ranks that share them.
        keeping: The option that keeps the events of a step; None where the ranks cannot share them.
        lr: The learning rate asked for.
    """

    before: int
    now: int
    ranks: int
    keeping: str | None
    lr: float

    @property
    def problem(self) -> str:
        """What changes."""
        return (
            f"a step of this run had {self.before} events and has {self.now} from here on "
            f"({counted(self.ranks, 'rank')}): the learning rate was chosen for {self.before}"
        )

    def fix_before(self) -> str:
        """Return the option that mends it, where nothing has gone on yet."""
        rate = f"--set training.lr={inline_yaml(float(f'{self.lr * self.now / self.before:.3g}'))}"
        if self.keeping is None:
            return f"{rate}   # {self._direction} the rate with the batch: xectool explain effective-batch"
        return f"{self.keeping}   # keeps {self.before} events; or {self._direction} the rate with the batch: {rate}"

    def fix_running(self, run: Path) -> str:
        """Return the command that mends it while the run goes on: its batches stay as they are until its epoch ends."""
        line = f"xectool ctl {in_shell(run)} lr --scale {self.now / self.before:.3g}"
        line += f"   # while it runs: {self._direction} the rate with the batch"
        return line if self.keeping is None else f"{line}\n# or, on a resume from the end of an epoch: {self.keeping}"

    @property
    def _direction(self) -> str:
        return "raises" if self.now > self.before else "lowers"


def step_size_change(config: RunConfig, checkpoint: Checkpoint, ranks: int) -> StepSizeChange | None:
    """Return that the steps of a run have another number of events.

    None where they stay as they are, or where the configuration asks for another accumulation by itself.

    Args:
        config: The configuration that the run goes on with.
        checkpoint: Where it goes on.
        ranks: How many ranks it goes on with.
    """
    saved, accumulated = checkpoint.config, config.training.grad_accum_steps
    before = int(checkpoint.meta.get("world_size", 1)) * saved["data"]["batch_size"]
    now = ranks * config.data.batch_size
    if before == now or saved["training"]["grad_accum_steps"] != accumulated:
        return None
    shared, rest = divmod(before, ranks)
    keeping = f"--set data.batch_size={shared}" if shared and not rest else None
    return StepSizeChange(before * accumulated, now * accumulated, ranks, keeping, config.training.lr)
