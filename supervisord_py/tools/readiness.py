"""Readiness, when a starting tool may take work: whatever says so first; an early exit ends the wait at once.

- READY=1 on the instance's NOTIFY_SOCKET, said by the tool itself (sd_notify(3)).
- An answer to `GET /healthz`: 200. A 5xx means not yet, and it is asked again. Any other answer is that of a tool
  without the path (404): it accepts, so it is ready. Where the tool binds by itself, the listener that answers must
  belong to the child's tree.

Where the listening socket is ours (handover, fd), the question waits in its backlog until the tool accepts; a port is
tried after 2 ms, then at intervals that grow by 1.3 up to 50 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from typing import Any

    from supervisord_py.process.model import ExitRecord

FIRST_DELAY = 0.002
DELAY_GROWTH = 1.3
LONGEST_DELAY = 0.05
HEARING_SECONDS = 5.0
_QUESTION_SECONDS = 5.0
_ANSWER_SECONDS = 1.0
_ANSWER_BYTES = 65536
_MESSAGE_BYTES = 128 * 1024
_MODULE = re.compile(r"[\w.]+")
_LOCAL = ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1")  # noqa: S104  # recognised, not bound


class NotifySocket:
    """The receiving end of one instance's NOTIFY_SOCKET, 0600 in a 0700 directory: whoever can reach it is believed.

    The keeper has a duplicate, so that a word said while the control plane is away waits for the next one. It is read
    for as long as the instance lives: a full queue would block its senders.
    """

    def __init__(self, receiving: socket.socket, path: Path) -> None:
        receiving.setblocking(False)
        self.path = path
        self.status = ""
        self.is_ready = asyncio.Event()
        self.on_modules: Callable[[list[str]], None] = lambda _names: None  # told what the tool has imported
        self._socket = receiving
        asyncio.get_running_loop().add_reader(receiving.fileno(), self._receive)

    @classmethod
    def create(cls, run_dir: Path, key: str) -> NotifySocket:
        """Bind a new one; raises OSError where the path cannot be bound."""
        path = notify_path(run_dir, key)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        receiving = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            path.unlink(missing_ok=True)
            receiving.bind(str(path))
            path.chmod(0o600)
            return cls(receiving, path)
        except OSError:
            receiving.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor, to deposit a duplicate of it."""
        return self._socket.fileno()

    def _receive(self) -> None:
        for _ in range(64):  # bounded: a chatterbox must not keep the loop from everybody else
            try:
                message = self._socket.recv(_MESSAGE_BYTES)
            except OSError:
                return
            for line in message.decode(errors="replace").splitlines():
                name, _, value = line.partition("=")
                if name == "READY" and value == "1":
                    self.is_ready.set()
                elif name == "STATUS":
                    self.status = value
                elif name == "X_PX_MODULES":
                    self.on_modules([each for each in value.split(",") if _MODULE.fullmatch(each)])

    def close(self) -> None:
        """Stop listening and close our end; the file stays for a later control plane."""
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()


def notify_path(run_dir: Path, key: str) -> Path:
    """Return where the notification socket of an instance lies; short, because sun_path holds 104 bytes at least."""
    return run_dir / "n" / key.rpartition(".")[2]


class ExitedEarly(Exception):  # an outcome that ends the wait, told by `record`
    """The leader ended before it was ready."""

    def __init__(self, record: ExitRecord) -> None:
        super().__init__("exited early")
        self.record = record


class NotInTime(Exception):
    """It lives but nothing said that it is ready. What it listens on instead, and its last word, are evidence."""

    def __init__(self, listening: tuple[Listening, ...], answer: int | None, status: str) -> None:
        super().__init__("not ready in time")
        self.listening = listening
        self.last_answer = answer
        self.last_status = status


class PortTaken(Exception):
    """A listener on its port belongs to somebody else."""


