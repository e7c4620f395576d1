"""``diagnose compile``: what ``torch.compile`` makes of a network, what each mode costs here, and which one pays."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from xectool.config.cgroups import allowed_cpus, num_cores
from xectool.config.document import CONFIG_FILE
from xectool.config.load import load_config
from xectool.config.platform import available_memory, compile_threads
from xectool.config.root import RunConfig
from xectool.errors import DeviceError, UsageError, duration
from xectool.findings import Finding, Severity
from xectool.probes.compilation.findings import CompileFacts, Toolchain, findings_of, usable_modes
from xectool.probes.compilation.graphs import GraphReport, epoch_batches, inspect_graphs
from xectool.probes.compilation.mode import ModeTime
from xectool.probes.compilation.race import Recommendation, measure_modes, modes_of, recommend
from xectool.probes.loading.events import LoadingSubject
from xectool.probes.nonfinite.subject import Subject, of_config
from xectool.training.process.device import (
    compiled_where_it_pays,
    cxx_compiler,
    missing_toolchain,
    plan_execution,
    resolve_device,
)
from xectool.training.process.progress import NullObserver, Observer
from xectool.training.symptoms.torch_signs import compile_is_suppressed

DEFAULT_TIMEOUT_S = 600.0
_INDUCTOR_THREADS = 32


@dataclass(frozen=True)
class CompileResult:
    """What compiling a network costs and gains.

    Attributes:
        toolchain: Compilers that were found, and what is missing.
        graph_breaks: Where the graph breaks, with cures.
        fullgraph: Whether the network is one graph.
        graphs: Graphs, operations, shapes, compilations again.
        modes: What each mode costs; ``none`` is eager.
        recommended: The mode for the planned run; None where eager could not be measured.
        recommendation: Why, and after how many batches each mode has paid.
        config_lines: The line to change in the configuration; empty where it is as recommended.
        threads: Compile processes: taken by training, taken by PyTorch alone, and the memory they fit into.
        device: Where it was measured.
        notes: What should be known of the measurement.
        interrupted: Whether it was stopped before all modes were measured.
        again: Where it was, the line that measures it and those after it, or goes without where no other was asked for.
        findings: What is wrong.
    """

    toolchain: Toolchain
    graph_breaks: tuple[Any, ...]
    fullgraph: bool
    graphs: GraphReport
    modes: tuple[ModeTime, ...]
    recommended: str | None
    recommendation: Recommendation | None
    config_lines: tuple[str, ...]
    threads: dict[str, int]
    device: str
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    again: str = ""
    findings: tuple[Finding, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}

    @property
    def healthy(self) -> bool:
        """Whether nothing keeps the network from being compiled."""
        return not any(found.severity is Severity.ERROR for found in self.findings)


def compile(  # noqa: PLR0913  the function is the command: one argument an option
    config: str | Path,
    *,
    overrides: Sequence[str] = (),
    modes: Sequence[str] = (),
    steps: int = 5,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    device: str | None = None,
    observer: Observer | None = None,
) -> CompileResult:
    """Trace the network of a configuration, and measure the modes of the compiler on its first batch.

    An interruption ends it early; what was measured by then is returned, where eager is among it.

    Args:
        config: YAML file or run directory.
        overrides: ``key=value`` settings that go before the file's.
        modes: Modes that are measured; without, those that differ on the device, each for no longer than the whole
            planned run takes without a compiler.
        steps: Measured steps of each mode.
        timeout_s: Longest time of everything that is measured, tracing the network included.
        device: Device; the configuration's without.
        observer: Receives progress.

    Raises:
        XecError: Anything the user can act on.
    """
    path = Path(config).expanduser()
    loaded = load_config(path / CONFIG_FILE if path.is_dir() else path, overrides).config
    target = resolve_device(device or loaded.training.device)
    watching, asked = observer or NullObserver(), bool(modes)
    modes = _wanted(modes, modes_of(target.type), steps, timeout_s)
    toolchain, deadline = _toolchain(target), time.monotonic() + timeout_s
    subject = of_config(loaded, None, str(target), max_events=None)
    watching.phase("tracing the network", 0)
    try:
        graphs = _graphs(subject)
    finally:
        subject.close()
    measured = [mode for mode in modes if mode == "none" or not toolchain.missing]
    batches = LoadingSubject.of(loaded).plan(loaded.data.chunksize).num_steps * loaded.training.epochs
    race = partial(measure_modes, loaded, measured, str(target), steps, deadline - time.monotonic())
    times = _until_interrupted(race, None if asked else batches, watching)
    best = recommend(times, batches, usable_modes(times))
    command, configured = _command(config, overrides, device), _configured(loaded, device, batches)
    facts = CompileFacts(toolchain, graphs, times, configured, compile_is_suppressed(), command, timeout_s)
    interrupted = len(times) < len(measured)
    return CompileResult(
        toolchain=toolchain,
        graph_breaks=graphs.breaks,
        fullgraph=graphs.graphs == 1 and not graphs.breaks,
        graphs=graphs,
        modes=times,
        recommended=None if best is None else best.mode,
        recommendation=best,
        config_lines=() if interrupted else _lines(best, configured),
        threads=_threads(),
        device=str(target),
        notes=_notes(times),
        interrupted=interrupted,
        again=_again(f"{command} --steps {steps} --timeout {timeout_s:g}", measured, len(times)) if interrupted else "",
        findings=findings_of(facts),
    )


def _command(config: str | Path, overrides: Sequence[str], device: str | None) -> str:
    """Return the command that measures the same configuration on the same device."""
    again = ["xectool", "diagnose", "compile", str(config), *(f"--set={setting}" for setting in overrides)]
    return shlex.join([*again, *(("--device", device) if device else ())])


def _lines(best: Recommendation | None, configured: str) -> tuple[str, ...]:
    return () if best is None or best.mode == configured else (f"training.compile: {best.mode}",)


def _until_interrupted(
    race: Callable[..., Iterator[ModeTime]], run_batches: int | None, observer: Observer
) -> tuple[ModeTime, ...]:
    """Return what was measured until an interruption, and tell of each as it comes.

    Args:
        race: Measures the modes.
        run_batches: Batches of the planned run, beyond whose eager time no mode is measured; None without that limit.
        observer: Receives progress.

    Raises:
        KeyboardInterrupt: Not even eager was measured.
    """

    def begin(mode: str, limit_s: float, compile_s: float) -> None:
        compiling = f", {duration(compile_s)} of it to compile" if compile_s < limit_s else ""
        observer.phase(f"measuring {mode}, for {duration(limit_s)} at most{compiling}", 0)

    done: list[ModeTime] = []
    try:
        for found in race(run_batches=run_batches, begin=begin):
            done.append(found)
            told = f"compiled in {duration(found.compile_s)}, " if found.compile_s else ""
            observer.message(f"{found.mode}: {found.error or f'{told}a step takes {found.step_ms:.4g} ms'}")
    except KeyboardInterrupt:
        if not done:
            raise
    return tuple(done)


def _again(command: str, modes: Sequence[str], done: int) -> str:
    return (
        "--set training.compile=none" if len(modes) <= done + 1 == 2 else f"{command} --modes {','.join(modes[done:])}"
    )


def _wanted(modes: Sequence[str], known: Sequence[str], steps: int, timeout_s: float) -> Sequence[str]:
    every = (*modes_of("cuda"),)
    for mode in modes:
        if mode not in every:
            raise UsageError(f"unknown mode '{mode}'", where="--modes", fix=f"--modes {','.join(known)}")
    if steps < 1 or timeout_s <= 0:
        raise UsageError(f"{steps} steps in {timeout_s:g} s are nothing to measure", where="--steps", fix="--steps 5")
    return list(dict.fromkeys(("none", *modes))) if modes else known


def _graphs(subject: Subject) -> GraphReport:
    assert subject.plan is not None
    return inspect_graphs(subject.bench, epoch_batches(subject.plan, subject.batches()))


def _toolchain(device: Any) -> Toolchain:
    triton = importlib.util.find_spec("triton")
    name = cxx_compiler()
    return Toolchain(
        cxx=shutil.which(name) or "",
        triton=str(triton.origin or "") if triton else "",
        missing=missing_toolchain(device),
        suppressed=compile_is_suppressed(),
    )


def _configured(config: RunConfig, device: str | None, batches: int) -> str:
    """Return the mode that training takes: ``auto`` is decided by the device and the length of the run."""
    try:
        execution = plan_execution(config.training, device)
        return compiled_where_it_pays(execution, batches, config.distributed.num_gpus).compile_mode or "none"
    except DeviceError:  # what it asks for cannot work here, which is a finding of its own
        return config.training.compile


def _threads() -> dict[str, int]:
    return {
        "training": compile_threads(),
        # PyTorch knows of no quota.
        "pytorch": min(_INDUCTOR_THREADS, allowed_cpus()),
        "cores": num_cores(),
        "memory_bytes": available_memory(),
    }


def _notes(times: Sequence[ModeTime]) -> tuple[str, ...]:
    done = [found for found in times if found.cache_dir and found.mode != "none"]
    hits = [found.mode for found in done if found.cache_hits]
    notes = [f"kernels are kept in {done[0].cache_dir}; a training of this network finds them there"] if done else []
    if hits:
        notes.append(f"{', '.join(hits)}: some kernels came from there, so a first compilation takes longer")
    return tuple(notes)
