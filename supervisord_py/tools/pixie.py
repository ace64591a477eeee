"""Pixie's dialect of `tool.json`: typed inputs and outputs, from which one JSON Schema is made; and
the body of a run.

As lenient as the original: null stands for absent, dates and colours are any text, steps are for
its form only. What it refuses is refused; what its validator only reports is a warning here and a
failed check there.
"""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote_to_bytes

from msgspec import Meta, Struct

from supervisord_py.config.documents import (
    Document,
    Pointer,
    Problem,
    convert,
    did_you_mean,
    type_name,
)
from supervisord_py.errors import BadRequestError
from supervisord_py.process.child_environment import ENV_NAME, MARKS
from supervisord_py.tools.schema import compile_schema, schema_problems, violations

YEAR = 366 * 86400
Text = Annotated[str, Meta(pattern=r"^[^\0]*$")]
Word = Annotated[str, Meta(min_length=1, max_length=65536, pattern=r"^[^\0]*$")]
Count = Annotated[int, Meta(ge=0, le=10**9)]
WarmKeep = Annotated[float, Meta(ge=0, le=YEAR)]
Megabytes = Annotated[int, Meta(ge=0, le=16 * 1024 * 1024)]
Runtime = Annotated[float, Meta(ge=0, le=YEAR)]  # 0 is none

FILE_TYPES = frozenset({"file", "image", "audio"})
_DATA_URL = re.compile(
    r"data:(?P<type>[^;,]*)(?P<parameters>(?:;[^;,]*)*),(?P<content>.*)", re.DOTALL
)


class PixieSecret(Struct, frozen=True, forbid_unknown_fields=True):
    """The name of an environment variable whose value lives in `.env` only."""

    key: Word
    description: str = ""
    required: bool = False


class ShowIf(Struct, frozen=True, forbid_unknown_fields=True):
    """An input is shown, and can be required, only while the input `key` equals `equals` (a JSON
    value).
    """

    key: Word
    equals: Any


class PixieOption(Struct, frozen=True, forbid_unknown_fields=True):
    value: str | float | int | bool
    label: str | None = None


class PixieInput(Struct, frozen=True, kw_only=True):
    """One declared input, with what the schema of its value is made of.

    A default of None is none.
    """

    key: Word
    type: Word
    label: str = ""
    description: str = ""
    required: bool = True
    default: Any = None
    show_if: ShowIf | None = None
    options: Annotated[tuple[PixieOption, ...], Meta(min_length=1)] = ()
    max_length: Count | None = None
    min: Any = None
    max: Any = None
    range: bool = False
    multiple: bool = False
    min_rows: Count | None = None
    max_rows: Count | None = None
    schema: dict[str, Any] | None = None


class PixieOutput(Struct, frozen=True):
    """One declared output; `streaming` ones arrive over `GET /stream?run_id=`."""

    key: Word
    type: Word
    label: str = ""
    streaming: bool = False


class PixieManifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: Word
    name: str
    inputs: tuple[PixieInput, ...]
    outputs: tuple[PixieOutput, ...]
    warm_keep_seconds: WarmKeep
    max_memory_mb: Megabytes
    max_runtime_seconds: Runtime
    entrypoint: Word = "main.py"
    description: str = ""
    version: str = ""
    category: str = ""
    icon: str = ""
    # how it is shown; `chat` also changes the body of a run
    layout: Literal["form", "chat", "split"] = "form"
    secrets: tuple[PixieSecret, ...] = ()
    schema_version: str = ""
    concurrent: bool = True
    validator_timeout_override: Annotated[int, Meta(ge=1, le=86400)] | None = None
    requires_data_persistence: bool = False
    input_transport: Literal["json", "multipart"] = "json"
    provides_file_endpoint: bool = False
    provides_autocomplete: bool = False
    retain_runs: Annotated[int, Meta(ge=0, le=1_000_000)] = 100
    tags: list[str] = []
    archived: bool = False
    pinned_warm: bool = False
    package: str = ""
    workspace_default: str = ""

    @property
    def streams(self) -> bool:
        return any(output.streaming for output in self.outputs)


# -- the types of inputs and outputs ---------------------------------------------------------------

