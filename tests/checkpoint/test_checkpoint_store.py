"""Checkpoints are whole or absent, verified on load, and never run code."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.checkpoint import format, store
from xectool.checkpoint.format import Checkpoint
from xectool.errors import CheckpointError, DiskError
from xectool.runlog.atomic import write_json


def example(value: float = 1.0, size: int = 64) -> Checkpoint:
    weights = {"layer.weight": torch.full((size, 3), value), "layer.bias": torch.arange(3.0)}
    training = {"optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-3}]}}
    return Checkpoint({"kind": "regressor", "config": {"data": {"batch_size": 4}}}, weights, dict(weights), training)


def test_round_trip_keeps_every_value(tmp_path: Path) -> None:
    store.save(tmp_path / "a.pt", example(2.5))
    loaded = store.load(tmp_path / "a.pt")
    assert loaded.meta == example().meta
    assert torch.equal(loaded.model["layer.weight"], torch.full((64, 3), 2.5))
    assert loaded.training["optimizer"]["param_groups"] == [{"lr": 1e-3}]
    assert loaded.origin == "xectool-checkpoint"


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(PLAIN)
def test_digest_survives_the_round_trip_of_any_plain_value(value: object) -> None:
    content = {"x": value, "t": torch.arange(4, dtype=torch.int16)}
    assert format.digest(pickle.loads(pickle.dumps(content))) == format.digest(content)


def test_digest_sees_type_shape_key_and_value() -> None:
    base = {"a": torch.zeros(2, 3), "b": 1}
    variants: list[dict[str, object]] = [
        {"a": torch.zeros(3, 2), "b": 1},
        {"a": torch.zeros(2, 3, dtype=torch.float64), "b": 1},
        {"c": torch.zeros(2, 3), "b": 1},
        {"a": torch.zeros(2, 3), "b": 1.0},
        {"a": torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 1e-30]]), "b": 1},
    ]
    digests = {format.digest(variant) for variant in [base, *variants]}
    assert len(digests) == 6
    assert format.digest({"b": 1, "a": torch.zeros(2, 3)}) == format.digest(base)


def test_flipped_bit_in_a_weight_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    store.save(path, example(3.25, size=4096))
    data = bytearray(path.read_bytes())
    at = data.index(np.full(64, 3.25, np.float32).tobytes()) + 40
    data[at] ^= 0x40
    path.write_bytes(data)
    payload = torch.load(path, weights_only=True)
    assert not torch.equal(payload["model"]["layer.weight"], torch.full((4096, 3), 3.25)), (
        "torch alone loads it silently"
    )
    with pytest.raises(CheckpointError, match="damaged"):
        store.load(path)


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99])
def test_truncated_file_is_named_as_such(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "a.pt"
    store.save(path, example(size=512))
    data = path.read_bytes()
    path.write_bytes(data[: int(keep if keep > 1 or keep in {0, 1} else keep * len(data))])
    with pytest.raises(CheckpointError, match=r"(truncated|empty|does not start)") as caught:
        store.load(path)
    assert "--resume auto" in caught.value.fix
    assert "miniz" not in caught.value.problem
    if keep == 0.5:
        named = f"truncated after {len(data) // 2} bytes: the archive's directory, its last part, is missing"
        assert caught.value.problem == f"cannot read the checkpoint: {named}", "as inspect-ckpt says it"


@pytest.mark.parametrize("content", [b"hello\n", b"<html></html>", b"version https://git-lfs", bytes(1000)])
def test_something_else_is_not_a_checkpoint(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot read the checkpoint") as caught:
        store.load(path)
    is_damage = not any(content)
    assert ("another checkpoint of the run" in caught.value.fix) == is_damage


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    store.save(tmp_path / "checkpoint_last.pt", example())
    with pytest.raises(CheckpointError, match=r"did you mean .checkpoint_last\.pt"):
        store.load(tmp_path / "checkpoint_lst.pt")


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch " + os.environ["XECTOOL_MARKER"],)


def test_pickled_code_is_named_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "marker"
    monkeypatch.setenv("XECTOOL_MARKER", str(marker))
    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="would run code"):
        store.load(tmp_path / "evil.pt")
    assert not marker.exists()


def test_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    payload = format.pack(example())
    torch.save({**payload, "version": 99}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="pip install --upgrade"):
        store.load(tmp_path / "a.pt")


@pytest.mark.parametrize("name", ["version", "digest", "meta", "model", "ema", "training"])
def test_a_damaged_name_of_a_section_is_damage(name: str, tmp_path: Path) -> None:
    payload = format.pack(example())
    torch.save({key if key != name else "Model": value for key, value in payload.items()}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="the checkpoint is damaged"):
        store.load(tmp_path / "a.pt")


def test_ema_is_preferred_and_its_absence_is_said() -> None:
    averaged = {"w": torch.ones(1)}
    checkpoint = Checkpoint({"kind": "regressor", "config": {}}, {"w": torch.zeros(1)}, averaged)
    assert checkpoint.weights() is averaged
    assert checkpoint.weights("model") is checkpoint.model
    with pytest.raises(CheckpointError, match="--weights model"):
        Checkpoint({"kind": "regressor", "config": {}}, {"w": torch.zeros(1)}).weights("ema")


def test_published_name_outlives_the_next_save(tmp_path: Path) -> None:
    last = tmp_path / store.LAST_NAME
    store.save(last, example(1.0))
    store.publish(last, tmp_path / store.BEST_NAME)
    store.save(last, example(2.0))
    assert float(store.load(tmp_path / store.BEST_NAME).model["layer.weight"][0, 0]) == 1.0
    assert float(store.load(last).model["layer.weight"][0, 0]) == 2.0


def test_publishing_copies_where_links_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError("links are not supported")

    monkeypatch.setattr(os, "link", refuse)
    store.save(tmp_path / store.LAST_NAME, example(4.0))
    store.publish(tmp_path / store.LAST_NAME, tmp_path / store.BEST_NAME)
    assert float(store.load(tmp_path / store.BEST_NAME).model["layer.weight"][0, 0]) == 4.0


def test_newest_passes_over_a_damaged_checkpoint_and_says_so(tmp_path: Path) -> None:
    store.save(tmp_path / store.epoch_name(1), example(1.0))
    store.save(tmp_path / store.LAST_NAME, example(2.0))
    last = tmp_path / store.LAST_NAME
    last.write_bytes(last.read_bytes()[:500])
    path, checkpoint, rejected = store.newest(tmp_path)
    assert path.name == store.epoch_name(1)
    assert float(checkpoint.model["layer.weight"][0, 0]) == 1.0
    assert [error.where for error in rejected] == [str(last)]


def at_step(step: int) -> Checkpoint:
    return replace(example(float(step)), meta={**example().meta, "step": step})


def test_newest_goes_by_steps_and_not_by_the_times_of_files(tmp_path: Path) -> None:
    for name, step in ((store.LAST_NAME, 9), (store.epoch_name(3), 6), (store.epoch_name(10), 8)):
        store.save(tmp_path / name, at_step(step))
    for number, path in enumerate(sorted(tmp_path.iterdir(), reverse=True)):
        os.utime(path, (1000 + number, 1000 + number))
    assert store.newest(tmp_path)[0].name == store.LAST_NAME
    (tmp_path / store.LAST_NAME).write_bytes(b"PK torn")
    assert store.newest(tmp_path)[0].name == store.epoch_name(10)


def test_empty_run_has_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="leave out --resume"):
        store.newest(tmp_path)


SAVER = """
import sys, torch
from pathlib import Path
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
path = Path(sys.argv[1])
step = 0
while True:
    step += 1
    weights = {f"w{i}": torch.full((200_000,), float(step)) for i in range(4)}
    store.save(path, Checkpoint({"kind": "regressor", "config": {}, "step": step}, weights, {}, {"step": step}))
    print(step, flush=True)
