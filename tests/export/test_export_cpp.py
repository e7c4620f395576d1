"""The C++ example is built, run, and gives the numbers of the Python prediction."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import uproot
from xectool import engine

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cpp"
HEADER = "onnxruntime_cxx_api.h"
PLACES = ("/usr/include", "/usr/include/onnxruntime", "/usr/local/include", "/usr/local/include/onnxruntime")


def include_dir() -> Path:
    """The headers of ONNX Runtime, which are not in the Python wheel."""
    wanted = [os.environ.get("ONNXRUNTIME_INCLUDE_DIR", ""), *PLACES]
    for place in wanted:
        if place and (Path(place) / HEADER).is_file():
            return Path(place)
    pytest.skip("no headers of ONNX Runtime: apt install libonnxruntime-dev, or set ONNXRUNTIME_INCLUDE_DIR")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    headers = include_dir()
    if shutil.which("cmake") is None or shutil.which("c++") is None:
        pytest.skip("no C++ compiler or no CMake")
    build = tmp_path_factory.mktemp("build")
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.1*"))
    (build / "libonnxruntime.so.1").symlink_to(library)
    options = [f"-DONNXRUNTIME_INCLUDE_DIR={headers}", f"-DONNXRUNTIME_LIBRARY={build}/libonnxruntime.so.1"]
    run(["cmake", "-S", str(EXAMPLE), "-B", str(build), "-DCMAKE_CXX_FLAGS=-Werror", *options])
    run(["cmake", "--build", str(build)])
    return build / "predict_events"


def run(argv: list[str], good: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode == 0) is good, done.stdout + done.stderr
    return done


def table(text: str) -> tuple[list[str], np.ndarray]:
    heading, *lines = text.splitlines()
    return heading.split("\t"), np.array([[float(cell) for cell in line.split("\t")] for line in lines])


@pytest.mark.slow
def test_program_prints_the_predictions_of_raw_events(
    program: Path, onnx_regressor: Any, events: Path, tmp_path: Path
) -> None:
    binary = tmp_path / "events.bin"
    run([sys.executable, str(EXAMPLE / "write_events.py"), str(events), str(binary)])
    done = run([str(program), str(onnx_regressor.path), str(binary), "--batch", "7", "--threads", "1"])
    names, rows = table(done.stdout)
    assert names == ["event", "angle[0]", "angle[1]", "energy", "sigma_energy", "timing"]
    assert '"energy": "GeV"' in done.stderr
    engine.predict(onnx_regressor.checkpoint, [str(events)], output=tmp_path / "p.root")
    with uproot.open(f"{tmp_path}/p.root:tree") as tree:
        wanted = {name: tree[name].array(library="np") for name in ("pred_angle", "pred_energy", "pred_timing")}
    np.testing.assert_allclose(rows[:, 1:3], wanted["pred_angle"], rtol=1e-5)
    np.testing.assert_allclose(rows[:, 3], wanted["pred_energy"].ravel(), rtol=1e-5)
    np.testing.assert_allclose(rows[:, 5], wanted["pred_timing"].ravel(), rtol=1e-4, atol=1e-14)


@pytest.mark.slow
def test_program_says_what_is_wrong_with_its_files(program: Path, onnx_regressor: Any, tmp_path: Path) -> None:
    text = tmp_path / "text.bin"
    text.write_text("no events at all, just words")
    done = run([str(program), str(onnx_regressor.path), str(text)], good=False)
    assert "is no event file" in done.stderr
    cut = tmp_path / "cut.bin"
    cut.write_bytes(b"XECEVT01" + np.array([2, 4760], "<u4").tobytes() + bytes(4760 * 4 * 3))
    assert "ends inside an event" in run([str(program), str(onnx_regressor.path), str(cut)], good=False).stderr
    assert "cannot open" in run([str(program), str(onnx_regressor.path), str(tmp_path / "no.bin")], good=False).stderr
    assert "usage" in run([str(program)], good=False).stderr


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("absent.root", (), "no such file: "),
        ("{events}:tre", (), "has no tree tre; its trees: tree"),
        ("{events}", ("--npho", "phot"), "has no branch phot; its branches: "),
        ("{events}", ("--time", "run"), "branch run does not hold 4760 numbers an event"),
        ("{events}", ("--max-events", "0"), "leaves nothing to write"),
        ("text.root", (), "cannot be read as a ROOT file: "),
        ("cut.root", (), "cannot be read"),
    ],
)
def test_wrong_inputs_of_the_event_writer_are_said_in_a_line(
    events: Path, tmp_path: Path, source: str, options: tuple[str, ...], said: str
) -> None:
    (tmp_path / "text.root").write_text("no events at all, just words")
    (tmp_path / "cut.root").write_bytes(events.read_bytes()[: events.stat().st_size // 2])
    target = tmp_path / "events.bin"
    target.write_bytes(b"of before")
    argv = [sys.executable, str(EXAMPLE / "write_events.py"), source.format(events=events), str(target), *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert target.read_bytes() == b"of before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.root", "events.bin", "text.root"]


def test_the_event_writer_writes_a_named_tree(events: Path, tmp_path: Path) -> None:
    """The control of the refusals."""
    target = tmp_path / "events.bin"
    run([sys.executable, str(EXAMPLE / "write_events.py"), f"{events}:tree", str(target), "--max-events", "3"])
    with uproot.open(f"{events}:tree") as tree:
        npho = tree["npho"].array(library="np")[:3]
    content = target.read_bytes()
    assert content[:16] == b"XECEVT01" + np.array([3, 4760], "<u4").tobytes()
    np.testing.assert_array_equal(np.frombuffer(content[16:], "<f4").reshape(3, 2, 4760)[:, 0], npho)
