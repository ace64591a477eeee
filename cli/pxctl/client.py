"""The daemon as the commands see it: documents in and out, failures with exit codes, names of units, HTTP/1.1.

A failure is the daemon's own problem document, passed on unchanged, or one of the client's making in the same shape
(CONTRACT §3, §4). The stdlib's HTTP client would double the start-up time. An answer that ends before its framing says
so is never taken for a whole one. A GET is asked again once when the connection is lost.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

Document = dict[str, Any]


class Exit:
    """Exit codes (CONTRACT §3)."""

    OK, FAILED, USAGE, INACTIVE, UNKNOWN_UNIT, UNREACHABLE, PERMISSION, TIMED_OUT, CONFLICT, LIMIT_EXCEEDED = range(10)


_EXIT_BY_STATUS = {400: 2, 401: 6, 403: 6, 404: 4, 409: 8, 413: 2, 422: 2, 504: 7}
_EXIT_BY_KIND = {
    "usage": 2, "unconfirmed": 2, "binary_answer": 2, "inactive": 3, "not_running": 3, "unknown_unit": 4,
    "unreachable": 5, "forbidden": 6, "timed_out": 7, "conflict": 8, "survivors": 8,
}  # fmt: skip
PROBLEM_PREFIX = "urn:px:problem:"


# -- failures ---------------------------------------------------------------------------------------------------------


class Failure(Exception):
    """An outcome to report and to exit with, by default with the exit code of its kind.

    `action`: what was being done ("run tool:x"); None: the command says it; "": the detail says it all.
    """

    action: str | None = None

    def __init__(
        self,
        detail: str,
        *,
        kind: str = "failed",
        hint: str | None = None,
        exit_code: int | None = None,
        unit: str | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.detail, self.kind, self.hint, self.unit, self.extra = detail, kind, hint, unit, extra
        self.exit_code = _EXIT_BY_KIND.get(kind, Exit.FAILED) if exit_code is None else exit_code

    def document(self) -> Document:
        title = self.kind.replace("_", " ").capitalize()
        head = {"type": PROBLEM_PREFIX + self.kind, "title": title, "status": None, "kind": self.kind}
        rest = {"detail": self.detail, "hint": self.hint, "unit": self.unit, "exit_code": self.exit_code}
        return {**head, **rest, **self.extra}


class Problem(Failure):
    """The daemon's own problem document, passed on as it came."""

    def __init__(self, status: int, members: Document) -> None:
        super().__init__(
            str(members.get("detail") or members.get("title") or f"the daemon answered {status}"),
            kind=str(members.get("kind") or "failed"),
            hint=members.get("hint"),
            exit_code=members.get("exit_code") or _EXIT_BY_STATUS.get(status, Exit.FAILED),
            unit=members.get("unit"),
        )
        self.status, self.members = status, members

    def document(self) -> Document:
        """Return the daemon's document, with the members that the client relies on filled in."""
        return {**super().document(), "status": self.status, **self.members, "exit_code": self.exit_code}


class Unreachable(Failure):
    """No daemon answers at the socket."""

    def __init__(self, path: str, why: str) -> None:
        detail, hint = f"no daemon answers at {path}: {why}", "pxctl daemon start"
        super().__init__(detail, kind="unreachable", hint=hint, socket=path)


class Interrupted(Failure):
    """The connection was lost after the request went out: whether it happened is unknown; asking again is safe."""

    def __init__(self, why: str) -> None:
        detail, hint = f"the connection to the daemon was lost: {why}", "run the same command again"
        super().__init__(detail, kind="interrupted", hint=hint, retryable=True)


