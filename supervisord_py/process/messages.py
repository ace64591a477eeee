"""Between the JSON of keeper/protocol.py and the values of process/spec.py: the only place that knows both. Pure.

Law: members that this side does not know are ignored (a newer keeper may say more); members that are missing are a
`MessageError`, because guessing about a process is worse than refusing to.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from supervisord_py.errors import (
    ConflictError,
    KeeperLostError,
    PxError,
    ShuttingDownError,
    StartFailedError,
    UnknownUnitError,
)
from supervisord_py.keeper.protocol import MARK_INSTANCE, MARK_UNIT
from supervisord_py.process.spec import (
    Caps,
    Child,
    ExitRecord,
    Identity,
    Reason,
    StopReport,
    Survivor,
    TreeStat,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.process.spec import ChildSpec
    from supervisord_py.process.wire import RefusedError


class MessageError(Exception):
    """A message of the keeper lacks something or says something that is not in the protocol."""


@dataclass(frozen=True, slots=True)
class LogTrouble:
    """The disk takes no output of a unit (`recovered` False), or takes it again (True); what was lost in between."""

    unit: str
    errno: int | None
    lost_bytes: int
    recovered: bool


@dataclass(frozen=True, slots=True)
class ControlEvent:
    """Something that the keeper passes on to the whole control plane: `stop` (with the signal), `reload`, `dump`."""

    name: str
    signum: int | None = None


JsonObject = dict[str, Any]


T = TypeVar("T")
_WITH_STDIN = 2


def parse(what: str, build: Callable[[JsonObject], T], message: JsonObject) -> T:
    """Build a value from a message.

    Args:
        what: Its name in the error.
        build: One of the functions below.
        message: JSON object.

    Raises:
        MessageError: A member is missing or of another type.
    """
    try:
        return build(message)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MessageError(f"the keeper's {what} cannot be read: {type(error).__name__}: {error}") from error


def spawn_members(key: str, spec: ChildSpec) -> JsonObject:
    """Return SPAWN of the protocol, with the marks of DESIGN D11 in the environment."""
    return {
        "key": key,
        "unit": spec.unit,
        "argv": list(spec.argv),
        "cwd": spec.cwd,
        "env": marked(key, spec.unit, spec.env),
        "umask": spec.umask,
        "nice": spec.nice,
        "rlimits": [[limit.name, limit.soft, limit.hard] for limit in spec.limits],
        "grant_fds": [[grant.child_fd, grant.stored_name] for grant in spec.grants],
        "set_listen_pid": spec.listen_pid,
        "max_rss_bytes": spec.max_rss_bytes,
        "memory_grace_seconds": spec.memory_grace_seconds,
        "tag": spec.tag,
        **({} if spec.stdin_name is None else {"stdin_name": spec.stdin_name}),
    }


def revision_for(spec: ChildSpec) -> int:
    """Return which revision of the protocol a keeper must know to do this and not something less."""
    return _WITH_STDIN if spec.stdin_name is not None else 1


def marked(key: str, unit: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the marks of DESIGN D11."""
    return {**env, MARK_INSTANCE: key, MARK_UNIT: unit}


def hello(reply: JsonObject) -> tuple[Caps, tuple[Child, ...]]:
    """Read the reply to `hello`: what the keeper says of itself, and what it holds."""
    caps = Caps(
        keeper_pid=int(reply["pid"]),
        keeper_started_at=float(reply["started_at"]),
        boot_id=str(reply["boot_id"]),
        kill_rung=str(reply["kill_rung"]),
        memory_rung=str(reply["memory_rung"]),
        control_restarts=int(reply["control_restarts"]),
        interrupted=tuple((str(it["key"]), str(it["unit"]), int(it["pid"])) for it in reply["interrupted"]),
        keeper_revision=int(reply.get("revision", 1)),
    )
    return caps, children(reply)


def child(message: JsonObject) -> Child:
    """Read CHILD."""
    return Child(
        key=str(message["key"]),
        unit=str(message["unit"]),
        identity=_identity(message),
        started_at=float(message["started_at"]),
        tag=str(message["tag"]),
        log_position=int(message["log_position"]),
        exit=None if message["exit"] is None else exit_record(message["exit"]),
    )


def children(reply: JsonObject) -> tuple[Child, ...]:
    """Read the reply to `list`."""
    return tuple(child(it) for it in reply["children"])


def exit_record(message: JsonObject) -> ExitRecord:
    """Read EXIT."""
    return ExitRecord(
        key=str(message["key"]),
        unit=str(message["unit"]),
        identity=_identity(message),
        started_at=float(message["started_at"]),
        ended_at=float(message["ended_at"]),
        code=_optional_int(message["code"]),
        signal=_optional_int(message["signal"]),
        user_seconds=float(message["user_seconds"]),
        system_seconds=float(message["system_seconds"]),
        max_rss_bytes=int(message["max_rss_bytes"]),
        log_position=int(message["log_position"]),
        log_end=int(message["log_end"]),
        verdict=None if message["verdict"] is None else _verdict(message["verdict"]),
    )


