"""The errors are provoked here with the installed versions, and what they really print is classified."""

from __future__ import annotations

import sqlite3
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch
import uproot
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from xectool import engine

Classify = Callable[[Callable[[], object]], str]


class Four(Dataset[int]):
    """Four events that cannot be read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return {"a": index}["npho"]


class Stream(IterableDataset[int]):
    """One event."""

    def __iter__(self) -> Iterator[int]:
        yield 1


@pytest.fixture
def classify(tmp_path: Path) -> Classify:
    def run(fail: Callable[[], object]) -> str:
        with pytest.raises(Exception, match=r"(?s).*") as raised:
            fail()
        text = "".join(traceback.format_exception(raised.value))
        (tmp_path / "provoked.log").write_text(f"step 1 loss 0.5\n{text}")
        return engine.diagnose.log([tmp_path / "provoked.log"]).causes[0].code

    return run


LOADER = [
    ("XT-CFG-WORKERS", lambda: DataLoader(Four(), prefetch_factor=2)),
    ("XT-CFG-WORKERS", lambda: DataLoader(Four(), persistent_workers=True)),
    ("XT-CFG-WORKERS", lambda: DataLoader(Four(), multiprocessing_context="spawn")),
    ("XT-CFG-WORKERS", lambda: list(DataLoader(Four(), timeout=3))),
    ("CFG-35", lambda: DataLoader(Four(), batch_size=None, drop_last=True)),
    ("XT-LOADER-SHUFFLE", lambda: DataLoader(Stream(), shuffle=True)),
    ("XT-LOADER-SHUFFLE", lambda: len(DataLoader(Stream()))),
]


@pytest.mark.parametrize(("code", "fail"), LOADER)
def test_loader_options(classify: Classify, code: str, fail: Callable[[], object]) -> None:
    assert classify(fail) == code


def stepped_too_far() -> None:
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=3)
    for _ in range(5):
        optimizer.step()
        schedule.step()


def two_groups() -> None:
    layer = nn.Linear(2, 2)
    parts = torch.optim.AdamW([{"params": [layer.weight]}, {"params": [layer.bias]}])
    torch.optim.AdamW(layer.parameters()).load_state_dict(parts.state_dict())


def nan_gradient() -> None:
    layer = nn.Linear(2, 2)
    layer.weight.grad = torch.full((2, 2), float("nan"))
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0, error_if_nonfinite=True)


TORCH = [
    ("XT-CKPT-MISMATCH", lambda: nn.Linear(2, 3).load_state_dict({"module.weight": torch.ones(3, 2)})),
    ("XT-CKPT-MISMATCH", lambda: nn.Linear(2, 3).load_state_dict(nn.Linear(2, 2).state_dict())),
    ("XT-CKPT-OPTIMIZER", two_groups),
    ("XT-SCHEDULE-OVERRUN", stepped_too_far),
    (
        "XT-OLD-API",
        lambda: torch.optim.lr_scheduler.ReduceLROnPlateau(
            torch.optim.AdamW(nn.Linear(1, 1).parameters()),
            verbose=True,  # type: ignore[call-arg]
        ),
    ),
    ("XT-NAN-GRAD", nan_gradient),
    ("XT-COMPILE-MODE", lambda: torch.compile(nn.Linear(2, 2), mode="fast")),
    ("XT-DEVICE", lambda: torch.ones(1).cuda()),
]


@pytest.mark.parametrize(("code", "fail"), TORCH, ids=lambda value: getattr(value, "__name__", value))
def test_models_optimizers_and_schedules(classify: Classify, code: str, fail: Callable[[], object]) -> None:
    if code == "XT-DEVICE" and torch.cuda.is_available():
        pytest.skip("a GPU is here")
    assert classify(fail) == code


def saved(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


@pytest.mark.parametrize("cut", [0.0, 0.3, 0.9])
def test_truncated_checkpoints(classify: Classify, tmp_path: Path, cut: float) -> None:
    path = saved(tmp_path / "c.pt", {"weight": torch.ones(500)})
    path.write_bytes(path.read_bytes()[: int(cut * path.stat().st_size)])
    assert classify(lambda: torch.load(path)) == "XT-CKPT-CORRUPT"


def test_a_text_in_place_of_a_checkpoint(classify: Classify, tmp_path: Path) -> None:
    (tmp_path / "c.pt").write_text("hello world")
    assert classify(lambda: torch.load(tmp_path / "c.pt")) == "XT-CKPT-CORRUPT"


def test_a_checkpoint_with_objects(classify: Classify, tmp_path: Path) -> None:
    path = saved(tmp_path / "c.pt", {"epoch": np.float64(3)})
    assert classify(lambda: torch.load(path)) == "XT-CKPT-UNSAFE"


@pytest.fixture
def root_file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    with uproot.recreate(tmp_path / "f.root") as file:
        file.mktree("tree", {"npho": ("f4", (200,))}).extend({"npho": rng.normal(size=(50, 200)).astype("f4")})
    return tmp_path / "f.root"


def test_root_files(classify: Classify, root_file: Path, tmp_path: Path) -> None:
    whole = root_file.read_bytes()
    (tmp_path / "cut.root").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "web.root").write_bytes(b"<html>404 not here</html>" * 40)
    assert classify(lambda: uproot.open(root_file)["treee"]) == "XT-ROOT-MISSING-KEY"
    assert classify(lambda: uproot.open(root_file)["tree"]["nphoo"]) == "XT-ROOT-MISSING-KEY"
    assert classify(lambda: uproot.open(tmp_path / "web.root")) == "XT-ROOT-NOT-ROOT"
    assert classify(lambda: uproot.open(tmp_path / "cut.root")["tree"]["npho"].array()) == "XT-ROOT-TRUNCATED"


def test_a_damaged_basket(classify: Classify, root_file: Path, tmp_path: Path) -> None:
    whole = bytearray(root_file.read_bytes())
    with uproot.open(root_file) as file:
        start = int(file["tree"]["npho"].member("fBasketSeek")[0])
    for place in range(start + 400, start + 420):
        whole[place] ^= 0xFF
    (tmp_path / "bad.root").write_bytes(bytes(whole))
    assert classify(lambda: uproot.open(tmp_path / "bad.root")["tree"]["npho"].array()) == "XT-ROOT-CORRUPT"


def test_a_locked_database(classify: Classify, tmp_path: Path) -> None:
    holder = sqlite3.connect(tmp_path / "m.db", isolation_level=None)
    holder.execute("CREATE TABLE t (x)")
    holder.execute("BEGIN EXCLUSIVE")
    other = sqlite3.connect(tmp_path / "m.db", timeout=0.1)
    assert classify(lambda: other.execute("INSERT INTO t VALUES (1)")) == "XT-DB-LOCKED"
    holder.close()
    other.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_a_changed_parameter_of_mlflow(classify: Classify, tmp_path: Path) -> None:
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/m.db")
    try:
        with mlflow.start_run():
            mlflow.log_param("lr", 1)
            assert classify(lambda: mlflow.log_param("lr", 2)) == "XT-TRACKER-PARAMS"
    finally:
        mlflow.set_tracking_uri(None)


WORKER = """
import os, signal, sys, time
from torch.utils.data import DataLoader, Dataset
class Fault(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        {fault}
if __name__ == "__main__":
    list(DataLoader(Fault(), num_workers=1, timeout={timeout}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "fault", "timeout"),
    [
        ("XT-OOM-HOST", "os.kill(os.getpid(), signal.SIGKILL)", 0),
        ("XT-WORKER-SEGV", "os.kill(os.getpid(), signal.SIGSEGV)", 0),
        ("XT-SHM", "os.kill(os.getpid(), signal.SIGBUS)", 0),
        ("XT-LOADER-STALL", "time.sleep(30)", 1),
        ("XT-WORKER-ERROR", "raise ZeroDivisionError('of mine')", 0),
    ],
)
def test_a_worker_that_dies(tmp_path: Path, warm: Any, code: str, fault: str, timeout: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(WORKER.format(fault=fault, timeout=timeout))
    done = warm.run(str(script))
    assert done.returncode != 0
    (tmp_path / "err.log").write_text(done.stderr)
    cause = engine.diagnose.log([tmp_path / "err.log"]).causes[0]
    assert cause.code == code, done.stderr
    if code == "XT-WORKER-ERROR":
        assert cause.problem.endswith("ZeroDivisionError: of mine")


RANKS = """
import datetime, os, sys, torch, torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], 2), rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=120))
dist.all_reduce(torch.ones(1))
{fault}
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.slow
def test_of_two_real_ranks_the_one_that_failed_is_told_first(tmp_path: Path, warm: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS.format(fault=textwrap.dedent("{}['npho'] if rank == 1 else None")))
    command, place = (str(script), str(tmp_path / "store")), {"GLOO_SOCKET_IFNAME": "lo"}
    with (tmp_path / "rank0.log").open("w") as first, (tmp_path / "rank1.log").open("w") as second:
        started = [
            warm.start(command[0], str(rank), command[1], streams=[log.fileno()] * 2, **place)
            for rank, log in enumerate((first, second))
        ]
        assert all(process.wait() != 0 for process in started)
    causes = engine.diagnose.log([tmp_path / "rank0.log", tmp_path / "rank1.log"]).causes
    assert (causes[0].rank, causes[0].problem.rsplit(": ", 2)[-2:]) == (1, ["KeyError", "'npho'"])
    assert causes[-1].code in ("XT-PEER-LOST", "XT-COLLECTIVE-TIMEOUT")
