"""The input that a validation sends: the tool's own `test-request.json`, else one made from what it declares.

What is made is as plain as can be: const, default, first example or option, the middle or an end of a range. Where that
does not fit, the author is asked to write the test request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from supervisord_py.config.documents import DocumentError, read_document
from supervisord_py.errors import InvalidInputError
from supervisord_py.tools.manifest import ToolSpec, check_input
from supervisord_py.tools.pixie import PixieManifest, value_schema

TEST_REQUEST = "test-request.json"
_PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAAC0lEQVR4nGNgAAIAAAUAAXpeqz8AAAAASUVORK5CYII="
)
_SILENCE = "data:audio/wav;base64,UklGRigAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQQAAACAgICA"
_PIXIES: dict[str, Any] = {
    "file": _PICTURE, "image": _PICTURE, "audio": _SILENCE, "colour": "#000000", "time": "12:00", "date": "2026-01-01",
    "datetime": "2026-01-01T12:00:00", "date_range": ["2026-01-01", "2026-01-02"], "map_point": [0, 0],
    "map_bbox": [[0, 0], [0.01, 0.01]], "map_polygon": [[0, 0]], "map_multipoint": [[0, 0]],
}  # fmt: skip
"""Values of inputs whose schema says less than their type."""
_MAX_DEPTH = 20


class Sample(NamedTuple):
    """An input to try, where it comes from, and why it does not fit (empty when it does)."""

    value: Any
    origin: str
    trouble: str = ""


def sample_input(spec: ToolSpec) -> Sample:
    """Return an input for the tool: its test request, else a generated one."""
    path, origin = spec.folder / TEST_REQUEST, TEST_REQUEST
    if path.exists():
        try:
            value = read_document(path).value
        except DocumentError as error:
            line = f", line {error.problem.line}" if error.problem.line else ""
            return Sample({}, origin, f"{origin}{line}: {error.problem.message}")
    else:
        origin = "generated from the input's declaration"
        value = _plain(spec.input_schema, spec.input_schema) if spec.pixie is None else _pixie(spec.pixie)
    try:
        check_input(spec, value)
    except InvalidInputError as error:
        cure = "" if origin == TEST_REQUEST else f"; write {TEST_REQUEST}"
        return Sample(value, origin, f"{error.detail}{cure}")
    return Sample(value, origin)


def _plain(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """Return the plainest value that a schema names; whether it fits is for others to check."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return {}
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    if str(schema.get("$ref", "")).startswith("#/$defs/"):
        return _plain(root.get("$defs", {}).get(schema["$ref"].removeprefix("#/$defs/")), root, depth + 1)
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return _plain(schema[key][0], root, depth + 1)
    kinds = schema.get("type", "object")
    match kinds if isinstance(kinds, str) else next((kind for kind in kinds if kind != "null"), "null"):
        case "object":
            known, must = schema.get("properties", {}), schema.get("required", ())
            wanted = [name for name, each in known.items() if isinstance(each, dict) and "default" in each]
            return {name: _plain(known.get(name, {}), root, depth + 1) for name in dict.fromkeys([*wanted, *must])}
        case "array":
            return [_plain(schema.get("items", {}), root, depth + 1)] * min(int(schema.get("minItems", 0)), 1000)
        case "string":
            return "sample"[: schema.get("maxLength")]
        case "integer" | "number" as kind:
            low, high = schema.get("minimum"), schema.get("maximum")
            if low is None or high is None:
                return min(0, high or 0) if low is None else low
            return (low + high) // 2 if kind == "integer" else low / 2 + high / 2
        case "boolean":
            return False
        case _:
            return None


def _pixie(traits: PixieManifest) -> dict[str, Any]:
    """Return values for all inputs but those that are optional without default, or hidden by their `show_if`."""
    if traits.layout == "chat":
        return {"messages": [{"role": "user", "content": "Validation probe"}], "history": []}
    values = {each.key: each.default for each in traits.inputs if each.default is not None}
    for each in traits.inputs:
        hidden = each.show_if is not None and values.get(each.show_if.key) != each.show_if.equals
        if each.default is None and each.required and not hidden:
            schema = value_schema(each)
            value = _PIXIES.get(each.type) or _plain(schema, schema)
            values[each.key] = [value] if each.multiple and each.type in {"file", "image", "audio"} else value
    return values
