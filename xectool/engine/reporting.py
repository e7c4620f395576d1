"""``report``: one HTML file that holds all of a run."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from xectool.config.document import CONFIG_FILE
from xectool.config.load import config_from_dict
from xectool.config.serialize import dotted_values
from xectool.diagnosis.cause import Cause
from xectool.diagnosis.evidence.files import tolerant_manifest, tolerant_yaml
from xectool.diagnosis.evidence.incidents import Incident, read_incidents
from xectool.engine.diagnose.run_health import RunHealth
from xectool.engine.diagnose.run_health import run as diagnose_run
from xectool.engine.output_places import require_file_place
from xectool.engine.predicted_state import PREDICTIONS, stale_predictions
from xectool.engine.run_files import Measurement, measurement
from xectool.engine.runs import local_time
from xectool.errors import ConfigError, DiskError, duration
from xectool.findings import few
from xectool.report.curves import draw_learning_curves
from xectool.report.run_page import PageCause, PagePicture, PageTable, RunPage, picture, pictures, render
from xectool.report.step_curves import StepCourse, draw_steps
from xectool.runlog.conventional import conventional
from xectool.runlog.metrics import with_unit
from xectool.runlog.reader import Lineage, RunReader
from xectool.runlog.records import EpochRecord, is_routine
from xectool.training.process.progress import NullObserver, Observer

REPORT_NAME: Final = "report.html"
PARTS: Final = ("data_wait", "transfer", "forward", "backward", "optimizer", "checkpoint", "log")
MOST_EVENTS: Final = 60


@dataclass(frozen=True)
class ReportResult:
    """What was written.

    Attributes:
        path: The page.
        size_bytes: Its size.
        verdict: What it says first.
        left_out: Plots that would have made it too large.
    """

    path: str
    size_bytes: int
    verdict: str
    left_out: tuple[str, ...]


def report(run_dir: Path | str, output: Path | str | None = None, *, observer: Observer | None = None) -> ReportResult:
    """Write the page of a run, live or finished.

    Args:
        run_dir: Directory of the run.
        output: The page; default ``report.html`` in the run directory.
        observer: Receives progress.

    Raises:
        UsageError: The directory holds no run record, or the output is a directory or a file of the run.
        DiskError: The page cannot be written.
    """
    directory, watching = Path(run_dir).expanduser(), observer or NullObserver()
    watching.phase("diagnose the run", 0)
    health = diagnose_run(directory)
    watching.phase("write the report", 0)
    return write_page(directory, health, output)


def write_page(directory: Path, health: RunHealth, output: Path | str | None = None) -> ReportResult:
    """Write the page of a run that was diagnosed; see `report`."""
    target = Path(output).expanduser() if output is not None else directory / REPORT_NAME
    recorded = (path for path in directory.rglob("*") if path.suffix != ".html")
    require_file_place(target, "--output", REPORT_NAME, recorded)
    plots, left_out = pictures(directory / "plots")
    text = render(_page(directory, health, plots))
    _write(target, text)
    return ReportResult(str(target), len(text.encode()), health.verdict, tuple(left_out))


def _page(directory: Path, health: RunHealth, plots: list[PagePicture]) -> RunPage:
    reader = RunReader(directory)
    epochs = reader.epochs()
    manifest = tolerant_manifest(directory)
    attempt = (manifest["attempts"] or [{}])[-1]
    curves = _curves(directory, reader, epochs)
    drawn = {item.caption for item in curves}
    config = directory / CONFIG_FILE
    return RunPage(
        name=str(manifest.get("run_name") or directory.resolve().name),
        facts=_facts(reader, len(epochs), attempt, manifest),
        verdict=health.verdict,
        is_good=not health.bad,
        causes=[_cause(cause) for cause in (*health.causes, *health.notes)],
        curves=curves,
        plots=[plot for plot in plots if plot.caption not in drawn],
        plots_note=_plots_note(directory, measurement(reader, epochs)) if plots else "",
        tables=(
            *_metrics(epochs[-1].metrics if epochs else {}, reader),
            PageTable("Incidents", ("incident", "kind", "step", "found"), tuple(_incidents(directory, reader))),
            PageTable("What happened", ("what", "step", "message"), tuple(_events(reader))),
            PageTable("Different from the default", ("key", "here", "default"), tuple(_differences(config))),
            PageTable("Environment", ("what", "value"), _rows(dotted_values(_environment(attempt)))),
        ),
        config=config.read_text(errors="replace", encoding="utf-8") if config.exists() else "",
    )


def _plots_note(directory: Path, shown: Measurement | None) -> str:
    """Return of what other state the plots are, which are drawn with the predictions beside them."""
    if not (directory / PREDICTIONS).is_file():
        return ""
    return stale_predictions(directory, tolerant_yaml(directory / CONFIG_FILE), shown)


def _facts(reader: RunReader, epochs: int, attempt: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, str]:
    versions, status = attempt.get("versions", {}), reader.status()
    return {
        "state": status.said,
        "kind": str(manifest.get("kind", "-")),
        "epochs": str(epochs),
        "steps": f"{status.step:,}",
        "ranks": str(len(reader.live()) or 1),
        "attempts": str(status.attempts),
        "started": local_time(status.started)[:16].replace("T", " "),
        "lasted": duration(status.seconds),
        "host": status.host,
        "xectool, torch": f"{versions.get('xectool', '-')}, {versions.get('torch', '-')}",
        "commit": str(attempt.get("git_commit") or "-")[:12],
    }


def _cause(cause: Cause) -> PageCause:
    evidence = (*few(cause.evidence), *(f"ruled out: {line}" for line in cause.ruled_out))
    return PageCause(cause.code, cause.severity.value, cause.problem, evidence, cause.fix)


def _curves(directory: Path, reader: RunReader, epochs: Sequence[EpochRecord]) -> list[PagePicture]:
    course = _course(directory, reader)
    learning = draw_learning_curves([{"epoch": row.epoch, "metrics": row.metrics} for row in epochs])
    found = [picture(draw_steps(course), "every step of the run")] if len(course.step) else []
    return [*found, picture(learning, "learning curves")] if learning is not None else found


def _course(directory: Path, reader: RunReader) -> StepCourse:
    blocks = [block for _, block in reader.step_blocks()]

    def column(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.concatenate([np.asarray(block.column(name), float) for block in blocks] or [np.empty(0)])

    seconds = {name.replace("_", " "): column(f"{name}_s") for name in PARTS}
    seconds["other"] = np.clip(column("step_s") - np.nansum(list(seconds.values()), axis=0), 0, None)
    loss = column("loss")
    loss[~np.isfinite(loss)] = np.nan
    lineage = reader.lineage()
    incidents = [item.step for item in read_incidents(directory) if lineage.counts(item.attempt, item.step)]
    return StepCourse(column("step"), loss, column("grad_norm"), column("lr"), seconds, tuple(incidents))


def _incidents(directory: Path, reader: RunReader) -> Iterator[tuple[str, ...]]:
    lineage = reader.lineage()
    for incident in read_incidents(directory):
        yield incident.name, incident.kind, _place(lineage, incident.attempt, incident.step), _found(incident)


def _place(lineage: Lineage, attempt: int, step: int) -> str:
    """Return a step, and of which attempt where that was given up there."""
    return str(step) if lineage.counts(attempt, step) else f"{step} (attempt {attempt}, given up)"


def _found(incident: Incident) -> str:
    return incident.triage.cause or "-"


def _events(reader: RunReader) -> Iterator[tuple[str, ...]]:
    lineage = reader.lineage()
    worth = [(attempt, event) for attempt, event in reader.tagged_events() if not is_routine(event)]
    for attempt, event in worth[-MOST_EVENTS:]:
        yield (
            event.kind,
            _place(lineage, attempt, event.step),
            event.message or _text(dict(list(event.data.items())[:4])),
        )


def _differences(config: Path) -> Iterator[tuple[str, ...]]:
    ours = tolerant_yaml(config)
    if not ours:
        return
    theirs = dotted_values(_default(ours))
    for key, value in dotted_values(ours).items():
        if json.dumps(theirs.get(key), default=str) != json.dumps(value, default=str):
            yield key, _text(value), _text(theirs.get(key))


def _default(ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the same kind and tasks with nothing else said; nothing where there is none."""
    tasks = ours.get("tasks") or {}
    enabled = {
        name: {"enabled": True} for name, task in tasks.items() if isinstance(task, Mapping) and task.get("enabled")
    }
    try:
        return config_from_dict(
            {"kind": ours.get("kind"), **({"tasks": enabled} if enabled else {})}, "default"
        ).to_dict()
    except ConfigError:
        return {}


