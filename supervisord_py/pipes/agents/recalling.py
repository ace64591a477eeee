"""The keys that an execution was given, found again after everybody who knew them is gone.

Law: it never fails, and rather names a value too many: what it returns is struck out, not used. A key that was changed
meanwhile is not among them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from supervisord_py.errors import ConfigError
from supervisord_py.pipes.agents.environment import Layers, secret_values
from supervisord_py.pipes.agents.launching import DOTENV
from supervisord_py.pipes.agents.refusals import CannotRunError
from supervisord_py.pipes.agents.secrets import Secret, resolve_key
from supervisord_py.process.child_environment import read_dotenv

if TYPE_CHECKING:
    from supervisord_py.pipes.agents.launching import LaunchOrder, Means

SECONDS = 5.0
"""So long a key's command may take where nothing but a log waits for the key."""


async def recall_secrets(order: LaunchOrder, means: Means) -> tuple[str, ...]:
    """Return the values that may be in what an execution printed, as far as they are to be had again."""
    try:
        spec = means.catalog.get(order.plan.agent)
    except ConfigError:
        return ()
    dotenv, _doubts = await asyncio.to_thread(read_dotenv, order.folder / DOTENV)
    found = secret_values(spec, Layers(means.environ, means.env_allow, dotenv, {}))  # of every provider
    key = await _key(order, means, {**means.environ, **dotenv})
    return found if key is None else (*found, key.reveal())


async def _key(order: LaunchOrder, means: Means, environ: dict[str, str]) -> Secret | None:
    reference = order.preset.api_key
    if reference is None:
        return None
    with suppress(CannotRunError):
        return await resolve_key(reference, environ, cwd=means.presets_folder, ask=means.ask, seconds=SECONDS)
    return None
