"""Zygotes: processes that have imported what many starts need, and fork them (zygote/main.py).
Linux only.

Law: nobody waits for a zygote, and no trouble with one reaches a start: it is logged, and the start
goes on by a plain spawn. What a zygote forks is the keeper's child like any other and outlives it.
A zygote is the keeper's child, too, under a unit of its own, `zygote:…`; the next control plane
ends it and makes its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import zlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

import msgspec
import structlog

from supervisord_py.errors import KeeperTimeoutError, PxError, StartFailedError
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.model import Child, ChildSpec, GrantedFd, Reason, ResourceLimit
from supervisord_py.process.supervisor import check_room

# how the units of zygotes begin, and the names under which the keeper has the ends of their sockets
UNITS = "zygote:"
FD = 3  # where its end of the socket is
PRELOAD = "PX_PRELOAD"  # the variable that names the modules to import
# from a start to the making of its zygote: it has done its first work by then, mostly
SETTLE_SECONDS = 0.5
START_SECONDS = 60.0  # for importing everything
IDLE_SECONDS = 600.0  # one that forked nothing for so long is ended
FORKS_MAX = 1000  # after which it is made anew
FAILURES_MAX = 2  # forks of one zygote that fail in a row, after which it is given up
RETRY_SECONDS = 60.0  # after which what went wrong once is tried again
FINDING_SECONDS = 600.0  # the same for what the packages themselves are the reason of
FINDINGS_MAX = 1000
# between two looks at all that it imported, some milliseconds each: many starts at once share one
LOOK_SECONDS = 0.02
MAX_RSS_BYTES = 1 << 30
_log = structlog.get_logger(__name__)
_TROUBLE = (PxError, OSError, TimeoutError, ValueError, KeyError, TypeError, zlib.error)
"""What may go wrong with another process that may say anything."""


class Recipe(msgspec.Struct, frozen=True):
    """What a zygote is started from.

    Equal ones do for each other. `env` may hold secrets: not in repr.
    """

    argv: tuple[str, ...]  # program and arguments, which end in an option for the descriptor
    # sorted: what acts while Python starts and imports; all else comes with the order
    env: tuple[tuple[str, str], ...]
    cwd: str = "/"
    limits: tuple[ResourceLimit, ...] = ()

    def __repr__(self) -> str:
        return f"Recipe({self.argv})"


class Finding(msgspec.Struct, frozen=True):
    """What kept a zygote from being forked: its imports from number `usable` on.

    It holds until `until` (loop time).
    """

    modules: tuple[str, ...]
    usable: int
    why: str
    until: float

    def applies_to(self, modules: tuple[str, ...]) -> bool:
        """Tell whether importing `modules` would come to the same point by the same imports."""
        first = self.usable + 1
        return modules[:first] == self.modules[:first]


class ZygoteView(msgspec.Struct, frozen=True):
    interpreter: str
    pid: int | None
    ready: bool
    refused: str | None  # why nothing is forked from it


class Zygote:
    """One process, which imports `modules`, by name in their order; `env`: beyond that of its
    recipe.
    """

    def __init__(
        self,
        placement: KeeperClient,
        units: str,
        recipe: Recipe,
        modules: tuple[str, ...],
        env: Mapping[str, str],
    ) -> None:
        self.recipe = recipe
        self.modules = modules
        self.env = env
        self.key = placement.new_key()
        self.pid: int | None = None
        self.made_from: list[str] | None = None  # paths, once it is ready
        self.stamp = 0  # of what was there then
        self.import_seconds: dict[str, float] = {}  # by package
        self.refused: str | None = None  # why it does not fork
        self.usable = 0  # how many of the modules could be imported before that
        self.was_killed = False  # while it imported, by a signal: that says nothing of the modules
        self.forks = 0
        self.failures = 0  # forks that failed since the last one that did not
        self.used_at = asyncio.get_running_loop().time()
        self.life: asyncio.Task[None] | None = None
        identity = repr((recipe.argv, recipe.env, recipe.cwd))
        digest = hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()
        self.unit = f"{units}{digest[:8]}"  # one a recipe: logs do not pile up
        self.stored = f"{UNITS}{self.key}"  # under which name the keeper has our end of the socket
        self._look: asyncio.Future[int] | None = None  # the last one at what is there
        self._looked_at = 0.0  # time of the loop at which it began
        self._placement = placement
        self._env = {**env, **dict(recipe.env), **({PRELOAD: ",".join(modules)} if modules else {})}

    async def start(self) -> None:
        """Start it; returns when it forks, or has refused to.

        Raises PxError, OSError, ValueError, KeyError.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        their_name = f"{self.stored}.own"
        with ours:
            ours.setblocking(False)
            with theirs:
                await self._placement.ask("put_fd", fds=(theirs.fileno(),), name=their_name)
            argv, grants = (*self.recipe.argv, str(FD)), (GrantedFd(FD, their_name),)
            env, limits = self._env, self.recipe.limits
            spec = ChildSpec(
                self.unit, argv, self.recipe.cwd, env, limits, grants, max_rss_bytes=MAX_RSS_BYTES
            )
            try:
                self.pid = (await self._placement.spawn(self.key, spec)).identity.pid
            finally:
                await self._placement.drop_fd(their_name)
            text = await asyncio.get_running_loop().sock_recv(ours, 1 << 20)
            if not text:
                ended = await self._placement.wait(self.key)
                how = (
                    ended.verdict.reason
                    if ended.verdict
                    else f"exit code {ended.code}, signal {ended.signal}"
                )
                self.refused = f"it ended while it imported: {how}"
                self.was_killed = ended.signal is not None
                return
            told: dict[str, Any] = json.loads(zlib.decompress(text))
            self.refused = told.get("refused")
            self.usable = int(told.get("imported", 0))
            if self.refused is None:
                await self._placement.ask("put_fd", fds=(ours.fileno(),), name=self.stored)
                self.made_from, self.stamp = told["made_from"], told["stamp"]
                self.import_seconds = dict(told["seconds"])

    def look(self) -> asyncio.Future[int]:
        """Compute the stamp of its files as they are now, in a thread; some milliseconds.

        Starts that come at the same moment share the result, so await it under `asyncio.shield`.
        Raises RuntimeError: no thread can be started.
        """
        from supervisord_py.zygote.main import stamp  # with what only a zygote needs

        loop = asyncio.get_running_loop()
        assert self.made_from is not None
        if self._look is not None:
            is_recent = loop.time() - self._looked_at <= LOOK_SECONDS
            if is_recent or not self._look.done():
                return self._look
        self._look = loop.run_in_executor(None, stamp, self.made_from)
        self._looked_at = loop.time()
        return self._look


