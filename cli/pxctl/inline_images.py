"""Pictures drawn by the terminal itself: which protocol it speaks, and the bytes that draw one.

Law: nothing is drawn that was not asked for or announced by the environment; the terminal is never questioned, because
an answer that nobody reads would be typed into the user's shell. What cannot be drawn is still saved and named.
kitty: https://sw.kovidgoyal.net/kitty/graphics-protocol/ · iTerm2: https://iterm2.com/documentation-images.html
"""

from __future__ import annotations

import binascii
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from pxctl.rich_text import Picture

AUTO, NEVER, KITTY, ITERM, SIXEL = "auto", "never", "kitty", "iterm", "sixel"
WAYS = (AUTO, NEVER, KITTY, ITERM, SIXEL)
LIMIT_BYTES = 16 * 1024 * 1024
"""A larger picture is only named."""
_KITTY_CHUNK = 4096
_PNG = "image/png"
_RASTER = {_PNG, "image/jpeg", "image/gif", "image/webp"}
_KITTY_TERMS = {"xterm-kitty", "xterm-ghostty"}
_ITERM_PROGRAMS = {"iTerm.app", "WezTerm", "mintty"}
_SIXEL_TERMS = ("foot", "mlterm", "contour", "yaft")
_CELL_WIDTH, _CELL_HEIGHT = 10, 20
"""Pixels of a cell, where nobody says how many: what terminals with sixel take as the usual."""


class CannotDraw(Exception):
    """The picture cannot be drawn that way; the text says why."""


def way_for(choice: str, env: Mapping[str, str]) -> str:
    """Return the protocol to draw with, or `never`.

    Args:
        choice: One of WAYS.
        env: The environment; inside a multiplexer nothing is announced, since what it lets through is its own secret.
    """
    if choice != AUTO:
        return choice
    term, program = env.get("TERM", ""), env.get("TERM_PROGRAM", "")
    if env.get("TMUX") or env.get("STY") or term.startswith(("screen", "tmux")):
        return NEVER
    if term in _KITTY_TERMS or env.get("KITTY_WINDOW_ID") or program == "ghostty":
        return KITTY
    if program in _ITERM_PROGRAMS or env.get("LC_TERMINAL") == "iTerm2":
        return ITERM
    return SIXEL if term.startswith(_SIXEL_TERMS) else NEVER


def drawn(picture: Picture, way: str, columns: int) -> bytes:
    """Return the bytes that draw a picture at the cursor and leave that at the beginning of a line.

    Raises:
        CannotDraw: It is no raster image, too large, or a library for it is missing.
    """
    if picture.mime not in _RASTER:
        raise CannotDraw(f"{picture.mime} is not drawn in terminals")
    if len(picture.content) > LIMIT_BYTES:
        raise CannotDraw("it is too large to be drawn")
    return _DRAWERS[way](picture, columns) + b"\n"


def kitty(picture: Picture, columns: int) -> bytes:
    """Draw by kitty's protocol, which takes PNG; what is wider than the terminal is made to fit."""
    content = picture.content if picture.mime == _PNG else _as_png(picture.content)
    fit = f",c={columns}" if _png_width(content) > columns * _CELL_WIDTH else ""
    # q=2: no answers, nobody reads them.
    return b"".join(_kitty_chunks(content, f"a=T,f=100,q=2{fit}"))


def _kitty_chunks(content: bytes, keys: str) -> Iterator[bytes]:
    encoded = binascii.b2a_base64(content, newline=False)
    for start in range(0, len(encoded), _KITTY_CHUNK):
        more = int(start + _KITTY_CHUNK < len(encoded))
        head = f"{keys},m={more}" if start == 0 else f"m={more}"
        yield b"\x1b_G" + head.encode() + b";" + encoded[start : start + _KITTY_CHUNK] + b"\x1b\\"


def _png_width(content: bytes) -> int:
    """Return the width out of the header (PNG, 11.2.2 IHDR); 0 where there is none."""
    return int.from_bytes(content[16:20], "big") if content[12:16] == b"IHDR" else 0


def iterm(picture: Picture, columns: int) -> bytes:
    """Draw by iTerm2's protocol, which takes any file of a picture."""
    del columns
    head = f"\x1b]1337;File=inline=1;size={len(picture.content)};preserveAspectRatio=1:"
    return head.encode() + binascii.b2a_base64(picture.content, newline=False) + b"\x07"


def sixel(picture: Picture, columns: int) -> bytes:
    """Draw by sixels, with chafa's encoder."""
    image = _decoded(picture.content)
    chafa = _library("chafa")
    width, height = image.size
    config = chafa.CanvasConfig()
    config.pixel_mode = chafa.PixelMode.CHAFA_PIXEL_MODE_SIXELS
    config.cell_width, config.cell_height = _CELL_WIDTH, _CELL_HEIGHT
    config.width = max(1, min(columns, -(-width // _CELL_WIDTH)))
    config.height = max(1, round(config.width * _CELL_WIDTH * height / width / _CELL_HEIGHT))
    canvas = chafa.Canvas(config)
    canvas.draw_all_pixels(
        chafa.PixelType.CHAFA_PIXEL_RGBA8_UNASSOCIATED, image.tobytes(), width, height, width * len("RGBA")
    )
    encoded: bytes = canvas.print(fallback=True)
    return encoded


_DRAWERS: dict[str, Callable[[Picture, int], bytes]] = {KITTY: kitty, ITERM: iterm, SIXEL: sixel}


def _decoded(content: bytes) -> Any:
    """Return a picture's pixels as an RGBA image of Pillow."""
    from io import BytesIO  # noqa: PLC0415 - only where one is decoded

    images = _library("PIL.Image")

    try:
        return images.open(BytesIO(content)).convert("RGBA")
    except (OSError, ValueError, images.DecompressionBombError) as error:
        raise CannotDraw(f"it cannot be read: {error}") from error


def _as_png(content: bytes) -> bytes:
    from io import BytesIO  # noqa: PLC0415 - only where it is converted

    image, written = _decoded(content), BytesIO()
    image.save(written, "PNG")
    return written.getvalue()


def _library(name: str) -> Any:
    """Load an optional library, of the extra `images`."""
    try:
        return import_module(name)
    except (ImportError, OSError) as error:
        raise CannotDraw(f"{error}; pip install 'supervisord-py[images]'") from error
