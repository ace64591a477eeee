"""Every word that an event can have, in which journal it is kept, and which of them are failures.
No I/O.

A journal is a table of the ledger with limits of its own, so that what happens often cannot push
out what is rare: a hundred thousand successful runs leave each start, failure and death where it
is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from supervisord_py.process.model import Reason


class Journal(StrEnum):
    """The tables of events; the value is the table's name."""

    RUNS = "run_events"  # runs and executions that went well, or were cancelled
    LIFE = "events"  # starts, planned ends, what users changed
    FAILURES = "failure_events"  # deaths, failed starts, limits, what went wrong with the daemon
    FAILED_RUNS = "failed_run_events"  # runs, cells and executions that failed


FAILED = (Journal.FAILURES, Journal.FAILED_RUNS)

WORDS: Mapping[str, Journal] = {
    # Instances of all kinds.
    "starting": Journal.LIFE,
    "spawned": Journal.LIFE,
    "ready": Journal.LIFE,
    "adopted": Journal.LIFE,
    "stopping": Journal.LIFE,
    "stopped": Journal.LIFE,
    "start_failed": Journal.FAILURES,
    "died": Journal.FAILURES,
    "interrupted": Journal.FAILURES,
    "survivors": Journal.FAILURES,
    "unassigned": Journal.FAILURES,
    "log_degraded": Journal.FAILURES,
    "log_recovered": Journal.LIFE,
    # Tools.
    "run": Journal.RUNS,
    "run_failed": Journal.FAILED_RUNS,
    "runtime_limit": Journal.FAILURES,
    "unresponsive": Journal.FAILURES,
    "responsive": Journal.LIFE,
    "schema_drift": Journal.LIFE,
    "plain_port": Journal.LIFE,
    "pinned": Journal.LIFE,
    "unpinned": Journal.LIFE,
    "removed": Journal.LIFE,
    # Kernels.
    "preparing": Journal.LIFE,
    "prepared": Journal.LIFE,
    "prepare_failed": Journal.FAILURES,
    "recycled": Journal.LIFE,
    "interrupted_cell": Journal.LIFE,
    "cell_failed": Journal.FAILED_RUNS,
    # Pipes.
    "pipe_added": Journal.LIFE,
    "pipe_changed": Journal.LIFE,
    "pipe_broken": Journal.FAILURES,
    "pipe_mended": Journal.LIFE,
    "pipe_removed": Journal.LIFE,
    "pipe_installed": Journal.LIFE,
    "pipe_enabled": Journal.LIFE,
    "pipe_disabled": Journal.LIFE,
    "execution_queued": Journal.RUNS,
    "execution_started": Journal.RUNS,
    "execution_adopted": Journal.RUNS,
    "execution_settled": Journal.RUNS,
    "execution_completed": Journal.RUNS,
    "execution_cancelled": Journal.RUNS,
    "execution_failed": Journal.FAILED_RUNS,
    "execution_timed_out": Journal.FAILED_RUNS,
    # The daemon.
    "control_started": Journal.LIFE,
    "daemon_stopping": Journal.LIFE,
    "reloaded": Journal.LIFE,
    "reload_refused": Journal.FAILURES,
    "rolled_back": Journal.FAILURES,
    "keeper_lost": Journal.FAILURES,
    "ledger_degraded": Journal.FAILURES,
    "ledger_recovered": Journal.LIFE,
    "ledger_damaged": Journal.FAILURES,
    "ledger_missing": Journal.FAILURES,
    "ledger_rebuilt": Journal.FAILURES,
    "ledger_rows_unreadable": Journal.FAILURES,
    "ledger_wishes_lost": Journal.FAILURES,
}

BAD_REASONS = frozenset({
    Reason.MEMORY_LIMIT, Reason.OOM_KILL, Reason.RUNTIME_LIMIT, Reason.CPU_LIMIT, Reason.WATCHDOG,
    Reason.TIMEOUT, Reason.READINESS_TIMEOUT, Reason.EARLY_EXIT, Reason.SPAWN_FAILED,
    Reason.INTERRUPTED,
})  # fmt: skip
"""Reasons that make an end a failure also where this daemon brought it about."""

