"""Jupyter's REST API as a client of kernel_gateway, jupyter_server, JupyterHub's single users, Enterprise Gateway.

Law: every call has a limit of time and ends in an answer or in a `PxError` that says what to check. The token travels
in the header `Authorization`, for the websocket too; it is in no address, so in no log of a server or proxy on the way.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from yarl import URL

from supervisord_py.errors import ConfigError, StartFailedError, UnknownUnitError
from supervisord_py.kernels.gateway import wire
from supervisord_py.kernels.gateway.refusals import Place, refused, shown_url, unreachable

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

PREFLIGHT_SECONDS = 5.0
CALL_SECONDS = 10.0
INTERRUPT_SECONDS = 2.0
DELETE_SECONDS = 20.0
"""A server asks a kernel to end, waits, and kills: kernel_gateway takes ten seconds for one that holds the GIL."""
PING_SECONDS = 30.0
_BODY_BYTES = 64 * 1024
_SUCCESS = range(200, 300)
_NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Preflight:
    """What a server told of itself.

    Attributes:
        specs: Kernelspecs by name, as the server gives them.
        is_enterprise: It is an Enterprise Gateway, which takes `KERNEL_…` variables.
    """

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
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Make a client; nothing is sent yet.

        Args:
            url: Address before `/api`. Credentials in it are used where there is no token; so is `?token=`.
            token: Secret.
            token_setting: Which setting it came from.
            is_ours: It is the gateway of this machine's daemon.
            trust_env: Use the proxy that the environment names.
            tls: How to speak TLS; None: with the system's certificates.

        Raises:
            ConfigError: The address is none.
        """
        address = _address(url)
        token = token or address.query.get("token")
        credentials = f"token {token}" if token else _basic(address)
        self._root = address.with_query(None).with_fragment(None).with_user(None)
        self._headers = {"Authorization": credentials} if credentials else {}
        self._trust_env = trust_env
        self._tls: ssl.SSLContext | bool = tls or True
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
        """Start a kernel and return its id.

        Args:
            body: `name`, and what the server knows of `env`, `path`, `kernel_id`.
            seconds: How long the server may take.
        """
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

    async def listing(self, seconds: float = CALL_SECONDS) -> tuple[Mapping[str, Any], ...]:
        """Return the models of all its kernels."""
        found = await self._json("GET", "api/kernels", "list its kernels", seconds)
        return tuple(each for each in found if isinstance(each, dict)) if isinstance(found, list) else ()

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
                    protocols=(wire.V1,),
                    headers=self._headers,
                    heartbeat=PING_SECONDS,
                    max_msg_size=0,
                    compress=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                )
        except aiohttp.WSServerHandshakeError as error:
            raise refused(self.place, error.status, "", "open the kernel's websocket") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(self.place, self._why(error, seconds)) from None

    async def close(self) -> None:
        """Let go of it, for good: later calls fail."""
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # -- how it is asked -----------------------------------------------------------------------------------------------

    @property
    def _http(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise unreachable(self.place, "we have let go of it")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=15.0, ssl=self._tls)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=self._trust_env)
        return self._session

    def _why(self, error: BaseException, seconds: float) -> str:
        """Say why a call did not come through; with TLS 1.3 a client is refused only after its first words."""
        why = _why(error, seconds)
        hung_up = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
        if self._root.scheme == "https" and hung_up and not isinstance(error, aiohttp.ClientConnectorError):
            why += "; so does one that wants another certificate of ours: kernels.gateway_cert_file"
        return why

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
            raise unreachable(self.place, self._why(error, seconds)) from None
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
    match error:
        case TimeoutError():
            why = f"timeout: no answer within {seconds:g} s"
        case aiohttp.ClientConnectorCertificateError():
            why = f"its certificate is not accepted: {error.certificate_error}"
        case aiohttp.ClientConnectorError():
            why = _of_the_system(error.os_error) or "the connection is refused"
        case aiohttp.ServerDisconnectedError():
            why = "it closed the connection without an answer"
        case aiohttp.ClientPayloadError():
            why = "its answer broke off"
        case OSError():
            why = error.strerror or type(error).__name__
        case _:
            why = f"it does not speak HTTP: {type(error).__name__}"
    return why


def _of_the_system(error: OSError) -> str | None:
    """Return the system's words instead of the loop's; a name that is not found has a negative number and its own."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