"""


@pytest.mark.slow
def test_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / store.LAST_NAME
    rng = np.random.default_rng(5)
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", SAVER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(float(rng.uniform(0.0, 0.3)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        loaded = store.load(path)
        assert all(float(tensor[0]) == loaded.meta["step"] for tensor in loaded.model.values())


FULL_DISK = """
import resource, signal, sys, torch
from pathlib import Path
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
big = {"w": torch.zeros(1_000_000)}
try:
    store.save(Path(sys.argv[1]), Checkpoint({"kind": "regressor", "config": {}}, big))
except store.DiskError as error:
    print("refused:", error.problem)
"""


def test_full_disk_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / store.LAST_NAME
    store.save(path, example(7.0))
    result = subprocess.run(
        [sys.executable, "-B", "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True
    )
    assert "refused: cannot write the checkpoint" in result.stdout
    assert float(store.load(path).model["layer.weight"][0, 0]) == 7.0
    assert [p.name for p in tmp_path.iterdir()] == [store.LAST_NAME]


def test_unwritable_directory_is_a_disk_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match=r"checkpoint\.save_dir"):
        store.save(tmp_path / "file" / "a.pt", example())


@pytest.mark.parametrize("lost", [1, 1000])
def test_bytes_that_a_file_system_loses_are_noticed_before_the_previous_checkpoint_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    path = tmp_path / "a.pt"
    store.save(path, example(1.0))
    monkeypatch.setattr(os, "fsync", lambda handle: os.ftruncate(handle, os.fstat(handle).st_size - lost))
    with pytest.raises(DiskError, match="read back"):
        store.save(path, example(2.0))
    assert torch.equal(store.load(path).model["layer.weight"], example(1.0).model["layer.weight"])
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize(
    "write", [lambda path: store.save(path, example(2.0)), lambda path: write_json(path, {"a": 1})]
)
def test_an_interrupt_leaves_the_previous_file_and_no_part_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    path, seen = tmp_path / "a.pt", list[Path]()
    path.write_bytes(b"before")

    def interrupt(handle: int) -> None:
        seen.extend(tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(path)
    assert len(seen) == 2
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"before"
