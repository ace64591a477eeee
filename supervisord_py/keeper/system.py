"""The one door to what Python's `os` does not offer: prctl, close_range, clone3, this boot's name.

Every answer says plainly whether the platform has the thing, so that the ladders of DESIGN §5 can choose a rung.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SYS_CLOSE_RANGE = 436
CLOSE_RANGE_CLOEXEC = 4
LAST_FD = 2**32 - 1
FIRST_FREE_FD = 3
SYS_CLONE3 = 435
CLONE_INTO_CGROUP = 0x200000000

_LINUX = sys.platform.startswith("linux")
_libc = ctypes.CDLL(None, use_errno=True)
_libc_held = ctypes.PyDLL(None, use_errno=True)
"""The same, and the interpreter's lock is kept during the call: a child that is born in it must have it."""


class _CloneArgs(ctypes.Structure):
    """`struct clone_args` of clone3(2)."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls", "set_tid"),
            *("set_tid_size", "cgroup"),
        )
    )


def _prctl(option: int, argument: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(option, ctypes.c_ulong(argument), zero, zero, zero) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def become_subreaper() -> bool:
    """Make every orphaned descendant come back to this process (prctl(2), Linux 3.4). False where it cannot be."""
    if not _LINUX:
        return False
    try:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
    except OSError:
        return False
    return True


def die_with_parent(parent: int) -> None:
    """Ask for SIGKILL when the parent dies, and die now if it is dead already (the race of prctl(2)).

    Args:
        parent: The pid that must still be our parent.

    Raises:
        OSError: The kernel refused.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)


def fork_into(group: int) -> int:
    """Fork a child that is born in a cgroup (clone3(2), Linux 5.7); returns as fork(2) does.

    Moving a process into a group waits for all processors to take notice, often 10 ms (cgroup_threadgroup_rwsem).
    Python is not told of the fork: a process of one thread only, and the child has to go straight on to exec.

    Args:
        group: Descriptor of the group's directory.

    Raises:
        OSError: The kernel has no such call, does not allow it, or refuses: there is no child then.
    """
    if not _LINUX:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    wanted = _CloneArgs(flags=CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=group)
    pid: int = _libc_held.syscall(SYS_CLONE3, ctypes.byref(wanted), ctypes.c_size_t(ctypes.sizeof(wanted)))
    if pid < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return pid


def shut_on_exec() -> None:
    """Mark every descriptor from 3 on close-on-exec in one call (close_range(2), Linux 5.11).

    Where the kernel has no such call the flags stand as `shut_inherited()` and PEP 446 left them.
    """
    if _LINUX:
        _libc.syscall(SYS_CLOSE_RANGE, FIRST_FREE_FD, LAST_FD, CLOSE_RANGE_CLOEXEC)


def shut_inherited() -> None:
    """Mark every descriptor that this process was born with, from 3 on, close-on-exec; once, at the start."""
    folder = "/proc/self/fd" if _LINUX else "/dev/fd"
    for name in os.listdir(folder):
        fd = int(name)
        if fd >= FIRST_FREE_FD:
            try:
                os.set_inheritable(fd, False)
            except OSError:
                continue  # the descriptor of the listing itself


def boot_id() -> str:
    """Name this boot: a start time means something only within one. "" where the platform does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def is_linux() -> bool:
    """Say whether this is Linux."""
    return _LINUX


def have_pidfd() -> bool:
    """Say whether a process can be held by a descriptor (pidfd_open(2), Linux 5.3)."""
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True
