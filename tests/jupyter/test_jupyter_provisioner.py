"""The provisioner between Jupyter's kernel managers and a real daemon."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import pytest

from e2e.house import alive, gone, until
from jupyter_house import LAUNCHED, PATIENCE, Front, kernel, run, value
from supervisord_py.jupyter.provisioner import DaemonError, SupervisedProvisioner


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a program of one's own, whatever other tests have imported into this process (see launch_kernel)."""
    monkeypatch.delitem(sys.modules, "jupyter_server", raising=False)


async def test_a_kernel_is_the_daemons_and_a_crash_is_the_end_of_its_life_and_a_restart_a_new_one(front: Front) -> None:
    async with kernel(cwd=str(front.folder)) as (km, kc):

        async def answer(message: dict[str, Any]) -> None:
            assert message["content"]["prompt"] == "name? "
            kc.input("Ada")

        _, printed = await run(kc, "x = 1; print('hello', input('name? '))", allow_stdin=True, stdin_hook=answer)
        assert printed == "hello Ada\n"
        shown = front.session_of(km)
        assert (shown["owner"], shown["name"]) == ("jupyter", f"jupyter-{km.kernel_id[:8]}")
        here = await value(kc, "(__import__('os').getpid(), __import__('os').getcwd())")
        assert here == [shown["pid"], shown["cwd"]] == [shown["pid"], str(front.folder)]
        assert shown["unit"] in front.house.pxctl("status").stdout
        kc.execute("import os; os.kill(os.getpid(), 9)")
        until(lambda: front.session_of(km)["instance"] != km.provisioner._instance, "the daemon sees the crash")
        assert not await km.is_alive()
        before = km.get_connection_info()
        await km.restart_kernel(now=False)
        assert km.get_connection_info() == before, "the same client goes on"
        await kc.wait_for_ready(timeout=PATIENCE)
        assert await km.is_alive()
        assert (await run(kc, "x"))[0]["ename"] == "NameError"
        assert len(front.living()) == 1


async def test_a_kernel_has_its_front_ends_environment_without_what_is_ours_or_denied(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And such a variable makes no zygote of its own necessary."""
    name = front.spec("with-env", ["python3", *LAUNCHED], env={"A": "<${HOME}>"})
    for number in ("1", "2"):
        monkeypatch.setenv("DATABASE_URL", number)
        added = {**os.environ, "JPY_SESSION_NAME": "a.ipynb", "JPY_PARENT_PID": "1", "OPENAI_API_KEY": "no"}
        async with kernel(name, env=added) as (km, kc):
            seen, method = await value(kc, "dict(__import__('os').environ)"), front.session_of(km)["start_method"]
        told = {"DATABASE_URL": number, "A": f"<{os.environ['HOME']}>", "JPY_SESSION_NAME": "a.ipynb"}
        assert told.items() <= seen.items()
        assert not {"OPENAI_API_KEY", "JPY_PARENT_PID", "PX_HOME"} & seen.keys()
        until(lambda: all(it["ready"] for it in front.house.get("/api/kernels")["zygotes"]), "zygotes are ready")
    assert method == "zygote"


async def test_a_kernelspec_that_only_the_front_end_can_see_is_refused_with_both_places(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = front.spec("hidden", ["hidden-kernel", "{connection_file}"], language="snake")
    monkeypatch.setenv("JUPYTER_PATH", str(front.jupyter / "path2"))
    place = front.jupyter / "path2" / "kernels"
    place.mkdir(parents=True, exist_ok=True)
    (front.jupyter / "path" / "kernels" / name).rename(place / name)
    with pytest.raises(DaemonError, match=rf"no kernelspec '{name}'.*front end has it in {place / name}.*JUPYTER_PATH"):
        async with kernel(name):
            pass


@pytest.mark.deep
async def test_a_kernel_can_be_carried_over_to_another_front_end(front: Front) -> None:
    async with kernel() as (km, _):
        told = await km.provisioner.get_provisioner_info()
        heir = SupervisedProvisioner(kernel_id="", kernel_spec=km.kernel_spec, parent=km)
        await heir.load_provisioner_info(told)
        assert await heir.poll() is None
        await heir.send_signal(0)
        await heir.send_signal(signal.SIGTERM)
        assert await heir.poll() is not None
        with pytest.raises(ProcessLookupError):
            await heir.send_signal(0)
        with pytest.raises(OSError, match="no signal 10"):
            await heir.send_signal(10)
        gone(front.session_of(km)["pid"] or 0)


@pytest.mark.deep
async def test_a_daemon_that_is_not_there_is_started_unless_that_is_forbidden(
    own_front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PX_AUTOSTART", "0")
    with pytest.raises(DaemonError, match="pxctl daemon start"):
        async with kernel():
            pass
    monkeypatch.setenv("PX_AUTOSTART", "1")
    try:
        async with kernel() as (km, _):
            # A kernel says that it is idle after its last answer.
            until(lambda: own_front.session_of(km)["state"] == "idle", "it has answered its front end")
    finally:
        assert own_front.house.pxctl("daemon", "stop").returncode == 0


@pytest.mark.deep
async def test_a_kernel_lives_on_while_the_control_plane_is_replaced_and_ends_with_the_daemon(own_front: Front) -> None:
    own_front.house.start()
    async with kernel() as (km, kc):
        await run(kc, "x = 7")
        assert own_front.house.pxctl("daemon", "restart").returncode == 0
        assert await km.is_alive()
        assert await value(kc, "x") == 7
        assert own_front.house.pxctl("daemon", "stop").returncode == 0
        assert not await km.is_alive()


@pytest.mark.deep
async def test_a_kernel_whose_front_end_asks_for_it_is_not_idle_and_one_whose_is_gone_is(own_front: Front) -> None:
    own_front.house.settings = {**own_front.house.settings, "PX_KERNELS__IDLE_SECONDS": "3"}
    own_front.house.start()
    async with kernel() as (km, _):
        for _ in range(100):  # a front end asks every few seconds, never without a pause
            assert await km.is_alive(), "it was evicted though its front end asked for it"
            await asyncio.sleep(0.05)
        pid = own_front.session_of(km)["pid"] or 0
        until(lambda: own_front.session_of(km)["state"] == "stopped", "the idle kernel is evicted")
        assert (alive(pid), own_front.session_of(km)["reason"]) == (False, "evicted_ttl")
        assert not await km.is_alive()


@pytest.mark.deep
async def test_without_a_place_the_front_end_is_told_so(own_front: Front) -> None:
    own_front.house.start()
    async with kernel() as (km, kc):
        await run(kc, "x = 1")
        (own_front.house.home / "pxd.toml").write_text("[kernels]\nmax_sessions = 1\nstart_seconds = 1\n")
        assert own_front.house.pxctl("daemon", "reload").returncode == 0
        kc.execute("import time; time.sleep(600)")
        until(lambda: own_front.session_of(km)["state"] == "busy", "it works")
        with pytest.raises(DaemonError, match=r"All 1 places for kernels were taken .*kernels.max_sessions"):
            async with kernel():
                pass
