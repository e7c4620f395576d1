"""The house keeps its own rules: layers, sizes, complexity, one public docstring each."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "xectool").rglob("*.py"))
CHECKED = ("xectool", "tests", "benchmarks", "docs/reference", "examples")
MAX_FILE_LINES = 300
MAX_FUNCTION_CODE_LINES = 40
MAX_NESTING = 3
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith, ast.Match)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def code_lines(node: ast.AST, source: list[str]) -> int:
    """Lines of a function's body without docstring, comments and blanks."""
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body:
        return 0
    lines = source[body[0].lineno - 1 : node.end_lineno]
    return sum(1 for line in lines if line.strip() and not line.strip().startswith("#"))


def nesting(node: ast.AST, depth: int = 0) -> int:
    deepest = depth
    for child in ast.iter_child_nodes(node):
        elif_branch = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        inner = depth + (isinstance(child, BLOCKS) and not elif_branch)
        deepest = max(deepest, nesting(child, inner))
    return deepest


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_and_its_functions_keep_the_size_rules(path: Path) -> None:
    source = path.read_text().splitlines()
    assert len(source) <= MAX_FILE_LINES, f"{path} has {len(source)} lines: split it by what its parts are about"
    for function in functions(path):
        where = f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
        assert code_lines(function, source) <= MAX_FUNCTION_CODE_LINES, f"{where} is too long"
        assert nesting(function) <= MAX_NESTING, f"{where} nests too deeply"


def test_size_rule_sees_a_long_function() -> None:
    body = "\n".join(f"    x = {i}" for i in range(50))
    tree = ast.parse(f"def f():\n{body}\n")
    assert code_lines(tree.body[0], f"def f():\n{body}\n".splitlines()) > MAX_FUNCTION_CODE_LINES


def test_nesting_rule_sees_four_levels() -> None:
    tree = ast.parse("def f():\n for a in b:\n  if a:\n   while a:\n    if b:\n     pass\n")
    assert nesting(tree.body[0]) > MAX_NESTING


@pytest.mark.slow
def test_layers_hold() -> None:
    result = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports"))], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.slow
def test_lint_is_clean() -> None:
    command = [sys.executable, "-m", "ruff", "check", *CHECKED]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.slow
def test_format_is_clean() -> None:
    command = [sys.executable, "-m", "ruff", "format", "--check", *CHECKED]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_types_are_strict() -> None:
    result = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_no_catch_all_outside_the_boundary() -> None:
    catching = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}))
        and not (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None)  # cleaning up and passing it on
    ]
    assert catching == ["xectool/cli/boundary.py"]


COMMAND = re.compile(r"(?:^|[;&|`]\s*|: )(?:xectool|ls|df|rm|chmod|git|python|cat|mv|cp|dd|torchrun) ")
PLACES = re.compile(r"\b(?:path|paths|parent|directory|folder|run_dir|place|file|inside)$")


def unquoted(source: str) -> list[str]:
    """The paths in lines to paste that a shell would take apart at a space."""
    return [
        f"{value.lineno}: {ast.unparse(part.value)}"
        for value in ast.walk(ast.parse(source))
        if isinstance(value, ast.JoinedStr)
        and COMMAND.search("".join(part.value if isinstance(part, ast.Constant) else "{}" for part in value.values))
        for part in value.values
        if isinstance(part, ast.FormattedValue)
        and not isinstance(part.value, ast.Call)
        and PLACES.search(ast.unparse(part.value))
    ]


def test_every_path_in_a_line_to_paste_is_quoted() -> None:
    assert {str(path.relative_to(ROOT)): found for path in SOURCES if (found := unquoted(path.read_text()))} == {}


def test_a_path_that_is_not_quoted_is_seen() -> None:
    assert unquoted('f"ls -l {path.parent}"; f"{n} of {path}"; f"xectool train {in_shell(path)}"') == ["1: path.parent"]


def test_an_event_is_named_in_one_place_which_knows_that_a_run_may_be_unknown() -> None:
    shape = re.compile(r"run \{[^}]*\},?\s+event \{")
    assert [path.name for path in SOURCES if shape.search(path.read_text())] == ["__init__.py"]
    assert shape.search("f'(run {e.run}, event {e.event})'")


def test_numbers_of_ranks_and_steps_and_times_that_passed_are_said_in_one_place() -> None:
    """`1 ranks` and `for 3.16e+03 s` were; a count that stands after its name (`rank {n} runs`) is none."""
    shape = re.compile(
        r"(?<![a-z] )(?<![}a-z.0-9])\{(len\([\w.]+\)|[a-z_][\w.]*)\} (ranks|seeds|rules)\b|_s:\.[345]g\} s\b"
    )
    assert [f"{path.name}: {found[0]}" for path in SOURCES for found in shape.finditer(path.read_text())] == []
    assert shape.search('f"{nproc} ranks"')
    assert shape.search('f"{train_s:.4g} s"')


def test_the_library_does_not_print() -> None:
    printing = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


def without_encoding(source: str) -> list[str]:
    """Texts that are read or written in the encoding of the user's locale."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or any(word.arg == "encoding" for word in node.keywords):
            continue
        text = ast.unparse(node)
        name = ast.unparse(node.func).rpartition(".")[2]
        opens = name in {"open", "fdopen", "TemporaryFile", "NamedTemporaryFile"} and re.search(
            r"""['"][rwax]\+?['"]""", text
        )
        reads = (name == "read_text" and not node.args) or (name == "write_text" and len(node.args) == 1)
        if opens or reads or (name in {"run", "Popen"} and "text=True" in text):
            found.append(f"{node.lineno}: {text[:60]}")
    return found


def test_text_is_utf_8_whatever_the_locale() -> None:
    """The page of a run could not be written under a locale of ASCII, nor its names be read under one of Latin-1."""
    assert {
        str(path.relative_to(ROOT)): found for path in SOURCES if (found := without_encoding(path.read_text()))
    } == {}
    assert without_encoding("a.read_text()\nopen(b, 'w')\nopen(c, 'rb')\nd.write_text(e, encoding='utf-8')") == [
        "1: a.read_text()",
        "2: open(b, 'w')",
    ]


@pytest.mark.parametrize("name", ["utils.py", "helpers.py", "common.py", "misc.py"])
def test_no_room_without_a_name(name: str) -> None:
    assert not [path for path in SOURCES if path.name == name]


def test_no_property_fails_for_the_load_of_the_machine() -> None:
    assert settings().deadline is None
