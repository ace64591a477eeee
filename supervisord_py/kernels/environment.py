"""What a kernel's process may see of an environment. Pure; names are told, values never.

Strongest first: what is ours never passes (settings and marks `PX_…`, the gateway's token, whatever
holds a known secret); what is denied never passes, wherever it came from; then what the session
brings along, what is allowed by name, what is allowed by prefix. Nothing else. Whatever was active
before, the result is the environment of the chosen interpreter: its bin directory leads PATH, once,
and VIRTUAL_ENV and CONDA_PREFIX are its own or not there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from supervisord_py.config.settings import KERNELS_ENV, KERNELS_ENV_DENY, KERNELS_ENV_PREFIXES
from supervisord_py.process.child_environment import DEFAULT_PATH, DENIED, Environment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

OURS_PREFIXES = ("PX_", "PI_PYTHON_GATEWAY_")
OURS = DENIED | {"JPY_PARENT_PID", "JPY_INTERRUPT_EVENT"}
"""What a service manager tells the daemon alone, and what would tie a kernel's life to another
process than its own.
"""
# characters: a secret as long is found inside a value, too; a shorter one as the whole value
WHOLE_SECRET = 8
NOTHING = Environment({})
MARKS = ("VIRTUAL_ENV", "CONDA_PREFIX")


class EnvRules(msgspec.Struct, frozen=True):
    """What of the daemon's environment reaches a kernel.

    Deny beats prefix and allow; our own tokens never pass.
    """

    allow: tuple[str, ...] = KERNELS_ENV
    deny: tuple[str, ...] = KERNELS_ENV_DENY
    allow_prefixes: tuple[str, ...] = KERNELS_ENV_PREFIXES


class Activation(msgspec.Struct, frozen=True):
    """What activating an environment would say: its folder of programs, its root, and the
    variable that names that.
    """

    bin: str
    prefix: str
    mark: str | None = None


class Why(StrEnum):
    OURS = "ours"
    SECRET = "holds a secret"  # noqa: S105  # a word for people
    DENIED = "denied"
    UNUSABLE = "unusable"
    OTHER_ENVIRONMENT = "of another environment"
    NOT_ALLOWED = "not allowed"


class Filtered(msgspec.Struct, frozen=True):
    env: Environment
    dropped: Mapping[str, Why]


def filtered(
    source: Mapping[str, str],
    rules: EnvRules,
    activation: Activation | None = None,
    *,
    extra: Mapping[str, str] = NOTHING,
    own: Mapping[str, str] = NOTHING,
    secrets: Collection[str] = (),
) -> Filtered:
    """Return the environment of a kernel from `source`, the daemon's environment with the caller's
    over it.

    `activation`: the chosen environment; with None what was active stays. `extra` comes from the
    session and needs no leave, but is denied like everything; `own` (`PX_SOCKET`) wins, but for the
    deny-list.
    """
    is_denied, is_allowed = _matcher(rules.deny), _matcher(rules.allow, rules.allow_prefixes)
    whole, parts = set(secrets), [secret for secret in secrets if len(secret) >= WHOLE_SECRET]
    reasons: tuple[tuple[Why, Callable[[str, str], bool]], ...] = (  # strongest first
        (Why.UNUSABLE, lambda name, value: not name or "=" in name or "\0" in name + value),
        (Why.OURS, lambda name, _: name in OURS or name.upper().startswith(OURS_PREFIXES)),
        (Why.DENIED, lambda name, _: is_denied(name)),
        (
            Why.SECRET,
            lambda _, value: (
                value != "" and (value in whole or any(secret in value for secret in parts))
            ),
        ),
        (Why.NOT_ALLOWED, lambda name, _: name not in extra and not is_allowed(name)),
    )
    values = {**source, **extra}
    dropped: dict[str, Why] = {}
    for name, value in values.items():
        if (
            why := next((why for why, applies in reasons if applies(name, value)), None)
        ) is not None:
            dropped[name] = why
    values = {name: value for name, value in values.items() if name not in dropped}
    values.setdefault("PATH", DEFAULT_PATH)
    if activation is not None:
        bins = {
            f"{prefix.rstrip('/')}/bin"
            for name in MARKS
            if (prefix := extra.get(name) or source.get(name))
        }
        values["PATH"] = ":".join(
            [activation.bin, *_without(values["PATH"], {activation.bin, *bins})]
        )
        before = {name: values.pop(name) for name in MARKS if name in values}
        if activation.mark is not None:
            values[activation.mark] = activation.prefix
        if (
            before.get("CONDA_PREFIX") != activation.prefix
            and values.pop("CONDA_DEFAULT_ENV", None) is not None
        ):
            before["CONDA_DEFAULT_ENV"] = ""
        dropped.update((name, Why.OTHER_ENVIRONMENT) for name in before if name not in values)
    values.update(own)
    env = {name: value for name, value in values.items() if not is_denied(name)}
    return Filtered(Environment(env), dict(sorted(dropped.items())))


def _matcher(names: Collection[str], prefixes: Collection[str] = ()) -> Callable[[str], bool]:
    """Return what says whether a name is among `names`, of which some end with `*`, or begins
    with a prefix.
    """
    exact, begins = (
        frozenset(names),
        (*prefixes, *(name[:-1] for name in names if name.endswith("*"))),
    )
    return lambda name: name in exact or name.startswith(begins)


def _without(path: str, bins: Collection[str]) -> list[str]:
    return [entry for entry in path.split(":") if entry.rstrip("/") not in bins]


def deactivated(environ: Mapping[str, str]) -> Environment:
    """Return an environment without the virtual environment that was active in it: a shell's of the
    daemon's start.

    Conda's base environment is no project's: it stays.
    """
    is_base = environ.get("CONDA_DEFAULT_ENV") == "base"
    active = [
        name for name in MARKS if environ.get(name) and not (is_base and name == "CONDA_PREFIX")
    ]
    gone = {*active, *(["CONDA_DEFAULT_ENV"] if "CONDA_PREFIX" in active else [])}
    values = {name: value for name, value in environ.items() if name not in gone}
    if "PATH" in values:
        values["PATH"] = ":".join(
            _without(values["PATH"], {f"{environ[name].rstrip('/')}/bin" for name in active})
        )
    return Environment(values)
