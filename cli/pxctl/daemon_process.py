"""`pxd` as a process: started in the background, asked for its settings, seen to be gone after a stop.

When a start returns, the daemon answers; when it cannot, the user sees what the daemon itself said. "Stopped" is said
when the keeper and each child that was seen before are gone by pid and start time, not when the daemon said so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from pxctl import paths
from pxctl.client import Client, Document, Exit, Failure
from pxctl.invocation import Invocation

_LOSER_SECONDS = 10.0  # so long is waited for the other one where two are started at once
_LOST_TO_ANOTHER, _BAD_SETTINGS = 8, 78
_PAUSE_SECONDS = 0.02
_READ_SECONDS = 10.0
_LOG_BYTES = 8 * 1024 * 1024
_TAIL_BYTES = 16 * 1024


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
    """Return argv and environment of a `pxd` that means the same daemon as this call."""
    argv = [find_pxd(invocation.env), *(["--system"] if invocation.system else []), *arguments]
    return argv, {**invocation.env, **({"PX_SOCKET": invocation.socket_path} if invocation.socket else {})}


def answers(client: Client, timeout: float = 1.0) -> bool:
    try:
        client.get("/api/health", timeout=timeout)
    except Failure:
        return False
    return True


def spawn_daemon(invocation: Invocation, timeout: float) -> None:
    """Start `pxd`, detached; return when its socket answers.

    Raises Failure: it ended first (with its last words), or does not answer within `timeout` seconds.
    """
    argv, env = _pxd(invocation)
    path = Path(paths.find_log_file(invocation.env, system=invocation.system))
    old_umask = os.umask(0o077)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _LOG_BYTES:
            path.replace(f"{path}.1")
        log = path.open("ab")
    finally:
        os.umask(old_umask)
    with log:
        before = log.tell()
        settings: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "umask": 0o077}
        child = subprocess.Popen(argv, env=env, start_new_session=True, **settings)
    failure = _await_answer(Client(invocation.socket_path), child, timeout)
    code = child.poll()
    # The daemon outlives us on purpose; without this the interpreter would warn of a forgotten child.
    child.returncode = code or 0
    if failure is not None:
        tail = path.read_bytes()[before:][-_TAIL_BYTES:].decode("utf-8", "replace").splitlines()
        failure.extra |= {"daemon_pid": child.pid if code is None else None, "stderr_tail": "\n".join(tail)}
        raise failure


def _await_answer(client: Client, child: subprocess.Popen[bytes], timeout: float) -> Failure | None:
    """Return None once a daemon answers, else why none does; a child that is only slow is left alone."""
    deadline = time.monotonic() + timeout
    while not answers(client):
        code = child.poll()
        if code == _LOST_TO_ANOTHER:
            deadline = min(deadline, time.monotonic() + _LOSER_SECONDS)
        elif code is not None:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            hint = "pxctl config check" if code == _BAD_SETTINGS else "pxctl doctor"
            return Failure(f"pxd {how} before it answered", kind="start_failed", hint=hint, daemon_exit_code=code)
        if time.monotonic() >= deadline:
            if code == _LOST_TO_ANOTHER:
                detail = "another pxd holds its directories, and does not answer here"
                return Failure(detail, kind="conflict", hint="XDG_RUNTIME_DIR, PX_SOCKET and PX_HOME say where it is")
            detail = f"pxd was started (pid {child.pid}), but has not answered within {timeout:g} s"
            return Failure(detail, kind="timed_out", hint="pxctl doctor")
        time.sleep(_PAUSE_SECONDS)
    # Another daemon may be what answers: our child must not win the lock later, after a stop of that one.
    deadline = time.monotonic() + _LOSER_SECONDS
    while child.poll() is None and not _serves(client, child.pid) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    return None


def _serves(client: Client, child: int) -> bool:
    """Say whether the daemon that answers is our child, or was started by it: the child leads a session of its own."""
    try:
        pid = (client.get("/api/daemon", timeout=1.0).get("keeper") or {}).get("pid")
        return isinstance(pid, int) and os.getsid(pid) == child
    except (Failure, OSError):
        return False


def ask_pxd(invocation: Invocation, *flags: str) -> bytes:
    """Run `pxd FLAG…` and return what it answers; its warnings are passed on. Raises its refusal as a Failure."""
    argv, env = _pxd(invocation, *flags)
    ended = run(argv, env)
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    said = [line.removeprefix("pxd: ") for line in lines if not line.startswith("hint: ")]
    if ended.returncode == Exit.OK:
        invocation.notice(*(f"pxctl: {line}" for line in said))
        return ended.stdout.encode("utf-8", "surrogateescape")
    if ended.returncode == _BAD_SETTINGS:
        # That code is for service managers; the client's contract says 1. With --json it tells it in a document.
        problems = json.loads(ended.stdout)["problems"] if ended.stdout else []
        said = said or [f"{one.get('origin')}: {one.get('message')}" for one in problems]
        hint = "mend what is named above, then: pxctl config check"
        raise Failure("\n".join(said), kind="config_error", hint=hint, errors=problems)
    code = ended.returncode if 0 < ended.returncode <= 9 else Exit.FAILED
    what = "\n".join(said) or f"pxd ended with {ended.returncode}"
    raise Failure(what, hint=hints[0] if hints else "pxctl doctor", exit_code=code)


def run(argv: list[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    settings: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "timeout": 120.0}
    try:
        return subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False, **settings)
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{' '.join(argv)} did not end within 120 s", kind="timed_out") from error


def stop_daemon(client: Client, timeout: float) -> int:
    """Ask for the orderly stop, and return when the daemon's own processes and those of its units are gone.

    Returns how many executions of pipes waited in line: the next daemon runs them. Raises Failure: something is left.
    """
    document = client.get("/api/status", timeout=_READ_SECONDS)
    daemon: Document = document.get("daemon") or {}
    pids = {(daemon.get(name) or {}).get("pid"): f"pxd {name}" for name in ("keeper", "control")}
    pids |= {unit.get("pid"): str(unit.get("unit")) for unit in document.get("units", [])}
    seen: list[psutil.Process] = []  # each knows its process by pid and start time
    for pid in filter(None, pids):
        with contextlib.suppress(psutil.Error):
            seen.append(psutil.Process(pid))
    try:
        client.ask("POST", "/api/daemon/stop", timeout=None)
    except Failure as failure:  # a broken-off answer is one, too, and so is that of a stop under way
        if failure.kind not in {"interrupted", "shutdown"}:
            raise
    deadline = time.monotonic() + timeout
    while left := [one.pid for one in seen if _lives(one)]:
        if time.monotonic() >= deadline:
            survivors = [{"pid": pid, "name": pids[pid]} for pid in left]
            hint = f"look at it: ps -o pid,ppid,stat,etime,args -p {','.join(map(str, left))}"
            detail = f"still alive: {', '.join(pids[pid] for pid in left)}"
            raise Failure(detail, kind="survivors", hint=hint, survivors=survivors)
        time.sleep(_PAUSE_SECONDS)
    return sum(unit.get("waiting") or 0 for unit in document.get("units", []) if unit.get("kind") == "pipe")


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
