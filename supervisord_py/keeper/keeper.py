"""Wires the keeper: loop, registry, ladder, watchdog, pump, control plane, service manager, signals.

It decides nothing that a user could want otherwise: it does what the page of verbs says, and holds.
"""

from __future__ import annotations

import gc
import os
import signal
import traceback

from supervisord_py.keeper import spawn, sweep, system
from supervisord_py.keeper.census import Census
from supervisord_py.keeper.context import Rungs
from supervisord_py.keeper.control import EXIT_BAD_SETTINGS, Control, Notifier
from supervisord_py.keeper.ending import Ending
from supervisord_py.keeper.loop import Loop
from supervisord_py.keeper.memory import Watchdog
from supervisord_py.keeper.protocol import MARK_INSTANCE, MARK_UNIT
from supervisord_py.keeper.pump import Pump
from supervisord_py.keeper.registry import Registry
from supervisord_py.keeper.tree import Ladder, kill_all
from supervisord_py.keeper.verbs import KILL_SECONDS, Verbs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from supervisord_py.keeper.context import Birth, Boot
    from supervisord_py.keeper.instance import Instance
    from supervisord_py.keeper.journal import Journal
    from supervisord_py.keeper.processes import Process

FIRST_LISTEN_FD = 3
_PRIVATE = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", MARK_INSTANCE, MARK_UNIT)
"""Variables that are about the keeper alone: neither the control plane nor a child may believe them."""


