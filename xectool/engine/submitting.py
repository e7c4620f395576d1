"""``submit``: a training as a SLURM job, checked before it waits in the queue."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from submitit.core.utils import FailedJobError, FailedSubmissionError

from xectool.config.file_systems import is_network
from xectool.config.platform import Platform
from xectool.config.root import RunConfig
from xectool.engine.slurm.job import TrainingJob
from xectool.engine.slurm.looking import Wish, prepared
from xectool.engine.slurm.script import JobRequest, executor
from xectool.engine.training_run.first_look import file_findings
from xectool.errors import WorldError, counted
from xectool.findings import Finding, Severity
from xectool.training.record.run_dir import RunPlace
from xectool.training.saving.nothing_left import nothing_left
from xectool.training.saving.step_size import step_size_change


@dataclass(frozen=True)
class Submission:
    """A job that was submitted, or would be.

    Attributes:
        job_id: Its number in the queue; None for a rehearsal.
        run_name: Name of the run.
        folder: Where script, pickled job and output are.
        script: The batch script.
        command: What each task runs.
        ranks: Ranks of all nodes.
        max_requeues: How often it is queued again at most.
        findings: Warnings and notes on the configuration.
    """

    job_id: str | None
    run_name: str
    folder: str
    script: str
    command: str
    ranks: int
    max_requeues: int
    findings: tuple[Finding, ...] = ()


def submit(
    config: str | Path,
    request: JobRequest,
    *,
    overrides: Sequence[str] = (),
    resume: str | None = None,
    run_name: str | None = None,
    dry_run: bool = False,
) -> Submission:
    """Check a training and submit it as a SLURM job.

    Args:
        config: YAML file; read again when the job starts.
        request: What is asked of SLURM.
        overrides: ``key=value`` settings that go before the file's.
        resume: ``auto``, a checkpoint or a run; a job that was queued again always goes on by itself.
        run_name: Name of the run; by default the configuration's, that of the run it goes on with, or the name of its
            file and the time.
        dry_run: Look at some events as well, and return the script without submitting it. What would stop the training
            at its first batch is an error among the findings.

    Raises:
        XecError: Anything the user can act on.
    """
    found = prepared(Wish(config, request, tuple(overrides), resume, run_name, dry_run))
    request, name, folder, loaded, place = found.request, found.name, found.folder, found.loaded, found.place
    job = training_job(config, request, overrides, resume=resume, run_name=name)
    queue = executor(request, folder, name)
    submission = Submission(
        job_id=None,
        run_name=name,
        folder=str(folder),
        script=queue.script(),
        command=shlex.join(job.command()),
        ranks=request.nodes * request.ranks_per_node,
        max_requeues=job.max_requeues,
        findings=(*loaded.findings, *_concerns(loaded.config, place, request)),
    )
    if dry_run:
        seen = file_findings(loaded, place, submission.ranks)
        return replace(submission, findings=(*submission.findings, *seen))
    try:
        return replace(submission, job_id=str(queue.submit(job).job_id))
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise WorldError(
            f"SLURM refused the job: {str(error).strip().splitlines()[-1]}",
            where=f"sbatch, partition {request.partition}",
            fix="sinfo --summarize   # partitions and limits; sacctmgr show associations user=$USER   # accounts",
            code="XT-SUBMIT-REFUSED",
        ) from error


def training_job(
    config: str | Path,
    request: JobRequest,
    overrides: Sequence[str] = (),
    *,
    resume: str | None = None,
    run_name: str,
) -> TrainingJob:
    """Return what each task of a job runs."""
    arguments = ["--run-name", run_name, *(word for setting in overrides for word in ("--set", setting))]
    if not request.task_is_rank:
        arguments += ["--nproc", str(request.ranks_per_node)]
    return TrainingJob(
        config=str(Path(config).absolute()),
        arguments=tuple(arguments),
        resume=resume,
        task_is_rank=request.task_is_rank,
        max_requeues=request.max_requeues if request.requeue else 0,
    )


def _continued(config: RunConfig, place: RunPlace, request: JobRequest) -> Iterator[Finding]:
    """Yield a warning where a run that goes on has nothing left to train, or takes its steps with other batches.

    Another accumulation is refused in mid-epoch, and was asked for where it is not.
    """
    checkpoint = place.checkpoint
    if checkpoint is None:
        return
    epochs, done = config.training.epochs, int(checkpoint.meta["epoch"]) - 1
    if done >= epochs and not config.checkpoint.reset_epoch:
        yield Finding(
            "XT-SUBMIT-DONE",
            Severity.WARNING,
            f"nothing is left to train: {place.checkpoint_path} has done {counted(done, 'epoch')}, {epochs} are asked",
            where="--resume",
            fix=f"--set training.epochs={2 * done}   # goes on from its weights",
        )
        return
    if nothing_left(config, checkpoint) and not config.checkpoint.reset_epoch:  # it stopped early
        return
    if change := step_size_change(config, checkpoint, request.nodes * request.ranks_per_node):
        where, fix = "data.batch_size", change.fix_before()
        yield Finding("XT-SUBMIT-BATCH", Severity.WARNING, change.problem, where=where, fix=fix)


def _concerns(config: RunConfig, place: RunPlace, request: JobRequest) -> Iterator[Finding]:
    yield from _idle_gpus(config, request)
    yield from _continued(config, place, request)
    yield from _tracker_findings(config)


def _idle_gpus(config: RunConfig, request: JobRequest) -> Iterator[Finding]:
    """Yield a warning where a job would wait for GPUs that its training leaves alone."""
    if request.gpus and config.training.device == "cpu":
        yield Finding(
            "XT-SUBMIT-IDLE",
            Severity.WARNING,
            f"the job asks for {request.gpus * request.nodes} GPUs, and the training uses none (training.device: cpu)",
            where="--gpus",
            fix="--set training.device=auto   # or --gpus 0",
        )


def _tracker_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield a warning where the tracker's own database would lie on a network file system."""
    directory = str(Path(config.checkpoint.save_dir).expanduser().absolute())
    file_system = Platform.detect().file_system(directory)
    if config.mlflow.enabled and not config.mlflow.tracking_uri and is_network(file_system):
        yield Finding(
            "XT-SUBMIT-TRACKER",
            Severity.WARNING,
            f"the tracking database would lie on {file_system}, where sqlite locks are unreliable; it cannot lie on "
            "the node, whose disk is emptied. The run record is safe, and can be mirrored afterwards",
            where=directory,
            fix="--set mlflow.enabled=false   # or a server: --set mlflow.tracking_uri=http://HOST:5000",
        )
