"""`pxd` as a service: its units with systemd or launchd, written by pxd itself, enabled, checked and removed here.

What is there and differs is never overwritten unasked; an install that fails leaves everything as it was before.
"""

from __future__ import annotations

import contextlib
import os
import plistlib
import pwd
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pxctl import output
from pxctl.client import Client, Document, Exchange, Exit, Failure, Unreachable
from pxctl.daemon_process import answers, ask_pxd, run, spawn_daemon
from pxctl.invocation import Invocation
from pxctl.paths import find_socket, own_version

START_SECONDS = 30.0
SYSTEMD, LAUNCHD = "systemd", "launchd"
HERE = LAUNCHD if sys.platform == "darwin" else SYSTEMD
_SERVICE, _SOCKET, _LABEL = "pxd.service", "pxd.socket", "io.github.supervisord-py.pxd"
_OLDEST_SYSTEMD = 235  # RuntimeDirectoryPreserve=: before it, a restart removes the socket's directory
_LINGER = Path("/var/lib/systemd/linger")

Texts = Mapping[Path, str]


# -- what is to be written, and what is there -------------------------------------------------------------------------


def unit_texts(invocation: Invocation, platform: str, *, on_demand: bool) -> Texts:
    """Return the files of the service, each with its text; what is enabled and started is the last one."""
    kinds = [platform]
    if on_demand:
        kinds = ["launchd-socket"] if platform == LAUNCHD else [SYSTEMD, "systemd-socket"]
    texts = [ask_pxd(invocation, "--print-unit", kind).decode() for kind in kinds]
    return dict(zip(_places(invocation, platform), texts, strict=False))


def own_files(invocation: Invocation, platform: str) -> list[Path]:
    return [path for path in _places(invocation, platform) if path.exists()]


def _found_files(invocation: Invocation, platform: str) -> list[Path]:
    """Return those, or the unit that a package has brought."""
    found = own_files(invocation, platform)
    if not found and platform == SYSTEMD:
        with contextlib.suppress(Failure):  # no systemd here
            found = [Path(_show(invocation, _SERVICE, "FragmentPath") or "/nowhere")]
    return [path for path in found if path.exists()]


def _places(invocation: Invocation, platform: str) -> list[Path]:
    if platform == LAUNCHD:  # which wants a file to be called after its label
        folder = Path("/Library/LaunchDaemons" if invocation.system else "~/Library/LaunchAgents").expanduser()
        return [folder / f"{_LABEL}.plist"]
    folder = Path("/etc/systemd/system")
    if not invocation.system:
        config = invocation.env.get("XDG_CONFIG_HOME", "")
        folder = Path(config if config.startswith("/") else "~/.config").expanduser() / "systemd/user"
    return [folder / _SERVICE, folder / _SOCKET]


def read_file(text: str) -> tuple[list[str], dict[str, str]]:
    """Return command and variables of a service file; nothing where it cannot be understood."""
    with contextlib.suppress(ValueError, KeyError, plistlib.InvalidFileException):
        if text.startswith("<?xml"):
            job = plistlib.loads(text.encode())
            return job["ProgramArguments"], job["EnvironmentVariables"]
        lines = re.findall(r"^(ExecStart|Environment)=(.+)$", text, re.MULTILINE)
        words = [(key, word.replace("%%", "%")) for key, value in lines for word in shlex.split(value)]
        variables = dict(word.split("=", 1) for key, word in words if key == "Environment")
        return [word.replace("$$", "$") for key, word in words if key == "ExecStart"], variables
    return [], {}


def text_of(path: Path) -> str:
    return path.read_text("utf-8", "surrogateescape")


def _version(command: list[str]) -> str | None:
    """Return the version of pxd that a command runs; None: its program is not there, or is no pxd."""
    start = command[: command.index("--foreground")] if "--foreground" in command else command[:1]
    with contextlib.suppress(Failure, OSError):
        if found := re.match(r"pxd (\S+)", run([*start, "--version"]).stdout):
            return found[1]
    return None


# -- install, start ---------------------------------------------------------------------------------------------------


def check_place(invocation: Invocation, platform: str, texts: Texts, *, force: bool) -> None:
    """Raise Failure, before anything is written, where an install cannot work or would take another one's place."""
    if platform == SYSTEMD:
        number = re.search(r"\d+", _systemctl(invocation, "show", "--property=Version"))
        if number is not None and int(number[0]) < _OLDEST_SYSTEMD:
            raise _no_manager(f"this is systemd {number[0]}; the unit needs systemd {_OLDEST_SYSTEMD}")
    elif shutil.which("launchctl") is None:
        raise _no_manager("there is no launchctl here")
    ask_pxd(invocation, "--check-config", "--json")
    there = own_files(invocation, platform)
    if there and len(there) != len(texts):
        detail = f"pxd is installed to start {'on demand' if len(there) > 1 else 'at boot or login'}: {there[0]}"
        raise Failure(detail, kind="conflict", hint=f"pxctl daemon uninstall{_flag(invocation)}, then install again")
    for path in [] if force else _found_files(invocation, platform):
        text, (ours, _) = text_of(path), read_file(next(iter(texts.values())))
        theirs, _ = read_file(text)
        is_other = theirs[:1] != ours[:1]
        if text == texts.get(path) or (path not in texts and not is_other):
            continue
        detail = f"{path} is there already and differs from what would be written"
        if is_other and theirs:
            version = _version(theirs) or "not there"
            detail += f": it runs {theirs[0]} ({version}), this is {ours[0]} ({own_version()})"
        hint = "pxctl daemon install --print shows the new text; --force overwrites"
        raise Failure(detail, kind="conflict", hint=hint, path=str(path))


