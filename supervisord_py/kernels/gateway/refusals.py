"""What a server's answer means to a user: which setting, which limit, what to check. Pure.

Law: a token never gets into a sentence, nor credentials or a query of an address.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from supervisord_py.errors import ConfigError, OverloadedError, PxError, StartFailedError, UnknownUnitError

RETRY_AFTER_SECONDS = 30
_WORDS = 300
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _SERVER_ERROR = 401, 403, 404, 500
_REDIRECTS = range(300, 400)


@dataclass(frozen=True, slots=True)
class Place:
    """A server, as errors speak of it.

    Attributes:
        url: As configured; shown without credentials and query.
        token_setting: Which setting holds the token.
        has_token: Whether one is set. The token itself is not here.
        is_ours: The gateway that this daemon runs, whose token nobody sets.
    """

    url: str
    token_setting: str
    has_token: bool = False
    is_ours: bool = field(default=False)

    @property
    def shown(self) -> str:
        """The address without credentials, query and fragment."""
        return shown_url(self.url)


class GatewayUnreachableError(StartFailedError):
    """Nothing answers at the address, or nothing that speaks Jupyter's API."""


def shown_url(url: str) -> str:
    """Return an address without credentials, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


def refused(place: Place, status: int, body: str, doing: str) -> PxError:
    """Return the error for an HTTP status that is no success.

    Args:
        place: Who answered.
        status: HTTP status.
        body: The answer's text, from which a message is taken.
        doing: What was asked, as a verb phrase: `start a kernel`.
    """
    said = message_of(body)
    if status == _FORBIDDEN and "resource limit" in said.lower():
        return OverloadedError(
            f"The gateway at {place.shown} has reached its limit of kernels (403 Resource Limit).",
            hint="Stop kernels there, or raise its limit.",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )
    is_about_token = status == _UNAUTHORIZED or (status == _FORBIDDEN and said.lower() in ("", "forbidden"))
    if is_about_token or (status in _REDIRECTS and "login" in body):
        return _needs_token(place, status)
    if status in _REDIRECTS:
        return ConfigError(
            f"The gateway at {place.shown} sends us elsewhere (status {status}).", hint="Set kernels.gateway_url to it."
        )
    told = f": {said}" if said else ""
    if status == _NOT_FOUND:
        return UnknownUnitError(
            f"The gateway at {place.shown} has nothing there to {doing} (status 404{told}).",
            hint="Check the path in kernels.gateway_url: it ends before /api.",
        )
    what = "failed" if status >= _SERVER_ERROR else "refused"
    return StartFailedError(
        f"The gateway at {place.shown} {what} to {doing}: it returned status {status}{told}.",
        hint="See the log of the gateway." if not place.is_ours else "pxctl logs kernel:gateway",
        reason="spawn_failed",
        gateway_status=status,
    )


def unreachable(place: Place, why: str) -> GatewayUnreachableError:
    """Return the error for a server that does not answer. `why` is a phrase: `connection refused`."""
    hint = "pxctl logs kernel:gateway" if place.is_ours else f"Check kernels.gateway_url; try: curl {place.shown}/api"
    return GatewayUnreachableError(
        f"The gateway at {place.shown} is not reachable ({why}).", hint=hint, reason="spawn_failed"
    )


def message_of(body: str) -> str:
    """Return what a Jupyter server says in its JSON errors, shortened; "" for pages and for what says nothing."""
    try:
        members = json.loads(body)
    except ValueError:
        return ""
    if not isinstance(members, dict):
        return ""
    for name in ("message", "reason"):
        if isinstance(said := members.get(name), str) and said.strip():
            return said.strip()[:_WORDS]
    return ""


def _needs_token(place: Place, status: int) -> PxError:
    names = f"{place.token_setting} (or PX_KERNELS__GATEWAY_TOKEN, PI_PYTHON_GATEWAY_TOKEN)"
    if place.is_ours:
        return StartFailedError(
            f"The shared gateway at {place.shown} does not accept its own token (status {status}).",
            hint="pxctl logs kernel:gateway",
            reason="spawn_failed",
        )
    if place.has_token:
        detail = f"The gateway at {place.shown} does not accept the token of {place.token_setting} (status {status})."
        return ConfigError(detail, hint=f"Correct {names}.", setting=place.token_setting, gateway_status=status)
    detail = f"The gateway at {place.shown} requires authentication (status {status}): no token is set."
    return ConfigError(detail, hint=f"Set {names}.", setting=place.token_setting, gateway_status=status)
