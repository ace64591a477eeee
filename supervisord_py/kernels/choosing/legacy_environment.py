"""The environment variables of the original, as settings of ours. Pure.

Law: they are accepted beside our names and are weaker: a key whose `PX_KERNELS__…` variable is set is left out. A word
that a variable does not know is ignored with a warning, never an error: these variables are set for other programs too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervisord_py.kernels.exposure import WORDS, expose_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SECTION = "kernels"
YES = frozenset({"1", "true", "yes", "on"})
NO = frozenset({"0", "false", "no", "off"})
_BACKEND = f"{SECTION}.backend"
_EXTERNAL = "gateway-external"


@dataclass(frozen=True, slots=True)
class LegacyValue:
    """One setting that a variable stands for.

    Attributes:
        key: `kernels.…`.
        value: Of the setting's own type. May be a secret: not in repr.
        variable: Where it came from.
    """

    key: str
    value: str | bool = field(repr=False)
    variable: str


@dataclass(frozen=True, slots=True)
class LegacyReading:
    """What the variables say. Warnings quote the values of switches only, never of addresses or tokens."""

    values: tuple[LegacyValue, ...] = ()
    warnings: tuple[str, ...] = ()


def _switch(text: str) -> bool | None:
    word = text.strip().lower()
    return True if word in YES else False if word in NO else None


def _expose(text: str) -> str | None:
    found = expose_of(text)
    return None if found is None else found.value


def _text(text: str) -> str | None:
    return text.strip() or None


_RULES: Mapping[str, tuple[str, Callable[[str], str | bool | None], str]] = {
    "PX_PY": ("expose", _expose, ", ".join(WORDS)),
    "PI_PY": ("expose", _expose, ", ".join(WORDS)),
    "PI_PYTHON_GATEWAY_URL": ("gateway_url", _text, "an address"),
    "PI_PYTHON_GATEWAY_TOKEN": ("gateway_token", _text, "a token"),
    "PI_PYTHON_SKIP_CHECK": ("skip_check", _switch, "1 or 0"),
    "PI_PYTHON_IPC_TRACE": ("trace", _switch, "1 or 0"),
    "PI_DEBUG_STARTUP": ("trace", _switch, "1 or 0"),
}
"""Variable → key, how it is read (None for a word that it does not know), and the words that it knows.

Stronger first: of two variables for one setting the first that can be read counts.
"""
LEGACY_NAMES = frozenset(_RULES)
"""Variables that are read here."""


def own_variable(key: str) -> str:
    """Return our own variable for a key `section.name` (CONTRACT §1)."""
    return "PX_" + key.upper().replace(".", "__")


def legacy_settings(environ: Mapping[str, str]) -> LegacyReading:
    """Read the variables of the original; an empty one counts as one that is not set.

    An address of a gateway also selects the external gateway, as it did there.
    """
    values: dict[str, LegacyValue] = {}
    warnings: list[str] = []
    for variable, (name, read, words) in _RULES.items():
        if not (text := environ.get(variable, "")):
            continue
        key, value = f"{SECTION}.{name}", read(text)
        if value is None:
            said = f"{variable}={text[:40]!r}" if read is not _text else variable
            warnings.append(f"{said} is ignored: it knows {words}")
        elif key not in values and own_variable(key) not in environ:
            values[key] = LegacyValue(key, value, variable)
    url = values.get(f"{SECTION}.gateway_url")
    if url is not None and own_variable(_BACKEND) not in environ:
        values[_BACKEND] = LegacyValue(_BACKEND, _EXTERNAL, url.variable)
    return LegacyReading(tuple(values.values()), tuple(warnings))
