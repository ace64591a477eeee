"""The own log: one event, three forms; secrets never; nothing that goes wrong with it stops the
daemon.
"""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import struct
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from supervisord_py.config.settings import HIDDEN
from supervisord_py.daemon import logging as subject
from supervisord_py.daemon.event_log import level_of, log_event
from supervisord_py.daemon.logging import MAX_TEXT, configure_log, set_level
from supervisord_py.errors import ConflictError
from supervisord_py.keeper.repeats import BURST, SUPPRESSED, WINDOW_SECONDS
from supervisord_py.process.events import Event


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A stderr that is neither a terminal nor the journal, with the log on it."""
    root = logging.getLogger()
    level, handlers, made = root.level, root.handlers[:], io.StringIO()
    configure_log("info", made)
    yield made
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    root.setLevel(level)
    root.handlers[:] = handlers


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.usefixtures("stream")
def test_a_terminal_gets_lines_for_people() -> None:
    main, terminal = os.openpty()
    with os.fdopen(main, "rb") as read, os.fdopen(terminal, "w") as file:
        configure_log("info", file)
        structlog.get_logger().warning("tool_slow", unit="tool:x")
        said = read.readline().decode()
    assert ("tool_slow" in said, "tool:x" in said, "{" in said) == (True, True, False)


def test_what_libraries_log_and_warn_goes_the_same_way_and_exceptions_have_their_traceback(
    stream: io.StringIO,
) -> None:
    logging.getLogger("aiohttp.server").error("broken %s", "pipe")
    logging.getLogger("noise").debug("unheard")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old thing", stacklevel=1)
    for logger in (structlog.get_logger(), logging.getLogger("library")):
        try:
            int("why")
        except ValueError:
            logger.exception("failed")
    first, second, *failed = lines(stream.getvalue())
    assert (first["level"], first["event"], first["logger"]) == (
        "error",
        "broken pipe",
        "aiohttp.server",
    )
    assert "old thing" in second["event"]
    assert [(it["level"], it["event"]) for it in failed] == [("error", "failed")] * 2
    assert all("ValueError: invalid literal" in it["exception"] for it in failed)


def test_a_stderr_that_is_gone_or_full_stops_nobody(stream: io.StringIO) -> None:
    stream.close()
    structlog.get_logger().info("into_the_void")
    with io.TextIOWrapper(open("/dev/full", "wb", buffering=0), write_through=True) as full:
        configure_log("info", full)
        structlog.get_logger().info("into_the_void")


def test_only_what_may_be_shown_is_shown(stream: io.StringIO) -> None:
    told = {"api_key": "sk-1", "password": ["a"], "token_file": Path("/a/b"), "tokens": 512}
    structlog.get_logger().info(
        "told", **told, error=ConflictError("no"), long="x" * (MAX_TEXT + 1)
    )
    shown = {"api_key": HIDDEN, "password": HIDDEN, "token_file": "/a/b", "tokens": 512}
    shown |= {"error": "ConflictError: no", "long": "x" * MAX_TEXT + "…"}
    assert lines(stream.getvalue())[0].items() >= shown.items()


@pytest.mark.usefixtures("stream")
def test_in_a_file_lines_of_one_kind_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours by their event, those of libraries by their message without what is filled in; at
    debug level none.
    """
    path = tmp_path / "pxd.log"
    with path.open("a", buffering=1) as file:
        configure_log("info", file)
        library = logging.getLogger("aiohttp.server")
        for number in range(100):
            structlog.get_logger().warning("cannot_accept", number=number)
            library.error("Error handling request from %s", number)
        structlog.get_logger().warning("other")
        events = Counter(line["event"].rstrip("0123456789") for line in lines(path.read_text()))
        assert events == {"cannot_accept": BURST, "Error handling request from ": BURST, "other": 1}
        now = subject.time.monotonic()
        monkeypatch.setattr(subject.time, "monotonic", lambda: now + 2 * WINDOW_SECONDS)
        structlog.get_logger().info("later")
        told = [line for line in lines(path.read_text()) if line["event"] == SUPPRESSED]
        assert {(line["kind"][:13], line["count"]) for line in told} == {
            ("cannot_accept", 100 - BURST),
            ("aiohttp.serve", 100 - BURST),
        }
        set_level("debug")
        for _ in range(100):
            structlog.get_logger().debug("looked_for")
        assert sum(line["event"] == "looked_for" for line in lines(path.read_text())) == 100


