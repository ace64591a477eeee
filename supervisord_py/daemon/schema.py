"""Every setting: its name, type, bounds, default and meaning. Nothing is read here.

One frozen model a section of `pxd.toml`. Models are strict: a text is no number. What the environment and `--set` give
as text is turned into the type of its setting first (settings.py).
"""

from __future__ import annotations

import json
import os
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

from supervisord_py.tools.config import DEFAULT_ENV_ALLOW

MIB = 1024 * 1024
KIB = 1024

Seconds = Annotated[float, Field(ge=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """What all sections share: closed, frozen, strict."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DaemonSection(Section):
    """`[daemon]`: the two processes themselves."""

    stop_seconds: PositiveSeconds = Field(
        default=10.0, description="how long an orderly stop may take before the keeper kills"
    )
    watchdog_seconds: Seconds = Field(
        default=10.0, description="interval at which the keeper asks for a sign of life; 0 is never"
    )
    control_hang_seconds: PositiveSeconds = Field(
        default=30.0, description="silence after which the control plane is replaced"
    )
    backoff_initial_seconds: PositiveSeconds = Field(
        default=0.1, description="first delay before the control plane is restarted"
    )
    backoff_max_seconds: PositiveSeconds = Field(default=30.0, description="longest such delay")
    backoff_reset_seconds: PositiveSeconds = Field(
        default=60.0, description="time up after which the delay is the first again"
    )
    cgroup: Literal["auto", "off"] = Field(default="auto", description="whether cgroups are used where they can be")
    platform: Literal["auto", "portable"] = Field(
        default="auto", description="portable: only what every platform offers"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level of the own log"
    )


class LogsSection(Section):
    """`[logs]`: the output of children, per unit."""

    segment_bytes: Annotated[int, Field(ge=64 * KIB)] = Field(
        default=8 * MIB, description="size at which a segment is closed"
    )
    total_bytes: Annotated[int, Field(ge=128 * KIB)] = Field(
        default=64 * MIB, description="beyond it the oldest segments go"
    )
    spill_bytes: Annotated[int, Field(ge=4 * KIB)] = Field(
        default=MIB, description="held in memory while the disk refuses"
    )


class ToolsSection(Section):
    """`[tools]`: warm tools. A tool's own `tool.json` wins where it says something."""

    paths: tuple[str, ...] = Field(default=(), description="folders of tools beside the first one; every source adds")
    warm_keep_max: PositiveCount = Field(
        default=5, description="warm tools beyond which the least recently used is stopped"
    )
    memory_budget_mb: PositiveCount | None = Field(
        default=None, description="MiB of all warm tools together; none by default"
    )
    queue_max: Count = Field(default=512, description="requests that may wait for a place")
    queue_timeout_seconds: PositiveSeconds = Field(default=60.0, description="longest wait in that line")
    warm_keep_seconds: Seconds = Field(default=300.0, description="idle time after which a warm tool is stopped")
    max_memory_mb: Count = Field(default=512, description="MiB resident of one tool; 0 is none")
    max_runtime_seconds: Seconds = Field(default=60.0, description="wall clock of one run; 0 is none")
    start_timeout_seconds: PositiveSeconds = Field(default=30.0, description="from the spawn to ready")
    stop_timeout_seconds: Seconds = Field(default=5.0, description="from TERM to KILL")
    concurrency: PositiveCount = Field(default=16, description="requests at a time for one instance")
    python: str | None = Field(
        default=None, description="interpreter of tools without their own; the daemon's by default"
    )
    env_allow: tuple[str, ...] = Field(
        default=DEFAULT_ENV_ALLOW, description="variables that reach tools; a last * is a prefix"
    )
    max_body_bytes: PositiveCount = Field(default=16 * MIB, description="largest request body")
    answer_buffer_bytes: Annotated[int, Field(ge=4 * KIB)] = Field(
        default=256 * KIB, description="held for a slow reader"
    )
    listen_backlog: PositiveCount = Field(default=128, description="backlog of a tool's listening socket")
    stderr_tail_bytes: Count = Field(default=64 * KIB, description="how much of stderr rides with a failure")
    validate_timeout_seconds: PositiveSeconds = Field(
        default=30.0, description="bound of each spawning check of validate"
    )
    sync_timeout_seconds: PositiveSeconds = Field(default=1800.0, description="bound of one build of a .venv")


class ApiSection(Section):
    """`[api]`: how clients reach the daemon."""

    listen: str | None = Field(
        default=None, description="loopback address of an optional TCP listener, like 127.0.0.1:7860"
    )
    token_file: str | None = Field(
        default=None, description="its bearer token; beside the ledger by default, made when missing"
    )
    stream_buffer_bytes: Annotated[int, Field(ge=4 * KIB)] = Field(
        default=MIB, description="lag of a follower before a gap"
    )
    stream_heartbeat_seconds: PositiveSeconds = Field(default=15.0, description="longest silence on a followed stream")
    idempotency_seconds: Seconds = Field(default=86400.0, description="how long an answer may be replayed")
    idempotency_body_bytes: Count = Field(default=MIB, description="largest answer that is kept for replay")
    drain_seconds: Seconds = Field(
        default=5.0, description="what requests in flight get when the control plane is replaced"
    )


class LedgerSection(Section):
    """`[ledger]`: how much is remembered."""

    events_keep: PositiveCount = Field(default=100_000, description="events kept")
    runs_keep: PositiveCount = Field(default=100_000, description="runs kept")
    keep_days: PositiveCount = Field(default=90, description="days after which events and runs are forgotten")


class Settings(Section):
    """All settings of one daemon."""

    daemon: DaemonSection = DaemonSection()
    logs: LogsSection = LogsSection()
    tools: ToolsSection = ToolsSection()
    api: ApiSection = ApiSection()
    ledger: LedgerSection = LedgerSection()


KEYS: tuple[tuple[str, str], ...] = tuple(
    (section, name) for section, field in Settings.model_fields.items() for name in type(field.default).model_fields
)
"""(section, key) of every setting, in the order of the documentation."""

_SEPARATORS = {("tools", "paths"): os.pathsep}


def typed(section: str, name: str, text: str) -> Any:
    """Turn a text into the type of its setting; what does not fit stays a text, which validation then refuses.

    A list is JSON (`["a", "b"]`) or its items joined by commas; folders are joined as in PATH. An empty text is None
    where a setting may be None.
    """
    kinds = _kinds(section, name)
    if type(None) in kinds and not text:
        return None
    for kind in kinds:
        if kind is int or kind is float:
            return _number(kind, text)
        if get_origin(kind) is tuple:
            return _items(text, _SEPARATORS.get((section, name), ","))
    return text


def _kinds(section: str, name: str) -> tuple[Any, ...]:
    annotation = type(Settings.model_fields[section].default).model_fields[name].annotation
    union = get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)
    return tuple(get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in union)


def _number(kind: type[int | float], text: str) -> int | float | str:
    try:
        return kind(text)
    except ValueError:
        return text


def _items(text: str, separator: str) -> tuple[Any, ...] | str:
    if not text.startswith("["):
        return tuple(item.strip() for item in text.split(separator) if item.strip())
    try:
        return tuple(json.loads(text))
    except ValueError:
        return text
