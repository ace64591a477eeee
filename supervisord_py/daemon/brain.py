"""One control plane from its first log line to its exit.

Descriptors: 3 is the channel to the keeper, 4 the control socket, 5 the lock. Exit: 0 ended as wished · 1 something of
ours broke (the keeper starts another one) · 78 bad settings. When the keeper is lost this process becomes the sweep
that leaves nothing of its children alive, still holding the lock.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.daemon import boot
from supervisord_py.daemon.house import Blueprint, House
from supervisord_py.daemon.log import configure_log
from supervisord_py.daemon.settings import recall_valid
from supervisord_py.daemon.sockets import adopt_socket
from supervisord_py.daemon.sources import SettingsError
from supervisord_py.daemon.steering import Wish
from supervisord_py.errors import EXIT_FAILED, EXIT_OK, PxError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from supervisord_py.daemon.log import LevelGate
    from supervisord_py.daemon.paths import Paths
    from supervisord_py.daemon.settings import Loaded

QUIET_SECONDS = 10.0
"""The same complaint of the loop is not logged again for this long; how often it came is said with the next one."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Orders:
    """The command line."""

    channel_fd: int
    listen_fd: int
    lock_fd: int
    flags: boot.Flags


class Guard:
    """Knows whether the keeper is dead, and cleans up after it by becoming the sweep.

    Args:
        channel: A duplicate of our end. Nobody closes it but the kernel, with the process: to the keeper, the end of
            the channel means that we must be killed.
        orders: The command line.
        paths: Where everything lies.
        loaded: The settings.
    """

    def __init__(self, channel: int, orders: Orders, paths: Paths, loaded: Loaded) -> None:
        self._channel = channel
        self._orders = orders
        self._paths = paths
        self._loaded = loaded

    @property
    def keeper_is_dead(self) -> bool:
        """True when nobody holds the other end: a keeper that is only slow, or broke the protocol, still does."""
        poll = select.poll()
        poll.register(self._channel, 0)
        return any(what & select.POLLHUP for _, what in poll.poll(0))

    def sweep(self) -> NoReturn:
        """Kill by mark, group and record what the dead keeper held; the lock goes with us: nobody starts meanwhile."""
        orders = self._orders
        os.set_inheritable(orders.lock_fd, True)
        held = boot.Held(listen_fd=None, lock_fd=orders.lock_fd, socket_owned=False)
        document = boot.boot_document(self._paths, self._loaded.settings, orders.flags, held)
        argv = boot.keeper_argv(boot.boot_fd(document), "--sweep")
        _log.warning("sweeping", daemon_id=document["daemon_id"])
        os.execv(argv[0], argv)  # noqa: S606 - to become the sweep, without a shell, is the point


class LoopTrouble:
    """The loop's exception handler: an accept without descriptors, say, complains in bursts."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Log a complaint of the loop, unless the same one was logged a moment ago."""
        message, error = str(context.get("message", "")), context.get("exception")
        key = f"{message.splitlines()[0] if message else ''} {type(error).__name__}"
        told_at, unsaid = self._told.get(key, (float("-inf"), 0))
        if loop.time() - told_at < QUIET_SECONDS:
            self._told[key] = (told_at, unsaid + 1)
            return
        self._told[key] = (loop.time(), 0)
        _log.error("loop_trouble", detail=message, error=repr(error) if error else None, unsaid=unsaid)


def run(argv: Sequence[str], started_at: float) -> int:
    """Run; return the exit code."""
    orders = _parse(argv)
    for fd in (orders.channel_fd, orders.listen_fd, orders.lock_fd):
        os.set_inheritable(fd, False)
    os.umask(0o077)
    gate = configure_log("info")
    try:
        return _run(orders, gate, started_at)
    except PxError as error:
        _log.error("control_failed", kind=error.kind, detail=error.detail, hint=error.hint)
        return error.exit_code if isinstance(error, SettingsError) else EXIT_FAILED
    except Exception:
        _log.exception("control_crashed")
        return EXIT_FAILED


def _run(orders: Orders, gate: LevelGate, started_at: float) -> int:
    paths = orders.flags.paths()
    loaded, fallen_back = _settings(orders.flags, paths)
    gate.set(loaded.settings.daemon.log_level)
    for warning in loaded.warnings:
        _log.warning("settings_odd", detail=warning)
    channel = socket.socket(fileno=orders.channel_fd)
    guard = Guard(os.dup(orders.channel_fd), orders, paths, loaded)
    plan = Blueprint(
        paths=paths,
        loaded=loaded,
        read=lambda: orders.flags.load(paths),
        gate=gate,
        channel=channel,
        listening=adopt_socket(orders.listen_fd),
        system=orders.flags.system,
        fallen_back=fallen_back,
        started_at=started_at,
    )
    wish = asyncio.run(_live(plan, guard))
    _log.info("control_ended", wish=wish.name.lower())
    return EXIT_OK if wish is not Wish.KEEPER_LOST else EXIT_FAILED


async def _live(plan: Blueprint, guard: Guard) -> Wish:
    """Live and end. A lost keeper ends this process image here, whatever is still going on in it."""
    asyncio.get_running_loop().set_exception_handler(LoopTrouble())
    try:
        house = await House.move_in(plan)
        _heed_signals(house)
        try:
            await house.live()
            wish = await house.move_out()
        except BaseException:
            await house.collapse()
            raise
    finally:
        if guard.keeper_is_dead:
            guard.sweep()
    return wish


def _heed_signals(house: House) -> None:
    """TERM to this process alone means 'be replaced'; orders for the daemon as a whole come from the keeper."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, house.wishes.make, Wish.REPLACE)
    loop.add_signal_handler(signal.SIGHUP, house.reload_soon)
    loop.add_signal_handler(signal.SIGUSR1, house.dump)


def _parse(argv: Sequence[str]) -> Orders:
    parser = argparse.ArgumentParser(prog="pxd-control", description="Started by the keeper of pxd, not by hand.")
    for name in ("--channel-fd", "--listen-fd", "--lock-fd"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--config")
    parser.add_argument("--socket")
    parser.add_argument("--system", action="store_true")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    given = parser.parse_args(argv)
    flags = boot.Flags(given.config, given.system, given.socket, tuple(given.settings))
    return Orders(given.channel_fd, given.listen_fd, given.lock_fd, flags)


def _settings(flags: boot.Flags, paths: Paths) -> tuple[Loaded, str | None]:
    """Load the settings; when they are broken, those that worked last (and why), if there are any."""
    try:
        return flags.load(paths), None
    except SettingsError as error:
        kept = recall_valid(paths.run_dir)
        if kept is None:
            raise
        return kept, f"the settings cannot be loaded, those that worked last are in force: {error.detail}"
