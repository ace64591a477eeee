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


def start_daemon(invocation: Invocation, timeout: float) -> None:
    """Start the unit that is installed for this very socket, else `pxd` itself; return when its socket answers."""
    with invocation.spinner("pxd", "starting…"):
        by_unit = HERE == SYSTEMD and Service(invocation).start_unit()
        if not (by_unit and answers(Client(invocation.socket_path), timeout)):
            spawn_daemon(invocation, timeout)


def is_listened_at(path: str) -> bool:
    """Say whether somebody holds the socket; a service manager would put its own in that place."""
    try:
        Exchange(path).close()
    except Unreachable:
        return False
    return True


def finding(name: str, status: str, detail: str, repair: str | None = None) -> Document:
    return {"name": name, "status": status, "detail": detail, "repair": repair}


class Service:
    """The service of the user, or with `--system` of the machine, with one of the service managers."""

    def __init__(self, invocation: Invocation, platform: str = HERE) -> None:
        self._invocation, self._is_systemd = invocation, platform == SYSTEMD
        self._flag, self._scope = (" --system", []) if invocation.system else ("", ["--user"])
        folder, names = Path("/etc/systemd/system"), [_SERVICE, _SOCKET]
        if platform == LAUNCHD:  # which wants a file to be called after its label
            folder = Path("/Library/LaunchDaemons" if invocation.system else "~/Library/LaunchAgents")
            names = [f"{_LABEL}.plist"]
        elif not invocation.system:
            config = invocation.env.get("XDG_CONFIG_HOME", "")
            folder = Path(config if config.startswith("/") else "~/.config") / "systemd/user"
        self._places = [folder.expanduser() / name for name in names]

    def texts(self, *, on_demand: bool) -> Texts:
        """Return the files of the service, each with its text; what is enabled and started is the last one."""
        kinds = [SYSTEMD, "systemd-socket"] if self._is_systemd else ["launchd-socket" if on_demand else LAUNCHD]
        kinds = kinds if on_demand else kinds[:1]
        texts = [ask_pxd(self._invocation, "--print-unit", kind).decode() for kind in kinds]
        return dict(zip(self._places, texts, strict=False))

    def own_files(self) -> list[Path]:
        return [path for path in self._places if path.exists()]

    def _found_files(self) -> list[Path]:
        """Return those, or the unit that a package has brought."""
        found = self.own_files()
        if not found and self._is_systemd:
            with contextlib.suppress(Failure):  # no systemd here
                found = [Path(self._show(_SERVICE, "FragmentPath") or "/nowhere")]
        return [path for path in found if path.exists()]

    def check_place(self, texts: Texts, *, force: bool) -> None:
        """Raise Failure, before anything is written, where an install cannot work or would take another one's place."""
        if self._is_systemd:
            number = re.search(r"\d+", self._systemctl("show", "--property=Version"))
            if number is not None and int(number[0]) < _OLDEST_SYSTEMD:
                raise _no_manager(f"this is systemd {number[0]}; the unit needs systemd {_OLDEST_SYSTEMD}")
        elif shutil.which("launchctl") is None:
            raise _no_manager("there is no launchctl here")
        ask_pxd(self._invocation, "--check-config", "--json")
        there = self.own_files()
        if there and len(there) != len(texts):
            detail = f"pxd is installed to start {'on demand' if len(there) > 1 else 'at boot or login'}: {there[0]}"
            raise Failure(detail, kind="conflict", hint=f"pxctl daemon uninstall{self._flag}, then install again")
        for path in [] if force else self._found_files():
            (ours, _), (theirs, _) = parse_unit(next(iter(texts.values()))), read_unit(path)
            is_other = theirs[:1] != ours[:1]
            if _text(path) == texts.get(path) or (path not in texts and not is_other):
                continue
            detail = f"{path} is there already and differs from what would be written"
            if is_other and theirs:
                version = _version(theirs) or "not there"
                detail += f": it runs {theirs[0]} ({version}), this is {ours[0]} ({own_version()})"
            hint = "pxctl daemon install --print shows the new text; --force overwrites"
            raise Failure(detail, kind="conflict", hint=hint, path=str(path))

    def install(self, texts: Texts, *, start: bool) -> bool:
        """Write the files, have the service manager start pxd at every boot or login, and now if wanted.

        Returns False where all was there as it is. A failure, also of the start, leaves everything as it was before.
        """
        before = {path: _text(path) if path.exists() else None for path in texts}
        main, began = list(texts)[-1], time.time()
        try:
            for path, text in texts.items():
                if before[path] != text:
                    _write(path, text)
            if self._is_systemd:
                self._systemctl("daemon-reload")
                for verb in ("enable", "start") if start else ("enable",):
                    self._systemctl(verb, main.name)
            elif start:
                os.makedirs(os.path.dirname(self._invocation.socket_path), 0o700, exist_ok=True)  # launchd makes none
                _manage("launchctl", "bootstrap", self._domain, str(main))
        except BaseException as error:
            if isinstance(error, Failure) and self._is_systemd:
                error.hint = f"pxctl daemon install{self._flag}, once that is mended; all is as it was before"
                error.extra["stderr_tail"] = self._last_words(began)
            with contextlib.suppress(Failure, OSError):
                if not any(before.values()):
                    self._turn_off(list(before))
            for path, old in before.items():
                if old is not None:
                    _write(path, old)
            self._forget([path for path, old in before.items() if old is None])
            raise
        return before != texts

    def _last_words(self, since: float) -> str:
        if shutil.which("journalctl") is None:
            return ""
        run(["journalctl", "--sync"])  # they may still be under way; who may not ask for that reads on
        return run(
            ["journalctl", *self._scope, "-q", "-ocat", "-n9", f"-S@{since:.3f}", f"-u{_SERVICE}", f"-u{_SOCKET}"]
        ).stdout

    def start_unit(self) -> bool:
        """Have systemd start pxd where a unit for this very socket is installed; say whether it did."""
        there, system = self.own_files(), self._invocation.system
        variables = read_unit(there[0])[1] if there else {}
        env = {key: value for key, value in self._invocation.env.items() if not key.startswith("PX_")} | variables
        if not there or find_socket(env, explicit=None, system=system) != self._invocation.socket_path:
            return False
        try:
            with contextlib.suppress(Failure):  # nothing failed
                self._systemctl("reset-failed", *(path.name for path in there))
            self._systemctl("start", there[-1].name)
        except Failure as failure:
            if failure.kind != "no_service_manager":
                raise
            return False
        return True

    def is_active(self, texts: Texts) -> bool:
        return self._is_systemd and self._show(list(texts)[-1].name, "ActiveState") == "active"

    def is_waiting(self) -> bool:
        """Say whether systemd listens at the socket, and pxd does not run: it would start if somebody asked it."""
        with contextlib.suppress(Failure):
            listens = self._show(_SOCKET, "SubState") == "listening"
            return listens and self._show(_SOCKET, "Listen") == f"{self._invocation.socket_path} (Stream)"
        return False

    def lingers(self) -> str | None:
        """Return the command that lets a user's units live on after logout; None where nothing is to be done."""
        user = pwd.getpwuid(os.getuid()).pw_name
        if not self._is_systemd or self._invocation.system or (_LINGER / user).exists():
            return None
        return f"loginctl enable-linger {user}"

    def uninstall(self, paths: list[Path]) -> None:
        """Stop the service, make the service manager forget it, and remove its files.

        They go even where no service manager runs: it must not come back at the next boot.
        """
        try:
            self._turn_off(paths)
        except Failure as failure:
            if failure.kind != "no_service_manager":
                raise
            self._invocation.warn(f"pxctl: {failure.detail}")
        self._forget(paths)

    def _turn_off(self, paths: list[Path]) -> None:
        if not self._is_systemd:
            _manage("launchctl", "bootout", f"{self._domain}/{_LABEL}")
            return
        names = [path.name for path in reversed(paths)]
        self._systemctl("disable", "--now", *names)
        with contextlib.suppress(Failure):  # nothing failed
            self._systemctl("reset-failed", *names)
        with contextlib.suppress(Failure):  # a systemd before 243
            if not is_listened_at(self._invocation.socket_path):  # by a daemon that was started by hand
                self._systemctl("clean", "--what=runtime", _SERVICE)

    def _forget(self, paths: list[Path]) -> None:
        for path in paths:
            for one in (path, *path.parent.glob(f"*.wants/{path.name}")):  # links, which stay where no manager runs
                one.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                os.removedirs(path.parent)  # as far up as they are empty
        if self._is_systemd:
            with contextlib.suppress(Failure):
                self._systemctl("daemon-reload")

    def check(self) -> Iterator[Document]:
        """Yield what doctor says of the unit: is it there, does it run this version, is it enabled, does it linger?"""
        there, again = self._found_files(), f"pxctl daemon install{self._flag}"
        if not there:
            detail = "no systemd or launchd unit is installed; the daemon does not come back after a boot or a crash"
            yield finding("service_unit", "warn", detail, again)
            return
        main, (command, _) = there[-1], read_unit(there[0])
        program, version = command[0] if command else "nothing", _version(command)
        again += " --on-demand" if len(there) > 1 else ""
        enabled = active = ""
        if self._is_systemd:
            with contextlib.suppress(Failure):  # it does not run here
                enabled, active = (self._show(main.name, name) for name in ("UnitFileState", "ActiveState"))
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
            status, repair = "fail", f"pxctl daemon start{self._flag}"
            detail = f"{main.name} has failed, and systemd starts it no more"
        yield finding("service_unit", status, detail, repair)
        if repair := self.lingers():
            yield finding("linger", "warn", "the user's unit is stopped at logout, with everything it holds", repair)

    @property
    def _domain(self) -> str:
        return "system" if self._invocation.system else f"gui/{os.getuid()}"

    def _show(self, unit: str, name: str) -> str:
        return self._systemctl("show", f"--property={name}", unit).strip().partition("=")[2]

    def _systemctl(self, *arguments: str) -> str:
        return _manage("systemctl", *self._scope, *arguments)


