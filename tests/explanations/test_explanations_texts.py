"""Everything that can be asked for has a text, and everything a text says to paste works."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from xectool import engine
from xectool.cli.app import app
from xectool.config.key_page import all_keys, key_pages
from xectool.config.keys import MOVED
from xectool.config.load import load_config
from xectool.config.root import KINDS
from xectool.config.template import template
from xectool.errors import UsageError
from xectool.explanations import Entry, Library, library

ROOT = Path(__file__).resolve().parents[2]
TOPICS = [
    "oom-gpu", "batch-sizes", "oom-host", "prediction-memory", "grad-accumulation", "mlflow-locked", "mlflow-uri",
    "compile-modes", "compile-time", "cudagraphs", "recompiles", "triton-arm", "nan", "grad-clip", "grad-norm",
    "spike-recovery", "loss-beta", "units", "baseline", "lr-sweep", "warmup", "normalization", "sentinel",
    "invalid-sensors", "mask-ratio", "actual-mask-ratio", "data-loading", "chunksize-workers-threads",
    "iterable-sharding", "shuffling", "presets", "a100", "gh200", "cpu", "grace-hopper", "cpu-training",
    "checkpoints", "resume", "weights-only", "prefixes", "strict", "emergency-checkpoint", "reproducibility", "amp",
    "numerics", "ddp-hang", "collectives", "ddp-batch", "nccl-env", "ports", "lazy-init", "precompute", "startup",
    "staged-launch", "miopen", "core-dumps", "hang", "live", "memory-growth", "gpu-utilization", "export-onnx",
    "mae-helped", "artifacts", "saliency", "mlflow-ui", "stale-advice", "exit-codes", "guards",
    "ema", "resolution-plots",
]  # fmt: skip
CODE = re.compile(r"(CFG|XT|DAT)-[A-Z0-9]+(-[A-Z0-9]+)*|[KXG]-?\d{1,2}")
COMMANDS = typer.main.get_command(app)
ENTRIES = list(library())
PASTED = [(entry, line) for entry in ENTRIES for line in entry.paste]


def codes_in(path: Path) -> Iterator[str]:
    """Every string of a module that is a finding code, and whatever is given or assigned as ``code``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
            yield node.value
        given = node.value if isinstance(node, ast.keyword) and node.arg == "code" else None
        if isinstance(given, ast.Constant) and isinstance(given.value, str) and given.value:
            yield given.value


CODES = sorted({code for path in (ROOT / "xectool").rglob("*.py") for code in codes_in(path)})


# What is asked of hundreds of entries is one test each: as many tests took ten times as long as what they ask.
def test_every_topic_answers() -> None:
    for topic in TOPICS:
        answer = engine.explain(topic)
        assert len(answer.text) > 140, topic
        assert answer.see, topic


def test_the_scan_for_codes_sees_rules_errors_and_findings() -> None:
    assert {"CFG-20", "XT-OOM-GPU", "CFG-NOTE", "XT-DEFECT", "XT-NAN"} <= set(CODES)


def test_every_finding_code_in_the_source_has_cause_and_fix() -> None:
    for code in CODES:
        entry = library().find(code)
        assert entry is not None, f"write an entry '## {code}: ...' in xectool/explanations/texts"
        assert entry.is_code, code
        assert entry.field("Cause"), f"{code} says no cause"
        assert entry.field("Fix"), f"{code} says no fix"
        assert entry.paste, f"{code} has no line to paste"
        assert engine.explain(code).title.startswith(entry.name)


def test_every_configuration_key_answers_with_what_the_schema_says() -> None:
    for dotted in all_keys():
        answer = engine.explain(dotted)
        page = key_pages(dotted)[0]
        assert page.text in answer.text, dotted
        assert dotted in f"{answer.title} {answer.text}"


def test_a_key_tells_unit_default_bounds_and_allowed_values() -> None:
    text = engine.explain("data.batch_size").text
    assert all(part in text for part in ("Unit: events", "Default: 256", "Bounds: > 0"))
    assert "Allowed: auto, off, bf16, fp16" in engine.explain("training.amp").text
    assert "Allowed: true, false" in engine.explain("data.shuffle").text


def test_a_default_that_depends_on_the_kind_is_told_for_each() -> None:
    text = engine.explain("training.lr").text
    assert "0.0003 (regressor)" in text
    assert "0.0001 (mae)" in text


