"""What the black-box tests of pipes say in one line: write a pipe, run it, read row and output, look for strays."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from e2e.house import DEADLINE, Answer, House, alive, house, marked, until

T = TypeVar("T")

FAKE_AGENT = Path(__file__).parent.parent / "pipes" / "fake_agent.py"
DIALECTS = {"fake": "pi-new", "fake-text": "text"}
"""Adapters of every house here: the fake agent in two tongues."""
QUICK = {
    "PX_DAEMON__BACKOFF_INITIAL_SECONDS": "0.05",
    "PX_DAEMON__BACKOFF_MAX_SECONDS": "0.1",
    "PX_DAEMON__ZYGOTES": "0",  # processes are counted here
    "PX_API__DRAIN_SECONDS": "1",
    "PX_PIPES__STOP_SECONDS": "0.3",
    "PX_PIPES__SETTLE_SECONDS": "0.1",
    "PX_PIPES__STAGGER_SECONDS": "0",
    "PX_PIPES__RETRIES": "0",
    "PX_PIPES__SLOTS_MANUAL": "8",
}
"""A killed brain is back at once, and nobody waits for seconds."""
FINAL = frozenset({"completed", "failed", "timed_out", "cancelled"})
ERROR_TYPES = {
    *("timeout", "crash", "rate_limited", "quota_exhausted", "model_not_found", "auth_failed", "network"),
    *("context_overflow", "safety_refusal", "cancelled", "shutdown", "interrupted", "agent_not_found"),
    *("preset_not_found", "config_error", "missing_output", "preflight_failed", "disk_full", "unknown"),
    *("agent_incompatible", "provider_error", "budget_exceeded", "resource_limit"),
}
"""The closed list of CONTRACT §7."""


@dataclass(frozen=True)
class Row:
    """One execution as the API tells it: its members are attributes here."""

    document: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.document[name]

    def __repr__(self) -> str:
        told = {k: v for k, v in self.document.items() if k not in {"rendered_prompt", "plan", "preset_snapshot"} and v}
        return f"Row({told!r:.3000})"

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def ended(self) -> tuple[str, str | None]:
        """Status and error type."""
        return self.status, self.error_type


def adapter(name: str, *argv: str, parser: str = "pi-jsonl", more: str = "") -> str:
    """Return the table of an adapter for agents.toml; JSON's strings are TOML's."""
    words = json.dumps([str(word) for word in argv])
    return f"[agents.{name}]\nargv = {words}\nprompt = 'stdin'\nparser = '{parser}'\n{more}\n"


@contextlib.contextmanager
def pipes_house(*, start: bool = True, agents: str = "", measured: bool = False, **settings: str) -> Iterator[House]:
    """Make a house whose pipes may name the fake agents; settings are environment variables of the daemon."""
    with house({**QUICK, **settings}) as home:
        home.measured = measured
        tables = [
            adapter(
                name, sys.executable, "-I", "-S", str(FAKE_AGENT), "--as", tongue, parser=parser_of(tongue), more=rule
            )
            for name, tongue in DIALECTS.items()
            for rule in ["" if tongue != "text" else '[agents.fake-text.success]\nrequire = "nothing"']
        ]
        (home.home / "agents.toml").write_text("\n".join([*tables, agents]))
        if start:
            home.start()
        yield home


def parser_of(tongue: str) -> str:
    return "text" if tongue == "text" else "pi-jsonl"


# -- pipes -------------------------------------------------------------------------------------------------------------


def folder_of(home: House, name: str) -> Path:
    return home.home / "pipes" / name


def write(home: House, name: str, front: str, body: str = "Do it.\n") -> Path:
    """Write a pipe.md as it is given, whole or not at all; return its folder."""
    folder = folder_of(home, name)
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / ".pipe.md.new"
    fresh.write_text(f"---\n{front.strip()}\n---\n{body}", encoding="utf-8")
    fresh.replace(folder / "pipe.md")
    return folder


def fake(home: House, name: str, *steps: str, agent: str = "fake", front: str = "", body: str = "") -> Path:
    """Write a pipe whose agent does these steps."""
    return write(home, name, f"schedule: manual\nagent: {agent}\n{front}", f"FAKE: {shlex.join(steps)}\n{body}")


def shell(home: House, name: str, script: str, front: str = "schedule: manual", body: str = "Do it.\n") -> Path:
    """Write a pipe whose agent is a script of the shell."""
    command = json.dumps(shlex.join(["/bin/sh", "-c", script]))
    return write(home, name, f"agent: command\ncommand: {command}\n{front}", body)


# -- executions --------------------------------------------------------------------------------------------------------


def asked(home: House, name: str, **members: Any) -> Answer:
    """Ask for a run; return the answer as it is."""
    return home.request("POST", f"/api/pipes/{name}/run", members)


def begin(home: House, name: str, **members: Any) -> Row:
    """Ask for a run, and have it accepted."""
    answer = asked(home, name, **members)
    assert answer.status == 202, answer.body
    return Row(answer.json())


def run(home: House, name: str, **members: Any) -> Row:
    """Run a pipe to its end; return all of its row."""
    answer = home.request("POST", f"/api/pipes/{name}/run?wait=1", members)
    assert answer.status == 200, answer.body
    return Row(answer.json())


def row(home: House, number: int) -> Row:
    """Return all of a row as it is now."""
    return Row(home.get(f"/api/executions/{number}"))


def ended(home: House, number: int) -> Row:
    """Wait until an execution is over with all that follows from its end, whoever dies meanwhile."""

    def ask() -> Row | None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = home.request("GET", f"/api/executions/{number}?wait=1")
            return Row(answer.json()) if answer.status == 200 else None
        return None

    found = until(lambda: (it := ask()) and it.is_final and it, f"execution {number} is over")
    assert found
    return found


def in_time(attempt: Callable[[float], T | None], seconds: float) -> T:
    """Return what the first attempt gives that had time enough, each having twice as many seconds as the one before.

    For agents that must come to something before their timeout: how long they take to come to it is the machine's.
    """
    while seconds < DEADLINE:
        if (found := attempt(seconds)) is not None:
            return found
        seconds *= 2
    raise AssertionError(f"it came to nothing within {seconds / 2:g} s")


def started(home: House, number: int) -> Row:
    """Wait until an execution has a process, which may not have come to any line of its program yet."""
    found: Row = until(lambda: (it := row(home, number)).pid and it, f"execution {number} runs")
    return found


def rows(home: House, query: str = "") -> list[Row]:
    """Return the executions that a query names, all pages of them, oldest first."""
    found: list[Row] = []
    cursor = ""
    while True:
        page = home.get(f"/api/executions?limit=200&{query}{cursor}")
        found += [Row(each) for each in page["executions"]]
        if page["next_cursor"] is None:
            return found[::-1]
        cursor = f"&cursor={page['next_cursor']}"


def pages(home: House, of: Row, stream: str) -> Iterator[bytes]:
    """Yield all that was kept of a stream, page by page."""
    place = 0
    while True:
        where = f"/api/pipes/{of.pipe_name}/executions/{of.id}/output?stream={stream}&offset={place}&limit=4000000"
        answer = home.request("GET", where)
        assert answer.status == 200, answer.body
        assert answer.headers["x-offset"] == str(place)
        place += len(answer.body)
        yield answer.body
        if answer.headers["x-complete"] == "true":
            assert answer.headers["x-total-bytes"] == str(place)
            return
        if not answer.body:  # the end for now: a brain that takes over cuts back what it is going to read anew
            return


def output(home: House, number: int, stream: str = "stdout") -> bytes:
    """Return all that was kept of a stream so far."""
    return b"".join(pages(home, row(home, number), stream))


def pipe(home: House, name: str) -> dict[str, Any]:
    """Return a pipe as the API tells it."""
    found: dict[str, Any] = home.get(f"/api/pipes/{name}")
    return found


# -- processes ---------------------------------------------------------------------------------------------------------


def strays(home: House) -> list[int]:
    """Return the living processes of this daemon that are neither itself nor those of a running execution."""
    if rows(home, "status=running"):
        return [0]
    control = home.pids()[1]
    return [pid for pid in marked(home.daemon_id) if pid != control]


def nothing_left(home: House) -> None:
    """Wait until nothing of any execution lives; fail with what does."""
    until(lambda: not strays(home), f"nothing is left of the executions: {strays(home)}")


def forked(written: Path) -> list[int]:
    """Return the pids that the agent's children wrote down, in sessions of their own or not."""
    return [int(line.split()[1]) for line in written.read_text().splitlines()]


def holders(folder: Path, text: str) -> list[Path]:
    """Return the files below a folder that hold a text; what the daemon takes away meanwhile holds nothing."""
    found = []
    for where, _, names in os.walk(folder):
        for file in (Path(where, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                if file.is_file() and text.encode() in file.read_bytes():
                    found.append(file)
    return found


def all_dead(pids: list[int]) -> bool:
    return bool(pids) and not any(alive(pid) for pid in pids)


def events(home: House, name: str) -> list[dict[str, Any]]:
    """Return what was told of a pipe so far."""
    done = home.pxctl("events", "--unit", f"pipe:{name}", "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
