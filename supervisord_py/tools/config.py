"""Plain values that the daemon's settings become for this room; validated there, frozen here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from supervisord_py.config.settings import TOOLS_ENV

if TYPE_CHECKING:
    from pathlib import Path


class ToolDefaults(msgspec.Struct, frozen=True):
    """What a tool gets where its own `tool.json` or `pxd.json` says nothing.

    Attributes:
        warm_keep_seconds: Idle seconds before a warm instance is stopped.
        max_memory_mb: MiB; 0 is none.
        max_runtime_seconds: Wall clock of one run.
        start_timeout_seconds: From the spawn to ready.
        stop_timeout_seconds: From TERM to KILL.
        concurrency: Requests at a time for one instance.
        python: Interpreter of tools that have none of their own; None is the daemon's.
        env_allow: Names that pass from the daemon's environment; a trailing `*` is a prefix.
    """

    warm_keep_seconds: float = 300.0
    max_memory_mb: int = 512
    max_runtime_seconds: float = 60.0
    start_timeout_seconds: float = 30.0
    stop_timeout_seconds: float = 5.0
    concurrency: int = 16
    python: str | None = None
    env_allow: tuple[str, ...] = TOOLS_ENV


class PoolLimits(msgspec.Struct, frozen=True):
    """Bounds of the warm pool. `memory_budget_mb` is None for none; `queue_timeout_seconds` bounds a place in line."""

    warm_keep_max: int = 5
    memory_budget_mb: int | None = None
    queue_max: int = 512
    queue_timeout_seconds: float = 60.0


class ToolsConfig(msgspec.Struct, frozen=True):
    """Everything the room is told by the settings.

    Attributes:
        data_dir: Where artefacts of Pixie runs are kept (`data_dir/<tool>/<run id>/`).
        run_dir: Private directory for sockets of readiness notification.
        max_body_bytes: Largest request body; beyond it 413.
        answer_buffer_bytes: How much of an answer is held for a slow reader before the tool is slowed down.
        listen_backlog: Backlog of a tool's listening socket.
        stderr_tail_bytes: How much of stderr rides with a failure.
        validate_timeout_seconds: Bound of each spawning check of `validate`, where the tool overrides nothing.
        sync_timeout_seconds: Bound of one build of a `.venv`.
    """

    data_dir: Path
    run_dir: Path
    defaults: ToolDefaults = ToolDefaults()
    pool: PoolLimits = PoolLimits()
    max_body_bytes: int = 16 * 1024 * 1024
    answer_buffer_bytes: int = 256 * 1024
    listen_backlog: int = 128
    stderr_tail_bytes: int = 64 * 1024
    validate_timeout_seconds: float = 30.0
    sync_timeout_seconds: float = 1800.0
