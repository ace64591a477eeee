"""A kernel that `inside/launch.py` started, and a client that speaks Jupyter's protocol with it over plain sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.session import Session

from supervisord_py.kernels import inside

LAUNCHER = str(Path(inside.__file__).with_name("launch.py"))
OLDER_PYTHON = Path(sys.prefix) / "peers" / "ipykernel6" / "bin" / "python"
PATIENCE = 60.0
PREVIEW = 65536
CAP = 1 << 28
PORTS = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4, "hb": 5}


def ours(python: str = sys.executable, *options: str) -> list[str]:
    """Return the command line of a kernel of ours; the connection file is added."""
    return [python, LAUNCHER, *options]


def stock(python: str = sys.executable) -> list[str]:
    return [python, "-m", "ipykernel_launcher"]


def until(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of `condition`."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come within {PATIENCE} s"
        time.sleep(0.005)
    return value


@dataclass
class Ran:
    """What came of one execute_request."""

    id: str
    reply: dict[str, Any]
    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def text(self, stream: str = "stdout") -> str:
        """Return what was published of a stream."""
        told = [content for kind, content in self.messages if kind == "stream"]
        return "".join(content["text"] for content in told if content["name"] == stream)


class InsideRig:
    """One kernel process and its sockets."""

    def __init__(self, folder: Path, argv: Sequence[str], **options: Any) -> None:
        self.folder = folder
        self.cells = folder / "cells"
        self.cwd = folder / "cwd"
        for made in (self.cells, self.cwd):
            made.mkdir(exist_ok=True)
        self.session = Session(key=b"secret")
        self.stderr = folder / "stderr"
        self._sockets: dict[str, Any] = {}
        self._context = zmq.Context()
        self._passed: dict[str, list[Any]] = {channel: [] for channel in PORTS}
        self._connect()
        self.process = self._start(argv, options)

    def _connect(self) -> None:
        for channel, kind in (("shell", zmq.DEALER), ("control", zmq.DEALER), ("iopub", zmq.SUB)):
            socket = self._context.socket(kind)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RECONNECT_IVL, 5)
            if kind == zmq.SUB:
                socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(f"ipc://{self.folder}/s-{PORTS[channel]}")
            self._sockets[channel] = socket

    def _start(self, argv: Sequence[str], options: dict[str, Any]) -> subprocess.Popen[bytes]:
        connection = self.folder / "connection.json"
        ports = {f"{channel}_port": number for channel, number in PORTS.items()}
        known = {"transport": "ipc", "ip": f"{self.folder}/s", "key": "secret", "signature_scheme": "hmac-sha256"}
        connection.write_text(json.dumps({**known, **ports}))
        given = options.pop("env", os.environ)
        environ = {name: value for name, value in given.items() if name != "PYTEST_CURRENT_TEST"}
        if options.pop("interrupted", False):
            environ = {name: value for name, value in environ.items() if not name.startswith("COVERAGE_")}
        with self.stderr.open("ab") as stderr:
            chosen: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": stderr, "stderr": stderr, "cwd": self.cwd}
            chosen |= {"env": environ, "start_new_session": True, **options}
            return subprocess.Popen([*argv, "-f", str(connection)], **chosen)

    def ready(self) -> InsideRig:
        """Wait until it has answered, its iopub socket is heard, and it is idle again."""
        deadline = time.monotonic() + PATIENCE
        while True:
            asked = self.ask("shell", "kernel_info_request", {})
            idle = answered = False
            until_then = time.monotonic() + 0.5
            while time.monotonic() < until_then and not (idle and answered):
                answered |= self._take("shell", 10, asked) is not None
                published = self._take("iopub", 10, asked)
                idle |= published is not None and published["content"].get("execution_state") == "idle"
            if idle and answered:
                return self
            assert self.process.poll() is None, self.stderr.read_text()
            assert time.monotonic() < deadline, "the kernel does not answer"

    def ask(self, channel: str, kind: str, content: dict[str, Any], **parts: Any) -> str:
        """Send a request; return its id."""
        message = self.session.msg(kind, content, metadata=parts.get("metadata"))
        message["header"].update(parts.get("header", {}))
        self.session.send(self._sockets[channel], message)
        return str(message["header"]["msg_id"])

    def send(self, code: str, *, px: bool = True, preview: int = PREVIEW, cap: int = CAP, **content: Any) -> str:
        """Send an execute_request, with `px` one of ours; return the cell's id."""
        cell = uuid.uuid4().hex[:16]
        header = {"msg_id": cell}
        known = {"silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        metadata = {"px": {"cell": cell, "dir": str(self.cells), "preview": preview, "cap": cap}} if px else {}
        whole = {"code": code, "stop_on_error": True, **known, **content}
        return self.ask("shell", "execute_request", whole, metadata=metadata, header=header)

    def _take(self, channel: str, milliseconds: int, parent: str | None = None) -> Any:
        socket = self._sockets[channel]
        if not socket.poll(milliseconds):
            return None
        _, frames = self.session.feed_identities(socket.recv_multipart())
        message = self.session.deserialize(frames)
        return message if parent is None or message["parent_header"].get("msg_id") == parent else None

    def message(self, channel: str, parent: str) -> Any:
        """Return the next message of this channel about a request; those about others are kept for whoever asks."""
        passed = self._passed[channel]
        for message in passed:
            if message["parent_header"].get("msg_id") == parent:
                passed.remove(message)
                return message
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            ended = self.process.poll()  # before the look: what it said last may have come since the one before
            message = self._take(channel, 100)
            if message is not None and message["parent_header"].get("msg_id") == parent:
                return message
            if message is not None:
                passed.append(message)
                continue
            assert ended is None, f"the kernel died: {ended}\n{self.stderr.read_text()}"
        raise AssertionError(f"no {channel} message in {PATIENCE} s\n{self.stderr.read_text()}")

    def collect(self, cell: str) -> Ran:
        """Wait for the reply and for idle."""
        ran = Ran(cell, self.message("shell", cell)["content"])
        while True:
            message = self.message("iopub", cell)
            kind, content = message["header"]["msg_type"], message["content"]
            ran.messages.append((kind, content))
            if kind == "status" and content["execution_state"] == "idle":
                return ran

    def run(self, code: str, **options: Any) -> Ran:
        return self.collect(self.send(code, **options))

    def good(self, code: str, **options: Any) -> Ran:
        """Run, and insist that it went well."""
        ran = self.run(code, **options)
        assert ran.reply["status"] == "ok", ran.reply
        return ran

    def out(self, cell: str) -> bytes:
        path = self.cells / f"{cell}.out"
        return path.read_bytes() if path.exists() else b""

    def records(self, cell: str, kind: str | None = None) -> list[dict[str, Any]]:
        path = self.cells / f"{cell}.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [record for record in found if kind is None or record["kind"] == kind]

    def interrupt(self) -> None:
        """SIGINT to the kernel's process alone."""
        os.kill(self.process.pid, signal.SIGINT)

    def close(self) -> None:
        """End the kernel and all of its group."""
        if self.process.poll() is None:
            self.ask("control", "shutdown_request", {"restart": False})
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        for socket in self._sockets.values():
            socket.close()
        self._context.term()


@contextmanager
def kernel(folder: Path, argv: Sequence[str], **options: Any) -> Iterator[InsideRig]:
    """Give a kernel that answers; it is ended afterwards.

    Args:
        folder: Short and private.
        argv: Of the kernel.
        options: Of Popen; with `interrupted` it is not measured: an exception that a signal raises in the middle of
            coverage's tracer leaves the tracer's lock held, and every thread of the kernel waits for it for ever.
    """
    rig = InsideRig(folder, argv, **options)
    try:
        yield rig.ready()
    finally:
        rig.close()


def refused(argv: Sequence[str]) -> dict[str, Any]:
    """Return the one line of JSON of a kernel that does not start."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("px-launch: ")]
    assert (len(lines), done.returncode) == (1, 78), done.stderr
    told: dict[str, Any] = json.loads(lines[0].removeprefix("px-launch: "))
    return told
