"""What the sensors and their electronics make of the light.

One detector seed fixes efficiencies, calibration errors and dead channels, so that training and validation sets with
different event seeds can share a detector.

Legend: S sensors (4760).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xectool.detector import constants as c
from xectool.simulation import physics as p

FloatArray = npt.NDArray[np.float64]

_SIPM = np.arange(c.NUM_SENSORS) < c.NUM_SIPMS
_SINGLE_VARIANCE = np.where(_SIPM, p.SIPM_SINGLE_SPREAD, p.PMT_SINGLE_SPREAD) ** 2
_NOISE_VARIANCE = np.where(_SIPM, p.SIPM_NOISE_PE, p.PMT_NOISE_PE) ** 2


@dataclass(frozen=True)
class DetectorResponse:
    """The sensors of one simulated detector.

    Attributes:
        efficiency: Photoelectrons per photon, shape (S,).
        photons_per_pe: What the calibration multiplies a charge with, shape (S,).
        time_offset_s: Error of the time calibration, shape (S,).
        dead: True where a sensor gives nothing, shape (S,).
    """

    efficiency: FloatArray
    photons_per_pe: FloatArray
    time_offset_s: FloatArray
    dead: npt.NDArray[np.bool_]

    @classmethod
    def from_seed(cls, detector_seed: int, dead_fraction: float = 0.0) -> DetectorResponse:
        """Return the detector of a seed; with a larger dead fraction the same sensors are dead, and more."""
        rng = np.random.default_rng(np.random.SeedSequence(detector_seed))
        order = rng.permutation(c.NUM_SENSORS)
        spread = 1 + p.EFFICIENCY_SPREAD * rng.standard_normal(c.NUM_SENSORS).clip(-3, 3)
        efficiency = np.where(_SIPM, p.SIPM_PDE, p.PMT_QE) * spread
        error = np.where(_SIPM, p.SIPM_CALIBRATION_SPREAD, p.PMT_CALIBRATION_SPREAD)
        calibration = 1 + error * rng.standard_normal(c.NUM_SENSORS).clip(-3, 3)
        dead = np.zeros(c.NUM_SENSORS, dtype=np.bool_)
        dead[order[: round(dead_fraction * c.NUM_SENSORS)]] = True
        return cls(
            efficiency=efficiency,
            photons_per_pe=calibration / efficiency,
            time_offset_s=p.TIME_OFFSET_SPREAD_S * rng.standard_normal(c.NUM_SENSORS),
            dead=dead,
        )

    def read_out(
        self, rng: np.random.Generator, photons: FloatArray, times_s: FloatArray
    ) -> tuple[FloatArray, FloatArray, float]:
        """Return what the data acquisition records of one event.

        Args:
            rng: Source of the event's fluctuations.
            photons: Expected photons, shape (S,).
            times_s: Their arrival, shape (S,).

        Returns:
            Reconstructed photons, shape (S,); times in s relative to the earliest used sensor, shape (S,); and the
            time of that sensor in the frame of ``times_s``. Dead sensors hold 1e10 in both, too dim ones in the time;
            without any used sensor all times, and time zero, are 1e10.
        """
        electrons = rng.poisson(photons * self.efficiency)
        noise = np.sqrt(_SINGLE_VARIANCE * electrons + _NOISE_VARIANCE)
        npho = _digitised((electrons + noise * _normals(rng)) * self.photons_per_pe, p.NPHO_STEP)
        jitter = np.sqrt(p.TIME_PER_ROOT_PE_S**2 / np.maximum(electrons, 1) + p.TIME_CONSTANT_S**2)
        time = _digitised(times_s + self.time_offset_s + jitter * _normals(rng), p.TIME_STEP_S)
        used = (npho >= p.MIN_USED_NPHO) & ~self.dead
        zero_s = float(time.min(where=used, initial=c.DEAD_VALUE))
        timed = (npho >= p.MIN_TIMED_NPHO) & ~self.dead & bool(used.any())
        npho[self.dead] = c.DEAD_VALUE
        return npho, np.where(timed, time - zero_s, c.DEAD_VALUE), zero_s


def _normals(rng: np.random.Generator) -> npt.NDArray[np.float32]:
    return rng.standard_normal(c.NUM_SENSORS, dtype=np.float32)


def _digitised(values: FloatArray, step: float) -> FloatArray:
    return np.rint(values / step) * step
