"""The control plane's own log: human lines on a terminal, JSON otherwise, native fields to journald when there.

An event is a snake_case fact with bound facts beside it; what a library logs goes the same way. The log may lose lines
(a full disk, a closed terminal), but it never stops the daemon. Objects are never rendered by repr: texts, numbers,
paths, enums, errors and collections of them pass; values under names that smell of secrets, and the values of
environments, never do.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import re
import socket
import struct
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum, auto
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TextIO

import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from structlog.typing import Processor

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

_NOT_A_FIELD = re.compile(r"[^A-Z0-9_]")


class Form(Enum):
    """How events leave the process."""

    TERMINAL = auto()
    JSON = auto()
    JOURNAL = auto()


class LevelGate:
    """Drops what is below the level in force; the level may change while the daemon runs."""

    def __init__(self, level: str) -> None:
        self.level = ""
        self.set(level)

    def set(self, level: str) -> None:
        """Put another level in force, for our own events and for those of libraries."""
        self.level = level
        logging.getLogger().setLevel(LEVELS[level])

    def __call__(self, _logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Let the event pass, or drop it."""
        if LEVELS.get(_plain(name), LEVELS["critical"]) < LEVELS[self.level]:
            raise structlog.DropEvent
        return event


class _Stream:
    """Writes rendered lines to stderr. A stderr that is gone or full loses lines, nothing else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()

    log = debug = info = warning = error = critical = exception = msg


class _Entries:
    """Writes events to journald, and to stderr what journald did not take."""

    def __init__(self, journal: Journal, fallback: _Stream) -> None:
        self._journal = journal
        self._fallback = fallback

    def msg(self, **facts: Any) -> None:
        if not self._journal.write(journal_fields(facts)):
            self._fallback.msg(_json(facts))

    log = debug = info = warning = error = critical = exception = msg


class _Bridge(logging.Handler):
    """Takes what libraries log by the standard library into the same stream."""

    def emit(self, record: logging.LogRecord) -> None:
        logger = structlog.get_logger()
        with contextlib.suppress(Exception):
            logger.log(
                min(record.levelno, LEVELS["critical"]),
                record.getMessage(),
                logger=record.name,
                exc_info=record.exc_info,
            )


def choose_form(environ: Mapping[str, str], stream: TextIO) -> Form:
    """Decide how events leave: JOURNAL_STREAM names stderr, stderr is a terminal, or neither."""
    with contextlib.suppress(OSError, ValueError):
        if stderr_is_journal(environ.get("JOURNAL_STREAM"), stream.fileno()):
            return Form.JOURNAL
        if stream.isatty():
            return Form.TERMINAL
    return Form.JSON


def configure_log(level: str, *, form: Form | None = None, stream: TextIO | None = None) -> LevelGate:
    """Set up structlog and the standard library's logging; returns the gate by which the level is changed later."""
    stream = stream or sys.stderr
    form = form or choose_form(os.environ, stream)
    gate = LevelGate(level)
    output: Any = _Stream(stream)
    if form is Form.JOURNAL:
        output = _Entries(Journal(), output)
    structlog.configure(
        processors=[gate, *_facts(), _renderer(form, stream)],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS["debug"]),
        logger_factory=lambda *_: output,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Bridge()]
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # at info it tells of every file that changes
    logging.captureWarnings(capture=True)
    return gate


def journal_fields(facts: Mapping[str, Any]) -> dict[str, str]:
    """Map one event to journald's fields: ours are PX_EVENT, PX_UNIT and so on. Pure."""
    level = str(facts.get("level", "info"))
    event = str(facts.get("event", ""))
    rest = {name: fact for name, fact in facts.items() if name not in {"event", "level", "time", "exception"}}
    message = " ".join([event, *(f"{name}={_value(fact)}" for name, fact in rest.items())])
    fields = {
        "MESSAGE": f"{message}\n{facts['exception']}" if "exception" in facts else message,
        "PRIORITY": str(PRIORITIES.get(level, 6)),
        "SYSLOG_IDENTIFIER": "pxd",
        "PX_EVENT": event,
    }
    for name, fact in rest.items():
        fields[f"PX_{_NOT_A_FIELD.sub('_', name.upper())}"[:64]] = _value(fact)
    return fields


def _facts() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        _level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
        _shown,
    ]


def _renderer(form: Form, stream: TextIO) -> Processor:
    match form:
        case Form.JOURNAL:
            return lambda _logger, _name, event: event
        case Form.JSON:
            return lambda _logger, _name, event: _json(event)
        case Form.TERMINAL:
            colors = stream.isatty() and "NO_COLOR" not in os.environ
            return structlog.dev.ConsoleRenderer(
                colors=colors, timestamp_key="time", exception_formatter=structlog.dev.plain_traceback
            )


