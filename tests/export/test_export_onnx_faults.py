"""Every way an ONNX file goes wrong, made for real: refused or named, never run on silently."""

from __future__ import annotations

import importlib.util
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor, nn
from xectool import engine
from xectool.checkpoint.inspection.onnx_digest import KEY
from xectool.checkpoint.inspection.onnx_seals import SEALS_KEY, changed_parts
from xectool.config.load import config_from_dict
from xectool.detector.constants import NUM_SENSORS
from xectool.errors import CheckpointError, OutputsDiffer, UsageError
from xectool.export import onnx_file
from xectool.export.description import PREFIX, Description
from xectool.export.graphs import NPHO, TIME, ExportGraph
from xectool.export.onnx_faults import translated
from xectool.export.onnx_file import OPSET, OnnxFormat, OnnxRuntime, check
from xectool.export.onnx_providers import wanted_providers
from xectool.export.onnx_rehearsal import rehearse
from xectool.export.parity import Parity
from xectool.export.ports import Port
from xectool.export.runtime import allowed_threads
from xectool.export.yardstick import Yardstick

ENERGY = Port("energy", "float32", (1,), "GeV", "Predicted energy")
TIMING = Port("timing", "float32", (1,), "s", "Predicted time")
BYTES = re.compile(r"bytes (\d+) to (\d+)|byte (\d+)")


class TinyGraph(ExportGraph):
    """Attention and a reshape over the events, which a wrong export freezes."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.outputs = (NPHO, TIME), (ENERGY, TIMING)
        torch.manual_seed(0)
        self.narrow = nn.Linear(2 * NUM_SENSORS, 32)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.heads = nn.Linear(32, 2)
        self.eval()

    def forward(self, *readings: Tensor) -> tuple[Tensor, ...]:
        tokens = self.narrow(torch.cat(readings, dim=1)).reshape(-1, 4, 8)
        found = self.heads(self.layer(tokens).flatten(1))
        return found[:, :1], found[:, 1:]


class WithNames(nn.Module):
    """The same with named arguments, as its author would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = TinyGraph()

    def forward(self, npho: Tensor, time: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = self.network(npho, time)
        return found


def description() -> Description:
    config = {"kind": "regressor", "data": {"train_path": "a", "val_path": "b"}}
    config["tasks"] = {name: {"enabled": True} for name in ("energy", "timing")}  # type: ignore[assignment]
    resolved = config_from_dict(config, "test").to_dict()
    return Description(
        "regressor", "raw", ("energy", "timing"), (NPHO, TIME), (ENERGY, TIMING), resolved, "a.pt", "0" * 64, "model"
    )


def readings(count: int) -> dict[str, Any]:
    draw = np.random.default_rng(count)
    return {name: draw.normal(size=(count, NUM_SENSORS)).astype(np.float32) for name in ("npho", "time")}


def written(path: Path) -> Path:
    OnnxFormat.write(TinyGraph(), description(), tuple(torch.from_numpy(value) for value in readings(3).values()), path)
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("tiny") / "tiny.onnx")


@pytest.fixture
def altered(tiny: Path, tmp_path: Path) -> Callable[[Callable[[Any], None]], Path]:
    """Write a copy of the file after an edit of its protobuf."""

    def alter(edit: Callable[[Any], None]) -> Path:
        model = onnx.load(tiny)
        edit(model)
        path = tmp_path / "altered.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return alter


def refused(path: Path, code: str) -> OutputsDiffer:
    with pytest.raises(OutputsDiffer, match="xectool explain") as caught:
        check(path, (NPHO, TIME), (ENERGY, TIMING))
    assert caught.value.code == code
    return caught.value


def test_sound_file_is_whole_in_one_file_and_gives_the_numbers_of_the_graph(tiny: Path) -> None:
    """X-16: its attention is PyTorch's own layer, of which the older exporter said that ONNX cannot take it."""
    check(tiny, (NPHO, TIME), (ENERGY, TIMING))
    assert [path.name for path in tiny.parent.iterdir()] == ["tiny.onnx"]
    runtime, graph = OnnxRuntime(tiny), TinyGraph()
    model = onnx.load(tiny)
    assert model.producer_name == "xectool"
    assert {item.domain: item.version for item in model.opset_import}[""] == OPSET
    for count in (1, 2, 7, 64):
        given = readings(count)
        with torch.no_grad():
            wanted = graph(*(torch.from_numpy(value) for value in given.values()))
        for value, expected in zip(runtime.run(given).values(), wanted, strict=True):
            np.testing.assert_allclose(value, expected.numpy(), rtol=1e-4, atol=1e-5)


