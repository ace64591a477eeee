"""Bytes to text: UTF-8 without NUL, or a sentence that says where it is not. Pure."""

from __future__ import annotations

import codecs

from supervisord_py.pipes.declaring.lines import Lines
from supervisord_py.pipes.declaring.problems import DeclarationError
from supervisord_py.pipes.definition import ConfigProblem

CURE = "save the file as UTF-8"

_WIDE = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def decode(raw: bytes, file: str) -> str:
    """Return the text, a byte order mark and line ends included.

    Raises:
        DeclarationError: With line and column of the first byte that is wrong.
    """
    if raw.startswith(_WIDE):
        raise DeclarationError(ConfigProblem("the file is UTF-16 or UTF-32", CURE, file, 1, 1))
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode()
        place = Lines(before).place(len(before))
        detail = f"byte 0x{raw[error.start]:02X} is no UTF-8"
        raise DeclarationError(ConfigProblem(detail, CURE, file, place.line, place.column)) from None
    nul = text.find("\0")
    if nul >= 0:
        place = Lines(text).place(nul)
        problem = ConfigProblem("a NUL byte stands in the text", "take it out", file, place.line, place.column)
        raise DeclarationError(problem)
    return text
