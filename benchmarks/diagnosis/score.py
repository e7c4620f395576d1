"""Run the cases, look at what ``diagnose run`` says, and count."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from xectool import engine
from xectool.config.inputs import split_tree
from xectool.errors import XecError

from benchmarks.diagnosis.catalogue import CASES, Case
from benchmarks.diagnosis.files import EventFiles
from benchmarks.diagnosis.lab import Lab
from benchmarks.diagnosis.pasting import passes, training_lines


@dataclass(frozen=True)
class Outcome:
    """What the diagnosis said about one run.

    Attributes:
        case: Name of the case.
        seed: Its seed.
        named: Causes above a note, in the order in which they were given.
        seconds: Time ``diagnose run`` took.
        trained_s: Time the run took.
        bisected: Whether ``nan-batch`` named a corrupted event; None where that is not asked.
        problem: First line of the verdict.
        lines: How many lines to paste start a training.
        refused: Those that a dry run refuses, or that would train nothing.
    """

    case: str
    seed: int
    named: tuple[str, ...]
    seconds: float
    trained_s: float
    bisected: bool | None
    problem: str
    lines: int = 0
    refused: tuple[str, ...] = ()

    @property
    def kind(self) -> Case:
        """What was done to the run."""
        return CASES[self.case]

    @property
    def first_right(self) -> bool:
        """Whether the right cause came first; for a sound run, whether there was none."""
        return not self.named if self.kind.healthy else bool(self.named) and self.named[0] in self.kind.codes

    @property
    def all_named(self) -> bool:
        """Whether further faults of the run were named as well."""
        return all(any(code in self.named for code in also.split("|")) for also in self.kind.also)

    @property
    def right(self) -> bool:
        """Whether everything is as it should be."""
        return self.first_right and self.all_named


def judge(name: str, seed: int, root: Path, data: Sequence[EventFiles], keep: bool = False) -> Outcome:
    """Run one case and diagnose it.

    Args:
        name: Name of the case.
        seed: Decides everything random.
        root: Where runs go.
        data: Data sets of the seed.
        keep: Whether the run is kept.
    """
    torch.set_num_threads(1)
    case = CASES[name]
    directory = root / f"{seed}_{''.join(c if c.isalnum() else '_' for c in name)}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    lab = Lab(directory, seed, name, data)
    began = time.perf_counter()
    case.inject(lab)
    trained = time.perf_counter() - began
    began = time.perf_counter()
    named, verdict, fixes = _diagnosed(lab)
    seconds = time.perf_counter() - began
    bisected = _bisects(lab) if case.bisect else None
    lines = training_lines(fixes)
    refused = tuple(shlex.join(words) for words in lines if not passes(words))
    outcome = Outcome(name, seed, named, seconds, trained, bisected, verdict, len(lines), refused)
    if not keep:
        shutil.rmtree(directory)
    return outcome


def _diagnosed(lab: Lab) -> tuple[tuple[str, ...], str, list[str]]:
    """Return causes above a note, verdict and lines to paste; of a run refused before its first record, the code."""
    try:
        found = engine.diagnose.run(lab.run_dir)
    except XecError as error:
        return ((lab.refusal.read_text(),) if lab.refusal.exists() else ()), str(error), []
    return tuple(cause.code for cause in found.causes), found.verdict, [cause.fix for cause in found.causes]


def _bisects(lab: Lab) -> bool:
    """Return whether ``diagnose nan-batch --run`` names an event that was corrupted."""
    if not lab.run_dir.exists():
        return False
    found = engine.diagnose.nan_batch(run=lab.run_dir, output=lab.directory / "least.npz", device="cpu")
    if found.event is None:
        return False
    names = [Path(path).name for path in lab.train_files]
    file, _ = split_tree(str(found.event["file"]))
    return (names.index(Path(file).name), int(found.event["entry"])) in lab.planted


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the score as lines of Markdown."""
    lines = [
        "| what was done | expected first | named first (recall) | precision | all named | event | diagnose |",
        "|---|---|---|---|---|---|---|",
    ]
    group, places = "", list(dict.fromkeys(case.group for case in CASES.values()))
    for case in sorted(CASES.values(), key=lambda case: places.index(case.group)):
        own = [outcome for outcome in outcomes if outcome.case == case.name]
        if not own:
            continue
        if case.group != group:
            group = case.group
            lines.append(f"| **{group}** | | | | | | |")
        lines.append(_row(case, own, precision(case, outcomes)))
    return lines


def precision(case: Case, outcomes: Iterable[Outcome]) -> str:
    """Return in how many of the runs that were given a cause of this case it was right to."""
    given = [outcome for outcome in outcomes if outcome.named and outcome.named[0] in case.codes]
    return f"{sum(outcome.first_right for outcome in given)}/{len(given)}" if given else ""


def _row(case: Case, own: Sequence[Outcome], precise: str) -> str:
    asked = [o.bisected for o in own if o.bisected is not None]
    cells = (
        case.name + (" *" if case.constructed else ""),
        " or ".join(case.codes) + "".join(f" + {also.replace('|', ' or ')}" for also in case.also) or "nothing",
        f"{sum(o.first_right for o in own)}/{len(own)}",
        precise,
        f"{sum(o.all_named for o in own)}/{len(own)}" if case.also else "",
        f"{sum(asked)}/{len(asked)}" if asked else "",
        f"{sorted(o.seconds for o in own)[len(own) // 2]:.2f} s",
    )
    return f"| {' | '.join(cells)} |"


def totals(outcomes: Sequence[Outcome]) -> list[str]:
    """Return precision, recall and false alarms in one line each."""
    faults = [o for o in outcomes if not o.kind.healthy]
    sound = [o for o in outcomes if o.kind.healthy]
    alarms = sum(not o.first_right for o in sound)
    named = sum(len(o.named) > 0 for o in outcomes)
    right = sum(o.first_right for o in faults)
    pairs = [o for o in faults if o.kind.also]
    asked = [o.bisected for o in faults if o.bisected is not None]
    times = sorted(o.seconds for o in outcomes)
    lines = sum(o.lines for o in outcomes)
    return [
        f"right cause first: {_share(right, len(faults))}",
        f"found at all (recall): {_share(sum(bool(o.named) for o in faults), len(faults))}",
        f"right among the runs with a cause (precision): {_share(right, named)}",
        f"false alarms on sound runs: {_share(alarms, len(sound))}",
        f"both of two faults named: {_share(sum(o.all_named for o in pairs), len(pairs))}",
        f"event named by nan-batch: {_share(sum(map(bool, asked)), len(asked))}",
        f"lines to paste that pass a dry run: {_share(lines - sum(len(o.refused) for o in outcomes), lines)}",
        f"time to verdict: median {times[len(times) // 2]:.2f} s, longest {times[-1]:.2f} s",
    ]


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "not asked"


def misses(outcomes: Iterable[Outcome]) -> list[str]:
    """Return what was not as it should be."""
    outcomes = list(outcomes)
    refused = [f"{o.case} (seed {o.seed}): cannot be pasted: {line}" for o in outcomes for line in o.refused]
    return refused + [
        f"{o.case} (seed {o.seed}): {', '.join(o.named) or 'nothing'}; expected "
        f"{' or '.join(o.kind.codes) or 'nothing'}{''.join(f' + {also}' for also in o.kind.also)}"
        f"{'' if o.bisected is not False else '; event not named'} -- {o.problem[:300]}"
        for o in outcomes
        if not o.right or o.bisected is False
    ]
