"""What the programs of Anthropic, OpenAI, Google and Alibaba really printed comes to the right end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from recordings import VERSION, read, recordings
from supervisord_py.pipes.agents.command_line import command_line
from supervisord_py.pipes.execution import ErrorType, Status

ANSWER = "Hello from the mock provider."


@dataclass(frozen=True)
class End:
    """What a recording must come to.

    Attributes:
        error: None where it completes.
        usage: Total tokens, turns, cost.
        wait: How long the provider asks to wait.
        text: On the execution's stdout.
    """

    error: ErrorType | None = None
    usage: tuple[int, int, float] = (0, 0, 0.0)
    wait: float | None = None
    text: str = ""


def failed(error: ErrorType, turns: int = 1, wait: float | None = None) -> End:
    """Return the end of a run whose first answer was an error."""
    return End(error, (0, turns, 0.0), wait)


E = ErrorType
HAIKU = 0.00129
"""What the program says that one answer of the mock costs, in US dollars."""
CUT = "[API Error: terminated (cause: UND_ERR_SOCKET: other side closed)]"
EXPECTED: dict[str, dict[str, End]] = {
    "claude": {
        "ok": End(None, (1450, 1, HAIKU), text=f"{ANSWER}\n"),
        "tool": End(None, (2900, 2, 2 * HAIKU), text=f"I look first.\n{ANSWER}\n"),
        "denied": End(None, (2900, 2, 2 * HAIKU), text=f"I look first.\n{ANSWER}\n"),
        "refusal": End(E.SAFETY_REFUSAL, (2900, 2, 2 * HAIKU), text="I\nI\n"),
        "empty": End(E.MISSING_OUTPUT, (2900, 2, 2 * HAIKU)),
        "401": failed(E.AUTH_FAILED),
        "404": failed(E.MODEL_NOT_FOUND),
        "429": failed(E.RATE_LIMITED),
        "429-hint": failed(E.RATE_LIMITED),  # the delay is in a header, which claude does not tell
        "quota": failed(E.QUOTA_EXHAUSTED),
        "overflow": failed(E.CONTEXT_OVERFLOW),
        "500": failed(E.PROVIDER_ERROR),
        "overload": failed(E.RATE_LIMITED),
        "drop": failed(E.NETWORK),
        "gone": failed(E.NETWORK),
        "no-key": failed(E.AUTH_FAILED),
        "cut": failed(E.NETWORK),
        "garbage": failed(E.PROVIDER_ERROR),
        "hang": failed(E.CRASH, turns=0),
    },
    "codex": {
        "ok": End(None, (1050, 1, 0.0), text=f"{ANSWER}\n"),
        "tool": End(None, (2100, 2, 0.0), text=f"{ANSWER}\n"),
        "denied": End(None, (2100, 2, 0.0), text=f"{ANSWER}\n"),
        "refusal": failed(E.SAFETY_REFUSAL),
        "empty": End(E.MISSING_OUTPUT, (1050, 1, 0.0)),
        "401": failed(E.AUTH_FAILED),
        "404": failed(E.MODEL_NOT_FOUND),
        "429": failed(E.RATE_LIMITED),
        "429-hint": failed(E.RATE_LIMITED),  # codex does not tell what the provider said
        "quota": failed(E.QUOTA_EXHAUSTED),
        "overflow": failed(E.CONTEXT_OVERFLOW),
        "500": failed(E.PROVIDER_ERROR),
        "overload": failed(E.PROVIDER_ERROR),
        "drop": failed(E.NETWORK),
        "gone": failed(E.NETWORK),
        "cut": failed(E.NETWORK),
        "garbage": failed(E.PROVIDER_ERROR),
        "hang": failed(E.CRASH),
    },
    "gemini": {
        "ok": End(None, (1050, 1, 0.0), text=f"{ANSWER}\n"),
        "tool": End(None, (2100, 2, 0.0), text=f"{ANSWER}\n"),
        "denied": End(None, (2100, 2, 0.0), text=f"{ANSWER}\n"),
        "refusal": End(E.SAFETY_REFUSAL, (1050, 0, 0.0)),
        "empty": End(E.MISSING_OUTPUT, (1050, 0, 0.0)),
        "401": failed(E.AUTH_FAILED, turns=0),
        "bad-key": failed(E.AUTH_FAILED, turns=0),
        "404": failed(E.MODEL_NOT_FOUND, turns=0),
        "429": failed(E.RATE_LIMITED, turns=0),
        "429-hint": failed(E.RATE_LIMITED, turns=0, wait=7.0),
        "quota": failed(E.QUOTA_EXHAUSTED, turns=0),
        "overflow": failed(E.CONTEXT_OVERFLOW, turns=0),
        "500": failed(E.PROVIDER_ERROR, turns=0),
        "overload": failed(E.PROVIDER_ERROR, turns=0),
        "drop": failed(E.NETWORK, turns=0),
        "gone": failed(E.NETWORK, turns=0),
        "no-key": failed(E.AUTH_FAILED, turns=0),
        "cut": End(E.NETWORK, (0, 1, 0.0), text="Hello from the\n"),
        "garbage": failed(E.PROVIDER_ERROR, turns=0),
        "hang": failed(E.MISSING_OUTPUT, turns=0),  # it ends with 0 after TERM
    },
    "qwen": {
        "ok": End(None, (1050, 1, 0.0), text=f"{ANSWER}\n"),
        "tool": End(None, (2100, 2, 0.0), text=f"{ANSWER}\n"),
        "denied": End(None, (2100, 2, 0.0), text=f"{ANSWER}\n"),
        "refusal": End(E.MISSING_OUTPUT, (5250, 1, 0.0)),
        "empty": End(E.MISSING_OUTPUT, (5250, 1, 0.0)),
        "401": failed(E.AUTH_FAILED),
        "401-old": failed(E.AUTH_FAILED),
        "404": failed(E.MODEL_NOT_FOUND),
        "429": failed(E.RATE_LIMITED),
        "429-hint": failed(E.RATE_LIMITED, wait=7.0),
        "quota": failed(E.QUOTA_EXHAUSTED),
        "overflow": failed(E.CONTEXT_OVERFLOW),
        "500": failed(E.PROVIDER_ERROR),
        "drop": failed(E.NETWORK),
        "no-key": failed(E.AUTH_FAILED, turns=0),
        "cut": End(E.NETWORK, (0, 1, 0.0), text=f"{4 * ANSWER}{CUT}\n"),
        "garbage": failed(E.PROVIDER_ERROR),
        "hang": failed(E.CRASH, turns=0),
    },
}
ALL = {f"{program}/{case}": it for program in EXPECTED for case, it in recordings(program).items()}
RUNS = {name: it for name, it in ALL.items() if it.case != VERSION}


def test_every_recording_has_an_expectation() -> None:
    assert set(RUNS) == {f"{program}/{case}" for program, cases in EXPECTED.items() for case in cases}


@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_run_comes_to_its_right_end(name: str) -> None:
    recording = RUNS[name]
    expected, found = EXPECTED[recording.program][recording.case], read(recording)
    outcome, usage = found.outcome, found.summary.usage
    assert (outcome.status, outcome.error_type) == (_status(expected), expected.error), outcome.error_message
    assert (usage.total_tokens, usage.turns) == expected.usage[:2]
    assert usage.cost == pytest.approx(expected.usage[2])
    assert outcome.retry_after_seconds == expected.wait
    assert found.text.decode() == expected.text
    assert found.summary.garbage_lines == 0
    if expected.error is None:
        assert found.summary.final_text == ANSWER
        assert found.summary.session_id == "00000000-0000-4000-8000-000000000001"


def _status(expected: End) -> Status:
    return Status.COMPLETED if expected.error is None else Status.FAILED


@pytest.mark.parametrize("program", EXPECTED)
def test_tokens_are_told_apart(program: str) -> None:
    """Of a run of two answers; gemini counts its thoughts in the total alone."""
    usage = read(ALL[f"{program}/tool"]).summary.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (2000, 800, 0)
    assert usage.output_tokens == (80 if program == "gemini" else 100)


@pytest.mark.parametrize("name", RUNS)
def test_it_was_recorded_with_the_command_line_of_today(name: str) -> None:
    """Who changes an adapter's argv records again: that every option exists was seen there, and nowhere else."""
    recording = RUNS[name]
    argv = recording.told["argv"]
    model = argv[argv.index("-m") + 1] if "-m" in argv else argv[argv.index("--model") + 1]
    assert argv == list(command_line(recording.spec, {"model": model}, "", history=False))