def _plain(name: str) -> str:
    """Map the method's name to its level: `exception` is an error, `warn` a warning."""
    return {"exception": "error", "warn": "warning", "fatal": "critical"}.get(name, name)


def _level(_logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["level"] = _plain(name)
    return event


def _shown(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {name: presentable(name, fact) for name, fact in event.items()}


def _json(event: Mapping[str, Any]) -> str:
    first = {name: event[name] for name in ("time", "level", "event") if name in event}
    return json.dumps({**first, **event}, ensure_ascii=False)


def _value(fact: Any) -> str:
    return fact if isinstance(fact, str) else json.dumps(fact, ensure_ascii=False)


# -- what may be shown -------------------------------------------------------------------------------------------

HIDDEN = "[hidden]"
MAX_DEPTH = 6
MAX_TEXT = 16 * 1024
MAX_ITEMS = 200

_SECRET = re.compile(r"token|secret|passw|authorization|api[_-]?key|credential|cookie|private[_-]?key", re.IGNORECASE)
_ABOUT_A_SECRET = re.compile(r"(_file|_path|_bytes|_seconds)$", re.IGNORECASE)
_ENVIRONMENTS = frozenset({"env", "environ", "environment"})


def presentable(name: str, value: Any, depth: int = 0) -> Any:
    """Return `value`, a fact called `name`, as JSON values without secrets."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if _SECRET.search(name) and not _ABOUT_A_SECRET.search(name):
        return HIDDEN
    text = _as_text(value)
    if text is not None:
        return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
    return _collection(name, value, depth)


def _as_text(value: Any) -> str | None:
    match value:
        case str() | PurePath():
            return str(value)
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "replace")
        case BaseException():
            return f"{type(value).__name__}: {value}"
        case _:
            return None


def _collection(name: str, value: Any, depth: int) -> Any:
    if isinstance(value, Mapping) and name.lower() in _ENVIRONMENTS:
        return sorted(str(key) for key in value)
    if depth >= MAX_DEPTH and isinstance(value, Mapping | list | tuple | AbstractSet):
        return "…"
    if isinstance(value, Mapping):
        items = list(value.items())[:MAX_ITEMS]
        return {str(key): presentable(str(key), each, depth + 1) for key, each in items}
    if isinstance(value, list | tuple | AbstractSet):
        return [presentable(name, each, depth + 1) for each in list(value)[:MAX_ITEMS]]
    return f"<{type(value).__name__}>"


# -- journald: one datagram an entry, own fields kept (JOURNAL_NATIVE_PROTOCOL) -----------------------------------

JOURNAL_SOCKET = "/run/systemd/journal/socket"
MAX_VALUE = 32 * 1024
"""Bytes of one field; a longer value is cut, so that an entry stays far below the socket's buffer (EMSGSIZE)."""

PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def stderr_is_journal(stream: str | None, fd: int = 2) -> bool:
    """Say whether `fd` is the connection that JOURNAL_STREAM (`device:inode`) names, as systemd.exec(5) wants it."""
    if not stream:
        return False
    try:
        seen = os.fstat(fd)
    except OSError:
        return False
    return stream == f"{seen.st_dev}:{seen.st_ino}"


def encode_entry(fields: Mapping[str, str]) -> bytes:
    """Serialise one entry: name, newline, the length as 64 bits little-endian, value, newline; so for each. Pure."""
    parts = []
    for name, text in fields.items():
        value = text.encode("utf-8", "replace")[:MAX_VALUE]
        parts += [name.encode("ascii"), b"\n", struct.pack("<Q", len(value)), value, b"\n"]
    return b"".join(parts)


class Journal:
    """A connection to journald that survives journald's own restarts.

    Never fails and never blocks: what journald does not take is dropped and counted, and the next entry says how many.
    """

    def __init__(self, path: str = JOURNAL_SOCKET) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self.dropped = 0

    def write(self, fields: Mapping[str, str]) -> bool:
        """Send one entry; returns False when it was dropped."""
        told = dict(fields) | ({"PX_DROPPED_ENTRIES": str(self.dropped)} if self.dropped else {})
        if not self._send(encode_entry(told)):
            self.dropped += 1
            return False
        self.dropped = 0
        return True

    def close(self) -> None:
        """Let go of the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, entry: bytes) -> bool:
        for _ in range(2):
            try:
                self._connected().send(entry)
            except OSError as error:
                if error.errno in {errno.EAGAIN, errno.EMSGSIZE, errno.ENOBUFS}:
                    return False
                # journald was restarted or is away: its old socket is dead for ever, so connect once more.
                self.close()
            else:
                return True
        return False

    def _connected(self) -> socket.socket:
        if self._socket is None:
            fresh = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            fresh.settimeout(0.0)
            with contextlib.suppress(OSError):
                fresh.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * 1024 * 1024)
            try:
                fresh.connect(self._path)
            except OSError:
                fresh.close()
                raise
            self._socket = fresh
        return self._socket
