"""What users write, read into Structs; each mistake with file, line, column, JSON pointer and the
nearest known word.

A text becomes a `Document`, of which `convert` makes a `msgspec.Struct`. Positions are looked up
only when there is a problem. Nothing but `DocumentError` and `OSError` escapes a reader, whatever
the bytes.
"""

from __future__ import annotations

import codecs
import difflib
import enum
import errno
import os
import re
import stat
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from supervisord_py.errors import BadRequestError, ConfigError

T = TypeVar("T")
Pointer = tuple[str | int, ...]
_Place = tuple[int, int]  # line and column, counted from 0

MAX_FILE_BYTES = 1024 * 1024
MAX_DEPTH = 100
MAX_VALUES = 10_000  # of a YAML text, keys included: what is larger is data, and slow
MAX_PROBLEMS = 100
MAX_MESSAGE = 400
_TYPE_NAMES = {
    "int": "a whole number", "float": "a number", "str": "a string", "bool": "true or false",
    "object": "an object",
    "array": "an array", "null": "null",
}  # fmt: skip
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`$", re.DOTALL)
_EXPECTED = re.compile(
    r"Expected `(?P<wanted>[^`]+)`(?P<limit>.*?)(?:, got `(?P<got>[^`]+)`)?$", re.DOTALL
)
_BYTE = re.compile(r" \(byte (\d+)\)$")
_STEP = re.compile(r"\[(\d+|\.\.\.)\]|\.([^.\[]+)")


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with what a user wrote."""

    message: str
    file: str = ""  # its path, or the name of what else it stands in ("body")
    # counts from 1, as does `column`; None where the file itself is the matter
    line: int | None = None
    column: int | None = None
    pointer: str = ""  # RFC 6901, "" for the whole
    hint: str | None = None  # the cure, where there is more to say

    def where(self) -> str:
        """Return `file, line N, column N, at /pointer`, as far as known."""
        line = (
            ()
            if self.line is None
            else (f"line {self.line}", *((f"column {self.column}",) if self.column else ()))
        )
        return ", ".join(filter(None, (self.file, *line, self.pointer and f"at {self.pointer}")))


class DocumentError(ValueError):
    """A text cannot be read at all; `problem` says why and where."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Document(msgspec.Struct, dict=True):
    """A parsed text."""

    value: Any  # dicts, lists and scalars
    text: str  # positions are looked up in it
    file: str  # its name in messages
    language: str
    first_line: int = 1  # the number of the text's first line in the file
    root: Any = None  # of YAML: its node, with marks; None of an empty text

    @cached_property
    def _marks(self) -> dict[Pointer, tuple[_Place, _Place]]:
        if self.language == "toml":
            return dict(_toml_marks(self.text))
        root = self.root
        if self.language == "json":
            import yaml  # only when something is wrong

            # JSON is YAML but for tabs between its tokens, which stand for one column here as well.
            with suppress(yaml.YAMLError, RecursionError):
                root = yaml.compose(self.text.replace("\t", " "), Loader=yaml.BaseLoader)
        return dict(_yaml_marks(root, ())) if root is not None else {}

    def place(self, path: Pointer, *, key: bool = False) -> tuple[int | None, int | None]:
        """Return line and column of the value at `path` (of its key with `key`), or of its
        nearest parent.
        """
        while path and path not in self._marks:
            path, key = path[:-1], False
        if path not in self._marks:
            return (self.first_line, 1) if self.text else (None, None)
        line, column = self._marks[path][0 if key else 1]
        return line + self.first_line, column + 1

    def problem(
        self, path: Pointer, message: str, *, key: bool = False, hint: str | None = None
    ) -> Problem:
        line, column = self.place(path, key=key)
        message = message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…"
        return Problem(
            message=message,
            file=self.file,
            line=line,
            column=column,
            pointer=pointer(path),
            hint=hint,
        )


def _yaml_marks(
    node: Any, path: Pointer, key_at: _Place | None = None
) -> Iterator[tuple[Pointer, tuple[_Place, _Place]]]:
    at = (node.start_mark.line, node.start_mark.column)
    yield path, (key_at or at, at)
    if node.id == "mapping":
        for key, value in node.value:
            mark = (key.start_mark.line, key.start_mark.column)
            yield from _yaml_marks(value, (*path, str(key.value)), mark)
    elif node.id == "sequence":
        for index, value in enumerate(node.value):
            yield from _yaml_marks(value, (*path, index))


def _toml_marks(text: str) -> Iterator[tuple[Pointer, tuple[_Place, _Place]]]:
    """Find the lines `key =` and `[table]` by their looks; the value of a key counts as being
    where its key is.
    """
    table: Pointer = ()
    counts: dict[Pointer, int] = {}
    for number, line in enumerate(text.splitlines()):
        header = re.match(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]", line)
        key = re.match(
            r"\s*([A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*[A-Za-z0-9_-]+)*\s*=", line
        )
        if header:
            table = _toml_path(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
        elif key is None:
            continue
        path = (
            table if header else (*table, *_toml_path(line[: key.end() - 1].strip() if key else ""))
        )
        at = (number, len(line) - len(line.lstrip()))
        yield path, (at, at)


def _toml_path(words: str) -> Pointer:
    return tuple(each.strip("\"'") for each in re.findall(r"\"[^\"]*\"|'[^']*'|[^.\s]+", words))


def pointer(path: Iterable[str | int]) -> str:
    return "".join(f"/{str(each).replace('~', '~0').replace('/', '~1')}" for each in path)


def read_bounded(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """Read a regular file of at most `limit` bytes, or raise OSError in words; never blocks on a
    FIFO or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit} bytes", str(path))
    return raw


def read_document(path: Path, *, limit: int = MAX_FILE_BYTES) -> Document:
    """Read and parse a file, by its suffix: .json, .toml, else YAML.

    DocumentError says whatever is wrong with it.
    """
    parse = {".json": parse_json, ".toml": parse_toml}.get(path.suffix, parse_yaml)
    try:
        return parse(decode(read_bounded(path, limit), str(path)), str(path))
    except OSError as error:
        raise _refused(str(path), error.strerror or str(error)) from None


def decode(raw: bytes, file: str) -> str:
    """Decode UTF-8, or raise DocumentError with the place of the first byte that is none."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec counts from behind a byte order mark, and `error.object` begins there, too.
        before = error.object[: error.start].decode("utf-8", "replace")
        raise _refused(
            file, f"not UTF-8: byte 0x{error.object[error.start]:02x} ({error.reason})", before
        ) from None


def _refused(file: str, message: str, before: str | None = None) -> DocumentError:
    """Return the error for a text that cannot be read; `before`: what stands before the place."""
    if before is None:
        return DocumentError(Problem(message=message, file=file))
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return DocumentError(Problem(message=message, file=file, line=line, column=column))


def parse_json(text: str, file: str = "") -> Document:
    """Parse JSON, or raise DocumentError with the place that msgspec names."""
    try:
        return Document(msgspec.json.decode(text), text, file, "json")
    except RecursionError:
        raise _refused(file, "nested too deep") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        found = _BYTE.search(str(error))
        before = (
            text.encode("utf-8", "replace")[: int(found[1])].decode("utf-8", "replace")
            if found
            else text
        )
        message = (
            _BYTE.sub("", str(error)).removeprefix("JSON is malformed: ").partition(" - at `$")[0]
        )
        raise _refused(file, message, before) from None


