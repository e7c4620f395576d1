"""Every line of advice can be pasted: its command exists, its settings load."""

from __future__ import annotations

import faulthandler
import itertools
import json
import math
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import typer
import yaml
from xectool.cli.app import app
from xectool.config.load import load_config
from xectool.config.order_keys import ORDER_KEYS
from xectool.config.rates import peak_lr
from xectool.config.root import KINDS as RUN_KINDS
from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, Diagnosis
from xectool.diagnosis.evidence.evidence import Evidence, gather
from xectool.diagnosis.evidence.files import CheckpointFile
from xectool.diagnosis.excluded import blamed, with_all_left_out
from xectool.diagnosis.memory_ladder import ladder
from xectool.diagnosis.ranking import RULES, diagnose
from xectool.diagnosis.reports.loss import loss_causes, loss_report
from xectool.diagnosis.reports.memory import KINDS, of_run

Write = Callable[[Any], Path]
BASE: dict[str, Any] = {
    "kind": "regressor",
    "data": {"train_path": "train.root", "val_path": "val.root", "batch_size": 8, "chunksize": 64, "num_workers": 2,
             "prefetch_factor": 4, "persistent_workers": True, "timeout_s": 60},
    "tasks": {"energy": {"enabled": True, "scale": 0.05}},
    "training": {"lr": 1e-3, "epochs": 20},
}  # fmt: skip


def nan_data(run: Any) -> None:
    run.nan(50, stage="loss", events=[[0, 1, 2, 3]], suspects=[[0, 1, 2, 3]])


def nan_lr(run: Any) -> None:
    run.scale(100, 1.4 ** np.arange(60))
    for step in range(150, 156):
        run.nan(step)


