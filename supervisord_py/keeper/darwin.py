"""The process table of macOS, through libproc; the counterpart of /proc, loaded nowhere else.

Layouts are those of <sys/proc_info.h> and <sys/resource.h>, stable since macOS 10.9. Start times are microseconds of
the wall clock: they are compared for equality only, as an identity.
"""

from __future__ import annotations

import ctypes
import struct

from supervisord_py.keeper.processes import Process

PROC_PIDTBSDINFO = 3
PROC_PIDTBSDINFO_SIZE = 136
PROC_PIDTASKINFO = 4
PROC_PIDTASKINFO_SIZE = 96
RUSAGE_INFO_V2 = 2
SZOMB = 5
_NANOSECONDS_PER_TICK = 10_000_000

_libproc: ctypes.CDLL | None = None


def _library() -> ctypes.CDLL:
    global _libproc  # noqa: PLW0603  loaded on first use: the tests parse records on other systems
    if _libproc is None:
        _libproc = ctypes.CDLL("/usr/lib/libproc.dylib", use_errno=True)
    return _libproc


def parse_bsd(record: bytes) -> Process:
    """Parse one proc_bsdinfo record."""
    _, status, _, pid, ppid = struct.unpack_from("<5I", record, 0)
    pgid = struct.unpack_from("<I", record, 100)[0]
    seconds, micros = struct.unpack_from("<QQ", record, 120)
    process = Process(pid, ppid, pgid, seconds * 1_000_000 + micros)
    process.alive = status != SZOMB
    process.name = record[48:64].split(b"\0", 1)[0].decode("utf-8", "replace")
    return process


def look(pid: int) -> Process | None:
    """Return the process of that number, or None when there is none or it is not ours to see."""
    buffer = ctypes.create_string_buffer(PROC_PIDTBSDINFO_SIZE)
    got = _library().proc_pidinfo(pid, PROC_PIDTBSDINFO, ctypes.c_uint64(0), buffer, PROC_PIDTBSDINFO_SIZE)
    if got != PROC_PIDTBSDINFO_SIZE:
        return None
    process = parse_bsd(buffer.raw)
    task = ctypes.create_string_buffer(PROC_PIDTASKINFO_SIZE)
    if _library().proc_pidinfo(pid, PROC_PIDTASKINFO, ctypes.c_uint64(0), task, PROC_PIDTASKINFO_SIZE) > 0:
        _, process.rss_bytes, user, system = struct.unpack_from("<4Q", task.raw, 0)
        process.ticks = (user + system) // _NANOSECONDS_PER_TICK
    return process


def pids() -> list[int]:
    """Return the number of every process."""
    room = _library().proc_listallpids(None, 0) + 64
    buffer = (ctypes.c_int * room)()
    count = _library().proc_listallpids(buffer, ctypes.sizeof(buffer))
    return [number for number in buffer[: max(0, count)] if number > 0]


def footprint(pid: int) -> int:
    """Return the physical footprint in bytes (what Activity Monitor shows); 0 when it is gone."""
    buffer = ctypes.create_string_buffer(512)
    if _library().proc_pid_rusage(pid, RUSAGE_INFO_V2, buffer) != 0:
        return 0
    return int(struct.unpack_from("<Q", buffer.raw, 72)[0])
