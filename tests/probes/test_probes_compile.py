"""Breaks and compilations again are named with their lines and shapes; the mode that pays is found; faults show."""

from __future__ import annotations

import inspect
import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from xectool.config.load import load_config
from xectool.errors import DiskError
from xectool.findings import Severity
from xectool.models.encoder import Encoder
from xectool.models.regressor import Regressor
from xectool.probes.compilation import mode, race
from xectool.probes.compilation.findings import LARGEST_DIFFERENCE, CompileFacts, Toolchain, findings_of, usable_modes
from xectool.probes.compilation.graphs import AGAIN, GraphReport, inspect_graphs
from xectool.probes.compilation.mode import MEASURED, ModeTime, measure_mode
from xectool.probes.compilation.race import TIMEOUT, measure_modes, modes_of, recommend
from xectool.probes.nonfinite.subject import Subject, of_config
from xectool.training.process.device import Execution, compile_faults

Write = Callable[..., Path]
TOLD = MEASURED + ' {"mode": "default", "steps": 5, "step_ms": 3.0, "compile_s": 4.0}'
SOUND = Toolchain(cxx="/usr/bin/g++", triton="", missing="", suppressed=False)


class Noisy(nn.Module):
    """Does in forward what breaks a graph."""

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().max().item()
        print("largest", scale)  # noqa: T201 - it is what the test is about
        parts = x.abs().amax(0).tolist()
        return x * len(parts) / x.shape[1]


class Branching(Regressor):
    """Does one of two things, by the numbers, where nothing calls it in a graph."""

    def forward(self, npho: Tensor, time: Tensor) -> dict[str, Tensor]:
        if npho.mean() > 0:
            npho = 2 * npho
        return super().forward(npho, time)


