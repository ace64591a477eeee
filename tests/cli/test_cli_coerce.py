"""KEY=VALUE becomes what the schema allows and the text can mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pxctl.client import Failure
from pxctl.coerce import build_input, coerce


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "1e3", 1000), ({"type": "integer"}, "1.5", "1.5"),
        ({"type": "integer"}, "٣", "٣"),
        ({"type": "integer"}, "9" * 5000, "9" * 5000),
        ({"type": "integer"}, "9" * 400, int("9" * 400)),
        ({"type": "number"}, "1_000", "1_000"), ({"type": "number"}, "nan", "nan"),
        ({"type": "number"}, "-.5", -0.5),
        ({"type": "number"}, "1e999", "1e999"), ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "?", "?"),
        ({"type": ["integer", "boolean"]}, "1", 1), ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}, "1,2", "1,2"),
        ({"allOf": [{"type": "integer"}, {"minimum": 1}]}, "4", 4), ({"enum": ["1", 1]}, "1", "1"),
        ({"enum": [1, 2.5, True, None]}, "2.5", 2.5), ({"const": 5}, "5", 5),
        ({"type": "integer", "enum": [1, 2]}, "3", 3), ({"type": "array"}, "", []),
        ({"type": "array", "items": {"type": "boolean"}}, "true, no", [True, False]),
        ({"$ref": "#/$defs/loop"}, "1,2", ["1", "2"]), ({"type": "array"}, "[1", ["[1"]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}), ({"type": "object"}, "[1]", "[1]"),
        ({"$ref": "#/$defs/n"}, "7", 7), ({"$ref": "#/$defs/a~1b"}, "7", 7),
        ({"$ref": "https://elsewhere/x"}, "7", "7"), ({"$ref": "#/nowhere/at/all"}, "7", "7"),
        ({"type": "string"}, "5", "5"), ({}, "5", "5"), (None, "5", "5"),
    ],
)  # fmt: skip
def test_what_a_text_means(schema: Any, text: str, value: Any) -> None:
    loop = {"type": "array", "items": {"$ref": "#/$defs/loop"}}
    root = {"$defs": {"n": {"type": "integer"}, "a/b": {"type": "integer"}, "loop": loop}}
    found = coerce(text, schema, root)
    assert (found, type(found)) == (value, type(value))


SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "xs": {"type": "array", "items": {"type": "number"}},
        "o": {"type": "object", "properties": {"depth": {"type": "integer"}}},
        "dotted.name": {"type": "integer"},
    },
}


def test_an_input_is_built() -> None:
    given = ["xs=1,2.5", "o.depth=3", "o.flag=yes", "dotted.name=3", "deep.er.still=x"]
    deep = {"o": {"old": 1, "depth": 3, "flag": "yes"}, "deep": {"er": {"still": "x"}}}
    assert build_input(given, {"o": {"old": 1}}, SCHEMA) == {
        "xs": [1, 2.5],
        "dotted.name": 3,
        **deep,
    }


@pytest.mark.parametrize(
    ("arguments", "base", "why"),
    [
        (["n"], {}, "is not KEY=VALUE"), (["=1"], {}, "no key"), ([":=1"], {}, "no key"),
        (["n:=[1,"], {}, "line 1 column"), (["n:=NaN"], {}, "no JSON number"),
        (["n=1", "n=2"], {}, "given twice"),
        (["n.x=1"], {"n": 5}, "is not an object"), (["a..b=1"], {}, "empty part"),
        (["n=1"], [1], "only be put over an object"),
        (["k=@nowhere"], {}, "k: cannot read nowhere: "),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(arguments: list[str], base: Any, why: str) -> None:
    with pytest.raises(Failure, match=why):
        build_input(arguments, base, SCHEMA)


@pytest.mark.parametrize(
    ("schema", "content", "value"),
    [
        ({"type": "string"}, b"some text\n", "some text\n"),
        ({}, b"@x", "@x"),
        ({"type": ["array", "null"]}, b" [1, 2]\n", [1, 2]),
        ({"type": "integer"}, b"5", 5),
        ({"type": "string", "contentEncoding": "base64"}, b"\xff", "/w=="),
        ({"$ref": "#/$defs/f"}, b"\xff", "data:application/octet-stream;base64,/w=="),
        (
            {"type": "array", "items": {"$ref": "#/$defs/f"}},
            b"",
            ["data:application/octet-stream;base64,"],
        ),
    ],
)
def test_a_file_is_given_as_the_schema_says(
    tmp_path: Path, schema: Any, content: bytes, value: Any
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    root = {"properties": {"k": schema}, "$defs": {"f": {"type": "string", "format": "data-url"}}}
    assert build_input([f"k=@{path}"], {}, root) == {"k": value}


@pytest.mark.parametrize(
    ("schema", "is_refused"),
    [
        ({"type": "string", "format": "data-url"}, True),
        ({"type": "string", "contentEncoding": "base64"}, True),
        ({"type": "array", "items": {"type": "string", "format": "data-url"}}, True),
        ({"type": "string"}, False),
        ({}, False),
    ],
)
def test_name_of_a_file_is_not_sent_in_place_of_the_file(
    tmp_path: Path, schema: Any, is_refused: bool
) -> None:
    path = tmp_path / "d.csv"
    path.write_bytes(b"a,b")
    root = {"properties": {"k": schema}}
    if is_refused:
        with pytest.raises(Failure, match="k takes a file") as refused:
            build_input([f"k={path}"], {}, root)
        assert f"k=@{path} gives the file" in str(refused.value.hint)
    else:
        assert build_input([f"k={path}"], {}, root) == {"k": str(path)}
    assert "k" in build_input([f'k:="{path}"'], {}, root), "said in so many words"
    assert "k" in build_input(["k=data:,x"], {}, root)
    assert "k" in build_input([f"k={tmp_path}/none"], {}, root)
