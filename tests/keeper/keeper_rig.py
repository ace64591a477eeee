"""A keeper under test: started for real, spoken to through the channel that its control plane
lends out.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rounds import mostly_deep
from supervisord_py.keeper import procfs
from supervisord_py.keeper.protocol import FrameSocket
from supervisord_py.process.keeper_client import KeeperClient
from waiting import PATIENCE, alive, bearing, marked, until

__all__ = ["PATIENCE", "alive", "marked", "until"]
RUNGS: dict[str, dict[str, Any]] = {
    "cgroup": {},
    "subreaper": {"cgroup": "off"},
    "process_group": {"platform": "portable"},
}
one_rung = pytest.mark.parametrize("rung", mostly_deep(RUNGS, "subreaper"), indirect=True)
one_linux_rung = pytest.mark.parametrize(
    "linux_rung", mostly_deep(list(RUNGS)[:2], "subreaper"), indirect=True
)
"""Of tests about what is the same on every rung: one of them in every run."""
PROBES = Path(__file__).parent / "probes"
MAIN = Path(__file__).parents[2] / "supervisord_py" / "keeper" / "__main__.py"
_MEASURED = any(name.startswith("COVERAGE_PROCESS") for name in os.environ)
PYTHON = [sys.executable, "-I", "-S"]
PLAIN_ARGV = [*PYTHON, str(MAIN)]
"""As pxd starts it.

Coverage cannot get in, which costs a fifth of a second of each keeper and more of each spawn.
"""
KEEPER_ARGV = [sys.executable, str(MAIN)] if _MEASURED else PLAIN_ARGV


SLEEPS = ["/bin/sleep", "600"]


def probe(name: str, *words: object) -> list[str]:
    return [*PYTHON, str(PROBES / f"{name}.py"), *(str(word) for word in words)]


def deafen(zygote: int, key: str) -> list[int]:
    """Stop a zygote by a signal, and its fork that waits for the next order, once that is there;
    return both.
    """

    def waiting() -> list[int]:
        rows = [row for row in map(procfs.look, bearing(f"PX_INSTANCE={key}")) if row is not None]
        parents = [row.ppid for row in rows if row.pid == zygote]
        return [row.pid for row in rows if row.pid != zygote and row.ppid in parents]

    stopped = [*until(waiting, "a fork that waits"), zygote]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    return stopped


class Link:
    """One control plane's channel, lent to the test."""

    def __init__(self, bridge: socket.socket, channel: socket.socket, pid: int) -> None:
        self.bridge = bridge
        self.channel = channel
        self.pid = pid
        self.replies: dict[int, dict[str, Any]] = {}  # what came with one is its `received`
        self.events: list[dict[str, Any]] = []
        self.closed = False
        self.hello: dict[str, Any] = {}
        self._frames = FrameSocket(channel)
        self._next_id = 0

    def send(self, verb: str, fds: tuple[int, ...] = (), **members: Any) -> int:
        self._next_id += 1
        self._frames.push({"id": self._next_id, "verb": verb, **members}, fds)
        while not self._frames.flush():
            select.select([], [self.channel], [])
        return self._next_id

    def receive(self, seconds: float) -> bool:
        """Take in what comes within `seconds`; False when nothing did."""
        if not select.select([self.channel], [], [], max(seconds, 0.001))[0]:
            return False
        self.closed = self._frames.read(self._take) is not None
        return not self.closed

    def _take(self, message: dict[str, Any], fds: list[int]) -> None:
        if "event" in message:
            self.events.append(message)
        else:
            self.replies[message["id"]] = {**message, "received": fds}

    def wait_for(self, found: Callable[[], dict[str, Any] | None], what: str) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while (value := found()) is None:
            assert time.monotonic() < deadline, f"no {what}, but {self.events}"
            assert not self.closed, "the keeper closed the channel"
            self.receive(deadline - time.monotonic())
        return value

    def reply(self, number: int) -> dict[str, Any]:
        return self.wait_for(lambda: self.replies.pop(number, None), f"reply to request {number}")

    def call(self, verb: str, fds: tuple[int, ...] = (), **members: Any) -> dict[str, Any]:
        reply = self.reply(self.send(verb, fds, **members))
        assert reply["ok"], reply
        return reply

    def stop(self, key: str, grace: float) -> dict[str, Any]:
        reply = self.call("stop", key=key, grace_seconds=grace, kill_seconds=30, reason="stopped")
        return {name: reply[name] for name in ("survivors", "killed")}

    def refused(self, verb: str, fds: tuple[int, ...] = (), **members: Any) -> dict[str, Any]:
        reply = self.reply(self.send(verb, fds, **members))
        assert not reply["ok"], reply
        return reply["error"]

    def event(self, name: str, **members: Any) -> dict[str, Any]:
        """Return the first event of that name whose members are as given; waits for it."""

        def found() -> dict[str, Any] | None:
            named = (event for event in self.events if event["event"] == name)
            return next(
                (it for it in named if members.items() <= it.get("record", it).items()), None
            )

        return self.wait_for(found, f"event {name} {members}")

    def exit(self, key: str) -> dict[str, Any]:
        """Return the exit record of a key; waits for it."""
        return self.event("exit", key=key)["record"]

    def end(self, code: int = 0) -> None:
        """Let this control plane exit with that code, and wait until it has: late after its
        channel, it is killed.
        """
        with contextlib.suppress(OSError):
            self.bridge.send(bytes([code]))
            self.bridge.recv(1)  # nothing comes but its end
        self.close()

    def close(self) -> None:
        self.bridge.close()
        self._frames.close()


