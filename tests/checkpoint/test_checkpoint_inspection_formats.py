"""Every family is recognised, a stranger is named, and a sound file gives no finding that matters."""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import pickle
import shlex
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import safetensors.torch
import torch
from onnx import TensorProto, helper
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.checkpoint.inspection import families as families_of
from xectool.checkpoint.inspection.trust import trust_of
from xectool.engine.inspection import CheckpointInspected
from xectool.errors import CheckpointError

Inspect = Callable[..., CheckpointInspected]
EXPECTED = {
    "regressor": ("xectool", "torch-zip", "regressor"),
    "mae": ("xectool", "torch-zip", "mae"),
    "inpainter": ("xectool", "torch-zip", "inpainter"),
    "state dict": ("PyTorch", "torch-zip", "a state dict"),
    "ddp": ("PyTorch", "torch-zip", "a state dict"),
    "compiled": ("PyTorch", "torch-zip", "a state dict"),
    "legacy": ("PyTorch", "torch-legacy", "a state dict"),
    "lightning": ("Lightning 2.5.5", "torch-zip", "a LightningModule"),
    "timm": ("timm", "torch-zip", "timm vision transformer"),
    "safetensors": ("safetensors", "safetensors", "a state dict"),
    "timm safetensors": ("timm", "safetensors", "timm vision transformer"),
    "torchscript": ("TorchScript", "torchscript", "__torch__.torch.nn.modules.container.Sequential"),
    "onnx": ("ONNX, by pytorch", "onnx", "graph"),
}


@pytest.mark.parametrize("family", EXPECTED)
def test_a_sound_file_is_recognised_and_nothing_is_wrong_with_it(family: str, families: dict[str, Path]) -> None:
    result = engine.inspect_ckpt(families[family], tensors=True)
    origin, container, kind = EXPECTED[family]
    assert (result.format.startswith(origin), result.container, result.kind) == (True, container, kind)
    assert [found for found in result.findings if found.severity.value != "info"] == []
    assert not result.is_bad
    assert result.finite
    assert result.unsafe_globals == ()


OLDER = {
    "reg_small_checkpoint_best.pth.xz": ("regressor", 2, True, True, 493_742),
    "mae_small_checkpoint_best_stripped.pth": ("mae", 1, False, True, 608_204),
    "inp_small_xattn_checkpoint_best.pth.xz": ("inpainter", 0, True, False, 520_799),
    "inp_small_perface_checkpoint_best_stripped.pth": ("inpainter", 0, False, False, 1_438_507),
}


@pytest.mark.parametrize("name", OLDER)
def test_checkpoints_of_the_older_system_are_sound(name: str, reference_dir: Path) -> None:
    result = engine.inspect_ckpt(reference_dir / "checkpoints" / name)
    assert (result.kind, result.epoch, result.has_optimizer, result.has_ema, result.parameters) == OLDER[name]
    assert result.format == "older system"
    # An autoencoder of the older system does not store its threshold.
    assert [found.code for found in result.findings] == ["XT-CKPT-ASSUMED"] * (result.kind == "mae")
    fit = {item.action: item.possible for item in result.fit_for}
    assert fit == {"resume": False, "fine-tune": True, "predict": True, "export": True}


def test_a_bare_encoder_of_the_older_system_says_how_it_becomes_usable(reference_dir: Path, tmp_path: Path) -> None:
    stored = torch.load(reference_dir / "checkpoints" / "mae_small_checkpoint_best_stripped.pth", weights_only=True)
    weights = {
        f"module.{name.removeprefix('encoder.')}": value
        for name, value in stored["model_state_dict"].items()
        if name.startswith("encoder.")
    }
    torch.save(weights, tmp_path / "mae_encoder_epoch_1.pth")
    result = engine.inspect_ckpt(tmp_path / "mae_encoder_epoch_1.pth")
    assert (result.kind, result.prefixes, result.config) == ("encoder", ("module.",), None)
    possible = [item for item in result.fit_for if item.possible]
    assert [item.action for item in possible] == ["fine-tune"]
    assert "nothing checks that" in possible[0].why
    assert "checkpoint.init_from" in result.next


@pytest.mark.parametrize(("family", "prefix"), [("ddp", "module."), ("compiled", "_orig_mod.")])
def test_prefixes_of_wrappers_are_named(family: str, prefix: str, families: dict[str, Path]) -> None:
    assert engine.inspect_ckpt(families[family]).prefixes == (prefix,)


