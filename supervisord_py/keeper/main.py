"""The keeper: wires loop, children, ladder, memory watch, logs, control plane and service manager; takes signals; ends.

It decides nothing that a user could want otherwise: it does what the page of verbs says, and holds.

The end, in order: SIGTERM and SIGINT ask the control plane to stop everything and to say `shutdown`; if it is dead, or
late by `stop_seconds`, the keeper climbs the kill ladder itself, all trees at once. A second signal kills everything at
once. Whatever still descends from the keeper after that is killed as nobody's. The socket goes last, so that clients
wait in its backlog, not before a closed door, until nothing is left.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import traceback

from supervisord_py.keeper import procfs, spawn, sweep
from supervisord_py.keeper.boot import Rungs
from supervisord_py.keeper.children import Children
from supervisord_py.keeper.control import EXIT_BAD_SETTINGS, ControlProcess, Notifier
from supervisord_py.keeper.logs import Logs
from supervisord_py.keeper.loop import Loop
from supervisord_py.keeper.memory import MemoryWatch
from supervisord_py.keeper.tree import KILL_SECONDS, HeldChild, KillLadder, kill_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from supervisord_py.keeper.boot import Birth, Boot, Journal
    from supervisord_py.keeper.procfs import Process

FIRST_LISTEN_FD = 3
GRACE_SECONDS = 5.0
HASTE_SECONDS = 2.0
POLL_SECONDS = 0.02
LEAVE_SECONDS = 3.0  # how long a control plane that asked for the end may take to go by itself


class Keeper:
    """The holder of everything. `receive` answers one request of the control plane: message and descriptors."""

    def __init__(
        self, boot: Boot, birth: Birth, journal: Journal, receive: Callable[[Keeper, dict[str, Any], list[int]], None]
    ) -> None:
        self.boot, self.birth, self.journal = boot, birth, journal
        self.loop = Loop(self.failed)
        self.notifier = Notifier(os.environ)
        self.stored: dict[str, int] = {}  # descriptors by name, kept for the control plane
        self.succeed: Callable[[], None] | None = None  # becomes another version, when the control plane has ended
        self.stopping = False  # from then on nothing is spawned any more
        self.anew = False  # exec pxd instead of exiting
        self._code = 0
        self._took_over = False  # from the control plane: all trees are on their way down
        self._leave_by = self._residue_by = 0.0
        with contextlib.suppress(OSError), open("/proc/self/comm", "wb", buffering=0) as file:
            file.write(b"pxd: keeper")  # as ps and pgrep show it, where a process can say so
        birth.take_descriptors()
        if boot.handover is None:
            units, survivors = sweep.sweep(boot.daemon_id, boot.run_dir)
            if units or survivors:
                journal.warning("swept", units=units, survivors=[row.pid for row in survivors])
        self.rungs = Rungs(boot)
        self.logs = Logs(self.loop, self.emit, boot)
        self._catch_signals()
        self.children = children = Children(self.loop, self.logs, self.rungs, birth, self.emit, self.changed)
        self.ladder = KillLadder(self.loop, children.membership, children.reap_leader, children.close)
        self.memory = MemoryWatch(self.loop, children.membership, self._over_memory)
        known = (boot, self.loop, journal, self.notifier, children.strangers)
        self.control = ControlProcess(*known, lambda *request: receive(self, *request), self._control_ended)

    def run(self) -> int:
        rungs = self.rungs
        self.journal.info("keeper_started", pid=self.birth.pid, kill_rung=rungs.kill, memory_rung=rungs.memory)
        gc.freeze()  # what is here now stays: a fork need not copy its pages for the collector's sake
        self.control.start()
        self.loop.run()
        return self._code

    def exec_anew(self) -> None:
        """Become pxd again: same pid, nothing inherited but what a service manager gave us."""
        environ = dict(self.birth.environ)
        if not self.boot.socket_owned and self.boot.listen_fd >= 0:
            os.dup2(self.boot.listen_fd, FIRST_LISTEN_FD, inheritable=True)
            os.set_inheritable(FIRST_LISTEN_FD, True)
            environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
            environ.pop("LISTEN_FDNAMES", None)
        signal.set_wakeup_fd(-1)
        self.birth.restore()
        os.execvpe(self.boot.pxd_argv[0], self.boot.pxd_argv, environ)  # noqa: S606  exec is the point

    def _catch_signals(self) -> None:
        self._alarm, alarm_in = os.pipe()
        os.set_blocking(self._alarm, False)
        os.set_blocking(alarm_in, False)
        signal.set_wakeup_fd(alarm_in, warn_on_full_buffer=False)
        for signum in spawn.CAUGHT:
            # The wake-up descriptor carries the number; nothing is done in signal context.
            signal.signal(signum, lambda _signum, _frame: None)
        self.loop.watch(self._alarm, self._signalled)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, spawn.CAUGHT)  # an earlier version blocked them (handover.py)

    def _signalled(self) -> None:
        numbers = os.read(self._alarm, 4096)
        if signal.SIGCHLD in numbers:
            self.control.reap()
            self.children.reap()
            self.ladder.hurry()
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._asked_to_end(number)
        if signal.SIGHUP in numbers:
            self.notifier.reloading()
            self.control.emit({"event": "reload"})
        if signal.SIGUSR1 in numbers:
            self.control.emit({"event": "dump"})
            children = [f"{child.unit} {child.key} pid {child.pid}" for child in self.children.held.values()]
            self.journal.info("state", control_pid=self.control.pid, children=children, stored_fds=sorted(self.stored))

    def emit(self, event: dict[str, Any]) -> None:
        if event["event"].startswith("log_"):
            self.journal.warning(**event)
        self.control.emit(event)

    def changed(self, child: HeldChild) -> None:
        if self.rungs.portable:
            try:
                sweep.write_record(self.boot.run_dir, self.children.held.values())
            except OSError as error:
                self.journal.warning("record_not_written", errno=error.errno)
        if not child.tree_alive:
            self.memory.forget(child)
            self.ladder.hurry()
        elif child.exit is None and child.max_rss_bytes is not None and not child.memory_in_kernel:
            self.memory.watch(child)

    def _over_memory(self, child: HeldChild, rss_bytes: int, grace: float) -> None:
        signum = signal.SIGTERM if grace else signal.SIGKILL
        child.condemn("memory_limit", "watchdog", signum, rss_bytes, child.max_rss_bytes)
        if not grace:
            child.escalate()
            kill_all(child, self.children.membership.members(child))
        self.ladder.stop(child, grace, KILL_SECONDS, self.survived)

    def survived(self, survivors: list[Process], killed: bool) -> None:
        for row in survivors:
            self.journal.error("survivor", pid=row.pid, name=row.name, killed=killed)

    def failed(self, error: Exception) -> None:
        lines = traceback.format_exception(error)
        self.journal.error("callback_failed", error=f"{type(error).__name__}: {error}", traceback="".join(lines))

    # -- the end -------------------------------------------------------------------------------------------------------

    def _asked_to_end(self, signum: int) -> None:
        self.anew = False
        if self.stopping:
            self.journal.warning("killing_everything")
            self._leave_by = 0.0
            self.control.kill()
            self._take_over(0.0, HASTE_SECONDS)
            return
        self._begin_end()
        if self.control.pid and self.control.said_hello:
            self.control.emit({"event": "stop", "signum": signum})
            self.loop.later(self.boot.stop_seconds, self._late)
        else:
            self._take_over()

    def end(self) -> None:
        """The control plane is done: stop what is left, and exit or (`anew`) become pxd again."""
        self._begin_end()
        self._leave_by = self.loop.now() + LEAVE_SECONDS
        self._take_over()

    def _control_ended(self, code: int) -> None:
        """During the end its work is ours; bad settings are not worth a restart."""
        if not self.stopping and code == EXIT_BAD_SETTINGS:
            self._code = code
            self._begin_end()
        succeed, self.succeed = self.succeed, None
        if self.stopping:
            self._take_over()
        elif succeed is not None:
            succeed()

    def _begin_end(self) -> None:
        if not self.stopping:
            self.stopping = True
            self.control.wanted = False
            # After STOPPING=1 systemd waits for our exit, and kills what does not: an exec is none.
            self.notifier.say("STATUS=restarting" if self.anew else "STOPPING=1")
            self.journal.info("stopping", children=len(self._alive()))

    def _alive(self) -> list[HeldChild]:
        return [child for child in self.children.held.values() if child.tree_alive]

    def _late(self) -> None:
        if not self._took_over:
            self.journal.warning("control_late", seconds=self.boot.stop_seconds)
            self.control.kill()
            self._take_over()

    def _take_over(self, grace: float = GRACE_SECONDS, kill_seconds: float = KILL_SECONDS) -> None:
        if self._took_over and grace:
            return
        for child in self._alive():
            child.condemn("shutdown", "keeper", signal.SIGTERM if grace else signal.SIGKILL)
            self.ladder.stop(child, grace, kill_seconds, self.survived)
        if not self._took_over:
            self._took_over = True
            self.loop.later(0, self._leave)

    def _leave(self) -> None:
        """Once all trees and the control plane are gone or named: kill what else descends from us, and go."""
        now = self.loop.now()
        if self.ladder.deadlines():
            self.loop.later(POLL_SECONDS, self._leave)
            return
        self._residue_by = self._residue_by or now + HASTE_SECONDS
        residue = self.children.membership.descendants() if self.rungs.subreaper else []
        for row in residue:
            procfs.send(row, signal.SIGKILL)
        if self.control.pid and now >= self._leave_by:
            self.control.kill()
        groups = self.rungs.groups
        if groups is not None:
            groups.kill()
        clean = not residue and (groups is None or groups.remove())
        if (not clean and now < self._residue_by) or self.control.pid:
            self.loop.later(POLL_SECONDS, self._leave)
            return
        self.survived(residue, killed=True)
        self.logs.close()
        sweep.forget_record(self.boot.run_dir)
        if self.boot.socket_path and self.boot.socket_owned:
            try:
                os.unlink(self.boot.socket_path)
            except OSError as error:
                self.journal.warning("socket_not_removed", path=self.boot.socket_path, errno=error.errno)
        self.journal.info("stopped", code=self._code)
        self.loop.stop()
