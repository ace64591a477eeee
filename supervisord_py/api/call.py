"""One request on its way to an answer, and the few mutable things that a running API has.

Law: work that must not die with its client (a stop, a pin) runs as a task of `Live`; everything else ends when the
client goes.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import structlog
from aiohttp import web

from supervisord_py.api.cpu import CpuSamples
from supervisord_py.api.held_calls import HeldCalls
from supervisord_py.api.json_text import json_bytes
from supervisord_py.api.metrics import PipeCounts, UnitCounts
from supervisord_py.api.names import resolve, resolve_one
from supervisord_py.api.pipe_units import PipeState
from supervisord_py.errors import BadRequestError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from supervisord_py.api.context import ApiContext
    from supervisord_py.api.idempotency import Copy
    from supervisord_py.api.parameters import Arguments
    from supervisord_py.kernels.session import SessionView
    from supervisord_py.process.model import Reason
    from supervisord_py.tools.catalog import Entry
    from supervisord_py.tools.service import ToolState

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_LAST_CHANCE_SECONDS = 10.0


@dataclass(slots=True)
class Live:
    """What changes while the API runs.

    Attributes:
        closing: Set when followed streams must end.
        requests: Answers by route and status, for `/api/metrics`.
        tools: Counts of starts and evictions, from the event stream.
        kernels: The same of kernels.
        pipes: Counts of executions, from the event stream.
        cpu: The last CPU sample of each instance.
        channels: Open WebSockets of Jupyter's clients by session.
        held: Work whose client may come back.
    """

    closing: asyncio.Event = field(default_factory=asyncio.Event)
    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    tools: UnitCounts = field(default_factory=UnitCounts)
    kernels: UnitCounts = field(default_factory=UnitCounts)
    pipes: PipeCounts = field(default_factory=PipeCounts)
    cpu: CpuSamples = field(default_factory=CpuSamples)
    channels: Counter[str] = field(default_factory=Counter)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    held: HeldCalls = field(init=False)
    _left: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Begin to hold."""
        self.held = HeldCalls(self.leave, self.closing)

    def leave(self, work: asyncio.Task[Any]) -> None:
        """Let go of work whose owner ends it: we neither wait for it nor cancel it."""
        self._left.add(work)
        work.add_done_callback(self._left.discard)
        work.add_done_callback(_tell_failure)

    async def outlive_client(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, which goes on when the client does not wait for it."""
        task = self._begin(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_tell_failure)
            raise

    def detach(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin `work` that nobody waits for."""
        self._begin(work).add_done_callback(_tell_failure)

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self) -> None:
        """Give work without a client a last chance, then cancel it."""
        self.held.close()
        tasks = set(self._tasks)
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=_LAST_CHANCE_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


def _tell_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.info("detached_work_failed", error=str(task.exception()))


class UnitState(Protocol):
    """What tools, kernels and pipes have in common when somebody asks how they are."""

    @property
    def unit(self) -> str: ...  # `kind:name`
    @property
    def state(self) -> str: ...  # a word of the kind's own list
    @property
    def reason(self) -> Reason | str | None: ...  # why the last life ended
    @property
    def instance(self) -> str | None: ...  # the life that goes on
    @property
    def failure(self) -> Mapping[str, Any] | None: ...  # problem document


