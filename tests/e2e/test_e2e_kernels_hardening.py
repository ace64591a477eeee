"""What would harm a kernel or its neighbours, and does not: readers that do not read, strangers, cells gone wild.

D1 to D11 are the known defects of earlier designs. Of `home` every test ends with a look at a second session: it keeps
its process and its variables.
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.house import House, alive, house, marked, until, written_pid
from e2e.kernel_house import (
    DIRECT,
    GATEWAY,
    HOLDS_THE_LOCK,
    QUICK,
    Calls,
    begun,
    cells,
    command_lines,
    ended,
    environment,
    kernels_house,
    output,
    row,
    run,
    value,
)
from ports import free_port

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
def served() -> Iterator[House]:
    """One daemon, with the loopback listener, for all; made under an umask that would open everything."""
    port, before = free_port(), os.umask(0)
    # An interrupt has long enough to show itself: a kernel that this machine lets wait is not taken for a deaf one.
    patient = {"PX_KERNELS__LADDER_TERMINATE_SECONDS": "8", "PX_KERNELS__LADDER_KILL_SECONDS": "9"}
    try:
        with kernels_house(PX_API__LISTEN=f"127.0.0.1:{port}", **patient) as made:
            os.umask(before)
            assert run(made, "other", "keep = 42").ok
            yield made
    finally:
        os.umask(before)


@pytest.fixture
def home(served: House) -> Iterator[House]:
    """The house, and afterwards proof that the session beside the test's own was not touched."""
    pid = row(served, "other")["pid"]
    yield served
    assert (value(served, "other", "keep"), row(served, "other")["pid"]) == ("42", pid)


# -- D1 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [DIRECT, GATEWAY])
def test_d1_output_that_nobody_reads_never_blocks_a_kernel(home: House, backend: str) -> None:
    """Half a megabyte to fd 1 and 2 from the cell and its children, and nobody reads the stream: the cell ends."""
    session = f"d1-{backend}"
    with Calls(home, str(home.home)).stream(session, FLOOD, timeout=60, backend=backend):
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


# -- D3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [GATEWAY])
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


# -- D6 -----------------------------------------------------------------------------------------------------------


def test_d6_running_out_of_descriptors_touches_no_busy_session() -> None:
    """The start is refused in clear words, or one idle session makes room; the busy one goes on, the daemon too."""
    with house({**QUICK, "PX_KERNELS__SPARES": "0"}) as home:  # one that begins takes some and gives them back
        home.start()
        go = home.home / "go"
        waits = f"x = 1\nimport os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('END')"
        later = begun(home, "busy", waits, home.home / "m")
        assert run(home, "idle", "x = 1").ok
        pid = row(home, "busy")["pid"]
        lowered = [limit_files(each) for each in home.pids()]
        calls = [run(home, f"new{n}", "1") for n in range(3)]
        for call in calls:
            if not call.ok:
                assert call.status in {429, 503}, call.document
                assert "open files" in call.told or "descriptor" in call.told, call.document
                assert call.document["hint"]
        assert not all(call.ok for call in calls), "the limit was met"
        for each, limits in zip(home.pids(), lowered, strict=True):
            resource.prlimit(each, resource.RLIMIT_NOFILE, limits)
        assert row(home, "busy")["pid"] == pid
        go.touch()
        assert (later.result().ok, later.result().text) == (True, "END")
        assert (row(home, "busy")["pid"], value(home, "busy", "x")) == (pid, "1")
        assert run(home, "after", "1").ok


def limit_files(pid: int) -> tuple[int, int]:
    """Leave a process a few descriptors more than it has; return its limits."""
    used = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd"))
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 4, before[1]))
    return before


# -- D7 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [GATEWAY])
def test_d7_kernels_of_a_crashed_daemon_do_not_live_on(backend: str) -> None:
    """Keeper and brain killed at once; the kernel holds the GIL, its child sits in a session of its own."""
    with house(QUICK) as home:
        home.start()
        code = f"""import subprocess
open({str(home.home / "child")!r}, "w").write(str(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid))
{HOLDS_THE_LOCK}"""
        later = begun(home, "d7", code, home.home / "d7", backend=backend)
        child = written_pid(home.home / "child")
        for pid in home.pids():
            os.kill(pid, signal.SIGKILL)
        later.cut_off()
        assert home.process is not None
        home.process.wait(30)
        left = [child, *marked(home.daemon_id)]
        home.start()
        assert not [pid for pid in left if alive(pid)]
        assert row(home, "d7")["pid"] is None
        assert run(home, "d7", "1", backend=backend).ok


# -- D10 ----------------------------------------------------------------------------------------------------------


def test_d10_another_user_is_refused(home: House, require_root: None) -> None:
    """Neither the connection file, nor the sockets, nor the cells' output, whatever the umask was."""
    assert run(home, "d10-other", "print('private')").ok
    kernel = row(home, "d10-other")
    connection = kernel["connection_file"]
    code = """import os, socket, sys
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
    stranger = subprocess.run(
        [
            "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable,
            "-c",
            code,
            connection,
            str(home.home / "state" / "cells"),
            home.socket,
        ],
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert stranger.returncode == 0, stranger.stderr


# -- cells gone wild ----------------------------------------------------------------------------------------------


def test_a_fork_bomb_meets_the_limit_of_processes(home: House, require_root: None) -> None:
    """The bomb is one of a bounded size, and sheds root first: no limit of processes binds root."""
    with kernels_house(PX_KERNELS__PROCESSES="40") as limited:
        assert run(limited, "beside", "keep = 1").ok
        code = """
