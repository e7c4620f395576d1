"""Predicted peaks against the allocator's, the lines through two tapes, and the accounts of host and predictions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.memory import recorded_peak
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from xectool.config.load import config_from_dict
from xectool.errors import XecError
from xectool.training.memory_estimate import child
from xectool.training.memory_estimate import tape as tape_module
from xectool.training.memory_estimate.calibration import MOST_KEPT_BYTES, Calibration
from xectool.training.memory_estimate.child import ask
from xectool.training.memory_estimate.device import Device, Tries, largest_batch
from xectool.training.memory_estimate.host import READ_TERM, STEP_TERM, HostSide, loader_lines
from xectool.training.memory_estimate.kernels import staged_bytes
from xectool.training.memory_estimate.plan import ACCUMULATION, BASE, FAR, LARGER, line, plan, with_settings
from xectool.training.memory_estimate.predictions import SensorPredictions
from xectool.training.memory_estimate.recording import ALIVE, CATEGORIES, SAVED, BatchLine, Recording
from xectool.training.memory_estimate.reductions import staging_bytes
from xectool.training.memory_estimate.request import StepRequest
from xectool.training.memory_estimate.search import Search
from xectool.training.memory_estimate.shares import TrueShares

pytestmark = pytest.mark.deep

ROOT = Path(__file__).resolve().parents[2]
TASKS = {"energy": {"enabled": True}, "uvwFI": {"enabled": True}}
GPU = "gpu: "
SMALL = {"encoder_dim": 32, "num_fusion_layers": 1}
CASES: dict[str, dict[str, Any]] = {
    "regressor": {
        "kind": "regressor",
        "tasks": {name: {"enabled": True, "scale": 1.0, "shift": 0.0} for name in TASKS},
        "data": {"batch_size": 5},
        "model": SMALL,
        "training": {"ema_decay": 0.9, "grad_accum_steps": 3, "amp": "off"},
    },
    "mae": {
        "kind": "mae",
        "data": {"batch_size": 4},
        "model": {**SMALL, "outer_fine_pool": [5, 3], "decoder_dim": 32},
        "training": {"amp": "bf16", "activation_checkpointing": "stages"},
    },
    "inpainter": {
        "kind": "inpainter",
        "data": {"batch_size": 3},
        "model": {**SMALL, "freeze_encoder": False, "predict_channels": ["npho", "time"]},
        "training": {"ema_decay": "auto", "amp": "off"},
    },
    "attending": {
        "kind": "inpainter",
        "data": {"batch_size": 6},
        "model": {**SMALL, "head_type": "cross_attention", "mask_ratio": {"inner": 0.1, "outer": 0.02}},
        "training": {"amp": "off"},
    },
    "from tokens": {
        "kind": "inpainter",
        "data": {"batch_size": 3},
        "model": {**SMALL, "use_local_context": False, "mask_ratio": 0.4},
        "training": {"amp": "off"},
    },
    "in bf16": {
        "kind": "regressor",
        "tasks": {"energy": {"enabled": True, "scale": 1.0, "shift": 0.0}},
        "data": {"batch_size": 4},
        "model": {**SMALL, "encoder_dim": 96},
        "training": {"amp": "bf16"},
    },
}


def request_of(case: dict[str, Any]) -> StepRequest:
    config = config_from_dict(case, "test")
    training = config.training
    return StepRequest(config.to_dict(), config.data.batch_size, training.grad_accum_steps, training.amp, 0, 1.0, 1.0)


@pytest.fixture(scope="module")
def tapes() -> dict[str, Recording]:
    """The step of every case, all of a window taped, and the steps of the regressor's plan."""
    base = config_from_dict(CASES["regressor"], "test")
    asked = plan(base, "off", (1.0, 1.0), larger=True, remedies=True)
    on_gpu = plan(base, "off", (1.0, 1.0), larger=True, remedies=False, on_gpu=True)
    others = {name: request_of(case) for name, case in CASES.items()}
    others |= {GPU + name: request for name, request in on_gpu.requests.items()}
    requests = {**others, **asked.requests}
    answer = ask(requests, 1000)
    found = dict(zip(requests, answer.recordings, strict=True))
    whole = {name: asked.whole(name, found[name]) for name in asked.requests}
    assert answer.rss_bytes < 1.0e9
    return found | whole


