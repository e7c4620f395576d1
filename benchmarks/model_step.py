"""``python -m benchmarks.model_step``: a training step against the same network in plain PyTorch, in turn in one run.

Both take the whole step: channel dropout, forward, losses, backward, clipping, AdamW, moving average. Ours also
normalises its readings, looks for non-finite numbers and takes the norms of its blocks; the plain one gets normalised
readings. Weights are the same, outputs and gradients are compared first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from xectool.config.load import config_from_dict
from xectool.config.root import RunConfig
from xectool.data.batch import EventBatch
from xectool.training.memory_estimate.measure import random_batch, real_stepper
from xectool.training.process.heap import keep_freed_memory
from xectool.training.stepping.step import Stepper

from benchmarks.baselines.plain_model import PlainRegressor
from benchmarks.memory import recorded_peak
from benchmarks.pairs import compare

TASKS = ("angle", "energy", "timing", "uvwFI")
SIZES = ((1024, 16), (256, 32), (128, 32))
LR, DECAY, CLIP, AVERAGED = 1e-4, 1e-4, 1.0, 0.999
CURVE = (128, 4)


class PlainStep:
    """The step that a training script would have.

    Args:
        network: Weights are copied from it.
        width: Encoder width.
        dropout: Of the transformer and of sensors; the heads have twice as much.
    """

    def __init__(self, network: nn.Module, width: int, dropout: float = 0.1) -> None:
        self.dropout = dropout
        self.model = PlainRegressor(width, TASKS, dropout=dropout)
        self.model.load_state_dict(network.state_dict(), strict=False)
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        kept = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": DECAY}, {"params": kept, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=LR)
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(AVERAGED))

    def backward(self, x: Tensor, targets: dict[str, Tensor]) -> float:
        """Leave the gradients of the summed losses and return their value."""
        outputs = self.model(x)
        loss = torch.stack([F.smooth_l1_loss(outputs[name], targets[name]) for name in TASKS]).sum()
        loss.backward()
        return loss.item()

    def run(self, x: Tensor, targets: dict[str, Tensor]) -> float:
        """Take one step on normalised readings x (B, S, 2)."""
        self.optimizer.zero_grad()
        kept = torch.rand(x.shape[:2], device=x.device) >= self.dropout
        loss = self.backward(x * kept.unsqueeze(-1), targets)
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP).item()
        self.optimizer.step()
        self.average.update_parameters(self.model)
        return loss


@dataclass(frozen=True)
class Pair:
    """Both steps with the same weights, and a batch for each."""

    ours: Stepper
    plain: PlainStep
    batch: EventBatch
    x: Tensor

    def run_ours(self) -> None:
        """Take one step of ours."""
        assert self.ours.run([self.batch], LR).taken

    def run_plain(self) -> None:
        """Take one plain step."""
        self.plain.run(self.x, dict(self.batch.targets))


def pair_of(width: int, batch_size: int, dropout: float = 0.1) -> Pair:
    """Build both for one size."""
    config = configuration(width, batch_size, dropout)
    ours = real_stepper(config, "off", torch.device("cpu"))
    batch = random_batch(config, batch_size, 0)
    x: Tensor = ours.model.normalizer(batch.npho, batch.time)
    return Pair(ours, PlainStep(ours.model, width, dropout), batch, x)


def configuration(width: int, batch_size: int, dropout: float = 0.1) -> RunConfig:
    """Return our configuration of the plain step, with the geometry of the older system."""
    training = {
        "ema_decay": AVERAGED, "grad_clip": CLIP, "amp": "off", "lr": LR, "weight_decay": DECAY,
        "channel_dropout_rate": dropout,
    }  # fmt: skip
    return config_from_dict(
        {
            "kind": "regressor",
            "tasks": {name: {"enabled": True, "scale": 1.0, "shift": 0.0} for name in TASKS},
            "data": {"batch_size": batch_size},
            "model": {
                "encoder_dim": width, "geometry": "compat", "outer_fine_pool": None, "dropout": dropout,
                "head_dropout": 2 * dropout,
            },
            "training": training,
        },
        "benchmark",
    )  # fmt: skip


def differences(pair: Pair) -> tuple[float, float]:
    """Return the largest difference of an output, and of a gradient to the norm of its tensor, without dropout."""
    ours, plain = pair.ours.model.eval(), pair.plain.model.eval()
    outputs, expected = ours(pair.batch.npho, pair.batch.time), plain(pair.x)
    output = max(float((outputs[name] - expected[name]).abs().max()) for name in TASKS)
    for values in (outputs, expected):
        torch.stack([values[name].square().mean() for name in TASKS]).sum().backward()
    wanted = dict(plain.named_parameters())
    gradients = [
        float(torch.linalg.norm(p.grad - wanted[name].grad) / torch.linalg.norm(wanted[name].grad).clamp_min(1e-12))
        for name, p in ours.named_parameters()
        if p.grad is not None
    ]
    for network in (ours.train(), plain.train()):
        network.zero_grad(set_to_none=True)
    return output, max(gradients)


def curves(steps: int) -> dict[str, object]:
    """Return differences before the first step and the losses of some steps of both, without dropout."""
    width, batch_size = CURVE
    pair = pair_of(width, batch_size, dropout=0.0)
    output, gradient = differences(pair)
    ours, plain = [], []
    for number in range(steps):
        batch = random_batch(configuration(width, batch_size), batch_size, number)
        ours.append(pair.ours.run([batch], LR).loss)
        plain.append(pair.plain.run(pair.ours.model.normalizer(batch.npho, batch.time), dict(batch.targets)))
    return {"outputs": output, "gradients": gradient, "ours": ours, "plain": plain}


def allocator_peak(step: Callable[[], object], modules: list[nn.Module]) -> int:
    """Return the allocator's peak of a step by the profiler's memory events, with what the modules hold."""
    from torch.profiler import ProfilerActivity, profile

    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    held = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
        step()
    return sum(held.values()) + recorded_peak(profiler)


def peaks(pair: Pair) -> tuple[int, int]:
    """Return the peaks of both before their first step, in bytes: plain, ours."""
    ours, plain = pair.ours, pair.plain
    return (
        allocator_peak(pair.run_plain, [plain.model, plain.average.module]),
        allocator_peak(pair.run_ours, [ours.model, ours.average.best_model]),
    )


def report(width: int, batch_size: int, rounds: int) -> str:
    """Measure one size and return its row."""
    pair = pair_of(width, batch_size)
    output, gradient = differences(pair)
    plain_bytes, our_bytes = peaks(pair)
    result = compare("", pair.run_plain, pair.run_ours, rounds)
    cpu = [statistics.median(cost.cpu_s for cost in costs) for costs in (result.baseline, result.ours)]
    return (
        f"| {width} | {batch_size} | {1e3 * cpu[0]:.0f} | {1e3 * cpu[1]:.0f} | {result.ratio('cpu_s'):.2f} "
        f"| {result.ratio('wall_s'):.2f} | {plain_bytes / 1e6:.0f} | {our_bytes / 1e6:.0f} "
        f"| {our_bytes / plain_bytes:.2f} | {output:.1e} | {gradient:.1e} |"
    )


def main() -> None:
    """Print one row a size, each measured in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=json.loads, default=[list(size) for size in SIZES], help="[[width, batch], ..]")
    parser.add_argument("--keep", action="store_true", help="let the C library keep freed memory, as `train` does")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--curve", type=int, help="losses of so many steps of both networks, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if options.curve:
        print(json.dumps(curves(options.curve)))
        return
    if options.one:
        assert not options.keep or keep_freed_memory()
        print(report(*options.one, options.rounds))
        return
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}\n")
    print("| width | batch | plain ms CPU | ours ms CPU | CPU ratio | wall ratio | plain MB | ours MB | MB ratio "
          "| outputs | gradients |\n|---|---|---|---|---|---|---|---|---|---|---|", flush=True)  # fmt: skip
    for size in options.sizes:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.model_step", "--one", json.dumps(size)]
        kept = ["--keep"] if options.keep else []
        subprocess.run([*command, "--rounds", str(options.rounds), *kept], check=True)


if __name__ == "__main__":
    main()
