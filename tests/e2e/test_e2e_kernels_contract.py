"""What the contract says of calls, environments, interpreters, cells, modules, limits and documents (§3, §4, §6).

Law: a daemon is shared where its settings are the default ones; a test that needs others has a daemon of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.house import BIN, UnixConnection, house, until
from e2e.kernel_house import Calls
from rounds import mostly_deep

SECRETS = dict.fromkeys(
    [
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "GOOGLE_API_KEY",
        "GEMINI_API_KEY",
        "OPENROUTER_API_KEY",
        "PERPLEXITY_API_KEY",
        "EXA_API_KEY",
        "AZURE_OPENAI_API_KEY",
        "MISTRAL_API_KEY",
        "PERPLEXITY_COOKIES",
    ],
    "secret-value",
)
DAEMONS = {
    **SECRETS,
    "TZ": "UTC",
    "LANG": "C.UTF-8",
    "LC_TIME": "C.UTF-8",
    "XDG_MINE": "by prefix",
    "PI_MINE": "by prefix",
    "XDG_DENIED": "denied by setting",
    "https_proxy": "http://127.0.0.1:9",
    "OMP_NUM_THREADS": "1",
    "UNKNOWN_NAME": "not allowed",
    "AWS_SECRET_ACCESS_KEY": "not allowed",
    "ALLOWED_BY_SETTING": "yes",
    "PX_KERNELS__GATEWAY_TOKEN": "token-of-ours-1",
    "PI_PYTHON_GATEWAY_TOKEN": "token-of-ours-2",
    "PX_API__LISTEN": "127.0.0.1:0",
    "PX_KERNELS__TIMEOUT_MIN_SECONDS": "5",
    "PX_KERNELS__TIMEOUT_SECONDS": "50",
    "PX_API__STREAM_RESUME_SECONDS": "50",
}
ALLOW = ["PATH", "HOME", "LANG", "TZ", "https_proxy", "OMP_NUM_THREADS", "ALLOWED_BY_SETTING", "VIRTUAL_ENV"]
ALLOW += ["OPENAI_API_KEY"]
"""The last one is denied as well: deny wins."""
KERNEL_KEYS = {
    "id", "name", "cwd", "interpreter", "backend", "state", "pid", "queued", "last_used", "started_at", "rss_bytes",
    "reason",
}  # fmt: skip
CELL_KEYS = {
    "id", "title", "status", "text", "outputs", "error", "truncated", "artifact", "total_bytes", "duration_seconds",
    "steps",
}  # fmt: skip
UNIT_KEYS = {
    "unit", "kind", "name", "state", "reason", "pid", "started_at", "uptime_seconds", "rss_bytes", "cpu_percent",
    "last_used", "in_flight", "pinned", "start_method", "restarts", "next_run", "config_error",
}  # fmt: skip


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    """A daemon with defaults, but for an environment full of names and times that a busy machine can keep."""
    with house(DAEMONS) as made:
        (made.home / "pxd.toml").write_text(
            f"[kernels]\nenv_allow = {json.dumps(ALLOW)}\nenv_deny = {json.dumps([*SECRETS, 'XDG_DENIED'])}\n"
        )
        made.measured = True
        made.start()
        yield Calls(made, str(tmp_path_factory.mktemp("contract")))


def only(document: Mapping[str, Any]) -> dict[str, Any]:
    (cell,) = document["cells"]
    found: dict[str, Any] = cell
    return found


# -- calls ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "taken"), [(9999, 600), (0, 5), (7.5, 7.5)])
def test_a_timeout_is_clamped_and_the_clamp_is_told(calls: Calls, asked: float, taken: float) -> None:
    """Five seconds are this daemon's least."""
    calls.run("clamp", "1")
    document = calls.run("clamp", "1", timeout=asked)
    assert (document["timeout_seconds"], document["clamped"]) == (taken, asked != taken), document
    assert any(f"{taken:g}" in notice for notice in document["notices"]) == (asked != taken), document["notices"]


