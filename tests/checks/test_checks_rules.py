"""Each of the 26 checks: one sample that passes, one that fails with its code."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot
import yaml
from xectool.checks.catalogue import DATA_CHECKS
from xectool.checks.cells import Cell, CellCounts, Place
from xectool.checks.data_facts import DataFacts
from xectool.checks.facts import FileFacts
from xectool.checks.probing import probe
from xectool.checks.running import Inspection, repeated_events, shared_events
from xectool.checks.sample import SampleScan, ScanSettings
from xectool.checks.sharing import Sharing, WorkerShare, plan_sharing
from xectool.checks.spread import fits
from xectool.checks.target_rules import TruthIsSound
from xectool.checks.targets import TargetScan
from xectool.config.data import DataConfig
from xectool.config.load import load_config
from xectool.config.normalization import NormalizationConfig
from xectool.config.rules.count import count_rules
from xectool.data.blocks import SourceFile
from xectool.data.plan import DataPlan
from xectool.detector import faces
from xectool.detector.truth_ranges import other_unit
from xectool.engine.data_report import DataChecked
from xectool.errors import DataUnusable
from xectool.findings import Finding
from xectool.findings.mends import Change, Mend
from xectool.rules import Rule

Rows = dict[str, np.ndarray]
BY_CODE: dict[str, Rule[DataFacts]] = {rule.code: rule for rule in DATA_CHECKS}
CONFIG: dict[str, Any] = {
    "kind": "regressor",
    "data": {"train_path": "train.root", "val_path": "val.root", "batch_size": 8, "chunksize": 1024},
    "tasks": {
        "energy": {"enabled": True, "scale": "auto", "shift": "auto"},
        "uvwFI": {"enabled": True, "scale": "auto", "shift": "auto"},
    },
}


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Any]:
    """A configuration from plain values and overrides."""

    def load(*overrides: str, kind: str = "regressor") -> Any:
        values = CONFIG if kind == "regressor" else {"kind": kind, "data": CONFIG["data"]}
        path = tmp_path / f"{kind}.yaml"
        path.write_text(yaml.safe_dump(values))
        return load_config(path, overrides).config

    return load


@pytest.fixture
def look(tmp_path: Path, write: Callable[..., Path]) -> Callable[..., DataFacts]:
    """Facts of samples given as rows or as paths, opened in this process."""

    def sample_of(parts: list[Any], how: ScanSettings, name: str) -> Any:
        paths = [
            part if isinstance(part, Path) else write(tmp_path / f"{name}{number}.root", part)
            for number, part in enumerate(parts)
        ]
        return SampleScan(how, [probe(str(path)) for path in paths]).run()

    def look(*parts: Any, config: Any = None, other: Any = None, **normalization: Any) -> DataFacts:
        constants = config.normalization if config is not None else NormalizationConfig(**normalization)
        tasks = tuple(config.tasks.enabled()) if config is not None and config.kind == "regressor" else ()
        settings = ScanSettings(config.data if config is not None else DataConfig(), constants, tasks, None)
        facts = DataFacts(settings, sample_of(list(parts), settings, "a"), config)
        how = Inspection(settings)
        facts.repeated, facts.copies = repeated_events(facts.sample, how)
        if other is not None:
            facts.other = sample_of([other], settings, "other")
            facts.shared, facts.shared_files = shared_events(facts.sample, facts.other, how)
        return facts

    return look


def found(code: str, facts: DataFacts) -> list[Finding]:
    """What a check says above a note."""
    return [item for item in BY_CODE[code].check(facts) if item.severity.value != "info"]


def one(code: str, facts: DataFacts, severity: str, *words: str) -> Finding:
    """The one finding of a check, which has these words in it."""
    items = found(code, facts)
    assert items, f"{code} found nothing"
    first = items[0]
    assert first.code == code
    assert first.severity.value == severity
    assert all(word in f"{first.problem} {first.where} {first.fix} {first.evidence}" for word in words), first
    assert first.where
    return first


def test_the_catalogue_is_complete() -> None:
    assert sorted(BY_CODE) == [f"DAT-{number:02d}" for number in range(1, 27)]
    assert all(rule.title for rule in DATA_CHECKS)


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_a_good_sample_passes(code: str, good: Path, look: Any, load: Any, rows: Rows) -> None:
    facts = look(good, config=load())
    facts.shared = None
    assert found(code, facts) == []


def test_01_a_file_that_does_not_open(tmp_path: Path, look: Any) -> None:
    (tmp_path / "a.root").write_bytes(b"<html>")
    one("DAT-01", look(tmp_path / "a.root"), "error", "web page", "a.root", "XT-DATA-NOT-ROOT")


def test_02_an_impossible_reading(look: Any, rows: Rows) -> None:
    rows["npho"][3, 4600] = 5e9
    one("DAT-02", look(rows), "error", "npho", "entry 3", "sensor 4600 face top", "5e+09")


@pytest.mark.parametrize("reading", [0.0, 1e10, np.nan])
def test_07_events_without_any_light(look: Any, rows: Rows, reading: float) -> None:
    rows["npho"][[4, 9]] = reading
    facts = look(rows)
    problems = [item for item in found("DAT-07", facts) if "no light" in item.problem]
    assert [(item.severity.value, "entry 4 run" in item.where) for item in problems] == [("warning", True)]
    assert "2 of" in problems[0].problem
    assert "entry 9" in problems[0].evidence[1]


def test_02_a_damaged_part_is_not_taken_for_another_unit(look: Any, rows: Rows) -> None:
    """4 kB of garbage in a plain basket: more readings than flipped bits explain, in photons as in times."""
    garbage = np.random.default_rng(1).integers(0, 2**32, 1024, np.uint32).view(np.float32)
    rows["npho"][3, 1000:2024] = garbage
    assert float((np.abs(garbage) > 2e6).mean()) * 1024 > 1e-3 * rows["npho"].size / 2  # beyond what a bit or two makes
    one("DAT-02", look(rows), "error", "npho", "entry 3", "a part is damaged")


def test_02_a_gain_that_lifts_the_brightest_sensors_is_not_taken_for_flipped_bits(look: Any, rows: Rows) -> None:
    """One or two readings an event are a share as small as that of flipped bits, and no bit chooses the brightest."""
    known = np.where(rows["npho"] < 1e9, rows["npho"], 0.0)
    gain = 2.1e6 / known.max(axis=1, keepdims=True)
    rows["npho"] = np.where(rows["npho"] < 1e9, gain * rows["npho"], rows["npho"]).astype(np.float32)
    lifted = int(((rows["npho"] > 2e6) & (rows["npho"] < 1e9)).sum())
    assert 10 < lifted <= 1e-3 * rows["npho"].size
    one("DAT-02", look(rows), "error", "npho", "another gain or unit", "again with npho in photons")


def test_02_what_is_not_done_over_the_network_is_said(look: Any, good: Path) -> None:
    facts = look(good)
    assert found("DAT-02", facts) == []
    facts.sample.files[0] = replace(facts.sample.files[0], path="https://server/good.root")
    one("DAT-02", facts, "warning", "1 of the files come over the network", "no hashes are written", "copy them")
    facts.settings = replace(facts.settings, max_events=10)
    assert [item.severity.value for item in BY_CODE["DAT-02"].check(facts)] == ["info"], "not asked for, so a note"


def test_03_another_tree(tmp_path: Path, write: Any, look: Any, rows: Rows) -> None:
    item = one("DAT-03", look(write(tmp_path / "b.root", rows, tree="events")), "error", "trees there: events")
    command = shlex.split(item.fix, comments=True)
    assert command == ["xectool", "check-data", str(tmp_path / "b.root"), "--set", "data.tree_name=events"]
    assert probe(command[2], "events").opened
    assert not probe(command[2]).opened  # the control


def test_04_the_branch_that_may_be_meant_comes_as_a_command(look: Any, rows: Rows) -> None:
    rows["charge"] = rows.pop("npho")
    item = one("DAT-04", look(rows), "error", "no branch 'npho'")
    file = item.where.split(":tree")[0]
    assert shlex.split(item.fix) == ["xectool", "check-data", file, "--set", "data.npho_branch=charge"]


def test_04_what_is_near_one_name_is_not_proposed_for_another(look: Any, rows: Rows) -> None:
    rows["nph"], rows["tns"] = rows.pop("npho"), rows.pop("relative_time")
    told = [shlex.split(item.fix)[3:] for item in BY_CODE["DAT-04"].check(look(rows)) if "sensor" in item.problem]
    assert told == 2 * [["--set", "data.npho_branch=nph", "--set", "data.time_branch=tns"]]


def test_04_one_line_names_photons_and_times_by_their_width(look: Any, rows: Rows) -> None:
    rows |= dict.fromkeys("abcdefgh", rows["run"])
    rows["xec_nphe"], rows["xec_t"] = rows.pop("npho"), rows.pop("relative_time")
    found_now = [item for item in BY_CODE["DAT-04"].check(look(rows)) if "sensor" in item.problem]
    assert all("xec_nphe, xec_t" in item.problem for item in found_now), "not the first eight names alone"
    told = [shlex.split(item.fix)[3:] for item in found_now]
    assert told == 2 * [["--set", "data.npho_branch=xec_nphe", "--set", "data.time_branch=xec_t"]]


def test_04_readings_stored_with_varying_width_are_proposed(tmp_path: Path, look: Any, rows: Rows) -> None:
    path, pairs = tmp_path / "jagged.root", {"n_phe": rows["npho"], "xec_t": rows["relative_time"]}
    with uproot.recreate(path) as file:
        file.mktree("tree", dict.fromkeys(pairs, "var * float32") | {"hits": "var * float32"})
        jagged = {name: ak.from_regular(ak.Array(values)) for name, values in pairs.items()}
        file["tree"].extend(jagged | {"hits": ak.from_regular(ak.Array(rows["npho"][:, :7]))})
    told = [shlex.split(item.fix)[3:] for item in BY_CODE["DAT-04"].check(look(path)) if "sensor" in item.problem]
    assert told == 2 * [["--set", "data.npho_branch=n_phe", "--set", "data.time_branch=xec_t"]]


def test_04_only_a_branch_of_its_width_is_proposed_for_a_truth(look: Any, load: Any, rows: Rows) -> None:
    energy = rows.pop("energyTruth")
    assert "NAME" not in (fix := one("DAT-04", look(rows, config=load()), "error", "energyTruth").fix), fix
    assert "=" not in fix, "nGammaTruth, the nearest by name, holds five numbers"
    rows["e_gamma"] = energy
    assert one("DAT-04", look(rows, config=load()), "error", "energyTruth").fix.endswith("energy=e_gamma")


@pytest.mark.parametrize("name", ["mc_uvw", "gen_point"])
def test_04_another_point_of_truth_is_not_the_one_that_is_meant(look: Any, load: Any, rows: Rows, name: str) -> None:
    """The point in the frame of the experiment, xyzTruth, was proposed for uvwTruth: only its last word is near."""
    rows[name] = rows.pop("uvwTruth")
    fix = one("DAT-04", look(rows, config=load("tasks.uvwFI.enabled=true")), "error", "uvwTruth").fix
    assert "xyzTruth" not in fix
    assert fix.endswith("uvwFI=mc_uvw") == (name == "mc_uvw")


def test_04_a_run_number_of_a_longer_name_is_proposed(look: Any, rows: Rows) -> None:
    rows["runNumber"] = rows["prunes"] = rows.pop("run")
    item = one("DAT-04", look(rows), "warning", "nearest there: runNumber, prunes)")
    assert item.fix.endswith("--set data.run_branch=runNumber")
    del rows["runNumber"], rows["prunes"]
    assert "nearest" not in one("DAT-04", look(rows), "warning", "branches there").problem, "none is near"


def test_04_a_task_without_its_truth(look: Any, load: Any, rows: Rows) -> None:
    del rows["energyTruth"]
    one("DAT-04", look(rows, config=load()), "error", "energyTruth", "task energy")


def test_04_missing_truth_of_no_task_is_fine(look: Any, rows: Rows) -> None:
    del rows["energyTruth"]
    assert found("DAT-04", look(rows)) == []


def test_05_a_narrow_file_among_others(look: Any, good: Path, rows: Rows) -> None:
    rows["npho"] = rows["npho"][:, :4759]
    one("DAT-05", look(good, rows), "error", "4759", "4760", "a1.root", "no other branch has that width")
    rows["charge"] = np.zeros((len(rows["npho"]), 4760), np.float32)
    one("DAT-05", look(good, rows), "error", "branches of that width: charge", "--set data.npho_branch=charge")


def test_05_a_single_number_is_one(look: Any, rows: Rows) -> None:
    rows["emiVec"] = rows["emiVec"][:, :1]
    one("DAT-05", look(rows), "error", "holds 1 number an event")


def test_05_another_vector_is_not_proposed_for_a_truth_of_a_wrong_width(look: Any, rows: Rows) -> None:
    rows["emiVec"] = rows["emiVec"][:, :2]
    item = one("DAT-05", look(rows), "error", "branches of that width", "xyzVTX")
    assert "xyzVTX" not in item.fix, "where the photon was made is no direction"
    rows["emiVecTrue"] = rows["xyzVTX"]
    assert one("DAT-05", look(rows), "error", "emiVec").fix.endswith("angleVec=emiVecTrue")


def test_06_no_events_and_too_few(look: Any, load: Any, good: Path, rows: Rows) -> None:
    empty = {name: values[:0] for name, values in rows.items()}
    one("DAT-06", look(good, empty), "warning", "a1.root", "no entries")
    assert [item.severity.value for item in found("DAT-06", look(empty))] == ["warning", "error"]
    short = ("data.batch_size=1000",)
    one("DAT-06", look(good, config=load(*short)), "warning", "120 events", "data.batch_size", "one short step")
    config = load(*short, "data.drop_last=true")
    one("DAT-06", look(good, config=config), "error", "0 batches", "data.drop_last")
    assert [(item.code, item.severity.value) for item in count_rules(config, 120, 0)] == [("CFG-35", "error")]


@pytest.mark.parametrize(("value", "kind"), [(np.nan, "1 NaN"), (np.inf, "1 +Inf"), (-np.inf, "1 -Inf")])
def test_07_what_is_no_number_is_counted_and_located(look: Any, rows: Rows, value: float, kind: str) -> None:
    rows["npho"][9, 4300] = value
    one("DAT-07", look(rows), "warning", kind, "entry 9", "event 9", "sensor 4300 face outer")


def test_07_nan_that_marks_no_reading_is_no_damage(look: Any, rows: Rows) -> None:
    """Dead channels as NaN are what some files have; the check stopped there and led no further."""
    rows["npho"][:, [7, 900]] = np.nan
    rows["relative_time"][rows["npho"] < np.nanmedian(rows["npho"])] = np.nan
    marked = list(BY_CODE["DAT-07"].check(look(rows)))
    assert [item.severity.value for item in marked] == ["info", "info"]
    assert "branch 'npho'" in marked[0].problem
    assert "marks 240 readings that are none with NaN" in marked[0].problem
    rows["relative_time"][:] = 0.0
    rows["relative_time"][:60, 1000:1200] = np.nan  # a part of the detector in half of the events
    one("DAT-07", look(rows), "warning", "12000 NaN")
    rows["npho"][9, 4300] = np.nan
    one("DAT-07", look(rows), "warning", "241 NaN")
    rows["npho"][9, 4300] = np.inf
    one("DAT-07", look(rows), "warning", "240 NaN, 1 +Inf")


def test_07_mostly_invalid_readings(look: Any, rows: Rows) -> None:
    rows["npho"][:, :3000] = 1e10
    one("DAT-07", look(rows), "warning", "invalid")
    rows["npho"][:, :4700] = 1e10
    one("DAT-07", look(rows), "error", "invalid")


def test_08_roots_of_negative_numbers(look: Any, rows: Rows) -> None:
    rows["npho"] = np.maximum(rows["npho"], 0)
    rows["npho"][5, 5] = -10
    facts = look(rows, npho_scheme="sqrt")
    item = one("DAT-08", facts, "warning", "1 readings", "sqrt")
    assert item.where.endswith("branch npho entry 5 run 5000 event 5 sensor 5 face inner")
    assert [line.rpartition(": ")[2] for line in item.evidence] == ["-10"]
    rows["npho"][:, ::10] = -10
    one("DAT-08", look(rows, npho_scheme="sqrt"), "error", "log1p")


def test_09_a_scale_that_does_not_fit(look: Any, rows: Rows) -> None:
    facts = look(rows, npho_scale=0.58, npho_scale2=1.0)
    one("DAT-09", facts, "warning", "npho_scale=0.58", "--set normalization.npho_scale=1000.0")
    rows["npho"] = rows["npho"] * 10
    rows["npho"][70, 9] = 1.9e6
    one(
        "DAT-09",
        look(rows, npho_scheme="linear", npho_scale=1.0),
        "error",
        "linear",
        "entry 70 ",
        "sensor 9 face inner",
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda npho: 20 * npho, "a photoelectron were 1.9e+02 photons (8 to 12 is usual)"),
        (lambda npho: 0.05 * npho, "a photoelectron were 0.4"),
        (lambda npho: npho + 500, "its darkest sensors have 3"),
    ],
)
def test_09_light_of_another_gain_or_with_a_pedestal(change: Any, told: str, good: Path, look: Any, rows: Rows) -> None:
    rows["npho"] = np.where(rows["npho"] < 9e9, change(rows["npho"]), 1e10).astype("f4")
    (item,) = [item for item in found("DAT-09", look(good, rows)) if told in item.problem]
    assert (item.severity.value, ", in 1 of 2 files" in item.problem) == ("warning", True)
    assert item.where.endswith("a1.root:tree branch npho")
    assert not found("DAT-09", look(good))


@pytest.mark.parametrize(("factor", "unit"), [(1e6, "us"), (1e9, "ns"), (1e12, "ps")])
def test_10_times_in_nanoseconds(look: Any, rows: Rows, factor: float, unit: str) -> None:
    valid = rows["relative_time"] < 9e9
    rows["relative_time"] = np.where(valid, rows["relative_time"] * factor, rows["relative_time"]).astype("f4")
    facts = look(rows)
    told = one("DAT-10", facts, "error", f"another unit than seconds: {unit}", "sensor")
    assert not found("DAT-02", facts), "it told the same, as damage"
    assert facts.suggested == {}, "no constant makes seconds of nanoseconds"
    assert not list(BY_CODE["DAT-11"].check(facts))
    assert told.evidence[-1] == "xectool explain units"


def test_10_a_file_of_seconds_and_nanoseconds_has_no_line_that_multiplies_both(look: Any, rows: Rows) -> None:
    times = rows["relative_time"][: 7 * len(rows["relative_time"]) // 10]
    times[times < 9e9] *= 1e9
    facts = look(rows)
    told = one(
        "DAT-02", facts, "error", "another unit is the usual reason", "make the file again with relative_time in s"
    )
    assert not found("DAT-10", facts)
    assert told.mends == ()


@pytest.mark.parametrize(("channel", "factor"), [("relative_time", 1.0), ("relative_time", 1e9), ("npho", 1e8)])
def test_all_figures_of_a_channel_are_of_the_same_readings(look: Any, rows: Rows, channel: str, factor: float) -> None:
    before = {row.feature: row for row in look(rows).raw}
    valid = rows[channel] < 9e9
    rows[channel] = np.where(valid, np.minimum(rows[channel] * factor, 9e9), rows[channel]).astype("f4")
    for row in look(rows).raw:
        assert row.min <= row.p1 <= row.mean <= row.p99 <= row.max
        wanted = factor if channel.endswith(row.feature) else 1.0
        assert row.p99 == pytest.approx(min(before[row.feature].p99 * wanted, 9e9), rel=0.05)


def test_10_a_time_scale_that_does_not_fit(look: Any, rows: Rows) -> None:
    facts = look(rows, time_scale=1e-9, time_shift=5.0)
    assert [item.severity.value for item in BY_CODE["DAT-10"].check(facts)] == ["info"]
    valid = rows["relative_time"] < 9e9
    rows["relative_time"] = np.where(valid, rows["relative_time"] * 10, 1e10).astype("f4")
    rows["relative_time"][80, int(np.where(rows["npho"][80] < 9e9, rows["npho"][80], 0).argmax())] = 9e-6
    one("DAT-10", look(rows, time_scale=1e-9), "warning", "time_scale", "entry 80 run")


def test_11_a_channel_without_spread(look: Any, rows: Rows) -> None:
    one("DAT-11", look(rows, npho_scale=1e9), "error", "npho of face all", "--set normalization.npho_scale=1000.0")


def test_11_one_face_without_spread(look: Any, rows: Rows) -> None:
    rows["npho"][:, 4308:4452] = 50.0
    items = found("DAT-11", look(rows))
    assert [item.where.rpartition("face ")[2] for item in items] == ["us: 50"]


@pytest.mark.parametrize("share", [60, 600])
def test_11_readings_that_no_sensor_delivers_change_no_constants(look: Any, rows: Rows, share: int) -> None:
    sound = look(rows)
    bright = np.argwhere((rows["npho"] > 150) & (rows["npho"] < 9e9))[:share]
    rows["relative_time"][*bright.T] = 4e-3
    facts = look(rows)
    assert found("DAT-02", facts)
    assert not found("DAT-10", facts), "a part that is damaged is in no other unit: a line multiplied the sound rest"
    assert not found("DAT-11", facts)
    assert not facts.suggested
    assert fits(facts.normalized)
    assert [(row.feature, row.p99) for row in facts.raw] == [
        (row.feature, pytest.approx(row.p99, rel=0.05)) for row in sound.raw
    ]


def test_11_one_face_without_spread_beside_a_reading_that_no_sensor_delivers(look: Any, rows: Rows) -> None:
    us = slice(4308, 4452)
    rows["npho"][:, us] = np.where(rows["npho"][:, us] < 9e9, 200.0, 1e10)
    rows["relative_time"][:, us] = 2e-8
    rows["relative_time"][3, 4308 if rows["npho"][3, 4308] < 9e9 else 4309] = 4e-3
    facts = look(rows)
    items = [item for item in found("DAT-11", facts) if "normalised time" in item.problem]
    assert found("DAT-02", facts)
    assert [item.where.rpartition("face ")[2] for item in items] == ["us: 2e-08"]
    assert " about 0.635;" in items[0].problem


def test_11_too_wide_a_spread_names_the_reading_farthest_out(look: Any, rows: Rows) -> None:
    rows["npho"][60, 11] = 1.9e6
    item = one("DAT-11", look(rows, npho_scheme="linear", npho_scale=1.0), "error", "npho of face all")
    assert item.where.endswith("branch npho entry 60 run 5000 event 60 sensor 11 face inner: 1.9e+06")


def test_12_a_tail_under_a_linear_scheme(look: Any, rows: Rows) -> None:
    rows["npho"] = np.clip(rows["npho"], 0, 100)
    rows["npho"][4, 4] = 1e6
    one("DAT-12", look(rows, npho_scheme="linear"), "warning", "sigma", "log1p", "entry 4 run", "sensor 4 face")
    assert found("DAT-12", look(rows)) == []


def test_13_readings_on_the_sentinel(look: Any, rows: Rows) -> None:
    facts = look(rows)
    rows["npho"][2, 8] = 500.0
    rows["relative_time"][2, 8] = -1.46 * 1.14e-7
    collided = look(rows)
    assert found("DAT-13", facts) == []
    one("DAT-13", collided, "warning", "1 valid", "entry 2", "sensor 8", "sentinel -1")
    assert int(collided.sample.cells.time.valid[8]) == int((rows["npho"][:, 8] >= 100).sum())


def test_14_a_dead_face_is_worse_than_dead_sensors(look: Any, rows: Rows) -> None:
    rows["npho"][:, 4596:4669] = 1e10
    one("DAT-14", look(rows), "error", "all 73 sensors of face top")


def test_14_many_dead_sensors(look: Any, rows: Rows) -> None:
    rows["npho"][:, :4000:7] = 1e10
    one("DAT-14", look(rows), "warning", "sensors are dead")


def test_14_a_repaired_file_is_told_with_what_was_filled(look: Any, rows: Rows) -> None:
    def told(facts: DataFacts) -> list[Finding]:
        return [item for item in BY_CODE["DAT-14"].check(facts) if "repaired" in item.problem]

    flags = np.zeros(rows["npho"].shape, np.uint8)
    flags[10:50, 7], flags[30, 900] = 1, 1
    (note,) = told(look(rows | {"repaired": flags}))
    assert note.severity.value == "info"
    assert "an inpainter filled 41 readings of 2 sensors in 40 of 120 events read" in note.problem
    assert note.where.endswith("branch repaired")
    nothing_filled = (np.ones(120, np.uint8), np.zeros_like(flags), np.full(flags.shape, np.nan, np.float32))
    assert [told(look(rows | {"repaired": other})) for other in nothing_filled] == [[], [], []]
    assert told(look(rows)) == []


def at_times(facts: DataFacts) -> list[Finding]:
    return [item for item in BY_CODE["DAT-14"].check(facts) if "no reading in many events" in item.problem]


def test_14_a_sensor_that_is_silent_in_half_of_the_events(look: Any, rows: Rows) -> None:
    """It counted as good, without a word."""
    assert at_times(look(rows)) == []
    rows["npho"][::2, 777] = 1e10
    rows["npho"][::10, 30] = np.nan
    (told,) = at_times(look(rows))
    assert told.severity.value == "info"
    assert told.problem.endswith("in which those around have one: 777, 30")
    assert told.evidence == (
        "sensor 777 face inner: none in 50% of the events",
        "sensor 30 face inner: none in 10% of the events",
    )


@pytest.mark.parametrize(("events", "share"), [(20, 0.01), (40, 0.02), (120, 0.02)])
def test_14_readings_that_lack_by_chance_name_no_sensor(look: Any, rows: Rows, events: int, share: float) -> None:
    """In a few events two of them were many: 445 sensors of 20 events."""
    rng = np.random.default_rng(events)
    rows["npho"][rng.random(rows["npho"].shape) < share] = 1e10
    few = {name: values[:events] for name, values in rows.items()}
    assert at_times(look(few)) == []
    few["npho"][rng.permutation(events)[: round(0.6 * events)], 777] = 1e10
    assert [told.problem[-5:] for told in at_times(look(few))] == [": 777"]


def test_14_a_board_that_lacks_some_of_its_readings_is_named_whole(look: Any, rows: Rows) -> None:
    board = np.arange(1000, 1012)
    rows["npho"][np.ix_(np.arange(0, 120, 8), board)] = 1e10
    assert [told.problem.split(" ")[0] for told in at_times(look(rows))] == ["12"]


def test_14_a_sensor_is_compared_with_those_around_it(look: Any, rows: Rows) -> None:
    """Where a face lacks half of its readings, one of another face that lacks as many stands out."""
    rng = np.random.default_rng(4)
    inner, outer = faces.sensors("inner"), faces.sensors("outer")
    rows["npho"][:, inner] = np.where(rng.random((120, len(inner))) < 0.5, 1e10, rows["npho"][:, inner])
    assert at_times(look(rows)) == []
    rows["npho"][: 120 // 3, outer[40]] = 1e10
    assert [told.problem.partition("have one: ")[2] for told in at_times(look(rows))] == [str(outer[40])]


def test_14_where_weak_light_is_not_stored_no_sensor_is_odd(look: Any, rows: Rows) -> None:
    rows["npho"][rows["npho"] < np.median(rows["npho"])] = 1e10
    assert at_times(look(rows)) == []


@pytest.mark.parametrize("state", ["constant", "hot", "noisy"])
def test_14_sensors_that_make_up_light(look: Any, rows: Rows, state: str) -> None:
    sensor = 1234
    rng = np.random.default_rng(1)
    faults = {
        "constant": np.full(len(rows["npho"]), 3.0),
        "hot": rows["npho"][:, sensor] + rng.normal(2000, 30, len(rows["npho"])),
        "noisy": rows["npho"][:, sensor] + rng.normal(0, 600, len(rows["npho"])),
    }
    rows["npho"][:, sensor] = faults[state]
    facts = look(rows)
    assert facts.health.of(state) == [sensor]
    one("DAT-14", facts, "warning", state, f"sensor {sensor} face inner")


def test_14_a_number_in_the_place_of_no_reading_is_named(look: Any, rows: Rows) -> None:
    """Whole numbers have no NaN: -1 stands for no reading, which was told as that many broken sensors."""
    rows["npho"][:, [7, 900, 4444]] = -1
    found = one("DAT-14", look(rows), "warning", "3 sensors are constant, all at -1 photons: 7, 900, 4444")
    assert [(mend.branch, mend.change.markers) for mend in found.mends] == [("npho", ((-1.0, None),))]
    whole = one("DAT-14", look({**rows, "npho": np.rint(rows["npho"])}), "warning", "all at -1 photons")
    assert (whole.mends, whole.fix[:10]) == ((), "write 1e10"), "others may read it in truth"
    rows["npho"][:, 900] = 2.5
    found = one("DAT-14", look(rows), "warning", "3 sensors are constant: 7, 900, 4444")
    assert found.evidence[1] == "sensor 900 face inner: always 2.5 photons"


def test_14_beside_a_noisy_sensor_those_at_a_corner_are_sound(look: Any, rows: Rows) -> None:
    """Half of what they are compared with is noise: 4668 and 4741 were called noisy as well."""
    rng, noisy = np.random.default_rng(1), [3274, 4279, 4423, 4567, 4654, 4727]  # one on each face
    rows["npho"][:, noisy] += rng.normal(0, 1500, (len(rows["npho"]), len(noisy))).astype(np.float32)
    assert look(rows).health.of("noisy") == noisy
    rows["npho"][:, [4668, 4669]] += rng.normal(0, 1500, (len(rows["npho"]), 2)).astype(np.float32)
    assert set(look(rows).health.of("noisy")) == {*noisy, 4668, 4669}, "neighbours that are all noisy"


@pytest.mark.parametrize("reading", [1e10, np.nan, 0.0])
def test_14_a_live_sensor_among_dead_ones_is_not_hot(look: Any, rows: Rows, reading: float) -> None:
    """The light around it was that of the dead ones, which is none: 14 of the outer face were called hot."""
    outer = faces.sensors("outer")
    last = outer[-18:]  # side by side, where the light is
    rows["npho"][:, outer[:-18]] = reading
    assert look(rows).health.of("hot") == []
    rows["npho"][:, last[4]] = 20 * rows["npho"][:, last[4]] + 5000  # the control
    assert look(rows).health.of("hot") == [last[4]]


def test_15_a_mask_that_hides_nothing(look: Any, load: Any, rows: Rows) -> None:
    config = load("model.mask_ratio=0.6", kind="mae")
    assert found("DAT-15", look(rows, config=config)) == []
    rows["npho"][7] = 1e10
    one("DAT-15", look(rows, config=config), "error", "mask_ratio", "0 valid")


@pytest.mark.parametrize(
    ("branch", "factor", "unit"),
    [
        ("energyTruth", 1e3, "MeV"),
        ("energyTruth", 1e6, "keV"),
        ("timeTruth", 1e9, "ns"),
        ("timeTruth", 1e12, "ps"),
        ("uvwTruth", 10.0, "mm"),
        ("uvwTruth", 0.01, "m,"),
        ("emiAng", np.pi / 180, "radians"),
    ],
)
def test_16_truth_in_another_unit(look: Any, rows: Rows, branch: str, factor: float, unit: str) -> None:
    rows[branch] = (rows[branch] * factor).astype(rows[branch].dtype)
    one("DAT-16", look(rows), "error", f"looks like {unit}", branch)


def test_16_truth_that_is_no_number_constant_or_impossible(look: Any, load: Any, rows: Rows) -> None:
    rows["timeTruth"][17] = np.nan
    one(
        "DAT-16",
        look(rows),
        "warning",
        "NaN, infinite or beyond 1e10 in 1 of 120 events; training",
        "timeTruth entry 17",
        "event 17",
    )
    few = rows["timeTruth"].copy()
    rows["timeTruth"][17] = 3e37  # `train` names it, and it was called "unknown (1e10)" here
    one("DAT-16", look(rows), "warning", "beyond 1e10 in 1 of 120 events", "timeTruth entry 17", "e+37")
    for row in (20, 25):  # five of 120: most of them are known
        rows["timeTruth"][[row, row + 1]] = np.inf, np.nan
        one("DAT-16", look(rows), "warning", "NaN, infinite or beyond 1e10 in", "leaves the events out")
    rows["timeTruth"][:] = few
    rows["timeTruth"][17] = 0
    rows["uvwTruth"][3, 2] = 400.0
    one("DAT-16", look(rows), "warning", "uvwTruth entry 3", "component 2", "400")
    rows["uvwTruth"][3, 2] = 4.0
    time = rows["timeTruth"]
    middle, before = np.median(time), time[17]
    time[17] = middle + 137 * 1.4826 * np.median(np.abs(time - middle))
    one("DAT-16", look(rows), "warning", "timeTruth entry 17", "sigma from the rest", "automatic scale")
    time[17] = before
    for count, sides in ((3, 2), (4, 0)):  # of 40 events; four are a tenth of them, and no damage
        kept = time.copy()
        time[:count] = middle + 60 * 1.4826 * np.median(np.abs(time - middle)) * (-1.0) ** np.arange(count)
        told = [item for item in found("DAT-16", look(rows)) if "3 such make an automatic scale" in item.problem]
        assert len(told) == sides, "the farthest on each side"
        time[:] = kept
    # the control: as they were
    assert not [item for item in found("DAT-16", look(rows)) if item.severity.value == "warning"]
    rows["energyTruth"][:] = 0.0528
    one("DAT-16", look(rows, config=load()), "error", "every event", "training refuses it")


@pytest.mark.parametrize(("branch", "named"), [("energyTruth", True), ("uvwTruth", True), ("timeTruth", False)])
def test_16_truth_that_was_never_filled(look: Any, rows: Rows, branch: str, named: bool) -> None:
    """Exactly 0 is no energy and no position; a time may be."""
    rows[branch][::4] = 0
    told = [item for item in found("DAT-16", look(rows)) if "exactly 0 in 30 of 120 events" in item.problem]
    assert [item.severity.value for item in told] == ["warning"] * named


def test_16_truth_that_was_never_filled_in_one_file_is_told_of_it(good: Path, look: Any, rows: Rows) -> None:
    """It was told of all files, the first one named, which was sound."""
    rows["energyTruth"][::4] = 0
    told = [item for item in found("DAT-16", look(good, rows, good)) if "exactly 0" in item.problem]
    assert [item.where.rpartition("/")[2] for item in told] == ["a1.root:tree branch energyTruth"]
    assert [line.rpartition("/")[2] for line in told[0].evidence] == ["a1.root:tree: 30 events"]
    (told,) = [item for item in found("DAT-16", look(rows, rows)) if "exactly 0" in item.problem]
    assert (told.evidence, "2 files" in told.where) == ((), True)


def test_16_truth_that_was_never_filled_is_counted_in_all_events_and_told_of_the_file_with_most() -> None:
    """Of 651 such events 650 were in the one file; those kept of it had none, and the other was named."""
    scan = TargetScan("energyTruth", 1)
    for path, zeros in (("a.root", slice(1, None, 2)), ("b.root", slice(0, 1))):
        energies = np.full((1300, 1), 0.05)
        energies[zeros] = 0
        numbers = np.arange(1300)
        scan.add(energies, Place(path, numbers, numbers, numbers))
        scan.end_file(path, "energy")
    (told,) = TruthIsSound()._unfilled("energy", scan, "2 files")
    assert (told.where, told.evidence) == ("a.root branch energyTruth", ("a.root: 650 events", "b.root: 1 event"))
    assert "in 651 of 2600 events" in told.problem


def test_17_logarithms_of_nothing(look: Any, load: Any, rows: Rows) -> None:
    config = load("tasks.energy.log_transform=true")
    assert found("DAT-17", look(rows, config=config)) == []
    rows["energyTruth"][6] = 0.0
    one("DAT-17", look(rows, config=config), "error", "tasks.energy.log_transform", "entry 6")


@pytest.mark.parametrize("setting", ["tasks.energy.loss_beta=1.0", "tasks.energy.loss_beta=0.00001"])
def test_18_a_beta_far_from_the_error(look: Any, load: Any, rows: Rows, setting: str) -> None:
    config = load("tasks.energy.scale=null", "tasks.energy.shift=null", setting)
    one("DAT-18", look(rows, config=config), "warning", "tasks.energy.loss_beta", "scale=auto")


@pytest.mark.parametrize("parts", ["all files", "one file"])
def test_18_no_scale_is_advised_for_a_truth_in_another_unit(
    look: Any, load: Any, good: Path, rows: Rows, parts: str
) -> None:
    """Beside "looks like MeV" stood a scale, with which the network would learn MeV."""
    config = load("tasks.energy.scale=null", "tasks.energy.shift=null", "tasks.energy.loss_beta=0.00001")
    assert found("DAT-18", look(good, config=config))  # the control
    rows["energyTruth"] *= 1e3
    facts = look(rows, config=config) if parts == "all files" else look(good, good, rows, config=config)
    assert (found("DAT-18", facts), len(found("DAT-16", facts))) == ([], 1)


def test_18_a_fitted_scale_is_not_advised_again_where_a_wild_truth_stretches_it(
    look: Any, load: Any, rows: Rows
) -> None:
    """Its advice was what the configuration had, in a circle, and hid the truth that is at fault."""
    rows["energyTruth"][50] = 50.0
    auto = ("tasks.energy.scale=auto", "tasks.energy.shift=auto")
    assert found("DAT-18", look(rows, config=load(*auto))) == []
    one("DAT-18", look(rows, config=load(*auto, "tasks.energy.loss_beta=1000")), "warning", "loss_beta=1")


def test_19_events_that_stand_twice(look: Any, rows: Rows) -> None:
    rows["event"][50] = rows["event"][20]
    facts = look(rows)
    first = one("DAT-19", facts, "warning", "1 event with", "entry 50", "entry 20")
    assert "run and event number" in first.problem


def test_19_copies_under_another_number(look: Any, rows: Rows) -> None:
    rows["npho"][50] = rows["npho"][20]
    one("DAT-19", look(rows), "warning", "exactly the photons", "entry 50", "entry 20")


def test_19_one_event_larger_and_smaller(look: Any, rows: Rows) -> None:
    one_of_them = rows["npho"][20].copy()
    size = rows["energyTruth"].reshape(-1, 1) / rows["energyTruth"].reshape(-1)[20]
    rows["npho"][:] = np.where(one_of_them > 9e9, one_of_them, one_of_them * size)
    facts = look(rows)
    one("DAT-19", facts, "error", "is that of one event", "do not train on it; make the file again")
    assert not found("DAT-25", facts)


def test_19_between_files(look: Any, good: Path, rows: Rows) -> None:
    other = {name: values[100:] for name, values in rows.items()}
    one("DAT-19", look(good, other), "warning", "20 events", "a1.root")


def test_20_one_shared_event(look: Any, load: Any, rows: Rows) -> None:
    other = {name: values[:30].copy() for name, values in rows.items()}
    other["event"] = other["event"] + 100_000
    other["npho"] = other["npho"] + np.float32(0.25)
    assert found("DAT-20", look(rows, other=other)) == []
    other["event"][12] = rows["event"][5]
    one("DAT-20", look(rows, other=other), "error", "shares 1 event", "other0.root:tree entry 12", "entry 5")
    allowed = load("data.allow_overlap=true")
    one("DAT-20", look(rows, config=allowed, other=other), "warning", "shares 1 event")


def test_20_the_same_file_under_another_name(look: Any, good: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.root"
    copy.write_bytes(good.read_bytes())
    one("DAT-20", look(good, other=copy), "error", "copy.root")


def test_21_sorted_events_and_drifting_files(look: Any, rows: Rows, load: Any) -> None:
    order = np.argsort(rows["energyTruth"])
    energies = {name: values[order] for name, values in rows.items()}
    one("DAT-21", look(energies), "warning", "energy", "correlation", "data.shuffle=true")
    halves = [{name: values[part] for name, values in energies.items()} for part in (slice(60), slice(60, None))]
    assert any("drifts" in item.problem for item in found("DAT-21", look(*halves)))
    (told,) = found("DAT-21", look(energies))
    facts = look(energies, config=load(*told.fix.replace("--set ", "").split()))
    assert [(item.severity.value, item.fix) for item in BY_CODE["DAT-21"].check(facts)] == [("info", "")], "a loop"


def test_21_one_sorted_file_among_others_is_named(look: Any, good: Path, rows: Rows) -> None:
    """In all of them together it was told of the first, which was sound, or did not show at all."""
    order = np.argsort(rows["energyTruth"])
    energies = {name: values[order] for name, values in rows.items()}
    told = [item for item in found("DAT-21", look(good, good, energies, good)) if "foretells" in item.problem]
    assert [item.where.rpartition("/")[2] for item in told] == ["a2.root:tree branch energyTruth"]
    assert "1 of 4 files" in told[0].problem
    assert [line.rpartition("/")[2] for line in told[0].evidence] == ["a2.root:tree"]
    told = [item for item in found("DAT-21", look(energies, energies)) if "foretells" in item.problem]
    assert ["2 files" in item.where for item in told] == [True]


def test_22_a_sample_with_another_gain(look: Any, rows: Rows) -> None:
    other = {name: values.copy() for name, values in rows.items()}
    assert found("DAT-22", look(rows, other=other)) == []
    other["npho"] = np.where(other["npho"] < 9e9, other["npho"] * 1.5 + 30, other["npho"]).astype("f4")
    first = one("DAT-22", look(rows, other=other), "warning", "KS", "npho", "sigma apart")
    assert " p " in first.problem or "(p " in first.problem


def test_23_idle_workers_and_ranks(look: Any, load: Any, good: Path) -> None:
    facts = look(good, config=load())
    files = [SourceFile(str(good), "tree", 120, (0,))]
    plan = DataPlan(files, 8, 1, num_shards=8, chunksize=64, world_size=2)
    facts.sharing = plan_sharing(files, plan, 4)
    assert sum(facts.sharing.rank_events) == 120
    assert {share.files for share in facts.sharing.shares} <= {0, 1}
    facts.sharing = plan_sharing(files, DataPlan(files, 8, 1, chunksize=1024), 4)
    one("DAT-23", facts, "warning", "3 workers read nothing", "data.num_workers=1")
    facts.sharing = plan_sharing(files, DataPlan(files, 8, 1, chunksize=1024), 2)
    one("DAT-23", facts, "warning", "1 worker reads nothing: rank 0 worker 1", "data.num_workers=1")
    facts.sharing = Sharing(1, 1, 2, 0, (1, 0), (WorkerShare(0, 0, 1, 1, 1), WorkerShare(1, 0, 0, 0, 0)), 1)
    one("DAT-23", facts, "error", "ranks [1]", "distributed.num_gpus")
    facts.refusal = DataUnusable("no event passes the cut", where="data.fiducial", fix="widen it")
    facts.sharing = None
    one("DAT-23", facts, "error", "training refuses these files: no event passes the cut", "data.fiducial", "widen it")


@pytest.mark.parametrize("events", [1, 7, 119, 120])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_23_ranks_share_all_events(events: int, ranks: int) -> None:
    files = [SourceFile("a.root", "tree", events, tuple(range(0, events, 10)))]
    shared = plan_sharing(files, DataPlan(files, 4, 1, num_shards=4, chunksize=32, world_size=ranks), 3)
    assert sum(shared.rank_events) == events
    assert max(shared.rank_events) - min(shared.rank_events) <= 1


def test_24_a_buffer_beyond_the_memory(look: Any, load: Any, good: Path) -> None:
    facts = look(good, config=load("data.chunksize=100000"))
    facts.memory_bytes = facts.free_disk_bytes = 10**12
    assert found("DAT-24", facts) == []
    facts.memory_bytes = 10**8
    assert "a machine with" in one("DAT-24", facts, "error", "GB", "data.chunksize").fix
    facts.memory_bytes, facts.free_disk_bytes = 10**12, 10**6
    facts.disk_needed_bytes = {"checkpoints": 1e9}
    one("DAT-24", facts, "error", "checkpoints 1 GB", "0.001 GB are free", "checkpoint.save_dir")


@pytest.mark.parametrize("setting", ["data.chunksize=100000", "data.batch_size=100000"])
def test_24_the_line_to_paste_cures_it(
    look: Any, load: Any, good: Path, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch too large was told to take a chunk of one batch, which is as large."""
    facts = look(good, config=load("data.chunksize=100000", setting))
    facts.memory_bytes = 3 * 10**9
    monkeypatch.setattr(type(facts.sample), "num_events", 10**6)
    fix = one("DAT-24", facts, "error", setting.partition("=")[0]).fix
    facts.config = load("data.chunksize=100000", setting, *fix.replace("--set ", "").split())
    assert found("DAT-24", facts) == []


