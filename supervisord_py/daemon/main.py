"""`pxd`: checks everything that can be checked before anything runs, then becomes the keeper (same pid, by exec).

Settings, places, the lock, the socket: whatever is wrong with them is said here, on stderr, with the exit code of its
kind (CONTRACT §2): 78 for settings, 8 for a second daemon, 6 for a directory of somebody else.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec

from supervisord_py import __version__
from supervisord_py.errors import EXIT_OK, PxError

if TYPE_CHECKING:
    import socket

    from supervisord_py.daemon.boot import Flags
    from supervisord_py.daemon.paths import Paths
    from supervisord_py.daemon.settings import Loaded

OPEN_FILES = 16_384
"""Wanted soft limit of open files: each child costs the keeper a handful, and shells give 1024 (macOS: 256)."""

_HELP = """Hold tools, kernels and agents: the daemon of supervisord_py, in the foreground.

\b
Examples:
  pxd                                  run here; ^C stops everything
  pxctl daemon start                   run in the background
  pxctl daemon install                 have systemd or launchd run it
  PX_HOME=/tmp/try pxd                 keep everything under one folder
  pxd --set tools.warm_keep_max=10     change one setting
  pxd --check-config                   say what is wrong with the settings

\b
Signals: TERM, INT orderly stop (a second one: at once) · HUP reload · USR1 dump state to the log.
Exit: 0 stopped · 2 usage · 6 permission denied · 8 another daemon is there · 78 bad settings.
"""


@click.command(help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--foreground", is_flag=True, help="Stay in the foreground (as always; for readers of unit files).")
@click.option("--config", "config_file", metavar="FILE", help="Settings instead of pxd.toml; conf.d beside it is read.")
@click.option("--system", is_flag=True, help="Work for the machine: /etc/pxd, /var/lib/pxd, /run/pxd.")
@click.option("--socket", "socket_path", metavar="PATH", help="Control socket (as PX_SOCKET).")
@click.option("--set", "settings", metavar="SECTION.KEY=VALUE", multiple=True, help="Set one setting; repeatable.")
@click.option("--check-config", "act", flag_value="check", help="Check the settings and exit: 0 good, 78 bad.")
@click.option("--show-config", "act", flag_value="show", help="Print every setting with value and origin, and exit.")
@click.option("--print-unit", type=click.Choice(["systemd", "launchd"]), help="Print a service file and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --check-config and --show-config: one JSON document.")
@click.version_option(__version__, prog_name="pxd", message="%(prog)s %(version)s")
def main(
    *,
    foreground: bool,
    config_file: str | None,
    system: bool,
    socket_path: str | None,
    settings: tuple[str, ...],
    act: str | None,
    print_unit: str | None,
    as_json: bool,
) -> None:
    """Parse the command line; `_HELP` is what the user reads."""
    del foreground  # there is nothing else
    from supervisord_py.daemon.boot import Flags

    flags = Flags(config_file, system, socket_path, settings)
    try:
        if print_unit is not None:
            _print_unit(print_unit, flags)
        elif act == "check":
            sys.exit(_check(flags, as_json=as_json))
        elif act == "show":
            _show(flags, as_json=as_json)
        else:
            _start(flags)
    except PxError as error:
        _fail(error)
    except OSError as error:
        _fail(PxError(f"cannot start: {error}", hint="see `df -h`, `ulimit -n` and the path named above"))


def _start(flags: Flags) -> NoReturn:
    from supervisord_py.daemon import boot, lock, sockets
    from supervisord_py.daemon.paths import check_socket_length, make_places
    from supervisord_py.daemon.settings import keep_valid

    _settle_environment()
    paths = flags.paths()
    inherited = _inherited()
    if inherited is None:
        check_socket_length(paths.socket)
    loaded = _load(flags, paths)
    os.umask(0o077)
    make_places(paths)
    lock_fd = lock.take_lock(paths.lock_file)
    # Sessions of one user may disagree about the runtime directory; the ledger must still have one daemon only. The
    # keeper need not know of this second lock: what it inherits it keeps open, and gives to no child.
    state_fd = lock.take_lock(paths.state_dir / paths.lock_file.name)
    listening = inherited or sockets.bind_socket(paths.socket)
    for fd in (lock_fd, state_fd):
        lock.sign_lock(fd)
    for fd in (lock_fd, state_fd, listening.fileno()):
        os.set_inheritable(fd, True)
    keep_valid(paths.run_dir, loaded)
    document = boot.boot_document(
        msgspec.structs.replace(paths, socket=Path(listening.getsockname())),
        loaded.settings,
        flags,
        lock_fd=lock_fd,
        listen_fd=listening.fileno(),
        socket_owned=inherited is None,
    )
    _raise_open_files()
    argv = boot.keeper_argv(document)
    os.execv(argv[0], argv)  # noqa: S606 - to become the keeper, without a shell, is the point


def _load(flags: Flags, paths: Paths) -> Loaded:
    """Return the settings: those that an earlier start validated, if nothing of them has changed since.

    Raises SettingsError: they are broken.
    """
    from supervisord_py.daemon.paths import guard_directory
    from supervisord_py.daemon.settings import recall_valid

    if os.path.lexists(paths.run_dir):
        guard_directory(paths.run_dir)  # what lies there is ours
        kept = recall_valid(paths.run_dir)
        if kept is not None and kept.stamp == flags.sources(paths).stamp():
            return kept
    return _validate(flags, paths)


def _validate(flags: Flags, paths: Paths) -> Loaded:
    from supervisord_py.daemon.settings_reader import read_settings  # pydantic: a third of a second

    return read_settings(flags.sources(paths))


def _inherited() -> socket.socket | None:
    """Return the socket that systemd gave; none of its descriptors goes on to children."""
    from supervisord_py.daemon import sockets

    found = sockets.inherited_socket(os.environ, os.getpid())
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    return found


def _settle_environment() -> None:
    """Make places in the environment absolute: the control plane reads it again, perhaps from elsewhere."""
    for name in ("PX_HOME", "PX_SOCKET"):
        if value := os.environ.get(name):
            os.environ[name] = str(Path(value).expanduser().absolute())


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check(flags: Flags, *, as_json: bool) -> int:
    """Say what is wrong with the settings; returns the exit code."""
    from supervisord_py.daemon.settings import SettingsError

    paths = flags.paths()
    try:
        loaded = _validate(flags, paths)
    except SettingsError as error:
        if not as_json:
            raise
        _print_json("config_check", ok=False, problems=error.extra["problems"], warnings=[])
        return error.exit_code
    if as_json:
        _print_json("config_check", ok=True, problems=[], warnings=list(loaded.warnings))
        return EXIT_OK
    for warning in loaded.warnings:
        click.echo(f"pxd: warning: {warning}", err=True)
    there = "" if paths.config_file.exists() else " (not there: defaults)"
    click.echo(f"settings are good: {paths.config_file}{there}")
    return EXIT_OK


def _show(flags: Flags, *, as_json: bool) -> None:
    rows = list(_validate(flags, flags.paths()).rows())
    if as_json:
        _print_json("config", settings=[{"key": key, "value": value, "origin": origin} for key, value, origin in rows])
        return
    for key, value, origin in rows:
        click.echo(f"{key} = {json.dumps(value)}  # {origin}")


def _print_unit(kind: str, flags: Flags) -> None:
    from supervisord_py.daemon import service_files

    command = service_files.own_command(sys.argv[0], flags.words())
    scope = flags.scope
    text = (
        service_files.systemd_unit(command, scope) if kind == "systemd" else service_files.launchd_plist(command, scope)
    )
    click.echo(text, nl=False)


def _print_json(noun: str, **members: Any) -> None:
    click.echo(json.dumps({"schema": f"px.{noun}/1", **members}))


def _fail(error: PxError) -> NoReturn:
    for line in error.detail.splitlines():
        click.echo(f"pxd: {line}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)
    sys.exit(error.exit_code)
