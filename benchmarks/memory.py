"""``python -m benchmarks.memory``: predicted peaks against what PyTorch's CPU allocator really did.

The estimate runs the step without data. The measurement shares nothing with it but the step: it runs on real events,
and the profiler counts what the allocator hands out and takes back. Configurations are drawn at random.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from xectool.config.load import config_from_dict
from xectool.training.memory_estimate.child import ask
from xectool.training.memory_estimate.request import StepRequest

KINDS = ("regressor", "mae", "inpainter")


def drawn(kind: str, chance: random.Random) -> dict[str, Any]:
    """Return a configuration of a kind with random sizes and options, small enough for a laptop."""
    model: dict[str, Any] = {
        "encoder_dim": chance.choice([32, 64, 96, 160, 256, 512]),
        "outer_fine_pool": chance.choice([None, [3, 3], [5, 3], [15, 9]]),
        "num_fusion_layers": chance.choice([1, 2, 4]),
        "dropout": chance.choice([0.0, 0.1]),
        "outer_mode": "finegrid",
    }
    if chance.random() < 0.25:
        model |= {"outer_mode": "split", "outer_fine_pool": None}
    training: dict[str, Any] = {
        "amp": chance.choice(["off", "off", "bf16"]),
        "ema_decay": chance.choice([None, 0.99]),
        "grad_accum_steps": chance.choice([1, 1, 2, 3]),
        "activation_checkpointing": chance.choice(["none", "none", "stages"]),
    }
    config: dict[str, Any] = {"kind": kind, "data": {"batch_size": chance.choice([3, 4, 7, 8, 12])}}
    if kind == "regressor":
        names = chance.sample(["angle", "energy", "timing", "uvwFI"], chance.randint(1, 4))
        config["tasks"] = {name: {"enabled": True, "scale": 1.0, "shift": 0.0} for name in names}
        training["channel_dropout_rate"] = chance.choice([0.0, 0.1])
    if kind == "mae":
        model |= {"decoder_dim": chance.choice([16, 64, 128]), "mask_ratio": chance.choice([0.4, 0.6, 0.75])}
    if kind == "inpainter":
        model |= {
            "head_type": chance.choice(["per_face", "cross_attention"]),
            "freeze_encoder": chance.choice([True, False]),
            "mask_ratio": chance.choice([0.02, 0.05, 0.1]),
            "predict_channels": chance.choice([["npho"], ["npho", "time"]]),
        }
    return config | {"model": model, "training": training}


def request_of(config: Mapping[str, Any]) -> StepRequest:
    """Return the step to tape: all readings valid, as in the measurement."""
    whole = config_from_dict(config, "benchmark")
    training = whole.training
    return StepRequest(whole.to_dict(), whole.data.batch_size, training.grad_accum_steps, training.amp, 0, 1.0, 1.0)


def allocator_peaks(configs: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the allocator's peak of a step of each configuration, with real tensors, in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", "--allocator", json.dumps(configs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def allocator_peak(config: Mapping[str, Any]) -> int:
    """Return the allocator's peak over two steps, by the profiler's memory events."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    from xectool.training.memory_estimate.measure import random_batch, real_stepper

    request = request_of(config)
    run = config_from_dict(config, "benchmark")
    stepper = real_stepper(run, request.amp, torch.device("cpu"))
    held = {}
    for module in (stepper.model, stepper.task, stepper.average.best_model):
        for tensor in (*module.parameters(), *module.buffers()):
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for number in range(2):
            first = number * request.accum
            window = [random_batch(run, request.batch_size, first + index) for index in range(request.accum)]
            stepper.run(window, run.training.lr)
    return sum(held.values()) + recorded_peak(profiler)


def recorded_peak(profiler: Any) -> int:
    """Return the most bytes that were alive of what a profiler saw allocated and freed."""
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def main() -> None:
    """Print one row a configuration and a summary for each kind and precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", type=int, default=12, help="configurations of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--allocator", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.allocator:
        print(json.dumps([allocator_peak(config) for config in json.loads(options.allocator)]))
    else:
        _allocated(options.kinds.split(","), options.configs, options.seed)


def _allocated(kinds: Sequence[str], count: int, seed: int) -> None:
    chance, errors = random.Random(seed), dict[tuple[str, str], list[float]]()
    print(
        "| kind | batch x accum | width | options | predicted MB | allocator MB | off |\n|---|---|---|---|---|---|---|"
    )
    for kind in kinds:
        configs = [drawn(kind, chance) for _ in range(count)]
        answer = ask({str(number): request_of(config) for number, config in enumerate(configs)}, 1)
        for config, tape, real in zip(configs, answer.recordings, allocator_peaks(configs), strict=True):
            errors.setdefault((kind, config["training"]["amp"]), []).append(tape.peak() / real - 1)
            print(_row(kind, config, tape.peak(), real), flush=True)
    print()
    for (kind, amp), offs in errors.items():
        worst, middle = 100 * max(map(abs, offs)), 100 * statistics.median(offs)
        print(f"{kind}, {amp}: {len(offs)} configurations, worst {worst:.2f} %, median {middle:+.2f} %")


def _row(kind: str, config: Mapping[str, Any], predicted: int, real: int) -> str:
    model, training = config["model"], config["training"]
    left_out = ("encoder_dim", "dropout", "grad_accum_steps")
    named = " ".join(f"{key}={value}" for key, value in (model | training).items() if key not in left_out)
    size = f"{config['data']['batch_size']} x {training['grad_accum_steps']}"
    values = f"{predicted / 1e6:.2f} | {real / 1e6:.2f} | {100 * (predicted / real - 1):+.3f} %"
    return f"| {kind} | {size} | {model['encoder_dim']} | {named} | {values} |"


if __name__ == "__main__":
    main()
