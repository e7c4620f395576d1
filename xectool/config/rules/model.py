"""Rules of the model section."""

from __future__ import annotations

from collections.abc import Iterator

from xectool.config.mask_patterns import DATABASES, MaskPatternsConfig
from xectool.config.model import FINE_GRID
from xectool.config.root import InpainterConfig, MaeConfig, RegressorConfig, RunConfig
from xectool.config.serialize import inline_yaml
from xectool.detector.constants import NUM_SENSORS
from xectool.errors import counted
from xectool.findings import Finding
from xectool.rules import Rule

_SEEING_WIDTH = 128
_OF_PER_FACE = ("use_masked_attention",)
_OF_CROSS_ATTENTION = (
    "sensor_positions_file", "cross_attn_k", "cross_attn_hidden", "cross_attn_latent_dim", "cross_attn_pos_dim",
)  # fmt: skip
_USUAL_MASK_RATIO = {"mae": (0.5, 0.75), "inpainter": (0.01, 0.10)}
_CELLS = 96  # the encoder brings each of the six faces to 4 x 4 cells; with fewer visible sensors most cells see none


class MaskRatioIsUsual(Rule[RunConfig]):
    """Far from the usual share of hidden sensors the task is trivial or hopeless."""

    code = "CFG-13"
    title = "mask_ratio lies in the range that is known to work"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning outside the typical range; inpainter ratios may be given a face."""
        if isinstance(facts, RegressorConfig):
            return
        ratio = facts.model.mask_ratio
        low, high = _USUAL_MASK_RATIO[facts.base_kind]
        ratios = [value for value in ratio.values() if value > 0] if isinstance(ratio, dict) else [ratio]
        outside = [value for value in ratios if not low <= value <= high]
        if outside:
            visible = (
                NUM_SENSORS * (1 - ratio) if isinstance(ratio, float) else NUM_SENSORS
            )  # ratios of faces: some stay
            few = (
                f": {visible:.0f} of {NUM_SENSORS} sensors stay visible, fewer than the {_CELLS} cells of the encoder "
                f"(from {1 - _CELLS / NUM_SENSORS:.2f} on), so most cells see nothing of the event"
            )
            yield self.warning(
                "model.mask_ratio",
                f"model.mask_ratio {outside[0]:g} lies outside the typical range {low:g} to {high:g} "
                f"of kind {facts.kind}{few if visible < _CELLS else ''}",
                f"model.mask_ratio: {0.6 if facts.base_kind == 'mae' else 0.05}",
            )


class TimeOptionsNeedTime(Rule[RunConfig]):
    """Options of the time channel do nothing where time is not predicted."""

    code = "CFG-14"
    title = "training.time is only set where time is predicted"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for options that differ from their defaults."""
        if isinstance(facts, RegressorConfig) or "time" in facts.model.predict_channels:
            return
        time = facts.training.time
        defaults = {"weight": 1.0, "use_npho_weight": True}
        changed = [name for name, default in defaults.items() if getattr(time, name) != default]
        # Above it a sensor is bright, which with a scale makes it likelier to be hidden, whatever is predicted; and
        # the older system read the times by it, so another one of the normaliser is CFG-40 until both agree.
        agrees = time.npho_threshold == facts.normalization.npho_threshold != 100.0
        if agrees and time.mask_ratio_scale == 1.0:
            changed.append("npho_threshold")
        for name in changed:
            yield self.warning(
                f"training.time.{name}",
                f"training.time.{name} is ignored: 'time' not in predict_channels "
                f"(model.predict_channels: {list(facts.model.predict_channels)})",
                f"delete training.time.{name}",
            )


