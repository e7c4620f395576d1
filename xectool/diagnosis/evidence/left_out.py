"""Which events a run leaves out as the user asks: its configuration names them, and what a resume inside an epoch took.

``config.yaml`` keeps the list of the order that such an epoch has; ``quarantine.json`` tells what was named since.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from xectool.config.data import DataConfig
from xectool.config.left_out import KEY, leaving_out
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.files import QUARANTINE_FILE, tolerant_json, train_files
from xectool.diagnosis.evidence.incidents import number, whole
from xectool.errors import in_shell
from xectool.runlog.records import EventRecord


def data_settings(evidence: Evidence) -> DataConfig:
    """Return what tells which events the user leaves out; the defaults where the configuration is damaged."""
    told = {key: evidence.setting(f"data.{key}") for key in ("exclude", "tree_name")}
    try:
        data = DataConfig.model_validate({key: value for key, value in told.items() if value is not None})
    except ValueError:
        data = DataConfig()
    late = (f"{event['file']}:{event['entry']}" for event in _named_inside_an_epoch(evidence))
    return data.model_copy(update={"exclude": tuple(dict.fromkeys((*data.exclude, *late)))})


def kept_out(evidence: Evidence) -> tuple[str, ...]:
    """Return the setting, as a shell takes it, that another run needs to leave out what config.yaml does not name."""
    late = [*_named_inside_an_epoch(evidence)]
    return (in_shell(leaving_out(data_settings(evidence))),) if late else ()


def num_left_out_since(evidence: Evidence, step: int, attempt: int) -> int:
    """Return how many training events the user has left out since a step of an attempt."""
    late = sum(whole(event.get("step"), 0) > step for event in _named_inside_an_epoch(evidence))
    served = {attempt_of(evidence, start): number(start.data.get("num_train")) for start in evidence.of("run_start")}
    fewer = served.get(attempt, math.nan) - served.get(evidence.attempts[-1].number, math.nan)
    return late + (int(fewer) if fewer > 0 else 0)


def attempt_of(evidence: Evidence, event: EventRecord) -> int:
    """Return the attempt that recorded what happened once."""
    return max((one.number for one in evidence.attempts if one.started <= event.time), default=0)


def events_left_out(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the events in ``quarantine.json``, also of files that are not read any more."""
    events = tolerant_json(evidence.run_dir / QUARANTINE_FILE).get("events")
    found = [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []
    return [event for event in found if isinstance(event.get("file", ""), str) and isinstance(event.get("entry"), int)]


def _named_inside_an_epoch(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Yield the events that ``data.exclude`` named once an epoch had begun."""
    files = train_files(evidence.manifest)
    for event in events_left_out(evidence):
        if event.get("reason") == KEY and (not files or event.get("file") in files):  # it keeps those of moved files
            yield {"file": ""} | event
