"""What the API may ask of the daemon itself: who it is, its settings, reload, restart, stop (api's DaemonControl).

Signals, the API and the keeper all wish for an end; a stronger wish replaces a weaker one. Calls return once the wish
is accepted; the composition root fulfils it, after the present answer has gone out. What goes on in the background is
here as well: old rows are forgotten, troubles of log and ledger are told.
"""

from __future__ import annotations

import asyncio
import time
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

import structlog

from supervisord_py.api.context import DaemonFacts, Degradation, ReloadReport, RestartScope, SettingView
from supervisord_py.daemon.settings import keep_valid
from supervisord_py.daemon.wiring import changed_keys, restart_needed, setting_views
from supervisord_py.errors import PxError
from supervisord_py.ledger import retention

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from supervisord_py.daemon.settings import Loaded
    from supervisord_py.ledger.retention import RetentionLimits
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.local import LocalPlacement
    from supervisord_py.process.messages import LogTrouble

FIRST_PRUNE_SECONDS = 60.0
PRUNE_SECONDS = 3600.0

_log = structlog.get_logger(__name__)


class Wish(IntEnum):
    """How to end, weakest first."""

    NONE = 0
    REPLACE = 1
    """End alone; the keeper starts another control plane, the children stay."""
    RESTART_ALL = 2
    """Stop the children, then have the keeper become a new daemon."""
    STOP = 3
    """Stop the children, then the keeper."""
    KEEPER_LOST = 4
    """The keeper is dead: write down what was interrupted, then kill what it left."""


class Wishes:
    """The strongest wish, awaitable."""

    def __init__(self) -> None:
        self._strongest = Wish.NONE
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def strongest(self) -> Wish:
        """The wish to fulfil."""
        return self._strongest

    def make(self, wish: Wish) -> None:
        """Wish; on the loop's thread."""
        if wish > self._strongest:
            self._strongest = wish
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def stronger_than(self, wish: Wish) -> Wish:
        """Wait for a wish above `wish` and return it."""
        while self._strongest <= wish:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        return self._strongest


class Steering:
    """Implements `api.context.DaemonControl`.

    Args:
        facts: Who this daemon is.
        loaded: The settings in force.
        wishes: Where an end is wished for.
        read: Reads the settings again; raises SettingsError.
        apply: Puts settings in force, as far as they can be while everything runs.
        run_dir: Where settings that worked are kept.
    """

    def __init__(
        self,
        facts: DaemonFacts,
        loaded: Loaded,
        *,
        wishes: Wishes,
        read: Callable[[], Loaded],
        apply: Callable[[Loaded], Awaitable[None]],
        run_dir: Path,
    ) -> None:
        self._facts = facts
        self._loaded = loaded
        self._wishes = wishes
        self._read = read
        self._apply = apply
        self._run_dir = run_dir
        self._degraded: dict[str, Degradation] = {}

    @property
    def stopping(self) -> bool:
        """True from the moment an orderly stop or a restart of everything began."""
        return self._wishes.strongest >= Wish.RESTART_ALL

    @property
    def loaded(self) -> Loaded:
        """The settings in force, with origins."""
        return self._loaded

    def facts(self) -> DaemonFacts:
        """Say who this daemon is."""
        return self._facts

    def settings(self) -> Sequence[SettingView]:
        """Return every effective setting with its origin."""
        return setting_views(self._loaded)

    def degradations(self) -> Sequence[Degradation]:
        """Say what works only in part."""
        return tuple(self._degraded.values())

    def degrade(self, part: str, detail: str, repair: str) -> None:
        """Note that `part` works only in part; a later word about the same part replaces an earlier one."""
        self._degraded[part] = Degradation(part, detail, repair)
        _log.error("degraded", part=part, detail=detail)

    def recover(self, part: str) -> None:
        """Note that `part` works again."""
        if self._degraded.pop(part, None) is not None:
            _log.info("recovered", part=part)

    async def reload(self) -> ReloadReport:
        """Read the settings again and put in force what can be; with broken ones the old stay.

        Raises:
            SettingsError: They are broken.
        """
        loaded = self._checked()
        changed = changed_keys(self._loaded, loaded)
        await self._apply(loaded)
        self._loaded = loaded
        keep_valid(self._run_dir, loaded)
        needs = tuple(f"{key} needs `{command}`" for key in changed if (command := restart_needed(key)))
        _log.info("reloaded", changed=changed, needs_restart=needs, warnings=loaded.warnings)
        return ReloadReport(changed, needs, loaded.warnings)

    async def restart(self, scope: RestartScope) -> None:
        """Begin a restart. Settings that would not load again are refused now, while everything still runs.

        Raises:
            SettingsError: They are broken; nothing was begun.
        """
        self._checked()
        self._wishes.make(Wish.RESTART_ALL if scope is RestartScope.ALL else Wish.REPLACE)

    async def stop(self) -> None:
        """Begin the orderly stop."""
        self._wishes.make(Wish.STOP)

    def _checked(self) -> Loaded:
        try:
            loaded = self._read()
        except Exception as error:
            self.degrade("config", f"the settings cannot be loaded again: {error}", "pxctl config check")
            raise
        self.recover("config")
        return loaded


async def prune_for_ever(ledger: Ledger, limits: Callable[[], RetentionLimits]) -> NoReturn:
    """Forget old rows, now and then. A ledger in trouble is left alone until the next time."""
    await asyncio.sleep(FIRST_PRUNE_SECONDS)
    while True:
        try:
            pruned = await retention.prune(ledger, limits(), time.time())
            _log.debug("pruned", rows=pruned)
        except PxError as error:
            _log.warning("prune_failed", detail=error.detail)
        await asyncio.sleep(PRUNE_SECONDS)


def tell_troubles(placement: LocalPlacement, ledger: Ledger, events: EventStream, steering: Steering) -> None:
    """Turn what log and ledger report into events and into degradations that `status` and `doctor` show."""

    def log_trouble(trouble: LogTrouble) -> None:
        part = f"log of {trouble.unit}"
        if trouble.recovered:
            steering.recover(part)
            events.publish("log_recovered", trouble.unit, lost_bytes=trouble.lost_bytes)
            return
        steering.degrade(part, f"the disk refuses output (errno {trouble.errno})", "df -h, then free some space")
        events.publish("log_degraded", trouble.unit, errno=trouble.errno, lost_bytes=trouble.lost_bytes)

    def ledger_degraded(why: str) -> None:
        steering.degrade("ledger", f"writes wait in memory: {why}", "df -h, then free some space")
        events.publish("ledger_degraded", detail=why)

    def ledger_recovered(lost_writes: int) -> None:
        steering.recover("ledger")
        events.publish("ledger_recovered", lost_writes=lost_writes)

    placement.on_log_degraded(log_trouble)
    ledger.on_degraded(ledger_degraded)
    ledger.on_recovered(ledger_recovered)
    if ledger.degraded:
        ledger_degraded(ledger.degraded)
    if (recovery := ledger.recovered_from) is not None:
        _log.error("ledger_recovered_from_damage", moved_to=recovery.moved_to, detail=recovery.detail)
        events.publish("ledger_rebuilt", moved_to=str(recovery.moved_to), detail=recovery.detail)
