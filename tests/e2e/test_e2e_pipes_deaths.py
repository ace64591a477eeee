"""`kill -9` of brain, keeper and agents at random points of runs: no row lost, none run twice, nothing left behind.

A brain's death is nothing to an agent: the keeper holds it, the next brain reads on where the last one was. A keeper's
death takes everything along; the next start says what was cut off. Fifty seeds, each a moment and an order of deaths.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.house import House, until
from e2e.pipe_house import (
    FAKE_AGENT,
    Row,
    adapter,
    asked,
    begin,
    ended,
    fake,
    in_time,
    nothing_left,
    output,
    pipe,
    pipes_house,
    row,
    rows,
    shell,
    started,
)
from e2e.pipe_siege import KINDS, Siege
from rounds import rounds

pytestmark = pytest.mark.timeout(600)  # daemon after daemon: minutes, where others want the processors, too
OF_BRAINS = (("brain",), ("brain",), ("brain", "agent"), ("agent", "brain"))
OF_KEEPERS = (
    ("keeper",),
    ("keeper", "brain"),
    ("brain", "keeper"),
    ("agent", "keeper"),
    ("brain", "agent", "keeper"),
    ("keeper", "agent", "brain"),
)
COUNTS = "n=0; while [ ! -e go ]; do echo line $n; n=$((n+1)); sleep 0.005; done; echo END $n"


def besieged(siege: Siege, seeds: range, orders: tuple[tuple[str, ...], ...]) -> None:
    """Strike once a seed, with work in every state, and never wait for any of it to end."""
    for seed in seeds:
        dice = random.Random(seed)
        order = orders[seed % len(orders)]
        kinds = dice.choices(KINDS, k=dice.randint(1, 3))
        moment = dice.uniform(0, 0.3)
        print(f"seed {seed}: {kinds}, after {moment:.3f} s {order}")
        for kind in kinds:
            siege.ask(kind)
        knocking = siege.knock_until_heard(f"key{seed}")
        threading.Event().wait(moment)
        siege.look()
        siege.strike(dice, order)
        knocking.join(60)


@pytest.mark.deep
@pytest.mark.parametrize("campaign", rounds(1, of=3))
def test_killed_brains_lose_no_row_run_none_twice_and_cut_nothing(campaign: int) -> None:
    first = 10 * campaign
    with pipes_house() as home:
        siege = Siege(home)
        siege.prepare()
        keeper = home.pids()[0]
        besieged(siege, range(first, first + 10), OF_BRAINS)
        found = siege.reckon(may_be_cut_off=False)
        assert home.pids()[0] == keeper
        assert sum(each.status == "completed" for each in found) > len(found) // 2
        assert {each.trigger_key for each in found if each.pipe_name == "hooked"} == {
            f"key{seed}" for seed in range(first, first + 10)
        }


@pytest.mark.deep
@pytest.mark.parametrize("campaign", rounds(1, of=2))
def test_killed_keepers_leave_nothing_and_every_row_says_what_became_of_it(campaign: int) -> None:
    first = 30 + 10 * campaign
    with pipes_house() as home:
        siege = Siege(home)
        siege.prepare()
        besieged(siege, range(first, first + 10), OF_KEEPERS)
        found = siege.reckon(may_be_cut_off=True)
        assert {each.error_type for each in found} <= {None, "interrupted", "crash"}
        assert any(each.error_type == "interrupted" for each in found), "some of it was cut off"
        told = {each.error_message for each in found if each.error_type == "interrupted"}
        assert all("interrupted by system restart" in text for text in told), told


# -- what waits, and what an orderly end does --------------------------------------------------------------------------


@pytest.mark.deep
def test_what_waits_in_line_runs_after_the_restart_in_its_order() -> None:
    """A killed keeper, then an orderly stop: what ran is told, what waited waits on."""
    with pipes_house() as home:
        folder = shell(home, "line", COUNTS)
        first, second, third, fourth = (begin(home, "line", queue=True).id for _ in range(4))
        until(lambda: output(home, first), "the first speaks")
        assert [row(home, each).position for each in (second, third, fourth)] == [1, 2, 3]
        os.kill(home.pids()[0], signal.SIGKILL)
        assert home.process is not None
        home.process.wait(30)
        home.wait_gone()
        home.start()
        cut = row(home, first)
        assert (cut.ended, cut.incomplete) == (("failed", "interrupted"), True)
        assert Path(cut.output_dir, "INCOMPLETE").read_text().startswith("interrupted by system restart")
        assert cut.stdout.startswith("line 0\n")
        until(lambda: output(home, second), "the second has its turn by itself")
        assert home.stop() == 0
        home.wait_gone()
        home.start()
        stopped = row(home, second)
        assert (stopped.ended, stopped.incomplete) == (("failed", "shutdown"), True)
        assert stopped.stdout.startswith("line 0\n")
        until(lambda: output(home, third), "the third runs")
        assert row(home, fourth).position == 1
        (folder / "go").touch()
        assert [ended(home, each).ended for each in (third, fourth)] == [("completed", None)] * 2
        assert [each.id for each in rows(home, "pipe=line")] == [first, second, third, fourth]
        assert pipe(home, "line")["consecutive_failures"] == 0


@pytest.fixture(scope="module")
def lasting() -> Iterator[House]:
    """One daemon whose brain dies again and again; `patient` settles for a while."""
    argv = (sys.executable, "-I", "-S", str(FAKE_AGENT), "--as", "pi-new")
    patient = adapter("patient", *argv, more="[agents.patient.stop]\nsettle_seconds = 3")
    with pipes_house(agents=patient) as made:
        yield made
        nothing_left(made)


def kill_the_brain(home: House) -> None:
    os.kill(home.pids()[1], signal.SIGKILL)
    until(home.answers, "the next brain answers")


def test_an_end_that_no_brain_saw_starts_who_waits_for_it(lasting: House) -> None:
    home = lasting
    shell(home, "follows", "echo heard", "trigger: pipe_completed:leads")
    shell(home, "leads", f"while kill -0 {home.pids()[1]}; do :; done; echo END")
    until(lambda: {each["name"] for each in home.get("/api/pipes")["pipes"]} >= {"follows", "leads"}, "both are known")
    assert home.request("POST", "/api/pipes/follows/enable").status == 200
    first = begin(home, "leads").id
    started(home, first)
    kill_the_brain(home)
    assert ended(home, first).ended == ("completed", None)
    until(lambda: [each.trigger_key for each in rows(home, "pipe=follows")] == [str(first)], "it is told, and once")


def whole(text: str) -> None:
    """Assert that every line is there once, in its order."""
    *lines, last = text.splitlines()
    assert last == f"END {len(lines)}", text[-200:]
    assert lines == [f"line {n}" for n in range(len(lines))]


def test_an_orderly_restart_of_the_brain_cuts_no_run_and_nothing_that_waits(lasting: House) -> None:
    home = lasting
    folder = shell(home, "orderly", COUNTS)
    first, second = begin(home, "orderly").id, begin(home, "orderly", queue=True).id
    pid = started(home, first).pid
    assert home.pxctl("daemon", "restart").returncode == 0
    assert (row(home, first).pid, row(home, first).status) == (pid, "running")
    assert asked(home, "orderly").status == 409
    (folder / "go").touch()
    for number in (first, second):
        assert ended(home, number).ended == ("completed", None)
        whole(row(home, number).stdout)
    assert row(home, first).pid == pid


@pytest.mark.deep
def test_a_timeout_counts_from_the_start_whoever_counts_it(lasting: House) -> None:
    home = lasting
    mark = home.home / "late.mark"

    def late(seconds: float) -> Row | None:
        """Kill the brain of one that has come to its end; None where its time was over before that."""
        steps = ("ignore-term", "say:so far", "setsid:1000", f"touch:{mark}", "hang")
        fake(home, "late", *steps, front=f"timeout: {seconds}")
        number = begin(home, "late").id
        until(lambda: mark.exists() or row(home, number).is_final, "it hangs, or is over")
        kill_the_brain(home)
        done = ended(home, number)
        return done if mark.exists() else None

    done = in_time(late, 1.5)
    assert (done.ended, done.stdout.strip(), done.signal) == (("timed_out", "timeout"), "so far", signal.SIGKILL)
    assert done.timeout_seconds * 1000 <= done.duration_ms < done.timeout_seconds * 1000 + 60_000
    assert done.incomplete


@pytest.mark.deep
def test_a_cancel_is_a_cancel_also_when_its_brain_dies_meanwhile(lasting: House) -> None:
    """The keeper notes why before it signals: whoever comes next knows it."""
    home = lasting
    script = "trap ': > termed' TERM; echo so far; while :; do sleep 0.05; done"
    termed = shell(home, "unwanted", script) / "termed"

    def unwanted(_: float) -> Row | None:
        """Kill the brain that is stopping one; None where that was killed before it came to its trap."""
        number = begin(home, "unwanted").id
        until(lambda: output(home, number), "it speaks")
        asking = threading.Thread(target=cancel, args=(home, number), daemon=True)
        asking.start()
        until(lambda: termed.exists() or row(home, number).is_final, "it is being stopped, or is over")
        kill_the_brain(home)
        asking.join(60)
        done = ended(home, number)
        return done if termed.exists() else None

    done = in_time(unwanted, 1)
    assert (done.ended, done.stdout) == (("cancelled", "cancelled"), "so far\n")


def cancel(home: House, number: int) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        home.request("POST", f"/api/pipes/unwanted/executions/{number}/cancel")


# -- a disk that is full -----------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_full_disk_crashes_nothing_and_what_it_cost_is_said(require_root: None) -> None:
    """The agent sees it itself, and its row says so; who cannot even begin says why."""
    with pipes_house(start=False) as home:
        state, size = home.home / "state", 30 * 1024 * 1024
        state.mkdir(mode=0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=14m,mode=700", "px", state], check=True)
        try:
            home.start()
            script = f"head -c {size} /dev/zero; echo $? > failed; while [ ! -e go ]; do sleep 0.02; done; exit 1"
            folder = shell(home, "flood", script)
            shell(home, "small", "echo small")
            number = begin(home, "flood").id
            until(lambda: "of pipe:flood" in str(home.get("/api/health")["degraded"]), "the full disk is said")
            small = begin(home, "small").id
            # Its row waits for the disk, as the flood's does: that it was refused is counted, and told afterwards.
            until(lambda: b'error_type="disk_full"' in home.request("GET", "/api/metrics").body, "it is refused")
            subprocess.run(["mount", "-o", "remount,size=300m", state], check=True)
            (folder / "go").touch()
            done = ended(home, number)
            assert (done.ended, done.truncated) == (("failed", "disk_full"), True)
            assert ((folder / "failed").read_text(), 0 < done.stdout_bytes < size) == ("1\n", True)
            assert "the disk was full while it ran" in done.error_message
            refused = ended(home, small)
            assert refused.ended == ("failed", "disk_full")
            until(lambda: not home.get("/api/health")["degraded"], "all is well again")
            told = {json.loads(line)["event"] for line in home.pxctl("events", "--json").stdout.splitlines()}
            assert told >= {"ledger_degraded", "ledger_recovered"}
            assert [each.id for each in rows(home)] == [number, refused.id], "what waited for the disk is written"
            assert ended(home, begin(home, "small").id).ended == ("completed", None)
            assert rows(home, "pipe=small")[0].ended == ("failed", "disk_full")
            assert home.stop() == 0
        finally:
            home.tear_down()
            subprocess.run(["umount", state], check=False)
