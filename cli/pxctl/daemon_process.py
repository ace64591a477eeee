"""`pxd` as a process and as a service: started in the background, seen to be gone after a stop, installed as a unit.

When a start returns, the daemon answers; when it cannot, the user sees what the daemon itself said. "Stopped" is said
when the keeper and each child that was seen before are gone by pid and start time, not when the daemon said so. A unit
file that differs from what would be written is never overwritten unasked.
"""

from __future__ import annotations

import json
import os
import plistlib
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from pxctl.client import CONFLICT, FAILED, OK, TIMED_OUT, UNREACHABLE, Client, Failure, Interrupted, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from pxctl.app import Invocation
    from pxctl.paths import Places

START_SECONDS = 30.0
_LOSER_SECONDS = 10.0
"""So long is waited, once a daemon answers, for a child of ours that may have lost to it and does not know that yet."""
_LOST_TO_ANOTHER, _BAD_SETTINGS = 8, 78
_PAUSE_SECONDS = 0.02
_READ_SECONDS = 10.0
_LOG_BYTES = 8 * 1024 * 1024
_TAIL_BYTES, _TAIL_LINES = 16 * 1024, 15


def find_program(name: str, env: Mapping[str, str]) -> Path | None:
    """Return a program: beside this one, beside its interpreter, else on PATH."""
    beside = [Path(path) for path in (sys.argv[0], sys.executable)]
    # Resolved only second: a virtual environment's python is a link out of it.
    for path in [found for one in beside for found in (one.absolute(), one.resolve())]:
        candidate = path.parent / name
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    found = shutil.which(name, path=env.get("PATH", os.defpath))
    return Path(found) if found else None


def find_pxd(env: Mapping[str, str]) -> str:
    """Return the path of `pxd`."""
    found = find_program("pxd", env)
    if found is None:
        detail, hint = "pxd is neither beside pxctl nor on PATH", "pip install supervisord-py"
        raise Failure(detail, kind="not_installed", hint=hint, exit_code=UNREACHABLE)
    return str(found)


def daemon_environment(invocation: Invocation) -> dict[str, str]:
    """Return the environment that makes `pxd` mean the same daemon as this call."""
    return {**invocation.env, **({"PX_SOCKET": invocation.socket_path} if invocation.socket else {})}


def _pxd(invocation: Invocation, *arguments: str) -> list[str]:
    return [find_pxd(invocation.env), *(["--system"] if invocation.system else []), *arguments]


def answers(client: Client, timeout: float = 1.0) -> bool:
    """Say whether a daemon answers and serves."""
    try:
        client.get("/api/health", timeout=timeout)
    except Failure:
        return False
    return True


def start_daemon(invocation: Invocation, timeout: float) -> None:
    """Spawn `pxd`, detached, and return when its socket answers.

    Raises:
        Failure: It ended first (with its last words), or does not answer within `timeout` seconds.
    """
    places, arguments = invocation.places, _pxd(invocation)
    old_umask = os.umask(0o077)
    try:
        log, before = _open_log(places)
    finally:
        os.umask(old_umask)
    try:
        child = subprocess.Popen(
            arguments,
            env=daemon_environment(invocation),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=0o077,
        )
        with invocation.spinner("pxd", "starting…"):
            _await_answer(invocation, child, timeout, before)
    finally:
        os.close(log)


def _open_log(places: Places) -> tuple[int, int]:
    """Open the daemon's own log for appending; return it and its present size. A long one is put aside first."""
    path = Path(places.log_file)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _LOG_BYTES:
            path.replace(f"{path}.1")
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        detail, hint = f"cannot write the daemon's log {path}: {error.strerror}", f"ls -ld {path.parent}"
        raise Failure(detail, kind="os_error", hint=hint) from error
    return fd, os.fstat(fd).st_size


def _await_answer(invocation: Invocation, child: subprocess.Popen[bytes], timeout: float, before: int) -> None:
    client, places = Client(invocation.socket_path), invocation.places
    deadline = time.monotonic() + timeout
    while True:
        code = child.poll()
        if answers(client):
            # Another daemon may answer: our child might win the lock later, after a stop of that one.
            deadline = min(deadline, time.monotonic() + _LOSER_SECONDS)
            while child.poll() is None and not _serves(client, child.pid) and time.monotonic() < deadline:
                time.sleep(_PAUSE_SECONDS)
            # The daemon outlives us on purpose; without this the interpreter would warn of a forgotten child.
            child.returncode = child.poll() or 0
            return
        tail = _tail(Path(places.log_file), before) if code is not None else ""
        if code is not None and code != _LOST_TO_ANOTHER:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            hint = "pxctl config check" if code == _BAD_SETTINGS else "pxctl doctor"
            detail = f"pxd {how} before it answered"
            raise Failure(detail, kind="start_failed", hint=hint, stderr_tail=tail, daemon_exit_code=code)
        if code is not None and (held := _state_is_held(places, tail)):
            raise held
        if time.monotonic() >= deadline:
            child.returncode = 0 if code is None else code
            # It is left alone: it may still come up.
            who = "another pxd, which holds the lock," if code else f"pxd was started (pid {child.pid}) but"
            raise Failure(
                f"{who} has not answered within {timeout:g} s",
                kind="timed_out",
                hint="pxctl doctor",
                exit_code=TIMED_OUT,
                stderr_tail=_tail(Path(places.log_file), before),
                daemon_pid=None if code else child.pid,
            )
        time.sleep(_PAUSE_SECONDS)


