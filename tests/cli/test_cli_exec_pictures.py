"""Rich outputs: their words, pictures saved and drawn by the protocol that the terminal speaks."""

from __future__ import annotations

import base64
import os
import re
import struct
import time
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pxctl.cells import drawn, protocol_of, save_picture

if TYPE_CHECKING:
    from pathlib import Path


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


# -- pictures ---------------------------------------------------------------------------------------------------------


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
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/x"}, "never"),
        ({"TERM": "screen-256color", "KITTY_WINDOW_ID": "1"}, "never"),
    ],
)
def test_the_environment_says_how_to_draw(env: dict[str, str], way: str) -> None:
    assert protocol_of("auto", env) == way
    assert protocol_of("iterm", env) == "iterm"
    assert protocol_of("never", {"TERM": "xterm-kitty"}) == "never"


def kitty_payload(written: bytes | None) -> tuple[dict[str, str], bytes]:
    assert written is not None
    chunks = re.findall(rb"\x1b_G([^;]*);([^\x1b]*)\x1b\\", written)
    assert all(len(content) <= 4096 for _, content in chunks)
    assert all(len(content) % 4 == 0 for _, content in chunks[:-1])
    assert [b"m=1" in keys for keys, _ in chunks] == [True] * (len(chunks) - 1) + [False]
    keys = dict(pair.split("=") for pair in chunks[0][0].decode().split(","))
    return keys, base64.b64decode(b"".join(content for _, content in chunks))


@given(st.binary(min_size=1, max_size=20_000))
def test_kitty_gets_the_file_in_chunks_and_answers_nothing(content: bytes) -> None:
    written = drawn("image/png", content, "kitty", 80)
    assert written is not None
    keys, sent = kitty_payload(written)
    assert sent == content
    assert (keys["a"], keys["f"], keys["q"]) == ("T", "100", "2")
    assert written.endswith(b"\x1b\\\n")


def test_iterm_gets_the_file_with_its_size() -> None:
    written = drawn("image/jpeg", b"\xff\xd8\xff" * 9, "iterm", 80)
    assert written is not None
    head, _, rest = written.partition(b":")
    assert head == b"\x1b]1337;File=inline=1;size=27;preserveAspectRatio=1"
    assert base64.b64decode(rest.removesuffix(b"\x07\n")) == b"\xff\xd8\xff" * 9


# -- files ------------------------------------------------------------------------------------------------------------


def test_pictures_go_into_a_private_folder_and_old_ones_of_ours_go(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    env = {"PX_HOME": str(tmp_path)}
    path = save_picture(env, "0123456789abcdef-1", "image/png", png())
    assert (path, path.read_bytes()) == (folder / "0123456789abcdef-1.png", png())
    assert folder.stat().st_mode & 0o077 == 0
    (folder / "holiday.png").write_bytes(b"x")
    old = time.time() - 8 * 86400
    for name in (path.name, "holiday.png"):
        os.utime(folder / name, (old, old))
    save_picture(env, "aaaaaaaaaaaaaaaa-1", "image/png", png())
    assert sorted(os.listdir(folder)) == ["aaaaaaaaaaaaaaaa-1.png", "holiday.png"]
