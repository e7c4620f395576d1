"""What an inpainter says that no sensor can read is no answer; less light than none is none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import uproot
from torch import Tensor, nn
from xectool.config.data import DataConfig
from xectool.config.load import config_from_overrides
from xectool.config.normalization import NormalizationConfig
from xectool.data.batch import EventBatch
from xectool.data.dead_masks import ListedSensors
from xectool.data.source import open_source
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.engine import repairing
from xectool.engine.repairing import filler
from xectool.models.normalize import Normalizer
from xectool.tasks.event_variants import with_network
from xectool.training.predicting.repair import RepairRun, write_repaired


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


def test_a_listed_sensor_without_an_answer_is_dead_in_the_repaired_file(tmp_path: Path) -> None:
    """A noisy channel of which the file has readings: of no event is what it said taken for light."""
    npho = np.full((2, 4760), 1e10, "f4")
    npho[:, 7], npho[1, 8] = 50.0, 40.0  # in the first event it is the only one that reads
    flags = np.zeros((2, 4760), "u1")
    flags[:, [7, 9]] = 1  # of an earlier repair
    with uproot.recreate(tmp_path / "noisy.root") as file:
        file["tree"] = {"npho": npho, "relative_time": np.zeros((2, 4760), "f4"), "repaired": flags}
    source = open_source(DataConfig(), [str(tmp_path / "noisy.root")], tasks=(), require_truth=False)
    dead = ListedSensors(np.arange(4760) == 7, "a list")
    fill = filler(cast(Any, SimpleNamespace(network=Boundless(0.17))))
    written = write_repaired(source, tmp_path / "r.root", RepairRun(fill, dead, torch.device("cpu"), 2))
    found = uproot.open(tmp_path / "r.root")["tree"].arrays(["npho", "relative_time", "repaired"], library="np")
    assert (written.num_dead, written.num_filled) == (2, 1)
    assert found["npho"][0, 7] == found["relative_time"][0, 7] == np.float32(1e10)
    assert 50 < found["npho"][1, 7] < 2000
    assert found["repaired"][:, 7].tolist() == [0, 1]
    assert found["repaired"][:, 9].tolist() == [1, 1]
    kept = np.arange(4760) != 7
    assert np.array_equal(found["npho"][:, kept], npho[:, kept])


def repaired(folder: Path, monkeypatch: pytest.MonkeyPatch, units: float) -> repairing.RepairResult:
    """Repair ``dead.root`` with what says the same of every sensor."""
    source = open_source(DataConfig(), [str(folder / "dead.root")], tasks=(), require_truth=False)
    loaded = SimpleNamespace(network=Boundless(units), execution=SimpleNamespace(device=torch.device("cpu")), notes=())
    loaded.config = config_from_overrides([])
    monkeypatch.setattr(repairing, "load_inpainter", lambda *_: loaded)
    monkeypatch.setattr(repairing, "open_events", lambda *_: source)
    monkeypatch.setattr(repairing, "events_at_once", lambda *_: 2)
    (folder / "inp.pt").touch()
    return repairing.repair(folder / "inp.pt", [str(folder / "dead.root")], output=folder / "r.root")


def test_what_lies_beside_the_tree_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was gone without a word."""
    npho = np.full((3, 4760), 1e10, "f4")
    npho[:, 9:] = 5.0
    with uproot.recreate(tmp_path / "dead.root") as file:
        file["tree"] = {"npho": npho, "relative_time": np.zeros((3, 4760), "f4")}
        file["light"], file["note"] = np.histogram(np.ones(3)), "by hand"
    (found,) = repaired(tmp_path, monkeypatch, 0.17).findings
    assert found.code == "XT-CONVERT-KEYS"
    assert found.problem.endswith("are not in '" + str(tmp_path / "r.root") + "': light (TH1D), note (TObjString)")


@pytest.mark.parametrize(("units", "warned"), [(-0.3, 1), (-0.01, 0), (0.17, 0)])
def test_negative_light_is_none_and_much_of_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, units: float, warned: int
) -> None:
    npho = np.full((3, 4760), -7.0, "f4")  # noise of sensors that live stays
    npho[:, [7, 9]] = 1e10
    with uproot.recreate(tmp_path / "dead.root") as file:
        file["tree"] = {"npho": npho, "relative_time": np.zeros((3, 4760), "f4")}
    result = repaired(tmp_path, monkeypatch, units)
    found = uproot.open(tmp_path / "r.root")["tree"].arrays(["npho", "repaired"], library="np")
    said = float(Normalizer(NormalizationConfig()).inverse_npho(torch.tensor(units)))
    np.testing.assert_allclose(found["npho"][:, [7, 9]], max(said, 0.0), rtol=1e-5)
    assert (found["npho"][:, 8] == -7).all()
    assert found["repaired"].sum() == 6
    assert result.as_dict()["negative_per_event"] == (2 if units < 0 else 0)
    codes = [note.code for note in result.findings]
    assert codes == ["XT-REPAIR-NEGATIVE"] * warned
    for note in result.findings:
        assert note.problem.startswith("6 of 6 filled readings were negative, 6 of them below -50 photons")
        assert note.fix.startswith(f"xectool predict {tmp_path}/inp.pt {tmp_path}/dead.root ")


def test_a_comparison_fills_no_negative_light_either() -> None:
    npho = torch.tensor([[5.0, 1e10, -3.0]])
    mask = torch.tensor([[False, True, False]])
    identity = np.arange(1)
    batch = EventBatch(npho, torch.zeros_like(npho), {}, torch.ones(1), *[identity] * 4, epoch=0, step=0)
    found = with_network(Boundless(-0.3).inpaint)(batch, mask)
    assert found.npho.tolist() == [[5.0, 0.0, -3.0]]
