"""``python -m benchmarks.gpu``: what only a GPU can show; prints the tables of docs/benchmarks.md.

Predicted peaks against what PyTorch's CUDA allocator held, configurations drawn at random as in ``benchmarks.memory``;
the largest batch that is predicted to fit, really trained; the time of a step in each precision and mode of
``torch.compile`` beside the plain network of ``benchmarks.model_step``. Steps are prepared in processes side by side,
so that compilations overlap, and measured one at a time; those that are compiled, for minutes, come last.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from xectool.config.load import config_from_dict
from xectool.data.batch import EventBatch
from xectool.training.memory_estimate.child import ask
from xectool.training.memory_estimate.device import CONTEXT_BYTES, WORKSPACE_BYTES, Device, largest_batch
from xectool.training.memory_estimate.measure import random_batch, real_stepper
from xectool.training.memory_estimate.plan import line, plan
from xectool.training.memory_estimate.request import StepRequest
from xectool.training.stepping.step import Stepper

from benchmarks.memory import KINDS, drawn, request_of
from benchmarks.model_step import LR, PlainStep, configuration

PLAIN = "plain"
MODES = ("none", "default", "reduce-overhead")
MEASURED_S = 2.0
SIDE_BY_SIDE = 4  # of processes whose memory is measured


def main() -> None:
    """Print what was measured on this machine's GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--configs", type=int, default=4, help="of each kind whose memory is compared; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sizes", type=json.loads, default=[[1024, 64], [256, 128]], help="[[width, batch]]")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--no-largest", action="store_true", help="leave out the largest batch, which fills the device")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        PARTS[options.one.pop("part")](**options.one)
        return
    print(machine(options.device), flush=True)
    if options.configs:
        memory_table(options.device, options.configs, options.seed)
    step_table(options.device, options.sizes, options.modes.split(","))
    if not options.no_largest:
        largest_row(options.device)


def machine(device: str) -> str:
    """Return date, device and versions in one line."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    return f"{time.strftime('%Y-%m-%d')}, {name}, torch {torch.__version__}, CUDA {torch.version.cuda}\n"


def memory_table(device: str, count: int, seed: int) -> None:
    """Print predicted and real peaks of the allocator."""
    chance = random.Random(seed)
    configs = [(kind, larger(drawn(kind, chance), chance)) for kind in KINDS for _ in range(count)]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        asked = [{"part": "peak", "config": config, "device": device} for _, config in configs]
        measured = pool.map(lambda case: answer(start(case)), asked)
    tapes = ask({str(number): on_gpu(config) for number, (_, config) in enumerate(configs)}, 1).recordings
    print("| kind | batch x accum | width | precision | predicted MB | allocator MB | off |")
    print("|---|---|---|---|---|---|---|", flush=True)
    card = Device(device, 0, is_gpu=device.startswith("cuda"))
    for (kind, config), tape, found in zip(configs, tapes, measured, strict=True):
        predicted, real = card.tensors(tape) + WORKSPACE_BYTES, found.get("peak", 0)
        off = f"{100 * (predicted / real - 1):+.2f} %" if real else "failed" if not found else ""
        training, size = config["training"], config["data"]["batch_size"]
        cells = [kind, f"{size} x {training['grad_accum_steps']}", config["model"]["encoder_dim"], training["amp"]]
        print(row(*cells, f"{predicted / 1e6:.1f}", f"{real / 1e6:.1f}", off), flush=True)
    print(flush=True)


def on_gpu(config: Mapping[str, Any]) -> StepRequest:
    """Return the step to tape as a GPU takes it."""
    return replace(request_of(config), on_gpu=True)


def larger(config: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return a configuration with batches as a GPU takes them."""
    return config | {"data": {"batch_size": chance.choice([16, 24, 32, 48])}}


