"""Files that are watched: nothing is lost while what is watched becomes another, and nothing is told twice."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
from typing import TYPE_CHECKING

import structlog

from supervisord_py.pipes.declaring.announcements import announced
from supervisord_py.pipes.running import file_listener, file_watch
from supervisord_py.pipes.running.file_listener import FileChange, FileListener, Root
from supervisord_py.pipes.running.file_watch import FileWatch
from supervisord_py.process.clock import file_time

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Iterable, Iterator
    from pathlib import Path

    import pytest
    from watchfiles.main import FileChange as FileTold

PATIENCE = 60.0


class Watched:
    """A watch, what it is to watch, and what it told."""

    def __init__(self, *folders: Path) -> None:
        self.roots: set[Root] = {Root(str(each), deep=False) for each in folders}
        self.told: list[str] = []
        self.watch = FileWatch(lambda: frozenset(self.roots), self.on_change)
        self._more = asyncio.Event()

    async def on_change(self, change: FileChange) -> None:
        self.told.append(os.path.basename(change.path))
        self._more.set()

    async def until(self, names: set[str]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not names <= set(self.told):
                self._more.clear()
                await self._more.wait()


@contextlib.asynccontextmanager
async def watching(*folders: Path, also: str = "") -> AsyncIterator[Watched]:
    """Watch folders; somebody listens, and has told `also`, too."""
    watched = Watched(*folders)
    for each in folders:
        each.mkdir(exist_ok=True)
    watched.watch.look()
    running = asyncio.create_task(watched.watch.run())
    try:
        for each in folders:  # whoever listens has told of it
            (each / f"first-{each.name}").touch()
        await watched.until({*(f"first-{each.name}" for each in folders), *filter(None, [also])})
        watched.told.clear()
        yield watched
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_nothing_is_lost_or_told_twice_while_other_folders_come_and_go(tmp_path: Path) -> None:
    other = Root(str(tmp_path), deep=False)
    async with watching(tmp_path / "in") as it:
        names = {f"f{at}" for at in range(60)}
        for at in range(60):
            if at % 10 == 0:
                it.roots ^= {other, Root(str(tmp_path / "in"), deep=True)}
                it.watch.look()
            (tmp_path / "in" / f"f{at}").touch()
            await asyncio.sleep(0.01)
        await it.until(names)
        assert sorted(each for each in it.told if each in names) == sorted(names)


async def test_what_changes_before_somebody_listens_is_told_and_what_lay_there_is_not(tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    (new / "old").touch()
    os.utime(new / "old", (1, 1))
    while file_time() <= (new / "old").stat().st_ctime_ns:
        await asyncio.sleep(0.001)
    async with watching(tmp_path / "in") as it:
        it.roots.add(Root(str(new), deep=True))
        it.watch.look()
        (new / "at-once").touch()
        (tmp_path / "moved").touch()
        os.utime(tmp_path / "moved", (1, 1))
        (tmp_path / "moved").rename(new / "moved")
        await it.until({"at-once", "moved"})
        (new / "later").touch()
        await it.until({"later"})
        assert sorted(it.told) == ["at-once", "later", "moved"]


async def test_what_changes_before_the_watch_hears_that_it_is_named_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads the names sees the new one before the watch is told of it; its own looks do not begin anything."""
    monkeypatch.setattr(file_watch, "LOOK_SECONDS", 0.01)
    new = tmp_path / "new"
    new.mkdir()
    looks = itertools.count()
    async with watching(tmp_path / "in") as it:
        present = file_watch._present

        def looked(roots: frozenset[Root]) -> frozenset[Root]:
            next(looks)
            return present(roots)

        monkeypatch.setattr(file_watch, "_present", looked)
        named_at = file_time()
        it.roots.add(Root(str(new), deep=False))
        (new / "meanwhile").touch()
        before = next(looks)
        async with asyncio.timeout(PATIENCE):
            while next(looks) < before + 20:
                await asyncio.sleep(0.01)
        it.watch.look(named_at)
        await it.until({"meanwhile"})


async def test_all_that_a_folder_holds_is_new_when_it_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "LOOK_SECONDS", 0.02)
    late = Root(str(tmp_path / "late"), deep=True)
    async with watching(tmp_path / "in") as it:
        it.roots.add(late)
        it.watch.look()
        for name in ("one", "two"):
            below = tmp_path / name / "below"
            below.mkdir(parents=True)
            (below / name).touch()
            (tmp_path / name).rename(late.path)
            await it.until({name})
            await asyncio.to_thread(shutil.rmtree, late.path)
            async with asyncio.timeout(PATIENCE):
                while late in it.watch._heard():
                    await asyncio.sleep(0.005)


async def test_a_watch_that_failed_or_died_is_begun_anew_and_what_it_missed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "LOOK_SECONDS", 0.02)
    calls = itertools.count()

    def failing(folders: Iterable[str], ending: threading.Event, *, deep: bool) -> Iterator[set[FileTold]]:
        """Fail at first; then after a quiet round, with something unheard; then not."""
        at = next(calls)
        if at == 1:
            yield set()
            (tmp_path / "in" / "unheard").touch()
        if at < 2:
            raise OSError(28, "no more watches")
        yield from announced(folders, ending, deep=deep)

    monkeypatch.setattr(file_listener, "announced", failing)
    with structlog.testing.capture_logs() as logs:
        async with watching(tmp_path / "in", also="unheard") as it:
            assert it.told == []
    assert [each["event"] for each in logs] == ["files_not_watched"] * 2


async def test_a_listener_that_is_relieved_tells_what_it_heard_before(tmp_path: Path) -> None:
    told: list[str] = []
    listener = FileListener(
        frozenset({Root(str(tmp_path), deep=False)}), lambda it: told.append(os.path.basename(it.path)), deep=False
    )
    assert await listener.begin()
    (tmp_path / "x").touch()
    await listener.finish()
    await asyncio.sleep(0)
    assert told == ["x"]
    assert not listener.is_alive
