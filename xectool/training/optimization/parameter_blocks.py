"""Gradient norms of parts of a model, from the one pass over the gradients that clipping needs anyway."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

MAX_BLOCKS: Final = 16
MAX_DEPTH: Final = 2  # heads.energy says more than heads.energy.4 and its neighbours
REST: Final = "other"


class ParameterBlocks:
    """Cuts the parameters of some modules into at most `MAX_BLOCKS` named blocks.

    Args:
        modules: Modules by the prefix their names get; an empty prefix leaves names as they are.

    Attributes:
        names: The blocks, such as ``backbone.hex_encoder`` and ``heads.energy``.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        found = [
            (f"{prefix}.{name}" if prefix else name, parameter)
            for prefix, module in modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        ]
        blocks = cut_blocks([(name, parameter.numel()) for name, parameter in found])
        self.names: tuple[str, ...] = tuple(dict.fromkeys(blocks))
        place = {name: index for index, name in enumerate(self.names)}
        self._block = {id(parameter): place[block] for (_, parameter), block in zip(found, blocks, strict=True)}

    def gradient_norms(self, parameters: Sequence[nn.Parameter]) -> tuple[Tensor, dict[str, float]]:
        """Return the L2 norm of all gradients, as ``torch.nn.utils.get_total_norm`` does, and that of each block.

        Args:
            parameters: Those with a gradient, at least one.
        """
        norms = torch._foreach_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        each = torch.stack([norm.to(norms[0].device) for norm in norms])
        # One copy to the host for all; a loop over a few hundred numbers costs less than array operations, cold.
        squares: dict[int, float] = {}
        for parameter, value in zip(parameters, each.tolist(), strict=True):
            block = self._block[id(parameter)]
            squares[block] = squares.get(block, 0.0) + value * value
        blocks = {self.names[block]: math.sqrt(squares[block]) for block in sorted(squares)}
        return torch.linalg.vector_norm(each), blocks


def weight_norm(parameters: Iterable[nn.Parameter]) -> float:
    """Return the L2 norm of all parameters together."""
    norms = torch._foreach_norm([parameter.detach() for parameter in parameters])
    return float(torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms])))


def cut_blocks(sizes: Sequence[tuple[str, int]], max_blocks: int = MAX_BLOCKS) -> list[str]:
    """Return the block of each parameter.

    Starts from the outermost modules and opens one block after the other, outer ones first and the largest of equals,
    as long as the number of blocks allows. Parameters of a module itself stay under its name when it is opened.

    Args:
        sizes: Name and number of elements of each parameter.
        max_blocks: Most blocks.
    """
    modules = [name.rpartition(".")[0].split(".") for name, _ in sizes]
    depth = dict.fromkeys({path[0] for path in modules}, 1)
    closed: set[str] = set()
    while True:
        blocks = [_block(path, depth) for path in modules]
        weights: dict[str, int] = {}
        for block, (_, size) in zip(blocks, sizes, strict=True):
            weights[block] = weights.get(block, 0) + size
        candidates = [block for block in weights if block not in closed and block.count(".") + 1 < MAX_DEPTH]
        if not candidates:
            break
        largest = min(candidates, key=lambda block: (block.count("."), -weights[block]))
        parts = {
            _prefix(path, largest.count(".") + 2)
            for path, block in zip(modules, blocks, strict=True)
            if block == largest
        }
        if parts == {largest} or len(weights) - 1 + len(parts) > max_blocks:
            closed.add(largest)
        else:
            depth[largest] = largest.count(".") + 2
            closed |= {largest} & parts
    return _joined(blocks, weights, max_blocks)


def _prefix(path: Sequence[str], length: int) -> str:
    return ".".join(path[:length])


def _block(path: Sequence[str], depth: Mapping[str, int]) -> str:
    block = path[0]
    while depth.get(block, 0) > block.count(".") + 1:
        inner = _prefix(path, block.count(".") + 2)
        if inner == block:
            break
        block = inner
    return block


def _joined(blocks: list[str], weights: Mapping[str, int], max_blocks: int) -> list[str]:
    """Return the blocks with the smallest joined where there are too many outermost modules."""
    if len(weights) <= max_blocks:
        return blocks
    kept = set(sorted(weights, key=lambda block: weights[block], reverse=True)[: max_blocks - 1])
    return [block if block in kept else REST for block in blocks]
