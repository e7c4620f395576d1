"""Which engine predicts with a checkpoint: the one asked for, or the fastest as timed, with the same numbers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uproot
from torch import Tensor, nn
from xectool import engine
from xectool.config.platform import Platform
from xectool.engine import engines
from xectool.engine.engines import ONNX, Engine, Request, choose_engine
from xectool.engine.input_events import open_events
from xectool.engine.loading import (
    LoadedModel,
    events_at_once,
    load_checkpoint,
    ready_model,
    served_in_order,
)
from xectool.errors import CheckpointError, DeviceError, OutputsDiffer, UsageError
from xectool.training.stepping.evaluate import run_model

SHARE = 1e-5
"""Of a resolution, by which engines may differ."""
RESOLUTION = {"pred_angle": 4.0, "pred_energy": 0.001, "pred_timing": 1e-10, "sigma_energy": 0.001}


@pytest.fixture
def exported(onnx_regressor: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A checkpoint whose export is there already."""
    monkeypatch.setattr(engines, "export", lambda model, **told: shutil.copy(onnx_regressor.path, told["output"]))
    return onnx_regressor


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Events of each graph that is compiled; the kernels stay those of PyTorch, others take minutes."""
    torch._dynamo.reset()
    sizes: list[int] = []
    compiling = torch.compile

    def backend(graph: torch.fx.GraphModule, example: list[Tensor]) -> Callable[..., Any]:
        sizes.append(next(value.shape[0] for value in example if getattr(value, "shape", ())[-1:] == (4760,)))
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda model, **told: compiling(model, backend=backend, fullgraph=True))
    return sizes


def loaded_from(path: Path) -> LoadedModel:
    return ready_model(load_checkpoint(path, "auto"), path, "auto", "cpu")


def asked(sample: Any, events: Path, name: str = "auto", batch_size: int = 2) -> Engine:
    loaded = loaded_from(sample.checkpoint)
    return choose_engine(loaded, Request(sample.checkpoint, "auto", name, batch_size), source_of(loaded, events))


def source_of(loaded: LoadedModel, events: Path) -> Any:
    return open_events(loaded, [str(events)], None)


def branches(path: Path) -> dict[str, Any]:
    with uproot.open(f"{path}:tree") as tree:
        return dict(tree.arrays(library="np"))


def require_same(first: Path, second: Path) -> None:
    """Compare predictions in resolutions, and all else bit by bit."""
    ours, theirs = branches(first), branches(second)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        steps = 2 * np.spacing(np.abs(value)) if value.dtype == np.float32 else 0
        allowed = np.maximum(SHARE * RESOLUTION.get(name, 0.0), steps)
        assert (np.abs(theirs[name] - value) <= allowed).all(), name


@pytest.mark.slow
def test_engines_give_the_same_predictions(
    make_checkpoint: Callable[..., Path], events: Path, tmp_path: Path, graphs: list[int]
) -> None:
    source, found = make_checkpoint("regressor", seed=3), {}
    for name in ("eager", "compiled", "onnx"):
        output = tmp_path / f"{name}.root"
        found[name] = engine.predict(source, [str(events)], output=output, engine=name, batch_size=8)
        assert (found[name].engine, found[name].engine_reason) == (name, "asked for")
        require_same(tmp_path / "eager.root", output)
    assert graphs == [8], "the last batch, of 4 events, is computed eagerly"
    assert found["onnx"].metrics.keys() == found["eager"].metrics.keys()


class Sum(nn.Module):
    """The smallest network that takes what a regressor does."""

    def forward(self, npho: Tensor, time: Tensor) -> dict[str, Tensor]:
        """Return the light of each event."""
        return {"energy": npho.sum(dim=1, keepdim=True) + 0.0 * time[:, :1]}


def test_only_whole_batches_are_compiled(exported: Any, graphs: list[int]) -> None:
    loaded = replace(loaded_from(exported.checkpoint), network=Sum())
    whole, rest = torch.ones(8, 4760), torch.ones(4, 4760)
    forward = engines._as_compiled(loaded, 8)
    for readings in (whole, rest, whole):
        assert torch.equal(forward(readings, readings)["energy"], readings.sum(dim=1, keepdim=True))
    assert graphs == [8]
    fast = torch.compile(Sum())
    fast(whole, whole), fast(rest, rest)
    assert len(graphs) == 2, "another size is compiled for, which takes as long again"


def test_a_cpu_predicts_eagerly_without_a_trial_however_many_events(
    exported: Any, events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory and bits are then the same for a thousand events and a million."""
    monkeypatch.setattr(engines, "FEWEST_BATCHES", 1)
    monkeypatch.setattr(engines._Trial, "seconds", lambda *_: pytest.fail("a trial on a CPU"))
    found = engine.predict(exported.checkpoint, [str(events)], output=tmp_path / "p.root", batch_size=2)
    assert found.as_dict()["engine"] == "eager"
    assert found.as_dict()["engine_reason"] == "on a CPU no other is faster in batches"


