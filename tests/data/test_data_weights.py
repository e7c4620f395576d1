"""Weights flatten the distribution of the selected events, as the older system's do."""

from __future__ import annotations

import numpy as np
import pytest
from xectool.config.data import DataConfig
from xectool.config.reweighting import ReweightingConfig
from xectool.data.source import open_source
from xectool.data.weights import BinnedWeights, SampleReweighter
from xectool.errors import ConfigError


def test_weights_agree_with_the_older_system(reference_dir):
    tasks = ("angle", "energy", "timing", "uvwFI")
    source = open_source(DataConfig(train_path=str(reference_dir / "data" / "synth_train.root")), "train", tasks)
    config = ReweightingConfig.model_validate(
        {
            "angle": {"enabled": True, "nbins_2d": [8, 6]},
            "energy": {"enabled": True, "nbins": 10},
            "timing": {"enabled": True, "nbins": 10},
            "uvwFI": {"enabled": True, "nbins_2d": [4, 4]},
        }
    )
    fitted = SampleReweighter.fit(source, config)
    with np.load(reference_dir / "units.npz") as units:
        np.testing.assert_allclose(fitted.tasks["angle"].weights, units["rw_angle_w"], rtol=1e-6)
        np.testing.assert_allclose(fitted.tasks["energy"].weights, units["rw_energy_w"], rtol=1e-6)
        np.testing.assert_allclose(fitted.tasks["energy"].edges[0], units["rw_energy_e"], rtol=1e-6)
        np.testing.assert_allclose(fitted.tasks["uvwFI"].weights, units["rw_uvw_w"], rtol=1e-6)
        weights = fitted.weights({task: source.truth(0, task)[:64] for task in tasks})
        np.testing.assert_allclose(weights, units["rw_w"], rtol=1e-5)
    assert sorted(p.name for p in (reference_dir / "data").glob("*cache*")) == []


def test_weighted_events_fill_all_filled_bins_equally():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(5000, 1))
    binned = BinnedWeights.fit(truth, [12])
    totals, _ = np.histogram(truth[:, 0], bins=binned.edges[0], weights=binned.look_up(truth))
    filled = totals > 0
    np.testing.assert_allclose(totals[filled], len(truth) / filled.sum(), rtol=1e-9)
    assert binned.look_up(truth).sum() == pytest.approx(len(truth))


def test_unknown_truth_neither_shapes_the_bins_nor_gets_a_weight(dataset):
    source = open_source(dataset.config(), "train", ("energy",))
    config = ReweightingConfig.model_validate({"energy": {"enabled": True, "nbins": 5}})
    fitted = SampleReweighter.fit(source, config)
    truth = np.array([[1e10], [np.nan], [0.03]], np.float32)
    weights = fitted.weights({"energy": truth})
    assert weights[:2].tolist() == [1.0, 1.0]
    assert fitted.tasks["energy"].edges[0][-1] < 0.07


def test_the_fit_sees_only_events_inside_the_fiducial_volume(dataset):
    fiducial = {"enabled": True, "u_max": 10.0}
    source = open_source(dataset.config(fiducial=fiducial), "train", ("uvwFI",))
    config = ReweightingConfig.model_validate({"uvwFI": {"enabled": True, "nbins_2d": [3, 3]}})
    edges = SampleReweighter.fit(source, config).tasks["uvwFI"].edges[0]
    assert -10 <= edges[0] < edges[-1] <= 10


def test_weights_survive_as_plain_arrays(dataset):
    source = open_source(dataset.config(), "train", ("angle", "energy"))
    config = ReweightingConfig.model_validate({"angle": {"enabled": True}, "energy": {"enabled": True}})
    fitted = SampleReweighter.fit(source, config)
    again = SampleReweighter.from_arrays(fitted.to_arrays())
    targets = {task: source.truth(2, task) for task in ("angle", "energy")}
    np.testing.assert_array_equal(again.weights(targets), fitted.weights(targets))


def test_weighing_by_a_task_that_is_not_trained_names_both_keys(dataset):
    source = open_source(dataset.config(), "train", ("energy",))
    config = ReweightingConfig.model_validate({"angle": {"enabled": True}})
    with pytest.raises(ConfigError, match=r"tasks\.angle\.enabled=true   # or --set reweighting\.angle\.enabled=false"):
        SampleReweighter.fit(source, config)
