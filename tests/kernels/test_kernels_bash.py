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
from msgspec.structs import replace

from kernels.kernel_rig import PATIENCE, KernelRig, eventually, kernel_house
from process.real_keeper import alive
from supervisord_py.kernels import bash
from supervisord_py.kernels.backend import ExecuteRequest, KernelGoneError, Launch, Reply
from supervisord_py.kernels.bash import BashBackend, BashHandle
from supervisord_py.kernels.session import CellError, CellStatus


class Shell:
    """A session of shell cells."""

    def __init__(self, rig: KernelRig) -> None:
        self.rig = rig
        self.launch: Launch = rig.launch("sh-000000", interpreter=None)
        self.handle: BashHandle

    async def backend(self) -> BashBackend:
        return BashBackend(await self.rig.supervise())

    async def start(self, **changes: Any) -> None:
        self.launch = replace(self.launch, **changes)
        self.handle = await self.rig.start(await self.backend(), self.launch)

    async def run(self, code: str, **changes: Any) -> tuple[ExecuteRequest, Reply]:
        request = self.rig.request(self.launch, code, **changes)
        async with asyncio.timeout(PATIENCE):
            return request, await self.handle.execute(request)

    async def said(self, code: str) -> str:
        request, _ = await self.run(code)
        return self.rig.out(request).decode()

    async def begin(self, code: str) -> tuple[ExecuteRequest, asyncio.Future[Reply]]:
        """Begin a cell that prints `up`; returns when it has."""
        request = self.rig.request(self.launch, f"echo up; {code}")
        running = asyncio.ensure_future(self.handle.execute(request))
        await eventually(lambda: self.rig.out(request) and self.handle.child)
        return request, running

    def fifo(self) -> None:
        """Make the pipe on which a cell waits for `go`."""
        os.mkfifo(f"{self.launch.cwd}/go")

    async def go(self) -> None:
        await asyncio.to_thread((self.rig.folder / "cwd" / "go").write_text, "\n")


@pytest.fixture
async def shell(short_tmp: Path) -> AsyncIterator[Shell]:
    async with kernel_house(short_tmp) as rig:
        made = Shell(rig)
        await made.start()
        yield made


async def test_messages_read_as_those_of_a_plain_shell_and_the_wrapper_is_not_seen(shell: Shell) -> None:
    said = await shell.said('echo "$0 $#"\nnosuchcommand\ndeclare -p PX_CODE\n')
    assert said == (
        "bash 0\nbash: line 2: nosuchcommand: command not found\nbash: line 3: declare: PX_CODE: not found\n"
    )
    code = "import time; time.sleep(30)"
    said = await shell.said(code)
    assert "syntax error" in said
    assert [line.partition("line 1: ")[2] for line in said.splitlines()][-1] == f"`{code}'"
    assert "PX" not in said.upper()
    assert await shell.said("-x") == "bash: line 1: -x: command not found\n"
    assert await shell.said('echo "$BASH_EXECUTION_STRING"') == 'echo "$BASH_EXECUTION_STRING"\n'


async def test_code_is_in_no_argv_and_its_file_is_private_and_gone_afterwards(shell: Shell) -> None:
    request, running = await shell.begin("secret=hunter2; while :; do :; done")
    assert shell.handle.child is not None
    assert "hunter2" not in " ".join(psutil.Process(shell.handle.child.identity.pid).cmdline())
    code, out = (request.cells_dir / f"{request.cell_id}{ending}" for ending in (".sh", ".out"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in (code, out)} == {0o600}
    assert await shell.handle.kill() == "sigkill"
    assert (await running).error == CellError("Signal", "SIGKILL")
    assert not code.exists()


async def test_what_a_cell_leaves_in_the_background_ends_with_it_and_is_told(shell: Shell) -> None:
    request, reply = await shell.run("sleep 1000 & setsid sleep 1000 & echo $!")
    assert reply.status is CellStatus.OK
    assert reply.notice is not None
    assert "2 processes" in reply.notice
    assert not alive(int(shell.rig.out(request)))  # nobody may have reaped it yet


async def test_a_process_substitution_may_finish_what_it_writes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bash, "LINGER_SECONDS", PATIENCE)
    request, reply = await shell.run("echo early; echo late > >(sleep 0.05; cat)")
    assert shell.rig.out(request) == b"early\nlate\n"
    assert reply.notice is None


