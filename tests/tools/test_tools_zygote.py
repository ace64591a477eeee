"""Tools that a zygote forks: what the second start is, when it is none, and what is said of it."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.ledger import instances
from supervisord_py.process import zygote_pool
from supervisord_py.process.pool import Pin
from tools.tool_house import ToolHouse, alive, eventually


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote_pool, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(zygote_pool, "LOOK_SECONDS", 0.0)


def add(
    house: ToolHouse, name: str = "packages", *, env: dict[str, str] | None = None, **keys: Any
) -> None:
    house.add("shapes", name, env={"FAULT": "imports", **(env or {})}, **keys)


async def again(house: ToolHouse, name: str, value: Any = None, *, method: str) -> Any:
    """Stop a tool and run it anew; its start must have been by that method."""
    await house.launcher.stop(name)
    answer = await house.ask(name, value)
    assert house.state(name).start_method == method
    return answer


async def forks(house: ToolHouse, *modules: str) -> Any:
    """Wait for a zygote that has learnt those modules; return it.

    What a run imports is told by the next connection.
    """
    for tool in house.launcher.snapshot():
        if tool.state in {"ready", "busy"}:
            _, writer = await asyncio.open_connection("127.0.0.1", tool.port)
            writer.close()

    def found() -> list[Any]:
        held = house.launcher.zygotes._zygotes.values()
        return [
            zygote
            for zygote in held
            if zygote.made_from is not None and {*modules} <= {*zygote.modules}
        ]

    return (await eventually(found, "a zygote"))[0]


def shown(pid: int) -> tuple[bytes, set[bytes]]:
    argv, env = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
    return argv, {
        re.sub(rb"^(PX_INSTANCE|NOTIFY_SOCKET)=.+", b"of its own", each)
        for each in env.split(b"\0")
    }


async def test_the_second_start_is_forked_and_is_like_the_first(house: ToolHouse) -> None:
    add(house)
    first = await house.ask("packages")
    seen = shown(first["pid"])
    assert house.state("packages").start_method == "spawn"
    zygote = await forks(house, "numpy", "plistlib")
    add(house, "shapes", env={"FAULT": ""})
    await house.ask("shapes")
    seconds = dict(house.launcher.import_seconds())
    assert seconds["packages"]["numpy"] > 0.0
    assert "numpy" not in seconds.get("shapes", {}), (
        "a tool is charged only with what it imports itself"
    )
    second = await again(house, "packages", method="zygote")
    assert first.keys() == second.keys()
    file = str(house.tools / "packages" / "main.py")
    assert (second["solved"], second["main"], second["file"]) == ([1.0, 1.0], "__main__", file)
    shows = shown(house.state("packages").pid)
    assert (second["workers_cwd"], second["names"], shows) == (
        first["workers_cwd"],
        first["names"],
        seen,
    )
    third = await again(house, "packages", method="zygote")
    said = [set(map(str, each["random"])) for each in (first, second, third)]
    assert len(set.union(*said)) == sum(map(len, said)), "siblings are not each other's copies"
    assert await forks(house, "numpy") is zygote, "what it has learnt is enough"
    told = [event.facts["start_method"] for event in await house.said("ready", "tool:packages")]
    (row,) = await instances.latest(house.ledger, "tool:packages")
    assert (told, row.start_method) == (["spawn", "zygote", "zygote"], "zygote")
    await house.noted("packages")
    await house.new_control_plane()
    assert (await house.ask("packages"))["pid"] == third["pid"]
    assert house.state("packages").start_method == "zygote"
    await eventually(lambda: not alive(zygote.pid), "the end of the earlier control plane's zygote")


async def test_a_zygote_is_replaced_after_so_many_forks_and_ended_above_its_memory(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(house)
    await house.ask("packages")
    first = await forks(house, "numpy", "plistlib")
    monkeypatch.setattr(zygote_pool, "FORKS_MAX", 1)
    monkeypatch.setattr(zygote_pool, "MAX_RSS_BYTES", 12 << 20)
    await again(house, "packages", method="zygote")
    await again(house, "packages", method="spawn")
    await eventually(lambda: not alive(first.pid), "the end of the first")
    why = "it ended while it imported: memory_limit"
    await eventually(
        lambda: why in "".join(house.state("packages").warnings), "the end of the second"
    )
    await again(house, "packages", method="spawn")


async def test_what_is_pinned_is_forked_by_the_next_control_plane_from_its_first_start_on(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pinned", "passing"):
        add(house, name, env={"SAID": name})
        await house.ask(name)
        await forks(house, "numpy", "plistlib")
        await house.launcher.stop(name)
    await house.launcher.pin("pinned", Pin.LRU)
    read = set[str]()
    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, *_: read.add(os.readlink(f"/proc/self/fd/{fd}"))
    )
    await house.new_control_plane()
    await forks(house, "numpy", "plistlib")
    for part in ("/numpy/__pycache__/__init__.", "/numpy/_core/_multiarray_umath.", "/numpy.libs/"):
        await eventually(
            lambda part=part: any(part in each for each in read),
            "files of what is not pinned, in memory",
        )
    assert len(house.launcher.zygotes.views()) == 1, (
        "of what is not pinned there is none before its first start"
    )
    await house.ask("pinned")
    assert house.state("pinned").start_method == "zygote"


async def test_a_file_of_the_tools_that_hides_a_package_is_found(house: ToolHouse) -> None:
    add(house)
    await house.ask("packages")
    await forks(house, "numpy", "plistlib")
    (house.tools / "packages" / "plistlib.py").write_text("__name__ = ''\n")
    assert (await again(house, "packages", method="zygote"))["file"] == "", (
        "it was started afresh, in its own place"
    )
    assert (await again(house, "packages", method="zygote"))["file"] == ""


def library(house: ToolHouse) -> Path:
    """Make a folder of packages, one of which leaves a thread where it is imported."""
    made = house.rig.dir / "site-packages"
    made.mkdir()
    thread = "threading.Thread(target=threading.Event().wait, daemon=True)"
    (made / "restless.py").write_text(f"import threading\n{thread}.start()\n")
    (made / "deadly.py").write_text("import os\nos._exit(3)\n")
    (made / "sound.py").write_text("import os\nos.environ['BY_IMPORT'] = ''\n")
    return made


async def test_preload_names_what_is_imported_or_nothing_and_a_refusal_is_told(
    house: ToolHouse,
) -> None:
    add(house, "never", preload=False)
    add(house, "named", preload=["plistlib"], env={"A": "1"})
    env, house.launcher.zygotes._most = {"PYTHONPATH": str(library(house))}, lambda: 1
    add(house, "refused", preload=["restless"], env=env)
    add(house, "dead", preload=["deadly"], env={**env, "A": "2"})
    reasons = {
        "refused": "restless: its import changes the threads that run",
        "dead": "it ended while it imported: exit code 3",
    }
    for name, why in reasons.items():
        await house.ask(name)
        await eventually(
            lambda name=name, why=why: why in "".join(house.state(name).warnings), "the warning"
        )
    for name in ("never", "named"):
        await house.ask(name)
    assert (await forks(house, "plistlib")).modules == ("plistlib",)
    assert all(house.state(name).warnings for name in reasons), (
        "what refuses has no process, and takes no place"
    )
    for name, method in (("never", "spawn"), ("named", "zygote"), ("refused", "spawn")):
        await again(house, name, method=method)


async def test_a_package_that_may_not_be_imported_ahead_ends_what_is(house: ToolHouse) -> None:
    env = {"PYTHONPATH": str(library(house))}
    add(house, env=env, preload=["sound", "restless", "plistlib"])
    await house.ask("packages")
    why = "without the imports from restless: its import changes the threads that run"
    await eventually(lambda: why in "".join(house.state("packages").warnings), "the warning")
    for _ in range(2):
        assert (await forks(house, "sound")).modules == ("sound",)
        await again(house, "packages", method="zygote")


async def test_a_package_that_is_edited_in_place_is_imported_anew(house: ToolHouse) -> None:
    place = library(house)
    add(house, preload=["sound"], env={"PYTHONPATH": str(place)})
    await house.ask("packages")
    await forks(house, "sound")
    assert "BY_IMPORT" in (await again(house, "packages", method="zygote"))["names"]
    (place / "sound.py").write_text("edited = 1\n")
    await again(house, "packages", method="spawn")


async def test_what_requests_import_is_learnt_of_a_server_that_accepts_by_itself(
    house: ToolHouse,
) -> None:
    house.add("servers", env={"SERVER": "uvloop"})
    await house.ask("servers")
    await forks(house, "starlette.applications", "plistlib")
    await again(house, "servers", method="zygote")
