"""Every key of the schema is described, bounded, frozen, and known to the JSON Schema."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from typing import Any, get_args, get_origin

import pytest
from pydantic import ValidationError
from xectool.config.json_schema import json_schema
from xectool.config.keys import Key, edit_distance, keys_of, nearest_key
from xectool.config.load import config_from_dict
from xectool.config.root import KINDS, RegressorConfig
from xectool.config.tasks import TASK_NAMES, TASK_UNITS, TASK_WIDTHS

ALL_KEYS = [(kind, key) for kind in KINDS for key in keys_of(kind).values()]
LEAVES = [(kind, key) for kind, key in ALL_KEYS if not key.is_section]
# Numbers whose own reader states the limits in its message.
READ_BY_HAND = {
    "scale",
    "shift",
    "mask_ratio",
    "ema_decay",
    "outer_fine_pool",
    "nbins_2d",
    "truth_branches",
    "runs",
    "sensors",
}


def is_number(annotation: Any) -> bool:
    if annotation in (int, float):
        return True
    return get_origin(annotation) is not None and any(is_number(item) for item in get_args(annotation))


@pytest.mark.parametrize(("kind", "key"), ALL_KEYS, ids=lambda item: item.dotted if isinstance(item, Key) else item)
def test_every_key_has_a_description(kind: str, key: Key) -> None:
    assert key.field.description
    assert "\n" not in key.field.description


@pytest.mark.parametrize(("kind", "key"), LEAVES, ids=lambda item: item.dotted if isinstance(item, Key) else item)
def test_every_number_has_a_unit_and_a_bound(kind: str, key: Key) -> None:
    if not is_number(key.field.annotation) or key.leaf == "truth_branches":
        return
    assert key.extra["unit"], "write the unit, '1' where it is dimensionless"
    assert key.bounds or key.leaf in READ_BY_HAND


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_lie_inside_their_bounds(kind: str) -> None:
    defaults = KINDS[kind]()
    assert KINDS[kind].model_validate(defaults.to_dict()) == defaults


@pytest.mark.parametrize("kind", KINDS)
def test_a_configuration_is_frozen(kind: str) -> None:
    config = KINDS[kind]()
    with pytest.raises(ValidationError, match="frozen"):
        config.training.lr = 1.0  # type: ignore[misc]


def test_enabled_tasks_come_in_canonical_order() -> None:
    config = config_from_dict({"tasks": {"uvwFI": {"enabled": True}, "angle": {"enabled": True}}}, "here")
    assert isinstance(config, RegressorConfig)
    assert list(config.tasks.enabled()) == ["angle", "uvwFI"]


def test_each_task_has_a_width_and_a_unit() -> None:
    assert tuple(TASK_WIDTHS) == tuple(TASK_UNITS) == TASK_NAMES
    assert sum(TASK_WIDTHS.values()) == 15


def test_json_schema_names_bounds_by_the_standard() -> None:
    text = json.dumps(json_schema())
    assert '"gt"' not in text
    assert '"exclusiveMinimum"' in text
    assert json_schema()["$defs"]["regressor"]["properties"]["data"]["$ref"] == "#/$defs/DataConfig"


def test_importing_the_loader_leaves_torch_alone() -> None:
    code = "import sys, xectool.config.load; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_edit_distance_counts_a_swap_once() -> None:
    assert edit_distance("eopchs", "epochs") == 1
    assert edit_distance("", "abc") == 3


def test_a_key_far_from_all_others_has_no_nearest() -> None:
    assert nearest_key("data.quantum_chromodynamics", "regressor") is None


def test_annotations_are_understood_by_the_unit_test() -> None:
    assert is_number(types.GenericAlias(tuple, (int, int)))
    assert not is_number(str)
