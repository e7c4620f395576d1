"""``xectool submit``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from xectool.cli.options import JsonOption, SetOption, config_word
from xectool.cli.render import AlreadyShown, Output
from xectool.errors import EXIT_BAD_RESULT, counted
from xectool.findings import Severity


def submit(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="YAML configuration; see: xectool config init")],
    partition: Annotated[
        str | None, typer.Option(help="Partition, always needed; sinfo --summarize lists them.")
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="HH:MM:SS", help="Time limit, always needed; or D-HH:MM:SS.")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(help="GPUs of each node, one rank each; 0: one rank on the CPU; default: distributed.num_gpus."),
    ] = None,
    nodes: Annotated[int, typer.Option(help="Number of machines.")] = 1,
    cpus_per_gpu: Annotated[int, typer.Option(help="Cores of each rank.")] = 8,
    mem: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of each node, 120G; default: the partition's.")
    ] = None,
    account: Annotated[str | None, typer.Option(help="Account that pays.")] = None,
    exclude: Annotated[str | None, typer.Option(metavar="NODES", help="Nodes not to use.")] = None,
    nodelist: Annotated[str | None, typer.Option(metavar="NODES", help="Nodes to use.")] = None,
    requeue: Annotated[
        bool, typer.Option("--requeue", help="At the time limit: save, queue again, go on. Never after a failure.")
    ] = False,
    max_requeues: Annotated[int, typer.Option(help="How often to queue again at most.")] = 10,
    signal_before: Annotated[int, typer.Option(metavar="SECONDS", help="Time kept for saving before the limit.")] = 180,
    resume: Annotated[
        str | None, typer.Option(metavar="auto|PATH", help="As for xectool train; after a requeue it is auto.")
    ] = None,
    run_name: Annotated[str | None, typer.Option(help="Name of the run, of its directory and of the job.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check everything, look at the first events, print the batch script; needs no SLURM."
        ),
    ] = False,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Submit a training to SLURM, checked before it waits in the queue."""
    if partition and time:  # else all that is missing is told together
        config_word(config)
    from xectool import engine

    request = engine.JobRequest(
        partition=partition,
        time=time,
        gpus=gpus,
        nodes=nodes,
        cpus_per_gpu=cpus_per_gpu,
        mem=mem,
        account=account,
        exclude=exclude,
        nodelist=nodelist,
        requeue=requeue,
        max_requeues=max_requeues,
        signal_before_s=signal_before,
    )
    found = engine.submit(config, request, overrides=set_ or (), resume=resume, run_name=run_name, dry_run=dry_run)
    if dry_run and not json:
        sys.stdout.write(found.script)
    said = "would be submitted" if found.job_id is None else f"submitted as job {found.job_id}"
    requeued = f", at most {found.max_requeues} requeues" if found.max_requeues else ""
    lines = (
        f"run {found.run_name}: {said}, {counted(found.ranks, 'rank')}{requeued}",
        f"output: {found.folder}",
        f"each task runs: {found.command}",
    )
    stops = any(item.severity is Severity.ERROR for item in found.findings)  # the training, at its first batch
    Output("submit", json).result(
        {name: value for name, value in vars(found).items() if name != "findings"},
        findings=found.findings,
        bad=stops,
        human=lambda screen: screen.print("\n".join(lines), markup=False),
    )
    if stops:
        raise AlreadyShown(EXIT_BAD_RESULT)
