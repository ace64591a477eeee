"""Every child the keeper holds: started, confirmed, reaped, told, forgotten; in that order, each once.

A spawn is answered when the kernel confirms exec, and its exit is told after that answer, never before. An exit record
is kept, and told again to every new control plane, until it is released. Two facts are kept apart: the *leader* (the
process that was spawned) runs until it is reaped, and the *tree* (it and all that descends from it) lives until its
last process is gone. A tree that outlives its leader keeps the instance; one live member is watched by pidfd, and when
it ends the rest is counted again: no polling.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import sys
import time
from functools import partial

from supervisord_py.keeper import procfs, spawn
from supervisord_py.keeper.cgroup import Cgroup
from supervisord_py.keeper.protocol import STDERR, STDOUT
from supervisord_py.keeper.spawn import RefusedError, SpawnError
from supervisord_py.keeper.tree import Membership

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from supervisord_py.keeper.boot import Birth, Rungs
    from supervisord_py.keeper.logs import Logs, OutputPipe, UnitLog
    from supervisord_py.keeper.loop import Loop
    from supervisord_py.keeper.procfs import Process
    from supervisord_py.keeper.spawn import SpawnPlan

    Answer = Callable[["dict[str, Any] | RefusedError"], None]

RECOUNT_SECONDS = 1.0  # without pidfds a tree without leader is counted this often, only while there is one
REAPS_PER_TURN = 256
STREAMS = {"stdout": STDOUT, "stderr": STDERR}
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes in one unit of ru_maxrss (getrusage(2))
WHO = ("key", "unit", "pid", "start_time", "boot_id", "started_at")
"""What CHILD and EXIT of the protocol both begin with."""
KEPT = (
    *(*WHO, "tag", "report", "log_position", "tree_alive", "stopping", "verdict", "exit"),
    *("max_rss_bytes", "memory_grace", "memory_in_kernel", "cpu_limit"),
)
"""What goes to the next version of the keeper as it stands (handover.py)."""


class HeldChild:
    """One instance: one process life, never restarted, only replaced."""

    def __init__(self, message: Mapping[str, Any], boot_id: str) -> None:
        self.key: str = message["key"]  # the id that the control plane chose
        self.unit: str = message["unit"]
        self.tag: str = message.get("tag", "")
        self.boot_id = boot_id
        self.pid = self.start_time = 0  # the leader's; clock ticks since boot
        self.report = -1  # descriptor of the exec report, -1 once it is read; then those who wait are told
        self.answers: list[Answer] = []
        self.started_at = time.time()
        self.group: Cgroup | None = None  # its cgroup, on that rung
        self.log: UnitLog | None = None  # None when all output goes to descriptors that came with the order
        self.log_position = 0
        self.pipes: list[OutputPipe] = []
        self.ends: list[list[int]] = []  # (descriptor, stream, instance) of the pipes that an earlier version read
        self.watched_member = -1  # pidfd of a process that outlived the leader
        self.members: dict[int, int] = {}  # start time by pid, of all ever seen in the tree and not yet seen gone
        self.tree_alive = True  # False once the last process of the tree is gone
        self.stopping = False  # a stop is under way, or ended with survivors
        self.verdict: dict[str, Any] | None = None  # what the killer wrote down before it signalled
        self.exit: dict[str, Any] | None = None  # the exit record, once the leader is reaped
        self.max_rss_bytes: int | None = message.get("max_rss_bytes") or None
        self.memory_grace = float(message.get("memory_grace_seconds") or 0.0)  # from TERM to KILL
        self.memory_in_kernel = False
        self.cpu_limit = (-1, -1)  # soft and hard RLIMIT_CPU in seconds; negative for none

    def hand_over(self) -> dict[str, Any]:
        """Return all of it as JSON, for the next version of the keeper."""
        return {
            **{name: getattr(self, name) for name in KEPT},
            "group": self.group.path if self.group else None,
            "members": list(self.members.items()),
            "pipes": [(pipe.fd, pipe.stream, pipe.instance) for pipe in self.pipes if pipe.fd >= 0],
        }

    @classmethod
    def handed_over(cls, document: dict[str, Any]) -> HeldChild:
        """Return the child of such a document; ValueError, KeyError or TypeError: it is none."""
        child = cls(document, document["boot_id"])
        for name in KEPT:
            setattr(child, name, document[name])
        child.group = Cgroup(document["group"]) if document["group"] else None
        child.members = dict(document["members"])
        child.ends = document["pipes"]
        return child

    @property
    def identity(self) -> tuple[int, int]:
        """The leader's (pid, start time)."""
        return (self.pid, self.start_time)

    def document(self) -> dict[str, Any]:
        """Return CHILD of the protocol."""
        facts = {name: getattr(self, name) for name in (*WHO, "tag", "log_position", "stopping", "tree_alive", "exit")}
        return {**facts, "state": "exited" if self.exit else "running"}

    def condemn(
        self, reason: str, by: str, signum: int, rss_bytes: int | None = None, limit_bytes: int | None = None
    ) -> None:
        """Write down why it is about to be signalled; the first word stands, and nothing is added after the end."""
        if self.verdict is None and self.exit is None:
            figures = {"rss_bytes": rss_bytes, "limit_bytes": limit_bytes}
            self.verdict = {"reason": reason, "by": by, **figures, "signal": int(signum), "time": time.time()}

    def escalate(self) -> None:
        """Note in the verdict that it came to SIGKILL; what has ended already ended by what it was told before."""
        if self.verdict is not None and self.exit is None:
            self.verdict["signal"] = int(signal.SIGKILL)

    def conclude(self, code: int, usage: resource.struct_rusage, *, counted: bool) -> None:
        """Write the exit record, from the exit code or minus the signal, and wait4's account.

        `counted`: the kernel counts the memory of groups, and leaves proof where it was the killer.
        """
        cpu_seconds, peak = usage.ru_utime + usage.ru_stime, None
        if counted and self.group is not None:
            peak = self.group.memory_peak()
            if (reason := self.group.oom()) is not None:
                self.condemn(reason, "cgroup", signal.SIGKILL, peak, self.max_rss_bytes)
        if -code in (signal.SIGXCPU, signal.SIGKILL):
            # The limit counts whole ticks as they are sampled, rusage counts precisely: on a crowded machine the two
            # differ. Nobody but the kernel has a reason to send SIGXCPU; SIGKILL may come from anywhere.
            soft, hard = self.cpu_limit
            needed = soft * 0.5 if -code == signal.SIGXCPU else hard * 0.9
            if soft >= 0 and 0 <= needed <= cpu_seconds:
                self.condemn("cpu_limit", "rlimit", -code)
        self.exit = {
            **{name: getattr(self, name) for name in (*WHO, "log_position", "verdict")},
            "ended_at": time.time(),
            "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "user_seconds": usage.ru_utime,
            "system_seconds": usage.ru_stime,
            "max_rss_bytes": usage.ru_maxrss * RSS_UNIT,
            "memory_peak_bytes": peak,
            "log_end": self.log.position if self.log is not None else self.log_position,
            "orphans": 0,
        }


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
        self._unsettled: dict[str, HeldChild] = {}
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
        """Hold what an earlier version held, and see what has ended meanwhile."""
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
            if child.exit is not None and child.tree_alive:
                self._close_or_watch(child, self.membership.members(child))
            self._changed(child)
        self.reap()

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
            with contextlib.ExitStack() as ours, contextlib.ExitStack() as failed:
                try:
                    for name in (name for name in STREAMS if name not in given):
                        reader, given[name] = os.pipe()
                        failed.callback(os.close, reader)
                        ours.callback(os.close, given[name])
                        ends.append([reader, STREAMS[name], 0])
                except OSError as error:
                    raise SpawnError("fds", error.errno) from None
                plan = spawn.plan_of(message, (given["stdin"], given["stdout"], given["stderr"]), stored)
                failed.callback(self._drop_group, child)
                self._launch(child, plan, message, stored)
                failed.pop_all()
            if ends:
                instance = log.next_instance()
                child.pipes = self._logs.read_from(log, [[fd, stream, instance] for fd, stream, _ in ends])
                child.log, child.log_position = log, log.position
        finally:
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
            elif f"zygote:{zygote}" in stored and self._rungs.subreaper:
                child.pid, child.report = spawn.fork_from(stored[f"zygote:{zygote}"], plan)
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
        """Read what became of the exec and answer all who asked for it."""
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
        self._loop.later(0, self.reap)

    def reap_leader(self, child: HeldChild) -> None:
        """Reap the leader if it has ended, and write its record."""
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
        if not self._unsettled:
            self._loop.later(0, self._settle)
        self._unsettled[child.key] = child

    def _settle(self) -> None:
        """Tell the ends of this turn, and close or watch the trees that they leave; one snapshot serves all."""
        ended, self._unsettled = self._unsettled, {}
        if any(child.group is None for child in ended.values()):
            self.membership.take()
        for child in ended.values():
            left = self.membership.members(child)
            assert child.exit is not None
            child.exit["orphans"] = len(left)
            self._emit({"event": "exit", "record": child.exit})
            self._changed(child)
            self._close_or_watch(child, left)

    def _close_or_watch(self, child: HeldChild, left: list[Process]) -> None:
        """Close an instance whose tree is empty; else look again when one of its members has ended."""
        self._unwatch_member(child)
        if not left:
            self.close(child)
            return
        if not self._rungs.portable:
            # Gone already, or no descriptor left: the timer looks again.
            with contextlib.suppress(AttributeError, OSError):
                child.watched_member = os.pidfd_open(left[0].pid)
        if child.watched_member < 0:
            self._loop.later(RECOUNT_SECONDS, lambda: self._recount(child))
        else:
            self._loop.watch(child.watched_member, lambda: self._recount(child))

    def _unwatch_member(self, child: HeldChild) -> None:
        if child.watched_member >= 0:
            self._loop.unwatch(child.watched_member)
            os.close(child.watched_member)
            child.watched_member = -1

    def _recount(self, child: HeldChild) -> None:
        self._unwatch_member(child)
        if child.tree_alive and self.held.get(child.key) is child:
            if child.group is None or not child.group.populated():
                self.membership.take()
            self._close_or_watch(child, self.membership.members(child))

    def close(self, child: HeldChild) -> None:
        """The tree is empty: drain and close what is left of it, and say so."""
        if not child.tree_alive:
            return
        if child.key in self._unsettled:
            self._settle()  # the exit is told before the end of the tree; this comes back here
            return
        child.tree_alive = child.stopping = False
        child.members = {}
        self._unwatch_member(child)
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
        """Repeat every unreleased end, for a new control plane."""
        for child in self.held.values():
            if child.exit is not None and child.key not in self._unsettled:
                self._emit({"event": "exit", "record": child.exit})
                if not child.tree_alive:
                    self._emit({"event": "gone", "key": child.key})
