"""Gives each room its settings, and beside them the places it works in. What is no setting has its default there.

Law: the token of a gateway leaves the settings here, goes into one value that hides it, and nowhere else.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from supervisord_py.api.context import ApiConfig, TcpAccess
from supervisord_py.kernels.config import CellLimits, KernelsConfig
from supervisord_py.pipes.models import PipesConfig
from supervisord_py.tools.driver import ToolsConfig

if TYPE_CHECKING:
    from supervisord_py.config.settings import Settings
    from supervisord_py.daemon.paths import Paths
    from supervisord_py.daemon.settings import Loaded

T = TypeVar("T", bound=msgspec.Struct)
EXAMPLES = Path(__file__).parent.parent / "examples"


def _of(kind: type[T], section: Any, **others: Any) -> T:
    """Return a room's value: fields that are called as a setting are that setting."""
    names = kind.__struct_fields__
    given = {name: getattr(section, name) for name in names if hasattr(section, name)}
    return kind(**{**given, **others})


def tool_folders(settings: Settings, paths: Paths) -> tuple[Path, ...]:
    """Return the folders of tools, the first one first; relative ones are beside the settings file."""
    more = (paths.config_file.parent / Path(text).expanduser() for text in settings.tools.paths)
    return tuple(dict.fromkeys((paths.tools_dir, *more)))


def tools_config(settings: Settings, paths: Paths) -> ToolsConfig:
    """Return what the tools are told."""
    return ToolsConfig(paths.state_dir / "artefacts", paths.run_dir, settings.tools, settings.daemon.zygotes)


def kernels_config(loaded: Loaded, paths: Paths) -> KernelsConfig:
    """Return what the kernels are told."""
    kernels, origin = loaded.settings.kernels, loaded.origin("kernels.gateway_token")
    setting = "kernels.gateway_token" if kernels.gateway_token is None else f"kernels.gateway_token ({origin})"
    return _of(
        KernelsConfig,
        kernels,
        run_dir=paths.run_dir,
        cells_dir=paths.cells_dir,
        data_dir=paths.kernels_dir,
        modules_dir=paths.modules_dir,
        gateway_dir=paths.state_dir / "gateway",
        token_setting=setting,
        zygotes=loaded.settings.daemon.zygotes,
        output=CellLimits(cell_bytes=kernels.output_cell_bytes),
    )


def pipes_config(
    settings: Settings, paths: Paths, *, socket: str, listener: tuple[str, int, str] | None
) -> PipesConfig:
    """Return what pipes are told.

    Args:
        socket: Path of the control socket.
        listener: Address, port and token file of the loopback listener; None where there is none.
    """
    host, port, token_file = listener or ("127.0.0.1", None, None)
    return PipesConfig(
        **msgspec.structs.asdict(settings.pipes),
        pipes_dir=paths.pipes_dir,
        examples_dir=EXAMPLES / "pipes",
        presets_file=paths.presets_file,
        agents_file=paths.agents_file,
        executions_dir=paths.executions_dir,
        socket=socket,
        api_host=host,
        api_port=port,
        api_token_file=token_file,
    )


def api_config(settings: Settings, paths: Paths, tcp: TcpAccess | None) -> ApiConfig:
    """Return what the API is told."""
    places = {name: getattr(paths, name) for name in ("state_dir", "run_dir", "cells_dir", "tools_dir")}
    most = settings.tools.max_body_bytes
    return _of(ApiConfig, settings.api, **places, max_body_bytes=most, tcp=tcp)
