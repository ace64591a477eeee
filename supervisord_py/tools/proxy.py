"""One run of a tool, from the client's request to the last byte of the tool's answer.

Laws:
- An input that does not fit never starts anything. The clock of `max_runtime_seconds` runs while a ready instance has
  the request, and not before. Whoever gives up frees what it held, and the tool is asked to cancel.
- Whoever ends a run says why before the connection breaks. A run that breaks by itself waits a moment for the exit
  record of its instance, because a dying process closes its sockets before its parent hears of it.
- Nothing that broke off is ever ended cleanly: as long as nothing has gone to the client, a broken answer becomes an
  error document; afterwards the error is raised out of `chunks`, and the server must abort its own connection.
- Backpressure goes through: the tool is read only as fast as the client reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias

import aiohttp
import msgspec
from aiohttp import web

from supervisord_py.errors import (
    EXIT_USAGE,
    BadRequestError,
    OverloadedError,
    PxError,
    TimedOutError,
    TooLargeError,
    ToolFailedError,
)
from supervisord_py.process.host import SHORT, is_dead
from supervisord_py.process.instance import End
from supervisord_py.process.model import Reason
from supervisord_py.tools import failures
from supervisord_py.tools.manifest import check_input
from supervisord_py.tools.pixie import pixie_call
from supervisord_py.tools.upstream import read_up_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Mapping
    from pathlib import Path

    from supervisord_py.tools.driver import ToolInstance
    from supervisord_py.tools.manifest import ToolSpec
    from supervisord_py.tools.service import Tools

_Call: TypeAlias = "tuple[str, str, bytes | AsyncIterable[bytes] | aiohttp.Payload | None, Mapping[str, str]]"
"""A request as `Upstream.send` takes it."""
LARGE_BYTES = 256 * 1024
ANSWER_BUFFER_BYTES = 256 * 1024  # of an answer that is held back until it is known to be sound
EXIT_RECORD_SECONDS = 1.0
LATE_RECORD_SECONDS = 10.0
"""The same once the leader is seen dead: its record is sure to come, the keeper only has not got to it yet."""
CANCEL_SECONDS = 1.0
_TOOL_WORDS_BYTES = 64 * 1024
_FORWARDED = (
    "Accept", "Accept-Language", "Idempotency-Key", "Last-Event-ID", "Traceparent", "Tracestate", "X-Request-Id",
)  # fmt: skip
"""An allow-list: credentials for the daemon are none of the tool's business."""
_UNSAID = frozenset({"application/x-www-form-urlencoded", "application/octet-stream"})
"""What curl and aiohttp say when they were told nothing: JSON if it looks like JSON."""
_STREAMED = ("text/event-stream", "application/x-ndjson", "application/ndjson", "application/jsonl")
_JSON = ("application/json", "+json")
_OWN_HEADERS = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
    "upgrade", "content-length", "date", "server",
})  # fmt: skip
"""What belongs to one connection, or is said by the server that says it."""


class RunRequest(msgspec.Struct, frozen=True):
    """What is asked of a tool.

    Attributes:
        body: Bytes, or chunks that can be sent once; then `size` is their sum, because many small servers understand
            no other framing than Content-Length.
        headers: What goes on to the tool.
    """

    body: bytes | AsyncIterable[bytes]
    value: Any = None  # the parsed input where it is JSON; `content_type` is then None
    content_type: str | None = None
    size: int | None = None
    streaming: bool = False  # asked of `/stream` instead of `/run`
    timeout_seconds: float | None = None  # from now to the end of the answer; None for no such limit
    keep_alive: float | None = None  # seconds to keep the instance afterwards; 0 not at all, -1 for ever, None as usual
    headers: Mapping[str, str] = {}  # never changed
    request_id: str | None = None  # for the ledger


class NotJsonError(ValueError):
    """An answer that claims to be JSON is none; the message says where."""


# -- the client's side -------------------------------------------------------------------------------------------------


async def forward(
    tools: Tools,
    request: web.Request,
    spec: ToolSpec,
    *,
    streaming: bool,
    timeout_seconds: float | None = None,
    keep_alive: float | None = None,
) -> web.StreamResponse:
    """Run a tool for an HTTP request and answer it; the bounds are those of `RunRequest`.

    Raises:
        PxError: Before the answer has begun; afterwards where a stream broke off.
    """
    body = await _read_body(tools, spec, request)
    asked = RunRequest(
        **body,
        streaming=streaming,
        timeout_seconds=timeout_seconds,
        keep_alive=keep_alive,
        headers={key: request.headers[key] for key in _FORWARDED if key in request.headers},
        request_id=request.headers.get("X-Request-Id"),
    )
    async with start_run(tools, spec, asked) as run:
        headers = {**run.headers, "X-Px-Run-Id": run.id}
        if run.cold_start_ms is not None:
            headers["X-Px-Cold-Start"] = str(run.cold_start_ms)
        if run.chunks is None:
            return web.Response(status=run.status, headers=headers, body=run.body)
        response = web.StreamResponse(status=run.status, headers=headers)
        await response.prepare(request)
        async for chunk in run.chunks:
            await response.write(chunk)
        await response.write_eof()
        return response


