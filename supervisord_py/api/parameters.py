"""Query parameters: declared once in the route table, read, checked and documented from there.

A parameter that no route declared is refused with the nearest match, as an unknown setting would be: a misspelt
`folow=1` must not silently mean something else.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from supervisord_py.api.names import nearest_hint
from supervisord_py.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WHOLE = re.compile(r"-?[0-9]{1,20}")
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

    values: Mapping[str, tuple[Any, ...]]

    def texts(self, name: str) -> tuple[str, ...]:
        """Return every value given, none included."""
        return self.values.get(name, ())

    def _one(self, name: str) -> Any:
        return next(iter(self.values.get(name, ())), None)

    def text(self, name: str) -> str | None:
        """Return the value, or None when it was not given."""
        value: str | None = self._one(name)
        return value

    def flag(self, name: str, *, absent: bool = False) -> bool:
        """Return True when it was given and not 0; `absent` when it was not given."""
        given: bool | None = self._one(name)
        return absent if given is None else given

    def number(self, name: str) -> float | None:
        """Return the number, or None when it was not given."""
        value: float | None = self._one(name)
        return value

    def integer(self, name: str) -> int | None:
        """Return the whole number, or None when it was not given."""
        value: int | None = self._one(name)
        return value


def read_arguments(declared: Sequence[Parameter], pairs: Sequence[tuple[str, str]]) -> Arguments:
    """Check the query of a request against the declared parameters.

    Raises:
        BadRequestError: A parameter is unknown, repeated, or has an impossible value; `parameter` names it.
    """
    known = {one.name: one for one in declared}
    values: dict[str, tuple[Any, ...]] = {}
    for name, value in pairs:
        if name not in known:
            raise _refuse(name, f"There is no query parameter {name!r} here.", nearest_parameter(name, known))
        if name in values and not known[name].repeated:
            raise _refuse(name, f"Query parameter {name!r} was given more than once.", "give it once")
        values[name] = (*values.get(name, ()), _read(known[name], value))
    return Arguments(values)


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


def _read(parameter: Parameter, value: str) -> Any:
    """Return the value in its form, if it is one of that form."""
    low, high = parameter.minimum, parameter.maximum
    match parameter.form:
        case Form.FLAG:
            if value.lower() not in _TRUE | _FALSE:
                raise refuse_value(parameter.name, value, "0 or 1")
            return value.lower() in _TRUE
        case Form.NUMBER:
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if not low <= number <= high:
                raise refuse_value(parameter.name, value, f"a number from {low:g} to {high:g}")
            return number
        case Form.INTEGER:
            if not (_WHOLE.fullmatch(value) and low <= int(value) <= high):
                raise refuse_value(parameter.name, value, f"a whole number from {int(low)} to {int(high)}")
            return int(value)
        case Form.TEXT:
            if parameter.choices and value not in parameter.choices:
                raise refuse_value(parameter.name, value, f"one of {', '.join(parameter.choices)}")
            return value
