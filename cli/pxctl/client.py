"""The daemon as the commands see it: documents in and out, problems as failures.

Law: an answer of 400 or more never reaches a command; it is raised as the `Problem` that the daemon sent. Reads are
asked again once when the connection is lost, because asking changes nothing and the daemon's brain may just have been
replaced; anything else is left to the user.
"""

from __future__ import annotations

import json

from pxctl.failure import Failure, Interrupted, Problem, Unreachable
from pxctl.http1 import Exchange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

READ_SECONDS = 30.0
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PROBLEM_LIMIT = 4 * 1024 * 1024


class Answer:
    """A whole JSON answer: the bytes as they came and what they mean."""

    __slots__ = ("document", "raw")

    def __init__(self, raw: bytes, document: Any) -> None:
        self.raw = raw
        self.document = document


class Client:
    """Asks one daemon.

    Args:
        path: Its socket.
        wake: Called once when nobody answers there; asked again when it returns. None: that is a failure at once.
    """

    def __init__(self, path: str, wake: Callable[[], None] | None = None) -> None:
        self.path = path
        self._wake = wake

    def open(
        self,
        method: str,
        target: str,
        *,
        body: bytes | None = None,
        fields: Mapping[str, str] | None = None,
        timeout: float | None = READ_SECONDS,
    ) -> Exchange:
        """Send a request; return the exchange with the body still to be read. The caller closes it."""
        exchange = self._connect(timeout)
        try:
            exchange.send(method, target, {"Accept": "application/json", **(fields or {})}, body)
            _refuse_problem(exchange)
        except BaseException:
            exchange.close()
            raise
        return exchange

    def ask(
        self,
        method: str,
        target: str,
        *,
        content: Any = None,
        timeout: float | None = READ_SECONDS,
    ) -> Answer:
        """Send a request with an optional JSON body and return the whole JSON answer."""
        body = None if content is None else json.dumps(content).encode()
        fields = {} if body is None else {"Content-Type": "application/json"}
        try:
            return self._ask(method, target, body, fields, timeout)
        except Interrupted:
            if method != "GET":
                raise
            return self._ask(method, target, body, fields, timeout)

    def get(self, target: str, *, timeout: float | None = READ_SECONDS) -> Answer:
        """Read a document."""
        return self.ask("GET", target, timeout=timeout)

    def _ask(
        self, method: str, target: str, body: bytes | None, fields: Mapping[str, str], timeout: float | None
    ) -> Answer:
        with self.open(method, target, body=body, fields=fields, timeout=timeout) as exchange:
            raw = exchange.read()
        try:
            return Answer(raw, json.loads(raw) if raw.strip() else {})
        except ValueError as error:
            raise Failure(
                f"the daemon's answer to {method} {target} is not JSON: {error}",
                kind="bad_answer",
                hint="pxctl doctor",
            ) from error

    def _connect(self, timeout: float | None) -> Exchange:
        try:
            return Exchange(self.path, timeout=timeout)
        except Unreachable:
            if self._wake is None:
                raise
        wake, self._wake = self._wake, None
        wake()
        return Exchange(self.path, timeout=timeout)


def quote(text: str) -> str:
    """Return `text` as one segment of a path or one value of a query; "." and ".." are quoted too."""
    if text in {".", ".."}:
        return text.replace(".", "%2E")
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in text.encode("utf-8", "surrogateescape"))


def query(target: str, parameters: Iterable[tuple[str, object]]) -> str:
    """Return the target with the parameters whose value is not None."""
    pairs = [f"{name}={quote(_plain(value))}" for name, value in parameters if value is not None]
    return f"{target}?{'&'.join(pairs)}" if pairs else target


def _plain(value: object) -> str:
    match value:
        case bool():
            return "1" if value else "0"
        case float():
            return f"{value:g}" if value.is_integer() else repr(value)
        case _:
            return str(value)


def _refuse_problem(exchange: Exchange) -> None:
    """Raise the problem that the daemon answered with; what is no document (an empty body) becomes one."""
    head, raw = exchange.head, b""
    if head.status < 400:
        return
    for chunk in exchange.chunks():
        raw += chunk
        if len(raw) > _PROBLEM_LIMIT:
            break
    try:
        members = json.loads(raw)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        text = raw[:500].decode("utf-8", "replace").strip()
        members = {"detail": f"the daemon answered {head.status} {head.reason}" + (f": {text}" if text else "")}
    if "retry_after_seconds" not in members and head.fields.get("retry-after", "").isdigit():
        members["retry_after_seconds"] = int(head.fields["retry-after"])
    raise Problem(head.status, members)
