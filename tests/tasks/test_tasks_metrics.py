from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from xectool.config.load import config_from_dict
from xectool.config.tasks import HEADLINE_METRICS, TASK_NAMES, TASK_WIDTHS, TaskConfig
from xectool.data.batch import EventBatch
from xectool.models import build_model
from xectool.rootio.reader import EventFile
from xectool.runlog.conventional import conventional
from xectool.runlog.metrics import with_unit
from xectool.tasks import build_task
from xectool.tasks.balance import UncertaintyBalance
from xectool.tasks.regression import RegressionTask
from xectool.tasks.residuals import headline, residual_columns, task_metrics

MakeTask = Callable[..., RegressionTask]
MakeBatch = Callable[..., EventBatch]


def enabled(**values: object) -> TaskConfig:
    return TaskConfig(enabled=True, **values)  # type: ignore[arg-type]


def exact_outputs(task: RegressionTask, batch: EventBatch, error: float = 0.0) -> dict[str, torch.Tensor]:
    return {term: task.transforms[term].encode(batch.targets[term] + error) for term in task.terms}


def load_recipe(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fill_recipe", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_direction_metrics_agree_with_the_older_system(reference_dir: Path) -> None:
    stored = np.load(reference_dir / "units.npz")
    expected = json.loads(str(stored["met_json"]))
    found = task_metrics("angle", residual_columns("angle", stored["met_pred"], stored["met_true"]))
    # The skewness moves in the sixth digit because residuals are kept as float32.
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=3e-6)


def test_opening_angles_agree_with_the_older_system(reference_dir: Path) -> None:
    stored = np.load(reference_dir / "units.npz")
    columns = residual_columns("angle", stored["met_pred"], stored["met_true"])
    np.testing.assert_allclose(columns["opening"], stored["met_psi"], rtol=1e-5)


@pytest.fixture(scope="module")
def validation_pass(reference_dir: Path) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Our metrics of the older system's model on its own events, and what it reports for them."""
    values = {
        "kind": "regressor",
        "model": {"geometry": "compat", "encoder_dim": 64, "hidden_dim": 16, "outer_mode": "finegrid"},
        "tasks": {
            "angle": {"enabled": True},
            "energy": {"enabled": True, "loss_fn": "gaussian_nll", "loss_beta": 0.5},
            "timing": {"enabled": True, "loss_fn": "l1"},
            "uvwFI": {"enabled": True, "loss_fn": "mse", "weight": 0.1},
        },
    }
    cfg = config_from_dict(values, "test")
    model = build_model(cfg).eval()
    model.load_state_dict(load_recipe(reference_dir / "fill_recipe.py").fill_state_dict(model.state_dict()))
    task = build_task(cfg, model)
    accumulator = task.accumulator()
    branches = {"angle": "emiAng", "energy": "energyTruth", "timing": "timeTruth", "uvwFI": "uvwTruth"}
    with EventFile(reference_dir / "data" / "synth_tiny.root") as file:
        count = file.num_entries
        npho, time = (torch.from_numpy(file.read_column(name)) for name in ("npho", "relative_time"))
        truth = {t: torch.from_numpy(file.read_column(name).reshape(count, -1)) for t, name in branches.items()}
    for start in range(0, count, 16):
        part = slice(start, start + 16)
        identity = {name: np.arange(count)[part] for name in ("file_index", "entry", "run", "event")}
        targets = {name: value[part] for name, value in truth.items()}
        batch = EventBatch(npho[part], time[part], targets, torch.ones(len(npho[part])), **identity, epoch=0, step=0)
        with torch.no_grad():
            accumulator.update(model(batch.npho, batch.time), batch)
    reported = json.loads((reference_dir / "engine_metrics.json").read_text())
    return accumulator.compute(), reported["reg_val_stats"], reported["reg_val_metrics"]


def test_validation_statistics_agree_with_the_older_engine(
    validation_pass: tuple[dict[str, float], dict[str, float], dict[str, float]],
) -> None:
    found, statistics, _ = validation_pass
    assert {name: found[name] for name in statistics} == pytest.approx(statistics, rel=2e-4)


def test_validation_losses_agree_with_the_older_engine(
    validation_pass: tuple[dict[str, float], dict[str, float], dict[str, float]],
) -> None:
    found, _, losses = validation_pass
    losses = {f"val/{name}": losses[name] for name in ("smooth_l1", "l1", "mse", "cos", "cos_pos")}
    assert {name: found[name] for name in losses} == pytest.approx(losses, rel=2e-5)


