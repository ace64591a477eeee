"""Completion, help and manual: live names in time or not at all; every command explained, here and in its page."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from cli.fake_daemon import FakeDaemon, document
from cli.px import DEADLINE, REPOSITORY, House, Px
from pxctl.app import root, run
from supervisord_py.pipes.definition import USED

PAGE = REPOSITORY / "man" / "man1" / "pxctl.1"


# -- completion -------------------------------------------------------------------------------------------------------


def complete(px: Px, *words: str, **env: str) -> list[str]:
    """Ask as bash does; the last word is the one being typed."""
    asked = {"COMP_WORDS": " ".join(["pxctl", *words]), "COMP_CWORD": str(len(words))}
    ended = px(_PXCTL_COMPLETE="bash_complete", **asked, **env)
    assert ended.err == ""
    return [line.partition(",")[2] for line in ended.lines if line]


def offers(px: Px, wanted: list[str], *words: str) -> bool:
    """Say whether these names come; the stand-in may miss the tenth of a second that completion gives a daemon."""
    deadline = time.monotonic() + DEADLINE
    while (found := complete(px, *words)) != wanted and time.monotonic() < deadline:
        assert found == [], "in time or not at all"
    return found == wanted


def test_what_is_known_without_a_daemon_is_completed_and_none_is_started(px: Px) -> None:
    assert complete(px, "st") == ["status", "start", "stop"]
    assert "--watch" in complete(px, "status", "--w")
    assert complete(px, "status", "--color", "a") == ["auto", "always"]
    assert complete(px, "tools", "add", "example:l") == ["example:lorenz-ode-solver"]
    assert complete(px, "pipe", "config", "p", "sched") == ["schedule=", "schedule_config="]
    assert "pxd.toml" in complete(px, "help", "p")
    assert complete(px, "run", "a", PX_AUTOSTART="1") == []
    assert not (px.folder / "px").exists()


def test_keys_of_a_pipe_are_those_that_the_daemon_reads(px: Px) -> None:
    assert sorted(complete(px, "pipe", "config", "p", "")) == sorted(f"{key}=" for key in USED)


def test_live_names(px: Px, daemon: FakeDaemon) -> None:
    units = [{"unit": f"tool:{name}", "name": name} for name in ("alpha", "alto", "beta")]
    daemon.on("GET /api/units", document({"units": units}))
    daemon.on("GET /api/tools/alpha", document({"input_schema": {"properties": {"rho": {}, "rate": {}, "xs": {}}}}))
    daemon.on("GET /api/executions", document({"executions": [{"id": 12}, {"id": 9}]}))
    assert offers(px, ["alpha", "alto"], "stop", "al")
    assert offers(px, ["tool:alpha", "tool:alto"], "stop", "tool:al")
    assert offers(px, ["beta"], "events", "--unit", "be")
    assert offers(px, ["rho=", "rate="], "run", "alpha", "r")
    assert complete(px, "run", "alpha", "rho=") == complete(px, "run", "kernel:x", "r") == []
    assert offers(px, ["12", "9", "alpha", "alto", "beta"], "pipe", "output", "''")


# -- help -------------------------------------------------------------------------------------------------------------


Path = tuple[str, ...]


def all_commands(group: click.Group = root, path: Path = ()) -> Iterator[tuple[Path, click.Command]]:
    yield path, group
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from all_commands(found, (*path, name))
        else:
            yield (*path, name), found


COMMANDS = dict(all_commands())


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_has_its_place_in_the_manual(path: Path) -> None:
    ended = CliRunner().invoke(root, [*path, "--help"], prog_name="pxctl")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"Usage: {' '.join(['pxctl', *path])}")
    for option in ("--socket", "--system", "--json", "--color", "-q"):
        assert option in ended.stdout
    # Explained once, by `pxctl --help`, and elsewhere only named.
    assert ("Socket of the daemon." in ended.stdout) is (not path)
    if not isinstance(COMMANDS[path], click.Group):
        examples = ended.stdout.partition("\n  Examples:\n")[2].splitlines()
        assert examples
        assert all(" ".join(["pxctl", *path]) in line for line in examples)
        page = re.sub(r"\\f[BIPR]|\\&", "", PAGE.read_text()).replace("\\-", "-").replace("\\(aq", "'")
        assert re.search(rf"^(\.B )?(\.BR )?{' '.join(path)}( |$)", page, re.MULTILINE)
        options = [one for each in COMMANDS[path].params if isinstance(each, click.Option) for one in each.opts]
        assert [one for one in options if one not in page] == []


NEAREST = {
    "statu": "status", "ps": "status", "top": "status", "ls": "status", "rm x": "tools remove",
    "startup": "daemon install", "enable": "pipe enable", "tail x": "logs", "shell": "exec",
    "pipe logs": "pipe output", "pipe history": "pipe runs", "tools inspect": "tools show", "qqqq": "--help",
    "run x --text y": "run TOOL text=VALUE", "pipe help": "pipe --help",
    "pipe ls": "pipe list", "tools rm x": "tools remove", "kernel qqqq": "kernel --help",
}  # fmt: skip


def test_a_misspelled_command_is_answered_with_the_nearest_one(capfd: pytest.CaptureFixture[str]) -> None:
    for line, near in NEAREST.items():
        assert run(line.split()) == 2
        out, err = capfd.readouterr()
        assert (out, err.splitlines()[-1]) == ("", f"hint: pxctl {near}")


def test_a_page_is_opened_by_man_from_where_it_lies_and_a_command_shows_its_help(house: House) -> None:
    house.fake("man", 'echo "man $*"')
    (page,) = house("help", "pxd.toml", "--json").json()["pages"]
    assert (page["section"], house("help", "pxd.toml").text) == (5, f"man {page['path']}\n")
    (house.bin / "man").unlink()
    ended = house("help", "pxd.toml", PATH=str(house.bin))
    assert (ended.code, page["path"] in ended.err.splitlines()[-1]) == (1, True)
    assert "settings of pxd" in next(line for line in house("help").lines if line.startswith("pxd.toml "))
    assert house("help", "pipe", "run").text.startswith("Usage: pxctl pipe run ")
    ended = house("help", "nonsense")
    assert (ended.code, ended.err.splitlines()[-1]) == (2, "hint: pxctl help")
