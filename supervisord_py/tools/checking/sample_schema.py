"""A value that fits a JSON Schema, as small and plain as possible: const, default, mid-range, first enum, minimal.

Pure. It aims at the schemas that people write for inputs, not at every schema; `sample_of` says when it found none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from supervisord_py.tools.declaring.schema import compile_schema, violations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MAX_DEPTH = 12
MAX_PARTS = 2000
"""How many parts of one schema are sampled before the rest is left to chance: schemas may describe endless trees."""
MAX_ITEMS = 1000
_TEXT = "sample"
_FORMATS: Mapping[str, str] = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "PT1S",
    "email": "sample@example.org",
    "hostname": "example.org",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uri": "https://example.org/",
    "uri-reference": "/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "regex": ".",
    "json-pointer": "/a",
}
_TYPES_OF = {
    "properties": "object",
    "required": "object",
    "items": "array",
    "prefixItems": "array",
    "minItems": "array",
    "minimum": "number",
    "maximum": "number",
    "exclusiveMinimum": "number",
    "exclusiveMaximum": "number",
    "multipleOf": "number",
    "minLength": "string",
    "pattern": "string",
    "format": "string",
}
_ALTERNATIVES = ("anyOf", "oneOf")


def sample_of(schema: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a value that fits as the only element, or nothing when none was found."""
    validator = compile_schema(schema)
    for value in _Sampler(schema).candidates(schema, 0):
        if not violations(validator, value):
            return (value,)
    return ()


class _Sampler:
    """Samples within one document, whose root its references start from."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self._left = MAX_PARTS

    def candidates(self, schema: Any, depth: int) -> Iterator[Any]:
        """Yield values that may fit, the likeliest first; a handful, never endless."""
        yield from self._likely(schema, depth)
        yield from (None, {}, [], "", 0, True)

    def _likely(self, schema: Any, depth: int) -> Iterator[Any]:
        self._left -= 1
        if not isinstance(schema, dict) or depth > MAX_DEPTH or self._left < 0:
            yield {}
            return
        schema = self._merged(schema, depth)
        for key in ("const", "default"):
            if key in schema:
                yield schema[key]
        keyword = next((each for each in _ALTERNATIVES if schema.get(each)), None)
        if keyword is None:
            yield self._minimal(schema, depth)
            yield from schema.get("enum", ())[:20]
            yield from schema.get("examples", ())[:5]
        else:
            rest = {key: value for key, value in schema.items() if key != keyword}
            for each in schema[keyword][:10]:
                yield from self._likely(_joined(rest, each) if isinstance(each, dict) else rest, depth + 1)

    def best(self, schema: Any, depth: int) -> Any:
        """Return the first candidate that fits, the first one of all where none does."""
        first: tuple[Any, ...] = ()
        validator = compile_schema(self._rooted(schema))
        for value in self.candidates(schema, depth):
            if not violations(validator, value):
                return value
            first = first or (value,)
        return first[0]

    def _rooted(self, schema: Any) -> Any:
        """Give a part the definitions of its root, so that its references resolve."""
        shared = {key: self.root[key] for key in ("$defs", "definitions") if key in self.root}
        return {**shared, **schema} if isinstance(schema, dict) else schema

    def _merged(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """Put what `$ref` and `allOf` add into one flat schema, as far as that is simple."""
        merged = dict(schema)
        added = [self._target(merged.pop("$ref"))] if isinstance(merged.get("$ref"), str) else []
        added += merged.pop("allOf", [])
        for each in added if depth < MAX_DEPTH else ():
            if isinstance(each, dict):
                merged = _joined(merged, self._merged(each, depth + 1))
        return merged

    def _target(self, reference: str) -> Any:
        """Follow `#/…` within the root; anything else gives nothing to go by."""
        target: Any = self.root
        for token in reference.removeprefix("#").split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            target = target.get(key, {}) if isinstance(target, dict) else {}
        return target if reference.startswith("#") else {}

    def _minimal(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = _kind(schema)
        made: Mapping[str | None, Callable[[], Any]] = {
            "object": lambda: self._object(schema, depth),
            "array": lambda: self._array(schema, depth),
            "string": lambda: _text(schema),
            "integer": lambda: _number(schema, integral=True),
            "number": lambda: _number(schema, integral=False),
            "boolean": bool,
            "null": lambda: None,
        }
        return made.get(kind, dict)()

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties: Mapping[str, Any] = schema.get("properties", {})
        required = schema.get("required", ())
        return {
            name: self.best(properties.get(name, {}), depth + 1)
            for name in dict.fromkeys([*properties, *required])
            if name in required or _has_default(properties[name])
        }

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        count = min(int(schema.get("minItems", 0)), MAX_ITEMS)
        first = [self.best(each, depth + 1) for each in schema.get("prefixItems", ())[:count]]
        if len(first) == count:
            return first
        one = self.best(schema.get("items", {}), depth + 1)
        rest = count - len(first)
        if not schema.get("uniqueItems"):
            return first + [one] * rest
        return first + _distinct(one, rest)


def _has_default(schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema


def _distinct(one: Any, count: int) -> list[Any]:
    """Return `count` different values of the same type, where that is easy."""
    match one:
        case bool():
            return [one, not one][:count]
        case int() | float():
            return [one + index for index in range(count)]
        case str():
            return [one if index == 0 else f"{one}{index}" for index in range(count)]
        case _:
            return [one] * count


def _joined(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one schema over another; members, required names and conditions add up, the narrower bound wins."""
    joined = {**left, **right}
    for key in ("allOf", *_ALTERNATIVES):
        if key in left and key in right:
            joined["allOf"] = (
                [*joined.get("allOf", ()), {key: left[key]}] if key != "allOf" else [*left[key], *right[key]]
            )
    if "properties" in left and "properties" in right:
        joined["properties"] = {**left["properties"], **right["properties"]}
    if "required" in left and "required" in right:
        joined["required"] = list(dict.fromkeys([*left["required"], *right["required"]]))
    for key in ("minimum", "exclusiveMinimum", "minLength", "minItems"):
        if key in left and key in right:
            joined[key] = max(left[key], right[key])
    for key in ("maximum", "exclusiveMaximum", "maxLength", "maxItems"):
        if key in left and key in right:
            joined[key] = min(left[key], right[key])
    return joined


