"""Which events a run leaves out as the user asks: its configuration names them, and what a resume inside an epoch took.

``config.yaml`` keeps the list of the order that such an epoch has; ``quarantine.json`` tells what was named since.
"""

from __future__ import annotations

from collections.abc import Iterator

from xectool.config.data import DataConfig
from xectool.config.left_out import KEY, leaving_out
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.files import QUARANTINE_FILE, tolerant_json
from xectool.errors import in_shell


def data_settings(evidence: Evidence) -> DataConfig:
    """Return what tells which events the user leaves out; the defaults where the configuration is damaged."""
    told = {key: evidence.setting(f"data.{key}") for key in ("exclude", "tree_name")}
    try:
        data = DataConfig.model_validate({key: value for key, value in told.items() if value is not None})
    except ValueError:
        data = DataConfig()
    late = (f"{file}:{entry}" for file, entry in _named_inside_an_epoch(evidence))
    return data.model_copy(update={"exclude": tuple(dict.fromkeys((*data.exclude, *late)))})


def kept_out(evidence: Evidence) -> tuple[str, ...]:
    """Return the setting, as a shell takes it, that another run needs to leave out what config.yaml does not name."""
    late = [*_named_inside_an_epoch(evidence)]
    return (in_shell(leaving_out(data_settings(evidence))),) if late else ()


def _named_inside_an_epoch(evidence: Evidence) -> Iterator[tuple[str, int]]:
    """Yield file and entry of what ``data.exclude`` named once an epoch had begun."""
    events = tolerant_json(evidence.run_dir / QUARANTINE_FILE).get("events")
    for event in events if isinstance(events, list) else []:
        if isinstance(event, dict) and event.get("reason") == KEY and isinstance(event.get("entry"), int):
            yield str(event.get("file")), event["entry"]
