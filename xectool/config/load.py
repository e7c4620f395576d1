"""From a YAML file and ``--set`` overrides to a frozen configuration; every error of the file at once."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from xectool.config.document import SET, Document, read_document
from xectool.config.explain import dotted_key, explain
from xectool.config.invalid import NOTE, InvalidConfigError, place
from xectool.config.keys import keys_of, nearest_key
from xectool.config.overrides import apply_overrides, expand_dotted_keys
from xectool.config.platform import Platform
from xectool.config.root import KINDS, RunConfig, require_kind
from xectool.config.rules.data import DATA_RULES
from xectool.config.rules.guard import GUARD_RULES
from xectool.config.rules.model import MODEL_RULES
from xectool.config.rules.platform import PLATFORM_RULES, Situation, sparing_the_preset
from xectool.config.rules.run import RUN_RULES
from xectool.config.rules.task import TASK_RULES
from xectool.config.rules.training import TRAINING_RULES
from xectool.config.translate import find_kind, translate
from xectool.errors import in_shell
from xectool.findings import Finding, Report, Severity
from xectool.rules import Rule, run_rules
from xectool.rules.plugins import plugin_rules

CONFIG_RULES: tuple[Rule[RunConfig], ...] = (
    *GUARD_RULES,
    *DATA_RULES,
    *MODEL_RULES,
    *TASK_RULES,
    *TRAINING_RULES,
    *RUN_RULES,
)
NOTHING_MORE = Report()
_ROUNDS = 5
_LINE = re.compile(r"(?P<key>[a-z]\w*(?:\.\w+)*): (?P<value>.+?)(?P<comment>\s+# .*)?")


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration and what is worth knowing about it.

    Attributes:
        config: The frozen configuration.
        findings: Warnings and notes; errors too where it was only read.
        path: The file it was read from.
        origins: ``file:line`` or ``--set`` of each dotted key that was written.
        refused: Keys whose values were refused, and that have their defaults instead.
    """

    config: RunConfig
    findings: Report
    path: Path
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)
    refused: frozenset[str] = field(default=frozenset(), repr=False)

    def locate(self, report: Report) -> Report:
        """Return findings whose place is a dotted key with ``file:line`` before it."""
        document = Document(str(self.path), {}, {tuple(key.split(".")): where for key, where in self.origins.items()})
        return Report(tuple(_answered(_located(found, document), document) for found in report))

    def require(self, report: Report = NOTHING_MORE) -> LoadedConfig:
        """Return this configuration with the findings of later rules added.

        Raises:
            InvalidConfigError: One of all findings is an error.
        """
        later = Report(tuple(item for item in report if not _touches(item.where, self.refused)))
        found = self.findings.merged(self.locate(later))
        if found.errors:
            beside = [item for item in found if item.severity is not Severity.ERROR]
            raise InvalidConfigError(found.errors, str(self.path), beside)
        return dataclasses.replace(self, findings=found)


def load_config(path: Path | str, overrides: Sequence[str] = (), platform: Platform | None = None) -> LoadedConfig:
    """Return a configuration as `read_config` does, which breaks no rule.

    Raises:
        ConfigError: The file cannot be read or breaks a rule; ``InvalidConfigError.findings`` lists every error.
    """
    return read_config(path, overrides, platform).require()


def read_config(path: Path | str, overrides: Sequence[str] = (), platform: Platform | None = None) -> LoadedConfig:
    """Read a YAML file, apply overrides, translate older keys, and check every rule that needs no data.

    What is wrong is among the findings, so that later rules can look too; `LoadedConfig.require` raises it with theirs.

    Args:
        path: The file; it is never modified.
        overrides: ``section.key=value`` strings, typed as YAML.
        platform: Facts of the machine; its rules are skipped where it is None.

    Raises:
        ConfigError: The file cannot be read, or so much of it is refused that nothing is left to look at.
    """
    document = read_document(path)
    notes = expand_dotted_keys(document)
    apply_overrides(document, overrides)
    config, findings, refused = _looked_at(document, platform)
    if config is None:
        raise _invalid(findings, document)
    origins = {".".join(key): where for key, where in document.origins.items()}
    return LoadedConfig(config, Report((*notes, *findings)), Path(path), origins, refused)


def config_from_overrides(overrides: Sequence[str]) -> RunConfig:
    """Return the configuration that overrides alone describe, for what takes names and constants without a file.

    Raises:
        ConfigError: An override names no key, or breaks the schema or a rule.
    """
    usual = {"kind": "regressor", "tasks": {"energy": {"enabled": True}}}
    document = Document(SET, {} if any(text.startswith("kind=") for text in overrides) else usual)
    apply_overrides(document, overrides)
    return _checked(document)


def config_from_dict(
    values: Mapping[str, Any], source: str, overrides: Sequence[str] = (), package: str | None = None
) -> RunConfig:
    """Return the configuration described by plain values, such as those a checkpoint carries.

    Args:
        values: Sections as nested dictionaries.
        source: Where they come from, for messages.
        overrides: ``section.key=value`` strings that go before them.
        package: The package that brought their kind, of what was trained with them; empty where that is not known.
            None: nothing was, and an unknown kind is misspelt as in any file.

    Raises:
        ConfigError: A value breaks the schema or a rule; all errors are carried together. Or no installed package
            brings the kind of what was trained.
    """
    if package is not None:
        require_kind(values.get("kind"), source, package)
    document = Document(source, copy.deepcopy(dict(values)))
    apply_overrides(document, overrides)
    return _checked(document)


