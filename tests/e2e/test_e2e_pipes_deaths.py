"""`kill -9` of brain, keeper and agents at random points of runs: no row lost, none run twice,
nothing left behind.

A brain's death is nothing to an agent: the keeper holds it, the next brain reads on where the last
one was. A keeper's death takes everything along; the next start says what was cut off. Fifty seeds,
each a moment and an order of deaths.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from e2e.house import BROKEN_OFF, Later, a_moment, alive, server, small_disk, until
from e2e.pipe_house import DONE, FINAL, PipeHouse, Row, in_time, pipes_house
from rounds import rounds

# daemon after daemon: minutes, where others want the processors, too
pytestmark = pytest.mark.timeout(600)
OF_BRAINS = "brain, brain, brain agent, agent brain"
OF_KEEPERS = (
    "keeper, keeper brain, brain keeper, agent keeper, brain agent keeper, keeper agent brain"
)
COUNTS = "n=0; while [ ! -e go ]; do echo line $n; n=$((n+1)); sleep 0.005; done; echo END $n"
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
for n in range(int(sys.argv[3])):
    print("line", n, flush=True)
    time.sleep(0.003)
print("END", flush=True)
note("end")
"""
LINES = {"prints": 60, "forks": 20, "short": 1, "chained": 1, "hooked": 60}
KINDS = ("prints", "forks", "short", "speaks", "stays")
EVENTS = {"hooked": "knock", "chained": "pipe_completed:short"}
SPOKEN = [f"word{n}" for n in range(12)]
WHOLE = {
    **{
        kind: "".join(f"line {n}\n" for n in range(count)) + "END\n"
        for kind, count in LINES.items()
    },
    "speaks": " ".join(SPOKEN) + " \n",
    "stays": " ".join(SPOKEN[:4]) + " \n",
}


