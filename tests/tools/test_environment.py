"""A tool is started with the right interpreter, sees what it is allowed and brings, and nothing of the daemon's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.config.settings import TOOLS_ENV
from supervisord_py.errors import StartFailedError
from supervisord_py.process.child_environment import DENIED, Environment, passed, read_dotenv
from supervisord_py.tools.environment import build_environment, find_interpreter
from tool_folders import pixie, plain


def test_the_layers_in_their_order(tmp_path: Path) -> None:
    spec = plain(tmp_path, env={"B": "env", "C": "env"})
    lines = "A=dotenv", "B=dotenv", "HOME=/dotenv", "LISTEN_FDS=9", "PX_OWN=mine", "X=${A}-${LC_TIME}-${SECRET:-none}"
    (spec.folder / ".env").write_text("\n".join((*lines, "Y='${X}!'", "Z=$A")))
    source = {"PATH": "/bin", "HOME": "/root", "LC_TIME": "C", "SECRET": "x", "PX_TOOLS__PATHS": "x", "C": "daemon"}
    built = build_environment(spec, source, TOOLS_ENV, tmp_path, {"LISTEN_FDS": "1", "C": "extra"})
    assert dict(built) == {
        "PATH": "/bin",
        "HOME": "/dotenv",
        "LC_TIME": "C",
        "PYTHONUNBUFFERED": "1",
        "A": "dotenv",
        "B": "env",
        "C": "extra",
        "PX_OWN": "mine",
        "LISTEN_FDS": "1",
        "X": "dotenv-C-none",
        "Y": "dotenv-C-none!",
        "Z": "$A",
    }
    assert "dotenv" not in repr(built)
    assert not [name for name in TOOLS_ENV if name.startswith(("PYTHON", "PX_"))]


NAMES = st.sampled_from(["PATH", "LC_ALL", "PX_API__TOKEN", "px_home", "SECRET", *DENIED]) | st.text(
    "aPX_*", min_size=1
)


@given(st.dictionaries(NAMES, st.text(max_size=4)), st.lists(NAMES | NAMES.map("{}*".format) | st.just("*")))
def test_what_is_denied_never_passes_whatever_is_allowed(source: dict[str, str], allow: list[str]) -> None:
    got = passed(source, allow)
    assert got.items() <= source.items()
    for name in source:
        allowed = any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in allow)
        assert (name in got) == (allowed and not name.upper().startswith("PX_") and name not in DENIED)


def test_lines_of_dotenv_that_cannot_be_used_are_warnings_without_values(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    assert read_dotenv(path) == ({}, ())
    path.write_text(
        "# a comment\nA=1\n\n\nexport B='two words'\nthis is hunter2\nC\n1X=hunter2\nPX_INSTANCE=hunter2\n"
        'E=\nF="multi\nline"\nLAST=hunter2\0\n'
    )
    values, warnings = read_dotenv(path)
    assert values == {"A": "1", "B": "two words", "E": "", "F": "multi\nline"}
    assert [warning.partition(", ")[2] for warning in warnings] == [
        "line 6: is no NAME=value; the line is ignored",
        "line 7: C has no value; the line is ignored",
        "line 8: the name is none that an environment can have; the line is ignored",
        "line 9: PX_INSTANCE is the daemon's own mark; the line is ignored",
        "line 13: the value holds a NUL; the line is ignored",
    ]
    assert "hunter2" not in " ".join(warnings)
    path.write_bytes(b"A=\xff")
    assert "not UTF-8" in read_dotenv(path)[1][0]


def test_pixie_tools_get_their_variables_and_need_their_secrets(tmp_path: Path) -> None:
    secrets = [{"key": "API_KEY", "required": True}, {"key": "OTHER", "required": True}, {"key": "MAYBE"}]
    spec = pixie(tmp_path, secrets=secrets)
    (spec.folder / ".env").write_text("OTHER=\n")
    with pytest.raises(StartFailedError) as caught:
        build_environment(spec, {"API_KEY": "the daemon's own"}, TOOLS_ENV, tmp_path, {})
    assert "does not set: API_KEY, OTHER" in caught.value.detail
    assert caught.value.extra == {"reason": "spawn_failed", "stage": "environment"}
    (spec.folder / ".env").write_text("OTHER=1\nAPI_KEY=k\n")
    env: Environment = build_environment(spec, {}, TOOLS_ENV, tmp_path / "artefacts", {})
    assert (env["PIXIE_TOOL_ID"], env["PIXIE_ARTEFACTS_ROOT"]) == ("tool", str(tmp_path / "artefacts"))


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def trouble(tmp_path: Path, settings_python: str | None = None, **keys: Any) -> str:
    with pytest.raises(StartFailedError) as caught:
        find_interpreter(plain(tmp_path, **keys), settings_python)
    assert caught.value.extra == {"reason": "spawn_failed", "stage": "interpreter"}
    assert caught.value.hint == "pxctl tools sync tool"
    return caught.value.detail


def test_an_interpreter_that_is_missing_is_named(tmp_path: Path) -> None:
    assert "python3.99 of tool:tool (`python` of the tool) is not there" in trouble(tmp_path, python="python3.99")
    assert "`tools.python` of the settings" in trouble(tmp_path, "/nowhere/python")
    venv = plain(tmp_path).folder / ".venv"
    (venv / "bin").mkdir(parents=True)
    assert "(its .venv) is not there" in trouble(tmp_path)
    (venv / "bin" / "python").touch(0o644)
    assert "is not executable" in trouble(tmp_path)
