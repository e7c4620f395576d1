"""Rules of the tasks, their losses and their weights."""

from __future__ import annotations

from collections.abc import Iterator

from xectool.config.reweighting import TaskReweightingConfig
from xectool.config.root import RegressorConfig, RunConfig
from xectool.config.tasks import SIGNED_TASKS, TASK_UNITS, TASK_WIDTHS, TaskConfig
from xectool.config.training import IntensityReweightingConfig
from xectool.errors import counted
from xectool.findings import Finding
from xectool.rules import Rule

Weights = TaskReweightingConfig | IntensityReweightingConfig

_SMOOTH = ("smooth_l1", "huber", "relative_smooth_l1")
_DIRECTIONS = ("angle", "angleVec")
_LOST, _SLOW = "their gradients are lost beside the other tasks", "they take thousands of steps to reach"
_UNSCALED = {"timing": ("1e-9", _LOST), "energy": ("1e-2", _LOST), "angle": ("10", _SLOW), "uvwFI": ("10", _SLOW)}


class SomethingIsLearnt(Rule[RunConfig]):
    """A regressor without a task trains nothing."""

    code = "CFG-04"
    title = "At least one task is enabled, with a weight above 0"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield an error where no task is enabled or every weight is 0."""
        if not isinstance(facts, RegressorConfig):
            if facts.training.npho_weight == 0 and facts.training.time.weight == 0:
                yield self.error(
                    "training.npho_weight",
                    "training.npho_weight and training.time.weight are both 0: nothing is learnt",
                    "training.npho_weight: 1.0",
                )
            return
        tasks = facts.tasks.enabled()
        if not tasks:
            yield self.error(
                "tasks",
                "no task is enabled: enable at least one of angle, energy, timing, uvwFI (or angleVec, n_gamma)",
                "tasks.energy.enabled: true",
            )
        elif facts.loss_balance == "manual" and not any(task.weight > 0 for task in tasks.values()):
            first = next(iter(tasks))
            yield self.error(
                f"tasks.{first}.weight",
                f"every enabled task has weight 0 ({', '.join(tasks)}): enable at least one of angle, energy, timing, "
                "uvwFI with a weight that must be > 0",
                f"tasks.{first}.weight: 1.0",
            )


class CosineNeedsAngles(Rule[RunConfig]):
    """The cosine loss is defined on directions."""

    code = "CFG-05"
    title = "loss_fn cosine belongs to the tasks angle and angleVec"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield an error for cosine on a target that is no direction."""
        for name, task in _tasks(facts):
            if task.loss_fn == "cosine" and name not in _DIRECTIONS:
                yield self.error(
                    f"tasks.{name}.loss_fn",
                    f"tasks.{name}.loss_fn: cosine compares directions; it belongs to the tasks angle and angleVec",
                    f"tasks.{name}.loss_fn: smooth_l1",
                )


class BetaZeroIsL1(Rule[RunConfig]):
    """smooth_l1 without a quadratic region is l1 by another name."""

    code = "CFG-07"
    title = "loss_beta of smooth_l1 is above 0"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for each smooth loss with beta 0."""
        losses = [(f"tasks.{name}", task.loss_fn, task.loss_beta) for name, task in _tasks(facts)]
        if not isinstance(facts, RegressorConfig):
            losses = [("training", facts.training.loss_fn, facts.training.loss_beta)]
        for section, loss, beta in losses:
            if loss in _SMOOTH and beta == 0:
                yield self.warning(
                    f"{section}.loss_beta",
                    f"{section}.loss_beta: beta 0 is plain L1 ({section}.loss_fn: {loss})",
                    f"{section}.loss_fn: l1",
                )


class TargetsAreScaled(Rule[RunConfig]):
    """A step changes what a network says by about the learning rate, whatever the unit of its target.

    Seconds and GeV are so small that their gradients vanish beside AdamW's epsilon; degrees and cm are tens of
    units away from where the outputs begin, which takes thousands of steps.
    """

    code = "CFG-09"
    title = "Targets far from 1 in their unit have a scale"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for each such target in its raw unit."""
        learnt = facts.checkpoint.resume_from is not None  # weights that have reached them mean that unit
        for name, task in _tasks(facts):
            size, harm = _UNSCALED.get(name, ("", ""))
            if not size or task.scale is not None or task.log_transform or (learnt and harm == _SLOW):
                continue
            keys = ("scale", "shift") if task.shift is None else ("scale",)
            yield self.warning(
                f"tasks.{name}.scale",
                f"targets of order {size} {TASK_UNITS[name]}: set tasks.{name}.scale (unscaled, {harm})",
                "\n".join(f"tasks.{name}.{key}: auto" for key in keys),
            )


