"""Files and unknown keys, up to the one error that carries everything."""

from __future__ import annotations

import hashlib
import pickle
import shlex
import string
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xectool.config.invalid import InvalidConfigError
from xectool.config.keys import edit_distance, keys_of, nearest_key
from xectool.config.load import config_from_dict, load_config
from xectool.config.root import KINDS, RegressorConfig
from xectool.config.serialize import to_yaml
from xectool.errors import ConfigError
from xectool.findings import Severity

Write = Callable[..., Path]
Refused = Callable[..., InvalidConfigError]
GOOD = "kind: regressor\ntasks:\n  energy: {enabled: true, scale: auto}\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"# only a comment\n", "the file is empty"),
        (b"- a\n- b\n", "found a list"),
        (b"just text\n", "found plain text"),
        (b"\x80\x02}q\x00.", "not a text file"),
        (b"data: {a: [1, 2\n", "not valid YAML"),
        (b"data:\n\tbatch_size: 3\n", "not valid YAML"),
        (b"data: " + b"[" * 9000, "nested too deep"),
        (b"data:\n  batch_size: 1\n  batch_size: 2\n", "written twice, first on line 2"),
        (b"data: !!python/object/apply:os.system [ls]\n", "tag .* is not allowed"),
        (b"data: &a {x: *a}\n", "aliases repeat without end"),
        (b"? [a, b]\n: 1\n", "a key must be plain text"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path)
    assert str(path) in caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize(
    ("line", "mended"),
    [
        ("train_path: @my files.txt  # good", "train_path: '@my files.txt'  # good"),
        ("train_path: **/a.root", "train_path: '**/a.root'"),
        ("train_path: [b.root, *.root]", "train_path: [b.root, '*.root']"),
        ("train_path: @it's.txt", "train_path: '@it''s.txt'"),
    ],
)
def test_a_list_or_a_glob_without_quotes_leads_to_the_line_with_them(line: str, mended: str, write: Write) -> None:
    with pytest.raises(ConfigError, match="not valid YAML") as caught:
        load_config(write(f"{GOOD}data:\n  {line}\n"))
    assert caught.value.fix == f"put it in quotes: {mended}"
    load_config(write(f"{GOOD}data:\n  {mended}\n"))


@pytest.mark.parametrize("line", ["train_path: *typed_wrong", "train_path: [a.root"])
def test_other_mistakes_are_not_mended_with_quotes(line: str, write: Write) -> None:
    with pytest.raises(ConfigError, match="not valid YAML") as caught:
        load_config(write(f"{GOOD}data:\n  {line}\n"))
    assert caught.value.fix == "correct the line"


@pytest.mark.parametrize(
    ("name", "fix"), [("new.yaml", "> {}"), ("night1", "> {}.yaml   # or name a run: xectool runs")]
)
def test_a_missing_file_may_be_a_missing_run(tmp_path: Path, name: str, fix: str) -> None:
    """`diagnose gradients` of a misspelt run proposed to write a configuration into a file of its name."""
    with pytest.raises(ConfigError, match="no such config file") as caught:
        load_config(tmp_path / name)
    assert caught.value.fix == "xectool config init " + fix.format(tmp_path / name)


def test_a_missing_file_names_the_nearest_one(tmp_path: Path, write: Write) -> None:
    write(GOOD, "regressor.yaml")
    with pytest.raises(ConfigError, match=r"did you mean 'regressor.yaml'"):
        load_config(tmp_path / "regresor.yaml")


def test_a_directory_names_the_files_in_it(tmp_path: Path, write: Write) -> None:
    write(GOOD)
    with pytest.raises(ConfigError, match=r"choose one of run.yaml"):
        load_config(tmp_path)


def test_the_file_is_never_modified(write: Write, refused: Refused) -> None:
    path = write(GOOD + "training: {lr: 1e-4, unknown_key: 3}\n")
    before = (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns)
    refused(path)
    load_config(write(GOOD, "other.yaml"))
    assert (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns) == before


def test_anchors_and_merge_keys_are_read(write: Write) -> None:
    text = "kind: regressor\ntasks:\n  energy: &t {enabled: true, scale: auto}\n  uvwFI: {<<: *t, loss_fn: l1}\n"
    config = load_config(write(text)).config
    assert isinstance(config, RegressorConfig)
    assert (config.tasks.uvwFI.enabled, config.tasks.uvwFI.loss_fn) == (True, "l1")


