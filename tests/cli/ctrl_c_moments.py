"""Runs one command of `pxctl` again and again in this process, each time with one Ctrl-C at another moment.

A moment is a number: of the events that `sys.setprofile` tells of the main thread (a function is called or returns) up
to when the command only waits. The signal comes just there, inside of destructors and callbacks as well; or, when that
many events do not come, as the command blocks. It comes once.

    ctrl_c_moments.py measure ARGUMENTS…          how many moments there are, on stdout
    ctrl_c_moments.py 5,17,300 ARGUMENTS…         how each of these ended: `moment code`, a line each

The daemon is a stand-in in this process that answers every request with the bytes of the environment's ANSWER (hex),
and then with nothing more.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import sys
import termios
import threading
from typing import Any

from pxctl import interrupts
from pxctl.main import main

TICK_SECONDS = 0.001


class Once:
    """One Ctrl-C: at a moment, or as the command blocks."""

    def __init__(self, moment: int | None) -> None:
        self.events = 0
        self._moment = moment
        self._unpressed = threading.Lock()
        self.is_waiting = False
        self.pressed_at = 0

    def look(self, _: Any, event: str, subject: Any) -> None:
        """What `sys.setprofile` calls."""
        self.is_waiting = event == "c_call" and getattr(subject, "__name__", "") == "poll"
        self.events += 1
        if self.events == self._moment and self._unpressed.acquire(blocking=False):
            self.pressed_at = self.events
            signal.raise_signal(signal.SIGINT)

    def press_if_it_waits(self) -> None:
        """For another thread: the command has all that it gets."""
        events = self.events  # before: the command may go on between any two of these lines
        if self.is_waiting and self._unpressed.acquire(blocking=False):
            self.pressed_at = events
            os.kill(os.getpid(), signal.SIGINT)


class Daemon:
    """Answers on a thread of its own until the client goes."""

    def __init__(self, path: str, answer: bytes) -> None:
        self.once = Once(None)
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(50)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            # One that Ctrl-C cut off in the making may stay open until the garbage is collected.
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve_one, args=(connection, self.once), daemon=True).start()

    def _serve_one(self, connection: socket.socket, once: Once) -> None:
        connection.settimeout(TICK_SECONDS)
        is_answered = False
        while True:
            try:
                if not connection.recv(65536):
                    connection.close()
                    return
                connection.sendall(self._answer)
                is_answered = True
            except TimeoutError:
                if is_answered and unread(connection) == 0:
                    once.press_if_it_waits()
            except OSError:
                return


def unread(connection: socket.socket) -> int:
    """Return how many bytes the other end has not read yet (unix(7), SIOCOUTQ)."""
    return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0\0\0\0"))[0])


def played(once: Once, arguments: list[str]) -> int:
    """Run the command with one Ctrl-C; return its exit code, -1 where it was let out of `main`."""
    # As a process begins: `main` leaves SIGINT to the system.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setprofile(once.look)
    try:
        return main(arguments)
    except KeyboardInterrupt:
        return -1
    finally:
        sys.setprofile(None)
        interrupts.end()


def run() -> None:
    """Play what the command line says."""
    moments, *arguments = sys.argv[1:]
    out = os.dup(1)
    os.dup2(2, 1)  # what the command itself says
    daemon = Daemon(os.environ["PX_SOCKET"], bytes.fromhex(os.environ["ANSWER"]))
    for moment in [None, None] if moments == "measure" else [None, *map(int, moments.split(","))]:
        # The first time everything is imported, which happens once.
        daemon.once = once = Once(moment)
        code = played(once, arguments)
        os.write(out, f"{once.pressed_at} {code}\n".encode())


if __name__ == "__main__":
    run()
