"""``diagnose nan-batch``: which event, sensor and module first goes non-finite, and the batch that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xectool.checkpoint import store
from xectool.config.inputs import free_name
from xectool.config.load import load_config
from xectool.engine.diagnose.nan_of_run import SearchedRun
from xectool.errors import UsageError, XecError, in_shell
from xectool.findings import Finding
from xectool.probes.instruments.minimal import SavedBatch, plain_window, save_batch
from xectool.probes.nonfinite.facts import NanFacts
from xectool.probes.nonfinite.search import NanSearch, search_data, search_window
from xectool.probes.nonfinite.subject import Subject, of_batch, of_config, of_validation
from xectool.probes.nonfinite.verdicts import Training, Verdict, judge

VALIDATION = "no step is taken on a validation event, but losses and metrics of the validation hold it"


@dataclass(frozen=True)
class NanBatchResult:
    """Where a training stops being finite.

    Attributes:
        found: Whether anything was found.
        cause: ``input``, ``weight``, ``combination`` or ``module``; empty where nothing was found.
        breaks_training: Whether loss, gradient or update is not finite; an illegal number that the network takes for
            a dead channel is found, but breaks nothing.
        event: ``file, entry, run, event`` of the first event at fault, or None.
        sensors: Sensors at fault.
        value: Raw number at fault; NaN and infinities as words; None where no number is.
        readings: Every number at fault: ``branch, sensor, value`` and the event.
        first_nonfinite: ``stage`` (input, module, loss, gradient, parameter), ``module``, ``op`` and what is known of
            it; None where nothing was found.
        batch: ``epoch, index, blocks`` of the batch it came in, or None.
        facts: What else was tried, and whether it stayed finite.
        events_scanned: Events whose numbers were looked at, of the sample that holds what was found, else of training.
        events_tried: Events tried on the network.
        events_per_s: Rate of the pass over the numbers.
        anomalies: Illegal numbers in all, harmless ones included.
        scanned: What was looked at and what was not.
        minimal: File with the fewest events that fail, or None.
        written: Files that were written: that one, and the weights where they are in no other.
        reproduce: Command that shows the fault from that file.
        verdict: One sentence.
        why: What it rests on.
        next: Line to go on with.
        exclude: Setting that leaves out all events to blame, of the record of a run as well; empty for none.
        findings: The same for scripts.
    """

    found: bool
    cause: str
    breaks_training: bool
    event: dict[str, Any] | None
    sensors: tuple[int, ...]
    value: float | str | None
    readings: tuple[dict[str, Any], ...]
    first_nonfinite: dict[str, Any] | None
    batch: dict[str, Any] | None
    facts: dict[str, bool]
    events_scanned: int
    events_tried: int
    events_per_s: float
    anomalies: int
    scanned: tuple[str, ...]
    minimal: str | None
    written: tuple[str, ...]
    reproduce: str
    verdict: str
    why: tuple[str, ...]
    next: str
    exclude: str
    findings: tuple[Finding, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}


def nan_batch(  # noqa: PLR0913  the function is the command: one argument an option
    config: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    ckpt: str | Path | None = None,
    run: str | Path | None = None,
    incident: int | None = None,
    batch: str | Path | None = None,
    data: str | None = None,
    full: bool = False,
    max_events: int | None = None,
    device: str | None = None,
    output: str | Path | None = None,
) -> NanBatchResult:
    """Find what makes a training non-finite.

    Args:
        config: YAML file; may be left out with ``run``, whose own is searched, and with a ``batch`` that carries its
            own.
        overrides: ``key=value`` settings that go before the file's. With ``run`` its own files are read; where they
            are not there, those that ``config`` or ``data.train_path=NEW`` name.
        ckpt: Weights to search with; fresh weights of the seed without.
        run: Run directory: its incident, its first bad step, or else its data with its newest weights.
        incident: Number of the incident of the run; the first without.
        batch: File that an earlier search wrote; no data files are needed.
        data: ``train`` or ``val``; without, the training events, and where those hold nothing the validation events.
            Of a batch: what its events are, where that is not as the search found it.
        full: Try every batch on the network, not only suspicious and extreme events.
        max_events: Look at this many events only.
        device: Device; the configuration's without.
        output: Where the fewest events that fail are written, by default a new ``nan_batch.npz``; nothing is written
            where nothing is found.

    Raises:
        XecError: Anything the user can act on.
    """
    if data not in (None, "train", "val"):
        raise UsageError(f"unknown data set '{data}'", where="--data", fix="--data train, or --data val")
    weights = Path(ckpt).expanduser() if ckpt is not None else None
    searched = SearchedRun.of(run, incident, config, overrides) if run is not None and batch is None else None
    if searched is not None:
        subject, config = searched.subject(weights, data or "train", max_events, device), None
    else:
        subject = _of_batch_or_config(config, overrides, batch, weights, (data, max_events, device))
    search = _search(subject, full)
    if data is None and subject.loader is not None:
        subject, search = _with_validation(subject, search, full, max_events)
    target = Path(output or free_name("nan_batch", ".npz")).expanduser()
    kept = _keep(search, subject, target) if batch is None else None
    own = Training(None if config is None else Path(config), tuple(overrides))
    verdict = judge(search, subject, searched.training() if searched else own)
    if verdict.code and subject.validation:
        verdict = replace(verdict, verdict=f"validation: {verdict.verdict}", why=(VALIDATION, *verdict.why))
    if searched is not None:
        verdict, notes = searched.with_spikes(verdict), searched.notes()
        verdict, search = replace(verdict, why=(*notes, *verdict.why)), replace(search, notes=(*search.notes, *notes))
    reproduce = _command(kept, config, overrides) if kept else ""
    return _result(search, subject, verdict, kept, reproduce)


def _of_batch_or_config(
    config: str | Path | None,
    overrides: Sequence[str],
    batch: str | Path | None,
    ckpt: Path | None,
    look: tuple[str | None, int | None, str | None],
) -> Subject:
    which, max_events, device = look
    loaded = load_config(config, overrides).config if config is not None else None
    if batch is not None:
        subject = of_batch(Path(batch).expanduser(), loaded, ckpt, device)
        return replace(subject, validation=which == "val" if which else subject.validation)
    if loaded is None:
        raise UsageError(
            "nothing to search is named", where="command line", fix="xectool diagnose nan-batch CONFIG, or --run RUN"
        )
    return of_config(loaded, ckpt, device, which or "train", max_events)


def _search(subject: Subject, full: bool, before: NanSearch | None = None) -> NanSearch:
    try:
        if subject.window is not None:
            return search_window(subject.bench, subject.window)
        assert subject.loader is not None
        steps = subject.bench.config.training.grad_accum_steps
        return search_data(subject.bench, subject.loader, full=full, accumulate=steps, before=before)
    finally:
        subject.close()


def _with_validation(
    subject: Subject, search: NanSearch, full: bool, max_events: int | None
) -> tuple[Subject, NanSearch]:
    """Return the search of the validation events where the training events hold nothing; both are in its notes."""
    if _finds(search):
        note = "the validation events were not looked at: --data val"
        return subject, replace(search, notes=(*search.notes, note))
    try:
        other = of_validation(subject, max_events)
    except XecError as error:
        note = f"the validation events were not looked at: {error.problem}"
        return subject, replace(search, notes=(*search.notes, note))
    second = _search(other, full, search)
    notes = tuple(
        f"{name} events: {note}" for name, item in (("training", search), ("validation", second)) for note in item.notes
    )
    tried = search.tried + second.tried
    if _finds(second):
        return other, replace(second, notes=notes, tried=tried)
    return subject, replace(search, notes=notes, tried=tried)


def _finds(search: NanSearch) -> bool:
    return bool(search.weights or search.culprit or (search.report and search.report.anomalies))


def _keep(search: NanSearch, subject: Subject, path: Path) -> Path | None:
    """Write the fewest events that show what was found, and beside them the weights where those are in no file."""
    window = NanFacts(search, subject.files, subject.plan).window
    if not window:
        return None
    weights = subject.checkpoint
    if subject.trained_on:
        weights = _weights_beside(path)
        store.save(weights, subject.bench.checkpoint())
    facts = {
        "config": subject.bench.config.to_dict(),
        "checkpoint": str(weights.resolve()) if weights else "",
        "weights": subject.notes[0],
        "rank": subject.bench.rank,
        "channel_dropout": subject.bench.channel_dropout,
        "validation": subject.validation,
    }
    save_batch(path, SavedBatch(plain_window(window), subject.files, facts))
    return path


def written(kept: Path | None, subject: Subject) -> tuple[str, ...]:
    """Return the files that a search leaves: its events, and weights that are in no other file."""
    if kept is None:
        return ()
    return (str(kept), str(_weights_beside(kept))) if subject.trained_on else (str(kept),)


def _weights_beside(path: Path) -> Path:
    return path.with_name(f"{path.stem}.weights.pt")


def _result(search: NanSearch, subject: Subject, verdict: Verdict, kept: Path | None, reproduce: str) -> NanBatchResult:
    report, facts = search.report, NanFacts(search, subject.files, subject.plan)
    events, readings = report.events if report else 0, facts.readings
    return NanBatchResult(
        found=bool(verdict.code),
        cause=facts.cause,
        breaks_training=bool(search.weights or search.culprit),
        event=facts.event,
        sensors=tuple(dict.fromkeys(r["sensor"] for r in readings if r["sensor"] >= 0)),
        value=readings[0]["value"] if readings else None,
        readings=readings,
        first_nonfinite=facts.place,
        batch=facts.batch,
        facts=search.culprit.facts if search.culprit else {},
        events_scanned=events,
        events_tried=search.tried,
        events_per_s=events / max(report.seconds, 1e-9) if report else 0.0,
        anomalies=report.num_anomalies if report else 0,
        scanned=(*subject.notes, *search.notes),
        minimal=str(kept) if kept else None,
        written=written(kept, subject),
        reproduce=reproduce,
        verdict=verdict.verdict,
        why=verdict.why,
        next=verdict.fix,
        exclude=verdict.exclude,
        findings=facts.findings(verdict.code, verdict.verdict, verdict.why, verdict.fix),
    )


def _command(batch: Path, config: str | Path | None, overrides: Sequence[str]) -> str:
    named = [] if config is None else [in_shell(config), *(f"--set {in_shell(text)}" for text in overrides)]
    return " ".join(["xectool diagnose nan-batch", *named, "--batch", in_shell(batch)])
