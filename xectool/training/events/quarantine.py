"""Events that a run leaves out for good, by identity, within a budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.config.guards import GuardsConfig
from xectool.config.impossible_room import few_events
from xectool.config.inputs import place_of, split_tree
from xectool.config.left_out import KEY
from xectool.data.blocks import SourceFile
from xectool.data.excluded import event_keys
from xectool.data.loader import EventLoader
from xectool.errors import DiskError, RunDiverged, counted, event_named
from xectool.runlog.atomic import write_text
from xectool.training.events.followed import Trained, file_moved_to

FILE_NAME: Final = "quarantine.json"
ASKED: Final = KEY  # reason of an event that no guard found: a resume inside an epoch leaves it out


@dataclass(frozen=True)
class PoisonedEvent:
    """One event that is left out.

    Attributes:
        file: Its file as an input is named, with the tree.
        file_index: Index of the file among the training files of this run.
        entry: Entry in the file.
        run: Run number.
        event: Event number.
        reason: Code of the cause, such as ``XT-NAN-DATA``, or :data:`ASKED`.
        step: Optimizer step that found it, and from which on it is left out.
    """

    file: str
    file_index: int
    entry: int
    run: int
    event: int
    reason: str
    step: int

    @property
    def place(self) -> tuple[int, int]:
        """File index and entry."""
        return self.file_index, self.entry

    @property
    def identity(self) -> list[int]:
        """File index, entry, run and event number."""
        return [self.file_index, self.entry, self.run, self.event]


class Quarantine:
    """The events of a run that its training loader no longer serves.

    Args:
        config: The guards section.
        loader: The training events.

    Attributes:
        budget: Events that may be left out.
        few: Bad events that a data set has a right to, left out or not.
        followed: Entries of files that lie elsewhere by now, by the name that each had and the one it has.
    """

    def __init__(self, config: GuardsConfig, loader: EventLoader) -> None:
        num_events = loader.plan.num_events
        self.few = few_events(config, num_events)
        self.budget = self.few if config.max_quarantined else 0
        self.enabled = config.quarantine
        self.events: list[PoisonedEvent] = []
        self.followed: dict[tuple[str, str], set[int]] = {}
        self._loader = loader

    def __len__(self) -> int:
        """Return how many events the guards have left out."""
        return sum(event.reason != ASKED for event in self.events)

    def keys_at(self, step: int) -> npt.NDArray[np.int64]:
        """Return what `event_keys` tells of the events that an optimizer step was not given, shape (n,)."""
        places = np.array([event.place for event in self.events if event.step <= step], np.int64).reshape(-1, 2)
        return event_keys(places[:, 0], places[:, 1])

    def add(self, found: Sequence[PoisonedEvent]) -> list[PoisonedEvent]:
        """Leave out further events from now on; return those that were not left out before."""
        known = len(self.events)
        self._leave_out(found)
        return self.events[known:]

    def require_budget(self, run_dir: Path) -> None:
        """Refuse more events than the budget allows.

        Raises:
            RunDiverged: There are more; the list in the run directory names them all.
        """
        if len(self) > self.budget:
            last = next(event for event in reversed(self.events) if event.reason != ASKED)
            raise RunDiverged(
                f"{counted(len(self), 'event')} had to be left out, more than the {self.budget} allowed; the "
                f"last: entry {last.entry} of {last.file}, {event_named(last.run, last.event)} ({last.reason})",
                where=f"{run_dir / FILE_NAME} names them all",
                fix="--set guards.max_quarantined=0.2   # allows more; look at those events first",
                code="XT-QUARANTINE-FULL",
            )

    def try_write(self, run_dir: Path) -> str:
        """Write the list to the run directory; return why the disk refused, or an empty string.

        Checkpoints and the record hold the list as well, so it is not worth a training. What earlier attempts have
        written stays, for a look back at their steps and for files that are not read now. A list that cannot be read
        is left as it is.
        """
        path, index = run_dir / FILE_NAME, index_by_name(self._loader.source.files)
        earlier, problem = listed(path)
        if problem:
            return problem
        own = {(event.file, event.entry): asdict(event) for event in self.events}
        stay = {
            (event.file, event.entry): asdict(event)
            for event in earlier
            if (event.file, event.entry) in own
            or event.reason != ASKED
            or index(event.file) is None  # else asked no longer
        }
        content = {"format": 1, "budget": self.budget, "events": [*(stay | own).values()]}
        try:
            write_text(path, json.dumps(content, indent=1) + "\n")
        except DiskError as error:
            return error.problem
        return ""

    def read(self, run_dir: Path, step: int, trained: Trained = ()) -> tuple[int, str]:
        """Leave out what guards have found beyond what is known, by the list of the run directory.

        Args:
            run_dir: The run directory.
            step: Optimizer steps that have been taken; what was found later is left out from the next one on.
            trained: The files of the checkpoint that is resumed.

        Returns:
            How many events, and why the list could not be read, or an empty string.
        """
        known, (earlier, problem) = len(self.events), listed(run_dir / FILE_NAME)
        found = [asdict(replace(one, step=min(one.step, step + 1))) for one in earlier if one.reason != ASKED]
        self.load_state_dict({"events": found}, trained)
        return len(self.events) - known, problem

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs."""
        return {"events": [asdict(event) for event in self.events]}

    def load_state_dict(self, state: dict[str, Any], trained: Trained = ()) -> None:
        """Leave out the events of a saved state; files are told by path and tree, whatever their place now.

        Of a file that has been moved its events are left out where they are now, under the name it has there. Events
        of files that are not trained on are forgotten.

        Args:
            state: What `state_dict` returned.
            trained: The files that the state was trained on.
        """
        source, saved = self._loader.source, [PoisonedEvent(**values) for values in state["events"]]
        index = index_by_name(source.files)
        places = {name: index(name) for name in dict.fromkeys(event.file for event in saved)}
        for name in [name for name, place in places.items() if place is None]:
            events = [(event.entry, event.run, event.event) for event in saved if event.file == name]
            moved = places[name] = file_moved_to(name, events, source, trained)
            if moved is not None:
                new = source.files[moved].name
                self.followed.setdefault((name, new), set()).update(entry for entry, *_ in events)
                saved = [replace(event, file=new) if event.file == name else event for event in saved]
                places[new] = moved
        here = [(event, places[event.file]) for event in saved]
        self._leave_out([replace(event, file_index=place) for event, place in here if place is not None])

    def _leave_out(self, found: Sequence[PoisonedEvent]) -> None:
        known = {event.place for event in self.events}
        asked = {event.place for event in found if event.reason == ASKED}  # no longer the guards' own
        self.events = [replace(event, reason=ASKED) if event.place in asked else event for event in self.events]
        new = [event for event in found if event.place not in known]
        if new:
            self.events += new
            self._loader.exclude(
                np.array([event.file_index for event in new]), np.array([event.entry for event in new])
            )


