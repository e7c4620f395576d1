"""Files that nobody wrote on purpose: every reader answers or raises an `XecError`, soon; nothing else, ever.

``XECTOOL_FUZZ=10000 pytest tests/fuzz`` tries that many new ones of each sort; without, a few, the same every time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
import uproot
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.inspection.onnx_digest import BLANK, KEY, seal
from xectool.checkpoint.inspection.onnx_seals import SEALS_KEY, seals_of
from xectool.config.json_schema import json_schema
from xectool.config.load import load_config
from xectool.config.root import KINDS
from xectool.config.serialize import to_yaml
from xectool.config.template import template
from xectool.engine.checking import CheckOptions
from xectool.errors import XecError
from xectool.runlog.reader import RunReader
from xectool.runlog.records import EpochRecord, StepRecord
from xectool.runlog.writer import RunWriter

WANTED = int(os.environ.get("XECTOOL_FUZZ", "0"))
LONGEST_S = 60.0


def fuzzed(examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=WANTED or examples,
        derandomize=not WANTED,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),  # shrinking a slow case would take minutes
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """What happens inside is an answer or an `XecError`, within a minute."""
    begun = time.monotonic()
    with contextlib.suppress(XecError):
        yield
    assert time.monotonic() - begun < LONGEST_S


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(("replace", "insert", "cut", "repeat", "move", "zero", "truncate", "flip")),
        st.floats(0, 1),
        st.floats(0, 1),
        st.binary(min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=6,
)


def changed(content: bytes, changes: list[tuple[str, float, float, bytes]]) -> bytes:
    """Return the content with parts replaced, moved, repeated, emptied or lost."""
    for how, where, reach, new in changes:
        at, length = int(where * len(content)), 1 + int(reach**4 * len(content) / 4)
        part = content[at : at + length]
        content = {
            "replace": lambda c, a=at, n=new: c[:a] + n + c[a + len(n) :],
            "insert": lambda c, a=at, n=new: c[:a] + n + c[a:],
            "cut": lambda c, a=at, m=length: c[:a] + c[a + m :],
            "repeat": lambda c, a=at, p=part: c[:a] + p + c[a:],
            "move": lambda c, a=at, p=part: c[:a] + c[a + len(p) :] + p,
            "zero": lambda c, a=at, p=part: c[:a] + bytes(len(p)) + c[a + len(p) :],
            "truncate": lambda c, a=at: c[:a],
            "flip": lambda c, a=at, n=new: c[:a] + bytes([(c[a] if a < len(c) else 0) ^ (1 << n[0] % 8)]) + c[a + 1 :],
        }[how](content)
    return content


# -- configurations ----------------------------------------------------------------------------------------------------

SCALARS = (
    "null", "~", "true", "-1", "0", "1e400", "-.inf", ".nan", "0x10", "010", "3:00", "2026-11-22", "1e-4", '""', "[]",
    "{}", "[1, 2, 3]", "{a: {b: [c]}}", "!!python/object/apply:os.system [ls]", "!!binary aGk=", "!!set {a, b}",
    "&a [*a]", "*missing", "1" * 400, "9" * 5000, "é\u2028\u202e", "'unclosed", "{unclosed: [", "- - - x", "? [a, b]",
    "<<: {x: 1}", "!!int x", "!!float []", "!!timestamp x", "1_000", "+1", "a: b: c", "\\0", "@", "`", "%YAML 9.9",
    "--- x", "...",
)  # fmt: skip
LINES = {kind: template(kind).splitlines() for kind in KINDS} | {
    f"{kind} whole": to_yaml(KINDS[kind](**({"tasks": {"energy": {"enabled": True}}} if kind == "regressor" else {})))
    .splitlines()
    for kind in KINDS
}  # fmt: skip
WORDS = sorted({word for schema in json_schema()["$defs"].values() for word in schema.get("properties", {})})


OVERRIDES = st.one_of(
    st.text(max_size=40),
    st.builds("{}.{}={}".format, st.sampled_from(WORDS), st.sampled_from(WORDS), st.sampled_from(SCALARS)),
)


@st.composite
def configurations(draw: Any) -> str:
    """A configuration with lines lost, doubled, moved, indented and given other values."""
    lines = list(LINES[draw(st.sampled_from(sorted(LINES)))])
    for _ in range(draw(st.integers(1, 6))):
        at, to = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(("value", "value", "value", "lose", "double", "move", "indent", "key", "text")))
        key = lines[at].partition(":")[0]
        if how == "value":
            lines[at] = f"{key}: {draw(st.sampled_from(SCALARS))}"
        elif how == "lose":
            lines[at] = ""
        elif how == "double":
            lines.insert(to, lines[at])
        elif how == "move":
            lines[at], lines[to] = lines[to], lines[at]
        elif how == "indent":
            lines[at] = draw(st.sampled_from(("\t", " ", "   ", "- "))) + lines[at]
        elif how == "key":
            lines[at] = f"{draw(st.sampled_from(WORDS))}: {draw(st.sampled_from(SCALARS))}"
        else:
            lines[at] = draw(st.text(max_size=40))
    return "\n".join(lines)


@fuzzed(150)
@given(text=configurations())
def test_any_configuration_is_loaded_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "fuzzed.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with answered():
        loaded = load_config(path)
        assert loaded.config.to_dict()


@fuzzed(100)
@given(overrides=st.lists(OVERRIDES, max_size=4))
def test_any_override_is_taken_or_refused(tmp_path: Path, overrides: list[str]) -> None:
    path = tmp_path / "sound.yaml"
    path.write_text(template("regressor"))
    with answered():
        load_config(path, overrides)


def test_aliases_that_multiply_do_not_fill_the_memory(tmp_path: Path) -> None:
    bomb = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    bomb += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (tmp_path / "bomb.yaml").write_text("\n".join(["kind: mae", *bomb, "data: {train_path: *a9}"]))
    with answered():
        load_config(tmp_path / "bomb.yaml")


@fuzzed(40)
@given(content=st.binary(max_size=300))
def test_any_bytes_are_no_configuration_or_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bytes.yaml").write_bytes(content)
    with answered():
        load_config(tmp_path / "bytes.yaml")


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Sound files of the formats that are read, a few kilobytes each."""
    folder = tmp_path_factory.mktemp("sound")
    weights = {"encoder.weight": torch.arange(24.0).reshape(4, 6), "encoder.bias": torch.zeros(4)}
    older = {"epoch": 3, "model_state_dict": weights, "config": {"outer_mode": "finegrid"}, "best_val_loss": 0.5}
    torch.save(older, folder / "older.pth")
    torch.save(older, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    config = KINDS["mae"]().to_dict()
    meta = {"kind": "mae", "config": config, "epoch": 1, "step": 5, "progress": {"epoch": 1, "step": 5}}
    store.save(folder / "ours.pt", store.Checkpoint(meta, weights, {}, {"optimizer": {}}))
    safetensors.torch.save_file(weights, folder / "encoder.safetensors")
    store.save(folder / "ours.safetensors", store.Checkpoint(meta, weights))
    _write_onnx(folder / "graph.onnx")
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _write_onnx(path: Path) -> None:
    """A graph of one product, sealed as an export is."""
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 4]) for name in ("x", "y")]
    weight = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", ports[:1], ports[1:], [weight]))
    onnx.helper.set_model_props(model, {KEY: BLANK})
    path.write_bytes(model.SerializeToString(deterministic=True))
    onnx.helper.set_model_props(model, {KEY: BLANK, SEALS_KEY: seals_of(path)})
    path.write_bytes(model.SerializeToString(deterministic=True))
    seal(path)


