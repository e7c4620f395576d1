"""What is given to a documented function is of the type it says, or refused by name; nothing runs before that."""

from __future__ import annotations

import inspect
import pickle
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xectool import engine
from xectool.engine.arguments import typed
from xectool.engine.checking import CheckOptions
from xectool.errors import UsageError


def documented(place: Any = engine, prefix: str = "engine") -> Iterator[tuple[str, Any]]:
    """Every function of the API, with the name it is called by."""
    own = [name for name, value in vars(place).items() if getattr(value, "__module__", "") == place.__name__]
    for name in getattr(place, "__all__", [name for name in own if not name.startswith("_")]):
        found = getattr(place, name)
        if isinstance(found, types.ModuleType) and place is engine:
            yield from documented(found, f"{prefix}.{name}")
        elif inspect.isfunction(found):
            yield f"{prefix}.{name}", found


FUNCTIONS = dict(documented())
PARAMETERS = [
    (name, parameter)
    for name, function in FUNCTIONS.items()
    for parameter in inspect.signature(function).parameters
    if hasattr(function, "__wrapped__")
]


def test_every_function_that_takes_something_is_checked() -> None:
    taking = {name for name, function in FUNCTIONS.items() if inspect.signature(function).parameters}
    assert taking == {name for name, _ in PARAMETERS}


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS, ids=".".join)
def test_a_thing_of_no_use_is_refused_by_the_name_of_its_argument(name: str, parameter: str) -> None:
    function = FUNCTIONS[name]
    signature = inspect.signature(function)
    needed = {
        p.name: object() for p in signature.parameters.values() if p.default is p.empty and p.kind != p.VAR_POSITIONAL
    }
    many = signature.parameters[parameter].kind is inspect.Parameter.VAR_POSITIONAL
    arguments = [object()] * (len(needed) + 1) if many else []
    with pytest.raises(UsageError, match=r" is (\(?<object object|None).*, not ") as refusal:
        function(*arguments, **({} if many else needed | {parameter: object()}))
    assert name in refusal.value.where
    assert refusal.value.fix == f"help({name})"


@pytest.mark.parametrize(
    ("call", "where", "fix"),
    [
        (lambda: engine.train(["a.yaml"]), "config of engine.train", "config='a.yaml'"),
        (lambda: engine.train("a.yaml", overrides="a.b=1"), "overrides of engine.train", "overrides=['a.b=1']"),
        (lambda: engine.train("a.yaml", max_steps="3"), "max_steps of engine.train", "max_steps=3"),
        (lambda: engine.simulate("a.root", events=1e4), "events of engine.simulate", "events=10000"),
        (lambda: engine.simulate("a.root", events=2.5), "events of engine.simulate", "help(engine.simulate)"),
        (lambda: engine.simulate("a.root", energy_gev=(1,)), "energy_gev of engine.simulate", "energy_gev=1"),
        (
            lambda: engine.simulate("a.root", energy_gev=np.array(0.05)),
            "energy_gev of engine.simulate",
            "help(engine.simulate)",
        ),
        (lambda: engine.simulate("a.root", events="-" * 100_000), "events of engine.simulate", "help(engine.simulate)"),
        (lambda: engine.lr_sweep("a.yaml", lrs=np.array(1e-3)), "lrs of engine.lr_sweep", "help(engine.lr_sweep)"),
        (lambda: engine.train("a.yaml", overrides={"a.b=1", "c=2"}), "overrides of engine.train", "help(engine.train)"),
        (lambda: engine.predict("a.pt", "b.root"), "data of engine.predict", "data=['b.root']"),
        (lambda: engine.diagnose.log("a.log"), "files of engine.diagnose.log", "files=['a.log']"),
        (lambda: engine.diagnose.replay("run", "7"), "step of engine.diagnose.replay", "step=7"),
        (lambda: engine.config.show("a.yaml", [3]), "overrides of engine.config.show", "help(engine.config.show)"),
        (lambda: engine.runs.compare("a", "b", 3), "others of engine.runs.compare", "help(engine.runs.compare)"),
        (
            lambda: engine.submit("a.yaml", engine.JobRequest("cpu", "1:00", gpus="2")),  # type: ignore[arg-type]
            "gpus of JobRequest",
            "gpus=2",
        ),
        (
            lambda: engine.check_data("a.root", CheckOptions(deep="no")),  # type: ignore[arg-type]
            "deep of CheckOptions",
            "help(CheckOptions)",
        ),
    ],
)  # fmt: skip
def test_the_line_to_paste_holds_what_was_meant(call: Any, where: str, fix: str) -> None:
    with pytest.raises(UsageError) as refusal:
        call()
    assert (refusal.value.where, refusal.value.fix) == (where, fix)


def test_a_path_goes_where_a_string_goes_and_a_number_of_numpy_where_a_number_goes(tmp_path: Path) -> None:
    made = engine.simulate(tmp_path / "a.root", events=np.int64(3), dead_fraction=np.float32(0.25))
    assert type(made.events) is int
    for data in (tmp_path / "a.root", [tmp_path / "a.root"], (str(tmp_path / "a.root"),)):
        assert engine.check_data(data).events_scanned == 3  # type: ignore[arg-type]


def test_a_missing_argument_is_a_mistake_of_python_s_own_kind() -> None:
    with pytest.raises(TypeError, match=r"engine\.train: missing a required argument: 'config'"):
        engine.train()  # type: ignore[call-arg]


def test_arguments_that_are_given_by_name_are_listed() -> None:
    with pytest.raises(TypeError, match=r"too many positional arguments; it is engine\.train\(config, \*, overrides, "):
        engine.train("config.yaml", {"training.lr": 1e-3})  # type: ignore[misc, call-arg]


def test_a_negative_number_of_steps_leaves_nothing_to_train() -> None:
    with pytest.raises(UsageError, match="-1 steps leave nothing to train") as refusal:
        engine.train("absent.yaml", max_steps=-1)
    assert refusal.value.fix == "--max-steps 100"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_can_be_sent_to_another_process(name: str) -> None:
    assert pickle.loads(pickle.dumps(FUNCTIONS[name])) is FUNCTIONS[name]


def test_a_function_is_the_same_each_time() -> None:
    assert engine.train is engine.train
    assert typed(documented) is typed(documented)
