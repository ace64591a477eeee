"""Who is asking? Peer credentials on the Unix socket; bearer token, Host and Origin on the loopback listener.

SO_PEERCRED (unix(7)) gives `struct ucred` {pid, uid, gid} as of connect(2). LOCAL_PEERCRED (macOS unix(4)) gives
`struct xucred` {u_int version, uid_t uid, …}, without a pid.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import sys
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from supervisord_py.errors import ForbiddenError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.api.context import TcpAccess

_UCRED = struct.Struct("3i")
_XUCRED = struct.Struct("II")
_XUCRED_SIZE = 76
_DARWIN_SOL_LOCAL = 0
_DARWIN_LOCAL_PEERCRED = 1
_ROOT = 0


@dataclass(frozen=True, slots=True)
class LocalPeer:
    """A process on this machine, by its credentials; pid is None where the system does not tell."""

    uid: int
    pid: int | None


@dataclass(frozen=True, slots=True)
class TokenBearer:
    """Someone on the loopback listener who holds the token."""


Peer = LocalPeer | TokenBearer


def identify(
    connection: socket.socket | None,
    headers: Mapping[str, str],
    tcp: TcpAccess | None,
    *,
    query_token: str | None = None,
) -> Peer:
    """Return who is asking, if they may ask. `query_token` counts where the Authorization header is not there.

    Raises:
        ForbiddenError: Another user, no or a wrong token, or a name that is not this machine's loopback.
    """
    if connection is None:
        raise ForbiddenError("The connection is gone; nobody can be identified.")
    if connection.family == socket.AF_UNIX:
        return admit_local(peer_credentials(connection), os.geteuid())
    return admit_bearer(headers, tcp, query_token=query_token)


def peer_credentials(connection: socket.socket) -> LocalPeer:
    """Ask the kernel who is at the other end of a Unix socket."""
    if sys.platform == "darwin":
        raw = connection.getsockopt(_DARWIN_SOL_LOCAL, _DARWIN_LOCAL_PEERCRED, _XUCRED_SIZE)
        return LocalPeer(uid=_XUCRED.unpack_from(raw)[1], pid=None)
    pid, uid, _gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return LocalPeer(uid=uid, pid=pid)


def admit_local(peer: LocalPeer, own_uid: int) -> LocalPeer:
    """Let the daemon's own user and root in."""
    if peer.uid in {own_uid, _ROOT}:
        return peer
    raise ForbiddenError(
        f"This daemon belongs to uid {own_uid}; uid {peer.uid} may not use it.",
        hint="start a daemon of your own: pxctl daemon start",
    )


def admit_bearer(headers: Mapping[str, str], tcp: TcpAccess | None, *, query_token: str | None = None) -> TokenBearer:
    """Let in who holds the token and asked for this machine by a loopback name (DNS rebinding, CSRF)."""
    if tcp is None:
        raise ForbiddenError("The TCP listener has no token, so nobody may use it.", hint="see: man pxd.toml, [api]")
    host = headers.get("Host", "")
    if not is_loopback_authority(host, tcp.port):
        raise ForbiddenError(f"Host {host[:100]!r} is not this listener.", hint=f"use 127.0.0.1:{tcp.port}")
    origin = headers.get("Origin")
    if origin is not None and not is_loopback_origin(origin):
        raise ForbiddenError(f"Origin {origin[:100]!r} may not use this listener.", hint="only loopback origins may")
    if not _same(_given_token(headers, query_token), tcp.token):
        raise ForbiddenError("The bearer token is missing or wrong.", hint="send: Authorization: Bearer TOKEN")
    return TokenBearer()


def _given_token(headers: Mapping[str, str], query_token: str | None) -> str:
    """Return the token of `Bearer T`, of Jupyter's `token T`, or of the query; empty when there is none."""
    authorization = headers.get("Authorization")
    if authorization is None:
        return query_token or ""
    scheme, _, given = authorization.partition(" ")
    return given.strip() if scheme.lower() in {"bearer", "token"} else ""


def _same(given: str, token: str) -> bool:
    return bool(token) and hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode())


def is_loopback_authority(authority: str, port: int) -> bool:
    """Say whether `host[:port]` names this machine's loopback and our port."""
    try:
        parts = urlsplit(f"//{authority}")
        return _is_loopback(parts.hostname) and parts.username is None and parts.port in {None, port}
    except ValueError:
        return False


def is_loopback_origin(origin: str) -> bool:
    """Say whether an Origin header names a page served from this machine."""
    try:
        parts = urlsplit(origin)
        return parts.scheme in {"http", "https"} and _is_loopback(parts.hostname)
    except ValueError:
        return False


def _is_loopback(host: str | None) -> bool:
    if host is None:
        return False
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
