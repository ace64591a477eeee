"""Pipes by their contract, from outside: documents, routes, refusals, streams, `pxctl pipe …`
and its exit codes.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import aiohttp
import pytest

from e2e.house import DEADLINE, SSE, until
from e2e.pipe_house import DONE, PipeHouse, pipes_house

PIPE_KEYS = {
    "name",
    "enabled",
    "schedule",
    "next_run",
    "last_run",
    "last_status",
    "running",
    "queued",
}
PIPE_KEYS |= {"consecutive_failures", "config_error"}
ROW_KEYS = {
    "id",
    "pipe_name",
    "status",
    "trigger",
    "position",
    "queued_at",
    "started_at",
    "finished_at",
    "duration_ms",
}
ROW_KEYS |= {
    "exit_code",
    "error_type",
    "error_message",
    "pid",
    "agent",
    "model",
    "provider",
    "preset_id",
    "retry_of",
}
ROW_KEYS |= {"retry_count", "tokens", "cost"}
BLOBS = {"stdout", "stderr", "rendered_prompt", "preset_snapshot", "plan"}
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
GATE = "while [ ! -e go ]; do sleep 0.02; done"
"""Runs until its folder has a file `go`."""


@pytest.fixture(scope="module")
def home() -> Iterator[PipeHouse]:
    with pipes_house(measured=True) as made:
        made.shell("good", "cat; echo good", "schedule: '30 9 * * 1-5'\ntimezone: Europe/Berlin")
        until(lambda: made.names() == {"good"}, "it is seen")
        yield made
        made.nothing_left()


# -- documents -------------------------------------------------------------------------------------


def test_the_documents_have_the_members_of_the_contract(home: PipeHouse) -> None:
    done = home.execute("good")
    listed = home.json("pipe", "list")
    assert listed["schema"] == "px.pipes/1"
    assert all(set(each) >= PIPE_KEYS for each in listed["pipes"])
    good = home.pipe("good")
    assert (good["schedule"], good["last_status"], good["running"]) == (
        "30 9 * * 1-5",
        "completed",
        None,
    )
    told = home.json("pipe", "runs", "good")
    assert (told["schema"], told["next_cursor"]) == ("px.executions/1", None)
    assert set(told["executions"][0]) >= ROW_KEYS
    assert not BLOBS & set(told["executions"][0]), "lists never carry blobs"
    whole = home.get(f"/api/pipes/good/executions/{done.id}")
    assert set(whole) >= ROW_KEYS | BLOBS
    stamps = [
        whole[name]
        for name in ("queued_at", "started_at", "finished_at", "context_start", "context_end")
    ]
    assert all(STAMP.fullmatch(stamp) for stamp in stamps), stamps
    assert stamps[:3] == sorted(stamps[:3])
    assert (whole["agent"], whole["model"], whole["tokens"], whole["cost"]) == (
        "command",
        None,
        None,
        None,
    )
    unit = home.unit("pipe:good")
    assert (unit["kind"], unit["state"], unit["next_run"]) == ("pipe", "idle", good["next_run"])
    report = home.json("pipe", "next", "good")
    assert (len(report["upcoming"]), report["upcoming"]) == (5, sorted(report["upcoming"]))
    assert datetime.fromisoformat(report["next_run"]) == datetime.fromisoformat(good["next_run"])


def test_an_agent_gets_nothing_of_ours_and_a_key_that_it_prints_is_nowhere(home: PipeHouse) -> None:
    home.fake("looks", "env", front="timeout: 30")
    ours = {
        name for name in json.loads(home.output(home.execute("looks").id)) if name.startswith("PX_")
    }
    assert ours <= {
        "PX_PIPE",
        "PX_EXECUTION_ID",
        "PX_OUTPUT_DIR",
        "PX_SOCKET",
        "PX_INSTANCE",
        "PX_UNIT",
    }, ours
    key = "sk-pr1nted-by-a-careless-agent"
    folder = home.shell("careless", 'echo "$SOME_API_KEY"; echo "$SOME_API_KEY" >&2; exit 4')
    (folder / ".env").write_text(f"SOME_API_KEY={key}\n")
    done = home.execute("careless")
    assert (done.stdout, done.stderr) == (
        "[redacted: SOME_API_KEY]\n",
        "[redacted: SOME_API_KEY]\n",
    )
    assert key not in json.dumps(done.document)
    assert home.holders(key) == [folder / ".env"], "ledger, logs and files have none of it"


# -- routes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "pipes/nobody", None, 404),
        ("POST", "pipes/nobody/run", {}, 404),
        ("GET", "executions/999999", None, 404),
        ("GET", "pipes/good/executions/abc", None, 404),
        ("POST", "pipes/good/run", b"{no json", 400),
        ("POST", "pipes/good/run", {"timeout": -1}, 422),
        ("POST", "pipes/good/run", {"context": [1]}, 422),
        ("POST", "pipes/good/cancel", {"x": 1}, 422),
        ("POST", "pipes/good/config", {}, 422),
        ("DELETE", "pipes/x*", None, 404),
        ("GET", "pipes/good/executions?status=dead", None, 400),
        ("GET", "pipes/good/executions?limit=0", None, 400),
        ("POST", "pipes", {"source": "http://127.0.0.1:1/x"}, 400),
        ("POST", "pipes", {"source": "example:nothing"}, 404),
        ("POST", "pipes/new", {"name": "good"}, 409),
        ("POST", "pipes/new", {"name": "../up"}, 400),
    ],
)
def test_a_refusal_is_a_problem_with_its_true_status(
    home: PipeHouse, method: str, path: str, body: Any, status: int
) -> None:
    home.request(method, f"/api/{path}", body).refused(status)


def test_rows_are_filtered_and_paged(home: PipeHouse) -> None:
    home.shell("many", "exit ${PX_EXECUTION_ID#${PX_EXECUTION_ID%?}}")
    numbers = [home.execute("many").id for _ in range(3)]
    page = home.get("/api/pipes/many/executions?limit=2")
    assert [each["id"] for each in page["executions"]] == numbers[:0:-1], "newest first"
    rest = home.get(f"/api/pipes/many/executions?cursor={page['next_cursor']}")
    assert ([each["id"] for each in rest["executions"]], rest["next_cursor"]) == (numbers[:1], None)
    since = home.row(numbers[2]).queued_at
    assert [each.id for each in home.rows(f"pipe=many&since={since}")] == numbers[2:]
    failed = [each.id for each in home.rows("pipe=many&status=failed")]
    told = home.json("pipe", "runs", "many", "--status", "failed", "--since", "1h")
    assert [each["id"] for each in told["executions"]] == failed[::-1]


# -- output ----------------------------------------------------------------------------------------


def test_the_tail_is_told_by_websocket_too_with_what_is_no_text_as_base64(home: PipeHouse) -> None:
    home.shell("mixed", r"printf 'gr\303\274n'; printf '\377' >&2")
    path = f"http://px/api/pipes/mi*/executions/{home.execute('mixed').id}/tail"

    async def told() -> list[dict[str, Any]]:
        connector = aiohttp.UnixConnector(home.socket)
        async with (
            aiohttp.ClientSession(connector=connector) as client,
            client.ws_connect(path) as socket,
        ):
            return [message.json() async for message in socket]

    first, *outputs, last = asyncio.run(told())
    assert (first["event"], last["event"], last["execution"]["status"]) == (
        "start",
        "done",
        "completed",
    )
    known = {each["stream"]: each.get("text", each.get("base64")) for each in outputs}
    assert known == {"stdout": "grün", "stderr": "/w=="}


def events_of(
    home: PipeHouse, path: str, word: str, **headers: str
) -> list[tuple[str, dict[str, Any]]]:
    """Read a stream of server-sent events up to the first that holds a word; return ids and
    data.
    """
    found, identifier = [], ""
    with home.asking("GET", path, headers={"Accept": SSE, **headers}) as response:
        for line in iter(response.readline, b""):
            if line.startswith(b"id:"):
                identifier = line[3:].strip().decode()
            if line.startswith(b"data:"):
                found.append((identifier, json.loads(line[5:])))
                if word in json.dumps(found[-1][1], ensure_ascii=False):
                    break
    return found


def test_output_is_paged_and_followed_also_while_it_grows_and_goes_on_where_a_follower_was_cut_off(
    home: PipeHouse,
) -> None:
    folder = home.shell(
        "talks", f"echo to out; echo to err >&2; printf 'caf\\303\\251 '; {GATE}; echo on"
    )
    number = home.begin("talks").id
    until(lambda: b"caf" in home.output(number), "it talks")
    base = f"/api/pipes/talks/executions/{number}"
    part = home.request("GET", f"{base}/output?offset=3&limit=4")
    assert (part.body, part.headers["content-type"]) == (b"out\n", "application/octet-stream")
    total = int(part.headers["x-total-bytes"])
    now = home.request("GET", f"{base}/output?offset={total}")
    assert (now.body, now.headers["x-complete"]) == (b"", "false"), (
        "an empty body is the end for now"
    )
    until(lambda: home.row(number).stdout, "the row has it, too, while it runs")
    until(
        lambda: home.output(number, "stderr") == b"to err\n",
        "it complains: two streams are in no order",
    )
    first = events_of(home, f"{base}/tail?stream=stdout", "café")
    assert (first[0][1]["event"], first[0][1]["execution"]["id"]) == ("start", number)
    (folder / "go").touch()
    rest = events_of(
        home, f"{base}/tail?stream=stdout", '"done"', **{"Last-Event-ID": first[-1][0]}
    )
    assert home.request("GET", f"{base}/tail", headers={"Last-Event-ID": "1-2-3"}).status == 400
    said = [each["text"] for _, each in (*first, *rest) if each["event"] == "output"]
    assert "".join(said) == "to out\ncafé on\n"
    assert (rest[-1][1]["event"], rest[-1][1]["execution"]["status"]) == ("done", "completed")
    both = home.request("GET", f"{base}/tail", headers={"Accept": "application/x-ndjson"}).lines()
    assert (both[0]["event"], both[-1]["event"]) == ("start", "done")
    assert {each["stream"] for each in both if each["event"] == "output"} == {"stdout", "stderr"}
    last = home.request("GET", f"{base}/output?offset={total}")
    assert (last.body, last.headers["x-complete"]) == (b"on\n", "true")


def test_run_passes_every_byte_and_exits_by_the_outcome(home: PipeHouse) -> None:
    home.shell(
        "bytes", r"printf 'a\377\0b'; head -c 300000 /dev/zero | tr '\0' x; printf 'warn\n' >&2"
    )
    ended = home.pxctl("pipe", "run", "bytes", text=False)
    assert (ended.returncode, ended.stdout) == (0, b"a\xff\0b" + b"x" * 300_000)
    assert ended.stderr.count(b"warn\n") == 1
    assert home.pxctl("pipe", "run", "bytes", "-q").stdout == f"{home.rows('pipe=bytes')[-1].id}\n"
    output = ("pipe", "output", "bytes")
    assert home.pxctl(*output, text=False).stdout == ended.stdout
    assert home.pxctl(*output, "--stderr").stdout == "warn\n"
    assert home.pxctl(*output, "--offset", "4", "--limit", "3").stdout == "xxx"
    home.shell("crashes", "echo partial; echo why >&2; exit 3")
    ended = home.pxctl("pipe", "run", "crashes")
    assert (ended.returncode, ended.stdout) == (1, "partial\n")
    assert "why\npxctl: cannot run pipe:crashes: execution " in ended.stderr
    assert "hint: pxctl pipe output " in ended.stderr
    told = home.json("pipe", "run", "crashes", code=1)
    assert (told["status"], told["exit_code"], told["error_type"]) == ("failed", 3, "crash")


def test_an_array_of_contexts_is_an_execution_for_each(home: PipeHouse) -> None:
    home.shell("several", "cat")
    array = json.dumps([{"issue": number} for number in range(3)])
    numbers = home.pxctl("pipe", "run", "several", "--context", array, "-q").stdout.split()
    for at, number in enumerate(numbers):
        assert f'"issue": {at}' in home.ended(int(number)).stdout
    told = home.json("pipe", "run", "several", "--context", array)
    assert [row["status"] for row in told["executions"]] == ["queued"] * 3
    for wrong in ("[]", '[{"issue": 1}, 2]'):
        ended = home.pxctl("pipe", "run", "several", "--context", wrong)
        assert ended.returncode == 2
    home.of("several", 6)


# -- the client ------------------------------------------------------------------------------------


def test_following_outlives_the_control_plane_and_gives_each_byte_once(home: PipeHouse) -> None:
    folder = home.shell("outlives", f"echo e1 >&2; echo begun; {GATE}; echo over; echo e2 >&2")
    process = home.pxctl_later("pipe", "run", "outlives")
    assert process.stdout.readline() == "begun\n"
    home.kill_brain()
    (folder / "go").touch()
    out, err = process.stdout.read(), process.stderr.read()
    assert (process.wait(DEADLINE), out, err.count("e1\n"), err.count("e2\n")) == (
        0,
        "over\n",
        1,
        1,
    )


def test_ctrl_c_leaves_the_execution_which_cancel_ends(home: PipeHouse) -> None:
    home.shell("left", f"echo begun; {GATE}")
    process = home.pxctl_later("pipe", "run", "left")
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE)
    number = str(home.rows("pipe=left")[0].id)
    assert (process.returncode, f"detached; pipe:left execution {number} goes on\n" in err) == (
        1,
        True,
    )
    assert home.pxctl("pipe", "tail", "left").stdout == "begun\n"
    follower = home.pxctl_later("pipe", "tail", "-f", number)
    assert follower.stdout.readline() == "begun\n"
    assert (
        home.pxctl("pipe", "cancel", number).stdout == f"pipe:left execution {number} cancelled\n"
    )
    assert follower.wait(DEADLINE) == 0
    assert home.pxctl("pipe", "cancel", number).returncode == 8
    assert home.pxctl("wait", number).returncode == 1


def test_general_commands_know_pipes(home: PipeHouse) -> None:
    folder = home.shell("general", f'{GATE}; echo "run $PX_EXECUTION_ID"; echo odd >&2')
    px = home.pxctl
    until(lambda: px("status", "pipe:general").returncode == 0, "the pipe was seen")
    assert px("start", "pipe:general").stdout.startswith("pipe:general ")
    until(lambda: "execution" in px("status", "pipe:general").stdout, "status tells what runs")
    assert px("restart", "pipe:general").returncode == 2
    assert px("stop", "pipe:general").stdout == "pipe:general stopped\n"
    assert px("wait", "pipe:general").returncode == 1
    (folder / "go").touch()
    first = px(
        "pipe", "retry", str(home.rows("pipe=general")[-1].id), "--no-wait", "-q"
    ).stdout.strip()
    assert px("wait", first).stdout.startswith(f"pipe:general execution {first} completed in ")
    assert px("wait", "general").returncode == 0
    assert "its last execution completed" in px("why", "pipe:general").stdout
    assert px("logs", "pipe:general", "-n", "1", "--stdout").stdout == f"run {first}\n"
    assert px("logs", "pipe:general", "--stderr").stdout == "odd\n"
    following = home.pxctl_later("logs", "-f", "pipe:general", "--stdout")
    assert following.stdout.readline() == f"run {first}\n"
    second = px("pipe", "run", "general", "--no-wait", "-q").stdout.strip()
    assert following.stdout.readline() == f"run {second}\n", "from one execution to the next"
    following.terminate()
    following.wait(DEADLINE)


def test_a_pipe_from_its_beginning_to_its_end(home: PipeHouse) -> None:
    px = home.pxctl
    assert px("pipe", "add", "example:disk-digest", "--name", "mine").returncode == 0
    assert "disabled" in px("pipe", "list").stdout
    assert px("pipe", "validate", "mine").returncode == 0
    assert home.execute("mine").ended == DONE, "an example works without agent and network"
    # never due meanwhile
    changed = px("pipe", "config", "mine", "schedule=*/5 3 1 1 *", "timeout=60", "title=")
    assert (changed.returncode, "title removed" in changed.stdout) == (0, True), changed
    shutil.copytree(home.folder("mine"), home.folder("young"))
    assert px("pipe", "validate", "young").returncode == 0, "one that was written a moment ago"
    shutil.rmtree(home.folder("young"))
    misspelt = px("pipe", "config", "mine", "schedul=daily")
    assert (misspelt.returncode, "schedule" in misspelt.stderr) == (2, True), misspelt
    until(lambda: "*/5 3 1 1 *" in px("pipe", "list").stdout, "the change is seen")
    assert "next run in " in px("pipe", "enable", "mine").stdout
    assert len(px("pipe", "next", "mine", "-q").stdout.split()) == 5
    assert px("pipe", "disable", "min*").stdout == "pipe:mine disabled\n"
    assert px("pipe", "show", "mine", "--rendered").stdout.startswith("Time range: ")
    assert px("pipe", "remove", "mine").returncode == 2
    assert px("pipe", "remove", "mine", "--yes").stdout == "pipe:mine removed\n"
    assert not home.folder("mine").exists()
    assert px("pipe", "show", "mine").returncode == 4
    assert (px("pipe", "new", "fresh").returncode, home.pipe("fresh")["schedule"]) == (0, "manual")
    assert px("pipe", "remove", "fresh", "--yes").returncode == 0
    assert px("pipe", "new", "plain", "--command", "wc -c").returncode == 0
    ran = px("pipe", "run", "plain")
    assert (ran.returncode, ran.stdout.strip().isdigit()) == (0, True), "it needs no agent"
    assert px("pipe", "remove", "plain", "--yes").returncode == 0


def test_an_agent_that_is_not_installed_is_told_before_it_runs_with_the_command_that_installs_it(
    home: PipeHouse,
) -> None:
    agents, words = home.home / "agents.toml", "install it: get px-absent"
    before = agents.read_text()
    agents.write_text(
        f'{before}\n[agents.absent]\nargv = ["px-absent"]\ninstall = "get px-absent"\n'
    )
    folder = home.write("absent", "agent: absent\nschedule: manual")
    until(lambda: "absent" in home.names(), "it is seen")
    (told,) = home.json("pipe", "show", "absent")["warnings"]
    assert "the program 'px-absent' of the agent 'absent' was not found" in told
    assert words in told
    assert words in home.pxctl("pipe", "list").stdout.replace("\n", "")
    for command in ("validate", "run"):
        done = home.pxctl("pipe", command, "absent")
        assert (done.returncode, "get px-absent" in done.stdout + done.stderr) == (1, True)
    (folder / "pipe.md").unlink()
    agents.write_text(before)
