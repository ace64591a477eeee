"""A tool as its own contract knows it: a process that was given `--port N`. No daemon."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TOOLS = Path(__file__).parents[2] / "supervisord_py" / "examples" / "tools"
NAMES = ("compound-interest", "lorenz-ode-solver", "text-stats")
DEADLINE = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, read to its end."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


@dataclass(frozen=True, slots=True)
class RunningTool:
    """A tool that answers."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        try:
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            fields = {"Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, body=content, headers=fields)
            response = connection.getresponse()
            return Answer(response.status, response.headers.get_content_type(), response.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.ask("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def end(self) -> tuple[int, bytes]:
        """Ask it to end; return its exit code and what it had said on stderr."""
        self.process.send_signal(signal.SIGTERM)
        _, stderr = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, stderr


def folder_of(name: str) -> Path:
    return TOOLS / name


def manifest_of(name: str) -> Any:
    return json.loads((folder_of(name) / "tool.json").read_text())


def request_of(name: str) -> Any:
    return json.loads((folder_of(name) / "test-request.json").read_text())


def argv_of(name: str, port: int) -> list[str]:
    command = manifest_of(name).get("command")
    if command is None:
        return [sys.executable, "main.py", "--port", str(port)]
    return [part.replace("{port}", str(port)) for part in command]


@contextmanager
def running_tool(name: str, folder: Path | None = None) -> Iterator[RunningTool]:
    """Start a tool, wait until it is healthy, and end it by its pid afterwards."""
    port = free_port()
    argv = argv_of(name, port) if folder is None else [sys.executable, "main.py", "--port", str(port)]
    process = subprocess.Popen(argv, cwd=folder or folder_of(name), stderr=subprocess.PIPE)
    tool = RunningTool(name, port, process)
    try:
        _wait_until_healthy(tool)
        yield tool
    finally:
        process.kill()
        if process.stderr and not process.stderr.closed:
            process.communicate()


def _wait_until_healthy(tool: RunningTool) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        if tool.process.poll() is not None:
            raise AssertionError(f"{tool.name} ended with {tool.process.returncode}: {tool.process.communicate()[1]!r}")
        try:
            if tool.ask("GET", "/healthz").json() == {"ok": True}:
                return
        except OSError:
            time.sleep(0.02)  # the pace of the polling; the wait is bounded above
    raise AssertionError(f"{tool.name} was not healthy within {DEADLINE} s")
