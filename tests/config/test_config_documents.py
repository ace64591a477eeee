"""What users write is read into Structs, and each mistake is told with its place and the nearest
known word.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.config import documents as subject
from supervisord_py.config.documents import (
    Document,
    DocumentError,
    convert,
    parse_json,
    parse_toml,
    parse_yaml,
)


class Listen(enum.StrEnum):
    HANDOVER = "handover"
    PORT = "port"


class Limits(msgspec.Struct, forbid_unknown_fields=True):
    open_files: Annotated[int, msgspec.Meta(ge=16)] | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True):
    name: str = "x"
    listen: Listen = Listen.HANDOVER
    mode: Literal["one", "two"] = "one"
    limits: Limits = msgspec.field(default_factory=Limits)
    command: tuple[str, ...] | None = None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"nam": 1}', (1, 2, "/nam", "unknown key 'nam'; did you mean 'name'?")),
        ('{\n\t"name": 1}', (2, 10, "/name", "must be a string, not a whole number")),
        ('{"listen": "prt"}', (1, 12, "/listen", "must be one of handover, port, not 'prt'; did "
                                                 "you mean 'port'?")),
        ('{"limits": {"open_files": 3}}', (1, 27, "/limits/open_files", "must be a whole number >= 16")),
        ('{"command": ["a", 5]}', (1, 19, "/command/1", "must be a string, not a whole number")),
        ("[]", (1, 1, "", "must be an object, not an array")),
    ],
)  # fmt: skip
def test_each_mistake_is_told_with_its_place(text: str, expected: tuple[Any, ...]) -> None:
    (found,) = convert(parse_json(text, "tool.json"), Tool)[1]
    assert (found.line, found.column, found.pointer, found.message) == expected


def test_a_problem_is_an_error_of_every_surface() -> None:
    error = subject.config_error(
        convert(parse_json('{"mode": 1}', "tool.json"), Tool)[1] * 3, "tool:x"
    )
    assert error.detail.startswith("tool.json, line 1, column 10, at /mode: must be a string")
    assert error.detail.endswith("(and 2 more)")
    assert [each["pointer"] for each in error.extra["errors"]] == ["/mode"] * 3


@pytest.mark.parametrize(
    ("parse", "text", "place", "words"),
    [
        (parse_json, '{"ä": 1,\n "b": NaN}', (2, 7), "invalid character"),
        (parse_json, '{"a": 1,}', (1, 9), "trailing comma in object"),
        (parse_json, "[1e999]", (1, 8), "out of range"),
        (parse_json, '"\\ud800"', (1, 9), "truncated"),
        (parse_toml, "a = 1\nb =\n", (2, 4), "Invalid value"),
        (parse_yaml, "a: 1\na: 2", (2, 1), "the key 'a' stands twice"),
        (parse_yaml, "a: b: c", (1, 5), "mapping values are not allowed here"),
        (parse_yaml, "a: &x 1", (1, 4), "anchors, aliases and tags are not read"),
    ],
)
def test_a_text_that_is_not_of_its_language_is_told_with_its_place(
    parse: Callable[[str, str], Document], text: str, place: tuple[int, int], words: str
) -> None:
    with pytest.raises(DocumentError, match=words) as caught:
        parse(text, "file")
    assert (caught.value.problem.line, caught.value.problem.column) == place


@pytest.mark.parametrize(
    ("parse", "key"), [(parse_json, ""), (parse_toml, "a = "), (parse_yaml, "")]
)
def test_deep_nesting_is_a_mistake(parse: Callable[[str, str], Document], key: str) -> None:
    with pytest.raises(DocumentError, match=r"nested too deep|100 levels"):
        parse(key + "[" * 5000 + "]" * 5000, "file")


@given(st.text(max_size=60) | st.text("{}[]\",:=-&*!\n ab1'.", max_size=40))
def test_whatever_the_text_a_reader_gives_a_value_or_a_document_error(text: str) -> None:
    for parse in (parse_json, parse_toml, parse_yaml):
        try:
            document = parse(text, "file")
        except DocumentError:
            continue
        document.place(("a", 0, "b"))


def test_keys_of_toml_tables_are_found_by_their_line() -> None:
    document = parse_toml("x = 1\n[limits.main]\nopen_files = 20\n  open_file = 3\n", "limits.toml")
    (problem,) = convert(
        document, Limits, ("limits", "main"), value=document.value["limits"]["main"]
    )[1]
    assert (problem.line, problem.column, "did you mean 'open_files'?" in problem.message) == (
        4,
        3,
        True,
    )


def make_bytes(path: Path) -> None:
    path.write_bytes(b'\xef\xbb\xbf{"a": "\xff"}')


@pytest.mark.parametrize(
    ("make", "line"), [(Path.absolute, None), (os.mkfifo, None), (make_bytes, 1)]
)
def test_a_file_that_cannot_be_read_is_a_document_error(
    tmp_path: Path, make: Callable[[Path], object], line: int | None
) -> None:
    path = tmp_path / "tool.json"
    make(path)
    with pytest.raises(DocumentError) as caught:
        subject.read_document(path)
    assert (caught.value.problem.file, caught.value.problem.line) == (str(path), line)
