"""The ``config`` commands: start, show, check, describe and compare configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xectool.config.json_schema import json_schema
from xectool.config.load import LoadedConfig, load_config, read_config
from xectool.config.platform import Platform
from xectool.config.presets import PRESETS
from xectool.config.rules.capacity import capacity_rules
from xectool.config.rules.path import named_file_rules, overlap_rules, path_rules
from xectool.config.serialize import dotted_values, to_yaml
from xectool.config.template import template
from xectool.engine.arguments import typed
from xectool.engine.capacity import without_memory
from xectool.engine.config_units import unit_findings
from xectool.engine.convert_line import converting
from xectool.engine.training_run.train_line import on_train_line
from xectool.errors import DeviceError
from xectool.findings import Report
from xectool.rootio.counting import count_run_events


@dataclass(frozen=True)
class ConfigShown:
    """A resolved configuration.

    Attributes:
        config: All keys with their values, as plain types.
        yaml: The same as YAML text that loads again.
        findings: Warnings and notes.
    """

    config: Mapping[str, Any]
    yaml: str
    findings: Report


@dataclass(frozen=True)
class ConfigDifference:
    """One key on which two configurations differ; None also stands for a key one of them does not have."""

    key: str
    first: Any
    second: Any


@typed
def init(kind: str = "regressor", preset: str | None = None, overrides: Sequence[str] = ()) -> str:
    """Return a commented YAML configuration to start from, with the values of ``section.key=value`` strings.

    Raises:
        UsageError: The kind or the preset does not exist.
        ConfigError: An override names no key, or breaks the schema or a rule.
    """
    return template(kind, preset, Platform.detect(), overrides)


def presets() -> dict[str, str]:
    """Return the machine that each preset is for."""
    return {name: preset.title for name, preset in PRESETS.items()}


@typed
def show(path: Path | str, overrides: Sequence[str] = ()) -> ConfigShown:
    """Return the configuration a file and overrides resolve to.

    Raises:
        ConfigError: The configuration is not valid.
    """
    return _shown(load_config(path, overrides))


@typed
def check(path: Path | str, overrides: Sequence[str] = (), deep: bool = False) -> ConfigShown:
    """Check a configuration on this machine; ``deep`` also looks at data and units, and tries the training dry.

    Raises:
        ConfigError: A rule is broken; ``findings`` of the error lists all of them.
    """
    platform = Platform.detect()
    loaded = read_config(path, overrides, platform)
    if not deep:
        return _shown(loaded.require(overlap_rules(loaded.config).merged(named_file_rules(loaded.config))))
    paths = Report(tuple(on_train_line(item, loaded.path, overrides) for item in path_rules(loaded.config)))
    capacity = capacity_rules(loaded.config, platform, count_run_events(loaded.config.data))
    refused = loaded.findings.errors or paths.errors or without_memory(capacity).errors
    return _shown(
        loaded.require(paths.merged(capacity)) if refused else _looked_into(loaded, overrides, paths, capacity)
    )


def _looked_into(loaded: LoadedConfig, overrides: Sequence[str], paths: Report, capacity: Report) -> LoadedConfig:
    """Return a configuration with the units of its first files, and with what a dry run of its training says."""
    from xectool.engine.training_run.rehearsal import rehearsed  # torch

    units = Report(converting(unit_findings(loaded), loaded.config.data))
    told = loaded.require(units.merged(paths).merged(without_memory(capacity)))
    said = Report(tuple(rehearsed(told, overrides)))
    if any(item.code == DeviceError.default_code for item in said):  # no step of another machine was estimated
        told = loaded.require(units.merged(paths).merged(capacity))
    return replace(told, findings=told.findings.merged(said)).require()


def schema() -> dict[str, Any]:
    """Return the JSON Schema of all kinds."""
    return json_schema()


@typed
def diff(first: Path | str, second: Path | str, overrides: Sequence[str] = ()) -> tuple[ConfigDifference, ...]:
    """Return the keys on which two resolved configurations differ, overrides applied to both.

    Raises:
        ConfigError: One of them is not valid.
    """
    a = dotted_values(load_config(first, overrides).config.to_dict())
    b = dotted_values(load_config(second, overrides).config.to_dict())
    keys = [*a, *(key for key in b if key not in a)]
    return tuple(ConfigDifference(key, a.get(key), b.get(key)) for key in keys if a.get(key) != b.get(key))


def _shown(loaded: LoadedConfig) -> ConfigShown:
    return ConfigShown(loaded.config.to_dict(), to_yaml(loaded.config), loaded.findings)