@pytest.fixture(scope="module")
def gpu_tapes(tapes: dict[str, Recording]) -> dict[str, Recording]:
    """The step and two larger ones as a GPU takes them: all events at once, where a CPU works in parts of some size."""
    return {name: tapes[GPU + name] for name in (BASE, LARGER, FAR)}


def allocated(cases: list[dict[str, Any]]) -> list[int]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", "--allocator", json.dumps(cases)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    peaks: list[int] = json.loads(done.stdout.strip().splitlines()[-1])
    return peaks


@pytest.mark.slow
def test_predicted_peaks_are_the_allocators(tapes: dict[str, Recording]) -> None:
    for name, real in zip(CASES, allocated([*CASES.values()]), strict=True):
        assert tapes[name].peak() == pytest.approx(real, rel=0.01), name


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum(0, dtype=torch.float32),
        lambda x: x.sum(),
        lambda x: x.mean(dim=1, dtype=torch.float32),
        lambda x: x.prod(0, dtype=torch.float32),
        lambda x: x.cumsum(0, dtype=torch.float32),
        lambda x: torch.linalg.vector_norm(x, dtype=torch.float32),
        lambda x: x.bool().sum(0),
        lambda x: x.float().sum(0),
        lambda x: torch.nn.functional.layer_norm(x, (30,), torch.ones(30), torch.ones(30)),
        lambda x: torch.nn.functional.layer_norm(x, (30,), torch.ones(30).bfloat16(), None),
        lambda x: torch.nn.functional.layer_norm(x, (30,)),
        lambda x: torch.nn.functional.group_norm(x.view(8, 5, 30), 5, torch.ones(5), torch.ones(5)),
    ],
)
def test_copies_and_types_inside_a_kernel_are_those_of_the_allocator(work: Callable[[torch.Tensor], Any]) -> None:
    given = torch.ones(40, 30, dtype=torch.bfloat16)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        work(given)
    taped = tape_module.Tape(TrueShares({}))
    with tape_module.without_data(taped):
        work(torch.empty(40, 30, dtype=torch.bfloat16))
    own = given.untyped_storage().nbytes()
    assert taped.recording(1).peak() - own == pytest.approx(recorded_peak(profiler), abs=64)


@pytest.mark.parametrize(
    ("shape", "dims", "staged"),
    [
        ((48, 3956, 64), (1,), 97_517_568),  # one block of an H200, in a snapshot of its allocator
        ((48, 3956, 64), (2,), 0),
        ((48, 100, 64), (1,), 0),
        ((48, 3956, 64), (0, 1, 2), 0),
        ((48, 1, 64), (1,), 0),
        ((0, 3956, 64), (1,), 0),
        ((), (), 0),
    ],
)
def test_a_sum_on_a_gpu_stages_its_parts(shape: tuple[int, ...], dims: tuple[int, ...], staged: int) -> None:
    assert staging_bytes(torch.empty(shape, device="meta"), dims) == staged
    with FakeTensorMode():
        asked = torch.ops.aten.sum.dim_IntList, (torch.empty(shape), list(dims))
    assert staged_bytes(*asked, on_gpu=True) == staged
    assert staged_bytes(*asked, on_gpu=False) == 0


def test_a_window_of_any_length_follows_from_two_of_its_batches(tapes: dict[str, Recording]) -> None:
    assert tapes[BASE].peak() == pytest.approx(tapes["regressor"].peak(), rel=1e-3)


def test_parts_at_the_peak_add_up_to_it(tapes: dict[str, Recording]) -> None:
    for name, tape in tapes.items():
        assert sum(tape.split(tape.peak_at()).values()) == tape.peak(), name


def test_weights_and_moments_have_their_own_bytes(tapes: dict[str, Recording]) -> None:
    tape = tapes["inpainter"]
    assert tape.total("ema") >= tape.total("parameters")  # with the buffers of the averaged copy
    assert tape.total("optimizer") == pytest.approx(2 * tape.total("gradients"), rel=0.01)
    assert tapes["mae"].total("ema") == 0


