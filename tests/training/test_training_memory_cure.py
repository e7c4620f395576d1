"""Settings that are proposed where a run does not fit were estimated themselves; where none fits, the least is said."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from xectool.config.load import config_from_dict
from xectool.config.root import RunConfig
from xectool.training.memory_estimate.calibration import Calibration
from xectool.training.memory_estimate.cure import Cures
from xectool.training.memory_estimate.device import CONTEXT_BYTES, WORKSPACE_BYTES, Device
from xectool.training.memory_estimate.plan import BASE, ladder, with_settings
from xectool.training.memory_estimate.recording import ALIVE, CATEGORIES, Recording
from xectool.training.memory_estimate.search import Search

MB = 10**6
BESIDE = CONTEXT_BYTES + WORKSPACE_BYTES
CASE: dict[str, Any] = {
    "kind": "mae",
    "data": {"batch_size": 48, "chunksize": 8192, "num_workers": 2},
    "model": {"encoder_dim": 128, "outer_fine_pool": [5, 3]},
    "training": {"ema_decay": 0.9, "compile": "none", "device": "cpu"},
}
CONFIG = config_from_dict(CASE, "test")


def step_bytes(config: RunConfig, casts: int = 0) -> int:
    """A step that is no straight line: beyond ten events it takes more for each."""
    batch, training = config.data.batch_size, config.training
    each = (
        20 * MB * (0.5 if training.amp == "bf16" else 1) * (0.6 if training.activation_checkpointing != "none" else 1)
    )
    held = 100 * MB if training.ema_decay is not None else 0
    return round(200 * MB + held + each * (batch + 0.05 * max(0, batch - 10) ** 2) + casts * (training.amp == "bf16"))


def recording(size: int, batch: int) -> Recording:
    nothing = np.zeros(1, dtype=np.int64)
    return Recording(
        nothing + size, nothing, nothing + ALIVE, nothing + CATEGORIES.index("other"), nothing, nothing,
        (("forward", 0),), ("",), batch,
    )  # fmt: skip


def cures_for(device: Device, host_bytes: int = 10**12, casts: int = 0, config: RunConfig = CONFIG) -> Cures:
    def tape(changed: RunConfig) -> Recording:
        return recording(step_bytes(changed, casts), changed.data.batch_size)

    def loader_bytes(changed: RunConfig) -> int:
        return changed.data.chunksize * 100_000

    search = Search(Calibration().on(device), Calibration(), 0, None, "off", host_bytes)
    keyed = {item.key: tape(with_settings(config, item.settings)) for item in ladder(config, "off") if item.key}
    return Cures(search, config, {BASE: tape(config), **keyed}, tape, loader_bytes)


@pytest.mark.parametrize("megabytes", [*range(1060, 1400, 17), 1500, 2000, 2600])
def test_what_is_proposed_for_a_gpu_fits_and_what_is_refused_fits_with_nothing(megabytes: int) -> None:
    total = round(megabytes * MB / 0.9)
    proposed = 0.85 * total
    found = cures_for(Device("card", total, is_gpu=True)).of_device()
    if step_bytes(CONFIG) + BESIDE <= megabytes * MB:
        assert found is None
        return
    assert found is not None
    assert step_bytes(with_settings(CONFIG, found.settings)) + BESIDE <= found.needed_bytes  # blocks are rounded up
    assert found.fits == (found.needed_bytes <= 0.9 * total)
    assert found.fits == any(size + BESIDE <= megabytes * MB for size in sizes_of_all_combinations())
    with_room = any(size + BESIDE <= proposed for size in sizes_of_all_combinations())
    assert (found.needed_bytes <= proposed) == with_room  # the rest is tried only where nothing leaves that


def sizes_of_all_combinations() -> list[int]:
    lines = ("training.amp=bf16", "training.activation_checkpointing=stages", "training.ema_decay=null")
    chosen = itertools.chain.from_iterable(itertools.combinations(lines, count) for count in range(4))
    return [step_bytes(with_settings(CONFIG, ["data.batch_size=1", *some])) for some in chosen]


def test_the_effective_batch_stays_and_the_mildest_change_comes_first() -> None:
    room = step_bytes(with_settings(CONFIG, ["data.batch_size=16"])) + BESIDE + MB
    found = cures_for(Device("card", round(room / 0.85), is_gpu=True)).of_device()
    assert found is not None
    assert found.settings == ("data.batch_size=16", "training.grad_accum_steps=3")
    one = step_bytes(with_settings(CONFIG, ["data.batch_size=1", "training.activation_checkpointing=stages"]))
    found = cures_for(Device("card", round((one + BESIDE + MB) / 0.85), is_gpu=True)).of_device()
    assert found is not None
    assert found.settings[2:] == ("training.activation_checkpointing=stages",)  # and not the others too


def test_half_precision_is_left_out_of_the_least_where_its_casts_take_more_than_it_saves() -> None:
    found = cures_for(Device("card", 10**8, is_gpu=True), casts=500 * MB).of_device()
    assert found is not None
    assert not found.fits
    assert "training.amp=bf16" not in found.settings
    control = cures_for(Device("card", 10**8, is_gpu=True)).of_device()
    assert control is not None
    assert "training.amp=bf16" in control.settings
    assert control.needed_bytes < found.needed_bytes


def test_the_host_is_cured_by_what_takes_it() -> None:
    card = Device("card", 10**12, is_gpu=True)
    for host_gigabytes in (2.9, 3.0, 3.1):
        found = cures_for(card, round(host_gigabytes * 1e9)).of_host()
        assert found is not None
        assert found.fits == (found.needed_bytes <= 0.9 * host_gigabytes * 1e9)
        assert found.fits
        assert found.settings[0].startswith("data.chunksize=")
    hopeless = cures_for(card, 10**9).of_host()
    assert hopeless is not None
    assert not hopeless.fits
    assert {"data.chunksize=48", "data.num_workers=0"} == set(hopeless.settings)
    assert cures_for(card, 10**10).of_host() is None


def test_on_the_cpu_the_largest_term_decides_whether_the_step_or_the_loader_gets_smaller() -> None:
    cpu = Device("cpu", 4 * 10**9, is_gpu=False)
    found = cures_for(cpu, 4 * 10**9).of_host()
    assert found is not None
    assert found.fits
    assert found.settings[0].startswith("data.batch_size=")  # 3.7 GB of the step beside 0.8 GB of the loader
    loading = with_settings(CONFIG, ["data.batch_size=2", "data.chunksize=65536"])
    found = cures_for(cpu, 4 * 10**9, config=loading).of_host()
    assert found is not None
    assert found.fits
    assert [line.partition("=")[0] for line in found.settings] == ["data.chunksize"]
    assert cures_for(cpu, 10**11).of_host() is None
    assert cures_for(cpu, 10**11).of_device() is None