class PoolDividesTheFineGrid(Rule[RunConfig]):
    """Cells that do not divide 45 x 72 leave sensors of the outer face unread."""

    code = "CFG-43"
    title = "outer_fine_pool divides 45 x 72 and is used with outer_mode finegrid"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield an error with the physical geometry, a warning with compat, which has always dropped the rest."""
        pool = facts.model.outer_fine_pool
        if pool is None:
            return
        key = "model.outer_fine_pool"
        if facts.model.outer_mode == "split":
            yield self.warning(key, f"{key} {list(pool)} has no effect with model.outer_mode: split", f"{key}: null")
            return
        left = [size % step for size, step in zip(FINE_GRID, pool, strict=True)]
        if not any(left):
            return
        problem = f"{key} {list(pool)} does not divide 45 x 72: {left[0]} rows and {left[1]} columns are dropped"
        if facts.model.geometry == "compat":
            yield self.warning(key, f"{problem}, as the older system did", f"{key}: [3, 3]")
        else:
            yield self.error(
                key,
                f"{problem} (model.geometry: physical reads every sensor)",
                f"{key}: [3, 3]  # or, to train as the older system did, model.geometry: compat",
            )


class WidthsDivide(Rule[RunConfig]):
    """Attention heads and position encodings need widths that divide."""

    code = "CFG-44"
    title = "encoder_dim is a multiple of 32; cross-attention widths divide by 4 and 6"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield an error for each width that does not divide."""
        widths = [("encoder_dim", facts.model.encoder_dim, 32, "8 attention heads and the 4 x 4 face maps")]
        if isinstance(facts, InpainterConfig) and facts.model.head_type == "cross_attention":
            widths.append(("cross_attn_latent_dim", facts.model.cross_attn_latent_dim, 4, "4 attention heads"))
            widths.append(("cross_attn_pos_dim", facts.model.cross_attn_pos_dim, 6, "sine and cosine of x, y, z"))
        for name, width, divisor, reason in widths:
            if width % divisor:
                nearest = max(divisor, round(width / divisor) * divisor)
                yield self.error(
                    f"model.{name}",
                    f"model.{name} {width} must be a multiple of {divisor} ({reason})",
                    f"model.{name}: {nearest}",
                )


class HeadOptionsApply(Rule[RunConfig]):
    """Options of one kind of head do nothing with the other."""

    code = "CFG-60"
    title = "Inpainter head options fit head_type"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for each option of the other head that differs from its default."""
        if not isinstance(facts, InpainterConfig):
            return
        kind = facts.model.head_type
        fields = type(facts.model).model_fields
        for name in _OF_PER_FACE if kind == "cross_attention" else _OF_CROSS_ATTENTION:
            value, usual = getattr(facts.model, name), fields[name].default
            if value != usual:
                problem = f"model.{name}: {inline_yaml(value)} has no effect with model.head_type: {kind}"
                yield self.warning(f"model.{name}", problem, f"model.{name}: {inline_yaml(usual)}")


class FrozenEncoderIsTrained(Rule[RunConfig]):
    """A frozen encoder with random weights learns nothing."""

    code = "CFG-60"
    title = "A frozen encoder starts from a checkpoint"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning where a frozen encoder has no weights to start from."""
        if not isinstance(facts, InpainterConfig) or not facts.model.freeze_encoder:
            return
        if facts.checkpoint.init_from is None and facts.checkpoint.resume_from is None:
            yield self.warning(
                "model.freeze_encoder",
                "model.freeze_encoder: true without checkpoint.init_from keeps random encoder weights for ever",
                "checkpoint.init_from: artifacts/<mae run>/checkpoint_best.pt",
            )


