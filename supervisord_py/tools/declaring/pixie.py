"""Pixie's dialect of `tool.json`: typed inputs and outputs instead of schemas (CONTRACT §5).

Null stands for absent, as in the original. What the original refuses is refused; what its own validator only reports
(an unresolved `show_if`, a hidden input without default) is a warning here and a failed check there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from supervisord_py.process.child_environment import ENV_NAME, MARKS
from supervisord_py.tools.declaring.declaration import Declaration, check_name
from supervisord_py.tools.declaring.fields import Span, type_name
from supervisord_py.tools.declaring.json_positions import child
from supervisord_py.tools.declaring.pixie_schema import incoherences, input_schema
from supervisord_py.tools.declaring.pixie_types import (
    INPUT_KEYS,
    INPUT_TYPES,
    OUTPUT_KEYS,
    OUTPUT_TYPES,
    REQUIRED_KEYS,
    answer_schema,
)
from supervisord_py.tools.declaring.problems import did_you_mean
from supervisord_py.tools.declaring.schema import schema_problems
from supervisord_py.tools.spec import InputTransport, PixieInput, PixieOutput, PixieSecret, PixieTraits, ShowIf

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.tools.declaring.fields import Fields

KEYS = (
    "id",
    "name",
    "inputs",
    "outputs",
    "description",
    "version",
    "category",
    "icon",
    "layout",
    "secrets",
    "schema_version",
    "concurrent",
    "validator_timeout_override",
    "requires_data_persistence",
    "input_transport",
    "provides_file_endpoint",
    "provides_autocomplete",
    "retain_runs",
    "tags",
    "archived",
    "pinned_warm",
    "package",
    "workspace_default",
)
_RUNS = Span(0, 1_000_000)
_TIMEOUT = Span(1, 86400)
_BOUND = Span(-1e308, 1e308)
_COUNT = Span(0, 1e9)


class Layout(StrEnum):
    """How the original shows the tool; `chat` also changes the body of a run."""

    FORM = "form"
    CHAT = "chat"
    SPLIT = "split"


def read_pixie(fields: Fields, folder_name: str) -> Declaration:
    """Read what Pixie's dialect says; every problem is noted, none raised."""
    check_name(fields, "id", folder_name)
    for key in ("name", "inputs", "outputs"):
        if not fields.has(key):
            fields.missing(key)
    traits = _traits(fields)
    _read_hints(fields)
    sound = not fields.problems.found
    for sentence in incoherences(traits.inputs, len(traits.outputs)) if sound else ():
        fields.problems.warn(sentence)
    return Declaration(
        title=fields.text("name", folder_name),
        version=fields.text("version", ""),
        description=fields.text("description", ""),
        input_schema=input_schema(traits.inputs, traits.layout) if sound else {},
        output_schema=answer_schema(traits.outputs),
        concurrent=fields.boolean("concurrent", default=True),
        pinned=fields.boolean("pinned_warm", default=False),
        pixie=traits,
    )


def _traits(fields: Fields) -> PixieTraits:
    inputs = [_input(each) for each in fields.nested_list("inputs")]
    outputs = [_output(each) for each in fields.nested_list("outputs")]
    _refuse_twins(fields, "inputs", [each.key if each else "" for each in inputs])
    _refuse_twins(fields, "outputs", [each.key if each else "" for each in outputs])
    return PixieTraits(
        inputs=tuple(each for each in inputs if each is not None),
        outputs=tuple(each for each in outputs if each is not None),
        secrets=tuple(_secret(each) for each in fields.nested_list("secrets")),
        layout=fields.choice("layout", Layout, Layout.FORM),
        input_transport=fields.choice("input_transport", InputTransport, InputTransport.JSON),
        retain_runs=fields.integer("retain_runs", _RUNS, 100),
        validator_timeout_override=fields.optional_integer("validator_timeout_override", _TIMEOUT),
    )


def _read_hints(fields: Fields) -> None:
    """Check the type of what only the original's pages use."""
    for key in ("category", "icon", "package", "workspace_default", "schema_version"):
        fields.text(key, "")
    for key in ("requires_data_persistence", "provides_file_endpoint", "provides_autocomplete", "archived"):
        fields.boolean(key, default=False)
    fields.texts("tags")


def _refuse_twins(fields: Fields, key: str, names: list[str]) -> None:
    for index, name in enumerate(names):
        if name and name in names[:index]:
            pointer = child(child(child(fields.pointer, key), index), "key")
            message = f"the key {name!r} stands twice in {key}"
            fields.problems.add(fields.file, fields.document, pointer, message)


