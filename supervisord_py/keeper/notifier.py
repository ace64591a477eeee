"""The line to the service manager (sd_notify(3)): one datagram a fact, nothing where none
listens.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping


class Notifier:
    """Takes its variables out of `environ` at once: no child may speak for the keeper.

    `watchdog_seconds`: the period in which the service manager wants to hear from us; 0 for never.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        micros = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        is_ours = pid in ("", str(os.getpid()))
        self.watchdog_seconds = 0.0
        if micros.isdigit() and is_ours and address:
            self.watchdog_seconds = int(micros) / 1e6
        self._feed_at = 0.0

    def reloading(self) -> None:
        micros = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.say(f"RELOADING=1\nMONOTONIC_USEC={micros}")

    def status(self, text: str) -> None:
        self.say("STATUS=" + " ".join(text.split()))

    def stopping(self, seconds: float) -> None:
        """Tell that the end has begun, and how long it may take from now on."""
        self.say(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def extend_timeout(self, seconds: float) -> None:
        """Ask for so many seconds more of whatever is under way: a start, a reload or a stop."""
        self.say(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def feed(self, now: float, *, is_healthy: bool) -> float | None:
        """Say WATCHDOG=1 at twice the wanted rate while all is well; return when to call again."""
        if not self.watchdog_seconds:
            return None
        if now >= self._feed_at:
            self._feed_at = now + self.watchdog_seconds / 2
            if is_healthy:
                self.say("WATCHDOG=1")
        return self._feed_at

    def say(self, text: str) -> None:
        if not self._address:
            return
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        # A service manager that does not listen is never a reason to stop serving.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as sock:
            sock.sendto(text.encode(), self._address)
