"""What the keeper and the rooms are told, and how ends are asked for."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import msgspec

from supervisord_py.config.settings import DEFAULTS
from supervisord_py.daemon import boot
from supervisord_py.daemon.paths import resolve_paths

PATHS = resolve_paths({"PX_HOME": "/h"})
MIB = 1024 * 1024


def test_the_keeper_is_told_all_that_it_needs_in_a_descriptor() -> None:
    flags = boot.Flags("/c.toml", "/s", settings=("a.b=1",))
    argv = boot.keeper_argv(PATHS, DEFAULTS, flags, "--sweep", lock_fd=8, listen_fd=7, socket_owned=True)
    assert argv[:3] == [sys.executable, "-I", "-S"], "nothing of the user's environment"
    assert Path(argv[3]).is_file()
    assert argv[4:6] == ["--sweep", "--boot-fd"]
    assert os.get_inheritable(int(argv[6]))
    with open(int(argv[6]), "rb") as file:
        told = json.load(file)
    assert told["daemon_id"] == boot.daemon_id(PATHS.state_dir)
    assert (told["run_dir"], told["log_dir"]) == ("/h/run", "/h/state/logs")
    assert (told["listen_fd"], told["lock_fd"], told["socket_owned"]) == (7, 8, True)
    words = ["--config", "/c.toml", "--socket", "/s", "--set", "a.b=1"]
    assert told["control_argv"][:-1] == [sys.executable, "-P", "-m", "supervisord_py.daemon.control"]
    order = msgspec.json.decode(told["control_argv"][-1], type=boot.ControlOrder)
    assert order == boot.ControlOrder(flags, (3, 4, 5))
    assert told["pxd_argv"] == [sys.executable, "-P", "-m", "supervisord_py", "--foreground", *words]
    assert (told["log_segment_bytes"], told["stop_seconds"], told["watchdog_seconds"]) == (8 * MIB, 10.0, 10.0)