def test_a_key_answers_to_its_last_name_and_to_names_of_other_trainers() -> None:
    assert engine.explain("prefetch_factor").title.startswith("data.prefetch_factor")
    for old, dotted in MOVED.items():
        if library().find(old) is None:
            assert engine.explain(old).title.startswith(dotted)


def test_a_name_of_several_keys_lists_them() -> None:
    answer = engine.explain("loss_fn")
    assert "tasks.energy.loss_fn" in answer.see
    assert "training.loss_fn" in answer.see


def test_a_section_lists_its_keys() -> None:
    assert "data.chunksize" in engine.explain("data").text


def test_a_topic_that_is_a_section_too_tells_both() -> None:
    text = engine.explain("normalization").text
    assert "log1p" in text
    assert "normalization.time_scale" in text


def test_unknown_topic_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="xectool explain oom-gpu"):
        engine.explain("oom-gup")


def test_a_word_that_stands_in_a_text_finds_it() -> None:
    with pytest.raises(UsageError, match="nccl-env"):
        engine.explain(["infiniband", "ib_disable"][1])


@pytest.mark.parametrize(
    ("word", "first"),
    [("dead", "invalid-sensors"), ("ema", "ema"), ("sigma_eff", "resolution-plots"), ("memory", "oom-gpu"),
     ("gpu memory", "oom-gpu"), ("host", "oom-host"), ("gradient", "grad-norm")],
)  # fmt: skip
def test_a_plain_word_leads_to_the_topics_before_the_codes(word: str, first: str) -> None:
    answer = engine.explain(word)
    assert answer.title.startswith(f"{first}: ") or answer.text.startswith(f"{first} "), answer
    names = [name for name in answer.see if library().find(name) is not None]
    if answer.title.startswith(f"{word}: a word of"):
        codes = [library().find(name).is_code for name in names]  # type: ignore[union-attr]
        assert codes == sorted(codes)


def test_little_words_find_nothing_and_hide_nothing() -> None:
    assert engine.explain("the loss is NaN") == engine.explain("loss nan")
    for nothing in ("no", "no-such", "is it"):
        with pytest.raises(UsageError):
            engine.explain(nothing)


def test_a_word_of_keys_and_codes_alone_lists_them() -> None:
    answer = engine.explain("quarantined")
    assert "guards.max_quarantined" in answer.text


def test_case_hyphens_and_leading_zeros_do_not_matter() -> None:
    assert engine.explain("cfg_7") == engine.explain("CFG-07") == engine.explain("cfg07")
    assert engine.explain("oom gpu") == engine.explain("OOM-GPU")
    assert engine.explain("G3") == engine.explain("g-03")


def test_without_a_topic_all_topics_are_listed() -> None:
    answer = engine.explain()
    assert len(answer.see) == len(library().topics)
    assert all(name in answer.text for name in answer.see)


def test_related_names_answer() -> None:
    for topic, name in ((entry.name, name) for entry in ENTRIES for name in entry.see):
        words = name.split()
        if words[0] == "xectool":
            assert_known_command(words)
        else:
            assert engine.explain(name).text, (topic, name)


def assert_known_command(words: list[str]) -> None:
    command, rest = COMMANDS, list(words[1:])
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"no command {' '.join(words)}"
        command = command.commands[rest.pop(0)]
    if not {"--help", "--version"} & set(rest) and not (hasattr(command, "commands") and not rest):
        command.make_context(words[-1], rest)


