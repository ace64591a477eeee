"""Every child the keeper holds: started, confirmed, reaped, told, forgotten; in that order, each once.

A spawn is answered when the kernel confirms exec, and its exit is told after that answer, never before. An exit record
is kept, and told again to every new control plane, until it is released. Two facts are kept apart: the *leader* (the
process that was spawned) runs until it is reaped, and the *tree* (it and all that descends from it) lives until its
last process is gone. A tree that outlives its leader keeps the instance. The last of it comes back to us when its
parents are gone, as every orphan does: whenever one has ended, such trees are counted again, and nothing is polled.
"""

from __future__ import annotations

import errno
import os
import resource
from functools import partial

from supervisord_py.keeper import procfs, spawn
from supervisord_py.keeper.cgroup import Cgroup
from supervisord_py.keeper.protocol import STDERR, STDOUT
from supervisord_py.keeper.spawn import RefusedError, SpawnError, SpawnPlan
from supervisord_py.keeper.tree import HeldChild, Membership

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from supervisord_py.keeper.boot import Birth, Rungs
    from supervisord_py.keeper.logs import Logs
    from supervisord_py.keeper.loop import Loop, Timer
    from supervisord_py.keeper.tree import Answer

RECOUNT_SECONDS = 1.0  # where no orphan comes back a tree without leader is counted this often, while there is one
REAPS_PER_TURN = 256
STREAMS = {"stdout": STDOUT, "stderr": STDERR}


