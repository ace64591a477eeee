"""The daemon as the commands see it: documents in and out, problems as failures; names of units; HTTP/1.1 underneath.

One request a connection, answers read as they come. (The stdlib's HTTP client would double the start-up time.) An
answer that ends before its framing says so is never taken for a whole one, and an answer of 400 or more never reaches
a command: it is raised as the `Problem` that the daemon sent. Reads are asked again once when the connection is lost,
because asking changes nothing and the control plane may just have been replaced; anything else is left to the user.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time

from pxctl.failure import PERMISSION, TIMED_OUT, UNKNOWN_UNIT, Failure, Interrupted, Problem, Unreachable, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, Self

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


# -- HTTP/1.1 over a Unix socket (RFC 9112), as much of it as pxd answers with ----------------------------------------

_READ_BYTES = 64 * 1024
_HEADER_LIMIT = 256
_CONNECT_SECONDS = 10.0
_PAUSE_SECONDS = 0.05


class Head:
    """Status line and header fields of an answer; field names in lower case."""

    __slots__ = ("fields", "reason", "status")

    def __init__(self, status: int, reason: str, fields: Mapping[str, str]) -> None:
        self.status = status
        self.reason = reason
        self.fields = fields

    @property
    def content_type(self) -> str:
        """Media type without parameters, lower case; empty when there is none."""
        return self.fields.get("content-type", "").split(";", 1)[0].strip().lower()


class Exchange:
    """One request and its answer over a connection of its own. Use as a context manager, or `close()` it.

    Args:
        path: The socket.
        timeout: Seconds of silence that are borne; None for ever.
    """

    def __init__(self, path: str, *, timeout: float | None, connect_timeout: float = _CONNECT_SECONDS) -> None:
        self._path = path
        self._timeout = timeout
        self._socket = _connect(path, connect_timeout)
        self._socket.settimeout(timeout)
        self._answer = self._socket.makefile("rb")
        self.head = Head(0, "", {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the daemon takes that for a wish to cancel."""
        self._answer.close()
        self._socket.close()

    def send(self, method: str, target: str, fields: Mapping[str, str], body: bytes | None = None) -> Head:
        """Send the request and return the head of the answer; the body follows by `chunks()`."""
        lines = [f"{method} {target} HTTP/1.1", "Host: px", "User-Agent: pxctl", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        if body is not None or method != "GET":
            lines.append(f"Content-Length: {len(body or b'')}")
        try:
            # A refusal (413) may be on its way already although not everything was taken.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
            self.head = self._read_head()
        except (EOFError, ValueError, OSError) as error:
            raise self._failure(error) from error
        return self.head

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it comes."""
        try:
            yield from self._body()
        except (EOFError, ValueError, OSError) as error:
            raise self._failure(error) from error

    def read(self) -> bytes:
        """Return the whole body."""
        return b"".join(self.chunks())

    def _line(self) -> bytes:
        line = self._answer.readline(_READ_BYTES)
        if not line.endswith(b"\n"):
            if len(line) < _READ_BYTES:
                raise EOFError
            raise ValueError(f"a line of more than {_READ_BYTES} bytes")
        return line.rstrip(b"\r\n")

    def _read_head(self) -> Head:
        status = 0
        while status < 200:  # interim answers (1xx) are passed over
            line = self._line()
            version, code, reason = [*line.split(b" ", 2), b"", b""][:3]
            if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
                raise ValueError(f"an answer that begins with {line[:40]!r}")
            status, fields = int(code), self._read_fields()
        return Head(status, reason.decode("latin-1"), fields)

    def _read_fields(self) -> dict[str, str]:
        fields: dict[str, str] = {}
        for _ in range(_HEADER_LIMIT):
            line = self._line()
            if not line:
                return fields
            name, colon, value = line.partition(b":")
            if not colon:
                raise ValueError(f"a header field {line[:40]!r}")
            fields[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        raise ValueError(f"more than {_HEADER_LIMIT} header fields")

    def _body(self) -> Iterator[bytes]:
        coding = self.head.fields.get("transfer-encoding", "").lower()
        length = self.head.fields.get("content-length")
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

    def _exactly(self, count: int) -> Iterator[bytes]:
        if count < 0:
            raise ValueError(f"a length of {count}")
        while count:
            piece = self._answer.read1(min(count, _READ_BYTES))
            if not piece:
                raise EOFError
            count -= len(piece)
            yield piece

    def _failure(self, error: Exception) -> Failure:
        match error:
            case ValueError():
                return Failure(
                    f"what answers at {self._path} is not pxd: it sent {error}",
                    kind="bad_answer",
                    hint="check PX_SOCKET and --socket",
                )
            case TimeoutError():
                return Failure(
                    f"the daemon has not answered for {self._timeout:g} s",
                    kind="timed_out",
                    hint="pxctl doctor",
                    exit_code=TIMED_OUT,
                )
            case OSError():
                return Interrupted(error.strerror or str(error))
            case _:
                return Interrupted("it was closed in the middle of an answer")


def _connect(path: str, timeout: float) -> socket.socket:
    """Connect; while the queue is full, which unix(7) says at once by EAGAIN, try again."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deadline = time.monotonic() + timeout
    try:
        connection.setblocking(False)
        while True:
            try:
                connection.connect(path)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)
            else:
                return connection
    except OSError as error:
        connection.close()
        raise _connect_failure(path, error, timeout) from error