async def _read_body(tools: Tools, spec: ToolSpec, request: web.Request) -> dict[str, Any]:
    """Read the body as far as it must be looked at: JSON is parsed, anything else goes on as it comes.

    Returns the members of a `RunRequest` about it.
    """
    limit, size = tools.config.settings.max_body_bytes, request.content_length
    given = request.headers.get("Content-Type", "")
    kind = media_type(given)
    plain = not kind or kind.endswith(_JSON) or kind in _UNSAID
    if not plain and 0 < (size or 0) <= limit and not request.content.at_eof():
        return {"body": request.content.iter_any(), "content_type": given, "size": size}
    try:
        raw = await request.read() if (size or 0) <= limit else None
    except web.HTTPRequestEntityTooLarge:
        raw = None
    if raw is None or len(raw) > limit:
        raise TooLargeError(
            f"The body for {spec.unit} is larger than {limit} bytes.",
            hint="Raise the setting tools.max_body_bytes, or give the tool a path instead.",
            unit=spec.unit,
            limit_bytes=limit,
            setting="tools.max_body_bytes",
        )
    if not plain or (kind in _UNSAID and raw.lstrip()[:1] not in {b"{", b"["}):
        return {"body": raw, "content_type": given}
    try:
        return {"body": raw, "value": msgspec.json.decode(raw)}
    except (msgspec.DecodeError, RecursionError):
        return _read_odd_json(spec, raw)


def _read_odd_json(spec: ToolSpec, raw: bytes) -> dict[str, Any]:
    """Read what the quick decoder does not take with the one that tells lines and columns."""
    if not raw.strip():
        return {"body": b"{}", "value": {}}
    try:
        return {"body": raw, "value": json.loads(raw, parse_constant=_refuse_constant)}
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        place = {"line": error.lineno, "column": error.colno} if isinstance(error, json.JSONDecodeError) else {}
        detail, hint = f"The input for {spec.unit} is not JSON: {why}.", "Send one JSON document, encoded in UTF-8."
        raise BadRequestError(detail, hint=hint, unit=spec.unit, **place) from error


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")


# -- the run -----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def start_run(tools: Tools, spec: ToolSpec, request: RunRequest) -> AsyncIterator[ToolRun]:
    """Run a tool; the context is open for as long as its answer is read.

    Raises:
        PxError: Of any kind, before the context opens. Afterwards out of the chunks of a streamed answer.
    """
    run, granted = ToolRun(tools, spec, request), None
    error: BaseException | None = None
    try:
        if request.content_type is None:
            if isinstance(request.body, bytes) and len(request.body) > LARGE_BYTES:
                await asyncio.to_thread(check_input, spec, request.value)  # large inputs beside the loop, not in it
            else:
                check_input(spec, request.value)
        granted = await tools.acquire(spec, request.timeout_seconds, request.keep_alive)
        run.instance, run.cold_start_ms = granted.instance, granted.cold_start_ms
        run.instance.breaks.add(run.break_off)
        if run.instance.spec.max_runtime_seconds > 0:
            run.timers.append(run.loop.call_later(run.instance.spec.max_runtime_seconds, run.exceed_runtime))
        if request.timeout_seconds is not None:
            run.timers.append(run.loop.call_at(run.begun + request.timeout_seconds, run.time_out))
        async with run.scope:
            await run.ask()
            yield run
    except BaseException as failure:
        error = run.why_it_ends(failure)
        if error is failure:
            raise
        raise error from None
    finally:
        run.over.set()
        for timer in run.timers:
            timer.cancel()
        if run.response is not None:
            run.response.close()  # unless it was read to its end: then its connection is back in the pool
        if granted is not None:
            granted.instance.breaks.discard(run.break_off)
            tools.release(granted)
        tools.runs.end(
            run.row,
            error,
            status=run.status or None,
            seconds=run.loop.time() - run.begun,
            cold_start_ms=run.cold_start_ms,
            instance=run.instance,
        )


