"""What starts pipes by itself: the loop that asks which are due, and events.

Times. The loop is started only when the API listens (G1). It sleeps until something is due; a pipe
is asked again only when what is known of it changed or its time has come. One that cannot be
started or decided is told, tried again later, and holds nobody up. A crash of the loop's body is
logged, counted, shown in `health()`, and the body starts again (E4).

Events. An occurrence of an event starts a pipe once, whichever of its patterns fit: the claim is
(pipe, event, key), written in the transaction of the row. A pipe never starts itself, and an event
does not come back to a pipe that had a part in causing it; what waits for a busy pipe is bounded.
Ends of pipes, tools that fail and files that change (`file_changed:PATH`) are heard here. What is
watched is what some pipe names, no more (`watching`); a change is told once the file is whole, and
named by path, time and size, so that one told twice starts a pipe once.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import tzinfo
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any

import structlog
from msgspec import structs

from supervisord_py.errors import ConflictError, PxError
from supervisord_py.ledger.pipes import Claim, ErrorType, Execution, Group, Status, Trigger
from supervisord_py.pipes.definition import FILE_CHANGED
from supervisord_py.pipes.due import Due, Now, Progress, Wait, decide
from supervisord_py.pipes.executions import Executions
from supervisord_py.pipes.models import PipeDefinition, PublishedEvent
from supervisord_py.pipes.run import Run
from supervisord_py.pipes.schedule import At, Calendar, Cron
from supervisord_py.pipes.watching import Root, Watches
from supervisord_py.process.events import Event

SLEEP_SECONDS = 60.0  # longest sleep: not everywhere a jump of a clock is told
CRASH_SECONDS = 0.5  # until a loop that crashed is started again; doubled by each crash
RETRY_SECONDS = 30.0  # until a pipe that could not be decided or started is asked again
# the wall clock and the one that counts suspend are read one after the other
_SLACK_SECONDS = 0.001
_BREATH = 50  # so many decisions, and others of the control plane get their turn
_log = structlog.get_logger(__name__)


class Timetable:
    """Asks which of the room's pipes are due, and has them started."""

    def __init__(self, room: Executions) -> None:
        self._room = room
        self._asked: dict[str, tuple[PipeDefinition, Progress, float]] = {}
        """Of each pipe, what was known when it was asked, and when to ask it again (boottime)."""
        self._jumps = 0
        self._zone = room.watch.zone
        self.alive = False
        self.restarts = 0  # how often it crashed, and why the last time
        self.last_error: str | None = None

    async def run(self) -> None:
        while True:
            try:
                self.alive = True
                while True:
                    self._room.due_bell.clear()
                    seconds = await self.turn()
                    with suppress(TimeoutError):
                        # wait_for may lose a cancel to the bell (Python 3.11)
                        async with asyncio.timeout(seconds):
                            await self._room.due_bell.wait()
            except Exception as err:
                self.restarts += 1
                self.last_error = f"{type(err).__name__}: {err}"
                _log.exception("scheduler_crashed", restarts=self.restarts)
            finally:
                self.alive = False
            # no bell: a crash may be its echo
            await asyncio.sleep(CRASH_SECONDS * 2 ** min(self.restarts, 7))

    async def turn(self) -> float:
        """Look once, start what is due; return the seconds to sleep, at most `SLEEP_SECONDS`."""
        watch, states = self._room.watch, self._room.states
        watch.look()
        if watch.zone != self._zone:
            zone_before = self._zone
            self._zone = watch.zone
            self._leave_zone(zone_before)
        now, before = self._room.now(), self._asked if watch.jumps == self._jumps else {}
        self._asked, self._jumps = {}, watch.jumps
        for at, pipe in enumerate(self._candidates(), 1):
            progress, known = states.progress(pipe.name), before.get(pipe.name)
            deadline = (
                known[2] if known and known[0] is pipe and known[1] == progress else -math.inf
            )
            if deadline <= now.boottime:
                deadline = await self._attend(pipe, now)
            if not at % _BREATH:
                await asyncio.sleep(0)
            self._asked[pipe.name] = pipe, progress, deadline
        deadline = (
            min((deadline for *_, deadline in self._asked.values()), default=math.inf)
            + _SLACK_SECONDS
        )
        return min(max(deadline - self._room.now().boottime, 0.0), SLEEP_SECONDS)

    def _leave_zone(self, before: tzinfo) -> None:
        """Have times of day begin anew in another zone: what its clock has passed there was not
        missed.

        What was due by the clock of the zone `before` is still made good. A single time comes to
        pass in any zone.
        """
        states = self._room.states
        now = structs.replace(self._room.now(), zone=before)
        for pipe in self._room.usable():
            if not isinstance(pipe.schedule, Cron | Calendar) or pipe.schedule.timezone is not None:
                continue
            standing = decide(pipe.schedule, states.progress(pipe.name), now)
            if isinstance(standing, Wait):
                served = states.get(pipe.name).last_due or 0.0
                states.change(pipe.name, last_due=max(served, self._room.clocks.moment()))

    def _candidates(self) -> Iterator[PipeDefinition]:
        """Yield the pipes that may be started by time, as they are when their turn comes."""
        room = self._room
        for pipe in room.usable() if room.config.enabled and not room.is_ending else ():
            # Who was not taken in yet (no anchor) would be decided about, and then be taken for
            # new.
            is_known = (
                room.states.get(pipe.name).anchor_at is not None
                and room.definition_of(pipe.name) is pipe
            )
            # What is on its way out of the line would be taken for a run that keeps the next one
            # waiting.
            is_leaving = any(run.is_leaving_line for run in room.of_pipe(pipe.name))
            if is_known and room.states.is_enabled(pipe) and not is_leaving:
                yield pipe

    async def _attend(self, pipe: PipeDefinition, now: Now) -> float:
        """Start a pipe if it is due; return when to ask again."""
        states = self._room.states
        try:
            found = self._room.decision(pipe)
            if isinstance(found, Due):
                states.decided(pipe.name, await self.start(pipe, found))
                return -math.inf  # at once, about its next one
            return now.boottime_of(found.until) if isinstance(found, Wait) else math.inf
        except Exception as err:
            _log.warning("schedule_failed", unit=f"pipe:{pipe.name}", exc_info=err)
            what = f"could not be decided or started: {type(err).__name__}: {err}"
            states.decided(pipe.name, f"{what}; tried again in {RETRY_SECONDS:.0f} s")
            return now.boottime + RETRY_SECONDS

    async def start(self, pipe: PipeDefinition, due: Due) -> str:
        """Queue a pipe that is due, or skip it; return why.

        One due time starts it once, whatever crashes in between: the watermark is of the row's
        transaction.
        """
        room, states = self._room, self._room.states
        chosen, warnings = await room.choose(pipe)
        if at_work := room.of_pipe(pipe.name):
            states.change(pipe.name, last_due=due.at)
            return f"{_at_work(room, at_work[0])}; skipped"
        change: dict[str, Any] = {
            "last_due": due.at,
            "occurrences": states.get(pipe.name).occurrences + 1,
        }
        if isinstance(pipe.schedule, At):
            change |= {"enabled": False, "enabled_file": pipe.enabled}
        trigger = {"trigger": Trigger.SCHEDULED, "group": Group.SCHEDULED}
        await room.enqueue(pipe, chosen, [trigger], warnings=warnings, **change)
        return due.why


