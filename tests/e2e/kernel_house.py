"""What the black-box tests of kernels say in one line: run cells in a session, look at its row, wait for its end."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beside import beside
from e2e.house import BIN, House, UnixConnection, alive, house, marked, until, written_pid

QUICK = {"PX_DAEMON__BACKOFF_INITIAL_SECONDS": "0.05", "PX_DAEMON__BACKOFF_MAX_SECONDS": "0.1"}
"""A killed brain is back at once."""
NOBODY_IS_EVICTED = {"PX_KERNELS__IDLE_SECONDS": "3600", "PX_KERNELS__MAX_SESSIONS": "30"}
DIRECT, GATEWAY = "direct", "gateway-local"
HOLDS_THE_LOCK = "sum(range(10 ** 10))"
"""One call into C that no signal ends: minutes on any machine."""
BUSY_WITH = ("nothing", "prints", "C", "await", "children")
PRINTS = """
import os, time
count = 0
while not os.path.exists({go!r}):
    print("line", count, flush=True)
    count += 1
    time.sleep(0.002)
print("END", count)
"""
SOME_C = "total = sum(range(2 * 10 ** 7)); print('END', 0)"
AWAIT = "import asyncio; await asyncio.sleep({seconds}); print('END', 0)"
CHILDREN = """
import os, subprocess, time
apart = subprocess.Popen(["sleep", "1000"], start_new_session=True)
open({apart!r}, "w").write(str(apart.pid))
os.system("nohup sleep 1000 > /dev/null 2>&1 & echo $! > {nohup}")
"""


@dataclass
class Call:
    """One answer of `POST …/execute`: a problem document, or what came of each cell."""

    status: int
    document: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.document[name]

    def __getitem__(self, name: str) -> Any:
        return self.document[name]

    @property
    def ok(self) -> bool:
        return self.status == 200 and self.document["status"] == "ok"

    @property
    def cell(self) -> dict[str, Any]:
        assert self.status == 200, self.document
        found: dict[str, Any] = self.document["cells"][0]
        return found

    @property
    def text(self) -> str:
        return str(self.cell["text"]).strip()

    @property
    def told(self) -> str:
        """All that the answer says in words."""
        words = [self.document.get("message"), self.document.get("detail"), *self.document.get("notices", ())]
        for cell in self.document.get("cells", ()):
            words += [*cell["notices"], (cell["error"] or {}).get("value")]
        return "\n".join(word for word in words if word)


def run(home: House, session: str, code: str | None = None, *, seconds: float = 60.0, **members: Any) -> Call:
    """Run code, or the cells of `members`, in the session of that name in the house's own folder."""
    body = {"cwd": str(home.home), "timeout": seconds - 5, **({} if code is None else {"code": code}), **members}
    answer = home.request("POST", f"/api/kernels/{session}/execute", body, seconds=seconds)
    return Call(answer.status, answer.json())


def value(home: House, session: str, expression: str, **members: Any) -> str:
    """Return what an expression is in a session; fail when it cannot be had."""
    call = run(home, session, f"print({expression})", **members)
    assert call.ok, (session, expression, call.document)
    return call.text


