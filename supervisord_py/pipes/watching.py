"""Files that change, each told once it is whole.

Who writes a file writes it in pieces; a pipe that is started on a piece works on a torn file. On
Linux the kernel says when a file was closed by its last writer and when one was renamed into its
place (inotify(7)). A rename counts at once; a file that was closed counts after `QUIET_SECONDS`
without another change, as there are writers that open it again for each piece; one that stays open
counts after `OPEN_SECONDS` of quiet, as logs are never closed. On file systems that tell nothing
(NFS and its like) and on other systems a file counts once its size and time have been the same for
`QUIET_SECONDS`.

`Whole` decides, and is pure. The two watches are threads: to set up a deep tree takes seconds.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import select
import stat
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import IntFlag
from typing import Any, NamedTuple

import structlog

QUIET_SECONDS = 2.0
OPEN_SECONDS = 60.0
GATHER_SECONDS = 0.05  # equal notices that nobody has read yet are one notice
FRESH_SECONDS = 300.0  # after a loss of notices, a file that changed so recently counts as changed
POLL_SECONDS = 0.5
_HAS_INOTIFY = sys.platform == "linux"
_log = structlog.get_logger(__name__)


class Root(NamedTuple):
    """A folder that is watched, alone or with all below it."""

    path: str
    is_deep: bool


# -- when a file is whole --------------------------------------------------------------------------


class Pending(NamedTuple):
    """A file that has changed and does not count yet."""

    due: float  # when it will, unless something else happens to it
    is_open: bool


class Whole:
    """Which of the files that have changed are whole. `now` is monotonic, in seconds."""

    def __init__(
        self, quiet_seconds: float = QUIET_SECONDS, open_seconds: float = OPEN_SECONDS
    ) -> None:
        self._quiet_seconds = quiet_seconds
        self._open_seconds = open_seconds
        self.pending: dict[str, Pending] = {}

    def written(self, path: str, now: float) -> None:
        """Take in that a file is being written: its writer has it open."""
        self.pending[path] = Pending(now + self._open_seconds, is_open=True)

    def closed(self, path: str, now: float) -> None:
        """Take in that a writer has closed a file, or that it has changed where nothing tells of
        a close.
        """
        self.pending[path] = Pending(now + self._quiet_seconds, is_open=False)

    def touched(self, path: str, now: float) -> None:
        """Take in that the time of a file was set; one that is open stays so."""
        before = self.pending.get(path)
        if before is None or not before.is_open:
            self.closed(path, now)

    def arrived(self, path: str, now: float) -> None:
        """Take in that a whole file was put into its place."""
        self.pending[path] = Pending(now, is_open=False)

    def gone(self, path: str) -> None:
        self.pending.pop(path, None)

    def take(self, now: float) -> list[str]:
        """Return the files that count from now on, and forget them."""
        whole = [path for path, pending in self.pending.items() if pending.due <= now]
        for path in whole:
            del self.pending[path]
        return sorted(whole)

    @property
    def next_due(self) -> float | None:
        return min((pending.due for pending in self.pending.values()), default=None)


# -- inotify ---------------------------------------------------------------------------------------


class In(IntFlag):
    """The bits of inotify(7)."""

    MODIFY = 0x2
    ATTRIB = 0x4
    CLOSE_WRITE = 0x8
    MOVED_FROM = 0x40
    MOVED_TO = 0x80
    CREATE = 0x100
    DELETE = 0x200
    MOVE_SELF = 0x800
    UNMOUNT = 0x2000
    Q_OVERFLOW = 0x4000
    IGNORED = 0x8000
    ONLYDIR = 0x0100_0000
    ISDIR = 0x4000_0000


WATCHED = (
    In.MODIFY
    | In.ATTRIB
    | In.CLOSE_WRITE
    | In.MOVED_FROM
    | In.MOVED_TO
    | In.CREATE
    | In.DELETE
    | In.MOVE_SELF
    | In.ONLYDIR
)
_HEAD = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_READ_BYTES = 64 * 1024


class Notice(NamedTuple):
    """What the kernel told of a folder, or of the entry `name` in it."""

    watch: int
    mask: In
    name: str


class Inotify:
    """An inotify descriptor."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise _os_error("inotify_init1")

    def add(self, path: str) -> int:
        """Watch a folder; the number is the same for the same folder.

        Raises OSError: it cannot be watched.
        """
        watch: int = self._libc.inotify_add_watch(self.fd, os.fsencode(path), int(WATCHED))
        if watch < 0:
            raise _os_error(path)
        return watch

    def remove(self, watch: int) -> None:
        self._libc.inotify_rm_watch(self.fd, watch)

    def read(self) -> Iterator[Notice]:
        """Yield what was told and not read yet."""
        while True:
            try:
                data = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                watch, mask, _cookie, length = _HEAD.unpack_from(data, at)
                name = data[at + _HEAD.size : at + _HEAD.size + length].rstrip(b"\0")
                at += _HEAD.size + length
                yield Notice(watch, In(mask), os.fsdecode(name))

    def close(self) -> None:
        os.close(self.fd)


