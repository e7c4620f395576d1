"""What was changed after saving is named by its place, also where digest and checksums were made to fit again."""

from __future__ import annotations

import copy
import io
import json
import lzma
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from xectool import engine
from xectool.checkpoint import format, store
from xectool.checkpoint.format import Checkpoint
from xectool.checkpoint.inspection.archive import Archive, Entry
from xectool.checkpoint.seals import seals
from xectool.config.load import config_from_dict, load_config
from xectool.config.root import KINDS, RegressorConfig
from xectool.engine.exports.sources import require_sound
from xectool.engine.inspection import CheckpointInspected
from xectool.errors import CheckpointError, ConfigError
from xectool.models.build import MODELS, build_model
from xectool.training.optimization.optim import is_decayed
from xectool.training.saving.resume import require_resumable

Payload = dict[str, Any]
TABLE = "backbone.top_hex_indices"
MATRIX = "backbone.fusion_transformer.layers.0.linear2.weight"


def _facts(change: Callable[[dict[str, Any]], Any]) -> Callable[[Payload], None]:
    def run(payload: Payload) -> None:
        meta = json.loads(payload["meta"])
        change(meta)
        payload["meta"] = json.dumps(meta)

    return run


def _exchanged(payload: Payload) -> None:
    model = payload["model"]
    one, two = (f"backbone.hex_encoder.layers.{layer}.spatial_conv.weight" for layer in (0, 1))
    model[one], model[two] = model[two], model[one]


def _scaled(payload: Payload) -> None:
    payload["model"][MATRIX] = payload["model"][MATRIX] * 1.01


def _states(change: Callable[[dict[Any, Any]], Any]) -> Callable[[Payload], None]:
    return lambda payload: change(payload["training"]["optimizer"]["state"])


SEALED: dict[str, tuple[Callable[[Payload], Any], str]] = {
    "weight": (_scaled, f"model.{MATRIX}"),
    "exchanged weights": (_exchanged, "model.backbone.hex_encoder.layers.1.spatial_conv.weight"),
    "average": (lambda payload: payload["ema"].update({MATRIX: payload["model"][MATRIX]}), f"ema.{MATRIX}"),
    "moment": (_states(lambda states: states[3].update(exp_avg=-states[3]["exp_avg"])), "state.3.exp_avg"),
    "configuration": (_facts(lambda meta: meta["config"]["normalization"].update(npho_scale=7.0)), "normalization"),
    "facts": (_facts(lambda meta: meta.update(num_averaged=900)), "meta.num_averaged"),
    "random state": (lambda payload: payload["training"]["rng"]["torch"].zero_(), "training.rng.torch"),
}


@pytest.mark.parametrize("name", SEALED)
@pytest.mark.parametrize("digest", ["old", "made to fit"])
def test_what_was_changed_is_named(name: str, digest: str, families: dict[str, Path], tmp_path: Path) -> None:
    payload = torch.load(families["regressor"], weights_only=True)
    change, place = SEALED[name]
    change(payload)
    if digest != "old":
        payload["digest"] = format.digest({part: payload[part] for part in ("meta", "model", "ema", "training")})
    torch.save(payload, tmp_path / "a.pt")
    found = engine.inspect_ckpt(tmp_path / "a.pt").findings
    assert any(item.code == "K02" and place in item.problem for item in found), found
    assert ("digest" in [item.where for item in found]) is (digest == "old")


def test_an_average_that_is_gone_is_named_and_the_last_weights_do_not_stand_in(
    families: dict[str, Path], tmp_path: Path
) -> None:
    """A resume went on with an average that began anew, and a prediction with other numbers, without a word."""
    payload, path = torch.load(families["regressor"], weights_only=True), tmp_path / "a.pt"
    payload["ema"] = {}
    content = {part: payload[part] for part in ("meta", "model", "ema", "training")}
    torch.save(payload | {"digest": format.digest(content), "seals": seals(content)}, path)
    inspected = engine.inspect_ckpt(path)
    fit = {item.action: (item.possible, item.why) for item in inspected.fit_for}
    assert fit["resume"] == (False, "the averaged weights are gone")
    assert fit["predict"] == fit["export"] == (True, "with --weights model only: the averaged weights are gone")
    assert fit["fine-tune"][1].endswith("; the last weights: the averaged weights are gone")
    with pytest.raises(CheckpointError, match="the averaged weights are gone"):
        require_sound(path, "auto")
    assert require_sound(path, "model") == inspected.sha256
    (found,) = [item for item in inspected.findings if item.severity.value == "error"]
    assert (found.code, found.fix[:28]) == ("K09", "predict with --weights model")
    stored = store.load(path)
    with pytest.raises(CheckpointError, match=r"averaged weights are gone[\s\S]*--weights model"):
        stored.weights()
    assert stored.weights("model") is stored.model
    config = config_from_dict(stored.config, "test")
    with pytest.raises(CheckpointError, match=r"averaged weights are gone[\s\S]*--resume auto"):
        require_resumable(config, stored, None, path)  # no data is read


