"""What every metric of the record is: definition, unit, and which way is better.

The names are made where the values are computed; a test trains and predicts every kind and asks for each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

from xectool.config.model import CHANNEL_NAMES, FACE_NAMES
from xectool.config.tasks import TASK_NAMES, TASK_UNITS

SMALLER, LARGER, NEAR_0, NEAR_1 = "smaller", "larger", "nearer 0", "nearer 1"
_NEITHER = "neither"
_ESTIMATORS = ("neighbour", "solid_angle")
_TERMS = (*CHANNEL_NAMES, *FACE_NAMES, *(f"{face}_{channel}" for face in FACE_NAMES for channel in CHANNEL_NAMES))
_WORDS = {
    "task": TASK_NAMES,
    "axis": ("u", "v", "w"),
    "angle": ("theta", "phi"),
    "face": ("", *(f"{face}_" for face in FACE_NAMES)),
    "channel": CHANNEL_NAMES,
    "term": _TERMS,
    "any_term": (*TASK_NAMES, *_TERMS),
    "estimator": ("", *(f"baseline_{name}_" for name in _ESTIMATORS)),
    "constant": ("baseline_constant_",),
}
_PLACE = re.compile(r"\{(\w+)\}")
_ABBREVIATED = ("", "val/", "train/", "perf/", "task/", "channel/", "step/")


@dataclass(frozen=True)
class Metric:
    """One metric, or all whose names differ in a word such as the face.

    Attributes:
        pattern: The name, with a word in braces for each of `_WORDS` that it may hold.
        meaning: Definition; p is the prediction and y the truth of an event.
        unit: "1" where there is none, "task" for that of its task and "task^2" for its square.
        better: Which way is better.
        group: Title of the part of the reference page it stands in.
    """

    pattern: str
    meaning: str
    unit: str = "1"
    better: str = SMALLER
    group: str = ""

    def names(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield every name that the pattern stands for, with its words."""
        places = _PLACE.findall(self.pattern)
        for words in product(*(_WORDS[place] for place in places)):
            chosen = dict(zip(places, words, strict=True))
            yield self.pattern.format(**chosen), chosen

    def unit_of(self, words: Mapping[str, str]) -> str:
        """Return the unit of the metric of that name."""
        if not self.unit.startswith("task"):
            return self.unit
        unit = TASK_UNITS[words["task"]]
        return unit if unit == "1" else self.unit.replace("task", unit)


@dataclass(frozen=True)
class Named:
    """A metric by its full name."""

    name: str
    unit: str
    metric: Metric
    words: Mapping[str, str]

    @property
    def text(self) -> str:
        """What the name stands for, its unit and which way is better, a line each."""
        told = ["Unit: none" if self.unit == "1" else f"Unit: {self.unit}", f"Better: {self.metric.better}"]
        return "\n".join([self.metric.meaning, *self._of_words(), *told])

    @property
    def estimator(self) -> str:
        """Beginning of the name that tells the estimator beside the network; empty for the network."""
        return self.words.get("estimator", "") or self.words.get("constant", "")

    def _of_words(self) -> Iterator[str]:
        face, estimator = self.words.get("face", ""), self.words.get("estimator", "")
        if face:
            yield f"Here over the sensors of the face {face.rstrip('_')} only."
        if estimator:
            yield f"Here of the conventional estimator {estimator[9:-1]}, on the very sensors the network is scored on."


def _group(title: str, *metrics: Metric) -> list[Metric]:
    return [Metric(one.pattern, one.meaning, one.unit, one.better, title) for one in metrics]


_NETWORK = "network units (explain normalization)"
_SIGMA = "(of gaussian_nll only)"
_HIDDEN = "the hidden sensors that have a reading (of times: and enough light, training.time.npho_threshold)"

