"""A whole daemon in a throw-away home, driven only through its installed commands and its
socket.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from beside import beside
from waiting import PATIENCE, alive, marked, remove_group, until

__all__ = ["alive", "marked", "until"]
BIN = Path(sys.executable).parent
DEADLINE = PATIENCE
QUICK = {"PX_DAEMON__BACKOFF_INITIAL_SECONDS": "0.05", "PX_DAEMON__BACKOFF_MAX_SECONDS": "0.1"}
"""Settings with which a killed brain is back at once, also after many deaths."""
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
PROBLEM = {"type", "title", "status", "kind", "detail", "hint", "unit"}
NDJSON, SSE = "application/x-ndjson", "text/event-stream"
BROKEN_OFF = (OSError, http.client.HTTPException)


class UnixConnection(http.client.HTTPConnection):
    """http.client over a Unix socket."""

    def __init__(self, path: str, seconds: float = DEADLINE) -> None:
        super().__init__("px", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def lines(self) -> list[Any]:
        """Return the documents of an NDJSON answer."""
        return [json.loads(line) for line in self.body.splitlines() if line.strip()]

    def refused(self, status: int, kind: str | None = None) -> dict[str, Any]:
        """Return the problem document, of that status, and of that kind where one is given."""
        problem: dict[str, Any] = self.json()
        known = (self.status, problem["status"], kind or problem["kind"])
        assert known == (status, status, problem["kind"]), problem
        assert self.headers["content-type"].split(";")[0] == "application/problem+json"
        assert (problem.keys() >= PROBLEM, bool(problem["detail"] and problem["hint"])) == (
            True,
            True,
        ), problem
        return problem


class Later(Future[Any]):
    """A call that goes on beside the test; what `ask` returns is its result, or the broken
    connection.
    """

    def __init__(self, ask: Callable[[], Any]) -> None:
        super().__init__()
        threading.Thread(target=self._run, args=[ask], daemon=True).start()

    def _run(self, ask: Callable[[], Any]) -> None:
        try:
            self.set_result(ask())
        except BROKEN_OFF as error:
            self.set_exception(error)

    def result(self, timeout: float | None = DEADLINE) -> Any:
        return super().result(timeout)

    def cut_off(self) -> Any:
        """Return the answer, None where the connection broke off before there was one."""
        with contextlib.suppress(*BROKEN_OFF):
            return self.result()
        return None


@dataclass
class House:
    """One PX_HOME, at most one daemon in it.

    Where it is `measured` coverage follows into its processes, which costs each a tenth of a second
    and its brains half of their speed: where a contract is gone through, and not where it is about
    deaths and loads.
    """

    home: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    measured: bool = False
    runner: Sequence[str] = ()  # what runs pxd, and becomes it

    @property
    def socket(self) -> str:
        return self.settings.get("PX_SOCKET") or str(self.home / "run" / "pxd.sock")

    @property
    def daemon_id(self) -> str:
        return hashlib.sha256(os.path.realpath(self.home / "state").encode()).hexdigest()[:8]

    @property
    def environ(self) -> dict[str, str]:
        left_out = ("PX_", "XDG_") if self.measured else ("PX_", "XDG_", "COVERAGE_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
        return {
            **kept,
            "PX_HOME": str(self.home),
            "PATH": f"{BIN}:{kept.get('PATH', '')}",
            **self.settings,
        }

    # -- its life ----------------------------------------------------------------------------------

    def start(self, *args: str, wait: bool = True) -> None:
        words = [*self.runner, BIN / "pxd", *args]
        with open(self.home / "pxd.stderr", "ab") as log:
            self.process = subprocess.Popen(
                words, env=self.environ, stderr=log, stdin=subprocess.DEVNULL
            )
        if wait:
            until(self.answers, f"pxd answers; it said: {self.said()}")

    def said(self) -> str:
        path = self.home / "pxd.stderr"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def answers(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            raise AssertionError(f"pxd exited {self.process.returncode}: {self.said()}")
        try:
            return self.request("GET", "/api/health", seconds=5).status == 200
        except BROKEN_OFF:  # nobody there, or a control plane that is just being replaced
            return False

    def pids(self) -> tuple[int, int]:
        """Return those of keeper and control plane."""
        daemon = self.get("/api/status")["daemon"]
        return daemon["keeper"]["pid"], daemon["control"]["pid"]

    def kill_brain(self) -> None:
        """Kill the control plane, and wait for the next one."""
        os.kill(self.pids()[1], signal.SIGKILL)
        until(self.answers, "the next brain answers")

    def strike(self, order: Sequence[str], dice: random.Random, **others: int) -> None:
        """Kill in that order; return once the next brain answers, or without a keeper, once
        nothing guards anything.
        """
        keeper, control = self.pids()
        pids = {"keeper": keeper, "brain": control, **others}
        for victim in order:
            # a brain ends by itself once its keeper is gone
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[victim], signal.SIGKILL)
            a_moment(dice, 0.02)
        if "keeper" not in order:
            until(self.answers, "the next brain answers")
            return
        self.process.wait(DEADLINE)
        if "brain" not in order:
            # the brain is the keeper's guard; where both are gone the next start is
            self.wait_gone()

    def wait_gone(self) -> None:
        until(
            lambda: not marked(self.daemon_id),
            f"nothing is left of {self.home}: {marked(self.daemon_id)}",
        )

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE)
        self.process = None
        return code

    def tear_down(self) -> None:
        """End everything of this house, whatever state a test left it in: what is about the end
        has waited for it.
        """
        print(self.said())  # pytest shows it where a test has failed
        if self.process is not None and self.process.poll() is None:
            if self.measured:  # a process that is killed tells nothing of what it covered
                self.process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(30)
            self.process.kill()
            self.process.wait(10)
        until(self._kill_marked, f"nothing is left of {self.home}")
        remove_group(self.daemon_id)

    def _kill_marked(self) -> bool:
        """Kill what is left; true once there is nothing.

        One that was forked meanwhile is only seen the next time.
        """
        left = marked(self.daemon_id)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return not left

    # -- its socket --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def asking(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Any = None,
        seconds: float = DEADLINE,
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request; yield its answer to be read while it comes."""
        payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"} if payload is not None else {}
        with contextlib.closing(UnixConnection(self.socket, seconds)) as connection:
            connection.request(method, path, payload, {**kind, **(headers or {})})
            with connection.getresponse() as response:
                yield response

    def request(self, method: str, path: str, body: Any = None, **how: Any) -> Answer:
        with self.asking(method, path, body, **how) as response:
            return Answer(
                response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
            )

    def get(self, path: str) -> Any:
        answer = self.request("GET", path)
        assert answer.status == 200, answer.body
        return answer.json()

    def post(self, path: str, body: Any = None, status: int = 200, **how: Any) -> Any:
        answer = self.request("POST", path, body, **how)
        assert answer.status == status, answer.body
        return answer.json()

    def paged(self, path: str, limit: int = 4_000_000) -> bytes:
        """Return an output, read in pages that fit together, up to its end for now."""
        found = b""
        while True:
            page = self.request(
                "GET", f"{path}{'&' if '?' in path else '?'}offset={len(found)}&limit={limit}"
            )
            assert (page.status, page.headers["content-type"]) == (
                200,
                "application/octet-stream",
            ), page.body
            assert (page.headers["x-offset"], len(page.body) <= limit) == (str(len(found)), True)
            found += page.body
            is_complete = page.headers["x-complete"] == "true"
            assert not is_complete or page.headers["x-total-bytes"] == str(len(found))
            # the end for now: who takes over cuts back what it is going to read anew
            if is_complete or not page.body:
                return found

    def run(self, tool: str, body: Any = None, **how: Any) -> Answer:
        return self.request("POST", f"/api/tools/{tool}/run", {} if body is None else body, **how)

    def unit(self, name: str) -> dict[str, Any]:
        """Return what `status` tells of a unit."""
        (found,) = (unit for unit in self.get("/api/status")["units"] if unit["unit"] == name)
        return dict(found)

    def status(self, tool: str) -> dict[str, Any]:
        return self.unit(f"tool:{tool}")

    def events(self, unit: str, *names: str) -> list[dict[str, Any]]:
        """Return what happened to a unit, oldest first: all of it, or what has one of these
        names.
        """
        told = self.request("GET", f"/api/events?unit={unit}&limit=20000").lines()
        return [each for each in told if not names or each["event"] in names]

    # -- its client --------------------------------------------------------------------------------

    def pxctl(self, *args: str, text: bool = True, **how: Any) -> subprocess.CompletedProcess[Any]:
        """Run pxctl in the house.

        Settings are those of `subprocess.run`; `env` is added to the house's.
        """
        env = {**self.environ, **how.pop("env", {})}
        words: dict[str, Any] = {"text": True, "errors": "replace"} if text else {}
        words |= {} if "input" in how else {"stdin": subprocess.DEVNULL}
        words |= {"cwd": self.home, "timeout": DEADLINE, **how}
        return subprocess.run(
            [BIN / "pxctl", *args], check=False, env=env, capture_output=True, **words
        )

    def json(self, *args: str, code: int | None = 0) -> Any:
        """Return the document of a command that exits so, None: however."""
        done = self.pxctl(*args, "--json", timeout=110)
        assert code in {None, done.returncode}, done
        return json.loads(done.stdout)

    def pxctl_later(self, *args: str, **how: Any) -> subprocess.Popen[Any]:
        """Start pxctl beside the test."""
        env = {**self.environ, **how.pop("env", {})}
        words = {"text": True, "stdin": subprocess.DEVNULL, "stdout": -1, "stderr": -1, **how}
        return beside([BIN / "pxctl", *args], env=env, cwd=self.home, **words)

    # -- its tools ---------------------------------------------------------------------------------

    def tool(self, name: str, code: str, **manifest: Any) -> Path:
        folder = self.home / "tools" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "main.py").write_text(textwrap.dedent(code))
        plain = {
            "name": name,
            "version": "1.0",
            "description": "a test tool",
            "input": {"type": "object"},
        }
        (folder / "tool.json").write_text(json.dumps({**plain, **manifest}))
        return folder