async def test_a_cell_that_ignores_sigint_and_sigterm_is_ended_by_the_last_rung(shell: Shell) -> None:
    request, running = await shell.begin("trap '' INT TERM; echo deaf; while :; do sleep 0.1; done")
    await eventually(lambda: shell.rig.out(request) == b"up\ndeaf\n", "the trap is set")
    assert await shell.handle.interrupt() == "sigint"
    assert await shell.handle.terminate() == "sigterm"
    assert await shell.handle.kill() == "sigkill"
    assert (await running).error == CellError("Signal", "SIGKILL")
    assert [await shell.handle.interrupt(), await shell.handle.terminate(), await shell.handle.kill()] == ["gone"] * 3


@pytest.mark.parametrize("ends_first", [True, False])
async def test_a_later_control_plane_sees_a_running_cell_out(shell: Shell, ends_first: bool) -> None:
    shell.fifo()
    request, running = await shell.begin("read -r _ <go; echo down; exit 5")
    placement = await shell.rig.replace()
    await asyncio.gather(running, return_exceptions=True)
    (child,) = await placement.list("kernel:sh-000000")
    if ends_first:
        await shell.go()
        await placement.wait(child.key)
    (child,) = await placement.list("kernel:sh-000000")
    handle = await (await shell.backend()).attach(shell.launch, child)
    assert handle.child == child
    if not ends_first:
        await shell.go()
    async with asyncio.timeout(PATIENCE):
        reply = await handle.execute(request, is_sent=True)
    assert reply.error == CellError("ExitCode", "5")
    assert shell.rig.out(request) == b"up\ndown\n"
    assert [record["kind"] for record in shell.rig.records(request)] == ["begin", "end"]
    assert await placement.list("kernel:") == ()
    assert await handle.execute(request, is_sent=True) == reply, "an end that is written already stands"
    with pytest.raises(KernelGoneError):
        await handle.execute(shell.rig.request(shell.launch, "true"), is_sent=True)


@pytest.mark.parametrize("attached", [True, False])
async def test_a_shutdown_ends_the_running_cell_and_resolves_the_death(shell: Shell, attached: bool) -> None:
    """Also that of an earlier control plane, which nobody follows."""
    _, running = await shell.begin("sleep 1000")
    handle = shell.handle
    if attached:
        placement = await shell.rig.replace()
        (child,) = await placement.list("kernel:sh-000000")
        handle = await (await shell.backend()).attach(shell.launch, child)
    async with asyncio.timeout(PATIENCE):
        assert await handle.shutdown(5.0, "stopped") == ()
        (reply,) = await asyncio.gather(running, return_exceptions=True)
    assert attached or reply.error == CellError("Signal", "SIGTERM")
    assert handle.died.result() is None
    assert await shell.rig.placement.list("kernel:") == ()


async def test_a_cell_that_is_just_being_spawned_is_not_missed_by_who_ends_it(shell: Shell) -> None:
    for end in (
        shell.handle.interrupt,
        shell.handle.terminate,
        shell.handle.kill,
        lambda: shell.handle.shutdown(5, "stopped"),
    ):
        running = asyncio.ensure_future(shell.handle.execute(shell.rig.request(shell.launch, "sleep 1000")))
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            assert await end() != "gone"
            reply = await running
        assert reply.error is not None
        assert reply.error.name == "Signal"


async def test_what_would_run_before_the_code_is_not_taken_from_the_environment(shell: Shell) -> None:
    trap = shell.rig.folder / "trap.sh"
    trap.write_text("echo trapped\n")
    await shell.start(env={**shell.launch.env, "BASH_ENV": str(trap), "SHELLOPTS": "xtrace"})
    assert await shell.said("echo plain") == "plain\n"
