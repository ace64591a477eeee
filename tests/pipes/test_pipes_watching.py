"""When a file that changes is whole, and what the two watches see of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisord_py.pipes.watching import (
    FolderWatch,
    InotifyWatch,
    PollingWatch,
    Root,
    Watches,
    Whole,
    tells_of_changes,
)
from waiting import until

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
QUIET, OPEN = 2.0, 60.0


@pytest.mark.parametrize(
    ("story", "counts_at"),
    [
        ([(0, "arrived")], 0),
        ([(0, "closed")], 2),
        ([(0, "written"), (1, "closed")], 3),
        (
            [(0, "written"), (1, "closed"), (2, "written"), (2.5, "closed")],
            4.5,
        ),  # a writer that opens it for each piece
        ([(0, "written"), (50, "written"), (100, "closed")], 102),  # a slow copy
        ([(0, "written")], 60),  # a log
        ([(0, "touched")], 2),
        # a copy that sets the time before its end
        ([(0, "written"), (1, "touched"), (9, "closed")], 11),
        ([(0, "closed"), (1, "touched")], 3),
        ([(0, "closed"), (1, "arrived")], 1),
        ([(0, "written"), (1, "gone")], None),
        ([(0, "closed"), (1, "gone"), (1.5, "closed")], 3.5),
    ],
)
def test_when_a_file_is_whole(story: list[tuple[float, str]], counts_at: float | None) -> None:
    whole = Whole(QUIET, OPEN)
    for at, verb in story:
        assert whole.take(at - 0.001) == []
        getattr(whole, verb)(*["x", at][: 1 + (verb != "gone")])
    assert whole.next_due == counts_at
    if counts_at is not None:
        assert [whole.take(counts_at - 0.001), whole.take(counts_at), whole.take(1e9)] == [
            [],
            ["x"],
            [],
        ]


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /home rw shared:2 - nfs4 server:/home rw
31 30 0:27 / /home/me/fast rw - tmpfs tmpfs rw
32 22 0:28 / /mnt/with\\040space rw master:3 - fuse.sshfs me@there: rw
33 22 0:29 / /media rw - fuseblk /dev/sdb1 rw
"""


def test_where_nothing_tells_of_changes() -> None:
    told = {
        "/srv/in": True,
        "/home": False,
        "/home/me/in": False,
        "/home/me/fast/in": True,
        "/homes": True,
        "/mnt/with space/x": False,
        "/media/in": True,
    }
    assert {path: tells_of_changes(path, MOUNTS) for path in told} == told
    assert tells_of_changes("/x", "")


class Watched:
    """A folder that is watched, and what was reported of it; time goes by where a test says so."""

    def __init__(self, folder: Path, make: type[FolderWatch], *, deep: bool = False) -> None:
        self.folder = folder
        self.seen: list[str] = []
        self.time = 0.0
        self.watch = make(self.seen.append, lambda: self.time)
        self.watch.start()
        self.watch.want([Root(str(folder), deep)])
        self._sentinels = 0

    def ready(self) -> None:
        """Wait until the folder is watched."""

        def is_seen() -> bool:
            place(self.folder / "ready")
            return str(self.folder / "ready") in self.seen

        until(is_seen, "the folder is watched")

    def pass_by(self, seconds: float = QUIET) -> None:
        """Have time go by, once all that has happened is known: notices come in their order."""
        self._sentinels += 1
        name = f"sentinel-{self._sentinels}"
        place(self.folder / name)
        until(lambda: self.reported(name), "all is known")
        self.time += seconds
        self.watch.wake()

    def reported(self, name: str) -> int:
        return self.seen.count(str(self.folder / name))


def place(file: Path, text: str = "x") -> None:
    """Put a whole file into its place."""
    fresh = file.parent.parent / f"{file.name}.fresh"
    fresh.write_text(text)
    fresh.replace(file)


@pytest.fixture
def watched(short_tmp: Path) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def watch(make: type[FolderWatch], *, deep: bool = False) -> Watched:
        folder = short_tmp / "in"
        folder.mkdir()
        made.append(Watched(folder, make, deep=deep))
        return made[-1]

    yield watch
    for each in made:
        each.watch.stop()
        each.watch.join(60)
        assert not each.watch.is_alive()


