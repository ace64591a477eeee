"""Which words stand for a rich output, and how large it is. Pure.

Precedence of the text: `text/markdown`, `text/plain`, `text/html` made markdown. A picture or a JSON value has none of
its own; it is among the outputs.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MARKDOWN, PLAIN, HTML = "text/markdown", "text/plain", "text/html"
EXTENSIONS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
    "application/json": "json",
    "application/pdf": "pdf",
    "application/javascript": "js",
    "text/html": "html",
    "text/markdown": "md",
    "text/plain": "txt",
    "text/latex": "tex",
    "text/csv": "csv",
}
MIMES = {extension: mime for mime, extension in EXTENSIONS.items()}
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def text_of(data: Mapping[str, Any], html_to_markdown: Callable[[str], str]) -> str:
    """Return the words that stand for a bundle, ending with a line end; "" where it has none.

    Args:
        data: `{mime: value}` as the kernel gave it.
        html_to_markdown: Only called where there is nothing but HTML.
    """
    for mime in (MARKDOWN, PLAIN, HTML):
        if mime not in data:
            continue
        text = joined(data[mime])
        if mime == HTML:
            text = html_to_markdown(text).strip("\n")
        return text if not text or text.endswith("\n") else f"{text}\n"
    return ""


def joined(value: Any) -> str:
    """Return a value as one text; notebooks may hold it as a list of lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return json.dumps(value, ensure_ascii=False)


def weight(value: Any) -> int:
    """Return about how many bytes a value takes in an answer."""
    return len(value) if isinstance(value, str) else len(json.dumps(value, ensure_ascii=False))


def is_base64(mime: str) -> bool:
    """Say whether kernels give this type as base64: pictures (but SVG), sound, films, PDF."""
    kind = mime.partition("/")[0]
    return (kind in {"image", "audio", "video"} and mime != "image/svg+xml") or mime == "application/pdf"


def extension(mime: str) -> str:
    """Return what the name of a file of that type ends with; letters, digits and dashes."""
    return EXTENSIONS.get(mime) or re.sub(r"[^a-z0-9]+", "-", mime.lower()).strip("-")[:40] or "bin"


def without_colours(text: str) -> str:
    """Return a text without terminal escape sequences."""
    return _ESCAPES.sub("", text)
