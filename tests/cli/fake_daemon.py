"""A stand-in for pxd on a Unix socket: canned answers, byte for byte, and a record of what was
asked.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import socketserver
import threading
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

DEADLINE = 60.0


class Request(NamedTuple):
    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes

    @property
    def arguments(self) -> dict[str, str]:
        return dict(self.query)

    def json(self) -> Any:
        return json.loads(self.body)


def reply(
    body: bytes, *, status: str = "200 OK", content_type: str = "application/json", more: str = ""
) -> bytes:
    """Return a whole answer with a length."""
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: "
        f"{len(body)}\r\n{more}\r\n"
    )
    return head.encode() + body


def document(value: Any, **settings: Any) -> bytes:
    return reply(json.dumps(value).encode(), **settings)


def problem_of(status: int, kind: str, exit_code: int = 1, **members: Any) -> dict[str, Any]:
    value = {
        "type": f"urn:px:problem:{kind}",
        "title": kind,
        "status": status,
        "kind": kind,
        "exit_code": exit_code,
    }
    return value | {"detail": f"it is {kind}"} | members


def problem(status: int, kind: str, exit_code: int = 1, **members: Any) -> bytes:
    return document(problem_of(status, kind, exit_code, **members), status=f"{status} X")


def results(outcomes: dict[str, Any]) -> bytes:
    """Return the answer to a request for several units: for each a document or a problem."""
    none = {"answer": None, "problem": None}
    each = [
        {"unit": unit, **none, "problem" if "exit_code" in it else "answer": it}
        for unit, it in outcomes.items()
    ]
    return document({"schema": "px.some-units/1", "results": each})


def chunked(*pieces: bytes, content_type: str = "application/json", ended: bool = True) -> bytes:
    """Return an answer in chunks; one that is not `ended` breaks off."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    body = b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces)
    return head + body + (b"0\r\n\r\n" if ended else b"")


def ndjson(*events: dict[str, Any], whole: bool = True) -> bytes:
    """Return a stream of events, one a line and a chunk."""
    lines = [json.dumps(event).encode() + b"\n" for event in events]
    return chunked(*lines, content_type="application/x-ndjson", ended=whole)


def pausing(
    go_on: threading.Event, before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> Any:
    """Return an answer that tells the first events, waits until it may go on, and tells the
    others.
    """

    def run(_: Request, connection: socket.socket) -> None:
        first = ndjson(*before, whole=False)
        connection.sendall(first)
        assert go_on.wait(DEADLINE)
        connection.sendall(ndjson(*before, *after).removeprefix(first))

    return run


class FakeDaemon:
    """Listens at `path`.

    `routes` maps "GET /api/x" to answers, the last of which is repeated; `default`: of others.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.default: Any = None
        self.routes: dict[str, list[Any]] = {}
        self.seen: list[Request] = []
        self.connections: list[socket.socket] = []
        self._server: socketserver.ThreadingUnixStreamServer | None = None

    def on(self, route: str, *answers: Any) -> FakeDaemon:
        self.routes[route] = list(answers)
        return self

    def start(self) -> FakeDaemon:
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                fake.connections.append(self.request)
                with contextlib.suppress(OSError):
                    super().handle()

            def serve(self) -> None:
                parts, body = (
                    urlsplit(self.path),
                    self.rfile.read(int(self.headers.get("Content-Length", 0))),
                )
                headers = {name.lower(): value for name, value in self.headers.items()}
                query = parse_qsl(parts.query, keep_blank_values=True)
                request = Request(self.command, unquote(parts.path), query, headers, body)
                answer = fake.answer_to(request)
                self.close_connection = (
                    self.close_connection or callable(answer) or b"Content-Length" not in answer
                )
                if callable(answer):
                    answer(request, self.request)
                else:
                    self.request.sendall(answer)

            do_GET = do_POST = do_PUT = do_DELETE = serve

        self._server = socketserver.ThreadingUnixStreamServer(self.path, Handler)
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()
        return self

    def stop(self) -> None:
        if self._server is None:
            return
        self._server.shutdown()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._server = None
        os.unlink(self.path)

    def asked(self, route: str) -> list[Request]:
        return [one for one in self.seen if f"{one.method} {one.path}" == route]

    def answer_to(self, request: Request) -> Any:
        route = f"{request.method} {request.path}"
        self.seen.append(request)
        answers = self.routes.get(route) or [
            self.default or problem(404, "unknown_route", detail=f"no {route}")
        ]
        return answers.pop(0) if len(answers) > 1 else answers[0]


def silent(_: Request, connection: socket.socket) -> None:
    """Answer nothing until the client has closed its end."""
    connection.settimeout(DEADLINE)
    with contextlib.suppress(OSError):
        while connection.recv(65536):
            pass
