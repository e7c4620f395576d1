"""Numbers for hidden positions only; an exported or compiled graph always has some to compute."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from xectool.models.hidden_places import Places, at_hidden


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("hide", [[], [(0, 0)], [(0, 3), (1, 0), (1, 4)]])
def test_numbers_stand_at_hidden_positions_and_nowhere_else(
    traced: bool, hide: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: traced)
    hidden = torch.zeros(2, 5, dtype=torch.bool)
    for place in hide:
        hidden[place] = True
    asked: list[int] = []

    def values(places: Places) -> Tensor:
        asked.append(len(places[0]))
        return torch.stack((10.0 * places[0] + places[1] + 1, torch.full((len(places[0]),), 7.0)), dim=1)

    found = at_hidden(hidden, values)
    assert found.shape == (2, 5, 2)
    assert {tuple(place) for place in found[..., 1].nonzero().tolist()} == set(hide)
    assert all(found[event, position, 0] == 10 * event + position + 1 for event, position in hide)
    # Without anything hidden a plain run computes nothing, and an exported or compiled graph never does so.
    assert (asked[0] == 0) is (not hide and not traced)
