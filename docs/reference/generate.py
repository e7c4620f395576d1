"""Write the reference pages from the code: commands, keys, findings, metrics, record, exit codes.

``python docs/reference/generate.py`` writes them beside this file; a test compares them with the code.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import json_keys
import typer
from xectool import errors
from xectool.cli.app import app
from xectool.config.guard_catalogue import GUARDS
from xectool.config.key_page import allowed_values
from xectool.config.keys import Key, keys_of
from xectool.config.root import KINDS
from xectool.config.serialize import inline_yaml
from xectool.explanations import library
from xectool.runlog.metrics import METRICS
from xectool.runlog.records import AttemptRecord, EpochRecord, EventRecord, StepRecord

HERE = Path(__file__).resolve().parent
NOTE = "<!-- Written by docs/reference/generate.py (make reference); do not edit. -->"


def pages() -> dict[str, str]:
    """Return each page by its file name."""
    written = {
        "commands.md": commands(),
        "configuration.md": configuration(),
        "findings.md": findings(),
        "metrics.md": metrics(),
        "record.md": record(),
        "exit-codes.md": exit_codes(),
        "json-keys.md": json_keys.page(),
    }
    return {name: f"{NOTE}\n\n" + "\n".join(lines).rstrip() + "\n" for name, lines in written.items()}


def commands() -> Iterator[str]:
    """Every command with its arguments and options."""
    yield "# Commands"
    yield ""
    yield "Every command also has `--help`. What `--json` prints: [keys of `--json`](json-keys.md)."
    for name, command in _walk(typer.main.get_command(app), "xectool"):
        yield from ("", f"## {name}", "", _cell(command.help or ""), "", "| | default | |", "|---|---|---|")
        for parameter in command.params:
            if parameter.name not in ("install_completion", "show_completion") and not parameter.hidden:
                yield f"| {_spelling(parameter)} | {_default_of(parameter)} | {_cell(parameter.help or '')} |"


def _walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if command.params or not getattr(command, "commands", None):
        yield name, command
    for own, inner in getattr(command, "commands", {}).items():
        yield from _walk(inner, f"{name} {own}")


def _spelling(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        many = "…" if parameter.nargs == -1 else ""
        return f"`{parameter.metavar or parameter.name.upper()}{many}`".replace("|", "\\|")
    flag = isinstance(parameter.default, bool) or parameter.is_flag
    value = "" if flag else f" {parameter.metavar or parameter.name.upper()}"
    return ", ".join(f"`{word}{value}`" for word in (*parameter.opts, *parameter.secondary_opts)).replace("|", "\\|")


def _default_of(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if default is None or default is False or default in ("", [], ()) or callable(default):
        return ""
    return f"`{default}`"


def configuration() -> Iterator[str]:
    """Every key of the schema, section by section."""
    known: dict[str, dict[str, Key]] = {}
    for kind in KINDS:
        for dotted, key in keys_of(kind).items():
            known.setdefault(dotted, {})[kind] = key
    yield "# Configuration keys"
    yield ""
    yield "`kind` is one of " + ", ".join(f"`{kind}`" for kind in KINDS) + ". A key that only some kinds have says so."
    yield "`xectool config schema` prints the same as JSON Schema for editors, `xectool explain KEY` one key."
    sections = dict.fromkeys(dotted.rpartition(".")[0] for dotted, found in known.items() if not _any(found).is_section)
    for section in sections:
        inside = {dotted: found for dotted, found in known.items() if dotted.rpartition(".")[0] == section}
        yield from ("", f"## {section or 'At the top'}", "")
        yield from ("| key | default | bounds and choices | |", "|---|---|---|---|")
        for dotted, found in inside.items():
            if not _any(found).is_section:
                yield _key_row(dotted, found)


def _any(found: dict[str, Key]) -> Key:
    return next(iter(found.values()))


def _key_row(dotted: str, found: dict[str, Key]) -> str:
    key = _any(found)
    defaults = {kind: inline_yaml(_plain(own.default())) for kind, own in found.items()}
    shown = (
        f"`{next(iter(defaults.values()))}`"
        if len(set(defaults.values())) == 1
        else ", ".join(f"`{value}` ({kind})" for kind, value in defaults.items())
    )
    unit = key.extra.get("unit")
    words = dict.fromkeys(word for own in found.values() for word in allowed_values(own.field.annotation))
    limits = ", ".join(part for part in (key.bounds, *(f"`{word}`" for word in words)) if part)
    only = "" if len(found) == len(KINDS) else f" ({', '.join(found)} only)"
    measured = f" [{unit}]" if unit and unit != "1" else ""
    return f"| `{dotted}` | {_cell(shown)} | {_cell(limits)} | {_cell(str(key.field.description))}{measured}{only} |"


def findings() -> Iterator[str]:
    """Every finding code with cause and fix, every guard, every topic."""
    yield from ("# Finding codes", "", "`xectool explain CODE` says the same with a line to paste, offline.")
    family = ""
    for entry in (entry for entry in library() if entry.is_code):
        if entry.family != family:
            family = entry.family
            yield from ("", f"## {family.removeprefix('codes_').capitalize()}", "", "| code | | cause | fix |")
            yield "|---|---|---|---|"
        cells = (entry.title, entry.field("Cause"), entry.field("Fix"))
        yield f"| `{entry.name}` | " + " | ".join(_cell(cell) for cell in cells) + " |"
    yield from ("", "## Guards", "", "What watches every training; `guards.disable` turns one off by code or name.", "")
    yield from ("| code | name | watches | when | does | off by |", "|---|---|---|---|---|---|")
    for guard in GUARDS:
        cells = (guard.title, guard.period, guard.action, guard.control)
        yield f"| `{guard.code}` | `{guard.name}` | " + " | ".join(_cell(cell) for cell in cells) + " |"
    yield from ("", "## Topics", "", "`xectool explain TOPIC` has a page on each.", "", "| topic | |", "|---|---|")
    yield from (f"| `{entry.name}` | {_cell(entry.title)} |" for entry in library().topics)


def metrics() -> Iterator[str]:
    """Every metric with its definition, unit and direction."""
    yield from ("# Metrics", "")
    yield "What `train`, `predict`, `runs`, `report` and the record call their figures. p is the prediction and y the"
    yield "truth of an event. `xectool explain NAME` says the same of one, offline. A word in braces stands for each of"
    yield "its kind: `{task}` for `energy`, `{face}` for `inner_` or nothing (all faces), `{estimator}` for"
    yield "`baseline_neighbour_` or nothing (the network)."
    for group in dict.fromkeys(metric.group for metric in METRICS):
        yield from ("", f"## {group}", "", "| metric | unit | better | |", "|---|---|---|---|")
        for metric in (metric for metric in METRICS if metric.group == group):
            unit = {"1": "", "task": "of the task", "task^2": "of the task, squared"}.get(metric.unit, metric.unit)
            yield f"| `{metric.pattern}` | {unit} | {metric.better} | {_cell(metric.meaning)} |"


def record() -> Iterator[str]:
    """Fields of every kind of record."""
    yield from (
        "# Fields of the run record",
        "",
        "How they are stored, and the tables for SQL: [the run record](../recorder.md).",
    )
    for kind in (AttemptRecord, StepRecord, EpochRecord, EventRecord):
        text = " ".join((inspect.getdoc(kind) or "").replace("``", "`").split())
        yield from ("", f"## {kind.tag}", "", text, "", "| field | type | default |", "|---|---|---|")
        for field in dataclasses.fields(kind):
            yield f"| `{field.name}` | `{field.type}` | {_field_default(field)} |"


def _field_default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`"
    return "empty" if field.default_factory is not dataclasses.MISSING else "required"


def exit_codes() -> Iterator[str]:
    """The exit codes, the error tree and the JSON document."""
    yield from ("# Exit codes and `--json`", "", "| code | meaning |", "|---|---|", "| 0 | done |")
    meanings = {errors.BadResult: "", errors.UserError: "", errors.WorldError: ""}
    for kind in meanings:
        leaves = [leaf for leaf in vars(errors).values() if isinstance(leaf, type) and issubclass(leaf, kind)]
        codes = ", ".join(dict.fromkeys(f"`{leaf.default_code}`" for leaf in leaves if leaf is not kind))
        first = (inspect.getdoc(kind) or "").partition(";")[0]
        yield f"| {kind.exit_code} | {first} ({codes}) |"
    yield f"| {errors.EXIT_INTERRUPTED} | interrupted: Ctrl-C, SIGTERM, a closed terminal, or a batch system's signal |"
    yield f"| {errors.EXIT_DEFECT} | a defect of xectool; the traceback is kept in a file that the message names |"
    yield from (
        "",
        "An answer that finds no room on a full disk is 3 as well, and stands on the other of stdout and stderr;",
    )
    yield "`train` without `--json` keeps the code of its work, which is in its directory whatever became of its log."
    yield "A training that no guard stopped is 0, also where its loss ran away: it ends as `finished, but diverged`,"
    yield "and `result.diverged` of its `--json` says by how much; `xectool diagnose run RUN` answers 1 then."
    yield from ("", "The tree of errors that the Python API raises:", "", "```text")
    yield (inspect.getdoc(errors) or "").partition("::\n\n")[2].partition("\n\nExit 130")[0]
    yield from (
        "```",
        "",
        "What people read goes to stderr: `xectool explain nan 2>&1 | less`. With `--json` a command prints exactly",
        "one document on stdout:",
        "",
    )
    yield from ("```json", DOCUMENT, "```", "")
    yield "`status` is `ok` (exit 0), `bad` (1) or `error` (2, 3, 70, 130). An error document carries one finding;"
    yield "that of a configuration, one a mistake. `severity` is `error`, `warning` or `info`. Numbers that are not"
    yield "finite are null. Keys are only ever added. `command` is the first word, with `diagnose` the first two."
    yield "What stands under `result`, command by command: [keys of `--json`](json-keys.md)."


DOCUMENT = """{"command": "config", "status": "error", "result": {},
 "findings": [{"code": "CFG-01", "severity": "error", "problem": "…", "where": "run.yaml:3 (training.epohcs)",
               "evidence": [], "fix": "training.epochs: 3"}]}"""


def _cell(text: str) -> str:
    return _text(" ".join(text.split()))


def _text(text: str) -> str:
    return (
        text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
        if "`" not in text
        else text.replace("|", "\\|")
    )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, types.MappingProxyType) else value


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")