def test_validation_objective_is_the_trained_one(make_task: MakeTask, make_batch: MakeBatch) -> None:
    settings = {
        "angle": enabled(loss_fn="cosine", weight=30.0),
        "energy": enabled(loss_fn="gaussian_nll", loss_beta=0.5, scale=0.01, shift=0.05),
    }
    for balance in (None, UncertaintyBalance(2)):
        task = make_task(balance, **settings)
        batch = make_batch({"angle": 90 + torch.randn(32, 2), "energy": 0.05 + 0.01 * torch.randn(32, 1)})
        batch.targets["energy"][5] = 1e10
        outputs = {"angle": 90 + torch.randn(32, 2), "energy": torch.randn(32, 2)}
        accumulator = task.accumulator()
        accumulator.update(outputs, batch)
        trained = float(task.loss(outputs, batch, task.counts(batch)).total.detach())
        assert accumulator.compute()["val/loss"] == pytest.approx(trained, rel=1e-12)


def test_phi_residuals_wrap() -> None:
    columns = residual_columns("angle", np.array([[90.0, 179.0]]), np.array([[90.0, -179.0]]))
    assert columns["residual"].tolist() == [[0.0, -2.0]]
    assert columns["opening"][0] == pytest.approx(2.0, rel=1e-6)


def test_unknown_truth_is_left_out_of_every_metric(make_task: MakeTask, make_batch: MakeBatch) -> None:
    task = make_task(energy=enabled(), uvwFI=enabled())
    batch = make_batch({"energy": torch.full((5, 1), 0.05), "uvwFI": torch.zeros(5, 3)})
    outputs = exact_outputs(task, batch, error=0.001)
    batch.targets["energy"][1] = 1e10
    batch.targets["uvwFI"][2, 0] = float("nan")
    accumulator = task.accumulator()
    accumulator.update(outputs, batch)
    found = accumulator.compute()
    assert found["energy_bias"] == pytest.approx(0.001, rel=1e-4)
    assert found["uvw_u_bias"] == pytest.approx(0.001, rel=1e-4)
    assert all(np.isfinite(value) for value in found.values())


def test_a_task_without_any_truth_has_no_metrics(make_task: MakeTask, make_batch: MakeBatch) -> None:
    task = make_task(energy=enabled(), timing=enabled())
    batch = make_batch({"energy": torch.full((3, 1), 0.05), "timing": torch.full((3, 1), 1e10)})
    accumulator = task.accumulator()
    accumulator.update({"energy": torch.ones(3, 1), "timing": torch.ones(3, 1)}, batch)
    found = accumulator.compute()
    assert "energy_bias" in found
    assert "timing_bias" not in found
    assert np.isfinite(found["val/loss"])


def test_a_task_whose_truth_the_file_lacks_has_no_metrics(make_task: MakeTask, make_batch: MakeBatch) -> None:
    task = make_task(energy=enabled(), uvwFI=enabled())
    accumulator = task.accumulator()
    batch = make_batch({"energy": torch.full((3, 1), 0.05)})
    accumulator.update({"energy": torch.ones(3, 1), "uvwFI": torch.ones(3, 3)}, batch)
    found = accumulator.compute()
    assert found["energy_bias"] == pytest.approx(0.95)
    assert "uvw_dist_68pct" not in found


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_prediction_that_is_not_finite_shows_in_the_metrics(
    make_task: MakeTask, make_batch: MakeBatch, bad: float
) -> None:
    task = make_task(energy=enabled(), timing=enabled())
    batch = make_batch({"energy": torch.full((9, 1), 0.05), "timing": torch.zeros(9, 1)})
    outputs = {"energy": torch.full((9, 1), 0.05), "timing": torch.zeros(9, 1)}
    outputs["energy"][4] = bad
    accumulator = task.accumulator()
    accumulator.update(outputs, batch)
    found = accumulator.compute()
    assert np.isnan(found["energy_res_68pct"])
    assert found["val/energy/nonfinite"] == 1.0
    assert found["timing_res_68pct"] == 0.0
    assert not np.isfinite(found["val/loss"])
    assert accumulator.worst(1)[0].event == 1004


def test_predicted_widths_are_calibrated_when_they_match_the_spread(make_task: MakeTask, make_batch: MakeBatch) -> None:
    generator = torch.Generator().manual_seed(3)
    task = make_task(energy=enabled(loss_fn="gaussian_nll", scale=0.01, shift=0.05))
    noise = 0.002 * torch.randn(20000, 1, generator=generator)
    batch = make_batch({"energy": 0.05 + noise})
    outputs = {"energy": torch.tensor([[0.0, 2 * np.log(0.2)]], dtype=torch.float32).repeat(20000, 1)}
    accumulator = task.accumulator()
    accumulator.update(outputs, batch)
    found = accumulator.compute()
    assert found["energy_pred_std_mean"] == pytest.approx(0.002, rel=1e-5)
    assert found["energy_calibration_ratio"] == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_every_task_has_its_headline_metric_at_zero_error(
    make_task: MakeTask, make_batch: MakeBatch, name: str
) -> None:
    generator = torch.Generator().manual_seed(1)
    task = make_task(**{name: enabled()})
    batch = make_batch({name: 1 + torch.rand(20, TASK_WIDTHS[name], generator=generator)})
    accumulator = task.accumulator()
    accumulator.update(exact_outputs(task, batch), batch)
    found = accumulator.compute()
    assert found[HEADLINE_METRICS[name]] == pytest.approx(0.0, abs=1e-6)
    truth = batch.targets[name].numpy()
    assert headline(name, truth, truth) == pytest.approx(0.0, abs=1e-6)


