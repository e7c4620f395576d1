"""The documentation is built, complete and true: pages from the code, commands and keys that exist, every older key."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import yaml
from typer.exceptions import TyperException
from xectool import engine
from xectool.cli.app import app
from xectool.config.key_page import all_keys
from xectool.config.keys import MOVED
from xectool.config.load import load_config
from xectool.config.translate import RENAMED
from xectool.errors import XecError
from xectool.explanations import library
from xectool.runlog.metrics import find_metric

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
GENERATED = (
    "commands.md",
    "configuration.md",
    "findings.md",
    "metrics.md",
    "record.md",
    "exit-codes.md",
    "json-keys.md",
)
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name not in GENERATED),
]
FENCE = re.compile(r"^```\w*(?: .*)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
SHELL = frozenset({"|", ">", "2>", "2>&1", "&&", "&", ";"})


def generator() -> ModuleType:
    sys.path.insert(0, str(REFERENCE))  # it imports its neighbour
    spec = importlib.util.spec_from_file_location("reference_pages", REFERENCE / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_says_what_the_code_says() -> None:
    pages: dict[str, str] = generator().pages()
    assert sorted(pages) == sorted(GENERATED)
    stale = [name for name, text in pages.items() if (REFERENCE / name).read_text(encoding="utf-8") != text]
    assert not stale, "run: make reference"


def test_every_command_key_and_code_is_in_the_reference() -> None:
    commands, keys, codes = ((REFERENCE / name).read_text() for name in GENERATED[:3])
    assert {f"## {name}" for name, _ in leaves(typer.main.get_command(app), "xectool")} <= set(commands.splitlines())
    sections = {key.rpartition(".")[0] for key in all_keys()}
    assert [key for key in all_keys() if key not in sections and f"| `{key}` |" not in keys] == []
    assert [entry.name for entry in library() if f"| `{entry.name}` |" not in codes] == []


def test_every_check_of_data_checkpoints_and_exports_is_named_by_a_test() -> None:
    """A reader finds the tests of a row by its code."""
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    checks = [entry.name.split()[0] for entry in library() if re.match(r"(DAT|K|X)-\d\d\b", entry.name)]
    assert len(checks) == 26 + 21 + 20
    assert [name for name in checks if name.replace("K-", "K") not in tests] == []


def test_the_site_builds_and_asks_nobody(tmp_path: Path) -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    build = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    result = subprocess.run(build, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    listed = set(re.findall(r"(\S+\.md)$", settings, re.MULTILINE))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    built = {str(page.relative_to(tmp_path / "build/site")) for page in (tmp_path / "build/site").rglob("*.html")}
    assert {name.replace(".md", ".html") for name in listed} <= built
    loaded = re.compile(r"""<(?:script|img|link)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//(?!xectool)""")
    asking = [name for name in built if loaded.search((tmp_path / "build/site" / name).read_text())]
    assert asking == []


def leaves(command: Any, name: str) -> list[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if not inner:
        return [(name, command)]
    return [leaf for own, below in inner.items() for leaf in leaves(below, f"{name} {own}")]


def written_commands() -> list[tuple[str, str, bool]]:
    """Every `xectool …` of every page with whether it stands in a block, complete; in running text it may be a part."""
    found = []
    for page in PAGES:
        text = page.read_text()
        lines = [line.strip() for block in FENCE.findall(text) for line in block.replace("\\\n", " ").splitlines()]
        found += [(page.name, line.partition("-m ")[2] if "-m xectool " in line else line, True) for line in lines]
        found += [(page.name, line.strip(), False) for line in INLINE.findall(FENCE.sub("", text))]
    return [(page, line, whole) for page, line, whole in found if line.startswith("xectool ")]


@cache
def root_command() -> Any:
    return typer.main.get_command(app)


def complaint(line: str, whole: bool = False) -> str:
    """Say what of a written command would be refused: it is read as the program reads it, and not run."""
    split = shlex.split(line.replace("\\|", "|").replace("…", " "), comments=True)[1:]
    words = ["1" if word == "N" else word for word in itertools.takewhile(lambda word: word not in SHELL, split)]
    command, known = root_command(), frozenset(all_keys())
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if hasattr(command, "commands"):
        return f"no command {words[0]}" if words and re.match(r"[a-z]", words[0]) else ""
    keys = [after.partition("=")[0] for word, after in itertools.pairwise(words) if word == "--set"]
    unknown = [key for key in keys if key not in known and key != "KEY"]
    if words and command.name == "explain" and words[0] not in ("TOPIC", "CODE", "KEY"):
        answers = library().find(" ".join(words)) or find_metric(words[0])
        unknown += [words[0]] if answers is None and words[0] not in known else []
    try:
        if "--help" not in words:
            command.make_context(command.name, words)
    except (TyperException, XecError) as error:
        part = ("Missing argument", "Missing option", "Option")  # … requires an argument
        refusal = error.format_message() if isinstance(error, TyperException) else str(error)
        unknown += [refusal] if whole or not refusal.startswith(part) else []
    return ", ".join(unknown)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("xectool trian CONFIG", "no command trian"),
        ("xectool train CONFIG --reusme auto", "--reusme"),
        ("xectool train CONFIG --set training.batch_size=1", "training.batch_size"),
        ("xectool explain NO-SUCH-CODE", "NO-SUCH-CODE"),
        ("xectool simulate data.root --events many", "many"),
        ("xectool predict --output out.root > log", "Missing argument"),
        ("xectool predict MODEL DATA --weights ema", ""),
    ],
)
@pytest.mark.usefixtures("unread_inputs")
def test_a_command_that_would_be_refused_is_seen(line: str, said: str) -> None:
    assert said in complaint(line, whole=True)
    assert bool(said) == bool(complaint(line, whole=True))


