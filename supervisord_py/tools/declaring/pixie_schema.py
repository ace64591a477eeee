"""From Pixie's declared inputs to one JSON Schema, so that both dialects are checked by the same rule.

An input is required unless it says `required: false`, has a default, or is hidden by its `show_if`. The default of an
input always fits, even where its own bounds say otherwise: Pixie would send it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisord_py.tools.declaring.pixie_types import value_schema
from supervisord_py.tools.declaring.schema import compile_schema, violations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisord_py.tools.spec import PixieInput

CHAT = "chat"
"""The layout whose body is a conversation, whatever the inputs say."""


def input_schema(inputs: tuple[PixieInput, ...], layout: str) -> dict[str, Any]:
    """Return the schema that the filled-in inputs of a run must fit."""
    schema: dict[str, Any] = {"type": "object", "properties": {each.key: _member(each) for each in inputs}}
    if layout == CHAT:
        return schema
    schema["additionalProperties"] = False
    must = [each for each in inputs if each.required and not each.defaults]
    schema["required"] = [each.key for each in must if each.show_if is None]
    conditions = list(_conditions(must))
    return schema | ({"allOf": conditions} if conditions else {})


def _conditions(must: list[PixieInput]) -> Iterator[dict[str, Any]]:
    for each in must:
        if each.show_if is not None:
            shown = {"properties": {each.show_if.key: {"const": each.show_if.equals}}, "required": [each.show_if.key]}
            yield {"if": shown, "then": {"required": [each.key]}}


def _member(declared: PixieInput) -> dict[str, Any]:
    notes: dict[str, Any] = {"title": declared.label}
    if declared.settings.get("description"):
        notes["description"] = declared.settings["description"]
    schema = value_schema(declared)
    if declared.defaults:
        notes["default"] = declared.defaults[0]
        if not default_fits(declared):
            return notes | {"anyOf": [schema, {"const": declared.defaults[0]}]}
    elif not declared.required:
        return notes | {"anyOf": [schema, {"type": "null"}]} if "type" not in schema else notes | _or_null(schema)
    return notes | schema


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Let null stand for 'not given', which is what a form sends for an empty optional field."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    widened = schema | {"type": [*kinds, "null"]}
    return widened | {"enum": [*schema["enum"], None]} if "enum" in schema else widened


def default_fits(declared: PixieInput) -> bool:
    """Say whether the default of an input fits the input's own type and bounds."""
    return not violations(compile_schema(value_schema(declared)), declared.defaults[0])


def incoherences(inputs: tuple[PixieInput, ...], outputs_count: int) -> list[str]:
    """Say what does not fit together although every part is sound; for check 3 of the validator."""
    keys = {each.key for each in inputs}
    found = [] if inputs else ["there are no inputs"]
    found += [] if outputs_count else ["there are no outputs"]
    for each in inputs:
        if each.show_if is not None and each.show_if.key not in keys:
            found.append(f"input {each.key!r}: show_if names {each.show_if.key!r}, which is no input")
        if each.type == "hidden" and not each.defaults:
            found.append(f"input {each.key!r}: a hidden input needs a default")
        if each.defaults and not default_fits(each):
            found.append(f"input {each.key!r}: the default does not fit its own type or bounds")
    return found
