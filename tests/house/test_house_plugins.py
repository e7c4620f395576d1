"""Other packages add checks, rules and kinds; a broken one is named and never a traceback."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from xectool import engine
from xectool.config.load import load_config
from xectool.errors import UsageError
from xectool.registry.plugins import _entry_points
from xectool.training.ranks.agreement import program_facts

ROOT = Path(__file__).resolve().parents[2]
Asked = Callable[..., tuple[int, dict[str, Any]]]
CONFIG = "kind: photons_only\ntasks: {energy: {enabled: true, scale: auto}}\nmodel: {encoder_dim: 64}\n"


# A fork of a process that has the packages around xectool loaded; xectool itself is imported by it, with the plugins.
STARTED = """
import os, sys
for name in [name for name in sys.modules if name.partition(".")[0] == "xectool"]: del sys.modules[name]
sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
from xectool.__main__ import main; main()
"""


def asked_anew(folder: Path, *argv: str) -> tuple[int, dict[str, Any]]:
    """Run a command with the packages of a folder installed beside xectool; return exit code and document."""
    command = [sys.executable, "-m", "xectool", *argv, "--json"]
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    return told(subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False))


def told(result: subprocess.CompletedProcess[str]) -> tuple[int, dict[str, Any]]:
    assert "Traceback" not in result.stderr, result.stderr
    return result.returncode, json.loads(result.stdout)


@pytest.fixture
def asked(warm: Any, shallow: None) -> Asked:
    """Return what does the same for a third of the CPU: torch is there, xectool and the plugins are imported anew."""

    def ask(folder: Path, *argv: str) -> tuple[int, dict[str, Any]]:
        path = os.pathsep.join(filter(None, [str(folder), str(ROOT), os.environ.get("PYTHONPATH")]))
        with contextlib.chdir(folder):
            return told(warm.run("-c", STARTED, *argv, "--json", PYTHONPATH=path))

    return ask


@pytest.mark.slow
def test_the_example_plugin_adds_a_check_a_rule_and_a_kind(tmp_path: Path, asked: Asked) -> None:
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(tmp_path), str(ROOT / "examples" / "plugin")], check=True)
    engine.simulate(str(tmp_path / "train.root"), events=24, seed=1)
    engine.simulate(str(tmp_path / "val.root"), events=8, seed=2)
    (tmp_path / "run.yaml").write_text(CONFIG + "data: {train_path: train.root, val_path: val.root, batch_size: 8}\n")

    _, checked = asked(tmp_path, "check-data", "train.root")
    (finding,) = (item for item in checked["findings"] if item["code"] == "EXAMPLE-02")
    assert "24 events" in finding["problem"]
    code, explained = asked(tmp_path, "explain", "example-2")
    assert (code, explained["result"]["title"]) == (0, "EXAMPLE-02: A file holds at least 100 events")
    assert "a job was killed" in explained["result"]["text"]
    _, ruled = asked_anew(tmp_path, "config", "check", "run.yaml", "--set", "training.lr=0.05")
    assert "EXAMPLE-01" in [item["code"] for item in ruled["findings"]]
    code, trained = asked(
        tmp_path, "train", "run.yaml", "--max-steps", "3", "--run-name", "p", "--set", "mlflow.enabled=false",
        "--set", "checkpoint.save_artifacts=false",
    )  # fmt: skip
    assert (code, trained["result"]["steps"]) == (0, 3)
    code, predicted = asked(tmp_path, "predict", "artifacts/p/checkpoint_last.pt", "val.root")
    assert (code, predicted["result"]["events"]) == (0, 8)
    code, refused = asked(tmp_path / "artifacts", "predict", "p/checkpoint_last.pt", "../val.root")
    assert code == 2
    assert refused["findings"][0]["fix"].startswith("pip list   # lacks the package xectool-example that brings ")


BROKEN = {
    "a module that is not there": ("rules", "x = no_such_module:Rule", "", "No module named 'no_such_module'"),
    "a name that is not there": ("rules", "x = broken_plugin:Rule", "", "has no attribute 'Rule'"),
    "a syntax error": ("rules", "x = broken_plugin:Rule", "def (", "SyntaxError"),
    "an error of its own while it loads": (
        "rules", "x = broken_plugin:Rule", "class Odd(Exception): pass\nraise Odd('my own')", "Odd: my own",
    ),
    "no rule": ("rules", "x = broken_plugin:Rule", "Rule = 3", "is no subclass of xectool.rules.Rule"),
    "a code of ours": (
        "rules", "x = broken_plugin:Mine",
        "from xectool.rules import Rule\nclass Mine(Rule):\n code='CFG-15'; title=''\n def check(self, facts): yield",
        "takes a name or code of xectool",
    ),
    "an error while it checks": (
        "rules", "x = broken_plugin:Mine",
        "from xectool.rules import Rule\nclass Mine(Rule):\n code='MY-1'\n title=''\n"
        " def check(self, facts): yield {}['k']",
        "failed while it checked MY-1: KeyError",
    ),
    "a kind that says another": (
        "kinds", "mine = broken_plugin:Mine", "from xectool.config.root import MaeConfig as Mine", "kind is 'mae'",
    ),
    "a kind of nothing but the common sections": (
        "kinds", "mine = broken_plugin:RunSections", "from xectool.config.root import RunSections", "no subclass of",
    ),
    "a kind of its own that is none of the three": (
        "kinds", "mine = broken_plugin:Mine",
        "from xectool.config.root import RunSections\nclass Mine(RunSections):\n kind: str = 'mine'",
        "no subclass of",
    ),
    "a rule that ends the program": ("rules", "Mine = broken_plugin:Mine", "import sys; sys.exit(3)", "SystemExit: 3"),
    "a kind of ours": (
        "kinds", "mae = broken_plugin:Mine", "from xectool.config.root import MaeConfig as Mine", "a kind of its own",
    ),
}  # fmt: skip


def install(folder: Path, family: str, entry: str, source: str) -> None:
    (folder / "broken_plugin.py").write_text(source)
    about = folder / "broken_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[xectool.{family}]\n{entry}\n")


@pytest.mark.parametrize("name", [name for name, case in BROKEN.items() if case[0] == "rules"])
def test_a_broken_rule_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family, entry, source, said = BROKEN[name]
    install(tmp_path, family, entry, source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_plugin", raising=False)
    (tmp_path / "run.yaml").write_text("kind: mae\n")
    _entry_points.cache_clear()
    try:
        with pytest.raises(UsageError, match="pip uninstall broken-plugin") as caught:
            load_config(tmp_path / "run.yaml")
    finally:
        _entry_points.cache_clear()
    assert said in caught.value.problem
    assert caught.value.code == "XT-PLUGIN"


@pytest.mark.parametrize("name", [name for name, case in BROKEN.items() if case[0] == "kinds"])
def test_a_broken_kind_is_named_where_it_is_asked_for_and_stops_no_other(
    name: str, tmp_path: Path, asked: Asked
) -> None:
    family, entry, source, said = BROKEN[name]
    install(tmp_path, family, entry, source)
    kind = entry.partition(" ")[0]
    (tmp_path / "run.yaml").write_text(f"kind: {kind}\n")
    (tmp_path / "other.yaml").write_text("kind: inpainter\n")
    for asking in (["config", "check", "run.yaml"], ["config", "init", "--kind", kind]):
        code, document = asked(tmp_path, *asking)
        (finding,) = document["findings"]
        assert (code, finding["code"]) == (2, "XT-PLUGIN")
        assert said in finding["problem"]
    assert [asked(tmp_path, *argv)[0] for argv in (["config", "check", "other.yaml"], ["explain", "nan"])] == [0, 0]


OWN_KIND = """
from typing import Literal
from xectool.config.root import {base}Config
class Mine({base}Config):
    kind: Literal['mine'] = 'mine'
