"""The calorimeter formula ``sigma/E = a / sqrt(E) (+) b (+) c / E`` fitted to a resolution in bins of energy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from iminuit import Minuit
from iminuit.cost import LeastSquares

FloatArray = npt.NDArray[np.float64]

MIN_POINTS = 4  # three parameters and one degree of freedom
START = (0.02, 0.01, 0.001)


@dataclass(frozen=True)
class EnergyFit:
    """Fitted terms of the energy resolution, energies in GeV.

    Attributes:
        stochastic: a, in sqrt(GeV).
        constant: b, relative.
        noise: c, in GeV.
        errors: Their errors from the Hesse matrix, in the same order; nan where the fit gives none.
        chi2: Sum of squared pulls.
        ndof: Degrees of freedom.
    """

    stochastic: float
    constant: float
    noise: float
    errors: tuple[float, float, float]
    chi2: float
    ndof: int

    def __call__(self, energy_gev: FloatArray) -> FloatArray:
        """Return sigma/E."""
        return resolution(energy_gev, self.stochastic, self.constant, self.noise)

    def text(self) -> str:
        """Return the result as lines for a plot."""
        a, b, c = self.errors
        return (
            f"$a = {100 * self.stochastic:.3f} \\pm {100 * a:.3f}\\ \\%\\,\\mathrm{{GeV}}^{{1/2}}$\n"
            f"$b = {100 * self.constant:.2f} \\pm {100 * b:.2f}\\ \\%$\n"
            f"$c = {1e3 * self.noise:.3f} \\pm {1e3 * c:.3f}\\ \\mathrm{{MeV}}$\n"
            f"$\\chi^2/\\mathrm{{ndof}} = {self.chi2:.1f}/{self.ndof}$"
        )


def resolution(energy_gev: FloatArray, a: float, b: float, c: float) -> FloatArray:
    """Return ``sqrt((a / sqrt E)^2 + b^2 + (c / E)^2)``."""
    squared: FloatArray = a**2 / energy_gev + b**2 + (c / energy_gev) ** 2
    return np.sqrt(squared)


def fit_energy_resolution(energy_gev: FloatArray, relative: FloatArray, error: FloatArray) -> EnergyFit | None:
    """Fit the three terms, each bounded to be at least zero.

    Args:
        energy_gev: Mean energy of each bin, shape (N,).
        relative: sigma/E of each bin, shape (N,).
        error: Its error, shape (N,).

    Returns:
        The fit; None with fewer than four usable points or when the minimiser finds no minimum.
    """
    usable = np.isfinite(relative) & (error > 0) & (energy_gev > 0) & (relative > 0)
    if usable.sum() < MIN_POINTS:
        return None
    cost = LeastSquares(energy_gev[usable], relative[usable], error[usable], resolution)
    minuit = Minuit(cost, *START)
    minuit.limits["a", "b", "c"] = (0, None)
    minuit.migrad()
    if not minuit.valid:
        minuit.simplex().migrad()
    if not minuit.valid:
        return None
    minuit.hesse()
    a, b, c = (float(value) for value in minuit.values)
    errors = tuple(float(value) if value is not None else float("nan") for value in minuit.errors)
    return EnergyFit(a, b, c, (errors[0], errors[1], errors[2]), float(minuit.fval or 0.0), int(usable.sum()) - 3)
