"""Pipes among the units of `status`, `wait`, `why` and `logs`: their state in one word, derived when asked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.api.times import rfc3339
from supervisord_py.ledger.pipe_executions import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.pipes.models import PipeView
    from supervisord_py.process.model import Reason


@dataclass(frozen=True, slots=True)
class PipeState:
    """A pipe as a unit. `state` is one of `running queued idle disabled failed`; failed is one that cannot run."""

    view: PipeView

    @property
    def unit(self) -> str:
        """`pipe:<name>`."""
        return f"pipe:{self.view.name}"

    @property
    def state(self) -> str:
        """In one word."""
        view = self.view
        if view.running is not None:
            return "running"
        if view.queued:
            return "queued"
        if view.config_error is not None:
            return "failed"
        return "idle" if view.enabled else "disabled"

    def reached(self, goal: str) -> bool | None:
        """Say whether `ready`, `stopped` or `done` is reached (with a good end), out of reach, or may still come."""
        if goal == "ready":
            return self.state in {"running", "queued", "idle"}
        if self.state in {"running", "queued"}:
            return None
        return goal == "stopped" or self.view.last_status in {None, Status.COMPLETED}

    @property
    def reason(self) -> Reason | str | None:
        """Why the last execution ended is told by its row, not here."""
        return None

    @property
    def instance(self) -> str | None:
        """The process life of the execution that runs."""
        return self.view.instance

    @property
    def summary(self) -> str:
        """How it is in a sentence, for `why`."""
        view = self.view
        if view.config_error is not None:
            return f"{self.unit} cannot run: {view.config_error}"
        if view.running is not None:
            return f"{self.unit} is running: execution {view.running}."
        decided = "" if view.last_decision is None else f" Last decision: {view.last_decision.text}."
        if view.last_status is None:
            return f"{self.unit} is {self.state}: it never ran.{decided}"
        often = f", {view.consecutive_failures} failures in a row" if view.consecutive_failures > 1 else ""
        ended = view.last_status.value.replace("_", " ")
        return f"{self.unit} is {self.state}: its last execution {ended}{often}.{decided}"

    @property
    def next_step(self) -> str:
        """The command that goes on from there."""
        view = self.view
        if view.config_error is not None:
            return f"pxctl pipe validate {view.name}"
        if view.running is not None:
            return f"pxctl pipe tail -f {view.running}"
        if view.queued:
            return "pxctl pipe queue"
        if view.last_status in {Status.FAILED, Status.TIMED_OUT}:
            return f"pxctl pipe output {view.name} --stderr"
        return f"pxctl pipe next {view.name}" if view.enabled else f"pxctl pipe enable {view.name}"

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """The problem of a pipe that cannot run."""
        error = self.view.config_error
        hint = f"pxctl pipe validate {self.view.name}"
        return None if error is None else {"kind": "config_error", "detail": error, "hint": hint}


def pipe_unit_document(state: PipeState) -> dict[str, Any]:
    """Return the object of a pipe in `status`: the members of every unit, and its own."""
    view, started = state.view, state.view.started_at
    document: dict[str, Any] = {
        "unit": state.unit,
        "kind": "pipe",
        "name": view.name,
        "state": state.state,
        "reason": None,
        "pid": view.pid,
        "started_at": rfc3339(started),
        "uptime_seconds": None if started is None else round(max(0.0, time.time() - started), 3),
        "rss_bytes": None,
        "cpu_percent": None,
        "last_used": rfc3339(view.last_run),
        "in_flight": int(view.running is not None),
        "pinned": False,
        "start_method": None,
        "restarts": 0,
        "next_run": rfc3339(view.next_run),
        "config_error": view.config_error,
    }
    return {**document, **_own(state)}


def _own(state: PipeState) -> dict[str, Any]:
    view = state.view
    return {
        "port": None,
        "instance": state.instance,
        "waiting": view.queued,
        "processes": None,
        "cold_start_ms": None,
        "failure": state.failure,
        "survivors": [],
        "warnings": list(view.warnings),
        "config_problem": state.failure,
        "enabled": view.enabled,
        "schedule": view.schedule,
        "running": view.running,
        "last_status": None if view.last_status is None else view.last_status.value,
        "consecutive_failures": view.consecutive_failures,
    }
