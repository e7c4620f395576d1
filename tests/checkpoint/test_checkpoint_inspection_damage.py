"""Damage of every sort, in files of every family, is found and located; sound files stay sound."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import struct
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xectool import engine
from xectool.checkpoint import format, store
from xectool.checkpoint.format import Checkpoint
from xectool.engine.inspection import CheckpointInspected
from xectool.errors import CheckpointError
from xectool.findings import Finding, Severity

Inspect = Callable[..., CheckpointInspected]
ARCHIVES = ("regressor", "mae", "inpainter", "state dict", "ddp", "lightning", "timm", "torchscript")
SMALL = ("state dict", "legacy", "lightning", "torchscript", "safetensors", "onnx", "timm")


def entries(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def zipped(parts: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return out.getvalue()


def largest(parts: Mapping[str, bytes]) -> str:
    return max((name for name in parts if "/data/" in name), key=lambda name: len(parts[name]))


def flipped(content: bytes) -> bytes:
    """Flip the highest exponent bit of a value in the largest tensor: torch loads it without a word."""
    parts = entries(content)
    name = largest(parts)
    at = content.index(parts[name][:64]) + 31
    return content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :]


def renamed(content: bytes, old: str, new: str | None) -> bytes:
    parts = entries(content)
    key = next(name for name in parts if name.endswith(old))
    found = parts.pop(key)
    return zipped(parts if new is None else parts | {key.removesuffix(old) + new: found})


def resized(content: bytes, change: int) -> bytes:
    parts = entries(content)
    name = largest(parts)
    parts[name] = parts[name][:change] if change < 0 else parts[name] + bytes(change)
    return zipped(parts)


def swapped(content: bytes) -> bytes:
    """Give two tensors of different size each other's bytes; every checksum is right."""
    parts = entries(content)
    names = sorted((n for n in parts if n.rsplit("/", 1)[-1].isdigit() and "/data/" in n), key=lambda n: len(parts[n]))
    parts[names[0]], parts[names[-1]] = parts[names[-1]], parts[names[0]]
    return zipped(parts)


