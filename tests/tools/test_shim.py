"""The shim, alone: real servers take the handed-over socket, over several lives, with requests sent before each."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.house import Later
from rounds import mostly_deep
from waiting import PATIENCE

SHIM = Path(__file__).parents[2] / "supervisord_py" / "tools" / "shim.py"
CHILDREN = Path(__file__).parent / "children"
SERVERS = ("http.server", "asyncio", "uvloop", "hypercorn", "flask")  # the second and third of uvicorn


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A socket as the daemon makes one for a tool."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


@contextmanager
def child(
    listening: socket.socket, program: str, *arguments: str, cwd: Path, **env: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a program under the shim, with the socket as descriptor of the same number."""
    fd, port = str(listening.fileno()), str(port_of(listening))
    argv = [sys.executable, str(SHIM), "--px-fd", fd, "--px-port", port, "--", program, *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, pass_fds=[int(fd)], env={**os.environ, **env}, cwd=cwd, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(port: int, value: Any) -> Any:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as client:
        client.request("POST", "/run", json.dumps(value), {"Content-Type": "application/json"})
        return json.loads(client.getresponse().read())["echo"]


@pytest.mark.parametrize("server", mostly_deep(SERVERS, "http.server", "asyncio", "hypercorn", "flask"))
def test_a_request_sent_before_the_child_exists_is_answered(listening: socket.socket, server: str) -> None:
    folder, port = CHILDREN / ("shapes" if server == "http.server" else "servers"), port_of(listening)
    for life in range(2):
        early = Later(lambda life=life: ask(port, {"n": life}))
        with child(listening, "main.py", "--port", str(port), cwd=folder, SERVER=server):
            assert early.result() == {"n": life}
            assert ask(port, {"n": "again"}) == {"n": "again"}


def output(listening: socket.socket, tmp_path: Path, text: str) -> Any:
    """Run a program of these lines to its end, and return the JSON that it printed."""
    (tmp_path / "main.py").write_text(textwrap.dedent(text))
    with child(listening, "main.py", cwd=tmp_path) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return json.loads(out)


@pytest.mark.parametrize("timeout", [None, 0.0, 7.5])
def test_the_mode_that_was_asked_for_is_set_again(
    listening: socket.socket, tmp_path: Path, timeout: float | None
) -> None:
    """The status flags are shared with every other holder: another mode may have been left behind."""
    listening.setblocking(timeout is None)
    text = f"""
        import fcntl, json, os, socket
        sock = socket.socket()
        sock.settimeout({timeout})
        sock.bind(("127.0.0.1", {port_of(listening)}))
        sock.listen(5)
        blocking = not fcntl.fcntl(sock, fcntl.F_GETFL) & os.O_NONBLOCK
        print(json.dumps([sock.gettimeout(), blocking, sock.getsockname()[1], sock.get_inheritable()]))
    """
    assert output(listening, tmp_path, text) == [timeout, timeout is None, port_of(listening), False]


def test_other_sockets_are_left_alone_and_ours_ends_at_exec(listening: socket.socket, tmp_path: Path) -> None:
    text = f"""
        import json, os, socket, subprocess, sys
        port = {port_of(listening)}
        other, datagram, path = socket.socket(), socket.socket(type=socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX)
        other.bind(("127.0.0.1", 0))
        other.listen()
        datagram.bind(("127.0.0.1", port))
        path.bind("socket")
        client = socket.create_connection(other.getsockname())
        accepted, _ = other.accept()
        code = "import os; print(os.path.exists('/proc/self/fd/%s'))" % {listening.fileno()}
        there = subprocess.run([sys.executable, "-c", code], close_fds=False, capture_output=True, text=True).stdout
        bound = [other.getsockname()[1] != port, datagram.getsockname()[1] == port, path.getsockname()]
        print(json.dumps([*bound, there.strip()]))
    """
    assert output(listening, tmp_path, text) == [True, True, "socket", "False"]


def test_an_exception_of_the_program_is_shown_as_its_own(listening: socket.socket, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("\nraise ValueError('mine')\n")
    with child(listening, "main.py", cwd=tmp_path) as process:
        _, err = process.communicate(timeout=PATIENCE)
    shown = ['File "main.py", line 2, in <module>' in err, "ValueError: mine" in err, "shim.py" in err]
    assert (process.returncode, shown) == (1, [True, True, False])
