"""Which instance of ours does a request come from? Told by the caller, or read from the environment of its process.

Every child bears PX_INSTANCE (DESIGN D11), and so does what it starts; a cell that calls its own session is known by
it. Nothing depends on the answer but that one refusal: what cannot be read is nobody.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import psutil

from supervisord_py.api.peers import peer_credentials

if TYPE_CHECKING:
    from aiohttp import web

HEADER = "X-Px-Instance"
VARIABLE = "PX_INSTANCE"


def caller_instance(request: web.Request) -> str | None:
    """Return the instance, or None when the caller is no child of ours, or cannot be looked at."""
    told = request.headers.get(HEADER)
    if told:
        return told
    pid = _peer_pid(request)
    if pid is None:
        return None
    with contextlib.suppress(psutil.Error, OSError, ValueError):
        return psutil.Process(pid).environ().get(VARIABLE)
    return None


def _peer_pid(request: web.Request) -> int | None:
    transport = request.transport
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    with contextlib.suppress(OSError):
        return peer_credentials(connection).pid
    return None