def test_25_angle_and_vector_that_disagree(look: Any, rows: Rows) -> None:
    rows["emiVec"][14] = rows["emiVec"][14][::-1]
    item = one("DAT-25", look(rows), "warning", "in 1 events")
    assert item.where.endswith("branch emiVec entry 14 run 5000 event 14")


def test_25_sensors_in_another_order(look: Any, rows: Rows) -> None:
    order = np.random.default_rng(1).permutation(4760)
    rows["npho"] = rows["npho"][:, order]
    one("DAT-25", look(rows), "warning", "order of the geometry")


def with_faces_changed(npho: np.ndarray) -> np.ndarray:
    one, other = faces.sensors("us"), faces.sensors("ds")
    npho[:, one], npho[:, other] = npho[:, other].copy(), npho[:, one].copy()
    return npho


def with_inner_mirrored(npho: np.ndarray) -> np.ndarray:
    npho[:, :4092] = npho[:, :4092].reshape(-1, 93, 44)[:, ::-1].reshape(-1, 4092)
    return npho


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (with_faces_changed, "'us' and 'ds' have changed places"),
        (with_inner_mirrored, "'bot' and 'top' have changed places, or are mirrored"),
        (lambda npho: np.roll(npho, 1, axis=1), "rows of the inner face begin 1 sensor too late"),
    ],
)
def test_25_light_that_the_faces_place_elsewhere(change: Any, told: str, good: Path, look: Any, rows: Rows) -> None:
    rows["npho"] = change(rows["npho"].copy())
    facts = look(good, rows)
    assert min(facts.sample.order_likeness.values()) > 0.3  # the control: neighbours alone do not tell
    item = one("DAT-25", facts, "warning", told, "in 1 of 2 files")
    assert item.where.endswith("a1.root:tree branch npho")


