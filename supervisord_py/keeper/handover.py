"""An upgrade in place: the keeper becomes the version that was installed meanwhile, as by
`systemctl daemon-reexec`.

Same pid, same children, same descriptors: what is held goes as JSON in a memfd over exec,
descriptors by their numbers.

    IDLE ──> REHEARSING ──> READY ──> (exec) ──> PROVING ──> IDLE
                 └──> IDLE (refused)                └──> (exec back) ──> PROVING

Before the exec, the new version is started in full as a trial child (trial.py), with a copy of the
hand-over and a control plane of its own; what it objects to is the answer, and nothing has changed.
The exec happens while no control plane lives: between the one that asked for it and the next one,
clients wait in the backlog of the socket, children's output in their pipes, and signals are
blocked. When it fails, the keeper goes on as it was.

After the exec the new version has to prove itself: until a control plane of it has been ready, the
version before it, of which the control plane keeps a copy (daemon/kept_version.py), is gone back to
when none comes up.
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

    from supervisord_py.keeper.boot import Boot
    from supervisord_py.keeper.parts import KeeperParts
    from supervisord_py.keeper.shutdown import Shutdown

    Answer = Callable[[dict[str, Any] | RefusedError], None]

FORMAT = 1
"""Of the document.

Members are added within a format; it grows when an older or newer keeper could not go on.
"""
CAN_REHEARSE = hasattr(os, "memfd_create")
"""Not on macOS: there a restart replaces the control plane without a trial, and an upgrade needs
`restart --all`.
"""
POLL_SECONDS = 0.05
PROOF_FAILURES = 3
"""Control planes of a new version that end, one after the other, before one was ready: then it
is given up.
"""
PROOF_SECONDS = 90.0
"""In which one of them has to be ready: it may have to migrate a large ledger.

