"""What measured loading means: which cause makes it slow, and the cure of that cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xectool.errors import duration
from xectool.findings import Finding, Severity
from xectool.probes.loading.epoch_time import EpochTime
from xectool.probes.loading.stages import StageReport

WAIT_SHARE = 0.2
FEW_EVENTS_PER_BASKET = 16
_SLOW_CODEC_SHARE = 0.5
_OPEN_SHARE = 0.2
_REPEATS = 1.5
_FASTER = "xectool explain XT-LOADER-STORAGE   # no disk of this machine has room for a copy, or the files are urls"
_NAMES = {"ZL": "zlib", "XZ": "lzma", "L4": "lz4", "ZS": "zstd", "CS": "old zlib"}


@dataclass(frozen=True)
class LoaderFacts:
    """What was measured.

    Attributes:
        stages: Where the time goes.
        epoch: The predicted epoch; the first one.
        later: Every later one, where training reads a copy of the events then: at least so long; None without.
        num_files: Files of the data set.
        num_events: Events served in an epoch.
        file_bytes: Size of the local files.
        cached_share: Share of them that lay in the page cache.
        events_per_basket: Size of a typical basket of photons.
        window_events: Events that are read at a time.
        whole_basket_chunk: Chunk size whose windows hold a whole basket.
        memory_bytes: Memory that may be used.
        example: One of the files.
        readers_start_s: Seconds until readers give their first window, beyond reading it.
        copying: What has training read a copy of the events on a disk of this machine; empty where nothing does.
        merging: What makes one file of all of them.
    """

    stages: StageReport
    epoch: EpochTime
    num_files: int
    num_events: int
    file_bytes: int
    cached_share: float
    events_per_basket: float
    window_events: int
    whole_basket_chunk: int
    memory_bytes: int
    example: str
    later: EpochTime | None = None
    readers_start_s: float = 0.0
    copying: str = ""
    merging: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return what is not shown elsewhere."""
        return {
            "files": self.num_files,
            "events": self.num_events,
            "file_bytes": self.file_bytes,
            "cached_share": self.cached_share,
            "events_per_basket": self.events_per_basket,
            "window_events": self.window_events,
            "reads_per_event": self.stages.reads_per_event,
            "read_bytes_per_event": self.stages.read_bytes_per_event,
            "decompressed_times": self.stages.repeats,
            "open_us_per_event": self.stages.open_us,
            "compression": {_NAMES.get(name, name): share for name, share in self.stages.algorithms.items()},
        }


def findings_of(facts: LoaderFacts, config_lines: Sequence[str]) -> tuple[Finding, ...]:
    """Return what is wrong with the loading, the wait first and then its causes.

    Args:
        facts: What was measured.
        config_lines: Settings that were found to be better.
    """
    epoch = facts.later or facts.epoch
    waits = epoch.data_wait_share > WAIT_SHARE
    causes = tuple(_causes(facts, Severity.WARNING if waits else Severity.INFO))
    if not waits:
        return causes
    dominant = facts.stages.dominant
    stage = facts.stages.stages[dominant]
    evidence = (
        f"predicted epoch {duration(epoch.train_s)}, of which {duration(epoch.first_batch_s)} to the first batch",
        f"{dominant} takes {100 * stage.share:.0f} % of loading ({stage.us_per_event:.4g} us an event)",
    )
    by_hand = causes[0].fix if causes else "xectool diagnose environment   # a job with more cores, or faster storage"
    fix = " ".join(f"--set {line.replace(': ', '=')}" for line in config_lines) or by_hand
    problem = f"input-bound: {100 * epoch.data_wait_share:.0f} % of an epoch will be spent waiting for data"
    slow = Finding("XT-LOADER-SLOW", Severity.WARNING, problem, "data", evidence, fix)
    return (slow, *causes)


def _causes(facts: LoaderFacts, severity: Severity) -> Iterator[Finding]:
    stages = facts.stages
    whole = sum(stage.us_per_event for stage in stages.stages.values())
    if facts.events_per_basket < FEW_EVENTS_PER_BASKET:
        evidence = (f"{stages.reads_per_event:.3g} reads an event, over all branches",)
        problem = f"tiny baskets: the photons lie in baskets of {facts.events_per_basket:.3g} events"
        fix = "hadd -O large_baskets.root " + facts.example
        yield Finding("XT-LOADER-BASKETS", severity, problem, facts.example, evidence, fix)
    if stages.repeats > _REPEATS:
        problem = (
            f"windows of {facts.window_events} events are cut from baskets of {facts.events_per_basket:.4g}: each byte "
            f"is decompressed {stages.repeats:.1f} times"
        )
        evidence = (f"{stages.stages['decompress'].us_per_event:.4g} us an event are spent decompressing",)
        fix = f"--set data.chunksize={facts.whole_basket_chunk}"
        yield Finding("XT-LOADER-WINDOW", severity, problem, "data.chunksize", evidence, fix)
    codec = next(iter(stages.algorithms), "")
    if codec in ("XZ", "CS") and stages.stages["decompress"].share > _SLOW_CODEC_SHARE:
        share = 100 * stages.stages["decompress"].share
        problem = f"the files are compressed with {_NAMES[codec]}, and decompressing takes {share:.0f} % of loading"
        evidence = (f"at most {stages.decompress_events_per_s:.4g} events/s on all cores, however they are read",)
        fix = "hadd -f505 zstd.root " + facts.example
        yield Finding("XT-LOADER-CODEC", severity, problem, facts.example, evidence, fix)
    if stages.open_us > _OPEN_SHARE * whole:
        problem = f"opening files takes {100 * stages.open_us / whole:.0f} % of loading"
        evidence = (f"{facts.num_files} files, {facts.num_events / facts.num_files:.4g} events each",)
        yield Finding("XT-LOADER-FILES", severity, problem, facts.example, evidence, facts.merging)
    if stages.stages["read"].us_per_event - stages.open_us > 0.5 * whole:
        rate = f"{stages.read_bytes_per_s / 1e6:.4g} MB/s"
        problem = f"the storage gives {rate}, and waiting for it is most of loading"
        yield Finding(
            "XT-LOADER-STORAGE", severity, problem, facts.example, (f"read: {rate}",), facts.copying or _FASTER
        )
