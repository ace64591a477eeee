"""Who may ask: peer credentials on the Unix socket; token, Host and Origin on the optional
loopback listener.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import stat
import struct
import sys
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from supervisord_py.errors import ConfigError, ConflictError, ForbiddenError
from supervisord_py.keeper import procfs
from supervisord_py.keeper.protocol import MARK_INSTANCE

TOKEN_LETTERS = 16  # a shorter token is no secret


class TcpAccess(msgspec.Struct, frozen=True):
    """The loopback listener: its bearer token (never in repr), where that lies, and where it
    listens.
    """

    token: str
    port: int
    host: str = "127.0.0.1"
    token_file: str = ""

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"TcpAccess({self.address})"


def peer_of(connection: socket.socket) -> tuple[int | None, int]:
    """Return pid (None where the system does not say) and user id of the process at the other end
    of a Unix socket.

    SO_PEERCRED (unix(7)) gives `struct ucred` {pid, uid, gid} as of connect(2) or listen(2);
    LOCAL_PEERCRED (macOS unix(4)), option 1 of level 0, `struct xucred` {u_int version, uid_t uid,
    …} of 76 bytes. Raises ForbiddenError: the system does not know.
    """
    try:
        if sys.platform == "darwin":
            return None, int(struct.unpack_from("II", connection.getsockopt(0, 1, 76))[1])
        pid, uid, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
    except OSError as error:
        raise ForbiddenError(f"Nobody knows whose request this is: {error.strerror}.") from error
    return pid, uid


def foreigner(connection: socket.socket) -> ForbiddenError | None:
    """Return why nobody at the other end of a Unix socket may ask anything; None for its owner
    and for root.
    """
    try:
        _, uid = peer_of(connection)
    except ForbiddenError as error:
        return error
    if uid in {own := os.geteuid(), 0}:
        return None
    said = f"This daemon belongs to uid {own}; uid {uid} may not use it."
    return ForbiddenError(said, hint="start a daemon of your own: pxctl daemon start")


def instance_of_peer(connection: socket.socket | None) -> str | None:
    """Return the instance of ours whose process is at the other end of a Unix socket, by the
    mark that it bears.
    """
    if (
        connection is None
        or connection.family != socket.AF_UNIX
        or (pid := peer_of(connection)[0]) is None
    ):
        return None
    return (
        procfs.environment(pid).get(MARK_INSTANCE.encode(), b"").decode("ascii", "replace") or None
    )


def admit_bearer(
    headers: Mapping[str, str], tcp: TcpAccess | None, query_token: str | None = None
) -> None:
    """Let in who holds the token and asked for this machine by a loopback name (DNS rebinding,
    CSRF).

    `headers` say `Authorization: Bearer T`, or Jupyter's `token T`; else `query_token` counts.
    Raises ForbiddenError.
    """
    host, origin = headers.get("Host", ""), headers.get("Origin")
    if tcp is None or not _is_loopback(f"//{host}", tcp.port):
        raise ForbiddenError(
            f"Host {host[:100]!r} is not this listener.", hint="see: pxctl daemon status"
        )
    if origin is not None and not (
        origin.startswith(("http://", "https://")) and _is_loopback(origin)
    ):
        raise ForbiddenError(
            f"Origin {origin[:100]!r} may not use this listener.", hint="only loopback origins may"
        )
    scheme, _, given = headers.get("Authorization", f"token {query_token or ''}").partition(" ")
    given = given.strip() if scheme.lower() in {"bearer", "token"} else ""
    if not hmac.compare_digest(given.encode(errors="surrogateescape"), tcp.token.encode()):
        raise ForbiddenError("The bearer token is missing or wrong.", hint=_HOW_TO_AUTHORISE)


_HOW_TO_AUTHORISE = (
    "send: Authorization: Bearer TOKEN; `pxctl daemon status` names the file that holds the token"
)


def _is_loopback(url: str, port: int | None = None) -> bool:
    """Say whether a URL (or `//host[:port]`) names this machine's loopback; with `port`, and no
    other port or user.
    """
    try:
        parts = urlsplit(url)
        if port is not None and (parts.port not in {None, port} or parts.username is not None):
            return False
        return parts.hostname == "localhost" or ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def parse_listen(text: str) -> tuple[str, int]:
    """Split `host:port` (`[::1]:7860` for IPv6) of a loopback address; ValueError says why it is
    no such pair.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("must be address:port, like 127.0.0.1:7860")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        address = ip_address("127.0.0.1" if bare == "localhost" else bare)
    except ValueError:
        raise ValueError(f"has {bare!r}, which is no address") from None
    if not address.is_loopback:
        raise ValueError(
            f"has {bare}, which is no loopback address; use 127.0.0.1 and a tunnel from outside"
        )
    return str(address), int(port)


def open_tcp(listen: str, token_file: Path) -> tuple[socket.socket, TcpAccess]:
    """Bind the loopback port of `[api] listen` and get its token.

    Raises ConfigError: the token file cannot be used; ConflictError: the port cannot be had.
    """
    token, (host, port) = read_or_make_token(token_file), parse_listen(listen)
    listening = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM
    )
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        hint = "choose another port in [api] listen, then `pxctl daemon restart`"
        raise ConflictError(f"cannot listen on {listen}: {error.strerror}", hint=hint) from error
    return listening, TcpAccess(token, listening.getsockname()[1], host, str(token_file))


def read_or_make_token(path: Path) -> str:
    """Return the token in `path`, made (0600) where it is not there.

    Raises ConfigError: others may have read it.
    """
    from supervisord_py.config.documents import read_bounded  # only who listens on TCP needs it

    why = ""
    try:
        with contextlib.suppress(FileExistsError):
            fd = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            with os.fdopen(fd, "w") as fresh:
                os.fchmod(fd, 0o600)
                fresh.write(f"{secrets.token_urlsafe(32)}\n")
        seen, token = path.lstat(), read_bounded(path, 4096).decode("utf-8", "replace").strip()
        if (
            stat.S_ISLNK(seen.st_mode)
            or seen.st_uid not in {os.geteuid(), 0}
            or seen.st_mode & 0o077
        ):
            why = (
                f"may be read by others (mode {stat.S_IMODE(seen.st_mode):04o}, uid {seen.st_uid})"
            )
        elif len(token) < TOKEN_LETTERS:
            why = f"holds no token of at least {TOKEN_LETTERS} letters"
    except OSError as error:
        why = f"cannot be read or made: {error.strerror}"
    if why:
        hint = f"rm {path} and `pxctl daemon restart` make a new one"
        raise ConfigError(f"the token file {path} {why}", hint=hint, file=str(path))
    return token