class Later:
    """A call that goes on beside the test; `result` is its Call, or the broken connection."""

    def __init__(self, home: House, session: str, code: str, **members: Any) -> None:
        self._done: concurrent.futures.Future[Call] = concurrent.futures.Future()
        threading.Thread(target=self._run, args=(home, session, code, members), daemon=True).start()

    def _run(self, home: House, session: str, code: str, members: Mapping[str, Any]) -> None:
        try:
            self._done.set_result(run(home, session, code, **members))
        except (OSError, http.client.HTTPException) as error:
            self._done.set_exception(error)

    def result(self, seconds: float = 60.0) -> Call:
        return self._done.result(seconds)

    def cut_off(self, seconds: float = 60.0) -> Call | None:
        """Return the answer, None where the connection broke off before there was one."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._done.result(seconds)
        return None


def begun(home: House, session: str, code: str, mark: Path, **members: Any) -> Later:
    """Start a call whose first cell has made `mark` when this returns."""
    mark.unlink(missing_ok=True)
    later = Later(home, session, f"open({str(mark)!r}, 'w').close()\n{code}", **members)
    until(mark.exists, f"the cell made {mark}")
    return later


def code_of(home: House, what: str, *, ends: bool) -> str:
    """Return a cell that is busy with `what`; one that `ends` says END and leaves, once `go` is there."""
    places = {name: str(home.home / name) for name in ("go", "apart", "nohup")}
    match what:
        case "C":
            return SOME_C if ends else HOLDS_THE_LOCK
        case "await":
            return AWAIT.format(seconds=0.5 if ends else 1000)
        case "children":
            return CHILDREN.format(**places) + PRINTS.format(**places)
        case _:
            return PRINTS.format(**places)


def busy(home: House, session: str, what: str, *, ends: bool) -> Later | None:
    """Make the session busy with `what`; None for nothing."""
    for name in ("go", "apart", "nohup"):
        (home.home / name).unlink(missing_ok=True)
    if what == "nothing":
        return None
    return begun(home, session, code_of(home, what, ends=ends), home.home / "begun")


def escaped(home: House, what: str) -> list[int]:
    """Return the pids of what such a cell left in sessions of its own."""
    return [written_pid(home.home / name) for name in ("apart", "nohup")] if what == "children" else []


def row(home: House, session: str) -> dict[str, Any]:
    """Return the session of that name, the only one; `kernel list` shows the same document."""
    found = [k for k in home.get("/api/kernels")["kernels"] if k["name"] == session]
    assert len(found) == 1, found
    return dict(found[0])


def cells(home: House, session: str) -> list[dict[str, Any]]:
    """Return the history of a session, oldest first."""
    return list(home.get(f"/api/kernels/{row(home, session)['id']}/cells")["cells"])


def output(home: House, session: str, cell: str) -> bytes:
    """Return the complete output of a cell."""
    kernel, found = row(home, session)["id"], b""
    while True:
        answer = home.request("GET", f"/api/kernels/{kernel}/cells/{cell}/output?offset={len(found)}&limit=8000000")
        assert answer.status == 200, answer.body
        if not answer.body:
            return found
        found += answer.body


def events(home: House, session: str) -> list[dict[str, Any]]:
    """Return what happened to the session's kernel, oldest first."""
    done = home.pxctl("events", "--unit", f"kernel:{row(home, session)['id']}", "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def gone(pid: int) -> None:
    """Wait until a process is gone."""
    until(lambda: not alive(pid), f"process {pid} is gone")


def forget(home: House, but: str) -> None:
    """Stop every kernel but one: the next test finds a quiet house."""
    for kernel in home.get("/api/kernels")["kernels"]:
        if kernel["state"] != "stopped" and kernel["name"] != but:
            home.request("DELETE", f"/api/kernels/{kernel['id']}")


def environment(folder: Path) -> Path:
    """Make `folder` a virtual environment in a moment, with our ipykernel in it; return its python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, capture_output=True)
    packages = next((folder / "lib").glob("python3*")) / "site-packages"
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def kernelspec(home: House, name: str, argv: list[str], language: str = "python") -> None:
    """Install a kernelspec where the house's daemon looks for them: JUPYTER_PATH is `home/jupyter`."""
    folder = home.home / "jupyter" / "kernels" / name
    folder.mkdir(parents=True, exist_ok=True)
    spec = {"argv": argv, "display_name": name, "language": language}
    (folder / "kernel.json").write_text(json.dumps(spec))


@contextlib.contextmanager
def kernels_house(**settings: str) -> Iterator[House]:
    """Open a house whose daemon serves and knows the kernelspecs of `home/jupyter`."""
    with house() as home:
        home.settings = {**QUICK, **NOBODY_IS_EVICTED, "JUPYTER_PATH": str(home.home / "jupyter"), **settings}
        home.start()
        yield home


@contextlib.contextmanager
def deaf_stream(home: House, session: str, code: str, **members: Any) -> Iterator[http.client.HTTPResponse]:
    """Open the stream of a call and read no more than its head."""
    connection = UnixConnection(home.socket)
    body = json.dumps({"cwd": str(home.home), "code": code, "timeout": 60, **members})
    headers = {"Content-Type": "application/json", "Accept": "application/x-ndjson"}
    try:
        connection.request("POST", f"/api/kernels/{session}/execute", body, headers)
        yield connection.getresponse()
    finally:
        connection.close()


def pxctl_later(home: House, *args: str) -> subprocess.Popen[str]:
    """Start pxctl beside the test."""
    return beside([BIN / "pxctl", *args], env=home.environ, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, text=True)


def ended(home: House, session: str) -> bool:
    """Say whether the newest cell of a session has ended; no session yet is no."""
    known = [k for k in home.get("/api/kernels")["kernels"] if k["name"] == session]
    return bool(known) and any(c["ended_at"] for c in cells(home, session)[-1:])


def command_lines(home: House) -> str:
    """Return what everybody may read of the house's processes: NUL between words, a line for each."""
    found = []
    for pid in marked(home.daemon_id):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as line:
            found.append(line.read().decode(errors="replace"))
    return "\n".join(found)


def descendants(pid: int) -> list[int]:
    """Return the living children of a process and theirs."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # it may end meanwhile, and so may each of its threads
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as words:
                children += map(int, words.read().split())
    return [one for child in children for one in (child, *descendants(child))]
