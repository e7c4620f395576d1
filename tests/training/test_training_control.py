"""What is asked of a training while it goes on never costs it: a full disk refuses a checkpoint, not the next step."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from xectool import engine
from xectool.checkpoint import store
from xectool.engine.live import ControlResult
from xectool.errors import DiskError, XecError
from xectool.runlog.reader import RunReader
from xectool.training.control import LiveControl
from xectool.training.process import signals
from xectool.training.process.progress import NullObserver
from xectool.training.process.signals import StopRequest
from xectool.training.saving.saver import Saver
from xectool.training.stepping.state import Progress


class Asking(NullObserver):
    """Asks for a checkpoint and then for an end, from another thread, once the first step is done."""

    def __init__(self, run: Path) -> None:
        self.answers: list[ControlResult] = []
        self.messages: list[str] = []
        self.message = self.messages.append  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._ask, args=(run,))

    def _ask(self, run: Path) -> None:
        with contextlib.suppress(XecError):  # a training that has ended hears nothing any more
            self.answers.append(engine.control(run, "checkpoint", tag="kept", wait_s=60))
            self.answers.append(engine.control(run, "stop", wait_s=60))

    def advanced(self, num_batches: int, values: Mapping[str, float]) -> None:
        if num_batches and self._thread.ident is None:
            self._thread.start()

    def join(self) -> None:
        self._thread.join(60)


@pytest.fixture
def asked(tiny_config: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Train while a checkpoint is asked for; ``part`` of `store` finds no space as long as it is being done."""
    asking, do = Asking(tmp_path / "runs" / "r"), LiveControl._do

    def train(part: str) -> Any:
        def doing(control: LiveControl, *args: Any) -> Any:
            with monkeypatch.context() as full:
                full.setattr(store, part, refuse)
                return do(control, *args)

        monkeypatch.setattr(LiveControl, "_do", doing)
        try:
            return engine.train(tiny_config(training={"epochs": 100_000}), observer=asking)
        finally:
            asking.join()

    return train, asking


COUNT, ASKED = 2.0**-12, 10


class AskingOften(Asking):
    """Asks for checkpoints, each under a name of its own, and then for an end."""

    def _ask(self, run: Path) -> None:
        with contextlib.suppress(XecError):
            try:
                for number in range(ASKED):
                    self.answers.append(engine.control(run, "checkpoint", tag=f"n{number}", wait_s=60))
            finally:
                engine.control(run, "stop", wait_s=60)


class Counting:
    """In place of an optimizer's step: every weight counts the steps, and halfway through it waits for whoever asks."""

    def __init__(self) -> None:
        self.begun = False
        self.asked, self.halfway, self.saved = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, optimizer: torch.optim.Optimizer, closure: object = None) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        with torch.no_grad():
            for number, weight in enumerate(weights):
                weight.add_(COUNT) if self.begun else weight.zero_()
                time.sleep(3e-4)  # lets others run
                if number == len(weights) // 2 and self.begun and self.asked.is_set():
                    self.halfway.set()
                    assert self.saved.wait(60)
        self.begun = True


def trained_while_asked(config: Path, run: Path, monkeypatch: pytest.MonkeyPatch, counting: Counting) -> set[str]:
    """Train on and return the names of the weights that count, once every checkpoint that was asked for is there."""
    names: set[str] = set()
    begin = LiveControl.begin

    def beginning(control: LiveControl, progress: Progress) -> None:
        weights = control._parts.model.named_parameters()
        names.update(name for name, weight in weights if weight.requires_grad)
        begin(control, progress)

    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *args, **options: counting(*args, **options))
    monkeypatch.setattr(LiveControl, "begin", beginning)
    asking = AskingOften(run)
    try:
        engine.train(config, observer=asking)
    finally:
        asking.join()
    return names


