"""What is asked of a training while it goes on never costs it: a full disk refuses a checkpoint, not the next step."""

from __future__ import annotations

import contextlib
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
from xectool.errors import CheckpointError, DiskError, XecError
from xectool.runlog.reader import RunReader
from xectool.training.control import LiveControl
from xectool.training.process.progress import NullObserver
from xectool.training.process.signals import StopRequest
from xectool.training.saving.saver import Saver
from xectool.training.stepping.state import Progress


class Asking(NullObserver):
    """Asks for a checkpoint and then for an end, from another thread, once the first step is done."""

    def __init__(self, run: Path) -> None:
        self.answers: list[ControlResult] = []
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
            for number in range(ASKED):
                self.answers.append(engine.control(run, "checkpoint", tag=f"n{number}", wait_s=60))
            engine.control(run, "stop", wait_s=60)


@pytest.mark.parametrize("beside", [False, True])
def test_a_checkpoint_that_is_asked_for_holds_the_weights_of_one_step(
    tiny_config: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Every weight counts the steps; the control saves from the thread of the socket, beside the training."""
    found: dict[str, Any] = {}

    def count(optimizer: torch.optim.Optimizer, closure: object = None) -> None:
        with torch.no_grad():
            for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
                weight.add_(COUNT) if "begun" in found else weight.zero_()
                time.sleep(3e-4)  # lets others run
        found["begun"] = True

    def begin(control: LiveControl, progress: Progress) -> None:
        weights = control._parts.model.named_parameters()
        found.update(progress=progress, names=[name for name, weight in weights if weight.requires_grad])

    def answer(control: LiveControl, request: Any, author: int) -> dict[str, Any]:
        if request.action != "checkpoint":
            return wait(control, request, author)
        done, message = control._do(request, found["progress"])
        return {"action": request.action, "done": done, "step": 0, "phase": "", "message": message}

    monkeypatch.setattr(torch.optim.AdamW, "step", count)
    monkeypatch.setattr(LiveControl, "begin", begin)
    wait = LiveControl._answer
    if beside:
        monkeypatch.setattr(LiveControl, "_answer", answer)
    asking = AskingOften(tmp_path / "runs" / "r")
    try:
        with contextlib.suppress(*([XecError] if beside else [])):  # it takes files away from the training, too
            engine.train(tiny_config(training={"epochs": 100_000}), observer=asking)
    finally:
        asking.join()
    saved = list((tmp_path / "runs" / "r").glob("checkpoint_n*.pt"))
    assert beside or len(saved) == ASKED
    assert all(is_of_one_step(path, found["names"]) for path in saved) is not beside


def is_of_one_step(path: Path, names: list[str]) -> bool:
    try:
        saved = store.load(path)
    except CheckpointError:  # two write at once
        return False
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
def test_a_signal_asks_for_an_end_and_ctrl_c_after_it_interrupts_at_once(first: signal.Signals) -> None:
    with StopRequest() as stop:
        assert not stop.requested
        signal.raise_signal(first)
        assert (stop.requested, stop.name) == (True, first.name)
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
