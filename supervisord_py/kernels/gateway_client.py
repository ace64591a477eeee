"""Jupyter's REST API as a client of kernel_gateway, jupyter_server, JupyterHub's single users, Enterprise Gateway.

Every call has a limit of time and ends in an answer or in a `PxError` that says what to check. The token travels
in the header `Authorization`, for the websocket too; it is in no address, so in no log of a server or proxy on the way.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from yarl import URL

from supervisord_py.errors import ConfigError, PxError, StartFailedError, UnknownUnitError
from supervisord_py.kernels.wire import V1

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFLIGHT_SECONDS = 5.0
CALL_SECONDS = 10.0
INTERRUPT_SECONDS = 2.0
DELETE_SECONDS = 20.0  # kernel_gateway asks, waits and kills: ten seconds for a kernel that holds the GIL
PING_SECONDS = 30.0
OUR_LOG = "pxctl logs kernel:gateway"
_NO_JUPYTER = "what answers there is no Jupyter server"


class GatewayClient:
    """One server. A `?token=` in the address is used where there is no token.

    `is_ours`: it is the gateway that this daemon runs, whose token nobody sets. Raises ConfigError: no such address.
    """

    def __init__(self, url: str, token: str | None, token_setting: str, *, is_ours: bool = False) -> None:
        parts = urlsplit(url)
        self.shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        """The address without credentials, query and fragment."""
        self.is_ours = is_ours
        try:
            address = URL(url)
        except ValueError:
            address = URL()
        if address.scheme not in ("http", "https") or not address.host:
            raise ConfigError(
                f"kernels.gateway_url {self.shown!r} is no http or https address.", hint="Write it as http://host:port"
            )
        token = token or address.query.get("token")
        self._headers = {"Authorization": f"token {token}"} if token else {}
        self._root = address.with_query(None).with_fragment(None).with_user(None)
        self._token_setting = token_setting
        self._trust_env = address.host not in ("localhost", "127.0.0.1", "::1")  # a proxy is for what is far
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def preflight(self, seconds: float = PREFLIGHT_SECONDS) -> Mapping[str, Mapping[str, Any]]:
        """Return the kernelspecs that it offers; raises PxError: unreachable, wants a token, no Jupyter."""
        specs = await self._json("GET", "api/kernelspecs", "list its kernelspecs", seconds)
        try:
            return {name: dict(each["spec"]) for name, each in specs["kernelspecs"].items()}
        except (TypeError, KeyError, AttributeError, ValueError):
            raise self.unreachable(_NO_JUPYTER) from None

    async def is_enterprise(self) -> bool:
        """Say whether it is an Enterprise Gateway, which takes `KERNEL_…` variables; what hides its version is none."""
        with suppress(PxError):
            about = await self._json("GET", "api", "tell its version", PREFLIGHT_SECONDS)
            return isinstance(about, dict) and "gateway_version" in about
        return False

    async def create(self, body: Mapping[str, Any], seconds: float) -> str:
        """Start a kernel and return its id; `body`: `name`, and what the server knows of `env`, `path`, `kernel_id`."""
        model = await self._json("POST", "api/kernels", "start a kernel", seconds, body)
        if not isinstance(model, dict) or not isinstance(kernel := model.get("id"), str):
            raise self.unreachable(_NO_JUPYTER)
        return kernel

    async def model(self, kernel: str, seconds: float = CALL_SECONDS) -> Mapping[str, Any] | None:
        """Return what the server knows of a kernel: `execution_state`, `name`, …; None when it has no such kernel."""
        try:
            found = await self._json("GET", f"api/kernels/{kernel}", "find the kernel", seconds)
        except UnknownUnitError:
            return None
        return found if isinstance(found, dict) else {}

    async def interrupt(self, kernel: str, seconds: float = INTERRUPT_SECONDS) -> None:
        await self._json("POST", f"api/kernels/{kernel}/interrupt", "interrupt the kernel", seconds, {})

    async def delete(self, kernel: str, seconds: float = DELETE_SECONDS) -> None:
        with suppress(UnknownUnitError):  # it has ended
            await self._json("DELETE", f"api/kernels/{kernel}", "end the kernel", seconds)

    async def connect(self, kernel: str, session: str, seconds: float) -> aiohttp.ClientWebSocketResponse:
        """Open a kernel's websocket; the server answers when the kernel does. Raises PxError as every call."""
        where = (self._root / f"api/kernels/{kernel}/channels").with_query(session_id=session)
        closing = aiohttp.ClientWSTimeout(ws_close=1.0)
        try:
            async with asyncio.timeout(seconds):
                return await self._http.ws_connect(
                    where, protocols=(V1,), heartbeat=PING_SECONDS, max_msg_size=0, timeout=closing
                )
        except aiohttp.WSServerHandshakeError as error:
            raise self.refused(error.status, "", "open the kernel's websocket") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self.unreachable(_why(error, seconds)) from None

    async def close(self) -> None:
        self._is_closed = True
        if self._session is not None:
            await self._session.close()

    @property
    def _http(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise self.unreachable("we have let go of it")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=15.0)
            about: Any = {"headers": self._headers, "trust_env": self._trust_env}
            self._session = aiohttp.ClientSession(connector=connector, **about)
        return self._session

    async def _json(
        self, method: str, path: str, doing: str, seconds: float, body: Mapping[str, Any] | None = None
    ) -> Any:
        about: Any = {"json": body, "allow_redirects": False}
        try:
            async with asyncio.timeout(seconds), self._http.request(method, self._root / path, **about) as answer:
                text = await answer.text(errors="replace")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self.unreachable(_why(error, seconds)) from None
        if not 200 <= answer.status < 300:
            raise self.refused(answer.status, answer.headers.get("Location", "") + text, doing)
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            raise self.unreachable(_NO_JUPYTER) from None

    # -- what an answer means to a user; a token never gets into a sentence --------------------------------------------

    def refused(self, status: int, body: str, doing: str) -> PxError:
        """Return the error for an HTTP status that is no success; `doing` is a verb phrase: `start a kernel`."""
        gateway, said = f"The gateway at {self.shown}", ""
        with suppress(ValueError, AttributeError):
            members = json.loads(body)
            said = str(members.get("message") or members.get("reason") or "").strip()[:300]
        told = f"status {status}: {said}" if said else f"status {status}"
        if not self.is_ours and (status in (401, 403) or (300 <= status < 400 and "login" in body)):
            what = f"does not accept the token of {self._token_setting}" if self._headers else "requires a token"
            return ConfigError(
                f"{gateway} {what} ({told}).",
                hint=f"Set {self._token_setting} (or PX_KERNELS__GATEWAY_TOKEN, PI_PYTHON_GATEWAY_TOKEN).",
                setting=self._token_setting,
                gateway_status=status,
            )
        if status == 404:
            return UnknownUnitError(
                f"{gateway} has nothing there to {doing} ({told}).",
                hint="Check the path in kernels.gateway_url: it ends before /api.",
            )
        return StartFailedError(
            f"{gateway} {'failed' if status >= 500 else 'refused'} to {doing}: it returned {told}.",
            hint=OUR_LOG if self.is_ours else "See the log of the gateway.",
            reason="spawn_failed",
            gateway_status=status,
        )

    def unreachable(self, why: str) -> StartFailedError:
        """Return the error for a server that does not answer as Jupyter does. `why`: `connection refused`."""
        return StartFailedError(
            f"The gateway at {self.shown} is not reachable ({why}).",
            hint=OUR_LOG if self.is_ours else f"Check kernels.gateway_url; try: curl {self.shown}/api",
            reason="spawn_failed",
        )


def _why(error: BaseException, seconds: float) -> str:
    return f"no answer within {seconds:g} s" if isinstance(error, TimeoutError) else str(error) or repr(error)
