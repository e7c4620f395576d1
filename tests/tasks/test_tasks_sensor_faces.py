"""The autoencoder's objective, face by face, against formulas written out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from xectool.config.load import config_from_dict
from xectool.config.training import IntensityReweightingConfig
from xectool.data.batch import EventBatch
from xectool.data.intensity import IntensityReweighter
from xectool.detector import faces
from xectool.models import build_model
from xectool.models.mae import MaskedAutoencoder
from xectool.tasks import build_task
from xectool.tasks.masked_batch import MaskedBatch
from xectool.tasks.sensor_task import SensorTask

NUM_EVENTS = 5
BETA = 0.05
POINTWISE = {
    "smooth_l1": lambda d: np.where(abs(d) < BETA, 0.5 * d * d / BETA, abs(d) - BETA / 2),
    "huber": lambda d: np.where(abs(d) < BETA, 0.5 * d * d / BETA, abs(d) - BETA / 2),
    "l1": abs,
    "mse": np.square,
}


def _events(num: int = NUM_EVENTS) -> EventBatch:
    rng = np.random.default_rng(2)
    npho = rng.exponential(rng.uniform(30, 300, (num, 1)), (num, 4760)).astype(np.float32)
    time = (1e-8 * rng.standard_normal((num, 4760))).astype(np.float32)
    npho[:, rng.choice(4760, 50, replace=False)] = 1e10
    return EventBatch(
        npho=torch.from_numpy(npho), time=torch.from_numpy(time), targets={}, weight=torch.ones(num),
        file_index=np.zeros(num, np.int32), entry=np.arange(num), run=np.ones(num, np.int64), event=np.arange(num),
        epoch=1, step=0,
    )  # fmt: skip


def _made(**training: Any) -> tuple[torch.nn.Module, SensorTask]:
    model = {"encoder_dim": 32, "num_fusion_layers": 1, "outer_fine_pool": [5, 3], "decoder_dim": 8}
    values = {"kind": "mae", "data": {"train_path": "a.root", "val_path": "b.root"}, "model": model}
    cfg = config_from_dict(values | {"training": {"loss_beta": BETA, **training}}, "test")
    network = build_model(cfg)
    task = build_task(cfg, network)
    assert isinstance(task, SensorTask)
    return network, task


def _loss(task: SensorTask, batch: EventBatch) -> tuple[float, Tensor, MaskedBatch]:
    masked = task.prepare(batch)
    guess = torch.randn(1, 4760, 2, generator=torch.manual_seed(8)) * 0.1 + masked.x.mean()
    guess = guess.expand(batch.num_events, -1, -1)
    return float(task.loss({"sensors": guess}, masked, task.counts(masked)).total.detach()), guess, masked


def _expected(loss_fn: str, guess: Tensor, masked: MaskedBatch, threshold: float, alpha: float | None) -> np.ndarray:
    """Mean loss of each face (rows) and channel, as the older system defines them."""
    npho, mask = masked.npho.double().numpy(), masked.mask.numpy()
    losses = POINTWISE[loss_fn]((guess - masked.x).double().numpy())
    table = np.zeros((len(faces.FACES), 2))
    for row, face in enumerate(faces.FACES):
        inside = mask & (faces.face_ids() == faces.FACES.index(face))
        weight = np.ones_like(npho) if alpha is None else (np.maximum(npho, 1) + 1) ** alpha
        table[row, 0] = np.average(losses[inside, 0], weights=weight[inside])
        timed = inside & (npho >= threshold)
        table[row, 1] = np.average(losses[timed, 1], weights=np.sqrt(np.maximum(npho[timed], threshold)))
    return table


@pytest.mark.parametrize("loss_fn", POINTWISE)
def test_faces_are_added_with_the_weights_of_their_channels(loss_fn: str) -> None:
    time = {"weight": 0.3, "npho_threshold": 150.0}
    _, task = _made(loss_fn=loss_fn, npho_weight=2.0, time=time, npho_loss_weight={"enabled": True, "alpha": 0.5})
    found, guess, masked = _loss(task, _events())
    table = _expected(loss_fn, guess, masked, 150.0, 0.5)
    assert found == pytest.approx((table * (2.0, 0.3)).sum(), rel=1e-4)


def test_learnt_channel_weights_are_shared_by_the_faces_and_regularised() -> None:
    network, task = _made(auto_channel_weight=True)
    with torch.no_grad():
        network.get_parameter("channel_log_vars").copy_(torch.tensor([-1.2, 0.7]))
    found, guess, masked = _loss(task, _events())
    log_vars = np.array([-1.2, 0.7])
    table = _expected("smooth_l1", guess, masked, 100.0, None)
    assert found == pytest.approx((0.5 * np.exp(-log_vars) * table + 0.5 * log_vars).sum(), rel=1e-4)


def test_learnt_channel_weights_come_to_rest_at_the_mean_loss_of_their_channel() -> None:
    network, task = _made(auto_channel_weight=True)
    log_vars = network.get_parameter("channel_log_vars")
    optimizer = torch.optim.Adam([log_vars], lr=0.1)
    batch = task.prepare(_events())
    guess, counts = batch.x + 0.3, task.counts(batch)
    for _ in range(200):
        optimizer.zero_grad()
        task.loss({"sensors": guess}, batch, counts).total.backward()
        optimizer.step()
    mean = float(POINTWISE["smooth_l1"](np.array(0.3)))  # d/ds (0.5 e^-s L + 0.5 s) = 0 where e^s = L
    assert log_vars.detach().exp().tolist() == pytest.approx([mean, mean], rel=0.02)


def test_a_time_below_the_threshold_or_of_a_visible_sensor_sends_no_gradient() -> None:
    _, task = _made(time={"npho_threshold": 150.0})
    batch = task.prepare(_events())
    guess = torch.zeros(NUM_EVENTS, 4760, 2, requires_grad=True)
    task.loss({"sensors": guess}, batch, task.counts(batch)).total.backward()
    assert guess.grad is not None
    counted = batch.mask & (batch.npho >= 150.0) & (batch.npho < 9e9)
    assert torch.equal(guess.grad[..., 1] != 0, counted)
    assert not guess.grad[..., 0][~batch.mask].any()


def test_brighter_events_of_rare_intensity_pull_harder() -> None:
    _, task = _made()
    batch = _events()
    weighted = EventBatch(**{**vars(batch), "weight": torch.tensor([4.0, 1.0, 1.0, 1.0, 1.0])})
    guess = torch.zeros(NUM_EVENTS, 4760, 2, requires_grad=True)
    gradients = []
    for events in (batch, weighted):
        masked = task.prepare(events)
        task.loss({"sensors": guess}, masked, task.counts(masked)).total.backward()
        assert guess.grad is not None
        gradients.append(guess.grad.clone())
        guess.grad = None
    torch.testing.assert_close(gradients[1][0], 4 * gradients[0][0])
    torch.testing.assert_close(gradients[1][1:], gradients[0][1:])


@torch.no_grad()
def test_validation_leaves_hidden_sensors_out_as_training_does() -> None:
    network, task = _made()
    network.eval()
    batch = task.prepare(replace(_events(), epoch=0))  # as validation serves it
    outputs = network(*task.inputs(batch))["sensors"]
    assert isinstance(network, MaskedAutoencoder)
    as_trained, as_before = (
        network.by_sensor(network.reconstruct(batch.x, batch.mask, batch.valid, zero_hidden=zeroed))
        for zeroed in (True, False)
    )
    assert torch.equal(outputs, as_trained)
    assert not torch.allclose(outputs, as_before)  # what the older system validates


def test_a_weight_of_zero_is_zero_and_not_the_default() -> None:
    _, task = _made(time={"weight": 0.0, "use_npho_weight": False})
    found, guess, masked = _loss(task, _events())
    assert found == pytest.approx(_expected("smooth_l1", guess, masked, 100.0, None)[:, 0].sum(), rel=1e-4)


def test_equal_intensities_in_every_bin_still_weigh_by_width_and_not_one_for_all() -> None:
    sums = np.random.default_rng(0).exponential(1000.0, 4000)
    weigher = IntensityReweighter.from_sums(sums, IntensityReweightingConfig(enabled=True, nbins=5))
    assert np.ptp(weigher.bin_weights) > 1.0
