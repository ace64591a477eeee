"""A stand-in for pxd on a Unix socket: canned answers, byte for byte, and a record of what was asked."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

DEADLINE = 60.0


@dataclass
class Request:
    """What a client sent."""

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


def reply(body: bytes, *, status: str = "200 OK", content_type: str = "application/json", more: str = "") -> bytes:
    """Return a whole answer with a length."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def document(value: Any, **settings: Any) -> bytes:
    """Return a JSON answer."""
    return reply(json.dumps(value).encode(), **settings)


def problem_of(status: int, kind: str, exit_code: int = 1, **members: Any) -> dict[str, Any]:
    """Return a problem document."""
    value = {"type": f"urn:px:problem:{kind}", "title": kind, "status": status, "kind": kind, "exit_code": exit_code}
    return value | {"detail": f"it is {kind}"} | members


def problem(status: int, kind: str, exit_code: int = 1, **members: Any) -> bytes:
    content_type = "application/problem+json"
    return document(problem_of(status, kind, exit_code, **members), status=f"{status} X", content_type=content_type)


def results(**answers: Any) -> bytes:
    """Return the answer to a request for several units, by name (`kind__x` is `kind:x`): a document or a problem."""
    each = []
    for name, answer in answers.items():
        unit = name.replace("__", ":").replace("_", "-") if "__" in name else f"tool:{name}"
        is_problem = str(answer.get("type", "")).startswith("urn:px:problem:")
        told = {"answer": None, "problem": answer} if is_problem else {"answer": answer, "problem": None}
        each.append({"unit": unit, **told})
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


def pausing(go_on: threading.Event, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Any:
    """Return an answer that tells the first events, waits until it may go on, and tells the others."""

    def run(_: Request, connection: socket.socket) -> None:
        whole = ndjson(*before, *after)
        first = len(ndjson(*before)) - len(b"0\r\n\r\n")
        connection.sendall(whole[:first])
        assert go_on.wait(DEADLINE)
        connection.sendall(whole[first:])

    return run


@dataclass
class FakeDaemon:
    """Listens at `path`. `routes` maps "GET /api/x" to answers; the last of several is repeated."""

    path: str
    routes: dict[str, list[Any]] = field(default_factory=dict)
    seen: list[Request] = field(default_factory=list)
    connections: list[socket.socket] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    _server: socketserver.ThreadingUnixStreamServer | None = None

    def on(self, route: str, *answers: Any) -> FakeDaemon:
        self.routes[route] = list(answers)
        return self

    def start(self) -> FakeDaemon:
        fake = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                fake.connections.append(self.request)
                with contextlib.suppress(OSError):
                    while fake.answer(self.request):
                        pass

        class Server(socketserver.ThreadingUnixStreamServer):
            request_queue_size = 50

        self._server = Server(self.path, Handler)
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
        with self.changed:
            return [one for one in self.seen if f"{one.method} {one.path}" == route]

    def await_request(self, route: str, count: int = 1) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.asked(route)) >= count, DEADLINE), (
                f"{route} was not asked for"
            )

    def answer(self, connection: socket.socket) -> bool:
        """Answer one request; say whether the connection stays open for another."""
        request = read_request(connection)
        if request is None:
            return False
        with self.changed:
            self.seen.append(request)
            answers = self.routes.get(f"{request.method} {request.path}")
            answer = None if not answers else answers.pop(0) if len(answers) > 1 else answers[0]
            self.changed.notify_all()
        if answer is None:
            answer = problem(404, "unknown_route", 1, detail=f"no {request.method} {request.path} here")
        if callable(answer):
            answer(request, connection)
            return False
        connection.sendall(answer)
        return request.headers.get("connection") == "keep-alive" and b"Content-Length" in answer


def read_request(connection: socket.socket) -> Request | None:
    """Read one request; None when the client only looked whether somebody is there."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(65536)
        if not piece:
            return None
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    first, *fields = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in fields)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536)
    method, target, _ = first.split(" ")
    parts = urlsplit(target)
    return Request(method, unquote(parts.path), parse_qsl(parts.query, keep_blank_values=True), headers, body)


def until_client_leaves(connection: socket.socket) -> None:
    """Block until the client has closed its end."""
    connection.settimeout(DEADLINE)
    try:
        while connection.recv(65536):
            pass
    except OSError:
        pass


def socket_in(folder: Path) -> str:
    return str(folder / "s")
