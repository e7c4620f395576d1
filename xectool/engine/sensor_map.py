"""The map of the sensors' states, drawn from the readings of a check or of a training's validation events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from xectool.checks.cells import Place
from xectool.checks.data_facts import DataFacts
from xectool.checks.health import HealthScan, SensorHealth
from xectool.training.stepping.evaluate import Predicted


def scanned(predicted: Iterable[Predicted], scan: HealthScan) -> Iterator[Predicted]:
    """Yield what is predicted and show its readings to ``scan``."""
    for pair in predicted:
        batch = pair[0]
        if batch.num_events:
            place = Place("", batch.entry, batch.run, batch.event)
            scan.add(batch.npho.cpu().numpy(), batch.time.cpu().numpy(), place)
        yield pair
        del pair, batch


def draw_sensor_map(health: SensorHealth, title: str, out_dir: Path) -> list[Path]:
    """Write ``sensor_health.pdf`` and ``.png``."""
    from xectool.report.sensor_health import HealthMap, write_health_map  # matplotlib, where something is drawn

    return write_health_map(HealthMap(health.state, health.mean, health.valid_share, health.events, title), out_dir)


def draw_plots(facts: DataFacts, out_dir: Path) -> list[Path]:
    """Write the sensor map of a sample and its histograms, beside those of the other one; return the files."""
    from xectool.report.sensor_health import write_histograms

    written = draw_sensor_map(facts.health, facts.whole, out_dir)
    npho, time = facts.readings
    ours: dict[str, Any] = {"npho": npho, "time": time}
    theirs = dict(zip(("npho", "time"), facts.other_readings, strict=True)) if facts.other is not None else {}
    return written + write_histograms(ours, theirs, out_dir)