A client of `restart` waits longer.
"""
TRIAL_PASSED = "px-trial-passed"
"""The last line that a trial writes when its version could serve."""
EXIT_CANNOT_GO_ON = 3
"""Of a trial: this version could start, and cannot go on from this hand-over."""
TRIAL_OUTPUT_BYTES = 64 << 10


class UpgradeState(Enum):
    IDLE = auto()
    REHEARSING = auto()
    """A trial of the installed version runs, and whoever asked waits for its answer."""
    READY = auto()
    """The new version could serve: the keeper becomes it once the control plane has ended."""
    PROVING = auto()
    """This version has taken over, and no control plane of it has been ready yet."""


TRANSITIONS: dict[UpgradeState, frozenset[UpgradeState]] = {
    UpgradeState.IDLE: frozenset({UpgradeState.REHEARSING}),
    UpgradeState.REHEARSING: frozenset({UpgradeState.IDLE, UpgradeState.READY}),
    UpgradeState.READY: frozenset({UpgradeState.IDLE, UpgradeState.REHEARSING}),
    UpgradeState.PROVING: frozenset({UpgradeState.IDLE}),
}
"""A keeper begins as IDLE, or after a hand-over as PROVING."""


class Version:
    """A version that the keeper may become: `main` is the path of its keeper/__main__.py."""

    def __init__(self, version: str, main: str, kept_root: str = "") -> None:
        self.version = version
        self.main = main
        # of a kept copy: the folder that its package lies in; "": it is installed
        self.kept_root = kept_root

    def to_json(self) -> dict[str, Any]:
        return {"version": self.version, "main": self.main, "kept_root": self.kept_root}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Version:
        return cls(document["version"], document["main"], document["kept_root"])


class Upgrade:
    """One keeper's way to another version."""

    def __init__(self, parts: KeeperParts, shutdown: Shutdown) -> None:
        self._parts = parts
        self._shutdown = shutdown
        self.state = UpgradeState.IDLE
        self._next: Version | None = None  # that is rehearsed, or ready
        self._previous: Version | None = None  # to go back to while this one proves itself
        self._prove_by = 0.0
        # the version that did not come up, when this one was gone back to
        self.rolled_back_from: str | None = None
        self._answers: list[Answer] = []
        self._trial: Trial | None = None

    @property
    def is_due(self) -> bool:
        """Tell whether the keeper is about to exec: no control plane is started any more."""
        return self.state is UpgradeState.READY and not self._parts.control.pid

    @property
    def is_proving(self) -> bool:
        return self.state is UpgradeState.PROVING

    # -- before the exec ---------------------------------------------------------------------------

    def ask(self, answer: Answer, *, always: bool) -> None:
        """Rehearse the installed version, where it is another one or `always`.

        The answer is {"version": it}, {"version": None} where it is ours, or why it could not
        serve.
        """
        if self.state is UpgradeState.REHEARSING:
            self._answers.append(answer)
            return
        if self.state is UpgradeState.PROVING:
            answer(
                RefusedError(
                    "handover", f"version {__version__} has just taken over and is not ready yet"
                )
            )
            return
        if self.state is UpgradeState.READY:
            self._move(UpgradeState.IDLE)  # what was rehearsed before may have changed
        installed = installed_version(self._parts.boot)
        is_another = self._is_another(installed)
        if not is_another and not (always and CAN_REHEARSE):
            answer({"version": None})
            return
        try:
            self._trial = Trial(self._parts, installed)
        except (OSError, RefusedError) as error:
            answer(_refusal(installed.version, str(error)))
            return
        self._next = installed if is_another else None
        self._answers.append(answer)
        self._move(UpgradeState.REHEARSING)

    def _is_another(self, installed: Version) -> bool:
        """Tell whether the keeper has to become what is installed; a kept copy is left for the
        same version, too.
        """
        if installed.version == "":
            return False
        return installed.version != __version__ or bool(self._parts.boot.kept_root)

    def _move(self, state: UpgradeState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state.name} to {state.name}"
        self.state = state

    def reconcile(self, now: float) -> float | None:
        if self.state is UpgradeState.REHEARSING:
            return self._follow_trial(now)
        if self.state is UpgradeState.PROVING:
            return self._see_proof(now)
        if self.is_due and self._shutdown.is_running:
            if self._parts.children.has_pending_forks:  # their pids are not known yet
                return now + POLL_SECONDS
            # Set first: whatever happens below, a control plane is started again.
            self._move(UpgradeState.IDLE)
            assert self._next is not None
            exec_version(self._parts, self._next, previous=self._kept_copy())
        return None

    def _follow_trial(self, now: float) -> float | None:
        assert self._trial is not None
        problem = self._trial.outcome(now)
        if problem is None:
            return self._trial.deadline
        kind = "handover" if self._trial.code == EXIT_CANNOT_GO_ON else "trial"
        self._trial.close()
        self._trial = None
        version = self._next.version if self._next is not None else None
        outcome: dict[str, Any] | RefusedError = {"version": version}
        if problem:
            outcome = _refusal(version, problem, kind)
            self._parts.journal.error("upgrade_refused", version=version, detail=problem)
        has_next = version is not None and not problem
        self._move(UpgradeState.READY if has_next else UpgradeState.IDLE)
        answers = self._answers
        self._answers = []
        for answer in answers:
            answer(outcome)
        return None

    def _kept_copy(self) -> Version | None:
        """Return the copy of this version that a control plane of it has kept."""
        boot = self._parts.boot
        if not boot.versions_dir:
            return None
        root = f"{boot.versions_dir}/{__version__}"
        main = f"{root}/supervisord_py/keeper/__main__.py"
        return Version(__version__, main, root) if os.path.exists(main) else None

    # -- after the exec ----------------------------------------------------------------------------

    def go_back(self) -> None:
        """Become the version before, if there is one: the loop of this one has failed.

        Returns only when it cannot.
        """
        previous = self._previous
        self._previous = None
        if previous is not None and self.state is UpgradeState.PROVING:
            exec_version(self._parts, previous, rolled_back_from=__version__)

    def begin_proof(self, document: dict[str, Any]) -> None:
        """This version has taken over, by a hand-over document: it has to prove itself."""
        previous = document.get("previous")
        self._previous = Version.from_json(previous) if previous else None
        self.rolled_back_from = document.get("rolled_back_from")
        self._prove_by = self._parts.loop.now() + PROOF_SECONDS
        self.state = UpgradeState.PROVING

    def control_is_ready(self) -> None:
        """A control plane of this version serves."""
        if self.state is UpgradeState.PROVING:
            self._move(UpgradeState.IDLE)

    def _see_proof(self, now: float) -> float | None:
        machine = self._parts.control.machine
        is_late = now >= self._prove_by
        if machine.failures < PROOF_FAILURES and not is_late:
            return self._prove_by
        if self._previous is None:
            # there is nothing to go back to: starting goes on, and what is held runs on
            return None
        if self._parts.control.pid:
            machine.leaving(now, is_planned=False, seconds=0.0)
            return None  # its end causes a turn
        previous = self._previous
        self._previous = None
        self._parts.journal.error(
            "rolled_back",
            version=__version__,
            to=previous.version,
            detail="no control plane of it came up",
        )
        exec_version(self._parts, previous, rolled_back_from=__version__)
        return None


def _refusal(version: str | None, problem: str, kind: str = "handover") -> RefusedError:
    """Return the answer to an upgrade that is not done: "handover": a start of the version would
    work; "trial": not.
    """
    if version is None:
        return RefusedError(
            kind, f"the control plane is not replaced, a new one could not serve: {problem}"
        )
    detail = f"the keeper stays version {__version__}: {version} cannot take over: {problem}"
    return RefusedError(kind, detail)


