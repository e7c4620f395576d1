"""What is asked of a training while it goes on never costs it: a full disk refuses a checkpoint, not the next step."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from xectool import engine
from xectool.checkpoint import store
from xectool.engine.live import ControlResult
from xectool.errors import DiskError, XecError
from xectool.runlog.reader import RunReader
from xectool.training.control import LiveControl
from xectool.training.process.progress import NullObserver
from xectool.training.process.signals import StopRequest
from xectool.training.saving.saver import Saver


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


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_asks_for_an_end_and_ctrl_c_after_it_interrupts_at_once(first: signal.Signals) -> None:
    with StopRequest() as stop:
        assert not stop.requested
        signal.raise_signal(first)
        assert (stop.requested, stop.name) == (True, first.name)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
