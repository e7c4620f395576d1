"""How single values are read: numbers and their traps, switches, choices, lists."""

from __future__ import annotations

import re
from typing import Any

import pytest
from xectool.config.document import parse_document
from xectool.config.load import LoadedConfig, config_from_dict, load_config
from xectool.config.root import RunConfig
from xectool.errors import ConfigError

TASK = {"tasks": {"energy": {"enabled": True, "scale": "auto"}}}


def load_text(text: str, tmp_path: Any, kind: str = "regressor") -> LoadedConfig:
    path = tmp_path / "run.yaml"
    tail = "tasks:\n  energy: {enabled: true, scale: auto}\n" if kind == "regressor" and "tasks:" not in text else ""
    path.write_text(f"kind: {kind}\n{text}\n{tail}")
    return load_config(path)


def value_of(config: RunConfig, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize(
    ("key", "written", "expected"),
    [
        ("training.lr", "1e-4", 1e-4),
        ("training.lr", "'1e-4'", 1e-4),
        ("training.lr", "1.0e-4", 1e-4),
        ("training.lr", ".001", 1e-3),
        ("training.lr", "1", 1.0),
        ("data.batch_size", "1_024", 1024),
        ("data.batch_size", "'64'", 64),
        ("data.shuffle", "yes", True),
        ("data.shuffle", "on", True),
        ("data.fiducial.enabled", "TRUE", True),
        ("normalization.time_scale", "6.5e-8", 6.5e-8),
        ("training.ema_decay", "0", None),
        ("training.ema_decay", "null", None),
        ("training.ema_decay", "0.9", 0.9),
        ("training.ema_decay", "AUTO", "auto"),
        ("training.amp", "true", "auto"),
        ("training.amp", "off", "off"),
        ("training.amp", "false", "off"),
        ("training.amp", "bf16", "bf16"),
        ("training.lr_scheduler", "null", "constant"),
        ("training.lr_scheduler", '"none"', "constant"),
        ("training.lr_scheduler", "none", "constant"),
        ("training.lr_scheduler", "cosine", "cosine"),
        ("training.activation_checkpointing", "null", "none"),
        ("training.device", "cuda:1", "cuda:1"),
        ("model.outer_fine_pool", "[3, 3]", (3, 3)),
        ("model.outer_fine_pool", "null", None),
        ("checkpoint.resume_from", '""', None),
        ("mlflow.run_name", "'010'", "010"),
        ("mlflow.run_name", "010", "010"),
        ("data.train_path", "null", ""),
        ("data.train_path", "[a.root, b.root]", ("a.root", "b.root")),
        ("data.train_path", "~/data/x.root", "~/data/x.root"),
        ("export.onnx", "null", None),
    ],
)
def test_a_value_is_read_as_meant(key: str, written: str, expected: Any, tmp_path: Any) -> None:
    *parents, leaf = key.split(".")
    lines = [f"{'  ' * depth}{name}:" for depth, name in enumerate(parents)]
    text = "\n".join([*lines, f"{'  ' * len(parents)}{leaf}: {written}"])
    assert value_of(load_text(text, tmp_path).config, key) == expected


@pytest.mark.parametrize(
    ("written", "mode"),
    [
        ("none", "none"),
        ("false", "none"),
        ('"false"', "none"),
        ("null", "none"),
        ("off", "none"),
        ("no", "none"),
        ("true", "default"),
        ("default", "default"),
        ("reduce-overhead", "reduce-overhead"),
        ("max-autotune", "max-autotune"),
        ("max-autotune-no-cudagraphs", "max-autotune-no-cudagraphs"),
        ("auto", "auto"),
    ],
)
def test_compile_table(written: str, mode: str, tmp_path: Any) -> None:
    assert load_text(f"training: {{compile: {written}}}", tmp_path).config.training.compile == mode


def test_an_unknown_compile_mode_lists_the_modes(tmp_path: Any) -> None:
    listed = "training.compile: one of none, default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs"
    with pytest.raises(ConfigError, match=re.escape(listed)):
        load_text("training: {compile: fastest}", tmp_path)


def test_an_absent_compile_key_decides_by_the_machine(tmp_path: Any) -> None:
    assert load_text("training: {epochs: 3}", tmp_path).config.training.compile == "auto"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("training: {lr: abc}", "training.lr: expected float, got string 'abc'"),
        ("training: {lr: true}", "training.lr: expected float, got boolean true"),
        ("training: {lr: NaN}", "training.lr: expected float, got string 'NaN'"),
        ("training: {lr: .nan}", "training.lr: must be finite"),
        ("training: {lr: .inf}", "training.lr: must be finite"),
        ("training: {lr: -1}", "training.lr must be > 0, got -1"),
        ("training: {lr: 0}", "training.lr must be > 0"),
        ("training: {lr: null}", "training.lr: expected float, got null"),
        ("training: {lr: [1]}", "training.lr: expected float, got list"),
        ("training: {epochs: 1.5}", "training.epochs: expected integer, got float 1.5"),
        ("training: {epochs: 010}", "leading zero as octal; write 10"),
        ("training: {epochs: 3:00}", "colon as base 60"),
        ("training: {epochs: 0x10}", "training.epochs: expected integer, got string '0x10'"),
        ("training: {epochs: 0}", "training.epochs must be > 0"),
        ("training: {epochs: no}", "training.epochs: expected integer, got string 'no'"),
        ("data: {batch_size: 0}", "data.batch_size must be > 0"),
        ("data: {chunksize: -5}", "data.chunksize must be > 0"),
        ("data: {shuffle: 1}", "data.shuffle: expected boolean, got integer 1"),
        ("data: {tree_name: 5}", "data.tree_name: expected string, got integer 5"),
        ("data: {train_path: 5}", "data.train_path: expected a path or a list of paths"),
        ("data: {truth_branches: {engy: a}}", "unknown task 'engy'"),
        ("data: {truth_branches: {energy: 3}}", "expected a branch name for energy"),
        ("data: {truth_branches: 3}", "expected a mapping of task to branch"),
        ("normalization: {npho_scale: 0}", "normalization.npho_scale must be > 0"),
        ("normalization: {time_scale: 6.5e8}", "6.5e8 looks like 6.5e-8"),
        ("normalization: {time_scale: 1}", "must lie between 1e-9 and 1e-5 s"),
        ("normalization: {time_scale: 0}", "time_scale must be > 0"),
        ("normalization: {npho_scheme: log}", "one of log1p, anscombe, sqrt, linear"),
        ("model: {outer_mode: fine}", "did you mean 'finegrid'"),
        ("model: {outer_fine_pool: 3}", r"expected null or \[h, w\]"),
        ("model: {outer_fine_pool: [0, 3]}", "within 15 x 24"),
        ("model: {outer_fine_pool: [45, 72]}", "3 x 3 cells are left"),
        ("model: {dropout: 1.0}", "model.dropout must be < 1"),
        ("model: {drop_path_rate: -0.1}", "model.drop_path_rate must be >= 0"),
        ("training: {device: gpu}", "one of auto, cpu, cuda, cuda:N"),
        ("training: {amp: fp32}", "one of auto, off, bf16, fp16"),
        ("training: {lr_scheduler: cos}", "one of constant, cosine, onecycle, plateau, cosine_restarts"),
        ("training: {ema_decay: 1.0}", "ema_decay must lie between 0 and 1"),
        ("training: {ema_decay: long}", "expected auto, null or a float, got string 'long'"),
        ("training: {grad_clip: -1}", r"training.grad_clip must be >= 0, got -1.0 \(0 disables clipping"),
        ("training: {grad_accum_steps: 0}", "effective batch"),
        ("training: {pct_start: 1.0}", "training.pct_start must be < 1"),
        ("training: {early_stop_patience: 0}", "training.early_stop_patience must be >= 1"),
        ("checkpoint: {save_interval: 0}", "save_interval does not change validation frequency"),
        ("validation: {interval: 0}", "validation.interval must be >= 1"),
        ("reweighting: {angle: {nbins_2d: [20]}}", "expected two integers"),
        ("loss_balance: automatic", "loss_balance: one of manual, auto"),
        ("tasks: {energy: {enabled: true, loss_fn: smoothl1}}", "did you mean 'smooth_l1'"),
        ("tasks: {energy: {enabled: true, loss_beta: -1}}", "tasks.energy.loss_beta must be >= 0"),
        ("tasks: {energy: {enabled: true, scale: 0}}", "scale must be > 0"),
        ("tasks: {energy: {enabled: true, weight: -1}}", "tasks.energy.weight must be >= 0"),
        ("data: 7", "data: expected a section with keys, got integer 7"),
    ],
)
def test_a_wrong_value_names_key_and_value(section: str, message: str, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_text(section, tmp_path)
    assert "run.yaml:2" in caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize(
    ("section", "fix"),
    [
        ("mask_patterns: [dead.txt, b.txt]", "model.mask_patterns: {origins: [dead.txt, b.txt]}"),
        ("mask_patterns: [[3]]", "model.mask_patterns:"),
        ("mask_patterns: 3", "model.mask_patterns:"),
    ],
)
def test_a_value_in_place_of_a_section_is_answered_with_the_key_that_takes_it(
    section: str, fix: str, tmp_path: Any
) -> None:
    with pytest.raises(ConfigError, match="expected a section") as caught:
        load_text(f"model: {{{section}}}", tmp_path, "mae")
    assert caught.value.fix == fix


@pytest.mark.parametrize(
    ("ratio", "message"),
    [
        (65, r"0.65 means 65 %: did you mean 0.65\?"),
        (1.0, "must lie between 0 and 1"),
        (0, "must lie between 0 and 1"),
        (-0.1, "must lie between 0 and 1"),
        ({"inner": 0, "us": 0}, "hides nothing"),
        ({"middle": 0.1}, "unknown face 'middle'"),
        ({"inner": 10}, "did you mean 0.1"),
    ],
)
def test_an_impossible_mask_ratio_is_refused(ratio: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from_dict({"kind": "inpainter", "model": {"mask_ratio": ratio}}, "here")


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        ([], "must not be empty"),
        (["charge"], "unknown channel 'charge'"),
        (["npho", "npho"], "twice"),
        ("npho", "empty"),
    ],
)
def test_impossible_channels_are_refused(channels: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from_dict({"kind": "mae", "model": {"predict_channels": channels}}, "here")


def test_a_truth_branch_is_changed_without_repeating_the_others() -> None:
    config = config_from_dict({"kind": "regressor", **TASK, "data": {"truth_branches": {"energy": "eTrue"}}}, "here")
    assert config.data.truth_branches["energy"] == "eTrue"
    assert config.data.truth_branches["uvwFI"] == "uvwTruth"


def test_scalars_follow_yaml_1_2() -> None:
    values = parse_document("a: 1e5\nb: off\nc: 3:00\nd: 017\ne: 1_0\nf: 0\ng: -0.5\nh: 2024-01-01\n", "x").values
    assert values == {"a": 1e5, "b": "off", "c": "3:00", "d": "017", "e": 10, "f": 0, "g": -0.5, "h": "2024-01-01"}
