"""The line of parameters that begins a training says what is not trained, and nothing that is not so."""

from __future__ import annotations

import pytest
from torch import nn
from xectool.training.record.description import _counted


def network(**heads: bool) -> nn.Module:
    made = nn.Module()
    made.encoder, made.heads = nn.Linear(9, 1), nn.ModuleDict({name: nn.Linear(4, 1) for name in heads})
    for name, trained in heads.items():
        made.heads[name].requires_grad_(trained)
    return made


@pytest.mark.parametrize(
    ("heads", "is_frozen", "said"),
    [
        ({"energy": True}, False, "15 trained"),
        ({"energy": True, "timing": False}, False, "15 trained of 20: no task timing"),
        ({"energy": True}, True, "5 trained of 15: encoder frozen"),
        ({"energy": True, "timing": False}, True, "5 trained of 20: encoder frozen; no task timing"),
    ],
)
def test_what_is_not_trained_is_named(heads: dict[str, bool], is_frozen: bool, said: str) -> None:
    made = network(**heads)
    made.encoder.requires_grad_(not is_frozen)
    assert _counted(made) == said
