"""HTTP/1.1 over a Unix socket (RFC 9112), as much of it as pxd answers with.

The stdlib's client would double the start-up time. An answer that ends before its framing says so is never taken for a
whole one.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pxctl.failures import Failure, Interrupted, Unreachable

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