@pytest.mark.parametrize(
    ("wrap", "found"),
    [
        (lambda name: name.replace(".", "._orig_mod.", 1), ("_orig_mod.",)),
        (lambda name: "module." + name.replace(".", "._orig_mod.", 1), ("module.", "_orig_mod.")),
        (lambda name: "_fsdp_wrapped_module." + name, ("_fsdp_wrapped_module.",)),
    ],
)
def test_a_wrapper_inside_names_is_named_and_taken_away(
    wrap: Callable[[str], str], found: tuple[str, ...], families: dict[str, Path], reference_dir: Path, tmp_path: Path
) -> None:
    plain = torch.load(families["state dict"], weights_only=True)
    torch.save({wrap(name): value for name, value in plain.items()}, tmp_path / "part.pt")
    result = engine.inspect_ckpt(tmp_path / "part.pt", compare_with=families["state dict"])
    assert (result.prefixes, result.compared, result.findings) == (found, len(plain), ())
    stored = torch.load(reference_dir / "checkpoints" / "mae_small_checkpoint_best_stripped.pth", weights_only=True)
    weights = {wrap(name): value for name, value in stored["model_state_dict"].items()}
    torch.save({"model_state_dict": weights, "config": stored["config"], "epoch": 1}, tmp_path / "older.pth")
    older = engine.inspect_ckpt(tmp_path / "older.pth")
    assert (older.format, older.kind, older.prefixes) == ("older system", "mae", found)


@pytest.mark.parametrize(
    ("scheduler", "onward"),
    [
        ("constant", "bit for bit"),
        ("cosine", "from these weights, with the schedule of the longer run"),
        ("onecycle", "from these weights, with the schedule of the longer run"),
    ],
)
def test_a_schedule_that_ends_with_the_run_is_another_one_with_more_epochs(
    scheduler: str, onward: str, families: dict[str, Path], tmp_path: Path
) -> None:
    saved = store.load(families["mae"])
    config = saved.meta["config"]
    training = config["training"] | {"epochs": 1, "warmup_epochs": 0, "lr_scheduler": scheduler}
    meta = {**saved.meta, "config": config | {"training": training}}
    store.save(tmp_path / "last.pt", Checkpoint(meta, saved.model, saved.ema, saved.training))
    assert engine.inspect_ckpt(tmp_path / "last.pt").fit_for[0].why.endswith(f"with more of them it goes on {onward}")


def test_of_a_finished_run_nothing_is_left_to_train(families: dict[str, Path], tmp_path: Path) -> None:
    saved = store.load(families["mae"])
    meta = dict(saved.meta)
    training = meta["config"]["training"] | {"epochs": 1, "warmup_epochs": 0}
    meta["config"] = meta["config"] | {"training": training}
    store.save(tmp_path / "last.pt", Checkpoint(meta, saved.model, saved.ema, saved.training))
    result = engine.inspect_ckpt(tmp_path / "last.pt")
    assert result.fit_for[0].possible
    assert result.fit_for[0].why.startswith("but nothing is left to train: all 1 epochs are done")
    assert result.next == f"xectool train CONFIG --resume {tmp_path / 'last.pt'} --set training.epochs=2"
    (tmp_path / "c.yaml").write_text(json.dumps(meta["config"]))
    more = engine.inspect_ckpt(tmp_path / "last.pt", config=tmp_path / "c.yaml", overrides=["training.epochs=3"])
    assert more.fit_for[0].why.startswith("bit for bit from epoch 2")
    asked = f"xectool train {tmp_path / 'c.yaml'} --set training.epochs=3"
    assert more.next == f"{asked} --resume {tmp_path / 'last.pt'}"


def test_values_read_without_torch_load_are_those_torch_loads(families: dict[str, Path]) -> None:
    from xectool.checkpoint.inspection.reading import read

    for family in ("state dict", "legacy"):
        values = read(families[family]).values
        expected = torch.load(families[family], weights_only=True)
        assert all(torch.equal(values[name], expected[name]) for name in expected)


