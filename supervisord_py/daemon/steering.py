"""What the API may ask of the daemon itself: who it is, its settings, reload, restart, stop (api's DaemonControl).

Calls return once the wish is accepted; the composition root fulfils it, after the present answer has gone out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from supervisord_py.api.context import DaemonFacts, Degradation, ReloadReport, RestartScope, SettingView
from supervisord_py.daemon import last_good
from supervisord_py.daemon.wiring import changed_keys, restart_needed, setting_views
from supervisord_py.daemon.wishes import Wish, Wishes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from supervisord_py.daemon.settings import Loaded

_log = structlog.get_logger(__name__)


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
        last_good.keep(self._run_dir, loaded)
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
