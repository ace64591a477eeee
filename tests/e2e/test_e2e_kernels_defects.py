"""D1 to D5: the known defects of earlier designs, each as a test of what is promised instead."""

from __future__ import annotations

import http.client
import json
import os
import signal
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.house import House, until
from e2e.kernel_house import (
    DIRECT,
    GATEWAY,
    HOLDS_THE_LOCK,
    begun,
    cells,
    command_lines,
    deaf_stream,
    ended,
    environment,
    events,
    kernels_house,
    output,
    row,
    run,
    value,
)
from ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.deep

FLOOD = """
import os, subprocess, sys
child = [sys.executable, "-c", "import os\\nfor fd in (1, 2) * 4: os.write(fd, b'c' * 65536)"]
for _ in range(4): os.write(1, b'o' * 65536); os.write(2, b'e' * 65536)
subprocess.run(child, check=True)
subprocess.run(child, check=True, start_new_session=True)
print('END')
"""
FLOODED = 3 * 8 * 65536
FOREIGN = "http://evil.example"


@pytest.fixture(scope="module")
def home() -> Iterator[House]:
    """One daemon, with the loopback listener, for all; made under an umask that would open everything."""
    port, before = free_port(), os.umask(0)
    # An interrupt has long enough to show itself: a kernel that this machine lets wait is not taken for a deaf one.
    patient = {"PX_KERNELS__LADDER_TERMINATE_SECONDS": "8", "PX_KERNELS__LADDER_KILL_SECONDS": "9"}
    try:
        with kernels_house(PX_API__LISTEN=f"127.0.0.1:{port}", **patient) as made:
            os.umask(before)
            yield made
    finally:
        os.umask(before)


# -- D1 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [DIRECT, GATEWAY])
def test_d1_output_that_nobody_reads_never_blocks_a_kernel(home: House, backend: str) -> None:
    """Half a megabyte to fd 1 and 2 from the cell and its children, and nobody reads the stream: the cell ends."""
    session = f"d1-{backend}"
    with deaf_stream(home, session, FLOOD, backend=backend):
        until(lambda: ended(home, session), "the cell ended though nobody read")
    last = cells(home, session)[-1]
    assert last["status"] == "ok", last
    printed = output(home, session, last["id"])
    assert printed.endswith(b"END\n")
    assert len(printed) == FLOODED + 4
    assert value(home, session, "6 * 7", backend=backend) == "42"


def test_d1_children_that_outlive_the_cell_print_on(home: House) -> None:
    """What a child prints after the end of its cell is that cell's late output."""
    go = home.home / "go-late"
    code = f"""import subprocess
subprocess.Popen("while [ ! -e {go} ]; do sleep 0.01; done; head -c 200000 /dev/zero; echo LATE", shell=True)
print("now")"""
    call = run(home, "d1-late", code)
    assert (call.ok, call.text) == (True, "now")
    go.touch()
    cell = call.cell["id"]
    until(lambda: output(home, "d1-late", cell).endswith(b"LATE\n"), "the late output is on disk")
    assert len(output(home, "d1-late", cell)) == 4 + 200000 + 5


# -- D2 -----------------------------------------------------------------------------------------------------------


