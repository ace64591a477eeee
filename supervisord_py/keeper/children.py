"""Every child the keeper holds: started, confirmed, reaped, reported, forgotten; in that order,
each once.

A spawn is answered when the kernel confirms exec, and its exit is reported after that answer, never
before. An exit record is kept, and sent again to every new control plane, until it is released. Two
facts are kept apart: the *leader* (the process that was spawned) runs until it is reaped, and the
*tree* (it and all that descends from it) lives until its last process is gone. A tree that outlives
its leader keeps the instance.

What is due is found by looking: `reconcile` reaps, reports ends and closes empty trees at the end
of every turn. The last of a tree comes back to us when its parents are gone, as every orphan does,
so nothing has to be polled on Linux.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
from functools import partial

from supervisord_py.keeper import procfs, spawn
from supervisord_py.keeper.cgroup import Cgroup
from supervisord_py.keeper.protocol import STDERR, STDOUT
from supervisord_py.keeper.spawn import RefusedError, SpawnError, SpawnPlan
from supervisord_py.keeper.tree import HeldChild, Membership

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from supervisord_py.keeper.boot import Birth, Rungs
    from supervisord_py.keeper.descriptors import DescriptorStore
    from supervisord_py.keeper.logs import Logs, UnitLog
    from supervisord_py.keeper.loop import Loop
    from supervisord_py.keeper.tree import Answer

RECOUNT_SECONDS = 1.0
"""Where no orphan comes back, a tree without leader is counted this often, while there is one."""
REMOVE_AGAIN_SECONDS = 1.0
"""The last zombie of a group may be a moment from its end: its directory is removed later."""
REAPS_PER_TURN = 256
STREAMS = {"stdout": STDOUT, "stderr": STDERR}


class LogPipes:
    """The pipes of one start: read ends for the keeper, write ends for the child.

    Closed unless they are taken.
    """

    def __init__(self) -> None:
        self.readers: list[tuple[int, int]] = []  # descriptor and stream
        self._writers: list[int] = []

    def open(self, stream: int) -> int:
        """Open the pipe of a stream; return the write end. Raises SpawnError."""
        reader, writer = spawn.pipe()
        self.readers.append((reader, stream))
        self._writers.append(writer)
        return writer

    def inodes(self) -> set[int]:
        return {os.fstat(reader).st_ino for reader, _ in self.readers}

    def take_readers(self) -> list[tuple[int, int]]:
        """Return the read ends; the caller closes them."""
        readers = self.readers
        self.readers = []
        return readers

    def close(self) -> None:
        for fd in [*self._writers, *(reader for reader, _ in self.readers)]:
            os.close(fd)
        self._writers = []
        self.readers = []


class Children:
    """The instances.

    `changed` is called when one came up, lost its leader, or is gone; `emit` takes events.
    """

    def __init__(
        self,
        loop: Loop,
        logs: Logs,
        rungs: Rungs,
        birth: Birth,
        emit: Callable[[dict[str, Any]], None],
        changed: Callable[[HeldChild], None],
    ) -> None:
        self._loop = loop
        self._logs = logs
        self._rungs = rungs
        self._birth = birth
        self._emit = emit
        self._changed = changed
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._by_pid: dict[int, HeldChild] = {}  # leaders that are not reaped
        self._leaderless: dict[str, HeldChild] = {}  # reaped, and not closed yet
        self._count_at = 0.0  # when leaderless trees are to be looked at, while there are any
        self._groups_to_remove: list[Cgroup] = []
        self._remove_at = 0.0
        # ordered forks: child, deadline, zygote
        self._forking: dict[str, tuple[HeldChild, float, str]] = {}
        self._silent = set[str]()  # zygotes that did not answer: they get no order any more
        self.parked: dict[str, Cgroup] = {}  # by zygote: the group in which its next fork waits
        self.held: dict[str, HeldChild] = {}
        self.strangers: set[int] = set()  # pids that belong to no instance: the control plane's
        self.membership = Membership(self.held, self.strangers, subreaper=self._rungs.subreaper)

    # -- one turn of the loop ----------------------------------------------------------------------

    def reconcile(self, now: float) -> float | None:
        """Reap what has ended, report ends, close empty trees; return when to look again without
        an event.
        """
        self._reap()
        self._give_up_late_forks(now)
        if self._leaderless and now >= self._count_at:
            # Set before anything can fail. An ended process causes another look at once.
            self._count_at = now + RECOUNT_SECONDS
            self._settle()
        if self._groups_to_remove and now >= self._remove_at:
            self._remove_at = now + REMOVE_AGAIN_SECONDS
            self._groups_to_remove = [
                group for group in self._groups_to_remove if not group.remove()
            ]
        deadlines = [deadline for _, deadline, _ in self._forking.values()]
        if self._leaderless and (not self._rungs.subreaper or self._is_report_due()):
            deadlines.append(self._count_at)
        if self._groups_to_remove:
            deadlines.append(self._remove_at)
        return min(deadlines, default=None)

    def _is_report_due(self) -> bool:
        return any(not child.is_exit_sent for child in self._leaderless.values())

    # -- from one version of the keeper to the next (handover.py) ----------------------------------

    def to_json(self) -> list[dict[str, Any]]:
        """Return all that is held, descriptors by their numbers; ends are reported first."""
        self._settle()
        return [child.to_json() for child in self.held.values()]

    def take_over(self, held: Iterable[HeldChild], parked: Mapping[str, str]) -> None:
        """Hold what an earlier version held."""
        self.parked = {zygote: Cgroup(path) for zygote, path in parked.items()}
        for child in held:
            self.held[child.key] = child
            if child.exit is None:
                self._by_pid[child.pid] = child
            elif child.tree_alive:
                self._leaderless[child.key] = child
            if child.report >= 0:
                self._loop.watch(child.report, partial(self._confirm, child))
            if child.pipe_ends:
                child.log = self._logs.log(child.unit)
                child.pipe_inodes = {os.fstat(fd).st_ino for fd, _, _ in child.pipe_ends}
                child.pipes = self._logs.read_from(child.log, child.pipe_ends)
        self._count_at = 0.0
        for child in self.held.values():
            self._changed(child)

    def hold_ended(self, child: HeldChild) -> None:
        """Hold an exit record that an earlier keeper could not deliver; it is sent until it is
        released.
        """
        child.tree_alive = False
        child.is_exit_sent = True  # it is part of the answer to `hello`, and sent after it
        self.held.setdefault(child.key, child)

    # -- coming ------------------------------------------------------------------------------------

    def spawn(
        self, message: dict[str, Any], fds: list[int], stored: DescriptorStore, answer: Answer
    ) -> None:
        """Start a child, or join a start under way; `answer` is called once with the reply's
        members, or why not.

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

    def _start(
        self, child: HeldChild, message: dict[str, Any], fds: list[int], stored: DescriptorStore
    ) -> None:
        """Start a child.

        Raises SpawnError or RefusedError: then nothing of it is left, or it is being killed.
        """
        given = {"stdin": self._null, **dict(zip(message.get("stdio_fds") or (), fds, strict=True))}
        log = self._logs.log(child.unit)
        pipes = LogPipes()
        granted: dict[str, int] = {}  # duplicates, until the child has them
        try:
            for name, stream in STREAMS.items():
                if name not in given:
                    given[name] = pipes.open(stream)
            child.pipe_inodes = pipes.inodes()
            for name in _stored_names(message):
                granted[name] = _take(stored, name)
            plan = SpawnPlan(message, (given["stdin"], given["stdout"], given["stderr"]), granted)
            self._launch(child, plan, message, granted)
            # From here on there is, or will be, a process. It is held before anything else can
            # fail.
            self.held[child.key] = child
            if child.pid:
                self._by_pid[child.pid] = child
            self._attach(child, log, pipes)
        except BaseException:
            if child.key in self.held:
                self._discard(child)
            else:
                self._drop_group(child)
            raise
        finally:
            pipes.close()
            for fd in granted.values():
                os.close(fd)
            self._logs.tidy(log)

    def _attach(self, child: HeldChild, log: UnitLog, pipes: LogPipes) -> None:
        """Read the output of a child that has just been forked, and wait for its exec.

        Raises SpawnError.
        """
        self._learn_start_time(child)
        try:
            if pipes.readers:
                ends = [(reader, stream, 0) for reader, stream in pipes.take_readers()]
                child.pipes = self._logs.read_from(log, ends)
                child.log = log
                child.log_position = log.position
            self._loop.watch(child.report, partial(self._confirm, child))
        except OSError as error:
            raise SpawnError("fds", error.errno) from None

    @staticmethod
    def _learn_start_time(child: HeldChild) -> None:
        if child.pid:
            with contextlib.suppress(OSError):  # the next snapshot tells
                row = procfs.look(child.pid)  # it is not reaped yet, so the number is its own
                child.start_time = row.start_time if row else 0

    def _discard(self, child: HeldChild) -> None:
        """Kill a child whose start failed after the fork, and forget it: another start may have
        its key at once.
        """
        child.is_discarded = True
        self.held.pop(child.key, None)
        # A zygote that forks it only now finds that its report is not read any more, and ends the
        # fork.
        self._close_report(child)
        self._forking.pop(child.key, None)
        if child.pid in self._by_pid:
            with contextlib.suppress(OSError):
                os.kill(child.pid, signal.SIGKILL)
        else:
            self._forget(child)

    def _launch(
        self, child: HeldChild, plan: SpawnPlan, message: dict[str, Any], granted: Mapping[str, int]
    ) -> None:
        """Fork, in the child's own group where there are groups, or have a zygote fork.

        Raises SpawnError.
        """
        limits = {name: (soft, hard) for name, soft, hard in message.get("rlimits") or ()}
        child.cpu_limit = limits.get("cpu", (-1, -1))
        plan.guarded = self._rungs.subreaper
        plan.umask = self._birth.umask
        if "nofile" not in limits:
            plan.rlimits.append((resource.RLIMIT_NOFILE, *self._birth.nofile))
        zygote = message.get("zygote")
        try:
            try:
                if self._rungs.groups is not None:
                    self._group(child, plan, zygote, self._rungs.groups)
                if child.group is not None:
                    kept_by_group = child.group.limit(child.max_rss_bytes, limits)
                    child.memory_in_kernel = "memory" in kept_by_group
                    # the rlimit would count everything of the user, and nothing of root
                    if "nproc" in kept_by_group:
                        plan.rlimits = [
                            limit for limit in plan.rlimits if limit[0] != resource.RLIMIT_NPROC
                        ]
            except OSError as error:
                raise SpawnError("cgroup", error.errno) from None
            if zygote is None:
                child.pid, child.report = spawn.launch(plan)
            else:
                self._fork_from(child, plan, zygote, granted)
        finally:
            for fd in (plan.cgroup, plan.parks):
                if fd >= 0:
                    os.close(fd)

    def _fork_from(
        self, child: HeldChild, plan: SpawnPlan, zygote: str, granted: Mapping[str, int]
    ) -> None:
        """Order a fork; its pid comes by the report pipe. Raises SpawnError."""
        if not self._rungs.subreaper or zygote in self._silent:
            raise SpawnError("zygote", errno.ENOENT)
        child.report = spawn.order_fork(granted[f"zygote:{zygote}"], plan)
        self._forking[child.key] = (child, self._loop.now() + spawn.ZYGOTE_SECONDS, zygote)

    def _give_up_late_forks(self, now: float) -> None:
        for child, deadline, zygote in list(self._forking.values()):
            if now >= deadline:
                self._silent.add(zygote)
                self._fail_start(child, SpawnError("zygote", errno.ETIMEDOUT))

    def _read_pid(self, child: HeldChild) -> SpawnError | None:
        """Read the pid of an ordered fork, if it has come.

        Returns why there is none, and will be none.
        """
        try:
            text = os.read(child.report, spawn.PID_BYTES)
        except BlockingIOError:
            return None
        if not text:
            return SpawnError("zygote", errno.EPIPE)  # it ended, or its fork did
        if len(text) < spawn.PID_BYTES:  # the fork could not even begin
            return spawn.parse_report(text)
        child.pid = int(text)
        self._by_pid[child.pid] = child
        del self._forking[child.key]
        self._learn_start_time(child)
        return None

    def _group(self, child: HeldChild, plan: SpawnPlan, zygote: str | None, groups: Cgroup) -> None:
        """Give a child its group: a new one, or that in which a zygote's fork waits already; and
        the next fork one.
        """
        child.group = self.parked.pop(zygote or "", None) or self._create_group(groups, child.key)
        plan.cgroup = os.open(child.group.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if zygote in self.held:
            self.parked[zygote] = groups.create(f"{child.key}.next")
            plan.parks = os.open(
                self.parked[zygote].path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            )

    @staticmethod
    def _create_group(groups: Cgroup, key: str) -> Cgroup:
        """Create the group of an instance. Raises OSError."""
        try:
            return groups.create(key)
        except FileExistsError:  # of a start with this key that failed, and is not reaped yet
            return groups.create(f"{key}.again")

    def _confirm(self, child: HeldChild) -> None:
        """Read the report of exec, if it is there, and answer whoever waits for the start."""
        if child.report < 0:
            return
        if child.key in self._forking:
            failure = self._read_pid(child)
            if failure is not None:
                self._fail_start(child, failure)
            if child.key in self._forking or child.report < 0:
                return
        try:
            failure = spawn.read_report(child.report)
        except BlockingIOError:
            return
        except OSError as error:  # it cannot be known whether exec succeeded
            failure = SpawnError("exec", error.errno)
        if failure is not None:
            self._fail_start(child, failure)
            return
        self._close_report(child)
        self._changed(child)
        self._answer(child, {"child": child.document()})

    def _fail_start(self, child: HeldChild, failure: SpawnError) -> None:
        """Discard a child that never was, and say why to whoever waits for its start."""
        for pipe in child.pipes:
            pipe.close()
        self._discard(child)
        self._answer(child, failure)

    @staticmethod
    def _answer(child: HeldChild, outcome: dict[str, Any] | RefusedError) -> None:
        answers = child.answers
        child.answers = []
        for answer in answers:
            answer(outcome)

    def _close_report(self, child: HeldChild) -> None:
        if child.report >= 0:
            self._loop.unwatch(child.report)
            os.close(child.report)
            child.report = -1

    # -- going -------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Reap whatever has ended: leaders, and orphans that came back."""
        if not self._rungs.subreaper:
            for child in list(self._by_pid.values()):
                self.reap_leader(child)
            return
        for _ in range(REAPS_PER_TURN):
            try:
                # A look without reaping first: a leader's end is handled with its record, in one
                # place.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            leader = self._leader_with(ended.si_pid)
            if leader is not None:
                self.reap_leader(leader)
            elif ended.si_pid in self.strangers:
                # its own supervisor reaps it, in this same turn, and the next turn comes here again
                return
            else:
                os.waitpid(ended.si_pid, os.WNOHANG)
                self._count_at = 0.0
        self._loop.wake()  # more may have ended: they are reaped after the others' work

    def _leader_with(self, pid: int) -> HeldChild | None:
        """Return the child whose leader has this pid; it may be a fork whose pid has come and is
        not read yet.
        """
        if pid not in self._by_pid and pid not in self.strangers:
            for child, _, _ in list(self._forking.values()):
                self._confirm(child)
        return self._by_pid.get(pid)

    def reap_leader(self, child: HeldChild) -> None:
        if child.exit is not None or child.pid not in self._by_pid:
            return
        try:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        # Its status exists only here now: first the record, then what may fail.
        del self._by_pid[pid]
        code = os.waitstatus_to_exitcode(status)
        if child.is_discarded:
            self._forget(child)
            return
        # it is dead, so the report is there: answer the spawn before reporting the end
        self._confirm(child)
        if self.held.get(child.key) is not child:
            return
        self._leaderless[child.key] = child
        self._count_at = 0.0
        try:
            for pipe in child.pipes:
                pipe.drain()
        finally:
            child.conclude(code, usage, counted="memory" in self._rungs.controllers)

    def _forget(self, child: HeldChild) -> None:
        """Clean up after a child that never ran, and of whose process nothing is left."""
        child.tree_alive = False
        for pipe in child.pipes:
            pipe.close()
        self._drop_group(child)

    def _settle(self) -> None:
        """Report the ends of this turn, and close the trees of which nothing is left; one look
        serves all.
        """
        leaderless = list(self._leaderless.values())
        for child in leaderless:
            if not child.is_exit_sent:
                self._emit({"event": "exit", "record": child.exit})
                # only now: what could not be sent is sent at the next look
                child.is_exit_sent = True
                self._changed(child)
        if any(child.group is None for child in leaderless):
            self.membership.recount(leaderless)
        for child in leaderless:
            if not self.membership.members(child):
                self.close(child)

    def close(self, child: HeldChild) -> None:
        """Close the tree of a child: its leader is reaped, and nothing of it is left."""
        if not child.tree_alive:
            return
        if not child.is_exit_sent:  # the exit is reported before the end of the tree
            self._emit({"event": "exit", "record": child.exit})
            child.is_exit_sent = True
        child.tree_alive = False
        child.members = {}
        self._leaderless.pop(child.key, None)
        for pipe in child.pipes:
            pipe.drain()
            pipe.close()
        self._drop_group(child)
        self._emit({"event": "gone", "key": child.key})
        self._changed(child)

    def _drop_group(self, child: HeldChild) -> None:
        for group in (child.group, self.parked.pop(child.key, None)):
            if group is not None and not group.remove():
                self._groups_to_remove.append(group)
        child.group = None

    @property
    def has_pending_forks(self) -> bool:
        return bool(self._forking)

    # -- after -------------------------------------------------------------------------------------

    def release(self, key: str) -> None:
        """Forget an instance that is gone; one that never was is forgotten already."""
        child = self.held.get(key)
        if child is None:
            return
        if child.tree_alive:
            raise RefusedError("alive", f"the tree of {child.unit} ({key}) lives")
        del self.held[key]
        self._changed(child)

    def send_ends_again(self) -> None:
        """Send a new control plane the ends that were reported to an earlier one and are not
        released.
        """
        for child in self.held.values():
            if child.is_exit_sent:
                self._emit({"event": "exit", "record": child.exit})
                if not child.tree_alive:
                    self._emit({"event": "gone", "key": child.key})


def _stored_names(message: Mapping[str, Any]) -> list[str]:
    """Return the names of the stored descriptors that a spawn needs: those that are granted, and
    its zygote's.
    """
    names = [name for _, name in message.get("grant_fds") or ()]
    if message.get("zygote") is not None:
        names.append(f"zygote:{message['zygote']}")
    return names


def _take(stored: DescriptorStore, name: str) -> int:
    """Return a duplicate of a stored descriptor.

    Raises RefusedError: it is not there; SpawnError: there is no room.
    """
    if name not in stored:
        if name.startswith("zygote:"):
            raise SpawnError("zygote", errno.ENOENT)  # it has ended: a plain spawn is tried instead
        raise RefusedError("unknown_fd", f"no descriptor is stored under the name {name!r}")
    try:
        return stored.take(name)
    except OSError as error:
        raise SpawnError("fds", error.errno) from None
