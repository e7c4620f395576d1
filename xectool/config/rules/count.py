"""Rules that need the number of events, which is known once the inputs are open."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from xectool.config.root import RegressorConfig, RunConfig
from xectool.config.serialize import inline_yaml
from xectool.config.training import decay_in
from xectool.errors import counted
from xectool.findings import Finding, Report
from xectool.rules import Rule, run_rules

_MANY_EVENTS = 100_000
_SENSORS = 4760
_BYTES_PER_PREDICTION = 30  # One row of the sensor-level columns.
_BYTES_PER_EVENT = 24  # Which event it is, in one row of the regressor's columns.
_BYTES_PER_TASK = 3 * 3 * 4  # Prediction, truth and sigma, three numbers at most.


@dataclass(frozen=True)
class Counts:
    """A configuration with the events it will see.

    Attributes:
        config: The configuration.
        num_train: Training events after selection.
        num_val: Validation events after selection.
        world_size: Ranks that share them.
        max_steps: Optimizer steps after which the run stops, or None.
        resumes: Whether the run goes on from a checkpoint.
    """

    config: RunConfig
    num_train: int
    num_val: int
    world_size: int = 1
    max_steps: int | None = None
    resumes: bool = False

    @property
    def global_batch(self) -> int:
        """Events of one batch over all ranks."""
        return self.config.data.batch_size * self.world_size

    @property
    def num_steps(self) -> int:
        """Optimizer steps until the run stops: of all epochs, or as many as were asked for."""
        return self.planned_steps if self.max_steps is None else min(self.planned_steps, self.max_steps)

    @property
    def planned_steps(self) -> int:
        """Optimizer steps of all epochs."""
        whole, rest = divmod(self.num_train, self.global_batch)
        batches = whole + (rest > 0 and not self.config.data.drop_last)
        return self.config.training.epochs * -(-batches // self.config.training.grad_accum_steps)


class EpochHasBatches(Rule[Counts]):
    """Leaving out the short last batch may leave nothing."""

    code = "CFG-35"
    title = "drop_last leaves at least one batch"

    def check(self, facts: Counts) -> Iterator[Finding]:
        """Yield an error for an epoch without a batch."""
        if facts.config.data.drop_last and facts.num_train < facts.global_batch:
            yield self.error(
                "data.drop_last",
                f"an epoch has 0 batches: data.drop_last is true and {facts.num_train} training events are below "
                f"data.batch_size {facts.config.data.batch_size} x {counted(facts.world_size, 'rank')}",
                "data.drop_last: false",
            )


class EpochFillsABatch(Rule[Counts]):
    """Fewer events than one batch of all ranks are trained on, in one short step an epoch."""

    code = "DAT-06"
    title = "There are enough events"

    def check(self, facts: Counts) -> Iterator[Finding]:
        """Yield a warning for an epoch of one short step; without any step it is an error of CFG-35."""
        if facts.num_train < facts.global_batch and not facts.config.data.drop_last:
            yield self.warning(
                "data.batch_size",
                f"{counted(facts.num_train, 'event')} for training, fewer than one step: "
                f"data.batch_size {facts.config.data.batch_size} x {counted(facts.world_size, 'rank')}; "
                "an epoch is one short step",
                f"--set data.batch_size={facts.num_train // facts.world_size}"
                if facts.num_train >= facts.world_size
                else f"--set distributed.num_gpus={max(1, facts.num_train)}",
            )


class AccumulationFitsTheEpoch(Rule[Counts]):
    """An epoch should hold at least one whole accumulated step."""

    code = "CFG-25"
    title = "grad_accum_steps is at most the batches of an epoch"

    def check(self, facts: Counts) -> Iterator[Finding]:
        """Yield a warning where the epoch ends before the first step is full."""
        steps = facts.config.training.grad_accum_steps
        batches = -(-facts.num_train // facts.global_batch)
        if steps > batches > 0:
            yield self.warning(
                "training.grad_accum_steps",
                f"training.grad_accum_steps {steps} is above the {batches} batches of an epoch: the effective batch is "
                f"{facts.num_train}, not {steps * facts.global_batch} events",
                f"training.grad_accum_steps: {batches}",
            )


class AverageFitsTheRun(Rule[Counts]):
    """An average over more steps than the run has holds much of the weights after its first step."""

    code = "CFG-65"
    title = "ema_decay averages over fewer steps than the run has"

    def check(self, facts: Counts) -> Iterator[Finding]:
        """Yield a warning where 1 / (1 - decay) is more than all steps of the run."""
        steps, config = facts.num_steps, facts.config
        automatic = decay_in("auto", facts.planned_steps)
        problem = average_beyond(decay_in(config.training.ema_decay, steps), steps, config.validation.use_ema)
        if problem and config.training.ema_decay != automatic:  # which fits all epochs, whatever stops it before
            # A run that goes on keeps the number it has where auto is asked for.
            other = facts.resumes or steps < facts.planned_steps
            number = decay_in("auto", steps)
            fitting = inline_yaml(number) if other else "auto"
            remark = "   # no average: the last weights are taken" if other and number is None else ""
            yield self.warning("training.ema_decay", problem, f"--set training.ema_decay={fitting}{remark}")


def average_beyond(decay: float | None, steps: int, validated: bool) -> str:
    """Return how much of the averaged weights is of the first step where 1 / (1 - decay) is more than all steps.

    Args:
        decay: Decay of the average; None for none.
        steps: Optimizer steps of the run.
        validated: Whether the average is what is validated.
    """
    if decay is None or not 1 < steps < (span := 1 / (1 - decay)):
        return ""
    taken = "validated and taken" if validated else "taken"
    share = decay ** (steps - 1)  # the first step's weights are copied
    return (
        f"training.ema_decay {decay:.15g} averages over {span:.4g} steps, the run has {steps}: {share:.0%} of the "
        f"averaged weights, which are {taken} by predict and export, are those after its first step"
    )


class PredictionsAreWanted(Rule[Counts]):
    """Predictions of many events fill a disk."""

    code = "CFG-23"
    title = "save_predictions with at most 100k validation events"

    def check(self, facts: Counts) -> Iterator[Finding]:
        """Yield a warning with the size of the file."""
        config = facts.config
        events = min(facts.num_val, config.validation.max_events or facts.num_val)
        if not config.checkpoint.save_predictions or events <= _MANY_EVENTS:
            return
        size_gb = events * prediction_bytes(config) / 1e9
        yield self.warning(
            "checkpoint.save_predictions",
            f"checkpoint.save_predictions: true writes about {size_gb:.1f} GB for {events} validation events; enable "
            "only for final evaluation",
            f"validation.max_events: {_MANY_EVENTS}  # or disable checkpoint.save_predictions",
        )


class ShardsFitTheRanks(Rule[Counts]):
    """Ranks that share a shard each read all of it."""

    code = "CFG-64"
    title = "num_shards is a multiple of the ranks"

    def check(self, facts: Counts) -> Iterator[Finding]:
        """Yield a warning where an event is read and decompressed more than once."""
        data, ranks = facts.config.data, facts.world_size
        readers = ranks // math.gcd(data.num_shards, ranks)
        if readers == 1 or data.cache not in ("auto", "off"):  # rows of a cache are read one by one
            return
        fitting = -(-data.num_shards // ranks) * ranks
        window = max(1, data.chunksize // data.num_shards)
        yield self.warning(
            "data.num_shards",
            f"every event is read and decompressed by {readers} of the {ranks} ranks, for data.num_shards is "
            f"{data.num_shards}",
            f"--set data.num_shards={fitting} --set data.chunksize={fitting * window}  # another order of events",
        )


COUNT_RULES: tuple[Rule[Counts], ...] = (
    EpochHasBatches(),
    EpochFillsABatch(),
    AccumulationFitsTheEpoch(),
    AverageFitsTheRun(),
    PredictionsAreWanted(),
    ShardsFitTheRanks(),
)


def count_rules(
    config: RunConfig,
    num_train: int,
    num_val: int,
    world_size: int = 1,
    max_steps: int | None = None,
    resumes: bool = False,
) -> Report:
    """Return what the numbers of events reveal about a configuration, and about a run of at most ``max_steps``."""
    return run_rules(COUNT_RULES, Counts(config, num_train, num_val, world_size, max_steps, resumes)).report


def prediction_bytes(config: RunConfig) -> float:
    """Return the bytes of the predictions of one event, in columns: every hidden sensor is one row."""
    if isinstance(config, RegressorConfig):
        return _BYTES_PER_EVENT + _BYTES_PER_TASK * len(config.tasks.enabled())
    ratio = config.model.mask_ratio
    share = sum(ratio.values()) / len(ratio) if isinstance(ratio, dict) else ratio
    return int(share * _SENSORS) * _BYTES_PER_PREDICTION
