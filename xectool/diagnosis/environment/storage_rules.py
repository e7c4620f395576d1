"""Rules on where things are written: file systems, tracking databases, caches, the git repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from xectool.diagnosis.environment.facts import EnvironmentFacts
from xectool.diagnosis.environment.places import TRACKER
from xectool.errors import in_shell
from xectool.findings import Finding
from xectool.rules import Rule

LEAST_FREE_BYTES: Final = 2 * 10**9  # three checkpoints of the default network
REFUSED_BYTES: Final = 100 * 10**6
_MEGABYTE: Final = 1e6
_FILE_STORE_ENDED: Final = (3, 13)


class PlacesTakeWrites(Rule[EnvironmentFacts]):
    """A run ends where its directory, cache or database cannot be written."""

    code = "XT-ENV-DISK"
    title = "Every place that is written to is writable and has room"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield an error where nothing can be written, a warning where little is free."""
        for place in facts.places:
            fix = f"df -h {in_shell(place.path)}"
            if not place.writable:
                yield self.error(place.path, f"the {place.role} cannot be written", f"ls -ld {in_shell(place.path)}")
            elif 0 <= place.free_bytes < LEAST_FREE_BYTES:
                free = f"{place.free_bytes / _MEGABYTE:.0f} MB are free"
                yield self.warning(place.path, f"{free} where the {place.role} lies ({place.file_system})", fix)
            if place.in_memory and place.role.startswith(("cache", "run")):
                yield self.info(
                    place.path, f"the {place.role} lies on {place.file_system}, which takes memory of the job", fix
                )


class TrackerIsLocal(Rule[EnvironmentFacts]):
    """SQLite relies on locks that network file systems do not keep."""

    code = "XT-ENV-TRACKER-FS"
    title = "The tracking database lies on a local disk"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning for a database on a shared file system."""
        for place in facts.places:
            if place.role == TRACKER and place.on_network:
                yield self.warning(
                    place.path,
                    f"SQLite locking is unreliable on {place.file_system}, where the tracking database lies",
                    f"export MLFLOW_TRACKING_URI={facts.platform.proposed_tracking_uri()}",
                )


class TrackerIsSupported(Rule[EnvironmentFacts]):
    """MLflow 3.13 and later refuse the directory of files."""

    code = "XT-ENV-MLFLOW"
    title = "MLflow writes to the store that is configured"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield an error for a store of files with a version that refuses it."""
        uri = facts.environment.get("MLFLOW_TRACKING_URI", "")
        version = facts.platform.version("mlflow")
        is_store = uri.startswith("file:") or (uri and ":" not in uri and uri != "databricks")
        if is_store and version is not None and version >= _FILE_STORE_ENDED:
            yield self.error(
                "MLFLOW_TRACKING_URI",
                f"{uri} is a directory of files, which MLflow {facts.platform.versions['mlflow']} refuses",
                f"export MLFLOW_TRACKING_URI=sqlite:///{Path('mlruns.db').absolute()}",
            )
        elif uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
            yield self.warning(
                "MLFLOW_TRACKING_URI",
                f"{uri} is relative: each working directory gets its own database",
                f"export MLFLOW_TRACKING_URI=sqlite:///{Path(uri.removeprefix('sqlite:///')).absolute()}",
            )


class HistoryIsWhole(Rule[EnvironmentFacts]):
    """Relative addresses and changed defaults leave several databases."""

    code = "XT-ENV-SPLIT-HISTORY"
    title = "One tracking database is in reach"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning that names them all."""
        if len(facts.databases) > 1:
            yield self.warning(
                facts.databases[0],
                f"history is split over {len(facts.databases)} tracking databases: {', '.join(facts.databases)}",
                f"export MLFLOW_TRACKING_URI=sqlite:///{facts.databases[0]}",
            )


class CachesAreLocal(Rule[EnvironmentFacts]):
    """Kernel caches keep small databases and lock files."""

    code = "XT-ENV-CACHE"
    title = "Kernel caches lie on a disk of the node"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning on a shared file system, an error where several nodes share it."""
        for place in facts.places:
            if not place.role.startswith("cache") or not place.on_network:
                continue
            name = place.role.removeprefix("cache ")
            nodes = facts.num_nodes
            shared = f", and {nodes} nodes share it" if nodes > 1 else ""
            report = self.error if nodes > 1 else self.warning
            yield report(
                place.path,
                f"{name} lies on {place.file_system}{shared}: SQLite locking across nodes does not hold",
                f"export {name}=/tmp/{name.lower()}_${{SLURM_JOB_ID:-$USER}}",
            )


class NoBigFilesInGit(Rule[EnvironmentFacts]):
    """Hosts refuse files above 100 MB and warn above 50 MB."""

    code = "XT-ENV-GIT"
    title = "No file of the repository is above 50 MB, none is a core dump"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield an error for each file that will be refused, a warning for the others."""
        for file in facts.git.big_files:
            size = f"{file.size_bytes / 1024**2:.2f} MB"
            report = self.error if file.size_bytes > REFUSED_BYTES else self.warning
            where = f"{facts.git.root}/{file.path}"
            if file.in_history_only:
                fix = (
                    f"git filter-repo --invert-paths --path {in_shell(file.path)}   # then push with --force-with-lease"
                )
                yield report(where, f"{file.path} ({size}) is in the history of the repository", fix)
            else:
                yield report(
                    where,
                    f"{file.path} ({size}) is tracked by git; hosts refuse 100.00 MB",
                    f"git rm --cached {in_shell(file.path)}",
                )


class NoCoreDumps(Rule[EnvironmentFacts]):
    """A crash leaves a file as large as the process was."""

    code = "XT-ENV-CORE"
    title = "No core dumps lie around, and none will"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning for each dump, a note where they are switched on."""
        for file in facts.core_files:
            yield self.warning(
                file.path,
                f"core dump of {file.size_bytes / 1024**2:.2f} MB",
                "printf '/core\\n/core.[0-9]*\\n' >> .gitignore   # a bare `core` also hides directories of that name",
            )
        limit = facts.limits.get("core file size")
        if limit is not None and limit.soft != 0:
            allowed = "any size" if limit.soft < 0 else f"up to {limit.soft / _MEGABYTE:.0f} MB"
            yield self.info("ulimit -c", f"core dumps of {allowed} are switched on", "ulimit -c 0")


STORAGE_RULES: tuple[Rule[EnvironmentFacts], ...] = (
    PlacesTakeWrites(),
    TrackerIsLocal(),
    TrackerIsSupported(),
    HistoryIsWhole(),
    CachesAreLocal(),
    NoBigFilesInGit(),
    NoCoreDumps(),
)