def test_25_a_position_of_other_events(look: Any, rows: Rows) -> None:
    rows["uvwTruth"] = rows["uvwTruth"][np.random.default_rng(2).permutation(len(rows["uvwTruth"]))]
    item = one("DAT-25", look(rows), "warning", "does not follow the light", "same event")
    assert item.where.endswith("branch uvwTruth")
    rows["uvwTruth"][15:] = 1e10
    assert found("DAT-25", look(rows)) == []


def test_25_a_direction_of_other_events(look: Any, rows: Rows) -> None:
    order = np.random.default_rng(2).permutation(len(rows["emiAng"]))
    for name in ("emiAng", "emiVec"):
        rows[name] = rows[name][order]
    told = [item for item in found("DAT-25", look(rows)) if "does not follow the light" in item.problem]
    assert [item.where.rpartition(" ")[2] for item in told] == ["emiAng", "emiVec"]
    assert all("direction of the photon of the same event" in item.fix for item in told)


def test_25_an_energy_of_other_events(look: Any, rows: Rows) -> None:
    rows["energyTruth"] = rows["energyTruth"][np.random.default_rng(2).permutation(len(rows["energyTruth"]))]
    item = one("DAT-25", look(rows), "warning", "energy does not follow the light", "write the energy of")
    assert item.where.endswith("branch energyTruth")
    rows["energyTruth"][:] = 0.0528 * np.random.default_rng(3).normal(1, 0.01, len(rows["energyTruth"]))
    assert found("DAT-25", look(rows)) == []  # a beam of one energy: the control


