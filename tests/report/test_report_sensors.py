from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from xectool.detector import faces
from xectool.errors import DataFileError
from xectool.report.sensor_displays import MaskedEvent, masked_events, write_masked_event
from xectool.report.sensor_plots import number_log_axis, write_sensor_plots
from xectool.report.sensor_residuals import PULL, RELATIVE, ResidualAxis, bias, read_residuals, width
from xectool.report.style import PANEL_SIZE_IN, house_style, new_figure
from xectool.report.worst import SensorFiles
from xectool.rootio.writer import TreeWriter

NUM_EVENTS, PER_EVENT = 30, 300
TYPES = {
    "file_index": "i4", "entry": "i8", "run": "i8", "event": "i8", "sensor": "i2", "face": "i1", "mask_type": "i1",
    "truth_npho": "f4", "pred_npho": "f4", "truth_time": "f4", "pred_time": "f4",
}  # fmt: skip


def table(num_events: int = NUM_EVENTS) -> dict[str, np.ndarray]:
    """Predictions off by 0.2 of the root of the truth plus 0.1 of it; 10 dead sensors an event."""
    rng = np.random.default_rng(4)
    sensors = np.concatenate([np.sort(rng.choice(4760, PER_EVENT, replace=False)) for _ in range(num_events)])
    entry, count = np.repeat(np.arange(num_events), PER_EVENT), num_events * PER_EVENT
    truth = rng.exponential(500.0, count) + 1.0
    dead = np.tile(np.arange(PER_EVENT) < 10, num_events)
    rows = {
        "file_index": np.zeros(count), "entry": entry, "run": np.full(count, 7), "event": entry + 100,
        "sensor": sensors, "face": faces.face_ids()[sensors], "mask_type": dead,
        "truth_npho": np.where(dead, 1e10, truth),
        "pred_npho": truth * 1.1 + 0.2 * np.sqrt(truth) * rng.standard_normal(count),
        "truth_time": np.where(dead | (truth < 100), 1e10, 1e-8),
        "pred_time": 1e-8 + 1e-9 * rng.standard_normal(count),
    }  # fmt: skip
    return {name: values.astype(TYPES[name]) for name, values in rows.items()}


def written(path: Path, rows: dict[str, np.ndarray]) -> Path:
    with TreeWriter(path, {name: (kind, ()) for name, kind in TYPES.items()}) as writer:
        writer.extend(rows)
    return path


@pytest.fixture
def sources(tmp_path: Path) -> SensorFiles:
    npho = np.random.default_rng(1).exponential(100.0, (NUM_EVENTS, 4760)).astype(np.float32)
    npho[:, 3] = 1e10
    with TreeWriter(tmp_path / "data.root", {"npho": ("f4", (4760,)), "relative_time": ("f4", (4760,))}) as writer:
        writer.extend({"npho": npho, "relative_time": np.zeros_like(npho)})
    return SensorFiles([str(tmp_path / "data.root")])


def test_widths_and_biases_of_histograms_are_those_of_the_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xectool.report.sensor_residuals.PIECE_ROWS", 1000)
    rows = table()
    found = read_residuals(written(tmp_path / "p.root", rows))
    known = rows["mask_type"] == 0
    truth, predicted = (rows[name][known].astype(float) for name in ("truth_npho", "pred_npho"))
    for axis, residual in ((PULL, (predicted - truth) / np.sqrt(truth)), (RELATIVE, (predicted - truth) / truth)):
        counts = found.counts[axis.name].sum(axis=(0, 1))
        step = 2 * axis.limit / len(counts)
        assert width(counts, axis.limit) == pytest.approx(np.percentile(abs(residual), 68), abs=step)
        assert bias(counts, axis.limit) == pytest.approx(np.median(residual), abs=step)
    assert found.num_rows == known.sum()
    assert found.num_dead == 10 * NUM_EVENTS
    assert found.counts["time"].sum() == (rows["truth_time"] < 1).sum()


@pytest.mark.parametrize("axis", [PULL, RELATIVE])
def test_a_width_or_median_beyond_the_axis_is_not_known_instead_of_its_end(axis: ResidualAxis) -> None:
    counts = np.zeros(1200, np.int64)
    counts[[0, 600, -1]] = (10, 45, 46)
    assert np.isnan(width(counts, axis.limit))
    assert bias(counts, axis.limit) == pytest.approx(axis.limit / 600, rel=1.0)
    counts[-1] = 51 + 60
    assert np.isnan(bias(counts, axis.limit))


def test_an_event_without_a_known_hidden_sensor_is_displayed(tmp_path: Path) -> None:
    nothing = np.zeros(4760, dtype=bool)
    event = MaskedEvent(np.full(4760, 100.0), np.full(4760, np.nan), nothing, "nothing hidden")
    assert len(write_masked_event(event, tmp_path, "event")) == 2


