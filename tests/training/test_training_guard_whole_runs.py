"""Guards that belong to a whole run or process, with their fault and without them."""

from __future__ import annotations

import json
import math
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from xectool import engine
from xectool.errors import DeviceError
from xectool.runlog.reader import RunReader
from xectool.training.stepping.evaluate import evaluate
from xectool.training.symptoms.torch_signs import determinism_faults

Config = Callable[..., Path]


def kinds(run_dir: str) -> set[str]:
    return {event.kind for event in RunReader(Path(run_dir)).events()}


def test_logging_from_the_loop_into_a_locked_database_would_end_the_training(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("CREATE TABLE metrics (value REAL)")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite3.connect(path, timeout=0.1).execute("INSERT INTO metrics VALUES (1)")
    holder.close()


@pytest.mark.parametrize("disabled", [[], ["G24"]])
def test_full_disk_is_on_record_only_with_its_guard(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch, disabled: list[str]
) -> None:
    little = SimpleNamespace(total=10**12, used=10**12 - 1000, free=1000)
    monkeypatch.setattr("xectool.training.saving.saver.shutil", SimpleNamespace(disk_usage=lambda path: little))
    result = engine.train(tiny_config(guards={"disable": disabled}))
    assert ("disk_low" in kinds(result.run_dir)) == (not disabled)


SIGNALS = """
import os, signal, sys
from pathlib import Path
from xectool.config.guards import GuardsConfig
from xectool.training.guards.process import CrashStacks, SaveRequest
number = getattr(signal, sys.argv[1])
signal.signal(number, signal.SIG_DFL)  # a job in the background of a shell ignores SIGQUIT
if sys.argv[2] == "guarded":
    with CrashStacks(Path(sys.argv[3]), GuardsConfig()), SaveRequest():
        os.kill(os.getpid(), number)
else:
    os.kill(os.getpid(), number)
"""


@pytest.mark.parametrize("name", ["SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_signals_for_stacks_and_checkpoints_end_a_process_without_the_guard(tmp_path: Path, name: str) -> None:
    guarded = -signal.SIGINT if name == "SIGUSR1" else 0  # that one interrupts, as Ctrl-C does
    for way, expected in (("guarded", guarded), ("bare", -getattr(signal, name))):
        command = [sys.executable, "-c", SIGNALS, name, way, str(tmp_path / "stacks")]
        assert subprocess.run(command, check=False, timeout=300).returncode == expected


def test_validation_that_is_not_finite_is_never_the_best(tiny_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([math.nan, 0.5])

    def broken(predicted: Any, accumulator: Any, *rest: Any) -> float:
        rate, loss = evaluate(predicted, accumulator, *rest), next(losses, 0.5)
        whole = accumulator.compute
        accumulator.compute = lambda: {**whole(), "val/loss": loss}
        return rate

    monkeypatch.setattr("xectool.training.trainer.evaluate", broken)
    result = engine.train(tiny_config())
    assert result.best_epoch == 2
    finite = [e.data["finite"] for e in RunReader(Path(result.run_dir)).events() if e.kind == "validation"]
    assert finite == [False, True]
    assert not min([math.nan, 0.5]) > 0.5  # a plain minimum keeps the NaN of the first epoch


def test_operation_without_a_deterministic_form_passes_unnoticed_where_determinism_is_off() -> None:
    said: list[str] = []
    say = lambda kind, message="", **data: said.append(data["op"])  # noqa: E731
    twice = torch.zeros(2, dtype=torch.int64)  # which of two values stays is left open
    was_on = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(False)
        with determinism_faults(say):
            torch.zeros(3).put_(twice, torch.tensor([1.0, 2.0]))
        assert not said
        torch.use_deterministic_algorithms(True)
        with pytest.raises(DeviceError, match="put_"), determinism_faults(say):
            torch.zeros(3).put_(twice, torch.tensor([1.0, 2.0]))
        assert said == ["put_"]
    finally:
        torch.use_deterministic_algorithms(was_on)


def test_environment_of_every_attempt_is_on_record(tiny_config: Config) -> None:
    config = tiny_config()
    run_dir = Path(engine.train(config, max_steps=1).run_dir)
    engine.train(config, max_steps=2, resume="auto")
    attempts = json.loads((run_dir / "manifest.json").read_text())["attempts"]
    assert len(attempts) == 2
    text = json.dumps(attempts)
    assert torch.__version__ in text
    assert sys.version.split()[0] in text
