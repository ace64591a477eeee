"""A whole daemon in a throw-away home, driven only through its installed commands and its socket."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import warm_client
from waiting import PATIENCE, alive, marked, remove_group, until

__all__ = ["alive", "marked", "until"]
BIN = Path(sys.executable).parent
DEADLINE = PATIENCE


class UnixConnection(http.client.HTTPConnection):
    """http.client over a Unix socket."""

    def __init__(self, path: str, seconds: float = DEADLINE) -> None:
        super().__init__("px", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class House:
    """One PX_HOME, at most one daemon in it.

    Attributes:
        measured: Whether coverage follows into its processes, which costs each a tenth of a second and its brains half
            of their speed. It does where a contract is gone through; what is about deaths and loads does without.
        elsewhere: The socket, where it is not at its place.
        runner: What runs pxd, and becomes it; nothing else.
    """

    home: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    measured: bool = False
    elsewhere: str | None = None
    runner: Sequence[str] = ()

    @property
    def socket(self) -> str:
        return self.elsewhere or str(self.home / "run" / "pxd.sock")

    @property
    def daemon_id(self) -> str:
        return hashlib.sha256(os.path.realpath(self.home / "state").encode()).hexdigest()[:8]

    @property
    def environ(self) -> dict[str, str]:
        left_out = ("PX_", "XDG_") if self.measured else ("PX_", "XDG_", "COVERAGE_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
        return {**kept, "PX_HOME": str(self.home), "PATH": f"{BIN}:{kept.get('PATH', '')}", **self.settings}

    def start(self, *args: str, wait: bool = True) -> None:
        log = open(self.home / "pxd.stderr", "ab")  # noqa: SIM115 - closed below, the child keeps its own
        self.process = subprocess.Popen(
            [*self.runner, BIN / "pxd", *args], env=self.environ, stderr=log, stdin=subprocess.DEVNULL
        )
        log.close()
        if wait:
            until(self.answers, f"pxd answers; it said: {self.said()}")

    def said(self) -> str:
        path = self.home / "pxd.stderr"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def answers(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            raise AssertionError(f"pxd exited {self.process.returncode}: {self.said()}")
        try:
            return self.request("GET", "/api/health", seconds=5).status == 200
        except (OSError, http.client.HTTPException):  # nobody there, or a control plane that is just being replaced
            return False

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float = DEADLINE,
    ) -> Answer:
        connection = UnixConnection(self.socket, seconds)
        try:
            payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            kind = {"Content-Type": "application/json"} if payload is not None else {}
            connection.request(method, path, payload, {**kind, **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        answer = self.request("GET", path)
        assert answer.status == 200, answer.body
        return answer.json()

    def run(self, tool: str, body: Any = None, **kwargs: Any) -> Answer:
        return self.request("POST", f"/api/tools/{tool}/run", {} if body is None else body, **kwargs)

    def pxctl(
        self, *args: str, seconds: float = DEADLINE, env: Mapping[str, str] | None = None, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return warm_client.run(
            [BIN / "pxctl", *args],
            env={**self.environ, **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            input=text,
        )

    def status(self, name: str) -> dict[str, Any]:
        units = [u for u in self.get("/api/status")["units"] if u["unit"] == f"tool:{name}"]
        assert len(units) == 1, units
        found: dict[str, Any] = units[0]
        return found

    def pids(self) -> tuple[int, int]:
        daemon = self.get("/api/status")["daemon"]
        return daemon["keeper"]["pid"], daemon["control"]["pid"]

    def tool(self, name: str, code: str, **manifest: Any) -> Path:
        folder = self.home / "tools" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "main.py").write_text(textwrap.dedent(code))
        plain = {"name": name, "version": "1.0", "description": "a test tool", "input": {"type": "object"}}
        (folder / "tool.json").write_text(json.dumps({**plain, **manifest}))
        return folder

    def wait_gone(self, seconds: float = DEADLINE) -> None:
        until(lambda: not marked(self.daemon_id), f"nothing is left of {self.home}: {marked(self.daemon_id)}", seconds)

    def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE)
        self.process = None
        return code

    def tear_down(self) -> None:
        """End everything of this house, whatever state a test left it in: what is about the end has waited for it."""
        if self.process is not None and self.process.poll() is None:
            if self.measured:  # a process that is killed tells nothing of what it covered
                self.process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(30)
            self.process.kill()
            self.process.wait(10)
        until(self._kill_marked, f"nothing is left of {self.home}")
        remove_group(self.daemon_id)

    def _kill_marked(self) -> bool:
        """Kill what is left; true once there is nothing. One that was forked meanwhile is only seen the next time."""
        left = marked(self.daemon_id)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return not left


SERVER = """
import json, os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Tool(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def answer(self, value, status=200):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path == "/healthz": self.answer({"ok": True})
        elif self.path == "/schema": self.answer(json.load(open("tool.json")))
        else: self.answer({"detail": "no"}, 404)
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path == "/run": self.answer(run(body))
        else: self.answer({"detail": "no"}, 404)

def serve():
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Tool).serve_forever()
"""


def server(run: str) -> str:
    """Return the source of a tool whose run(body) is `run`, Python statements that return a JSON value."""
    body = textwrap.indent(textwrap.dedent(run).strip(), "    ")
    return f"{SERVER}\ndef run(body):\n{body}\n\nif __name__ == '__main__':\n    serve()\n"


@contextlib.contextmanager
def house(settings: Mapping[str, str] | None = None, *, parent: str = "/tmp") -> Iterator[House]:
    """Make a house with a short path (socket paths are limited) and leave nothing of it behind."""
    home = Path(tempfile.mkdtemp(prefix="px-", dir=parent))
    made = House(home, dict(settings or {}))
    try:
        yield made
    finally:
        try:
            made.tear_down()
        finally:
            shutil.rmtree(home, ignore_errors=True)


def written_pid(path: Path) -> int:
    """Return the pid that a child writes into a file, once it has."""
    return int(until(lambda: path.exists() and path.read_text(encoding="utf-8").strip(), f"a child wrote {path}"))
