"""A file that turns out wrong after it was written: refused under the name the user gave, and nothing is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from onnx_ir.passes import PassError
from onnxscript.rewriter import RewriteRuleSet
from xectool import engine
from xectool.detector.constants import NUM_SENSORS
from xectool.errors import OutputsDiffer
from xectool.export import onnx_conversion, onnx_file
from xectool.export.graphs import make_graph


def frozen_inside(graph: Any) -> None:
    """The ports say that the batch is free; an operation inside knows better."""
    name = graph.output[0].name
    for node in graph.node:
        node.output[:] = [f"{name}_raw" if output == name else output for output in node.output]
    graph.initializer.append(numpy_helper.from_array(np.array([3, -1]), "three"))
    graph.node.append(helper.make_node("Reshape", [f"{name}_raw", "three"], [name]))


def of_another_domain(graph: Any) -> None:
    graph.node[-1].op_type = "Frobnicate"


def with_another_weight(graph: Any) -> None:
    """The last bias of the energy, which nothing normalises away, moves by a hundredth of its unit."""
    (bias,) = (item for item in graph.initializer if item.name.endswith("heads.energy.6.bias"))
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.01), bias.name))


@pytest.mark.parametrize(
    ("change", "code"), [(frozen_inside, "X-05"), (of_another_domain, "X-06"), (with_another_weight, "X-08")]
)
def test_an_export_that_does_not_run_or_gives_other_numbers_is_refused_by_its_own_name(
    make_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, code: str
) -> None:
    def converted(*given: Any) -> onnx.ModelProto:
        model = real(*given)
        change(model.graph)
        return model

    real = onnx_file.converted
    monkeypatch.setattr(onnx_file, "converted", converted)
    target = tmp_path / "model.onnx"
    with pytest.raises(OutputsDiffer) as caught:
        engine.export(make_checkpoint("regressor"), output=target)
    assert (caught.value.code, caught.value.where) == (code, str(target))
    assert caught.value.fix == f"do not use this export; nothing was written. xectool explain {code}"
    assert ".part" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_is_folded_without_trying_every_rewrite_at_every_operation(
    networks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule of two outputs compares each operation with each other: of 140 s of an inpainter it took 28."""

    def rewritten(*given: Any) -> None:
        raise AssertionError("a rewrite was tried")

    monkeypatch.setattr(RewriteRuleSet, "apply_to_model", rewritten)
    graph = make_graph(networks("regressor"), (), "raw")
    example = (torch.full((2, NUM_SENSORS), 50.0), torch.zeros(2, NUM_SENSORS))
    model = onnx_conversion.converted(graph, example, Path("model.onnx"))
    known = {item.name for item in model.graph.input}  # what depends on an event
    for node in model.graph.node:
        assert node.op_type != "Identity"
        assert known.intersection(node.input), f"{node.op_type} {node.name} computes the same at each event"
        known.update(node.output)
    own = pytest.raises(PassError)  # the control: PyTorch's own way tries them
    with own, onnx_conversion._quiet():
        torch.onnx.export(torch.nn.Identity().eval(), (torch.ones(2),), dynamo=True, optimize=True)
