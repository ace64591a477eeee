"""The control plane's way to get processes: asks the keeper, over the channel that it inherited.

Laws:
- Nothing here blocks. When the keeper is gone, every call, pending or new, raises
  `KeeperLostError`.
- A keeper that does not answer in time is not gone: `ask` raises `KeeperTimeoutError`, and the
  outcome is unknown. The channel keeps the order of requests, so the keeper carries out what it was
  asked as soon as it runs again, before anything that is asked later. Requests that must have an
  outcome (`hello`, `list`, `wait`, `stop`, and what is passed to `until_known`) are asked again
  until the keeper answers or is lost. A caller that must not wait that long uses `unless_silent`.
- An exit record is kept until it is released, so `wait` may come before or after the end.
- Descriptors that nobody takes are closed.

The keeper's JSON becomes the values of process/model.py: members that this side does not know are
ignored (a newer keeper may say more), missing ones are an error, because guessing about a process
is worse than refusing to.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import structlog

from supervisord_py.errors import (
    ConflictError,
    KeeperLostError,
    KeeperTimeoutError,
    PxError,
    ShuttingDownError,
    StartFailedError,
    TooLargeError,
    UnknownUnitError,
)
from supervisord_py.keeper.protocol import (
    MARK_INSTANCE,
    MARK_UNIT,
    PROTOCOL,
    FrameError,
    FrameSocket,
    close_fds,
)
from supervisord_py.process import exec_failure
from supervisord_py.process.model import (
    Caps,
    Child,
    ChildSpec,
    ExitRecord,
    Reason,
    StopReport,
    TreeStat,
)

Message = dict[str, Any]
Fds = list[int]
T = TypeVar("T")

EARLY_MAX = 4096
CALL_SECONDS = 15.0  # for an answer of the keeper to anything but the two below
SPAWN_SECONDS = 30.0  # for an answer to `spawn`: exec of a large program from a slow disk
# how long the keeper goes on killing after the grace of a stop, before it names what is left
KILL_SECONDS = 10.0
# for an answer to `upgrade`: the keeper tries the new version, for a minute at most
UPGRADE_SECONDS = 75.0
# pause before a request whose outcome is unknown is repeated, once the keeper speaks again
ASK_AGAIN_SECONDS = 1.0
SLACK_SECONDS = 15.0  # what a stop may take beyond grace and kill until it counts as unanswered
OLDEST_REVISION = 6  # of a keeper that does all that an order may ask for
_REASONS = frozenset(Reason)
_ALL_HINT = "`pxctl daemon restart --all` starts the installed version; it stops every child"
_TRIAL_HINT = "install a version that works, then `pxctl daemon restart`; what runs goes on"
_KIND_HINTS = {"handover": _ALL_HINT, "protocol": _ALL_HINT, "trial": _TRIAL_HINT}
_GONE_HINT = (
    "the daemon ends now and its children with it; see `pxctl why UNIT` after the next start"
)
_SILENT_HINT = "ask again once the keeper answers: `pxctl doctor` shows whether it does"
_GOES_ON_HINT = (
    "it goes on, and is completed once the keeper answers: `pxctl doctor` shows whether it does"
)
_log = structlog.get_logger(__name__)


class KeeperClient:
    """Holds processes. Make it with `connect`; use it on the loop's thread only.

    Every call is idempotent by `key`, the instance id that the caller chose. Every method may raise
    `KeeperLostError`. All except `list`, `attach`, `wait` and `stop` may raise
    `KeeperTimeoutError`.
    """

    caps: Caps

    def __init__(self, channel: socket.socket, *, daemon_id: str, log_dir: str) -> None:
        self.log_dir = log_dir  # output is in segments in `log_dir/<kind>/<name>/`
        self.lost = False  # the keeper is gone, or the channel closed
        self._daemon_id = daemon_id  # eight hex digits, with which every new key begins
        self._loop = asyncio.get_running_loop()
        self._frames = FrameSocket(channel)
        self._fd = channel.fileno()
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Message]] = {}
        self._children: dict[str, Child] = {}
        # of what is waited for, or has ended
        self._ends: dict[str, asyncio.Future[ExitRecord]] = {}
        self._emptied: set[str] = set()  # told to be gone with its tree: there is nothing to stop
        # a request was not answered in time, and the keeper said nothing since
        self._silent = asyncio.Event()
        # the opposite; also set once the keeper is lost, so that nobody waits for it
        self._speaks = asyncio.Event()
        self._speaks.set()
        # what goes on after `unless_silent` gave up
        self._background: set[asyncio.Future[Any]] = set()
        self._listener: Callable[[Message], None] | None = None
        self._early: deque[Message] = deque(maxlen=EARLY_MAX)
        self._loop.add_reader(self._fd, self._readable)

    @classmethod
    async def connect(cls, channel: socket.socket, *, daemon_id: str, log_dir: str) -> KeeperClient:
        """Take over our end of the channel.

        Raises KeeperLostError: no keeper that speaks this protocol answers.
        """
        client = cls(channel, daemon_id=daemon_id, log_dir=log_dir)
        try:
            reply = await client.until_known(lambda: client.ask("hello", protocol=PROTOCOL))
            keeper = {f"keeper_{name}": value for name, value in reply.items()}
            client.caps = _read(Caps, {**keeper, **reply})
            for child in reply["children"]:
                client._hold(child)
        except BaseException:
            client.close()
            raise
        return client

    def new_key(self) -> str:
        """Return a fresh instance id: the daemon's id, a dot, eight hex digits of time and eight
        of chance.
        """
        return f"{self._daemon_id}.{int(time.time()):08x}{secrets.token_hex(4)}"

    def children(self) -> tuple[Child, ...]:
        """Return what is held and not yet released, as far as it is known here; asks nobody."""
        return tuple(self._children.values())

    def listen(self, listener: Callable[[Message], None]) -> None:
        """Call back with each event that is about no child; what came before is told at once.

        Events of this side: `lost` (once), `silent` (a request was not answered in time, `detail`
        says which) and `speaks` (the keeper was silent and has said something).
        """
        self._listener = listener
        while self._early:
            self._tell(self._early.popleft())

    def close(self) -> None:
        """End the channel from this side: pending calls raise `KeeperLostError`, nobody is told
        that it is lost.
        """
        self._flush()
        self._end("the channel to the keeper was closed")

    # -- children ----------------------------------------------------------------------------------

    async def spawn(self, key: str, spec: ChildSpec) -> Child:
        """Start a child; return once exec has succeeded.

        Raises StartFailedError, with reason, stage and errno.
        """
        if self.caps.keeper_revision < OLDEST_REVISION:
            said = f"cannot start {spec.unit}: the keeper is older than this control plane"
            raise StartFailedError(
                said, hint=_ALL_HINT, unit=spec.unit, reason=Reason.SPAWN_FAILED.value
            )
        members: Message = msgspec.to_builtins(spec)
        fds = {name: members.pop(name) for name in ("stdin", "stdout", "stderr")}
        given = {name: fd for name, fd in fds.items() if fd is not None}
        marks = {MARK_INSTANCE: key, MARK_UNIT: spec.unit}  # DESIGN D11
        members |= {"key": key, "env": {**spec.env, **marks}, "stdio_fds": list(given)}
        reply = await self.ask(
            "spawn", seconds=SPAWN_SECONDS, fds=tuple(given.values()), spec=spec, **members
        )
        return self._hold(reply.get("child"))

    async def attach(self, key: str) -> Child | None:
        return next((child for child in await self.list() if child.key == key), None)

    async def list(self, prefix: str = "") -> Sequence[Child]:
        reply = await self.until_known(lambda: self.ask("list", prefix=prefix))
        return tuple(self._hold(child) for child in reply.get("children", ()))

    async def wait(self, key: str) -> ExitRecord:
        """Wait until the leader was reaped, not: its tree is gone.

        Raises UnknownUnitError: no such key is held.
        """
        if key not in self._children and await self.attach(key) is None:
            raise UnknownUnitError(
                f"there is no instance {key}: it was never started, or is released"
            )
        return await asyncio.shield(self.ending(key))  # cancelling one who waits leaves the others

    def ending(self, key: str) -> asyncio.Future[ExitRecord]:
        """Return what all share who wait for the leader of a held child to be reaped; nobody may
        cancel it.
        """
        end = self._ends.get(key)
        if end is None:
            if self.lost:
                raise KeeperLostError(f"the keeper is gone; how {key} ended is not known")
            end = self._ends[key] = self._loop.create_future()
        return end

    async def signal_group(self, key: str, signum: int) -> None:
        """Signal the leader's process group at once, as Ctrl-C does.

        Raises ConflictError: the leader is dead.
        """
        # an older keeper signals the leader alone without
        await self.ask("signal", key=key, signum=signum, group=True)

    async def stop(self, key: str, *, grace_seconds: float, reason: str) -> StopReport:
        """TERM, grace, KILL to the whole tree; returns when it is gone or with what is left.

        An unknown key is already gone: an empty report. So is one of which the keeper has said so,
        without asking it: of a leader that has ended by itself it most often does in one breath
        with the end. A keeper that does not answer is asked again until it does: nothing counts as
        stopped before that.
        """
        if key in self._emptied:
            return StopReport()
        seconds = grace_seconds + KILL_SECONDS + SLACK_SECONDS
        members: Message = {
            "key": key,
            "grace_seconds": grace_seconds,
            "kill_seconds": KILL_SECONDS,
            "reason": reason,
        }
        answer = await self.until_known(
            lambda: self.ask("stop", fine="unknown_key", seconds=seconds, **members)
        )
        return _read(StopReport, answer)

    async def stat(self, keys: Sequence[str], *, shared_once: bool = False) -> dict[str, TreeStat]:
        """Measure whole trees; what is unknown or gone is absent."""
        answer = await self.ask("stat", keys=[*keys], shared_once=shared_once)
        return _read(dict[str, TreeStat], answer.get("stats"))

    def release(self, key: str) -> None:
        """Acknowledge the exit record: the key is forgotten, by the keeper before it hears what
        is asked next.
        """
        self._push({"verb": "release", "key": key})
        self._children.pop(key, None)
        self._ends.pop(key, None)
        self._emptied.discard(key)

    async def take_fd(self, name: str) -> int | None:
        """Return a new duplicate of a descriptor that was deposited by `put_fd`, or None; the
        caller closes it.
        """
        fds: Fds = (await self.ask("take_fd", fine="unknown_fd", name=name)).get("fds", [])
        return fds[0] if fds else None

    async def upgrade(self, *, always: bool = False) -> str | None:
        """Have the keeper become the installed version when we end; None: it is that one. Raises
        PxError: why not.

        A trial of it comes first; with `always` also where it is the version that runs. That takes
        long, so a keeper that is silent is found out by a question that it answers at once.
        """
        await self.stat([])
        return (
            await self.ask("upgrade", fine="unknown_verb", seconds=UPGRADE_SECONDS, always=always)
        ).get("version")

    async def drop_fd(self, name: str) -> None:
        """Have the keeper close a deposited descriptor.

        A silent keeper does so before anything that is asked later.
        """
        with contextlib.suppress(KeeperTimeoutError):
            await self.ask("drop_fd", name=name)

    # -- a keeper that does not answer -------------------------------------------------------------

    @property
    def is_silent(self) -> bool:
        """Whether a request was not answered in time, and the keeper has said nothing since."""
        return self._silent.is_set()

    async def until_known(self, request: Callable[[], Awaitable[T]]) -> T:
        """Return what a request returns; make it again, without end, while its outcome is unknown.

        The request must be safe to repeat. Raises KeeperLostError if the keeper is lost, and what
        else it raises.
        """
        while True:
            try:
                return await request()
            except KeeperTimeoutError as error:
                _log.warning("keeper_request_unanswered", detail=error.detail)
            # A repetition while the keeper says nothing would only queue up behind the first
            # request.
            await self._speaks.wait()
            await asyncio.sleep(ASK_AGAIN_SECONDS)

    async def unless_silent(self, work: Awaitable[T], what: str, *, unit: str | None = None) -> T:
        """Return what `work` returns, unless the keeper is silent or becomes so: then it goes on in
        the background.

        `what` completes the sentence "It is not known whether …". When the caller is cancelled, so
        is the work. Raises KeeperTimeoutError if the keeper is silent, and what the work raises.
        """
        task = asyncio.ensure_future(work)
        silence = asyncio.create_task(self._silent.wait())
        try:
            await asyncio.wait((task, silence), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            silence.cancel()
        if task.done():
            return task.result()
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(_log_failure)
        detail = f"It is not known whether {what}: the keeper does not answer."
        raise KeeperTimeoutError(detail, hint=_GOES_ON_HINT, unit=unit)

    def _mark_silent(self, detail: str) -> None:
        was_silent = self._silent.is_set()
        self._silent.set()
        self._speaks.clear()
        if not was_silent:
            self._tell({"event": "silent", "detail": detail})

    def _mark_speaking(self) -> None:
        if self._silent.is_set():
            self._silent.clear()
            self._speaks.set()
            self._tell({"event": "speaks"})

    # -- requests ----------------------------------------------------------------------------------

    async def ask(
        self,
        verb: str,
        *,
        fine: str = "",
        seconds: float = 0.0,
        fds: Sequence[int] = (),
        spec: ChildSpec | None = None,
        **members: Any,
    ) -> Message:
        """Ask by a verb of keeper/protocol.py; return the answer, `fds` in it the descriptors that
        came.

        The answer is empty where the keeper refused by the kind `fine`. `fds` are sent as
        duplicates; `spec`: of the child that it is about, for the error. Raises KeeperTimeoutError
        if no answer comes in time.
        """
        if self.lost:
            raise KeeperLostError("the keeper is gone", hint=_GONE_HINT)
        number, seconds = next(self._numbers), seconds or CALL_SECONDS
        future = self._pending[number] = self._loop.create_future()
        try:
            self._push({"id": number, "verb": verb, **members}, fds)
            async with asyncio.timeout(seconds):
                reply: Message = await future
        except FrameError as error:
            raise TooLargeError(f"`{verb}` cannot be sent to the keeper: {error}") from error
        except TimeoutError as error:
            # The answer may have come in the turn of the loop in which the deadline ended: then it
            # counts.
            if not future.done() or future.cancelled():
                detail = f"the keeper did not answer `{verb}` within {seconds:g} s"
                self._mark_silent(detail)
                raise KeeperTimeoutError(detail, hint=_SILENT_HINT) from error
            reply = future.result()
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                close_fds(future.result()["fds"])  # it came in the very moment
            raise
        finally:
            self._pending.pop(number, None)
        if reply.get("ok") is True:
            return reply
        refusal = reply.get("error") or {"kind": "failed"}
        if refusal["kind"] == fine:
            return {}
        raise _error_of(refusal, spec)

    def _push(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send, in this turn of the loop, with all else that is said in it.

        Raises FrameError: it is too large.
        """
        if not self._frames.queued and not self.lost:
            self._loop.call_soon(self._flush)
        self._frames.push(message, fds)

    def _flush(self) -> None:
        if self.lost:
            return
        try:
            done = self._frames.flush()
        except OSError:
            # the reading side meets the same end, after all that the keeper still said before it
            done = True
        if done:
            self._loop.remove_writer(self._fd)
        else:
            self._loop.add_writer(self._fd, self._flush)

    # -- what comes --------------------------------------------------------------------------------

    def _readable(self) -> None:
        broken = self._frames.read(self._take)
        if broken is not None and not self.lost:
            self._end(f"the keeper is lost: {broken}" if broken else "the keeper is gone")
            self._tell({"event": "lost"})

    def _take(self, message: Message, fds: Fds) -> None:
        self._mark_speaking()
        future = self._pending.pop(message.get("id", 0), None)
        if future is not None and not future.done():
            future.set_result({**message, "fds": fds})
            return
        close_fds(fds)
        try:
            match message.get("event"):
                case "ping":
                    self._push({"verb": "alive"})
                case "exit":
                    self._ended(message["record"])
                case "gone":
                    self._emptied.add(message["key"])
                case str():
                    self._tell(message)
        except (KeeperLostError, AttributeError, KeyError, TypeError) as error:
            _log.error(
                "keeper_event_unreadable", keeper_event=message.get("event"), problem=str(error)
            )

    def _tell(self, event: Message) -> None:
        if self._listener is None:
            self._early.append(event)
            return
        try:
            self._listener(event)
        except Exception:  # its defect must not end the channel that all hang on
            _log.exception("keeper_event_failed", keeper_event=event["event"])

    def _ended(self, message: Message) -> None:
        """Take an exit record; one that is known already (the keeper repeats until it is
        released) changes nothing.
        """
        verdict = message.get("verdict")
        if verdict and verdict.get("reason") not in _REASONS:
            # A word outside the list is somebody's stop, because an exit must not be lost over it.
            verdict = {**verdict, "reason": Reason.STOPPED}
        record = _read(ExitRecord, {**message, "identity": message, "verdict": verdict})
        end = self._ends.setdefault(record.key, self._loop.create_future())
        if not end.done():
            end.set_result(record)

    def _hold(self, message: Any) -> Child:
        """Note a child; one whose end is known here stays ended, however late the keeper's word
        about it comes.
        """
        known = message if isinstance(message, dict) else {}
        child = _read(Child, {**known, "identity": known, "exit": None})
        if known.get("exit"):
            self._ended(known["exit"])
        end = self._ends.get(child.key)
        if end is not None and end.done() and not end.exception():
            child = msgspec.structs.replace(child, exit=end.result())
        self._children[child.key] = child
        return child

    def _end(self, why: str) -> None:
        if self.lost:
            return
        self.lost = True
        self._silent.clear()
        self._speaks.set()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._frames.close()
        waited: list[asyncio.Future[Any]] = [*self._pending.values(), *self._ends.values()]
        for future in waited:
            if not future.done():
                future.set_exception(KeeperLostError(why, hint=_GONE_HINT))
                # a waiter whose last task was cancelled is not reported as forgotten
                future.exception()