def test_25_exchanged_branches_are_the_one_thing_that_is_said(look: Any, rows: Rows) -> None:
    """Two wrong units, readings of no sensor and a spread of nothing: their lines all led to making the file again."""
    rows["npho"], rows["relative_time"] = rows["relative_time"], rows["npho"].copy()
    rows["npho"][0, 17] = 3e-3  # noise
    facts = look(rows)
    item = one("DAT-25", facts, "error", "times in s and are read as photons", "--set data.npho_branch=relative_time")
    assert item.fix.endswith("--set data.time_branch=npho")
    assert [found(code, facts) for code in ("DAT-02", "DAT-07", "DAT-10", "DAT-11")] == [[], [], [], []]
    assert facts.suggested == {}, "nor constants that would make photons of times"


def test_25_times_of_other_sensors(look: Any, rows: Rows) -> None:
    rows["relative_time"] = np.roll(rows["relative_time"], 1, axis=1)
    item = one("DAT-25", look(rows), "warning", "the times are of other sensors", "order of the geometry")
    assert item.where.endswith("branch relative_time")


def test_14_sensors_that_always_tell_the_same_time(look: Any, rows: Rows) -> None:
    assert "the same time" not in str(found("DAT-14", look(rows)))
    bright = np.argsort(-((rows["npho"] > 150) & (rows["npho"] < 1e9)).sum(axis=0))[:3]
    rows["relative_time"][:, bright] = -2.5e-8
    told = [item for item in found("DAT-14", look(rows)) if "the same time" in item.problem]
    assert [item.problem.split(" tell")[0] for item in told] == ["3 sensors"]
    assert "-2.5e-08 s" in told[0].problem


