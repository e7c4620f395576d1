"""What the measured compilation means: what is missing, what breaks the graph, what compiles again, what differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xectool.findings import Finding, Severity
from xectool.probes.compilation.graphs import AGAIN, GraphReport, Recompile
from xectool.probes.compilation.mode import ModeTime

LARGEST_DIFFERENCE = 0.05  # of the largest output; bfloat16 keeps 8 bits, and a network adds up its rounding
_FREE_RECOMPILES = 1  # the second batch size makes shapes dynamic, once


@dataclass(frozen=True)
class Toolchain:
    """What ``torch.compile`` needs.

    Attributes:
        cxx: The C++ compiler; empty where none is found.
        triton: Where triton is; empty where it is not installed.
        missing: What is needed on the device and not found; empty where nothing is.
        suppressed: Whether failures of the compiler are hidden.
    """

    cxx: str
    triton: str
    missing: str
    suppressed: bool


@dataclass(frozen=True)
class CompileFacts:
    """What was found.

    Attributes:
        toolchain: Compilers of this machine.
        graphs: What tracing gave.
        times: What the modes cost.
        configured: The mode training takes.
        suppressed: Whether failures of the compiler are hidden.
        command: The line that measures this again.
        timeout_s: Longest time of all modes together.
    """

    toolchain: Toolchain
    graphs: GraphReport
    times: Sequence[ModeTime]
    configured: str
    suppressed: bool
    command: str = "xectool diagnose compile CONFIG"
    timeout_s: float = 0.0


def usable_modes(times: Sequence[ModeTime]) -> tuple[str, ...]:
    """Return the modes that were measured and whose outputs are those of eager."""
    return tuple(found.mode for found in times if not found.error and found.max_rel_diff <= LARGEST_DIFFERENCE)


def findings_of(facts: CompileFacts) -> tuple[Finding, ...]:
    """Return what is wrong, what keeps the network from being compiled first."""
    return (*_toolchain(facts), *_modes(facts), *_breaks(facts), *_recompiles(facts), *_skips(facts))


def _toolchain(facts: CompileFacts) -> Iterator[Finding]:
    if facts.toolchain.missing:
        problem = f"the network cannot be compiled here: {facts.toolchain.missing}"
        fix = "--set training.compile=none"
        if "C++" in facts.toolchain.missing:
            fix += "   # or: sudo apt-get install g++, or: module load gcc"
        yield Finding("XT-COMPILE-TOOLCHAIN", Severity.ERROR, problem, "this machine", (), fix)
    if facts.suppressed:
        problem = "compile failures are hidden: parts run eagerly and nobody is told"
        fix = "unset TORCHDYNAMO_SUPPRESS_ERRORS   # exclude a function by torch.compiler.disable instead"
        where = "TORCHDYNAMO_SUPPRESS_ERRORS or torch._dynamo.config.suppress_errors"
        yield Finding("XT-COMPILE-SUPPRESSED", Severity.WARNING, problem, where, (), fix)


def _modes(facts: CompileFacts) -> Iterator[Finding]:
    for found in facts.times:
        wanted = found.mode in ("none", facts.configured)
        severity = Severity.INFO if found.cannot_pay else Severity.ERROR if wanted else Severity.WARNING
        where = f"training.compile: {found.mode}"
        if found.error:
            fix = "--set training.compile=none" if found.mode != "none" else "xectool diagnose environment"
            if found.code == "XT-DISK":  # of the compiler's files
                fix = found.fix
            if found.code == "XT-COMPILE-TIMEOUT":  # which says nothing against the mode
                fix = f"{facts.command} --modes {found.mode} --timeout {max(3600.0, 4 * facts.timeout_s):.0f}"
            yield Finding(found.code or "XT-COMPILE-FAILED", severity, f"{found.mode}: {found.error}", where, (), fix)
        elif not found.max_rel_diff <= LARGEST_DIFFERENCE:  # NaN must count as different
            problem = f"{found.mode}: outputs differ from eager by {found.max_rel_diff:.2g} of the largest"
            evidence = (f"largest difference {found.max_abs_diff:.3g}",)
            fix = "--set training.compile=none"
            yield Finding("XT-COMPILE-DIFFERS", severity, problem, where, evidence, fix)


def _breaks(facts: CompileFacts) -> Iterator[Finding]:
    for found in facts.graphs.breaks:
        problem = f"the graph breaks: {found.reason}"
        yield Finding(
            "XT-GRAPH-BREAK", Severity.WARNING, problem, f"{found.file}:{found.line}", (found.code.strip(),), found.cure
        )


def _recompiles(facts: CompileFacts) -> Iterator[Finding]:
    graphs = facts.graphs
    values = [found for found in graphs.recompiles if found.seen == AGAIN]
    for found in values:
        problem = f"compiled again at every step, with batches of one size: {found.reason}"
        evidence = (f"at each of {AGAIN} further steps with {found.events} events; the compiler gives up after some",)
        fix = "--set training.compile=none   # or keep what changes in a tensor (self.register_buffer)"
        yield Finding("XT-RECOMPILE", Severity.WARNING, problem, found.function, evidence, fix)
    sizes = tuple(found for found in graphs.recompiles if not found.seen)
    if sizes or (graphs.given_up and not values):
        yield _of_sizes(graphs, sizes)


def _of_sizes(graphs: GraphReport, recompiles: Sequence[Recompile]) -> Finding:
    sizes = ", ".join(str(size) for size in graphs.batch_sizes)
    evidence = tuple(f"batch of {found.events}: {found.reason} in {found.function}" for found in recompiles)
    if graphs.given_up:
        problem = f"the compiler gives up and runs eagerly: {graphs.given_up}"
    else:
        problem = f"compiled again {len(recompiles)} times in an epoch with batches of {sizes} events"
    few = len(recompiles) <= _FREE_RECOMPILES and not graphs.given_up
    severity = Severity.INFO if few else Severity.WARNING
    return Finding("XT-RECOMPILE", severity, problem, "data.drop_last", evidence, "--set data.drop_last=true")


def _skips(facts: CompileFacts) -> Iterator[Finding]:
    for found in facts.times:
        if found.cudagraph_skips:
            problem = f"{found.mode} runs without CUDA graphs: {found.cudagraph_skips[0]}"
            where = f"training.compile: {found.mode}"
            fix = "--set training.compile=default"
            yield Finding("XT-CUDAGRAPH-SKIP", Severity.WARNING, problem, where, found.cudagraph_skips, fix)
