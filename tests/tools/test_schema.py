"""Input is judged before anything is spawned, each place by its pointer; a schema is judged when it is read."""

from __future__ import annotations

from typing import Any

import pytest

from supervisord_py.tools.schema import compile_schema, differences, schema_problems, violations

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "rho": {"type": "number", "minimum": 0},
        "name": {"type": "string", "pattern": "^[a-z]+$"},
        "kind": {"enum": ["summary", "points"]},
        "steps": {"type": "array", "items": {"type": "integer"}},
        "either": {"anyOf": [{"properties": {"x": {"type": "integer"}}, "required": ["x"]}, {"const": 5}]},
        "deep": {"$ref": "#/$defs/point"},
    },
    "required": ["rho"],
    "additionalProperties": False,
    "patternProperties": {"^x-": {}},
    "$defs": {"point": {"type": "object", "required": ["x", "y"]}},
}


def found(value: Any, schema: Any = SCHEMA) -> dict[str, str]:
    return {each.pointer: each.message for each in violations(compile_schema(schema), value)}


def test_every_place_is_named_in_order() -> None:
    assert found({"rho": 28, "x-note": 1, "steps": [1], "either": 5, "deep": {"x": 1, "y": 2}}) == {}
    value = {"roh": 1, "name": "A1", "kind": "point", "steps": [1, "2", 3.5], "deep": {"x": 1}, "either": {"x": "1"}}
    assert list(found(value).items()) == [
        ("/deep/y", "is required"),
        ("/either", """{"x":"1"} is not valid under any of the schemas listed in the 'anyOf' keyword"""),
        ("/kind", '"point" is not one of "summary" or "points"'),
        ("/name", '"A1" does not match "^[a-z]+$"'),
        ("/rho", "is required"),
        ("/roh", "is not known here"),
        ("/steps/1", '"2" is not of type "integer"'),
        ("/steps/2", '3.5 is not of type "integer"'),
    ]


def test_odd_values_are_no_crash() -> None:
    value: Any = 0
    for _ in range(5000):
        value = [value]
    endless = {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}
    for each in (value, "\ud800", 10**400, -(2**70), 1e300):
        found(each, endless)
        assert found(each, False)


@pytest.mark.parametrize(
    ("schema", "pointer", "words"),
    [
        ({"$ref": "https://example.org/x.json"}, "", "nothing is fetched"),
        ({"$ref": "#/minLength/x", "minLength": 1}, "", "/minLength/x"),
        ({"allOf": [{"$ref": "#/allOf/9"}]}, "", "/allOf/9"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "/$schema", "another dialect"),
        ({"properties": {"a": {"pattern": "("}}}, "/properties/a/pattern", "regex"),
        ({"type": "objekt", "minimum": "5"}, "/minimum", "number"),
        ({"$id": "http://[", "$defs": {"a": {"$id": "x"}}}, "", "http://["),
        (5, "", "must be a JSON Schema"),
    ],
)
def test_a_schema_that_cannot_be_asked_is_refused(schema: Any, pointer: str, words: str) -> None:
    problems = {each.pointer: each.message for each in schema_problems(schema)}
    assert words in problems[pointer]


def test_differences_have_pointers_and_tolerances() -> None:
    assert differences({"a": [1, {"b/c": True}], "x": 1}, {"a": [1, {"b/c": 1}, 3], "y": 2}) == [
        "/a: expected 2 items, got 3",
        "/a/1/b~1c: expected True, got 1",
        "/x: missing, expected 1",
        "/y: not expected, got 2",
    ]
    assert differences(float("nan"), float("nan")) == []
    assert differences(100, 101, relative=0.02) == []
    assert differences({"a": 1}, {"a": 1, "b": 2}, extra=True) == []
    assert len(differences(list(range(100)), [0] * 100)) == 50
