"""Kernels of a whole daemon, as a stranger with a socket calls them; and what tests say in one line."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import http.client
import json
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beside import beside
from e2e.house import BIN, DEADLINE, Answer, House, UnixConnection, alive, house, marked, until, written_pid

QUICK = {"PX_DAEMON__BACKOFF_INITIAL_SECONDS": "0.05", "PX_DAEMON__BACKOFF_MAX_SECONDS": "0.1"}
"""A killed brain is back at once."""
NOBODY_IS_EVICTED = {"PX_KERNELS__IDLE_SECONDS": "3600", "PX_KERNELS__MAX_SESSIONS": "30"}
PAGE = 4 * 1024 * 1024
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
    """A call that goes on beside the test; what `ask` returns is its result, or the broken connection."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._done.set_result(self._ask())
        except (OSError, http.client.HTTPException) as error:
            self._done.set_exception(error)

    def done(self) -> bool:
        return self._done.done()

    def result(self, seconds: float = DEADLINE) -> Any:
        return self._done.result(seconds)

    def cut_off(self, seconds: float = DEADLINE) -> Any:
        """Return the answer, None where the connection broke off before there was one."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._done.result(seconds)
        return None

    def document(self) -> dict[str, Any]:
        answer = self.result()
        assert answer.status == 200, answer.body
        document: dict[str, Any] = answer.json()
        return document


@dataclass
class Stream:
    """One NDJSON answer that is read when the test wishes."""

    connection: UnixConnection
    response: http.client.HTTPResponse

    def next(self) -> dict[str, Any]:
        line = self.response.readline()
        assert line, "the stream ended without a last word"
        event: dict[str, Any] = json.loads(line)
        return event

    def until(self, name: str) -> dict[str, Any]:
        """Read on to the next event of that name; `done` and problems end every wait."""
        while True:
            event = self.next()
            if event.get("event") == name:
                return event
            assert event.get("event") not in {"done", None}, event

    def printed(self, length: int) -> str:
        """Return the next `length` characters of output, in however many pieces they come."""
        text = ""
        while len(text) < length:
            text += self.until("output")["text"]
        return text

    def rest(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.response if line.strip()]

    def hang_up(self) -> None:
        self.response.close()
        self.connection.close()


@dataclass
class Calls:
    """The kernels of one daemon; sessions are in `cwd` where a call names no other folder."""

    house: House
    cwd: str = ""
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def remembered(self, name: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what `ask` gave when it was first asked under that name."""
        if name not in self.answers:
            self.answers[name] = ask()
        return self.answers[name]

    def body(self, code: str | list[Any], **members: Any) -> dict[str, Any]:
        code_of = {"code": code} if isinstance(code, str) else {"cells": [_cell(item) for item in code]}
        return {"cwd": self.cwd, **code_of, **members}

    def ask(self, kernel: str, code: str | list[Any], *, seconds: float = DEADLINE, **members: Any) -> Answer:
        path = f"/api/kernels/{kernel}/execute"
        return self.house.request("POST", path, self.body(code, **members), seconds=seconds)

    def run(self, kernel: str, code: str | list[Any], **members: Any) -> dict[str, Any]:
        """Return the px.exec/1 document of a call that ran."""
        answer = self.ask(kernel, code, **members)
        assert answer.status == 200, answer.body
        document: dict[str, Any] = answer.json()
        assert document["schema"] == "px.exec/1", document
        return document

    def value(self, kernel: str, code: str, **members: Any) -> str:
        """Return what one good cell printed or is worth."""
        document = self.run(kernel, code, **members)
        assert document["status"] == "ok", document
        text: str = document["cells"][0]["text"]
        return text.rstrip("\n")

    def problem(self, kernel: str, code: str | list[Any], **members: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the problem document of a call that never ran."""
        answer = self.ask(kernel, code, **members)
        assert answer.status != 200, answer.body
        assert answer.headers["content-type"].startswith("application/problem+json"), answer.headers
        return answer.status, answer.json()

    def later(self, kernel: str, code: str | list[Any], **members: Any) -> Later:
        return Later(lambda: self.ask(kernel, code, **members))

    @contextlib.contextmanager
    def stream(self, kernel: str, code: str | list[Any], **members: Any) -> Iterator[Stream]:
        connection = UnixConnection(self.house.socket)
        headers = {"Accept": "application/x-ndjson", "Content-Type": "application/json"}
        payload = json.dumps(self.body(code, **members)).encode()
        connection.request("POST", f"/api/kernels/{kernel}/execute", payload, headers)
        made = Stream(connection, connection.getresponse())
        try:
            yield made
        finally:
            made.hang_up()

    def interrupt(self, kernel: str) -> dict[str, Any]:
        answer = self.house.request("POST", f"/api/kernels/{kernel}/interrupt")
        assert answer.status == 200, answer.body
        document: dict[str, Any] = answer.json()
        return document

    def show(self, kernel: str) -> dict[str, Any]:
        document: dict[str, Any] = self.house.get(f"/api/kernels/{kernel}")
        return document

    def listed(self) -> list[dict[str, Any]]:
        """Return all sessions."""
        kernels: list[dict[str, Any]] = self.house.get("/api/kernels")["kernels"]
        return kernels

    def known(self) -> dict[str, dict[str, Any]]:
        """Return all sessions, by name."""
        return {item["name"]: item for item in self.listed()}

    def state(self, kernel: str) -> str | None:
        found = self.known().get(kernel)
        return None if found is None else found["state"]

    def wait_state(self, kernel: str, *states: str) -> None:
        until(lambda: self.state(kernel) in states, f"{kernel} is {' or '.join(states)}")

    def wait_running(self, kernel: str) -> str:
        """Return the id of the cell that runs, once one was sent; its code may not have begun."""
        cell: str = until(lambda: (self.known().get(kernel) or {}).get("running"), f"a cell of {kernel} runs")
        return cell

    def history(self, kernel: str) -> list[dict[str, Any]]:
        cells: list[dict[str, Any]] = self.house.get(f"/api/kernels/{kernel}/cells")["cells"]
        return cells

    def pages(self, kernel: str, cell: str, query: str = "", limit: int = PAGE) -> Iterator[bytes]:
        """Yield the complete output of a cell that has ended, page by page, checking each page's headers."""
        offset = 0
        while True:
            path = f"/api/kernels/{kernel}/cells/{cell}/output?offset={offset}&limit={limit}{query}"
            answer = self.house.request("GET", path)
            assert answer.status == 200, answer.body
            assert answer.headers["content-type"] == "application/octet-stream"
            assert int(answer.headers["x-offset"]) == offset
            assert len(answer.body) <= limit
            offset += len(answer.body)
            yield answer.body
            if answer.headers["x-complete"] == "true":
                assert int(answer.headers["x-total-bytes"]) == offset
                return
            assert answer.body, "an empty page of a cell that has ended"

    def output(self, kernel: str, cell: str, query: str = "", limit: int = PAGE) -> bytes:
        return b"".join(self.pages(kernel, cell, query, limit))

    def digest(self, kernel: str, cell: str) -> tuple[str, int]:
        found, size = hashlib.sha256(), 0
        for page in self.pages(kernel, cell):
            found.update(page)
            size += len(page)
        return found.hexdigest(), size

    def events(self, unit: str) -> list[dict[str, Any]]:
        answer = self.house.request("GET", f"/api/events?unit={unit}")
        assert answer.status == 200, answer.body
        return [json.loads(line) for line in answer.body.splitlines() if line.strip()]


def _cell(item: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {"code": item} if isinstance(item, str) else item


def actions(cell: Mapping[str, Any]) -> list[str]:
    """Return the rungs that ended a cell, in order."""
    return [step["action"] for step in cell["steps"]]


# -- the same in one line, in the house's own folder ------------------------------------------------------------------


def begun(home: House, session: str, code: str, mark: Path, **members: Any) -> Later:
    """Start a call whose first cell has made `mark` when this returns."""
    mark.unlink(missing_ok=True)
    later = Later(lambda: run(home, session, f"open({str(mark)!r}, 'w').close()\n{code}", **members))
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
    return Calls(home).history(row(home, session)["id"])


def output(home: House, session: str, cell: str) -> bytes:
    """Return what there is of the output of a cell, whatever became of its kernel."""
    kernel, found = row(home, session)["id"], b""
    while True:
        answer = home.request("GET", f"/api/kernels/{kernel}/cells/{cell}/output?offset={len(found)}&limit={PAGE}")
        assert answer.status == 200, answer.body
        if not answer.body:
            return found
        found += answer.body


def events(home: House, session: str) -> list[dict[str, Any]]:
    """Return what happened to the session's kernel, oldest first."""
    return Calls(home).events(f"kernel:{row(home, session)['id']}")


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


def pxctl_later(home: House, *args: str) -> subprocess.Popen[str]:
    """Start pxctl beside the test."""
    return beside([BIN / "pxctl", *args], env=home.environ, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, text=True)


def ended(home: House, session: str) -> bool:
    """Say whether the newest cell of a session has ended; no session yet is no."""
    known = Calls(home).state(session)
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
