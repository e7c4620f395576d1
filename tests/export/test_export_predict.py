"""Exported files predict what their checkpoint does: the same branches, the same numbers, the same metrics."""

from __future__ import annotations

import copy
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uproot
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.inspection.archive_digest import DIGESTS_FILE, PROMISE
from xectool.errors import CheckpointError, DeviceError, UsageError, UserError
from xectool.export import pt2
from xectool.export.description import EXTRA_FILE
from xectool.export.formats import FORMATS
from xectool.export.torch_runtime import described


def same_predictions(sample: Any, events: Path, folder: Path, close: float = 1e-5) -> Any:
    """Predict with checkpoint and export, compare all branches and metrics, and return the latter's result."""
    ours = engine.predict(sample.checkpoint, [str(events)], output=folder / "ours.root", batch_size=8)
    theirs = engine.predict(sample.path, [str(events)], output=folder / "theirs.root", batch_size=8)
    with uproot.open(f"{folder}/ours.root:tree") as first, uproot.open(f"{folder}/theirs.root:tree") as second:
        assert first.keys() == second.keys()
        for branch in first.keys():  # noqa: SIM118 - no mapping
            a, b = first[branch].array(library="np"), second[branch].array(library="np")
            np.testing.assert_allclose(b, a, rtol=close, atol=close * np.abs(a[np.abs(a) < 1e9]).max(), err_msg=branch)
    assert ours.engine == "eager"
    assert ours.metrics.keys() == theirs.metrics.keys()
    for name, value in ours.metrics.items():
        assert theirs.metrics[name] == pytest.approx(value, rel=1e-3, nan_ok=True), name
    return theirs


def test_torchscript_regressor_predicts_as_its_checkpoint(script_regressor: Any, events: Path, tmp_path: Path) -> None:
    found = same_predictions(script_regressor, events, tmp_path)
    assert (found.events, found.engine) == (20, "torchscript")
    assert "val/energy/loss" in found.metrics


def test_onnx_regressor_predicts_as_its_checkpoint(onnx_regressor: Any, events: Path, tmp_path: Path) -> None:
    found = same_predictions(onnx_regressor, events, tmp_path)
    assert (found.events, found.engine) == (20, "onnx")
    assert "run by CPUExecutionProvider" in found.engine_reason


def test_torchscript_inpainter_predicts_the_same_sensors(script_inpainter: Any, events: Path, tmp_path: Path) -> None:
    few = [str(events)]
    ours = engine.predict(script_inpainter.checkpoint, few, output=tmp_path / "a.root", max_events=4)
    theirs = engine.predict(script_inpainter.path, few, output=tmp_path / "b.root", max_events=4)
    with uproot.open(f"{tmp_path}/a.root:tree") as first, uproot.open(f"{tmp_path}/b.root:tree") as second:
        for branch in ("sensor", "mask_type", "truth_npho"):
            assert (first[branch].array(library="np") == second[branch].array(library="np")).all()
        a, b = (tree["pred_npho"].array(library="np") for tree in (first, second))
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=0.05)
    assert theirs.metrics["mae_npho"] == pytest.approx(ours.metrics["mae_npho"], rel=1e-3)


def test_safetensors_export_predicts_as_the_averaged_weights(
    make_checkpoint: Any, events: Path, tmp_path: Path
) -> None:
    source = make_checkpoint("regressor")
    result = engine.export(source, to="safetensors", output=tmp_path / "w.safetensors")
    assert result.weights == "ema"
    assert all(value == 0 for value in result.max_abs_diff.values())
    ours = engine.predict(source, [str(events)], output=tmp_path / "a.root")
    theirs = engine.predict(result.path, [str(events)], output=tmp_path / "b.root")
    assert theirs.metrics == ours.metrics


def test_chosen_weights_are_those_exported(make_checkpoint: Any, tmp_path: Path) -> None:
    source = make_checkpoint("regressor")
    sound = store.load(source)
    for which in ("model", "ema"):
        path = tmp_path / f"{which}.safetensors"
        assert engine.export(source, to="safetensors", output=path, weights=which).weights == which
        exported = store.load(path).model["heads.energy.6.bias"]
        assert torch.equal(exported, sound.weights(which)["heads.energy.6.bias"])


