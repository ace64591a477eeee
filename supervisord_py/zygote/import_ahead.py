"""Imports what a tool will, step by step, and stops where a plain start could tell the difference.

Runs in a zygote (zygote/main.py), in the interpreter of the tool, with the standard library alone
(Python 3.8 or later). The process is as the tool is at its start: folder, arguments, environment,
limits. The steps come in the order in which the tool's own code asked for them.

A step must leave the process itself as it was: what the kernel holds for it, what a fork does not
inherit, the global random generators, and its output. It must not draw a random value or ask for
the process id, which all forks would then have in common. The first step that does not fit ends the
sequence: this process reports the number of steps before it, and why, and another process is made
of these alone. The tool then does that import itself, after the fork, and all that follow, as in a
plain start.

Among the steps stands SERVES where the tool begins to serve. What it imports later, for its
requests, is taken out of `sys.modules` again, and comes back when the tool asks for it
(tools/learner.py). What it imports before stays, up to the first step that puts another module in
the place of one: to put a thousand modules into `sys.modules` in a fork would copy as many pages of
memory, and make the start a third longer.

What an import leaves in the memory of the interpreter (filters of warnings, codecs, handlers of
atexit, ...) may stay: this process forks only the tool that does the same import at the same place.
"""

from __future__ import annotations

import os
import sys
import time
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_PASSED_THROUGH = (
    "os",
    "random",
    "secrets",
    "uuid",
    "tempfile",
    "numpy.random.bit_generator",
    __name__,
)
"""Modules that draw a random value for the module that called them."""
_MADE_ANEW = ("random", "numpy.random.mtrand", "multiprocessing.process")
"""Modules whose random values each fork makes anew (zygote/main.py)."""
_INSIDE_ONLY = ("opentelemetry.context", "scipy.stats._distribution_infrastructure")
"""Modules whose random values never leave the process: keys of a dictionary, examples in
documentation strings.
"""
_HARMLESS = frozenset((*_MADE_ANEW, *_INSIDE_ONLY))
SERVES = "px.serves"
"""The name that stands for no module, but for the point at which the tool begins to serve
(tools/learner.py).
"""
_GENERATORS = ("Generator", "RandomState")


