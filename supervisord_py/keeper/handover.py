"""An upgrade in place: the keeper becomes the version that was installed meanwhile, as by `systemctl daemon-reexec`.

Same pid, same children, same descriptors: what is held goes as JSON in a memfd over exec, descriptors by their numbers.

    IDLE ──> REHEARSING ──> READY ──> (exec) ──> IDLE
                 └──> IDLE (refused)

Before the exec, the new version is started in full as a trial child (trial.py), with a copy of the hand-over and a
control plane of its own; what it objects to is the answer, and nothing has changed. The exec happens while no control
plane lives: between the one that asked for it and the next one, clients wait in the backlog of the socket, children's
output in their pipes, and signals are blocked. When it fails, the keeper goes on as it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from enum import Enum, auto

from supervisord_py import __version__
from supervisord_py.keeper import spawn
from supervisord_py.keeper.kill_tree import KILL_SECONDS
from supervisord_py.keeper.procfs import slurp
from supervisord_py.keeper.protocol import close_fds
from supervisord_py.keeper.spawn import RefusedError, SpawnPlan
from supervisord_py.keeper.tree import HeldChild

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from supervisord_py.keeper.parts import KeeperParts
    from supervisord_py.keeper.shutdown import Shutdown

    Answer = Callable[[dict[str, Any] | RefusedError], None]

FORMAT = 1
"""Of the document. Members are added within a format; it grows when an older or newer keeper could not go on."""
POLL_SECONDS = 0.05
TRIAL_OUTPUT_BYTES = 64 << 10
_VERSION_FILE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__init__.py")


class UpgradeState(Enum):
    IDLE = auto()
    REHEARSING = auto()
    """A trial of the new version runs, and whoever asked waits for its answer."""
    READY = auto()
    """The new version could serve: the keeper becomes it once the control plane has ended."""


class Upgrade:
    """One keeper's way to another version."""

    def __init__(self, parts: KeeperParts, shutdown: Shutdown) -> None:
        self._parts = parts
        self._shutdown = shutdown
        self.state = UpgradeState.IDLE
        self._version = ""
        self._answers: list[Answer] = []
        self._trial: Trial | None = None

    @property
    def is_due(self) -> bool:
        """Tell whether the keeper is about to exec: no control plane is started any more."""
        return self.state is UpgradeState.READY and not self._parts.control.pid

    def ask(self, answer: Answer) -> None:
        """Rehearse the installed version; answer {"version": it}, {"version": None} where it is ours, or why not."""
        if self.state is UpgradeState.REHEARSING:
            self._answers.append(answer)
            return
        self.state = UpgradeState.IDLE
        version = installed_version()
        if version in ("", __version__):
            answer({"version": None})
            return
        try:
            self._trial = Trial(self._parts)
        except (OSError, RefusedError) as error:
            answer(self._refusal(version, str(error)))
            return
        self._version = version
        self._answers.append(answer)
        self.state = UpgradeState.REHEARSING

    def reconcile(self, now: float) -> float | None:
        if self.state is UpgradeState.REHEARSING:
            return self._follow_trial(now)
        if self.is_due and self._shutdown.is_running:
            if self._parts.children.has_pending_forks:  # their pids are not known yet
                return now + POLL_SECONDS
            # Set first: whatever happens below, a control plane is started again.
            self.state = UpgradeState.IDLE
            let_go(self._parts)
        return None

    def _follow_trial(self, now: float) -> float | None:
        assert self._trial is not None
        problem = self._trial.outcome(now)
        if problem is None:
            return self._trial.deadline
        self._trial.close()
        self._trial = None
        answers = self._answers
        self._answers = []
        outcome: dict[str, Any] | RefusedError = {"version": self._version}
        self.state = UpgradeState.READY
        if problem:
            outcome = self._refusal(self._version, problem)
            self.state = UpgradeState.IDLE
            self._parts.journal.error("upgrade_refused", version=self._version, detail=problem)
        for answer in answers:
            answer(outcome)
        return None

    @staticmethod
    def _refusal(version: str, problem: str) -> RefusedError:
        detail = f"the keeper stays version {__version__}: {version} cannot take over: {problem}"
        return RefusedError("handover", detail)