def test_each_remedy_saves_what_it_promises(tapes: dict[str, Recording]) -> None:
    for name in ("batch", "checkpointing", "bf16", "pool"):
        assert tapes[name].peak() < tapes[BASE].peak(), name
    assert tapes[BASE].without("ema").peak() == tapes[BASE].peak() - tapes[BASE].total("ema")


@pytest.mark.slow
def test_accumulation_by_itself_takes_the_gradients_that_the_allocator_keeps() -> None:
    base = config_from_dict(CASES["inpainter"], "test")
    asked = plan(base, "off", (1.0, 1.0), larger=False, remedies=True)
    (remedy,) = (item for item in asked.remedies if item.key == ACCUMULATION)
    changed = with_settings(base, remedy.settings)
    answer = ask({name: replace(asked.requests[name], validation_batch=0) for name in (BASE, ACCUMULATION)}, 10)
    told = answer.recordings[1].peak() - answer.recordings[0].peak()
    alone, accumulated = allocated([base.to_dict(), changed.to_dict()])
    assert accumulated > alone
    assert told == pytest.approx(accumulated - alone, rel=0.05)


@pytest.mark.parametrize(("steps", "taped"), [(1, True), (2, False), (8, False)])
def test_a_longer_window_is_taped_only_where_it_is_another_step(steps: int, taped: bool) -> None:
    config = with_settings(config_from_dict(CASES["regressor"], "test"), [f"training.grad_accum_steps={steps}"])
    asked = plan(config, "off", (1.0, 1.0), larger=False, remedies=True)
    assert (ACCUMULATION in asked.requests) == taped
    (remedy,) = (item for item in asked.remedies if item.title == "gradient accumulation")
    assert remedy.settings == (f"training.grad_accum_steps={2 * steps}",)


def test_modules_name_what_they_keep(tapes: dict[str, Recording]) -> None:
    kept = tapes["regressor"].saved_by_module()
    assert sum(kept.values()) == tapes["regressor"].saved()
    assert any(name.startswith("backbone.backbone.stage1") for name in list(kept)[:5])


@given(st.integers(1, 100_000), st.integers(1, 100_000))
@settings(deadline=None, max_examples=30)
def test_a_larger_batch_never_needs_less(gpu_tapes: dict[str, Recording], first: int, second: int) -> None:
    at = line(gpu_tapes)
    assert at is not None
    low, high = sorted((first, second))
    assert at(low).peak() <= at(high).peak()


def test_line_through_two_batches_meets_a_third(gpu_tapes: dict[str, Recording]) -> None:
    found = BatchLine(gpu_tapes[BASE], gpu_tapes[LARGER])
    assert found.same_program
    assert found.at(gpu_tapes[FAR].batch_size).peak() == pytest.approx(gpu_tapes[FAR].peak(), rel=1e-3)


def test_another_program_gives_no_line(tapes: dict[str, Recording], gpu_tapes: dict[str, Recording]) -> None:
    assert line({**gpu_tapes, LARGER: tapes["checkpointing"]}) is None
    bent = replace(gpu_tapes[FAR], size=gpu_tapes[FAR].size * 2)
    assert line({**gpu_tapes, FAR: bent}) is None


def test_largest_batch_fits_and_the_next_does_not(gpu_tapes: dict[str, Recording]) -> None:
    at = line(gpu_tapes)
    assert at is not None
    for total in (2e9, 16e9, 42e9):
        device = Device("card", round(total), is_gpu=True)
        found = largest_batch(device, at)
        assert device.needed(at(found)) <= 0.85 * total < device.needed(at(found + 1))
    assert largest_batch(Device("card", 10**6, is_gpu=True), at) == 0


@pytest.mark.parametrize("bend", [1.0, 1.3, 0.7])
@pytest.mark.parametrize("fitting", [1, 2, 63, 64, 65, 777, 40_000])
def test_largest_batch_is_found_in_few_tries_where_each_is_a_tape(bend: float, fitting: int) -> None:
    """Memory that bends at 100 events, as a small batch is computed in another way."""

    def size(batch: int) -> int:
        return 10**6 + round(1e6 * min(batch, 100) + bend * 1e6 * max(batch - 100, 0))

    tried = list[int]()

    def at(batch: int) -> Recording:
        tried.append(batch)
        return tape((size(batch), 0, 5, "other"))

    total = (size(fitting) + size(fitting + 1)) / 2 / 0.9
    assert largest_batch(Device("host", round(total), is_gpu=False), at) == fitting
    assert len(tried) <= 10


