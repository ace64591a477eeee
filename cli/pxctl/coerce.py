"""`KEY=VALUE` becomes JSON, led by the tool's input schema: texts and a schema in, a value out.

What the schema allows and the text can mean becomes that; what cannot be coerced stays a string, so
that the daemon says with a JSON pointer what does not fit. Nothing is guessed where the schema says
nothing.

    n=5            by the schema: 5, 5.0, true, null, "5", [5]
    xs=1,2,3       an array where the schema wants one; JSON works, too
    a.b=1          nested, unless the schema has a property called "a.b"
    key:=[1, {}]   JSON as it stands
    key=@FILE      the file: as a data URL or in base64 where the schema says so, else its text,
                   coerced as if typed
"""

from __future__ import annotations

import binascii
import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from pxctl.client import Failure, usage

Schema = Mapping[str, Any]  # of a tool that the daemon has read: it is sound

_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
# else null
_NAMES = {
    int: "integer",
    float: "number",
    bool: "boolean",
    str: "string",
    dict: "object",
    list: "array",
}


def read_argument(given: str) -> bytes:
    """Return what `JSON`, `@FILE` or `-` (stdin) on a command line stands for; raises Failure."""
    if given == "-":
        with open(0, "rb", closefd=False) as file:  # sys.stdin is None where it was closed
            return file.read()
    return (
        _content(given[1:]) if given.startswith("@") else given.encode("utf-8", "surrogateescape")
    )


