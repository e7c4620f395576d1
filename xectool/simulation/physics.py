"""Numbers and cross sections of the simulation: each with its unit and its source, or "chosen".

Source keys are explained in ``docs/physics.md``. "chosen" marks a value of plausible size that no measurement fixes;
the simulation is a toy to compare estimators with, not a prediction of the experiment.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

# Gamma rays and the target --------------------------------------------------------------------------------------
ENERGY_RANGE_GEV = (0.015, 0.060)  # older system: range of its training spectrum
TARGET_TILT_DEG = 15.0  # design: angle between the target plane and the beam
TARGET_HALF_LENGTH_CM = 13.5  # design: ellipse of 270 mm x 66 mm
TARGET_HALF_HEIGHT_CM = 3.3  # design
BEAM_SPOT_CM = 1.0  # design: about 1 cm rms across the beam
SPEED_OF_LIGHT_CM_S = 2.99792458e10  # exact

# Liquid xenon as an absorber --------------------------------------------------------------------------------------
XENON_Z = 54  # PDG: atomic number
XENON_A_G_MOL = 131.29  # PDG
XENON_DENSITY_G_CM3 = 2.95  # PDG: 2.953 at the boiling point
RADIATION_LENGTH_CM = 8.48 / XENON_DENSITY_G_CM3  # PDG: 8.48 g/cm2, so 2.87 cm
MOLIERE_RADIUS_CM = 15.5 / XENON_DENSITY_G_CM3  # PDG: 15.5 g/cm2, so 5.25 cm
CRITICAL_ENERGY_GEV = 0.012  # PDG: 11.7 to 12.3 MeV
ELECTRON_MASS_GEV = 0.51099895e-3  # PDG
ELECTRON_RADIUS_CM = 2.8179403e-13  # PDG: classical radius
FINE_STRUCTURE = 1 / 137.035999  # PDG
AVOGADRO_MOL = 6.02214076e23  # exact

# Shower: an electron and a positron track from the conversion, and a few secondary deposits further on ----------
NUM_TRACKS = 2  # the electron and the positron
DEPOSITS_PER_TRACK = 2  # chosen: at 1/4 and 3/4 of its length
MAX_SECONDARIES = 4  # chosen: bounds the time an event takes
SECONDARIES_PER_LOG = 0.8  # chosen: mean number over ln(1 + E / critical energy)
TRACK_SHARE = 2.0  # chosen: Dirichlet weight of a track's energy
SECONDARY_SHARE = 0.7  # chosen: Dirichlet weight of a secondary's energy
ENERGY_LOSS_GEV_CM = 1.255e-3 * XENON_DENSITY_G_CM3  # PDG: minimum ionisation 1.255 MeV cm2/g
TRACK_STRAIGHTNESS = 0.5  # chosen: reach of a track over its length, for scattering and radiation
TRACK_SPREAD = 0.35  # chosen: transverse rms over the way along the track
SECONDARY_BACKWARD_CM = 0.5  # chosen: secondaries reach that far behind the conversion
SECONDARY_SPREAD_CM = 0.35 * MOLIERE_RADIUS_CM  # chosen: transverse rms, 90 % within 0.75 Moliere radii
MIN_CONTAINED_SHARE = 0.3  # chosen: stands for the trigger; showers that leave more than 70 % outside are drawn anew
DEPTH_OFFSET = 0.5  # Longo and Sestili / PDG: shower maximum of a photon lies at ln(E / Ec) + 0.5 lengths

# Scintillation and optics -------------------------------------------------------------------------------------------
ENERGY_PER_PHOTON_GEV = 21.6e-9  # Doke 2002: 21.6 eV for electrons of 1 MeV
LIGHT_YIELD_SPREAD = 0.01  # chosen: common to all sensors of an event
ABSORPTION_LENGTH_CM = 250.0  # chosen; Baldini 2005 measured more than 100 cm
RAYLEIGH_LENGTH_CM = 40.0  # Solovov 2004: 36.4 +- 1.8 cm; Seidel 2002 calculates 30; MEG used 40 to 45
REFRACTIVE_INDEX = 1.69  # Solovov 2004: 1.69 +- 0.02 at 178 nm
DIFFUSE_SURVIVAL = 0.8  # chosen: share of scattered photons that reach a wall

# Sensors ------------------------------------------------------------------------------------------------------------
SIPM_PDE = 0.15  # design: more than 15 % at 175 nm
PMT_QE = 0.16  # design: 16 % at 165 K
EFFICIENCY_SPREAD = 0.10  # chosen: rms between sensors of one type, known to the calibration
SIPM_CALIBRATION_SPREAD = 0.03  # chosen: rms of the error of gain times efficiency
PMT_CALIBRATION_SPREAD = 0.04  # chosen
SIPM_SINGLE_SPREAD = 0.45  # chosen: excess noise factor 1.2 from crosstalk and afterpulses
PMT_SINGLE_SPREAD = 0.50  # chosen: width of the single-photoelectron peak at low gain
SIPM_NOISE_PE = 1.5  # chosen: rms of the charge without light, in photoelectrons
PMT_NOISE_PE = 0.7  # chosen
TIME_PER_ROOT_PE_S = 2.5e-9  # chosen: jitter is this over sqrt(photoelectrons) ...
TIME_CONSTANT_S = 0.1e-9  # chosen: ... and this, added in quadrature
TIME_OFFSET_SPREAD_S = 0.05e-9  # chosen: rms of the error of the time calibration
MIN_TIMED_NPHO = 50.0  # chosen: dimmer sensors have no time (1e10)
MIN_USED_NPHO = 100.0  # older system: its default npho_threshold; brighter sensors may define time zero
NPHO_STEP = 0.125  # chosen: digitisation, a hundredth of the noise; a power of two, so files compress well
TIME_STEP_S = 2.0**-40  # chosen: 0.9 ps, likewise

# Pile-up ------------------------------------------------------------------------------------------------------------
PILEUP_ENERGY_GEV = (0.005, 0.050)  # chosen: spectrum 1/E between these
PILEUP_WINDOW_S = 20e-9  # chosen: uniform offset of at most this
MAX_GAMMAS = 4  # older system: its n_gamma head has the classes 0 to 4


def attenuation_length_cm(energy_gev: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the mean free path of gamma rays in liquid xenon in cm, for energies above about 5 MeV.

    Pair production after Bethe, Heitler and Maximon without screening, with the Coulomb correction of Davies, Bethe
    and Maximon and Z (Z + 1) for the field of the electrons; Compton scattering after Klein and Nishina at high
    energy. Leaving out the screening makes the length up to about 5 % short at 53 MeV.
    """
    k = np.asarray(energy_gev, dtype=np.float64) / ELECTRON_MASS_GEV
    squared = (FINE_STRUCTURE * XENON_Z) ** 2
    coulomb = squared * (1 / (1 + squared) + 0.20206 - 0.0369 * squared + 0.0083 * squared**2)
    pair = 28 / 9 * (np.log(2 * k) - coulomb) - 218 / 27
    pair_cm2 = FINE_STRUCTURE * ELECTRON_RADIUS_CM**2 * XENON_Z * (XENON_Z + 1) * pair
    compton_cm2 = XENON_Z * math.pi * ELECTRON_RADIUS_CM**2 * (np.log(2 * k) + 0.5) / k
    atoms_cm3 = XENON_DENSITY_G_CM3 * AVOGADRO_MOL / XENON_A_G_MOL
    return np.asarray(1 / (atoms_cm3 * (pair_cm2 + compton_cm2)))