ANSWER = """
import sys, numpy as np
from xectool.export.onnx_file import OnnxRuntime
np.savez(sys.argv[3], **OnnxRuntime(sys.argv[1]).run_unchecked(dict(np.load(sys.argv[2]))))
"""


def test_any_bit_that_changes_after_the_export_is_found(tiny: Path, tmp_path: Path) -> None:
    """ONNX Runtime takes a flipped bit of a weight for a weight (control: a file without the digest)."""
    content, given = tiny.read_bytes(), readings(2)
    weight = content.index(TinyGraph().narrow.weight.detach().numpy()[3].tobytes())
    key = content.index(KEY.encode())
    places = (weight + 2, content.index(b"MatMul") + 200, key + len(KEY) + 20, key + 3)
    for name, place in zip(("weight", "graph", "digits", "key"), places, strict=True):
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(CheckpointError, match="does not match the digest"):
            OnnxRuntime(path)
    found = engine.inspect_ckpt(tmp_path / "weight.onnx")
    assert found.is_bad
    told = [(item.code, item.where) for item in found.findings if item.severity.value == "error"]
    assert told[-1] == ("K02", "digest")
    assert told[0][1].startswith("weight ")
    assert "narrow" in told[0][1]
    assert not any(item.code == "K02" for item in engine.inspect_ckpt(tiny).findings)
    plain = onnx.load(tmp_path / "weight.onnx")
    kept = [item for item in plain.metadata_props if item.key != KEY]
    del plain.metadata_props[:]
    plain.metadata_props.extend(kept)
    onnx.save(plain, tmp_path / "plain.onnx")
    wrong, right = OnnxRuntime(tmp_path / "plain.onnx").run(given), OnnxRuntime(tiny).run(given)
    assert not np.array_equal(wrong["energy"], right["energy"])


def test_the_same_network_exported_twice_is_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    example = tuple(torch.from_numpy(value) for value in readings(3).values())
    again = OnnxFormat.write(TinyGraph(), description(), example, tmp_path / tiny.name)
    assert again.files[0].read_bytes() == tiny.read_bytes()


def answer_elsewhere(path: Path, count: int) -> dict[str, Any]:
    """Run the file in a process of its own: ONNX Runtime may divide by zero in such a graph, and die of it."""
    given, found = path.with_suffix(".given.npz"), path.with_suffix(".found.npz")
    np.savez(given, **readings(count))
    subprocess.run([sys.executable, "-c", ANSWER, str(path), str(given), str(found)], check=True, capture_output=True)
    return dict(np.load(found))


def test_an_export_as_it_is_usually_done_names_a_free_batch_and_fails_at_two_events(tmp_path: Path) -> None:
    """The fault this room exists for: an example of one event with dynamic_axes (control: without our exporter)."""
    path = tmp_path / "usual.onnx"
    example = tuple(torch.from_numpy(value) for value in readings(1).values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            WithNames().eval(), example, str(path), input_names=["npho", "time"], output_names=["energy", "timing"],
            dynamic_axes={"npho": {0: "b"}, "time": {0: "b"}}, opset_version=OPSET, verbose=False,
        )  # fmt: skip
    model = onnx.load(path)
    for key, text in description().to_metadata().items():
        item = model.metadata_props.add()
        item.key, item.value = key, text
    whole = tmp_path / "whole.onnx"
    onnx.save(model, whole)
    parity = Parity((ENERGY, TIMING), {n: Yardstick(np.ones(1), 1e-3, "t") for n in ("energy", "timing")})
    graph, faults = TinyGraph(), []
    assert answer_elsewhere(whole, 1)["energy"].shape == (1, 1)
    for count in (2, 7):
        with torch.no_grad():
            wanted = graph(*(torch.from_numpy(value) for value in readings(count).values()))
        try:
            found = answer_elsewhere(whole, count)
            parity.add("batch", {"energy": wanted[0].numpy(), "timing": wanted[1].numpy()}, found)
        except (subprocess.CalledProcessError, OutputsDiffer) as error:
            faults.append(error)
    assert faults


def test_an_example_of_one_event_is_never_given_to_the_exporter(tmp_path: Path) -> None:
    example = tuple(torch.from_numpy(value) for value in readings(1).values())
    with pytest.raises(ValueError, match="two or more"):
        OnnxFormat.write(TinyGraph(), description(), example, tmp_path / "one.onnx")


