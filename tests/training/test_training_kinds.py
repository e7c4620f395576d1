"""The other kinds train on the same loop, resume to the bit, and lend their encoder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import uproot
from xectool import engine
from xectool.checkpoint import store
from xectool.errors import CheckpointError
from xectool.training.process.progress import NullObserver

pytestmark = pytest.mark.usefixtures("shallow")
Write = Callable[..., Path]
SIZES = {"encoder_dim": 64, "num_fusion_layers": 1, "outer_fine_pool": [5, 3]}  # as sensor_config has them


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
    config = sensor_config("inpainter", use_local_context=False)
    settings = ["training.lr=1e-12"]
    runs = [engine.train(config, run_name=f"of{n}", overrides=[*settings, f"training.epochs={n}"]) for n in (2, 1)]
    history = store.load(Path(runs[0].run_dir) / store.LAST_NAME).meta["progress"]["history"]
    assert history[0]["val/loss"] == pytest.approx(history[1]["val/loss"], rel=1e-4)
    assert runs[0].metrics["masked_of_valid"] == runs[1].metrics["masked_of_valid"]
    listener = Listener()
    settings += ["training.epochs=2", "training.npho_weight=3.0", "model.mask_ratio=0.5"]
    other = engine.train(config, run_name="of1", resume="auto", overrides=settings, observer=listener)
    assert other.best_epoch == 2, "a loss three times as large is the best of its kind"
    assert any("model.mask_ratio, training.npho_weight" in message for message in listener.messages)


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


@pytest.mark.parametrize("kind", ["mae", "inpainter"])
def test_the_prediction_pass_scores_what_validation_scored(sensor_config: Write, kind: str) -> None:
    run = engine.train(sensor_config(kind, training={"epochs": 1}), run_name="scored")
    history = store.load(Path(str(run.checkpoint_best))).meta["progress"]["history"]
    assert run.metrics["val/loss"] == pytest.approx(history[-1]["val/loss"], rel=1e-9)


def test_events_of_rare_intensity_weigh_more_in_training_only(sensor_config: Write) -> None:
    weigh = {"intensity_reweighting": {"enabled": True, "nbins": 3}}
    runs = [
        engine.train(sensor_config("mae", training=training), run_name=name, max_steps=1)
        for name, training in (("plain", {}), ("weighed", weigh), ("again", weigh))
    ]
    plain, weighed, again = (weights_of(run.run_dir)["encoder.pos_embed"] for run in runs)
    assert not torch.equal(plain, weighed)
    assert torch.equal(weighed, again)


class Listener(NullObserver):
    """Keeps what a user would read."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


def test_what_a_transfer_loaded_and_left_out_is_said_at_the_start(sensor_config: Write) -> None:
    mae = engine.train(sensor_config("mae"), run_name="mae", max_steps=1)
    listener, settings = Listener(), [f"checkpoint.init_from={mae.checkpoint_last}"]
    engine.train(sensor_config("inpainter"), run_name="tuned", overrides=settings, dry_run=True, observer=listener)
    assert "encoder loaded into the inpainter" in listener.messages[0]
    assert any(line.startswith("not taken: dec_inner") for line in listener.messages)
    assert any(line.startswith("new: head_inner") for line in listener.messages)
    assert not (Path(mae.run_dir).parent / "tuned").exists()
    assert not [line for line in listener.messages if "the same quantity" in line], "the control"
    settings.append("data.time_branch=npho")
    engine.train(sensor_config("inpainter"), run_name="tuned", overrides=settings, dry_run=True, observer=listener)
    assert "trained on data.time_branch relative_time, this run reads npho" in listener.messages[-1]


def test_weights_trained_with_another_scale_come_with_the_line_that_sets_it(tiny_config: Write) -> None:
    """The line had the weights alone, which were given already."""
    own = ["tasks.energy.scale=0.02", "tasks.energy.shift=0.05"]
    first = engine.train(tiny_config(), run_name="first", overrides=own, max_steps=1)
    settings = [f"checkpoint.init_from={first.checkpoint_last}"]
    listener = Listener()
    engine.train(tiny_config(), run_name="next", overrides=settings, dry_run=True, observer=listener)
    (said,) = [line for line in listener.messages if "trained with another" in line]
    line = said.partition("as they were: ")[2]
    assert set(shlex.split(line)) >= {"tasks.energy.scale=0.02", "tasks.energy.shift=0.05"}
    again = Listener()
    pasted = [word for word in shlex.split(line) if word != "--set"]
    engine.train(tiny_config(), run_name="next", overrides=pasted, dry_run=True, observer=again)
    assert not [text for text in again.messages if "trained with another" in text]


def test_no_scale_is_proposed_for_heads_that_have_learnt_without_one(tiny_config: Write) -> None:
    """CFG-09 asked for `scale: auto` of the older system's weights, for which that is another unit."""
    plain = ["tasks.energy.scale=null", "tasks.energy.shift=null"]
    first = engine.train(tiny_config(), run_name="first", overrides=plain, max_steps=1)
    assert "CFG-09" in {found.code for found in first.findings}, "the control: it begins without weights"
    settings = [*plain, f"checkpoint.init_from={first.checkpoint_last}"]
    again = engine.train(tiny_config(), run_name="next", overrides=settings, dry_run=True)
    assert "CFG-09" not in {found.code for found in again.findings}
    scaled = engine.train(tiny_config(), run_name="scaled", overrides=["tasks.energy.scale=0.02"], max_steps=1)
    settings = [*plain, f"checkpoint.init_from={scaled.checkpoint_last}"]
    other = engine.train(tiny_config(), run_name="other", overrides=settings, dry_run=True)
    assert "CFG-09" in {found.code for found in other.findings}, "these have learnt with one"


def test_encoder_of_a_mae_starts_a_regressor(sensor_config: Write, tiny_config: Write) -> None:
    mae = engine.train(sensor_config("mae"), run_name="mae")
    model = {**SIZES, "hidden_dim": 8}
    settings = [f"checkpoint.init_from={mae.checkpoint_best}", "training.lr=1e-12", "training.ema_decay=null"]
    tuned = engine.train(tiny_config(model=model), run_name="tuned", overrides=settings, max_steps=1)
    source, target = store.load(Path(str(mae.checkpoint_best))).weights(), weights_of(tuned.run_dir)
    name = "fusion_transformer.layers.0.linear1.weight"
    told = json.loads((Path(tuned.run_dir) / "transfer.json").read_text())
    assert (told["checkpoint"], told["source"], told["target"]) == (mae.checkpoint_best, "mae", "regressor")
    assert told["weights"] in ("best", "ema")
    assert f"backbone.{name}" in told["loaded"]
    assert told["left_out"]["dec_inner.linear.weight"] == "not part of the mae's encoder"
    assert told["fresh"]["heads.energy.0.weight"] == "the checkpoint's encoder has none"
    assert torch.allclose(source[f"encoder.{name}"], target[f"backbone.{name}"], atol=1e-9)


def test_encoder_that_sees_events_differently_is_refused(sensor_config: Write, tiny_config: Write) -> None:
    mae = engine.train(sensor_config("mae"), run_name="mae", max_steps=5)
    config = tiny_config(model={**SIZES, "hidden_dim": 8})
    settings = [f"checkpoint.init_from={mae.checkpoint_last}", "normalization.npho_scale=900"]
    with pytest.raises(CheckpointError, match=r"normalization\.npho_scale"):
        engine.train(config, run_name="tuned", overrides=settings)
