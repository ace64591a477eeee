"""`KEY=VALUE` becomes JSON, led by the tool's input schema: texts and a schema in, a value out.

Law: what the schema allows and the text can mean becomes that; what cannot be coerced stays a string, so that the
daemon says with a JSON pointer what does not fit. Nothing is guessed where the schema says nothing.

    n=5            by the schema: 5, 5.0, true, null, "5", [5]
    xs=1,2,3       an array where the schema wants one; repeated keys and JSON work, too
    a.b=1          nested, unless the schema has a property called "a.b"
    key:=[1, {}]   JSON as it stands
    key=@FILE      the file: as a data URL or in base64 where the schema says so, else its text, coerced as if typed
"""

from __future__ import annotations

import binascii
import json
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_DIGITS = 4000
"""More digits than that are no number (Python itself refuses to read them)."""


class CannotRead(ValueError):
    """An assignment or an input that makes no sense, whatever the schema says."""


class _Nothing:
    """The text cannot mean a value of that type."""


_NOTHING = _Nothing()


class Assignment:
    """One `KEY=VALUE` (text to be coerced) or `KEY:=JSON` (a value as it stands)."""

    __slots__ = ("key", "text", "value")

    def __init__(self, key: str, text: str | None, value: Any) -> None:
        self.key = key
        self.text = text
        self.value = value


def parse_assignment(argument: str) -> Assignment:
    """Split an argument at its first "="; a ":" before it marks JSON."""
    key, equals, text = argument.partition("=")
    if not equals:
        raise CannotRead(f"{argument!r} is not KEY=VALUE")
    as_json = key.endswith(":")
    key = key.removesuffix(":")
    if not key:
        raise CannotRead(f"{argument!r} has no key before the '='")
    if not as_json:
        return Assignment(key, text, None)
    return Assignment(key, None, read_json(text, f"the value of {key}"))


def read_json(text: str | bytes, what: str) -> Any:
    """Read JSON strictly; raises CannotRead with line and column."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise CannotRead(f"{what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise CannotRead(f"{what} is not JSON: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def build_input(arguments: Sequence[str], base: Any, schema: Any) -> Any:
    """Return `base` with the assignments put over it.

    Raises:
        CannotRead: An argument is no assignment, a key is given twice without an array to collect both, or a nested key
            runs into something that is no object.
    """
    if not arguments:
        return base
    if not isinstance(base, dict):
        raise CannotRead("KEY=VALUE can only be put over an object, and --input is none")
    root: Mapping[str, Any] = schema if isinstance(schema, dict) else {}
    groups: dict[tuple[str, ...], list[Assignment]] = {}
    for argument in arguments:
        assignment = parse_assignment(argument)
        groups.setdefault(_split_key(assignment.key, root), []).append(assignment)
    result: dict[str, Any] = _copied(base)
    for path, given in groups.items():
        _put(result, path, _value_of(path, given, _schema_at(root, path), root))
    return result


def _copied(value: Any) -> Any:
    return {key: _copied(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _split_key(key: str, root: Mapping[str, Any]) -> tuple[str, ...]:
    if "." not in key or key in _properties(root, root):
        return (key,)
    path = tuple(key.split("."))
    if not all(path):
        raise CannotRead(f"{key!r} has an empty part between its dots")
    return path


def _put(target: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for at, name in enumerate(path[:-1]):
        inner = target.setdefault(name, {})
        if not isinstance(inner, dict):
            raise CannotRead(f"{'.'.join(path)} cannot be set: {'.'.join(path[: at + 1])} is not an object")
        target = inner
    target[path[-1]] = value


def _value_of(path: tuple[str, ...], given: list[Assignment], schema: Any, root: Mapping[str, Any]) -> Any:
    if len(given) == 1:
        return _value(given[0], schema, root)
    arrays = [one for one in _variants(schema, root) if "array" in _types(one)]
    if _is_open(schema, root):
        arrays.append({})
    if not arrays:
        raise CannotRead(f"{'.'.join(path)} is given {len(given)} times, and it is no array")
    return [_value(one, _item_schema(arrays[0], at), root) for at, one in enumerate(given)]


def _value(one: Assignment, schema: Any, root: Mapping[str, Any]) -> Any:
    if one.text is None:
        return one.value
    if not one.text.startswith("@"):
        return coerce(one.text, schema, root)
    path = os.path.expanduser(one.text[1:])
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CannotRead(
            f"{one.key}: cannot read {path}: {why} (for a text that begins with @: {one.key}:='\"@…\"')"
        ) from error
    variants = _variants(schema, root)
    if any(_takes_file(variant) for variant in variants):
        return _encoded(path, content, variants)
    for variant in variants:
        items = _variants(_item_schema(variant, 0), root) if "array" in _types(variant) else []
        if any(_takes_file(item) for item in items):
            return [_encoded(path, content, items)]
    try:
        return coerce(content.decode(), schema, root)
    except UnicodeDecodeError as error:
        raise CannotRead(f"{one.key}: {path} is no text in UTF-8, and the schema asks for no other form") from error


def _takes_file(variant: Mapping[str, Any]) -> bool:
    return variant.get("format") == "data-url" or variant.get("contentEncoding") == "base64"


def _encoded(path: str, content: bytes, variants: Sequence[Mapping[str, Any]]) -> str:
    """Return a file in base64, with its type in front where a data URL is asked for (RFC 2397)."""
    import mimetypes

    text = binascii.b2a_base64(content, newline=False).decode()
    if not any(variant.get("format") == "data-url" for variant in variants):
        return text
    return f"data:{mimetypes.guess_type(path)[0] or 'application/octet-stream'};base64,{text}"


def coerce(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Return what `text` means under `schema`; the text itself where it can mean nothing else."""
    value = _coerce_whole(text, schema, root)
    if value != text or not isinstance(value, str):
        return value
    variants = _variants(schema, root)
    kinds = {kind for variant in variants for kind in _types(variant)}
    arrays = [variant for variant in variants if "array" in _types(variant)]
    return _split(text, arrays[0], root) if arrays and "string" not in kinds else text