def parse_sent(raw: bytes, what: str, unit: str | None = None) -> Document:
    """Parse JSON that a client has sent. Raises BadRequestError if it is not JSON, with the place.

    Positions in the text are not kept: problems are told by JSON pointers. To find positions, a
    whole YAML tree of the text would be built in Python, which takes half a minute for 3 MB.
    """
    raw = raw.removeprefix(codecs.BOM_UTF8)  # RFC 8259, section 8.1: a parser may ignore it
    try:
        try:
            return Document(msgspec.json.decode(raw), "", "", "json")
        except UnicodeError:
            decode(raw, "")  # which says where
            raise
        except RecursionError:
            raise _refused("", "nested too deep") from None
        except msgspec.DecodeError as error:
            position = _BYTE.search(str(error))
            before = raw[: int(position[1])] if position else raw
            if raw[len(before) : len(before) + 1] >= b"\x80":
                decode(raw, "")
            message = (
                _BYTE.sub("", str(error))
                .removeprefix("JSON is malformed: ")
                .partition(" - at `$")[0]
            )
            raise _refused("", message, before.decode("utf-8", "replace")) from None
    except DocumentError as error:
        place = error.problem.where()
        detail = f"{what} is no JSON: {error.problem.message}{place and f' at {place}'}."
    except UnicodeError as error:
        detail = f"{what} is no JSON: {error}."
    raise BadRequestError(detail, hint="send UTF-8 JSON (RFC 8259)", unit=unit)


