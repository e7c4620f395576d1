"""Rules that look at local files: inputs, overlap, starting checkpoint, run directory, free space."""

from __future__ import annotations

import glob
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from xectool.config.root import RunConfig
from xectool.config.rules.run import of_export
from xectool.config.serialize import inline_yaml
from xectool.errors import in_shell, nearest
from xectool.errors.unreadable import ARCHIVE_ERRORS
from xectool.findings import Finding, Report
from xectool.rules import Rule, run_rules

_CHECKPOINTS = (".pt", ".pth", ".safetensors")
_SHOWN = 4


@dataclass(frozen=True)
class Start:
    """A run about to start.

    Attributes:
        config: Its configuration.
        resuming: Whether the run directory is continued on purpose (``--resume``).
    """

    config: RunConfig
    resuming: bool = False


class TrainingAndValidationDiffer(Rule[Start]):
    """A network validated on the events it has seen always looks good."""

    code = "CFG-37"
    title = "No file is used for both training and validation"

    def check(self, facts: Start) -> Iterator[Finding]:
        """Yield an error for a shared file; a warning where data.allow_overlap permits it."""
        data = facts.config.data
        train, val = local_files(data.train_path), local_files(data.val_path)
        shared = sorted(set(train) & set(val))
        if not shared:
            return
        rest = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        problem = f"data.train_path and data.val_path overlap: {shared[0]}{rest} is in both"
        if data.allow_overlap:
            yield self.warning("data.allow_overlap", f"{problem}; data.allow_overlap permits it", "")
        else:
            yield self.error(
                "data.val_path", problem, "data.allow_overlap: true  # for a smoke test; better, other validation files"
            )


class InputsExist(Rule[Start]):
    """Every input is a readable ROOT file."""

    code = "CFG-38"
    title = "data.train_path and data.val_path match readable ROOT files"

    def check(self, facts: Start) -> Iterator[Finding]:
        """Yield an error for each path that matches nothing, is not readable or is no ROOT file."""
        for name in ("train_path", "val_path"):
            key = f"data.{name}"
            specs = _specs(getattr(facts.config.data, name))
            if not specs:
                yield self.error(key, f"{key} is empty: no files match", f"--set {key}=PATH")
            for spec in specs:
                if not is_remote(spec):
                    yield from self._local(key, spec)

    def _local(self, key: str, spec: str) -> Iterator[Finding]:
        files = local_files(spec)
        present = [path for path in files if os.path.exists(path)]
        if not present:
            yield self._missing(key, spec)
        for path in present:
            if not path.endswith(".root"):
                yield self.error(key, f"{key}: {path} is not a .root file", "give .root files, or a list as @files.txt")
            elif not os.access(path, os.R_OK):
                yield self.error(key, f"{key}: {path} is not readable", f"chmod +r {in_shell(path)}")

    def _missing(self, key: str, spec: str) -> Finding:
        listed = "@" if spec.startswith("@") else ""
        wanted = Path(_without_tree(os.path.expanduser(spec)).removeprefix("@"))
        meant = _nearest_beside(wanted, _is_list if listed else _holds_root_files)
        place = "" if wanted.is_absolute() else " (a relative path begins in the working directory)"
        hint = f", did you mean '{meant.name}'?" if meant else place
        fix = f"{key}: {inline_yaml(f'{listed}{meant}')}" if meant else f"--set {key}=PATH"
        return self.error(key, f"no files match {key}: {spec}{hint}", fix)


class StartingCheckpointExists(Rule[Start]):
    """resume_from and init_from name a checkpoint that can be trained from."""

    code = "CFG-45"
    title = "The checkpoint to start from exists and is no TorchScript"

    def check(self, facts: Start) -> Iterator[Finding]:
        """Yield an error for a missing file and for a scripted model."""
        for name in ("resume_from", "init_from"):
            spec = getattr(facts.config.checkpoint, name)
            if spec is None or spec == "auto" or (name == "init_from" and facts.resuming):  # nothing is read from it
                continue
            key, path = f"checkpoint.{name}", Path(spec).expanduser()
            if not path.exists():
                yield self._missing(key, spec, path)
            elif is_torchscript(path):
                yield self.error(key, *of_export(key, spec, "a TorchScript export"))

    def _missing(self, key: str, spec: str, path: Path) -> Finding:
        meant = _nearest_beside(path)
        hint = f", did you mean '{meant.name}'?" if meant else ""
        there = [meant] if meant else _checkpoints_beside(path)
        more = f"   # or {', '.join(map(str, there[1:_SHOWN]))}" if there[1:] else ""
        fix = f"{key}: {inline_yaml(str(there[0]) if there else None)}{more}"
        return self.error(key, f"{key}: no such checkpoint {spec}{hint}", fix)


