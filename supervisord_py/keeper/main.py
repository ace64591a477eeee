"""The keeper: its parts, their duties in one turn of the loop, its signals, and its end.

It contains no policy: it executes the verbs in verbs.py, holds, and restarts the control plane.
"""

from __future__ import annotations

import gc
import os
import signal

from supervisord_py.keeper import handover, shutdown, spawn, sweep, verbs
from supervisord_py.keeper.control_process import EXIT_BAD_SETTINGS
from supervisord_py.keeper.parts import KeeperParts
from supervisord_py.keeper.tree import HeldChild

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from supervisord_py.keeper.boot import Birth, Boot
    from supervisord_py.keeper.journal import Journal

FIRST_LISTEN_FD = 3
SIGNAL_BYTES = 4096


class Keeper:
    def __init__(self, boot: Boot, birth: Birth, journal: Journal) -> None:
        if boot.handover is None:
            # First of all: it removes the cgroup that an earlier keeper left, in whose place ours
            # is made.
            units, survivors = sweep.sweep(boot.daemon_id, boot.run_dir)
            if units or survivors:
                journal.warning("swept", units=units, survivors=[row.pid for row in survivors])
        self.parts = KeeperParts(boot, birth, journal, self._receive, self._control_ended)
        self.shutdown = shutdown.Shutdown(self.parts)
        self.upgrade = handover.Upgrade(self.parts, self.shutdown)
        # keys of the exit records of an earlier keeper, until they are released
        self._undelivered: set[str] = set()
        self._catch_signals()

    def take_over(self, document: dict[str, Any], *, is_trial: bool = False) -> None:
        """Go on with all that an earlier version of the keeper held; in a trial nothing is
        stopped.
        """
        handover.take_over(self.parts, document)
        if not is_trial:
            handover.resume_stops(self.parts, document)
        self.upgrade.begin_proof(document)

    def run(self) -> int:
        """Serve until the end; return the exit code."""
        parts = self.parts
        rungs = parts.rungs
        parts.journal.info(
            "keeper_started", pid=parts.birth.pid, kill_rung=rungs.kill, memory_rung=rungs.memory
        )
        # what is here now stays: a fork need not copy its pages for the collector's sake
        gc.freeze()
        parts.loop.reconcile_with(
            # Before the children: both see a control plane that has ended, and only one may reap
            # it.
            parts.control.reap,
            self.upgrade.reconcile,
            parts.children.reconcile,
            parts.kill_tree.reconcile,
            parts.memory.reconcile,
            parts.logs.reconcile,
            self.shutdown.reconcile,
            self._forget_exit_records,
            # Last of what talks to the control plane: it sends what the others had to say in this
            # turn.
            self._keep_control,
            self._feed_watchdog,
        )
        parts.loop.run()
        return self.shutdown.code

    def _keep_control(self, now: float) -> float | None:
        is_needed = self.shutdown.is_running and not self.upgrade.is_due
        return self.parts.control.reconcile(now, is_needed=is_needed)

    def _feed_watchdog(self, now: float) -> float | None:
        return self.parts.notifier.feed(now, is_healthy=self.parts.control.is_healthy(now))

    def exec_anew(self) -> None:
        """Become pxd again: same pid, nothing inherited but what a service manager gave us."""
        boot = self.parts.boot
        environ = dict(self.parts.birth.environ)
        if not boot.socket_owned and boot.listen_fd >= 0:
            os.dup2(boot.listen_fd, FIRST_LISTEN_FD, inheritable=True)
            os.set_inheritable(FIRST_LISTEN_FD, True)
            environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
            environ.pop("LISTEN_FDNAMES", None)
        signal.set_wakeup_fd(-1)
        self.parts.birth.restore()
        os.execvpe(boot.pxd_argv[0], boot.pxd_argv, environ)  # noqa: S606  exec is the point

    # -- the control plane -----------------------------------------------------------------------

    def _receive(self, message: dict[str, Any], fds: list[int]) -> None:
        verbs.receive(self.parts, self.shutdown, self.upgrade, message, fds)

    def _control_ended(self, code: int) -> None:
        """The control plane exited. Settings with which it cannot be started are not worth a
        restart.

        What a new version objects to is no reason to end: it is gone back to the version before.
        """
        if code == EXIT_BAD_SETTINGS and not self.upgrade.is_proving:
            self.shutdown.settings_are_bad(code)

    # -- signals ---------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        self._alarm, alarm_in = os.pipe()
        os.set_blocking(self._alarm, False)
        os.set_blocking(alarm_in, False)
        signal.set_wakeup_fd(alarm_in, warn_on_full_buffer=False)
        for signum in spawn.CAUGHT:
            # The wake-up descriptor carries the number; nothing is done in signal context.
            signal.signal(signum, lambda _signum, _frame: None)
        self.parts.loop.watch(self._alarm, self._signalled)
        # an earlier version blocked them (handover.py)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, spawn.CAUGHT)

    def _signalled(self) -> None:
        """Take the signals that came.

        SIGCHLD only wakes the loop: every turn reaps what has ended.
        """
        parts = self.parts
        numbers = os.read(self._alarm, SIGNAL_BYTES)
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT):
                self.shutdown.signalled(number)
        if signal.SIGCHLD in numbers:
            parts.kill_tree.hurry()
        if signal.SIGHUP in numbers:
            parts.notifier.reloading()
            parts.control.emit({"event": "reload"})
        if signal.SIGUSR1 in numbers:
            parts.control.emit({"event": "dump"})
            children = [
                f"{child.unit} {child.key} pid {child.pid}"
                for child in parts.children.held.values()
            ]
            stored = parts.stored.names()
            parts.journal.info(
                "state", control_pid=parts.control.pid, children=children, stored_fds=stored
            )

    # -- exit records that an earlier keeper could not deliver -------------------------------------

    def hold_exit_records(self) -> None:
        """Hold them as ended children: a control plane records them as it does after any of its
        own restarts.
        """
        path = self.parts.boot.exit_records_path
        if not path:
            return
        try:
            for document in shutdown.read_exit_records(path):
                child = HeldChild.from_json(document)
                self.parts.children.hold_ended(child)
                self._undelivered.add(child.key)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.parts.journal.error(
                "exit_records_not_read", path=path, detail=f"{type(error).__name__}: {error}"
            )

    def _forget_exit_records(self, _now: float) -> None:
        if self._undelivered and self._undelivered.isdisjoint(self.parts.children.held):
            shutdown.forget_exit_records(self.parts.boot.exit_records_path)
            self._undelivered = set()