def overflow(run: Any) -> None:
    for step, row in enumerate(run.rows):
        bad = step > 50 and step % 5 == 0
        row |= {
            "amp_scale": 65536.0 / 2 ** (step // 5),
            **({"grad_norm": float("inf"), "skipped": True} if bad else {}),
        }


def events(*named: tuple[str, dict[str, Any]]) -> Callable[[Any], None]:
    def add(run: Any) -> None:
        for kind, data in named:
            run.event(90, kind, **data)

    return add


FAULTS: dict[str, Callable[[Any], None]] = {
    "XT-NAN-DATA": nan_data,
    "XT-NAN-LR": nan_lr,
    "XT-AMP-OVERFLOW": overflow,
    "XT-SPIKE-EVENT": lambda run: run.scale(120, np.array([900.0])),
    "XT-INPUT-SCALE": lambda run: run.__setattr__("input_scale", {"npho": {"mean": 900.0, "std": 2e3, "absmax": 1e5}}),
    "XT-NO-LEARNING": lambda run: [row.update(lr=1e-12) for row in run.rows] and None,
    "XT-MEM-GROWTH": lambda run: [row.update(rss_bytes=int(5e8 + 5e6 * n)) for n, row in enumerate(run.rows)] and None,
    "XT-OOM-GPU": events(("oom", {"side": "device", "requested": 2e9, "capacity": 4e10})),
    "XT-OOM-HOST": events(("oom", {"side": "host"})),
    "XT-OOM-FRAGMENTATION": events(("oom", {"side": "device", "capacity": 4e10, "reserved_unallocated": 1e10})),
    "XT-WORKER-DEAD": lambda run: run.__dict__.update(end="failed", end_data={"message": "XT-LOADER-KILLED"}),
    "XT-RESTART": lambda run: run.__dict__.update(resume_at=80, rows=run.rows[:80] + run.rows[:120]),
    "XT-LOADER-SLOW": lambda run: [row.update(data_wait_s=0.05) for row in run.rows] and None,
    "XT-CKPT-SLOW": events(*[("checkpoint", {"bytes": 1e7, "seconds": 60.0})] * 9),
    "XT-RECOMPILE": events(("recompile_limit", {"reason": "size"})),
    "XT-DB-LOCKED": events(("tracker", {"message": "database is locked"})),
    "XT-DISK-FULL": events(("checkpoint_failed", {"reason": "No space left on device"})),
    "XT-HANG": events(("hang", {"phase": "data_wait", "age_s": 200.0})),
    "XT-UNEVEN-RANKS": events(("ranks", {"steps": {"0": 1, "1": 2}})),
    "XT-DUPLICATE-EVENTS": lambda run: run.epochs.update({2: {"duplicates": 5}}),
    "XT-DUPLICATE-STEPS": lambda run: run.at(90, step=80),
    "XT-EVENTS-MISSING": lambda run: run.epochs.update({2: {"events_seen": 5}}),
    "XT-UNTRAINED-HEAD": events(("zero_gradient", {"parameters": ["heads.energy.0.weight"]})),
    "XT-DIVERGED": lambda run: run.epochs.update(
        {n: {"metrics": {"val/loss": 900.0 * n, "train/loss": 900.0 * n}} for n in range(1, 6)}
    ),
    "XT-COLLAPSED": events(("collapsed", {"tasks": {"energy": {"pred_std": 0.0, "target_std": 1.0}}})),
}


def commands(prefix: str = "") -> set[str]:
    group = typer.main.get_command(app)
    found = set()
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        found.add(name)
        found |= {f"{name} {inner}" for inner in getattr(command, "commands", {})}
    return found


def paste(line: str, config: Path) -> list[str]:
    """Check the commands of a line and return the settings in it."""
    for part in re.split(r";|#", line):
        words = shlex.split(part)
        if words[:1] == ["xectool"]:
            assert " ".join(words[1:3]) in commands() or words[1] in commands(), line
    settings = re.findall(r"--set (\S+=\S+)", line)
    load_config(config, settings)
    return settings


def states(found: Evidence) -> Iterator[tuple[str, Evidence]]:
    """A run that has finished, ended before its first checkpoint, in an epoch, and between two."""
    files = tuple(CheckpointFile(f"checkpoint_{name}.pt", 1, 1.0) for name in ("best", "last"))
    saved = [event for event in found.events if event.kind == "checkpoint"][-1]
    none = tuple(event for event in found.events if event.kind != "checkpoint")
    ended = replace(found, status=replace(found.status, state="killed"), checkpoints=files)
    yield "finished", replace(ended, status=replace(found.status, state="finished"))
    yield "unsaved", replace(ended, events=none, epochs=(), checkpoints=())
    yield "in an epoch", replace(ended, events=(*found.events, replace(saved, step=saved.step - 1)))
    yield "between epochs", ended


def goes_on(line: str, state: str, config: Path) -> None:
    """Check that a line to paste, whose settings load, is not refused and trains something in the state of the run."""
    words = shlex.split(line, comments=True)
    settings = [value for option, value in itertools.pairwise(words) if option == "--set"]
    assert words[2] == str(config)
    target = words[words.index("--resume") + 1] if "--resume" in words else ""
    assert target or "--run-name" in words, "it would begin anew in its own directory"
    assert state != "finished" or not target, "nothing is left to train"
    assert target in ("", "auto") or state != "unsaved", "there is nothing to resume"
    assert target != "auto" or state == "unsaved"
    if state == "in an epoch" and target and not target.endswith("best.pt"):
        assert not {item.partition("=")[0] for item in settings} & {*ORDER_KEYS}, "other batches inside an epoch"


def agrees(evidence: Evidence, found: Diagnosis, config: Path) -> None:
    """Check that ``diagnose loss`` and ``diagnose memory`` give the line of ``diagnose run``, or one that leads on."""
    about_loss = loss_causes(found)
    said = loss_report(evidence, about_loss).recovery_command
    assert said.startswith(about_loss[0].fix) if about_loss else not said
    memory = of_run(evidence, found.causes)
    assert memory.code == next((cause.code for cause in found.causes if cause.code in KINDS), "")
    assert bool(memory.next) == bool(memory.code)
    assert "diagnose memory" not in memory.next
    paste(memory.next, config)


@pytest.mark.parametrize("code", FAULTS)
def test_the_fix_of_each_cause_can_be_pasted(course: Any, write_run: Write, tmp_path: Path, code: str) -> None:
    run = course(kind="regressor", config={**BASE, "training": {"lr": 1e-3, "epochs": 5}})
    FAULTS[code](run)
    recorded = gather(write_run(run))
    config = recorded.run_dir / "config.yaml"
    first, seen = diagnose(recorded), set()
    assert first.causes[0].code == code
    agrees(recorded, first, config)
    for state, evidence in states(recorded):
        rules = [rule for rule in RULES if rule.code in {cause.code for cause in (*first.causes, *first.notes)}]
        found = diagnose(evidence, rules)
        for cause in (*found.causes, *found.notes):
            assert cause.fix, cause.code
            if cause.fix not in seen:
                paste(cause.fix, config)
            seen.add(cause.fix)
            for part in cause.fix.split(";"):
                if part.strip().startswith("xectool train"):
                    goes_on(part, state, config)


@pytest.mark.parametrize("holder", ["", "LOSSES (/home/me/hooks.py)"])
def test_growth_by_graphs_that_are_kept_is_cured_where_they_are_kept(
    course: Any, write_run: Write, holder: str
) -> None:
    """Readers that end with each epoch do nothing against a list of losses in the training process."""
    run = course(kind="regressor", config=BASE)
    FAULTS["XT-MEM-GROWTH"](run)
    data = {"kept_graphs": 30 if holder else 0, "holder": holder}
    run.event(60, "memory_growth", message=f"memory grows by 5.0 MB a step; held by {holder}", **data)
    recorded = gather(write_run(run))
    memory = of_run(recorded, diagnose(recorded).causes)
    assert memory.code == "XT-MEM-GROWTH"
    assert ("persistent_workers=false" in memory.next) == (not holder)
    assert (f"store .detach() or .item() of each tensor in {holder}" in memory.next) == bool(holder)
    assert not holder or memory.evidence == (f"memory grows by 5.0 MB a step; held by {holder}",)


@pytest.mark.parametrize(("share", "own"), [(0.95, True), (0.03, False), (0.5, None)])
def test_growth_of_the_training_process_is_not_laid_to_those_that_read(
    course: Any, write_run: Write, share: float, own: bool | None
) -> None:
    """A list that a hook kept was to be cured by readers that end with each epoch; now it is known who grows."""
    run = course(kind="regressor", config=BASE)
    for step, row in enumerate(run.rows):
        row |= {"rss_bytes": int(5e8 + 5e6 * step), "own_rss_bytes": int(3e8 + share * 5e6 * step)}
    recorded = gather(write_run(run))
    memory = of_run(recorded, diagnose(recorded).causes)
    assert memory.code == "XT-MEM-GROWTH"
    assert ("persistent_workers=false" in memory.next) == (own is not True)
    assert ("in the training process itself" in memory.verdict) == (own is True)
    assert ("in the processes it started" in memory.verdict) == (own is False)
    assert ("not those that read for it" in memory.evidence[0]) == (own is True)


def test_the_line_about_a_tracking_database_is_quoted_and_holds_no_password(course: Any, write_run: Write) -> None:
    run = write_run(course())
    (run / "tracking").mkdir(exist_ok=True)
    uri = "sqlite:////data/some one's/mlflow.db"
    (run / "tracking" / "settings.json").write_text(json.dumps({"uri": "http://me:secret@host:5000"}))
    for state, words in (({"uri": uri}, [uri]), ({}, [])):
        (run / "tracking" / "state.json").write_text(json.dumps({"status": "behind", "error": "refused", **state}))
        found = diagnose(gather(run))
        (cause,) = [item for item in (*found.causes, *found.notes) if item.code == "XT-TRACKER-DOWN"]
        assert shlex.split(cause.fix) == ["xectool", "diagnose", "mlflow", *words]
        assert "secret" not in str(cause)


@pytest.mark.parametrize("warned", [False, True])
def test_a_mirror_that_had_no_time_is_a_note_with_the_line_that_replays(
    course: Any, write_run: Write, warned: bool
) -> None:
    recorded = course()
    if warned:
        recorded.event(10, "tracker", message="tracking is paused: no route")
    recorded.event(20, "interrupted")
    run = write_run(recorded)
    (run / "tracking").mkdir(exist_ok=True)
    uri = "sqlite:////tmp/mlflow.db"
    for status in ("late", "behind"):
        state = {"status": status, "error": "no time", "uri": uri}
        (run / "tracking" / "state.json").write_text(json.dumps(state))
        found = diagnose(gather(run))
        failed = warned or status == "behind"
        (cause,) = [item for item in (found.causes if failed else found.notes) if item.code == "XT-TRACKER-DOWN"]
        line = f"diagnose mlflow {uri}" if status == "behind" else f"runs sync {run}"
        assert cause.fix == f"xectool {line}"
        assert "no time" in str(cause)
        assert "caught up" not in str(cause)


@pytest.mark.parametrize("code", ["XT-NAN-LR", "XT-AMP-OVERFLOW", "XT-INPUT-SCALE"])
def test_the_recovery_configuration_loads_and_holds_its_changes(
    course: Any, write_run: Write, tmp_path: Path, code: str
) -> None:
    run = course(kind="regressor", config={key: BASE[key] for key in ("data", "tasks")})
    FAULTS[code](run)
    evidence = gather(write_run(run))
    report = loss_report(evidence, loss_causes(diagnose(evidence)))
    assert report.recovery_config is not None
    path = tmp_path / "recovery.yaml"
    path.write_text(yaml.safe_dump(report.recovery_config))
    loaded = load_config(path).config
    for key, value in report.recovery_changes.items():
        got: Any = loaded
        for part in key.split("."):
            got = getattr(got, part)
        assert got == value
    assert report.since_step > 0
    paste(report.recovery_command, path)


def test_the_ladder_keeps_its_order_and_the_effective_batch(tmp_path: Path) -> None:
    rungs = ladder(BASE | {"training": {"grad_accum_steps": 2}})
    assert [rung.title.split()[0] for rung in rungs] == [
        "smaller", "recompute", "bf16", "drop", "gradient", "sharding", "allocator:"
    ]  # fmt: skip
    assert rungs[0].settings == ("data.batch_size=4", "training.grad_accum_steps=4")
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump(BASE))
    for rung in rungs:
        load_config(config, rung.settings)


