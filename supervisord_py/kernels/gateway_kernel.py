"""One Jupyter server (kernel_gateway, jupyter_server, JupyterHub's single users, Enterprise
Gateway), and one living kernel behind it.

Every call of its REST API has a limit of time and ends in an answer or in a `PxError` that says
what to check. The token travels in the header `Authorization`, for the websocket too; it is in no
address, so in no log on the way.

A kernel's variables are as lost as its process. Whatever says that the process is gone (the
server's `status`, a 404, a connection that does not come back at once) ends the running cell, and
nothing takes the restarted kernel, which the server may offer under the same id, for the old one. A
cell is sent once; what a break of the connection or the server itself may have taken of its output
is said.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
import structlog
from yarl import URL

from supervisord_py.errors import (
    ConfigError,
    PxError,
    ReadinessTimeoutError,
    StartFailedError,
    UnknownUnitError,
)
from supervisord_py.kernels import wire
from supervisord_py.kernels.backend import ExecuteRequest, KernelGoneError, Reply
from supervisord_py.kernels.messaging import MessagingKernel

PREFLIGHT_SECONDS = 5.0
CALL_SECONDS = 10.0
INTERRUPT_SECONDS = 2.0
# kernel_gateway asks, waits and kills: ten seconds for a kernel that holds the GIL
DELETE_SECONDS = 20.0
# after so much silence the server is asked before a cell: it may have culled the kernel
LEFT_ALONE_SECONDS = 5.0
LEAVE_SECONDS = 1.0  # how long a DELETE under way may hold up the closing of the connections
RECONNECT_SECONDS = 10.0
LOOK_SECONDS = 0.5
WAKE_SECONDS = 0.02  # after an interrupt: when the loop that may sleep on is woken
UNKNOWN_THERE = "its server does not know it any more"
OUR_LOG = "pxctl logs kernel:gateway"
_NO_JUPYTER = "what answers there is no Jupyter server"
_STATE_LOST = frozenset(("restarting", "autorestarting", "dead"))
_HELD_BACK = re.compile(r"\s*(IOPub (data|message) rate exceeded)")
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)
_log = structlog.get_logger(__name__)


class GatewayClient:
    """One server; `token_setting` names where a token is set, "" for our own gateway.

    Raises ConfigError.
    """

    def __init__(self, url: str, token: str | None, token_setting: str) -> None:
        try:
            address = URL(url)
        except ValueError:
            address = URL()
        if address.scheme not in ("http", "https") or not address.host:
            raise ConfigError(
                "kernels.gateway_url is no http or https address.",
                hint="Write it as http://host:port",
            )
        token = token or address.query.get("token")
        self._headers = {"Authorization": f"token {token}"} if token else {}
        self._root = address.with_query(None).with_fragment(None).with_user(None)
        self.shown = str(self._root).rstrip("/")
        self._token_setting = token_setting
        # a proxy is for what is far
        self._trust_env = address.host not in ("localhost", "127.0.0.1", "::1")
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def preflight(
        self, seconds: float = PREFLIGHT_SECONDS
    ) -> Mapping[str, Mapping[str, Any]]:
        """Return the kernelspecs that it offers; raises PxError: unreachable, wants a token, no
        Jupyter.
        """
        specs = await self._json("GET", "api/kernelspecs", "list its kernelspecs", seconds)
        try:
            return {name: dict(each["spec"]) for name, each in specs["kernelspecs"].items()}
        except (TypeError, KeyError, AttributeError, ValueError):
            raise self.unreachable(_NO_JUPYTER) from None

    async def is_enterprise(self) -> bool:
        with suppress(PxError):
            about = await self._json("GET", "api", "tell its version", PREFLIGHT_SECONDS)
            return isinstance(about, dict) and "gateway_version" in about
        return False

    async def create(self, body: Mapping[str, Any], seconds: float) -> str:
        """Start a kernel and return its id; `body`: `name`, and what the server knows of `env`,
        `path`, `kernel_id`.
        """
        model = await self._json("POST", "api/kernels", "start a kernel", seconds, body)
        if not isinstance(model, dict) or not isinstance(kernel := model.get("id"), str):
            raise self.unreachable(_NO_JUPYTER)
        return kernel

    async def model(self, kernel: str, seconds: float = CALL_SECONDS) -> Mapping[str, Any] | None:
        """Return what the server knows of a kernel: `execution_state`, `name`, …; None when it
        has no such kernel.
        """
        try:
            found = await self._json("GET", f"api/kernels/{kernel}", "find the kernel", seconds)
        except UnknownUnitError:
            return None
        return found if isinstance(found, dict) else {}

    async def interrupt(self, kernel: str, seconds: float = INTERRUPT_SECONDS) -> None:
        await self._json(
            "POST", f"api/kernels/{kernel}/interrupt", "interrupt the kernel", seconds, {}
        )

    async def delete(self, kernel: str) -> None:
        with suppress(UnknownUnitError):  # it has ended
            await self._json("DELETE", f"api/kernels/{kernel}", "end the kernel", DELETE_SECONDS)

    async def connect(
        self, kernel: str, session: str, seconds: float
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a kernel's websocket; the server answers when the kernel does.

        Raises PxError as every call.
        """
        where = (self._root / f"api/kernels/{kernel}/channels").with_query(session_id=session)
        end = aiohttp.ClientWSTimeout(ws_close=1.0)
        try:
            async with asyncio.timeout(seconds):
                return await self._http.ws_connect(
                    where, protocols=(wire.V1,), heartbeat=30, max_msg_size=0, timeout=end
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
            connector = aiohttp.TCPConnector(limit=0)
            how: Any = {"headers": self._headers, "trust_env": self._trust_env}
            self._session = aiohttp.ClientSession(connector=connector, **how)
        return self._session

    async def _json(
        self,
        method: str,
        path: str,
        doing: str,
        seconds: float,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        about: Any = {"json": body, "allow_redirects": False}
        try:
            async with (
                asyncio.timeout(seconds),
                self._http.request(method, self._root / path, **about) as answer,
            ):
                text = await answer.text(errors="replace")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self.unreachable(_why(error, seconds)) from None
        if not 200 <= answer.status < 300:
            raise self.refused(answer.status, answer.headers.get("Location", "") + text, doing)
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            raise self.unreachable(_NO_JUPYTER) from None

    # -- what an answer means to a user; a token never gets into a sentence ------------------------

    def refused(self, status: int, body: str, doing: str) -> PxError:
        """Return the error for an HTTP status that is no success; `doing` is a verb phrase:
        `start a kernel`.
        """
        gateway, setting, said = f"The gateway at {self.shown}", self._token_setting, ""
        with suppress(ValueError, AttributeError):
            members = json.loads(body)
            said = str(members.get("message") or members.get("reason") or "").strip()[:300]
        told = f"status {status}: {said}" if said else f"status {status}"
        if setting and (status in (401, 403) or (300 <= status < 400 and "login" in body)):
            what = (
                f"does not accept the token of {setting}" if self._headers else "requires a token"
            )
            hint = f"Set {setting} (or PX_KERNELS__GATEWAY_TOKEN, PI_PYTHON_GATEWAY_TOKEN)."
            return ConfigError(
                f"{gateway} {what} ({told}).", hint=hint, setting=setting, gateway_status=status
            )
        if status == 404:
            hint = "Check the path in kernels.gateway_url: it ends before /api."
            return UnknownUnitError(f"{gateway} has nothing there to {doing} ({told}).", hint=hint)
        how = "failed" if status >= 500 else "refused"
        hint = "See the log of the gateway." if setting else OUR_LOG
        about: dict[str, Any] = {"reason": "spawn_failed", "gateway_status": status}
        return StartFailedError(
            f"{gateway} {how} to {doing}: it returned {told}.", hint=hint, **about
        )

    def unreachable(self, why: str) -> StartFailedError:
        """Return the error for a server that does not answer as Jupyter does.

        `why`: `connection refused`.
        """
        hint = (
            f"Check kernels.gateway_url; try: curl {self.shown}/api"
            if self._token_setting
            else OUR_LOG
        )
        detail = f"The gateway at {self.shown} is not reachable ({why})."
        return StartFailedError(detail, hint=hint, reason="spawn_failed")


def _why(error: BaseException, seconds: float) -> str:
    return (
        f"no answer within {seconds:g} s"
        if isinstance(error, TimeoutError)
        else str(error) or repr(error)
    )


# -- one kernel ------------------------------------------------------------------------------------


class RemoteKernel(msgspec.Struct, frozen=True):
    """One kernel at a server, as it is written down; no token is in it."""

    instance: str  # key of its life; begins with the daemon's id and a dot
    session_id: str  # whose it is: unit `kernel:<session id>`
    kernel: str  # its id at the server
    url: str  # the server's address, without credentials
    started_at: float  # Unix seconds
    tag: str = ""  # note of the room


class GatewayKernel(MessagingKernel):
    """`KernelHandle` of a kernel behind a server; `forget` is called once it is known to be
    deleted there.
    """

    def __init__(
        self,
        client: GatewayClient,
        held: RemoteKernel,
        *,
        writes_files: bool,
        trace: bool,
        forget: Callable[[RemoteKernel], Awaitable[None]],
    ) -> None:
        # The server replays what it kept only to the same session.
        super().__init__(
            f"kernel:{held.session_id}",
            f"px-{held.instance}",
            writes_files=writes_files,
            trace=trace,
        )
        self.held = held
        self.is_settled = False  # from now on "starting" is another life
        # what a server replays for a cell that nobody follows yet
        self.early: deque[wire.Message] | None = None
        self._client = client
        self._forget = forget
        self._why = "the daemon has let go of it"
        self._deleting: asyncio.Task[bool] | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._is_open = asyncio.Event()
        self._heard_at = 0.0
        self._reader: asyncio.Task[None] | None = None

    async def connect(self, seconds: float) -> None:
        """Open its websocket.

        A server lets that wait for a kernel that has died already: so it is asked meanwhile.
        """
        opening = asyncio.create_task(
            self._client.connect(self.held.kernel, self._session, seconds)
        )
        try:
            while not (await asyncio.wait([opening], timeout=LOOK_SECONDS))[0]:
                if await self._is_dead():
                    detail = f"The kernel at {self._client.shown} ended before it was ready."
                    raise StartFailedError(detail, reason="early_exit")
            self._socket = opening.result()
        finally:
            opening.cancel()
            await asyncio.wait([opening])
        self._heard_at = time.monotonic()
        self._is_open.set()
        self._reader = asyncio.create_task(
            self._read(), name=f"websocket of kernel {self.held.kernel}"
        )

    async def _is_dead(self) -> bool:
        with suppress(PxError):
            model = await self._client.model(self.held.kernel)
            return model is None or model.get("execution_state") == "dead"
        return False

    async def is_python(self, seconds: float) -> bool:
        about = await self._answer("kernel_info_request", {}, seconds)
        return bool((about.get("language_info") or {}).get("name") == "python")

    async def evaluate(self, code: str, expression: str, seconds: float) -> str:
        """Run Python silently, and return the repr of an expression afterwards; "" where that
        failed.
        """
        content = {
            **wire.EXECUTE,
            "code": code,
            "silent": True,
            "user_expressions": {"it": expression},
        }
        answer = await self._answer("execute_request", content, seconds)
        if answer.get("status") != "ok":
            _log.warning(
                "gateway_init_failed", kernel=self.held.kernel, error=str(answer.get("evalue"))
            )
        it = (answer.get("user_expressions") or {}).get("it", {})
        return str(it.get("data", {}).get("text/plain") or "")

    async def _answer(
        self, kind: str, content: Mapping[str, object], seconds: float
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                request = await self.ask(kind, content)
                await self.until(request.reply)
        except TimeoutError:
            detail = (
                f"The kernel at {self._client.shown} did not answer a {kind} within {seconds:g} s."
            )
            raise ReadinessTimeoutError(detail, reason="readiness_timeout") from None
        if not request.reply.done():
            raise self.gone()
        return request.reply.result()

    # -- cells, and its websocket ------------------------------------------------------------------

    async def execute(self, cell: ExecuteRequest, *, is_sent: bool = False) -> Reply:
        if not is_sent:
            if time.monotonic() - self._heard_at > LEFT_ALONE_SECONDS and await self._is_dead():
                self.lose(UNKNOWN_THERE)
            self.early = None
        reply = await super().execute(cell, is_sent=is_sent)
        if reply.ask_exit:
            self._delete("its code asked it to exit")
        return reply

    async def look_for_lost_replies(self) -> None:
        # what the server replayed before anybody followed the cell
        early, self.early = self.early, None
        for message in early or ():
            self.hear(message)
        await super().look_for_lost_replies()

    async def send(self, message: wire.Message) -> None:
        """Send a message once; during a break as soon as the connection is there again.

        Raises KernelGoneError.
        """
        await self._is_open.wait()
        if self.died.done():
            raise self.gone()
        assert self._socket is not None
        if self._trace:
            self.note("sent", message)
        frame = wire.pack(message, self._socket.protocol)
        try:
            await (
                self._socket.send_bytes(frame)
                if isinstance(frame, bytes)
                else self._socket.send_str(frame)
            )
        except (aiohttp.ClientError, OSError):
            # It may have arrived, and a cell is never sent twice: whoever waits for it hears of the
            # break.
            _log.info("gateway_send_broke", kernel=self.held.kernel, type=message.type)

    async def _read(self) -> None:
        while True:
            assert self._socket is not None
            await self._read_until_it_breaks(self._socket)
            self._is_open.clear()
            self._is_missing(
                "The connection to the gateway broke while the cell ran: output may be missing."
            )
            with suppress(aiohttp.ClientError, OSError):
                await self._socket.close()
            try:
                if await self._client.model(self.held.kernel) is None:
                    return self.lose(UNKNOWN_THERE)
                self._socket = await self._client.connect(
                    self.held.kernel, self._session, RECONNECT_SECONDS
                )
            except PxError as error:
                return self.lose(error.detail)
            self._is_open.set()
            with suppress(KernelGoneError):
                await self.look_for_lost_replies()

    async def _read_until_it_breaks(self, connection: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            raw = connection.get_extra_info("socket")
            if _QUICKACK is not None and raw is not None:
                # Servers without TCP_NODELAY hold the next frame back until the last one is
                # acknowledged, which costs 40 ms a message; the flag is not permanent (tcp(7)).
                with suppress(OSError):
                    raw.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            try:
                frame = await connection.receive()
            except (aiohttp.ClientError, OSError):
                return
            if frame.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                return
            self._heard_at = time.monotonic()
            try:
                self.hear(wire.unpack(frame.data, connection.protocol))
            except ValueError as error:
                about = {"kernel": self.held.kernel, "bytes": len(frame.data), "error": str(error)}
                _log.warning("gateway_frame_unreadable", **about)

    def hear(self, message: wire.Message) -> None:
        state = message.state if message.channel == "iopub" else None
        if state in _STATE_LOST or (self.is_settled and state == "starting"):
            self.lose(f"its process ended (its server says {state!r})")
        elif self.early is not None and message.parent_id not in self._requests:
            self.early.append(message)
        else:
            super().hear(message)

    def take_output(self, message: wire.Message) -> None:
        text = str(message.content.get("text")) if message.type == "stream" else ""
        if message.content.get("name") == "stderr" and (held_back := _HELD_BACK.match(text)):
            self._is_missing(
                f"The gateway held output back ({held_back[1]}, its setting limit_rate): part is "
                "missing."
            )
        else:
            super().take_output(message)

    def _is_missing(self, sentence: str) -> None:
        """Say with the cell under way what is missing of its output; a kernel that writes its
        files misses nothing.
        """
        if self._cell is not None and self._recording is not None:
            self._cell.missing[sentence] = None

    def gone(self) -> KernelGoneError:
        return KernelGoneError(
            f"The kernel at {self._client.shown} is gone: {self._why}. Its variables are lost."
        )

    def lose(self, why: str) -> None:
        """It is gone: say so once. Only the first reason counts."""
        if not self.died.done():
            self._why = why.rstrip(".")
            _log.info("gateway_kernel_gone", kernel=self.held.kernel, unit=self.unit, why=why)
            self.died.set_result(None)
            self._is_open.set()  # whoever waits to send is told

    async def interrupt(self) -> str:
        try:
            await self._client.interrupt(self.held.kernel)
        except UnknownUnitError:
            self.lose(UNKNOWN_THERE)
            return "gone"
        except PxError as error:
            _log.warning("gateway_interrupt_failed", kernel=self.held.kernel, detail=error.detail)
            return "interrupt_failed"
        await asyncio.sleep(WAKE_SECONDS)
        with suppress(TimeoutError, KernelGoneError):
            async with asyncio.timeout(1.0):
                await self.ask("kernel_info_request")
        return "rest_interrupt"

    async def terminate(self) -> str:
        self._delete()
        return "delete"

    async def kill(self) -> str:
        """As `terminate`, and wait until the server has done so: it has no harder way."""
        await asyncio.shield(self._delete())
        return "delete"

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        """End it and forget it; how long that takes is the server's to decide: its API has no
        such parameter.
        """
        is_deleted = await asyncio.shield(self._delete())
        await self.close()
        if is_deleted:
            await self._forget(self.held)
        return ()

    def _delete(self, why: str = "it was deleted at its server") -> asyncio.Task[bool]:
        """Have the server end it, once.

        Where that fails it is given up; its note stays, for a later sweep.
        """

        async def delete() -> bool:
            try:
                await self._client.delete(self.held.kernel)
            except PxError as error:
                self.lose(error.detail)
                return False
            self.lose(why)
            return True

        self._deleting = self._deleting or asyncio.create_task(
            delete(), name=f"delete kernel {self.held.kernel}"
        )
        return self._deleting

    async def close(self) -> None:
        if self._deleting is not None:
            await asyncio.wait([self._deleting], timeout=LEAVE_SECONDS)
        tasks: list[asyncio.Task[Any]] = [
            each for each in (self._reader, self._deleting) if each is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._is_open.set()
        if self._socket is not None:
            with suppress(aiohttp.ClientError, OSError):
                await self._socket.close()
        await self.let_go()
