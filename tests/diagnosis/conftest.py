"""Runs recorded through the writer of the product, with faults put into their course."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from xectool.diagnosis.cause import Diagnosis
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.ranking import diagnose
from xectool.runlog.manifest import AttemptFacts, write_manifest
from xectool.runlog.records import EpochRecord, StepRecord
from xectool.runlog.writer import RunWriter

CHANNELS = {
    "npho": {"mean": 0.3, "std": 0.35, "absmax": 1.6, "p99": 1.1, "valid_fraction": 0.99},
    "time": {"mean": 0.1, "std": 0.4, "absmax": 2.1, "p99": 1.2, "valid_fraction": 0.7},
}
Row = dict[str, Any]


@dataclass
class Course:
    """The course of a run: one row of step fields a step, events by step, and how it ends.

    A healthy one falls from ``start`` towards ``floor`` with the noise of single batches.
    """

    seed: int = 1
    steps: int = 200
    per_epoch: int = 40
    start: float = 1.0
    floor: float = 0.1
    noise: float = 0.15
    lr: float = 1e-3
    kind: str = "regressor"
    rows: list[Row] = field(default_factory=list)
    events: dict[int, list[tuple[str, dict[str, Any]]]] = field(default_factory=dict)
    epochs: dict[int, dict[str, Any]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    end: str = "finished"
    end_data: dict[str, Any] = field(default_factory=dict)
    input_scale: Mapping[str, Any] | None = field(default_factory=lambda: CHANNELS)
    baseline: float | None = 1.0
    resume_at: int = 0
    resume_data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        for step in range(1, self.steps + 1):
            level = self.floor + (self.start - self.floor) * math.exp(-4.0 * step / max(self.steps, 1))
            loss = level * float(rng.lognormal(0, self.noise))
            norm = 1.5 * level / self.start * float(rng.lognormal(0, 0.4))
            share = float(rng.uniform(0.47, 0.53))
            self.rows.append(
                {
                    "loss": loss, "losses": {"energy": share * loss, "uvwFI": (1 - share) * loss}, "grad_norm": norm,
                    "lr": self.lr, "clip_coef": min(1.0, 1.0 / norm), "data_wait_s": 0.001, "step_s": 0.1,
                    "num_events": 8, "block_norms": {"backbone.inner": 0.8 * norm, "heads.energy": 0.6 * norm},
                    "rss_bytes": int(5e8), "device_bytes": -1,
                }
            )  # fmt: skip

    def at(self, row: int, **values: Any) -> None:
        """Change fields of one step, counted from 1."""
        self.rows[row - 1] |= values

    def scale(self, first: int, factors: np.ndarray, norms: np.ndarray | None = None) -> None:
        """Multiply losses and gradient norms from a step on."""
        for row, factor, norm in zip(
            self.rows[first - 1 :], factors, factors if norms is None else norms, strict=False
        ):
            row["loss"] *= float(factor)
            row["losses"] = {name: value * float(factor) for name, value in row["losses"].items()}
            row["grad_norm"] *= float(norm)

    def nan(self, step: int, terms: tuple[str, ...] = ("energy", "uvwFI"), **event: Any) -> None:
        """Make a step non-finite and record the skip as the guard does."""
        losses = {name: math.nan if name in terms else value for name, value in self.rows[step - 1]["losses"].items()}
        loss = math.nan if terms else self.rows[step - 1]["loss"]
        self.at(step, loss=loss, losses=losses, grad_norm=math.nan, nonfinite=True, skipped=True)
        self.event(step, "nonfinite_skip", **event)

    def event(self, step: int, kind: str, **data: Any) -> None:
        """Record an event after a step."""
        self.events.setdefault(step, []).append((kind, data))


def write(course: Course, run_dir: Path) -> Path:
    """Record a course and return its directory."""
    run_dir.mkdir(parents=True, exist_ok=True)
    training = {"lr": course.lr, "grad_clip": 1.0, "epochs": 20} | course.config.pop("training", {})
    config = {"kind": course.kind, "training": training, "data": {"batch_size": 8}, **course.config}
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config))
    write_manifest(run_dir, AttemptFacts(1, config))
    if course.end != "killed":
        _write(course, run_dir)
        return run_dir
    child = os.fork()
    if child == 0:
        _write(course, run_dir)
        os._exit(0)
    os.waitpid(child, 0)
    return run_dir


def _write(course: Course, run_dir: Path) -> None:
    cuts = [course.resume_at] if course.resume_at else []
    writer = RunWriter(run_dir)
    writer.event("run_start", blocks=["backbone.inner", "heads.energy"], lr=course.lr, amp="off")
    if course.input_scale is not None:
        level = "ok" if course.input_scale is CHANNELS else "error"
        writer.event("input_scale", channels=course.input_scale, level=level)
    if course.baseline is not None:
        writer.event("baseline", terms={"energy": course.baseline / 2, "uvwFI": course.baseline / 2})
    now = time.time() - 0.1 * course.steps
    for step, row in enumerate(course.rows, start=1):
        epoch, place = (step - 1) // course.per_epoch + 1, (step - 1) % course.per_epoch
        number = row.get("step", step)
        values = {"batch_start": place, "batch_stop": place + 1} | {k: v for k, v in row.items() if k != "step"}
        writer.step(StepRecord(epoch, number, now + 0.1 * step, 0.1 * step, **values))
        for kind, data in course.events.get(step, []):
            said = dict(data)
            writer.event(kind, said.pop("message", ""), step=step, epoch=epoch, **said)
        if place + 1 == course.per_epoch:
            _epoch(course, writer, epoch, step)
        if step in cuts:
            writer.event("interrupted", "interrupted", step=step)
            writer.close()
            writer = RunWriter(run_dir)
            writer.resume(step, epoch, path="checkpoint_last.pt", **course.resume_data)
    if course.end != "killed":
        said = dict(course.end_data)
        writer.event(course.end, said.pop("message", course.end), step=course.steps, **said)
    if course.end != "killed":
        writer.close()


def _epoch(course: Course, writer: RunWriter, epoch: int, step: int) -> None:
    losses = [row["loss"] for row in course.rows[max(0, step - course.per_epoch) : step] if math.isfinite(row["loss"])]
    mean = float(np.mean(losses)) if losses else math.nan
    metrics = {"train/loss": mean, "val/loss": mean, "val/energy/loss": mean / 2, "val/uvwFI/loss": mean / 2}
    changed = dict(course.epochs.get(epoch, {}))
    metrics |= changed.pop("metrics", {})
    facts = {"events_seen": 8 * course.per_epoch, "events_expected": 8 * course.per_epoch, "duplicates": 0}
    writer.epoch(EpochRecord(epoch, step, time.time(), 0.0, metrics, **(facts | changed)))
    writer.event("checkpoint", step=step, epoch=epoch, path="checkpoint_last.pt", size_bytes=5_000_000, seconds=0.1)


@pytest.fixture(scope="module", autouse=True)
def _few_blocks(room_of_trainings: None) -> None:
    """The trainings have shallow networks: forty of a hundred seconds less."""


@pytest.fixture
def record(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Course], Diagnosis]:
    """Record a course and diagnose it."""

    def recorded(course: Course) -> Diagnosis:
        return diagnose(gather(write(course, tmp_path_factory.mktemp("run"))))

    return recorded


@pytest.fixture
def course() -> type[Course]:
    """The class of courses, for modules that cannot import this one."""
    return Course


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[[Course], Path]:
    """Record a course and return the run directory."""
    return lambda course: write(course, tmp_path / "run")
