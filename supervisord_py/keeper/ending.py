"""The end, in order: the control plane stops its children, the keeper what is left, and only then itself.

SIGTERM, SIGINT: the control plane is asked to stop everything and to say `shutdown`; if it is dead, or late by
`stop_seconds`, the keeper climbs the kill ladder itself, all trees at once. A second signal kills everything at once.
Whatever still descends from the keeper after that is killed as nobody's. The socket goes last, so that clients wait in
its backlog, not before a closed door, until nothing is left.
"""

from __future__ import annotations

import os
import signal

from supervisord_py.keeper import processes, sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from supervisord_py.keeper.keeper import Keeper
    from supervisord_py.keeper.processes import Process

GRACE_SECONDS = 5.0
KILL_SECONDS = 5.0
HASTE_SECONDS = 2.0
POLL_SECONDS = 0.02
LEAVE_SECONDS = 3.0
"""How long a control plane that asked for the end may take to go by itself."""


class Ending:
    """How the keeper ends; `begun` is false while it does not.

    Attributes:
        begun: The end has begun: nothing is spawned any more.
        code: Exit code to be.
        anew: Exec pxd instead of exiting.
    """

    __slots__ = ("_keeper", "_leave_by", "_open", "_residue_by", "_took_over", "anew", "begun", "code")

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._took_over = False
        self._open = 0
        self._leave_by = 0.0
        self._residue_by = 0.0
        self.begun = False
        self.code = 0
        self.anew = False

    def signalled(self, signum: int) -> None:
        """SIGTERM or SIGINT arrived."""
        if self.begun:
            self._hasten()
            return
        self._begin()
        if not self._keeper.control.connected:
            self._take_over(GRACE_SECONDS)
            return
        self._keeper.control.emit({"event": "stop", "signum": signum})
        self._keeper.loop.later(self._keeper.boot.stop_seconds, self._late)

    def asked_by_control(self) -> None:
        """The control plane is done: stop what is left."""
        self._begin()
        self._leave_by = self._keeper.loop.now() + LEAVE_SECONDS
        self._take_over(GRACE_SECONDS)

    def exec_anew(self) -> None:
        """Stop everything, then become pxd again, as the same process."""
        self.anew = True
        self.asked_by_control()

    def control_ended(self, code: int, bad_settings: int) -> None:
        """The control plane has ended: during the end its work is ours; bad settings are not worth a restart."""
        if not self.begun and code == bad_settings:
            self.code = code
            self._begin()
        if self.begun:
            self._take_over(GRACE_SECONDS)

    def _begin(self) -> None:
        if self.begun:
            return
        self.begun = True
        self._keeper.control.wanted = False
        self._keeper.notifier.stopping()
        self._keeper.journal.info("stopping", children=len(self._alive()))

    def _alive(self) -> list[str]:
        return [key for key, instance in self._keeper.registry.instances.items() if instance.tree_alive]

    def _late(self) -> None:
        if not self._took_over:
            self._keeper.journal.warning("control_late", seconds=self._keeper.boot.stop_seconds)
            self._keeper.control.kill()
            self._take_over(GRACE_SECONDS)

    def _hasten(self) -> None:
        """The second signal: no grace for anybody."""
        self._keeper.journal.warning("killing_everything")
        self._leave_by = 0.0
        self._keeper.control.kill()
        self._took_over = True
        self._stop_all(0.0, HASTE_SECONDS)

    def _take_over(self, grace: float) -> None:
        if self._took_over:
            return
        self._took_over = True
        self._stop_all(grace, KILL_SECONDS)

    def _stop_all(self, grace: float, kill_seconds: float) -> None:
        registry = self._keeper.registry
        keys = self._alive()
        self._open += len(keys) + 1
        for key in keys:
            instance = registry.instances[key]
            instance.condemn("shutdown", "keeper", signal.SIGTERM if grace else signal.SIGKILL, None, None)
            self._keeper.ladder.stop(instance, grace, kill_seconds, self._one_down)
        self._keeper.loop.soon(lambda: self._one_down([], killed=False))

    def _one_down(self, survivors: list[Process], killed: bool) -> None:
        for row in survivors:
            self._keeper.journal.error("survivor", pid=row.pid, name=row.name, killed=killed)
        self._open -= 1
        if self._open == 0:
            self._residue_by = self._keeper.loop.now() + HASTE_SECONDS
            self._clear_residue()

    def _clear_residue(self) -> None:
        """Kill what descends from us and belongs to no instance, then wait for the control plane's own end."""
        now = self._keeper.loop.now()
        residue = self._keeper.registry.census.descendants() if self._keeper.rungs.subreaper else []
        for row in residue:
            processes.send(row, signal.SIGKILL)
        if self._keeper.control.pid and now >= self._leave_by:
            self._keeper.control.kill()
        groups = self._keeper.rungs.groups
        clean = not residue and (groups is None or groups.close())
        if (not clean and now < self._residue_by) or self._keeper.control.pid:
            self._keeper.loop.later(POLL_SECONDS, self._clear_residue)
            return
        for row in residue:
            self._keeper.journal.error("survivor", pid=row.pid, name=row.name)
        self._close()

    def _close(self) -> None:
        keeper = self._keeper
        keeper.pump.close()
        sweep.forget_record(keeper.boot.run_dir)
        if keeper.boot.socket_path and keeper.boot.socket_owned:
            try:
                os.unlink(keeper.boot.socket_path)
            except OSError as error:
                keeper.journal.warning("socket_not_removed", path=keeper.boot.socket_path, errno=error.errno)
        keeper.journal.info("stopped", code=self.code)
        keeper.loop.stop()
