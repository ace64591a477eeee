"""The completion scripts in their shells: files where a file is wanted, descriptions whole."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from collections.abc import Callable

import pytest

from cli.px import DEADLINE, REPOSITORY, House

SCRIPTS = REPOSITORY / "cli" / "completions"


def environment(house: House) -> dict[str, str]:
    return house.px.environment(
        PATH=f"{house.bin}:/usr/bin:/bin", TERM="dumb", ZDOTDIR=str(house.px.folder)
    )


def assert_completes(house: House, argv: list[str], setup: str, typed: str, wanted: str) -> None:
    """Type a line that ends in a tab into an interactive shell on a terminal of its own; see
    what it becomes.
    """
    master, slave = pty.openpty()
    place = {"env": environment(house), "cwd": house.px.folder}
    process = subprocess.Popen(
        argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, **place
    )
    os.close(slave)
    screen = ""

    def see(text: str) -> None:
        nonlocal screen
        deadline = time.monotonic() + DEADLINE
        while text not in screen:
            assert time.monotonic() < deadline, f"{text!r} was not seen in {screen!r}"
            if select.select([master], [], [], 1.0)[0]:
                screen += os.read(master, 65536).decode(errors="replace")

    try:
        os.write(master, f"{setup}; PS1='rea''dy '\n".encode())
        see("ready ")
        screen = ""
        os.write(master, f"{typed}\t".encode())
        see(wanted)
    finally:
        process.kill()
        process.wait(DEADLINE)
        os.close(master)


SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {}/pxctl"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "fpath=({} $fpath); autoload -Uz compinit; compinit -u; setopt no_beep",
    ),
}


@pytest.mark.parametrize("name", SHELLS)
def test_bash_and_zsh_complete_files(
    name: str, house: House, require: Callable[[object, str], None]
) -> None:
    require(shutil.which(name), f"needs {name}")
    (house.px.folder / "somewhere").mkdir()
    (house.px.folder / "somefile.json").write_text("{}")
    argv, setup = SHELLS[name]
    wanted = {
        "pxctl tools add somew": "somewhere/",
        "pxctl pipe add ./somew": "./somewhere/",
        "pxctl exec -f somef": "somefile.json",
        "pxctl exec --cwd somew": "somewhere/",
        "pxctl run t -o somef": "somefile.json",
        "pxctl run t doc=@somef": "somefile.json",
        "pxctl run t --input @somef": "somefile.json",
        "pxctl tools add example:co": "example:compound-interest",
    }
    for typed, whole in wanted.items():
        assert_completes(house, argv, setup.format(SCRIPTS), typed, whole)


def test_fish_completes_files_and_shows_whole_descriptions(
    house: House, require: Callable[[object, str], None]
) -> None:
    require(shutil.which("fish"), "needs fish")
    (house.px.folder / "somewhere").mkdir()
    (house.px.folder / "somefile.json").write_text("{}")
    wanted = {
        "pxctl tools add ./somew": "./somewhere/",
        "pxctl pipe add somew": "somewhere/",
        "pxctl exec -f somef": "somefile.json",
        "pxctl exec --cwd somew": "somewhere/",
        "pxctl run t --input @somef": "@somefile.json",
        "pxctl run t doc=@somef": "doc=@somefile.json",
        "pxctl tools add example:co": "example:compound-interest",
        "pxctl status --js": "--json",
    }
    lines = "; ".join(
        f"complete -C '{line}'; echo ====" for line in [*wanted, "pxctl stop --time", "pxctl sto"]
    )
    script = f"source {SCRIPTS}/pxctl.fish; {lines}"
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        env=environment(house), cwd=house.px.folder, capture_output=True, text=True, check=True,
        timeout=DEADLINE,
    )  # fmt: skip
    *found, timeout, stop, _ = done.stdout.split("====\n")
    assert [each.partition("\t")[0].strip() for each in found] == list(wanted.values())
    assert timeout == "--timeout\tGive up after S seconds (exit 7).\n"
    assert stop == "stop\tStop units, and name what survived\n"
