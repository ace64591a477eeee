"""The commands that look at pipes and executions: tables, pages, bytes, exit codes."""

from __future__ import annotations

from cli.fake_daemon import FakeDaemon, document
from cli.pipe_documents import LONG_AGO, execution, listed, on_execution, paged, pipe
from cli.px import Px

OUTPUT = "GET /api/pipes/digest/executions/12/output"


# -- pipes ------------------------------------------------------------------------------------------------------------


def test_list_shows_each_pipe_in_its_state(px: Px, daemon: FakeDaemon) -> None:
    everything = {
        "schema": "px.pipes/1",
        "pipes": [
            pipe("bad", state="failed", config_error="/p/bad/pipe.md:3: schedule: no"),
            pipe("off", state="disabled", enabled=False),
            pipe("on", last_run=LONG_AGO, last_status="failed", consecutive_failures=3),
            pipe("now", state="running", running=12),
            pipe("next", state="queued", queued=2),
            pipe("slow", slower_than_schedule=True),
            pipe("long", warnings=["timeout: 9 s is cut to 3 s"]),
        ],
    }
    daemon.on("GET /api/pipes", document(everything))
    ended = px("pipe", "list")
    states = dict(line.split()[:2] for line in ended.lines[1:])
    assert states == {
        "bad": "broken", "off": "disabled", "on": "idle", "now": "running", "next": "queued", "slow": "idle",
        "long": "idle",
    }  # fmt: skip
    assert "broken: pipe.md:3: schedule: no" in ended.text
    assert "execution 12" in ended.text
    assert "timeout: 9 s is cut" in ended.text
    assert px("pipe", "list", "-q").lines == ["bad", "off", "on", "now", "next", "slow", "long"]
    assert px("pipe", "list", "--json").json() == everything
    daemon.on("GET /api/pipes", document({"pipes": []}))
    assert px("pipe", "list").err == "no pipes yet; add one: pxctl pipe add example:disk-digest\n"


CHECKS = {
    "schema": "px.pipe-validation/1",
    "pipe": "digest",
    "ok": False,
    "checks": [
        {"name": "front_matter", "verdict": "pass", "detail": "reads", "hint": None, "line": None},
        {"name": "schedule", "verdict": "fail", "detail": "'*/30' is no text", "hint": "quote it", "line": 3},
    ],
}


def test_validate_names_line_and_cure_and_exits_1(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("POST /api/pipes/digest/validate", document(CHECKS))
    ended = px("pipe", "validate", "digest")
    assert ended.code == 1
    assert ended.lines == [
        "pipe:digest: fail",
        "  pass  front_matter: reads",
        "  fail  schedule: pipe.md:3: '*/30' is no text",
        "        cure: quote it",
    ]
    assert px("pipe", "validate", "digest", "--json").json()["ok"] is False
    good = {**CHECKS, "pipe": "good", "ok": True, "checks": [{"verdict": "warn", "name": "keys", "detail": "odd"}]}
    daemon.on("POST /api/pipes/good/validate", document(good))
    daemon.on("GET /api/units", document({"units": [{"unit": "pipe:good"}, {"unit": "pipe:digest"}]}))
    assert px("pipe", "validate", "*", "-q").lines == ["good", "digest"]
    assert px("pipe", "validate", "good").code == 0
    assert len(px("pipe", "validate", "good", "digest", "--json").json()["pipes"]) == 2


# -- executions -------------------------------------------------------------------------------------------------------


def test_runs_filters_and_pages(px: Px, daemon: FakeDaemon) -> None:
    failed = execution(8, "failed", error_type="crash", error_message="exit code 3", retry_of=7, tokens=12)
    daemon.on("GET /api/executions", listed(execution(9), failed, cursor=8))
    ended = px("pipe", "runs", "--status", "failed", "--status", "completed", "--since", "2h", "-n", "2")
    assert [line.split()[0] for line in ended.lines] == ["ID", "9", "8"]
    assert "crash: exit code 3" in ended.text
    assert ended.err == "… more: --cursor 8\n"
    assert daemon.seen[0].query == [("status", "failed"), ("status", "completed"), ("since", "2h"), ("limit", "2")]
    assert px("pipe", "runs", "-n", "1", "-q").text == "9\n8\n"
    told = px("pipe", "runs", "--json").json()
    assert ([one["id"] for one in told["executions"]], told["next_cursor"]) == ([9, 8], 8)
    daemon.on("GET /api/pipes/a/executions", listed())
    assert px("pipe", "runs", "--pipe", "a").err == px("pipe", "runs", "pipe:a").err == "no such executions\n"


def test_the_queue_is_told_by_group(px: Px, daemon: FakeDaemon) -> None:
    waiting = [execution(13, "queued", position=1), execution(14, "queued", not_before="2100-01-01T00:00:00Z")]
    groups = [
        {"group": "scheduled", "slots": 1, "running": [], "waiting": []},
        {"group": "manual", "slots": 4, "running": [execution(12, "running")], "waiting": waiting},
    ]
    daemon.on("GET /api/pipes/queue", document({"schema": "px.queue/1", "groups": groups}))
    ended = px("pipe", "queue")
    assert [line.split()[:3] for line in ended.lines[1:]] == [
        ["12", "digest", "running"], ["13", "digest", "queued"], ["14", "digest", "queued"]
    ]  # fmt: skip
    assert "1/4" in ended.text
    assert px("pipe", "queue", "-q").lines == ["12", "13", "14"]
    daemon.on("GET /api/pipes/queue", document({"groups": groups[:1]}))
    assert (px("pipe", "queue").out, px("pipe", "queue").err) == (b"", "nothing runs and nothing waits\n")


def test_output_of_which_not_all_was_kept_says_so(px: Px, daemon: FakeDaemon) -> None:
    """And comes to an end; `--offset` is offered only where there is more to be read."""
    on_execution(daemon).on(OUTPUT, paged({"stdout": b"head\n", "stderr": b"e\n"}, lost=90))
    ended = px("pipe", "output", "12", "-q")
    assert (ended.code, ended.text, ended.err) == (
        0,
        "head\n",
        "pxctl: 5 of 95 bytes were kept (pipes.output_file_bytes)\n",
    )
    some = px("pipe", "output", "12", "--limit", "2").err
    assert some == "pxctl: 2 of 95 bytes so far; go on with --offset 2\n"
    told = px("pipe", "output", "12", "--json").json()
    assert (told["text"], told["total_bytes"], told["complete"]) == ("head\n", 95, False)
    assert told["truncated"] is True
    assert px("pipe", "tail", "12").err == "e\npxctl: not all of its output was kept (pipes.output_file_bytes)\n"
