"""The daemon as the commands see it: requests and documents over its Unix socket, failures, and
names of units.

HTTP/1.1 (RFC 9112), as much of it as pxd answers with: the stdlib's client would double the
start-up time. An answer that ends before its framing says so is never taken for a whole one. A lost
GET is asked again once.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

READ_SECONDS = 30.0
SLACK_SECONDS = 15.0  # how much longer than its own limit the daemon may take to answer
_CONNECT_SECONDS = 10
_READ_BYTES = 64 * 1024
_NO_CONTENT = frozenset({204, 304})  # RFC 9112 section 6.3
_RESET_CONTENT = 205  # has no content either, but says so with a length (RFC 9110 section 15.3.6)
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


# -- failures and their exit codes (CONTRACT §3, §4) -----------------------------------------------


Document = dict[str, Any]


class Exit:
    (
        OK,
        FAILED,
        USAGE,
        INACTIVE,
        UNKNOWN_UNIT,
        UNREACHABLE,
        PERMISSION,
        TIMED_OUT,
        CONFLICT,
        LIMIT_EXCEEDED,
    ) = range(10)


_EXIT_BY_KIND = {
    "usage": 2, "unconfirmed": 2, "binary_answer": 2, "inactive": 3, "not_running": 3,
    "unknown_unit": 4, "unreachable": 5, "forbidden": 6, "timed_out": 7, "keeper_timeout": 7,
    "conflict": 8, "survivors": 8,
}  # fmt: skip
PROBLEM_PREFIX = "urn:px:problem:"
# kinds of failures of a daemon that is away, perhaps for a moment
AWAY = {"unreachable", "interrupted", "shutdown"}


class Failure(Exception):
    """An outcome to report and to exit with, by default with the exit code of its kind.

    `action`: what was being done ("run tool:x"); None: the command says it; "": the detail says it
    all. `extra`: more members of its document.
    """

    action: str | None = None

    def __init__(
        self,
        detail: str,
        *,
        kind: str = "failed",
        hint: str | None = None,
        unit: str | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.detail, self.kind, self.hint, self.unit, self.extra = detail, kind, hint, unit, extra
        self.exit_code: int = extra.pop("exit_code", _EXIT_BY_KIND.get(kind, Exit.FAILED))

    def document(self) -> Document:
        title = self.kind.replace("_", " ").capitalize()
        head = {
            "type": PROBLEM_PREFIX + self.kind,
            "title": title,
            "status": None,
            "kind": self.kind,
        }
        rest = {
            "detail": self.detail,
            "hint": self.hint,
            "unit": self.unit,
            "exit_code": self.exit_code,
        }
        return {**head, **rest, **self.extra}


class Unreachable(Failure):
    def __init__(self, path: str, why: str) -> None:
        detail, hint = f"no daemon answers at {path}: {why}", "pxctl daemon start"
        super().__init__(detail, kind="unreachable", hint=hint, socket=path)


class Interrupted(Failure):
    """The connection was lost after the request went out: whether it happened is unknown; asking
    again is safe.
    """

    def __init__(self, why: str) -> None:
        detail = (
            f"the connection to the daemon was lost, and whether it was done is not known: {why}"
        )
        super().__init__(detail, kind="interrupted", hint="pxctl doctor", retryable=True)


def usage(detail: str, hint: str | None = None) -> Failure:
    """Return the failure of a call that cannot be meant so; without a hint it is the help of the
    command.
    """
    return Failure(detail, kind="usage", hint=hint)


def problem(status: int, members: Document) -> Failure:
    usual = {"kind": "failed", "exit_code": Exit.FAILED, "status": status}
    found: Document = usual | {name: value for name, value in members.items() if value is not None}
    return Failure(str(found.pop("detail", f"the daemon answered {status}")), **found)


# -- one exchange ----------------------------------------------------------------------------------


class Exchange(AbstractContextManager["Exchange"]):
    """A connection with a request and its answer at a time.

    To close it before its end means a wish to cancel.
    """

    def __init__(self, path: str) -> None:
        self._path, self._timeout = path, 0.0
        self._socket = _connect(path)
        self._answer = self._socket.makefile("rb")
        # of the answer; names of fields in lower case
        self.status, self.fields = 0, dict[str, str]()
        self.is_kept = False  # the daemon leaves the connection open for one more request

    def __exit__(self, *exc: object) -> None:
        if not self.is_kept:
            self.close()

    def close(self) -> None:
        self._answer.close()
        self._socket.close()

    @property
    def content_type(self) -> str:
        return self.fields.get("content-type", "").split(";", 1)[0].strip().lower()

    def send(
        self,
        method: str,
        target: str,
        fields: Mapping[str, str],
        body: bytes | None,
        timeout: float | None,
    ) -> None:
        """Send a request and read the head of its answer; `timeout`: seconds of silence that are
        borne (None: any).
        """
        self._timeout = timeout or 0.0
        self._socket.settimeout(timeout)
        lines = [f"{method} {target} HTTP/1.1", "Host: px", "User-Agent: pxctl"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        if body is not None or method != "GET":
            lines.append(f"Content-Length: {len(body or b'')}")
        with self._failing():
            # A refusal (413) may be on its way already although not everything was taken.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._socket.sendall(
                    "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")
                )
            line = self._line()
            if not re.match(rb"HTTP/1\.\d \d{3}\b", line):
                raise ValueError(f"an answer that begins with {line[:40]!r}")
            self.status, self.fields = int(line[9:12]), {}
            while line := self._line():
                name, _, value = line.decode("latin-1").partition(":")
                self.fields[name.lower()] = value.strip()
        self.is_kept = (
            fields.get("Connection") == "keep-alive" and self.fields.get("connection") != "close"
        )

    def read(self) -> bytes:
        return b"".join(self.chunks())

    @property
    def has_content(self) -> bool:
        """False where the status alone says that nothing follows the head, whatever its fields
        say.
        """
        return self.status not in _NO_CONTENT

    def chunks(self) -> Iterator[bytes]:
        if not self.has_content:
            return
        with self._failing():
            if "content-length" in self.fields:
                yield from self._exactly(int(self.fields["content-length"]))
            elif self.fields.get("transfer-encoding") == "chunked":
                while size := int(self._line(), 16):
                    yield from self._exactly(size)
                    self._line()
                self._line()
            elif self.status != _RESET_CONTENT:
                raise ValueError("an answer without a length")

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of NDJSON without their ends, each as soon as it is complete; raise
        one that is a problem.
        """
        held = b""
        for chunk in itertools.chain(self.chunks(), [b"\n"]):  # the last one may have no end
            *lines, held = (held + chunk).split(b"\n")
            for line in filter(bytes.strip, lines):
                event = _document_in(line) if PROBLEM_PREFIX.encode() in line[:200] else None
                if event is not None and str(event.get("type")).startswith(PROBLEM_PREFIX):
                    raise problem(500, event)
                yield line.removesuffix(b"\r")

    def _exactly(self, count: int) -> Iterator[bytes]:
        while count > 0:
            piece = self._answer.read1(min(count, _READ_BYTES))
            if not piece:
                raise EOFError
            count -= len(piece)
            yield piece

    def _line(self) -> bytes:
        line = self._answer.readline(_READ_BYTES)
        if not line.endswith(b"\n"):
            raise EOFError
        return line.rstrip(b"\r\n")

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            detail = f"what answers at {self._path} is not pxd: it sent {error}"
            raise Failure(detail, kind="bad_answer", hint="check PX_SOCKET and --socket") from error
        except TimeoutError as error:
            detail = f"the daemon has not answered for {self._timeout:g} s"
            raise Failure(detail, kind="timed_out", hint="pxctl doctor") from error
        except (EOFError, OSError) as error:
            raise Interrupted(str(error) or "it was closed in the middle of an answer") from error


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # While the queue of a socket is full, connect(2) waits, for as long as a send may take: a
    # struct timeval.
    patience = _CONNECT_SECONDS.to_bytes(8, sys.byteorder) + bytes(8)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        connection.connect(path)
        # none: a daemon reads when it can
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bytes(16))
        return connection
    except OSError as error:
        connection.close()
        if isinstance(error, PermissionError):
            hint = "the daemon answers its own user and root only; is PX_SOCKET right?"
            raise Failure(
                f"no access to {path}: {error.strerror}", kind="forbidden", hint=hint
            ) from error
        why = (
            error.strerror or f"{error} ({len(path.encode())} bytes; the platform allows about 104)"
        )
        raise Unreachable(path, why) from error