def test_fixed_batch_is_refused(altered: Any) -> None:
    def freeze(model: Any) -> None:
        for port in (*model.graph.input, *model.graph.output):
            port.type.tensor_type.shape.dim[0].dim_value = 3

    assert "fixed to 3" in refused(altered(freeze), "X-05").problem


def test_swapped_outputs_are_refused(altered: Any) -> None:
    def swap(model: Any) -> None:
        outputs = list(model.graph.output)
        del model.graph.output[:]
        model.graph.output.extend(reversed(outputs))

    refused(altered(swap), "X-11")


def test_input_of_another_name_is_refused(altered: Any) -> None:
    def rename(model: Any) -> None:
        for node in model.graph.node:
            node.input[:] = ["photons" if name == "npho" else name for name in node.input]
        model.graph.input[0].name = "photons"

    refused(altered(rename), "X-10")


def test_random_and_training_operators_are_refused(altered: Any) -> None:
    def random(model: Any) -> None:
        model.graph.node.append(helper.make_node("RandomNormal", [], ["noise"], shape=[1]))

    def training(model: Any) -> None:
        node = helper.make_node("Dropout", [model.graph.output[0].name, "", "train"], ["dropped"])
        model.graph.initializer.append(helper.make_tensor("train", onnx.TensorProto.BOOL, [], [True]))
        model.graph.node.append(node)

    refused(altered(random), "X-19")
    refused(altered(training), "X-04")


def test_unknown_operator_and_cut_file_are_named(altered: Any, tiny: Path, tmp_path: Path) -> None:
    def unknown(model: Any) -> None:
        model.graph.node[0].op_type = "Frobnicate"

    path = altered(unknown)
    refused(path, "X-06")
    with pytest.raises(CheckpointError, match=r"was changed: .*not what was exported: node ") as caught:
        OnnxRuntime(path)
    assert caught.value.code == "XT-CKPT-CORRUPT", "no other ONNX Runtime would help"
    foreign = onnx.load(path)
    del foreign.metadata_props[:]
    onnx.save(foreign, path)
    with pytest.raises(CheckpointError, match="cannot run its graph") as caught:
        OnnxRuntime(path)
    assert caught.value.code == "X-06"
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(tiny.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="truncated, or no ONNX model") as caught:
        OnnxRuntime(cut)
    assert caught.value.code == "X-06"


