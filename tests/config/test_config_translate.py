"""Files of the older system: inferred kind, moved keys, defaults that are no errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xectool.config.invalid import InvalidConfigError
from xectool.config.keys import keys_of
from xectool.config.load import load_config
from xectool.config.root import InpainterConfig, MaeConfig, RegressorConfig, RunConfig
from xectool.config.serialize import dotted_values, inline_yaml
from xectool.config.translate import RENAMED, Renamed
from xectool.findings import Finding, Report, Severity

Write = Callable[..., Path]
Refused = Callable[..., InvalidConfigError]
GOOD = "kind: regressor\ntasks:\n  energy: {enabled: true, scale: auto}\n"


@pytest.mark.parametrize("name", ["reg_small", "mae_small", "inp_small_perface", "inp_small_xattn"])
def test_a_file_of_the_older_system_loads_as_it_is(name: str, reference_dir: Path) -> None:
    loaded = load_config(reference_dir / "configs" / f"{name}.yaml")
    assert loaded.config.kind == {"reg": "regressor", "mae": "mae", "inp": "inpainter"}[name[:3]]
    assert loaded.findings.errors == ()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("tasks: {energy: {enabled: true, scale: auto}}", RegressorConfig),
        ("model: {decoder_dim: 16}", MaeConfig),
        ("model: {mask_ratio: 0.6}", MaeConfig),
        ("model: {mask_ratio: 0.05, freeze_encoder: false}", InpainterConfig),
        ("training: {mae_checkpoint: x.pth}", InpainterConfig),
        ("training: {time_weight: 0.5, lr: 1.0e-4}", MaeConfig),  # was a regressor: "delete training.time_weight"
        ("model: {cross_attn_k: 16}", InpainterConfig),
    ],
)
def test_the_kind_is_inferred_with_a_note(text: str, kind: type[RunConfig], write: Write) -> None:
    loaded = load_config(write(text))
    assert isinstance(loaded.config, kind)
    assert any("kind is not written" in found.problem for found in loaded.findings)


def test_errors_are_told_with_how_older_keys_were_read(write: Write, refused: Refused) -> None:
    """They were told of sound files only, while one that is mended needs them most."""
    text = "training: {mae_checkpoint: a.pth, time_weight: 0.5, lrr: 1.0e-4}\n"
    error = refused(write(text))
    assert [found.severity for found in error.findings] == [Severity.ERROR, *[Severity.INFO] * 3, Severity.WARNING]
    assert {found.fix for found in error.findings} >= {"checkpoint.init_from: a.pth", "training.time.weight: 0.5"}
    assert error.fix == "training.lr: 0.0001", "the error itself is the one mistake"
    loaded = load_config(write(text.replace("lrr", "lr"), "sound.yaml"))
    broken = Finding("CFG-40", Severity.ERROR, "not there", "data.train_path")
    with pytest.raises(InvalidConfigError) as caught:
        loaded.require(Report((broken,)))
    assert [found.code for found in caught.value.findings] == ["CFG-40", *["CFG-NOTE"] * 3, "CFG-14"]
    assert pickle.loads(pickle.dumps(caught.value)).findings == caught.value.findings


def test_a_misspelt_kind_is_refused(write: Write, refused: Refused) -> None:
    error = refused(write("kind: regresor\ntasks: {energy: {enabled: true}}\n"))
    assert error.fix == "kind: regressor"


@pytest.mark.parametrize(
    ("old", "read"),
    [
        ("training: {time_weight: 0.5}", lambda c: c.training.time.weight == 0.5),
        ("training: {use_npho_time_weight: false}", lambda c: c.training.time.use_npho_weight is False),
        ("training: {npho_threshold: 50}", lambda c: c.training.time.npho_threshold == 50),
        ("model: {time_mask_ratio_scale: 2}", lambda c: c.training.time.mask_ratio_scale == 2),
        ("training: {mae_checkpoint: a.pth}", lambda c: c.checkpoint.init_from == "a.pth"),
        ("training: {mae_checkpoint: null}", lambda c: c.checkpoint.init_from is None),
    ],
)
def test_a_moved_key_is_translated_with_a_note(old: str, read: Any, write: Write) -> None:
    loaded = load_config(write(f"kind: inpainter\n{old}\n"))
    assert read(loaded.config)
    (note,) = [found for found in loaded.findings if found.code == "CFG-NOTE"]
    assert "is read as" in note.problem
    assert "run.yaml:2" in note.where


def _with_an_older_name(renamed: Renamed) -> tuple[str, str, str, Any]:
    """Return a file with the older name, the line of the key itself, the older value and that of the key."""
    section, name = renamed.old
    new = ".".join(renamed.new)
    wanted = keys_of("inpainter")[new].default()
    value = "a.pth" if name == "mae_checkpoint" else {"null": "50.0", "true": "false"}.get(inline_yaml(wanted), "0.25")
    text = f"kind: inpainter\n{section}: {{{name}: {value}}}\n"
    return text, f"{new}: {inline_yaml(wanted)}", value, wanted


@pytest.mark.parametrize("renamed", RENAMED, ids=lambda renamed: ".".join(renamed.old))
def test_a_key_as_override_wins_over_its_older_name_with_a_warning(renamed: Renamed, write: Write) -> None:
    """A null beside an older name was ignored, so the fix `--set checkpoint.init_from=null` changed nothing."""
    text, line, value, wanted = _with_an_older_name(renamed)
    loaded = load_config(write(text), [line.replace(": ", "=")])
    assert dotted_values(loaded.config.model_dump())[".".join(renamed.new)] == wanted
    (warned,) = [found for found in loaded.findings.warnings if found.code == "CFG-01"]
    assert warned.fix == f"delete {'.'.join(renamed.old)}"
    assert f"{'.'.join(renamed.old)} {value} is ignored" in warned.problem


@pytest.mark.parametrize("renamed", RENAMED, ids=lambda renamed: ".".join(renamed.old))
def test_two_values_of_one_file_are_refused_and_a_pasted_null_wins(
    renamed: Renamed, write: Write, refused: Refused
) -> None:
    """The null is the fix of a checkpoint that is not there, and pasting it changed nothing."""
    text, line, value, wanted = _with_an_older_name(renamed)
    path = write(f"{text}{line}\n")
    if wanted is not None:
        (found,) = [found for found in refused(path).findings if found.code == "CFG-01"]
        assert (found.severity, found.fix) == (Severity.ERROR, f"delete {'.'.join(renamed.old)}")
        return
    loaded = load_config(path)
    assert dotted_values(loaded.config.model_dump())[".".join(renamed.new)] is None
    (warned,) = [found for found in loaded.findings.warnings if found.code == "CFG-01"]
    assert f"{'.'.join(renamed.old)} {value} is ignored" in warned.problem


def test_a_checkpoint_under_its_older_name_is_taken_where_the_key_is_null(write: Write) -> None:
    """The null that `config init` writes won: a frozen encoder of random weights was trained."""
    path = write("kind: inpainter\ntraining: {mae_checkpoint: a.pth}\ncheckpoint: {init_from: null}\n")
    loaded = load_config(path)
    assert loaded.config.checkpoint.init_from == "a.pth"
    assert "training.mae_checkpoint is read as checkpoint.init_from" in [found.problem for found in loaded.findings]
    assert load_config(path, ["checkpoint.init_from=null"]).config.checkpoint.init_from is None
    old = "kind: inpainter\ntraining: {mae_checkpoint: a.pth}\n"
    pasted = load_config(write(f"{old}checkpoint.init_from: null\n"))
    assert pasted.config.checkpoint.init_from is None, "the fix of a checkpoint that is not there, pasted"
    assert "training.mae_checkpoint a.pth is ignored" in " ".join(found.problem for found in pasted.findings)
    assert load_config(write(f"{old}training.mae_checkpoint: null\n")).config.checkpoint.init_from is None
    assert load_config(path, ["training.mae_checkpoint=b.pth"]).config.checkpoint.init_from == "b.pth"


def test_an_older_name_as_override_wins_over_the_file(write: Write) -> None:
    path = write("kind: mae\ntraining: {time: {weight: 2.0}}\n")
    loaded = load_config(path, ["training.time_weight=0.5"])
    assert isinstance(loaded.config, MaeConfig)
    assert loaded.config.training.time.weight == 0.5
    assert [found.fix for found in loaded.findings.warnings] == ["delete training.time.weight"]


def test_the_same_value_under_both_names_is_a_note(write: Write) -> None:
    loaded = load_config(write("kind: mae\ntraining: {time_weight: 0.5, time: {weight: 0.5}}\n"))
    assert not loaded.findings.warnings
    assert any("once more" in found.problem for found in loaded.findings)


def test_empty_sections_mean_their_defaults(write: Write) -> None:
    text = "kind: regressor\ndata:\ntraining:\nexport:\nreweighting:\n  angle:\ntasks:\n  energy: {enabled: true}\n"
    config = load_config(write(text)).config
    assert config.data == RegressorConfig().data


_OLDER_DATA = """data:
  train_path: /cluster/a.root
  val_path: /cluster/b.root
  tree_name: tree
  batch_size: 64
  chunksize: 256000
  num_workers: 0
  num_threads: 4
  prefetch_factor: 2
  npho_branch: npho
  time_branch: relative_time
  log_invalid_npho: true