def ask(
    port: int, method: str, path: str, body: str | None = None, **headers: str
) -> tuple[int, http.client.HTTPMessage]:
    """Return status and headers of one request over TCP."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        connection.request(method, path, body, {"Content-Type": "application/json", **named})
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers
    finally:
        connection.close()


UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Version": "13",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def test_d2_the_local_gateway_refuses_who_has_no_token_and_foreign_pages(home: House) -> None:
    assert run(home, "d2", "1", backend=GATEWAY).ok
    told = json.loads((home.home / "state" / "gateway" / "gateway.json").read_text())
    port = int(told["url"].rpartition(":")[2])
    with open(told["token_file"], encoding="ascii") as file:
        token = file.read().strip()
    new = '{"name": "python3"}'
    assert ask(port, "POST", "/api/kernels", new)[0] in {401, 403}
    assert ask(port, "POST", "/api/kernels", new, Origin=FOREIGN)[0] in {401, 403}
    assert ask(port, "GET", "/api/kernels")[0] in {401, 403}
    assert ask(port, "GET", "/api/kernels", Authorization="token wrong")[0] in {401, 403}
    status, headers = ask(port, "GET", "/api/kernels", Authorization=f"token {token}")
    assert status == 200
    assert headers.get("Access-Control-Allow-Origin") != "*"
    _, headers = ask(port, "OPTIONS", "/api/kernels", Origin=FOREIGN, Access_Control_Request_Method="POST")
    assert headers.get("Access-Control-Allow-Origin") not in {"*", FOREIGN}
    for stored in ("gateway.json", os.path.basename(told["token_file"])):
        assert stat.S_IMODE((home.home / "state" / "gateway" / stored).stat().st_mode) == 0o600
    assert token not in command_lines(home), "a token is in nobody's command line"
    assert (
        value(home, "d2", f"any({token!r} in v for v in __import__('os').environ.values())", backend=GATEWAY) == "False"
    )


def tokens(home: House) -> list[Path]:
    """Return the files of our own tokens; folders of kernels may go while we look."""
    found = [Path(folder, name) for folder, _, names in os.walk(home.home) for name in names if "token" in name]
    return [path for path in found if "gateway" not in path.parts]


def test_d2_our_loopback_listener_refuses_who_has_no_token_and_foreign_pages(home: House) -> None:
    assert run(home, "d2-own", "secret = 1").ok
    port = int(home.settings["PX_API__LISTEN"].rpartition(":")[2])
    mine = until(lambda: tokens(home), "there is a token file")
    assert [stat.S_IMODE(path.stat().st_mode) for path in mine] == [0o600], mine
    word = mine[0].read_text(encoding="ascii").strip()
    kernel = row(home, "d2-own")
    routes = ("/api/kernels", "/px/api/kernels", f"/api/kernels/{kernel['jupyter_id']}", "/jupyter/api/kernels")
    for path in routes:
        assert ask(port, "GET", path)[0] in {401, 403}, path
        assert ask(port, "GET", path, Authorization="token wrong")[0] in {401, 403}, path
        assert ask(port, "GET", path, Authorization=f"token {word}")[0] == 200, path
        assert ask(port, "GET", path, Authorization=f"token {word}", Origin=FOREIGN)[0] == 403, path
        assert ask(port, "GET", path, Authorization=f"token {word}", Host="evil.example")[0] in {400, 403, 421}, path
    run_it = f"/px/api/kernels/{kernel['id']}/execute"
    assert ask(port, "POST", run_it, '{"code": "secret = 2"}', Origin=FOREIGN)[0] in {401, 403}
    assert ask(port, "POST", f"{run_it}?token={word}", '{"code": "secret = 2"}', Origin=FOREIGN)[0] in {401, 403}
    channels = f"/api/kernels/{kernel['jupyter_id']}/channels"
    assert ask(port, "GET", channels, **UPGRADE)[0] in {401, 403}
    assert ask(port, "GET", f"{channels}?token={word}", Origin=FOREIGN, **UPGRADE)[0] == 403
    assert value(home, "d2-own", "secret") == "1"


# -- D3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [DIRECT, GATEWAY])
def test_d3_two_projects_get_their_own_interpreters(home: House, short_tmp: Path, backend: str) -> None:
    """Each kernel runs the environment of its own folder, and that environment's commands come first on PATH."""
    who = """import os, shutil, sys
print(sys.prefix, shutil.which('python'), os.environ.get('VIRTUAL_ENV'), os.getcwd(), sep='|')"""
    for name in ("one", "two"):
        project = short_tmp / name
        environment(project / ".venv")
        call = run(home, "d3", who, cwd=str(project), backend=backend)
        assert call.ok, call.document
        found = str(project / ".venv")
        assert call.text == f"{found}|{found}/bin/python|{found}|{project}"
        assert call["interpreter"].startswith(f"{found}/bin/python")
    kernels = [k for k in home.get("/api/kernels")["kernels"] if k["name"] == "d3"]
    assert len({k["id"] for k in kernels}) == len(kernels) >= 2
    for kernel in kernels:
        home.request("DELETE", f"/api/kernels/{kernel['id']}")


# -- D4 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [DIRECT, GATEWAY])
def test_d4_a_kernels_death_ends_its_cell_at_once_and_the_loss_is_told(home: House, backend: str) -> None:
    """No wait for the call's time, and no kernel that comes back empty as if nothing had been."""
    session = f"d4-{backend}"
    pid = int(value(home, session, "__import__('os').getpid()", backend=backend))
    assert run(home, session, "x = 1", backend=backend).ok
    later = begun(home, session, "import time; time.sleep(1000)", home.home / "d4", backend=backend)
    struck = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    call = later.result()  # its own time is 55 s, and then it would have timed out
    print(f"{backend}: told {time.monotonic() - struck:.3f} s after the death")
    assert (call["status"], call["variables"]) == ("error", "lost"), call.document
    assert "lost" in call["message"]
    assert call.cell["error"]["name"] == "KernelDied"
    again = run(home, session, "x", backend=backend)
    assert again.cell["error"]["name"] == "NameError"
    assert "variables are gone" in again.told
    assert [e for e in events(home, session) if e["event"] == "died"]


# -- D5 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "variables"),
    [
        ("import time; time.sleep(1000)", "kept"),
        ("import asyncio; await asyncio.sleep(1000)", "kept"),
        (HOLDS_THE_LOCK, "lost"),
        ("import time\nwhile True:\n    try: time.sleep(1000)\n    except KeyboardInterrupt: pass", "lost"),
    ],
    ids=["sleep", "await", "C", "swallows"],
)
def test_d5_the_next_cell_does_not_queue_behind_one_that_ran_out_of_time(
    home: House, code: str, variables: str
) -> None:
    """A timed out call has ended when it answers: what follows runs at once, and what it finds was told before."""
    mark = home.home / "d5"
    for seconds in (1, 5, 25):  # on a busy machine the time may be over before the code has begun
        mark.unlink(missing_ok=True)
        assert run(home, "d5", "x = 1").ok
        call = run(home, "d5", f"open({str(mark)!r}, 'w').close()\n{code}", timeout=seconds)
        if mark.exists():
            break
    assert (call["status"], call["variables"]) == ("timed_out", variables), call.document
    assert call.cell["steps"], "the rungs are told"
    assert row(home, "d5")["running"] is None
    again = run(home, "d5", "x")
    assert again["status"] == ("ok" if variables == "kept" else "error"), again.document
    assert ("variables are gone" in again.told) == (variables == "lost")


def test_a_cell_that_calls_its_own_session_is_refused(home: House) -> None:
    """It would wait for itself for ever."""
    code = f"""import subprocess
call = ["pxctl", "exec", "--kernel", "own", "--cwd", {str(home.home)!r}, "1"]
print(subprocess.run(call, capture_output=True, text=True).returncode)"""
    assert run(home, "own", code).text == "8"
