"""Rules that need to know the machine, but no data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from xectool.config.file_systems import is_network
from xectool.config.host_memory import NumEvents
from xectool.config.platform import Platform
from xectool.config.root import RunConfig
from xectool.errors import counted, in_shell
from xectool.findings import Finding, Report
from xectool.rules import Rule

TRACKER_SCHEMES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks", "databricks-uc")

KEPT = "keep it for the machine of the preset"
_OF_SIZE = frozenset(("CFG-06", "CFG-16", "CFG-18", "CFG-20", "CFG-49"))


@dataclass(frozen=True)
class Situation:
    """A configuration on a machine, and the events of its files where they were counted."""

    config: RunConfig
    platform: Platform
    events: NumEvents | None = None


class CompileOnArm(Rule[Situation]):
    """On ARM the compiler works only where triton is installed."""

    code = "CFG-06"
    title = "An ARM machine compiles only with triton"

    def check(self, facts: Situation) -> Iterator[Finding]:
        """Yield an error without triton, a warning to verify with it; auto decides by itself."""
        mode = facts.config.training.compile
        if not facts.platform.is_arm or mode in ("auto", "none"):
            return
        if not facts.platform.has_triton:
            yield self.error(
                "training.compile",
                f"training.compile: {mode} needs triton, which cannot be imported on this ARM machine "
                f"({facts.platform.machine})",
                "training.compile: none",
            )
        else:
            yield self.warning(
                "training.compile",
                f"training.compile: {mode} on ARM ({facts.platform.machine}): triton is installed, but verify that it "
                "works: time some steps with it and with training.compile: none",
                "training.compile: auto",
            )


class WorkersFitTheCores(Rule[Situation]):
    """More readers than cores slow each other down."""

    code = "CFG-16"
    title = "num_workers and num_threads fit the allowed cores"

    def check(self, facts: Situation) -> Iterator[Finding]:
        """Yield a warning for more workers than cores, and for more than two threads a core."""
        data, cores, ranks = facts.config.data, facts.platform.cores, facts.config.distributed.num_gpus
        of_all = f" x {counted(ranks, 'rank')}" if ranks > 1 else ""
        if data.num_workers * ranks > cores:
            suggested = cores // ranks
            yield self.warning(
                "data.num_workers",
                f"data.num_workers {data.num_workers}{of_all} is above the {cores} allowed cores; suggested max "
                f"{suggested}",
                f"data.num_workers: {suggested}",
            )
        threads = max(1, data.num_workers) * data.num_threads * ranks
        if threads > 2 * cores:
            suggested = max(1, 2 * cores // (max(1, data.num_workers) * ranks))
            yield self.warning(
                "data.num_threads",
                f"data.num_workers {data.num_workers} x data.num_threads {data.num_threads}{of_all} are {threads} "
                f"threads on {cores} cores; suggested max {suggested}",
                f"data.num_threads: {suggested}",
            )


class WorkersOnGraceHopper(Rule[Situation]):
    """The older advice for Grace-Hopper is one worker; it is passed on, not enforced."""

    code = "CFG-18"
    title = "ARM machines: one worker process is the older advice"

    def check(self, facts: Situation) -> Iterator[Finding]:
        """Yield a note where several workers are asked for on ARM."""
        workers = facts.config.data.num_workers
        if facts.platform.is_arm and workers > 1:
            yield self.info(
                "data.num_workers",
                f"data.num_workers {workers}: seed recommends 1 on Grace-Hopper (with data.num_threads: 8); the value "
                "is kept; compare the data wait of a short run with fewer",
                "data.num_workers: 1",
            )


class TrackerSurvives(Rule[Situation]):
    """A tracker database must be a database, in one place, on a local disk."""

    code = "CFG-47"
    title = "The MLflow URI is an absolute local database or a server"

    def check(self, facts: Situation) -> Iterator[Finding]:
        """Yield an error for a file store where MLflow refuses it, warnings for relative or network paths."""
        mlflow = facts.config.mlflow
        uri = mlflow.tracking_uri or facts.platform.environment.get("MLFLOW_TRACKING_URI", "")
        if not mlflow.enabled or not uri:
            return
        absolute = f"sqlite:///{Path('mlruns.db').absolute()}"
        scheme = uri.split(":", 1)[0] if ":" in uri else ""
        if scheme in ("", "file"):
            refused = (facts.platform.version("mlflow") or (0, 0)) >= (3, 13)
            report = self.error if refused else self.warning
            yield report(
                "mlflow.tracking_uri",
                f"mlflow.tracking_uri {uri} is a file store, which MLflow 3.13 and later refuse; write an absolute URI",
                f"mlflow.tracking_uri: {absolute}",
            )
        elif scheme == "sqlite":
            yield from self._database(uri, facts.platform, absolute)
        elif scheme.partition("+")[0] not in TRACKER_SCHEMES:
            yield self.warning(
                "mlflow.tracking_uri",
                f"mlflow.tracking_uri {uri}: MLflow knows {', '.join(TRACKER_SCHEMES)}; {scheme} needs a plugin of its "
                "own, without which nothing is tracked",
                f"mlflow.tracking_uri: {absolute}",
            )

    def _database(self, uri: str, platform: Platform, absolute: str) -> Iterator[Finding]:
        path = uri.removeprefix("sqlite:///")
        if not path.startswith("/"):
            yield self.warning(
                "mlflow.tracking_uri",
                f"mlflow.tracking_uri {uri} is relative: each working directory gets its own database; "
                "write an absolute URI",
                f"mlflow.tracking_uri: {absolute}",
            )
        file_system = platform.file_system(path)
        if is_network(file_system):
            yield self.warning(
                "mlflow.tracking_uri",
                f"mlflow.tracking_uri {uri} lies on {file_system}, where sqlite locks are unreliable; "
                "write an absolute URI on a local disk, or a server's",
                f"mlflow.tracking_uri: {platform.proposed_tracking_uri()}",
            )


class EnvironmentMeansWhatItSays(Rule[Situation]):
    """Variables that do nothing, hide errors, or name what does not exist."""

    code = "CFG-48"
    title = "No environment variable misleads"

    _USELESS: ClassVar[dict[str, tuple[str, str]]] = {
        "NCCL_TIMEOUT": ("NCCL_TIMEOUT has no effect; use distributed.timeout_s", "unset NCCL_TIMEOUT"),
        "TORCHDYNAMO_SUPPRESS_ERRORS": (
            "TORCHDYNAMO_SUPPRESS_ERRORS hides compile errors: the model runs in eager mode without a word",
            "unset TORCHDYNAMO_SUPPRESS_ERRORS",
        ),
        "MIOPEN_DISABLE_CACHE": (
            "MIOPEN_DISABLE_CACHE searches every kernel anew in each process",
            "unset MIOPEN_DISABLE_CACHE",
        ),
    }  # fmt: skip

    def check(self, facts: Situation) -> Iterator[Finding]:
        """Yield a warning for each misleading variable, an error for an interface ranks would wait for in vain."""
        environment = facts.platform.environment
        for name, (problem, fix) in self._USELESS.items():
            if name in environment:
                yield self.warning("", f"{problem} (environment: {name}={environment[name]})", fix)
        old, new = environment.get("PYTORCH_CUDA_ALLOC_CONF"), environment.get("PYTORCH_ALLOC_CONF")
        if old and new and old != new:
            yield self.warning(
                "",
                f"PYTORCH_CUDA_ALLOC_CONF={old} and PYTORCH_ALLOC_CONF={new} differ: one of them is not applied",
                f"export PYTORCH_CUDA_ALLOC_CONF={new}",
            )
        yield from self._interfaces(facts)

    def _interfaces(self, facts: Situation) -> Iterator[Finding]:
        ranks = max(facts.config.distributed.num_gpus, integer(facts.platform.environment.get("WORLD_SIZE")))
        report = self.error if ranks > 1 else self.warning
        available = facts.platform.interfaces
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            for wanted in facts.platform.environment.get(name, "").split(","):
                # NCCL matches prefixes, '=' asks for the exact name, '^' excludes.
                exact = wanted.removeprefix("=")
                known = any(item == exact or (item.startswith(exact) and exact == wanted) for item in available)
                if exact and not wanted.startswith("^") and not known:
                    problem = f"{name}: interface {exact} not found; available: {', '.join(available)}"
                    yield report("", problem, f"unset {name}")


class TorchIsSafe(Rule[Situation]):
    """Older versions of torch execute code from checkpoints even where they promise not to."""

    code = "CFG-54"
    title = "torch is at least 2.10"

    def check(self, facts: Situation) -> Iterator[Finding]:
        """Yield an error below 2.6, a warning below 2.10."""
        version = facts.platform.version("torch")
        if version is None or version >= (2, 10):
            return
        shown = facts.platform.versions["torch"]
        fix = "pip install 'torch>=2.10'"
        if version < (2, 6):
            yield self.error("", f"torch {shown}: loading a checkpoint may run its code (CVE-2025-32434)", fix)
        else:
            yield self.warning("", f"torch {shown}: weights_only can be circumvented (CVE-2026-24747)", fix)


class PresetFitsTheMachine(Rule[Situation]):
    """A preset for one machine, used on another."""

    code = "CFG-55"
    title = "The preset belongs to this kind of machine"

    def check(self, facts: Situation) -> Iterator[Finding]:
        """Yield a warning where a GPU preset meets a machine without a GPU, or the wrong architecture."""
        lacking, other = _lacking(facts)
        if lacking:  # the key alone would leave what the preset has set
            problem = f"preset {facts.config.preset} is for {lacking}"
            yield self.warning("preset", problem, f"{KEPT}; to train here: xectool config init --preset {other}")


def _lacking(facts: Situation) -> tuple[str, str]:
    """Return what the preset wants and this machine is not, and the preset to take here; empty where it fits."""
    preset, platform = facts.config.preset, facts.platform
    if preset in ("a100", "gh200") and platform.num_gpus == 0:
        return "a GPU and this machine shows none", "cpu"
    if preset == "gh200" and not platform.is_arm:
        return f"ARM and this machine is {platform.machine}", "a100"
    return "", ""


def sparing_the_preset(found: Report, facts: Situation) -> Report:
    """Return what is found of this machine; a file made for another one is not told to fit this one.

    What this machine has too little of is a matter of one call here, and would spoil the file for its own machine.
    """
    if not _lacking(facts)[0]:
        return found
    return Report(tuple(_for_here(item) if item.code in _OF_SIZE else item for item in found))


def _for_here(found: Finding) -> Finding:
    key, colon, value = found.fix.partition(": ")
    fix = f"{KEPT}; to train here: --set {in_shell(f'{key}={value}')}" if colon and "." in key else found.fix
    return replace(found, problem=f"on this machine, which the preset is not for: {found.problem}", fix=fix)


PLATFORM_RULES: tuple[Rule[Situation], ...] = (
    CompileOnArm(),
    WorkersFitTheCores(),
    WorkersOnGraceHopper(),
    TrackerSurvives(),
    EnvironmentMeansWhatItSays(),
    TorchIsSafe(),
    PresetFitsTheMachine(),
)


def integer(text: str | None) -> int:
    """Return the number an environment variable holds, 0 where it holds none."""
    return int(text) if text and text.isdigit() else 0
