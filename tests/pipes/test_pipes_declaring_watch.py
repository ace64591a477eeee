"""Changes of real files are heard of: announced by the system, and found by looking where nobody announces."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from typing import TYPE_CHECKING

import pytest
import watchfiles

from pipe_texts import LIMIT, write_folder
from supervisord_py.pipes.declaring.catalog import ChangeKind, PipeCatalog
from supervisord_py.pipes.declaring.watch import watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


NEVER = 3600.0
"""A look so rare that what is heard was announced."""
BOUND = 60.0


class Heard:
    """What a watch said, waited for with a bound."""

    def __init__(self, catalog: PipeCatalog) -> None:
        self.catalog = catalog
        self.changes: list[tuple[ChangeKind, str]] = []
        self.sentences: list[str] = []
        self._more = asyncio.Event()

    async def refresh(self) -> None:
        changes = await asyncio.to_thread(self.catalog.refresh)
        self.changes += [(each.kind, each.name) for each in changes]
        self._more.set()

    def told(self, sentence: str) -> None:
        self.sentences.append(sentence)
        self._more.set()

    async def until(self, kind: ChangeKind, name: str) -> None:
        async with asyncio.timeout(BOUND):
            while (kind, name) not in self.changes:
                self._more.clear()
                await self._more.wait()


@contextlib.asynccontextmanager
async def watching(pipes_dir: Path, look_seconds: float, wake: asyncio.Event | None = None) -> AsyncIterator[Heard]:
    catalog = PipeCatalog(pipes_dir, LIMIT)
    heard = Heard(catalog)
    task = asyncio.create_task(watch(catalog, heard.refresh, look_seconds, told=heard.told, wake=wake))
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not [each for each in threading.enumerate() if each.name == "pipe announcements"]


async def test_edits_new_and_deleted_folders_are_announced(tmp_path: Path) -> None:
    write_folder(tmp_path, "a")
    async with watching(tmp_path, NEVER) as heard:
        await heard.until(ChangeKind.ADDED, "a")
        write_folder(tmp_path, "a", "timeout: 5m")
        await heard.until(ChangeKind.CHANGED, "a")
        write_folder(tmp_path, "b")
        await heard.until(ChangeKind.ADDED, "b")
        (tmp_path / "new").write_text((tmp_path / "b" / "pipe.md").read_text() + "more")
        (tmp_path / "new").rename(tmp_path / "b" / "pipe.md")
        await heard.until(ChangeKind.CHANGED, "b")
        shutil.rmtree(tmp_path / "b")
        await heard.until(ChangeKind.REMOVED, "b")
    assert heard.sentences == []


async def test_a_links_target_is_found_by_looking(tmp_path: Path) -> None:
    kept = write_folder(tmp_path / "dotfiles", "a")
    (tmp_path / "pipes" / "a").mkdir(parents=True)
    (tmp_path / "pipes" / "a" / "pipe.md").symlink_to(kept / "pipe.md")
    async with watching(tmp_path / "pipes", 0.05) as heard:
        await heard.until(ChangeKind.ADDED, "a")
        write_folder(tmp_path / "dotfiles", "a", "timeout: 5m")
        await heard.until(ChangeKind.CHANGED, "a")


async def test_without_announcements_a_sentence_says_so_and_looks_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_paths: str, **_options: object) -> None:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(watchfiles, "watch", full)
    async with watching(tmp_path, 0.05) as heard:
        write_folder(tmp_path, "a")
        await heard.until(ChangeKind.ADDED, "a")
    assert heard.sentences
    assert "looked for, not announced" in heard.sentences[0]
    assert "limit reached" in heard.sentences[0]


async def test_a_pipes_directory_may_come_later_and_a_wake_looks_at_once(tmp_path: Path) -> None:
    wake = asyncio.Event()
    async with watching(tmp_path / "pipes", NEVER, wake) as heard:
        await asyncio.sleep(0)
        write_folder(tmp_path / "pipes", "a")
        wake.set()
        await heard.until(ChangeKind.ADDED, "a")


async def test_what_the_listener_raises_ends_the_watch(tmp_path: Path) -> None:
    write_folder(tmp_path, "a")

    async def broken() -> None:
        raise LookupError("no room")

    with pytest.raises(LookupError, match="no room"):
        async with asyncio.timeout(BOUND):
            await watch(PipeCatalog(tmp_path, LIMIT), broken, NEVER)