def _log_failure(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("keeper_request_failed_late", detail=str(error))


def _read(kind: type[T], message: Any) -> T:
    try:
        return msgspec.convert(message, kind)
    except msgspec.ValidationError as error:
        said = f"the keeper's {kind.__name__} cannot be read: {error}"
        raise KeeperLostError(said, hint=f"keeper and control plane differ: {_ALL_HINT}") from error


# -- what a refusal means to a user: a start that failed names the program, the stage and the
# system's own words

_HINTS: dict[object, str] = {
    "exec": "check the program: is it installed, executable, and its `#!` line right?",
    "chdir": "check that the working directory exists and may be entered",
    "rlimit": "lower the limit: it is above the hard limit of the daemon",
    "fork": "too many processes or too little memory: see `pxctl status` and `ulimit -u`",
    "fds": "too few file descriptors: raise `ulimit -n` (LimitNOFILE= of the systemd unit)",
    "cgroup": "see `pxctl doctor` for the state of cgroup delegation",
    ("exec", 13): "make it executable (`chmod +x`), or name another program",
}
_KINDS: dict[str, type[PxError]] = {
    "unknown_key": UnknownUnitError,
    "dead": ConflictError,
    "alive": ConflictError,
    "handover": ConflictError,
    "trial": ConflictError,
    "shutdown": ShuttingDownError,
    "protocol": KeeperLostError,
}


def _error_of(refusal: Message, spec: ChildSpec | None) -> PxError:
    kind, unit = refusal["kind"], spec.unit if spec is not None else None
    detail = str(refusal.get("detail", kind))
    if kind == "spawn_failed" and spec is not None:
        stage, number = refusal["stage"], refusal["errno"]
        subject = f"working directory {spec.cwd}" if stage == "chdir" else f"program {spec.argv[0]}"
        said = f"cannot start {spec.unit}: {subject}, stage {stage}: {os.strerror(number)}"
        hint = _HINTS.get((stage, number), _HINTS.get(stage))
        facts = {"reason": Reason.SPAWN_FAILED.value, "stage": stage, "errno": number}
        why = _why_not_executed(spec, number) if stage == "exec" else None
        if why is not None:
            said = f"cannot start {spec.unit}: program {spec.argv[0]} {why.detail}"
            hint = why.hint
            facts["program"] = spec.argv[0]
            if why.interpreter:
                facts["interpreter"] = why.interpreter
        return StartFailedError(said, hint=hint, unit=unit, **facts)
    if kind in _KINDS:
        facts = {"refusal": kind} if kind in ("handover", "trial") else {}
        return _KINDS[kind](detail, hint=_KIND_HINTS.get(kind), unit=unit, **facts)
    return PxError(f"the keeper refused: {detail}", unit=unit, refusal=kind)


def _why_not_executed(spec: ChildSpec, number: int) -> exec_failure.Explanation | None:
    program = spec.argv[0]
    seen = exec_failure.look(program, spec.cwd, spec.env)
    return exec_failure.explain(program, number, seen, spec.env.get("PATH", os.defpath))
