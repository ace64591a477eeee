"""Where everything lies (the table of CONTRACT §1); one daemon a directory: its lock, its
socket, its token.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from supervisord_py.api.auth import read_or_make_token
from supervisord_py.daemon import lock
from supervisord_py.daemon.paths import PlaceError, guard_directory, make_places, resolve_paths
from supervisord_py.errors import EXIT_PERMISSION, ConfigError, ForbiddenError

NAMES = ("config_file", "tools_dir", "pipes_dir", "ledger_file", "log_dir", "socket", "lock_file")
GRANTED = {
    "RUNTIME_DIRECTORY": "/run/a:/run/b", "STATE_DIRECTORY": "/var/lib/a:/var/lib/b",
    "LOGS_DIRECTORY": "/var/log/a:/x", "CONFIGURATION_DIRECTORY": "/etc/a:/y",
}  # fmt: skip
WON = (
    "/etc/a/pxd.toml {}/tools {}/pipes /var/lib/a/pxd.db /var/log/a /run/a/pxd.sock /run/a/pxd.lock"
)


@pytest.mark.parametrize(
    ("environ", "system", "places"),
    [
        ({}, False, "c/pxd/pxd.toml d/pxd/tools d/pxd/pipes s/pxd/pxd.db s/pxd/logs r/pxd/pxd.sock "
                    "r/pxd/pxd.lock"),
        ({"PX_HOME": "/h"}, False,
         "/h/pxd.toml /h/tools /h/pipes /h/state/pxd.db /h/state/logs /h/run/pxd.sock "
         "/h/run/pxd.lock"),
        ({}, True, "/etc/pxd/pxd.toml /var/lib/pxd/tools /var/lib/pxd/pipes "
                   "/var/lib/pxd/state/pxd.db"
                   " /var/lib/pxd/state/logs /run/pxd/pxd.sock /run/pxd/pxd.lock"),
        ({"PX_HOME": "/h", **GRANTED}, False, WON.format("/h", "/h")),
        (GRANTED, True, WON.format("/var/lib/pxd", "/var/lib/pxd")),
        ({"PX_HOME": "/h", "PX_SOCKET": "/tmp/x.sock", "RUNTIME_DIRECTORY": "/run/a"}, False,
         "/h/pxd.toml /h/tools /h/pipes /h/state/pxd.db /h/state/logs /tmp/x.sock /run/a/pxd.lock"),
    ],
)  # fmt: skip
def test_the_places_of_the_platform_of_px_home_of_the_system_and_what_the_service_manager_grants(
    monkeypatch: pytest.MonkeyPatch,
    short_tmp: Path,
    environ: dict[str, str],
    system: bool,
    places: str,
) -> None:
    for name, folder in (
        ("CONFIG_HOME", "c"),
        ("DATA_HOME", "d"),
        ("STATE_HOME", "s"),
        ("RUNTIME_DIR", "r"),
    ):
        (short_tmp / folder).mkdir(mode=0o700)
        monkeypatch.setenv(f"XDG_{name}", str(short_tmp / folder))
    paths = resolve_paths(environ, system=system)
    assert [getattr(paths, name) for name in NAMES] == [
        short_tmp / place for place in places.split()
    ]
    assert resolve_paths(environ, system=system, socket="/flag").socket == Path("/flag")


def test_a_symbolic_link_and_somebody_elses_directory_are_refused_and_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    (tmp_path / "state").symlink_to(target)
    with pytest.raises(ForbiddenError, match=f"{tmp_path}/state is a symbolic link") as caught:
        make_places(resolve_paths({"PX_HOME": str(tmp_path)}))
    assert caught.value.exit_code == EXIT_PERMISSION
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(ForbiddenError, match=rf"belongs to uid {os.getuid()}, not to uid 4242"):
        guard_directory(target)
    assert target.stat().st_mode & 0o777 == 0o755


def test_the_lock_is_signed_not_inherited_and_a_pid_that_was_given_away_again_is_no_holder(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pxd.lock"
    fd = lock.take_lock(path)
    lock.sign_lock(fd)
    assert (lock.holder(path), os.get_inheritable(fd)) == (os.getpid(), False)
    os.close(fd)
    for text in (f"{os.getpid()} 1\n", "999999999 1", "", "x y"):
        path.write_text(text)
        assert lock.holder(path) is None


def test_a_held_lock_of_a_dead_keeper_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What guards a killed keeper holds the lock until it has cleaned up; then the start goes
    on.
    """
    path, turns = tmp_path / "pxd.lock", list[float]()
    guard = lock.take_lock(path)
    path.write_text("999999999 1\n")

    def turn(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 3:
            os.close(guard)

    monkeypatch.setattr(time, "sleep", turn)
    os.close(lock.take_lock(path))
    assert len(turns) == 3


def test_a_stale_socket_is_replaced_and_a_live_one_never_unlinked_and_its_owner_named(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = short_tmp / "s"
    lock.bind_socket(path).close()
    with lock.bind_socket(path):
        before = path.stat().st_ino
        with pytest.raises(lock.AlreadyRunningError, match=rf"pid {os.getpid()}\b"):
            lock.bind_socket(path)
        # A full backlog says neither yes nor 'refused': somebody may be there.
        monkeypatch.setattr(
            socket.socket, "connect", Mock(side_effect=BlockingIOError(errno.EAGAIN, "try again"))
        )
        with pytest.raises(lock.AlreadyRunningError):
            lock.bind_socket(path)
        assert path.stat().st_ino == before


def test_what_is_no_listening_unix_stream_socket_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as inet, socket.socket(socket.AF_UNIX) as idle:
        for fd in (inet.fileno(), idle.fileno(), 0, 9999):
            with pytest.raises(PlaceError, match="no listening Unix stream socket"):
                lock.adopt_socket(fd)


@pytest.mark.parametrize(
    ("error", "count", "words"),
    [
        (0, 1, None),
        (errno.ENOENT, 0, None),
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

    with (
        lock.bind_socket(short_tmp / "s") as bound,
        pytest.raises(PlaceError, match=words) if words else nullcontext(),
    ):
        os.set_inheritable(bound.fileno(), True)
        found[:] = [bound.fileno()] * 2
        given = lock.inherited_socket({}, os.getpid(), launch_activate_socket)
        assert (given and given.detach()) == (bound.fileno() if count else None)
        assert os.get_inheritable(bound.fileno()) is not bool(given)


def test_a_token_is_made_once_and_one_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    assert len(token := read_or_make_token(path)) >= 32
    assert read_or_make_token(path) == token != read_or_make_token(tmp_path / "other")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"may be read by others \(mode 0640"):
        read_or_make_token(path)
