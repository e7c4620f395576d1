"""Several ranks take exactly the steps of one process with the batch of all of them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.distributed.rendezvous import rendezvous
from xectool.config.distributed import DistributedConfig
from xectool.data.plan import DataPlan, SourceFile
from xectool.errors import WorldError
from xectool.training.ranks.group import joined

Config = Callable[..., Path]
PROGRAM = Path(__file__).parent / "programs" / "steps.py"
KINDS = ("regressor", "mae", "inpainter")
pytestmark = pytest.mark.deep  # a bound below is a share of the weights
LR = 2e-5  # of AdamW: where a gradient is rounding noise, so is its step


@pytest.fixture(scope="module")
def configs(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[Path]]:
    """Configurations of every kind for a batch size; the 37 events fill no last batch on any number of ranks."""

    def write(batch_size: int) -> list[Path]:
        directory = tmp_path_factory.mktemp(f"b{batch_size}")
        return [one(kind, batch_size, directory) for kind in KINDS]

    def one(kind: str, batch_size: int, directory: Path) -> Path:
        sizes: dict[str, Any] = {"encoder_dim": 64, "num_fusion_layers": 1, "outer_fine_pool": [5, 3]}
        sizes["dropout"] = 0.0  # each rank draws its own, as it does of channel_dropout_rate
        own = {"mae": {"decoder_dim": 8}, "inpainter": {"freeze_encoder": False}, "regressor": {"hidden_dim": 8}}[kind]
        data = {"train_path": str(tiny_data / "train_*.root"), "val_path": str(tiny_data / "val.root"), "chunksize": 16}
        training = {"epochs": 1, "warmup_epochs": 0, "lr": LR, "grad_accum_steps": 2, "grad_clip": 0.5}
        training["channel_dropout_rate"] = 0.0
        content: dict[str, Any] = {
            "kind": kind,
            "data": {**data, "batch_size": batch_size},
            "model": {**sizes, **own},
            "training": training,
            "mlflow": {"enabled": False},
        }
        if kind == "regressor":
            content["model"]["head_dropout"] = 0.0
            content["loss_balance"] = "auto"
            content["tasks"] = {
                task: {"enabled": True, "scale": "auto", "shift": "auto"} for task in ("energy", "uvwFI")
            }
        path = directory / f"{kind}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.mark.slow
def test_two_ranks_take_the_steps_of_one_process_with_the_doubled_batch(
    configs: Callable[[int], list[Path]], run_ranks: Any, tmp_path: Path
) -> None:
    # 40 events, 12 a step: the last step has 4 of them
    for world_size, batch_size in ((2, 3), (1, 6)):
        for ended in run_ranks(world_size, PROGRAM, tmp_path, *configs(batch_size)):
            assert ended.returncode == 0, ended.stderr
    for kind in KINDS:
        one, first, second = (
            torch.load(tmp_path / f"{kind}.world{world}.rank{rank}.pt") for world, rank in ((1, 0), (2, 0), (2, 1))
        )
        assert len(one) == len(first) == len(second) == 4
        for alone, left, right in zip(one, first, second, strict=True):
            assert sorted(alone["own"]) == sorted(left["own"] + right["own"])
            assert alone["events"] == left["events"] == right["events"] == len(alone["own"])
            assert left["loss"] == right["loss"] == pytest.approx(alone["loss"], abs=1e-6)
            assert left["grad_norm"] == right["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-5)
            assert torch.equal(left["weights"], right["weights"])
            apart = (alone["weights"] - left["weights"]).abs()
            # AdamW divides a gradient by its own size: one that is next to nothing moves its weight by its rounding.
            assert int((apart > 1e-6).sum()) <= 1e-5 * len(apart), kind
            assert float(apart.max()) < LR, kind


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_files_of_any_size_give_every_rank_the_same_steps_and_each_event_once(world_size: int) -> None:
    files = [SourceFile(f"{count}.root", "tree", count) for count in (1, 7, 5000)]
    plan = DataPlan(files, batch_size=16, seed=3, world_size=world_size)
    served = [plan.batch_events(1, step, rank) for step in range(plan.num_steps) for rank in range(world_size)]
    events = [(int(f), int(e)) for files_of, entries in served for f, e in zip(files_of, entries, strict=True)]
    assert sorted(events) == [(index, entry) for index, count in enumerate((1, 7, 5000)) for entry in range(count)]


def test_a_port_that_is_taken_is_said_and_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        known = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_PORT": holder.getsockname()[1]}
        for name, value in (known | {"MASTER_ADDR": "127.0.0.1"}).items():
            monkeypatch.setenv(name, str(value))
        device, config = torch.device("cpu"), DistributedConfig(timeout_s=5.0)
        with pytest.raises(WorldError, match="taken") as caught, joined(config, device):
            pytest.fail("nobody came")
        assert caught.value.code == "XT-PORT"
        # without it: what torch says, which the command line would call a defect
        with pytest.raises(RuntimeError, match="EADDRINUSE"):
            next(rendezvous("env://", timeout=timedelta(seconds=5)))