tasks: {energy: {enabled: true, scale: auto}}
"""


def test_prefetch_of_a_complete_older_file_is_left_out_with_a_note(write: Write) -> None:
    loaded = load_config(write(_OLDER_DATA))
    assert loaded.config.data.prefetch_factor is None
    assert any("prefetch_factor 2, which the older system" in found.problem for found in loaded.findings)


def test_prefetch_without_workers_is_refused_in_any_other_file(write: Write, refused: Refused) -> None:
    error = refused(write(GOOD + "data: {num_workers: 0, prefetch_factor: 2}\n"))
    assert error.code == "CFG-15"
    error = refused(write(_OLDER_DATA.replace("factor: 2", "factor: 4")))
    assert error.code == "CFG-15"


def test_the_shipped_defaults_of_the_older_system_are_no_errors(write: Write) -> None:
    text = (
        "data: {num_workers: 1, prefetch_factor: 2, chunksize: 256000, batch_size: 4096}\n"
        "training: {amp: true, compile: max-autotune, lr_scheduler: null, ema_decay: 0, max_lr: null, epochs: 5}\n"
        "normalization: {npho_scheme: sqrt, npho_scale: 20000}\nmodel: {outer_fine_pool: [5, 3]}\n"
        "tasks: {timing: {enabled: true, loss_fn: smooth_l1, loss_beta: 1.0}}\ncheckpoint: {save_interval: 10}\n"
        "export: {onnx: null}\n"
    )
    loaded = load_config(write(text))
    assert {found.code for found in loaded.findings.warnings} == {"CFG-09", "CFG-30"}


def test_null_compile_is_noted_because_the_older_system_read_it_differently(write: Write) -> None:
    loaded = load_config(write(GOOD + "training: {compile: null}\n"))
    assert loaded.config.training.compile == "none"
    assert any("max-autotune" in found.problem for found in loaded.findings)


def test_a_warning_tells_the_line_of_its_key(tmp_path: Path, write: Write) -> None:
    loaded = load_config(write(GOOD + "training:\n  grad_clip: 0\n"))
    assert [found.where for found in loaded.findings] == [f"{tmp_path}/run.yaml:5 (training.grad_clip)"]