def _serves(client: Client, child: int) -> bool:
    """Say whether the daemon that answers is our child, or was started by it: the child leads a session of its own."""
    try:
        pid = (client.get("/api/daemon", timeout=1.0).document.get("keeper") or {}).get("pid")
        return isinstance(pid, int) and os.getsid(pid) == child
    except (Failure, OSError):
        return False


def _state_is_held(places: Places, tail: str) -> Failure | None:
    """Make the failure of a daemon whose state another one holds that serves elsewhere; None while it may be ours."""
    line = next((line for line in tail.splitlines() if f"already holds {places.state_dir}" in line), None)
    if line is None or places.run_dir == places.state_dir:
        return None
    pid = re.search(r"pid ([0-9]+)", line)
    return Failure(
        f"{line.removeprefix('pxd: ')}, and serves another socket than {places.socket}",
        kind="conflict",
        hint="set XDG_RUNTIME_DIR or PX_SOCKET as for that daemon, or PX_HOME for one of its own",
        exit_code=CONFLICT,
        daemon_pid=int(pid[1]) if pid else None,
    )


def _tail(log: Path, before: int) -> str:
    """Return the last lines that were added to the log since the given size."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(before if before <= size else 0, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


# -- its settings, of which the client knows none ---------------------------------------------------------------------


def ask_pxd(invocation: Invocation, *flags: str) -> bytes:
    """Run `pxd FLAG…` and return what it answers; its warnings are passed on. Raises its refusal as a Failure."""
    ended = _run(_pxd(invocation, *flags), daemon_environment(invocation))
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    said = [line.removeprefix("pxd: ") for line in lines if not line.startswith("hint: ")]
    if ended.returncode == OK:
        invocation.notice(*(f"pxctl: {line}" for line in said))
        return ended.stdout.encode("utf-8", "surrogateescape")
    if ended.returncode != _BAD_SETTINGS:
        code = ended.returncode if 0 < ended.returncode <= 9 else FAILED
        what = "\n".join(said) or f"pxd ended with {ended.returncode}"
        raise Failure(what, hint=hints[0] if hints else "pxctl doctor", exit_code=code)
    # Exit code 78 is for service managers; the client's contract says 1, and each mistake with its place.
    checked = _run(_pxd(invocation, "--check-config", "--json"), daemon_environment(invocation)).stdout
    errors: list[dict[str, Any]] = []
    try:
        errors = [one for one in json.loads(checked)["problems"] if isinstance(one, dict)]
    except (ValueError, KeyError, TypeError):
        said = said or ["pxd refuses the settings"]  # it is of another version, or the mistakes were mended meanwhile
    sentences = [f"{error.get('origin') or error.get('file')}: {error.get('message')}" for error in errors]
    hint = "mend what is named above, then: pxctl config check"
    raise Failure("\n".join(said or sentences), kind="config_error", hint=hint, errors=errors)


def _run(arguments: list[str], env: Mapping[str, str] | None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            arguments,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=120.0,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        detail = f"{' '.join(arguments)} did not end within 120 s"
        raise Failure(detail, kind="timed_out", exit_code=TIMED_OUT) from error
    except OSError as error:
        raise Failure(f"cannot run {arguments[0]}: {error.strerror}", kind="os_error") from error


# -- its end ----------------------------------------------------------------------------------------------------------


def start_mark(pid: int) -> str | None:
    """Return what tells this process from a later one with the same pid; None when there is none, or only a zombie."""
    if sys.platform == "darwin":
        return mark_from_ps(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    # Fields 3 (state) and 22 (start time) of proc(5), counted from behind the name.
    return None if not fields or fields[0] in {b"Z", b"X"} else fields[19].decode()


def mark_from_ps(pid: int) -> str | None:
    """Return the mark of a process where there is no /proc."""
    mark = _run(["ps", "-o", "lstart=,stat=", "-p", str(pid)], None).stdout.strip()
    return None if not mark or mark.split()[-1].startswith("Z") else mark


class Sighting:
    """A process as it was seen."""

    __slots__ = ("_mark", "name", "pid")

    def __init__(self, pid: int, name: str) -> None:
        self.pid = pid
        self.name = name
        self._mark = start_mark(pid)

    @property
    def alive(self) -> bool:
        """Whether exactly that process still lives."""
        return self._mark is not None and start_mark(self.pid) == self._mark


def sight_all(client: Client) -> list[Sighting]:
    """Return the daemon's own processes and those of its units, as they are now. Raises when no daemon answers."""
    document = client.get("/api/status", timeout=_READ_SECONDS).document
    daemon: dict[str, Any] = document.get("daemon") or {}
    seen = [((daemon.get(name) or {}).get("pid"), f"pxd {name}") for name in ("keeper", "control")]
    seen += [(unit.get("pid"), str(unit.get("unit"))) for unit in document.get("units", [])]
    return [Sighting(pid, name) for pid, name in seen if isinstance(pid, int)]


