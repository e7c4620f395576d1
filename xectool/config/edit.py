"""One value of a YAML file replaced in its text: comments, order and every other line stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from xectool.config.document import KeyPath, parse_document
from xectool.config.serialize import dotted_values, inline_yaml
from xectool.errors import ConfigError


def with_value(text: str, key: str, value: Any, source: str) -> str:
    """Return the text of a configuration with one dotted key set.

    Args:
        text: YAML whose top level is a mapping.
        key: Such as ``training.lr``; written ``training.lr: 1`` or in its section, or not at all.
        value: The new value.
        source: Path of the file, for messages.

    Raises:
        ConfigError: The key cannot be set alone, because an alias or a merge shares its section.
    """
    root = yaml.compose(text, Loader=yaml.BaseLoader)
    before = parse_document(text, source)  # raises what is wrong with the file
    assert isinstance(root, yaml.MappingNode)
    path = tuple(key.split("."))
    found = [node for where, node in _scalars(root, ()) if where == path or where == (key,)]
    written = inline_yaml(value)
    changed = _replaced(text, found[-1], written) if found else _inserted(text, root, path, written)
    kept = {name: old for name, old in dotted_values(before.values).items() if name != path[0] or old is not None}
    if _values(changed, source) != kept | {key: value}:
        raise ConfigError(
            f"{key} cannot be set in its line alone: an alias, a merge, a text block or '...' is in the way",
            where=before.origin(key),
            fix=f"write it by hand: {key}: {written}",
            code="CFG-01",
        )
    return changed


def _values(text: str, source: str) -> dict[str, Any] | None:
    """Return the values of a changed text, None where it is none any more: the line held an anchor used elsewhere."""
    try:
        return dotted_values(parse_document(text, source).values)
    except ConfigError:
        return None


def _scalars(node: yaml.Node, path: KeyPath) -> Iterator[tuple[KeyPath, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        yield path, node
        return
    for key_node, value_node in node.value:
        yield from _scalars(value_node, (*path, str(key_node.value)))


def _replaced(text: str, node: yaml.Node, written: str) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    space = " " if start == end and text[start - 1 : start] == ":" else ""  # a key without a value
    return text[:start] + space + written + text[end:]


def _inserted(text: str, root: yaml.MappingNode, path: KeyPath, written: str) -> str:
    """Write a key that is not there: first in its section where there is one, else in a new section at the end."""
    section = next((value for name, value in root.value if name.value == path[0]), None)
    line = f"{path[-1]}: {written}"
    ending = "\r\n" if "\r\n" in text else "\n"
    if isinstance(section, yaml.MappingNode) and section.value:
        start = section.value[0][0].start_mark
        separator = ", " if section.flow_style else ending + " " * start.column
        return text[: start.index] + line + separator + text[start.index :]
    if isinstance(section, yaml.MappingNode):
        return text[: section.start_mark.index] + "{" + line + "}" + text[section.end_mark.index :]
    if section is not None:
        return _replaced(text, section, "{" + line + "}")
    if root.flow_style:
        start = root.value[0][0].start_mark if root.value else root.end_mark
        end = start.index if root.value else root.start_mark.index + 1
        return text[:end] + f"{path[0]}: {{{line}}}" + (", " if root.value else "") + text[end:]
    gap = "" if text.endswith("\n") else ending
    return f"{text}{gap}{path[0]}:{ending}  {line}{ending}"
