"""The other kinds train on the same loop, resume to the bit, and lend their encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import uproot
import yaml
from xectool import engine
from xectool.checkpoint import store
from xectool.errors import CheckpointError

Write = Callable[..., Path]
SIZES = {"encoder_dim": 64, "num_fusion_layers": 1, "outer_fine_pool": [5, 3]}


@pytest.fixture
def sensor_config(tiny_data: Path, tmp_path: Path) -> Write:
    """Write the configuration of a MAE or an inpainter."""

    def write(kind: str, **model: object) -> Path:
        config = {
            "kind": kind,
            "data": {
                "train_path": str(tiny_data / "train_*.root"),
                "val_path": str(tiny_data / "val.root"),
                "batch_size": 8,
                "chunksize": 16,
            },
            "model": {**SIZES, **({"decoder_dim": 8} if kind == "mae" else {"freeze_encoder": False}), **model},
            "training": {"epochs": 2, "lr": 1e-3, "ema_decay": 0.9, "deterministic": True},
            "checkpoint": {"save_dir": str(tmp_path / "runs"), "save_minutes": None, "save_artifacts": False},
            "mlflow": {"enabled": False},
        }
        path = tmp_path / f"{kind}.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    return write


def weights_of(run_dir: str) -> dict[str, torch.Tensor]:
    return store.load(Path(run_dir) / store.LAST_NAME).model


@pytest.mark.parametrize("kind", ["mae", "inpainter"])
def test_stopped_and_resumed_is_bit_identical(sensor_config: Write, kind: str) -> None:
    config = sensor_config(kind)
    whole = engine.train(config, run_name="whole")
    engine.train(config, run_name="cut", max_steps=3)
    resumed = engine.train(config, run_name="cut", resume="auto")
    a, b = weights_of(whole.run_dir), weights_of(resumed.run_dir)
    assert whole.steps == resumed.steps == 10
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_validation_masks_are_the_same_every_epoch(sensor_config: Write) -> None:
    config = sensor_config("inpainter")
    runs = [engine.train(config, run_name=f"r{i}", overrides=["training.lr=1e-12"]) for i in range(2)]
    history = store.load(Path(runs[0].run_dir) / store.LAST_NAME).meta["progress"]["history"]
    assert history[0]["val/loss"] == pytest.approx(history[1]["val/loss"], rel=1e-4)
    assert runs[0].metrics["masked_of_valid"] == runs[1].metrics["masked_of_valid"]


def test_sensor_predictions_hold_a_row_a_hidden_sensor(sensor_config: Write, tiny_data: Path) -> None:
    run = engine.train(sensor_config("inpainter", mask_ratio=0.05), run_name="rows", max_steps=2)
    with uproot.open(Path(run.run_dir) / "predictions.root") as file:
        rows = file["tree"].arrays(library="np")
    with uproot.open(tiny_data / "val.root") as file:
        npho = file["tree"]["npho"].array(library="np")
    hidden = rows["mask_type"] == 0
    per_event = np.bincount(rows["entry"][hidden], minlength=16)
    valid = (npho < 9e9).sum(axis=1)
    assert np.array_equal(per_event, np.floor(0.05 * valid).astype(int))
    truth = npho[rows["entry"][hidden], rows["sensor"][hidden]]
    assert np.allclose(rows["truth_npho"][hidden], truth, rtol=1e-6)


def test_ratios_are_logged_in_all_three_senses(sensor_config: Write, tiny_data: Path) -> None:
    run = engine.train(sensor_config("mae", mask_ratio=0.6), run_name="ratios", max_steps=5)
    with uproot.open(tiny_data / "val.root") as file:
        valid = (file["tree"]["npho"].array(library="np") < 9e9).sum(axis=1)
    masked = np.floor(0.6 * valid).sum()
    assert run.metrics["masked_of_valid"] == pytest.approx(masked / valid.sum())
    assert run.metrics["masked_of_all"] == pytest.approx(masked / (4760 * len(valid)))
    assert run.metrics["hidden_of_all"] == pytest.approx((masked + (4760 - valid).sum()) / (4760 * len(valid)))


def test_encoder_of_a_mae_starts_a_regressor(sensor_config: Write, tiny_config: Write) -> None:
    mae = engine.train(sensor_config("mae"), run_name="mae")
    model = {**SIZES, "hidden_dim": 8}
    settings = [f"checkpoint.init_from={mae.checkpoint_best}", "training.lr=1e-12", "training.ema_decay=null"]
    tuned = engine.train(tiny_config(model=model), run_name="tuned", overrides=settings, max_steps=1)
    source, target = store.load(Path(str(mae.checkpoint_best))).weights(), weights_of(tuned.run_dir)
    name = "fusion_transformer.layers.0.linear1.weight"
    assert torch.allclose(source[f"encoder.{name}"], target[f"backbone.{name}"], atol=1e-9)


def test_encoder_that_sees_events_differently_is_refused(sensor_config: Write, tiny_config: Write) -> None:
    mae = engine.train(sensor_config("mae"), run_name="mae", max_steps=5)
    config = tiny_config(model={**SIZES, "hidden_dim": 8})
    settings = [f"checkpoint.init_from={mae.checkpoint_last}", "normalization.npho_scale=900"]
    with pytest.raises(CheckpointError, match=r"normalization\.npho_scale"):
        engine.train(config, run_name="tuned", overrides=settings)
