"""What agents print is read in whatever pieces it comes. What real ones printed: test_pipes_recorded.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.pipes.streams import FINAL_TEXT_CHARS, PARSERS, JsonLines, PiStream, Summary


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def read(name: str, *pieces: bytes) -> tuple[bytes, list[bytes], Summary]:
    """Return the text told, the records kept, and the summary."""
    parser = PARSERS[name]()
    text, records = map(b"".join, zip(*map(parser.feed, pieces), parser.end(), strict=True))
    return text, records.splitlines(), parser.summary


def message(text: str, stop: str = "stop", **more: Any) -> dict[str, Any]:
    content = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}] if text else []
    said = {"role": "assistant", "content": content, "stopReason": stop, **more}
    return {"type": "message_end", "message": said}


def test_pi_is_settled_by_an_end_that_will_not_retry_until_it_starts_again() -> None:
    parser = PiStream()
    steps: list[tuple[dict[str, Any], bool]] = [
        ({"type": "agent_end", "willRetry": True}, False),
        ({"type": "agent_end"}, True),
        ({"type": "auto_retry_start", "attempt": 1}, False),
        ({"type": "agent_settled"}, True),
        ({"type": "agent_start"}, False),
    ]
    for record, settled in steps:
        parser.feed(lines(record))
        assert parser.summary.settled is settled, record


def test_the_last_answer_of_pi_counts() -> None:
    failed = message("", "error", errorMessage="429 Rate limit")
    assert read("pi-jsonl", lines(failed))[2].error_message == "429 Rate limit"
    assert read("pi-jsonl", lines(failed, message("fine")))[2].error_message is None
    silent = read("pi-jsonl", lines(message("first words", "toolUse"), message("", "stop")))[2]
    assert (silent.final_text, silent.has_text, silent.stop_reason) == ("", True, "stop")


ERRORS: list[tuple[str, dict[str, Any], str | None]] = [
    ("claude-json", {"type": "result", "is_error": True, "error": {"message": "gone"}}, "gone"),
    ("codex-jsonl", {"type": "turn.failed"}, "the turn failed"),
    ("codex-jsonl", {"type": "item.completed", "item": {"type": "error", "message": "harmless"}}, None),
    ("gemini-json", {"type": "error", "error": {"message": "key not valid", "code": 400}}, "400: key not valid"),
    ("gemini-json", {"type": "error", "message": "x"}, "x"),
    ("opencode-jsonl", {"type": "error", "error": {"name": "Odd"}}, "Odd"),
]


@pytest.mark.parametrize(("name", "record", "words"), ERRORS)
def test_an_error_is_named_by_whatever_tells_it(name: str, record: dict[str, Any], words: str | None) -> None:
    assert read(name, lines(record))[2].error_message == words


def test_what_a_text_agent_said_is_known_up_to_a_bound() -> None:
    raw = "grüße\n".encode()
    assert read("text", raw[:3], raw[3:])[2].final_text == "grüße\n"
    assert [read("text", it)[2].has_text for it in (b" x", b" \n\t")] == [True, False]
    assert len(read("text", b"x" * 1_000_000)[2].final_text) == FINAL_TEXT_CHARS


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KINDS = ["session", "message_update", "message_end", "agent_end", "result", "assistant", "error", "text", "step_finish"]
KINDS += ["message", "init", "turn.failed", "turn.completed", "item.completed", "thread.started", "stream_event"]
NAMES = st.sampled_from(["message", "item", "error", "usage", "part", "role", "result", "stats", "event", "response"])


@given(st.sampled_from(sorted(PARSERS)), st.sampled_from(KINDS), st.dictionaries(NAMES, JSON_VALUES, max_size=4))
def test_no_record_however_wrong_can_raise(name: str, kind: str, members: dict[str, Any]) -> None:
    read(name, lines({"type": kind, **members}))


def test_lines_that_are_no_records_and_lines_without_end_are_counted() -> None:
    class Short(JsonLines):
        line_bytes = 20

        def record(self, kind: str, record: dict[str, Any], line: bytes) -> None:
            self.keep(line)

    stream = Short()
    assert stream.feed(b'{"a": 1}\nno json\n[1]\n\n') == (b"", b'{"a": 1}\n')
    assert {stream.feed(it * 15) for it in (b"x", b"y", b"zz")} == {(b"", b"")}
    assert stream.feed(b'{"more": 1}\n{"b": 2}\n') == (b"", b'{"b": 2}\n')
    assert stream.summary.garbage_lines == 3
    assert (stream.feed(b'{"deep": ' + b"[" * 5), stream.end()) == ((b"", b""), (b"", b""))
    assert read("pi-jsonl", b'{"a":' * 100_000 + b"\n")[2].garbage_lines == 1