def test_no_line_of_the_changelog_is_over_160_columns() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > 160] == []


def test_help_holds_nothing_that_is_taken_for_markup_or_doubled() -> None:
    for name, command in leaves(root_command(), "xectool"):
        for parameter in command.params:
            assert "[" not in (parameter.help or ""), (name, parameter.name)  # rich leaves it out
            if parameter.param_type_name == "argument":
                assert not re.search(r"\[|…|\.\.", parameter.metavar or ""), name  # typer adds them


@pytest.mark.usefixtures("unread_inputs")
def test_every_command_written_anywhere_is_taken_with_its_options_and_keys() -> None:
    written = written_commands()
    assert len(written) > 100
    assert sum(whole for *_, whole in written) > 80
    assert [(page, line, said) for page, line, whole in written if (said := complaint(line, whole))] == []


def test_every_key_and_code_written_anywhere_exists() -> None:
    sections = {key.partition(".")[0] for key in all_keys() if "." in key}
    wrong = []
    for page in PAGES:
        if page.name in ("migration.md", "older-system.md", "experiments.md"):
            continue
        for word in INLINE.findall(FENCE.sub("", page.read_text())):
            key = re.match(r"^([a-z_]+(?:\.[A-Za-z_]+)+)(?:[:=].*)?$", word)
            if (
                key
                and key[1].partition(".")[0] in sections
                and not re.search(r"\.(ya?ml|root|json|pt|jsonl|onnx)$", word)
            ):
                wrong += [(page.name, word)] if key[1] not in all_keys() else []
            if re.fullmatch(r"(XT|CFG|DAT)-[A-Z0-9-]+", word) and library().find(word) is None:
                wrong.append((page.name, word))
    assert wrong == []


def test_every_function_of_the_python_interface_is_on_its_page() -> None:
    page = (REFERENCE / "python.md").read_text()
    assert [name for name in engine.__all__ if f"engine.{name}" not in page] == []
    # one function a command: the page names the command of each
    commands = {line.rpartition(" ")[2] for line, _ in leaves(root_command(), "xectool")}
    functions = {name.replace("_", "-") for name in (*engine.__all__, *engine.diagnose.__all__)}
    assert commands - functions - {"init", "show", "check", "schema", "diff", "runs", "sync", "ctl", "compare"} == set()


PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Python on pages that have commands too runs in its place among them (`test_commands_of_a_page_run_in_their_order`).
ALONE = [page for page in PAGES if "```sh" not in page.read_text()]
EXAMPLES = [(page, block) for page in ALONE for block in PYTHON.findall(page.read_text())]


@pytest.mark.parametrize(("page", "block"), EXAMPLES, ids=lambda value: getattr(value, "name", ""))
def test_python_on_a_page_runs(page: Path, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(page), "exec"), {})


MIGRATION = (ROOT / "docs" / "migration.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")] for line in MIGRATION.splitlines() if line.startswith("| `")
]


@pytest.mark.parametrize("renamed", RENAMED, ids=lambda renamed: ".".join(renamed.old))
def test_every_translated_key_stands_on_the_page_with_its_new_name(renamed: Any) -> None:
    old, new = ".".join(renamed.old), ".".join(renamed.new)
    rows = [row for row in ROWS if row[0] == f"`{old}`"]
    assert [row[1:] for row in rows] == [[", ".join(renamed.kinds), f"`{new}`"]]


def test_every_word_of_other_trainers_stands_on_the_page_with_its_key() -> None:
    told = {name: row[-1].strip("`") for row in ROWS for name in INLINE.findall(row[0])}
    assert {old: told.get(old) for old in MOVED} == MOVED


def test_keys_and_commands_that_replace_something_exist() -> None:
    options = [row for row in ROWS if row[0].startswith("`--") and len(row) == 2]
    assert len(options) > 20
    assert [row for row in options if row[1].strip("`") not in all_keys()] == []


