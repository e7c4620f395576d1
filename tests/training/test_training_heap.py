"""Freed memory goes back to the system while batches go by."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from xectool.training.process import heap


def test_batches_pass_unchanged_and_the_heap_is_trimmed_after_each(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(heap, "_malloc_trim", lambda: calls.append)
    assert list(heap.trimmed(range(3))) == [0, 1, 2]
    assert calls == [0, 0, 0]


def test_a_c_library_without_trimming_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert list(heap.trimmed("abcdefgh")) == [*"abcdefgh"]


def test_the_c_library_here_takes_the_call() -> None:
    assert heap._malloc_trim()(0) in (0, 1)


_FAULTS = """
import ctypes, resource, sys
from xectool import engine
from xectool.config.load import load_config
from xectool.probes.compilation.mode import main
from xectool.probes.loading.epoch_time import measure_step
from xectool.training.process.device import plan_execution
from xectool.training.process.heap import keep_freed_memory
way, path = sys.argv[1:]
if way == "kept":
    assert keep_freed_memory({})
elif way == "loader":
    config = load_config(path).config
    measure_step(config, plan_execution(config.training, "cpu"), 0.0)
elif way == "compile":
    config = load_config(path).config.to_dict()
    assert not main({"config": config, "mode": "none", "device": "cpu", "steps": 1, "seconds": 0.1})["error"]
elif way == "sweep":
    engine.lr_sweep(path, lrs=(1e-3, 3e-3), steps=5, device="cpu")
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
def step():
    blocks = [library.malloc(2**23) for _ in range(10)]
    for block in blocks:
        ctypes.memset(block, 1, 2**23)
    for block in reversed(blocks):
        library.free(block)
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way: str, config: Path | str = "") -> int:
    """Return the page faults of some steps in a process that was prepared in some way."""
    command = [sys.executable, "-c", _FAULTS, way, str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU C library's")
def test_what_a_step_frees_serves_the_next_one() -> None:
    kept, given_back = faults("kept"), faults("default")
    assert given_back > 10_000
    assert kept < given_back / 10


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU C library's")
@pytest.mark.parametrize("way", ["loader", "compile", "sweep"])
def test_steps_that_are_clocked_for_a_training_keep_it_too(way: str, tiny_config: Callable[..., Path]) -> None:
    """Else a step takes a sixth longer: `diagnose loader` told 10 to 30 % more than an epoch took."""
    assert faults(way, tiny_config()) < 1000


@pytest.mark.parametrize(
    "variables",
    [
        {"MALLOC_ARENA_MAX": "2"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"},
        {"LD_PRELOAD": "libjemalloc.so.2"},
    ],
)
def test_settings_of_the_user_go_before(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        gnu_get_libc_version = None

        def mallopt(self, option: int, value: int) -> int:
            raise AssertionError("changed against the user's wish")

    monkeypatch.setattr("ctypes.CDLL", lambda name: Library())
    assert heap.keep_freed_memory(variables) is False
