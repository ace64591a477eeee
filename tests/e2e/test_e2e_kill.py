"""`kill -9` of the brain and the keeper at random points: nothing leaked, nothing lost, all of it seen from outside.

Every seed chooses where to strike. The load meanwhile: a warm tool that
numbers each line it prints, and one that exits with a code of its own when told.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import threading
from collections.abc import Iterator

import pytest

from beside import beside
from e2e.house import BIN, House, alive, house, marked, server, until, written_pid
from rounds import rounds

COUNTER = server("""
    global N
    with LOCK:
        N += 1
        print('line', N, flush=True)
        if body.get('exit'): os._exit(body['exit'])
        return {'n': N, 'pid': os.getpid()}
""").replace("def serve():", "N = 0\nLOCK = threading.Lock()\n\ndef serve():")
TICKER = server("return {}").replace(
    "def serve():",
    "def tick():\n    n = 0\n    while True:\n        n += 1\n        print('tick', n, flush=True)\n"
    "        time.sleep(0.002)\n\n"
    "def serve():\n    threading.Thread(target=tick, daemon=True).start()",
)
QUICK = {"PX_DAEMON__BACKOFF_INITIAL_SECONDS": "0.05", "PX_DAEMON__BACKOFF_MAX_SECONDS": "0.1"}
ESCAPE = COUNTER.replace(
    "def serve():",
    "def serve():\n"
    "    if os.fork() == 0:\n"
    "        os.setsid()\n"
    "        if os.fork() == 0:\n"
    "            import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "            open('grandchild', 'w').write(str(os.getpid()))\n"
    "            while True: time.sleep(100)\n"
    "        os._exit(0)\n"
    "    os.wait()",
)


class Load(threading.Thread):
    """Requests one after the other; every answer is either a success or an error that says that it may be repeated."""

    def __init__(self, home: House) -> None:
        super().__init__()
        self.home = home
        self.ended = threading.Event()
        self.answers: list[int] = []
        self.broken: list[str] = []
        self.cut = 0

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                answer = self.home.run("counter", {}, seconds=30)
            except (OSError, http.client.HTTPException):
                self.cut += 1  # the connection was cut: the client knows at once and may ask again
                continue
            if answer.status == 200:
                self.answers.append(answer.json()["n"])
            else:
                self.broken.append(answer.body.decode())


@pytest.fixture(scope="module")
def besieged() -> Iterator[House]:
    """One daemon for all brain kills: it must stand them all."""
    with house(QUICK) as home:
        home.start()
        home.tool("counter", COUNTER, warm_keep_seconds=3600)
        home.tool("ticker", TICKER, warm_keep_seconds=3600)
        home.tool("slow", server("time.sleep(body.get('s', 0)); return {}"))
        yield home


@pytest.fixture(scope="module")
def fallen() -> Iterator[House]:
    """A house whose keeper dies again and again; the last one of them ends in order, and leaves nothing."""
    with house() as home:
        home.tool("counter", COUNTER)
        home.tool("escape", ESCAPE, stop_timeout_seconds=0.5)
        home.start()
        yield home
        assert home.stop() == 0
        home.wait_gone()


@pytest.mark.parametrize("seed", rounds(1, of=50))
def test_kill_of_the_brain_loses_nothing(besieged: House, seed: int) -> None:
    home, dice = besieged, random.Random(seed)
    assert home.run("counter").status == 200
    assert home.run("ticker").status == 200
    before = home.status("counter")["pid"], home.status("ticker")["pid"]
    ports = ports_of(home)
    keeper, control = home.pids()
    load = Load(home)
    load.start()
    try:
        pause = threading.Event()
        pause.wait(dice.uniform(0, 0.08))
        os.kill(control, signal.SIGKILL)
        meanwhile = dice.random() < 0.3
        if meanwhile:
            with contextlib.suppress(OSError, http.client.HTTPException):
                direct = http.client.HTTPConnection("127.0.0.1", ports["counter"], timeout=30)
                direct.request("POST", "/run", json.dumps({"exit": 7}), {"Content-Type": "application/json"})
                direct.getresponse().read()
            direct.close()
        until(lambda: home.run("counter").status == 200, "the new brain answers")
    finally:
        load.ended.set()
        load.join(60)
    assert home.pids()[0] == keeper
    assert home.pids()[1] != control
    assert home.status("ticker")["pid"] == before[1], "a warm tool keeps its pid"
    if meanwhile:
        assert home.status("counter")["pid"] != before[0]
        exits = [e for e in events(home, "tool:counter") if e.get("code") == 7]
        assert any(e.get("pid") == before[0] for e in exits), "an exit while the brain was dead keeps its code"
    else:
        assert home.status("counter")["pid"] == before[0]
        assert ports_of(home) == ports
        numbers = load.answers
        assert numbers == sorted(numbers)
    for problem in load.broken:
        document = json.loads(problem)
        assert document["status"] in {409, 502, 503}, document
        assert document["hint"], document


def ports_of(home: House) -> dict[str, int]:
    """Return where the two tools listen that live for an hour; others come and go by themselves."""
    warm = home.get("/api/launcher/state")
    return {name: warm[name]["port"] for name in ("counter", "ticker")}


def events(home: House, unit: str) -> list[dict[str, object]]:
    """Return all that happened to a unit: under load each run is an event, and nobody knows how many came last."""
    done = home.pxctl("events", "--unit", unit, "--json", "-n", "20000")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.deep
def test_output_has_no_gap_after_all_those_kills(besieged: House) -> None:
    """Every tick is in the log exactly once, in order, whatever happened to the brain."""
    home = besieged
    home.run("ticker")
    for _ in range(3):
        os.kill(home.pids()[1], signal.SIGKILL)
        until(lambda: home.run("ticker").status == 200, "the brain is back")
    last = until(lambda: ticks if len(ticks := last_ticks(home)) > 20 else [], "it goes on ticking")
    assert last == list(range(last[0], last[0] + len(last)))


def last_ticks(home: House) -> list[int]:
    """Return the ticks of the ticker's last life; a line that is being written while we look is none yet."""
    lines = home.pxctl("logs", "ticker").stdout.rpartition("\n")[0].splitlines()
    ticks = [int(line.split()[1]) for line in lines if line.startswith("tick ")]
    starts = [i for i, n in enumerate(ticks) if n == 1]
    return ticks[starts[-1] :] if starts else ticks


