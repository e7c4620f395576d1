"""A dry run sees what would stop the training at its first batch, and a failure before it is not gone on from."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.ranking import diagnose
from xectool.engine.training_run import first_look
from xectool.errors import DataUnusable
from xectool.findings import Finding
from xectool.rootio.writer import TreeWriter

Config = Callable[..., Path]


@pytest.fixture
def in_ns(tiny_data: Path, tmp_path: Path) -> Callable[[str], str]:
    """Return a function that writes a file of the tiny data with its times in ns, and returns its path."""

    def write(name: str) -> str:
        with uproot.open(tiny_data / name) as file:
            columns = dict(file["tree"].arrays(library="np"))
        times = columns["relative_time"]
        columns["relative_time"] = np.where(np.abs(times) < 9e9, 1e9 * times, times).astype("f4")
        with TreeWriter(tmp_path / name, {key: (v.dtype.str[1:], v.shape[1:]) for key, v in columns.items()}) as writer:
            writer.extend(columns)
        return str(tmp_path / name)

    return write


def dry(config: Path, *overrides: str) -> list[tuple[str, Finding]]:
    """Return severity and finding of what a dry run says of the scale of the inputs."""
    result = engine.train(config, overrides=overrides, dry_run=True)
    return [(item.severity.value, item) for item in result.findings if item.code == "XT-INPUT-SCALE"]


def test_a_dry_run_says_what_stops_the_first_batch(tiny_config: Config, in_ns: Callable[[str], str]) -> None:
    """Times in ns passed, and the training stopped before its first step."""
    config = tiny_config(data={"train_path": in_ns("train_000.root")})
    ((severity, found),) = dry(config, "normalization.npho_scale=900.0")
    with pytest.raises(DataUnusable) as caught:
        engine.train(config, run_name="run")
    assert severity == "error"
    assert found.code == caught.value.code
    for said in (found.problem, caught.value.problem):
        assert said.startswith("the time of the first batch is out of scale: its mean in network units is ")
    line, _, remark = found.fix.partition("   # ")
    assert remark.endswith("--set guards.on_input_scale=warn")
    words = shlex.split(line)
    assert words[:2] == ["xectool", "check-data"]
    assert words[3:] == ["--config", str(config), "--set", "normalization.npho_scale=900.0"]
    (unit,) = (item for item in engine.check_data(words[2]).findings if item.code == "DAT-10")
    assert unit.problem.endswith("they look like another unit than seconds: ns")


def test_a_dry_run_names_a_file_that_is_out_of_scale_beside_others(
    tiny_config: Config, tiny_data: Path, in_ns: Callable[[str], str]
) -> None:
    mixed = [str(tiny_data / "train_000.root"), in_ns("train_001.root")]
    ((severity, found),) = dry(tiny_config(data={"train_path": mixed}))
    assert (severity, found.where) == ("warning", f"{mixed[1]}:tree branch relative_time")
    ((severity, found),) = dry(tiny_config(data={"val_path": in_ns("val.root")}))
    assert (severity, "validation file" in found.problem) == ("warning", True)


@pytest.mark.parametrize("guards", [{"on_input_scale": "warn"}, {"disable": ["G01"]}])
def test_a_dry_run_stops_nothing_that_the_training_does_not(
    tiny_config: Config, in_ns: Callable[[str], str], guards: dict[str, object]
) -> None:
    config = tiny_config(data={"train_path": in_ns("train_000.root")}, guards=guards)
    assert [severity for severity, _ in dry(config)] == ["warning"] * ("disable" not in guards)


def test_a_dry_run_of_sound_files_says_nothing(tiny_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    look = first_look.opinion_of
    monkeypatch.setattr(first_look, "opinion_of", lambda *args: looked.append(1) or look(*args))  # type: ignore[func-returns-value]
    assert (dry(tiny_config()), len(looked)) == ([], 4)  # the first batch, two files of training, one of validation


def test_a_run_that_took_no_step_is_not_gone_on_with(tiny_config: Config, in_ns: Callable[[str], str]) -> None:
    config = tiny_config(data={"train_path": in_ns("train_000.root")})
    with pytest.raises(DataUnusable) as caught:
        engine.train(config, run_name="run")
    place = Path(caught.value.fix.split()[-1])
    (cause,) = diagnose(gather(place)).causes
    assert cause.code == "XT-INPUT-SCALE"
    assert any(line.startswith("also: the run ended with an error") for line in cause.evidence)
    assert "--resume" not in " ".join((*cause.evidence, cause.fix))


def test_a_marker_of_no_reading_among_the_readings_is_named(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    """A spread out of bounds was all that was said of -999."""
    with uproot.open(tiny_data / "train_000.root") as file:
        columns = dict(file["tree"].arrays(library="np"))
    columns["relative_time"][:, ::2] = -999.0
    path = tmp_path / "marked.root"
    with TreeWriter(path, {key: (v.dtype.str[1:], v.shape[1:]) for key, v in columns.items()}) as writer:
        writer.extend(columns)
    ((severity, found),) = dry(tiny_config(data={"train_path": str(path)}))
    assert severity == "error"
    assert "; -999 looks like your marker of 'no reading' (in " in found.problem