def cut_description(content: bytes) -> bytes:
    parts = entries(content)
    name = next(name for name in parts if name.endswith("data.pkl"))
    parts[name] = parts[name][: len(parts[name]) // 2]
    return zipped(parts)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "bit flip in a tensor": flipped,
    "tensor removed": lambda content: renamed(content, "/data/0", None),
    "description removed": lambda content: renamed(content, "/data.pkl", None),
    "tensor renamed": lambda content: renamed(content, "/data/0", "/data/77777"),
    "tensor shortened": lambda content: resized(content, -4),
    "tensor lengthened": lambda content: resized(content, 8),
    "tensors swapped": swapped,
    "description cut": cut_description,
    "end cut": lambda content: content[:-30],
    "half cut": lambda content: content[: len(content) // 2],
    "start cut": lambda content: content[10:],
    "bytes before": lambda content: b"\0" * 16 + content,
    "bytes after": lambda content: content + b"\0" * 16,
    "zeros in the middle": lambda content: content[:9000] + bytes(512) + content[9512:] if len(content) > 12_000
    else content[:1500] + bytes(600) + content[2100:],
}  # fmt: skip


def first_error(inspect: Callable[[], CheckpointInspected]) -> Finding:
    """What is wrong first: of a file that could be read, or the reason why it could not."""
    try:
        result = inspect()
    except CheckpointError as error:
        return Finding(error.code, Severity.ERROR, error.problem, error.where, fix=error.fix)
    assert result.is_bad
    return next(found for found in result.findings if found.severity is Severity.ERROR)


@pytest.mark.parametrize("family", ARCHIVES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_an_archive_is_found_and_located(
    family: str, damage: str, families: dict[str, Path], inspected: Inspect
) -> None:
    first = first_error(lambda: inspected(DAMAGE[damage](families[family].read_bytes())))
    assert first.code in ("K02", "K07", "K08", "XT-CKPT-CORRUPT")
    assert first.where
    assert first.fix


def test_the_damaged_tensor_is_named_with_its_bytes(families: dict[str, Path], inspected: Inspect) -> None:
    content = families["regressor"].read_bytes()
    name = largest(entries(content))
    problem = inspected(flipped(content)).findings[0]
    assert f"CRC mismatch in {name}" in problem.problem
    begin, end = (int(word) for word in problem.where.split("bytes ")[1].split(" to "))
    assert begin <= content.index(entries(content)[name][:64]) + 31 < end


def test_torch_alone_loads_the_flipped_bit(families: dict[str, Path]) -> None:
    """The control: without the checksum the damage is silent."""
    content = families["state dict"].read_bytes()
    sound = torch.load(io.BytesIO(content), weights_only=True)
    loaded = torch.load(io.BytesIO(flipped(content)), weights_only=True)
    assert any(not torch.equal(sound[name], loaded[name]) for name in sound)


@pytest.mark.parametrize("family", SMALL)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_at_any_byte_is_found(
    family: str, share: float, families: dict[str, Path], inspected: Inspect
) -> None:
    content = families[family].read_bytes()
    with contextlib.suppress(CheckpointError):
        assert inspected(content[: int(share * len(content))], f"cut{families[family].suffix}").is_bad


# Always the same examples: of 8000 flips some six are of bits that no reader reads, such as the version of the writer
# in the last record or what fills up the last byte of a compressed entry, and nothing tells those.
@pytest.mark.parametrize("family", ["state dict", "lightning", "torchscript"])
@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_of_an_archive_with_checksums_is_found(
    family: str, share: float, bit: int, families: dict[str, Path], inspected: Inspect
) -> None:
    content = bytearray(families[family].read_bytes())
    content[int(share * len(content))] ^= 1 << bit
    with contextlib.suppress(CheckpointError):
        assert inspected(bytes(content)).is_bad


@pytest.mark.parametrize("family", SMALL)
def test_no_random_damage_ends_in_a_traceback(family: str, families: dict[str, Path], inspected: Inspect) -> None:
    draw = random.Random(family)
    content = families[family].read_bytes()
    for _ in range(60):
        changed = bytearray(content)
        for _ in range(draw.choice([1, 1, 8, 60])):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        with contextlib.suppress(CheckpointError):
            assert inspected(bytes(changed), f"changed{families[family].suffix}").sha256


def small(**changes: Any) -> Checkpoint:
    """A checkpoint of ours that can be made wrong in one place."""
    weights = {"a.weight": torch.linspace(-0.1, 0.1, 60).reshape(6, 10), "a.bias": torch.linspace(-0.1, 0.1, 6)}
    moments = {name: torch.full_like(value, 1e-4) for name, value in weights.items()}
    state = {
        index: {"step": torch.tensor(4.0), "exp_avg": value, "exp_avg_sq": value.clone()}
        for index, value in enumerate(moments.values())
    }
    parts: dict[str, Any] = {
        "meta": {"kind": "encoder", "config": {}, "epoch": 1, "step": 4},
        "model": weights,
        "ema": {name: value * 1.001 for name, value in weights.items()},
        "training": {"optimizer": {"state": state, "param_groups": [{"params": [0, 1], "lr": 1e-3}]}},
    }
    for key, value in changes.items():
        place = parts
        *path, last = key.split("__")
        for part in path:
            place = place[int(part) if part.isdigit() else part]
        place[int(last) if last.isdigit() else last] = value
    return Checkpoint(**parts)


def _with(value: float, index: tuple[int, int] = (2, 3)) -> torch.Tensor:
    weights = torch.linspace(-0.1, 0.1, 60).reshape(6, 10).clone()
    weights[index] = value
    return weights


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "NaN": ({"model": {"a.weight": _with(float("nan"))}}, "K08", "the first is nan at [2, 3]"),
    "infinity": ({"model": {"a.weight": _with(float("inf"))}}, "K08", "the first is inf at [2, 3]"),
    "damaged value": ({"model": {"a.weight": _with(3e35)}}, "K08", "model.a.weight[2, 3] is 3e+35"),
    "average of another shape": ({"ema__a.bias": torch.ones(7)}, "K09", "a.bias"),
    "average lacks a weight": ({"ema": {"a.bias": torch.ones(6)}}, "K09", "a.weight"),
    "moment of another shape": (
        {"training__optimizer__state__1__exp_avg": torch.ones(9),
         "training__optimizer__state__1__exp_avg_sq": torch.ones(9)}, "K10", "no weight has the shape [9]",
    ),
    "moments disagree": ({"training__optimizer__state__1__exp_avg": torch.ones(5)}, "K10", "different shapes"),
    "negative mean of squares": (
        {"training__optimizer__state__1__exp_avg_sq": torch.tensor([1.0, -1, 1, 1, 1, 1])}, "K10", "negative",
    ),
    "moment not finite": (
        {"training__optimizer__state__0__exp_avg": torch.full((6, 10), float("nan"))}, "K08", "60 of 60",
    ),
    "state of nobody": ({"training__optimizer__param_groups__0__params": [0]}, "K10", "belong to no listed parameter"),
    "parameter twice": ({"training__optimizer__param_groups__0__params": [0, 1, 1]}, "K10", "in two groups"),
    "negative rate": ({"training__optimizer__param_groups__0__lr": -1.0}, "K10", "learning rate"),
    "step not finite": ({"training__optimizer__state__0__step": torch.tensor(float("nan"))}, "K10", "step counter"),
    "no states": ({"training__optimizer": {"lr": 1}}, "K10", "lacks param_groups and state"),
    "negative epoch": ({"meta__epoch": -3}, "K14", "epoch is -3"),
    "progress disagrees": ({"meta__progress": {"epoch": 1, "step": 9}}, "K14", "its progress says 9"),
    "no weights": ({"model": {}, "ema": {}}, "K05", "no weights"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_content_is_found_although_every_checksum_is_right(name: str, tmp_path: Path) -> None:
    changes, code, words = WRONG[name]
    store.save(tmp_path / "a.pt", small(**changes))
    result = engine.inspect_ckpt(tmp_path / "a.pt")
    assert result.is_bad
    assert any(found.code == code and words in found.problem for found in result.findings), result.findings


def test_the_same_content_without_the_fault_is_sound(tmp_path: Path) -> None:
    store.save(tmp_path / "a.pt", small())
    result = engine.inspect_ckpt(tmp_path / "a.pt")
    assert (result.is_bad, result.findings) == (False, ())


def test_content_changed_and_written_again_is_found_by_the_digest(tmp_path: Path) -> None:
    payload = format.pack(small())
    payload["model"] = dict(payload["model"]) | {"a.bias": torch.full((6,), 0.05)}
    torch.save(payload, tmp_path / "a.pt")
    found = engine.inspect_ckpt(tmp_path / "a.pt").findings
    assert [item.code for item in found] == ["K02", "K02"]
    assert "model.a.bias is not what was saved" in found[0].problem
    assert found[0].where.startswith("a/data/")
    assert "changed before the file was written" in found[1].problem


def test_a_newer_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    torch.save(format.pack(small()) | {"version": 99}, tmp_path / "a.pt")
    found = engine.inspect_ckpt(tmp_path / "a.pt").findings
    assert (found[0].code, found[0].fix) == ("K15", "pip install --upgrade xectool")


@pytest.mark.parametrize("key", ["optimizer", "rng", "scaler", "task"])
def test_what_a_bit_exact_resume_lacks_is_named(key: str, families: dict[str, Path], tmp_path: Path) -> None:
    """K21, completeness: what is missing for a resume."""
    whole = store.load(families["regressor"])
    training = {name: value for name, value in whole.training.items() if name != key}
    store.save(tmp_path / "a.pt", Checkpoint(whole.meta, whole.model, whole.ema, training))
    result = engine.inspect_ckpt(tmp_path / "a.pt")
    assert not result.bit_exact_resume
    assert key in result.bit_exact_missing[0]
    assert not result.fit_for[0].possible


def test_weights_of_another_size_than_the_stored_configuration_are_found(
    families: dict[str, Path], tmp_path: Path
) -> None:
    whole = store.load(families["regressor"])
    config = whole.config | {"model": whole.config["model"] | {"hidden_dim": 16}}
    store.save(tmp_path / "a.pt", Checkpoint(whole.meta | {"config": config}, whole.model, whole.ema, whole.training))
    found = engine.inspect_ckpt(tmp_path / "a.pt").findings
    assert found[0].code == "K15"
    assert "heads.angle.0.weight is [8, 192], the configuration gives [16, 192]" in found[0].problem


def test_a_head_as_wide_as_another_loss_is_found(families: dict[str, Path], tmp_path: Path) -> None:
    whole = store.load(families["regressor"])
    weights = dict(whole.model) | {"heads.energy.6.weight": torch.zeros(1, 8) + torch.arange(8.0)}
    store.save(tmp_path / "a.pt", Checkpoint(whole.meta, weights, {}, {}))
    assert "K17" in {found.code for found in engine.inspect_ckpt(tmp_path / "a.pt").findings}


def test_a_digest_file_beside_the_checkpoint_is_held_against_it(families: dict[str, Path], tmp_path: Path) -> None:
    content = families["safetensors"].read_bytes()
    path, side = tmp_path / "a.safetensors", tmp_path / "a.safetensors.sha256"
    path.write_bytes(content)
    side.write_text(f"{hashlib.sha256(content).hexdigest()}  a.safetensors\n")
    assert engine.inspect_ckpt(path).findings == ()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    found = engine.inspect_ckpt(path).findings[0]
    assert (found.code, found.where) == ("K02", "a.safetensors.sha256")
    side.write_text(f"{'0' * 64}  xa.safetensors\n{hashlib.sha256(path.read_bytes()).hexdigest()} *out/a.safetensors\n")
    assert "SHA-256" not in str(engine.inspect_ckpt(path).findings), "of a list the line that names the file counts"


@pytest.mark.parametrize("text", ["", "not a hash\n", f"{'0' * 64}  b.pt\n{'1' * 64}  c.pt\n", None])
def test_a_digest_file_that_holds_no_digest_is_told(
    text: str | None, families: dict[str, Path], tmp_path: Path
) -> None:
    path, side = tmp_path / "a.pt", tmp_path / "a.pt.sha256"
    path.write_bytes(families["regressor"].read_bytes())
    assert engine.inspect_ckpt(path).findings == ()
    side.mkdir() if text is None else side.write_text(text)
    result = engine.inspect_ckpt(path)
    assert [(found.code, found.severity.value, found.where) for found in result.findings] == [
        ("K02", "warning", "a.pt.sha256")
    ]
    assert not result.is_bad


def _safetensors(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "shape": lambda header: header["0.weight"].update(shape=[9, 9]),
    "beyond the end": lambda header: header["0.weight"].update(data_offsets=[0, 1 << 50], shape=[1 << 48]),
    "overlap": lambda header: header["0.weight"].update(data_offsets=[4, 132]),
    "gap": lambda header: header.pop("0.weight"),
    "negative": lambda header: header["0.weight"].update(data_offsets=[-8, 120]),
    "backwards": lambda header: header["0.weight"].update(data_offsets=[128, 0]),
    "no dtype": lambda header: header["0.weight"].pop("dtype"),
    "axes without end": lambda header: header["0.weight"].update(shape=[1] * 200_000),
    "text for numbers": lambda header: header["0.weight"].update(shape=["a"]),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_found(lie: str, families: dict[str, Path], inspected: Inspect) -> None:
    result = inspected(_safetensors(families["safetensors"].read_bytes(), LIES[lie]), "lie.safetensors")
    assert result.is_bad
    assert any(found.code == "K02" and found.where for found in result.findings)


def test_one_name_twice_among_many_is_found_at_once(inspected: Inspect) -> None:
    """Counting each of 60 000 names by walking through all of them would take minutes."""
    entry = '{"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}'
    names = [*(f"w{number}" for number in range(60_000)), "w59999"]
    text = ("{" + ", ".join(f'"{name}": {entry}' for name in names) + "}").encode()
    began = time.process_time()
    with pytest.raises(CheckpointError, match="'w59999' is there twice"):
        inspected(struct.pack("<Q", len(text)) + text, "twice.safetensors")
    assert time.process_time() - began < 40


@pytest.mark.parametrize("family", ["safetensors", "legacy", "onnx"])
def test_a_flipped_exponent_is_found_where_nothing_protects_the_bytes(
    family: str, families: dict[str, Path], inspected: Inspect
) -> None:
    content = families[family].read_bytes()
    weight = torch.load(families["state dict"], weights_only=True)["3.weight"]
    at = content.index(weight.numpy().tobytes()) + 4 * 5 + 3
    changed = content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :]
    result = inspected(changed, f"changed{families[family].suffix}")
    assert result.is_bad
    assert any(found.code == "K08" and "[0, 5]" in found.problem for found in result.findings)


QUIRKS: dict[str, tuple[dict[str, Any], str, str]] = {
    "schedule past its end": (
        {"state_dict": {"a": torch.ones(3)}, "epoch": 9, "lr_schedulers": [{"last_epoch": 9, "T_max": 5}]},
        "K11", "the rate rises again",
    ),
    "half wrapped": ({"module.a": torch.ones(3), "b": torch.ones(2)}, "K06", "1 of 2 names start with 'module.'"),
    "constant matrix": ({"a.weight": torch.zeros(3, 4), "b": torch.ones(2)}, "K08", "1 weight matrices hold one"),
    "unusual value": ({"a.weight": torch.tensor([[1.0, 2, 3, 5000]])}, "K08", "[0, 3] is 5000"),
}  # fmt: skip


@pytest.mark.parametrize("name", QUIRKS)
def test_what_is_only_odd_is_told_and_not_called_bad(name: str, inspected: Inspect) -> None:
    payload, code, words = QUIRKS[name]
    buffer = io.BytesIO()
    torch.save(payload, buffer, _use_new_zipfile_serialization=False)
    result = inspected(buffer.getvalue())
    assert not result.is_bad
    assert any(found.code == code and words in found.problem for found in result.findings), result.findings


@pytest.mark.parametrize(("spoilt", "predict"), [("model", True), ("ema", True), ("both", False)])
def test_weights_that_are_not_used_do_not_keep_from_predicting(
    families: dict[str, Path], tmp_path: Path, spoilt: str, predict: bool
) -> None:
    whole = store.load(families["regressor"])
    for role, weights in (("model", whole.model), ("ema", whole.ema)):
        if spoilt in (role, "both"):
            weights["backbone.pos_embed"].fill_(float("nan"))
    store.save(tmp_path / "a.pt", Checkpoint(whole.meta, whole.model, whole.ema, whole.training))
    found = engine.inspect_ckpt(tmp_path / "a.pt")
    fit = {item.action: item for item in found.fit_for}
    assert found.is_bad
    assert (fit["predict"].possible, fit["resume"].possible, fit["export"].possible) == (predict, False, False)
    assert ("--weights model" in fit["predict"].why) is (spoilt == "ema")


def test_a_metric_that_is_not_finite_is_told_with_its_epoch(families: dict[str, Path], tmp_path: Path) -> None:
    whole = store.load(families["regressor"])
    progress = whole.meta["progress"] | {"history": [{"val/loss": 0.4}, {"val/loss": float("nan"), "lr": 1.0}]}
    store.save(
        tmp_path / "a.pt", Checkpoint(whole.meta | {"progress": progress}, whole.model, whole.ema, whole.training)
    )
    found = engine.inspect_ckpt(tmp_path / "a.pt").findings
    assert [(item.code, item.problem) for item in found] == [("K14", "epoch 2: val/loss not finite")]


@pytest.mark.parametrize(("optimizer", "codes"), [({}, []), ({"lr": 1}, []), ({"state": {}, "lr": 1}, ["K10"])])
def test_an_optimizer_that_is_not_ours_is_not_cured_by_our_training(
    optimizer: dict[str, Any], codes: list[str], tmp_path: Path
) -> None:
    torch.save({"state_dict": {"blocks.0.weight": torch.ones(4)}, "optimizer": optimizer}, tmp_path / "a.pt")
    found = [item for item in engine.inspect_ckpt(tmp_path / "a.pt").findings if item.severity is Severity.ERROR]
    assert [item.code for item in found] == codes
    assert not any("init_from" in item.fix for item in found)