def test_a_search_begins_with_what_is_known_and_counts_what_lies_beside_the_tensors() -> None:
    tried = list[int]()

    def at(batch: int) -> Recording:
        tried.append(batch)
        return tape((10**6 * min(batch, 100) + 2 * 10**6 * max(batch - 100, 0), 0, 5, "other"))

    device, known = Device("host", 2 * 10**9, is_gpu=False), (64, 128, 4096)
    found = largest_batch(device, at, lambda batch: 6 * 10**8 + 10**5 * batch, Tries(known, 0.01))
    assert 0.99 * 619 <= found <= 619  # 0.9 x 2000 - 600 = 100 + 2 (n - 100) + 0.1 n
    assert len(set(tried) - set(known)) <= 3
    assert largest_batch(device, at) == 950  # the control: nothing beside


def tape(*rows: tuple[int, int, int, str]) -> Recording:
    table = np.array([(size, born, died, CATEGORIES.index(name)) for size, born, died, name in rows])
    nothing = np.zeros(len(rows), dtype=np.int64)
    columns = dict(zip(("size", "born", "died", "category"), table.T, strict=True))
    phases = (("forward", 0), (SAVED, 3), ("backward", 3))
    return Recording(**columns, phase=nothing, module=nothing, phases=phases, modules=("",), batch_size=1)


def test_peaks_of_a_tape_made_by_hand() -> None:
    made = tape((100, 1, ALIVE, "parameters"), (10, 2, 4, "other"), (1000, 5, 6, "gradients"), (7, 7, 8, "other"))
    assert made.peak() == 1100
    assert made.peak(512) == 512 + 1024
    assert made.phase_peaks() == {"forward": 110, "backward": 1100}
    assert made.saved() == 10
    assert made.phase_of(made.peak_at()) == "backward"
    assert Recording.from_json(json.loads(json.dumps(made.to_json()))).peak() == 1100


def test_an_operation_that_comes_again_makes_the_same_tensors_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(size: int) -> list[tuple[Any, ...]]:
        given = torch.empty(size, 6)
        left, right = given.split(3, dim=1)
        product = left.t() @ right
        made = [given, left, right, product, given.t()[2:], product.add_(1), torch.add(left, right, out=product[:size])]
        made += [*torch.std_mean(product, 0), torch.zeros(2, 3).expand(4, 2, 3), given.view(-1).bool()]
        places = [value.untyped_storage()._cdata for value in made]
        alike = [(tuple(value.shape), value.stride(), value.storage_offset(), value.dtype) for value in made]
        return [(*form, places.index(place)) for form, place in zip(alike, places, strict=True)]

    class Counting(FakeTensorMode):
        def dispatch(self, *given: Any, **named: Any) -> Any:
            calls.append(given[0])
            return super().dispatch(*given, **named)

    calls: list[Any] = []
    monkeypatch.setattr(tape_module, "FakeTensorMode", Counting)
    tape = tape_module.Tape(TrueShares({}))
    with tape_module.without_data(tape):
        first, asked = once(3), len(calls)
        rows = len(tape.recording(3).size)
        assert once(3) == first
        assert len(calls) == asked > 10
        assert len(tape.recording(3).size) == 2 * rows
        once(2)
        assert len(calls) > asked  # the control: another shape is another operation


@pytest.mark.parametrize(("ratio", "count", "gigabytes", "older"), [(0.05, 238, 47.6, 2.38), (0.1, 476, 95.2, 4.76)])
def test_predictions_as_older_documents_count_them(ratio: float, count: int, gigabytes: float, older: float) -> None:
    found = SensorPredictions(1_000_000, ratio)
    assert found.count == count * 10**6
    text = " ".join(found.lines(16))
    for part in (f"{found.count:,}", f"{gigabytes} GB", f"{older} GB", "5% of 4760", "twice"):
        assert part in text
    assert found.streamed_bytes(16) < 1e6


@given(st.integers(1, 10**7), st.floats(0.001, 0.999))
def test_predictions_of_an_event_are_whole_and_never_more_than_its_sensors(events: int, ratio: float) -> None:
    found = SensorPredictions(events, ratio)
    assert 0 <= found.per_event <= 4760
    assert found.count == events * found.per_event


