"""Rules of the data and normalization sections that need neither data nor machine."""

from __future__ import annotations

from collections.abc import Iterator

from xectool.config.root import MaeConfig, RegressorConfig, RunConfig
from xectool.config.serialize import inline_yaml
from xectool.findings import Finding
from xectool.rules import Rule

# Constants that belong together, as the older system shipped them.
_FAMILIES = {
    "legacy": {"npho_scale": 0.58, "npho_scale2": 1.0, "time_scale": 6.5e-8, "time_shift": 0.5},
    "current": {"npho_scale": 1000.0, "npho_scale2": 4.08, "time_scale": 1.14e-7, "time_shift": -0.46},
}
_TIME_SPAN = 3.0  # Relative times lie within about 3 time scales of the earliest sensor.
_TIME_MARGIN = 0.1
_LARGEST_NPHO = 3.0  # Normalised photon numbers end between 2.5 and 3 in the log1p scheme.


class LoaderOptionsNeedWorkers(Rule[RunConfig]):
    """prefetch_factor, persistent_workers, mp_context and timeout_s only mean something with worker processes."""

    code = "CFG-15"
    title = "Options of worker processes need num_workers > 0"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield one finding for each option that cannot take effect."""
        data = facts.data
        if data.num_workers > 0:
            return
        set_without_workers = {
            "prefetch_factor": data.prefetch_factor is not None,
            "persistent_workers": bool(data.persistent_workers),
            "mp_context": data.mp_context != "forkserver",
            "timeout_s": data.timeout_s != type(data).model_fields["timeout_s"].default,
        }
        for name, is_set in set_without_workers.items():
            if is_set:
                value = getattr(data, name)
                yield self.error(
                    f"data.{name}",
                    f"{name} needs num_workers > 0: data.{name} is {value} and data.num_workers is 0 "
                    "(the same holds for prefetch_factor, persistent_workers, mp_context and timeout_s)",
                    f"data.{name}: {inline_yaml(type(data).model_fields[name].default)}  # or data.num_workers: 1",
                )


class ForkInheritsCompilerThreads(Rule[RunConfig]):
    """A forked worker inherits compiler and CUDA threads that it cannot join."""

    code = "CFG-19"
    title = "Worker processes are not forked from a process that compiles"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning where fork meets compilation or CUDA."""
        compiles = facts.training.compile != "none" or facts.training.device.startswith("cuda")
        if facts.data.mp_context == "fork" and compiles:
            yield self.warning(
                "data.mp_context",
                f"data.mp_context: fork with training.compile: {facts.training.compile} may end in "
                "'LLVM ERROR: pthread_join failed': a forked worker inherits threads of the compiler or of CUDA",
                "data.mp_context: forkserver",
            )


class WindowHoldsWholeBatches(Rule[RunConfig]):
    """The shuffling window should hold at least one batch."""

    code = "CFG-21"
    title = "chunksize is a multiple of batch_size"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for a window below one batch, a note for one that is not a multiple."""
        chunk, batch = facts.data.chunksize, facts.data.batch_size
        if chunk < batch:
            yield self.warning(
                "data.chunksize",
                f"data.chunksize {chunk} is below data.batch_size {batch}: partial batches come out of each window "
                "and are joined, and events are hardly shuffled",
                f"data.chunksize: {16 * batch}",
            )
        elif chunk % batch:
            yield self.info(
                "data.chunksize",
                f"data.chunksize {chunk} is no multiple of data.batch_size {batch}: partial batches at the end of a "
                "window are joined with the next one",
                f"data.chunksize: {chunk // batch * batch}",
            )


class TrainingIsShuffled(Rule[RunConfig]):
    """Events in file order bias every step towards one run."""

    code = "CFG-36"
    title = "Training events are shuffled"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning where shuffling is off."""
        if not facts.data.shuffle:
            yield self.warning(
                "data.shuffle",
                "data.shuffle: false serves training events in file order, the same in each epoch",
                "data.shuffle: true",
            )


class BranchIsCurrent(Rule[RunConfig]):
    """relative_npho loses the light scale."""

    code = "CFG-39"
    title = "npho_branch is not the deprecated relative_npho"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for the deprecated branch."""
        if facts.data.npho_branch == "relative_npho":
            yield self.warning(
                "data.npho_branch",
                "data.npho_branch: relative_npho is deprecated; use npho (it divides by the largest sensor)",
                "data.npho_branch: npho",
            )


class FiducialVolumeIsNotEmpty(Rule[RunConfig]):
    """A cut that keeps nothing is a slip."""

    code = "CFG-03"
    title = "w_max lies above w_min"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield an error for an empty depth range."""
        cut = facts.data.fiducial
        if cut.w_max is not None and cut.w_max <= cut.w_min:
            yield self.error(
                "data.fiducial.w_max",
                f"data.fiducial.w_max {cut.w_max:g} must be > data.fiducial.w_min {cut.w_min:g}: the cut keeps nothing",
                "data.fiducial.w_max: null",
            )


