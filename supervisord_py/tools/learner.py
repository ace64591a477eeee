"""Learns what a tool imports, so that its next start can be forked from a process that has imported
it already.

Runs in the tool's own process, with the standard library alone (Python 3.8 or later), and leaves
nothing that the tool could see: no hook in `sys`, no module in `sys.modules`, no line in a
traceback.

What is learnt is a sequence: the installed modules in the order in which the tool's own code asks
for them. The process that imports them ahead (a zygote) begins as the tool does, in the tool's
folder, with its arguments and environment, and imports them in the same order. So it is at each
import as the tool was, provided that the tool's own code has changed nothing in between. This is
why the state of the process is compared from the end of one import to the beginning of the next. At
the first difference the sequence ends: what comes later was imported after a change that the zygote
does not make.
"""

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_WRAPPER = """
def _find_and_load(name, import_):
    entry = enter(name)
    module = None
    try:
        module = real(name, import_)
        return module
    finally:
        leave(entry, module)
"""
SERVES = "px.serves"
"""Stands among the steps where the tool begins to serve: what comes later is for its requests."""
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
"""The file that Python removes from tracebacks, and that warnings skip when they look for a
caller.
"""
_WRAPPER_CODE = compile(_WRAPPER, _IMPORT_SYSTEM, "exec")
_MESSAGE_BYTES = 100_000
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_LIBRARY = os.path.dirname(os.__file__) + os.sep


def place_of(module: Any) -> str:
    """Return the file or folder that a module was loaded from; "" for one that no import has
    made.
    """
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    if not origin:
        folders = list(getattr(spec, "submodule_search_locations", None) or ())
        origin = folders[0] + os.sep if folders else ""
    return str(origin)


def is_installed(module: Any) -> bool:
    """Tell whether a module belongs to Python or to an installed package, not to the tool."""
    place = place_of(module)
    if place in ("built-in", "frozen") or place.startswith(_LIBRARY):
        return True
    return any(part in place for part in _INSTALLED)


class _Import:
    """One import that is under way.

    `is_inside`: an installed module asked for it, not the tool's own code.
    """

    def __init__(self, name: str, modules: int, *, is_inside: bool) -> None:
        self.name = name
        self.modules = modules  # how many there were when it began
        self.is_inside = is_inside
        self.runs_own_code = False  # an installed module imported one of the tool's own
        self.is_of_installed: bool | None = None  # once it is known