def _os_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)


# -- watches ---------------------------------------------------------------------------------------


class FolderWatch(threading.Thread):
    """A thread that watches folders, and calls `report` with the path of each file that is
    whole.
    """

    def __init__(
        self, report: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(name="pipe files", daemon=True)
        self.whole = Whole()
        self.now = now
        self.wanted: frozenset[Root] = frozenset()
        self.refused: frozenset[Root] = frozenset()  # the roots that it cannot watch
        self._appeared: deque[Root] = deque()  # whatever is in them is new
        self._report = report
        self._is_stopping = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def want(self, roots: Iterable[Root], appeared: Iterable[Root] = ()) -> None:
        """Watch these folders from now on, and no others; what is in those that have just
        `appeared` is new.
        """
        self._appeared.extend(appeared)
        self.wanted = frozenset(roots)
        self.wake()

    def take_appeared(self) -> Iterator[str]:
        """Yield the files of the folders that have appeared, once these are watched."""
        while self._appeared:
            root = self._appeared.popleft()
            yield from _files_below(root.path, is_deep=root.is_deep)

    def stop(self) -> None:
        self._is_stopping = True
        self.wake()

    def wake(self) -> None:
        with suppress(OSError):  # it is full: the thread wakes up anyway; or closed: it has ended
            os.write(self._wake_write, b"x")

    def run(self) -> None:
        try:
            while not self._is_stopping:
                self.turn()
        except Exception as error:
            _log.warning(
                "files_not_watched", paths=sorted(root.path for root in self.wanted), exc_info=error
            )
        finally:
            self.end()
            for fd in (self._wake_read, self._wake_write):
                os.close(fd)

    def turn(self) -> None:
        """Wait for changes, for a file that becomes whole, or for `wake`; take them in, and
        report.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Give back what it holds."""

    def wait(self, seconds: float | None, *fds: int) -> bool:
        """Wait until one of the descriptors can be read or it is woken up; say whether that was
        in time.
        """
        poll = select.poll()
        for fd in (self._wake_read, *fds):
            poll.register(fd, select.POLLIN)
        is_awake = bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        return is_awake

    def report_whole(self) -> None:
        for path in self.whole.take(self.now()):
            self._report(path)


class InotifyWatch(FolderWatch):
    """Watches folders of local file systems."""

    def __init__(
        self, report: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(report, now)
        self._inotify = Inotify()
        self._roots: frozenset[Root] = frozenset()  # what is watched
        self._folders: dict[int, Root] = {}  # by watch

    def end(self) -> None:
        self._inotify.close()

    def turn(self) -> None:
        if self.wanted - self.refused != self._roots:
            self._follow(self.wanted)
        due = self.whole.next_due
        if self.wait(None if due is None else due - self.now(), self._inotify.fd):
            time.sleep(GATHER_SECONDS)
        for notice in self._inotify.read():
            self._take(notice, self.now())
        self.report_whole()

    def _follow(self, roots: frozenset[Root]) -> None:
        """Watch these roots; what is watched already stays so without a gap."""
        refused = set[Root]()
        missing = set[Root]()
        watches = dict[int, Root]()
        # The deep ones last: a folder that lies in one of each is deep.
        for root in sorted(roots, key=lambda each: each.is_deep):
            try:
                watches |= self._watch(root.path, is_deep=root.is_deep)
            except OSError as error:
                if error.errno in {errno.ENOENT, errno.ENOTDIR}:
                    missing.add(root)
                else:
                    refused.add(root)
                    self._tell_why(root, error)
        for watch in self._folders.keys() - watches.keys():
            self._inotify.remove(watch)
        self._folders = watches
        self.refused = frozenset(refused)
        # Folders that are gone are left out until `want` names them again. `turn` compares `wanted`
        # with what is watched: if it still held them, every turn would set up all watches anew.
        self.wanted -= missing
        self._roots = roots - refused - missing
        now = self.now()
        for file in self.take_appeared():
            self.whole.closed(file, now)

    def _tell_why(self, root: Root, error: OSError) -> None:
        if error.errno == errno.ENOSPC:
            hint = "raise the limit: sysctl fs.inotify.max_user_watches=1048576"
            _log.warning(
                "files_polled",
                path=root.path,
                why="the system has no more watches to give",
                hint=hint,
            )
        else:
            _log.warning("files_polled", path=root.path, why=str(error))

    def _watch(self, path: str, *, is_deep: bool) -> dict[int, Root]:
        """Watch a folder, and with `is_deep` all below; return the watches.

        Raises OSError: it cannot be done.
        """
        watches = {self._inotify.add(path): Root(path, is_deep)}
        # Each folder is watched before it is read, so that what is made in between is seen by the
        # one or the other.
        for folder, names, _files in os.walk(path) if is_deep else ():
            for name in list(names):
                below = os.path.join(folder, name)
                if os.path.islink(below):
                    continue
                try:
                    watches[self._inotify.add(below)] = Root(below, is_deep)
                except OSError as error:
                    if error.errno == errno.ENOSPC:
                        raise
                    names.remove(name)  # gone, or not ours to read
        return watches

    def _take(self, notice: Notice, now: float) -> None:
        if In.Q_OVERFLOW in notice.mask:
            self._look_for_lost(now)
            return
        folder = self._folders.get(notice.watch)
        if folder is None:
            return
        if notice.mask & (In.IGNORED | In.MOVE_SELF | In.UNMOUNT):
            self._lose(notice.watch, folder)
        elif In.ISDIR in notice.mask:
            if folder.is_deep and notice.mask & (In.CREATE | In.MOVED_TO):
                self._take_folder(
                    os.path.join(folder.path, notice.name), now, is_moved=In.MOVED_TO in notice.mask
                )
            elif folder.is_deep and In.MOVED_FROM in notice.mask:
                self._leave_folder(os.path.join(folder.path, notice.name))
        elif notice.name:
            self._take_file(os.path.join(folder.path, notice.name), notice.mask, now)

    def _take_file(self, path: str, mask: In, now: float) -> None:
        if mask & (In.MOVED_FROM | In.DELETE):
            self.whole.gone(path)
        elif In.MOVED_TO in mask:
            self.whole.arrived(path, now)
        elif In.CLOSE_WRITE in mask:
            self.whole.closed(path, now)
        elif In.MODIFY in mask:
            self.whole.written(path, now)
        elif In.CREATE in mask:
            self._take_new(path, now)
        elif In.ATTRIB in mask:
            # `touch` of Python and busybox sets the time of a file without opening it; a mode or an
            # owner is no news.
            with suppress(OSError):
                if abs(time.time() - os.stat(path).st_mtime) < OPEN_SECONDS:
                    self.whole.touched(path, now)

    def _take_new(self, path: str, now: float) -> None:
        with suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode) or status.st_nlink > 1:
                self.whole.arrived(path, now)  # a link: nobody opens it to make it
            elif stat.S_ISREG(status.st_mode):
                self.whole.written(path, now)

    def _take_folder(self, path: str, now: float, *, is_moved: bool) -> None:
        """Watch a new folder in a deep one; what is in it already came before anybody could
        tell.
        """
        try:
            self._folders |= self._watch(path, is_deep=True)
        except OSError as error:
            _log.warning("files_not_watched", paths=[path], why=str(error))
        for file in _files_below(path, is_deep=True):
            if is_moved:
                self.whole.arrived(file, now)
            else:
                self.whole.closed(file, now)

    def _leave_folder(self, path: str) -> None:
        for watch, folder in tuple(self._folders.items()):
            if f"{folder.path}/".startswith(f"{path}/"):
                self._inotify.remove(watch)
                del self._folders[watch]

    def _lose(self, watch: int, folder: Root) -> None:
        """Forget a folder that is gone; a root is watched anew once it is wanted again and
        there.
        """
        del self._folders[watch]
        self._inotify.remove(watch)
        lost = {root for root in self._roots if root.path == folder.path}
        self._appeared.extend(lost)
        self._roots -= lost
        self.wanted -= lost

    def _look_for_lost(self, now: float) -> None:
        """Take what has changed recently for changed: the kernel had more to tell than it keeps."""
        oldest = time.time() - FRESH_SECONDS
        for root in self._roots:
            for file in _files_below(root.path, is_deep=root.is_deep):
                with suppress(OSError):
                    if os.stat(file).st_mtime >= oldest:
                        self.whole.closed(file, now)


def _files_below(path: str, *, is_deep: bool) -> Iterator[str]:
    for folder, names, files in os.walk(path):
        if not is_deep:
            names.clear()
        yield from (os.path.join(folder, name) for name in files)


class PollingWatch(FolderWatch):
    """Watches folders where nothing tells of a close: their files are looked at, and whole once
    they are quiet.
    """

    def __init__(
        self, report: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(report, now)
        self._roots: frozenset[Root] = frozenset()
        self._batches: list[Any] = []
        # size and time of what has changed, when it was noticed
        self._stamps: dict[str, tuple[int, int] | None] = {}

    def end(self) -> None:
        for batch in self._batches:
            batch.close()

    def turn(self) -> None:
        if self.wanted != self._roots:
            self._follow(self.wanted)
        if not self._roots:
            self.wait(None)
            return
        for batch in self._batches:
            for _kind, path in next(batch, ()):
                self._notice(path)
        self.wait(0)
        for path in self.whole.take(self.now()):
            if _stamp(path) == self._stamps.pop(path, None):
                self._report(path)
            else:
                self._notice(path)

    def _notice(self, path: str) -> None:
        self._stamps[path] = _stamp(path)
        if self._stamps[path] is None:
            self._stamps.pop(path)
            self.whole.gone(path)
        else:
            self.whole.closed(path, self.now())

    def _follow(self, roots: frozenset[Root]) -> None:
        # Wanted only where a pipe names such files; its binary part may be missing on a rare
        # machine.
        from watchfiles import watch

        self.end()
        self._batches = []
        for is_deep in (False, True):
            paths = sorted(
                root.path for root in roots if root.is_deep is is_deep and os.path.isdir(root.path)
            )
            if paths:
                milliseconds = round(POLL_SECONDS * 1000)
                options: dict[str, Any] = {
                    "debounce": milliseconds,
                    "step": 50,
                    "rust_timeout": milliseconds,
                }
                options |= {"watch_filter": None, "recursive": is_deep, "yield_on_timeout": True}
                options |= {"ignore_permission_denied": True, "raise_interrupt": False}
                options |= {"force_polling": _HAS_INOTIFY, "poll_delay_ms": milliseconds}
                self._batches.append(watch(*paths, **options))
        self._roots = roots
        for file in self.take_appeared():
            self._notice(file)


def _stamp(path: str) -> tuple[int, int] | None:
    """Return size and time of a file; None where there is none, or something else. Blocking."""
    with suppress(OSError):
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):
            return status.st_size, status.st_mtime_ns
    return None


# -- which watch -----------------------------------------------------------------------------------

_SILENT = re.compile(
    r"nfs4?|cifs|smb3|smbfs|9p|afs|ceph|lustre|beegfs|gpfs|virtiofs|vboxsf|prl_fs|fuse\..*"
)
"""File systems whose changes come from elsewhere, so that the kernel does not tell of them."""


def tells_of_changes(path: str, mounts: str) -> bool:
    """Say whether the kernel tells of all changes below a path; `mounts` is what
    /proc/self/mountinfo holds. Pure.
    """
    deepest, kind = "", ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split()
        if len(words) < 5 or not rest:
            continue
        place = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), words[4])
        if f"{path}/".startswith(f"{place.rstrip('/')}/") and len(place) >= len(deepest):
            deepest, kind = place, rest.split()[0]
    return _SILENT.fullmatch(kind) is None


