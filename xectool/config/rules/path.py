"""Rules that look at local files: inputs, overlap, starting checkpoint, run directory, free space."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from xectool.config.checkpoints_near import alternatives, checkpoints_near, hint_of, own_directory, resumable
from xectool.config.inputs import expand_inputs, place_of, split_tree
from xectool.config.inputs_near import nearest_beside
from xectool.config.root import RunConfig
from xectool.config.rules.missing_inputs import InputsExist, specs_of
from xectool.config.rules.run import of_export
from xectool.config.rules.start import Start
from xectool.config.serialize import inline_yaml
from xectool.errors import DataFileError
from xectool.errors.unreadable import ARCHIVE_ERRORS
from xectool.findings import Finding, Report, Severity
from xectool.rules import Rule, run_rules


class TrainingAndValidationDiffer(Rule[Start]):
    """A network validated on the events it has seen always looks good."""

    code = "CFG-37"
    title = "No file is used for both training and validation"

    def check(self, facts: Start) -> Iterator[Finding]:
        """Yield an error for a shared file; a warning where data.allow_overlap permits it."""
        data = facts.config.data
        train = {place_of(*split_tree(path, data.tree_name)) for path in _found(data.train_path)}
        shared = [path for path in _found(data.val_path) if place_of(*split_tree(path, data.tree_name)) in train]
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
            if not os.path.exists(path):  # Path.exists raises where a directory may not be read
                frozen = name == "init_from" and getattr(facts.config.model, "freeze_encoder", False)
                yield self._missing(facts.config, key, spec, path, frozen=frozen)
            elif is_torchscript(path):
                yield self.error(key, *of_export(key, spec, "a TorchScript export"))

    def _missing(self, config: RunConfig, key: str, spec: str, path: Path, *, frozen: bool) -> Finding:
        runs = Path(config.checkpoint.save_dir).expanduser()
        fits = resumable(config) if key.endswith("resume_from") else os.path.isfile
        there = checkpoints_near(path, also=[runs], fits=lambda other: fits(other) and not is_torchscript(other))
        more = alternatives(there) if there else "   # starts from new weights"
        fix = f"{key}: {inline_yaml(str(there[0]) if there else None)}{more}"
        if frozen and not there:  # new weights would stay as they are drawn
            fix = f"xectool explain {self.code}   # a frozen encoder learns nothing: --set {key}=PATH, as it is now"
        return self.error(key, f"{key}: no such checkpoint {spec}{hint_of(path, there)}", fix)


class SensorPositionsExist(Rule[Start]):
    """Heads that attend over sensors are built from a table of positions, long after the events were opened."""

    code = "CFG-66"
    title = "The file of sensor positions exists"

    def check(self, facts: Start) -> Iterator[Finding]:
        """Yield an error for a file that is missing or not readable; what is in it, the network looks at."""
        spec = getattr(facts.config.model, "sensor_positions_file", None)
        if spec is None or getattr(facts.config.model, "head_type", "") != "cross_attention":
            return
        key, path = "model.sensor_positions_file", Path(spec).expanduser()
        is_there = os.path.isfile(path)
        if is_there and os.access(path, os.R_OK):
            return
        meant = nearest_beside(path, lambda other: os.path.isfile(other) and other.suffix == path.suffix)
        hint = f", did you mean '{meant.name}'?" if meant else ""
        problem = f"{key}: {'not readable: ' if is_there else 'no such file '}{spec}{hint}"
        other = inline_yaml(str(meant) if meant else None)
        yield self.error(key, problem, f"{key}: {other}{'' if meant else '   # the positions of the ideal detector'}")


class RunDirectoryIsFree(Rule[Start]):
    """A second run in the same directory would overwrite the checkpoints of the first."""

    code = "CFG-53"
    title = "The run directory is new, continued on purpose, or overwritten on purpose"

    def check(self, facts: Start) -> Iterator[Finding]:
        """Yield an error for a directory that holds a run."""
        checkpoint, directory = facts.config.checkpoint, own_directory(facts.config)
        if directory is None or checkpoint.overwrite or checkpoint.resume_from or facts.resuming:
            return
        held: list[str] = []
        with suppress(OSError):  # it is not there, or may not be listed, which is told where it is to be written
            held = os.listdir(directory)
        if held:
            yield self.error(
                "mlflow.run_name",
                f"run directory {directory} exists already",
                "--resume auto   # continues it; or another --run-name, or --set checkpoint.overwrite=true",
            )


OVERLAP_RULES: tuple[Rule[Start], ...] = (TrainingAndValidationDiffer(),)
PATH_RULES: tuple[Rule[Start], ...] = (
    InputsExist(),
    TrainingAndValidationDiffer(),
    StartingCheckpointExists(),
    SensorPositionsExist(),
    RunDirectoryIsFree(),
)


def path_rules(config: RunConfig, *, resuming: bool = False) -> Report:
    """Return what is wrong with the local paths of a run about to start; remote urls are not opened."""
    return run_rules(PATH_RULES, Start(config, resuming)).report


def network_rules(config: RunConfig) -> Report:
    """Return what is wrong with the local files that a network is built from."""
    return run_rules((SensorPositionsExist(),), Start(config)).report


def validation_rules(config: RunConfig) -> Report:
    """Return what is wrong with the paths of the validation files alone."""
    found = run_rules((InputsExist(),), Start(config)).report
    return Report(tuple(item for item in found if item.where == "data.val_path"))


def named_file_rules(config: RunConfig) -> Report:
    """Return warnings of the checkpoints and the table that are named and not there: they may come before the run."""
    found = run_rules((StartingCheckpointExists(), SensorPositionsExist()), Start(config)).report
    return Report(tuple(replace(item, severity=Severity.WARNING) for item in found))


def overlap_rules(config: RunConfig) -> Report:
    """Return whether training and validation share a file, as far as the paths tell."""
    return run_rules(OVERLAP_RULES, Start(config)).report


def is_torchscript(path: Path) -> bool:
    """Return whether a file is a TorchScript archive: it carries code beside its tensors."""
    if not os.path.isfile(path) or not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name or name.endswith("/constants.pkl") for name in archive.namelist())
    except ARCHIVE_ERRORS:  # the reader of checkpoints says what is wrong with it
        return False


def _found(paths: str | tuple[str, ...]) -> list[str]:
    """Return the files and urls that paths stand for; what stands for none stands for itself."""
    found = list[str]()
    for spec in specs_of(paths):
        try:
            found += expand_inputs(spec)
        except DataFileError:
            found.append(spec)
    return list(dict.fromkeys(found))
