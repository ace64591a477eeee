"""The page of verbs: one function a verb, a table that lists them, and one place where refusals become replies.

A function returns the members of its reply (None: there are none), or LATER when it answers by itself through its
`VerbRequest`. Descriptors that came with a request and were not taken are closed here.
"""

from __future__ import annotations

import os
import signal
from functools import partial

from supervisord_py import __version__
from supervisord_py.keeper import handover, procfs
from supervisord_py.keeper.protocol import PROTOCOL, REVISION, close_fds
from supervisord_py.keeper.spawn import RefusedError, SpawnError, number, text
from supervisord_py.keeper.tree import KILL_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from supervisord_py.keeper.child import HeldChild
    from supervisord_py.keeper.main import Keeper
    from supervisord_py.keeper.procfs import Process

    Members = dict[str, Any]

LATER: Members = {}  # what a verb returns that answers by itself, now or later


class VerbRequest:
    """One request, and the way back to who asked."""

    __slots__ = ("_control_pid", "fds", "keeper", "message")

    def __init__(self, keeper: Keeper, message: Members, fds: list[int]) -> None:
        self._control_pid = keeper.control.pid
        self.keeper: Keeper = keeper
        self.message = message
        self.fds = fds

    def accept(self, members: Members, fds: Sequence[int] = ()) -> None:
        """Reply; `fds` stay the keeper's own."""
        self.keeper.control.reply(self._control_pid, {"id": self.message.get("id"), "ok": True, **members}, fds)

    def refuse(self, error: Members) -> None:
        """Reply with an error."""
        reply = {"id": self.message.get("id"), "ok": False, "error": error}
        self.keeper.control.reply(self._control_pid, reply)

    def text(self, name: str) -> str:
        """Return a member that must be a string."""
        return text(self.message, name)

    def child(self) -> HeldChild:
        """Return the instance that the request names."""
        key = self.text("key")
        if key not in self.keeper.children.held:
            raise RefusedError("unknown_key", f"no child has the key {key!r}")
        return self.keeper.children.held[key]


def receive(keeper: Keeper, message: Members, fds: list[int]) -> None:
    """Answer one request of the control plane; its descriptors are ours."""
    request = VerbRequest(keeper, message, fds)
    verb = VERBS.get(str(message.get("verb")))
    try:
        if verb is None:
            raise RefusedError("unknown_verb", f"there is no verb {message.get('verb')!r}")
        members = verb(request)
        if members is not LATER:
            request.accept(members or {})
    except RefusedError as refusal:
        request.refuse(refusal.document)
    except Exception as error:
        request.refuse({"kind": "internal", "detail": f"{type(error).__name__}: {error}"})
        raise
    finally:
        close_fds(request.fds)


# -- children --------------------------------------------------------------------------------------------------------


def _hello(request: VerbRequest) -> Members:
    keeper, asked = request.keeper, request.message.get("protocol")
    if asked != PROTOCOL:
        raise RefusedError("protocol", f"the keeper speaks protocol {PROTOCOL}, not {asked!r}", protocol=PROTOCOL)
    request.accept(
        {
            "protocol": PROTOCOL,
            "revision": REVISION,
            "version": __version__,
            "pid": keeper.birth.pid,
            "started_at": keeper.birth.started_at,
            "start_time": keeper.birth.start_time,
            "boot_id": keeper.birth.boot_id,
            "kill_rung": keeper.rungs.kill,
            "memory_rung": keeper.rungs.memory,
            "controllers": keeper.rungs.controllers,
            "children": [child.document() for child in keeper.children.held.values()],
            "fds": sorted(keeper.stored),
            "control_restarts": keeper.control.restarts,
            "interrupted": keeper.interrupted,
        }
    )
    keeper.control.hello()
    keeper.children.tell_again()
    return LATER


def _spawn(request: VerbRequest) -> Members:
    if request.keeper.shutdown.begun:
        raise RefusedError("shutdown", "the keeper is stopping")

    def answer(outcome: HeldChild | SpawnError) -> None:
        if isinstance(outcome, SpawnError):
            failure = {"kind": "spawn_failed", "detail": str(outcome), "stage": outcome.stage, "errno": outcome.error}
            request.refuse(failure)
        else:
            request.accept({"child": outcome.document()})

    request.keeper.children.spawn(request.message, request.fds, request.keeper.stored, answer)
    return LATER


