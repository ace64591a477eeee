"""What users, programs and cells do wrong, and what strangers try: a clear error each time, and
nobody else notices.

The tests named d1 to d11, here and elsewhere, are about the known defects of earlier designs.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.house import alive, house, marked, until
from e2e.kernel_house import GATEWAY, Call, Calls, environment, gateways, kernels_house, waits_for

EMPTY_NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
LADDER = {"PX_KERNELS__LADDER_TERMINATE_SECONDS": "8", "PX_KERNELS__LADDER_KILL_SECONDS": "9"}
FOREIGN = "http://evil.example"


@pytest.fixture(scope="module")
def calls() -> Iterator[Calls]:
    """The daemon; `other` was never touched."""
    with kernels_house(LADDER) as made:
        made.run("other", "keep = 42")
        pid = made.show("other")["pid"]
        yield made
        assert (made.value("other", "keep"), made.show("other")["pid"]) == ("42", pid)


# -- requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({}, ""),
        ({"code": "1", "cells": []}, ""),
        ({"cells": [{"code": "1", "titel": "x"}]}, "/cells/0/titel"),
        ({"script": ""}, "/script"),
        ({"notebook": json.dumps(EMPTY_NOTEBOOK)}, "/notebook"),
        ({"code": "1", "cwd": "relative"}, "/cwd"),
        ({"code": "1", "cwd": "/no/such/place"}, "/cwd"),
        ({"code": "1", "cwd": "/etc/passwd"}, "/cwd"),
        ({"code": "1", "cwd": "/tmp\0x"}, "/cwd"),
        ({"code": "1", "cwd": "/" + "x" * 5000}, "/cwd"),
        ({"code": "1", "timeout": 10**400}, "/timeout"),
        ({"code": "1", "interpreter": "/no/python"}, "/interpreter"),
        ({"code": "1", "interpreter": "/bin/false"}, "/interpreter"),
        ({"code": "1", "kernelspec": "../../x"}, "/kernelspec"),
    ],
    ids=lambda told: repr(told)[:48],
)
def test_a_member_that_does_not_fit_is_named_by_its_pointer(
    calls: Calls, members: dict[str, Any], pointer: str
) -> None:
    answer = calls.house.request(
        "POST", "/api/kernels/unfit/execute", {"cwd": calls.cwd, **members}
    )
    problem = answer.refused(422, "invalid_input")
    assert [error["pointer"] for error in problem["errors"]] == [pointer], problem
    assert len(problem["detail"]) < 500, "nobody wants to read it all back"
    assert "unfit" not in calls.known()


@pytest.mark.parametrize("name", ["..", "a%2Fb", "..%2F..%2Fetc", "-a", "a%00b", "%FF", "x" * 65])
def test_a_name_that_is_no_name_is_refused_everywhere(calls: Calls, name: str) -> None:
    calls.ask(name, "1").refused(422, "invalid_input")
    paths = [("GET", name), ("DELETE", name), ("POST", f"{name}/restart"), ("GET", f"{name}/cells")]
    for method, path in (
        *paths,
        ("GET", f"other/cells/{name}/output"),
        ("GET", f"other/artifacts/{name}"),
    ):
        answer = calls.house.request(method, f"/api/kernels/{path}")
        assert answer.status in {400, 404, 422}, (method, path, answer.body)


@pytest.mark.parametrize(
    ("args", "code", "word"),
    [
        (("exec", "--kernelspec", "nosuch", "1"), 2, "nosuch"),
        (("exec", "--kernel", "../x", "1"), 2, "../x"),
        (("exec", "--bash", "--interpreter", "python3", "1"), 2, "bash"),
        (("exec", "-f", "/no/such/file.py"), 2, "/no/such/file.py"),
        (("kernel", "stop", "nosuch"), 4, "nosuch"),
        (("exec", "input('name?')"), 1, "which cells cannot get here"),
    ],
    ids=lambda told: repr(told)[:40],
)
def test_pxctl_exits_as_promised_and_says_why(
    calls: Calls, args: tuple[str, ...], code: int, word: str
) -> None:
    done = calls.house.pxctl(*args)
    assert (done.returncode, word.lower() in done.stderr.lower()) == (code, True), done
    assert "Traceback (most recent call last):\n  File" not in done.stderr, "no traceback of ours"
    assert ("\nhint: " in done.stderr) == (code != 1), "a failed cell tells its error itself"


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"\xff\xfe\x00", "UTF-8"),
        (b'{"nbformat": 4,\n  oops}', "line 2 column 3"),
        (b"[" * 200_000, "recursion"),
        (b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": {}}', "/cells: "),
        (
            json.dumps(
                {**EMPTY_NOTEBOOK, "cells": [{"cell_type": "code", "metadata": {}}]}
            ).encode(),
            "source",
        ),
        (b'{"nbformat": 5, "nbformat_minor": 0, "metadata": {}, "cells": []}', "nbformat is 5"),
    ],
    ids=["bytes", "text", "deep", "cells", "no source", "new"],
)
def test_a_notebook_that_is_none_exits_2_and_stays_as_it_was(
    calls: Calls, tmp_path: Path, content: bytes, place: str
) -> None:
    bad = tmp_path / "bad.ipynb"
    bad.write_bytes(content)
    done = calls.house.pxctl("exec", "-o", str(bad), "-f", str(bad))
    assert (done.returncode, place in done.stderr, "hint: " in done.stderr) == (2, True, True), done
    assert bad.read_bytes() == content


# -- interpreters, kernelspecs, folders ------------------------------------------------------------


def test_an_interpreter_or_folder_that_is_gone_since_is_told_and_none_is_taken_in_silence(
    calls: Calls, short_tmp: Path
) -> None:
    folder = short_tmp / "work"
    python, cwd = str(environment(folder / ".venv")), str(folder)
    calls.run("dies", "x = 7", interpreter=python, cwd=cwd)
    by_id = f"/api/kernels/{calls.show('dies')['id']}/execute"
    shutil.rmtree(folder)
    gone = calls.ask("dies", "x", interpreter=python, cwd=cwd).refused(422, "invalid_input")
    assert (gone["errors"][0]["pointer"], cwd in gone["detail"]) == ("/cwd", True)
    assert Call(**vars(calls.house.request("POST", by_id, {"code": "x"}))).text == "7"
    calls.end("dies")
    for _ in range(2):
        answer = calls.house.request("POST", by_id, {"code": "x"})
        assert (answer.status in {422, 503}, cwd in answer.json()["detail"]) == (True, True), (
            answer.body
        )
        folder.mkdir(exist_ok=True)
    gone = calls.ask("dies", "x", interpreter=python, cwd=cwd).refused(422, "invalid_input")
    assert python in gone["detail"]


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"argv": ["/no/such/kernel", "{connection_file}"]}, "/no/such/kernel"),
        (
            {
                "argv": [
                    sys.executable,
                    "-c",
                    "import sys; sys.exit('my own words')",
                    "{connection_file}",
                ]
            },
            "my own words",
        ),
        ({"argv": [sys.executable, "-c", "pass"]}, "connection_file"),
        ({"argv": []}, "argv"),
    ],
    ids=["missing", "exits", "no connection file", "empty"],
)
def test_a_kernelspec_that_cannot_start_says_why_and_takes_no_other_down(
    calls: Calls, spec: Any, word: str
) -> None:
    fine = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    for name, told in (("broken", spec), ("fine", {"argv": fine})):
        file = Path(calls.cwd, "jupyter", "kernels", name, "kernel.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"display_name": name, "language": "python", **told}))
    call = calls.ask("broken-spec", "1", kernelspec="broken")
    found = (call.status in {422, 503}, word in json.dumps(call.document), bool(call["hint"]))
    assert found == (True, True, True), call
    assert "fine" in calls.house.get("/api/kernelspecs")["kernelspecs"]


# -- strangers -------------------------------------------------------------------------------------


def ask(port: str, method: str, **headers: str) -> tuple[int, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    body = '{"name": "python3"}' if method == "POST" else None
    connection.request(method, "/api/kernels", body, {"Content-Type": "application/json", **named})
    with connection.getresponse() as answer:
        answer.read()
    connection.close()
    return answer.status, answer.headers


@pytest.mark.deep
def test_d2_the_local_gateway_refuses_who_has_no_token_and_foreign_pages(calls: Calls) -> None:
    calls.run("d2", "1", backend=GATEWAY)
    (known,) = gateways(calls.house).values()
    port, token = (
        re.findall(f"{name}=([^\0]+)", known)[0]
        for name in ("KernelGatewayApp.port", "KG_AUTH_TOKEN")
    )
    wrong: tuple[dict[str, str], ...] = ({}, {"Origin": FOREIGN}, {"Authorization": "token wrong"})
    assert {ask(port, method, **headers)[0] for method in ("GET", "POST") for headers in wrong} <= {
        401,
        403,
    }
    status, headers = ask(port, "GET", Authorization=f"token {token}")
    assert (status, headers.get("Access-Control-Allow-Origin") != "*") == (200, True)
    _, headers = ask(port, "OPTIONS", Origin=FOREIGN, Access_Control_Request_Method="POST")
    assert headers.get("Access-Control-Allow-Origin") not in {"*", FOREIGN}
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in marked(calls.house.daemon_id)]
    assert not [line for line in lines if token.encode() in line], (
        "a token is in nobody's command line"
    )
    code = f"any({token!r} in value for value in __import__('os').environ.values())"
    assert calls.value("d2", code, backend=GATEWAY) == "False"


@pytest.mark.deep
def test_d3_two_projects_behind_one_gateway_get_their_own_interpreters(
    calls: Calls, short_tmp: Path
) -> None:
    """Each kernel runs the environment of its own folder, and that environment's commands come
    first on PATH.
    """
    code = (
        "import os, shutil, sys\nprint(sys.prefix, shutil.which('python'), "
        "os.environ['VIRTUAL_ENV'], os.getcwd())"
    )
    for project in (short_tmp / "one", short_tmp / "two"):
        found = project / ".venv"
        environment(found)
        call = calls.run("d3", code, cwd=str(project), backend=GATEWAY)
        assert call.text == f"{found} {found}/bin/python {found} {project}"
        assert call["interpreter"].startswith(f"{found}/bin/python")
        assert calls.house.request("DELETE", f"/api/kernels/{call['kernel']}").status == 200


STRANGER = """import os, socket, sys
connection, cells, pxd = sys.argv[1:]
for path in (connection, cells):
    try: os.listdir(path) if os.path.isdir(path) else open(path).read()
    except PermissionError: continue
    sys.exit(f"read {path}")
