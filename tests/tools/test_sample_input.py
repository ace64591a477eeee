"""Samples fit what they are sampled from, for the schemas that people write."""

from __future__ import annotations

import base64
import io
import wave
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.tools.checking.sample_input import generated_input, one_pixel_png, sample_input, silent_wav
from supervisord_py.tools.checking.sample_schema import sample_of
from supervisord_py.tools.declaring.difference import MAX_DIFFERENCES, Tolerance, differences
from supervisord_py.tools.declaring.input import check_input
from supervisord_py.tools.declaring.schema import compile_schema, schema_problems, violations
from tool_folders import FULL_INPUTS, pixie, plain

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def bounds(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(0, 50)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def numbers() -> st.SearchStrategy[dict[str, Any]]:
    inclusive = bounds(-50, 50).map(lambda pair: {"minimum": pair[0], "maximum": pair[1]})
    exclusive = bounds(-50, 50).map(lambda pair: {"exclusiveMinimum": pair[0], "exclusiveMaximum": pair[1] + 2})
    low = st.integers(-50, 50).map(lambda low: {"minimum": low})
    above = st.integers(-50, 50).map(lambda low: {"exclusiveMinimum": low})
    high = st.integers(-50, 50).map(lambda high: {"maximum": high})
    below = st.integers(-50, 50).map(lambda high: {"exclusiveMaximum": high})
    kind = st.sampled_from([{"type": "integer"}, {"type": "number"}, {"type": ["null", "integer"]}, {}])
    bound = st.one_of(inclusive, exclusive, low, above, high, below, st.just({"multipleOf": 7}))
    return st.tuples(kind, bound).map(lambda parts: parts[0] | parts[1])


LEAVES = st.one_of(
    numbers(),
    bounds(0, 20).map(lambda pair: {"type": "string", "minLength": pair[0], "maxLength": pair[1]}),
    st.sampled_from(["date", "uuid", "email"]).map(lambda name: {"type": "string", "format": name}),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {}, True, {"const": [1]}, {"enum": ["a", 2]}]),
    st.sampled_from([{"type": "string", "pattern": "^a", "default": "abc"}, {"type": "string", "pattern": "^s"}]),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3).flatmap(
            lambda members: st.lists(st.sampled_from([*members, "zz"]), unique=True).map(
                lambda required: {"type": "object", "properties": members, "required": required}
            )
        ),
        st.tuples(inner, st.integers(0, 3)).map(lambda of: {"type": "array", "items": of[0], "minItems": of[1]}),
        st.lists(inner, min_size=1, max_size=2).map(lambda of: {"anyOf": of}),
        inner.map(lambda of: {"allOf": [of]}),
    ),
    max_leaves=6,
)
REFERRING = SCHEMAS.map(
    lambda of: {"$defs": {"x": of}, "type": "object", "properties": {"y": {"$ref": "#/$defs/x"}}, "required": ["y"]}
)


def resolvable(schema: Any) -> bool:
    return isinstance(schema, dict) and not schema_problems(schema)


@given((SCHEMAS | REFERRING).filter(resolvable))
def test_a_sample_fits_its_schema(schema: dict[str, Any]) -> None:
    found = sample_of(schema)
    assert found
    assert violations(compile_schema(schema), found[0]) == []


@pytest.mark.parametrize(
    ("schema", "sample"),
    [
        ({"type": "number", "minimum": 0, "maximum": 10}, 5),
        ({"type": "number", "minimum": 0, "maximum": 10, "default": 7}, 7),
        ({"type": "number", "minimum": 0, "maximum": 10, "default": 70}, 5),
        ({"type": "integer", "minimum": 1, "maximum": 4}, 2),
        ({"enum": ["b", "a"]}, "b"),
        ({"type": "string", "enum": ["b", "a"]}, "b"),
        ({"type": "string", "examples": ["^_^"], "pattern": "_"}, "^_^"),
        ({"type": "string"}, "sample"),
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": "integer", "exclusiveMinimum": 0}, 1),
        ({"type": "integer", "exclusiveMaximum": 0}, -1),
        ({"type": "integer", "multipleOf": 5, "minimum": 11, "maximum": 17}, 15),
        ({"multipleOf": 5, "minimum": 13, "maximum": 16}, 15),
        ({"minimum": 1}, 1),
        ({}, {}),
        ({"properties": {"a": {"default": 1}, "b": {}}}, {"a": 1}),
        ({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "minItems": 2}, [1, 2]),
        ({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 3}, [1, 2, 2]),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True}, [0, 1, 2]),
        ({"type": "array", "items": {"type": "string"}, "minItems": 2, "uniqueItems": True}, ["sample", "sample1"]),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "uniqueItems": True}, [False, True]),
        ({"anyOf": [{"type": "string", "pattern": "^z"}, {"type": "boolean"}]}, False),
        ({"oneOf": [{"type": "integer"}, {"type": "boolean"}], "default": None}, 0),
        ({"allOf": [{"minimum": 5}, {"maximum": 9}], "type": "integer", "minimum": 3, "maximum": 99}, 7),
        (
            {
                "allOf": [{"properties": {"a": {"default": 1}}, "required": ["a"]}],
                "properties": {"b": {}},
                "required": ["b"],
            },
            {"b": {}, "a": 1},
        ),
        ({"allOf": [{"anyOf": [{"const": 1}, {"const": 2}]}], "anyOf": [{"const": 2}]}, 2),
        ({"allOf": [{"allOf": [{"minimum": 4}]}], "type": "integer"}, 4),
        ({"allOf": [True], "type": "integer", "multipleOf": 10, "minimum": 1, "maximum": 12}, 10),
        ({"type": "integer", "multipleOf": 10, "minimum": 8, "maximum": 11}, 10),
        ({"type": "integer", "multipleOf": 10, "minimum": 9, "maximum": 19}, 10),
        ({"type": "integer", "minimum": 1, "exclusiveMaximum": 2.5, "multipleOf": 2}, 2),
        ({"type": "integer", "multipleOf": 10, "minimum": 11}, 20),
        ({"type": "integer", "multipleOf": 10, "maximum": -11}, -20),
        ({"properties": {"a": True}, "required": ["a"]}, {"a": {}}),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": 5}}}, 5),
    ],
)
def test_the_order_of_choice(schema: dict[str, Any], sample: Any) -> None:
    assert sample_of(schema) == (sample,)


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {}},
        {"type": "string", "pattern": "^[0-9]{13}$"},
        {
            "$defs": {
                "n": {
                    "type": "object",
                    "properties": {c: {"$ref": "#/$defs/n"} for c in "abc"},
                    "required": ["a", "b", "c"],
                }
            },
            "$ref": "#/$defs/n",
        },
        {"type": "array", "minItems": 2, "uniqueItems": True, "items": {"const": [1]}},
    ],
)
def test_where_none_is_found_there_is_none(schema: dict[str, Any]) -> None:
    assert sample_of(schema) == ()


