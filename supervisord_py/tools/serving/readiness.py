"""Watching a start from its first millisecond: ready is whatever says so first, an early exit ends the watch at once.

- READY=1 on the instance's NOTIFY_SOCKET, said by the tool itself.
- An answer to `GET /healthz`: 200. A 5xx means not yet, and it is asked again. Any other answer is that of a tool
  without the path (404): it accepts, so it is ready. Where the tool binds by itself, the listener that answers must
  belong to the child's tree.

Where the listening socket is ours (handover, fd), the question waits in its backlog until the tool accepts; a port is
tried after 2 ms, then at intervals that grow by 1.3 up to 50 ms.

A question that a notification has overtaken is still heard out for a while: hanging up on a tool in the middle of its
answer would put a traceback of our making into its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from supervisord_py.process.placement import Placement
    from supervisord_py.process.spec import ExitRecord
    from supervisord_py.tools.serving.notify import NotifySocket

    RunTask = Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
    from collections.abc import Iterator


T = TypeVar("T")

FIRST_DELAY = 0.002
DELAY_GROWTH = 1.3
LONGEST_DELAY = 0.05
HEARING_SECONDS = 5.0
_ONE_QUESTION_SECONDS = 5.0
_STATUS_LINE_BYTES = 8192
_ANSWER_BYTES = 65536
_ONE_ANSWER_SECONDS = 1.0
_SERVER_ERROR = 500
_NOT_IMPLEMENTED = 501
"""So answers a server that knows no GET at all, as http.server with `do_POST` only: it has no such path either."""


@dataclass(frozen=True, slots=True)
class Ready:
    """It may take work."""


@dataclass(frozen=True, slots=True)
class ExitedEarly:
    """Its leader ended before it was ready."""

    record: ExitRecord


@dataclass(frozen=True, slots=True)
class NotInTime:
    """It lives but nothing said that it is ready. What it listens on instead, and its last word, are evidence."""

    seconds: float
    listening: tuple[Listening, ...]
    last_answer: int | None
    last_status: str


@dataclass(frozen=True, slots=True)
class Stolen:
    """A listener on its port belongs to somebody else."""

    port: int


ReadyOutcome = Ready | ExitedEarly | NotInTime | Stolen


@dataclass(frozen=True, slots=True)
class Watched:
    """Who is watched: instance id, pid of the leader, port on 127.0.0.1, and where it may notify."""

    key: str
    leader: int
    port: int
    notify: NotifySocket


async def ask_healthz(port: int, answered: asyncio.Future[int | None]) -> None:
    """Ask `GET /healthz` on 127.0.0.1:port. `answered` gets its status, or None when there was no HTTP answer.

    It gets ConnectionRefusedError when nobody listens there. The answer is heard out even when nobody waits any more.
    """
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_STATUS_LINE_BYTES)
    except OSError as error:
        if not answered.done():
            answered.set_exception(error)
        return
    try:
        status = await _status(reader, writer, port)
        if not answered.done():
            answered.set_result(status)
        await _hear_out(reader)
    finally:
        writer.close()


async def _status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> int | None:
    try:
        writer.write(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        return _status_of(await reader.readline())
    except (OSError, ValueError):
        return None


async def _hear_out(reader: asyncio.StreamReader) -> None:
    """Read what is left of an answer: a tool that is hung up on writes a traceback into its log."""
    left = _ANSWER_BYTES
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(_ONE_ANSWER_SECONDS):
            while left > 0 and (chunk := await reader.read(left)):
                left -= len(chunk)


def _status_of(line: bytes) -> int | None:
    version, _, rest = line.partition(b" ")
    return int(rest[:3]) if version.startswith(b"HTTP/") and rest[:3].isdigit() else None


class ReadinessWatch:
    """The watch over one start. `extend` is for EXTEND_TIMEOUT_USEC of the tool."""

    def __init__(self, placement: Placement, watched: Watched, run_task: RunTask) -> None:
        self._run_task = run_task
        self._placement = placement
        self._key = watched.key
        self._leader = watched.leader
        self._port = watched.port
        self._notify = watched.notify
        self._last_answer: int | None = None
        self._scope: asyncio.Timeout | None = None
        self._question: asyncio.Task[None] | None = None

    def extend(self, seconds: float) -> None:
        """Move the end of the watch to `seconds` from now."""
        if self._scope is not None and self._scope.when() is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time() + seconds)

    async def watch(self, timeout_seconds: float, *, owns_port: bool) -> ReadyOutcome:
        """Watch until the start is decided; `owns_port` when the instance binds its port by itself."""
        try:
            async with asyncio.timeout(timeout_seconds) as self._scope:
                return await first_of(self._exited(), self._notified(), self._healthy(owns_port=owns_port))
        except TimeoutError:
            listening = await asyncio.to_thread(listening_of, self._leader)
            return NotInTime(timeout_seconds, listening, self._last_answer, self._notify.status)
        finally:
            self._scope = None
            if self._question is not None:
                asyncio.get_running_loop().call_later(HEARING_SECONDS, self._question.cancel)

    async def _exited(self) -> ReadyOutcome:
        return ExitedEarly(await self._placement.wait(self._key))

    async def _notified(self) -> ReadyOutcome:
        await self._notify.is_ready.wait()
        return Ready()

    async def _healthy(self, *, owns_port: bool) -> ReadyOutcome:
        delay, is_ours = FIRST_DELAY, not owns_port
        while True:
            try:
                # In a backlog of ours a question may wait for as long as the tool loads.
                async with asyncio.timeout(_ONE_QUESTION_SECONDS if owns_port else None):
                    answer = await self._ask()
            except (OSError, TimeoutError):
                pass  # nobody listens yet, or the tool has shut the shared socket down; its exit will tell
            else:
                is_ours = is_ours or await asyncio.to_thread(is_listener_of, self._leader, self._port)
                if not is_ours:
                    return Stolen(self._port)
                self._last_answer = answer
                if answer is not None and (answer < _SERVER_ERROR or answer == _NOT_IMPLEMENTED):
                    return Ready()
            await asyncio.sleep(delay)
            delay = min(delay * DELAY_GROWTH, LONGEST_DELAY)

    async def _ask(self) -> int | None:
        """Ask in a task that outlives this watch for a while."""
        answered: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._question = self._run_task(ask_healthz(self._port, answered))
        return await answered


async def first_of(*contestants: Coroutine[Any, Any, T]) -> T:
    """Run all at once and return the first result; the others are cancelled and have ended when this returns.

    Raises:
        Exception: what the first one raised, if it failed instead.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(contestant) for contestant in contestants]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return next(task for task in tasks if task in done).result()