def _kind(schema: Mapping[str, Any]) -> str | None:
    """Return the type to sample: the first that is no null, else what the keywords suggest."""
    declared = schema.get("type")
    kinds = [declared] if isinstance(declared, str) else list(declared or ())
    useful = [kind for kind in kinds if kind != "null"] or kinds
    if useful:
        return str(useful[0])
    return next((kind for keyword, kind in _TYPES_OF.items() if keyword in schema), None)


def _text(schema: Mapping[str, Any]) -> str:
    text = _FORMATS.get(schema.get("format", ""), _TEXT)
    low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
    text = text.ljust(min(low, 1_000_000), "x")
    return text if high is None else text[: int(high)]


def _number(schema: Mapping[str, Any], *, integral: bool) -> float:
    """Return the middle of the range, its only bound, or 0; on a multiple where one is asked for."""
    low, high = _bound(schema, "minimum", max), _bound(schema, "maximum", min)
    wanted = low / 2 + high / 2 if low is not None and high is not None else _beyond(schema, low, high)
    step = schema.get("multipleOf") or (1 if integral else 0)
    if step:
        wanted = _on_step(wanted, step, low, high)
    return int(wanted) if float(wanted).is_integer() and abs(wanted) < 2**53 else wanted


def _bound(schema: Mapping[str, Any], name: str, pick: Any) -> float | None:
    exclusive = f"exclusive{name.capitalize()}"
    found = [float(schema[key]) for key in (name, exclusive) if key in schema]
    return pick(found) if found else None


def _beyond(schema: Mapping[str, Any], low: float | None, high: float | None) -> float:
    """Choose by one bound, or none: 0 where it fits, else one past what is excluded."""
    if low is not None:
        allowed = low >= 0 and schema.get("exclusiveMinimum") == low
        return low + 1 if allowed else max(low, 0.0)
    if high is not None:
        excluded = high <= 0 and schema.get("exclusiveMaximum") == high
        return high - 1 if excluded else min(high, 0.0)
    return 0.0


def _on_step(wanted: float, step: float, low: float | None, high: float | None) -> float:
    """Return the multiple of `step` nearest to `wanted` that keeps inside the range."""
    nearest = round(wanted / step) * step
    if low is not None and nearest < low:
        nearest = math.ceil(low / step) * step
    if high is not None and nearest > high:
        nearest = math.floor(high / step) * step
    return nearest
