"""Every guard of a training run: its name, when it looks, and what it does."""

from __future__ import annotations

from typing import NamedTuple


class GuardFact(NamedTuple):
    """One guard.

    Attributes:
        code: ``G01`` to ``G32``.
        name: What ``guards.disable`` and the record call it.
        title: What it watches.
        period: When it looks.
        action: What it does when it finds something.
        control: How it is turned off: ``guards.disable``, another key, or why it cannot be.
    """

    code: str
    name: str
    title: str
    period: str
    action: str
    control: str = "guards.disable"


_ALWAYS = "always on: without it the run could not say what it did"
GUARDS: tuple[GuardFact, ...] = (
    GuardFact(
        "G01",
        "input_scale",
        "Scale of the first batch in network units, events that cannot be",
        "once; every event of the first epoch",
        "stops before the first step, or where more than a few are out of reach; names the event and leaves it out",
    ),
    GuardFact(
        "G02",
        "nonfinite_loss",
        "Loss is finite",
        "every step",
        "no update; triage, quarantine or skip, on all ranks alike",
    ),
    GuardFact("G03", "nonfinite_gradient", "Gradient is finite", "every step", "no update, names the parameters"),
    GuardFact(
        "G04",
        "weights",
        "Weights are finite",
        "every guards.weights_every steps and before every save",
        "refuses to save; stops, or goes back",
    ),
    GuardFact(
        "G05",
        "amp_scale",
        "Skips and scale of float16 training",
        "every step",
        "records more than 5 % skips or a scale below 1",
    ),
    GuardFact(
        "G06",
        "spike",
        "Loss is below ten times the running median",
        "every step, before the update",
        "guards.on_spike",
        "guards.disable or guards.on_spike: off",
    ),
    GuardFact(
        "G07",
        "grad_norm",
        "Gradient norm and how often it is clipped",
        "after 50 steps and every epoch",
        "says what they mean",
    ),
    GuardFact(
        "G08",
        "no_learning",
        "Loss is below that of the best constant",
        "after 500 steps or two epochs, then every epoch",
        "records it",
    ),
    GuardFact("G09", "collapsed", "Predictions differ from event to event", "every validation", "records it"),
    GuardFact("G10", "zero_gradient", "Every parameter has a gradient", "first three steps", "names those without"),
    GuardFact(
        "G11",
        "data_wait",
        "The loop does not wait for data",
        "every 50 steps",
        "records a share above guards.data_wait_fraction",
    ),
    GuardFact(
        "G12",
        "audit",
        "Each event of an epoch is used once",
        "every epoch",
        "records the count; stops where the loader served another number",
        _ALWAYS,
    ),
    GuardFact(
        "G13",
        "loader_timeout",
        "Loader processes live and answer",
        "every window",
        "stops, names the file",
        "data.timeout_s",
    ),
    GuardFact(
        "G14", "host_memory", "Host memory of the process tree", "every 5 s", "records 80 %; saves and stops at 95 %"
    ),
    GuardFact("G15", "memory_growth", "Memory does not grow with the steps", "every second step", "records the slope"),
    GuardFact(
        "G16",
        "out_of_memory",
        "Why memory ran out",
        "when it does",
        "names phase, numbers and the settings to change",
        _ALWAYS,
    ),
    GuardFact("G17", "compile", "Compiler, recompilations, skipped CUDA graphs", "when they happen", "records them"),
    GuardFact(
        "G18",
        "hang",
        "Every phase ends in its time",
        "every 5 s, from a thread",
        "writes all stacks; ends the process after guards.hang_abort_s",
    ),
    GuardFact(
        "G19", "startup", "The run gets to its first step", "every 5 s, from a thread", "writes the time of each phase"
    ),
    GuardFact(
        "G20",
        "ranks",
        "All ranks take the same steps",
        "every epoch",
        "records the steps of each rank, stops where they differ",
    ),
    GuardFact(
        "G21", "hashes", "All ranks run the same configuration, code and data", "once", "stops, names what differs"
    ),
    GuardFact(
        "G22", "lazy_state", "No module creates state in its first forward pass", "first step", "names the module"
    ),
    GuardFact(
        "G23",
        "tracking",
        "Tracking cannot stop or slow the training",
        "always",
        "a process of its own; records its state",
        "mlflow.enabled",
    ),
    GuardFact(
        "G24",
        "disk",
        "Disk space, whole checkpoints",
        "every save",
        "records what is missing; the previous checkpoint stays",
    ),
    GuardFact(
        "G25",
        "signals",
        "TERM, INT and USR1 stop, QUIT writes stacks, USR2 saves",
        "at the next step",
        "as said",
        _ALWAYS,
    ),
    GuardFact(
        "G26",
        "learning_rate",
        "Learning rate is a number above 0 until the planned end",
        "every step",
        "stops at a rate that is none; records jumps",
    ),
    GuardFact(
        "G27",
        "validation",
        "Validation loss is finite before it is the best",
        "every validation",
        "it is not taken as best",
        _ALWAYS,
    ),
    GuardFact("G28", "metric_graph", "Metrics hold no graph", "every step and validation", "stops, names the metric"),
    GuardFact(
        "G29",
        "torch_warnings",
        "Warnings of torch are counted, none is filtered",
        "always",
        "records the first of each text",
    ),
    GuardFact(
        "G30",
        "determinism",
        "No operation without a deterministic form",
        "always, if training.deterministic",
        "stops, names the operation",
        "training.deterministic",
    ),
    GuardFact("G31", "core_dumps", "A crash leaves stacks and no core file", "once", "RLIMIT_CORE 0, faulthandler"),
    GuardFact("G32", "environment", "Versions, machine and settings are on record", "once", "manifest.json", _ALWAYS),
)
BY_NAME: dict[str, GuardFact] = {name: guard for guard in GUARDS for name in (guard.code, guard.name)}
"""Each guard by its code and by its name."""


def can_be_disabled(guard: GuardFact) -> bool:
    """Return whether ``guards.disable`` takes the guard."""
    return guard.control.startswith("guards.disable")
