"""From what the keeper logged of a child to the files of its execution, and to what its agent meant. Blocking.

Law: bytes go from the log to the files once and in order. What the notes (`progress`) say is on disk is on disk; what
was written after them is cut away by a successor and written again from the log, to the same bytes. Nothing is acked
to the keeper before it is in the notes. A full disk stops the reading (and with it, by and by, the child), no loop.
"""

from __future__ import annotations

import base64
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.room_requests import OutputStream
from supervisord_py.pipes.running.spool import Utf8Check
from supervisord_py.pipes.secrets import Redactor, redact
from supervisord_py.pipes.vendor_streams import parser_for
from supervisord_py.process.logs import Chunk, Cursor, Gap, Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.pipes.running.log_blots import LogBlots
    from supervisord_py.pipes.running.spool import Spool
    from supervisord_py.pipes.streams import Parsed, Summary
    from supervisord_py.process.logs import LogReader

STEP_BYTES = 256 * 1024
NOTE_BYTES = 1024 * 1024
"""So much is read at most before it is noted down."""
NOTE_SECONDS = 0.2
_RAW = {Stream.STDOUT: OutputStream.STDOUT, Stream.STDERR: OutputStream.STDERR}
VERSION = 2


@dataclass(frozen=True, slots=True)
class Veiled:
    """What is struck out of everything that is stored."""

    secrets: tuple[str, ...] = field(default=(), repr=False)
    patterns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class News:
    """What one step found.

    Attributes:
        moved: Bytes were taken from the log, or put into the files.
        at_end: There was nothing more in the log at that moment, and all that was read is in the files.
        trouble: Why the disk takes nothing at present.
    """

    moved: bool
    at_end: bool
    trouble: str | None = None