def _content(name: str) -> bytes:
    try:
        return Path(name).expanduser().read_bytes()
    except (OSError, ValueError, RuntimeError) as error:
        raise usage(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error


def read_json(text: str | bytes, what: str) -> Any:
    """Read JSON strictly; raises Failure with line and column."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON number")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise usage(f"{what} is not JSON: {error}") from error


def build_input(arguments: Sequence[str], base: Any, schema: Any) -> Any:
    """Return `base` with the assignments put over it.

    Raises Failure: one makes no sense, or runs into another.
    """
    if not isinstance(base, dict):
        raise usage("KEY=VALUE can only be put over an object, and --input is none")
    root: Schema = schema if isinstance(schema, dict) else {}
    result: dict[str, Any] = deepcopy(base)
    given = set[tuple[str, ...]]()
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals:
            raise usage(f"{argument!r} is not KEY=VALUE")
        name = key.removesuffix(":")
        path = (name,) if name in _properties(root, root) else tuple(name.split("."))
        if not all(path):
            raise usage(
                f"{argument!r} has no key before the '=', or an empty part between its dots"
            )
        if path in given:
            raise usage(f"{name} is given twice; an array is {name}=1,2 or {name}:='[1, 2]'")
        given.add(path)
        target = result
        for at, part in enumerate(path[:-1]):
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise usage(f"{name} cannot be set: {'.'.join(path[: at + 1])} is not an object")
        wanted: Any = root
        for part in path:
            wanted = _properties(wanted, root).get(part)
        if key != name:
            target[path[-1]] = read_json(text, f"the value of {name}")
        elif text.startswith("@"):
            target[path[-1]] = _file(name, text[1:], wanted, root)
        else:
            _refuse_name_of_file(name, text, wanted, root)
            target[path[-1]] = coerce(text, wanted, root)
    return result


def _refuse_name_of_file(key: str, text: str, schema: Any, root: Schema) -> None:
    """Raise Failure if an input that takes a file gets the name of one, where its content is
    meant.
    """
    if not _file_forms(schema, root) or text.startswith("data:"):
        return
    is_file = False
    # too long for a name, a NUL, no such user
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        is_file = Path(text).expanduser().is_file()
    if is_file:
        raise usage(
            f"{key} takes a file, and {text!r} is only its name",
            hint=f"{key}=@{text} gives the file; {key}:='{json.dumps(text)}' gives the text",
        )


def _file(key: str, name: str, schema: Any, root: Schema) -> Any:
    """Return a file as the schema takes it: a data URL or base64 (also as the one item of an
    array), else its text.
    """
    import mimetypes

    try:
        content = _content(name)
    except Failure as error:
        raise usage(f"{key}: {error} (for a text that begins with @: {key}:='\"@…\"')") from error
    encoded = binascii.b2a_base64(content, newline=False).decode()
    # RFC 2397
    url = f"data:{mimetypes.guess_type(name)[0] or 'application/octet-stream'};base64,{encoded}"
    for form, is_item in _file_forms(schema, root):
        found = url if form == "data-url" else encoded
        return [found] if is_item else found
    try:
        return coerce(content.decode(), schema, root)
    except UnicodeDecodeError as error:
        raise usage(
            f"{key}: {name} is no text in UTF-8, and the schema asks for no other form"
        ) from error


def _file_forms(schema: Any, root: Schema) -> list[tuple[str, bool]]:
    """Return the forms in which a schema takes a file, the one to use first, and whether it is
    an item of an array.
    """
    variants = _variants(schema, root)
    items = [one for variant in variants for one in _variants(variant.get("items"), root)]
    found: list[tuple[str, bool]] = []
    for held, is_item in ((variants, False), (items, True)):
        forms = {form for one in held for form in (one.get("format"), one.get("contentEncoding"))}
        found += [(form, is_item) for form in ("data-url", "base64") if form in forms]
    return found


def coerce(text: str, schema: Any, root: Schema, *, splits: bool = True) -> Any:
    """Return what `text` means under `schema`, as the text itself where it can mean nothing else.

    `splits`: at commas, where an array is wanted; its elements are not lists once more.
    """
    variants = _variants(schema, root)
    allowed = {kind for variant in variants for kind in _types(variant)}
    if any(text in variant.get("enum", ()) for variant in variants):
        return text
    value: Any = text
    try:
        value = read_json(text, "it")
    except Failure:
        # ".5" and "+1" are no JSON, and numbers to people; "1_000" is neither
        with contextlib.suppress(ValueError):
            value = text if text.strip("+-.0123456789") else float(text)
    kind = _NAMES.get(type(value), "null")
    if kind in {"integer", "number"} and abs(value) < math.inf and {"integer", "number"} & allowed:
        return (
            int(value)
            if "integer" in allowed and value % 1 == 0
            else value
            if "number" in allowed
            else text
        )
    if kind in allowed - {"integer", "number", "string"}:
        return value
    if "boolean" in allowed and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    if not splits or "array" not in allowed or "string" in allowed:
        return text
    items = next((variant.get("items") for variant in variants if "array" in _types(variant)), None)
    return [
        coerce(one.strip(), items, root, splits=False) for one in (text.split(",") if text else [])
    ]


def _variants(schema: Any, root: Schema, above: tuple[int, ...] = ()) -> list[Schema]:
    """Return the schema and what its $ref, anyOf, oneOf and allOf say, flat, in the order of
    reading; loops once.
    """
    if not isinstance(schema, dict) or id(schema) in above:
        return []
    branches = [_resolve(schema["$ref"], root)] if "$ref" in schema else []
    branches += [each for word in ("anyOf", "oneOf", "allOf") for each in schema.get(word, ())]
    return [
        schema,
        *(one for branch in branches for one in _variants(branch, root, (*above, id(schema)))),
    ]


def _resolve(reference: str, root: Schema) -> Any:
    """Return what a local reference ("#/$defs/x") points to (RFC 6901); None for any other."""
    found: Any = root if reference.startswith("#") else None
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _types(variant: Schema) -> list[str]:
    kinds = variant.get("type", [])
    if not kinds:
        listed = variant.get("enum") or ([variant["const"]] if "const" in variant else [])
        return [_NAMES.get(type(one), "null") for one in listed]
    return kinds if isinstance(kinds, list) else [kinds]


def _properties(schema: Any, root: Schema) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variant in _variants(schema, root):
        found = {**variant.get("properties", {}), **found}
    return found
