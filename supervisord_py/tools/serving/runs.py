"""One run of a tool, from the checked input to the last byte of its answer.

Law: an input that does not fit never starts anything. The clock of `max_runtime_seconds` runs while a ready instance
has the request, and not before. Whoever gives up frees what it held: the connection to the tool is closed, and the
tool is asked to cancel.
"""

from __future__ import annotations

import asyncio
import shutil
import time
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp

from supervisord_py.errors import OverloadedError, PxError, TimedOutError
from supervisord_py.ledger.runs import Finished
from supervisord_py.process.descriptors import SHORT
from supervisord_py.process.spec import Reason
from supervisord_py.tools.pixie import pixie_call
from supervisord_py.tools.schema import check_input
from supervisord_py.tools.serving import answers, failure
from supervisord_py.tools.serving.upstream import Call
from supervisord_py.tools.serving.visit import Overtime, Visit

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Mapping
    from pathlib import Path

    from supervisord_py.tools.manifest import ToolSpec
    from supervisord_py.tools.serving.answers import Answer
    from supervisord_py.tools.serving.instance import Granted, Instance
    from supervisord_py.tools.serving.launcher import Launcher


LARGE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class JsonInput:
    """An input that was parsed; `raw` is what it was parsed from."""

    value: Any
    raw: bytes


@dataclass(frozen=True, slots=True)
class OpaqueInput:
    """An input that only the tool understands: a form, an image.

    `body` may be chunks, to be sent once; then `size` is their sum, because many small servers understand no other
    framing than Content-Length.
    """

    body: bytes | AsyncIterable[bytes]
    content_type: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What is asked of a tool.

    Attributes:
        content: The input.
        streaming: Asked of `/stream` instead of `/run`.
        timeout_seconds: From now to the end of the answer; None for no such limit.
        keep_alive: Seconds to keep the instance afterwards; 0 not at all, -1 for ever, None as usual.
        headers: What goes on to the tool.
        request_id: For the ledger.
    """

    content: JsonInput | OpaqueInput
    streaming: bool = False
    timeout_seconds: float | None = None
    keep_alive: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A run that has an answer, or its beginning. `cold_start_ms` is None unless it waited for a start."""

    run_id: str
    cold_start_ms: int | None
    answer: Answer


@dataclass(slots=True)
class _Story:
    """What will stand in the run's row; `has_ended` is said of the instance."""

    row: int
    begun: float
    status: int | None = None
    cold_start_ms: int | None = None
    instance: str | None = None
    has_ended: bool = False


@asynccontextmanager
async def run(launcher: Launcher, name: str, request: RunRequest) -> AsyncIterator[Running]:
    """Run a tool; the context is open for as long as its answer is read.

    Raises:
        PxError: of any kind, before the context opens. Afterwards out of the chunks of a streamed answer.
    """
    spec = launcher.catalog.get(name)
    loop = asyncio.get_running_loop()
    deadline = None if request.timeout_seconds is None else loop.time() + request.timeout_seconds
    story = _Story(launcher.chronicle.run_begun(spec.unit, request.request_id), loop.time())
    try:
        await _check(spec, request.content)
        granted = await launcher.acquire(spec, request.timeout_seconds, request.keep_alive)
        try:
            story.instance = granted.instance.key
            story.cold_start_ms = granted.instance.cold_start_ms if granted.cold else None
            async with _visiting(launcher, granted, request, deadline, story) as running:
                yield running
        finally:
            story.has_ended = granted.instance.over.is_set()
            launcher.release(granted)
    except BaseException as error:
        _close_row(launcher, spec, story, error)
        raise
    _close_row(launcher, spec, story, None)


async def _check(spec: ToolSpec, content: JsonInput | OpaqueInput) -> None:
    """Check what can be checked, before anything is spawned; large inputs beside the loop, not in it."""
    if isinstance(content, JsonInput):
        if len(content.raw) > LARGE_BYTES:
            await asyncio.to_thread(check_input, spec, content.value)
        else:
            check_input(spec, content.value)


