"""Settings and paths become the plain values of the rooms below."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisord_py.api.context import TcpAccess
from supervisord_py.daemon import boot, wiring
from supervisord_py.daemon.paths import resolve_paths
from supervisord_py.daemon.schema import KEYS, Settings
from supervisord_py.daemon.settings import load_settings
from supervisord_py.daemon.sources import Sources
from supervisord_py.tools.config import PoolLimits, ToolDefaults

if TYPE_CHECKING:
    from supervisord_py.daemon.settings import Loaded

PATHS = resolve_paths({"PX_HOME": "/h"})


def settings(**sections: dict[str, object]) -> Settings:
    return Settings.model_validate(sections)


def loaded(*flags: str) -> Loaded:
    return load_settings(Sources(Path("/none"), Path("/none"), named=False, environ={}, flags=flags))


def test_defaults_of_settings_and_of_the_rooms_agree() -> None:
    config = wiring.tools_config(Settings(), PATHS)
    assert config.defaults == ToolDefaults()
    assert config.pool == PoolLimits()
    plain = type(config)(data_dir=config.data_dir, run_dir=config.run_dir)
    assert config == plain


def test_every_tools_setting_arrives() -> None:
    changed = settings(tools={"warm_keep_max": 2, "memory_budget_mb": 7, "python": "/p", "env_allow": ("A",)})
    config = wiring.tools_config(changed, PATHS)
    assert (config.pool.warm_keep_max, config.pool.memory_budget_mb) == (2, 7)
    assert (config.defaults.python, config.defaults.env_allow) == ("/p", ("A",))
    assert config.run_dir == PATHS.run_dir


def test_folders_of_tools_are_first_ours_then_theirs_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    more = settings(tools={"paths": ("/a", "rel", "~/t", "/h/tools", "/a")})
    assert wiring.tool_folders(more, PATHS) == (
        Path("/h/tools"),
        Path("/a"),
        Path("/h/rel"),
        Path("/home/me/t"),
    )


def test_the_api_is_told_its_limits() -> None:
    changed = settings(tools={"max_body_bytes": 5}, api={"drain_seconds": 7, "stream_heartbeat_seconds": 3})
    config = wiring.api_config(changed, PATHS, TcpAccess("t" * 20, 1))
    assert (config.max_body_bytes, config.drain_seconds, config.stream_heartbeat_seconds) == (5, 7, 3)
    assert (config.examples_dir / "compound-interest").parent == wiring.EXAMPLES
    assert "tttt" not in repr(config)


def test_retention_is_counted_in_days() -> None:
    limits = wiring.retention_limits(settings(ledger={"keep_days": 2}))
    tables = (limits.events, limits.runs, limits.instances, limits.kernel_cells, limits.kernel_sessions)
    assert {each.age_seconds for each in tables} == {172_800}


def test_each_key_says_what_puts_it_in_force() -> None:
    assert wiring.restart_needed("tools.warm_keep_max") is None
    assert wiring.restart_needed("daemon.log_level") is None
    assert wiring.restart_needed("daemon.stop_seconds") == "pxctl daemon restart --all"
    assert wiring.restart_needed("logs.total_bytes") == "pxctl daemon restart --all"
    assert wiring.restart_needed("api.listen") == "pxctl daemon restart"
    assert wiring.restart_needed("tools.max_body_bytes") == "pxctl daemon restart"
    assert {f"{section}.{name}" for section, name in KEYS} >= wiring._READ_ONCE


def test_changes_are_found_by_value() -> None:
    old, new = loaded(), loaded("tools.queue_max=3", "tools.concurrency=16")
    assert wiring.changed_keys(old, new) == ("tools.queue_max",)


def test_views_are_json() -> None:
    views = wiring.setting_views(loaded("tools.paths=/a:/b"))
    assert json.loads(json.dumps({each.key: each.value for each in views}))["tools.paths"] == ["/a", "/b"]


# -- the boot document -------------------------------------------------------------------------------------------


def test_the_daemons_id_follows_the_real_state_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert boot.daemon_id(tmp_path / "link") == boot.daemon_id(tmp_path / "real")
    assert boot.daemon_id(tmp_path / "other") != boot.daemon_id(tmp_path / "real")
    assert len(boot.daemon_id(tmp_path)) == 8
    assert int(boot.daemon_id(tmp_path), 16) >= 0


def test_the_boot_document_says_all_that_the_keeper_needs(tmp_path: Path) -> None:
    flags = boot.Flags("c.toml", system=False, socket="s", settings=("a.b=1",))
    document = boot.boot_document(PATHS, Settings(), flags, boot.Held(7, 8))
    assert document["daemon_id"] == boot.daemon_id(PATHS.state_dir)
    assert (document["run_dir"], document["state_dir"], document["log_dir"]) == ("/h/run", "/h/state", "/h/state/logs")
    assert (document["listen_fd"], document["lock_fd"], document["socket_owned"]) == (7, 8, True)
    here = os.getcwd()
    words = ["--config", f"{here}/c.toml", "--socket", f"{here}/s", "--set", "a.b=1"]
    python = [sys.executable, "-P", "-m"]
    fds = ["--channel-fd", "3", "--listen-fd", "4", "--lock-fd", "5"]
    assert document["control_argv"] == [*python, "supervisord_py.daemon.control", *fds, *words]
    assert document["pxd_argv"] == [*python, "supervisord_py", "--foreground", *words]
    assert document["log_segment_bytes"] == 8 * 1024 * 1024
    assert document["watchdog_seconds"] == 10.0


def test_a_stop_is_given_more_time_than_the_tools_have() -> None:
    slow = settings(tools={"stop_timeout_seconds": 60})
    document = boot.boot_document(PATHS, slow, boot.Flags(), boot.Held(7, 8))
    assert document["stop_seconds"] == 60 + boot.STOP_MARGIN_SECONDS
    assert boot.boot_document(PATHS, Settings(), boot.Flags(), boot.Held(7, 8))["stop_seconds"] == 10.0


@pytest.mark.parametrize("memfd", [True, False])
def test_the_document_can_be_read_from_an_inherited_descriptor(monkeypatch: pytest.MonkeyPatch, *, memfd: bool) -> None:
    if not memfd:
        monkeypatch.delattr(os, "memfd_create")
    fd = boot.boot_fd({"a": [1, "ü"]})
    assert os.get_inheritable(fd)
    with open(fd, "rb") as file:
        assert json.load(file) == {"a": [1, "ü"]}


def test_the_keeper_is_started_without_anything_of_the_user() -> None:
    argv = boot.keeper_argv(9, "--sweep")
    assert argv[:3] == [sys.executable, "-I", "-S"]
    assert argv[4:] == ["--sweep", "--boot-fd", "9"]
    assert Path(argv[3]).is_file()
