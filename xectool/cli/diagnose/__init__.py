"""The ``diagnose`` commands: one file a subcommand."""

from __future__ import annotations

import typer

from xectool.cli.diagnose import (
    compile,
    distributed,
    environment,
    gradients,
    hang,
    loader,
    log,
    memory,
    mlflow,
    modules,
    nan_batch,
    query,
    replay,
    reproducibility,
    run_health,
    status,
)

app = typer.Typer(help="Find out what is wrong, and what to do about it.", no_args_is_help=True)
app.command("nan-batch")(nan_batch.nan_batch)
app.command("query")(query.query)
app.command("replay")(replay.replay)
app.command("reproducibility")(reproducibility.reproducibility)
app.command("compile")(compile.compile)
app.command("distributed")(distributed.distributed)
app.command("loader")(loader.loader)
app.command("log")(log.log)
app.command("environment")(environment.environment)
app.command("modules")(modules.modules)
app.command("run")(run_health.run)
app.command("loss")(run_health.loss)
app.command("gradients")(gradients.gradients)
app.command("memory")(memory.memory)
app.command("mlflow")(mlflow.mlflow)
app.command("status")(status.status)
app.command("stacks")(hang.stacks)
app.command("hang")(hang.hang)
