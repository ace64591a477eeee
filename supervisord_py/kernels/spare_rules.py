"""Which kernel may be started ahead, for whom it will do, and when one is made or given up. Pure.

Law: a spare does for a launch only where nothing differs that acts before the order reaches it: the interpreter, its
limits, and every variable that Python, the loader, a C library or an import reads at its start. All else the order
brings. In doubt a launch has no spare, and a fresh start is right.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.process.model import ResourceLimit

AT_START = frozenset(
    """
    HOME USER LOGNAME LANG LANGUAGE TERM TZ TZDIR TMPDIR TEMP TMP LOCPATH NLSPATH IN_SPHINX_RUN NO_COLOR FORCE_COLOR
    JPY_PARENT_PID JPY_INTERRUPT_EVENT SSLKEYLOGFILE
    """.split()  # noqa: SIM905  # a page of names reads better so
)
AT_START_PREFIXES = tuple(
    """
    PYTHON _PYTHON __PYVENV LC_ LD_ DYLD_ MALLOC_ GLIBC_ GCONV_ OPENSSL_ OMP_ GOMP_ KMP_ MKL_ OPENBLAS_ BLIS_ VECLIB_
    NUMEXPR_ CUDA_ NVIDIA_ IPYTHON IPYKERNEL JUPYTER_ TRAITLETS_ TORNADO_ PYZMQ_ ZMQ_ PSUTIL_ ANDROID_ ASAN_ LSAN_ TSAN_
    UBSAN_ COVERAGE_ COV_CORE_
    """.split()  # noqa: SIM905  # same
)
"""What an interpreter, the dynamic loader, the C library and ipykernel's imports were seen to read, and what numerical
libraries read once, when they are loaded."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a spare is started from; equal ones do for each other.

    Attributes:
        interpreter, overlay, limits, max_rss_bytes, memory_grace_seconds: As in `Launch`.
        env: The variables that act at the start, sorted; values are not in repr.
        path: PATH for the time until the order: an interpreter may be a script that looks for another one.
    """

    interpreter: str
    overlay: str | None
    limits: tuple[ResourceLimit, ...]
    max_rss_bytes: int | None
    memory_grace_seconds: float
    env: tuple[tuple[str, str], ...] = field(repr=False)
    path: str = field(default="", compare=False, repr=False)

    def environment(self) -> dict[str, str]:
        """Return the environment that a spare is spawned with, but for the marks."""
        return dict(self.env) | ({"PATH": self.path} if self.path else {})


def recipe_of(launch: Launch) -> Recipe | None:
    """Return what a spare for such launches is started from; None where there can be none."""
    if launch.interpreter is None or not launch.interpreter.startswith("/") or _depends_on_folder(launch.env):
        return None
    return Recipe(
        interpreter=launch.interpreter,
        overlay=launch.overlay,
        limits=launch.limits,
        max_rss_bytes=launch.max_rss_bytes,
        memory_grace_seconds=launch.memory_grace_seconds,
        env=tuple(sorted((name, value) for name, value in launch.env.items() if acts_at_start(name))),
        path=launch.env.get("PATH", ""),
    )


def acts_at_start(name: str) -> bool:
    """Say whether a variable is read before an order can set it."""
    return name in AT_START or name.startswith(AT_START_PREFIXES)


def _depends_on_folder(env: Mapping[str, str]) -> bool:
    """Python makes the entries of PYTHONPATH absolute at its start, in the folder that it is started in."""
    path = env.get("PYTHONPATH", "")
    return bool(path) and not all(entry.startswith("/") for entry in path.split(":"))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds; counts.

    Attributes:
        count: Spares of the whole daemon; the most recently used recipes have them.
        idle_seconds: One that nobody took for so long is given up.
        settle_seconds: So long no cell must have run before one is made.
        patience_seconds: After that it is made beside running cells.
    """

    count: int
    idle_seconds: float
    settle_seconds: float = 0.5
    patience_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Make:
    """Start a spare."""

    serial: int
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Retire:
    """Stop a spare, warm or still being made."""

    serial: int