def parse_toml(text: str, file: str = "") -> Document:
    """Parse TOML, or raise DocumentError with the place that tomllib names."""
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        named = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", str(error))
        line, column = (
            (int(named[1]), int(named[2])) if named and named[1] else (text.count("\n") + 1, 1)
        )
        message = str(error)[: named.start()] if named else str(error)
        raise DocumentError(Problem(message=message, file=file, line=line, column=column)) from None
    except RecursionError:
        raise _refused(file, "nested too deep") from None
    return Document(value, text, file, "toml")


def parse_yaml(text: str, file: str = "", first_line: int = 1, *, fast: bool = True) -> Document:
    """Parse YAML for its structure only: every scalar is the text that was written, null and "" are
    None.

    Anchors, aliases, tags and a key that stands twice are DocumentErrors, too: a file is what it
    looks like. What libyaml (`fast`) refuses is read once more for the other's words and places.
    """
    import yaml  # 15 ms; settings and tools do without

    def refused(message: str, mark: Any) -> DocumentError:
        line, column = (mark.line + first_line, mark.column + 1) if mark else (None, None)
        return DocumentError(Problem(message=message, file=file, line=line, column=column))

    def build(node: Any) -> Any:
        if node.id == "scalar":
            return (
                None
                if not node.style and node.value in {"", "~", "null", "Null", "NULL"}
                else node.value
            )
        if node.id == "sequence":
            return [build(each) for each in node.value]
        found: dict[str, Any] = {}
        for key, value in node.value:
            if key.id != "scalar":
                raise refused("a key is a word", key.start_mark)
            if key.value in found:
                raise refused(f"the key {key.value!r} stands twice", key.start_mark)
            found[key.value] = build(value)
        return found

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader) if fast else yaml.BaseLoader
    try:
        event: Any
        depth = 0
        for count, event in enumerate(yaml.parse(text, Loader=loader)):
            if getattr(event, "anchor", None) or getattr(event, "tag", None) not in {None, "!"}:
                message = (
                    "anchors, aliases and tags are not read; put a value that begins with & * or ! "
                    "in quotes"
                )
                raise refused(message, event.start_mark)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if count > MAX_VALUES or depth > MAX_DEPTH:
                raise refused(
                    f"more than {MAX_VALUES} values, or {MAX_DEPTH} levels of them",
                    event.start_mark,
                )
        root = yaml.compose(text, Loader=loader)
        return Document(
            build(root) if root is not None else None, text, file, "yaml", first_line, root
        )
    except yaml.YAMLError as error:
        if fast:
            return parse_yaml(text, file, first_line, fast=False)
        if not isinstance(error, yaml.MarkedYAMLError):
            raise refused(str(error).splitlines()[0], None) from None
        # What is never closed is wrong where it begins, not where the text ends.
        is_open = (error.context or "").startswith(("while scanning a", "while parsing a flow"))
        mark = (error.context_mark if is_open else None) or error.problem_mark or error.context_mark
        raise refused(error.problem or str(error), mark) from None


