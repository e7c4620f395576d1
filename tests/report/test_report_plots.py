from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from xectool.errors import DataFileError
from xectool.report.pages import Comparison, panels, symbols
from xectool.report.panels import Quantity
from xectool.report.plots import _page, write_plots
from xectool.report.predictions import PredictionFile
from xectool.report.step_curves import StepCourse, draw_steps
from xectool.report.worst import SensorFiles
from xectool.rootio.writer import TreeWriter

Columns = dict[str, np.ndarray]
MakeFile = Callable[[Columns], Path]


def all_tasks(count: int) -> Columns:
    rng = np.random.default_rng(1)
    columns = {}
    for task, width, size in (("angle", 2, 80.0), ("energy", 1, 0.05), ("timing", 1, 3e-9), ("uvwFI", 3, 20.0)):
        truth = size * rng.uniform(0.5, 1.5, (count, width))
        columns[f"truth_{task}"] = truth
        columns[f"pred_{task}"] = truth * (1 + 0.02 * rng.standard_normal(truth.shape))
    return columns


def test_every_task_gets_a_page_as_pdf_and_png(predictions: MakeFile, tmp_path: Path) -> None:
    written = write_plots(predictions(all_tasks(120)), tmp_path / "plots")
    names = [path.name for path in written.files]
    expected = [f"resolution_{t}.{e}" for t in ("angle", "energy", "timing", "uvwFI") for e in ("pdf", "png")]
    assert names == expected
    assert all(path.stat().st_size > 5000 for path in written.files)
    assert written.notes == []


@pytest.mark.parametrize("count", [0, 1, 5, 12])
def test_few_events_are_drawn_without_complaint(predictions: MakeFile, tmp_path: Path, count: int) -> None:
    columns = {name: values for name, values in all_tasks(count).items() if name.endswith("energy")}
    written = write_plots(predictions(columns), tmp_path / "plots")
    assert len(written.files) == (2 if count else 0)
    assert bool(written.notes) == (count == 0)


def test_a_panel_of_too_few_events_has_its_axes_and_says_what_it_takes(predictions: MakeFile) -> None:
    """It said "8 events" and nothing else."""
    with PredictionFile(predictions(all_tasks(8))) as opened:
        events = opened.task("energy")
    assert events is not None
    known = Quantity(1e3 * events.truth[:, 0], "true $E$", "MeV")
    drawn = [Figure().add_subplot() for _ in panels(Comparison(events, (known,)))]
    for axes, panel in zip(drawn, panels(Comparison(events, (known,))), strict=True):
        panel(axes)
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in drawn)
    told = [axes.texts[0].get_text() for axes in drawn if axes.texts]
    assert told
    assert all(text.endswith(": drawn from 10 on") for text in told)
    assert "In the formula $E$ is in GeV" in symbols("energy"), "the axes are in MeV"


def test_constant_truth_and_prediction_are_drawn(predictions: MakeFile, tmp_path: Path) -> None:
    columns = {
        "truth_energy": np.full((60, 1), 0.0528),
        "pred_energy": np.full((60, 1), 0.05),
        "truth_uvwFI": np.zeros((60, 3)),
    }
    assert len(write_plots(predictions(columns), tmp_path / "plots").files) == 2


def test_tasks_without_a_page_of_their_own_are_drawn(predictions: MakeFile, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((50, 3))
    written = write_plots(predictions({"truth_angleVec": truth, "pred_angleVec": 0.9 * truth}), tmp_path / "plots")
    assert [path.name for path in written.files] == ["resolution_angleVec.pdf", "resolution_angleVec.png"]


def test_predictions_that_are_not_finite_are_counted_in_a_note(
    predictions: MakeFile, tmp_path: Path, energies: Columns
) -> None:
    energies["pred_energy"][3:5] = np.nan
    written = write_plots(predictions(energies), tmp_path / "plots")
    assert written.notes == ["energy: 2 of 400 predictions are not finite"]
    assert len(written.files) == 2


@pytest.mark.parametrize("truth", [0.0, -0.01])
def test_an_event_without_energy_is_drawn_without_complaint(
    predictions: MakeFile, tmp_path: Path, energies: Columns, truth: float
) -> None:
    energies["truth_energy"][7] = truth  # warnings are errors
    assert len(write_plots(predictions(energies), tmp_path / "plots").files) == 2


def test_missing_or_unknown_truth_is_a_note(predictions: MakeFile, tmp_path: Path) -> None:
    columns = {
        "pred_angle": np.zeros((20, 2)),
        "pred_energy": np.zeros((20, 1)),
        "truth_energy": np.full((20, 1), 1e10),
    }
    written = write_plots(predictions(columns), tmp_path / "plots")
    assert written.files == []
    assert written.notes == [
        "angle: no plots, the file has no truth_angle of the same width",
        "energy: no plots, no event has a known truth and a finite prediction",
    ]


def test_a_file_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"absent.root"):
        write_plots(tmp_path / "absent.root", tmp_path)


