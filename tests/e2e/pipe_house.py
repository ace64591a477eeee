"""A house with pipes: write one, run it, read row and output, look for strays."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from e2e.house import BROKEN_OFF, DEADLINE, QUICK, House, alive, house, marked, until

T = TypeVar("T")

FAKE_AGENT = Path(__file__).parent.parent / "pipes" / "fake_agent.py"
SETTINGS = {
    **QUICK,
    "PX_DAEMON__ZYGOTES": "0",  # processes are counted here
    "PX_API__DRAIN_SECONDS": "1",
    "PX_PIPES__STOP_SECONDS": "0.3",
    "PX_PIPES__SETTLE_SECONDS": "0.1",
    "PX_PIPES__STAGGER_SECONDS": "0",
    "PX_PIPES__RETRIES": "0",
    "PX_PIPES__SLOTS_MANUAL": "8",
}
FINAL = frozenset({"completed", "failed", "timed_out", "cancelled"})
DONE = ("completed", None)


@dataclass(frozen=True)
class Row:
    """One execution as the API tells it: its members are attributes here."""

    document: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.document[name]

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def ended(self) -> tuple[str, str | None]:
        return self.status, self.error_type


class PipeHouse(House):
    """A house whose pipes may name the fake agent, which says what `pi` would (`fake`)."""

    def folder(self, name: str) -> Path:
        return self.home / "pipes" / name

    def write(self, name: str, front: str, body: str = "Do it.\n") -> Path:
        folder = self.folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        put(folder / "pipe.md", f"---\n{front.strip()}\n---\n{body}")
        return folder

    def fake(self, name: str, *steps: str, front: str = "") -> Path:
        return self.write(
            name, f"schedule: manual\nagent: fake\n{front}", f"FAKE: {shlex.join(steps)}\n"
        )

    def shell(
        self, name: str, script: str, front: str = "schedule: manual", body: str = "Do it.\n"
    ) -> Path:
        command = json.dumps(shlex.join(["/bin/sh", "-c", script]))
        return self.write(name, f"agent: command\ncommand: {command}\n{front}", body)

    def pipe(self, name: str) -> dict[str, Any]:
        return self.get(f"/api/pipes/{name}")

    def names(self) -> set[str]:
        return {each["name"] for each in self.get("/api/pipes")["pipes"]}

    # -- executions --------------------------------------------------------------------------------

    def begin(self, name: str, **members: Any) -> Row:
        return Row(self.post(f"/api/pipes/{name}/run", members, 202))

    def execute(self, name: str, **members: Any) -> Row:
        return Row(self.post(f"/api/pipes/{name}/run?wait=1", members))

    def cancel(self, of: Row) -> Row:
        return Row(self.post(f"/api/pipes/{of.pipe_name}/executions/{of.id}/cancel"))

    def row(self, number: int) -> Row:
        return Row(self.get(f"/api/executions/{number}"))

    def ended(self, number: int) -> Row:
        def ask() -> Row | None:
            with contextlib.suppress(*BROKEN_OFF):
                answer = self.request("GET", f"/api/executions/{number}?wait=1")
                return it if answer.status == 200 and (it := Row(answer.json())).is_final else None
            return None

        return until(ask, f"execution {number} is over")

    def started(self, number: int) -> Row:
        """Wait until an execution has a process, which may not have come to any line of its
        program yet.
        """
        return until(lambda: (it := self.row(number)).pid and it, f"execution {number} runs")

    def rows(self, query: str = "") -> list[Row]:
        """Return the executions that a query names, all pages of them, oldest first."""
        found, page = list[Row](), {"next_cursor": 2**62}
        while page["next_cursor"] is not None:
            page = self.get(f"/api/executions?limit=200&{query}&cursor={page['next_cursor']}")
            found += map(Row, page["executions"])
        return found[::-1]

    def of(self, name: str, count: int) -> list[Row]:
        """Wait until a pipe has so many executions, all of them over."""
        found = until(
            lambda: len(it := self.rows(f"pipe={name}")) >= count and it,
            f"{count} executions of {name}",
        )
        return [self.ended(each.id) for each in found or ()]

    def output(self, number: int, stream: str = "stdout") -> bytes:
        return self.paged(
            f"/api/pipes/{self.row(number).pipe_name}/executions/{number}/output?stream={stream}"
        )

    # -- processes ---------------------------------------------------------------------------------

    def nothing_left(self) -> None:
        """Wait until nothing runs, and the control plane is alone with the daemon's mark."""
        until(lambda: not self.rows("status=running"), "no execution runs")
        until(
            lambda: set(marked(self.daemon_id)) <= {self.pids()[1]},
            "no process of an execution is left",
        )

    def holders(self, text: str) -> list[Path]:
        """Return the files of the house that hold a text."""
        told = subprocess.run(
            ["grep", "-rlFe", text, self.home], stdout=subprocess.PIPE, text=True, check=False
        )
        return [Path(each) for each in told.stdout.splitlines()]


@contextlib.contextmanager
def pipes_house(
    *, start: bool = True, measured: bool = False, **settings: str
) -> Iterator[PipeHouse]:
    with house({**SETTINGS, **settings}, PipeHouse, measured=measured) as home:
        argv = json.dumps([sys.executable, "-I", "-S", str(FAKE_AGENT)])
        (home.home / "agents.toml").write_text(
            f'[agents.fake]\nargv = {argv}\nparser = "pi-jsonl"\n'
        )
        if start:
            home.start()
        yield home


def put(file: Path, text: str) -> None:
    """Write a file whole: one that is emptied first changes twice, where somebody looks in
    between.
    """
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(file)


def in_time(attempt: Callable[[float], T | None], seconds: float) -> T:
    """Return what the first attempt gives that had time enough, each having twice as many seconds
    as the one before.

    For agents that must come to something before their timeout: how long they take to come to it is
    the machine's.
    """
    while seconds < DEADLINE:
        if (found := attempt(seconds)) is not None:
            return found
        seconds *= 2
    raise AssertionError(f"it came to nothing within {seconds / 2:g} s")


def forked(written: Path) -> list[int]:
    """Return the pids that the fake agent's children wrote down, in sessions of their own or
    not.
    """
    return (
        [int(line.split()[1]) for line in written.read_text().splitlines()]
        if written.exists()
        else []
    )


def all_dead(pids: list[int]) -> bool:
    return bool(pids) and not any(map(alive, pids))


def whole(text: str) -> None:
    """Assert that every line which an agent or a cell has counted is there once, in its order."""
    *lines, last = text.splitlines()
    assert last == f"END {len(lines)}", text[-200:]
    assert lines == [f"line {n}" for n in range(len(lines))]
