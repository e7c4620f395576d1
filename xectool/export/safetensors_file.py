"""safetensors: the chosen weights and what rebuilds the network; xectool and other programs read it safely."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import nn

from xectool.checkpoint import store
from xectool.checkpoint.format import HELD, Checkpoint
from xectool.config.load import config_from_dict
from xectool.config.tasks import TASK_WIDTHS
from xectool.errors import CheckpointError, in_shell
from xectool.export.description import EXPORTED, PREFIX, Description
from xectool.export.formats import Written, register
from xectool.export.graphs import ExportGraph, RegressorGraph, make_graph
from xectool.export.runtime import Runtime
from xectool.export.torch_runtime import TorchRuntime
from xectool.models.build import build_model


@register("safetensors", ".safetensors")
class SafetensorsFormat:
    """Weights without a graph: what it takes and gives is the network's own code, in PyTorch."""

    opset = 0

    @staticmethod
    def write(graph: ExportGraph, description: Description, example: tuple[torch.Tensor, ...], path: Path) -> Written:
        """Write the weights of a network and its description."""
        metadata = description.to_metadata()
        meta = {
            "kind": description.kind,
            "config": dict(description.config),
            "conventional": description.state.get("conventional", {}),
            EXPORTED: metadata,
            HELD: description.weights,
        }
        store.save(path, Checkpoint(meta, _weights(graph)))
        return Written((path,))

    @staticmethod
    def open(path: Path, device: str = "cpu") -> Runtime:
        """Return the network that the file rebuilds.

        Raises:
            CheckpointError: It cannot be read, or xectool did not export it.
        """
        checkpoint, place = store.load(path), torch.device(device)
        description = Description.from_metadata(checkpoint.meta.get(EXPORTED, {}), str(path))
        model = build_model(config_from_dict(checkpoint.config, str(path), package=checkpoint.kind_package))
        own, held = (
            {name: value.shape for name, value in state.items()} for state in (model.state_dict(), checkpoint.model)
        )
        unlike = {name for name in own.keys() | held.keys() if own.get(name) != held.get(name)}
        if unlike:
            raise CheckpointError(
                f"the weights do not fit the configuration in the file: {', '.join(sorted(unlike)[:3])}",
                where=f"{path}: {PREFIX}config",
                fix=f"xectool inspect-ckpt {in_shell(path)}",
                code="X-03",
            )
        model.load_state_dict(checkpoint.model)
        graph = make_graph(model, description.tasks, description.inputs_mode).to(place)
        return TorchRuntime(path, description, graph, place)


def _weights(graph: ExportGraph) -> dict[str, torch.Tensor]:
    """Return the weights as the described configuration builds them: a task left out has no variance to predict."""
    network = graph.get_submodule("model")
    weights: dict[str, torch.Tensor] = dict(network.state_dict())
    if isinstance(graph, RegressorGraph):
        for task in set(graph.model.nll_tasks) - set(graph.tasks):
            last = len(cast(nn.Sequential, graph.model.heads[task])) - 1
            for name in (f"heads.{task}.{last}.weight", f"heads.{task}.{last}.bias"):
                weights[name] = weights[name][: TASK_WIDTHS[task]].clone()
    return weights
