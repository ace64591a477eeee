"""The front matter of a `pipe.md`: found, read, and changed key by key. Pure.

YAML is read for its structure only (`config.documents`): what a scalar means is for its key to say, so that `9:30` is
not 570, `010` not 8, `no` not false. Every fault that people meet comes with the line and what to write instead. An
edit replaces the characters of one value and nothing else; what comes out is parsed again before it is given away.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

from supervisord_py.config.documents import DocumentError, Problem, parse_yaml
from supervisord_py.errors import ConfigError
from supervisord_py.pipes.schedule import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.config.documents import Document

CURE = "begin the file with a line ---, then lines of key: value, then another line ---, then the prompt"
_BOM = "\ufeff"
_OPENING = re.compile(r"\s*---[ \t]*(\r\n|\n|\r|$)")
_CLOSING = re.compile(r"(?:(?<=\n)|(?<=\r)(?!\n))---([^\r\n]*)(?:\r\n|\n|\r|$)")
_BLANK_LINES = re.compile(r"(?:[^\S\r\n]*(?:\r\n|\n|\r))*")
_LINE_END = re.compile(r"\r\n|\n|\r")


class FrontMatter(NamedTuple):
    """A file, taken apart.

    Attributes:
        start, end: Of the header in `text`, its last line end included; the prompt's lines begin at `body_start`.
    """

    text: str
    header: Document  # what stands between the fences; its value is a dict
    body: str  # the prompt, without blank lines around it
    start: int
    end: int
    body_start: int
    newline: str  # line end of the opening fence, for lines that are added


def parse(text: str, file: str) -> FrontMatter:
    """Take a file apart; `file` is how messages call it. Raises DocumentError: with line, column and cure."""
    begin = len(_BOM) if text.startswith(_BOM) else 0
    opening = _OPENING.match(text, begin)
    closing = _CLOSING.search(text, opening.end()) if opening else None
    if opening is None or closing is None or closing[1].strip("- \t"):
        raise DocumentError(_without_fences(text, begin, opening, closing, file))
    start, end, body = opening.end(), closing.start(), text[closing.end() :].rstrip()
    blank = _BLANK_LINES.match(body)
    header, first_line = text[start:end], len(_LINE_END.findall(text, 0, start)) + 1
    try:
        document = parse_yaml(header, file, first_line)
    except DocumentError as error:
        raise DocumentError(_cured(error.problem, header, first_line)) from None
    if document.value is None:
        document.value = {}
    if not isinstance(document.value, dict):
        message = "the front matter is not made of lines of key: value"
        raise DocumentError(document.problem((), message, hint=CURE))
    body = body[blank.end() :] if blank else body
    return FrontMatter(text, document, body, start, end, closing.end(), opening[1] or "\n")


def _without_fences(
    text: str, begin: int, opening: re.Match[str] | None, closing: re.Match[str] | None, file: str
) -> Problem:
    words = text[begin:].strip()
    first, hint, index = shown(words.splitlines()[0]) if words else "", CURE, text.index(words[:1], begin)
    message = f"there is no front matter: the file begins with {first}" if words else "the file is empty"
    if closing is not None:
        message, hint = (
            f"{shown(closing[1].strip())} follows the closing ---",
            "put the closing --- on a line of its own",
        )
        index = closing.start()
    elif opening is not None:
        message = "the front matter that begins here is never closed"
        hint = "put a line --- between the keys and the prompt"
    elif words.startswith("---"):
        message = f"the first line is {first}; the line that opens the front matter is --- and nothing else"
    line = len(_LINE_END.findall(text, 0, index)) + 1
    return Problem(message=message, file=file, line=line, column=1, hint=hint)


# -- cures -----------------------------------------------------------------------------------------------------------

_KEY_VALUE = re.compile(r"^(\s*(?:- +)?)([^\s:#'\"][^:]*):[ \t]+(\S.*)$")
_COMMENT = re.compile(r"\s+#.*$")
_STARRED_ITEM = re.compile(r"(?<=[\[,])(\s*)\*(\s*)(?=[\],])")
_BEGINS = {
    "*": "begins with *, which YAML reads as a reference",
    "&": "begins with &, a YAML anchor; there are none here",
    "!": "begins with !, a YAML tag; there are none here",
    "@": "begins with @, which needs quotes",
    "`": "begins with `, which needs quotes",
    "%": "begins with %, which needs quotes",
}


def _cured(problem: Problem, header: str, first_line: int) -> Problem:
    """Explain a syntax error in the words of those who meet it, read from the text at its place."""
    if problem.line is None:
        return problem
    lines = _LINE_END.split(header)
    number = min(problem.line - first_line, len(lines) - 1)
    line, above = lines[number], lines[number - 1] if number else ""
    message, hint, at = problem.message, "write key: value in the same column, and put # before a comment", number
    bare = _COMMENT.sub("", line)
    pair = _KEY_VALUE.match(bare)
    value = pair[3] if pair else bare.strip().removeprefix("- ")
    quoted = f"quote it: {f'{pair[2]}: ' if pair else '- ' if bare.strip().startswith('- ') else ''}{_single(value)}"
    starred = _STARRED_ITEM.sub(r'\1"*"\2', line)
    if "\t" in line[: len(line) - len(line.lstrip())]:
        message, hint = "a tab stands where YAML wants spaces", "use spaces instead of the tab"
    elif starred != line:
        message, hint = f"an item {_BEGINS['*']}", f"quote it: {starred.strip()}"
    elif value[:1] in _BEGINS:
        message, hint = f"{shown(value)} {_BEGINS[value[0]]}", quoted
    elif "stands twice" in message:
        hint = "keep one of the two lines"
    elif "more than" in message:
        hint = "put long texts into the prompt or into files"
    elif "escape" in message:
        message = "a backslash in double quotes begins an escape, and this is none"
        hint = "use single quotes, in which a backslash is a backslash"
    elif value[:1] in {"'", '"'}:
        closed = value.count(value[0]) % 2 == 0
        message = (
            f"the value of {shown(pair[2])} is no plain text"
            if pair and closed
            else (f"the quote {value[0]} that begins here is never closed")
        )
        hint = quoted if closed else f"close the value with {value[0]}, or quote the whole of it"
    elif value[:1] in {"[", "{"}:
        message = f"the {value[0]} that begins here does not end as it should"
        hint = "separate the items with commas, close them, and quote what holds one of , : [ ] { } #"
    elif pair and ":" in value:
        message, hint = f"the value of {shown(pair[2])} holds a colon", quoted
    else:
        for wrong, back in ((line, 0), (above, 1)):
            if re.match(r"\s*[\w-]+:\S", wrong):
                message, hint, at = (
                    f"{shown(wrong.strip())} has no space after its colon",
                    "write key: value",
                    number - back,
                )
                break
        else:
            message = f"this is no valid YAML: {message}"
    column = problem.column if at == number else 1
    return Problem(message=message, file=problem.file, line=at + first_line, column=column, hint=hint)


def _single(value: str) -> str:
    return "'" + value.strip().replace("'", "''") + "'"


# -- edits -----------------------------------------------------------------------------------------------------------

Value: TypeAlias = Union[str, bool, int, float, "list[Value]", "dict[str, Value]", None]  # a JSON value

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PLAIN = re.compile(r"(?=[A-Za-z_/]|\./)[A-Za-z0-9_./+-]+(?::[A-Za-z0-9_./+-]+)*(?: [A-Za-z0-9_./+-]+)*")
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_OTHER_MEANING = frozenset({"yes", "no", "on", "off", "y", "n", "null"})
"""Booleans and nulls of some readers; `true` and `false` are meant by whoever writes them."""
_BY_HAND = "change the file by hand"


class EditError(ConfigError):
    """A file cannot be edited by key."""


def set_keys(text: str, changes: Mapping[str, Value]) -> str:
    """Return the file with other values for some top-level keys; None removes a key.

    A key that is not there is added below the others. One that already says so is left as it is written.

    Raises EditError: the file has no usable front matter, or is written so that the key cannot be changed alone.
    """
    edited = text
    for key, value in changes.items():
        if not _KEY.fullmatch(key):
            raise EditError(f"{shown(key)} is no key of front matter", hint="use letters, digits, _ and -")
        edited = _edited(_parsed(edited), key, value)
    if edited == text:
        return text
    before, after = _parsed(text), _parsed(edited)
    wanted = before.header.value | {key: as_read(value) for key, value in changes.items()}
    for key in [key for key, value in changes.items() if value is None]:
        del wanted[key]
    if after.header.value != wanted or text[before.body_start :] != edited[after.body_start :]:
        raise EditError(f"{', '.join(changes)} cannot be changed without changing other keys", hint=_BY_HAND)
    return edited


def _parsed(text: str) -> FrontMatter:
    try:
        return parse(text, "pipe.md")
    except DocumentError as error:
        found = error.problem
        detail = f"{found.where()}: {found.message}"
        raise EditError(detail, hint=found.hint or _BY_HAND, line=found.line, column=found.column) from None


def _edited(front: FrontMatter, key: str, value: Value) -> str:
    import yaml

    text = front.text
    try:
        root: Any = yaml.compose(text[front.start : front.end], Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:  # libyaml, which has read it, takes a little more
        raise EditError(f"the front matter cannot be edited by key: {error}"[:300], hint=_BY_HAND) from None
    entries = root.value if root is not None and root.id == "mapping" else []
    if entries and root.flow_style:
        raise EditError("the front matter is written in braces, which cannot be edited by key", hint=_BY_HAND)
    node = next((pair for pair in entries if pair[0].value == key), None)
    written = "" if value is None else inline(value)
    if node is None:
        if value is None:
            return text
        indent = " " * entries[0][0].start_mark.column if entries else ""
        return f"{text[: front.end]}{indent}{key}: {written}{front.newline}{text[front.end :]}"
    if value is not None and front.header.value[key] == as_read(value):
        return text
    colon = re.compile(r"[ \t]*:").match(text, front.start + node[0].end_mark.index)
    if colon is None:
        line = node[0].start_mark.line + front.header.first_line
        raise EditError(f"line {line} is not of the form {key}: value", hint=_BY_HAND)
    begin = front.start + node[1].start_mark.index
    end = max(front.start + _end(node[1], text[front.start :]), colon.end())
    if value is None:
        line_start = text.rfind("\n", 0, front.start + node[0].start_mark.index) + 1
        line_end = _LINE_END.search(text, end)
        rest = line_end.end() if line_end else len(text)
        if _ends_in_block(node[1]):  # blank lines below a block text are its own
            rest = _BLANK_LINES.match(text, rest).end()  # type: ignore[union-attr]
        return text[:line_start] + text[rest:]
    gap = text[colon.end() : begin]
    if gap and not _LINE_END.search(gap):
        return text[:begin] + written + text[end:]
    comment = re.compile(r"[ \t]+#[^\r\n]*").match(text, colon.end()) if gap else None
    return f"{text[: colon.end()]} {written}{comment[0] if comment else ''}{text[end:]}"


def _end(node: Any, header: str) -> int:
    """Return where a value's characters end; a block's mark is where the next token begins, after comments."""
    if node.id == "scalar":
        start, end = int(node.start_mark.index), int(node.end_mark.index)
        return start + len(header[start:end].rstrip()) if node.style in {"|", ">"} else end
    if node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if node.id == "mapping" else last, header)


def _ends_in_block(node: Any) -> bool:
    if node.id == "scalar":
        return node.style in {"|", ">"}
    last = node.value[-1] if node.value else None
    return last is not None and _ends_in_block(last[1] if node.id == "mapping" else last)


def inline(value: Value) -> str:
    """Return a value as it is written after `key: `, quoted where a reader of YAML could take it for something else.

    Raises EditError: it has no form in YAML: an infinite number, half a surrogate pair.
    """
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case int() | float():
            if not math.isfinite(value):
                raise EditError(f"{value} cannot be written: it is no number", hint="give another value")
            return repr(value)
        case str():
            return _text(value)
        case list():
            return f"[{', '.join(inline(each) for each in value)}]"
    return f"{{{', '.join(f'{_text(key)}: {inline(each)}' for key, each in value.items())}}}"


def _text(text: str) -> str:
    if _PLAIN_NUMBER.fullmatch(text) or (_PLAIN.fullmatch(text) and text.lower() not in _OTHER_MEANING):
        return text
    if text.isprintable():
        return _single(text) if text == text.strip() else "'" + text.replace("'", "''") + "'"
    try:
        text.encode()
    except UnicodeEncodeError:
        raise EditError("a text cannot be written: it holds half of a character", hint="give another value") from None
    escapes = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
    escaped = (escapes.get(each) or (each if each.isprintable() else f"\\U{ord(each):08X}") for each in text)
    return f'"{"".join(escaped)}"'


def as_read(value: Value) -> object:
    """Return a value as the front matter's reader sees it once it is written: texts, lists, dicts, None."""
    match value:
        case list():
            return [as_read(each) for each in value]
        case dict():
            return {key: as_read(each) for key, each in value.items()}
        case None | str():
            return value
        case _:
            return inline(value)
