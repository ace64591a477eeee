"""The parts of a keeper and how they are wired: what every other module of this package is handed.

Who ends the keeper (shutdown.py), who replaces it (handover.py) and who answers the control plane
(verbs.py) work on these parts; main.py puts all of them together.
"""

from __future__ import annotations

import contextlib
import os
import signal
import traceback

from supervisord_py.keeper import sweep
from supervisord_py.keeper.boot import Rungs
from supervisord_py.keeper.children import Children
from supervisord_py.keeper.control_process import ControlProcess
from supervisord_py.keeper.descriptors import DescriptorStore
from supervisord_py.keeper.kill_tree import KILL_SECONDS, KillTree, kill_all
from supervisord_py.keeper.logs import Logs
from supervisord_py.keeper.loop import Loop
from supervisord_py.keeper.memory import MemoryWatch
from supervisord_py.keeper.notifier import Notifier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from supervisord_py.keeper.boot import Birth, Boot
    from supervisord_py.keeper.journal import Journal
    from supervisord_py.keeper.procfs import Process
    from supervisord_py.keeper.tree import HeldChild

    Receive = Callable[[dict[str, Any], list[int]], None]
    """Answers one request of the control plane: message and descriptors."""


class KeeperParts:
    def __init__(
        self,
        boot: Boot,
        birth: Birth,
        journal: Journal,
        receive: Receive,
        control_ended: Callable[[int], None],
    ) -> None:
        self.boot = boot
        self.birth = birth
        self.journal = journal
        self.loop = Loop(self.failed)
        self.notifier = Notifier(os.environ)
        self.stored = DescriptorStore()  # kept for the control plane, by name
        with contextlib.suppress(OSError), open("/proc/self/comm", "wb", buffering=0) as file:
            file.write(b"pxd: keeper")  # as ps and pgrep show it, where a process can say so
        birth.take_descriptors()
        self.rungs = Rungs(boot)
        self.logs = Logs(self.loop, self.emit, boot)
        self.children = Children(self.loop, self.logs, self.rungs, birth, self.emit, self.changed)
        membership = self.children.membership
        self.kill_tree = KillTree(
            membership, self.loop, self.children.reap_leader, self.children.close, self.failed
        )
        self.memory = MemoryWatch(self.loop.now, membership, self._over_memory, self.failed)
        self.control = ControlProcess(
            boot, self.loop, journal, self.notifier, self.children.strangers, receive, control_ended
        )

    def emit(self, event: dict[str, Any]) -> None:
        """Tell the control plane, if there is one; the journal is told of trouble with a disk as
        well.
        """
        if event["event"].startswith("log_"):
            self.journal.warning(**event)
        self.control.emit(event)

    def changed(self, child: HeldChild) -> None:
        """A child came up, lost its leader, or is gone."""
        if self.rungs.portable:
            try:
                sweep.write_record(self.boot.run_dir, self.children.held.values())
            except OSError as error:
                self.journal.warning("record_not_written", errno=error.errno)
        if not child.tree_alive:
            self.memory.forget(child)
            self.kill_tree.hurry()
        elif child.exit is None and child.max_rss_bytes is not None and not child.memory_in_kernel:
            self.memory.watch(child)

    def _over_memory(self, child: HeldChild, rss_bytes: int, grace: float) -> None:
        signum = signal.SIGTERM if grace else signal.SIGKILL
        child.condemn("memory_limit", "watchdog", signum, rss_bytes, child.max_rss_bytes)
        # The stop is noted first: it kills again whatever the line below does not reach.
        self.kill_tree.stop(child, grace, KILL_SECONDS, self.survived)
        if not grace:
            child.escalate()
            kill_all(child, self.children.membership.members(child))

    def survived(self, survivors: list[Process], killed: bool) -> None:
        """Name what outlived a stop that no control plane waits for."""
        for row in survivors:
            self.journal.error("survivor", pid=row.pid, name=row.name, killed=killed)

    def failed(self, error: Exception) -> None:
        """Report an exception of a callback or a duty."""
        lines = traceback.format_exception(error)
        self.journal.error(
            "callback_failed", error=f"{type(error).__name__}: {error}", traceback="".join(lines)
        )
