"""A tool sees what it is allowed, what it brings, and nothing of the daemon's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.errors import StartFailedError
from supervisord_py.process.child_environment import DENIED, Environment, passed, read_dotenv
from supervisord_py.tools.config import DEFAULT_ENV_ALLOW
from supervisord_py.tools.declaring.environment import build_environment
from tool_folders import pixie, plain

if TYPE_CHECKING:
    from pathlib import Path

NAMES = st.sampled_from(
    ["PATH", "HOME", "LC_ALL", "LC_CTYPE", "LANG", "PX_API__TOKEN", "px_home", "Px_X", "SECRET", "PYTHONPATH", *DENIED]
) | st.text(st.characters(codec="ascii", exclude_characters="=\0"), min_size=1, max_size=8)


@given(st.dictionaries(NAMES, st.text(max_size=4)), st.lists(NAMES | NAMES.map(lambda name: f"{name}*") | st.just("*")))
def test_what_is_denied_never_passes_whatever_is_allowed(source: dict[str, str], allow: list[str]) -> None:
    got = passed(source, allow)
    assert not any(name.upper().startswith("PX_") or name in DENIED for name in got)
    assert got.items() <= source.items()
    for name in source:
        allowed = any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in allow)
        assert (name in got) == (allowed and not name.upper().startswith("PX_") and name not in DENIED)


def test_the_layers_in_their_order(tmp_path: Path) -> None:
    folder = plain(tmp_path, env={"B": "env", "C": "env"}).folder
    (folder / ".env").write_text("A=dotenv\nB=dotenv\nHOME=/dotenv\nLISTEN_FDS=9\nPX_OWN=mine\n")
    spec = plain(tmp_path, env={"B": "env", "C": "env"})
    source = {"PATH": "/bin", "HOME": "/root", "LC_TIME": "C", "AWS_SECRET": "x", "PX_TOOLS__PATHS": "x", "C": "daemon"}
    built = build_environment(spec, source, extra={"LISTEN_FDS": "1", "C": "extra"})
    assert dict(built.env) == {
        "PATH": "/bin",
        "HOME": "/dotenv",
        "LC_TIME": "C",
        "PYTHONUNBUFFERED": "1",
        "A": "dotenv",
        "B": "env",
        "C": "extra",
        "PX_OWN": "mine",
        "LISTEN_FDS": "1",
    }
    assert built.warnings == ()


def test_a_path_is_always_there(tmp_path: Path) -> None:
    assert "/usr/bin" in build_environment(plain(tmp_path), {}).env["PATH"]


def test_a_virtual_environment_is_activated(tmp_path: Path) -> None:
    spec = plain(tmp_path)
    venv = spec.folder / ".venv"
    venv.mkdir()
    assert "VIRTUAL_ENV" not in build_environment(spec, {}).env
    (venv / "pyvenv.cfg").touch()
    env = build_environment(spec, {"PATH": "/bin"}).env
    assert env["VIRTUAL_ENV"] == str(venv)
    assert env["PATH"] == f"{venv}/bin:/bin"


def test_values_never_appear_in_a_repr(tmp_path: Path) -> None:
    env = build_environment(plain(tmp_path, env={"KEY": "hunter2"}), {}).env
    assert "hunter2" not in repr(env)
    assert "KEY" in repr(env)
    assert env["KEY"] == "hunter2"
    assert len(Environment({"a": "b"})) == 1


def test_lines_of_dotenv_that_cannot_be_used_are_warnings_without_values(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(
        "# a comment\nA=1\n\n\nexport B='two words'\nthis is hunter2\nC\n1X=hunter2\nPX_INSTANCE=hunter2\n"
        'D=$A ${A}\nE=\nF="multi\nline"\nLAST=hunter2\0\n'
    )
    values, warnings = read_dotenv(path)
    assert values == {"A": "1", "B": "two words", "D": "$A ${A}", "E": "", "F": "multi\nline"}
    assert [warning.partition(", ")[2] for warning in warnings] == [
        "line 6: is no NAME=value; the line is ignored",
        "line 7: C has no value; the line is ignored",
        "line 8: the name is none that an environment can have; the line is ignored",
        "line 9: PX_INSTANCE is the daemon's own mark; the line is ignored",
        "line 14: the value holds a NUL; the line is ignored",
    ]
    assert "hunter2" not in " ".join(warnings)


def test_a_dotenv_that_cannot_be_read_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    assert read_dotenv(path) == ({}, ())
    path.write_bytes(b"A=\xff")
    assert "not UTF-8" in read_dotenv(path)[1][0]
    path.unlink()
    path.mkdir()
    assert "ignored" in read_dotenv(path)[1][0]


def test_pixie_tools_get_their_variables_and_need_their_secrets(tmp_path: Path) -> None:
    secrets = [{"key": "API_KEY", "required": True}, {"key": "OTHER", "required": True}, {"key": "MAYBE"}]
    spec = pixie(tmp_path, secrets=secrets)
    (spec.folder / ".env").write_text("OTHER=\n")
    with pytest.raises(StartFailedError) as caught:
        build_environment(spec, {"API_KEY": "the daemon's own"})
    assert "secrets API_KEY, OTHER" in caught.value.detail
    assert caught.value.extra == {"reason": "spawn_failed", "stage": "environment"}
    (spec.folder / ".env").write_text("OTHER=1\nAPI_KEY=k\n")
    env = build_environment(spec, {}, artefacts_root=tmp_path / "artefacts").env
    assert env["PIXIE_TOOL_ID"] == "tool"
    assert env["PIXIE_ARTEFACTS_ROOT"] == str(tmp_path / "artefacts")


def test_the_default_list_holds_no_setting_of_an_interpreter() -> None:
    assert not [name for name in DEFAULT_ENV_ALLOW if name.startswith(("PYTHON", "PX_"))]
