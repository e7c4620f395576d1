"""An output never replaces what is read, under whatever name, and a place that cannot be written is refused first."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.engine.checking import CheckOptions
from xectool.engine.earlier_results import in_the_way
from xectool.errors import CheckpointError, DataFileError, DiskError, UsageError, XecError
from xectool.export.description import EXPORTED, EXTRA_FILE, PREFIX
from xectool.report.style import new_figure, save
from xectool.rootio.origin import Origin, origin_of
from xectool.rootio.writer import TreeWriter

Call = Callable[[Path], Any]


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A folder of files that no command could read, so that only a check before reading can know them."""
    for name in (
        "model.pth",
        "checkpoint_best.pt",
        "data.root",
        "listed.root",
        "dead.txt",
        "dead.db",
        "more.root.part",
    ):
        (tmp_path / name).write_bytes(b"not to be lost")
    os.link(tmp_path / "model.pth", tmp_path / "hard.root")
    (tmp_path / "soft.root").symlink_to(tmp_path / "dead.txt")
    (tmp_path / "inner.txt").write_text("listed.root\n")
    (tmp_path / "files.txt").write_text(f"@{tmp_path}/inner.txt\n")
    return tmp_path


NAMES = ("model.pth", "hard.root", "data.root", "listed.root", "files.txt", "dead.txt", "soft.root", "more.root")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", [engine.predict, engine.repair])
def test_no_file_that_is_read_is_replaced(command: Any, inputs: Path, name: str) -> None:
    data = [f"{inputs}/data.root:tree", f"@{inputs}/files.txt", f"{inputs}/more.root.part"]
    before = {path: path.read_bytes() for path in inputs.iterdir()}
    with pytest.raises(UsageError, match="replace its own input"):
        command(inputs / "model.pth", data, output=inputs / name, dead=f"{inputs}/dead.txt")
    assert {path: path.read_bytes() for path in inputs.iterdir()} == before
    with pytest.raises(CheckpointError):  # the control: another output is not held up
        command(inputs / "model.pth", data, output=inputs / "out.root", dead=f"{inputs}/dead.txt")


def test_a_checkpoint_is_never_replaced(inputs: Path) -> None:
    torch.save({"model": {"w": torch.ones(2)}}, inputs / "other_run.pt")
    calls: tuple[Call, ...] = (
        lambda path: engine.export(inputs / "model.pth", output=path, to="torchscript"),
        lambda path: engine.predict(inputs / "model.pth", [f"{inputs}/data.root"], output=path),
    )
    for call in calls:
        with pytest.raises(UsageError, match="would replace a checkpoint") as caught:
            call(inputs / "other_run.pt")
        assert caught.value.fix.startswith(f"--output {inputs}/other_run_written")


def test_file_named_as_url_is_not_replaced(inputs: Path) -> None:
    (inputs / "a b.root").write_bytes(b"not to be lost")
    with pytest.raises(UsageError, match="replace its own input"):
        engine.predict(inputs / "model.pth", [f"file://{inputs}/a%20b.root"], output=inputs / "a b.root")


def test_link_to_a_descriptor_is_not_replaced(inputs: Path) -> None:
    """As /dev/stdout is one, and ends at a regular file where the output is redirected."""
    with (inputs / "redirected").open("w") as stream:
        (link := inputs / "stdout").symlink_to(f"/proc/self/fd/{stream.fileno()}")
        with pytest.raises(UsageError, match="no regular file"):
            engine.predict(inputs / "model.pth", [f"{inputs}/data.root"], output=link)
    assert link.is_symlink()


def test_no_other_command_replaces_what_it_reads(inputs: Path) -> None:
    model, data, best = inputs / "model.pth", [str(inputs)], "checkpoint_best.pt"
    refused: tuple[tuple[Call, str], ...] = (
        (lambda path: engine.export(model, output=path, to="onnx"), "model.pth"),
        (lambda path: engine.export(model, output=path, to="torchscript", weights="best"), best),
        (lambda path: engine.predict(model, data, output=path, weights="best"), best),
        (lambda path: engine.repair(model, data, output=path, dead=f"sqlite:{inputs}/dead.db"), "dead.db"),
    )
    for call, name in refused:
        with pytest.raises(UsageError, match="replace its own input"):
            call(inputs / name)


