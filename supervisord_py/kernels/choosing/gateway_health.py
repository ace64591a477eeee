"""Whether the external gateway can be used, asked seldom and told often.

Law: what it said holds for a few seconds and for the settings that it was asked with. Who asks meanwhile waits for the
same answer; who gives up takes only the own question along.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisord_py.kernels.config import GatewayConfig

    Ask = Callable[[], Awaitable[str | None]]

REMEMBERED_SECONDS = 3.0


class GatewayHealth:
    """Remembers the last answer; one for a control plane."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._last: tuple[GatewayConfig, float, str | None] | None = None

    async def trouble(self, gateway: GatewayConfig, ask: Ask) -> str | None:
        """Return why the gateway cannot be used, None when it can.

        Args:
            gateway: Its settings: an answer for others does not count.
            ask: Asks it, within a bound of its own.
        """
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if self._last is not None and self._last[0] == gateway and now < self._last[1] + REMEMBERED_SECONDS:
                return self._last[2]
            answer = await ask()
            self._last = (gateway, asyncio.get_running_loop().time(), answer)
            return answer