class NormalizationIsOfOneFamily(Rule[RunConfig]):
    """Constants of two generations mixed give inputs far from 1."""

    code = "CFG-40"
    title = "Normalisation constants belong together"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning where constants of both shipped families occur."""
        values = facts.normalization.model_dump()
        pairs = [("time_scale", "time_shift")]
        if facts.normalization.npho_scheme == "log1p":
            pairs.append(("npho_scale", "npho_scale2"))
        for pair in pairs:
            if len({_family(name, values[name]) for name in pair} - {None}) > 1:
                shown = ", ".join(f"normalization.{name} {values[name]:g}" for name in pair)
                wanted = _FAMILIES[_family(pair[0], values[pair[0]]) or "current"][pair[1]]
                yield self.warning(
                    f"normalization.{pair[1]}",
                    f"normalisation incomplete: {shown} mix the legacy and the current constants",
                    f"normalization.{pair[1]}: {wanted:g}",
                )


class SentinelsStandApart(Rule[RunConfig]):
    """A sentinel inside the range of real values makes a dead sensor look alive."""

    code = "CFG-41"
    title = "Sentinels lie outside the expected range and survive bfloat16"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for each sentinel that could be a value, or that bfloat16 changes."""
        norm = facts.normalization
        earliest = -norm.time_shift
        ranges = {
            "sentinel_npho": (norm.sentinel_npho, 0.0, _LARGEST_NPHO),
            "sentinel_time": (norm.sentinel_time, earliest - _TIME_MARGIN, earliest + _TIME_SPAN),
        }
        for name, (value, low, high) in ranges.items():
            if low <= value <= high:
                yield self.warning(
                    f"normalization.{name}",
                    f"normalization.{name} {value:g} lies inside the expected range {low:g} to {high:g} of real values",
                    f"normalization.{name}: -1.0",
                )
            if _bfloat16(value) != value:
                yield self.warning(
                    f"normalization.{name}",
                    f"normalization.{name} {value:g} is not bf16-representable: it becomes {_bfloat16(value):g}",
                    f"normalization.{name}: {_bfloat16(value)!r}",
                )


class OneNphoThreshold(Rule[RunConfig]):
    """The sensor-level losses and the normaliser should agree on which times are valid."""

    code = "CFG-40"
    title = "Both photon thresholds of a sensor-level training agree"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning where they differ; the older system read only the one of the loss."""
        if isinstance(facts, RegressorConfig):
            return
        in_loss = facts.training.time.npho_threshold  # the older system: of the times that are read, too
        in_model = facts.normalization.npho_threshold
        if in_loss is not None and in_loss != in_model:
            which = "MAE" if isinstance(facts, MaeConfig) else "inpainter"
            yield self.warning(
                "normalization.npho_threshold",
                f"normalization.npho_threshold {in_model:g} differs from training.time.npho_threshold {in_loss:g}; "
                f"the older {which} used only the latter",
                f"normalization.npho_threshold: {in_loss!r}",
            )


DATA_RULES: tuple[Rule[RunConfig], ...] = (
    LoaderOptionsNeedWorkers(),
    ForkInheritsCompilerThreads(),
    WindowHoldsWholeBatches(),
    TrainingIsShuffled(),
    BranchIsCurrent(),
    FiducialVolumeIsNotEmpty(),
    NormalizationIsOfOneFamily(),
    SentinelsStandApart(),
    OneNphoThreshold(),
)


def _family(name: str, value: float) -> str | None:
    return next((family for family, constants in _FAMILIES.items() if constants[name] == value), None)


def _bfloat16(value: float) -> float:
    """Return the value with the 8 significant bits of bfloat16."""
    if value == 0:
        return 0.0
    mantissa, exponent = float(abs(value)).hex().removeprefix("0x").split("p")
    digits = int(mantissa.replace(".", "").ljust(14, "0"), 16)
    step = 1 << (52 - 7)
    rounded = (digits + step // 2) // step * step
    return (1 if value > 0 else -1) * rounded * 2.0 ** (int(exponent) - 52)
