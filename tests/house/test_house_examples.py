"""What users copy works: every example, every command block of the documentation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from xectool import engine

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Commands, Python, and files by their title; all in the order of the page.
BLOCK = re.compile(r'^```(sh|python|yaml title="(.+)")\n(.*?)^```', re.MULTILINE | re.DOTALL)
BLOCKS = {page: BLOCK.findall(text) for page in PAGES if "```sh" in (text := page.read_text())}
# Trainings have a small network and batch and draw nothing: the commands around them are what is tried.
SMALL = [
    *("data.batch_size=16", "model.encoder_dim=64", "model.num_fusion_layers=1", "model.outer_fine_pool=[5,3]"),
    "checkpoint.save_artifacts=false",
]
pytestmark = pytest.mark.usefixtures("shallow_module")
SMALL_TRAININGS = """
settings=("${@/#/--set=}")
xectool() {
    if [ "$1" = train ]; then command xectool "$@" "${settings[@]}"; else command xectool "$@"; fi
}
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as the documentation assumes it: data/train.root, data/val.root, examples/, artifacts/example/."""
    directory = tmp_path_factory.mktemp("docs")
    engine.simulate(str(directory / "data" / "train.root"), events=48, seed=1)
    engine.simulate(str(directory / "data" / "val.root"), events=16, seed=2)
    shutil.copytree(directory / "data", directory / "pristine")
    shutil.copytree(ROOT / "examples", directory / "examples")
    places = [item.replace("/runs", "/artifacts") for item in settings(directory)]
    engine.train(directory / "examples" / "regressor.yaml", overrides=places, run_name="example", max_steps=6)
    return directory


def settings(workspace: Path) -> list[str]:
    """What makes an example small and keeps its files in the workspace."""
    small = ["data.batch_size=8", "model.encoder_dim=64", "data.chunksize=32"]
    paths = [f"data.train_path={workspace}/data/train.root", f"data.val_path={workspace}/data/val.root"]
    places = [f"checkpoint.save_dir={workspace}/runs", "mlflow.enabled=false", "checkpoint.save_artifacts=false"]
    return [*small, *paths, *places]


@pytest.fixture(scope="module")
def pretrained(workspace: Path) -> Path:
    """The checkpoint of the autoencoder example, from which the fine-tuning example starts."""
    run = engine.train(
        ROOT / "examples" / "mae.yaml", overrides=settings(workspace), run_name="pretrained", max_steps=1
    )
    return Path(run.run_dir) / "checkpoint_last.pt"


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.yaml")))
def test_example_trains_for_two_steps(workspace: Path, pretrained: Path, name: str) -> None:
    start = [f"checkpoint.init_from={pretrained}"] if name == "finetune.yaml" else []
    overrides = [*settings(workspace), *start]
    result = engine.train(ROOT / "examples" / name, overrides=overrides, run_name=name, max_steps=2)
    assert (result.status, result.steps) == ("max_steps", 2)


def test_there_are_commands_to_run() -> None:
    assert len(BLOCKS) >= 2


def test_no_page_of_the_documentation_needs_a_checkout_for_its_commands() -> None:
    """An installed package has no `examples/`; `config init` writes what a command needs."""
    pages = {page: blocks for page, blocks in BLOCKS.items() if ROOT / "docs" in page.parents}
    assert [page.name for page, blocks in pages.items() for *_, block in blocks if "examples/" in block] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", BLOCKS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_run_in_their_order(workspace: Path, warm: Any, page: Path) -> None:
    """Later blocks use what earlier ones have written; each page begins with the same small files."""
    shutil.rmtree(workspace / "data")
    shutil.copytree(workspace / "pristine", workspace / "data")
    environment = {**os.environ, "PATH": f"{warm.directory}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    # The mirror to MLflow imports it for four seconds of CPU a training: one page has it.
    small = SMALL if page == PAGES[0] else [*SMALL, "mlflow.enabled=false"]
    for language, name, block in BLOCKS[page]:
        if name:
            (workspace / name).write_text(block)
            continue
        shell = ["bash", "-euo", "pipefail", "-c", SMALL_TRAININGS + block, "page", *small]
        words = shell if language == "sh" else [f"{warm.directory}/xectool", "-c", block]
        result = subprocess.run(
            words, cwd=workspace, env=environment, capture_output=True, text=True, check=False, timeout=900
        )
        assert result.returncode == 0, f"{block}\n{result.stderr}"


def test_every_test_the_documentation_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "older-system.md").read_text()))
    existing = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert len(named) > 20
    assert named <= existing, named - existing