DEATHS = (
    "died",
    "start_failed",
    "interrupted",
    "stopped",
    "execution_failed",
    "execution_timed_out",
)
"""Events of the journals of failures by which a life ended; `stopped` is there with a bad reason
only.
"""

GOOD_OUTCOMES = frozenset({"completed", "cancelled"})
"""Outcomes of a run that are no failure of its tool or of its input."""


def journal_of(event: str, reason: str | None, facts: Mapping[str, Any]) -> Journal:
    """Return where an event is kept.

    A word that is not in the table is kept as a failure, which is the longest.
    """
    if event == "run":
        return (
            Journal.RUNS
            if facts.get("outcome", "completed") in GOOD_OUTCOMES
            else Journal.FAILED_RUNS
        )
    journal = WORDS.get(event, Journal.FAILURES)
    if journal is not Journal.LIFE:
        return journal
    was_cut_off = event == "interrupted_cell" and facts.get("why") == "timed_out"
    return Journal.FAILURES if reason in BAD_REASONS or was_cut_off else Journal.LIFE


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are wanted; without anything all of them."""

    units: frozenset[str | None] = frozenset()  # full names; None is the daemon itself
    unit_globs: tuple[str, ...] = ()  # of full names
    words: frozenset[str] | None = None
    since: float | None = None  # Unix seconds, the first moment that counts
    until: float | None = None  # the first one that does not
    journals: tuple[Journal, ...] = ()

    def admits(self, event: Any) -> bool:
        """Say whether an `Event` is wanted."""
        if self.words is not None and event.event not in self.words:
            return False
        if (self.units or self.unit_globs) and not self._admits_unit(event.unit):
            return False
        if self.since is not None and event.time < self.since:
            return False
        if self.until is not None and event.time >= self.until:
            return False
        return (
            not self.journals or journal_of(event.event, event.reason, event.facts) in self.journals
        )

    def _admits_unit(self, unit: str | None) -> bool:
        if unit in self.units:
            return True
        return unit is not None and any(fnmatchcase(unit, pattern) for pattern in self.unit_globs)

    def conditions(self) -> tuple[str, list[Any]]:
        """Return the same as a condition of SQL on the view of all events, and its values."""
        terms: list[str] = []
        values: list[Any] = []
        if self.units or self.unit_globs:
            names = [unit for unit in self.units if unit is not None]
            units = ["unit = ?"] * len(names) + ["unit GLOB ?"] * len(self.unit_globs)
            if None in self.units:
                units.append("unit IS NULL")
            terms.append(f"({' OR '.join(units)})")
            values += [*names, *map(_sqlite_glob, self.unit_globs)]
        if self.words is not None:
            terms.append(f"event IN ({_marks(self.words)})")
            values += sorted(self.words)
        if self.journals:
            terms.append(f"journal IN ({_marks(self.journals)})")
            values += [journal.value for journal in self.journals]
        if self.since is not None:
            terms.append("time >= ?")
            values.append(self.since)
        if self.until is not None:
            terms.append("time < ?")
            values.append(self.until)
        return " AND ".join(terms) or "1", values


EVERYTHING = EventFilter()


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))


def _sqlite_glob(pattern: str) -> str:
    """Return a pattern of the shell as SQLite writes it: what a bracket excludes begins with
    another sign.
    """
    return pattern.replace("[!", "[^")


def words_named(patterns: Iterable[str]) -> tuple[frozenset[str], str | None]:
    """Return the words that names and globs mean, and the first of them that means none."""
    meant: set[str] = set()
    for pattern in patterns:
        words = [word for word in WORDS if fnmatchcase(word, pattern)]
        if not words:
            return frozenset(), pattern
        meant.update(words)
    return frozenset(meant), None