def test_every_rule_says_what_it_looks_for() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.code.startswith("XT-"), rule.name
        assert rule.title, rule.name


def test_a_checkpoint_newer_than_the_fault_is_not_gone_back_to(course: Any, write_run: Write) -> None:
    run = course()
    nan_lr(run)
    place = write_run(run)
    (place / "checkpoint_last.pt").write_bytes(b"x")
    (place / "checkpoint_epoch_2.pt").write_bytes(b"x")
    fix = diagnose(gather(place)).causes[0].fix
    assert "checkpoint_epoch_2.pt" in fix
    (place / "checkpoint_epoch_2.pt").unlink()
    assert "--resume" not in diagnose(gather(place)).causes[0].fix


@pytest.mark.parametrize(("since", "resumes"), [(2, False), (110, True)])
def test_a_checkpoint_of_weights_that_had_run_away_is_not_gone_back_to(
    course: Any, write_run: Write, since: int, resumes: bool
) -> None:
    """Epochs end finite long before the step that does not; a lower rate does not bring their weights back."""
    run = course()
    growth = 1e7 * 1.1 ** np.arange(150 - since)
    run.scale(since, growth, growth)
    for step in range(150, 156):
        run.nan(step)
    place = write_run(run)
    (place / "checkpoint_epoch_2.pt").write_bytes(b"x")
    (cause,) = [cause for cause in diagnose(gather(place)).causes if cause.code == "XT-NAN-LR"]
    assert ("--resume" in cause.fix) == resumes