def _connect_failure(path: str, error: OSError, timeout: float) -> Failure:
    match error:
        case PermissionError():
            return Failure(
                f"no access to {path}: {error.strerror}",
                kind="forbidden",
                hint="the daemon answers its own user and root only; is PX_SOCKET right?",
                exit_code=PERMISSION,
            )
        case BlockingIOError():
            return Unreachable(path, f"its queue has been full for {timeout:g} s")
        case FileNotFoundError():
            return Unreachable(path, "there is no such socket")
        case ConnectionRefusedError():
            return Unreachable(path, "nobody listens there")
        case _ if error.strerror is None:
            return Unreachable(path, f"{error} ({len(path.encode())} bytes; the platform allows about 104)")
        case _:
            return Unreachable(path, error.strerror)


# -- streams ----------------------------------------------------------------------------------------------------------


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


def split_events(chunks: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield name and payload of the events of a `text/event-stream`; events without payload are dropped."""
    name, payload = "message", list[bytes]()
    for line in split_lines(chunks):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line and payload:
            yield name, b"\n".join(payload)
        if not line:
            name, payload = "message", []
        elif field == b"data":
            payload.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    if payload:
        yield name, b"\n".join(payload)


# -- units, as users name them: `x`, `tool:x`, quoted globs, which the daemon expands ---------------------------------

_GLOB_SIGNS = frozenset("*?[")
_LISTS = {"tool": "pxctl tools list", "kernel": "pxctl kernel list", "pipe": "pxctl pipe list"}


def is_glob(name: str) -> bool:
    """Say whether a name is a pattern for names."""
    return not _GLOB_SIGNS.isdisjoint(name)


def bare_name(kind: str, text: str) -> str:
    """Return the name alone out of `x` or `kind:x`.

    Raises:
        Failure: It names something else, or nothing.
    """
    found, colon, rest = text.partition(":")
    if not colon and text.strip():
        return text
    if found != kind or not rest.strip():
        raise usage(f"{text!r} does not name a {kind}", f"{_LISTS[kind]} shows them")
    return rest


def route(kind: str, text: str, verb: str = "") -> str:
    """Return the route of a tool, kernel or pipe that is named as users do."""
    return f"/api/{kind}s/{quote(bare_name(kind, text))}" + (f"/{verb}" if verb else "")


def expand(client: Client, names: Sequence[str]) -> list[str]:
    """Return the full names that the daemon understands by `names`, each once."""
    answer = client.get(query("/api/units", [("name", name) for name in names]))
    units = [str(unit["unit"]) for unit in answer.document.get("units", [])]
    if not units:
        detail, hint = f"nothing is called {', '.join(names)}", "pxctl status shows all units"
        raise Failure(detail, kind="unknown_unit", hint=hint, exit_code=UNKNOWN_UNIT)
    return list(dict.fromkeys(units))


def bare_names(client: Client, kind: str, texts: Iterable[str]) -> list[str]:
    """Return the bare names that names and globs mean, each once; only globs are asked of the daemon."""
    found: list[str] = []
    for text in texts:
        name = bare_name(kind, text)
        globbed = expand(client, [f"{kind}:{name}"]) if is_glob(name) else [name]
        found += [unit.removeprefix(f"{kind}:") for unit in globbed]
    return list(dict.fromkeys(found))