def stop_report(key: str, reply: JsonObject) -> StopReport:
    """Read the reply to `stop`."""
    left = tuple(Survivor(int(it["pid"]), str(it["name"]), int(it["start_time"])) for it in reply["survivors"])
    return StopReport(key, left, killed=bool(reply["killed"]))


def tree_stats(reply: JsonObject) -> dict[str, TreeStat]:
    """Read the reply to `stat`."""
    return {
        str(key): TreeStat(int(it["rss_bytes"]), float(it["cpu_seconds"]), int(it["processes"]))
        for key, it in reply["stats"].items()
    }


def log_trouble(event: JsonObject) -> LogTrouble:
    """Read the events `log_degraded` and `log_recovered`."""
    recovered = event["event"] == "log_recovered"
    return LogTrouble(str(event["unit"]), _optional_int(event.get("errno")), int(event["lost_bytes"]), recovered)


def control_event(event: JsonObject) -> ControlEvent:
    """Read the events `stop`, `reload` and `dump`."""
    return ControlEvent(str(event["event"]), _optional_int(event.get("signum")))


def _identity(message: JsonObject) -> Identity:
    return Identity(int(message["pid"]), int(message["start_time"]), str(message["boot_id"]))


def _verdict(message: JsonObject) -> Verdict:
    return Verdict(
        reason=_reason(str(message["reason"])),
        by=str(message["by"]),
        time=float(message["time"]),
        signal=_optional_int(message.get("signal")),
        rss_bytes=_optional_int(message.get("rss_bytes")),
        limit_bytes=_optional_int(message.get("limit_bytes")),
    )


def _reason(word: str) -> Reason:
    """Return the reason; a word outside the list is somebody's stop, because an exit must not be lost over it."""
    return Reason(word) if word in {reason.value for reason in Reason} else Reason.STOPPED


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


# -- what a refusal means to a user: a start that failed names the program, the stage and the system's own words -------

_HINTS = {
    "exec": "check the program: is it installed, executable, and its `#!` line right?",
    "chdir": "check that the working directory exists and may be entered",
    "rlimit": "lower the limit: it is above the hard limit of the daemon",
    "fork": "too many processes or too little memory: see `pxctl status` and `ulimit -u`",
    "fds": "too few file descriptors: raise `ulimit -n` (LimitNOFILE= of the systemd unit)",
    "cgroup": "see `pxctl doctor` for the state of cgroup delegation",
}
_NO_ENTRY = 2
_NO_ACCESS = 13
_EXEC_HINTS = {
    _NO_ENTRY: "install it, or set `python` or `command` in tool.json to a program that is there",
    _NO_ACCESS: "make it executable (`chmod +x`), or name another program in tool.json",
}


def start_error(spec: ChildSpec, refusal: RefusedError) -> PxError:
    """Return the error of a spawn that was refused: which program, at which stage, why, and what to do."""
    if refusal.kind != "spawn_failed":
        return error_of(refusal, unit=spec.unit)
    stage, number = str(refusal.members.get("stage")), refusal.members.get("errno")
    why = os.strerror(number) if isinstance(number, int) else refusal.detail
    subject = f"working directory {spec.cwd}" if stage == "chdir" else f"program {spec.argv[0]}"
    hint = _EXEC_HINTS.get(number) if stage == "exec" and isinstance(number, int) else None
    return StartFailedError(
        f"cannot start {spec.unit}: {subject}, stage {stage}: {why}",
        hint=hint or _HINTS.get(stage),
        unit=spec.unit,
        reason=Reason.SPAWN_FAILED.value,
        stage=stage,
        errno=number,
    )


def too_old_error(spec: ChildSpec) -> StartFailedError:
    """Return the error of a start that needs what the keeper, from before an upgrade, cannot do."""
    return StartFailedError(
        f"cannot start {spec.unit}: the keeper is older than this control plane and cannot feed a child",
        hint="run `pxctl daemon restart --all` to replace both",
        unit=spec.unit,
        reason=Reason.SPAWN_FAILED.value,
        stage="keeper",
        errno=None,
    )


def error_of(refusal: RefusedError, unit: str | None = None) -> PxError:
    """Return the error of any other refusal."""
    match refusal.kind:
        case "unknown_key":
            return UnknownUnitError(refusal.detail, unit=unit)
        case "exists" | "dead" | "alive":
            return ConflictError(refusal.detail, unit=unit)
        case "shutdown":
            return ShuttingDownError(refusal.detail, unit=unit)
        case "protocol":
            return KeeperLostError(refusal.detail, hint="run `pxctl daemon restart --all` to replace both")
        case _:
            return PxError(f"the keeper refused: {refusal.detail}", unit=unit, refusal=refusal.kind)
