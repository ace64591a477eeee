"""Runs a tool's own program in the tool's own interpreter, and gives it the daemon's listening
socket at `bind`.

Law: the program finds what `python main.py --port N` would give it. Standard library only, Python
3.8 or later; nothing of this package is imported, because the interpreter is the tool's. Nothing
else is imported either that Python's own start has not imported: a module of the tool may have the
name of one of the standard library.

Differences that remain: descriptor N, the command line that ps(1) shows, this file's frames below
the program's own (`inspect.stack`), and an entry of `sys.meta_path` until `socket` is imported.

    python shim.py --px-fd N --px-port P -- main.py [arguments of the tool]
    python shim.py --px-fd N --px-port P -- main.py [arguments of the tool] --px-zygote Z

The second form imports PX_PRELOAD and forks this very tool: see zygote/main.py.

An AF_INET `bind` to port P does not bind: descriptor N, a socket that listens on that port since
the tool is known, takes the place of the new one (dup2(2)). The tool's own `listen` and `accept` go
on as they would.

Status flags (O_NONBLOCK) live in the open file description, which every holder shares: the blocking
mode that the tool had asked for is set again after each substitution. Descriptor N itself does not
survive exec.

The first substitution is reported as X_PX_BOUND=1 on NOTIFY_SOCKET: from then on somebody may
connect to the port.
"""

import sys

# No `from __future__ import annotations`: that is a module, which Python's own start does not
# import.

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # This folder must not shadow the standard library for the imports below, nor for the tool's.
    del sys.path[0]

import _thread
import io
import os
import time

MYPY = False
if MYPY:  # typing is not imported in a tool's process
    import socket
    from typing import Any

_PROGRAM = 6  # where it stands in our argv
LATER_SECONDS = 2.0
# What follows the imports, from which modules; the steps that were imported ahead, the modules of
# those that are hidden, and the step of each hidden module by its name.
_state: "dict[str, Any]" = {
    "learner": None,
    "modules": None,
    "ahead": [],
    "shown": [],
    "hidden": [],
    "places": {},
}


def _substitute(fd: int, port: int) -> None:
    """Patch `socket.socket`, at once or when the program imports that module.

    Every pure-Python server goes through it; natively binding ones see EADDRINUSE.
    """
    notify_path = os.environ.get("NOTIFY_SOCKET", "")  # the program may change its environment
    # What was imported ahead is in `sys.modules` only once the program asks for it.
    ahead = [step["socket"] for step in _state["hidden"] if step.get("socket") is not None]
    module = sys.modules.get("socket") or (ahead[-1] if ahead else None)
    if module is not None:
        _patch(module, fd, port, notify_path)
    else:
        sys.meta_path.insert(0, _SocketFinder(fd, port, notify_path))


class _SocketFinder:
    """Finds the module `socket` where it is found anyway, has it patched when it was executed,
    and is gone then.
    """

    def __init__(self, fd: int, port: int, notify_path: str) -> None:
        self._order = (fd, port, notify_path)

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != "socket":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._patch_after(spec.loader)
                return spec
        return None

    def _patch_after(self, loader: "Any") -> None:
        execute = loader.exec_module

        def exec_module(module: "Any") -> None:
            # The loader stays in the module's spec: it is left as it was.
            del loader.exec_module
            execute(module)
            # A file of the tool may have this name.
            if hasattr(module, "socket") and hasattr(module, "SOCK_STREAM"):
                _patch(module, *self._order)

        loader.exec_module = exec_module


