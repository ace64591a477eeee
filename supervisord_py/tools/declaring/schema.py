"""JSON Schema 2020-12: is a schema sound, and does a value fit? Nothing is ever fetched, whatever a `$ref` says.

A schema is checked once, when its file is read: against the metaschema, that every reference resolves within the
document, that every pattern compiles, that no reference runs in a circle. What passed can then be asked at every
request.
"""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from supervisord_py.tools.declaring.fields import type_name
from supervisord_py.tools.declaring.json_positions import child, pointer_of
from supervisord_py.tools.declaring.problems import clip, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from referencing._core import Resolver


# Where jupyter_server is installed, jsonschema finds rfc3987_syntax, which builds a grammar as it is imported: a second
# and a half of every start of the control plane; others cost some hundredths. They check formats, which we never ask
# (`format` is an annotation): while jsonschema is imported they are hidden, afterwards everybody may import them.
_COSTLY = (
    "rfc3987_syntax",
    "rfc3986_validator",
    "rfc3339_validator",
    "isoduration",
    "uri_template",
    "webcolors",
    "fqdn",
)
_hidden = [name for name in _COSTLY if name not in sys.modules]
for _name in _hidden:
    sys.modules[_name] = None  # type: ignore[assignment]  # import then says ImportError, as where it is missing
try:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError, best_match
finally:
    for _name in _hidden:
        del sys.modules[_name]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_VIOLATIONS = 100

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLES = (
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
)
_ALONE: Registry[Any] = Registry()
"""Knows no document and retrieves none."""
_META = Draft202012Validator(Draft202012Validator.META_SCHEMA)
_BAD_REFERENCE = (Unresolvable, ValueError, TypeError, LookupError, AttributeError)
_BROKEN_WHILE_ASKED = (RecursionError, ArithmeticError, ValueError, Unresolvable, re.error)


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where a value does not fit; `pointer` is a JSON pointer into the value."""

    pointer: str
    message: str


def compile_schema(schema: Any) -> Draft202012Validator:
    """Return a validator that resolves references within the schema only."""
    return Draft202012Validator(schema, registry=_ALONE)


def schema_problems(schema: Any) -> list[Violation]:
    """Say what is wrong with a schema; pointers go into the schema. Empty means that it can be asked."""
    if not isinstance(schema, (dict, bool)):
        return [Violation("", f"must be a JSON Schema (an object, true or false), not {type_name(schema)}")]
    found = [
        Violation(pointer_of(error.absolute_path), clip(error.message))
        for error in islice(_META.iter_errors(schema), MAX_VIOLATIONS)
    ]
    if found:
        return found
    try:
        for pointer, part, resolver in _subschemas(schema):
            found += [Violation(pointer_of_key(pointer, key), text) for key, text in _part_problems(part, resolver)]
    except _BAD_REFERENCE as error:
        found.append(Violation("", f"an $id or a reference is broken: {clip(str(error), 200)}"))
    return found or _circle_problems(schema)


def pointer_of_key(pointer: str, key: str) -> str:
    """Return the pointer of a keyword, or of the subschema itself for the empty keyword."""
    return child(pointer, key) if key else pointer


def _subschemas(schema: Any) -> Iterator[tuple[str, Mapping[str, Any], Resolver[Any]]]:
    """Walk all subschemas that are objects, with the resolver that knows their base."""
    root = DRAFT202012.create_resource(schema)
    waiting = [("", schema, _ALONE.resolver_with_root(root))]
    while waiting:
        pointer, part, resolver = waiting.pop()
        if not isinstance(part, dict):
            continue
        yield pointer, part, resolver
        for below, each in _below(pointer, part):
            waiting.append((below, each, resolver.in_subresource(DRAFT202012.create_resource(each))))


def _below(pointer: str, part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in part.items():
        own = child(pointer, key)
        if key in _MAPS and isinstance(value, dict):
            yield from ((child(own, name), each) for name, each in value.items())
        elif key in _LISTS and isinstance(value, list):
            yield from ((child(own, index), each) for index, each in enumerate(value))
        elif key in _SINGLES:
            yield own, value


def _part_problems(part: Mapping[str, Any], resolver: Resolver[Any]) -> Iterator[tuple[str, str]]:
    """Yield (keyword, message) for what the metaschema cannot see in one subschema."""
    dialect = part.get("$schema", DIALECT)
    if dialect.rstrip("#") != DIALECT:
        yield "$schema", f"{clip(dialect, 100)!r} is another dialect; schemas of tools are {DIALECT}"
    for key in ("$ref", "$dynamicRef"):
        if key in part:
            trouble = _reference_trouble(part[key], resolver)
            if trouble:
                yield key, trouble
    patterns = [("pattern", part["pattern"])] if "pattern" in part else []
    patterns += [("patternProperties", each) for each in part.get("patternProperties", ())]
    for key, pattern in patterns:
        trouble = _pattern_trouble(pattern)
        if trouble:
            yield key, trouble


def _reference_trouble(reference: str, resolver: Resolver[Any]) -> str | None:
    try:
        target = resolver.lookup(reference).contents
    except _BAD_REFERENCE:
        return f"{clip(reference, 200)!r} leads nowhere in this document (nothing is fetched from elsewhere)"
    if not isinstance(target, (dict, bool)) or next(_META.iter_errors(target), None) is not None:
        return f"{clip(reference, 200)!r} leads to something that is no schema"
    return None


def _pattern_trouble(pattern: str) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError, Warning) as error:
            return f"{clip(pattern, 100)!r} is no usable regular expression: {error}"
    return None


def _circle_problems(schema: Any) -> list[Violation]:
    validator = compile_schema(schema)
    probes: tuple[Any, ...] = (None, True, 0, "", [], {})
    try:
        for probe in probes:
            validator.is_valid(probe)
    except _BROKEN_WHILE_ASKED as error:
        return [Violation("", f"the schema cannot be applied: {_cause(error)}")]
    return []


def _cause(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "its references run in a circle, or the value is nested too deeply"
    return clip(f"{type(error).__name__}: {error}")


def violations(validator: Draft202012Validator, value: Any) -> list[Violation]:
    """Return every place where `value` does not fit, at most MAX_VIOLATIONS, in the order of their pointers."""
    found: list[Violation] = []
    try:
        for error in islice(validator.iter_errors(value), MAX_VIOLATIONS):
            found.extend(_explain(error))
    except _BROKEN_WHILE_ASKED as error:
        found.append(Violation("", f"cannot be checked: {_cause(error)}"))
    unique = {(each.pointer, each.message): each for each in found}
    return sorted(unique.values(), key=lambda each: each.pointer)[:MAX_VIOLATIONS]


def _explain(error: ValidationError) -> Iterator[Violation]:
    """Turn one error into sentences that name the member a person must change."""
    if error.validator in ("anyOf", "oneOf") and error.context:
        error = best_match(iter([error])) or error
    pointer = pointer_of(error.absolute_path)
    keyword: Any = error.validator
    wanted: Any = error.validator_value
    value: Any = error.instance
    if keyword == "required":
        yield from (Violation(child(pointer, name), "is required") for name in wanted if name not in value)
    elif keyword == "additionalProperties" and wanted is False:
        yield from _extra_members(pointer, error)
    elif keyword == "type":
        names = wanted if isinstance(wanted, str) else " or ".join(wanted)
        yield Violation(pointer, f"must be of type {names}, not {type_name(value)}")
    elif keyword == "enum":
        shown = ", ".join(repr(each) for each in wanted[:20])
        near = did_you_mean(value, [each for each in wanted if isinstance(each, str)]) if isinstance(value, str) else ""
        yield Violation(pointer, clip(f"must be one of {shown}{near}"))
    else:
        yield Violation(pointer, clip(error.message))


def _extra_members(pointer: str, error: ValidationError) -> Iterator[Violation]:
    schema: Any = error.schema
    instance: Any = error.instance
    known = list(schema.get("properties", ()))
    patterns = schema.get("patternProperties", ())
    for name in instance:
        if name not in known and not any(re.search(pattern, name) for pattern in patterns):
            yield Violation(child(pointer, name), f"is not known here{did_you_mean(name, known)}")
