"""A marker of "no reading" that is neither 1e10 nor NaN is named, mended in one line, and no unit is judged by it."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import uproot
from xectool.engine.data_report import DataChecked
from xectool.findings import Finding, Severity

Rows = dict[str, np.ndarray]
Write, Check = Callable[..., Path], Callable[..., DataChecked]
Paste = Callable[[str, Path], subprocess.CompletedProcess[str]]
SAID = "looks like your marker of 'no reading'"


def marked(found: DataChecked) -> list[Finding]:
    """Return what is told of markers."""
    return [item for item in found.findings if SAID in item.problem]


def others(found: DataChecked) -> set[str]:
    """Return the codes of all else that is no note."""
    return {item.code for item in found.findings if item.severity is not Severity.INFO and SAID not in item.problem}


def with_markers(rows: Rows, times: float = 1e10, photons: float = 1e10, factor: float = 1.0) -> Rows:
    """Return rows with a marker in place of 1e10 in each channel, and times in another unit."""
    npho, time = rows["npho"], rows["relative_time"]
    scaled = np.where(time > 9e9, times, time * factor).astype(np.float32)
    return rows | {"npho": np.where(npho > 9e9, photons, npho).astype(np.float32), "relative_time": scaled}


def mended(line: str, folder: Path, paste: Paste) -> dict[str, np.ndarray]:
    """Run a line that writes a file again, and return what it wrote."""
    before = set(folder.glob("*.root"))
    paste(line, folder)
    (target,) = set(folder.glob("*.root")) - before
    with uproot.open(target) as file:
        return dict(file["tree"].arrays(["npho", "relative_time"], library="np"))


def test_times_in_seconds_with_a_marker_are_in_no_other_unit(
    rows: Rows, write: Write, check: Check, tmp_path: Path, paste: Paste
) -> None:
    """A line to paste multiplied them with 1e-12."""
    found = check(write(tmp_path / "own.root", with_markers(rows, times=-999.0)))
    (told,) = marked(found)
    assert told.problem.startswith("-999 looks like")
    assert "% of the values of branch 'relative_time'" in told.problem
    assert "xectool knows 1e10 and NaN" in told.problem
    assert not others(found) & {"DAT-02", "DAT-10", "DAT-11"}
    assert found.next == told.fix
    np.testing.assert_allclose(mended(told.fix, tmp_path, paste)["relative_time"], rows["relative_time"])


def test_one_line_mends_unit_and_markers_of_both_channels(
    rows: Rows, write: Write, check: Check, tmp_path: Path, paste: Paste
) -> None:
    changed = with_markers(rows, times=-999.0, photons=-9999.0, factor=1e9)
    found = check(write(tmp_path / "own.root", changed))
    assert [item.problem.split()[0] for item in marked(found)] == ["-9999", "-999"]
    (unit,) = [item for item in found.findings if item.code == "DAT-10"]
    assert unit.problem.endswith("another unit than seconds: ns")
    assert {unit.fix, *(item.fix for item in marked(found))} == {found.next}
    written = mended(found.next, tmp_path, paste)
    np.testing.assert_allclose(written["relative_time"], rows["relative_time"], rtol=1e-5)
    np.testing.assert_array_equal(written["npho"], rows["npho"])
    assert not marked(check(tmp_path / "own_converted.root"))


@pytest.mark.parametrize(
    ("number", "kind"),
    [(-999.9, "f4"), (-999.9, "f8"), (-999.12345678, "f8"), (-99999999, "f8"), (-(2**31), "i4"), (-99999999, "i8")],
)
def test_the_line_names_a_marker_as_its_branch_holds_it(
    rows: Rows, write: Write, check: Check, tmp_path: Path, paste: Paste, number: float, kind: str
) -> None:
    """Read as float32 it has other digits: the line found nothing, and led to a check that proposed it again."""
    readings = np.where(rows["npho"] > 9e9, 0, rows["npho"]).astype(kind)
    photons = np.where(rows["npho"] > 9e9, np.array(number, kind), readings)
    line = check(write(tmp_path / "own.root", rows | {"npho": photons})).next
    assert f"--marker npho={number} " in line or f"--marker npho={float(number)} " in line
    expected = np.where(rows["npho"] > 9e9, np.float32(1e10), readings.astype("f4"))
    np.testing.assert_array_equal(mended(line, tmp_path, paste)["npho"], expected)


@pytest.mark.parametrize(("number", "severity"), [(-999.0, Severity.ERROR), (-9999.0, Severity.WARNING)])
def test_photons_with_a_marker_are_judged_without_it(
    rows: Rows, write: Write, check: Check, tmp_path: Path, number: float, severity: Severity
) -> None:
    found = check(write(tmp_path / "own.root", with_markers(rows, photons=number)))
    (told,) = marked(found)
    assert (told.code, told.severity) == ("DAT-07", severity), "below -999 the settings have no domain"
    assert not others(found) & {"DAT-02", "DAT-08", "DAT-09", "DAT-11"}


def test_a_marker_that_stands_where_light_is_is_an_error(
    rows: Rows, write: Write, check: Check, tmp_path: Path
) -> None:
    rows["relative_time"][:, ::2] = -1.0
    (told,) = marked(check(write(tmp_path / "own.root", rows)))
    assert told.severity is Severity.ERROR
    assert "a network takes" in told.problem


@pytest.mark.parametrize("known", [1e10, np.nan, 0.0])
def test_known_markers_are_told_as_before(rows: Rows, write: Write, check: Check, tmp_path: Path, known: float) -> None:
    found = check(write(tmp_path / "own.root", with_markers(rows, times=known, factor=1e9)))
    assert not marked(found)
    assert others(found) & {"DAT-02", "DAT-10"} == {"DAT-10"}
    assert "--scale relative_time=1e-09 " in found.next


def test_equal_values_that_no_sensor_delivers_are_one_line(
    rows: Rows, write: Write, check: Check, tmp_path: Path
) -> None:
    rows["relative_time"][3, 200:212] = 12.0
    found = check(write(tmp_path / "own.root", rows))
    (told,) = [item for item in found.findings if item.code == "DAT-02"]
    places = [line for line in told.evidence if not line.startswith("xectool")]
    assert len(places) == 1
    assert places[0].endswith(": 12 (10 of the first 10 have this value)")


def test_what_no_command_mends_and_may_stay_leads_on(rows: Rows, write: Write, check: Check, tmp_path: Path) -> None:
    """The words themselves were the line to paste; then what explains them, which ended the way to a training."""
    rows["npho"][:, 5] = np.inf
    path = write(tmp_path / "own.root", rows)
    found = check(path)
    line, _, words = found.next.partition("   # ")
    assert shlex.split(line) == ["xectool", "check-data", str(path), "--deep", "--write-digest"]
    assert words == "as they are; what is told of them: xectool explain DAT-07"