def test_the_tools_own_test_request_comes_first(tmp_path: Path) -> None:
    spec = plain(tmp_path, input={"type": "object", "required": ["a"]})
    assert sample_input(spec, NOW).origin.startswith("generated")
    request = spec.folder / "test-request.json"
    request.write_text('{"a": 1}')
    found = sample_input(spec, NOW)
    assert (found.value, found.origin, found.trouble) == ({"a": 1}, "test-request.json", "")
    request.write_text('{"b": 1}')
    assert "/a is required" in sample_input(spec, NOW).trouble
    request.write_text('{"b": 1,}')
    assert "test-request.json, line 1: trailing comma" in sample_input(spec, NOW).trouble
    request.unlink()
    request.mkdir()
    assert sample_input(spec, NOW).trouble


def test_every_type_of_pixie_gets_a_value_that_fits(tmp_path: Path) -> None:
    bare = [
        {key: value for key, value in each.items() if key != "default"} | {"required": True} for each in FULL_INPUTS
    ]
    spec = pixie(tmp_path, inputs=bare)
    value = generated_input(spec, NOW)
    assert set(value) == {each["key"] for each in FULL_INPUTS}
    check_input(spec, value)
    assert (value["t_slider"], value["t_range"], value["t_date"]) == (50.0, [0, 100], "2026-03-01")
    assert value["t_table"] == [{"n": ""}]
    assert value["t_point"] == [51.5, -0.1]


def test_optional_and_hidden_inputs_of_pixie_are_left_out(tmp_path: Path) -> None:
    inputs = [
        {"key": "mode", "type": "text", "label": "M", "default": "fast"},
        {"key": "low", "type": "number", "label": "L", "min": 3},
        {"key": "high", "type": "number", "label": "H", "max": -3},
        {"key": "free", "type": "number", "label": "F"},
        {"key": "optional", "type": "text", "label": "O", "required": False},
        {"key": "hidden", "type": "text", "label": "X", "show_if": {"key": "mode", "equals": "slow"}},
        {"key": "shown", "type": "text", "label": "Y", "show_if": {"key": "mode", "equals": "fast"}},
    ]
    value = generated_input(pixie(tmp_path, inputs=inputs), NOW)
    assert value == {"mode": "fast", "low": 3, "high": -3, "free": 0, "shown": ""}


def test_a_chat_is_asked_in_its_own_words(tmp_path: Path) -> None:
    value = generated_input(pixie(tmp_path, layout="chat"), NOW)
    assert value == {"messages": [{"role": "user", "content": "Validation probe"}], "history": []}


def test_the_picture_and_the_silence_are_real() -> None:
    picture = base64.b64decode(one_pixel_png().partition(",")[2])
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    with wave.open(io.BytesIO(base64.b64decode(silent_wav().partition(",")[2]))) as sound:
        assert sound.getnframes() / sound.getframerate() == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_nothing_differs_from_itself(value: Any) -> None:
    assert differences(value, value) == []


def test_differences_have_pointers() -> None:
    expected = {"a": [1, 2], "b": {"c": True}, "d": 1, "f": "x" * 200}
    actual = {"a": [1, 3, 4], "b": {"c": 1}, "e": 2, "f": ""}
    assert differences(expected, actual) == [
        "/a: expected 2 items, got 3",
        "/a/1: expected 2, got 3",
        "/b/c: expected True, got 1",
        "/d: missing, expected 1",
        f"/f: expected {('x' * 200)!r:.79}…, got ''",
        "/e: not expected, got 2",
    ]
    assert differences(1, 2) == ["/: expected 1, got 2"]
    assert len(differences([0] * 500, [1] * 500)) == MAX_DIFFERENCES


def test_tolerances() -> None:
    near = Tolerance(absolute=0.1, relative=0.01)
    assert differences({"x": 1.0}, {"x": 1.09}, near) == []
    assert differences(1000, 1009, near) == []
    assert differences(1000, 1011, near)
    assert near.allows(float("nan"), float("nan"))
    assert not near.allows(1, float("nan"))
