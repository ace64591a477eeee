"""Jupyter's REST API as a client of kernel_gateway, jupyter_server, JupyterHub's single users, Enterprise Gateway.

Every call has a limit of time and ends in an answer or in a `PxError` that says what to check. The token travels
in the header `Authorization`, for the websocket too; it is in no address, so in no log of a server or proxy on the way.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec
from yarl import URL

from supervisord_py.errors import ConfigError, OverloadedError, PxError, StartFailedError, UnknownUnitError
from supervisord_py.kernels.websocket_frames import V1

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFLIGHT_SECONDS = 5.0
CALL_SECONDS = 10.0
INTERRUPT_SECONDS = 2.0
DELETE_SECONDS = 20.0
"""A server asks a kernel to end, waits, and kills: kernel_gateway takes ten seconds for one that holds the GIL."""
PING_SECONDS = 30.0
_BODY_BYTES = 64 * 1024
_SUCCESS = range(200, 300)
_REDIRECTS = range(300, 400)
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _SERVER_ERROR = 401, 403, 404, 500
RETRY_AFTER_SECONDS = 30
_WORDS = 300
OUR_LOG = "pxctl logs kernel:gateway"
UNKNOWN_THERE = "its server does not know it any more"


class Place(msgspec.Struct, frozen=True):
    """A server, as errors speak of it: `is_ours` is the gateway that this daemon runs, whose token nobody sets."""

    url: str
    token_setting: str
    has_token: bool = False
    is_ours: bool = False

    @property
    def shown(self) -> str:
        """The address without credentials, query and fragment."""
        return shown_url(self.url)


class GatewayUnreachableError(StartFailedError):
    """Nothing answers at the address, or nothing that speaks Jupyter's API."""


class Preflight(msgspec.Struct, frozen=True):
    """What a server told of itself; `is_enterprise`: an Enterprise Gateway, which takes `KERNEL_…` variables."""

    specs: Mapping[str, Mapping[str, Any]]
    is_enterprise: bool


