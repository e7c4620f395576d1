"""An export that gives other numbers is refused, whatever the fault; ordinary rounding is not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.config.tasks import TaskConfig
from xectool.engine.exports.events import yardsticks
from xectool.engine.loading import load_checkpoint, ready_model
from xectool.errors import CheckpointError, OutputsDiffer, UsageError
from xectool.export import exporter, rounding
from xectool.export.exporter import Order, RawEvents
from xectool.export.graphs import make_graph
from xectool.export.parity import Parity, require_same
from xectool.export.ports import Port
from xectool.export.reference import Arrays
from xectool.export.runtime import Runtime
from xectool.export.yardstick import FloatArray, Yardstick, from_metrics, from_spread, head_units
from xectool.models.heads import TargetTransform
from xectool.simulation.dataset import SimulationSettings, simulate_block
from xectool.simulation.response import DetectorResponse

ENERGY = Port("energy", "float32", (1,), "GeV", "Predicted energy")
YARD = Yardstick(np.array([1e-3]), 1e-3, "resolution (energy_res_68pct)")


class PythonRuntime(Runtime):
    """Runs a graph as it is, after what ``break_it`` does to inputs or outputs."""

    def __init__(self, graph: Any, after: Callable[[Arrays], Arrays] = lambda found: found) -> None:
        self.graph, self.after, self.path, self.providers = graph, after, Path("python"), ("python",)

    def run(self, given: Arrays) -> Arrays:
        with torch.inference_mode():
            values = self.graph(*(torch.from_numpy(value) for value in given.values()))
        names = [port.name for port in self.graph.outputs]
        return self.after({name: value.numpy() for name, value in zip(names, values, strict=True)})


@pytest.fixture(scope="module")
def simulated() -> RawEvents:
    settings = SimulationSettings(events=64, seed=3)
    rows = simulate_block(settings, DetectorResponse.from_seed(1, 0.01), range(64))
    return RawEvents(torch.from_numpy(rows["npho"]), torch.from_numpy(rows["relative_time"]))


@pytest.fixture
def order(networks: Any) -> Order:
    model = networks("regressor")
    graph = make_graph(model, (), "raw")
    sticks = {port.name: Yardstick(np.array([1e-3]), 1e-3, "test") for port in graph.outputs}
    sticks["timing"] = Yardstick(np.array([1e-10]), 1e-3, "test")
    described: Any = type("Said", (), {"inputs_mode": "raw"})()
    return Order(model, graph, model.normalizer, described, "onnx", sticks)


def refused(order: Order, runtime: Runtime, events: RawEvents, code: str) -> str:
    with pytest.raises(OutputsDiffer, match="do not use this export") as caught:
        exporter.compare(order, runtime, events, [])
    assert caught.value.code == code, caught.value
    return caught.value.problem


def test_graph_that_is_right_agrees_on_all_batches_and_edges(order: Order, simulated: RawEvents) -> None:
    runtime = PythonRuntime(order.graph)
    agreements, events, edges, sizes = exporter.compare(order, runtime, simulated, [simulated])
    assert (events, sizes) == (128, (1, 2, 7, 64))
    assert edges >= 19
    assert all(item.in_resolution < item.limit for item in agreements)


def test_swapped_outputs_of_one_width_are_found(order: Order, simulated: RawEvents) -> None:
    def swap(found: Arrays) -> Arrays:
        return {**found, "energy": found["sigma_energy"], "sigma_energy": found["energy"]}

    assert "energy" in refused(order, PythonRuntime(order.graph, swap), simulated, "X-08")


def test_reordered_outputs_and_other_types_are_found(order: Order, simulated: RawEvents) -> None:
    turned = PythonRuntime(order.graph, lambda found: dict(reversed(found.items())))
    refused(order, turned, simulated, "X-11")
    doubled = PythonRuntime(order.graph, lambda found: {name: value.astype(float) for name, value in found.items()})
    assert "float64" in refused(order, doubled, simulated, "X-05")


def test_output_for_one_event_only_is_found(order: Order, simulated: RawEvents) -> None:
    frozen = PythonRuntime(order.graph, lambda found: {name: value[:1] for name, value in found.items()})
    assert "batch of 2" in refused(order, frozen, simulated, "X-05")


def test_nan_where_the_network_gives_a_number_is_found(order: Order, simulated: RawEvents) -> None:
    broken = PythonRuntime(
        order.graph, lambda found: {name: value * np.float32("nan") for name, value in found.items()}
    )
    assert "is nan where the network gives" in refused(order, broken, simulated, "X-08")


@pytest.mark.parametrize(
    ("key", "value"),
    [("npho_threshold", 101.0), ("sentinel_npho", -0.99), ("time_shift", 0.46), ("below_domain_fill", 0.3)],
)
def test_wrong_sentinel_logic_is_found(
    order: Order, simulated: RawEvents, key: str, value: float, make_network: Any
) -> None:
    """Older exports had the sign of the time shift flipped; the rest shows on edge events at the latest."""
    other = make_network("regressor")
    setattr(other.normalizer, key, value)
    with pytest.raises(OutputsDiffer) as caught:
        exporter.compare(order, PythonRuntime(make_graph(other, (), "raw")), simulated, [])
    assert caught.value.code in ("X-08", "X-09")


def test_outputs_that_depend_on_the_neighbours_in_the_batch_are_found(order: Order, simulated: RawEvents) -> None:
    def leak(found: Arrays) -> Arrays:
        shift = np.float32(1e-5) * np.arange(len(found["energy"]), dtype=np.float32)[:, None] * (len(shift_seen) > 4)
        shift_seen.append(1)
        return {**found, "energy": found["energy"] + shift}

    shift_seen: list[int] = []
    assert "energy" in refused(order, PythonRuntime(order.graph, leak), simulated, "X-19")


def test_outputs_that_change_from_run_to_run_are_found() -> None:
    first = {"energy": np.array([[0.05]], np.float32)}
    require_same(first, first, "again", "file", {"energy": YARD})
    with pytest.raises(OutputsDiffer, match="xectool explain X-19"):
        require_same(first, {"energy": first["energy"] + np.float32(1e-5)}, "again", "file", {"energy": YARD})


def test_a_difference_just_above_the_limit_is_refused_and_just_below_is_not() -> None:
    expected = {"energy": np.array([[0.05]], np.float32)}
    Parity((ENERGY,), {"energy": YARD}).add("below", expected, {"energy": expected["energy"] + np.float32(0.9e-6)})
    with pytest.raises(OutputsDiffer, match="xectool explain X-08"):
        Parity((ENERGY,), {"energy": YARD}).add("above", expected, {"energy": expected["energy"] + np.float32(1.1e-6)})


@pytest.mark.parametrize(("rounding", "accepted"), [(3e-6, True), (2.5e-6, False)])
def test_an_event_in_which_the_network_itself_is_rounding_may_differ_by_as_much(
    rounding: float, accepted: bool
) -> None:
    expected: Arrays = {"energy": np.array([[0.05], [0.05]], np.float32)}
    found: Arrays = {"energy": np.array([[0.05], [0.050011]], np.float32)}
    parity = Parity((ENERGY,), {"energy": YARD})

    def noise(odd: np.ndarray) -> dict[str, FloatArray]:
        assert odd.tolist() == [False, True]
        return {"energy": np.array([[rounding]])}

    if not accepted:
        with pytest.raises(OutputsDiffer, match="xectool explain X-08"):
            parity.add("ill-conditioned", expected, found, noise=noise)
        return
    parity.add("ill-conditioned", expected, found, noise=noise)
    assert parity.agreements()[0].max_abs == 0.0
    assert parity.agreements()[0].edge_max_abs == pytest.approx(1.1e-5, rel=0.01)


class Cancelling(torch.nn.Module):
    """Two large numbers that cancel: float32 is right by chance, and another order of the operations is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return 1 + self.first * values - self.second * values


