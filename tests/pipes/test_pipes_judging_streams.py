"""What agents print is read in whatever pieces it comes: text as it grows, records worth keeping, what was used."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.errors import ConfigError
from supervisord_py.pipes.execution import Usage
from supervisord_py.pipes.judging.line_stream import LineStream
from supervisord_py.pipes.judging.parsers import PARSERS, parser_for
from supervisord_py.pipes.judging.pi_stream import PiStream
from supervisord_py.pipes.judging.values import FINAL_TEXT_CHARS, Kept, Resumed, Settled, Summary, Text


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def assistant(text: str, stop: str = "stop", **more: Any) -> dict[str, Any]:
    usage = {"input": 1000, "output": 50, "cacheRead": 3, "cacheWrite": 2, "totalTokens": 1055, "cost": {"total": 0.5}}
    content = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}] if text else []
    return {"role": "assistant", "content": content, "usage": usage, "stopReason": stop, **more}


def pi_answer(text: str, *, old: bool) -> list[dict[str, Any]]:
    """One streamed answer, word by word: delta-only, or with the whole message each time."""
    records: list[dict[str, Any]] = [{"type": "turn_start"}]
    so_far = ""
    for word in text.split(" "):
        delta = f" {word}" if so_far else word
        so_far += delta
        step: dict[str, Any] = {"type": "text_delta", "contentIndex": 0, "delta": delta}
        update = {"type": "message_update", "assistantMessageEvent": step}
        if old:
            step["partial"] = assistant(so_far)
            update["message"] = assistant(so_far)
        records.append(update)
    records += [
        {"type": "message_update", "assistantMessageEvent": {"type": "thinking_delta", "delta": "no text"}},
        {"type": "message_end", "message": assistant(text)},
        {"type": "turn_end", "message": assistant(text), "toolResults": []},
    ]
    return records


def pi_run(text: str, *, old: bool = False) -> bytes:
    return lines(
        {"type": "session", "version": 3, "id": "s-1", "cwd": "/x"},
        {"type": "agent_start"},
        {"type": "message_end", "message": {"role": "system", "content": "very long"}},
        {"type": "message_end", "message": {"role": "user", "content": "do"}},
        *pi_answer(text, old=old),
        {"type": "agent_end", "messages": [assistant(text)], "willRetry": False},
        *(() if old else ({"type": "agent_settled"},)),
    )


def read(name: str, *pieces: bytes) -> tuple[bytes, list[bytes], Summary, list[object]]:
    """Return the text told, the records kept, the summary, and everything that happened."""
    parser = parser_for(name)
    happened = [it for piece in pieces for it in parser.feed(piece)] + parser.end()
    text = b"".join(it.data for it in happened if isinstance(it, Text))
    return text, [it.line for it in happened if isinstance(it, Kept)], parser.summary, list(happened)


@pytest.mark.parametrize("old", [True, False])
def test_pi_old_and_new_streams_tell_the_same(old: bool) -> None:  # a parameter of the test
    text, kept, summary, happened = read("pi-jsonl", pi_run("the answer is 42", old=old))
    assert text == b"the answer is 42\n"
    assert summary.final_text == "the answer is 42"
    assert summary.usage == Usage(1000, 50, 3, 2, 1055, 0.5, 1)
    assert (summary.stop_reason, summary.error_message, summary.settled) == ("stop", None, True)
    assert (summary.session_id, summary.garbage_lines) == ("s-1", 0)
    assert sum(isinstance(it, Settled) for it in happened) == 1
    kinds = [json.loads(line)["type"] for line in kept]
    assert "message_update" not in kinds
    assert b"very long" not in b"".join(kept), "the system prompt is not kept"
    assert {"type": "turn_end"} in [json.loads(line) for line in kept], "copies of messages are cut out"


def test_an_answer_without_deltas_is_told_whole_once() -> None:
    text, _, summary, _ = read("pi-jsonl", lines({"type": "message_end", "message": assistant("all at once")}))
    assert text == b"all at once\n"
    assert summary.has_text
    plain = {"role": "assistant", "content": "just text", "stopReason": "stop"}
    assert read("pi-jsonl", lines({"type": "message_end", "message": plain}))[0] == b"just text\n"


def test_an_end_that_will_retry_is_none_and_a_new_start_takes_it_back() -> None:
    parser = PiStream()
    assert Settled() not in parser.feed(lines({"type": "agent_end", "willRetry": True}))
    assert Settled() in parser.feed(lines({"type": "agent_end"}))
    assert Settled() not in parser.feed(lines({"type": "agent_settled"})), "told once"
    assert Resumed() in parser.feed(lines({"type": "auto_retry_start", "attempt": 1}))
    assert not parser.summary.settled
    assert Resumed() not in parser.feed(lines({"type": "agent_start"}))
    assert Settled() in parser.feed(lines({"type": "agent_settled"}))


def test_an_error_of_pi_is_the_last_messages_own() -> None:
    failed = assistant("", "error", errorMessage="429 Rate limit")
    _, _, summary, _ = read("pi-jsonl", lines({"type": "message_end", "message": failed}))
    assert summary.error_message == "429 Rate limit"
    _, _, cured, _ = read(
        "pi-jsonl",
        lines({"type": "message_end", "message": failed}, {"type": "message_end", "message": assistant("fine")}),
    )
    assert cured.error_message is None
    _, _, bare, _ = read("pi-jsonl", lines({"type": "message_end", "message": assistant("", "aborted")}))
    assert bare.error_message == "aborted"


def test_the_last_answer_counts_also_when_it_is_silent() -> None:
    said, silent = assistant("first words", "toolUse"), assistant("", "stop")
    _, _, summary, _ = read(
        "pi-jsonl", lines({"type": "message_end", "message": said}, {"type": "message_end", "message": silent})
    )
    assert (summary.final_text, summary.has_text, summary.stop_reason) == ("", True, "stop")


CLAUDE = lines(
    {"type": "system", "subtype": "init", "session_id": "c-1"},
    {"type": "stream_event", "event": {"delta": {"type": "text_delta", "text": "It is "}}},
    {"type": "stream_event", "event": {"delta": {"type": "input_json_delta", "partial_json": "{"}}},
    {"type": "assistant", "message": {"content": [{"type": "text", "text": "It is done."}]}},
    {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": "It is done.",
        "total_cost_usd": 0.25,
        "num_turns": 3,
        "usage": {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 2},
    },
)


def test_claude_tells_its_words_and_what_they_cost() -> None:
    text, kept, summary, happened = read("claude-json", CLAUDE)
    assert text == b"It is done.\n"
    assert (summary.final_text, summary.stop_reason, summary.session_id) == ("It is done.", "stop", "c-1")
    assert summary.usage == Usage(10, 5, 2, 0, 17, 0.25, 3)
    assert happened[-1] == Settled()
    assert len(kept) == 3, "no deltas"


def test_what_claude_uses_is_told_on_the_way_and_put_right_at_the_end() -> None:
    """Two blocks of one message are one turn, whose tokens count once: ceilings hold while it runs."""
    message = {"id": "m1", "content": [{"type": "text", "text": "a"}], "usage": {"input_tokens": 9, "output_tokens": 1}}
    said = {"type": "assistant", "message": message}
    run = lines(said, said, {"type": "assistant", "message": {**message, "id": "m2"}})
    assert read("claude-json", run)[2].usage == Usage(18, 2, 0, 0, 20, 0.0, 2)
    silent = {"type": "assistant", "message": {"id": "m3"}}
    assert read("claude-json", lines(silent))[2].usage.turns == 1
    total = {"type": "result", "result": "a", "usage": {"input_tokens": 18, "output_tokens": 70}, "num_turns": 2}
    assert read("claude-json", run + lines(total))[2].usage == Usage(18, 70, 0, 0, 88, 0.0, 2)


def test_an_error_of_claude_is_named_by_whatever_tells_it() -> None:
    record = {"type": "result", "is_error": True}
    named = {**record, "api_error_status": 401, "result": "API Error: 401 no"}
    assert read("claude-json", lines(named))[2].error_message == "API Error: 401 no", "its status is not said twice"
    assert read("claude-json", lines({**record, "error": {"message": "gone"}}))[2].error_message == "gone"
    assert read("claude-json", lines(record))[2].error_message == "error"


def test_a_single_result_of_claude_is_an_answer() -> None:
    text, _, summary, _ = read("claude-json", b'{"type":"result","result":"short","num_turns":1}\n')
    assert (text, summary.final_text, summary.usage.turns) == (b"short\n", "short", 1)


def test_errors_of_codex_on_the_way_are_no_failures() -> None:
    run = lines(
        {"type": "turn.started"},
        {"type": "item.completed", "item": {"type": "error", "message": "harmless"}},
        {"type": "error", "message": "Reconnecting... 1/5"},
        {"type": "item.started", "item": {"type": "reasoning"}},
        {"type": "item.completed", "item": {"type": "agent_message", "text": "hi"}},
        {"type": "turn.completed", "usage": {"input_tokens": 7, "cache_write_input_tokens": 3, "output_tokens": 2}},
    )
    text, kept, summary, _ = read("codex-jsonl", run)
    assert (text, summary.error_message, summary.settled) == (b"hi\n", None, True)
    assert summary.usage == Usage(7, 2, 0, 3, 9, 0.0, 1)
    assert not any(b"item.started" in line for line in kept)
    _, _, bare, _ = read("codex-jsonl", lines({"type": "turn.failed"}, {"type": "unheard_of"}))
    assert bare.error_message == "the turn failed"


def test_codex_turns_are_counted_by_the_results_of_tools() -> None:
    started, done = ({"type": f"item.{it}", "item": {"type": "command_execution"}} for it in ("started", "completed"))
    loop = lines({"type": "turn.started"}, *(3 * [started, done]))
    assert read("codex-jsonl", loop)[2].usage.turns == 3
    side_by_side = lines({"type": "turn.started"}, started, started, done, done, started)
    assert read("codex-jsonl", side_by_side)[2].usage.turns == 2


def test_geminis_words_before_and_after_a_tool_are_two_answers() -> None:
    said = {"type": "message", "role": "assistant", "delta": True}
    run = lines(
        {**said, "content": "I "},
        {**said, "content": "look."},
        {"type": "tool_use", "tool_name": "x"},
        {"type": "tool_result", "status": "success"},
        {**said, "content": "Found."},
        {"type": "result", "status": "success", "stats": {"input_tokens": 5, "output_tokens": 2}},
    )
    text, _, summary, _ = read("gemini-json", run)
    assert (text, summary.final_text, summary.usage) == (b"I look.\nFound.\n", "Found.", Usage(5, 2, 0, 0, 7, 0.0, 2))


def test_geminis_errors() -> None:
    refused = lines({"type": "error", "error": {"message": "key not valid", "code": 400}})
    assert read("gemini-json", refused)[2].error_message == "400: key not valid"
    failed = lines({"type": "result", "status": "error", "error": {"message": "429 slow down", "code": 429}})
    assert read("gemini-json", failed)[2].error_message == "429 slow down"
    assert read("gemini-json", lines({"type": "error", "message": "x"}))[2].error_message == "x"
    assert read("gemini-json", lines({"type": "error"}))[2].error_message == "error"


def test_opencode_steps_add_up() -> None:
    tokens = {"input": 5, "output": 2, "reasoning": 1, "cache": {"read": 4, "write": 3}}
    run = lines(
        {"type": "step_start", "sessionID": "o"},
        {"type": "text", "part": {"text": "yes"}},
        {"type": "step_finish", "part": {"tokens": tokens, "cost": 0.1, "reason": "stop"}},
        {"type": "step_finish", "part": {"tokens": tokens, "cost": 0.1}},
        {"type": "other"},
    )
    text, _, summary, _ = read("opencode-jsonl", run)
    assert (text, summary.session_id) == (b"yes\n", "o")
    assert summary.usage == Usage(10, 6, 8, 6, 30, 0.2, 1)
    error = {"name": "APIError", "data": {"statusCode": 401, "message": "no"}}
    assert read("opencode-jsonl", lines({"type": "error", "error": error}))[2].error_message == "401: no"
    assert read("opencode-jsonl", lines({"type": "error", "error": {"name": "Odd"}}))[2].error_message == "Odd"
    assert read("opencode-jsonl", lines({"type": "error"}))[2].error_message == "error"


def test_text_agents_bytes_pass_as_they_are() -> None:
    raw = "grüße\n".encode() + b"\xff\xfe tail"
    text, kept, summary, _ = read("text", raw[:3], raw[3:], b"")
    assert (text, kept, summary.records) == (raw, [], 0)
    assert summary.final_text.startswith("grüße\n")
    assert summary.has_text
    assert not read("text", b" \n\t")[2].has_text
    assert len(read("text", b"x" * 1_000_000)[2].final_text) == FINAL_TEXT_CHARS


@given(st.sampled_from(PARSERS), st.lists(st.binary(max_size=200), max_size=5))
def test_nothing_that_is_printed_can_raise(name: str, pieces: list[bytes]) -> None:
    parser = parser_for(name)
    for piece in pieces:
        parser.feed(piece)
    parser.end()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KINDS = ["session", "message_update", "message_end", "agent_end", "result", "assistant", "error", "text", "step_finish"]
KINDS += ["message", "init", "turn.failed", "turn.completed", "item.completed", "thread.started", "stream_event"]
NAMES = st.sampled_from(["message", "item", "error", "usage", "part", "role", "result", "stats", "event", "response"])


@given(st.sampled_from(PARSERS), st.sampled_from(KINDS), st.dictionaries(NAMES, JSON_VALUES, max_size=4))
def test_no_record_however_wrong_can_raise(name: str, kind: str, members: dict[str, Any]) -> None:
    parser = parser_for(name)
    parser.feed(lines({"type": kind, **members}))
    parser.end()


def test_lines_that_are_no_records_and_lines_without_end_are_counted() -> None:
    class Short(LineStream):
        def record(self, record: dict[str, Any], line: bytes) -> list[Any]:
            return [(record, line)]

    stream = Short(line_bytes=20)
    assert stream.feed(b'{"a": 1}\nno json\n[1]\n\n') == [({"a": 1}, b'{"a": 1}')]
    assert stream.feed(b"x" * 15) == stream.feed(b"y" * 15) == stream.feed(b"z" * 30) == []
    assert stream.feed(b'more\n{"b": 2}\n') == [({"b": 2}, b'{"b": 2}')]
    assert stream.summary.garbage_lines == 3
    assert stream.feed(b'{"deep": ' + b"[" * 5) == []
    assert stream.end() == []
    deep = PiStream()
    deep.feed(b'{"a":' * 100_000 + b"\n")
    assert deep.summary.garbage_lines == 1


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no output format 'yaml'") as caught:
        parser_for("yaml")
    assert "pi-jsonl" in str(caught.value.hint)