for path in [pxd, connection.replace("connection.json", "ipc-1")]:
    try: socket.socket(socket.AF_UNIX).connect(path)
    except PermissionError: continue
    except FileNotFoundError: sys.exit(f"sees that {path} is not there")
    sys.exit(f"talks to {path}")
"""


@pytest.mark.deep
def test_d10_another_user_is_refused(calls: Calls, require_root: None) -> None:
    """Neither the connection file, nor the sockets, nor the cells' output.

    Under any umask: test_e2e_api.py.
    """
    calls.run("d10-other", "print('private')")
    places = [
        calls.show("d10-other")["connection_file"],
        calls.house.home / "state" / "cells",
        calls.house.socket,
    ]
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    done = subprocess.run(
        [python, "-c", STRANGER, *places], capture_output=True, text=True, check=False, **nobody
    )
    assert done.returncode == 0, done.stderr


# -- cells gone wild -------------------------------------------------------------------------------


@pytest.mark.deep
def test_d6_running_out_of_descriptors_touches_no_busy_session(tmp_path: Path) -> None:
    """The start is refused in clear words, or one idle session makes room; the busy one goes on,
    the daemon too.
    """
    with house({"PX_DAEMON__ZYGOTES": "0"}, start=True) as home:
        calls = Calls(home)
        later = calls.begun("busy", waits_for(tmp_path / "go", "x = 1; print('END')"))
        calls.run("idle", "x = 1")
        pid, before = calls.show("busy")["pid"], {}
        for each in home.pids():  # a few descriptors more than it has
            used = max(int(fd) for fd in os.listdir(f"/proc/{each}/fd"))
            before[each] = resource.prlimit(each, resource.RLIMIT_NOFILE)
            resource.prlimit(each, resource.RLIMIT_NOFILE, (used + 4, before[each][1]))
        new = [calls.ask(f"new{n}", "1") for n in range(3)]
        failed = [call for call in new if not call.ok]
        assert failed, "the limit was met"
        for call in failed:
            told = "open files" in call.told or "descriptor" in call.told
            assert (call.status in {429, 503}, told, bool(call["hint"])) == (True, True, True), call
        for each, limits in before.items():
            resource.prlimit(each, resource.RLIMIT_NOFILE, limits)
        (tmp_path / "go").touch()
        assert (later.result().text, calls.show("busy")["pid"], calls.value("busy", "x")) == (
            "END",
            pid,
            "1",
        )
        assert calls.run("after", "1").ok


# A bomb of a bounded size, which sheds root first: no limit of processes binds root.
BOMB = """
import os, signal
reader, writer = os.pipe()
if os.fork() == 0:
    os.setgroups([]); os.setresgid(64321, 64321, 64321); os.setresuid(64321, 64321, 64321)
    try:
        for made in range(400):
            os.fork() or os._exit(signal.pause() or 0)
    except OSError as error:
        os.write(writer, f"{made} {error.strerror}".encode())
    os.close(writer)
    os._exit(signal.pause() or 0)
