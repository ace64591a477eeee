"""What Python's `os` does not offer: prctl, close_range, clone3.

Every answer says plainly whether the platform has the thing, so that the ladders of DESIGN §5 can choose a rung.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys

LINUX = sys.platform.startswith("linux")
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SYS_CLONE3 = 435
SYS_CLOSE_RANGE = 436
CLOSE_RANGE_CLOEXEC = 4
CLONE_INTO_CGROUP = 0x200000000
LAST_FD = 2**32 - 1
FIRST_FREE_FD = 3

_libc = ctypes.CDLL(None, use_errno=True)
_libc_held = ctypes.PyDLL(None, use_errno=True)
"""The same, and the interpreter's lock is kept during the call: a child that is born in it must have it."""


_CLONE_ARGS = ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls")


class CloneArgs(ctypes.Structure):
    """`struct clone_args` of clone3(2)."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in (*_CLONE_ARGS, "set_tid", "set_tid_size", "cgroup"))


def _prctl(option: int, argument: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(option, ctypes.c_ulong(argument), zero, zero, zero) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def become_subreaper() -> bool:
    """Make every orphaned descendant come back to this process (prctl(2), Linux 3.4). False where it cannot be."""
    if not LINUX:
        return False
    try:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
    except OSError:
        return False
    return True


def die_with_parent(parent: int) -> None:
    """Ask for SIGKILL when the parent, of that pid, dies, and die now if it is dead already (the race of prctl(2))."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)


def fork_into(group: int) -> int:
    """Fork a child that is born in a cgroup (clone3(2), Linux 5.7); returns as fork(2) does.

    Moving a process into a group waits for all processors to take notice, often 10 ms (cgroup_threadgroup_rwsem).
    Python is not told of the fork: a process of one thread only, and the child has to go straight on to exec.

    `group`: descriptor of the group's directory.
    """
    if not LINUX:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    wanted = CloneArgs(flags=CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=group)
    pid: int = _libc_held.syscall(SYS_CLONE3, ctypes.byref(wanted), ctypes.c_size_t(ctypes.sizeof(wanted)))
    if pid < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return pid


def shut_on_exec() -> None:
    """Mark every descriptor from 3 on close-on-exec in one call (close_range(2), Linux 5.11).

    Where the kernel has no such call the flags stand as `shut_inherited()` and PEP 446 left them.
    """
    if LINUX:
        _libc.syscall(SYS_CLOSE_RANGE, FIRST_FREE_FD, LAST_FD, CLOSE_RANGE_CLOEXEC)


def shut_inherited() -> list[int]:
    """Mark every descriptor that this process was born with, from 3 on, close-on-exec, and return them; once."""
    inherited = []
    for fd in map(int, os.listdir("/proc/self/fd" if LINUX else "/dev/fd")):
        if fd >= FIRST_FREE_FD:
            try:
                os.set_inheritable(fd, False)
                inherited.append(fd)
            except OSError:
                continue  # the descriptor of the listing itself
    return inherited


def set_name(name: str) -> None:
    """Be shown under that name (at most 15 bytes) by ps and pgrep (proc(5), /proc/self/comm)."""
    try:
        with open("/proc/self/comm", "wb", buffering=0) as file:
            file.write(name.encode())
    except OSError:
        return  # no such thing on this platform
