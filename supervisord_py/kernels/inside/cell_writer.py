"""Writes the files of a cell: `<id>.out` and `<id>.err`, its bytes as they came, and `<id>.jsonl`,
what else happened.

While a cell of ours runs, the first two are descriptors 1 and 2 of the kernel: who writes there,
writes to the file. A record is one line, appended by one write(2); `at` and `err_at` are the sizes
of the two files when it was written. The record `err` is written before Python's stderr goes on
when stdout has grown since: it is what tells their order.

Children inherit these descriptors and may live longer than the cell. Where any still has a file of
the last cell open, the next cell goes on in that file: it is a second link to it, and `<id>.span`
says which bytes of the file are whose. So what a child prints now is output of the cell that runs
now.

No trouble of a disk becomes an exception in a user's `print`: what was not kept is told by the
record `capped`. Standard library only, Python 3.8: the daemon imports this, too.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

STATUS_MIME = "application/x-px-status+json"  # a display of it is an event of a helper, no output
STREAMS = {"stdout": ".out", "stderr": ".err"}
RECORDS = ".jsonl"
SPAN = ".span"
# a file larger than this is not gone on with: nothing of it is freed while a cell is kept in it
GO_ON_BYTES = 1 << 30
# that records may take: a small cap must not hide an error's traceback
LEAST_RECORD_BYTES = 1 << 20
_ALWAYS = frozenset(("begin", "error", "capped", "end"))
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Descriptor:
    """A file open for appending, closed with its last user: a late thread never writes to a
    number used anew.
    """

    def __init__(self, path: str, create: int) -> None:
        self.number = -1
        self.number = os.open(path, _FLAGS | create, 0o600)
        if create:
            os.fchmod(self.number, 0o600)  # the umask is the user's code's to set

    def __del__(self) -> None:
        if self.number >= 0:
            with contextlib.suppress(OSError):
                os.close(self.number)


def read_spans(base: str) -> dict[str, tuple[int, int | None]]:
    """Return which bytes of its files are a cell's, `{".out": (start, end)}`; end None: up to the
    end of the file.

    `base`: the path of its files without the ending. A stream that is not named has its file for
    itself.
    """
    if not os.path.exists(base + SPAN):  # as for most cells: an exception costs four times as much
        return {}
    try:
        with open(base + SPAN, encoding="ascii") as file:
            return {ending: (start, end) for ending, (start, end) in json.load(file).items()}
    except (OSError, ValueError):
        return {}


def read_stream(base: str, ending: str) -> bytes:
    """Return all that a cell printed to a stream so far; b"" where it has no such file."""
    try:
        with open(base + ending, "rb") as file:
            start, end = read_spans(base).get(ending, (0, None))
            file.seek(start)
            return file.read() if end is None else file.read(end - start)
    except FileNotFoundError:
        return b""


def _write_spans(base: str, spans: Mapping[str, tuple[int, int | None]]) -> None:
    """Replace the file as a whole: a reader finds the old or the new one. Raises OSError."""
    draft = base + SPAN + "-new"
    descriptor = os.open(
        draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    with open(descriptor, "w", encoding="ascii") as file:
        json.dump(spans, file)
    os.rename(draft, base + SPAN)


class CellWriter:
    """The files `<folder>/<cell id>.*` of one cell, each stream of at most `cap` bytes.

    Every method may be called from any thread, and none but `open` raises OSError.
    """

    def __init__(self, folder: str, cell_id: str, cap: int) -> None:
        self.base = os.path.join(folder, cell_id)
        self.ended = False
        self._started = time.monotonic()
        self._cap = cap
        self._files: dict[str, Descriptor] = {}
        # of its bytes in its files; None: somebody else decides
        self._starts: dict[str, int] | None = None
        self._handed_on: set[str] = set()  # streams whose file belongs to a later cell by now
        self._failed: set[str] = set()
        self._why = ""
        self._said = False
        self._torn = False
        known = self.size(RECORDS)
        self._placed = -1 if known else 0
        self._room = max(cap, LEAST_RECORD_BYTES) - known
        self._written = self.size(".out") + self.size(".err")

    def open(self, ending: str) -> Descriptor:
        """Return an open file; one that was swept away after the end stays away. Raises OSError."""
        found = self._files.get(ending)
        if found is None:
            create = 0 if self.ended and not os.path.exists(self.base + RECORDS) else os.O_CREAT
            found = Descriptor(self.base + ending, create)
            if not self.ended:  # else it would stay open for the sake of one late line
                self._files[ending] = found
        return found

    def size(self, ending: str) -> int:
        """Return how many bytes of a file are the cell's."""
        found = self._files.get(ending)
        try:
            whole = os.stat(self.base + ending if found is None else found.number).st_size
        except OSError:
            return 0
        return max(0, whole - self._start(ending))

    def _start(self, ending: str) -> int:
        if ending == RECORDS:
            return 0
        if self._starts is not None:
            return self._starts.get(ending, 0)
        return read_spans(self.base).get(ending, (0, None))[0]

    def hold(self, ending: str) -> int:
        """Return a descriptor to be given to children; the file counts as in use until the last
        copy is closed.

        A flock(2) belongs to what all copies of a descriptor share, so it ends with the last of
        them. Raises OSError.
        """
        number = self.open(ending).number
        # a file system without locks: children are the first cell's, then
        with contextlib.suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_SH)
        return number

    def is_held(self, ending: str) -> bool:
        """Say whether somebody still has a descriptor that `hold` gave."""
        try:
            number = os.open(self.base + ending, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        else:
            return False
        finally:
            os.close(number)

    def go_on_after(self, before: CellWriter) -> None:
        """Go on in the files of the cell before, where children still print into them.

        Nothing is lost and nothing is told twice: each byte of the file belongs to one of the two.
        """
        starts: dict[str, int] = {}
        for ending in STREAMS.values():
            if before.is_held(ending):
                boundary = before._start(ending) + before.size(ending)
                if boundary <= GO_ON_BYTES:
                    starts[ending] = boundary
        if not starts or not self._link(before.base, starts):
            return
        ends = {ending: (before._start(ending), boundary) for ending, boundary in starts.items()}
        before._handed_on.update(starts)
        # no space: a later reader of the cell before finds this one's bytes, too
        with contextlib.suppress(OSError):
            _write_spans(before.base, {**read_spans(before.base), **ends})

    def _link(self, base: str, starts: dict[str, int]) -> bool:
        """Make the files of another cell ours from some bytes on; False where that cannot be,
        and nothing is left.
        """
        try:
            # A reader must find where the cell begins before it finds the file.
            _write_spans(self.base, {ending: (start, None) for ending, start in starts.items()})
            for ending in starts:
                os.link(base + ending, self.base + ending)
        except OSError:  # no space, or a file system without links
            for ending in (*starts, SPAN):
                with contextlib.suppress(OSError):
                    os.unlink(self.base + ending)
            return False
        self._starts = starts
        return True

    def close(self) -> None:
        """Give the descriptors back; whatever is still to be written opens the files again."""
        self._files.clear()

    def write(self, stream: str, data: bytes) -> None:
        """Append bytes of `stdout` or `stderr`: an exact beginning of them, nothing behind a
        hole.
        """
        ending = STREAMS[stream]
        if ending in self._failed:
            return
        if ending == ".err":
            self._place()
        self._append(ending, data)
        self._written += len(data)
        if self._written > self._cap:
            self.limit()

    def limit(self) -> None:
        """Cut back what has outgrown the cap, whoever wrote it, and tell of that once."""
        for ending in STREAMS.values():
            if ending not in self._handed_on and self.size(ending) > self._cap:
                self._failed.add(ending)
                with contextlib.suppress(OSError):
                    os.truncate(self.base + ending, self._start(ending) + self._cap)
                self._say_capped(cap=self._cap)

    def begin(self, code: str) -> None:
        self._starts = {}  # files of its own, unless it goes on after another cell
        self._record("begin", code=code)

    def message(self, kind: str, content: Mapping[str, Any]) -> None:
        """Record what a Jupyter message about the cell says, whatever it holds, if that is
        output.
        """
        found = (content.get(name) for name in ("data", "metadata", "transient"))
        data, metadata, transient = (each if isinstance(each, dict) else {} for each in found)
        if kind == "stream":
            text = str(content.get("text") or "").encode("utf-8", "surrogatepass")
            self.write("stderr" if content.get("name") == "stderr" else "stdout", text)
        elif kind in ("display_data", "update_display_data"):
            name = transient.get("display_id")
            if STATUS_MIME in data:
                self._record("status", event=data[STATUS_MIME])
            else:
                members = {
                    "display_id": None if name is None else str(name),
                    "update": kind == "update_display_data",
                }
                self._record("display", data=data, metadata=metadata, **members)
        elif kind == "execute_result":
            count = content.get("execution_count")
            count = count if isinstance(count, int) else None
            self._record("result", data=data, metadata=metadata, execution_count=count)
        elif kind == "clear_output":  # what was shown so far; with `wait`, when something new comes
            self._record("clear", wait=bool(content.get("wait")))
        elif kind == "error":
            self._record("error", **_error(content))

    def reply(self, content: Mapping[str, Any]) -> None:
        """Close the cell by the content of its execute_reply; {} where none came."""
        self.end(**told_by(content), duration=time.monotonic() - self._started)

    def end(
        self,
        status: str,
        *,
        execution_count: int | None,
        duration: float,
        ask_exit: bool = False,
        exit_code: int | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        """Close the cell, whose status is `ok`, `error` or `aborted`; what comes now is late.
        `duration`: seconds.

        `exit_code`: of a cell that ended as a program does, by `sys.exit`.
        """
        if self.ended:
            return
        self.limit()
        if self._why:
            self._say_capped(disk=self._why)
        members: dict[str, Any] = {
            "execution_count": execution_count,
            "duration": round(duration, 6),
            "ask_exit": ask_exit,
        }
        if exit_code is not None:
            members["exit_code"] = exit_code
        self._record("end", status=status, error=error, **members)
        self.ended = True
        self.close()

    def _place(self) -> None:
        at = self.size(".out")
        if at != self._placed:
            self._placed = at
            self._put_line(b'{"kind":"err","at":%d,"err_at":%d}\n' % (at, self.size(".err")))

    def _say_capped(self, **members: Any) -> None:
        if not self._said:
            self._said = True
            self._record("capped", **members)

    def _record(self, kind: str, **members: Any) -> None:
        place = {"at": self.size(".out"), "err_at": self.size(".err"), "t": round(time.time(), 6)}
        line = _line({"kind": kind, **place, **members})
        if len(line) <= self._room or kind in _ALWAYS:
            self._put_line(line)
        else:
            self._why = self._why or "too many records"

    def _put_line(self, line: bytes) -> None:
        """Append a line; behind one that the disk has torn it begins on the next."""
        data = b"\n" + line if self._torn else line
        written = self._append(RECORDS, data)
        if written:
            self._torn = written < len(data)
        self._room -= written

    def _append(self, ending: str, data: bytes) -> int:
        """Write all of `data`, or what the disk takes; return how much."""
        done = 0
        try:
            file = self._files.get(ending) or self.open(ending)
            while done < len(data):
                done += os.write(file.number, memoryview(data)[done:])
        except OSError as error:  # a full disk, a limit, a folder that is gone
            self._why = error.strerror or str(error)
            if ending != RECORDS:
                self._failed.add(ending)
        return done


def _error(content: Mapping[str, Any]) -> dict[str, Any]:
    lines = content.get("traceback")
    traceback = [str(line) for line in lines] if isinstance(lines, list) else []
    name, value = str(content.get("ename") or "Error"), str(content.get("evalue") or "")
    return {"name": name, "value": value, "traceback": traceback}


def told_by(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an execute_reply ({} where none came) says of the end of a cell, as the record
    `end` has it.
    """
    payload, count, said = (
        content.get("payload"),
        content.get("execution_count"),
        str(content.get("status")),
    )
    pieces = (
        [each for each in payload if isinstance(each, dict)] if isinstance(payload, list) else []
    )
    exit_code = _told_exit_code(content) if said == "error" else None
    if exit_code == 0:
        said = "ok"
    return {
        "status": said if said in ("ok", "error") else "aborted" if content else "error",
        "execution_count": count if isinstance(count, int) else None,
        "ask_exit": any(
            each.get("source") == "ask_exit" and not each.get("keepkernel") for each in pieces
        ),
        "exit_code": exit_code,
        "error": _error(content) if said == "error" else None,
    }


def exit_code_of(code: object) -> int:
    """Return the exit code that Python makes of the value that `sys.exit` was given."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _told_exit_code(content: Mapping[str, Any]) -> int | None:
    """Return the exit code of a cell that ended by SystemExit, None for any other error.

    A kernel that is not of our launcher only gives the words of the exception.
    """
    known = content.get("px_exit_code")
    if isinstance(known, int):
        return known
    if content.get("ename") != "SystemExit":
        return None
    words = str(content.get("evalue") or "")
    try:
        return 0 if words in ("", "None") else exit_code_of(int(words))
    except ValueError:
        return 1


def _line(record: Mapping[str, Any]) -> bytes:
    """Return the record as one line of JSON as Python reads it (`NaN`); half a surrogate pair
    stays what it is.
    """
    options: dict[str, Any] = {
        "ensure_ascii": False,
        "separators": (",", ":"),
        "skipkeys": True,
        "default": _plain,
    }
    try:
        text = json.dumps(record, **options)
    except (ValueError, RecursionError):  # bottomless
        text = json.dumps({**record, "data": {}, "event": None}, **options)
    return text.encode("utf-8", "surrogatepass") + b"\n"


def _plain(value: object) -> str:
    return (
        base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray)) else repr(value)
    )
