"""`pxctl pipe validate`: every check says pass, warn or fail, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipe_texts import write_folder
from supervisord_py.config.documents import Problem
from supervisord_py.pipes.catalog import read_pipe
from supervisord_py.pipes.checks import NAMES, Check, CheckStatus, validate

PASS, WARN, FAIL = CheckStatus


def checks_of(folder: Path, **known: Any) -> dict[str, Check]:
    """Return the first check of each name."""
    found = validate(read_pipe(folder), **known)
    return {each.name: each for each in reversed(found)}


def statuses(checks: dict[str, Check]) -> dict[str, CheckStatus]:
    return {name: each.status for name, each in checks.items() if each.status is not PASS}


def test_a_good_pipe_passes_each_check(tmp_path: Path) -> None:
    found = checks_of(write_folder(tmp_path, "a", "schedule: every 5m\npreset: fast"))
    assert (set(found), statuses(found)) == (set(NAMES), {})
    assert (found["schedule"].message, found["presets"].message) == ("every 5m", "fast")


def test_what_the_other_rooms_say_fails_the_pipe_or_is_a_warning(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "a", "agent: command\ncommand: ./a.sh", body="")
    named = {name: Problem(message=f"no {name}", hint="mend it", file="pipe.md") for name in ("agent", "presets")}
    found = checks_of(folder, troubles=named, doubts={"schedule": ["over"], "agent": ["odd"]})
    assert statuses(found) == {"agent": FAIL, "presets": FAIL, "schedule": WARN}
    assert (found["agent"].message, found["agent"].hint, found["schedule"].message) == ("no agent", "mend it", "over")
    assert statuses(checks_of(folder)) == {}


def test_a_broken_file_fails_where_it_is_wrong_and_hides_the_rest(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "a", "schedule: continuous\npreset: ['*', a]\neffort: x\nagent: command")
    found = checks_of(folder)
    assert {name: each.line for name, each in found.items()} == {"schedule": 2, "presets": 3, "keys": 4, "command": 5}
    assert found["schedule"].hint
    found = checks_of(write_folder(tmp_path, "b", "a: *x"))
    assert statuses(found) == {"front_matter": FAIL}


def test_secrets_that_others_may_read_are_a_warning(tmp_path: Path) -> None:
    file = write_folder(tmp_path, "a") / ".env"
    file.write_text("KEY=1")
    file.chmod(0o644)
    found = checks_of(file.parent)["env_file"]
    assert (found.status, found.hint) == (WARN, f"chmod 600 {file}")
    file.chmod(0o600)
    assert checks_of(file.parent)["env_file"].status is PASS
    file.write_text("KEY=1\nthis is not\n=x\n")
    found = checks_of(file.parent)["env_file"]
    assert (found.status, found.message) == (WARN, f"{file}, line 2: is no NAME=value; the line is ignored")
    file.unlink()
    file.symlink_to(".env")
    assert checks_of(file.parent)["env_file"].status is FAIL


def test_a_prompt_that_says_nothing_fails_and_keys_without_effect_warn(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "a", "scedule: daily\nlookback: 1h\ntrigger: pipe_completed:b", body="")
    found = validate(read_pipe(folder))
    assert [each.status for each in found if each.name == "keys"] == [WARN, WARN]
    assert next(each for each in found if each.name == "prompt").status is FAIL
    assert next(each for each in found if each.name == "schedule").message == "on pipe_completed:b"
