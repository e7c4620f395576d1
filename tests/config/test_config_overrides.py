"""Overrides, and YAML that loads back to the same configuration."""

from __future__ import annotations

import contextlib
import shlex
import string
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xectool import engine
from xectool.config.document import Document, parse_document
from xectool.config.invalid import InvalidConfigError
from xectool.config.keys import keys_of
from xectool.config.load import config_from_dict, load_config
from xectool.config.root import KINDS, RegressorConfig, RunConfig
from xectool.config.serialize import starting_from, to_yaml
from xectool.errors import ConfigError, UsageError
from xectool.findings import Finding

Write = Callable[..., Path]
Refused = Callable[..., InvalidConfigError]
GOOD = "kind: regressor\ntasks:\n  energy: {enabled: true, scale: auto}\n"


def test_overrides_are_typed_as_yaml(write: Write) -> None:
    overrides = ["training.lr=1e-3", "data.shuffle=false", "model.outer_fine_pool=[3, 3]", "mlflow.run_name=a=b",
                 "tasks.timing={enabled: true, scale: 1e-9}", "training.grad_clip=.5", "export.onnx="]  # fmt: skip
    config = load_config(write(GOOD), overrides).config
    assert isinstance(config, RegressorConfig)
    assert config.training.lr == 1e-3
    assert config.data.shuffle is False
    assert config.model.outer_fine_pool == (3, 3)
    assert config.mlflow.run_name == "a=b"
    assert config.tasks.timing.scale == 1e-9
    assert config.export.onnx is None


@pytest.mark.parametrize("path", ["runs/a.pt", "of June: all/a.pt", "it's #1/a.pt", "[1]/a.pt", "a\nb.pt"])
def test_the_line_that_starts_from_a_checkpoint_names_it_whatever_its_name(write: Write, path: str) -> None:
    option, setting = shlex.split(starting_from(Path(path)))
    assert option == "--set"
    assert load_config(write(GOOD), [setting]).config.checkpoint.init_from == path


def test_a_text_alone_is_told_to_be_a_list(write: Write) -> None:
    with pytest.raises(UsageError, match="not a list") as caught:
        engine.train(write(GOOD), overrides="training.lr=1e-4")
    assert caught.value.fix == "overrides=['training.lr=1e-4']"


def test_overriding_a_section_keeps_its_other_keys(write: Write) -> None:
    config = load_config(write(GOOD), ["tasks.energy={loss_fn: l1}"]).config
    assert isinstance(config, RegressorConfig)
    assert (config.tasks.energy.enabled, config.tasks.energy.loss_fn) == (True, "l1")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.lr", "expected section.key=value"),
        ("=3", "expected section.key=value"),
        ("training..lr=3", "expected section.key=value"),
        ("training.lr=[1", "not valid YAML"),
        ("kind.name=3", "kind is a value, not a section"),
    ],
)
def test_a_malformed_override_is_named(override: str, message: str, write: Write) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(write(GOOD), [override])
    assert "--set" in caught.value.where


@pytest.mark.parametrize("value", ["@my files.txt", "*.root"])
def test_the_line_for_a_list_or_a_glob_survives_the_shell(value: str, write: Write) -> None:
    """The shell takes the quotes that YAML needs."""
    with pytest.raises(ConfigError, match="not valid YAML") as caught:
        load_config(write(GOOD), [f"data.train_path={value}"])
    option, setting = shlex.split(caught.value.fix.removeprefix("put it in quotes: "))
    assert option == "--set"
    assert load_config(write(GOOD), [setting]).config.data.train_path == value


def test_an_unknown_override_names_the_nearest_key(write: Write, refused: Refused) -> None:
    error = refused(write(GOOD), ("training.learning_rat=1e-3",))
    assert error.where == "--set (training.learning_rat)"
    error = refused(write(GOOD), ("data.batchsize=3",))
    assert "did you mean data.batch_size" in str(error)
    error = refused(write(GOOD), ("reweighting.foo.enabled=true",))  # was data.fiducial.enabled
    assert "did you mean" not in str(error)
    assert "reweighting knows angle, energy, timing, uvwFI" in str(error)


