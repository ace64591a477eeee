"""Has a family: each word of the command line is one trait; the pids of all go to the file named first, one a line.

child: a child of the same group · daemon: a double-forked one in a session of its own · deaf: everybody ignores TERM ·
exits: the leader exits 7 once its children are there · polite: it exits 0 on TERM · lone: nothing but one process.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def note(path: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")


def linger(path: str, traits: list[str]) -> None:
    if "deaf" in traits:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(path)
    while True:
        signal.pause()


def daemon(path: str, traits: list[str]) -> None:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            linger(path, traits)
        os._exit(0)
    os.waitpid(pid, 0)


def main() -> None:
    path, *traits = sys.argv[1:]
    if "lone" in traits:
        linger(path, traits)
    if "child" in traits and os.fork() == 0:
        linger(path, traits)
    if "daemon" in traits:
        daemon(path, traits)
    if "deaf" in traits:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "polite" in traits:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    expected = ("child" in traits) + ("daemon" in traits)
    while expected and (not Path(path).exists() or len(Path(path).read_text().splitlines()) < expected):
        signal.sigtimedwait([], 0.01)
    note(path)
    if "exits" in traits:
        os._exit(7)
    while True:
        signal.pause()


main()
