"""Kernels forked from a zygote, for real: what a session gets is what a spawn would have given
it, only sooner.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kernels.kernel_rig import KernelRig, eventually, kernel_house
from kernels.room_house import room_house
from supervisord_py.kernels.backend import Launch
from supervisord_py.kernels.direct import DirectBackend, DirectKernel
from supervisord_py.process import zygote_pool
from supervisord_py.process.model import ResourceLimit

pytestmark = pytest.mark.deep

FELT = """
import ctypes, ctypes.util, gc, json, locale, os, re, resource, signal, sys, threading, time, warnings
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
os.write(2, b"said to a descriptor\\n")
fds = [it for it in os.listdir("/proc/self/fd") if os.path.lexists("/proc/self/fd/" + it)]
print(json.dumps({
    "environ": dict(os.environ),
    "of C": {name: os.fsdecode(libc.getenv(name.encode())) for name in os.environ},
    "path": sys.path,
    "argv": [sys.argv, getattr(sys, "orig_argv", None)],
    "cwd": os.getcwd(),
    "flags": [repr(sys.flags), sys._xoptions, sys.warnoptions, sys.dont_write_bytecode],
    "locale": [locale.setlocale(locale.LC_ALL), sys.getfilesystemencoding(), time.tzname],
    "limits": [resource.getrlimit(each) for each in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)],
    "nice": os.nice(0),
    "signals": [str(signal.getsignal(each)) for each in (signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP)],
    "threads": sorted(each.name for each in threading.enumerate()),
    "next thread": threading.Thread().name,
    "stdio": [os.readlink(f"/proc/self/fd/{each}").rpartition(".")[2] for each in range(3)],
    "descriptors": sorted(re.split(r":|[0-9a-f]{16}", os.readlink(f"/proc/self/fd/{it}"))[0] for it in fds),
    "modules": sorted(sys.modules),
    "filters": repr(warnings.filters),
    "collector": [gc.isenabled(), gc.get_threshold()],
    "module": mine,
    "shadow": __import__("shadow").__file__,
}))
"""
"""What a session can see of its process.

