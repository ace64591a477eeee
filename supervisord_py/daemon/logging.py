"""The control plane's own log: human lines on a terminal, JSON otherwise, native fields to journald
when there.

By structlog over the standard library's logging, so that what libraries log goes the same way. The
log may lose lines (a full disk, a closed terminal), but it never stops the daemon. Values under
names that smell of secrets are hidden. In a file, lines of one kind are limited: whoever can cause
them must not be able to fill the disk.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import stat
import sys
import time
from contextlib import suppress
from typing import Any, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor

from supervisord_py.config.settings import HIDDEN
from supervisord_py.keeper import journald
from supervisord_py.keeper.repeats import SUPPRESSED, RepeatLimiter

MAX_TEXT = 16 * 1024
JOURNAL_SOCKET = journald.SOCKET_PATH

_SECRET = re.compile(
    r"token|secret|passw|authorization|api[_-]?key|credential|cookie|private[_-]?key", re.IGNORECASE
)
_ABOUT_A_SECRET = re.compile(r"(_file|_path|_bytes|_seconds)$", re.IGNORECASE)


def configure_log(level: str, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging: to journald, a terminal, or as JSON."""
    stream = stream or sys.stderr
    logging.raiseExceptions = False  # a stream that is gone or full loses lines, nothing else
    handler: logging.Handler = logging.StreamHandler(stream)
    with suppress(OSError, ValueError):  # a stream that has no descriptor
        if journald.is_journal(stream.fileno()):
            handler = _JournalHandler(stream)
        elif stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            handler = _FileHandler(stream)
    renderer: Processor = _json
    if stream.isatty():
        plain, colors = structlog.dev.plain_traceback, "NO_COLOR" not in os.environ
        renderer = structlog.dev.ConsoleRenderer(
            colors=colors, timestamp_key="time", exception_formatter=plain
        )
    stamped = structlog.processors.TimeStamper(fmt="iso", utc=True, key="time")
    first: list[Processor] = [structlog.stdlib.add_log_level, stamped]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *first,
            ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    last: list[Processor] = [
        ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        _redact,
    ]
    foreign = [*first, structlog.stdlib.add_logger_name]
    handler.setFormatter(
        ProcessorFormatter(processors=[*last, renderer], foreign_pre_chain=foreign)
    )
    logging.getLogger().handlers[:] = [handler]
    # at info it tells of every file that changes
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    set_level(level)


def set_level(level: str) -> None:
    """Drop what is below `level`, ours and what libraries log; at any time."""
    logging.getLogger().setLevel(level.upper())


class _FileHandler(logging.StreamHandler[TextIO]):
    """Writes into a file, of each kind of line only so many (`RepeatLimiter`); those left out
    are told as a number.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._limiter = RepeatLimiter()

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        for kind, count in self._limiter.overdue(now):
            # which comes here at once
            structlog.get_logger(__name__).warning(SUPPRESSED, kind=kind, count=count)
        kind = kind_of(record)
        # At debug level somebody looks for something: then everything is written.
        is_exempt = kind == SUPPRESSED or logging.getLogger().level <= logging.DEBUG
        if is_exempt or self._limiter.admit(kind, now):
            super().emit(record)


def kind_of(record: logging.LogRecord) -> str:
    """Return what lines are counted by: our event, or a library's message without what is filled
    in.
    """
    if isinstance(record.msg, dict):
        return str(record.msg.get("event"))
    return f"{record.name}: {record.msg}"[:200]


class _JournalHandler(logging.StreamHandler[TextIO]):
    """Sends events to journald (JOURNAL_NATIVE_PROTOCOL), never blocking; what it refuses goes
    to a stream.
    """

    def __init__(self, fallback: TextIO) -> None:
        super().__init__(fallback)
        # Not connected: journald may be restarted, and its old socket is dead for ever.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._socket.sendto(journald.entry(json.loads(self.format(record))), JOURNAL_SOCKET)
        except OSError:
            super().emit(record)

    def close(self) -> None:
        self._socket.close()
        super().close()


def _json(_logger: Any, _name: str, event: EventDict) -> str:
    first = {name: event[name] for name in ("time", "level", "event") if name in event}
    return json.dumps({**first, **event}, ensure_ascii=False, default=str)


def _redact(_logger: Any, _name: str, event: EventDict) -> EventDict:
    """Hide what smells of a secret by its name, tell errors by their kind, and cut what is long."""
    facts: EventDict = {}
    for name, value in event.items():
        if isinstance(value, BaseException):
            facts[name] = f"{type(value).__name__}: {value}"
        elif (
            isinstance(value, int | float)
            or not _SECRET.search(name)
            or _ABOUT_A_SECRET.search(name)
        ):
            facts[name] = (
                value
                if not isinstance(value, str) or len(value) <= MAX_TEXT
                else f"{value[:MAX_TEXT]}…"
            )
        else:
            facts[name] = HIDDEN
    return facts