INPUT_TYPES = frozenset({
    "text", "textarea", "number", "slider", "select", "multiselect", "radio", "checkbox", "toggle",
    "date", "time", "datetime", "date_range", "colour", "file", "image", "audio", "json", "code",
    "markdown", "tags", "autocomplete", "hidden", "table", "map_point", "map_bbox", "map_polygon",
    "map_multipoint",
})  # fmt: skip
REQUIRED_KEYS = {
    "slider": ("min", "max"), "select": ("options",), "multiselect": ("options",),
    "radio": ("options",),
    "autocomplete": ("endpoint",), "table": ("columns",),
}  # fmt: skip
_SCALARS = {
    "text": ["string", "number", "boolean", "null"], "markdown": ["string"], "latex": ["string"],
    "code": ["string"],
    "number": ["number", "null"], "progress": ["number", "null"], "boolean": ["boolean"],
    "image": ["string", "null"],
    "audio": ["string", "null"], "video": ["string", "null"], "stream_text": ["string", "null"],
}  # fmt: skip
"""Outputs whose value may be given raw or as `{"value": …}`."""
_MEMBERS = {
    "table": "columns rows", "kv": "pairs", "log": "lines", "diff": "before after", "tree": "root",
    "timeline": "events", "gantt": "tasks", "image_grid": "images", "image_compare": "before after",
    "file": "filename data mime_type", "chart_line": "x series", "chart_area": "x series",
    "chart_bar": "x series",
    "chart_scatter": "series", "chart_pie": "slices", "chart_histogram": "values", "chart_boxplot":
    "series",
    "chart_heatmap": "z", "chart_candlestick": "points", "chart_radar": "axes series",
    "chart_sankey": "nodes links",
    "chart_treemap": "nodes", "chart_network": "nodes edges", "map_points": "points",
    "map_heatmap": "points",
    "map_choropleth": "geojson values", "map_polygons": "polygons", "map_route": "points",
}  # fmt: skip
"""Outputs that are objects, with the members that they must have."""
OUTPUT_TYPES = frozenset({*_SCALARS, *_MEMBERS})


# -- reading ---------------------------------------------------------------------------------------


def without_nulls(value: Any) -> Any:
    """Return an object without its members that are null; anything else as it is."""
    return (
        {key: each for key, each in value.items() if each is not None}
        if isinstance(value, dict)
        else value
    )


def read_manifest(
    document: Document, usual: dict[str, Any]
) -> tuple[PixieManifest | None, list[Problem]]:
    """Read a manifest, or say what is wrong; `usual` counts where it says nothing."""
    value = usual | without_nulls(document.value)
    problems: list[Problem] = []
    for name in ("inputs", "outputs", "secrets"):
        if not isinstance(members := value.get(name), list):
            continue
        value[name] = members = [without_nulls(each) for each in members]
        keys: set[Any] = set()
        for index, each in enumerate(members):
            if isinstance(each, dict) and isinstance(key := each.get("key"), str):
                problems += _wrong_for_its_type(document, (name, index), each)
                if key in keys:
                    problems.append(
                        document.problem(
                            (name, index, "key"), f"the key {key!r} stands twice in {name}"
                        )
                    )
                keys.add(key)
    read, wrong = convert(document, PixieManifest, value=value)
    return read, problems + wrong


def _wrong_for_its_type(
    document: Document, at: Pointer, value: Mapping[str, Any]
) -> Iterator[Problem]:
    """Say what a member lacks, or has beside its type; keys that only its form knows are not
    looked at.
    """
    is_input, kind = at[0] == "inputs", value.get("type")
    types = INPUT_TYPES if is_input else OUTPUT_TYPES
    if at[0] == "secrets":
        if not ENV_NAME.fullmatch(value["key"]) or value["key"] in MARKS:
            message = f"{value['key']!r} is no name of an environment variable of a tool"
            yield document.problem((*at, "key"), message)
    elif isinstance(kind, str) and kind not in types:
        yield document.problem((*at, "type"), f"unknown type {kind!r}{did_you_mean(kind, types)}")
    elif is_input:
        for key in REQUIRED_KEYS.get(str(kind), ()):
            if key not in value:
                yield document.problem(at, f"the key {key!r} is missing")
        for key in ("min", "max") if kind in {"number", "slider"} else ():
            if isinstance(value.get(key, 0), bool) or not isinstance(
                value.get(key, 0), (int, float)
            ):
                yield document.problem((*at, key), f"must be a number, not {type_name(value[key])}")
        for path, message in schema_problems(value.get("schema")):
            yield document.problem((*at, "schema", *path), f"JSON Schema: {message}")


# -- schemas ---------------------------------------------------------------------------------------


