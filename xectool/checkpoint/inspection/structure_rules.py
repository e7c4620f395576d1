"""Rules on how the weights of a checkpoint are put together: names, wrappers, kind, average."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from torch import Tensor

from xectool.checkpoint import foreign, held_networks, wrapped_names
from xectool.checkpoint.inspection.facts import Inspected
from xectool.checkpoint.inspection.layout import OLDER, XECTOOL
from xectool.checkpoint.inspection.values import relative_distance, unlike
from xectool.checkpoint.names import USE_ANOTHER
from xectool.findings import Finding
from xectool.rules import Rule

_SHOWN: Final = 5
_RAW: Final = "predict with --weights model"
_FAR_AVERAGE: Final = 1.0
_NO_AVERAGE: Final = 10.0
_CONTAINERS: Final = ("model", "ema", *foreign.CONTAINERS.values())


class HoldsWeights(Rule[Inspected]):
    """There is something to predict with."""

    code = "K05"
    title = "The file holds weights"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error where no tensor can be taken for weights, or the raw ones are gone."""
        layout = facts.layout
        if not layout.main:
            yield self.error("content", f"it holds no weights: {layout.kind}", "give a checkpoint with weights")
        elif layout.origin == XECTOOL and "model" not in layout.weights:
            yield self.error("model", "it holds averaged weights only: the raw ones are gone", USE_ANOTHER)


class KindFits(Rule[Inspected]):
    """The kind in the facts, that of the configuration and that of the names are one."""

    code = "K05"
    title = "The weights are of the kind the file says"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error where they are not."""
        layout = facts.layout
        configured = (layout.config or {}).get("kind")
        if layout.origin != XECTOOL or not layout.main or layout.kind not in foreign.ENCODER_PREFIX:
            return
        by_names = foreign.recognise(layout.main).kind if foreign.is_foreign(layout.main) else layout.kind
        if layout.kind != "encoder" and {layout.kind, configured or layout.kind, by_names} != {layout.kind}:
            problem = f"it says it is of kind {layout.kind}, its configuration {configured}, its weights are {by_names}"
            yield self.error("meta.kind", problem, USE_ANOTHER)


class WrappersAreWhole(Rule[Inspected]):
    """Wrappers put their prefix in front of all names or of none."""

    code = "K06"
    title = "Prefixes of wrappers are at the start of every name"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield a warning where some names of a set of weights have a wrapper's prefix, an error where all of ours."""
        sets: dict[str, list[str]] = defaultdict(list)
        for name in facts.contents.tensors:
            container, _, rest = name.partition(".")
            inside = container in _CONTAINERS and not facts.layout.main.keys() >= {name}
            sets[container if inside else ""].append(rest if inside else name)
        if not facts.layout.is_ours:
            sets = defaultdict(list, {"": list(facts.layout.main)})
        ours = facts.layout.origin == XECTOOL
        for container, names in sets.items():
            yield from self._of_set([name for name in names if name != held_networks.EMA_COUNTER], container, ours)

    def _of_set(self, names: list[str], container: str, ours: bool) -> Iterator[Finding]:
        for wrapper in wrapped_names.WRAPPERS:
            wrapped = [name for name in names if name.startswith(wrapper)]
            if ours and wrapped and len(wrapped) == len(names):
                problem = f"all {len(names)} names start with '{wrapper}': they are of a model inside its wrapper"
                yield self.error(
                    container or wrapped[0], problem, f"save state_dict() of the model itself; {USE_ANOTHER}"
                )
            elif wrapped and len(wrapped) < len(names):
                problem = f"{len(wrapped)} of {len(names)} names start with '{wrapper}', the others do not"
                yield self.warning(wrapped[0], problem, "save one model's state_dict() without its wrapper")


class LayersAreWhole(Rule[Inspected]):
    """A layer that has a bias has the weight its siblings of the same name have."""

    code = "K15"
    title = "No tensor of a layer is missing"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield a warning for the first layers that lack what the same layer of every other block has."""
        layout = facts.layout
        if layout.is_ours and (layout.config is not None or facts.misfits):
            return  # held against the network itself
        for name in _missing(layout.main)[:_SHOWN]:
            problem = f"{name} is missing; the same layer of every other block has one"
            yield self.warning(name, problem, "write the whole state_dict() again, or take another file")


class OlderNetworkIsWhole(Rule[Inspected]):
    """The sizes of a network of the older system are read from its weights."""

    code = "K15"
    title = "The weights that tell the sizes of the network are there"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error where a stored configuration cannot be completed."""
        payload = facts.contents.payload
        stored = payload.get("config") if isinstance(payload, Mapping) else None
        if facts.layout.origin == OLDER and isinstance(stored, Mapping):
            yield from (self.error("model_state_dict", problem, USE_ANOTHER) for problem in facts.layout.notes)


class AverageFits(Rule[Inspected]):
    """Averaged weights have the names and shapes of the weights, and lie near them."""

    code = "K09"
    title = "The average belongs to the weights"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error where an average is gone, has other names or shapes or is none, a warning where it is far."""
        model, steps = facts.layout.weights.get("model"), facts.layout.num_lost
        if steps:
            yield self.error(
                "ema", f"the averaged weights are gone: {steps} steps were averaged", f"{_RAW}, or {USE_ANOTHER}"
            )
        for role in ("ema", "best"):
            average = facts.layout.weights.get(role)
            if not model or not average:
                continue
            different = sorted(model.keys() ^ average.keys())
            different += [name for name in model.keys() & average.keys() if model[name].shape != average[name].shape]
            if different:
                problem = f"the averaged weights ({role}) have other names or shapes: {', '.join(different[:3])}"
                yield self.error(role, problem, _RAW)
            elif not facts.nonfinite:
                yield from self._distances(role, average, model)

    def _distances(self, role: str, average: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> Iterator[Finding]:
        distance = relative_distance(average, model)
        far = f"the averaged weights ({role}) are {distance:.2g} times their own size from the weights"
        if distance > _NO_AVERAGE:
            yield self.error(role, f"{far}: they are no average of them", _RAW)
            return
        if distance > _FAR_AVERAGE:
            yield self.warning(role, far, f"{_RAW} and compare the metrics")
        for name in unlike(average, model)[:_SHOWN]:
            problem = f"{name} and its average ({role}) have nothing in common, all others are close to theirs"
            yield self.warning(name, f"{problem}: exchanged with another tensor, or damaged", USE_ANOTHER)


def _missing(weights: Mapping[str, Tensor]) -> list[str]:
    """Return names that a layer lacks although it has others, and the same layer under every other number has them."""
    layers: dict[str, set[str]] = defaultdict(set)
    for name in weights:
        layer, _, last = name.rpartition(".")
        layers[layer].add(last)
    families: dict[str, list[str]] = defaultdict(list)
    for layer in layers:
        families[".".join("*" if part.isdigit() else part for part in layer.split("."))].append(layer)
    found: list[str] = []
    for family, members in families.items():
        if "*" not in family or family.endswith("*") or len(members) < 3:
            continue
        for layer in members:
            others = set.intersection(*(layers[other] for other in members if other != layer))
            found += [f"{layer}.{last}" for last in sorted(others - layers[layer])]
    return found


STRUCTURE_RULES: tuple[Rule[Inspected], ...] = (
    HoldsWeights(), KindFits(), WrappersAreWhole(), LayersAreWhole(), OlderNetworkIsWhole(), AverageFits(),
)  # fmt: skip
