"""Every child the keeper holds: started, confirmed, reaped, told, forgotten; in that order, each once.

A spawn is answered when the kernel confirms exec, and its exit is told after that answer, never before. An exit record
is kept, and told again to every new control plane, until it is released. A tree that outlives its leader keeps the
instance; one live member is watched by pidfd, and when it ends the rest is counted again: no polling.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys

from supervisord_py.keeper import processes, spawn
from supervisord_py.keeper.instance import Instance
from supervisord_py.keeper.pump import pipe_pair
from supervisord_py.keeper.spawn import Plan, SpawnError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from supervisord_py.keeper.census import Census
    from supervisord_py.keeper.context import Birth, Rungs
    from supervisord_py.keeper.loop import Loop
    from supervisord_py.keeper.processes import Process
    from supervisord_py.keeper.pump import Pump

    Answer = Callable[[Instance | SpawnError], None]
    Emit = Callable[[dict[str, Any]], None]

RSS_UNIT = 1 if sys.platform == "darwin" else 1024
VIGIL_SECONDS = 1.0
"""Without pidfds a tree without leader is counted this often, only while there is one."""
REAPS_PER_TURN = 256


class Registry:
    """The instances, by key.

    Args:
        loop: Wakes us when something ends.
        pump: Takes the output.
        rungs: What this machine offers.
        birth: The keeper's own facts.
        emit: Sends an event to the control plane, if there is one.
    """

    __slots__ = (
        "_answers", "_birth", "_emit", "_ignored", "_loop", "_null", "_pump", "_rungs", "_unsettled", "_vigils",
        "by_pid", "census", "changed", "instances", "strangers",
    )  # fmt: skip

    def __init__(self, loop: Loop, pump: Pump, rungs: Rungs, birth: Birth, emit: Emit) -> None:
        self._loop = loop
        self._pump = pump
        self._rungs = rungs
        self._birth = birth
        self._emit = emit
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._ignored = spawn.ignored_signals()
        self._answers: dict[str, list[Answer]] = {}
        self._unsettled: dict[str, Instance] = {}
        self._vigils: dict[str, int] = {}
        self.instances: dict[str, Instance] = {}
        self.by_pid: dict[int, Instance] = {}
        self.strangers: set[int] = set()
        self.census: Census
        self.changed: Callable[[Instance], None] = _nothing
        """Called when an instance came up, lost its leader, or is gone."""

    # -- coming ------------------------------------------------------------------------------------------------------

    def spawn(self, message: dict[str, Any], stored: dict[str, int], answer: Answer) -> None:
        """Start a child, or join a start under way; `answer` is called once, with the instance or what went wrong.

        Raises:
            spawn.Refusal: The order is wrong, or its key is taken by another one.
        """
        key, unit = spawn.text(message, "key"), spawn.text(message, "unit")
        mark = spawn.fingerprint(message)
        present = self.instances.get(key)
        if present is not None:
            if present.fingerprint != mark:
                raise spawn.Refusal("exists", f"key {key!r} belongs to another child, of {present.unit}")
            self._join(present, answer)
            return
        try:
            log = self._pump.log(unit)
        except ValueError as error:
            raise spawn.Refusal("bad_request", str(error)) from None
        instance = Instance(key, unit, str(message.get("tag", "")), log, self._birth.boot_id)
        instance.fingerprint = mark
        try:
            self._start(instance, message, stored)
        except SpawnError as error:
            answer(error)
        else:
            self._join(instance, answer)
        finally:
            self._pump.tidy(log)

    def _join(self, instance: Instance, answer: Answer) -> None:
        if instance.report < 0:
            answer(instance)
        else:
            self._answers.setdefault(instance.key, []).append(answer)

    def _start(self, instance: Instance, message: dict[str, Any], stored: dict[str, int]) -> None:
        try:
            out_read, out_write, err_read, err_write = pipe_pair()
        except OSError as error:
            raise SpawnError("fds", error.errno or errno.EMFILE) from None
        try:
            plan = spawn.plan_of(message, (self._null, out_write, err_write), stored)
            self._limit(instance, message, plan)
            pid, report = self._launch(instance, plan)
            try:
                self._identify(instance, pid)
            except SpawnError:
                os.close(report)
                raise
        except BaseException:
            os.close(out_read)
            os.close(err_read)
            self._drop_group(instance)
            raise
        finally:
            os.close(out_write)
            os.close(err_write)
        self._enrol(instance, report, self._pump.attach(instance.log, out_read, err_read))

    def _limit(self, instance: Instance, message: dict[str, Any], plan: Plan) -> None:
        limit = message.get("max_rss_bytes")
        instance.max_rss_bytes = int(limit) if limit else None
        instance.memory_grace = max(0.0, spawn.number(message, "memory_grace_seconds", 0.0))
        instance.cpu_limit = spawn.cpu_limit(message)
        plan.guarded = self._rungs.subreaper
        plan.ignored = self._ignored
        if not any(number == resource.RLIMIT_NOFILE for number, _, _ in plan.rlimits):
            plan.rlimits.append((resource.RLIMIT_NOFILE, *self._birth.nofile))

    def _launch(self, instance: Instance, plan: Plan) -> tuple[int, int]:
        if self._rungs.groups is None:
            return spawn.launch(plan)
        try:
            instance.group = self._rungs.groups.create(instance.key)
            plan.cgroup = instance.group.open_folder()
        except OSError as error:
            raise SpawnError("cgroup", error.errno or errno.EIO) from None
        try:
            if instance.max_rss_bytes is not None:
                instance.memory_in_kernel = instance.group.limit_memory(instance.max_rss_bytes)
            return spawn.launch(plan)
        finally:
            os.close(plan.cgroup)

    def _identify(self, instance: Instance, pid: int) -> None:
        """Learn who the new child is. It is not reaped yet, so the number is its own."""
        instance.pid = pid
        row = processes.look(pid)
        instance.start_time = row.start_time if row else 0
        if not self._rungs.pidfd:
            return
        try:
            instance.pidfd = os.pidfd_open(pid)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise SpawnError("fds", error.errno or errno.EMFILE) from None

    def _enrol(self, instance: Instance, report: int, outlets: list[Any]) -> None:
        instance.report = report
        instance.outlets = outlets
        instance.log_position = instance.log.position
        self.instances[instance.key] = instance
        self.by_pid[instance.pid] = instance
        self._loop.watch(report, lambda: self._confirm(instance))
        if instance.pidfd >= 0:
            self._loop.watch(instance.pidfd, lambda: self.reap_leader(instance))

    def _confirm(self, instance: Instance) -> None:
        """Read what became of the exec and answer all who asked for it."""
        if instance.report < 0:
            return
        try:
            failure = spawn.read_report(instance.report)
        except BlockingIOError:
            return
        self._loop.unwatch(instance.report)
        os.close(instance.report)
        instance.report = -1
        if failure is not None:
            self._unspawn(instance)
        elif instance.max_rss_bytes is not None or self._rungs.portable:
            self.changed(instance)
        for answer in self._answers.pop(instance.key, []):
            answer(failure or instance)

    def _unspawn(self, instance: Instance) -> None:
        """Leave no ghost of a child that never was: it has reported and exits at once."""
        if self.by_pid.pop(instance.pid, None) is not None:
            os.waitpid(instance.pid, 0)
        instance.tree_alive = False
        self._close_descriptors(instance)
        self._drop_group(instance)
        self.instances.pop(instance.key, None)

    # -- going -------------------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Reap whatever has ended: leaders, and orphans that came back. Called on SIGCHLD."""
        if not self._rungs.subreaper:
            for instance in list(self.by_pid.values()):
                self.reap_leader(instance)
            return
        for _ in range(REAPS_PER_TURN):
            try:
                # A look without reaping first: a leader's end is handled with its record, in one place.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            leader = self.by_pid.get(ended.si_pid)
            if leader is not None:
                self.reap_leader(leader)
            elif ended.si_pid in self.strangers:
                return  # the control plane's end is its supervisor's to reap, which this same signal wakes
            else:
                os.waitpid(ended.si_pid, os.WNOHANG)
        self._loop.soon(self.reap)

    def reap_leader(self, instance: Instance) -> None:
        """Reap the leader if it has ended, and write its record."""
        if instance.exit is not None or instance.pid not in self.by_pid:
            return
        try:
            pid, status, usage = os.wait4(instance.pid, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        del self.by_pid[pid]
        if instance.report >= 0:
            self._confirm(instance)  # it is dead, so the report is there: answer the spawn before telling the end
            if instance.key not in self.instances:
                return
        self._conclude(instance, os.waitstatus_to_exitcode(status), usage)

    def _conclude(self, instance: Instance, code: int, usage: resource.struct_rusage) -> None:
        for outlet in instance.outlets:
            outlet.drain()
        self._judge(instance, -code, usage.ru_utime + usage.ru_stime)
        instance.conclude(code if code >= 0 else None, -code if code < 0 else None, usage, RSS_UNIT)
        if instance.pidfd >= 0:
            self._loop.unwatch(instance.pidfd)
            os.close(instance.pidfd)
            instance.pidfd = -1
        self._unsettled[instance.key] = instance
        self._loop.soon(self._settle)

    @staticmethod
    def _judge(instance: Instance, signum: int, cpu_seconds: float) -> None:
        """Where the kernel was the killer, say so if it left proof."""
        if instance.group is not None and instance.group.oom_kills():
            reason = "memory_limit" if instance.memory_in_kernel else "oom_kill"
            instance.condemn(reason, "cgroup", signal.SIGKILL, None, instance.max_rss_bytes)
        if instance.cpu_limit is not None and signum in (signal.SIGXCPU, signal.SIGKILL):
            # The limit counts whole ticks as they are sampled, rusage counts precisely: on a crowded machine the two
            # differ. Nobody but the kernel has a reason to send SIGXCPU; SIGKILL may come from anywhere.
            soft, hard = instance.cpu_limit
            needed = soft * 0.5 if signum == signal.SIGXCPU else hard * 0.9
            if 0 <= needed <= cpu_seconds:
                instance.condemn("cpu_limit", "rlimit", signum, None, None)

    def _settle(self) -> None:
        """Tell the ends of this turn, and close or watch the trees that they leave; one snapshot serves all."""
        ended, self._unsettled = self._unsettled, {}
        if any(instance.group is None for instance in ended.values()):
            self.census.take()
        for instance in ended.values():
            left = self.census.members(instance) if instance.tree_alive else []
            if instance.exit is not None:
                instance.exit["orphans"] = len(left)
                self._emit({"event": "exit", "record": instance.exit})
            self.changed(instance)
            self._close_or_watch(instance, left)

    def _close_or_watch(self, instance: Instance, left: list[Process]) -> None:
        if not left and (not instance.tree_alive or self.census.empty(instance)):
            self.close(instance)
        else:
            self._keep_vigil(instance, left)

    def _keep_vigil(self, instance: Instance, left: list[Process]) -> None:
        """Count the tree again when one of its members has ended."""
        self._end_vigil(instance.key)
        fd = -1
        if self._rungs.pidfd and left:
            try:
                fd = os.pidfd_open(left[0].pid)
            except OSError:
                fd = -1  # gone already, or no descriptor left: the timer looks again
        if fd < 0:
            self._loop.later(VIGIL_SECONDS, lambda: self._recount(instance))
            return
        self._vigils[instance.key] = fd
        self._loop.watch(fd, lambda: self._recount(instance))

    def _end_vigil(self, key: str) -> None:
        fd = self._vigils.pop(key, -1)
        if fd >= 0:
            self._loop.unwatch(fd)
            os.close(fd)

    def _recount(self, instance: Instance) -> None:
        self._end_vigil(instance.key)
        if not instance.tree_alive or self.instances.get(instance.key) is not instance:
            return
        if instance.group is None or not instance.group.populated():
            self.census.take()
        self._close_or_watch(instance, self.census.members(instance))

    def close(self, instance: Instance) -> None:
        """The tree is empty: drain and close what is left of it, and say so."""
        if not instance.tree_alive:
            return
        if instance.key in self._unsettled:
            self._settle()  # the exit is told before the end of the tree; this comes back here
            return
        instance.tree_alive = False
        instance.stopping = False
        instance.members = {}
        self._end_vigil(instance.key)
        self._close_descriptors(instance)
        self._drop_group(instance)
        self._emit({"event": "gone", "key": instance.key})
        self.changed(instance)

    def _close_descriptors(self, instance: Instance) -> None:
        for outlet in instance.outlets:
            outlet.drain()
            self._pump.end(outlet)
        if instance.pidfd >= 0:
            self._loop.unwatch(instance.pidfd)
            os.close(instance.pidfd)
            instance.pidfd = -1

    def _drop_group(self, instance: Instance) -> None:
        if instance.group is not None and not instance.group.remove():
            # The last zombie of a group may be a moment from its end; later is soon enough.
            self._loop.later(VIGIL_SECONDS, instance.group.remove)
        instance.group = None

    # -- after -------------------------------------------------------------------------------------------------------

    def release(self, key: str) -> None:
        """Forget an instance that is gone; one that never was is forgotten already.

        Raises:
            spawn.Refusal: Its tree lives.
        """
        instance = self.instances.get(key)
        if instance is None:
            return
        if instance.tree_alive:
            raise spawn.Refusal("alive", f"the tree of {instance.unit} ({key}) lives")
        del self.instances[key]
        self.changed(instance)

    def tell_again(self) -> None:
        """Repeat every unreleased end, for a new control plane."""
        for instance in self.instances.values():
            if instance.exit is not None and instance.key not in self._unsettled:
                self._emit({"event": "exit", "record": instance.exit})
                if not instance.tree_alive:
                    self._emit({"event": "gone", "key": instance.key})


def _nothing(_instance: Instance) -> None:
    """Nobody listens."""