def _close_row(launcher: Launcher, spec: ToolSpec, story: _Story, error: BaseException | None) -> None:
    outcome, kind, status = "completed", None, story.status
    if isinstance(error, TimedOutError):
        outcome, kind, status = Reason.TIMEOUT.value, error.kind, error.status
    elif isinstance(error, PxError):
        outcome, kind, status = str(error.extra.get("reason") or "failed"), error.kind, error.status
    elif error is not None:
        outcome, kind = Reason.CANCELLED.value, "cancelled"
    seconds = asyncio.get_running_loop().time() - story.begun
    launcher.chronicle.run_finished(
        story.row,
        Finished(
            ended_at=time.time(),
            outcome=outcome,
            status=status,
            error_kind=kind,
            cold_start_ms=story.cold_start_ms,
            duration_seconds=seconds,
            instance=story.instance,
        ),
    )
    launcher.chronicle.say_of_tool(
        "run",
        spec.name,
        instance=story.instance,
        run=story.row,
        outcome=outcome,
        error_kind=kind,
        duration_seconds=round(seconds, 6),
        cold_start_ms=story.cold_start_ms,
    )
    if isinstance(error, PxError) and failure.is_the_tools(error):
        facts = {"status": status, "kind": kind, "instance_ended": story.has_ended}
        launcher.chronicle.run_failed(spec.name, instance=story.instance, run=story.row, **facts)


@asynccontextmanager
async def _visiting(
    launcher: Launcher, granted: Granted, request: RunRequest, deadline: float | None, story: _Story
) -> AsyncIterator[Running]:
    """Be on the instance under its limits; ask the tool to cancel when the run is given up."""
    instance = granted.instance
    visit = Visit(instance, str(uuid.uuid4()))
    loop = asyncio.get_running_loop()
    overtime = Overtime(launcher, visit)
    timer = None if deadline is None else loop.call_at(deadline, visit.interrupt, _timed_out(instance, request))
    try:
        async with visit:
            overtime.begin(instance.spec.max_runtime_seconds)
            exchange = _Exchange(launcher, visit, request)
            try:
                answer = await exchange.ask()
                story.status = answer.status
                yield Running(visit.run_id, story.cold_start_ms, answer)
            finally:
                exchange.close()
    except (asyncio.CancelledError, TimedOutError, ConnectionError):
        _ask_to_cancel(launcher, instance, visit)
        raise
    finally:
        overtime.end()
        if timer is not None:
            timer.cancel()


def _timed_out(instance: Instance, request: RunRequest) -> PxError:
    return TimedOutError(
        f"{instance.spec.unit} did not answer within the {request.timeout_seconds:g} s that the request allowed.",
        hint="Ask with a longer --timeout.",
        unit=instance.spec.unit,
    )


def _ask_to_cancel(launcher: Launcher, instance: Instance, visit: Visit) -> None:
    upstream = instance.upstream
    if upstream is not None and not instance.over.is_set() and instance.wanted is None:

        async def cancel() -> None:
            await upstream.cancel(visit.run_id)

        launcher.run_task(cancel())