@pytest.mark.parametrize(("own", "advised"), [(1.0, "0.5"), (0.1, "0.1"), (0, "0.5")])
def test_advice_never_raises_the_limit_of_the_gradient_norm(
    course: Any, write_run: Write, own: float, advised: str
) -> None:
    run = course(config={"training": {"grad_clip": own}})
    growth = 1.25 ** np.arange(1, 41)
    run.scale(100, growth, growth)
    found = diagnose(gather(write_run(run)))
    fix = next(cause.fix for cause in found.causes if cause.code == "XT-SPIKE-LR")
    assert f"training.grad_clip={advised}" in fix.split()


@pytest.mark.parametrize("training", [
    {"lr": 1.5e-3},
    {"lr": 1e-3, "lr_scheduler": "cosine", "lr_min": 5e-4},
    {"lr": 1e-4, "lr_scheduler": "onecycle", "max_lr": 5e-3, "warmup_epochs": 0},
    {"lr": 4e-3, "lr_scheduler": "onecycle", "max_lr": 5e-3, "warmup_epochs": 0, "lr_min": 1e-3},
])  # fmt: skip
@pytest.mark.parametrize("code", ["XT-NAN-LR", "XT-SPIKE-LR"])
def test_a_lower_rate_is_the_peak_of_the_schedule_and_its_line_loads(
    course: Any, write_run: Write, tmp_path: Path, code: str, training: dict[str, Any]
) -> None:
    config = {key: BASE[key] for key in ("data", "tasks")} | {"training": training}
    run = course(kind="regressor", config=dict(config))
    if code == "XT-NAN-LR":
        nan_lr(run)
    else:
        run.scale(100, 1.25 ** np.arange(1, 41), 1.25 ** np.arange(1, 41))
    found = diagnose(gather(write_run(run)))
    (fix,) = [cause.fix for cause in found.causes if cause.code == code]
    words = shlex.split(fix)
    settings = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"kind": "regressor"} | config))
    before, after = load_config(path).config.training, load_config(path, settings).config.training
    assert peak_lr(after) == pytest.approx(peak_lr(before) / 10)


