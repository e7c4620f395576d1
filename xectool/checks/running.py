"""Puts the checks together: structure, hashes, values, integrity, identity; then the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import xxhash

from xectool.checks.digest import verify_digest, write_digest
from xectool.checks.facts import FileFacts, Trouble
from xectool.checks.identity import IdentityBlock, Repeated, find_repeated, find_shared
from xectool.checks.integrity import damaged_units
from xectool.checks.ranges import in_ranges
from xectool.checks.sample import Sample, SampleScan, ScanSettings, number_stream
from xectool.checks.sandbox import TIME_LIMIT_S, Sandbox
from xectool.config.inputs import is_remote, place_of, split_tree


class Progress(Protocol):
    """Abstract: what a scan tells of how far it is."""

    def phase(self, name: str, total: int) -> None:
        """Begin a phase of ``total`` units."""
        ...

    def advanced(self, num_batches: int, values: dict[str, float]) -> None:
        """Count finished units."""
        ...


class Silent:
    """Tells nobody."""

    def phase(self, name: str, total: int) -> None:
        """Begin a phase."""

    def advanced(self, num_batches: int, values: dict[str, float]) -> None:
        """Count units."""


@dataclass(frozen=True)
class Inspection:
    """How files are inspected.

    Attributes:
        settings: How their values are read.
        deep: Whether every basket is read.
        digests: Whether hashes are written beside sound files.
        time_limit_s: Longest time for the metadata of one file.
        progress: Told how far it is.
    """

    settings: ScanSettings
    deep: bool = False
    digests: bool = False
    time_limit_s: float = TIME_LIMIT_S
    progress: Progress = field(default_factory=Silent)


def open_all(paths: Sequence[str], how: Inspection) -> list[FileFacts]:
    """Return the structure of every file; each is opened in a process that may be ended."""
    how.progress.phase("open", len(paths))
    found = []
    with Sandbox(how.time_limit_s) as sandbox:
        for path in paths:
            found.append(sandbox.probe(path, how.settings.data.tree_name))
            how.progress.advanced(1, {})
    return found


def inspect_sample(paths: Sequence[str], how: Inspection) -> tuple[Sample, list[Path]]:
    """Return what the files hold and what is wrong with them, and the hash files that were written."""
    files = open_all(paths, how)
    changed = _verified(paths, how)
    how.progress.phase("read", sum(_to_read(facts, how.settings.max_events) for facts in files))
    sample = SampleScan(how.settings, files, lambda count: how.progress.advanced(count, {})).run()
    _add(sample, changed)
    if how.deep:
        _deep(sample, how)
    sample.troubles[:] = in_ranges(sample.troubles)
    return sample, _digests(sample, how) if how.digests else []


def _to_read(facts: FileFacts, max_events: int | None) -> int:
    return facts.num_entries if max_events is None else min(facts.num_entries, max_events)


def _add(sample: Sample, troubles: Iterable[Trouble]) -> None:
    told = [*sample.troubles, *(trouble for facts in sample.files for trouble in facts.troubles)]
    known = {(trouble.where, trouble.code) for trouble in told}
    for trouble in troubles:
        if (trouble.where, trouble.code) not in known:
            known.add((trouble.where, trouble.code))
            sample.troubles.append(trouble)


def _verified(paths: Sequence[str], how: Inspection) -> list[Trouble]:
    names: dict[str, str] = {}
    for path in paths:
        names.setdefault(split_tree(path)[0], path)
    local = [path for name, path in names.items() if not is_remote(name)]
    how.progress.phase("compare hashes", len(local))
    found = []
    for path in local:
        found += verify_digest(path)
        how.progress.advanced(1, {})
    return found


def _deep(sample: Sample, how: Inspection) -> None:
    opened = [facts for facts in sample.files if facts.opened]
    total = sum(int(branch.units.num_bytes.sum()) for facts in opened for branch in facts.branches.values())
    how.progress.phase("read all baskets", total)
    for facts in opened:
        _add(sample, damaged_units(facts, _read_in_full(sample, facts, how), partial(_advance, how.progress)))


def _advance(progress: Progress, count: int) -> None:
    progress.advanced(count, {})


def _read_in_full(sample: Sample, facts: FileFacts, how: Inspection) -> set[str]:
    """Return the branches whose every basket was decompressed when values were read, so that it is not done twice."""
    if facts.where not in sample.verdicts or how.settings.max_events is not None:
        return set()
    wanted = sample.verdicts[facts.where].usable
    # reading ends at the first damage of a branch
    failed = {
        name for name in wanted if any(t.where.startswith(f"{facts.where} branch {name} ") for t in sample.troubles)
    }
    # fixed-width branches are decoded by our own reader; the others are decoded as bytes once more
    return {name for name in wanted - failed if name in facts.branches and facts.branches[name].value_bytes}


def _digests(sample: Sample, how: Inspection) -> list[Path]:
    told = [trouble.where for trouble in sample.troubles]
    bad = {facts.path for facts in sample.files if facts.troubles or any(facts.shares_file(where) for where in told)}
    sound = [facts for facts in sample.files if facts.opened and facts.path not in bad]
    how.progress.phase("write hashes", len(sound))
    written = []
    for facts in sound:
        if not is_remote(facts.path):
            written.append(write_digest(facts))
        how.progress.advanced(1, {})
    return written


def repeated_events(sample: Sample, how: Inspection) -> tuple[Repeated, Repeated]:
    """Return events whose numbers occur twice, and events whose photons do under other numbers."""
    readable = _numbered(sample)
    numbers = sum(facts.num_entries for facts in readable)
    repeated = find_repeated(partial(number_stream, readable, how.settings.data), numbers)
    copies = find_repeated(lambda: iter(sample.contents), sample.scanned)
    if repeated.count:
        # the same event twice is told of once
        same = tuple(pair for pair in copies.pairs if not _known(pair.path, pair.entry, repeated))
        copies = Repeated(max(0, copies.count - repeated.count) if same else 0, same)
    return repeated, copies


def _known(path: str, entry: int, repeated: Repeated) -> bool:
    return any((pair.path, pair.entry) == (path, entry) for pair in repeated.pairs)


def _numbered(sample: Sample) -> list[FileFacts]:
    """Return the files whose run and event numbers can be read."""
    damaged = {trouble.where for trouble in sample.troubles if trouble.check == "DAT-05"}
    return [facts for facts in sample.files if facts.where in sample.numbered - damaged and facts.num_entries]


def shared_events(sample: Sample, other: Sample, how: Inspection) -> tuple[Repeated, tuple[str, ...]]:
    """Return the events that both samples hold, and the files of the other that are files of this one."""
    mine = {place_of(facts.path, facts.tree) for facts in sample.files}  # a file may hold a tree for each sample
    same = (facts for facts in other.files if place_of(facts.path, facts.tree) in mine or _copy_of(facts, sample))
    shared = tuple(facts.where for facts in same)
    first, second = (partial(number_stream, _numbered(part), how.settings.data) for part in (sample, other))
    found = find_shared(first, second, sample.num_events)
    if found.count:
        return found, shared
    return find_shared(_contents(sample), _contents(other), sample.scanned), shared


def _contents(sample: Sample) -> Callable[[], Iterator[IdentityBlock]]:
    return lambda: iter(sample.contents)


def _copy_of(facts: FileFacts, sample: Sample) -> bool:
    known = (facts.size_bytes, facts.tree)
    alike = [mine for mine in sample.files if mine.size_bytes and (mine.size_bytes, mine.tree) == known]
    return any(_content_hash(mine.path) == _content_hash(facts.path) for mine in alike)


def _content_hash(path: str) -> str:
    hasher = xxhash.xxh3_128()
    with open(path, "rb") as stream:
        for chunk in iter(partial(stream.read, 1 << 22), b""):
            hasher.update(chunk)
    return hasher.hexdigest()
