"""The placement on this machine: asks the keeper, over the channel that the control plane inherited.

Law: every call has a deadline and ends; when the keeper is gone every call, pending or new, raises `KeeperLostError`.
An exit record is kept until it is released, so `wait` may come before or after the end; each `on_exit` callback hears
of each key once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import structlog

from supervisord_py.errors import KeeperLostError, UnknownUnitError
from supervisord_py.keeper.protocol import PROTOCOL
from supervisord_py.process import identity, messages
from supervisord_py.process.messages import error_of, start_error, too_old_error
from supervisord_py.process.spec import StopReport
from supervisord_py.process.wire import Calls, RefusedError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from supervisord_py.process.messages import ControlEvent, LogTrouble
    from supervisord_py.process.spec import Caps, Child, ChildSpec, ExitRecord, TreeStat

_log = structlog.get_logger(__name__)
T = TypeVar("T")
EARLY_MAX = 4096


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines in seconds.

    Attributes:
        call: For an answer of the keeper to anything but the two below.
        spawn: For an answer to `spawn`: exec of a large program from a slow disk.
        kill: How long the keeper goes on killing after the grace of a stop, before it names what is left.
        slack: What a stop may take beyond grace and kill until it counts as unanswered.
    """

    call: float = 15.0
    spawn: float = 30.0
    kill: float = 10.0
    slack: float = 15.0


class Topic(Generic[T]):
    """Calls its listeners for each event; what comes before the first of them waits for it, up to a bound.

    Args:
        name: For the log.
        early: How many events wait for the first listener; the oldest are dropped beyond that.
    """

    def __init__(self, name: str, early: int = EARLY_MAX) -> None:
        self._name = name
        self._listeners: list[Callable[[T], None]] = []
        self._early: deque[T] = deque(maxlen=early)

    def listen(self, callback: Callable[[T], None]) -> None:
        """Call back from now on; the first listener gets what came before it."""
        self._listeners.append(callback)
        while self._early:
            self.tell(callback, self._early.popleft())

    def emit(self, event: T) -> None:
        """Pass an event on, or keep it for the first listener."""
        if not self._listeners:
            self._early.append(event)
        for callback in tuple(self._listeners):
            self.tell(callback, event)

    def tell(self, callback: Callable[[T], None], event: T) -> None:
        """Call one listener; whatever it raises is logged."""
        try:
            callback(event)
        except Exception:  # a listener's defect must not end the channel that all hang on
            _log.exception("callback_failed", topic=self._name)