import os, signal, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setgroups([]); os.setresgid(64321, 64321, 64321); os.setresuid(64321, 64321, 64321)
    made = 0
    try:
        while made < 400:
            if os.fork() == 0:
                while True: time.sleep(1000)
            made += 1
    except OSError as error:
        os.write(writer, f"{made} {error.strerror}".encode())
    os.close(writer)
    while True: time.sleep(1000)
os.close(writer)
print(os.read(reader, 1000).decode())
"""
        call = run(limited, "bomb", code)
        assert call.ok, call.document
        made, _, why = call.text.partition(" ")
        assert int(made) < 40, "the limit binds"
        assert "temporarily unavailable" in why
        pid = row(limited, "bomb")["pid"]
        assert limited.pxctl("kernel", "stop", row(limited, "bomb")["id"]).returncode == 0
        assert not alive(pid)
        left = [p for p in os.listdir("/proc") if p.isdigit() and owner(p) == 64321 and alive(int(p))]
        assert not left, "none of the bomb is left"
        assert value(limited, "beside", "keep") == "1"


def owner(pid: str) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def test_input_is_answered_with_a_clear_failure(home: House) -> None:
    """Nobody waits for somebody to type, also not in a shell cell or in a child."""
    call = run(home, "asks", "name = input('name?')")
    assert (call["status"], call["variables"]) == ("error", "kept")
    assert "input" in call["message"]
    assert run(home, "asks", "import getpass; getpass.getpass()")["status"] == "error"
    child = "import subprocess; subprocess.run('read line; echo got:$line', shell=True)"
    assert run(home, "asks", child).text.startswith("got:")
    assert run(home, "asks", 'read line; echo "got:$line"', language="bash").text == "got:"


@pytest.mark.parametrize(
    "code",
    [
        "import sys, io; sys.stdout = io.StringIO(); sys.stderr = None; print('away')",
        "import os; os.close(1); os.close(2)",
        "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
        "import os; os.chdir('/'); os.environ.clear()",
        "import sys; sys.path[:] = []; sys.modules.clear()",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "import builtins; builtins.print = None; builtins.open = None",
        "get_ipython().display_formatter = None",
        "import threading, time; [threading.Thread(target=time.sleep, args=(1000,)).start() for _ in range(20)]",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    ],
    ids=lambda code: code[:40],
)
def test_a_cell_that_ruins_its_own_kernel_is_answered_and_reset_repairs_it(home: House, code: str) -> None:
    run(home, "ruins", "1")
    call = run(home, "ruins", f"x = 1\n{code}", timeout=5)
    assert call.status == 200, call.document
    again = run(home, "ruins", "print('well')", reset=True)
    assert (again.ok, again.text) == (True, "well"), again.document


def test_a_cell_that_deletes_the_cells_folder(home: House) -> None:
    """Its own output may be gone, and then that is told; whatever is printed from then on is kept again."""
    folder = home.home / "state" / "cells"
    call = run(home, "deletes", f"import shutil; shutil.rmtree({str(folder)!r}); print('x' * 10)")
    assert call.status == 200
    assert call.text == "x" * 10 or call.cell["lossy"] or call.cell["notices"], call.document
    assert run(home, "deletes", "print('again')").text == "again"
    assert run(home, "other", "print('mine')").text == "mine", "other sessions print on"
    assert run(home, "deletes-new", "print('new')").text == "new"


def test_megabytes_of_code_run_and_sixteen_are_refused(home: House) -> None:
    assert run(home, "huge", f"x = '''{'y' * 2_000_000}'''; print(len(x))").text == "2000000"
    body = b'{"code": "' + b"y" * 17 * 2**20 + b'"}'
    answer = home.request("POST", "/api/kernels/huge/execute", body)
    assert (answer.status, answer.json()["limit_bytes"], bool(answer.json()["hint"])) == (413, 16 * 2**20, True)


def test_nothing_of_a_call_is_in_a_command_line(home: House) -> None:
    """Code may hold secrets: other users can read command lines."""
    run(home, "secret", "password = 'hunter2hunter2'")
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "hunter2hunter2" not in listed


def test_a_kernel_that_was_stopped_by_a_signal_is_named_at_once_and_keeps_its_variables(home: House) -> None:
    assert run(home, "still", "x = 41").ok
    pid = row(home, "still")["pid"]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: ") T " in Path(f"/proc/{pid}/stat").read_text(), "it has stopped")
    call = run(home, "still", "x + 1", timeout=60)
    assert (call.status, str(pid) in call.told, "kill -CONT" in call.document["hint"]) == (409, True, True), (
        call.document
    )
    os.kill(pid, signal.SIGCONT)
    assert value(home, "still", "x + 1") == "42"
