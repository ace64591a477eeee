"""The page of verbs: one function a verb, a table that lists them, and one place where refusals become replies.

A function returns the members of its reply at once, or None when it will answer later through its `Reply`. Descriptors
that came with a request and were not taken are closed here.
"""

from __future__ import annotations

import os
import signal
import time

from supervisord_py.keeper import processes, spawn
from supervisord_py.keeper.protocol import PROTOCOL, REVISION
from supervisord_py.keeper.spawn import SpawnError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from supervisord_py.keeper.instance import Instance
    from supervisord_py.keeper.keeper import Keeper
    from supervisord_py.keeper.processes import Process
    from supervisord_py.keeper.pump import Pump

    Message = dict[str, Any]
    Members = dict[str, Any]
    Verb = Callable[["Request"], Members | None]

KILL_SECONDS = 5.0


class Request:
    """One request, and the way back to who asked."""

    __slots__ = ("_control_pid", "_keeper", "fds", "message")

    def __init__(self, keeper: Keeper, message: Message, fds: list[int]) -> None:
        self._keeper = keeper
        self._control_pid = keeper.control.pid
        self.message = message
        self.fds = fds

    def accept(self, members: Members, fds: list[int] | None = None) -> None:
        """Reply; `fds` stay the keeper's own."""
        self._keeper.control.reply(self._control_pid, {"id": self.message.get("id"), "ok": True, **members}, fds)

    def refuse(self, error: Members) -> None:
        """Reply with an error."""
        reply = {"id": self.message.get("id"), "ok": False, "error": error}
        self._keeper.control.reply(self._control_pid, reply)

    def text(self, name: str) -> str:
        """Return a member that must be a string."""
        return spawn.text(self.message, name)


