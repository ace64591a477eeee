"""Rich outputs: their words, JSON as a tree, pictures saved and drawn by the protocol that the terminal speaks."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import struct
import time
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pxctl import inline_images
from pxctl.failure import Failure
from pxctl.inline_images import CannotDraw, drawn, way_for
from pxctl.rich_text import FULL_TREE_DEPTH, Picture, picture_in, text_of_html, tree, words_of
from pxctl.saved_pictures import KEEP_SECONDS, Album, pictures_dir

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def png(width: int = 2, height: int = 2) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content) & 0xFFFFFFFF)
        )

    rows = b"".join(b"\0" + b"\xff\0\0" * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def bundle(content: bytes, mime: str = "image/png") -> dict[str, Any]:
    return {mime: base64.b64encode(content).decode(), "text/plain": "<Figure>"}


# -- words ------------------------------------------------------------------------------------------------------------


def test_words_come_by_the_daemons_order_of_types() -> None:
    everything = {"text/html": "<b>h</b>", "text/plain": "p", "text/markdown": "m"}
    assert words_of(everything) == "m"
    assert words_of({key: everything[key] for key in ("text/html", "text/plain")}) == "p"
    assert words_of({"text/html": "<b>h</b>"}) == "h"
    assert words_of({"text/plain": ["a\n", "b"]}) == "a\nb"
    assert words_of({"text/plain": {"a": 1}}) == '{"a": 1}'
    assert words_of({"image/png": "…"}) == ""


def test_html_becomes_its_words() -> None:
    html = "<style>x{}</style><table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2 3</td></tr></table><p>end</p>"
    assert text_of_html(html) == "a\tb\n1\t2 3\nend"


@given(st.text())
def test_any_html_is_survived(html: str) -> None:
    assert isinstance(text_of_html(html), str)


def test_json_is_a_tree_of_the_depth_that_is_asked_for() -> None:
    value = {"a": [1, {"b": {"c": 2}}], "d": "x", "e": []}
    assert tree(value, 2).splitlines() == [
        "{3 keys}",
        "├─ a: [2 items]",
        "│  ├─ 0: 1",
        "│  └─ 1: {1 key}",
        '├─ d: "x"',
        "└─ e: []",
    ]
    assert "c: 2" in tree(value, FULL_TREE_DEPTH)
    assert tree(5, 2) == "5"


@given(values, st.integers(0, 6))
def test_a_tree_is_no_deeper_than_asked(value: Any, depth: int) -> None:
    for line in tree(value, depth).splitlines():
        marks = re.match(r"(?:│  |   )*(?:├─ |└─ )?", line)
        assert marks is not None
        assert len(marks[0]) <= 3 * depth or line.startswith("   ")


def test_a_tree_of_many_members_says_how_many_are_left_out() -> None:
    lines = tree(list(range(80)), 2).splitlines()
    assert len(lines) == 52
    assert lines[-1] == "└─ … 30 more"
    assert "characters)" in tree("x" * 1000, 2)


# -- pictures ---------------------------------------------------------------------------------------------------------


def test_a_picture_is_found_among_the_types_of_a_bundle() -> None:
    found = picture_in(bundle(png()))
    assert found is not None
    assert (found.mime, found.content, found.extension) == ("image/png", png(), "png")
    drawing = picture_in({"image/svg+xml": "<svg/>"})
    assert drawing is not None
    assert drawing.content == b"<svg/>"
    assert picture_in({"image/png": "no base64!"}) is None
    assert picture_in({"image/png": ""}) is None
    assert picture_in({"text/plain": "x"}) is None


@pytest.mark.parametrize(
    ("env", "way"),
    [
        ({}, "never"),
        ({"TERM": "xterm-256color"}, "never"),
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-ghostty"}, "kitty"),
        ({"TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"TERM_PROGRAM": "WezTerm"}, "iterm"),
        ({"LC_TERMINAL": "iTerm2"}, "iterm"),
        ({"TERM": "foot-extra"}, "sixel"),
        ({"TERM": "mlterm"}, "sixel"),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/x"}, "never"),
        ({"TERM": "screen-256color", "KITTY_WINDOW_ID": "1"}, "never"),
    ],
)
def test_the_environment_says_how_to_draw(env: dict[str, str], way: str) -> None:
    assert way_for("auto", env) == way
    assert way_for("sixel", env) == "sixel"
    assert way_for("never", {"TERM": "xterm-kitty"}) == "never"


def kitty_payload(written: bytes) -> tuple[dict[str, str], bytes]:
    chunks = re.findall(rb"\x1b_G([^;]*);([^\x1b]*)\x1b\\", written)
    assert all(len(content) <= 4096 for _, content in chunks)
    assert all(len(content) % 4 == 0 for _, content in chunks[:-1])
    assert [b"m=1" in keys for keys, _ in chunks] == [True] * (len(chunks) - 1) + [False]
    keys = dict(pair.split("=") for pair in chunks[0][0].decode().split(","))
    return keys, base64.b64decode(b"".join(content for _, content in chunks))


@given(st.binary(min_size=1, max_size=20_000))
def test_kitty_gets_the_file_in_chunks_and_answers_nothing(content: bytes) -> None:
    written = drawn(Picture("image/png", content), "kitty", 80)
    keys, sent = kitty_payload(written)
    assert sent == content
    assert (keys["a"], keys["f"], keys["q"]) == ("T", "100", "2")
    assert written.endswith(b"\x1b\\\n")


def test_kitty_is_told_to_fit_what_is_wider_than_the_terminal() -> None:
    assert kitty_payload(drawn(Picture("image/png", png(4000, 1)), "kitty", 80))[0]["c"] == "80"
    assert "c" not in kitty_payload(drawn(Picture("image/png", png(40, 1)), "kitty", 80))[0]


def test_iterm_gets_the_file_with_its_size() -> None:
    written = drawn(Picture("image/jpeg", b"\xff\xd8\xff" * 9), "iterm", 80)
    head, _, rest = written.partition(b":")
    assert head == b"\x1b]1337;File=inline=1;size=27;preserveAspectRatio=1"
    assert base64.b64decode(rest.removesuffix(b"\x07\n")) == b"\xff\xd8\xff" * 9


@pytest.mark.parametrize(
    ("picture", "why"),
    [
        (Picture("image/svg+xml", b"<svg/>"), "not drawn"),
        (Picture("image/png", b"x" * (inline_images.LIMIT_BYTES + 1)), "too large"),
    ],
)
def test_what_cannot_be_drawn_says_why(picture: Picture, why: str) -> None:
    with pytest.raises(CannotDraw, match=why):
        drawn(picture, "kitty", 80)


def test_a_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(inline_images, "import_module", missing)
    with pytest.raises(CannotDraw, match=r"pip install 'supervisord-py\[images\]'"):
        drawn(Picture("image/png", png()), "sixel", 80)
    with pytest.raises(CannotDraw, match="pip install"):
        drawn(Picture("image/jpeg", b"\xff\xd8\xff"), "kitty", 80)


def _has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def test_sixels_are_drawn_no_wider_than_the_terminal(require: Callable[[object, str], None]) -> None:
    require(_has("chafa") and _has("PIL"), "needs the extra images")
    written = drawn(Picture("image/png", png(3000, 10)), "sixel", 40)
    assert written.startswith(b"\x1bP")
    assert written.endswith(b"\x1b\\\n")
    raster = re.search(rb'"1;1;(\d+);(\d+)', written)
    assert raster is not None
    assert int(raster[1]) <= 400
    with pytest.raises(CannotDraw, match="cannot be read"):
        drawn(Picture("image/png", b"no picture"), "sixel", 40)


def test_other_pictures_are_made_png_for_kitty(require: Callable[[object, str], None]) -> None:
    require(_has("PIL"), "needs the extra images")
    gif = base64.b64decode("R0lGODlhAQABAIAAAP8AAP///yH5BAAAAAAALAAAAAABAAEAAAICRAEAOw==")
    assert kitty_payload(drawn(Picture("image/gif", gif), "kitty", 80))[1].startswith(b"\x89PNG")


# -- files ------------------------------------------------------------------------------------------------------------


def test_pictures_go_into_a_private_folder_and_are_numbered(tmp_path: Path) -> None:
    album = Album(str(tmp_path / "deep" / "pictures"))
    picture = Picture("image/png", png())
    paths = [album.save(picture, "0123456789abcdef") for _ in range(2)]
    assert [os.path.basename(path) for path in paths] == ["0123456789abcdef-1.png", "0123456789abcdef-2.png"]
    assert os.stat(tmp_path / "deep" / "pictures").st_mode & 0o077 == 0
    assert all((tmp_path / path).read_bytes() == png() for path in paths)


def test_old_pictures_of_ours_go_and_nothing_else(tmp_path: Path) -> None:
    old = time.time() - KEEP_SECONDS - 60
    for name in ("0123456789abcdef-1.png", "fedcba9876543210-2.png", "holiday.png"):
        (tmp_path / name).write_bytes(b"x")
    for name in ("0123456789abcdef-1.png", "holiday.png"):
        os.utime(tmp_path / name, (old, old))
    Album(str(tmp_path)).save(Picture("image/png", png()), "aaaaaaaaaaaaaaaa")
    assert sorted(os.listdir(tmp_path)) == ["aaaaaaaaaaaaaaaa-1.png", "fedcba9876543210-2.png", "holiday.png"]


def test_a_folder_that_cannot_be_made_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Failure, match="cannot write"):
        Album(str(tmp_path / "file" / "pictures")).save(Picture("image/png", png()), "a")


def test_where_pictures_go() -> None:
    assert pictures_dir({"PX_HOME": "/x"}) == "/x/pictures"
    assert pictures_dir({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == "/c/pxd/pictures"
    assert pictures_dir({"HOME": "/h"}) == "/h/.cache/pxd/pictures"


@given(values)
def test_a_tree_tells_every_scalar_of_a_shallow_value(value: Any) -> None:
    shown = tree(value, 30)
    if isinstance(value, (dict, list)) and value:
        return
    assert shown == json.dumps(value, ensure_ascii=False)