SERVER = """
import json, os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Tool(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def answer(self, value, status=200):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path == "/healthz": self.answer({"ok": True})
        elif self.path == "/schema": self.answer(json.load(open("tool.json")))
        else: self.answer({"detail": "no"}, 404)
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path == "/run": self.answer(run(body))
        else: self.answer({"detail": "no"}, 404)

def serve():
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Tool).serve_forever()
"""
# What a tool does first that leaves a grandchild in a session of its own; both are deaf to SIGTERM.
ESCAPES = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("grandchild", "w").write(str(os.getpid()))
        while True: time.sleep(100)
    os._exit(0)
os.wait()
"""


def server(run: str, first: str = "") -> str:
    """Return the source of a tool whose run(body) is `run`, Python statements that return a JSON
    value.

    `first` is run when the tool starts.
    """
    body, main = (
        textwrap.indent(textwrap.dedent(part).strip(), "    ")
        for part in (run, f"{first}\nserve()")
    )
    return f"{SERVER}\ndef run(body):\n{body}\n\nif __name__ == '__main__':\n{main}\n"


H = TypeVar("H", bound=House)


@contextlib.contextmanager
def house(
    settings: Mapping[str, str] | None = None,
    kind: type[H] = House,
    *,
    start: bool = False,
    measured: bool = False,
) -> Iterator[H]:
    """Make a house with a short path (socket paths are limited) and leave nothing of it behind."""
    home = Path(tempfile.mkdtemp(prefix="px-", dir="/tmp"))
    made = kind(home, dict(settings or {}), measured=measured)
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, home, ignore_errors=True)
        undo.callback(made.tear_down)
        if start:
            made.start()
        yield made


def of_module(
    make: Callable[..., contextlib.AbstractContextManager[Any]], *given: Any, **settings: Any
) -> Any:
    """Return a fixture: what `make` opens, once for all tests of a file."""
    import pytest  # which sleeper.py is without

    @pytest.fixture(scope="module")
    def shared() -> Iterator[Any]:
        with make(*given, **settings) as made:
            yield made

    return shared


def written_pid(path: Path) -> int:
    """Return the pid that a child writes into a file, once it has."""
    return int(
        until(
            lambda: path.exists() and path.read_text(encoding="utf-8").strip(),
            f"a child wrote {path}",
        )
    )


def gone(*pids: int) -> None:
    """Wait until processes are gone."""
    until(lambda: not any(map(alive, pids)), f"processes {pids} are gone")


def a_moment(dice: random.Random, most: float) -> None:
    threading.Event().wait(dice.uniform(0, most))


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Callable[[str], None]]:
    """Mount a file system of that size there (only root may); yields what gives it another size."""
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "px", folder], check=True
    )

    def resize(size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)

    try:
        yield resize
    finally:
        # even where somebody just looks into it
        subprocess.run(["umount", "-l", folder], check=False)
