"""Which instance of ours does a request come from? Told by the caller, or read from its process.

Every child bears PX_INSTANCE (DESIGN D11), and so does what it starts; a cell that calls its own session is known by
it. A kernel that was started ahead bears the mark of that start (what /proc shows of an environment is what exec was
given), and so does what it forks: they are known by their pids. Nothing depends on the answer but that one refusal:
what cannot be read is nobody.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import psutil

from supervisord_py.api.peers import peer_credentials

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

HEADER = "X-Px-Instance"
VARIABLE = "PX_INSTANCE"


def caller_instance(request: web.Request, living: Mapping[int, str]) -> str | None:
    """Return the instance, or None when the caller is no child of ours, or cannot be looked at.

    Args:
        request: Whose.
        living: Instances that may call, by their pids.
    """
    told = request.headers.get(HEADER)
    if told:
        return told
    pid = _peer_pid(request)
    if pid is None:
        return None
    with contextlib.suppress(psutil.Error, OSError, ValueError):
        return _instance_of(psutil.Process(pid), living)
    return None


def _instance_of(caller: psutil.Process, living: Mapping[int, str]) -> str | None:
    born = caller.environ().get(VARIABLE)
    if born is None or born in living.values():
        return born
    with contextlib.suppress(psutil.Error, OSError):
        line = [caller, *caller.parents()]
        return next((living[each.pid] for each in line if each.pid in living), born)
    return born


def _peer_pid(request: web.Request) -> int | None:
    transport = request.transport
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    with contextlib.suppress(OSError):
        return peer_credentials(connection).pid
    return None
