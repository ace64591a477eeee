"""What the keeper says about itself: one line a fact on stderr, bounded in length, in number, and
in the file.

Where stderr is journald's stream, a fact is sent as native fields, as the control plane does it.

Lines never block: if stderr is a full pipe, a line is dropped, because the keeper's loop is worth
more than its log. Where stderr is the daemon's own file (`pxctl daemon start` makes it so), lines
of one kind are limited, and the file is rotated while the daemon runs. On a terminal, a pipe or
journald's stream nothing is limited: others look after those.

Rotation copies the file and truncates it. Keeper and control plane have the file open for
appending, so both go on at its beginning without having to know. A line that the control plane
writes between copy and truncation is lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import stat
import time
from functools import partial

from supervisord_py.keeper import journald
from supervisord_py.keeper.repeats import SUPPRESSED, RepeatLimiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STDERR_FD = 2
# bytes of one line, below PIPE_BUF (pipe(7)): a pipe that polls writable takes it whole, at once
LINE_LIMIT = 4000
FILE_NAME = "pxd.log"
FILE_BYTES = 8 * 1024 * 1024  # at this size the file is rotated
OLD_FILES = 2  # pxd.log.1 is the newest of them
OVERFULL = 4  # times FILE_BYTES: then the file is emptied even if it cannot be copied
RETRY_SECONDS = 60.0  # after a rotation that failed
_COPY_BYTES = 1024 * 1024
_CUT = " … "


def json_line(facts: dict[str, Any]) -> bytes:
    """Return facts as one line of JSON of at most LINE_LIMIT bytes: members are cut, never the JSON
    text.

    The longest member is cut in its middle: a traceback begins with where it was called, and ends
    with the error.
    """
    members = dict(facts)
    for _ in range(len(members) + 1):
        line = json.dumps(members, default=str).encode("utf-8", "backslashreplace")
        excess = len(line) + 1 - LINE_LIMIT
        if excess <= 0:
            return line + b"\n"
        texts = {
            name: value if isinstance(value, str) else json.dumps(value, default=str)
            for name, value in members.items()
        }
        longest = max(texts, key=lambda name: len(json.dumps(texts[name])))
        text = texts[longest]
        # Its JSON may be longer than the text, by escapes: cut in proportion, with a margin.
        written = len(json.dumps(text))
        room = max(0, written - excess - 2 * len(_CUT) - 16) * len(text) // max(1, written)
        members[longest] = text[: room // 4] + _CUT + text[len(text) - (room - room // 4) :]
    head = {name: str(facts.get(name))[:80] for name in ("time", "level", "event", "source")}
    return json.dumps(head | {"detail": "too long"}).encode("ascii", "backslashreplace") + b"\n"


class Journal:
    """One fact at a time: a line for people on a terminal, fields for journald, else a line of
    JSON on stderr.
    """

    def __init__(self, fd: int = STDERR_FD) -> None:
        self._fd = fd
        self._human = os.isatty(fd)
        self._is_journald = journald.is_journal(fd)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._path = ""  # of the file that stderr is, once it is known to be the daemon's own
        self._limiter = RepeatLimiter()
        self._retry_at = 0.0
        self.info = partial(self._say, "info")
        self.warning = partial(self._say, "warning")
        self.error = partial(self._say, "error")

    def keep_file(self, log_dir: str) -> None:
        """Limit and rotate the file if stderr is the daemon's log in `log_dir`, opened for
        appending.
        """
        path = os.path.join(log_dir, FILE_NAME)
        with contextlib.suppress(OSError):
            is_appending = fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_APPEND
            if is_appending and self._is_at(path):
                self._path = path
                self.rotate_if_large()

    def _is_at(self, path: str) -> bool:
        ours = os.fstat(self._fd)
        there = os.lstat(path)
        return stat.S_ISREG(there.st_mode) and (ours.st_dev, ours.st_ino) == (
            there.st_dev,
            there.st_ino,
        )

    def _say(self, level: str, event: str, **facts: Any) -> None:
        if self._path:
            now = time.monotonic()
            for kind, count in self._limiter.overdue(now):
                self._write("warning", SUPPRESSED, kind=kind, count=count)
            if not self._limiter.admit(event, now):
                return
        self._write(level, event, **facts)
        self.rotate_if_large()

    def _write(self, level: str, event: str, **facts: Any) -> None:
        now = time.time()
        if self._human:
            words = " ".join(f"{name}={value}" for name, value in facts.items())
            text = (
                f"{time.strftime('%H:%M:%S')} {level:7} keeper: {event.replace('_', ' ')} {words}"
            )
            line = text.encode("utf-8", "backslashreplace")[:LINE_LIMIT].rstrip(b"\n") + b"\n"
        else:
            stamp = (
                time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
                + f".{int(now % 1 * 1000):03d}Z"
            )
            members = {"time": stamp, "level": level, "event": event, "source": "keeper", **facts}
            if self._is_journald and journald.send(members):
                return
            line = json_line(members)
        with contextlib.suppress(OSError):
            if any(state & select.POLLOUT for _, state in self._poll.poll(0)):
                os.write(self._fd, line)

    # -- the file ----------------------------------------------------------------------------------

    def rotate_if_large(self) -> None:
        """Move what is in the daemon's own file to `pxd.log.1` once it is large; does nothing if
        it is another file.
        """
        if not self._path:
            return
        try:
            size = os.fstat(self._fd).st_size
            if size < FILE_BYTES or not self._is_at(self._path):
                return
            if size < OVERFULL * FILE_BYTES:
                if time.monotonic() < self._retry_at:
                    return
                self._retry_at = time.monotonic() + RETRY_SECONDS
                self._keep_copy()
            os.ftruncate(self._fd, 0)
            self._retry_at = 0.0
        except OSError:  # the disk is full, or no descriptor is left: it is tried again
            return

    def _keep_copy(self) -> None:
        for number in range(OLD_FILES, 1, -1):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{self._path}.{number - 1}", f"{self._path}.{number}")
        newest = f"{self._path}.1"
        source = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            target = os.open(
                newest, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            try:
                while piece := os.read(source, _COPY_BYTES):
                    os.write(target, piece)
            finally:
                os.close(target)
        finally:
            os.close(source)
