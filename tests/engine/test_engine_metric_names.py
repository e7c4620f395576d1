"""Every metric that a training or a prediction prints or records is explained by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from xectool import engine
from xectool.errors import UsageError
from xectool.runlog.reader import RunReader

TASK = {"enabled": True, "scale": "auto", "shift": "auto"}
SIZES = {"encoder_dim": 32, "outer_fine_pool": [5, 3], "num_fusion_layers": 1}
KINDS: dict[str, dict[str, Any]] = {
    "regressor": {
        "loss_balance": "auto",
        "model": SIZES | {"hidden_dim": 8},
        "tasks": {name: dict(TASK) for name in ("angle", "timing", "uvwFI", "angleVec")}
        | {"energy": TASK | {"loss_fn": "gaussian_nll"}},
    },
    "mae": {
        "model": SIZES | {"decoder_dim": 8},
        "training": {"auto_channel_weight": True, "track_metrics": True, "track_mae_rmse": True},
    },
    "inpainter": {"model": SIZES | {"freeze_encoder": False, "predict_channels": ["npho", "time"]}},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write the configuration of a kind, on eight events."""
    directory = tmp_path_factory.mktemp("names")
    engine.simulate(str(directory / "events.root"), events=8, seed=1)

    def write(kind: str) -> Path:
        path = str(directory / "events.root")
        config = {
            **KINDS[kind],
            "kind": kind,
            "data": {"train_path": path, "val_path": path, "batch_size": 8, "allow_overlap": True},
            "checkpoint": {"save_dir": str(directory / "runs"), "save_artifacts": False},
            "mlflow": {"enabled": False, "run_name": kind},
        }
        config["training"] = {"epochs": 1, **KINDS[kind].get("training", {})}
        file = directory / f"{kind}.yaml"
        file.write_text(yaml.safe_dump(config))
        return file

    return write


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_metric_that_is_printed_or_recorded_is_explained(
    kind: str, written: Callable[[str], Path], tmp_path: Path
) -> None:
    config = written(kind)
    trained = engine.train(config)
    events = str(config.parent / "events.root")
    predicted = engine.predict(str(trained.checkpoint_best), [events], output=tmp_path / "p.root")
    (epoch,) = RunReader(Path(trained.run_dir)).epochs()
    names = {*epoch.metrics, *trained.metrics, *predicted.metrics, *(row[0] for row in trained.headlines()[1])}
    unexplained = []
    for name in (name.partition(" [")[0] for name in names):
        try:
            answer = engine.explain(name)
        except UsageError:
            unexplained.append(name)
            continue
        assert name == "lr" or answer.title.startswith(f"{name}: "), name
        assert name == "lr" or ("Unit: " in answer.text and "Better: " in answer.text), name
    assert unexplained == [], "describe them in xectool/runlog/metrics.py"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("uvw_dist_bias", ("Unit: cm", "Better: smaller")),
        ("cos_pos", ("val/cos_pos", "1 - cos")),
        ("val/energy/mse", ("Unit: GeV^2",)),
        ("energy_calibration_ratio", ("Better: nearer 1", "too sure")),
        ("baseline_solid_angle_bias_inner_photons", ("inner", "solid_angle", "Unit: photons")),
        ("n_gamma_accuracy", ("Better: larger",)),
    ],
)
def test_a_metric_tells_definition_unit_and_direction(name: str, parts: tuple[str, ...]) -> None:
    answer = engine.explain(name)
    assert [part for part in parts if part not in f"{answer.title}\n{answer.text}"] == []


def test_a_misspelt_metric_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="xectool explain energy_res_68pct"):
        engine.explain("energy_res_68")
