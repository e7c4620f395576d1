"""What ``torch.compile`` makes of a network before any kernel is built: graphs, breaks, and compilations again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics, graph_break_reasons

from xectool.data.batch import EventBatch
from xectool.data.plan import DataPlan
from xectool.probes.instruments.bench import Bench
from xectool.training.process.device import keep_counts_in_graph
from xectool.training.symptoms.torch_signs import CompilerLog

_JUMP: Final = "generic_jump"
"""The compiler's own word for a branch on the value of a tensor."""
_KEEP: Final = "keep the number a tensor (torch.where, or torch.cond for a branch)"
# What the reason of a break says, and what cures it.
_CURES = (
    ("item()", _KEEP),
    ("tolist()", _KEEP),
    ("`print`", "take print out of forward, or log after the step"),
    ("logging", "take logging out of forward, or log after the step"),
    ("numpy", "keep the computation in torch, and constants in register_buffer(..., persistent=False)"),
    ("data-dependent", "replace the branch by torch.where, or torch.cond"),
    ("Data-dependent", "replace the branch by torch.where, or torch.cond"),
    (_JUMP, "replace the branch by torch.where, or torch.cond"),
    ("dynamic shape", "keep shapes fixed: a mask in place of boolean indexing or nonzero"),
    ("torch.compiler.disable", "the function is excluded on purpose; take @torch.compiler.disable away"),
)
AGAIN: Final = 3
"""Further steps of one size; only a value that goes into the graph is compiled again at each of them."""
_OTHER_CURE = "move this line out of forward, or exclude its function by torch.compiler.disable"


@dataclass(frozen=True)
class GraphBreak:
    """A place where the graph breaks.

    Attributes:
        file: Source file.
        line: Line in it.
        code: That line.
        reason: What the compiler says.
        cure: What to do.
    """

    file: str
    line: int
    code: str
    reason: str
    cure: str


@dataclass(frozen=True)
class Recompile:
    """A compilation of something that was compiled before.

    Attributes:
        function: Compiled function with file and line.
        reason: The guard that failed, with the shape or value that changed.
        events: Events of the batch that caused it.
        seen: Batches of that size before it; 0 where the size was new.
    """

    function: str
    reason: str
    events: int
    seen: int = 0


@dataclass(frozen=True)
class GraphReport:
    """What was compiled.

    Attributes:
        graphs: Graphs of the first batch.
        ops: Operations in them.
        unique_ops: Different operations among these.
        batch_sizes: Events of the batches, in order.
        breaks: Where the graph breaks.
        recompiles: What was compiled again, and why.
        given_up: The last reason where the compiler gave up and runs eagerly; empty where it did not.
        trace_s: Seconds of tracing, without kernels.
    """

    graphs: int
    ops: int
    unique_ops: int
    batch_sizes: tuple[int, ...]
    breaks: tuple[GraphBreak, ...]
    recompiles: tuple[Recompile, ...]
    given_up: str
    trace_s: float


class _Collector:
    """A compiler backend that keeps the graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward


def inspect_graphs(bench: Bench, batches: Sequence[EventBatch]) -> GraphReport:
    """Trace the forward pass of a network as training compiles it: every batch, then further steps of the last.

    Args:
        bench: What is trained; in training mode from here on.
        batches: Batches of every size an epoch has, the first first.
    """
    torch._dynamo.reset()
    clear_compilation_metrics()
    graph_break_reasons.clear()
    keep_counts_in_graph()
    collector, given_up = _Collector(), list[str]()
    traced = replace(bench, model=_compiled(bench.model, collector))
    bench.model.train()
    recompiles: list[Recompile] = []
    # not shown: breaks and what was given up are told with their lines and cures
    with CompilerLog(lambda kind, message, **data: given_up.append(str(data.get("reason", message))), shown=False):
        recompiles += _traced(traced, batches[0])
        first = len(collector.graphs)
        for batch in batches[1:]:
            recompiles += _traced(traced, batch)
        for seen in range(1, AGAIN + 1):
            again = _traced(traced, replace(batches[-1], step=batches[-1].step + seen), seen)
            recompiles += again
            if not again:
                break
    kept = [node.target for graph in collector.graphs[:first] for node in _operations(graph)]
    return GraphReport(
        graphs=first,
        ops=len(kept),
        unique_ops=len({str(target) for target in kept}),
        batch_sizes=tuple(batch.num_events for batch in batches),
        breaks=_breaks(graph_break_reasons),
        recompiles=tuple(recompiles),
        given_up=given_up[-1] if given_up else "",
        trace_s=sum(metrics.entire_frame_compile_time_s or 0.0 for metrics in get_compilation_metrics()),
    )


def _compiled(model: nn.Module, backend: Callable[..., Any]) -> Any:
    return torch.compile(model, backend=backend)


def _operations(graph: torch.fx.GraphModule) -> list[Any]:
    return [node for node in graph.graph.nodes if node.op.startswith("call_")]


def _breaks(reasons: Sequence[Any]) -> tuple[GraphBreak, ...]:
    """Return each broken line once, from the compiler's own list: a break without operations before it has no graph."""
    found: dict[tuple[str, int], GraphBreak] = {}
    for told in reasons:
        if not told.user_stack:
            continue
        frame = told.user_stack[-1]
        reason = str(told.reason).strip()
        cure = next((cure for sign, cure in _CURES if sign in reason), _OTHER_CURE)
        first = "a branch on the value of a tensor" if reason.startswith(_JUMP) else reason.splitlines()[0]
        broken = GraphBreak(frame.filename, int(frame.lineno or 0), frame.line or "", first, cure)
        found.setdefault((broken.file, broken.line), broken)
    return tuple(found.values())


def _traced(bench: Bench, batch: EventBatch, seen: int = 0) -> list[Recompile]:
    """Trace a batch as its step would, with masks of its own, and return what was compiled again for it."""
    known = len(get_compilation_metrics())
    for prepared in bench.prepared([batch]):
        bench.forward(prepared)
    return [
        Recompile(
            f"{found.co_name} ({found.co_filename}:{found.co_firstlineno})", _first_line(found), batch.num_events, seen
        )
        for found in get_compilation_metrics()[known:]
        if found.recompile_reason
    ]


def _first_line(metrics: Any) -> str:
    # "0/1: tensor 'x' size mismatch ...": the numbers of frame and attempt say nothing to a reader
    # and the compiler pads a guard with spaces, so that the lines it comes from stand below each other.
    return " ".join(str(metrics.recompile_reason).splitlines()[0].partition(": ")[2].split())


def epoch_batches(plan: DataPlan, batches: Iterable[EventBatch]) -> list[EventBatch]:
    """Return one batch of every size an epoch has, in the order in which they come; only the last may be shorter.

    Args:
        plan: The order of the data.
        batches: Batches of it; the first is cut to the size of the last, whose events are not needed.
    """
    first = next(iter(batches))
    last = len(plan.batch_positions(plan.num_steps - 1, 0))
    return [first] if last == first.num_events else [first, first.take(np.arange(last))]
