"""How a tool is started: listening socket, environment, process, readiness; or the reason why not.

The three ways to listen (CONTRACT §5):

- *handover*: descriptor 3 is the tool's listening socket, and the shim puts it in the place of the tool's own bind;
- *fd*: descriptor 3 is the same socket, announced as LISTEN_FDS=1 (sd_listen_fds(3));
- *port*: the tool binds by itself. Its listener is checked once; whoever starts it tries another port once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import PxError, StartFailedError
from supervisord_py.process.instance import End, Instance
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.model import ChildSpec, GrantedFd, Reason, ResourceLimit
from supervisord_py.process.zygote_pool import Recipe
from supervisord_py.tools import failures
from supervisord_py.tools.environment import argv_for, build_environment, find_interpreter
from supervisord_py.tools.manifest import ListenMode, ToolSpec
from supervisord_py.tools.readiness import ExitedEarly, NotifySocket, NotInTime, PortTaken, ReadinessWatch, notify_path
from supervisord_py.tools.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from supervisord_py.process.instance import Note
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import Child
    from supervisord_py.process.supervisor import Supervisor
    from supervisord_py.process.zygote_pool import ZygotePool
    from supervisord_py.tools.catalog import Catalog
    from supervisord_py.tools.config import ToolsConfig
    from supervisord_py.tools.proxy import Run

SHIM = Path(__file__).with_name("shim.py")
HANDED_FD = 3
_IN_USE = re.compile(r"(?i)address already in use|EADDRINUSE")
_CPU_SLACK_SECONDS = 2
_LET_GO_IDLE = frozenset({Reason.EVICTED_LRU, Reason.EVICTED_TTL, Reason.REPLACED})
"""Ends of instances that nobody used: what waits in the backlog came since, and is for the next one."""


class ToolInstance(Instance):
    """One instance of a tool.

    Attributes:
        spec: The declaration that it was started from, or the present one when it was adopted.
        serial: Its number in the pool; 0 for one that is only tried out.
        runs: Those that it works on.
        cold_start_ms: From the decision to ready.
        extra_env: Beyond what the declaration gives.
    """

    def __init__(self, key: str, spec: ToolSpec, serial: int = 0, extra_env: Mapping[str, str] | None = None) -> None:
        super().__init__(key, spec.unit)
        self.spec = spec
        self.digest = spec.digest
        self.stop_seconds = spec.stop_timeout_seconds
        self.cpu_limit_seconds = spec.limits.cpu_seconds
        self.serial = serial
        self.extra_env = extra_env or {}
        self.cold_start_ms = 0
        self.runs: set[Run] = set()
        self.notify: NotifySocket | None = None
        self.upstream: Upstream | None = None
        self.fork: Callable[[ChildSpec], Awaitable[Child | None]] | None = None  # has a zygote fork it, if there is one
        self.is_asked = False  # we ask it for its schema: that connection may still wait in the backlog when it ends

    def note(self) -> str:
        """Return the note for the keeper; one that is not in the pool is never adopted."""
        return super().note() if self.serial else ""

    def own_note(self) -> dict[str, Any]:
        """Return where and how it listens."""
        facts = {"port": self.port, "listen": self.spec.listen.value, "cold_start_ms": self.cold_start_ms}
        return {**facts, "start_method": self.start_method}

    def facts(self) -> dict[str, Any]:
        return {"start_method": self.start_method}

    async def spawn(self, placement: KeeperClient, spec: ChildSpec) -> Child:
        """Have its process: forked by a zygote, where there is one."""
        child = await self.fork(spec) if self.fork is not None else None
        if child is None:
            return await super().spawn(placement, spec)
        self.start_method = "zygote"
        return child


class _UndeclaredInstance(ToolInstance):
    """What is left of a tool that is gone: it is only stopped, and nothing runs on it."""

    def __init__(self, key: str, unit: str) -> None:
        Instance.__init__(self, key, unit)
        self.serial, self.cold_start_ms = 0, 0
        self.runs, self.notify, self.upstream, self.is_asked = set(), None, None, False


class ToolDriver:
    """Drives instances of tools. `on_gone` is told of each that has ended."""

    kind = "tool"

    def __init__(
        self,
        supervisor: Supervisor,
        catalog: Catalog,
        config: ToolsConfig,
        environ: Mapping[str, str],
        on_gone: Callable[[ToolInstance], None],
        stored_prefix: str = "listen:tool:",
        zygotes: ZygotePool | None = None,
    ) -> None:
        self.config = config
        self.listeners = Listeners(supervisor.placement, config.listen_backlog, stored_prefix)
        self._supervisor = supervisor
        self._placement = supervisor.placement
        self._catalog = catalog
        self._environ = environ
        self._on_gone = on_gone
        self._zygotes = zygotes
        self.on_imports: Callable[[str, Sequence[str]], None] = lambda _tool, _imports: (
            None
        )  # told what a tool imported
        self.recipes: dict[str, Recipe] = {}  # by tool: what its last instance was, or could have been, forked from

    # -- up ----------------------------------------------------------------------------------------------------

    async def prepare(self, instance: ToolInstance) -> ChildSpec:
        """Return what is to be spawned; opens the listening and the notification socket.

        Raises StartFailedError: A socket, the interpreter, the entrypoint or a required secret is missing.
        """
        spec = instance.spec
        if spec.listen is ListenMode.PORT:
            instance.port = free_port(spec.unit)
        else:
            instance.port = (await self.listeners.get(spec.name)).getsockname()[1]
        try:
            instance.notify = NotifySocket.create(self.config.run_dir, instance.key)
        except OSError as error:
            raise _no_socket(spec.unit, error, "notify") from error
        await self._placement.put_fd(_notify_name(instance.key), instance.notify.fileno())
        child = await asyncio.to_thread(self._child_spec, instance, instance.notify.path)
        recipe = recipe_of(spec, child)
        if self._zygotes is not None and recipe is not None:
            instance.fork = partial(self._zygotes.fork, recipe, instance.key)
            instance.notify.on_modules = partial(self._learn, spec, recipe)
        return child

    async def expect(self, spec: ToolSpec, imports: Sequence[str]) -> None:
        """Have a zygote for the next start of a tool; `imports`: what it imported before. Raises StartFailedError."""
        child = await asyncio.to_thread(self._child_spec, ToolInstance("", spec), Path())
        if (recipe := recipe_of(spec, child)) is not None:
            self._learn(spec, recipe, imports)

    def _learn(self, spec: ToolSpec, recipe: Recipe, imports: Sequence[str]) -> None:
        """Have a zygote that imports what a tool has, or what its declaration says."""
        assert self._zygotes is not None
        self.recipes[spec.name] = recipe
        self._zygotes.want(recipe, spec.preload if isinstance(spec.preload, tuple) and spec.preload else imports)
        self.on_imports(spec.name, imports)

    def _child_spec(self, instance: ToolInstance, notify: Path) -> ChildSpec:
        spec = instance.spec
        interpreter = None if spec.command is not None else find_interpreter(spec, self.config.defaults.python)
        argv = argv_for(spec, instance.port, interpreter)
        extra = {**instance.extra_env, "NOTIFY_SOCKET": str(notify)}
        grants: tuple[GrantedFd, ...] = ()
        if spec.listen is not ListenMode.PORT:
            grants = (GrantedFd(HANDED_FD, self.listeners.stored_name(spec.name)),)
        if spec.listen is ListenMode.FD:
            extra |= {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"}
        if spec.listen is ListenMode.HANDOVER and interpreter is not None:
            shim = (str(SHIM), "--px-fd", str(HANDED_FD), "--px-port", str(instance.port), "--")
            argv = (argv[0], *shim, *argv[1:])
        allow, artefacts = self.config.defaults.env_allow, self.config.data_dir
        env = build_environment(spec, self._environ, allow=allow, artefacts_root=artefacts, extra=extra)
        return ChildSpec(
            unit=spec.unit,
            argv=argv,
            cwd=str(spec.folder),
            env=dict(env),
            limits=resource_limits(spec),
            grants=grants,
            listen_pid=spec.listen is ListenMode.FD,
            max_rss_bytes=spec.max_rss_bytes,
        )

    async def ready(self, instance: ToolInstance) -> None:
        """Wait until it may take work.

        Raises StartFailedError, ReadinessTimeoutError, ResourceLimitError: why it does not, with evidence.
        """
        spec, supervisor = instance.spec, self._supervisor
        assert instance.pid is not None and instance.notify is not None
        watch = ReadinessWatch(
            instance.pid,
            instance.port,
            owns_port=spec.listen is ListenMode.PORT,
            notify=instance.notify,
            exited=supervisor.wait(instance),
            run_task=supervisor.task,
        )
        try:
            await watch.wait(max(0.0, spec.start_timeout_seconds - (time.time() - instance.started_at)))
        except ExitedEarly as seen:
            instance.record = seen.record
            words = await supervisor.last_words(instance)
            if spec.listen is ListenMode.PORT and _IN_USE.search(words):
                raise failures.port_taken(spec, instance.port) from None
            reason = outcome(seen.record, instance.wanted, ready=False, cpu_limit_seconds=spec.limits.cpu_seconds)
            raise failures.early_exit(spec, End(reason, seen.record, words)) from None
        except NotInTime as seen:
            instance.wanted = instance.wanted or Reason.READINESS_TIMEOUT
            raise failures.not_ready(spec, seen, instance.port, await supervisor.tail(instance)) from None
        except PortTaken:
            raise failures.port_taken(spec, instance.port) from None
        instance.upstream = Upstream(instance.port)
        instance.cold_start_ms = max(1, round((asyncio.get_running_loop().time() - instance.asked_at) * 1000))

    # -- adoption ----------------------------------------------------------------------------------------------

    def revive(self, child: Child, note: Note | None) -> ToolInstance:
        """Return the instance of a held child, also of one whose tool is not declared any more."""
        try:
            instance = ToolInstance(child.key, self._catalog.get(child.unit.partition(":")[2]))
        except PxError:
            instance = _UndeclaredInstance(child.key, child.unit)
        if note is not None:
            instance.digest = note.digest
            instance.port = int(note.own.get("port") or 0)
            instance.cold_start_ms = int(note.own.get("cold_start_ms") or 0)
            instance.start_method = str(note.own.get("start_method") or instance.start_method)
        return instance

    async def adopt(self, instance: ToolInstance, note: Note) -> bool:
        """Say whether the tool is still declared and its socket still the one that the instance listens on."""
        if isinstance(instance, _UndeclaredInstance):
            return False
        if note.own.get("listen") != ListenMode.PORT:
            listener = await self.listeners.get(instance.name)
            if listener.getsockname()[1] != instance.port:
                return False
        fd = await self._placement.take_fd(_notify_name(instance.key))
        if fd is not None:
            os.set_inheritable(fd, False)
            instance.notify = NotifySocket(socket.socket(fileno=fd), notify_path(self.config.run_dir, instance.key))
        elif instance.ready_at is None:
            instance.notify = NotifySocket.create(self.config.run_dir, instance.key)
        if instance.ready_at is not None:
            instance.upstream = Upstream(instance.port)
        return True

    # -- down --------------------------------------------------------------------------------------------------

    def interrupt(self, instance: ToolInstance) -> None:
        """Tell the runs on it how it ended, or why it is about to."""
        for run in tuple(instance.runs):
            if instance.end is not None:
                run.interrupt(failures.died_during_run(instance.spec, instance.end, instance.error))
            elif instance.wanted is not None:
                run.interrupt(failures.stopped_during_run(instance.spec, instance.wanted))

    async def release(self, instance: ToolInstance) -> None:
        """Give its sockets back."""
        await self.let_go(instance)
        notify_path(self.config.run_dir, instance.key).unlink(missing_ok=True)
        if (
            instance.wanted not in _LET_GO_IDLE or instance.is_asked
        ):  # else what waits there would start it again at once
            self.listeners.refuse_waiting(instance.name)
        self.listeners.listen_again(instance.name)
        await self._placement.drop_fd(_notify_name(instance.key))

    def gone(self, instance: ToolInstance) -> None:
        """Pass it on."""
        self._on_gone(instance)

    async def let_go(self, instance: ToolInstance) -> None:
        """Close our ends of what an instance holds; it lives on for the next control plane."""
        if instance.notify is not None:
            instance.notify.close()
        if instance.upstream is not None:
            await instance.upstream.close()


def recipe_of(spec: ToolSpec, child: ChildSpec) -> Recipe | None:
    """Return what a zygote for an instance is started from; None where nothing may be forked.

    Any package may look at any variable while it is imported, so that all but those of one instance are part of it.
    """
    if child.argv[1:2] != (str(SHIM),) or spec.preload is False or "PYTHONHASHSEED" in child.env:
        return None
    env = (each for each in child.env.items() if each[0] != "NOTIFY_SOCKET")
    return Recipe((child.argv[0], str(SHIM), "--px-zygote"), tuple(sorted(env)))


def resource_limits(spec: ToolSpec) -> tuple[ResourceLimit, ...]:
    """Return the rlimits of a tool; a core dump is never written."""
    asked = (
        ("core", 0, 0),
        ("nofile", spec.limits.open_files, 0),
        ("nproc", spec.limits.processes, 0),
        ("cpu", spec.limits.cpu_seconds, _CPU_SLACK_SECONDS),  # SIGXCPU first, SIGKILL to who ignores it: getrlimit(2)
        ("as", spec.max_address_space_bytes, 0),
    )
    return tuple(ResourceLimit(name, value, value + slack) for name, value, slack in asked if value is not None)


def _notify_name(key: str) -> str:
    return f"notify:{key}"


def free_port(unit: str) -> int:
    """Return a port on 127.0.0.1 that is free at this moment; whoever listens there later is looked at.

    Raises StartFailedError: there is no socket to be had.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise _no_socket(unit, error, "listen") from error