class Trial:
    """A process of the installed version that does everything but take over. Raises OSError, RefusedError."""

    def __init__(self, parts: KeeperParts) -> None:
        self._parts = parts
        self._output = b""
        self.deadline = parts.loop.now() + parts.boot.trial_seconds
        with contextlib.ExitStack() as stack:
            document = _memfd(_document(parts))
            stack.callback(os.close, document)
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            stack.callback(os.close, null)
            self._reader, writer = spawn.pipe()
            stack.callback(os.close, writer)
            keeps_reader = stack.enter_context(contextlib.ExitStack())
            keeps_reader.callback(os.close, self._reader)
            os.set_blocking(self._reader, False)
            number = max(2, document) + 1
            argv = _argv(number, "--check")
            plan = SpawnPlan({"argv": argv, "env": parts.birth.environ}, (null, writer, writer), {})
            plan.grants = [(number, document)]
            plan.guarded = parts.rungs.subreaper
            self.pid, report = spawn.launch(plan)
            # That exec failed is seen by the exit code, 127; what failed is of no interest.
            os.close(report)
            parts.children.strangers.add(self.pid)
            keeps_reader.pop_all()
        parts.loop.watch(self._reader, self._read)

    def _read(self) -> None:
        """Keep the end of what it writes."""
        try:
            piece = os.read(self._reader, TRIAL_OUTPUT_BYTES)
        except OSError:
            return
        if not piece:
            self._parts.loop.unwatch(self._reader)
        self._output = (self._output + piece)[-TRIAL_OUTPUT_BYTES:]

    def outcome(self, now: float) -> str | None:
        """Return "" when it could serve, why not when it could not, None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0 and now < self.deadline:
            return None
        if pid == 0:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._parts.children.strangers.discard(self.pid)
        if pid == 0:
            return f"it does not answer within {self._parts.boot.trial_seconds:g} s"
        self._read()
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return ""
        lines = self._output.decode("utf-8", "replace").split("\n")
        last_line = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return last_line or f"it ended with {code}"

    def close(self) -> None:
        self._parts.loop.unwatch(self._reader)
        os.close(self._reader)


def installed_version() -> str:
    """Return the version that lies where this one was loaded from; "" where none does."""
    try:
        text = slurp(_VERSION_FILE).decode()
    except (OSError, UnicodeDecodeError):
        return ""
    return text.partition('__version__ = "')[2].partition('"')[0]


def let_go(parts: KeeperParts) -> None:
    """Become the installed version; return only when that failed, with everything as it was."""
    inheritable: list[int] = []
    document_fd = -1
    before = signal.pthread_sigmask(signal.SIG_BLOCK, spawn.CAUGHT)  # pending ones stay so over exec
    try:
        document = _document(parts)
        document_fd = _memfd(document)
        for fd in [document_fd, *_descriptors(parts)]:
            os.set_inheritable(fd, True)
            inheritable.append(fd)
        argv = _argv(document_fd)
        parts.birth.restore()
        os.execve(argv[0], argv, parts.birth.environ)  # noqa: S606  exec is the point
    except (OSError, RefusedError) as error:
        parts.journal.error("handover_failed", detail=str(error))
    finally:
        # Reached only where the exec failed.
        for fd in inheritable:
            with contextlib.suppress(OSError):
                os.set_inheritable(fd, False)
        if document_fd >= 0:
            close_fds([document_fd])
        os.umask(0o077)
        parts.birth.take_descriptors()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _descriptors(parts: KeeperParts) -> list[int]:
    """Return the descriptors that the next version goes on with: what the hand-over and the boot document name."""
    reports = [child.report for child in parts.children.held.values() if child.report >= 0]
    pipes = [pipe.fd for child in parts.children.held.values() for pipe in child.pipes if pipe.fd >= 0]
    return [*reports, *pipes, *parts.stored.values(), *parts.boot.descriptors().values()]


def take_over(parts: KeeperParts, document: dict[str, Any]) -> None:
    """Go on with what an earlier version held."""
    parts.birth.started_at = document["started_at"]
    parts.stored = document["stored"]
    parts.control.machine.restarts = document["restarts"]
    parts.boot.adopt_descriptors(parts.birth.inherited, _handed_over(document))
    parts.children.take_over(read(document), document["parked"])
    count = len(document["children"])
    parts.journal.info("taken_over", version=__version__, earlier=document["version"], children=count)


def resume_stops(parts: KeeperParts, document: dict[str, Any]) -> None:
    """Go on with the stops that were under way."""
    for key, until in document["stops"].items():
        grace = max(0.0, until - parts.loop.now())
        parts.kill_tree.stop(parts.children.held[key], grace, KILL_SECONDS, parts.survived)


def read(document: dict[str, Any]) -> list[HeldChild]:
    """Return the children of a hand-over, and touch nothing. ValueError, KeyError, TypeError: it cannot be used."""
    if document["format"] != FORMAT:
        raise ValueError(f"its format is {document['format']}, {__version__} reads {FORMAT}")
    return [HeldChild.from_json(child) for child in document["children"]]


def _handed_over(document: dict[str, Any]) -> set[int]:
    """Return the descriptors that a hand-over names."""
    fds = set(document["stored"].values())
    for child in document["children"]:
        fds.add(child["report"])
        fds.update(fd for fd, _, _ in child["pipes"])
    return fds


def _document(parts: KeeperParts) -> dict[str, Any]:
    """Return the boot document of the next version, with the hand-over in it. Raises OSError, RefusedError."""
    if degraded := parts.logs.degraded():
        raise RefusedError("handover", f"output waits in memory for a disk that takes nothing: {', '.join(degraded)}")
    groups = parts.rungs.groups
    handover = {
        "format": FORMAT,
        "version": __version__,
        "started_at": parts.birth.started_at,
        "cgroup": groups.path if groups else None,
        "stored": parts.stored,
        "restarts": parts.control.machine.restarts + (1 if parts.control.pid else 0),
        "children": parts.children.to_json(),
        "parked": {key: group.path for key, group in parts.children.parked.items()},
        "stops": parts.kill_tree.deadlines(),
    }
    return {**parts.boot.to_json(), "handover": handover}


def _memfd(document: dict[str, Any]) -> int:
    if not hasattr(os, "memfd_create"):
        raise OSError(0, "this platform has no memfd; `pxctl daemon restart --all` replaces the keeper")
    fd = os.memfd_create("pxd-handover", os.MFD_CLOEXEC)
    try:
        with open(os.dup(fd), "w") as file:
            json.dump(document, file)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _argv(fd: int, *words: str) -> list[str]:
    return [*sys.orig_argv[: sys.orig_argv.index("--boot-fd")], *words, "--boot-fd", str(fd)]