class RunDirectoryIsFree(Rule[Start]):
    """A second run in the same directory would overwrite the checkpoints of the first."""

    code = "CFG-53"
    title = "The run directory is new, continued on purpose, or overwritten on purpose"

    def check(self, facts: Start) -> Iterator[Finding]:
        """Yield an error for a directory that holds a run."""
        checkpoint, run_name = facts.config.checkpoint, facts.config.mlflow.run_name
        if run_name is None or checkpoint.overwrite or checkpoint.resume_from or facts.resuming:
            return
        directory = Path(checkpoint.save_dir).expanduser() / run_name
        if directory.is_dir() and any(directory.iterdir()):
            yield self.error(
                "mlflow.run_name",
                f"run directory {directory} exists already",
                "--resume auto to continue it, another --run-name, or checkpoint.overwrite: true",
            )


OVERLAP_RULES: tuple[Rule[Start], ...] = (TrainingAndValidationDiffer(),)
PATH_RULES: tuple[Rule[Start], ...] = (
    InputsExist(),
    TrainingAndValidationDiffer(),
    StartingCheckpointExists(),
    RunDirectoryIsFree(),
)


def path_rules(config: RunConfig, *, resuming: bool = False) -> Report:
    """Return what is wrong with the local paths of a run about to start; remote urls are not opened."""
    return run_rules(PATH_RULES, Start(config, resuming)).report


def overlap_rules(config: RunConfig) -> Report:
    """Return whether training and validation share a file, as far as the paths tell."""
    return run_rules(OVERLAP_RULES, Start(config)).report


def is_remote(spec: str) -> bool:
    """Return whether a path is a url such as ``root://host//file.root``."""
    return "://" in spec


def local_files(paths: str | tuple[str, ...]) -> list[str]:
    """Return the real local files that paths stand for; a path that matches nothing stands for itself."""
    return [os.path.realpath(path) for spec in _specs(paths) if not is_remote(spec) for path in _expanded(spec)]


def is_torchscript(path: Path) -> bool:
    """Return whether a file is a TorchScript archive: it carries code beside its tensors."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name or name.endswith("/constants.pkl") for name in archive.namelist())
    except ARCHIVE_ERRORS:  # the reader of checkpoints says what is wrong with it
        return False


def _nearest_beside(path: Path, fits: Callable[[Path], bool] = Path.exists) -> Path | None:
    """Return the file in the same directory that fits and whose name comes nearest to one that does not exist."""
    names = os.listdir(path.parent) if path.parent.is_dir() else []
    found = [path.with_name(name) for name in nearest(path.name, names)]
    return next(filter(fits, found), None)


def _holds_root_files(path: Path) -> bool:
    return path.suffix == ".root" or (path.is_dir() and next(path.glob("*.root"), None) is not None)


def _is_list(path: Path) -> bool:
    return path.is_file() and path.suffix != ".root"


def _checkpoints_beside(path: Path) -> list[Path]:
    """Return the checkpoints in the same directory, those of a run first."""
    names = os.listdir(path.parent) if path.parent.is_dir() else []
    found = sorted(name for name in names if name.endswith(_CHECKPOINTS))
    return [path.with_name(name) for name in sorted(found, key=lambda name: not name.startswith("checkpoint_"))]


def _specs(paths: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(spec for spec in ((paths,) if isinstance(paths, str) else paths) if spec)


def _expanded(spec: str) -> list[str]:
    path = os.path.expanduser(spec)
    if path.startswith("@"):
        return _listed(Path(path[1:]))
    path = _without_tree(path)
    if os.path.isdir(path):
        return sorted(glob.glob(os.path.join(glob.escape(path), "*.root"))) or [path]
    return (sorted(glob.glob(path)) or [path]) if glob.has_magic(path) else [path]


def _listed(path: Path) -> list[str]:
    if not path.is_file():
        return [str(path)]
    lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    inner = [line for line in lines if line and not line.startswith("#") and not is_remote(line)]
    return [found for line in inner for found in _expanded(line.lstrip("@"))]


def _without_tree(path: str) -> str:
    # `file.root:tree` names a tree inside the file.
    head, colon, tree = path.rpartition(":")
    return head if colon and head.endswith(".root") and "/" not in tree else path
