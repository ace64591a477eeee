"""Which service manager is here, where its unit of pxd goes, and how to turn it on and off.

Law: a file that differs from what would be written is never overwritten unasked; what could not be done is said in
words, with what was done before it.
"""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys

from pxctl.daemon_process import daemon_environment, pxd_arguments
from pxctl.failure import FAILED, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.app import Invocation

SYSTEMD = "systemd"
LAUNCHD = "launchd"
UNIT_NAME = "pxd.service"
_SECONDS = 120.0


def choose_platform(wanted: str) -> str:
    """Return the service manager of this platform, or the one that was asked for."""
    if wanted != "auto":
        return wanted
    return LAUNCHD if sys.platform == "darwin" else SYSTEMD


def unit_text(invocation: Invocation, platform: str) -> str:
    """Return the unit as pxd itself writes it."""
    arguments = pxd_arguments(invocation, "--print-unit", platform)
    ended = _run(arguments, daemon_environment(invocation))
    if ended.returncode != 0:
        raise Failure(
            f"{' '.join(arguments)} ended with exit code {ended.returncode}",
            kind="failed",
            hint="pxctl config check",
            stderr_tail=ended.stderr,
        )
    return ended.stdout


def unit_path(invocation: Invocation, platform: str, text: str) -> str:
    """Return where the unit goes. For launchd the file must be called after its label."""
    home = os.path.expanduser("~")
    if platform == LAUNCHD:
        label = plistlib.loads(text.encode())["Label"]
        folder = "/Library/LaunchDaemons" if invocation.system else os.path.join(home, "Library/LaunchAgents")
        return os.path.join(folder, f"{label}.plist")
    if invocation.system:
        return os.path.join("/etc/systemd/system", UNIT_NAME)
    config = invocation.env.get("XDG_CONFIG_HOME", "")
    folder = config if config.startswith("/") else os.path.join(home, ".config")
    return os.path.join(folder, "systemd/user", UNIT_NAME)


def write_unit(path: str, text: str, *, force: bool) -> bool:
    """Write the unit; return False when it was there as it is. A differing one is kept unless forced."""
    try:
        with open(path, encoding="utf-8") as file:
            found = file.read()
    except FileNotFoundError:
        found = None
    if found == text:
        return False
    if found is not None and not force:
        raise Failure(
            f"{path} is there already and differs from what would be written",
            kind="conflict",
            hint="pxctl daemon install --print shows the new text; --force overwrites",
            exit_code=8,
            path=path,
        )
    os.makedirs(os.path.dirname(path), exist_ok=True)
    beside = f"{path}.new"
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(beside, 0o644)
    os.replace(beside, path)
    return True


def turn_on(invocation: Invocation, platform: str, path: str, *, now: bool) -> None:
    """Make the service manager know the unit, start it at every boot or login, and now if wanted."""
    if platform == LAUNCHD:
        _launchctl("bootstrap", _launchd_domain(invocation), path)
        return
    _systemctl(invocation, "daemon-reload")
    _systemctl(invocation, "enable", *(["--now"] if now else []), UNIT_NAME)


def turn_off(invocation: Invocation, platform: str, path: str) -> None:
    """Stop the unit and make the service manager forget that it starts by itself."""
    if platform == LAUNCHD:
        label = os.path.basename(path).removesuffix(".plist")
        _launchctl("bootout", f"{_launchd_domain(invocation)}/{label}")
        return
    _systemctl(invocation, "disable", "--now", UNIT_NAME)


def after_removal(invocation: Invocation, platform: str) -> None:
    """Let the service manager see that the file is gone."""
    if platform == SYSTEMD:
        _systemctl(invocation, "daemon-reload")


def _launchd_domain(invocation: Invocation) -> str:
    return "system" if invocation.system else f"gui/{os.getuid()}"


def _launchctl(*arguments: str) -> None:
    _manage("launchctl", list(arguments), "launchd is not here")


def _systemctl(invocation: Invocation, *arguments: str) -> None:
    scope = [] if invocation.system else ["--user"]
    _manage("systemctl", [*scope, *arguments], "systemd does not run here (offline), or has no manager for this user")


def _manage(program: str, arguments: list[str], absent: str) -> None:
    if shutil.which(program) is None:
        raise Failure(f"there is no {program}: {absent}", kind="no_service_manager", hint="pxctl daemon start")
    ended = _run([program, *arguments], None)
    if ended.returncode == 0:
        return
    said = (ended.stderr or ended.stdout).strip()
    offline = any(word in said for word in ("offline", "not been booted", "Failed to connect", "No medium found"))
    why = f"{absent}: {said}" if offline else said or f"exit code {ended.returncode}"
    raise Failure(
        f"{program} {' '.join(arguments)} failed: {why}",
        kind="no_service_manager" if offline else "failed",
        hint="pxctl daemon start runs pxd without it" if offline else f"{program} {' '.join(arguments)}",
        exit_code=FAILED,
    )


def _run(arguments: list[str], env: dict[str, str] | None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            arguments,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failure(
            f"{' '.join(arguments)} did not end within {_SECONDS:g} s", kind="timed_out", exit_code=7
        ) from error
    except OSError as error:
        raise Failure(f"cannot run {arguments[0]}: {error.strerror}", kind="os_error") from error
