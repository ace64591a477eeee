"""Turns the section `[kernels]` into the plain values that the kernels' room takes.

Law: the token of a gateway leaves the settings here, goes into one value that hides it, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.daemon.bearer_token import read_token
from supervisord_py.kernels.config import (
    MIB,
    EnvRules,
    GatewayConfig,
    KernelsConfig,
    LadderTimes,
    OutputLimits,
    ProcessLimits,
    SessionLimits,
)
from supervisord_py.kernels.exposure import Expose
from supervisord_py.kernels.session import BackendName

if TYPE_CHECKING:
    from supervisord_py.daemon.paths import Paths
    from supervisord_py.daemon.schema import KernelsSection, Settings
    from supervisord_py.daemon.settings import Loaded

_TOKEN = "kernels.gateway_token"  # noqa: S105  # the name of a setting
_TOKEN_FILE = "kernels.gateway_token_file"  # noqa: S105  # same


@dataclass(frozen=True, slots=True)
class GatewayToken:
    """The token of the external gateway, if there is one, and the words for where it belongs."""

    place: str
    secret: str | None = field(default=None, repr=False)


def gateway_token(loaded: Loaded, paths: Paths) -> GatewayToken:
    """Return the token; the file that has it is read now.

    Raises:
        ConfigError: That file cannot be used.
    """
    kernels = loaded.settings.kernels
    if kernels.gateway_token is not None:
        return GatewayToken(_named(_TOKEN, loaded), kernels.gateway_token.get_secret_value())
    if kernels.gateway_token_file is not None:
        path = paths.config_file.parent / Path(kernels.gateway_token_file).expanduser()
        return GatewayToken(_named(_TOKEN_FILE, loaded), read_token(path))
    return GatewayToken(_TOKEN)


def _named(key: str, loaded: Loaded) -> str:
    """Return the key and the place that set it: `kernels.gateway_token (env PI_PYTHON_GATEWAY_TOKEN)`."""
    origin = next(each.origin for each in loaded.effective if each.key == key)
    return f"{key} ({origin})"


def kernels_config(settings: Settings, paths: Paths, token: GatewayToken | None = None) -> KernelsConfig:
    """Return what the kernels are told; relative folders are beside the settings file."""
    kernels = settings.kernels
    return KernelsConfig(
        run_dir=paths.run_dir,
        cells_dir=paths.cells_dir,
        data_dir=paths.kernels_dir,
        modules_dir=_folder(kernels.modules_dir, paths, paths.modules_dir),
        gateway=_gateway(kernels, paths, token or GatewayToken(_TOKEN)),
        backend=BackendName(kernels.backend),
        expose=Expose(kernels.expose),
        python=kernels.python,
        managed=kernels.managed,
        skip_check=kernels.skip_check,
        trace=kernels.trace,
        debug_startup=kernels.debug_startup,
        prelude=kernels.prelude,
        timeout_seconds=kernels.timeout_seconds,
        timeout_min_seconds=kernels.timeout_min_seconds,
        timeout_max_seconds=kernels.timeout_max_seconds,
        start_seconds=kernels.start_seconds,
        stop_seconds=kernels.stop_seconds,
        spares=kernels.spares,
        spare_idle_seconds=kernels.spare_idle_seconds,
        env=EnvRules(kernels.env_allow, kernels.env_allow_prefixes, kernels.env_deny),
        sessions=_sessions(kernels),
        ladder=_ladder(kernels),
        output=_output(kernels),
        limits=_limits(kernels),
    )


def _sessions(kernels: KernelsSection) -> SessionLimits:
    return SessionLimits(
        max_sessions=kernels.max_sessions,
        idle_seconds=kernels.idle_seconds,
        queue_max=kernels.queue_max,
        restarts=kernels.restarts,
        start_failures=kernels.start_failures,
        start_failure_seconds=kernels.start_failure_seconds,
    )


def _ladder(kernels: KernelsSection) -> LadderTimes:
    return LadderTimes(
        nudge_seconds=kernels.ladder_nudge_seconds,
        again_seconds=kernels.ladder_again_seconds,
        terminate_seconds=kernels.ladder_terminate_seconds,
        kill_seconds=kernels.ladder_kill_seconds,
    )


def _output(kernels: KernelsSection) -> OutputLimits:
    return OutputLimits(
        preview_bytes=kernels.output_preview_bytes,
        head_bytes=kernels.output_head_bytes,
        cell_bytes=kernels.output_cell_bytes,
        inline_bytes=kernels.output_inline_bytes,
        session_bytes=kernels.output_session_bytes,
        total_bytes=kernels.output_total_bytes,
        keep_days=kernels.output_keep_days,
    )


def _limits(kernels: KernelsSection) -> ProcessLimits:
    return ProcessLimits(
        soft_memory_bytes=kernels.soft_memory_mb * MIB or None,
        hard_memory_bytes=kernels.hard_memory_mb * MIB or None,
        memory_grace_seconds=kernels.memory_grace_seconds,
        open_files=kernels.open_files,
        processes=kernels.processes,
        cpu_seconds=kernels.cpu_seconds,
    )


def _gateway(kernels: KernelsSection, paths: Paths, token: GatewayToken) -> GatewayConfig:
    return GatewayConfig(
        dir=_folder(kernels.gateway_dir, paths, paths.state_dir / "gateway"),
        url=kernels.gateway_url,
        token=token.secret,
        token_setting=token.place,
        kernel_name=kernels.gateway_kernel_name,
        cull_idle_seconds=kernels.gateway_cull_idle_seconds,
        start_seconds=kernels.gateway_start_seconds,
        lock_seconds=kernels.gateway_lock_seconds,
    )


def _folder(wanted: str | None, paths: Paths, otherwise: Path) -> Path:
    return otherwise if not wanted else paths.config_file.parent / Path(wanted).expanduser()
