"""The calorimeter formula ``sigma/E = a / sqrt(E) (+) b (+) c / E`` fitted to a resolution in bins of energy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from iminuit import Minuit
from iminuit.cost import LeastSquares
from scipy.special import chdtrc

FloatArray = npt.NDArray[np.float64]

MIN_POINTS = 4  # three parameters and one degree of freedom
ONE_SIGMA = 1.0
LIMIT_95 = 1.645**2  # one-sided
LEAST_P_VALUE = 0.01
"""Below it the formula does not describe the points, and its terms and their intervals mean nothing."""
_NUM_SCAN = 40
_REACH = 3.0  # errors by which a single term may exceed a point before its scan ends
_POWERS = (1, 0, 2)  # of 1/E under the squared terms


@dataclass(frozen=True)
class Term:
    """One term of the formula, from the profile of chi2 over the other two.

    Attributes:
        value: Where chi2 is smallest.
        low: Lower end of the 68 % interval; 0 where the data do not tell the term from zero.
        high: Upper end of the 68 % interval.
        limit: Upper limit at 95 % confidence.
    """

    value: float
    low: float
    high: float
    limit: float

    @property
    def resolved(self) -> bool:
        """Whether the 68 % interval leaves zero out."""
        return self.low > 0

    def text(self, symbol: str, factor: float, unit: str, digits: int) -> str:
        """Return ``value + up - down``, or the upper limit of a term that is not resolved."""
        value, low, high, limit = (factor * number for number in (self.value, self.low, self.high, self.limit))
        if not self.resolved:
            return f"${symbol} < {limit:.{digits}f}$ {unit} (95 % CL)"
        return f"${symbol} = {value:.{digits}f}^{{+{high - value:.{digits}f}}}_{{-{value - low:.{digits}f}}}$ {unit}"


@dataclass(frozen=True)
class EnergyFit:
    """Fitted terms of the energy resolution, energies in GeV.

    Attributes:
        stochastic: a, in sqrt(GeV).
        constant: b, relative.
        noise: c, in GeV.
        chi2: Sum of squared pulls.
        ndof: Degrees of freedom.
    """

    stochastic: Term
    constant: Term
    noise: Term
    chi2: float
    ndof: int

    def __call__(self, energy_gev: FloatArray) -> FloatArray:
        """Return sigma/E."""
        return resolution(energy_gev, self.stochastic.value, self.constant.value, self.noise.value)

    @property
    def p_value(self) -> float:
        """Chance of a chi2 at least as large where the formula is right."""
        return float(chdtrc(self.ndof, self.chi2))

    @property
    def describes(self) -> bool:
        """Whether the points may come from the formula."""
        return self.p_value >= LEAST_P_VALUE

    def text(self) -> str:
        """Return the result as lines for a plot: the terms only of a fit that describes the points."""
        goodness = f"$\\chi^2/\\mathrm{{ndof}} = {self.chi2:.1f}/{self.ndof}$, $p = {self.p_value:.2g}$"
        if not self.describes:
            return f"does not describe the points:\n{goodness}"
        terms = (
            self.stochastic.text("a", 100, "% GeV$^{1/2}$", 3),
            self.constant.text("b", 100, "%", 2),
            self.noise.text("c", 1e3, "MeV", 3),
        )
        return "\n".join((*terms, goodness))


@dataclass(frozen=True)
class NoFit:
    """Why there is no fit."""

    reason: str


def resolution(energy_gev: FloatArray, a: float, b: float, c: float) -> FloatArray:
    """Return ``sqrt((a / sqrt E)^2 + b^2 + (c / E)^2)``."""
    return _of_squares(energy_gev, a**2, b**2, c**2)


def fit_energy_resolution(energy_gev: FloatArray, relative: FloatArray, error: FloatArray) -> EnergyFit | NoFit:
    """Fit the three terms, each bounded to be at least zero.

    The squares of the terms are fitted, in which the formula is smooth down to zero. A second derivative says nothing
    where a term lies at its bound, and the three are hardly told apart over a narrow range of energies: intervals come
    from chi2 minimised over the other terms, scanned from zero to where the term alone exceeds a point by three errors.

    Args:
        energy_gev: Mean energy of each bin, shape (N,).
        relative: sigma/E of each bin, shape (N,).
        error: Its error, shape (N,).

    Returns:
        The fit, whether or not it describes the points, or why there is none.
    """
    usable = np.isfinite(relative) & (error > 0) & (energy_gev > 0) & (relative > 0)
    if usable.sum() < MIN_POINTS:
        return NoFit(f"no fit: {usable.sum()} of the {MIN_POINTS} energies that it needs")
    energy, relative, error = energy_gev[usable], relative[usable], error[usable]
    most = [float(((relative + _REACH * error) ** 2 * energy**power).min()) for power in _POWERS]
    minuit = Minuit(LeastSquares(energy, relative, error, _of_squares), *(top / 3 for top in most))
    for name, top in zip(minuit.parameters, most, strict=True):
        minuit.limits[name] = (0, 2 * top)
        minuit.errors[name] = top / 10
    minuit.migrad()
    if not minuit.valid:
        return NoFit("no fit: the minimiser did not converge")
    chi2 = float(minuit.fval or 0.0)
    a, b, c = (_term(minuit, name, top, chi2) for name, top in zip(minuit.parameters, most, strict=True))
    return EnergyFit(a, b, c, chi2, int(usable.sum()) - 3)


def _of_squares(energy_gev: FloatArray, a2: float, b2: float, c2: float) -> FloatArray:
    return np.sqrt(a2 / energy_gev + b2 + c2 / energy_gev**2)


def _term(minuit: Minuit, name: str, most: float, chi2: float) -> Term:
    """Return a term with its intervals; ``most`` is where the scan of its square ends."""
    best = float(minuit.values[name]) ** 0.5
    scanned = np.unique([*np.linspace(0.0, most**0.5, _NUM_SCAN), best])
    _, profile, _ = minuit.mnprofile(name, grid=scanned**2)
    above, place = np.maximum(profile - chi2, 0.0), int(np.searchsorted(scanned, best))
    above[place] = 0.0
    # Chi2 grows like a square away from its minimum: roots are straighter to interpolate.
    upwards = np.sqrt(np.maximum.accumulate(above[place:]))
    downwards = np.sqrt(np.maximum.accumulate(above[place::-1]))
    high, limit = (float(np.interp(level**0.5, upwards, scanned[place:])) for level in (ONE_SIGMA, LIMIT_95))
    low = float(np.interp(ONE_SIGMA, downwards, scanned[place::-1])) if downwards[-1] > ONE_SIGMA else 0.0
    return Term(best, low, high, limit)
