"""Keep the control plane running: start it, hear whether it makes progress, replace it, at its pace and no faster.

It is in a session of its own and does not die with the keeper: it is the guard that cleans up after one. To it, the end
of the channel means that the keeper is dead, so the channel is closed only after its own end was seen. An exit code of
78 (bad settings) is final: starting again would fail again.
"""

from __future__ import annotations

import os
import signal
import socket
import time

from supervisord_py.keeper import spawn
from supervisord_py.keeper.channel import Channel
from supervisord_py.keeper.spawn import Plan, SpawnError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from typing import Any

    from supervisord_py.keeper.channel import Receive
    from supervisord_py.keeper.context import Boot, Rungs
    from supervisord_py.keeper.journal import Journal
    from supervisord_py.keeper.loop import Loop, Timer

CHANNEL_FD = 3
LISTEN_FD = 4
LOCK_FD = 5
EXIT_BAD_SETTINGS = 78
START_SECONDS = 60.0
"""A control plane that has not said hello by then never will."""
LEAVE_SECONDS = 5.0
"""How long one that is to be replaced may take to finish its answers."""
BACKOFF_RESET_SECONDS = 60.0
"""A life of at least this proves health."""
MARK_CONTROL = "PX_CONTROL"


class Backoff:
    """The pauses between unplanned ends, in seconds: each one doubles the next, up to `cap`."""

    __slots__ = ("_cap", "_initial", "failures")

    def __init__(self, initial: float, cap: float) -> None:
        self._initial = max(0.0, initial)
        self._cap = max(self._initial, cap)
        self.failures = 0

    def after_end(self, lived: float) -> float:
        """Return the pause after an unplanned end of a life that lasted `lived` seconds."""
        if lived >= BACKOFF_RESET_SECONDS:
            self.failures = 0
        self.failures += 1
        # The exponent is bounded: 2.0 ** 2000 would overflow after a night of failures.
        return min(self._cap, self._initial * 2.0 ** min(self.failures - 1, 60))


