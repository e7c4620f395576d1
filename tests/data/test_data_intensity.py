from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from xectool.config.data import DataConfig
from xectool.config.training import IntensityReweightingConfig
from xectool.data.intensity import IntensityReweighter, light_sum
from xectool.data.source import open_source
from xectool.errors import DataUnusable
from xectool.rootio.writer import TreeWriter

UNIFORM = IntensityReweightingConfig(enabled=True, nbins=5, target="uniform")
SQRT = IntensityReweightingConfig(enabled=True, nbins=5, target="sqrt")


@pytest.fixture(scope="module")
def sums() -> np.ndarray:
    return np.random.default_rng(3).exponential(2e4, 20_000)


def _bin_totals(fitted: IntensityReweighter, sums: np.ndarray) -> np.ndarray:
    place = np.clip(np.searchsorted(fitted.edges, sums, side="right") - 1, 0, len(fitted.bin_weights) - 1)
    return np.bincount(place, weights=fitted.bin_weights[place])


def test_uniform_flattens_the_light_sum(sums: np.ndarray) -> None:
    fitted = IntensityReweighter.from_sums(sums, UNIFORM)
    np.testing.assert_allclose(_bin_totals(fitted, sums), len(sums) / 5)
    assert fitted.bin_weights.max() > 2 * fitted.bin_weights.min(), "bins of equal population would weigh all the same"


def test_sqrt_leaves_a_falling_share(sums: np.ndarray) -> None:
    fitted = IntensityReweighter.from_sums(sums, SQRT)
    totals = _bin_totals(fitted, sums)
    centre = 0.5 * (fitted.edges[1:] + fitted.edges[:-1])
    np.testing.assert_allclose(totals * np.sqrt(centre), totals[0] * np.sqrt(centre[0]))


@pytest.mark.parametrize("config", [UNIFORM, SQRT])
def test_the_mean_weight_is_one(sums: np.ndarray, config: IntensityReweightingConfig) -> None:
    fitted = IntensityReweighter.from_sums(sums, config)
    assert _bin_totals(fitted, sums).sum() == pytest.approx(len(sums))


def test_a_single_bright_event_gets_no_enormous_weight(sums: np.ndarray) -> None:
    fitted = IntensityReweighter.from_sums(np.append(sums, 1e9), UNIFORM)
    assert fitted.bin_weights.max() <= 20 * 1.01


def test_equal_light_everywhere_weighs_one() -> None:
    fitted = IntensityReweighter.from_sums(np.full(10, 5.0), UNIFORM)
    assert fitted.bin_weights.tolist() == [1.0]


def test_dead_missing_and_negative_readings_count_nothing() -> None:
    npho = np.array([[10.0, 1e10, np.nan, np.inf, -np.inf, -3.0, 5.0]], np.float32)
    assert light_sum(npho).tolist() == [15.0]


def test_fit_and_look_up_see_the_same_light_in_files_with_bad_readings(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    npho = rng.exponential(rng.uniform(1, 50, (300, 1)), (300, 4760)).astype(np.float32)
    npho[:, :40], npho[7, 100] = 1e10, np.nan
    with TreeWriter(tmp_path / "a.root", {"npho": ("f4", (4760,)), "relative_time": ("f4", (4760,))}) as writer:
        writer.extend({"npho": npho, "relative_time": np.zeros_like(npho)})
    source = open_source(DataConfig(train_path=str(tmp_path / "a.root")), "train", tasks=())
    fitted = IntensityReweighter.fit(source, UNIFORM)
    weights = fitted.weights_of(npho)
    assert weights.dtype == np.float32
    assert weights.mean() == pytest.approx(1.0, rel=1e-6)
    again = IntensityReweighter.from_arrays(fitted.to_arrays())
    assert np.array_equal(again.weights_of(npho), weights)


def test_events_without_light_are_refused(tmp_path: Path) -> None:
    npho = np.full((3, 4760), 1e10, np.float32)
    with TreeWriter(tmp_path / "a.root", {"npho": ("f4", (4760,)), "relative_time": ("f4", (4760,))}) as writer:
        writer.extend({"npho": npho, "relative_time": npho})
    source = open_source(DataConfig(train_path=str(tmp_path / "a.root")), "train", tasks=())
    with pytest.raises(DataUnusable, match=r"intensity_reweighting\.enabled=false"):
        IntensityReweighter.fit(source, UNIFORM)
