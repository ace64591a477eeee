"""`pxd` as a process: started in the background, asked about its settings, seen to be gone after a stop.

When a start returns, the daemon answers; when it cannot, the user sees what the daemon itself said. "Stopped" is said
when the keeper and each child that was seen before are gone by pid and start time, not when the daemon said so.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time

from pxctl.client import Client
from pxctl.failure import CONFLICT, FAILED, OK, TIMED_OUT, UNREACHABLE, Failure, Interrupted, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.app import Invocation
    from pxctl.paths import Places


START_SECONDS = 30.0
LOSER_SECONDS = 10.0
"""So long is waited, once a daemon answers, for a child of ours that may have lost to it and does not know that yet."""
_LOST_TO_ANOTHER = 8
_PAUSE_SECONDS = 0.02
_READ_SECONDS = 10.0
_LOG_BYTES = 8 * 1024 * 1024
_TAIL_BYTES = 16 * 1024
_TAIL_LINES = 15


def find_pxd(env: dict[str, str] | None = None) -> str:
    """Return the path of `pxd`: beside this program, beside the interpreter, else on PATH."""
    env = dict(os.environ) if env is None else env
    for beside in (sys.argv[0], sys.executable):
        # realpath only second: a virtual environment's python is a link out of it.
        for path in (beside, os.path.realpath(beside)):
            candidate = os.path.join(os.path.dirname(os.path.abspath(path)), "pxd")
            if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                return candidate
    found = shutil.which("pxd", path=env.get("PATH"))
    if found is None:
        raise Failure(
            "pxd is neither beside pxctl nor on PATH",
            kind="not_installed",
            hint="pip install supervisord-py",
            exit_code=UNREACHABLE,
        )
    return found


def daemon_environment(invocation: Invocation) -> dict[str, str]:
    """Return the environment that makes `pxd` mean the same daemon as this call."""
    env = dict(invocation.env)
    if invocation.socket:
        env["PX_SOCKET"] = invocation.socket_path
    return env


def pxd_arguments(invocation: Invocation, *arguments: str) -> list[str]:
    """Return the argv of `pxd` for the daemon that this call means."""
    return [find_pxd(daemon_environment(invocation)), *(["--system"] if invocation.system else []), *arguments]


def answers(client: Client, timeout: float = 1.0) -> bool:
    """Say whether a daemon answers and serves."""
    try:
        client.get("/api/health", timeout=timeout)
    except Failure:
        return False
    return True


def ensure_daemon(invocation: Invocation) -> None:
    """Start the daemon for a command that needs it; says so on stderr."""
    invocation.notice("pxctl: starting pxd …")
    start_daemon(invocation, START_SECONDS)


def start_daemon(invocation: Invocation, timeout: float) -> None:
    """Spawn `pxd`, detached, and return when its socket answers.

    Raises:
        Failure: It ended first (with its last words), or does not answer within `timeout` seconds.
    """
    places = invocation.places
    arguments = pxd_arguments(invocation)
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
        _await_answer(invocation, child, timeout, (places.log_file, before))
    finally:
        os.close(log)


def _open_log(places: Places) -> tuple[int, int]:
    """Open the daemon's own log for appending; return it and its present size. A long one is put aside first."""
    path = places.log_file
    try:
        os.makedirs(places.log_dir, mode=0o700, exist_ok=True)
        if os.path.exists(path) and os.path.getsize(path) > _LOG_BYTES:
            os.replace(path, f"{path}.1")
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Failure(
            f"cannot write the daemon's log {path}: {error.strerror}",
            kind="os_error",
            hint=f"ls -ld {places.log_dir}",
        ) from error
    return fd, os.fstat(fd).st_size