def _at_work(room: Executions, run: Run) -> str:
    """Say what the execution is at that keeps the next one of its pipe from being queued."""
    if run.execution.status is Status.RUNNING:
        return f"still running: execution {run.id}"
    obstacle = room.waits_for(run)
    return f"still waiting: execution {run.id}" + (f", for {obstacle}" if obstacle else "")


# -- which pattern fits, and what is a loop --------------------------------------------------------

# in a pipe's folder, what the pipe itself or its owner writes: no news to it
_OWN = ("pipe.md", "output", ".env")


def matches(pattern: str, event: PublishedEvent, folder: str) -> bool:
    """Say whether the event is one of the pattern's.

    `folder` is the pipe's: its relative paths begin there.
    """
    name, _, subject = pattern.partition(":")
    if name != event.name:
        return False
    happened = event.subject or ""
    if name == FILE_CHANGED:
        is_own = any(f"{happened}/".startswith(f"{folder}/{each}/") for each in _OWN)
        meant = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        pieces = re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", _absolute(subject, folder))
        expression = "".join(meant.get(piece) or re.escape(piece) for piece in pieces)
        return not is_own and re.fullmatch(expression, happened, re.DOTALL) is not None
    return fnmatchcase(happened, subject or "*")


def watch_root(subject: str, folder: str) -> tuple[str, bool]:
    """Return the deepest folder that holds everything that `file_changed:SUBJECT` can mean, and
    whether all below.
    """
    whole = _absolute(subject, folder)
    parents = takewhile(
        lambda part: "*" not in part and "?" not in part, PurePosixPath(whole).parts[:-1]
    )
    path = str(PurePosixPath(*parents))
    return path, "**" in whole or "/" in whole.removeprefix(path).strip("/")


