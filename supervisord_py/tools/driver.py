"""How a tool is started: listening socket, environment, process, readiness; or the reason why not.

The three ways to listen (CONTRACT §5):

- *handover*: descriptor 3 is the tool's listening socket, and the shim puts it in the place of the
  tool's own bind;
- *fd*: descriptor 3 is the same socket, announced as LISTEN_FDS=1 (sd_listen_fds(3));
- *port*: the tool binds by itself; its listener is checked once.

It is ready as soon as an answer to `GET /healthz` says so; an early exit ends the wait at once:

- 200: it is ready. A 5xx means not yet, and it is asked again; so does a redirect that leads out of
  the tool. Any other answer is that of a tool without the path (404): it accepts, so it is ready.
- No answer holds nothing up: another question is put beside, and each has a deadline of its own.
- Where the tool binds by itself, the listener that answers must belong to the child's tree.
- READY=1 on the instance's NOTIFY_SOCKET (sd_notify(3)) makes nothing ready: the servers that send
  it by themselves (gunicorn) send it before they have imported the program, and every helper in
  the tree can send it. It is a reason to ask at once.

Where the listening socket is ours (handover, fd), the question waits in its backlog until the tool
accepts; a port is tried after 2 ms, then at intervals that grow by 1.3 up to 50 ms. In handover the
question comes after the shim's report of the bind: until then this process must not be a client of
the port, which the tool may free first (`lsof -ti :PORT`).

A tool that was ever started or is adopted has one listening socket on 127.0.0.1. It outlives every
instance and the control plane too (the keeper has it), so the port is stable, nobody else can take
it, and requests wait in its backlog instead of being refused. Only an instance accepts.

Not every program fits a socket that listens before it was started: the server may be another
process, bind without Python, or look first whether its port is free. A start in handover that fails
in such a way (`may_be_the_handover`) is tried once more with a plain port, by the service, which
remembers what came of it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from supervisord_py.config.settings import ToolsSettings
from supervisord_py.errors import PxError, StartFailedError
from supervisord_py.process.instance import End, Instance, Note, outcome, reason_of
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.model import (
    Child,
    ChildSpec,
    GrantedFd,
    Reason,
    ResourceLimit,
    tree_limits,
)
from supervisord_py.process.supervisor import Supervisor
from supervisord_py.process.zygote_pool import Recipe, ZygotePool
from supervisord_py.tools import failures
from supervisord_py.tools.catalog import Catalog
from supervisord_py.tools.environment import build_environment, find_interpreter
from supervisord_py.tools.learnt import Learnt, Message
from supervisord_py.tools.manifest import ToolSpec
from supervisord_py.tools.upstream import Upstream


class ToolsConfig(msgspec.Struct, frozen=True):
    """Everything that the room is told."""

    data_dir: Path  # where artefacts of Pixie runs are kept (`data_dir/<tool>/<run id>/`)
    run_dir: Path  # private directory for sockets of readiness notification
    settings: ToolsSettings = ToolsSettings()
    # interpreters and environments whose imports are kept ready to fork tools from; 0 is none
    zygotes: int = 10


SHIM = Path(__file__).with_name("shim.py")
HANDED_FD = 3
LISTEN_BACKLOG = 128
# for an answer, after which another question is put beside; twice as long with each
QUESTION_SECONDS = 0.25
QUESTION_SECONDS_MAX = 4.0
QUESTION_DEADLINE_SECONDS = 30.0  # after which a question is given up, and makes room for another
QUESTIONS_MAX = 8  # that are without an answer at a time
BOUND_SECONDS = 3.0  # after which a program is asked that has not reported its bind
UNFIT_SECONDS = 1.5  # before the first look at one that has not
UNFIT_PERIOD_SECONDS = 1.0
UNFIT_LOOKS = 2  # in a row
_MESSAGE_BYTES = 128 * 1024
_MODULE = re.compile(r"[\w.]+")
_LOCAL = ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1")  # noqa: S104  # recognised, not bound
_CPU_SLACK_SECONDS = 2
_LIMITS_OF_ONE = ("nofile", "cpu", "as", "core")  # what is set for the process, not for its tree
_LET_GO_IDLE = frozenset({Reason.EVICTED_LRU, Reason.EVICTED_TTL, Reason.REPLACED})
"""Ends of instances that nobody used: what waits in the backlog came since, and is for the next
one.
"""


class Observer(Protocol):
    """A descriptor that is readable while a connection waits at a listening socket."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