class Control:
    """The control plane's process, one at a time.

    Args:
        environ: The environment it gets, the mark added.
        receive: Takes its frames.
        ended: Told each time it has ended, with its exit code, before anything is started again.
    """

    __slots__ = (
        "_answered", "_backoff", "_boot", "_channel", "_ended", "_environ", "_journal", "_loop", "_notifier",
        "_period", "_pid_began", "_pidfd", "_receive", "_report", "_restart_timer", "_rungs", "_tick_timer",
        "_unanswered", "_watchdog_timer", "pid", "planned", "restarts", "said_hello", "strangers", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        loop: Loop,
        boot: Boot,
        rungs: Rungs,
        journal: Journal,
        notifier: Notifier,
        *,
        environ: dict[str, str],
        strangers: set[int],
        receive: Receive,
        ended: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._boot = boot
        self._rungs = rungs
        self._journal = journal
        self._notifier = notifier
        self._environ = {**environ, MARK_CONTROL: boot.daemon_id}
        self._receive = receive
        self._ended = ended
        self._backoff = Backoff(boot.backoff_initial_seconds, boot.backoff_max_seconds)
        self._period = boot.watchdog_seconds or notifier.watchdog_seconds / 2
        self._channel: Channel | None = None
        self._pidfd = self._report = -1
        self._pid_began = self._answered = 0.0
        self._unanswered = 0
        """Pings, one a period, since its last answer: a keeper that was stopped itself has asked nothing meanwhile."""
        self._restart_timer: Timer | None = None
        self._tick_timer: Timer | None = None
        self._watchdog_timer: Timer | None = None
        self.strangers = strangers
        self.pid = 0
        self.restarts = 0
        self.planned = False
        self.said_hello = False
        self.wanted = True
        """False once the keeper stops: an end is then final."""

    @property
    def connected(self) -> bool:
        """Whether there is one that has said hello."""
        return self.pid > 0 and self.said_hello

    def start(self) -> None:
        """Start one now."""
        self._restart_timer = None
        if not self.wanted or self.pid:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._launch(theirs)
        except SpawnError as error:
            ours.close()
            self._journal.error("control_not_started", stage=error.stage, errno=error.error, detail=str(error))
            self._again(self._backoff.after_end(0.0))
            return
        finally:
            theirs.close()
        self._channel = Channel(self._loop, ours, self._receive, self._lost)
        self.said_hello = self.planned = False
        self._pid_began = self._loop.now()
        self._journal.info("control_started", pid=self.pid, restarts=self.restarts)
        self._tick_timer = self._loop.later(max(START_SECONDS, 2 * self._boot.control_hang_seconds), self._overdue)
        if self._watchdog_timer is None and self._notifier.watchdog_seconds:
            self._answered = self._loop.now()
            self._feed()

    def _launch(self, theirs: socket.socket) -> None:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            plan = Plan(self._boot.control_argv, self._environ, (null, 1, 2))
            plan.ignored = spawn.ignored_signals()
            numbers = ((CHANNEL_FD, theirs.fileno()), (LISTEN_FD, self._boot.listen_fd), (LOCK_FD, self._boot.lock_fd))
            plan.grants = [(number, fd) for number, fd in numbers if fd >= 0]
            self.pid, self._report = spawn.launch(plan)
        finally:
            os.close(null)
        self.strangers.add(self.pid)
        self._loop.watch(self._report, self._confirm)
        if self._rungs.pidfd:
            try:
                self._pidfd = os.pidfd_open(self.pid)
            except OSError:
                return  # SIGCHLD tells as well
            self._loop.watch(self._pidfd, self.reap)

    def reply(self, pid: int, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Answer the control plane of that pid; what another one asked is nobody's business any more."""
        if self._channel is not None and pid == self.pid:
            self._channel.send(message, fds)

    def emit(self, event: dict[str, Any]) -> None:
        """Tell it something, if there is one that has said hello."""
        if self._channel is not None and self.said_hello:
            self._channel.send(event)

    def hello(self) -> None:
        """It speaks; from now on it gets events and is asked for signs of life."""
        self.said_hello = True
        self.alive()
        self._schedule_ping()

    def alive(self) -> None:
        """It makes progress."""
        self._answered = self._loop.now()
        self._unanswered = 0

    def replace(self) -> None:
        """Start another one as soon as this one has ended, which it is about to; kill it if it does not."""
        self.planned = True
        self._kill_later()

    def _kill_later(self) -> None:
        pid = self.pid
        self._loop.later(LEAVE_SECONDS, lambda: self.kill() if self.pid == pid else None)

    def kill(self) -> None:
        """SIGKILL it; that loses nothing, the children are ours. The number is safe: it is not reaped yet."""
        if self.pid:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def reap(self) -> None:
        """Reap it if it has ended, and start another one in due time."""
        if not self.pid:
            return
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = self.pid, 0
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        lived = self._loop.now() - self._pid_began
        if self._report >= 0:
            self._confirm()
        self._forget()
        self._journal.warning("control_exited", pid=pid, code=code, planned=self.planned, lived_seconds=round(lived, 3))
        self._ended(code)
        if self.wanted:
            self._again(0.0 if self.planned else self._backoff.after_end(lived))

    def _again(self, pause: float) -> None:
        self.restarts += 1
        if pause:
            self._notifier.status(f"control plane starts again in {pause:.1f} s")
        if self._restart_timer is None:
            self._restart_timer = self._loop.later(pause, self.start)

    def _forget(self) -> None:
        self.strangers.discard(self.pid)
        self.pid = 0
        self.said_hello = False
        for fd in (self._pidfd, self._report):
            if fd >= 0:
                self._loop.unwatch(fd)
                os.close(fd)
        self._pidfd = self._report = -1
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._tick_timer is not None:
            self._tick_timer.cancel()
            self._tick_timer = None

    def _confirm(self) -> None:
        try:
            failure = spawn.read_report(self._report)
        except BlockingIOError:
            return
        self._loop.unwatch(self._report)
        os.close(self._report)
        self._report = -1
        if failure is not None:
            self._journal.error("control_not_started", stage=failure.stage, errno=failure.error, detail=str(failure))

    def _lost(self, why: str) -> None:
        """No frame will come any more: it is about to end, with a code that tells why; or it must."""
        if why == "closed":
            self._kill_later()
            return
        self._journal.error("control_protocol_broken", detail=why)
        self.kill()

    def _overdue(self) -> None:
        self._journal.error("control_silent", pid=self.pid, detail="it never said hello")
        self.kill()

    def _schedule_ping(self) -> None:
        if self._tick_timer is not None:
            self._tick_timer.cancel()
            self._tick_timer = None
        if self._period:
            self._tick_timer = self._loop.later(self._period, self._ping)

    def _ping(self) -> None:
        if self._unanswered and self._unanswered * self._period >= self._boot.control_hang_seconds:
            silent = self._loop.now() - self._answered
            self._journal.error("control_hung", pid=self.pid, silent_seconds=round(silent, 3))
            self.kill()
            return
        self._unanswered += 1
        self.emit({"event": "ping"})
        self._schedule_ping()

    def _feed(self) -> None:
        """Say WATCHDOG=1 at twice the wanted rate, as long as the control plane's last answer came in time."""
        if self._loop.now() - self._answered <= self._boot.control_hang_seconds + self._period:
            self._notifier.watchdog()
        self._watchdog_timer = self._loop.later(self._notifier.watchdog_seconds / 2, self._feed)


class Notifier:
    """The line to the service manager (sd_notify(3)): one datagram a fact, nothing where nobody listens.

    Its variables are taken out of the environment at once: no child may speak for the keeper.

    Attributes:
        watchdog_seconds: Period in which the service manager wants to hear from us; 0 for never.
    """

    __slots__ = ("_address", "_reloading", "_said_ready", "watchdog_seconds")

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        micros = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._said_ready = False
        self._reloading = False
        mine = pid in ("", str(os.getpid()))
        self.watchdog_seconds = int(micros) / 1e6 if micros.isdigit() and mine and address else 0.0

    def ready(self) -> None:
        """The API serves: READY=1, the first time and after a reload."""
        if not self._said_ready or self._reloading:
            self._said_ready = True
            self._reloading = False
            self._send("READY=1")

    def reloading(self) -> None:
        """A reload begins; it ends with `ready()`."""
        self._reloading = True
        micros = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={micros}")

    def status(self, text: str) -> None:
        """One line for people."""
        self._send("STATUS=" + " ".join(text.split()))

    def stopping(self) -> None:
        """The end begins."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """Both loops make progress."""
        self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto(text.encode(), self._address)
        except OSError:
            return  # nobody listens: never a reason to stop serving