class Siege:
    """A house whose brain and keeper die, and everything that it has promised.

    The journal is the agents' own word: who began and ended when, and whether another execution of
    its pipe was there.
    """

    def __init__(self, home: PipeHouse) -> None:
        """Write the pipes."""
        self.home = home
        # executions that a client has an answer for, and their pipes
        self.accepted: dict[int, str] = {}
        self.keys: set[str] = set()  # events that a client has an answer for
        self.seen: dict[int, int] = {}  # bytes of stdout that a client could read before a death
        self.killed: set[int] = set()  # agents that were killed
        self.journal, program = home.home / "journal", home.home / "agent.py"
        self.journal.touch()
        program.write_text(AGENT)
        for kind, count in LINES.items():
            words = [sys.executable, "-I", "-S", str(program), kind, str(self.journal), str(count)]
            hook = f"trigger: {{events: ['{EVENTS[kind]}']}}" if kind in EVENTS else ""
            home.write(
                kind,
                f"schedule: manual\nagent: command\ncommand: {json.dumps(' '.join(words))}\n{hook}",
            )
        speech = [step for word in SPOKEN for step in (f"say:{word} ", "sleep:0.015")]
        home.fake("speaks", *speech, "answer:END")
        home.fake("stays", *speech[:8], "answer:END", "stay")

    # -- clients -----------------------------------------------------------------------------------

    def _post(self, path: str, body: Any) -> Any:
        """Return what was accepted; None where the brain is gone."""
        with contextlib.suppress(*BROKEN_OFF):
            answer = self.home.request("POST", path, body, seconds=30)
            assert answer.status in {202, 503, 504}, answer.body
            return answer.json() if answer.status == 202 else None
        return None

    def ask(self, kind: str) -> None:
        """Queue a run."""
        if (told := self._post(f"/api/pipes/{kind}/run", {"queue": True})) is not None:
            self.accepted[told["id"]] = kind

    def knock_until_heard(self, key: str) -> Later:
        """Tell an event beside the test until somebody has heard, and then once more, as
        webhooks do.
        """

        def knock() -> bool:
            return self._post("/api/events/knock", {"key": key}) is not None

        def go_on() -> None:
            until(knock, f"event {key} is heard")
            self.keys.add(key)
            knock()

        return Later(go_on)

    def strike(self, dice: random.Random, order: Sequence[str]) -> None:
        """Kill in that order after a look at each running execution's output, and wait for the
        next brain.
        """
        for each in self.home.rows("status=running"):
            self.seen[each.id] = len(self.home.output(each.id))
        agents = self._agents() if "agent" in order else {}
        if agents:
            self.killed.add(agents[min(agents)])
        victims = [each for each in order if agents or each != "agent"]
        self.home.strike(victims, dice, agent=min(agents, default=0))
        if "keeper" in order:
            self.home.start()

    def _agents(self) -> dict[int, int]:
        """Return the pids of agents that the journal says are at work, and their executions."""
        begun, ended = (
            {line[2] for line in self.lines() if line[0] == word} for word in ("begin", "end")
        )
        rows = map(self.home.row, begun - ended)
        return {row.pid: row.id for row in rows if row.status == "running" and alive(row.pid or 0)}

    # -- the reckoning -----------------------------------------------------------------------------

    def lines(self) -> list[tuple[str, str, int, int]]:
        told = [line.split() for line in self.journal.read_text().splitlines()]
        return [(word, name, int(number), int(at)) for word, name, number, at in told]

    def reckon(self, *, may_be_cut_off: bool) -> list[Row]:
        """Wait until all is over, and assert what must be true whatever died."""
        # What a brain recorded, and was killed before it told anybody of it, the next one tells
        # beside its other work.
        told = self._each_end_is_told if not may_be_cut_off else lambda: True
        until(
            lambda: self._is_over() and told() and self._is_over(),
            f"all is over, and told: {self._open()}",
        )
        self.home.nothing_left()
        found = self.home.rows()
        assert [each.id for each in found] == sorted({each.id for each in found})
        by = {each.id: each for each in found}
        assert {number: by[number].pipe_name for number in self.accepted} == self.accepted, (
            "no row is lost"
        )
        self._check_journal(by)
        self._check_events(found)
        assert len(found) == len(self.home.rows()), "nothing begins any more"
        for each in found:
            self._check_row(each, may_be_cut_off=may_be_cut_off)
        print(
            f"{len(found)} rows, {len(self.killed)} agents killed, "
            f"{sum(map(bool, self.seen.values()))} seen at work"
        )
        groups = self.home.get("/api/pipes/queue")["groups"]
        assert not [each for group in groups for each in (*group["running"], *group["waiting"])]
        return found

    def _is_over(self) -> bool:
        """Say whether all is final, and what follows from it as well: a slot is given back after
        that.
        """
        told = self.home.get("/api/health")["pipes"]
        return not (told["queued"] or told["running"] or self._open())

    def _each_end_is_told(self) -> bool:
        """Say whether each end of the one pipe was told to the other that waits for it, and
        nothing else was.
        """
        short = {
            str(each.id) for each in self.home.rows("pipe=short") if each.status == "completed"
        }
        return {each.trigger_key for each in self.home.rows("pipe=chained")} == short

    def _open(self) -> list[Row]:
        return self.home.rows("status=queued&status=running")

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
            assert all(ends.get(number, 0) < after for (_, number), (after, _) in pairwise(spans))
        for word, name, number, _ in told:
            row = by[number]
            assert (row.pipe_name, row.started_at is not None) == (name, True)
            if word == "end" and number not in self.killed:
                assert row.status == "completed" or row.error_type == "interrupted", row

    def _check_events(self, found: list[Row]) -> None:
        """Assert that each event that was heard started its pipe once, and none more than that."""
        took: dict[tuple[str, str], list[Row]] = {}
        for each in found:
            if each.pipe_name in EVENTS:
                took.setdefault((each.pipe_name, each.trigger_key), []).append(each)
        for again in took.values():
            assert not [each for each in again[:-1] if each.status == "completed"], (
                "an event counts once"
            )
        assert {("hooked", key) for key in self.keys} <= set(took)

    def _check_row(self, each: Row, *, may_be_cut_off: bool) -> None:
        failures = {"interrupted", "crash"} if each.id in self.killed else {"interrupted"}
        assert each.status in FINAL
        assert each.error_type in {"completed": {None}, "failed": failures}.get(
            each.status, set()
        ), each
        began = any(line[2] == each.id for line in self.lines() if line[0] == "begin")
        if not may_be_cut_off and began and each.id not in self.killed:
            assert each.status == "completed", f"the keeper held it all the time: {each!r}"
        assert each.incomplete == (each.status == "failed" and each.started_at is not None)
        assert Path(each.output_dir, "INCOMPLETE").exists() == each.incomplete, each
        whole, kept = WHOLE[each.pipe_name], self.home.output(each.id).decode()
        if each.status == "completed":
            assert kept == self.home.row(each.id).stdout == whole, (each, kept[:200], kept[-200:])
        else:
            assert whole.startswith(kept.rstrip("\n")), (each, kept)
            assert len(kept) >= self.seen.get(each.id, 0), f"kept up to the kill: {each!r}"
        assert each.stdout_bytes == len(kept)


