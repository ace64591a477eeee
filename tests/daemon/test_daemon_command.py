"""`pxd` as a command, starting nothing: what it says and how it exits, and the service files that it prints."""

from __future__ import annotations

import json
import os
import plistlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisord_py.daemon.service_files import carried, launchd_plist, systemd_socket, systemd_unit
from supervisord_py.errors import ConfigError

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


@pytest.mark.parametrize("system", [False, True])
def test_systemd_itself_finds_nothing_to_complain_about(
    system: bool, tmp_path: Path, require: Callable[[object, str], None]
) -> None:
    require(shutil.which("systemd-analyze"), "needs systemd-analyze")
    program = tmp_path / "a b" / "pxd"  # `verify` wants it to exist; the blank shows that words are quoted
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    service, listener = tmp_path / "pxd-under-test.service", tmp_path / "pxd-under-test.socket"
    variables = {"PX_HOME": '/a "b" 5% \\n\'', "PX_TOOLS__PYTHON": "x\ny"}
    service.write_text(systemd_unit([str(program), "--foreground", "50%", "$HOME"], variables, system=system))
    listener.write_text(systemd_socket("/a b/5%"))
    words = ["systemd-analyze", "verify", "--man=no", *([] if system else ["--user"]), service, listener]
    environ = {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, "pxd" in done.stderr + done.stdout) == (0, False), done


def test_launchd_listens_on_demand_and_starts_nothing_before() -> None:
    text = launchd_plist(["/usr/bin/pxd"], {"PX_HOME": "/ü b"}, system=False, socket="/ü b/run/s")
    job = plistlib.loads(text.encode())
    assert job["Sockets"] == {"pxd": {"SockPathName": "/ü b/run/s", "SockPathMode": 0o600, "SockType": "stream"}}
    assert (job["RunAtLoad"], job["KeepAlive"]) == (False, {"Crashed": True}), "SuccessfulExit means RunAtLoad"
    assert job["EnvironmentVariables"]["PX_HOME"] == "/ü b"


def test_places_and_settings_are_carried_and_secrets_refused() -> None:
    environ = {"PX_SOCKET": "s", "PX_TOOLS__QUEUE_MAX": "1", "PX_UNIT": "kernel:x", "XDG_DATA_HOME": "/d", "HOME": "/h"}
    wanted = {"PX_SOCKET": f"{Path.cwd()}/s", "XDG_DATA_HOME": "/d", "PX_TOOLS__QUEUE_MAX": "1"}
    assert carried(environ, system=False) == wanted
    assert carried(environ, system=True).keys() == wanted.keys() - {"XDG_DATA_HOME"}
    with pytest.raises(ConfigError, match="PX_KERNELS__GATEWAY_TOKEN is a secret"):
        carried({"PX_KERNELS__GATEWAY_TOKEN": "x"}, system=False)