class _Exchange:
    """The conversation with the tool in one run."""

    def __init__(self, launcher: Launcher, visit: Visit, request: RunRequest) -> None:
        self._launcher = launcher
        self._visit = visit
        self._instance = visit.instance
        self._spec = visit.instance.spec
        self._request = request
        self._answer: aiohttp.ClientResponse | None = None

    async def ask(self) -> Answer:
        """Send the request; return the answer, whole or as a stream.

        Raises:
            PxError: no answer, an error answer, or a broken one.
        """
        try:
            for call in await self._calls():
                self.close()
                self._answer = await self._send(call)
                if answers.is_error(self._answer):
                    tail = await self._launcher.tails.of(self._instance)
                    raise await answers.tool_error(self._spec, self._answer, tail)
            return await self._take(self._answer)
        except (aiohttp.ClientError, OSError, answers.NotJsonError, EOFError) as error:
            self._visit.check()
            raise await self._broken(error) from error

    def close(self) -> None:
        """Close the connection, unless the answer was read to its end: then it is back in the pool."""
        if self._answer is not None:
            self._answer.close()

    async def _calls(self) -> tuple[Call, ...]:
        """Return the requests to make, in order; the answer to the last one is the answer of the run."""
        request, spec = self._request, self._spec
        headers = {**request.headers, "Accept-Encoding": "identity", "X-Px-Run-Id": self._visit.run_id}
        path = "/stream" if request.streaming else "/run"
        match request.content:
            case OpaqueInput(body, content_type, size):
                headers["Content-Type"] = content_type
                if size is not None:
                    headers["Content-Length"] = str(size)
            case JsonInput(_, body):
                headers["Content-Type"] = "application/json"
        if spec.pixie is None:
            return (Call("POST", path, body, headers),)
        root = self._launcher.config.data_dir
        if isinstance(request.content, JsonInput):
            pixie = pixie_call(spec, request.content.value, self._visit.run_id, root)
            body, headers = pixie.body, {**headers, **pixie.headers}
        await asyncio.to_thread(make_room, root / spec.name, self._visit.run_id, spec.pixie.retain_runs)
        posted = Call("POST", "/run", body, headers)
        if not request.streaming:
            return (posted,)
        streamed = {**request.headers, "Accept-Encoding": "identity", "X-Pixie-Run-Id": self._visit.run_id}
        return posted, Call("GET", f"/stream?run_id={self._visit.run_id}", None, streamed)

    async def _send(self, call: Call) -> aiohttp.ClientResponse:
        upstream = self._instance.upstream
        if upstream is None:
            raise ConnectionResetError("the instance is gone")
        return await upstream.send(call)

    async def _take(self, answer: aiohttp.ClientResponse | None) -> Answer:
        if answer is None:
            raise ConnectionResetError("there was no answer")
        headers = answers.passed_headers(answer)
        if answers.is_streamed(answer):
            return answers.StreamedAnswer(answer.status, headers, self._chunks(answer, b""))
        body, complete = await answers.read_up_to(answer, self._launcher.config.answer_buffer_bytes)
        if not complete:
            return answers.StreamedAnswer(answer.status, headers, self._chunks(answer, body))
        self._visit.check()
        answers.check_json(answer, body)
        return answers.WholeAnswer(answer.status, headers, body)

    async def _chunks(self, answer: aiohttp.ClientResponse, head: bytes) -> AsyncIterator[bytes]:
        if head:
            yield head
        try:
            async for chunk in answer.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            self._visit.check()
            raise await self._broken(error) from error
        self._visit.check()

    async def _broken(self, error: Exception) -> PxError:
        """Find out why the conversation broke: did the instance end, or only this answer, or was it us?"""
        if isinstance(error, OSError) and error.errno in SHORT:
            return OverloadedError(
                f"pxd has no file descriptor left to reach {self._spec.unit} with.",
                hint="Ask again later, or raise the limit on open files (`ulimit -n`); see `pxctl doctor`.",
                unit=self._spec.unit,
                retry_after_seconds=1,
            )
        await self._visit.wait_for_end()
        self._visit.check()
        ended = self._instance.ended
        if ended is not None:
            return failure.died_during_run(self._spec, ended)
        return failure.bad_answer(self._spec, _what_broke(error), await self._launcher.tails.of(self._instance))


def _what_broke(error: Exception) -> str:
    match error:
        case answers.NotJsonError():
            return f"answered with a JSON content type, but not with JSON ({error})"
        case aiohttp.ClientPayloadError() | aiohttp.ClientOSError() | ConnectionError():
            return "closed the connection in the middle of its answer"
        case aiohttp.ServerDisconnectedError():
            return "closed the connection without an answer"
        case aiohttp.ClientResponseError():
            return f"answered with something that is not HTTP ({str(error.message)[:200]})"
        case _:
            return f"gave no answer ({type(error).__name__}: {str(error)[:200]})"


def make_room(folder: Path, run_id: str, retain: int) -> Path:
    """Make the directory of a run below its tool's folder, and remove the oldest beyond `retain`."""
    directory = folder / run_id
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    others = [(_age(each), each) for each in folder.iterdir() if each != directory and each.is_dir()]
    for _, old in sorted(others, reverse=True)[max(0, retain - 1) :]:
        shutil.rmtree(old, ignore_errors=True)
    return directory


def _age(directory: Path) -> float:
    try:
        return directory.stat().st_mtime
    except OSError:
        return 0.0
