"""The MLflow mirror of the local record."""

from __future__ import annotations

from xectool.config.section import Bool, OptionalStr, Section, Str, knob


class MlflowConfig(Section):
    """Tracking."""

    enabled: Bool = knob(True, "Mirror the run to MLflow; the local record is written either way")
    experiment: Str = knob("gamma_angle", "Experiment the run belongs to")
    run_name: OptionalStr = knob(None, "Name of the run and its directory; null: made from the time")
    tracking_uri: OptionalStr = knob(
        None,
        "Tracker; null: MLFLOW_TRACKING_URI, else an absolute sqlite file in the run directory's parent",
        code="CFG-47",
    )


class MaeMlflowConfig(MlflowConfig):
    """Tracking of a pre-training."""

    experiment: Str = knob("mae_pretraining", "Experiment the run belongs to")


class InpainterMlflowConfig(MlflowConfig):
    """Tracking of an inpainter."""

    experiment: Str = knob("inpainting", "Experiment the run belongs to")