def input_schema(traits: PixieManifest) -> dict[str, Any]:
    """Return the schema that the filled-in inputs of a run must fit.

    An input is required unless it says `required: false`, has a default, is hidden by its
    `show_if`, or is a file, image or audio, which its own fixtures leave out. Its default always
    fits, as Pixie would send it.
    """
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {each.key: _member(each) for each in traits.inputs},
    }
    if traits.layout == "chat":
        return schema
    must = [
        each
        for each in traits.inputs
        if each.required and each.default is None and each.type not in FILE_TYPES
    ]
    schema |= {
        "additionalProperties": False,
        "required": [each.key for each in must if each.show_if is None],
    }
    conditions = [
        {
            "if": {"properties": {on.key: {"const": on.equals}}, "required": [on.key]},
            "then": {"required": [each.key]},
        }
        for each in must
        if (on := each.show_if) is not None
    ]
    return schema | ({"allOf": conditions} if conditions else {})


def _member(declared: PixieInput) -> Any:
    notes = without_nulls(
        {"title": declared.label or declared.key, "description": declared.description or None}
    )
    schema = value_schema(declared)
    if declared.default is None:
        return notes | schema
    notes["default"] = declared.default
    return notes | (
        schema if default_fits(declared) else {"anyOf": [schema, {"const": declared.default}]}
    )


def value_schema(declared: PixieInput) -> Any:
    match declared.type:
        case (
            "text"
            | "textarea"
            | "code"
            | "markdown"
            | "autocomplete"
            | "colour"
            | "date"
            | "time"
            | "datetime"
        ):
            return without_nulls({"type": "string", "maxLength": declared.max_length})
        case "number" | "slider":
            one = without_nulls(
                {"type": "number", "minimum": declared.min, "maximum": declared.max}
            )
            return (
                {"type": "array", "items": one, "minItems": 2, "maxItems": 2}
                if declared.range
                else one
            )
        case "select" | "radio":
            return _one_of(declared.options)
        case "multiselect":
            return {"type": "array", "items": _one_of(declared.options)}
        case "checkbox" | "toggle":
            return {"type": "boolean"}
        # `format` tells a client how a file is to be given: one, or each of several
        case "file" | "image" | "audio":
            one = {"type": "string", "format": "data-url"}
            several: dict[str, Any] = {"type": ["string", "array"], "items": one}
            return several if declared.multiple else several | {"format": "data-url"}
        case "tags":
            return {"type": "array", "items": {"type": "string"}}
        case "table":
            limits = {"minItems": declared.min_rows, "maxItems": declared.max_rows}
            return without_nulls({"type": "array", "items": {"type": "object"}, **limits})
        case "date_range" | "map_point" | "map_bbox" | "map_polygon" | "map_multipoint":
            return {"type": ["array", "object"]}
        case "json":
            return dict(declared.schema or {})
        case _:
            return {}


def _one_of(options: tuple[PixieOption, ...]) -> dict[str, Any]:
    """Return an enum, with its type where all options have the same (a client coerces words by
    it).
    """
    names = {bool: "boolean", int: "number", float: "number"}
    kinds = {names.get(type(each.value), "string") for each in options}
    return ({"type": kinds.pop()} if len(kinds) == 1 else {}) | {
        "enum": [each.value for each in options]
    }


def default_fits(declared: PixieInput) -> bool:
    return not violations(compile_schema(value_schema(declared)), declared.default)


def answer_schema(outputs: tuple[PixieOutput, ...]) -> dict[str, Any]:
    """Return the JSON Schema of an answer: an object with every output that does not stream."""
    members: dict[str, Any] = {}
    for each in outputs:
        if each.type in _MEMBERS:
            shape: dict[str, Any] = {"type": "object", "required": _MEMBERS[each.type].split()}
        else:
            raw = _SCALARS[each.type]
            shape = {
                "type": [*raw, "object"],
                "properties": {"value": {"type": raw}},
                "required": ["value"],
            }
        members[each.key] = {"title": each.label or each.key} | shape
    return {
        "type": "object",
        "properties": members,
        "required": [each.key for each in outputs if not each.streaming],
    }


