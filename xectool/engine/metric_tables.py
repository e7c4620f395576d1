"""Metrics as the tables a person reads: the headline ones, those by face, and the rest group by group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from xectool.config.model import FACE_NAMES
from xectool.runlog.conventional import CONSTANT, PREFIX, conventional
from xectool.runlog.metrics import Named, find_metric, metric_names, with_unit

HEADLINES: Final = (
    "val/loss",
    "energy_res_68pct",
    "uvw_dist_68pct",
    "angle_resolution_68pct",
    "timing_res_68pct",
    "angleVec_resolution_68pct",
    "n_gamma_res_68pct",
    "mae_npho",
    "rmse_npho",
    "mae_time",
    "rmse_time",
)
BY_FACE: Final = ("metric", "all", *FACE_NAMES)
NETWORK: Final = "network"

Rows = list[list[object]]


def headlines(metrics: Mapping[str, float]) -> tuple[tuple[str, str, str], list[tuple[str, object, object]]]:
    """Return columns and rows of the metrics that are read first: name with unit, network, the best other estimate.

    A constant among conventional estimators, which score fewer metrics than it does, is named in its cells.
    """
    beside = {metric: conventional(metric, metrics) for metric in HEADLINES if metric in metrics}
    is_only = {estimator for found in beside.values() for estimator in found} == {CONSTANT}
    rows = [
        (with_unit(metric), _known(metrics[metric]), _best(found, metrics, not is_only))
        for metric, found in beside.items()
    ]
    return ("metric", NETWORK, CONSTANT if is_only else "conventional"), rows


def _best(found: Mapping[str, str], metrics: Mapping[str, float], named: bool) -> object:
    known = [(metrics[name], estimator) for estimator, name in found.items() if math.isfinite(metrics[name])]
    if not known:
        return ""
    value, estimator = min(known)
    return f"{_short(value)} ({CONSTANT})" if named and estimator == CONSTANT else value


def face_rows(metrics: Mapping[str, float]) -> dict[str, Rows]:
    """Return the errors at hidden sensors, a row a metric and a column a face, of the network and each estimator."""
    found: dict[str, Rows] = {}
    for named in _of_faces(metrics):
        if named.words["face"] or not _has_faces(named, metrics):
            continue
        estimator = named.estimator
        own = named.name.removeprefix(estimator)
        cells = [_short(metrics.get(_at_face(named, f"{face}_"))) for face in FACE_NAMES]
        rows = found.setdefault(estimator.removeprefix(PREFIX).rstrip("_") or NETWORK, [])
        rows.append([own, _short(metrics[named.name]), *cells])
    return found


def other_rows(metrics: Mapping[str, float]) -> Rows:
    """Return what the other tables leave out, in the order of the groups of the reference page."""
    places = {name: place for place, name in enumerate(metric_names())}
    beside = (other for name in HEADLINES for other in conventional(name, metrics).values() if name in metrics)
    by_face = (of for of in _of_faces(metrics) if _at_face(of, "") in metrics and _has_faces(of, metrics))
    shown = {*HEADLINES, *beside, *(named.name for named in by_face)}
    rest = sorted(
        (name for name in metrics if name not in shown), key=lambda name: (places.get(name, len(places)), name)
    )
    return [[with_unit(name), _known(metrics[name])] for name in rest]


def named_rows(metrics: Mapping[str, float]) -> Rows:
    """Return all metrics in their order, each with its unit."""
    return [[with_unit(name), _known(value)] for name, value in metrics.items()]


def _of_faces(metrics: Mapping[str, float]) -> Iterator[Named]:
    named = (find_metric(name) for name in metrics)
    return (one for one in named if one is not None and "face" in one.words)


def _has_faces(named: Named, metrics: Mapping[str, float]) -> bool:
    """Return whether a metric is known of any face, and not of all sensors alone."""
    return any(math.isfinite(metrics.get(_at_face(named, f"{face}_"), math.nan)) for face in FACE_NAMES)


def _at_face(named: Named, face: str) -> str:
    return named.metric.pattern.format(**{**named.words, "face": face})


def _known(value: float) -> object:
    """Return a number as it is shown; of a mean over nothing, as of a face where no sensor was hidden, nothing."""
    return None if math.isnan(value) else value


def _short(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3g}"