# -- the daemon ------------------------------------------------------------------------------------


Waiting = Callable[[], AbstractContextManager[object]]


class Client:
    """Asks the daemon at the socket `path`, under `waiting`, which tells a person that an answer is
    waited for.

    `wake` is called once when nobody answers there, then it is asked again; None: that is a failure
    at once.
    """

    def __init__(
        self, path: str, wake: Callable[[], None] | None = None, waiting: Waiting = nullcontext
    ) -> None:
        self.path, self._wake, self._waiting = path, wake, waiting
        self._kept: Exchange | None = None  # its connection takes one more request

    def open(
        self,
        method: str,
        target: str,
        *,
        timeout: float | None = READ_SECONDS,
        keep: bool = False,
        **sent: Any,
    ) -> Exchange:
        """Send a request: `content` as JSON or a `body`, and `fields` of its head. Its answer is
        still to be read.

        With `keep` the connection may be used for the next request, too. Raises the problem that is
        answered.
        """
        content, body, fields = (sent.get(name) for name in ("content", "body", "fields"))
        head = {
            "Accept": "application/json",
            **(fields or {}),
            "Connection": "keep-alive" if keep else "close",
        }
        if content is not None:
            body = json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogateescape")
            head["Content-Type"] = "application/json"
        try:
            exchange, self._kept = self._kept or Exchange(self.path), None
        except Unreachable:
            if self._wake is None:
                raise
            wake, self._wake = self._wake, None
            wake()
            exchange = Exchange(self.path)
        try:
            exchange.send(method, target, head, body, timeout)
            if exchange.status >= 400:
                raw = exchange.read()
                found = _document_in(raw) or {
                    "detail": f"the daemon answered {exchange.status}: {raw[:500]!r}"
                }
                raise problem(exchange.status, found)
        except BaseException:
            exchange.close()
            raise
        return exchange

    def ask(self, method: str, target: str, *, keep: bool = False, **request: Any) -> Document:
        for is_last in (method != "GET", True):
            try:
                with self._waiting(), self.open(method, target, keep=keep, **request) as exchange:
                    raw = exchange.read()
                    if exchange.is_kept:
                        self._kept = exchange
                break
            except Interrupted:
                if is_last:
                    raise
        document: Document = json.loads(raw or b"{}")
        return document

    def get(self, target: str, **request: Any) -> Document:
        return self.ask("GET", target, **request)


