"""The control socket: bound privately, never stolen, inherited correctly."""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from supervisord_py.daemon.lock import AlreadyRunningError
from supervisord_py.daemon.paths import PlaceError
from supervisord_py.daemon.sockets import adopt_socket, bind_socket

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777], ids=oct)
def test_the_socket_is_private_under_any_umask_and_leaves_it_alone(umask: int, short_tmp: Path) -> None:
    before = os.umask(umask)
    try:
        with bind_socket(short_tmp / "s") as bound:
            assert stat.S_IMODE((short_tmp / "s").stat().st_mode) == 0o600
            assert bound.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)


def test_a_stale_socket_is_replaced(short_tmp: Path) -> None:
    bind_socket(short_tmp / "s").close()
    assert (short_tmp / "s").exists()
    with bind_socket(short_tmp / "s"), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(short_tmp / "s"))


def test_a_live_socket_is_never_unlinked_and_its_owner_is_named(short_tmp: Path) -> None:
    with bind_socket(short_tmp / "s"):
        before = (short_tmp / "s").stat().st_ino
        with pytest.raises(AlreadyRunningError, match=rf"pid {os.getpid()}\b"):
            bind_socket(short_tmp / "s")
        assert (short_tmp / "s").stat().st_ino == before


def test_a_full_backlog_is_a_living_daemon(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When connect says neither yes nor 'refused', somebody may be there: hands off."""

    class Busy(socket.socket):
        def connect(self, _address: object) -> None:
            raise BlockingIOError(errno.EAGAIN, "try again")

    bind_socket(short_tmp / "s").close()
    monkeypatch.setattr(socket, "socket", Busy)
    with pytest.raises(AlreadyRunningError):
        bind_socket(short_tmp / "s")
    assert (short_tmp / "s").exists()


def test_what_is_no_listening_unix_stream_socket_is_refused() -> None:
    with socket.socket(socket.AF_INET) as inet:
        inet.bind(("127.0.0.1", 0))
        inet.listen()
        with pytest.raises(PlaceError, match="no listening Unix stream socket"):
            adopt_socket(inet.fileno())
    with socket.socket(socket.AF_UNIX) as idle, pytest.raises(PlaceError, match="no listening"):
        adopt_socket(idle.fileno())
    with open(os.devnull) as file, pytest.raises(PlaceError, match="is no socket"):
        adopt_socket(file.fileno())
    with pytest.raises(PlaceError, match="is no socket"):
        adopt_socket(9999)