@dataclass(slots=True)
class _Kept:
    recipe: Recipe
    warm_since: float | None = None


class Shelf:
    """What there is, what is wanted, and what follows. Times are of one clock, which the caller reads."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._kept: dict[int, _Kept] = {}
        self._used: OrderedDict[Recipe, None] = OrderedDict()
        """The most recently used last; at most as many as there may be spares."""
        self._due: dict[Recipe, float] = {}
        self._serial = 0

    def bound(self, bounds: Bounds) -> None:
        """Take new bounds."""
        self._bounds = bounds
        self._trim()

    def used(self, recipe: Recipe, now: float) -> None:
        """A kernel was started from this: the next one is to find a spare."""
        self._used.pop(recipe, None)
        self._used[recipe] = None
        self._due.setdefault(recipe, now)
        self._trim()

    def _trim(self) -> None:
        while len(self._used) > self._bounds.count:
            oldest, _ = self._used.popitem(last=False)
            self._due.pop(oldest, None)

    def warm(self, serial: int, now: float) -> None:
        """A spare waits for its order."""
        if (kept := self._kept.get(serial)) is not None:
            kept.warm_since = now

    @property
    def ready(self) -> frozenset[int]:
        """Spares that wait for their order."""
        return frozenset(serial for serial, kept in self._kept.items() if kept.warm_since is not None)

    def lost(self, serial: int) -> None:
        """It died, could not be made, or is too old; another one follows the next use."""
        self._kept.pop(serial, None)

    def take(self, recipe: Recipe) -> int | None:
        """Give a spare away; None where none does."""
        for serial, kept in self._kept.items():
            if kept.recipe == recipe and kept.warm_since is not None:
                del self._kept[serial]
                return serial
        return None

    def steps(self, now: float, quiet_since: float | None) -> tuple[Make | Retire, ...]:
        """Return what is to be done now; it counts as done.

        Args:
            now: The time.
            quiet_since: When the last cell ended; None while one runs.
        """
        retired = [serial for serial, kept in self._kept.items() if self._is_over(kept, now)]
        for serial in retired:
            recipe = self._kept.pop(serial).recipe
            self._used.pop(recipe, None)
            self._due.pop(recipe, None)
        made = self._next(now, quiet_since)
        return (*map(Retire, retired), *(() if made is None else (made,)))

    def _is_over(self, kept: _Kept, now: float) -> bool:
        is_idle = kept.warm_since is not None and now - kept.warm_since >= self._bounds.idle_seconds
        return is_idle or kept.recipe not in self._used

    def _next(self, now: float, quiet_since: float | None) -> Make | None:
        if any(kept.warm_since is None for kept in self._kept.values()):
            return None  # one at a time
        self._drop_met()
        for recipe in reversed(self._used):
            if recipe in self._due and now >= self._time_for(recipe, quiet_since):
                del self._due[recipe]
                self._serial += 1
                self._kept[self._serial] = _Kept(recipe)
                return Make(self._serial, recipe)
        return None

    def _drop_met(self) -> None:
        """Forget wishes that are fulfilled already."""
        for kept in self._kept.values():
            self._due.pop(kept.recipe, None)

    def _time_for(self, recipe: Recipe, quiet_since: float | None) -> float:
        due = self._due[recipe]
        latest = due + self._bounds.patience_seconds
        return latest if quiet_since is None else min(latest, max(due, quiet_since) + self._bounds.settle_seconds)

    def wake_at(self, quiet_since: float | None) -> float | None:
        """Return when `steps` is to be asked again if nothing happens until then; None is never."""
        warm = [kept.warm_since for kept in self._kept.values() if kept.warm_since is not None]
        times = [since + self._bounds.idle_seconds for since in warm]
        if len(warm) == len(self._kept):
            times += [self._time_for(recipe, quiet_since) for recipe in self._due]
        return min(times, default=None)