class Sized(nn.Module):
    """Depends on the very size of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + int(x.shape[0]) // 1000) if x.shape[0] not in (2, 3) else x + 0


class Counting(nn.Module):
    """Reckons with a Python number that changes until a call.

    Args:
        until: The last call at which it changes.
    """

    def __init__(self, until: int) -> None:
        super().__init__()
        self.until, self.calls = until, 0

    def forward(self, x: Tensor) -> Tensor:
        if self.calls < self.until:
            self.calls += 1
        return x * self.calls


def few_operations(self: Encoder, x: Tensor, mask: Any = None, valid: Any = None) -> Tensor:
    """Stand for the encoder: a whole one takes seconds to trace and minutes to compile."""
    return x[:, : self.num_tokens * self.width, 0].tanh().unflatten(1, (-1, self.width))


def wrong_when_compiled(self: Encoder, x: Tensor, mask: Any = None, valid: Any = None) -> Tensor:
    tokens = few_operations(self, x)
    return 1.5 * tokens if torch.compiler.is_compiling() else tokens


@pytest.fixture
def subject(write_config: Write, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    monkeypatch.setattr(Encoder, "forward", few_operations)
    found = of_config(load_config(write_config()).config, None, "cpu", max_events=4)
    yield found
    found.close()
    torch._dynamo.reset()


def lines_of(kind: type[nn.Module], *signs: str) -> set[int]:
    source, first = inspect.getsourcelines(kind)
    return {first + number for number, line in enumerate(source) if any(sign in line for sign in signs)}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_item_and_print_are_named_with_file_line_and_cure(subject: Subject, capsys: pytest.CaptureFixture[str]) -> None:
    head = subject.bench.model.heads["energy"]
    head[1] = nn.Sequential(head[1], Noisy())
    report = inspect_graphs(subject.bench, list(subject.batches())[:1])
    here = [found for found in report.breaks if found.file == __file__]
    assert {found.line for found in here} == lines_of(Noisy, ".item()", "print(", ".tolist()")
    cures = {found.code.strip().split("(")[0]: found.cure for found in here}
    assert "keep the number a tensor" in cures["scale = x.abs"]
    assert "keep the number a tensor" in cures["parts = x.abs"]
    assert "print out of forward" in cures["print"]
    codes = [found.code for found in findings_of(CompileFacts(SOUND, report, (), "none", False))]
    assert codes.count("XT-GRAPH-BREAK") >= 2


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_log_of_the_compiler_does_not_repeat_breaks_on_the_terminal(subject: Subject) -> None:
    head, logger, shown = subject.bench.model.heads["energy"], logging.getLogger("torch._dynamo"), io.StringIO()
    head[1] = nn.Sequential(head[1], Noisy())
    handler = logging.StreamHandler(shown)
    logger.addHandler(handler)
    try:
        assert inspect_graphs(subject.bench, list(subject.batches())[:1]).breaks
        assert shown.getvalue() == ""
        logging.getLogger("torch._dynamo.output_graph").warning("later")
        assert shown.getvalue() == "later\n"
    finally:
        logger.removeHandler(handler)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_branch_on_numbers_is_told_in_plain_words_with_its_cure(subject: Subject) -> None:
    subject.bench.model.__class__ = Branching
    (found,) = inspect_graphs(subject.bench, list(subject.batches())[:1]).breaks
    assert found.line in lines_of(Branching, "if npho.mean()")
    assert (found.reason, "torch.where" in found.cure) == ("a branch on the value of a tensor", True)


@pytest.mark.parametrize("kind", ["regressor", "mae", "inpainter"])
def test_network_of_every_kind_is_one_graph(write_config: Write, kind: str) -> None:
    torch._dynamo.reset()
    found = of_config(load_config(write_config(kind)).config, None, "cpu", max_events=4)
    report = inspect_graphs(found.bench, list(found.batches())[:1])
    found.close()
    assert report.breaks == ()
    assert report.graphs == 1
    assert report.ops > report.unique_ops > 10


def test_batches_of_other_sizes_compile_again_and_are_named(subject: Subject) -> None:
    head = subject.bench.model.heads["energy"]
    head[1] = nn.Sequential(head[1], Sized())
    batch = next(iter(subject.batches()))
    sizes = (4, 3, 2)
    report = inspect_graphs(subject.bench, [batch.take(np.arange(size)) for size in sizes])
    assert report.batch_sizes == sizes
    assert report.recompiles
    assert "expected 4, actual 3" in report.recompiles[0].reason
    assert report.recompiles[0].events == 3
    found = {finding.code: finding for finding in findings_of(CompileFacts(SOUND, report, (), "none", False))}
    assert any("batch of 3" in line for line in found["XT-RECOMPILE"].evidence)


@pytest.mark.parametrize(("until", "again"), [(100, AGAIN), (1, 1)])
def test_value_that_changes_at_every_step_is_told_from_one_that_settles(
    subject: Subject, until: int, again: int
) -> None:
    head = subject.bench.model.heads["energy"]
    head[1] = nn.Sequential(head[1], Counting(until))
    report = inspect_graphs(subject.bench, list(subject.batches())[:1])
    assert report.batch_sizes == (4,)
    assert [found.seen for found in report.recompiles] == list(range(1, again + 1))
    told = findings_of(CompileFacts(SOUND, report, (), "none", False))
    assert [(found.code, found.severity) for found in told] == [("XT-RECOMPILE", Severity.WARNING)] * (again == AGAIN)
    assert all("calls" in found.problem and "register_buffer" in found.fix for found in told)
    assert not any("  " in found.problem for found in told)


def blank(**changes: Any) -> GraphReport:
    return replace(GraphReport(1, 10, 5, (4,), (), (), "", 0.1), **changes)


def test_batches_of_one_size_compile_once(subject: Subject) -> None:
    batch = next(iter(subject.batches()))
    report = inspect_graphs(subject.bench, [batch, batch])
    assert report.recompiles == ()
    assert findings_of(CompileFacts(SOUND, report, (), "none", False)) == ()


def test_toolchain_that_is_missing_and_hidden_failures_are_found() -> None:
    broken = Toolchain("", "", "no working C++ compiler is found (/nonexistent)", True)
    found = {item.code: item for item in findings_of(CompileFacts(broken, blank(), (), "none", True))}
    assert "training.compile=none" in found["XT-COMPILE-TOOLCHAIN"].fix
    assert "XT-COMPILE-SUPPRESSED" in found


def test_outputs_that_differ_make_a_mode_unusable() -> None:
    times = [ModeTime("none", step_ms=10.0), ModeTime("default", step_ms=1.0, max_rel_diff=0.5)]
    assert usable_modes(times) == ("none",)
    codes = [found.code for found in findings_of(CompileFacts(SOUND, blank(), times, "none", False))]
    assert codes == ["XT-COMPILE-DIFFERS"]
    best = recommend(times, 10**6, usable_modes(times))
    assert best is not None
    assert best.mode == "none"
    assert usable_modes([ModeTime("default", max_rel_diff=float("nan"))]) == ()


@pytest.mark.parametrize(("steps", "mode"), [(100, "none"), (10_000, "default"), (10_000_000, "max-autotune")])
def test_mode_depends_on_the_length_of_the_run(steps: int, mode: str) -> None:
    times = [
        ModeTime("none", step_ms=100.0),
        ModeTime("default", compile_s=60.0, step_ms=80.0),
        ModeTime("max-autotune", compile_s=900.0, step_ms=70.0),
    ]
    best = recommend(times, steps, usable_modes(times))
    assert best is not None
    assert best.mode == mode
    assert best.break_even == {"default": 3000, "max-autotune": 30_000}


def test_gain_within_the_noise_is_none_and_a_slower_mode_never_pays() -> None:
    times = [ModeTime("none", step_ms=100.0, spread=0.1), ModeTime("default", compile_s=1.0, step_ms=95.0, spread=0.1)]
    best = recommend(times, 10**6, usable_modes(times))
    assert best is not None
    assert best.mode == "none"
    slower = recommend([ModeTime("none", step_ms=1.0), ModeTime("default", step_ms=2.0)], 10, ("default",))
    assert slower is not None
    assert slower.break_even == {"default": None}
    assert recommend([ModeTime("none", error="killed")], 10, ()) is None


def test_modes_are_those_the_device_tells_apart() -> None:
    assert modes_of("cpu") == ("none", "default", "max-autotune-no-cudagraphs")
    assert "reduce-overhead" in modes_of("cuda")


def test_mode_in_a_process_that_takes_too_long_is_ended(write_config: Write) -> None:
    config = load_config(write_config()).config
    (found,) = measure_modes(config, ["none"], "cpu", 1, 0.3)
    assert found.code == "XT-COMPILE-TIMEOUT"
    again = "xectool diagnose compile run.yaml --set=model.encoder_dim=64"
    for given, proposed in ((0.3, 3600), (1800.0, 7200)):
        (said,) = findings_of(CompileFacts(SOUND, blank(), (found,), "none", False, again, given))
        assert said.fix == f"{again} --modes none --timeout {proposed}"


def test_timeout_is_for_all_modes_together(write_config: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []

    def took_half(request: dict[str, Any], timeout_s: float, whole_run_s: float) -> ModeTime:
        shares.append(timeout_s)
        clock[0] += timeout_s / 2
        return ModeTime(request["mode"])

    clock = [0.0]
    monkeypatch.setattr(race.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(race, "_in_process", took_half)
    list(measure_modes(load_config(write_config()).config, modes_of("cpu"), "cpu", 1, 60.0))
    assert shares == [60.0, 30.0, 15.0]  # what one leaves the later ones have


def test_where_the_default_is_not_done_nothing_that_compiles_more_is_begun(
    write_config: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def compiles_for_ever(request: dict[str, Any], timeout_s: float, whole_run_s: float) -> ModeTime:
        begun.append(request["mode"])
        return ModeTime(request["mode"], **({} if request["mode"] == "none" else {"error": "late", "code": TIMEOUT}))

    monkeypatch.setattr(race, "_in_process", compiles_for_ever)
    times = list(measure_modes(load_config(write_config()).config, modes_of("cuda"), "cpu", 1, 60.0))
    assert begun == ["none", "default"]
    assert [found.mode for found in times] == list(modes_of("cuda"))
    assert {found.code for found in times[1:]} == {TIMEOUT}
    assert times[-1].error == "not begun: it compiles what default does and more, which was late"
    best = recommend(times, 10, usable_modes(times))
    assert best is not None
    assert "nothing is known of them" in best.reason


def test_mode_that_compiles_longer_than_the_whole_run_takes_is_ended_and_cannot_pay(
    write_config: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))
    config, begun = load_config(write_config()).config, dict[str, tuple[float, float]]()

    def begin(mode: str, *limits: float) -> None:
        begun[mode] = limits[0], limits[1]

    times = list(measure_modes(config, ["none", "default"], "cpu", 1, 600, run_batches=1, begin=begin))
    assert [found.cannot_pay for found in times] == [False, True]
    assert begun["none"][0] == begun["none"][1] > 500
    assert begun["default"][1] < 200 < begun["default"][0]  # comparing outputs may take all that is left
    (said,) = findings_of(CompileFacts(SOUND, blank(), times, "default", False))
    assert (said.code, said.severity) == ("XT-COMPILE-TIMEOUT", Severity.INFO)
    best = recommend(times, 1, usable_modes(times))
    assert best is not None
    assert best.reason.startswith("compiling takes longer than the 1 batches of the run")


@pytest.mark.parametrize(
    ("timeout_s", "says", "error", "cannot_pay"),
    [(60.0, TOLD, "", False), (1.0, TOLD, "not compared", False), (60.0, "", "whole run", True)],
    ids=["done after that", "no time to compare", "still compiling"],
)
def test_comparing_outputs_does_not_count_as_compiling(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, says: str, error: str, cannot_pay: bool
) -> None:
    code = f'import time; print({says!r}, flush=True); time.sleep(3); print(\'{{"mode": "default", "step_ms": 2.0}}\')'
    real = subprocess.Popen
    monkeypatch.setattr(race.subprocess, "Popen", lambda argv, **given: real([sys.executable, "-c", code], **given))
    found = race._in_process({"mode": "default"}, timeout_s, 0.7)
    assert (error in found.error, bool(found.error)) == (True, bool(error))
    assert (found.cannot_pay, found.code) == (cannot_pay, TIMEOUT if error else "")
    assert found.step_ms == {"": 2.0, "not compared": 3.0}.get(error, 0.0)


def test_mode_that_was_measured_but_not_compared_keeps_no_other_from_being_begun(
    write_config: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import time; print({TOLD!r}, flush=True); time.sleep(9)"
    real, config = subprocess.Popen, load_config(write_config()).config
    monkeypatch.setattr(race.subprocess, "Popen", lambda argv, **given: real([sys.executable, "-c", code], **given))
    first, second = measure_modes(config, ["default", "max-autotune"], "cpu", 1, 1.0)
    assert (first.step_ms, first.compile_s, first.code) == (3.0, 4.0, TIMEOUT)
    assert second.error == "not begun: no time was left"


def test_steps_that_are_measured_while_a_process_is_ended_are_kept() -> None:
    found = race._late("default", 0.9, True, f"a line of a plugin\n{TOLD}\n")
    assert (found.step_ms, found.cannot_pay) == (3.0, False)
    assert found.error.endswith("after 0.9 s")
    assert race._late("default", 0.9, True, TOLD[:-5]).cannot_pay  # it had not written the line


def test_measured_steps_are_told_before_outputs_are_compared(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(mode, "compiled", lambda model, *given: model)
    monkeypatch.setattr(mode, "_differences", lambda *given: told.append("compared") or (0.0, 0.0))
    measure_mode(subject.bench.config, "default", "cpu", 1, 1.0, lambda found: told.append(found.step_ms > 0))
    assert told == [True, "compared"]


def test_eager_is_measured_in_a_process_of_its_own(write_config: Write) -> None:
    config = load_config(write_config()).config
    (found,) = measure_modes(config, ["none"], "cpu", 2, 300)
    assert found.error == ""
    assert found.step_ms > 0
    assert found.compile_s == 0
    assert found.host_peak_bytes > 10**8
    assert found.peak_bytes > 10**8


def test_process_that_dies_is_told_with_its_last_words(
    write_config: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os, sys\nsys.stderr.write('boom\\n'); os._exit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (found,) = measure_modes(load_config(write_config()).config, ["none"], "cpu", 1, 60)
    assert found.code == "XT-COMPILE-FAILED"
    assert "boom" in found.error


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # what the compiler itself imports
@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a directory in which nobody may write")
def test_compiler_that_may_not_write_is_given_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/sys")
    execution = Execution(torch.device("cpu"), None, False, "default")
    with pytest.raises(DiskError) as raised, compile_faults(execution):
        torch.compile(lambda x: x.cosh() + 1)(torch.ones(4))
    error = raised.value
    time = ModeTime("default", error=error.problem, code=error.code, fix=error.fix)
    (said,) = findings_of(CompileFacts(SOUND, blank(), (time,), "default", False))
    assert "not permitted" in said.problem
    assert said.fix.startswith("export TORCHINDUCTOR_CACHE_DIR=")


def test_compile_processes_are_limited_before_the_compiler_is_loaded() -> None:
    code = (
        "from xectool.config.training import TrainingConfig\n"
        "from xectool.training.process.device import plan_execution\n"
        "plan_execution(TrainingConfig(compile='default'), 'cpu')\n"
        "import os\nfrom torch._inductor import config\n"
        "assert str(config.compile_threads) == os.environ['TORCHINDUCTOR_COMPILE_THREADS'], config.compile_threads\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_COMPILE_THREADS"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # what the compiler itself imports
@pytest.mark.parametrize("forward", [few_operations, wrong_when_compiled])
def test_compiled_step_is_compared_with_eager(
    write_config: Write, monkeypatch: pytest.MonkeyPatch, forward: Callable[..., Tensor]
) -> None:
    monkeypatch.setattr(Encoder, "forward", forward)
    config = load_config(write_config(model={"drop_path_rate": 0.0, "dropout": 0.0})).config
    torch._dynamo.reset()
    found = measure_mode(config, "default", "cpu", steps=2, seconds=60)
    assert found.error == ""
    assert (found.max_rel_diff > LARGEST_DIFFERENCE) == (forward is wrong_when_compiled)
    assert found.max_rel_diff < 1e-3 or forward is wrong_when_compiled
    assert found.cache_hits + found.cache_misses > 0
    assert found.step_ms > 0
