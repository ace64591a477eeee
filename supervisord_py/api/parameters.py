"""Query parameters: declared once in the route table, read, checked and documented from there.

A parameter that no route declared is refused with the nearest match, as an unknown setting would be: a misspelt
`folow=1` must not silently mean something else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from supervisord_py.api.names import nearest_hint
from supervisord_py.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TRUE = frozenset({"1", "true", "yes", "on", ""})
_FALSE = frozenset({"0", "false", "no", "off"})


class Form(StrEnum):
    """How a parameter's text is read."""

    FLAG = "flag"
    NUMBER = "number"
    INTEGER = "integer"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query parameter of a route.

    Attributes:
        name: As in the URL.
        form: How it is read.
        summary: For people; with the unit of numbers.
        minimum: Smallest allowed number.
        maximum: Largest allowed number.
        choices: The only allowed texts; empty allows all.
        repeated: May be given several times.
    """

    name: str
    form: Form
    summary: str
    minimum: float = 0.0
    maximum: float = 1e15
    choices: tuple[str, ...] = ()
    repeated: bool = False

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of one value."""
        match self.form:
            case Form.FLAG:
                return {"type": "string", "enum": ["0", "1"]}
            case Form.NUMBER:
                return {"type": "number", "minimum": self.minimum, "maximum": self.maximum}
            case Form.INTEGER:
                return {"type": "integer", "minimum": int(self.minimum), "maximum": int(self.maximum)}
            case Form.TEXT:
                return {"type": "string", **({"enum": list(self.choices)} if self.choices else {})}


@dataclass(frozen=True, slots=True)
class Arguments:
    """The checked parameters of one request, read by the form that the route declared."""

    values: Mapping[str, tuple[str, ...]]
    declared: Mapping[str, Parameter]

    def texts(self, name: str) -> tuple[str, ...]:
        """Return every value given, none included."""
        return self.values.get(name, ())

    def text(self, name: str) -> str | None:
        """Return the value, or None when it was not given."""
        given = self.texts(name)
        return given[0] if given else None

    def flag(self, name: str, *, absent: bool = False) -> bool:
        """Return True when it was given and not 0; `absent` when it was not given."""
        given = self.text(name)
        return absent if given is None else _flag(self.declared[name], given)

    def number(self, name: str) -> float | None:
        """Return the number, or None when it was not given."""
        given = self.text(name)
        return None if given is None else _number(self.declared[name], given)

    def integer(self, name: str) -> int | None:
        """Return the whole number, or None when it was not given."""
        given = self.text(name)
        return None if given is None else _integer(self.declared[name], given)


def read_arguments(declared: Sequence[Parameter], pairs: Sequence[tuple[str, str]]) -> Arguments:
    """Check the query of a request against the declared parameters.

    Raises:
        BadRequestError: A parameter is unknown, repeated, or has an impossible value; `parameter` names it.
    """
    known = {one.name: one for one in declared}
    values: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        if name not in known:
            raise _refuse(name, f"There is no query parameter {name!r} here.", nearest_parameter(name, known))
        if name in values and not known[name].repeated:
            raise _refuse(name, f"Query parameter {name!r} was given more than once.", "give it once")
        _check(known[name], value)
        values[name] = (*values.get(name, ()), value)
    return Arguments(values, known)


def nearest_parameter(name: str, known: Mapping[str, Parameter]) -> str:
    """Suggest a declared parameter, or list them."""
    if not known:
        return "this route takes no query parameters"
    hint = nearest_hint(name, known)
    return hint if hint.startswith("did") else f"known: {', '.join(known)}"


def refuse_value(name: str, value: str, wanted: str) -> BadRequestError:
    """Make the error for a value that cannot be read."""
    return _refuse(name, f"Query parameter {name!r} cannot be {value[:80]!r}.", f"give {wanted}")


def _refuse(name: str, detail: str, hint: str) -> BadRequestError:
    return BadRequestError(detail, hint=hint, parameter=name)


def _check(parameter: Parameter, value: str) -> None:
    match parameter.form:
        case Form.FLAG:
            _flag(parameter, value)
        case Form.NUMBER:
            _number(parameter, value)
        case Form.INTEGER:
            _integer(parameter, value)
        case Form.TEXT:
            if parameter.choices and value not in parameter.choices:
                raise refuse_value(parameter.name, value, f"one of {', '.join(parameter.choices)}")


def _flag(parameter: Parameter, value: str) -> bool:
    lowered = value.lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise refuse_value(parameter.name, value, "0 or 1")


def _number(parameter: Parameter, value: str) -> float:
    wanted = f"a number from {parameter.minimum:g} to {parameter.maximum:g}"
    try:
        number = float(value)
    except ValueError as error:
        raise refuse_value(parameter.name, value, wanted) from error
    if not math.isfinite(number) or not parameter.minimum <= number <= parameter.maximum:
        raise refuse_value(parameter.name, value, wanted)
    return number


def _integer(parameter: Parameter, value: str) -> int:
    wanted = f"a whole number from {int(parameter.minimum)} to {int(parameter.maximum)}"
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len("18446744073709551616")):
        raise refuse_value(parameter.name, value, wanted)
    number = int(value)
    if not parameter.minimum <= number <= parameter.maximum:
        raise refuse_value(parameter.name, value, wanted)
    return number