class ToolRun:
    """One run. `break_off` from outside raises its error inside, at the next await.

    Attributes:
        id: Given to the tool and to the client.
        row: Its beginning in the ledger.
        status, headers: Of the tool's answer, once it has begun; 0 before.
        body: The answer where it is complete and sound; else `chunks`, which raise where it breaks off.
        cold_start_ms: None unless it waited for a start.
        scope: Within it the instance is used; it is broken off by its deadline.
    """

    def __init__(self, tools: Tools, spec: ToolSpec, request: RunRequest) -> None:
        self.id = str(uuid.uuid4())
        self.spec = spec
        self.request = request
        self.loop = asyncio.get_running_loop()
        self.begun = self.loop.time()
        self.row = tools.runs.begin(spec.unit, request.request_id)
        self.instance: ToolInstance | None = None
        self.cold_start_ms: int | None = None
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.body: bytes | None = None
        self.chunks: AsyncIterator[bytes] | None = None
        self.response: aiohttp.ClientResponse | None = None
        self.scope = asyncio.timeout(None)
        self.over = asyncio.Event()
        self.timers: list[asyncio.TimerHandle] = []
        self._tools = tools
        self._error: PxError | None = None

    # -- ended from outside ------------------------------------------------------------------------------------

    def break_off(self, error: PxError) -> None:
        """End the run with this error; the first one stands."""
        if self._error is None and not self.over.is_set():
            self._error = error
            self._break_off()

    def _break_off(self) -> None:
        if not self.over.is_set() and self.scope.when() is None:
            self.scope.reschedule(self.loop.time())

    def time_out(self) -> None:
        seconds = self.request.timeout_seconds
        detail = f"{self.spec.unit} did not answer within the {seconds:g} s that the request allowed."
        self.break_off(TimedOutError(detail, hint="Ask with a longer --timeout.", unit=self.spec.unit))

    def why_it_ends(self, failure: BaseException) -> BaseException:
        """Return what ended the run, and ask the tool to cancel one that is given up."""
        if isinstance(failure, TimeoutError) and self._error is not None:
            failure = self._error
        given_up = isinstance(failure, (asyncio.CancelledError, ConnectionError, TimedOutError))
        instance = self.instance
        if given_up and instance and instance.upstream and not instance.over.is_set() and instance.wanted is None:
            self._tools.supervisor.task(instance.upstream.cancel(self.id))
        return failure

    def exceed_runtime(self) -> None:
        """The time that its tool has for a run is over."""
        self._tools.supervisor.task(self._enforce_runtime())

    async def _enforce_runtime(self) -> None:
        """Take the instance out of use, let the tool give the run up, and stop it if it does not."""
        instance = self.instance
        if instance is None or self.over.is_set() or self._error is not None:
            return
        tail = await self._stderr()
        # From now on whatever the run brings counts for nothing; it may still end in order.
        self._error = failures.limit_exceeded(instance.spec, End(Reason.RUNTIME_LIMIT, None, tail))
        self._tools.exceeded_runtime(instance, self.id)
        if instance.upstream is not None and await instance.upstream.cancel(self.id):
            with contextlib.suppress(TimeoutError):  # it was asked, and did not end: its tree is stopped
                async with asyncio.timeout(CANCEL_SECONDS):
                    await self.over.wait()
        for break_off in instance.breaks - {self.break_off}:
            break_off(failures.collateral(instance.spec))
        self._break_off()
        self._tools.died(instance)

    # -- the conversation with the tool ------------------------------------------------------------------------

    async def ask(self) -> None:
        """Ask the tool; returns when the answer is there, or has begun."""
        instance, request = self.instance, self.request
        assert instance is not None
        headers = {**request.headers, "Accept-Encoding": "identity", "X-Px-Run-Id": self.id}
        headers["Content-Type"] = request.content_type or "application/json"
        if request.size is not None:
            headers["Content-Length"] = str(request.size)
        calls: list[_Call] = [("POST", "/stream" if request.streaming else "/run", request.body, headers)]
        if self.spec.pixie is not None:
            calls = await self._pixie_calls(headers)
        try:
            for call in calls:
                if self.response is not None:
                    self.response.close()
                if instance.upstream is None:
                    raise ConnectionResetError("the instance is gone")
                self.response = await instance.upstream.send(*call)
                if self.response.status >= 400:
                    raise await self._tool_error(self.response)
            await self._take(self.response)
        except (aiohttp.ClientError, OSError, NotJsonError, EOFError) as error:
            raise self._error or await self._broken(error) from error

    async def _pixie_calls(self, headers: dict[str, str]) -> list[_Call]:
        """Return the requests for a Pixie tool: its run, and where one streams, for the stream of it."""
        assert self.spec.pixie is not None
        root, asked = self._tools.config.data_dir, {**headers}
        body: bytes | AsyncIterable[bytes] | aiohttp.Payload = self.request.body
        if self.request.content_type is None:
            pixie = pixie_call(self.spec.pixie, self.spec.name, self.request.value, self.id, root)
            body, headers = pixie.body, {**headers, **pixie.headers}
        await asyncio.to_thread(make_room, root / self.spec.name, self.id, self.spec.pixie.retain_runs)
        for of_the_body in ("Content-Type", "Content-Length"):
            asked.pop(of_the_body, None)
        streamed: _Call = ("GET", f"/stream?run_id={self.id}", None, {**asked, "X-Pixie-Run-Id": self.id})
        return [("POST", "/run", body, headers), *([streamed] if self.request.streaming else [])]

    async def _take(self, response: aiohttp.ClientResponse | None) -> None:
        """Hold a small answer until it is known to be sound; let large and streamed ones pass."""
        assert response is not None
        theirs = response.headers
        hidden = _OWN_HEADERS
        if "Connection" in theirs:
            hidden = hidden.union(theirs["Connection"].lower().replace(" ", "").split(","))
        self.headers = {name: value for name, value in theirs.items() if name.lower() not in hidden}
        self.status, kind = response.status, media_type(theirs.get("Content-Type", ""))
        if kind in _STREAMED:
            self.chunks = self._chunks(response, b"")
            return
        complete, length = True, response.content_length
        if length is not None and length <= ANSWER_BUFFER_BYTES:
            body = await response.read()
        else:
            body, complete = await read_up_to(response, ANSWER_BUFFER_BYTES)
        if not complete:
            self.chunks = self._chunks(response, body)
            return
        if self._error is not None:
            raise self._error
        if kind.endswith(_JSON) and "Content-Encoding" not in theirs:
            try:
                msgspec.json.decode(body)
            except (msgspec.DecodeError, RecursionError):
                _check_odd_json(body)
        self.body = body

    async def _chunks(self, response: aiohttp.ClientResponse, head: bytes) -> AsyncIterator[bytes]:
        if head:
            yield head
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise self._error or await self._broken(error) from error
        if self._error is not None:
            raise self._error

    async def _tool_error(self, response: aiohttp.ClientResponse) -> ToolFailedError:
        """Turn an error answer of the tool into an error that carries its status and its words."""
        body = (await read_up_to(response, _TOOL_WORDS_BYTES))[0][:_TOOL_WORDS_BYTES]
        said: Any = body.decode(errors="replace")
        if media_type(response.headers.get("Content-Type", "")).endswith(_JSON):
            with contextlib.suppress(ValueError):
                said = json.loads(body)
        words = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        error = ToolFailedError(
            f"{self.spec.unit} answered {response.status}{': ' + words[:300] if words else ''}",
            hint=f"See `pxctl logs {self.spec.unit} --stderr` and `pxctl tools debug {self.spec.name}`.",
            unit=self.spec.unit,
            tool_status=response.status,
            tool_body=said,
            stderr_tail=await self._stderr(),
        )
        error.status = response.status
        if response.status == 422:
            error.exit_code = EXIT_USAGE
        return error

    async def _broken(self, error: Exception) -> PxError:
        """Find out why the conversation broke: did the instance end, or only this answer, or was it us?"""
        if isinstance(error, OSError) and error.errno in SHORT:
            return OverloadedError(
                f"pxd has no file descriptor left to reach {self.spec.unit} with.",
                hint="Ask again later, or raise the limit on open files (`ulimit -n`); see `pxctl doctor`.",
                unit=self.spec.unit,
                retry_after_seconds=1,
            )
        instance = self.instance
        assert instance is not None
        for seconds in (EXIT_RECORD_SECONDS, LATE_RECORD_SECONDS):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await instance.over.wait()
            if instance.over.is_set() or not instance.child or not is_dead(instance.child.identity):
                break
        if self._error is not None:
            return self._error
        if instance.end is not None:
            return failures.died_during_run(self.spec, instance.end, instance.error)
        return failures.bad_answer(self.spec, _what_broke(error), await self._stderr())

    async def _stderr(self) -> str:
        """Return what the instance has written to stderr since the run began."""
        assert self.instance is not None
        return await self._tools.supervisor.tail(self.instance, since=self.row.started_at)


def _what_broke(error: Exception) -> str:
    if isinstance(error, NotJsonError):
        return f"answered with a JSON content type, but not with JSON ({error})"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closed the connection without an answer"
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientOSError | ConnectionError):
        return "closed the connection in the middle of its answer"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"answered with something that is not HTTP ({str(error.message)[:200]})"
    return f"gave no answer ({type(error).__name__}: {str(error)[:200]})"


def _check_odd_json(body: bytes) -> None:
    try:
        json.loads(body)
    except ValueError as error:
        raise NotJsonError(str(error)) from error


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def make_room(folder: Path, run_id: str, retain: int) -> Path:
    """Make the directory of a run below its tool's folder, and remove the oldest beyond `retain`."""
    directory = folder / run_id
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    ages: dict[Path, float] = {}
    for each in folder.iterdir():
        with contextlib.suppress(OSError):
            if each != directory and each.is_dir():
                ages[each] = each.stat().st_mtime
    for old in sorted(ages, key=ages.__getitem__, reverse=True)[max(0, retain - 1) :]:
        shutil.rmtree(old, ignore_errors=True)
    return directory
