"""The front matter of a `pipe.md`: found, read, and changed key by key. Pure.

YAML is read for its structure only (`config.documents`): what a scalar means is for its key to say,
so that `9:30` is not 570, `010` not 8, `no` not false. An edit replaces the characters of one value
and nothing else; what comes out is parsed again before it is given away.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, Union

from msgspec import structs

from supervisord_py.config.documents import Document, DocumentError, Problem, parse_yaml
from supervisord_py.errors import ConfigError
from supervisord_py.pipes.schedule import shown

CURE = (
    "begin the file with a line ---, then lines of key: value, then another line ---, then the "
    "prompt"
)
_BOM = "\ufeff"
_OPENING = re.compile(r"\s*---[ \t]*(\r?\n|$)")
_CLOSING = re.compile(r"^---[- \t]*\r?(?:\n|\Z)", re.MULTILINE)
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)*")
_LINE_END = re.compile(r"\r?\n")


class FrontMatter(NamedTuple):
    """A file, taken apart."""

    text: str
    header: Document  # what stands between the fences; its value is a dict
    body: str  # the prompt, without blank lines around it
    start: int  # of the header in `text`, as is the next: its last line end is included
    end: int
    body_start: int  # where the prompt's lines begin
    newline: str  # line end of the opening fence, for lines that are added


def parse(text: str, file: str) -> FrontMatter:
    """Take a file apart; `file` is how messages call it.

    Raises DocumentError: with line, column and cure.
    """
    opening = _OPENING.match(text, len(_BOM) if text.startswith(_BOM) else 0)
    closing = _CLOSING.search(text, opening.end()) if opening else None
    if opening is None or closing is None:
        words = text.removeprefix(_BOM).strip()
        message = (
            "the front matter that begins here is never closed"
            if opening
            else "there is no front matter"
        )
        line = _line_at(text, text.index(words[:1]))
        raise DocumentError(Problem(message=message, file=file, line=line, column=1, hint=CURE))
    first_line = _line_at(text, opening.end())
    start, end, body = opening.end(), closing.start(), text[closing.end() :].rstrip()
    try:
        document = parse_yaml(text[start:end], file, first_line)
    except DocumentError as error:
        raise DocumentError(_cured(error.problem, text[start:end], first_line)) from None
    if document.value is None:
        document.value = {}
    if not isinstance(document.value, dict):
        raise DocumentError(
            document.problem((), "the front matter is not made of lines of key: value", hint=CURE)
        )
    body = _BLANK_LINES.sub("", body, count=1)
    return FrontMatter(text, document, body, start, end, closing.end(), opening[1] or "\n")


def _line_at(text: str, index: int) -> int:
    return text.count("\n", 0, index) + 1


_KEY_VALUE = re.compile(r"^\s*(?:- +)?([^\s:#'\"][^:]*):[ \t]+([^\s#].*?)(?:\s+#.*)?$")


def _cured(problem: Problem, header: str, first_line: int) -> Problem:
    """Say what to do about a syntax error, read from the text at its place."""
    if problem.line is None or "stands twice" in problem.message or "more than" in problem.message:
        return problem
    lines = _LINE_END.split(header)
    index = min(problem.line - first_line, len(lines) - 1)
    line = lines[index]
    hint = 'write key: value in the same column, close what is opened, quote what is odd: "*"'
    # Quotes around a list would make it a text: only what goes on after its end was meant as one.
    goes_on = "expected <block end>" in problem.message
    if "\t" in line[: len(line) - len(line.lstrip())]:
        hint = "use spaces instead of the tab"
    else:
        hint = _quoted(lines, index, goes_on=goes_on) or _as_block(lines, index) or hint
    return structs.replace(problem, message=f"this is no valid YAML: {problem.message}", hint=hint)


def _quoted(lines: list[str], index: int, *, goes_on: bool) -> str | None:
    """Return the cure of a line whose value needs quotes, None where quotes would not make it
    valid.
    """
    pair = _KEY_VALUE.match(lines[index])
    if pair is None:
        return None
    value = pair[2]
    is_list_or_map = value[0] in "[{" and not value.startswith("{{")
    is_continued = "".join(lines[index + 1 : index + 2]).startswith(
        lines[index][: pair.start(1)] + " "
    )
    if is_continued or (is_list_or_map and not goes_on):
        return None
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]  # quotes that end too early
    written = f"{pair[1]}: {_single(value)}"
    start = lines[index][: pair.start(1)]
    return f"quote it: {written}" if _is_cure(lines, index, index + 1, [start + written]) else None


def _as_block(lines: list[str], index: int) -> str | None:
    """Return the cure of a text of several lines with a colon in it, None where that would not
    make it valid.
    """
    first = index
    while first > 0 and lines[first][:1] in {" ", ""}:
        first -= 1
    end = first + 1
    while end < len(lines) and lines[end][:1] in {" ", ""}:
        end += 1
    pair = _KEY_VALUE.match(lines[first])
    has_more_lines = end > first + 1
    if pair is None or not has_more_lines or pair[2][0] in "[{'\"|>":
        return None
    block = [f"{pair[1]}: |", *(f"  {text.strip()}" for text in (pair[2], *lines[first + 1 : end]))]
    said = f"write it as a block: {pair[1]}: |, and its lines below, indented by two spaces"
    return said if _is_cure(lines, first, end, block) else None


def _is_cure(lines: list[str], start: int, end: int, instead: list[str]) -> bool:
    """Say whether other lines in the place of some would be read, whatever is wrong below them."""
    try:
        parse_yaml("\n".join([*lines[:start], *instead, *lines[end:]]))
    except DocumentError as error:
        return error.problem.line is not None and error.problem.line > start + len(instead)
    return True


def _single(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


# -- edits -----------------------------------------------------------------------------------------

# a JSON value
Value: TypeAlias = Union[str, bool, int, float, "list[Value]", "dict[str, Value]", None]

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_BY_HAND = "change the file by hand"


def set_keys(text: str, changes: Mapping[str, Value]) -> str:
    """Return the file with other values for some top-level keys; None removes a key.

    A key that is not there is added below the others. One that already says so is left as it is
    written.

    Raises ConfigError: the file has no usable front matter, or is written so that the key cannot be
    changed alone.
    """
    edited, wanted = text, dict(_parsed(text).header.value)
    for key, value in changes.items():
        if not _KEY.fullmatch(key):
            raise ConfigError(
                f"{shown(key)} is no key of front matter", hint="use letters, digits, _ and -"
            )
        wanted.pop(key, None)
        if value is not None:
            wanted[key] = _as_read(value)
        edited = _edited(_parsed(edited), key, value)
    before, after = _parsed(text), _parsed(edited)
    if after.header.value != wanted or text[before.body_start :] != edited[after.body_start :]:
        raise ConfigError(
            f"{', '.join(changes)} cannot be changed without changing other keys", hint=_BY_HAND
        )
    return edited


def _parsed(text: str) -> FrontMatter:
    try:
        return parse(text, "pipe.md")
    except DocumentError as error:
        found = error.problem
        detail = f"{found.where()}: {found.message}"
        raise ConfigError(
            detail, hint=found.hint or _BY_HAND, line=found.line, column=found.column
        ) from None


def _edited(front: FrontMatter, key: str, value: Value) -> str:
    text, root = front.text, front.header.root
    entries = root.value if root is not None and root.id == "mapping" else []
    if entries and root.flow_style:
        raise ConfigError(
            "the front matter is written in braces, which cannot be edited by key", hint=_BY_HAND
        )
    node = next((pair for pair in entries if pair[0].value == key), None)
    if node is None:
        if value is None:
            return text
        indent = " " * entries[0][0].start_mark.column if entries else ""
        return (
            f"{text[: front.end]}{indent}{key}: {inline(value)}{front.newline}{text[front.end :]}"
        )
    if value is not None and front.header.value[key] == _as_read(value):
        return text
    colon = re.compile(r"[ \t]*:").match(text, front.start + node[0].end_mark.index)
    if colon is None:
        line = node[0].start_mark.line + front.header.first_line
        raise ConfigError(f"line {line} is not of the form {key}: value", hint=_BY_HAND)
    begin = front.start + node[1].start_mark.index
    end = max(front.start + _end(node[1], text[front.start :]), colon.end())
    if value is None:
        line_start = text.rfind("\n", 0, front.start + node[0].start_mark.index) + 1
        line_end = _LINE_END.search(text, end)
        return text[:line_start] + text[line_end.end() if line_end else len(text) :]
    gap = text[colon.end() : begin]
    if not gap or _LINE_END.search(gap):  # nothing, or what begins on a line below
        return f"{text[: colon.end()]} {inline(value)}{text[end:]}"
    return text[:begin] + inline(value) + text[end:]


def _end(node: Any, header: str) -> int:
    """Return where a value's characters end; a block's mark is where the next token begins,
    after comments.
    """
    if node.id == "scalar":
        start, end = int(node.start_mark.index), int(node.end_mark.index)
        return start + len(header[start:end].rstrip()) if node.style in {"|", ">"} else end
    if node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if node.id == "mapping" else last, header)


def inline(value: Value) -> str:
    """Return a value as it is written after `key: `, quoted where a reader of YAML could take it
    for something else.
    """
    import yaml

    if isinstance(value, str) and not value.isprintable():
        # a string of JSON is one of YAML; else it would stand on several lines
        return json.dumps(value)
    # In a list of one: a text alone would be followed by a line that ends the document.
    written: str = yaml.safe_dump(
        [value], default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False
    )
    return written.strip()[1:-1]


def _as_read(value: Value) -> object:
    """Return a value as the front matter's reader sees it once it is written: texts, lists,
    dicts, None.
    """
    try:
        return parse_yaml(f"v: {inline(value)}").value["v"]
    except DocumentError as error:
        raise ConfigError(
            f"this value cannot be written: {error}", hint="give another value"
        ) from None