def convert(
    document: Document, kind: type[T], at: Pointer = (), *, value: Any = None, strict: bool = True
) -> tuple[T | None, list[Problem]]:
    """Make a Struct of the object at `at` (`value`, else the whole document), or say what is wrong
    with it first.

    Not `strict` also takes numbers and booleans written as text (YAML, query strings).
    """
    value = document.value if value is None else value
    if not isinstance(value, dict):
        return None, [document.problem(at, f"must be an object, not {type_name(value)}")]
    try:
        return msgspec.convert(value, kind, strict=strict), []
    except (msgspec.ValidationError, RecursionError) as error:
        return None, [_problem(document, at, kind, str(error))]


def _problem(document: Document, at: Pointer, kind: Any, error: str) -> Problem:
    """Turn a message of msgspec (`Expected int, got str - at $.a[0]`) into a problem with its
    place.
    """
    # it holds a name of the document, which may be as long as the document
    if len(error) > 4 * MAX_MESSAGE:
        error = f"{error[: 2 * MAX_MESSAGE]}…{error[-2 * MAX_MESSAGE :]}"
    message, _, where = error.partition(" - at `$")
    path, kind = _follow(document.value, at, kind, where.rstrip("`"))
    if found := _UNKNOWN.match(message):
        known = (
            [each.encode_name for each in msgspec.structs.fields(kind)] if _is_struct(kind) else []
        )
        return document.problem(
            (*path, found[1]), f"unknown key {found[1]!r}{did_you_mean(found[1], known)}", key=True
        )
    if found := _MISSING.match(message):
        return document.problem((*path, found[1]), f"the key {found[1]!r} is missing")
    if message.startswith("Invalid enum value"):
        written = message.removeprefix("Invalid enum value ").strip("'")
        known = [
            str(it) for it in (kind if isinstance(kind, enum.EnumType) else typing.get_args(kind))
        ]
        near = did_you_mean(written, known)
        return document.problem(
            path, f"must be one of {', '.join(known)}, not {written!r}{near}" if known else message
        )
    if found := _EXPECTED.match(message):
        kinds = found["wanted"].replace("int | float", "float").split(" | ")
        wanted = " or ".join(_TYPE_NAMES.get(each, each) for each in kinds)
        got = f", not {_TYPE_NAMES.get(found['got'], found['got'])}" if found["got"] else ""
        return document.problem(path, f"must be {wanted}{found['limit']}{got}")
    return document.problem(path, message)


def _follow(value: Any, at: Pointer, kind: Any, where: str) -> tuple[Pointer, Any]:
    """Follow a path of msgspec, as `.limits[0]`, through value and type."""
    path = at
    for index, name in _STEP.findall(where):
        kind = _bare(kind)
        if index == "...":  # msgspec does not say which key of a dict
            break
        if name and _is_struct(kind):
            kind = next(
                (each.type for each in msgspec.structs.fields(kind) if each.encode_name == name),
                Any,
            )
        else:
            kind = (typing.get_args(kind) or (Any,))[-1 if name else 0]
        path = (*path, name or int(index))
    return path, _bare(kind)


def _bare(kind: Any) -> Any:
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) in {typing.Union, types.UnionType}:
        kinds = [each for each in typing.get_args(kind) if each is not type(None)]
        return _bare(kinds[0]) if len(kinds) == 1 else kind
    return kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def type_name(value: Any) -> str:
    names = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        type(None): "null",
    }
    return names.get(type(value), "a number")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that `name` was most likely meant for, None when none is near."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name[:100].lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known word, or nothing."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""


def config_error(
    problems: Sequence[Problem], unit: str | None = None, hint: str | None = None
) -> ConfigError:
    """Return problems, of which there is at least one, as the error of every surface: all are in
    its `errors`.
    """
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return ConfigError(
        f"{first.where()}: {first.message}{more}",
        hint=first.hint or hint,
        unit=unit,
        file=first.file,
        line=first.line,
        column=first.column,
        pointer=first.pointer,
        errors=[msgspec.to_builtins(each) for each in problems[:MAX_PROBLEMS]],
    )