def test_loading_is_fast(write: Write) -> None:
    path = write(to_yaml(load_config(write(GOOD)).config), "full.yaml")
    start = time.process_time()
    load_config(path)
    assert time.process_time() - start < 0.5  # 0.02 s on an idle core


def test_unknown_key_names_the_nearest_key(write: Write, refused: Refused) -> None:
    error = refused(write(GOOD + "training:\n  batch_size: 512\n"))
    assert "unknown key training.batch_size" in str(error)
    assert "did you mean data.batch_size" in str(error)
    assert error.where.endswith("run.yaml:5 (training.batch_size)")
    assert error.fix == "data.batch_size: 512"
    assert error.code == "CFG-01"


@pytest.mark.parametrize(
    ("section", "token"),
    [
        ("checkpoint: {save_root_predictions: false}", "did you mean checkpoint.save_predictions"),
        ("training: {scheduler: cosine}", "did you mean training.lr_scheduler"),
        ("training: {npho_threshold: 50}", "did you mean normalization.npho_threshold"),
        ("training: {learning_rate: 1e-3}", "did you mean training.lr"),
        ("data: {relative_npho: x}", "did you mean data.npho_branch"),
        ("trainning: {lr: 1e-3}", "did you mean training"),
        ("model: {decoder_dim: 3}", "only kind mae"),
        ("reweighting: {n_gamma: {enabled: true}}", "unknown key reweighting.n_gamma"),
        ("batch_size: 12", "did you mean data.batch_size"),
        ("data: {quantum_foam: 1}", "delete data.quantum_foam; data knows train_path"),
    ],
)
def test_a_misplaced_key_is_sent_home(section: str, token: str, write: Write, refused: Refused) -> None:
    error = refused(write(GOOD + section + "\n"))
    assert token in str(error)
    assert "run.yaml:4" in error.where


def test_all_errors_of_a_file_are_reported_together(write: Write, refused: Refused) -> None:
    text = GOOD + (
        "data:\n  batch_size: 0\n  shufle: true\ntraining:\n  lr: fast\n  epochs: 3\n  warmup_epochs: 3\n"
        "trainingg:\n  seed: 1\ncheckpoint: {resume_from: a.onnx}\n"
    )
    error = refused(write(text))
    assert {found.where.rpartition("(")[2].rstrip(")") for found in error.findings} == {
        "data.batch_size", "data.shufle", "training.lr", "trainingg", "training.warmup_epochs",
        "checkpoint.resume_from",
    }  # fmt: skip
    assert all(found.severity is Severity.ERROR and found.fix for found in error.findings)
    assert str(error).startswith("6 errors in ")


def test_errors_inside_a_misspelt_section_are_found_too(write: Write, refused: Refused) -> None:
    error = refused(write(GOOD + "trainning: {lr: -1, epohcs: 3}\n"))
    assert "unknown key trainning" in str(error)
    assert "training.lr must be > 0" in str(error)
    assert "did you mean training.epochs" in str(error)


@pytest.mark.parametrize(
    ("written", "fix"),
    [
        ("trainning: {epochs: 2, lr: 0.001}\n", "training: {epochs: 2, lr: 0.001}"),
        ("trainning:\n  epochs: 2\n  lr: 0.001\n", "rename trainning to training"),
        ("training: {seed: 3}\ntrainning: {epochs: 2, lr: 0.001}\n", "training.epochs: 2\ntraining.lr: 0.001"),
        ("training: {lr: 3e-4}\ntrainning: {epochs: 2, lr: 0.001}\n", "training.epochs: 2"),
        ("training: {lr: 3e-4}\ntrainning:\n", "delete trainning"),
        ("trainning:\n", "delete trainning"),
        ("training: {lr: 3e-4}\ntrainning.lr: 0.001\n", "delete trainning.lr"),
        ("trainning.lr: 0.001\n", "training.lr: 0.001"),
    ],
)  # fmt: skip
def test_a_misspelt_section_costs_none_of_what_is_in_it(write: Write, refused: Refused, written: str, fix: str) -> None:
    """The line to paste was its bare name: all of its settings were defaults."""
    (found,) = refused(write(GOOD + written)).findings
    assert (found.code, found.fix) == ("CFG-01", fix)


