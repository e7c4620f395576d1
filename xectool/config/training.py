"""How the weights move: optimiser, schedule, precision, and what keeps a run reproducible."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from xectool.config.section import Bool, Float, Int, Section, describe, knob, read_float, read_int, refuse, section

_OFF = {"none", "null", "false", "off", "no"}
_USUAL_WARM_UP = 2
_PART_OF_RUN = 10  # The average of the weights spans a tenth of the steps: all of it is of the trained end.
_AVERAGE = "Decay of the weight average used to validate; auto: over a tenth of the run's steps; null for none"
_WARM_UP = f"Epochs over which the learning rate rises linearly; auto: {_USUAL_WARM_UP}, or 0 where epochs is no more"

MAX_HOPS = 4
"""Neighbours within 4 hops; where none of them is visible 8 and 16 are tried, which is half of the end faces."""


def _is_off(value: object) -> bool:
    # YAML 1.1 readers made `off` and `no` false, and older files use all of these.
    return value is None or value is False or (isinstance(value, str) and value.lower() in _OFF)


def _read_compile(value: object) -> object:
    if isinstance(value, str):
        value = value.lower()
    if value is True or value in ("true", "yes", "on"):
        return "default"
    return "none" if _is_off(value) else value


def _read_amp(value: object) -> object:
    if _is_off(value):
        return "off"
    return "auto" if value is True else value


def _read_scheduler(value: object) -> object:
    return "constant" if _is_off(value) else value


def _read_ema(value: object) -> object:
    # auto stays: which number it is depends on the steps, which are known once the events are.
    if _is_off(value):
        return None
    if isinstance(value, str) and value.lower() == "auto":
        return "auto"
    try:
        decay = read_float(value)
    except PydanticCustomError as error:
        raise refuse(f"expected auto, null or a float, got {describe(value)}", instead="auto") from error
    if decay == 0:
        return None
    if not 0 < decay < 1:
        raise refuse(f"ema_decay must lie between 0 and 1 (null for no average), got {decay:g}", instead="auto")
    return decay


def _read_warm_up(value: object, info: ValidationInfo) -> object:
    # The number stands in the configuration from here on: a run records it, and a resumed one can tell another.
    if isinstance(value, str) and value.lower() == "auto":
        return _USUAL_WARM_UP if info.data.get("epochs", math.inf) > _USUAL_WARM_UP else 0
    try:
        return read_int(value)
    except PydanticCustomError as error:
        raise refuse(f"expected auto or an integer, got {describe(value)}", instead="auto") from error


def _read_checkpointing(value: object) -> object:
    return "none" if _is_off(value) else value


def _read_device(value: object) -> object:
    if isinstance(value, str):
        kind, _, index = value.partition(":")
        if value in ("auto", "cpu") or (kind == "cuda" and (index.isdigit() or value == "cuda")):
            return value
    raise refuse(f"expected one of auto, cpu, cuda, cuda:N; got {describe(value)}")


Compile = Annotated[
    Literal["none", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "auto"],
    BeforeValidator(_read_compile),
]
Amp = Annotated[Literal["auto", "off", "bf16", "fp16"], BeforeValidator(_read_amp)]
Scheduler = Annotated[
    Literal["constant", "cosine", "onecycle", "plateau", "cosine_restarts"], BeforeValidator(_read_scheduler)
]
WarmUp = Annotated[
    int,
    BeforeValidator(_read_warm_up),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 1_000_000}, {"const": "auto"}]}),
]
EmaDecay = Annotated[float | Literal["auto"] | None, BeforeValidator(_read_ema)]
Checkpointing = Annotated[Literal["none", "stages"], BeforeValidator(_read_checkpointing)]
Device = Annotated[str, BeforeValidator(_read_device)]


def decay_in(decay: float | Literal["auto"] | None, steps: int) -> float | None:
    """Return the decay of the weight average in a run of so many optimizer steps; None for no average.

    That of ``auto`` averages over a tenth of the steps, below 1 however many they are, and is none in ten steps or
    fewer.

    >>> decay_in("auto", 25), decay_in("auto", 400_000), decay_in("auto", 10), decay_in(0.999, 25)
    (0.6, 0.999975, None, 0.999)
    """
    if decay != "auto":
        return decay
    if steps <= _PART_OF_RUN:
        return None
    digits = max(4, math.ceil(math.log10(steps)) + 1)
    return float(f"{1 - _PART_OF_RUN / steps:.{digits}g}")


DEFAULT_TIME_THRESHOLD = 100.0
"""Photons below which a time is left out when ``training.time.npho_threshold`` is null."""


class TrainingConfig(Section):
    """What every kind of training shares."""

    epochs: Int = knob(20, "Passes over the training events", "epochs", gt=0, le=1_000_000)
    lr: Float = knob(3e-4, "Peak learning rate of AdamW", "1", gt=0, le=10)
    weight_decay: Float = knob(1e-4, "Decoupled weight decay; norms and biases are left out", "1", ge=0, le=10)
    warmup_epochs: WarmUp = knob("auto", _WARM_UP, "epochs", ge=0, le=1_000_000)
    lr_scheduler: Scheduler = knob("constant", "Course of the learning rate after the warm-up", code="CFG-05")
    max_lr: Float | None = knob(None, "Peak of onecycle; null: lr", "1", gt=0, le=10)
    pct_start: Float = knob(0.3, "Rising share of onecycle", "1", "CFG-28", gt=0, lt=1)
    lr_patience: Int = knob(5, "Epochs without improvement before plateau lowers the rate", "epochs", ge=0, le=100_000)
    lr_factor: Float = knob(0.5, "Factor plateau applies", "1", gt=0, lt=1)
    lr_min: Float = knob(1e-7, "Lowest learning rate", "1", ge=0, le=10)
    lr_restart_period: Int = knob(10, "Epochs of the first cosine_restarts cycle", "epochs", gt=0, le=1_000_000)
    lr_restart_mult: Int = knob(2, "Growth of the following cycles", "1", gt=0, le=100)
    amp: Amp = knob("auto", "Mixed precision; auto: bf16 where the device has it", code="CFG-05")
    ema_decay: EmaDecay = knob(0.999, _AVERAGE, "1", "CFG-52")
    channel_dropout_rate: Float = knob(0.0, "Chance that a sensor is made dead in a training event", "1", ge=0, lt=1)
    grad_clip: Float = knob(1.0, "Largest gradient norm; 0 for no clipping", "1", "CFG-26", ge=0, le=1e6)
    grad_accum_steps: Int = knob(1, "Batches summed into one optimiser step", "batches", "CFG-25", ge=1, le=100_000)
    compile: Compile = knob(
        "auto", "torch.compile mode; auto: eager on CPU, without a toolchain and in short runs", code="CFG-06"
    )
    compile_fullgraph: Bool = knob(False, "Treat a graph break as an error")
    activation_checkpointing: Checkpointing = knob("none", "Recompute activations of each stage to save memory")
    seed: Int = knob(42, "Fixes weights, event order, dropout and masks", "1", ge=0, le=2**63 - 1)
    deterministic: Bool = knob(False, "Only deterministic operations; slower")
    early_stop_patience: Int | None = knob(
        None, "Epochs without improvement before training stops; null: never", "epochs", "CFG-52", ge=1, le=1_000_000
    )
    device: Device = knob("auto", "auto, cpu, cuda or cuda:N", code="CFG-05")
    profile: Bool = knob(False, "Time data, transfer, forward, backward and optimiser")


class RegressorTrainingConfig(TrainingConfig):
    """Training of the regressor."""

    channel_dropout_rate: Float = knob(0.1, "Chance that a sensor is made dead in a training event", "1", ge=0, lt=1)


class TimeLossConfig(Section):
    """The time channel of the sensor-level losses."""

    weight: Float = knob(1.0, "Weight of the time loss", "1", ge=0, le=1e6)
    mask_ratio_scale: Float = knob(1.0, "How much likelier bright sensors are hidden", "1", gt=0, le=1e3)
    use_npho_weight: Bool = knob(True, "Weight the time loss by sqrt(npho)")
    npho_threshold: Float | None = knob(
        None, "Photons below which a time is ignored; null: 100", "photons", ge=-1e9, le=1e9
    )


class NphoLossWeightConfig(Section):
    """Weight ``(max(npho, 1) + 1)^alpha`` of the photon loss, mean 1."""

    enabled: Bool = knob(False, "Whether bright sensors count more")
    alpha: Float = knob(0.5, "Exponent of the weight", "1", ge=-5, le=5)


class IntensityReweightingConfig(Section):
    """Weight events by their light sum."""

    enabled: Bool = knob(False, "Whether events are weighted")
    nbins: Int = knob(5, "Bins in the light sum", "bins", gt=0, le=10_000)
    target: Literal["uniform", "sqrt"] = knob("uniform", "Wanted distribution of the light sum", code="CFG-05")


class SensorTrainingConfig(TrainingConfig):
    """What the sensor-level trainings (MAE, inpainter) add."""

    warmup_epochs: WarmUp = knob(0, _WARM_UP, "epochs", ge=0, le=1_000_000)
    lr: Float = knob(1e-4, "Peak learning rate of AdamW", "1", gt=0, le=10)
    lr_min: Float = knob(1e-6, "Lowest learning rate", "1", ge=0, le=10)
    ema_decay: EmaDecay = knob(None, _AVERAGE, "1", "CFG-52")
    loss_fn: Literal["smooth_l1", "mse", "l1", "huber"] = knob("smooth_l1", "Loss per sensor", code="CFG-05")
    loss_beta: Float = knob(1.0, "Edge of the quadratic region", "normalised", "CFG-07", ge=0, le=1e3)
    npho_weight: Float = knob(1.0, "Weight of the photon loss", "1", ge=0, le=1e6)
    time: TimeLossConfig = section(TimeLossConfig, "Time channel")
    npho_loss_weight: NphoLossWeightConfig = section(NphoLossWeightConfig, "Photon weighting of the photon loss")
    intensity_reweighting: IntensityReweightingConfig = section(IntensityReweightingConfig, "Event weights")
    track_mae_rmse: Bool = knob(
        False, "Log errors of validation by face, in photons and as mean absolute ones, not the root mean square alone"
    )
    track_metrics: Bool = knob(False, "Log training losses per face and channel beside train/loss")


class MaeTrainingConfig(SensorTrainingConfig):
    """Training of the masked autoencoder."""

    auto_channel_weight: Bool = knob(False, "Learn the weights of the two channels")


class InpainterTrainingConfig(SensorTrainingConfig):
    """Training of the inpainter."""

    epochs: Int = knob(50, "Passes over the training events", "epochs", gt=0, le=1_000_000)
    track_mae_rmse: Bool = knob(
        True, "Log errors of validation by face, in photons and as mean absolute ones, not the root mean square alone"
    )
    track_metrics: Bool = knob(True, "Log training losses per channel beside train/loss")
    baseline_hops: Int = knob(
        1, "Reach k of the conventional estimates reported beside the network: neighbours within k hops", "hops", ge=1,
        le=MAX_HOPS,
    )  # fmt: skip
