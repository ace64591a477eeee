"""A process that has imported what others will need, and forks them: their starts without the
imports.

    parked = serve(FD, load)      returns in a forked process only
    argv = parked.take()          which goes on as the program of `argv`, once that is ordered

Law: what is forked is what the same order to the keeper's own spawn would give, but for the hash
seed, which siblings share, and the time at which packages were imported. Whatever cannot be made
equal after a fork is found before the first one (import_ahead.py, `hazard`), or is part of what its
owner takes two starts for equal by; then they are spawned, which is always right. Whoever holds the
other end of FD owns this process: when it closes, this process ends, and so does the one fork that
waits for the next order; those that have had theirs are the keeper's, and go on.

FD is a SOCK_SEQPACKET socket, a JSON object a message. From here, once, and by zlib, as it names
each file that was imported: {"made_from": [PATH], "stamp": number, "seconds": {PACKAGE: number}},
or {"refused": WHY, "imported": number of steps before that} and the end. To here, from the keeper:
{"argv": [str], "env": {str: str}, "cwd": str, "keeper": pid, "numbers": [int], "rlimits":
[[resource, soft, hard]], "umask": int | null, "guarded": bool, "listen_pid": bool, "joins": bool,
"parks": bool}; with it the pipe of the report, a descriptor for each of `numbers`, if it `joins` a
cgroup the directory of that, and if the next one `parks` that of its group: moving a process takes
some 10 ms, for which nobody waits then. On the report come its pid, eleven bytes with a newline,
and what comes from any spawn: nothing, or where it failed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

MESSAGE_BYTES = 1 << 20
FDS = 32
STAGES = ("fork", "setsid", "cgroup", "fds", "pdeathsig", "chdir", "rlimit", "exec")
"""As the keeper counts them, where a start can fail."""
PR_SET_PDEATHSIG = 1
PR_SET_MM, PR_SET_MM_MAP = 35, 14
# start and end of code and of data, start of the heap: in /proc/PID/stat (proc(5))
_LAYOUT = (26, 27, 45, 46, 47)
_STACK = 28
_libc = ctypes.CDLL(None, use_errno=True)
_shown: list[Any] = []  # memory in which the kernel finds what /proc/PID/cmdline and environ show
# random generators that each fork seeds anew, as a plain start does
_seeded_by_system: list[Any] = []
# all modules by name, also those that `sys.modules` does not show yet
_imported: dict[str, Any] = {}
# variables that imports have changed, from and to
_changed: dict[str, tuple[str | None, str | None]] = {}
_PAUSE_SECONDS = 0.0002
_AGAIN_SECONDS = 0.1
_THREAD_SECONDS = 0.5
# after the last order: what prepares itself has some 20 ms of work, and takes it from no start
_QUIET_SECONDS = 0.5
_PREPARED_MAX = 2  # of a daemon, at some 15 MB each
_MEMORY_SECONDS = 60.0
_MEMORY_PART = 10  # a tenth of the memory is to be available


def serve(number: int, load: Callable[[], Any]) -> Parked:
    """Import everything by `load`, say so, and fork what will be ordered; returns in what was
    forked.

    `load` returns nothing, or the report of `import_ahead.Imports.run`.
    """
    os.set_inheritable(number, False)
    owner = socket.socket(fileno=number)
    # The files and folders that decide what an interpreter is: a change of one makes this process
    # old.
    own = [sys.executable, os.path.join(sys.prefix, "pyvenv.cfg"), os.path.abspath(__file__)]
    env = dict(os.environ)
    report: dict[str, Any] = load() or {}
    _notice_changes(env)
    _seeded_by_system.extend(report.get("seeded_by_system", ()))
    _imported.update(report.get("modules", sys.modules))
    folders = [each for each in sys.path if os.path.isdir(each)]
    told: dict[str, Any] = {
        "made_from": [*own, *folders, *_installed(), *_startup_files(), *report.get("read", ())]
    }
    told.update(stamp=stamp(told["made_from"]), seconds=report.get("seconds", {}))
    # numpy's BLAS ends its threads at the first fork (and makes them again when they are needed)
    first = os.fork()
    if first == 0:
        os._exit(0)
    os.waitpid(first, 0)
    why = report.get("refused") or hazard(number)
    refusal = {"refused": why, "imported": report.get("imported", 0)}
    try:
        owner.send(zlib.compress(json.dumps(told if why is None else refusal).encode()))
    except OSError:
        why = "its owner has gone"
    if why is not None:
        raise SystemExit(0)
    told.clear()
    report.clear()  # what a fork lets go of, it touches: each of those pages would be copied
    gc.collect()
    gc.freeze()
    alive, life = os.pipe()  # at its end when this process is
    # directory of the group in which the next fork waits, and what the last one said
    parks, taken = -1, b"-"
    while True:
        reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if _fork_twice():  # it waits for the next order, so that none waits for a fork
            os.close(life)
            # What ended before it had an order (its configuration may be broken) is not prepared
            # again at once.
            return Parked(owner, alive, (reader, writer), _park(parks), env if taken else None)
        writer.close()
        if parks >= 0:
            os.close(parks)
        taken, following = _receive(reader)
        if not taken and _is_over(owner):
            raise SystemExit(0)
        reader.close()
        env = json.loads(taken) if taken else env
        parks = following[0] if following else -1


class Parked:
    """A fork that waits for its order.

    `env`: what the order before had; None where nothing is to be prepared.
    """

    def __init__(
        self, owner: socket.socket, alive: int, ends: Any, group: int, env: dict[str, str] | None
    ) -> None:
        self._owner, self._alive, self._ends, self._group = owner, alive, ends, group
        self._own = [alive]  # descriptors that it does not keep
        self._env = env or {}
        self._may_prepare, self._is_prepared = env is not None, False

    def prepare(self, folder: str) -> str | None:
        """Have the environment of the order before; return how the names of files begin that are
        this process's own.

        None where nothing is to be prepared. `folder`: the same for all zygotes of a daemon.
        """
        if not self._may_prepare or _is_memory_short():
            return None
        if select.select((self._owner.fileno(), self._alive), (), (), _QUIET_SECONDS)[0]:
            return None
        os.makedirs(folder, 0o700, exist_ok=True)
        for place in (os.path.join(folder, str(number)) for number in range(_PREPARED_MAX)):
            lock = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another one has it, until it is a kernel
                os.close(lock)
                continue
            os.pwrite(lock, b"%-10d\n" % os.getpid(), 0)
            self._own.append(lock)
            self._is_prepared = True
            _set_environment(self._env)
            return place
        return None

    def take(
        self,
        fits: Any = lambda argv: True,
        leave: Any = lambda: None,
        touch: Any = lambda: None,
    ) -> list[str]:
        """Wait for the order and become what it says; returns its argv.

        Ends this process, after `leave`, when none is to come, or one that what was prepared does
        not fit: the next fork takes that, which has no time to prepare anything. `touch` is called
        if no order comes for a while. It reads what every start reads, because the first read of a
        page of memory copies it.
        """
        sources = (self._owner.fileno(), self._alive)
        is_renewed = False
        # The sibling that has just been forked is starting: it needs the processor first.
        is_quiet = not select.select(sources, (), (), _QUIET_SECONDS)[0]
        if is_quiet:
            try:
                _renew_generators()
                is_renewed = True
                touch()
            except Exception:
                # After the order it is tried again, and a failure is reported by the start. This
                # fork must not end before: the next one would fail as well, twice a second.
                is_renewed = False
        if self._is_prepared:
            _notice_changes(self._env)
        found: list[int] = []
        seconds = _MEMORY_SECONDS if self._is_prepared else None
        while not found and not (self._is_prepared and _is_memory_short()):
            found = select.select(sources, (), (), seconds)[0]
        text = _receive(self._owner, socket.MSG_PEEK)[0] if self._owner.fileno() in found else b""
        order: dict[str, Any] = json.loads(text or b"{}")
        does = bool(order) and self._alive not in found
        if does and self._is_prepared:
            does = _unmarked(order["env"]) == _unmarked(self._env) and fits(order["argv"])
        if not does:
            try:
                leave()
            finally:
                os._exit(0)
        fds = _receive(self._owner)[1]
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fds[-1]))]
            if order["parks"]
            else []
        )
        self._ends[1].sendmsg([json.dumps(order["env"]).encode()], rights)
        self._own += [each.detach() for each in (self._owner, *self._ends)]
        argv = _become(order, fds, self._own, self._group)
        if not is_renewed:
            _renew_generators()
        return argv


def _unmarked(env: dict[str, str]) -> dict[str, str]:
    """Return what counts of an environment before there is an order: our marks come with that."""
    return {name: value for name, value in env.items() if not name.startswith("PX_")}


def _is_memory_short() -> bool:
    with open("/proc/meminfo") as file:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in file}
    return kib["MemAvailable"] * _MEMORY_PART < kib["MemTotal"]


# -- what two starts have in common ----------------------------------------------------------------


def stamp(paths: Iterable[str]) -> int:
    """Return a number that differs when one is another file, or has changed. (Links of uv's
    change a ctime.)
    """
    found = 0
    for path in paths:
        try:
            status = os.stat(path)
            known = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            found = zlib.crc32(b"%d %d %d %d" % known, found)
        except (OSError, ValueError):  # ValueError: no file can have that name
            found = zlib.crc32(b"-", found)
    return found


def _installed() -> list[str]:
    """Return the files of all modules here that did not come with Python itself."""
    files = [getattr(module, "__file__", None) or "" for module in list(_imported.values())]
    library = os.path.dirname(os.__file__)
    return [
        file
        for file in files
        if file and ("-packages" + os.sep in file or not file.startswith(library))
    ]


def _startup_files() -> list[str]:
    """Return the files that Python reads at its start (site): the .pth files, sitecustomize and
    usercustomize.
    """
    folders = [each for each in sys.path if each.endswith("-packages") and os.path.isdir(each)]
    files = [
        os.path.join(folder, name)
        for folder in folders
        for name in os.listdir(folder)
        if name.endswith(".pth")
    ]
    modules = (_imported.get(name) for name in ("sitecustomize", "usercustomize"))
    return [
        *sorted(files),
        *(str(getattr(module, "__file__", "")) for module in modules if module is not None),
    ]


def hazard(own: int) -> str | None:
    """Say what importing has left that a fork would break or share; None where there is nothing.

    `own`: our socket.
    """
    until = time.monotonic() + _THREAD_SECONDS
    while (threads := len(os.listdir("/proc/self/task")) - 1) and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)  # one that has been joined is still there for a moment
    if threads:
        return f"importing left {threads} threads running"
    left = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            kind = (
                os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]
                if int(fd) not in (0, 1, 2, own)
                else ""
            )
        except OSError:
            continue  # of the listing itself
        left += [kind] if kind in ("socket", "anon_inode") or kind.startswith("/dev/nvidia") else []
    return f"importing left open {', '.join(left)}" if left else None


def _is_over(owner: socket.socket) -> bool:
    try:
        return not owner.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return False


def _receive(sock: socket.socket, flags: int = socket.MSG_CMSG_CLOEXEC) -> tuple[bytes, list[int]]:
    space = 0 if flags & socket.MSG_PEEK else socket.CMSG_SPACE(FDS * 4)
    try:
        text, ancillary, _, _ = sock.recvmsg(MESSAGE_BYTES, space, flags)
    except OSError:
        text, ancillary = b"", []
    rights = b"".join(
        data
        for level, kind, data in ancillary
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
    )
    return text, list(memoryview(rights).cast("i"))


def _fork_twice() -> bool:
    """Fork, and fork again in between: the keeper, to whom orphans come back, is the parent of what
    is forked.

    Returns True in what is forked, once the keeper is its parent, False here.
    """
    try:
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            return False
    except OSError:
        # no room for a process: orders wait, and are carried out by a spawn
        time.sleep(_AGAIN_SECONDS)
        return False
    between = os.getpid()
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    while os.getppid() == between:
        time.sleep(_PAUSE_SECONDS)
    return True


# -- in what was forked ----------------------------------------------------------------------------


def _become(order: dict[str, Any], fds: list[int], own: list[int], parked: int) -> list[str]:
    """Become what was ordered, or report why not, as the keeper's own child does between fork and
    exec.

    `own`: descriptors of the zygote's that are to be closed; what else is open, what was imported
    has opened. `parked`: inode of the group in which this process is already.
    """
    argv: list[str] = order["argv"]
    stage, report = STAGES.index("fds"), fds[0]
    try:
        top = max([2, *order["numbers"]]) + 1
        report, *sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, top) for fd in fds]
        os.write(report, b"%10d\n" % os.getpid())
        steps: list[Callable[[], object]] = [
            os.setsid,
            lambda: _join(sources[len(order["numbers"])], parked) if order["joins"] else None,
            lambda: _place_fds(dict(zip(order["numbers"], sources)), [*own, *fds, *sources]),  # noqa: B905  Python 3.8
            lambda: _die_with(order["keeper"]) if order["guarded"] else None,
            lambda: os.chdir(order["cwd"]),
            lambda: _limit(order["rlimits"], order.get("umask")),
            lambda: _take_environment(argv, order["env"], listens=order["listen_pid"]),
        ]
        for stage, step in enumerate(steps, start=1):  # noqa: B007  read below, when a step fails
            step()
    # ValueError: what resource.setrlimit makes of EPERM and EINVAL
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None) or (
            errno.EPERM if "not allowed" in str(error) else errno.EINVAL
        )
        try:
            os.write(report, b"%d %d" % (stage, number))
        finally:
            os._exit(127)
    os.close(report)
    _renew()
    return argv


def _renew() -> None:
    """Make anew what depends on the order: when, and in which folder, this process begins."""
    gc.unfreeze()
    modules = _imported  # each page that is touched is copied: it is left as it is
    if "logging" in modules:  # from which `relativeCreated` counts
        is_whole = isinstance(getattr(modules["logging"], "_startTime", 0.0), int)
        vars(modules["logging"])["_startTime"] = time.time_ns() if is_whole else time.time()
    # where workers by "spawn" begin, and look for the program
    if "multiprocessing.process" in modules:
        vars(modules["multiprocessing.process"])["ORIGINAL_DIR"] = os.getcwd()


def _renew_generators() -> None:
    """Make anew what each process has for itself, whatever it becomes."""
    modules = _imported
    if "numpy.random" in modules:
        modules["numpy.random"].seed()  # random and ssl do that by themselves
    for generator in _seeded_by_system:
        generator.seed()
    _seeded_by_system.clear()
    if "uuid" in modules:
        vars(modules["uuid"]).update(_node=None, _last_timestamp=None)
    if "threading" in modules:
        main = modules["threading"].main_thread()
        # Python leaves that of the process before the fork
        getattr(main, "_set_native_id", lambda: None)()
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def _park(group: int) -> int:
    """Wait in that group from now on; return its inode, 0 where there is none, or it cannot be
    joined.
    """
    if group < 0:
        return 0
    try:
        _join(group)
        return os.fstat(group).st_ino
    except OSError:
        return 0
    finally:
        os.close(group)


def _join(group: int, parked: int = 0) -> None:
    if os.fstat(group).st_ino == parked:
        return
    procs = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=group)
    os.write(procs, b"0")
    os.close(procs)


def _place_fds(targets: dict[int, int], others: list[int]) -> None:
    for number, source in targets.items():
        os.dup2(source, number, inheritable=True)
    for fd in {*targets.values(), *others}.difference(targets):
        os.close(fd)


def _die_with(keeper: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), zero, zero, zero):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != keeper:
        os._exit(127)


def _limit(rlimits: list[list[int]], umask: int | None) -> None:
    if umask is not None:
        os.umask(umask)
    for number, soft, hard in sorted(rlimits, key=lambda entry: entry[0] == resource.RLIMIT_AS):
        resource.setrlimit(number, (soft, hard))


def _take_environment(argv: list[str], env: dict[str, str], *, listens: bool) -> None:
    """Have this environment and no other, also for whoever looks from outside (/proc/PID/environ
    and cmdline).
    """
    env = {**env, **({"LISTEN_PID": str(os.getpid())} if listens else {})}
    _show(argv, [f"{name}={value}" for name, value in env.items()])
    _set_environment(env)
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = argv


def _set_environment(env: dict[str, str]) -> None:
    env = dict(env)
    if "LC_CTYPE" in os.environ:
        # Python's start adds it where there is no locale (PEP 538)
        env.setdefault("LC_CTYPE", os.environ["LC_CTYPE"])
    imported = {
        name: after for name, (before, after) in _changed.items() if env.get(name) == before
    }
    env = {name: value for name, value in {**env, **imported}.items() if value is not None}
    for name in set(os.environ).difference(env):
        del os.environ[name]
    os.environ.update({name: value for name, value in env.items() if os.environ.get(name) != value})
    time.tzset()


def _notice_changes(env: dict[str, str]) -> None:
    """Remember what imports, or what prepares a program, have changed since the environment was
    `env`.
    """
    pairs = {name: (env.get(name), os.environ.get(name)) for name in {*env, *os.environ}}
    _changed.update({name: pair for name, pair in pairs.items() if pair[0] != pair[1]})


def _show(argv: list[str], env: list[str]) -> None:
    """Have the kernel show these words; one that was built without CONFIG_CHECKPOINT_RESTORE
    goes on with ours.
    """
    arguments, variables = (
        b"".join(os.fsencode(text) + b"\0" for text in texts) for texts in (argv, env)
    )
    _shown.append(ctypes.create_string_buffer(arguments + variables))
    begin = ctypes.addressof(_shown[0])
    middle = begin + len(arguments)
    _libc.sbrk.restype = ctypes.c_void_p
    stat = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
    fields = os.read(stat, 4096).rpartition(b")")[2].split()
    os.close(stat)
    layout = [*(int(fields[each - 3]) for each in _LAYOUT), _libc.sbrk(0), int(fields[_STACK - 3])]
    found = struct.pack("12QIi", *layout, begin, middle, middle, middle + len(variables), 0, 0, -1)
    _libc.prctl(
        PR_SET_MM,
        ctypes.c_ulong(PR_SET_MM_MAP),
        found,
        ctypes.c_ulong(len(found)),
        ctypes.c_ulong(0),
    )