def test_worst_events_are_the_worst_whatever_the_order_of_batches(make_task: MakeTask, make_batch: MakeBatch) -> None:
    task = make_task(energy=enabled(loss_fn="l1"), timing=enabled(loss_fn="l1", weight=0.0))
    rng = np.random.default_rng(0)
    losses = torch.from_numpy(rng.permutation(200).astype(np.float32)).reshape(-1, 1)
    losses[7] = losses[11]
    batches = [
        (make_batch({"energy": torch.zeros(20, 1), "timing": torch.zeros(20, 1)}, first_entry=start), start)
        for start in range(0, 200, 20)
    ]
    orders = []
    for order in (batches, batches[::-1]):
        accumulator = task.accumulator()
        for batch, start in order:
            outputs = {"energy": losses[start : start + 20], "timing": 1e6 * torch.rand(20, 1)}
            accumulator.update(outputs, batch)
        orders.append(accumulator.worst(10))
    assert orders[0] == orders[1]
    expected = torch.sort(losses.flatten(), descending=True).values[:10]
    assert [event.loss for event in orders[0]] == expected.tolist()
    assert [int(losses[event.entry]) for event in orders[0]] == expected.tolist()


def test_two_ranks_give_the_metrics_of_one(make_task: MakeTask, make_batch: MakeBatch) -> None:
    task = make_task(angle=enabled(), energy=enabled(loss_fn="gaussian_nll"))
    generator = torch.Generator().manual_seed(5)
    alone, ranks = task.accumulator(), [task.accumulator(), task.accumulator(), task.accumulator()]
    for step in range(6):
        targets = {
            "angle": 90 + torch.randn(9, 2, generator=generator),
            "energy": torch.rand(9, 1, generator=generator),
        }
        outputs = {
            "angle": 90 + torch.randn(9, 2, generator=generator),
            "energy": torch.randn(9, 2, generator=generator),
        }
        batch = make_batch(targets, first_entry=9 * step)
        alone.update(outputs, batch)
        ranks[step % 2].update(outputs, batch)
    ranks[0].merge(ranks[1].state())
    ranks[0].merge(ranks[2].state())
    assert ranks[0].compute() == pytest.approx(alone.compute(), rel=1e-9)
    assert ranks[0].worst(5) == alone.worst(5)


def test_a_constant_residual_has_no_skewness() -> None:
    columns = residual_columns("angle", np.full((5, 2), 91.0), np.full((5, 2), 90.0))
    assert task_metrics("angle", columns)["theta_skew"] == 0.0


def test_every_figure_of_a_task_that_has_a_unit_shows_it() -> None:
    for task, width in TASK_WIDTHS.items():
        truth = np.linspace(1, 2, 6 * width).reshape(6, width)
        columns = residual_columns(task, truth + 0.1, truth, np.ones_like(truth))
        for name in (*task_metrics(task, columns), f"baseline_{task}"):
            plain = name.startswith(("val/", "n_gamma", "baseline_n_gamma")) or name.endswith(("skew", "ratio"))
            unitless = plain or name == "angleVec_pred_std_mean"  # of the components of a unit vector
            assert with_unit(name).endswith("]") != unitless, with_unit(name)
    assert with_unit("angleVec_resolution_68pct") == "angleVec_resolution_68pct [deg]"


def test_a_metric_finds_what_conventional_estimators_have_for_it() -> None:
    recorded = ["energy_res_68pct", "energy_bias", "baseline_energy", "mae_npho", "mae_us_npho"]
    recorded += [f"baseline_{name}_mae_{face}npho" for name in ("neighbour", "solid_angle") for face in ("", "us_")]
    assert conventional("energy_res_68pct", recorded) == {"conventional": "baseline_energy"}
    assert conventional("energy_bias", recorded) == {}
    for face in ("", "us_"):
        assert conventional(f"mae_{face}npho", recorded) == {
            name: f"baseline_{name}_mae_{face}npho" for name in ("neighbour", "solid_angle")
        }
