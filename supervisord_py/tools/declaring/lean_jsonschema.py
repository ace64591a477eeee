"""jsonschema, without the checkers of formats, which we never ask (DESIGN D19: `format` is an annotation).

Where jupyter_server is installed, jsonschema finds rfc3987_syntax, which builds a grammar as it is imported: a second
and a half of every start of the control plane; others cost some hundredths. While jsonschema is imported these packages
are therefore not to be had; afterwards everybody may import them.
"""

from __future__ import annotations

import sys

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

__all__ = ["Draft202012Validator", "ValidationError", "best_match"]