def heard(journal: socket.socket) -> dict[str, str]:
    """Return the fields of the next entry."""
    content, fields = journal.recv(1 << 16), {}
    while content:
        name, content = content.split(b"\n", 1)
        (size,) = struct.unpack("<Q", content[:8])
        fields[name.decode()] = content[8 : 8 + size].decode()
        assert content[8 + size : 9 + size] == b"\n"
        content = content[9 + size :]
    return fields


@pytest.mark.usefixtures("stream")
def test_journald_gets_fields_and_what_it_does_not_take_goes_to_stderr_until_it_is_back(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stderr = short_tmp / "j", short_tmp / "stderr"
    monkeypatch.setattr(subject, "JOURNAL_SOCKET", str(path))

    def listening() -> socket.socket:
        journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        journal.bind(str(path))
        journal.settimeout(20)
        return journal

    with stderr.open("w", buffering=1) as fallback:
        seen = os.fstat(fallback.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{seen.st_dev}:{seen.st_ino}")
        configure_log("info", fallback)
        log = structlog.get_logger()
        log.info("lonely")
        with listening() as journal:
            log.warning("tool_slow", unit="tool:x", seconds=1.5, api_key="k")
            message = "tool_slow unit=tool:x seconds=1.5 api_key=[hidden]"
            known = {
                "MESSAGE": message,
                "PRIORITY": "4",
                "SYSLOG_IDENTIFIER": "pxd",
                "PX_EVENT": "tool_slow",
            }
            assert heard(journal) == {
                **known,
                "PX_UNIT": "tool:x",
                "PX_SECONDS": "1.5",
                "PX_API_KEY": HIDDEN,
            }
        path.unlink()
        with listening() as journal:
            log.info("again")
            assert heard(journal)["PX_EVENT"] == "again"
            while "flood" not in stderr.read_text():
                log.info("flood")
        assert {it["event"] for it in lines(stderr.read_text())} == {"lonely", "flood"}
        logging.getLogger().handlers[0].close()


# -- events in the log -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "event", "reason", "level"),
    [
        ("tool:x", "died", "signal", "warning"),
        ("tool:x", "start_failed", "early_exit", "warning"),
        ("tool:x", "run_failed", None, "warning"),
        ("tool:x", "stopped", "runtime_limit", "warning"),
        ("tool:x", "stopped", "memory_limit", "warning"),
        ("kernel:x", "stopped", "evicted_ttl", "info"),
        ("tool:x", "stopped", "stopped", "info"),
        ("pipe:x", "execution_failed", "exit", "warning"),
        ("pipe:x", "execution_timed_out", "timeout", "warning"),
        ("pipe:x", "execution_completed", "exit", "info"),
        ("pipe:x", "stopped", "exit", None),
        ("tool:x", "run", None, None),
        ("tool:x", "ready", None, None),
        (None, "stopped", None, None),
    ],
)
def test_which_events_are_logged(
    unit: str | None, event: str, reason: str | None, level: str | None
) -> None:
    assert level_of(Event(1, 0.0, unit, event, reason)) == level


def test_an_end_is_logged_with_its_unit_and_reason(stream: io.StringIO) -> None:
    log_event(
        Event(
            1,
            0.0,
            "tool:x",
            "stopped",
            "runtime_limit",
            facts={"pid": 5, "signal": None, "hint": "h"},
        )
    )
    log_event(Event(2, 0.0, "tool:x", "run", None))
    (line,) = lines(stream.getvalue())
    known = {
        "level": "warning",
        "event": "stopped",
        "unit": "tool:x",
        "reason": "runtime_limit",
        "pid": 5,
    }
    assert {name: value for name, value in line.items() if name != "time"} == known