OLDER_COMMON = """
data: {train_path: a.root, val_path: b.root, tree_name: tree, batch_size: 1024, chunksize: 256000, num_workers: 1,
       num_threads: 4, prefetch_factor: 2, npho_branch: npho, time_branch: relative_time, log_invalid_npho: true}
normalization: {npho_scale: 1000, npho_scale2: 4.08, time_scale: 1.14e-7, time_shift: -0.46, sentinel_time: -1.0,
                sentinel_npho: -1.0, npho_scheme: log1p, npho_threshold: 100.0}
distributed: {num_gpus: 1}
mlflow: {experiment: older, run_name: null}
"""
OLDER_SENSOR = """
training: {epochs: 20, lr: 1.0e-4, lr_scheduler: cosine, lr_min: 1.0e-6, warmup_epochs: 0, weight_decay: 1.0e-4,
           loss_fn: smooth_l1, loss_beta: 1.0, npho_weight: 1.0, grad_clip: 1.0, grad_accum_steps: 1, ema_decay: null,
           time: {weight: 1.0, mask_ratio_scale: 1.0, use_npho_weight: true, npho_threshold: 100}, amp: true,
           compile: none, compile_fullgraph: false, track_mae_rmse: false, track_metrics: false, profile: false,
           npho_loss_weight: {enabled: false, alpha: 0.5}, SENSOR
           intensity_reweighting: {enabled: false, nbins: 5, target: uniform}}
checkpoint: {resume_from: null, save_dir: runs, save_interval: 10, save_predictions: true, root_save_interval: 10,
             reset_epoch: false, refresh_lr: false, new_mlflow_run: false}
"""
OLDER = {
    "regressor": """
model: {outer_mode: finegrid, outer_fine_pool: null, hidden_dim: 256, drop_path_rate: 0.0, encoder_dim: 1024,
        dim_feedforward: null, num_fusion_layers: 2}
tasks:
  angle: {enabled: true, loss_fn: smooth_l1, loss_beta: 1.0, weight: 1.0, log_transform: false}
  energy: {enabled: false, loss_fn: smooth_l1, loss_beta: 1.0, weight: 1.0, log_transform: false}
  timing: {enabled: false, loss_fn: smooth_l1, loss_beta: 1.0, weight: 1.0, log_transform: false}
  uvwFI: {enabled: false, loss_fn: smooth_l1, loss_beta: 1.0, weight: 1.0, log_transform: false}
training: {epochs: 20, lr: 3.0e-4, weight_decay: 1.0e-4, warmup_epochs: 2, lr_scheduler: null, max_lr: null,
           pct_start: 0.3, lr_patience: 5, lr_factor: 0.5, lr_min: 1.0e-7, lr_restart_period: 10, lr_restart_mult: 2,
           amp: true, ema_decay: 0.999, channel_dropout_rate: 0.1, grad_clip: 1.0, grad_accum_steps: 1, profile: false,
           compile: none, compile_fullgraph: false}
loss_balance: manual
reweighting: {angle: {enabled: false, nbins: 30, nbins_2d: [20, 20]}, energy: {enabled: false, nbins: 30},
              timing: {enabled: false, nbins: 30}, uvwFI: {enabled: false, nbins: 30, nbins_2d: [20, 20]}}
checkpoint: {resume_from: null, save_dir: artifacts, save_interval: 10, save_artifacts: true, refresh_lr: false,
             reset_epoch: false, new_mlflow_run: false}
export: {onnx: null}
""",
    "mae": "model: {outer_mode: finegrid, outer_fine_pool: null, mask_ratio: 0.6, predict_channels: [npho, time],\n"
    "        decoder_dim: 128, encoder_dim: 1024, dim_feedforward: null, num_fusion_layers: 2}"
    + OLDER_SENSOR.replace("SENSOR", "auto_channel_weight: false,"),
    "inpainter": "model: {outer_mode: finegrid, outer_fine_pool: null, mask_ratio: 0.05, mask_npho_flat: false,\n"
    "        predict_channels: [npho], freeze_encoder: true, use_local_context: true, use_masked_attention: false,\n"
    "        head_type: per_face, sensor_positions_file: null, cross_attn_k: 16, cross_attn_hidden: 64,\n"
    "        cross_attn_latent_dim: 128, cross_attn_pos_dim: 96, encoder_dim: 1024, dim_feedforward: null,\n"
    "        num_fusion_layers: 2}" + OLDER_SENSOR.replace("SENSOR", "mae_checkpoint: null,"),
}


@pytest.mark.parametrize("kind", OLDER)
def test_a_file_with_every_key_of_the_older_system_loads(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "older.yaml"
    path.write_text(OLDER_COMMON + OLDER[kind])
    written = dotted(yaml.safe_load(path.read_text()))
    loaded = load_config(path)
    assert (loaded.config.kind, loaded.findings.errors) == (kind, ())
    renamed = {".".join(item.old) for item in RENAMED}
    assert [key for key in written if key not in all_keys() and key not in renamed] == []


def dotted(content: dict[str, Any], prefix: str = "") -> list[str]:
    return [
        key
        for name, value in content.items()
        for key in (dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name])
    ]
