"""What a running training says of its data begins with the code that `diagnose run` finds for the recorded event."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.detector import faces
from xectool.rootio.writer import TreeWriter
from xectool.runlog.reader import RunReader
from xectool.training.guards import inputs
from xectool.training.guards.report import CODES
from xectool.training.process.progress import NullObserver

Config = Callable[..., Path]
Columns = dict[str, np.ndarray]
ENERGY = {"energy": {"enabled": True, "scale": "auto", "shift": "auto"}, "uvwFI": {"enabled": False}}


def copied_light(columns: Columns) -> None:
    light, energies = columns["npho"][4].copy(), columns["energyTruth"].reshape(-1, 1)
    columns["npho"] = np.where(light > 9e9, light, light * energies / energies[4]).astype(np.float32)
    columns["relative_time"][:] = columns["relative_time"][4]


def another_gain(columns: Columns) -> None:
    columns["npho"] = np.where(columns["npho"] < 9e9, 3 * columns["npho"], columns["npho"])


def renumbered(columns: Columns) -> None:
    columns["run"] += 77


def swapped(columns: Columns) -> None:
    one, other = faces.sensors("us"), faces.sensors("ds")
    columns["npho"][:, [*one, *other]] = columns["npho"][:, [*other, *one]]


def against_the_light(columns: Columns) -> None:
    columns |= {name: np.repeat(rows, 3, axis=0) for name, rows in columns.items()}
    ranks = np.argsort(np.argsort(np.where(columns["npho"] < 9e9, columns["npho"], 0).sum(axis=1)))
    columns["energyTruth"] = np.sort(columns["energyTruth"])[::-1][ranks].copy()


def no_number(columns: Columns) -> None:
    columns["npho"][3, 17] = np.inf


def no_number_and_noise(columns: Columns) -> None:
    columns["npho"][3, 17], columns["npho"][4, 17] = np.inf, -5000.0


def sound(columns: Columns) -> None:
    columns["run"] += 7


CASES: dict[str, tuple[Callable[[Columns], None], str, dict[str, Any]]] = {
    "copied_light": (copied_light, "train_path", {}),
    "files_differ": (another_gain, "val_path", {}),
    "input_scale": (
        sound, "val_path", {"normalization": {"time_shift": 50.0}, "guards": {"on_input_scale": "warn"}}
    ),
    "invalid_npho": (no_number, "train_path", {}),
    "repeated_readings": (renumbered, "extra", {}),
    "sensor_order": (swapped, "train_path", {"tasks": ENERGY}),
    "truth_elsewhere": (against_the_light, "train_path", {"tasks": ENERGY}),
}  # fmt: skip


class Listener(NullObserver):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


def changed(source: Path, target: Path, change: Callable[[Columns], None]) -> str:
    with uproot.open(source) as file:
        columns = {name: values.copy() for name, values in file["tree"].arrays(library="np").items()}
    change(columns)
    with TreeWriter(target, {name: (v.dtype.str[1:], v.shape[1:]) for name, v in columns.items()}) as writer:
        writer.extend(columns)
    return str(target)


@pytest.mark.parametrize("kind", CODES)
def test_a_line_on_the_data_begins_with_the_code_that_the_diagnosis_finds(
    tiny_config: Config, tiny_data: Path, tmp_path: Path, kind: str
) -> None:
    change, key, sections = CASES[kind]
    source = tiny_data / "train_000.root"
    path = changed(source, tmp_path / "changed.root", change)
    data = {"train_path": [str(source), path]} if key == "extra" else {key: path}
    listener = Listener()
    config = tiny_config(data=data | {"allow_overlap": True}, **sections)
    result = engine.train(config, observer=listener)
    recorded = [event for event in RunReader(Path(result.run_dir)).events() if event.kind == kind and event.message]
    assert f"warning {CODES[kind]}: {recorded[0].message}" in listener.messages, listener.messages
    assert CODES[kind] in {cause.code for cause in engine.diagnose.run(result.run_dir).causes}
    assert engine.explain(CODES[kind]).title


def test_noise_below_the_domain_of_the_scheme_is_no_finding(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    path = changed(tiny_data / "train_000.root", tmp_path / "changed.root", no_number_and_noise)
    listener = Listener()
    engine.train(tiny_config(data={"train_path": path}), max_steps=3, observer=listener)
    said = sorted(text.partition(":")[0] for text in listener.messages if "invalid photon number" in text)
    assert said == ["invalid photon number -5000", "warning XT-NAN-DATA"]


def test_a_warning_on_the_scale_is_no_finding(tiny_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "judge", lambda *_: ("warning", "it is rather wide"))
    listener = Listener()
    result = engine.train(tiny_config(), max_steps=1, observer=listener)
    assert "first batch: npho: it is rather wide" in listener.messages
    assert "XT-INPUT-SCALE" not in {cause.code for cause in engine.diagnose.run(result.run_dir).causes}