def test_the_best_checkpoint_is_counted_where_reading_it_takes_more_than_a_step() -> None:
    config = config_from_dict(CASES["mae"], "test")
    step, state = 10**8, 10**9
    assert READ_TERM not in HostSide(config, 0, state, False, checkpoint_bytes=step).terms(Calibration())
    beside = HostSide(config, 0, step, False, checkpoint_bytes=state).terms(Calibration())
    assert beside[STEP_TERM] + beside[READ_TERM] > 2 * state
    on_gpu = HostSide(config, 0, step, True, checkpoint_bytes=state).terms(Calibration())
    assert state < on_gpu[READ_TERM] < 2 * state


@pytest.mark.parametrize(("cache_bytes", "mapped"), [(0, False), (10**8, True), (10**15, False)])
def test_pages_of_a_cache_are_told_where_it_is_mapped(cache_bytes: int, mapped: bool) -> None:
    lines = loader_lines(config_from_dict(CASES["mae"], "test"), 10**9, cache_bytes)
    assert any("0.10 GB are mapped" in line for line in lines) == mapped


def test_the_batch_that_fits_counts_what_malloc_keeps_and_the_best_checkpoint() -> None:
    whole = replace(tape((10**8 * 10, 0, 5, "other")), batch_size=10)
    side = HostSide(config_from_dict(CASES["mae"], "test"), 0, 10**9, False)
    others = sum(side.terms(Calibration()).values()) - Calibration().resident(10**9)
    device = Calibration().on(Device("cpu", round((others + 12.5 * 10**8 + MOST_KEPT_BYTES) / 0.9), is_gpu=False))
    for checkpoint, fitting in ((0, 12), (10**9, 0)):
        rows, own = {BASE: 10, LARGER: 20, FAR: 40}, {"checkpoint_bytes": checkpoint}
        tapes = {name: replace(tape((10**8 * n, 0, 5, "other")), batch_size=n, **own) for name, n in rows.items()}
        search = Search(device, Calibration(), 0, None)
        assert search.find(side.config, tapes, lambda _: whole, lambda _: 0) == fitting


def test_a_child_that_fails_is_an_error_of_one_sentence() -> None:
    with pytest.raises(XecError, match="defect of xectool") as caught:
        ask({BASE: replace(request_of(CASES["mae"]), amp="int4")}, 10)
    assert caught.value.code == "XT-ESTIMATE-FAILED"
    assert "int4" in caught.value.problem


def test_a_child_that_takes_too_long_is_not_told_to_want_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "TIMEOUT_S", 0.01)
    with pytest.raises(XecError, match="what keeps this machine busy") as caught:
        ask({BASE: request_of(CASES["mae"])}, 10)
    assert "no answer within 0.01 s" in caught.value.problem


@pytest.mark.parametrize(("status", "errors"), [(-9, ""), (1, "MemoryError"), (-6, "what():  std::bad_alloc")])
def test_a_child_without_memory_says_so(status: int, errors: str) -> None:
    assert child._died(status, errors).fix.startswith("xectool diagnose environment   # free some memory")
    assert "memory" not in child._died(1, "ValueError: int4").fix


def test_the_child_forks_no_process(tmp_path: Path) -> None:
    """Builds of PyTorch for GPUs have no gradients in one: an estimate failed wherever one of them was installed."""
    asked = {BASE: request_of(CASES["regressor"]), "a": request_of(CASES["mae"]), "b": request_of(CASES["inpainter"])}
    content = {"requests": {name: item.to_json() for name, item in asked.items()}, "events": 10}
    content |= {"search": None, "windows": dict.fromkeys(asked, 1), "validation_events": 10}
    content |= {"cached_events": 20, "elsewhere": False}
    (tmp_path / "question.json").write_text(json.dumps(content))
    code = (
        f"import os; del os.fork; from {child.MODULE}.answering import main; "
        "main('estimate', 'question.json', 'a.json')"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, check=True, timeout=600)
    assert len(json.loads((tmp_path / "a.json").read_text())["recordings"]) == 3


def test_no_torch_on_the_side_of_the_caller() -> None:
    code = "import sys, xectool.engine.memory_estimate; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ, timeout=300)
