"""The man page of the client tells every command, option, exit code and variable."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from cli.px import REPOSITORY
from pxctl.app import root

PAGE = REPOSITORY / "man" / "man1" / "pxctl.1"


def words() -> str:
    return re.sub(r"\\f[BIPR]|\\&", "", PAGE.read_text()).replace("\\-", "-").replace("\\(aq", "'")


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
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
    exit_status = words().partition(".SH EXIT STATUS")[2].partition(".SH")[0]
    assert {int(code) for code in re.findall(r"^\.B (\d)$", exit_status, re.MULTILINE)} == set(range(10))