def besieged(siege: Siege, seeds: range, orders: str) -> None:
    """Strike once a seed, with work in every state, and never wait for any of it to end."""
    each = [order.split() for order in orders.split(", ")]
    for seed in seeds:
        dice, order = random.Random(seed), each[seed % len(each)]
        kinds = dice.choices(KINDS, k=dice.randint(1, 3))
        print(f"seed {seed}: {kinds}, {order}")
        for kind in kinds:
            siege.ask(kind)
        knocking = siege.knock_until_heard(f"key{seed}")
        a_moment(dice, 0.3)
        siege.strike(dice, order)
        knocking.result()


@pytest.mark.deep
@pytest.mark.parametrize("campaign", rounds(1, of=3))
def test_killed_brains_lose_no_row_run_none_twice_and_cut_nothing(campaign: int) -> None:
    seeds = range(10 * campaign, 10 * campaign + 10)
    with pipes_house() as home:
        siege, keeper = Siege(home), home.pids()[0]
        besieged(siege, seeds, OF_BRAINS)
        found = siege.reckon(may_be_cut_off=False)
        assert home.pids()[0] == keeper
        assert sum(each.status == "completed" for each in found) > len(found) // 2
        assert {each.trigger_key for each in found if each.pipe_name == "hooked"} == {
            f"key{seed}" for seed in seeds
        }


@pytest.mark.deep
@pytest.mark.parametrize("campaign", rounds(1, of=2))
def test_killed_keepers_leave_nothing_and_every_row_says_what_became_of_it(campaign: int) -> None:
    first = 30 + 10 * campaign
    with pipes_house() as home:
        siege = Siege(home)
        besieged(siege, range(first, first + 10), OF_KEEPERS)
        found = siege.reckon(may_be_cut_off=True)
        assert {each.error_type for each in found} <= {None, "interrupted", "crash"}
        told = {each.error_message for each in found if each.error_type == "interrupted"}
        assert told, "some of it was cut off"
        assert all("interrupted by system restart" in text for text in told), told


@pytest.mark.deep
def test_what_waits_in_line_runs_after_the_restart_in_its_order() -> None:
    """A killed keeper, then an orderly stop: what ran is told, what waited waits on."""
    with pipes_house() as home:
        folder = home.shell("line", COUNTS)
        line = [home.begin("line", queue=True).id for _ in range(4)]
        for at, error in enumerate(("interrupted", "shutdown")):
            until(lambda at=at: home.output(line[at]), "it has its turn, and speaks")
            assert [home.row(each).position for each in line[at + 1 :]] == [1, 2, 3][: 3 - at]
            if error == "interrupted":
                home.strike(["keeper"], random.Random(0))
            else:
                assert home.stop() == 0
                home.wait_gone()
            home.start()
            cut = home.row(line[at])
            assert (cut.ended, cut.incomplete, cut.stdout[:7]) == (
                ("failed", error),
                True,
                "line 0\n",
            )
        assert (
            Path(home.row(line[0]).output_dir, "INCOMPLETE")
            .read_text()
            .startswith("interrupted by system restart")
        )
        (folder / "go").touch()
        assert [home.ended(each).ended for each in line[2:]] == [DONE, DONE]
        assert [each.id for each in home.rows("pipe=line")] == line
        assert home.pipe("line")["consecutive_failures"] == 0


@pytest.fixture(scope="module")
def lasting() -> Iterator[PipeHouse]:
    """One daemon whose brain dies again and again."""
    with pipes_house() as made:
        yield made
        made.nothing_left()