def test_what_one_rounding_gets_right_by_chance_is_noise_where_the_event_is_ill_conditioned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def outputs(model: torch.nn.Module, mode: str, given: Arrays) -> Arrays:
        return {"energy": model(torch.from_numpy(given["x"])).detach().numpy()}

    monkeypatch.setattr(rounding, "expected", outputs)
    given: Arrays = {"x": np.array([[1.0], [1e4]], np.float32)}
    network = Cancelling()
    assert np.array_equal(outputs(network, "raw", given)["energy"], [[1.0], [1.0]])  # control: exact as it is
    sound, ill = rounding.rounding_noise(network, "raw", given, {})(np.ones(2, np.bool_))["energy"].ravel()
    assert 1e-8 < sound < 2e-6
    assert ill == pytest.approx(1e4 * sound, rel=0.01)
    assert network.first.item() == 1.0
    noise = rounding.rounding_noise(network, "raw", given, {})
    for share, is_sound in ((1.0, True), (10.0, False)):  # of what is rounding there: a number that is wrong is refused
        found: Arrays = {"energy": np.array([[1.0], [1 + share * ill]], np.float32)}
        parity = Parity((ENERGY,), {"energy": YARD})
        with nullcontext() if is_sound else pytest.raises(OutputsDiffer, match="xectool explain X-08"):
            parity.add("ill-conditioned", outputs(network, "raw", given), found, noise=noise)


