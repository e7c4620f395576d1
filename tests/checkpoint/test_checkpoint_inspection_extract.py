"""An encoder taken out of a checkpoint goes into another network; two files are compared tensor by tensor."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.extract import extract_encoder
from xectool.checkpoint.format import Checkpoint
from xectool.checkpoint.inspection.facts import inspect
from xectool.checkpoint.transfer import transfer_encoder
from xectool.config.load import config_from_overrides
from xectool.config.root import KINDS, RunConfig
from xectool.engine.checkpoints.resume_contract import resume_contract
from xectool.errors import CheckpointError, UsageError
from xectool.models import build_model
from xectool.training.saving.resolved import adopt_resolved
from xectool.training.saving.resume import meaning_differences, objective_changes

SMALL: dict[str, Any] = {"encoder_dim": 32, "num_fusion_layers": 1}


def _inpainter(**model: Any) -> RunConfig:
    return KINDS["inpainter"](model=SMALL | model)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("family", ["regressor", "mae", "inpainter"])
def test_an_extracted_encoder_goes_into_another_network(
    family: str, suffix: str, families: dict[str, Path], tmp_path: Path
) -> None:
    """K20: the part says which file its weights are from and after how many epochs; 2 is the one to go on with."""
    target = tmp_path / f"encoder{suffix}"
    result = engine.inspect_ckpt(families[family], extract="encoder", output=target)
    assert result.extracted == str(target)
    source, part = store.load(families[family]), store.load(target)
    assert part.meta["lineage"] == {
        "source": families[family].name, "source_sha256": result.sha256, "epochs_done": 1, "step": 1,
        "kind": family, "weights": "ema",
    }  # fmt: skip
    config = _inpainter()
    network = build_model(config)
    report = transfer_encoder(part, config, network)
    prefix = "backbone." if family == "regressor" else "encoder."
    assert torch.equal(network.state_dict()["encoder.pos_embed"], source.ema[f"{prefix}pos_embed"])
    assert report.source == "encoder"


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_an_extracted_encoder_is_sound_and_fit_for_fine_tuning_only(
    suffix: str, families: dict[str, Path], tmp_path: Path
) -> None:
    target = tmp_path / f"encoder{suffix}"
    engine.inspect_ckpt(families["mae"], extract="encoder", output=target)
    result = engine.inspect_ckpt(target)
    assert (result.format, result.kind, result.is_bad) == ("xectool", "encoder", False)
    assert [item.action for item in result.fit_for if item.possible] == ["fine-tune"]
    assert "checkpoint.init_from" in result.next
    assert result.lineage["lineage"]["source"] == "mae.pt"


def test_the_line_after_an_extraction_fits_a_configuration_that_says_nothing_of_the_network(
    reference_dir: Path, families: dict[str, Path], tmp_path: Path
) -> None:
    """The encoder of an older checkpoint needs its geometry and its readings below the domain as well as its sizes."""
    older = reference_dir / "checkpoints" / "mae_small_checkpoint_best_stripped.pth"
    for number, (source, needed) in enumerate([(older, "model.geometry=compat"), (families["mae"], "encoder_dim=32")]):
        target = tmp_path / f"{number}.pt"
        line = engine.inspect_ckpt(source, extract="encoder", output=target).next
        assert needed in line
        again = engine.inspect_ckpt(target).next
        for words in (shlex.split(line), shlex.split(again)):
            assert words[:3] == ["xectool", "train", "CONFIG"]
            given = [word for word in words[3:] if word != "--set" and not word.startswith("checkpoint.init_from")]
            config = config_from_overrides(["kind=regressor", "tasks.energy.enabled=true", *given])
            report = transfer_encoder(store.load(target), config, build_model(config))
            assert report.source == "encoder"


def test_a_flipped_bit_in_safetensors_of_ours_is_found_by_both_readers(
    families: dict[str, Path], tmp_path: Path
) -> None:
    target = tmp_path / "encoder.safetensors"
    engine.inspect_ckpt(families["mae"], extract="encoder", output=target)
    content = bytearray(target.read_bytes())
    content[-3] ^= 1
    target.write_bytes(content)
    assert engine.inspect_ckpt(target).findings[0].code == "K02"
    with pytest.raises(CheckpointError, match="inspect-ckpt"):
        store.load(target)


def test_a_bare_encoder_gets_its_meaning_from_a_configuration(families: dict[str, Path], tmp_path: Path) -> None:
    weights = {
        n.removeprefix("encoder."): v for n, v in store.load(families["mae"]).model.items() if n.startswith("encoder.")
    }
    safetensors.torch.save_file(weights, tmp_path / "bare.safetensors")
    with pytest.raises(CheckpointError, match="--config CONFIG"):
        engine.inspect_ckpt(tmp_path / "bare.safetensors", extract="encoder", output=tmp_path / "e.pt")
    with pytest.raises(CheckpointError, match="--extract encoder --config CONFIG"):
        store.load(tmp_path / "bare.safetensors")
    (tmp_path / "c.yaml").write_text("kind: mae\nmodel: {encoder_dim: 32, num_fusion_layers: 1, decoder_dim: 8}\n")
    engine.inspect_ckpt(
        tmp_path / "bare.safetensors", extract="encoder", output=tmp_path / "e.pt", config=tmp_path / "c.yaml"
    )
    config = _inpainter()
    assert transfer_encoder(store.load(tmp_path / "e.pt"), config, build_model(config)).loaded


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        (
            {"extract": "encodr", "output": "e.pt"},
            r"did you mean 'encoder'(.|\n)*mae\.pt --extract encoder --output e\.pt",
        ),
        ({"extract": "encoder"}, r"mae\.pt --extract encoder --output encoder\.pt"),
        ({"output": "e.pt"}, r"mae\.pt --extract encoder --output e\.pt"),
        ({"extract": "encoder", "output": "e.onnx"}, r"--output e\.safetensors"),
    ],
)
def test_options_of_an_extraction_that_contradict_each_other(
    options: dict[str, str], fix: str, families: dict[str, Path]
) -> None:
    with pytest.raises(UsageError, match=fix):
        engine.inspect_ckpt(families["mae"], **options)  # type: ignore[arg-type]


def test_an_extraction_overwrites_nothing(families: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "e.pt").write_bytes(b"mine")
    with pytest.raises(UsageError, match="another_e"):
        engine.inspect_ckpt(families["mae"], extract="encoder", output=tmp_path / "e.pt")
    assert (tmp_path / "e.pt").read_bytes() == b"mine"
    with pytest.raises(UsageError, match="is a file, not a directory"):
        engine.inspect_ckpt(families["mae"], extract="encoder", output=tmp_path / "e.pt" / "inner.pt")


@pytest.mark.parametrize(("bit", "value", "code"), [("flipped", None, "K02"), ("", float("nan"), "K08")])
def test_nothing_is_extracted_from_a_file_that_is_not_sound(
    bit: str, value: float | None, code: str, families: dict[str, Path], tmp_path: Path
) -> None:
    """The control: the encoder taken out all the same is sealed anew, and nobody sees what it came from."""
    saved, bad, target = store.load(families["mae"]), tmp_path / "bad.pt", tmp_path / "e.pt"
    if value is not None:
        saved.ema["encoder.pos_embed"] = torch.full_like(saved.ema["encoder.pos_embed"], value)
    store.save(bad, saved)
    if bit:
        content = bytearray(bad.read_bytes())
        content[content.index(saved.ema["encoder.pos_embed"].numpy().tobytes())] ^= 1
        bad.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"nothing is extracted|weights cannot be used") as caught:
        engine.inspect_ckpt(bad, extract="encoder", output=target)
    assert (caught.value.code, target.exists()) == (code, False)
    layout = inspect(bad).layout
    store.save(target, extract_encoder(layout.weights, layout.kind, layout.config, {}))
    assert "K02" not in {item.code for item in engine.inspect_ckpt(target).findings}


def test_what_is_not_extracted_may_be_anything(families: dict[str, Path], tmp_path: Path) -> None:
    saved, target = store.load(families["mae"]), tmp_path / "e.pt"
    saved.model["encoder.pos_embed"] = torch.full_like(saved.model["encoder.pos_embed"], float("nan"))
    store.save(tmp_path / "raw.pt", saved)
    engine.inspect_ckpt(tmp_path / "raw.pt", extract="encoder", output=target)
    assert all(value.isfinite().all() for value in store.load(target).model.values())


def test_a_network_without_encoder_has_none_to_extract(families: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="regressor, an MAE or an inpainter"):
        engine.inspect_ckpt(families["timm"], extract="encoder", output=tmp_path / "e.pt")


def test_a_file_equals_itself(families: dict[str, Path]) -> None:
    result = engine.inspect_ckpt(families["regressor"], compare_with=families["regressor"])
    assert (result.differences, result.is_bad) == ((), False)
    assert result.compared == sum(len(part) for part in (store.load(families["regressor"]).model,) * 2)


def test_wrappers_do_not_make_a_difference(families: dict[str, Path]) -> None:
    for other in ("ddp", "compiled", "legacy", "safetensors"):
        assert engine.inspect_ckpt(families["state dict"], compare_with=families[other]).differences == ()


def test_each_kind_of_difference_is_told_by_how_much(tmp_path: Path) -> None:
    first = {
        "a": torch.tensor([1.0, 2.0]),
        "b": torch.ones(2),
        "c": torch.ones(3),
        "d": torch.ones(2),
        "n": torch.tensor([float("nan")]),
    }
    second = {
        "a": torch.tensor([1.0, 2.5]),
        "b": torch.ones(3),
        "d": torch.ones(2).double(),
        "e": torch.ones(1),
        "n": first["n"],
    }
    torch.save(first, tmp_path / "a.pt")
    torch.save(second, tmp_path / "b.pt")
    result = engine.inspect_ckpt(tmp_path / "a.pt", compare_with=tmp_path / "b.pt")
    found = {item.tensor: item for item in result.differences if hasattr(item, "tensor")}
    assert {name: item.status for name, item in found.items()} == {
        "model: a": "values", "model: b": "shape", "model: c": "only here", "model: d": "dtype",
        "model: e": "only there",
    }  # fmt: skip
    assert (found["model: a"].max_abs, found["model: a"].max_rel, found["model: a"].num_different) == (0.5, 0.2, 1)
    assert result.compared == 1
    assert result.is_bad


CONTRACT = [
    ({"normalization": {"npho_scale": 900.0}}, "normalization.npho_scale", "changes outputs silently"),
    ({"normalization": {"sentinel_time": -2.0}}, "normalization.sentinel_time", "changes outputs silently"),
    ({"model": {"outer_fine_pool": [3, 3]}}, "model.outer_fine_pool", "changes outputs silently"),
    ({"tasks": {"energy": {"scale": 0.02}}}, "tasks.energy.scale", "changes outputs silently"),
    ({"tasks": {"angle": {"enabled": True}}}, "tasks.angle.enabled", "changes outputs silently"),
    ({"tasks": {"energy": {"log_transform": True}}}, "tasks.energy.log_transform", "changes outputs silently"),
    ({"data": {"npho_branch": "other"}}, "data.npho_branch", "changes outputs silently"),
    ({"model": {"outer_mode": "split"}}, "model.outer_mode", "does not fit"),
    ({"model": {"encoder_dim": 64}}, "model.encoder_dim", "does not fit"),
    ({"model": {"hidden_dim": 16}}, "model.hidden_dim", "does not fit"),
    ({"model": {"num_fusion_layers": 2}}, "model.num_fusion_layers", "does not fit"),
    ({"model": {"dim_feedforward": 50}}, "model.dim_feedforward", "does not fit"),
    ({"tasks": {"uvwFI": {"loss_fn": "gaussian_nll"}}}, "tasks.uvwFI.loss_fn", "does not fit"),
    ({"training": {"epochs": 1}}, "training.epochs", "does not fit"),
    ({"loss_balance": "auto"}, "loss_balance", "does not fit"),
    ({"model": {"dropout": 0.3}}, "model.dropout", "harmless"),
    ({"tasks": {"energy": {"weight": 3.0}}}, "tasks.energy.weight", "harmless"),
    ({"tasks": {"timing": {"weight": 3.0}}}, "tasks.timing.weight", "harmless"),
    ({"tasks": {"energy": {"scale": "auto"}}}, "tasks.energy.scale", "harmless"),
    ({"tasks": {"uvwFI": {"loss_fn": "l1"}}}, "tasks.uvwFI.loss_fn", "harmless"),
    ({"data": {"truth_branches": {"energy": "other"}}}, "data.truth_branches.energy", "changes outputs silently"),
    ({"data": {"truth_branches": {"angle": "other"}}}, "data.truth_branches.angle", "harmless"),
    ({"training": {"lr": 1e-5}}, "training.lr", "harmless"),
    ({"data": {"batch_size": 8}}, "data.batch_size", "harmless"),
]


def _merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    out = dict(values)
    for key, change in changes.items():
        out[key] = _merged(out[key], change) if isinstance(change, dict) and isinstance(out[key], dict) else change
    return out


@pytest.mark.parametrize(("changes", "key", "effect"), CONTRACT)
def test_every_key_has_the_effect_it_really_has(
    changes: dict[str, Any], key: str, effect: str, families: dict[str, Path]
) -> None:
    saved = store.load(families["regressor"])
    current = KINDS["regressor"].model_validate(_merged(saved.config, changes))
    found = resume_contract(saved.config, current, saved.meta)
    assert next((item.key, item.effect) for item in found if item.effect != "same") == (key, effect)
    assert {item.effect for item in found if item.key != key} == {"same"}


def test_a_width_written_out_is_no_difference(families: dict[str, Path]) -> None:
    saved = store.load(families["regressor"])
    width = 4 * saved.config["model"]["encoder_dim"]
    assert saved.config["model"]["dim_feedforward"] is None
    current = KINDS["regressor"].model_validate(_merged(saved.config, {"model": {"dim_feedforward": width}}))
    assert {item.effect for item in resume_contract(saved.config, current, saved.meta)} == {"same"}


WEIGHTY = [case for case in CONTRACT if case[2] != "harmless" and case[1].startswith(("model.", "tasks.", "norm"))]


@pytest.mark.parametrize("case", WEIGHTY, ids=lambda case: case[1])
def test_the_verdict_is_what_loading_the_weights_shows(case: Any, families: dict[str, Path]) -> None:
    """The control: weights load under keys called silent, and do not under keys called unfit."""
    changes, _, effect = case
    saved = store.load(families["regressor"])
    network = build_model(KINDS["regressor"].model_validate(_merged(saved.config, changes)))
    if effect == "does not fit":
        with pytest.raises(RuntimeError, match=r"Missing|Unexpected|size mismatch"):
            network.load_state_dict(saved.model)
    else:
        network.load_state_dict(saved.model)


SENSOR_CONTRACT = [
    ("mae", {"model": {"mask_ratio": 0.4}}, "harmless"),
    ("inpainter", {"model": {"mask_ratio": {"inner": 0.2}}}, "harmless"),
    ("inpainter", {"model": {"mask_npho_flat": True}}, "harmless"),
    ("inpainter", {"model": {"mask_patterns": {"sensors": [[1, 2]]}}}, "harmless"),
    ("mae", {"training": {"time": {"npho_threshold": 50.0}}}, "harmless"),
    ("mae", {"data": {"truth_branches": {"energy": "other"}}}, "harmless"),
    ("inpainter", {"model": {"prior": "neighbours"}}, "changes outputs silently"),
    ("inpainter", {"model": {"freeze_encoder": False}}, "does not fit"),
    ("inpainter", {"model": {"predict_channels": ["npho", "time"]}}, "does not fit"),
]


@pytest.mark.parametrize(
    ("kind", "changes", "effect"), [*[("regressor", case[0], case[2]) for case in CONTRACT], *SENSOR_CONTRACT]
)
def test_a_resume_refuses_what_the_contract_calls_bad_and_nothing_else(
    kind: str, changes: dict[str, Any], effect: str, families: dict[str, Path]
) -> None:
    saved = store.load(families[kind])
    current = KINDS[kind].model_validate(_merged(saved.config, changes))
    found = [item for item in resume_contract(saved.config, current, saved.meta) if item.effect != "same"]
    assert {item.effect for item in found} == {effect}
    if not found[0].key.startswith(("training.", "loss_balance")):  # these are refused where the state is loaded
        assert bool(meaning_differences(adopt_resolved(current, saved), saved)) == found[0].is_bad


def test_a_best_of_another_validation_loss_is_not_compared(families: dict[str, Path]) -> None:
    saved = store.load(families["mae"])
    current = saved.config | {"model": saved.config["model"] | {"mask_ratio": 0.4}}
    assert objective_changes(KINDS["mae"].model_validate(current), saved) == ["model.mask_ratio"]
    assert objective_changes(KINDS["mae"].model_validate(saved.config), saved) == []


def test_another_order_of_events_fits_between_epochs_and_not_inside_one(families: dict[str, Path]) -> None:
    saved = store.load(families["regressor"])
    current = KINDS["regressor"].model_validate(_merged(saved.config, {"data": {"batch_size": 8}}))
    inside = saved.meta | {"progress": saved.meta["progress"] | {"batch": 3}}
    found = {item.key: item for item in resume_contract(saved.config, current, inside)}
    assert found["data.batch_size"].effect == "does not fit"
    wider = KINDS["regressor"].model_validate(_merged(saved.config, {"data": {"exclude": ["train.root:3"]}}))
    (added,) = [item for item in resume_contract(saved.config, wider, inside) if item.key == "data.exclude"]
    assert (added.effect, added.why[:11]) == ("harmless", "more events")  # its place stays, and is not served
    (taken_away,) = [item for item in resume_contract(wider.to_dict(), current, inside) if item.key == "data.exclude"]
    assert taken_away.effect == "does not fit"


def test_another_kind_does_not_fit(families: dict[str, Path]) -> None:
    saved = store.load(families["mae"])
    found = resume_contract(saved.config, _inpainter(), saved.meta)
    assert (found[0].key, found[0].effect) == ("kind", "does not fit")


@pytest.mark.parametrize("branch", ["npho_branch", "time_branch"])
def test_an_encoder_of_another_kind_learned_the_readings_of_its_branch(branch: str, families: dict[str, Path]) -> None:
    """It was no harm, "of another network", and so was every key of the training."""
    saved = store.load(families["regressor"])
    current = KINDS["mae"].model_validate({"model": SMALL, "training": {"lr": 3e-3}, "data": {"batch_size": 3}})
    lent = _merged(saved.config, {"data": {branch: "other"}, "training": {"lr": 1e-4}})
    found = {item.key: item for item in resume_contract(lent, current, saved.meta)}
    silent = {item.key for item in found.values() if item.effect == "changes outputs silently"}
    assert silent == {f"data.{branch}"}, silent
    of_network = {key.split(".")[0] for key, item in found.items() if item.why == "of another network"}
    assert {"tasks"} <= of_network <= {"model", "tasks", "loss_balance"}
    assert found["training.lr"].why == found["data.batch_size"].why == "a run of another kind starts anew"


def test_a_configuration_that_stores_no_kind_is_judged_as_of_the_same(families: dict[str, Path]) -> None:
    """With the tasks exchanged nothing was bad."""
    saved = store.load(families["regressor"])
    off, on = ({"enabled": is_on} for is_on in (False, True))
    current = KINDS["regressor"].model_validate(_merged(saved.config, {"tasks": {"uvwFI": off, "angle": on}}))
    without = {key: value for key, value in saved.config.items() if key != "kind"}
    bad, same = ([i.key for i in resume_contract(c, current, saved.meta) if i.is_bad] for c in (without, saved.config))
    assert bad == same == ["tasks.angle.enabled", "tasks.uvwFI.enabled"]


@pytest.mark.parametrize(("loss", "effects"), [("l1", {"same"}), ("gaussian_nll", {"same", "does not fit"})])
def test_of_the_older_system_only_what_its_files_store_is_judged(
    loss: str, effects: set[str], families: dict[str, Path]
) -> None:
    saved = store.load(families["regressor"]).config
    stored = {"kind": "regressor", "tasks": {"uvwFI": {"enabled": True, "loss_fn": "smooth_l1"}}, "training": {}}
    stored |= {"model": {"encoder_dim": saved["model"]["encoder_dim"]}}
    current = KINDS["regressor"].model_validate(_merged(saved, {"tasks": {"uvwFI": {"loss_fn": loss}}}))
    assert {item.effect for item in resume_contract(stored, current, {}, is_older=True)} == effects
    assert len(resume_contract(stored, current, {})) > 20  # the control: as if the file had stored all it does not


def test_a_safetensors_store_keeps_every_value(tmp_path: Path) -> None:
    weights = {"a": torch.randn(3, 4).t(), "b": torch.arange(3), "c": torch.zeros(0, 2)}
    store.save(tmp_path / "a.safetensors", Checkpoint({"kind": "encoder", "config": {"x": 1}}, weights))
    loaded = store.load(tmp_path / "a.safetensors")
    assert all(torch.equal(loaded.model[name], value) for name, value in weights.items())
    assert loaded.meta == {"kind": "encoder", "config": {"x": 1}}


@pytest.mark.parametrize("text", ["xectool-checkpoint", "xectool-digest", '"format":"pt"', '"a":{"dtype":"F32"'])
def test_a_flipped_letter_in_the_header_of_a_safetensors_store_is_found(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    store.save(path, Checkpoint({"kind": "encoder", "config": {"x": 1}}, {"a": torch.randn(3, 4)}))
    assert not engine.inspect_ckpt(path).is_bad
    content, at = path.read_bytes(), path.read_bytes().index(text.encode())
    for place in range(at + 1, at + len(text)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert engine.inspect_ckpt(path).is_bad, content[place - 9 : place + 9]
        except CheckpointError:
            continue
