"""The control plane's own log: human lines on a terminal, JSON otherwise, native fields to journald when there.

An event is a snake_case fact with bound facts beside it, by structlog over the standard library's logging, so that what
libraries log goes the same way. The log may lose lines (a full disk, a closed terminal), but it never stops the daemon.
Objects are never rendered by repr: texts, numbers, paths, enums, errors and collections of them pass; values under
names that smell of secrets, and the values of environments, never do.
"""

from __future__ import annotations

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
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

HIDDEN = "[hidden]"
MAX_DEPTH = 6
MAX_TEXT = 16 * 1024
MAX_ITEMS = 200
JOURNAL_SOCKET = "/run/systemd/journal/socket"
MAX_VALUE = 32 * 1024
"""Bytes of one field; a longer value is cut, so that an entry stays far below the socket's buffer (EMSGSIZE)."""

PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}

_SECRET = re.compile(r"token|secret|passw|authorization|api[_-]?key|credential|cookie|private[_-]?key", re.IGNORECASE)
_ABOUT_A_SECRET = re.compile(r"(_file|_path|_bytes|_seconds)$", re.IGNORECASE)
_ENVIRONMENTS = frozenset({"env", "environ", "environment"})
_NOT_A_FIELD = re.compile(r"[^A-Z0-9_]")


def configure_log(level: str, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging: to journald, a terminal, or as JSON."""
    stream = stream or sys.stderr
    handler: logging.Handler = _StreamHandler(stream)
    if stderr_is_journal(os.environ.get("JOURNAL_STREAM"), stream):
        handler = JournalHandler(stream)
    renderer: Processor = _json
    if stream.isatty():
        renderer = structlog.dev.ConsoleRenderer(
            colors="NO_COLOR" not in os.environ,
            timestamp_key="time",
            exception_formatter=structlog.dev.plain_traceback,
        )
    first: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *first, ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    last: list[Processor] = [ProcessorFormatter.remove_processors_meta, structlog.processors.format_exc_info, redact]
    handler.setFormatter(
        ProcessorFormatter(processors=[*last, renderer], foreign_pre_chain=[*first, structlog.stdlib.add_logger_name])
    )
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # at info it tells of every file that changes
    logging.captureWarnings(capture=True)
    set_level(level)


def set_level(level: str) -> None:
    """Drop what is below `level`, ours and what libraries log; at any time."""
    logging.getLogger().setLevel(level.upper())


class _StreamHandler(logging.StreamHandler[TextIO]):
    """Writes lines. A stream that is gone or full loses them, nothing else."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Lose the line."""


class JournalHandler(_StreamHandler):
    """Sends events to journald (JOURNAL_NATIVE_PROTOCOL), never blocking; what it refuses goes to a stream."""

    def __init__(self, fallback: TextIO, path: str = JOURNAL_SOCKET) -> None:
        super().__init__(fallback)
        self._path = path
        # Not connected: journald may be restarted, and its old socket is dead for ever.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def emit(self, record: logging.LogRecord) -> None:
        """Send one event, or write it to the fallback."""
        try:
            self._socket.sendto(encode_entry(journal_fields(json.loads(self.format(record)))), self._path)
        except OSError:
            super().emit(record)

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()
        super().close()


def stderr_is_journal(named: str | None, stream: TextIO) -> bool:
    """Say whether a stream is the connection that JOURNAL_STREAM (`device:inode`) names (systemd.exec(5))."""
    try:
        seen = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return named == f"{seen.st_dev}:{seen.st_ino}"


def journal_fields(facts: Mapping[str, Any]) -> dict[str, str]:
    """Map one event to journald's fields: ours are PX_EVENT, PX_UNIT and so on. Pure."""
    event = str(facts.get("event", ""))
    rest = {name: _text(fact) for name, fact in facts.items() if name not in {"event", "level", "time", "exception"}}
    message = " ".join([event, *(f"{name}={text}" for name, text in rest.items())])
    return {
        "MESSAGE": f"{message}\n{facts['exception']}" if "exception" in facts else message,
        "PRIORITY": str(PRIORITIES.get(str(facts.get("level")), 6)),
        "SYSLOG_IDENTIFIER": "pxd",
        "PX_EVENT": event,
        **{f"PX_{_NOT_A_FIELD.sub('_', name.upper())}"[:64]: text for name, text in rest.items()},
    }


def encode_entry(fields: Mapping[str, str]) -> bytes:
    """Serialise one entry: name, newline, the length as 64 bits little-endian, value, newline; so for each. Pure."""
    parts = []
    for name, text in fields.items():
        value = text.encode("utf-8", "replace")[:MAX_VALUE]
        parts += [name.encode("ascii"), b"\n", struct.pack("<Q", len(value)), value, b"\n"]
    return b"".join(parts)


def _json(_logger: Any, _name: str, event: EventDict) -> str:
    first = {name: event[name] for name in ("time", "level", "event") if name in event}
    return json.dumps({**first, **event}, ensure_ascii=False)


def _text(fact: Any) -> str:
    return fact if isinstance(fact, str) else json.dumps(fact, ensure_ascii=False)


def redact(_logger: Any, _name: str, event: EventDict) -> EventDict:
    """Make every fact of an event presentable; a processor of structlog."""
    return {name: presentable(name, fact) for name, fact in event.items()}


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
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode("utf-8", "replace")
    if isinstance(value, BaseException):
        value = f"{type(value).__name__}: {value}"
    if isinstance(value, str | PurePath):
        text = str(value)
        return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
    if isinstance(value, Mapping) and name.lower() in _ENVIRONMENTS:
        return sorted(str(key) for key in value)
    if not isinstance(value, Mapping | list | tuple | AbstractSet):
        return f"<{type(value).__name__}>"
    if depth >= MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        items = list(value.items())[:MAX_ITEMS]
        return {str(key): presentable(str(key), each, depth + 1) for key, each in items}
    return [presentable(name, each, depth + 1) for each in list(value)[:MAX_ITEMS]]
