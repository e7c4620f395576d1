"""What is released: one version, a wheel and a source distribution that install, metadata that are true."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from xectool import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_stands_in_one_place() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    written = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "xectool").rglob("*.py")
        if re.search(rf"[\"']{re.escape(__version__)}[\"']", path.read_text())
    ]
    assert written == ["xectool/__init__.py"]


def test_extras_and_python_versions_are_what_is_declared() -> None:
    assert set(PROJECT["optional-dependencies"]) == {"gpu", "docs", "dev"}
    declared = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: Python :: 3." in line]
    assert declared == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == ">=3.11"


def test_the_code_parses_as_the_oldest_python() -> None:
    for path in (ROOT / "xectool").rglob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 11))


@pytest.mark.slow
def test_wheel_and_source_distribution_are_whole_and_the_wheel_runs(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    built = subprocess.run(build, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    assert f"xectool-{__version__}" in wheel.name
    packed = set(zipfile.ZipFile(wheel).namelist())
    code = {str(path.relative_to(ROOT)) for path in (ROOT / "xectool").rglob("*") if path.suffix in (".py", ".md")}
    assert code <= packed
    assert {"xectool/py.typed"} <= packed
    assert not [name for name in packed if name.startswith(("tests/", "benchmarks/", "docs/"))]
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "Makefile", "tests/conftest.py", "docs/index.md"} <= names

    place = tmp_path / "venv"
    venv.create(place, system_site_packages=True, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "-q", "--no-deps"]
    subprocess.run([*pip, "--no-index", str(wheel)], check=True)
    # the dependencies are those of this environment, the code is the wheel's
    here = Path(yaml.__file__).parents[1]
    (next((place / "lib").glob("python3*")) / "site-packages" / "dependencies.pth").write_text(f"{here}\n")
    program = place / "bin" / "xectool"
    shown = subprocess.run([program, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout == f"xectool {__version__}\n"
    explained = subprocess.run([program, "explain", "nan"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert explained.returncode == 0, explained.stderr
    asked = "import xectool; print(xectool.__file__)"
    where = subprocess.run([place / "bin" / "python", "-c", asked], cwd=tmp_path, capture_output=True, text=True)
    assert str(place) in where.stdout