def _patch(module: "Any", fd: int, port: int, notify_path: str) -> None:
    kind = module.socket
    real_bind, real_listen, real_accept = kind.bind, kind.listen, kind.accept
    is_reported: list[bool] = []
    with kind(fileno=os.dup(fd)) as listening:
        ours = listening.getsockname()

    def bind(self: "socket.socket", address: "Any") -> None:
        told = isinstance(address, tuple) and len(address) == 2 and address[1] == port
        if not (told and self.family == module.AF_INET and self.type == module.SOCK_STREAM):
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
        if not is_reported:
            is_reported.append(True)
            _send(b"X_PX_BOUND=1", notify_path)

    def listen(self: "socket.socket", *backlog: int) -> None:
        try:
            handed_over = self.family == module.AF_INET and self.getsockname() == ours
        except OSError:
            handed_over = False
        # A small backlog (http.server asks for 5) would throw away the room that the daemon made
        # for waiting requests.
        if not handed_over:
            real_listen(self, *backlog)

    def accept(self: "socket.socket") -> "Any":
        _tell_modules()  # also what a handler has imported, by the next connection
        return real_accept(self)

    for name, patched in (("bind", bind), ("listen", listen), ("accept", accept)):
        setattr(kind, name, patched)


def _send(message: bytes, notify_path: str) -> None:
    """Send one datagram to the daemon, if it listens."""
    import socket  # the program has imported it by now

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(message, notify_path)
    except OSError:
        return  # without it the daemon asks a little later


def _tell_later() -> None:
    """Tell what the first requests import, until no more comes: what is not written in Python
    accepts by itself.
    """
    told = 0
    while len(sys.modules) != told:
        told = len(sys.modules)
        time.sleep(LATER_SECONDS)
        _tell_modules()


def _tell_modules() -> None:
    """Tell the daemon what the tool has imported; the next start can then be forked."""
    learner = _state["learner"]
    message = learner.message() if learner is not None else b""
    if message:
        _send(message, os.environ.get("NOTIFY_SOCKET", ""))


def _load(name: str, *place: str) -> "Any":
    """Return a module of this package by its file; neither it nor what it imports is left in
    `sys.modules`.
    """
    before = set(sys.modules)
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), *place)
    own: Any = globals()["__loader__"]
    module: Any = type(sys)(name)
    module.__file__ = file
    exec(type(own)(name, file).get_code(name), module.__dict__)  # noqa: S102  as the import system does
    for added in set(sys.modules).difference(before):
        del sys.modules[added]  # a plain start has not imported it, and finds its own
    return module


def _load_learner() -> "tuple[Any, Any]":
    """Return what follows imports: the modules zygote/process_state.py and learner.py."""
    state = _load("px_process_state", os.pardir, "zygote", "process_state.py")
    return state, _load("px_learner", "learner.py")


def _follow_imports(path: str) -> None:
    """Learn what the tool imports from now on, where that is of use: what forks is there on
    Linux only.
    """
    if sys.platform != "linux" or not (_state["hidden"] or "NOTIFY_SOCKET" in os.environ):
        return
    state, learner = _state["modules"] or _load_learner()
    _state["learner"] = learner.Learner(
        state,
        os.path.abspath(path),
        _state["ahead"],
        _state["shown"],
        _state["hidden"],
        _state["places"],
    )
    _state["learner"].begin()


