"""Does an input fit its tool? Asked before anything is spawned; the answer names each place by JSON pointer.

Plain tools get the input as it came. Pixie's inputs have defaults that the launcher fills in, so they are checked as
the tool will see them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import InvalidInputError
from supervisord_py.tools.declaring.schema import compile_schema, violations

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

    from supervisord_py.tools.spec import ToolSpec

MAX_COMPILED = 256

_compiled: dict[str, Draft202012Validator] = {}
_compiled_lock = threading.Lock()


def check_input(spec: ToolSpec, value: Any) -> None:
    """Check the input of one run.

    Args:
        spec: The tool.
        value: The input as parsed from JSON.

    Raises:
        InvalidInputError: With `errors=[{pointer, message}]`, one for each place that does not fit.
    """
    found = violations(_validator(spec), fill_defaults(spec, value))
    if found:
        first = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise InvalidInputError(
            f"input of {spec.unit}: {first.pointer or 'the input'} {first.message}{more}",
            hint=f"pxctl tools show {spec.name}",
            unit=spec.unit,
            errors=[{"pointer": each.pointer, "message": each.message} for each in found],
        )


def _validator(spec: ToolSpec) -> Draft202012Validator:
    """Return the compiled schema of a spec, kept by its digest; the oldest goes when there are too many."""
    with _compiled_lock:
        known = _compiled.get(spec.digest)
        if known is None:
            known = compile_schema(spec.input_schema)
            while len(_compiled) >= MAX_COMPILED:
                del _compiled[next(iter(_compiled))]
            _compiled[spec.digest] = known
        return known


def fill_defaults(spec: ToolSpec, value: Any) -> Any:
    """Return the input with the defaults of a Pixie tool filled in; that of a plain tool as it came."""
    if spec.pixie is None or not isinstance(value, dict):
        return value
    defaults = {each.key: each.defaults[0] for each in spec.pixie.inputs if each.defaults}
    return {**defaults, **value}
