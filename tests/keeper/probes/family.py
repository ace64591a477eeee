"""Has a family: each word of the command line is one trait; the pids of all go to the file named
first, one a line.

child: a child of the same group · daemon: a double-forked one in a session of its own · deaf:
everybody ignores TERM · exits: the leader exits 7 once its children are there · polite: it exits 0
on TERM.
"""

import os
import signal
import sys
from pathlib import Path

book, traits = Path(sys.argv[1]), sys.argv[2:]


def linger() -> None:
    with book.open("a") as file:
        file.write(f"{os.getpid()}\n")
    while "exits" not in traits or os.getpid() != leader:
        signal.pause()
    os._exit(7)


leader = os.getpid()
book.touch()
if "deaf" in traits:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "child" in traits and os.fork() == 0:
    linger()
if "daemon" in traits:
    if (between := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            linger()
        os._exit(0)
    os.waitpid(between, 0)
if "polite" in traits:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while len(book.read_text().splitlines()) < ("child" in traits) + ("daemon" in traits):
    signal.sigtimedwait([], 0.01)
linger()