def listed(path: Path) -> tuple[list[PoisonedEvent], str]:
    """Return the events of a list on disk, but for what has another shape, and why it could not be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return [], ""
    except OSError as error:
        return [], f"{path.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return [], f"{path.name} cannot be read: it is no JSON"
    events = content.get("events") if isinstance(content, dict) else None
    found = [_event_of(values) for values in events] if isinstance(events, list) else []
    return [event for event in found if event is not None], ""


def _event_of(values: Any) -> PoisonedEvent | None:
    """Return an event as `state_dict` tells it; None for what has another shape."""
    known = {field.name: field.type for field in fields(PoisonedEvent)}
    if not isinstance(values, dict) or known.keys() - values.keys():
        return None
    kept = {name: values[name] for name in known}
    return PoisonedEvent(**kept) if all(type(kept[name]).__name__ == kind for name, kind in known.items()) else None


def index_by_name(files: Sequence[SourceFile]) -> Callable[[str], int | None]:
    """Return what finds the index of a file by its name, with or without its tree; None for one that is not there."""
    places = {place_of(file.path, ""): index for index, file in enumerate(files)}  # of a name that tells no tree
    places |= {place_of(file.path, file.tree): index for index, file in enumerate(files)}
    return lambda name: places.get(place_of(*split_tree(name, "")))
