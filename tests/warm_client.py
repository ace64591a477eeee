"""Runs `pxctl` forked from a process that has imported it: a call costs a few milliseconds, not eighty.

Each call is a process of its own as ever, with its own streams, environment, folder and session. What is about starting
(imports, PYTHONPATH, closed streams, `setsid --ctty`) is started in earnest, and so is everything by `make deep`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CLI = Path(__file__).parents[1] / "cli"
IN_EARNEST = os.environ.get("PX_TEST_DEEP") == "1"
_lock = threading.Lock()
_server: tuple[socket.socket, subprocess.Popen[bytes]] | None = None


class Warm(subprocess.Popen[Any]):
    """A process of `pxctl` that the server below has forked: its parent, forked from the server, tells how it ended."""

    def _execute_child(  # type: ignore[no-untyped-def,override]
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
        start_new_session, *rest,
    ) -> None:  # fmt: skip
        request = {
            "argv": args, "env": dict(os.environ if env is None else env), "cwd": str(cwd or os.getcwd()),
            "setsid": bool(start_new_session),
        }  # fmt: skip
        streams = [own if own != -1 else number for number, own in enumerate((p2cread, c2pwrite, errwrite))]
        self._told, ours = socket.socketpair(type=socket.SOCK_SEQPACKET)  # each number is a message of its own
        try:
            _ask(json.dumps(request).encode(), [ours.fileno(), *streams])
        finally:
            ours.close()
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]
        self.pid = int(self._told.recv(16))
        self._child_created = True

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and _readable(self._told, 0):
            word = self._told.recv(16)
            self.returncode = int(word) if word else -signal.SIGKILL
            self._told.close()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None and not _readable(self._told, timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self._internal_poll()
        assert self.returncode is not None
        return self.returncode


def popen(argv: Sequence[str | Path], **settings: Any) -> subprocess.Popen[Any]:
    """Start a process as `subprocess.Popen` does; one of `pxctl` comes from the server."""
    words = [str(word) for word in argv]
    if words[:1] == [sys.executable]:
        words = [str(CLI / "pxctl" / "__main__.py"), *words[3:]] if words[1:3] == ["-m", "pxctl"] else words[1:]
    env = settings.get("env") or os.environ
    is_ours = Path(words[0]).name in {"pxctl", "__main__.py"} and env.get("PYTHONPATH") in {None, "", str(CLI)}
    if IN_EARNEST or not is_ours or "_PXCTL_IN_EARNEST" in env:
        return subprocess.Popen(argv, **settings)
    return Warm(words, **settings)


def run(
    argv: Sequence[str | Path], *, timeout: float, input: Any = None, capture_output: bool = False, **settings: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a process to its end as `subprocess.run(check=False)` does."""
    settings.pop("check", None)
    if input is not None:
        settings["stdin"] = subprocess.PIPE
    if capture_output:
        settings |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(argv, **settings) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def _readable(end: socket.socket, seconds: float | None) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(end, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def _ask(payload: bytes, fds: list[int]) -> None:
    """Have the server fork a process, which is started first where there is none."""
    global _server  # noqa: PLW0603 - one for all threads of this process
    with _lock:
        if _server is None:
            control, theirs = socket.socketpair()
            environ = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
            argv, env = [sys.executable, __file__, str(theirs.fileno())], {**environ, "PYTHONPATH": str(CLI)}
            with theirs:
                _server = control, subprocess.Popen(argv, pass_fds=[theirs.fileno()], env=env)
        socket.send_fds(_server[0], [len(payload).to_bytes(4, "big")], fds)
        _server[0].sendall(payload)


def close() -> None:
    """End the server of this process."""
    global _server  # noqa: PLW0603 - same
    with _lock:
        if _server is not None:
            _server[0].close()
            _server[1].wait(60)
            _server = None


# -- the server itself ------------------------------------------------------------------------------------------------


def _serve(control: socket.socket) -> None:
    import importlib
    import pkgutil

    import pxctl

    for module in pkgutil.walk_packages(pxctl.__path__, "pxctl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in "click.shell_completion fnmatch html.parser mimetypes shlex shutil tempfile uuid".split():  # noqa: SIM905
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who waits for a process is nobody's concern once it has told
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal of pytest is pytest's
    while True:
        head, fds, _, _ = socket.recv_fds(control, 4, 4)
        if not head:
            return
        size, payload = int.from_bytes(head, "big"), b""
        while len(payload) < size:
            payload += control.recv(size - len(payload))
        if os.fork() == 0:
            control.close()
            _have(json.loads(payload), socket.socket(fileno=fds[0]), fds[1:])
        for fd in fds:
            os.close(fd)


def _have(request: dict[str, Any], told: socket.socket, streams: list[int]) -> None:
    """Have the process that was asked for; tell its pid, and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        _become(request, streams)
    for fd in streams:
        os.close(fd)
    told.send(str(pid).encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):  # nobody waits for it
        told.send(str(code).encode())
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Be the process that was asked for, to its end."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if request["setsid"]:
            os.setsid()
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        os.closerange(3, 1 + max(int(name) for name in os.listdir("/proc/self/fd")))
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        time.tzset()
        sys.argv = request["argv"]
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        from pxctl.main import main

        code = main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120
    finally:
        os._exit(code or 0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