def install(invocation: Invocation, platform: str, texts: Texts, *, start: bool) -> bool:
    """Write the files, have the service manager start pxd at every boot or login, and now if wanted.

    Returns False where all was there as it is. A failure, also of the start, leaves everything as it was before.
    """
    before = {path: text_of(path) if path.exists() else None for path in texts}
    main, began = list(texts)[-1], time.time()
    try:
        for path, text in texts.items():
            if before[path] != text:
                _write(path, text)
        if platform == LAUNCHD and start:
            os.makedirs(os.path.dirname(invocation.socket_path), 0o700, exist_ok=True)  # launchd makes none
            _manage("launchctl", "bootstrap", _domain(invocation), str(main))
        elif platform == SYSTEMD:
            _systemctl(invocation, "daemon-reload")
            for verb in ("enable", "start") if start else ("enable",):
                _systemctl(invocation, verb, main.name)
    except BaseException as error:
        if isinstance(error, Failure) and platform == SYSTEMD:
            error.hint = f"pxctl daemon install{_flag(invocation)}, once that is mended; all is as it was before"
            error.extra["stderr_tail"] = _last_words(invocation, began)
        with contextlib.suppress(Failure, OSError):
            if not any(before.values()):
                _turn_off(invocation, platform, list(before))
        for path, old in before.items():
            if old is not None:
                _write(path, old)
        _forget(invocation, platform, [path for path, old in before.items() if old is None])
        raise
    return before != texts


def _last_words(invocation: Invocation, since: float) -> str:
    if shutil.which("journalctl") is None:
        return ""
    run(["journalctl", "--sync"])  # they may still be under way; who may not ask for that reads on
    scope = [] if invocation.system else ["--user"]
    return run(["journalctl", *scope, "-q", "-ocat", "-n9", f"-S@{since:.3f}", f"-u{_SERVICE}", f"-u{_SOCKET}"]).stdout


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    output.write_whole(path, [text.encode("utf-8", "surrogateescape")])
    path.chmod(0o644)


def start_daemon(invocation: Invocation, timeout: float) -> None:
    """Start the unit that is installed for this very socket, else `pxd` itself; return when its socket answers."""
    with invocation.spinner("pxd", "starting…"):
        if not (_start_unit(invocation) and answers(Client(invocation.socket_path), timeout)):
            spawn_daemon(invocation, timeout)


def _start_unit(invocation: Invocation) -> bool:
    """Have systemd start pxd where a unit for this very socket is installed; say whether it did."""
    there = own_files(invocation, SYSTEMD) if HERE == SYSTEMD else []
    variables = read_file(text_of(there[0]))[1] if there else {}
    env = {key: value for key, value in invocation.env.items() if not key.startswith("PX_")} | variables
    if not there or find_socket(env, explicit=None, system=invocation.system) != invocation.socket_path:
        return False
    try:
        with contextlib.suppress(Failure):  # nothing failed
            _systemctl(invocation, "reset-failed", *(path.name for path in there))
        _systemctl(invocation, "start", there[-1].name)
    except Failure as failure:
        if failure.kind != "no_service_manager":
            raise
        return False
    return True


def is_active(invocation: Invocation, platform: str, texts: Texts) -> bool:
    return platform == SYSTEMD and _show(invocation, list(texts)[-1].name, "ActiveState") == "active"


def is_waiting(invocation: Invocation) -> bool:
    """Say whether systemd listens at the socket, and pxd does not run: it would start if somebody asked it."""
    with contextlib.suppress(Failure):
        listens = _show(invocation, _SOCKET, "SubState") == "listening"
        return listens and _show(invocation, _SOCKET, "Listen") == f"{invocation.socket_path} (Stream)"
    return False


def is_listened_at(path: str) -> bool:
    """Say whether somebody holds the socket; a service manager would put its own in that place."""
    try:
        Exchange(path).close()
    except Unreachable:
        return False
    return True


def lingers(invocation: Invocation, platform: str) -> str | None:
    """Return the command that lets a user's units live on after logout; None where nothing is to be done."""
    user = pwd.getpwuid(os.getuid()).pw_name
    if platform == LAUNCHD or invocation.system or (_LINGER / user).exists():
        return None
    return f"loginctl enable-linger {user}"