@pytest.fixture
def of_plugin(families: dict[str, Path], tmp_path: Path) -> Path:
    payload, path = torch.load(families["regressor"], weights_only=True), tmp_path / "a.pt"
    facts = json.loads(payload["meta"])
    facts["kind"] = facts["config"]["kind"] = "photons_only"
    facts["kind_package"] = "xectool-example"
    payload["meta"] = json.dumps(facts)
    content = {part: payload[part] for part in ("meta", "model", "ema", "training")}
    torch.save(payload | {"digest": format.digest(content), "seals": seals(content)}, path)
    return path


LACKS = "pip list   # lacks the package xectool-example that brings photons_only: install it from where you have it"


def test_a_kind_that_no_installed_package_brings_is_answered_with_the_package(of_plugin: Path, tmp_path: Path) -> None:
    """`predict` said `kind: regressor`, and the page 'not usable as it is' beside 'predict yes', 'resume yes'."""
    with pytest.raises(ConfigError, match="its kind is 'photons_only', which no installed package brings") as refused:
        engine.predict(of_plugin, engine.simulate(tmp_path / "v.root", events=2).files, output=tmp_path / "p.root")
    assert (refused.value.fix, refused.value.code) == (LACKS, "XT-PLUGIN")
    page = engine.inspect_ckpt(of_plugin)
    fit = {item.action: item.possible for item in page.fit_for}
    assert not any(fit.values())
    assert page.verdict == "not usable here: photons_only (xectool)"
    assert page.next == LACKS
    (found,) = [item for item in page.findings if item.severity.value == "error"]
    assert (found.code, found.fix) == ("XT-PLUGIN", page.next)


def test_a_kind_that_no_installed_package_brings_is_nowhere_answered_with_its_encoder(
    of_plugin: Path, tmp_path: Path
) -> None:
    """`init_from`, proposed for a resume and beside --config, is refused as well; an export named no package."""
    path = tmp_path / "s.yaml"
    path.write_text("kind: regressor\ntasks: {energy: {enabled: true, scale: auto}}\n")
    errors = [item for item in engine.inspect_ckpt(of_plugin, config=path).findings if item.severity.value == "error"]
    answers = [(item.code, item.fix) for item in errors]
    stored = store.load(of_plugin)
    for refuse in (
        lambda: require_sound(of_plugin, "auto"),
        lambda: require_resumable(load_config(path).config, stored, None, of_plugin),
    ):
        with pytest.raises((CheckpointError, ConfigError), match="which no installed package brings") as refused:
            refuse()
        answers.append((refused.value.code, refused.value.fix))
    assert answers == [("XT-PLUGIN", LACKS)] * 3


