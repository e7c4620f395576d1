"""Runs that are killed, stopped and asked to end at random moments, and go on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.live.epochs import lost, not_once
from benchmarks.live.hangs import Expected, asked, started
from benchmarks.live.lab import Lab, Run, wait_for
from benchmarks.live.score import LIMIT_S, Answer, scenario

GROUP: Final = "kills"
EPOCHS: Final = 3
SHORT: Final[dict[str, Any]] = {"training": {"epochs": EPOCHS}, "validation": {"interval": 1}}
INTERRUPTED: Final = 130
LOOP: Final = ("data_wait", "transfer", "forward", "backward", "optimizer", "collective", "log")
MOMENTS: Final = {"training": LOOP, "validation": ("validation",), "checkpoint": ("checkpoint",)}


@scenario(GROUP, "SIGKILL at random moments", "no record lost, goes on, each event once")
def killed_often(lab: Lab) -> Answer:
    """Kill trainings in start, step, validation and checkpoint, and let each go on to its end."""
    config, wrong, kills, runs = lab.config(**SHORT, checkpoint={"save_steps": 3}), list[str](), 0, 0
    began = time.monotonic()
    while kills < lab.options.get("kills", 50):
        name, run = f"run{runs}", killed_once(lab, config, f"run{runs}")
        while run.process.returncode == -signal.SIGKILL:
            kills += 1
            wrong.append(lost(run, run.process.pid))
            run = killed_once(lab, config, name, spare=kills >= lab.options.get("kills", 50))
        code = run.process.returncode
        wrong.append(f"ended with {code}: {run.log.read_text()[-300:]}" if code else not_once(run, EPOCHS, again=True))
        wrong += run.close()
        runs += 1
    found = [line for line in wrong if line]
    return Answer(f"{kills} kills of {runs} runs: {found[:3] or 'nothing lost'}", not found, time.monotonic() - began)


def killed_once(lab: Lab, config: Path, name: str, spare: bool = False) -> Run:
    """Start or go on, and kill at a random moment, unless the run is to be spared; return it when it has ended."""
    run = lab.train(config, "--resume", "auto", name=name, STEP_S="0.03", CHECKPOINT_S="0.05")
    if not spare:
        if lab.rng.random() < 0.8:
            wait_for(lambda: run.ended or bool(run.pages and run.step))
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.process.wait(float(lab.rng.uniform(0, 5)))
        if not run.ended:
            run.process.kill()
    run.process.wait()
    return run


def asked_to_end(lab: Lab, number: int, moment: str, nproc: int) -> Answer:
    """Send a signal at a moment, to the launcher or, as SLURM does, to every process; then go on to the end."""
    config, everyone = lab.config(**SHORT, data={"num_workers": 1}), bool(lab.rng.integers(2))
    start = partial(lab.train, config, nproc=nproc, STEP_S="0.1", VALIDATION_S="0.3", CHECKPOINT_S="0.5")
    run = start().until_step(int(lab.rng.integers(1, 9)))
    wait_for(lambda: run.ended or any(page.phase in MOMENTS[moment] for page in run.pages.values()), every_s=0.005)
    time.sleep(float(lab.rng.uniform(0, 0.2)))
    began = time.monotonic()
    for pid in run.pids if everyone else [run.process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    code = run.until_end(120)
    seconds, state = time.monotonic() - began, run.reader.status().state
    given = f"exit {code} ({state}){', sent to all' if everyone else ''}"
    if code != INTERRUPTED or state != "interrupted":
        return Answer(f"{given}: {run.log.read_text()[-300:]}", False, seconds)
    left = run.close()
    again = start("--resume", "auto")
    code = again.until_end()
    wrong = not_once(again, EPOCHS) if code == 0 else again.log.read_text()[-300:]
    return Answer(f"{given}, then {code} {wrong} {left or ''}", code == 0 and not wrong and not left, seconds)


for nproc in (1, 2):
    for number in (signal.SIGTERM, signal.SIGUSR1):
        for moment in MOMENTS:
            title = f"{number.name} in {moment}, {nproc} rank{'s' * (nproc > 1)}"
            act = partial(asked_to_end, number=number, moment=moment, nproc=nproc)
            scenario(GROUP, title, "saved, 130, goes on, each event once")(act)


def interrupted_twice(lab: Lab, nproc: int) -> Answer:
    """Press Ctrl-C twice while a step, of several ranks that of the second, never ends."""
    run = lab.train(lab.config(), nproc=nproc, FAULT="step", RANK=str(nproc - 1), STEP_S="0.1").until_step(4)
    lab.go.touch()
    time.sleep(3)
    os.killpg(run.process.pid, signal.SIGINT)
    time.sleep(2)  # what comes within a second is the same press
    before, began = run.ended, time.monotonic()
    os.killpg(run.process.pid, signal.SIGINT)
    code = run.until_end(LIMIT_S)
    seconds = time.monotonic() - began
    wait_for(lambda: not run.pids, 5)
    return Answer(f"exit {code}", code == INTERRUPTED and not before and not run.pids and seconds < 10, seconds)


for nproc in (1, 2):
    scenario(GROUP, f"two SIGINTs, {nproc} rank{'s' * (nproc > 1)}", "130 within 10 s, nothing left")(
        partial(interrupted_twice, nproc=nproc)
    )

VICTIMS: Final[dict[str, Callable[[Run, int], int]]] = {
    "rank": lambda run, rank: run.pages[rank].pid,
    "reader": lambda run, rank: run.readers(rank)[0],
    "tracker": lambda run, rank: run.tracker(),
}
SAID: Final = {
    ("rank", "SIGKILL"): Expected(("XT-HANG-DEAD",), states=("killed", "failed", "gone")),
    ("rank", "SIGSTOP"): Expected(("XT-HANG-STOPPED",), states=("stopped",)),
    ("reader", "SIGKILL"): Expected(
        ("XT-HANG-READER-DEAD", "XT-HANG-DEAD"), states=("failed", "killed", "gone", "late", "slow", "stuck")
    ),
    ("reader", "SIGSTOP"): Expected(("XT-HANG-STOPPED",), states=("stopped",)),
    ("tracker", "SIGKILL"): Expected(("XT-HANG-TRACKER",), ("gone",), bad=False),
    ("tracker", "SIGSTOP"): Expected(("XT-HANG-TRACKER",), ("stopped",), states=("stopped",)),
}


def hit(lab: Lab, who: str, number: int) -> Answer:
    """Send a signal to a process of two ranks at a random moment; a job that loses a rank has to end by itself."""
    tracked = {"enabled": True, "tracking_uri": f"sqlite:///{lab.directory}/mlruns.db"}
    run = started(lab, nproc=2, data={"num_workers": 1}, mlflow=tracked)
    wait_for(lambda: run.tracker() or run.ended)
    time.sleep(float(lab.rng.uniform(0, 3)))
    rank = int(lab.rng.integers(2))
    pid, began = VICTIMS[who](run, rank), time.monotonic()
    if not pid:
        return Answer(f"no {who} to be hit", right=False)
    os.kill(pid, number)
    expected = SAID[who, signal.Signals(number).name]
    named = Expected(expected.codes, (*expected.words, str(pid)), expected.bad, expected.states)
    answer = asked(run, named, began)
    if number == signal.SIGSTOP:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)  # as the verdict says; until then it outlives whatever else is killed
    if who == "tracker" or number == signal.SIGSTOP:
        return answer
    code = run.until_end(max(1.0, began + LIMIT_S - time.monotonic()))
    told = str(pid) in run.log.read_text()
    return Answer(f"{answer.given}; exit {code}, {'' if told else 'not '}named", answer.right and code == 3 and told,
                  answer.seconds)  # fmt: skip


for who, name in SAID:
    says = " or ".join(code[8:] for code in SAID[who, name].codes) + ", process named"
    scenario(GROUP, f"{name} of a {who} of two ranks", says)(partial(hit, who=who, number=signal.Signals[name]))


def orphans(lab: Lab, nproc: int) -> Answer:
    """Kill what was started; readers, ranks and the tracker have to go by themselves."""
    tracked = {"enabled": True, "tracking_uri": f"sqlite:///{lab.directory}/mlruns.db"}
    run = started(lab, nproc=nproc, data={"num_workers": 2}, mlflow=tracked)
    wait_for(lambda: run.tracker() or run.ended)
    tracker, began = run.tracker(), time.monotonic()
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    wait_for(lambda: not set(run.pids) - {tracker}, 15)
    readers_s = time.monotonic() - began
    wait_for(lambda: not run.pids, 15)
    seconds = time.monotonic() - began
    return Answer(f"readers gone in {readers_s:.1f} s", readers_s < 2 and not run.pids, seconds)


for nproc in (1, 2):
    scenario(GROUP, f"orphans of a killed {'trainer' if nproc == 1 else 'launcher'}", "all gone, readers in 2 s")(
        partial(orphans, nproc=nproc)
    )


@scenario(GROUP, "run directory deleted", "XT-RUN-GONE, exit 3, checkpoint saved anew")
def deleted(lab: Lab) -> Answer:
    """Delete the run directory in mid-run."""
    run = started(lab)
    began = time.monotonic()
    shutil.rmtree(run.directory)
    code = run.until_end(LIMIT_S)
    text, saved = run.log.read_text(), (run.directory / "checkpoint_last.pt").exists()
    right = code == 3 and "XT-RUN-GONE" in text and saved
    return Answer(f"exit {code}, {'' if saved else 'no '}checkpoint: {text[-120:]}", right, time.monotonic() - began)


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[bool]:
    """Mount a small file system; yields whether that was allowed."""
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=False)


@scenario(GROUP, "full file system", "XT-DISK-FULL, exit 3, last checkpoint sound, goes on")
def full(lab: Lab) -> Answer:
    """Fill the file system of a run between two checkpoints, and make room again."""
    with small_disk(lab.directory / "runs", 48) as mounted:
        if not mounted:
            return Answer("skipped: only root can mount a tmpfs", True)
        config = lab.config(**SHORT)
        run = lab.train(config, STEP_S="0.1").until_step(12)
        filler, began = lab.directory / "runs" / "filler", time.monotonic()
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65536))
        code, seconds = run.until_end(120), time.monotonic() - began
        said = run.log.read_text()
        filler.unlink()
        again = lab.train(config, "--resume", "auto")
        second = again.until_end()
        wrong = not_once(again, EPOCHS, again=True) if second == 0 else again.log.read_text()[-300:]
        told = "XT-DISK" in said
        given = f"exit {code}, then {second} {wrong} {'' if told else said[-200:]}"
        right = code == 3 and told and second == 0 and not wrong and not lab.close()
        return Answer(given, right, seconds)