# -- uninstall --------------------------------------------------------------------------------------------------------


def uninstall(invocation: Invocation, platform: str, paths: list[Path]) -> None:
    """Stop the service, make the service manager forget it, and remove its files.

    They go even where no service manager runs: it must not come back at the next boot.
    """
    try:
        _turn_off(invocation, platform, paths)
    except Failure as failure:
        if failure.kind != "no_service_manager":
            raise
        invocation.warn(f"pxctl: {failure.detail}")
    _forget(invocation, platform, paths)


def _turn_off(invocation: Invocation, platform: str, paths: list[Path]) -> None:
    if platform == LAUNCHD:
        _manage("launchctl", "bootout", f"{_domain(invocation)}/{_LABEL}")
        return
    names = [path.name for path in reversed(paths)]
    _systemctl(invocation, "disable", "--now", *names)
    with contextlib.suppress(Failure):  # nothing failed
        _systemctl(invocation, "reset-failed", *names)
    with contextlib.suppress(Failure):  # a systemd before 243
        if not is_listened_at(invocation.socket_path):  # by a daemon that was started by hand
            _systemctl(invocation, "clean", "--what=runtime", _SERVICE)


def _forget(invocation: Invocation, platform: str, paths: list[Path]) -> None:
    for path in paths:
        for one in (path, *path.parent.glob(f"*.wants/{path.name}")):  # links, which stay where no manager runs
            one.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.removedirs(path.parent)  # as far up as they are empty
    if platform == SYSTEMD:
        with contextlib.suppress(Failure):
            _systemctl(invocation, "daemon-reload")


# -- doctor -----------------------------------------------------------------------------------------------------------


def finding(name: str, status: str, detail: str, repair: str | None = None) -> Document:
    return {"name": name, "status": status, "detail": detail, "repair": repair}


def check(invocation: Invocation, platform: str) -> Iterator[Document]:
    """Yield what doctor says of the unit: is it there, does it run this version, is it enabled, does it linger?"""
    there, again = _found_files(invocation, platform), f"pxctl daemon install{_flag(invocation)}"
    if not there:
        detail = "no systemd or launchd unit is installed; the daemon does not come back after a boot or a crash"
        yield finding("service_unit", "warn", detail, again)
        return
    main, (command, _) = there[-1], read_file(text_of(there[0]))
    program, version = command[0] if command else "nothing", _version(command)
    again += " --on-demand" if len(there) > 1 else ""
    enabled = active = ""
    if platform == SYSTEMD:
        with contextlib.suppress(Failure):  # it does not run here
            enabled, active = (_show(invocation, main.name, name) for name in ("UnitFileState", "ActiveState"))
    status, detail, repair = "ok", str(main), None
    if version is None:
        status, repair = "fail", f"{again} --force"
        detail = f"{there[0]} runs {program}, which is not there or is no pxd"
    elif version != own_version():
        status, repair = "warn", f"{again} --force"
        detail = f"{there[0]} runs pxd {version} ({program}); this is {own_version()}"
    elif enabled == "disabled":
        status, detail, repair = "warn", f"{main} is disabled", again
    elif active == "failed":
        status, repair = "fail", f"pxctl daemon start{_flag(invocation)}"
        detail = f"{main.name} has failed, and systemd starts it no more"
    yield finding("service_unit", status, detail, repair)
    if repair := lingers(invocation, platform):
        yield finding("linger", "warn", "the user's unit is stopped at logout, with everything it holds", repair)


# -- the service managers ---------------------------------------------------------------------------------------------


def _flag(invocation: Invocation) -> str:
    return " --system" if invocation.system else ""


def _domain(invocation: Invocation) -> str:
    return "system" if invocation.system else f"gui/{os.getuid()}"


def _show(invocation: Invocation, unit: str, name: str) -> str:
    return _systemctl(invocation, "show", f"--property={name}", unit).strip().partition("=")[2]


def _systemctl(invocation: Invocation, *arguments: str) -> str:
    return _manage("systemctl", *([] if invocation.system else ["--user"]), *arguments)


def _manage(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        raise _no_manager(f"there is no {argv[0]} here")
    ended = run(list(argv))
    if ended.returncode == Exit.OK:
        return ended.stdout
    said = (ended.stderr or ended.stdout).strip() or f"exit code {ended.returncode}"
    if any(word in said for word in ("offline", "not been booted", "Failed to connect", "No medium found")):
        raise _no_manager(f"{argv[0]} does not run here, or has no manager for this user: {said}")
    raise Failure(f"{' '.join(argv)} failed: {said}", hint=" ".join(argv))


def _no_manager(detail: str) -> Failure:
    return Failure(detail, kind="no_service_manager", hint="pxctl daemon start runs pxd without it")
