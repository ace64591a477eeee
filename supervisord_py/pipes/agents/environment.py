"""The environment of an agent: what it may see of the daemon's, the pipe's `.env`, the adapter's variables, its key.

Later layers win: allow-list, variables that the adapter passes, keys of the provider at hand, `.env`, the adapter's own
variables, the preset's key, and the marks of the execution. A preset's key replaces every key of the daemon's
environment: an agent gets the keys of its own provider, and no others (its tools inherit them).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.pipes.agents.templates import fill
from supervisord_py.process.child_environment import DEFAULT_PATH, Environment, passed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisord_py.pipes.agents.secrets import Secret
    from supervisord_py.pipes.agents.spec import AgentSpec
    from supervisord_py.pipes.agents.templates import Values

_KEY_LIKE = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Layers:
    """What an environment is made of.

    Attributes:
        daemon: The daemon's own environment.
        allow: Names that pass from it; a last `*` is a prefix.
        dotenv: The pipe's `.env`.
        marks: `PX_…` of the execution.
        provider: Whose keys pass where the preset has none.
        key: The preset's.
    """

    daemon: Mapping[str, str]
    allow: Sequence[str]
    dotenv: Mapping[str, str]
    marks: Mapping[str, str]
    provider: str | None = None
    key: Secret | None = None


def build_environment(spec: AgentSpec, layers: Layers, values: Values) -> tuple[Environment, tuple[str, ...]]:
    """Return the environment, and every value in it that is a secret."""
    env = {"PATH": DEFAULT_PATH} | passed(layers.daemon, layers.allow)
    env |= _handed(spec, layers) | _adapter(spec, layers, values) | _key(spec, layers, values) | dict(layers.marks)
    return Environment(env), secret_values(spec, layers)


def secret_values(spec: AgentSpec, layers: Layers) -> tuple[str, ...]:
    """Return every value of an environment that is a secret."""
    secrets = {value for name, value in _handed(spec, layers).items() if _KEY_LIKE.search(name)}
    secrets |= set(_own_keys(spec, layers).values())
    if layers.key is not None:
        secrets.add(layers.key.reveal())
    return tuple(sorted(secret for secret in secrets if secret))


def _own_keys(spec: AgentSpec, layers: Layers) -> dict[str, str]:
    return {} if layers.key else passed(layers.daemon, _key_names(spec, layers.provider))


def _handed(spec: AgentSpec, layers: Layers) -> dict[str, str]:
    """Return what comes from others than the adapter and the preset."""
    return passed(layers.daemon, spec.pass_env) | _own_keys(spec, layers) | dict(layers.dotenv)


def key_variable(spec: AgentSpec, provider: str | None, *, has_url: bool) -> str | None:
    """Return the variable in which an agent looks for the key: its provider's own, but not at a url of one's own."""
    rows = spec.provider_keys
    row = rows.get(provider or "") or (next(iter(rows.values())) if len(rows) == 1 else ())
    return spec.key_variable if has_url or not row else row[0]


def _key_names(spec: AgentSpec, provider: str | None) -> tuple[str, ...]:
    """Return the variables of the provider; of every provider where the agent chooses by itself."""
    if provider is not None:
        return tuple(spec.provider_keys.get(provider, ()))
    return tuple(name for names in spec.provider_keys.values() for name in names)


def _adapter(spec: AgentSpec, layers: Layers, values: Values) -> dict[str, str]:
    known = {**values, "key": layers.key.reveal() if layers.key else None}
    filled = {}
    for variable in spec.env:
        value = fill(variable.value, known)
        if value is not None and all(known.get(gap) is not None for gap in variable.when):
            filled[variable.name] = value
    return filled


def _key(spec: AgentSpec, layers: Layers, values: Values) -> dict[str, str]:
    has_url = values.get("url") is not None
    value = layers.key.reveal() if layers.key else (spec.no_key if has_url else None)
    name = key_variable(spec, layers.provider, has_url=has_url)
    return {name: value} if name is not None and value is not None else {}