"""
# Each remedy that is in use already is a step that need not be taped: these leave three of six.
KEYS = "model.encoder_dim=64 model.num_fusion_layers=1 model.outer_fine_pool=[5,3] data.chunksize=64 data.batch_size=4"
SMALL = [f"--set={key}" for key in f"{KEYS} training.amp=bf16 training.activation_checkpointing=stages".split()]
LENT = "from xectool.{family} import {registry}\ndef build(*args): return {registry}['{kind}'](*args)\n"


def test_a_broken_model_is_the_plugins_fault_where_its_kind_is_trained_and_stops_no_other(
    tmp_path: Path, asked: Asked
) -> None:
    install(tmp_path, "kinds", "mine = broken_plugin:Mine", OWN_KIND.format(base="Mae"))
    (tmp_path / "worse_plugin.py").write_text("1 / 0")
    points = tmp_path / "broken_plugin-1.0.dist-info" / "entry_points.txt"
    models = "[xectool.models]\nmine = worse_plugin:Mine\nregressor = worse_plugin:Mine\n"
    points.write_text(points.read_text() + models)
    (tmp_path / "run.yaml").write_text("kind: mine\n")
    code, document = asked(tmp_path, "estimate-memory", "run.yaml", "--events", "100")
    (finding,) = document["findings"]
    assert (code, finding["code"]) == (2, "XT-PLUGIN"), "not 70, a defect of ours"
    assert "ZeroDivisionError" in finding["problem"]
    (tmp_path / "run.yaml").write_text("kind: mae\n")
    code, document = asked(tmp_path, "estimate-memory", "run.yaml", "--events", "100", *SMALL)
    assert code == 0, document["findings"]


def build_on(folder: Path, base: str, kind: str) -> None:
    """Install a kind ``mine`` with network and task of one of ours."""
    install(folder, "kinds", "mine = broken_plugin:Mine", OWN_KIND.format(base=base))
    lent = {"models": LENT.format(family="models.build", registry="MODELS", kind=kind)}
    lent["tasks"] = LENT.format(family="tasks", registry="TASKS", kind=kind)
    points = folder / "broken_plugin-1.0.dist-info" / "entry_points.txt"
    for family, source in lent.items():
        (folder / f"my_{family}.py").write_text(source)
        points.write_text(points.read_text() + f"[xectool.{family}]\nmine = my_{family}:build\n")


@pytest.mark.slow
def test_a_kind_built_on_the_inpainter_repairs_translates_older_keys_and_starts_others(
    tmp_path: Path, asked: Asked
) -> None:
    build_on(tmp_path, "Inpainter", "inpainter")
    for number, name in enumerate("ab"):
        engine.simulate(str(tmp_path / f"{name}.root"), events=16, seed=number)
    data = "data: {train_path: a.root, val_path: b.root, batch_size: 8}\nmlflow: {enabled: false}\n"
    sizes = "model: {encoder_dim: 64}\n" + data
    (tmp_path / "run.yaml").write_text("kind: mine\ntraining: {npho_threshold: 7}\n" + sizes)
    (tmp_path / "next.yaml").write_text(f"kind: regressor\n{sizes}tasks: {{energy: {{enabled: true}}}}\n")
    train = ("train", "--max-steps", "1", "--set", "checkpoint.save_artifacts=false", "--run-name")
    code, trained = asked(tmp_path, *train, "p", "run.yaml")
    assert code == 0, trained["findings"]
    assert "npho_threshold: 7" in (tmp_path / "artifacts" / "p" / "config.yaml").read_text()
    weights = "artifacts/p/checkpoint_last.pt"
    code, repaired = asked(tmp_path, "predict", weights, "a.root", "--repair", "c.root")
    assert (code, repaired["result"]["events"]) == (0, 16), repaired["findings"]
    code, started = asked(tmp_path, *train, "q", "next.yaml", "--set", f"checkpoint.init_from={weights}")
    assert code == 0, started["findings"]


@pytest.mark.parametrize(("base", "kind"), [("Regressor", "regressor"), ("Mae", "mae"), ("Inpainter", "inpainter")])
def test_a_kind_may_be_built_on_each_of_the_three(base: str, kind: str, tmp_path: Path, asked: Asked) -> None:
    build_on(tmp_path, base, kind)
    code, begun = asked(tmp_path, "config", "init", "--kind", "mine")
    assert code == 0
    (tmp_path / "run.yaml").write_text(begun["result"]["yaml"])
    assert asked(tmp_path, "config", "check", "run.yaml")[0] == 0
    code, document = asked(tmp_path, "estimate-memory", "run.yaml", "--events", "100", *SMALL)
    assert code == 0, document["findings"]


@pytest.fixture
def brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Install a plugin that lies in a module, without its code; returns the folder."""

    def brought(module: str) -> Path:
        install(tmp_path, "models", f"mine = {module}:Mine", "WIDTH = 3")
        _entry_points.cache_clear()
        return tmp_path

    monkeypatch.syspath_prepend(tmp_path)
    for name in ("broken_plugin", "lab", "lab.xec"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield brought
    _entry_points.cache_clear()


def changed(edit: Callable[[], object]) -> set[str]:
    """Return the facts that another rank would have after an edit."""
    known = program_facts({})
    edit()
    importlib.invalidate_caches()
    other = program_facts({})
    return {key for key in known | other if known.get(key) != other.get(key)}


def test_the_code_of_a_plugin_is_compared_between_ranks(brings: Callable[[str], Path]) -> None:
    file = brings("broken_plugin") / "broken_plugin.py"
    assert changed(lambda: file.write_text("WIDTH = 4")) == {"plugin broken_plugin"}


def test_of_a_namespace_its_plugin_is_compared_with_the_names_of_its_files(brings: Callable[[str], Path]) -> None:
    lab = brings("lab.xec.models") / "lab"
    for name in ("xec/__init__.py", "xec/one.py", "others/late.py"):
        (lab / name).parent.mkdir(parents=True, exist_ok=True)
        (lab / name).write_text(f"# {name}")
    assert changed(lambda: (lab / "others" / "late.py").write_text("WIDTH = 4")) == set()
    assert changed(lambda: (lab / "xec" / "one.py").rename(lab / "xec" / "two.py")) == {"plugin lab.xec"}


def test_what_is_no_file_of_a_plugin_stops_no_run(brings: Callable[[str], Path], monkeypatch: Any) -> None:
    """Emacs' lock, a folder and a link to nothing are nothing; a file that cannot be read is another one."""
    package = brings("lab.xec") / "lab" / "xec"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()

    def leave() -> None:
        (package / ".#__init__.py").symlink_to("me@there.17")
        (package / "gone.py").symlink_to("nowhere.py")
        (package / "folder.py").mkdir()

    assert changed(leave) == set()
    assert changed(lambda: (package / "round.py").symlink_to("round.py")) == {"plugin lab.xec"}


@pytest.mark.parametrize("module", ["sys", "no_spec", "no_such_module", "no_such.module"])
def test_a_plugin_without_files_stops_no_run(brings: Callable[[str], Path], module: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "no_spec", ModuleType("no_spec"))
    brings(module)
    assert any(key.startswith("plugin ") for key in program_facts({}))
