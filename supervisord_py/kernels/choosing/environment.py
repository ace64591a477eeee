"""What a kernel's process may see of an environment. Pure; names are told, values never.

Law, strongest first: what is ours never passes (settings and marks `PX_…`, the gateway's token, whatever holds a known
secret); what is denied never passes, wherever it came from; then what the session brings along, what is allowed by
name, what is allowed by prefix. Nothing else. Whatever was active before, the result is the environment of the chosen
interpreter: its bin directory leads PATH, once, and VIRTUAL_ENV and CONDA_PREFIX are its own or not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from supervisord_py.process.child_environment import DEFAULT_PATH, DENIED, Environment

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from supervisord_py.kernels.config import EnvRules

OURS_PREFIXES = ("PX_", "PI_PYTHON_GATEWAY_")
OURS = DENIED | {"JPY_PARENT_PID", "JPY_INTERRUPT_EVENT"}
"""What a service manager tells the daemon alone, and what would tie a kernel's life to another process than its own."""
WHOLE_SECRET = 8
"""A secret of at least so many characters is found inside a value, too; a shorter one only as the whole value."""
_PATH = "PATH"
_ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")


NOTHING = Environment({})


class PrefixKind(StrEnum):
    """What sort of environment an interpreter lives in."""

    VENV = "venv"
    CONDA = "conda"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Activation:
    """The chosen environment: what activating it would say.

    Attributes:
        bin: Directory of its programs, without a slash at the end.
        prefix: Its root, for VIRTUAL_ENV or CONDA_PREFIX.
    """

    bin: str
    prefix: str
    kind: PrefixKind = PrefixKind.PLAIN


class Why(StrEnum):
    """Why a variable did not pass."""

    OURS = "ours"
    SECRET = "holds a secret"  # noqa: S105  # a word for people
    DENIED = "denied"
    UNUSABLE = "unusable"
    OTHER_ENVIRONMENT = "of another environment"
    NOT_ALLOWED = "not allowed"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A variable that did not pass."""

    name: str
    why: Why


@dataclass(frozen=True, slots=True)
class Filtered:
    """What came of it: the environment, and the names that did not get into it, sorted."""

    env: Environment
    dropped: tuple[Dropped, ...] = ()

    @property
    def passed(self) -> tuple[str, ...]:
        """Names of the whole environment, sorted."""
        return tuple(sorted(self.env))


@dataclass(frozen=True, slots=True)
class Inputs:
    """What an environment is made from.

    Attributes:
        source: The daemon's environment, with the caller's over it.
        extra: Of the session; needs no leave, but is denied like everything.
        own: Variables of ours that are meant for kernels (`PX_SOCKET`); they win, but for the deny-list.
        secrets: Values that must not be seen; empty ones are ignored.
    """

    source: Environment
    extra: Environment = NOTHING
    own: Environment = NOTHING
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Inputs({self.source!r}, {self.extra!r}, {self.own!r}, {len(self.secrets)} secrets)"


def deactivated(environ: Mapping[str, str]) -> Environment:
    """Return an environment without the virtual environment that was active in it.

    The daemon may have been started from a shell in which some project's environment was active; that says nothing
    about other projects. Conda's base environment is no project's: it stays.
    """
    base = environ.get("CONDA_DEFAULT_ENV") == "base"
    active = [name for name in _ACTIVE if environ.get(name) and not (base and name == "CONDA_PREFIX")]
    bins = {f"{environ[name].rstrip('/')}/bin" for name in active}
    values = {name: value for name, value in environ.items() if name not in active}
    if "CONDA_PREFIX" in active:
        values.pop("CONDA_DEFAULT_ENV", None)
    if _PATH in values:
        values[_PATH] = ":".join(entry for entry in values[_PATH].split(":") if entry.rstrip("/") not in bins)
    return Environment(values)


def filtered(inputs: Inputs, rules: EnvRules, activation: Activation | None) -> Filtered:
    """Return the environment of a kernel.

    Args:
        inputs: See there.
        rules: Names and prefixes; a name that ends with `*` is a prefix in each of them.
        activation: The chosen environment; None where no interpreter of ours is chosen: then nothing is activated, and
            what was active stays.
    """
    denied, allowed = _Names(rules.deny), _Names(rules.allow, rules.allow_prefixes)
    values: dict[str, str] = {}
    dropped: list[Dropped] = []
    for name, value in {**inputs.source, **inputs.extra}.items():
        why = _why_not(name, value, denied, inputs.secrets)
        if why is None and name not in inputs.extra and name not in allowed:
            why = Why.NOT_ALLOWED
        if why is None:
            values[name] = value
        else:
            dropped.append(Dropped(name, why))
    values.setdefault(_PATH, DEFAULT_PATH)
    if activation is not None:
        dropped += _activate(values, activation, _bins_of_others(inputs, activation))
    values |= inputs.own
    for name in [name for name in values if name in denied]:
        del values[name]
    return Filtered(Environment(values), tuple(sorted(dropped, key=_by_name)))


def _by_name(dropped: Dropped) -> str:
    return dropped.name


class _Names:
    """Names, and beginnings of names."""

    def __init__(self, names: Collection[str], prefixes: Collection[str] = ()) -> None:
        self._names = frozenset(name for name in names if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in names if name.endswith("*")) + tuple(prefixes)

    def __contains__(self, name: str) -> bool:
        return name in self._names or name.startswith(self._prefixes)


def _why_not(name: str, value: str, denied: _Names, secrets: Collection[str]) -> Why | None:
    if not name or "=" in name or "\0" in name + value:
        return Why.UNUSABLE
    if name in OURS or name.upper().startswith(OURS_PREFIXES):
        return Why.OURS
    if name in denied:
        return Why.DENIED
    return Why.SECRET if any(_holds(value, secret) for secret in secrets) else None


def _holds(value: str, secret: str) -> bool:
    return secret in value if len(secret) >= WHOLE_SECRET else bool(secret) and value == secret


def _bins_of_others(inputs: Inputs, activation: Activation) -> frozenset[str]:
    """Return the bin directories of environments that were active and are not the chosen one."""
    found = set()
    for name in _ACTIVE:
        prefix = inputs.extra.get(name) or inputs.source.get(name)
        if prefix and prefix.rstrip("/") != activation.prefix.rstrip("/"):
            found.add(f"{prefix.rstrip('/')}/bin")
    return frozenset(found)


def _activate(values: dict[str, str], activation: Activation, others: frozenset[str]) -> list[Dropped]:
    """Make the chosen environment the active one; returns what belonged to another."""
    rest = values[_PATH].split(":")
    kept = [each for each in rest if each.rstrip("/") not in {activation.bin, *others}]
    values[_PATH] = ":".join([activation.bin, *kept])
    wanted = {"VIRTUAL_ENV": PrefixKind.VENV, "CONDA_PREFIX": PrefixKind.CONDA}
    dropped = []
    if values.get("CONDA_PREFIX") != activation.prefix and values.pop("CONDA_DEFAULT_ENV", None) is not None:
        dropped.append(Dropped("CONDA_DEFAULT_ENV", Why.OTHER_ENVIRONMENT))
    for name, kind in wanted.items():
        before = values.pop(name, None)
        if activation.kind is kind:
            values[name] = activation.prefix
        elif before is not None:
            dropped.append(Dropped(name, Why.OTHER_ENVIRONMENT))
    return dropped
