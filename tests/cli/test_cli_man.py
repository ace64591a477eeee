"""The man page of the client tells every command, option, exit code and variable."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import click
import pytest

from cli.px import REPOSITORY
from pxctl import failure
from pxctl.app import LazyGroup
from pxctl.app import command as root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = REPOSITORY / "man" / "man1" / "pxctl.1"


def words() -> str:
    return re.sub(r"\\f[BIPR]|\\&", "", PAGE.read_text()).replace("\\-", "-").replace("\\(aq", "'")


def leaves(group: LazyGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name in group.entries:
        found = group.get_command(click.Context(group), name)
        assert found is not None
        if isinstance(found, LazyGroup):
            yield from leaves(found, (*path, name))
        else:
            yield " ".join([*path, name]), found


@pytest.mark.parametrize(
    ("name", "command"), list(leaves(root)), ids=lambda part: part if isinstance(part, str) else ""
)
def test_every_command_and_option_is_documented(name: str, command: click.Command) -> None:
    text = words()
    assert re.search(rf"^(\.B )?(\.BR )?{name}( |$)", text, re.MULTILINE), name
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            for option in parameter.opts:
                assert option in text, f"{name} {option}"


def test_every_exit_code_is_documented() -> None:
    codes = {value for key, value in vars(failure).items() if key.isupper() and isinstance(value, int)}
    exit_status = words().partition(".SH EXIT STATUS")[2].partition(".SH")[0]
    assert {int(code) for code in re.findall(r"^\.B (\d)$", exit_status, re.MULTILINE)} == codes | {9}


def test_groff_has_nothing_to_warn_about(require: Callable[[object, str], None]) -> None:
    require(shutil.which("groff"), "needs groff")
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", str(PAGE)], capture_output=True, check=True)
    assert done.stderr == b""
    assert b"EXAMPLES" in done.stdout.replace(b"\x08", b"") or b"E\x08EX\x08X" in done.stdout
