"""JSON Schema 2020-12: is a schema sound, and does a value fit? Nothing is ever fetched, whatever a `$ref` says.

A schema is checked once, when its file is read. What passed is asked at every run: first only whether the value fits,
which takes a microsecond; why it does not is asked afterwards.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisord_py.config.documents import did_you_mean, pointer, type_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jsonschema_rs import Draft202012Validator, ValidationError

    from supervisord_py.config.documents import Pointer

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
    try:
        found = [Violation(tuple(each.instance_path), clip(each.message)) for each in _some_errors(_meta(), schema)]
        if not found:
            compile_schema(schema).is_valid(None)
    except ValueError as error:
        words, at = getattr(error, "message", str(error)), tuple(getattr(error, "instance_path", ()))
        leads = next((path for path, target in _references(schema, ()) if target.lstrip("#") in words), None)
        if leads is not None and not at:
            words = f"the reference leads nowhere in this document (nothing is fetched from elsewhere): {words}"
        found = [Violation(at or leads or (), clip(words))]
    return found


def _some_errors(validator: Draft202012Validator, value: Any) -> list[ValidationError]:
    return list(islice(validator.iter_errors(value), MAX_VIOLATIONS))


def _references(schema: Any, path: Pointer) -> Iterator[tuple[Pointer, str]]:
    """Yield where each `$ref` of a schema stands, and where it leads."""
    members = schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
    for key, value in members:
        if key == "$ref" and isinstance(value, str) and value not in {"", "#"}:
            yield (*path, key), value
        yield from _references(value, (*path, key))


def violations(validator: Draft202012Validator, value: Any, schema: Any = None) -> list[Violation]:
    """Return every place where `value` does not fit, at most MAX_VIOLATIONS, in the order of their pointers.

    `schema`, where given, is what the validator was made of: it knows the nearest word for a member that has none.
    """
    try:
        if validator.is_valid(value):
            return []
        found = [each for error in _some_errors(validator, value) for each in _explain(error, schema)]
    except (ValueError, RecursionError) as error:  # half a surrogate pair, nesting beyond what the library takes
        return [Violation((), clip(f"cannot be checked: {error}"))]
    unique = {(each.pointer, each.message): each for each in found}
    return sorted(unique.values(), key=lambda each: each.pointer)[:MAX_VIOLATIONS]


def _explain(error: ValidationError, schema: Any) -> Iterator[Violation]:
    """Turn one error into sentences that name the member that a person must change."""
    from jsonschema_rs import ValidationErrorKind

    path, kind = tuple(error.instance_path), error.kind
    if isinstance(kind, (ValidationErrorKind.AnyOf, ValidationErrorKind.OneOfNotValid)):
        nearest = _nearest_alternative([each for branch in kind.context for each in branch])
        if nearest is not None:
            yield from _explain(nearest, schema)
            return
    if isinstance(kind, ValidationErrorKind.Required):
        yield Violation((*path, str(kind.property)), "is required")
    elif isinstance(kind, ValidationErrorKind.AdditionalProperties):
        known = _properties(schema, error.schema_path[:-1])
        for name in kind.unexpected:
            yield Violation((*path, name), f"is not known here{did_you_mean(name, known)}")
    elif isinstance(kind, ValidationErrorKind.Type):
        yield Violation(path, f"must be of type {' or '.join(kind.types)}, not {type_name(error.instance)}")
    elif isinstance(kind, ValidationErrorKind.Enum):
        words = [each for each in kind.options if isinstance(each, str)]
        near = did_you_mean(error.instance, words) if isinstance(error.instance, str) else ""
        shown = ", ".join(repr(each) for each in kind.options[:20])
        yield Violation(path, clip(f"must be one of {shown}{near}"))
    else:
        yield Violation(path, clip(error.message))


def _nearest_alternative(errors: list[ValidationError]) -> ValidationError | None:
    """Return the error of the alternative that was most likely meant: the deepest, and best not one of type."""
    from jsonschema_rs import ValidationErrorKind

    def depth(error: ValidationError) -> tuple[int, bool]:
        return len(error.instance_path), not isinstance(error.kind, ValidationErrorKind.Type)

    return max(errors, key=depth, default=None)


def _properties(schema: Any, path: list[str | int]) -> Mapping[str, Any]:
    """Return the properties of the subschema at `path`; none where a reference leads elsewhere."""
    for step in path:
        try:
            schema = schema[step]
        except (LookupError, TypeError):
            return {}
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


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
