"""Settings and the command `pxd`, starting nothing: who wins, what is refused and how; the
service files it prints.
"""

from __future__ import annotations

import json
import os
import plistlib
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.config.settings import DEFAULTS, HIDDEN, KEYS
from supervisord_py.daemon import settings
from supervisord_py.daemon.service_files import (
    carried,
    launchd_plist,
    service_path,
    systemd_socket,
    systemd_unit,
)
from supervisord_py.daemon.settings import (
    Flags,
    Loaded,
    SettingsError,
    recall_valid,
    restart_needed,
)
from supervisord_py.daemon.settings_reader import _REMOVED, read_settings
from supervisord_py.errors import ConfigError
from supervisord_py.pipes.definition import USED

Load = Callable[..., Loaded]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def run(text: str | bytes = "", *, flags: tuple[str, ...] = (), **environ: str) -> Loaded:
        (tmp_path / "pxd.toml").write_bytes(text.encode() if isinstance(text, str) else text)
        with patch.dict(os.environ, {"PX_HOME": str(tmp_path), **environ}, clear=True):
            return read_settings(Flags(settings=flags))

    return run


def mistakes(load: Load, *args: Any, **kwargs: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(*args, **kwargs)
    assert caught.value.exit_code == 78
    return str(caught.value).splitlines()


def test_precedence_is_file_dropins_environment_flags(load: Load, tmp_path: Path) -> None:
    conf = tmp_path / "conf.d"
    conf.mkdir()
    (conf / "20-b.toml").write_text(
        "[tools]\nmax_body_bytes = 3\nqueue_max = 30\nwarm_keep_max = 3\n"
    )
    (conf / "10-a.toml").write_text("[tools]\nmax_body_bytes = 2\nwarm_keep_max = 20\n")
    for name in (".hidden.toml", "note.txt"):
        (conf / name).write_text("nonsense")
    text, flags = (
        "[tools]\nmax_body_bytes = 1\nwarm_keep_max = 1\n\npython = 'p'\n",
        ("tools.max_body_bytes=5",),
    )
    loaded = load(text, flags=flags, PX_TOOLS__MAX_BODY_BYTES="4", PX_TOOLS__QUEUE_MAX="40")
    rows = {
        row["key"].removeprefix("tools."): (row["value"], row["origin"]) for row in loaded.rows()
    }
    assert rows.items() >= {
        ("max_body_bytes", (5, "flag --set tools.max_body_bytes")),
        ("queue_max", (40, "env PX_TOOLS__QUEUE_MAX")),
        ("warm_keep_max", (3, f"{conf}/20-b.toml:4")),
        ("python", ("p", f"{tmp_path}/pxd.toml:5")),
        ("max_memory_mb", (512, "default")),
    }


MISTAKES: list[tuple[str | bytes, list[str]]] = [
    (
        "warm_keep_max = 1\nqqqq = 1\n[tols]\nx = 1\n[api]\nqueue_mux = 3\nfoo = 1\n",
        [
            ":1: unknown setting warm_keep_max; did you mean tools.warm_keep_max?",
            ":2: unknown section qqqq",
            ":3: unknown section tols; did you mean tools?",
            ":6: unknown setting api.queue_mux; did you mean tools.queue_max?",
            ":7: unknown setting api.foo",
        ],
    ),
    (
        '[tools]\nwarm_keep_max = "x"',
        [":2: tools.warm_keep_max: expected a valid integer, got 'x'"],
    ),
    (
        "[tools]\nwarm_keep_seconds = nan",
        [":2: tools.warm_keep_seconds: expected a finite number, got nan"],
    ),
    (
        f'[tools]\npython = ["{"x" * 500}"]',
        [f":2: tools.python: expected a valid string, got ['{'x' * 57}…"],
    ),
    (
        '[kernels]\nexpose = "Bash"\n',
        [":2: kernels.expose: expected 'both', 'python' or 'bash', got 'Bash'; did you mean bash?"],
    ),
    ("[tools]\n\nwarm_keep_max = \n", [":3: no valid TOML: Invalid value"]),
    (
        b"[tools]\n# caf\xe9\n",
        [":2: no valid TOML: not UTF-8: byte 0xe9 (invalid continuation byte)"],
    ),
    (
        '[pipes]\ntimezone = "Europe/Berlni"\n',
        [":2: pipes.timezone is no time zone of the IANA list, like Europe/Berlin"],
    ),
    (
        '[pipes]\nredact = ["a+", "("]\n',
        [
            ":2: pipes.redact has '(', which is no regular expression: missing ), "
            "unterminated subpattern at position 0"
        ],
    ),
    (
        '[api]\nlisten = "0.0.0.0:80"\n',
        [
            ":2: api.listen has 0.0.0.0, which is no loopback address; use 127.0.0.1 and a tunnel "
            "from outside"
        ],
    ),
    (
        "[daemon]\nbackoff_initial_seconds = 9\nbackoff_max_seconds = 1\n",
        [":3: daemon.backoff_max_seconds must not be below daemon.backoff_initial_seconds (9)"],
    ),
]


@pytest.mark.parametrize(("text", "told"), MISTAKES)
def test_each_mistake_of_a_file_is_told_with_its_line_and_cure(
    load: Load, tmp_path: Path, text: str | bytes, told: list[str]
) -> None:
    file = f"{tmp_path}/pxd.toml"
    assert mistakes(load, text) == [file + line for line in told]


def test_mistakes_of_environment_and_flags_name_variable_and_flag(load: Load) -> None:
    flags = ("tools.queue=3", "tools.queue_max", "tools.queue_max=-1")
    told = mistakes(
        load, flags=flags, PX_TOOLS__MAX_BODY_BYTES="many", PX_TOOL__PYTHON="/x", PX_A__B__C="1"
    )
    assert sorted(told) == [
        "env PX_A__B__C: unknown section a",
        "env PX_TOOLS__MAX_BODY_BYTES: tools.max_body_bytes: expected a valid integer, got 'many'",
        "env PX_TOOL__PYTHON: unknown section tool; did you mean tools?",
        "flag --set tools.queue: unknown setting tools.queue; did you mean tools.queue_max?",
        "flag --set tools.queue_max: expected section.key=value",
        "flag --set tools.queue_max: tools.queue_max: expected greater than or equal to 0, "
        "got '-1'",
    ]
    loaded = load(PX_INSTANCE="i", PATH="", PX_TOOLS_QUEUE_MAX="3")
    assert loaded.warnings == (
        "the variable PX_TOOLS_QUEUE_MAX is no setting and is ignored; did you mean "
        "PX_TOOLS__QUEUE_MAX?",
    )


def test_problems_are_a_document_for_machines(load: Load, tmp_path: Path) -> None:
    (told,) = mistakes(load, "tools = 5\n", PX_TOOLS__QUEUE_MAX="3")
    assert told.endswith(":1: tools: expected a table: [tools], got 5"), (
        "whatever other sources say"
    )
    with pytest.raises(SettingsError) as caught:
        load("[tools]\nwarm_keep_mxa = 3\n")
    file, key = f"{tmp_path}/pxd.toml", "tools.warm_keep_mxa"
    problem = {
        "origin": f"{file}:2",
        "file": file,
        "line": 2,
        "key": key,
        "nearest": "tools.warm_keep_max",
    }
    assert caught.value.problem()["problems"] == [{**problem, "message": f"unknown setting {key}"}]


@given(st.sampled_from(KEYS), st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_any_text_is_a_value_or_a_problem(key: tuple[str, str], text: str) -> None:
    variable = f"PX_{key[0]}__{key[1]}".upper()
    try:
        with patch.dict(os.environ, {"PX_HOME": "/none", variable: text}, clear=True):
            loaded = read_settings(Flags())
    except SettingsError as error:
        assert ".".join(key) in str(error)
    else:
        assert {row["origin"] for row in loaded.rows()} == {"default", f"env {variable}"}


def test_texts_become_lists_switches_and_nothing(load: Load) -> None:
    texts: dict[str, tuple[str, object]] = {
        "tools.env_allow": ("A, B,,LC_*", ["A", "B", "LC_*"]),
        "tools.paths": (f"/a,b{os.pathsep}/c", ["/a,b", "/c"]),
        "tools.memory_budget_mb": ("", None), "kernels.managed": ("YES", True),
    }  # fmt: skip
    variables = {f"PX_{key.replace('.', '__')}".upper(): text for key, (text, _) in texts.items()}
    for loaded in (
        load(flags=tuple(f"{key}={text}" for key, (text, _) in texts.items())),
        load(**variables),
    ):
        found = {row["key"]: row["value"] for row in loaded.rows()}
        assert {key: found[key] for key in texts} == {
            key: value for key, (_, value) in texts.items()
        }


def test_a_secret_is_shown_nowhere_and_stands_in_no_command_line(load: Load) -> None:
    loaded = load('[kernels]\ngateway_token = "s3cr3t"\n')
    assert "s3cr3t" not in repr(loaded)
    assert ("kernels.gateway_token", HIDDEN) in [
        (row["key"], row["value"]) for row in loaded.rows()
    ]
    assert "s3cr3t" not in str(mistakes(load, '[kernels]\ngateway_token = ["s3cr3t"]\n'))
    (told,) = mistakes(load, "", flags=("kernels.gateway_token=s3cr3t",))
    assert told.endswith(
        "is a secret, which every process could read in a command line; did you mean "
        "PX_KERNELS__GATEWAY_TOKEN?"
    )


def test_the_variables_of_the_original_stand_between_files_and_our_own(load: Load) -> None:
    file = '[kernels]\nexpose = "python"\nskip_check = false\n'
    loaded = load(file, PI_PY="bash", PI_PYTHON_SKIP_CHECK="1", PI_PYTHON_IPC_TRACE="nonsense")
    assert (loaded.settings.kernels.expose, loaded.settings.kernels.skip_check) == ("bash", True)
    assert loaded.origins["kernels.expose"] == "env PI_PY"
    assert any("PI_PYTHON_IPC_TRACE" in warning for warning in loaded.warnings)
    assert load(file, PI_PY="bash", PX_KERNELS__EXPOSE="both").settings.kernels.expose == "both"


def test_settings_that_are_gone_are_told_with_what_there_is_instead_and_harm_nothing(
    load: Load,
) -> None:
    entries = [
        (section, each.partition(":")[0])
        for section, text in _REMOVED.items()
        for each in text.split(";")
    ]
    gone = [f"{section}.{name}" for section, names in entries for name in names.split()]
    loaded = load(
        "".join(f"{key} = 'x'\n" for key in gone),
        flags=("kernels.spares=3",),
        PX_LOGS__SPILL_BYTES="1",
    )
    words = [
        warning.split(" no longer exists and is ignored; 0.2 has instead: ")
        for warning in loaded.warnings
    ]
    told, known = [place.split()[-1] for place, _ in words], {".".join(key) for key in KEYS}
    assert (loaded.settings, told) == (DEFAULTS, [*gone, "logs.spill_bytes", "kernels.spares"])
    assert known.isdisjoint(gone)
    for _, instead in words:
        # a number or a name; names of settings are ones that exist
        assert re.search(r"\d|`.+`", instead)
        assert known.issuperset(re.findall(r"`((?:daemon|tools|kernels|pipes)\.\w+)`", instead))
        assert set(USED).issuperset(re.findall(r"`(\w+).*` .*in pipe.md", instead))


def test_settings_in_force_are_recalled_with_their_secrets(load: Load, tmp_path: Path) -> None:
    loaded = load(
        '[tools]\npaths = ["/a", "b"]\nmemory_budget_mb = 3\n',
        PX_KERNELS__GATEWAY_TOKEN="s3cr3t",  # noqa: S106
    )
    settings.keep_valid(tmp_path, loaded)
    assert recall_valid(tmp_path) == loaded
    assert (tmp_path / settings.VALID_NAME).stat().st_mode & 0o777 == 0o600
    for text in ("", "\xff", '{"settings": {"tools": {"gone": 1}}}'):
        (tmp_path / settings.VALID_NAME).write_text(text, "latin-1")
        assert recall_valid(tmp_path) is None


def test_the_stamp_changes_with_whatever_is_read_and_with_nothing_else(tmp_path: Path) -> None:
    def stamp(*flags: str, **more: str) -> str:
        environ = {
            "PX_HOME": str(tmp_path),
            "PX_TOOLS__QUEUE_MAX": "3",
            "PX_INSTANCE": "a",
            "HOME": "/",
            **more,
        }
        with patch.dict(os.environ, environ, clear=True):
            return Flags(settings=flags).stamp()

    assert stamp() == stamp(PX_INSTANCE="b", HOME="/h")
    seen = {stamp(), stamp(PI_PY="1"), stamp("tools.queue_max=3")}
    (tmp_path / "conf.d").mkdir()
    for change in ("pxd.toml", "conf.d/a.toml"):
        for text in ("", "a"):
            (tmp_path / change).write_text(text)
            seen.add(stamp())
    assert len(seen) == 7


def test_what_a_changed_setting_needs() -> None:
    assert [restart_needed(key) for key in ("tools.warm_keep_max", "daemon.log_level")] == [
        None,
        None,
    ]
    assert {restart_needed(key) for key in ("tools.max_body_bytes", "api.listen")} == {
        "pxctl daemon restart"
    }
    assert restart_needed("logs.total_bytes") == "pxctl daemon restart --all"


KEPT = {name: value for name, value in os.environ.items() if not name.startswith(("PX_", "XDG_"))}


def pxd(home: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    argv, env = (
        [sys.executable, "-m", "supervisord_py", *words],
        {**KEPT, "PX_HOME": str(home), **environ},
    )
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_way_to_the_keeper_is_short(short_tmp: Path) -> None:
    """Help and version load nothing heavy; what only the control plane needs is loaded only
    there.
    """
    stop = "def stop(*_): print(*sys.modules); sys.stdout.flush(); os._exit(0)\n"
    start = (
        f"import os, sys\n{stop}os.execv = stop\nfrom supervisord_py.daemon.main import main; "
        "main([])\n"
    )
    # A measured process loads what the measuring needs.
    env = {name: value for name, value in KEPT.items() if not name.startswith("COV")} | {
        "PX_HOME": str(short_tmp)
    }

    def modules(code: str) -> set[str]:
        argv = [sys.executable, "-c", code]
        return set(
            subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.split()
        )

    helps = modules("import sys, supervisord_py.daemon.main; print(*sys.modules)")
    assert not {"pydantic", "aiohttp", "structlog", "asyncio", "platformdirs", "psutil"} & helps
    first = modules(start)
    assert {"supervisord_py.daemon.lock", "pydantic"} <= first
    assert not {"aiohttp", "structlog", "sqlite3", "psutil"} & first
    assert not {"pydantic", "asyncio"} & modules(start), (
        "settings that did not change are not validated again"
    )
    (short_tmp / "pxd.toml").write_text("[tools]\nqueue_max = 3\n")
    assert "pydantic" in modules(start)
    control_plane = modules("import sys, supervisord_py.daemon.control_plane; print(*sys.modules)")
    assert "supervisord_py.daemon.settings" in control_plane
    assert "pydantic" not in control_plane


def test_pxd_shows_each_setting_with_its_origin_and_refuses_bad_ones_before_anything_starts(
    short_tmp: Path,
) -> None:
    (short_tmp / "pxd.toml").write_text("[tools]\nwarm_keep_max = 3\n")
    assert (
        f"tools.warm_keep_max = 3  # {short_tmp}/pxd.toml:2\n"
        in pxd(short_tmp, "--show-config").stdout
    )
    shown = json.loads(
        pxd(short_tmp, "--show-config", "--json", "--set", "tools.queue_max=7").stdout
    )
    found = {one["key"]: (one["value"], one["origin"]) for one in shown["settings"]}
    assert found["tools.queue_max"] == (7, "flag --set tools.queue_max")
    assert (shown["schema"], found["tools.python"]) == ("px.config/1", (None, "default"))
    (short_tmp / "conf.d").mkdir()
    (short_tmp / "conf.d" / "a.toml").write_text("[tools]\nqueue_max = 'x'\n")
    done = pxd(short_tmp, PX_TOOLS__WARM_KEEP_MX="3")
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.splitlines() == [
        f"pxd: {short_tmp}/conf.d/a.toml:2: tools.queue_max: expected a valid integer, got 'x'",
        "pxd: env PX_TOOLS__WARM_KEEP_MX: unknown setting tools.warm_keep_mx; did you mean "
        "tools.warm_keep_max?",
        "hint: `pxd --check-config` checks again; `pxd --show-config` shows every key with its "
        "value and origin",
    ]
    (short_tmp / "conf.d" / "a.toml").unlink()
    done = pxd(short_tmp, PX_SOCKET=str(short_tmp / ("x" * 120)))
    assert (done.returncode, "hint: set PX_SOCKET to a shorter path" in done.stderr) == (78, True)
    assert f"has {len(str(short_tmp)) + 121} bytes; this platform takes at most 107" in done.stderr
    assert not (short_tmp / "run").exists()
    # a disk that refuses: no traceback
    (short_tmp / "run" / "pxd.lock").mkdir(mode=0o700, parents=True)
    done = pxd(short_tmp)
    assert (done.returncode, "pxd: cannot start: " in done.stderr, "Traceback" in done.stderr) == (
        1,
        True,
        False,
    )


@pytest.mark.parametrize("system", [False, True])
def test_systemd_itself_finds_nothing_to_complain_about(
    system: bool, tmp_path: Path, require: Callable[[object, str], None]
) -> None:
    require(shutil.which("systemd-analyze"), "needs systemd-analyze")
    # `verify` wants it to exist; the blank shows that words are quoted
    program = tmp_path / "a b" / "pxd"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    service, listener = tmp_path / "pxd-under-test.service", tmp_path / "pxd-under-test.socket"
    variables = {"PX_HOME": '/a "b" 5% \\n\'', "PX_TOOLS__PYTHON": "x\ny"}
    service.write_text(
        systemd_unit([str(program), "--foreground", "50%", "$HOME"], variables, system=system)
    )
    listener.write_text(systemd_socket("/a b/5%"))
    words = [
        "systemd-analyze",
        "verify",
        "--man=no",
        *([] if system else ["--user"]),
        service,
        listener,
    ]
    environ = {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        words, env=environ, capture_output=True, text=True, timeout=110, check=False
    )
    assert (done.returncode, "pxd" in done.stderr + done.stdout) == (0, False), done


def test_launchd_listens_on_demand_and_starts_nothing_before() -> None:
    text = launchd_plist(["/usr/bin/pxd"], {"PX_HOME": "/ü b"}, system=False, socket="/ü b/run/s")
    job = plistlib.loads(text.encode())
    assert job["Sockets"] == {
        "pxd": {"SockPathName": "/ü b/run/s", "SockPathMode": 0o600, "SockType": "stream"}
    }
    assert (job["RunAtLoad"], job["KeepAlive"]) == (False, {"Crashed": True}), (
        "SuccessfulExit means RunAtLoad"
    )
    assert job["EnvironmentVariables"]["PX_HOME"] == "/ü b"


def test_a_service_finds_the_programs_that_its_user_finds(tmp_path: Path) -> None:
    mine, shared, gone = tmp_path / "my bin", tmp_path / "shared", tmp_path / "gone"
    mine.mkdir(mode=0o755)
    shared.mkdir()
    shared.chmod(0o777)
    given = f"{mine}:{shared}:.:bin::{mine}:{gone}:/usr/bin"
    users = service_path(given, system=False).split(":")
    assert users[:3] == [str(mine), str(shared), "/usr/bin"]
    assert ("/bin" in users or Path("/bin").is_symlink(), users.count("/usr/bin")) == (True, 1)
    assert str(gone) not in users
    machines = service_path(given, system=True).split(":")
    assert str(shared) not in machines, "others could put programs there for root"
    assert (str(mine) in machines) is (os.getuid() == 0)
    assert "/usr/bin" in service_path("", system=True).split(":")


def test_places_and_settings_are_carried_and_secrets_refused() -> None:
    environ = {
        "PX_SOCKET": "s",
        "PX_TOOLS__QUEUE_MAX": "1",
        "PX_UNIT": "kernel:x",
        "XDG_DATA_HOME": "/d",
        "HOME": "/h",
    }
    wanted = {"PX_SOCKET": f"{Path.cwd()}/s", "XDG_DATA_HOME": "/d", "PX_TOOLS__QUEUE_MAX": "1"}
    assert carried(environ, system=False) == wanted
    assert carried(environ, system=True).keys() == wanted.keys() - {"XDG_DATA_HOME"}
    with pytest.raises(ConfigError, match="PX_KERNELS__GATEWAY_TOKEN is a secret"):
        carried({"PX_KERNELS__GATEWAY_TOKEN": "x"}, system=False)


def test_settings_are_kept_by_several_threads_at_once(tmp_path: Path) -> None:
    """A reload and a restart that come together write them at the same time."""
    begin = threading.Barrier(4)

    def keep(number: int) -> None:
        begin.wait()
        for _ in range(50):
            settings.keep_valid(tmp_path, Loaded(stamp=str(number)))

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(keep, number) for number in range(4)]:
            done.result()
    kept = recall_valid(tmp_path)
    assert kept is not None
    assert kept.stamp in {"0", "1", "2", "3"}
    assert len(list(tmp_path.iterdir())) == 1
