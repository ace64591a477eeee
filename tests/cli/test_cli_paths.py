"""The client looks for the daemon exactly where the daemon puts itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from pxctl.client import Failure
from pxctl.paths import find_socket

EACH = """
import json, os, sys, tempfile
for environ, scope in json.loads(sys.argv[1]):
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None
    print(json.dumps([os.path.normpath(str(path)) for path in find(scope == "system")]))
"""
DAEMON = """
from supervisord_py.daemon.paths import resolve_paths
def find(system):
    places = resolve_paths(os.environ, system=system)
    return places.run_dir, places.socket, places.log_dir / "pxd.log"
"""
CLIENT = """
from pxctl.paths import find_log_file, find_run_dir, find_socket
def find(system):
    log = find_log_file(os.environ, system=system)
    return find_run_dir(os.environ, system=system), find_socket(os.environ, explicit=None, system=system), log
"""
XDG = ("CONFIG_HOME", "DATA_HOME", "STATE_HOME", "RUNTIME_DIR")
GRANTS = ("RUNTIME_DIRECTORY", "STATE_DIRECTORY", "LOGS_DIRECTORY", "CONFIGURATION_DIRECTORY")
REPOSITORY = Path(__file__).parents[2]


def ask(side: str, rows: Iterable[tuple[dict[str, str], str]]) -> list[list[str]]:
    """Return where one of the two finds its places in each environment: one process for all of them."""
    kept = {key: value for key, value in os.environ.items() if key.startswith("COV")}
    words = [sys.executable, "-c", side + EACH, json.dumps(list(rows))]
    whole = {**kept, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'cli'}"}
    done = subprocess.run(words, env=whole, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def private(path: Path, mode: int = 0o700) -> str:
    path.mkdir(mode=mode, parents=True)
    path.chmod(mode)
    return str(path)


def environments(tmp: Path) -> dict[str, tuple[dict[str, str], str]]:
    home = {"HOME": private(tmp / "home")}
    (tmp / "link").symlink_to(private(tmp / "real"))
    return {
        "nothing": (home | {"TMPDIR": private(tmp / "t")}, "user"),
        "no home": ({"TMPDIR": str(tmp)}, "user"),
        "relative home": ({"HOME": "here", "TMPDIR": str(tmp)}, "user"),
        "xdg": (home | {f"XDG_{what}": private(tmp / what) for what in XDG}, "user"),
        "relative xdg": (home | {"XDG_CONFIG_HOME": "c", "XDG_RUNTIME_DIR": "r", "TMPDIR": str(tmp)}, "user"),
        "runtime missing": (home | {"XDG_RUNTIME_DIR": f"{tmp}/missing/run"}, "user"),
        "runtime open": (home | {"XDG_RUNTIME_DIR": private(tmp / "open", 0o755), "TMPDIR": str(tmp)}, "user"),
        "runtime a link": (home | {"XDG_RUNTIME_DIR": f"{tmp}/link", "TMPDIR": str(tmp)}, "user"),
        "no such temp": (home | {"TMPDIR": f"{tmp}/none", "TEMP": private(tmp / "temp")}, "user"),
        "px home relative": (home | {"PX_HOME": "px/../px"}, "user"),
        "px home tilde": (home | {"PX_HOME": "~/px", "PX_SOCKET": "~/s.sock"}, "user"),
        "system": (home, "system"),
        "granted": (home | {name: f"{tmp}/{name}:{tmp}/second" for name in GRANTS}, "system"),
        "granted in part": (home | {"PX_HOME": f"{tmp}/px", "RUNTIME_DIRECTORY": "", "STATE_DIRECTORY": "/s"}, "user"),
    }  # fmt: skip


def test_client_and_daemon_agree_in_every_environment(short_tmp: Path) -> None:
    rows = environments(short_tmp)
    client, daemon = ask(CLIENT, rows.values()), ask(DAEMON, rows.values())
    assert dict(zip(rows, client, strict=True)) == dict(zip(rows, daemon, strict=True))


def test_system_and_px_home_contradict_each_other() -> None:
    with pytest.raises(Failure, match="PX_HOME") as caught:
        find_socket({"PX_HOME": "/x"}, explicit=None, system=True)
    assert caught.value.exit_code == 2
