"""A kernel before anybody asked for it: everything imported, nothing decided; then it waits for its order.

    PYTHON launch.py --px-spare FD [--px-overlay DIR]

Law: until the order there is nothing in this process that a session could tell from a fresh start, but its age: no
folder, no variable, no file of anybody's. What cannot be made equal any more is found here, and then the order is
refused, because a fresh start is always right. Whoever holds the other end of FD owns this process: when it closes, the
process ends.

On FD, a line of JSON each: `{"made_from": {PATH: STAMP…}}` from here; the order `{"argv", "cwd", "env"}`;
`{"fits": true}` or `{"fits": false, "why": TEXT}` from here; at last `{"go": true}`. A stamp is `[device, inode, ctime
in ns]`, null where there is nothing; `argv` is the command line of the fresh start; `env` goes over this environment.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable
    from typing import Any

NICE = 10
PIECE = 65536


class Owner:
    """The other end of the descriptor; when it closes, this process ends without a word."""

    def __init__(self, number: int) -> None:
        import socket

        os.set_inheritable(number, False)
        self.socket: socket.socket = socket.socket(fileno=number)
        self._read = b""

    def tell(self, **members: Any) -> None:
        try:
            self.socket.sendall(json.dumps(members).encode() + b"\n")
        except OSError:
            raise SystemExit(0) from None

    def hear(self) -> dict[str, Any]:
        while b"\n" not in self._read:
            try:
                piece = self.socket.recv(PIECE)
            except OSError:
                piece = b""
            if not piece:
                raise SystemExit(0)
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        members: dict[str, Any] = json.loads(line)
        return members


def wait(number: int, load: Callable[[], Any]) -> tuple[list[str], Any]:
    """Import everything (`load`), and wait; return the command line to go on with, and what `load` returned."""
    stamps = stamped(places())
    loaded = _out_of_the_way(load)
    owner = Owner(number)
    owner.tell(made_from=stamps)
    order = owner.hear()
    why = _become(order)
    owner.tell(fits=why is None, why=why)
    owner.hear()
    owner.socket.close()
    argv: list[str] = order["argv"]
    return argv, loaded


def places() -> list[str]:
    """Return the files and folders that decide what an interpreter is: a change of one makes this process old."""
    folders = [each for each in sys.path if os.path.isdir(each)]
    found = [sys.executable, os.path.join(sys.prefix, "pyvenv.cfg"), os.path.dirname(os.path.abspath(__file__))]
    return found + folders


def stamped(paths: Iterable[str]) -> dict[str, list[int] | None]:
    """Return of each path what differs when something else lies there, or it was changed: whatever its mtime says."""
    found: dict[str, list[int] | None] = {}
    for path in paths:
        try:
            status = os.stat(path)
            found[path] = [status.st_dev, status.st_ino, status.st_ctime_ns]
        except OSError:
            found[path] = None
    return found


def _out_of_the_way(load: Callable[[], Any]) -> Any:
    """Import on a thread of low priority, where threads have one: a process could not get its own back."""
    if not sys.platform.startswith("linux"):
        return load()
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def low() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
            outcome.append(load())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=low, name="px-spare")  # with a name of its own none is used up
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _become(order: dict[str, Any]) -> str | None:
    """Take over folder and environment of the order; return why this process cannot be what was ordered, or None."""
    cwd: str = order["cwd"]
    try:
        os.chdir(cwd)
    except OSError as error:
        return "cannot enter " + cwd + ": " + str(error)
    os.environ.update(order["env"])
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = order["argv"]
    return None
