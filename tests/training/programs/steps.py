"""Take the steps of one epoch as one rank, or alone, and write what each did: ``steps.py OUT CONFIG...``.

A process alone begins each step from the state the two ranks began it from.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
from xectool.config.load import load_config
from xectool.training.process.device import apply_determinism, plan_execution
from xectool.training.ranks.group import joined
from xectool.training.stepping.build import build_parts, open_data

out, configs = Path(sys.argv[1]), sys.argv[2:]
for number, config in enumerate(configs):
    data = open_data(load_config(config, []).config)
    settings = data.config
    apply_determinism(True)
    execution = plan_execution(settings.training, "cpu")
    if number == 0:
        context = joined(settings.distributed, execution.device)
        ranks = context.__enter__()
    parts = build_parts(data, execution, ranks)
    parts.model.train()
    steps = []
    window = []
    for batch in parts.train_loader.epoch(1):
        window.append(batch)
        if len(window) < settings.training.grad_accum_steps and batch.step + 1 < parts.train_loader.num_steps:
            continue
        state = {"model": parts.model.state_dict(), "task": parts.task.state_dict()}
        state["optimizer"] = parts.stepper.optimizer.state_dict()
        before = copy.deepcopy(state)
        if ranks.world_size == 1:
            before = torch.load(out / f"{settings.kind}.world2.rank0.pt")[len(steps)]["before"]
            parts.model.load_state_dict(before["model"])
            parts.task.load_state_dict(before["task"])
            parts.stepper.optimizer.load_state_dict(before["optimizer"])
        result = parts.stepper.run(window, settings.training.lr)
        weights = torch.cat([p.detach().flatten() for p in parts.stepper.parameters()])
        identity = [[int(f), int(e)] for b in window for f, e in zip(b.file_index, b.entry, strict=True)]
        steps.append(
            {"loss": result.loss, "grad_norm": result.grad_norm, "weights": weights, "events": result.total_events,
             "own": identity, "before": before}
        )  # fmt: skip
        window = []
    parts.train_loader.close()
    torch.save(steps, out / f"{settings.kind}.world{ranks.world_size}.rank{ranks.rank}.pt")
context.__exit__(None, None, None)
