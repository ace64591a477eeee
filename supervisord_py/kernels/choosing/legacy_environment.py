"""The environment variables of the original, as settings of ours. Pure.

Law: they are accepted beside our names and are weaker: a key whose `PX_KERNELS__…` variable is set is left out. A word
that a variable does not know is ignored with a warning, never an error: these variables are set for other programs too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervisord_py.kernels.exposure import WORDS, expose_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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


@dataclass(frozen=True, slots=True)
class _Rule:
    """How one variable is read: `read` returns None for a word that it does not know; `words` names those it does."""

    key: str
    read: Callable[[str], str | bool | None]
    words: str


def _switch(text: str) -> bool | None:
    word = text.strip().lower()
    return True if word in YES else False if word in NO else None


def _expose(text: str) -> str | None:
    found = expose_of(text)
    return None if found is None else found.value


def _text(text: str) -> str | None:
    return text.strip() or None


_EXPOSE = _Rule("expose", _expose, ", ".join(WORDS))
_SWITCHES = "1 or 0"
_RULES: tuple[tuple[str, _Rule], ...] = (
    ("PX_PY", _EXPOSE),
    ("PI_PY", _EXPOSE),
    ("PI_PYTHON_GATEWAY_URL", _Rule("gateway_url", _text, "an address")),
    ("PI_PYTHON_GATEWAY_TOKEN", _Rule("gateway_token", _text, "a token")),
    ("PI_PYTHON_SKIP_CHECK", _Rule("skip_check", _switch, _SWITCHES)),
    ("PI_PYTHON_IPC_TRACE", _Rule("trace", _switch, _SWITCHES)),
    ("PI_DEBUG_STARTUP", _Rule("debug_startup", _switch, _SWITCHES)),
)
"""Stronger first: of two variables for one setting the first that can be read counts."""

LEGACY_NAMES = frozenset(name for name, _ in _RULES)
"""Variables that are read here."""


def own_variable(key: str) -> str:
    """Return our own variable for a key `section.name` (CONTRACT §1)."""
    return "PX_" + key.upper().replace(".", "__")


def legacy_settings(environ: Mapping[str, str]) -> LegacyReading:
    """Read the variables of the original.

    An address of a gateway also selects the external gateway, as it did there.
    """
    values: dict[str, LegacyValue] = {}
    warnings: list[str] = []
    for variable, rule, text in _present(environ):
        key = f"{SECTION}.{rule.key}"
        value = rule.read(text)
        if value is None:
            warnings.append(_unknown(variable, rule, text))
        elif key not in values and own_variable(key) not in environ:
            values[key] = LegacyValue(key, value, variable)
    url = values.get(f"{SECTION}.gateway_url")
    if url is not None and own_variable(_BACKEND) not in environ:
        values[_BACKEND] = LegacyValue(_BACKEND, _EXTERNAL, url.variable)
    return LegacyReading(tuple(values.values()), tuple(warnings))


def _present(environ: Mapping[str, str]) -> Iterator[tuple[str, _Rule, str]]:
    """Yield what is set; an empty variable counts as one that is not."""
    for variable, rule in _RULES:
        text = environ.get(variable, "")
        if text:
            yield variable, rule, text


def _unknown(variable: str, rule: _Rule, text: str) -> str:
    said = f"{variable}={text[:40]!r}" if rule.read is not _text else variable
    return f"{said} is ignored: it knows {rule.words}"