def test_files_in_another_unit_are_looked_at_where_the_constants_are_right(course: Any, write_run: Write) -> None:
    constants = {"time_scale": 1.14e-7, "time_shift": -0.46}
    run = course(config={"data": {"train_path": ["a b.root", "c.root"]}, "normalization": constants})
    run.input_scale = {"time": {"mean": 3e7, "std": 2e7, "absmax": 9e7}}
    place = write_run(run)
    (cause,) = [cause for cause in diagnose(gather(place)).causes if cause.code == "XT-INPUT-SCALE"]
    assert shlex.split(cause.fix)[:6] == [
        "xectool",
        "check-data",
        "a b.root",
        "c.root",
        "--config",
        f"{place}/config.yaml",
    ]
    (place / "config.yaml").write_text(yaml.safe_dump({"normalization": constants | {"time_shift": 0.0}}))
    (cause,) = [cause for cause in diagnose(gather(place)).causes if cause.code == "XT-INPUT-SCALE"]
    assert cause.fix.split("--set ")[1:] == ["normalization.time_shift=-0.46"]


def test_a_hang_that_is_over_shows_the_recorded_stack(course: Any, write_run: Write) -> None:
    run = course(end="killed", steps=60)
    run.event(60, "hang", phase="data_wait", age_s=300.0, stacks="rank0000.stacks")
    place = write_run(run)
    assert "--resume" in diagnose(gather(place)).causes[0].fix  # nothing is there to be shown
    with (place / "rec/a0001/rank0000.stacks").open("w") as stream:
        stream.write("== 2026-01-01 00:00:00 pid 1: phase data_wait for 300 s\n")
        stream.flush()
        pool = ThreadPoolExecutor()
        waiting = pool.submit(time.sleep, 0.2)
        line = sys._getframe().f_lineno + 1
        faulthandler.dump_traceback(stream)
        waiting.result()
    cause = diagnose(gather(place)).causes[0]
    assert f"{Path(__file__).name}:{line}" in cause.evidence[1]
    assert cause.fix == f'xectool diagnose query {place} "select text from stacks where attempt = 1"'


def test_a_refused_state_is_resumed_from_an_earlier_one(course: Any, write_run: Write) -> None:
    run = course(steps=80, end="failed", resume_at=79, resume_data={"weights_finite": True})
    run.rows = run.rows[:79]
    said = "CheckpointError: the weights in the checkpoint are not finite"
    run.end_data = {
        "message": said,
        "code": "XT-NAN-RESUME",
        "next": "xectool diagnose nan-batch config.yaml --run run",
    }
    place = write_run(run)
    (place / "checkpoint_best.pt").write_bytes(b"x")
    (cause,) = [cause for cause in diagnose(gather(place)).causes if cause.code == "XT-NAN-RESUME"]
    assert f"--resume {place}/checkpoint_best.pt" in cause.fix


