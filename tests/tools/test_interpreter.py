"""Which interpreter a tool gets, and what is said when there is none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.errors import StartFailedError
from supervisord_py.tools.declaring.interpreter import argv_for, find_interpreter
from tool_folders import plain


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def trouble(tmp_path: Path, settings_python: str | None = None, **keys: Any) -> StartFailedError:
    with pytest.raises(StartFailedError) as caught:
        find_interpreter(plain(tmp_path, **keys), settings_python)
    assert caught.value.extra == {"reason": "spawn_failed", "stage": "interpreter"}
    assert caught.value.hint == "pxctl tools sync tool"
    return caught.value


def test_the_order_of_choice(tmp_path: Path) -> None:
    spec = plain(tmp_path)
    assert find_interpreter(spec) == Path(sys.executable)
    settings = executable(tmp_path / "settings" / "python")
    assert find_interpreter(spec, str(settings)) == settings
    venv = executable(spec.folder / ".venv" / "bin" / "python")
    assert find_interpreter(spec, str(settings)) == venv
    own = executable(spec.folder / "bin" / "python")
    assert find_interpreter(plain(tmp_path, python="bin/python"), str(settings)) == own
    assert find_interpreter(plain(tmp_path, python=str(settings))) == settings


def test_a_bare_name_is_looked_up_on_the_path_and_home_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = executable(tmp_path / "bin" / "python3.99")
    assert find_interpreter(plain(tmp_path, python="python3.99"), path=str(tmp_path / "bin")) == found
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_interpreter(plain(tmp_path, python="~/bin/python3.99")) == found


def test_a_virtual_environment_is_not_resolved(tmp_path: Path) -> None:
    spec = plain(tmp_path)
    (spec.folder / ".venv" / "bin").mkdir(parents=True)
    (spec.folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    assert find_interpreter(spec) == spec.folder / ".venv" / "bin" / "python"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert (
        "python3.99 of tool:tool (`python` of the tool) is not there" in trouble(tmp_path, python="python3.99").detail
    )
    assert "`tools.python` of the settings" in trouble(tmp_path, "/nowhere/python").detail
    venv = plain(tmp_path).folder / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    assert "has no bin/python" in trouble(tmp_path).detail
    (venv / "bin" / "python").symlink_to("/nowhere/python3")
    assert "is a link to /nowhere/python3, which is not there" in trouble(tmp_path).detail
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").touch(0o644)
    assert "is not executable" in trouble(tmp_path).detail


def test_argument_vectors(tmp_path: Path) -> None:
    spec = plain(tmp_path)
    assert argv_for(spec, 8000, Path("/py")) == ("/py", "main.py", "--port", "8000")
    command = plain(tmp_path, command=["node", "--at={port}", "{host}"])
    assert argv_for(command, 8000, None) == ("node", "--at=8000", "{host}")
    with pytest.raises(StartFailedError, match="no interpreter"):
        argv_for(spec, 1, None)
    (spec.folder / "main.py").unlink()
    with pytest.raises(StartFailedError, match=r"entrypoint .* is not there"):
        argv_for(spec, 1, Path("/py"))
