"""What a rebuilt network says of its checkpoint: geometry, outputs, the rates a resume will take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.config.load import config_from_dict
from xectool.errors import CheckpointError
from xectool.models import build_model
from xectool.models import fingerprint as fingerprint_of
from xectool.models.fingerprint import difference, fixed_events, outputs_of
from xectool.training.saving.resume import require_resumable


@pytest.fixture(scope="module")
def whole(families: dict[str, Path]) -> Checkpoint:
    return store.load(families["regressor"])


def with_meta(checkpoint: Checkpoint, **meta: Any) -> Checkpoint:
    return replace(checkpoint, meta=checkpoint.meta | meta)


def fingerprint(checkpoint: Checkpoint) -> dict[str, list[float]]:
    network = build_model(config_from_dict(checkpoint.config, "test"))
    network.load_state_dict(checkpoint.model)
    return outputs_of(network)


def found_in(checkpoint: Checkpoint, folder: Path) -> engine.CheckpointInspected:
    store.save(folder / "a.pt", checkpoint)
    return engine.inspect_ckpt(folder / "a.pt")


def test_outputs_that_are_not_reproduced_are_an_error_and_others_are_not(whole: Checkpoint, tmp_path: Path) -> None:
    """Pooling, sentinels and constants of the normalisation fit any weights, and change what they mean."""
    stored = fingerprint(whole)
    assert found_in(with_meta(whole, fingerprint=stored), tmp_path).findings == ()
    config = whole.config | {"normalization": whole.config["normalization"] | {"sentinel_time": -2.0}}
    found = found_in(with_meta(whole, fingerprint=stored, config=config), tmp_path)
    assert [item.code for item in found.findings] == ["K18"]
    assert "other numbers than when it was saved: output" in found.findings[0].problem
    assert found.is_bad
    # Without the stored outputs nobody can tell.
    assert found_in(with_meta(whole, config=config), tmp_path).findings == ()


@pytest.mark.parametrize("kind", ["mae", "inpainter"])
def test_a_sentinel_that_moves_outputs_little_is_found_and_rounding_is_not(
    kind: str, families: dict[str, Path], tmp_path: Path
) -> None:
    """Both moved by less than 1e-3, which was taken for rounding; float64 tells that rounding is 1e-5."""
    whole = store.load(families[kind])
    stored = fingerprint(whole)
    config = whole.config | {"normalization": whole.config["normalization"] | {"sentinel_time": -2.0}}
    found = found_in(with_meta(whole, fingerprint=stored, config=config), tmp_path)
    assert "K18" in [item.code for item in found.findings]
    near = {name: [value + 5e-5 for value in values] for name, values in stored.items()}
    assert found_in(with_meta(whole, fingerprint=near), tmp_path).findings == ()


@pytest.mark.parametrize(("rounding", "moved_by"), [(2e-4, 3.0), (2e-4, 6.0), (1e-7, 3e3), (2e-2, 6.0), (0.1, 3.0)])
def test_of_a_network_that_rounds_much_four_times_as_much_is_accepted(
    rounding: float, moved_by: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outputs(network: torch.nn.Linear) -> dict[str, list[float]]:
        return {"a": [1.0 + rounding * (network.weight.dtype == torch.float32)]}

    monkeypatch.setattr(fingerprint_of, "outputs_of", outputs)
    network = torch.nn.Linear(1, 1)
    found = fingerprint_of.moved(network, {"a": [1.0 + rounding + moved_by * rounding]})
    assert bool(found) is (moved_by > 4 or rounding * moved_by > 0.1)
    assert network.weight.dtype == torch.float32


def test_index_tables_of_another_geometry_are_an_error(whole: Checkpoint, tmp_path: Path) -> None:
    name = next(name for name, value in whole.model.items() if name.endswith("hex_edge_index"))
    tables = {**whole.model, name: whole.model[name].roll(1)}
    found = found_in(replace(whole, model=tables, ema={**whole.ema, name: tables[name]}), tmp_path)
    assert [(item.code, item.where) for item in found.findings] == [("K16", name)]


def test_hashes_tell_another_normalisation_and_geometry(whole: Checkpoint, tmp_path: Path) -> None:
    first = found_in(whole, tmp_path).lineage
    config = whole.config | {"normalization": whole.config["normalization"] | {"sentinel_time": -2.0}}
    second = found_in(with_meta(whole, config=config), tmp_path).lineage
    assert first["normalization_sha256"] != second["normalization_sha256"]
    assert first["geometry_sha256"] == second["geometry_sha256"]


def test_rates_of_a_resume_are_those_the_run_will_take(whole: Checkpoint, tmp_path: Path) -> None:
    schedule = {
        "start_step": 0, "scale": 0.5, "steps_per_epoch": 10,
        "plateau_best": 1.0, "plateau_num_bad": 0, "plateau_reductions": 0,
    }  # fmt: skip
    training = whole.config["training"] | {"lr": 1e-3, "lr_scheduler": "none", "epochs": 4, "warmup_epochs": 0}
    going = with_meta(whole, schedule=schedule, config=whole.config | {"training": training})
    store.save(tmp_path / "a.pt", going)
    assert engine.inspect_ckpt(tmp_path / "a.pt").lineage["learning_rates"] == {
        "next step": 5e-4, "epoch 3": 5e-4, "epoch 4": 5e-4
    }  # fmt: skip
    config = tmp_path / "c.yaml"
    config.write_text(
        "kind: regressor\ndata: {train_path: a.root, val_path: b.root}\ntasks: {energy: {enabled: true}}\n"
    )
    rates = engine.inspect_ckpt(
        tmp_path / "a.pt",
        config=config,
        overrides=["training.lr=1e-2", "training.lr_scheduler=none", "training.epochs=3"],
    ).lineage["learning_rates"]
    assert rates["epoch 3"] == 5e-3
    assert "epoch 4" not in rates


@pytest.mark.parametrize(("scale", "severity"), [(65536.0, None), (0.25, "warning"), (float("nan"), "error")])
def test_a_gradient_scale_that_cannot_be_is_found(
    whole: Checkpoint, scale: float, severity: str | None, tmp_path: Path
) -> None:
    found = found_in(replace(whole, training={**whole.training, "scaler": {"scale": scale}}), tmp_path).findings
    assert [(item.code, item.severity.value) for item in found] == ([("K12", severity)] if severity else [])


@pytest.mark.parametrize("kind", ["mae", "inpainter"])
def test_a_fingerprint_leaves_the_network_and_the_random_numbers_as_they_were(
    kind: str, families: dict[str, Path]
) -> None:
    network = build_model(config_from_dict(store.load(families[kind]).config, "test")).train()
    state, before = torch.get_rng_state(), {name: value.clone() for name, value in network.state_dict().items()}
    first, second = outputs_of(network), outputs_of(network)
    assert first == second
    assert 0 < len(first["sensors"]) <= 256
    assert network.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_difference_is_named_and_rounding_is_none() -> None:
    assert difference({"a": [1.0, 2000.0]}, {"a": [1.00005, 2000.1]}) == ""
    assert difference({"a": [1.0]}, {"a": [1.0005]}, {"a": 6e-4}) == ""
    assert difference({"a": [1.0]}, {"a": [1.0005]}, {"a": 4e-4}) == "output a[0] is 1.0005 instead of 1.0"
    assert difference({"a": [1.0]}, {"a": [1.01]}) == "output a[0] is 1.01 instead of 1.0"
    assert "nan" in difference({"a": [1.0]}, {"a": [float("nan")]})
    assert "0 numbers instead of 1" in difference({"a": [1.0]}, {})
    assert all(bool(value.isfinite().all()) for value in fixed_events()[:2])


SCHEDULE = {"start_step": 0, "scale": 1.0, "steps_per_epoch": 12}
PLACE = {"epoch": 3, "batch": 6}  # the 30th step


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"start_step": 777}, "the schedule begins at step 777, and the run stands at step 30 of it"),
        ({"start_step": -4}, "begins at step -4"),
        ({"steps_per_epoch": 0}, "epochs of 0 steps"),
        ({"scale": float("nan")}, "the factor of all rates is nan"),
        ({"scale": 0.0}, "the factor of all rates is 0.0"),
        ({}, ""),
        ({"start_step": 30, "scale": 0.3}, ""),  # begun anew just there, after a rewind
        ({"start_step": 31}, ""),  # rounded: another number of ranks takes other steps an epoch
    ],
)
def test_a_schedule_that_contradicts_its_place_is_told_k11(
    whole: Checkpoint, tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    moved = with_meta(whole, schedule=SCHEDULE | changed, progress=whole.meta["progress"] | PLACE)
    found = [item.problem for item in found_in(moved, tmp_path).findings if item.code == "K11"]
    assert len(found) == bool(words)
    assert all(words in problem for problem in found)
    config, events = config_from_dict(moved.config, "test"), Mock(files=[])
    with pytest.raises(CheckpointError, match=words or "in the middle of an epoch") as caught:
        require_resumable(config, moved, events, tmp_path / "a.pt")
    assert (caught.value.code == "K11") == bool(words)
