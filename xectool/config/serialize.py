"""A configuration as YAML text that this reader, and any YAML 1.1 reader, takes for the same values."""

from __future__ import annotations

import yaml

from xectool.config.root import RunConfig
from xectool.config.section import NUMBER


def to_yaml(config: RunConfig) -> str:
    """Return the configuration as YAML that loads back to an equal one."""
    text: str = yaml.dump(config.to_dict(), Dumper=YamlDumper, sort_keys=False, default_flow_style=None, width=120)
    return text


class YamlDumper(yaml.SafeDumper):
    """Quotes every string that this reader, unlike YAML 1.1, takes for a number."""


YamlDumper.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+.0123456789"))
