"""Where the time goes: waiting for data, saving, compiling again and again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median_low
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xectool.config.file_systems import is_local_disk
from xectool.diagnosis import fixes
from xectool.diagnosis.cases.nan import GONE_ON
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.evidence.statistics import Series, finite, median
from xectool.diagnosis.tracking_store import file_system
from xectool.errors import duration, in_shell
from xectool.findings import Severity

WAIT_SHARE: Final = 0.2  # F052: of the time, over at least 50 steps
LEAST_STEPS: Final = 50
LONG_WAIT_S: Final = 15.0  # in all, of which fewer steps tell as well
TYPICAL_SHARE: Final = 0.1  # and half of the steps wait this much; a few long waits are the start of an epoch
STALL_S: Final = 1.0  # and ten median steps: a file that does not answer for a while, no read-ahead that lags
STALL_STEPS: Final = 10
LEAST_STALLS: Final = 3
LONG_STALL_S: Final = 5.0  # of which two tell
LATE_WAITS: Final = 10  # longer than a step, which nothing hides, where they take LONG_WAIT_S or so much of the time:
LATE_SHARE: Final = 1 / 3
LATE_STALLS: Final = 5  # of more than STALL_S each, which tell as well
SOUND_BYTES_PER_S: Final = 12.5e6  # a hundred-megabit network; a busy local disk stays above it
SYNC_S: Final = 1.0  # a flush to a busy disk, however small the file
LEAST_SAVES: Final = 2  # one slow save is an accident of the moment
BUSY_BYTES_PER_S: Final = 2 * SOUND_BYTES_PER_S  # asked for where saving takes so much of a run:
MUCH_SAVING: Final = 0.2
HALF_SAVING: Final = 0.5  # which is too much on any disk, where a save is no mere flush
SAVING_SHARE: Final = 0.05  # of the wall time, below which slow saving costs nothing worth a change
_MIN_WALL_S: Final = 1e-3


class LoaderSlow(DiagnosisRule):
    """The network waits for its data."""

    code = "XT-LOADER-SLOW"
    title = "training waits for data"

    def unseen(self, evidence: Evidence) -> str:
        """Return that fewer than 50 steps say nothing about a share."""
        return "" if evidence.of("data_wait") or enough_to_judge(evidence) else f"fewer than {LEAST_STEPS} steps"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare waiting with the whole step, in the steady part of each epoch."""
        rows = steady_rows(evidence)
        waits, steps = evidence.steps["data_wait_s"][rows], evidence.steps["step_s"][rows]
        told = evidence.last("data_wait")
        if not enough_to_judge(evidence) or rows.size < LEAST_STEPS // 2:
            shares = (number(told.data.get("share")), 1.0) if told else (0.0, 0.0)
        else:
            shares = wait_shares(waits, steps)
        stalls = stall_waits(waits, steps)
        late = waits[waits > median(finite(steps - waits))]
        costly = shares[0] > LATE_SHARE or float(late.sum()) >= LONG_WAIT_S
        often = costly and (late.size >= LATE_WAITS or np.sum(late > STALL_S) >= LATE_STALLS)
        if not (shares[0] > WAIT_SHARE and (shares[1] > TYPICAL_SHARE or _many(stalls) or often)):
            return
        lines = [
            f"waiting is {shares[0]:.0%} of {rows.size} steps (limit {WAIT_SHARE:.0%}); median step {shares[1]:.0%}"
        ]
        if stalls.size:
            lines.append(f"{stalls.size} waits of {duration(stalls.min())} to {duration(stalls.max())}")
        if told is not None and told.message:
            lines.append(told.message)
        workers = int(evidence.setting("data.num_workers", 0) or 0)
        lines.append(f"data.num_workers {workers}, data.num_threads {evidence.setting('data.num_threads', 2)}")
        yield Cause(
            code=self.code,
            confidence=0.93,
            problem=f"input-bound: {shares[0]:.0%} of the time is spent waiting for data",
            evidence=tuple(lines),
            fix=fixes.resume(evidence, *fixes.workers(evidence, max(2, 2 * workers))),
            severity=Severity.WARNING,
            step=told.step if told else int(evidence.steps["step"][rows[0]]),
            symptom="data wait",
        )