def test_a_request_in_flight_gets_a_retryable_error(besieged: House) -> None:
    home = besieged
    home.run("slow")
    client = beside(
        [BIN / "pxctl", "run", "slow", "s:=60", "--json"], env=home.environ, stdout=-1, stderr=-1, text=True
    )
    until(lambda: home.status("slow")["in_flight"] == 1, "it is in flight")
    os.kill(home.pids()[1], signal.SIGKILL)
    out, _ = client.communicate(timeout=60)
    assert client.returncode == 1
    problem = json.loads(out)
    assert problem["kind"] == "interrupted"
    assert problem["retryable"] is True
    assert problem["hint"]


def interruptions(home: House) -> int:
    """Return how often the tool was said to have been cut off by a keeper's death."""
    return len([e for e in events(home, "tool:escape") if e.get("reason") == "interrupted"])


@pytest.mark.parametrize("seed", rounds(1, of=12))
def test_kill_of_the_keeper_leaves_nothing_alive_and_the_next_start_says_so(fallen: House, seed: int) -> None:
    home, dice = fallen, random.Random(1000 + seed)
    told = interruptions(home)
    written = home.home / "tools" / "escape" / "grandchild"
    written.unlink(missing_ok=True)
    assert home.run("escape").status == 200
    grandchild = written_pid(written)
    load = Load(home)
    load.start()
    keeper, control = home.pids()
    both = kill_the_keeper(home, load, dice)
    if not both:
        assert not alive(grandchild)
    home.start()
    assert not alive(grandchild), "the next start sweeps what nobody guarded"
    new_keeper, new_control = home.pids()
    assert marked(home.daemon_id) in ([], [new_control])
    assert interruptions(home) == told + 1, "the next start says what was interrupted, once"
    assert home.run("escape").status == 200
    assert new_keeper != keeper
    assert new_control != control
    assert home.pxctl("stop", "escape").returncode == 0


def kill_the_keeper(home: House, load: Load, dice: random.Random) -> bool:
    """Kill it under the load, and wait for its end; return whether the brain, its guard, was killed as well."""
    keeper, control = home.pids()
    try:
        threading.Event().wait(dice.uniform(0, 0.3))
        both = dice.random() < 0.25
        os.kill(keeper, signal.SIGKILL)
        if both:
            with contextlib.suppress(ProcessLookupError):
                os.kill(control, signal.SIGKILL)
        load.ended.set()
        assert home.process is not None
        home.process.wait(30)
        if not both:
            home.wait_gone()
    finally:
        load.ended.set()
        load.join(60)
    return both


def test_forked_tools_outlive_zygote_and_brain_and_nothing_outlives_the_keeper() -> None:
    with house(QUICK) as home:
        home.tool("one", server("return {'pid': os.getpid()}"))
        home.start()

        def forked() -> int:
            """Stop the tool and run it anew; return its pid if it was forked, else 0."""
            home.pxctl("stop", "one")
            pid: int = home.run("one").json()["pid"]
            return pid if home.status("one")["start_method"] == "zygote" else 0

        pid = until(forked, "a forked start")
        keeper, brain = home.pids()
        for each in marked(home.daemon_id):
            if each not in {pid, brain}:
                with contextlib.suppress(ProcessLookupError):  # what waits for an order ends with its zygote
                    os.kill(each, signal.SIGKILL)
        os.kill(brain, signal.SIGKILL)
        until(lambda: home.pids()[1] != brain and home.answers(), "the next brain")
        assert home.run("one").json()["pid"] == pid
        assert json.loads(home.pxctl("why", "one", "--json").stdout)["instance"]["start_method"] == "zygote"
        os.kill(keeper, signal.SIGKILL)
        until(lambda: not marked(home.daemon_id), "the end of all that it held")
