"""What is written to disk, how often, and from where a run continues."""

from __future__ import annotations

from xectool.config.section import Bool, Float, Int, OptionalStr, Section, Str, knob


class CheckpointConfig(Section):
    """Checkpoints, predictions and the run directory ``save_dir/run_name``."""

    save_dir: Str = knob("artifacts", "Directory that holds the run directories")
    save_interval: Int = knob(
        10,
        "Epochs between numbered checkpoints (last and best are always kept)",
        "epochs",
        "CFG-24",
        ge=1,
        le=1_000_000,
    )
    save_steps: Int | None = knob(
        None, "Optimiser steps between saves inside an epoch; null: by time only", "steps", "CFG-24", ge=1, le=10**12
    )
    save_minutes: Float | None = knob(
        10.0, "Minutes between saves inside an epoch; null: never", "min", "CFG-24", gt=0, le=100_000
    )
    resume_from: OptionalStr = knob(None, "Checkpoint to continue, or auto for the last one of this run", code="CFG-45")
    init_from: OptionalStr = knob(None, "Checkpoint whose weights a new run starts from", code="CFG-45")
    refresh_lr: Bool = knob(False, "On resume, take the learning rate and schedule of this file")
    reset_epoch: Bool = knob(False, "On resume, count epochs from 1 with a fresh optimiser")
    new_mlflow_run: Bool = knob(False, "On resume, open a new tracker run")
    save_artifacts: Bool = knob(True, "Write plots and tables at the end")
    save_predictions: Bool = knob(True, "Write validation predictions as a ROOT file")
    overwrite: Bool = knob(False, "Allow a run directory that already holds a run")


class SensorCheckpointConfig(CheckpointConfig):
    """What the sensor-level trainings (MAE, inpainter) add."""

    root_save_interval: Int = knob(
        10,
        "Epochs between files predictions_epoch_N.root, written while validating; up to 1000 events",
        "epochs",
        "CFG-24",
        ge=1,
        le=1_000_000,
    )
