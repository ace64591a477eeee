"""`pxd` as a command: what it says and how it exits, without ever starting anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

KEPT = {name: value for name, value in os.environ.items() if not name.startswith(("PX_", "XDG_"))}


def pxd(home: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    argv, env = [sys.executable, "-m", "supervisord_py", *words], {**KEPT, "PX_HOME": str(home), **environ}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_way_to_the_keeper_is_short(short_tmp: Path) -> None:
    """Help and version load nothing heavy; what only the control plane needs is loaded only there."""
    stop = "def stop(*_): print(*sys.modules); sys.stdout.flush(); os._exit(0)\n"
    start = f"import os, sys\n{stop}os.execv = stop\nfrom supervisord_py.daemon.main import main; main([])\n"
    # A measured process loads what the measuring needs.
    env = {name: value for name, value in KEPT.items() if not name.startswith("COV")} | {"PX_HOME": str(short_tmp)}

    def modules(code: str) -> set[str]:
        argv = [sys.executable, "-c", code]
        return set(subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.split())

    helps = modules("import sys, supervisord_py.daemon.main; print(*sys.modules)")
    assert not {"pydantic", "aiohttp", "structlog", "asyncio", "platformdirs", "psutil"} & helps
    first = modules(start)
    assert {"supervisord_py.daemon.lock", "pydantic"} <= first
    assert not {"aiohttp", "structlog", "sqlite3", "psutil"} & first
    assert not {"pydantic", "asyncio"} & modules(start), "settings that did not change are not validated again"
    (short_tmp / "pxd.toml").write_text("[tools]\nqueue_max = 3\n")
    assert "pydantic" in modules(start)
    control_plane = modules("import sys, supervisord_py.daemon.control_plane; print(*sys.modules)")
    assert "supervisord_py.daemon.settings" in control_plane
    assert "pydantic" not in control_plane


def test_bad_settings_exit_78_with_file_line_key_and_nearest(short_tmp: Path) -> None:
    (short_tmp / "pxd.toml").write_text("# c\n[tools]\nwarm_keep_mxa = 3\n")
    (short_tmp / "conf.d").mkdir()
    (short_tmp / "conf.d" / "a.toml").write_text("[tools]\nqueue_max = 'x'\n")
    done = pxd(short_tmp, PX_TOOLS__WARM_KEEP_MX="3")
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.splitlines() == [
        f"pxd: {short_tmp}/pxd.toml:3: unknown setting tools.warm_keep_mxa; did you mean tools.warm_keep_max?",
        f"pxd: {short_tmp}/conf.d/a.toml:2: tools.queue_max: expected a valid integer, got 'x'",
        "pxd: env PX_TOOLS__WARM_KEEP_MX: unknown setting tools.warm_keep_mx; did you mean tools.warm_keep_max?",
        "hint: `pxd --check-config` checks again; `pxd --show-config` shows every key with its value and origin",
    ]
    assert not (short_tmp / "run").exists()


def test_every_setting_is_shown_with_its_origin(short_tmp: Path) -> None:
    (short_tmp / "pxd.toml").write_text("[tools]\nwarm_keep_max = 3\n")
    assert f"tools.warm_keep_max = 3  # {short_tmp}/pxd.toml:2\n" in pxd(short_tmp, "--show-config").stdout
    shown = json.loads(pxd(short_tmp, "--show-config", "--json", "--set", "tools.queue_max=7").stdout)
    assert shown["schema"] == "px.config/1"
    found = {one["key"]: (one["value"], one["origin"]) for one in shown["settings"]}
    assert found["tools.queue_max"] == (7, "flag --set tools.queue_max")
    assert found["tools.python"] == (None, "default")


def test_a_socket_path_over_the_limit_is_told_before_anything_starts(short_tmp: Path) -> None:
    done = pxd(short_tmp, PX_SOCKET=str(short_tmp / ("x" * 120)))
    assert (done.returncode, list(short_tmp.iterdir())) == (78, [])
    assert f"has {len(str(short_tmp)) + 121} bytes; this platform takes at most 107" in done.stderr
    assert "hint: set PX_SOCKET to a shorter path" in done.stderr


def test_a_disk_that_refuses_is_no_traceback(short_tmp: Path) -> None:
    (short_tmp / "run" / "pxd.lock").mkdir(mode=0o700, parents=True)
    done = pxd(short_tmp)
    assert (done.returncode, "pxd: cannot start: " in done.stderr, "Traceback" in done.stderr) == (1, True, False)