def xectool_words(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    # variables may stand before the command; `pip install xectool` is no command of ours
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    return words if words[:1] == ["xectool"] else []


@pytest.mark.usefixtures("unread_inputs")
def test_every_command_to_paste_exists_with_its_options() -> None:
    for words in filter(None, (xectool_words(line) for _, line in PASTED)):
        assert_known_command(words)
        if words[1] == "explain" and len(words) > 2:
            assert engine.explain(words[2])


SETTINGS = [(entry, line) for entry, line in PASTED if "--set" in line]


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("explained")
    for kind in KINDS:
        (directory / f"{kind}.yaml").write_text(template(kind))
    return {kind: directory / f"{kind}.yaml" for kind in KINDS}


@pytest.mark.parametrize(("entry", "line"), SETTINGS, ids=lambda value: getattr(value, "name", str(value)[-60:]))
def test_every_setting_to_paste_loads(configs: dict[str, Path], entry: Entry, line: str) -> None:
    words = xectool_words(line)
    overrides = [after for word, after in itertools.pairwise(words) if word == "--set"]
    assert overrides
    kind = next((kind for kind in KINDS if f"{kind.upper()}_CONFIG" in words), "regressor")
    loaded = load_config(configs[kind], overrides)
    assert loaded.config.kind == kind


def test_a_wrong_setting_would_be_caught(configs: dict[str, Path]) -> None:
    with pytest.raises(Exception, match=r"data\.batch_size"):
        load_config(configs["regressor"], ["training.batch_size=512"])


def test_dotted_keys_in_the_texts_exist() -> None:
    sections = {dotted for dotted in all_keys() if "." not in dotted}
    for entry in ENTRIES:
        for word in re.findall(r"(?<![\w./])[a-z_]+(?:\.[A-Za-z_0-9]+)+", entry.text):
            if word.split(".")[0] in sections and not word.endswith(
                (".root", ".yaml", ".pt", ".json", ".onnx", ".data", ".db")
            ):
                known = word in all_keys() or word == "training.batch_size" or word.startswith("mlflow.exceptions")
                assert known, f"{entry.name}: no key {word}"


def test_no_text_says_to_delete_or_to_kill_by_name() -> None:
    for entry, line in PASTED:
        assert not re.search(r"\b(pkill|killall|rm)\b(?! --cached)", line.replace("git rm", "git")), (entry.name, line)
        assert "weights_only=False" not in line


@pytest.mark.parametrize(
    ("topic", "numbers"),
    [
        ("batch-sizes", "8192-16384 16384-32768 1024-2048 2048-4096 75.1 48.8 615"),
        ("prediction-memory", "238 476 47.6 95.2 128.5 7.1 257 14.3 2.4 4.8 540"),
        ("compile-modes", "5-15 1-5 30-90 85-90 6x max-autotune-no-cudagraphs"),
        ("grad-norm", "0.001-0.01 0.01-0.1 0.5-0.8 ~1.0"),
        ("grad-clip", "0.05-0.1 0.3-0.5 1.0-2.0 2-5x 50"),
        ("loss-beta", "1.25e-5 5e-3 0.015-0.06 1e-9 5e-18 1e-8"),
        ("lr-sweep", "1.1 312.8 1.88 109.6 432M+ +0.023 -0.058 -0.067 -0.093 -0.097"),
        ("chunksize-workers-threads", "9.98 2.50 38 256 6.5 8.4"),
        ("presets", "262144 65536 2048 reduce-overhead"),
        ("normalization", "5,714 77,785 13,130 2,762 3.9 0.28 5,159 276 0.170"),
        ("actual-mask-ratio", "4760 4284 2570 0.59991 0.5399 0.6399"),
        ("ddp-batch", "1024 1600 2e-4"),
        ("precompute", "6.34 16 1024"),
        ("core-dumps", "1102.61 100.00"),
        ("miopen", "10-30"),
        ("cpu-training", "50-100x"),
        ("baseline", "1.5708 0.01126 1.69e-4 8.45e-5 7.0e-3 85.9"),
        ("sentinel", "166.44 32.5"),
        ("nan", "tenfold 50"),
        ("amp", "65504"),
        ("grad-accumulation", "2048 1024 1600 0.65 2e-7"),
        ("mlflow-locked", "20.1"),
    ],
)
def test_reference_numbers_are_quoted(topic: str, numbers: str) -> None:
    text = engine.explain(topic).text
    assert [number for number in numbers.split() if number not in text] == []


def test_two_entries_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="xt_x"):
        Library({"a": "## XT-X: one\nCause: a\n\n## xt_x: two\nCause: b\n"})


def test_a_heading_without_a_title_is_refused() -> None:
    with pytest.raises(ValueError, match="no heading"):
        Library({"a": "## XT-X\n"})


def test_explaining_loads_neither_torch_nor_anything_heavy() -> None:
    code = (
        "import sys; from xectool import engine; engine.explain('oom-gpu'); engine.explain('training.lr');"
        "print([name for name in ('torch', 'numpy', 'uproot', 'mlflow') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