@fuzzed(80)
@given(data=st.data(), changes=CHANGES)
def test_any_checkpoint_is_described_or_refused(
    checkpoints: dict[str, bytes], tmp_path: Path, data: Any, changes: Any
) -> None:
    name = data.draw(st.sampled_from(sorted(checkpoints)))
    path = tmp_path / name
    path.write_bytes(changed(checkpoints[name], changes))
    with answered():
        engine.inspect_ckpt(path)
    with answered():
        store.load_start(path)


# -- the record of a run -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("recorded") / "run"
    with RunWriter(run_dir) as writer:
        (run_dir / "config.yaml").write_text(yaml.safe_dump({"kind": "regressor", "training": {"lr": 1e-3}}))
        (run_dir / "manifest.json").write_text('{"run_name": "run", "kind": "regressor", "attempts": [{}]}')
        for step in range(1, 9):
            writer.step(StepRecord(1 + step // 5, step, time.time(), time.monotonic(), 1.0 / step, grad_norm=1.0))
        writer.epoch(EpochRecord(1, 4, time.time(), time.monotonic(), {"val/loss": 0.5}))
        writer.event("run_start", data={"kind": "regressor", "terms": ["energy"]})
        writer.event("spike", step=5, data={"loss": 3.0, "median": 0.1, "factor": 30.0})
        writer.event("finished")
    return run_dir


def read_everything(run_dir: Path) -> None:
    for read in (
        lambda reader: list(reader.steps()),
        lambda reader: reader.epochs(),
        lambda reader: reader.events(),
        lambda reader: reader.status(),
        lambda reader: reader.live(),
        lambda reader: reader.workers(),
        lambda reader: reader.follow(),
    ):
        with answered():
            read(RunReader(run_dir))
    for command in (engine.diagnose.run, engine.diagnose.status, engine.watch, engine.runs.list_runs):
        with answered():
            command(run_dir)


@fuzzed(30)
@given(data=st.data(), changes=CHANGES)
def test_any_record_is_read_or_refused(recorded: Path, tmp_path: Path, data: Any, changes: Any) -> None:
    run_dir = tmp_path / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    shutil.copytree(recorded, run_dir)
    files = sorted(path for path in run_dir.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files))
    path.write_bytes(changed(path.read_bytes(), changes))
    read_everything(run_dir)


# -- data files --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def event_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("events") / "sound.root"
    rng = np.random.default_rng(1)
    with uproot.recreate(path) as file:
        file["tree"] = {
            "npho": rng.poisson(20, (3, 4760)).astype("f4"),
            "relative_time": rng.normal(0, 1e-8, (3, 4760)).astype("f4"),
            "run": np.arange(3, dtype="i4"),
            "energyTruth": np.full(3, 0.05, "f4"),
        }
    return path.read_bytes()


@pytest.mark.slow
@fuzzed(6)
@given(changes=CHANGES)
def test_any_data_file_gets_a_verdict(event_file: bytes, tmp_path: Path, changes: Any) -> None:
    path = tmp_path / "fuzzed.root"
    path.write_bytes(changed(event_file, changes))
    with answered():
        engine.check_data([str(path)], CheckOptions(deep=True))
