"""`kill -9` of the brain and the keeper at random points: nothing leaked, nothing lost, all of it
seen from outside.

Every seed chooses where to strike. The load meanwhile: a warm tool that numbers each line it
prints, and one that exits with a code of its own when told.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from e2e.house import (
    BROKEN_OFF,
    ESCAPES,
    QUICK,
    House,
    Later,
    a_moment,
    house,
    marked,
    server,
    until,
    written_pid,
)
from rounds import rounds
from waiting import alive

COUNTER = server("""
    global N
    with LOCK:
        N += 1
        print('line', N, flush=True)
        if body.get('exit'): os._exit(body['exit'])
        return {'n': N, 'pid': os.getpid()}
""").replace("def serve():", "N = 0\nLOCK = threading.Lock()\n\ndef serve():")
TICKS = """
def tick():
    n = 0
    while True:
        n += 1
        print('tick', n, flush=True)
        time.sleep(0.002)
threading.Thread(target=tick, daemon=True).start()
"""


@contextlib.contextmanager
def load(home: House) -> Iterator[tuple[list[int], list[bytes]]]:
    """Ask again and again meanwhile; yields what the successes count, and errors, which say that
    one may ask again.
    """
    counted, broken, ended = list[int](), list[bytes](), threading.Event()

    def ask() -> None:
        while not ended.wait(0.001):
            with contextlib.suppress(*BROKEN_OFF):  # the client knows at once, and may ask again
                answer = home.run("counter", {}, seconds=30)
                if answer.status == 200:
                    counted.append(answer.json()["n"])
                else:
                    broken.append(answer.body)

    asking = Later(ask)
    try:
        yield counted, broken
    finally:
        ended.set()
        asking.result()


@pytest.fixture(scope="module")
def besieged() -> Iterator[House]:
    """One daemon for all brain kills: it must stand them all."""
    with house(QUICK, start=True) as home:
        home.tool("counter", COUNTER, warm_keep_seconds=3600)
        home.tool("ticker", server("return {}", TICKS), warm_keep_seconds=3600)
        home.tool("slow", server("time.sleep(body.get('s', 0)); return {}"))
        yield home


@pytest.fixture(scope="module")
def fallen() -> Iterator[House]:
    """A house whose keeper dies again and again; the last one of them ends in order, and leaves
    nothing.
    """
    with house() as home:
        home.tool("counter", COUNTER)
        home.tool("escape", server("return {}", ESCAPES), stop_timeout_seconds=0.5)
        home.start()
        yield home
        assert home.stop() == 0
        home.wait_gone()


def places(home: House) -> dict[str, tuple[int, int]]:
    """Return pid and port of the two tools that live for an hour; others come and go by
    themselves.
    """
    warm = home.get("/api/launcher/state")
    return {name: (warm[name]["pid"], warm[name]["port"]) for name in ("counter", "ticker")}


@pytest.mark.parametrize("seed", rounds(1, of=50))
def test_kill_of_the_brain_loses_nothing(besieged: House, seed: int) -> None:
    home, dice = besieged, random.Random(seed)
    assert [home.run("counter").status, home.run("ticker").status] == [200, 200]
    before, (keeper, control) = places(home), home.pids()
    with load(home) as (counted, broken):
        a_moment(dice, 0.08)
        os.kill(control, signal.SIGKILL)
        if meanwhile := dice.random() < 0.3:  # a tool ends of which no brain hears
            with contextlib.suppress(*BROKEN_OFF):
                direct = http.client.HTTPConnection("127.0.0.1", before["counter"][1], timeout=30)
                direct.request(
                    "POST", "/run", json.dumps({"exit": 7}), {"Content-Type": "application/json"}
                )
                direct.getresponse().read()
            direct.close()
        until(lambda: home.run("counter").status == 200, "the new brain answers")
    assert (home.pids()[0] == keeper, home.pids()[1] == control) == (True, False)
    after = places(home)
    assert after["ticker"] == before["ticker"], "a warm tool keeps its pid and port"
    if meanwhile:
        assert after["counter"][0] != before["counter"][0]
        exits = [
            event.get("pid") for event in home.events("tool:counter") if event.get("code") == 7
        ]
        assert before["counter"][0] in exits, "an exit while the brain was dead keeps its code"
    else:
        assert after == before
        assert counted == sorted(counted)
    for problem in map(json.loads, broken):
        assert (problem["status"] in {409, 502, 503}, bool(problem["hint"])) == (True, True), (
            problem
        )


@pytest.mark.deep
def test_output_has_no_gap_after_all_those_kills(besieged: House) -> None:
    """Every tick is in the log exactly once, in order, whatever happened to the brain."""
    for _ in range(3):
        besieged.kill_brain()
        assert besieged.run("ticker").status == 200
    last = until(
        lambda: ticks if len(ticks := last_ticks(besieged)) > 20 else [], "it goes on ticking"
    )
    assert last == list(range(last[0], last[0] + len(last)))


def last_ticks(home: House) -> list[int]:
    """Return the ticks of the ticker's last life; a line that is being written while we look is
    none yet.
    """
    lines = home.pxctl("logs", "ticker").stdout.rpartition("\n")[0].splitlines()
    ticks = [int(line.split()[1]) for line in lines if line.startswith("tick ")]
    starts = [i for i, n in enumerate(ticks) if n == 1]
    return ticks[starts[-1] :] if starts else ticks


def test_a_request_in_flight_gets_a_retryable_error(besieged: House) -> None:
    home = besieged
    home.run("slow")
    client = home.pxctl_later("run", "slow", "s:=60", "--json")
    until(lambda: home.status("slow")["in_flight"] == 1, "it is in flight")
    os.kill(home.pids()[1], signal.SIGKILL)
    out, _ = client.communicate(timeout=60)
    problem = json.loads(out)
    assert (client.returncode, problem["kind"], problem["retryable"]) == (1, "interrupted", True)
    assert problem["hint"]


@pytest.mark.parametrize("seed", rounds(1, of=12))
def test_kill_of_the_keeper_leaves_nothing_alive_and_the_next_start_says_so(
    fallen: House, seed: int
) -> None:
    def interruptions() -> int:
        return [event["reason"] for event in home.events("tool:escape")].count("interrupted")

    home, dice = fallen, random.Random(1000 + seed)
    told, before = interruptions(), home.pids()
    written = home.home / "tools" / "escape" / "grandchild"
    written.unlink(missing_ok=True)
    assert home.run("escape").status == 200
    grandchild = written_pid(written)
    with load(home):
        a_moment(dice, 0.3)
        order = ["keeper", "brain"] if dice.random() < 0.25 else ["keeper"]
        home.strike(order, dice)
    assert order != ["keeper"] or not alive(grandchild)
    home.start()
    assert not alive(grandchild), "the next start sweeps what nobody guarded"
    after = home.pids()
    assert marked(home.daemon_id) in ([], [after[1]])
    assert interruptions() == told + 1, "the next start says what was interrupted, once"
    assert home.run("escape").status == 200
    assert not set(before) & set(after)
    assert home.pxctl("stop", "escape").returncode == 0


def test_forked_tools_outlive_zygote_and_brain_and_nothing_outlives_the_keeper() -> None:
    with house(QUICK, start=True) as home:
        home.tool("one", server("return {'pid': os.getpid()}"))

        def forked() -> int:
            """Stop the tool and run it anew; return its pid if it was forked, else 0."""
            home.pxctl("stop", "one")
            pid: int = home.run("one").json()["pid"]
            return pid if home.status("one")["start_method"] == "zygote" else 0

        pid = until(forked, "a forked start")
        keeper, brain = home.pids()
        for each in marked(home.daemon_id):
            if each not in {pid, brain}:
                # what waits for an order ends with its zygote
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
        home.kill_brain()
        assert home.run("one").json()["pid"] == pid
        assert home.json("why", "one")["instance"]["start_method"] == "zygote"
        os.kill(keeper, signal.SIGKILL)
        home.wait_gone()


def test_who_was_used_a_moment_ago_does_not_look_old_to_the_next_brain() -> None:
    keep = 6.0
    with house(QUICK | {"PX_KERNELS__IDLE_SECONDS": str(keep)}, start=True) as home:
        home.tool("brief", server("return {'pid': os.getpid()}"), warm_keep_seconds=keep)

        def use(code: str) -> tuple[int, str]:
            body = {"code": code, "cwd": str(home.home), "environ": {}}
            answer = home.request("POST", "/api/kernels/default/execute", body)
            return home.run("brief").json()["pid"], answer.json()["cells"][0]["text"]

        pid, _ = use("v = 1")
        then = time.monotonic()
        until(lambda: time.monotonic() - then > keep - 2, "both are nearly too old")
        assert use("v = 2; v") == (pid, "2\n")
        then = time.monotonic()
        until(lambda: time.monotonic() - then > 0.3, "the ledger has it")
        home.kill_brain()
        until(lambda: time.monotonic() - then > 2.1, "they would be too old by the first use")
        assert use("v") == (pid, "2\n")