def test_a_failing_cell_names_itself_and_keeps_what_was_before(calls: Calls, tmp_path: Path) -> None:
    cells = [
        {"code": "a = 1", "title": "first"},
        {"code": "b = 2\n1 / 0", "title": "the division"},
        {"code": f"open({str(tmp_path / 'ran')!r}, 'w')", "title": "never"},
    ]
    document = calls.run("fails", cells)
    assert [cell["status"] for cell in document["cells"]] == ["ok", "error", "aborted"]
    assert [cell["title"] for cell in document["cells"]] == ["first", "the division", "never"]
    assert "2" in document["message"], document["message"]
    assert "the division" in document["message"], document["message"]
    assert (document["status"], document["variables"]) == ("error", "kept")
    assert calls.value("fails", "a, b") == "(1, 2)"
    assert not (tmp_path / "ran").exists()


def test_the_stream_tells_the_call_in_order(calls: Calls) -> None:
    calls.run("told", "1", reset=True)
    with calls.stream("told", [{"code": "print('a')", "title": "one"}, "2", "1 / 0"]) as stream:
        events = stream.rest()
    names = [event["event"] for event in events]
    assert names[-1] == "done"
    assert [name for name in names if name in {"cell_started", "cell_done"}] == ["cell_started", "cell_done"] * 3
    started = [event for event in events if event["event"] == "cell_started"]
    assert [(event["index"], event["title"]) for event in started] == [(0, "one"), (1, None), (2, None)]
    done = [event["cell"] for event in events if event["event"] == "cell_done"]
    assert done == events[-1]["result"]["cells"]
    output = [event for event in events if event["event"] == "output"]
    assert "".join(event["text"] for event in output) == "a\n"
    assert (output[0]["offset"], {(event["id"], event["stream"]) for event in output}) == (
        0,
        {(done[0]["id"], "stdout")},
    )
    (result,) = [event for event in events if event["event"] == "result"]
    assert result["data"]["text/plain"] == "2"
    (error,) = [event for event in events if event["event"] == "error"]
    assert (error["name"], error["id"]) == ("ZeroDivisionError", done[2]["id"])


def frame_of(response: http.client.HTTPResponse) -> dict[str, str]:
    """Return the next event: its id, its name, its data."""
    lines: dict[str, str] = {}
    for raw in iter(response.readline, b""):
        line = raw.decode().rstrip("\n")
        if not line and lines:
            return lines
        if line and not line.startswith(":"):
            name, _, lines[name] = line.partition(": ")
    raise AssertionError("the stream is at its end")


def test_a_stream_is_resumed_by_the_id_of_its_last_event(calls: Calls) -> None:
    """The client is cut off in the middle of a cell, which goes on, and is told the rest of it, once."""
    code = "import os, time\nprint('one €', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('two')"
    headers = {"Accept": "text/event-stream", "Content-Type": "application/json"}
    body = json.dumps(calls.body([code, "print('three')"]))
    first = UnixConnection(calls.house.socket)
    first.request("POST", "/api/kernels/resumed/execute", body, headers)
    response = first.getresponse()
    seen: list[dict[str, str]] = []
    while not seen or seen[-1]["event"] != "output":
        seen.append(frame_of(response))
    response.close()
    first.close()
    Path(calls.cwd, "go").touch()
    second = UnixConnection(calls.house.socket)
    again = {**headers, "Last-Event-ID": seen[-1]["id"]}
    second.request("POST", "/api/kernels/resumed/execute", body, again)
    response = second.getresponse()
    while seen[-1]["event"] != "done":
        seen.append(frame_of(response))
    second.close()
    data = [json.loads(frame["data"]) for frame in seen]
    assert "".join(event["text"] for event in data if event["event"] == "output") == "one €\ntwo\nthree\n"
    assert [cell["status"] for cell in data[-1]["result"]["cells"]] == ["ok", "ok"]
    assert len(calls.history("resumed")) == 2, "nothing was run again"


