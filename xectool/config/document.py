"""A YAML file as plain values that remember where each key was written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from xectool.config.invalid import InvalidConfigError, config_finding
from xectool.config.section import NUMBER
from xectool.config.yaml_mistakes import told
from xectool.errors import ConfigError, in_shell, nearest
from xectool.errors.misnamed import MisnamedConfig, meant
from xectool.findings import Finding

KeyPath = tuple[str, ...]
SET = "--set"
CONFIG_FILE: Final = "config.yaml"
"""The configuration of a run in its directory, and the usual name of one elsewhere."""
_INIT: Final = f"xectool config init > {CONFIG_FILE}"
_MAX_NODES = 100_000
_WORDS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".nan": float("nan"), ".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"),
}  # fmt: skip
_LONGEST_NUMBER = 300  # a longer one fits no float, and Python refuses to read integers above 4300 digits
_INTEGER_STARTS = "123456789"
_PLAIN_TAGS = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}


@dataclass
class Document:
    """Nested values with the place each key comes from.

    Attributes:
        source: Path of the file, as the user gave it.
        values: Nested dictionaries, lists and scalars.
        origins: ``file:line`` or ``--set`` of each key path.
        overridden: Keys of the file that ``--set`` gave another value.
        pasted: Keys of the file that stand in one line with their sections, as a fix is pasted.
        renamed: How a misspelt section was written, by the name under which its content is looked at.
    """

    source: str
    values: dict[str, Any]
    origins: dict[KeyPath, str] = field(default_factory=dict)
    overridden: set[KeyPath] = field(default_factory=set)
    pasted: set[KeyPath] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)

    def origin(self, key: str) -> str:
        """Return ``file:line`` of a dotted key; of the section where the key itself was not written."""
        path = tuple(key.split(".")) if key else ()
        if path in self.origins:
            return self.origins[path]
        parents = (path[:size] for size in range(len(path) - 1, 0, -1))
        found = next((self.origins[parent] for parent in parents if parent in self.origins), self.source)
        return self.source if found == SET else found

    def as_written(self, key: str) -> str:
        """Return a dotted key as the file has it: below a misspelt section under the name of that."""
        for name, written in reversed(self.renamed.items()):
            key = f"{written}{key.removeprefix(name)}" if key.startswith(f"{name}.") else key
        return key

    def get(self, path: KeyPath) -> Any:
        """Return the value at a path, or None."""
        value: Any = self.values
        for name in path:
            if not isinstance(value, dict) or name not in value:
                return None
            value = value[name]
        return value

    def has(self, path: KeyPath) -> bool:
        """Return whether the path was written."""
        parent = self.get(path[:-1]) if len(path) > 1 else self.values
        return isinstance(parent, dict) and path[-1] in parent

    def put(self, path: KeyPath, value: Any, origin: str) -> None:
        """Write a value, making the sections on the way.

        Raises:
            ConfigError: A section on the way is a plain value.
        """
        target = self.values
        for depth, name in enumerate(path[:-1], 1):
            if target.get(name) is None:
                target[name] = {}
            target = target[name]
            if not isinstance(target, dict):
                section = ".".join(path[:depth])
                raise ConfigError(
                    f"{section} is a value, not a section, so {'.'.join(path)} cannot be set",
                    where=origin,
                    fix=f"delete {section}, or write it as a section",
                    code="CFG-01",
                )
        target[path[-1]] = value
        self.origins[path] = origin

    def pop(self, path: KeyPath) -> Any:
        """Take a value out."""
        return self.get(path[:-1]).pop(path[-1]) if len(path) > 1 else self.values.pop(path[0])

    def move(self, old: KeyPath, new: KeyPath) -> None:
        """Move a value; it keeps the line it was written on."""
        origin = self.origin(".".join(old))
        inner = {path: where for path, where in self.origins.items() if path[: len(old)] == old}
        self.put(new, self.pop(old), origin)
        self.origins.update({new + path[len(old) :]: where for path, where in inner.items()})


def read_document(path: Path | str) -> Document:
    """Read a YAML file without changing it.

    Raises:
        ConfigError: The file is missing, unreadable, empty, not text, not YAML, or not a mapping.
    """
    return parse_document(_read_text(Path(path)), str(path))


def parse_document(text: str, source: str) -> Document:
    """Parse YAML text whose top level is a mapping; ``source`` names it in messages."""
    node = _compose(text, source)
    if node is None:
        raise ConfigError("the file is empty", where=source, fix=_INIT, code="CFG-00")
    if not isinstance(node, yaml.MappingNode):
        what = "a list" if isinstance(node, yaml.SequenceNode) else "plain text"
        raise ConfigError(
            f"expected sections such as 'data:' at the top level, found {what}",
            where=f"{source}:{node.start_mark.line + 1}",
            fix=_INIT,
            code="CFG-00",
        )
    builder = _Builder(source)
    values = builder.build(node, ())
    if builder.problems:
        raise InvalidConfigError(builder.problems, source)
    return Document(source, values, builder.origins)


def parse_value(text: str, source: str, given: Callable[[str], str] = str) -> Any:
    """Parse one YAML value, as ``--set key=value`` carries it; ``given`` returns how a value is given there."""
    node = _compose(text, source, given)
    builder = _Builder(source)
    value = None if node is None else builder.build(node, ())
    if builder.problems:
        raise InvalidConfigError(builder.problems, source)
    return value


def plain_scalar(text: str) -> Any:
    """Return the value of an unquoted scalar by YAML 1.2: ``1e-4`` is a number, ``off``, ``010`` and ``3:00`` are text.

    >>> plain_scalar("1e-4"), plain_scalar("off"), plain_scalar("010"), plain_scalar("1_000")
    (0.0001, 'off', '010', 1000)
    """
    if text in _WORDS:
        return _WORDS[text]
    if text.lower() in (".nan", ".inf", "-.inf", "+.inf"):
        return float(text.lower().replace(".", ""))
    if len(text) > _LONGEST_NUMBER or not NUMBER.fullmatch(text):
        return text
    digits = text.replace("_", "")
    if not digits.lstrip("+-").isdigit():
        return float(digits)
    unsigned = digits.lstrip("+-")
    return int(digits) if unsigned == "0" or unsigned[0] in _INTEGER_STARTS else text


def _read_text(path: Path) -> str:
    where = str(path)
    if os.path.isdir(path):
        raise ConfigError("expected a YAML file, this is a directory", where=where, fix=_siblings(path), code="CFG-00")
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        found = path.parent.glob("*.y*ml") if os.path.isdir(path.parent) else ()
        names = {item.stem: item.name for item in found}  # their ends are alike, whatever was meant
        new = where if path.suffix else f"{where}.yaml   # or name a run: xectool runs"
        near = nearest(path.stem, names, 1)
        problem, fix = "no such config file", f"xectool config init > {new}"
        if near:
            raise meant(MisnamedConfig, problem, path, [names[near[0]]], "CFG-00") from None
        raise ConfigError(problem, where=where, fix=fix, code="CFG-00") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"not a text file (byte {error.start} is not UTF-8)",
            where=where,
            fix="give a YAML file, such as: xectool config init > config.yaml",
            code="CFG-00",
        ) from None
    except (OSError, ValueError) as error:  # a name with a zero byte
        problem = f"cannot read the file: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(problem, where=where, fix=f"ls -l {in_shell(where)}", code="CFG-00") from None


def _siblings(path: Path) -> str:
    names = sorted(item.name for item in path.glob("*.y*ml"))
    return f"choose one of {', '.join(names[:5])}" if names else "give the path of a YAML file"


def _compose(text: str, source: str, given: Callable[[str], str] = str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        problem, where, hint = told(text, source, error, given)
        raise ConfigError(f"not valid YAML: {problem}", where=where, fix=hint, code="CFG-00") from None
    except yaml.YAMLError as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"not valid YAML: {first}", where=source, fix="save it as UTF-8", code="CFG-00") from None
    except RecursionError:
        raise ConfigError("nested too deep for any configuration", where=source, fix=_INIT, code="CFG-00") from None
    return node


class _Builder:
    """Turns YAML nodes into values; collects origins and what is wrong on the way."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.origins: dict[KeyPath, str] = {}
        self.problems: list[Finding] = []
        self._open: set[int] = set()
        self._count = 0

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count += 1
        if self._count > _MAX_NODES or id(node) in self._open:
            raise ConfigError("aliases repeat without end", where=self._line(node), fix="write it out", code="CFG-00")
        if node.tag not in _PLAIN_TAGS:
            self._problem(node, path, f"the tag {node.tag} is not allowed", "write the plain value")
            return None
        if isinstance(node, yaml.ScalarNode):
            return plain_scalar(node.value) if node.style is None else node.value
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, path) for item in node.value]
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        written: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, path, "a key must be plain text", "write 'key: value'")
                continue
            name = key_node.value
            if name == "<<":
                continue
            if name in written:
                first = written[name].start_mark.line + 1
                dotted = ".".join((*path, name))
                self._problem(key_node, (*path, name), f"{dotted} is written twice, first on line {first}", "keep one")
                continue
            written[name] = key_node
            self.origins[(*path, name)] = self._line(key_node)
            values[name] = self.build(value_node, (*path, name))
        return self._merged(node, path) | values

    def _merged(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for source in reversed(list(_merge_sources(node))):
            before = dict(self.origins)
            value = self.build(source, path)
            # Keys written in the mapping itself keep their own line.
            self.origins |= before
            merged |= value if isinstance(value, dict) else {}
        return merged

    def _problem(self, node: yaml.Node, path: KeyPath, problem: str, fix: str) -> None:
        self.problems.append(config_finding("CFG-00", problem, self._line(node), ".".join(path), fix))

    def _line(self, node: yaml.Node) -> str:
        return f"{self.source}:{node.start_mark.line + 1}"


def _merge_sources(node: yaml.Node) -> Iterator[yaml.Node]:
    for key_node, value_node in node.value:
        if isinstance(key_node, yaml.ScalarNode) and key_node.value == "<<":
            yield from value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
