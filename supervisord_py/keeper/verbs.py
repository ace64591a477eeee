"""The page of verbs: one function a verb, a table that lists them, and one place where refusals
become replies.

A function returns the members of its reply (None: there are none), or LATER when it answers by
itself, now or later, by `answer`. Descriptors that came with a request and were not taken are
closed here.
"""

from __future__ import annotations

import errno
import os
import signal

from supervisord_py import __version__
from supervisord_py.keeper import procfs
from supervisord_py.keeper.kill_tree import KILL_SECONDS
from supervisord_py.keeper.protocol import PROTOCOL, REVISION, close_fds
from supervisord_py.keeper.spawn import RefusedError
from supervisord_py.keeper.tree import HeldChild

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from supervisord_py.keeper.handover import Upgrade
    from supervisord_py.keeper.parts import KeeperParts
    from supervisord_py.keeper.procfs import Process
    from supervisord_py.keeper.shutdown import Shutdown

    Members = dict[str, Any]

LATER: Members = {}


class VerbRequest:
    """One request.

    Descriptors that came with it and are not taken out of `fds` are closed at the end.
    """

    def __init__(
        self,
        keeper: KeeperParts,
        shutdown: Shutdown,
        upgrade: Upgrade,
        message: Members,
        fds: list[int],
    ) -> None:
        self._control_pid = keeper.control.pid
        self.keeper = keeper
        self.shutdown = shutdown
        self.upgrade = upgrade
        self.message = message
        self.fds = fds

    def answer(self, outcome: Members | RefusedError, fds: Sequence[int] = ()) -> None:
        """Reply with members, or with an error, to a request with an `id`; `fds` stay the
        keeper's own.
        """
        if "id" not in self.message:
            return
        reply = {"id": self.message["id"], "ok": not isinstance(outcome, RefusedError)}
        reply |= {"error": outcome.document} if isinstance(outcome, RefusedError) else outcome
        self.keeper.control.reply(self._control_pid, reply, fds)

    def child(self) -> HeldChild:
        key = self.message["key"]
        if key not in self.keeper.children.held:
            raise RefusedError("unknown_key", f"no child has the key {key!r}")
        return self.keeper.children.held[key]


def receive(
    keeper: KeeperParts, shutdown: Shutdown, upgrade: Upgrade, message: Members, fds: list[int]
) -> None:
    """Answer one request of the control plane; its descriptors are ours."""
    request = VerbRequest(keeper, shutdown, upgrade, message, fds)
    try:
        verb = VERBS.get(message["verb"])
        if verb is None:
            raise RefusedError("unknown_verb", f"there is no verb {message['verb']!r}")
        members = verb(request)
        if members is not LATER:
            request.answer(members or {})
    except RefusedError as refusal:
        request.answer(refusal)
    except Exception as error:  # the order makes no sense, or there is a defect
        request.answer(RefusedError("bad_request", f"{type(error).__name__}: {error}"))
        keeper.failed(error)
    finally:
        close_fds(request.fds)


# -- children --------------------------------------------------------------------------------------


def _hello(request: VerbRequest) -> Members:
    keeper, asked = request.keeper, request.message.get("protocol")
    if asked != PROTOCOL:
        raise RefusedError(
            "protocol", f"the keeper speaks protocol {PROTOCOL}, not {asked!r}", protocol=PROTOCOL
        )
    birth, rungs = keeper.birth, keeper.rungs
    who: Members = {"pid": birth.pid, "started_at": birth.started_at, "boot_id": birth.boot_id}
    can: Members = {
        "kill_rung": rungs.kill,
        "memory_rung": rungs.memory,
        "controllers": rungs.controllers,
    }
    children = [child.document() for child in keeper.children.held.values()]
    holds: Members = {"children": children, "control_restarts": keeper.control.machine.restarts}
    holds["rolled_back_from"] = request.upgrade.rolled_back_from
    request.answer(
        {"protocol": PROTOCOL, "revision": REVISION, "version": __version__, **who, **can, **holds}
    )
    keeper.control.hello()
    keeper.children.send_ends_again()
    keeper.logs.send_degradations_again()
    return LATER


def _spawn(request: VerbRequest) -> Members:
    if not request.shutdown.is_running:
        raise RefusedError("shutdown", "the keeper is stopping")
    request.keeper.children.spawn(
        request.message, request.fds, request.keeper.stored, request.answer
    )
    return LATER


