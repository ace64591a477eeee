"""One life of one process of a unit: never restarted, only replaced. What is wanted of it and what
is observed.

`wanted` is why it is to end, set by users and policies; everything else is observed. *Up* (`child`)
and *ready* (`ready_at`) are two facts. The phases go one way: starting, ready, stopping, cold.

Law: every end has one reason of CONTRACT §7: what the killer wrote down before it signalled, else
what was wanted, else *early_exit* when it never was ready, else how it ended. An exit code alone
never names a limit.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

import msgspec

from supervisord_py.errors import PxError
from supervisord_py.ledger.instances import INSTANCES, InstanceRow, ended
from supervisord_py.ledger.table import Operation
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.model import Child, ChildSpec, ExitRecord, Reason, StopReport, Verdict


class Phase(StrEnum):
    """Where an instance is, and so its unit.

    Busy is not a phase: it is `READY` with requests in flight.
    """

    # nothing is left of it, or its keeper is lost and nothing more can be done about it
    COLD = "cold"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    v: int  # version; another one is not understood, and the child is stopped
    ready: bool = False  # it had become ready
    stopping: Reason | None = None  # why it was being stopped
    digest: str = ""  # of the declaration it was started from
    own: dict[str, Any] = {}  # what its driver adds


NOTE_VERSION = 2


def read_note(text: str) -> Note | None:
    """Read a note; None when it is none of ours or of another version."""
    try:
        note = msgspec.json.decode(text, type=Note)
    except msgspec.MsgspecError:
        return None
    return note if note.v == NOTE_VERSION else None


def stopping_tag(tag: str, note: Note | None, reason: Reason) -> str:
    """Return the text of a note with the reason of a stop added; a note that is not understood
    stays as it is.
    """
    if note is None:
        return tag
    return msgspec.json.encode(msgspec.structs.replace(note, stopping=reason)).decode()


class End:
    """How an instance ended: the reason, the exit record (None where there never was a process),
    its last words.
    """

    def __init__(
        self, reason: Reason, record: ExitRecord | None = None, stderr_tail: str = ""
    ) -> None:
        self.reason = reason
        self.record = record
        self.stderr_tail = stderr_tail
        self.code = record.code if record else None
        self.signal = record.signal if record else None

    def facts(self) -> dict[str, Any]:
        found = self.record.verdict if self.record else None
        verdict = {"verdict": msgspec.to_builtins(found)} if found else {}
        how = {"reason": self.reason.value, "code": self.code, "signal": self.signal}
        return {**how, **verdict, "stderr_tail": self.stderr_tail}


class Instance:
    """One instance. Drivers add their own facts in a subclass."""

    # what events of the mechanism are called; "" for those that are not told
    words: ClassVar[Mapping[str, str]] = {}
    logged: ClassVar[bool] = True  # its output is in its unit's log

    def __init__(self, key: str, unit: str, *, digest: str = "", stop_seconds: float = 5.0) -> None:
        self.key = key  # its id, fresh from `KeeperClient.new_key`
        self.unit = unit  # `kind:name`
        self.digest = digest  # of the declaration it is started from
        self.stop_seconds = stop_seconds  # between SIGTERM and SIGKILL
        self.phase = Phase.STARTING
        self.started_at = time.time()
        self.asked_at = asyncio.get_running_loop().time()  # when the start was decided
        self.ready_at: float | None = None  # Unix seconds
        self.start_method = "spawn"
        self.port = 0  # where it listens on 127.0.0.1, 0 for nowhere
        self.is_ours = True  # one that another server runs has no row, and ends as its driver says
        # of what it is blamed for; what it wrote to stderr before says nothing
        self.words_since: float | None = None
        # the keeper's note on one that is adopted only to be stopped
        self.kept_tag: str | None = None
        self.event: int | None = None  # id of the newest event about it: the cause of the next one
        self.child: Child | None = None
        self.wanted: Reason | None = None  # why it is to end; None while it is to live
        self.record: ExitRecord | None = None  # how its leader ended, once that is known
        self.end: End | None = None  # the same with reason and evidence
        self.error: PxError | None = None  # why it never became ready
        self.report = StopReport()  # what the last stop left
        self.life: asyncio.Task[None] | None = None
        self.over = asyncio.Event()  # `end` is known
        self.stopped = asyncio.Event()  # nothing is left of it, or something has survived a stop

    @property
    def kind(self) -> str:
        return self.unit.partition(":")[0]

    @property
    def name(self) -> str:
        return self.unit.partition(":")[2]

    @property
    def pid(self) -> int | None:
        return self.child.identity.pid if self.child else None

    @property
    def died(self) -> bool:
        """Whether it had been ready and ended unasked."""
        return self.wanted is None and self.error is None

    def own_note(self) -> dict[str, Any]:
        """Return what the driver wants to be told by the note; JSON values."""
        return {}

    def note(self) -> str:
        note = Note(
            NOTE_VERSION, self.ready_at is not None, self.wanted, self.digest, self.own_note()
        )
        return msgspec.json.encode(note).decode()

    def facts(self) -> dict[str, Any]:
        """Return what is told with every event about it; JSON values."""
        return {}

    # -- its row: what writes it down --------------------------------------------------------------

    def starting(self) -> Operation:
        how: dict[str, Any] = {
            "start_method": self.start_method,
            "port": self.port or None,
            "spec_digest": self.digest,
        }
        return INSTANCES.insert(InstanceRow(self.key, self.unit, self.started_at, **how))

    def spawned(self, child: Child) -> Operation:
        who = {**msgspec.structs.asdict(child.identity), "start_method": self.start_method}
        return INSTANCES.update(
            self.key, started_at=child.started_at, log_position=child.log_position, **who
        )

    async def ended(self) -> Operation:
        """Return what writes down how it ended: nothing of it is left, and the keeper has not
        forgotten it yet.
        """
        record, reason = self.record, self.decide_end("").reason.value
        if record is None:
            return ended(self.key, time.time(), reason)
        names = ("code", "signal", "max_rss_bytes", "memory_peak_bytes", "log_end")
        facts = {name: getattr(record, name) for name in names} | {
            "verdict": msgspec.to_builtins(record.verdict)
        }
        facts["cpu_seconds"] = record.user_seconds + record.system_seconds
        return ended(self.key, record.ended_at, reason, **facts)

    # -- how its process is reached: by the keeper, where its driver knows nothing better ----------

    async def spawn(self, placement: KeeperClient, spec: ChildSpec) -> Child:
        return await placement.spawn(self.key, spec)

    async def annotate(self, placement: KeeperClient) -> None:
        tag = self.note() if self.kept_tag is None else self.kept_tag
        await placement.ask("annotate", key=self.key, tag=tag)

    async def shut_down(self, placement: KeeperClient) -> StopReport:
        word = (self.wanted or Reason.EXIT).value
        return await placement.stop(self.key, grace_seconds=self.stop_seconds, reason=word)

    # -- its end -----------------------------------------------------------------------------------

    def decide_end(self, stderr_tail: str) -> End:
        """Decide how it ended, once: what made the start fail, else what the record and the wish
        say.
        """
        if self.end is None:
            if self.error is not None:
                reason = reason_of(self.error)
                stderr_tail = stderr_tail or str(self.error.extra.get("stderr_tail", ""))
            elif self.record is None:
                reason = self.wanted or (Reason.INTERRUPTED if self.is_ours else Reason.EXIT)
            else:
                reason = outcome(self.record, self.wanted, self.ready_at is not None)
            self.end = End(reason, self.record, stderr_tail)
            self.over.set()
        return self.end


def reason_of(error: PxError) -> Reason:
    """Return the reason that the error of a failed start carries."""
    try:
        return Reason(str(error.extra.get("reason", "")))
    except ValueError:
        return Reason.INTERRUPTED if error.kind == "keeper_lost" else Reason.SPAWN_FAILED


# -- why it ended, from its exit record: pure ------------------------------------------------------

LIMITS = {
    Reason.MEMORY_LIMIT: "over its memory limit",
    Reason.OOM_KILL: "out of memory",
    Reason.CPU_LIMIT: "CPU limit reached",
}
"""What the keeper and the kernel enforce, in words."""


def outcome(record: ExitRecord, wanted: Reason | None, ready: bool) -> Reason:
    if record.verdict is not None:
        return record.verdict.reason
    if wanted is not None:
        return wanted
    if not ready:
        return Reason.EARLY_EXIT
    return Reason.EXIT if record.signal is None else Reason.SIGNAL


def signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def describe(record: ExitRecord, verdict: Verdict) -> str:
    """Return one sentence for people about an end by a limit: how it ended, by whom, and what is
    known about why.
    """
    by = "pxd's memory watchdog" if verdict.by == "watchdog" else "the kernel"
    sizes = [f"{verdict.rss_bytes / 1048576:.0f} MiB resident"] if verdict.rss_bytes else []
    sizes += [f"limit {verdict.limit_bytes / 1048576:.0f} MiB"] if verdict.limit_bytes else []
    if verdict.reason is Reason.CPU_LIMIT:
        sizes = [f"{record.user_seconds + record.system_seconds:.1f} s used"]
    why = ": ".join([LIMITS[verdict.reason], *filter(None, [", ".join(sizes)])])
    how = (
        f"exited with code {record.code}"
        if record.signal is None
        else f"killed by {signal_name(record.signal)}"
    )
    return f"{how} by {by} ({why}), after {max(0.0, record.ended_at - record.started_at):.1f} s"
