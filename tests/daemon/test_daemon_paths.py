"""Where everything lies (the table of CONTRACT §1)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisord_py.daemon.paths import guard_directory, make_places, resolve_paths
from supervisord_py.errors import EXIT_PERMISSION, ForbiddenError

NAMES = ("config_file", "tools_dir", "pipes_dir", "ledger_file", "log_dir", "socket", "lock_file")
GRANTED = {
    "RUNTIME_DIRECTORY": "/run/a:/run/b", "STATE_DIRECTORY": "/var/lib/a:/var/lib/b",
    "LOGS_DIRECTORY": "/var/log/a:/x", "CONFIGURATION_DIRECTORY": "/etc/a:/y",
}  # fmt: skip
WON = "/etc/a/pxd.toml {}/tools {}/pipes /var/lib/a/pxd.db /var/log/a /run/a/pxd.sock /run/a/pxd.lock"


@pytest.mark.parametrize(
    ("environ", "system", "places"),
    [
        ({}, False, "c/pxd/pxd.toml d/pxd/tools d/pxd/pipes s/pxd/pxd.db s/pxd/logs r/pxd/pxd.sock r/pxd/pxd.lock"),
        ({"PX_HOME": "/h"}, False,
         "/h/pxd.toml /h/tools /h/pipes /h/state/pxd.db /h/state/logs /h/run/pxd.sock /h/run/pxd.lock"),
        ({}, True, "/etc/pxd/pxd.toml /var/lib/pxd/tools /var/lib/pxd/pipes /var/lib/pxd/state/pxd.db"
                   " /var/lib/pxd/state/logs /run/pxd/pxd.sock /run/pxd/pxd.lock"),
        ({"PX_HOME": "/h", **GRANTED}, False, WON.format("/h", "/h")),
        (GRANTED, True, WON.format("/var/lib/pxd", "/var/lib/pxd")),
        ({"PX_HOME": "/h", "PX_SOCKET": "/tmp/x.sock", "RUNTIME_DIRECTORY": "/run/a"}, False,
         "/h/pxd.toml /h/tools /h/pipes /h/state/pxd.db /h/state/logs /tmp/x.sock /run/a/pxd.lock"),
    ],
)  # fmt: skip
def test_the_places_of_the_platform_of_px_home_of_the_system_and_what_the_service_manager_grants(
    monkeypatch: pytest.MonkeyPatch, short_tmp: Path, environ: dict[str, str], system: bool, places: str
) -> None:
    for name, folder in (("CONFIG_HOME", "c"), ("DATA_HOME", "d"), ("STATE_HOME", "s"), ("RUNTIME_DIR", "r")):
        (short_tmp / folder).mkdir(mode=0o700)
        monkeypatch.setenv(f"XDG_{name}", str(short_tmp / folder))
    paths = resolve_paths(environ, system=system)
    assert [getattr(paths, name) for name in NAMES] == [short_tmp / place for place in places.split()]
    assert resolve_paths(environ, system=system, socket="/flag").socket == Path("/flag")


def test_a_symbolic_link_and_somebody_elses_directory_are_refused_and_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    (tmp_path / "state").symlink_to(target)
    with pytest.raises(ForbiddenError, match=f"{tmp_path}/state is a symbolic link") as caught:
        make_places(resolve_paths({"PX_HOME": str(tmp_path)}))
    assert caught.value.exit_code == EXIT_PERMISSION
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(ForbiddenError, match=rf"belongs to uid {os.getuid()}, not to uid 4242"):
        guard_directory(target)
    assert target.stat().st_mode & 0o777 == 0o755
