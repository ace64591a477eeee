"""The composition root: starts one control plane, and ends it in the order that its end demands.

The keeper hears that we are ready once all rooms, the API, its listeners and the schedules are
there. End: no new work, the children (unless they stay), answers under way, the ledger, the last
word to the keeper. When that is lost there is no last word: whoever ran us cleans up, and the next
start says what was interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Collection, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import structlog
from aiohttp import web

from supervisord_py import __version__
from supervisord_py.api.app import serve
from supervisord_py.api.auth import TcpAccess, open_tcp
from supervisord_py.api.context import ApiConfig, ApiContext
from supervisord_py.api.streams import first_of
from supervisord_py.config.settings import KEYS, value_of
from supervisord_py.daemon.event_log import log_event
from supervisord_py.daemon.kept_version import keep_version
from supervisord_py.daemon.logging import set_level
from supervisord_py.daemon.paths import Paths
from supervisord_py.daemon.settings import (
    Flags,
    Loaded,
    daemon_id,
    keep_valid,
    restart_needed,
    versions_dir,
)
from supervisord_py.errors import ConflictError, KeeperLostError, PxError
from supervisord_py.kernels.config import CellLimits, KernelsConfig
from supervisord_py.kernels.room import Kernels
from supervisord_py.ledger import instances
from supervisord_py.ledger.kept import highest_number
from supervisord_py.ledger.schema import LIMITS
from supervisord_py.ledger.schema import inspect as inspect_ledger
from supervisord_py.ledger.store import Ledger
from supervisord_py.pipes.models import PipesConfig
from supervisord_py.pipes.room import Pipes
from supervisord_py.process import clock, program
from supervisord_py.process.events import EventStream, lasting_rows, limits_of
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.model import Reason
from supervisord_py.tools.catalog import Catalog
from supervisord_py.tools.driver import ToolsConfig
from supervisord_py.tools.service import Tools

EXAMPLES = Path(__file__).parent.parent / "examples"
# how long it may take to write down that the keeper is lost; then the clean-up begins anyway
LOSS_SECONDS = 2.0
FIRST_PRUNE_SECONDS = 60.0
PRUNE_SECONDS = 3600.0

_log = structlog.get_logger(__name__)


class Shutdown(IntEnum):
    """How to end, weakest first."""

    NONE = 0
    REPLACE = 1  # end alone; the keeper starts another control plane, the children stay
    RESTART_ALL = 2  # stop the children, then have the keeper become a new daemon
    STOP = 3  # stop the children, then the keeper
    KEEPER_LOST = 4  # the keeper is dead: write down what was interrupted, then kill what it left


async def run(
    flags: Flags,
    loaded: Loaded,
    channel: socket.socket,
    listening: socket.socket,
    started_at: float,
) -> Shutdown:
    """Put everything together, serve until somebody asks for an end, and end so; return the wish
    that was fulfilled.

    It owns our end of the keeper's channel, and the control socket. `started_at` is in Unix
    seconds: what the kernel tells counts from a boot time in whole seconds, and may lie before the
    keeper's. Raises PxError: the keeper is gone, or the ledger cannot be opened.
    """
    paths, loop = flags.paths(), asyncio.get_running_loop()
    placement = await KeeperClient.connect(
        channel, daemon_id=daemon_id(paths.state_dir), log_dir=str(paths.log_dir)
    )
    ledger = await Ledger.open(paths.ledger_file, find_number=partial(_last_number, paths))
    try:
        plane = ControlPlane(flags, loaded, listening, started_at)
        await plane.open(placement, ledger)
        # TERM to this process alone means 'be replaced'; orders for the daemon as a whole come from
        # the keeper.
        loop.add_signal_handler(signal.SIGTERM, plane.end, Shutdown.REPLACE)
        loop.add_signal_handler(signal.SIGHUP, plane.reload_wanted.set)
        loop.add_signal_handler(signal.SIGUSR1, plane.dump)
        await plane.serve()
        return await plane.shutdown()
    except BaseException:  # of something of ours that broke: the children stay with the keeper
        with contextlib.suppress(PxError):
            await ledger.close()
        raise


def _last_number(paths: Paths) -> int:
    """Return the greatest id of an execution that has a folder, ours or in its pipe's `output`.

    Blocking.
    """
    outputs = sorted(paths.pipes_dir.glob("*/output"))
    return highest_number((paths.executions_dir, *outputs))


class ControlPlane:
    """One living control plane; also what the API may ask of the daemon itself."""

    def __init__(
        self, flags: Flags, loaded: Loaded, listening: socket.socket, started_at: float
    ) -> None:
        self.loaded = loaded
        # the strongest so far: signals, the API and the keeper all have some
        self.wish = Shutdown.NONE
        self.stopping = False
        self.reload_wanted = asyncio.Event()
        self._limits_changed = asyncio.Event()  # of the history: what is beyond them is to go now
        self._ending = asyncio.Event()
        self._keeper_lost = asyncio.Event()
        self._started_at = started_at
        self._flags = flags
        self._paths = flags.paths()
        self._listening = listening
        # what works only in part: `{part, detail, repair}` by part
        self.degraded: dict[str, dict[str, str]] = {}
        self._tcp: TcpAccess | None = None
        self._runner: web.AppRunner | None = None
        self._socket = str(listening.getsockname())

    async def open(self, placement: KeeperClient, ledger: Ledger) -> None:
        """Look at what was interrupted, adopt, listen; the keeper hears `ready`."""
        self.placement, self.ledger, self.events = placement, ledger, await EventStream.open(ledger)
        self.events.listeners.add(log_event)
        own, events = {"PX_SOCKET": self._socket}, self.events
        self.catalog = Catalog(self._tool_folders(), self.loaded.settings.tools)
        self.launcher = Tools(placement, ledger, self.catalog, self._tools_config(), events)
        self.kernels = Kernels(
            placement, ledger, self._kernels_config(), events, environ=os.environ, own=own
        )
        self.pipes = Pipes(
            placement, ledger, events, self._pipes_config(), environ=os.environ, own=own
        )
        placement.listen(self._told_by_keeper)
        self.ledger.on_change = self._ledger_changed
        if self.ledger.degraded:
            self._ledger_changed(self.ledger.degraded)
        self._report_ledger()
        self._tell_of_a_rollback(placement.caps.rolled_back_from)
        held = [child.key for child in placement.children()]
        await program.stop_left_over(placement)
        lost = await self._interrupted(held)
        await asyncio.gather(self.launcher.open(), self.kernels.open(), self.pipes.open())
        await self._remember(lost)
        await self._listen(lost)
        # Agents call the API: no schedule may start one before it listens, and each is told its
        # real port.
        self.pipes.reconfigure(self._pipes_config())
        self.pipes.start_scheduler()
        await placement.until_known(lambda: placement.ask("ready"))
        await placement.until_known(
            lambda: placement.ask("status", text=f"serving on {self._socket}")
        )
        self.events.publish(
            "control_started", pid=os.getpid(), restarts=placement.caps.control_restarts
        )
        self.ledger.check_later()
        rungs = {"kill_rung": placement.caps.kill_rung, "memory_rung": placement.caps.memory_rung}
        _log.info("control_ready", adopted=[child.unit for child in placement.children()], **rungs)
        self.launcher.supervisor.task(
            asyncio.to_thread(keep_version, versions_dir(self._paths.state_dir))
        )
        if self._flags.stamp() != self.loaded.stamp:
            # changed since they were validated; a broken file is told, and harms nobody
            self.reload_wanted.set()

    def _tell_of_a_rollback(self, lost_version: str | None) -> None:
        """Say, as long as it is so, that an upgrade failed and the version before it serves."""
        if lost_version is None:
            return
        detail = f"version {lost_version} did not come up; pxd went back to {__version__}"
        self.degrade("upgrade", detail, "install a version that works, then pxctl daemon restart")
        self.events.publish("rolled_back", version=lost_version)

    async def _interrupted(self, held: Collection[str]) -> Sequence[instances.InstanceRow]:
        """Close the rows of which our keeper holds no child, and tell of each; return all cut
        off before it began.
        """
        closed = await instances.close_interrupted(self.ledger, held, time.time())
        for row in closed:
            self.events.publish(
                "interrupted", row.unit, Reason.INTERRUPTED, instance=row.key, pid=row.pid
            )
        if closed:
            children = [f"{row.key} pid {row.pid}" for row in closed]
            _log.warning(
                "interrupted", units=sorted({row.unit for row in closed}), children=children
            )
        return await instances.interrupted_since(self.ledger, self.placement.caps.keeper_started_at)

    async def _remember(self, lost: Sequence[instances.InstanceRow]) -> None:
        """Have tools and sessions show how their last life ended, until the next start of each."""
        for row in lost:
            kind, _, name = row.unit.partition(":")
            newest = await instances.latest(self.ledger, row.unit)
            if not newest or newest[0].key != row.key:
                continue
            is_cold = kind == "tool" and self.launcher.instance_of(name) is None
            if is_cold and self.launcher.states.of(name).state != "failed":  # that says more
                self.launcher.states.remember(name, state="cold", reason=row.reason, failure=None)
            session = self.kernels.register.sessions.get(name) if kind == "kernel" else None
            if session is not None and session.kernel is None and row.reason in set(Reason):
                session.reason = Reason(row.reason)
                self.kernels.register.write(session)

    async def _listen(self, lost: Sequence[instances.InstanceRow]) -> None:
        settings, paths, tcp = self.loaded.settings, self._paths, None
        try:
            if settings.api.listen is not None:
                tcp, self._tcp = open_tcp(settings.api.listen, paths.state_dir / "api.token")
        except PxError as error:
            self.degrade("tcp", error.detail, error.hint or "pxctl daemon restart")
        context = ApiContext(
            launcher=self.launcher,
            kernels=self.kernels,
            pipes=self.pipes,
            ledger=self.ledger,
            events=self.events,
            placement=self.placement,
            control=self,
            config=ApiConfig(
                daemon_id=daemon_id(paths.state_dir),
                socket=self._socket,
                started_at=self._started_at,
                system=self._flags.system,
                tools_dir=paths.tools_dir,
                max_body_bytes=settings.tools.max_body_bytes,
                stream_heartbeat_seconds=settings.api.stream_heartbeat_seconds,
                drain_seconds=settings.api.drain_seconds,
                tcp=self._tcp,
            ),
            interrupted=[{"instance": row.key, "unit": row.unit, "pid": row.pid} for row in lost],
        )
        self._runner = await serve(context, self._listening, tcp)

    def _tools_config(self) -> ToolsConfig:
        settings, paths = self.loaded.settings, self._paths
        return ToolsConfig(
            paths.state_dir / "artefacts", paths.run_dir, settings.tools, settings.daemon.zygotes
        )

    def _tool_folders(self) -> tuple[Path, ...]:
        """Return the folders of tools, the first one first; relative ones are beside the
        settings file.
        """
        paths = self._paths
        more = (
            paths.config_dir / Path(text).expanduser() for text in self.loaded.settings.tools.paths
        )
        return tuple(dict.fromkeys((paths.tools_dir, *more)))

    def _kernels_config(self) -> KernelsConfig:
        kernels, paths = self.loaded.settings.kernels, self._paths
        setting, origin = "kernels.gateway_token", self.loaded.origins.get("kernels.gateway_token")
        return KernelsConfig(
            **msgspec.structs.asdict(kernels),
            run_dir=paths.run_dir,
            cells_dir=paths.cells_dir,
            data_dir=paths.kernels_dir,
            modules_dir=paths.config_dir / "modules",
            gateway_dir=paths.state_dir / "gateway",
            token_setting=setting if kernels.gateway_token is None else f"{setting} ({origin})",
            zygotes=self.loaded.settings.daemon.zygotes,
            output=CellLimits(cell_bytes=kernels.output_cell_bytes),
        )

    def _pipes_config(self) -> PipesConfig:
        paths, tcp = self._paths, self._tcp
        return PipesConfig(
            **msgspec.structs.asdict(self.loaded.settings.pipes),
            pipes_dir=paths.pipes_dir,
            examples_dir=EXAMPLES / "pipes",
            presets_file=paths.config_dir / "presets.toml",
            agents_file=paths.config_dir / "agents.toml",
            executions_dir=paths.executions_dir,
            socket=self._socket,
            api_host="127.0.0.1" if tcp is None else tcp.host,
            api_port=None if tcp is None else tcp.port,
            api_token_file=None if tcp is None else tcp.token_file,
        )

    async def serve(self) -> None:
        """Serve until somebody asks for an end. What dies in the background ends this loudly."""
        with clock.watched(self._clocks_jumped):
            async with asyncio.TaskGroup() as tasks:
                endless = [
                    tasks.create_task(it) for it in (self._prune(), self._reload_for_signals())
                ]
                await self._ending.wait()
                for task in endless:
                    task.cancel()

    def _clocks_jumped(self) -> None:
        """Wake whoever waits by another clock than the loop's.

        Kernels are looked at each second anyway.
        """
        self.launcher.tick()
        self.launcher.supervisor.task(self.launcher.expect())
        self.pipes.clocks_jumped()

    def _told_by_keeper(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "lost":
                self.end(Shutdown.KEEPER_LOST)
            case "stop":
                self.end(Shutdown.STOP)
            case "silent":
                pid = self.placement.caps.keeper_pid
                detail = (
                    f"{event['detail']}; what became of that, and of later requests, is not known"
                )
                self.degrade(
                    "keeper",
                    detail,
                    f"kill -CONT {pid} if it is stopped: ps -o pid,stat,wchan,args -p {pid}",
                )
            case "speaks":
                self.recover("keeper")
            case "reload":
                self.reload_wanted.set()
            case "dump":
                self.dump()
            case "log_degraded":
                why = f"the disk refuses output (errno {event['errno']})"
                self.degrade(f"log of {event['unit']}", why, "df -h, then free some space")
                self.events.publish(**event)
            case "log_recovered":
                self.recover(f"log of {event['unit']}")
                self.events.publish(**event)
            case other:
                _log.warning("keeper_event_unknown", keeper_event=other)

    async def _reload_for_signals(self) -> NoReturn:
        """Reload whenever it is wanted: there is nobody to answer, so a failure goes to the log."""
        while True:
            await self.reload_wanted.wait()
            self.reload_wanted.clear()
            try:
                if await self.placement.upgrade():
                    self.end(Shutdown.REPLACE)
                    continue  # READY=1 is for the next one to say
                await self.reload()
            except PxError as error:
                _log.error("reload_refused", detail=error.detail, hint=error.hint)
                self.events.publish("reload_refused", detail=error.detail)
            # The service manager shows `reloading` until it hears READY=1 again, also after a
            # refusal.
            with contextlib.suppress(KeeperLostError):
                await self.placement.until_known(lambda: self.placement.ask("ready"))

    async def _prune(self) -> NoReturn:
        """Forget old rows, now and then. A ledger in trouble is left alone until the next time."""
        wait_seconds = FIRST_PRUNE_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._limits_changed.wait()
            self._limits_changed.clear()
            wait_seconds = PRUNE_SECONDS
            try:
                limits = LIMITS | limits_of(self.loaded.settings.history)
                rows = await self.ledger.prune(
                    time.time(), limits, lasting=await lasting_rows(self.ledger)
                )
                await self.launcher.forget_removed()
                _log.debug("pruned", rows=rows, executions=await self.pipes.prune())
            except PxError as error:
                _log.warning("prune_failed", detail=error.detail)

    def dump(self) -> None:
        children = [
            f"{child.unit} {child.key} pid {child.identity.pid}"
            for child in self.placement.children()
        ]
        tasks = sorted(task.get_name() for task in asyncio.all_tasks())
        _log.info(
            "state",
            children=children,
            tasks=tasks,
            degraded=list(self.degraded),
            wish=self.wish.name,
        )

    def degrade(self, part: str, detail: str, repair: str) -> None:
        """Note that `part` works only in part; a later word about the same part replaces an
        earlier one.
        """
        self.degraded[part] = {"part": part, "detail": detail, "repair": repair}
        _log.error("degraded", part=part, detail=detail)

    def recover(self, part: str) -> None:
        if self.degraded.pop(part, None) is not None:
            _log.info("recovered", part=part)

    async def reload(self) -> dict[str, Any]:
        """Read the settings again and put in force what can be.

        Raises SettingsError: they are broken, the old stay.
        """
        loaded = await self._read()
        old, new = self.loaded.settings, loaded.settings
        changed = [".".join(key) for key in KEYS if value_of(old, *key) != value_of(new, *key)]
        self.loaded = loaded
        self.catalog.reconfigure(self._tool_folders(), loaded.settings.tools)
        self.launcher.reconfigure(self._tools_config())
        self.kernels.reconfigure(self._kernels_config())
        self.pipes.reconfigure(self._pipes_config())
        if new.history != old.history:
            self._limits_changed.set()
        await self.launcher.refresh()
        set_level(loaded.settings.daemon.log_level)
        self.events.publish("reloaded")
        needs = tuple(
            f"{key} needs `{command}`" for key in changed if (command := restart_needed(key))
        )
        _log.info("reloaded", changed=changed, needs_restart=needs, warnings=loaded.warnings)
        return {"changed": changed, "needs_restart": needs, "warnings": loaded.warnings}

    async def restart(self, *, everything: bool) -> None:
        """Begin a restart; without `everything`, of the keeper as well where another version of it
        was installed.

        Raises PxError, while everything still runs: settings are broken, the ledger could not be
        opened again, or the installed keeper cannot take over.
        """
        await self._read()
        try:
            await asyncio.to_thread(inspect_ledger, self._paths.ledger_file)
        except PxError as error:
            raise ConflictError(
                f"a restart would end the daemon: {error.detail}", hint=error.hint
            ) from error
        except OSError as error:  # what may pass is no reason to refuse
            _log.warning("ledger_not_inspected", error=str(error))
        try:
            await self.placement.upgrade(always=True)
        except ConflictError as error:
            # What cannot be handed over can be started anew; a version that cannot start must not
            # end this one.
            if not everything or error.extra.get("refusal") == "trial":
                raise
        self.end(Shutdown.RESTART_ALL if everything else Shutdown.REPLACE)

    def stop(self) -> None:
        self.end(Shutdown.STOP)

    def end(self, wish: Shutdown) -> None:
        """Ask for an end; on the loop's thread.

        A weaker wish than the one that is there changes nothing.
        """
        self.wish = max(self.wish, wish)
        self.stopping = self.wish >= Shutdown.RESTART_ALL
        self._ending.set()
        if wish is Shutdown.KEEPER_LOST:
            self._keeper_lost.set()

    async def _read(self) -> Loaded:
        """Return the settings as they are now.

        Raises PxError: they are broken, or cannot be kept for the next one.
        """
        folder, flags = self._paths.run_dir, self._flags

        def validated() -> Loaded:
            # pydantic: a third of a second
            from supervisord_py.daemon.settings_reader import read_settings

            loaded = read_settings(flags)
            keep_valid(folder, loaded)
            return loaded

        loaded = self.loaded
        try:
            if flags.stamp() != loaded.stamp:
                loaded = await asyncio.to_thread(validated)
        except (PxError, OSError) as error:
            said = f"the settings cannot be loaded, those that worked last are in force: {error}"
            self.degrade("config", said, "pxctl config check")
            raise (
                error if isinstance(error, PxError) else PxError(said, hint=f"df -h {folder}")
            ) from None
        self.recover("config")
        return loaded

    def _ledger_changed(self, why: str | None) -> None:
        """Turn what the ledger reports into events and into degradations that `status` and
        `doctor` show.
        """
        if why is None:
            self.recover("ledger")
            self.events.publish("ledger_recovered", lost_writes=self.ledger.lost_writes)
            return
        self.degrade("ledger", f"writes wait in memory: {why}", "df -h, then free some space")
        self.events.publish("ledger_degraded", detail=why)

    def _report_ledger(self) -> None:
        """Report what the opening of the ledger found, and hear of what is found later."""
        ledger = self.ledger
        ledger.on_kept_change = self._kept_changed
        ledger.on_damage = self._ledger_damaged
        ledger.on_unreadable = self._rows_unreadable
        if ledger.kept_trouble is not None:
            self._kept_changed(ledger.kept_trouble)
        if ledger.damage is not None:
            self._ledger_damaged(ledger.damage_moved_to, ledger.damage)
        for table in tuple(ledger.unreadable):
            self._rows_unreadable(table)
        if ledger.was_missing and ledger.lost_wishes is None:
            detail = (
                f"{ledger.path} was missing: a new one was begun, without the history; ids and "
                "settings go on"
            )
            self.degrade(
                "ledger history",
                detail,
                "stop pxd and put the old file back, or none: it is reported once",
            )
            self.events.publish("ledger_missing", detail=detail)
        if ledger.lost_wishes is not None:
            hint = "pxctl pipe enable NAME, for each that is to run by itself; pxctl pin NAME"
            self.degrade("settings of pipes and tools", ledger.lost_wishes, hint)
            self.events.publish("ledger_wishes_lost", detail=ledger.lost_wishes)
        for moved in ledger.take_news():
            _log.error("ledger_recovered_from_damage", **moved)
            self.events.publish("ledger_rebuilt", **moved)

    def _kept_changed(self, why: str | None) -> None:
        """Report that ids and settings of users cannot be kept beside the ledger, or can again."""
        part = "copy of ids, pins and disabled pipes"
        if why is None:
            self.recover(part)
        else:
            self.degrade(part, why, f"df -h {self._paths.state_dir}")

    def _ledger_damaged(self, moved_to: str | None, why: str) -> None:
        """Have another control plane begin a new ledger; what runs goes on meanwhile, with the
        keeper.
        """
        if moved_to is None:
            self.degrade(
                "ledger", f"is damaged, and could not be moved aside: {why}", "pxctl daemon restart"
            )
            self.events.publish("ledger_damaged", detail=why)
            return
        self.degrade(
            "ledger", f"was damaged and is moved to {moved_to}: {why}", "pxctl daemon restart"
        )
        self.end(Shutdown.REPLACE)

    def _rows_unreadable(self, table: str) -> None:
        rows = self.ledger.unreadable[table]
        detail = f"rows of the table {table} that cannot be read are left out: {rows}"
        self.degrade(
            f"ledger table {table}", detail, "none is needed: they are forgotten with their age"
        )
        self.events.publish("ledger_rows_unreadable", table=table, rows=rows)

    async def shutdown(self) -> Shutdown:
        """End as the strongest wish says, and return it."""
        try:
            if self.wish is Shutdown.REPLACE:
                await self._keeper_answers()
            if self.wish is Shutdown.REPLACE:
                await self._stop_listening()
            if self.wish is Shutdown.REPLACE:  # a stop may have been asked for meanwhile
                await asyncio.gather(
                    self.launcher.detach(), self.kernels.detach(), self.pipes.detach()
                )
                await self._close_ledger()
                await self._order("restart", all=False)
            elif self.wish is not Shutdown.KEEPER_LOST:
                wanted = self.wish
                await self._stop_children()
                await self._close_ledger()
                if wanted is Shutdown.RESTART_ALL and self.wish is wanted:
                    await self._order("restart", all=True)
                else:
                    await self._order("shutdown")
        except KeeperLostError:
            self.end(Shutdown.KEEPER_LOST)
        if self.wish is Shutdown.KEEPER_LOST:
            await self._record_loss()
        return self.wish

    async def _keeper_answers(self) -> None:
        """Wait until the keeper answers, and serve meanwhile: before that nobody else can, and
        nothing can end.
        """
        await self.placement.until_known(lambda: self.placement.stat(()))

    async def _order(self, verb: str, **members: Any) -> None:
        """Give the keeper the last order, again until it answers: if it dies first, we are the
        ones who clean up.
        """
        await self.placement.until_known(lambda: self.placement.ask(verb, **members))

    async def _stop_children(self) -> None:
        """Stop all at the same time, each with its own grace; KeeperLostError when the keeper
        dies meanwhile.
        """
        wanted = self.wish.name.lower()
        self.events.publish("daemon_stopping", wish=wanted)
        _log.info("stopping", wish=wanted)
        closing = asyncio.gather(self.launcher.close(), self.kernels.close(), self.pipes.close())
        await first_of(closing, self._keeper_lost.wait())
        if self.wish is Shutdown.KEEPER_LOST:
            raise KeeperLostError("the keeper died during the stop")
        await self._keeper_answers()
        await self._stop_listening()

    async def _stop_listening(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _close_ledger(self) -> None:
        self.events.close()
        await self.ledger.close()

    async def _record_loss(self) -> None:
        """Say, quickly, that the keeper is lost: the clean-up must not wait for a disk.

        The next start tells it.
        """
        _log.critical("keeper_lost", children=[child.unit for child in self.placement.children()])
        try:
            async with asyncio.timeout(LOSS_SECONDS):
                self.events.publish("keeper_lost", children=len(self.placement.children()))
                await self._close_ledger()
        except (PxError, TimeoutError) as error:
            _log.error("loss_not_recorded", error=error)
