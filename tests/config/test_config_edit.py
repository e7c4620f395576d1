"""One value of a configuration file is replaced; nothing else of its text changes."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xectool.config.document import parse_document
from xectool.config.edit import with_value
from xectool.errors import ConfigError

KEY = "training.lr"


def changed_lines(before: str, after: str) -> list[str]:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line[0] in "+-"]


def test_comments_order_and_quotes_stay() -> None:
    text = "# head\nkind: 'mae'  # why\ntraining:\n  # before\n  lr: 1e-3   # mine\n  epochs: 3\nmodel: {a: 1}\n"
    after = with_value(text, KEY, 2.5e-4, "f.yaml")
    assert changed_lines(text, after) == ["-   lr: 1e-3   # mine", "+   lr: 0.00025   # mine"]


@pytest.mark.parametrize(
    "text",
    [
        "kind: mae\ntraining: {epochs: 1}\n",
        "kind: mae\n",
        "kind: mae",
        "kind: mae\ntraining.lr: 3e-4 # x\n",
        "{kind: mae}\n",
        "training: {}\nkind: mae",
        "training:\nkind: mae\n",
        "training:\n  lr:\nkind: mae\n",
        "training:\r\n  epochs: 3\r\n",
        "\ufefftraining:\n  lr: 1\n",
        "base: &b {lr: 1}\ntraining:\n  <<: *b\n  epochs: 2\n",
    ],
)
def test_the_key_is_set_however_the_section_is_written(text: str) -> None:
    values = parse_document(with_value(text, KEY, 2.5e-4, "f.yaml"), "f.yaml").values
    assert values.get(KEY, values.get("training", {}).get("lr")) == 2.5e-4


@pytest.mark.parametrize(
    "text",
    [
        "base: &a {lr: 1}\ntraining: *a\n",
        "training:\n  lr: &rate 1\n  weight_decay: *rate\n",  # with the value its anchor would go
    ],
)
def test_what_is_shared_is_not_changed_behind_the_back_of_the_other(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write it by hand: training\.lr: 0\.001"):
        with_value(text, KEY, 1e-3, "f.yaml")


@given(
    lr=st.floats(1e-9, 10),
    before=st.dictionaries(st.sampled_from(["epochs", "seed", "grad_clip"]), st.integers(0, 99)),
    comment=st.text(st.characters(codec="ascii", categories=("L", "N", "Zs")), max_size=12),
)
def test_what_is_written_is_read_back_and_the_rest_is_kept(lr: float, before: dict[str, int], comment: str) -> None:
    lines = [f"  {key}: {value}  # {comment}" for key, value in before.items()]
    text = "\n".join(["kind: mae", "training:", *lines, "  lr: 1", "model: {x: 2}", ""])
    values = parse_document(with_value(text, KEY, lr, "f.yaml"), "f.yaml").values
    assert values == {"kind": "mae", "training": {**before, "lr": lr}, "model": {"x": 2}}