def test_26_baskets_larger_than_a_window(look: Any, load: Any, good: Path) -> None:
    assert found("DAT-26", look(good, config=load("data.chunksize=1024"))) == []
    facts = look(good, config=load("data.chunksize=16", "data.num_shards=2"))
    one("DAT-26", facts, "warning", "120 events", "data.chunksize")


@pytest.mark.parametrize(
    ("cache", "fix"),
    [
        ("off", "--set data.cache=auto "),
        ("auto", "nothing to do: data.cache: auto makes a copy where that pays; to make it before: xectool prepare"),
        ("./here", "nothing to do: epochs after the first read the copy in data.cache: ./here"),
    ],
)
def test_26_what_is_slow_to_read_is_read_once(
    look: Any, load: Any, rows: Rows, tmp_path: Path, cache: str, fix: str
) -> None:
    """Both notes said what is slow and not what to do."""
    path = tmp_path / "tiny.root"
    with uproot.recreate(path) as file:
        tree = file.mktree("tree", {name: (values.dtype, values.shape[1:]) for name, values in rows.items()})
        for start in range(0, 120, 2):
            tree.extend({name: values[start : start + 2] for name, values in rows.items()})
    facts = look(path, config=load(f"data.cache={cache}"))
    facts.sample.seconds = 60.0
    told = list(BY_CODE["DAT-26"].check(facts))
    assert [item.severity.value for item in told] == ["info", "info"]
    assert "60 baskets of 2.0 events each" in told[0].problem
    assert "2 events/s were read" in told[1].problem
    assert [item.fix[: len(fix)] for item in told] == [fix, fix]


