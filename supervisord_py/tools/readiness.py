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
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisord_py.process.instance import End
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.model import Reason
from supervisord_py.tools import failures
from supervisord_py.tools.manifest import ListenMode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisord_py.process.supervisor import Supervisor
    from supervisord_py.tools.driver import ToolInstance

FIRST_DELAY = 0.002
DELAY_GROWTH = 1.3
LONGEST_DELAY = 0.05
_QUESTION_SECONDS = 5.0
_ANSWER_SECONDS = 1.0
_ANSWER_BYTES = 65536
_MESSAGE_BYTES = 128 * 1024
_MODULE = re.compile(r"[\w.]+")
_IN_USE = re.compile(r"(?i)address already in use|EADDRINUSE")
_LOCAL = ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1")  # noqa: S104  # recognised, not bound


class NotifySocket:
    """The receiving end of one instance's NOTIFY_SOCKET, 0600 in a 0700 directory: whoever can reach it is believed.

    It is read for as long as the instance lives: a full queue would block its senders. The next control plane binds the
    path anew; what was said meanwhile is lost, and `/healthz` tells.
    """

    def __init__(self, run_dir: Path, key: str) -> None:
        """Bind it; raises OSError where the path cannot be bound."""
        self.path = notify_path(run_dir, key)
        self.status = ""
        self.is_ready = asyncio.Event()
        self.on_modules: Callable[[list[str]], None] = lambda _names: None  # told what the tool has imported
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self.path.unlink(missing_ok=True)
            self._socket.bind(str(self.path))
            self.path.chmod(0o600)
        except OSError:
            self._socket.close()
            raise
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._receive)

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


async def until_ready(supervisor: Supervisor, instance: ToolInstance, notify: NotifySocket, seconds: float) -> None:
    """Wait until an instance may take work.

    Raises StartFailedError, ReadinessTimeoutError, ResourceLimitError: why it does not, with evidence.
    """
    spec, port, answers = instance.spec, instance.port, list[int | None]()
    exited = asyncio.ensure_future(supervisor.wait(instance))
    healthy = asyncio.ensure_future(_until_healthy(supervisor, instance, answers))
    contestants: tuple[asyncio.Future[Any], ...] = (exited, healthy, asyncio.ensure_future(notify.is_ready.wait()))
    try:
        done, _ = await asyncio.wait(contestants, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in contestants:
            each.cancel()
        await asyncio.gather(*contestants, return_exceptions=True)
    if exited in done:
        record = exited.result()
        words = await supervisor.last_words(instance)
        if spec.listen is ListenMode.PORT and _IN_USE.search(words):
            raise failures.port_taken(spec, port)
        reason = outcome(record, instance.wanted, ready=False, cpu_limit_seconds=spec.limits.cpu_seconds)
        raise failures.early_exit(spec, End(reason, record, words))
    if not done:
        instance.wanted = instance.wanted or Reason.READINESS_TIMEOUT
        listening, tail = await asyncio.to_thread(listening_of, instance.pid or 0), await supervisor.tail(instance)
        raise failures.not_ready(spec, port, listening, answers[-1] if answers else None, notify.status, tail)
    if healthy in done:
        healthy.result()


async def _until_healthy(supervisor: Supervisor, instance: ToolInstance, answers: list[int | None]) -> None:
    """Ask for `/healthz` until the answer counts; raises StartFailedError: the port is somebody else's."""
    spec, port, delay = instance.spec, instance.port, FIRST_DELAY
    owns_port = spec.listen is ListenMode.PORT
    while True:
        answered: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        # A task of its own: hanging up in the middle of the answer would put a traceback into the tool's log.
        supervisor.task(ask_healthz(port, answered))
        try:
            # In a backlog of ours a question may wait for as long as the tool loads.
            async with asyncio.timeout(_QUESTION_SECONDS if owns_port else None):
                answer = await answered
        except (OSError, TimeoutError):
            pass  # nobody listens yet, or the tool has shut the shared socket down; its exit will tell
        else:
            if owns_port and not await asyncio.to_thread(is_listener_of, instance.pid or 0, port):
                raise failures.port_taken(spec, port)
            answers[:] = [answer]
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

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def listening_of(leader: int) -> tuple[Listening, ...]:
    """Return where a tree of processes listens, without duplicates, leader first. Costs milliseconds."""
    import psutil  # a megabyte that an idle daemon does not need

    found: dict[Listening, None] = {}
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(leader)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error, OSError):
                for each in process.net_connections(kind="tcp"):
                    if each.status == psutil.CONN_LISTEN:
                        found[Listening(*each.laddr[:2])] = None
    return tuple(found)


def is_listener_of(leader: int, port: int) -> bool:
    """Say whether a process of the tree listens where a connection to 127.0.0.1:port arrives."""
    return any(each.port == port and each.address in _LOCAL for each in listening_of(leader))
