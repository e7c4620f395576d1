"""How long a rank waits for the gradients of the others, told apart from what its own backward pass takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from xectool.training.ranks.base import Ranks

PROGRAM = """
import json, sys, time
import torch
from torch import nn
from xectool.config.distributed import DistributedConfig
from xectool.training.ranks.group import joined

with joined(DistributedConfig(timeout_s=100), torch.device("cpu")) as ranks:
    # 5 MB: more than the first bucket of gradients, so that there are several
    network = ranks.parallel(nn.Sequential(nn.Linear(4, 600), nn.Linear(600, 2000), nn.Linear(2000, 3)))
    waits = []
    for slow_rank in (0, 1, None):
        out = network(torch.ones(2, 4))
        if ranks.rank == slow_rank:
            out.register_hook(lambda gradient: time.sleep(1.5))
        out.sum().backward()
        waits.append(ranks.gradient_wait_s)
    print(json.dumps(waits))
"""


@pytest.mark.slow
def test_the_rank_whose_gradients_come_last_waits_for_nobody(run_ranks: Any, tmp_path: Path) -> None:
    program = tmp_path / "waits.py"
    program.write_text(PROGRAM)
    ranks = run_ranks(2, program)
    assert [rank.returncode for rank in ranks] == [0, 0], ranks
    first, second = (json.loads(rank.stdout) for rank in ranks)
    assert second[0] > first[0] + 0.7
    assert first[1] > second[1] + 0.7


def test_a_single_process_waits_for_nobody() -> None:
    assert Ranks().gradient_wait_s == 0.0