def observe(listening: socket.socket) -> Observer:
    """Return an observer of a listening socket, which the caller may close.

    On Linux this is an epoll of its own: a registration lives as long as the open file description
    does, and the keeper has another descriptor of that (epoll(7), Q6). So this process holds no
    socket of a tool's port: it would be ended with it by `fuser -k PORT/tcp`. Elsewhere it is a
    duplicate.
    """
    if not hasattr(select, "epoll"):
        return listening.dup()
    observer = select.epoll()
    observer.register(listening.fileno(), select.EPOLLIN)
    return observer


def is_shut_down(observer: Observer) -> bool:
    """Say whether the socket that is observed does not listen any more, as far as that can be
    told here.
    """
    if not hasattr(select, "epoll") or not isinstance(observer, select.epoll):
        return False
    return any(event & select.EPOLLHUP for _, event in observer.poll(0))


class Listeners:
    """The listening sockets, by tool.

    The keeper has them, under `prefix` + tool; here are only their observers.
    """

    def __init__(self, placement: KeeperClient, prefix: str) -> None:
        self.prefix = prefix
        self.ports: dict[str, int] = {}
        self._placement = placement
        self._observers: dict[str, Observer] = {}
        # called with a tool whose socket the keeper now has
        self.on_stored: Callable[[str], object] = lambda _: None
        self._one_at_a_time = asyncio.Lock()

    def has(self, tool: str) -> bool:
        """Tell whether the keeper is known to have the tool's socket."""
        return tool in self._observers

    def port_of(self, tool: str) -> int | None:
        return self.ports.get(tool)

    async def get(self, tool: str) -> int:
        """Return the port of the tool's socket: that which the keeper has, or a new one.

        One that was lost, or was shut down while nobody used it (`ss -K`), is made again on the
        same port, if that is free.

        Raises OSError: there is no socket; KeeperLostError: the keeper is gone; KeeperTimeoutError:
        it is silent.
        """
        async with self._one_at_a_time:  # who asks while the keeper answers gets the same
            await self.recall(tool)
            if tool in self._observers and is_shut_down(self._observers[tool]):
                await self._listen(tool)
            if tool not in self._observers:
                await self._make(tool)
        return self.ports[tool]

    async def _make(self, tool: str) -> None:
        with _listening_socket(self.ports.get(tool, 0)) as listening:
            await self._placement.ask("put_fd", fds=(listening.fileno(),), name=self.prefix + tool)
            self._note(tool, listening)
        self.on_stored(tool)

    async def recall(self, tool: str) -> None:
        """Take note of the tool's socket if the keeper has one."""
        if tool not in self._observers:
            listening = await self._borrow(tool)
            if listening is not None:
                with listening:
                    self._note(tool, listening)

    async def _borrow(self, tool: str) -> socket.socket | None:
        """Return a duplicate of the tool's socket, to be closed at once; None: the keeper has
        none.
        """
        fd = await self._placement.take_fd(self.prefix + tool)
        if fd is None:
            return None
        try:
            os.set_inheritable(fd, False)
            return socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            raise

    def _note(self, tool: str, listening: socket.socket) -> None:
        self._observers[tool] = observe(listening)
        self.ports[tool] = int(listening.getsockname()[1])

    def watch(self, tool: str, on_connection: Callable[[], None]) -> None:
        """Call back when somebody connects while no instance is there to accept."""
        if tool in self._observers:
            asyncio.get_running_loop().add_reader(self._observers[tool].fileno(), on_connection)

    def unwatch(self, tool: str) -> None:
        if tool in self._observers:
            asyncio.get_running_loop().remove_reader(self._observers[tool].fileno())

    async def listen_again(self, tool: str, *, refuse_waiting: bool) -> None:
        """Undo what an instance did to the shared socket: a smaller backlog, or a shutdown(2) of
        it.

        `refuse_waiting`: what waits in the backlog is refused first: the kernel resets it at a
        shutdown(2). (Not on macOS: there it waits for the next start.)

        Raises OSError, KeeperLostError, as `get`.
        """
        async with self._one_at_a_time:
            if tool in self._observers:
                await self._listen(tool, refuse_waiting=refuse_waiting)

    async def _listen(self, tool: str, *, refuse_waiting: bool = False) -> None:
        listening = await self._borrow(tool)
        if listening is not None:
            with listening, suppress(OSError):
                if refuse_waiting:
                    with suppress(OSError):
                        listening.shutdown(socket.SHUT_RDWR)
                listening.listen(LISTEN_BACKLOG)
                return
        # The keeper has lost it, or it cannot listen any more.
        self._forget(tool)
        await self._placement.drop_fd(self.prefix + tool)
        await self._make(tool)

    async def drop(self, tool: str) -> None:
        """Give the socket up, if there is one: the tool has disappeared, or binds its port
        itself.
        """
        self._forget(tool)
        self.ports.pop(tool, None)
        await self._placement.drop_fd(self.prefix + tool)

    def close(self) -> None:
        """Close our observers; the keeper's sockets stay."""
        for tool in tuple(self._observers):
            self._forget(tool)

    def _forget(self, tool: str) -> None:
        if tool in self._observers:
            self.unwatch(tool)
            self._observers.pop(tool).close()


