"""Raw sensor values to network units; part of the model, so it travels with the checkpoint."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator

from xectool.config.section import Float, Section, knob, read_float, refuse

_CODE = "CFG-40"
TIME_SCALES_S = (1e-9, 1e-5)  # a scale beyond is a slip, or the times are in another unit


def _read_time_scale(value: object) -> float:
    scale = read_float(value)
    low, high = TIME_SCALES_S
    if low <= scale <= high:
        return scale
    if not scale > 0:
        raise refuse(f"time_scale must be > 0, got {scale:g}")
    # A lost minus sign in the exponent is the slip that has been made before: 6.5e8 for 6.5e-8.
    mantissa, exponent = f"{scale:e}".split("e")
    meant = float(f"{mantissa}e{-int(exponent)}") if math.isfinite(scale) else 0.0
    hint = f": {_short(scale)} looks like {_short(meant)}" if low <= meant <= high else f", got {_short(scale)}"
    raise refuse(f"time_scale must lie between 1e-9 and 1e-5 s{hint}")


def _short(number: float) -> str:
    mantissa, _, exponent = f"{number:e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}" if exponent else mantissa


TimeScale = Annotated[float, BeforeValidator(_read_time_scale)]


class NormalizationConfig(Section):
    """Constants of the first layer: ``f(npho)`` per scheme, ``t / time_scale - time_shift``."""

    npho_scale: Float = knob(1000.0, "Scale s of the photon number", "photons", _CODE, gt=0, le=1e9)
    npho_scale2: Float = knob(4.08, "Second scale of the log1p scheme: ln(1 + n/s) / s2", "1", _CODE, gt=0, le=1e3)
    time_scale: TimeScale = knob(1.14e-7, "Scale of the sensor time", "s", _CODE, ge=1e-9, le=1e-5)
    time_shift: Float = knob(-0.46, "Shift subtracted after scaling the time", "1", ge=-1e3, le=1e3)
    sentinel_time: Float = knob(-1.0, "Network value of an invalid time", "1", ge=-1e3, le=1e3)
    sentinel_npho: Float = knob(-1.0, "Network value of an invalid photon number", "1", ge=-1e3, le=1e3)
    npho_scheme: Literal["log1p", "anscombe", "sqrt", "linear"] = knob(
        "log1p", "Function applied to the photon number", code="CFG-05"
    )
    npho_threshold: Float = knob(100.0, "Below this photon number the time is invalid", "photons", ge=-1e9, le=1e9)
    below_domain: Literal["sentinel", "zero"] = knob(
        "sentinel",
        "Value of photon numbers below the scheme's domain; zero is what the older system did",
        code="CFG-05",
    )
