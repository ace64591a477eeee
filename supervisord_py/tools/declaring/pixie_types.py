"""The types of Pixie's inputs and outputs: which keys each may have, and the JSON Schema that its values fit.

As lenient as Pixie itself: dates and colours are any string, points are arrays or objects, steps are for the form
only. Bounds and options are kept, because the form of the original keeps them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.tools.spec import PixieInput, PixieOutput

INPUT_KEYS = ("key", "label", "type", "description", "default", "required", "group", "show_if")
_MAP = ("default_center", "default_zoom")
INPUT_TYPES: Mapping[str, tuple[str, ...]] = {
    "text": ("placeholder", "max_length"),
    "textarea": ("placeholder", "max_length", "monospace"),
    "number": ("min", "max", "step", "unit"),
    "slider": ("min", "max", "step", "range"),
    "select": ("options", "searchable"),
    "multiselect": ("options",),
    "checkbox": (),
    "toggle": (),
    "radio": ("options",),
    "date": ("min", "max"),
    "time": (),
    "datetime": (),
    "date_range": (),
    "file": ("accept", "max_size_mb", "multiple"),
    "image": ("max_size_mb", "multiple"),
    "audio": ("max_size_mb",),
    "colour": (),
    "json": ("schema",),
    "code": ("language",),
    "markdown": (),
    "tags": ("suggestions",),
    "autocomplete": ("endpoint",),
    "table": ("columns", "min_rows", "max_rows"),
    "map_point": _MAP,
    "map_bbox": _MAP,
    "map_polygon": _MAP,
    "map_multipoint": _MAP,
    "hidden": (),
}
"""Every input type with the keys that only it has."""

REQUIRED_KEYS: Mapping[str, tuple[str, ...]] = {
    "slider": ("min", "max"),
    "select": ("options",),
    "multiselect": ("options",),
    "radio": ("options",),
    "autocomplete": ("endpoint",),
    "table": ("columns",),
}

OUTPUT_KEYS = (
    "key",
    "label",
    "type",
    "description",
    "caption",
    "unit",
    "streaming",
    "layout",
    "default_export_format",
    "supported_export_formats",
)
_AXES = ("x_label", "y_label", "log_x", "log_y")
OUTPUT_TYPES: Mapping[str, tuple[str, ...]] = {
    "text": (),
    "markdown": (),
    "number": ("format", "precision"),
    "boolean": ("true_label", "false_label"),
    "table": ("columns", "downloadable"),
    "kv": (),
    "chart_line": _AXES,
    "chart_area": _AXES,
    "chart_bar": (),
    "chart_scatter": (),
    "chart_pie": (),
    "chart_histogram": (),
    "chart_boxplot": (),
    "chart_heatmap": (),
    "chart_candlestick": (),
    "chart_radar": (),
    "chart_sankey": (),
    "chart_treemap": (),
    "chart_network": (),
    "map_points": _MAP,
    "map_heatmap": (),
    "map_choropleth": (),
    "map_polygons": (),
    "map_route": (),
    "image": (),
    "image_grid": (),
    "image_compare": (),
    "audio": (),
    "video": (),
    "latex": (),
    "code": ("language",),
    "diff": (),
    "tree": (),
    "timeline": (),
    "gantt": (),
    "progress": (),
    "log": (),
    "stream_text": (),
    "file": (),
}
"""Every output type with the keys that only it has."""

_SCALARS: Mapping[str, list[str]] = {
    "text": ["string", "number", "boolean", "null"],
    "markdown": ["string"],
    "number": ["number", "null"],
    "boolean": ["boolean"],
    "latex": ["string"],
    "code": ["string"],
    "progress": ["number", "null"],
    "image": ["string", "null"],
    "audio": ["string", "null"],
    "video": ["string", "null"],
    "stream_text": ["string", "null"],
}
"""Outputs whose value may be given raw or as `{"value": …}`."""

_MEMBERS: Mapping[str, tuple[str, ...]] = {
    "table": ("columns", "rows"),
    "kv": ("pairs",),
    "log": ("lines",),
    "diff": ("before", "after"),
    "tree": ("root",),
    "timeline": ("events",),
    "gantt": ("tasks",),
    "chart_line": ("x", "series"),
    "chart_area": ("x", "series"),
    "chart_bar": ("x", "series"),
    "chart_scatter": ("series",),
    "chart_pie": ("slices",),
    "chart_histogram": ("values",),
    "chart_boxplot": ("series",),
    "chart_heatmap": ("x_labels", "y_labels", "z"),
    "chart_candlestick": ("points",),
    "chart_radar": ("axes", "series"),
    "chart_sankey": ("nodes", "links"),
    "chart_treemap": ("nodes",),
    "chart_network": ("nodes", "edges"),
    "map_points": ("points",),
    "map_heatmap": ("points",),
    "map_choropleth": ("geojson", "values"),
    "map_polygons": ("polygons",),
    "map_route": ("points",),
    "image_grid": ("images",),
    "image_compare": ("before", "after"),
    "file": ("filename", "data", "mime_type"),
}
"""Outputs that are objects, with the members that they must have."""


def value_schema(declared: PixieInput) -> dict[str, Any]:
    """Return the JSON Schema of one input's value, without regard to whether it may be left out."""
    return _SCHEMAS.get(declared.type, _anything)(declared)