def test_26_of_a_url_no_copy_is_made_by_itself(look: Any, load: Any, good: Path) -> None:
    facts = look(good, config=load("data.cache=auto"))
    facts.sample.seconds = 60.0
    facts.sample.files[0] = replace(facts.sample.files[0], path="root://server//good.root")
    (told,) = BY_CODE["DAT-26"].check(facts)
    assert told.fix.startswith("--set data.cache=./cache ")


def test_facts_of_a_file_that_did_not_open_are_empty() -> None:
    facts = FileFacts("a.root", "tree")
    assert not facts.opened
    assert facts.without_units() == {}


@pytest.mark.parametrize(
    ("task", "branch", "factor", "unit"),
    [
        ("energy", "energyTruth", 1e3, "MeV"),
        ("angle", "emiAng", np.pi / 180, "radians"),
        ("timing", "timeTruth", 1e9, "ns"),
        ("uvwFI", "uvwTruth", 10, "mm"),
    ],
)
def test_one_file_in_another_unit_among_good_ones_is_named(
    task: str, branch: str, factor: float, unit: str, good: Path, look: Any, rows: Rows
) -> None:
    rows[branch] *= factor
    facts = look(good, good, rows)
    assert other_unit(task, facts.sample.targets[task].kept.rows) == ""  # the control: not seen in all together
    item = one("DAT-16", facts, "error", f"looks like {unit}", "in 1 of 3 files", "a2.root")
    assert "good.root" not in f"{item.where}{item.evidence}"
    assert [found(code, facts) for code in ("DAT-21", "DAT-25")] == [[], []]
    assert "1 of" not in found("DAT-16", look(rows))[0].problem