_LOCAL = ("127.0.0.1", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1")  # noqa: S104 - recognised, not bound
_REACHABLE = ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1")  # noqa: S104 - recognised, not bound


@dataclass(frozen=True, slots=True)
class Listening:
    """A listening TCP socket of some process."""

    address: str
    port: int
    pid: int

    @property
    def is_reachable(self) -> bool:
        """True when a connection to 127.0.0.1 finds it."""
        return self.address in _REACHABLE

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def free_port() -> int:
    """Return a port on 127.0.0.1 that is free at this moment; whoever listens there later is looked at."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tree_of(leader: int) -> tuple[int, ...]:
    """Return the pids of a process and its descendants, as far as they live."""
    try:
        root = psutil.Process(leader)
        return (leader, *(child.pid for child in root.children(recursive=True)))
    except psutil.Error:
        return ()


def listening_of(leader: int) -> tuple[Listening, ...]:
    """Return where a tree of processes listens, without duplicates, leader first. Costs milliseconds."""
    found: dict[tuple[str, int], Listening] = {}
    for pid in tree_of(leader):
        for one in _listening_of_process(pid):
            found.setdefault((one.address, one.port), one)
    return tuple(found.values())


def _listening_of_process(pid: int) -> Iterator[Listening]:
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN:
            yield Listening(connection.laddr[0], connection.laddr[1], pid)


def is_listener_of(leader: int, port: int) -> bool:
    """Say whether a process of the tree listens where a connection to 127.0.0.1:port arrives."""
    return any(one.port == port and one.is_reachable for one in listening_of(leader))