def _anything(_declared: PixieInput) -> dict[str, Any]:
    return {}


def _text(declared: PixieInput) -> dict[str, Any]:
    return _bounded({"type": "string"}, declared.settings, maxLength="max_length")


def _number(declared: PixieInput) -> dict[str, Any]:
    return _bounded({"type": "number"}, declared.settings, minimum="min", maximum="max")


def _slider(declared: PixieInput) -> dict[str, Any]:
    one = _number(declared)
    return {"type": "array", "items": one, "minItems": 2, "maxItems": 2} if declared.settings.get("range") else one


def _choice(declared: PixieInput) -> dict[str, Any]:
    return _options(declared.options)


def _choices(declared: PixieInput) -> dict[str, Any]:
    return {"type": "array", "items": _options(declared.options)}


def _boolean(_declared: PixieInput) -> dict[str, Any]:
    return {"type": "boolean"}


def _file(declared: PixieInput) -> dict[str, Any]:
    """`format` tells a client how a file is to be given: one, or each of several."""
    one = {"type": "string", "format": "data-url"}
    schema: dict[str, Any] = {"type": ["string", "array"], "items": one}
    return schema if declared.settings.get("multiple") else schema | {"format": "data-url"}


def _tags(_declared: PixieInput) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}}


def _table(declared: PixieInput) -> dict[str, Any]:
    rows = {"type": "array", "items": {"type": "object"}}
    return _bounded(rows, declared.settings, minItems="min_rows", maxItems="max_rows")


def _composed(_declared: PixieInput) -> dict[str, Any]:
    return {"type": ["array", "object"]}


def _json(declared: PixieInput) -> dict[str, Any]:
    return dict(declared.settings.get("schema") or {})


_SCHEMAS: Mapping[str, Callable[[PixieInput], dict[str, Any]]] = {
    **dict.fromkeys(
        ("text", "textarea", "code", "markdown", "autocomplete", "colour", "date", "time", "datetime"), _text
    ),
    "number": _number,
    "slider": _slider,
    **dict.fromkeys(("select", "radio"), _choice),
    "multiselect": _choices,
    **dict.fromkeys(("checkbox", "toggle"), _boolean),
    **dict.fromkeys(("file", "image", "audio"), _file),
    "tags": _tags,
    "table": _table,
    **dict.fromkeys(("date_range", "map_point", "map_bbox", "map_polygon", "map_multipoint"), _composed),
    "json": _json,
}


def _bounded(schema: dict[str, Any], settings: Mapping[str, Any], **keywords: str) -> dict[str, Any]:
    """Add a keyword for each setting that is there."""
    return schema | {keyword: settings[key] for keyword, key in keywords.items() if settings.get(key) is not None}


def _options(options: tuple[Any, ...]) -> dict[str, Any]:
    """Return an enum, with its type where all options have the same (a client coerces words by it)."""
    kinds = {_kind(option) for option in options}
    return ({"type": kinds.pop()} if len(kinds) == 1 else {}) | {"enum": list(options)}


def _kind(option: Any) -> str:
    match option:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case _:
            return "string"


def answer_schema(outputs: tuple[PixieOutput, ...]) -> dict[str, Any]:
    """Return the JSON Schema of an answer: an object with every output that does not stream."""
    return {
        "type": "object",
        "properties": {each.key: {"title": each.label} | _output_schema(each.type) for each in outputs},
        "required": [each.key for each in outputs if not each.streaming],
    }


def _output_schema(kind: str) -> dict[str, Any]:
    if kind in _MEMBERS:
        return {"type": "object", "required": list(_MEMBERS[kind])}
    raw = _SCALARS[kind]
    return {"type": [*raw, "object"], "properties": {"value": {"type": raw}}, "required": ["value"]}