class ZygotePool:
    """The zygotes for units of one kind, at most `most()`: those used last. End it with `close`."""

    def __init__(self, placement: KeeperClient, kind: str, most: Callable[[], int]) -> None:
        self._placement = placement
        self._units = f"{UNITS}{kind}-"
        self._most = most
        self._zygotes: dict[Recipe, Zygote] = {}  # the most recently used last
        self._findings: dict[Recipe, Finding] = {}
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def views(self) -> tuple[ZygoteView, ...]:
        live = [
            ZygoteView(each.recipe.argv[0], each.pid, each.made_from is not None, None)
            for each in self._zygotes.values()
        ]
        refused = [
            ZygoteView(recipe.argv[0], None, False, finding.why)
            for recipe, finding in self._findings.items()
            if recipe not in self._zygotes
        ]
        return (*live, *refused)

    def finding(self, recipe: Recipe | None) -> Finding | None:
        """Return what keeps all or some of the imports of this recipe from being done ahead."""
        return None if recipe is None else self._findings.get(recipe)

    def want(
        self, recipe: Recipe | None, modules: Iterable[str] = (), env: Mapping[str, str] = {}
    ) -> None:
        """Something was started, or will be, that could be forked: have a zygote for the next such
        start.

        `modules`: what it imports, in this order; `env`: for the start, beyond the recipe's, and
        for what is prepared before the first order. Without a recipe nothing can be forked.
        """
        # What is forked comes to the keeper as an orphan does: only where orphans come to it.
        if recipe is None or not self._most() or self._placement.caps.kill_rung == "process_group":
            return
        # An earlier one may live on unseen while the keeper does not answer: the next start asks
        # again.
        if self._placement.is_silent:
            return
        fitting = self._fitting(recipe, tuple(modules))
        zygote = self._zygotes.get(recipe)
        if zygote is not None and zygote.modules != fitting:
            self._end(zygote, Reason.REPLACED)
            zygote = None
        if fitting is None:
            return
        if zygote is None:
            zygote = Zygote(self._placement, self._units, recipe, fitting, env)
            zygote.life = self._run(self._live(zygote))
        self._zygotes.pop(recipe, None)
        self._zygotes[recipe] = zygote
        self.trim()

    def _fitting(self, recipe: Recipe, modules: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return which modules can be imported ahead, as far as that was tried; None where
        nothing can be forked.
        """
        finding = self._findings.get(recipe)
        if finding is None:
            return modules
        if asyncio.get_running_loop().time() >= finding.until or not finding.applies_to(modules):
            del self._findings[recipe]
            return modules
        return modules[: finding.usable] if finding.usable else None

    def _note(self, zygote: Zygote, why: str, usable: int, seconds: float) -> None:
        """Remember why a zygote is of no use.

        `usable`: how many of its modules another one may import.
        """
        until = asyncio.get_running_loop().time() + seconds
        self._findings.pop(zygote.recipe, None)
        self._findings[zygote.recipe] = Finding(zygote.modules, usable, why, until)
        while len(self._findings) > FINDINGS_MAX:
            del self._findings[next(iter(self._findings))]

    def trim(self) -> None:
        zygotes = list(self._zygotes.values())
        for zygote in zygotes[: max(0, len(zygotes) - self._most())]:
            self._end(zygote, Reason.STOPPED)

    def look(self, recipe: Recipe | None) -> None:
        """Begin to compare a zygote's files with what it was made from.

        Call it before other work that comes before `fork`, which needs the result.
        """
        zygote = self.get(recipe)
        if zygote is not None and zygote.made_from is not None:
            with contextlib.suppress(RuntimeError):  # `fork` tries again
                zygote.look()

    async def fork(
        self, recipe: Recipe | None, modules: Collection[str], key: str, spec: ChildSpec
    ) -> Child | None:
        """Return a child forked by the order of a spawn; None where a plain spawn is needed.

        `modules`: all that it imports, in order; a zygote that has imported others, or in another
        order, is not used. No failure of a fork is raised: a plain spawn then succeeds, or says why
        it cannot. Raises KeeperLostError.
        """
        zygote = self.get(recipe)
        if zygote is None or zygote.made_from is None:
            return None
        if tuple(modules)[: len(zygote.modules)] != zygote.modules:
            return None
        try:
            is_changed = await asyncio.shield(zygote.look()) != zygote.stamp
        except (RuntimeError, MemoryError) as error:  # no thread can be started
            _log.warning("zygote_not_compared", unit=spec.unit, why=str(error))
            return None
        if is_changed or zygote.forks >= FORKS_MAX:
            self._end(zygote, Reason.REPLACED)
        # it may have been given up meanwhile as well
        if self._zygotes.get(zygote.recipe) is not zygote:
            return None
        self._zygotes[zygote.recipe] = self._zygotes.pop(zygote.recipe)
        zygote.forks += 1
        zygote.used_at = asyncio.get_running_loop().time()
        try:
            child = await self._placement.spawn(
                key, msgspec.structs.replace(spec, zygote=zygote.key)
            )
        except StartFailedError as error:
            self._fork_failed(zygote, spec.unit, error)
            return None
        zygote.failures = 0
        return child

    def _fork_failed(self, zygote: Zygote, unit: str, error: StartFailedError) -> None:
        """Give up a zygote that does not answer, and one whose forks fail twice in a row."""
        _log.warning("zygote_does_not_fork", unit=unit, zygote=zygote.key, detail=error.detail)
        zygote.failures += 1
        if error.extra.get("stage") == "zygote":
            self._end(zygote, Reason.REPLACED)
        elif zygote.failures >= FAILURES_MAX:
            self._note(zygote, f"its forks fail: {error.detail}", 0, RETRY_SECONDS)
            self._end(zygote, Reason.STOPPED)

    async def end_left_over(self) -> None:
        """End those of an earlier control plane. Raises KeeperLostError."""
        ours = {zygote.key for zygote in self._zygotes.values()}
        for child in await self._placement.list(self._units):
            if child.key not in ours:
                await self._leave_nothing(child.key, Reason.REPLACED)

    def get(self, recipe: Recipe | None) -> Zygote | None:
        """Return the zygote of a recipe; also one that is not ready yet."""
        return None if recipe is None else self._zygotes.get(recipe)

    async def close(self) -> None:
        for zygote in tuple(self._zygotes.values()):
            self._end(zygote, Reason.STOPPED)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _end(self, zygote: Zygote, reason: Reason) -> None:
        if self._zygotes.get(zygote.recipe) is zygote:
            del self._zygotes[zygote.recipe]
        if zygote.life is not None:
            zygote.life.cancel()
        self._run(self._leave_nothing(zygote.key, reason, zygote.life))

    async def _leave_nothing(
        self, key: str, reason: Reason, life: asyncio.Task[None] | None = None
    ) -> None:
        """End a zygote; what it forked goes on."""
        if life is not None:
            await asyncio.wait([life])  # it may be spawning
        try:
            await self._placement.drop_fd(f"{UNITS}{key}")
            report = await self._placement.stop(key, grace_seconds=0.0, reason=reason.value)
            if not report.survivors:
                self._placement.release(key)
        except PxError as error:
            _log.warning("zygote_not_ended", instance=key, detail=error.detail)

    async def _live(self, zygote: Zygote) -> None:
        """Have a zygote until it ends, or forks nothing for long; cancelled when it is given up."""
        loop, where = (
            asyncio.get_running_loop(),
            {"interpreter": zygote.recipe.argv[0], "instance": zygote.key},
        )
        try:
            await asyncio.sleep(SETTLE_SECONDS)
            async with self._one_at_a_time, asyncio.timeout(START_SECONDS):
                check_room(zygote.unit)
                await zygote.start()
            if zygote.refused is not None:
                self._refused(zygote, zygote.refused)
                return
            _log.info("zygote_ready", pid=zygote.pid, **where)
            ended = asyncio.ensure_future(self._placement.wait(zygote.key))
            try:
                while (
                    left := zygote.used_at + IDLE_SECONDS - loop.time()
                ) > 0 and not ended.done():
                    await asyncio.wait([ended], timeout=left)
                if ended.done():
                    _log.warning("zygote_died", **where)
            finally:
                ended.cancel()
        except _TROUBLE as trouble:
            why = str(trouble) or type(trouble).__name__
            _log.warning("zygote_not_made", why=why, **where)
            if isinstance(trouble, TimeoutError):
                why = f"its imports take longer than {START_SECONDS:g} s"
            # which says nothing of this zygote: the next start has one
            if not isinstance(trouble, KeeperTimeoutError):
                self._note(zygote, why, 0, RETRY_SECONDS)
        zygote.life = None
        self._end(zygote, Reason.STOPPED)

    def _refused(self, zygote: Zygote, why: str) -> None:
        """Go on without a zygote that refuses to fork, or with another one that imports what
        came before.
        """
        _log.warning(
            "zygote_refuses", why=why, interpreter=zygote.recipe.argv[0], instance=zygote.key
        )
        self._note(
            zygote, why, zygote.usable, RETRY_SECONDS if zygote.was_killed else FINDING_SECONDS
        )
        zygote.life = None
        self._end(zygote, Reason.STOPPED)
        if zygote.usable:
            self.want(zygote.recipe, zygote.modules, zygote.env)

    def _run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("zygotes_broke", exc_info=error)