def peak(config: Mapping[str, Any], device: str) -> None:
    """Print the allocator's peak over some steps, and what the process holds beside the allocator."""
    run, request, place = config_from_dict(config, "benchmark"), request_of(config), torch.device(device)
    stepper = real_stepper(run, request.amp, place)
    for number in range(3):
        first = number * request.accum
        window = [random_batch(run, request.batch_size, first + index) for index in range(request.accum)]
        stepper.run(window, run.training.lr)
    tell(
        {"peak": torch.cuda.max_memory_allocated(place) if place.type == "cuda" else 0, "context": context_bytes(place)}
    )


def context_bytes(place: torch.device) -> int:
    """Return what is held of the device beside the allocator's, as the driver counts it; of this process if alone."""
    if place.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(place)
    return total - free - torch.cuda.memory_reserved(place)


def largest_row(device: str) -> None:
    """Train the largest batch that is said to fit, and say what it took."""
    total = torch.cuda.get_device_properties(device).total_memory
    card = Device(device, total, is_gpu=True)
    config = configuration(1024, 64).to_dict()
    config["training"]["amp"] = "bf16"
    run = config_from_dict(config, "benchmark")
    asked = plan(run, "bf16", (1.0, 1.0), True, False, on_gpu=True)
    tapes = dict(zip(asked.requests, ask(asked.requests, 1).recordings, strict=True))
    at = line(tapes)
    assert at is not None, "memory is no straight line in the batch"
    batch = largest_batch(card, at)
    config["data"]["batch_size"] = batch
    real = answer(start({"part": "peak", "config": config, "device": device}))
    said = f"largest batch, width 1024, bf16, of {total / 1e9:.1f} GB: {batch} events"
    if not real:
        print(f"{said}, and they do not fit")
        return
    tensors, taken = card.tensors(at(batch)) + WORKSPACE_BYTES, real["peak"]
    held = f"predicted {card.needed(at(batch)) / 1e9:.2f} GB, of it the allocator's {tensors / 1e9:.2f}"
    really = f"really {taken / 1e9:.2f} ({100 * (tensors / taken - 1):+.2f} %)"
    context = f"{CONTEXT_BYTES / 1e9:.2f}, really {real['context'] / 1e9:.2f}"
    print(f"{said}; {held}, {really}, and the context's {context}")