class Trial:
    """A process of the installed version that does everything but take over.

    Raises OSError, RefusedError.
    """

    def __init__(self, parts: KeeperParts, version: Version) -> None:
        self._parts = parts
        self._output = b""
        self.code = -1  # the exit code, once it has ended
        self.deadline = parts.loop.now() + parts.boot.trial_seconds
        with contextlib.ExitStack() as stack:
            document = _memfd(_document(parts, version, dict.fromkeys(parts.stored.names(), -1)))
            stack.callback(os.close, document)
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            stack.callback(os.close, null)
            self._reader, writer = spawn.pipe()
            stack.callback(os.close, writer)
            keeps_reader = stack.enter_context(contextlib.ExitStack())
            keeps_reader.callback(os.close, self._reader)
            os.set_blocking(self._reader, False)
            number = max(2, document) + 1
            argv = _argv(version, number, "--check")
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
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return "its end was not seen"
        if pid == 0 and now < self.deadline:
            return None
        if pid == 0:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._parts.children.strangers.discard(self.pid)
        if pid == 0:
            return f"it does not answer within {self._parts.boot.trial_seconds:g} s"
        self._read()
        self.code = os.waitstatus_to_exitcode(status)
        text = self._output.decode("utf-8", "replace").strip()
        if self.code == 0:
            # Code 0 alone proves nothing: whatever the new version imports may end the process.
            has_passed = text.endswith(TRIAL_PASSED)
            return "" if has_passed else "it ended without having tried everything"
        return last_error(text) or f"it ended with {self.code}"

    def close(self) -> None:
        self._parts.loop.unwatch(self._reader)
        os.close(self._reader)


def last_error(text: str) -> str:
    """Return the last line that a trial wrote, with the file and line of the error.

    Code of ours writes "ImportError: no module (main.py, line 3)". Where a module that is run
    cannot be compiled or imported, Python writes the error itself, and its place in a line before:
    `  File "/…/control.py", line 177`.
    """
    lines = text.splitlines()
    if not lines:
        return ""
    error = lines[-1].strip()
    if ", line " in error:
        return error
    for line in reversed(lines):
        before, _, place = line.partition('File "')
        path, _, number = place.partition('", line ')
        if number and not before.strip():
            return f"{error} ({os.path.basename(path)}, line {number.split(',')[0]})"
    return error


def installed_version(boot: Boot) -> Version:
    """Return what lies where pxd was started from; its version is "" where nothing does."""
    main = boot.installed_main or _own_main()
    package = os.path.dirname(os.path.dirname(main))
    try:
        text = slurp(f"{package}/__init__.py").decode()
    except (OSError, UnicodeDecodeError):
        text = ""
    return Version(text.partition('__version__ = "')[2].partition('"')[0], main)


def _own_main() -> str:
    return sys.orig_argv[sys.orig_argv.index("--boot-fd") - 1]


def exec_version(
    parts: KeeperParts,
    version: Version,
    *,
    previous: Version | None = None,
    rolled_back_from: str | None = None,
) -> None:
    """Become another version; return only when that failed, with everything as it was.

    `previous`: the version to which the new one may go back; `rolled_back_from`: the version that
    is left because no control plane of it came up.
    """
    inheritable: list[int] = []
    stored: dict[str, int] = {}  # duplicates
    document_fd = -1
    # pending signals stay so over exec
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, spawn.CAUGHT)
    try:
        stored = parts.stored.hand_over()
        document = _document(parts, version, stored)
        document["handover"]["previous"] = previous.to_json() if previous is not None else None
        document["handover"]["rolled_back_from"] = rolled_back_from
        document_fd = _memfd(document)
        for fd in [document_fd, *stored.values(), *_descriptors(parts)]:
            os.set_inheritable(fd, True)
            inheritable.append(fd)
        argv = _argv(version, document_fd)
        parts.birth.restore()
        os.execve(argv[0], argv, parts.birth.environ)  # noqa: S606  exec is the point
    except (OSError, RefusedError) as error:
        parts.journal.error("handover_failed", detail=str(error))
    finally:
        # Reached only where the exec failed.
        for fd in inheritable:
            with contextlib.suppress(OSError):
                os.set_inheritable(fd, False)
        close_fds([*stored.values(), *([document_fd] if document_fd >= 0 else [])])
        os.umask(0o077)
        parts.birth.take_descriptors()
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def exec_back(parts: KeeperParts, document: dict[str, Any]) -> None:
    """Give a hand-over back to the version before, which this one could not take; return only when
    that failed.

    `document`: the hand-over as it came. Its descriptors are open, but for those that were stored
    already.
    """
    if not document.get("previous"):
        return
    previous = Version.from_json(document["previous"])
    stored = {name: fd for name, fd in document["stored"].items() if _is_open(fd)}
    stored |= parts.stored.hand_over()
    back = {**document, "stored": stored, "previous": None, "rolled_back_from": __version__}
    where = {"kept_root": previous.kept_root, "installed_main": installed_version(parts.boot).main}
    document_fd = _memfd({**parts.boot.to_json(), **where, "handover": back})
    for fd in [document_fd, *_handed_over(back), *parts.boot.descriptors().values()]:
        if fd >= 0:
            os.set_inheritable(fd, True)
    argv = _argv(previous, document_fd)
    parts.birth.restore()
    os.execve(argv[0], argv, parts.birth.environ)  # noqa: S606  exec is the point


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _descriptors(parts: KeeperParts) -> list[int]:
    """Return the descriptors that the next version goes on with: what the hand-over and the boot
    document name.
    """
    reports = [child.report for child in parts.children.held.values() if child.report >= 0]
    pipes = [
        pipe.fd for child in parts.children.held.values() for pipe in child.pipes if pipe.fd >= 0
    ]
    return [*reports, *pipes, *parts.boot.descriptors().values()]


