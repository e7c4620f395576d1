"""What ``diagnose nan-batch`` reads of a run: its own configuration and files, whatever else is named beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from xectool.config.document import CONFIG_FILE
from xectool.config.left_out import of_files_read
from xectool.config.load import load_config
from xectool.config.moved import renamed_events
from xectool.config.serialize import inline_yaml
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.evidence.left_out import data_settings
from xectool.diagnosis.ranking import diagnose
from xectool.errors import DataFileError, in_shell
from xectool.probes.nonfinite.subject import Subject, of_config, of_run
from xectool.probes.nonfinite.verdicts import Training, Verdict
from xectool.probes.repetition.history import RunHistory

FILES = ("data.train_path", "data.val_path")


@dataclass(frozen=True)
class SearchedRun:
    """A run that is searched.

    Attributes:
        history: Its past.
        incident: Number of the incident that is asked for, or None.
        ignored: Settings that were given and do not apply, for the run has its own.
    """

    history: RunHistory
    incident: int | None
    ignored: tuple[str, ...]

    @classmethod
    def of(
        cls, run: str | Path, incident: int | None, config: str | Path | None, overrides: Sequence[str]
    ) -> SearchedRun:
        """Return a run; of a configuration and settings beside it only the files count, where its own are gone."""
        of_files = [text for text in overrides if text.partition("=")[0] in FILES]
        own = Path(run).expanduser() / CONFIG_FILE
        source = config if config is not None else own if overrides else None
        given = None if source is None else load_config(source, overrides).config.data
        ignored = tuple(text for text in overrides if text not in of_files)
        return cls(RunHistory(run, given), incident, ignored)

    def subject(self, ckpt: Path | None, which: str, max_events: int | None, device: str | None) -> Subject:
        """Return its incident or first bad step, else its data with its newest weights.

        Raises:
            XecError: Data or weights cannot be used.
        """
        try:
            found = of_run(self.history, self.incident, ckpt, device)
            if found is not None:
                return found
            newest = ckpt or self.history.state_before(2**62).path
            return of_config(self.history.config, newest, device, which, max_events)
        except DataFileError as error:
            missing = self.history.files.missing
            if not missing:
                raise
            run, options = in_shell(self.history.run_dir), " ".join(f"--set {key}=NEW" for key in missing)
            raise DataFileError(
                error.problem,
                where=error.where,
                fix=f"xectool diagnose nan-batch --run {run} {options}   # where they are now",
            ) from error

    def training(self) -> Training:
        """Return the run for the lines that start it again."""
        place, changed = self.history.run_dir, self.history.files.settings
        settings = [f"{key}={inline_yaml(paths)}" for key, paths in changed.items()]
        return Training(place / CONFIG_FILE, settings, place, self._left_out())

    def _left_out(self) -> tuple[tuple[str, int], ...]:
        """Return the events that the record blames, and those left out inside an epoch, in files as they are now."""
        evidence = gather(self.history.run_dir)
        blamed = (f"{file}:{entry}" for cause in diagnose(evidence).causes for file, entry in cause.blamed)
        every = renamed_events((*data_settings(evidence).exclude, *blamed), self.history.files.moved)
        named = (event.rpartition(":") for event in of_files_read(self.history.config.data, every))
        return tuple((file, int(entry)) for file, _, entry in named)

    def notes(self) -> tuple[str, ...]:
        """Return what was taken in place of what was named, or not taken."""
        ignored = f"not applied, for the run's own configuration is searched: {', '.join(self.ignored)}"
        return (*self.history.files.notes, *([ignored] if self.ignored else []))

    def with_spikes(self, verdict: Verdict) -> Verdict:
        """Return a verdict with the finite spikes of the run, which are no answer to the question and worth a look.

        Those that a mask alone made are none, as for `diagnose run`.
        """
        found = (event for event in self.history.events if event.kind == "spike")
        spikes = [event for event in found if not event.data.get("by_mask")]
        if not spikes:
            return verdict
        more = f", the first of {len(spikes)}" if len(spikes) > 1 else ""
        said = f"a finite spike of the run{more}: {spikes[0].message}"
        if verdict.code:
            return replace(verdict, why=(*verdict.why, said))
        run = in_shell(self.history.run_dir)
        return replace(
            verdict,
            verdict=f"{verdict.verdict}; {said}",
            fix=f"xectool diagnose replay {run} --step {spikes[0].step} --counterfactuals",
        )
