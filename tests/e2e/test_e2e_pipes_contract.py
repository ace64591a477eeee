"""The pipes' half of the contract, walked from outside: documents, routes, refusals, exit codes, streams."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from e2e.house import DEADLINE, House, UnixConnection, until
from e2e.pipe_house import (
    ERROR_TYPES,
    Row,
    asked,
    begin,
    ended,
    fake,
    folder_of,
    holders,
    in_time,
    nothing_left,
    output,
    pipe,
    pipes_house,
    row,
    rows,
    run,
    shell,
)

PIPE_KEYS = {"name", "enabled", "schedule", "next_run", "last_run", "last_status", "running", "queued"}
PIPE_KEYS |= {"consecutive_failures", "config_error"}
ROW_KEYS = {"id", "pipe_name", "status", "trigger", "position", "queued_at", "started_at", "finished_at", "duration_ms"}
ROW_KEYS |= {"exit_code", "error_type", "error_message", "pid", "agent", "model", "provider", "preset_id", "retry_of"}
ROW_KEYS |= {"retry_count", "tokens", "cost"}
BLOBS = {"stdout", "stderr", "rendered_prompt", "preset_snapshot", "plan"}
UNIT_KEYS = {"unit", "kind", "name", "state", "reason", "pid", "next_run", "config_error", "last_used"}
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
ROUTES = {
    ("get", "/api/pipes"),
    ("get", "/api/pipes/{p}"),
    ("delete", "/api/pipes/{p}"),
    ("get", "/api/pipes/{p}/executions"),
    ("get", "/api/pipes/{p}/executions/{id}"),
    ("get", "/api/pipes/{p}/executions/{id}/output"),
    ("get", "/api/pipes/{p}/executions/{id}/tail"),
    ("post", "/api/events/{name}"),
    *(("post", f"/api/pipes/{{p}}/{verb}") for verb in ("run", "enable", "disable", "config")),
    *(("post", f"/api/pipes/{{p}}/executions/{{id}}/{verb}") for verb in ("cancel", "retry")),
}
TALKS = "echo to out; echo to err >&2; printf 'caf\\303\\251 '; while [ ! -e go ]; do sleep 0.02; done; echo on"


@pytest.fixture(scope="module")
def home() -> Iterator[House]:
    with pipes_house(measured=True) as made:
        shell(made, "talks", TALKS)
        shell(made, "good", "cat; echo good", "schedule: '30 9 * * 1-5'\ntimezone: Europe/Berlin")
        shell(made, "bad", "echo so far; exit 3")
        shell(made, "long", "echo so far; sleep 1000")
        until(lambda: len(made.get("/api/pipes")["pipes"]) == 4, "all are seen")
        yield made
        nothing_left(made)


def document(home: House, *args: str, code: int = 0) -> Any:
    done = home.pxctl(*args, "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    return json.loads(done.stdout)


# -- documents ---------------------------------------------------------------------------------------------------------


def test_the_documents_have_the_members_of_the_contract(home: House) -> None:
    done = run(home, "good")
    listed = document(home, "pipe", "list")
    assert listed["schema"] == "px.pipes/1"
    assert all(set(each) >= PIPE_KEYS for each in listed["pipes"])
    assert [each["name"] for each in listed["pipes"]] == sorted(each["name"] for each in listed["pipes"])
    good = pipe(home, "good")
    assert (good["schedule"], good["last_status"], good["running"], good["queued"]) == (
        "30 9 * * 1-5",
        "completed",
        None,
        0,
    )
    assert datetime.fromisoformat(good["next_run"]).astimezone().tzinfo is not None
    told = document(home, "pipe", "runs", "good")
    assert (told["schema"], told["next_cursor"]) == ("px.executions/1", None)
    assert set(told["executions"][0]) >= ROW_KEYS
    assert not BLOBS & set(told["executions"][0]), "lists never carry blobs"
    whole = document(home, "pipe", "show", str(done.id))
    assert set(whole) >= ROW_KEYS | BLOBS
    stamps = [whole[name] for name in ("queued_at", "started_at", "finished_at", "context_start", "context_end")]
    assert all(STAMP.fullmatch(stamp) for stamp in stamps), stamps
    assert stamps[:3] == sorted(stamps[:3])
    assert (whole["agent"], whole["model"], whole["tokens"], whole["cost"]) == ("command", None, None, None)
    unit = next(each for each in document(home, "status")["units"] if each["unit"] == "pipe:good")
    assert set(unit) >= UNIT_KEYS
    assert (unit["kind"], unit["state"], unit["next_run"]) == ("pipe", "idle", good["next_run"])
    openapi = home.get("/api/openapi.json")["paths"]
    assert not {(verb, path) for verb, path in ROUTES if verb not in openapi.get(path, {})}


def test_the_prompt_has_the_five_facts_and_is_shown_before_and_after(home: House) -> None:
    done = run(home, "good", context={"issue": 12})
    head, _, body = done.rendered_prompt.partition("\n\n")
    lines = head.splitlines()
    assert lines[0] == f"Time range: {done.context_start} to {done.context_end}"
    assert re.fullmatch(r"Date: \d{4}-\d\d-\d\d", lines[1])
    assert re.fullmatch(r"Timezone: Europe/Berlin \(UTC\+0[12]:00\)", lines[2])
    assert lines[3] == f"Output directory: ./output/{done.id}/"
    assert lines[4].startswith("API: ")
    assert home.socket in lines[4]
    assert '"issue": 12' in lines[5]
    assert (body.strip(), done.stdout) == ("Do it.", f"{done.rendered_prompt}good\n")
    rendered = home.pxctl("pipe", "show", "good", "--rendered").stdout
    assert [line.split(":")[0] for line in rendered.splitlines()[:5]] == [line.split(":")[0] for line in lines[:5]]
    assert home.pxctl("pipe", "show", str(done.id), "--rendered").stdout == done.rendered_prompt


def test_an_agent_gets_what_is_meant_for_it_and_nothing_of_ours(home: House) -> None:
    folder = fake(home, "looks", "env", front="timeout: 30")
    (folder / ".env").write_text("MINE=from the file\nexport OTHER='x y'\n")
    done = run(home, "looks")
    environ = json.loads(output(home, done.id))
    assert (environ["MINE"], environ["OTHER"], environ["PX_PIPE"]) == ("from the file", "x y", "looks")
    assert environ["PX_EXECUTION_ID"] == str(done.id)
    assert environ["PX_OUTPUT_DIR"] == done.output_dir == f"{folder}/output/{done.id}"
    assert environ["PX_SOCKET"] == home.socket
    ours = {name for name in environ if name.startswith("PX_")}
    assert ours <= {"PX_PIPE", "PX_EXECUTION_ID", "PX_OUTPUT_DIR", "PX_SOCKET", "PX_INSTANCE", "PX_UNIT"}, ours


def test_a_key_that_an_agent_prints_is_nowhere(home: House) -> None:
    key = "sk-pr1nted-by-a-careless-agent"
    folder = shell(home, "careless", 'echo "$SOME_API_KEY"; echo "$SOME_API_KEY" >&2; exit 4')
    (folder / ".env").write_text(f"SOME_API_KEY={key}\n")
    done = run(home, "careless")
    assert (done.stdout, done.stderr) == ("[redacted]\n", "[redacted]\n")
    assert key not in json.dumps(done.document)
    assert holders(home.home, key) == [folder / ".env"], "ledger, logs and files have none of it"


# -- routes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("GET", "/api/pipes/nobody", None, 404, "unknown_unit"),
        ("POST", "/api/pipes/nobody/run", {}, 404, "unknown_unit"),
        ("DELETE", "/api/pipes/nobody", None, 404, "unknown_unit"),
        ("GET", "/api/executions/999999", None, 404, "unknown_unit"),
        ("GET", "/api/pipes/good/executions/abc", None, 404, "unknown_unit"),
        ("POST", "/api/pipes/bad/executions/1/cancel", None, 404, "unknown_unit"),
        ("POST", "/api/pipes/good/run", {"timeout": -1}, 422, None),
        ("POST", "/api/pipes/good/run", {"timeuot": 5}, 422, None),
        ("POST", "/api/pipes/good/run", b"{no json", 400, None),
        ("GET", "/api/pipes/good/executions?status=dead", None, 400, None),
        ("GET", "/api/pipes/good/executions?limit=0", None, 400, None),
        ("GET", "/api/pipes/good/executions/1/output?stream=nose", None, 400, None),
        ("POST", "/api/pipes/good/config", {}, 422, None),
        ("POST", "/api/pipes", {"source": "http://127.0.0.1:1/x"}, 400, None),
        ("POST", "/api/pipes", {"source": "example:nothing"}, 404, None),
        ("POST", "/api/pipes/new", {"name": "good"}, 409, "conflict"),
        ("POST", "/api/pipes/new", {"name": "../up"}, None, None),
    ],
)
def test_a_refusal_is_a_problem_with_its_true_status(
    home: House, method: str, path: str, body: Any, status: int | None, kind: str | None
) -> None:
    run(home, "good") if not rows(home, "pipe=good") else None
    first = rows(home, "pipe=good")[0].id
    answer = home.request(method, path.replace("/executions/1/", f"/executions/{first}/"), body)
    problem = answer.json()
    assert answer.status == (status or problem["status"]) == problem["status"], problem
    assert 400 <= answer.status < 500
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert {"type", "title", "status", "kind", "detail", "hint"} <= set(problem)
    assert problem["detail"]
    assert problem["hint"]
    assert kind in {None, problem["kind"]}, problem


def test_rows_are_filtered_and_paged(home: House) -> None:
    shell(home, "many", "exit ${PX_EXECUTION_ID#${PX_EXECUTION_ID%?}}")
    numbers = [run(home, "many").id for _ in range(5)]
    path, seen, cursor = "/api/pipes/many/executions?limit=2", [], ""
    while True:
        page = home.get(path + cursor)
        assert len(page["executions"]) <= 2
        seen += [each["id"] for each in page["executions"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == numbers[::-1], "newest first, each once"
    failed = {each.id for each in rows(home, "pipe=many&status=failed")}
    completed = {each.id for each in rows(home, "pipe=many&status=completed")}
    assert failed | completed == set(numbers)
    assert not failed & completed
    assert {each.id for each in rows(home, "pipe=many&status=failed&status=completed")} == set(numbers)
    third = row(home, numbers[2]).queued_at
    assert {each.id for each in rows(home, f"pipe=many&since={third}")} == set(numbers[2:])
    assert {each.id for each in rows(home, f"pipe=many&until={third}")} == set(numbers[:2])
    assert not rows(home, "pipe=many&until=1d")
    told = document(home, "pipe", "runs", "many", "--status", "failed", "--since", "1h")
    assert {each["id"] for each in told["executions"]} == failed


def test_the_same_request_twice_is_one_execution(home: House) -> None:
    keys = {"Idempotency-Key": "walk-1", "X-Request-Id": "walk"}
    answers = [home.request("POST", "/api/pipes/good/run", {}, headers=keys) for _ in range(2)]
    assert [each.status for each in answers] == [202, 202]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    assert answers[0].headers["x-request-id"] == "walk"
    ended(home, answers[0].json()["id"])


def test_output_is_paged_as_bytes_also_while_it_grows(home: House) -> None:
    (folder_of(home, "talks") / "go").unlink(missing_ok=True)
    number = begin(home, "talks").id
    until(lambda: b"caf" in output(home, number), "it talks")
    base = f"/api/pipes/talks/executions/{number}/output"
    part = home.request("GET", f"{base}?offset=3&limit=4")
    assert (part.body, part.headers["content-type"]) == (b"out\n", "application/octet-stream")
    assert (part.headers["x-offset"], part.headers["x-complete"]) == ("3", "false")
    total = int(part.headers["x-total-bytes"])
    now = home.request("GET", f"{base}?offset={total}")
    assert (now.body, now.headers["x-complete"]) == (b"", "false"), "an empty body is the end for now"
    until(lambda: row(home, number).stdout, "the row has it, too, while it runs")
    until(lambda: output(home, number, "stderr"), "it complains: nobody says in which order two streams are read")
    assert home.request("GET", f"{base}?stream=stderr").body == b"to err\n"
    (folder_of(home, "talks") / "go").touch()
    ended(home, number)
    last = home.request("GET", f"{base}?offset={total}")
    assert (last.body, last.headers["x-complete"]) == (b"on\n", "true")
    beyond = home.request("GET", f"{base}?offset=100000")
    assert (beyond.status, beyond.body, beyond.headers["x-complete"]) == (200, b"", "true")


def events_of(home: House, path: str, headers: dict[str, str], until_: str) -> list[tuple[str | None, dict[str, Any]]]:
    """Read a stream of server-sent events up to the first that holds a text; return ids and data."""
    connection = UnixConnection(home.socket, DEADLINE)
    found, identifier = [], None
    try:
        connection.request("GET", path, headers={"Accept": "text/event-stream", **headers})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        for line in iter(response.readline, b""):
            if line.startswith(b"id:"):
                identifier = line[3:].strip().decode()
            if line.startswith(b"data:"):
                found.append((identifier, json.loads(line[5:])))
                if until_ in json.dumps(found[-1][1], ensure_ascii=False):
                    return found
    finally:
        connection.close()
    return found


def test_a_follower_sees_start_output_and_done_and_goes_on_where_it_was_cut_off(home: House) -> None:
    (folder_of(home, "talks") / "go").unlink(missing_ok=True)
    number = begin(home, "talks").id
    path = f"/api/pipes/talks/executions/{number}/tail"
    first = events_of(home, f"{path}?stream=stdout", {}, "café")
    assert first[0][1]["event"] == "start"
    assert first[0][1]["execution"]["id"] == number
    last_id = first[-1][0]
    assert last_id is not None
    (folder_of(home, "talks") / "go").touch()
    rest = events_of(home, f"{path}?stream=stdout", {"Last-Event-ID": last_id}, '"event": "done"')
    said = [each["text"] for _, each in (*first, *rest) if each["event"] == "output"]
    assert "".join(said) == "to out\ncafé on\n"
    assert (rest[-1][1]["event"], rest[-1][1]["execution"]["status"]) == ("done", "completed")
    lines = home.request("GET", path, headers={"Accept": "application/x-ndjson"}).body.splitlines()
    both = [json.loads(line) for line in lines if line.strip()]
    assert (both[0]["event"], both[-1]["event"]) == ("start", "done")
    assert {each["stream"] for each in both if each["event"] == "output"} == {"stdout", "stderr"}


def test_a_schedule_is_explained(home: House) -> None:
    report = document(home, "pipe", "next", "good")
    assert (len(report["upcoming"]), report["upcoming"]) == (5, sorted(report["upcoming"]))
    assert report["next_run"] == pipe(home, "good")["next_run"]


# -- the client --------------------------------------------------------------------------------------------------------


def test_the_row_keeps_what_was_said_until_the_timeout(home: House) -> None:
    """Fault 2 of the original: it stored empty texts."""

    def long(seconds: float) -> tuple[float, subprocess.CompletedProcess[str]] | None:
        script, front = "echo so far; touch said; sleep 1000", f"schedule: manual\ntimeout: {seconds}"
        folder = shell(home, "long", script, front)
        late = home.pxctl("pipe", "run", "long")
        return (seconds, late) if (folder / "said").exists() else None

    seconds, late = in_time(long, 0.5)
    assert (late.returncode, late.stdout) == (7, "so far\n")
    assert f"{seconds:g} s" in late.stderr
    done = rows_newest(home, "long")
    assert (done.stdout, done.ended, done.timeout_seconds) == ("so far\n", ("timed_out", "timeout"), seconds)
    as_json = document(home, "pipe", "run", "bad", code=1)
    assert (as_json["status"], as_json["exit_code"], as_json["stdout"]) == ("failed", 3, "so far\n")
    assert as_json["error_type"] in ERROR_TYPES


def rows_newest(home: House, name: str) -> Row:
    return row(home, rows(home, f"pipe={name}")[-1].id)


def test_many_clients_at_once_get_one_execution_each_or_a_conflict(home: House) -> None:
    folder = shell(home, "busy", "while [ ! -e go ]; do sleep 0.02; done")
    found: list[int] = []

    def ask() -> None:
        try:
            found.append(asked(home, "busy").status)
        except (OSError, http.client.HTTPException) as error:  # pragma: no cover - told by the assertion
            found.append(repr(error))  # type: ignore[arg-type]

    clients = [threading.Thread(target=ask) for _ in range(12)]
    for each in clients:
        each.start()
    for each in clients:
        each.join(60)
    (folder / "go").touch()
    assert (found.count(202), found.count(409)) == (1, 11), found
    done = [ended(home, each.id) for each in rows(home, "pipe=busy")]
    assert [each.status for each in done] == ["completed"]