class Transcript:
    """One execution's output.

    Args:
        spool: Its files.
        reader: Its unit's log.
        start: Where in the log its child begins.
        parser: Name of the output format.
        veiled: What must not be stored.
        blots: Takes the same out of the log, once it is safe in the files; None leaves the log as it is.
    """

    def __init__(
        self,
        spool: Spool,
        reader: LogReader,
        start: int,
        parser: str,
        veiled: Veiled,
        blots: LogBlots | None = None,
    ) -> None:
        self.spool = spool
        self._reader = reader
        self._cursor = Cursor(start)
        self._parser_name = parser
        self._parser = parser_for(parser)
        self._veiled = veiled
        self._blots = blots
        self._veils = {stream: Redactor(veiled.secrets, veiled.patterns) for stream in OutputStream}
        self._checks = {stream: Utf8Check() for stream in Stream}
        self._waiting: deque[tuple[OutputStream, bytes]] = deque()
        """Made of what was read, and not in the files yet."""
        self._noted = start
        self._noted_at = 0.0
        self._lost = 0
        self.ended = False

    @property
    def summary(self) -> Summary:
        """What the agent's stream came to so far."""
        return self._parser.summary

    @property
    def lost_bytes(self) -> int:
        """Bytes that can be read nowhere: gone from the log, not taken by the disk, or over the cap of their file."""
        return self._lost + self.spool.over_cap

    @property
    def is_utf8(self) -> bool:
        """Whether both streams are UTF-8 so far."""
        return all(check.is_valid for check in self._checks.values())

    def veil(self, text: str | None) -> str | None:
        """Return a text that can be stored."""
        return None if text is None else redact(text, self._veiled.secrets, self._veiled.patterns)

    # -- going on ----------------------------------------------------------------------------------------------------

    def resume(self, notes: Mapping[str, Any] | None) -> None:
        """Go on where the notes of an earlier control plane end; where there are none, from the beginning."""
        if notes is None or notes.get("v") != VERSION:
            self.spool.resume({}, {})
            return
        self._cursor = Cursor(*notes["cursor"])
        self._noted = self._cursor.position
        self.spool.resume(_by_stream(notes["sizes"]), _by_stream(notes["totals"]))
        self._parser = parser_for(self._parser_name, notes["parser"])
        for stream in OutputStream:
            held = base64.b64decode(notes["held"][stream.value])
            self._veils[stream] = Redactor(self._veiled.secrets, self._veiled.patterns, held)
        for each in Stream:
            is_valid, open_bytes = notes["utf8"][each.name]
            self._checks[each] = Utf8Check(base64.b64decode(open_bytes), is_valid=is_valid)
        self._lost = notes["lost"]

    def notes(self) -> dict[str, Any]:
        """Return all that a successor needs: JSON values."""
        return {
            "v": VERSION,
            "cursor": [self._cursor.position, self._cursor.segment, self._cursor.record],
            "sizes": {stream.value: size for stream, size in self.spool.sizes.items()},
            "totals": {stream.value: size for stream, size in self.spool.totals.items()},
            "parser": self._parser.state(),
            "held": {stream.value: base64.b64encode(veil.held).decode() for stream, veil in self._veils.items()},
            "utf8": {
                stream.name: [check.is_valid, base64.b64encode(check.open_bytes).decode()]
                for stream, check in self._checks.items()
            },
            "lost": self._lost,
        }

    # -- reading -----------------------------------------------------------------------------------------------------

    def step(self) -> News:
        """Take the next piece: parse it, write it, note it."""
        moved = bool(self._waiting)
        trouble = self._write()
        if trouble is not None:
            return News(moved=False, at_end=False, trouble=trouble)
        batch = self._reader.read(self._cursor, STEP_BYTES)
        for item in batch.items:
            self._take(item)
        moved = moved or bool(batch.items) or batch.cursor.position != self._cursor.position
        self._cursor = batch.cursor
        trouble = self._write() or (self._note(at_end=batch.at_end) if moved or self._is_behind else None)
        return News(moved, batch.at_end and not self._waiting, trouble)

    @property
    def _is_behind(self) -> bool:
        return self._noted != self._cursor.position

    def _take(self, item: Chunk | Gap) -> None:
        if isinstance(item, Gap):
            self._lost += item.lost_bytes
            return
        self._checks[item.stream].feed(item.data)
        if item.stream is Stream.STDOUT:
            self._meant(self._parser.feed(item.data))
        else:
            self._put(_RAW[item.stream], item.data)

    def _meant(self, parsed: Parsed) -> None:
        self._put(OutputStream.STDOUT, parsed.text)
        self._put(OutputStream.EVENTS, parsed.records)

    def _put(self, stream: OutputStream, data: bytes) -> None:
        ready = self._veils[stream].feed(data)
        if ready:
            self._waiting.append((stream, ready))

    def _write(self) -> str | None:
        """Put into the files what waits; return why that did not go."""
        while self._waiting:
            stream, data = self._waiting[0]
            try:
                self.spool.append(stream, data)
            except OSError as error:
                return str(error)
            self._waiting.popleft()
        return None

    def _note(self, *, at_end: bool) -> str | None:
        """Note how far it is, not too often; return why that did not go."""
        now = time.monotonic()
        is_due = self._cursor.position - self._noted >= NOTE_BYTES or (at_end and now - self._noted_at >= NOTE_SECONDS)
        if not is_due:
            return None
        self._noted_at = now
        trouble = self._note_now()
        if trouble is None and self._blots is not None:
            self._blots.advance(self._noted)
        return trouble

    def _note_now(self) -> str | None:
        try:
            self.spool.save_progress(self.notes())
        except OSError as error:
            return str(error)
        self._noted = self._cursor.position
        return None

    # -- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> str | None:
        """Take the end of the stream, once all was read; return why the rest cannot be written (call it again)."""
        if not self.ended:
            if self._blots is not None and self._is_behind:
                self._note_now()  # what is blotted must never have to be read again
            self.ended = True
            self._meant(self._parser.end())
            for stream, veil in self._veils.items():
                rest = veil.end()
                if rest:
                    self._waiting.append((stream, rest))
            for check in self._checks.values():
                check.end()
        trouble = self._write()
        if trouble is None and self._blots is not None:
            self._blots.finish(self._noted)
        return trouble

    @property
    def position(self) -> int:
        """Up to where the log was read."""
        return self._cursor.position

    def give_up(self, log_end: int = 0) -> None:
        """Count what the disk would not take as lost, up to where the log will end."""
        left = sum(len(data) for _, data in self._waiting)
        self._waiting.clear()
        unread = max(0, max(self._reader.end(), log_end) - self._cursor.position)
        self._lost += left + unread
        if self._blots is not None:
            self._blots.finish(self._noted)


def _by_stream(members: Mapping[str, int]) -> dict[OutputStream, int]:
    return {OutputStream(name): int(size) for name, size in members.items()}
