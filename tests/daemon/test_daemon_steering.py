"""What the API may ask of the daemon: reload, restart, stop, settings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from supervisord_py.api.context import DaemonFacts, RestartScope
from supervisord_py.daemon.settings import Loaded, load_settings
from supervisord_py.daemon.sources import SettingsError, Sources
from supervisord_py.daemon.steering import Steering, Wish, Wishes

if TYPE_CHECKING:
    from pathlib import Path

FACTS = DaemonFacts("0", "0123abcd", "/s", 1, 0.0)


class Scene:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "pxd.toml"
        self.run_dir = folder
        self.applied: list[Loaded] = []
        self.wishes = Wishes()
        self.steering = Steering(
            FACTS, self.read(), wishes=self.wishes, read=self.read, apply=self.apply, run_dir=folder
        )

    def read(self) -> Loaded:
        return load_settings(Sources(self.file, self.file.parent / "conf.d", named=False, environ={}))

    async def apply(self, loaded: Loaded) -> None:
        self.applied.append(loaded)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_a_reload_applies_and_says_what_changed_and_what_needs_more(scene: Scene) -> None:
    scene.file.write_text(
        '[tools]\nwarm_keep_max = 1\nlisten_backlog = 9\n[logs]\nsegment_bytes = 99999\n[daemon]\nlog_level = "debug"\n'
    )
    report = await scene.steering.reload()
    assert report.changed == ("daemon.log_level", "logs.segment_bytes", "tools.warm_keep_max", "tools.listen_backlog")
    assert report.needs_restart == (
        "logs.segment_bytes needs `pxctl daemon restart --all`",
        "tools.listen_backlog needs `pxctl daemon restart`",
    )
    assert scene.applied[0].settings.tools.warm_keep_max == 1
    view = {each.key: (each.value, each.origin) for each in scene.steering.settings()}
    assert view["tools.warm_keep_max"] == (1, f"{scene.file}:2")
    assert view["tools.paths"] == ([], "default")


async def test_a_broken_reload_keeps_the_last_good_and_is_seen_until_it_is_repaired(scene: Scene) -> None:
    scene.file.write_text("[tools]\nwarm_keep_max = 2\n")
    await scene.steering.reload()
    scene.file.write_text("[tools]\nwarm_keep_mux = 1\n")
    with pytest.raises(SettingsError) as caught:
        await scene.steering.reload()
    told = caught.value.problem()
    assert (told["status"], told["exit_code"], told["hint"]) == (422, 2, "pxctl config check")
    assert caught.value.exit_code == 78, "what pxd itself ends with"
    assert len(scene.applied) == 1
    assert scene.steering.loaded.settings.tools.warm_keep_max == 2
    (degraded,) = scene.steering.degradations()
    assert degraded.part == "config"
    assert "warm_keep_mux" in degraded.detail
    scene.file.write_text("")
    await scene.steering.reload()
    assert scene.steering.degradations() == ()


async def test_a_restart_that_would_not_come_up_again_is_refused(scene: Scene) -> None:
    scene.file.write_text("[")
    for scope in RestartScope:
        with pytest.raises(SettingsError):
            await scene.steering.restart(scope)
    assert scene.wishes.strongest is Wish.NONE
    assert not scene.steering.stopping


@pytest.mark.parametrize(
    ("scope", "wish", "stopping"),
    [(RestartScope.CONTROL, Wish.REPLACE, False), (RestartScope.ALL, Wish.RESTART_ALL, True)],
)
async def test_restarts_are_wishes(scene: Scene, scope: RestartScope, wish: Wish, *, stopping: bool) -> None:
    await scene.steering.restart(scope)
    assert scene.wishes.strongest is wish
    assert scene.steering.stopping is stopping


async def test_stop_is_a_wish_even_with_broken_settings(scene: Scene) -> None:
    scene.file.write_text("[")
    await scene.steering.stop()
    assert scene.wishes.strongest is Wish.STOP
    assert scene.steering.stopping
    assert scene.steering.facts() is FACTS


def test_a_later_word_about_a_part_replaces_the_earlier(scene: Scene) -> None:
    scene.steering.degrade("ledger", "one", "df")
    scene.steering.degrade("ledger", "two", "df")
    assert [each.detail for each in scene.steering.degradations()] == ["two"]
    scene.steering.recover("ledger")
    scene.steering.recover("ledger")
    assert scene.steering.degradations() == ()


async def test_who_waits_hears_the_first_wish_and_then_only_stronger_ones() -> None:
    wishes = Wishes()
    first = asyncio.create_task(wishes.stronger_than(Wish.NONE))
    second = asyncio.create_task(wishes.stronger_than(Wish.STOP))
    await asyncio.sleep(0)
    wishes.make(Wish.STOP)
    assert await first is Wish.STOP
    await asyncio.sleep(0)
    assert not second.done()
    wishes.make(Wish.REPLACE)
    assert wishes.strongest is Wish.STOP, "a weaker wish is forgotten"
    wishes.make(Wish.KEEPER_LOST)
    assert await second is Wish.KEEPER_LOST
    assert await wishes.stronger_than(Wish.REPLACE) is Wish.KEEPER_LOST