def row(*cells: object) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def step_table(device: str, sizes: Sequence[Sequence[int]], modes: Sequence[str]) -> None:
    """Print the time of a step in each precision and mode."""
    print("| width | batch | precision | mode | first steps s | step ms | events/s | of plain | peak GB | skips |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    plain: dict[tuple[Any, ...], float] = {}
    for group in ((PLAIN, "none"), tuple(mode for mode in modes if mode != "none")):
        cases = [
            {"part": "step", "width": width, "batch_size": batch, "amp": amp, "mode": mode, "device": device}
            for width, batch in sizes
            for amp in ("off", "bf16")
            for mode in group
            if amp == "bf16" or mode != "reduce-overhead"
        ]
        step_rows(cases, plain)


def step_rows(cases: Sequence[dict[str, Any]], plain: dict[tuple[Any, ...], float]) -> None:
    """Print the rows of cases that are prepared side by side; ``plain`` holds the times of the plain network."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        children = [start(case | {"ready": directory, "all": len(cases)}) for case in cases]
        signs = stack.enter_context(ThreadPoolExecutor(1))
        signs.submit(sign_for_the_gone, children, Path(directory))
        for case, child in zip(cases, children, strict=True):
            found, size = answer(child), (case["width"], case["batch_size"], case["amp"])
            if not found:
                print(row(*size, case["mode"], "failed"), flush=True)
                continue
            ms, held = found["step_ms"], f"{found['peak'] / 1e9:.2f}"
            if case["mode"] == PLAIN:
                plain[size] = ms
            numbers = [f"{found['first_s']:.0f}", f"{ms:.2f}", f"{1e3 * case['batch_size'] / ms:.0f}"]
            ratio = f"{plain[size] / ms:.2f}" if size in plain else ""
            print(row(*size, case["mode"], *numbers, ratio, held, found["skips"]), flush=True)


def step(**case: Any) -> None:
    """Print the time of a step of one case, measured while no other is."""
    place, began = torch.device(case["device"]), time.perf_counter()
    with alone(Path(case["ready"]), case["all"]) as ready:
        batches = [random_batch(configuration(*size_of(case)), case["batch_size"], number) for number in range(4)]
        once = step_of(case, place)
        for batch in batches[:3]:
            once(batch)
        wait(place)
        took = time.perf_counter() - began
        ready()
        if place.type == "cuda":
            torch.cuda.reset_peak_memory_stats(place)
        times: list[float] = []
        while sum(times) < MEASURED_S or len(times) < 5:
            since = time.perf_counter()
            once(batches[len(times) % 4])
            wait(place)
            times.append(time.perf_counter() - since)
    middle = statistics.median(times)
    skipped = torch._dynamo.utils.counters["inductor"].get("cudagraph_skips", 0)
    held = torch.cuda.max_memory_allocated(place) if place.type == "cuda" else 0
    tell({"first_s": max(0.0, took - 3 * middle), "step_ms": 1e3 * middle, "peak": held, "skips": skipped})


def size_of(case: Mapping[str, Any]) -> tuple[int, int]:
    """Return width and batch of a case."""
    return case["width"], case["batch_size"]


def step_of(case: Mapping[str, Any], place: torch.device) -> Callable[[EventBatch], object]:
    """Return what takes one step of a case."""
    mode = None if case["mode"] in (PLAIN, "none") else case["mode"]
    ours = real_stepper(configuration(*size_of(case)), case["amp"], place, mode)
    if case["mode"] == PLAIN:
        return plain_step(ours, case, place)
    return lambda batch: ours.run([batch], LR)


def plain_step(ours: Stepper, case: Mapping[str, Any], place: torch.device) -> Callable[[EventBatch], object]:
    """Return the step of the plain network, which is given normalised readings; nothing else of ours is kept."""
    plain = PlainStep(ours.model, case["width"])
    plain.model.to(place)
    plain.average.to(place)
    normalizer, autocast = ours.model.get_submodule("normalizer"), ours.execution.autocast

    def once(batch: EventBatch) -> object:
        sent = batch.to(place, non_blocking=True)
        with torch.no_grad():
            readings = normalizer(sent.npho, sent.time)
        with autocast():
            return plain.run(readings, dict(sent.targets))

    return once


@contextmanager
def alone(directory: Path, everyone: int) -> Iterator[Callable[[], None]]:
    """Yield what waits until all are ready, or have failed, and then until nobody else measures."""
    with ExitStack() as stack:
        sign = directory / f"ready-{os.getpid()}"
        stack.callback(sign.touch)

        def ready() -> None:
            sign.touch()
            while len(list(directory.glob("ready-*"))) < everyone:
                time.sleep(0.05)
            turn = stack.enter_context((directory / "turn").open("w"))
            fcntl.flock(turn, fcntl.LOCK_EX)

        yield ready


def sign_for_the_gone(children: Sequence[subprocess.Popen[str]], directory: Path) -> None:
    """Until all have ended, leave the sign of each that has, as one that is killed leaves none."""
    left = list(children)
    while left:
        for child in [child for child in left if child.poll() is not None]:
            (directory / f"ready-{child.pid}").touch()
            left.remove(child)
        time.sleep(0.1)


def wait(place: torch.device) -> None:
    """Wait for the device."""
    if place.type == "cuda":
        torch.cuda.synchronize(place)


def start(case: Mapping[str, Any]) -> subprocess.Popen[str]:
    """Begin one case in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu", "--one", json.dumps(case)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a case told in its last line; nothing where it failed, and the screen says of what."""
    told, _ = child.communicate()
    found: dict[str, Any] = json.loads(told.strip().splitlines()[-1]) if child.returncode == 0 else {}
    return found


def tell(found: Mapping[str, Any]) -> None:
    """Print the answer of a case."""
    print(json.dumps(found), flush=True)


PARTS: dict[str, Callable[..., None]] = {"peak": peak, "step": step}

if __name__ == "__main__":
    main()