def _await_answer(invocation: Invocation, child: subprocess.Popen[bytes], timeout: float, log: tuple[str, int]) -> None:
    client = Client(invocation.socket_path)
    deadline = time.monotonic() + timeout
    while True:
        code = child.poll()
        if answers(client):
            _await_loser(client, child, deadline)
            # The daemon outlives us on purpose; without this the interpreter would warn of a forgotten child.
            child.returncode = child.poll() or 0
            return
        if code is not None and code != _LOST_TO_ANOTHER:
            raise _died(code, log)
        if code is not None and (held := _state_is_held(invocation.places, log)):
            raise held
        if time.monotonic() >= deadline:
            child.returncode = 0 if code is None else code
            raise _late(timeout, child.pid if code is None else None, log)
        time.sleep(_PAUSE_SECONDS)


def _await_loser(client: Client, child: subprocess.Popen[bytes], deadline: float) -> None:
    """Wait for the end of our child where another daemon answers: it might win the lock later, after a stop of that."""
    deadline = min(deadline, time.monotonic() + LOSER_SECONDS)
    while child.poll() is None and not _serves(client, child.pid) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)


def _serves(client: Client, child: int) -> bool:
    """Say whether the daemon that answers is our child, or was started by it: the child leads a session of its own."""
    try:
        pid = (client.get("/api/daemon", timeout=1.0).document.get("keeper") or {}).get("pid")
        return isinstance(pid, int) and os.getsid(pid) == child
    except (Failure, OSError):
        return False


def _died(code: int, log: tuple[str, int]) -> Failure:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return Failure(
        f"pxd {how} before it answered",
        kind="start_failed",
        hint="pxctl config check" if code == 78 else "pxctl doctor",
        exit_code=FAILED,
        stderr_tail=_tail(log),
        daemon_exit_code=code,
    )


def _state_is_held(places: Places, log: tuple[str, int]) -> Failure | None:
    """Make the failure of a daemon whose state another one holds that serves elsewhere; None while it may be ours."""
    if places.run_dir == places.state_dir:
        return None
    said = (line for line in _tail(log).splitlines() if f"already holds {places.state_dir}" in line)
    for line in said:
        pid = re.search(r"pid ([0-9]+)", line)
        return Failure(
            f"{line.removeprefix('pxd: ')}, and serves another socket than {places.socket}",
            kind="conflict",
            hint="set XDG_RUNTIME_DIR or PX_SOCKET as for that daemon, or PX_HOME for one of its own",
            exit_code=CONFLICT,
            daemon_pid=int(pid[1]) if pid else None,
        )
    return None


def _late(timeout: float, pid: int | None, log: tuple[str, int]) -> Failure:
    """Make the failure of a daemon that lives and does not answer. It is left alone: it may still come up."""
    who = "another pxd, which holds the lock," if pid is None else f"pxd was started (pid {pid}) but"
    return Failure(
        f"{who} has not answered within {timeout:g} s",
        kind="timed_out",
        hint="pxctl doctor",
        exit_code=TIMED_OUT,
        stderr_tail=_tail(log),
        daemon_pid=pid,
    )


