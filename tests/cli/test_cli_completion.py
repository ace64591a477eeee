"""Completion: scripts that shells accept, live names in time or not at all; help for every command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cli.bin_house import House
from cli.fake_daemon import FakeDaemon, document
from cli.px import DEADLINE, REPOSITORY, Px, until
from pxctl.app import root

UNITS = document({"units": [{"kind": "tool", "name": name} for name in ("alpha", "alto", "beta")]})
TOOLS = document({"tools": [{"name": name} for name in ("alpha", "alto", "beta")]})
TOOL = document({"name": "alpha", "state": "cold", "input_schema": {"properties": {"rho": {}, "rate": {}, "xs": {}}}})


def complete(px: Px, *words: str, **env: str) -> list[str]:
    """Ask as bash does; the last word is the one being typed."""
    ended = px(
        _PXCTL_COMPLETE="bash_complete", COMP_WORDS=" ".join(["pxctl", *words]), COMP_CWORD=str(len(words)), **env
    )
    assert ended.err == ""
    return [line.partition(",")[2] for line in ended.lines if line]


def offers(px: Px, wanted: list[str], *words: str) -> bool:
    """Say whether these names come; the stand-in may miss the tenth of a second that completion gives a daemon."""
    deadline = time.monotonic() + DEADLINE
    while (found := complete(px, *words)) != wanted and time.monotonic() < deadline:
        assert found == [], "in time or not at all"
    return found == wanted


def test_commands_and_options_are_completed_without_a_daemon(px: Px) -> None:
    assert complete(px, "st") == ["status", "start", "stop"]
    assert complete(px, "tools", "s") == ["show", "sync"]
    assert "--watch" in complete(px, "status", "--w")
    assert complete(px, "--so") == ["--socket"]
    assert complete(px, "status", "--color", "a") == ["auto", "always"]
    assert complete(px, "completion", "z") == ["zsh"]


def test_live_names(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/units", UNITS).on("GET /api/tools", TOOLS).on("GET /api/tools/alpha", TOOL)
    assert offers(px, ["alpha", "alto"], "stop", "al")
    assert offers(px, ["tool:alpha", "tool:alto"], "stop", "tool:al")
    assert offers(px, ["beta"], "run", "b")
    assert offers(px, ["rho=", "rate="], "run", "alpha", "r")
    assert complete(px, "run", "alpha", "rho=") == []
    assert complete(px, "run", "kernel:x", "r") == []
    assert offers(px, ["beta"], "events", "--unit", "be")


def test_nobody_there_is_no_error_and_starts_nothing(px: Px) -> None:
    assert complete(px, "run", "a", PX_AUTOSTART="1") == []
    assert not (px.folder / "px").exists()


def in_bash(px: Px, line: str) -> list[str]:
    """Complete a line in a real bash, with the words cut at colons as readline cuts them."""
    words = [word for word in re.split(r"\s+|(:|=)", line) if word] + ([""] if line.endswith(" ") else [])
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        f'pxctl() {{ "{sys.executable}" -m pxctl "$@"; }}\nenv() {{ /usr/bin/env "$@"; }}\n'
        + px("completion", "bash").text.replace('"$1" 2>/dev/null', f'"{sys.executable}" -m pxctl')
        + f"\nCOMP_LINE='{line}'\nCOMP_POINT={len(line)}\nCOMP_WORDS=({quoted})\nCOMP_CWORD={len(words) - 1}\n"
        + '_pxctl_complete pxctl\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", script], env=px.environment(), capture_output=True, check=True, timeout=60)
    assert done.stderr == b""
    return [name for name in done.stdout.decode().splitlines() if name]


def bash_offers(px: Px, line: str, names: list[str]) -> bool:
    return in_bash(px, line) == names


@pytest.mark.deep
def test_bash_completes_names_with_colons(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/units", UNITS).on("GET /api/tools", TOOLS).on("GET /api/tools/alpha", TOOL)
    for line, names in {
        "pxctl stop tool:al": ["alpha", "alto"],
        "pxctl stop al": ["alpha", "alto"],
        "pxctl run ": ["alpha", "alto", "beta"],
        "pxctl run alpha r": ["rho=", "rate="],
    }.items():
        until(partial(bash_offers, px, line, names), f"{line} is completed")
    assert in_bash(px, "pxctl tools s") == ["show", "sync"]


def in_zsh(house: House, line: str) -> list[str]:
    """Complete a line in a real zsh; what it would offer is printed."""
    words = [word or "''" for word in line.split(" ")]
    script = (
        "compdef() { completer=$1 }\ncompadd() { print -rl -- ${(P)@[-1]} }\n_describe() { print -rl -- ${(P)3} }\n"
        + house("completion", "zsh").text
        + f"\nwords=({' '.join(words)}); CURRENT={len(words)}; $completer\n"
    )
    env = house.px.environment(PATH=f"{house.bin}:{os.environ['PATH']}")
    done = subprocess.run(["zsh", "-f"], input=script.encode(), env=env, capture_output=True, check=True, timeout=60)
    assert done.stderr == b""
    return done.stdout.decode().splitlines()


@pytest.mark.deep
def test_zsh_completes_more_than_the_first_word(
    px: Px, daemon: FakeDaemon, require: Callable[[object, str], None]
) -> None:
    require(shutil.which("zsh"), "needs zsh")
    daemon.on("GET /api/units", UNITS).on("GET /api/tools", TOOLS).on("GET /api/tools/alpha", TOOL)
    house = House(px)
    for line, names in {
        "pxctl stop al": ["alpha", "alto"],
        "pxctl stop tool:al": ["tool:alpha", "tool:alto"],
        "pxctl run ": ["alpha", "alto", "beta"],
        "pxctl run alpha r": ["rho=", "rate="],
    }.items():
        until(lambda line=line, names=names: in_zsh(house, line) == names, f"{line} is completed")
    assert [offer.partition(":")[0] for offer in in_zsh(house, "pxctl tools s")] == ["show", "sync"]


def all_commands() -> Iterator[tuple[str, ...]]:
    def walk(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name in group.list_commands(click.Context(group)):
            found = group.get_command(click.Context(group), name)
            assert found is not None
            assert found.get_short_help_str()
            if isinstance(found, click.Group):
                yield from walk(found, (*path, name))
            else:
                yield (*path, name)

    yield from walk(root, ())


PROMISED = {
    "": "status run pin unpin start stop restart logs wait events why doctor exec completion version",
    "tools": "list show validate debug new add sync remove",
    "kernel": "list start stop restart interrupt attach export",
    "pipe": "list show validate new add remove enable disable run cancel queue next runs output tail retry",
    "daemon": "start stop restart reload status install uninstall",
    "config": "show check",
}


def test_every_promised_command_is_there() -> None:
    promised = {(group, name) if group else (name,) for group, names in PROMISED.items() for name in names.split()}
    assert promised <= set(all_commands())


@pytest.mark.parametrize("path", list(all_commands()), ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(root, [*path, "--help"], prog_name="pxctl")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"Usage: {' '.join(['pxctl', *path])}")
    assert "=None" not in ended.stdout
    for option in ("--socket", "--system", "--json", "--color", "-q"):
        assert option in ended.stdout
    # Explained once, by `pxctl --help`, and elsewhere only named.
    assert ("Socket of the daemon." in ended.stdout) is (not path)
    if path and path not in {("tools",), ("daemon",), ("config",), ("kernel",), ("pipe",)}:
        examples = ended.stdout.partition("\nExamples:\n")[2].splitlines()
        assert examples
        assert all(" ".join(["pxctl", *path]) in line for line in examples)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("statu", "pxctl status"), ("ps", "pxctl status"), ("top", "pxctl status --watch"), ("ls", "pxctl status"),
        ("log", "pxctl logs"), ("pipe help", "pxctl pipe --help"), ("tool list", "pxctl tools"),
        ("pipe ls", "pxctl pipe list"),
        ("tools rm x", "pxctl tools remove"), ("kernel qqqq", "pxctl kernel --help"),
    ],
)  # fmt: skip
def test_a_misspelled_command_is_answered_with_the_nearest_one(px: Px, line: str, meant: str) -> None:
    ended = px(*line.split())
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.splitlines()[-1] == f"hint: {meant}"


def test_examples_ids_and_keys_are_completed(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/pipes", document({"pipes": [{"name": "digest"}]}))
    daemon.on("GET /api/executions", document({"executions": [{"id": 12}, {"id": 9}]}))
    examples = REPOSITORY / "supervisord_py" / "examples"
    for kind, folder in (("tools", examples / "tools"), ("pipe", examples / "pipes")):
        names = sorted(f"example:{one.name}" for one in folder.iterdir() if one.is_dir())
        assert complete(px, kind, "add", "example:") == names
    assert complete(px, "pipe", "config", "digest", "time") == ["timeout=", "timezone="]
    assert offers(px, ["12", "9", "digest"], "pipe", "output", "''")