def test_the_state_that_did_the_damage_is_never_the_one_to_go_on_from(course: Any, write_run: Write) -> None:
    damaged = {"weights_finite": True, "optimizer_finite": True, "optimizer_absmax": 4.8e15}
    run = course(steps=80, per_epoch=20, end="failed", resume_at=50, resume_data=damaged)
    for row in run.rows[52:]:
        row.update(loss=math.nan, skipped=1)
    for step in (30, 50):
        run.event(step, "checkpoint", path="checkpoint_last.pt", bytes=1, seconds=0.1)
    place = write_run(run)
    (place / "checkpoint_last.pt").write_bytes(b"x")
    cause = diagnose(gather(place)).causes[0]
    assert cause.code == "XT-NAN-RESUME"
    assert "checkpoint_last.pt" not in cause.fix
    (place / "checkpoint_epoch_2.pt").write_bytes(b"x")
    assert "checkpoint_epoch_2.pt" in diagnose(gather(place)).causes[0].fix  # the control: one from before it


@pytest.mark.parametrize("count", [{"events_seen": 640, "duplicates": 320}, {"events_seen": 311}])
@pytest.mark.parametrize(
    ("config", "line"),
    [
        ("num_workers: 2, num_threads: 2", "--set data.num_workers=0 --set data.num_threads=1"),
        ("num_workers: 0, num_threads: 4", "-one-reader --set data.num_threads=1"),
        ("num_workers: 0, num_threads: 1", "diagnose query"),
    ],
)
def test_counts_that_are_wrong_lead_to_settings_that_change_something(
    course: Any, write_run: Write, count: dict[str, int], config: str, line: str
) -> None:
    place = write_run(course(epochs={2: count}))
    (place / "config.yaml").write_text(f"data: {{{config}}}\n")
    assert line in diagnose(gather(place)).causes[0].fix


@pytest.mark.parametrize(
    ("name", "saved", "expected"),
    [
        ("run", False, ["--run-name", "run-recovered", "--set", "training.lr=0.1", "--set", "checkpoint.save_dir={}"]),
        (
            "my run",
            False,
            ["--run-name", "my_run-recovered", "--set", "training.lr=0.1", "--set", "checkpoint.save_dir={}"],
        ),
        ("run", True, ["--resume", "{}/run", "--set", "checkpoint.save_dir={}"]),
        ("other", True, ["--resume", "{}/other", "--set", "checkpoint.save_dir={}", "--set", "mlflow.run_name=other"]),
        ("my run", True, ["--resume", "{}/my run", "--set", "checkpoint.save_dir={}", "--set", "mlflow.run_name=null"]),
    ],
)
def test_a_run_that_was_moved_goes_on_where_it_lies(
    course: Any, write_run: Write, tmp_path: Path, name: str, saved: bool, expected: list[str]
) -> None:
    place = Path(shutil.copytree(write_run(course(end="failed")), tmp_path / "new" / name))
    (place / "config.yaml").write_text("checkpoint: {save_dir: /gone/runs}\nmlflow: {run_name: run}\n")
    if saved:
        (place / "checkpoint_last.pt").write_bytes(b"x")
    found = gather(place)
    line = fixes.resume(found) if saved else fixes.continue_from_best(found, "training.lr=0.1")
    assert shlex.split(line)[3:] == [word.format(tmp_path / "new") for word in expected]
    (place / "config.yaml").write_text(f"checkpoint: {{save_dir: {tmp_path}/new}}\nmlflow: {{run_name: {name}}}\n")
    assert "checkpoint.save_dir" not in fixes.resume(gather(place))


def test_a_record_without_its_steps_is_not_called_healthy(course: Any, write_run: Write) -> None:
    place = write_run(course(steps=40))
    assert diagnose(gather(place)).healthy
    for path in (place / "rec").rglob("*.steps*"):
        path.unlink()
    found = diagnose(gather(place))
    assert [cause.code for cause in found.causes] == ["XT-RECORD-DAMAGED"]
    assert "diagnose query" in found.causes[0].fix
    (lines,) = (place / "rec").rglob("events.jsonl")
    lines.write_text("")
    assert diagnose(gather(place)).verdict.startswith("XT-RECORD-DAMAGED: its record is damaged: how the run ended")