def ask_to_stop(client: Client) -> None:
    """Ask for the orderly stop; a broken-off answer is one, too, and so is that of a stop under way."""
    try:
        client.ask("POST", "/api/daemon/stop", timeout=None)
    except Interrupted:
        return
    except Problem as problem:
        if problem.kind != "shutdown":
            raise


def await_end(seen: list[Sighting], timeout: float) -> None:
    """Wait until all are gone; raise the failure that names what outlived the stop."""
    deadline = time.monotonic() + timeout
    while left := [one for one in seen if one.alive]:
        if time.monotonic() >= deadline:
            raise Failure(
                f"still alive: {', '.join(f'{one.name} (pid {one.pid})' for one in left)}",
                kind="survivors",
                hint=f"look at it: ps -o pid,ppid,stat,etime,args -p {','.join(str(one.pid) for one in left)}",
                exit_code=CONFLICT,
                survivors=[{"pid": one.pid, "name": one.name} for one in left],
            )
        time.sleep(_PAUSE_SECONDS)


# -- its unit with systemd or launchd ----------------------------------------------------------------------------------

SYSTEMD, LAUNCHD = "systemd", "launchd"
_UNIT_NAME = "pxd.service"


def unit_text(invocation: Invocation, platform: str) -> str:
    """Return the unit as pxd itself writes it."""
    arguments = _pxd(invocation, "--print-unit", platform)
    ended = _run(arguments, daemon_environment(invocation))
    if ended.returncode != OK:
        detail = f"{' '.join(arguments)} ended with exit code {ended.returncode}"
        raise Failure(detail, hint="pxctl config check", stderr_tail=ended.stderr)
    return ended.stdout


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
        raise Failure(
            f"{path} is there already and differs from what would be written",
            kind="conflict",
            hint="pxctl daemon install --print shows the new text; --force overwrites",
            exit_code=CONFLICT,
            path=str(path),
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text, "utf-8")
    beside.chmod(0o644)
    beside.replace(path)
    return True


def turn_on(invocation: Invocation, platform: str, path: Path, *, now: bool) -> None:
    """Make the service manager know the unit, start it at every boot or login, and now if wanted."""
    if platform == LAUNCHD:
        _manage(["launchctl", "bootstrap", _launchd_domain(invocation), str(path)])
        return
    _systemctl(invocation, "daemon-reload")
    _systemctl(invocation, "enable", *(["--now"] if now else []), _UNIT_NAME)


def turn_off(invocation: Invocation, platform: str, path: Path) -> None:
    """Stop the unit, make the service manager forget it, and remove its file.

    The file goes even where no service manager runs: it must not come back at the next boot.
    """
    try:
        if platform == LAUNCHD:
            _manage(["launchctl", "bootout", f"{_launchd_domain(invocation)}/{path.stem}"])
        else:
            _systemctl(invocation, "disable", "--now", _UNIT_NAME)
    except Failure as failure:
        if failure.kind != "no_service_manager":
            raise
        path.unlink()
        invocation.warn(f"pxctl: {failure.detail}")
        return
    path.unlink()
    if platform == SYSTEMD:
        _systemctl(invocation, "daemon-reload")


def _launchd_domain(invocation: Invocation) -> str:
    return "system" if invocation.system else f"gui/{os.getuid()}"


def _systemctl(invocation: Invocation, *arguments: str) -> None:
    _manage(["systemctl", *([] if invocation.system else ["--user"]), *arguments])


def _manage(argv: list[str]) -> None:
    absent = "systemd does not run here (offline), or has no manager for this user"
    absent = "launchd is not here" if argv[0] == "launchctl" else absent
    if shutil.which(argv[0]) is None:
        raise Failure(f"there is no {argv[0]}: {absent}", kind="no_service_manager", hint="pxctl daemon start")
    ended = _run(argv, None)
    if ended.returncode == OK:
        return
    said = (ended.stderr or ended.stdout).strip()
    if any(word in said for word in ("offline", "not been booted", "Failed to connect", "No medium found")):
        detail, hint = f"{' '.join(argv)} failed: {absent}: {said}", "pxctl daemon start runs pxd without it"
        raise Failure(detail, kind="no_service_manager", hint=hint)
    raise Failure(f"{' '.join(argv)} failed: {said or f'exit code {ended.returncode}'}", hint=" ".join(argv))