class Silent(Exception):
    """End with this exit code; everything was said already."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def usage(detail: str, hint: str) -> Failure:
    """Return the failure of a call that cannot be meant so."""
    return Failure(detail, kind="usage", hint=hint)


def raise_problem(event: Document) -> None:
    if str(event.get("type", "")).startswith(PROBLEM_PREFIX):
        raise Problem(int(event.get("status") or 500), event)


# -- requests ---------------------------------------------------------------------------------------------------------

READ_SECONDS = 30.0
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class Answer(NamedTuple):
    """A whole JSON answer: the bytes as they came and what they mean."""

    raw: bytes
    document: Document


class Client:
    """Asks the daemon at the socket `path`.

    `wake` is called once when nobody answers there, then it is asked again; None: that is a failure at once. `waiting`
    returns what tells a person, while it lasts, that an answer is waited for.
    """

    def __init__(
        self,
        path: str,
        wake: Callable[[], None] | None = None,
        waiting: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self.path, self._wake, self._waiting = path, wake, waiting
        self._kept: Exchange | None = None  # its connection takes one more request

    def open(
        self,
        method: str,
        target: str,
        *,
        content: Any = None,
        body: bytes | None = None,
        fields: Mapping[str, str] | None = None,
        timeout: float | None = READ_SECONDS,
        keep: bool = False,
    ) -> Exchange:
        """Send a request, with `content` as JSON or a `body`; the answer's body is still to be read. Caller closes.

        With `keep` the connection may be used for the next request, too.
        """
        head = {"Accept": "application/json", **(fields or {}), "Connection": "keep-alive" if keep else "close"}
        if content is not None:
            body = json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogateescape")
            head["Content-Type"] = "application/json"
        exchange, self._kept = self._kept or self._connect(), None
        try:
            exchange.send(method, target, head, body, timeout)
            _refuse_problem(exchange)
        except BaseException:
            exchange.close()
            raise
        return exchange

    def ask(self, method: str, target: str, *, keep: bool = False, **request: Any) -> Answer:
        """Send a request, as `open` does, and return the whole JSON answer."""
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
        try:
            document = json.loads(raw) if raw.strip() else {}
        except ValueError:
            document = None
        if isinstance(document, dict):
            return Answer(raw, document)
        detail = f"the daemon's answer to {method} {target} is not JSON as it should be: {raw[:100]!r}"
        raise Failure(detail, kind="bad_answer", hint="pxctl doctor")

    def get(self, target: str, **request: Any) -> Answer:
        return self.ask("GET", target, **request)

    def _connect(self) -> Exchange:
        try:
            return Exchange(self.path)
        except Unreachable:
            if self._wake is None:
                raise
        wake, self._wake = self._wake, None
        wake()
        return Exchange(self.path)


def _refuse_problem(exchange: Exchange) -> None:
    """Raise the problem that the daemon answered with; what is no document (an empty body) becomes one."""
    head = exchange.head
    if head.status < 400:
        return
    raw, members = exchange.read(), None
    with contextlib.suppress(ValueError):
        members = json.loads(raw)
    if not isinstance(members, dict):
        text = raw[:500].decode("utf-8", "replace").strip()
        members = {"detail": f"the daemon answered {head.status} {head.reason}" + (f": {text}" if text else "")}
    raise Problem(head.status, members)


def quote(text: str) -> str:
    """Return `text` as one segment of a path or one value of a query; "." and ".." are quoted too."""
    if text in {".", ".."}:
        return text.replace(".", "%2E")
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in text.encode("utf-8", "surrogateescape"))


def query(target: str, parameters: Iterable[tuple[str, object]]) -> str:
    """Return the target with the parameters whose value is not None; booleans are 1 and 0."""
    pairs = []
    for name, value in parameters:
        is_whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
        if value is not None:
            pairs.append(f"{name}={quote(f'{value:.0f}' if is_whole else str(value))}")
    return f"{target}?{'&'.join(pairs)}" if pairs else target


# -- HTTP/1.1 over a Unix socket (RFC 9112), as much of it as pxd answers with ----------------------------------------

_READ_BYTES = 64 * 1024
_MOST_FIELDS = 256
_CONNECT_SECONDS = 10.0
_PAUSE_SECONDS = 0.05


class Head(NamedTuple):
    """Status line and header fields of an answer; field names in lower case."""

    status: int
    reason: str
    fields: dict[str, str]

    @property
    def content_type(self) -> str:
        """Media type without parameters, lower case; empty when there is none."""
        return self.fields.get("content-type", "").split(";", 1)[0].strip().lower()


class Exchange:
    """A connection with a request and its answer at a time. A context manager, or `close()`.

    Closing it before the answer is at its end is taken by the daemon for a wish to cancel.
    """

    def __init__(self, path: str, connect_timeout: float = _CONNECT_SECONDS) -> None:
        self._path, self._timeout = path, connect_timeout
        self._socket = _connect(path, connect_timeout)
        self._answer = self._socket.makefile("rb")
        self.head = Head(0, "", {})
        self.is_kept = False  # the daemon leaves the connection open for one more request

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.is_kept:
            self.close()

    def close(self) -> None:
        self._answer.close()
        self._socket.close()

    def send(
        self, method: str, target: str, fields: Mapping[str, str], body: bytes | None, timeout: float | None
    ) -> Head:
        """Send a request and return the head of its answer; the body follows by `chunks()`.

        `timeout`: so many seconds of silence are borne; None: any.
        """
        self._timeout = timeout or 0.0
        self._socket.settimeout(timeout)
        lines = [f"{method} {target} HTTP/1.1", "Host: px", "User-Agent: pxctl"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        if body is not None or method != "GET":
            lines.append(f"Content-Length: {len(body or b'')}")
        try:
            # A refusal (413) may be on its way already although not everything was taken.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
            self.head = self._read_head()
            while self.head.status < 200:  # interim answers (1xx) are passed over
                self.head = self._read_head()
        except (EOFError, ValueError, OSError) as error:
            raise self._failure(error) from error
        self.is_kept = fields.get("Connection") == "keep-alive" and self.head.fields.get("connection") != "close"
        return self.head

    def read(self) -> bytes:
        return b"".join(self.chunks())

    def chunks(self) -> Iterator[bytes]:
        coding = self.head.fields.get("transfer-encoding", "").lower()
        length = self.head.fields.get("content-length")
        try:
            if coding == "chunked":
                while size := int(self._line().split(b";", 1)[0], 16):
                    yield from self._exactly(size)
                    if self._line():
                        raise ValueError("a chunk that is longer than it says")
                self._read_fields()
            elif coding:
                raise ValueError(f"an answer in the coding {coding!r}, which was not asked for")
            elif length is not None:
                yield from self._exactly(int(length))
            else:
                while piece := self._answer.read1(_READ_BYTES):
                    yield piece
        except (EOFError, ValueError, OSError) as error:
            raise self._failure(error) from error

    def _exactly(self, count: int) -> Iterator[bytes]:
        if count < 0:
            raise ValueError(f"a length of {count}")
        while count:
            piece = self._answer.read1(min(count, _READ_BYTES))
            if not piece:
                raise EOFError
            count -= len(piece)
            yield piece

    def _line(self) -> bytes:
        line = self._answer.readline(_READ_BYTES)
        if not line.endswith(b"\n"):
            if len(line) < _READ_BYTES:
                raise EOFError
            raise ValueError(f"a line of more than {_READ_BYTES} bytes")
        return line.rstrip(b"\r\n")

    def _read_head(self) -> Head:
        line = self._line()
        version, code, reason = [*line.split(b" ", 2), b"", b""][:3]
        if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
            raise ValueError(f"an answer that begins with {line[:40]!r}")
        return Head(int(code), reason.decode("latin-1"), self._read_fields())

    def _read_fields(self) -> dict[str, str]:
        fields: dict[str, str] = {}
        for _ in range(_MOST_FIELDS):
            line = self._line()
            if not line:
                return fields
            name, colon, value = line.partition(b":")
            if not colon:
                raise ValueError(f"a header field {line[:40]!r}")
            fields[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        raise ValueError(f"more than {_MOST_FIELDS} header fields")

    def _failure(self, error: Exception) -> Failure:
        if isinstance(error, ValueError):
            detail = f"what answers at {self._path} is not pxd: it sent {error}"
            return Failure(detail, kind="bad_answer", hint="check PX_SOCKET and --socket")
        if isinstance(error, TimeoutError):
            detail = f"the daemon has not answered for {self._timeout:g} s"
            return Failure(detail, kind="timed_out", hint="pxctl doctor")
        is_end = isinstance(error, EOFError)
        return Interrupted("it was closed in the middle of an answer" if is_end else str(error))


def _connect(path: str, timeout: float) -> socket.socket:
    """Connect; while the queue is full, which unix(7) says at once by EAGAIN, try again."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    deadline = time.monotonic() + timeout
    try:
        while True:
            try:
                connection.connect(path)
                return connection
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)
    except OSError as error:
        connection.close()
        if isinstance(error, PermissionError):
            hint = "the daemon answers its own user and root only; is PX_SOCKET right?"
            raise Failure(f"no access to {path}: {error.strerror}", kind="forbidden", hint=hint) from error
        why = error.strerror or f"{error} ({len(path.encode())} bytes; the platform allows about 104)"
        known = {
            BlockingIOError: f"its queue has been full for {timeout:g} s",
            FileNotFoundError: "there is no such socket",
            ConnectionRefusedError: "nobody listens there",
        }
        raise Unreachable(path, known.get(type(error), why)) from error


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without their ends as soon as each is complete; a last line without an end counts."""
    held: list[bytes] = []
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        held.append(first)
        for piece in rest:
            yield b"".join(held).removesuffix(b"\r")
            held = [piece]
    if last := b"".join(held):
        yield last.removesuffix(b"\r")


# -- units, as users name them: `x`, `tool:x`, quoted globs, which the daemon expands ---------------------------------


def is_glob(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def bare_name(kind: str, text: str) -> str:
    """Return the name alone out of `x` or `kind:x`; a usage error where it names something else, or nothing."""
    found, colon, rest = text.partition(":")
    if not colon and text.strip():
        return text
    if found != kind or not rest.strip():
        group = "tools" if kind == "tool" else kind
        raise usage(f"{text!r} does not name a {kind}", f"pxctl {group} list shows them")
    return rest


def route(kind: str, text: str, verb: str = "") -> str:
    """Return the route of a tool, kernel or pipe that is named as users do."""
    return f"/api/{kind}s/{quote(bare_name(kind, text))}" + (f"/{verb}" if verb else "")


def expand(client: Client, names: Sequence[str]) -> list[str]:
    """Return the full names that the daemon understands by `names`, each once."""
    found = client.get(query("/api/units", [("name", name) for name in names])).document
    return list(dict.fromkeys(str(unit["unit"]) for unit in found.get("units", [])))


def bare_names(client: Client, kind: str, texts: Iterable[str]) -> list[str]:
    """Return the bare names that names and globs mean, each once; only globs are asked of the daemon."""
    found: list[str] = []
    for text in texts:
        name = bare_name(kind, text)
        units = expand(client, [f"{kind}:{name}"]) if is_glob(name) else [name]
        found += [unit.removeprefix(f"{kind}:") for unit in units]
    return list(dict.fromkeys(found))