# -- environment ----------------------------------------------------------------------------------------------------


def test_the_kernel_gets_what_is_allowed_and_none_of_the_secrets(calls: Calls) -> None:
    environ = json.loads(calls.value("env", "import json, os; print(json.dumps(dict(os.environ)))"))
    wanted = {"TZ", "LANG", "LC_TIME", "XDG_MINE", "PI_MINE", "https_proxy", "OMP_NUM_THREADS", "ALLOWED_BY_SETTING"}
    assert wanted <= set(environ)
    unwanted = {*SECRETS, "XDG_DENIED", "UNKNOWN_NAME", "AWS_SECRET_ACCESS_KEY", "PX_KERNELS__GATEWAY_TOKEN"}
    unwanted |= {"PI_PYTHON_GATEWAY_TOKEN", "PX_API__LISTEN", "PX_HOME", "PX_CONTROL"}
    assert not unwanted & set(environ), unwanted & set(environ)
    values = "\n".join(environ.values())
    assert "token-of-ours" not in values
    assert "secret-value" not in values
    assert environ["PX_SOCKET"] == calls.house.socket
    assert environ["PX_UNIT"] == f"kernel:{calls.show('env')['id']}"
    assert environ["PATH"].split(":")[0] == str(Path(sys.prefix) / "bin")
    assert environ["VIRTUAL_ENV"] == sys.prefix


def test_the_token_of_the_api_reaches_no_kernel(calls: Calls) -> None:
    tokens = [path.read_text().strip() for path in calls.house.home.rglob("*token*") if path.is_file()]
    assert tokens, "the listener has a token file"
    environ = calls.value("env", "import os; print(dict(os.environ))")
    shell = calls.value("shell-env", "env", language="bash")
    for text in (environ, shell):
        assert not [token for token in tokens if token in text]


def test_explain_names_what_is_passed_and_what_is_dropped_and_starts_nothing(calls: Calls) -> None:
    done = calls.house.pxctl("--json", "kernel", "start", "explained", "--cwd", calls.cwd, "--explain")
    assert done.returncode == 0, done
    document = json.loads(done.stdout)
    assert document["schema"] == "px.kernel-explanation/1"
    environment = document["environment"]
    assert {"TZ", "XDG_MINE"} <= set(environment["passed"])
    dropped = {item["name"]: item["why"] for item in environment["dropped"]}
    assert {"OPENAI_API_KEY", "UNKNOWN_NAME", "XDG_DENIED"} <= set(dropped)
    assert dropped["XDG_DENIED"] != dropped["UNKNOWN_NAME"], dropped
    assert "secret-value" not in done.stdout
    assert sum(candidate["taken"] for candidate in document["candidates"]) == 1
    assert "explained" not in calls.known()


RAW = """
import http.client, os, socket
client = http.client.HTTPConnection("px", timeout=30)
client.sock = socket.socket(socket.AF_UNIX)
client.sock.connect(os.environ["PX_SOCKET"])
kind = {{"Content-Type": "application/json"}}
client.request("POST", "/api/kernels/{session}/execute", '{{"code": "1", "cwd": "{cwd}"}}', kind)
print(client.getresponse().status)
"""


def test_a_cell_that_calls_its_own_session_is_refused_and_another_ones_is_run(calls: Calls) -> None:
    """It would wait for itself. Known by its process: it need not say who it is."""
    for session, status in (("caller", "409"), ("called", "200")):
        cell = calls.run("caller", RAW.format(session=session, cwd=calls.cwd))["cells"][0]
        assert cell["text"].strip() == status, cell


# -- interpreters ---------------------------------------------------------------------------------------------------


