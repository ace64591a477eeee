"""Runs a tool's own program in the tool's own interpreter, and gives it the daemon's listening socket at `bind`.

Law: the tool's code is not changed and cannot tell the difference. Standard library only, Python 3.8 or later; nothing
of this package is imported, because the interpreter is the tool's.

    python shim.py --px-fd N --px-port P -- main.py [arguments of the tool]
    python shim.py --px-zygote N        imports PX_PRELOAD and forks such tools: see zygote/main.py

An AF_INET `bind` to port P does not bind: descriptor N, a socket that listens on that port since the tool is known,
takes the place of the new one (dup2(2)). The tool's own `listen` and `accept` go on as they would.

Status flags (O_NONBLOCK) live in the open file description, which every holder shares: the blocking mode that the
tool had asked for is set again after each substitution. Descriptor N itself does not survive exec.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # This folder must not shadow the standard library for the imports below, nor for the tool's.
    del sys.path[0]

import _thread
import io
import itertools
import os
import socket
import time
import types

MYPY = False
if MYPY:  # typing is not imported in a tool's process
    from typing import Any

_PROGRAM = 6  # where it stands in our argv
LATER_SECONDS = 2.0
_MESSAGE_BYTES = 100_000
_known = [0]  # how many modules were told, or come from a zygote: to touch those would copy their pages


def _substitute(fd: int, port: int) -> None:
    """Patch `socket.socket`. Every pure-Python server goes through it; natively binding ones see EADDRINUSE."""
    real_bind, real_listen, real_accept = socket.socket.bind, socket.socket.listen, socket.socket.accept
    with socket.socket(fileno=os.dup(fd)) as listening:
        ours = listening.getsockname()

    def bind(self: socket.socket, address: Any) -> None:
        told = isinstance(address, tuple) and len(address) == 2 and address[1] == port
        if not (told and self.family == socket.AF_INET and self.type == socket.SOCK_STREAM):
            real_bind(self, address)
            return
        _tell_modules()
        try:  # noqa: SIM105  to import contextlib takes 4 ms
            _thread.start_new_thread(_tell_later, ())
        except RuntimeError:  # its limits leave no room for a thread
            pass
        timeout = self.gettimeout()
        os.dup2(fd, self.fileno(), inheritable=os.get_inheritable(self.fileno()))
        self.settimeout(timeout)

    def listen(self: socket.socket, *backlog: int) -> None:
        try:
            handed_over = self.family == socket.AF_INET and self.getsockname() == ours
        except OSError:
            handed_over = False
        # A small backlog (http.server asks for 5) would throw away the room that the daemon made for waiting requests.
        if not handed_over:
            real_listen(self, *backlog)

    def accept(self: socket.socket) -> Any:
        _tell_modules()  # also what a handler has imported, by the next connection
        return real_accept(self)

    for name, patched in (("bind", bind), ("listen", listen), ("accept", accept)):
        setattr(socket.socket, name, patched)


def _tell_later() -> None:
    """Tell what the first requests import, until no more comes: what is not written in Python accepts by itself."""
    told = 0
    while len(sys.modules) != told:
        told = len(sys.modules)
        time.sleep(LATER_SECONDS)
        _tell_modules()


def _tell_modules() -> None:
    """Tell the daemon what the tool has imported of installed packages; the next start can then be forked."""
    count = len(sys.modules)
    newest = list(itertools.islice(reversed(sys.modules.items()), max(0, count - _known[0])))  # others may import
    _known[0] = count
    installed = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
    library, names = os.path.dirname(os.__file__) + os.sep, []
    for name, module in reversed(newest):
        spec = getattr(module, "__dict__", {}).get("__spec__")
        origin = str(getattr(spec, "origin", None))
        if origin.startswith(library) or any(each in origin for each in installed):
            names.append(name)
    if not names:
        return
    message = ("X_PX_MODULES=" + ",".join(names)).encode()[:_MESSAGE_BYTES]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as telling:
            telling.setblocking(False)
            telling.sendto(message, os.environ["NOTIFY_SOCKET"])
    except (OSError, KeyError):
        return  # nobody wants to know


def _run(path: str, arguments: list[str]) -> None:
    """Be `python path arguments…`: argv, sys.path[0], and a `__main__` that stays, also for multiprocessing."""
    with io.open_code(os.path.abspath(path)) as program:
        source = program.read()
    main = types.ModuleType("__main__")
    own: Any = sys.modules[__name__].__loader__
    loader = type(own)("__main__", path)
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None, __loader__=loader)
    sys.argv[:] = [path, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    sys.modules["__main__"] = main
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - running the tool is the purpose


def _excepthook(kind: Any, error: Any, trace: Any) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def _serve(number: str) -> None:
    """Be a zygote; return in what it forks, with the command line of that."""
    import importlib.util

    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "zygote", "main.py")
    spec: Any = importlib.util.spec_from_file_location("px_zygote", file)
    zygote = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(zygote)
    argv = zygote.serve(int(number), lambda: _preload(os.environ.pop("PX_PRELOAD", "").split(","))).take()
    sys.argv = argv[1:]
    _known[0] = len(sys.modules)
    if _has_own(os.path.dirname(os.path.realpath(sys.argv[_PROGRAM]))):
        os.execve(argv[0], argv, os.environ)  # noqa: S606  a module of its own would not be found: start afresh


def _has_own(folder: str) -> bool:
    """Say whether a tool brings a module that is imported already, in its folder or in one below that is no package."""
    for place in (folder, *(each.path for each in os.scandir(folder) if each.is_dir() and each.name[0] not in "._")):
        entries = os.listdir(place) if os.access(place, os.R_OK) else []
        if place == folder or "__init__.py" not in entries:
            names = {each.partition(".")[0] for each in entries if "." not in each or each.endswith((".py", ".so"))}
            if any(name in sys.modules for name in names - {"__main__", "__pycache__"}):
                return True
    return False


def _preload(names: list[str]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for name in names:
        begin, package = time.perf_counter(), name.partition(".")[0]
        try:
            __import__(name)
        except Exception:  # noqa: S112  the tool will say what it misses
            continue
        seconds[package] = seconds.get(package, 0.0) + time.perf_counter() - begin
    return seconds


if __name__ == "__main__":
    if sys.argv[1] == "--px-zygote":
        _serve(sys.argv[2])
    sys.excepthook = _excepthook
    os.set_inheritable(int(sys.argv[2]), False)
    _substitute(int(sys.argv[2]), int(sys.argv[4]))
    _run(sys.argv[_PROGRAM], sys.argv[_PROGRAM + 1 :])
