"""Jobs for SLURM: the script, what is refused before, and a real job that is signalled, requeued and goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import uproot
from submitit.local.local import LocalExecutor
from xectool import engine
from xectool.engine import JobRequest
from xectool.engine.slurm.job import NODE_DIRECTORIES, TrainingJob
from xectool.engine.submitting import training_job
from xectool.errors import CheckpointError, ConfigError, UsageError, WorldError, XecError
from xectool.rootio.writer import TreeWriter

GOLDEN = Path(__file__).parent / "golden"
ONE = JobRequest(partition="a100-daily", time="12:00:00", gpus=4, mem="240G", requeue=True)
REQUESTS = {
    "one_node": ONE,
    "two_nodes": replace(ONE, nodes=2, account="meg", exclude="gpu[3-4]", nodelist="gpu[1-2]", max_requeues=3),
    "cpu": JobRequest(partition="daily", time="1-00:00:30", gpus=0, cpus_per_gpu=2, signal_before_s=60),
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that reads in a process and has far more steps than the test waits for."""
    directory = tmp_path_factory.mktemp("submit")
    engine.simulate(str(directory / "train.root"), events=64, seed=1)
    engine.simulate(str(directory / "val.root"), events=8, seed=2)
    path = directory / "run.yaml"
    path.write_text(
        f"""
kind: regressor
data: {{train_path: {directory}/train.root, val_path: {directory}/val.root, batch_size: 2, chunksize: 16,
       num_workers: 1}}
model: {{encoder_dim: 32, hidden_dim: 8, outer_fine_pool: [5, 3], num_fusion_layers: 1}}
tasks: {{energy: {{enabled: true, scale: auto, shift: auto}}}}
training: {{epochs: 100000, warmup_epochs: 0, device: cpu}}
checkpoint: {{save_dir: {directory}/runs}}
mlflow: {{enabled: false}}
"""
    )
    return path


@pytest.mark.parametrize("name", REQUESTS)
def test_the_script_is_the_one_that_is_written_down(name: str, config: Path) -> None:
    overrides = ["training.lr=1e-4", "training.device=auto"] if name != "cpu" else []
    found = engine.submit(config, REQUESTS[name], overrides=overrides, run_name="first", dry_run=True)
    text = f"{found.script}\n# each task: {found.command}\n"
    text = text.replace(str(config.parent), "DIRECTORY").replace(sys.executable, "PYTHON")
    golden = GOLDEN / f"submit_{name}.sh"
    assert text == golden.read_text(), f"if that is meant, write it to {golden}"
    assert not Path(found.folder).exists()
    assert subprocess.run(["bash", "-n"], input=found.script, text=True, check=False).returncode == 0


def test_the_script_keeps_caches_on_the_node(tmp_path: Path) -> None:
    start = (
        'import os; from xectool.engine.slurm.job import make_node_directories as make; make(); os.execlp("env", "env")'
    )
    task = f"{sys.executable} -c '{start}'"
    show = "\n".join([*ONE.setup(8), "ulimit -c", task])
    variables = {"PATH": os.environ["PATH"], "SLURM_TMPDIR": str(tmp_path), "SLURM_JOB_ID": "7", "USER": "me"}
    done = subprocess.run(["bash", "-c", show], env=variables, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    shown = dict(line.split("=", 1) for line in lines[1:])
    assert lines[0] == "0"
    assert all(shown[name].startswith(f"{tmp_path}/xectool-me-7/") for name in NODE_DIRECTORIES)
    assert all(Path(shown[name]).is_dir() for name in NODE_DIRECTORIES)
    assert shown["OMP_NUM_THREADS"] == "8"


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"time": "12:00"}, "XT-SUBMIT-TIME", "twelve minutes"),
        ({"time": "2-12"}, "XT-SUBMIT-TIME", "neither HH:MM:SS nor D-HH:MM:SS\nwhere: --time\nfix: --time 2-12:00:00"),
        (
            {"time": "1-6:30"},
            "XT-SUBMIT-TIME",
            "neither HH:MM:SS nor D-HH:MM:SS\nwhere: --time\nfix: --time 1-06:30:00",
        ),
        ({"time": "2-0"}, "XT-SUBMIT-TIME", "neither HH:MM:SS nor D-HH:MM:SS\nwhere: --time\nfix: --time 2-00:00:00"),
        ({"time": None}, "XT-SUBMIT-TIME", "no time limit"),
        ({"time": "00:05:00"}, "XT-SUBMIT-TIME", "kept for saving"),
        ({"partition": None}, "XT-SUBMIT-REQUEST", "no partition"),
        ({"mem": "lots"}, "XT-SUBMIT-REQUEST", "lots"),
        *(
            ({name: word}, "XT-SUBMIT-REQUEST", "no word")
            for name in ("partition", "account", "exclude", "nodelist")
            for word in ("a\nrm x", "a\r", "a b", " ", "")
            if word or name != "partition"
        ),
        ({"gpus": -1}, "XT-SUBMIT-REQUEST", "--gpus -1"),
        ({"nodes": 0}, "XT-SUBMIT-REQUEST", "--nodes 0"),
    ],
)
def test_a_request_that_cannot_be_is_refused(change: dict[str, Any], code: str, says: str, config: Path) -> None:
    with pytest.raises(UsageError) as caught:
        engine.submit(config, replace(ONE, **change), dry_run=True)
    assert caught.value.code == code
    assert says in str(caught.value)
    assert caught.value.fix


