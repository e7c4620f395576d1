"""The config commands: what init writes loads, what show prints loads again, what differs is listed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from xectool.config.invalid import InvalidConfigError
from xectool.config.keys import keys_of
from xectool.config.load import config_from_dict, load_config
from xectool.config.platform import Platform
from xectool.config.presets import PRESETS
from xectool.config.root import KINDS
from xectool.config.rules.capacity import HostMemorySuffices
from xectool.config.rules.platform import Situation
from xectool.config.serialize import to_yaml
from xectool.config.template import key_comment, template
from xectool.engine import config as commands
from xectool.engine.simulation import simulate
from xectool.engine.training_run import preflight
from xectool.errors import ConfigError, UsageError, XecError
from xectool.findings import Finding, Report, Severity

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GOOD = "kind: regressor\ntasks:\n  energy: {enabled: true, scale: auto}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(GOOD)
    return tmp_path / "run.yaml"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_a_started_configuration_loads_and_holds_every_key(kind: str, preset: str | None, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(template(kind, preset))
    loaded = load_config(path)
    assert loaded.config.kind == kind
    assert set(keys_of(kind)) <= set(loaded.origins) | {"kind"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_line_of_a_started_configuration_says_what_it_means(kind: str) -> None:
    lines = [line for line in commands.init(kind).splitlines() if line and not line.startswith("#")]
    assert all("  # " in line for line in lines)


@pytest.mark.parametrize(("what", "name", "line"), [("kind", "foo", "--kind "), ("preset", "gh20", "--preset gh200")])
def test_an_unknown_choice_names_its_option_and_one_that_is_known(what: str, name: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        commands.init(**{"kind": "mae", what: name})
    assert caught.value.where == f"--{what}"
    assert caught.value.fix.startswith(line)


def test_a_comment_holds_unit_and_bound() -> None:
    assert key_comment(keys_of("mae")["data.timeout_s"]).endswith("[s, > 0, <= 86400]")


def test_the_grace_hopper_preset_has_its_published_values(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(template("regressor", "gh200", Platform(memory_bytes=24 * 10**9)))
    config = load_config(path).config
    assert (config.data.chunksize, config.data.num_workers, config.data.num_threads) == (65_536, 1, 8)
    assert (config.data.batch_size, config.training.compile) == (2048, "reduce-overhead")


ARM = Platform(machine="aarch64", cores=72, memory_bytes=480 * 10**9, num_gpus=1, has_triton=True)
MACHINES = {
    "cpu": Platform(cores=4, memory_bytes=16 * 10**9),
    "ci": Platform(cores=2, memory_bytes=8 * 10**9),
    "a100": Platform(cores=64, memory_bytes=512 * 10**9, num_gpus=4, has_triton=True),
    "gh200": ARM,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_nothing_wrong_on_its_machine(kind: str, preset: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(template(kind, preset, MACHINES[preset]))
    loaded = load_config(path, (), MACHINES[preset])
    assert "was cut" not in path.read_text()
    told = {"CFG-06", "CFG-60"}  # an inpainter begins with an encoder; ARM compilers are to be tried
    assert [item.problem for item in loaded.findings if item.code not in told] == []
    assert loaded.config.data.mp_context == "forkserver"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_says_why_each_key_has_its_value(preset: str) -> None:
    lines = template("mae", preset).splitlines()
    reasons = [reason for key, (_, reason) in PRESETS[preset].settings.items() if key != "preset"]
    assert all(reasons)
    assert all(any(line.endswith(f"; {preset}: {reason}") for line in lines) for reason in reasons)


def test_a_preset_compiles_on_arm_only_where_triton_is(tmp_path: Path) -> None:
    bare, path = replace(ARM, has_triton=False), tmp_path / "run.yaml"
    path.write_text(template("regressor", "gh200", ARM))
    with pytest.raises(ConfigError, match="needs triton"):  # what was written elsewhere is refused, not changed
        load_config(path, (), bare)
    path.write_text(template("regressor", "gh200", bare))
    assert load_config(path, (), bare).config.training.compile == "auto"
    assert "became auto: triton cannot be imported" in path.read_text()


@pytest.mark.parametrize(
    "written",
    [(), ("training.epochs=3",), ("training.epochs=1",), ("training.epochs=1", "training.warmup_epochs=auto")],
)
def test_a_fresh_configuration_is_taken_with_few_epochs(path: Path, written: tuple[str, ...]) -> None:
    """`config init` wrote the 2 epochs of warm-up of a long run, and `--set training.epochs=2` was refused."""
    text = template("regressor", overrides=written)
    path.write_text(text)
    assert "  warmup_epochs: auto  " in text
    assert [
        load_config(path, [f"training.epochs={epochs}"]).config.training.warmup_epochs for epochs in (1, 2, 20)
    ] == [0, 0, 2]
    with pytest.raises(ConfigError, match=r"--set training\.warmup_epochs=0"):
        load_config(path, ["training.epochs=2", "training.warmup_epochs=2"])
    assert "  warmup_epochs: 2  " in template("regressor", overrides=["training.warmup_epochs=2"])
    assert "  warmup_epochs: auto  " in template("regressor", preset="ci")  # more epochs of it have a warm-up
    last = template("regressor", overrides=["training.warmup_epochs=auto", "training.warmup_epochs=5"])
    assert "  warmup_epochs: 5  " in last


def test_a_fresh_configuration_averages_over_a_part_of_its_run_however_long_that_is(path: Path) -> None:
    """It had the 0.999 of a long run, and the weights that a tutorial exports were mostly those of its first step."""
    path.write_text(template("regressor"))
    config = load_config(path).config
    assert config.training.ema_decay == "auto"
    path.write_text(to_yaml(config))
    assert load_config(path).config == config


def test_a_preset_is_cut_to_the_memory_of_the_machine(tmp_path: Path) -> None:
    text = template("regressor", "a100", Platform(memory_bytes=24 * 10**9))
    assert "data.chunksize 262144 of the preset was cut to" in text
    (tmp_path / "run.yaml").write_text(text)
    assert load_config(tmp_path / "run.yaml").config.data.chunksize < 262_144


def test_the_cut_counts_what_is_set_and_leaves_a_size_that_is_set() -> None:
    """Workers that were set afterwards read more windows ahead than the cut had counted."""
    machine = Platform(memory_bytes=24 * 10**9)
    text = template("regressor", "a100", machine, ["data.num_workers=16"])
    config = config_from_dict(yaml.safe_load(text), "test")
    assert not list(HostMemorySuffices().check(Situation(config, machine)))
    assert "was cut to" in text
    for told in ("data.chunksize=200000", "data={chunksize: 200000}"):
        assert "chunksize: 200000 " in template("regressor", "a100", machine, [told])
    small = template("regressor", "a100", Platform(memory_bytes=4 * 10**8))
    assert "# this machine lacks the memory" in small  # no number could be read from the line that says so
    assert "chunksize: 262144 " in small


@pytest.mark.parametrize("kind", ["regressor", "mae", "inpainter"])
def test_a_preset_takes_settings_whatever_keys_it_names_for_other_kinds(kind: str) -> None:
    """`config init --kind regressor --preset ci --set ...` was refused for a key of a mae that the preset names."""
    assert "lr: 0.002 " in template(kind, "ci", Platform(), ["training.lr=2e-3"])


@pytest.mark.parametrize(("kind", "preset", "hint"), [("mea", None, "'mae'"), ("mae", "a10", "'a100'")])
def test_an_unknown_kind_or_preset_names_the_nearest(kind: str, preset: str | None, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        commands.init(kind, preset)


def test_what_is_shown_loads_again(path: Path, tmp_path: Path) -> None:
    shown = commands.show(path, ["training.lr=1e-5"])
    again = tmp_path / "again.yaml"
    again.write_text(shown.yaml)
    assert commands.show(again).config == shown.config
    assert shown.config["training"]["lr"] == 1e-5
    assert json.loads(json.dumps(shown.config)) == shown.config


def test_check_refuses_overlap_without_looking_for_files(path: Path) -> None:
    same = ["data.train_path=/nowhere/a.root", "data.val_path=/nowhere/a.root"]
    with pytest.raises(ConfigError, match=r"--set data\.allow_overlap=true") as caught:
        commands.check(path, same)
    assert caught.value.where == "--set (data.val_path)"
    found = commands.check(path, [*same, "data.allow_overlap=true"]).findings
    assert "CFG-37" in {item.code for item in found.warnings}


def test_only_a_deep_check_looks_for_files(path: Path) -> None:
    paths = ["data.train_path=/nowhere/a.root", "data.val_path=/nowhere/b.root"]
    assert commands.check(path, paths).config["data"]["train_path"] == "/nowhere/a.root"
    with pytest.raises(ConfigError, match=r"no files match data\.train_path"):
        commands.check(path, paths, deep=True)


def test_a_deep_check_tells_of_missing_files_beside_what_else_is_wrong(path: Path) -> None:
    """The one hid the other: two starts for two mistakes. Of a path that is refused itself nothing more is told."""
    wrong = ["tasks.energy.enabled=false", "data.train_path=/nowhere/a.root", "data.val_path=true"]
    with pytest.raises(InvalidConfigError) as caught:
        commands.check(path, wrong, deep=True)
    told = [(found.code, found.where) for found in Report(caught.value.findings).errors]
    assert told == [
        ("CFG-38", "--set (data.val_path)"),
        ("CFG-04", f"{path}:2 (tasks)"),
        ("CFG-38", "--set (data.train_path)"),
    ]
    with pytest.raises(InvalidConfigError) as shallow:
        commands.check(path, wrong)
    assert [(found.code, found.where) for found in Report(shallow.value.findings).errors] == told[:2], "the control"


def test_a_check_that_refuses_still_warns(path: Path) -> None:
    """Of two files with the same slip the one that had an error as well was told nothing of it."""
    slip = "checkpoint.init_from=/nowhere/a.pt"
    with pytest.raises(InvalidConfigError) as caught:
        commands.check(path, [slip, "data.train_path=a.root", "data.val_path=a.root"])
    assert [(found.code, found.severity) for found in caught.value.findings] == [
        ("CFG-37", Severity.ERROR),
        ("CFG-45", Severity.WARNING),
    ]
    assert caught.value.fix == "--set data.allow_overlap=true  # for a smoke test; better, other validation files"


def test_any_check_warns_of_a_checkpoint_that_is_not_there_and_may_come_yet(path: Path, tmp_path: Path) -> None:
    """It was called sound, and `train` refused it."""
    for key in ("init_from", "resume_from"):
        (found,) = commands.check(path, [f"checkpoint.{key}=/nowhere/a.pt"]).findings.warnings
        assert (found.code, found.problem) == ("CFG-45", f"checkpoint.{key}: no such checkpoint /nowhere/a.pt")
    (tmp_path / "a.pt").touch()
    assert not commands.check(path, [f"checkpoint.init_from={tmp_path}/a.pt"]).findings.warnings
    (tmp_path / "inpainter.yaml").write_text("kind: inpainter\nmodel: {head_type: cross_attention}\n")
    positions = ["model.sensor_positions_file=/nowhere/sensors.txt"]
    found = commands.check(tmp_path / "inpainter.yaml", positions).findings
    assert "CFG-66" in {item.code for item in found.warnings}


def test_a_deep_check_looks_at_memory(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, name in enumerate(("a.root", "b.root")):
        simulate(tmp_path / name, events=8, seed=seed)
    sets = [f"data.train_path={tmp_path}/a.root", f"data.val_path={tmp_path}/b.root", "data.batch_size=8"]
    assert commands.check(path, sets, deep=True).findings.errors == ()
    short = Finding("CFG-20", Severity.ERROR, "too little")  # what a training says has tests of its own
    monkeypatch.setattr(preflight, "shortage", lambda *asked: Report((short,)))
    with pytest.raises(InvalidConfigError) as caught:
        commands.check(path, sets, deep=True)
    assert caught.value.code == "CFG-20"


def test_check_knows_the_machine(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setitem(__import__("sys").modules, "triton", None)
    with pytest.raises(ConfigError, match=r"--set training\.compile=none"):
        commands.check(path, ["training.compile=max-autotune"])


def test_the_difference_lists_each_key_once(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(GOOD + "training: {lr: 1e-3}\ndata: {batch_size: 8}\n")
    found = {item.key: (item.first, item.second) for item in commands.diff(path, other)}
    assert found == {"training.lr": (3e-4, 1e-3), "data.batch_size": (256, 8)}
    assert commands.diff(path, path) == ()


def test_two_kinds_differ_in_the_keys_only_one_has(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("kind: mae\n")
    found = {item.key: (item.first, item.second) for item in commands.diff(path, other)}
    assert found["kind"] == ("regressor", "mae")
    assert found["model.decoder_dim"] == (None, 128)


def test_the_schema_is_json() -> None:
    assert len(json.loads(json.dumps(commands.schema()))["oneOf"]) == len(KINDS)


def test_the_example_is_valid_and_free_of_warnings() -> None:
    loaded = load_config(EXAMPLES / "regressor.yaml")
    assert list(loaded.findings) == []


def test_a_template_has_the_values_that_are_told(tmp_path: Path) -> None:
    told = ["data.train_path=[a b.root, c.root]", "data.truth_branches.energy=e_gamma", "tasks.timing={enabled: true}"]
    text = template("regressor", "cpu", overrides=told)
    (tmp_path / "c.yaml").write_text(text)
    config = load_config(tmp_path / "c.yaml").config
    assert config.data.train_path == ("a b.root", "c.root")
    assert (config.data.truth_branches["energy"], config.data.truth_branches["uvwFI"]) == ("e_gamma", "uvwTruth")
    assert config.to_dict()["tasks"]["timing"]["enabled"]
    same = [line.partition("#")[0] for line in template("regressor", "cpu").splitlines()]
    assert sum(line.partition("#")[0] not in same for line in text.splitlines()) == 3 - 1, "nothing else differs"
    assert "    weight: 3.0 " in template("mae", overrides=["training.time_weight=3"]), "an older name, as in a file"


@pytest.mark.parametrize("told", ["data.foo=1", "training.lr=fast", "kind=mae", "training.lr"])
def test_a_template_refuses_what_a_file_would(told: str) -> None:
    with pytest.raises(XecError):
        template("regressor", overrides=[told])


@pytest.mark.parametrize("kind", ["regressor", "mae", "inpainter"])
@pytest.mark.parametrize("preset", [None, "gh200"])
def test_lines_that_differ_from_the_default_are_marked_and_the_others_change_nothing(
    kind: str, preset: str | None, write: Callable[..., Path]
) -> None:
    """The head said to delete what is not changed; without `lr_scheduler: cosine` the run was another one."""
    lines = template(kind, preset).splitlines()
    sections = [line for line in lines if line.partition("#")[0].rstrip().endswith(":")]
    short = [line for line in lines if "(default " in line or line in sections]
    assert len(short) < len(lines) / 2
    whole, rest = (load_config(write("\n".join(part) + "\n")).config for part in (lines, short))
    assert whole == rest
    assert any("(default constant)" in line for line in short) == (kind == "regressor")
