"""What of a process an import, or a program's own lines, can change, and in which words a change is
reported.

Runs in the interpreter of a tool, with the standard library alone (Python 3.8 or later). Two kinds
of state are read:

- `system_state`: what the kernel holds for the process, what a fork does not inherit, what the
  order of a start sets anew, and the two global random generators. A package that changes one of
  these while it is imported cannot be imported ahead: the fork would not be what a plain start is.
- `program_state`: what lies in the memory of the interpreter and decides what a module does while
  it is imported. It is compared between two imports of a program: when the program has changed it
  itself, what it imports afterwards cannot be imported ahead of it.

Nothing stays in `sys.modules` that was not there before.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_MODULES_BEFORE = frozenset(sys.modules)
import _locale  # noqa: E402  present on every platform with fork(2)
import _signal  # type: ignore[import-not-found]  # noqa: E402  builtin
import gc  # noqa: E402
import resource  # noqa: E402

for _name in ("_locale", "_signal", "gc", "resource"):
    if _name not in _MODULES_BEFORE:
        del sys.modules[_name]  # a plain start has not imported it

_DEFAULT_FOLDERS = (None, os.environ.get("TMPDIR"), "/tmp")  # noqa: S108  compared, not used
_LIMITS = tuple(sorted(name for name in dir(resource) if name.startswith("RLIMIT_")))
_USUAL_LIMITS = (
    "RLIMIT_NOFILE",
    "RLIMIT_AS",
    "RLIMIT_STACK",
    "RLIMIT_CORE",
    "RLIMIT_FSIZE",
    "RLIMIT_CPU",
)
_STATUS_FIELDS = {
    "Umask": "the umask",
    "SigBlk": "the signals that are blocked",
    "SigIgn": "the signals that are ignored",
    "SigCgt": "the signals that have a handler",
    "NoNewPrivs": "its privileges",
    "Seccomp": "its privileges",
    "CapEff": "its privileges",
    "Uid": "its privileges",
    "Gid": "its privileges",
    "Groups": "its privileges",
    "Threads": "the threads that run",
    "Cpus_allowed": "the processors that it may use",
}
"""Fields of /proc/PID/status (proc(5)) that are compared."""
_SIGNALS_OF_THE_LIBRARY = 0b11 << 31
"""Signals 32 and 33: glibc takes them for itself when the first thread starts (nptl(7))."""
_THREAD_PAUSE_SECONDS = 0.0002
_THREAD_SECONDS = 0.5


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return in words what differs between two states of the same kind, in the order of the
    states.
    """
    words = [
        name for name in {**before, **after} if not _is_same(before.get(name), after.get(name))
    ]
    return list(dict.fromkeys(words))


def _is_same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    try:
        return bool(first == second)
    # the comparison is the program's own code, where it put objects of its own there
    except Exception:
        return False


# -- what the kernel holds, and what a fork does not inherit ---------------------------------------


def system_state(own_fds: Iterable[int] = ()) -> dict[str, Any]:
    """Return the state of the process by its names; `own_fds`: descriptors of ours, which do not
    count. Linux only.
    """
    state: dict[str, Any] = {}
    for name, value in _status().items():
        words = _STATUS_FIELDS.get(name)
        if words is not None:
            is_mask = name.startswith("Sig")
            shown = int(value, 16) & ~_SIGNALS_OF_THE_LIBRARY if is_mask else value
            state[words] = (*state.get(words, ()), shown)
    for name in _LIMITS:
        state["the limit " + name] = _limit(name)
    state["the working directory"] = _working_directory()
    state["sys.path"] = list(sys.path)
    state["the files, sockets or pipes that are open"] = _open_files(frozenset(own_fds))
    state["the child processes"] = _read(f"/proc/self/task/{os.getpid()}/children")
    state["a timer"] = _timers()
    state["its priority"] = os.getpriority(os.PRIO_PROCESS, 0)
    state["its oom_score_adj"] = _read("/proc/self/oom_score_adj")
    state["its session or process group"] = (os.getsid(0), os.getpgid(0))
    state["its core dump filter"] = _read("/proc/self/coredump_filter")
    return state


def random_state() -> dict[str, Any]:
    """Return the state of the global random generators that exist already."""
    state: dict[str, Any] = {}
    random = sys.modules.get("random")
    if random is not None and hasattr(random, "getstate"):
        state["the global random generator"] = random.getstate()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None and hasattr(numpy_random, "get_state"):
        kind, key, *rest = numpy_random.get_state()
        state["numpy's global random generator"] = (kind, key.tobytes(), rest)
    return state


def settled_system_state(own_fds: Iterable[int], before: dict[str, Any]) -> dict[str, Any]:
    """Return the state once threads that are about to end have ended.

    A thread that was joined is there for a moment still. Those of numpy's BLAS end at the first
    fork, and are made again when they are needed.
    """
    threads = _STATUS_FIELDS["Threads"]
    state = system_state(own_fds)
    if state.get(threads) == before.get(threads):
        return state
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    deadline = time.monotonic() + _THREAD_SECONDS
    state = system_state(own_fds)
    while state.get(threads) != before.get(threads) and time.monotonic() < deadline:
        time.sleep(_THREAD_PAUSE_SECONDS)
        state = system_state(own_fds)
    return state