@pytest.mark.parametrize("legacy", [False, True])
def test_tensors_of_every_kind_are_read_as_torch_reads_them(legacy: bool, tmp_path: Path) -> None:
    from xectool.checkpoint.inspection.reading import read

    base = torch.arange(24.0)
    content = {
        "bf16": torch.randn(3, 4).bfloat16(), "half": torch.randn(2).half(), "transposed": base.view(4, 6).t(),
        "slice": base[5:17:3], "empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5), "bool": torch.tensor([True]),
        "complex": torch.randn(3, dtype=torch.complex64), "parameter": torch.nn.Parameter(torch.ones(2, 2)),
        "expanded": torch.ones(1).expand(5),
    }  # fmt: skip
    if not legacy:
        content |= {"f8": torch.ones(4).to(torch.float8_e5m2), "u16": torch.ones(4).to(torch.uint16)}
    path = tmp_path / "kinds.pt"
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    found = read(path)
    assert found.problems == []
    for name, value in content.items():
        assert found.values[name].dtype == value.dtype
        exact = (lambda v: v.double()) if name in ("f8", "u16") else (lambda v: v)
        assert torch.equal(exact(found.values[name]), exact(value))


def test_the_device_a_tensor_was_saved_from_is_told(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(3)}, buffer)
    content = bytearray(buffer.getvalue())
    path = tmp_path / "cuda.pt"
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(path, "w") as target:
        for info in source.infolist():
            data = source.read(info)
            target.writestr(info.filename, data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"))
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(path, weights_only=True)
    result = engine.inspect_ckpt(path, tensors=True)
    assert result.lineage["devices"] == ["cuda:0"]
    assert not result.is_bad


def test_an_unknown_element_type_is_named(inspected: Inspect) -> None:
    header = json.dumps({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    result = inspected(struct.pack("<Q", len(header)) + header + b"\0", "a.safetensors")
    assert result.is_bad
    assert "unknown dtype 'F4'" in result.findings[0].problem


def _zip(**entries: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return out.getvalue()


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("notes.txt")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    return out.getvalue()


STRANGERS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "text": (b"epoch loss\n1 0.5\n", "a text file"),
    "a user called root": (b"root@host: train.py\n", "a text file"),
    "json": (b'{"state_dict": []}', "a JSON file"),
    "html": (b"<!DOCTYPE html><html><body>Sign in</body></html>", "an HTML page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "git-LFS pointer"),
    "zip": (_zip(**{"readme.txt": b"hello"}), "a zip archive of something else"),
    "npz": (_zip(**{"a.npy": b"\x93NUMPY"}), "NumPy archive"),
    "docx": (_zip(**{"[Content_Types].xml": b"<x/>", "word/document.xml": b"<x/>"}), "office document"),
    "no description": (_zip(**{"archive/data/0": b"\0" * 8, "archive/version": b"3"}), "no data.pkl"),
    "tar": (_tar(), "tar archive of something else"),
    "zeros": (bytes(5000), "zero bytes"),
    "root": (b"root\x00\x00\xf2\xd0" + bytes(100), "ROOT file"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5"),
    "gzip": (b"\x1f\x8b\x08\x00" + bytes(64), "gzip"),
    "elf": (b"\x7fELF" + bytes(64), "program"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(64), "PNG"),
    "noise": (bytes(range(7, 250)) * 3, "does not start like a checkpoint"),
    "xz of text": (lzma.compress(b"hello, this is text\n"), "a text file"),
    "xz cut": (lzma.compress(bytes(range(256)) * 99)[:-20], "truncated"),
    "latin text": ("Größe: 5\n".encode("latin-1") * 3, "does not start like a checkpoint"),
}


@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.parametrize("suffix", [".pt", ".onnx", ".safetensors"])
def test_a_stranger_is_named(name: str, suffix: str, tmp_path: Path) -> None:
    """K01: what is no checkpoint."""
    content, expected = STRANGERS[name]
    path = tmp_path / f"model{suffix}"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r".") as caught:
        engine.inspect_ckpt(path)
    assert expected in caught.value.problem
    assert caught.value.fix
    assert "FILE" not in caught.value.fix


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    folder = tmp_path / "FILES"  # the word stands for the path in other fixes
    folder.mkdir()
    (folder / "checkpoint_best.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError) as caught:
        engine.inspect_ckpt(folder / "checkpoint_bst.pt")
    assert caught.value.fix == f"{folder}/checkpoint_best.pt"
    with pytest.raises(CheckpointError) as caught:
        engine.inspect_ckpt(folder)
    assert caught.value.fix == f"{folder}/checkpoint_best.pt"


def test_bombs_take_neither_memory_nor_time(tmp_path: Path) -> None:
    began = time.process_time()
    bomb = _zip(**{"archive/data.pkl": pickle.dumps({}), "archive/data/0": bytes(200 << 20)})
    header = struct.pack("<Q", 1 << 40) + b'{"a":'
    huge = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    files = {"bomb.pt": bomb, "length.safetensors": header, "huge.safetensors": struct.pack("<Q", len(huge)) + huge}
    files["xz.pt"] = lzma.compress(bytes(200 << 20), preset=0)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with contextlib.suppress(CheckpointError):
            assert engine.inspect_ckpt(tmp_path / name).is_bad
    assert time.process_time() - began < 40


def test_a_graph_with_weights_beside_it_is_followed_and_its_absence_found(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [64], torch.randn(64).numpy().tobytes(), raw=True)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", ports[:1], ports[1:], [weight]))
    path = tmp_path / "big.onnx"
    onnx.save(model, path, save_as_external_data=True, location="big.onnx.data", size_threshold=0)
    result = engine.inspect_ckpt(path)
    assert (result.parameters, result.facts["external_data"], result.is_bad) == (64, ["big.onnx.data"], False)
    (tmp_path / "big.onnx.data").write_bytes(bytes(10))
    assert "truncated" in engine.inspect_ckpt(path).findings[0].problem
    (tmp_path / "big.onnx.data").unlink()
    assert "missing: big.onnx.data" in engine.inspect_ckpt(path).findings[0].problem


def test_a_graph_that_points_outside_its_folder_is_refused(tmp_path: Path) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="../../etc/passwd")
    ports = [helper.make_tensor_value_info("w", TensorProto.FLOAT, [4])]
    model = helper.make_model(helper.make_graph([], "g", [], ports, [weight]))
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    assert "outside its folder" in engine.inspect_ckpt(tmp_path / "a.onnx").findings[0].problem


@pytest.mark.parametrize(("key", "value"), [("location", "a\0b"), ("location", "a" * 5000), ("offset", "9" * 5000)])
def test_weights_said_to_lie_where_no_file_can_be_are_told(key: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(bytes(16))
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for name, told in ({"location": "w.data"} | {key: value}).items():
        weight.external_data.add(key=name, value=told)
    ports = [helper.make_tensor_value_info("w", TensorProto.FLOAT, [4])]
    model = helper.make_model(helper.make_graph([], "g", [], ports, [weight]))
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    assert any(found.code == "K02" for found in engine.inspect_ckpt(tmp_path / "a.onnx").findings)


def test_numbers_without_end_are_not_written_out(inspected: Inspect) -> None:
    """Python refuses to write 5000 digits, and to make a float of 400."""
    endless = 10**5000
    with pytest.raises(ValueError, match="digits"):
        str(endless)
    buffer = io.BytesIO()
    optimizer = {"state": {0: {"step": endless}}, "param_groups": [{"params": [0], "lr": 10**400}]}
    torch.save({"model": {"w": torch.ones(2)}, "optimizer": optimizer, endless: torch.ones(1)}, buffer)
    assert inspected(buffer.getvalue()).parameters == 2


def test_whole_numbers_beyond_a_float_are_told_apart(tmp_path: Path) -> None:
    for name, value in (("a.pt", 2**53), ("b.pt", 2**53 + 1)):
        torch.save({"w": torch.tensor([value, 3])}, tmp_path / name)
    assert float(2**53) == float(2**53 + 1)
    result = engine.inspect_ckpt(tmp_path / "a.pt", compare_with=tmp_path / "b.pt")
    assert [(item.status, item.num_different) for item in result.differences] == [("values", 1)]


def test_weights_without_checksums_say_so(families: dict[str, Path], inspected: Inspect) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        buffer = io.BytesIO()
        torch.save(torch.load(families["state dict"], weights_only=True), buffer)
    finally:
        torch.serialization.set_crc32_options(True)
    result = inspected(buffer.getvalue())
    assert (result.checksums, result.is_bad) == ("", False)
    name = shlex.quote(result.path)  # the line works from any directory
    assert result.findings[0].fix == f"sha256sum {name} > {name}.sha256"


def test_the_oldest_tar_layout_is_read(tmp_path: Path) -> None:
    values = torch.arange(6.0)
    storage = pickle.dumps(1, 2) + pickle.dumps(("7", "cpu", torch.FloatStorage), 2) + struct.pack("<q", 6)
    tensors = pickle.dumps(1, 2) + pickle.dumps(("3", "7", torch.FloatTensor), 2)
    tensors += struct.pack("<ii", 2, 0) + struct.pack("<5q", 2, 3, 3, 1, 0)
    parts = {
        "sys_info": pickle.dumps({"little_endian": True}, 2),
        "pickle": b"\x80\x02}X\x01\x00\x00\x00aX\x01\x00\x00\x003Qs.",
    }
    parts |= {"storages": storage + values.numpy().tobytes(), "tensors": tensors}
    path = tmp_path / "old.pth"
    with tarfile.open(path, "w") as archive:
        for name, content in parts.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    result = engine.inspect_ckpt(path, tensors=True)
    assert (result.container, result.is_bad, result.tensors[0].shape) == ("torch-tar", False, (2, 3))
    assert (result.tensors[0].minimum, result.tensors[0].maximum) == (0.0, 5.0)


def test_all_that_torch_calls_safe_is_safe_here() -> None:
    from torch._weights_only_unpickler import _get_allowed_globals
    from xectool.checkpoint.inspection.symbols import Global

    for name in _get_allowed_globals():
        module, _, attribute = str(name).rpartition(".")
        assert trust_of(Global(module, attribute, 0)).value == "safe", name


def test_facts_of_the_run_are_told(families: dict[str, Path]) -> None:
    """K19, K20 and K21: versions, where the weights come from, and what the file is complete for."""
    result = engine.inspect_ckpt(families["regressor"])
    assert result.lineage["versions"] == {"torch": str(torch.__version__)}
    assert (result.epoch, result.step, result.has_optimizer, result.has_ema) == (2, 1, True, True)
    assert result.tasks == {"energy": "gaussian_nll", "uvwFI": "smooth_l1"}
    assert result.bit_exact_resume
    assert result.lineage["ema_distance"] == pytest.approx(0.01, rel=0.01)
    assert result.lineage["train_files"] == [{"name": "train.root", "events": 24, "entries": 24}]
    assert {part.name for part in result.sections} == {"model", "ema", "training"}
    assert [item.possible for item in result.fit_for] == [True] * 4


def test_a_safetensors_file_of_another_program_has_metadata(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors", {"note": "hello"})
    result: Any = engine.inspect_ckpt(tmp_path / "a.safetensors")
    assert result.facts["metadata"] == {"note": "hello"}


def test_a_mask_of_infinities_is_sound_and_a_weight_of_infinities_is_not(tmp_path: Path) -> None:
    mask = torch.full((3, 3), -torch.inf).triu(1)
    torch.save({"attn.weight": torch.ones(2, 2), "attn.attn_mask": mask}, tmp_path / "mask.pt")
    torch.save({"attn.weight": mask, "attn.attn_mask": mask}, tmp_path / "weight.pt")
    assert engine.inspect_ckpt(tmp_path / "mask.pt").finite
    assert engine.inspect_ckpt(tmp_path / "weight.pt").is_bad


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (("conv1.0.weight", "conv1.6.weight", "layer1.0.conv1.weight"), "timm ResNet with a deep stem"),
        (("stem.conv1.weight", "stages.0.blocks.0.attn_grid.attn.qkv.weight"), "timm MaxViT"),
        (("conv1.weight", "layer1.0.conv1.weight"), "torchvision or timm ResNet"),
        (("stem.conv1.weight", "stages.0.0.conv1.weight"), "timm NFNet"),
        (("conv1.0.weight", "fc.weight"), None),
    ],
)
def test_families_are_known_by_their_names(names: tuple[str, ...], known: str | None) -> None:
    assert families_of.family(dict.fromkeys(f"model.{name}" for name in names)) == known


def test_of_an_averaging_lightning_run_both_sets_of_weights_are_seen(families: dict[str, Path], tmp_path: Path) -> None:
    payload = torch.load(families["lightning"], weights_only=True)
    payload["current_model_state"] = {name: value + 1 for name, value in payload["state_dict"].items()}
    payload["averaging_state"] = {"n_averaged": torch.tensor(3)}
    torch.save(payload, tmp_path / "averaged.ckpt")
    assert not engine.inspect_ckpt(families["lightning"]).has_ema  # the control
    result = engine.inspect_ckpt(tmp_path / "averaged.ckpt")
    assert (result.has_ema, result.kind) == (True, "a LightningModule")
    assert [found for found in result.findings if found.severity.value != "info"] == []
