"""Rules of checkpoints, intervals, the tracker and several processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from xectool.config.root import RegressorConfig, RunConfig
from xectool.config.serialize import starting_from
from xectool.errors import in_shell
from xectool.findings import Finding
from xectool.rules import Rule

_BARE = "bare weights"
_EXPORTS = {
    ".onnx": "an ONNX export", ".torchscript": "a TorchScript export", ".pt2": "an export of torch.export",
    ".safetensors": _BARE,
}  # fmt: skip
_SHORT_TIMEOUT_S = 60.0


def of_export(key: str, path: str, what: str) -> tuple[str, str]:
    """Return the problem and the fix for an export in place of a checkpoint to start from."""
    if what == _BARE:
        problem = f"{key} {path} is {what}: a resume needs optimizer state, a new run can start from them"
        return problem, f"{key}: null   # and a new run from them: {starting_from(path)}"
    problem = f"{key} {path} is {what}, which no training can start from: it needs the checkpoint that was exported"
    return problem, f"{key}: null   # or that checkpoint, which is named by: xectool inspect-ckpt {in_shell(path)}"


class _Interval(NamedTuple):
    """An interval of a run.

    Attributes:
        key: Dotted key.
        epochs: Its length.
        effect: What happens where the run is shorter.
        fitting: A length that fits.
    """

    key: str
    epochs: int
    effect: str
    fitting: int


class IntervalsFitTheRun(Rule[RunConfig]):
    """An interval longer than the run, or one of something that is not written, does nothing."""

    code = "CFG-24"
    title = "Intervals are shorter than the run and belong to something that is written"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for all intervals above the epochs, and one for prediction files that nobody wants."""
        epochs = facts.training.epochs
        above = [found for found in self._intervals(facts) if found.epochs > epochs]
        if above:  # one finding: the run is short
            values = " and ".join(f"{found.key} {found.epochs}" for found in above)
            yield self.warning(
                above[0].key,
                f"{values} {'are' if above[1:] else 'is'} above training.epochs {epochs}: "
                + "; ".join(found.effect for found in above),
                "\n".join(f"{found.key}: {found.fitting}" for found in above),
            )
        if isinstance(facts, RegressorConfig) or facts.checkpoint.save_predictions:
            return
        sensors = facts.checkpoint
        if sensors.root_save_interval != type(sensors).model_fields["root_save_interval"].default:
            yield self.warning(
                "checkpoint.root_save_interval",
                f"checkpoint.root_save_interval {sensors.root_save_interval} has no effect with "
                "checkpoint.save_predictions: false",
                "checkpoint.save_predictions: true",
            )

    def _intervals(self, facts: RunConfig) -> Iterator[_Interval]:
        """Yield each interval that a run could be too short for; of files, those that somebody asked for.

        A default tells no wish, also where it is written out, as `config init` does.
        """
        checkpoint, half = facts.checkpoint, max(1, facts.training.epochs // 2)
        if checkpoint.save_interval != type(checkpoint).model_fields["save_interval"].default:
            none = "no numbered checkpoint is written (save_interval does not change validation frequency)"
            yield _Interval("checkpoint.save_interval", checkpoint.save_interval, none, half)
        yield _Interval("validation.interval", facts.validation.interval, "only the last epoch is validated", 1)
        if isinstance(facts, RegressorConfig) or not facts.checkpoint.save_predictions:
            return
        sensors = facts.checkpoint
        if sensors.root_save_interval != type(sensors).model_fields["root_save_interval"].default:
            last = "only predictions.root is written, at the end"
            yield _Interval("checkpoint.root_save_interval", sensors.root_save_interval, last, half)


class OneStartingPoint(Rule[RunConfig]):
    """A run continues one checkpoint or starts from another's weights, and neither is an export."""

    code = "CFG-45"
    title = "resume_from and init_from name one training checkpoint"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield an error for two starting points and for exports, a warning for reset flags without a resume."""
        checkpoint = facts.checkpoint
        if checkpoint.resume_from and checkpoint.init_from:
            yield self.error(
                "checkpoint.init_from",
                f"checkpoint.resume_from {checkpoint.resume_from} and checkpoint.init_from {checkpoint.init_from} "
                "contradict each other: continue a run, or start a new one from weights",
                "checkpoint.init_from: null"
                + ("  # and no training.mae_checkpoint, its older name" if facts.base_kind == "inpainter" else ""),
            )
        for name in ("resume_from", "init_from"):
            path = getattr(checkpoint, name) or ""
            what = next((text for suffix, text in _EXPORTS.items() if path.lower().endswith(suffix)), None)
            if what and not (name == "init_from" and what == _BARE):
                yield self.error(f"checkpoint.{name}", *of_export(f"checkpoint.{name}", path, what))
        flags = [name for name in ("refresh_lr", "reset_epoch", "new_mlflow_run") if getattr(checkpoint, name)]
        if flags and not checkpoint.resume_from:
            yield self.warning(
                f"checkpoint.{flags[0]}",
                f"checkpoint.{' and checkpoint.'.join(flags)} {'have' if flags[1:] else 'has'} no effect without "
                "checkpoint.resume_from or --resume",
                f"checkpoint.{flags[0]}: false",
            )


class CollectivesHaveTime(Rule[RunConfig]):
    """The first step compiles and rank 0 writes files; other ranks wait for both."""

    code = "CFG-50"
    title = "distributed.timeout_s is at least 60 s"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for a short timeout."""
        timeout_s = facts.distributed.timeout_s
        if timeout_s < _SHORT_TIMEOUT_S:
            yield self.warning(
                "distributed.timeout_s",
                f"distributed.timeout_s {timeout_s:g} is below 60 s: compiling or rank 0 writing files takes longer "
                "and ends the run on the other ranks",
                "distributed.timeout_s: 600",
            )


class OptionsTakeEffect(Rule[RunConfig]):
    """An option that is read and then changes nothing misleads."""

    code = "CFG-60"
    title = "Every option that is set takes effect"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for each option of the older system that this version accepts without acting on it."""
        idle = [
            ("export.onnx", facts.export.onnx is not None, "`xectool export CKPT` writes the ONNX file", "null"),
        ]
        for key, is_set, reason, default in idle:
            if is_set:
                yield self.warning(key, f"{key} has no effect: {reason}", f"{key}: {default}")


RUN_RULES: tuple[Rule[RunConfig], ...] = (
    IntervalsFitTheRun(),
    OneStartingPoint(),
    CollectivesHaveTime(),
    OptionsTakeEffect(),
)
