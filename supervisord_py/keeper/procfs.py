"""The process table: who is whose child, since when, and how large. /proc on Linux, libproc on
macOS.

A pid alone names nobody: kernels reuse it. A `Process` therefore always carries its start time, and
the only ways to signal one, here, hold it by a pidfd or compare the start time first. A zombie has
ended and counts as dead, unless it is the exited main thread of a process whose other threads live
on.

"Gone" is an answer of the kernel (ENOENT, ESRCH), never a failure to ask: when a file of /proc
cannot be opened for another reason (no descriptor, no memory), these functions raise OSError, and
the caller asks again later.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import struct
import sys
from collections.abc import Iterable

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


GONE = frozenset({errno.ENOENT, errno.ESRCH})
"""Errors by which /proc says that there is no such process (any more)."""
NOT_OURS = frozenset({errno.EACCES, errno.EPERM})


class Process:
    __slots__ = ("alive", "name", "pgid", "pid", "ppid", "start_time", "ticks")

    def __init__(
        self,
        pid: int,
        ppid: int,
        pgid: int,
        start_time: int,
        name: str = "",
        *,
        alive: bool = True,
        ticks: int = 0,
    ) -> None:
        self.pid, self.ppid, self.pgid = pid, ppid, pgid
        # clock ticks since boot (proc(5), field 22); on macOS wall clock microseconds
        self.start_time = start_time
        self.name = name  # the command's short name
        self.alive = alive  # False for a zombie
        self.ticks = ticks  # CPU clock ticks of itself and its reaped children

    @property
    def identity(self) -> tuple[int, int]:
        """(pid, start time): within one boot nobody else ever has it."""
        return (self.pid, self.start_time)


def parse_stat(text: bytes) -> Process:
    head, _, rest = text.rpartition(b")")
    number, _, name = head.partition(b" (")
    fields = rest.split()
    if len(fields) < 22:
        raise ValueError("not a stat line")
    alive = fields[0] not in (b"Z", b"X", b"x") or (fields[0] == b"Z" and int(fields[17]) > 1)
    numbers = int(number), int(fields[1]), int(fields[2]), int(fields[19])
    return Process(
        *numbers, name.decode("utf-8", "replace"), alive=alive, ticks=sum(map(int, fields[11:15]))
    )


def slurp(path: str, limit: int = 1 << 20) -> bytes:
    """Return the first `limit` bytes of a small file, without the buffers of a file object."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, min(limit, 65536))
        while 0 < len(text) < limit and (part := os.read(fd, min(limit - len(text), 65536))):
            text += part
        return text
    finally:
        os.close(fd)


def boot_id() -> str:
    """Name this boot: a start time means something only within one.

    "" where the platform does not say.
    """
    try:
        return slurp("/proc/sys/kernel/random/boot_id", 64).decode().strip()
    except OSError:
        return ""


def look(pid: int) -> Process | None:
    """Return the process that has this pid now, or None when there is none.

    Raises OSError: that cannot be seen.
    """
    if sys.platform == "darwin":
        return _look_darwin(pid)
    try:
        return parse_stat(slurp(f"/proc/{pid}/stat", 4096))
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
    except ValueError:  # it ended while it was read
        return None


def pids() -> Iterable[int]:
    if sys.platform == "darwin":
        return _pids_darwin()
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def table() -> dict[int, Process]:
    rows = (look(pid) for pid in pids())
    return {row.pid: row for row in rows if row is not None}


def last_pid() -> int | None:
    """Return the newest pid of this pid namespace: unchanged means that nothing was forked.

    None: unknown.
    """
    try:
        return int(slurp("/proc/loadavg", 256).rsplit(None, 1)[1])
    except (OSError, ValueError, IndexError):
        return None