def _status() -> dict[str, Any]:
    lines = _read("/proc/self/status").splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs}


def _read(path: str) -> str:
    """Return a small file of /proc; "" where there is none.

    Not by `open`, which a program may have replaced.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 1 << 16).decode(errors="replace")
    finally:
        os.close(descriptor)


def _limit(name: str) -> tuple[int, int] | None:
    try:
        return resource.getrlimit(getattr(resource, name))
    except (OSError, ValueError):
        return None  # the kernel does not have it


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None  # it was removed


def _open_files(own_fds: frozenset[int]) -> list[str]:
    files = []
    for name in os.listdir("/proc/self/fd"):
        if int(name) in own_fds:
            continue
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue  # the descriptor of the listing itself
        files.append(name + " " + target)
    return sorted(files)


def _timers() -> tuple[Any, ...]:
    kinds = (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF)
    intervals = tuple(_signal.getitimer(kind) != (0.0, 0.0) for kind in kinds)
    return (*intervals, _read("/proc/self/timers"))


# -- what lies in the memory of the interpreter ----------------------------------------------------


def program_state() -> dict[str, Any]:
    """Return what decides in memory what a module does at its import.

    Cheap: it is read around each import.
    """
    state: dict[str, Any] = {
        "os.environ": _environment(),
        "sys.path": list(sys.path),
        "sys.meta_path": list(sys.meta_path),
        "sys.path_hooks": list(sys.path_hooks),
        "sys.argv": list(sys.argv),
        "the working directory": _working_directory(),
        "the umask": _umask(),
        "the limits of the process": [_limit(name) for name in _USUAL_LIMITS],
        "the locale": _locale.setlocale(_locale.LC_ALL, None),
        "the time zone": _time_zone(),
        "a hook of sys": (sys.excepthook, sys.displayhook, getattr(sys, "unraisablehook", None)),
        "sys.stdin, stdout or stderr": (sys.stdin, sys.stdout, sys.stderr),
        "sys.dont_write_bytecode": sys.dont_write_bytecode,
        "the recursion limit": sys.getrecursionlimit(),
        "the switch interval": sys.getswitchinterval(),
        "the garbage collector": (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
        "the tracing of the interpreter": (sys.gettrace(), sys.getprofile()),
    }
    for module, attribute, words in _MODULE_STATE:
        loaded = sys.modules.get(module)
        if loaded is not None:
            value = getattr(loaded, attribute, None)
            state[words] = list(value) if isinstance(value, list) else value
    _add_logging(state)
    _add_memory(state)
    return state


_MODULE_STATE = (
    ("warnings", "showwarning", "warnings.showwarning"),
    ("threading", "excepthook", "threading.excepthook"),
)


def _environment() -> dict[Any, Any]:
    try:
        # Its encoded form, where there is one: to decode every variable takes 40 us, around each
        # import.
        return dict(getattr(os.environ, "_data", os.environ))
    except Exception:  # a program may put anything in its place
        return {}


def _umask() -> bytes:
    """Return the umask. Read from /proc: umask(2) would change it for a moment, for all threads."""
    try:
        descriptor = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        text = os.read(descriptor, 128)  # "Umask:" is the second line
    finally:
        os.close(descriptor)
    return text.partition(b"Umask:")[2].partition(b"\n")[0]


def _time_zone() -> Any:
    return (time.timezone, time.tzname)


def _filters() -> list[Any] | None:
    """Return the filters of warnings without those in front that only silence some.

    Packages silence warnings for a moment while they import another one (FastAPI does). An import
    that would have warned then writes nothing; where it is done ahead it does write, and output
    ends what is imported ahead.
    """
    filters = getattr(sys.modules.get("warnings"), "filters", None)
    if filters is None:
        return None
    remaining = list(filters)
    while remaining and remaining[0][0] == "ignore":
        del remaining[0]
    return remaining


def _add_logging(state: dict[str, Any]) -> None:
    logging = sys.modules.get("logging")
    root = getattr(logging, "root", None)
    if logging is None or root is None:
        return
    state["the root logger"] = (root.level, list(root.handlers), list(root.filters), root.disabled)
    state["logging"] = (
        logging.raiseExceptions,
        logging.getLoggerClass(),
        logging.getLogRecordFactory(),
        root.manager.disable,
    )


def _add_memory(state: dict[str, Any]) -> None:
    state["builtins"] = dict(sys.modules["builtins"].__dict__)
    state["the filters of warnings"] = _filters()
    # The first call of gettempdir() fills it in, which changes nothing.
    tempdir = getattr(sys.modules.get("tempfile"), "tempdir", None)
    state["tempfile.tempdir"] = None if tempdir in _DEFAULT_FOLDERS else tempdir
    socket = sys.modules.get("socket")
    if socket is not None and hasattr(socket, "getdefaulttimeout"):
        state["the default timeout of sockets"] = socket.getdefaulttimeout()
