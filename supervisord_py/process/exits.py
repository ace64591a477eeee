"""How children ended: the records not yet released, who waits for them, and who hears of all.

Law: a record is never lost between its arrival and its release, so the order of `wait` and of the end does not matter;
a record that comes twice (the keeper repeats until it is released) counts once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from supervisord_py.process.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.process.spec import ExitRecord


class Exits:
    """Book of exit records by key."""

    def __init__(self) -> None:
        self._records: dict[str, ExitRecord] = {}
        self._waiters: dict[str, asyncio.Future[ExitRecord]] = {}
        self._topic: Topic[ExitRecord] = Topic("exit", early=0)

    def get(self, key: str) -> ExitRecord | None:
        """Return the record of a key, None while it lives or when it is not known."""
        return self._records.get(key)

    def add(self, record: ExitRecord) -> None:
        """Take a record; one that is known already changes nothing."""
        if record.key in self._records:
            return
        self._records[record.key] = record
        if (waiter := self._waiters.pop(record.key, None)) is not None:
            waiter.set_result(record)
        self._topic.emit(record)

    async def wait(self, key: str) -> ExitRecord:
        """Wait for the record of a key. Cancelling one waiter leaves the others."""
        if (record := self._records.get(key)) is not None:
            return record
        if key not in self._waiters:
            self._waiters[key] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._waiters[key])

    def abandon(self, key: str) -> None:
        """No record of this key will ever come: whoever waits for it is cancelled."""
        if (waiter := self._waiters.pop(key, None)) is not None:
            waiter.cancel()

    def forget(self, key: str) -> None:
        """Drop the record of a released key."""
        self._records.pop(key, None)

    def fail(self, error: Exception) -> None:
        """No record will come any more: every waiter gets the error."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.set_exception(error)
            waiter.exception()  # so that a waiter whose last task was cancelled is not reported as forgotten

    def listen(self, callback: Callable[[ExitRecord], None]) -> None:
        """Call back once for each record, those at hand first."""
        for record in tuple(self._records.values()):
            self._topic.tell(callback, record)
        self._topic.listen(callback)
