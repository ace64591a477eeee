"""A keeper that is stopped by a signal answers nothing: what that leaves unknown is said, and
completed afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.house import QUICK, House, Later, alive, gone, house, server, until
from e2e.kernel_house import Calls
from e2e.pipe_house import SETTINGS, PipeHouse, pipes_house
from waiting import bearing, marked

IMPATIENT = """
import sys
if "supervisord_py.daemon.control" in sys.orig_argv:
    from supervisord_py.process import keeper_client
    keeper_client.CALL_SECONDS = 1.5
    keeper_client.SPAWN_SECONDS = 2.0
    keeper_client.KILL_SECONDS = 5.0
    keeper_client.SLACK_SECONDS = -4.0
"""
"""Makes the control plane wait less long for the keeper; which program reads it is what
`sys.orig_argv` says.
"""
PID = "return {'pid': os.getpid()}"
STUBBORN = (
    "import signal\nsignal.signal(signal.SIGTERM, lambda *_: open('asked', "
    f"'a').write('TERM'))\n{server(PID)}"
)


@pytest.fixture(scope="module")
def impatient(short_tmp_of_module: Path) -> dict[str, str]:
    (short_tmp_of_module / "sitecustomize.py").write_text(IMPATIENT)
    return {"PYTHONPATH": str(short_tmp_of_module)}


@pytest.fixture(scope="module")
def shared(impatient: dict[str, str]) -> Iterator[PipeHouse]:
    settings = {
        **SETTINGS,
        **impatient,
        "PX_TOOLS__WARM_KEEP_MAX": "1",
        "PX_PIPES__STOP_SECONDS": "0.3",
    }
    with pipes_house(**settings) as home:
        home.tool("one", server(PID))
        home.tool("two", server(PID))
        yield home


def keeper_of(home: House) -> int:
    return int((home.home / "run" / "pxd.lock").read_text().split()[0])


@contextlib.contextmanager
def silent(home: House) -> Iterator[None]:
    """Have the keeper answer nothing meanwhile."""
    keeper = keeper_of(home)
    os.kill(keeper, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(keeper, signal.SIGCONT)


def log(home: House) -> list[dict[str, Any]]:
    found = []
    for line in (home.home / "pxd.stderr").read_text().splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def unanswered(home: House, verb: str) -> int:
    """Return how often the keeper has not answered a verb in time so far."""
    told = (entry for entry in log(home) if entry["event"] == "keeper_request_unanswered")
    return sum(f"`{verb}`" in entry["detail"] for entry in told)


def await_unanswered(home: House, verb: str, count: int) -> None:
    until(lambda: unanswered(home, verb) >= count, f"the keeper was asked for {verb} in vain")


def is_unknown(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == 7 and "not known whether" in done.stderr


def is_degraded(home: House) -> bool:
    return "keeper" in {part["part"] for part in home.get("/api/health")["degraded"]}


# -- tools -----------------------------------------------------------------------------------------


def test_a_stop_of_a_tool_is_unknown_then_completed_and_no_second_one_starts(
    shared: PipeHouse,
) -> None:
    for _ in range(2):
        pid = shared.run("one").json()["pid"]
        brain = shared.pids()[1]
        with silent(shared):
            assert is_unknown(shared.pxctl("stop", "one"))
            assert is_unknown(shared.pxctl("stop", "one")), "asked again, it is still unknown"
            assert is_unknown(shared.pxctl("restart", "one"))
            assert (shared.status("one")["state"], shared.status("one")["pid"], alive(pid)) == (
                "stopping",
                pid,
                True,
            )
            assert is_degraded(shared)
        gone(pid)
        until(lambda: shared.status("one")["state"] == "cold", "the stop is completed")
        assert (shared.status("one")["reason"], shared.pids()[1], is_degraded(shared)) == (
            "stopped",
            brain,
            False,
        )
        assert shared.events("tool:one")[-1]["event"] == "stopped"
        assert alive(shared.run("one").json()["pid"])
        assert shared.pxctl("stop", "one").returncode == 0


def test_a_tool_that_is_evicted_meanwhile_goes_before_another_takes_its_place(
    shared: PipeHouse,
) -> None:
    for _ in range(2):
        one = shared.run("one").json()["pid"]
        with silent(shared):
            asked = Later(lambda: shared.request("POST", "/api/tools/two/run?timeout=3", {}))
            assert asked.result().status in {429, 504}
            assert (shared.status("one")["state"], alive(one)) == ("stopping", True)
        two = until(
            lambda: (it := shared.run("two")).status == 200 and it.json()["pid"],
            "the other one runs",
        )
        gone(one)
        assert shared.status("one")["reason"] == "evicted_lru"
        assert (
            len([pid for pid in bearing("PX_UNIT=tool:two") if pid in marked(shared.daemon_id)])
            == 1
        )
        assert shared.pxctl("stop", "two").returncode == 0
        gone(two)


def test_a_start_whose_spawn_is_not_answered_goes_on_once_it_is(shared: PipeHouse) -> None:
    for _ in range(2):
        assert shared.run("one").status == 200
        assert shared.pxctl("stop", "one").returncode == 0
        before = unanswered(shared, "spawn")
        with silent(shared):
            starting = Later(lambda: shared.run("one"))
            await_unanswered(shared, "spawn", before + 1)
            assert shared.status("one")["state"] == "starting"
        assert starting.result().status == 200
        assert (
            len([pid for pid in bearing("PX_UNIT=tool:one") if pid in marked(shared.daemon_id)])
            == 1
        )
        assert shared.pxctl("stop", "one").returncode == 0


def test_a_control_plane_that_is_killed_meanwhile_leaves_the_stop_to_the_next_one(
    shared: PipeHouse,
) -> None:
    for _ in range(2):
        pid = shared.run("one").json()["pid"]
        brain = shared.pids()[1]
        with silent(shared):
            assert is_unknown(shared.pxctl("stop", "one"))
            # A keeper that is known to be silent makes that answer come at once: the order has to
            # be on its way.
            until(lambda: shared.status("one")["state"] == "stopping", "the stop has begun")
            os.kill(brain, signal.SIGKILL)
        gone(pid)
        gone(brain)
        until(shared.answers, "the next one serves")
        until(lambda: shared.status("one")["state"] == "cold", "the stop is completed")
        assert shared.events("tool:one", "stopped")[-1]["reason"] == "stopped"
        assert shared.status("one")["reason"] == "stopped"


def test_a_keeper_that_dies_while_it_is_silent_leaves_nothing(impatient: dict[str, str]) -> None:
    with pipes_house(start=False, **impatient) as home:
        home.tool("one", server(PID))
        for _ in range(2):
            home.start()
            pid = home.run("one").json()["pid"]
            keeper = keeper_of(home)
            with silent(home):
                assert is_unknown(home.pxctl("stop", "one"))
                os.kill(keeper, signal.SIGKILL)
            assert home.process is not None
            assert home.process.wait(60) == -signal.SIGKILL
            gone(pid)
            home.wait_gone()


# -- pipes -----------------------------------------------------------------------------------------


def test_an_execution_that_was_asked_for_meanwhile_is_never_left_running(shared: PipeHouse) -> None:
    shared.shell("quick", "echo x")
    shared.shell("long", "sleep 600")
    for _ in range(2):
        long = shared.begin("long")
        shared.started(long.id)
        before = unanswered(shared, "spawn")
        with silent(shared):
            quick = shared.begin("quick")
            await_unanswered(shared, "spawn", before + 1)
            assert is_unknown(shared.pxctl("pipe", "cancel", "long"))
            assert is_unknown(shared.pxctl("stop", "pipe:long"))
            assert {row.status for row in shared.rows("status=running")} == {"running"}
        assert shared.ended(quick.id).ended == ("completed", None)
        assert shared.ended(long.id).ended == ("cancelled", "cancelled")
        assert shared.execute("quick").ended == ("completed", None), "its pipe is not wedged"
    shared.nothing_left()


# -- the daemon itself -----------------------------------------------------------------------------


def test_orders_for_the_daemon_are_refused_meanwhile_and_its_control_plane_stays(
    shared: PipeHouse,
) -> None:
    brain = shared.pids()[1]
    for _ in range(2):
        with silent(shared):
            done = shared.pxctl("daemon", "restart")
            assert (done.returncode, "the keeper did not answer" in done.stderr) == (7, True)
            assert shared.pxctl("daemon", "reload").returncode == 0
            assert shared.pxctl("status").returncode == 0
        until(lambda: not is_degraded(shared), "the keeper answers")
        assert shared.pids()[1] == brain
    shared.pxctl("daemon", "restart")
    until(lambda: shared.answers() and shared.pids()[1] != brain, "a restart works as before")


def test_the_stop_of_the_daemon_is_unknown_then_completed_with_every_end_written(
    impatient: dict[str, str],
) -> None:
    with pipes_house(start=False, **impatient) as home:
        home.tool("one", server(PID))
        home.shell("long", "sleep 600")
        for _ in range(2):
            home.start()
            pid = home.run("one").json()["pid"]
            row = home.begin("long")
            home.started(row.id)
            with silent(home):
                done = home.pxctl("daemon", "stop", "--timeout", "4")
                assert (done.returncode, "not known whether pxd stops" in done.stderr) == (
                    7,
                    True,
                ), done
                assert alive(pid)
                assert home.pxctl("status").returncode == 0
                assert home.pxctl("daemon", "stop", "--timeout", "1").returncode == 7
            assert home.process is not None
            assert home.process.wait(60) == 0
            gone(pid)
            home.wait_gone()
            home.start()
            assert home.row(row.id).ended == ("failed", "shutdown")
            assert [each["event"] for each in home.events("tool:one")][-1] == "stopped"
            assert home.status("one")["reason"] == "shutdown"
            assert home.stop() == 0


def test_a_daemon_without_units_serves_until_its_silent_keeper_can_end_it(
    impatient: dict[str, str],
) -> None:
    with house({**QUICK, **impatient}) as home:
        for _ in range(2):
            home.start()
            with silent(home):
                for _ in range(2):
                    done = home.pxctl("daemon", "stop", "--timeout", "2")
                    assert (done.returncode, "not known whether pxd stops" in done.stderr) == (
                        7,
                        True,
                    ), done
                assert home.pxctl("status").returncode == 0
            assert home.process is not None
            assert home.process.wait(60) == 0
            home.wait_gone()


def test_a_stop_keeps_its_reason_over_two_crashes_of_the_control_plane(shared: PipeHouse) -> None:
    folder = shared.tool("stubborn", STUBBORN, stop_timeout_seconds=120)
    for _ in range(2):
        pid = shared.run("stubborn").json()["pid"]
        (folder / "asked").unlink(missing_ok=True)
        stopping = Later(lambda: shared.pxctl("stop", "stubborn"))
        until((folder / "asked").exists, "it is being stopped")
        for _ in range(2):
            shared.kill_brain()
            key = shared.events("tool:stubborn")[-1]["instance"]
            told = shared.events("tool:stubborn", "stopping")
            assert {each["reason"] for each in told if each["instance"] == key} == {"stopped"}
        os.kill(pid, signal.SIGKILL)
        until(lambda: shared.events("tool:stubborn")[-1]["event"] == "stopped", "its end is told")
        assert shared.events("tool:stubborn")[-1]["reason"] == "stopped"
        stopping.result()


# -- kernels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["python", "bash"])
def test_a_kernel_is_unknown_while_it_cannot_be_stopped_and_then_ends(
    impatient: dict[str, str], language: str
) -> None:
    settings = {**QUICK, **impatient, "PX_DAEMON__ZYGOTES": "0"}
    with pipes_house(**settings) as home:
        calls = Calls(home)
        code = "import time; time.sleep(600)" if language == "python" else "sleep 600"
        for _ in range(2):
            running = calls.begun("k", code, language=language, timeout=100)
            (pid,) = [
                each for each in bearing("PX_UNIT=kernel:k") if each in marked(home.daemon_id)
            ][:1]
            session = calls.show("k")["id"]
            with silent(home):
                done = home.pxctl("kernel", "stop", session)
                assert is_unknown(done), done
                assert alive(pid)
                assert calls.state("k") == "stopping"
            gone(pid)
            calls.wait_state("k", "stopped")
            running.result()
            assert calls.ask(
                "k", "echo 1" if language == "bash" else "print(1)", language=language
            ).ok
            assert home.pxctl("kernel", "stop", session).returncode == 0


def test_a_kernel_is_not_started_meanwhile_and_works_afterwards(impatient: dict[str, str]) -> None:
    settings = {**QUICK, **impatient, "PX_DAEMON__ZYGOTES": "0"}
    with pipes_house(**settings) as home:
        calls = Calls(home)
        assert calls.ask("k", "x = 1").ok
        for _ in range(2):
            with silent(home):
                assert calls.value("k", "print(x)") == "1", "a warm kernel needs no keeper"
                told = calls.ask("other", "print(2)", timeout=4)
                assert (told.status, told.document["exit_code"]) in {(504, 7), (429, 1)}, (
                    told.document
                )
            assert until(lambda: calls.ask("other", "print(2)").ok, "it runs")
            assert calls.value("k", "print(x)") == "1"
            calls.end("other")


def test_a_shell_cell_that_is_given_up_meanwhile_ends_before_the_next_one_begins(
    impatient: dict[str, str],
) -> None:
    with pipes_house(**{**QUICK, **impatient, "PX_KERNELS__TIMEOUT_MIN_SECONDS": "0.1"}) as home:
        calls = Calls(home)
        trace = home.home / "trace"
        assert calls.ask("k", "true", language="bash").ok
        for _ in range(2):
            trace.unlink(missing_ok=True)
            with silent(home):
                cell = f"sleep 600; echo never > {trace}"
                told = calls.ask("k", cell, language="bash", timeout=0.5)
                assert (told["status"], "not known whether it has ended" in told.told) == (
                    "timed_out",
                    True,
                ), told.told
                again = calls.ask("k", "true", language="bash", timeout=5)
                assert "not known whether the last cell" in again.told, again.told
            until(lambda: not is_degraded(home), "the keeper answers")
            assert calls.ask("k", "true", language="bash").ok
            ours = set(bearing("PX_UNIT=kernel:k")) & set(marked(home.daemon_id))
            assert (ours, trace.exists()) == (set(), False)


# -- zygotes ---------------------------------------------------------------------------------------


def test_zygotes_that_were_made_meanwhile_are_ended_or_used(impatient: dict[str, str]) -> None:
    with pipes_house(**{**QUICK, **impatient, "PX_DAEMON__ZYGOTES": "1"}) as home:
        home.tool("one", server(PID))

        def zygotes() -> int:
            """Return how many there are; the fork that waits for each has its mark."""
            ours = set(marked(home.daemon_id)) & set(bearing("PX_UNIT=zygote:tool-"))
            return len({psutil.Process(pid).environ().get("PX_INSTANCE") for pid in ours})

        for _ in range(2):
            assert home.run("one").status == 200
            with silent(home):
                until(
                    lambda: is_degraded(home) or home.pxctl("stop", "one").returncode == 7,
                    "the keeper is silent",
                )
            until(lambda: home.status("one")["state"] == "cold", "the stop is completed")

            def has_one_after_a_start() -> bool:
                """Start it anew: a zygote whose making fell into the silence is made for the
                next start.
                """
                assert home.run("one").status == 200
                found = zygotes() == 1
                assert home.pxctl("stop", "one").returncode == 0
                return found

            until(has_one_after_a_start, "there is one zygote")
        assert home.stop() == 0
        home.wait_gone()
