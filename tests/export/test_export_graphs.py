"""What a graph takes and gives, and the way to its reference that does not pass through it."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from xectool.checkpoint import store
from xectool.config.load import config_from_dict
from xectool.config.normalization import NormalizationConfig
from xectool.detector.constants import DEAD_VALUE, NUM_SENSORS, UNKNOWN_ABOVE
from xectool.engine.exports.loading import folded
from xectool.engine.loading import ready_model
from xectool.errors import UsageError
from xectool.export.description import Description
from xectool.export.edge_events import edge_events
from xectool.export.exporter import RawEvents
from xectool.export.graphs import RegressorGraph, make_graph
from xectool.export.reference import expected, feed
from xectool.models.normalize import SCHEMES, Normalizer, NphoScheme
from xectool.training.predicting.sensors import SensorPredictionRun, sensor_rows

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("regressor", {}),
    ("regressor", {"geometry": "compat", "outer_mode": "split"}),
    ("mae", {"predict_channels": ["npho", "time"]}),
    ("mae", {"geometry": "compat", "outer_mode": "split"}),
    ("inpainter", {"predict_channels": ["npho", "time"]}),
    ("inpainter", {"head_type": "cross_attention"}),
    ("inpainter", {"use_masked_attention": True, "geometry": "compat"}),
    ("inpainter", {"geometry": "compat", "outer_mode": "split", "predict_channels": ["npho", "time"]}),
]


def some_events(count: int = 3) -> RawEvents:
    generator = torch.Generator().manual_seed(5)
    npho = torch.rand(count, NUM_SENSORS, generator=generator) ** 8 * 5000
    time = torch.randn(count, NUM_SENSORS, generator=generator) * 1e-8
    npho[:, ::37], time[:, ::11] = DEAD_VALUE, DEAD_VALUE
    return RawEvents(npho, time)


@pytest.mark.parametrize("mode", ["raw", "normalized"])
@pytest.mark.parametrize(("kind", "model"), KINDS, ids=lambda value: str(value)[:40])
def test_graph_gives_what_the_network_gives(kind: str, model: dict[str, Any], mode: str, networks: Any) -> None:
    network = networks(kind, **model)
    graph, events = make_graph(network, (), mode), some_events()
    mask = torch.rand(events.npho.shape, generator=torch.Generator().manual_seed(1)) < 0.1
    given = feed(graph, network.normalizer, events.npho, events.time, mask)
    with torch.inference_mode():
        found = graph(*(torch.from_numpy(value) for value in given.values()))
    wanted = expected(network, mode, given)
    assert set(wanted) == {port.name for port in graph.outputs}
    for port, value in zip(graph.outputs, found, strict=True):
        assert tuple(value.shape[1:]) == port.shape
        np.testing.assert_allclose(value.numpy(), wanted[port.name], rtol=1e-5, atol=1e-6)


def test_a_network_is_rebuilt_from_the_stored_configuration_alone(make_checkpoint: Any, networks: Any) -> None:
    """X-02: the older exporter assumed a pooling of 3 x 3, which takes the weights of any other (control)."""
    pool = {"outer_fine_pool": [9, 8]}
    stored = store.load(make_checkpoint("regressor", **pool))
    rebuilt = ready_model(stored, "checkpoint", "model", "cpu").network.eval()
    events = some_events()
    with torch.inference_mode():
        wanted, found = (model(events.npho, events.time) for model in (networks("regressor", **pool), rebuilt))
        other = networks("regressor", outer_fine_pool=[3, 3])
        other.load_state_dict(stored.model)
        silently = other(events.npho, events.time)
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    assert any(not torch.allclose(wanted[name], silently[name]) for name in wanted)


WIDE = {"encoder_dim": 96}  # of one channel a norm makes a constant: the network would not see its images
AMBIGUOUS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "npho": ("inpainter", {"sentinel_npho": 0.0}, {"head_type": "cross_attention"}),
    "time": ("mae", {"time_shift": 0.5, "sentinel_time": -0.5}, WIDE),
    "pooled": ("regressor", {"npho_scheme": "linear", "sentinel_npho": 0.0}, WIDE),
    "negative": ("regressor", {"npho_scheme": "sqrt", "below_domain": "zero"}, WIDE),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_readings_that_network_units_do_not_tell_from_none_need_raw_inputs(name: str, make_network: Any) -> None:
    """A dark sensor was taken for a missing one: predictions were off by 0.6 of their spread, and nothing was said."""
    kind, settings, model = AMBIGUOUS[name]
    network = make_network(kind, settings, **model)
    with pytest.raises(UsageError, match="sentinel_time" if name == "time" else "sentinel_npho") as caught:
        make_graph(network, (), "normalized")
    assert caught.value.fix == "--inputs raw"
    assert make_graph(network, (), "raw").inputs
    if kind == "regressor":  # without pooling nothing asks whether a reading exists
        whole = make_network(kind, settings, outer_fine_pool=None, **model)
        assert make_graph(whole, (), "normalized").inputs


def test_photons_beyond_all_bounds_are_the_same_in_a_graph_and_in_a_prediction(networks: Any) -> None:
    """Of a network that has not learnt yet, in whose older geometry sums over cells go beyond float32."""
    network = copy.deepcopy(networks("mae", geometry="compat", predict_channels=["npho", "time"]))
    network.outer_shares.mul_(1e6)
    events, mask = some_events(), torch.ones(3, NUM_SENSORS, dtype=torch.bool)
    graph = make_graph(network, (), "raw")
    with torch.inference_mode():
        npho, time = graph(events.npho, events.time, mask)
        outputs = network(events.npho, events.time, mask)
    batch = SimpleNamespace(
        mask=mask, valid=outputs["valid"], npho=events.npho, time=events.time,
        **dict.fromkeys(("file_index", "entry", "run", "event"), np.zeros(3)),
    )  # fmt: skip
    task = SimpleNamespace(normalizer=network.normalizer, channels=network.channels)
    rows = next(iter(sensor_rows(batch, outputs["sensors"], SensorPredictionRun(task))))  # type: ignore[arg-type]
    assert (rows["pred_npho"] == np.float32(9e9)).any()
    np.testing.assert_allclose(npho.flatten().numpy(), rows["pred_npho"], rtol=1e-4)
    np.testing.assert_allclose(time.flatten().numpy(), rows["pred_time"], rtol=1e-4)


def test_outputs_stand_in_the_order_of_the_tasks_and_a_width_follows_its_task(networks: Any) -> None:
    network = networks("regressor")
    graph = RegressorGraph(network, ["timing", "energy"], "raw")
    assert [port.name for port in graph.outputs] == ["timing", "energy", "sigma_energy"]
    assert [port.unit for port in graph.outputs] == ["s", "GeV", "GeV"]
    normalized = RegressorGraph(network, ["energy"], "normalized")
    assert [(port.name, port.shape) for port in normalized.outputs] == [("energy", (2,))]
    assert "logarithm of its variance" in normalized.outputs[0].meaning


def test_task_that_was_never_trained_is_refused_and_the_trained_ones_are_named(networks: Any) -> None:
    with pytest.raises(UsageError, match=r"'uvwFI' was never trained.*angle, energy, timing") as caught:
        make_graph(networks("regressor"), ["energy", "uvwFI"], "raw")
    assert caught.value.fix.startswith("--tasks angle,energy,timing")
    with pytest.raises(UsageError, match="leave out --tasks"):
        make_graph(networks("mae"), ["energy"], "raw")
    with pytest.raises(UsageError, match="did you mean 'normalized'"):
        make_graph(networks("mae"), [], "normalised")


def test_a_network_in_training_mode_is_exported_in_evaluation_mode(networks: Any) -> None:
    network = copy.deepcopy(networks("regressor")).train()
    graph = make_graph(network, (), "raw")
    assert not any(module.training for module in graph.modules())


@pytest.mark.parametrize("kind", ["regressor", "mae", "inpainter"])
def test_readings_that_are_not_finite_never_reach_an_output(kind: str, networks: Any) -> None:
    """X-13: as the metadata say."""
    network = networks(kind)
    graph = make_graph(network, (), "raw")
    for name, (npho, time) in edge_events(network.normalizer, some_events(1).npho[0]).items():
        mask = torch.ones(1, NUM_SENSORS, dtype=torch.bool)
        given = feed(graph, network.normalizer, npho[None], time[None], mask)
        with torch.inference_mode():
            outputs = graph(*(torch.from_numpy(value) for value in given.values()))
        assert all(bool(value.isfinite().all()) for value in outputs), name


def test_edge_events_aim_at_the_sentinels_of_the_network(networks: Any) -> None:
    normalizer: Normalizer = networks("regressor").normalizer
    npho, time = edge_events(normalizer, torch.full((NUM_SENSORS,), 500.0))["a valid time equal to its sentinel"]
    x, valid = normalizer.normalize(npho, time)
    touched = valid[..., 1] & ((x[..., 1] - normalizer.sentinel_time).abs() < 1e-5)
    assert bool(touched.any())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_edge_events_hold_no_valid_reading_beyond_what_a_sensor_can_say(scheme: str) -> None:
    normalizer = Normalizer(NormalizationConfig(npho_scheme=scheme))
    for name, (npho, time) in edge_events(normalizer, torch.full((NUM_SENSORS,), 500.0)).items():
        # at -1e30 photons, which are valid where the scheme is linear, networks overflow and runtimes differ
        assert bool((npho[normalizer.valid(npho, time)[..., 0]].abs() <= UNKNOWN_ABOVE).all()), name


def test_metadata_brings_the_normalisation_back_exactly(onnx_regressor: Any) -> None:
    """X-12: scheme and scales stand in the file."""
    checkpoint = store.load(onnx_regressor.checkpoint)
    import onnx

    stored = {item.key: item.value for item in onnx.load(onnx_regressor.path).metadata_props}
    description = Description.from_metadata(stored, "test")
    ours = Normalizer(config_from_dict(checkpoint.config, "a").normalization)
    theirs = Normalizer(config_from_dict(dict(description.config), "b").normalization)
    events = some_events()
    assert torch.equal(ours(events.npho, events.time), theirs(events.npho, events.time))
    x, valid = theirs.normalize(events.npho, events.time)
    seconds = theirs.inverse_time(x[..., 1])[valid[..., 1]]
    torch.testing.assert_close(seconds, events.time[valid[..., 1]], rtol=1e-5, atol=1e-14)


@pytest.mark.parametrize(
    ("scheme", "mode", "kept"), [("sqrt", "raw", 1), ("log1p", "raw", 0), ("sqrt", "normalized", 0)]
)
def test_the_sign_that_photons_lose_is_said(scheme: str, mode: str, kept: int) -> None:
    found = {"kind": "mae", "data": {"train_path": "a.root", "val_path": "b.root"}}
    config = config_from_dict(found | {"normalization": {"npho_scheme": scheme}}, "test")
    said = folded(config, mode, "model.onnx")
    assert [" --output FILE.onnx " in finding.fix for finding in said] == [True] * kept
    y = torch.tensor([-0.3])
    again = NphoScheme(scheme, 1000.0, 4.08)(NphoScheme(scheme, 1000.0, 4.08).inverse(y))
    assert bool(torch.allclose(again, y)) is (scheme == "log1p")