def test_checkpoints_that_are_asked_for_hold_the_weights_of_one_step(
    tiny_config: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = trained_while_asked(
        tiny_config(training={"epochs": 100_000}), tmp_path / "runs" / "r", monkeypatch, Counting()
    )
    saved = list((tmp_path / "runs" / "r").glob("checkpoint_n*.pt"))
    assert len(saved) == ASKED
    assert all(is_of_one_step(path, names) for path in saved)


def test_a_checkpoint_saved_beside_the_training_would_hold_weights_of_two_steps(
    tiny_config: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the thread of the socket saves while the optimizer is halfway through its weights."""
    counting, answer = Counting(), LiveControl._answer
    at: list[Progress] = []
    begin = LiveControl.begin

    def beginning(control: LiveControl, progress: Progress) -> None:
        at.append(progress)
        begin(control, progress)

    def answer_at_once(control: LiveControl, request: Any, author: int) -> dict[str, Any]:
        if request.action != "checkpoint" or counting.saved.is_set():
            return answer(control, request, author)
        counting.asked.set()
        assert counting.halfway.wait(60)
        done, message = control._do(request, at[0])
        counting.saved.set()
        return {"action": request.action, "done": done, "step": 0, "phase": "", "message": message}

    monkeypatch.setattr(LiveControl, "begin", beginning)
    monkeypatch.setattr(LiveControl, "_answer", answer_at_once)
    names = trained_while_asked(
        tiny_config(training={"epochs": 100_000}), tmp_path / "runs" / "r", monkeypatch, counting
    )
    assert not is_of_one_step(tmp_path / "runs" / "r" / "checkpoint_n0.pt", names)
    assert is_of_one_step(tmp_path / "runs" / "r" / "checkpoint_n1.pt", names)


def is_of_one_step(path: Path, names: list[str]) -> bool:
    saved = store.load(path)
    counted = {round(float(value) / COUNT) for name in names for value in saved.model[name].unique()}
    return counted == {saved.meta["progress"]["step"] - 1}


def refuse(path: Path, *_: Any) -> None:
    raise DiskError("no space left", where=str(path), fix="make room")


@pytest.mark.parametrize("part", ["save", "publish"])
def test_a_full_disk_refuses_a_checkpoint_and_the_training_goes_on(asked: Any, part: str) -> None:
    train, asking = asked
    result = train(part)
    refused, stopped = asking.answers
    assert (refused.done, stopped.done) == (False, True)
    assert "no space left" in refused.message
    assert result.status == "interrupted"
    events = [event for event in RunReader(result.run_dir).events() if event.kind == "control"]
    assert [(event.data["action"], event.data["done"]) for event in events] == [("checkpoint", False), ("stop", True)]
    assert result.steps > events[0].step
    assert any(f"xectool ctl, process {os.getpid()} on " in line for line in asking.messages), "who ended it, and when"
    assert not Path(result.run_dir, "checkpoint_kept.pt").exists()


def test_without_that_the_emergency_checkpoint_would_end_the_training(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Saver, "try_save", Saver.save)
    train, asking = asked
    with pytest.raises(DiskError, match="no space left"):
        train("save")
    answer = asking.answers[0]  # the end may answer the next question too, or come before it is put
    assert (answer.done, answer.message) == (False, "the training ends before it could be done")


@pytest.fixture
def hangup() -> Iterator[None]:
    """A closed terminal is heard, also where the tests run under ``nohup``."""
    before = signal.signal(signal.SIGHUP, lambda number, frame: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_asks_for_an_end_and_ctrl_c_after_it_interrupts_at_once(
    monkeypatch: pytest.MonkeyPatch, first: signal.Signals
) -> None:
    monkeypatch.setattr(signals, "SAME_PRESS_S", 60.0)
    with StopRequest() as stop:
        assert not stop.requested
        signal.raise_signal(first)
        assert (stop.requested, stop.name) == (True, first.name)
        if first == signal.SIGINT:
            signal.raise_signal(first)  # as `timeout -s INT` sends it, to the command and to its group
            stop._pressed_at -= 60.0
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_who_presses_the_keys_is_told_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    """A step that compiles lasts minutes, and a second SIGINT costs what was not saved."""
    with StopRequest():
        signal.raise_signal(signal.SIGINT)
        assert "SIGINT: the run saves and ends at the next step; another" in capfd.readouterr().err
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
    assert (stop.name, capfd.readouterr().err) == ("SIGTERM", "")


@pytest.mark.parametrize("stream", [None, object()])
def test_a_request_is_heard_where_nothing_can_be_told(monkeypatch: pytest.MonkeyPatch, stream: object) -> None:
    """Of a program whose standard error is closed Python makes None."""
    monkeypatch.setattr(sys, "stderr", stream)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
    assert stop.name == "SIGINT"


@pytest.mark.usefixtures("hangup")
def test_under_nohup_a_closed_terminal_ends_no_training() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGHUP)
    assert not stop.requested
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
