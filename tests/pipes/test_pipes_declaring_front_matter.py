"""Front matter: where it lies, what its YAML says, and that every fault is told with its line and the cure."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from pipe_texts import pipe_text
from supervisord_py.pipes.declaring.files import decode
from supervisord_py.pipes.declaring.front_matter import (
    MAX_DEPTH,
    MAX_NODES,
    parse,
    simple,
)
from supervisord_py.pipes.declaring.problems import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisord_py.pipes.models import ConfigProblem


@pytest.fixture(params=["C", "Python"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both parsers: the one in C, and the one of machines without it."""
    if request.param == "Python":
        monkeypatch.delattr(yaml, "CSafeLoader")
    return request.param


def header_of(text: str) -> object:
    return simple(parse(text, "pipe.md").header)


def fault(text: str) -> ConfigProblem:
    with pytest.raises(DeclarationError) as caught:
        parse(text, "pipe.md")
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


@pytest.mark.parametrize(
    ("text", "header", "body"),
    [
        ("---\na: 1\n---\nDo it.\n", {"a": "1"}, "Do it."),
        ("\ufeff---\r\na: 1\r\n---\r\n\r\nDo\r\nit.\r\n", {"a": "1"}, "Do\r\nit."),
        ("---\ra: 1\rb: x\r---\rDo it.", {"a": "1", "b": "x"}, "Do it."),
        ("\n \n---  \na: 1\n---\t\nDo it.", {"a": "1"}, "Do it."),
        ("---\na: 1\n-----\nDo it.", {"a": "1"}, "Do it."),
        ("---\n---", {}, ""),
        ("---\n# only a comment\n---\n\n   \n    code\n\nmore  \n\n", {}, "    code\n\nmore"),
        ("---\n~\n---\nx", {}, "x"),
        ("---\na: 1\n---\nx\n\n---\n\nenabled: false\n---\n", {"a": "1"}, "x\n\n---\n\nenabled: false\n---"),
        ("---\na: '---'\n ---: b\n---\nx", None, "x"),
        ("---\na: {b: [c, 'd e']}\nf:\n- g\n-\n  h: ~\n---\n", {"a": {"b": ["c", "d e"]}, "f": ["g", {"h": None}]}, ""),
        ("---\na: 9:30\nb: 010\nc: yes\nd: 2026-01-01\ne: 0x1F\nf: 1e3\ng: ''\n---\n",
         {"a": "9:30", "b": "010", "c": "yes", "d": "2026-01-01", "e": "0x1F", "f": "1e3", "g": ""}, ""),
        ("---\nnäme: — 日本 😀\n---\n日本", {"näme": "— 日本 😀"}, "日本"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("loader")
def test_a_file_is_header_and_body(text: str, header: object, body: str) -> None:
    if header is None:
        assert fault(text).line == 3
        return
    assert header_of(text) == header
    assert parse(text, "pipe.md").body == body


@pytest.mark.parametrize(
    ("text", "line", "detail", "hint"),
    [
        ("", 1, "the file is empty", "begin the file with a line ---"),
        ("# Title\n", 1, "no front matter: the file begins with '# Title'", "begin the file"),
        ("---yaml\na: 1\n---\n", 1, "the first line is '---yaml'", ""),
        ("--- # x\na: 1\n---\n", 1, "the first line is '--- # x'", ""),
        ("\n---\na: 1\n", 2, "never closed", "put a line --- between"),
        ("---\na: 1\n--- b: 2\nx", 3, "'b: 2' follows the closing ---", "a line of its own"),
    ],
)
def test_fences(text: str, line: int, detail: str, hint: str) -> None:
    found = fault(text)
    assert (found.line, detail in found.detail, hint in found.hint) == (line, True, True), found


@pytest.mark.parametrize(
    ("header", "line", "detail", "hint"),
    [
        ("a: 1\nschedule: */30 * * * *  # often", 3, "begins with *", "quote it: schedule: '*/30 * * * *'"),
        ("preset: [fast, *]", 2, "begins with *", 'quote it: preset: [fast, "*"]'),
        ("a: &b c", 2, "anchor", "quote it: a: '&b c'"),
        ("a: !!int 3", 2, "tag", "quote it: a: '!!int 3'"),
        ("<<: {a: b}", 2, "<< merges", "write the keys out"),
        ("model: @x/y", 2, "cannot begin with @", "quote it: model: '@x/y'"),
        ("a: `x`", 2, "cannot begin with `", "quote it: a: '`x`'"),
        ("description: Notes: the day's", 2, "the value of 'description' holds a colon",
         "quote it: description: 'Notes: the day''s'"),
        ("a: 1\n\tb: 2", 3, "a tab", "use spaces"),
        ("a: 'b\nc: d", 2, "the quote ' that begins here is never closed", "close the value with '"),
        ('a: "b\\d"', 2, "backslash", "single quotes"),
        ('a: "b" c', 2, "the value of 'a' is no plain text", 'quote it: a: \'"b" c\''),
        ("a: [b, c\nd: e", 2, "the [ that begins here", "close them"),
        ("a: >x\n  b", 2, "no plain text", "quote it: a: '>x'"),
        ("a:1\nb: 2", 2, "'a:1' has no space after its colon", "write key: value"),
        ("a: 1\n  b: 2", 3, "no valid YAML", "same column"),
        ("a: - b", 2, "no plain text", "quote it"),
        ("a: 1\njust words\nb: 2", 3, "no valid YAML", "# before a comment"),
        ("a: b\n- c", 3, "no valid YAML", "write key: value"),
        ("- a\n- b", 2, "not made of lines of key: value", "begin the file"),
        ("? [a]\n: b", 2, "a key here is not a word", "write key: value"),
        ("a: 1\n...\n", 3, "...", "take the line out"),
        ("a: 1\nb: \x07", 3, "U+0007", "take it out"),
        ("a: 1\nb: 2\na: 3", 4, "'a' stands in line 2 and again in line 4", "keep one"),
        ("a: {b: 1,\n  b: 2}", 3, "'b' stands in line 2 and again in line 3", "keep one"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("loader")
def test_every_fault_has_line_and_cure(header: str, line: int, detail: str, hint: str) -> None:
    found = fault(pipe_text(header))
    assert detail in found.detail, found
    assert hint in found.hint, found
    assert found.line == line, found
    assert found.column is not None
    assert found.column >= 1


@pytest.mark.parametrize("header", ["a: " + "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), f"a: [{'b,' * MAX_NODES}]"])
def test_a_header_is_bounded(header: str) -> None:
    assert "more than" in fault(pipe_text(header)).detail


@pytest.mark.parametrize(
    ("raw", "line", "column", "detail"),
    [
        (b"---\na: \xe9\n---\n", 2, 4, "byte 0xE9 is no UTF-8"),
        ("é\xa0".encode() + b"\xff", 1, 3, "byte 0xFF"),
        (b"---\nb\0\n", 2, 2, "a NUL byte"),
        ("---".encode("utf-16"), 1, 1, "UTF-16"),
    ],
)
def test_what_is_no_text_is_named(raw: bytes, line: int, column: int, detail: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        decode(raw, "pipe.md")
    found = caught.value.problems[0]
    assert (found.line, found.column, detail in found.detail) == (line, column, True)


@given(st.text(max_size=300))
@example("\xa0\xa0\U00010000\x1f")
@example("a: \ufeffb")
def test_any_text_is_parsed_or_refused_with_a_place(text: str) -> None:
    for whole in (text, f"---\n{text}\n---\nbody\n"):
        with contextlib.suppress(DeclarationError):
            parse(whole, "pipe.md")
            continue
        found = fault(whole)
        assert found.line is not None
        assert found.hint