@pytest.mark.parametrize(
    ("to", "task", "ports"),
    [("torchscript", "energy", ["energy", "sigma_energy"]), ("safetensors", "timing", ["timing"])],
)
def test_chosen_tasks_are_the_only_ones_predicted(
    make_checkpoint: Any, events: Path, tmp_path: Path, to: str, task: str, ports: list[str]
) -> None:
    """A task left out had a width to predict, which the file's configuration does not build: a traceback."""
    source = make_checkpoint("regressor")
    path = tmp_path / f"one.{to}"
    result = engine.export(source, to=to, output=path, tasks=[task])
    assert [port.name for port in result.outputs] == ports
    predicted = engine.predict(path, [str(events)], output=tmp_path / "p.root")
    assert f"{task}_res_68pct" in predicted.metrics
    with uproot.open(f"{tmp_path}/p.root:tree") as tree:
        assert {name for name in tree.keys() if name.startswith("pred")} == {f"pred_{task}"}  # noqa: SIM118


def test_weights_of_another_shape_than_the_file_says_are_refused(make_checkpoint: Any, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    engine.export(make_checkpoint("regressor"), to="safetensors", output=path)
    stored = store.load(path)
    stored.model["heads.energy.6.bias"] = torch.zeros(1)
    store.save(path, stored)
    with pytest.raises(CheckpointError, match=r"do not fit the configuration in the file: heads\.energy\.6\.bias"):
        FORMATS["safetensors"].open(path)


def test_verified_on_files_too_and_measured_in_the_resolution_of_the_run(
    make_checkpoint: Any, events: Path, tmp_path: Path
) -> None:
    result = engine.export(
        make_checkpoint("regressor"), to="torchscript", output=tmp_path / "a.pt", verify_on=[str(events)]
    )
    assert result.verified_events == 20
    assert result.batch_sizes == (1, 2, 7, 20)
    assert str(events) in result.verified_on
    assert {item.output: item.limit for item in result.agreement}["energy"] == 1e-3
    assert "0.001 GeV: resolution (energy_res_68pct)" in result.agreement[1].yardstick


def test_torchscript_that_is_not_ours_or_damaged_is_refused(
    script_regressor: Any, events: Path, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign.pt"
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)).save(str(foreign))
        torch.jit.load(str(_flipped(script_regressor.path, tmp_path)))  # the control: PyTorch says nothing
    with pytest.raises(CheckpointError, match="xectool did not export this file") as caught:
        engine.predict(foreign, [str(events)], output=tmp_path / "p.root")
    assert caught.value.code == "X-15"
    tampered = tmp_path / "tampered.pt"
    _rewrite(script_regressor.path, tampered, lambda stored: {k: v for k, v in stored.items() if "config" not in k})
    with pytest.raises(CheckpointError, match=r"lacks xectool\.config"):
        engine.predict(tampered, [str(events)], output=tmp_path / "p.root")
    with pytest.raises(CheckpointError, match=r"checksum \(CRC\)"):
        engine.predict(_flipped(script_regressor.path, tmp_path), [str(events)], output=tmp_path / "p.root")


def _flipped(source: Path, folder: Path) -> Path:
    """Copy an archive with one bit of its largest entry changed."""
    content = bytearray(source.read_bytes())
    with zipfile.ZipFile(source) as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
        content[content.index(archive.read(largest)) + 2] ^= 0x40
    (folder / "flipped.pt").write_bytes(content)
    return folder / "flipped.pt"


