"""`pxctl help`: a page of the manual is opened by man, wherever it lies; a command shows its own help."""

from __future__ import annotations

from cli.bin_house import House
from cli.px import Px


def test_a_page_is_opened_by_man_from_where_it_lies(house: House) -> None:
    house.fake("man", 'echo "man $*"')
    (page,) = house("help", "pxd.toml", "--json").json()["pages"]
    assert page["section"] == 5
    assert house("help", "pxd.toml").text == f"man {page['path']}\n"
    (house.bin / "man").unlink()
    ended = house("help", "pxd.toml", PATH=str(house.bin))
    assert ended.code == 1
    assert page["path"] in ended.err.splitlines()[-1]


def test_without_a_topic_the_pages_are_listed(px: Px) -> None:
    assert {"pxctl", "pxd.toml", "px-prelude"} <= {page["name"] for page in px("help", "--json").json()["pages"]}
    lines = px("help").lines
    assert "settings of pxd" in next(line for line in lines if line.startswith("pxd.toml "))


def test_a_command_shows_its_own_help_and_the_rest_is_a_mistake(px: Px) -> None:
    assert px("help", "pipe", "run").text == px("pipe", "run", "--help").text
    ended = px("help", "nonsense")
    assert (ended.code, ended.err.splitlines()[-1]) == (2, "hint: pxctl help")