class Imports:
    """The steps of one tool.

    `state`: the module zygote/process_state.py; `owner`: the zygote's socket.
    """

    def __init__(self, state: ModuleType, names: list[str], owner: int) -> None:
        self._state = state
        self._names = names
        self._own_fds = [owner]
        self._calls: list[str] = []  # what the step under way asked the system for, in words
        self._opened: dict[str, None] = {}  # files that were read, in order
        self._is_noting = False
        # generators, and whether their seed was given
        self._seeds: dict[int, tuple[Any, bool]] = {}
        self._wrapped: dict[Any, Any] = {}  # our functions, and those of Python that they stand for
        self.shown: list[str] = []  # the steps whose modules are in `sys.modules` from the start
        self.hidden: list[dict[str, Any]] = []
        """What each step has put into `sys.modules`, or taken out (None); after `run`, those
        that it does not show.
        """
        # by the name of each hidden module, the first step that has it
        self.places: dict[str, int] = {}

    def run(self, folder: str) -> dict[str, Any]:
        """Import all that fits; return the report for `serve`. `folder`: the tool's, whose modules
        are never imported.

        The report: {"imported": number, "refused": why | None, "seconds": {package: number},
        "read": [path], "seeded_by_system": [generator], "modules": {name: module}}; `hidden` then
        has the modules of each step.
        """
        output = self._redirect_output()
        border: int | None = None  # how many steps come before the tool serves
        self._wrap_calls()
        sys.addaudithook(self._hear)
        at_first = dict(sys.modules)
        self._is_noting = True
        seconds: dict[str, float] = {}
        refused = None
        count = 0
        try:
            before = self._read_state()
            for count, name in enumerate(self._names):  # noqa: B007  read after the loop
                if name == SERVES:
                    border = len(self.hidden) if border is None else border
                    continue
                begin, modules = time.perf_counter(), dict(sys.modules)
                refused = self._import(name)
                after = self._settled_state(before)
                new = {
                    key: module
                    for key, module in sys.modules.items()
                    if modules.get(key) is not module
                }
                if refused is None:
                    refused = self._difference(name, before, after, new, folder)
                if refused is not None:
                    break
                before = after
                removed = modules.keys() - sys.modules.keys()
                if border is None and (removed or not modules.keys().isdisjoint(new)):
                    border = len(self.hidden)  # the tool asks for what was there before, until then
                if border is None:
                    self.shown.append(name)
                self.hidden.append({**new, **dict.fromkeys(removed)})
                package = name.partition(".")[0]
                seconds[package] = seconds.get(package, 0.0) + time.perf_counter() - begin
            else:
                count = len(self._names)
        finally:
            self._is_noting = False
            self._unwrap_calls()
            self._restore_output(output)
        imported = dict(sys.modules)
        border = len(self.hidden) if border is None else border
        sys.modules.clear()
        sys.modules.update(at_first)
        for step in self.hidden[:border]:
            sys.modules.update(step)
        del self.hidden[:border]
        for number, step in enumerate(self.hidden):
            for name in step:
                self.places.setdefault(name, number)
        by_system = [reference() for reference, given in self._seeds.values() if not given]
        return {
            "imported": count,
            "refused": refused,
            "seconds": seconds,
            "read": list(self._opened),
            "modules": imported,
            "seeded_by_system": [generator for generator in by_system if generator is not None],
        }

    # -- a step ------------------------------------------------------------------------------------

    def _import(self, name: str) -> str | None:
        self._calls.clear()
        try:
            __import__(name)
        # SystemExit, too: a zygote does not end because a package says so
        except BaseException as error:
            return f"{name}: its import fails with {type(error).__name__}"
        if self._real_random() is not None:
            self._follow_seeds()
        return None

    def _read_state(self) -> dict[str, Any]:
        return {
            **self._state.system_state(self._own_fds),
            **self._state.random_state(),
            **self._output_state(),
        }

    def _settled_state(self, before: dict[str, Any]) -> dict[str, Any]:
        system = self._state.settled_system_state(self._own_fds, before)
        return {**system, **self._state.random_state(), **self._output_state()}

    def _difference(
        self,
        name: str,
        before: dict[str, Any],
        after: dict[str, Any],
        new: dict[str, Any],
        folder: str,
    ) -> str | None:
        """Say why this step cannot be done ahead; None where nothing speaks against it."""
        # a generator that is new was not changed
        both = {key: after[key] for key in before if key in after}
        words = self._state.changes({key: before[key] for key in both}, both)
        if words:
            return f"{name}: its import changes {' and '.join(words)}"
        if self._calls:
            return f"{name}: its import {self._calls[0]}"
        for module_name, module in new.items():
            place = getattr(getattr(module, "__spec__", None), "origin", None) or ""
            if place.startswith(folder + os.sep) and "-packages" + os.sep not in place:
                return f"{name}: the tool has a module of its own, {module_name}"
            if self._holds_generator(module):
                return f"{name}: its import makes a random generator of numpy"
        return None

    def _holds_generator(self, module: Any) -> bool:
        """Tell whether a module has made a generator of numpy, whose seed may have been given or
        not.
        """
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is None or (getattr(module, "__name__", None) or "").startswith("numpy."):
            return False
        kinds = tuple(
            getattr(numpy_random, kind) for kind in (*_GENERATORS, "BitGenerator", "SeedSequence")
        )
        values = list(getattr(module, "__dict__", {}).values())
        classes = [value for value in values if type(value) is type]
        for each in classes:
            values += list(vars(each).values())
        return any(
            issubclass(type(value), kinds) and value is not numpy_random.mtrand._rand
            for value in values
        )

    # -- output ------------------------------------------------------------------------------------

    def _redirect_output(self) -> list[tuple[int, int, int]]:
        """Have output go to memory; return number, its original and the memory for each."""
        places = []
        for number in (1, 2):
            original, memory = os.dup(number), os.memfd_create("px-output")
            os.dup2(memory, number, inheritable=True)
            places.append((number, original, memory))
            self._own_fds += [original, memory]
        return places

    def _output_state(self) -> dict[str, Any]:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                continue  # a package has put something else there
        return {
            "what it has written to stdout or stderr": [
                os.fstat(number).st_size for number in (1, 2)
            ]
        }

    def _restore_output(self, places: list[tuple[int, int, int]]) -> None:
        self._output_state()
        for number, original, memory in places:
            os.dup2(original, number, inheritable=True)
            text = os.pread(memory, 1 << 16, 0)
            if text:
                os.write(number, text)  # it stands in the log of the zygote
            os.close(original)
            os.close(memory)

    # -- what a step asks the system for -----------------------------------------------------------

    def _wrap_calls(self) -> None:
        for name, words in (
            ("urandom", "draws a random value"),
            ("getpid", "asks for the process id"),
        ):
            real = getattr(os, name)
            wrapper = self._wrapper(real, words)
            self._wrapped[wrapper] = real
            setattr(os, name, wrapper)

    def _wrapper(self, real: Callable[..., Any], words: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            caller = _caller()
            if self._is_noting and caller not in _HARMLESS and caller != self._state.__name__:
                self._calls.append(f"{words} (in {caller})")
            return real(*arguments)

        return call

    def _unwrap_calls(self) -> None:
        """Put Python's own functions back, also where a module has taken ours over by `from os
        import urandom`.
        """
        random = self._real_random()
        for wrapper, real in self._wrapped.items():
            if random is not None and wrapper is vars(random.Random).get("seed"):
                random.Random.seed = real
        for module in list(sys.modules.values()):
            values = getattr(module, "__dict__", None)
            if not isinstance(values, dict):
                continue
            for name, value in list(values.items()):
                if callable(value) and type(value) is _Function and value in self._wrapped:
                    values[name] = self._wrapped[value]
        self._wrapped.clear()

    def _hear(self, event: str, arguments: Any) -> None:
        """Note each file that is opened to be read.

        An audit hook cannot be taken away: later it returns at once.
        """
        if not self._is_noting or event != "open":
            return
        path, _, flags = arguments
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        is_read = isinstance(path, str) and not (flags or 0) & (os.O_WRONLY | os.O_RDWR)
        if (
            is_read
            and not path.endswith(".pyc")
            and not path.startswith(("/proc/", "/sys/", "/dev/"))
        ):
            self._opened.setdefault(os.path.abspath(path))

    # -- random generators -------------------------------------------------------------------------

    @staticmethod
    def _real_random() -> Any:
        random = sys.modules.get("random")
        return random if hasattr(random, "Random") else None

    def _follow_seeds(self) -> None:
        """Note of each generator that is made from now on whether its seed was given, or taken
        from the system.
        """
        kind = self._real_random().Random
        real = vars(kind).get("seed")
        if real is None or real in self._wrapped:
            return

        def seed(generator: Any, a: Any = None, version: int = 2) -> None:
            try:
                self._seeds[id(generator)] = (weakref.ref(generator), a is not None)
            except TypeError:
                self._calls.append("makes a random generator that cannot be followed")
            real(generator, a, version)

        self._wrapped[seed] = real
        kind.seed = seed


_Function = type(Imports.run)


def _caller() -> str:
    """Return the module that asked, beyond those that ask for others.

    Native code has no frame, its import has.
    """
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _PASSED_THROUGH:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib."):
        loaded = frame.f_locals.get("spec") or frame.f_locals.get("module")
        name = getattr(loaded, "name", None) or getattr(loaded, "__name__", None)
        if name is not None:
            return str(name)
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")) if frame is not None else "?"