class LearnedChannelWeights(Rule[RunConfig]):
    """Learned channel weights need two channels."""

    code = "CFG-60"
    title = "auto_channel_weight has two channels to weigh"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning where only one channel is predicted."""
        if not isinstance(facts, MaeConfig) or not facts.training.auto_channel_weight:
            return
        if len(facts.model.predict_channels) == 1:
            yield self.warning(
                "training.auto_channel_weight",
                "training.auto_channel_weight: true has one channel only "
                f"(model.predict_channels: {list(facts.model.predict_channels)})",
                "training.auto_channel_weight: false",
            )


class EncoderSeesTheFaces(Rule[RunConfig]):
    """The convolutions of the faces have encoder_dim / 32 channels and normalise over them: one channel is blind."""

    code = "CFG-44"
    title = "encoder_dim gives the face convolutions enough channels"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning below 128, but for the preset ``ci`` of tests, and weights whose width is given."""
        width, start = facts.model.encoder_dim, facts.checkpoint
        is_given = start.init_from or start.resume_from not in (None, "auto")
        if width < _SEEING_WIDTH and facts.preset != "ci" and not is_given:
            channels = counted(width // 32, "channel")
            yield self.warning(
                "model.encoder_dim",
                f"model.encoder_dim {width} leaves the faces {channels} to normalise over: one shows the encoder "
                "nothing of a face, 2 channels little more than a sign",
                f"model.encoder_dim: {_SEEING_WIDTH}",
            )


class MaskPatternsCanBeFound(Rule[RunConfig]):
    """Flags and readings are in files, and a database knows runs."""

    code = "CFG-62"
    title = "mask_patterns says which files or runs its origins are asked for"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield an error for each origin that cannot be asked."""
        if isinstance(facts, RegressorConfig) or facts.model.mask_patterns.sensors:
            return
        patterns, key = facts.model.mask_patterns, "model.mask_patterns"
        for origin in patterns.origins:
            if (origin == "data" or origin.startswith("branch:")) and not patterns.files:
                yield self.error(
                    f"{key}.files",
                    f"{key}.origins: {origin} looks at files, and {key}.files names none",
                    f"{key}.files: [real/*.root]",
                )
            elif origin.startswith(DATABASES) and not patterns.runs:
                yield self.error(
                    f"{key}.runs",
                    f"{key}.origins: {origin} is asked for runs, and {key}.runs names none",
                    f"{key}.runs: [430000]",
                )


class MaskPatternsReplaceTheRatio(Rule[RunConfig]):
    """A pattern says which sensors are hidden; a share of random ones has no say beside it."""

    code = "CFG-60"
    title = "Options of random masks are not set beside mask_patterns, and the other way round"

    def check(self, facts: RunConfig) -> Iterator[Finding]:
        """Yield a warning for each option without effect."""
        if isinstance(facts, RegressorConfig):
            return
        model = facts.model
        scaled = facts.training.time.mask_ratio_scale != 1.0
        beside = "model.mask_patterns" if model.mask_patterns.wanted else "model.mask_npho_flat: true"
        idle = {
            "model.mask_ratio": model.mask_patterns.wanted and "mask_ratio" in model.model_fields_set,
            "model.mask_npho_flat": model.mask_patterns.wanted and model.mask_npho_flat,
            "training.time.mask_ratio_scale": scaled and (model.mask_patterns.wanted or model.mask_npho_flat),
        }
        for name in (name for name, is_idle in idle.items() if is_idle):
            yield self.warning(name, f"{name} has no effect with {beside}", f"delete {name}")
        if not model.mask_patterns.sensors:
            yield from self._unused(model.mask_patterns)

    def _unused(self, patterns: MaskPatternsConfig) -> Iterator[Finding]:
        """Yield a warning for files and runs that no origin of patterns looks at."""
        key = "model.mask_patterns"
        looks = any(origin == "data" or origin.startswith("branch:") for origin in patterns.origins)
        asks = any(origin.startswith(DATABASES) for origin in patterns.origins)
        for name, used, kind in (("files", looks, "data or branch:NAME"), ("runs", asks, "a database url")):
            if getattr(patterns, name) and not used:
                problem = f"{key}.{name} has no effect: no origin is {kind}"
                yield self.warning(f"{key}.{name}", problem, f"delete {key}.{name}")


MODEL_RULES: tuple[Rule[RunConfig], ...] = (
    MaskRatioIsUsual(),
    TimeOptionsNeedTime(),
    PoolDividesTheFineGrid(),
    WidthsDivide(),
    HeadOptionsApply(),
    FrozenEncoderIsTrained(),
    LearnedChannelWeights(),
    EncoderSeesTheFaces(),
    MaskPatternsCanBeFound(),
    MaskPatternsReplaceTheRatio(),
)