def environment(pid: int) -> dict[bytes, bytes]:
    """Return the environment that a process was started with; empty when it is gone or not ours to
    read.

    Raises OSError: it cannot be read now.
    """
    try:
        text = slurp(f"/proc/{pid}/environ", 4 << 20)
    except OSError as error:
        if error.errno in GONE | NOT_OURS:
            return {}
        raise
    pairs = (entry.partition(b"=") for entry in text.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def resident(pid: int) -> int:
    """Return the resident bytes of one process (macOS: its footprint); 0 when it is gone."""
    if sys.platform == "darwin":
        return _footprint_darwin(pid)
    try:
        return int(slurp(f"/proc/{pid}/statm", 256).split()[1]) * PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def machine_memory() -> int:
    """Return how much memory this machine has for us, in bytes: a container's limit where that
    is less; 0: unknown.
    """
    try:
        total = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
    except (OSError, ValueError):
        return 0
    with contextlib.suppress(OSError, ValueError, StopIteration):
        # Each group above ours may have a limit; a line `0::PATH` names ours (cgroups(7)).
        lines = slurp("/proc/self/cgroup", 65536).decode().splitlines()
        path = next(line for line in lines if line.startswith("0::")).removeprefix("0::").strip("/")
        parts = path.split("/") if path else []
        for count in range(len(parts) + 1):
            with contextlib.suppress(OSError, ValueError):  # `max`, or no such file at the root
                file = "/".join(["/sys/fs/cgroup", *parts[:count], "memory.max"])
                total = min(total, int(slurp(file, 64)))
    return total


def open_pipes(pid: int) -> set[int]:
    """Return the inodes of the pipes that a process holds; empty when it is gone or not ours to
    look at.
    """
    inodes = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("pipe:["):
                    inodes.add(int(target[len("pipe:[") : -1]))
    except OSError as error:
        if error.errno not in GONE | NOT_OURS:
            raise
    return inodes


def children(pid: int) -> set[int] | None:
    """Return the pids of all children, zombies too; None where the kernel does not tell
    (CONFIG_PROC_CHILDREN).

    One that is reaped during the look may hide another: exact only for who asks of itself, and
    reaps in this thread.
    """
    try:
        each = [
            slurp(f"/proc/{pid}/task/{thread}/children")
            for thread in os.listdir(f"/proc/{pid}/task")
        ]
    except OSError:
        return None
    return {int(word) for text in each for word in text.split()}


def proportional(pid: int) -> int | None:
    """Return the proportional set size in bytes: shared pages count once over all sharers. None:
    not readable.

    It walks the page tables (10 ms at 500 MB), so it confirms a verdict and never polls.
    """
    try:
        for line in slurp(f"/proc/{pid}/smaps_rollup", 8192).splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def send(process: Process, signum: int) -> bool:
    """Signal exactly that process; False when it is gone, has been replaced, or is not ours to
    signal.

    The pidfd pins the pid first, then the start time is compared: between the two nobody can take
    its place. Raises OSError: who has that pid cannot be seen now, so nothing was signalled.
    """
    fd = -1
    # macOS, or no descriptor left: by number, after comparing, is all that can be done.
    with contextlib.suppress(AttributeError, OSError):
        fd = os.pidfd_open(process.pid)
    try:
        now = look(process.pid)
    except OSError:
        if fd >= 0:
            os.close(fd)
        raise
    try:
        if now is None or now.identity != process.identity:
            return False
        if fd >= 0:
            signal.pidfd_send_signal(fd, signum)
        else:
            os.kill(process.pid, signum)
    except OSError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True


# -- macOS: layouts of <sys/proc_info.h> and <sys/resource.h>, stable since macOS 10.9 ----------

BSD_INFO, BSD_INFO_BYTES = 3, 136
TASK_INFO, TASK_INFO_BYTES = 4, 96
RUSAGE_INFO_V2 = 2
ZOMBIE = 5


def parse_bsd(record: bytes) -> Process:
    _, status, _, pid, ppid = struct.unpack_from("<5I", record, 0)
    seconds, micros = struct.unpack_from("<QQ", record, 120)
    name = record[48:64].split(b"\0", 1)[0].decode("utf-8", "replace")
    group, start = struct.unpack_from("<I", record, 100)[0], seconds * 1_000_000 + micros
    return Process(pid, ppid, group, start, name, alive=status != ZOMBIE)


if sys.platform == "darwin":
    import ctypes

    _libproc = ctypes.CDLL("/usr/lib/libproc.dylib", use_errno=True)

    def _look_darwin(pid: int) -> Process | None:
        buffer, zero = ctypes.create_string_buffer(BSD_INFO_BYTES), ctypes.c_uint64(0)
        if _libproc.proc_pidinfo(pid, BSD_INFO, zero, buffer, BSD_INFO_BYTES) != BSD_INFO_BYTES:
            return None
        process = parse_bsd(buffer.raw)
        task = ctypes.create_string_buffer(TASK_INFO_BYTES)
        if _libproc.proc_pidinfo(pid, TASK_INFO, zero, task, TASK_INFO_BYTES) > 0:
            user, system = struct.unpack_from("<2Q", task.raw, 16)  # nanoseconds
            process.ticks = (user + system) * TICKS_PER_SECOND // 1_000_000_000
        return process

    def _pids_darwin() -> list[int]:
        buffer = (ctypes.c_int * (_libproc.proc_listallpids(None, 0) + 64))()
        count = _libproc.proc_listallpids(buffer, ctypes.sizeof(buffer))
        return [number for number in buffer[: max(0, count)] if number > 0]

    def _footprint_darwin(pid: int) -> int:
        buffer = ctypes.create_string_buffer(512)
        if _libproc.proc_pid_rusage(pid, RUSAGE_INFO_V2, buffer) != 0:
            return 0
        return int(struct.unpack_from("<Q", buffer.raw, 72)[0])