def test_drawing_leaves_matplotlib_as_it_was(
    predictions: MakeFile, tmp_path: Path, energies: Columns, caplog: pytest.LogCaptureFixture
) -> None:
    before = dict(mpl.rcParams)
    with caplog.at_level(logging.WARNING):
        write_plots(predictions(energies), tmp_path / "plots")
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == []
    assert caplog.records == []


def test_the_same_predictions_give_the_same_bytes(predictions: MakeFile, tmp_path: Path, energies: Columns) -> None:
    file = predictions(energies)
    first, second = write_plots(file, tmp_path / "a").files, write_plots(file, tmp_path / "b").files
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_phi_residuals_wrap(predictions: MakeFile) -> None:
    file = predictions({"truth_angle": np.array([[90.0, 179.5]]), "pred_angle": np.array([[90.0, -179.5]])})
    with PredictionFile(file) as opened:
        events = opened.task("angle")
    assert events is not None
    assert events.residual.tolist() == [[0.0, 1.0]]


def test_the_resolution_of_a_distance_is_its_68_percent_quantile(predictions: MakeFile) -> None:
    rng = np.random.default_rng(3)
    truth = rng.uniform(-5, 5, (400, 3))
    offset = np.array([10.0, 0.0, 0.0])  # all distances lie near 10 cm: how much they scatter says nothing
    file = predictions({"truth_uvwFI": truth, "pred_uvwFI": truth + offset + 0.1 * rng.standard_normal((400, 3))})
    with PredictionFile(file) as opened:
        events = opened.task("uvwFI")
    assert events is not None
    depth = Quantity(events.truth[:, 2], "true $w$", "cm")
    drawn = [Figure().add_subplot() for _ in panels(Comparison(events, (depth,)))]
    for axes, panel in zip(drawn, panels(Comparison(events, (depth,))), strict=True):
        panel(axes)
    (distance,) = (axes for axes in drawn if axes.get_ylabel().startswith("distance"))
    assert "p_{68}" in distance.get_ylabel()
    assert np.all(np.abs(np.asarray(distance.containers[0].lines[0].get_ydata()) - 10) < 0.3)


@pytest.mark.parametrize("task", ["angle", "energy", "timing", "uvwFI"])
def test_every_page_says_what_its_symbols_mean(task: str) -> None:
    legend = _page([lambda axes: None], task, symbols(task))._supxlabel  # type: ignore[attr-defined]
    for symbol in ("Delta", "sigma_\\mathrm{eff}", "p_{68}", *(["oplus", "chi^2"] if task == "energy" else [])):
        assert symbol in legend.get_text()


def test_worst_events_are_displayed_worst_first(predictions: MakeFile, tmp_path: Path, energies: Columns) -> None:
    energies["pred_energy"][321] = 9.0
    energies["pred_energy"][5] = 3.0
    rng = np.random.default_rng(0)
    rows = {"npho": rng.poisson(50, (400, 4760)).astype("f4"), "relative_time": np.zeros((400, 4760), "f4")}
    with TreeWriter(tmp_path / "events.root", dict.fromkeys(rows, ("f4", (4760,)))) as writer:
        writer.extend(rows)
    sources = SensorFiles([str(tmp_path / "events.root")])
    written = write_plots(predictions(energies), tmp_path / "plots", sources=sources, num_worst=2)
    names = [path.name for path in written.files if path.parent.name == "worst_events"]
    assert names == ["worst_01.pdf", "worst_01.png", "worst_02.pdf", "worst_02.png"]


def test_the_names_of_the_shares_of_time_stand_above_them() -> None:
    ones = np.ones(40)
    names = ("data wait", "transfer", "forward", "backward", "optimizer", "validation", "checkpoint", "other")
    figure = draw_steps(StepCourse(np.arange(40.0), ones, ones, ones, dict.fromkeys(names, ones)))
    shares = figure.axes[3]
    legend = shares.get_legend()
    assert legend is not None
    assert legend.get_window_extent().y0 >= shares.get_window_extent().y1
    assert legend.get_window_extent().x1 <= figure.bbox.x1
