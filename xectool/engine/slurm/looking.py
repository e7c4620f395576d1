"""Everything that speaks against a job, before it waits: all at once, also what stands behind the first faults."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from xectool.config.document import SET
from xectool.config.load import LoadedConfig, read_config
from xectool.config.overrides import naming
from xectool.config.platform import NODE_MEMORY, Platform
from xectool.config.root import RunConfig
from xectool.config.rules.capacity import CAPACITY_RULES
from xectool.config.rules.path import path_rules
from xectool.config.rules.platform import Situation
from xectool.config.serialize import inline_yaml
from xectool.engine.launching import ranks_wanted
from xectool.engine.mending import Mend, all_mends, mend_of
from xectool.engine.slurm.script import JobRequest, option_of
from xectool.errors import MisnamedCheckpoint, UsageError, UserError, XecError, counted, in_shell, run_names
from xectool.findings import Finding, Report, Severity
from xectool.rootio.counting import count_run_events
from xectool.rules import run_rules
from xectool.training.record.run_dir import RunPlace, choose_place
from xectool.training.saving.late_exclusion import in_saved_order
from xectool.training.saving.resolved import adopt_resolved
from xectool.training.saving.resume import require_resumable

_UNLIMITED: Final = 1 << 60
_ROUNDS: Final = 4
_TYPED: Final = re.compile(rf"{SET} \((.+)\)")
_NO_SLURM: Final = "XT-SUBMIT-SLURM"
_REHEARSED: Final = "--dry-run   # shows the script, without SLURM, once all else is mended"
_LATER: Final = "seen once what can be mended of the others is"
_FIELDS: Final = {
    option_of(name): (name, kind)
    for name, kind in {
        "partition": str, "time": str, "mem": str, "account": str, "exclude": str, "nodelist": str,
        "gpus": int, "nodes": int, "cpus_per_gpu": int, "max_requeues": int, "signal_before_s": int,
    }.items()
}  # fmt: skip
_OPTIONS: Final = frozenset({*_FIELDS, "--resume", "--run-name"})


@dataclass(frozen=True)
class Wish:
    """A job as it was asked for.

    Attributes:
        config: YAML file.
        request: What is asked of SLURM.
        overrides: ``key=value`` settings, without the name of the run.
        resume: What it goes on from.
        run_name: Name of the run.
        dry_run: Whether it is only shown.
    """

    config: str | Path
    request: JobRequest
    overrides: tuple[str, ...] = ()
    resume: str | None = None
    run_name: str | None = None
    dry_run: bool = False

    def mended(self, mend: Mend) -> Wish:
        """Return the wish with changes; a number that is none stays as it was."""
        changed = {_FIELDS[name][0]: _FIELDS[name][1](value) for name, value in mend.options.items() if name in _FIELDS}
        return replace(
            self,
            request=replace(self.request, **changed),
            overrides=mend.overrides(self.overrides),
            resume=mend.options.get("--resume", self.resume),
            run_name=mend.options.get("--run-name", self.run_name),
        )

    def resolved(self) -> Wish:
        """Return the wish with its number of GPUs; a configuration that cannot be read asks for one."""
        if self.request.gpus is not None:
            return self
        try:
            gpus = ranks_wanted(self.config, self.overrides)
        except XecError:  # it is told where the configuration is read
            gpus = 1
        return replace(self, request=replace(self.request, gpus=gpus))

    def line(self, *more: str) -> str:
        """Return the command that asks for this."""
        usual = JobRequest(None, None, gpus=None)
        words = ["xectool submit", in_shell(self.config)]
        for option, (name, _) in _FIELDS.items():
            value = getattr(self.request, name)
            words += [] if value == getattr(usual, name) else [f"{option} {in_shell(value)}"]
        words += ["--requeue"] if self.request.requeue else []
        words += [] if self.resume is None else [f"--resume {in_shell(self.resume)}"]
        words += [] if self.run_name is None else [f"--run-name {in_shell(self.run_name)}"]
        return " ".join([*words, *(f"--set {in_shell(text)}" for text in self.overrides), *more])


@dataclass(frozen=True)
class Prepared:
    """A job that nothing speaks against.

    Attributes:
        request: What is asked of SLURM, its number of GPUs among it.
        loaded: Its configuration.
        place: Where it runs.
        name: Name of the run.
        folder: Where script, pickled job and output go.
    """

    request: JobRequest
    loaded: LoadedConfig
    place: RunPlace
    name: str
    folder: Path


class RefusedJob(UsageError):
    """Several faults of a job at once.

    Attributes:
        findings: One each.
        mends: What can be changed on the command line.
        left: Those that cannot be mended there.
    """

    def __init__(self, findings: Sequence[Finding], mends: Mend, left: Sequence[Finding]) -> None:
        listed = "; ".join(f"{found.where}: {found.problem}" for found in findings)
        super().__init__(f"{counted(len(findings), 'error')}: {listed}", where=findings[0].where, code=findings[0].code)
        self.findings, self.mends, self.left = tuple(findings), mends, tuple(left)
        self.fix = "\n".join(dict.fromkeys(found.fix for found in findings if found.fix))

    def with_line(self, argv: Sequence[str]) -> RefusedJob:
        """Return this with a last finding: the command line with all that can be mended there, and what is left."""
        mended = len(self.findings) - len(self.left)
        if not mended:
            return self
        left = ", ".join(dict.fromkeys(f"{found.code} ({found.where})" for found in self.left))
        said = f"{mended} of {counted(len(self.findings), 'error')} can be mended on the command line"
        said = f"{said}; what remains: {left}" if left else "all of it can be mended on the command line"
        told = Finding("XT-SUBMIT-LINE", Severity.INFO, said, "command line", fix=self.mends.on(argv))
        found = RefusedJob(self.findings, self.mends, self.left)
        found.findings = (*self.findings, told)
        return found


def prepared(wish: Wish) -> Prepared:
    """Return a job that can be submitted.

    Raises:
        XecError: What speaks against it; ``RefusedJob`` where that is more than one thing.
    """
    found, errors = _look(wish)
    if found is not None and not errors:
        return found
    told, mends, now = list[Finding](), Mend(), errors
    for _ in range(_ROUNDS):
        new = [item for error in now for item in _findings(error) if not any(_same(item, known) for known in told)]
        told += [replace(item, evidence=(*item.evidence, _LATER)) for item in new] if told else new
        more = mends.joined(all_mends(map(_mend, new)))
        if more == mends:
            break
        mends = more
        found, now = _look(wish.mended(mends))
        if not now:
            break
    if len(told) == 1:
        raise errors[0]
    still = [item for error in now for item in _findings(error)]
    left = [item for item in told if _mend(item) is None or any(_same(item, now) for now in still)]
    whole = all(item.code == _NO_SLURM for item in left)  # else the line would be refused again, for what is left
    fix = f"{wish.mended(mends).line('--dry-run')}   # shows the script" if whole else _REHEARSED
    raise RefusedJob([replace(item, fix=fix) if item.code == _NO_SLURM else item for item in told], mends, left)


def _mend(item: Finding) -> Mend | None:
    """Return what the fix of a finding changes; a key that is none is said by its place."""
    wrong = _TYPED.fullmatch(item.where) if item.code == "CFG-01" else None
    return mend_of(item.fix, _OPTIONS, wrong[1] if wrong else "")


def _same(one: Finding, other: Finding) -> bool:
    return (one.code, one.where) == (other.code, other.where)


def _findings(error: XecError) -> list[Finding]:
    carried: Sequence[Finding] = getattr(error, "findings", ())
    single = Finding(error.code, Severity.ERROR, error.problem, where=error.where, fix=error.fix)
    return [found for found in carried if found.severity is Severity.ERROR] or [single]


def _look(wish: Wish) -> tuple[Prepared | None, list[XecError]]:
    """Return the job and what speaks against it; None where it cannot be looked at to its end."""
    errors: list[XecError] = [*wish.request.faults(), *_without_slurm(wish)]
    sound = replace(wish, request=wish.request.sound()).resolved()
    try:
        loaded = _read(sound)
    except UserError as error:
        return None, [*errors, error]
    is_refused = bool(loaded.findings.errors)
    try:
        loaded = loaded.require(_later_rules(loaded.config, sound))
    except UserError as error:
        errors.append(error)
    if is_refused:  # with the defaults of refused keys it would fit no checkpoint
        return None, errors
    try:
        place = _place(loaded.config, sound, errors)
        name = _run_name(wish.config, loaded.config, place)
        return Prepared(sound.request, loaded, place, name, _folder(loaded.config, name)), errors
    except UserError as error:
        return None, [*errors, error]


def _read(wish: Wish) -> LoadedConfig:
    """Return the configuration, read for the node that is asked for instead of this machine."""
    named = [] if wish.run_name is None else [naming(wish.run_name)]
    ranks = [f"distributed.num_gpus={wish.request.ranks_per_node}"]
    return read_config(wish.config, [*wish.overrides, *named, *ranks], _node(wish.request))


def _later_rules(config: RunConfig, wish: Wish) -> Report:
    """Return what files and memory of a node say of a configuration."""
    request, node = wish.request, _node(wish.request)
    share = f"{NODE_MEMORY} {request.mem}, of {request.ranks_per_node} on a node: the share of one rank"
    per_rank = replace(node, memory_bytes=node.memory_bytes // request.ranks_per_node, memory_limit=share)
    capacity = run_rules(CAPACITY_RULES, Situation(config, per_rank, count_run_events(config.data))).report
    return path_rules(config, resuming=wish.resume is not None).merged(capacity)


def _node(request: JobRequest) -> Platform:
    """Return what is known of a node: what was asked for, and the software of this machine."""
    memory = request.memory_mib
    return replace(
        Platform.detect(),
        cores=request.cpus_per_gpu * request.ranks_per_node,
        memory_bytes=_UNLIMITED if memory is None else memory << 20,
        num_gpus=request.gpus or 0,
    )


def _place(config: RunConfig, wish: Wish, errors: Sequence[XecError]) -> RunPlace:
    """Return where a run goes on, from a checkpoint that it can go on from: the job would be refused after the queue.

    Raises:
        XecError: It cannot.
    """
    if wish.resume is None and any(item.code == "CFG-45" for error in errors for item in _findings(error)):
        start = config.checkpoint.model_copy(update={"resume_from": None})  # it is told already
        config = config.model_copy(update={"checkpoint": start})
    try:
        place = choose_place(config, wish.resume)
    except MisnamedCheckpoint as error:
        error.fix = f"--resume {error.fix}" if error.meant else error.fix
        raise
    if place.checkpoint is not None and place.checkpoint_path is not None:
        ranks = wish.request.nodes * wish.request.ranks_per_node
        settings, _ = in_saved_order(adopt_resolved(config, place.checkpoint), place.checkpoint)
        require_resumable(settings, place.checkpoint, None, place.checkpoint_path, ranks)
    return place


def _without_slurm(wish: Wish) -> Iterator[UsageError]:
    if not wish.dry_run and not shutil.which("sbatch"):
        yield UsageError(
            "there is no sbatch on this machine, so nothing can be submitted",
            where="PATH",
            fix=f"{wish.line('--dry-run')}   # shows the script",
            code=_NO_SLURM,
        )


def _folder(settings: RunConfig, name: str) -> Path:
    """Return where script, pickled job and output of a job go.

    Raises:
        UsageError: SLURM would write them somewhere else.
    """
    folder = Path(settings.checkpoint.save_dir).expanduser().absolute() / "slurm" / name
    if set("%\\") & set(str(folder)) or not str(folder).isprintable():
        place = str(folder.parents[1])  # may be the working directory, where another relative path changes nothing
        sound = "".join(char if char.isprintable() and char not in "%\\" else "_" for char in place)
        raise UsageError(
            "SLURM reads a % or \\ in the name of an output file as a sign of its own, and takes no line end in it",
            where=f"checkpoint.save_dir: {place!r}",
            fix=f"--set {in_shell(f'checkpoint.save_dir={inline_yaml(sound)}')}",
            code="XT-SUBMIT-REQUEST",
        )
    return folder


def _run_name(config: str | Path, settings: RunConfig, place: RunPlace) -> str:
    """Return the name of the run, under which a requeued job finds it again."""
    new = run_names.run_name(Path(config).stem, time.strftime("-%Y%m%d-%H%M%S"))
    return settings.mlflow.run_name or (place.directory.name if place.checkpoint is not None else new)
