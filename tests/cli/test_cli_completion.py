"""Completion, help and manual: live names in time or not at all; every command explained, here
and in its page.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from cli.fake_daemon import FakeDaemon, document
from cli.px import DEADLINE, REPOSITORY, House, Px
from pxctl.app import root, run
from pxctl.habits import OTHER_WORDS
from supervisord_py.pipes.definition import USED

PAGE = REPOSITORY / "man" / "man1" / "pxctl.1"


# -- completion ------------------------------------------------------------------------------------


def complete(px: Px, *words: str, **env: str) -> list[str]:
    """Ask as bash does; the last word is the one being typed.

    Without what the shell itself completes.
    """
    return [value for kind, value in offered(px, *words, **env) if kind == "plain"]


def offered(px: Px, *words: str, **env: str) -> list[tuple[str, str]]:
    asked = {"COMP_WORDS": " ".join(["pxctl", *words]), "COMP_CWORD": str(len(words))}
    ended = px(_PXCTL_COMPLETE="bash_complete", **asked, **env)
    assert ended.err == ""
    answers = [line.partition(",") for line in ended.lines if line]
    return [(kind, value) for kind, _, value in answers]


def offers(px: Px, wanted: list[str], *words: str) -> bool:
    """Say whether these names come; the stand-in may miss the tenth of a second that completion
    gives a daemon.
    """
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


PATHS = {
    "tools add fo": ("file", "fo"),
    "pipe add fo": ("file", "fo"),
    "exec -f fo": ("file", "fo"),
    "exec -o fo": ("file", "fo"),
    "exec --cwd fo": ("dir", "fo"),
    "exec --interpreter fo": ("file", "fo"),
    "kernel start --interpreter fo": ("file", "fo"),
    "kernel start --cwd fo": ("dir", "fo"),
    "kernel export k -o fo": ("file", "fo"),
    "run t -o fo": ("file", "fo"),
    "run t --input @fo": ("file", "fo"),
    "run t doc=@fo": ("file", "fo"),
    "pipe run p --context @fo": ("file", "fo"),
}


def test_paths_are_left_to_the_shell(px: Px) -> None:
    assert {line: offered(px, *line.split()) for line in PATHS} == {
        line: [path] for line, path in PATHS.items()
    }


def test_options_that_every_command_takes_are_completed(px: Px) -> None:
    for command in ("status", "pipe run", "pipe", "kernel list"):
        assert complete(px, *command.split(), "--js") == ["--json"]
        assert complete(px, *command.split(), "--sy") == ["--system"]


def test_live_names(px: Px, daemon: FakeDaemon) -> None:
    units = [{"unit": f"tool:{name}", "name": name} for name in ("alpha", "alto", "beta")]
    daemon.on("GET /api/units", document({"units": units}))
    daemon.on(
        "GET /api/tools/alpha",
        document({"input_schema": {"properties": {"rho": {}, "rate": {}, "xs": {}}}}),
    )
    daemon.on("GET /api/executions", document({"executions": [{"id": 12}, {"id": 9}]}))
    assert offers(px, ["alpha", "alto"], "stop", "al")
    assert offers(px, ["tool:alpha", "tool:alto"], "stop", "tool:al")
    assert offers(px, ["beta"], "events", "--unit", "be")
    assert offers(px, ["rho=", "rate="], "run", "alpha", "r")
    assert complete(px, "run", "alpha", "rho=") == complete(px, "run", "kernel:x", "r") == []
    assert offers(px, ["12", "9", "alpha", "alto", "beta"], "pipe", "output", "''")


# -- help ------------------------------------------------------------------------------------------


Path = tuple[str, ...]


def all_commands(
    group: click.Group = root, path: Path = ()
) -> Iterator[tuple[Path, click.Command]]:
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
        page = (
            re.sub(r"\\f[BIPR]|\\&", "", PAGE.read_text()).replace("\\-", "-").replace("\\(aq", "'")
        )
        assert re.search(rf"^(\.B )?(\.BR )?{' '.join(path)}( |$)", page, re.MULTILINE)
        options = [
            one
            for each in COMMANDS[path].params
            if isinstance(each, click.Option)
            for one in each.opts
        ]
        assert [one for one in options if one not in page] == []


NEAREST = {
    "statu": "status",
    "statu web": "status web",
    "ps": "status",
    "ls": "status",
    "top": "status --watch",
    "log a": "logs a",
    "tail -f a": "logs -f a",
    "rm x": "tools remove x, or pxctl pipe remove x",
    "inspect a": "tools show a, or pxctl pipe show a, or pxctl kernel show a",
    "enable nightly": "pipe enable nightly",
    "startup": "daemon install",
    "reset": "kernel restart",
    "qqqq": "--help",
    "shell": "kernel attach",
    "run x --text y": "run TOOL text=VALUE",
    "tools rm x": "tools remove x",
    "tools run a n=1": "run a n=1",
    "kernel exec 'x y'": "exec --kernel 'x y'",
    "kernel history k": "kernel export k",
    "kernel qqqq": "kernel --help",
    "pipe ls": "pipe list",
    "pipe logs p": "pipe output p",
    "pipe help": "pipe --help",
}


def test_a_command_that_is_called_otherwise_is_answered_with_the_nearest_one(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for line, near in NEAREST.items():
        assert run(shlex.split(line)) == 2
        out, err = capfd.readouterr()
        assert (out, err.splitlines()[-1]) == ("", f"hint: pxctl {near}")


def test_words_of_other_programs_lead_to_commands_that_exist_and_hide_none() -> None:
    for group, words in OTHER_WORDS.items():
        path = tuple(group.split())
        assert path in COMMANDS
        for word, commands in words.items():
            assert (*path, word) not in COMMANDS, "it would never be told"
            for command in commands:
                name = tuple(part for part in command.split() if part[0] != "-")
                assert name in COMMANDS or name[0] == "help", command


def test_help_and_version_have_short_names(px: Px) -> None:
    for line in ("-h", "status -h", "pipe -h", "pipe run -h"):
        ended = px(*line.split())
        assert (ended.code, ended.text.startswith("Usage: pxctl")) == (0, True)
    assert px("-V").text == px("--version").text != ""


def test_an_option_that_should_be_an_input_is_told_as_one(px: Px) -> None:
    ended = px("run", "greet", "--text", "hello")
    assert (ended.code, "text=VALUE" in ended.err.splitlines()[-1]) == (2, True)


def test_the_list_of_commands_has_one_line_for_each() -> None:
    shown = {path: command.get_short_help_str(200) for path, command in COMMANDS.items() if path}
    assert {path: text for path, text in shown.items() if len(text) > 60} == {}


def test_help_begins_with_first_steps_and_ends_with_the_manual() -> None:
    shown = CliRunner().invoke(root, ["-h"], prog_name="pxctl").stdout
    assert "pxctl tools add example:compound-interest" in shown
    assert "explained by pxctl --help" not in shown, "it is that help"
    for name in ("tools", "kernel", "pipe", "daemon", "config"):
        assert (
            f"Examples:\n    pxctl {'exec' if name == 'kernel' else name} "
            in CliRunner().invoke(root, [name, "-h"]).stdout
        )


def test_a_page_is_opened_by_man_from_where_it_lies_and_a_command_shows_its_help(
    house: House,
) -> None:
    house.fake("man", 'echo "man $*"')
    (page,) = house("help", "pxd.toml", "--json").json()["pages"]
    assert (page["section"], house("help", "pxd.toml").text) == (5, f"man {page['path']}\n")
    (house.bin / "man").unlink()
    ended = house("help", "pxd.toml", PATH=str(house.bin))
    assert (ended.code, page["path"] in ended.err.splitlines()[-1]) == (1, True)
    assert "settings of pxd" in next(
        line for line in house("help").lines if line.startswith("pxd.toml ")
    )
    assert house("help", "pipe", "run").text.startswith("Usage: pxctl pipe run ")
    ended = house("help", "nonsense")
    assert (ended.code, ended.err.splitlines()[-1]) == (2, "hint: pxctl help")