class LogarithmNeedsPositiveTargets(Rule[RunConfig]):
    """Angles and positions are negative half of the time."""

    code = "CFG-10"
    title = "log_transform only with targets above 0"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield an error for the logarithm of a signed target."""
        for name, task in _tasks(facts):
            if task.log_transform and name in SIGNED_TASKS:
                yield self.error(
                    f"tasks.{name}.log_transform",
                    f"log_transform needs positive targets: tasks.{name}.log_transform is true and "
                    f"{name} has both signs",
                    f"tasks.{name}.log_transform: false",
                )


class NllBetaIsAnExponent(Rule[RunConfig]):
    """In beta-NLL, loss_beta is the power of the detached variance that weighs an event."""

    code = "CFG-11"
    title = "loss_beta of gaussian_nll lies in 0..1"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield an error for an exponent outside 0..1."""
        for name, task in _tasks(facts):
            if task.loss_fn == "gaussian_nll" and task.loss_beta > 1:
                yield self.error(
                    f"tasks.{name}.loss_beta",
                    f"tasks.{name}.loss_beta {task.loss_beta:g}: with tasks.{name}.loss_fn: gaussian_nll it is the "
                    "exponent of beta-NLL and lies in 0..1 (0 is the plain NLL, 1 weighs events as MSE)",
                    f"tasks.{name}.loss_beta: 0.5",
                )


class ShiftFitsTheTarget(Rule[RunConfig]):
    """A list of shifts has one number for each component."""

    code = "CFG-03"
    title = "shift has one number, or one for each component"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield an error for a list of the wrong length."""
        for name, task in _tasks(facts):
            if isinstance(task.shift, tuple) and len(task.shift) != TASK_WIDTHS[name]:
                yield self.error(
                    f"tasks.{name}.shift",
                    f"tasks.{name}.shift has {counted(len(task.shift), 'number')}, task {name} "
                    f"{counted(TASK_WIDTHS[name], 'component')}",
                    f"tasks.{name}.shift: auto",
                )


class ReweightedTargetsAreLearnt(Rule[RunConfig]):
    """Weights by a target that is not learnt are usually a leftover."""

    code = "CFG-60"
    title = "reweighting is enabled for enabled tasks"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for each target that weighs events without being learnt."""
        if not isinstance(facts, RegressorConfig):
            return
        for name in facts.reweighting.enabled():
            if name not in facts.tasks.enabled():
                yield self.warning(
                    f"reweighting.{name}.enabled",
                    f"reweighting.{name}.enabled: true weighs events by {name}, but tasks.{name}.enabled is false",
                    f"reweighting.{name}.enabled: false",
                )


class BinsAreUsed(Rule[RunConfig]):
    """Bins belong to weights that are switched on, and those of a target to its number of dimensions."""

    code = "CFG-60"
    title = "bins and shapes of weights are set where events are weighted by them"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for each that differs from its default and is not looked at."""
        if isinstance(facts, RegressorConfig):
            for name in ("angle", "energy", "timing", "uvwFI"):
                used = "nbins_2d" if name in ("angle", "uvwFI") else "nbins"
                yield from self._idle(f"reweighting.{name}", getattr(facts.reweighting, name), (used,))
        else:
            yield from self._idle(
                "training.intensity_reweighting", facts.training.intensity_reweighting, ("nbins", "target")
            )

    def _idle(self, section: str, weights: Weights, used: tuple[str, ...]) -> Iterator[Finding]:
        for name, field in type(weights).model_fields.items():
            value = getattr(weights, name)
            if name == "enabled" or value == field.default or (weights.enabled and name in used):
                continue
            reason = f"{section}.enabled: false" if name in used else f"it is {section}.{used[0]} that counts"
            yield self.warning(
                f"{section}.{name}", f"{section}.{name} has no effect: {reason}", f"delete {section}.{name}"
            )


def _tasks(facts: RunConfig) -> list[tuple[str, TaskConfig]]:
    return list(facts.tasks.enabled().items()) if isinstance(facts, RegressorConfig) else []


TASK_RULES: tuple[Rule[RunConfig], ...] = (
    SomethingIsLearnt(),
    CosineNeedsAngles(),
    BetaZeroIsL1(),
    TargetsAreScaled(),
    LogarithmNeedsPositiveTargets(),
    NllBetaIsAnExponent(),
    ShiftFitsTheTarget(),
    ReweightedTargetsAreLearnt(),
    BinsAreUsed(),
)
