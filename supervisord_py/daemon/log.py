"""The control plane's own log: human lines on a terminal, JSON otherwise, native fields to journald when there.

An event is a snake_case fact with bound facts beside it; what a library logs goes the same way. The log may lose lines
(a full disk, a closed terminal), but it never stops the daemon.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TextIO

import structlog

from supervisord_py.daemon.journal import PRIORITIES, Journal, stderr_is_journal
from supervisord_py.daemon.presentable import presentable

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

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
