"""Starts of kernels that do not come up: each says why and what to do, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from kernels.kernel_rig import PATIENCE, answers, eventually, kernel_house
from process.real_keeper import alive
from supervisord_py.errors import ConfigError, PxError, StartFailedError
from supervisord_py.kernels import connection_file as place
from supervisord_py.kernels.direct import DirectBackend, sweep_stale

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kernels.kernel_rig import KernelRig
    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.direct import DirectKernel
    from supervisord_py.process.model import Child


@pytest.fixture
async def rig(short_tmp: Path) -> AsyncIterator[KernelRig]:
    async with kernel_house(short_tmp) as made:
        yield made


def program(rig: KernelRig, name: str, script: str) -> str:
    """Return the path of an executable shell script."""
    path = rig.folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


async def failing(
    rig: KernelRig, launch: Launch, seconds: float = PATIENCE, until: Callable[[], object] | None = None
) -> PxError:
    """Start what does not come up, check that nothing is left, and return the error.

    Args:
        rig: Where.
        launch: What.
        seconds: How long it may take.
        until: What is to be so before it is found that it took too long.
    """

    class Late(DirectBackend):
        async def start(self, launch: Launch, child: Child | None, *, deadline: float) -> DirectKernel:
            if until is not None:
                await eventually(until)
            return await super().start(launch, child, deadline=deadline)

    rig.config = replace(rig.config, start_seconds=seconds)
    with pytest.raises(PxError) as caught:
        await rig.start(Late(rig.placement, rig.config), launch)
    await nothing_left(rig, launch)
    return caught.value


async def nothing_left(rig: KernelRig, launch: Launch) -> None:
    assert not place.folder_of(rig.config.run_dir, launch.session_id).exists()
    assert await rig.placement.attach(launch.instance) is None
    assert not any(alive(it.pid) for it in rig.started if it.pid is not None)


async def test_a_program_that_ends_before_it_answers_tells_its_last_words(rig: KernelRig) -> None:
    argv = (program(rig, "dies", "echo one >&2; echo two >&2; exit 3"), "{connection_file}")
    error = await failing(rig, rig.stock(kernelspec_argv=argv))
    assert isinstance(error, StartFailedError)
    assert "exited with code 3" in error.detail
    assert "two" in error.detail
    assert error.extra["stderr_tail"] == "one\ntwo\n"
    assert (error.extra["reason"], error.extra["code"], error.extra["signal"]) == ("early_exit", 3, None)


async def test_a_runtime_directory_that_is_too_long_is_told_with_its_bound(rig: KernelRig) -> None:
    deep = rig.folder / ("d" * 90)
    rig.config = replace(rig.config, run_dir=deep)
    error = await failing(rig, rig.launch())
    assert isinstance(error, ConfigError)
    assert str(deep) in error.detail
    assert error.hint is not None
    room = int(error.hint.split("at most ")[1].split()[0])
    fitting = Path("/" + "d" * (room - 1))
    assert len(os.fsencode(place.folder_of(fitting, rig.launch().session_id) / "s-1")) == place.SOCKET_PATH_MAX


def test_a_session_that_is_started_again_has_the_same_sockets_and_key(short_tmp: Path) -> None:
    """So that a front end's sockets find it; another session, or another runtime directory, has others."""
    first = place.make(short_tmp, "s-1", "a.1")
    (first.folder / "s-1").touch()
    place.remove(first.folder)
    second = place.make(short_tmp, "s-1", "a.2")
    third = place.make(short_tmp, "s-1", "a.3")  # a dead predecessor's folder is in the way
    assert (second.folder, second.key) == (third.folder, third.key) == (first.folder, first.key)
    assert os.listdir(third.folder) == [place.FILE]
    assert place.read(third.file).instance == "a.3"
    assert place.make(short_tmp, "s-2", "b.1").key != first.key
    assert place.make(short_tmp / "other", "s-1", "a.1").key != first.key
    secret = short_tmp / place.FOLDER / place.SECRET
    assert secret.stat().st_mode & 0o777 == 0o600
    secret.write_bytes(b"cut short")
    assert place.make(short_tmp, "s-1", "a.4").key != first.key
    assert len(secret.read_bytes()) == place.SECRET_BYTES


async def test_an_end_that_comes_late_leaves_its_replacement_alone(rig: KernelRig) -> None:
    """The folder is the session's: a second stop of the first instance must not take the second one's sockets away."""
    backend = DirectBackend(rig.placement, rig.config)
    first = await rig.start(backend, rig.launch())
    key = place.read(first.connection_file).key
    assert await first.shutdown(5.0, "replaced") == ()
    second = await rig.start(backend, rig.launch())
    assert second.connection_file == first.connection_file
    assert place.read(second.connection_file).key == key
    assert await first.shutdown(0.0, "replaced") == ()
    assert second.connection_file.exists()
    assert await answers(second, PATIENCE)
    assert await second.shutdown(5.0, "stopped") == ()
    assert not second.connection_file.parent.exists()


async def test_folders_that_nobody_owns_are_swept(rig: KernelRig) -> None:
    backend = DirectBackend(rig.placement, rig.config)
    await sweep_stale(rig.config.run_dir, ())
    launch = rig.launch()
    handle = await rig.start(backend, launch)
    place.make(rig.config.run_dir, "dead", "dead.instance")
    (rig.config.run_dir / place.FOLDER / "empty").mkdir()
    await sweep_stale(rig.config.run_dir, {launch.instance})
    ours = place.folder_of(rig.config.run_dir, launch.session_id).name
    assert sorted(os.listdir(rig.config.run_dir / place.FOLDER)) == [place.SECRET, ours]
    assert await answers(handle, PATIENCE)


async def test_a_start_that_is_given_up_leaves_nothing(rig: KernelRig) -> None:
    launch = rig.stock(kernelspec_argv=(program(rig, "hangs", "sleep 600"), "{connection_file}"))
    starting = asyncio.ensure_future(rig.start(DirectBackend(rig.placement, rig.config), launch))
    await eventually(lambda: rig.started and rig.started[0].pid, "its process")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await nothing_left(rig, launch)
