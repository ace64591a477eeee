"""Turns settings and paths into the plain values that the rooms below take. Pure.

The rooms read no settings; each gets a frozen dataclass of its own with exactly what it needs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.api.context import ApiConfig, SettingView, TcpAccess
from supervisord_py.daemon.schema import shown
from supervisord_py.ledger.retention import RetentionLimits, TableLimit
from supervisord_py.tools.config import PoolLimits, ToolDefaults, ToolsConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisord_py.daemon.paths import Paths
    from supervisord_py.daemon.schema import Settings
    from supervisord_py.daemon.settings import Loaded

DAY_SECONDS = 86_400.0
EXAMPLES = Path(__file__).parent.parent / "examples" / "tools"

_NEEDS_ALL = frozenset({"daemon", "logs"})
"""Sections that the keeper was told at its birth: only `pxctl daemon restart --all` changes them."""

_AT_ONCE = frozenset({"tools", "kernels", "pipes", "ledger"})
"""Sections that a reload puts in force; of kernels and pipes, for those that start from then on."""

_READ_ONCE = frozenset(
    f"tools.{name}"
    for name in (
        "max_body_bytes",
        "listen_backlog",
        "stderr_tail_bytes",
        "validate_timeout_seconds",
        "sync_timeout_seconds",
    )
)
"""Settings of the tools that the control plane reads at its own start, unlike their neighbours."""


def tool_folders(settings: Settings, paths: Paths) -> tuple[Path, ...]:
    """Return the folders of tools, the first one first; relative ones are beside the settings file."""
    more = (paths.config_file.parent / os.path.expanduser(text) for text in settings.tools.paths)
    return tuple(dict.fromkeys((paths.tools_dir, *more)))


def tools_config(settings: Settings, paths: Paths) -> ToolsConfig:
    """Return what the tools are told."""
    tools = settings.tools
    return ToolsConfig(
        data_dir=paths.state_dir / "artefacts",
        run_dir=paths.run_dir,
        defaults=ToolDefaults(
            warm_keep_seconds=tools.warm_keep_seconds,
            max_memory_mb=tools.max_memory_mb,
            max_runtime_seconds=tools.max_runtime_seconds,
            start_timeout_seconds=tools.start_timeout_seconds,
            stop_timeout_seconds=tools.stop_timeout_seconds,
            concurrency=tools.concurrency,
            python=tools.python,
            env_allow=tools.env_allow,
        ),
        pool=PoolLimits(
            warm_keep_max=tools.warm_keep_max,
            memory_budget_mb=tools.memory_budget_mb,
            queue_max=tools.queue_max,
            queue_timeout_seconds=tools.queue_timeout_seconds,
        ),
        max_body_bytes=tools.max_body_bytes,
        answer_buffer_bytes=tools.answer_buffer_bytes,
        listen_backlog=tools.listen_backlog,
        stderr_tail_bytes=tools.stderr_tail_bytes,
        validate_timeout_seconds=tools.validate_timeout_seconds,
        sync_timeout_seconds=tools.sync_timeout_seconds,
    )


def api_config(settings: Settings, paths: Paths, tcp: TcpAccess | None) -> ApiConfig:
    """Return what the API is told."""
    return ApiConfig(
        log_dir=paths.log_dir,
        state_dir=paths.state_dir,
        run_dir=paths.run_dir,
        cells_dir=paths.cells_dir,
        tools_dir=paths.tools_dir,
        examples_dir=EXAMPLES,
        max_body_bytes=settings.tools.max_body_bytes,
        stream_heartbeat_seconds=settings.api.stream_heartbeat_seconds,
        drain_seconds=settings.api.drain_seconds,
        tcp=tcp,
    )


def retention_limits(settings: Settings) -> RetentionLimits:
    """Return how much the ledger keeps."""
    age = settings.ledger.keep_days * DAY_SECONDS
    return RetentionLimits(
        events=TableLimit(100_000, age),
        runs=TableLimit(100_000, age),
        instances=TableLimit(100_000, age),
        kernel_cells=TableLimit(20_000, age),
        kernel_sessions=TableLimit(1_000, age),
    )


def setting_views(loaded: Loaded) -> Sequence[SettingView]:
    """Return every setting as the API shows it, secrets hidden."""
    return tuple(SettingView(each.key, shown(each.value), str(each.origin)) for each in loaded.effective)


def changed_keys(old: Loaded, new: Loaded) -> tuple[str, ...]:
    """Return the keys whose values differ."""
    before = {each.key: each.value for each in old.effective}
    return tuple(each.key for each in new.effective if before[each.key] != each.value)


def restart_needed(key: str) -> str | None:
    """Return the command that puts a changed setting in force, or None when a reload does."""
    section = key.split(".", 1)[0]
    if key == "daemon.log_level" or (section in _AT_ONCE and key not in _READ_ONCE):
        return None
    return "pxctl daemon restart --all" if section in _NEEDS_ALL else "pxctl daemon restart"
