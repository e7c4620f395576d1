"""What ``ctl`` asks of runs on two ranks: done at the next step, by both, kept, recorded, and refused to others."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from benchmarks.live.hangs import started
from benchmarks.live.lab import Lab, Run, Said, ask, surroundings, wait_for
from benchmarks.live.score import Answer, scenario

GROUP: Final = "control"
SCALE, CLIP, FACTOR = 0.7, 0.01, 0.5  # a scale of its own: no number of the schedule's halvings is one
EPOCHS: Final = 25  # of 12 steps
CLOSE: Final = 1e-6
NOBODY: Final = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


def by_rank(run: Run) -> dict[int, dict[int, Any]]:
    """Return step, rate, norm and clip of every step that counts, by rank and step."""
    found: dict[int, dict[int, Any]] = {0: {}, 1: {}}
    names = ("rank", "step", "lr", "grad_norm", "clip_coef")
    for _, block in run.reader.rank_blocks():
        for rank, step, *values in zip(*(block.column(name) for name in names), strict=True):
            found[int(rank)][int(step)] = tuple(map(float, values))
    return found


def near(one: float, other: float) -> bool:
    """Return whether two numbers are the same but for rounding."""
    return math.isclose(one, other, rel_tol=CLOSE)


def plain_rates(lab: Lab, steps: int, sections: Mapping[str, Any]) -> Callable[[int, float], bool]:
    """Return what tells whether a rate is the planned one of a step, by a run of one process that nobody touches."""
    if sections["training"]["lr_scheduler"] == "plateau":  # its reductions are its own: any whole number of them

        def reduced(step: int, lr: float) -> bool:
            times = math.log(lr / sections["training"]["lr"]) / math.log(FACTOR)
            return abs(times - round(times)) < CLOSE * 10 and round(times) >= 0

        return reduced
    run = lab.train(lab.config("plain", **{**sections, "data": {"batch_size": 4}}), "--max-steps", steps, name="plain")
    if run.until_end():
        raise RuntimeError(run.log.read_text()[-600:])
    known = {record.step: record.lr for record in run.reader.steps()}
    return lambda step, lr: near(lr, known[step])


def scheduled(lab: Lab, scheduler: str) -> Answer:
    """Scale the rate, clip, save, look, stop, and go on with what was asked for."""
    training = {"lr_scheduler": scheduler, "epochs": EPOCHS, "lr": 1e-4, "lr_factor": FACTOR, "lr_patience": 1,
                "lr_min": 0.0}  # fmt: skip
    sections = {"training": training, "validation": {"interval": 2}}
    config, began, wrong = lab.config(**sections), time.monotonic(), list[str]()
    run = lab.train(config, nproc=2, STEP_S="0.2").until_step(4)
    said: dict[str, Said] = {}
    for words in (("lr", "--scale", SCALE), ("clip", CLIP), ("checkpoint", "--tag", "kept"), ("status",), ("stacks",),
                  ("memory",), ("stop",)):  # fmt: skip
        said[str(words[0])] = run.ask("ctl", "RUN", *words, *(["--wait", 30] if words[0] in ("lr", "clip") else []))
    wrong += [f"ctl {name}: exit {one.code} {one.err[-200:]}" for name, one in said.items() if one.code]
    code = run.until_end(60)
    if (code, run.reader.status().state) != (130, "interrupted"):
        wrong.append(f"stopped with {code}, {run.reader.status().state}")
    small = surroundings(lab.hooks)["PYTHONPATH"]  # its network is that of the hooks
    if ask("inspect-ckpt", run.directory / "checkpoint_kept.pt", PYTHONPATH=small).code:
        wrong.append("checkpoint_kept.pt is not sound")
    if {line["rank"] for line in said["stacks"].result.get("processes", []) if line["role"] == "rank"} != {0, 1}:
        wrong.append("stacks of one rank only")
    stopped = run.step or max(line["step"] for line in run.steps_taken())
    again = lab.train(config, "--resume", "auto", "--max-steps", stopped + 6, nproc=2)
    if again.until_end():
        wrong.append(again.log.read_text()[-300:])
    wrong += held(again, plain_rates(lab, stopped + 6, sections))
    given = "at the next step, on both ranks, kept" if not wrong else "; ".join(wrong[:4])
    return Answer(given, not wrong, time.monotonic() - began)


def held(run: Run, planned: Callable[[int, float], bool]) -> list[str]:
    """Return where rate or clip of a step of either rank is not what was asked for before it."""
    at = {event.data["action"]: event.step for event in run.events("control") if event.data["done"]}
    wrong = [f"no record of {name}" for name in ("lr", "clip", "checkpoint", "stop") if name not in at]
    if wrong:
        return wrong
    for rank, steps in by_rank(run).items():
        if max(steps, default=0) <= at["stop"]:
            wrong.append(f"no step of rank {rank} after it went on")
        for step, (lr, norm, clip) in steps.items():
            scale, limit = (SCALE if step > at["lr"] else 1.0), (CLIP if step > at["clip"] else 1.0)
            if not planned(step, lr / scale):
                wrong.append(f"rank {rank} step {step}: rate {lr:.6g}, scaled after step {at['lr']}")
            if not math.isclose(clip, min(1.0, limit / (norm + 1e-6)), rel_tol=1e-4):
                wrong.append(f"rank {rank} step {step}: clip {clip:.4g} of norm {norm:.4g}, {limit} after {at['clip']}")
    return wrong


for name in ("cosine", "onecycle", "plateau"):
    scenario(GROUP, f"all of ctl under {name}", "next step, both ranks, recorded, kept after resume")(
        partial(scheduled, scheduler=name)
    )


@scenario(GROUP, "random commands", "all in the record, both ranks at the same step")
def random_commands(lab: Lab) -> Answer:
    """Ask two ranks for rate, clip and checkpoints in random order."""
    run, began, wrong = started(lab, nproc=2), time.monotonic(), list[str]()
    asked, scale = list[tuple[str, int]](), 1.0
    for number in range(lab.options.get("commands", 100)):
        words: list[object] = [["lr", "--scale"], ["clip"], ["checkpoint", "--tag"]][int(lab.rng.integers(3))]
        if words[0] == "lr":
            factor = float(lab.rng.uniform(0.5, 0.9))
            factor = factor if scale > 1 else 1 / factor
            scale *= factor
            words.append(factor)
        else:
            words.append(f"n{number}" if words[0] == "checkpoint" else float(lab.rng.uniform(0.01, 1)))
        said = run.ask("ctl", "RUN", *words, "--wait", 60)
        if said.code or not said.result.get("done"):
            wrong.append(f"{words}: exit {said.code} {said.err[-150:]}")
        asked.append((str(words[0]), int(said.result.get("step", -1))))
        if run.ended:
            return Answer(f"ended after {number}: {run.log.read_text()[-300:]}", False, time.monotonic() - began)
    events = [(event.data["action"], event.step) for event in run.events("control") if event.data["done"]]
    wrong += [] if events == asked else [f"{len(events)} recorded of {len(asked)}, or at other steps"]
    others = [(e.data["action"], e.step) for e in run.reader.of_other_ranks() if e.kind == "control" and e.data["done"]]
    wrong += [] if others == asked else [f"{len(others)} recorded by the second rank"]
    run.until_step(asked[-1][1] + 2)
    first, second = by_rank(run)[0], by_rank(run)[1]
    both = first.keys() & second.keys()
    apart = [step for step in both if first[step] != second[step]]
    wrong += [f"ranks apart at steps {apart[:3]}"] if apart else []
    wrong += [] if both else ["no step that both ranks recorded"]
    return Answer("; ".join(wrong[:4]) or f"{len(asked)} done and recorded", not wrong, time.monotonic() - began)


@scenario(GROUP, "another user", "each refused with exit 2 or 3")
def another_user(lab: Lab) -> Answer:
    """Ask as another user; only root can become one."""
    if os.getuid() != 0 or ask("--version", under=NOBODY).code:
        return Answer("skipped: only root can, and the other user must be able to read the program", True)
    run, began = started(lab), time.monotonic()
    for place in (lab.directory, lab.directory.parent):  # it is to be the record that refuses, no directory above it
        place.chmod(0o755)
    if subprocess.run([*NOBODY, "ls", str(lab.directory)], capture_output=True, check=False).returncode:
        return Answer(f"{lab.directory} cannot be reached by another user: --keep a directory that can", False)
    wrong, pid = list[str](), run.pages[0].pid
    for words in (("watch", run.directory, "--once"), ("ctl", run.directory, "status"), ("ctl", run.directory, "stop"),
                  ("ctl", run.directory, "stacks"), ("ctl", run.directory, "lr", "--scale", 0.5),
                  ("ctl", run.directory, "memory"), ("diagnose", "stacks", "--pid", pid),
                  ("diagnose", "hang", run.directory)):  # fmt: skip
        said = ask(*words, "--json", under=NOBODY)
        if said.code not in (2, 3) or "Traceback" in said.err:
            wrong.append(f"{' '.join(str(word) for word in words if word != run.directory)}: exit {said.code} "
                         f"{said.result.get('verdict', '')}{said.err[-200:]}")  # fmt: skip
    if run.ended or run.events("control"):
        wrong.append("it had an effect")
    return Answer("; ".join(wrong) or "all refused", not wrong, time.monotonic() - began)


def cannot_save(lab: Lab, rank: int) -> Answer:
    """Ask for a checkpoint while a rank is stopped, and let it go on afterwards."""
    run = started(lab, nproc=2)
    wait_for((run.directory / "checkpoint_last.pt").exists)
    pid, last = run.pages[rank].pid, str(run.directory / "checkpoint_last.pt")
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    began = time.monotonic()
    said = run.ask("ctl", "RUN", "checkpoint", "--tag", "later", "--wait", 5)
    seconds = time.monotonic() - began
    text = f"{said.result.get('message', '')}{said.finding.get('problem', '')}"
    words = "not done yet" if rank else "does not answer"
    right = said.code != 0 and words in text and f"the last good checkpoint is {last}" in text
    right = right and not said.result.get("done")
    os.kill(pid, signal.SIGCONT)
    saved = run.directory / "checkpoint_later.pt"
    if rank:  # the first rank had not read the request yet when the asker gave up
        right = right and wait_for(saved.exists, 30)
    return Answer(f"exit {said.code}: {text[:100]}; then {'saved' if saved.exists() else 'not saved'}", right, seconds)


for rank, says in ((1, "not done yet, last good checkpoint named; done later"), (0, "no answer, checkpoint named")):
    scenario(GROUP, f"checkpoint while rank {rank} is stopped", says)(partial(cannot_save, rank=rank))
