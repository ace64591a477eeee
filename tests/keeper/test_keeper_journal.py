"""The keeper's own log: whole lines of JSON, not too many of one kind, in files that do not grow
without end.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.keeper import journal as subject
from supervisord_py.keeper import journald
from supervisord_py.keeper.journal import LINE_LIMIT, OVERFULL, Journal, json_line
from supervisord_py.keeper.repeats import (
    BURST,
    MOST_KINDS,
    SUPPRESSED,
    WINDOW_SECONDS,
    RepeatLimiter,
)

LIMIT = 2000


class Log:
    """A folder with the daemon's log, opened as `pxctl daemon start` opens it."""

    def __init__(self, folder: Path, flags: int = os.O_APPEND) -> None:
        self.folder, self.path = folder, folder / "pxd.log"
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
        self.journal = Journal(self.fd)
        self.journal.keep_file(str(folder))

    def lines(self, name: str = "pxd.log") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setattr(subject, "FILE_BYTES", LIMIT)
    made = Log(tmp_path)
    yield made
    os.close(made.fd)


AWKWARD = st.text(alphabet='\n"\\\x00é\U0001f600', min_size=3000)
FACTS = st.dictionaries(
    st.text(max_size=10),
    st.one_of(st.integers(), st.text(), AWKWARD, st.lists(st.integers(), max_size=999)),
    max_size=6,
)  # fmt: skip


@given(FACTS)
def test_a_line_is_whole_json_and_not_too_long(facts: dict[str, Any]) -> None:
    line = json_line({"time": "now", "level": "error", "event": "x", **facts})
    assert len(line) <= LINE_LIMIT
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert json.loads(line)["event"] == facts.get("event", "x") or len(str(facts.get("event"))) > 80


def test_of_a_traceback_the_middle_is_cut() -> None:
    line = json.loads(
        json_line({"event": "callback_failed", "traceback": f"first\n{'between' * 9000}\nlast"})
    )
    assert line["traceback"].startswith("first")
    assert line["traceback"].endswith("last")


def test_what_fits_is_not_touched() -> None:
    facts = {"event": "x", "pids": [1, 2], "none": None}
    assert json.loads(json_line(facts)) == facts


def test_lines_of_one_kind_are_limited_and_the_others_counted() -> None:
    limiter = RepeatLimiter()
    for turn in (0, 1):
        begin = turn * 10 * WINDOW_SECONDS
        admitted = [limiter.admit("x", begin + number / 1000) for number in range(3 * BURST)]
        assert admitted.count(True) == BURST
        assert limiter.admit("other", begin)
        assert limiter.overdue(begin + 1) == []
        assert limiter.overdue(begin + 2 * WINDOW_SECONDS) == [("x", 2 * BURST)]
        assert limiter.overdue(begin + 2 * WINDOW_SECONDS) == []


def test_no_number_of_kinds_takes_all_memory() -> None:
    limiter = RepeatLimiter()
    for number in range(10 * MOST_KINDS):
        limiter.admit(str(number), 0.0)
    assert len(limiter._windows) == MOST_KINDS


def test_in_the_daemons_file_lines_are_limited_and_told_later(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "FILE_BYTES", 1 << 20)
    for _ in range(100):
        log.journal.warning("again")
    assert len(log.lines()) == BURST
    now = subject.time.monotonic()
    monkeypatch.setattr(subject.time, "monotonic", lambda: now + 2 * WINDOW_SECONDS)
    log.journal.info("later")
    assert [(line["event"], line.get("count")) for line in log.lines()[-2:]] == [
        (SUPPRESSED, 100 - BURST),
        ("later", None),
    ]


def test_a_large_file_is_moved_and_both_processes_write_on(log: Log) -> None:
    other = os.dup(log.fd)  # the control plane's
    for number in range(60):
        log.journal.info(f"kind-{number}", filler="x" * 200)
        os.write(other, b'{"event": "other"}\n')
    assert log.names() == ["pxd.log", "pxd.log.1", "pxd.log.2"]
    assert log.path.stat().st_size < 2 * LIMIT
    events = [line["event"] for name in reversed(log.names()) for line in log.lines(name)]
    kinds = [event for event in events if event != "other"]
    assert kinds == [f"kind-{number}" for number in range(60 - len(kinds), 60)], (
        "none of the newest is missing"
    )
    assert {(log.folder / name).stat().st_mode & 0o777 for name in log.names()} == {0o600}
    os.close(other)


def test_what_is_not_the_daemons_file_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "FILE_BYTES", LIMIT)
    other = os.open(tmp_path / "elsewhere", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    linked, plain = tmp_path / "linked", tmp_path / "plain"
    for folder in (linked, plain):
        folder.mkdir()
    (linked / "pxd.log").symlink_to(tmp_path / "elsewhere")
    for folder, fd in ((linked, other), (plain, Log(plain, 0).fd)):
        journal = Journal(fd)
        journal.keep_file(str(folder))
        for _ in range(100):
            journal.info("again", filler="x" * 100)
        assert os.fstat(fd).st_size > 100 * 100, "a link, or a file that is not appended to"
        os.close(fd)


def test_a_file_that_cannot_be_copied_is_still_bounded(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, or no descriptor is left: it is not tried with each line, and at last
    the file is emptied.
    """
    tries = 0

    def refuse(_: Journal) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Journal, "_keep_copy", refuse)
    for number in range(200):
        log.journal.info(f"kind-{number}", filler="x" * 100)
        assert log.path.stat().st_size < (OVERFULL + 1) * LIMIT
    assert tries < 10


# -- journald --------------------------------------------------------------------------------------


def test_journald_gets_fields_in_the_form_of_the_control_plane_and_stderr_what_it_does_not_take(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = short_tmp / "j"
    monkeypatch.setattr(journald, "SOCKET_PATH", str(path))
    with (short_tmp / "stderr").open("ab") as stderr:
        seen = os.fstat(stderr.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{seen.st_dev}:{seen.st_ino}")
        log = Journal(stderr.fileno())
        log.warning("control_exited", pid=12, planned=False)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
            server.bind(str(path))
            server.settimeout(20)
            log.info("keeper_started", pid=7, **{"kill-rung": "cgroup"})
            content = server.recv(1 << 16)
    (line,) = (short_tmp / "stderr").read_text().splitlines()
    assert json.loads(line)["event"] == "control_exited", "nobody listened"

    def field(name: str, value: str) -> bytes:
        return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value.encode() + b"\n"

    assert field("MESSAGE", "keeper_started pid=7 kill-rung=cgroup") in content
    assert field("PRIORITY", "6") in content
    assert field("SYSLOG_IDENTIFIER", "pxd") in content
    assert field("PX_SOURCE", "keeper") in content
    assert field("PX_KILL_RUNG", "cgroup") in content