def test_rounding_of_a_large_number_is_no_difference() -> None:
    value = np.array([[1e6]], np.float32)
    Parity((ENERGY,), {"energy": YARD}).add("big", {"energy": value}, {"energy": np.nextafter(value, np.inf)})


def test_resolution_comes_from_the_metrics_else_from_the_spread() -> None:
    stick = from_metrics("uvwFI", {"uvw_u_res_68pct": 1.0, "uvw_v_res_68pct": 2.0, "uvw_w_res_68pct": 3.0})
    assert stick is not None
    assert stick.value.tolist() == [1.0, 2.0, 3.0]
    assert from_metrics("uvwFI", {"uvw_u_res_68pct": 1.0}) is None
    assert from_metrics("energy", {"energy_res_68pct": float("nan")}) is None
    assert from_metrics("energy", {"energy_res_68pct": 0.0}) is None
    vector = from_metrics("angleVec", {"angleVec_resolution_68pct": 180.0})
    assert vector is not None
    assert vector.value.tolist() == [np.pi]
    spread = from_spread([np.array([[1.0, 5.0], [3.0, 5.0]])])
    assert spread.value.tolist() == [1.0, 0.005]
    assert spread.share == 3e-4


def test_one_event_is_measured_in_the_spread_of_simulated_ones(make_checkpoint: Any) -> None:
    """Its own spread is zero, and its residual anything: a sound export would be refused for rounding."""
    source = make_checkpoint("regressor")
    loaded = ready_model(load_checkpoint(source, "auto"), source, "auto", "cpu")
    loaded.checkpoint.meta["progress"]["history"] = []
    graph = make_graph(loaded.network, (), "raw")
    one = RawEvents(torch.full((1, 4760), 50.0), torch.full((1, 4760), 1e-8))
    found = yardsticks(loaded, graph, "raw", one, {"energy_res_68pct": 1e-12})
    for stick in found.values():
        assert (stick.value > 0).all()
        assert "spread of the predictions" in stick.source
    assert found["energy"].value[0] > 1e-6
    alone = from_spread([np.array([[2.0, 0.5]])])
    assert alone.value.tolist() == [0.002, 0.0005]


def test_a_head_is_measured_in_its_own_units() -> None:
    stick = head_units(YARD, TargetTransform(1, 0.01, 0.05), 2)
    assert stick is not None
    np.testing.assert_allclose(stick.value, [0.1, 1.0])
    task = TaskConfig(enabled=True, log_transform=True)
    assert head_units(YARD, TargetTransform(1, task.scale, task.shift, True), 1) is None


