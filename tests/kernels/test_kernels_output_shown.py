"""Cutting, two ends, and what they are put together to. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.kernels.output import two_ends
from supervisord_py.kernels.output.display_text import (
    NEAR_BYTES,
    as_on_a_terminal,
    cut_end,
    cut_start,
    whole_characters,
)
from supervisord_py.kernels.output.shown import RichOutputs, Shown, compose
from supervisord_py.kernels.output.two_ends import Span, TwoEnds, Words

# -- where to cut ----------------------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=30), st.integers(0, 60))
def test_a_cut_never_divides_a_character(text: str, place: int) -> None:
    data = text.encode()
    place = min(place, len(data))
    data[:place][: cut_end(data[:place])].decode()
    data[place:][cut_start(data[place:]) :].decode()


@given(st.binary(max_size=40))
def test_cuts_are_places_within_whatever_bytes(data: bytes) -> None:
    assert 0 <= cut_end(data) <= len(data)
    assert 0 <= cut_start(data) <= len(data)
    assert len(data) - 3 <= whole_characters(data) <= len(data)


def test_a_cut_falls_between_lines_that_are_near() -> None:
    assert cut_end(b"one\ntwo\nthr") == 8
    assert cut_start(b"ne\ntwo\nthree") == 3
    assert cut_end(b"x\n" + b"y" * NEAR_BYTES) == 2 + NEAR_BYTES
    assert cut_start(b"y" * NEAR_BYTES + b"\nx") == 0
    assert cut_start(b"all of it\n") == 0
    assert cut_start(b"\x80\x80\x80\x80\x80") == 0
    assert cut_start(b"\x80\x80") == 2


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain\n", "plain\n"),
        ("10%\r20%\r100%\ndone", "100%\ndone"),
        ("a long line\rshort", "shortg line"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("kept\r", "kept"),
        ("\r\rx", "x"),
        ("a long line\r\x1b[2Kshort", "\x1b[2Kshort"),
        ("\x1b[31mred line\x1b[0m\rover", "over"),
    ],
)
def test_carriage_returns_show_what_a_terminal_shows_last(text: str, seen: str) -> None:
    assert as_on_a_terminal(text) == seen


# -- two ends --------------------------------------------------------------------------------------------------------

PARTS = st.lists(
    st.tuples(st.just("stream"), st.integers(0, 12), st.sampled_from(["stdout", "stderr"]))
    | st.tuples(st.just("words"), st.integers(0, 12)),
    max_size=14,
)


@given(PARTS, st.integers(0, 20), st.integers(0, 20))
def test_every_byte_is_in_the_head_in_the_tail_or_omitted_once(parts: list[Any], head: int, tail: int) -> None:
    ends, position, whole = TwoEnds(head, tail), 0, []
    for number, part in enumerate(parts):
        if part[0] == "stream":
            ends.add(Span(position, position + part[1], part[2]))
            whole += [(place, part[2]) for place in range(position, position + part[1])]
            position += part[1]
        else:
            ends.add(Words(b"\n" * part[1], number))
            whole += [(number, "words")] * part[1]
    kept = ends.finish()
    beginning, end = units(kept.head), units(kept.tail)
    assert beginning == whole[: len(beginning)]
    assert not end or end == whole[-len(end) :]
    assert len(beginning) + len(end) + kept.omitted.size == len(whole)
    omitted = whole[len(beginning) : len(whole) - len(end)]
    streamed = [unit[0] for unit in omitted if unit[1] != "words"]
    assert streamed == list(range(kept.omitted.start, kept.omitted.end))
    assert kept.omitted.word_lines == kept.omitted.word_bytes == len(omitted) - len(streamed)
    if len(whole) <= head + tail:
        assert kept.omitted.size == 0
    else:
        assert (len(beginning), len(end)) == (head, tail)


def units(parts: Any) -> list[Any]:
    found: list[Any] = []
    for part in parts:
        if isinstance(part, Span):
            found += [(place, part.stream) for place in range(part.start, part.end)]
        else:
            found += [(part.ordinal, "words")] * part.size
    return found


def test_the_number_of_parts_is_bounded_whatever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_ends, "MAX_PARTS", 10)
    ends = TwoEnds(0, 1000)
    ends.add(Words(b"x", 0))
    for number in range(100):
        ends.add(Words(b"", number))
    assert len(ends.finish().tail) <= 10


def test_neighbouring_stretches_of_one_stream_are_one() -> None:
    ends = TwoEnds(100, 100)
    for part in (Span(0, 2, "stdout"), Span(2, 4, "stdout"), Span(4, 5, "stderr"), Span(5, 6, "stdout")):
        ends.add(part)
    assert ends.finish().head == (Span(0, 4, "stdout"), Span(4, 5, "stderr"), Span(5, 6, "stdout"))


# -- put together ----------------------------------------------------------------------------------------------------


class Bytes:
    """A stream file in memory."""

    artifact = "c1"

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, start: int, end: int) -> bytes:
        return self.data[start:end]

    def count_lines(self, start: int, end: int) -> int:
        return self.data.count(b"\n", start, end)


def shown(parts: list[Any], head: int = 100, tail: int = 100) -> Shown:
    """Compose `("stdout", b"…")` and `{"output_type": …, "text": "…"}`."""
    ends, rich, data = TwoEnds(head, tail), RichOutputs(), b""
    for part in parts:
        if isinstance(part, tuple):
            ends.add(Span(len(data), len(data) + len(part[1]), part[0]))
            data += part[1]
        else:
            ends.add(Words(part.get("text", "").encode(), rich.add(part)))
    return compose(ends.finish(), rich, Bytes(data))


def test_text_and_outputs_tell_the_same_in_order() -> None:
    table, picture = {"output_type": "display_data", "text": "| a |\n"}, {"output_type": "display_data"}
    found = shown([("stdout", b"before"), table, ("stderr", b"oops\n"), ("stdout", b"out\n"), picture])
    assert found.text == "before\n| a |\noops\nout\n"
    assert found.outputs == (
        {"output_type": "stream", "name": "stdout", "text": "before"},
        table,
        {"output_type": "stream", "name": "stderr", "text": "oops\n"},
        {"output_type": "stream", "name": "stdout", "text": "out\n"},
        picture,
    )
    assert (found.truncated, found.shown_bytes) == (False, 15)


def test_what_is_left_out_is_counted_in_a_marker_on_a_line_of_its_own() -> None:
    data = b"".join(b"line %02d\n" % number for number in range(20))
    found = shown([("stdout", data)], head=18, tail=18)
    assert found.text == "line 00\nline 01\n… [128 bytes, 16 lines omitted; artifact c1] …\nline 18\nline 19\n"
    assert found.outputs == ({"output_type": "stream", "name": "stdout", "text": found.text},)
    assert (found.truncated, found.shown_bytes) == (True, 32)


def test_a_marker_breaks_an_endless_line_into_its_own() -> None:
    found = shown([("stdout", "é".encode() * 50)], head=11, tail=11)
    marker = "… [80 bytes, 0 lines omitted; artifact c1] …"
    assert found.text == f"ééééé\n{marker}\nééééé"


def test_rich_outputs_whose_words_are_left_out_stay_among_the_outputs() -> None:
    table = {"output_type": "display_data", "text": "t" * 300 + "\n"}
    found = shown([("stdout", b"a" * 60), table, ("stdout", b"b" * 60)], head=50, tail=50)
    assert "ttt" not in found.text
    assert [output["output_type"] for output in found.outputs] == ["stream", "display_data", "stream"]
    assert found.outputs[1] is table
    assert "1 lines omitted; artifact c1" in found.text


def test_words_that_are_cut_at_both_ends_name_the_outputs_and_stand_once() -> None:
    table = {"output_type": "execute_result", "text": "t" * 300}
    found = shown([table], head=10, tail=10)
    assert found.text == "tttttttttt\n… [280 bytes, 0 lines omitted; see the outputs] …\ntttttttttt"
    assert found.outputs == (table,)


def test_a_picture_between_two_full_ends_is_no_reason_for_a_marker() -> None:
    picture = {"output_type": "display_data"}
    found = shown([("stdout", b"a" * 10), picture, ("stdout", b"b" * 10)], head=10, tail=10)
    assert found.text == "aaaaaaaaaabbbbbbbbbb"
    assert found.outputs[1] is picture


def test_a_character_that_another_stream_cut_in_two_is_whole_again() -> None:
    euro = "€".encode()
    found = shown([("stdout", b"a" + euro[:1]), ("stderr", b"!"), ("stdout", euro[1:]), ("stdout", b"\xff\xe2")])
    assert found.text == "a!€\ufffd\ufffd"


def test_only_the_first_and_the_last_rich_outputs_are_kept() -> None:
    rich = RichOutputs(2, 3)
    numbers = [rich.add({"n": number}) for number in range(10)]
    assert numbers == list(range(10))
    assert [output["n"] for output in rich.kept().values()] == [0, 1, 7, 8, 9]
    assert (rich.count, rich.dropped) == (10, 5)


def test_an_output_that_is_not_listed_has_words_but_no_place() -> None:
    ends, rich = TwoEnds(100, 100), RichOutputs(0, 1)
    for name in ("one", "two"):
        ends.add(Words(name.encode(), rich.add({"output_type": name})))
    found = compose(ends.finish(), rich, Bytes(b""))
    assert (found.text, found.outputs) == ("one\ntwo", ({"output_type": "two"},))


@given(
    st.lists(
        st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(alphabet="aé\n", max_size=20))
        | st.text(alphabet="bç\n", max_size=20),
        max_size=10,
    ),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_whatever_comes_the_account_is_right(history: list[Any], head: int, tail: int) -> None:
    parts = [
        (part[0], part[1].encode()) if isinstance(part, tuple) else {"output_type": "display_data", "text": part}
        for part in history
    ]
    found = shown(parts, head, tail)
    everything = "".join(part[1] if isinstance(part, tuple) else part for part in history)
    streamed = sum(len(part[1]) for part in parts if isinstance(part, tuple))
    assert found.truncated is (len(everything.encode()) > head + tail)
    assert found.shown_bytes <= streamed
    assert "\ufffd" not in found.text
    rich = [output for output in found.outputs if output["output_type"] == "display_data"]
    assert rich == [part for part in parts if isinstance(part, dict)]
    if not found.truncated:
        assert found.text.replace("\n", "") == everything.replace("\n", "")
        assert found.shown_bytes == streamed