def test_a_configuration_is_checked_against_the_node_that_is_asked_for(config: Path) -> None:
    on_gpu = ["training.device=auto"]
    engine.submit(config, ONE, overrides=on_gpu, dry_run=True)
    with pytest.raises(ConfigError, match=r"--mem 4G, of 4 on a node.*driver of the GPU") as caught:
        engine.submit(config, replace(ONE, mem="4G"), overrides=on_gpu, dry_run=True)
    pasted = str(caught.value.findings[0].fix).removeprefix("--mem ")  # type: ignore[attr-defined]
    engine.submit(config, replace(ONE, mem=pasted), overrides=on_gpu, dry_run=True)
    engine.submit(config, replace(ONE, mem="4G"), dry_run=True)  # training.device: cpu
    with pytest.raises(ConfigError, match=r"--mem 2G.*interpreter and libraries"):
        engine.submit(config, replace(ONE, mem="2G"), dry_run=True)
    with pytest.raises(ConfigError, match="no files match"):
        engine.submit(config, ONE, overrides=[*on_gpu, "data.train_path=/nowhere/a.root"], dry_run=True)


def test_gpus_that_nothing_uses_are_said_to_be_idle(config: Path) -> None:
    for device, gpus, said in (("cpu", 4, True), ("auto", 4, False), ("cpu", 0, False)):
        overrides = [f"training.device={device}"]
        found = engine.submit(config, replace(ONE, gpus=gpus), overrides=overrides, dry_run=True).findings
        assert ("XT-SUBMIT-IDLE" in {finding.code for finding in found}) is said


