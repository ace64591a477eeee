"""Asking the daemon over its Unix socket, from a process that is not ours and may have any event loop.

Law: an answer that does not come is no answer: only a socket behind which nobody listens says that the daemon is gone.
While the control plane is replaced the keeper holds the socket, and who asks waits. HTTP is read here: a web client's
import would cost a front end more than the start of its kernel.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisord_py.daemon.paths import resolve_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

ASK_SECONDS = 60.0
START_SECONDS = 30.0
# What a service manager grants belongs to Jupyter's service here, not to the daemon.
_NOT_OURS = ("RUNTIME_DIRECTORY", "STATE_DIRECTORY", "LOGS_DIRECTORY", "CONFIGURATION_DIRECTORY", "CACHE_DIRECTORY")


class DaemonError(RuntimeError):
    """The daemon refused, or did not answer; the message is for people.

    Attributes:
        status: HTTP status of a refusal; None where there was no answer.
        kind: Kind of the problem document, `gone` where nobody listens, `broken` where the connection broke off.
        is_gone: There is no daemon: its kernels ended with it.
    """

    def __init__(self, message: str, status: int | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.is_gone = kind == "gone"


class ControlSocket:
    """The way to one daemon: by its socket, else the one that PX_SOCKET, PX_HOME or the platform mean."""

    def __init__(self, path: str = "") -> None:
        self.path = path or str(resolve_paths(_own_environment()).socket)

    async def ask(
        self, method: str, route: str, body: Mapping[str, Any] | None = None, seconds: float = ASK_SECONDS
    ) -> dict[str, Any]:
        """Send one request and return the JSON document of the answer.

        Raises DaemonError: no answer, or the answer is a problem document.
        """
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {route} HTTP/1.1", "Host: px", "Accept: application/json", "Connection: close"]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        try:
            async with asyncio.timeout(seconds):
                heard = await self._exchange("\r\n".join([*lines, "", ""]).encode("ascii") + content)
            head, _, body_heard = heard.partition(b"\r\n\r\n")
            status, document = int(head.split(maxsplit=2)[1]), json.loads(body_heard)
        except TimeoutError as error:
            raise DaemonError(f"pxd did not answer {method} {route} within {seconds:g} s", kind="late") from error
        except (OSError, IndexError, ValueError) as error:
            raise DaemonError(f"pxd broke off its answer at {self.path}: {error!r}", kind="broken") from error
        if not isinstance(document, dict):
            raise DaemonError("pxd answered with something that is no document of its API", status)
        if status >= 400:
            detail, hint = str(document.get("detail") or document.get("title")), document.get("hint")
            end = "" if detail.endswith((".", "!", "?")) or not hint else "."
            words = f"{detail}{end} {hint}" if hint else detail
            raise DaemonError(words, status, str(document.get("kind", "")))
        return document

    async def _exchange(self, request: bytes) -> bytes:
        try:
            reader, writer = await asyncio.open_unix_connection(self.path)
        except OSError as error:
            raise DaemonError(
                f"pxd does not answer at {self.path}: {error.strerror or error}. Start it: pxctl daemon start",
                kind="gone",
            ) from error
        try:
            writer.write(request)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()

    async def ask_surely(
        self, method: str, route: str, body: Mapping[str, Any] | None = None, seconds: float = ASK_SECONDS
    ) -> dict[str, Any]:
        """As `ask`, for what may be asked twice: once more where the control plane was replaced in between."""
        try:
            return await self.ask(method, route, body, seconds)
        except DaemonError as error:
            if error.kind not in {"broken", "interrupted"}:
                raise
        return await self.ask(method, route, body, seconds)

    async def ensure_running(self) -> None:
        """Start the daemon where it is not there, unless PX_AUTOSTART=0 forbids it.

        Raises DaemonError: it is not there and may not or cannot be started.
        """
        try:
            await self.ask_surely("GET", "/api/health", seconds=START_SECONDS)
        except DaemonError as error:
            if not error.is_gone or os.environ.get("PX_AUTOSTART") == "0":
                raise
            await asyncio.to_thread(self._start)

    def _start(self) -> None:
        beside = Path(sys.executable).with_name("pxctl")
        command = [str(beside) if beside.exists() else "pxctl", "--socket", self.path, "daemon", "start"]
        options: Any = {"env": _own_environment(), "stdin": subprocess.DEVNULL, "capture_output": True}
        try:
            run = subprocess.run(command, check=False, **options)
        except OSError as error:
            raise DaemonError(f"pxd does not run, and {command[0]} cannot start it: {error}", kind="gone") from error
        if run.returncode != 0:
            raise DaemonError(f"pxd could not be started: {run.stderr.decode(errors='replace').strip()}", kind="gone")


def _own_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _NOT_OURS}


def shown_by(error: DaemonError, program: str = "jupyter_server") -> Exception:
    """Return the error to raise in this process: the very one, or in `program` one that its pages are told of.

    jupyter_server sends only tornado's own errors to its pages; of any other they learn "Unhandled error".
    """
    if program not in sys.modules:
        return error
    from tornado.web import HTTPError

    return HTTPError(error.status or 503, str(error))