def test_one_file_in_another_order_or_with_silent_sensors_among_good_ones_is_named(
    good: Path, look: Any, rows: Rows
) -> None:
    sound = rows["npho"].copy()
    rows["npho"] = sound[:, np.random.default_rng(3).permutation(sound.shape[1])]
    facts = look(good, good, rows)
    assert facts.order_likeness > 0.3  # the control
    item = one("DAT-25", facts, "warning", "in 1 of 3 files", "a2.root")
    assert item.where.endswith("a2.root:tree branch npho")
    rows["npho"] = sound
    rows["npho"][:, 3000], rows["npho"][:, 3001] = 0.0, 70.0
    rows["npho"][:, 1000] += 3000
    rows["npho"][:, 2222] += np.random.default_rng(4).normal(0, 800, len(rows["npho"]))
    facts = look(good, good, rows)
    assert not {3000, 3001} & {*facts.health.of("dead"), *facts.health.of("constant")}  # the control
    one("DAT-14", facts, "warning", "1 sensor is constant in some files", "1 of 3 files", "a2.root:tree sensor 3001")
    notes = [item for item in BY_CODE["DAT-14"].check(facts) if "in some files" in item.problem]
    told = [item.evidence[0].split("/")[-1] for item in notes]
    assert told == ["a2.root:tree: 3000", "a2.root:tree: 3001", "a2.root:tree: 1000", "a2.root:tree: 2222"]
    assert [item.problem.split(" in ")[0][-5:] for item in notes[2:]] == ["s hot", "noisy"]
    rows["npho"][:, faces.sensors("top")] = 1e10
    one(
        "DAT-14", look(good, good, rows), "error", "all 73 sensors of face top", "1 of 3 files", "a2.root:tree face top"
    )


