"""The tables of metrics: the few that are read first, then the rest in order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xectool.engine.metric_tables import HEADLINES, headlines, named_rows, other_rows
from xectool.engine.prediction import PredictResult

FACES = ("inner", "us", "ds", "outer", "top", "bot")


def tables_of(metrics: dict[str, float]) -> dict[str, tuple[Sequence[str], list[list[object]]]]:
    result = PredictResult(1, 1.0, "p.root", metrics=metrics)
    return {title: (columns, [list(row) for row in rows]) for title, columns, rows in result.tables()}


def test_an_inpainter_is_told_by_its_headlines_first_and_the_faces_side_by_side() -> None:
    errors = {
        f"{who}{what}_{face}npho": 1.0
        for who in ("", "baseline_neighbour_", "baseline_solid_angle_")
        for what in ("rmse", "mae")
        for face in ("", *(f"{face}_" for face in FACES))
    }
    metrics = errors | {"masked_of_all": 0.1, "val/loss": 2.0, "baseline_neighbour_mae_npho": 0.5}
    tables = tables_of(metrics)
    assert next(iter(tables)) == ""
    assert tables[""][1] == [["val/loss", 2.0, ""], ["mae_npho", 1.0, 0.5], ["rmse_npho", 1.0, 1.0]]
    by_face = [title for title in tables if "by face" in title]
    assert [title.rpartition(" ")[2] for title in by_face] == ["network", "neighbour", "solid_angle"]
    columns, rows = tables[by_face[1]]
    assert columns == ("metric", "all", *FACES)
    assert [row[0] for row in rows] == ["rmse_npho", "mae_npho"]
    assert rows[1] == ["mae_npho", "0.5", *["1"] * 6]
    ((_, rest),) = (found for title, found in tables.items() if title.startswith("others"))
    assert rest == [["masked_of_all", 0.1]]


def test_a_masked_autoencoder_stands_beside_the_best_constant() -> None:
    """Nothing said whether one had learned."""
    metrics = {"val/loss": 1.0, "mae_npho": 0.2, "rmse_npho": 0.3, "baseline_constant_rmse_npho": 0.4}
    columns, rows = tables_of(metrics | {"baseline_constant_rmse_us_npho": 0.6})[""]
    assert columns == ("metric", "network", "constant")
    assert rows == [["val/loss", 1.0, ""], ["mae_npho", 0.2, ""], ["rmse_npho", 0.3, 0.4]]
    metrics |= {"rmse_time": 0.3, "baseline_constant_rmse_time": 0.35, "baseline_neighbour_rmse_npho": 0.1}
    columns, rows = tables_of(metrics)[""]
    assert columns[2] == "conventional"
    assert rows[2:] == [["rmse_npho", 0.3, 0.1], ["rmse_time", 0.3, "0.35 (constant)"]]


def test_what_is_known_of_all_sensors_alone_has_no_table_by_face() -> None:
    """A masked autoencoder had two tables of dashes."""
    metrics = {"val/loss": 1.0, "rmse_npho": 0.3, "baseline_constant_rmse_npho": 0.4, "rmse_photons": 2.0}
    tables = tables_of(metrics)
    assert [title for title in tables if "by face" in title] == []
    assert [rows for title, (_, rows) in tables.items() if title.startswith("others")] == [[["rmse_photons", 2.0]]]


def test_no_metric_is_left_out_nor_shown_twice() -> None:
    metrics = {"energy_bias": 1.0, "val/energy/loss": 2.0, "val/loss": 3.0, "energy_res_68pct": 4.0, "own": 5.0}
    tables = tables_of(metrics | {"baseline_energy": 6.0})
    shown = [row[0] for _, rows in tables.values() for row in rows]
    assert shown == ["val/loss", "energy_res_68pct [GeV]", "val/energy/loss", "energy_bias [GeV]", "own"]
    assert tables[""][1][1] == ["energy_res_68pct [GeV]", 4.0, 6.0]


def test_the_headlines_of_training_and_prediction_are_the_same() -> None:
    from xectool.config.tasks import HEADLINE_METRICS
    from xectool.engine.training_run.result import TrainResult

    metrics = dict.fromkeys(HEADLINES, 1.0)
    assert [list(row) for row in TrainResult("r", "finished", metrics=metrics).headlines()[1]] == tables_of(metrics)[
        ""
    ][1]
    assert set(HEADLINE_METRICS.values()) <= set(HEADLINES)


def test_a_mean_of_nothing_is_a_dash_in_every_table() -> None:
    """A masked autoencoder of four events hid no sensor of a small face: `val/loss_top nan`."""
    metrics = {"val/loss": 1.0, "val/loss_top": math.nan, "mae_npho": math.nan}
    assert [row[1] for row in other_rows(metrics)] == [None]
    assert [row[1] for row in headlines(metrics)[1]] == [1.0, None]


def test_all_metrics_are_named_with_their_units_in_their_order() -> None:
    """`watch` showed them without."""
    rows = named_rows({"val/loss": 0.5, "energy_bias": 0.002, "uvw_dist_68pct": float("nan")})
    assert rows == [["val/loss", 0.5], ["energy_bias [GeV]", 0.002], ["uvw_dist_68pct [cm]", None]]
