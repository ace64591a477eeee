"""JSON Schema 2020-12: is a schema sound, and does a value fit? Nothing is ever fetched, whatever a `$ref` says.

A schema is checked once, when its file is read. What passed is asked at every run: first only whether the value fits,
which takes a microsecond; why it does not is asked afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisord_py.config.documents import Pointer, pointer, type_name

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_VIOLATIONS = 100
MAX_MESSAGE = 400
_KEPT_HEAD, _KEPT_TAIL = 120, 240


class Violation(NamedTuple):
    """One place where a value does not fit."""

    path: Pointer
    message: str

    @property
    def pointer(self) -> str:
        return pointer(self.path)


def _nothing_fetched(address: str) -> Any:
    raise ValueError(f"nothing is fetched from elsewhere: {address}")


def compile_schema(schema: Any) -> Draft202012Validator:
    """Return a validator that resolves references within the schema only; `format` is an annotation.

    Raises ValueError: the schema is not sound, a reference leads nowhere, or a pattern cannot be read.
    """
    from jsonschema_rs import Draft202012Validator  # 3 MiB that a daemon without tools does not need

    return Draft202012Validator(schema, retriever=_nothing_fetched)


@cache
def _meta() -> Draft202012Validator:
    return compile_schema({"$ref": DIALECT})


def schema_problems(schema: Any) -> list[Violation]:
    """Say what is wrong with a schema; paths go into the schema. Empty means that it can be asked."""
    if not isinstance(schema, (dict, bool)):
        return [Violation((), f"must be a JSON Schema (an object, true or false), not {type_name(schema)}")]
    dialect = schema.get("$schema", DIALECT) if isinstance(schema, dict) else DIALECT
    if not isinstance(dialect, str) or dialect.rstrip("#") != DIALECT:
        return [Violation(("$schema",), f"{clip(repr(dialect))} is another dialect; schemas of tools are {DIALECT}")]
    found = violations(_meta(), schema)
    try:
        if not found:
            compile_schema(schema).is_valid(None)
    except ValueError as error:
        words = getattr(error, "message", str(error))
        found = [Violation(tuple(getattr(error, "instance_path", ())), clip(words))]
    return found


def violations(validator: Draft202012Validator, value: Any) -> list[Violation]:
    """Return every place where `value` does not fit, at most MAX_VIOLATIONS, in the order of their pointers.

    What is missing, or not known, is named by the pointer that it would have, or has.
    """
    from jsonschema_rs import ValidationErrorKind

    found: dict[str, Violation] = {}
    try:
        errors = () if validator.is_valid(value) else islice(validator.iter_errors(value), MAX_VIOLATIONS)
        for error in errors:
            path, kind = tuple(error.instance_path), error.kind
            each = [Violation(path, clip(error.message))]
            if isinstance(kind, ValidationErrorKind.Required):
                each = [Violation((*path, str(kind.property)), "is required")]
            elif isinstance(kind, ValidationErrorKind.AdditionalProperties):
                each = [Violation((*path, name), "is not known here") for name in kind.unexpected]
            found.update({one.pointer: one for one in each})
    except (ValueError, RecursionError) as error:  # half a surrogate pair, nesting beyond what the library takes
        return [Violation((), clip(f"cannot be checked: {error}"))]
    return [found[place] for place in sorted(found)][:MAX_VIOLATIONS]


def clip(text: str) -> str:
    """Shorten a message that quotes what somebody wrote: what is said of it stands at the end."""
    return text if len(text) <= MAX_MESSAGE else f"{text[:_KEPT_HEAD]} … {text[-_KEPT_TAIL:]}"


def differences(
    expected: Any, actual: Any, absolute: float = 0.0, relative: float = 0.0, *, extra: bool = False
) -> list[str]:
    """Return where two JSON values differ: at most 50 sentences `/pointer: expected …, got …`.

    Numbers are equal that differ by at most `absolute`, or by the part `relative` of the expected one; with `extra`,
    members that are not expected are no difference.
    """

    def equal(left: Any, right: Any) -> bool:
        numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (left, right))
        if not numbers:
            return type(left) is type(right) and bool(left == right)
        both_nan = math.isnan(left) and math.isnan(right)
        return both_nan or left == right or abs(right - left) <= max(absolute, relative * abs(left))

    def walk(path: Pointer, left: Any, right: Any) -> Iterator[str]:
        if isinstance(left, dict) and isinstance(right, dict):
            for key in dict.fromkeys([*left, *right]):
                if key not in right:
                    yield f"{pointer((*path, key))}: missing, expected {_shown(left[key])}"
                elif key in left:
                    yield from walk((*path, key), left[key], right[key])
                elif not extra:
                    yield f"{pointer((*path, key))}: not expected, got {_shown(right[key])}"
        elif isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                yield f"{pointer(path) or '/'}: expected {len(left)} items, got {len(right)}"
            for index, (one, other) in enumerate(zip(left, right, strict=False)):
                yield from walk((*path, index), one, other)
        elif not equal(left, right):
            yield f"{pointer(path) or '/'}: expected {_shown(left)}, got {_shown(right)}"

    return list(islice(walk((), expected, actual), 50))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
