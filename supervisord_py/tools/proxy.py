"""One run of a tool, from the client's request to the last byte of the tool's answer.

Laws:
- An input that does not fit never starts anything. The clock of `max_runtime_seconds` runs while a
  ready instance has the request, and not before. Whoever gives up frees what it held, and the tool
  is asked to cancel.
- Whoever ends a run says why before the connection breaks. A run that breaks by itself waits a
  moment for the exit record of its instance, because a dying process closes its sockets before its
  parent hears of it.
- Nothing that broke off is ever ended cleanly: as long as nothing has gone to the client, a broken
  answer becomes an error document; afterwards the error is raised out of `chunks`, and the server
  must abort its own connection.
- Backpressure goes through: the tool is read only as fast as the client reads.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from supervisord_py.config.documents import parse_sent
from supervisord_py.errors import (
    EXIT_USAGE,
    InvalidInputError,
    PxError,
    TimedOutError,
    ToolFailedError,
)
from supervisord_py.process.instance import End
from supervisord_py.process.model import Reason
from supervisord_py.process.supervisor import SHORT, is_dead, no_descriptors
from supervisord_py.tools import failures
from supervisord_py.tools.content_coding import ContentCodingError
from supervisord_py.tools.driver import ToolInstance, Work
from supervisord_py.tools.manifest import ToolSpec, check_input
from supervisord_py.tools.pixie import pixie_call
from supervisord_py.tools.upstream import BROKEN, Answer, Call, RedirectError

if TYPE_CHECKING:
    from supervisord_py.tools.service import Granted, Tools

ANSWER_BUFFER_BYTES = 256 * 1024  # of an answer that is held back until it is known to be sound
LINE_BYTES = 16 * 1024 * 1024  # of a stream that is told in another form than the tool's
EXIT_RECORD_SECONDS = 1.0
LATE_RECORD_SECONDS = 10.0
"""The same once the leader is seen dead: its record is sure to come, the keeper only has not got
to it yet.
"""
CANCEL_SECONDS = 1.0
TRACEBACK_SECONDS = 0.05  # servers such as uvicorn write down an exception once its answer is out
FAILED_SECONDS = 1.0  # failed runs of a tool are an event at most that often: each may start a pipe
POINTERS_SHOWN = 5  # of an input that does not fit, in the event
_TOOL_WORDS_BYTES = 64 * 1024
_FORWARDED = (
    "Accept", "Accept-Language", "Idempotency-Key", "Last-Event-ID", "Traceparent", "Tracestate",
    "X-Request-Id",
)  # fmt: skip
"""An allow-list: credentials for the daemon are none of the tool's business."""
_EVENTS, _LINES = "text/event-stream", "application/x-ndjson"
_STREAMED = (_EVENTS, _LINES, "application/ndjson", "application/jsonl")
_JSON = ("application/json", "+json")
_NO_CONTENT = frozenset({204, 205})
"""Answers that have no content by definition (RFC 9110 sections 15.3.5, 15.3.6), whatever their
type.
"""
_OWN_HEADERS = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade", "content-length", "date", "server",
})  # fmt: skip
"""What belongs to one connection, or is said by the server that says it."""


async def forward(
    tools: Tools,
    request: web.Request,
    spec: ToolSpec,
    sent: bytes,
    timeout_seconds: float | None = None,
    keep_alive: float | None = None,
    *,
    streaming: bool,
    on_sent: Callable[[], None] | None = None,
) -> web.StreamResponse:
    """Run a tool for an HTTP request and answer it; `sent` is its body, the bounds are those of
    `ToolRun.going`.

    `on_sent` is called right before the first byte of the run goes to the tool.

    Raises PxError: Before the answer has begun; afterwards where a stream broke off.
    """
    body = sent.strip() or b"{}"
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or with a byte order mark
        value = parse_sent(body, f"The input for {spec.unit}", spec.unit).value
        body = body.removeprefix(codecs.BOM_UTF8)  # not every tool's server takes one
    given = {key: request.headers[key] for key in _FORWARDED if key in request.headers}
    run = ToolRun(tools, spec, body, value, given, streaming=streaming, on_sent=on_sent)
    # `run` lets go of them when it ends, and this frame may live longer in a traceback
    del sent, body, value
    async with run.going(timeout_seconds, keep_alive):
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


