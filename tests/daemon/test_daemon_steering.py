"""What the API may ask of the daemon: reload, restart, stop, settings; and what is kept of settings that worked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisord_py.api.context import DaemonFacts, RestartScope
from supervisord_py.daemon import last_good
from supervisord_py.daemon.problems import SettingsError
from supervisord_py.daemon.settings import Loaded, load_settings
from supervisord_py.daemon.sources import Sources
from supervisord_py.daemon.steering import Steering
from supervisord_py.daemon.wishes import Wish, Wishes

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
        '[tools]\nwarm_keep_max = 1\nlisten_backlog = 9\n[logs]\nspill_bytes = 5000\n[daemon]\nlog_level = "debug"\n'
    )
    report = await scene.steering.reload()
    assert report.changed == ("daemon.log_level", "logs.spill_bytes", "tools.warm_keep_max", "tools.listen_backlog")
    assert report.needs_restart == (
        "logs.spill_bytes needs `pxctl daemon restart --all`",
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


async def test_settings_that_worked_are_recalled(scene: Scene, tmp_path: Path) -> None:
    assert last_good.recall(tmp_path) is None
    scene.file.write_text('[tools]\npaths = ["/a", "b"]\nwarm_keep_max = 9\nmemory_budget_mb = 3\n')
    await scene.steering.reload()
    recalled = last_good.recall(tmp_path)
    assert recalled is not None
    assert recalled.settings == scene.steering.loaded.settings
    assert {str(each.origin) for each in recalled.effective} == {str(tmp_path / last_good.NAME)}
    assert (tmp_path / last_good.NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"tools": 5}', '{"tools": {"gone": 1}}', '{"tools": {"queue_max": "x"}}']
)
def test_what_cannot_be_recalled_is_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / last_good.NAME).write_text(text)
    assert last_good.recall(tmp_path) is None


def test_a_disk_that_refuses_costs_only_the_fall_back(scene: Scene, tmp_path: Path) -> None:
    last_good.keep(tmp_path / "none", scene.steering.loaded)
    assert last_good.recall(tmp_path / "none") is None
