"""What differences of predicted sensors are measured in, and how much of them is the rounding of the network itself."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from xectool.engine.exports.events import yardsticks
from xectool.engine.loading import load_checkpoint, ready_model
from xectool.errors import OutputsDiffer
from xectool.export import exporter
from xectool.export.exporter import Order, RawEvents
from xectool.export.graphs import make_graph
from xectool.export.reference import Arrays, expected
from xectool.export.runtime import Runtime
from xectool.export.yardstick import Yardstick
from xectool.simulation.dataset import SimulationSettings, simulate_block
from xectool.simulation.response import DetectorResponse


@pytest.fixture(scope="module")
def simulated() -> RawEvents:
    settings = SimulationSettings(events=32, seed=3)
    rows = simulate_block(settings, DetectorResponse.from_seed(1, 0.01), range(32))
    return RawEvents(torch.from_numpy(rows["npho"]), torch.from_numpy(rows["relative_time"]))


class Exact(Runtime):
    """Runs a graph of float64 on inputs of float32, and adds to what it gives."""

    extra = np.float32(0.0)

    def __init__(self, graph: Any) -> None:
        self.graph, self.path, self.providers = graph, Path("python"), ("python",)

    def run(self, given: Arrays) -> Arrays:
        wide = [value.astype(float) if value.dtype == np.float32 else value for value in given.values()]
        with torch.inference_mode():
            values = self.graph(*map(torch.from_numpy, wide))
        names = [port.name for port in self.graph.outputs]
        return {name: value.numpy().astype(np.float32) + self.extra for name, value in zip(names, values, strict=True)}


@pytest.mark.parametrize("kind", ["mae", "inpainter"])
def test_hidden_sensors_are_measured_in_their_error_whose_truth_is_their_reading(
    make_checkpoint: Any, simulated: RawEvents, kind: str
) -> None:
    """An autoencoder of 100 steps says nearly the same of all sensors: its spread was an eighth of its resolution."""
    source = make_checkpoint(kind)
    loaded = ready_model(load_checkpoint(source, "auto"), source, "auto", "cpu")
    loaded.checkpoint.meta["progress"]["history"] = []
    raw, normalized = (
        yardsticks(loaded, make_graph(loaded.network, (), mode), mode, simulated, {}) for mode in ("raw", "normalized")
    )
    assert list(raw) == [f"pred_{channel}" for channel in loaded.network.channels]
    for name, stick in raw.items():
        assert (stick.share, normalized[name].share) == (1e-3, 1e-3)
        assert "resolution (root mean square error of" in stick.source
        np.testing.assert_allclose(
            stick.value, normalized[name].value, rtol=2e-2
        )  # photons below the domain are cut off
    x, valid = loaded.network.normalizer.normalize(simulated.npho, simulated.time)
    mask = torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(1)) < exporter.HIDDEN_SHARE
    given = {"x": x.numpy(), "mask": mask.numpy()}
    error = expected(loaded.network, "normalized", given)["pred_npho"] - x[..., 0].numpy()
    error = error[(mask & valid[..., 0] & loaded.network.covered).numpy()].astype(float)
    assert normalized["pred_npho"].value[0] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-4)


def test_events_without_a_reading_leave_the_spread(make_checkpoint: Any) -> None:
    source = make_checkpoint("mae")
    loaded = ready_model(load_checkpoint(source, "auto"), source, "auto", "cpu")
    loaded.checkpoint.meta["progress"]["history"] = []
    dead = RawEvents(torch.full((16, 4760), 1e10), torch.full((16, 4760), 1e10))
    found = yardsticks(loaded, make_graph(loaded.network, (), "raw"), "raw", dead, {})
    assert all("spread of the predictions" in stick.source for stick in found.values())


def test_rounding_of_the_network_itself_is_no_fault_of_a_file_on_edge_events_either(
    networks: Any, simulated: RawEvents
) -> None:
    """A file that computes in float64 is right: an autoencoder was refused for 1e-5 of negative photons."""
    model = networks("mae")
    graph, exact = make_graph(model, (), "normalized"), make_graph(copy.deepcopy(model).double(), (), "normalized")
    sticks = {port.name: Yardstick(np.array([1e-6]), 1e-3, "test") for port in graph.outputs}
    described: Any = type("Said", (), {"inputs_mode": "normalized"})()
    order = Order(model, graph, model.normalizer, described, "onnx", sticks)

    runtime = Exact(exact)
    agreements, _, edges, _ = exporter.compare(order, runtime, simulated, [])
    assert edges >= 19
    assert all(item.edge_max_abs > item.limit * 1e-6 for item in agreements)
    runtime.extra = np.float32(1e-3)
    with pytest.raises(OutputsDiffer, match="times what is accepted"):
        exporter.compare(order, runtime, simulated, [])
