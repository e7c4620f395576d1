"""The one root of the schema: a run of one of three kinds."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, TypeAlias, cast

from xectool.config.checkpoint import CheckpointConfig, SensorCheckpointConfig
from xectool.config.data import DataConfig
from xectool.config.distributed import DistributedConfig
from xectool.config.export import ExportConfig
from xectool.config.guards import GuardsConfig
from xectool.config.mlflow import InpainterMlflowConfig, MaeMlflowConfig, MlflowConfig
from xectool.config.model import InpainterModelConfig, MaeModelConfig, RegressorModelConfig
from xectool.config.normalization import NormalizationConfig
from xectool.config.reweighting import ReweightingConfig
from xectool.config.section import Section, knob, section
from xectool.config.tasks import TasksConfig
from xectool.config.training import InpainterTrainingConfig, MaeTrainingConfig, RegressorTrainingConfig
from xectool.config.validation import ValidationConfig
from xectool.errors import ConfigError, XecError
from xectool.registry.plugins import attempts, broken

Preset: TypeAlias = Literal["a100", "gh200", "cpu", "ci"] | None


SECTION_ORDER = (
    "kind", "preset", "data", "normalization", "model", "tasks", "training", "loss_balance", "reweighting",
    "validation", "checkpoint", "distributed", "mlflow", "export", "guards",
)  # fmt: skip


class RunSections(Section):
    """Abstract: what a run of any kind has.

    Attributes:
        base_kind: Which of the three it is built on; a kind of another package says its own word as ``kind``.
    """

    base_kind: ClassVar[Literal["regressor", "mae", "inpainter"]]
    preset: Preset = knob(None, "Preset the file was started from; only checked against the machine", code="CFG-55")
    data: DataConfig = section(DataConfig, "Where the events come from and how they are served")
    normalization: NormalizationConfig = section(NormalizationConfig, "Raw sensor values to network units")
    validation: ValidationConfig = section(ValidationConfig, "When and on what the weights are validated")
    distributed: DistributedConfig = section(DistributedConfig, "Several processes on one job")
    export: ExportConfig = section(ExportConfig, "What training writes besides checkpoints")
    guards: GuardsConfig = section(GuardsConfig, "What is watched during a run, and what is done about it")

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain YAML types."""
        values = self.model_dump(mode="json")
        return {key: values[key] for key in SECTION_ORDER if key in values}


class RegressorConfig(RunSections):
    """A run that learns angle, energy, time and position."""

    base_kind = "regressor"
    kind: Literal["regressor"] = knob("regressor", "What is trained")
    model: RegressorModelConfig = section(RegressorModelConfig, "The network")
    tasks: TasksConfig = section(TasksConfig, "What is learnt")
    training: RegressorTrainingConfig = section(RegressorTrainingConfig, "How the weights move")
    loss_balance: Literal["manual", "auto"] = knob("manual", "Task weights as written, or learnt", code="CFG-05")
    reweighting: ReweightingConfig = section(ReweightingConfig, "Event weights that flatten a target")
    checkpoint: CheckpointConfig = section(CheckpointConfig, "What is written, and from where a run continues")
    mlflow: MlflowConfig = section(MlflowConfig, "The MLflow mirror of the local record")


class MaeConfig(RunSections):
    """A run that pre-trains the encoder by reconstructing hidden sensors."""

    base_kind = "mae"
    kind: Literal["mae"] = knob("mae", "What is trained")
    model: MaeModelConfig = section(MaeModelConfig, "The network")
    training: MaeTrainingConfig = section(MaeTrainingConfig, "How the weights move")
    checkpoint: SensorCheckpointConfig = section(
        SensorCheckpointConfig, "What is written, and from where a run continues"
    )
    mlflow: MaeMlflowConfig = section(MaeMlflowConfig, "The MLflow mirror of the local record")


class InpainterConfig(RunSections):
    """A run that learns to fill dead channels."""

    base_kind = "inpainter"
    kind: Literal["inpainter"] = knob("inpainter", "What is trained")
    model: InpainterModelConfig = section(InpainterModelConfig, "The network")
    training: InpainterTrainingConfig = section(InpainterTrainingConfig, "How the weights move")
    checkpoint: SensorCheckpointConfig = section(
        SensorCheckpointConfig, "What is written, and from where a run continues"
    )
    mlflow: InpainterMlflowConfig = section(InpainterMlflowConfig, "The MLflow mirror of the local record")


RunConfig: TypeAlias = RegressorConfig | MaeConfig | InpainterConfig
KINDS: dict[str, type[RegressorConfig] | type[MaeConfig] | type[InpainterConfig]] = {
    "regressor": RegressorConfig,
    "mae": MaeConfig,
    "inpainter": InpainterConfig,
}


BROKEN_KINDS: dict[str, XecError] = {}
"""What is wrong with the kinds of other packages that cannot be used; no other kind is stopped by them."""


def refuse_broken(kind: object) -> None:
    """Raise what is wrong with a kind of another package, if it is such a one.

    Raises:
        UsageError: The kind is broken.
    """
    if isinstance(kind, str) and kind in BROKEN_KINDS:
        raise BROKEN_KINDS[kind]


_IS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # what is no name would end the remark of a line to paste

KIND_PACKAGES: dict[str, str] = {}
"""The installed package that brings a kind; none for the three."""


def require_kind(kind: object, source: str, package: str = "") -> None:
    """Refuse a kind that something was trained as and no installed package brings; what is no name at all passes.

    Args:
        kind: What is said to be its kind.
        source: What was trained, for messages.
        package: The package that brought the kind then; empty where that is not known.

    Raises:
        ConfigError: None brings it.
        UsageError: The kind is broken.
    """
    refuse_broken(kind)
    if isinstance(kind, str) and kind not in KINDS:
        named = f"the package {package}" if _IS_NAME.fullmatch(package) else "the package"
        meant = kind if _IS_NAME.fullmatch(kind) else "it"
        raise ConfigError(
            f"its kind is {kind!r}, which no installed package brings",
            where=source,
            # no name out of a file is asked of a public index
            fix=f"pip list   # lacks {named} that brings {meant}: install it from where you have it",
            code="XT-PLUGIN",
        )


def base_of(kind: str) -> str:
    """Return which of the three a kind is built on; a word that is no kind stays as it is.

    >>> base_of("mae"), base_of("encoder")
    ('mae', 'encoder')
    """
    return KINDS[kind].base_kind if kind in KINDS else kind


def _add_plugin_kinds() -> None:
    """Add the kinds that other installed packages bring: subclasses of the three that say their own ``kind``."""
    own = frozenset(KINDS)
    for point, cls in attempts("kinds"):
        if isinstance(cls, XecError):
            BROKEN_KINDS[point.name] = cls
        elif not (isinstance(cls, type) and issubclass(cls, (RegressorConfig, MaeConfig, InpainterConfig))):
            BROKEN_KINDS[point.name] = broken(point, "is no subclass of RegressorConfig, MaeConfig or InpainterConfig")
        elif point.name in own or cls.model_fields["kind"].default != point.name:
            said = cls.model_fields["kind"].default
            BROKEN_KINDS[point.name] = broken(point, f"must have a kind of its own: kind is {said!r}")
        else:
            KINDS[point.name] = cast("Any", cls)
            KIND_PACKAGES[point.name] = point.dist.name if point.dist is not None else ""


_add_plugin_kinds()  # at the end: a plugin may import this module
