"""Where everything lies (the table of CONTRACT §1)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisord_py.daemon.paths import guard_directory, make_places, resolve_paths
from supervisord_py.errors import EXIT_PERMISSION, ForbiddenError


@pytest.fixture
def xdg(monkeypatch: pytest.MonkeyPatch, short_tmp: Path) -> Path:
    for name, folder in (("CONFIG_HOME", "c"), ("DATA_HOME", "d"), ("STATE_HOME", "s"), ("RUNTIME_DIR", "r")):
        (short_tmp / folder).mkdir(mode=0o700)
        monkeypatch.setenv(f"XDG_{name}", str(short_tmp / folder))
    return short_tmp


CONFIG, TOOLS, PIPES, LEDGER, LOGS, SOCKET, LOCK = (
    "config_file", "tools_dir", "pipes_dir", "ledger_file", "log_dir", "socket", "lock_file",
)  # fmt: skip
PLACES: list[tuple[dict[str, str], bool, dict[str, str]]] = [
    ({}, False, {
        CONFIG: "c/pxd/pxd.toml", "conf_dir": "c/pxd/conf.d", TOOLS: "d/pxd/tools", PIPES: "d/pxd/pipes",
        LEDGER: "s/pxd/pxd.db", LOGS: "s/pxd/logs", SOCKET: "r/pxd/pxd.sock", LOCK: "r/pxd/pxd.lock",
    }),
    ({"PX_HOME": "/h"}, False, {
        CONFIG: "/h/pxd.toml", "conf_dir": "/h/conf.d", TOOLS: "/h/tools", PIPES: "/h/pipes",
        LEDGER: "/h/state/pxd.db", LOGS: "/h/state/logs", SOCKET: "/h/run/pxd.sock", LOCK: "/h/run/pxd.lock",
    }),
    ({}, True, {
        CONFIG: "/etc/pxd/pxd.toml", TOOLS: "/var/lib/pxd/tools", PIPES: "/var/lib/pxd/pipes",
        LEDGER: "/var/lib/pxd/state/pxd.db", SOCKET: "/run/pxd/pxd.sock",
    }),
]  # fmt: skip


@pytest.mark.parametrize(("environ", "system", "places"), PLACES)
def test_the_places_of_the_platform_of_px_home_and_of_the_system(
    xdg: Path, environ: dict[str, str], system: bool, places: dict[str, str]
) -> None:
    paths = resolve_paths(environ, system=system)
    assert {name: getattr(paths, name) for name in places} == {name: xdg / place for name, place in places.items()}


def test_what_the_service_manager_grants_wins_and_the_first_of_a_list_counts() -> None:
    granted = {
        "RUNTIME_DIRECTORY": "/run/a:/run/b",
        "STATE_DIRECTORY": "/var/lib/a:/var/lib/b",
        "LOGS_DIRECTORY": "/var/log/a:/x",
        "CONFIGURATION_DIRECTORY": "/etc/a:/y",
    }
    for environ, system in (({"PX_HOME": "/h"}, False), ({}, True)):
        paths = resolve_paths({**granted, **environ}, system=system)
        assert paths.run_dir == Path("/run/a")
        assert paths.socket == Path("/run/a/pxd.sock")
        assert paths.ledger_file == Path("/var/lib/a/pxd.db")
        assert paths.log_dir == Path("/var/log/a")
        assert paths.config_file == Path("/etc/a/pxd.toml")


def test_the_socket_alone_may_be_moved() -> None:
    paths = resolve_paths({"PX_HOME": "/h", "PX_SOCKET": "/tmp/x.sock", "RUNTIME_DIRECTORY": "/run/a"})
    assert (paths.socket, paths.lock_file) == (Path("/tmp/x.sock"), Path("/run/a/pxd.lock"))
    assert resolve_paths({"PX_HOME": "/h", "PX_SOCKET": "/s"}, socket="/flag").socket == Path("/flag")


@pytest.mark.parametrize("which", ["run", "state"])
def test_a_symbolic_link_is_refused(which: str, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / which).symlink_to(tmp_path / "target")
    with pytest.raises(ForbiddenError, match="symbolic link") as caught:
        make_places(resolve_paths({"PX_HOME": str(tmp_path)}))
    assert str(tmp_path / which) in caught.value.detail
    assert caught.value.exit_code == EXIT_PERMISSION


def test_somebody_elses_directory_is_refused_and_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(ForbiddenError, match=rf"belongs to uid {os.getuid()}, not to uid 4242"):
        guard_directory(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