def test_events_are_named_by_their_file() -> None:
    manifest = {"attempts": [{"data_files": [{"path": "v.root", "role": "val"}, {"path": "a.root", "role": "train"}]}]}
    evidence = cast(Evidence, SimpleNamespace(manifest=manifest))
    named = fixes.events_named(evidence, [(0, 37, 1, 2), (5, 1, 1, 2)])
    assert named == "a.root entry 37 (run 1 event 2); file 5 entry 1 (run 1 event 2)"


@pytest.mark.parametrize(("base", "rate"), [("regressor", 3e-4), ("mae", 1e-4)])
def test_a_kind_of_another_package_gets_the_rate_of_the_one_it_is_built_on(
    base: str, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RUN_KINDS, "mine", RUN_KINDS[base])
    started = SimpleNamespace(data={"kind": "mine"})
    recorded = {"training.lr": 0.5}
    evidence = cast(Any, SimpleNamespace(last=lambda _: started, setting=recorded.get))
    assert fixes.usual_lr(evidence) == (f"training.lr={rate:g}",)
    recorded["training.lr"] = 2 * rate
    assert fixes.usual_lr(evidence) == ()


@pytest.mark.parametrize("code", ["XT-DATA-DAMAGED", "XT-DATA-TRUNCATED", "XT-DATA-EMPTY"])
def test_a_bad_file_is_looked_at_before_the_run_goes_on(course: Any, write_run: Write, code: str) -> None:
    how = code.rpartition("-")[2].lower()
    said = f"DataFileError: '/data/b.root' is {how}: branch 'npho', entries 0 to 64 cannot be read"
    end = {"message": said, "code": code, "next": "xectool diagnose run RUN"}
    place = write_run(course(end="failed", end_data=end))
    (cause,) = [cause for cause in diagnose(gather(place)).causes if cause.code == code]
    line, _, then = cause.fix.partition("   # ")
    assert line == f"xectool check-data /data/b.root --config {place / 'config.yaml'} --deep"
    assert then.startswith("copy it again, then: xectool train ")


@pytest.mark.parametrize(("steps", "resumes"), [(0, False), (40, True)])
def test_a_run_that_failed_before_its_first_step_is_not_resumed(
    course: Any, write_run: Write, steps: int, resumes: bool
) -> None:
    run = course(steps=40, end="failed")
    run.rows = run.rows[:steps]
    run.end_data = {"message": "SomeError: of its own", "code": "XT-FAILED", "next": "xectool diagnose run run"}
    (cause,) = [cause for cause in diagnose(gather(write_run(run))).causes if cause.code == "XT-FAILED"]
    assert ("--resume" in cause.fix) == resumes


def test_another_run_leaves_out_what_a_resume_inside_an_epoch_has(course: Any, write_run: Write) -> None:
    """config.yaml keeps the list of that epoch's order: the lines that train anew had those events back in."""
    place = write_run(course(steps=40))
    assert "data.exclude" not in fixes.train_again(gather(place))
    event = {"file": "/data/b.root:tree", "file_index": 0, "entry": 7, "run": 1, "event": 8, "step": 3}
    told = [{**event, "reason": "data.exclude"}, {**event, "entry": 9, "reason": "XT-NAN-DATA"}]
    (place / "quarantine.json").write_text(json.dumps({"format": 1, "budget": 16, "events": told}))
    evidence = gather(place)
    kept = "--set 'data.exclude=[/data/b.root:tree:7]'"
    assert kept in fixes.train_again(evidence)
    assert kept in fixes.continue_from_best(evidence)
    assert "data.exclude" not in fixes.resume(evidence)
    files = [{"path": "/data/b.root", "tree": "tree", "role": "train"}]
    known = replace(evidence, manifest={"attempts": [{"data_files": files}]})
    cause = Cause("XT-NAN-DATA", 0.9, "bad", fix="xectool check-data", blamed=blamed(known, [(0, 12, 1, 13)]))
    listed = "--set 'data.exclude=[/data/b.root:tree:7, /data/b.root:tree:12]'"
    assert with_all_left_out(known, [cause])[0].fix == f"xectool check-data   # then train with {listed}"