def _rewrite(source: Path, target: Path, edit: Any) -> None:
    """Copy an archive with another description in it, and as before there were digests."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            if entry.filename.endswith(DIGESTS_FILE):
                continue
            data = old.read(entry)
            if entry.filename.endswith(EXTRA_FILE):
                described = {key: text for key, text in json.loads(data).items() if key not in PROMISE}
                data = json.dumps(edit(described)).encode()
            new.writestr(entry, data)


def test_options_without_effect_on_an_exported_file_are_refused(
    script_regressor: Any, onnx_regressor: Any, events: Path
) -> None:
    with pytest.raises(UsageError, match="leave out --weights"):
        engine.predict(script_regressor.path, [str(events)], weights="ema")
    for sample, device in ((onnx_regressor, "banana"), (onnx_regressor, "mps"), (script_regressor, "cuda:99")):
        with pytest.raises(DeviceError, match=device):
            engine.predict(sample.path, [str(events)], device=device)


def test_model_files_are_called_what_they_are(script_inpainter: Any, onnx_regressor: Any, tmp_path: Path) -> None:
    encoder, other = tmp_path / "encoder.pt", tmp_path / "network.pth"
    engine.inspect_ckpt(onnx_regressor.checkpoint, extract="encoder", output=encoder)
    other.write_bytes(onnx_regressor.path.read_bytes())
    (tmp_path / "pointer.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    (tmp_path / "data.root").touch()
    where: Any = {"data": [str(tmp_path / "data.root")], "output": tmp_path / "out.root"}
    cases: tuple[tuple[Any, str], ...] = (
        (lambda: engine.repair(script_inpainter.path, **where), r"exported file \(torchscript\)"),
        (lambda: engine.compare(other, where["data"], variants=["raw", "neighbour"]), r"exported file \(onnx\)"),
        (lambda: engine.predict(encoder, **where), "an encoder alone"),
        (lambda: engine.repair(encoder, **where), "an encoder alone"),
        (lambda: engine.predict(tmp_path / "pointer.onnx", **where), "a git-LFS pointer"),
    )
    for call, said in cases:
        with pytest.raises(UserError, match=said):
            call()
    for sound in (script_inpainter.path, other):  # the control: what its reader says of a file that is sound
        with pytest.raises(CheckpointError, match="cannot read the checkpoint"):
            store.load(sound)


def test_inspection_recognises_our_exports(script_regressor: Any, onnx_regressor: Any) -> None:
    for sample in (script_regressor, onnx_regressor):
        found = engine.inspect_ckpt(sample.path)
        fit = {item.action: item.possible for item in found.fit_for}
        assert fit["predict"]
        assert not fit["resume"]
        assert found.finite
        assert not found.is_bad


def test_inspection_still_finds_weights_of_a_graph_that_are_not_finite(onnx_regressor: Any, tmp_path: Path) -> None:
    import onnx

    model = onnx.load(onnx_regressor.path)
    weight = max(model.graph.initializer, key=lambda item: len(item.raw_data))
    weight.raw_data = np.float32("inf").tobytes() + weight.raw_data[4:]
    onnx.save(model, tmp_path / "infinite.onnx")
    assert not engine.inspect_ckpt(tmp_path / "infinite.onnx").finite


def test_torchscript_is_called_deprecated_and_leaves_no_setting_changed(script_regressor: Any) -> None:
    assert [found.code for found in script_regressor.result.findings] == ["X-17"]
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format_name", "kind", "model"),
    [
        ("onnx", "mae", {"predict_channels": ["npho", "time"]}),
        ("onnx", "inpainter", {"head_type": "cross_attention", "predict_channels": ["npho", "time"]}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_every_kind_and_head_exports_and_predicts(
    format_name: str, kind: str, model: dict[str, Any], make_checkpoint: Any, few: Any, events: Path, tmp_path: Path
) -> None:
    """The regressor is in fixtures; heads a face are there with attention, which holds all that they are without."""
    source = make_checkpoint(kind, **model)
    path = tmp_path / f"{format_name}.{format_name}"
    result = engine.export(source, to=format_name, output=path, **few)
    assert result.edge_cases >= 27  # edge events, and edge masks of one event and of two
    assert FORMATS[format_name].open(path).description.kind == kind
    ours = engine.predict(source, [str(events)], output=tmp_path / "a.root", max_events=4)
    theirs = engine.predict(path, [str(events)], output=tmp_path / "b.root", max_events=4)
    assert theirs.metrics["val/loss"] == pytest.approx(ours.metrics["val/loss"], rel=1e-3)


@pytest.mark.slow
def test_masked_attention_exports_for_pytorch_alone(make_checkpoint: Any, few: Any, tmp_path: Path) -> None:
    source = make_checkpoint("inpainter", use_masked_attention=True, prior="none")  # a prior goes into the ONNX files
    result = engine.export(source, to="pt2", output=tmp_path / "m.pt2", **few)
    assert result.edge_cases >= 27
    path = Path(result.path)
    assert described(pt2._extra(path), path).kind == "inpainter"  # to open it takes as long again


def test_a_payload_in_a_pt2_never_runs(events: Path, tmp_path: Path) -> None:
    """PyTorch unpickles its example inputs without restriction (control), so a prediction opens none."""
    ran, payload = tmp_path / "ran", io.BytesIO()
    torch.save((_MakesFolder(ran),), payload)
    sound, infected = tmp_path / "sound.pt2", tmp_path / "infected.pt2"
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(3, 2),))
    torch.export.save(program, sound, extra_files={EXTRA_FILE: "{}"})
    with zipfile.ZipFile(sound) as old, zipfile.ZipFile(infected, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            new.writestr(entry, payload.getvalue() if "sample_inputs" in entry.filename else old.read(entry))
    for file in (sound, infected):
        with pytest.raises(CheckpointError, match="would run code") as caught:
            engine.predict(file, [str(events)], output=tmp_path / "p.root")
        assert caught.value.code == "XT-CKPT-UNSAFE"
    assert not ran.exists()
    with pytest.raises((AttributeError, TypeError)):  # what it made is no tensor, which shows only afterwards
        torch.export.load(infected)
    assert ran.is_dir()


class _MakesFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_an_archive_with_a_broken_directory_is_a_damaged_checkpoint(events: Path, tmp_path: Path) -> None:
    """zipfile takes it for an archive by its last bytes alone, and fails when it reads it (control)."""
    broken = tmp_path / "broken.pt"
    torch.save({"w": torch.zeros(2)}, broken)
    broken.write_bytes(broken.read_bytes().replace(b"PK\x01\x02", b"PK\x01\x03"))
    assert zipfile.is_zipfile(broken)
    with pytest.raises(zipfile.BadZipFile):
        zipfile.ZipFile(broken)
    with pytest.raises(CheckpointError):
        engine.predict(broken, [str(events)], output=tmp_path / "p.root")


def test_normalized_inputs_give_the_heads_own_numbers(make_checkpoint: Any, events: Path, tmp_path: Path) -> None:
    source = make_checkpoint("regressor")
    path = tmp_path / "n.pt"
    result = engine.export(source, to="torchscript", output=path, inputs="normalized")
    assert [port.name for port in result.inputs] == ["x"]
    assert {port.name: port.shape for port in result.outputs}["energy"] == (2,)
    sample = copy.copy(type("Sample", (), {"checkpoint": source, "path": path}))
    same_predictions(sample, events, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file_name", "output", "to"),
    [
        ("mae_small_checkpoint_best_stripped.pth", "older.pt", "torchscript"),
        ("inp_small_perface_checkpoint_best_stripped.pth", "older.pt", "torchscript"),
        ("reg_small_checkpoint_best.pth.xz", "older.pt", "torchscript"),
        ("inp_small_xattn_checkpoint_best.pth.xz", "older.pt", "torchscript"),
    ],
)
def test_checkpoints_of_the_older_system_export(
    file_name: str, output: str, to: str, reference_dir: Path, tmp_path: Path
) -> None:
    import lzma

    source = tmp_path / "source.pth"
    file = reference_dir / "checkpoints" / file_name
    source.write_bytes(lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes())
    data = [str(reference_dir / "data/synth_tiny.root")]
    result = engine.export(source, to=to, output=tmp_path / output, verify_on=data, max_events=8)
    assert result.verified_events == 8
    assert engine.predict(result.path, data, output=tmp_path / "p.root", max_events=8).events == 8