class Keeper:
    """The holder of everything.

    Attributes:
        stored: Descriptors by name, kept for the control plane.
        interrupted: What an earlier keeper left and this one swept.
    """

    __slots__ = (
        "_alarm_read", "_alarm_write", "birth", "boot", "control", "ending", "interrupted", "journal", "ladder",
        "loop", "notifier", "pump", "registry", "rungs", "stored", "verbs", "watchdog",
    )  # fmt: skip

    def __init__(self, boot: Boot, birth: Birth, journal: Journal) -> None:
        self.boot = boot
        self.birth = birth
        self.journal = journal
        self.loop = Loop(self._broken)
        self.notifier = Notifier(os.environ)
        self.stored: dict[str, int] = {}
        system.shut_inherited()
        birth.take_descriptors()
        self.interrupted = self._sweep()
        self.rungs = Rungs(boot)
        self.pump = Pump(
            self.loop,
            self._emit,
            boot.log_dir,
            segment_bytes=boot.log_segment_bytes,
            total_bytes=boot.log_total_bytes,
            spill_bytes=boot.log_spill_bytes,
        )
        self._catch_signals()
        self.registry = Registry(self.loop, self.pump, self.rungs, birth, self._emit)
        census = Census(self.registry.instances, self.registry.strangers, subreaper=self.rungs.subreaper)
        self.registry.census = census
        self.registry.changed = self._changed
        self.ladder = Ladder(self.loop, census, self.registry.reap_leader, self.registry.close)
        self.watchdog = Watchdog(self.loop, census, self._over_memory)
        self.verbs = Verbs(self)
        self.ending = Ending(self)
        self.control = self._make_control()

    def run(self) -> int:
        """Hold until the end; return the exit code."""
        self.journal.info(
            "keeper_started", pid=self.birth.pid, kill_rung=self.rungs.kill, memory_rung=self.rungs.memory
        )
        gc.freeze()  # what is here now stays: a fork need not copy its pages for the collector's sake
        self.control.start()
        self.loop.run()
        return self.ending.code

    def exec_anew(self) -> None:
        """Become pxd again: same pid, nothing inherited but what a service manager gave us.

        Raises:
            OSError: The program cannot be executed.
        """
        environ = dict(self.birth.environ)
        if not self.boot.socket_owned and self.boot.listen_fd >= 0:
            os.dup2(self.boot.listen_fd, FIRST_LISTEN_FD, inheritable=True)
            os.set_inheritable(FIRST_LISTEN_FD, True)
            environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
            environ.pop("LISTEN_FDNAMES", None)
        signal.set_wakeup_fd(-1)
        self.birth.restore()
        os.execvpe(self.boot.pxd_argv[0], self.boot.pxd_argv, environ)  # noqa: S606  exec is the point

    def _sweep(self) -> list[dict[str, Any]]:
        swept = sweep.sweep(self.boot.daemon_id, self.boot.run_dir)
        if swept.interrupted or swept.survivors:
            names = [entry["unit"] for entry in swept.interrupted.values()]
            self.journal.warning("swept", units=names, survivors=[row.pid for row in swept.survivors])
        return list(swept.interrupted.values())

    def _make_control(self) -> Control:
        environ = {name: value for name, value in os.environ.items() if name not in _PRIVATE}
        return Control(
            self.loop,
            self.boot,
            self.rungs,
            self.journal,
            self.notifier,
            environ=environ,
            strangers=self.registry.strangers,
            receive=self.verbs.receive,
            ended=lambda code: self.ending.control_ended(code, EXIT_BAD_SETTINGS),
        )

    def _catch_signals(self) -> None:
        self._alarm_read, self._alarm_write = os.pipe()
        os.set_blocking(self._alarm_read, False)
        os.set_blocking(self._alarm_write, False)
        signal.set_wakeup_fd(self._alarm_write, warn_on_full_buffer=False)
        for signum in spawn.CAUGHT:
            signal.signal(signum, _noted)
        self.loop.watch(self._alarm_read, self._signalled)

    def _signalled(self) -> None:
        numbers = os.read(self._alarm_read, 4096)
        if signal.SIGCHLD in numbers:
            self.control.reap()
            self.registry.reap()
            self.ladder.hurry()
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT):
                self.ending.signalled(number)
        if signal.SIGHUP in numbers:
            self.notifier.reloading()
            self.control.emit({"event": "reload"})
        if signal.SIGUSR1 in numbers:
            self.control.emit({"event": "dump"})
            self._dump()

    def _dump(self) -> None:
        self.journal.info(
            "state",
            control_pid=self.control.pid,
            control_restarts=self.control.restarts,
            kill_rung=self.rungs.kill,
            memory_rung=self.rungs.memory,
            timers=self.loop.armed(),
            stored_fds=sorted(self.stored),
            degraded_logs=self.pump.degraded(),
            children=[f"{one.unit} {one.key} pid {one.pid}" for one in self.registry.instances.values()],
        )

    def _emit(self, event: dict[str, Any]) -> None:
        if event["event"].startswith("log_"):
            self.journal.warning(**event)
        self.control.emit(event)

    def _changed(self, instance: Instance) -> None:
        if self.rungs.portable:
            try:
                sweep.write_record(self.boot.run_dir, self.registry.instances.values())
            except OSError as error:
                self.journal.warning("record_not_written", errno=error.errno)
        if not instance.tree_alive:
            self.watchdog.forget(instance.key)
            self.ladder.hurry()
        elif instance.exit is None and instance.max_rss_bytes is not None and not instance.memory_in_kernel:
            self.watchdog.watch(instance)

    def _over_memory(self, instance: Instance, rss_bytes: int, grace: float) -> None:
        limit = instance.max_rss_bytes or 0
        instance.condemn("memory_limit", "watchdog", signal.SIGTERM if grace else signal.SIGKILL, rss_bytes, limit)
        if not grace:
            instance.escalate()
            kill_all(instance, self.registry.census.members(instance))

        def done(survivors: list[Process], killed: bool) -> None:
            for row in survivors:
                self.journal.error("survivor", unit=instance.unit, pid=row.pid, name=row.name, killed=killed)

        self.ladder.stop(instance, grace, KILL_SECONDS, done)

    def _broken(self, error: Exception) -> None:
        lines = traceback.format_exception(error)
        self.journal.error("callback_failed", error=f"{type(error).__name__}: {error}", traceback="".join(lines))


def _noted(_signum: int, _frame: object) -> None:
    """The wake-up descriptor carries the number; nothing is done in signal context."""
