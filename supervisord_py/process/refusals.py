"""What a refusal of the keeper means to a user: the error with its detail and the next step.

Law: a start that failed names the program, the stage and the system's own words, never only a number.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from supervisord_py.errors import (
    ConflictError,
    KeeperLostError,
    PxError,
    ShuttingDownError,
    StartFailedError,
    UnknownUnitError,
)
from supervisord_py.process.spec import Reason

if TYPE_CHECKING:
    from supervisord_py.process.calls import RefusedError
    from supervisord_py.process.spec import ChildSpec

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
        f"cannot start {spec.unit}: the keeper is older than this control plane and cannot feed or hold back a child",
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