def _kind(fields: Fields, known: Mapping[str, tuple[str, ...]]) -> str | None:
    """Read `type`; None when it is missing or unknown."""
    kind = fields.optional_text("type")
    if kind is None:
        if not fields.has("type"):
            fields.missing("type")
        return None
    if kind not in known:
        fields.wrong("type", f"unknown type {kind!r}{did_you_mean(kind, known)}")
        return None
    return kind


def _key(fields: Fields) -> str | None:
    key = fields.optional_text("key")
    if key is None and not fields.has("key"):
        fields.missing("key")
    return key


def _label(fields: Fields, key: str) -> str:
    if not fields.has("label"):
        fields.problems.warn(f"{fields.pointer}: no label; the key stands in for it")
    return fields.text("label", key)


def _input(fields: Fields) -> PixieInput | None:
    kind, key = _kind(fields, INPUT_TYPES), _key(fields)
    if kind is None or key is None:
        return None
    for name in REQUIRED_KEYS.get(kind, ()):
        if not fields.has(name):
            fields.missing(name)
    for name in ("description", "group"):
        fields.text(name, "")
    declared = PixieInput(
        key=key,
        type=kind,
        label=_label(fields, key),
        required=fields.boolean("required", default=True),
        defaults=(fields.raw("default"),) if fields.raw("default") is not None else (),
        show_if=_show_if(fields),
        options=_options(fields) if "options" in INPUT_TYPES[kind] else (),
        settings=fields.present(),
    )
    _check_settings(fields, kind)
    fields.refuse_unknown(known=(*INPUT_KEYS, *INPUT_TYPES[kind]))
    return declared


def _check_settings(fields: Fields, kind: str) -> None:
    """Check the type of what the schema of a value is made of."""
    if kind in ("number", "slider"):
        low, high = fields.number("min", _BOUND, _BOUND.low), fields.number("max", _BOUND, _BOUND.high)
        if low > high:
            fields.wrong("max", f"max {high:g} is below min {low:g}")
    for name in ("max_length", "min_rows", "max_rows"):
        if name in INPUT_TYPES[kind]:
            fields.optional_integer(name, _COUNT)
    if kind == "slider":
        fields.boolean("range", default=False)
    if kind == "json":
        _check_nested_schema(fields)


def _check_nested_schema(fields: Fields) -> None:
    if fields.nested("schema") is None:
        return
    for each in schema_problems(fields.raw("schema")):
        pointer = child(fields.pointer, "schema") + each.pointer
        fields.problems.add(fields.file, fields.document, pointer, f"JSON Schema: {each.message}")


def _show_if(fields: Fields) -> ShowIf | None:
    nested = fields.nested("show_if")
    if nested is None:
        return None
    key, equals = _key(nested), nested.raw("equals")
    if "equals" not in nested.members:
        nested.missing("equals")
    nested.refuse_unknown()
    return ShowIf(key, equals) if key is not None else None


def _options(fields: Fields) -> tuple[Any, ...]:
    """Return the values of `options`."""
    found: list[Any] = []
    for option in fields.nested_list("options"):
        value = option.raw("value")
        if not option.has("value"):
            option.missing("value")
        elif isinstance(value, (str, int, float)):
            found.append(value)
        else:
            option.wrong("value", f"must be a string, number or boolean, not {type_name(value)}")
        option.text("label", "")
        option.refuse_unknown()
    if not found and fields.has("options"):
        fields.wrong("options", "must hold at least one {value, label}")
    return tuple(found)


def _output(fields: Fields) -> PixieOutput | None:
    kind, key = _kind(fields, OUTPUT_TYPES), _key(fields)
    if kind is None or key is None:
        return None
    declared = PixieOutput(key, kind, _label(fields, key), fields.boolean("streaming", default=False))
    fields.refuse_unknown(known=(*OUTPUT_KEYS, *OUTPUT_TYPES[kind]))
    return declared


def _secret(fields: Fields) -> PixieSecret:
    key = _key(fields) or ""
    if key and (not ENV_NAME.fullmatch(key) or key in MARKS):
        fields.wrong("key", f"{key!r} is no name of an environment variable of a tool")
    declared = PixieSecret(key, fields.text("description", ""), fields.boolean("required", default=False))
    fields.refuse_unknown({"label": "a secret has a description instead"})
    return declared