@on_linux
def test_a_file_that_is_written_in_pieces_counts_once(watched: Callable[..., Watched]) -> None:
    """Opened once for all pieces, or anew for each of them; and twice in a row."""
    it = watched(InotifyWatch)
    it.ready()
    for count in (1, 2):
        with (it.folder / "held").open("ab") as held:
            for _ in range(4):
                held.write(b"piece")
                held.flush()
                with (it.folder / "film").open("ab") as film:
                    film.write(b"piece")
                it.pass_by(QUIET / 4)
            assert it.reported("film") == count - 1, "it is written still"
            it.pass_by(QUIET)
            until(lambda count=count: it.reported("film") == count, "film is whole")
            it.pass_by(OPEN / 2)
            assert it.reported("held") == count - 1, "it is still open"
        it.pass_by()
        until(lambda count=count: it.reported("held") == count, "held is whole")
        assert it.reported("film") == count


@on_linux
def test_what_is_renamed_linked_touched_or_many(watched: Callable[..., Watched]) -> None:
    it = watched(InotifyWatch)
    it.ready()
    (it.folder / "old").write_text("x")
    it.pass_by()
    until(lambda: it.reported("old") == 1, "it is there")
    (it.folder / "old").touch()
    (it.folder / "temporary.part").write_text("half")
    (it.folder / "temporary.part").rename(it.folder / "final")
    os.link(it.folder / "old", it.folder / "linked")
    (it.folder / "symbolic").symlink_to("old")
    for number in range(200):
        (it.folder / f"many-{number}").write_text("x")
    (it.folder / "deleted").write_text("x")
    (it.folder / "deleted").unlink()
    until(
        lambda: {it.reported(name) for name in ("final", "linked", "symbolic")} == {1},
        "whole when they come",
    )
    it.pass_by()
    until(
        lambda: {it.reported(f"many-{number}") for number in range(200)} == {1}, "each counts once"
    )
    until(lambda: it.reported("old") == 2, "its time was set")
    os.utime(it.folder / "old", (1, 1))
    (it.folder / "old").chmod(0o600)
    it.pass_by()
    it.pass_by()
    known = [it.reported(name) for name in ("old", "temporary.part", "deleted", "final")]
    assert known == [2, 0, 0, 1], "an owner, a mode and an old time are no news"


@on_linux
def test_folders_come_go_and_come_back(watched: Callable[..., Watched], short_tmp: Path) -> None:
    """Below a root that is watched with all that it holds, and the root itself."""
    it = watched(InotifyWatch, deep=True)
    it.ready()
    (it.folder / "a" / "b").mkdir(parents=True)
    (it.folder / "a" / "b" / "made").write_text("x")
    moved = short_tmp / "c"
    moved.mkdir()
    (moved / "inside").write_text("x")
    moved.rename(it.folder / "c")
    it.pass_by()
    until(
        lambda: [it.reported("a/b/made"), it.reported("c/inside")] == [1, 1],
        "what came with its folder",
    )
    (it.folder / "c").rename(moved)
    (moved / "outside").write_text("x")
    (it.folder / "a" / "b" / "made").write_text("y")
    it.pass_by()
    until(lambda: it.reported("a/b/made") == 2, "it is still watched")
    assert not any("outside" in path for path in it.seen)
    for count in (1, 2):
        it.folder.rename(short_tmp / f"away-{count}")
        it.folder.mkdir()
        (it.folder / "again").write_text("x")

        def is_told(count: int = count) -> bool:
            it.watch.want([Root(str(it.folder), True)])
            it.time += QUIET
            return it.reported("again") == count

        until(is_told, "a folder that was made anew is watched")


def test_where_nothing_is_told_a_file_is_whole_once_it_is_quiet(
    watched: Callable[..., Watched],
) -> None:
    it = watched(PollingWatch)

    film = it.folder / "film"

    def is_noticed() -> bool:
        return str(film) in it.watch.whole.pending

    def is_watched() -> bool:
        with film.open("ab") as opened:
            opened.write(b"piece")
        return is_noticed()

    def is_whole() -> bool:
        it.time += QUIET
        return bool(it.seen)

    def is_over() -> bool:
        it.time += QUIET
        return it.watch.whole.next_due is None

    until(is_watched, "the folder is watched")
    assert it.seen == [], "it is not quiet yet"
    for text in ("another one", "and another"):
        until(is_whole, "it is whole")
        until(is_over, "nothing is left of that")
        it.seen.clear()
        place(film, text)
        until(is_noticed, "it has changed again")


def test_a_folder_that_comes_later_is_watched_and_what_it_holds_is_new(short_tmp: Path) -> None:
    seen: list[str] = []
    watches = Watches(seen.append)
    root = frozenset([Root(str(short_tmp / "later"), False)])
    try:
        watches.want(root)
        (short_tmp / "later").mkdir()
        (short_tmp / "later" / "first").write_text("x")
        watches.want(root)
        until(lambda: seen == [str(short_tmp / "later" / "first")], "its first file is told")
    finally:
        watches.stop()
