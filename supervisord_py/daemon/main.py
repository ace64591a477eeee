"""`pxd`: checks everything that can be checked before anything runs, then becomes the keeper (same
pid, by exec).

Settings, places, the lock, the socket: whatever is wrong with them is said here, on stderr, with
the exit code of its kind (CONTRACT §2): 78 for settings and for a ledger that cannot be used, 8 for
a second daemon, 6 for a directory of somebody else.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from supervisord_py import __version__
from supervisord_py.daemon import lock
from supervisord_py.daemon.paths import absolute, check_socket_length, guard_directory, make_places
from supervisord_py.daemon.settings import (
    Flags,
    Loaded,
    SettingsError,
    keep_valid,
    keeper_argv,
    recall_valid,
)
from supervisord_py.errors import EXIT_BAD_SETTINGS, PxError
from supervisord_py.ledger.place import check_place

OPEN_FILES = 16_384
"""Wanted soft limit of open files: each child costs the keeper a handful, and shells give 1024
(macOS: 256).
"""

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
Exit: 0 stopped · 2 usage · 6 permission denied · 8 another daemon is there · 78 bad settings,
or a ledger that cannot be used.
"""


@click.command(
    help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option(
    "--foreground", is_flag=True, expose_value=False, help="As always; for readers of unit files."
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="Settings instead of pxd.toml; conf.d beside it is read.",
)
@click.option(
    "--system", is_flag=True, help="Work for the machine: /etc/pxd, /var/lib/pxd, /run/pxd."
)
@click.option("--socket", "socket_path", metavar="PATH", help="Control socket (as PX_SOCKET).")
@click.option(
    "--set",
    "settings",
    metavar="SECTION.KEY=VALUE",
    multiple=True,
    help="Set one setting; repeatable.",
)
@click.option(
    "--check-config", "act", flag_value="check", help="Check the settings and exit: 0 good, 78 bad."
)
@click.option(
    "--show-config",
    "act",
    flag_value="show",
    help="Print every setting with value and origin, and exit.",
)
@click.option(
    "--check-ledger",
    "act",
    flag_value="ledger",
    help="Check the ledger and exit: 0 good, 78 unusable.",
)
@click.option(
    "--print-unit",
    type=click.Choice(["systemd", "systemd-socket", "launchd", "launchd-socket"]),
    help="Print a service file and exit; -socket: what starts pxd when somebody connects.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="With a --check-… or --show-config: one JSON document."
)
@click.version_option(
    __version__, "-V", "--version", prog_name="pxd", message="%(prog)s %(version)s"
)
def main(
    *,
    config_file: str | None,
    system: bool,
    socket_path: str | None,
    settings: tuple[str, ...],
    act: str | None,
    print_unit: str | None,
    as_json: bool,
) -> None:
    config, control = (path and str(absolute(path)) for path in (config_file, socket_path))
    flags = Flags(config, control, system, settings)
    try:
        if print_unit is not None:
            from supervisord_py.daemon.service_files import service_file

            click.echo(service_file(print_unit, flags), nl=False)
        elif act == "check":
            _check(flags, as_json=as_json)
        elif act == "show":
            rows = _validate(flags).rows()
            lines = (
                f"{row['key']} = {json.dumps(row['value'])}  # {row['origin']}" for row in rows
            )
            click.echo(
                json.dumps({"schema": "px.config/1", "settings": rows})
                if as_json
                else "\n".join(lines)
            )
        elif act == "ledger":
            from supervisord_py.ledger.schema import inspect  # sqlite3

            sentence = inspect(flags.paths().ledger_file)
            click.echo(
                json.dumps({"schema": "px.ledger/1", "detail": sentence}) if as_json else sentence
            )
        else:
            _start(flags)
    except (PxError, OSError, UnicodeError) as error:
        if not isinstance(error, PxError):
            places = f"{flags.paths().run_dir}, {flags.paths().state_dir}"
            error = PxError(
                f"cannot start: {error}", hint=f"see `df -h`, `ulimit -n` and ls -ld {places}"
            )
        for line in error.detail.splitlines():
            click.echo(f"pxd: {line}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
        sys.exit(error.exit_code)


def _start(flags: Flags) -> NoReturn:
    # the control plane reads them again, perhaps from elsewhere
    for name in ("PX_HOME", "PX_SOCKET"):
        if value := os.environ.get(name):
            os.environ[name] = str(Path(value).expanduser().absolute())
    # systemd gives root's services none, and agents need it
    os.environ.setdefault("HOME", str(Path.home()))
    paths = flags.paths()
    inherited = lock.inherited_socket(os.environ, os.getpid())
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    if inherited is None:
        check_socket_length(paths.socket)
    loaded = None
    if os.path.lexists(paths.run_dir):
        guard_directory(paths.run_dir)  # what lies there is ours
        loaded = recall_valid(paths.run_dir)
    if loaded is None or loaded.stamp != flags.stamp():
        loaded = _validate(flags)
    # From here on the daemon's own files are its user's alone; children get the umask and the limit
    # that were there.
    umask = os.umask(0o077)
    make_places(paths)
    # Sessions of one user may disagree about the runtime directory; the ledger must still have one
    # daemon only.
    lock_fd, state_fd = (
        lock.take_lock(folder / paths.lock_file.name) for folder in (paths.run_dir, paths.state_dir)
    )
    check_place(paths.ledger_file)
    listening = inherited or lock.bind_socket(paths.socket)
    for fd in (lock_fd, state_fd):
        lock.sign_lock(fd)
    for fd in (lock_fd, state_fd, listening.fileno()):
        os.set_inheritable(fd, True)
    keep_valid(paths.run_dir, loaded)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    argv = keeper_argv(
        msgspec.structs.replace(paths, socket=Path(listening.getsockname())),
        loaded.settings,
        flags,
        lock_fd=lock_fd,
        listen_fd=listening.fileno(),
        kept_fds={"state lock": state_fd},
        socket_owned=inherited is None,
        umask=umask,
        nofile=(soft, hard),
    )
    os.execv(argv[0], argv)  # noqa: S606 - to become the keeper, without a shell, is the point


def _validate(flags: Flags) -> Loaded:
    from supervisord_py.daemon.settings_reader import read_settings  # pydantic: a third of a second

    return read_settings(flags)


def _check(flags: Flags, *, as_json: bool) -> None:
    problems, warnings = [], tuple[str, ...]()
    try:
        warnings = _validate(flags).warnings
    except SettingsError as error:
        if not as_json:
            raise
        problems = error.extra["problems"]
    if as_json:
        known = {"ok": not problems, "problems": problems, "warnings": warnings}
        click.echo(json.dumps({"schema": "px.config_check/1", **known}))
        sys.exit(EXIT_BAD_SETTINGS if problems else 0)
    for warning in warnings:
        click.echo(f"pxd: warning: {warning}", err=True)
    file = flags.paths().config_file
    click.echo(f"settings are good: {file}{'' if file.exists() else ' (not there: defaults)'}")