class Learner:
    """Follows the imports of a tool. `main`: its program; `state`: the module
    zygote/process_state.py.

    `ahead`: the steps that were imported ahead, if any; `shown`: the first of them, whose modules
    are in `sys.modules`. `hidden`: the modules of the others, as zygote/import_ahead.py left them:
    by step, in order. Those of a step are put into `sys.modules` when one of them is asked for,
    after those of the steps before. `places`: the first step that has a hidden module, by its name.
    """

    def __init__(
        self,
        state: ModuleType,
        main: str,
        ahead: list[str],
        shown: list[str],
        hidden: list[dict[str, Any]],
        places: dict[str, int],
    ) -> None:
        self.steps = list(shown)
        self._ahead = ahead
        self._hidden = hidden
        self._places = places
        self._shown = 0  # steps whose modules are in `sys.modules`
        self.later: list[str] = []  # what was imported after the change
        self.change = ""  # in words, and before which import
        self._state = state
        self._own_files = {main: _signature(main)}
        self._stacks: dict[int, list[_Import]] = {}
        self._before: dict[str, Any] = {}
        self._modules: list[Any] = []
        self._counted = (-1, -1)  # imports and modules at the last message

    def begin(self) -> None:
        """Follow each import from now on; returns without doing so where Python has no such
        place.
        """
        bootstrap: Any = sys.modules.get("_frozen_importlib")
        real: Callable[..., Any] | None = getattr(bootstrap, "_find_and_load", None)
        if real is None:
            self._show(len(self._hidden))
            return
        names: dict[str, Any] = {
            "real": real,
            "enter": self._enter,
            "leave": self._leave,
            "__builtins__": {},
        }
        exec(_WRAPPER_CODE, names)  # noqa: S102  for the name of its file
        self._look()
        bootstrap._find_and_load = names["_find_and_load"]

    def message(self) -> bytes:
        """Return what was learnt, a line for each kind, if there is more than in the message
        before; else b"".
        """
        if SERVES not in self.steps and not self.change:
            self.steps.append(SERVES)
        counted = (len(self.steps) + len(self.later), len(sys.modules))
        if counted == self._counted:
            return b""
        self._counted = counted
        if self._is_as_before():
            return b""
        lines = [
            "X_PX_STEPS=" + ",".join(self.steps),
            "X_PX_LATER=" + ",".join(self.later),
            "X_PX_CHANGE=" + self.change,
            *("X_PX_OWN=" + signature + " " + path for path, signature in self._own_files.items()),
        ]
        text = "\n".join(lines).encode(errors="surrogateescape") + b"\nX_PX_MODULES="
        # A fork shares its memory with the zygote until it touches it.
        names = ",".join([] if self._ahead else self._loaded()).encode(errors="surrogateescape")
        return (text + names)[:_MESSAGE_BYTES] if len(text) < _MESSAGE_BYTES else b""

    def _is_as_before(self) -> bool:
        """Tell whether all that was asked for so far was imported ahead, in this order: then
        there is no news.
        """
        if self.change or not self._ahead:
            return False
        # which is imported first, whenever it is asked for
        steps = [name for name in self.steps if name != "random"]
        ahead = [name for name in self._ahead if name != "random"]
        return steps == ahead[: len(steps)]

    def _loaded(self) -> list[str]:
        """Return the names of all modules that were loaded from a file of Python or of an
        installed package.
        """
        return [name for name, module in list(sys.modules.items()) if _is_file_of_installed(module)]

    # -- around each import ------------------------------------------------------------------------

    def _enter(self, name: str) -> _Import | None:
        # Nothing that goes wrong here may reach the tool: then it is followed no further.
        try:
            stack = self._stacks.setdefault(_thread.get_ident(), [])
            entry = _Import(
                name, len(sys.modules), is_inside=bool(stack) and self._is_inside(stack[-1])
            )
            if not entry.is_inside:
                self._compare(name)
            self._show(self._places.get(name, -1) + 1)
            stack.append(entry)
        except Exception:
            self._end_at(name, "it cannot be followed")
            return None
        return entry

    def _leave(self, entry: _Import | None, module: Any) -> None:
        if entry is None:
            return
        try:
            self._finish(entry, module)
        except Exception:
            self._end_at(entry.name, "it cannot be followed")

    def _show(self, steps: int) -> None:
        """Have the modules of so many steps in `sys.modules`, as if they were imported now."""
        for step in self._hidden[self._shown : steps]:
            sys.modules.update(step)
            for name in [name for name, module in step.items() if module is None]:
                del sys.modules[name]
        self._shown = max(self._shown, steps)

    def _is_inside(self, parent: _Import) -> bool:
        if parent.is_inside or parent.is_of_installed:
            return True
        module = sys.modules.get(parent.name)
        if module is None:
            return False  # its package is being imported first, it does not run yet
        parent.is_of_installed = is_installed(module)
        return parent.is_of_installed

    def _finish(self, entry: _Import, module: Any) -> None:
        ident = _thread.get_ident()
        stack = self._stacks[ident]
        stack.remove(entry)
        if not stack:
            del self._stacks[ident]
        loaded = sys.modules.get(entry.name, module)
        is_own = loaded is not None and not is_installed(loaded)
        if is_own:
            path = place_of(loaded)
            if os.path.isabs(path) and "\n" not in path:
                self._own_files.setdefault(path, _signature(path))
            for outer in stack:
                outer.runs_own_code = True
        if entry.is_inside:
            return
        if module is None:
            if len(sys.modules) != entry.modules:
                self._end_at(entry.name, "its import failed halfway")
        elif not is_own:
            if entry.runs_own_code:
                self._end_at(entry.name, "it imports a module of the tool")
            (self.later if self.change else self.steps).append(entry.name)
            self._look()

    def _look(self) -> None:
        """Remember the state of the process, to be compared when the tool's own code has run."""
        if not self.change:
            self._before = self._state.program_state()
            # A fork shares its memory with the zygote until it touches it; a plain start has
            # looked.
            self._modules = [] if self._ahead else list(sys.modules.items())

    def _compare(self, name: str) -> None:
        if self.change:
            return
        now = self._state.program_state()
        # What a module adds when it is imported (logging's root, say) was not there before.
        before = {key: value for key, value in self._before.items() if key in now}
        words = self._state.changes(before, {key: now[key] for key in before})
        if self._is_replaced():
            words.append("sys.modules")
        if words:
            self._end_at(name, "the tool changes " + " and ".join(words) + " before it")

    def _is_replaced(self) -> bool:
        """Tell whether the tool's own code has put something else in a module's place, or taken
        a module out.
        """
        modules = sys.modules
        if self._ahead:
            return False
        for name, module in self._modules:
            if modules.get(name) is not module:
                return True
        if len(modules) == len(self._modules):
            return False
        known = {name for name, _ in self._modules}
        for name, module in list(modules.items()):
            spec = getattr(module, "__spec__", None)
            if name not in known and getattr(spec, "name", None) != name:
                return True
        return False

    def _end_at(self, name: str, why: str) -> None:
        if not self.change:
            self.change = f"{name}: {why}"
            self._before, self._modules = {}, []


def _is_file_of_installed(module: Any) -> bool:
    place = place_of(module)
    return place.startswith(_LIBRARY) or any(part in place for part in _INSTALLED)


def _signature(path: str) -> str:
    """Return what differs once a file is another, or has other content; "-" where there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return "-"
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
