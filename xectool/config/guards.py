"""What is watched while a run goes on, and what is done about what is found."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from xectool.config.guard_catalogue import BY_NAME, can_be_disabled
from xectool.config.section import Bool, Float, Int, Section, describe, knob, refuse
from xectool.errors import did_you_mean


def _read_disabled(value: object) -> tuple[str, ...]:
    """Return the codes of guards given by code or name, ascending."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise refuse(f"expected a list of guards, such as [G06], got {describe(value)}")
    codes = set()
    for name in names:
        guard = BY_NAME.get(str(name).upper()) or BY_NAME.get(str(name))
        if guard is None:
            hint = did_you_mean(str(name), BY_NAME)
            raise refuse(f"unknown guard {describe(name)}{'; ' + hint if hint else ''}")
        if not can_be_disabled(guard):
            raise refuse(f"guard {guard.code} ({guard.name}) cannot be disabled by name: {guard.control}")
        codes.add(guard.code)
    return tuple(sorted(codes))


Disabled = Annotated[tuple[str, ...], BeforeValidator(_read_disabled)]
SpikeAction = Literal["off", "record", "skip", "rewind"]


def _read_action(value: object) -> object:
    # YAML 1.1 reads off as false.
    return "off" if value is False else value


class GuardsConfig(Section):
    """What is watched while a run goes on; with G02 and G03, nothing that is not finite ever reaches the weights."""

    on_nonfinite: Literal["skip", "stop"] = knob(
        "skip", "Skip the batch and record it, or stop at the first", code="CFG-05"
    )
    max_consecutive_bad: Int = knob(
        5, "Bad batches in a row that a run takes; one more stops it", "batches", ge=1, le=1_000_000
    )
    max_bad_fraction: Float = knob(0.01, "Share of bad batches in an epoch that stops the run", "1", ge=0, le=1)
    disable: Disabled = knob((), "Guards to turn off, by code or name, such as [G06] or [spike]", code="CFG-05")
    quarantine: Bool = knob(True, "Leave an event that is bad by itself out of the run, and take its step without it")
    max_quarantined: Float = knob(
        0.05, "Share of the training events that may be left out (always up to 16); more stop the run", "1", ge=0, le=1
    )
    on_spike: Annotated[SpikeAction, BeforeValidator(_read_action)] = knob(
        "record", "At a loss spike: off, record it, skip the step, or rewind to the last good state", code="CFG-05"
    )
    spike_factor: Float = knob(10.0, "Times the running median that makes a spike", "1", gt=1, le=1e9)
    spike_window: Int = knob(200, "Steps of the running median", "steps", ge=10, le=100_000)
    spike_after: Int = knob(
        100, "Steps before the median is trusted; a tenth of a shorter run, 10 at least", "steps", ge=10, le=100_000
    )
    max_rewinds: Int = knob(3, "Times a run goes back to an earlier state before it stops", "1", ge=0, le=1000)
    rewind_lr_factor: Float = knob(0.3, "Factor of the learning rate after going back", "1", gt=0, le=1)
    ring_states: Int = knob(2, "Earlier states kept in memory for going back", "1", ge=2, le=64)
    ring_steps: Int = knob(50, "Steps between them", "steps", ge=1, le=1_000_000)
    max_incidents: Int = knob(20, "Incident folders of a run; 1 GB at most", "1", ge=0, le=10_000)
    weights_every: Int = knob(100, "Steps between looks at the weights", "steps", ge=1, le=1_000_000)
    on_input_scale: Literal["stop", "warn"] = knob(
        "stop", "What a first batch out of scale does, or more events out of reach than max_quarantined", code="CFG-05"
    )
    data_wait_fraction: Float = knob(0.2, "Share of the time spent waiting for data that is recorded", "1", gt=0, le=1)
    memory_warning: Float = knob(0.8, "Share of the host memory at which a warning is recorded", "1", gt=0, le=1)
    memory_stop: Float = knob(0.95, "Share of the host memory at which the run saves itself and stops", "1", gt=0, le=1)
    hang_s: Float = knob(120.0, "Shortest time without progress that counts as a hang", "s", gt=0, le=1e7)
    hang_abort_s: Float | None = knob(
        None, "Seconds of a hang after which the process ends itself; null: it goes on waiting", "s", gt=0, le=1e7
    )
    startup_s: Float = knob(1800.0, "Longest time to the first step before all stacks are written", "s", gt=0, le=1e7)

    def active(self, code: str) -> bool:
        """Return whether the guard of a code is on."""
        return code not in self.disable and not (code == "G06" and self.on_spike == "off")
