"""Whole runs on several ranks: stopped, killed, gone on with on another number of them; one rank in trouble."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import yaml
from xectool import engine
from xectool.checkpoint import store
from xectool.data.loader import EventLoader
from xectool.data.plan import DataPlan
from xectool.data.source import open_source
from xectool.engine.ranks.verdict import Ending, verdict_of
from xectool.errors import WorldError, XecError
from xectool.runlog.reader import RunReader

PROGRAM = Path(__file__).parent / "programs" / "faults.py"
SIZES = (1, 7, 30)
pytestmark = pytest.mark.usefixtures("shallow_module")


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that trains on files of 1, 7 and 30 events and validates on 13."""
    directory = tmp_path_factory.mktemp("uneven")
    for seed, events in enumerate((*SIZES, 13), start=1):
        name = f"train_{events:03d}.root" if seed <= len(SIZES) else "val.root"
        engine.simulate(str(directory / name), events=events, seed=seed)
    auto = {"enabled": True, "scale": "auto", "shift": "auto"}
    data = {"train_path": str(directory / "train_*.root"), "val_path": str(directory / "val.root")}
    content: dict[str, Any] = {
        "kind": "regressor",
        "data": {**data, "batch_size": 4, "chunksize": 16, "num_shards": 2},
        "model": {
            "encoder_dim": 32,
            "hidden_dim": 8,
            "outer_fine_pool": [5, 3],
            "num_fusion_layers": 1,
            "dropout": 0.0,
        },
        "tasks": {"energy": auto, "uvwFI": auto},
        "training": {"epochs": 1, "warmup_epochs": 0, "lr": 1e-5, "channel_dropout_rate": 0.0, "deterministic": True},
        "checkpoint": {"save_dir": str(directory / "runs"), "save_minutes": None, "save_artifacts": False},
        "mlflow": {"enabled": False},
    }
    content["model"] |= {"dropout": 0.0, "head_dropout": 0.0}
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def events_served(path: Path, parts: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Serve an epoch in parts, each (ranks, batch size, steps), every one going on where the last one stopped."""
    from xectool.config.load import load_config

    source = open_source(load_config(path, []).config.data, "train", tasks=("energy",), require_truth=True)
    served, position = [], 0
    for world_size, batch_size, steps in parts:
        plan = DataPlan(source.files, batch_size=batch_size, seed=1, num_shards=2, chunksize=16, world_size=world_size)
        first = position // plan.global_batch_size
        for rank in range(world_size):
            with EventLoader(source, plan, rank=rank) as loader:
                for batch in loader.epoch(1, first, position):
                    if batch.step == first + steps:
                        break
                    served += [(int(f), int(e)) for f, e in zip(batch.file_index, batch.entry, strict=True)]
        position = (first + steps) * plan.global_batch_size
    return served


@pytest.mark.parametrize(
    "parts", [[(2, 4, 2), (1, 4, 1), (2, 4, 99)], [(1, 4, 3), (2, 4, 1), (3, 2, 99)], [(3, 5, 1), (1, 4, 99)]]
)
def test_another_number_of_ranks_goes_on_with_the_events_that_are_left(
    uneven: Path, parts: list[tuple[int, int, int]]
) -> None:
    served = events_served(uneven, parts)
    assert sorted(served) == [(index, entry) for index, count in enumerate(SIZES) for entry in range(count)]


def launched(warm: Any, config: Path, *argv: str, nproc: int = 2) -> Any:
    return warm.open("train", str(config), "--nproc", str(nproc), "--json", *argv, OMP_NUM_THREADS="1")


def ended(process: Any) -> tuple[int, dict[str, Any], str]:
    out, err = process.communicate()
    return process.returncode, json.loads(out), err


def wait_for(condition: Callable[[], bool], process: Any) -> None:
    end = time.monotonic() + 200
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
def test_two_ranks_then_one_then_two_train_as_one_process_does(uneven: Path, warm: Any) -> None:
    def alone(name: str, **options: Any) -> Any:
        return engine.train(uneven, run_name=name, overrides=["data.batch_size=8"], **options)

    whole = Path(alone("whole").run_dir)
    code, document, err = ended(launched(warm, uneven, "--run-name", "shared", "--max-steps", "2"))
    assert code == 0, err
    assert document["result"]["status"] == "max_steps"
    shared = alone("shared", resume="auto", max_steps=3)
    assert (shared.status, shared.steps) == ("max_steps", 3)
    code, document, err = ended(launched(warm, uneven, "--run-name", "shared", "--resume", "auto"))
    assert (code, document["result"]["status"], document["result"]["steps"]) == (0, "finished", 5), err
    run_dir = Path(document["result"]["run_dir"])
    losses = [{r.step: r.loss for r in RunReader(directory).steps()} for directory in (whole, run_dir)]
    assert losses[0].keys() == losses[1].keys() == set(range(1, 6))
    assert all(losses[1][step] == pytest.approx(loss, abs=1e-4) for step, loss in losses[0].items())
    one, other = (store.load(directory / store.LAST_NAME) for directory in (whole, run_dir))
    assert all(torch.allclose(one.model[name], other.model[name], atol=5e-5) for name in one.model)
    metrics = [checkpoint.meta["progress"]["history"][-1] for checkpoint in (one, other)]
    assert metrics[0].keys() == metrics[1].keys()
    for name in ("val/loss", "train/loss", "energy_res_68pct", "uvw_dist_68pct"):
        assert metrics[1][name] == pytest.approx(metrics[0][name], rel=1e-3), name
    last = list(RunReader(run_dir).epochs())[-1]
    assert (last.events_seen, last.events_expected, last.duplicates) == (38, 38, 0)
    audit = [r.data["events"] for r in RunReader(run_dir).events() if r.kind == "validation"]
    assert audit == [13]
    pages = {page.rank: page for page in RunReader(run_dir).live()}
    assert pages.keys() == {0, 1}
    assert pages[0].step == pages[1].step == 5
    assert pages[0].collective_seq == pages[1].collective_seq > 10


@pytest.mark.slow
def test_stopped_rank_is_named_and_killed_it_ends_the_job(uneven: Path, warm: Any) -> None:
    process = launched(warm, uneven, "--run-name", "killed", "--set", "training.epochs=500")
    last = uneven.parent / "runs" / "killed" / store.LAST_NAME
    wait_for(last.exists, process)
    ranks = psutil.Process(process.pid).children(recursive=True)
    victim = next(p for p in ranks if p.environ().get("RANK") == "1" and p.ppid() == process.pid)
    until = time.monotonic() + 200.0
    victim.suspend()
    assert process.stderr is not None
    words = f"process {victim.pid} (rank 1) is stopped: a signal or a debugger holds it; kill -CONT {victim.pid}"
    while words not in (line := process.stderr.readline()):
        assert line
        assert time.monotonic() < until
    began = time.monotonic()
    victim.kill()
    code, document, err = ended(process)
    assert time.monotonic() - began < 200.0  # a collective waits for 600 s
    (finding,) = document["findings"]
    assert re.search(rf"rank 1 of 2 on {socket.gethostname()}, in \w+ after step \d+", finding["where"])
    assert (code, finding["code"]) == (3, "XT-RANK-DIED"), err
    assert f"rank 1 (pid {victim.pid}) was killed by signal 9 (SIGKILL)" in finding["problem"]
    assert finding["fix"].endswith(f"--resume {last.parent}")  # the whole command
    assert psutil.wait_procs(ranks, timeout=120)[1] == []
    store.load(last)


LEAVES = """
import os, runpy, sys, threading, time
runpy.run_path({lean!r})
def leave():
    while not os.path.exists({last!r}):
        time.sleep(0.05)
    os._exit(0)
if os.environ.get("RANK") == "1":
    threading.Thread(target=leave, daemon=True).start()
"""


@pytest.mark.slow
def test_a_rank_that_leaves_without_a_word_is_named_not_its_victim(uneven: Path, warm: Any, tmp_path: Path) -> None:
    last = uneven.parent / "runs" / "left" / store.LAST_NAME
    lean = str(Path(__file__).parents[1] / "programs" / "lean" / "sitecustomize.py")
    (tmp_path / "sitecustomize.py").write_text(LEAVES.format(lean=lean, last=str(last)))
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    words = ("--nproc", "2", "--json", "--run-name", "left", "--set", "training.epochs=500")
    code, document, err = ended(warm.open("train", str(uneven), *words, OMP_NUM_THREADS="1", PYTHONPATH=path))
    (finding,) = document["findings"]
    assert (code, finding["code"]) == (3, "XT-RANK-DIED"), err
    assert re.match(r"rank 1 \(pid \d+\) ended with exit code 0 in the middle of the training", finding["problem"])
    assert re.search(f"--resume (auto|{last.parent})$", finding["fix"])


@pytest.mark.parametrize(
    ("codes", "first", "named"),
    [
        ({0: -signal.SIGABRT}, {1: 9}, r"rank 1 \(pid 9\) .* code 0 .*; the other ranks were ended"),  # as NCCL ends it
        ({0: 1}, {1: 9}, r"rank 1 \(pid 9\) .* code 0 .*; the other ranks were ended"),
        ({0: -signal.SIGABRT}, {0: 8}, "rank 0 .* killed by signal 6"),
        ({}, {1: 9}, r"rank 1 \(pid 9\) ended with exit code 0 in the middle of the training, .* plugin(?!;)"),
        ({}, {}, "rank 0 ended with exit code 0 in the middle of the training, .* plugin(?!;)"),
    ],
)
def test_who_leaves_first_goes_before_what_became_of_the_others(
    tmp_path: Path, codes: dict[int, int], first: dict[int, int], named: str
) -> None:
    failures = {rank: SimpleNamespace(pid=7, exitcode=code, timestamp=1.0) for rank, code in codes.items()}
    ending = Ending(2, tmp_path, failures, frozenset(), interrupted=False, first=first)  # type: ignore[arg-type]
    with pytest.raises(XecError, match=named):
        verdict_of(ending, "config.yaml")


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("ended_by", [signal.SIGUSR1, signal.SIGABRT])  # before Python hears; while its threads start
def test_a_rank_that_a_batch_system_ends_as_it_starts_is_interrupted(
    tmp_path: Path, asked: bool, ended_by: signal.Signals
) -> None:
    failure = SimpleNamespace(pid=7, exitcode=-ended_by, timestamp=1.0)
    ending = Ending(2, tmp_path, {1: failure}, frozenset(), asked)  # type: ignore[dict-item]
    with pytest.raises(
        KeyboardInterrupt if asked else WorldError, match=None if asked else f"rank 1 .*{ended_by.name}"
    ):
        verdict_of(ending, "config.yaml")


def test_a_rank_that_aborts_in_its_training_is_named_also_where_it_was_to_end(tmp_path: Path) -> None:
    failure = SimpleNamespace(pid=7, exitcode=-signal.SIGABRT, timestamp=1.0)
    ending = Ending(2, tmp_path, {1: failure}, frozenset(), True, {1: " on node, in checkpoint after step 40"})  # type: ignore[dict-item]
    with pytest.raises(WorldError, match=r"rank 1 .*SIGABRT.*\n.*in checkpoint after step 40"):
        verdict_of(ending, "config.yaml")


@pytest.mark.slow
def test_signal_to_the_launcher_saves_once_and_ends_every_rank(uneven: Path, warm: Any) -> None:
    process = launched(warm, uneven, "--run-name", "stopped", "--set", "training.epochs=500", nproc=3)
    run_dir = uneven.parent / "runs" / "stopped"
    wait_for((run_dir / store.LAST_NAME).exists, process)
    ranks = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGUSR1)
    code, document, err = ended(process)
    assert (code, document["result"]["status"]) == (130, "interrupted"), err
    assert psutil.wait_procs(ranks, timeout=120)[1] == []
    progress = store.load(run_dir / store.LAST_NAME).meta["progress"]
    events = list(RunReader(run_dir).events())
    assert [e.step for e in events if e.kind == "checkpoint"][-1] == progress["step"] == document["result"]["steps"]
    assert [e.kind for e in events if e.kind in ("interrupted", "failed", "finished")] == ["interrupted"]
    assert document["result"]["epochs"] >= 1


@pytest.mark.slow
def test_trouble_of_one_rank_is_known_to_all(uneven: Path, run_ranks: Any, tmp_path: Path) -> None:
    for rank in run_ranks(2, PROGRAM, tmp_path, uneven):
        assert rank.returncode == 0, rank.stderr
    first, second = (json.loads((tmp_path / f"done{rank}.json").read_text()) for rank in (0, 1))
    assert [step["finite"] for step in first["steps"]] == [True, False, True, True, True]
    assert [step["moved"] for step in first["steps"]] == [True, False, True, True, True]
    assert "rank 1" in first["steps"][1]["fault"]
    for one, other in zip(first["steps"], second["steps"], strict=True):
        assert [one[k] for k in ("finite", "fault", "moved", "checksum")] == [
            other[k] for k in ("finite", "fault", "moved", "checksum")
        ]
    for seen in (first, second):  # a NaN that only the loss shows; without the common decision the ranks part
        assert (seen["value"]["finite"], seen["value"]["moved"]) == (False, False)
    assert [first["alone"]["moved"], second["alone"]["moved"]] == [True, False]
    assert first["value"]["checksum"] == second["value"]["checksum"]
    assert first["alone"]["checksum"] != second["alone"]["checksum"]
    for name, code in (("scale", "XT-INPUT-SCALE"), ("memory", "XT-OOM-HOST")):  # found by rank 1, and both stop
        assert first[name] == second[name]
        assert first[name]["code"] == code
        assert "rank 1" in first[name]["problem"]
        assert f"{name} alone" not in first  # without the common decision it would wait for the other one
        assert second[f"{name} alone"]["code"] == code
    healed = [seen["poisoned"] for seen in (first, second)]
    assert [(seen["finite"], seen["taken"], seen["served"]) for seen in healed] == [(True, True, False)] * 2
    assert healed[0]["quarantine"] == healed[1]["quarantine"] == [healed[0]["poisoned"]]
    assert healed[0]["weights"] == healed[1]["weights"]
    assert [seen["batch"] - seen["left"] for seen in healed] == [0, 1]
    folders = [json.loads(path.read_text()) for path in (tmp_path / "run").glob("incidents/*/incident.json")]
    assert {own["rank"]: own["suspects"] for own in folders} == {0: [], 1: healed[0]["quarantine"]}
    (said,) = [event for event in RunReader(tmp_path / "run").events() if event.kind == "quarantine"]
    assert said.data["events"] == healed[0]["quarantine"]
    assert sum(step["events"] for step in first["steps"] + second["steps"]) == sum(SIZES)
    for seen in (first, second):
        assert seen["differs"]["code"] == "XT-RANK-MISMATCH"
        assert "rank 1 runs with another data.batch_size than rank 0: 16 instead of 8" in seen["differs"]["problem"]
        assert seen["network"]["code"] == "XT-RANK-MISMATCH"
        assert "rank 1 runs with another model.backbone.hex_encoder" in seen["network"]["problem"]
        assert (seen["disk"]["kind"], seen["disk"]["problem"]) == ("DiskError", "no space left")
        assert seen["any"] == [True, False, True]
        assert seen["inside"] == ""
    assert first["collectives"] == second["collectives"]  # by which `diagnose hang` knows who is behind