def _tail(log: tuple[str, int]) -> str:
    """Return the last lines that were added to the log since the given size."""
    path, before = log
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(before if before <= size else 0, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


# -- its settings, of which the client knows none ---------------------------------------------------------------------

_BAD_SETTINGS = 78
"""The daemon's own word to a service manager; the client's contract says 1 (CONTRACT §3)."""
_LAST_CODE = 9
_CHECK = "--check-config"
_HINT = "hint: "


def ask_pxd(invocation: Invocation, flag: str, *flags: str) -> bytes:
    """Run `pxd FLAG…` and return what it answers; its warnings are passed on.

    Raises:
        Failure: It refuses, and why.
    """
    ended = _run(invocation, flag, *flags)
    if ended.returncode != OK:
        raise _refusal(invocation, ended)
    for line in _lines(ended.stderr):
        invocation.notice(f"pxctl: {line.removeprefix('pxd: ')}")
    return ended.stdout


def _run(invocation: Invocation, *flags: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        pxd_arguments(invocation, *flags),
        env=daemon_environment(invocation),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )


def _refusal(invocation: Invocation, ended: subprocess.CompletedProcess[bytes]) -> Failure:
    """Make the failure out of what pxd said; broken settings come with each mistake and its place."""
    said = _lines(ended.stderr)
    hints = [line.removeprefix(_HINT) for line in said if line.startswith(_HINT)]
    why = [line.removeprefix("pxd: ") for line in said if not line.startswith(_HINT)]
    if ended.returncode != _BAD_SETTINGS:
        code = ended.returncode if 0 < ended.returncode <= _LAST_CODE else FAILED
        what = "\n".join(why) or f"pxd ended with {ended.returncode}"
        return Failure(what, hint=hints[0] if hints else "pxctl doctor", exit_code=code)
    errors = _mistakes(_run(invocation, _CHECK, "--json").stdout)
    detail = "\n".join(why or [_sentence(error) for error in errors]) or "pxd refuses the settings"
    hint = "mend what is named above, then: pxctl config check"
    return Failure(detail, kind="config_error", hint=hint, exit_code=FAILED, errors=errors)


def _lines(raw: bytes) -> list[str]:
    return [line for line in raw.decode("utf-8", "replace").splitlines() if line.strip()]


def _mistakes(raw: bytes) -> list[dict[str, Any]]:
    """Return the mistakes that pxd lists; it may be of another version, or see them mended meanwhile."""
    try:
        problems = json.loads(raw)["problems"]
    except (ValueError, KeyError, TypeError):
        return []
    return [problem for problem in problems if isinstance(problem, dict)] if isinstance(problems, list) else []


def _sentence(error: dict[str, Any]) -> str:
    meant = f"; did you mean {error['nearest']}?" if error.get("nearest") else ""
    return f"{error.get('origin') or error.get('file')}: {error.get('message')}{meant}"


# -- its end ----------------------------------------------------------------------------------------------------------

_START_FIELD = 22 - 3
"""Field 22 of /proc/PID/stat, counted from the first one after the name, which is field 3 (proc(5))."""


def start_mark(pid: int) -> str | None:
    """Return what tells this process from a later one with the same pid; None when there is none, or only a zombie."""
    return _mark_from_ps(pid) if sys.platform == "darwin" else _mark_from_proc(pid)


def _mark_from_proc(pid: int) -> str | None:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        fields = os.read(fd, 4096).rpartition(b")")[2].split()
    except OSError:
        return None
    finally:
        os.close(fd)
    return None if not fields or fields[0] in {b"Z", b"X"} else fields[_START_FIELD].decode()


def _mark_from_ps(pid: int) -> str | None:
    shown = subprocess.run(["ps", "-o", "lstart=,stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    mark = shown.stdout.strip()
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
    """Ask for the orderly stop; a broken-off answer is one, too."""
    try:
        client.ask("POST", "/api/daemon/stop", timeout=None)
    except Interrupted:
        return
    except Problem as problem:
        # Asked twice: the stop is under way already.
        if problem.kind != "shutdown":
            raise


def await_end(seen: list[Sighting], timeout: float) -> list[Sighting]:
    """Wait until all are gone; return those that are not after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while left := [one for one in seen if one.alive]:
        if time.monotonic() >= deadline:
            return left
        time.sleep(_PAUSE_SECONDS)
    return []


def survived(left: list[Sighting]) -> Failure:
    """Make the failure that names what outlived the stop."""
    named = ", ".join(f"{one.name} (pid {one.pid})" for one in left)
    return Failure(
        f"still alive: {named}",
        kind="survivors",
        hint=f"look at it: ps -o pid,ppid,stat,etime,args -p {','.join(str(one.pid) for one in left)}",
        exit_code=CONFLICT,
        survivors=[{"pid": one.pid, "name": one.name} for one in left],
    )
