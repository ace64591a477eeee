"""Turn a SPAWN message into a plan and a plan into a process: fork, then all up to exec, in a fixed
order.

The keeper has one thread, so a plain fork is safe and the child may run Python until exec. Whatever
fails after it comes back on a close-on-exec pipe as (stage, errno); end of file on that pipe is the
kernel's own word that exec succeeded.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import warnings  # noqa: F401  os.execvpe imports it, in a child that may open no file any more

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Step = tuple[str, Callable[..., object], tuple[Any, ...]]  # its stage, and a call

STAGES = ("fork", "setsid", "cgroup", "fds", "pdeathsig", "chdir", "rlimit", "exec", "zygote")
RLIMITS = {
    name: getattr(resource, f"RLIMIT_{name.upper()}")
    for name in ("nofile", "nproc", "as", "cpu", "core", "fsize")
}
ZYGOTE_SECONDS = 3.0
"""In which a zygote's fork takes its order: it needs some milliseconds."""
PID_BYTES = 11
"""Length of the message by which a zygote's fork tells its pid: ten digits or spaces, and a
newline.
"""
CAUGHT = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Signals that the keeper itself catches; blocked around the fork, so that a child never answers
for it.
"""
_IGNORED = [
    number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN
]
"""By Python, or by who started us: an ignored signal would stay ignored over exec."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SYS_CLONE3 = 435
CLONE_INTO_CGROUP = 0x200000000
_libc = ctypes.PyDLL(None, use_errno=True)
"""The interpreter's lock is kept during a call: a child that is born in it must have it."""
if sys.platform == "linux":
    _libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]  # None is SIG_DFL
_libc.sigprocmask.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p]
_NO_SIGNALS = bytes(128)  # a sigset_t that is empty
_CAUGHT_SET = sum(1 << number - 1 for number in CAUGHT).to_bytes(128, "little")


class RefusedError(Exception):
    def __init__(self, kind: str, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.document = {"kind": kind, "detail": detail, **members}


class SpawnError(RefusedError):
    def __init__(self, stage: str, error: int | None) -> None:
        self.stage, self.error = stage, error or errno.EIO
        detail = f"{stage}: {os.strerror(self.error)}"
        super().__init__("spawn_failed", detail, stage=stage, errno=self.error)


class SpawnPlan:
    def __init__(
        self, message: Mapping[str, Any], stdio: tuple[int, int, int], stored: Mapping[str, int]
    ) -> None:
        self.argv = [_word(text) for text in message["argv"]]
        self.env = {_word(name): _word(value) for name, value in message["env"].items()}
        if not self.argv or not self.argv[0]:
            raise SpawnError("exec", errno.ENOENT)
        if any(b"=" in name or not name for name in self.env):
            raise SpawnError("exec", errno.EINVAL)
        self.stdio = stdio  # descriptors of the keeper that become 0, 1, 2
        self.umask: int | None = None  # None keeps the keeper's
        # None keeps the keeper's
        self.cwd = _word(message["cwd"], "chdir") if "cwd" in message else None
        self.grants = [(number, stored[name]) for number, name in message.get("grant_fds") or ()]
        limits = message.get("rlimits") or ()
        self.rlimits = [
            (RLIMITS[name], soft, hard) for name, soft, hard in limits if name in RLIMITS
        ]
        self.cgroup = -1  # descriptor of the directory of its group
        self.parks = -1  # of the one in which the zygote's next fork waits
        self.guarded = False  # die with the keeper (PDEATHSIG)
        # put the child's pid into LISTEN_PID
        self.listen_pid = message.get("set_listen_pid") is True


def _word(text: str, stage: str = "exec") -> bytes:
    word = os.fsencode(text)
    if b"\0" in word:
        raise SpawnError(stage, errno.EINVAL)
    return word


def launch(plan: SpawnPlan) -> tuple[int, int]:
    """Fork; return (pid, descriptor of the report pipe, which does not block). See `read_report`.

    Raises SpawnError: there is no process. Nothing that can fail comes after the fork.
    """
    report, report_in = pipe()
    ours = [report_in]
    stage = "fds"
    # that of Python makes an enum of each signal of a mask
    _libc.sigprocmask(signal.SIG_BLOCK, _CAUGHT_SET, None)
    try:
        os.set_blocking(report, False)
        steps = _steps(plan, ours)
        stage = "fork"
        try:
            pid = _clone(plan.cgroup)
        except OSError:  # no clone3, or it does not know groups: the child moves itself
            if plan.cgroup >= 0:
                steps.insert(1, ("cgroup", _join, (plan.cgroup,)))
            pid = os.fork()
        if pid == 0:
            _become(steps, ours[-1])
    except OSError as error:
        os.close(report)
        raise SpawnError(stage, error.errno) from None
    finally:
        for fd in ours:
            os.close(fd)
        _libc.sigprocmask(signal.SIG_UNBLOCK, _CAUGHT_SET, None)
    return pid, report


def _steps(plan: SpawnPlan, ours: list[int]) -> list[Step]:
    """Return what a fork of the keeper does to become what the plan says: setsid first, exec last.

    As calls of C with their arguments made, wherever that is possible: every page that Python
    touches in the child is copied for it, which was a fifth of a start. Stdio and grants go to
    their numbers, and everything else closes at exec; a source where another one is to go is first
    copied above all of them, into `ours`, and so is the report's end, the last of `ours`: who calls
    closes those.
    """
    targets = [*enumerate(plan.stdio), *plan.grants]
    top = max(number for number, _ in targets) + 1
    report, moves = ours[0], []
    for number, fd in targets:
        if fd < top:
            ours.append(fd := fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, top))
        moves.append(("fds", os.dup2, (fd, number)))
    ours.append(fcntl.fcntl(report, fcntl.F_DUPFD_CLOEXEC, top))
    # Address space last: under a small one Python itself could not go on.
    limits = sorted(plan.rlimits, key=lambda entry: entry[0] == resource.RLIMIT_AS)
    find = os.execve if b"/" in plan.argv[0] else os.execvpe
    return [
        ("setsid", os.setsid, ()),
        *moves,
        *([("pdeathsig", _die_with, (os.getpid(),))] if plan.guarded else []),
        *([("chdir", os.chdir, (plan.cwd,))] if plan.cwd is not None else []),
        *([("exec", os.umask, (plan.umask,))] if plan.umask is not None else []),
        *(("rlimit", resource.setrlimit, (number, (soft, hard))) for number, soft, hard in limits),
        ("exec", signal.set_wakeup_fd, (-1,)),
        *(("exec", _libc.signal, (number, None)) for number in (*CAUGHT, *_IGNORED)),
        ("exec", _libc.sigprocmask, (signal.SIG_SETMASK, _NO_SIGNALS, None)),
        *([("exec", _tell_pid, (plan.env,))] if plan.listen_pid else []),
        ("exec", find, (plan.argv[0], plan.argv, plan.env)),
    ]


