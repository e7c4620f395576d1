"""Every fix of a configuration error is a line that, pasted into the file, ends the error."""

from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.config.invalid import InvalidConfigError
from xectool.config.keys import keys_of
from xectool.config.load import config_from_dict, load_config
from xectool.config.root import KINDS
from xectool.errors import ConfigError
from xectool.findings import Finding

GOOD: dict[str, dict[str, Any]] = {
    "regressor": {"tasks": {"energy": {"enabled": True, "scale": "auto"}}},
    "mae": {},
    "inpainter": {"model": {"freeze_encoder": False}},
}
ODD = [
    "abc", True, None, -1, 0, 1, 7, 1e9, 0.5, 1e-12, [1, 2], ["a"], {"a": 1}, "010", float("nan"), 10**400, "a: b",
]  # fmt: skip
_PASTES = 3


def put(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, leaf = key.split(".")
    for name in parents:
        if values.get(name) is None:
            values[name] = {}
        values = values[name]
    values[leaf] = value


def take_out(values: dict[str, Any], key: str) -> Any:
    *parents, leaf = key.split(".")
    for name in parents:
        values = values[name]
    return values.pop(leaf)


def paste(values: dict[str, Any], found: Finding) -> None:
    """Do what the fix says: delete a key, or write ``key: value`` in place of what was refused."""
    deleted = re.match(r"delete ([\w.]+)", found.fix)
    if deleted:
        take_out(values, deleted[1])
        return
    line = yaml.safe_load(found.fix)
    assert isinstance(line, dict), found.fix
    ((key, value),) = line.items()
    refused = re.search(r"\(([\w.]+)\)$", found.where)
    if refused and refused[1] != key and "unknown key" in found.problem:
        old = take_out(values, refused[1])
        value = old if value is None else value
    put(values, key, value)


def pastes_until_accepted(values: dict[str, Any]) -> int:
    for count in range(_PASTES):
        try:
            config_from_dict(values, "run.yaml")
        except InvalidConfigError as error:
            for found in error.findings:
                paste(values, found)
        else:
            return count
    config_from_dict(values, "run.yaml")
    return _PASTES


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", ODD, ids=lambda value: str(value)[:12])
def test_pasting_the_fix_of_any_refused_value_ends_the_error(kind: str, value: Any) -> None:
    for key in keys_of(kind):
        values = copy.deepcopy({"kind": kind} | GOOD[kind])
        put(values, key, value)
        try:
            assert pastes_until_accepted(values) <= _PASTES
        except (InvalidConfigError, AssertionError) as error:
            pytest.fail(f"{key}: {error}")


SETTINGS = [
    "model.encoder_dim=48", "training.lr=44", "training.compile=foo", "model.outer_fine_pool=[a, b]",
    "training.epochs=1e", "training.warmup_epochs=300", "tasks.energy.enabled=false",
]  # fmt: skip
TEXT = "kind: regressor\ntasks: {energy: {enabled: true, scale: auto}}\ndata: {train_path: train.root}\n"


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_refused_setting_is_answered_with_a_setting_to_paste_behind_it(setting: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT)
    with pytest.raises(InvalidConfigError) as caught:
        load_config(path, [setting])
    pasted = [shlex.split(found.fix, comments=True) for found in caught.value.findings]
    assert {words[0] for words in pasted} == {"--set"}
    load_config(path, [setting, *(words[1] for words in pasted)])


def test_a_refused_line_is_answered_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT + "training: {lr: 44}\n")
    with pytest.raises(InvalidConfigError) as caught:
        load_config(path, ["training.epochs=3"])
    assert caught.value.fix.startswith("training.lr: ")


def test_a_setting_without_a_key_is_to_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT)
    with pytest.raises(InvalidConfigError, match=r"leave out --set training\.no_such_key; training knows"):
        load_config(path, ["training.no_such_key=1"])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_pasting_the_fixes_of_several_errors_ends_them(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    leaves = [key.dotted for key in keys_of(kind).values() if not key.is_section and key.dotted != "kind"]
    values = copy.deepcopy({"kind": kind} | GOOD[kind])
    for key, value in data.draw(st.dictionaries(st.sampled_from(leaves), st.sampled_from(ODD), max_size=5)).items():
        put(values, key, copy.deepcopy(value))
    pastes_until_accepted(values)


@pytest.mark.parametrize("line", ["model.geometry: compat", "model.outer_fine_pool: [3, 3]"])
def test_a_fix_pasted_as_a_line_of_its_own_is_read(line: str, tmp_path: Path) -> None:
    text = "kind: regressor\nmodel: {outer_fine_pool: [2, 2]}\ntasks: {energy: {enabled: true, scale: auto}}\n"
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(InvalidConfigError, match="does not divide"):
        load_config(path)
    path.write_text(f"{text}{line}\n")
    assert load_config(path).findings.errors == ()


def test_a_dotted_line_says_that_it_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("training: {lr: 1e-3}\ntasks: {energy: {enabled: true}}\ntraining.lr: 1e-4\n")
    loaded = load_config(path)
    assert loaded.config.training.lr == 1e-4
    assert loaded.origins["training.lr"].endswith(":3")
    assert any("training.lr" in found.problem and "run.yaml:1" in found.problem for found in loaded.findings)


def test_a_dotted_key_inside_a_section_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("kind: mae\ntraining: {time.weight: 0.5}\n")
    assert load_config(path).config.training.time.weight == 0.5  # type: ignore[union-attr]


def test_a_dotted_key_below_a_plain_value_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("kind: mae\nloss: 3\nloss.weight: 0.5\n")
    with pytest.raises(ConfigError, match="loss is a value, not a section") as caught:
        load_config(path)
    assert caught.value.fix == "delete loss, or write it as a section"


@pytest.mark.parametrize("section", ["data: {fiducial: null}", "training: {time: null}", "tasks: {angle: null}"])
def test_an_empty_section_has_its_defaults(section: str, tmp_path: Path) -> None:
    kind = "mae" if "time" in section else "regressor"
    path = tmp_path / "run.yaml"
    path.write_text(f"kind: {kind}\n{section}\n")
    values = ["tasks.energy.enabled=true"] if kind == "regressor" else []
    assert load_config(path, values).findings.errors == ()


def test_a_fix_keeps_every_digit_of_a_number(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("kind: mae\nlearning_rate: 0.00012345678\n")
    with pytest.raises(InvalidConfigError) as caught:
        load_config(path)
    assert caught.value.fix == "training.lr: 0.00012345678"


@pytest.mark.parametrize(
    ("written", "meant"),
    [("yes please", "true"), ("Ture", "true"), ("1", "true"), ("offf", "false   # or true"),
     ("maybe", "true   # or false"), ("null", "true   # or false")],
)  # fmt: skip
def test_a_switch_that_cannot_be_read_is_not_answered_with_its_default(
    written: str, meant: str, tmp_path: Path
) -> None:
    """`enabled: yes please` was answered with false, which left no task."""
    path = tmp_path / "run.yaml"
    path.write_text(f"kind: regressor\ntasks:\n  energy:\n    enabled: {written}\n")
    with pytest.raises(InvalidConfigError) as caught:
        load_config(path)
    assert (caught.value.code, caught.value.fix) == ("CFG-02", f"tasks.energy.enabled: {meant}")
