"""Faults in a part of one file, from the light and mean time of each face, event by event."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xectool.checks.stretches import StretchScan, face_sums
from xectool.detector import faces
from xectool.detector.constants import NUM_SENSORS

EVENTS = 400
US, OUTER = faces.FACES.index("us"), faces.FACES.index("outer")


def events(seed: int, count: int = EVENTS, slope: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Light and mean time of showers that move along the beam, sorted by their place where there is a slope."""
    rng = np.random.default_rng(seed)
    place = np.linspace(-1, 1, count) * slope if slope else rng.uniform(-1, 1, count)
    tilt = np.array([0, -1, 1, 0.1, 0.2, -0.2])
    level = np.array([12.5, 10.2, 10.2, 10.7, 9.3, 9.3])
    light = np.exp(level + place[:, None] * tilt + rng.normal(0, 0.4, (count, 6)))
    return light, 4e-9 + 1e-9 * place[:, None] * tilt + rng.normal(0, 5e-10, (count, 6))


def scan(light: np.ndarray, time: np.ndarray, run: np.ndarray | None = None) -> list[tuple[str, str, int, int]]:
    found, at = StretchScan(), np.arange(len(light))
    for start in range(0, len(light), 64):
        rows = slice(start, start + 64)
        found.add(at[rows], at[rows] * 0 if run is None else run[rows], light[rows], time[rows])
    return [(item.kind, " ".join(item.faces), item.first, item.last) for item in found.found()]


@pytest.mark.parametrize("count", [5, 40, 64, 128, 199, 400, 2000])
def test_sound_files_are_silent_sorted_or_not(count: int) -> None:
    for seed in range(6):
        assert [scan(*events(seed, count, slope)) for slope in (0.0, 1.0, -3.0)] == [[], [], []]


def test_a_face_that_is_dark_or_frozen_or_without_time_in_a_part_is_named_once() -> None:
    light, time = events(1)
    light[:200, US] = time[:200, US] = 0
    assert scan(light, time) == [("dark", "us", 0, 199)]
    light, time = events(1)
    light[120:140, OUTER] = 777.0
    time[300:320] = 0
    assert scan(light, time) == [("frozen", "outer", 120, 139), ("untimed", " ".join(faces.FACES), 300, 319)]


def test_a_face_that_often_says_nothing_is_how_the_file_is_written() -> None:
    light, time = events(2)
    light[np.random.default_rng(0).random(EVENTS) < 0.5, US] = 0
    light[30:45, US] = 0
    assert scan(light, time) == []


def test_time_and_light_that_jump_are_located() -> None:
    light, time = events(3)
    time[200:300] += 4e-8
    assert scan(light, time) == [("time", " ".join(faces.FACES), 200, 299)]
    light, time = events(3, 1000)
    light[500:, US] *= 0.2
    kind, face, first, last = scan(light, time)[0]
    assert (kind, face) == ("light", "us")
    assert min(abs(first - 500) + abs(last - 999), abs(first) + abs(last - 499)) < 10
    assert scan(light, time, np.arange(1000) // 500) == [], "another run may be of another source"
    light[500:] = light[500:, [0, 2, 1, 3, 4, 5]]
    assert scan(*(np.concatenate([part, part[:, [0, 2, 1, 3, 4, 5]]]) for part in events(3, 300, 0.01))) == []


@pytest.mark.parametrize("count", [40, 64, 128, 199])
def test_a_plain_jump_is_told_of_few_events_too(count: int) -> None:
    for seed in range(6):
        light, time = events(seed, count)
        time[count // 2 :] += 4e-8
        ((kind, _, first, last),) = scan(light, time)
        assert kind == "time"
        assert (first, last) in ((0, count // 2 - 1), (count // 2, count - 1))
        time = events(seed, count)[1]
        time[count // 2 :] += 6e-10  # the control: what six hundred events would tell, forty do not
        assert scan(light, time) == []


def test_long_files_are_kept_as_means_that_name_their_entries() -> None:
    light, time = events(4, 20_000)
    light[5_000:9_000, OUTER] = 0
    time[12_000:, US] += 2e-8
    assert scan(light, time) == [("dark", "outer", 5_000, 8_999), ("time", "us", 12_000, 19_999)]


def test_sums_of_faces_are_those_of_their_sensors() -> None:
    values = np.random.default_rng(5).normal(0, 1, (3, NUM_SENSORS)).astype(np.float32)
    expected = np.stack([values[:, faces.sensors(face)].sum(axis=1) for face in faces.FACES], axis=1)
    np.testing.assert_allclose(face_sums(values, np.float32), expected, rtol=1e-4, atol=1e-3)


def test_stretches_of_a_file_are_found(
    rows: dict[str, np.ndarray], write: Callable[..., Path], check: Callable[..., Any], tmp_path: Path
) -> None:
    rows["npho"][:60, faces.sensors("us")] = 0
    rows["relative_time"][80:100, faces.sensors("outer")] = 1e10
    rows = {name: np.concatenate([values, values + (name == "event") * 1000]) for name, values in rows.items()}
    rows["npho"][120:] *= np.float32(1.001)
    rows["relative_time"][120:] += np.float32(4e-8)
    result = check(write(tmp_path / "part.root", rows))
    told = [(found.code, found.severity.value, found.where.removeprefix(f"{tmp_path}/")) for found in result.findings]
    assert ("DAT-14", "error", "part.root:tree entries 0 to 59 face us") in told
    assert ("DAT-14", "error", "part.root:tree entries 80 to 99 face outer") in told
    assert any(item[:2] == ("DAT-21", "warning") and "entries 120 to 239 face inner, " in item[2] for item in told), (
        told
    )
