"""Kinematics: a gamma ray from the target, its conversion in the xenon, and the deposits of its shower.

Legend: K deposits of one gamma ray.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xectool.detector import constants as c
from xectool.detector import coordinates, geometry
from xectool.simulation import physics as p

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Gamma:
    """One gamma ray and what it leaves in the xenon.

    Attributes:
        energy_gev: Energy of the gamma ray.
        vertex_cm: Where it left the target, shape (3,).
        direction: Unit vector of its flight, shape (3,).
        conversion_cm: Where it first interacted, shape (3,).
        conversion_time_s: When it did.
        deposits_cm: Where energy became light, shape (K, 3).
        deposit_energies_gev: How much, shape (K,); 0 for what left the active volume.
        deposit_times_s: When, shape (K,).
    """

    energy_gev: float
    vertex_cm: FloatArray
    direction: FloatArray
    conversion_cm: FloatArray
    conversion_time_s: float
    deposits_cm: FloatArray
    deposit_energies_gev: FloatArray
    deposit_times_s: FloatArray


def make_gamma(rng: np.random.Generator, energy_gev: float, start_time_s: float = 0.0) -> Gamma:
    """Return a gamma ray that leaves the target at ``start_time_s`` and converts in the xenon."""
    vertex = _vertex(rng)
    entry = _entry_point(rng)
    flight = entry - vertex
    to_entry_cm = float(np.linalg.norm(flight))
    direction = flight / to_entry_cm
    longest_cm = _way_to_outer_face(entry, direction)
    while True:
        depth_cm = _conversion_depth(rng, energy_gev, longest_cm)
        conversion = entry + depth_cm * direction
        steps, energies = _shower(rng, energy_gev, direction)
        deposits = conversion + steps
        inside = geometry.is_inside(deposits)
        if energies.sum(where=inside) >= p.MIN_CONTAINED_SHARE * energy_gev:
            break
    conversion_time_s = start_time_s + (to_entry_cm + depth_cm) / p.SPEED_OF_LIGHT_CM_S
    return Gamma(
        energy_gev=energy_gev,
        vertex_cm=vertex,
        direction=direction,
        conversion_cm=conversion,
        conversion_time_s=conversion_time_s,
        deposits_cm=deposits,
        deposit_energies_gev=np.where(inside, energies, 0.0),
        deposit_times_s=conversion_time_s + np.sqrt(np.square(steps).sum(axis=1)) / p.SPEED_OF_LIGHT_CM_S,
    )


def _vertex(rng: np.random.Generator) -> FloatArray:
    # The beam runs along z; the point across it fixes the place on the tilted plane of the target.
    slope = math.tan(math.radians(p.TARGET_TILT_DEG))
    while True:
        x, y = rng.normal(0.0, p.BEAM_SPOT_CM, 2)
        along = x / math.sin(math.radians(p.TARGET_TILT_DEG))
        if (along / p.TARGET_HALF_LENGTH_CM) ** 2 + (y / p.TARGET_HALF_HEIGHT_CM) ** 2 < 1:
            return np.array([x, y, x / slope])


def _entry_point(rng: np.random.Generator) -> FloatArray:
    # Isotropic as seen from the origin: uniform in azimuth and in the sine of the elevation over the inner face.
    largest = c.FIDUCIAL_U_CM / math.hypot(c.FIDUCIAL_U_CM, c.REFERENCE_RADIUS_CM)
    sine, azimuth = rng.uniform(-1, 1, 2) * (largest, 1.0)
    u = c.REFERENCE_RADIUS_CM * sine / math.sqrt(1 - sine**2)
    return coordinates.uvw_to_xyz(np.array([u, c.FIDUCIAL_V_CM * azimuth, 0.0])).astype(np.float64)


def _way_to_outer_face(point: FloatArray, direction: FloatArray) -> float:
    across = direction[0] ** 2 + direction[1] ** 2
    half = point[0] * direction[0] + point[1] * direction[1]
    rest = point[0] ** 2 + point[1] ** 2 - c.OUTER_RADIUS_CM**2
    return float((-half + math.sqrt(half**2 - across * rest)) / across)


def _conversion_depth(rng: np.random.Generator, energy_gev: float, longest_cm: float) -> float:
    # Exponential, cut at the outer face: gamma rays that do not convert are not events.
    length_cm = float(p.attenuation_length_cm(energy_gev))
    return -length_cm * math.log1p(rng.uniform() * math.expm1(-longest_cm / length_cm))


def _shower(rng: np.random.Generator, energy_gev: float, direction: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the deposits relative to the conversion, shape (K, 3) in cm, and their energies, shape (K,) in GeV."""
    growth = math.log1p(energy_gev / p.CRITICAL_ENERGY_GEV)
    num_secondaries = min(int(rng.poisson(p.SECONDARIES_PER_LOG * growth)), p.MAX_SECONDARIES)
    shares = rng.dirichlet([p.TRACK_SHARE] * p.NUM_TRACKS + [p.SECONDARY_SHARE] * num_secondaries)
    tracks_gev, secondaries_gev = np.split(energy_gev * shares, [p.NUM_TRACKS])
    track_along, track_spread = _tracks(tracks_gev)
    reach_cm = p.RADIATION_LENGTH_CM * (growth + p.DEPTH_OFFSET)
    along = np.concatenate([track_along, rng.exponential(reach_cm, num_secondaries) - p.SECONDARY_BACKWARD_CM])
    spread = np.concatenate([track_spread, np.full(num_secondaries, p.SECONDARY_SPREAD_CM)])
    across = rng.standard_normal((len(along), 3)) * spread[:, np.newaxis]
    across -= (across * direction).sum(axis=1, keepdims=True) * direction
    energies = np.concatenate([np.repeat(tracks_gev / p.DEPOSITS_PER_TRACK, p.DEPOSITS_PER_TRACK), secondaries_gev])
    return along[:, np.newaxis] * direction + across, energies


def _tracks(energies_gev: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the places of the deposits along their tracks and their transverse spread, shape (tracks x deposits,)."""
    reach_cm = p.TRACK_STRAIGHTNESS * energies_gev / p.ENERGY_LOSS_GEV_CM
    middles = (np.arange(p.DEPOSITS_PER_TRACK) + 0.5) / p.DEPOSITS_PER_TRACK
    along = np.outer(reach_cm, middles).ravel()
    return along, p.TRACK_SPREAD * along
