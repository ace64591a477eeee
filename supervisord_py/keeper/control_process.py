"""The control plane's process: performs what control_machine.py decides, and reads its channel.

The control plane has a session of its own and does not die with the keeper: it is the guard that
cleans up after one. To it, the end of the channel means that the keeper is dead, so the channel is
closed only after its own end was seen.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket

from supervisord_py.keeper import spawn
from supervisord_py.keeper.control_machine import Action, ControlMachine
from supervisord_py.keeper.protocol import (
    MARK_CONTROL,
    MARK_INSTANCE,
    MARK_UNIT,
    MAX_FRAME,
    FrameSocket,
)
from supervisord_py.keeper.spawn import SpawnError, SpawnPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from supervisord_py.keeper.boot import Boot
    from supervisord_py.keeper.journal import Journal
    from supervisord_py.keeper.loop import Loop
    from supervisord_py.keeper.notifier import Notifier

    Message = dict[str, Any]

BACKLOG_BYTES = 2 * MAX_FRAME
"""What the control plane does not read is queued up to this; then it counts as hung."""
PRIVATE_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", MARK_INSTANCE, MARK_UNIT)
"""Variables that are about the keeper alone: neither the control plane nor a child may believe
them.
"""
CHANNEL_FD = 3
LISTEN_FD = 4
LOCK_FD = 5
EXIT_BAD_SETTINGS = 78
"""Final (sysexits.h, EX_CONFIG): starting again would fail again."""


class ControlProcess:
    """One control plane at a time.

    `strangers` gets its pid while it lives; `receive` is called with each of its requests, and
    `ended` with each of its exit codes (negative: the signal), once.
    """

    def __init__(
        self,
        boot: Boot,
        loop: Loop,
        journal: Journal,
        notifier: Notifier,
        strangers: set[int],
        receive: Callable[[Message, list[int]], None],
        ended: Callable[[int], None],
    ) -> None:
        self._boot = boot
        self._loop = loop
        self._journal = journal
        self._notifier = notifier
        self._strangers = strangers
        self._receive = receive
        self.ended = ended
        self._environ = {
            name: value for name, value in os.environ.items() if name not in PRIVATE_VARIABLES
        }
        self._environ[MARK_CONTROL] = boot.daemon_id
        self._frames: FrameSocket | None = None
        self._is_reading = False  # False once no frame will come any more
        self._is_writing = False  # the socket is full: it is watched until it takes more
        self._report_fd = -1
        self.pid = 0  # 0 where there is none
        self.machine = ControlMachine(
            ping_seconds=boot.watchdog_seconds or notifier.watchdog_seconds / 2,
            hang_seconds=boot.control_hang_seconds,
            backoff_initial_seconds=boot.backoff_initial_seconds,
            backoff_max_seconds=boot.backoff_max_seconds,
        )

    # -- one turn of the loop --------------------------------------------------------------------

    def reconcile(self, now: float, *, is_needed: bool) -> float | None:
        """Do what is due, and send what is queued; return when there is something to do next."""
        action = self.machine.step(now, is_needed=is_needed)
        if action is Action.START:
            self._start(now)
        elif action is Action.PING:
            self.emit({"event": "ping"})
        elif action is not None:
            self._report_kill(action, now)
            self.kill()
        self._flush()
        return self.machine.deadline

    def _report_kill(self, action: Action, now: float) -> None:
        if action is Action.KILL_UNSTARTED:
            self._journal.error("control_silent", pid=self.pid, detail="it never said hello")
        elif action is Action.KILL_HUNG:
            silent_seconds = round(self.machine.silent_seconds(now), 3)
            self._journal.error("control_hung", pid=self.pid, silent_seconds=silent_seconds)

    # -- start -----------------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        try:
            self._fork()
        except OSError as error:  # no descriptor for the channel
            self._start_failed(SpawnError("fds", error.errno), now)
        except SpawnError as error:
            self._start_failed(error, now)
        else:
            self.machine.started(now)
            self._journal.info("control_started", pid=self.pid, restarts=self.machine.restarts)

    def _start_failed(self, error: SpawnError, now: float) -> None:
        self.machine.start_failed(now)
        pause_seconds = round(self.machine.pause_seconds, 3)
        self._journal.error("control_not_started", pause_seconds=pause_seconds, **error.document)
        self._notifier.status(
            f"cannot start the control plane: {error}; next try in {pause_seconds:g} s"
        )

    def _fork(self) -> None:
        """Fork the control plane with its channel.

        Raises SpawnError or OSError, with nothing left open.
        """
        with contextlib.ExitStack() as always, contextlib.ExitStack() as on_failure:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            always.enter_context(theirs)
            on_failure.enter_context(ours)
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            always.callback(os.close, null)
            # Watched before the fork: a descriptor that cannot be watched must not leave a process
            # behind.
            self._loop.watch(ours.fileno(), self._readable)
            on_failure.callback(self._loop.unwatch, ours.fileno())
            plan = SpawnPlan(
                {"argv": self._boot.control_command(), "env": self._environ},
                stdio=(null, 1, 2),
                stored={},
            )
            numbers = (
                (CHANNEL_FD, theirs.fileno()),
                (LISTEN_FD, self._boot.listen_fd),
                (LOCK_FD, self._boot.lock_fd),
            )
            plan.grants = [(number, fd) for number, fd in numbers if fd >= 0]
            frames = FrameSocket(ours)
            self.pid, self._report_fd = spawn.launch(plan)
            # From here on there is a process, and nothing below can fail.
            on_failure.pop_all()
            self._frames = frames
            self._is_reading = True
            self._is_writing = False
            self._strangers.add(self.pid)

    def is_healthy(self, now: float) -> bool:
        """Tell whether the last sign of life is recent enough for the service manager's
        watchdog.
        """
        period = self._boot.watchdog_seconds or self._notifier.watchdog_seconds / 2
        return self.machine.silent_seconds(now) <= self._boot.control_hang_seconds + period

    # -- messages --------------------------------------------------------------------------------

    def reply(self, pid: int, message: Message, fds: Sequence[int] = ()) -> None:
        """Answer the control plane of that pid; an earlier one does not wait any more."""
        if pid == self.pid:
            self._send(message, fds)

    def emit(self, event: Message) -> None:
        if self.machine.is_greeted:
            self._send(event)

    def _send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Queue a frame, with duplicates of `fds`: the frames of one turn go out together at its
        end.
        """
        if self._frames is None or not self._is_reading:
            return
        self._frames.push(message, fds)
        if self._frames.queued > BACKLOG_BYTES:
            self._channel_ended("it does not read what it is sent")

    def _flush(self) -> None:
        """Send what is queued, as far as the socket takes it."""
        if self._frames is None or not self._is_reading:
            return
        if not self._frames.queued and not self._is_writing:
            return
        try:
            is_done = self._frames.flush()
        except OSError:
            return  # the reading side will tell how it ended
        self._loop.watch(self._frames.fileno(), self._readable, None if is_done else self._flush)
        self._is_writing = not is_done

    def _readable(self) -> None:
        assert self._frames is not None
        broken = self._frames.read(self._receive)
        if broken is not None:
            self._channel_ended(broken)

    def hello(self) -> None:
        self.machine.said_hello(self._loop.now())

    def alive(self) -> None:
        self.machine.answered(self._loop.now())

    def _channel_ended(self, broken: str) -> None:
        """No frame will come any more: the process is about to end, or is killed.

        `broken`: what was wrong with the last frame; empty: the other side closed the channel.
        """
        if self._frames is None or not self._is_reading:
            return
        self._is_reading = False
        self._loop.unwatch(self._frames.fileno())
        now = self._loop.now()
        if broken:
            self._journal.error("control_protocol_broken", detail=broken)
            self.machine.leaving(now, is_planned=False, seconds=0.0)
        else:
            self.machine.leaving(now, is_planned=False)

    # -- end -------------------------------------------------------------------------------------

    def replace(self) -> None:
        """Start another one as soon as this one has ended, which it is about to; kill it if it
        does not.
        """
        self.machine.leaving(self._loop.now(), is_planned=True)

    def kill(self) -> None:
        """SIGKILL it.

        That loses nothing: the children are the keeper's. The pid is safe: it is not reaped yet.
        """
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def reap(self, now: float) -> None:
        """See whether it has ended; a duty of its own, before the children's, who see the same
        dead process.
        """
        if not self.pid:
            return
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return
        try:
            self._read_rest()
        finally:
            self._note_end(pid, os.waitstatus_to_exitcode(status), now)

    def _read_rest(self) -> None:
        """Carry out what it had sent before its end: an order that was given counts, like a
        stop.
        """
        if self._frames is None:
            return
        poller = select.poll()
        poller.register(self._frames.fileno(), select.POLLIN)
        # Until nothing is left: whoever else holds its end of the channel sends nothing any more.
        while self._is_reading and poller.poll(0):
            self._readable()

    def _note_end(self, pid: int, code: int, now: float) -> None:
        # First what is, then what may fail: the next turn starts a new one, whatever happens below.
        self.pid = 0
        is_planned = self.machine.is_planned
        lived_seconds = round(self.machine.lived_seconds(now), 3)
        self.machine.ended(now)
        self._strangers.discard(pid)
        frames = self._frames
        self._frames = None
        report_fd = self._report_fd
        self._report_fd = -1
        try:
            self._close_report(report_fd)
            if frames is not None:
                self._loop.unwatch(frames.fileno())
                frames.close()
            facts = {
                "pid": pid,
                "code": code,
                "planned": is_planned,
                "lived_seconds": lived_seconds,
            }
            say = self._journal.info if is_planned else self._journal.warning
            say("control_exited", **facts)
        finally:
            self.ended(code)

    def _close_report(self, report_fd: int) -> None:
        """Read why exec failed, if it did, and close the report pipe."""
        try:
            failure = spawn.read_report(report_fd)
        except OSError:
            failure = None
        os.close(report_fd)
        if failure is not None:
            self._journal.error("control_not_started", **failure.document)