def test_one_file_of_times_in_another_unit_among_thousands_is_named(good: Path, look: Any) -> None:
    facts = look(good)
    name = facts.sample.files[0].where
    bad = CellCounts("time", 10**5, impossible=10**5, first={"impossible": [Cell(name, 4, 1, 2, 3, 5.0)]})
    facts.sample.counts = {f"{n}": (CellCounts("npho"), CellCounts("time", 10**6)) for n in range(2000)}
    facts.sample.counts[name] = CellCounts("npho"), bad
    told = "100000 of 100000 times", f"{name} branch relative_time entry 4", "1 of 2001 files"
    found = one("DAT-10", facts, "error", *told)
    assert found.mends == (Mend(str(good), "tree", "relative_time", Change(factor=1e-9)),)


@pytest.mark.parametrize(("dark", "severity"), [(30, "warning"), (None, "error")])
def test_a_file_without_light_is_no_training_file(
    dark: int | None,
    severity: str,
    rows: Rows,
    write: Callable[..., Path],
    check: Callable[..., DataChecked],
    tmp_path: Path,
) -> None:
    rows["npho"][:dark] = 42.0
    found = check(write(tmp_path / "dark.root", rows)).findings
    assert severity in [item.severity.value for item in found if "hold no light" in item.problem]


def test_the_cure_of_a_channel_names_its_own_constants(
    rows: Rows, write: Callable[..., Path], check: Callable[..., DataChecked], tmp_path: Path
) -> None:
    rows["relative_time"][:] = 3e-9
    rows["npho"] = np.where(rows["npho"] < 1e9, rows["npho"] / 100, rows["npho"])
    found = check(write(tmp_path / "flat.root", rows)).findings
    flat = [item for item in found if item.code == "DAT-11" and "normalised time" in item.problem]
    assert flat
    assert not any("npho" in item.fix for item in flat)