def incoherences(traits: PixieManifest) -> list[str]:
    """Say what does not fit together although every part is sound; for check 3 of the validator."""
    keys = {each.key for each in traits.inputs}
    found = [f"there are no {name}" for name in ("inputs", "outputs") if not getattr(traits, name)]
    for each in traits.inputs:
        if each.show_if is not None and each.show_if.key not in keys:
            found.append(
                f"input {each.key!r}: show_if names {each.show_if.key!r}, which is no input"
            )
        if each.type == "hidden" and each.default is None:
            found.append(f"input {each.key!r}: a hidden input needs a default")
        if each.default is not None and not default_fits(each):
            found.append(f"input {each.key!r}: the default does not fit its own type or bounds")
    return found


# -- a run -----------------------------------------------------------------------------------------


def fill_defaults(traits: PixieManifest, value: Any) -> Any:
    """Return an input with its defaults filled in.

    Pixie's own body, `{run_id, inputs}`, is taken as well.
    """
    if not isinstance(value, dict):
        return value
    declared = {each.key: each for each in traits.inputs}
    inputs = value.get("inputs")
    if (
        isinstance(inputs, dict)
        and "inputs" not in declared
        and value.keys() <= {"run_id", "inputs", "_pixie"}
    ):
        value = inputs
    return {
        **{key: each.default for key, each in declared.items() if each.default is not None},
        **value,
    }


def pixie_call(
    traits: PixieManifest, tool: str, inputs: Mapping[str, Any], run_id: str, artefacts_root: Path
) -> tuple[bytes, dict[str, str]]:
    """Build body and headers of one run: `{run_id, inputs, <each input again>, _pixie}`, or a form.

    The flat copy of the inputs serves older tools. With `input_transport: multipart` every input
    becomes a form field; files, images and audio, which come as data URLs, become file parts. The
    run's directory, `artefacts_root/<tool>/<run_id>`, is not made here. Raises BadRequestError: the
    inputs cannot be told as JSON.
    """
    directory = artefacts_root / tool / run_id
    filled = fill_defaults(traits, inputs)
    own = {"run_id": run_id, "_pixie": {"run_id": run_id, "artefacts_dir": str(directory)}}
    headers = {"X-Pixie-Run-Id": run_id, "X-Pixie-Artefacts-Dir": str(directory)}
    try:
        if traits.input_transport == "multipart":
            files = {each.key for each in traits.inputs if each.type in FILE_TYPES}
            form = _form({**filled, **own}, files, run_id)
            return form, {**headers, "Content-Type": f"multipart/form-data; boundary={run_id}"}
        body = _json({**filled, "inputs": filled, **own})
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadRequestError(
            f"The input for tool:{tool} cannot be passed on: {why}.", unit=f"tool:{tool}"
        ) from error
    return body, {**headers, "Content-Type": "application/json"}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "replace"
    )


def _form(fields: Mapping[str, Any], files: set[str], boundary: str) -> bytes:
    """Return form fields: none for null, one each for several files, JSON for what is composed
    (RFC 7578).
    """
    parts = bytearray()
    for key, value in fields.items():
        for index, each in enumerate(
            value if key in files and isinstance(value, list) else [value]
        ):
            name, kind = f'name="{_quoted(key)}"', "text/plain; charset=utf-8"
            if each is None:
                continue
            if key in files:
                content, kind = _decoded(key, each)
                suffix = (
                    ""
                    if kind == "application/octet-stream"
                    else mimetypes.guess_extension(kind) or ""
                )
                name += f'; filename="{_quoted(key)}-{index}{suffix}"'
            else:
                content = each.encode("utf-8", "replace") if isinstance(each, str) else _json(each)
            head = (
                f"--{boundary}\r\nContent-Type: {_quoted(kind)}\r\nContent-Disposition: form-data; "
                f"{name}\r\n\r\n"
            )
            parts += head.encode("utf-8", "replace") + content + b"\r\n"
    return bytes(parts) + f"--{boundary}--\r\n".encode()


def _decoded(key: str, value: Any) -> tuple[bytes, str]:
    """Decode a data URL; what is none goes as it is, so that the tool can say what it thinks of
    it.
    """
    text = value if isinstance(value, str) else json.dumps(value)
    url = _DATA_URL.fullmatch(text)
    if url is None:
        return text.encode("utf-8", "replace"), "application/octet-stream"
    content = unquote_to_bytes(url["content"])
    if url["parameters"].endswith(";base64"):
        try:
            content = base64.b64decode(content)
        except binascii.Error as error:
            raise BadRequestError(
                f"input {key!r} is a data URL with broken base64: {error}"
            ) from None
    return content, url["type"] or "text/plain"


def _quoted(text: str) -> str:
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
