"""HTTP/1.1 over a Unix socket, as much of it as `pxctl` needs: one request a connection, answers read as they come.

Law: however the bytes of an answer are cut into reads, the parsed answer is the same; an answer that ends before its
framing says so is never taken for a whole one. (RFC 9112; the stdlib's client would double the start-up time.)
"""

from __future__ import annotations

import contextlib
import socket
import time

from pxctl import interrupts
from pxctl.failure import PERMISSION, TIMED_OUT, Failure, Interrupted, Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self

_READ_BYTES = 64 * 1024
_LINE_LIMIT = 64 * 1024
_HEADER_LIMIT = 256
_CONNECT_SECONDS = 10.0
_PAUSE_SECONDS = 0.05
_BODILESS = {204, 304}


class Broken(Exception):
    """The answer ended before it was complete."""


class Malformed(Exception):
    """What came is not HTTP/1.1."""


class Reader:
    """Lines and counted bytes out of a source that returns what it has, and b"" at the end."""

    def __init__(self, receive: Callable[[int], bytes]) -> None:
        self._receive = receive
        self._held = b""

    def line(self) -> bytes:
        """Return the next line without its end; Broken when the source ends first."""
        while (end := self._held.find(b"\n")) < 0:
            if len(self._held) > _LINE_LIMIT:
                raise Malformed(f"a line of more than {_LINE_LIMIT} bytes")
            self._held += self._more()
        line, self._held = self._held[:end], self._held[end + 1 :]
        return line.removesuffix(b"\r")

    def exactly(self, count: int) -> Iterator[bytes]:
        """Yield `count` bytes as they come; Broken when the source ends first."""
        while count > 0:
            piece = self._held or self._more()
            self._held = piece[count:]
            piece = piece[:count]
            count -= len(piece)
            yield piece

    def rest(self) -> Iterator[bytes]:
        """Yield all there is until the source ends."""
        if self._held:
            yield self._held
            self._held = b""
        while piece := self._receive(_READ_BYTES):
            yield piece

    def _more(self) -> bytes:
        piece = self._receive(_READ_BYTES)
        if not piece:
            raise Broken("it was closed in the middle of an answer")
        return piece


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


def read_head(reader: Reader) -> Head:
    """Read the head of the final answer; interim answers (1xx) are passed over."""
    while True:
        status, reason = _parse_status_line(reader.line())
        fields = _read_fields(reader)
        if status >= 200 or status == 101:
            return Head(status, reason, fields)


def read_body(reader: Reader, head: Head, method: str = "GET") -> Iterator[bytes]:
    """Return the body, piece by piece, without its framing (RFC 9112, 6.3)."""
    if method == "HEAD" or head.status in _BODILESS:
        return iter(())
    coding = head.fields.get("transfer-encoding", "").strip().lower()
    if coding == "chunked":
        return _read_chunks(reader)
    if coding:
        raise Malformed(f"an answer in the coding {coding!r}, which was not asked for")
    length = head.fields.get("content-length")
    if length is None:
        return reader.rest()
    if not (length.isascii() and length.isdigit()):
        raise Malformed(f"a content length of {length!r}")
    return reader.exactly(int(length))


def _parse_status_line(line: bytes) -> tuple[int, str]:
    version, _, rest = line.partition(b" ")
    code, _, reason = rest.partition(b" ")
    if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
        raise Malformed(f"an answer that begins with {line[:40]!r}")
    return int(code), reason.decode("latin-1")


def _read_fields(reader: Reader) -> dict[str, str]:
    fields: dict[str, str] = {}
    for _ in range(_HEADER_LIMIT):
        line = reader.line()
        if not line:
            return fields
        name, colon, value = line.partition(b":")
        if not colon or name != name.strip() or not name:
            raise Malformed(f"a header field {line[:40]!r}")
        fields[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
    raise Malformed(f"more than {_HEADER_LIMIT} header fields")


def _read_chunks(reader: Reader) -> Iterator[bytes]:
    while size := _chunk_size(reader.line()):
        yield from reader.exactly(size)
        if reader.line():
            raise Malformed("a chunk that is longer than it says")
    _read_fields(reader)


def _chunk_size(line: bytes) -> int:
    digits = line.split(b";", 1)[0].strip()
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):
        raise Malformed(f"a chunk of size {digits[:20]!r}")
    return int(digits, 16)


