"""Shell cells on a real keeper: what runs, what it gives, how it ends."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kernels.kernel_rig import PATIENCE, Running, eventually, kernel_house
from supervisord_py.kernels import bash
from supervisord_py.kernels.backend import ExecuteRequest, KernelGoneError, Reply
from supervisord_py.kernels.bash import BashBackend
from supervisord_py.kernels.session import CellError, CellStatus
from waiting import alive


@pytest.fixture
async def shell(short_tmp: Path) -> AsyncIterator[Running]:
    async with kernel_house(short_tmp) as rig:

        async def make() -> BashBackend:
            return BashBackend(await rig.supervise(), lambda: rig.config)

        made = Running(rig, rig.launch("sh-000000", interpreter=None), make)
        await made.start()
        yield made


async def said(shell: Running, code: str) -> str:
    return (await shell.run(code)).out.decode()


async def begin(shell: Running, code: str) -> tuple[ExecuteRequest, asyncio.Future[Reply]]:
    request, running = await shell.begin_and_wait(f"echo up; {code}")
    await eventually(lambda: shell.handle.child)
    return request, running


async def test_messages_read_as_those_of_a_plain_shell_and_the_wrapper_is_not_seen(
    shell: Running,
) -> None:
    """Nor does anything of the environment run before the code."""
    trap = shell.rig.folder / "trap.sh"
    trap.write_text("echo trapped\n")
    await shell.start(env={**shell.launch.env, "BASH_ENV": str(trap), "SHELLOPTS": "xtrace"})
    assert await said(shell, 'echo "$0 $#"\nnosuchcommand\ndeclare -p PX_CODE\n') == (
        "bash 0\nbash: line 2: nosuchcommand: command not found\nbash: line 3: declare: PX_CODE: "
        "not found\n"
    )
    code = "import time; time.sleep(30)"
    told = await said(shell, code)
    assert ("syntax error" in told, "PX" in told.upper()) == (True, False)
    assert [line.partition("line 1: ")[2] for line in told.splitlines()][-1] == f"`{code}'"
    assert await said(shell, "-x") == "bash: line 1: -x: command not found\n"
    assert await said(shell, 'echo "$BASH_EXECUTION_STRING"') == 'echo "$BASH_EXECUTION_STRING"\n'


async def test_code_is_private_and_the_ladder_ends_a_cell_that_ignores_its_first_rungs(
    shell: Running,
) -> None:
    request, running = await begin(
        shell, "trap '' INT TERM; secret=hunter2; echo deaf; while :; do sleep 0.1; done"
    )
    await eventually(lambda: shell.rig.out(request) == b"up\ndeaf\n", "the trap is set")
    assert "hunter2" not in " ".join(psutil.Process(shell.handle.child.identity.pid).cmdline())
    code, out = (request.cells_dir / f"{request.cell_id}{ending}" for ending in (".sh", ".out"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in (code, out)} == {0o600}
    rungs = shell.handle.interrupt, shell.handle.terminate, shell.handle.kill
    assert [await rung() for rung in rungs] == ["sigint", "sigterm", "sigkill"]
    assert (await running).error == CellError("Signal", "SIGKILL")
    assert (code.exists(), [await rung() for rung in rungs]) == (False, ["gone"] * 3)


async def test_what_a_cell_leaves_in_the_background_ends_with_it_and_is_told(
    shell: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = await shell.run("sleep 1000 & setsid sleep 1000 & echo $!")
    assert ran.reply.status is CellStatus.OK
    assert "ended with it (2)" in str(ran.reply.notice)
    assert not alive(int(ran.out))  # nobody may have reaped it yet
    monkeypatch.setattr(bash, "LINGER_SECONDS", PATIENCE)
    ran = await shell.run("echo early; echo late > >(sleep 0.05; cat)")
    assert (ran.out, ran.reply.notice) == (b"early\nlate\n", None), (
        "a process substitution may finish what it writes"
    )


@pytest.mark.parametrize("ends_first", [True, False])
async def test_a_later_control_plane_sees_a_running_cell_out(
    shell: Running, ends_first: bool
) -> None:
    gate = Path(shell.launch.cwd, "go")
    os.mkfifo(gate)
    request, running = await begin(shell, "read -r _ <go; echo down; exit 5")
    if ends_first:
        placement = await shell.rig.replace()
        (child,) = await placement.list("kernel:sh-000000")
        await asyncio.to_thread(gate.write_text, "\n")
        await placement.wait(child.key)
    handle = await attached(shell)
    await asyncio.gather(running, return_exceptions=True)
    if not ends_first:
        await asyncio.to_thread(gate.write_text, "\n")
    reply = await shell.follow(request)
    assert reply.error == CellError("ExitCode", "5")
    assert shell.rig.out(request) == b"up\ndown\n"
    assert [record["kind"] for record in shell.rig.records(request)] == ["begin", "end"]
    assert await shell.rig.placement.list("kernel:") == ()
    assert await handle.execute(request, is_sent=True) == reply, (
        "an end that is written already stands"
    )
    with pytest.raises(KernelGoneError):
        await handle.execute(shell.rig.request(shell.launch, "true"), is_sent=True)


async def attached(shell: Running) -> Any:
    """Be the next control plane: it has the session by its cell's process."""
    placement = await shell.rig.replace()
    (child,) = await placement.list("kernel:sh-000000")
    shell.handle = await (await shell.make()).attach(shell.launch, child)
    return shell.handle


@pytest.mark.parametrize("is_attached", [True, False])
async def test_a_shutdown_ends_the_running_cell_and_resolves_the_death(
    shell: Running, is_attached: bool
) -> None:
    """Also that of an earlier control plane, which nobody follows."""
    _, running = await begin(shell, "sleep 1000")
    handle = await attached(shell) if is_attached else shell.handle
    async with asyncio.timeout(PATIENCE):
        assert await handle.shutdown(5.0, "stopped") == ()
        (reply,) = await asyncio.gather(running, return_exceptions=True)
    assert is_attached or reply.error == CellError("Signal", "SIGTERM")
    assert handle.died.result() is None
    assert await shell.rig.placement.list("kernel:") == ()


async def test_a_cell_that_is_just_being_spawned_is_not_missed_by_who_ends_it(
    shell: Running,
) -> None:
    handle = shell.handle
    for end in (
        handle.interrupt,
        handle.terminate,
        handle.kill,
        lambda: handle.shutdown(5, "stopped"),
    ):
        running = asyncio.ensure_future(
            handle.execute(shell.rig.request(shell.launch, "sleep 1000"))
        )
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            assert await end() != "gone"
            reply = await running
        assert reply.error is not None
        assert reply.error.name == "Signal"
