"""Examples of answers in OpenAPI, made from what the models' fields give as examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stelae.client.http.protocol import JSON_TYPE

DEEPEST = 12
_OF_TYPE: dict[str, Any] = {"string": "", "integer": 1, "number": 0.5, "boolean": True}
_REFERENCE = "#/components/schemas/"


def add_examples(operation: dict[str, Any], schemas: Mapping[str, Any]) -> None:
    """Give each JSON answer of a success an example, unless it has one."""
    for status, response in operation["responses"].items():
        content = response.get("content", {}).get(JSON_TYPE)
        if status[0] == "2" and content is not None and "example" not in content:
            content["example"] = example_of_schema(content["schema"], schemas)


def example_of_schema(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int = 0) -> Any:
    """A value that a schema describes."""
    assert depth < DEEPEST, "models that hold themselves have an example of their own"
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REFERENCE)
        return example_of_schema(schemas[name], schemas, depth + 1)
    for choice in ("const", "default"):
        if choice in schema:
            return schema[choice]
    if "enum" in schema:
        return schema["enum"][0]
    for group in ("anyOf", "oneOf"):
        if group in schema:
            return example_of_schema(schema[group][0], schemas, depth + 1)
    if schema.get("type") == "array":
        return [example_of_schema(schema.get("items", {}), schemas, depth + 1)]
    if schema.get("type") == "object" or "properties" in schema:
        parts = schema.get("properties", {}).items()
        return {name: example_of_schema(part, schemas, depth + 1) for name, part in parts}
    return _OF_TYPE.get(schema.get("type", ""))