@pytest.mark.parametrize("name", ["50%j", "a\nb", "a\\b", "it's 5%", "new #5%", "new: 5%"])
@pytest.mark.parametrize("is_relative", [False, True])
def test_a_directory_that_slurm_would_read_otherwise_is_refused(
    name: str, is_relative: bool, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    place = "artifacts" if is_relative else str(tmp_path / name)
    submit = partial(engine.submit, config, replace(ONE, gpus=0), dry_run=True)
    with pytest.raises(UsageError, match="reads a %") as caught:
        submit(overrides=[f"checkpoint.save_dir={json.dumps(place)}"])
    option, setting = shlex.split(caught.value.fix)
    assert option == "--set"
    sound = tmp_path / "".join(char if char not in "%\\\n" else "_" for char in name)
    assert Path(submit(overrides=[setting]).folder).is_relative_to(sound)


def test_without_slurm_the_rehearsal_is_offered(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match=r"--partition a100-daily .*--dry-run") as caught:
        engine.submit(config, ONE, overrides=["training.device=auto"])
    assert caught.value.code == "XT-SUBMIT-SLURM"


def test_a_run_that_goes_on_with_other_batches_or_has_ended_is_told_before_the_queue(config: Path) -> None:
    one = ["training.epochs=1", "data.num_workers=0", "data.batch_size=32", "checkpoint.save_artifacts=false"]
    engine.train(config, run_name="begun", overrides=one, max_steps=1)

    def told(request: JobRequest, *overrides: str) -> dict[str, str]:
        found = engine.submit(
            config, request, overrides=[*one, *overrides], resume="auto", run_name="begun", dry_run=True
        ).findings
        return {item.code: item.fix for item in found if item.code in ("XT-SUBMIT-BATCH", "XT-SUBMIT-DONE")}

    alone = replace(ONE, gpus=1)
    assert told(alone) == {}, "the control: one rank, in mid-run"
    assert told(ONE)["XT-SUBMIT-BATCH"].startswith("--set data.batch_size=8 ")
    assert told(ONE, "data.batch_size=8") == {}
    engine.train(config, run_name="begun", overrides=one, resume="auto")
    assert told(alone)["XT-SUBMIT-DONE"].startswith("--set training.epochs=2 ")
    assert told(alone, "training.epochs=2") == {}
    assert told(alone, "checkpoint.reset_epoch=true") == {}
    longer = ["training.epochs=3", *one[1:]]
    engine.train(config, run_name="begun", overrides=longer, resume="auto")
    assert told(ONE) == {"XT-SUBMIT-DONE": "--set training.epochs=6   # goes on from its weights"}


def test_what_a_resume_refuses_is_refused_before_the_queue(config: Path) -> None:
    """A batch that cannot be shared within an epoch was refused by the job, after it had waited."""
    one = ["training.epochs=1", "data.num_workers=0", "data.batch_size=32", "checkpoint.save_artifacts=false"]
    engine.train(config, run_name="half", overrides=one, max_steps=1)
    resumed = partial(engine.submit, config, replace(ONE, gpus=1), resume="auto", run_name="half", dry_run=True)
    for setting, key in (("data.batch_size=16", "data.batch_size"), ("model.encoder_dim=64", "model.encoder_dim")):
        with pytest.raises(CheckpointError, match=key):
            resumed(overrides=[*one, setting])
        with pytest.raises(CheckpointError, match=key):  # as the training does
            engine.train(config, run_name="half", overrides=[*one, setting], resume="auto", dry_run=True)
    assert resumed(overrides=one).run_name == "half"
    fewer = "data.exclude=[train.root:3, val.root:1]"  # the order of the epoch stays
    assert resumed(overrides=[*one, fewer]).run_name == "half"
    shared = replace(ONE, gpus=2)  # the same batch, of two ranks
    assert engine.submit(
        config, shared, overrides=[*one, "data.batch_size=16"], resume="auto", run_name="half", dry_run=True
    )


def test_what_is_no_state_of_a_training_is_refused_before_the_queue(config: Path, tmp_path: Path) -> None:
    """Weights without a run have no batches to compare; that was a KeyError."""
    one = ["training.epochs=1", "data.num_workers=0", "data.batch_size=32", "checkpoint.save_artifacts=false"]
    run = engine.train(config, run_name="lender", overrides=one, max_steps=1)
    extracted = tmp_path / "encoder.pt"
    engine.inspect_ckpt(str(run.checkpoint_last), extract="encoder", output=str(extracted))
    with pytest.raises(CheckpointError, match=r"holds weights only|holds no place in a run"):
        engine.submit(config, ONE, overrides=one, resume=str(extracted), run_name="next", dry_run=True)


def test_name_and_resume_are_refused_as_the_training_would_after_the_queue(config: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "old").mkdir(parents=True)
    (runs / "old" / "config.yaml").touch()
    with_runs = ["training.device=auto", f"checkpoint.save_dir={runs}"]
    submit = partial(engine.submit, overrides=with_runs, dry_run=True)
    for name, resume, says in (("old", None, "exists already"), ("../x", None, "cannot be the name")):
        with pytest.raises(XecError, match=says):
            submit(config, ONE, run_name=name, resume=resume)
    with pytest.raises(XecError, match="no checkpoint"):
        submit(config, ONE, resume=str(runs / "old"))
    found = submit(config, ONE, run_name="old", resume="auto")
    assert "--run-name old" in found.command
    assert found.command.endswith("--resume auto")
    odd = tmp_path / 'it\'s a "run".yaml'
    odd.write_text(config.read_text())
    assert re.fullmatch(r"it_s_a_run-[0-9-]+", submit(odd, ONE).run_name)


def _sbatch(directory: Path, body: str) -> None:
    program = directory / "sbatch"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_what_slurm_says_arrives(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    on_gpu = ["training.device=auto"]
    _sbatch(tmp_path, "echo Submitted batch job 4711")
    found = engine.submit(config, ONE, overrides=on_gpu, run_name="queued")
    assert found.job_id == "4711"
    assert (Path(found.folder) / "4711_submitted.pkl").is_file()
    _sbatch(tmp_path, "echo 'sbatch: error: invalid partition specified: a100-daily' >&2; exit 1")
    with pytest.raises(WorldError, match="invalid partition") as caught:
        engine.submit(config, ONE, overrides=on_gpu, run_name="refused")
    assert caught.value.code == "XT-SUBMIT-REFUSED"


def _wait(condition: Callable[[], Any], seconds: float = 300) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, psutil.Error):
            if found := condition():
                return found
        time.sleep(0.1)
    raise AssertionError("that did not happen in time")


def _steps(run: Path) -> int:
    return int(engine.diagnose.query(run, "select count(*) from steps").rows[0][0])


@pytest.mark.slow
def test_a_job_at_its_time_limit_saves_is_queued_again_and_goes_on(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    request = JobRequest(partition="p", time="01:00:00", gpus=0, requeue=True, max_requeues=1)
    job = training_job(config, request, run_name="limited")
    queue = LocalExecutor(tmp_path / "slurm")
    queue.update_parameters(timeout_min=10)
    submitted = queue.submit(job)
    run = config.parent / "runs" / "limited"
    try:
        _signal_all(submitted, run, attempts=1)
        _wait(lambda: len(json.loads((run / "manifest.json").read_text())["attempts"]) == 2)
        _signal_all(submitted, run, attempts=2)  # the only requeue is spent: it saves and ends
        _wait(lambda: submitted._process.poll() is not None)
    finally:
        submitted._process.kill()
    log = "".join(path.read_text() for path in (tmp_path / "slurm").glob("*_log.*"))
    assert log.count("Requeued job") == 1
    assert "resume" in log
    attempts = json.loads((run / "manifest.json").read_text())["attempts"]
    assert ["--resume" in item["command"] for item in attempts] == [False, True]
    assert (run / "checkpoint_last.pt").is_file()


def _signal_all(submitted: Any, run: Path, attempts: int) -> None:
    """Send what SLURM sends before the limit, to every process of the job, once it has taken two steps."""
    _wait(lambda: len(list((run / "rec").glob("a*"))) == attempts)
    before = _wait(lambda: _steps(run))
    _wait(lambda: _steps(run) >= before + 2)
    controller = psutil.Process(submitted._process.pid)
    # children first: slurmstepd does not wait for anybody either
    for process in reversed(controller.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGUSR2)


ENDED = """
import os, signal, sys
from pathlib import Path
import xectool.engine.slurm.job as module
from xectool.engine.slurm.job import TrainingJob

class Scripted(TrainingJob):
    def command(self):
        return ["sh", "-c", sys.argv[1]]

job = Scripted("config.yaml", max_requeues=int(sys.argv[2]))
def handler(number, frame):
    print("requeues", job.checkpoint().function.requeues, flush=True)
    os._exit(77)
signal.signal(signal.SIGUSR2, handler)
job()
"""

# the signal comes from the training, which has begun then; a clock would not wait for that
AT_TERM = "trap 'exit {}' TERM; sleep 0.5; kill -USR2 $PPID; while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("script", "allowed", "code"),
    [
        (AT_TERM.format(130), 1, 77),  # interrupted: queued again
        (AT_TERM.format(130), 0, 130),  # not allowed to
        (AT_TERM.format(0), 1, 0),  # finished meanwhile
        (AT_TERM.format(1), 1, 1),  # failed meanwhile
        ("(sleep 0.5; kill -USR2 $PPID) & exec sleep 600", 1, 77),  # not yet far enough to save
        ("exit 2", 1, 2),  # failed before
    ],
)
def test_only_an_interrupted_run_is_queued_again(script: str, allowed: int, code: int) -> None:
    command = [sys.executable, "-c", ENDED, script, str(allowed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code, done.stderr
    assert ("requeues 1" in done.stdout) == (code == 77)


def test_after_a_requeue_by_slurm_itself_a_job_goes_on_too(monkeypatch: pytest.MonkeyPatch) -> None:
    job = TrainingJob("config.yaml", resume="artifacts/other")
    assert job.command()[-2:] == ["--resume", "artifacts/other"]
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert job.command()[-2:] == ["--resume", "auto"]


def test_a_rehearsal_looks_at_the_first_events_as_that_of_a_training_does(config: Path, tmp_path: Path) -> None:
    """Times in ns waited in the queue, and stopped the job at its first batch; a batch too large for the files too."""
    request = JobRequest("p", "1:00:00", gpus=0, cpus_per_gpu=2)
    sound = engine.submit(config, request, dry_run=True).findings
    assert [found.code for found in sound] == ["CFG-44"], "the control: a narrow network"
    few = engine.submit(config, request, overrides=["data.batch_size=128"], dry_run=True).findings
    assert "DAT-06" in {found.code for found in few}
    with uproot.open(config.parent / "train.root") as file:
        columns = dict(file["tree"].arrays(library="np"))
    columns["relative_time"] = (1e9 * columns["relative_time"]).astype("f4")
    with TreeWriter(
        tmp_path / "ns.root", {key: (v.dtype.str[1:], v.shape[1:]) for key, v in columns.items()}
    ) as writer:
        writer.extend(columns)
    wrong = [f"data.train_path={tmp_path}/ns.root"]
    (found,) = (
        item
        for item in engine.submit(config, request, overrides=wrong, dry_run=True).findings
        if item.code == "XT-INPUT-SCALE"
    )
    trained = engine.train(config, overrides=wrong, dry_run=True).findings
    assert found in trained, "one look for both"
    remote = ["data.train_path=root://nowhere.example//a.root"]
    assert engine.submit(config, request, overrides=remote, dry_run=True).script, "what is not here is not looked at"