PLACES: tuple[tuple[str, type[XecError]], ...] = (
    (".", UsageError), ("model.pth/x.root", UsageError), ("/dev/null", UsageError), ("/proc/none/x.root", DiskError),
)  # fmt: skip


@pytest.mark.parametrize(("place", "kind"), PLACES)
def test_place_that_takes_no_file_is_refused_before_the_work(
    inputs: Path, place: str, kind: type[XecError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(inputs)
    for call in (
        lambda: engine.predict("model.pth", ["data.root"], output=place),
        lambda: engine.repair("model.pth", ["data.root"], output=place),
        lambda: engine.export("model.pth", output=place, to="onnx"),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert caught.value.fix.startswith("--")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(("folder", "kind"), [("model.pth", UsageError), ("/proc/none", DiskError)])
def test_folder_for_plots_is_tried_before_the_work(
    inputs: Path, folder: str, kind: type[XecError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(inputs)
    with pytest.raises(kind, match=r"file, not a directory|nothing can be written"):
        engine.predict("model.pth", ["data.root"], output="out.root", report=folder)
    with pytest.raises(kind, match=r"file, not a directory|nothing can be written"):
        engine.check_data("absent.root", CheckOptions(plots=folder))
    with pytest.raises(DataFileError):  # the control: a folder that is fine leaves the data to be looked at
        engine.check_data("absent.root", CheckOptions(plots="plots"))
    assert not (inputs / "plots").exists()
    figure = new_figure(1, 1)
    figure.subplots()
    with pytest.raises(DiskError):  # a folder that goes bad during the work
        save(figure, Path(folder), "plot")


def test_an_older_checkpoint_and_a_root_file_are_replaced_by_no_export(inputs: Path) -> None:
    torch.save({"w": torch.ones(2)}, inputs / "old.pth", _use_new_zipfile_serialization=False)
    (inputs / "events.root").write_bytes(b"root\0\0\0\0")
    for name, what in (("old.pth", "a checkpoint"), ("events.root", "a ROOT file")):
        before = (inputs / name).read_bytes()
        with pytest.raises(UsageError, match=f"would replace {what}") as caught:
            engine.export(inputs / "model.pth", output=inputs / name, to="onnx")
        assert "_written.onnx" in caught.value.fix
        assert (inputs / name).read_bytes() == before


@pytest.mark.parametrize("format", ["ttree", "rntuple"])
def test_only_an_earlier_result_of_the_same_command_is_replaced_by_a_root_file(inputs: Path, format: Any) -> None:
    """Not the data of a run whose name slipped into --output, nor repaired events by predictions of them."""
    for origin in (None, *Origin):
        with TreeWriter(inputs / f"{origin}.root", {"run": ("i4", ())}, "sub/tree", format, origin=origin) as writer:
            writer.extend({"run": np.arange(3)})
    (inputs / "cut.root").write_bytes((inputs / f"{Origin.PREDICTIONS}.root").read_bytes()[:-40])
    before = {path: path.read_bytes() for path in inputs.iterdir()}
    data = [f"{inputs}/data.root"]
    commands: dict[Origin, Call] = {
        Origin.PREDICTIONS: lambda path: engine.predict(inputs / "model.pth", data, output=path),
        Origin.REPAIRED: lambda path: engine.repair(inputs / "model.pth", data, output=path),
        Origin.SIMULATED: lambda path: engine.simulate(path, events=2),
    }
    for own, call in commands.items():
        for name in (None, "cut", *(other for other in Origin if other is not own)):
            with pytest.raises(UsageError, match=f"would replace a ROOT file that holds no {own}") as caught:
                call(inputs / f"{name}.root")
            assert f"{name}_written.root" in caught.value.fix
    assert {path: path.read_bytes() for path in inputs.iterdir()} == before
    for own in (Origin.PREDICTIONS, Origin.REPAIRED):  # the control: its own is none of its concern
        with pytest.raises(CheckpointError):
            commands[own](inputs / f"{own}.root")
    commands[Origin.SIMULATED](inputs / f"{Origin.SIMULATED}.root")
    assert origin_of(inputs / f"{Origin.SIMULATED}.root") is Origin.SIMULATED


FOREIGN = {"notes.yaml": b"model:\n  encoder_dim: 32\n", "page.html": b"<!doctype html><title>mine</title>",
           "table.csv": b"a,b\n1,2\n", "graph.onnx": b"\x08\x0a", "eight": b"12345678{}"}  # fmt: skip
FORMATS = {"onnx": ".onnx", "torchscript": ".torchscript", "pt2": ".pt2", "safetensors": ".safetensors"}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_no_earlier_call_wrote_is_replaced_by_no_result(inputs: Path, name: str) -> None:
    target = inputs / name
    target.write_bytes(FOREIGN[name])
    data = [f"{inputs}/data.root"]
    calls = [lambda to=to: engine.export(inputs / "model.pth", output=target, to=to) for to in FORMATS]
    if target.suffix == ".onnx":  # any other suffix contradicts the name before that
        calls = calls[:1]
    for call in (*calls, lambda: engine.predict(inputs / "model.pth", data, output=target)):
        with pytest.raises(UsageError, match="would replace a file that is no earlier") as caught:
            call()
        assert caught.value.fix.startswith(f"--output {target.with_name(target.stem)}_written.")
    assert target.read_bytes() == FOREIGN[name]


def test_an_earlier_export_of_the_same_format_and_an_empty_file_are_replaced(inputs: Path) -> None:
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []))
    onnx.helper.set_model_props(model, {f"{PREFIX}version": "0.1"})
    onnx.save(model, inputs / "earlier.onnx")
    with pytest.deprecated_call():
        torch.jit.script(torch.nn.Linear(2, 2)).save(inputs / "earlier.torchscript", _extra_files={EXTRA_FILE: "{}"})
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(program, inputs / "earlier.pt2", extra_files={EXTRA_FILE: "{}"})
    store.save(inputs / "earlier.safetensors", Checkpoint({EXPORTED: {}}, {"w": torch.ones(2)}))
    store.save(inputs / "encoder.safetensors", Checkpoint({}, {"w": torch.ones(2)}))
    (inputs / "page.html").write_text("<!doctype html><title>run – xectool</title>")
    for suffix in FORMATS.values():
        (inputs / f"empty{suffix}").touch()
        assert not in_the_way(inputs / f"empty{suffix}", suffix)
        for kind in (*FORMATS.values(), ".html", *Origin):
            assert bool(in_the_way(inputs / f"earlier{suffix}", kind)) == (kind != suffix), (suffix, kind)
    assert not in_the_way(inputs / "page.html", ".html")
    assert in_the_way(inputs / "encoder.safetensors", ".safetensors")  # by --extract: no export, a checkpoint


@pytest.mark.parametrize(("place", "another"), [("FILE/x.root", "DIR/x.root"), ("DIR/x.yaml", "DIR/x.root")])
def test_the_line_of_a_refused_simulation_keeps_its_options(tmp_path: Path, place: str, another: str) -> None:
    (tmp_path / "file").touch()
    named = {"FILE": str(tmp_path / "file"), "DIR": str(tmp_path)}
    place, another = (re.sub("FILE|DIR", lambda found: named[found[0]], text) for text in (place, another))
    with pytest.raises(XecError) as caught:
        engine.simulate(place, events=20, seed=4, energy_gev=0.03, dead_fraction=0.02, format="rntuple", files=2)
    options = "--events 20 --seed 4 --files 2 --energy 0.03 --dead 0.02 --format rntuple"
    assert caught.value.fix == f"xectool simulate {another} {options}"
    with pytest.raises(XecError) as usual:
        engine.simulate(place)
    assert usual.value.fix == f"xectool simulate {another}"
