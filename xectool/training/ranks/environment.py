"""What the environment says about the other ranks, as torchrun and ``xectool train --nproc`` set it."""

from __future__ import annotations

import os
from typing import Final

import torch
import torch.distributed as dist

from xectool.errors import UsageError

VARIABLES: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def started_by_launcher() -> bool:
    """Return whether this process is one of several ranks that torchrun or ``xectool train --nproc`` has started.

    Raises:
        UsageError: Some of the variables that say so are missing or make no sense.
    """
    given = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    if not ("RANK" in given or given.get("WORLD_SIZE", "1") != "1"):
        return False
    missing = [name for name in VARIABLES if name not in given and name != "LOCAL_RANK"]
    if missing:
        named = ", ".join(f"{name}={value}" for name, value in given.items())
        raise UsageError(
            f"the environment has {named} but not {', '.join(missing)}: this is no complete job",
            where="environment",
            fix=f"unset {' '.join(given)}   # or: torchrun --nproc-per-node 2 -m xectool train CONFIG",
            code="XT-RANK-ENVIRONMENT",
        )
    wrong = [name for name in VARIABLES[:3] if not given.get(name, "0").isdigit()]
    if wrong or int(given["RANK"]) >= int(given["WORLD_SIZE"]):
        raise UsageError(
            f"RANK={given['RANK']} of WORLD_SIZE={given['WORLD_SIZE']} cannot be",
            where="environment",
            fix="torchrun --nproc-per-node 2 -m xectool train CONFIG",
            code="XT-RANK-ENVIRONMENT",
        )
    if int(given["WORLD_SIZE"]) > 1 and os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        raise UsageError(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL crashes the process in DistributedDataParallel (torch 2.13)",
            where="environment",
            fix="unset TORCH_DISTRIBUTED_DEBUG   # xectool diagnose distributed checks the collectives",
            code="XT-RANK-ENVIRONMENT",
        )
    return int(given["WORLD_SIZE"]) > 1


def local_rank() -> int:
    """Return the index of this process among those of its machine."""
    return int(os.environ.get("LOCAL_RANK") or os.environ.get("RANK") or 0)


def device_of_rank(name: str) -> str:
    """Return the device that this process computes on where a run is asked to use ``name``: a GPU of its own a rank.

    Raises:
        UsageError: All ranks are asked to use the same GPU.
    """
    if not started_by_launcher() or name not in ("auto", "cuda") or not torch.cuda.is_available():
        if ":" in name and started_by_launcher() and int(os.environ.get("LOCAL_WORLD_SIZE") or 1) > 1:
            raise UsageError(
                f"all ranks of this machine cannot share {name}",
                where="training.device or --device",
                fix="--device cuda   # each rank takes the GPU of its number",
                code="XT-RANK-ENVIRONMENT",
            )
        return name
    return f"cuda:{local_rank()}"


def backend_of(wanted: str, device: torch.device) -> str:
    """Return the backend of a group; numbers of the host always travel by gloo, also beside nccl."""
    nccl = wanted == "nccl" or (wanted == "auto" and device.type == "cuda")
    if nccl and not dist.is_nccl_available():
        raise UsageError(
            "this build of PyTorch has no NCCL",
            where="distributed.backend",
            fix="--set distributed.backend=gloo",
            code="XT-NCCL-MISSING",
        )
    if device.type == "cuda":
        return "cpu:gloo,cuda:nccl" if nccl else "cpu:gloo,cuda:gloo"
    return "gloo"