# -- files and programs -----------------------------------------------------------------------------------------------


def read_unit(path: Path) -> tuple[list[str], dict[str, str]]:
    """Return command and variables of a service file; nothing where it cannot be understood."""
    return parse_unit(_text(path))


def parse_unit(text: str) -> tuple[list[str], dict[str, str]]:
    with contextlib.suppress(ValueError, KeyError, plistlib.InvalidFileException):
        if text.startswith("<?xml"):
            job = plistlib.loads(text.encode())
            return job["ProgramArguments"], job["EnvironmentVariables"]
        lines = re.findall(r"^(ExecStart|Environment)=(.+)$", text, re.MULTILINE)
        words = [(key, word.replace("%%", "%")) for key, value in lines for word in shlex.split(value)]
        variables = dict(word.split("=", 1) for key, word in words if key == "Environment")
        return [word.replace("$$", "$") for key, word in words if key == "ExecStart"], variables
    return [], {}


def _text(path: Path) -> str:
    return path.read_text("utf-8", "surrogateescape")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    output.write_whole(path, [text.encode("utf-8", "surrogateescape")])
    path.chmod(0o644)


def _version(command: list[str]) -> str | None:
    """Return the version of pxd that a command runs; None: its program is not there, or is no pxd."""
    start = command[: command.index("--foreground")] if "--foreground" in command else command[:1]
    with contextlib.suppress(Failure, OSError):
        if found := re.match(r"pxd (\S+)", run([*start, "--version"]).stdout):
            return found[1]
    return None


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
