"""How a kernel is ended at its server, and what came of that.

Law: that a kernel was deleted is said only when its server said so, or has it no more. A server that fails is asked
again, one that is restarting the kernel answers 500 for a moment; one that is not there at all is not waited for: who
waits for the end of a cell has waited long enough, and the kernel's note stays for a later sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog

from supervisord_py.errors import PxError
from supervisord_py.kernels.backend import KernelGivenUpError
from supervisord_py.kernels.cell import DELETE_FAILED, UNREACHABLE
from supervisord_py.kernels.gateway.client import CALL_SECONDS
from supervisord_py.kernels.gateway.refusals import GatewayUnreachableError

if TYPE_CHECKING:
    from supervisord_py.kernels.gateway.client import GatewayClient

DELETE_PAUSES = (0.3, 0.6, 1.2, 2.4)
"""After a DELETE that failed."""
PROBE_PAUSE_SECONDS = 0.3
"""After a call that did not come through, before the server is asked whether it is there."""
PROBE_SECONDS = 1.0
_log = structlog.get_logger(__name__)


class Deletion:
    """The end of one kernel at its server.

    Attributes:
        failure: Why the server has not ended it; None while nothing speaks against it.
        is_done: The server has it no more.
    """

    def __init__(self, client: GatewayClient, kernel: str) -> None:
        self.failure: PxError | None = None
        self.is_done = False
        self._client = client
        self._kernel = kernel

    async def run(self) -> None:
        """Have it ended; tried again while the server is there and fails. Nothing is asked of one known not to be."""
        if self.failure is not None:
            return
        for wait in DELETE_PAUSES:
            self.failure = await self._failure_of_a_try()
            self.is_done = self.failure is None
            if self.is_done or (isinstance(self.failure, GatewayUnreachableError) and not await self.is_there()):
                return
            await asyncio.sleep(wait)

    async def is_there(self) -> bool:
        """Say whether the server answers at all, whatever it says."""
        await asyncio.sleep(PROBE_PAUSE_SECONDS)
        try:
            await self._client.model(self._kernel, PROBE_SECONDS)
        except GatewayUnreachableError:
            return False
        except PxError:
            return True
        return True

    def given_up(self) -> KernelGivenUpError | None:
        """Return the error of a kernel that its server did not end; None where it did."""
        if self.failure is None:
            return None
        step = UNREACHABLE if isinstance(self.failure, GatewayUnreachableError) else DELETE_FAILED
        return KernelGivenUpError(self.failure.detail, step=step, hint=self.failure.hint)

    async def _failure_of_a_try(self) -> PxError | None:
        """Try once; return None when the server has it no more.

        Where our own gateway does not answer, it is gone or about to be; what it leaves on this machine is ended by
        the handle's `clear`.
        """
        try:
            await self._client.delete(self._kernel)
        except GatewayUnreachableError as error:
            _log.info("gateway_delete_failed", kernel=self._kernel, detail=error.detail)
            return None if self._client.place.is_ours else error
        except PxError as error:
            _log.info("gateway_delete_failed", kernel=self._kernel, detail=error.detail)
            with contextlib.suppress(PxError):
                if await self._client.model(self._kernel, CALL_SECONDS) is None:
                    return None
            return error
        return None
