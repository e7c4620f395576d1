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
    mend = all_mends(["--time 1:00:00", "training.lr: 1e-4", "--set data.val_path='a b.root'", "prose"], OPTIONS)
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
    mend = all_mends(["data.batch_size: 8", "data.batch_size: 4"], OPTIONS)
    assert mend == Mend(settings={"data.batch_size": "8"})