def _listening_socket(port: int = 0) -> socket.socket:
    """Return a listening socket, so bound that it keeps its port even through a shutdown(2).

    It has that port if it is free, or else a free one.

    The kernel takes a port that it chose itself back at a shutdown, one that was asked for by
    number it does not (SOCK_BINDPORT_LOCK). So the number that it chose for a first socket is asked
    for by a second one.
    """
    with socket.socket() as chosen:
        chosen.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            chosen.bind(("127.0.0.1", port))
        except OSError:
            if not port:
                raise
            return _listening_socket()
        port = chosen.getsockname()[1] if sys.platform == "linux" else 0
        listening = socket.create_server(("127.0.0.1", port), backlog=LISTEN_BACKLOG)
    # Accepted sockets inherit it (Linux); a server that writes head and body apart stalls for 40 ms
    # otherwise.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def free_port() -> int:
    """Return a port on 127.0.0.1 that is free at this moment.

    Raises OSError: there is no socket.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class NotifySocket:
    """The receiving end of one instance's NOTIFY_SOCKET, 0600 in a 0700 directory: whoever can
    reach it is believed.

    It is read for as long as the instance lives: a full queue would block its senders. The next
    control plane binds the path anew; what was said meanwhile is lost, and `/healthz` tells. Raises
    OSError where it cannot be bound.
    """

    def __init__(self, run_dir: Path, key: str) -> None:
        self.path = notify_path(run_dir, key)
        self.is_ready = asyncio.Event()  # somebody in the tree sent READY=1
        self.is_bound = asyncio.Event()  # the program has bound its port, through the shim
        # one of the two: who connects to the port is not in its way any more
        self.may_be_asked = asyncio.Event()
        # told what the tool has imported
        self.on_imports: Callable[[Message], None] = lambda _message: None
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(self.path))
        self.path.chmod(0o600)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._receive)

    def _receive(self) -> None:
        # One message: a chatterbox must not keep the loop from everybody else.
        lines = self._socket.recv(_MESSAGE_BYTES).decode(errors="replace").splitlines()
        if "READY=1" in lines:
            self.is_ready.set()
            self.may_be_asked.set()
        if any(line.startswith("X_PX_BOUND=") for line in lines):
            self.is_bound.set()
            self.may_be_asked.set()
        if any(line.startswith("X_PX_STEPS=") for line in lines):
            self.on_imports(_read_imports(lines))

    def close(self) -> None:
        """Stop listening and close our end; the file stays for a later control plane."""
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()


def _read_imports(lines: list[str]) -> Message:
    """Return what tools/learner.py says in its message; names that are none are left out."""
    values: dict[str, str] = {}
    own: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition("=")
        if name == "X_PX_OWN":
            signature, _, path = value.partition(" ")
            own[path] = signature
        else:
            values[name] = value

    def names(key: str) -> tuple[str, ...]:
        return tuple(each for each in values.get(key, "").split(",") if _MODULE.fullmatch(each))

    modules, steps, later = (names("X_PX_" + key) for key in ("MODULES", "STEPS", "LATER"))
    return Message(modules, steps, later, values.get("X_PX_CHANGE", ""), own)


def notify_path(run_dir: Path, key: str) -> Path:
    return run_dir / "n" / key.rpartition(".")[2]  # short: sun_path holds 104 bytes at least


def listening_of(leader: int) -> list[tuple[str, int]]:
    """Return where a tree of processes listens, address and port; leader first.

    Costs milliseconds.
    """
    return look_at_tree(leader)[0]


def look_at_tree(leader: int) -> tuple[list[tuple[str, int]], int]:
    """Return where a tree of processes listens, as `listening_of` does, and of how many
    processes it consists.
    """
    import psutil  # a megabyte that an idle daemon does not need

    found: dict[tuple[str, int], None] = {}
    tree: list[Any] = []
    with suppress(psutil.Error):
        root = psutil.Process(leader)
        tree = [root, *root.children(recursive=True)]
        for process in tree:
            with suppress(psutil.Error, OSError):
                for each in process.net_connections(kind="tcp"):
                    if each.status == psutil.CONN_LISTEN:
                        found[each.laddr[:2]] = None
    return list(found), len(tree)


def is_listener_of(leader: int, port: int) -> bool:
    """Say whether a process of the tree listens where a connection to 127.0.0.1:port arrives."""
    return any(number == port and address in _LOCAL for address, number in listening_of(leader))


class Work(Protocol):
    """What an instance is busy with."""

    over_at: float | None  # time of the loop at which it ended; None while it goes on


class Run(Work, Protocol):
    """A run that an instance works on."""

    def break_off(self, error: PxError) -> None: ...


class GivenUp:
    """Calls that their callers gave up: the tool may work on them until it is seen to be
    healthy.
    """

    over_at: float | None = None


class ToolInstance(Instance):
    """One instance of a tool; without a spec it is what is left of a tool that is gone, and is
    only stopped.
    """

    spec: ToolSpec  # that it was started from, or the present one when it was adopted
    cold_start_ms = 0  # from the decision to ready
    trial_env: Mapping[str, str] | None = None  # of one that is only tried out, beside the pool
    notify: NotifySocket | None = None
    upstream: Upstream | None = None
    recipe: Recipe | None = None  # of what it was, or could have been, forked from
    # has a zygote fork it, if there is one
    fork: Callable[[ChildSpec], Awaitable[Child | None]] | None = None
    questions: set[asyncio.Task[int]]  # about its health, without an answer so far
    healthz = 0  # the last answer to that question, 0 for none
    # Unix seconds: a call timed out then, and it has not answered since
    doubted_at: float | None = None
    health_check: asyncio.Task[None] | None = None  # the last one after a call that was given up
    given_up: GivenUp | None = None  # while that check goes on
    heard_at = 0.0  # time of the loop at which it last answered a run
    # we ask it for its schema: that connection may still wait in the backlog when it ends
    is_asked = False

    def __init__(self, key: str, unit: str, spec: ToolSpec | None, serial: int = 0) -> None:
        super().__init__(key, unit)
        self.serial = serial  # its number in the pool
        self.questions = set()
        self.runs: set[Run] = set()  # that it works on
        self.is_declared = spec is not None
        if spec is not None:
            self.spec = spec
            self.digest = spec.digest
            self.stop_seconds = spec.stop_timeout_seconds

    def note(self) -> str:
        """Return the note for the keeper; one that is not in the pool is never adopted, only
        stopped.
        """
        is_kept = self.serial or self.wanted is not None
        return super().note() if is_kept else ""

    def own_note(self) -> dict[str, Any]:
        own = {"port": self.port, "cold_start_ms": self.cold_start_ms, **self.facts()}
        if self.doubted_at is not None:
            own["doubted_at"] = self.doubted_at
        if self.is_declared:
            own["listen"] = self.spec.listen
        return own

    def silent_since(self, now: float) -> float | None:
        """Return the Unix seconds since which it has answered nothing; None where it has, or
        nothing is known.

        `now` is the time of the loop.
        """
        if self.doubted_at is None:
            return None
        is_answering = now - self.heard_at < time.time() - self.doubted_at
        return None if is_answering else self.doubted_at

    def facts(self) -> dict[str, Any]:
        return {"start_method": self.start_method} if self.child is not None else {}

    async def spawn(self, placement: KeeperClient, spec: ChildSpec) -> Child:
        child = await self.fork(spec) if self.fork is not None else None
        if child is None:
            try:
                return await super().spawn(placement, spec)
            except StartFailedError as error:
                error.hint = failures.exec_step(self.spec, error.extra) or error.hint
                raise
        self.start_method = "zygote"
        return child


class ToolDriver:
    """Drives instances of tools: `on_gone` is told of each that has ended, `on_imports` what a
    tool has imported.
    """

    kind = "tool"

    def __init__(
        self,
        supervisor: Supervisor,
        catalog: Catalog,
        config: ToolsConfig,
        environ: Mapping[str, str],
        zygotes: ZygotePool,
        on_gone: Callable[[ToolInstance], None],
        on_imports: Callable[[str, Message], Learnt],
        learnt: Callable[[str], Learnt | None],
    ) -> None:
        self.config = config
        self.listeners = Listeners(supervisor.placement, "listen:tool:")
        self.trials = Listeners(supervisor.placement, "listen:probe:")
        self.gone = on_gone
        self._supervisor = supervisor
        self._catalog = catalog
        self._environ = environ
        self._on_imports = on_imports
        self._learnt = learnt
        self._zygotes = zygotes

    # -- up ----------------------------------------------------------------------------------------

    async def prepare(self, instance: ToolInstance) -> ChildSpec:
        """Return what is to be spawned; opens the listening and the notification socket.

        Raises StartFailedError: the interpreter or a required secret is missing; OSError: there is
        no socket.
        """
        spec = instance.spec
        listeners = self._listeners_of(instance)
        if spec.listen == "port":
            if listeners.port_of(spec.name) is not None:  # of earlier starts in handover
                await listeners.drop(spec.name)
            instance.port = free_port()
        else:
            instance.port = await listeners.get(spec.name)
        instance.notify = NotifySocket(self.config.run_dir, instance.key)
        child, imports = await asyncio.to_thread(self._plan, instance)
        if instance.trial_env is None:
            instance.recipe = recipe_of(spec, child)
            if imports:
                self._zygotes.look(instance.recipe)
                instance.fork = partial(self._zygotes.fork, instance.recipe, imports, instance.key)
            instance.notify.on_imports = partial(self._learn, spec, instance.recipe)
        return child

    def _plan(self, instance: ToolInstance) -> tuple[ChildSpec, tuple[str, ...]]:
        """Return what is to be spawned, and what may be imported ahead of it.

        Blocking. Raises StartFailedError.
        """
        return self._child_spec(instance), self._imports_ahead(instance.spec)

    def _imports_ahead(self, spec: ToolSpec) -> tuple[str, ...]:
        """Return what may be imported ahead of the tool: what it names, else what it asked for,
        by the same code.
        """
        if spec.preload is False:
            return ()
        if isinstance(spec.preload, tuple) and spec.preload:
            return spec.preload
        learnt = self._learnt(spec.name)
        return learnt.steps if learnt is not None and learnt.holds() else ()

    def _listeners_of(self, instance: ToolInstance) -> Listeners:
        return self.listeners if instance.trial_env is None else self.trials

    async def expect(self, spec: ToolSpec) -> None:
        """Have a zygote for the next start of a tool, from what was learnt before.

        Raises StartFailedError.
        """
        child, imports = await asyncio.to_thread(self._plan, await self._probe(spec))
        if imports:
            self._zygotes.want(recipe_of(spec, child), imports)

    async def _probe(self, spec: ToolSpec) -> ToolInstance:
        """Return an instance that is never started, with the port that the next one will have."""
        instance = ToolInstance("", spec.unit, spec)
        if spec.listen != "port":
            instance.port = await self.listeners.get(spec.name)
        return instance

    def _learn(self, spec: ToolSpec, recipe: Recipe | None, message: Message) -> None:
        learnt = self._on_imports(spec.name, message)
        named = spec.preload if isinstance(spec.preload, tuple) else ()
        imports = named or learnt.steps
        if imports:
            self._zygotes.want(recipe, imports)

    def _child_spec(self, instance: ToolInstance) -> ChildSpec:
        spec, port, settings = instance.spec, str(instance.port), self.config.settings
        if spec.command:
            argv = tuple(each.replace("{port}", port) for each in spec.command)
        else:
            shim = (str(SHIM), "--px-fd", str(HANDED_FD), "--px-port", port, "--")
            python = str(find_interpreter(spec, settings.python))
            argv = (
                python,
                *(shim if spec.listen == "handover" else ()),
                spec.entrypoint,
                "--port",
                port,
            )
        extra = {**(instance.trial_env or {})}
        if instance.notify is not None:
            extra["NOTIFY_SOCKET"] = str(instance.notify.path)
        if spec.listen == "fd":
            extra |= {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"}
        env = build_environment(
            spec, self._environ, settings.env_allow, self.config.data_dir, extra
        )
        listener = self._listeners_of(instance).prefix + spec.name
        return ChildSpec(
            unit=spec.unit,
            argv=argv,
            cwd=str(spec.folder),
            env=dict(env),
            limits=_resource_limits(spec),
            grants=(GrantedFd(HANDED_FD, listener),) if spec.listen != "port" else (),
            listen_pid=spec.listen == "fd",
            max_rss_bytes=spec.max_rss_bytes,
        )

    async def ready(self, instance: ToolInstance) -> None:
        """Wait until it may take work. Raises PxError: why it does not, with evidence."""
        spec, port, supervisor = instance.spec, instance.port, self._supervisor
        assert instance.notify is not None
        instance.upstream = Upstream(port)
        left = spec.start_timeout_seconds - (time.time() - instance.started_at)
        exited = asyncio.ensure_future(supervisor.wait(instance))
        healthy = asyncio.ensure_future(
            _until_healthy(instance, instance.notify, instance.upstream)
        )
        unfit = asyncio.ensure_future(_until_unfit(instance, instance.notify))
        first: list[asyncio.Future[Any]] = [exited, healthy, unfit]
        try:
            done, _ = await asyncio.wait(
                first, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for each in first:
                each.cancel()
            await asyncio.gather(*first, return_exceptions=True)
        if exited in done:
            record, words = exited.result(), await supervisor.last_words(instance)
            raise failures.early_exit(
                spec, End(outcome(record, instance.wanted, ready=False), record, words)
            )
        if done == {unfit}:
            instance.wanted = instance.wanted or Reason.READINESS_TIMEOUT
            describe = failures.ipv6_alone if spec.listen == "port" else failures.not_bound
            raise describe(spec, port, unfit.result(), await supervisor.tail(instance))
        if not done:
            instance.wanted = instance.wanted or Reason.READINESS_TIMEOUT
            listening, tail = (
                await asyncio.to_thread(listening_of, instance.pid or 0),
                await supervisor.tail(instance),
            )
            raise failures.not_ready(spec, port, listening, instance.healthz, tail)
        if healthy in done:
            healthy.result()
        instance.cold_start_ms = max(
            1, round((asyncio.get_running_loop().time() - instance.asked_at) * 1000)
        )

    # -- adoption ----------------------------------------------------------------------------------

    def revive(self, child: Child, note: Note | None) -> ToolInstance:
        spec = None
        with suppress(PxError):
            spec = self._catalog.get(child.unit.partition(":")[2])
        if spec is not None and note is not None and note.own.get("listen") == "port":
            spec = with_plain_port(spec)
        instance = ToolInstance(child.key, child.unit, spec)
        if note is not None:
            instance.digest = note.digest
            for name in ("port", "cold_start_ms", "start_method", "doubted_at"):
                setattr(instance, name, note.own.get(name, getattr(instance, name)))
        return instance

    async def adopt(self, instance: ToolInstance, note: Note) -> bool:
        if not instance.is_declared:
            return False
        if (
            note.own.get("listen") != "port"
            and await self.listeners.get(instance.name) != instance.port
        ):
            return False
        instance.notify = NotifySocket(self.config.run_dir, instance.key)
        if instance.ready_at is not None:
            instance.upstream = Upstream(instance.port)
        return True

    # -- down --------------------------------------------------------------------------------------

    def fail_waiters(self, instance: ToolInstance) -> None:
        for run in tuple(instance.runs):
            if instance.end is not None:
                run.break_off(failures.died_during_run(instance.spec, instance.end, instance.error))
            elif instance.wanted is not None:
                run.break_off(failures.stopped_during_run(instance.spec, instance.wanted))

    async def release(self, instance: ToolInstance) -> None:
        self.let_go(instance)
        notify_path(self.config.run_dir, instance.key).unlink(missing_ok=True)
        # What waits there would start it again at once, unless it came after an end that nobody was
        # concerned by.
        is_asked = instance.is_asked or any(not question.done() for question in instance.questions)
        is_let_go = instance.wanted in _LET_GO_IDLE and not is_asked
        await self._listeners_of(instance).listen_again(instance.name, refuse_waiting=not is_let_go)

    def let_go(self, instance: ToolInstance) -> None:
        """Close our ends of what an instance holds; it may live on for the next control plane."""
        if instance.notify is not None:
            instance.notify.close()
        if instance.upstream is not None:
            instance.upstream.close()


async def _until_healthy(instance: ToolInstance, notify: NotifySocket, upstream: Upstream) -> None:
    """Wait until a tool that starts is healthy.

    Raises StartFailedError: the port is somebody else's.
    """
    if instance.spec.listen == "handover":
        # The report may be lost, or never come: then the question is asked all the same.
        with suppress(TimeoutError):
            async with asyncio.timeout(BOUND_SECONDS):
                await notify.may_be_asked.wait()
    await ask_until_healthy(instance, notify, upstream)


async def ask_until_healthy(
    instance: ToolInstance, notify: NotifySocket, upstream: Upstream
) -> None:
    """Ask for `/healthz` until the answer counts.

    Raises StartFailedError: the port is somebody else's.
    """
    # What was answered before says nothing of now.
    instance.questions = {question for question in instance.questions if not question.done()}
    delay = 0.002
    patience = QUESTION_SECONDS
    announced = asyncio.create_task(notify.is_ready.wait())
    try:
        while True:
            if len(instance.questions) < QUESTIONS_MAX:
                # A task of its own, which is not cancelled with this one: hanging up in the middle
                # of the answer would put a traceback into the tool's log. It ends with the
                # instance, or at its deadline, so that there is room for another one.
                question = asyncio.create_task(upstream.healthz(QUESTION_DEADLINE_SECONDS))
                instance.questions.add(question)
            # A server may swallow what comes a moment before its handler is there: the next
            # question does not wait for the answer to this one, which may be slow all the same.
            was_announced = announced.done()
            awaited: set[asyncio.Task[Any]] = {*instance.questions}
            if not was_announced:
                awaited.add(announced)
            await asyncio.wait(awaited, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            answered = [question for question in instance.questions if question.done()]
            instance.questions.difference_update(answered)
            for question in answered:
                if await _is_healthy(instance, question.result()):
                    return
            if answered:
                await asyncio.sleep(delay)
                delay = min(delay * 1.3, 0.05)
            elif announced.done() == was_announced:
                patience = min(patience * 2, QUESTION_SECONDS_MAX)
    finally:
        announced.cancel()


async def _is_healthy(instance: ToolInstance, answer: int) -> bool:
    """Say whether an answer to `/healthz` counts, 0 for none.

    Raises StartFailedError: the port is somebody else's.
    """
    spec = instance.spec
    if not answer:
        return False
    is_own = spec.listen != "port" or await asyncio.to_thread(
        is_listener_of, instance.pid or 0, instance.port
    )
    if not is_own:
        raise failures.port_taken(spec, instance.port)
    instance.healthz = answer
    # one that was not followed: it leads out of the tool, or to another redirect
    if 300 <= answer < 400:
        return False
    # 501 is what http.server with `do_POST` only says: it has no such path either.
    return answer < 500 or answer == 501


async def _until_unfit(instance: ToolInstance, notify: NotifySocket) -> list[tuple[str, int]]:
    """Return once it shows that a program can never be reached at 127.0.0.1; returns where it
    listens.

    With a handed-over socket that is so while it has not bound its port, but listens elsewhere (it
    took its port for another's, or binds IPv6), or, after a third of its time, has started other
    processes (in which nothing binds for it). With a port of its own, while it listens there for
    IPv6 alone.
    """
    spec = instance.spec
    if spec.listen == "fd":
        await asyncio.Event().wait()
    looks = 0
    third = instance.started_at + spec.start_timeout_seconds / 3
    await asyncio.sleep(UNFIT_SECONDS)
    while not notify.is_bound.is_set():
        listening, processes = await asyncio.to_thread(look_at_tree, instance.pid or 0)
        if spec.listen == "port":
            is_unfit = await asyncio.to_thread(_is_for_ipv6_alone, listening, instance.port)
        else:
            # With a socket of ours at the IPv4 address, one for IPv6 at the same port cannot take
            # both.
            is_unfit = any(port != instance.port or ":" in address for address, port in listening)
            if processes > 1 and time.time() >= third:
                return listening
        looks = looks + 1 if is_unfit else 0
        if looks == UNFIT_LOOKS:
            return listening
        await asyncio.sleep(UNFIT_PERIOD_SECONDS)
    await asyncio.Event().wait()
    raise AssertionError


def _is_for_ipv6_alone(listening: list[tuple[str, int]], port: int) -> bool:
    """Say whether a tree listens at a port, but a connection to 127.0.0.1 is refused there."""
    addresses = [address for address, number in listening if number == port]
    if not addresses or any(":" not in address for address in addresses):
        return False
    with socket.socket() as probe:  # `::` may take both, which only a connection shows
        probe.settimeout(UNFIT_PERIOD_SECONDS)
        return probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def may_be_the_handover(instance: ToolInstance) -> bool:
    """Say whether a start that failed may come up with a plain port: its process ended by itself.

    Not after a limit, a stop that was asked for, or an answer to `/healthz`, which proves that the
    socket was taken.
    """
    if (
        instance.spec.listen != "handover"
        or instance.child is None
        or instance.error is None
        or instance.healthz
    ):
        return False
    if instance.wanted not in {None, Reason.READINESS_TIMEOUT}:
        return False
    return reason_of(instance.error) in {Reason.EARLY_EXIT, Reason.READINESS_TIMEOUT}


def with_plain_port(spec: ToolSpec) -> ToolSpec:
    """Return what starts a tool exactly as `python main.py --port N` does; its digest stays."""
    return msgspec.structs.replace(spec, listen="port")


def recipe_of(spec: ToolSpec, child: ChildSpec) -> Recipe | None:
    """Return what a zygote for an instance is started from; None where nothing may be forked.

    It is the start itself, but for the marks of one instance: any package may look at all of that
    while it is imported. The limit of processes counts those of a tree, which the zygote's own is
    not.
    """
    if child.argv[1:2] != (str(SHIM),) or spec.preload is False or "PYTHONHASHSEED" in child.env:
        return None
    env = (each for each in child.env.items() if each[0] != "NOTIFY_SOCKET")
    limits = tuple(limit for limit in child.limits if limit.name in _LIMITS_OF_ONE)
    return Recipe((*child.argv, "--px-zygote"), tuple(sorted(env)), child.cwd, limits)


def _resource_limits(spec: ToolSpec) -> tuple[ResourceLimit, ...]:
    limits = spec.limits
    asked = (
        ("nofile", limits.open_files, 0),
        # SIGXCPU first, SIGKILL to who ignores it: getrlimit(2)
        ("cpu", limits.cpu_seconds, _CPU_SLACK_SECONDS),
        ("as", spec.max_address_space_bytes, 0),
    )
    own = [
        ResourceLimit(name, value, value + slack)
        for name, value, slack in asked
        if value is not None
    ]
    return (*tree_limits(limits.processes, limits.cpu_percent), *own)
