"""Spare kernels, for real: what a session gets is what a fresh start would have given it, only sooner."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from kernels.kernel_rig import KernelRig, eventually, kernel_house, no_news
from kernels.room_house import room_house
from supervisord_py.kernels import spare_pool, spares
from supervisord_py.kernels.backend import SpareView, StartMethod
from supervisord_py.kernels.direct import DirectBackend
from supervisord_py.process.model import ResourceLimit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.direct import DirectKernel

pytestmark = pytest.mark.deep

FELT = """
import ctypes, ctypes.util, gc, json, locale, os, resource, signal, sys, threading, time, warnings
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
os.write(2, b"said to a descriptor\\n")
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
    "umask": os.umask(0o77),
    "signals": [str(signal.getsignal(each)) for each in (signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP)],
    "threads": sorted(each.name for each in threading.enumerate()),
    "next thread": threading.Thread().name,
    "descriptors": [os.readlink(f"/proc/self/fd/{each}").partition(":")[0].rpartition(".")[2] for each in range(8)],
    "modules": sorted(sys.modules),
    "filters": repr(warnings.filters),
    "collector": [gc.isenabled(), gc.get_threshold()],
    "session": os.getsid(0) == os.getpid(),
    "module": mine,
    "shadow": __import__("shadow").__file__,
}))
"""
"""What a session can see of its process. A file of its folder hides one of the same name elsewhere."""


HASH = "print(hash('spare'))"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a spare takes its order when it gets to run."""
    monkeypatch.setattr(spare_pool, "ANSWER_SECONDS", 60.0)


@asynccontextmanager
async def backend_of(rig: KernelRig, **changes: Any) -> AsyncIterator[DirectBackend]:
    """Give a backend that keeps a spare."""
    backend = DirectBackend(rig.placement, replace(rig.config, **{"spares": 1, **changes}))
    try:
        yield backend
    finally:
        await backend.close(stop=True)
        assert await rig.placement.list("kernel-spare:") == ()


async def spare_of(backend: DirectBackend, launch: Launch | None = None) -> int:
    """Wait for a spare; return its pid."""
    if launch is not None:
        backend.expect(launch)
    (view,) = await eventually(lambda: [it for it in backend.spares.views() if it.ready], "a spare")
    assert view.pid is not None
    return int(view.pid)


def only(backend: DirectBackend) -> Any:
    """Return the one spare there is."""
    (spare,) = backend.spares._spares.values()
    return spare


async def felt(rig: KernelRig, launch: Launch, handle: DirectKernel, code: str = FELT) -> Any:
    request = rig.request(launch, code)
    await handle.execute(request, no_news)
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


async def test_nothing_but_its_age_tells_it_from_a_fresh_start(short_tmp: Path) -> None:
    async with kernel_house(short_tmp) as rig, backend_of(rig) as backend:
        found = []
        for name, method in (("a-000000", StartMethod.SPAWN), ("b-000000", StartMethod.SPARE)):
            launch = different(rig, name)
            handle = await rig.start(backend, launch)
            assert rig.started[-1].method is method
            assert handle.child.unit == f"kernel:{name}"
            found.append(await felt(rig, launch, handle))
            pid = await spare_of(backend)
            where = json.dumps({launch.cwd: "CWD", str(handle.connection_file): "FILE", launch.instance: "KEY"})
            text = json.dumps(found[-1])
            for each, word in {**json.loads(where), name: "NAME"}.items():
                text = text.replace(each, word)
            found[-1] = json.loads(text)
        found[1]["modules"].remove("px_inside.spare")
        assert found[1] == found[0]
        assert {it.unit for it in await rig.placement.list()} == {"kernel:a-000000", "kernel:b-000000", rig_unit(rig)}
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
        assert b"PX_MINE" not in Path(f"/proc/{pid}/environ").read_bytes()


def rig_unit(rig: KernelRig) -> str:
    """Return the unit of the spare, by the name of its log."""
    (folder,) = Path(rig.placement.log_dir, "kernel-spare").iterdir()
    return f"kernel-spare:{folder.name}"


async def test_what_acts_at_the_start_of_python_gets_a_start(short_tmp: Path) -> None:
    async with kernel_house(short_tmp) as rig, backend_of(rig) as backend:
        await spare_of(backend, rig.launch())
        env = {**rig.launch().env, "PYTHONHASHSEED": "7"}
        launch = rig.launch(env=env)
        handle = await rig.start(backend, launch)
        assert rig.started[-1].method is StartMethod.SPAWN
        asked = (sys.executable, "-c", HASH)
        told = await asyncio.to_thread(subprocess.run, asked, capture_output=True, check=True, env=env)
        assert await felt(rig, launch, handle, HASH) == int(told.stdout)