class ReadinessWatch:
    """The wait for one start.

    Args:
        leader: pid of the child.
        port: On 127.0.0.1.
        owns_port: The tool binds the port by itself.
        exited: Waits for the exit record.
        run_task: Runs a question that outlives the wait: hanging up on a tool in the middle of its answer would put a
            traceback of our making into its log.
    """

    def __init__(
        self,
        leader: int,
        port: int,
        *,
        owns_port: bool,
        notify: NotifySocket,
        exited: Coroutine[Any, Any, ExitRecord],
        run_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self.leader = leader
        self.port = port
        self._owns_port = owns_port
        self._notify = notify
        self._exited = exited
        self._run_task = run_task
        self._last_answer: int | None = None
        self._question: asyncio.Task[None] | None = None

    async def wait(self, timeout_seconds: float) -> None:
        """Return when the tool is ready. Raises ExitedEarly, NotInTime, PortTaken: it is not."""
        exited, healthy = asyncio.ensure_future(self._exited), asyncio.ensure_future(self._healthy())
        contestants = [exited, healthy, asyncio.ensure_future(self._notify.is_ready.wait())]
        try:
            done, _ = await asyncio.wait(contestants, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            if exited in done:
                raise ExitedEarly(exited.result())
            if not done:
                listening = await asyncio.to_thread(listening_of, self.leader)
                raise NotInTime(listening, self._last_answer, self._notify.status)
            if healthy in done:
                healthy.result()
        finally:
            for each in contestants:
                each.cancel()
            await asyncio.gather(*contestants, return_exceptions=True)
            if self._question is not None:
                asyncio.get_running_loop().call_later(HEARING_SECONDS, self._question.cancel)

    async def _healthy(self) -> None:
        delay, is_ours = FIRST_DELAY, not self._owns_port
        while True:
            try:
                # In a backlog of ours a question may wait for as long as the tool loads.
                async with asyncio.timeout(_QUESTION_SECONDS if self._owns_port else None):
                    answered: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
                    self._question = self._run_task(ask_healthz(self.port, answered))
                    answer = await answered
            except (OSError, TimeoutError):
                pass  # nobody listens yet, or the tool has shut the shared socket down; its exit will tell
            else:
                is_ours = is_ours or await asyncio.to_thread(is_listener_of, self.leader, self.port)
                if not is_ours:
                    raise PortTaken(f"port {self.port}")
                self._last_answer = answer
                # 501 is what http.server with `do_POST` only says: it has no such path either.
                if answer is not None and (answer < 500 or answer == 501):
                    return
            await asyncio.sleep(delay)
            delay = min(delay * DELAY_GROWTH, LONGEST_DELAY)


async def ask_healthz(port: int, answered: asyncio.Future[int | None]) -> None:
    """Ask `GET /healthz` on 127.0.0.1:port. `answered` gets its status, or None when there was no HTTP answer.

    It gets OSError when nobody listens there. The answer is read to its end even when nobody waits any more.
    """
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=8192)
    except OSError as error:
        if not answered.done():
            answered.set_exception(error)
        return
    try:
        status = None
        with contextlib.suppress(OSError, ValueError):
            writer.write(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
            version, _, rest = (await reader.readline()).partition(b" ")
            status = int(rest[:3]) if version.startswith(b"HTTP/") and rest[:3].isdigit() else None
        if not answered.done():
            answered.set_result(status)
        left = _ANSWER_BYTES
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                while left > 0 and (chunk := await reader.read(left)):
                    left -= len(chunk)
    finally:
        writer.close()


class Listening(NamedTuple):
    """A listening TCP socket of some process."""

    address: str
    port: int
    pid: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def listening_of(leader: int) -> tuple[Listening, ...]:
    """Return where a tree of processes listens, without duplicates, leader first. Costs milliseconds."""
    import psutil  # a megabyte that an idle daemon does not need

    found: dict[tuple[str, int], Listening] = {}
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(leader)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error, OSError):
                for each in process.net_connections(kind="tcp"):
                    if each.status == psutil.CONN_LISTEN:
                        found.setdefault(each.laddr[:2], Listening(*each.laddr[:2], process.pid))
    return tuple(found.values())


def is_listener_of(leader: int, port: int) -> bool:
    """Say whether a process of the tree listens where a connection to 127.0.0.1:port arrives."""
    return any(each.port == port and each.address in _LOCAL for each in listening_of(leader))
