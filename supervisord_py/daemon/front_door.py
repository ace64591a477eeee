"""Opens the API to clients: the inherited Unix socket, and on request a loopback TCP port with a bearer token.

The Unix socket must open. A TCP port that cannot be had is a degradation: the daemon works without.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from supervisord_py.api.context import TcpAccess
from supervisord_py.daemon.bearer_token import TOKEN_NAME, read_or_make_token
from supervisord_py.daemon.settings import parse_listen
from supervisord_py.daemon.sockets import BACKLOG
from supervisord_py.errors import ConflictError

if TYPE_CHECKING:
    from supervisord_py.daemon.paths import Paths
    from supervisord_py.daemon.schema import Settings

TCP_BACKLOG = 128


def open_tcp(settings: Settings, paths: Paths) -> tuple[socket.socket, TcpAccess] | None:
    """Bind the loopback port and get its token; None when no port is wanted.

    Raises:
        ConfigError: The token file cannot be used.
        ConflictError: The port cannot be had.
    """
    if settings.api.listen is None:
        return None
    host, port = parse_listen(settings.api.listen)
    token = read_or_make_token(token_file(settings, paths))
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConflictError(
            f"cannot listen on {settings.api.listen}: {error.strerror}",
            hint="choose another port in [api] listen, then `pxctl daemon restart`",
        ) from error
    return listening, TcpAccess(token, listening.getsockname()[1])


def token_file(settings: Settings, paths: Paths) -> Path:
    """Return where the token of the loopback port lies; absolute."""
    wanted = settings.api.token_file
    folder = paths.config_file.parent
    return (folder / Path(wanted).expanduser() if wanted else paths.state_dir / TOKEN_NAME).absolute()


async def open_doors(runner: web.AppRunner, unix: socket.socket, tcp: socket.socket | None) -> None:
    """Serve on both sockets; the runner closes them. Serving calls listen(2) again, which sets the backlog anew."""
    await runner.setup()
    await web.SockSite(runner, unix, backlog=BACKLOG).start()
    if tcp is not None:
        await web.SockSite(runner, tcp, backlog=TCP_BACKLOG).start()