def _document_in(raw: bytes) -> Document | None:
    with contextlib.suppress(ValueError):
        found = json.loads(raw)
        return found if isinstance(found, dict) else None
    return None


def quote(text: str) -> str:
    """Return `text` as one segment of a path or one value of a query; "." and ".." are quoted
    too.
    """
    if text in {".", ".."}:
        return text.replace(".", "%2E")
    return "".join(
        chr(byte) if byte in _SAFE else f"%{byte:02X}"
        for byte in text.encode("utf-8", "surrogateescape")
    )


def query(target: str, parameters: Iterable[tuple[str, object]]) -> str:
    """Return the target with the parameters whose value is not None; booleans are 1 and 0."""
    given = ((name, int(value) if isinstance(value, bool) else value) for name, value in parameters)
    pairs = [f"{name}={quote(str(value))}" for name, value in given if value is not None]
    return f"{target}?{'&'.join(pairs)}" if pairs else target


# -- units, as users name them: `x`, `tool:x`, quoted globs, which the daemon expands --------------


def folder_for(names: Iterable[str]) -> str | None:
    """Return the folder that decides between sessions of one name; None where no name can be a
    session's.
    """
    may_be_sessions = (
        not name.startswith(("tool:", "pipe:")) and not set(name) & set("*?[") for name in names
    )
    if not any(may_be_sessions):
        return None
    with contextlib.suppress(OSError):  # it may be gone, and the names may need none
        return os.getcwd()
    return None


def of_units(target: str, member: str, names: Sequence[str], *more: tuple[str, object]) -> str:
    """Return a request for units by their names, sessions being those of the present folder."""
    return query(target, [*((member, name) for name in names), *more, ("cwd", folder_for(names))])


def of_unit(name: str, verb: str, *more: tuple[str, object]) -> str:
    """Return a request for what a unit's route `verb` has; a session's name is meant in the
    present folder.
    """
    return query(f"/api/units/{quote(name)}/{verb}", [*more, ("cwd", folder_for([name]))])


def bare_name(kind: str, text: str) -> str:
    """Return the name alone out of `x` or `kind:x`; a usage error where it names something else,
    or nothing.
    """
    found, colon, rest = text.partition(":")
    if not colon and text.strip():
        return text
    if found != kind or not rest.strip():
        group = "tools" if kind == "tool" else kind
        raise usage(f"{text!r} does not name a {kind}", f"pxctl {group} list shows them")
    return rest


def route(kind: str, text: str, verb: str = "") -> str:
    return f"/api/{kind}s/{quote(bare_name(kind, text))}" + (f"/{verb}" if verb else "")


def units_of(client: Client, kind: str, names: Iterable[str]) -> list[str]:
    """Return the full names of a kind's units that names and globs mean, each once."""
    wanted = [("name", f"{kind}:{bare_name(kind, name)}") for name in names]
    return [str(unit["unit"]) for unit in client.get(query("/api/units", wanted)).get("units", [])]