def _run(path: str, arguments: "list[str]") -> None:
    """Be `python path arguments…`: its argv, its sys.path, its `__main__`, and its words about
    an error.
    """
    # Python makes this name absolute since 3.9, and removes no dots.
    file = path
    if sys.version_info >= (3, 9) and not os.path.isabs(path):
        file = os.path.join(os.getcwd(), path)
    sys.argv[:] = [path, *arguments]
    if hasattr(sys, "orig_argv"):  # Flask's reloader starts this anew
        sys.orig_argv[:] = [sys.orig_argv[0], path, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    main = _main_module(file)
    sys.modules["__main__"] = main
    try:
        with io.open_code(file) as program:
            source = program.read()
        code = compile(source, file, "exec", dont_inherit=True)
        del source
        _follow_imports(path)
        exec(code, main.__dict__)  # noqa: S102 - running the tool is the purpose
    except SystemExit:
        raise
    except BaseException as error:
        _report(error)


def _main_module(file: str) -> "Any":
    """Return a fresh `__main__` with the names that this version of Python gives one, and no
    others.
    """
    own = globals()
    main = type(sys)("__main__")
    names: dict[str, Any] = {
        name: own[name] for name in own if name[:2] == "__" and name[-2:] == "__"
    }
    names.update(__doc__=None, __file__=file, __loader__=type(own["__loader__"])("__main__", file))
    if "__annotations__" in names:
        names["__annotations__"] = {}
    main.__dict__.clear()
    main.__dict__.update(names)
    return main


def _report(error: BaseException) -> None:
    """Report an exception that the program did not catch as Python itself does, without this
    file's frames, and end.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    sys.excepthook(type(error), error, trace)
    if isinstance(error, KeyboardInterrupt):
        # Python ends itself by SIGINT then, after its exit functions: it has to see the exception
        # for that.
        sys.excepthook = lambda *_: None
        raise error
    raise SystemExit(1)


def _serve(number: int, words: "list[str]") -> None:
    """Be a zygote; return in what it forks, with the command line of that.

    `words`: of what is to be forked.
    """
    zygote = _load("px_zygote", os.pardir, "zygote", "main.py")
    _state["modules"] = state, _ = _load_learner()
    ahead = _load("px_import_ahead", os.pardir, "zygote", "import_ahead.py")
    names = [name for name in os.environ.pop("PX_PRELOAD", "").split(",") if name]
    imports = ahead.Imports(state, names, number)
    parked = zygote.serve(number, lambda: _import_as_the_tool(words, imports))
    # It is read around each import.
    argv = parked.take(touch=state.program_state)
    sys.argv = argv[1:]
    _state.update(ahead=names, shown=imports.shown, hidden=imports.hidden, places=imports.places)
    if _has_own(os.path.dirname(os.path.realpath(sys.argv[_PROGRAM]))):
        os.execve(argv[0], argv, os.environ)  # noqa: S606  a module of its own would not be found: start afresh


def _import_as_the_tool(words: "list[str]", imports: "Any") -> "dict[str, Any]":
    """Import with the arguments, the path and a `__main__` as the tool has them; return the
    report for `serve`.
    """
    arguments = sys.argv[:]
    own_main = sys.modules["__main__"]
    program = words[_PROGRAM]
    folder = os.path.dirname(os.path.realpath(program))
    sys.argv[:] = words[_PROGRAM:]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = [sys.orig_argv[0], *words[_PROGRAM:]]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)
    sys.modules["__main__"] = _main_module(os.path.abspath(program))
    try:
        return imports.run(folder)  # type: ignore[no-any-return]
    finally:
        sys.argv[:] = arguments
        sys.modules["__main__"] = own_main
        if not getattr(sys.flags, "safe_path", False):
            sys.path.remove(folder)


def _has_own(folder: str) -> bool:
    """Say whether a tool brings a module that is imported already, in its folder or in one below
    that is no package.
    """
    places = _state["places"]
    for place in (
        folder,
        *(each.path for each in os.scandir(folder) if each.is_dir() and each.name[0] not in "._"),
    ):
        entries = os.listdir(place) if os.access(place, os.R_OK) else []
        if place == folder or "__init__.py" not in entries:
            names = {
                each.partition(".")[0]
                for each in entries
                if "." not in each or each.endswith((".py", ".so"))
            }
            # Not by a set of all that is imported: to touch those names would copy their pages of
            # memory.
            if any(
                name in sys.modules or name in places
                for name in names - {"__main__", "__pycache__"}
            ):
                return True
    return False


if __name__ == "__main__":
    if sys.argv[-2] == "--px-zygote":
        _serve(int(sys.argv[-1]), sys.argv[:-2])
    os.set_inheritable(int(sys.argv[2]), False)
    _substitute(int(sys.argv[2]), int(sys.argv[4]))
    _run(sys.argv[_PROGRAM], sys.argv[_PROGRAM + 1 :])