def _environment(attempt: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: attempt[name] for name in ("versions", "machine", "command", "seeds") if name in attempt}
    found |= attempt.get("extra") or {}
    if isinstance(found.get("command"), list):
        found["command"] = shlex.join(map(str, found["command"]))
    return found


def _metrics(metrics: Mapping[str, float], reader: RunReader) -> tuple[PageTable, PageTable]:
    """Return the metrics conventional estimators were scored on too, side by side, and the others of the last epoch.

    Where the epochs do not score them, as those of a regressor, the end of the run does, beside its best weights.
    """
    title, both = "Last epoch, beside conventional estimators", metrics
    beside = _names_beside(metrics)
    if not beside:
        ends = [event.data.get("metrics") for event in reader.last_events() if event.kind == "finished"]
        title, both = "Best weights, beside conventional estimators", next((end for end in ends[-1:] if end), {})
    alone = {with_unit(name): value for name, value in metrics.items() if name not in beside}
    return _beside(title, both), PageTable("Last epoch", ("metric", "value"), _rows(alone))


def _names_beside(metrics: Mapping[str, Any]) -> set[str]:
    pairs = {name: conventional(name, metrics) for name in metrics}
    return {one for name, found in pairs.items() if found for one in (name, *found.values())}


def _beside(title: str, metrics: Mapping[str, Any]) -> PageTable:
    pairs = {name: found for name in metrics if (found := conventional(name, metrics))}
    estimators = tuple(dict.fromkeys(estimator for found in pairs.values() for estimator in found))
    rows = (
        (with_unit(name), _text(metrics[name]), *(_text(metrics[found[e]]) if e in found else "-" for e in estimators))
        for name, found in pairs.items()
    )
    columns = ("metric", "network", *(estimator.replace("_", " ") for estimator in estimators))
    return PageTable(title, columns, tuple(rows))


def _rows(values: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    return tuple((key, _text(value)) for key, value in values.items())


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        said = {name: item for name, item in value.items() if item not in ("", (), [], {})}
        return ", ".join(f"{k} ({_text(v)})" if isinstance(v, Mapping) else f"{k} {_text(v)}" for k, v in said.items())
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value)
    return "-" if value is None else str(value)


def _write(target: Path, text: str) -> None:
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except OSError as error:
        fix = "--output /another/place/report.html"
        raise DiskError(f"cannot write the report: {error.strerror}", where=str(target), fix=fix) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
