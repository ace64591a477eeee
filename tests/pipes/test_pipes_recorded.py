"""What agents print, read in any pieces: of real ones (see tests/pipes/recorded/README.md), and
what is odd.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.ledger.pipes import ErrorType, Outcome, Status
from supervisord_py.pipes.adapters import AgentSpec, in_range, load_adapters, parse_version
from supervisord_py.pipes.launch import command_line
from supervisord_py.pipes.outcome import Cause, ExitInfo, judge
from supervisord_py.pipes.streams import FINAL_TEXT_CHARS, PARSERS, JsonLines, PiStream, Summary

RECORDED = Path(__file__).parent / "recorded"
VERSION = "version"
"""The case that is no run: the answer to `--version`."""
AGENTS = load_adapters(None)


class Recording(NamedTuple):
    """One run of a program: its output, how it ended, and how it was started (`told`, the JSON file
    beside it).

    `program` is the folder: `codex`, or `pi-1.5.2` where several versions are kept.
    """

    program: str
    case: str
    stdout: bytes
    stderr: str
    told: dict[str, Any]

    @property
    def spec(self) -> AgentSpec:
        return AGENTS.get(self.told["program"])


def recordings(program: str) -> dict[str, Recording]:
    found = {}
    for path in sorted((RECORDED / program).glob("*.json")):
        stdout, stderr = (
            path.with_suffix(".stdout").read_bytes(),
            path.with_suffix(".stderr").read_text(),
        )
        found[path.stem] = Recording(
            program, path.stem, stdout, stderr, json.loads(path.read_text())
        )
    return found


def read(recording: Recording, cuts: Iterable[int] = ()) -> tuple[Outcome, Summary, bytes, bytes]:
    """Return what our parser and our judge made of a recording read in pieces: also the text,
    and the records kept.
    """
    spec, raw, told = recording.spec, recording.stdout, recording.told
    parser = PARSERS[spec.parser]()
    places = itertools.pairwise([0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)])
    parts = [*(parser.feed(raw[start:end]) for start, end in places), parser.end()]
    ended = ExitInfo(Cause.NOBODY, told["code"], told["signal"], raw.decode(), recording.stderr)
    outcome = judge(ended, parser.summary, spec.success, spec.errors, allow_empty=False)
    text, records = map(b"".join, zip(*parts, strict=True))
    return outcome, parser.summary, text, records


ANSWER = "Hello from the mock provider."
NODE20 = "node20"
"""A pi that needs node 22, under node 20: it asks no provider."""


class End(NamedTuple):
    """What a recording must come to."""

    error: ErrorType | None = None  # None where it completes
    usage: tuple[int, int, float] = (0, 0, 0.0)  # total tokens, turns, cost in US dollars
    wait: float | None = None  # how long the provider asks to wait
    text: str | None = None  # on the execution's stdout; None where it only has to hold the answer


E = ErrorType
FAILED = {
    "401": E.AUTH_FAILED, "404": E.MODEL_NOT_FOUND, "429": E.RATE_LIMITED, "429-hint":
    E.RATE_LIMITED, "quota": E.QUOTA_EXHAUSTED, "overflow": E.CONTEXT_OVERFLOW, "500":
    E.PROVIDER_ERROR, "drop": E.NETWORK, "garbage": E.PROVIDER_ERROR, "hang": E.CRASH,
}  # fmt: skip


def failed(
    turns: int = 0, wait: float | None = None, *, only: str = "", **more: ErrorType
) -> dict[str, End]:
    """Return the ends of the runs that fail for every agent in the same way; `wait` is that of
    `429-hint`.
    """
    kinds = {case: kind for case, kind in FAILED.items() if not only or case in only.split()}
    kinds |= {case.replace("_", "-"): kind for case, kind in more.items()}
    return {
        case: End(kind, (0, turns, 0.0), wait if case == "429-hint" else None, "")
        for case, kind in kinds.items()
    }


def answered(one: float = 0.0, first: str = "", **more: End) -> dict[str, End]:
    """Return the ends of runs with one answer and with two, for so many dollars each."""
    two = End(None, (2100, 2, 2 * one), text=f"{first}{ANSWER}\n")
    return {"ok": End(None, (1050, 1, one), text=f"{ANSWER}\n"), "tool": two, "denied": two, **more}


HAIKU = 0.00129
"""What claude says that one answer of the mock costs."""
CUT = "[API Error: terminated (cause: UND_ERR_SOCKET: other side closed)]"
PI = {
    "ok": End(None, (1050, 1, 0.00375)),
    "tool": End(None, (2100, 2, 0.0075)),
    **failed(turns=1, wait=7.0),
}
NEW_PI = {**PI, **failed(node20=E.AGENT_INCOMPATIBLE, only="-")}
LLM = {"ok": End(), "429-once": End(), **failed(wait=7.0)}
AGAIN = ("429", "429-once", "quota", "500", "drop", "garbage")
AIDER = {  # a text agent: what a try of its own, 0.2 s later, made good counts as well
    "ok": End(),
    **{case: End(kind, wait=0.2 if case in AGAIN else None) for case, kind in FAILED.items()},
    "429-once": End(E.RATE_LIMITED, wait=0.2),
    "429-hint": End(E.RATE_LIMITED, wait=7.0),
}
EXPECTED: dict[str, dict[str, End]] = {
    "pi-0.73.1": PI,
    "pi-0.87.1": NEW_PI,
    "pi-1.5.2": NEW_PI,
    # 429, quota, 500, drop it tries again without end: TERM after 45 s. What the provider said
    # stands on stderr.
    "opencode": {**PI, **failed(wait=7.0), **failed(turns=1, only="garbage")},
    "llm": LLM,
    "aider": AIDER,
    # The delay of `429-hint` is in a header, which neither claude nor codex tells.
    "claude": {
        "ok": End(None, (1450, 1, HAIKU), text=f"{ANSWER}\n"),
        "tool": End(None, (2900, 2, 2 * HAIKU), text=f"I look first.\n{ANSWER}\n"),
        "denied": End(None, (2900, 2, 2 * HAIKU), text=f"I look first.\n{ANSWER}\n"),
        "refusal": End(E.SAFETY_REFUSAL, (2900, 2, 2 * HAIKU), text="I\nI\n"),
        "empty": End(E.MISSING_OUTPUT, (2900, 2, 2 * HAIKU), text=""),
        **failed(
            turns=1, overload=E.RATE_LIMITED, gone=E.NETWORK, no_key=E.AUTH_FAILED, cut=E.NETWORK
        ),
        **failed(only="hang"),
    },
    "codex": {
        **answered(empty=End(E.MISSING_OUTPUT, (1050, 1, 0.0), text="")),
        **failed(
            turns=1,
            refusal=E.SAFETY_REFUSAL,
            overload=E.PROVIDER_ERROR,
            gone=E.NETWORK,
            cut=E.NETWORK,
        ),
    },
    "gemini": {
        **answered(),
        "refusal": End(E.SAFETY_REFUSAL, (1050, 0, 0.0), text=""),
        "empty": End(E.MISSING_OUTPUT, (1050, 0, 0.0), text=""),
        **failed(
            wait=7.0,
            bad_key=E.AUTH_FAILED,
            overload=E.PROVIDER_ERROR,
            gone=E.NETWORK,
            no_key=E.AUTH_FAILED,
        ),
        "cut": End(E.NETWORK, (0, 1, 0.0), text="Hello from the\n"),
        "hang": End(E.MISSING_OUTPUT, text=""),  # it ends with 0 after TERM
    },
    "qwen": {
        **answered(),
        "refusal": End(E.MISSING_OUTPUT, (5250, 1, 0.0), text=""),
        "empty": End(E.MISSING_OUTPUT, (5250, 1, 0.0), text=""),
        **failed(turns=1, wait=7.0, **{"401_old": E.AUTH_FAILED}),
        **failed(only="hang", no_key=E.AUTH_FAILED),
        "cut": End(E.NETWORK, (0, 1, 0.0), text=f"{4 * ANSWER}{CUT}\n"),
    },
}
ALL = {f"{program}/{case}": it for program in EXPECTED for case, it in recordings(program).items()}
RUNS = {name: it for name, it in ALL.items() if it.case != VERSION}
JSON_RUNS = [name for name, it in RUNS.items() if it.spec.parser != "text"]


def test_every_recording_has_an_expectation() -> None:
    assert sorted(EXPECTED) == sorted(each.name for each in RECORDED.iterdir() if each.is_dir())
    assert set(RUNS) == {
        f"{program}/{case}" for program, cases in EXPECTED.items() for case in cases
    }


@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_run_comes_to_its_right_end(name: str) -> None:
    recording = RUNS[name]
    expected = EXPECTED[recording.program][recording.case]
    outcome, summary, text, _records = read(recording)
    assert outcome.error_type == expected.error, outcome.error_message
    assert outcome.status is (Status.COMPLETED if expected.error is None else Status.FAILED)
    assert (summary.usage.total_tokens, summary.usage.turns) == expected.usage[:2]
    assert summary.usage.cost == pytest.approx(expected.usage[2])
    assert outcome.retry_after_seconds == expected.wait
    assert summary.garbage_lines == 0
    if expected.text is not None and name in JSON_RUNS:
        assert text.decode() == expected.text
    if expected.error is None:
        assert ANSWER in text.decode()
        assert ANSWER in summary.final_text


@given(st.sampled_from(sorted(RUNS)), st.lists(st.integers(0, 8000), max_size=5))
def test_pieces_and_new_control_planes_change_nothing(name: str, cuts: list[int]) -> None:
    assert read(RUNS[name], cuts) == read(RUNS[name])


@pytest.mark.parametrize("program", ["pi-1.5.2", "claude", "codex", "gemini", "opencode", "qwen"])
def test_tokens_are_told_apart(program: str) -> None:
    """Of a run of two answers; gemini counts its thoughts in the total alone."""
    usage = read(ALL[f"{program}/tool"])[1].usage
    caches = 0 if program in {"pi-1.5.2", "opencode"} else 800
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (
        2000,
        caches,
        0,
    )
    assert usage.output_tokens == (80 if program == "gemini" else 100)


DENIED = {
    "claude": ("was not allowed to use Bash",),
    "codex": ("its sandbox refused a command: Read-only file system",),
    "gemini": ("was not allowed to use run_shell_command",),
    "qwen": ("was not allowed to use run_shell_command",),
}


@pytest.mark.parametrize("program", DENIED)
def test_what_an_agent_was_not_allowed_is_a_warning(program: str) -> None:
    assert read(ALL[f"{program}/denied"])[1].warnings == DENIED[program]
    assert read(ALL[f"{program}/ok"])[1].warnings == ()


@pytest.mark.parametrize("program", [program for program in EXPECTED if program.startswith("pi")])
def test_no_update_and_no_copy_of_a_stream_of_pi_is_kept(program: str) -> None:
    """Before 0.84 each update carries the whole message, and `agent_end` the whole conversation
    always did.
    """
    assert b'"message_update"' in RUNS[f"{program}/tool"].stdout
    kept = [json.loads(line) for line in read(RUNS[f"{program}/tool"])[3].splitlines()]
    assert not [
        each
        for each in kept
        if each["type"] in {"message_update", "message_start"} or "messages" in each
    ]
    roles = [each["message"]["role"] for each in kept if "message" in each]
    assert roles == ["user", "assistant", "toolResult", "assistant"]
    assert any(each["type"] == "tool_execution_end" for each in kept)


@pytest.mark.parametrize("program", EXPECTED)
def test_the_recorded_version_is_one_that_the_adapter_was_tested_with(program: str) -> None:
    recording = ALL[f"{program}/{VERSION}"]
    version, rule = (
        parse_version(recording.stdout.decode() + recording.stderr),
        recording.spec.version,
    )
    assert version is not None
    assert ".".join(map(str, version)) == recording.told["version"]
    assert in_range(version, rule.want or "")
    assert in_range(version, rule.tested or "")
    assert recording.told["argv"] == list(rule.argv)


@pytest.mark.parametrize("name", [name for name, it in RUNS.items() if it.case != NODE20])
def test_it_was_recorded_with_the_command_line_of_today(name: str) -> None:
    """Who changes an adapter's argv records again: that every option exists was seen there, and
    nowhere else.
    """
    recording, argv = RUNS[name], RUNS[name].told["argv"]
    model = next((argv[argv.index(it) + 1] for it in ("-m", "--model") if it in argv), None)
    places = {
        "pipe": "p",
        "agent_dir": "/home/user/run/agent",
        "prompt_file": "/home/user/run/prompt.md",
    }
    if recording.program not in {"claude", "codex", "gemini", "qwen"}:
        model, places = (
            recording.case,
            {**places, "provider": "custom", "url": "http://127.0.0.1:8080/v1"},
        )
    assert argv == list(command_line(recording.spec, {**places, "model": model}, "", history=False))


# -- what no real one printed yet ------------------------------------------------------------------


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def parsed(name: str, *pieces: bytes) -> tuple[bytes, list[bytes], Summary]:
    """Return the text told, the records kept, and the summary."""
    parser = PARSERS[name]()
    text, records = map(b"".join, zip(*map(parser.feed, pieces), parser.end(), strict=True))
    return text, records.splitlines(), parser.summary


def message(text: str, stop: str = "stop", **more: Any) -> dict[str, Any]:
    content = (
        [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}] if text else []
    )
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
    assert parsed("pi-jsonl", lines(failed))[2].error_message == "429 Rate limit"
    assert parsed("pi-jsonl", lines(failed, message("fine")))[2].error_message is None
    silent = parsed("pi-jsonl", lines(message("first words", "toolUse"), message("", "stop")))[2]
    assert (silent.final_text, silent.has_text, silent.stop_reason) == ("", True, "stop")


GEMINI_LOOKS = (
    {"type": "message", "role": "assistant", "content": "I will look."},
    {"type": "tool_use", "tool_name": "bash", "tool_id": "1"},
    {"type": "tool_result", "tool_id": "1", "status": "error"},
)
GEMINI_DONE = {"type": "result", "status": "success", "stats": {}}
OWN_STOPS: dict[str, tuple[str, tuple[dict[str, Any], ...], ErrorType | None]] = {
    "gemini in a loop": (
        "gemini-json",
        (
            *GEMINI_LOOKS,
            {
                "type": "error",
                "severity": "warning",
                "message": "Loop detected, stopping execution",
            },
            GEMINI_DONE,
        ),
        E.MISSING_OUTPUT,
    ),
    "gemini had enough turns": (
        "gemini-json",
        (
            *GEMINI_LOOKS,
            {"type": "error", "severity": "error", "message": "Maximum session turns exceeded"},
            GEMINI_DONE,
        ),
        E.BUDGET_EXCEEDED,
    ),
    "gemini went on after all": (
        "gemini-json",
        (
            {
                "type": "error",
                "severity": "warning",
                "message": "Loop detected, stopping execution",
            },
            {"type": "message", "role": "assistant", "content": "Here it is."},
            GEMINI_DONE,
        ),
        None,
    ),
    "gemini warned of something": (
        "gemini-json",
        (
            {"type": "message", "role": "assistant", "content": "Here it is."},
            {"type": "error", "severity": "warning", "message": "A hook was slow"},
            GEMINI_DONE,
        ),
        None,
    ),
    "claude had enough turns": (
        "claude-json",
        (
            {
                "type": "assistant",
                "message": {"id": "1", "content": [{"type": "text", "text": "I look."}]},
            },
            {"type": "result", "subtype": "error_max_turns", "is_error": False, "num_turns": 3},
        ),
        E.BUDGET_EXCEEDED,
    ),
    "opencode was filtered": (
        "opencode-jsonl",
        (
            {"type": "text", "part": {"text": "I"}},
            {"type": "step_finish", "part": {"reason": "content-filter"}},
        ),
        E.SAFETY_REFUSAL,
    ),
}


@pytest.mark.parametrize("name", OWN_STOPS)
def test_an_agent_that_stopped_itself_has_not_succeeded(name: str) -> None:
    parser, records, error_type = OWN_STOPS[name]
    summary = parsed(parser, lines(*records))[2]
    rule = AgentSpec().success
    assert (
        judge(ExitInfo(Cause.NOBODY, 0), summary, rule, allow_empty=False).error_type is error_type
    )
    assert summary.warnings == (("A hook was slow",) if "warned" in name else ())


def test_tools_that_are_denied_again_and_again_are_counted() -> None:
    denial = {"tool_name": "Write"}
    result = {
        "type": "result",
        "subtype": "success",
        "result": "x",
        "permission_denials": [denial, denial, {}, "odd"],
    }
    summary = parsed("claude-json", lines(result, result))[2]
    assert summary.warnings == ("was not allowed to use Write (2 times), a tool (2 times)",)
    declined = {"type": "item.completed", "item": {"type": "file_change", "status": "declined"}}
    assert parsed("codex-jsonl", lines(declined))[2].warnings == (
        "was not allowed to use file_change",
    )
    rejected = {
        "tool": "bash",
        "state": {"error": "The user rejected permission to use this tool call."},
    }
    tool = {"type": "tool_use", "part": rejected}
    assert parsed("opencode-jsonl", lines(tool))[2].warnings == ("was not allowed to use bash",)
    missing = {
        "role": "toolResult",
        "isError": True,
        "toolName": "bash",
        "content": "Tool bash not found",
    }
    assert parsed("pi-jsonl", lines({"type": "message_end", "message": missing}))[2].denied == {
        "bash": 1
    }


ERRORS: list[tuple[str, dict[str, Any], str | None]] = [
    ("claude-json", {"type": "result", "is_error": True, "error": {"message": "gone"}}, "gone"),
    ("codex-jsonl", {"type": "turn.failed"}, "the turn failed"),
    (
        "codex-jsonl",
        {"type": "item.completed", "item": {"type": "error", "message": "harmless"}},
        None,
    ),
    (
        "gemini-json",
        {"type": "error", "error": {"message": "key not valid", "code": 400}},
        "400: key not valid",
    ),
    ("gemini-json", {"type": "error", "message": "x"}, "x"),
    ("opencode-jsonl", {"type": "error", "error": {"name": "Odd"}}, "Odd"),
]


@pytest.mark.parametrize(("name", "record", "words"), ERRORS)
def test_an_error_is_named_by_whatever_tells_it(
    name: str, record: dict[str, Any], words: str | None
) -> None:
    assert parsed(name, lines(record))[2].error_message == words


def test_what_a_text_agent_said_is_known_up_to_a_bound() -> None:
    raw = "grüße\n".encode()
    assert parsed("text", raw[:3], raw[3:])[2].final_text == "grüße\n"
    assert [parsed("text", it)[2].has_text for it in (b" x", b" \n\t")] == [True, False]
    assert len(parsed("text", b"x" * 1_000_000)[2].final_text) == FINAL_TEXT_CHARS


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
KINDS = [
    "session",
    "message_update",
    "message_end",
    "agent_end",
    "result",
    "assistant",
    "error",
    "text",
    "step_finish",
]
KINDS += [
    "message",
    "init",
    "turn.failed",
    "turn.completed",
    "item.completed",
    "thread.started",
    "stream_event",
]
NAMES = st.sampled_from(
    ["message", "item", "error", "usage", "part", "role", "result", "stats", "event", "response"]
)


@given(
    st.sampled_from(sorted(PARSERS)),
    st.sampled_from(KINDS),
    st.dictionaries(NAMES, JSON_VALUES, max_size=4),
)
def test_no_record_however_wrong_can_raise(name: str, kind: str, members: dict[str, Any]) -> None:
    parsed(name, lines({"type": kind, **members}))


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
    assert parsed("pi-jsonl", b'{"a":' * 100_000 + b"\n")[2].garbage_lines == 1
