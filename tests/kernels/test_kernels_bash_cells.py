"""Shell cells on a real keeper: what runs, what it gives, how it ends."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest

from kernels.kernel_rig import eventually, kernel_house, no_news
from process.real_keeper import alive
from supervisord_py.errors import ConflictError, KeeperLostError, StartFailedError
from supervisord_py.kernels.backend import KernelGoneError
from supervisord_py.kernels.bash import session, shell_cell
from supervisord_py.kernels.bash.backend import BashBackend, find_shell
from supervisord_py.kernels.bash.shell_cell import outcome
from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.kernels.cell_files import CellLog
from supervisord_py.kernels.config import OutputLimits
from supervisord_py.kernels.render import show
from supervisord_py.process.model import ExitRecord, Identity, Reason, ResourceLimit, StopReport, Survivor, Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kernels.kernel_rig import KernelRig
    from supervisord_py.kernels.backend import ExecuteRequest, Launch, Reply
    from supervisord_py.kernels.bash.session import BashHandle, ShellChild

PATIENCE = 60


class Shell:
    """A session of shell cells, and what was told of its processes."""

    def __init__(self, rig: KernelRig) -> None:
        self.rig = rig
        self.began: list[ShellChild] = []
        self.ended: list[tuple[ShellChild, ExitRecord, tuple[int, ...]]] = []
        self.launch: Launch = rig.launch("sh-000000", interpreter=None)
        self.handle: BashHandle

    def backend(self) -> BashBackend:
        async def on_child(child: ShellChild) -> None:
            self.began.append(child)

        def on_child_ended(child: ShellChild, record: ExitRecord, survivors: tuple[int, ...]) -> None:
            self.ended.append((child, record, survivors))

        return BashBackend(self.rig.placement, self.rig.config, on_child=on_child, on_child_ended=on_child_ended)

    async def start(self, **changes: Any) -> None:
        self.launch = replace(self.launch, **changes)
        self.handle = await self.rig.start(self.backend(), self.launch)

    async def run(self, code: str, **changes: Any) -> tuple[ExecuteRequest, Reply]:
        request = self.rig.request(self.launch, code, **changes)
        async with asyncio.timeout(PATIENCE):
            return request, await self.handle.execute(request, no_news)

    async def said(self, code: str) -> str:
        request, _ = await self.run(code)
        return self.rig.out(request).decode()

    async def up(self, request: ExecuteRequest) -> None:
        """Wait until a cell printed something and its process is known."""
        await eventually(lambda: self.began and self.rig.out(request))

    def log(self, request: ExecuteRequest) -> CellLog:
        return CellLog(request.cells_dir, request.cell_id)


@pytest.fixture
async def shell(short_tmp: Path) -> AsyncIterator[Shell]:
    async with kernel_house(short_tmp) as rig:
        made = Shell(rig)
        await made.start()
        yield made


async def test_a_cell_runs_in_its_directory_and_environment_with_both_streams_in_order(shell: Shell) -> None:
    await shell.start(env={**shell.launch.env, "COLOUR": "blue"})
    request, reply = await shell.run('pwd; echo "$COLOUR" >&2; printf \'%s\' "$PX_UNIT"; cat')
    assert (reply.status, reply.error, reply.notice) == (CellStatus.OK, None, None)
    assert shell.rig.out(request).decode() == f"{shell.launch.cwd}\nblue\nkernel:sh-000000"
    end = shell.log(request).ended()
    assert end is not None
    assert end.status is CellStatus.OK
    assert end.size == len(shell.rig.out(request))


async def test_each_cell_is_a_process_of_its_own_and_keeps_nothing(shell: Shell) -> None:
    await shell.run("cd /; export SEEN=1; mine=2")
    assert await shell.said('pwd; echo "[$SEEN$mine]"') == f"{shell.launch.cwd}\n[]\n"


async def test_messages_read_as_those_of_a_plain_shell_and_the_wrapper_is_not_seen(shell: Shell) -> None:
    said = await shell.said('echo "$0 $#"\nnosuchcommand\ndeclare -p PX_CODE\n')
    assert said == (
        "bash 0\nbash: line 2: nosuchcommand: command not found\nbash: line 3: declare: PX_CODE: not found\n"
    )


async def test_a_mistake_in_the_code_is_shown_in_the_users_own_words(shell: Shell) -> None:
    code = "import time; time.sleep(30)"
    said = await shell.said(code)
    assert "syntax error" in said
    assert [line.partition("line 1: ")[2] for line in said.splitlines()][-1] == f"`{code}'"
    assert "PX" not in said.upper()
    assert await shell.said("-x") == "bash: line 1: -x: command not found\n"
    assert await shell.said('echo "$BASH_EXECUTION_STRING"') == 'echo "$BASH_EXECUTION_STRING"\n'


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("exit 3", CellError("ExitCode", "3")),
        ("set -e; false; echo no", CellError("ExitCode", "1")),
        ("if", CellError("ExitCode", "2")),
        ("kill -9 $$", CellError("Signal", "SIGKILL")),
    ],
)
async def test_how_a_cell_failed_is_told_by_exit_code_or_signal(shell: Shell, code: str, error: CellError) -> None:
    request, reply = await shell.run(code)
    assert (reply.status, reply.error) == (CellStatus.ERROR, error)
    end = shell.log(request).ended()
    assert end is not None
    assert (end.status, end.error) == (CellStatus.ERROR, error)
    _, after = await shell.run("true")
    assert after.status is CellStatus.OK


async def test_code_is_in_no_argv_and_its_file_is_private_and_gone_afterwards(shell: Shell) -> None:
    request = shell.rig.request(shell.launch, "secret=hunter2; echo up; while :; do :; done")
    running = asyncio.ensure_future(shell.handle.execute(request, no_news))
    await shell.up(request)
    pid = shell.began[0].child.identity.pid
    assert "hunter2" not in " ".join(psutil.Process(pid).cmdline())
    code = request.cells_dir / f"{request.cell_id}.sh"
    assert stat.S_IMODE(code.stat().st_mode) == 0o600
    assert stat.S_IMODE((request.cells_dir / f"{request.cell_id}.out").stat().st_mode) == 0o600
    assert await shell.handle.kill() == "sigkill"
    assert (await running).error == CellError("Signal", "SIGKILL")
    assert not code.exists()


async def test_fifty_megabytes_arrive_to_the_last_byte(shell: Shell) -> None:
    request, reply = await shell.run("head -c 52428800 /dev/zero | tr '\\0' 'x' | fold -w 99")
    assert reply.status is CellStatus.OK
    expected = (b"x" * 99 + b"\n") * (52428800 // 99) + b"x" * (52428800 % 99)
    assert hashlib.sha256(shell.rig.out(request)).digest() == hashlib.sha256(expected).digest()
    shown = await asyncio.to_thread(show, shell.log(request), OutputLimits())
    assert (shown.total_bytes, shown.truncated) == (len(expected), True)


async def test_output_beyond_the_cap_is_cut_and_told(shell: Shell) -> None:
    request, reply = await shell.run("head -c 5000000 /dev/zero; echo; printf end", cell_bytes=1000)
    assert reply.status is CellStatus.OK
    assert shell.rig.out(request) == b"\0" * 1000
    (capped,) = shell.rig.records(request, "capped")
    assert (capped["at"], capped["cap"]) == (1000, 1000)
    assert shell.log(request).ended() is not None


async def test_output_is_cut_while_the_cell_runs(shell: Shell) -> None:
    os.mkfifo(f"{shell.launch.cwd}/cut")
    code = "head -c 3000 /dev/zero; read -r _ <cut; head -c 2500 /dev/zero"
    request = shell.rig.request(shell.launch, code, cell_bytes=1000)
    running = asyncio.ensure_future(shell.handle.execute(request, no_news))
    await eventually(lambda: shell.rig.records(request, "capped"), "the cut")
    assert shell.rig.out(request) == b"\0" * 1000
    await asyncio.to_thread((shell.rig.folder / "cwd" / "cut").write_text, "\n")
    async with asyncio.timeout(PATIENCE):
        assert (await running).status is CellStatus.OK
    assert shell.rig.out(request) == b"\0" * 1000
    assert len(shell.rig.records(request, "capped")) == 1


async def test_followers_are_woken_while_the_cell_runs(shell: Shell) -> None:
    news = asyncio.Event()
    request = shell.rig.request(shell.launch, "echo one; read -r _ <go; echo two")
    os.mkfifo(f"{shell.launch.cwd}/go")
    running = asyncio.ensure_future(shell.handle.execute(request, news.set))
    async with asyncio.timeout(PATIENCE):
        while shell.rig.out(request) != b"one\n":
            await news.wait()
            news.clear()
        await asyncio.to_thread((shell.rig.folder / "cwd" / "go").write_text, "\n")
        await running
    assert news.is_set()
    assert shell.rig.out(request) == b"one\ntwo\n"


async def test_what_a_cell_leaves_in_the_background_ends_with_it_and_is_told(shell: Shell) -> None:
    request, reply = await shell.run("sleep 1000 & setsid sleep 1000 & echo $!")
    assert reply.status is CellStatus.OK
    assert reply.notice is not None
    assert "2 processes" in reply.notice
    (_, record, survivors) = shell.ended[0]
    assert (record.code, survivors) == (0, ())
    assert not alive(int(shell.rig.out(request)))  # nobody may have reaped it yet


async def test_a_process_substitution_may_finish_what_it_writes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LINGER_SECONDS", float(PATIENCE))
    request, reply = await shell.run("echo early; echo late > >(sleep 0.05; cat)")
    assert shell.rig.out(request) == b"early\nlate\n"
    assert reply.notice is None


@pytest.mark.parametrize(
    "code", ["sleep 1000", "while :; do :; done", "sleep 1000 | cat", "bash -c 'sleep 1000'; echo no"]
)
async def test_an_interrupt_ends_the_cell_and_the_session_goes_on(shell: Shell, code: str) -> None:
    request = shell.rig.request(shell.launch, f"echo up; {code}")
    running = asyncio.ensure_future(shell.handle.execute(request, no_news))
    await shell.up(request)
    assert await shell.handle.interrupt() == "sigint"
    async with asyncio.timeout(PATIENCE):
        reply = await running
    assert reply.error == CellError("Signal", "SIGINT")
    assert await shell.said("echo again") == "again\n"
    assert not shell.handle.died.done()


async def test_a_cell_that_ignores_sigint_and_sigterm_is_ended_by_the_last_rung(shell: Shell) -> None:
    request = shell.rig.request(shell.launch, "trap '' INT TERM; echo up; while :; do sleep 0.1; done")
    running = asyncio.ensure_future(shell.handle.execute(request, no_news))
    await shell.up(request)
    assert await shell.handle.interrupt() == "sigint"
    assert await shell.handle.terminate() == "sigterm"
    assert await shell.handle.kill() == "sigkill"
    assert (await running).error == CellError("Signal", "SIGKILL")
    assert [await shell.handle.interrupt(), await shell.handle.terminate(), await shell.handle.kill()] == ["gone"] * 3


async def test_abandoning_the_wait_leaves_the_cell_and_following_finds_it(shell: Shell) -> None:
    os.mkfifo(f"{shell.launch.cwd}/go")
    request = shell.rig.request(shell.launch, "echo up; read -r _ <go; exit 4")
    running = asyncio.ensure_future(shell.handle.execute(request, no_news))
    await shell.up(request)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    with pytest.raises(ConflictError):
        await shell.handle.execute(shell.rig.request(shell.launch, "true"), no_news)
    await asyncio.to_thread((shell.rig.folder / "cwd" / "go").write_text, "\n")
    async with asyncio.timeout(PATIENCE):
        reply = await shell.handle.follow(request, no_news)
    assert reply.error == CellError("ExitCode", "4")


@pytest.mark.parametrize("ends_first", [True, False])
async def test_a_later_control_plane_sees_a_running_cell_out(shell: Shell, ends_first: bool) -> None:
    os.mkfifo(f"{shell.launch.cwd}/go")
    request = shell.rig.request(shell.launch, "echo up; read -r _ <go; echo down; exit 5")
    running = asyncio.ensure_future(shell.handle.execute(request, no_news))
    await shell.up(request)
    placement = await shell.rig.replace()
    await asyncio.gather(running, return_exceptions=True)
    if ends_first:
        await asyncio.to_thread((shell.rig.folder / "cwd" / "go").write_text, "\n")
        await placement.wait(shell.began[0].child.key)
    (child,) = await placement.list("kernel:sh-000000")
    handle = await shell.backend().attach(shell.launch, child)
    assert handle.started.child == child
    if not ends_first:
        await asyncio.to_thread((shell.rig.folder / "cwd" / "go").write_text, "\n")
    async with asyncio.timeout(PATIENCE):
        reply = await handle.follow(request, no_news)
    assert reply.error == CellError("ExitCode", "5")
    assert shell.rig.out(request) == b"up\ndown\n"
    assert [record["kind"] for record in shell.rig.records(request)] == ["begin", "end"]
    assert await placement.list("kernel:") == ()
    with pytest.raises(KernelGoneError):
        await handle.follow(shell.rig.request(shell.launch, "true"), no_news)


async def test_a_shutdown_ends_the_running_cell_and_resolves_the_death(shell: Shell) -> None:
    request = shell.rig.request(shell.launch, "echo up; sleep 1000")
    running = asyncio.ensure_future(shell.handle.execute(request, no_news))
    await shell.up(request)
    async with asyncio.timeout(PATIENCE):
        assert await shell.handle.shutdown(float(PATIENCE), "stopped") == ()
        assert (await running).error == CellError("Signal", "SIGTERM")
    assert shell.handle.died.result() is None
    assert await shell.rig.placement.list("kernel:") == ()


async def test_an_attached_cell_that_nobody_follows_is_ended_and_forgotten_by_a_shutdown(shell: Shell) -> None:
    request = shell.rig.request(shell.launch, "echo up; sleep 1000")
    running = asyncio.ensure_future(shell.handle.execute(request, no_news))
    await shell.up(request)
    placement = await shell.rig.replace()
    await asyncio.gather(running, return_exceptions=True)
    (child,) = await placement.list("kernel:sh-000000")
    handle = await shell.backend().attach(shell.launch, child)
    async with asyncio.timeout(PATIENCE):
        assert await handle.shutdown(5.0, "stopped") == ()
    assert await placement.list("kernel:") == ()


async def test_a_session_without_bash_says_so_before_anything_is_run(shell: Shell) -> None:
    with pytest.raises(StartFailedError, match="no bash on PATH") as caught:
        await shell.start(env={"PATH": "/nonexistent"})
    assert (caught.value.extra["stage"], caught.value.unit) == ("interpreter", "kernel:sh-000000")
    assert find_shell("/nonexistent") is None


async def test_a_directory_that_went_away_fails_the_cell_and_not_the_session(shell: Shell) -> None:
    gone = shell.rig.folder / "gone"
    gone.mkdir()
    await shell.start(cwd=str(gone))
    gone.rmdir()
    request, reply = await shell.run("echo no")
    assert reply.error is not None
    assert (reply.status, reply.error.name) == (CellStatus.ERROR, "StartFailed")
    assert "gone" in reply.error.value
    end = shell.log(request).ended()
    assert end is not None
    assert end.error == reply.error
    gone.mkdir()
    assert await shell.said("echo yes") == "yes\n"


async def test_a_nul_in_the_code_is_refused_instead_of_cutting_the_code_short(shell: Shell) -> None:
    request, reply = await shell.run("echo one\0echo two")
    assert reply.error == CellError("StartFailed", "the code contains a NUL character, which no shell can read")
    assert shell.log(request).ended() is not None


async def test_limits_hold_for_the_cell(shell: Shell) -> None:
    await shell.start(limits=(ResourceLimit("nofile", 33, 33),))
    assert await shell.said("ulimit -n") == "33\n"


async def test_a_cell_that_is_just_being_spawned_is_not_missed_by_who_ends_it(shell: Shell) -> None:
    for end in (
        shell.handle.interrupt,
        shell.handle.terminate,
        shell.handle.kill,
        lambda: shell.handle.shutdown(5, "x"),
    ):
        request = shell.rig.request(shell.launch, "sleep 1000")
        running = asyncio.ensure_future(shell.handle.execute(request, no_news))
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            assert await end() != "gone"
            reply = await running
        assert reply.error is not None
        assert reply.error.name == "Signal"


async def test_an_end_that_is_written_already_stands(shell: Shell) -> None:
    """The control plane was replaced behind the end of the cell, before the keeper forgot its process."""
    request, reply = await shell.run("exit 3")
    later = await shell.rig.start(shell.backend(), shell.launch)
    assert await later.follow(request, no_news) == reply
    shell_cell.CellFiles(request).end(CellStatus.OK, None, 1.0)
    assert [record["status"] for record in shell.rig.records(request, "end")] == ["error"]


async def test_a_process_that_outlives_its_end_is_named_and_not_forgotten(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[str] = []

    async def stop(key: str, **_: object) -> StopReport:
        return StopReport(key, (Survivor(77, "stuck", 1),))

    async def release(key: str) -> None:
        released.append(key)

    monkeypatch.setattr(shell.rig.placement, "stop", stop)
    monkeypatch.setattr(shell.rig.placement, "release", release)
    _, reply = await shell.run("true")
    assert reply.notice == "the cell left processes behind that could not be ended: stuck (pid 77)"
    assert (shell.ended[0][2], released) == ((77,), [])


async def test_a_lost_keeper_is_an_error_of_the_call_and_not_of_the_cell(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spawn(*_: object) -> None:
        raise KeeperLostError("gone")

    monkeypatch.setattr(shell.rig.placement, "spawn", spawn)
    with pytest.raises(KeeperLostError):
        await shell.run("true")


async def test_a_disk_that_takes_no_code_fails_the_cell(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shell_cell.CellFiles, "prepare", full)
    _, reply = await shell.run("true")
    assert reply.error == CellError("StartFailed", "[Errno 28] No space left on device")


async def test_output_that_was_swept_away_under_a_cell_does_not_trouble_it(shell: Shell) -> None:
    request, reply = await shell.run('rm "$HOME"/cells/sh-000000/*.out; echo; exit 2')
    assert reply.error == CellError("ExitCode", "2")
    assert shell.rig.out(request) == b""


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"code": 0}, None),
        ({"code": 3}, CellError("ExitCode", "3")),
        ({"signal": 9}, CellError("Signal", "SIGKILL")),
        ({"signal": 63}, CellError("Signal", "signal 63")),
        (
            {"signal": 9, "verdict": Verdict(Reason.MEMORY_LIMIT, "keeper", 0.0)},
            CellError("ResourceLimitExceeded", "memory"),
        ),
        (
            {"signal": 24, "verdict": Verdict(Reason.CPU_LIMIT, "rlimit", 0.0)},
            CellError("ResourceLimitExceeded", "cpu"),
        ),
        ({"code": 152, "user_seconds": 0.4, "system_seconds": 0.6}, CellError("ResourceLimitExceeded", "cpu")),
        ({"code": 152, "user_seconds": 0.1}, CellError("ExitCode", "152")),
        ({"signal": 15, "verdict": Verdict(Reason.STOPPED, "control", 0.0)}, CellError("Signal", "SIGTERM")),
    ],
)
def test_what_an_exit_record_says_of_the_cell(changes: dict[str, Any], error: CellError | None) -> None:
    plain = ExitRecord("k", "kernel:s", Identity(1, 2, "b"), 0.0, 1.0, None, None, 0.0, 0.0, 0, 0, 0)
    status = CellStatus.OK if error is None else CellStatus.ERROR
    assert outcome(msgspec.structs.replace(plain, **changes), (ResourceLimit("cpu", 1, 3),)) == (status, error)


def test_an_exit_code_names_no_limit_that_was_not_set() -> None:
    record = ExitRecord("k", "kernel:s", Identity(1, 2, "b"), 0.0, 1.0, 152, None, 99.0, 0.0, 0, 0, 0)
    assert outcome(record)[1] == outcome(record, (ResourceLimit("cpu", -1, -1),))[1] == CellError("ExitCode", "152")


async def test_each_process_is_told_and_forgotten_by_the_keeper_when_it_ended(shell: Shell) -> None:
    request, _ = await shell.run("exit 9")
    ((child, record, survivors),) = shell.ended
    assert [child] == shell.began
    assert (child.session_id, child.cell_id, record.code, survivors) == ("sh-000000", request.cell_id, 9, ())
    assert shell.handle.started.child is None
    assert await shell.rig.placement.list("kernel:") == ()


async def test_what_would_run_before_the_code_is_not_taken_from_the_environment(shell: Shell) -> None:
    trap = shell.rig.folder / "trap.sh"
    trap.write_text("echo trapped\n")
    await shell.start(env={**shell.launch.env, "BASH_ENV": str(trap), "SHELLOPTS": "xtrace"})
    assert await shell.said("echo plain") == "plain\n"
