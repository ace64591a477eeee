"""`pxctl pipe run`, `retry` and `tail -f` against a stand-in: what goes where, and how it ends."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from cli.fake_daemon import FakeDaemon, document, ndjson, problem, until_client_leaves
from cli.pipe_documents import done, execution, listed, output, started
from cli.px import Px

RUN = "POST /api/pipes/digest/run"
TAIL = "GET /api/pipes/digest/executions/12/tail"
LIST = "GET /api/pipes/digest/executions"
QUEUED = execution(12, "queued", position=2)
RUNNING = execution(12, "running")
NOTICE = "pxctl: pipe:digest execution 12: "


def ran(daemon: FakeDaemon, *events: dict[str, Any]) -> FakeDaemon:
    """Have a run be queued and tell these events."""
    daemon.on(RUN, document(QUEUED, status="202 Accepted")).on(LIST, listed())
    return daemon.on(TAIL, ndjson(started(QUEUED), *events))


def test_run_follows_the_output_and_keeps_the_streams_apart(px: Px, daemon: FakeDaemon) -> None:
    binary = {"event": "output", "stream": "stdout", "offset": 5, "end": 7, "base64": "//4="}
    over = execution(tokens=1234, cost=0.0125)
    ran(
        daemon,
        {"event": "status", "execution": {**QUEUED, "position": 1}},
        {"event": "status", "execution": RUNNING},
        output("text\n"),
        output("warn\n", stream="stderr"),
        binary,
        done(over),
    )
    ended = px("pipe", "run", "pipe:digest")
    assert (ended.code, ended.out) == (0, b"text\n\xff\xfe")
    assert ended.err.splitlines() == [
        f"{NOTICE}waiting in line: position 2", f"{NOTICE}waiting in line: position 1", f"{NOTICE}running", "warn",
        f"{NOTICE}completed, 3.2s, 1,234 tokens, $0.0125",
    ]  # fmt: skip
    daemon.on("GET /api/executions/12", document(over))
    quiet = px("pipe", "run", "digest", "-q")
    assert (quiet.code, quiet.text, quiet.err) == (0, "12\n", "")


@pytest.mark.parametrize(
    ("status", "error", "hint"),
    [
        ("failed", "crash", "pxctl pipe output 12 --stderr"),
        ("failed", "preset_not_found", "pxctl pipe validate digest"),
        ("cancelled", "cancelled", "pxctl pipe retry 12"),
        ("timed_out", "timeout", "pxctl pipe config digest timeout=30m"),
    ],
)
def test_run_exits_by_the_outcome(px: Px, daemon: FakeDaemon, status: str, error: str, hint: str) -> None:
    ran(daemon, done(execution(12, status, error_type=error, error_message="so it went")))
    ended = px("pipe", "run", "digest")
    assert (ended.code, ended.out) == (7 if status == "timed_out" else 1, b"")
    assert f"pxctl: cannot run pipe:digest: execution 12 {status.replace('_', ' ')} after 3.2s" in ended.err
    assert ended.err.endswith(f": so it went\nhint: {hint}\n")


@pytest.mark.parametrize(
    ("facts", "hint"),
    [
        ({"error_type": "model_not_found", "preset_id": None}, "mend the model in pipe.md, then: pxctl pipe retry 12"),
        ({"error_type": "model_not_found", "preset_id": "a"}, "mend the model in [presets.a] of presets.toml, then: "),
        ({"error_type": "preflight_failed", "provider": "ollama"}, "start the provider (ollama), then: "),
        ({"error_type": "quota_exhausted"}, "name another preset in pipe.md, or wait, then: "),
        ({"error_type": "auth_failed"}, "check presets.toml and the key that it names, then: "),
    ],
)
def test_the_hint_names_the_cause(px: Px, daemon: FakeDaemon, facts: dict[str, Any], hint: str) -> None:
    ran(daemon, done(execution(12, "failed", **facts)))
    daemon.on(LIST, listed(execution()))
    assert f"\nhint: {hint}" in px("pipe", "run", "digest").err


def test_the_next_preset_is_followed_and_its_outcome_counts(px: Px, daemon: FakeDaemon) -> None:
    """A next try that begins at once is still this run."""
    ran(daemon, done(execution(12, "failed", error_type="auth_failed", error_message="no key")))
    daemon.on(LIST, listed(execution(13, "queued", retry_of=12), execution()))
    second = execution(13, "completed", retry_of=12)
    daemon.on("GET /api/pipes/digest/executions/13/tail", ndjson(started(second), done(second)))
    ended = px("pipe", "run", "digest")
    assert ended.code == 0
    assert "no key; execution 13 follows with the next preset\n" in ended.err


def test_a_lost_answer_is_asked_for_again_under_the_same_key(px: Px, daemon: FakeDaemon) -> None:
    ran(daemon, done(execution()))
    daemon.on(RUN, b"", problem(503, "shutdown"), document(QUEUED))
    assert px("pipe", "run", "digest").code == 0
    assert len({request.headers["idempotency-key"] for request in daemon.asked(RUN)}) == 1


def test_output_is_given_once_over_a_lost_connection(px: Px, daemon: FakeDaemon) -> None:
    ran(daemon)
    daemon.on(
        TAIL,
        ndjson(started(RUNNING), output("one "), output("e1 ", stream="stderr", seen="4-3"), whole=False),
        ndjson(started(RUNNING), output("two ", 4, seen="8-3")),  # ends in order, not done
        ndjson(started(RUNNING), {"type": "urn:px:problem:shutdown", "kind": "shutdown", "status": 503}),
        ndjson(started(RUNNING), output("three", 8), output("e2\n", 3, stream="stderr"), done(execution())),
    )
    ended = px("pipe", "run", "digest")
    assert (ended.code, ended.text) == (0, "one two three")
    assert "".join(line for line in ended.err.splitlines(keepends=True) if NOTICE not in line) == "e1 e2\n"
    seen = [request.headers.get("last-event-id") for request in daemon.asked(TAIL)]
    assert seen == [None, "4-3", "8-3", "8-3"]


def test_ctrl_c_before_the_answer_says_that_it_may_run(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(RUN, lambda _, connection: until_client_leaves(connection))
    process = px.popen("pipe", "run", "digest")
    daemon.await_request(RUN)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, "may run: pxctl pipe queue" in err.decode()) == (1, True)


def test_tail_follows_the_newest_execution_of_a_pipe(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(LIST, listed(RUNNING))
    events = [started(RUNNING), output("text\n"), done(execution(12, "failed", error_type="crash"))]
    daemon.on(TAIL, ndjson(*events))
    ended = px("pipe", "tail", "-f", "digest")
    assert (ended.code, ended.text) == (0, "text\n")
    assert ended.err.endswith("pxctl: execution 12 failed after 3.2s (crash)\n")
    assert daemon.asked(LIST)[0].arguments == {"limit": "1"}
    raw = px("pipe", "tail", "-f", "pipe:digest", "--json")
    assert [json.loads(line)["event"] for line in raw.lines] == ["start", "output", "done"]
