"""The control socket: never stolen, inherited correctly, with a token on loopback."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.api.auth import read_or_make_token
from supervisord_py.daemon.lock import AlreadyRunningError, adopt_socket, bind_socket, inherited_socket
from supervisord_py.daemon.paths import PlaceError
from supervisord_py.errors import ConfigError


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
    with open(os.devnull) as file, pytest.raises(PlaceError, match="no listening"):
        adopt_socket(file.fileno())
    with pytest.raises(PlaceError, match="no listening"):
        adopt_socket(9999)


def test_a_token_is_made_once_and_one_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    assert len(token := read_or_make_token(path)) >= 32
    assert read_or_make_token(path) == token != read_or_make_token(tmp_path / "other")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"may be read by others \(mode 0640"):
        read_or_make_token(path)


@pytest.mark.parametrize(
    ("error", "count", "words"),
    [
        (0, 1, None),
        (errno.ENOENT, 0, None),
        (errno.ESRCH, 0, None),
        (errno.EALREADY, 0, "launchd does not give us its socket"),
        (0, 2, "passed 2 sockets"),
    ],
)
def test_launchd_hands_over_the_socket_of_the_property_list(
    short_tmp: Path, error: int, count: int, words: str | None
) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    found = (ctypes.c_int * 2).from_address(libc.malloc(8))

    def launch_activate_socket(name: bytes, fds: Any, size: Any) -> int:
        """As launch_activate_socket(3): the array is the caller's to free."""
        assert name == b"pxd"
        ctypes.cast(fds, ctypes.POINTER(ctypes.c_void_p))[0] = ctypes.addressof(found)
        ctypes.cast(size, ctypes.POINTER(ctypes.c_size_t))[0] = count
        return error

    with bind_socket(short_tmp / "s") as bound:
        os.set_inheritable(bound.fileno(), True)
        found[:] = [bound.fileno()] * 2
        if words is not None:
            with pytest.raises(PlaceError, match=words):
                inherited_socket({}, os.getpid(), launch_activate_socket)
            return
        given = inherited_socket({}, os.getpid(), launch_activate_socket)
        assert (given is not None) is (count == 1)
        if given is not None:
            assert given.detach() == bound.fileno()
            assert not os.get_inheritable(bound.fileno())
