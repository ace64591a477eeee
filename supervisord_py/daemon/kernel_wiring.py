"""Turns the section `[kernels]` into the plain values that the kernels' room takes.

Law: the token of a gateway leaves the settings here, goes into one value that hides it, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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

T = TypeVar("T")
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
    kernels, token = settings.kernels, token or GatewayToken(_TOKEN)
    gateway_dir = _folder(kernels.gateway_dir, paths, paths.state_dir / "gateway")
    memory: dict[str, Any] = {
        "soft_memory_bytes": kernels.soft_memory_mb * MIB or None,
        "hard_memory_bytes": kernels.hard_memory_mb * MIB or None,
    }
    return _same(
        KernelsConfig,
        kernels,
        run_dir=paths.run_dir,
        cells_dir=paths.cells_dir,
        data_dir=paths.kernels_dir,
        modules_dir=_folder(kernels.modules_dir, paths, paths.modules_dir),
        gateway=_same(
            GatewayConfig, kernels, "gateway_", dir=gateway_dir, token=token.secret, token_setting=token.place
        ),
        backend=BackendName(kernels.backend),
        expose=Expose(kernels.expose),
        env=_same(EnvRules, kernels, "env_"),
        sessions=_same(SessionLimits, kernels),
        ladder=_same(LadderTimes, kernels, "ladder_"),
        output=_same(OutputLimits, kernels, "output_"),
        limits=_same(ProcessLimits, kernels, **memory),
    )


def _same(kind: type[T], kernels: KernelsSection, prefix: str = "", **others: Any) -> T:
    """Return the value whose fields are called as the settings, behind a prefix; `others` are not."""
    names = [each.name for each in fields(kind) if each.name not in others]  # type: ignore[arg-type]
    return kind(**others, **{name: getattr(kernels, prefix + name) for name in names})


def _folder(wanted: str | None, paths: Paths, otherwise: Path) -> Path:
    return otherwise if not wanted else paths.config_file.parent / Path(wanted).expanduser()