def test_missing_data_file_beside_the_model_is_named(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "split.onnx"
    onnx.save(onnx.load(tiny), path, save_as_external_data=True, location="split.onnx.data", size_threshold=1024)
    check(path, (NPHO, TIME), (ENERGY, TIMING))
    assert OnnxRuntime(path).run(readings(2))["energy"].shape == (2, 1)
    (tmp_path / "split.onnx.data").unlink()
    refused(path, "X-07")
    with pytest.raises(CheckpointError, match="in another file, which is not beside it") as caught:
        OnnxRuntime(path)
    assert caught.value.code == "X-07"


def test_weights_beyond_the_limit_of_protobuf_go_beside_the_file_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xectool.export.onnx_file.SINGLE_FILE_LIMIT", 1000)
    example = tuple(torch.from_numpy(value) for value in readings(2).values())
    written = OnnxFormat.write(TinyGraph(), description(), example, tmp_path / "big.onnx")
    assert [path.name for path in written.files] == ["big.onnx", "big.onnx.data"]
    assert [note.code for note in written.notes] == ["X-07"]
    assert OnnxRuntime(tmp_path / "big.onnx").run(readings(2))["energy"].shape == (2, 1)


WRONG: list[tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = [
    ("another type", lambda given: {**given, "npho": given["npho"].astype(np.float64)}),
    ("another name", lambda given: {"photons": given["npho"], "time": given["time"]}),
    ("one missing", lambda given: {"npho": given["npho"]}),
    ("another shape", lambda given: {name: value[:, :100] for name, value in given.items()}),
    ("another rank", lambda given: {name: value[..., None] for name, value in given.items()}),
]


@pytest.mark.parametrize(("what", "wrong"), WRONG, ids=[name for name, _ in WRONG])
def test_wrong_inputs_are_worded_by_us_and_what_onnxruntime_says_is_mapped(
    tiny: Path, what: str, wrong: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    runtime = OnnxRuntime(tiny)
    with pytest.raises(CheckpointError, match=r"float32\[events, 4760\]") as caught:
        runtime.run(wrong(readings(2)))
    assert caught.value.code == "XT-EXPORT-INPUT"
    with pytest.raises(CheckpointError, match="ONNX Runtime says") as caught:
        runtime.run_unchecked(wrong(readings(2)))
    assert caught.value.code == "XT-EXPORT-INPUT", caught.value


def test_inputs_of_different_numbers_of_events_are_refused(tiny: Path) -> None:
    with pytest.raises(CheckpointError, match=r"of \[2, 3\] events"):
        OnnxRuntime(tiny).run({"npho": readings(2)["npho"], "time": readings(3)["time"]})


def test_message_of_a_frozen_reshape_is_mapped() -> None:
    said = "Non-zero status code: the input tensor cannot be reshaped to the requested shape. Input shape:{2,9520}"
    assert translated(said, Path("m.onnx")).code == "XT-EXPORT-BATCH"
    assert translated("Failed to allocate memory for requested buffer", Path("m.onnx")).code == "XT-OOM"
    assert translated("something nobody has seen", Path("m.onnx")).code == "X-06"


def test_foreign_file_is_refused_with_what_it_lacks(altered: Any) -> None:
    def strip(model: Any) -> None:
        del model.metadata_props[:]

    def partly(model: Any, gone: tuple[str, ...] = ("units", "state", "config", "content_sha256")) -> None:
        kept = [item for item in model.metadata_props if not item.key.endswith(gone)]
        del model.metadata_props[:]
        model.metadata_props.extend(kept)

    def tamper(model: Any) -> None:
        partly(model, ("content_sha256",))
        for item in model.metadata_props:
            if item.key == f"{PREFIX}config":
                item.value = item.value.replace('"npho_scale": 1000.0', '"npho_scale": 10.0')

    for edit, said in (
        (strip, "xectool did not export this file: it lacks xectool.kind"),
        (partly, "parts of its metadata are missing: it lacks xectool.config, xectool.state"),
        (tamper, "does not have the digest"),
    ):
        with pytest.raises(CheckpointError, match=said) as caught:
            OnnxRuntime(altered(edit))
        assert caught.value.code == "X-15"
        assert "xectool export" in caught.value.fix
    path = altered(strip)
    found = engine.inspect_ckpt(path)
    assert [(item.code, item.where) for item in found.findings if item.severity.value == "error"] == [
        ("X-15", "metadata")
    ]
    assert not next(item for item in found.fit_for if item.action == "predict").possible
    foreign = onnx.load(path)
    foreign.producer_name = "pytorch"
    onnx.save(foreign, path)
    assert not engine.inspect_ckpt(path).is_bad, "a sound graph of another maker"


@pytest.mark.filterwarnings("ignore:Specified provider")
@pytest.mark.parametrize(("built", "said"), [([], "is not available"), (["CUDAExecutionProvider"], "could not start")])
def test_provider_that_does_not_compute_is_said_and_threads_are_those_allowed(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, built: list[str], said: str
) -> None:
    """A build for GPUs lists CUDA on a machine without, and falls back (seen with onnxruntime-gpu 1.31)."""
    available = [*built, "CPUExecutionProvider"]
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: available)
    runtime = OnnxRuntime(tiny, "cuda:1")
    assert runtime.providers == ("CPUExecutionProvider",)
    assert [note.code for note in runtime.notes] == ["X-14"]
    assert said in runtime.notes[0].problem
    assert "CPUExecutionProvider runs instead" in runtime.notes[0].problem
    asked = wanted_providers("cuda:1", available)
    assert asked == [("CUDAExecutionProvider", {"device_id": 1})] * len(built) + ["CPUExecutionProvider"]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert allowed_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1000000")
    assert allowed_threads() < 1_000_000
    assert OnnxRuntime(tiny).session.get_session_options().intra_op_num_threads == allowed_threads()


def test_missing_packages_come_with_the_line_to_install_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    absent = ("onnx", "onnxscript")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in absent else find(name, *rest))
    example = tuple(torch.from_numpy(value) for value in readings(2).values())
    with pytest.raises(UsageError, match="pip install onnx onnxscript") as caught:
        OnnxFormat.write(TinyGraph(), description(), example, tmp_path / "a.onnx")
    assert caught.value.code == "X-18"


def test_a_graph_that_kills_the_runtime_is_refused_and_kills_nothing_else(tmp_path: Path) -> None:
    """X-20: ONNX Runtime 1.31 divides by zero at an Einsum of empty tensors."""
    weights = helper.make_tensor_value_info("weights", onnx.TensorProto.FLOAT, ["m", 4])
    values = helper.make_tensor_value_info("values", onnx.TensorProto.FLOAT, ["m", 8, 4])
    found = helper.make_tensor_value_info("found", onnx.TensorProto.FLOAT, ["m", 8])
    node = helper.make_node("Einsum", ["weights", "values"], ["found"], equation="mk,mak->ma")
    graph = helper.make_graph([node], "deadly", [weights, values], [found])
    path = tmp_path / "deadly.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10), path)
    some, none = ({"weights": np.ones((n, 4), "f4"), "values": np.ones((n, 8, 4), "f4")} for n in (3, 0))
    rehearse(path, {"three hidden": some})
    alone = f"import onnxruntime as o, numpy as n; s = o.InferenceSession({str(path)!r}); s.run(None, "
    alone += "{'weights': n.ones((0, 4), 'f4'), 'values': n.ones((0, 8, 4), 'f4')})"
    if subprocess.run([sys.executable, "-c", alone], capture_output=True, check=False).returncode >= 0:
        pytest.skip("this ONNX Runtime survives it")
    with pytest.raises(OutputsDiffer, match=r"nothing hidden: ONNX Runtime dies of SIGFPE"):
        rehearse(path, {"three hidden": some, "nothing hidden": none})


def flipped(source: Path, target: Path, place: int, bit: int = 0) -> Path:
    content = bytearray(source.read_bytes())
    content[place] ^= 1 << bit
    target.write_bytes(content)
    return target


def problems(path: Path) -> list[str]:
    try:
        result = engine.inspect_ckpt(path)
    except CheckpointError as error:
        return [error.problem]
    return [f"{item.where}: {item.problem}" for item in result.findings if item.severity.value == "error"]


def test_every_flipped_bit_is_found_and_most_are_located(tiny: Path, tmp_path: Path) -> None:
    content, rng = tiny.read_bytes(), random.Random(4)
    model = onnx.load(tiny)
    name = max(model.graph.initializer, key=lambda item: len(item.raw_data)).name
    inside = 0
    for _ in range(60):
        place = rng.randrange(len(content))
        told = problems(flipped(tiny, tmp_path / "flipped.onnx", place, rng.randrange(8)))
        assert told, place
        spans = [tuple(int(part or 0) for part in found) for text in told for found in BYTES.findall(text)]
        inside += any(start <= place <= end for start, end, _ in spans)
    weight = content.index(max(model.graph.initializer, key=lambda item: len(item.raw_data)).raw_data)
    told = problems(flipped(tiny, tmp_path / "flipped.onnx", weight + 5))
    assert told[0].startswith(f"weight {name} (bytes ")
    assert inside > 50


def test_the_parts_that_stand_beside_the_graph_are_named(tiny: Path, tmp_path: Path) -> None:
    content = tiny.read_bytes()
    for mark, offset, label in (
        (b"xectool.units", 16, "metadata xectool.units"),
        (SEALS_KEY.encode(), len(SEALS_KEY) + 40, f"metadata {SEALS_KEY}"),
        (b"xectool.content_sha256", 30, "metadata xectool.content_sha256"),
        (b"MatMul", 1, "node "),
    ):
        told = problems(flipped(tiny, tmp_path / "flipped.onnx", content.index(mark) + offset))
        assert told[0].startswith(label), told
    with pytest.raises(CheckpointError, match="not what was exported: node"):
        OnnxRuntime(flipped(tiny, tmp_path / "flipped.onnx", content.index(b"MatMul") + 1))


def test_a_lost_part_and_weights_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "SINGLE_FILE_LIMIT", 1000)
    path = written(tmp_path / "large.onnx")
    assert problems(path) == []
    beside = path.with_name("large.onnx.data")
    sound = beside.read_bytes()
    flipped(beside, beside, len(sound) // 2)
    assert problems(path)[0].startswith("weight ")
    beside.write_bytes(sound)
    model = onnx.load(path, load_external_data=False)
    del model.graph.node[0]
    path.write_bytes(model.SerializeToString(deterministic=True))
    assert changed_parts(path, memoryview(path.read_bytes())) == ("parts that are gone (1)",)


def test_an_operator_without_onnx_function_is_named_without_colours(tmp_path: Path) -> None:
    class Eigen(TinyGraph):
        def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
            return tuple(
                value + torch.linalg.eigvals(value.new_ones(3, 3)).real[0] for value in super().forward(*given)
            )

    example = tuple(torch.from_numpy(value) for value in readings(3).values())
    with pytest.raises(CheckpointError, match=r"to ONNX: no ONNX function for aten\.linalg_eig") as caught:
        OnnxFormat.write(Eigen(), description(), example, tmp_path / "eigen.onnx")
    assert caught.value.code == "XT-EXPORT-OP"