class GatewayClient:
    """One server."""

    def __init__(
        self,
        url: str,
        token: str | None,
        token_setting: str,
        *,
        is_ours: bool = False,
        trust_env: bool = False,
    ) -> None:
        """Make a client; nothing is sent yet. Credentials in `url` are used where there is no token; so is `?token=`.

        Raises:
            ConfigError: The address is none.
        """
        address = _address(url)
        token = token or address.query.get("token")
        credentials = f"token {token}" if token else _basic(address)
        self._root = address.with_query(None).with_fragment(None).with_user(None)
        self._headers = {"Authorization": credentials} if credentials else {}
        self._trust_env = trust_env
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False
        self.place = Place(url, token_setting, has_token=credentials is not None, is_ours=is_ours)

    async def preflight(self, seconds: float = PREFLIGHT_SECONDS) -> Preflight:
        """Ask who is there and which kernels it offers.

        Raises:
            PxError: It is unreachable, wants a token, or is no Jupyter server.
        """
        about, specs = await asyncio.gather(
            self._about(seconds), self._json("GET", "api/kernelspecs", "list its kernelspecs", seconds)
        )
        found = specs.get("kernelspecs") if isinstance(specs, dict) else None
        if not isinstance(found, dict):
            raise unreachable(self.place, "what answers there is no Jupyter server")
        return Preflight({name: _spec(each) for name, each in found.items()}, "gateway_version" in about)

    async def create(self, body: Mapping[str, Any], seconds: float) -> str:
        """Start a kernel and return its id; `body`: `name`, and what the server knows of `env`, `path`, `kernel_id`."""
        model = await self._json("POST", "api/kernels", "start a kernel", seconds, body)
        if not isinstance(model, dict) or not isinstance(kernel := model.get("id"), str):
            raise unreachable(self.place, "what answers there is no Jupyter server")
        return kernel

    async def model(self, kernel: str, seconds: float = CALL_SECONDS) -> Mapping[str, Any] | None:
        """Return what the server knows of a kernel: `execution_state`, `name`, …; None when it has no such kernel."""
        try:
            found = await self._json("GET", f"api/kernels/{kernel}", "find the kernel", seconds)
        except UnknownUnitError:
            return None
        return found if isinstance(found, dict) else {}

    async def interrupt(self, kernel: str, seconds: float = INTERRUPT_SECONDS) -> None:
        """Have a kernel interrupted: SIGINT where its kernelspec says nothing else."""
        await self._json("POST", f"api/kernels/{kernel}/interrupt", "interrupt the kernel", seconds, {})

    async def delete(self, kernel: str, seconds: float = DELETE_SECONDS) -> None:
        """Have a kernel ended; one that is not there has ended."""
        try:
            await self._json("DELETE", f"api/kernels/{kernel}", "end the kernel", seconds)
        except UnknownUnitError:
            return

    async def connect(self, kernel: str, session: str, seconds: float) -> aiohttp.ClientWebSocketResponse:
        """Open a kernel's websocket; the server answers when the kernel does.

        Raises:
            UnknownUnitError: The server has no such kernel.
            PxError: As for every call.
        """
        where = (self._root / f"api/kernels/{kernel}/channels").with_query(session_id=session)
        try:
            async with asyncio.timeout(seconds):
                return await self._http.ws_connect(
                    where,
                    protocols=(V1,),
                    headers=self._headers,
                    heartbeat=PING_SECONDS,
                    max_msg_size=0,
                    compress=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                )
        except aiohttp.WSServerHandshakeError as error:
            raise refused(self.place, error.status, "", "open the kernel's websocket") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(self.place, _why(error, seconds)) from None

    async def close(self) -> None:
        """Let go of it, for good: later calls fail."""
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def _http(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise unreachable(self.place, "we have let go of it")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=15.0)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=self._trust_env)
        return self._session

    async def _about(self, seconds: float) -> Mapping[str, Any]:
        """Return the server's version document; what hides it has none."""
        try:
            about = await self._json("GET", "api", "tell its version", seconds)
        except (UnknownUnitError, ConfigError, StartFailedError):
            return {}
        return about if isinstance(about, dict) else {}

    async def _json(
        self, method: str, path: str, doing: str, seconds: float, body: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            async with asyncio.timeout(seconds):
                status, text = await self._ask(method, path, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(self.place, _why(error, seconds)) from None
        if status not in _SUCCESS:
            raise refused(self.place, status, text, doing)
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            raise unreachable(self.place, "what answers there is no Jupyter server") from None

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, str]:
        async with self._http.request(
            method, self._root / path, json=body, headers=self._headers, allow_redirects=False
        ) as answer:
            text = await answer.text(errors="replace")
            if answer.status in _SUCCESS:
                return answer.status, text
            return answer.status, f"{answer.headers.get('Location', '')}{text[:_BODY_BYTES]}"


def _address(url: str) -> URL:
    try:
        address = URL(url)
    except ValueError:
        raise ConfigError(f"kernels.gateway_url {url!r} is no address.", hint="Write it as http://host:port") from None
    if address.scheme not in ("http", "https") or not address.host:
        raise ConfigError(
            f"kernels.gateway_url {shown_url(url)!r} is no http or https address.", hint="Write it as http://host:port"
        )
    return address


def _basic(address: URL) -> str | None:
    """Return what goes into `Authorization` for the credentials of an address (RFC 7617)."""
    if not address.user:
        return None
    pair = f"{address.user}:{address.password or ''}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _spec(model: object) -> Mapping[str, Any]:
    """Return the `spec` of one kernelspec model: its display_name, language, argv."""
    inner = model.get("spec") if isinstance(model, dict) else None
    return inner if isinstance(inner, dict) else {}


def _why(error: BaseException, seconds: float) -> str:
    """Say why a call did not come through; never the address, which may hold credentials."""
    if isinstance(error, TimeoutError):
        return f"timeout: no answer within {seconds:g} s"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not accepted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno  # a name that is not found has a negative one, and words of its own
        words = os.strerror(number) if number is not None and number > 0 else error.os_error.strerror
        return words or "the connection is refused"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection without an answer"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "its answer broke off"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return f"it does not speak HTTP: {type(error).__name__}"


# -- what an answer means to a user; a token never gets into a sentence ------------------------------------------------


def shown_url(url: str) -> str:
    """Return an address without credentials, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


def refused(place: Place, status: int, body: str, doing: str) -> PxError:
    """Return the error for an HTTP status that is no success; `doing` is a verb phrase: `start a kernel`."""
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
        hint="See the log of the gateway." if not place.is_ours else OUR_LOG,
        reason="spawn_failed",
        gateway_status=status,
    )


def unreachable(place: Place, why: str) -> GatewayUnreachableError:
    """Return the error for a server that does not answer. `why` is a phrase: `connection refused`."""
    hint = OUR_LOG if place.is_ours else f"Check kernels.gateway_url; try: curl {place.shown}/api"
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
            hint=OUR_LOG,
            reason="spawn_failed",
        )
    if place.has_token:
        detail = f"The gateway at {place.shown} does not accept the token of {place.token_setting} (status {status})."
        return ConfigError(detail, hint=f"Correct {names}.", setting=place.token_setting, gateway_status=status)
    detail = f"The gateway at {place.shown} requires authentication (status {status}): no token is set."
    return ConfigError(detail, hint=f"Set {names}.", setting=place.token_setting, gateway_status=status)
