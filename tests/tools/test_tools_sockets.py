"""Listening sockets handed over and found, notification, and the pooled way to a tool, which
sends no request twice.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from e2e.house import Later
from rounds import mostly_deep
from supervisord_py.errors import PxError
from supervisord_py.tools import driver, proxy
from supervisord_py.tools import upstream as upstream_module
from supervisord_py.tools.driver import NotifySocket
from supervisord_py.tools.learnt import Message
from supervisord_py.tools.upstream import Upstream, schema_drift
from waiting import PATIENCE

# -- the shim, alone: real servers take the handed-over socket, over several lives, with requests
# sent before each

SHIM = Path(__file__).parents[2] / "supervisord_py" / "tools" / "shim.py"
CHILDREN = Path(__file__).parent / "children"
# the second and third of uvicorn
SERVERS = ("http.server", "asyncio", "uvloop", "hypercorn", "flask")


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
    with subprocess.Popen(
        argv, pass_fds=[int(fd)], env={**os.environ, **env}, cwd=cwd, **pipes
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(port: int, value: Any) -> Any:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as client:
        client.request("POST", "/run", json.dumps(value), {"Content-Type": "application/json"})
        return json.loads(client.getresponse().read())["echo"]


@pytest.mark.parametrize(
    "server", mostly_deep(SERVERS, "http.server", "asyncio", "hypercorn", "flask")
)
def test_a_request_sent_before_the_child_exists_is_answered(
    listening: socket.socket, server: str
) -> None:
    folder, port = (
        CHILDREN / ("shapes" if server == "http.server" else "servers"),
        port_of(listening),
    )
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
    """The status flags are shared with every other holder: another mode may have been left
    behind.
    """
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
    assert output(listening, tmp_path, text) == [
        timeout,
        timeout is None,
        port_of(listening),
        False,
    ]


def test_other_sockets_are_left_alone_and_ours_ends_at_exec(
    listening: socket.socket, tmp_path: Path
) -> None:
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


def test_an_exception_of_the_program_is_shown_as_its_own(
    listening: socket.socket, tmp_path: Path
) -> None:
    (tmp_path / "main.py").write_text("\nraise ValueError('mine')\n")
    with child(listening, "main.py", cwd=tmp_path) as process:
        _, err = process.communicate(timeout=PATIENCE)
    shown = [
        f'File "{tmp_path}/main.py", line 2, in <module>' in err,
        "ValueError: mine" in err,
        "shim.py" in err,
    ]
    assert (process.returncode, shown) == (1, [True, True, False])


# -- listeners, notification, connections that are used again --------------------------------------


def test_listeners_of_a_tree_are_found_in_grandchildren_too() -> None:
    code = """if True:
        import os, socket, time
        if os.fork() == 0:
            sock = socket.create_server(("127.0.0.1", 0))
            print(sock.getsockname()[1], flush=True)
        time.sleep(600)
    """
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            assert driver.listening_of(process.pid) == [("127.0.0.1", port)]
            assert [driver.is_listener_of(process.pid, each) for each in (port, port + 1)] == [
                True,
                False,
            ]
        finally:
            os.killpg(process.pid, 9)
    assert driver.listening_of(process.pid) == []


async def test_ready_and_imports_are_understood(short_tmp: Path) -> None:
    notify, messages = NotifySocket(short_tmp, "12345678.abc"), list[Message]()
    assert [path.stat().st_mode & 0o777 for path in (notify.path, notify.path.parent)] == [
        0o600,
        0o700,
    ]
    notify.on_imports = messages.append
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        for message in (
            b"STATUS=half way\nREADY=0",
            b"X_PX_STEPS=a,b c\nX_PX_OWN=1:2 /a b\nREADY=1",
        ):
            channel.sendto(message, str(notify.path))
    await notify.is_ready.wait()
    assert messages == [Message(steps=("a",), own={"/a b": "1:2"})]
    notify.close()


def said(body: bytes, status: bytes = b"200 OK", length: int | None = None) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, length or len(body), body)


@asynccontextmanager
async def serving(*answers: bytes) -> AsyncIterator[tuple[list[int], Upstream]]:
    """Serve these answers in turn and then hang up; give by which connection each request came,
    and the way there.
    """
    asked, left, tasks = list[int](), iter(answers), list[Any]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(set(asked))
        tasks.append(asyncio.current_task())
        with suppress(ConnectionError):
            while await reader.read(4096):
                asked.append(number)
                if (answer := next(left, None)) is None:
                    break
                writer.write(answer)
            writer.close()
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        upstream = Upstream(server.sockets[0].getsockname()[1])
        yield asked, upstream
        upstream.close()
        await asyncio.gather(*tasks)


@pytest.fixture(autouse=True)
def _no_pause_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "IDLE_SECONDS", 600.0)


async def post(upstream: Upstream) -> bytes:
    async with await upstream.send("POST", "/run", b"{}") as answer:
        return (await answer.read_up_to(1000))[0]


async def test_a_request_whose_pooled_connection_breaks_is_not_sent_again() -> None:
    """The tool may have worked on it, or died of it."""
    async with serving(b"HTTP/1.1 100 Continue\r\n\r\n" + said(b"ok"), said(b"ok")) as (
        asked,
        upstream,
    ):
        assert [await post(upstream), await post(upstream)] == [b"ok", b"ok"]
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await post(upstream)
        assert asked == [0, 0, 0]


async def test_a_connection_that_is_half_read_or_too_old_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(said(b"half", length=9), said(b"ok"), said(b"ok")) as (asked, upstream):
        async with await upstream.send("GET", "/"):
            pass
        assert await post(upstream) == b"ok"
        monkeypatch.setattr(upstream_module, "IDLE_SECONDS", 0.0)
        assert await post(upstream) == b"ok"
        assert asked == [0, 1, 2]


DRIFTS = {said(b"", b"404 No"): "()", said(b'{"a": 1 }'): "()", said(b'{"a": 2 }'): "/a"}
DRIFTS |= {
    said(b"", b"500 No"): "answered 500",
    said(b"not"): "no JSON",
    b"what?\r\n\r\n": "no JSON",
}


@pytest.mark.parametrize("answer", DRIFTS)
async def test_drift_is_told_by_place_and_never_raised(answer: bytes) -> None:
    async with serving(answer) as (_, upstream):
        assert DRIFTS[answer] in str(await schema_drift(upstream, {"a": 1}))


async def test_an_instance_that_has_ended_meanwhile_is_no_mistake_of_ours() -> None:
    """Whoever waits for its answer, or asks it still, hears of it as of any other connection
    that is gone.
    """
    async with serving(said(b"half", length=9)) as (_, upstream):
        async with await upstream.send("GET", "/") as answer:
            upstream.close()
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read_up_to(100)
        with pytest.raises(OSError, match="has ended"):
            await upstream.send("POST", "/run", b"{}")
        assert (await schema_drift(upstream, {"a": 1}), await upstream.cancel("1")) == ((), False)


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_stream_in_another_form_has_the_same_items(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut(raw: bytes) -> AsyncIterator[bytes]:
        for at in range(0, len(raw), size):
            yield raw[at : at + size]

    events, lines = (
        b': beat\n\nevent: x\nid: 1\ndata: {"a":\r\ndata:1}\r\n\r\n\ndata: [2]',
        b'{"a": 1}\r\n\n[2]',
    )
    assert [item async for item in proxy._as_lines(cut(events))] == [b'{"a": 1}\n', b"[2]\n"]
    assert [item async for item in proxy._as_events(cut(lines))] == [
        b'data: {"a": 1}\n\n',
        b"data: [2]\n\n",
    ]
    monkeypatch.setattr(proxy, "LINE_BYTES", 5)
    with pytest.raises(PxError, match="longer than 5 bytes"):
        assert [item async for item in proxy._as_lines(cut(b"data: 123456789"))] == []


@pytest.mark.parametrize(
    ("ends", "since"),
    [([], 9.0), ([3.0], 3.0), ([3.0, 5.0, 4.0], 5.0), ([None], 9.0), ([5.0, None], 9.0)],
)
def test_time_of_a_run_counts_from_the_end_of_the_last_before_it(
    ends: list[float | None], since: float
) -> None:
    assert proxy.charged_from(ends, 9.0) == since
