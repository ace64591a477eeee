"""The client looks for the daemon exactly where the daemon puts itself."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest

from pxctl.client import Failure
from pxctl.paths import find_log_file, find_run_dir, find_socket
from supervisord_py.daemon.paths import resolve_paths

XDG = ("CONFIG_HOME", "DATA_HOME", "STATE_HOME", "RUNTIME_DIR")
GRANTS = ("RUNTIME_DIRECTORY", "STATE_DIRECTORY", "LOGS_DIRECTORY", "CONFIGURATION_DIRECTORY")


def private(path: Path, mode: int = 0o700) -> str:
    path.mkdir(mode=mode, parents=True)
    path.chmod(mode)
    return str(path)


def environments(tmp: Path) -> dict[str, tuple[dict[str, str], bool]]:
    home = {"HOME": private(tmp / "home")}
    (tmp / "link").symlink_to(private(tmp / "real"))
    return {
        "nothing": (home | {"TMPDIR": private(tmp / "t")}, False),
        "no home": ({"TMPDIR": str(tmp)}, False),
        "relative home": ({"HOME": "here", "TMPDIR": str(tmp)}, False),
        "xdg": (home | {f"XDG_{what}": private(tmp / what) for what in XDG}, False),
        "relative xdg": (home | {"XDG_CONFIG_HOME": "c", "XDG_RUNTIME_DIR": "r", "TMPDIR": str(tmp)}, False),
        "runtime missing": (home | {"XDG_RUNTIME_DIR": f"{tmp}/missing/run"}, False),
        "runtime open": (home | {"XDG_RUNTIME_DIR": private(tmp / "open", 0o755), "TMPDIR": str(tmp)}, False),
        "runtime a link": (home | {"XDG_RUNTIME_DIR": f"{tmp}/link", "TMPDIR": str(tmp)}, False),
        "no such temp": (home | {"TMPDIR": f"{tmp}/none", "TEMP": private(tmp / "temp")}, False),
        "px home relative": (home | {"PX_HOME": "px/../px"}, False),
        "px home tilde": (home | {"PX_HOME": "~/px", "PX_SOCKET": "~/s.sock"}, False),
        "system": (home, True),
        "granted": (home | {name: f"{tmp}/{name}:{tmp}/second" for name in GRANTS}, True),
        "granted in part": (home | {"PX_HOME": f"{tmp}/px", "RUNTIME_DIRECTORY": "", "STATE_DIRECTORY": "/s"}, False),
    }  # fmt: skip


def test_client_and_daemon_agree_in_every_environment(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (environ, system) in environments(short_tmp).items():
        monkeypatch.setattr(tempfile, "tempdir", None)
        with patch.dict(os.environ, environ, clear=True):
            client = [find_run_dir(environ, system=system), find_log_file(environ, system=system)]
            client.append(find_socket(environ, explicit=None, system=system))
            paths = resolve_paths(environ, system=system)
        daemon = [paths.run_dir, paths.log_dir / "pxd.log", paths.socket]
        assert [os.path.normpath(path) for path in client] == [str(path) for path in daemon], name


def test_system_and_px_home_contradict_each_other() -> None:
    with pytest.raises(Failure, match="PX_HOME") as caught:
        find_socket({"PX_HOME": "/x"}, explicit=None, system=True)
    assert caught.value.exit_code == 2