def test_export_that_fails_leaves_no_file_behind(
    make_checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xectool.export.torchscript import TorchScriptFormat

    write = TorchScriptFormat.write

    def spoiled(graph: Any, description: Any, example: Any, path: Path) -> Any:
        with torch.no_grad():
            weight = graph.model.heads["energy"][6].bias
            weight += 0.01
            try:
                return write(graph, description, example, path)
            finally:
                weight -= 0.01

    source, target = make_checkpoint("regressor"), tmp_path / "out.pt"
    engine.export(source, to="torchscript", output=target)
    of_yesterday = target.read_bytes()
    monkeypatch.setattr(TorchScriptFormat, "write", staticmethod(spoiled))
    with pytest.raises(OutputsDiffer, match="nothing was written"):
        engine.export(source, to="torchscript", output=target)
    assert [path.name for path in tmp_path.iterdir()] == ["out.pt"]
    assert target.read_bytes() == of_yesterday


def test_damaged_or_infected_checkpoint_is_not_exported(make_checkpoint: Any, tmp_path: Path) -> None:
    """X-01: what the inspection finds in the source."""
    source = make_checkpoint("regressor")
    data = bytearray(source.read_bytes())
    data[len(data) // 2] ^= 0x10
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(data)
    sound = store.load(source)
    poisoned = dict(sound.ema)
    poisoned["heads.energy.6.bias"] = torch.tensor([float("nan"), 0.0])
    store.save(tmp_path / "nan.pt", Checkpoint(sound.meta, sound.model, poisoned))
    for name, code in (("damaged.pt", "K0"), ("nan.pt", "K08")):
        with pytest.raises(CheckpointError, match="xectool inspect-ckpt") as caught:
            engine.export(tmp_path / name, output=tmp_path / "out.onnx")
        assert caught.value.code.startswith(code)
    assert not (tmp_path / "out.onnx").exists()


def test_an_encoder_alone_is_not_exported(make_checkpoint: Any, tmp_path: Path) -> None:
    engine.inspect_ckpt(make_checkpoint("mae"), extract="encoder", output=tmp_path / "encoder.pt")
    with pytest.raises(CheckpointError, match=r"cannot be exported[\s\S]*xectool inspect-ckpt") as caught:
        engine.export(tmp_path / "encoder.pt", output=tmp_path / "out.onnx")
    assert caught.value.code == "X-01"


def test_checkpoint_that_lacks_a_weight_is_not_exported(make_checkpoint: Any, tmp_path: Path) -> None:
    """X-03: nothing is left out silently."""
    sound = store.load(make_checkpoint("regressor"))
    partial = {name: value for name, value in sound.model.items() if name != "backbone.pos_embed"}
    store.save(tmp_path / "partial.pt", Checkpoint(sound.meta, partial))
    with pytest.raises(CheckpointError, match="xectool inspect-ckpt"):
        engine.export(tmp_path / "partial.pt", to="safetensors", output=tmp_path / "out.safetensors")


def test_options_that_contradict_each_other_are_refused(
    make_checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getpid", lambda: 7)  # a long name was taken where the process had three digits
    source = make_checkpoint("regressor")
    for options, said in (
        ({"to": "onnx", "output": tmp_path / "a.pt2"}, "contradict each other"),
        ({"to": "onxx"}, "fix: --to onnx"),
        ({"inputs": "rw", "output": tmp_path / "a.onnx"}, "fix: --inputs raw"),
        ({"output": tmp_path / "a.pth"}, r"suffix '.pth'[\s\S]*fix: --output \S+a\.torchscript  "),
        ({"output": tmp_path / "a"}, r"a name without suffix[\s\S]*fix: --output \S+a\.onnx  "),
        ({"output": tmp_path / f"{'a' * 240}.onnx"}, "too long for a file system"),
        ({"output": tmp_path / ("a" * 300) / "b.onnx"}, "too long for a file system"),
        ({"to": "onnx", "output": tmp_path / "A.PT"}, "contradict each other"),
        ({"to": "safetensors", "inputs": "normalized", "output": tmp_path / "a.safetensors"}, "no effect"),
        ({"to": "torchscript", "output": source}, "would replace its own input"),
        ({"max_events": 5, "output": tmp_path / "a.onnx"}, "--verify-on"),
        ({"weights": "emma", "output": tmp_path / "a.onnx"}, "unknown weights"),
    ):
        with pytest.raises(UsageError, match=said):
            engine.export(source, **options)  # type: ignore[arg-type]


def test_whoever_waits_is_told_which_check_runs(order, simulated):
    """`export` showed the one word "verify" for minutes."""
    told: list[tuple[str, int]] = []

    class Watching:
        done = 0

        def phase(self, name, total, done=0):
            told.append((name, total))

        def advanced(self, num_batches, values):
            self.done += num_batches

    watching = Watching()
    _, _, edges, _ = exporter.compare(order, PythonRuntime(order.graph), simulated, [], watching)
    assert told[-1] == ("verify: edge cases", edges)
    assert watching.done == edges
