"""`pxd` as a service: its unit with systemd or launchd, written by pxd itself, enabled and removed here.

A unit file that differs from what would be written is never overwritten unasked.
"""

from __future__ import annotations

import os
import plistlib
import shutil
from pathlib import Path

from pxctl.daemon_process import ask_pxd, run
from pxctl.failures import Exit, Failure
from pxctl.invocation import Invocation

SYSTEMD, LAUNCHD = "systemd", "launchd"
_UNIT_NAME = "pxd.service"


def unit_text(invocation: Invocation, platform: str) -> str:
    return ask_pxd(invocation, "--print-unit", platform).decode("utf-8", "surrogateescape")


def unit_path(invocation: Invocation, platform: str, text: str) -> Path:
    """Return where the unit goes. For launchd the file must be called after its label."""
    if platform == LAUNCHD:
        agents = Path("~/Library/LaunchAgents").expanduser()
        folder = Path("/Library/LaunchDaemons") if invocation.system else agents
        return folder / f"{plistlib.loads(text.encode())['Label']}.plist"
    if invocation.system:
        return Path("/etc/systemd/system") / _UNIT_NAME
    config = invocation.env.get("XDG_CONFIG_HOME", "")
    return Path(config if config.startswith("/") else "~/.config").expanduser() / "systemd/user" / _UNIT_NAME


def write_unit(path: Path, text: str, *, force: bool) -> bool:
    """Write the unit; return False when it was there as it is. A differing one is kept unless forced."""
    found = path.read_text("utf-8") if path.exists() else None
    if found == text:
        return False
    if found is not None and not force:
        detail = f"{path} is there already and differs from what would be written"
        hint = "pxctl daemon install --print shows the new text; --force overwrites"
        raise Failure(detail, kind="conflict", hint=hint, path=str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text, "utf-8")
    beside.chmod(0o644)
    beside.replace(path)
    return True


def turn_on(invocation: Invocation, platform: str, path: Path, *, now: bool) -> None:
    """Make the service manager know the unit, start it at every boot or login, and now if wanted."""
    if platform == LAUNCHD:
        _manage("launchctl", "bootstrap", _domain(invocation), str(path))
        return
    _systemctl(invocation, "daemon-reload")
    _systemctl(invocation, "enable", *(["--now"] if now else []), _UNIT_NAME)


def turn_off(invocation: Invocation, platform: str, path: Path) -> None:
    """Stop the unit, make the service manager forget it, and remove its file.

    The file goes even where no service manager runs: it must not come back at the next boot.
    """
    try:
        if platform == LAUNCHD:
            _manage("launchctl", "bootout", f"{_domain(invocation)}/{path.stem}")
        else:
            _systemctl(invocation, "disable", "--now", _UNIT_NAME)
        path.unlink()
        if platform == SYSTEMD:
            _systemctl(invocation, "daemon-reload")
    except Failure as failure:
        if failure.kind != "no_service_manager":
            raise
        path.unlink(missing_ok=True)
        invocation.warn(f"pxctl: {failure.detail}")


def _domain(invocation: Invocation) -> str:
    return "system" if invocation.system else f"gui/{os.getuid()}"


def _systemctl(invocation: Invocation, *arguments: str) -> None:
    _manage("systemctl", *([] if invocation.system else ["--user"]), *arguments)


def _manage(*argv: str) -> None:
    if shutil.which(argv[0]) is None:
        raise Failure(f"there is no {argv[0]} here", kind="no_service_manager", hint="pxctl daemon start")
    ended = run(list(argv))
    if ended.returncode == Exit.OK:
        return
    said = (ended.stderr or ended.stdout).strip() or f"exit code {ended.returncode}"
    if any(word in said for word in ("offline", "not been booted", "Failed to connect", "No medium found")):
        detail = f"{argv[0]} does not run here, or has no manager for this user: {said}"
        raise Failure(detail, kind="no_service_manager", hint="pxctl daemon start runs pxd without it")
    raise Failure(f"{' '.join(argv)} failed: {said}", hint=" ".join(argv))
