"""aider's own lines among its text: what an answer is, what it cost, which error stands and which was taken back."""

from __future__ import annotations

import pytest

from supervisord_py.pipes.execution import Usage
from supervisord_py.pipes.judging.aider_stream import ERROR_CHARS, LINE_BYTES, AiderStream
from supervisord_py.pipes.judging.values import FINAL_TEXT_CHARS, Summary, Text, UsageNow

NAME = "\nWarning: something\n\nAider v0.86.2\nModel: openai/m with whole edit format\nRepo-map: disabled\n\n"


def summary(text: str) -> Summary:
    stream = AiderStream()
    data = text.encode("utf-8", "surrogateescape")
    told = b"".join(it.data for it in (*stream.feed(data), *stream.end()) if isinstance(it, Text))
    assert told == data
    return stream.summary


def test_the_last_whole_answer_counts_and_all_are_paid() -> None:
    paid = "Cost: $0.01 message, $0.01 session.\n"
    first = f"One\nanswer.\n\nTokens: 1.2k sent, 12k cache write, 5 cache hit, 50 received. {paid}"
    then = "Applied edit to a.py\nTwo\r\nTokens: 800 sent, 3 received. Cost: $0.02 message, $1,000.03 session."
    found = summary(NAME + first + then)
    assert found.final_text == "Applied edit to a.py\nTwo"
    assert (found.has_text, found.stop_reason, found.error_message) == (True, "stop", None)
    assert found.usage == Usage(2000, 53, 5, 12_000, 14_058, 1000.03, 2)
    stream = AiderStream()
    assert [it.usage.turns for it in stream.feed((NAME + first).encode()) if isinstance(it, UsageNow)] == [1]


@pytest.mark.parametrize("text", [
    "",
    NAME,
    NAME + "begun and cut off",
    NAME + "Empty response received from LLM. Check your provider account?\nTokens: 581 sent, 0 received.\n",
    NAME + "\n \nTokens: 581 sent, 4 received.\n",
    "Tokens: 581 sent, 4 received.\n",
])  # fmt: skip
def test_what_is_no_whole_answer_is_none(text: str) -> None:
    found = summary(text)
    assert (found.final_text, found.has_text, found.stop_reason) == ("", False, None)


def test_an_error_goes_on_to_an_empty_line_and_the_last_one_stands() -> None:
    once = "litellm.RateLimitError: slow\ndown\nThe API provider has rate limited you.\nRetrying in 0.2 seconds...\n"
    last = "litellm.APIError: Exception -\nit broke\n\nsomething else\n"
    assert summary(NAME + "half an ans" + once).error_message is None, "it stands inside of a line"
    assert summary(NAME + once + last).error_message == "litellm.APIError: Exception - it broke"
    cured = summary(NAME + "half\n" + once + "whole\nTokens: 1 sent, 1 received.\n")
    assert (cured.error_message, cured.final_text) == (None, "whole")
    full = summary(NAME + "Tokens: 581 sent, 0 received.\n\nModel openai/m has hit a token limit!\nToken counts\n")
    assert full.error_message == "Model openai/m has hit a token limit!"
    long = summary(f"{NAME}litellm.X: {'a' * 9000}\n{'b' * 9000}\n").error_message
    assert long is not None
    assert len(long) == ERROR_CHARS


def test_what_is_kept_is_bounded_and_odd_numbers_are_none() -> None:
    stream = AiderStream()
    stream.feed(NAME.encode())
    for _ in range(8):
        stream.feed(b"x" * LINE_BYTES)
    assert len(stream.state()["rest"]) <= LINE_BYTES * 4 / 3 + 4
    stream.feed(b"end\n\xff\nTokens: ... sent, 1 received.\n")
    assert len(stream.summary.final_text) <= FINAL_TEXT_CHARS
    assert stream.summary.final_text.endswith("end\n\ufffd")
    stream.feed(b"more\nTokens: 1..2 sent, .k received. Cost: $. message, $. session.\n")
    assert stream.summary.usage == Usage(0, 1, 0, 0, 1, 0.0, 2)
