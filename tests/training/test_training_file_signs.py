"""Whole files that are odd: a hot sensor, a gain that drifts, another time offset, truth that moves away in mid-run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from xectool.config.load import load_config
from xectool.config.normalization import NormalizationConfig
from xectool.data.batch import EventBatch
from xectool.detector import faces
from xectool.models.normalize import Normalizer
from xectool.training.healing.file_courses import face_goes_off, faces_off, times_apart, true_times_apart
from xectool.training.healing.file_gains import MEASURES, PART_EVENTS, MeasuredEvent, parts_differ
from xectool.training.healing.file_signs import FileSigns
from xectool.training.process.device import plan_execution
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.build import build_parts, open_data
from xectool.training.symptoms.light_places import LightPlaces

NORMALIZER = Normalizer(NormalizationConfig())


@pytest.fixture
def batch(tiny_config: Callable[..., Path]) -> EventBatch:
    """Forty events of two files."""
    data = open_data(load_config(tiny_config(data={"batch_size": 40, "drop_last": False})).config)
    with build_parts(data, plan_execution(data.config.training, "cpu"), Ranks()).train_loader as loader:
        return next(iter(loader.epoch(1)))


def said(batch: EventBatch) -> list[str]:
    """Return what is said of files when events come one by one, each of them three times."""
    signs, order = FileSigns(NORMALIZER), np.tile(np.arange(batch.num_events), 3)
    windows = [[batch.take(np.array([row]))] for row in order]
    found = [sign for window in windows for sign in signs.look(window)]
    return [f"{sign.files}: {sign.message}" for sign in [*found, *signs.rest()]]


@pytest.mark.parametrize("noise", [0.0, 8.0], ids=["nothing", "noise"])
@pytest.mark.parametrize("where", ["a part", "a file", "all files", "scattered"])
def test_a_face_that_is_off_in_a_part_of_a_file_or_in_one_of_two_is_named(
    batch: EventBatch, where: str, noise: float
) -> None:
    """Off in all files is a detector without that face; events here and there are readings below a threshold."""
    second, place = of_file(batch, 1), torch.from_numpy(batch.entry)
    late = place > place[second].median()
    every, third = second | ~second, second & (place % 3 == 0)
    off = {"a part": second & late, "a file": second, "all files": every, "scattered": third}
    sensors, npho = torch.tensor(faces.sensors("us")), batch.npho.clone()
    dark = noise * torch.randn(len(npho), len(sensors), generator=torch.Generator().manual_seed(5))
    npho[:, sensors] = torch.where(off[where][:, None], dark, npho[:, sensors])
    found = [line for line in said(replace(batch, npho=npho)) if "no light" in line]
    assert bool(found) == (where in ("a part", "a file")), found
    if found:
        files = "(1,)" if where == "a part" else "(1, 0)"
        assert found[0].startswith(f"{files}: no light in face us"), found


def event_of_file(entry: int, time_s: float = 0.0, dark: str = "") -> MeasuredEvent:
    """Return an event whose light, or whose truth before its light, has a time, and in which a face is dark or not."""
    scale = NORMALIZER.time_scale
    return MeasuredEvent(
        entry, 1e6, 0, 0.01, time_s / scale, 0.05, true_time=0.0, dark_faces=frozenset([dark] if dark else [])
    )


@pytest.mark.parametrize("looks", [times_apart, true_times_apart])
@pytest.mark.parametrize("seconds", [30e-9, -30e-9])
@pytest.mark.parametrize("num_files", [3, 12])
def test_the_file_whose_time_has_another_zero_stands_first(looks: Any, seconds: float, num_files: int) -> None:
    """The latest of all was blamed where one is early."""
    rng, odd = np.random.default_rng(num_files), num_files // 2
    times = rng.normal(0, 1e-9, (num_files, 16))
    times[odd] += seconds
    files = {index: [event_of_file(i, float(t)) for i, t in enumerate(row)] for index, row in enumerate(times)}
    sign = looks(files, NORMALIZER.time_scale)
    assert (sign.files[0], sign.undecided) == (odd, False)
    assert ("later" in sign.message) == (seconds > 0 if looks is times_apart else seconds < 0)
    assert ("earlier" in sign.message) != ("later" in sign.message)
    two = looks({odd: files[odd], 0: files[0]}, NORMALIZER.time_scale)
    assert (set(two.files), two.undecided) == ({odd, 0}, True)
    assert " apart" in two.message


@pytest.mark.parametrize("scale", [1.14e-8, 1.14e-7, 1.14e-6])
def test_how_far_times_may_lie_apart_is_no_matter_of_the_unit_of_the_network(scale: float) -> None:
    events = [[event_of_file(i) for i in range(16)] for _ in range(3)]
    for seconds, named in ((1e-9, False), (2e-8, True)):
        moved = [replace(event, time=seconds / scale) for event in events[0]]
        assert (times_apart({0: moved, 1: events[1], 2: events[2]}, scale) is not None) is named


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.5, 0.8])
def test_events_that_are_dark_at_random_are_no_face_that_is_off(share: float) -> None:
    """Of 64 files 41 to 88 % were, with shares of 0.2 to 0.5: four lit ones and four dark ones came in one piece."""
    rng, found = np.random.default_rng(int(100 * share)), 0
    for number in (8, 10, 16, 24, 32, 64) * 6:
        dark = rng.random((64, number)) < share
        files = {
            index: [event_of_file(i, dark="us" * off) for i, off in enumerate(row.tolist())]
            for index, row in enumerate(dark)
        }
        found += sum(face_goes_off(index, files) is not None for index in files) + len(list(faces_off(files)))
    assert found == 0


@pytest.mark.parametrize(("number", "off", "named"), [(24, 12, True), (32, 8, True), (64, 7, True), (16, 8, False)])
def test_a_face_that_goes_off_in_a_few_events_of_one_of_six_files_is_named(number: int, off: int, named: bool) -> None:
    lit = [event_of_file(i) for i in range(number)]
    files = dict.fromkeys(range(5), lit) | {
        5: [event_of_file(i, dark="us" * (i >= number - off)) for i in range(number)]
    }
    sign = face_goes_off(5, files)
    assert (sign is not None) is named
    assert sign is None or sign.files == (5,)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_file_without_a_face_is_named_whichever_is_read_first(batch: EventBatch, order: tuple[int, int]) -> None:
    """A file that was read before the one with light was never asked again."""
    sensors, npho = torch.tensor(faces.sensors("us")), batch.npho.clone()
    npho[:, sensors] = torch.where(of_file(batch, 1)[:, None], 0.0, npho[:, sensors])
    off, signs = replace(batch, npho=npho), FileSigns(NORMALIZER)
    windows = [[off.take(np.flatnonzero(off.file_index == index))] for index in order]
    found = [sign for window in windows for sign in signs.look(window) if "no light" in sign.message]
    assert [sign.files for sign in found] == [(1, 0)]


@pytest.mark.parametrize(("branch", "seconds", "text"), [
    ("light", 80e-9, "(1, 0): the times lie 8e-08 s"), ("truth", -30e-9, "(0, 1): the true times lie"),
    ("light", 3e-9, ""), ("truth", 3e-9, ""),
])  # fmt: skip
def test_another_zero_of_the_time_of_a_file_is_named(batch: EventBatch, branch: str, seconds: float, text: str) -> None:
    second = of_file(batch, 1)[:, None]
    known = replace(batch, targets=batch.targets | {"timing": torch.full((batch.num_events, 1), 1e-9)})
    time = torch.where(second & (batch.time < 9e9), batch.time + seconds * (branch == "light"), batch.time)
    truth = known.targets["timing"] + torch.where(second, seconds * (branch == "truth"), 0.0)
    found = said(replace(known, time=time, targets=known.targets | {"timing": truth}))
    assert [line[: len(text)] for line in found] == [text] * bool(text), found


def of_file(batch: EventBatch, index: int) -> torch.Tensor:
    return torch.from_numpy(batch.file_index == index)


def test_sound_files_show_no_sign(batch: EventBatch) -> None:
    assert said(batch) == []
    assert said(replace(batch, npho=torch.where(batch.npho < 9e9, batch.npho * 5, batch.npho))) == []


@pytest.mark.parametrize(("sensor", "share"), [(2345, 20.0), (4321, 0.2)], ids=["most of the light", "a fifth"])
def test_a_sensor_that_outshines_all_others_is_named_once(batch: EventBatch, sensor: int, share: float) -> None:
    npho = batch.npho.clone()
    light = torch.where(npho.abs() < 9e9, npho, 0).sum(dim=1)
    npho[of_file(batch, 1), sensor] = share * light.median()
    (found,) = said(replace(batch, npho=npho))
    assert found.startswith(f"(1,): sensor {sensor} has")


@pytest.mark.parametrize("factor", [400.0, 1 / 400, 6.0, 1.4])
def test_a_gain_that_drifts_over_the_entries_is_named(batch: EventBatch, factor: float) -> None:
    """Without a true energy the fluctuation of the counts tells what is less than twentyfold."""
    one = replace(batch, file_index=batch.file_index * 0, entry=torch.arange(batch.num_events).numpy(), targets={})
    found = said(gained(one, factor ** (torch.arange(batch.num_events) / (batch.num_events - 1))))
    course = {400.0: "the light rises", 1 / 400: "the light falls", 6.0: "times the fluctuation of the counts"}
    assert any(course[factor] in line for line in found) if factor in course else not found, found


def gained(batch: EventBatch, gain: torch.Tensor) -> EventBatch:
    """Return events of another gain each, shape (B,), dead channels as they are."""
    return replace(batch, npho=torch.where(batch.npho < 9e9, batch.npho * gain[:, None], batch.npho))


@pytest.mark.parametrize("gain", [3.0, 0.25])
def test_another_gain_of_a_file_is_named_without_an_energy(batch: EventBatch, gain: float) -> None:
    """Photons are counted: a gain raises their fluctuation, another energy of the beam does not."""
    (found,) = said(gained(replace(batch, targets={}), torch.where(of_file(batch, 1), gain, 1.0)))
    assert found.startswith(f"({int(gain > 1)}, {int(gain < 1)}): its fluctuation of the counts is"), found


@pytest.mark.parametrize("photons", [40_000.0, 500.0])
def test_a_pedestal_is_no_light(batch: EventBatch, photons: float) -> None:
    shifted = torch.where(of_file(batch, 0)[:, None] & (batch.npho < 9e9), batch.npho + photons, batch.npho)
    for told in (batch.targets, {}):
        (found,) = said(replace(batch, npho=shifted, targets=told))
        assert found.startswith("(0,): even its darkest sensors have"), found


@pytest.mark.parametrize(("gain", "energy_known"), [(0.02, True), (0.02, False), (30.0, False)])
def test_light_that_no_such_detector_gives_is_named_in_all_files(
    batch: EventBatch, gain: float, energy_known: bool
) -> None:
    energy = {"energy": torch.full((batch.num_events, 1), 0.04)} if energy_known else {}
    found = said(gained(replace(batch, targets=energy), torch.full((batch.num_events,), gain)))
    assert [line[:5] for line in sorted(found)] == ["(0,):", "(1,):"]
    assert all(("photons a GeV" if energy_known else "a photoelectron were") in line for line in found)


@pytest.mark.parametrize(("course", "named"), [
    ("drift", True), ("jump", True), ("middle", True), ("file", True), ("slight", False), ("sorted", False),
    ("lines", False), ("unit", False), ("unit of a line", False),
])  # fmt: skip
def test_light_that_does_not_follow_the_energy_names_its_file(batch: EventBatch, course: str, named: bool) -> None:
    """A beam of another energy, or a scan of energies, has as much light per energy; another unit no other light."""
    place, num = torch.arange(batch.num_events), batch.num_events
    gain = {
        "drift": 5.0 ** (place / num),
        "jump": torch.where(place < num // 2, 3.0, 1.0),
        "middle": torch.where((place >= num // 4) & (place < num // 2), 0.2, 1.0),
        "file": torch.where(of_file(batch, 1), 4.0, 1.0),
        "slight": 1.5 ** (place / num),
        "sorted": 4.0 ** (place / num),
        "lines": torch.where(of_file(batch, 1), 3.0, 1.0),
        "unit": torch.ones(num),
        "unit of a line": torch.where(of_file(batch, 1), 3.0, 1.0),
    }[course]
    energy = 0.0528 * torch.ones(num, 1)
    light = torch.where(batch.npho < 9e9, batch.npho, 0.0).sum(dim=1)
    scale = torch.where(batch.npho < 9e9, (gain * 7e5 / light)[:, None], 1.0)
    if course in ("sorted", "lines", "unit of a line"):
        energy *= gain[:, None] / gain.max()
    if course.startswith("unit"):
        energy[of_file(batch, int(course == "unit"))] *= 1e3
    files = batch.file_index if course in ("file", "lines", "unit", "unit of a line") else batch.file_index * 0
    told = said(
        replace(batch, npho=batch.npho * scale, targets={"energy": energy}, file_index=files, entry=place.numpy())
    )
    assert bool(told) is named, told
    assert all("light per energy" in line for line in told)


@pytest.mark.parametrize("size", [3, 5, 16])
def test_a_gain_that_drifts_in_a_small_file_is_named_in_its_first_epoch(batch: EventBatch, size: int) -> None:
    place = np.arange(batch.num_events)
    drift = gained(batch, 30.0 ** torch.linspace(-0.5, 0.5, batch.num_events))
    one = replace(drift, file_index=batch.file_index * 0, entry=place)
    signs, order = FileSigns(NORMALIZER), np.random.default_rng(size).permutation(place)
    windows = [[one.take(order[start : start + size])] for start in range(0, len(order), size)]
    found = [sign.message for window in windows for sign in signs.look(window)]
    assert len(found) == 1
    assert "light" in found[0]


@pytest.mark.parametrize(("offset_s", "named"), [(1e-6, True), (5e-9, False)])
def test_another_time_offset_of_a_file_is_named(batch: EventBatch, offset_s: float, named: bool) -> None:
    late = of_file(batch, 0)[:, None] & (batch.time.abs() < 9e9)
    found = said(replace(batch, time=torch.where(late, batch.time + offset_s, batch.time)))
    assert [line.split(" s ")[0] for line in found] == [f"(0, 1): the times lie {offset_s:.3g}"] * named


def test_the_truth_is_looked_at_again_in_each_epoch_until_it_is_elsewhere(batch: EventBatch) -> None:
    places, twice = LightPlaces(), [batch, batch]
    assert list(places.look(twice)) == []
    moved = [replace(batch, targets={"uvwFI": batch.targets["uvwFI"].roll(7, 0)})] * 2
    assert list(places.look(moved)) == [], "once an epoch"
    places.next_epoch()
    assert [misfit.file_index for misfit in places.look(moved)] == [None]
    places.next_epoch()
    assert places.truth_judged


def test_the_same_few_events_served_again_say_nothing_of_the_order_of_sensors(batch: EventBatch) -> None:
    """Two events of a narrow cut, epoch after epoch: light and faces agree by chance or not."""
    ends = [torch.tensor(faces.sensors(name)) for name in ("us", "ds")]
    npho = batch.npho.clone()
    npho[:, ends[0]], npho[:, ends[1]] = batch.npho[:, ends[1]], batch.npho[:, ends[0]]
    swapped = replace(batch, npho=npho, targets={})
    whole = LightPlaces()
    assert [misfit.file_index for misfit in whole.look([swapped])] == [0, 1]
    few = LightPlaces()
    for _ in range(20):
        assert list(few.look([swapped.take(np.arange(4))])) == []
        few.next_epoch()


def events_of_a_file(seed: int, shuffled: bool, jump: float) -> list[MeasuredEvent]:
    """Events as a run remembers them: light that follows the energy to 20 %, and jumps in the middle of the file."""
    rng = np.random.default_rng(seed)
    energy = rng.uniform(0.015, 0.06, PART_EVENTS)
    light = 2e7 * energy * rng.lognormal(0, 0.2, PART_EVENTS) * np.where(np.arange(PART_EVENTS) < 12, 1.0, jump)
    told = rng.permutation(energy) if shuffled else energy
    pairs = zip(light.tolist(), told.tolist(), strict=True)
    return [MeasuredEvent(place, photons, 0, 0.01, 0.0, gev) for place, (photons, gev) in enumerate(pairs)]


@pytest.mark.parametrize(
    ("shuffled", "jump", "least", "most"), [(True, 1.0, 0, 1), (False, 1.0, 0, 0), (False, 2.5, 290, 300)]
)
def test_energies_of_other_events_are_no_gain_that_drifts(shuffled: bool, jump: float, least: int, most: int) -> None:
    found = [parts_differ(0, events_of_a_file(seed, shuffled, jump), MEASURES[0]) for seed in range(300)]
    assert least <= sum(sign is not None for sign in found) <= most
