"""Faults of readings and truths: DAT-07 to DAT-18."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import yaml
from xectool.detector import faces
from xectool.detector.constants import NUM_SENSORS

from benchmarks.damage.catalogue import Question, case
from benchmarks.damage.lab import LIGHT, Lab, event_place, face_of, small_config, words_of
from benchmarks.damage.structure_faults import check
from benchmarks.diagnosis.files import Rows

SENTINEL_TIME_S = -1.46 * 1.14e-7  # what the default normalisation brings to its sentinel, -1


def _cell(name: str, code: str, branch: str, value: float) -> None:
    @case(name, "data", code)
    def build(lab: Lab) -> Question:
        rows = lab.rows()
        entry, sensor = lab.entry(rows), lab.sensor(rows)
        rows[branch][entry, sensor] = value
        path = lab.write(rows)
        return check(lab, path, *event_place(path, branch, rows, entry, sensor))


_cell("NaN photons", "DAT-07", "npho", np.nan)
_cell("infinite photons", "DAT-07", "npho", np.inf)
_cell("minus infinite photons", "DAT-07", "npho", -np.inf)
_cell("NaN time", "DAT-07", "relative_time", np.nan)


@case("events without light", "data", "DAT-07")
def dark(lab: Lab) -> Question:
    rows = lab.rows()
    first, second = sorted(lab.rng.choice(len(rows["run"]), 2, replace=False))
    rows["npho"][[first, second]] = lab.choose([0.0, 1e10, np.nan])
    path = lab.write(rows)
    return check(lab, path, *event_place(path, "npho", rows, int(first)), f"entry {second}")


@case("most readings of all files are invalid", "data", "DAT-07")
def invalid(lab: Lab) -> Question:
    share = lab.rng.uniform(0.55, 0.9)
    chosen = lab.rng.choice(NUM_SENSORS, int(share * NUM_SENSORS), replace=False)

    def change(rows: Rows, _: bool) -> None:
        rows["npho"][:, chosen] = 1e10

    return Question(words_of("check-data", "--deep", files=lab.spoil_all(change)), ("branch npho",))


def _setting(name: str, code: str, *place: str, **settings: tuple[float, float]) -> None:
    """Register constants of the normalisation that do not fit, drawn between two limits."""

    @case(name, "data", code)
    def build(lab: Lab) -> Question:
        drawn = {key: np.exp(lab.rng.uniform(*np.log(limits))) for key, limits in settings.items()}
        options = [word for key, value in drawn.items() for word in ("--set", f"normalization.{key}={value:.3e}")]
        return Question(words_of("check-data", *options, files=lab.good.train), place)


_setting("a scale of photons far too small", "DAT-09", "branch npho", npho_scale=(0.1, 1.0), npho_scale2=(0.05, 0.3))
_setting("a shift of times far too large", "DAT-10", "branch relative_time", time_shift=(12, 60))
_setting("a scale of photons far too large", "DAT-11", "branch npho", npho_scale=(1e8, 9e8))


@case("a negative number of photons under a root", "data", "DAT-08")
def negative(lab: Lab) -> Question:
    place: list[str] = []

    def change(rows: Rows, is_victim: bool) -> None:
        rows["npho"] = np.maximum(rows["npho"], 0)
        if is_victim:
            entry, sensor = lab.entry(rows), lab.sensor(rows)
            rows["npho"][entry, sensor] = -lab.rng.uniform(1, 40)
            place.extend(event_place(lab.directory / lab.good.train[lab.victim].name, "npho", rows, entry, sensor))

    scheme = ("--deep", "--set", "normalization.npho_scheme=sqrt")
    return Question(words_of("check-data", *scheme, files=lab.spoil_all(change)), tuple(place))


@case("one bright sensor under a linear scheme", "data", "DAT-12")
def tail(lab: Lab) -> Question:
    place: list[str] = []

    def change(rows: Rows, is_victim: bool) -> None:
        rows["npho"] = np.where(rows["npho"] < LIGHT, np.clip(rows["npho"], 0, 100), rows["npho"])
        if is_victim:
            entry, sensor = lab.entry(rows), lab.sensor(rows)
            rows["npho"][entry, sensor] = lab.rng.uniform(5e5, 1.5e6)
            place.extend(event_place(lab.directory / lab.good.train[lab.victim].name, "npho", rows, entry, sensor))

    scheme = ("--deep", "--set", "normalization.npho_scheme=linear")
    return Question(words_of("check-data", *scheme, files=lab.spoil_all(change)), tuple(place))


@case("a time that normalises to the sentinel", "data", "DAT-13")
def sentinel(lab: Lab) -> Question:
    rows = lab.rows()
    entry = lab.entry(rows)
    bright = np.flatnonzero((rows["npho"][entry] > 200) & (rows["npho"][entry] < LIGHT))
    sensor = int(lab.choose(bright))
    rows["relative_time"][entry, sensor] = SENTINEL_TIME_S
    path = lab.write(rows)
    return check(lab, path, *event_place(path, "relative_time", rows, entry, sensor))


@case("times in ns, us or ps in one file", "data", "DAT-10")
def time_unit(lab: Lab) -> Question:
    unit, factor = lab.choose([("ns", 1e9), ("us", 1e6), ("ps", 1e12)])
    path = lab.spoil(lambda rows: rows["relative_time"].__imul__(np.where(rows["relative_time"] < LIGHT, factor, 1)))
    return check(lab, path, "branch relative_time", named=(f"seconds: {unit}",))


@case("a face whose readings do not vary", "data", "DAT-11")
def flat_face(lab: Lab) -> Question:
    face = lab.choose(("us", "ds", "outer", "top", "bot"))

    def change(rows: Rows, _: bool) -> None:
        shape = rows["npho"][:, faces.sensors(face)].shape
        rows["npho"][:, faces.sensors(face)] = 60 + lab.rng.normal(0, 1, shape)

    return Question(words_of("check-data", "--deep", files=lab.spoil_all(change)), ("branch npho", f"face {face}"))


def _sensors(name: str, change: Callable[[Lab, Rows, int], object], everywhere: bool = False) -> None:
    @case(name, "data", "DAT-14")
    def build(lab: Lab) -> Question:
        sensor = lab.sensor(lab.rows(), lab.choose(("inner", "inner", "us", "ds", "top", "bot")))
        place = (f"sensor {sensor}", f"face {face_of(sensor)}")
        if everywhere:
            files = lab.spoil_all(lambda rows, _: change(lab, rows, sensor))
            return Question(words_of("check-data", "--deep", files=files), place)
        return check(lab, lab.spoil(lambda rows: change(lab, rows, sensor)), *place)


def _hot(lab: Lab, rows: Rows, sensor: int) -> None:
    rows["npho"][:, sensor] += lab.rng.normal(lab.rng.uniform(2000, 6000), 30, len(rows["run"]))


def _noisy(lab: Lab, rows: Rows, sensor: int) -> None:
    rows["npho"][:, sensor] += lab.rng.normal(0, lab.rng.uniform(800, 2000), len(rows["run"]))


def _constant(lab: Lab, rows: Rows, sensor: int) -> None:
    rows["npho"][:, sensor] = 70.0


_sensors("a hot sensor", _hot, everywhere=True)
_sensors("a noisy sensor", _noisy, everywhere=True)
_sensors("a constant sensor", _constant, everywhere=True)
_sensors("a hot sensor in one of the files", _hot)
_sensors("a sensor that is constant in one of the files", _constant)


@case("a sensor that is dead in one of the files", "data", "DAT-14")
def dead_sensor(lab: Lab) -> Question:
    sensor = lab.sensor(lab.rows())
    path = lab.spoil(lambda rows: rows["npho"][:, sensor].fill(1e10))
    # a warning begins at a tenth of the sensors
    return replace(check(lab, path, f"sensor {sensor}", f"face {face_of(sensor)}"), notes=True)


@case("a face without readings", "data", "DAT-14")
def dead_face(lab: Lab) -> Question:
    face = lab.choose(("us", "ds", "outer", "top", "bot"))

    def change(rows: Rows, _: bool) -> None:
        rows["npho"][:, faces.sensors(face)] = 1e10

    files = lab.spoil_all(change)
    return Question(words_of("check-data", "--deep", files=files), named=(f"face {face}",))


@case("a mask that hides no sensor of one event", "data", "DAT-15")
def hides_nothing(lab: Lab) -> Question:
    rows = lab.rows()
    entry = lab.entry(rows)
    rows["npho"][entry, int(lab.rng.integers(1, 4)) :] = 1e10
    path, config = lab.write(rows), lab.directory / "mae.yaml"
    settings = small_config("mae", lab.good.train, lab.good.val, lab.directory)
    settings["model"]["mask_ratio"] = 0.2
    config.write_text(yaml.safe_dump(settings))
    options = ("--config", str(config))
    return Question(words_of("check-data", "--deep", *options, files=lab.among_good(path)), ("model.mask_ratio",))


def _truth(name: str, branch: str, factor: float, unit: str) -> None:
    @case(name, "data", "DAT-16")
    def build(lab: Lab) -> Question:
        def change(rows: Rows) -> None:
            rows[branch] = (rows[branch] * factor).astype(rows[branch].dtype)

        return check(lab, lab.spoil(change), f"branch {branch}", named=(f"looks like {unit}",))


_truth("energies in MeV in one file", "energyTruth", 1e3, "MeV")
_truth("energies in keV in one file", "energyTruth", 1e6, "keV")
_truth("angles in radians in one file", "emiAng", np.pi / 180, "radians")
_truth("true times in ns in one file", "timeTruth", 1e9, "ns")
_truth("positions in mm in one file", "uvwTruth", 10.0, "mm")


def _event(name: str, branch: str, value: Callable[[Lab], float], part: int | None = None) -> None:
    @case(name, "data", "DAT-16")
    def build(lab: Lab) -> Question:
        rows = lab.rows()
        entry = lab.entry(rows)
        rows[branch][entry if part is None else (entry, part)] = value(lab)
        path = lab.write(rows)
        return check(lab, path, *event_place(path, branch, rows, entry))


_event("a NaN in the true position", "uvwTruth", lambda lab: np.nan, 1)
_event("an infinite true energy", "energyTruth", lambda lab: np.inf)
_event("a true position outside of the detector", "uvwTruth", lambda lab: lab.rng.uniform(200, 900), 2)
_event("a true energy a hundred times too large", "energyTruth", lambda lab: lab.rng.uniform(2, 6))


@case("true energies that were never filled", "data", "DAT-16")
def never_filled(lab: Lab) -> Question:
    path = lab.spoil(lambda rows: rows["energyTruth"][:: int(lab.rng.integers(3, 7))].fill(0))
    return check(lab, path, "branch energyTruth", named=("exactly 0",))


@case("the logarithm of an energy of 0", "data", "DAT-17")
def logarithm(lab: Lab) -> Question:
    rows = lab.rows()
    entry = lab.entry(rows)
    rows["energyTruth"][entry] = 0.0
    path = lab.write(rows)
    options = ("--config", str(lab.good.config), "--set", "tasks.energy.log_transform=true")
    return check(lab, path, *event_place(path, "energyTruth", rows, entry), options=options)


@case("a beta far from the typical error", "data", "DAT-18")
def beta(lab: Lab) -> Question:
    task, value = lab.choose(
        [("energy", lab.rng.uniform(0.5, 2)), ("energy", 1e-6), ("timing", lab.rng.uniform(0.1, 1))]
    )
    settings = ("scale=null", "shift=null", "loss_fn=smooth_l1", f"loss_beta={value}")
    options = [word for setting in settings for word in ("--set", f"tasks.{task}.{setting}")]
    words = words_of("check-data", "--config", lab.good.config, *options, files=lab.good.train)
    return Question(words, (f"tasks.{task}.loss_beta",))
