"""`kill -9` of brain, keeper and agents at random points of runs: no row lost, none run twice, nothing left behind.

A brain's death is nothing to an agent: the keeper holds it, the next brain reads on where the last one was. A keeper's
death takes everything along; the next start says what was cut off. Fifty seeds, each a moment and an order of deaths.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.house import Later, a_moment, small_disk, until
from e2e.pipe_house import DONE, PipeHouse, Row, in_time, pipes_house, whole
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
        dice, order = random.Random(seed), orders[seed % len(orders)]
        kinds = dice.choices(KINDS, k=dice.randint(1, 3))
        print(f"seed {seed}: {kinds}, {order}")
        for kind in kinds:
            siege.ask(kind)
        knocking = siege.knock_until_heard(f"key{seed}")
        a_moment(dice, 0.3)
        siege.strike(dice, order)
        knocking.join(60)


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
        assert {each.trigger_key for each in found if each.pipe_name == "hooked"} == {f"key{seed}" for seed in seeds}


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
            assert (cut.ended, cut.incomplete, cut.stdout[:7]) == (("failed", error), True, "line 0\n")
        assert Path(home.row(line[0]).output_dir, "INCOMPLETE").read_text().startswith("interrupted by system restart")
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


def test_an_end_that_no_brain_saw_starts_who_waits_for_it(lasting: PipeHouse) -> None:
    home = lasting
    home.shell("follows", "echo heard", "trigger: pipe_completed:leads")
    home.shell("leads", f"while kill -0 {home.pids()[1]}; do :; done; echo END")
    until(lambda: home.names() >= {"follows", "leads"}, "both are known")
    home.post("/api/pipes/follows/enable")
    first = home.begin("leads").id
    home.started(first)
    home.kill_brain()
    assert home.ended(first).ended == DONE
    until(lambda: [each.trigger_key for each in home.rows("pipe=follows")] == [str(first)], "it is told, and once")


def test_an_orderly_restart_of_the_brain_cuts_no_run_and_nothing_that_waits(lasting: PipeHouse) -> None:
    home = lasting
    folder = home.shell("orderly", COUNTS)
    first, second = home.begin("orderly").id, home.begin("orderly", queue=True).id
    pid = home.started(first).pid
    assert home.pxctl("daemon", "restart").returncode == 0
    assert (home.row(first).pid, home.row(first).status) == (pid, "running")
    assert home.asked("orderly").status == 409
    (folder / "go").touch()
    for number in (first, second):
        done = home.ended(number)
        assert done.ended == DONE
        whole(done.stdout)
    assert home.row(first).pid == pid


@pytest.mark.deep
def test_a_timeout_counts_from_the_start_whoever_counts_it(lasting: PipeHouse) -> None:
    home, mark = lasting, lasting.home / "late.mark"

    def late(seconds: float) -> Row | None:
        """Kill the brain of one that has come to its end; None where its time was over before that."""
        steps = ("ignore-term", "say:so far", "setsid:1000", f"touch:{mark}", "hang")
        home.fake("late", *steps, front=f"timeout: {seconds}")
        number = home.begin("late").id
        until(lambda: mark.exists() or home.row(number).is_final, "it hangs, or is over")
        home.kill_brain()
        done = home.ended(number)
        return done if mark.exists() else None

    done = in_time(late, 1.5)
    assert (done.ended, done.stdout.strip(), done.signal) == (("timed_out", "timeout"), "so far", signal.SIGKILL)
    assert 0 <= done.duration_ms - done.timeout_seconds * 1000 < 60_000
    assert done.incomplete


@pytest.mark.deep
def test_a_cancel_is_a_cancel_also_when_its_brain_dies_meanwhile(lasting: PipeHouse) -> None:
    """The keeper notes why before it signals: whoever comes next knows it."""
    home = lasting
    termed = home.shell("unwanted", "trap ': > termed' TERM; echo so far; while :; do sleep 0.05; done") / "termed"

    def unwanted(_: float) -> Row | None:
        """Kill the brain that is stopping one; None where that was killed before it came to its trap."""
        begun = home.begin("unwanted")
        until(lambda: home.output(begun.id), "it speaks")
        asking = Later(lambda: home.cancel(begun))
        until(lambda: termed.exists() or home.row(begun.id).is_final, "it is being stopped, or is over")
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
        script = f"head -c {size} /dev/zero; echo $? > failed; while [ ! -e go ]; do sleep 0.02; done; exit 1"
        folder = home.shell("flood", script)
        home.shell("small", "echo small")
        number = home.begin("flood").id
        until(lambda: "of pipe:flood" in str(home.get("/api/health")["degraded"]), "the full disk is said")
        small = home.begin("small").id
        # Its row waits for the disk, as the flood's does: that it was refused is counted, and told afterwards.
        until(lambda: b'error_type="disk_full"' in home.request("GET", "/api/metrics").body, "it is refused")
        resize("300m")
        (folder / "go").touch()
        done, refused = home.ended(number), home.ended(small)
        assert (done.ended, done.truncated, refused.ended) == (("failed", "disk_full"), True, ("failed", "disk_full"))
        assert ((folder / "failed").read_text(), 0 < done.stdout_bytes < size) == ("1\n", True)
        assert "the disk was full while it ran" in done.error_message
        until(lambda: not home.get("/api/health")["degraded"], "all is well again")
        told = home.request("GET", "/api/events?limit=20000").lines()
        assert {event["event"] for event in told} >= {"ledger_degraded", "ledger_recovered"}
        assert [each.id for each in home.rows()] == [number, small], "what waited for the disk is written"
        assert home.execute("small").ended == DONE
        assert home.stop() == 0
        home.tear_down()
