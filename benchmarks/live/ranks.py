"""Several ranks do what one does: each event once, the same losses, and nothing where they do not agree."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.live.epochs import not_once
from benchmarks.live.lab import XECTOOL, Lab, Run, ask, surroundings
from benchmarks.live.score import Answer, scenario

GROUP: Final = "ranks"
CLOSE: Final = 1e-6
EXACT: Final[dict[str, Any]] = {
    "training": {"epochs": 2, "deterministic": True, "channel_dropout_rate": 0.0, "lr": 1e-4},
    "validation": {"interval": 1},
}
SUBMITS: Final = """
import sys
from submitit.local.local import LocalExecutor
from xectool.engine.slurm.script import JobRequest
from xectool.engine.submitting import training_job

request = JobRequest(partition="p", time="00:10:00", gpus=0, requeue=True, max_requeues=6)
executor = LocalExecutor(sys.argv[2], max_num_timeout=10)
executor.update_parameters(timeout_min=float(sys.argv[3]) / 60, signal_delay_s=20)
job = executor.submit(training_job(sys.argv[1], request, run_name="run"))
sys.exit(job._process.wait())
"""


def finished(run: Run, limit_s: float = 300.0) -> Run:
    """Wait for the good end of a run.

    Raises:
        RuntimeError: It did not end well, or in time.
    """
    code = run.until_end(limit_s)
    if code != 0:
        raise RuntimeError(f"exit {code}: {run.log.read_text()[-600:]}")
    return run


@scenario(GROUP, "files of 1, 7 and many events over 3 ranks", "each event once, validation exact")
def uneven_files(lab: Lab) -> Answer:
    """Train an epoch."""
    sizes, began = (1, 7, lab.options.get("events", 5000)), time.monotonic()
    files = [lab.simulated(f"train_{size:05d}", size, seed) for seed, size in enumerate(sizes)]
    val = lab.simulated("validation", 13, 9)
    sections = {**EXACT, "training": {"epochs": 1}, "data": {"batch_size": 16, "chunksize": 512}}
    config = lab.config(train=[*map(str, files)], val=str(val), **sections)
    run = finished(lab.train(config, nproc=3), 3600)
    wrong = not_once(run, 1, [(file, entry) for file, size in enumerate(sizes) for entry in range(size)])
    validated = [event.data["events"] for event in run.events("validation")]
    wrong += "" if validated == [13] else f" validated {validated} of 13"
    given = wrong or f"{sum(sizes)} events once, validation of {validated}"
    return Answer(given, not wrong, time.monotonic() - began)


def like_one(lab: Lab, data: dict[str, Any], training: dict[str, Any], torchrun: bool) -> Answer:
    """Train the same on two ranks and on one with the doubled batch."""
    sections, began = {**EXACT, "training": {**EXACT["training"], **training}}, time.monotonic()
    data = {key: str(lab.directory / value) if key == "cache" else value for key, value in data.items()}
    config = lab.config(**{**sections, "data": data})
    if "cache" in data and ask("prepare", config).code:
        return Answer("prepare failed", False)
    finished(two := lab.train(config, nproc=2, name="two", torchrun=torchrun))
    finished(one := lab.train(config, "--set", "data.batch_size=4", name="one"))
    losses = [{step.step: step.loss for step in run.reader.steps()} for run in (one, two)]
    metrics = [run.reader.epochs()[-1].metrics["val/loss"] for run in (one, two)]
    if losses[0].keys() != losses[1].keys() or not losses[0]:
        return Answer(f"{len(losses[0])} and {len(losses[1])} steps", False, time.monotonic() - began)
    worst = float(np.max([abs(losses[1][step] - loss) for step, loss in losses[0].items()]))  # NaN stays NaN
    apart = abs(metrics[0] - metrics[1])
    wrong = not_once(two, 2) or not_once(one, 2)
    given = f"{len(losses[0])} steps, losses {worst:.1e} apart, validation {apart:.1e} {wrong}"
    return Answer(given, worst <= CLOSE and apart <= CLOSE and not wrong, time.monotonic() - began)


KINDS: Final[dict[str, tuple[dict[str, Any], dict[str, Any], bool]]] = {
    "plain": ({}, {}, False),
    "by torchrun": ({}, {}, True),
    "accumulation": ({}, {"grad_accum_steps": 3}, False),
    "cached": ({"cache": "cache"}, {}, False),
}
for kind, (data, training, torchrun) in KINDS.items():
    act = partial(like_one, data=data, training=training, torchrun=torchrun)
    scenario(GROUP, f"two ranks as one, {kind}", "losses within 1e-6 a step")(act)


@scenario(GROUP, "resume 2 to 1 to 2 ranks", "same epoch goes on, each event once")
def other_number(lab: Lab) -> Answer:
    """Stop in mid-epoch, go on with one process, stop, and go on with two ranks to the end."""
    config, began = lab.config(**EXACT), time.monotonic()
    finished(lab.train(config, "--max-steps", 5, nproc=2))
    finished(lab.train(config, "--resume", "auto", "--max-steps", 9, "--set", "data.batch_size=4"))
    last = finished(lab.train(config, "--resume", "auto", nproc=2))
    wrong = not_once(last, 2)
    return Answer(wrong or "each event once", not wrong, time.monotonic() - began)


def disagreeing(lab: Lab, words: tuple[str, ...], other_file: bool, names: tuple[str, ...]) -> Answer:
    """Start two ranks as two tasks of a batch system; the second has something else."""
    folders = [lab.directory / name for name in ("first", "second")]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    config, processes, began = lab.config(train="train.root", val="val.root"), [], time.monotonic()
    for rank, folder in enumerate(folders):
        folder.mkdir()
        for name in ("train", "val"):
            (folder / f"{name}.root").write_bytes((lab.directory.parent / "data" / f"{name}.root").read_bytes())
        if rank and other_file:
            (folder / "train.root").write_bytes(lab.simulated("other", 40, 5).read_bytes())
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # fmt: skip
        command = [*XECTOOL, "train", str(config), "--run-name", "run", *(words if rank else ()), "--json"]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                          cwd=folder, env=surroundings(**place)))  # fmt: skip
    said = [process.communicate(timeout=240) for process in processes]
    codes = [process.returncode for process in processes]
    text = " ".join(out + err for out, err in said)
    finding = next((json.loads(out)["findings"][0]["problem"] for out, _ in said if out.startswith("{")), text[-200:])
    right = codes == [2, 2] and all(name in out + err for out, err in said for name in names)
    return Answer(f"exit {codes}: {finding[:120]}", right, time.monotonic() - began)


scenario(GROUP, "a rank with another configuration", "refused by all with exit 2, rank and key named")(
    partial(disagreeing, words=("--set", "training.lr=2e-5"), other_file=False, names=("rank 1", "training.lr"))
)
scenario(GROUP, "a rank with another file", "refused by all with exit 2, rank and file named")(
    partial(disagreeing, words=(), other_file=True, names=("rank 1", "train.root"))
)


@scenario(GROUP, "two prepare at once", "each file copied once, both exit 0")
def prepared_twice(lab: Lab) -> Answer:
    """Prepare the same files from two processes."""
    files, began = [str(lab.simulated(f"part_{seed}", 400, seed)) for seed in range(3)], time.monotonic()
    config = lab.config(train=files, data={"cache": str(lab.directory / "cache")})
    command = [*XECTOOL, "prepare", str(config), "--json"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=surroundings()) for _ in range(2)]
    found = [json.loads(process.communicate(timeout=240)[0])["result"] for process in both]
    built, copies = [one["built"] for one in found], len(list((lab.directory / "cache").glob("*.events")))
    failed = [line for one in found for line in (*one["failed"], *one["damaged"])]
    right = sum(built) == copies == 4 and not failed and not any(process.returncode for process in both)
    return Answer(f"{built} built, {copies} copies, {failed or 'none failed'}", right, time.monotonic() - began)


@scenario(GROUP, "submit --dry-run", "exit 0, script with requeue and signal")
def rehearsed(lab: Lab) -> Answer:
    """Look at the script of a job."""
    said = ask("submit", lab.config(), "--partition", "p", "--time", "00:10:00", "--gpus", 0, "--requeue", "--dry-run",
               "--json")  # fmt: skip
    script = str(said.result.get("script", ""))
    words = ("--partition=p", "--time=10\n", "--signal=USR2@180", "--requeue\n", "OMP_NUM_THREADS")
    missing = [word for word in words if word not in script]
    return Answer(f"exit {said.code}, {missing or 'all there'}", said.code == 0 and not missing, said.seconds)


@scenario(GROUP, "local executor with a time limit", "requeued until done, each step and event once")
def time_limit(lab: Lab) -> Answer:
    """Run a job that takes several times its limit."""
    config, began = lab.config(training={"epochs": 6}, validation={"interval": 1}), time.monotonic()
    command = [sys.executable, "-c", SUBMITS, str(config), str(lab.directory / "slurm"), "70"]
    run = Run(lab, lab.directory / "runs" / "run", command, LIVE_GO=str(lab.go), LIVE_STEP_S="0.7")
    lab.runs.append(run)
    run.until_end(600)
    log = "".join(path.read_text() for path in sorted(Path(lab.directory / "slurm").glob("*_log.*")))
    state, starts = run.reader.status().state, len({line["pid"] for line in run.steps_taken()})
    wrong = not_once(run, 6) or ("" if state == "finished" and starts > 1 else f"{state}: {log[-300:]}")
    given = wrong or f"{starts} starts, each step and event once"
    return Answer(given, not wrong, time.monotonic() - began)
