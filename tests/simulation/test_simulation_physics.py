"""Numbers and cross sections agree with what is published."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from xectool.detector import constants
from xectool.simulation import physics

DOCS = Path(__file__).parents[2] / "docs" / "physics.md"


def test_gamma_rays_of_the_signal_go_about_five_centimetres() -> None:
    assert physics.attenuation_length_cm(0.0528) == pytest.approx(5.1, abs=0.1)


def test_attenuation_length_stays_above_its_high_energy_limit() -> None:
    lengths = physics.attenuation_length_cm(np.linspace(0.005, 0.08, 200))
    assert (np.diff(lengths[lengths < 8.5]) < 0).all()
    assert (lengths > 9 / 7 * physics.RADIATION_LENGTH_CM).all()


def test_compton_part_agrees_with_klein_and_nishina() -> None:
    # The complete formula at 20 MeV, per electron; the simulation keeps its leading terms.
    k = 0.020 / physics.ELECTRON_MASS_GEV
    log = np.log1p(2 * k)
    complete = (1 + k) / k**2 * (2 * (1 + k) / (1 + 2 * k) - log / k) + log / (2 * k) - (1 + 3 * k) / (1 + 2 * k) ** 2
    leading = (np.log(2 * k) + 0.5) / (2 * k)
    assert leading == pytest.approx(complete, rel=0.03)


def test_lengths_have_the_published_size() -> None:
    assert pytest.approx(2.87, abs=0.01) == physics.RADIATION_LENGTH_CM
    assert pytest.approx(5.25, abs=0.01) == physics.MOLIERE_RADIUS_CM
    assert pytest.approx(2.44e6, rel=0.01) == 0.0528 / physics.ENERGY_PER_PHOTON_GEV


def numbers(module: ModuleType) -> dict[str, float]:
    values = {name: value for name, value in vars(module).items() if name.isupper()}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


@pytest.mark.parametrize("module", [constants, physics], ids=["detector", "simulation"])
def test_the_page_lists_every_number_with_its_value(module: ModuleType) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([-\d.e+]+)", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE))
    for name, value in numbers(module).items():
        assert name in rows, f"add a row for {name} to {DOCS.name}"
        assert rows[name] == f"{value:.6g}", f"{name} is {value:.6g}"


@pytest.mark.parametrize("module", [constants, physics], ids=["detector", "simulation"])
def test_every_number_names_its_source(module: ModuleType) -> None:
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    bare = re.findall(r"^([A-Z][A-Z0-9_]+) = [^#]*$", source, flags=re.MULTILINE)
    assert bare == []
