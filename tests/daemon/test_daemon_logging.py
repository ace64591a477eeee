"""The own log: one event, three forms; secrets never; nothing that goes wrong with it stops the daemon."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
import structlog

from supervisord_py.config.settings import HIDDEN
from supervisord_py.daemon import logging as subject
from supervisord_py.daemon.logging import (
    MAX_TEXT,
    JournalHandler,
    configure_log,
)
from supervisord_py.errors import ConflictError


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def stream() -> io.StringIO:
    """A stderr that is neither a terminal nor the journal, with the log on it."""
    made = io.StringIO()
    configure_log("info", made)
    return made


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_terminal_gets_lines_for_people() -> None:
    main, terminal = os.openpty()
    with os.fdopen(terminal, "w") as file:
        configure_log("info", file)
        structlog.get_logger().warning("tool_slow", unit="tool:x")
        said = os.read(main, 4096).decode()
    os.close(main)
    assert "tool_slow" in said
    assert "tool:x" in said
    assert "{" not in said


def test_what_libraries_log_and_warn_goes_the_same_way(stream: io.StringIO) -> None:
    logging.getLogger("aiohttp.server").error("broken %s", "pipe")
    logging.getLogger("noise").debug("unheard")
    logging.getLogger("watchfiles.main").info("1 change detected")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old thing", stacklevel=1)
    first, second = lines(stream)
    assert (first["level"], first["event"], first["logger"]) == ("error", "broken pipe", "aiohttp.server")
    assert "old thing" in second["event"]


def test_exceptions_come_with_their_traceback(stream: io.StringIO) -> None:
    for logger in (structlog.get_logger(), logging.getLogger("library")):
        try:
            int("why")
        except ValueError:
            logger.exception("failed")
    for line in lines(stream):
        assert (line["level"], line["event"]) == ("error", "failed")
        assert "ValueError: invalid literal" in line["exception"]


def test_a_stderr_that_is_gone_stops_nobody(stream: io.StringIO) -> None:
    stream.close()
    structlog.get_logger().info("into_the_void")

    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(28, "No space left on device")

    configure_log("info", Full())
    structlog.get_logger().info("into_the_void")


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("api_key", "sk-1", HIDDEN),
        ("password", ["a"], HIDDEN),
        ("token_file", Path("/a/b"), "/a/b"),
        ("tokens", 512, 512),
        ("error", ConflictError("no"), "ConflictError: no"),
        ("long", "x" * (MAX_TEXT + 1), "x" * MAX_TEXT + "…"),
    ],
)
def test_only_what_may_be_shown_is_shown(stream: io.StringIO, name: str, value: object, shown: object) -> None:
    structlog.get_logger().info("told", **{name: value})
    assert lines(stream)[0][name] == shown


def decode_entry(content: bytes) -> dict[str, str]:
    fields = {}
    while content:
        name, content = content.split(b"\n", 1)
        (size,) = struct.unpack("<Q", content[:8])
        fields[name.decode()] = content[8 : 8 + size].decode()
        assert content[8 + size : 9 + size] == b"\n"
        content = content[9 + size :]
    return fields


class Journald:
    """A journald on a path, and the log configured for it; `fallback` is stderr."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "j"
        self.fallback = (folder / "stderr").open("w+")
        seen = os.fstat(self.fallback.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{seen.st_dev}:{seen.st_ino}")
        monkeypatch.setattr(subject, "JournalHandler", self._handler)
        configure_log("info", self.fallback)

    def _handler(self, fallback: TextIO) -> JournalHandler:
        self.handler = JournalHandler(fallback, str(self.path))
        return self.handler

    def listen(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        server.bind(str(self.path))
        server.settimeout(20)
        return server

    def fell_back(self) -> list[str]:
        self.fallback.seek(0)
        return [json.loads(line)["event"] for line in self.fallback]


@pytest.fixture
def journald(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journald]:
    made = Journald(short_tmp, monkeypatch)
    yield made
    made.handler.close()
    made.fallback.close()


def test_events_become_fields(journald: Journald) -> None:
    with journald.listen() as server:
        structlog.get_logger().warning("tool_slow", unit="tool:x", seconds=1.5, api_key="k")
        assert decode_entry(server.recv(1 << 16)) == {
            "MESSAGE": "tool_slow unit=tool:x seconds=1.5 api_key=[hidden]",
            "PRIORITY": "4",
            "SYSLOG_IDENTIFIER": "pxd",
            "PX_EVENT": "tool_slow",
            "PX_UNIT": "tool:x",
            "PX_SECONDS": "1.5",
            "PX_API_KEY": "[hidden]",
        }
    assert journald.fell_back() == []


def test_what_journald_does_not_take_goes_to_stderr_until_it_is_back(journald: Journald) -> None:
    log = structlog.get_logger()
    log.info("lonely")
    with journald.listen() as first:
        log.info("heard")
        assert decode_entry(first.recv(1 << 16))["PX_EVENT"] == "heard"
    journald.path.unlink()
    with journald.listen() as second:
        log.info("again")
        assert decode_entry(second.recv(1 << 16))["PX_EVENT"] == "again"
        while "flood" not in journald.fell_back():
            log.info("flood")
    assert set(journald.fell_back()) == {"lonely", "flood"}
