"""The one root of the schema: a run of one of three kinds."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

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
from xectool.registry.plugins import broken, plugins

Preset: TypeAlias = Literal["a100", "gh200", "cpu", "ci"] | None


SECTION_ORDER = (
    "kind", "preset", "data", "normalization", "model", "tasks", "training", "loss_balance", "reweighting",
    "validation", "checkpoint", "distributed", "mlflow", "export", "guards",
)  # fmt: skip


class RunSections(Section):
    """Abstract: what a run of any kind has."""

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

    kind: Literal["mae"] = knob("mae", "What is trained")
    model: MaeModelConfig = section(MaeModelConfig, "The network")
    training: MaeTrainingConfig = section(MaeTrainingConfig, "How the weights move")
    checkpoint: SensorCheckpointConfig = section(
        SensorCheckpointConfig, "What is written, and from where a run continues"
    )
    mlflow: MaeMlflowConfig = section(MaeMlflowConfig, "The MLflow mirror of the local record")


class InpainterConfig(RunSections):
    """A run that learns to fill dead channels."""

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


def _plugin_kinds() -> dict[str, Any]:
    """Return the kinds that other installed packages add: subclasses of the three that say their own ``kind``."""
    found: dict[str, Any] = {}
    for point, cls in plugins("kinds"):
        if not (isinstance(cls, type) and issubclass(cls, RunSections)):
            raise broken(point, "is no subclass of RegressorConfig, MaeConfig or InpainterConfig")
        if point.name in KINDS or cls.model_fields["kind"].default != point.name:
            raise broken(point, f"must have a kind of its own: kind is {cls.model_fields['kind'].default!r}")
        found[point.name] = cls
    return found


KINDS.update(_plugin_kinds())  # at the end: a plugin may import this module