METRICS: tuple[Metric, ...] = (
    *_group(
        "Losses",
        Metric("val/loss",
               "The objective on the validation events, or on those predicted: the losses of tasks or terms "
               "added up with their weights (tasks.*.weight, loss_balance); of the averaged weights (EMA) where there "
               "are any. The epoch of the smallest is the best one. Scaled targets, so runs with other targets, "
               "scales, weights or losses cannot be compared by it."),
        Metric("train/loss",
               "The objective over the steps of an epoch, while the weights changed: with dropped channels "
               "and freshly hidden sensors, so it may lie above val/loss."),
        Metric("val/{task}/loss", "Mean loss of the task before its weight, on scaled targets (tasks.*.loss_fn)."),
        Metric("train/{task}/loss", "Mean loss of the task before its weight over the steps of an epoch."),
        Metric("val/loss_{term}", "Mean loss at hidden sensors, of a face, of a channel (npho, time), or of both; that "
               "of a face adds its channels up with their weights, that of a channel its faces."),
        Metric("train/loss_{term}", "Mean loss at hidden sensors, of a face, of a channel or of both, over the steps "
               "of an epoch (training.track_metrics)."),
        Metric("val/{task}/l1",
               "mean |p - y| in physical units, over events and components, whatever is trained.", "task"),
        Metric("val/{task}/mse", "mean (p - y)^2 in physical units, over events and components.", "task^2"),
        Metric("val/{task}/smooth_l1", "mean of 0.5 d^2 / b below d = |p - y| = b and of d - b / 2 above, in physical "
               "units; b is tasks.*.loss_beta times the scale of the target.", "task"),
        Metric("val/{task}/nonfinite",
               "Events whose prediction of the task is NaN or infinite; where there are any, the "
               "other metrics of the task are NaN.", "events", NEAR_0),
        Metric("val/l1",
               "Sum over the tasks of val/<task>/l1, each in its own unit: to compare runs with the same tasks."),
        Metric("val/mse", "Sum over the tasks of val/<task>/mse, each in its own unit squared."),
        Metric("val/smooth_l1", "Sum over the tasks of val/<task>/smooth_l1, each in its own unit."),
    ),
    *_group(
        "Directions",
        Metric("angle_resolution_68pct", "68 % quantile of the opening angle between p and y = (theta, phi).", "deg"),
        Metric("{angle}_bias", "mean(p - y) of the angle; phi is taken the short way round.", "deg", NEAR_0),
        Metric("{angle}_rms", "Standard deviation of p - y of the angle.", "deg"),
        Metric("{angle}_skew", "Skewness m3 / m2^1.5 of p - y of the angle; > 0: a tail to large values.", "1", NEAR_0),
        Metric("val/cos", "mean(1 - cos of the opening angle) between p and y = (theta, phi), 0 to 2."),
        Metric("angleVec_resolution_68pct", "68 % quantile of the opening angle between the vectors p and y.", "deg"),
        Metric("val/cos_vec", "mean(1 - cos of the opening angle) between the vectors p and y, 0 to 2."),
    ),
    *_group(
        "Energy and time",
        Metric("energy_res_68pct", "68 % quantile of |p - y|: a resolution that holds bias and tails.", "GeV"),
        Metric("energy_bias", "mean(p - y); > 0: too much energy.", "GeV", NEAR_0),
        Metric("timing_res_68pct", "68 % quantile of |p - y|: a resolution that holds bias and tails.", "s"),
        Metric("timing_bias", "mean(p - y); > 0: too late.", "s", NEAR_0),
    ),
    *_group(
        "Position of the first interaction",
        Metric("uvw_dist_68pct", "68 % quantile of the distance |p - y| in three dimensions.", "cm"),
        Metric("uvw_dist_bias",
               "Mean of the distance |p - y| in three dimensions; never negative, whatever its name.", "cm"),
        Metric("uvw_{axis}_res_68pct", "68 % quantile of |p - y| along the axis.", "cm"),
        Metric("uvw_{axis}_bias", "mean(p - y) along the axis.", "cm", NEAR_0),
        Metric("val/cos_pos", "mean(1 - cos of the angle) between p and y, each taken as a vector (u, v, w); 0 to 2."),
    ),
    *_group(
        "Number of photons",
        Metric("n_gamma_accuracy", "Share of the events whose largest output is that of the true number.", "1", LARGER),
        Metric("n_gamma_res_68pct", "68 % quantile of |p - y| over the outputs."),
        Metric("n_gamma_bias", "mean(p - y) over the outputs.", "1", NEAR_0),
    ),
    *_group(
        "Predicted widths and conventional estimators",
        Metric("{task}_pred_std_mean", f"Mean of the standard deviation that the network predicts {_SIGMA}.", "task"),
        Metric("{task}_calibration_ratio",
               f"Mean predicted standard deviation over that of p - y {_SIGMA}: below 1 the "
               "network is too sure of itself, above 1 not sure enough.", "1", NEAR_1),
        Metric("baseline_{task}",
               "The headline metric of the task for the conventional estimator (linear in light sum, "
               "centroid, width and mean time; fitted to the training events), on the same events: the network should "
               "lie below. It is <task>_res_68pct, uvw_dist_68pct or <task>_resolution_68pct.", "task"),
    ),
    *_group(
        "Hidden sensors",
        Metric("{estimator}mae_{face}npho", f"mean |p - y| of the light of {_HIDDEN}.", _NETWORK),
        Metric("{estimator}rmse_{face}npho",
               "Square root of mean (p - y)^2 of the light of the hidden sensors.", _NETWORK),
        Metric("{estimator}mae_{face}photons", "mean |p - y| of the light of the hidden sensors.", "photons"),
        Metric("{estimator}rmse_{face}photons",
               "Square root of mean (p - y)^2 of the light of the hidden sensors.", "photons"),
        Metric("{estimator}bias_{face}photons", "mean(p - y) of the light; > 0: too much light.", "photons", NEAR_0),
        Metric("mae_{face}time", f"mean |p - y| of the times of {_HIDDEN}.", _NETWORK),
        Metric("rmse_{face}time", "Square root of mean (p - y)^2 of the times of the hidden sensors.", _NETWORK),
        Metric("{constant}rmse_{face}{channel}",
               "The same of a prediction that does not look at the event, the mean hidden reading of the face: what a "
               "network that has learned lies below.", _NETWORK),
    ),
    *_group(
        "How much was hidden (train/: over the steps of an epoch; without: in validation or prediction)",
        *(
            Metric(f"{sample}{name}", meaning, "1", f"{_NEITHER}; it is what model.mask_ratio or --dead asked for")
            for sample in ("", "train/")
            for name, meaning in (
                ("masked_of_valid", "Hidden sensors with a reading over all sensors with a reading."),
                ("masked_of_all", "Hidden sensors with a reading over all 4760 sensors of each event."),
                ("hidden_of_all", "Sensors the network does not see, without a reading or hidden, over all sensors."),
            )
        ),
    ),
    *_group(
        "Learnt weights of the losses",
        Metric("task/{task}_log_var",
               "Learnt s of loss_balance=auto, which adds 0.5 e^-s L + 0.5 s; best s = ln L.", "1",
               _NEITHER),
        Metric("task/{task}_weight", "0.5 e^-s: the factor on the loss of the task.", "1", _NEITHER),
        Metric("channel/{channel}_log_var",
               "Learnt s of training.auto_channel_weight, as task/<task>_log_var.", "1", _NEITHER),
        Metric("channel/{channel}_weight", "0.5 e^-s: the factor on the loss of the channel.", "1", _NEITHER),
    ),
    *_group(
        "Steps and speed",
        Metric("epoch", "Number of the epoch, from 1; runs compare shows the best one.", "1", _NEITHER),
        Metric("lr", "Learning rate of the last step of an epoch.", "1", _NEITHER),
        Metric("train/grad_norm_max", "Largest norm of a gradient of the epoch before clipping.", "1",
               "smaller than training.grad_clip in most steps, and steady"),
        Metric("train/clipped_fraction", "Share of the steps whose gradient was clipped (training.grad_clip).", "1",
               "a few per cent; near 1 the clipping sets the step"),
        Metric("train/skipped_steps", "Steps left out because a loss or gradient was not finite.", "steps", NEAR_0),
        Metric("perf/events_per_s", "Training events a second, waiting for data included.", "events/s", LARGER),
        Metric("perf/val_events_per_s", "Validation events a second.", "events/s", LARGER),
        Metric("perf/data_wait_fraction",
               "Share of the epoch's seconds in which the step waited for data.", "1", NEAR_0),
        Metric("perf/epoch_time_sec", "Seconds in the steps of an epoch, waiting included, validation not.", "s"),
        Metric("perf/process_rss_GB", "Resident memory of this process at the end of the epoch.", "GB"),
        Metric("perf/vram_allocated_GB", "GPU memory that tensors hold at the end of the epoch.", "GB"),
        Metric("perf/vram_peak_GB", "Most GPU memory that tensors held since the run began.", "GB"),
        Metric("step/loss", "The objective of one step."),
        Metric("step/loss_{any_term}", "Mean loss of a task or term in one step."),
        Metric("step/lr", "Learning rate of one step.", "1", _NEITHER),
        Metric("step/grad_norm", "Norm of the gradient of one step before clipping.", "1", "steady"),
        Metric("step/clip_coef", "What clipping multiplied the gradient with; 1: nothing was clipped.", "1", NEAR_1),
        Metric("step/data_wait_s", "Seconds the step waited for its data.", "s"),
        Metric("step/step_s", "Seconds of the step, waiting included.", "s"),
    ),
)  # fmt: skip


