"""What a search for non-finite numbers means, in words: verdict, reasons, and the line to go on with."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xectool.config.document import CONFIG_FILE
from xectool.config.left_out import leaving_out
from xectool.config.rates import LARGEST_LR, gentler, key_of, peak_lr
from xectool.data.batch import EventBatch
from xectool.diagnosis.evidence.files import setting as value_of
from xectool.diagnosis.evidence.files import tolerant_yaml
from xectool.diagnosis.evidence.run_place import beside, inside
from xectool.errors import counted, event_named, in_shell
from xectool.errors.run_names import run_name
from xectool.probes.nonfinite.culprit import INPUT, WEIGHTS, Culprit
from xectool.probes.nonfinite.locate import Place
from xectool.probes.nonfinite.raw import Anomaly
from xectool.probes.nonfinite.readings import TARGET, Reading
from xectool.probes.nonfinite.search import NanSearch
from xectool.probes.nonfinite.sound_state import sound_state
from xectool.probes.nonfinite.subject import Subject

CODES = {"loss": "XT-NAN-LOSS", "gradient": "XT-NAN-GRAD", "parameter": "XT-NAN-WEIGHTS"}
MAX_SHOWN = 3
RUN_NAME, INIT_FROM = "mlflow.run_name", "checkpoint.init_from"
EXPLAINED = "xectool explain XT-NAN-DATA"


@dataclass(frozen=True)
class Training:
    """The training that a search is about, for the lines that start it again.

    Attributes:
        config: Its configuration; None where only a saved batch is at hand.
        overrides: ``key=value`` settings that go before the file's.
        run: Its run directory; None where it has none.
        left_out: Events, as file and entry, that its record blames or that it leaves out by now.
    """

    config: Path | None = None
    overrides: Sequence[str] = ()
    run: Path | None = None
    left_out: tuple[tuple[str, int], ...] = ()

    def resumed(self, state: Path | None = None) -> str:
        """Return the line that goes on from a saved state, the newest sound checkpoint where none is given."""
        place = state or self.run or "auto"
        return self._line(["--resume", str(place)], self._place(inside))

    def again(self, name: str, *changes: str) -> str:
        """Return the line that starts anew with other settings, a run under another name."""
        own = self._name()
        named = ["--run-name", f"{own}-{name}"] if own else []
        return self._line([*named, *(word for item in changes for word in ("--set", item))], self._place(beside))

    def fresh(self, started_from: str | None) -> str:
        """Return the line that starts anew from the weights of the seed, whatever it started from before."""
        return self.again("fresh", *([f"{INIT_FROM}=null"] if started_from else []))

    def checked(self, file: str) -> str:
        """Return the line that names all readings of a file that cannot be."""
        config = [] if self.config is None else ["--config", str(self.config)]
        return shlex.join(["xectool", "check-data", file, *config, "--deep"])

    def _name(self) -> str:
        """Return the name of the run, or the one that the configuration gives its runs; empty where it gives none."""
        if self.run is not None:
            return run_name(self.run.resolve().name)
        given = [value for key, _, value in (item.partition("=") for item in self.overrides) if key == RUN_NAME]
        written = {} if self.config is None else tolerant_yaml(self.config)
        return given[-1] if given else str(value_of(written, RUN_NAME) or "")

    def _place(self, settings: Callable[[Path, Mapping[str, Any]], tuple[str, ...]]) -> str:
        """Return the options that bring a line to where the run lies."""
        found = () if self.run is None else settings(self.run, tolerant_yaml(self.run / CONFIG_FILE))
        return "".join(f" --set {item}" for item in found)

    def _line(self, options: list[str], place: str) -> str:
        if self.config is None:  # to be added to the command that only the user knows
            return shlex.join(options)
        before = [word for setting in self.overrides for word in ("--set", setting)]
        return shlex.join(["xectool", "train", str(self.config), *before, *options]) + place


@dataclass(frozen=True)
class Verdict:
    """The answer.

    Attributes:
        code: Finding code; empty where nothing was found.
        verdict: One sentence.
        why: What it rests on.
        fix: A line to paste, or what to do in words; empty where nothing is to be done.
        exclude: Setting that leaves out all events to blame; empty for none.
    """

    code: str
    verdict: str
    why: tuple[str, ...]
    fix: str
    exclude: str = ""


def judge(search: NanSearch, subject: Subject, training: Training) -> Verdict:
    """Return the verdict of a search."""
    if search.weights:
        return _of_weights(search.weights, subject, training)
    if search.culprit is not None:
        return _of_culprit(search.culprit, search, subject, training)
    anomalies = search.report.anomalies if search.report else []
    if anomalies:
        return _of_input(anomalies, search, subject, training)
    return Verdict("", "nothing is non-finite", search.notes, "")


def _of_weights(places: tuple[Place, ...], subject: Subject, training: Training) -> Verdict:
    first = places[0]
    names = ", ".join(f"{place.parameter} ({place.op}: {place.kind})" for place in places[:MAX_SHOWN])
    more = f" and {len(places) - MAX_SHOWN} more" if len(places) > MAX_SHOWN else ""
    return Verdict(
        "XT-NAN-WEIGHTS",
        f"the weights are broken before any event is looked at: {first.parameter}",
        (f"not finite: {names}{more}", *subject.notes),
        _slower(subject, training) or f"{training.resumed()}   # goes on from the newest sound checkpoint",
    )


def _of_culprit(culprit: Culprit, search: NanSearch, subject: Subject, training: Training) -> Verdict:
    place, others = culprit.place, search.others
    event = _event(culprit.window[0], 0, subject.files)
    number = _number(culprit.readings)
    why = [f"first not finite: {_where(place)}"]
    if culprit.trial.refused is not None:
        why.append(culprit.trial.refused.problem)
    why += [fact.replace("_", " ") + (": yes" if is_so else ": no") for fact, is_so in culprit.facts.items()]
    why += [search.more] if search.more else []
    why += [f"bad by itself as well: {_event(batch, 0, subject.files)}" for batch in others]
    why += subject.notes
    if culprit.cause == WEIGHTS:
        verdict = f"the weights overflow in {place.module or 'the network'}"
        return Verdict("XT-NAN-WEIGHTS", verdict, tuple(why), _other_weights(culprit, subject, training))
    exclude = left_out_of(culprit, others, subject, training)
    if culprit.trial.refused is not None:
        fix = culprit.trial.refused.fix
        return Verdict("XT-NAN-LOSS", f"the loss has no value for {number} of {event}", tuple(why), fix, exclude)
    together = "" if culprit.alone else f" together with {_others(culprit)} more"
    if culprit.facts.get("finite_in_float32"):
        verdict = f"{number} of {event}{together} overflows {place.dtype or 'reduced precision'}"
        fix = f"{training.again('amp', 'training.amp=off')}   # or bf16, which has its range"
        return Verdict("XT-AMP-OVERFLOW", verdict, tuple(why), fix)
    code = "XT-NAN-DATA" if culprit.cause == INPUT or place.stage == "module" else CODES.get(place.stage, "XT-NAN-DATA")
    verdict = f"{number} of {event}{together} makes {place.module or 'the network'} non-finite"
    return Verdict(code, verdict, tuple(why), _fix(culprit, exclude, subject, training), exclude)


def _of_input(anomalies: list[Anomaly], search: NanSearch, subject: Subject, training: Training) -> Verdict:
    first = anomalies[0]
    known = first.file_index < len(subject.files)
    file = subject.files[first.file_index] if known else f"file {first.file_index}"
    sensor = f" sensor {first.sensor}" if first.sensor >= 0 else ""
    assert search.report is not None
    count, dead = search.report.num_anomalies, search.report.dead
    place = f"{event_named(first.run, first.event)}, entry {first.entry} of {file}"
    verdict = f"{first.branch}{sensor} is {first.value:g} in {place}"
    marked = f"{counted(len(dead), 'channel')} without a number in most events, as dead ones"
    if (first.branch, first.sensor) in dead:
        verdict = f"nothing but {marked}: {verdict}"
    return Verdict(
        "XT-NAN-DATA",
        verdict,
        (
            f"{first.reason}; {counted(count, 'such number')} in {counted(search.report.events, 'event')}"
            + f", of {marked}, too" * bool(dead),
            "the network takes it for a dead channel or unknown truth: loss, gradient and update stay finite",
            *search.notes,
        ),
        f"{training.checked(file) if known else EXPLAINED}   # training goes on unharmed",
    )


def _fix(culprit: Culprit, without: str, subject: Subject, training: Training) -> str:
    """Return the line that cures: to leave events out (``without``) does so only where it is they that are at fault."""
    norm, facts = subject.bench.config.normalization, culprit.facts
    if culprit.readings and norm.npho_scheme == "linear":
        return training.again("log1p", "normalization.npho_scheme=log1p") + (
            f"   # or --set {in_shell(without)}" * bool(without)
        )
    if culprit.cause != INPUT and facts.get("finite_with_fresh_weights"):
        return _other_weights(culprit, subject, training)
    if culprit.place.stage == "gradient":
        where = culprit.place.module or "the network"
        return f"xectool explain numerics   # the derivative of {culprit.place.op} in {where} is not finite there"
    if culprit.cause != INPUT and (facts.get("every_event_fails") or facts["fails_with_any_readings"]):
        where = f"{culprit.place.op} in {culprit.place.module or 'the network'}"
        return f"xectool explain numerics   # {where} is not finite with other events either: change its code"
    if subject.validation or facts.get("every_event_fails") or not without:
        # Training leaves out its own events only, and not more of them than its budget.
        line = _checked(culprit.window[0], subject, training)
        cured = f"leave out what it names, as in --set {in_shell(without)}" if without else "take out what it names"
        return f"{line}   # then {cured}"
    return f"{training.again('without', without)}   # guards.quarantine: true leaves it out by itself"


def left_out_of(culprit: Culprit, others: Sequence[EventBatch], subject: Subject, training: Training) -> str:
    """Return the setting that leaves out all events to blame; empty where a batch knows its files by number only."""
    events = [row for batch in (*culprit.window, *others) for row in zip(*_places_of(batch), strict=True)]
    if any(index >= len(subject.files) for index, _ in events):
        return ""
    named = ((subject.files[index], entry) for index, entry in events)
    return leaving_out(subject.bench.config.data, *named, *training.left_out)


def _places_of(batch: EventBatch) -> tuple[list[int], list[int]]:
    return [int(index) for index in batch.file_index], [int(entry) for entry in batch.entry]


def _checked(batch: EventBatch, subject: Subject, training: Training) -> str:
    """Return the line that names the readings of the file of an event; a batch may know its files by number only."""
    index = int(batch.file_index[0])
    return training.checked(subject.files[index]) if index < len(subject.files) else EXPLAINED


def _other_weights(culprit: Culprit, subject: Subject, training: Training) -> str:
    """Return the line that goes on with weights that take the events: saved ones, or those of the seed.

    A rate beyond reason leads any weights there again.
    """
    config, name = subject.bench.config, subject.bench.config.mlflow.run_name
    if line := _slower(subject, training):
        return line
    own = Path(config.checkpoint.save_dir).expanduser() / name if name else None
    asked = (training.run or own, subject.checkpoint.parent if subject.checkpoint else None)
    places = [place for place in dict.fromkeys(asked) if place is not None and place.is_dir()]
    state = sound_state(subject.bench, culprit.window, places)
    if state is not None:
        return f"{training.resumed(state)}   # the newest saved state that stays finite with these events"
    line = training.fresh(config.checkpoint.init_from)
    looked = f", no state in {' or '.join(map(str, places))} does" if places else ""
    return f"{line}   # fresh weights stay finite with these events{looked}"


def _slower(subject: Subject, training: Training) -> str:
    """Return the line that starts anew with a lower rate, where the rate is beyond reason; empty where it is not.

    Weights that are searched themselves are none to start from.
    """
    config = subject.bench.config
    rate, started = peak_lr(config.training), config.checkpoint.init_from
    if not rate > LARGEST_LR:
        return ""
    broken = started and subject.checkpoint and Path(started).expanduser().resolve() == subject.checkpoint.resolve()
    line = training.again("lower-lr", *gentler(config), *([f"{INIT_FROM}=null"] if broken else []))
    return f"{line}   # {key_of(config.training)} {rate:g} is beyond {LARGEST_LR:g}, the largest AdamW takes"


def _where(place: Place) -> str:
    size = f", largest input {place.input_absmax:.4g}" if place.input_absmax else ""
    dtype = f" ({place.dtype})" if place.dtype else ""
    return f"{place.op} in {place.module or 'the network'}{dtype}, stage {place.stage}: {place.kind}{size}"


def _number(readings: tuple[Reading, ...]) -> str:
    if not readings:
        return "any reading"
    first = readings[0]
    what = first.name if first.channel == TARGET else first.channel
    sensor = f" of sensor {first.sensor}" if first.sensor >= 0 else ""
    more = f" and {len(readings) - 1} more" if len(readings) > 1 else ""
    return f"{what}{sensor} = {first.value:g}{more}"


def _event(batch: EventBatch, row: int, files: tuple[str, ...]) -> str:
    index = int(batch.file_index[row])
    file = files[index] if index < len(files) else f"file {index}"
    return f"{event_named(int(batch.run[row]), int(batch.event[row]))} (entry {int(batch.entry[row])} of {file})"


def _others(culprit: Culprit) -> int:
    return sum(batch.num_events for batch in culprit.window) - 1
