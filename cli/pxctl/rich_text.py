"""What stands for a rich output in text: markdown, plain text, HTML made text, in that order; JSON as a tree. Pure.

The order is the daemon's own. A picture has no words: its file is named instead, where a person reads.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

JSON = "application/json"
TREE_DEPTH, FULL_TREE_DEPTH = 2, 6
_TEXTS = ("text/markdown", "text/plain", "text/html", "text/latex")
_CHILDREN = 50
"""How many members of one node are listed."""
_SCALAR_CHARACTERS = 200
PICTURES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
    "application/pdf": "pdf",
}
"""What is saved, with the ending of its file."""
_TEXTUAL = {"image/svg+xml"}


class Picture:
    """A picture out of a bundle, ready to be saved."""

    __slots__ = ("content", "mime")

    def __init__(self, mime: str, content: bytes) -> None:
        self.mime = mime
        self.content = content

    @property
    def extension(self) -> str:
        """What the name of its file ends with."""
        return PICTURES[self.mime]


def picture_in(bundle: Mapping[str, Any]) -> Picture | None:
    """Return the first picture of a bundle; None where there is none, or what is there is not base64."""
    import binascii  # noqa: PLC0415 - only where there are pictures

    for mime in PICTURES:
        if mime not in bundle:
            continue
        text = joined(bundle[mime])
        try:
            content = (
                text.encode() if mime in _TEXTUAL else binascii.a2b_base64("".join(text.split()), strict_mode=True)
            )
        except (ValueError, UnicodeEncodeError):
            continue
        if content:
            return Picture(mime, content)
    return None


def words_of(bundle: Mapping[str, Any]) -> str:
    """Return the text that stands for a bundle, without colours of its own; empty where it has none."""
    for mime in _TEXTS:
        if mime in bundle:
            text = joined(bundle[mime])
            return text_of_html(text) if mime == "text/html" else text
    return ""


def joined(value: Any) -> str:
    """Return a value as one text; a bundle may hold it as a list of lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return json.dumps(value, ensure_ascii=False)


def tree(value: Any, depth: int) -> str:
    """Return a JSON value as a tree of at most `depth` levels below its root, one member a line."""
    return "\n".join(_branch("", "", value, depth))


def _branch(lead: str, label: str, value: Any, depth: int) -> Iterator[str]:
    """Yield the line of a node, then those of its members; `lead` is what stands before these."""
    pairs = _members(value)
    if pairs is None:
        yield label + _scalar(value)
        return
    yield label + _summary(value)
    if depth <= 0:
        return
    shown, more = pairs[:_CHILDREN], len(pairs) - _CHILDREN
    for at, (name, member) in enumerate(shown):
        is_last = at == len(shown) - 1 and more <= 0
        below = list(_branch(lead + ("   " if is_last else "│  "), f"{name}: ", member, depth - 1))
        yield lead + ("└─ " if is_last else "├─ ") + below[0]
        yield from below[1:]
    if more > 0:
        yield f"{lead}└─ … {more} more"


def _members(value: Any) -> list[tuple[str, Any]] | None:
    match value:
        case dict() if value:
            return [(str(name), member) for name, member in value.items()]
        case list() if value:
            return [(str(at), member) for at, member in enumerate(value)]
        case _:
            return None


def _summary(value: Any) -> str:
    count = len(value)
    if isinstance(value, dict):
        return f"{{{count} {'key' if count == 1 else 'keys'}}}"
    return f"[{count} {'item' if count == 1 else 'items'}]"


def _scalar(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SCALAR_CHARACTERS else f"{text[:_SCALAR_CHARACTERS]}… ({len(text)} characters)"


def text_of_html(html: str) -> str:
    """Return the words of an HTML text: cells of a row beside each other, blocks below each other."""
    from html.parser import HTMLParser  # noqa: PLC0415 - only where there is nothing but HTML

    pieces: list[str] = []
    ignored = {"style", "script", "head", "title"}
    within: list[str] = []

    class Words(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            del attrs
            if tag in ignored:
                within.append(tag)
            pieces.append("\n" if tag in {"br", "tr", "p", "div", "li", "table", "h1", "h2", "h3", "pre"} else "")

        def handle_endtag(self, tag: str) -> None:
            if within and tag == within[-1]:
                within.pop()
            pieces.append("\t" if tag in {"td", "th"} else "\n" if tag in {"p", "div", "tr", "table"} else "")

        def handle_data(self, data: str) -> None:
            if not within:
                pieces.append(" ".join(data.split()) if data.strip() else " " * bool(data))

    words = Words()
    words.feed(html)
    words.close()
    lines = [line.strip() for line in "".join(pieces).split("\n")]
    return "\n".join(line for line in lines if line)
