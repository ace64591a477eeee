"""Plain values that the daemon's settings become for this room; validated there, frozen here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from supervisord_py.config.settings import TOOLS_ENV

if TYPE_CHECKING:
    from pathlib import Path


class ToolDefaults(msgspec.Struct, frozen=True):
    """What a tool gets where its own `tool.json` or `pxd.json` says nothing."""

    warm_keep_seconds: float = 300.0  # idle seconds before a warm instance is stopped
    max_memory_mb: int = 512  # MiB; 0 is none
    max_runtime_seconds: float = 60.0  # wall clock of one run
    start_timeout_seconds: float = 30.0  # from the spawn to ready
    stop_timeout_seconds: float = 5.0  # from TERM to KILL
    concurrency: int = 16  # requests at a time for one instance
    python: str | None = None  # interpreter of tools that have none of their own; None is the daemon's
    env_allow: tuple[str, ...] = TOOLS_ENV  # names that pass from the daemon's environment; a trailing `*` is a prefix


class PoolLimits(msgspec.Struct, frozen=True):
    """Bounds of the warm pool. `memory_budget_mb` is None for none; `queue_timeout_seconds` bounds a place in line."""

    warm_keep_max: int = 5
    memory_budget_mb: int | None = None
    queue_max: int = 512
    queue_timeout_seconds: float = 60.0


class ToolsConfig(msgspec.Struct, frozen=True):
    """Everything the room is told by the settings.

    Attributes:
        answer_buffer_bytes: How much of an answer is held for a slow reader before the tool is slowed down.
        validate_timeout_seconds: Bound of each spawning check of `validate`, where the tool overrides nothing.
    """

    data_dir: Path  # where artefacts of Pixie runs are kept (`data_dir/<tool>/<run id>/`)
    run_dir: Path  # private directory for sockets of readiness notification
    defaults: ToolDefaults = ToolDefaults()
    pool: PoolLimits = PoolLimits()
    max_body_bytes: int = 16 * 1024 * 1024  # largest request body; beyond it 413
    answer_buffer_bytes: int = 256 * 1024
    listen_backlog: int = 128  # backlog of a tool's listening socket
    stderr_tail_bytes: int = 64 * 1024  # how much of stderr rides with a failure
    validate_timeout_seconds: float = 30.0
    zygotes: int = 3  # interpreters and environments whose imports are kept ready to fork tools from; 0 is none
    sync_timeout_seconds: float = 1800.0  # bound of one build of a `.venv`
