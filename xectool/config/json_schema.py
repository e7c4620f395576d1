"""The schema as JSON Schema, for editors that complete and check YAML."""

from __future__ import annotations

from typing import Any

from xectool.config.root import KINDS

_KEYWORDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}


def json_schema() -> dict[str, Any]:
    """Return one JSON Schema for the three kinds, told apart by ``kind``."""
    definitions: dict[str, Any] = {}
    roots = []
    for kind, cls in KINDS.items():
        schema = _standard(cls.model_json_schema(ref_template="#/$defs/{model}"))
        definitions |= schema.pop("$defs", {})
        schema["required"] = ["kind"]
        definitions[kind] = schema
        roots.append({"$ref": f"#/$defs/{kind}"})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "xectool configuration",
        "oneOf": roots,
        "$defs": definitions,
    }


def _standard(node: Any) -> Any:
    # Bounds of nullable numbers come out under pydantic's own names.
    if isinstance(node, list):
        return [_standard(item) for item in node]
    if not isinstance(node, dict):
        return node
    inside_number = node.get("type") in ("number", "integer")
    return {_KEYWORDS.get(name, name) if inside_number else name: _standard(value) for name, value in node.items()}
