"""Who is asking? Peer credentials on the Unix socket; bearer token, Host and Origin on the loopback listener.

SO_PEERCRED (unix(7)) gives `struct ucred` {pid, uid, gid} as of connect(2). LOCAL_PEERCRED (macOS unix(4)) gives
`struct xucred` {u_int version, uid_t uid, …}.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from supervisord_py.api.context import TcpAccess
from supervisord_py.errors import ForbiddenError

_UCRED = struct.Struct("3i")
_XUCRED = struct.Struct("II")
_XUCRED_SIZE = 76
_DARWIN_SOL_LOCAL = 0
_DARWIN_LOCAL_PEERCRED = 1


def admit_peer(connection: socket.socket) -> None:
    """Let the daemon's own user and root in through a Unix socket. Raises ForbiddenError: it is someone else."""
    try:
        if sys.platform == "darwin":
            raw = connection.getsockopt(_DARWIN_SOL_LOCAL, _DARWIN_LOCAL_PEERCRED, _XUCRED_SIZE)
            uid = _XUCRED.unpack_from(raw)[1]
        else:
            uid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]
    except OSError as error:
        raise ForbiddenError(f"Nobody knows whose request this is: {error.strerror}.") from error
    if uid not in {os.geteuid(), 0}:
        raise ForbiddenError(
            f"This daemon belongs to uid {os.geteuid()}; uid {uid} may not use it.",
            hint="start a daemon of your own: pxctl daemon start",
        )


def instance_of_peer(connection: socket.socket) -> str | None:
    """Return the instance of ours whose process is at the other end of a Unix socket, by the mark that it bears."""
    import psutil  # a megabyte that an idle daemon does not need

    with suppress(psutil.Error, OSError, ValueError):
        pid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[0]
        return psutil.Process(pid).environ().get("PX_INSTANCE")
    return None


def admit_bearer(headers: Mapping[str, str], tcp: TcpAccess | None, query_token: str | None = None) -> None:
    """Let in who holds the token and asked for this machine by a loopback name (DNS rebinding, CSRF).

    `headers` say `Authorization: Bearer T`, or Jupyter's `token T`; else `query_token` counts. Raises ForbiddenError.
    """
    if tcp is None:
        raise ForbiddenError("The TCP listener has no token, so nobody may use it.", hint="see: man pxd.toml, [api]")
    host = headers.get("Host", "")
    if not is_loopback(f"//{host}", tcp.port):
        raise ForbiddenError(f"Host {host[:100]!r} is not this listener.", hint=f"use 127.0.0.1:{tcp.port}")
    origin = headers.get("Origin")
    if origin is not None and not (origin.startswith(("http://", "https://")) and is_loopback(origin)):
        raise ForbiddenError(f"Origin {origin[:100]!r} may not use this listener.", hint="only loopback origins may")
    authorization = headers.get("Authorization")
    scheme, _, given = (authorization or "").partition(" ")
    if authorization is None:
        given = query_token or ""
    elif scheme.lower() not in {"bearer", "token"}:
        given = ""
    if not tcp.token or not hmac.compare_digest(given.strip().encode(errors="surrogateescape"), tcp.token.encode()):
        raise ForbiddenError("The bearer token is missing or wrong.", hint="send: Authorization: Bearer TOKEN")


def is_loopback(url: str, port: int | None = None) -> bool:
    """Say whether a URL (or `//host[:port]`) names this machine's loopback; with `port`, and no other port or user."""
    try:
        parts = urlsplit(url)
        if port is not None and (parts.port not in {None, port} or parts.username is not None):
            return False
        return parts.hostname == "localhost" or ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