def _absolute(subject: str, folder: str) -> str:
    """Return the path of a pattern, `.` and `..` resolved by name; what ends with a slash is all
    below that folder.
    """
    whole = os.path.normpath(os.path.join(folder, subject))
    return f"{whole}/**".replace("//", "/") if subject.endswith("/") else whole


# -- who is started --------------------------------------------------------------------------------

TOOL_FAILURES = frozenset(("died", "start_failed", "run_failed"))
WAITING_MAX = 64  # events that wait for a busy pipe; more are refused
# so often it is looked whether folders that are named have come to be, or a listener has died
LOOK_SECONDS = 2.0


class Triggers:
    """Starts pipes for events, and hears of those that happen here."""

    def __init__(self, room: Executions) -> None:
        self._room = room

    async def publish(
        self, published: PublishedEvent, cause: int | None = None, source: Execution | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        """Start every enabled pipe that waits for an event, once each; `source` is the execution
        that caused it.

        Returns `claimed`: pipes that it starts, and their executions; `suppressed`: those that it
        does not, and why.
        """
        before = (
            (source.plan.context or {}).get("chain", ())
            if source is not None and source.trigger_event
            else ()
        )
        chain = (*before, source.pipe_name) if source is not None else ()
        event = published._replace(key=published.key or uuid.uuid4().hex, chain=chain)
        found: dict[str, list[dict[str, Any]]] = {"claimed": [], "suppressed": []}
        for definition in self._room.listening:
            if not any(matches(each, event, str(definition.folder)) for each in definition.events):
                continue
            try:
                run = await self._start(definition, event, cause)
                found["claimed"].append({"pipe": definition.name, "execution": run.id})
            except PxError as error:
                found["suppressed"].append({"pipe": definition.name, "why": error.detail})
                _log.info(
                    "pipe_event_suppressed",
                    pipe=definition.name,
                    event_name=event.text,
                    why=error.detail,
                )
        return found

    async def _start(
        self, definition: PipeDefinition, event: PublishedEvent, cause: int | None
    ) -> Run:
        """Queue a pipe for an event; PxError: why not."""
        room, name, key = self._room, definition.name, event.key or ""
        if why := self._refusal(definition, event):
            raise ConflictError(why)
        context = {"event": event.text, "key": key, "data": event.facts}
        trigger = {
            "trigger": Trigger.EVENT,
            "group": Group.EVENT,
            "trigger_event": event.text,
            "trigger_key": key,
            "context": {**context, "chain": event.chain} if event.chain else context,
        }
        chosen, warnings = await room.choose(definition)
        claim = Claim(name, event.text, key, room.clocks.moment())
        for run in await room.enqueue(
            definition, chosen, [trigger], claim=claim, cause=cause, warnings=warnings
        ):
            room.states.decided(name, f"started by the event {event.text}: execution {run.id}")
            return run
        raise ConflictError("it has taken this event before")

    def _refusal(self, definition: PipeDefinition, event: PublishedEvent) -> str | None:
        room, name = self._room, definition.name
        waiting = room.queued(name)
        if room.is_ending:
            return "the daemon is stopping"
        if not room.config.enabled:
            return "pipes do not start by themselves here (pipes.enabled)"
        if not room.states.is_enabled(definition):
            return "it is disabled"
        if len(waiting) >= WAITING_MAX:
            return f"{len(waiting)} of its executions wait already"
        if event.name == FILE_CHANGED and any(
            it.execution.trigger_event == event.text for it in waiting
        ):
            return f"execution {waiting[0].id} waits already, and will see the change"
        if name not in event.chain:
            return None
        why = f"it had a part in it: {' -> '.join((*event.chain, name))}"
        # whoever made a ring has to learn of it; that none starts itself is no news
        if event.chain[-1] != name:
            room.states.decided(name, f"not started by {event.text}: {why}")
        return why

    async def announce(self, run: Run) -> None:
        """Tell other pipes of an end that nothing follows."""
        it = run.execution
        if run.goes_on or it.status is Status.CANCELLED or it.error_type is ErrorType.SHUTDOWN:
            return
        name = "pipe_completed" if it.status is Status.COMPLETED else "pipe_failed"
        facts = {
            "execution": it.id,
            "status": it.status.value,
            "error_type": None if it.error_type is None else it.error_type.value,
            "error_message": it.error_message,
            "output_dir": it.output_dir,
        }
        await self.publish(PublishedEvent(name, it.pipe_name, str(it.id), facts), run.event, it)

    # -- where they come from ----------------------------------------------------------------------

    def hear(self, item: Event) -> None:
        """Turn a tool's failure into an event of pipes."""
        kind, _, name = (item.unit or "").partition(":")
        if item.event in TOOL_FAILURES and kind == "tool":
            facts = {"reason": item.reason, "instance": item.instance, **item.facts}
            # A process that dies in a run is one failure, told by two events.
            is_end = item.event == "died" or bool(item.facts.get("instance_ended"))
            key = item.instance if is_end and item.instance else str(item.id)
            self._room.task(self.publish(PublishedEvent("tool_failed", name, key, facts), item.id))

    async def hear_files(self) -> None:
        """Turn changes of files into events, until cancelled."""
        loop = asyncio.get_running_loop()
        changed: asyncio.Queue[str] = asyncio.Queue()

        def report(path: str) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.put_nowait, path)

        watches = Watches(report)
        publisher = asyncio.create_task(self._publish_changes(changed))
        try:
            while True:
                self._room.listener_bell.clear()
                wanted = frozenset(
                    Root(*watch_root(pattern.removeprefix(f"{FILE_CHANGED}:"), str(pipe.folder)))
                    for pipe in self._room.listening
                    for pattern in pipe.events
                    if pattern.startswith(f"{FILE_CHANGED}:") and self._room.states.is_enabled(pipe)
                )
                await asyncio.to_thread(watches.want, wanted)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS if wanted else None):
                        await self._room.listener_bell.wait()
        finally:
            watches.stop()
            publisher.cancel()
            await asyncio.gather(publisher, return_exceptions=True)

    async def _publish_changes(self, changed: asyncio.Queue[str]) -> None:
        while True:
            path = await changed.get()
            key = await asyncio.to_thread(_file_key, path)
            if key is not None:
                try:
                    await self.publish(PublishedEvent(FILE_CHANGED, path, key, {"path": path}))
                except Exception as error:  # the next change is told all the same
                    _log.warning("file_change_not_told", path=path, exc_info=error)


def _file_key(path: str) -> str | None:
    """Name an occurrence by how a file stands; None where there is none. Blocking."""
    with suppress(OSError):
        stat = os.stat(path)
        if not os.path.isdir(path):
            return f"{path}:{stat.st_mtime_ns}:{stat.st_size}"
    return None
