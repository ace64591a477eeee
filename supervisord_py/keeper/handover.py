"""An upgrade in place: the keeper becomes the version that was installed meanwhile, as by `systemctl daemon-reexec`.

Same pid, same children, same descriptors: what is held goes as JSON in a memfd over exec, descriptors by their numbers.
A process of the new version reads it first and says whether it could go on from it; until the exec nothing is let go.
It happens while no control plane lives: between the one that asked for it and the next one, clients wait in the
backlog of the socket, children's output in their pipes, and signals are blocked.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from supervisord_py import __version__
from supervisord_py.keeper import spawn
from supervisord_py.keeper.procfs import slurp
from supervisord_py.keeper.protocol import close_fds
from supervisord_py.keeper.spawn import RefusedError
from supervisord_py.keeper.tree import KILL_SECONDS, HeldChild

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from supervisord_py.keeper.main import Keeper

FORMAT = 1  # of the document; grows when an older or newer keeper could not go on from it
CHECK_SECONDS = 10.0
_VERSION_FILE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__init__.py")


def prepare(keeper: Keeper) -> str | None:
    """Return the installed version, which can go on from here; None: it is ours. Raises RefusedError: why it cannot."""
    try:  # that which lies where this one was loaded from, if one does
        version = slurp(_VERSION_FILE).decode().partition('__version__ = "')[2].partition('"')[0]
    except OSError:
        version = ""
    if version in ("", __version__):
        return None
    try:
        with open(_memfd(_document(keeper)), "rb") as file:
            said = _check(keeper, file.fileno())
    except OSError as error:
        said = str(error)
    if said:
        raise RefusedError("handover", f"the keeper stays version {__version__}: {version} cannot take over: {said}")
    return version


def let_go(keeper: Keeper) -> None:
    """Become the installed version; return only when that failed, with everything as it was."""
    fds: list[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, spawn.CAUGHT)  # pending ones stay so over exec
    try:
        document = _document(keeper)
        children = document["handover"]["children"]
        held = [fd for child in children for fd in (child["report"], *(pipe[0] for pipe in child["pipes"])) if fd >= 0]
        fds = [_memfd(document), *held, *keeper.stored.values(), *keeper.birth.inherited]
        for fd in fds:
            os.set_inheritable(fd, True)
        keeper.birth.restore()
        argv = _argv(fds[0])
        os.execve(argv[0], argv, keeper.birth.environ)  # noqa: S606  exec is the point
    except (OSError, RefusedError) as error:
        for fd in fds:
            os.set_inheritable(fd, False)
        close_fds(fds[:1])
        os.umask(0o077)
        keeper.birth.take_descriptors()
        keeper.journal.error("handover_failed", detail=str(error))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_over(keeper: Keeper, document: dict[str, Any]) -> None:
    keeper.birth.started_at = document["started_at"]
    keeper.stored = document["stored"]
    keeper.control.restarts = document["restarts"]
    keeper.children.take_over(read(document), document["parked"])
    for key, until in document["stops"].items():
        grace = max(0.0, until - keeper.loop.now())
        keeper.ladder.stop(keeper.children.held[key], grace, KILL_SECONDS, keeper.survived)
    count = len(document["children"])
    keeper.journal.info("taken_over", version=__version__, earlier=document["version"], children=count)


def read(document: dict[str, Any]) -> list[HeldChild]:
    """Return the children of a hand-over, and touch nothing. ValueError, KeyError, TypeError: it cannot be used."""
    if document["format"] != FORMAT:
        raise ValueError(f"its format is {document['format']}, {__version__} reads {FORMAT}")
    return [HeldChild.handed_over(child) for child in document["children"]]


def _document(keeper: Keeper) -> dict[str, Any]:
    if degraded := keeper.logs.degraded():
        raise RefusedError("handover", f"output waits in memory for a disk that takes nothing: {', '.join(degraded)}")
    groups = keeper.rungs.groups
    handover = {
        "format": FORMAT,
        "version": __version__,
        "started_at": keeper.birth.started_at,
        "cgroup": groups.path if groups else None,
        "stored": keeper.stored,
        "restarts": keeper.control.restarts + 1,  # the next control plane is one
        "children": keeper.children.hand_over(),
        "parked": {key: group.path for key, group in keeper.children.parked.items()},
        "stops": keeper.ladder.deadlines(),
    }
    return {**keeper.boot.document, "handover": handover}


def _memfd(document: dict[str, Any]) -> int:
    if not hasattr(os, "memfd_create"):
        raise OSError(0, "this platform has no memfd; `pxctl daemon restart --all` replaces the keeper")
    fd = os.memfd_create("pxd-handover", os.MFD_CLOEXEC)
    with open(os.dup(fd), "w") as file:
        json.dump(document, file)
    return fd


def _argv(fd: int, *words: str) -> list[str]:
    return [*sys.orig_argv[: sys.orig_argv.index("--boot-fd")], *words, "--boot-fd", str(fd)]


def _check(keeper: Keeper, fd: int) -> str:
    """Have a process of the installed version read the document; return what it objects to."""
    import subprocess  # only here: the keeper is small

    argv, null, environ = _argv(fd, "--check"), subprocess.DEVNULL, keeper.birth.environ
    try:
        ended = subprocess.run(
            argv, stdin=null, capture_output=True, check=False, env=environ, pass_fds=[fd], timeout=CHECK_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"it does not answer within {CHECK_SECONDS:g} s"
    lines = (ended.stderr + ended.stdout).decode("utf-8", "replace").split("\n")
    return "" if ended.returncode == 0 else next(filter(None, reversed(lines)), f"it ended with {ended.returncode}")
