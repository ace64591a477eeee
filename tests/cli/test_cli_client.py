"""How pxctl comes to a daemon: where it looks, what it takes for an answer, and that Ctrl-C ends
each wait.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import tempfile
import termios
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.fake_daemon import FakeDaemon, chunked, reply, silent
from cli.px import DEADLINE, REPOSITORY, Px
from pxctl import client
from pxctl.client import Exchange, Failure, Interrupted
from pxctl.paths import find_log_file, find_run_dir, find_socket
from supervisord_py.daemon.paths import resolve_paths
from waiting import until

XDG = ("CONFIG_HOME", "DATA_HOME", "STATE_HOME", "RUNTIME_DIR")
GRANTS = ("RUNTIME_DIRECTORY", "STATE_DIRECTORY", "LOGS_DIRECTORY", "CONFIGURATION_DIRECTORY")


def private(path: Path, mode: int = 0o700) -> str:
    path.mkdir(mode=mode, parents=True)
    path.chmod(mode)
    return str(path)


def test_client_and_daemon_agree_in_every_environment(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp, home = short_tmp, {"HOME": private(short_tmp / "home")}
    (tmp / "link").symlink_to(private(tmp / "real"))
    environments: dict[str, tuple[dict[str, str], bool]] = {
        "nothing": (home | {"TMPDIR": private(tmp / "t")}, False),
        "no home": ({"TMPDIR": str(tmp)}, False),
        "relative home": ({"HOME": "here", "TMPDIR": str(tmp)}, False),
        "xdg": (home | {f"XDG_{what}": private(tmp / what) for what in XDG}, False),
        "relative xdg": (
            home | {"XDG_CONFIG_HOME": "c", "XDG_RUNTIME_DIR": "r", "TMPDIR": str(tmp)},
            False,
        ),
        "runtime missing": (home | {"XDG_RUNTIME_DIR": f"{tmp}/missing/run"}, False),
        "runtime open": (
            home | {"XDG_RUNTIME_DIR": private(tmp / "open", 0o755), "TMPDIR": str(tmp)},
            False,
        ),
        "runtime a link": (home | {"XDG_RUNTIME_DIR": f"{tmp}/link", "TMPDIR": str(tmp)}, False),
        "no such temp": (home | {"TMPDIR": f"{tmp}/none", "TEMP": private(tmp / "temp")}, False),
        "px home relative": (home | {"PX_HOME": "px/../px"}, False),
        "px home tilde": (home | {"PX_HOME": "~/px", "PX_SOCKET": "~/s.sock"}, False),
        "system": (home, True),
        "granted": (home | {name: f"{tmp}/{name}:{tmp}/second" for name in GRANTS}, True),
        "granted in part": (
            home | {"PX_HOME": f"{tmp}/px", "RUNTIME_DIRECTORY": "", "STATE_DIRECTORY": "/s"},
            False,
        ),
    }
    for name, (environ, system) in environments.items():
        monkeypatch.setattr(tempfile, "tempdir", None)
        with mock.patch.dict(os.environ, environ, clear=True):
            client = [find_run_dir(environ, system=system), find_log_file(environ, system=system)]
            client.append(find_socket(environ, explicit=None, system=system))
            paths = resolve_paths(environ, system=system)
        daemon = [paths.run_dir, paths.log_dir / "pxd.log", paths.socket]
        assert [os.path.normpath(path) for path in client] == [str(path) for path in daemon], name


def test_system_and_px_home_contradict_each_other() -> None:
    with pytest.raises(Failure, match="PX_HOME") as caught:
        find_socket({"PX_HOME": "/x"}, explicit=None, system=True)
    assert caught.value.exit_code == 2


# -- an answer is read whole or not at all ---------------------------------------------------------


def parse(data: bytes) -> tuple[int, bytes]:
    """Return what the client reads of an answer after which the daemon is gone."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(data)
    with mock.patch.object(client, "_connect", lambda _: ours), Exchange("") as exchange:
        exchange.send("GET", "/", {}, None, 30.0)
        return exchange.status, exchange.read()


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.integers(0, 400))
def test_an_answer_is_read_whole_and_one_that_breaks_off_is_never_taken_for_it(
    pieces: list[bytes], keep: int
) -> None:
    content = b"".join(pieces) + b"x"
    for whole in (chunked(*pieces, b"x"), reply(content)):
        assert parse(whole) == (200, content)
        with pytest.raises(Interrupted):
            parse(whole[: min(keep, len(whole) - 1)])


@pytest.mark.parametrize("status", [204, 205, 304])
def test_an_answer_that_has_no_content_by_definition_needs_no_length(status: int) -> None:
    assert parse(f"HTTP/1.1 {status} X\r\n\r\n".encode()) == (status, b"")


@pytest.mark.parametrize(
    "raw", ["SSH-2.0-OpenSSH_9.2", "HTTP/1.1 2x0 OK", "HTTP/1.1 200 OK\r\nno colon"]
)
def test_what_is_not_http_is_refused(raw: str) -> None:
    with pytest.raises(Failure, match="is not pxd"):
        parse(f"{raw}\r\n\r\n".encode())


def test_how_long_a_connection_is_waited_for_does_not_bound_the_body_that_follows(
    tmp_path: Path,
) -> None:
    """A daemon reads when it can; the kernel gives both the same time, SO_SNDTIMEO."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen()
        with client._connect(f"{tmp_path}/s") as ours:
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16) == bytes(16)


# -- Ctrl-C ----------------------------------------------------------------------------------------


WAITING = {
    "tools sync a": 1, "logs a -f": 0, "run a": 1, "exec 1": 1, "exec 1 --json": 1, "wait 12": 1,
    "pipe tail -f 12": 1,
    "pipe run digest": 1, "kernel start": 1, "start tool:a tool:b": 1, "status --watch": 0,
    "daemon stop": 1,
}  # fmt: skip


def interrupted(process: subprocess.Popen[bytes]) -> tuple[int, bool]:
    process.send_signal(signal.SIGINT)
    process.wait(DEADLINE)  # and only then is its input at an end
    return process.returncode, b"Traceback" in process.communicate(timeout=DEADLINE)[1]


@pytest.mark.parametrize("arguments", WAITING)
def test_what_waits_for_an_answer_ends(px: Px, daemon: FakeDaemon, arguments: str) -> None:
    daemon.default = silent
    process = px.popen(*arguments.split())
    until(lambda: daemon.seen, "it is asked")
    assert interrupted(process) == (WAITING[arguments], False)


@pytest.mark.parametrize("arguments", ["exec -", "run a --input -"])
def test_what_reads_its_input_ends_the_same_way(px: Px, arguments: str) -> None:
    process = px.popen(*arguments.split(), stdin=subprocess.PIPE)
    stdin = process.stdin
    assert stdin is not None
    os.write(stdin.fileno(), b"{")
    until(
        lambda: fcntl.ioctl(stdin, termios.FIONREAD, bytes(4)) == bytes(4),
        "the first of it is read",
    )
    assert interrupted(process) == (1, False)


def test_while_pxctl_is_still_being_imported_there_is_no_traceback(px: Px) -> None:
    (px.folder / "click.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    ended = px("status", PYTHONPATH=f"{px.folder}:{REPOSITORY / 'cli'}")
    assert (ended.code, ended.out, ended.err) == (1, b"", "pxctl: interrupted from the keyboard\n")
