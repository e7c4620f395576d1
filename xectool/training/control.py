"""Does between two steps what somebody asks a running training for, on all ranks at the same step."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from xectool.checkpoint import store
from xectool.errors import DiskError
from xectool.runlog.control import ControlServer, Request
from xectool.runlog.status_page import PHASES, StatusPage, Word
from xectool.training.guards.report import Reporter
from xectool.training.process.signals import StopRequest
from xectool.training.saving.saver import Saver
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress

EVENT: Final = "control"
SOCKET_EVENT: Final = "control_socket"


@dataclass
class _Wish:
    """A request on its way to the training thread."""

    request: Request
    author: int
    done: threading.Event = field(default_factory=threading.Event)
    answer: dict[str, Any] = field(default_factory=dict)


class LiveControl:
    """The control of one run, open while it is entered; only the first rank has the socket.

    Args:
        parts: What is trained.
        saver: Knows the last good checkpoint.
        reporter: Hears of everything that was asked for and done.
        stop: Is told to stop.
        save: Writes a checkpoint, on all ranks; returns why the disk refused it, or an empty string.
    """

    def __init__(
        self, parts: RunParts, saver: Saver, reporter: Reporter, stop: StopRequest, save: Callable[[Progress], str]
    ) -> None:
        self._parts, self._saver, self._reporter, self._stop, self._save = parts, saver, reporter, stop, save
        self._page: StatusPage = saver.writer.status
        self._wishes: list[_Wish] = []
        self._lock = threading.Lock()
        self._opened = ExitStack()

    def __enter__(self) -> LiveControl:
        if not self._parts.ranks.is_first:
            return self
        try:
            server = self._opened.enter_context(ControlServer(self._answer))
        except OSError as error:  # a run without control is better than none
            self._reporter.event(SOCKET_EVENT, f"the run cannot be controlled while it goes on: {error}", socket="")
        else:
            self._reporter.event(SOCKET_EVENT, socket=str(server.path), pid=os.getpid())
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()
        for wish in self._withdraw():
            self._reply(wish, False, "the training has ended")

    def begin(self, progress: Progress) -> None:
        """Take over what was asked for before this attempt."""
        if progress.grad_clip is not None:
            self._parts.stepper.grad_clip = progress.grad_clip

    @property
    def waiting(self) -> bool:
        """Whether something was asked for; the same question on all ranks comes before `apply`."""
        return bool(self._wishes)

    def apply(self, progress: Progress) -> None:
        """Do what was asked for; called by all ranks between the same two steps."""
        wishes = self._withdraw()
        try:
            for request, author in self._parts.ranks.share([(wish.request, wish.author) for wish in wishes]):
                done, message = self._do(request, progress)
                self._record(request, author, done, message)
                if wishes:
                    self._reply(wishes.pop(0), done, message)
        finally:
            for wish in wishes:  # what was asked for ended the training
                self._reply(wish, False, "the training ends before it could be done")

    def _record(self, request: Request, author: int, done: bool, message: str) -> None:
        value, place = None if math.isnan(request.value) else request.value, self._reporter
        self._page[Word.CONTROL_SEQ] += 1
        self._page[Word.CONTROL_STEP] = place.step
        self._saver.writer.event(
            EVENT, message, step=place.step, epoch=place.epoch,
            action=request.action, author=author, value=value, done=done,
        )  # fmt: skip

    def _do(self, request: Request, progress: Progress) -> tuple[bool, str]:
        """Do one request; return whether it was done, and what to say of it."""
        schedule, stepper = self._parts.schedule, self._parts.stepper
        if request.action == "lr":
            before = schedule(schedule.place(progress.epoch, progress.batch))
            schedule.scale *= request.value
            after = schedule(schedule.place(progress.epoch, progress.batch))
            self._reporter.event("lr_change", lr_before=before, lr_after=after, reason=EVENT)
            scale = f"{schedule.scale:g} times the schedule from now on"
            return True, f"after step {progress.step}: learning rate {before:.4g} -> {after:.4g}, and {scale}"
        if request.action == "clip":
            before, stepper.grad_clip = stepper.grad_clip, request.value
            progress.grad_clip = request.value
            clipped = f"gradient norms are clipped at {request.value:g} instead of {before:g} from now on"
            return True, f"after step {progress.step}: {clipped}"
        refused = self._save(progress)
        if refused:
            return False, refused
        ranks = self._parts.ranks
        return ranks.share(ranks.on_first(lambda: self._kept(request.tag, progress)) or (False, ""))

    def _kept(self, tag: str, progress: Progress) -> tuple[bool, str]:
        """Give the last checkpoint a second name that later ones leave alone; on the first rank."""
        last = kept = self._saver.last
        if tag:
            kept = last.with_name(f"checkpoint_{tag}{last.suffix}")
            try:
                store.publish(last, kept)
            except DiskError as error:  # a name is not worth a training
                return False, f"checkpoint of step {progress.step}: {last}, but not as {kept.name}: {error.problem}"
        return True, f"checkpoint of step {progress.step}: {kept}"

    def _answer(self, request: Request, author: int) -> dict[str, Any]:
        """Answer a request, from a thread of the socket."""
        wish = _Wish(request, author)
        if request.action in ("cancel", "stop"):
            message = self._cancel() if request.action == "cancel" else self._end(author)
            self._record(request, author, True, message)
            self._reply(wish, True, message)
            return wish.answer
        with self._lock:
            self._wishes.append(wish)
        return wish.answer if wish.done.wait(request.wait_s) else self._not_yet(wish)

    def _cancel(self) -> str:
        dropped = self._withdraw()
        for other in dropped:
            self._reply(other, False, "taken back before it was done")
        return f"{len(dropped)} requests taken back"

    def _end(self, author: int) -> str:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        self._stop.ask(f"asked to stop by xectool ctl, process {author} on {socket.gethostname()}, at {now}")
        return f"the training stops at the next step boundary, after saving: {self._saver.last}"

    def _not_yet(self, wish: _Wish) -> dict[str, Any]:
        age_s = (time.monotonic_ns() - self._page[Word.PHASE_SINCE_NS]) / 1e9
        phase = PHASES[self._page[Word.PHASE]]
        last = self._saver.last
        good = f"the last good checkpoint is {last}" if last.exists() else "there is no checkpoint yet"
        message = f"not done yet: the training thread is in {phase} for {age_s:.0f} s and has reached no step boundary"
        self._reply(wish, False, f"{message}; {good}; it is done at the next one, unless it is cancelled")
        return wish.answer

    def _withdraw(self) -> list[_Wish]:
        with self._lock:
            wishes, self._wishes = self._wishes, []
        return wishes

    def _reply(self, wish: _Wish, done: bool, message: str) -> None:
        page = self._page
        wish.answer = {
            "action": wish.request.action,
            "done": done,
            "step": int(page[Word.STEP]),
            "phase": PHASES[page[Word.PHASE]],
            "message": message,
        }
        wish.done.set()
