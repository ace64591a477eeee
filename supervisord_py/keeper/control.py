"""Keep the control plane running: start it, hear whether it makes progress, replace it, at its pace and no faster.

It is in a session of its own and does not die with the keeper: it is the guard that cleans up after one. To it, the end
of the channel means that the keeper is dead, so the channel is closed only after its own end was seen. An exit code of
78 (bad settings) is final: starting again would fail again. The line to the service manager (sd_notify) is here too:
its watchdog is fed only while both loops make progress.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

from supervisord_py.keeper import spawn
from supervisord_py.keeper.protocol import MARK_CONTROL, MARK_INSTANCE, MARK_UNIT, MAX_FRAME, FrameSocket
from supervisord_py.keeper.spawn import SpawnError, SpawnPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence
    from typing import Any

    from supervisord_py.keeper.boot import Boot, Journal
    from supervisord_py.keeper.loop import Loop, Timer

    Message = dict[str, Any]

BACKLOG_BYTES = 2 * MAX_FRAME  # what the control plane does not read is queued up to this; then it counts as hung
_PRIVATE = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", MARK_INSTANCE, MARK_UNIT)
"""Variables that are about the keeper alone: the control plane may not believe them, nor a child."""
CHANNEL_FD = 3
LISTEN_FD = 4
LOCK_FD = 5
EXIT_BAD_SETTINGS = 78
START_SECONDS = 60.0  # a control plane that has not said hello by then never will
LEAVE_SECONDS = 5.0  # how long one that is to be replaced may take to finish its answers
HEALTHY_SECONDS = 60.0  # a life of at least this proves health
FREE_FAILURES = 3  # so many deaths in a row are answered at once; only then do the pauses begin


def pause_after(failures: int, initial: float, cap: float) -> float:
    if failures <= FREE_FAILURES:
        return 0.0
    # The exponent is bounded: 2.0 ** 2000 would overflow after a night of failures.
    return min(max(initial, cap), initial * 2.0 ** min(failures - FREE_FAILURES - 1, 60))


class ControlProcess:
    """The control plane's process, one at a time.

    `strangers` gets its pid while it lives; `receive` each of its requests, `ended` each of its exit codes.
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
        self._boot, self._loop, self._journal, self._notifier = boot, loop, journal, notifier
        self._strangers, self._receive, self._ended = strangers, receive, ended
        self._environ = {name: value for name, value in os.environ.items() if name not in _PRIVATE}
        self._environ[MARK_CONTROL] = boot.daemon_id
        self._period = boot.watchdog_seconds or self._notifier.watchdog_seconds / 2
        self._frames: FrameSocket | None = None
        self._reading = False  # False once no frame will come any more
        self._report = -1
        self._began = self._answered = loop.now()
        self._unanswered = 0
        """Pings, one a period, since its last answer: a keeper that was stopped itself has asked nothing meanwhile."""
        self._failures = 0
        self._tick_timer: Timer | None = None
        self.pid = 0  # 0 where there is none
        self.restarts = 0  # how often one was started again
        self.planned = False  # it was asked to leave
        self.said_hello = False  # it speaks: it gets events and is asked for signs of life
        self.wanted = True  # False once the keeper stops: an end is then final
        if notifier.watchdog_seconds:
            loop.later(0, self._feed)

    def start(self) -> None:
        if not self.wanted or self.pid:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        plan = SpawnPlan({"argv": self._boot.control_argv, "env": self._environ}, (null, 1, 2), {})
        numbers = ((CHANNEL_FD, theirs.fileno()), (LISTEN_FD, self._boot.listen_fd), (LOCK_FD, self._boot.lock_fd))
        plan.grants = [(number, fd) for number, fd in numbers if fd >= 0]
        try:
            self.pid, self._report = spawn.launch(plan)
        except SpawnError as error:
            ours.close()
            self._journal.error("control_not_started", **error.document)
            self._start_again(0.0)
            return
        finally:
            os.close(null)
            theirs.close()
        self._strangers.add(self.pid)
        self._frames, self._reading = FrameSocket(ours), True
        self._loop.watch(ours.fileno(), self._readable)
        self.said_hello = self.planned = False
        self._began = self._loop.now()
        self._journal.info("control_started", pid=self.pid, restarts=self.restarts)
        self._tick(max(START_SECONDS, 2 * self._boot.control_hang_seconds), self._overdue)

    def reply(self, pid: int, message: Message, fds: Sequence[int] = ()) -> None:
        """Answer the control plane of that pid; what another one asked is nobody's business any more."""
        if pid == self.pid:
            self._send(message, fds)

    def emit(self, event: Message) -> None:
        if self.said_hello:
            self._send(event)

    def _send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Queue a frame, with duplicates of `fds`: nothing here ever waits, and what one turn says goes out at once."""
        if self._frames is None:
            return
        if not self._frames.queued:
            self._loop.later(0, self._flush)
        self._frames.push(message, fds)
        if self._frames.queued > BACKLOG_BYTES:
            self._channel_ended("it does not read what it is sent")

    def _flush(self) -> None:
        if self._frames is None or not self._reading:
            return
        with contextlib.suppress(OSError):  # the reading side will say how it ended
            done = self._frames.flush()
            self._loop.watch(self._frames.fileno(), self._readable, None if done else self._flush)

    def _readable(self) -> None:
        assert self._frames is not None
        broken = self._frames.read(self._receive)
        if broken is not None:
            self._channel_ended(broken)

    def hello(self) -> None:
        self.said_hello = True
        self.alive()
        self._tick(self._period, self._ping)

    def alive(self) -> None:
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
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        if not self.pid:
            return
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        lived = self._loop.now() - self._began
        if (failure := spawn.read_report(self._report)) is not None:
            self._journal.error("control_not_started", **failure.document)
        os.close(self._report)
        self._strangers.discard(pid)
        self.pid = 0
        self.said_hello = False
        if self._frames is not None:
            self._loop.unwatch(self._frames.fileno())
            self._frames.close()
            self._frames = None
        self._tick(0, None)
        self._journal.warning("control_exited", pid=pid, code=code, planned=self.planned, lived_seconds=round(lived, 3))
        self._ended(code)
        if self.wanted:
            self._start_again(lived)

    def _start_again(self, lived: float) -> None:
        pause = 0.0
        if not self.planned:
            self._failures = 1 if lived >= HEALTHY_SECONDS else self._failures + 1
            pause = pause_after(self._failures, self._boot.backoff_initial_seconds, self._boot.backoff_max_seconds)
        self.restarts += 1
        if pause:
            self._notifier.status(f"control plane starts again in {pause:.1f} s")
        self._loop.later(pause, self.start)

    def _channel_ended(self, broken: str) -> None:
        """No frame will come any more: it is about to end, with a code that tells why; or it must."""
        if self._frames is None or not self._reading:
            return
        self._reading = False
        self._loop.unwatch(self._frames.fileno())
        if broken:
            self._journal.error("control_protocol_broken", detail=broken)
            self.kill()
        else:
            self._kill_later()

    # -- signs of life -----------------------------------------------------------------------------------------------

    def _tick(self, seconds: float, callback: Callable[[], None] | None) -> None:
        """Call that next, and nothing that was to be called before; 0 for nothing."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._tick_timer = self._loop.later(seconds, callback) if seconds and callback else None

    def _overdue(self) -> None:
        self._journal.error("control_silent", pid=self.pid, detail="it never said hello")
        self.kill()

    def _ping(self) -> None:
        if self._unanswered and self._unanswered * self._period >= self._boot.control_hang_seconds:
            silent = self._loop.now() - self._answered
            self._journal.error("control_hung", pid=self.pid, silent_seconds=round(silent, 3))
            self.kill()
            return
        self._unanswered += 1
        self.emit({"event": "ping"})
        half = self._period / 2  # next at a multiple of the period: most often who is asked is awake then
        self._tick(3 * half - (self._loop.now() + half) % self._period, self._ping)

    def _feed(self) -> None:
        """Say WATCHDOG=1 at twice the wanted rate, as long as the control plane's last answer came in time."""
        if self._loop.now() - self._answered <= self._boot.control_hang_seconds + self._period:
            self._notifier.say("WATCHDOG=1")
        self._loop.later(self._notifier.watchdog_seconds / 2, self._feed)


class Notifier:
    """The line to the service manager (sd_notify(3)): one datagram a fact, nothing where nobody listens.

    Its variables are taken out of the environment at once: no child may speak for the keeper. `watchdog_seconds`: the
    period in which the service manager wants to hear from us; 0 for never.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        micros = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        mine = pid in ("", str(os.getpid()))
        self.watchdog_seconds = int(micros) / 1e6 if micros.isdigit() and mine and address else 0.0

    def reloading(self) -> None:
        self.say(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def status(self, text: str) -> None:
        self.say("STATUS=" + " ".join(text.split()))

    def say(self, text: str) -> None:
        if self._address:
            kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
            # Nobody listens: never a reason to stop serving.
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as sock:
                sock.sendto(text.encode(), self._address)
