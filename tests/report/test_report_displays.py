from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import cKDTree
from xectool.detector import constants, faces, geometry
from xectool.report.curves import draw_learning_curves, plot_learning_curves
from xectool.report.displays import Display, draw, write_display
from xectool.report.unrolled import OUTLINE_CM, polygons


def area(shape: np.ndarray) -> float:
    x, y = shape.T
    return float(abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


def test_every_sensor_has_one_outline_inside_the_picture() -> None:
    shapes = polygons()
    assert len(shapes) == constants.NUM_SENSORS
    assert min(area(shape) for shape in shapes) > 1.0
    points = np.concatenate(shapes)
    left, right, bottom, top = OUTLINE_CM
    assert (points.min(axis=0) > (left, bottom)).all()
    assert (points.max(axis=0) < (right, top)).all()


def test_no_two_sensors_lie_on_top_of_each_other() -> None:
    centres = np.array([shape.mean(axis=0) for shape in polygons()])
    distance, _ = cKDTree(centres).query(centres, k=2)
    assert distance[:, 1].min() > 1.49


def test_neighbours_in_the_detector_are_neighbours_in_the_picture() -> None:
    centres = np.array([shape.mean(axis=0) for shape in polygons()])
    ids = faces.index_map("inner")
    z = geometry.cylindrical()[2]
    assert (np.diff(centres[ids[0], 0]) < 0).all()
    assert centres[ids[0, 0], 1] > centres[ids[-1, 0], 1]
    us, ds = faces.index_map("us").ravel(), faces.index_map("ds").ravel()
    assert z[us].max() < 0
    assert centres[us, 0].min() > centres[ids.ravel(), 0].max() > centres[ds, 0].max()
    assert centres[faces.index_map("top"), 1].min() > centres[ids.ravel(), 1].max()


@pytest.mark.parametrize("fill", [0.0, 1e10, np.nan, -2.0, 5e4])
def test_any_values_can_be_displayed(tmp_path: Path, fill: float) -> None:
    display = Display(
        np.full(4760, fill), np.full(4760, fill), "run 1 event 2", ("energy: true 52.8",), {"true": (1.0, 2.0)}
    )
    written = write_display(display, tmp_path, "event")
    assert [path.name for path in written] == ["event.pdf", "event.png"]


def test_title_is_shown() -> None:
    assert draw(Display(np.ones(4760), np.zeros(4760), "run 3 event 4")).get_suptitle() == "run 3 event 4"


def test_learning_curves_draw_what_was_recorded(tmp_path: Path) -> None:
    nan = float("nan")
    epochs = [
        {
            "epoch": 1,
            "metrics": {"train/loss": 1.0, "val/loss": nan, "energy_res_68pct": 0.004, "baseline_energy": 0.003},
        },
        {"epoch": 2, "train/loss": 1e-3, "val/loss": 2.0, "energy_res_68pct": 0.002, "lr": 1e-3},
    ]
    written = plot_learning_curves(epochs, tmp_path / "plots")
    assert [path.name for path in written.files] == ["learning_curves.pdf", "learning_curves.png"]


def test_parts_of_a_loss_are_drawn_with_training_and_validation() -> None:
    parts = (
        "loss",
        "loss_npho",
        "loss_time",
        *(f"loss_{face}" for face in ("inner", "us", "ds", "outer", "top", "bot")),
    )
    metrics = {f"{step}/{part}": 1.0 for step in ("train", "val") for part in parts}
    figure = draw_learning_curves([{"epoch": 1, "metrics": metrics}])
    assert figure is not None
    drawn = {panel.get_ylabel(): len(panel.lines) for panel in figure.axes}
    assert drawn == {"objective": 2, "photon loss": 2, "time loss": 2, "loss by face (dashed: training)": 12}


@pytest.mark.parametrize("epochs", [[], [{"epoch": 1}], [{"epoch": 1, "train/loss": float("nan")}]])
def test_no_recorded_metric_is_a_note(tmp_path: Path, epochs: list[dict[str, float]]) -> None:
    written = plot_learning_curves(epochs, tmp_path)
    assert written.files == []
    assert written.notes == ["no learning curves: they have a point a finished epoch, and no epoch is finished"]
