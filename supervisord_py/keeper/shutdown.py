"""The keeper's own end, as phases:

    RUNNING ──> ASKED ──> STOPPING_ALL ──> KILLING_REST ──> DONE

- ASKED: the control plane stops everything, each unit with its own grace, and says `shutdown`.
- STOPPING_ALL: the control plane said so, is gone, or is late: the keeper stops what is left, again
  with each unit's own grace. A second signal cuts every grace to nothing.
- KILLING_REST: all trees are gone or named; whatever still descends from the keeper is killed.
- DONE: the socket goes last, so that clients wait in its backlog until nothing is left.

`reconcile` runs at the end of every turn of the loop. It compares what is with what the phase
demands, so a step that fails is repeated.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from enum import Enum, auto

from supervisord_py.keeper import procfs, sweep
from supervisord_py.keeper.control_machine import ControlState
from supervisord_py.keeper.kill_tree import CANNOT_LOOK, KILL_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from supervisord_py.keeper.parts import KeeperParts
    from supervisord_py.keeper.procfs import Process
    from supervisord_py.keeper.tree import HeldChild

HASTE_SECONDS = 2.0
"""Of KILL before survivors are named, after a second signal; and for what descends from no
instance.
"""
POLL_SECONDS = 0.02
CONTROL_LEAVES_SECONDS = 3.0
"""How long a control plane that said `shutdown` may take to go by itself."""
CONTROL_DIES_SECONDS = 5.0
"""How long a killed control plane is waited for; then it is named as a survivor."""
MARGIN_SECONDS = 10.0
"""What the service manager is told beyond the longest grace: KILL, drained pipes, a closed
ledger.
"""


class Phase(Enum):
    RUNNING = auto()
    ASKED = auto()
    STOPPING_ALL = auto()
    KILLING_REST = auto()
    DONE = auto()


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.RUNNING: frozenset({Phase.ASKED, Phase.STOPPING_ALL}),
    Phase.ASKED: frozenset({Phase.STOPPING_ALL}),
    Phase.STOPPING_ALL: frozenset({Phase.KILLING_REST}),
    Phase.KILLING_REST: frozenset({Phase.DONE}),
    Phase.DONE: frozenset(),
}


class Shutdown:
    """Ends one keeper."""

    def __init__(self, parts: KeeperParts) -> None:
        self._parts = parts
        self.phase = Phase.RUNNING
        self.code = 0  # to exit with
        self.is_restart = False  # become pxd again (exec) instead of exiting
        self._deadline = 0.0  # of ASKED, and of KILLING_REST
        self._is_hasty = False  # a second signal came: no grace any more
        self._given_up: set[str] = set()  # keys of trees whose survivors are named

    @property
    def is_running(self) -> bool:
        return self.phase is Phase.RUNNING

    # -- what asks for it ------------------------------------------------------------------------

    def signalled(self, signum: int) -> None:
        """SIGTERM or SIGINT came: the first asks for an orderly end, the second for one at once."""
        self.is_restart = False
        if self.phase is not Phase.RUNNING:
            self._hurry()
            return
        self._announce()
        control = self._parts.control
        if control.machine.is_greeted:
            self._deadline = (
                self._parts.loop.now() + self._longest_grace() + self._parts.boot.stop_seconds
            )
            self._move(Phase.ASKED)
            control.emit({"event": "stop", "signum": signum})
        else:
            self._move(Phase.STOPPING_ALL)

    def asked_by_control(self, *, is_restart: bool) -> None:
        """The control plane has stopped what it could: stop what is left, and exit or
        (`is_restart`) become pxd.
        """
        if self.phase is Phase.RUNNING:
            self.is_restart = is_restart
            self._announce()
        if self.phase in (Phase.RUNNING, Phase.ASKED):
            self._move(Phase.STOPPING_ALL)
        now = self._parts.loop.now()
        self._parts.control.machine.leaving(now, is_planned=True, seconds=CONTROL_LEAVES_SECONDS)

    def settings_are_bad(self, code: int) -> None:
        """The control plane cannot be started with these settings: end, with its exit code."""
        if self.phase is Phase.RUNNING:
            self.code = code
            self._announce()
            self._move(Phase.STOPPING_ALL)

    def _announce(self) -> None:
        parts = self._parts
        # After STOPPING=1 systemd waits for our exit, and kills what does not exit: an exec is no
        # exit.
        if self.is_restart:
            parts.notifier.status("restarting")
        else:
            parts.notifier.stopping(
                2 * self._longest_grace() + parts.boot.stop_seconds + MARGIN_SECONDS
            )
        parts.journal.info("stopping", children=len(self._alive()))

    def _hurry(self) -> None:
        if self._is_hasty:
            return
        self._is_hasty = True
        self._parts.journal.warning("killing_everything")
        self._parts.control.kill()
        for child in self._alive():
            self._stop(child)
        if self.phase is Phase.ASKED:
            self._move(Phase.STOPPING_ALL)

    # -- one turn of the loop --------------------------------------------------------------------

    def reconcile(self, now: float) -> float | None:
        """Do what the phase demands; return when to be called again."""
        if self.phase is Phase.ASKED:
            return self._wait_for_control(now)
        if self.phase is Phase.STOPPING_ALL:
            return self._stop_all(now)
        if self.phase is Phase.KILLING_REST:
            return self._kill_rest(now)
        return None

    def _wait_for_control(self, now: float) -> float:
        control = self._parts.control
        if control.pid and now < self._deadline:
            return self._deadline
        if control.pid:
            self._parts.journal.warning(
                "control_late", seconds=round(self._parts.boot.stop_seconds, 3)
            )
        # Those that the control plane asked to end keep the deadline that it gave them; the others
        # get their own.
        self._parts.notifier.extend_timeout(self._longest_grace() + MARGIN_SECONDS)
        self._move(Phase.STOPPING_ALL)
        return now

    def _stop_all(self, now: float) -> float | None:
        control = self._parts.control
        if control.pid and control.machine.state is not ControlState.LEAVING:
            # Its work is the keeper's now: `control.reconcile` kills it in this same turn.
            control.machine.leaving(now, is_planned=True, seconds=0.0)
        under_way = self._parts.kill_tree.deadlines()
        left = [child for child in self._alive() if child.key not in self._given_up]
        for child in left:
            if child.key not in under_way or self._needs_a_shorter_grace(child):
                self._stop(child)
        if left or self._parts.kill_tree.deadlines():
            return None  # the end of a tree wakes the loop (KeeperParts.changed)
        self._deadline = now + HASTE_SECONDS
        self._move(Phase.KILLING_REST)
        return now

    def _needs_a_shorter_grace(self, child: HeldChild) -> bool:
        """Tell whether a stop under way allows more time than is left for it: it was begun with
        another aim.
        """
        until = self._parts.kill_tree.deadlines()[child.key]
        return until > self._parts.loop.now() + self._grace(child)

    def _kill_rest(self, now: float) -> float:
        parts = self._parts
        residue = self._kill_descendants()
        groups = parts.rungs.groups
        if groups is not None:
            groups.kill()
        is_clean = not residue and (groups is None or groups.remove())
        if not is_clean and now < self._deadline:
            return now + POLL_SECONDS
        if parts.control.pid:
            # It is leaving by itself, or killed (control_machine.py); stuck in the kernel it must
            # not keep us for ever.
            if now < self._deadline + CONTROL_LEAVES_SECONDS + CONTROL_DIES_SECONDS:
                return now + POLL_SECONDS
            parts.journal.error("survivor", pid=parts.control.pid, name="pxd: control", killed=True)
        self._finish(residue)
        return now

    def _kill_descendants(self) -> list[Process]:
        """SIGKILL whatever descends from us; return it."""
        if not self._parts.rungs.subreaper:
            return []
        try:
            residue = self._parts.children.membership.descendants()
            for row in residue:
                procfs.send(row, signal.SIGKILL)
        except OSError as error:
            self._parts.failed(error)
            return [CANNOT_LOOK]
        return residue

    def _finish(self, residue: list[Process]) -> None:
        parts = self._parts
        parts.survived(residue, killed=True)
        parts.logs.close()
        write_exit_records(parts)
        sweep.forget_record(parts.boot.run_dir)
        if parts.boot.socket_path and parts.boot.socket_owned:
            try:
                os.unlink(parts.boot.socket_path)
            except OSError as error:
                parts.journal.warning(
                    "socket_not_removed", path=parts.boot.socket_path, errno=error.errno
                )
        parts.journal.info("stopped", code=self.code)
        self._move(Phase.DONE)
        parts.loop.stop()

    # -- parts -----------------------------------------------------------------------------------

    def _alive(self) -> list[HeldChild]:
        return [child for child in self._parts.children.held.values() if child.tree_alive]

    def _longest_grace(self) -> float:
        return max((child.stop_grace_seconds for child in self._alive()), default=0.0)

    def _grace(self, child: HeldChild) -> float:
        return 0.0 if self._is_hasty else child.stop_grace_seconds

    def _stop(self, child: HeldChild) -> None:
        grace = self._grace(child)
        child.condemn("shutdown", "keeper", signal.SIGTERM if grace else signal.SIGKILL)

        def done(survivors: list[Process], killed: bool) -> None:
            if survivors:
                self._given_up.add(child.key)
            self._parts.survived(survivors, killed)

        kill_seconds = HASTE_SECONDS if self._is_hasty else KILL_SECONDS
        self._parts.kill_tree.stop(child, grace, kill_seconds, done)

    def _move(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"{self.phase.name} to {phase.name}"
        self.phase = phase


# -- exit records that no control plane has taken --------------------------------------------------


def write_exit_records(parts: KeeperParts) -> None:
    """Leave the ends that no control plane has recorded for the next keeper, whole or not at all.

    Without them the next start could only say that those units were interrupted.
    """
    path = parts.boot.exit_records_path
    records = [child.to_json() for child in parts.children.held.values() if child.exit is not None]
    if not path:
        return
    if not records:
        forget_exit_records(path)
        return
    draft = path + ".new"
    try:
        with open(draft, "w", encoding="utf-8") as file:  # private by our umask
            json.dump({"format": 1, "children": records}, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, path)
    except OSError as error:
        parts.journal.error("exit_records_not_written", path=path, errno=error.errno)


def read_exit_records(path: str) -> list[dict[str, Any]]:
    """Return what `write_exit_records` left. Raises OSError or ValueError: it cannot be read."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if not isinstance(document, dict) or document.get("format") != 1:
        raise ValueError("not a list of exit records of this version")
    children: list[dict[str, Any]] = document["children"]
    return children


def forget_exit_records(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