@dataclass(frozen=True, slots=True)
class Call:
    """One request with everything that its route may use.

    Attributes:
        copy: Takes what an answer written piece by piece consists of, for replay; None when nobody will ask again.
    """

    request: web.Request
    context: ApiContext
    live: Live
    arguments: Arguments
    copy: Copy | None = None

    @property
    def wanted(self) -> str | None:
        """The Accept header."""
        return self.request.headers.get("Accept")

    def path(self, name: str) -> str:
        """Return a part of the path, decoded."""
        return self.request.match_info[name]

    def units(self) -> list[str]:
        """Return every unit that can be named: tools, those held though their folder is gone, kernels, pipes."""
        held = (state.unit for state in self.context.launcher.snapshot(None))
        return sorted({*self.entries(), *held, *self.sessions(), *self.pipes()})

    def entries(self) -> dict[str, Entry]:
        """Return the catalog by unit. Of two folders with one name the first counts, as in a start."""
        found: dict[str, Entry] = {}
        for entry in self.context.catalog.entries():
            found.setdefault(f"tool:{entry.name}", entry)
        return found

    def states(self) -> dict[str, ToolState]:
        """Return what the launcher knows, by unit."""
        return {state.unit: state for state in self.context.launcher.snapshot(None)}

    def sessions(self) -> dict[str, SessionView]:
        """Return every session of kernels by unit, remembered ones included."""
        return {view.unit: view for view in self.context.kernels.snapshot()}

    def pipes(self) -> dict[str, PipeState]:
        """Return every pipe by unit."""
        return {f"pipe:{view.name}": PipeState(view) for view in self.context.pipes.snapshot()}

    def unit_states(self) -> dict[str, UnitState]:
        """Return what is known of tools, kernels and pipes, by unit."""
        return {**self.states(), **self.sessions(), **self.pipes()}

    def second_names(self) -> dict[str, str]:
        """Return the sessions' names by unit; a remembered one gives its name up to a living one."""
        sessions = self.sessions()
        living = {view.key.name for view in sessions.values() if view.state != "stopped"}
        return {
            unit: view.key.name
            for unit, view in sessions.items()
            if view.state != "stopped" or view.key.name not in living
        }

    def resolve_unit(self, name: str) -> str:
        """Return the single unit that a name means."""
        return resolve_one(name, self.units(), self.second_names())

    def unit(self) -> str:
        """Return the single unit that `{u}` of the path means."""
        return self.resolve_unit(self.path("u"))

    def named_units(self, parameter: str) -> tuple[str, ...]:
        """Return the units that a repeated parameter means; all but remembered kernels when it was not given."""
        patterns = self.arguments.texts(parameter)
        if patterns:
            return resolve(patterns, self.units(), self.second_names())
        sessions = self.sessions()
        return tuple(unit for unit in self.units() if unit not in sessions or sessions[unit].state != "stopped")

    async def body(self) -> dict[str, Any]:
        """Return the JSON object of the body.

        Raises:
            BadRequestError: It is no JSON, or no object.
            TooLargeError: It is over the limit.
        """
        value = parse_json(await self.request.read())
        if not isinstance(value, dict):
            raise BadRequestError("The body must be a JSON object.", hint='for example {"name": "my-tool"}')
        return value

    async def body_if_any(self) -> dict[str, Any]:
        """Return the JSON object of a body that may be left out: {} then.

        Whether there is one is asked of the bytes: `can_read_body` says no of one that was read before.
        """
        return await self.body() if await self.request.read() else {}


def parse_json(raw: bytes) -> Any:
    """Parse a body.

    Raises:
        BadRequestError: It is no JSON; `line` and `column` say where.
        InvalidInputError: A text in it is no Unicode text.
    """
    if not raw:
        raise BadRequestError("The body is empty; it must be JSON.", hint="send a JSON body, for example {}")
    try:
        document = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise BadRequestError(
            f"The body is no JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
            hint="check the quotes and commas there",
            line=error.lineno,
            column=error.colno,
        ) from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadRequestError(f"The body is no JSON: {error}.", hint="send UTF-8 JSON (RFC 8259)") from error
    if b"\\ud" in raw.lower() and not _is_unicode(document):
        message = "There is half of a surrogate pair in the body, which is no Unicode text."
        hint = "escape it where the text is made: \\ud800 cannot be stored or run as UTF-8"
        raise InvalidInputError(message, hint=hint, errors=[{"pointer": "", "message": message}])
    return document


def _is_unicode(document: Any) -> bool:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def json_answer(document: Any, *, status: int = 200) -> web.Response:
    """Return a JSON answer, compact, UTF-8, never with NaN."""
    return web.Response(status=status, body=json_bytes(document), content_type="application/json")


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end, whatever it is; a cancellation of the caller still gets through."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