def pipe() -> tuple[int, int]:
    try:
        return os.pipe()
    except OSError as error:
        raise SpawnError("fds", error.errno) from None


def order_fork(zygote: int, plan: SpawnPlan) -> int:
    """Order a fork of the zygote at the other end of a socket; return the report pipe, which does
    not block.

    On it come the pid of the fork, PID_BYTES long, and then what `launch` describes. Raises
    SpawnError. See zygote/main.py.
    """
    report, report_in = pipe()
    order = {
        "argv": [os.fsdecode(word) for word in plan.argv],
        "env": {os.fsdecode(name): os.fsdecode(value) for name, value in plan.env.items()},
        "cwd": os.fsdecode(plan.cwd or b"/"),
        "keeper": os.getpid(),
        "numbers": [0, 1, 2, *(number for number, _ in plan.grants)],
        "rlimits": plan.rlimits,
        "umask": plan.umask,
        "guarded": plan.guarded,
        "listen_pid": plan.listen_pid,
        "joins": plan.cgroup >= 0,
        "parks": plan.parks >= 0,
    }
    groups = [fd for fd in (plan.cgroup, plan.parks) if fd >= 0]
    fds = [report_in, *plan.stdio, *(fd for _, fd in plan.grants), *groups]
    try:
        with socket.socket(fileno=os.dup(zygote)) as sock:
            socket.send_fds(sock, [json.dumps(order).encode()], fds, socket.MSG_DONTWAIT)
        os.set_blocking(report, False)
    except OSError as error:
        os.close(report)
        raise SpawnError("zygote", error.errno) from None
    finally:
        os.close(report_in)
    return report


def read_report(fd: int) -> SpawnError | None:
    """Read the report pipe once it is readable: None means that exec succeeded.

    Raises BlockingIOError: not yet.
    """
    text = os.read(fd, 64)
    return parse_report(text) if text else None


def parse_report(text: bytes) -> SpawnError:
    stage, error = (int(word) for word in text.split())
    return SpawnError(STAGES[stage], error)


def _clone(group: int) -> int:
    """Fork by clone3(2), Linux 5.3, a child that is born in a cgroup (5.7); returns as fork(2)
    does.

    Moving a process into a group waits for all processors to take notice, often 10 ms
    (cgroup_threadgroup_rwsem). Python is not told of the fork, which spares the child a third of
    its page faults: a process of one thread only, and the child has to go straight on to exec.

    `group`: descriptor of the group's directory, negative for ours.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "no clone3")
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, its size, tls,
    # set_tid, size, cgroup
    flags, group = (CLONE_INTO_CGROUP, group) if group >= 0 else (0, 0)
    wanted = struct.pack("11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group)
    pid: int = _libc.syscall(SYS_CLONE3, wanted, ctypes.c_size_t(len(wanted)))
    return pid if pid >= 0 else _raise_errno()


def prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        _raise_errno()


def _raise_errno() -> int:
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# -- in the child ----------------------------------------------------------------------------------


def _become(steps: list[Step], report: int) -> None:
    """Take all steps, or report which one failed and why. Never returns."""
    stage, number = STAGES[0], errno.EINVAL
    try:
        for stage, call, arguments in steps:  # noqa: B007  read below, when a step fails
            call(*arguments)
    except OSError as error:
        number = error.errno or errno.EINVAL
    except ValueError as error:  # what resource.setrlimit makes of EPERM and EINVAL
        number = errno.EPERM if "not allowed" in str(error) else errno.EINVAL
    except MemoryError:
        number = errno.ENOMEM
    finally:
        os.write(report, b"%d %d" % (STAGES.index(stage), number))
        os._exit(127)


def _join(group: int) -> None:
    os.write(os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=group), b"0")


def _die_with(parent: int) -> None:
    """Ask for SIGKILL when the parent dies, and die now if it is dead already (the race of
    prctl(2)).
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)


def _tell_pid(env: dict[bytes, bytes]) -> None:
    env[b"LISTEN_PID"] = b"%d" % os.getpid()