def test_a_setting_of_the_command_line_costs_none_of_a_misspelt_section(write: Write) -> None:
    """They were left out as "there already", although the next run has no such option."""
    path = write(GOOD + "trainning: {epochs: 2, lr: 0.001}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["training.epochs=3", "training.lr=1e-4"])
    assert caught.value.fix == "training.epochs: 2\ntraining.lr: 0.001"
    path = write(GOOD + "training: {lr: 3e-4}\ntrainning: {lr: 0.001}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["training.lr=1e-4"])
    assert caught.value.fix == "delete trainning"


def test_a_misspelt_task_is_its_line_with_its_settings(write: Write, refused: Refused) -> None:
    text = "kind: regressor\ntasks:\n  energie: {enabled: true, weight: 2.0}\n"
    found, _ = refused(write(text)).findings
    assert found.fix == "energy: {enabled: true, weight: 2.0}   # under tasks"
    mended = load_config(write(text.replace("energie: {enabled: true, weight: 2.0}", found.fix), "mended.yaml"))
    assert mended.config.tasks.energy.weight == 2.0  # type: ignore[union-attr]
    with pytest.raises(ConfigError) as caught:
        load_config(write(GOOD), ["tasks.energie={enabled: true, weight: 2.0}"])
    assert caught.value.fix == "--set tasks.energy.enabled=true --set tasks.energy.weight=2.0"


def test_a_misspelt_section_is_mended_with_its_keys_and_they_are_told_where_they_stand(
    write: Write, refused: Refused
) -> None:
    text = "kind: regressor\ntasks:\n  enrgy: {enabld: true, waight: 2.0, foo: 1}\n"
    section, enabled, weight, unknown = refused(write(text)).findings
    assert section.fix == "energy: {enabled: true, weight: 2.0, foo: 1}   # under tasks"
    assert enabled.where.endswith(":3 (tasks.enrgy.enabld)")
    assert enabled.problem == "unknown key tasks.enrgy.enabld, did you mean tasks.energy.enabled?"
    assert weight.fix == "tasks.energy.weight: 2.0"
    assert unknown.fix.startswith("delete tasks.enrgy.foo;")
    whole = text.replace("enrgy: {enabld: true, waight: 2.0, foo: 1}", section.fix).replace(", foo: 1", "")
    assert load_config(write(whole, "mended.yaml")).config.tasks.energy.weight == 2.0  # type: ignore[union-attr]
    both = text.replace("foo", "enabled")
    assert refused(write(both)).findings[0].fix == "energy: {enabld: true, weight: 2.0, enabled: 1}   # under tasks"


def test_a_misspelt_task_is_not_reported_as_no_task(write: Write, refused: Refused) -> None:
    error = refused(write("kind: regressor\ntasks: {enrgy: {enabled: true}}\n"))
    assert [found.code for found in error.findings] == ["CFG-01", "CFG-09"]


def test_the_error_survives_pickling(write: Write, refused: Refused) -> None:
    error = refused(write(GOOD + "data: {batch_size: 0, chunksize: 0}\n"))
    copied = pickle.loads(pickle.dumps(error))
    assert copied.findings == error.findings
    assert str(copied) == str(error)


def test_values_of_a_checkpoint_are_refused_with_their_source() -> None:
    with pytest.raises(ConfigError, match=r"did you mean training\.lr") as caught:
        config_from_dict({"kind": "mae", "training": {"lrr": 1}}, "model.pt")
    assert caught.value.where == "model.pt (training.lrr)"


def test_only_of_what_was_trained_an_unknown_kind_is_that_of_a_package() -> None:
    """Of plain values it is a slip, which was answered with a package to install as well."""
    values = {"kind": "regresor", "tasks": {"energy": {"enabled": True}}}
    with pytest.raises(InvalidConfigError, match="did you mean 'regressor'") as caught:
        config_from_dict(values, "plain values")
    assert [(found.code, found.fix) for found in caught.value.findings] == [("CFG-05", "kind: regressor")]
    for package, fix in (
        ("", "pip list   # lacks the package that"),
        ("one-more", "pip list   # lacks the package one-more that"),
    ):
        with pytest.raises(ConfigError, match="its kind is 'regresor', which no installed package brings") as missing:
            config_from_dict(values, "checkpoint.pt", package=package)
        assert (missing.value.code, missing.value.fix[: len(fix)]) == ("XT-PLUGIN", fix)
    for kind, package in (("zz", "a\ntouch /tmp/pasted #"), ("zz\ntouch /tmp/pasted #", "a b"), ("$(id)", "`id`")):
        with pytest.raises(ConfigError) as missing:
            config_from_dict({"kind": kind}, "checkpoint.pt", package=package)
        named = "zz" if kind == "zz" else "it"  # nothing of a file stands in a line to paste but a name
        assert missing.value.fix.partition("   # ")[2].startswith(f"lacks the package that brings {named}: ")
        assert "\n" not in missing.value.fix


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_typo_of_any_key_names_that_key_or_one_as_near(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    known = keys_of(kind)
    key = data.draw(st.sampled_from([item for item in known.values() if len(item.leaf) > 2]))
    at = data.draw(st.integers(0, len(key.leaf) - 1))
    letter = data.draw(st.sampled_from(string.ascii_lowercase + "_"))
    edits = [key.leaf[:at] + key.leaf[at + 1 :], key.leaf[:at] + letter + key.leaf[at:],
             key.leaf[:at] + letter + key.leaf[at + 1 :]]  # fmt: skip
    typo = data.draw(st.sampled_from(edits))
    dotted = f"{key.parent}.{typo}" if key.parent else typo
    if dotted in known or typo in ("batch", "tree"):
        return
    found = nearest_key(dotted, kind)
    assert found is not None
    assert found == key.dotted or edit_distance(found.rpartition(".")[2].lower(), typo.lower()) <= 1


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("dta.batch_size=3", "--set data.batch_size=3"),
        ("tasks.enrgy.enabled=true", "--set tasks.energy.enabled=true"),
        ("optimizer.weight_decay=0.1", "--set training.weight_decay=0.1"),
    ],
)
def test_a_setting_in_a_section_that_is_none_is_named_whole(setting: str, meant: str, write: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(GOOD), [setting])
    found, *_ = caught.value.findings
    assert (found.code, found.fix) == ("CFG-01", meant)
    assert found.where.startswith("--set")
    load_config(write(GOOD), [meant.removeprefix("--set ")])


def test_a_fix_of_several_keys_is_lines_for_the_file_or_options_that_replace_them(write: Callable[..., Path]) -> None:
    path = write(GOOD + "training: {epochs: 2}\nvalidation: {interval: 9}\ncheckpoint: {save_interval: 9}\n")
    (of_file,) = (found for found in load_config(path).findings if found.code == "CFG-24")
    assert of_file.fix == "checkpoint.save_interval: 1\nvalidation.interval: 1"
    mended = write(path.read_text() + of_file.fix, "mended.yaml")
    assert [found for found in load_config(mended).findings if found.code == "CFG-24"] == []
    (of_option,) = (found for found in load_config(path, ["validation.interval=7"]).findings if found.code == "CFG-24")
    assert of_option.fix == "--set checkpoint.save_interval=1 --set validation.interval=1"


def test_where_a_set_makes_a_line_of_the_file_wrong_the_cure_is_a_set(
    write: Callable[..., Path], refused: Refused
) -> None:
    """A short first try of a whole configuration is no reason to edit it."""
    path = write(GOOD + "training: {epochs: 20, warmup_epochs: 2}\ncheckpoint: {save_interval: 10}\n")
    (found,) = refused(path, ("training.epochs=1",)).findings
    assert (found.code, found.fix) == ("CFG-27", "--set training.warmup_epochs=0")
    mended = load_config(path, ["training.epochs=1", found.fix.removeprefix("--set ")])
    assert [item for item in mended.findings if item.code == "CFG-24"] == [], "a default asks for nothing"


def test_no_option_mends_a_name_in_the_file_that_is_none(write: Callable[..., Path], refused: Refused) -> None:
    (found,) = refused(write(GOOD + "training: {epoch: 3}\n"), ("training.epochs=1",)).findings
    assert (found.code, found.fix) == ("CFG-01", "training.epochs: 3")


@pytest.mark.parametrize(
    ("written", "fix"),
    [
        ("{energy: mc_energy, uvwFi: mc_uvw}", "{energy: mc_energy, uvwFI: mc_uvw}"),
        ("{energy: mc_energy, muon: mc_muon}", "{energy: mc_energy}"),
        ("{uvwfi: a, engery: b, timing: 5}", "{uvwFI: a, energy: b}"),
        ("{engery: a, energy: b}", "{energy: b}"),
    ],
)
def test_a_misspelt_task_costs_none_of_the_branches_that_were_told(
    write: Callable[..., Path], refused: Refused, written: str, fix: str
) -> None:
    (found,) = refused(write(GOOD + f"data: {{truth_branches: {written}}}\n")).findings
    assert (found.code, found.fix) == ("CFG-04", f"data.truth_branches: {fix}")
    load_config(write(GOOD + f"{found.fix}\n", "mended.yaml"))


def test_a_misspelt_task_of_a_set_is_answered_by_a_set(write: Callable[..., Path], refused: Refused) -> None:
    path = write(GOOD + "data: {truth_branches: {timing: t}}\n")
    (found,) = refused(path, ("data.truth_branches.engery=mc",)).findings
    assert found.where.startswith("--set")
    other = write(GOOD + "data: {truth_branches: {engery: t}}\n", "other.yaml")
    (blamed,) = refused(other, ("data.truth_branches.timing=t",)).findings
    assert blamed.where.startswith(f"{other}:"), "a --set of another task is not to blame"
    deep = write(GOOD + "data:\n  truth_branches:\n    engery:\n      a: b\n      c: d\n", "deep.yaml")
    (inner,) = refused(deep).findings
    assert inner.where.startswith(f"{deep}:{1 + deep.read_text().splitlines().index('    engery:')}")
    (nested,) = refused(path, ("data.truth_branches.enrgy.x=mc",)).findings
    assert nested.where.startswith("--set")
    (option,) = shlex.split(found.fix.removeprefix("--set "))
    assert load_config(path, [option]).config.data.truth_branches["energy"] == "mc"


def test_a_file_that_is_not_there_is_no_file_with_another_name(write: Callable[..., Path], tmp_path: Path) -> None:
    """`absent.yaml` was answered with `did you mean 'a100.yaml'?`: their ends alone are alike."""
    write("kind: mae\n", "a100.yaml")
    with pytest.raises(ConfigError) as unlike:
        load_config(tmp_path / "absent.yaml")
    assert unlike.value.fix == f"xectool config init > {tmp_path / 'absent.yaml'}"
    with pytest.raises(ConfigError, match=r"did you mean 'a100\.yaml'"):
        load_config(tmp_path / "a10.yaml")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("hello world\nkind: regressor\n", ":1"),
        ('"hello"\nkind: regressor\n', ":1"),
        ("# a note\nstray\n\nkind: regressor\n", ":2"),
        ("kind: regressor\ndata:\n  batch_size: 4\nstray\nmodel:\n  encoder_dim: 8\n", ":4"),
        ("kind: regressor\ndata: {train_path: a\ntraining:\n  lr: 1\n", ": at or before line 3"),
        ("data:\n  train_path:\n    - a.root\n  val_path: b: c\n", ":4"),  # the lines before the wrong one are right
        ("data: {batch_size: 1\n}\ntraining: lr: 3\n", ":3"),
        ("data:\n  train_path: [a.root,\n    b.root]\n  val_path: b: c\n", ":4"),
        ("data:\n  val_path: >\n    x.root\n  batch_size: 8: 9\n", ":4"),
        ("data:\n  val_path: >\n    x.root\n  batch_size\n  chunksize: 9\n", ":4"),
    ],
)
def test_text_that_is_no_key_is_named_by_its_own_line(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="not valid YAML") as caught:
        load_config(path)
    assert caught.value.where == f"{path}{line}"


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("data:\n  train_path x.root\n  val_path: y\n", "train_path: x.root   # or take that line out"),
        ("data:\n  val_path: y\n  train_path x.root\n  chunksize: 3\n", "train_path: x.root   # or take that line out"),
        ("kind: regressor\nstray\nmodel: {}\n", "take that line out"),
        ("data:\n  val_path: b: c\n", "correct the line"),
    ],
)
def test_a_line_without_its_colon_is_proposed_with_it(text: str, fix: str, write: Write) -> None:
    """Its setting was to be taken out."""
    with pytest.raises(ConfigError, match="not valid YAML") as caught:
        load_config(write(text))
    assert caught.value.fix.startswith(fix)
