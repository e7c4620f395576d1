"""A configuration as YAML text that this reader, and any YAML 1.1 reader, takes for the same values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from xectool.config.root import RunConfig
from xectool.config.section import NUMBER
from xectool.errors import in_shell


def to_yaml(config: RunConfig) -> str:
    """Return the configuration as YAML that loads back to an equal one."""
    text: str = yaml.dump(config.to_dict(), Dumper=YamlDumper, sort_keys=False, default_flow_style=None, width=120)
    return text


class _PlainLoader(yaml.SafeLoader):
    """Reads what a run has written: no value of it refers to another, and nine lines that do fill any memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node; refuse one that stands elsewhere."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it refers to itself (*name), which no run writes")
        return super().compose_node(parent, index)


def from_yaml(text: str) -> Any:
    """Return the values in YAML that a run has written.

    Raises:
        yaml.YAMLError: It is no YAML, or refers to itself.
        ValueError, RecursionError: A date that is none, a number without end, nesting without end.
    """
    return yaml.load(text, Loader=_PlainLoader)


def inline_yaml(value: Any) -> str:
    """Return one value as it stands after a key; every digit of a number is kept.

    >>> inline_yaml(None), inline_yaml(1e-07), inline_yaml((3, 3)), inline_yaml("010")
    ('null', '1.0e-07', '[3, 3]', "'010'")
    """
    text: str = yaml.dump(value, Dumper=YamlDumper, sort_keys=False, default_flow_style=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")


def starting_from(path: str | Path) -> str:
    """Return the option that starts a run from the weights of a file, as a shell and the reader of settings take it.

    >>> starting_from("runs/a.pt")
    '--set checkpoint.init_from=runs/a.pt'
    """
    return f"--set {in_shell(f'checkpoint.init_from={inline_yaml(str(path))}')}"


def dotted_values(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested sections by dotted key.

    >>> dotted_values({"data": {"batch_size": 8}, "kind": "mae"})
    {'data.batch_size': 8, 'kind': 'mae'}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= dotted_values(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


class YamlDumper(yaml.SafeDumper):
    """Quotes every string that this reader, unlike YAML 1.1, takes for a number."""


YamlDumper.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+.0123456789"))
