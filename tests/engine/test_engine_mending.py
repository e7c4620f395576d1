"""What fixes change on a command line, and the one line with all of them."""

from __future__ import annotations

import shlex

import pytest
from xectool.config.document import parse_value
from xectool.engine.mending import Mend, all_mends, mend_of

OPTIONS = frozenset({"--time", "--resume", "--gpus"})


@pytest.mark.parametrize(
    ("fix", "options", "settings"),
    [
        ("--time 12:00:00   # or another", {"--time": "12:00:00"}, {}),
        ("--resume 'my runs/a.pt'   # or b.pt", {"--resume": "my runs/a.pt"}, {}),
        ("--set training.lr=1e-4 --set data.batch_size=8", {}, {"training.lr": 1e-4, "data.batch_size": 8}),
        ("--set 'data.train_path=a b.root'", {}, {"data.train_path": "a b.root"}),
        ("data.train_path: a b.root   # the nearest", {}, {"data.train_path": "a b.root"}),
        ("data.train_path: 'it''s #1.root'", {}, {"data.train_path": "it's #1.root"}),
        ('data.train_path: [a b.root, "c, d.root"]', {}, {"data.train_path": ["a b.root", "c, d.root"]}),
        ("training.lr: 1e-4\ndata.batch_size: 8", {}, {"training.lr": 1e-4, "data.batch_size": 8}),
        ("checkpoint.init_from: null   # starts from new weights", {}, {"checkpoint.init_from": None}),
    ],
)
def test_a_fix_is_read_as_a_shell_and_yaml_read_it(
    fix: str, options: dict[str, str], settings: dict[str, object]
) -> None:
    found = mend_of(fix, OPTIONS)
    assert found is not None
    assert dict(found.options) == options
    assert {key: parse_value(value, "x") for key, value in found.settings.items()} == settings
    line = shlex.split(found.on(["submit", "c.yaml"]))
    assert all(f"{key}={value}" in line for key, value in found.settings.items()), "a shell gives them back"


@pytest.mark.parametrize(
    "fix",
    [
        "sinfo --summarize   # lists them; then: --partition NAME",
        "--set data.train_path=PATH",
        "--account NAME",
        "--device cpu",
        "checkpoint.init_from: artifacts/<mae run>/checkpoint_best.pt",
        "give .root files, or a list so: data.train_path: '@a.txt'",
        "rename trainig to training",
        "it's prose",
        "--set training.lr=1e-4 or --set training.epochs=2",
        "no.such.key: 1",
        "training.lr: 1e-4\ndelete the other",
        "",
    ],
)
def test_prose_and_words_to_fill_in_are_no_mend(fix: str) -> None:
    assert mend_of(fix, OPTIONS) is None


def test_what_was_typed_is_changed_in_its_place_and_the_rest_stays() -> None:
    fixes = ("--time 1:00:00", "training.lr: 1e-4", "--set data.val_path='a b.root'", "prose")
    mend = all_mends(mend_of(fix, OPTIONS) for fix in fixes)
    argv = [
        "submit",
        "c d.yaml",
        "--time=1h",
        "--gpus",
        "0",
        "--set",
        "training.lr=5",
        "--set=data.val_path=x",
        "--json",
    ]
    assert shlex.split(mend.on(argv)) == [
        "xectool", "submit", "c d.yaml", "--time=1:00:00", "--gpus", "0", "--set", "training.lr=0.0001",
        "--set=data.val_path=a b.root", "--json",
    ]  # fmt: skip
    assert mend.on(["submit", "c.yaml", "--", "-x"]).endswith(
        " --set training.lr=0.0001 --set 'data.val_path=a b.root' -- -x"
    )


def test_of_two_values_of_one_key_the_first_is_taken() -> None:
    mend = all_mends(mend_of(f"data.batch_size: {size}", OPTIONS) for size in (8, 4))
    assert mend == Mend(settings={"data.batch_size": "8"})


def test_a_key_that_is_none_does_not_stay_beside_the_right_one() -> None:
    argv = [
        "submit",
        "--set",
        "trainig.lr=3",
        "c.yaml",
        "--set=x.y=1",
        "--set",
        "data.batch_size=8",
        "--",
        "--set=x.y=1",
    ]
    fixes = {"trainig.lr": "training.lr: 3", "x.y": "leave out --set x.y; the top level knows kind, ..."}
    mend = all_mends(mend_of(fix, OPTIONS, wrong) for wrong, fix in fixes.items())
    line = shlex.split(mend.on(argv))
    assert line[1:] == ["submit", "c.yaml", "--set", "data.batch_size=8", "--set", "training.lr=3", "--", "--set=x.y=1"]
    assert mend.overrides(["trainig.lr=3", "a.b=1", "x.y=1"]) == ("a.b=1", "training.lr=3")
    kept = all_mends(mend_of(fix, OPTIONS) for fix in fixes.values())  # the control: keys of a file
    assert "trainig.lr=3" in kept.on(argv)
