"""Input is judged before anything is spawned, each place by its pointer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from supervisord_py.errors import InvalidInputError
from supervisord_py.tools.declaring import input as checked_input
from supervisord_py.tools.declaring.input import check_input
from supervisord_py.tools.declaring.schema import MAX_VIOLATIONS, compile_schema, schema_problems, violations
from tool_folders import plain

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "rho": {"type": "number", "minimum": 0},
        "name": {"type": "string", "pattern": "^[a-z]+$"},
        "kind": {"enum": ["summary", "points"]},
        "steps": {"type": "array", "items": {"type": "integer"}},
        "either": {
            "anyOf": [{"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, {"const": 5}]
        },
        "deep": {"$ref": "#/$defs/point"},
    },
    "required": ["rho"],
    "additionalProperties": False,
    "patternProperties": {"^x-": {}},
    "$defs": {"point": {"type": "object", "required": ["x", "y"]}},
}


def found(tmp_path: Path, value: Any, schema: Any = SCHEMA) -> dict[str, str]:
    with pytest.raises(InvalidInputError) as caught:
        check_input(plain(tmp_path, input=schema), value)
    return {each["pointer"]: each["message"] for each in caught.value.extra["errors"]}


def test_what_fits_passes(tmp_path: Path) -> None:
    spec = plain(tmp_path, input=SCHEMA)
    check_input(spec, {"rho": 28, "x-note": 1, "steps": [1], "either": 5, "deep": {"x": 1, "y": 2}})


def test_every_place_is_named_in_order(tmp_path: Path) -> None:
    value = {"roh": 1, "name": "A1", "kind": "point", "steps": [1, "2", 3.5], "deep": {"x": 1}}
    assert found(tmp_path, value) == {
        "/deep/y": "is required",
        "/kind": "must be one of 'summary', 'points'; did you mean 'points'?",
        "/name": "'A1' does not match '^[a-z]+$'",
        "/rho": "is required",
        "/roh": "is not known here; did you mean 'rho'?",
        "/steps/1": "must be of type integer, not a string",
        "/steps/2": "must be of type integer, not a number",
    }


def test_of_alternatives_the_nearest_is_explained(tmp_path: Path) -> None:
    assert list(found(tmp_path, {"rho": 1, "either": {"x": "1"}})) == ["/either/x"]


def test_the_error_is_a_whole_problem(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_input(plain(tmp_path, input=SCHEMA), {"a": 1, "b": 2})
    problem = caught.value.problem()
    assert (problem["status"], problem["kind"], problem["unit"]) == (422, "invalid_input", "tool:tool")
    assert problem["hint"] == "pxctl tools show tool"
    assert problem["detail"] == "input of tool:tool: /a is not known here (and 2 more)"


def test_absurd_nesting_is_refused(tmp_path: Path) -> None:
    value: Any = 0
    for _ in range(5000):
        value = [value]
    assert (
        "nested too deeply"
        in found(tmp_path, value, {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"})[""]
    )


def test_many_errors_and_long_values_stay_short(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_input(plain(tmp_path, input={"items": {"maxLength": 1}}), ["x" * 10000] * 500)
    errors = caught.value.extra["errors"]
    assert len(errors) == MAX_VIOLATIONS
    assert all(len(each["message"]) <= 400 for each in errors)


def test_a_false_schema_takes_nothing(tmp_path: Path) -> None:
    assert "" in found(tmp_path, {}, False)


def test_compiled_schemas_are_kept_by_digest_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_input, "MAX_COMPILED", 2)
    monkeypatch.setattr(checked_input, "_compiled", {})
    specs = [plain(tmp_path, f"tool{index}", input={"type": "object"}) for index in range(3)]
    for spec in specs:
        check_input(spec, {})
    first = checked_input._compiled[specs[2].digest]
    check_input(specs[2], {})
    assert checked_input._compiled[specs[2].digest] is first
    assert list(checked_input._compiled) == [specs[1].digest, specs[2].digest]


def test_a_value_that_breaks_the_arithmetic_is_an_error_of_the_input() -> None:
    assert violations(compile_schema({"multipleOf": 0.1}), 10**400)[0].message.startswith("cannot be checked")


@pytest.mark.parametrize(
    ("schema", "pointer", "words"),
    [
        ({"$ref": "#"}, "", "circle"),
        ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, "", "circle"),
        ({"$ref": "https://example.org/x.json"}, "/$ref", "nothing is fetched"),
        ({"$ref": "#/required", "required": ["a"]}, "/$ref", "no schema"),
        ({"$ref": "#/minLength/x", "minLength": 1}, "/$ref", "leads nowhere"),
        ({"$ref": "#/allOf/9", "allOf": [{}]}, "/$ref", "leads nowhere"),
        ({"items": {"$schema": "http://json-schema.org/draft-07/schema#"}}, "/items/$schema", "another dialect"),
        ({"properties": {"a": {"patternProperties": {"(": {}}}}}, "/properties/a/patternProperties", ""),
        ({"not": {"pattern": "[[a]"}}, "/not/pattern", "regular expression"),
        ({"allOf": [{"pattern": "a{99999999999}"}]}, "/allOf/0/pattern", ""),
        (
            {"properties": {"a": {"$id": "http://[", "items": {"$ref": "x"}}}},
            "/properties/a/items/$ref",
            "leads nowhere",
        ),
        ({"$id": "http://[", "$defs": {"a": {"$id": "x"}}}, "", "broken"),
        (5, "", "must be a JSON Schema"),
    ],
)
def test_a_schema_that_cannot_be_asked_is_refused(schema: Any, pointer: str, words: str) -> None:
    problems = {each.pointer: each.message for each in schema_problems(schema)}
    assert words in problems[pointer]


def test_sound_schemas_with_references_pass() -> None:
    tree = {"$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}
    assert schema_problems(tree) == []
    assert schema_problems({"$schema": "https://json-schema.org/draft/2020-12/schema#"}) == []
    assert schema_problems({"$defs": {"a": {"$anchor": "here"}}, "$ref": "#here"}) == []
    assert schema_problems(False) == []
