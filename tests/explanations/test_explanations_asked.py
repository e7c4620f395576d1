"""What people ask ``explain`` in their own words, and whether the lines it answers with suit a default configuration."""

from __future__ import annotations

import re

import pytest
from xectool import engine
from xectool.config.keys import keys_of


@pytest.mark.parametrize("topic", ["out of memory", "XT-OOM"])
def test_less_memory_takes_a_smaller_batch_than_the_default_and_keeps_the_effective_one(topic: str) -> None:
    default = keys_of("regressor")["data.batch_size"].default()
    match = re.search(r"data\.batch_size=(\d+) --set training\.grad_accum_steps=(\d+)", engine.explain(topic).text)
    assert match
    batch, accum = int(match[1]), int(match[2])
    assert batch < default == batch * accum
