"""The service files: each key means something to its service manager, and words come out of it as they went in."""

from __future__ import annotations

import plistlib
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.daemon.service_files import carried, launchd_plist, systemd_socket, systemd_unit
from supervisord_py.errors import ConfigError

COMMAND = ["/usr/bin/pxd", "--foreground"]


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
    job = plistlib.loads(launchd_plist(COMMAND, {"PX_HOME": "/ü b"}, system=False, socket="/ü b/run/s").encode())
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


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=12)


@given(st.lists(WORDS, max_size=3))
def test_words_of_a_command_survive_systemds_reading(words: list[str]) -> None:
    """Read back as systemd.service(5) says: quotes and backslashes, then `%%` and `$$`."""
    unit = systemd_unit(["/usr/bin/pxd", *words], {}, system=False)
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    read = [quoted or bare for quoted, bare in re.findall(r'"((?:\\.|[^"\\])*)"|([^ "]+)', line)]
    plain = [re.sub(r"\\(.)", r"\1", word).replace("%%", "%").replace("$$", "$") for word in read]
    assert plain == ["/usr/bin/pxd", *words]
