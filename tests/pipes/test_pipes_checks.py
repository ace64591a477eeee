"""`pxctl pipe validate`: every check says pass, warn, fail or skip, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipe_texts import LIMIT, write_folder
from supervisord_py.config.documents import Problem
from supervisord_py.pipes.catalog import read_pipe
from supervisord_py.pipes.checks import NAMES, Check, CheckStatus, validate

if TYPE_CHECKING:
    from pathlib import Path

PASS, WARN, FAIL, SKIP = CheckStatus


def checks_of(folder: Path, **known: Any) -> dict[str, Check]:
    """Return the first check of each name."""
    declared = read_pipe(folder, limit_bytes=LIMIT)
    found = validate(declared, **known)
    assert list(dict.fromkeys(each.name for each in found)) == list(NAMES)
    return {each.name: each for each in reversed(found)}


def statuses(checks: dict[str, Check]) -> dict[str, CheckStatus]:
    return {name: each.status for name, each in checks.items() if each.status is not PASS}


def test_a_good_pipe_passes(tmp_path: Path) -> None:
    found = checks_of(write_folder(tmp_path, "a", "schedule: every 5m\npreset: fast"))
    assert statuses(found) == {"command": SKIP}
    assert found["schedule"].message == "every 5m"
    assert found["presets"].message == "fast"
    assert found["env_file"].message == "there is none"


def test_what_the_other_rooms_say_fails_the_pipe_or_is_a_warning(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "a", "agent: command\ncommand: ./a.sh", body="")
    keys = ("agent", "command", "presets")
    named = {name: Problem(message=f"no {name}", hint="mend it", file="pipe.md") for name in keys}
    found = checks_of(folder, troubles=named, doubts={"schedule": ["over"], "agent": ["odd"]})
    assert statuses(found) == {"agent": FAIL, "command": FAIL, "presets": FAIL, "schedule": WARN}
    assert (found["agent"].message, found["agent"].hint, found["schedule"].message) == ("no agent", "mend it", "over")
    assert statuses(checks_of(folder)) == {}


def test_a_broken_file_fails_where_it_is_wrong_and_the_rest_is_skipped(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "a", "schedule: continuous\npreset: ['*', a]\neffort: x\nagent: command")
    found = checks_of(folder)
    assert {name for name, each in found.items() if each.status is FAIL} == {"schedule", "presets", "keys", "command"}
    assert found["front_matter"].status is PASS
    assert found["prompt"].status is SKIP
    assert (found["schedule"].line, found["effort" if "effort" in found else "keys"].line) == (2, 4)
    assert found["schedule"].hint


@pytest.mark.parametrize("header", ["a: *x", "a: 1\na: 2"])
def test_a_syntax_error_hides_everything_else(tmp_path: Path, header: str) -> None:
    found = checks_of(write_folder(tmp_path, "a", header))
    assert {each.status for name, each in found.items() if name != "front_matter"} == {SKIP}
    assert found["front_matter"].status is FAIL


def test_secrets_that_others_may_read_are_a_warning(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "a")
    (folder / ".env").write_text("KEY=1")
    (folder / ".env").chmod(0o644)
    found = checks_of(folder)["env_file"]
    assert (found.status, found.hint) == (WARN, f"chmod 600 {folder}/.env")
    (folder / ".env").chmod(0o600)
    assert checks_of(folder)["env_file"].status is PASS
    (folder / ".env").write_text("KEY=1\nthis is not\n=x\n")
    found = checks_of(folder)["env_file"]
    assert (found.status, found.message) == (WARN, f"{folder}/.env, line 2: is no NAME=value; the line is ignored")
    (folder / ".env").unlink()
    (folder / ".env").mkdir()
    assert checks_of(folder)["env_file"].status is FAIL
    (folder / ".env").rmdir()
    (folder / ".env").symlink_to(".env")
    assert checks_of(folder)["env_file"].status is FAIL


def test_a_prompt_that_says_nothing_fails_and_keys_without_effect_warn(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "a", "scedule: daily\nlookback: 1h\ntrigger: pipe_completed:b", body="")
    declared = read_pipe(folder, limit_bytes=LIMIT)
    found = validate(declared)
    assert [each.status for each in found if each.name == "keys"] == [WARN, WARN]
    assert next(each for each in found if each.name == "prompt").status is FAIL
    assert next(each for each in found if each.name == "schedule").message == "on pipe_completed:b"
