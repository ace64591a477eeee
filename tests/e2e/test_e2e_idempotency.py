"""`Idempotency-Key`: a request that may have begun is never run again, however the daemon ended
meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from e2e.house import QUICK, Answer, House, Later, house, server, until
from e2e.pipe_house import SETTINGS, PipeHouse

PAY = server("""
    with open("paid", "a") as paid: paid.write("paid\\n")
    while not os.path.exists("go"): time.sleep(0.05)
    return {}
""").replace('if self.path == "/run"', 'if self.path in {"/run", "/stream"}')
"""A tool whose run has an effect at once, and ends when the test lets it."""


@pytest.fixture
def home() -> Iterator[House]:
    with house({**QUICK, "PX_API__DRAIN_SECONDS": "1"}) as made:
        made.tool("pay", PAY)
        made.start()
        yield made


def keyed(home: House, path: str, key: str, body: object) -> Answer:
    return home.request("POST", path, body, headers={"Idempotency-Key": key})


def stop_orderly(home: House) -> None:
    assert home.pxctl("daemon", "stop").returncode == 0
    assert home.process is not None
    home.process.wait(60)
    home.start()


def stop_by_signal(home: House) -> None:
    assert home.stop() == 0
    home.start()


def replace_control_plane(home: House) -> None:
    assert home.pxctl("daemon", "restart").returncode == 0


def kill_control_plane(home: House) -> None:
    home.kill_brain()


def kill_keeper(home: House) -> None:
    os.kill(home.pids()[0], signal.SIGKILL)
    assert home.process is not None
    home.process.wait(60)
    home.wait_gone()
    home.start()


ENDS = (stop_orderly, stop_by_signal, replace_control_plane, kill_control_plane, kill_keeper)


def effects(home: House) -> int:
    path = home.home / "tools" / "pay" / "paid"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("verb", ["run", "stream"])
@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_was_cut_off_is_not_run_again(
    home: House, end: Callable[[House], None], verb: str
) -> None:
    path = f"/api/tools/pay/{verb}"
    first = Later(lambda: keyed(home, path, "order-1", {"a": 1}))
    until(lambda: effects(home) == 1, "the tool has the run")
    end(home)
    first.cut_off()
    # Twice, and after one more restart: the refusal is not used up.
    for again in (replace_control_plane, stop_by_signal):
        keyed(home, path, "order-1", {"a": 1}).refused(409, "interrupted_outcome_unknown")
        again(home)
    assert effects(home) == 1
    (home.home / "tools" / "pay" / "go").touch()
    assert home.run("pay", {"a": 1}).status == 200
    assert effects(home) == 2, "another request, without the key, runs"


def test_a_cell_that_was_cut_off_is_not_run_again(home: House) -> None:
    mark, path = home.home / "cells", "/api/kernels/k/execute"
    code = f"import time; open({str(mark)!r}, 'a').write('x'); time.sleep(100)"
    body = {"code": code, "cwd": str(home.home), "timeout": 120}
    first = Later(lambda: keyed(home, path, "cell-1", body))
    until(mark.exists, "the cell runs")
    stop_by_signal(home)
    first.cut_off()
    again = keyed(home, path, "cell-1", body)
    # The stop itself may have ended the cell in time to say so: then that answer is replayed.
    assert again.status == 200 or again.json()["kind"] == "interrupted_outcome_unknown"
    assert mark.read_text() == "x"


def test_a_pipe_that_was_cut_off_is_not_run_again() -> None:
    with house(SETTINGS, PipeHouse) as home:
        marks = home.home / "marks"
        home.shell("pay", f"echo x >> {marks}; while ! test -e {home.home}/go; do sleep 0.05; done")
        home.start()
        first = Later(lambda: keyed(home, "/api/pipes/pay/run?wait=1", "p-1", {}))
        until(marks.exists, "the execution runs")
        kill_keeper(home)
        first.cut_off()
        keyed(home, "/api/pipes/pay/run?wait=1", "p-1", {}).refused(
            409, "interrupted_outcome_unknown"
        )
        assert marks.read_text() == "x\n"


def test_what_was_refused_before_it_began_may_be_asked_again(home: House) -> None:
    path = "/api/tools/later/run"
    keyed(home, path, "k", {}).refused(404, "unknown_unit")
    home.tool("later", "raise SystemExit(3)")
    until(lambda: home.request("GET", "/api/tools/later").status == 200, "the tool is known")
    keyed(home, path, "k", {}).refused(503, "start_failed")
    home.tool("later", server("open('ran', 'a').write('x')\nreturn {'a': 1}"))
    answers = [keyed(home, path, "k", {}) for _ in range(2)]
    assert [it.status for it in answers] == [200, 200]
    assert answers[1].headers["idempotent-replayed"] == "true"
    assert (home.home / "tools" / "later" / "ran").read_text() == "x"