def fake_environment(folder: Path, *, works: bool = True) -> Path:
    """Make an environment that has what the tests' own has, or whose python is there and dead."""
    (folder / "bin").mkdir(parents=True)
    if works:
        (folder / "pyvenv.cfg").write_text((BIN.parent / "pyvenv.cfg").read_text())
        (folder / "lib").symlink_to(BIN.parent / "lib")
        (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    else:
        (folder / "bin" / "python").write_text("#!/bin/sh\nexit 3\n")
        (folder / "bin" / "python").chmod(0o755)
    return folder


def explained(calls: Calls, cwd: Path, environ: Mapping[str, str]) -> tuple[str, list[tuple[str, str]]]:
    """Return what is taken, and each candidate with its reason."""
    body = {"name": "explained", "cwd": str(cwd), "explain": True, "environ": environ}
    answer = calls.house.request("POST", "/api/kernels", body)
    assert answer.status == 200, answer.body
    document = answer.json()
    return document["interpreter"], [(item["source"], item["reason"]) for item in document["candidates"]]


def test_interpreters_are_tried_in_the_order_of_the_notes(calls: Calls, tmp_path: Path) -> None:
    """VIRTUAL_ENV, CONDA_PREFIX, <cwd>/.venv, <cwd>/venv, managed, PATH: the first that runs is taken."""
    names = ("virtual", "conda", "here/.venv", "here/venv")
    folders = [fake_environment(tmp_path / name) for name in names]
    here = tmp_path / "here"
    environ = {"VIRTUAL_ENV": str(folders[0]), "CONDA_PREFIX": str(folders[1]), "PATH": f"{BIN}:{os.environ['PATH']}"}
    taken = []
    for folder in (*folders, None):
        interpreter, candidates = explained(calls, here, environ)
        taken.append(interpreter)
        sources = [source for source, _ in candidates]
        assert sources[:4] == ["VIRTUAL_ENV", "CONDA_PREFIX", ".venv", "venv"], sources
        assert [source for source, reason in candidates if reason == "taken"], candidates
        if folder is not None:
            (folder / "bin" / "python").unlink()
            (folder / "bin" / "python").write_text("#!/bin/sh\nexit 3\n")
            (folder / "bin" / "python").chmod(0o755)
    assert taken[:4] == [str(folder / "bin" / "python") for folder in folders]
    assert taken[4] not in taken[:4]


# -- which kinds of cells -------------------------------------------------------------------------------------------

EXPOSED = {
    "PX_PY=0": ({"PX_PY": "0"}, (False, True)),
    "PX_PY=1": ({"PX_PY": "1"}, (True, False)),
    "PI_PY is weaker": ({"PI_PY": "bash", "PX_PY": "mix"}, (True, True)),
    "nonsense is ignored": ({"PI_PY": "perhaps"}, (True, True)),
}


@pytest.mark.parametrize("row", mostly_deep(EXPOSED, "PX_PY=0"))
def test_capabilities_say_which_cells_are_offered_and_the_others_are_refused(tmp_path: Path, row: str) -> None:
    settings, (python, bash) = EXPOSED[row]
    with house(settings) as made:
        made.start()
        calls = Calls(made, str(tmp_path))
        document = made.get(f"/api/capabilities?cwd={tmp_path}")
        assert document["schema"] == "px.capabilities/1"
        assert (document["python"]["offered"], document["bash"]["offered"]) == (python, bash), document
        for language, offered in (("python", python), ("bash", bash)):
            answer = calls.ask("kind", "echo 1" if language == "bash" else "print(1)", language=language)
            assert (answer.status == 200) is offered, answer.body
            if not offered:
                assert document[language]["reason"], document
                assert answer.json()["hint"], answer.body


@pytest.mark.deep
def test_without_a_python_it_degrades_to_shell_cells_and_says_why(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    for name in ("bash", "sh", "sleep"):
        (empty / name).symlink_to(f"/bin/{name}")
    with house({"PATH": str(empty), "PX_KERNELS__MANAGED": "false"}) as made:
        made.start()
        calls = Calls(made, str(tmp_path))
        document = made.get(f"/api/capabilities?cwd={tmp_path}")
        assert (document["expose"], document["python"]["offered"], document["bash"]["offered"]) == ("bash", False, True)
        assert document["python"]["reason"], document
        status, problem = calls.problem("none", "1")
        assert status in {409, 503}, problem
        assert problem["hint"], problem
        assert calls.value("none", "echo $((40 + 2))", language="bash") == "42"


@pytest.mark.deep
def test_the_names_of_the_original_are_accepted(tmp_path: Path) -> None:
    """PI_PYTHON_GATEWAY_URL makes the external gateway the backend; its token is taken, shown nowhere."""
    settings = {
        "PI_PYTHON_GATEWAY_URL": "http://127.0.0.1:9",
        "PI_PYTHON_GATEWAY_TOKEN": "token-of-ours-3",
        "PI_PYTHON_SKIP_CHECK": "1",
        "PI_PYTHON_IPC_TRACE": "1",
        "PI_DEBUG_STARTUP": "1",
    }
    with house(settings) as made:
        made.start()
        calls = Calls(made, str(tmp_path))
        assert made.get("/api/capabilities")["backend"] == "gateway-external"
        status, problem = calls.problem("x", "1")
        assert (status, "127.0.0.1:9" in json.dumps(problem)) == (503, True), problem
        assert calls.value("x", "1 + 1", backend="direct") == "2"
        shown = made.pxctl("config", "show").stdout
        assert "token-of-ours-3" not in shown
        log = until(lambda: traced(made.home / "pxd.stderr"), "PI_PYTHON_IPC_TRACE logs the messages")
        assert "token-of-ours-3" not in log
        assert made.pxctl("config", "show", "--json").returncode == 0


def traced(log: Path) -> str:
    """Return the whole log once it tells of a cell's request: there is more behind it, the start of a zygote say."""
    text = log.read_text(errors="replace")
    return text if "execute_request" in text else ""


# -- shell cells ----------------------------------------------------------------------------------------------------


def test_shell_cells_obey_the_same_rules(calls: Calls, tmp_path: Path) -> None:
    document = calls.run("shell", ["echo out; echo err >&2", "exit 3", "touch ran"], language="bash", cwd=str(tmp_path))
    assert [cell["status"] for cell in document["cells"]] == ["ok", "error", "aborted"], document
    assert document["cells"][0]["text"] == "out\nerr\n"
    assert (document["cells"][1]["error"]["name"], document["cells"][1]["error"]["value"]) == ("ExitCode", "3")
    assert not (tmp_path / "ran").exists()
    done = calls.house.pxctl("exec", "--bash", "--cwd", str(tmp_path), "head -c 300000 /dev/zero | tr '\\0' x")
    assert (done.returncode, done.stdout) == (0, "x" * 300_000), done.stderr


# -- prelude and modules --------------------------------------------------------------------------------------------


def test_the_prelude_is_there_and_imported_not_sent(calls: Calls, tmp_path: Path) -> None:
    names = ["display", "read", "write", "run", "find", "grep", "tree", "diff", "env", "output"]
    document = calls.run(
        "prelude", f"[name for name in {names} if not callable(globals().get(name))]", cwd=str(tmp_path)
    )
    assert (only(document)["text"], only(document)["execution_count"]) == ("[]\n", 1)
    first = only(calls.run("prelude", "print('x' * 100000)", cwd=str(tmp_path)))
    assert calls.value("prelude", f"len(output({first['id']!r}))", cwd=str(tmp_path)) == "100001"


def test_the_folder_of_the_start_is_on_the_path_whatever_the_cell_changes_to(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("here = 'yes'\n")
    assert calls.value("path", "import os, sys; os.getcwd() in sys.path", cwd=str(tmp_path)) == "True"
    assert calls.value("path", "os.chdir('/'); import beside; beside.here", cwd=str(tmp_path)) == "'yes'"


def test_modules_of_the_project_override_the_users_by_name(calls: Calls, tmp_path: Path) -> None:
    users, projects = calls.house.home / "modules", tmp_path / ".pxd" / "modules"
    users.mkdir(exist_ok=True)
    projects.mkdir(parents=True)
    for folder, text in ((users, "user"), (projects, "project")):
        (folder / "both.py").write_text(f"which = lambda: {text!r}\n")
        (folder / f"only_{text}.py").write_text(f"def of_{text}(): return {text!r}\n")
    try:
        assert (
            calls.value("modules", "which(), of_user(), of_project()", cwd=str(tmp_path))
            == "('project', 'user', 'project')"
        )
    finally:
        for path in users.iterdir():
            if path.suffix == ".py":
                path.unlink()


def test_a_broken_module_names_file_and_line_and_stops_nobody(calls: Calls, tmp_path: Path) -> None:
    module = tmp_path / ".pxd" / "modules" / "broken.py"
    module.parent.mkdir(parents=True)
    module.write_text("good = 1\nraise KeyError('in the module')\n")
    document = calls.run("broken", "1", cwd=str(tmp_path))
    assert document["status"] == "ok", document
    text = document["cells"][0]["text"]
    assert f"{module}:2: KeyError: 'in the module'" in text, text
    assert calls.value("broken", "1", cwd=str(tmp_path)) == "1", "it is told once"
    module.write_text("good = 1\n")
    assert only(calls.run("broken", "good", cwd=str(tmp_path), reset=True))["text"] == "1\n"


# -- memory ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    """A daemon whose kernels may have 150 MB for long, and 300 MB at all."""
    settings = {"PX_KERNELS__SOFT_MEMORY_MB": "150", "PX_KERNELS__HARD_MEMORY_MB": "300"}
    with house(settings) as made:
        made.start()
        yield Calls(made, str(tmp_path_factory.mktemp("tight")))


@pytest.mark.deep
def test_over_soft_memory_the_kernel_is_replaced_after_the_call_with_a_notice(tight: Calls) -> None:
    before = tight.run("soft", "mine = 1")
    assert before["notices"] == []
    document = tight.run("soft", ["big = bytearray(180 << 20); mine += 1", "mine"])
    assert [cell["status"] for cell in document["cells"]] == ["ok", "ok"], document
    assert document["cells"][1]["text"] == "2\n"
    assert document["variables"] == "lost", document
    assert any("memory" in notice for notice in document["notices"]), document["notices"]
    after = tight.run("soft", "'mine' in globals()")
    assert (only(after)["text"], after["instance"] != before["instance"]) == ("False\n", True)
    events = [item["event"] for item in tight.events(f"kernel:{after['kernel']}")]
    assert "recycled" in events, events


@pytest.mark.deep
def test_pages_that_forked_workers_share_count_once(tight: Calls) -> None:
    """Two workers forked over 60 MB of data: 300 MB if each process is counted whole, 110 MB of real memory."""
    fork = """
import os, signal
data = bytearray(60 << 20)
data[::4096] = b"x" * len(data[::4096])
ready, done = os.pipe()
workers = []
for _ in range(2):
    workers.append(os.fork())
    if workers[-1] == 0:
        os.write(done, b".")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
"""
    document = tight.run("forks", fork)
    assert (document["variables"], document["notices"]) == ("kept", []), document
    assert tight.value("forks", "len(data)") == str(60 << 20)
    tight.run("forks", "for pid in workers: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)")


@pytest.mark.parametrize("language", mostly_deep(["python", "bash"], "python"))
def test_over_hard_memory_the_cell_is_ended_and_the_limit_is_named(tight: Calls, language: str) -> None:
    eater = "held = []\nwhile True: held.append(bytearray(20 << 20))"
    code = eater if language == "python" else f"{sys.executable} -c '{eater}'"
    tight.run(f"hard-{language}", "mine = 1" if language == "python" else "true", language=language)
    document = tight.run(f"hard-{language}", code, language=language)
    cell = only(document)
    assert (cell["status"], cell["error"]["name"]) == ("error", "ResourceLimitExceeded"), cell
    assert "memory" in cell["error"]["value"], cell["error"]
    if language == "python":
        assert document["variables"] == "lost"
        assert tight.value("hard-python", "'mine' in globals()") == "False"
        died = [item for item in tight.events(f"kernel:{document['kernel']}") if item["event"] in {"died", "stopped"}]
        assert died[-1]["reason"] == "memory_limit", died
        done = tight.house.pxctl("exec", "--kernel", "hard-python", "--cwd", tight.cwd, code)
        assert done.returncode == 9, done


# -- documents ------------------------------------------------------------------------------------------------------


def test_the_documents_have_every_key_of_the_contract(calls: Calls) -> None:
    document = calls.run("keys", "print(1)")
    assert {"schema", "kernel", "cwd", "interpreter", "variables", "cells"} <= set(document)
    assert set(only(document)) >= CELL_KEYS
    listed = calls.house.get("/api/kernels")
    assert listed["schema"] == "px.kernels/1"
    assert all(set(item) >= KERNEL_KEYS for item in listed["kernels"])
    assert set(calls.show("keys")) >= KERNEL_KEYS
    (item,) = [item for item in listed["kernels"] if item["id"] == document["kernel"]]
    assert item["pid"] > 0
    assert item["rss_bytes"] > 1_000_000
    for name in ("last_used", "started_at"):
        assert item[name].endswith("Z"), item
    by_command = json.loads(calls.house.pxctl("--json", "kernel", "list").stdout)
    assert by_command["schema"] == "px.kernels/1"
    assert document["kernel"] in {item["id"] for item in by_command["kernels"]}


def test_a_kernel_is_a_unit_like_any_other(calls: Calls) -> None:
    unit = f"kernel:{calls.run('unit', '1')['kernel']}"
    (found,) = [item for item in calls.house.get("/api/status")["units"] if item["unit"] == unit]
    assert set(found) >= UNIT_KEYS, UNIT_KEYS - set(found)
    assert (found["kind"], found["state"]) == ("kernel", "idle")
    for words in (["status", unit], ["why", unit], ["logs", unit], ["events", "--unit", unit], ["stop", unit]):
        done = calls.house.pxctl("--json", *words)
        assert done.returncode == 0, (words, done)


def test_the_life_of_a_kernel_is_a_chain_of_events(calls: Calls) -> None:
    document = calls.run("chain", "1")
    unit = f"kernel:{document['kernel']}"
    calls.house.pxctl("kernel", "stop", document["kernel"])
    events = calls.events(unit)
    assert [item["event"] for item in events] == ["starting", "spawned", "ready", "stopping", "stopped"], events
    assert [item["cause"] for item in events[1:]] == [item["id"] for item in events[:-1]]
    assert (events[-1]["reason"], {item["instance"] for item in events}) == ("stopped", {document["instance"]})


def test_history_and_notebook_tell_what_was_run(calls: Calls) -> None:
    document = calls.run("past", [{"code": "print('a')", "title": "first"}, "6 * 7", "1 / 0"])
    history = calls.history("past")
    assert [(item["title"], item["code"], item["status"]) for item in history] == [
        ("first", "print('a')", "ok"),
        (None, "6 * 7", "ok"),
        (None, "1 / 0", "error"),
    ]
    assert [item["id"] for item in history] == [cell["id"] for cell in document["cells"]]
    notebook = calls.house.get("/api/kernels/past/notebook")
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert (notebook["nbformat"], len(cells)) == (4, 3)
    assert cells[1]["outputs"][0]["data"]["text/plain"] in ("42", ["42"])