def take_over(parts: KeeperParts, document: dict[str, Any]) -> None:
    """Go on with what an earlier version held."""
    parts.birth.started_at = document["started_at"]
    parts.stored.take_over(document["stored"])
    parts.control.machine.restarts = document["restarts"]
    parts.boot.adopt_descriptors(parts.birth.inherited, _handed_over(document))
    parts.children.take_over(read(document), document["parked"])
    count = len(document["children"])
    parts.journal.info(
        "taken_over", version=__version__, earlier=document["version"], children=count
    )


def resume_stops(parts: KeeperParts, document: dict[str, Any]) -> None:
    """Go on with the stops that were under way."""
    for key, until in document["stops"].items():
        grace = max(0.0, until - parts.loop.now())
        parts.kill_tree.stop(parts.children.held[key], grace, KILL_SECONDS, parts.survived)


class CannotGoOnError(ValueError):
    """A hand-over is of another format."""


def read(document: dict[str, Any]) -> list[HeldChild]:
    """Return the children of a hand-over, and touch nothing.

    Raises CannotGoOnError: it has another format; ValueError, KeyError, TypeError: it is damaged.
    """
    if document["format"] != FORMAT:
        raise CannotGoOnError(
            f"the format of the hand-over is {document['format']}, {__version__} reads {FORMAT}"
        )
    return [HeldChild.from_json(child) for child in document["children"]]


def _handed_over(document: dict[str, Any]) -> set[int]:
    """Return the descriptors that a hand-over names."""
    fds = set(document["stored"].values())
    for child in document["children"]:
        fds.add(child["report"])
        fds.update(fd for fd, _, _ in child["pipes"])
    return fds


def _document(parts: KeeperParts, version: Version, stored: dict[str, int]) -> dict[str, Any]:
    """Return the boot document of another version, with the hand-over in it. Raises OSError,
    RefusedError.

    `stored`: by name, the descriptors that are handed over out of the store.
    """
    if degraded := parts.logs.degraded():
        raise RefusedError(
            "handover",
            f"output waits in memory for a disk that takes nothing: {', '.join(degraded)}",
        )
    groups = parts.rungs.groups
    handover = {
        "format": FORMAT,
        "version": __version__,
        "started_at": parts.birth.started_at,
        "cgroup": groups.path if groups else None,
        "stored": stored,
        "restarts": parts.control.machine.restarts + (1 if parts.control.pid else 0),
        "children": parts.children.to_json(),
        "parked": {key: group.path for key, group in parts.children.parked.items()},
        "stops": parts.kill_tree.deadlines(),
    }
    # A kept copy has to know where the next version will be installed.
    installed_main = installed_version(parts.boot).main if version.kept_root else ""
    where = {"kept_root": version.kept_root, "installed_main": installed_main}
    return {**parts.boot.to_json(), **where, "handover": handover}


def _memfd(document: dict[str, Any]) -> int:
    if not CAN_REHEARSE:
        raise OSError(
            0, "this platform has no memfd; `pxctl daemon restart --all` replaces the keeper"
        )
    fd = os.memfd_create("pxd-handover", os.MFD_CLOEXEC)
    try:
        with open(os.dup(fd), "w") as file:
            json.dump(document, file)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _argv(version: Version, fd: int, *words: str) -> list[str]:
    """Return the command of a version's keeper: our own, with its main program in the place of
    ours.
    """
    begin = sys.orig_argv[: sys.orig_argv.index("--boot-fd")]
    ours = begin.index(_own_main())
    return [*begin[:ours], version.main, *words, "--boot-fd", str(fd)]
