"""Talk to the service manager (sd_notify(3)): one datagram a fact, nothing where nobody listens.

NOTIFY_SOCKET and the watchdog's variables are taken out of the environment at once: no child may speak for the keeper.
"""

from __future__ import annotations

import os
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping


class Notifier:
    """The line to systemd, or silence.

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
