"""What people ask ``explain`` in their own words, and whether what it says to paste suits a default configuration."""

from __future__ import annotations

import re
import shlex

import pytest
from pydantic import create_model
from xectool import engine
from xectool.config.document import parse_value
from xectool.config.key_page import all_keys, key_pages
from xectool.config.keys import keys_of
from xectool.config.root import KINDS
from xectool.errors import UsageError


def kind_of(dotted: str) -> str:
    """Return the first kind that has a key."""
    return next(kind for kind in KINDS if dotted in keys_of(kind))


@pytest.mark.parametrize("topic", ["out of memory", "XT-OOM"])
def test_less_memory_takes_a_smaller_batch_than_the_default_and_keeps_the_effective_one(topic: str) -> None:
    default = keys_of("regressor")["data.batch_size"].default()
    match = re.search(r"data\.batch_size=(\d+) --set training\.grad_accum_steps=(\d+)", engine.explain(topic).text)
    assert match
    batch, accum = int(match[1]), int(match[2])
    assert batch < default == batch * accum


@pytest.mark.parametrize(
    ("asked", "topic"),
    [
        ("plateau", "plateau"),
        ("does not learn", "plateau"),
        ("my loss does not go down", "plateau"),
        ("the validation loss does not go down", "plateau"),
        ("inf", "nan"),  # was answered with `kind` and `nccl-env`
        ("the loss is infinite", "nan"),
        ("nan", "nan"),
        ("hang", "hang"),
        ("spike", "spike-recovery"),
        ("diverge", "spike-recovery"),  # led to nothing, as "crash" did
        ("the loss diverges", "spike-recovery"),
        ("overfitting", "overfitting"),  # nothing was known about it
        ("underfitting", "overfitting"),
        ("early stopping", "overfitting"),
        ("early stop", "overfitting"),
        ("batch size", "batch-sizes"),
        ("learning rate", "lr-sweep"),
        ("out of memory", "oom-gpu"),
        ("slow", "data-loading"),
        ("deadlock", "hang"),
        ("locked database", "mlflow-locked"),
        ("crash", "crash"),
        ("my run crashed", "crash"),
        ("distributed hang", "ddp-hang"),
        ("export to C++", "export-onnx"),
        ("how do I export to C++", "export-onnx"),
    ],
)
def test_a_question_in_plain_words_finds_its_topic(asked: str, topic: str) -> None:
    assert engine.explain(asked).title.startswith(f"{topic}: ")


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("CFG-60 XT-CKPT-ASSUMED", ("CFG-60", "XT-CKPT-ASSUMED")),  # told the last one alone
        ("CFG-60, G01", ("CFG-60", "G-01")),
        ("nan hang", ("nan", "hang")),
        ("training.lr and val/loss", ("training.lr", "val/loss")),
    ],
)
def test_each_of_several_names_is_explained(asked: str, names: tuple[str, ...]) -> None:
    answer = engine.explain(asked)
    assert answer.title == ", ".join(names)
    for name in names:
        one = engine.explain(name)
        assert f"{one.title}\n\n{one.text}" in answer.text
        assert set(one.see) <= set(answer.see)


def test_of_several_names_none_is_passed_over() -> None:
    with pytest.raises(UsageError, match="nothing is known about 'XT-OOM-GPX'") as error:
        engine.explain("CFG-60 XT-OOM-GPX")
    assert error.value.fix == "xectool explain XT-OOM-GPU"
    with pytest.raises(UsageError, match=r"nothing is known about 'training\.lrr'"):
        engine.explain("CFG-60 training.lrr")
    assert engine.explain("CFG-60 foo").text.endswith("No name of its own: foo")


@pytest.mark.parametrize("asked", ["foo-bar baz.qux", "'foo-bar' [baz_qux]"])
def test_words_that_only_look_like_names_are_refused(asked: str) -> None:
    with pytest.raises(UsageError, match="nothing is known about"):
        engine.explain(asked)


@pytest.mark.parametrize(
    ("asked", "title"),
    [
        ("'CFG-60' [CFG-27]", "CFG-60, CFG-27"),
        ("CFG-60 and CFG-27.", "CFG-60, CFG-27"),
        ("training.lr 1e-4", "training.lr: "),
        ("XT-OOM-GPU on a two-GPU node?", "XT-OOM-GPU: "),
        ("G-03 vs. G-04", "G-03, G-04"),
    ],
)
def test_marks_and_numbers_beside_a_name_are_no_names(asked: str, title: str) -> None:
    assert engine.explain(asked).title.startswith(title)


def test_two_names_of_one_topic_explain_it_once() -> None:
    assert engine.explain("cache prepare") == engine.explain("prepare cache") == engine.explain("event-cache")


@pytest.mark.parametrize("asked", ["XT-OOM-GPX", "training.accum_stepz", "coffee machine memory broken"])
def test_a_misspelt_name_and_a_sentence_of_other_words_find_nothing(asked: str) -> None:
    with pytest.raises(UsageError, match="nothing is known"):
        engine.explain(asked)


@pytest.mark.parametrize(
    "line",
    ["data.val_path=val.root", "training.max_lr=3e-4", "'data.exclude=[train.root:17, train.root:42]'"],
)
def test_the_line_of_a_key_has_a_value(line: str) -> None:
    assert engine.explain(line.strip("'").partition("=")[0]).text.splitlines().count(f"    --set {line}") == 1


@pytest.mark.parametrize("dotted", [name for name in all_keys() if not keys_of(kind_of(name))[name].is_section])
def test_the_line_of_each_key_is_one_that_a_shell_and_the_key_take(dotted: str) -> None:
    """Some said VALUE, lists among them, and braces were for the shell to expand."""
    page = next(page for page in key_pages(dotted) if page.dotted == dotted)
    option, setting = shlex.split(page.text.splitlines()[-1])
    key, _, text = setting.partition("=")
    value, field = parse_value(text, setting), keys_of(kind_of(dotted))[dotted].field
    assert (option, key) == ("--set", dotted)
    assert value not in (None, "", [], {}, "VALUE")
    create_model("Section", key=(field.annotation, field)).model_validate({"key": value})