class Exits:
    """Exit records by key, those who wait for one, and those who hear of all.

    A record is kept from its arrival to its release, so the order of `wait` and of the end does not matter; one that
    comes twice (the keeper repeats until it is released) counts once.
    """

    def __init__(self) -> None:
        self._records: dict[str, ExitRecord] = {}
        self._waiters: dict[str, asyncio.Future[ExitRecord]] = {}
        self._topic: Topic[ExitRecord] = Topic("exit", early=0)

    def get(self, key: str) -> ExitRecord | None:
        """Return the record of a key, None while it lives or when it is not known."""
        return self._records.get(key)

    def add(self, record: ExitRecord) -> None:
        """Take a record; one that is known already changes nothing."""
        if record.key in self._records:
            return
        self._records[record.key] = record
        if (waiter := self._waiters.pop(record.key, None)) is not None:
            waiter.set_result(record)
        self._topic.emit(record)

    async def wait(self, key: str) -> ExitRecord:
        """Wait for the record of a key. Cancelling one waiter leaves the others."""
        if (record := self._records.get(key)) is not None:
            return record
        if key not in self._waiters:
            self._waiters[key] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._waiters[key])

    def abandon(self, key: str) -> None:
        """No record of this key will ever come: whoever waits for it is cancelled."""
        if (waiter := self._waiters.pop(key, None)) is not None:
            waiter.cancel()

    def forget(self, key: str) -> None:
        """Drop the record of a released key."""
        self._records.pop(key, None)

    def fail(self, error: Exception) -> None:
        """No record will come any more: every waiter gets the error."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.set_exception(error)
            waiter.exception()  # so that a waiter whose last task was cancelled is not reported as forgotten

    def listen(self, callback: Callable[[ExitRecord], None]) -> None:
        """Call back once for each record, those at hand first."""
        for record in tuple(self._records.values()):
            self._topic.tell(callback, record)
        self._topic.listen(callback)


class LocalPlacement:
    """Holds processes, over the keeper's channel: the one way to get any. Make it with `connect`.

    Every call is idempotent by `key`, the instance id that the caller chose. Every method may raise `KeeperLostError`.
    """

    def __init__(self, channel: socket.socket, *, daemon_id: str, log_dir: str, timeouts: Timeouts) -> None:
        self._daemon_id = daemon_id
        self._log_dir = log_dir
        self._timeouts = timeouts
        self._caps: Caps | None = None
        self._children: dict[str, Child] = {}
        self._exits = Exits()
        self._emptied: set[str] = set()
        """Held, and told to be gone with its tree: there is nothing to stop."""
        self._gone: Topic[str] = Topic("gone")
        self._log_trouble: Topic[LogTrouble] = Topic("log_trouble")
        self._control: Topic[ControlEvent] = Topic("control")
        self._lost: Topic[None] = Topic("lost")
        self._calls = Calls(channel, on_event=self._event, on_lost=self._keeper_lost)

    @classmethod
    async def connect(
        cls, channel: socket.socket, *, daemon_id: str, log_dir: str, timeouts: Timeouts | None = None
    ) -> LocalPlacement:
        """Take over the channel and greet the keeper.

        Args:
            channel: The control plane's end of the socketpair; owned from now on.
            daemon_id: Eight hex digits; every new key begins with them.
            log_dir: Root of the output segments.
            timeouts: Deadlines.

        Raises:
            KeeperLostError: There is no keeper, it does not answer, or it speaks another protocol.
        """
        placement = cls(channel, daemon_id=daemon_id, log_dir=log_dir, timeouts=timeouts or Timeouts())
        try:
            await placement._greet()
        except BaseException:
            placement.close()
            raise
        return placement

    async def _greet(self) -> None:
        reply = await self._plain("hello", protocol=PROTOCOL)
        if reply.get("protocol") != PROTOCOL:
            raise KeeperLostError(
                f"the keeper speaks protocol {reply.get('protocol')!r}, this control plane speaks {PROTOCOL}",
                hint="run `pxctl daemon restart --all` to replace both",
            )
        self._caps, children = self._read("hello", messages.hello, reply)
        for child in children:
            self._hold(child)

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def caps(self) -> Caps:
        """What this placement can do here, as the keeper said when greeted."""
        if self._caps is None:
            raise KeeperLostError("the keeper has not been greeted")
        return self._caps

    @property
    def log_dir(self) -> str:
        """Root of the output segments: `log_dir/<kind>/<name>/`."""
        return self._log_dir

    @property
    def lost(self) -> bool:
        """Whether the keeper is gone."""
        return self._calls.closed

    def new_key(self) -> str:
        """Return a fresh instance id of this daemon."""
        return identity.new_key(self._daemon_id)

    def children(self) -> tuple[Child, ...]:
        """Return what is held and not yet released, as far as it is known here; asks nobody."""
        return tuple(self._children.values())

    def close(self) -> None:
        """End the channel from this side: pending calls raise `KeeperLostError`, `on_lost` does not fire."""
        self._calls.close()
        self._exits.fail(KeeperLostError("the channel to the keeper was closed"))

    # -- children --------------------------------------------------------------------------------------------------

    async def spawn(self, key: str, spec: ChildSpec) -> Child:
        """Start a child; returns once exec has succeeded.

        Raises:
            StartFailedError: `extra` holds reason, stage and errno.
            ConflictError: The key is known with another spec.
        """
        if self.caps.keeper_revision < messages.revision_for(spec):
            raise too_old_error(spec)
        try:
            reply = await self._ask("spawn", timeout=self._timeouts.spawn, **messages.spawn_members(key, spec))
        except RefusedError as refusal:
            raise start_error(spec, refusal) from refusal
        return self._hold(self._read("child", lambda it: messages.child(it["child"]), reply))

    async def attach(self, key: str) -> Child | None:
        """Return the child of that key if it is held, alive or exited and not yet released."""
        for child in await self.list():
            if child.key == key:
                return child
        return None

    async def list(self, prefix: str = "") -> Sequence[Child]:
        """Return all held children whose unit begins with `prefix`."""
        reply = await self._plain("list", prefix=prefix)
        return tuple(self._hold(child) for child in self._read("children", messages.children, reply))

    async def wait(self, key: str) -> ExitRecord:
        """Wait until the leader was reaped (not: until its tree is gone). Any number may wait.

        Raises:
            UnknownUnitError: No such key is held.
        """
        held = key in self._children or self._exits.get(key) is not None
        if not held and await self.attach(key) is None:
            raise UnknownUnitError(f"there is no instance {key}: it was never started, or is released")
        if self._calls.closed and self._exits.get(key) is None:
            raise KeeperLostError(f"the keeper is gone; how {key} ended is not known")
        return await self._exits.wait(key)

    async def signal(self, key: str, signum: int) -> None:
        """Send a signal to the leader.

        Raises:
            ConflictError: It is dead.
        """
        await self._plain("signal", key=key, signum=signum, tree=False)

    async def signal_group(self, key: str, signum: int) -> None:
        """Send a signal to the leader's process group at once, as Ctrl-C does; its other sessions are spared.

        Raises:
            ConflictError: The leader is dead.
        """
        await self._plain("signal", key=key, signum=signum, tree=False, group=True)

    async def stop(self, key: str, *, grace_seconds: float, reason: str) -> StopReport:
        """TERM, grace, KILL to the whole tree; returns when it is gone or with what is left.

        An unknown key is already gone: an empty report. So is one of which the keeper has said so, without asking it.
        """
        if key in self._emptied:
            return StopReport(key)
        kill = self._timeouts.kill
        try:
            reply = await self._ask(
                "stop",
                timeout=grace_seconds + kill + self._timeouts.slack,
                key=key,
                grace_seconds=grace_seconds,
                kill_seconds=kill,
                reason=reason,
            )
        except RefusedError as refusal:
            if refusal.kind == "unknown_key":
                return StopReport(key)
            raise error_of(refusal) from refusal
        return self._read("report", lambda it: messages.stop_report(key, it), reply)

    async def stat(self, keys: Sequence[str], *, shared_once: bool = False) -> dict[str, TreeStat]:
        """Measure whole trees; what is unknown or gone is absent."""
        answer = await self._plain("stat", keys=list(keys), shared_once=shared_once)
        return self._read("stats", messages.tree_stats, answer)

    async def annotate(self, key: str, tag: str) -> None:
        """Replace the opaque note kept with the child."""
        await self._plain("annotate", key=key, tag=tag)
        if (child := self._children.get(key)) is not None:
            self._children[key] = replace(child, tag=tag)

    async def rename(self, key: str, new_key: str, *, unit: str, tag: str) -> Child:
        """Have a running child go on as `new_key` of another unit; whoever waits for `key` waits in vain.

        Raises:
            ConflictError: It has ended or is being stopped, or the keeper is too old to do it.
            UnknownUnitError: There is no such child.
        """
        reply = await self._plain("rename", key=key, new_key=new_key, unit=unit, tag=tag)
        self._children.pop(key, None)
        self._exits.abandon(key)
        return self._hold(self._read("child", lambda it: messages.child(it["child"]), reply))

    async def release(self, key: str) -> None:
        """Acknowledge the exit record; the key is forgotten. An unknown key is released already.

        Raises:
            ConflictError: Something of its tree lives.
        """
        try:
            await self._ask("release", key=key)
        except RefusedError as refusal:
            if refusal.kind != "unknown_key":
                raise error_of(refusal) from refusal
        self._children.pop(key, None)
        self._emptied.discard(key)
        self._exits.forget(key)

    # -- descriptors -----------------------------------------------------------------------------------------------

    async def put_fd(self, name: str, fd: int) -> None:
        """Deposit a duplicate of `fd` with the keeper, where it outlives the control plane."""
        await self._plain("put_fd", name=name, fds=(fd,))

    async def take_fd(self, name: str) -> int | None:
        """Return a new duplicate of a deposited descriptor, or None; the caller closes it."""
        try:
            return await self._calls.ask_fd("take_fd", self._timeouts.call, name=name)
        except RefusedError as refusal:
            if refusal.kind == "unknown_fd":
                return None
            raise error_of(refusal) from refusal

    async def drop_fd(self, name: str) -> None:
        """Forget a deposited descriptor; one that is not there is forgotten already."""
        try:
            await self._ask("drop_fd", name=name)
        except RefusedError as refusal:
            if refusal.kind != "unknown_fd":
                raise error_of(refusal) from refusal

    # -- the daemon as a whole -------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Say that the API serves; the keeper tells the service manager."""
        await self._plain("ready")

    async def status(self, text: str) -> None:
        """Set the one line that the service manager shows."""
        await self._plain("status", text=text)

    async def shutdown(self) -> None:
        """Say that the control plane is done: the keeper stops what is left and exits."""
        await self._plain("shutdown")

    async def restart(self, *, everything: bool) -> None:
        """Have the control plane replaced, or everything with all children stopped first."""
        await self._plain("restart", all=everything)

    # -- listening -------------------------------------------------------------------------------------------------

    def on_exit(self, callback: Callable[[ExitRecord], None]) -> None:
        """Call back once for every exit record; those not yet released come at once."""
        self._exits.listen(callback)

    def on_gone(self, callback: Callable[[str], None]) -> None:
        """Call back with the key when the tree of an exited leader is empty and its pipes are drained."""
        self._gone.listen(callback)

    def on_log_degraded(self, callback: Callable[[LogTrouble], None]) -> None:
        """Call back when the disk takes no output of a unit, and when it does again."""
        self._log_trouble.listen(callback)

    def on_control_event(self, callback: Callable[[ControlEvent], None]) -> None:
        """Call back for `stop`, `reload` and `dump`."""
        self._control.listen(callback)

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Call back once when the keeper is gone; at once when it is gone already."""
        self._lost.listen(lambda _: callback())

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _ask(self, verb: str, *, timeout: float | None = None, **members: Any) -> dict[str, Any]:  # noqa: ASYNC109  # one deadline for all verbs; `Calls` applies it
        return await self._calls.ask(verb, timeout or self._timeouts.call, **members)

    async def _plain(self, verb: str, **members: Any) -> dict[str, Any]:
        try:
            return await self._ask(verb, **members)
        except RefusedError as refusal:
            raise error_of(refusal) from refusal

    def _hold(self, child: Child) -> Child:
        """Note a child; one whose end is known here stays ended, however late the keeper's word about it comes."""
        if child.exit is not None:
            self._exits.add(child.exit)
        elif (record := self._exits.get(child.key)) is not None:
            child = replace(child, exit=record)
        self._children[child.key] = child
        return child

    @staticmethod
    def _read(what: str, build: Callable[[dict[str, Any]], T], message: dict[str, Any]) -> T:
        try:
            return messages.parse(what, build, message)
        except messages.MessageError as error:
            raise KeeperLostError(
                str(error), hint="keeper and control plane differ: `pxctl daemon restart --all`"
            ) from error

    def _keeper_lost(self) -> None:
        self._exits.fail(KeeperLostError("the keeper is gone; how its children ended is not known"))
        self._lost.emit(None)

    def _event(self, event: dict[str, Any]) -> None:
        try:
            self._take(event)
        except messages.MessageError as error:
            _log.error("keeper_event_unreadable", keeper_event=event.get("event"), problem=str(error))

    def _take(self, event: dict[str, Any]) -> None:
        match event.get("event"):
            case "ping":
                self._calls.tell("alive")
            case "exit":
                self._exited(messages.parse("exit", lambda it: messages.exit_record(it["record"]), event))
            case "gone":
                self._emptied_of(messages.parse("gone", lambda it: str(it["key"]), event))
            case "log_degraded" | "log_recovered":
                self._log_trouble.emit(messages.parse("log trouble", messages.log_trouble, event))
            case "stop" | "reload" | "dump":
                self._control.emit(messages.parse("control event", messages.control_event, event))
            case other:
                _log.warning("keeper_event_unknown", keeper_event=other)

    def _emptied_of(self, key: str) -> None:
        if key in self._children:
            self._emptied.add(key)
        self._gone.emit(key)

    def _exited(self, record: ExitRecord) -> None:
        if (child := self._children.get(record.key)) is not None:
            self._children[record.key] = replace(child, exit=record)
        self._exits.add(record)