def test_of_a_plugins_kind_predictions_are_possible_and_an_export_is_not(
    of_plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said to hold 'an photons_only only', of which no prediction can be made."""

    class PhotonsOnly(RegressorConfig):
        kind: Literal["photons_only"] = "photons_only"  # type: ignore[assignment]

    monkeypatch.setitem(KINDS, "photons_only", PhotonsOnly)  # type: ignore[arg-type]
    monkeypatch.setitem(MODELS._found, "photons_only", MODELS["regressor"])
    path = of_plugin
    fit = {item.action: (item.possible, item.why) for item in engine.inspect_ckpt(path).fit_for}
    assert fit["predict"] == (True, "with the averaged weights")
    assert fit["export"] == (
        False, "photons_only is a plugin's kind, of which no export is known; predict with the checkpoint"
    )  # fmt: skip


def test_a_flipped_bit_of_safetensors_is_named_with_its_bytes(
    families: dict[str, Path], tmp_path: Path, inspected: Callable[..., CheckpointInspected]
) -> None:
    store.save(tmp_path / "a.safetensors", store.load(families["regressor"]))
    content = bytearray((tmp_path / "a.safetensors").read_bytes())
    content[-4001] ^= 1
    found = inspected(bytes(content), "b.safetensors").findings
    assert found[0].problem.startswith("model.heads.")
    start, end = (int(word) for word in found[0].where.split() if word.isdigit())
    assert start <= len(content) - 4001 < end


UNSEALED: dict[str, tuple[Callable[[Payload], Any], str, str]] = {
    "dtype of one weight": (lambda p: p["model"].update({MATRIX: p["model"][MATRIX].half()}), "K15", "is float16, the"),
    "whole numbers": (lambda p: p["model"].update({MATRIX: p["model"][MATRIX].long()}), "K15", "is int64, the"),
    "exchanged weights": (_exchanged, "K09", "layers.0.spatial_conv.weight and its average"),
    "weight of zeros": (lambda p: p["model"][MATRIX].zero_(), "K09", f"{MATRIX} and its average (ema)"),
    "no average": (lambda p: [v.mul_(30) for v in p["ema"].values() if v.is_floating_point()], "K09", "no average"),
    "wrapped": (lambda p: p.update(model={f"module.{k}": v for k, v in p["model"].items()}), "K06", "inside its"),
    "raw weights gone": (lambda p: p.update(model={}), "K05", "the raw ones are gone"),
    "kind": (_facts(lambda meta: meta.update(kind="mae")), "K05", "says it is of kind mae"),
    "index table": (lambda p: p["model"].update({TABLE: p["model"][TABLE].flip(0)}), "K16", "top_hex"),
    "moments lost": (_states(lambda states: states.clear()), "K10", "its moments are lost"),
    "one state lost": (_states(lambda states: states.pop(5)), "K10", "are lost, its layer has others"),
    "states exchanged": (_states(lambda s: s.update({0: s[1], 1: s[0]})), "K10", "at this place is"),
    "counter too high": (_states(lambda s: s[2].update(step=torch.tensor(77.0))), "K10", "counts 77 steps, the run 1"),
    "mean damaged": (_states(lambda s: s[1]["exp_avg"].view(-1)[:1].fill_(1e20)), "K10", "one of them is damaged"),
    "square damaged": (_states(lambda s: s[1]["exp_avg_sq"].view(-1)[:1].fill_(1e30)), "K10", "a damaged value"),
    "random states gone": (lambda p: p["training"].pop("rng"), "K13", "rng is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSEALED)
def test_of_a_file_without_seals_too(name: str, families: dict[str, Path], tmp_path: Path) -> None:
    payload = torch.load(families["regressor"], weights_only=True)
    change, code, words = UNSEALED[name]
    change(payload)
    del payload["seals"]
    payload["digest"] = format.digest({part: payload[part] for part in ("meta", "model", "ema", "training")})
    torch.save(payload, tmp_path / "a.pt")
    found = engine.inspect_ckpt(tmp_path / "a.pt").findings
    assert any(item.code == code and words in item.problem for item in found), found


@pytest.mark.parametrize("average", ["differs", "equal", "none"])
def test_a_lost_state_of_a_parameter_alone_in_its_layer_is_told_by_its_average(
    average: str, families: dict[str, Path], tmp_path: Path
) -> None:
    """No neighbour in its layer has a state; that no step has moved it, its average shows."""
    payload = torch.load(families["mae"], weights_only=True)
    network = build_model(config_from_dict(store.load(families["mae"]).config, "test"))
    ordered = [*dict(network.named_parameters()).items()]
    layers = Counter(name.rpartition(".")[0] for name, _ in ordered)
    name = next(name for name, _ in ordered if layers[name.rpartition(".")[0]] == 1)
    decayed = [key for key, value in ordered if is_decayed(key, value)]
    index = [*decayed, *(key for key, value in ordered if not is_decayed(key, value))].index(name)
    del payload["training"]["optimizer"]["state"][index], payload["seals"]
    if average == "equal":
        payload["ema"][name] = payload["model"][name].clone()
    if average == "none":
        payload["ema"] = {}
    payload["digest"] = format.digest({part: payload[part] for part in ("meta", "model", "ema", "training")})
    torch.save(payload, tmp_path / "a.pt")
    found = [item for item in engine.inspect_ckpt(tmp_path / "a.pt").findings if item.code == "K10"]
    assert [item.where for item in found] == [f"optimizer.state.{index}"] * (average == "differs")
    assert all("its average differs from it" in item.problem for item in found)


def test_a_file_without_seals_is_sound(families: dict[str, Path], tmp_path: Path) -> None:
    payload = torch.load(families["regressor"], weights_only=True)
    del payload["seals"]
    torch.save(payload, tmp_path / "a.pt")
    assert engine.inspect_ckpt(tmp_path / "a.pt").findings == ()
    assert store.load(tmp_path / "a.pt").kind == "regressor"


@pytest.mark.parametrize("kind", ["regressor", "mae", "inpainter"])
def test_bare_weights_are_held_against_the_network_they_are_of(
    kind: str, families: dict[str, Path], tmp_path: Path
) -> None:
    weights = store.load(families[kind]).model
    torch.save(weights, tmp_path / "whole.pt")
    assert not engine.inspect_ckpt(tmp_path / "whole.pt").is_bad
    name = next(name for name in weights if name.endswith("layers.0.linear2.weight"))
    torch.save({key: value for key, value in weights.items() if key != name}, tmp_path / "a.pt")
    found = engine.inspect_ckpt(tmp_path / "a.pt").findings
    assert [item.code for item in found] == ["K15"]
    assert f"{name} is missing" in found[0].problem


def test_bare_weights_of_every_variant_of_the_older_system_are_whole(reference_dir: Path, tmp_path: Path) -> None:
    """A control: what is not in the weights (channels, pooling, neighbours) is no fault of theirs."""
    for table in sorted((reference_dir / "variants").glob("*_keys.tsv")):
        rows = [line.split("\t") for line in table.read_text().splitlines() if line.count("\t") >= 2]
        weights = {name: _tensor(shape, dtype) for name, shape, dtype, *_ in rows if name != "key"}
        torch.save(weights, tmp_path / "a.pt")
        assert not engine.inspect_ckpt(tmp_path / "a.pt").is_bad, table.name


def _tensor(shape: str, dtype: str) -> torch.Tensor:
    sizes = [int(size) for size in shape.strip("()[] ").replace("x", ",").split(",") if size.strip()]
    kind = getattr(torch, dtype.removeprefix("torch."))
    return torch.rand(sizes) * 0.1 if kind.is_floating_point else torch.zeros(sizes, dtype=kind)


def test_a_layer_that_lacks_what_its_siblings_have_is_named(tmp_path: Path) -> None:
    weights = {f"blocks.{n}.fc.{part}": torch.rand(4) for n in range(4) for part in ("weight", "bias")}
    torch.save(weights | {"head.bias": torch.rand(2)}, tmp_path / "a.pt")
    assert engine.inspect_ckpt(tmp_path / "a.pt").findings == ()
    del weights["blocks.2.fc.weight"]
    torch.save(weights, tmp_path / "b.pt")
    assert [item.where for item in engine.inspect_ckpt(tmp_path / "b.pt").findings] == ["blocks.2.fc.weight"]


def test_some_wrapped_names_are_told_of_our_own_weights_too(families: dict[str, Path], tmp_path: Path) -> None:
    weights = store.load(families["regressor"]).model
    torch.save({f"module.{k}" if n < 9 else k: v for n, (k, v) in enumerate(weights.items())}, tmp_path / "a.pt")
    assert "9 of" in next(x.problem for x in engine.inspect_ckpt(tmp_path / "a.pt").findings if x.code == "K06")


def test_damage_of_a_packed_file_has_a_place(families: dict[str, Path], inspected: Callable[..., Any]) -> None:
    packed = bytearray(lzma.compress(families["lightning"].read_bytes()))
    packed[200] ^= 4
    with pytest.raises(Exception, match=f"damaged in bytes 0 to {len(packed)} of {len(packed)}"):
        inspected(bytes(packed), "a.pt.xz")


def test_an_archive_without_its_first_bytes_is_named(families: dict[str, Path], inspected: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match="the beginning of the archive is missing"):
        inspected(families["regressor"].read_bytes()[137:], "a.pt")


def test_a_script_without_its_code_is_damaged(families: dict[str, Path], inspected: Callable[..., Any]) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(families["torchscript"]) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            if "/code/" not in entry.filename:
                new.writestr(entry.filename, old.read(entry))
    found = inspected(out.getvalue(), "a.pt").findings
    assert any("is missing from the archive" in item.problem and item.where.endswith(".py") for item in found)


def test_weights_and_moments_of_a_checkpoint_are_left_as_they_were(families: dict[str, Path]) -> None:
    """A control: judging the moments computes roots and compares, in place of nothing."""
    whole = store.load(families["regressor"])
    before = copy.deepcopy(whole.training)
    assert engine.inspect_ckpt(families["regressor"]).findings == ()
    assert format.digest(before) == format.digest(store.load(families["regressor"]).training)
    assert isinstance(whole, Checkpoint)


def test_nothing_is_extracted_from_an_encoder_that_is_not_whole(families: dict[str, Path], tmp_path: Path) -> None:
    weights = store.load(families["mae"]).model
    name = "encoder.fusion_transformer.layers.0.linear2.weight"
    torch.save({key: value for key, value in weights.items() if key != name}, tmp_path / "a.pt")
    torch.save({key: value for key, value in weights.items() if key != "dec_us.pred.weight"}, tmp_path / "b.pt")
    (tmp_path / "c.yaml").write_text("kind: mae\nmodel: {encoder_dim: 32, num_fusion_layers: 1, decoder_dim: 8}\n")
    with pytest.raises(Exception, match="its encoder is not whole"):
        engine.inspect_ckpt(tmp_path / "a.pt", extract="encoder", output=tmp_path / "e.pt", config=tmp_path / "c.yaml")
    assert not (tmp_path / "e.pt").exists()
    engine.inspect_ckpt(tmp_path / "b.pt", extract="encoder", output=tmp_path / "f.pt", config=tmp_path / "c.yaml")


def test_damage_of_the_facts_in_safetensors_is_one_finding_with_its_place(
    families: dict[str, Path], tmp_path: Path
) -> None:
    """The facts are then no JSON, and nothing in the file says that it is ours but the checksums."""
    path = tmp_path / "weights.safetensors"
    store.save(path, store.load(families["regressor"]))
    content = path.read_bytes()
    at = content.index(rb"\"allow_overlap\":") + len(rb"\"allow_overlap\":")
    path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
    told = [(item.where, item.problem) for item in engine.inspect_ckpt(path).findings if item.severity.value == "error"]
    assert [where for where, _ in told] == ["meta", "digest"]
    assert told[0][1] == "meta is not what was saved: its checksum differs"


def test_compressed_bytes_that_do_not_end_are_found() -> None:
    """All that was written is there before the stream would end, so neither size nor checksum notices."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("archive/data.pkl", b"abc")
    sound = out.getvalue()
    (entry,) = Archive(memoryview(sound)).entries
    first, last = 8 * entry.start, 8 * (entry.start + entry.stored)
    silent = []
    for bit in range(first, last):
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        if not list(Archive(memoryview(flipped)).verify()):
            silent.append(bit)
    assert silent == list(range(last - 6, last)), "of the last byte six bits only fill it: nobody reads them"
    longer = Entry(entry.name, entry.start, entry.stored + 2, entry.size, entry.crc, entry.method)
    with pytest.raises(ValueError, match="end 2 before those of the entry"):
        Archive(memoryview(sound)).read(longer)
    assert not list(Archive(memoryview(sound)).verify())  # the control


@pytest.mark.parametrize("name", ["../x", "archive/../../x", "/etc/x", "..\\x", "../x/", "C:\\x", "c:/x"])
def test_an_entry_that_leaves_the_archive_is_told_so_and_not_by_its_times(
    name: str, families: dict[str, Path], inspected: Callable[..., Any], tmp_path: Path
) -> None:
    inspected(families["regressor"].read_bytes())
    with zipfile.ZipFile(tmp_path / "changed.pt", "a") as archive:
        archive.writestr(name, b"x")
    (found,) = engine.inspect_ckpt(tmp_path / "changed.pt").findings
    assert f"entry {name} would be unpacked outside of the archive's folder" in found.problem


def test_an_entry_that_another_program_added_is_one_finding(
    families: dict[str, Path], inspected: Callable[..., Any], tmp_path: Path
) -> None:
    inspected(families["regressor"].read_bytes())
    with zipfile.ZipFile(tmp_path / "changed.pt", "a") as archive:
        archive.writestr("archive/notes.txt", b"x")
    (found,) = engine.inspect_ckpt(tmp_path / "changed.pt").findings
    assert "archive/notes.txt alone has another" in found.problem
    assert found.problem.endswith(": another program added it")


def test_of_tensors_that_share_bytes_both_are_named(inspected: Callable[..., Any]) -> None:
    spans = {"a.weight": [0, 64], "b.weight": [64, 96], "c.weight": [32, 96]}
    shapes = {name: [(end - begin) // 4] for name, (begin, end) in spans.items()}
    rows = {name: {"dtype": "F32", "shape": shapes[name], "data_offsets": span} for name, span in spans.items()}
    header = json.dumps(rows)
    content = len(header).to_bytes(8, "little") + header.encode() + bytes(96)
    problems = [found.problem for found in inspected(content, "shared.safetensors").findings]
    assert "tensor c.weight overlaps tensor a.weight" in problems
    assert "tensor b.weight overlaps tensor c.weight" in problems