def test_plots_of_both_channels_and_displays_are_written(tmp_path: Path, sources: SensorFiles) -> None:
    path = written(tmp_path / "p.root", table())
    found = write_sensor_plots(path, tmp_path / "plots", sources=sources, num_displays=1)
    names = sorted(str(file.relative_to(tmp_path / "plots")) for file in found.files)
    stems = ("masked_events/event_01", "masked_events/event_01_time", "sensors_npho", "sensors_time")
    assert names == [f"{stem}.{kind}" for stem in stems for kind in ("pdf", "png")]
    assert all(file.stat().st_size > 10_000 for file in found.files)
    assert not found.notes


@pytest.mark.parametrize("decades", [0.05, 0.3, 0.69, 0.9, 1.6, 2.4, 3.5, 5.5])
@pytest.mark.parametrize("low", [0.0213, 0.9, 37.0])
def test_numbers_along_a_logarithmic_axis_are_there_and_do_not_overlap(decades: float, low: float) -> None:
    with house_style():
        figure = new_figure(2 * PANEL_SIZE_IN[0] + 1.0, 2 * PANEL_SIZE_IN[1] + 0.8)
        axes = figure.subplots(2, 2)[0][0]
        axes.plot([low, low * 10**decades], [low, low * 10**decades])
        axes.set(xscale="log", yscale="log")
        number_log_axis(axes.xaxis)
        number_log_axis(axes.yaxis)
        figure.canvas.draw()
        for axis, side in ((axes.xaxis, "x"), (axes.yaxis, "y")):
            first, last = sorted(axis.get_view_interval())
            labels = [
                label
                for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
                if first <= tick.get_loc() <= last and (label := tick.label1).get_text()
            ]
            boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: getattr(box, f"{side}0"))
            assert len(boxes) >= 2, (decades, low, side)
            assert all(
                getattr(one, f"{side}1") <= getattr(two, f"{side}0") for one, two in itertools.pairwise(boxes)
            ), [label.get_text() for label in labels]


def test_an_event_of_which_only_times_were_predicted_shows_times(tmp_path: Path, sources: SensorFiles) -> None:
    rows = table(1)
    rows["pred_npho"][:] = 1e10
    path = written(tmp_path / "p.root", rows)
    (event,) = masked_events(path, sources, 1)
    hidden = rows["mask_type"] == 0
    known = hidden & (rows["truth_time"] < 1)
    truth = event.time_s[rows["sensor"]]
    np.testing.assert_allclose(truth[known], rows["truth_time"][known])
    assert np.isnan(truth[hidden & ~known]).all()
    np.testing.assert_allclose(event.predicted_s[rows["sensor"]], rows["pred_time"])
    names = [file.name for file in write_masked_event(event, tmp_path, "event")]
    assert names == ["event_time.pdf", "event_time.png"]


def test_an_event_is_put_together_from_its_rows(tmp_path: Path, sources: SensorFiles) -> None:
    rows = table()
    first, second = masked_events(written(tmp_path / "p.root", rows), sources, 2)
    assert first.title == "run 7 event 100: 290 hidden, 10 dead sensors filled"
    assert first.hidden.sum() == PER_EVENT - 10
    inside = rows["entry"] == 1
    np.testing.assert_allclose(second.predicted[rows["sensor"][inside]], rows["pred_npho"][inside])
    assert np.isfinite(first.predicted).sum() == PER_EVENT
    assert first.dead[3]


def test_a_channel_that_is_not_predicted_and_broken_predictions_are_noted(tmp_path: Path) -> None:
    rows = table(1)
    rows["pred_time"][:] = 1e10
    rows["pred_npho"][20] = np.nan
    found = write_sensor_plots(written(tmp_path / "p.root", rows), tmp_path / "plots")
    assert [file.name for file in found.files] == ["sensors_npho.pdf", "sensors_npho.png"]
    assert found.notes == [
        "1 of 290 predictions are not finite",
        "time: no plots, no hidden sensor has both a prediction and a truth",
    ]


def test_an_empty_file_has_notes_instead_of_plots(tmp_path: Path) -> None:
    rows = {name: values[:0] for name, values in table(1).items()}
    found = write_sensor_plots(written(tmp_path / "p.root", rows), tmp_path / "plots")
    assert found.files == []
    assert len(found.notes) == 2


def test_a_prediction_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with TreeWriter(tmp_path / "p.root", {"pred_energy": ("f4", (1,))}) as writer:
        writer.extend({"pred_energy": np.zeros((3, 1), np.float32)})
    with pytest.raises(DataFileError, match="has no branch 'mask_type'"):
        write_sensor_plots(tmp_path / "p.root", tmp_path / "plots")