class Watches:
    """The watches of all folders that are named: each folder where its changes are told.

    Blocking, but for `stop`.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._told: FolderWatch | None = None
        self._polled: FolderWatch | None = None
        self._missing: frozenset[Root] = frozenset()

    def want(self, roots: frozenset[Root]) -> None:
        """Watch these folders and no others; call it again from time to time: threads may die,
        and folders come.
        """
        wanted = frozenset(root for root in roots if os.path.isdir(root.path))
        appeared = wanted & self._missing
        self._missing = roots - wanted
        told = frozenset(root for root in wanted if _HAS_INOTIFY and self._is_told(root.path))
        if told:
            try:
                self._told = self._alive(self._told, InotifyWatch)
            except OSError as error:  # the system has no more of them to give to this user
                _log.warning(
                    "files_polled", paths=sorted(root.path for root in told), why=str(error)
                )
                told = frozenset()
        if self._told is not None:
            self._told.want(told, appeared & told)
            told -= self._told.refused
        if wanted - told:
            self._polled = self._alive(self._polled, PollingWatch)
        if self._polled is not None:
            self._polled.want(wanted - told, appeared - told)

    def stop(self) -> None:
        for watch in (self._told, self._polled):
            if watch is not None:
                watch.stop()

    def _alive(self, watch: FolderWatch | None, make: type[FolderWatch]) -> FolderWatch:
        if watch is not None and watch.is_alive():
            return watch
        watch = make(self._report)
        watch.start()
        return watch

    def _is_told(self, path: str) -> bool:
        mounts = ""
        with (
            suppress(OSError),
            open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file,
        ):
            mounts = file.read()
        return tells_of_changes(os.path.realpath(path), mounts)