class Verbs:
    """Answers the control plane."""

    __slots__ = ("_keeper", "_table")

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._table: dict[str, Verb] = {
            "hello": self._hello,
            "spawn": self._spawn,
            "signal": self._signal,
            "stop": self._stop,
            "list": self._list,
            "stat": self._stat,
            "annotate": self._annotate,
            "rename": self._rename,
            "release": self._release,
            "put_fd": self._put_fd,
            "take_fd": self._take_fd,
            "drop_fd": self._drop_fd,
            "ready": self._ready,
            "status": self._status,
            "alive": self._alive,
            "shutdown": self._shutdown,
            "restart": self._restart,
        }

    def receive(self, message: Message, fds: list[int]) -> None:
        """Answer one request."""
        request = Request(self._keeper, message, fds)
        try:
            members = self._table.get(str(message.get("verb")), _unknown)(request)
        except spawn.Refusal as refusal:
            request.refuse(refusal.document)
        except Exception as error:
            request.refuse({"kind": "internal", "detail": f"{type(error).__name__}: {error}"})
            raise
        else:
            if members is not None:
                request.accept(members)
        finally:
            for fd in request.fds:
                os.close(fd)

    # -- children ----------------------------------------------------------------------------------------------------

    def _hello(self, request: Request) -> Members | None:
        keeper = self._keeper
        if request.message.get("protocol") != PROTOCOL:
            asked = request.message.get("protocol")
            raise spawn.Refusal("protocol", f"the keeper speaks protocol {PROTOCOL}, not {asked!r}", protocol=PROTOCOL)
        request.accept(
            {
                "protocol": PROTOCOL,
                "revision": REVISION,
                "pid": keeper.birth.pid,
                "started_at": keeper.birth.started_at,
                "start_time": keeper.birth.start_time,
                "boot_id": keeper.birth.boot_id,
                "kill_rung": keeper.rungs.kill,
                "memory_rung": keeper.rungs.memory,
                "children": [instance.document() for instance in keeper.registry.instances.values()],
                "fds": sorted(keeper.stored),
                "control_restarts": keeper.control.restarts,
                "interrupted": keeper.interrupted,
            }
        )
        keeper.control.hello()
        keeper.registry.tell_again()
        return None

    def _spawn(self, request: Request) -> Members | None:
        if self._keeper.ending.begun:
            raise spawn.Refusal("shutdown", "the keeper is stopping")

        def answer(outcome: Instance | SpawnError) -> None:
            if isinstance(outcome, SpawnError):
                request.refuse(spawn.spawn_failed(outcome).document)
            else:
                request.accept({"child": outcome.document()})

        self._keeper.registry.spawn(request.message, self._keeper.stored, answer)
        return None

    def _instance(self, request: Request) -> Instance:
        key = request.text("key")
        instance = self._keeper.registry.instances.get(key)
        if instance is None:
            raise spawn.Refusal("unknown_key", f"no child has the key {key!r}")
        return instance

    def _signal(self, request: Request) -> Members:
        instance = self._instance(request)
        signum = int(spawn.number(request.message, "signum"))
        if signum not in signal.valid_signals():
            raise spawn.Refusal("bad_request", f"there is no signal {signum}")
        match request.message.get("tree") is True, request.message.get("group") is True:
            case True, True:
                raise spawn.Refusal("bad_request", "a signal goes to the tree or to the group, not to both")
            case True, False:
                self._send_to_tree(instance, signum)
            case False, True:
                self._send_to_group(instance, signum)
            case _:
                self._send_to_leader(instance, signum)
        return {}

    def _send_to_tree(self, instance: Instance, signum: int) -> None:
        members = self._members(instance)
        if not members:
            raise spawn.Refusal("dead", f"nothing of {instance.unit} lives")
        for row in members:
            processes.send(row, signum)

    @staticmethod
    def _send_to_group(instance: Instance, signum: int) -> None:
        """Signal the group that setsid(2) gave the leader: its number is the leader's pid, taken until it is reaped."""
        if instance.exit is not None:
            raise spawn.Refusal("dead", f"the leader of {instance.unit} has ended")
        try:
            os.killpg(instance.pid, signum)
        except ProcessLookupError:
            raise spawn.Refusal("dead", f"the leader of {instance.unit} has ended") from None
        except OSError as error:
            raise spawn.Refusal("not_permitted", f"{instance.unit}: {error.strerror}", errno=error.errno) from None

    @staticmethod
    def _send_to_leader(instance: Instance, signum: int) -> None:
        if instance.exit is not None:
            raise spawn.Refusal("dead", f"the leader of {instance.unit} has ended")
        try:
            # Not reaped yet: by its pidfd, or by a number that cannot be anybody else's.
            if instance.pidfd >= 0:
                signal.pidfd_send_signal(instance.pidfd, signum)
            else:
                os.kill(instance.pid, signum)
        except ProcessLookupError:
            raise spawn.Refusal("dead", f"the leader of {instance.unit} has ended") from None
        except OSError as error:
            raise spawn.Refusal("not_permitted", f"{instance.unit}: {error.strerror}", errno=error.errno) from None

    def _members(self, instance: Instance) -> list[Process]:
        if instance.group is None:
            self._keeper.registry.census.take()
        return self._keeper.registry.census.members(instance) if instance.tree_alive else []

    def _stop(self, request: Request) -> Members | None:
        instance = self._instance(request)
        grace = max(0.0, spawn.number(request.message, "grace_seconds"))
        kill_seconds = max(0.0, spawn.number(request.message, "kill_seconds", KILL_SECONDS))
        first = signal.SIGTERM if grace else signal.SIGKILL
        instance.condemn(str(request.message.get("reason") or "stopped"), "control", first, None, None)

        def done(survivors: list[Process], killed: bool) -> None:
            named = [{"pid": row.pid, "name": row.name, "start_time": row.start_time} for row in survivors]
            request.accept({"survivors": named, "killed": killed})

        self._keeper.ladder.stop(instance, grace, kill_seconds, done)
        return None

    def _list(self, request: Request) -> Members:
        prefix = str(request.message.get("prefix") or "")
        held = self._keeper.registry.instances.values()
        return {"children": [one.document() for one in held if one.unit.startswith(prefix)]}

    def _stat(self, request: Request) -> Members:
        census, held = self._keeper.registry.census, self._keeper.registry.instances
        asked = [held[key] for key in request.message.get("keys") or () if key in held]
        # Where no group tells it now, the last snapshot would: it may be older than an end.
        if any(one.tree_alive and not (one.group is not None and one.group.populated()) for one in asked):
            census.take()
        once = request.message.get("shared_once") is True
        return {"stats": {one.key: _measure(one, census.members(one) if one.tree_alive else [], once) for one in asked}}

    def _annotate(self, request: Request) -> Members:
        self._instance(request).tag = request.text("tag")
        return {}

    def _rename(self, request: Request) -> Members:
        keeper, message = self._keeper, request.message
        instance = rename(keeper.registry.instances, keeper.pump, message)
        keeper.registry.census.rename(instance.born, instance.key)
        keeper.watchdog.forget(instance.born)
        keeper.registry.changed(instance)
        return {"child": instance.document()}

    def _release(self, request: Request) -> Members:
        self._keeper.registry.release(request.text("key"))
        return {}

    # -- descriptors -------------------------------------------------------------------------------------------------

    def _put_fd(self, request: Request) -> Members:
        name = request.text("name")
        if len(request.fds) != 1:
            raise spawn.Refusal("bad_request", f"{len(request.fds)} descriptors came with the name {name!r}, not one")
        before = self._keeper.stored.pop(name, -1)
        if before >= 0:
            os.close(before)
        self._keeper.stored[name] = request.fds.pop()
        return {}

    def _take_fd(self, request: Request) -> None:
        name = request.text("name")
        if name not in self._keeper.stored:
            raise spawn.Refusal("unknown_fd", f"no descriptor is stored under the name {name!r}")
        request.accept({}, [self._keeper.stored[name]])

    def _drop_fd(self, request: Request) -> Members:
        fd = self._keeper.stored.pop(request.text("name"), -1)
        if fd >= 0:
            os.close(fd)
        return {}

    # -- the daemon itself -------------------------------------------------------------------------------------------

    def _ready(self, _request: Request) -> Members:
        self._keeper.notifier.ready()
        return {}

    def _status(self, request: Request) -> Members:
        self._keeper.notifier.status(request.text("text"))
        return {}

    def _alive(self, _request: Request) -> Members:
        self._keeper.control.alive()
        return {}

    def _shutdown(self, _request: Request) -> Members:
        self._keeper.ending.asked_by_control()
        return {}

    def _restart(self, request: Request) -> Members:
        if request.message.get("all") is True:
            if not self._keeper.boot.pxd_argv:
                raise spawn.Refusal("bad_request", "the boot document names no command to start pxd with")
            self._keeper.ending.exec_anew()
        else:
            self._keeper.control.replace()
        return {}


