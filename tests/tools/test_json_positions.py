"""A parser for what people write: every error has a place, and nothing but its own error escapes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.tools.declaring.json_positions import JsonSyntaxError, Place, child, parse, parse_bytes, pointer_of

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.sampled_from([None, 0, 3]), st.booleans())
def test_it_reads_what_json_writes(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert parse_bytes(text.encode()).value == json.loads(text)


@given(JSON)
def test_every_value_is_found_at_its_pointer(value: Any) -> None:
    text = json.dumps(value, indent=1)
    document = parse(text)
    for pointer, offset in document._offsets[0].items():
        expected = value
        for token in pointer.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            expected = expected[int(name)] if isinstance(expected, list) else expected[name]
        assert json.JSONDecoder().raw_decode(text, offset)[0] == expected
        if isinstance(expected, dict | list):
            below = [
                child(pointer, name) for name in (expected if isinstance(expected, dict) else range(len(expected)))
            ]
            assert set(below) <= document._offsets[0].keys()


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_give_a_value_or_a_place(raw: bytes) -> None:
    error = trouble_with(raw)
    assert error is None or min(error.place.line, error.place.column) >= 1


def trouble_with(raw: bytes) -> JsonSyntaxError | None:
    try:
        parse_bytes(raw)
    except JsonSyntaxError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, 1, "Expecting value"),
        ('{\n  "a": 1,\n}', 3, 1, "double quotes"),
        ('{"a": 1\n "b": 2}', 2, 2, "delimiter"),
        ('{\n"a": 1,\n"b": 2,\n"a": 3}', 4, 1, "stands twice"),
        ("[1,\nNaN]", 2, 1, "NaN is no JSON"),
        ("[1e999]", 1, 2, "too large"),
        ('["\\ud800"]', 1, 3, "surrogate"),
        ("[1] 2", 1, 5, "Extra data"),
        ("[" + "1" * 5000 + "]", 1, 1, "digits"),
        ("[" * 5000, 1, 101, "nested deeper"),
    ],
)
def test_what_is_wrong_is_named_at_its_place(text: str, line: int, column: int, words: str) -> None:
    with pytest.raises(JsonSyntaxError) as caught:
        parse(text)
    assert words in caught.value.message
    assert caught.value.place == Place(line, column)


def test_a_byte_order_mark_is_named() -> None:
    with pytest.raises(JsonSyntaxError, match="byte order mark"):
        parse_bytes(b"\xef\xbb\xbf{}")


def test_a_byte_that_is_no_utf8_has_a_place() -> None:
    with pytest.raises(JsonSyntaxError, match="0xff") as caught:
        parse_bytes('{"ä":\n "'.encode() + b"\xff")
    assert caught.value.place == Place(2, 3)


def test_places_of_keys_and_of_what_is_not_there() -> None:
    document = parse('{\n "a": {\n  "b/c": [10,\n 20]}}')
    assert document.place("/a/b~1c/1") == Place(4, 2)
    assert document.key_place("/a/b~1c") == Place(3, 3)
    assert document.place("/a/missing/deeper") == document.place("/a") == Place(2, 7)
    assert document.key_place("/a/b~1c/0") == Place(3, 11)


def test_pointers_are_escaped() -> None:
    assert child("/a", "b/c~d") == "/a/b~1c~0d"
    assert pointer_of(["x", 0, "y"]) == "/x/0/y"
