"""Watches every node of a backward pass: which one first turns a finite gradient into one that is not."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from xectool.probes.instruments.trace import ModuleStack, Origin, largest, nonfinite_kinds


class NodeOwners(ModuleStack):
    """Knows which module made each node of the graph.

    A node belongs to the module that ran when its result was first seen; functional code between two modules belongs
    to the one that calls them, and what follows the network to the loss.
    """

    def __init__(self) -> None:
        super().__init__()
        # The nodes themselves are the keys: they stay alive, so each stays the one Python object it is.
        self.owners: dict[Any, str] = {}

    def entering(self, inputs: Any) -> None:
        """Claim what was computed before a module was called."""
        self.claim(inputs)

    def leaving(self, outputs: Any) -> None:
        """Claim what the module computed."""
        self.claim(outputs)

    def claim(self, values: Any) -> None:
        """Give every node behind some tensors that has no owner yet to the module on top."""
        found = [value.grad_fn for value in tree_leaves(values) if isinstance(value, Tensor)]
        waiting = [node for node in found if node is not None]
        while waiting:
            node = waiting.pop()
            if node in self.owners:
                continue
            self.owners[node] = self.top
            waiting += [after for after, _ in node.next_functions if after is not None]


class GradientWatch:
    """Finds the first node whose result is not finite though what it was given is.

    Args:
        owners: The modules of the nodes of the graph.
    """

    def __init__(self, owners: NodeOwners) -> None:
        self.origin: Origin | None = None
        self._handles = [node.register_hook(self._after(node, name)) for node, name in owners.owners.items()]

    def close(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()

    def _after(self, node: Any, owner: str) -> Any:
        def look(results: Any, given: Any) -> None:
            if self.origin is not None:
                return
            before = [grad for grad in given if grad is not None]
            arrived = next((kinds for kinds in map(nonfinite_kinds, before) if kinds), None)
            made = next((kinds for kinds in map(nonfinite_kinds, (g for g in results if g is not None)) if kinds), None)
            if arrived is not None:
                self.origin = Origin(owner, f"sum of gradients before {_shown(node)}", arrived[0])
            elif made is not None:
                self.origin = Origin(owner, f"{_shown(node)} (backward)", made[0], largest(before))

        return look


def _shown(node: Any) -> str:
    """Return ``sqrt`` for ``SqrtBackward0``."""
    name = str(node.name()).rsplit("::", 1)[-1]
    return name.split("Backward")[0].lower() if "Backward" in name else name