os.close(writer)
print(os.read(reader, 1000).decode())
"""


@pytest.mark.deep
def test_a_fork_bomb_meets_the_limit_of_processes(require_root: None) -> None:
    with kernels_house(PX_KERNELS__PROCESSES="40") as calls:
        calls.run("beside", "keep = 1")
        made, _, why = calls.value("bomb", BOMB).partition(" ")
        assert (int(made) < 40, "temporarily unavailable" in why) == (True, True), "the limit binds"
        calls.end("bomb")
        assert not [
            it.pid
            for it in psutil.process_iter(["uids"])
            if it.info["uids"].real == 64321 and alive(it.pid)
        ]
        assert calls.value("beside", "keep") == "1"


@pytest.mark.deep
def test_a_kernel_that_was_stopped_by_a_signal_is_named_at_once_and_keeps_its_variables(
    calls: Calls,
) -> None:
    calls.run("still", "x = 41")
    pid = calls.show("still")["pid"]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: ") T " in Path(f"/proc/{pid}/stat").read_text(), "it has stopped")
    call = calls.ask("still", "x + 1")
    assert (call.status, str(pid) in call.told, "kill -CONT" in call["hint"]) == (
        409,
        True,
        True,
    ), call
    os.kill(pid, signal.SIGCONT)
    assert calls.value("still", "x + 1") == "42"
