"""One rank of the self-test of several processes: ``python -m xectool.probes.ranks.selftest OUT BACKEND TIMEOUT_S``.

Joins the group that its environment names, goes through every kind of collective a training uses, and measures two of
them. What it is at is in the file at any moment, so that a rank that hangs is known by what it hangs in.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist

from xectool.config.distributed import DistributedConfig
from xectool.errors import XecError
from xectool.runlog.atomic import write_json
from xectool.training.ranks.agreement import program_facts
from xectool.training.ranks.environment import device_of_rank
from xectool.training.ranks.group import RankGroup, joined

CHECKS: Final = ("rendezvous", "barrier", "broadcast", "all_reduce", "all_gather", "uneven", "store", "digests")
LATENCY_ROUNDS: Final = 50
BANDWIDTH_BYTES: Final = 16 << 20
BANDWIDTH_ROUNDS: Final = 3


class SelfTest:
    """Goes through the checks of one rank.

    Args:
        path: Where to say how it went.
        timeout_s: Longest wait in one collective.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        self.path, self.timeout_s = path, timeout_s
        self.facts: dict[str, Any] = {
            "rank": int(os.environ["RANK"]),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "device": "cpu",
            "checks": {},
            "at": "rendezvous",
            "error": "",
        }

    def check(self, name: str, work: Callable[[], bool]) -> None:
        """Run one check and note whether its answer was right, and how long it took."""
        self.facts["at"] = name
        write_json(self.path, self.facts, durable=False)
        began = time.perf_counter()
        right = work()
        self.facts["checks"][name] = {"ok": right, "seconds": time.perf_counter() - began}

    def run(self, ranks: RankGroup, device: torch.device) -> None:
        """Go through all checks after the rendezvous."""
        rank, world = ranks.rank, ranks.world_size

        def filled(value: float, size: int = 5) -> torch.Tensor:
            return torch.full((size,), value, dtype=torch.float64, device=device)

        self.check("barrier", lambda: dist.barrier() is None)
        self.check("broadcast", lambda: ranks.share(f"said by {rank}") == "said by 0")
        total = world * (world + 1) / 2
        self.check("all_reduce", lambda: bool((ranks.sum(filled(rank + 1.0)) == total).all()))
        self.check("all_gather", lambda: ranks.gather(rank) == list(range(world)))
        # a rank whose last batch is empty takes part with nothing
        self.check("uneven", lambda: bool((ranks.sum(filled(0.0 if rank else 7.0)) == 7.0).all()))
        self.check("store", lambda: ranks.on_first(lambda: time.sleep(0.1)) is None)
        self.check("digests", lambda: _same(ranks.gather(program_facts({}))))
        self.facts["at"] = "measurement"
        self.facts["latency_us"] = _latency_us(ranks, filled(1.0, 1))
        self.facts["bandwidth_gb_s"] = _bandwidth_gb_s(device)
        self.facts["at"] = "end"


def _same(everywhere: list[dict[str, str]]) -> bool:
    return all(values == everywhere[0] for values in everywhere)


def _latency_us(ranks: RankGroup, value: torch.Tensor) -> float:
    times = []
    for _ in range(LATENCY_ROUNDS):
        began = time.perf_counter()
        float(ranks.sum(value))
        times.append(time.perf_counter() - began)
    return 1e6 * median(times)


def _bandwidth_gb_s(device: torch.device) -> float:
    """Return the bytes of a buffer that are reduced in a second."""
    buffer = torch.zeros(BANDWIDTH_BYTES // 4, device=device)
    dist.all_reduce(buffer)
    began = time.perf_counter()
    for _ in range(BANDWIDTH_ROUNDS):
        dist.all_reduce(buffer)
    float(buffer[0])  # waits for the device
    return BANDWIDTH_ROUNDS * BANDWIDTH_BYTES / (time.perf_counter() - began) / 1e9


def main(argv: list[str]) -> int:
    """Test as one rank and return 0 when every answer was right."""
    test = SelfTest(Path(argv[0]), float(argv[2]))
    write_json(test.path, test.facts, durable=False)
    device = torch.device(device_of_rank("auto" if argv[1] == "nccl" else "cpu"))
    test.facts["device"] = str(device)
    config = DistributedConfig.model_validate({"backend": argv[1], "timeout_s": test.timeout_s})
    began = time.perf_counter()
    try:
        with joined(config, device) as ranks:
            test.facts["checks"]["rendezvous"] = {"ok": True, "seconds": time.perf_counter() - began}
            assert isinstance(ranks, RankGroup)
            test.run(ranks, device)
    except (XecError, RuntimeError, OSError) as error:
        test.facts["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    write_json(test.path, test.facts, durable=False)
    right = all(found["ok"] for found in test.facts["checks"].values())
    return 0 if right and not test.facts["error"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