_NUMBERS = st.floats(allow_nan=False, allow_infinity=False, min_value=1e-300, max_value=9.0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lr=_NUMBERS, seed=st.integers(0, 2**62), name=st.text(string.ascii_letters + string.digits + "._-:", min_size=1))
def test_overrides_of_any_value_arrive(lr: float, seed: int, name: str, write: Write) -> None:
    quoted = "'" + name + "'"
    overrides = [f"training.lr={lr!r}", f"training.seed={seed}", f"mlflow.run_name={quoted}"]
    config = load_config(write(GOOD), overrides).config
    assert (config.training.lr, config.training.seed, config.mlflow.run_name) == (lr, seed, name)


def drawn_config(data: st.DataObject) -> RunConfig:
    draw = data.draw
    kind = draw(st.sampled_from(sorted(KINDS)))
    text = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
    plain = draw(st.one_of(text, st.sampled_from(["1e-4", "off", "010", "3:00", "null", "true", "1_0", "~", "<<"])))
    values: dict[str, Any] = {
        "kind": kind,
        "data": {"train_path": draw(st.one_of(st.just(plain), st.lists(text, max_size=3))),
                 "batch_size": draw(st.integers(1, 10**6))},
        "training": {"lr": draw(st.floats(1e-12, 10, exclude_min=True)), "seed": draw(st.integers(0, 2**63 - 1)),
                     "ema_decay": draw(st.one_of(st.none(), st.floats(0.01, 0.9999)))},
        "normalization": {"time_shift": draw(st.floats(-1000, 1000)), "npho_threshold": draw(st.integers(0, 10**9))},
        "mlflow": {"run_name": plain or None},
    }  # fmt: skip
    if kind == "regressor":
        scale = draw(st.one_of(st.none(), st.just("auto"), st.floats(1e-12, 1e3)))
        shift = draw(st.one_of(st.none(), st.just("auto"), st.lists(st.floats(-9, 9), min_size=3, max_size=3)))
        values["tasks"] = {"uvwFI": {"enabled": True, "scale": scale, "shift": shift}}
    if kind == "inpainter":
        values["model"] = {"mask_ratio": {"inner": draw(st.floats(0.01, 0.99)), "top": 0}}
    return config_from_dict(values, "drawn")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_yaml_of_a_configuration_loads_to_an_equal_one(data: st.DataObject) -> None:
    config = drawn_config(data)
    text = to_yaml(config)
    assert config_from_dict(parse_document(text, "again").values, "again") == config
    assert config_from_dict(config.to_dict(), "again") == config


_ODD_VALUES = st.sampled_from(
    [None, True, -1, 0, 3, 2.5, 1e30, 10**400, float("nan"), "", "abc", "{x}", "010", "auto", [], [1, 2], ["a"], {},
     {"a": 1}, {1: 2}, [[None]]]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_no_value_of_any_key_ends_in_anything_but_a_config_error(data: st.DataObject, kind: str) -> None:
    document = Document("drawn", {"kind": kind})
    for key in data.draw(st.lists(st.sampled_from(sorted(keys_of(kind))), max_size=5)):
        with contextlib.suppress(ConfigError):
            document.put(tuple(key.split(".")), data.draw(_ODD_VALUES), "drawn:1")
    findings: tuple[Finding, ...] = ()
    try:
        config_from_dict(document.values, "drawn")
    except InvalidConfigError as error:
        findings = error.findings
    assert all(found.problem and found.where and found.fix for found in findings)


def test_a_name_of_any_length_is_refused_at_once(write: Write) -> None:
    """Comparing 9000 letters with every key took 23 s."""
    begun = time.process_time()
    for name in ("a" * 9000, "data." + "a" * 9000, ".".join("a" * 3000)):
        with pytest.raises(InvalidConfigError, match="unknown key"):
            load_config(write(GOOD), [f"{name}=1"])
    assert time.process_time() - begun < 5