@pytest.mark.deep
def test_a_timeout_counts_from_the_start_whoever_counts_it(lasting: PipeHouse) -> None:
    home, mark = lasting, lasting.home / "late.mark"

    def late(seconds: float) -> Row | None:
        """Kill the brain of one that has come to its end; None where its time was over before
        that.
        """
        steps = ("ignore-term", "say:so far", "setsid:1000", f"touch:{mark}", "hang")
        home.fake("late", *steps, front=f"timeout: {seconds}")
        number = home.begin("late").id
        until(lambda: mark.exists() or home.row(number).is_final, "it hangs, or is over")
        home.kill_brain()
        done = home.ended(number)
        return done if mark.exists() else None

    done = in_time(late, 1.5)
    assert (done.ended, done.stdout.strip(), done.signal) == (
        ("timed_out", "timeout"),
        "so far",
        signal.SIGKILL,
    )
    assert 0 <= done.duration_ms - done.timeout_seconds * 1000 < 60_000
    assert done.incomplete


@pytest.mark.deep
def test_a_cancel_is_a_cancel_also_when_its_brain_dies_meanwhile(lasting: PipeHouse) -> None:
    """The keeper notes why before it signals: whoever comes next knows it."""
    home = lasting
    termed = (
        home.shell("unwanted", "trap ': > termed' TERM; echo so far; while :; do sleep 0.05; done")
        / "termed"
    )

    def unwanted(_: float) -> Row | None:
        """Kill the brain that is stopping one; None where that was killed before it came to its
        trap.
        """
        begun = home.begin("unwanted")
        until(lambda: home.output(begun.id), "it speaks")
        asking = Later(lambda: home.cancel(begun))
        until(
            lambda: termed.exists() or home.row(begun.id).is_final,
            "it is being stopped, or is over",
        )
        home.kill_brain()
        asking.cut_off()
        done = home.ended(begun.id)
        return done if termed.exists() else None

    done = in_time(unwanted, 1)
    assert (done.ended, done.stdout) == (("cancelled", "cancelled"), "so far\n")


@pytest.mark.deep
def test_a_full_disk_crashes_nothing_and_what_it_cost_is_said(require_root: None) -> None:
    """The agent sees it itself, and its row says so; who cannot even begin says why."""
    size = 30 * 1024 * 1024
    with pipes_house(start=False) as home, small_disk(home.home / "state", "14m") as resize:
        home.start()
        home.tool(
            "loud", server("for _ in range(body.get('n', 0)): os.write(1, b'z' * 65536)\nreturn {}")
        )
        assert home.run("loud").status == 200
        script = (
            f"head -c {size} /dev/zero; echo $? > failed; while [ ! -e go ]; do sleep 0.02; done; "
            "exit 1"
        )
        folder = home.shell("flood", script)
        home.shell("small", "echo small")
        number = home.begin("flood").id
        until(
            lambda: "of pipe:flood" in str(home.get("/api/health")["degraded"]),
            "the full disk is said",
        )
        assert home.run("loud", {"n": 100}).status == 200, "a tool goes on, too"
        small = home.begin("small").id
        # Its row waits for the disk, as the flood's does: that it was refused is counted, and told
        # afterwards.
        until(
            lambda: b'reason="disk_full"' in home.request("GET", "/api/metrics").body,
            "it is refused",
        )
        resize("300m")
        (folder / "go").touch()
        done, refused = home.ended(number), home.ended(small)
        assert (done.ended, done.truncated, refused.ended) == (
            ("failed", "disk_full"),
            True,
            ("failed", "disk_full"),
        )
        assert ((folder / "failed").read_text(), 0 < done.stdout_bytes < size) == ("1\n", True)
        assert "the disk was full while it ran" in done.error_message
        until(lambda: not home.get("/api/health")["degraded"], "all is well again")
        told = {
            (event["event"], event["unit"])
            for event in home.request("GET", "/api/events?limit=20000").lines()
        }
        assert {name for name, _ in told} >= {"ledger_degraded", "ledger_recovered"}
        assert told >= {("log_degraded", "tool:loud"), ("log_recovered", "tool:loud")}
        assert [each.id for each in home.rows()] == [number, small], (
            "what waited for the disk is written"
        )
        assert home.execute("small").ended == DONE
        assert home.stop() == 0
        home.tear_down()
