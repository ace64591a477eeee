"""What pi (three versions), opencode, llm and aider really printed comes to the right end."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from recordings import VERSION, read, recordings
from supervisord_py.pipes.agents.command_line import command_line
from supervisord_py.pipes.execution import ErrorType, Status
from supervisord_py.pipes.judging.parsers import parser_for
from supervisord_py.pipes.judging.values import Kept

ANSWER = "Hello from the mock provider."
NODE20 = "node20"
"""A pi that needs node 22, under node 20."""


@dataclass(frozen=True)
class End:
    """What a recording must come to.

    Attributes:
        error: None where it completes.
        usage: Tokens of input and output, turns, cost.
        wait: How long the provider asks to wait.
    """

    error: ErrorType | None = None
    usage: tuple[int, int, int, float] = (0, 0, 0, 0.0)
    wait: float | None = None


E = ErrorType
ONE, TWO = (1000, 50, 1, 0.00375), (2000, 100, 2, 0.0075)
"""One answer of the mock and two, at 3 and 15 dollars for a million tokens."""
ASKED = (0, 0, 1, 0.0)
PI = {
    "ok": End(None, ONE),
    "tool": End(None, TWO),
    "401": End(E.AUTH_FAILED, ASKED),
    "404": End(E.MODEL_NOT_FOUND, ASKED),
    "429": End(E.RATE_LIMITED, ASKED),
    "429-hint": End(E.RATE_LIMITED, ASKED, 7.0),
    "quota": End(E.QUOTA_EXHAUSTED, ASKED),
    "overflow": End(E.CONTEXT_OVERFLOW, ASKED),
    "500": End(E.PROVIDER_ERROR, ASKED),
    "drop": End(E.NETWORK, ASKED),
    "garbage": End(E.PROVIDER_ERROR, ASKED),
    "hang": End(E.CRASH, ASKED),
}
EXPECTED: dict[str, dict[str, End]] = {
    "pi-0.73.1": PI,
    "pi-0.87.1": {**PI, NODE20: End(E.AGENT_INCOMPATIBLE)},
    "pi-1.5.2": {**PI, NODE20: End(E.AGENT_INCOMPATIBLE)},
    "opencode": {
        "ok": End(None, ONE),
        "tool": End(None, TWO),
        "401": End(E.AUTH_FAILED),
        "404": End(E.MODEL_NOT_FOUND),
        "overflow": End(E.CONTEXT_OVERFLOW),
        "garbage": End(E.PROVIDER_ERROR, ASKED),
        # These it tries again without end: TERM after 45 s, as by a timeout. What the provider said stands on stderr.
        "429": End(E.RATE_LIMITED),
        "429-hint": End(E.RATE_LIMITED, wait=7.0),
        "quota": End(E.QUOTA_EXHAUSTED),
        "500": End(E.PROVIDER_ERROR),
        "drop": End(E.NETWORK),
        "hang": End(E.CRASH),
    },
    "llm": {
        "ok": End(),
        "429-once": End(),
        "401": End(E.AUTH_FAILED),
        "404": End(E.MODEL_NOT_FOUND),
        "429": End(E.RATE_LIMITED),
        "429-hint": End(E.RATE_LIMITED, wait=7.0),
        "quota": End(E.QUOTA_EXHAUSTED),
        "overflow": End(E.CONTEXT_OVERFLOW),
        "500": End(E.PROVIDER_ERROR),
        "drop": End(E.NETWORK),
        "garbage": End(E.PROVIDER_ERROR),
        "hang": End(E.CRASH),
    },
    "aider": {  # a text agent: what a try of its own, 0.2 s later, made good counts as well
        "ok": End(),
        "429-once": End(E.RATE_LIMITED, wait=0.2),
        "401": End(E.AUTH_FAILED),
        "404": End(E.MODEL_NOT_FOUND),
        "429": End(E.RATE_LIMITED, wait=0.2),
        "429-hint": End(E.RATE_LIMITED, wait=7.0),
        "quota": End(E.QUOTA_EXHAUSTED, wait=0.2),
        "overflow": End(E.CONTEXT_OVERFLOW),
        "500": End(E.PROVIDER_ERROR, wait=0.2),
        "drop": End(E.NETWORK, wait=0.2),
        "garbage": End(E.PROVIDER_ERROR, wait=0.2),
        "hang": End(E.CRASH),
    },
}
ALL = {f"{program}/{case}": it for program in EXPECTED for case, it in recordings(program).items()}
RUNS = {name: it for name, it in ALL.items() if it.case != VERSION}
ASKING = {name: it for name, it in RUNS.items() if it.case != NODE20}
PLACES = {
    "provider": "custom",
    "url": "http://127.0.0.1:8080/v1",
    "pipe": "p",
    "agent_dir": "/home/user/run/agent",
    "prompt_file": "/home/user/run/prompt.md",
}


def test_every_recording_has_an_expectation() -> None:
    assert set(RUNS) == {f"{program}/{case}" for program, cases in EXPECTED.items() for case in cases}


@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_run_of_an_open_agent_comes_to_its_right_end(name: str) -> None:
    recording = RUNS[name]
    expected, found = EXPECTED[recording.program][recording.case], read(recording)
    outcome, usage = found.outcome, found.summary.usage
    assert outcome.error_type == expected.error, outcome.error_message
    assert outcome.status is (Status.COMPLETED if expected.error is None else Status.FAILED)
    assert (usage.input_tokens, usage.output_tokens, usage.turns) == expected.usage[:3]
    assert usage.cost == pytest.approx(expected.usage[3])
    assert outcome.retry_after_seconds == expected.wait
    assert found.summary.garbage_lines == 0
    if expected.error is None:
        assert ANSWER in found.summary.final_text
        assert ANSWER in found.text.decode()


@pytest.mark.parametrize("program", [program for program in EXPECTED if program.startswith("pi")])
def test_no_update_and_no_copy_of_a_stream_of_pi_is_kept(program: str) -> None:
    """Before 0.84 each update carries the whole message, and `agent_end` the whole conversation always did."""
    raw = RUNS[f"{program}/tool"].stdout
    assert b'"message_update"' in raw
    parser = parser_for("pi-jsonl")
    kept = [json.loads(it.line) for it in (*parser.feed(raw), *parser.end()) if isinstance(it, Kept)]
    assert not [each for each in kept if each["type"] in {"message_update", "message_start"} or "messages" in each]
    roles = [each["message"]["role"] for each in kept if "message" in each]
    assert roles == ["user", "assistant", "toolResult", "assistant"]
    assert any(each["type"] == "tool_execution_end" for each in kept)


@pytest.mark.parametrize("name", ASKING)
def test_it_was_recorded_with_the_options_of_today(name: str) -> None:
    """Who changes an adapter's argv records again: that every option exists was seen there, and nowhere else."""
    recording = ASKING[name]
    values = {**PLACES, "model": recording.case}
    assert recording.told["argv"] == list(command_line(recording.spec, values, "", history=False))
