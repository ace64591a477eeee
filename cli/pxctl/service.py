"""`pxd` as a process and as a service: started in the background or by systemd or launchd, asked,
installed, stopped.

When a start returns, the daemon answers; when it cannot, the user sees what the daemon itself said.
"Stopped" is said when the keeper and each child that was seen before are gone by pid and start
time, not when the daemon said so. A service file that is there and differs is never overwritten
unasked; a failed install leaves everything as it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import plistlib
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from pxctl import output, paths
from pxctl.app import Invocation
from pxctl.client import Client, Document, Exchange, Exit, Failure, Unreachable
from pxctl.log_file import open_log

START_SECONDS = 30.0
SYSTEMD, LAUNCHD = "systemd", "launchd"
HERE = LAUNCHD if sys.platform == "darwin" else SYSTEMD
_SERVICE, _SOCKET, _LABEL = "pxd.service", "pxd.socket", "io.github.supervisord-py.pxd"
# RuntimeDirectoryPreserve=: before it, a restart removes the socket's directory
_OLDEST_SYSTEMD = 235
_LINGER = Path("/var/lib/systemd/linger")
_LOSER_SECONDS = 10.0  # so long is waited for the other one where two are started at once
_LOST_TO_ANOTHER, _BAD_SETTINGS = 8, 78
_PAUSE_SECONDS = 0.02
_READ_SECONDS = 10.0
_TAIL_BYTES = 16 * 1024

Texts = Mapping[Path, str]


# -- as a process ----------------------------------------------------------------------------------


def find_program(name: str, env: Mapping[str, str]) -> str | None:
    """Return a program: beside this one, beside its interpreter, else on PATH."""
    beside = [Path(path) for path in (sys.argv[0], sys.executable)]
    # Resolved only second: a virtual environment's python is a link out of it.
    folders = [str(found.parent) for one in beside for found in (one.absolute(), one.resolve())]
    return shutil.which(name, path=os.pathsep.join([*folders, env.get("PATH", os.defpath)]))


def find_pxd(env: Mapping[str, str]) -> str:
    found = find_program("pxd", env)
    if found is None:
        detail, hint = "pxd is neither beside pxctl nor on PATH", "pip install supervisord-py"
        raise Failure(detail, kind="not_installed", hint=hint, exit_code=Exit.UNREACHABLE)
    return found


def _pxd(invocation: Invocation, *arguments: str) -> tuple[list[str], dict[str, str]]:
    argv = [find_pxd(invocation.env), *(["--system"] if invocation.system else []), *arguments]
    return argv, {
        **invocation.env,
        **({"PX_SOCKET": invocation.socket_path} if invocation.socket else {}),
    }


def answers(client: Client, timeout: float = 1.0) -> bool:
    with contextlib.suppress(Failure):
        return bool(client.get("/api/health", timeout=timeout))
    return False


def spawn_daemon(invocation: Invocation, timeout: float) -> None:
    """Start `pxd`, detached; return when its socket answers.

    Raises Failure: it ended first (with its last words), or does not answer within `timeout`
    seconds.
    """
    argv, env = _pxd(invocation)
    path = Path(paths.find_log_file(invocation.env, system=invocation.system))
    with open_log(str(path), own_folder=bool(invocation.env.get("LOGS_DIRECTORY"))) as log:
        before = os.fstat(log.fileno()).st_size
        settings: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        # The umask is passed on: pxd closes its own files to others, and what it starts gets the
        # user's.
        child = subprocess.Popen(argv, env=env, start_new_session=True, **settings)
    try:
        _await_answer(Client(invocation.socket_path), child, timeout)
    except Failure as failure:
        if failure.extra.get("daemon_exit_code") == _BAD_SETTINGS:
            _explain(invocation, failure)
        written = path.read_bytes()
        if len(written) >= before:  # else it was rotated meanwhile
            written = written[before:]
        cause = _reported_cause(written)
        if failure.kind == "timed_out" and cause is not None:
            failure.detail = f"{failure.detail}: {cause['detail']}; it goes on trying"
            failure.hint = cause["hint"]
        tail = written[-_TAIL_BYTES:].decode("utf-8", "replace")
        failure.extra |= {
            "daemon_pid": child.pid if child.poll() is None else None,
            "stderr_tail": tail,
        }
        raise
    finally:
        # The daemon outlives us on purpose; without this the interpreter would warn of a forgotten
        # child.
        child.returncode = child.poll() or 0


def _reported_cause(log: bytes) -> Document | None:
    """Return the last record of a log that says why a control plane could not serve, with
    `detail` and `hint`.
    """
    for line in reversed(log.splitlines()):
        try:
            record = json.loads(line)
        except ValueError:
            continue  # words of another program, or the first half of a line
        if isinstance(record, dict) and record.get("event") == "control_failed":
            return record
    return None


def _explain(invocation: Invocation, failure: Failure) -> None:
    """Add why pxd ended for good, if the ledger is the cause; bad settings are named in its own
    output.
    """
    try:
        ask_pxd(invocation, "--check-ledger", "--json")
    except Failure as cause:
        if cause.kind == "ledger_unusable":
            failure.detail = f"{failure.detail}: {cause.detail}"
            failure.hint = cause.hint


def check_ledger(invocation: Invocation) -> Document:
    """Return what doctor says of the ledger where no daemon answers that would know more."""
    try:
        sentence = json.loads(ask_pxd(invocation, "--check-ledger", "--json"))["detail"]
    except Failure as cause:
        return finding("ledger", "fail", cause.detail, cause.hint)
    return finding("ledger", "ok", sentence)


def _await_answer(client: Client, child: subprocess.Popen[bytes], timeout: float) -> None:
    """Return once a daemon answers.

    Raises Failure: why none does; a child that is only slow is left alone.
    """
    deadline = time.monotonic() + timeout
    while not answers(client):
        code = child.poll()
        if code == _LOST_TO_ANOTHER:
            deadline = min(deadline, time.monotonic() + _LOSER_SECONDS)
        elif code is not None:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            hint = "pxctl config check" if code == _BAD_SETTINGS else "pxctl doctor"
            raise Failure(
                f"pxd {how} before it answered",
                kind="start_failed",
                hint=hint,
                daemon_exit_code=code,
            )
        if time.monotonic() >= deadline:
            if code == _LOST_TO_ANOTHER:
                detail = "another pxd holds its directories, and does not answer here"
                raise Failure(
                    detail,
                    kind="conflict",
                    hint="XDG_RUNTIME_DIR, PX_SOCKET and PX_HOME say where it is",
                )
            detail = f"pxd was started (pid {child.pid}), but has not answered within {timeout:g} s"
            raise Failure(detail, kind="timed_out", hint="pxctl doctor")
        time.sleep(_PAUSE_SECONDS)
    # Another daemon may be what answers: our child must not win the lock later, after a stop of
    # that one.
    deadline = time.monotonic() + _LOSER_SECONDS
    while child.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(Failure, OSError):  # the child leads a session of its own
            if os.getsid(client.get("/api/daemon", timeout=1.0)["keeper"]["pid"]) == child.pid:
                return
        time.sleep(_PAUSE_SECONDS)


def ask_pxd(invocation: Invocation, *flags: str) -> bytes:
    """Run `pxd FLAG…` and return what it answers; its warnings are passed on.

    Raises its refusal as a Failure.
    """
    argv, env = _pxd(invocation, *flags)
    ended = run(argv, env)
    words, _, hint = ended.stderr.strip().partition("\nhint: ")
    said = [line.removeprefix("pxd: ") for line in words.splitlines()]
    if ended.returncode == Exit.OK:
        invocation.notice(*(f"pxctl: {line}" for line in said))
        return ended.stdout.encode("utf-8", "surrogateescape")
    if ended.returncode == _BAD_SETTINGS and "--check-ledger" in flags and hint:
        raise Failure("\n".join(said), kind="ledger_unusable", hint=hint)
    if ended.returncode == _BAD_SETTINGS:
        # That code is for service managers; the client's contract says 1. With --json it tells it
        # in a document.
        problems = json.loads(ended.stdout)["problems"] if ended.stdout else []
        said = said or [f"{one['origin']}: {one['message']}" for one in problems]
        hint = "mend what is named above, then: pxctl config check"
        raise Failure("\n".join(said), kind="config_error", hint=hint, errors=problems)
    code = ended.returncode if 0 < ended.returncode <= 9 else Exit.FAILED
    what = "\n".join(said) or f"pxd ended with {ended.returncode}"
    raise Failure(what, hint=hint or "pxctl doctor", exit_code=code)


def run(argv: list[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    settings: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "timeout": 120.0}
    try:
        return subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False, **settings
        )
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{' '.join(argv)} did not end within 120 s", kind="timed_out") from error


def stop_daemon(client: Client, timeout: float) -> int:
    """Ask for the orderly stop, and return when the daemon's own processes and those of its units
    are gone.

    Returns how many executions of pipes waited in line: the next daemon runs them. Raises Failure:
    something is left.
    """
    document = client.get("/api/status", timeout=_READ_SECONDS)
    units: list[Document] = document["units"]
    named = {document["daemon"][name]["pid"]: f"pxd {name}" for name in ("keeper", "control")}
    named |= {unit["pid"]: unit["unit"] for unit in units if unit["pid"]}
    left: list[psutil.Process] = []  # each knows its process by pid and start time
    for pid in named:
        with contextlib.suppress(psutil.Error):
            left.append(psutil.Process(pid))
    try:
        client.ask("POST", "/api/daemon/stop", timeout=None)
    # a broken-off answer is one, too, and so is that of a stop under way
    except Failure as failure:
        if failure.kind not in {"interrupted", "shutdown"}:
            raise
    deadline = time.monotonic() + timeout
    while left := [one for one in left if _lives(one)]:
        if time.monotonic() >= deadline:
            _refuse_unknown_end(client, [named[one.pid] for one in left], timeout)
            survivors = [{"pid": one.pid, "name": named[one.pid]} for one in left]
            hint = (
                "look at it: ps -o pid,ppid,stat,etime,args -p "
                f"{','.join(str(one.pid) for one in left)}"
            )
            detail = f"still alive: {', '.join(named[one.pid] for one in left)}"
            raise Failure(detail, kind="survivors", hint=hint, survivors=survivors)
        time.sleep(_PAUSE_SECONDS)
    return sum(unit["waiting"] for unit in units if unit["kind"] == "pipe")


def _refuse_unknown_end(client: Client, left: list[str], timeout: float) -> None:
    """Raise Failure (exit 7) if the daemon lives on because its keeper does not answer: the stop
    may still come.
    """
    if "pxd keeper" not in left:
        return
    # The control plane serves until all units are stopped. Then only the keeper's own answer is
    # missing.
    is_silent = not any(name not in {"pxd keeper", "pxd control"} for name in left)
    with contextlib.suppress(Failure):
        parts = client.get("/api/daemon", timeout=_READ_SECONDS)["degraded"]
        is_silent = any(part["part"] == "keeper" for part in parts)
    if is_silent:
        detail = (
            f"it is not known whether pxd stops: its keeper has not answered within {timeout:g} s"
        )
        hint = "the stop is completed once the keeper answers; check its state: ps -o pid,stat,args"
        raise Failure(detail, kind="keeper_timeout", hint=hint, left=left)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


# -- as a service ----------------------------------------------------------------------------------


def start_daemon(invocation: Invocation, timeout: float) -> None:
    """Start the unit that is installed for this very socket, else `pxd` itself; return when its
    socket answers.
    """
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
    """The service of the user, or with `--system` of the machine, with one of the service
    managers.
    """

    def __init__(self, invocation: Invocation, platform: str = HERE) -> None:
        self._invocation, self._is_systemd = invocation, platform == SYSTEMD
        self._scope = [] if invocation.system else ["--user"]
        folder, names = Path("/etc/systemd/system"), [_SERVICE, _SOCKET]
        if platform == LAUNCHD:  # which wants a file to be called after its label
            folder = Path(
                "/Library/LaunchDaemons" if invocation.system else "~/Library/LaunchAgents"
            )
            names = [f"{_LABEL}.plist"]
        elif not invocation.system:
            config = invocation.env.get("XDG_CONFIG_HOME", "")
            folder = Path(config if config.startswith("/") else "~/.config") / "systemd/user"
        self._places = [folder.expanduser() / name for name in names]

    def texts(self, *, on_demand: bool) -> Texts:
        """Return the files of the service, each with its text; what is enabled and started is
        the last one.
        """
        kinds = (
            [SYSTEMD, "systemd-socket"]
            if self._is_systemd
            else ["launchd-socket" if on_demand else LAUNCHD]
        )
        kinds = kinds if on_demand else kinds[:1]
        texts = [ask_pxd(self._invocation, "--print-unit", kind).decode() for kind in kinds]
        return dict(zip(self._places, texts, strict=False))

    def keep_path(self, texts: Texts) -> Texts:
        """Return the files as they are where only their PATH differs: it is that of the shell
        which installed them.
        """
        kept: dict[Path, str] = {}
        for path, text in texts.items():
            present = read_unit(path) if path.exists() else ""
            is_same = "PATH" in parse_unit(present)[1] and without_path(present) == without_path(
                text
            )
            kept[path] = present if is_same else text
        return kept

    def own_files(self) -> list[Path]:
        return [path for path in self._places if path.exists()]

    def _found_files(self) -> list[Path]:
        found = self.own_files()  # else the unit that a package has brought
        if not found and self._is_systemd:
            with contextlib.suppress(Failure):  # no systemd here
                found = [Path(self._show(_SERVICE, "FragmentPath") or "/nowhere")]
        return [path for path in found if path.exists()]

    def check_place(self, texts: Texts, *, force: bool) -> None:
        """Raise Failure, before anything is written, where an install cannot work or would take
        another one's place.
        """
        if self._is_systemd:
            number = re.search(r"\d+", self._systemctl("show", "--property=Version"))
            if number is not None and int(number[0]) < _OLDEST_SYSTEMD:
                raise _no_manager(
                    f"this is systemd {number[0]}; the unit needs systemd {_OLDEST_SYSTEMD}"
                )
        elif shutil.which("launchctl") is None:
            raise _no_manager("there is no launchctl here")
        ask_pxd(self._invocation, "--check-config", "--json")
        there = self.own_files()
        if there and len(there) != len(texts):
            detail = (
                "pxd is installed to start "
                f"{'on demand' if len(there) > 1 else 'at boot or login'}: {there[0]}"
            )
            raise Failure(
                detail, kind="conflict", hint="pxctl daemon uninstall, then install again"
            )
        for path in [] if force else self._found_files():
            (ours, _), (theirs, _) = (
                parse_unit(next(iter(texts.values()))),
                parse_unit(read_unit(path)),
            )
            is_other = theirs[:1] != ours[:1]
            if read_unit(path) == texts.get(path) or (path not in texts and not is_other):
                continue
            detail = f"{path} is there already and differs from what would be written"
            if is_other and theirs:
                version = _version(theirs) or "not there"
                detail += (
                    f": it runs {theirs[0]} ({version}), this is {ours[0]} ({paths.own_version()})"
                )
            hint = "pxctl daemon install --print shows the new text; --force overwrites"
            raise Failure(detail, kind="conflict", hint=hint, path=str(path))

    def install(self, texts: Texts, *, start: bool) -> bool:
        """Write the files, have the service manager start pxd at every boot or login, and now if
        wanted.

        Returns False where all was there as it is. A failure, also of the start, leaves everything
        as it was before.
        """
        before = {path: read_unit(path) if path.exists() else None for path in texts}
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
                # launchd makes none
                os.makedirs(os.path.dirname(self._invocation.socket_path), 0o700, exist_ok=True)
                _manage("launchctl", "bootstrap", self._domain, str(main))
        except BaseException as error:
            if isinstance(error, Failure) and self._is_systemd:
                error.hint = "pxctl daemon install, once that is mended; all is as it was before"
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
        # they may still be under way; who may not ask for that reads on
        run(["journalctl", "--sync"])
        units = f"-u{_SERVICE}", f"-u{_SOCKET}"
        return run(
            ["journalctl", *self._scope, "-q", "-ocat", "-n9", f"-S@{since:.3f}", *units]
        ).stdout

    def start_unit(self) -> bool:
        """Have systemd start pxd where a unit for this very socket is installed; say whether it
        did.
        """
        there, system = self.own_files(), self._invocation.system
        variables = parse_unit(read_unit(there[0]))[1] if there else {}
        env = {
            key: value for key, value in self._invocation.env.items() if not key.startswith("PX_")
        } | variables
        if (
            not there
            or paths.find_socket(env, explicit=None, system=system) != self._invocation.socket_path
        ):
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
        """Say whether systemd listens at the socket, and pxd does not run: it would start if
        somebody asked it.
        """
        with contextlib.suppress(Failure):
            listens = self._show(_SOCKET, "SubState") == "listening"
            return (
                listens
                and self._show(_SOCKET, "Listen") == f"{self._invocation.socket_path} (Stream)"
            )
        return False

    def lingers(self) -> str | None:
        """Return the command that lets a user's units live on after logout; None where nothing
        is to be done.
        """
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
            # by a daemon that was started by hand
            if not is_listened_at(self._invocation.socket_path):
                self._systemctl("clean", "--what=runtime", _SERVICE)

    def _forget(self, paths: list[Path]) -> None:
        for path in paths:
            # links, which stay where no manager runs
            for one in (path, *path.parent.glob(f"*.wants/{path.name}")):
                one.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                os.removedirs(path.parent)  # as far up as they are empty
        if self._is_systemd:
            with contextlib.suppress(Failure):
                self._systemctl("daemon-reload")

    def check(self) -> Iterator[Document]:
        """Yield what doctor says of the unit: is it there, does it run this version, is it
        enabled, does it linger?
        """
        there, again = self._found_files(), "pxctl daemon install"
        if not there:
            detail = (
                "no systemd or launchd unit is installed; the daemon does not come back after a "
                "boot or a crash"
            )
            yield finding("service_unit", "warn", detail, again)
            return
        main, (command, _) = there[-1], parse_unit(read_unit(there[0]))
        program, version = command[0] if command else "nothing", _version(command)
        again += " --on-demand" if len(there) > 1 else ""
        enabled = active = ""
        if self._is_systemd:
            with contextlib.suppress(Failure):  # it does not run here
                enabled, active = (
                    self._show(main.name, name) for name in ("UnitFileState", "ActiveState")
                )
        found: tuple[str, ...] = "ok", str(main)
        if version is None:
            found = (
                "fail",
                f"{there[0]} runs {program}, which is not there or is no pxd",
                f"{again} --force",
            )
        elif version != paths.own_version():
            told = f"{there[0]} runs pxd {version} ({program}); this is {paths.own_version()}"
            found = "warn", told, f"{again} --force"
        elif enabled == "disabled":
            found = "warn", f"{main} is disabled", again
        elif active == "failed":
            repair = "pxctl daemon start"
            found = "fail", f"{main.name} has failed, and systemd starts it no more", repair
        yield finding("service_unit", *found)
        if linger := self.lingers():
            yield finding(
                "linger",
                "warn",
                "the user's unit is stopped at logout, with everything it holds",
                linger,
            )

    @property
    def _domain(self) -> str:
        return "system" if self._invocation.system else f"gui/{os.getuid()}"

    def _show(self, unit: str, name: str) -> str:
        return self._systemctl("show", f"--property={name}", unit).strip().partition("=")[2]

    def _systemctl(self, *arguments: str) -> str:
        return _manage("systemctl", *self._scope, *arguments)


# -- files and programs ----------------------------------------------------------------------------


def read_unit(path: Path) -> str:
    return path.read_text("utf-8", "surrogateescape")


def parse_unit(text: str) -> tuple[list[str], dict[str, str]]:
    """Return command and variables of a service file; nothing where it cannot be understood."""
    with contextlib.suppress(ValueError, KeyError, plistlib.InvalidFileException):
        if text.startswith("<?xml"):
            job = plistlib.loads(text.encode())
            return job["ProgramArguments"], job["EnvironmentVariables"]
        lines = re.findall(r"^(ExecStart|Environment)=(.+)$", text, re.MULTILINE)
        words = [
            (key, word.replace("%%", "%")) for key, value in lines for word in shlex.split(value)
        ]
        variables = dict(word.split("=", 1) for key, word in words if key == "Environment")
        return [word.replace("$$", "$") for key, word in words if key == "ExecStart"], variables
    return [], {}


def without_path(text: str) -> object:
    """Return a service file without its PATH, to be compared."""
    if text.startswith("<?xml"):
        job = plistlib.loads(text.encode())
        job.get("EnvironmentVariables", {}).pop("PATH", None)
        return job
    return re.sub(r'^Environment="?PATH=.*\n', "", text, flags=re.MULTILINE)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    output.write_whole(path, [text.encode("utf-8", "surrogateescape")])
    path.chmod(0o644)


def _version(command: list[str]) -> str | None:
    """Return the version of pxd that a command runs; None: its program is not there, or is no
    pxd.
    """
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
    if any(
        word in said
        for word in ("offline", "not been booted", "Failed to connect", "No medium found")
    ):
        raise _no_manager(f"{argv[0]} does not run here, or has no manager for this user: {said}")
    raise Failure(f"{' '.join(argv)} failed: {said}", hint=" ".join(argv))


def _no_manager(detail: str) -> Failure:
    return Failure(detail, kind="no_service_manager", hint="pxctl daemon start runs pxd without it")
