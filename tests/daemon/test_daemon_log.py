"""The own log: one event, three forms; secrets never; nothing that goes wrong with it stops the daemon."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import struct
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.daemon import log
from supervisord_py.daemon.log import (
    HIDDEN,
    MAX_TEXT,
    Form,
    Journal,
    choose_form,
    configure_log,
    encode_entry,
    presentable,
    stderr_is_journal,
)
from supervisord_py.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    root.setLevel(level)
    root.handlers[:] = handlers


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_begin_with_time_level_event() -> None:
    stream = io.StringIO()
    configure_log("info", form=Form.JSON, stream=stream)
    structlog.get_logger().info("tool_started", unit="tool:x", pid=7, path=Path("/a"))
    (line,) = lines(stream)
    assert list(line)[:3] == ["time", "level", "event"]
    assert line | {"time": ""} == {
        "time": "",
        "level": "info",
        "event": "tool_started",
        "unit": "tool:x",
        "pid": 7,
        "path": "/a",
    }
    assert line["time"].endswith("Z")


def test_a_terminal_gets_lines_for_people() -> None:
    stream = io.StringIO()
    configure_log("info", form=Form.TERMINAL, stream=stream)
    structlog.get_logger().warning("tool_slow", unit="tool:x")
    assert "tool_slow" in stream.getvalue()
    assert "unit=tool:x" in stream.getvalue()
    assert "{" not in stream.getvalue()


def test_the_level_may_change_while_running() -> None:
    stream = io.StringIO()
    gate = configure_log("warning", form=Form.JSON, stream=stream)
    logger = structlog.get_logger()
    logger.info("unheard")
    logger.error("always")
    gate.set("debug")
    logger.debug("heard")
    assert [line["event"] for line in lines(stream)] == ["always", "heard"]


def test_what_libraries_log_and_warn_goes_the_same_way() -> None:
    stream = io.StringIO()
    configure_log("info", form=Form.JSON, stream=stream)
    logging.getLogger("aiohttp.server").error("broken %s", "pipe")
    logging.getLogger("noise").debug("unheard")
    logging.getLogger("watchfiles.main").info("1 change detected")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old thing", stacklevel=1)
    first, second = lines(stream)
    assert (first["level"], first["event"], first["logger"]) == ("error", "broken pipe", "aiohttp.server")
    assert "old thing" in second["event"]


def test_exceptions_come_with_their_traceback() -> None:
    stream = io.StringIO()
    configure_log("info", form=Form.JSON, stream=stream)
    try:
        int("why")
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = lines(stream)
    assert line["level"] == "error"
    assert "ValueError: invalid literal" in line["exception"]


def test_a_stderr_that_is_gone_stops_nobody() -> None:
    stream = io.StringIO()
    configure_log("info", form=Form.JSON, stream=stream)
    stream.close()
    structlog.get_logger().info("into_the_void")

    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(28, "No space left on device")

    configure_log("info", form=Form.JSON, stream=Full())
    structlog.get_logger().info("into_the_void")


class Object:
    def __repr__(self) -> str:
        raise AssertionError("nobody may ask for a repr")


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("api_key", "sk-1", HIDDEN),
        ("Authorization", b"Bearer x", HIDDEN),
        ("password", ["a"], HIDDEN),
        ("token_file", "/a/b", "/a/b"),
        ("tokens", 512, 512),
        ("env", {"B": "x", "A": "y"}, ["A", "B"]),
        ("headers", {"Cookie": "x", "Host": "px"}, {"Cookie": HIDDEN, "Host": "px"}),
        ("thing", Object(), "<Object>"),
        ("form", Form.JSON, 2),
        ("error", ConflictError("no"), "ConflictError: no"),
        ("raw", b"\xff", "�"),
        ("some", {1}, [1]),
        ("n", float("nan"), "nan"),
        ("x", 1.5, 1.5),
        ("none", None, None),
        ("flag", True, True),
        ("long", "x" * (MAX_TEXT + 1), "x" * MAX_TEXT + "…"),
    ],
)
def test_only_what_may_be_shown_is_shown(name: str, value: object, shown: object) -> None:
    assert presentable(name, value) == shown


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.text(), JSONISH)
def test_whatever_is_shown_is_valid_json(name: str, value: object) -> None:
    json.loads(json.dumps(presentable(name, value), allow_nan=False))


HUNTER = "hunter2-hunter2"


@given(st.sampled_from(["token", "client_secret", "API-KEY", "apikey", "Set-Cookie"]), JSONISH)
def test_a_secret_is_nowhere_in_the_line(name: str, beside: object) -> None:
    shown = presentable("request", {"beside": beside, "headers": {name: HUNTER}, name: [HUNTER]})
    assert HUNTER not in json.dumps(shown)


# -- journald ----------------------------------------------------------------------------------------------------


def decode_entry(content: bytes) -> dict[str, str]:
    fields = {}
    while content:
        name, content = content.split(b"\n", 1)
        (size,) = struct.unpack("<Q", content[:8])
        fields[name.decode()] = content[8 : 8 + size].decode()
        assert content[8 + size : 9 + size] == b"\n"
        content = content[9 + size :]
    return fields


@pytest.fixture
def journald(short_tmp: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(short_tmp / "j"))
        server.settimeout(20)
        yield server


def test_events_become_fields(journald: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Journal(journald.getsockname())
    monkeypatch.setattr(log, "Journal", lambda: writer)
    stream = io.StringIO()
    configure_log("info", form=Form.JOURNAL, stream=stream)
    structlog.get_logger().warning("tool_slow", unit="tool:x", seconds=1.5, api_key="k")
    fields = decode_entry(journald.recv(1 << 16))
    assert fields == {
        "MESSAGE": "tool_slow unit=tool:x seconds=1.5 api_key=[hidden]",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "pxd",
        "PX_EVENT": "tool_slow",
        "PX_UNIT": "tool:x",
        "PX_SECONDS": "1.5",
        "PX_API_KEY": "[hidden]",
    }
    assert stream.getvalue() == ""
    writer.close()


def test_without_journald_the_line_goes_to_stderr(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "Journal", lambda: Journal(str(short_tmp / "none")))
    stream = io.StringIO()
    configure_log("info", form=Form.JOURNAL, stream=stream)
    structlog.get_logger().info("lonely")
    assert lines(stream)[0]["event"] == "lonely"


def test_a_full_journal_drops_counts_and_says_so(short_tmp: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(short_tmp / "j"))
        writer = Journal(str(short_tmp / "j"))
        while writer.write({"MESSAGE": "x"}):
            pass
        assert not writer.write({"MESSAGE": "x"})
        assert writer.dropped == 2
        server.settimeout(20)
        server.recv(1 << 16)
        while not writer.write({"MESSAGE": "back"}):
            server.recv(1 << 16)
        server.setblocking(False)
        said = {}
        while "PX_DROPPED_ENTRIES" not in said:
            said = decode_entry(server.recv(1 << 16))
        assert int(said["PX_DROPPED_ENTRIES"]) >= 2
        assert writer.dropped == 0
        writer.close()


def test_a_journald_that_was_restarted_is_found_again(short_tmp: Path) -> None:
    path = short_tmp / "j"
    writer = Journal(str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as first:
        first.bind(str(path))
        assert writer.write({"MESSAGE": "1"})
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as second:
        second.bind(str(path))
        assert writer.write({"MESSAGE": "2"})
        assert decode_entry(second.recv(1 << 16)) == {"MESSAGE": "2"}
    writer.close()
    writer.close()


def test_long_values_are_cut() -> None:
    assert len(encode_entry({"MESSAGE": "ä" * 10**6})) < 2 * log.MAX_VALUE


def test_journal_stream_must_name_this_very_stderr(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        seen = os.fstat(file.fileno())
        assert stderr_is_journal(f"{seen.st_dev}:{seen.st_ino}", file.fileno())
        assert not stderr_is_journal(f"{seen.st_dev}:{seen.st_ino + 1}", file.fileno())
        assert not stderr_is_journal(None, file.fileno())
    assert not stderr_is_journal("1:2", 9999)


def test_the_form_follows_stderr(tmp_path: Path) -> None:
    with (tmp_path / "f").open("w") as file:
        seen = os.fstat(file.fileno())
        assert choose_form({"JOURNAL_STREAM": f"{seen.st_dev}:{seen.st_ino}"}, file) is Form.JOURNAL
        assert choose_form({"JOURNAL_STREAM": "1:1"}, file) is Form.JSON
    main, terminal = os.openpty()
    with os.fdopen(terminal, "w") as file:
        assert choose_form({}, file) is Form.TERMINAL
    os.close(main)
    assert choose_form({}, io.StringIO()) is Form.JSON