def _checked(document: Document) -> RunConfig:
    config, findings, _ = _looked_at(document, None)
    if config is None or any(item.severity is Severity.ERROR for item in findings):
        raise _invalid(findings, document)
    return config


def _invalid(findings: Sequence[Finding], document: Document) -> InvalidConfigError:
    """Return the refusal, beside which the notes are told of how a file was read: an inferred kind, older keys."""
    notes = [item for item in findings if item.code == NOTE]
    return InvalidConfigError(Report(tuple(findings)).errors, document.source, notes)


def _looked_at(
    document: Document, platform: Platform | None
) -> tuple[RunConfig | None, tuple[Finding, ...], frozenset[str]]:
    """Return the configuration, what its rules find, and the keys without the values that were refused."""
    kind, findings = find_kind(document)
    findings += translate(document, kind)
    config, refused, repaired = _validated(document, kind)
    findings += refused
    if config is not None:
        found = run_rules((*CONFIG_RULES, *plugin_rules("rules", CONFIG_RULES)), config).report
        if platform is not None:
            here = Situation(config, platform)
            found = found.merged(sparing_the_preset(run_rules(PLATFORM_RULES, here).report, here))
        findings += [_located(item, document) for item in found if not _touches(item.where, repaired)]
    answered = (_answered(item, document) for item in findings)
    return config, tuple(_as_written(item, document) for item in answered), frozenset(repaired)


def _validated(document: Document, kind: str) -> tuple[RunConfig | None, list[Finding], set[str]]:
    """Validate, take out what was refused, and again: errors behind the first ones are found too."""
    findings: list[Finding] = []
    repaired: set[str] = set()
    for _ in range(_ROUNDS):
        try:
            return KINDS[kind].model_validate(document.values), findings, repaired
        except ValidationError as error:
            findings += explain(error, document, kind)
            for detail in error.errors(include_url=False):
                repaired |= _repair(document, dotted_key(detail, kind), kind, detail["type"] == "extra_forbidden")
    return None, findings, repaired


def _repair(document: Document, key: str, kind: str, unknown: bool) -> set[str]:
    """Rename a misspelt section so that its content is checked, take out anything else; return what rules must skip."""
    path = tuple(key.split("."))
    meant = nearest_key(key, kind) if unknown else None
    if not document.has(path):
        return {key}
    is_section = meant is not None and keys_of(kind)[meant].is_section and isinstance(document.get(path), dict)
    if meant is not None and is_section and not document.has(tuple(meant.split("."))):
        document.move(path, tuple(meant.split(".")))
        document.renamed[meant] = key
        return {key}
    document.pop(path)
    return {key} if meant is None or keys_of(kind)[meant].is_section else {key, meant}


def _as_written(found: Finding, document: Document) -> Finding:
    """Return a finding of what is below a misspelt section with the key that the file has."""
    key = found.where.rpartition("(")[2].removesuffix(")")
    written = document.as_written(key)
    if written == key:
        return found
    fix = found.fix.replace(key, written, 1) if found.fix.startswith(("delete ", "leave out ")) else found.fix
    problem = found.problem.replace(f"unknown key {key}", f"unknown key {written}", 1)
    return dataclasses.replace(found, where=found.where.replace(f"({key})", f"({written})"), problem=problem, fix=fix)


def _touches(where: str, repaired: Collection[str]) -> bool:
    return any(where == key or where.startswith(key + ".") or key.startswith(where + ".") for key in repaired)


def _answered(found: Finding, document: Document) -> Finding:
    """Return a finding that a ``--set`` has part in with one to paste: it replaces whatever line is in the file."""
    if found.where.startswith(SET) and found.fix.startswith("delete "):
        return dataclasses.replace(found, fix=found.fix.replace("delete", f"leave out {SET}", 1))
    if not found.where.startswith(SET) and not _is_known(found.where):
        return found
    texts = found.fix.split("\n")
    lines = [line for text in texts if (line := _LINE.fullmatch(text))]
    named = re.findall(r"\w+(?:\.\w+)+", found.problem)
    places = {found.where.partition(" ")[0], *(document.origin(key) for key in (*named, *(m["key"] for m in lines)))}
    if len(lines) < len(texts) or SET not in places:
        return found
    settings = [f"{line['key']}={line['value']}" for line in lines]
    fix = " ".join(f"{SET} {in_shell(text)}" for text in settings) + "".join(line["comment"] or "" for line in lines)
    return dataclasses.replace(found, fix=fix)


def _is_known(where: str) -> bool:
    """Return whether a finding is about a key that exists: no option mends a name in the file that does not."""
    key = where.rpartition("(")[2].removesuffix(")")
    return any(key in keys_of(kind) for kind in KINDS)


def _located(found: Finding, document: Document) -> Finding:
    return dataclasses.replace(found, where=place(document.origin(found.where), found.where))
