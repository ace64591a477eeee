"""The control plane's process beside a keeper of our own making: how it exits, and when it becomes the sweep."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from supervisord_py.daemon.paths import make_places, resolve_paths
from supervisord_py.daemon.sockets import bind_socket

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Stage:
    """A home, a listening socket, a lock, and our end of the channel."""

    def __init__(self, home: Path) -> None:
        self.paths = resolve_paths({"PX_HOME": str(home)})
        make_places(self.paths)
        self.home = home
        self.listening = bind_socket(self.paths.socket)
        self.ours, self.theirs = socket.socketpair()
        self.lock = os.open(self.paths.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        self.process: subprocess.Popen[str] | None = None

    def begin(self, *words: str) -> None:
        fds = (self.theirs.fileno(), self.listening.fileno(), self.lock)
        names = ("--channel-fd", "--listen-fd", "--lock-fd")
        numbers = [word for name, fd in zip(names, fds, strict=True) for word in (name, str(fd))]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PX_", "XDG_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "supervisord_py.daemon.control", *numbers, *words],
            env={**kept, "PX_HOME": str(self.home)},
            pass_fds=fds,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.theirs.close()

    def end(self) -> tuple[int, dict[str, dict[str, Any]]]:
        """Wait; return the exit code and the last log entry of each event."""
        assert self.process is not None
        _, said = self.process.communicate(timeout=60)
        entries = {}
        for line in said.splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                entries[entry["event"]] = entry
        return self.process.returncode, entries

    def read_frame(self) -> dict[str, Any]:
        self.ours.settimeout(60)
        (size,) = struct.unpack(">I", self.ours.recv(4, socket.MSG_WAITALL))
        frame: dict[str, Any] = json.loads(self.ours.recv(size, socket.MSG_WAITALL))
        return frame

    def send_frame(self, **frame: Any) -> None:
        content = json.dumps(frame).encode()
        self.ours.sendall(struct.pack(">I", len(content)) + content)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=60)
        for each in (self.ours, self.theirs, self.listening):
            each.close()
        os.close(self.lock)


@pytest.fixture
def stage(short_tmp: Path) -> Iterator[Stage]:
    made = Stage(short_tmp)
    yield made
    made.close()


def test_a_keeper_that_speaks_otherwise_is_not_swept_after(stage: Stage) -> None:
    stage.begin()
    hello = stage.read_frame()
    stage.send_frame(id=hello["id"], ok=True, protocol=99, children=[])
    code, said = stage.end()
    assert code == 1
    assert said["control_failed"]["kind"] == "keeper_lost"
    assert "sweeping" not in said
