"""`pxctl pipe …` against a stand-in: listed, changed, run; and pipes where units are meant.

Real ones: tests/e2e.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from cli.fake_daemon import FakeDaemon, Request, document, ndjson, problem, reply, results
from cli.px import Px
from pxctl.executions import NOT_KEPT

LONG_AGO = "2026-01-01T00:00:00.000Z"


def pipe(name: str = "digest", **members: Any) -> dict[str, Any]:
    return {"name": name, "unit": f"pipe:{name}", "state": "idle", "folder": f"/p/{name}"} | members


def execution(number: int = 12, status: str = "completed", **members: Any) -> dict[str, Any]:
    spent = None if status in {"queued", "running"} else 3200
    return {"id": number, "pipe_name": "digest", "status": status, "duration_ms": spent} | members


def listed(*executions: dict[str, Any], cursor: int | None = None) -> bytes:
    return document({"executions": executions, "next_cursor": cursor})


def paged(streams: dict[str, bytes], lost: int) -> Any:
    """Return an answer that gives pieces of streams as they are asked for; so many bytes of each
    were not kept.
    """

    def serve(request: Request, connection: Any) -> None:
        whole = streams[request.arguments["stream"]]
        offset, limit = (int(request.arguments[name]) for name in ("offset", "limit"))
        more = f"X-Total-Bytes: {len(whole) + lost}\r\nX-Complete: false\r\nX-Truncated: true\r\n"
        connection.sendall(
            reply(
                whole[offset : offset + limit], content_type="application/octet-stream", more=more
            )
        )

    return serve


def event(name: str, it: dict[str, Any]) -> dict[str, Any]:
    return {"event": name, "execution": it}


ONE, LIST = "GET /api/executions/12", "GET /api/pipes/digest/executions"
RUN, TAIL = "POST /api/pipes/digest/run", "GET /api/pipes/digest/executions/12/tail"
QUEUED, RUNNING = execution(12, "queued", position=2), execution(12, "running")


# -- listed and checked ----------------------------------------------------------------------------


def test_list_and_status_tell_warnings_and_how_the_last_run_ended(
    px: Px, daemon: FakeDaemon
) -> None:
    known = {
        "kind": "pipe",
        "last_used": LONG_AGO,
        "warnings": ["timeout: 9 s is cut"],
        "last_status": "timed_out",
    }
    daemon.on(
        "GET /api/pipes",
        document({"schema": "px.pipes/1", "pipes": [pipe(**known)]}),
        document({"pipes": []}),
    )
    daemon.on("GET /api/status", document({"units": [pipe(**known)]}))
    assert "9 s is cut" in px("pipe", "list").lines[1]
    assert "last run timed out" in px("status", "pipe:*").lines[1]
    assert px("pipe", "list").err == "no pipes yet; add one: pxctl pipe add example:disk-digest\n"


def test_show_prints_zeros_and_falsehoods_and_texts_of_several_lines(
    px: Px, daemon: FakeDaemon
) -> None:
    why = "exit code 3: first line\nsecond \x1b[2Jline"
    told = {
        "exit_code": 0,
        "truncated": False,
        "cost": 0.0,
        "queue_wait_ms": 0,
        "lost_bytes": 0,
        "retry_of": None,
    }
    long = "".join(f"line {number}\n" for number in range(50))
    row = execution(
        12,
        "failed",
        error_message=why,
        stdout="done\n",
        stdout_bytes=5,
        stderr=long,
        plan={},
        **told,
    )
    daemon.on(ONE, document(row), document(row | {"stdout": "done"}))
    ended, again = px("pipe", "show", "12"), px("pipe", "show", "12")
    assert ended.text == again.text, "a newline at the end of a text changes nothing"
    names = dict(
        line.split(maxsplit=1) for line in ended.lines if not line.startswith(" ") and " " in line
    )
    wanted = {
        "exit_code": "0",
        "truncated": "false",
        "cost": "$0.0000",
        "queue_wait": "0s",
        "lost": "0B",
    }
    assert names.items() >= {**wanted, "stdout": "done", "stdout_bytes": "5B"}.items()
    assert "error_message\n  exit code 3: first line\n  second �[2Jline\n" in ended.text
    assert "stderr\n  … 10 lines before these (--json shows them)\n  line 10\n" in ended.text
    assert ("  line 49" in ended.lines, "retry_of" in names) == (True, False)


def test_tables_show_a_zero_beside_other_numbers_and_leave_out_a_count_of_none(
    px: Px, daemon: FakeDaemon
) -> None:
    two = [pipe("a", queued=0, consecutive_failures=0), pipe("b", queued=3, consecutive_failures=0)]
    daemon.on("GET /api/pipes", document({"schema": "px.pipes/1", "pipes": two}))
    heading, *rows = px("pipe", "list").lines
    assert ("QUEUED" in heading, "FAILURES" in heading) == (True, False)
    assert [row.split()[-1] for row in rows] == ["0", "3"]


def test_runs_of_two_pipes_at_once_are_refused(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(LIST, listed())
    ended = px("pipe", "runs", "digest", "--pipe", "nonesuch")
    assert (ended.code, "two pipes are named, 'digest' and 'nonesuch'" in ended.err) == (2, True)
    for words in (["digest"], ["--pipe", "digest"], ["digest", "--pipe", "digest"]):
        assert px("pipe", "runs", *words).code == 0
    assert [request.query for request in daemon.seen] == [[], [], []]


def test_an_error_type_that_is_none_is_answered_with_the_nearest_and_all(
    px: Px, daemon: FakeDaemon
) -> None:
    near, far = (
        px("pipe", "runs", "--error-type", "crsh"),
        px("pipe", "runs", "--error-type", "bogus"),
    )
    assert (near.code, far.code, daemon.seen) == (2, 2, [])
    assert "'crsh' is no error type; did you mean 'crash'?" in near.err
    assert "did you mean" not in far.err
    assert "hint: one of timeout, crash, rate_limited, " in far.err


def test_a_run_with_no_time_at_all_is_refused_with_the_line_to_write(
    px: Px, daemon: FakeDaemon
) -> None:
    ended = px("pipe", "run", "digest", "--timeout", "0")
    assert (ended.code, daemon.seen) == (2, [])
    assert "above 0\nhint: pxctl pipe run digest --timeout 600" in ended.err


def test_runs_filters_and_pages(px: Px, daemon: FakeDaemon) -> None:
    failed = execution(
        8, "failed", error_type="crash", error_message="exit code 3", retry_of=7, tokens=12
    )
    daemon.on("GET /api/executions", listed(execution(9), failed, cursor=8)).on(LIST, listed())
    ended = px(
        "pipe", "runs", "--status", "failed", "--status", "completed", "--since", "2h", "-n", "2"
    )
    assert [line.split()[0] for line in ended.lines] == ["ID", "9", "8"]
    assert ("exit code 3" in ended.text, ended.err) == (True, "… more: --cursor 8\n")
    asked = daemon.seen[0].query
    assert asked[2][0] == "since"
    ago = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(asked.pop(2)[1])
    assert dt.timedelta(hours=2) <= ago < dt.timedelta(hours=2, minutes=2)
    assert asked == [("status", "failed"), ("status", "completed"), ("limit", "2")]
    assert px("pipe", "runs", "--pipe", "digest").err == "no such executions\n"


def test_the_queue_is_told_by_group(px: Px, daemon: FakeDaemon) -> None:
    waiting = [execution(13, "queued", position=1, not_before="2100-01-01T00:00:00Z")]
    groups = [{"group": "manual", "slots": 4, "running": [RUNNING], "waiting": waiting}]
    daemon.on("GET /api/pipes/queue", document({"groups": groups}), document({"groups": []}))
    ended = px("pipe", "queue")
    assert [line.split()[:3] for line in ended.lines[1:]] == [
        ["12", "digest", "running"],
        ["13", "digest", "queued"],
    ]
    assert "1/4" in ended.text
    assert (px("pipe", "queue").out, px("pipe", "queue").err) == (
        b"",
        "nothing runs and nothing waits\n",
    )


def test_output_of_which_not_all_was_kept_says_so(px: Px, daemon: FakeDaemon) -> None:
    """And comes to an end; `--offset` is offered only where there is more to be read."""
    daemon.on(ONE, document(execution(truncated=True)))
    daemon.on(
        "GET /api/pipes/digest/executions/12/output",
        paged({"stdout": b"head\n", "stderr": b"e\n"}, lost=90),
    )
    ended = px("pipe", "output", "12", "-q")
    assert (ended.code, ended.text) == (0, "head\n")
    assert ended.err == f"{NOT_KEPT}; these are 5 bytes\n"
    some = px("pipe", "output", "12", "--limit", "2").err
    assert some == "pxctl: 2 of 95 bytes so far; go on with --offset 2\n"
    told = px("pipe", "output", "12", "--json").json()
    assert (told["text"], told["total_bytes"], told["complete"], told["truncated"]) == (
        "head\n",
        95,
        False,
        True,
    )
    assert px("pipe", "tail", "12").err == f"e\n{NOT_KEPT}\n"


def test_output_shows_its_last_lines(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(ONE, document(execution()))
    daemon.on(
        "GET /api/pipes/digest/executions/12/output",
        paged({"stdout": b"one\ntwo\nthree", "stderr": b"e\n"}, lost=0),
    )
    assert px("pipe", "output", "12", "-n", "2").out == b"two\nthree"
    assert px("pipe", "output", "12", "--lines", "0").out == b""
    assert px("pipe", "output", "12", "-n", "9", "--stderr").out == b"e\n"
    assert px("pipe", "output", "12", "-n", "1", "--json").json()["text"] == "three"


# -- changed ---------------------------------------------------------------------------------------


def test_add_sends_paths_in_full_and_addresses_as_they_are(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(
        "POST /api/pipes", document(pipe(enabled=False, warnings=["odd"]), status="201 Created")
    )
    for given, source in (
        ("folder", f"{px.folder}/folder"),
        ("ftp://example.org/pipe.md", "ftp://example.org/pipe.md"),
    ):
        ended = px("pipe", "add", given, "--name", "digest")
        assert ended.text == "pipe:digest added in /p/digest, disabled\n"
        assert ended.err.splitlines()[0] == "warning: odd"
        assert "let it start by itself: pxctl pipe enable digest" in ended.err, (
            "also where it has no schedule"
        )
        assert daemon.seen[-1].json() == {"source": source, "name": "digest"}


def test_remove_asks_on_a_terminal_and_nowhere_else(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(
        "DELETE /api/pipes/digest",
        document({"schema": "px.removed/1", "unit": "pipe:digest", "removed": True}),
    )
    daemon.on("GET /api/pipes/dig*", document(pipe())).on("GET /api/pipes/digest", document(pipe()))
    ended = px("pipe", "remove", "pipe:dig*")
    assert (ended.code, "hint: pxctl pipe remove digest --yes" in ended.err) == (2, True)
    assert px("pipe", "remove", "digest", "--yes").text == "pipe:digest removed\n"
    for answer, code in (("n\n", 1), ("y\n", 0)):
        with px.terminal("pipe", "remove", "digest") as screen:
            screen.see("Remove pipe:digest and its folder? [y/N]")
            screen.type(answer)
            assert screen.end() == code
    assert len(daemon.asked("DELETE /api/pipes/digest")) == 2


def test_cancel_takes_ids_and_pipes(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(ONE, document(RUNNING))
    daemon.on("POST /api/pipes/digest/executions/12/cancel", document(execution(12, "cancelled")))
    daemon.on("GET /api/units", document({"units": [{"unit": "pipe:diary"}]}))
    cancelled = {"executions": [execution(7, "cancelled", pipe_name="diary")]}
    daemon.on(
        "POST /api/pipes/diary/cancel",
        document(cancelled),
        document(cancelled),
        document({"executions": []}),
    )
    ended = px("pipe", "cancel", "diary", "12")
    assert ended.lines == ["pipe:digest execution 12 cancelled", "pipe:diary execution 7 cancelled"]
    told = px("pipe", "cancel", "12", "diary", "--json").json()
    assert [one["answer"]["executions"][0]["id"] for one in told["results"]] == [12, 7]
    assert px("pipe", "cancel", "diary").text == "pipe:diary: nothing runs and nothing waits\n"


# -- run -------------------------------------------------------------------------------------------


def ran(daemon: FakeDaemon, *events: dict[str, Any]) -> FakeDaemon:
    daemon.on(RUN, document(QUEUED, status="202 Accepted")).on(LIST, listed())
    return daemon.on(TAIL, ndjson(event("start", QUEUED), *events))


@pytest.mark.parametrize(
    ("status", "facts", "hint"),
    [
        (
            "timed_out",
            {"error_type": "timeout"},
            "raise timeout: in pipe.md, then: pxctl pipe retry 12",
        ),
        (
            "failed",
            {"error_type": "preflight_failed", "provider": "p"},
            "start the provider (p), then: ",
        ),
    ],
)
def test_run_exits_by_the_outcome_and_its_hint_names_the_cause(
    px: Px, daemon: FakeDaemon, status: str, facts: dict[str, str], hint: str
) -> None:
    ran(daemon, event("done", execution(12, status, error_message="so it went", **facts)))
    ended = px("pipe", "run", "digest")
    assert (ended.code, ended.out) == (7 if status == "timed_out" else 1, b"")
    assert (
        f"pxctl: cannot run pipe:digest: execution 12 {status.replace('_', ' ')} after 3.2s"
        in ended.err
    )
    assert f": so it went\nhint: {hint}" in ended.err


def test_the_next_preset_is_followed_and_its_outcome_counts(px: Px, daemon: FakeDaemon) -> None:
    """A next try that begins at once is still this run."""
    ran(
        daemon,
        event("done", execution(12, "failed", error_type="auth_failed", error_message="no key")),
    )
    daemon.on(LIST, listed(execution(13, "queued", retry_of=12), execution()))
    second = execution(13, "completed", retry_of=12)
    daemon.on(
        "GET /api/pipes/digest/executions/13/tail",
        ndjson(event("start", second), event("done", second)),
    )
    ended = px("pipe", "run", "digest")
    assert ended.code == 0
    assert "no key; execution 13 follows with the next preset\n" in ended.err


def test_an_execution_that_fails_to_start_is_the_failure_of_start(
    px: Px, daemon: FakeDaemon
) -> None:
    failed = execution(12, "failed", error_type="preset_not_found", error_message="no fast")
    daemon.on("POST /api/units/start", results({"pipe:digest": failed}))
    ended = px("start", "pipe:digest")
    assert ended.code == 1
    assert (
        "cannot start pipe:digest: execution 12 failed after 3.2s (preset_not_found): no fast"
        in ended.err
    )


def test_waiting_for_an_execution_survives_a_new_control_plane(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(
        ONE, document(RUNNING), problem(503, "shutdown"), document(execution(12, "timed_out"))
    )
    ended = px("wait", "12", "--json")
    assert (ended.code, ended.json()["status"]) == (7, "timed_out")
    assert [request.arguments for request in daemon.seen] == [{}, {"wait": "1"}, {"wait": "1"}]
