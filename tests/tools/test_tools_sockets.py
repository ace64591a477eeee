"""Listening sockets, reserved ports and notification sockets, each against the real kernel."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from supervisord_py.errors import StartFailedError
from supervisord_py.tools.serving import listeners as listeners_module
from supervisord_py.tools.serving import ports
from supervisord_py.tools.serving.listeners import Listeners, answer_waiting
from supervisord_py.tools.serving.notify import NotifySocket
from tools.tool_house import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class FdStore:
    """The part of a placement that holds descriptors."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}

    async def put_fd(self, name: str, fd: int) -> None:
        await self.drop_fd(name)
        self.held[name] = os.dup(fd)

    async def take_fd(self, name: str) -> int | None:
        return os.dup(self.held[name]) if name in self.held else None

    async def drop_fd(self, name: str) -> None:
        if name in self.held:
            os.close(self.held.pop(name))


@pytest.fixture
def store() -> FdStore:
    return FdStore()


async def test_a_listener_is_made_once_listens_at_once_and_is_deposited(store: FdStore) -> None:
    listeners = Listeners(store, 16)  # type: ignore[arg-type]
    first, second = await asyncio.gather(listeners.get("a"), listeners.get("a"))
    assert first is second
    assert listeners.port_of("a") == first.port
    assert first.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert not first.socket.get_inheritable()
    with socket.create_connection(("127.0.0.1", first.port)):
        pass
    listeners.close()
    later = Listeners(store, 16)  # type: ignore[arg-type]
    assert (await later.get("a")).port == first.port
    await later.drop("a")
    assert store.held == {}
    assert later.port_of("a") is None


async def test_what_is_no_listening_socket_is_replaced(store: FdStore) -> None:
    with socket.socket() as idle:
        await store.put_fd("listen:tool:a", idle.fileno())
    listeners = Listeners(store, 16)  # type: ignore[arg-type]
    listener = await listeners.get("a")
    with socket.create_connection(("127.0.0.1", listener.port)):
        pass
    await listeners.drop("a")


async def test_a_shared_socket_that_was_shut_down_listens_again(store: FdStore) -> None:
    listeners = Listeners(store, 16)  # type: ignore[arg-type]
    listener = await listeners.get("a")
    listener.socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listener.port))
    listeners.listen_again("a")
    listeners.listen_again("never heard of")
    with socket.create_connection(("127.0.0.1", listener.port)):
        pass
    await listeners.drop("a")


async def test_no_descriptor_left_is_a_clear_error(store: FdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(listeners_module.socket, "socket", refuse)
    with pytest.raises(StartFailedError, match="Too many open files") as caught:
        await Listeners(store, 16).get("a")  # type: ignore[arg-type]
    assert (caught.value.extra["stage"], caught.value.extra["errno"]) == ("listen", 24)


async def test_those_who_wait_are_answered_and_the_mute_are_let_go(store: FdStore) -> None:
    listeners = Listeners(store, 16)  # type: ignore[arg-type]
    listener = await listeners.get("a")
    clients = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(3)]
    clients[0].sendall(b"POST /run HTTP/1.1\r\nHost: x\r\n\r\n")
    clients[1].close()
    waiting: list[socket.socket] = []
    # The last step of a handshake may come after the client's connect has returned.
    async with asyncio.timeout(60):
        while len(waiting) < 3:
            waiting += listeners.take_waiting("a")
            await asyncio.sleep(0)
    assert listeners.take_waiting("a") == listeners.take_waiting("unknown") == []
    answering = asyncio.create_task(answer_waiting(waiting, StartFailedError("it broke", unit="tool:a")))
    answer = await asyncio.to_thread(clients[0].recv, 65536)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"it broke" in answer
    clients[0].close()
    await answering
    assert await asyncio.to_thread(clients[2].recv, 10) == b""
    clients[2].close()
    await listeners.drop("a")


def test_a_reserved_port_is_bound_by_who_reuses_and_by_nobody_else() -> None:
    reservation = ports.Reservation()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", reservation.port))
    with socket.socket() as child:
        child.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        child.bind(("127.0.0.1", reservation.port))
        child.listen()
        assert ports.is_listener_of(os.getpid(), reservation.port)
        reservation.let_go()


def test_listeners_of_a_tree_are_found_in_grandchildren_too() -> None:
    code = (
        "import os, socket, time\n"
        "if os.fork() == 0:\n"
        "    sock = socket.socket(); sock.bind(('127.0.0.1', 0)); sock.listen()\n"
        "    print(sock.getsockname()[1], flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            (found,) = [one for one in ports.listening_of(process.pid) if one.port == port]
            assert str(found) == f"127.0.0.1:{port}"
            assert found.pid != process.pid
            assert ports.is_listener_of(process.pid, port)
            assert not ports.is_listener_of(process.pid, port + 1)
        finally:
            os.killpg(process.pid, 9)
    assert ports.tree_of(process.pid) == ports.listening_of(process.pid) == ()


def test_addresses_are_shown_as_people_write_them() -> None:
    assert str(ports.Listening("::1", 80, 1)) == "[::1]:80"
    assert not ports.Listening("::1", 80, 1).is_reachable
    assert ports.Listening("0.0.0.0", 80, 1).is_reachable  # noqa: S104 - a value, not bound


def say(path: Path, message: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(message, str(path))


async def test_ready_and_more_time_are_understood(short_tmp: Path) -> None:
    notify = NotifySocket.create(short_tmp, "12345678.abc")
    assert notify.path.stat().st_mode & 0o777 == 0o600
    assert notify.path.parent.stat().st_mode & 0o777 == 0o700
    more: list[float] = []
    notify.listen(os.getpid(), more.append)
    say(notify.path, b"STATUS=half way\nEXTEND_TIMEOUT_USEC=2500000\nEXTEND_TIMEOUT_USEC=soon\nWATCHDOG=1")
    await eventually(lambda: more)
    assert (more, notify.status, notify.is_ready.is_set()) == ([2.5], "half way", False)
    say(notify.path, b"READY=1")
    await notify.is_ready.wait()
    notify.remove()
    assert not notify.path.exists()
    notify.close()


async def test_a_stranger_is_not_believed(short_tmp: Path, require: Callable[[bool, str], None]) -> None:
    require(hasattr(socket, "SO_PASSCRED"), "needs SO_PASSCRED")
    notify = NotifySocket.create(short_tmp, "12345678.abc")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as other:
        notify.listen(other.pid)
        say(notify.path, b"STATUS=lies\nREADY=1")
        code = (
            "import socket; channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); "
            f"channel.sendto(b'STATUS=truth', {str(notify.path)!r}); input()"
        )
        own = {**os.environ, "PX_INSTANCE": "12345678.abc"}
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, env=own, start_new_session=True
        ) as kin:
            await eventually(lambda: notify.status)
            assert notify.status == "truth"
            assert not notify.is_ready.is_set()
            kin.communicate(b"\n")
        other.communicate(b"\n")
    notify.remove()


async def test_a_second_life_of_the_path_replaces_the_first(short_tmp: Path) -> None:
    NotifySocket.create(short_tmp, "12345678.abc").close()
    NotifySocket.create(short_tmp, "12345678.abc").remove()


def test_a_path_that_cannot_be_bound_is_an_error(short_tmp: Path) -> None:
    with pytest.raises(OSError, match="too long"):
        NotifySocket.create(short_tmp, "12345678." + "x" * 200)