@pytest.mark.parametrize("trouble", ["deaf", "dies", "old", "changed"])
async def test_one_that_will_not_do_is_replaced_by_a_fresh_start(
    trouble: str, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kernel_house(short_tmp) as rig, backend_of(rig) as backend:
        library = rig.folder / "library"
        library.mkdir()
        launch = rig.launch(env={**rig.launch().env, "PYTHONPATH": str(library)})
        pid = await spare_of(backend, launch)
        match trouble:
            case "deaf":
                os.kill(pid, signal.SIGSTOP)
                monkeypatch.setattr(spare_pool, "ANSWER_SECONDS", 0.5)
            case "dies":
                os.kill(pid, signal.SIGSTOP)  # so that its death is not known before it gets the order
                only(backend)._close()
            case "old":
                (library / "sitecustomize.py").touch()
            case "changed":
                library.rename(rig.folder / "before")
                library.mkdir()
        with capture_logs() as logs:
            await rig.start(backend, launch)
        assert rig.started[-1].method is StartMethod.SPAWN
        assert [it["log_level"] for it in logs if it["event"] == "kernel_spare_not_taken"] == ["warning"]
        await eventually(lambda: not Path(f"/proc/{pid}").exists(), "the end of the unfit one")


async def test_one_that_nobody_takes_is_ended_and_settings_end_it_too(short_tmp: Path) -> None:
    async with kernel_house(short_tmp) as rig, backend_of(rig, spare_idle_seconds=0.01) as backend:
        backend.expect(rig.launch())
        pid = (await eventually(lambda: [it.pid for it in backend.spares.views() if it.pid], "a spare"))[0]
        await eventually(lambda: not backend.spares.views(), "its end")
        await eventually(lambda: not Path(f"/proc/{pid}").exists(), "the end of its process")
        backend.reconfigure(replace(rig.config, spares=1))
        await spare_of(backend, rig.launch())
        backend.reconfigure(replace(rig.config, spares=0))
        await eventually(lambda: not backend.spares.views(), "its end")
        backend.expect(rig.launch())
        assert backend.spares.views() == ()


async def test_with_its_control_plane_a_spare_ends_and_the_kernel_it_became_lives_on(short_tmp: Path) -> None:
    async with kernel_house(short_tmp) as rig:
        backend = DirectBackend(rig.placement, replace(rig.config, spares=1))
        await spare_of(backend, rig.launch())
        launch = rig.launch()
        handle = await rig.start(backend, launch)
        assert rig.started[-1].method is StartMethod.SPARE
        await handle.execute(rig.request(launch, "kept = 42"), no_news)
        pid = await spare_of(backend)
        for task in backend.spares._tasks:
            task.cancel()
        only(backend)._close()
        await rig.replace()
        await eventually(lambda: not Path(f"/proc/{pid}").exists(), "the end of the spare")
        again = await rig.attach(DirectBackend(rig.placement, rig.config), launch)
        assert await felt(rig, launch, again, "print(kept)") == 42


async def test_a_session_says_how_it_began_and_a_spare_is_no_session(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "FIRST_SECONDS", 0.0)
    async with room_house(short_tmp, spares=1) as house:
        first = await house.run("1 + 1")
        assert [(it.start_method, it.key.name) for it in house.room.snapshot()] == [("spawn", "default")]
        await eventually(lambda: [it for it in house.room.spares() if it.ready], "a spare")
        second = await house.run("1 + 1", session="other")
        assert second.cold_start_ms is not None
        seen = house.room.snapshot(second.session_id)[0]
        assert (seen.start_method, seen.cold_start_ms) == ("spare", second.cold_start_ms)
        await house.replace()
        assert house.room.snapshot(second.session_id)[0].start_method == "spare"
        assert house.room.snapshot(first.session_id)[0].start_method == "spawn"
        (view,) = await eventually(lambda: [it for it in house.room.spares() if it.ready], "one for the last one used")
        assert view == SpareView(house.config.python or "", view.pid, ready=True)
        async with asyncio.timeout(60):
            while [it.identity.pid for it in await house.rig.placement.list("kernel-spare:")] != [view.pid]:
                await asyncio.sleep(0.01)  # the one of the earlier control plane is released