class Exchange:
    """One request and its answer over a connection of its own. Use as a context manager, or `close()` it.

    Args:
        path: The socket.
        timeout: Seconds of silence that are borne while reading; None for ever.
    """

    def __init__(self, path: str, *, timeout: float | None, connect_timeout: float = _CONNECT_SECONDS) -> None:
        self._path = path
        self._socket = _connect(path, connect_timeout)
        self._timeout = timeout
        self._body: Iterator[bytes] = iter(())
        self.head = Head(0, "", {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the daemon takes that for a wish to cancel."""
        self._socket.close()

    def send(self, method: str, target: str, fields: Mapping[str, str], body: bytes | None = None) -> Head:
        """Send the request and return the head of the answer; the body follows by `chunks()`."""
        request = _serialise(method, target, fields, body)
        reader = Reader(self._receive)
        try:
            # A refusal (413) may be on its way already although not everything was taken.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._send_all(request)
            self.head = read_head(reader)
            self._body = read_body(reader, self.head, method)
        except (Broken, Malformed, OSError) as error:
            raise self._failure(error) from error
        return self.head

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it comes."""
        try:
            yield from self._body
        except (Broken, Malformed, OSError) as error:
            raise self._failure(error) from error

    def read(self) -> bytes:
        """Return the whole body."""
        return b"".join(self.chunks())

    def _send_all(self, request: bytes) -> None:
        rest = memoryview(request)
        while rest:
            if not interrupts.wait_writable(self._socket.fileno(), self._timeout):
                raise TimeoutError
            with contextlib.suppress(BlockingIOError):
                rest = rest[self._socket.send(rest) :]

    def _receive(self, count: int) -> bytes:
        if not interrupts.wait_readable(self._socket.fileno(), self._timeout):
            raise TimeoutError
        return self._socket.recv(count)

    def _failure(self, error: Exception) -> Failure:
        match error:
            case Malformed():
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
                return Interrupted(str(error))


def _serialise(method: str, target: str, fields: Mapping[str, str], body: bytes | None) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: px", "User-Agent: pxctl", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    elif method in {"POST", "PUT"}:
        lines.append("Content-Length: 0")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def _connect(path: str, timeout: float) -> socket.socket:
    """Return a connection that blocks nobody: whoever uses it waits by itself."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        _take_a_place(connection, path, time.monotonic() + timeout)
    except OSError as error:
        connection.close()
        raise _connect_failure(path, error, timeout) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _take_a_place(connection: socket.socket, path: str, deadline: float) -> None:
    """Connect; while the queue is full, which unix(7) says at once by EAGAIN, try again."""
    while True:
        try:
            connection.connect(path)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            interrupts.pause(_PAUSE_SECONDS)
        else:
            return


def _connect_failure(path: str, error: OSError, timeout: float) -> Failure:
    match error:
        case PermissionError():
            return Failure(
                f"no access to {path}: {error.strerror}",
                kind="forbidden",
                hint="the daemon answers its own user and root only; is PX_SOCKET right?",
                exit_code=PERMISSION,
            )
        case TimeoutError() | BlockingIOError():
            return Unreachable(path, f"its queue has been full for {timeout:g} s")
        case FileNotFoundError():
            return Unreachable(path, "there is no such socket")
        case ConnectionRefusedError():
            return Unreachable(path, "nobody listens there")
        case _ if error.strerror is None:
            return Unreachable(path, f"{error} ({len(path.encode())} bytes; the platform allows about 104)")
        case _:
            return Unreachable(path, error.strerror)