def _unknown(request: Request) -> Members | None:
    raise spawn.Refusal("unknown_verb", f"there is no verb {request.message.get('verb')!r}")


def _measure(instance: Instance, members: list[Process], shared_once: bool) -> Members:
    """Return one entry of `stats`: the whole tree, living members only but for the group's own account of CPU."""
    ticks = sum(row.ticks for row in members) / processes.TICKS_PER_SECOND
    counted = instance.group.cpu_seconds() if instance.group is not None else None
    resident = sum((shared_once and processes.proportional(row.pid)) or processes.resident(row.pid) for row in members)
    return {"rss_bytes": resident, "cpu_seconds": counted or ticks, "processes": len(members)}


def rename(instances: dict[str, Instance], pump: Pump, message: Mapping[str, Any]) -> Instance:
    """Have a running child go on under another key, unit and log; done already by the same order, nothing changes.

    The process notices nothing. What it printed before is the old unit's.

    Args:
        instances: The registry's, by key.
        pump: Takes the output.
        message: RENAME of the protocol.

    Raises:
        spawn.Refusal: There is no such child, it ended or is being stopped, or the new key is taken.
    """
    key, new_key, unit = (spawn.text(message, name) for name in ("key", "new_key", "unit"))
    present = instances.get(new_key)
    if present is not None and present.born == key:
        return present
    if present is not None:
        raise spawn.Refusal("exists", f"key {new_key!r} belongs to another child, of {present.unit}")
    instance = instances.get(key)
    if instance is None:
        raise spawn.Refusal("unknown_key", f"no child has the key {key!r}")
    if instance.exit is not None or instance.stopping or instance.report >= 0:
        raise spawn.Refusal("dead", f"{instance.unit} has ended, is being stopped, or has not begun")
    _move_log(instance, pump, unit)
    instance.key, instance.unit, instance.tag = new_key, unit, spawn.text(message, "tag")
    instance.started_at = time.time()
    instances[new_key] = instances.pop(key)
    return instance


def _move_log(instance: Instance, pump: Pump, unit: str) -> None:
    try:
        log = pump.log(unit)
    except ValueError as error:
        raise spawn.Refusal("bad_request", str(error)) from None
    pump.move(instance.outlets, log)
    instance.log, instance.log_position = log, log.position