@pytest.fixture
def rival(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime stands for the compiled network of a GPU."""
    monkeypatch.setattr(engines, "RIVALS", {"cpu": ONNX})
    monkeypatch.setattr(engines, "PREPARING_S", {ONNX: 60.0})


@pytest.fixture
def many(rival: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten batches are many, and getting ready costs nothing."""
    monkeypatch.setattr(engines, "FEWEST_BATCHES", 10)
    monkeypatch.setattr(engines, "PREPARING_S", {ONNX: 0.0})


@pytest.mark.usefixtures("rival")
def test_few_events_are_predicted_eagerly_without_a_trial(
    exported: Any, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines._Trial, "seconds", lambda *_: pytest.fail("a trial for twenty events"))
    assert asked(exported, events).reason == "20 events are too few to get onnx ready for"


def slowed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a function of `engines` give a network that takes a second longer for each batch."""
    real = getattr(engines, name)

    def slow(*given: Any) -> Any:
        found = real(*given)
        found.network.register_forward_pre_hook(lambda *_: time.sleep(1.0))
        return found

    monkeypatch.setattr(engines, name, slow)


@pytest.mark.usefixtures("many")
def test_faster_engine_is_taken(exported: Any, events: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_from(exported.checkpoint)
    loaded.network.register_forward_pre_hook(lambda *_: time.sleep(1.0))
    found = choose_engine(loaded, Request(exported.checkpoint, "auto", "auto", 2), source_of(loaded, events))
    assert found.loaded.engine == "onnx"
    assert "of the eager rate on the first batch" in found.reason

    slowed(monkeypatch, "_as_onnx")
    found = asked(exported, events)
    assert found.loaded.engine == "eager"
    assert "onnx has 0." in found.reason


@pytest.mark.usefixtures("rival")
def test_engine_that_costs_more_than_it_saves_is_not_made_ready(
    exported: Any, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "FEWEST_BATCHES", 10)
    monkeypatch.setattr(engines, "_prepared", lambda *_: pytest.fail("made ready for a few seconds of work"))
    found = asked(exported, events)
    assert found.loaded.engine == "eager"
    assert "getting onnx ready about 60 s" in found.reason


@pytest.mark.usefixtures("many")
def test_engine_that_cannot_work_is_named_and_eager_goes_on(
    exported: Any, events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise CheckpointError("PyTorch cannot export this network", where="network.onnx", code="XT-EXPORT-OP")

    monkeypatch.setattr(engines, "export", refuse)
    found = engine.predict(exported.checkpoint, [str(events)], output=tmp_path / "p.root", batch_size=2)
    assert (found.engine, found.events) == ("eager", 20)
    assert found.engine_reason == "onnx cannot be used here: PyTorch cannot export this network"
    assert "XT-EXPORT-OP" in {note.code for note in found.findings}
    with pytest.raises(CheckpointError, match="cannot export this network"):
        asked(exported, events, "onnx")


def test_network_trained_in_reduced_precision_predicts_in_float32(exported: Any, events: Path) -> None:
    stored = load_checkpoint(exported.checkpoint, "auto")
    trained = {**stored.config, "training": {**stored.config["training"], "amp": "bf16"}}
    reduced = ready_model(replace(stored, meta={**stored.meta, "config": trained}), exported.checkpoint, "auto", "cpu")
    rounding = replace(reduced, execution=replace(reduced.execution, autocast_dtype=torch.bfloat16))

    def energies(loaded: LoadedModel) -> Tensor:
        source = source_of(loaded, events)
        with served_in_order(loaded, source, 8) as loader:
            predicted = run_model(loaded.network, loaded.task, loader.epoch(0), loaded.execution)
            return torch.cat([outputs["energy"].float() for _, outputs in predicted])

    exact = energies(loaded_from(exported.checkpoint))
    assert torch.equal(energies(reduced), exact)
    assert not torch.allclose(energies(rounding), exact, rtol=1e-4)  # what autocast would do


def test_compiled_network_with_other_numbers_is_refused(
    exported: Any, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(network: Any, *_: Any) -> Callable[..., dict[str, Tensor]]:
        return lambda *given: {name: 1.001 * value for name, value in network(*given).items()}

    monkeypatch.setattr(engines, "compiled", wrong)
    with pytest.raises(OutputsDiffer, match="--engine eager") as caught:
        asked(exported, events, "compiled")
    assert caught.value.code == "XT-COMPILE-DIFFERS"


def test_engines_that_cannot_work_here_are_refused(
    exported: Any, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="did you mean 'onnx'"):
        engine.predict(exported.checkpoint, [str(events)], engine="onx")
    with pytest.raises(UsageError, match="leave out --engine"):
        engine.predict(exported.path, [str(events)], engine="eager")
    loaded = loaded_from(exported.checkpoint)
    on_gpu = replace(loaded, execution=replace(loaded.execution, device=torch.device("cuda")))
    with pytest.raises(UsageError, match="--engine compiled, or --device cpu"):
        choose_engine(on_gpu, Request(exported.checkpoint, "auto", "onnx", 2), source_of(loaded, events))
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(DeviceError, match="--engine eager") as caught:
        asked(exported, events, "compiled")
    assert caught.value.code == "XT-COMPILE-TOOLCHAIN"
    monkeypatch.setattr(Platform, "detect", lambda: Platform(machine="aarch64"))
    with pytest.raises(UsageError, match="--engine eager") as refused:
        asked(exported, events, "compiled")
    assert refused.value.code == "CFG-06"


@pytest.mark.parametrize(("width", "expected"), [(64, 64), (256, 64), (512, 32), (1024, 16), (4096, 16)])
def test_batches_of_a_cpu_fit_its_cache(exported: Any, width: int, expected: int) -> None:
    loaded = loaded_from(exported.checkpoint)
    model = loaded.config.model.model_copy(update={"encoder_dim": width})
    wide = replace(loaded, config=loaded.config.model_copy(update={"model": model}))
    assert events_at_once(wide, None) == expected
    assert events_at_once(wide, 3) == 3
    on_gpu = replace(wide, execution=replace(wide.execution, device=torch.device("cuda")))
    assert events_at_once(on_gpu, None) == 256
