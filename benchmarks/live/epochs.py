"""Whether a run that was ended and went on has seen each event once in each epoch, and recorded each step once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from benchmarks.live.lab import Run

TRAIN_EVENTS = [(0, entry) for entry in range(48)]


def not_once(run: Run, epochs: int, events: Sequence[tuple[int, int]] = (), again: bool = False) -> str:
    """Return what is wrong with the events and steps of a finished run, or an empty string.

    Args:
        run: The run.
        epochs: Number of its epochs.
        events: File and entry of each event of an epoch; empty for those of the usual file.
        again: Whether steps were taken again after a kill: then the last time counts.
    """
    lines = run.steps_taken()
    if again:
        lines = list({(line["epoch"], line["batch"], line["rank"]): line for line in lines}.values())
    wrong = []
    for epoch in range(1, epochs + 1):
        seen = sorted((f, e) for line in lines if line["epoch"] == epoch for f, e in line["events"])
        expected = sorted(events or TRAIN_EVENTS)
        if seen != expected:
            missed, more = set(expected) - set(seen), len(seen) - len(set(seen))
            wrong.append(f"epoch {epoch}: {len(missed)} events missed, {more} seen twice")
    numbers = [step.step for step in run.reader.steps()]
    if numbers != list(range(1, len(numbers) + 1)) or len(numbers) != max(line["step"] for line in lines):
        wrong.append(f"{len(numbers)} steps recorded of {max(line['step'] for line in lines)}, {_gaps(numbers)}")
    audits = {event.epoch: event.data for event in run.events("audit")}
    if sorted(audits) != list(range(1, epochs + 1)) or any(audit["duplicates"] for audit in audits.values()):
        wrong.append(f"audits {audits}")
    return "; ".join(wrong)


def lost(run: Run, pid: int) -> str:
    """Return what the record of a process that was killed lacks of its steps, or has not in order."""
    taken = [line["step"] for line in run.steps_taken() if line["pid"] == pid]
    if not taken:
        return ""
    kept = list(_recorded(run, pid))
    missing = sorted(set(taken) - set(kept))
    if missing or kept != list(range(kept[0], kept[0] + len(kept))):
        return f"steps {missing[:5]} lost, {_gaps(kept)}"
    return "" if len(kept) <= len(taken) + 1 else f"{len(kept)} records of {len(taken)} steps"


def _recorded(run: Run, pid: int) -> Iterable[int]:
    reader = run.reader
    attempt = max(number for number, event in reader.tagged_events() if event.kind == "run_start")
    if not any(page.pid == pid for page in reader.live()):
        raise RuntimeError(f"the record of process {pid} is not the last one")
    blocks: Any = (block for number, block in reader.rank_blocks() if number == attempt)
    return (int(step) for block in blocks for step in block.column("step"))


def _gaps(numbers: Sequence[int]) -> str:
    return f"gaps after {[a for a, b in pairwise(numbers) if b != a + 1][:5]}"