@cache
def _by_name() -> dict[str, Named]:
    # Directions are vectors without a unit, and what lies between two of them is an angle.
    found = {
        name: Named(name, "deg" if name == "baseline_angleVec" else metric.unit_of(words), metric, words)
        for metric in METRICS
        for name, words in metric.names()
    }
    return found


def metric_names() -> tuple[str, ...]:
    """Return every name a metric can have."""
    return tuple(_by_name())


def find_metric(name: str) -> Named | None:
    """Return the metric of a name, also without its ``val/``; None where no metric has it.

    >>> found = find_metric("cos_pos")
    >>> (found.name, found.unit, found.metric.better) if found else None
    ('val/cos_pos', '1', 'smaller')
    """
    known = _by_name()
    return next((known[full] for prefix in _ABBREVIATED if (full := prefix + name.strip()) in known), None)


def with_unit(name: str) -> str:
    """Return the name of a metric with its unit in brackets; the name alone where it has none or ends in it.

    >>> with_unit("energy_bias"), with_unit("baseline_uvwFI"), with_unit("val/loss"), with_unit("mae_photons")
    ('energy_bias [GeV]', 'baseline_uvwFI [cm]', 'val/loss', 'mae_photons')
    """
    found = _by_name().get(name)
    plain = found is None or found.unit in ("1", _NETWORK) or name.endswith(f"_{found.unit}")
    return name if found is None or plain else f"{name} [{found.unit}]"