def _no_socket(unit: str, error: OSError, stage: str) -> StartFailedError:
    return StartFailedError(
        f"No {'notification' if stage == 'notify' else 'listening'} socket could be made for {unit}: {error.strerror}.",
        hint="Raise the limit on open files (`ulimit -n`) and see `pxctl doctor`.",
        unit=unit,
        reason=Reason.SPAWN_FAILED.value,
        stage=stage,
        errno=error.errno,
    )


class Listeners:
    """One listening socket on 127.0.0.1 for each tool that was ever started or is adopted.

    The socket outlives every instance and the control plane too (the keeper has a duplicate), so the port is stable,
    nobody else can take it, and requests wait in its backlog instead of being refused. Only an instance accepts.
    """

    def __init__(self, placement: KeeperClient, backlog: int, prefix: str) -> None:
        self._placement = placement
        self._backlog = backlog
        self._prefix = prefix
        self._held: dict[str, socket.socket] = {}

    def stored_name(self, tool: str) -> str:
        """Return the name under which the keeper holds the listening socket of a tool."""
        return f"{self._prefix}{tool}"

    def port_of(self, tool: str) -> int | None:
        return self._held[tool].getsockname()[1] if tool in self._held else None

    def tools(self) -> tuple[str, ...]:
        """Return the names of the tools that have one."""
        return tuple(self._held)

    async def get(self, tool: str) -> socket.socket:
        """Return the tool's listening socket: the one we have, else the keeper's, else a new one.

        Raises StartFailedError: no socket is to be had (stage "listen", errno); KeeperLostError: the keeper is
        gone.
        """
        await self.recall(tool)
        if tool not in self._held:
            self._keep(tool, await self._make(tool))
        return self._held[tool]

    async def recall(self, tool: str) -> None:
        """Take the tool's socket back if the keeper has one."""
        fd = None if tool in self._held else await self._placement.take_fd(self.stored_name(tool))
        if fd is not None:
            os.set_inheritable(fd, False)
            listening = socket.socket(fileno=fd)
            if listening.family == socket.AF_INET and listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                self._keep(tool, listening)
            else:
                listening.close()

    def _keep(self, tool: str, listening: socket.socket) -> None:
        if self._held.setdefault(tool, listening) is not listening:
            listening.close()  # somebody else was faster while the keeper answered

    def watch(self, tool: str, on_connection: Callable[[], None]) -> None:
        """Call back when somebody connects while no instance is there to accept."""
        if tool in self._held:
            asyncio.get_running_loop().add_reader(self._held[tool].fileno(), on_connection)

    def unwatch(self, tool: str) -> None:
        """Leave the connections to an instance."""
        if tool in self._held:
            asyncio.get_running_loop().remove_reader(self._held[tool].fileno())

    async def _make(self, tool: str) -> socket.socket:
        try:
            listening = _listening_socket(self._backlog)
        except OSError as error:
            raise _no_socket(f"tool:{tool}", error, "listen") from error
        try:
            await self._placement.put_fd(self.stored_name(tool), listening.fileno())
        except BaseException:
            listening.close()
            raise
        return listening

    def listen_again(self, tool: str) -> None:
        """Undo what an instance did to the shared socket: a smaller backlog, or a shutdown(2) of it."""
        if tool in self._held:
            self._held[tool].listen(self._backlog)

    def refuse_waiting(self, tool: str) -> None:
        """Refuse what waits in the backlog: the kernel resets it at a shutdown(2). Then `listen_again`."""
        if tool in self._held:
            with contextlib.suppress(OSError):  # not on macOS: there they wait for the next start
                self._held[tool].shutdown(socket.SHUT_RDWR)

    async def drop(self, tool: str) -> None:
        """Forget the socket: the tool has disappeared."""
        if tool in self._held:
            self.unwatch(tool)
            self._held.pop(tool).close()
        await self._placement.drop_fd(self.stored_name(tool))

    def close(self) -> None:
        """Close our duplicates; the keeper's stay."""
        for tool in self._held:
            self.unwatch(tool)
            self._held[tool].close()
        self._held.clear()


def _listening_socket(backlog: int) -> socket.socket:
    """Return a listening socket on a free port, so bound that it keeps that port even through a shutdown(2).

    The kernel takes a port that it chose itself back at a shutdown, one that was asked for by number it does not
    (SOCK_BINDPORT_LOCK). So the number that it chose for a first socket is asked for by a second one.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as chosen:
        chosen.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        chosen.bind(("127.0.0.1", 0))
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit it (Linux); a server that writes head and body apart stalls for 40 ms otherwise.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listening.bind(("127.0.0.1", chosen.getsockname()[1] if sys.platform == "linux" else 0))
            listening.listen(backlog)
        except OSError:
            listening.close()
            raise
    return listening