def _coerce_whole(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Return what `text` means in one piece, not cut at commas (elements of a list are not lists once more)."""
    variants = _variants(schema, root)
    for variant in variants:
        found = _from_listed(text, variant)
        if not isinstance(found, _Nothing):
            return found
    allowed = {kind for variant in variants if "enum" not in variant for kind in _types(variant)}
    for kind, read in _READERS:
        if kind in allowed:
            found = read(text)
            if not isinstance(found, _Nothing):
                return found
    return text


def _from_listed(text: str, variant: Mapping[str, Any]) -> Any:
    """Return the member of `enum` or the `const` that the text spells."""
    listed = variant.get("enum") if isinstance(variant.get("enum"), list) else None
    if listed is None:
        listed = [variant["const"]] if "const" in variant else []
    if text in [one for one in listed if isinstance(one, str)]:
        return text
    return next((one for one in listed if not isinstance(one, str) and json.dumps(one) == text), _NOTHING)


def _read_null(text: str) -> Any:
    return None if text == "null" else _NOTHING


def _read_integer(text: str) -> Any:
    if _INTEGER.fullmatch(text) and len(text) <= _DIGITS:
        return int(text)
    number = _read_float(text)
    return int(number) if isinstance(number, float) and number.is_integer() else _NOTHING


def _read_number(text: str) -> Any:
    if _INTEGER.fullmatch(text) and len(text) <= _DIGITS:
        return int(text)
    return _read_float(text)


def _read_float(text: str) -> Any:
    if not _NUMBER.fullmatch(text):
        return _NOTHING
    number = float(text)
    return _NOTHING if number in {float("inf"), float("-inf")} else number


def _read_boolean(text: str) -> Any:
    lowered = text.lower()
    if lowered in _TRUE:
        return True
    return False if lowered in _FALSE else _NOTHING


def _read_object(text: str) -> Any:
    return _read_container(text, "{", dict)


def _read_json_array(text: str) -> Any:
    return _read_container(text, "[", list)


def _read_container(text: str, opening: str, kind: type) -> Any:
    if not text.lstrip().startswith(opening):
        return _NOTHING
    try:
        value = read_json(text, "it")
    except CannotRead:
        return _NOTHING
    return value if isinstance(value, kind) else _NOTHING


_READERS = (
    ("null", _read_null),
    ("integer", _read_integer),
    ("number", _read_number),
    ("boolean", _read_boolean),
    ("object", _read_object),
    ("array", _read_json_array),
)
"""In the order of trial: the narrower meaning first, so that 1 under [integer, boolean] is a number."""


def _split(text: str, variant: Mapping[str, Any], root: Mapping[str, Any]) -> list[Any]:
    pieces = text.split(",") if text else []
    return [_coerce_whole(piece.strip(), _item_schema(variant, at), root) for at, piece in enumerate(pieces)]


def _item_schema(variant: Mapping[str, Any], at: int) -> Any:
    prefix = variant.get("prefixItems")
    if isinstance(prefix, list) and at < len(prefix):
        return prefix[at]
    return variant.get("items", {})


def _variants(schema: Any, root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the schema and what its $ref, anyOf, oneOf and allOf say, flat, each once, in the order of reading."""
    found: dict[int, Mapping[str, Any]] = {}
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, dict) or id(one) in found:
            continue
        found[id(one)] = one
        branches = [_resolve(one["$ref"], root)] if isinstance(one.get("$ref"), str) else []
        for word in ("anyOf", "oneOf", "allOf"):
            if isinstance(one.get(word), list):
                branches += one[word]
        waiting += reversed(branches)
    return list(found.values())


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """Return what a local reference ("#/$defs/x") points to (RFC 6901); None for any other."""
    if not reference.startswith("#"):
        return None
    found: Any = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _types(variant: Mapping[str, Any]) -> list[str]:
    kinds = variant.get("type")
    found = (
        [kinds]
        if isinstance(kinds, str)
        else [kind for kind in kinds if isinstance(kind, str)]
        if isinstance(kinds, list)
        else []
    )
    if variant.get("nullable") is True:
        found = [*found, "null"]
    if not found and ("properties" in variant or "additionalProperties" in variant):
        return ["object"]
    if not found and ("items" in variant or "prefixItems" in variant):
        return ["array"]
    return found


def _is_open(schema: Any, root: Mapping[str, Any]) -> bool:
    """Say whether the schema names no type at all, so that anything may be meant."""
    return not any(_types(one) or "enum" in one or "const" in one for one in _variants(schema, root))


def _properties(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variant in _variants(schema, root):
        properties = variant.get("properties")
        if isinstance(properties, dict):
            found = {**properties, **found}
    return found


def _schema_at(root: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return the schema of a nested property; {} where the schema says nothing about it."""
    schema: Any = root
    for name in path:
        declared = _properties(schema, root)
        if name in declared:
            schema = declared[name]
            continue
        others = (one.get("additionalProperties") for one in _variants(schema, root))
        schema = next((one for one in others if isinstance(one, dict)), {})
    return schema