def _signal(request: VerbRequest) -> None:
    child = request.child()
    try:
        if child.exit is not None or not child.pid:
            raise ProcessLookupError(errno.ESRCH, "its leader has ended, or is not there yet")
        # Not reaped yet, so its number, and with it that of the group that setsid(2) gave it, is
        # nobody else's.
        os.killpg(child.pid, request.message["signum"])
    except OSError as error:
        raise RefusedError("dead", f"{child.unit} cannot be signalled: {error.strerror}") from None


def _stop(request: VerbRequest) -> Members:
    child, message = request.child(), request.message
    grace: float = message["grace_seconds"]
    child.condemn(
        message.get("reason") or "stopped", "control", signal.SIGTERM if grace else signal.SIGKILL
    )

    def done(survivors: list[Process], killed: bool) -> None:
        membership = request.keeper.children.membership
        unassigned = [] if child.group is not None else membership.unassigned_since(child)
        request.answer(
            {"survivors": _named(survivors), "killed": killed, "unassigned": _named(unassigned)}
        )

    request.keeper.kill_tree.stop(child, grace, message.get("kill_seconds", KILL_SECONDS), done)
    return LATER


def _named(rows: list[Process]) -> list[Members]:
    return [{"pid": row.pid, "name": row.name, "start_time": row.start_time} for row in rows]


def _list(request: VerbRequest) -> Members:
    prefix = request.message["prefix"]
    children = request.keeper.children.held.values()
    return {"children": [child.document() for child in children if child.unit.startswith(prefix)]}


def _stat(request: VerbRequest) -> Members:
    membership, held = request.keeper.children.membership, request.keeper.children.held
    asked = [held[key] for key in request.message["keys"] if key in held]
    # Where no group tells it now, the last snapshot would: it may be older than an end.
    if any(
        child.tree_alive and not (child.group is not None and child.group.populated())
        for child in asked
    ):
        membership.take()
    once = request.message.get("shared_once") is True
    stats = {}
    for child in asked:
        members = membership.members(child) if child.tree_alive else []
        counted = child.group.cpu_seconds() if child.group is not None else 0.0
        stats[child.key] = {
            "rss_bytes": sum(
                (once and procfs.proportional(row.pid)) or procfs.resident(row.pid)
                for row in members
            ),
            # The group counts also those that have ended.
            "cpu_seconds": counted or sum(row.ticks for row in members) / procfs.TICKS_PER_SECOND,
            "processes": len(members),
            "pids": [row.pid for row in members],
            "pressure": child.group.pressure() if child.group is not None else None,
        }
    return {"stats": stats}


def _annotate(request: VerbRequest) -> None:
    request.child().tag = request.message["tag"]


# -- descriptors -----------------------------------------------------------------------------------


def _put_fd(request: VerbRequest) -> None:
    (fd,) = request.fds
    request.fds.clear()
    request.keeper.stored.put(request.message["name"], fd)


def _take_fd(request: VerbRequest) -> Members:
    name = request.message["name"]
    if name not in request.keeper.stored:
        raise RefusedError("unknown_fd", f"no descriptor is stored under the name {name!r}")
    fd = request.keeper.stored.take(name)
    try:
        request.answer({}, [fd])  # which is sent later, as a duplicate
    finally:
        os.close(fd)
    return LATER


def _drop_fd(request: VerbRequest) -> None:
    request.keeper.stored.drop(request.message["name"])


# -- the daemon as a whole -------------------------------------------------------------------------


def _restart(request: VerbRequest) -> None:
    keeper = request.keeper
    if request.message.get("all"):
        request.shutdown.asked_by_control(is_restart=True)
    else:
        keeper.control.replace()


def _ready(request: VerbRequest) -> None:
    request.upgrade.control_is_ready()
    request.keeper.notifier.say("READY=1")


def _upgrade(request: VerbRequest) -> Members:
    request.upgrade.ask(request.answer, always=request.message.get("always") is True)
    return LATER


VERBS: dict[str, Callable[[VerbRequest], Members | None]] = {
    "hello": _hello,
    "spawn": _spawn,
    "signal": _signal,
    "stop": _stop,
    "list": _list,
    "stat": _stat,
    "annotate": _annotate,
    "release": lambda request: request.keeper.children.release(request.message["key"]),
    "put_fd": _put_fd,
    "take_fd": _take_fd,
    "drop_fd": _drop_fd,
    "ready": _ready,
    "status": lambda request: request.keeper.notifier.status(request.message["text"]),
    "alive": lambda request: request.keeper.control.alive(),
    "shutdown": lambda request: request.shutdown.asked_by_control(is_restart=False),
    "upgrade": _upgrade,
    "restart": _restart,
}
