"""The composition root: puts one control plane together, and takes it apart in the order that its end demands.

Together: keeper, ledger, events, catalog, launcher, kernels, pipes, API, doors, schedules; only then does the keeper
hear that we are ready. Apart: no new work, the children (unless they stay), answers under way, the ledger; only then
the last word to the keeper. When the keeper is lost there is no last word: whoever ran us cleans up, and the next start
says what was interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import structlog
from aiohttp import web

from supervisord_py import __version__
from supervisord_py.api.context import ApiContext, DaemonFacts, TcpAccess
from supervisord_py.api.server import build_app, build_runner
from supervisord_py.daemon import cut_off, kernel_wiring, pipe_wiring, steering, wiring
from supervisord_py.daemon.bearer_token import TOKEN_NAME, read_or_make_token
from supervisord_py.daemon.boot import daemon_id
from supervisord_py.daemon.settings import keep_valid, parse_listen
from supervisord_py.daemon.sockets import BACKLOG
from supervisord_py.daemon.steering import Steering, Wish, Wishes
from supervisord_py.errors import ConflictError, KeeperLostError, PxError
from supervisord_py.kernels.room import Kernels
from supervisord_py.ledger.events import EventJournal
from supervisord_py.ledger.store import Ledger
from supervisord_py.pipes.room import Pipes
from supervisord_py.process.events import EventStream
from supervisord_py.process.local import LocalPlacement
from supervisord_py.tools.catalog import Catalog
from supervisord_py.tools.service import Tools

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.daemon.log import LevelGate
    from supervisord_py.daemon.paths import Paths
    from supervisord_py.daemon.schema import Settings
    from supervisord_py.daemon.settings import Loaded
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.ledger.retention import RetentionLimits
    from supervisord_py.pipes.config import PipesConfig
    from supervisord_py.process.messages import ControlEvent

TCP_BACKLOG = 128
LOSS_SECONDS = 2.0
"""How long it may take to write down that the keeper is lost; then the clean-up begins anyway."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What a control plane is made of before it lives.

    Attributes:
        paths: Where everything lies.
        loaded: The settings to begin with.
        read: Reads them again; raises SettingsError.
        gate: The log's level.
        channel: Our end of the keeper's channel; owned.
        listening: The control socket; owned.
        started_at: When this control plane began, Unix seconds by the same clock as the keeper's beginning: the
            kernel's record of it counts from a boot time in whole seconds, and may lie before the keeper's.
        system: Works for the whole machine.
        fallen_back: Why `loaded` is older than what the files say, or None.
    """

    paths: Paths
    loaded: Loaded
    read: Callable[[], Loaded]
    gate: LevelGate
    channel: socket.socket
    listening: socket.socket
    started_at: float
    system: bool = False
    fallen_back: str | None = None


class House:
    """One living control plane. Make it with `move_in`."""

    def __init__(self, plan: Blueprint, placement: LocalPlacement, ledger: Ledger, events: EventStream) -> None:
        self.wishes = Wishes()
        self.placement = placement
        self.ledger = ledger
        self.events = events
        self._plan = plan
        self._tcp: tuple[str, int] | None = None
        settings, paths = plan.loaded.settings, plan.paths
        self.catalog = Catalog(wiring.tool_folders(settings, paths), wiring.tools_config(settings, paths).defaults)
        self.launcher = Tools(placement, ledger, self.catalog, wiring.tools_config(settings, paths), events)
        self.steering = Steering(
            self._facts(),
            plan.loaded,
            wishes=self.wishes,
            read=plan.read,
            apply=self._apply,
            run_dir=paths.run_dir,
        )
        self.kernels = Kernels(
            placement,
            ledger,
            self._kernels_config(plan.loaded),
            events,
            environ=os.environ,
            own=self._own(),
        )
        self.pipes = Pipes(
            placement, ledger, events, self._pipes_config(plan.loaded), environ=os.environ, own=self._own()
        )
        self._runner: web.AppRunner | None = None
        self._reload_wanted = asyncio.Event()

    @classmethod
    async def move_in(cls, plan: Blueprint) -> House:
        """Put everything together and open the doors; the keeper hears `ready`.

        Raises:
            PxError: The keeper is gone, or the ledger cannot be opened.
        """
        async with AsyncExitStack() as undo:
            placement = await LocalPlacement.connect(
                plan.channel, daemon_id=daemon_id(plan.paths.state_dir), log_dir=str(plan.paths.log_dir)
            )
            ledger = await Ledger.open(plan.paths.ledger_file)
            undo.push_async_callback(ledger.close)
            house = cls(plan, placement, ledger, await EventStream.open(EventJournal(ledger)))
            undo.callback(house.events.close)
            await house._furnish()
            undo.pop_all()
        return house

    async def _furnish(self) -> None:
        """Do what may fail once the house stands: look at what was cut off, adopt, open the doors."""
        placement = self.placement
        placement.on_lost(lambda: self.wishes.make(Wish.KEEPER_LOST))
        if self._plan.fallen_back is not None:
            self.steering.degrade("config", self._plan.fallen_back, "pxctl config check")
        steering.tell_troubles(placement, self.ledger, self.events, self.steering)
        held = [child.key for child in placement.children()]
        losses = await cut_off.close(self.ledger, self.events, placement.caps, held)
        await asyncio.gather(self.launcher.open(), self.kernels.open(), self.pipes.open())
        await cut_off.remember(self.ledger, self.launcher, losses)
        await cut_off.remember_kernels(self.ledger, self.kernels, losses)
        await self._open_doors(losses)
        # Agents call the API: no schedule may start one before it listens, and each is told its real port.
        self.pipes.reconfigure(self._pipes_config(self._plan.loaded))
        self.pipes.start_scheduler()
        await placement.ready()
        await placement.status(f"serving on {self._plan.listening.getsockname()}")
        self.events.publish("control_started", pid=os.getpid(), restarts=placement.caps.control_restarts)
        _log.info(
            "control_ready",
            pid=os.getpid(),
            keeper_pid=placement.caps.keeper_pid,
            adopted=[child.unit for child in placement.children()],
            kill_rung=placement.caps.kill_rung,
            memory_rung=placement.caps.memory_rung,
        )
        keep_valid(self._plan.paths.run_dir, self._plan.loaded)

    async def live(self) -> Wish:
        """Serve until somebody wishes for an end; return the wish. What dies in the background ends this loudly."""
        self.placement.on_control_event(self._told_by_keeper)
        async with asyncio.TaskGroup() as tasks:
            endless = (
                tasks.create_task(steering.prune_for_ever(self.ledger, self._retention), name="prune"),
                tasks.create_task(self._reload_for_signals(), name="reload"),
            )
            wish = await self.wishes.stronger_than(Wish.NONE)
            for task in endless:
                task.cancel()
        return wish

    async def move_out(self) -> Wish:
        """End as the strongest wish wants it; return the wish that was fulfilled.

        The channel stays open until the process ends: to the keeper, its end means that we must be killed.
        """
        if self.wishes.strongest is Wish.REPLACE:
            await self._close_doors()
        try:
            match self.wishes.strongest:
                case Wish.REPLACE:
                    await asyncio.gather(self.launcher.detach(), self.kernels.detach(), self.pipes.detach())
                    await self._last_page()
                    await self.placement.restart(everything=False)
                case Wish.STOP | Wish.RESTART_ALL as wish:
                    await self._stop_everything()
                    await self._last_page()
                    await self._farewell(wish)
        except KeeperLostError:
            self.wishes.make(Wish.KEEPER_LOST)
        if self.wishes.strongest is Wish.KEEPER_LOST:
            await self._record_loss()
        return self.wishes.strongest

    async def collapse(self) -> None:
        """Let go of the ledger after something of ours broke; the children stay with the keeper."""
        with contextlib.suppress(PxError):
            await self._last_page()

    # -- moving in -----------------------------------------------------------------------------------------------

    def _facts(self) -> DaemonFacts:
        paths = self._plan.paths
        return DaemonFacts(
            version=__version__,
            daemon_id=daemon_id(paths.state_dir),
            socket=str(self._plan.listening.getsockname()),
            control_pid=os.getpid(),
            control_started_at=self._plan.started_at,
            system=self._plan.system,
        )

    def _kernels_config(self, loaded: Loaded) -> KernelsConfig:
        """Return what kernels are told. A token that cannot be read takes the gateway away, not the daemon."""
        paths = self._plan.paths
        try:
            token = kernel_wiring.gateway_token(loaded, paths)
        except PxError as error:
            self.steering.degrade("kernels.gateway", error.detail, error.hint or "pxctl config show")
            token = None
        else:
            self.steering.recover("kernels.gateway")
        return kernel_wiring.kernels_config(loaded.settings, paths, token)

    def _own(self) -> dict[str, str]:
        """Return what kernels and agents are told of this daemon."""
        return {"PX_SOCKET": str(self._plan.listening.getsockname())}

    def _pipes_config(self, loaded: Loaded) -> PipesConfig:
        socket_path = str(self._plan.listening.getsockname())
        listener = None
        if self._tcp is not None:  # as it was opened: a reload changes nothing of that
            file = token_file(self._plan.loaded.settings, self._plan.paths)
            listener = pipe_wiring.Listener(*self._tcp, str(file))
        return pipe_wiring.pipes_config(loaded.settings, self._plan.paths, socket=socket_path, listener=listener)

    async def _open_doors(self, losses: cut_off.Losses) -> None:
        settings, paths = self._plan.loaded.settings, self._plan.paths
        try:
            tcp = open_tcp(settings, paths)
        except PxError as error:
            self.steering.degrade("tcp", error.detail, error.hint or "pxctl daemon restart")
            tcp = None
        listening, access = tcp or (None, None)
        self._tcp = None if access is None or listening is None else listening.getsockname()[:2]
        self._runner = build_runner(self._application(access, losses), shutdown_seconds=settings.api.drain_seconds)
        await open_doors(self._runner, self._plan.listening, listening)

    def _application(self, access: TcpAccess | None, losses: cut_off.Losses) -> web.Application:
        settings, paths = self._plan.loaded.settings, self._plan.paths
        return build_app(
            ApiContext(
                launcher=self.launcher,
                kernels=self.kernels,
                pipes=self.pipes,
                catalog=self.catalog,
                tools=wiring.tools_config(settings, paths),
                ledger=self.ledger,
                events=self.events,
                placement=self.placement,
                control=self.steering,
                config=wiring.api_config(settings, paths, access),
                interrupted=losses.interrupted,
            )
        )

    # -- living --------------------------------------------------------------------------------------------------

    def _told_by_keeper(self, event: ControlEvent) -> None:
        match event.name:
            case "stop":
                self.wishes.make(Wish.STOP)
            case "reload":
                self.reload_soon()
            case "dump":
                self.dump()
            case other:
                _log.warning("unknown_control_event", name=other)

    def reload_soon(self) -> None:
        """Reload because of a signal. Several in a row are one."""
        self._reload_wanted.set()

    async def _reload_for_signals(self) -> NoReturn:
        """Reload whenever it is wanted: there is nobody to answer, so a failure goes to the log."""
        while True:
            await self._reload_wanted.wait()
            self._reload_wanted.clear()
            try:
                await self.steering.reload()
            except PxError as error:
                _log.error("reload_refused", detail=error.detail, hint=error.hint)
                self.events.publish("reload_refused", detail=error.detail)
            # The service manager shows `reloading` until it hears READY=1 again, also after a refusal.
            with contextlib.suppress(KeeperLostError):
                await self.placement.ready()

    def dump(self) -> None:
        """Write the state to the log."""
        _log.info(
            "state",
            tools=[
                {"unit": one.unit, "state": str(one.state), "pid": one.pid, "in_flight": one.in_flight}
                for one in self.launcher.snapshot(None)
            ],
            kernels=[
                {"unit": one.unit, "state": one.state, "pid": one.pid, "queued": one.queued, "running": one.running}
                for one in self.kernels.snapshot()
            ],
            executions=[f"{one.name} {one.running}" for one in self.pipes.snapshot() if one.running is not None],
            children=[f"{child.unit} {child.key} pid {child.identity.pid}" for child in self.placement.children()],
            tasks=sorted(task.get_name() for task in asyncio.all_tasks()),
            degraded=[one.part for one in self.steering.degradations()],
            wish=self.wishes.strongest.name,
        )

    async def _apply(self, loaded: Loaded) -> None:
        config = wiring.tools_config(loaded.settings, self._plan.paths)
        self.catalog.reconfigure(wiring.tool_folders(loaded.settings, self._plan.paths), config.defaults)
        self.launcher.reconfigure(config)
        self.kernels.reconfigure(self._kernels_config(loaded))
        self.pipes.reconfigure(self._pipes_config(loaded))
        await self.launcher.refresh()
        self._plan.gate.set(loaded.settings.daemon.log_level)
        self.events.publish("reloaded")

    def _retention(self) -> RetentionLimits:
        return wiring.retention_limits(self.steering.loaded.settings)

    # -- moving out ----------------------------------------------------------------------------------------------

    async def _stop_everything(self) -> None:
        """Stop the children; a keeper that dies meanwhile leaves nobody to stop them with."""
        self.events.publish("daemon_stopping", wish=self.wishes.strongest.name.lower())
        _log.info("stopping", wish=self.wishes.strongest.name.lower())
        closing = asyncio.create_task(self._stop_children(), name="close")
        losing = asyncio.create_task(self.wishes.stronger_than(Wish.STOP), name="losing")
        done, pending = await asyncio.wait({closing, losing}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if losing in done:
            raise KeeperLostError("the keeper died during the stop")
        closing.result()
        await self._close_doors()

    async def _stop_children(self) -> None:
        """Stop tools, kernels and executions at the same time: each has its own grace."""
        await asyncio.gather(self.launcher.close(), self.kernels.close(), self.pipes.close())

    async def _close_doors(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _last_page(self) -> None:
        self.events.close()
        await self.ledger.close()

    async def _farewell(self, wish: Wish) -> None:
        if wish is Wish.RESTART_ALL and self.wishes.strongest is Wish.RESTART_ALL:
            await self.placement.restart(everything=True)
        else:
            await self.placement.shutdown()

    async def _record_loss(self) -> None:
        """Say, quickly, that the keeper is lost: the clean-up must not wait for a disk. The next start tells it."""
        _log.critical("keeper_lost", children=[child.unit for child in self.placement.children()])
        try:
            async with asyncio.timeout(LOSS_SECONDS):
                self.events.publish("keeper_lost", children=len(self.placement.children()))
                await self._last_page()
        except (PxError, TimeoutError) as error:
            _log.error("loss_not_recorded", error=error)


def open_tcp(settings: Settings, paths: Paths) -> tuple[socket.socket, TcpAccess] | None:
    """Bind the loopback port and get its token; None when no port is wanted.

    Raises:
        ConfigError: The token file cannot be used.
        ConflictError: The port cannot be had.
    """
    if settings.api.listen is None:
        return None
    host, port = parse_listen(settings.api.listen)
    token = read_or_make_token(token_file(settings, paths))
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConflictError(
            f"cannot listen on {settings.api.listen}: {error.strerror}",
            hint="choose another port in [api] listen, then `pxctl daemon restart`",
        ) from error
    return listening, TcpAccess(token, listening.getsockname()[1])


def token_file(settings: Settings, paths: Paths) -> Path:
    """Return where the token of the loopback port lies; absolute."""
    wanted = settings.api.token_file
    folder = paths.config_file.parent
    return (folder / Path(wanted).expanduser() if wanted else paths.state_dir / TOKEN_NAME).absolute()


async def open_doors(runner: web.AppRunner, unix: socket.socket, tcp: socket.socket | None) -> None:
    """Serve on both sockets; the runner closes them. Serving calls listen(2) again, which sets the backlog anew."""
    await runner.setup()
    await web.SockSite(runner, unix, backlog=BACKLOG).start()
    if tcp is not None:
        await web.SockSite(runner, tcp, backlog=TCP_BACKLOG).start()
