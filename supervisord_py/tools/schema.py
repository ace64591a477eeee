"""JSON Schema 2020-12: is a schema sound, and does a value fit? Nothing is ever fetched, whatever a
`$ref` says.

A schema is checked once, when its file is read. What passed is asked at every run: first only
whether the value fits, which takes a microsecond; why it does not is asked afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisord_py.config.documents import Pointer, pointer

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_VIOLATIONS = 100
MAX_MESSAGE = 400
EXPLAINED_VALUES = 2_000
"""In a value with more values than this, only whether it fits is asked: the library makes all
errors at once, each with the text of what is wrong, which takes minutes and gigabytes for a million
of them.
"""
# characters of all strings and names in a value whose errors are asked for
EXPLAINED_TEXT = 128 * 1024
UNIQUE_VALUES = 200_000  # of an input whose schema compares items with each other (`uniqueItems`)
# steps of one match of a pattern with look-around or back-references: about 2 ms
_BACKTRACKS = 100_000


class Violation(NamedTuple):
    path: Pointer
    message: str

    @property
    def pointer(self) -> str:
        return pointer(self.path)


def _nothing_fetched(address: str) -> Any:
    raise ValueError(f"nothing is fetched from elsewhere: {address}")


def compile_schema(schema: Any) -> Draft202012Validator:
    """Return a validator that resolves references within the schema only; `format` is an
    annotation.

    Raises ValueError: the schema is not sound, a reference leads nowhere, or a pattern cannot be
    read.
    """
    # 3 MiB that a daemon without tools does not need
    from jsonschema_rs import Draft202012Validator, FancyRegexOptions

    patterns = FancyRegexOptions(backtrack_limit=_BACKTRACKS)
    return Draft202012Validator(schema, retriever=_nothing_fetched, pattern_options=patterns)


@cache
def _meta() -> Draft202012Validator:
    return compile_schema({"$ref": DIALECT})


def schema_problems(schema: Any) -> list[Violation]:
    """Say what is wrong with a schema; paths go into it.

    Empty: it can be asked, or is no object at all.
    """
    if not isinstance(schema, dict):
        return []
    dialect = str(schema.get("$schema", DIALECT))
    if dialect.rstrip("#") != DIALECT:
        return [
            Violation(
                ("$schema",),
                f"{clip(repr(dialect))} is another dialect; schemas of tools are {DIALECT}",
            )
        ]
    found = violations(_meta(), schema)
    try:
        if not found:
            compile_schema(schema).is_valid(None)
    except ValueError as error:
        words = getattr(error, "message", str(error))
        found = [Violation(tuple(getattr(error, "instance_path", ())), clip(words))]
    return found


def violations(validator: Draft202012Validator, value: Any) -> list[Violation]:
    """Return every place where `value` does not fit, at most MAX_VIOLATIONS, in the order of their
    pointers.

    What is missing, or not known, is named by the pointer that it would have, or has. Of a large
    value only one is returned, which says no place (EXPLAINED_VALUES).
    """
    from jsonschema_rs import ValidationErrorKind

    found: dict[str, Violation] = {}
    try:
        if not _is_explainable(value):
            short = shortened(value)
            if validator.is_valid(value):
                return []
            if short is None or validator.is_valid(short):
                most = f"{EXPLAINED_VALUES:,} values or {EXPLAINED_TEXT // 1024} KiB of text"
                return [
                    Violation((), f"does not fit the schema; where, is only said of up to {most}")
                ]
            value = short
        for error in islice(validator.iter_errors(value), MAX_VIOLATIONS):
            path, kind = tuple(error.instance_path), error.kind
            each = [Violation(path, clip(error.message))]
            if isinstance(kind, ValidationErrorKind.Required):
                each = [Violation((*path, str(kind.property)), "is required")]
            elif isinstance(kind, ValidationErrorKind.AdditionalProperties):
                each = [Violation((*path, name), "is not known here") for name in kind.unexpected]
            found.update({one.pointer: one for one in each})
    # half a surrogate pair, nesting beyond what the library takes
    except (ValueError, RecursionError) as error:
        return [Violation((), clip(f"cannot be checked: {error}"))]
    return [found[place] for place in sorted(found)][:MAX_VIOLATIONS]


def _is_explainable(value: Any) -> bool:
    """Say whether all errors of a value may be asked for at once."""
    count, text = measure(value, EXPLAINED_VALUES)
    return count <= EXPLAINED_VALUES and text <= EXPLAINED_TEXT


def measure(value: Any, most: int) -> tuple[int, int]:
    """Return how many values there are in a JSON value, and how many characters; stop counting
    at `most` values.
    """
    count = text = 0
    waiting: list[Any] = [value]
    while waiting and count <= most:
        item = waiting.pop()
        count += 1
        if isinstance(item, str):
            text += len(item)
        elif isinstance(item, dict):
            if len(item) > most:
                return len(item), text
            text += sum(map(len, item))
            waiting += item.values()
        elif isinstance(item, list):
            if len(item) > most:
                return len(item), text
            waiting += item
    return count, text


def shortened(value: Any) -> Any | None:
    """Return a copy of a value with its long strings cut, so that its errors may be asked for.

    A file that is sent as text must not hide what is wrong beside it. None: the copy is too large,
    too.
    """
    count, _ = measure(value, EXPLAINED_VALUES)
    if count > EXPLAINED_VALUES:
        return None
    room = EXPLAINED_TEXT // (2 * count)

    def cut(item: Any) -> Any:
        if isinstance(item, str):
            return item[:room]
        if isinstance(item, dict):
            return {name: cut(member) for name, member in item.items()}
        return [cut(member) for member in item] if isinstance(item, list) else item

    short = cut(value)
    return short if _is_explainable(short) else None


def compares_items(schema: Any) -> bool:
    """Say whether a schema asks anywhere that items are unique, for which all of them are
    compared.
    """
    if isinstance(schema, dict):
        return bool(schema.get("uniqueItems")) or any(map(compares_items, schema.values()))
    return isinstance(schema, list) and any(map(compares_items, schema))


def clip(text: str) -> str:
    """Shorten a message that quotes what somebody wrote: what is said of it stands at the end."""
    return text if len(text) <= MAX_MESSAGE else f"{text[:120]} … {text[-240:]}"


def differences(
    expected: Any, actual: Any, absolute: float = 0.0, relative: float = 0.0, *, extra: bool = False
) -> list[str]:
    """Return where two JSON values differ: at most 50 sentences `/pointer: expected …, got …`.

    Numbers are equal that differ by at most `absolute`, or by the part `relative` of the expected
    one; with `extra`, members that are not expected are no difference.
    """
    found, wanted, given = list[str](), dict(_leaves(expected)), dict(_leaves(actual))
    for place in dict.fromkeys([*wanted, *given]):
        if place not in given:
            found.append(f"{place}: missing, expected {_shown(wanted[place])}")
        elif place in wanted and not _equal(wanted[place], given[place], absolute, relative):
            found.append(f"{place}: expected {_shown(wanted[place])}, got {_shown(given[place])}")
        elif place not in wanted and not extra:
            found.append(f"{place}: not expected, got {_shown(given[place])}")
    return found[:50]


def _leaves(value: Any, path: Pointer = ()) -> Iterator[tuple[str, Any]]:
    """Yield what a JSON value is made of, by its place; an array itself stands for how many
    items it has.
    """
    is_object, is_array = isinstance(value, dict), isinstance(value, list)
    if not (is_object and value):
        yield pointer(path) or "/", f"{len(value)} items" if is_array else value
    for key, each in value.items() if is_object else enumerate(value) if is_array else ():
        yield from _leaves(each, (*path, key))


def _equal(left: Any, right: Any, absolute: float, relative: float) -> bool:
    if {type(left), type(right)} <= {int, float}:
        near = abs(right - left) <= max(absolute, relative * abs(left))
        return left == right or near or (math.isnan(left) and math.isnan(right))
    return type(left) is type(right) and bool(left == right)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
