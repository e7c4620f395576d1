"""What a hidden sensor should read by the light around it: the conventional estimate an inpainter starts from.

The heads then learn what the conventional estimate misses, instead of learning first what solid angles already say:
from few events a network that begins at nothing stays worse than the estimate itself.

Axes: B events, S sensors (4760), F faces, C predicted channels, M hidden sensors of the whole batch, K most neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from xectool.config.model import CHANNEL_NAMES, InpainterModelConfig
from xectool.detector import constants as c
from xectool.detector import faces, geometry
from xectool.detector.neighbours import NeighbourTable, within_hops
from xectool.models.hidden_places import Places, at_hidden
from xectool.models.normalize import Normalizer
from xectool.models.sensor_input import HiddenEvent

HOPS = (1, 2, 4)
"""Neighbours to ask, nearest first; the next are asked where none of them has a reading."""
MIN_WEIGHTED_PHOTONS = 50.001
"""Light of the neighbours below which their pattern is noise, and the plain mean is better.

The older system's 50, and a little: six neighbours with one photo-electron each (8.33 photons) sum to 50, and rounding,
which differs between engines and batch sizes, would decide which estimate they get.
"""

Around = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def prior_kind(model: InpainterModelConfig) -> str:
    """Return ``solid_angle``, ``neighbours`` or ``none``; ``auto`` is the first where heads see the readings around."""
    if model.prior != "auto":
        return model.prior
    return "solid_angle" if model.geometry == "physical" and model.use_local_context else "none"


class LightPrior(nn.Module):
    """Estimates hidden sensors from visible ones of the same face, in network units.

    * npho: ``sum(n) Omega / sum(Omega_n)`` over the neighbours, with the solid angles seen from the point that the
      light on the inner face comes from; or their plain mean.
    * time: the mean time of the neighbours that have one.

    A sensor none of whose neighbours has a reading takes the mean of its face. Nothing here is learnt or stored in a
    checkpoint.

    Args:
        normalizer: The model's own.
        channels: Predicted channels.
        kind: ``solid_angle`` or ``neighbours``.
    """

    face: Tensor
    position: Tensor
    axes: Tensor
    half_edge: Tensor
    inner: Tensor

    def __init__(self, normalizer: Normalizer, channels: tuple[str, ...], kind: str) -> None:
        super().__init__()
        self._normalizer = [normalizer]  # a list: the normaliser belongs to the model
        self.channels = channels
        self.weighted = kind == "solid_angle"
        self._register_sensors()
        for hops in HOPS:
            ids, used = _padded(within_hops(hops))
            self.register_buffer(f"neighbours_{hops}", ids, persistent=False)
            self.register_buffer(f"used_{hops}", used, persistent=False)

    def _register_sensors(self) -> None:
        normal = geometry.normals()
        # Any direction in the sensor's plane serves: a square is nearly as wide one way as another.
        across = np.cross(normal, np.where(abs(normal[:, 2:]) < 0.5, [[0.0, 0.0, 1.0]], [[1.0, 0.0, 0.0]]))
        across /= np.linalg.norm(across, axis=1, keepdims=True)
        axes = np.stack([across, np.cross(normal, across), normal], axis=1)
        is_sipm = np.arange(c.NUM_SENSORS) < c.NUM_SIPMS
        half = np.where(is_sipm, c.SIPM_CHIP_CM, 0.5 * math.sqrt(math.pi) * c.PMT_RADIUS_CM)
        tables = {"face": faces.face_ids(), "inner": faces.index_map("inner").ravel()}
        for name, value in tables.items():
            self.register_buffer(name, torch.from_numpy(value.copy()), persistent=False)
        for name, value in {"position": geometry.positions_cm(), "axes": axes, "half_edge": half}.items():
            number = torch.from_numpy(np.array(value)).to(torch.get_default_dtype())
            self.register_buffer(name, number, persistent=False)

    @torch.no_grad()
    def forward(self, event: HiddenEvent) -> Tensor:
        """Return estimates (B, S, C) in network units at hidden sensors and those without a reading, 0 elsewhere."""
        with torch.autocast(event.shown.device.type, enabled=False):
            return at_hidden(event.hidden, lambda where: self._estimate(event, where))

    def _estimate(self, event: HiddenEvent, where: Places) -> Tensor:
        found = [getattr(self, f"_{channel}")(event, where) for channel in self.channels]
        return torch.stack(found, dim=-1).to(event.shown.dtype)

    def fill(self, event: HiddenEvent, estimates: Tensor) -> HiddenEvent:
        """Return the event with its hidden sensors showing ``estimates`` (B, S, C) instead of sentinels."""
        shown, valid = event.shown.clone(), event.shown_valid.clone()
        for index, channel in enumerate(self.channels):
            place = CHANNEL_NAMES.index(channel)
            shown[..., place] = torch.where(event.hidden, estimates[..., index], shown[..., place])
            valid[..., place] |= event.hidden
        return event._replace(shown=shown, shown_valid=valid)

    def _npho(self, event: HiddenEvent, where: Places) -> Tensor:
        normalizer = self._normalizer[0]
        visible = event.shown_valid[..., 0]
        light = torch.where(visible, normalizer.inverse_npho(event.shown[..., 0]), 0.0)
        point = self._light_point(light) if self.weighted else None

        def around(rows: Tensor, neighbours: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
            count, total = used.sum(dim=1), (light[where[0][rows, None], neighbours] * used).sum(dim=1)
            share = 1.0 / count.clamp_min(1)
            if point is not None:
                seen_from = point[where[0][rows]]
                theirs = (self._solid_angle(seen_from[:, None], neighbours) * used).sum(dim=1)
                ratio = self._solid_angle(seen_from, where[1][rows]) / theirs.clamp_min(torch.finfo(theirs.dtype).tiny)
                share = torch.where((total > MIN_WEIGHTED_PHOTONS) & (theirs > 0), ratio, share)
            return total * share, count

        estimate = self._nearest(
            where, visible, self._face_means(light, visible)[where[0], self.face[where[1]]], around
        )
        # A light yield cannot be negative, though a reading can.
        value: Tensor = normalizer.scheme(estimate.clamp_min(0.0))
        return value

    def _time(self, event: HiddenEvent, where: Places) -> Tensor:
        visible = event.shown_valid[..., 1]
        times = torch.where(visible, event.shown[..., 1], 0.0)

        def around(rows: Tensor, neighbours: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
            count = used.sum(dim=1)
            return (times[where[0][rows, None], neighbours] * used).sum(dim=1) / count.clamp_min(1), count

        return self._nearest(where, visible, self._face_means(times, visible)[where[0], self.face[where[1]]], around)

    def _nearest(self, where: Places, visible: Tensor, fallback: Tensor, around: Around) -> Tensor:
        """Return what the nearest neighbours with a reading say, (M,), else ``fallback`` (M,).

        The first place goes through every turn, though it keeps the value that it found first: in most batches no place
        is left for the last ones, and PyTorch 2.11 divides by zero where it launches a compiled kernel for none.
        """
        # Counted, not a range of fixed length: how many sensors are hidden differs between calls of a traced model.
        estimate, rows = fallback, torch.ones_like(where[1]).cumsum(dim=0) - 1
        missing = rows >= 0
        for hops in HOPS:
            neighbours = self.get_buffer(f"neighbours_{hops}")[where[1][rows]]
            used = visible[where[0][rows, None], neighbours] & self.get_buffer(f"used_{hops}")[where[1][rows]]
            value, count = around(rows, neighbours, used)
            found = missing[rows] & (count > 0)
            estimate = estimate.index_put((rows,), torch.where(found, value, estimate[rows]))
            missing = missing.index_put((rows,), missing[rows] & ~found)
            rows = rows[missing[rows] | (rows == 0)]
        return estimate

    def _face_means(self, values: Tensor, visible: Tensor) -> Tensor:
        """Return means over the visible sensors of each face, (B, F); 0 where none is."""
        members = nn.functional.one_hot(self.face, len(faces.FACES)).to(values.dtype)
        return (values @ members) / (visible.to(values.dtype) @ members).clamp_min(1.0)

    def _light_point(self, light: Tensor) -> Tensor:
        """Return where the light on the inner face comes from, xyz in cm, (B, 3).

        The centroid of the squared light, at the depth at which a point source would light a plane as sharply:
        ``sum(n)^2 / sum(n^2) = 8 pi w^2 / (area of a sensor's cell)``.
        """
        seen = light[:, self.inner].clamp_min(0.0)
        dark = seen.sum(dim=1, keepdim=True) <= 0
        share = torch.where(dark, 1.0, seen)
        share = share / share.sum(dim=1, keepdim=True)
        power = share.square().sum(dim=1, keepdim=True)
        cell_cm2 = c.INNER_PITCH_Z_CM * c.REFERENCE_RADIUS_CM * math.radians(c.INNER_PITCH_DEG)
        depth = torch.sqrt(cell_cm2 / (8 * math.pi * power))
        # Relative to the brightest sensor: summed from the origin, rounding alone moves it by 1e-4 cm.
        places = self.position[self.inner]
        origin = places[seen.argmax(dim=1)]
        on_face = origin + ((share.square() / power).unsqueeze(1) @ (places - origin.unsqueeze(1))).squeeze(1)
        # The centroid of points on a cylinder lies inside it; what matters is its direction from the axis.
        radius = on_face[:, :2].norm(dim=1, keepdim=True).clamp_min(1e-6)
        outwards = on_face[:, :2] / radius * (c.REFERENCE_RADIUS_CM + depth)
        return torch.cat((outwards, on_face[:, 2:]), dim=1)

    def _solid_angle(self, point_cm: Tensor, sensor: Tensor) -> Tensor:
        """Return the solid angle of sensors seen from points (..., 3), each taken as a square of its active area.

        Two triangles (van Oosterom & Strackee 1983): ``tan(omega / 2)`` of each is the height over the plane times the
        square's area, over a sum of positive terms while the triangle is small. Nothing cancels, so float32 keeps all
        its digits; the four arctangents of the corners lose three where the square is far away. 0 from behind. Ratios
        of neighbours are within a percent of those of chips and discs.
        """
        offset = torch.einsum("...ij,...j->...i", self.axes[sensor], point_cm - self.position[sensor])
        a0, b0, height = offset.unbind(dim=-1)
        half, front = self.half_edge[sensor], height > 0
        height = torch.where(front, height, 1.0)
        corners = [(sign_a * half - a0, sign_b * half - b0) for sign_a, sign_b in ((1, 1), (-1, 1), (-1, -1), (1, -1))]
        lengths = [(a * a + b * b + height * height).sqrt() for a, b in corners]

        def product(first: int, second: int) -> Tensor:
            (a1, b1), (a2, b2) = corners[first], corners[second]
            return a1 * a2 + b1 * b2 + height * height

        def triangle(i: int, j: int, k: int) -> Tensor:
            across = lengths[i] * lengths[j] * lengths[k] + product(i, j) * lengths[k]
            return torch.atan2(
                4.0 * half * half * height, across + product(i, k) * lengths[j] + product(j, k) * lengths[i]
            )

        return torch.where(front, 2.0 * (triangle(0, 1, 2) + triangle(0, 2, 3)), 0.0)


def start_at_prior(head: nn.Module) -> None:
    """Set the last layer of a head's predictions to zero: before any training its correction is none."""
    for name, module in head.named_modules():
        if name.rpartition(".")[2] in ("pred_head", "masked_pred_head", "pred_mlp") and isinstance(
            module, nn.Sequential
        ):
            last = module[-1]
            assert isinstance(last, nn.Linear | nn.Conv2d)
            assert last.bias is not None
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)


def _padded(table: NeighbourTable) -> tuple[Tensor, Tensor]:
    """Return ids (S, K), padded with 0, and which are no padding, bool (S, K)."""
    used = np.arange(table.counts.max()) < table.counts[:, None]
    ids = np.zeros(used.shape, np.int64)
    ids[used] = table.members
    return torch.from_numpy(ids), torch.from_numpy(used)