A file of its folder hides one of the same name elsewhere.
"""


HASH = "print(hash('zygote'))"
RANDOM = (
    "import json, random, tempfile; print(json.dumps([random.random(), "
    "next(tempfile._get_candidate_names())]))"
)


@asynccontextmanager
async def backend_of(rig: KernelRig, **changes: Any) -> AsyncIterator[DirectBackend]:
    config = replace(rig.config, **{"zygotes": 1, **changes})
    backend = DirectBackend(await rig.supervise(), lambda: config)
    try:
        yield backend
    finally:
        await backend.close(stop=True)
        assert not (rig.config.run_dir / "k" / "prepared").exists()
        assert await rig.placement.list("zygote:") == ()


async def zygote_of(backend: DirectBackend, launch: Launch | None = None) -> int:
    if launch is not None:
        backend.expect(launch)
    (view,) = await eventually(
        lambda: [it for it in backend.zygotes.views() if it.ready], "a zygote"
    )
    assert view.pid is not None
    return int(view.pid)


async def prepared_by(backend: DirectBackend) -> int:
    """Return the pid of the kernel that is prepared for the next start, once its sockets are
    there.
    """
    place = backend.config().run_dir / "k" / "prepared"

    def there() -> int:
        # made in this order; what was killed leaves its own
        lock, last = place / "0", place / "0-5"
        is_new = last.exists() and last.stat().st_mtime_ns > lock.stat().st_mtime_ns
        pid = int(lock.read_text()) if is_new else 0
        return pid if Path(f"/proc/{pid}").exists() else 0

    return int(await eventually(there, "a kernel that is prepared"))


async def felt(rig: KernelRig, launch: Launch, handle: DirectKernel, code: str = FELT) -> Any:
    request = rig.request(launch, code)
    await handle.execute(request)
    return json.loads(rig.out(request).split(b"\n")[-2])


def different(rig: KernelRig, session: str) -> Launch:
    """Return a launch with a folder, a module and a variable of its own."""
    cwd, modules = rig.folder / session, rig.folder / f"{session}-modules"
    for folder in (cwd, modules):
        folder.mkdir()
    (cwd / "shadow.py").touch()
    (modules / "m.py").write_text(f"mine = {session!r}\n")
    env = rig.launch().env
    return rig.launch(
        session,
        cwd=str(cwd),
        modules=(str(modules),),
        env={**env, "PX_MINE": f"{session} \udcff", "PATH": f"{cwd}:{env['PATH']}"},
        limits=(ResourceLimit("core", 0, 0), ResourceLimit("nofile", 500, 500)),
    )


async def test_what_is_forked_is_what_a_spawn_gives(short_tmp: Path) -> None:
    async with kernel_house(short_tmp) as rig, backend_of(rig) as backend:
        found, pids, places, env = [], [], dict[str, str](), dict[str, str]()
        for name, method in (("a-000000", "spawn"), ("b-000000", "zygote"), ("c-000000", "zygote")):
            launch = different(rig, name)
            prepared = 0
            if name == "c-000000":  # which fits what was prepared after the start before
                launch = replace(launch, env={**env, "PX_MINE": launch.env["PX_MINE"]})
                prepared = await prepared_by(backend)
            env = launch.env
            handle = await rig.start(backend, launch)
            assert prepared in {0, handle.child.identity.pid}
            assert rig.started[-1].start_method == method
            assert handle.child.unit == f"kernel:{name}"
            said = await felt(rig, launch, handle)
            seen = Path("/proc", str(handle.child.identity.pid))
            pids.append(handle.child.identity.pid)
            marks = set(seen.joinpath("environ").read_bytes().split(b"\0"))
            assert {
                f"PX_INSTANCE={launch.instance}".encode(),
                f"PX_UNIT={launch.unit}".encode(),
            } <= marks
            assert (
                seen.joinpath("cmdline")
                .read_bytes()
                .startswith(launch.interpreter.encode() + b"\0")
            )
            zygote = await zygote_of(backend)
            text = json.dumps(said)
            places |= {
                launch.cwd: "CWD",
                str(handle.connection_file): "FILE",
                launch.instance: "KEY",
                name: "NAME",
            }
            for each, word in places.items():
                text = text.replace(each, word)
            found.append(json.loads(text))
        for forked in found[1:]:
            forked["modules"].remove("px_zygote")
            assert forked == found[0]
        os.kill(zygote, signal.SIGKILL)
        await eventually(lambda: not backend.zygotes.views(), "the end of the zygote")
        assert all(Path(f"/proc/{pid}").exists() for pid in pids), "what was forked lives on"


async def test_every_start_in_a_row_is_forked_but_what_acts_at_the_start_of_python_gets_one(
    short_tmp: Path,
) -> None:
    async with kernel_house(short_tmp) as rig, backend_of(rig) as backend:
        await zygote_of(backend, rig.launch("a-000000"))
        said: set[Any] = set()
        for name in ("a-000000", "b-000000"):
            launch = rig.launch(name)
            said |= {*await felt(rig, launch, await rig.start(backend, launch), RANDOM)}
            assert rig.started[-1].start_method == "zygote"
        assert len(said) == 4, "siblings differ"
        env = {**launch.env, "PYTHONHASHSEED": "7"}
        launch = rig.launch("c-000000", env=env)
        handle = await rig.start(backend, launch)
        assert rig.started[-1].start_method == "spawn"
        asked = (sys.executable, "-c", HASH)
        told = await asyncio.to_thread(
            subprocess.run, asked, capture_output=True, check=True, env=env
        )
        assert await felt(rig, launch, handle, HASH) == int(told.stdout)


async def test_what_was_prepared_for_something_else_or_is_broken_is_given_up(
    short_tmp: Path,
) -> None:
    async with kernel_house(short_tmp) as rig, backend_of(rig) as backend:
        usual, place = rig.launch().env, rig.config.run_dir / "k" / "prepared"
        await zygote_of(backend, rig.launch())
        configured = Path(usual["IPYTHONDIR"], "profile_default", "ipython_kernel_config.py")
        other = {**usual, "USER": "other"}
        for env, what, fits in (
            (other, "another environment", False),
            (other, "the same", True),
            (other, "killed", False),
            (other, "without a socket", False),
            (other, "configured", False),
        ):
            prepared = await prepared_by(backend)
            if what == "killed":
                os.kill(prepared, signal.SIGKILL)
                await eventually(
                    lambda gone=Path(f"/proc/{prepared}"): not gone.exists(), "its end"
                )
            elif what == "without a socket":
                (place / "0-1").unlink()
            elif what == "configured":
                configured.write_text(
                    "import os\nc.InteractiveShellApp.exec_lines = [f'found = {os.getcwd()!r}']"
                )
            launch = rig.launch(f"{what.replace(' ', '-')}-000000", env=env)
            handle = await rig.start(backend, launch)
            assert rig.started[-1].start_method == "zygote", what
            assert (handle.child.identity.pid == prepared) is fits, what
            if not fits:
                await eventually(
                    lambda gone=Path(f"/proc/{prepared}"): not gone.exists(),
                    "the end of the unfit one",
                )
            request = rig.request(
                launch, "import os; os.environ.get('USER'), globals().get('found')"
            )
            await handle.execute(request)
            (result,) = rig.records(request, "result")
            shown = (env.get("USER"), launch.cwd if what == "configured" else None)
            assert result["data"]["text/plain"] == repr(shown), "and read in the user's folder"


async def test_one_that_will_not_do_is_replaced_by_a_spawn(short_tmp: Path) -> None:
    async with kernel_house(short_tmp) as rig, backend_of(rig) as backend:
        library = rig.folder / "library"
        library.mkdir()
        launch = rig.launch(env={**rig.launch().env, "PYTHONPATH": str(library)})
        pid = await zygote_of(backend, launch)
        (library / "sitecustomize.py").touch()
        await rig.start(backend, launch)
        assert rig.started[-1].start_method == "spawn"
        await eventually(lambda: not Path(f"/proc/{pid}").exists(), "the end of the unfit one")


async def test_one_that_forks_nothing_is_ended(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kernel_house(short_tmp) as rig, backend_of(rig) as backend:
        with monkeypatch.context() as patch:
            patch.setattr(zygote_pool, "IDLE_SECONDS", 0.01)
            backend.expect(rig.launch())
            pid = (
                await eventually(
                    lambda: [it.pid for it in backend.zygotes.views() if it.pid], "a zygote"
                )
            )[0]
            await eventually(lambda: not backend.zygotes.views(), "its end")
            await eventually(lambda: not Path(f"/proc/{pid}").exists(), "the end of its process")


async def test_settings_end_them_and_keep_others_from_being_made(short_tmp: Path) -> None:
    async with room_house(short_tmp, zygotes=1) as house:
        await house.run("1")
        await eventually(lambda: [it for it in house.room.zygotes() if it.ready], "a zygote")
        house.room.reconfigure(replace(house.config, zygotes=0))
        await eventually(lambda: not house.room.zygotes(), "its end")
        await house.run("1", name="other")
        assert house.room.zygotes() == ()


async def test_a_session_says_how_it_began_and_a_zygote_is_no_session(short_tmp: Path) -> None:
    async with room_house(short_tmp, zygotes=1) as house:
        first = await house.run("1 + 1")
        assert [(it.start_method, it.key.name) for it in house.room.snapshot()] == [
            ("spawn", "default")
        ]
        await eventually(lambda: [it for it in house.room.zygotes() if it.ready], "a zygote")
        second = await house.run("1 + 1", name="other")
        assert second.cold_start_ms is not None
        seen = house.room.find(second.session_id)
        assert (seen.start_method, seen.cold_start_ms) == ("zygote", second.cold_start_ms)
        assert [(cell.status, cell.text, cell.lossy) for cell in second.cells] == [
            ("ok", "2\n", False)
        ]
        await house.replace()
        assert house.room.find(second.session_id).start_method == "zygote"
        assert house.room.find(first.session_id).start_method == "spawn"
        async with asyncio.timeout(60):
            while await house.rig.placement.list("zygote:"):
                await asyncio.sleep(0.01)  # the one of the earlier control plane is ended
