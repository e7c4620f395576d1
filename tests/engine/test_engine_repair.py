"""What an inpainter says that no sensor can read is no answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn
from xectool.config.normalization import NormalizationConfig
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.engine.repairing import filler
from xectool.models.normalize import Normalizer


class Boundless(nn.Module):
    """Says so many network units of every hidden sensor."""

    def __init__(self, units: float) -> None:
        super().__init__()
        self.normalizer, self.units = Normalizer(NormalizationConfig()), units

    def inpaint(self, npho: Tensor, time: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return the hidden sensors as a network fills them."""
        said = self.normalizer.inverse_npho(torch.full_like(npho, self.units))
        return {"npho": torch.where(mask, said, npho), "time": time}


def test_photons_without_end_leave_a_sensor_dead() -> None:
    npho = torch.tensor([[5.0, 1e10, UNKNOWN_ABOVE]])
    mask = torch.tensor([[False, True, False]])
    for units, expected in ((25.0, 1e10), (0.17, 1000.6)):
        fill = filler(cast(Any, SimpleNamespace(network=Boundless(units))))
        found = fill(npho, npho, mask)["npho"]
        torch.testing.assert_close(found[0, 1], torch.tensor(expected), rtol=1e-3, atol=0)
        assert torch.equal(found[~mask], npho[~mask]), "what is not hidden stays what it was"
    endless = Boundless(25.0).inpaint(npho, npho, mask)["npho"][0, 1]
    assert float(endless) <= UNKNOWN_ABOVE, "the control: by itself it would count as a reading"


def test_an_event_without_a_reading_is_not_guessed() -> None:
    npho = torch.tensor([[1e10, 1e10, float("nan")], [5.0, 1e10, 3.0]])
    mask = torch.tensor([[True, True, True], [False, True, False]])
    found = filler(cast(Any, SimpleNamespace(network=Boundless(0.17))))(npho, npho, mask)["npho"]
    assert (found[0] == 1e10).all()
    assert float(found[1, 1]) < 2000, "the other event is filled"
    guess = Boundless(0.17).inpaint(npho, npho, mask)["npho"]
    assert float(guess[0, 0]) < 2000, "the control: the network by itself says what it says of any event"