class Children:
    """The instances. `changed` is called when one came up, lost its leader, or is gone; `emit` takes events."""

    def __init__(
        self,
        loop: Loop,
        logs: Logs,
        rungs: Rungs,
        birth: Birth,
        emit: Callable[[dict[str, Any]], None],
        changed: Callable[[HeldChild], None],
    ) -> None:
        self._loop, self._logs, self._rungs, self._birth = loop, logs, rungs, birth
        self._emit, self._changed = emit, changed
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._by_pid: dict[int, HeldChild] = {}
        self._settling: Timer | None = None
        self._silent = set[str]()  # zygotes that did not answer: nobody waits for them again
        self.parked: dict[str, Cgroup] = {}  # by zygote: the group in which its next fork waits
        self.held: dict[str, HeldChild] = {}
        self.strangers: set[int] = set()  # pids that are nobody's: the control plane's
        self.membership = Membership(self.held, self.strangers, subreaper=self._rungs.subreaper)

    # -- from one version of the keeper to the next (handover.py) ------------------------------------------------------

    def hand_over(self) -> list[dict[str, Any]]:
        """Return all that is held, descriptors by their numbers; what has ended is told first."""
        self._settle()
        return [child.hand_over() for child in self.held.values()]

    def take_over(self, held: list[HeldChild], parked: Mapping[str, str]) -> None:
        self.parked = {zygote: Cgroup(path) for zygote, path in parked.items()}
        for child in held:
            self.held[child.key] = child
            if child.exit is None:
                self._by_pid[child.pid] = child
            if child.report >= 0:
                self._loop.watch(child.report, partial(self._confirm, child))
            if child.ends:
                child.log = self._logs.log(child.unit)
                child.pipes = self._logs.read_from(child.log, child.ends)
        self.membership.take()
        for child in held:
            self._changed(child)
        self.reap()
        self._settle()

    # -- coming ------------------------------------------------------------------------------------------------------

    def spawn(self, message: dict[str, Any], fds: list[int], stored: Mapping[str, int], answer: Answer) -> None:
        """Start a child, or join a start under way; `answer` is called once with the reply's members, or why not.

        The descriptors that came with the message, and those stored by name, stay the caller's.
        """
        child = self.held.get(message["key"])
        if child is None:
            child = HeldChild(message, self._birth.boot_id)
            self._start(child, message, fds, stored)
        if child.report < 0:
            answer({"child": child.document()})
        else:
            child.answers.append(answer)

    def _start(self, child: HeldChild, message: dict[str, Any], fds: list[int], stored: Mapping[str, int]) -> None:
        given = {"stdin": self._null, **dict(zip(message.get("stdio_fds") or (), fds, strict=True))}
        log = self._logs.log(child.unit)
        ends: list[list[int]] = []
        try:
            for name in (name for name in STREAMS if name not in given):
                reader, given[name] = spawn.pipe()
                ends.append([reader, given[name], STREAMS[name]])
            plan = SpawnPlan(message, (given["stdin"], given["stdout"], given["stderr"]), stored)
            self._launch(child, plan, message, stored)
            if ends:
                child.pipes = self._logs.read_from(log, [[reader, stream, 0] for reader, _, stream in ends])
                child.log, child.log_position = log, log.position
        except BaseException:
            for reader, _, _ in ends:
                os.close(reader)
            self._drop_group(child)
            raise
        finally:
            for _, writer, _ in ends:
                os.close(writer)
            self._logs.tidy(log)
        self.held[child.key] = self._by_pid[child.pid] = child
        self._loop.watch(child.report, partial(self._confirm, child))

    def _launch(self, child: HeldChild, plan: SpawnPlan, message: dict[str, Any], stored: Mapping[str, int]) -> None:
        """Fork, in the child's own group where there are groups, or have a zygote fork; and learn who it is."""
        limits = {name: (soft, hard) for name, soft, hard in message.get("rlimits") or ()}
        child.cpu_limit = limits.get("cpu", (-1, -1))
        plan.guarded = self._rungs.subreaper
        if "nofile" not in limits:
            plan.rlimits.append((resource.RLIMIT_NOFILE, *self._birth.nofile))
        zygote = message.get("zygote")
        try:
            try:
                if self._rungs.groups is not None:
                    self._group(child, plan, zygote, self._rungs.groups)
                if child.group is not None:
                    held = child.group.limit(child.max_rss_bytes, limits)
                    child.memory_in_kernel = "memory" in held
                    if "nproc" in held:  # the rlimit would count everything of the user, and nothing of root
                        plan.rlimits = [one for one in plan.rlimits if one[0] != resource.RLIMIT_NPROC]
            except OSError as error:
                raise SpawnError("cgroup", error.errno) from None
            if zygote is None:
                child.pid, child.report = spawn.launch(plan)
            elif f"zygote:{zygote}" in stored and self._rungs.subreaper and zygote not in self._silent:
                try:
                    child.pid, child.report = spawn.fork_from(stored[f"zygote:{zygote}"], plan)
                except SpawnError as error:
                    self._silent |= {zygote} if error.error == errno.ETIMEDOUT else set()
                    raise
            else:
                raise SpawnError("zygote", errno.ENOENT)
        finally:
            for fd in (plan.cgroup, plan.parks):
                if fd >= 0:
                    os.close(fd)
        row = procfs.look(child.pid)  # it is not reaped yet, so the number is its own
        child.start_time = row.start_time if row else 0

    def _group(self, child: HeldChild, plan: SpawnPlan, zygote: str | None, groups: Cgroup) -> None:
        """Give a child its group: a new one, or that in which a zygote's fork waits already; and the next fork one."""
        child.group = self.parked.pop(zygote or "", None) or groups.create(child.key)
        plan.cgroup = os.open(child.group.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if zygote in self.held:
            self.parked[zygote] = groups.create(f"{child.key}.next")
            plan.parks = os.open(self.parked[zygote].path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _confirm(self, child: HeldChild) -> None:
        if child.report < 0:
            return
        try:
            failure = spawn.read_report(child.report)
        except BlockingIOError:
            return
        self._loop.unwatch(child.report)
        os.close(child.report)
        child.report = -1
        if failure is not None:  # leave no ghost of a child that never was: it has reported and exits at once
            if self._by_pid.pop(child.pid, None) is not None:
                os.waitpid(child.pid, 0)
            child.tree_alive = False
            for pipe in child.pipes:
                pipe.close()
            self._drop_group(child)
            del self.held[child.key]
        else:
            self._changed(child)
        answers, child.answers = child.answers, []
        for answer in answers:
            answer(failure or {"child": child.document()})

    # -- going -------------------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Reap whatever has ended: leaders, and orphans that came back. Called on SIGCHLD."""
        if not self._rungs.subreaper:
            for child in list(self._by_pid.values()):
                self.reap_leader(child)
            return
        for _ in range(REAPS_PER_TURN):
            try:
                # A look without reaping first: a leader's end is handled with its record, in one place.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            leader = self._by_pid.get(ended.si_pid)
            if leader is not None:
                self.reap_leader(leader)
            elif ended.si_pid in self.strangers:
                return  # the control plane's end is its supervisor's to reap, which this same signal wakes
            else:
                os.waitpid(ended.si_pid, os.WNOHANG)
                if self._leaderless():
                    self._settle_in(0)
        self._loop.later(0, self.reap)

    def reap_leader(self, child: HeldChild) -> None:
        if child.exit is not None or child.pid not in self._by_pid:
            return
        try:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        del self._by_pid[pid]
        self._confirm(child)  # it is dead, so the report is there: answer the spawn before telling the end
        if self.held.get(child.key) is not child:
            return
        for pipe in child.pipes:
            pipe.drain()
        child.conclude(os.waitstatus_to_exitcode(status), usage, counted="memory" in self._rungs.controllers)
        self._settle_in(0)

    def _leaderless(self) -> list[HeldChild]:
        return [child for child in self.held.values() if child.exit is not None and child.tree_alive]

    def _settle_in(self, seconds: float) -> None:
        if self._settling is not None:
            self._settling.cancel()
        self._settling = self._loop.later(seconds, self._settle)

    def _settle(self) -> None:
        """Tell the ends of this turn, and close the trees of which nothing is left; one look serves all."""
        self._settling = None
        leaderless = self._leaderless()
        if any(child.group is None for child in leaderless):
            self.membership.recount(leaderless)
        for child in leaderless:
            left = self.membership.members(child)
            if not child.told:
                child.told = True
                self._emit({"event": "exit", "record": child.exit})
                self._changed(child)
            if not left:
                self.close(child)
        if not self._rungs.subreaper and self._leaderless():
            self._settle_in(RECOUNT_SECONDS)

    def close(self, child: HeldChild) -> None:
        if not child.tree_alive:
            return
        if not child.told:
            self._settle()  # the exit is told before the end of the tree; this comes back here
            return
        child.tree_alive = False
        child.members = {}
        for pipe in child.pipes:
            pipe.drain()
            pipe.close()
        self._drop_group(child)
        self._emit({"event": "gone", "key": child.key})
        self._changed(child)

    def _drop_group(self, child: HeldChild) -> None:
        for group in (child.group, self.parked.pop(child.key, None)):
            if group is not None and not group.remove():
                # The last zombie of a group may be a moment from its end; later is soon enough.
                self._loop.later(RECOUNT_SECONDS, group.remove)
        child.group = None

    # -- after -------------------------------------------------------------------------------------------------------

    def release(self, key: str) -> None:
        """Forget an instance that is gone; one that never was is forgotten already."""
        child = self.held.get(key)
        if child is None:
            return
        if child.tree_alive:
            raise RefusedError("alive", f"the tree of {child.unit} ({key}) lives")
        del self.held[key]
        self._changed(child)

    def tell_again(self) -> None:
        for child in self.held.values():
            if child.told:
                self._emit({"event": "exit", "record": child.exit})
                if not child.tree_alive:
                    self._emit({"event": "gone", "key": child.key})