def _signal(request: VerbRequest) -> None:
    child, signum = request.child(), int(number(request.message, "signum"))
    if signum not in signal.valid_signals():
        raise RefusedError("bad_request", f"there is no signal {signum}")
    dead = RefusedError("dead", f"the leader of {child.unit} has ended")
    if child.exit is not None:
        raise dead
    try:
        # Not reaped yet, so the number cannot be anybody else's; nor that of the group that setsid(2) gave the leader.
        (os.killpg if request.message.get("group") is True else os.kill)(child.pid, signum)
    except ProcessLookupError:
        raise dead from None
    except OSError as error:
        raise RefusedError("not_permitted", f"{child.unit}: {error.strerror}", errno=error.errno) from None


def _stop(request: VerbRequest) -> Members:
    child = request.child()
    grace = max(0.0, number(request.message, "grace_seconds"))
    kill_seconds = max(0.0, number(request.message, "kill_seconds", KILL_SECONDS))
    reason = str(request.message.get("reason") or "stopped")
    child.condemn(reason, "control", signal.SIGTERM if grace else signal.SIGKILL)

    def done(survivors: list[Process], killed: bool) -> None:
        named = [{"pid": row.pid, "name": row.name, "start_time": row.start_time} for row in survivors]
        request.accept({"survivors": named, "killed": killed})

    request.keeper.ladder.stop(child, grace, kill_seconds, done)
    return LATER


def _list(request: VerbRequest) -> Members:
    prefix = str(request.message.get("prefix") or "")
    held = request.keeper.children.held.values()
    return {"children": [child.document() for child in held if child.unit.startswith(prefix)]}


def _stat(request: VerbRequest) -> Members:
    membership, held = request.keeper.children.membership, request.keeper.children.held
    asked = [held[key] for key in request.message.get("keys") or () if key in held]
    # Where no group tells it now, the last snapshot would: it may be older than an end.
    if any(child.tree_alive and not (child.group is not None and child.group.populated()) for child in asked):
        membership.take()
    once = request.message.get("shared_once") is True
    stats = {}
    for child in asked:
        members = membership.members(child) if child.tree_alive else []
        counted = child.group.cpu_seconds() if child.group is not None else 0.0
        stats[child.key] = {
            "rss_bytes": sum((once and procfs.proportional(row.pid)) or procfs.resident(row.pid) for row in members),
            # The group counts also those that have ended.
            "cpu_seconds": counted or sum(row.ticks for row in members) / procfs.TICKS_PER_SECOND,
            "processes": len(members),
            "pressure": child.group.pressure() if child.group is not None else None,
        }
    return {"stats": stats}


def _annotate(request: VerbRequest) -> None:
    request.child().tag = request.text("tag")


# -- descriptors -----------------------------------------------------------------------------------------------------


def _put_fd(request: VerbRequest) -> None:
    name = request.text("name")
    if len(request.fds) != 1:
        raise RefusedError("bad_request", f"{len(request.fds)} descriptors came with the name {name!r}, not one")
    _drop_fd(request)
    request.keeper.stored[name] = request.fds.pop()


def _take_fd(request: VerbRequest) -> Members:
    name = request.text("name")
    if name not in request.keeper.stored:
        raise RefusedError("unknown_fd", f"no descriptor is stored under the name {name!r}")
    request.accept({}, [request.keeper.stored[name]])
    return LATER


def _drop_fd(request: VerbRequest) -> None:
    fd = request.keeper.stored.pop(request.text("name"), -1)
    if fd >= 0:
        os.close(fd)


def _restart(request: VerbRequest) -> None:
    keeper = request.keeper
    if request.message.get("all") is not True:
        keeper.control.replace()
    elif keeper.boot.pxd_argv:
        keeper.shutdown.anew = True
        keeper.shutdown.asked_by_control()
    else:
        raise RefusedError("bad_request", "the boot document names no command to start pxd with")


def _upgrade(request: VerbRequest) -> Members:
    keeper = request.keeper
    version = handover.prepare(keeper)
    keeper.succeed = partial(handover.let_go, keeper) if version is not None else None
    return {"version": version}


VERBS: dict[str, Callable[[VerbRequest], Members | None]] = {
    "hello": _hello,
    "spawn": _spawn,
    "signal": _signal,
    "stop": _stop,
    "list": _list,
    "stat": _stat,
    "annotate": _annotate,
    "release": lambda request: request.keeper.children.release(request.text("key")),
    "put_fd": _put_fd,
    "take_fd": _take_fd,
    "drop_fd": _drop_fd,
    "ready": lambda request: request.keeper.notifier.ready(),
    "status": lambda request: request.keeper.notifier.status(request.text("text")),
    "alive": lambda request: request.keeper.control.alive(),
    "shutdown": lambda request: request.keeper.shutdown.asked_by_control(),
    "upgrade": _upgrade,
    "restart": _restart,
}