class Rig:
    """A keeper in a directory of its own: `start()` begins, `connect()` gives the next channel,
    `close()` ends.

    `folder`: short and empty; one of its own, which goes with it, where none is given. `boot`:
    members of its document.
    """

    def __init__(self, folder: Path | None = None, **boot: Any) -> None:
        self.argv = KEEPER_ARGV  # PLAIN_ARGV where it is not the keeper that is under test
        self.dir = folder or Path(tempfile.mkdtemp(prefix="pxk-", dir="/tmp"))
        self._is_own = folder is None
        self.daemon_id = hashlib.sha256(os.path.realpath(self.dir / "state").encode()).hexdigest()[
            :8
        ]
        self._meeting = socket.socket(socket.AF_UNIX)
        self._meeting.bind(str(self.dir / "meet"))
        self._meeting.listen(8)
        for name in ("run", "state", "logs"):
            (self.dir / name).mkdir(mode=0o700)
        self.boot = {
            "daemon_id": self.daemon_id,
            "run_dir": str(self.dir / "run"),
            "log_dir": str(self.dir / "logs"),
            "control_argv": probe("bridge", self.dir / "meet"),
            "pxd_argv": [],
            "log_segment_bytes": 1 << 20,
            "log_total_bytes": 8 << 20,
            "log_spill_bytes": 64 << 10,
            "stop_seconds": 30,
            "watchdog_seconds": 0,
            "control_hang_seconds": 60,
            "backoff_initial_seconds": 0.01,
            "backoff_max_seconds": 0.05,
            **boot,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.links: list[Link] = []
        self._keys = 0

    def start(self, env: dict[str, str] | None = None, fds: tuple[int, ...] = ()) -> Rig:
        with self.boot_fd() as fd, (self.dir / "stderr").open("ab") as stderr:
            words = [*self.argv, "--boot-fd", str(fd)]
            streams = {"stdin": subprocess.DEVNULL, "stdout": stderr, "stderr": stderr}
            self.process = subprocess.Popen(
                words, pass_fds=(fd, *fds), env={**os.environ, **(env or {})}, **streams
            )
        return self

    @contextlib.contextmanager
    def boot_fd(self) -> Iterator[int]:
        read, write = os.pipe()
        with open(write, "w") as file:
            json.dump(self.boot, file)
        yield read
        os.close(read)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def connect(self) -> Link:
        """Wait for the next control plane and return its channel, hello not yet said."""
        self._meeting.settimeout(PATIENCE)
        bridge, _ = self._meeting.accept()
        bridge.settimeout(PATIENCE)
        word, fds, _, _ = socket.recv_fds(bridge, 64, 1)
        link = Link(bridge, socket.socket(fileno=fds[0]), int(word))
        self.links.append(link)
        return link

    def up(self) -> Link:
        self.start()
        return self.greet()

    def greet(self) -> Link:
        """Wait for the next control plane and say hello as it."""
        link = self.connect()
        link.hello = link.call("hello", protocol=1)
        return link

    def key(self) -> str:
        self._keys += 1
        return f"{self.daemon_id}.key{self._keys:04d}"

    def spec(self, argv: list[str], unit: str = "tool:probe", **members: Any) -> dict[str, Any]:
        key = members.pop("key", None) or self.key()
        env = {
            "PATH": "/usr/bin:/bin",
            "PX_INSTANCE": key,
            "PX_UNIT": unit,
            **members.pop("env", {}),
        }
        return {"key": key, "unit": unit, "argv": argv, "cwd": str(self.dir), "env": env, **members}

    def spawn(self, argv: list[str], unit: str = "tool:probe", **members: Any) -> dict[str, Any]:
        child: dict[str, Any] = self.links[-1].call("spawn", **self.spec(argv, unit, **members))[
            "child"
        ]
        return child

    def lines(self) -> list[dict[str, Any]]:
        lines = (self.dir / "stderr").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line.get("event") == event]

    def dump(self) -> dict[str, Any]:
        before = len(self.said("state"))
        os.kill(self.pid, signal.SIGUSR1)
        state: dict[str, Any] = until(lambda: self.said("state")[before:], "the dump")[0]
        return state

    def output(self, unit: str) -> bytes:
        """Return the unit's whole output as its segments hold it."""
        folder = Path(self.boot["log_dir"], *unit.split(":"))
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """End the keeper, clean up, and fail if anything outlived it."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        for link in self.links:
            link.end()
        self._meeting.close()
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE / 2)
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(AssertionError):
            until(lambda: not marked(self.daemon_id))
        leaked = marked(self.daemon_id)
        for pid in leaked:
            os.kill(pid, signal.SIGKILL)
        if self._is_own:
            shutil.rmtree(self.dir, ignore_errors=True)
        assert not leaked, f"processes {leaked} outlived the keeper"


class RealKeeper(Rig):
    """For rooms above: started at once, in a short folder; its control planes lend their channel
    to the test.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder)
        self.argv = PLAIN_ARGV
        self.start()

    async def client(self) -> KeeperClient:
        """Wait for the next control plane, and be it: return the client of the channel that it
        lends.
        """
        channel = (await asyncio.to_thread(self.connect)).channel.dup()
        return await KeeperClient.connect(
            channel, daemon_id=self.daemon_id, log_dir=self.boot["log_dir"]
        )

    def end_control(self) -> None:
        """Let the present control plane end as one that failed."""
        self.links[-1].end(1)


def records(folder: Path) -> list[tuple[Any, ...]]:
    """Return all index records of an output: position, time, length, instance, stream, nothing."""
    return [
        it
        for path in sorted(folder.glob("*.idx"))
        for it in struct.iter_unpack("<QdIHBB", path.read_bytes())
    ]


def family(rig: Rig, people: int, *traits: str, **members: Any) -> tuple[dict[str, Any], list[int]]:
    """Spawn a family and wait until all of it is there; return its SPAWN and the pids."""
    book = rig.dir / f"family-{len(list(rig.dir.iterdir()))}"
    spec = rig.spec(probe("family", book, *traits), **members)
    rig.links[-1].call("spawn", **spec)

    def pids() -> list[int] | None:
        found = list(map(int, book.read_text().split())) if book.exists() else []
        return found if len(found) == people else None

    return spec, until(pids, f"a family of {people}") or []
