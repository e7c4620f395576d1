"""Rules of the optimiser, the schedule and the compiler."""

from __future__ import annotations

from collections.abc import Iterator

from xectool.config.rates import default_lr, key_of, peak_lr, settings_of
from xectool.config.root import RegressorConfig, RunConfig
from xectool.findings import Finding
from xectool.rules import Rule

_CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")
_DECAYING = ("cosine", "plateau", "cosine_restarts")
_LR_RANGE = (1e-7, 1e-2)
_LARGE_CLIP = 100.0


class ClippingClips(Rule[RunConfig]):
    """No clipping, or a bound no gradient reaches, should be a decision."""

    code = "CFG-26"
    title = "grad_clip lies between 0 and 100"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for 0 and for more than 100."""
        clip = facts.training.grad_clip
        if clip == 0:
            yield self.warning(
                "training.grad_clip", "training.grad_clip: 0 disables clipping", "training.grad_clip: 1.0"
            )
        elif clip > _LARGE_CLIP:
            yield self.warning(
                "training.grad_clip",
                f"training.grad_clip {clip:g} is above 100: it will hardly ever act",
                "training.grad_clip: 1.0",
            )


class WarmupEndsBeforeTraining(Rule[RunConfig]):
    """A warm-up as long as the training leaves the schedule no epochs."""

    code = "CFG-27"
    title = "warmup_epochs is below epochs"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield an error where no epoch is left; onecycle has its own warm-up."""
        training = facts.training
        if training.lr_scheduler == "onecycle" or training.warmup_epochs < training.epochs:
            return
        yield self.error(
            "training.warmup_epochs",
            f"training.warmup_epochs {training.warmup_epochs} must be < training.epochs {training.epochs}: "
            f"T_max = epochs - warmup_epochs = {training.epochs - training.warmup_epochs} leaves the schedule no epoch",
            f"training.warmup_epochs: {max(0, training.epochs // 10)}",
        )


class OnecycleRises(Rule[RunConfig]):
    """onecycle climbs from lr to max_lr; other schedules know no max_lr."""

    code = "CFG-28"
    title = "max_lr is at least lr and belongs to onecycle"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield an error for a peak below lr, a warning for a peak without onecycle."""
        training = facts.training
        if training.max_lr is None:
            return
        if training.lr_scheduler != "onecycle":
            yield self.warning(
                "training.max_lr",
                f"training.max_lr has no effect with training.lr_scheduler: {training.lr_scheduler}",
                "training.max_lr: null",
            )
        elif training.max_lr < training.lr:
            yield self.error(
                "training.max_lr",
                f"training.max_lr {training.max_lr:g} must be >= training.lr {training.lr:g}: "
                "it is the peak of onecycle",
                f"training.max_lr: {training.lr!r}",
            )


class LearningRateIsUsual(Rule[RunConfig]):
    """AdamW works between 1e-7 and 1e-2, and a schedule falls from lr to lr_min."""

    code = "CFG-29"
    title = "The peak of the rate lies between 1e-7 and 1e-2, and lr above lr_min"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning of a peak outside the range, an error where the schedule would rise."""
        training = facts.training
        low, high = _LR_RANGE
        key, peak = key_of(training), peak_lr(training)
        if not low <= peak <= high:
            usual = settings_of(training, default_lr(facts.kind))
            yield self.warning(
                key,
                f"{key} {peak:g} lies outside {low:g} to {high:g}; the sweep table goes from 1e-5 to 1e-3 "
                "(AdamW usually learns between 1e-5 and 1e-3)",
                "\n".join(f"{name}: {rate:.3g}" for name, rate in usual.items()),
            )
        if training.lr_scheduler in _DECAYING and training.lr_min > training.lr:
            yield self.error(
                "training.lr_min",
                f"training.lr_min {training.lr_min:g} must be <= training.lr {training.lr:g}: "
                f"{training.lr_scheduler} would raise the rate",
                f"training.lr_min: {training.lr / 100!r}",
            )


class GraphsNeedStaticShapes(Rule[RunConfig]):
    """A short last batch makes CUDA graphs record again."""

    code = "CFG-30"
    title = "CUDA-graph modes train on full batches"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning where the last batch may be short."""
        mode = facts.training.compile
        if mode in _CUDA_GRAPH_MODES and not facts.data.drop_last:
            yield self.warning(
                "data.drop_last",
                f"CUDA graphs need static shapes: training.compile: {mode} with data.drop_last: false records the "
                "short last batch of an epoch once more",
                "data.drop_last: true",
            )


class GraphsAndAccumulation(Rule[RunConfig]):
    """CUDA graphs reuse their output memory, which accumulation still reads."""

    code = "CFG-31"
    title = "CUDA-graph modes do not accumulate gradients"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning where both are on."""
        mode, steps = facts.training.compile, facts.training.grad_accum_steps
        if mode in _CUDA_GRAPH_MODES and steps > 1:
            yield self.warning(
                "training.compile",
                f"training.compile: {mode} with training.grad_accum_steps {steps} may fail with 'tensor output of "
                "CUDAGraphs that has been overwritten by a subsequent run'",
                "training.compile: max-autotune-no-cudagraphs",
            )


class DeterminismAndAutotuning(Rule[RunConfig]):
    """Autotuning picks kernels by their time, which differs from run to run."""

    code = "CFG-33"
    title = "A deterministic run does not autotune"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning where kernels are chosen by timing."""
        mode = facts.training.compile
        if facts.training.deterministic and mode.startswith("max-autotune"):
            yield self.warning(
                "training.compile",
                f"training.deterministic: true with training.compile: {mode}: kernels are chosen by their measured "
                "time, so two runs may differ",
                "training.compile: none",
            )


class FullgraphNeedsCompile(Rule[RunConfig]):
    """compile_fullgraph does nothing in eager mode."""

    code = "CFG-60"
    title = "compile_fullgraph is set where the model is compiled"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning where it has no effect."""
        if facts.training.compile_fullgraph and facts.training.compile == "none":
            yield self.warning(
                "training.compile_fullgraph",
                "training.compile_fullgraph: true has no effect with training.compile: none",
                "training.compile_fullgraph: false",
            )


class DroppedSensorsAreNotScored(Rule[RunConfig]):
    """What reconstructs sensors would be scored on readings that the augmentation has just removed."""

    code = "CFG-61"
    title = "channel_dropout_rate is for the regressor; the other kinds hide sensors by mask_ratio"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield an error where another kind drops channels."""
        rate = facts.training.channel_dropout_rate
        if not isinstance(facts, RegressorConfig) and rate > 0:
            yield self.error(
                "training.channel_dropout_rate",
                f"training.channel_dropout_rate {rate:g} has no place in kind {facts.kind}: its sensors are hidden by "
                "model.mask_ratio, and dropped ones would be scored as if their readings were known",
                "training.channel_dropout_rate: 0.0",
            )


TRAINING_RULES: tuple[Rule[RunConfig], ...] = (
    ClippingClips(),
    WarmupEndsBeforeTraining(),
    OnecycleRises(),
    LearningRateIsUsual(),
    GraphsNeedStaticShapes(),
    GraphsAndAccumulation(),
    DeterminismAndAutotuning(),
    FullgraphNeedsCompile(),
    DroppedSensorsAreNotScored(),
)