class ToolRun:
    """One run. `break_off` from outside raises its error inside, at the next await.

    `asked` and `value` are the input as JSON, and parsed; `given` are headers that go on to the
    tool.
    """

    def __init__(
        self,
        tools: Tools,
        spec: ToolSpec,
        asked: bytes,
        value: Any,
        given: Mapping[str, str] | None = None,
        *,
        streaming: bool = False,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        self.id = str(uuid.uuid4())  # given to the tool and to the client
        self.spec = spec
        self.instance: ToolInstance | None = None
        self.cold_start_ms: int | None = None  # None unless it waited for a start
        self.status = 0  # of the tool's answer, once it has begun, as `headers` are
        self.headers: dict[str, str] = {}
        self.body: bytes | None = None  # the answer where it is complete and sound; else:
        self.chunks: AsyncIterator[bytes] | None = None
        self._tools = tools
        self._asked = asked
        self._value = value
        self._given = given or {}
        self._streaming = streaming
        self._on_sent = on_sent
        self._loop = asyncio.get_running_loop()
        self._created_at = self._loop.time()
        self._given_at: float | None = None  # when an instance got the run, by the loop's clock
        self._sent_at = 0.0  # the same in Unix seconds
        self._answer: Answer | None = None
        # within it the instance is used; its deadline breaks that off
        self._scope = asyncio.timeout(None)
        self._over = asyncio.Event()
        self.over_at: float | None = None
        self._timers: list[asyncio.TimerHandle] = []
        # What the instance already worked on when this run was sent.
        self._earlier_runs: tuple[Work, ...] = ()
        self._error: PxError | None = None

    @contextlib.asynccontextmanager
    async def going(
        self, timeout_seconds: float | None = None, keep_alive: float | None = None
    ) -> AsyncIterator[None]:
        """Run the tool. `timeout_seconds` counts from the construction of this object.

        The context stays open until the answer is read. `keep_alive`: seconds to keep the instance
        afterwards (0: stop it at once, -1: never stop it, None: as the tool's settings say).

        Raises PxError: Of any kind, before the context opens. Afterwards out of the chunks of a
            streamed answer.
        """
        granted: Granted | None = None
        error: BaseException | None = None
        try:
            check_input(self.spec, self._value)
            if self.spec.pixie is None:
                # The tool gets the text; only a Pixie tool's call is built from the parsed input.
                self._value = None
            granted = await self._tools.acquire(self.spec, timeout_seconds, keep_alive)
            self._register(granted)
            self._arm_timers(granted.instance, timeout_seconds)
            async with self._scope:
                await self._ask()
                yield
        except BaseException as failure:
            error = failure
            # `break_off` ends the scope, which shows as a TimeoutError here: raise what it was
            # given.
            if isinstance(failure, TimeoutError) and self._error is not None:
                error = self._error
            self._cancel_in_tool(error)
            if error is failure:
                raise
            raise error from None
        finally:
            self._clean_up(granted, error)
            # The traceback of the error refers to this frame, and the frame to the error. Without
            # this, the input would stay in memory until the garbage collector happens to run.
            del error

    def _register(self, granted: Granted) -> None:
        """Register the run at the instance that was granted to it."""
        instance = granted.instance
        self.instance = instance
        self.cold_start_ms = granted.cold_start_ms
        self._given_at = self._loop.time()
        self._sent_at = time.time()
        if instance.given_up is not None:
            # The tool may still work on calls that their callers gave up.
            self._earlier_runs = (*instance.runs, instance.given_up)
        elif instance.runs:
            self._earlier_runs = tuple(instance.runs)
        else:
            # The instance was idle: what it wrote before, such as at its start, is not about this
            # run.
            instance.words_since = self._sent_at
        instance.runs.add(self)

    def _arm_timers(self, instance: ToolInstance, timeout_seconds: float | None) -> None:
        """Set the timers for the tool's limit and for the caller's deadline."""
        runtime_seconds = instance.spec.max_runtime_seconds
        if runtime_seconds > 0:
            timer = self._loop.call_later(runtime_seconds, self._check_runtime)
            self._timers.append(timer)
        if timeout_seconds is not None:
            timer = self._loop.call_at(
                self._created_at + timeout_seconds, self._give_up, timeout_seconds
            )
            self._timers.append(timer)

    def _cancel_in_tool(self, error: BaseException) -> None:
        """Ask the tool to cancel the run if the caller gave it up and the tool may still work on
        it.
        """
        is_given_up = isinstance(error, (asyncio.CancelledError, ConnectionError, TimedOutError))
        if not is_given_up:
            return
        instance = self.instance
        if instance is None or instance.upstream is None:
            # The run was given up before it got an instance.
            return
        if instance.over.is_set() or instance.wanted is not None:
            # The instance has ended, or is being stopped with all its runs.
            return
        self._tools.supervisor.task(instance.upstream.cancel(self.id))
        self._tools.doubt(instance, timed_out=isinstance(error, TimedOutError))

    def _clean_up(self, granted: Granted | None, error: BaseException | None) -> None:
        """Give back all that the run holds, and publish its end once the answer is out."""
        ended_at = self._loop.time()
        self._over.set()
        self.over_at = ended_at
        for timer in self._timers:
            timer.cancel()
        # Each of them refers to others: a chain of runs would stay in memory.
        self._earlier_runs = ()
        if self._answer is not None:
            self._answer.close()
        if granted is not None:
            instance = granted.instance
            if error is None:
                instance.heard_at = ended_at
            instance.runs.discard(self)
            self._tools.release(granted)
        # In the next turn of the loop, so that the client does not wait for it.
        self._loop.call_soon(self._publish_end, error)
        # A traceback may keep this object for longer: let go of the input.
        self._error = None
        self._asked = b""
        self._value = None

    def _publish_end(self, error: BaseException | None) -> None:
        """Publish how the run ended. A failure by the tool's fault is an event of its own, too."""
        events = self._tools.events
        unit = self.spec.unit
        instance = self.instance
        now = self._loop.time()

        outcome = "completed"
        kind: str | None = None
        status = self.status
        if isinstance(error, PxError):
            outcome = _outcome_of(error)
            kind = error.kind
            status = error.status
        elif error is not None:
            outcome = Reason.CANCELLED.value
            kind = Reason.CANCELLED.value

        facts: dict[str, Any] = {
            "run": self.id,
            "outcome": outcome,
            "status": status or None,
            "error_kind": kind,
            "cold_start_ms": self.cold_start_ms,
            "start_method": None if instance is None else instance.start_method,
            "duration_seconds": round(now - self._created_at, 6),
        }
        if self._given_at is not None:
            # The wait for an instance, with the time of its start.
            facts["waited_seconds"] = round(self._given_at - self._created_at, 6)
        is_tools_fault = error is not None and failures.is_the_tools(error)
        is_refusal = isinstance(error, ToolFailedError) and failures.is_refusal(error.status)
        if isinstance(error, PxError) and (is_tools_fault or is_refusal):
            # `pxctl why` shows both.
            facts["detail"] = error.detail
            facts["hint"] = error.hint
        if isinstance(error, InvalidInputError):
            # The pointers alone: the values of the input are private, and stay out of the journal.
            pointers = [problem["pointer"] for problem in error.extra.get("errors", ())]
            facts["pointers"] = pointers[:POINTERS_SHOWN]
        instance_key = None if instance is None else instance.key
        events.publish("run", unit, instance=instance_key, **facts)

        if instance is None or not is_tools_fault:
            return
        # Each of these events may start a pipe: a tool that always fails must not start many.
        failed_at = self._tools.failed_at
        if now - failed_at.get(unit, -FAILED_SECONDS) < FAILED_SECONDS:
            return
        failed_at[unit] = now
        events.publish(
            "run_failed",
            unit,
            instance=instance.key,
            run=self.id,
            status=status,
            kind=kind,
            instance_ended=instance.over.is_set(),
        )

    def break_off(self, error: PxError) -> None:
        """End the run with this error; the first one stands."""
        self._error = self._error or error
        if not self._over.is_set() and self._scope.when() is None:
            self._scope.reschedule(self._loop.time())

    def _give_up(self, timeout_seconds: float) -> None:
        """Break the run off at its caller's deadline; why it is late is known only now."""
        instance = self.instance
        assert instance is not None
        silent_since = instance.silent_since(self._loop.time())
        late = failures.late(
            self.spec, timeout_seconds, beside=self._beside(), silent_since=silent_since
        )
        self.break_off(late)

    def _beside(self) -> int:
        """Return how many other runs the tool had when this one was sent, without those that
        were given up.
        """
        return sum(isinstance(work, ToolRun) for work in self._earlier_runs)

    def _check_runtime(self) -> None:
        """Break the run off if its time is over, or check again when that will be so at the
        earliest.
        """
        assert self.instance is not None
        now = self._loop.time()
        due = now
        if self._earlier_runs:
            # The server may have worked on those first: the time of this run counts from their end.
            ends = [run.over_at for run in self._earlier_runs]
            due = charged_from(ends, now) + self.instance.spec.max_runtime_seconds
        if due > now:
            timer = self._loop.call_at(due, self._check_runtime)
            self._timers.append(timer)
        else:
            self._tools.supervisor.task(self.exceed_runtime())

    async def exceed_runtime(self) -> None:
        """Take the instance out of use, let the tool give the run up, and stop it if it does
        not.
        """
        instance = self.instance
        assert instance is not None
        assert instance.upstream is not None
        if self._over.is_set() or self._error is not None:
            return
        tail = await self._stderr()
        # From now on whatever the run brings counts for nothing; it may still end in order.
        end = End(Reason.RUNTIME_LIMIT, None, tail)
        self._error = failures.limit_exceeded(instance.spec, end, beside=self._beside())
        self._tools.exceeded_runtime(instance, self.id)
        if await instance.upstream.cancel(self.id):
            # it was asked, and did not end: its tree is stopped
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    await self._over.wait()
        self._tools.died(instance)  # which breaks off all runs that it still has

    # -- the conversation with the tool ------------------------------------------------------------

    async def _ask(self) -> None:
        """Ask the tool; returns when the answer is there, or has begun."""
        instance, root = self.instance, self._tools.config.data_dir
        assert instance is not None
        headers = {**self._given, "X-Px-Run-Id": self.id}
        calls = run_calls(
            self.spec, self._asked, self._value, self.id, root, headers, streaming=self._streaming
        )
        if self.spec.pixie is not None:
            await asyncio.to_thread(
                make_room, root / self.spec.name, self.id, self.spec.pixie.retain_runs
            )
        try:
            for one in calls:
                if self._answer is not None:
                    self._answer.close()
                assert instance.upstream is not None
                self._answer = await instance.upstream.send(*one, before_write=self._on_sent)
                if self._answer.status >= 300:
                    self._answer = await self._follow(one, self._answer)
            assert self._answer is not None
            await self._take(self._answer)
        except (*BROKEN, ValueError, RecursionError) as error:
            raise self._error or await self._broken(error) from error

    async def _follow(self, call: Call, answer: Answer) -> Answer:
        """Return the answer behind a redirect.

        Raises ToolFailedError if that or `answer` is an error.
        """
        instance = self.instance
        assert instance is not None
        assert instance.upstream is not None
        asked = ""
        if answer.status < 400:
            call, answer = await instance.upstream.follow(call, answer)
            asked = f" to {call.method} {call.path}, where a redirect led"
            self._answer = answer  # is closed with the run
        if answer.status >= 400:
            raise await self._tool_error(answer, asked)
        return answer

    async def _take(self, response: Answer) -> None:
        """Hold a small answer until it is known to be sound; let large and streamed ones pass."""
        theirs = response.headers
        hidden = _OWN_HEADERS
        if "Connection" in theirs:
            hidden = hidden.union(theirs["Connection"].lower().replace(" ", "").split(","))
        if response.content_encoding is not None:
            hidden = hidden.union(("content-encoding",))  # it is decoded
        self.headers = {name: value for name, value in theirs.items() if name.lower() not in hidden}
        self.status, kind = response.status, media_type(theirs.get("Content-Type", ""))
        if self.status in _NO_CONTENT:
            # Nothing is read: without a length, a 205 would seem to end with its connection, which
            # the server keeps.
            self.body = b""
            return
        if kind in _STREAMED:
            self.chunks = self._chunks(response.chunks(), b"")
            named = map(media_type, self._given.get("Accept", "").split(","))
            wanted = next((each for each in named if each in {_EVENTS, _LINES}), kind)
            if (wanted == _EVENTS) != (kind == _EVENTS):
                self.headers["Content-Type"] = wanted
                self.chunks = (
                    _as_events(self.chunks) if wanted == _EVENTS else _as_lines(self.chunks)
                )
            return
        body, complete = await response.read_up_to(ANSWER_BUFFER_BYTES)
        if not complete:
            self.chunks = self._chunks(response.chunks(), body)
            return
        if self._error is not None:
            raise self._error
        if kind.endswith(_JSON):
            try:
                msgspec.json.decode(body)
            except (msgspec.DecodeError, RecursionError):
                # What Python's own reader takes is passed on: a result is not thrown away for a
                # NaN.
                constant = constant_in(body)
                if constant is not None:
                    self.headers["X-Px-Notice"] = (
                        f"the answer contains {constant}, which JSON does not have"
                    )
        self.body = body

    async def _chunks(self, body: AsyncIterator[bytes], head: bytes) -> AsyncIterator[bytes]:
        if head:
            yield head
        try:
            async for chunk in body:
                yield chunk
        except BROKEN as error:
            raise self._error or await self._broken(error) from error
        if self._error is not None:
            raise self._error

    async def _tool_error(self, response: Answer, asked: str) -> ToolFailedError:
        """Turn an error answer of the tool into an error that carries its status and its words.

        `asked` follows the status, and says what was answered, if that was not the run itself.
        """
        body = b""
        with contextlib.suppress(ContentCodingError):  # the status says enough
            body = (await response.read_up_to(_TOOL_WORDS_BYTES))[0][:_TOOL_WORDS_BYTES]
        words = body.decode(errors="replace")
        said: Any = words
        kind = media_type(response.headers.get("Content-Type", ""))
        if kind == "text/html":
            words = ""  # a page of the framework: it says less than its status
        if kind.endswith(_JSON):
            with contextlib.suppress(ValueError):
                said = json.loads(body)
        if response.status >= 500:
            await asyncio.sleep(TRACEBACK_SECONDS)
        error = failures.bad_answer(
            self.spec,
            f"answered {response.status}{asked}",
            await self._stderr(),
            words=words,
            is_ours=response.status >= 500,
            tool_status=response.status,
            tool_body=said,
        )
        error.status = response.status
        if response.status == 422:
            error.exit_code = EXIT_USAGE
        return error

    async def _broken(self, error: Exception) -> PxError:
        """Find out why the conversation broke: did the instance end, or only this answer, or was
        it us?
        """
        if isinstance(error, OSError) and error.errno in SHORT:
            return no_descriptors(f"reach {self.spec.unit}", self.spec.unit)
        if isinstance(error, RedirectError):
            return failures.redirect(self.spec, str(error), await self._stderr())
        if isinstance(error, ContentCodingError):
            return failures.encoding(self.spec, str(error), await self._stderr())
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
        what = f"gave no sound answer ({type(error).__name__}: {str(error)[:200]})"
        return failures.bad_answer(self.spec, what, await self._stderr())

    async def _stderr(self) -> str:
        """Return what the instance has written to stderr since the run began."""
        assert self.instance is not None
        return await self._tools.supervisor.tail(self.instance, since=self._sent_at)


def _outcome_of(error: PxError) -> str:
    """Return the word by which the journal names the end of a run that failed."""
    if isinstance(error, TimedOutError):
        return Reason.TIMEOUT.value
    return str(error.extra.get("reason") or "failed")


def charged_from(ends: Sequence[float | None], now: float) -> float:
    """Return since when a run may be worked on that was sent while others were under way.

    `ends` says when each of these ended, None while it goes on. A server that works on one request
    at a time lets a run wait for all that came before it, and nobody can see from outside when it
    begins. So the time of a run is not counted before those have ended, of which each has a limit
    of its own. Where a server works on several at a time this lets a run go on for longer than its
    limit by the time that the others still took.
    """
    return max((now if end is None else end for end in ends), default=now)


def run_calls(
    spec: ToolSpec,
    body: bytes,
    value: Any,
    run_id: str,
    root: Path,
    headers: Mapping[str, str],
    *,
    streaming: bool,
) -> list[Call]:
    """Return the requests of a run; a Pixie tool's is streamed by a second one."""
    with_type = {**headers, "Content-Type": "application/json"}
    if spec.pixie is None:
        return [Call("POST", "/stream" if streaming else "/run", body, with_type)]
    sent, own = pixie_call(spec.pixie, spec.name, value, run_id, root)
    run = Call("POST", "/run", sent, {**with_type, **own})
    if not streaming:
        return [run]
    return [
        run,
        Call("GET", f"/stream?run_id={run_id}", b"", {**headers, "X-Pixie-Run-Id": run_id}),
    ]


async def _lines_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
        if len(rest) > LINE_BYTES:
            raise ToolFailedError(f"A line of the tool's stream is longer than {LINE_BYTES} bytes.")
    if rest:
        yield rest


async def _as_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Make server-sent events of lines of JSON."""
    async for line in _lines_of(chunks):
        if line.strip():
            yield b"data: " + line + b"\n\n"


async def _as_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Make a line of the payload of each server-sent event; a line break within it is a space to
    JSON.
    """
    payload: list[bytes] = []
    async for line in _lines_of(chunks):
        if line.startswith(b"data:"):
            payload.append(line[5:].removeprefix(b" "))
        elif not line and payload:
            yield b" ".join(payload) + b"\n"
            payload = []
    if payload:
        yield b" ".join(payload) + b"\n"


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def constant_in(body: bytes) -> str | None:
    """Return NaN, Infinity or -Infinity where it stands for a number; None if the text is JSON.

    Raises ValueError.
    """
    constants: list[str] = []
    json.loads(body, parse_constant=constants.append)
    return constants[0] if constants else None


def make_room(folder: Path, run_id: str, retain: int) -> None:
    """Make the directory of a run below its tool's folder, and remove the oldest beyond
    `retain`.
    """
    directory = folder / run_id
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    ages: dict[Path, float] = {}
    for each in folder.iterdir():
        with contextlib.suppress(OSError):
            if each != directory and each.is_dir():
                ages[each] = each.stat().st_mtime
    for old in sorted(ages, key=ages.__getitem__, reverse=True)[max(0, retain - 1) :]:
        shutil.rmtree(old, ignore_errors=True)
