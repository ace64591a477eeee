"""Secrets never come through, however the stream is cut; everything else comes through untouched."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisord_py.pipes.agents.redaction import (
    LINE_BYTES,
    MARK,
    OVERLAP_BYTES,
    Redactor,
    pattern_trouble,
    redact,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

VALUES = st.lists(st.text("ab", min_size=6, max_size=9) | st.text('ab"\\é', min_size=6, max_size=8), max_size=4)
TEXTS = st.lists(st.sampled_from("ab\n") | st.sampled_from(["ababab", 'é"', "\\"]), max_size=60).map("".join)
CUTS = st.lists(st.integers(0, 300), max_size=8)


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    return [data[one:other] for one, other in pairwise(places)]


def streamed(redactor: Redactor, parts: Iterable[bytes]) -> bytes:
    return b"".join([*(redactor.feed(part) for part in parts), redactor.end()])


@given(values=VALUES, text=TEXTS, cuts=CUTS, patterns=st.sampled_from([(), ("a+b",), ("b*", "^a.b$")]))
def test_the_cuts_make_no_difference(values: list[str], text: str, cuts: list[int], patterns: tuple[str, ...]) -> None:
    whole = streamed(Redactor(values, patterns), [text.encode()])
    assert streamed(Redactor(values, patterns), pieces(text.encode(), cuts)) == whole
    assert redact(text, values, patterns).encode() == whole


@given(values=VALUES, text=TEXTS, cuts=CUTS)
def test_no_value_comes_through(values: list[str], text: str, cuts: list[int]) -> None:
    out = streamed(Redactor(values), pieces(text.encode(), cuts))
    for value in values:
        if len(value.strip()) >= 6:
            assert value.strip().encode() not in out


@given(text=TEXTS, cuts=CUTS)
def test_nothing_else_is_touched(text: str, cuts: list[int]) -> None:
    assert streamed(Redactor(["zzzzzz"], ["q+"]), pieces(text.encode(), cuts)) == text.encode()


@given(values=VALUES, text=TEXTS, cuts=CUTS, patterns=st.sampled_from([(), ("a+b",)]))
@example(values=["bababa"], text="bbbababab\naab", cuts=[4, 6, 12], patterns=("a+b",))
def test_another_one_goes_on_from_what_was_held(
    values: list[str], text: str, cuts: list[int], patterns: tuple[str, ...]
) -> None:
    out, held = b"", b""
    for part in pieces(text.encode(), cuts):
        redactor = Redactor(values, patterns, held)
        out += redactor.feed(part)
        held = redactor.held
    assert out + Redactor(values, patterns, held).end() == streamed(Redactor(values, patterns), [text.encode()])


def test_of_two_values_the_longer_one_is_waited_for() -> None:
    redactor = Redactor(["secret", "secret-and-more"])
    assert redactor.feed(b"secret") == b""
    assert redactor.feed(b"-and-more secret.") == MARK + b" " + MARK + b"."


def test_a_value_is_found_as_json_writes_it() -> None:
    assert redact(r'{"k": "pa\"ss\u00e9word"}', ['pa"sséword']) == '{"k": "[redacted]"}'


@pytest.mark.parametrize("value", ["", "short", "  abc  "])
def test_short_values_are_left_alone(value: str) -> None:
    assert redact("a short abc", [value]) == "a short abc"


def test_patterns_see_lines_that_are_whole() -> None:
    redactor = Redactor([], [r"\d{4}-\d{4}$"])
    assert redactor.feed(b"card 1234-5678") == b""
    assert redactor.feed(b"\nrest") == b"card [redacted]\n"
    assert redactor.end() == b"rest"


def test_a_line_without_end_is_let_go_in_pieces_and_nothing_across_them_is_missed() -> None:
    redactor = Redactor([], ["x[0-9]+x"])
    where = LINE_BYTES - OVERLAP_BYTES
    line = b"." * (where - 3) + b"x" + b"7" * 100 + b"x" + b"." * OVERLAP_BYTES * 2 + b"x7x" + b"." * 10
    out = redactor.feed(line)
    assert out == b"." * (where - 3) + MARK
    assert len(redactor.held) <= LINE_BYTES
    assert out + redactor.end() == line.replace(b"x" + b"7" * 100 + b"x", MARK).replace(b"x7x", MARK)
    beside = b"." * (where - 8) + b"x7x" + b"." * 8 + b"x8x" + b"." * LINE_BYTES
    assert streamed(Redactor([], ["x[0-9]x"]), [beside]) == beside.replace(b"x7x", MARK).replace(b"x8x", MARK)


def test_what_is_no_pattern_is_told() -> None:
    assert pattern_trouble("a+") is None
    assert "unterminated" in (pattern_trouble("[a") or "")
    assert pattern_trouble("\udc80") is not None
    with pytest.raises(re.error):
        Redactor([], ["[a"])
