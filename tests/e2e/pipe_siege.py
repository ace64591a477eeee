"""Pipes under siege: agents that keep a journal, clients that go on asking, and the reckoning when the killing is over.

The journal is the agents' own word: who began and ended when, and whether another execution of the same pipe was there.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from e2e.house import House, until
from e2e.pipe_house import FINAL, Row, fake, nothing_left, output, row, rows, write

AGENT = """
import fcntl, os, subprocess, sys, time
sys.stdin.read()
me, kind, journal = os.environ["PX_EXECUTION_ID"], sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND)
def note(word):
    os.write(journal, f"{word} {os.environ['PX_PIPE']} {me} {time.clock_gettime_ns(time.CLOCK_BOOTTIME)}\\n".encode())
lock = os.open("lock", os.O_RDWR | os.O_CREAT)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    note("OVERLAP")
note("begin")
if kind == "forks":
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    os.system("(setsid sleep 1000 &) >/dev/null 2>&1")
for n in range({"short": 1, "chained": 1, "forks": 20}.get(kind, 60)):
    print("line", n, flush=True)
    time.sleep(0.003)
print("END", flush=True)
note("end")
"""
KINDS = ("prints", "forks", "short", "speaks", "stays")
EVENTS = {"hooked": "knock", "chained": "pipe_completed:short"}
SPOKEN = [f"word{n}" for n in range(12)]


@dataclass
class Siege:
    """A house whose brain and keeper die, and everything that it has promised."""

    home: House
    accepted: dict[int, str] = field(default_factory=dict)
    """Executions that a client has an answer for, and their pipes."""
    keys: dict[str, int] = field(default_factory=dict)
    """Events that a client has an answer for, and the execution of each, 0 where it was told that there is one."""
    seen: dict[int, int] = field(default_factory=dict)
    """Bytes of stdout that a client could read before a death."""
    killed: set[int] = field(default_factory=set)
    """Agents that were killed."""

    @property
    def journal(self) -> Path:
        return self.home.home / "journal"

    def prepare(self) -> None:
        """Write the pipes."""
        self.journal.touch()
        program = self.home.home / "agent.py"
        program.write_text(AGENT)
        for kind, event in (("prints", ""), ("forks", ""), ("short", ""), *EVENTS.items()):
            words = [sys.executable, "-I", "-S", str(program), kind, str(self.journal)]
            hook = f"trigger: {{events: ['{event}']}}" if event else ""
            write(self.home, kind, f"schedule: manual\nagent: command\ncommand: {json.dumps(' '.join(words))}\n{hook}")
        speech = [step for word in SPOKEN for step in (f"say:{word} ", "sleep:0.015")]
        fake(self.home, "speaks", *speech, "answer:END")
        fake(self.home, "stays", *speech[:8], "answer:END", "stay")

    # -- clients -------------------------------------------------------------------------------------------------------

    def ask(self, kind: str) -> int | None:
        """Queue a run; None where the brain is gone."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = self.home.request("POST", f"/api/pipes/{kind}/run", {"queue": True}, seconds=30)
            if answer.status == 202:
                number: int = answer.json()["id"]
                self.accepted[number] = kind
                return number
            assert answer.status in {503, 504}, answer.body
        return None

    def knock(self, key: str) -> bool:
        """Tell an event; False where nobody heard."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = self.home.request("POST", "/api/events/knock", {"key": key}, seconds=30)
            if answer.status == 202:
                claimed = answer.json()["claimed"]
                self.keys[key] = claimed[0]["execution"] if claimed else 0
                return True
            assert answer.status in {503, 504}, answer.body
        return False

    def knock_until_heard(self, key: str) -> threading.Thread:
        """Tell an event beside the test until somebody has heard, and then once more, as webhooks do."""

        def go_on() -> None:
            until(lambda: self.knock(key), f"event {key} is heard")
            self.knock(key)

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        return thread

    def look(self) -> None:
        """Read how much of each running execution's output a client can have."""
        for each in rows(self.home, "status=running"):
            self.seen[each.id] = len(output(self.home, each.id))

    # -- deaths --------------------------------------------------------------------------------------------------------

    def strike(self, dice: random.Random, order: Sequence[str]) -> None:
        """Kill in that order, and wait for the next brain."""
        keeper, control = self.home.pids()
        for victim in order:
            if victim == "agent":
                self._kill_an_agent()
            else:
                with contextlib.suppress(ProcessLookupError):  # a brain ends by itself once its keeper is gone
                    os.kill({"keeper": keeper, "brain": control}[victim], signal.SIGKILL)
            threading.Event().wait(dice.uniform(0, 0.02))
        if "keeper" in order:
            assert self.home.process is not None
            self.home.process.wait(30)
            if "brain" not in order:
                self.home.wait_gone()  # the brain is the keeper's guard; where both are gone the next start is
            self.home.start()
        else:
            until(self.home.answers, "the next brain answers")

    def _kill_an_agent(self) -> None:
        """Kill an agent that the journal says is at work; the brain may be gone already."""
        at_work: dict[int, int] = {}
        for word, _, number, _ in self.lines():
            at_work[number] = at_work.get(number, 0) + (1 if word == "begin" else -1)
        mark = {f"PX_EXECUTION_ID={number}".encode(): number for number, count in at_work.items() if count == 1}
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                if f"PX_SOCKET={self.home.socket}".encode() in words:
                    found += [(int(entry), mark[word]) for word in words if word in mark]
        if found:
            pid, number = min(found)
            self.killed.add(number)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # -- the reckoning -------------------------------------------------------------------------------------------------

    def lines(self) -> list[tuple[str, str, int, int]]:
        told = [line.split() for line in self.journal.read_text().splitlines()]
        return [(word, name, int(number), int(at)) for word, name, number, at in told]

    def reckon(self, *, may_be_cut_off: bool) -> list[Row]:
        """Wait until all is over, and assert what must be true whatever died."""

        # What a brain recorded, and was killed before it told anybody of it, the next one tells beside its other work.
        def is_done() -> bool:
            return self._is_over() and (may_be_cut_off or self._each_end_is_told()) and self._is_over()

        until(is_done, f"all is over, and told: {self._open()}")
        nothing_left(self.home)
        found = rows(self.home)
        assert [each.id for each in found] == sorted({each.id for each in found})
        by = {each.id: each for each in found}
        assert {number: by[number].pipe_name for number in self.accepted} == self.accepted, "no row is lost"
        self._check_journal(by)
        self._check_events(found)
        assert len(found) == len(rows(self.home)), "nothing begins any more"
        for each in found:
            self._check_row(each, may_be_cut_off=may_be_cut_off)
        print(f"{len(found)} rows, {len(self.killed)} agents killed, {sum(map(bool, self.seen.values()))} seen at work")
        groups = self.home.get("/api/pipes/queue")["groups"]
        assert not [each for group in groups for each in (*group["running"], *group["waiting"])]
        return found

    def _is_over(self) -> bool:
        """Say whether all is final, and what follows from it as well: a slot is given back after that."""
        told = self.home.get("/api/health")["pipes"]
        return not (told["queued"] or told["running"] or self._open())

    def _each_end_is_told(self) -> bool:
        """Say whether each end of the one pipe was told to the other that waits for it, and nothing else was."""
        short = {str(each.id) for each in rows(self.home, "pipe=short") if each.status == "completed"}
        return {each.trigger_key for each in rows(self.home, "pipe=chained")} == short

    def _open(self) -> list[Row]:
        return rows(self.home, "status=queued&status=running")

    def _check_journal(self, by: dict[int, Row]) -> None:
        """Assert that nothing ran twice, and nothing beside another execution of its pipe."""
        told = self.lines()
        assert not [line for line in told if line[0] == "OVERLAP"]
        begun = [line[2] for line in told if line[0] == "begin"]
        assert len(begun) == len(set(begun)), "an execution ran twice"
        for name in {line[1] for line in told}:
            times = [line for line in told if line[1] == name]
            spans = [(line[3], line[2]) for line in times if line[0] == "begin"]
            ends = {line[2]: line[3] for line in times if line[0] == "end"}
            for (_, number), (after, _) in pairwise(spans):
                assert ends.get(number, 0) < after
        for word, name, number, _ in told:
            assert by[number].pipe_name == name
            assert by[number].started_at is not None
            if word == "end" and number not in self.killed:
                assert by[number].status == "completed" or by[number].error_type == "interrupted", by[number]

    def _check_events(self, found: list[Row]) -> None:
        """Assert that each event that was heard started its pipe once, and none more than that."""
        took: dict[tuple[str, str], list[Row]] = {}
        for each in found:
            if each.pipe_name in EVENTS:
                took.setdefault((each.pipe_name, each.trigger_key), []).append(each)
        for rows_ in took.values():
            assert not [each for each in rows_[:-1] if each.status == "completed"], "an event counts once"
        assert {("hooked", key) for key in self.keys} <= set(took)

    def _check_row(self, each: Row, *, may_be_cut_off: bool) -> None:
        assert each.status in FINAL
        expected: dict[str, set[Any]] = {"completed": {None}, "failed": {"interrupted"}}
        if each.id in self.killed:
            expected["failed"] = {"interrupted", "crash"}
        assert each.error_type in expected.get(each.status, set()), each
        began = any(line[2] == each.id for line in self.lines() if line[0] == "begin")
        if not may_be_cut_off and began and each.id not in self.killed:
            assert each.status == "completed", f"the keeper held it all the time: {each!r}"
        assert each.incomplete == (each.status == "failed" and each.started_at is not None)
        assert Path(each.output_dir, "INCOMPLETE").exists() == each.incomplete, each
        whole, kept = self._whole(each.pipe_name), output(self.home, each.id).decode()
        if each.status == "completed":
            assert kept == whole, (each, kept[:200], kept[-200:])
            assert row(self.home, each.id).stdout == whole
        else:
            assert whole.startswith(kept.rstrip("\n")), (each, kept)
            assert len(kept) >= self.seen.get(each.id, 0), f"kept up to the kill: {each!r}"
        assert each.stdout_bytes == len(kept)

    @staticmethod
    def _whole(kind: str) -> str:
        if kind in {"speaks", "stays"}:
            return "".join(f"{word} " for word in SPOKEN[: 12 if kind == "speaks" else 4]) + "\n"
        return "".join(f"line {n}\n" for n in range({"short": 1, "chained": 1, "forks": 20}.get(kind, 60))) + "END\n"
