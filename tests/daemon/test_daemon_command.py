"""`pxd` as a command: what it says and how it exits, without ever starting anything."""

from __future__ import annotations

import json
import os
import plistlib
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def home(short_tmp: Path) -> Path:
    return short_tmp


def pxd(home: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PX_", "XDG_"))}
    return subprocess.run(
        [sys.executable, "-m", "supervisord_py", *words],
        env={**kept, "PX_HOME": str(home), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_shows_examples_signals_and_exit_codes(home: Path) -> None:
    done = pxd(home, "--help")
    assert done.returncode == 0
    for word in ("Examples:", "pxctl daemon start", "--check-config", "HUP reload", "78 bad settings"):
        assert word in done.stdout
    assert list(home.iterdir()) == []


def test_help_and_version_load_nothing_heavy() -> None:
    code = "import sys, supervisord_py.daemon.main; print(*sys.modules)"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert not {"pydantic", "aiohttp", "structlog", "asyncio", "platformdirs", "psutil"} & set(loaded)


def test_starting_loads_neither_server_nor_log(home: Path) -> None:
    """The way to the keeper is short: what only the control plane needs is loaded only there."""
    code = (
        "import os, sys\n"
        "def stop(*_): print(*sys.modules); sys.stdout.flush(); os._exit(0)\n"
        "os.execv = stop\n"
        "from supervisord_py.daemon.main import main\n"
        "main([])\n"
    )
    # A measured process loads what the measuring needs.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PX_", "COV"))}

    def modules(code: str) -> set[str]:
        argv, environ = [sys.executable, "-c", code], {**kept, "PX_HOME": str(home)}
        return set(subprocess.run(argv, env=environ, capture_output=True, text=True, check=True).stdout.split())

    loaded = modules(code)
    assert {"supervisord_py.daemon.lock", "pydantic"} <= loaded
    assert not {"aiohttp", "structlog", "sqlite3", "psutil"} & loaded
    again = modules(code)
    assert not {"pydantic", "asyncio"} & again, "settings that did not change are not validated again"
    (home / "pxd.toml").write_text("[tools]\nqueue_max = 3\n")
    assert "pydantic" in modules(code)
    control_plane = modules("import sys, supervisord_py.daemon.control_plane; print(*sys.modules)")
    assert "supervisord_py.daemon.settings" in control_plane
    assert "pydantic" not in control_plane


@pytest.mark.parametrize(
    "words", [(), *(pytest.param((word,), marks=pytest.mark.deep) for word in ("--check-config", "--show-config"))]
)
def test_bad_settings_exit_78_with_file_line_key_and_nearest(home: Path, words: tuple[str, ...]) -> None:
    (home / "pxd.toml").write_text("# c\n[tools]\nwarm_keep_mxa = 3\n")
    (home / "conf.d").mkdir()
    (home / "conf.d" / "a.toml").write_text("[tools]\nqueue_max = 'x'\n")
    done = pxd(home, *words, PX_TOOLS__WARM_KEEP_MX="3")
    assert done.returncode == 78
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"pxd: {home}/pxd.toml:3: unknown setting tools.warm_keep_mxa; did you mean tools.warm_keep_max?",
        f"pxd: {home}/conf.d/a.toml:2: tools.queue_max: expected a valid integer, got 'x'",
        "pxd: env PX_TOOLS__WARM_KEEP_MX: unknown setting tools.warm_keep_mx; did you mean tools.warm_keep_max?",
        "hint: `pxd --check-config` checks again; `pxd --show-config` shows every key with its value and origin",
    ]
    assert not (home / "run").exists()


def test_every_setting_is_shown_with_its_origin(home: Path) -> None:
    (home / "pxd.toml").write_text("[tools]\nwarm_keep_max = 3\n")
    shown = pxd(home, "--show-config", "--set", "tools.queue_max=7", PX_TOOLS__MAX_MEMORY_MB="2").stdout.splitlines()
    assert f"tools.warm_keep_max = 3  # {home}/pxd.toml:2" in shown
    assert "tools.queue_max = 7  # flag --set tools.queue_max" in shown
    assert "tools.max_memory_mb = 2  # env PX_TOOLS__MAX_MEMORY_MB" in shown
    assert "tools.python = null  # default" in shown
    document = json.loads(pxd(home, "--show-config", "--json").stdout)
    assert document["schema"] == "px.config/1"
    assert {"key": "tools.warm_keep_max", "value": 3, "origin": f"{home}/pxd.toml:2"} in document["settings"]


@pytest.mark.deep
def test_service_files_are_printed(home: Path) -> None:
    unit = pxd(home, "--print-unit", "systemd", "--set", "tools.queue_max=7").stdout
    assert f"ExecStart={sys.executable} -P -m supervisord_py --foreground --set tools.queue_max=7\n" in unit
    job = plistlib.loads(pxd(home, "--print-unit", "launchd").stdout.encode())
    assert job["ProgramArguments"][0] == sys.executable
    assert f"ListenStream={home}/run/pxd.sock\n" in pxd(home, "--print-unit", "systemd-socket").stdout
    assert pxd(home, "--print-unit", "systemd", "--system").returncode == 2, "PX_HOME says another place"
    system = pxd(home, "--print-unit", "systemd", "--system", PX_HOME="").stdout
    assert "WantedBy=multi-user.target" in system
    assert "--system\n" in system


def test_a_socket_path_over_the_limit_is_told_before_anything_starts(home: Path) -> None:
    done = pxd(home, PX_SOCKET=str(home / ("x" * 120)))
    assert done.returncode == 78
    assert f"has {len(str(home)) + 121} bytes; this platform takes at most 107" in done.stderr
    assert "hint: set PX_SOCKET to a shorter path" in done.stderr
    assert list(home.iterdir()) == []


@pytest.mark.deep
def test_a_disk_that_refuses_is_no_traceback(home: Path) -> None:
    (home / "run").mkdir(mode=0o700)
    (home / "run" / "pxd.lock").mkdir()
    done = pxd(home)
    assert done.returncode == 1
    assert "pxd: cannot start: " in done.stderr
    assert "Traceback" not in done.stderr