class CheckpointSlow(DiagnosisRule):
    """The file system that takes the checkpoints is slow."""

    code = "XT-CKPT-SLOW"
    title = "saving a checkpoint takes long for its size"

    def unseen(self, evidence: Evidence) -> str:
        """Return that too little was saved."""
        return (
            "" if len(evidence.of("checkpoint")) >= LEAST_SAVES else f"fewer than {LEAST_SAVES} checkpoints were saved"
        )

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the time with what a slow network file system takes for so many bytes, and with the run."""
        saves = [
            # A machine with too few cores for what runs on it lengthens all a run does; that is not the file system.
            (
                number(event.data.get("seconds")) - number(event.data.get("core_wait_s", 0.0)),
                number(event.data.get("bytes", event.data.get("size_bytes"))),
            )
            for event in evidence.of("checkpoint")
        ]
        known = [(seconds, size) for seconds, size in saves if seconds == seconds and size == size]
        if len(known) < LEAST_SAVES:
            return
        seconds = median_low([item[0] for item in known])
        size = median_low([item[1] for item in known])
        total = sum(item[0] for item in known)
        share = total / max(evidence.status.seconds, total, _MIN_WALL_S)
        asked = BUSY_BYTES_PER_S if share >= MUCH_SAVING else SOUND_BYTES_PER_S
        slow = seconds > SYNC_S + size / asked
        often = share >= HALF_SAVING and seconds > SYNC_S
        if not (slow or often) or share < SAVING_SHARE:
            return
        rarer = not slow and evidence.setting("checkpoint.save_steps")
        local = f"checkpoint.save_dir={_local_place(evidence.run_dir)}"
        yield Cause(
            code=self.code,
            confidence=0.92,
            problem=f"a checkpoint of {size / 1e6:.0f} MB takes {duration(seconds)}, {share:.0%} of the run",
            evidence=(
                f"{len(known)} checkpoints, {size / max(seconds, 1e-9) / 1e6:.3g} MB/s; "
                f"a hundred-megabit network takes {SOUND_BYTES_PER_S / 1e6:g} MB/s",
                "a local directory may end with the job: copy the run back from it",
            ),
            fix=fixes.resume(evidence, "checkpoint.save_steps=null")
            if rarer
            else fixes.train_again(evidence, local, name="local"),
            severity=Severity.WARNING,
            step=evidence.of("checkpoint")[0].step,
            symptom="saving",
        )


class Recompiling(DiagnosisRule):
    """The compiled graph is made anew for ever new shapes."""

    code = "XT-RECOMPILE"
    title = "torch.compile gave up after too many recompilations"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report the limit of recompilations."""
        events = evidence.of("recompile_limit")
        if not events:
            return
        reason = str(events[0].data.get("reason") or events[0].message)
        yield Cause(
            code=self.code,
            confidence=0.95,
            problem="torch.compile reached its recompilation limit; what follows runs uncompiled",
            evidence=(reason, f"{len(events)} times"),
            fix=fixes.resume(evidence, "data.drop_last=true"),
            severity=Severity.INFO if evidence.gone_on_after(events[-1], GONE_ON) else Severity.WARNING,
            step=events[0].step,
            symptom="compile",
        )


def _local_place(run_dir: Path) -> str:
    """Return a directory for runs on a local disk of this machine, another disk than the run's where there is one."""
    known = [Path(base) for base in (os.environ.get("SLURM_TMPDIR"), tempfile.gettempdir(), "/var/tmp") if base]
    kinds = {base: file_system(base) for base in known if os.access(base, os.W_OK)}
    local = [base for base, kind in kinds.items() if is_local_disk(kind)] or known
    others = [base for base in local if base.exists() and base.stat().st_dev != run_dir.stat().st_dev]
    return in_shell((others or local)[0] / "xectool-runs")


def steady_rows(evidence: Evidence) -> NDArray[np.intp]:
    """Return the rows but the first two of each epoch and attempt, where read-ahead has to fill first.

    Of several attempts the last one tells how it is now, where it is long enough.
    """
    steps = evidence.steps
    place = steps["epoch"] + 1e9 * steps.attempt
    begins = np.flatnonzero(np.diff(place, prepend=-1.0))
    steady = np.ones(len(steps), dtype=bool)
    steady[np.concatenate([begins, begins + 1]).clip(max=max(0, len(steps) - 1))] = False
    found = np.flatnonzero(steady & (steps["step_s"] > 0))
    latest = found[steps.attempt[found] == steps.attempt[-1]] if found.size else found
    return latest if latest.size >= LEAST_STEPS else found


def enough_to_judge(evidence: Evidence) -> bool:
    """Return whether there are 50 steps, or half of them and waiting that cost a quarter of a minute."""
    waited = float(finite(evidence.steps["data_wait_s"][steady_rows(evidence)]).sum())
    return len(evidence.steps) >= LEAST_STEPS // (2 if waited >= LONG_WAIT_S else 1)


def wait_shares(waits: Series, steps: Series) -> tuple[float, float]:
    """Return the share of waiting in the whole time, and in the median step."""
    total = float(finite(steps).sum())
    return (float(finite(waits).sum()) / total, median(waits / steps)) if total else (0.0, 0.0)


def _many(stalls: Series) -> bool:
    """Return whether waits are more than an accident of the moment."""
    return bool(stalls.size >= LEAST_STALLS or np.sum(stalls >= LONG_STALL_S) > 1)


def stall_waits(waits: Series, steps: Series) -> Series:
    """Return the waits that are far longer than a step without waiting."""
    known = finite(waits)
    return known[known > max(STALL_S, STALL_STEPS * median(finite(steps - waits)))]
