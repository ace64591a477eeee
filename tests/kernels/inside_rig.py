"""A kernel that `inside/launch.py` started, and a client of Jupyter's that speaks with it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking import BlockingKernelClient

from kernels.cell_folder import out_of, records_of
from supervisord_py.kernels import inside
from supervisord_py.kernels.connection_file import PORTS
from waiting import PATIENCE

LAUNCHER = str(Path(inside.__file__).with_name("launch.py"))
OLDER_PYTHON = Path(sys.prefix) / "peers" / "ipykernel6" / "bin" / "python"
KNOWN = {
    "silent": False,
    "store_history": True,
    "user_expressions": {},
    "allow_stdin": False,
    "stop_on_error": True,
}


def ours(python: str = sys.executable, *options: str) -> list[str]:
    return [python, LAUNCHER, *options]


def stock(python: str = sys.executable) -> list[str]:
    return [python, "-m", "ipykernel_launcher"]


@dataclass
class Ran:
    id: str
    reply: dict[str, Any]
    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def text(self, stream: str = "stdout") -> str:
        told = [content for kind, content in self.messages if kind == "stream"]
        return "".join(content["text"] for content in told if content["name"] == stream)


class InsideRig:
    """One kernel process and its client. `options`: of Popen, see `kernel`."""

    def __init__(self, folder: Path, argv: Sequence[str], **options: Any) -> None:
        self.cells, self.cwd, self.stderr = folder / "cells", folder / "cwd", folder / "stderr"
        for made in (self.cells, self.cwd):
            made.mkdir(exist_ok=True)
        connection = folder / "connection.json"
        ports = {f"{channel}_port": number for channel, number in PORTS.items()}
        about = {
            "transport": "ipc",
            "ip": f"{folder}/s",
            "key": "secret",
            "signature_scheme": "hmac-sha256",
        }
        connection.write_text(json.dumps({**about, **ports}))
        self.client = BlockingKernelClient(connection_file=str(connection))
        self.client.load_connection_file()
        self.client.start_channels(hb=False)
        self._passed: dict[str, list[Any]] = {channel: [] for channel in PORTS}
        left_out = ("COVERAGE_",) if options.pop("interrupted", False) else ()
        given = options.pop("env", os.environ).items()
        env = {
            it: text
            for it, text in given
            if it != "PYTEST_CURRENT_TEST" and not it.startswith(left_out)
        }
        with self.stderr.open("ab") as stderr:
            chosen: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": stderr,
                "stderr": stderr,
                "cwd": self.cwd,
            }
            chosen |= {"env": env, "start_new_session": True, **options}
            self.process = subprocess.Popen([*argv, "-f", str(connection)], **chosen)

    def ask(self, channel: str, kind: str, content: dict[str, Any], **parts: Any) -> str:
        message = self.client.session.msg(kind, content, metadata=parts.get("metadata"))
        message["header"].update(parts.get("header", {}))
        getattr(self.client, f"{channel}_channel").send(message)
        return str(message["header"]["msg_id"])

    def send(
        self, code: str, *, px: bool = True, preview: int = 65536, cap: int = 1 << 28, **more: Any
    ) -> str:
        """Send an execute_request, with `px` one of ours; return the cell's id."""
        cell = uuid.uuid4().hex[:16]
        metadata = (
            {"px": {"cell": cell, "dir": str(self.cells), "preview": preview, "cap": cap, **more}}
            if px
            else {}
        )
        return self.ask(
            "shell",
            "execute_request",
            {"code": code, **KNOWN},
            metadata=metadata,
            header={"msg_id": cell},
        )

    def message(self, channel: str, parent: str) -> Any:
        """Return the next message of this channel about a request; those about others are kept
        for whoever asks.
        """
        passed, deadline = self._passed[channel], time.monotonic() + PATIENCE
        for message in passed:
            if message["parent_header"].get("msg_id") == parent:
                passed.remove(message)
                return message
        while True:
            # before the look: what it said last may have come since the one before
            ended = self.process.poll()
            try:
                message = getattr(self.client, f"{channel}_channel").get_msg(timeout=0.1)
            except queue.Empty:
                assert (ended, time.monotonic() < deadline) == (None, True), self.stderr.read_text()
                continue
            if message["parent_header"].get("msg_id") == parent:
                return message
            passed.append(message)

    def collect(self, cell: str) -> Ran:
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
        ran = self.run(code, **options)
        assert ran.reply["status"] == "ok", ran.reply
        return ran

    def out(self, cell: str) -> bytes:
        return out_of(self.cells, cell)

    def records(self, cell: str, kind: str | None = None) -> list[dict[str, Any]]:
        return records_of(self.cells, cell, kind)

    def interrupt(self) -> None:
        os.kill(self.process.pid, signal.SIGINT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.ask("control", "shutdown_request", {"restart": False})
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self.client.stop_channels()
        self.client.context.destroy(linger=0)


@contextmanager
def kernel(argv: Sequence[str], **options: Any) -> Iterator[InsideRig]:
    """Give a kernel that answers, in a short folder of its own; it is ended afterwards.

    With `interrupted` it is not measured: an exception that a signal raises in the middle of
    coverage's tracer leaves the tracer's lock held, and every thread of the kernel waits for it for
    ever.
    """
    with (
        tempfile.TemporaryDirectory(prefix="pxi", dir="/tmp", ignore_cleanup_errors=True) as folder,
        closing(InsideRig(Path(folder), argv, **options)) as rig,
    ):
        rig.client.wait_for_ready(timeout=PATIENCE)
        yield rig


def refused(argv: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("px-launch: ")]
    assert (len(lines), done.returncode) == (1, 78), done.stderr
    told: dict[str, Any] = json.loads(lines[0].removeprefix("px-launch: "))
    return told
