"""The shim, alone: real servers take the handed-over socket, over several lives, with requests sent before each."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rounds import mostly_deep

SHIM = Path(__file__).parents[2] / "supervisord_py" / "tools" / "shim.py"
CHILDREN = Path(__file__).parent / "children"
PATIENCE = 60.0
SERVERS = ("http.server", "asyncio", "uvloop", "hypercorn", "aiohttp", "flask")  # the second and third of uvicorn


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A socket as the daemon makes one for a tool."""
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind(("127.0.0.1", 0))
        sock.listen(128)
        yield sock


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


@contextmanager
def child(
    listening: socket.socket,
    program: Path | str,
    *arguments: str,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Run a program under the shim, with the socket as descriptor of the same number."""
    fd, port = listening.fileno(), port_of(listening)
    argv = [sys.executable, str(SHIM), "--px-fd", str(fd), "--px-port", str(port), "--", str(program), *arguments]
    process = subprocess.Popen(
        argv,
        pass_fds=[fd],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def ask(port: int, value: Any) -> Any:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        client.request("POST", "/run", json.dumps(value), {"Content-Type": "application/json"})
        return json.loads(client.getresponse().read())
    finally:
        client.close()


def ask_into(answers: list[Any], port: int, value: Any) -> None:
    answers.append(ask(port, value))


@pytest.mark.parametrize("server", mostly_deep(SERVERS, "http.server", "asyncio", "hypercorn", "flask"))
def test_a_request_sent_before_the_child_exists_is_answered(listening: socket.socket, server: str) -> None:
    folder = CHILDREN / ("shapes" if server == "http.server" else "servers")
    options: dict[str, Any] = {"cwd": folder, "env": {"SERVER": server}}
    pids = set()
    for cycle in range(2):
        answers: list[Any] = []
        early = threading.Thread(target=ask_into, args=(answers, port_of(listening), {"n": cycle}))
        early.start()
        with child(listening, "main.py", "--port", str(port_of(listening)), **options) as process:
            early.join(PATIENCE)
            assert answers[0]["echo"] == {"n": cycle}
            assert ask(port_of(listening), {"n": "again"})["echo"] == {"n": "again"}
            pids.add(process.pid)
    assert len(pids) == 2


def output(listening: socket.socket, tmp_path: Path, text: str, *arguments: str, **options: Any) -> Any:
    """Run a program of these lines to its end, and return the JSON that it printed."""
    program = tmp_path / "main.py"
    program.write_text(textwrap.dedent(text))
    with child(listening, program, *arguments, **options) as process:
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


def test_other_sockets_are_left_alone(listening: socket.socket, tmp_path: Path) -> None:
    text = f"""
        import json, socket
        port = {port_of(listening)}
        other, datagram, path = socket.socket(), socket.socket(type=socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX)
        other.bind(("127.0.0.1", 0))
        other.listen()
        datagram.bind(("127.0.0.1", port))
        path.bind("socket")
        client = socket.create_connection(other.getsockname())
        accepted, _ = other.accept()
        print(json.dumps([other.getsockname()[1] != port, datagram.getsockname()[1] == port, path.getsockname()]))
    """
    assert output(listening, tmp_path, text, cwd=tmp_path) == [True, True, "socket"]


def test_the_descriptor_does_not_survive_exec(listening: socket.socket, tmp_path: Path) -> None:
    text = f"""
        import json, os, subprocess, sys
        code = "import os, sys; print(os.path.exists('/proc/self/fd/%s'))" % {listening.fileno()}
        done = subprocess.run([sys.executable, "-c", code], close_fds=False, capture_output=True, text=True)
        print(json.dumps(done.stdout))
    """
    assert output(listening, tmp_path, text).strip() == "False"


def test_an_exception_of_the_program_is_shown_as_its_own(listening: socket.socket, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("\nraise ValueError('mine')\n")
    with child(listening, "main.py", cwd=tmp_path) as process:
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert 'File "main.py", line 2, in <module>' in err
    assert "ValueError: mine" in err
    assert "shim.py" not in err, "and as nobody else's"
