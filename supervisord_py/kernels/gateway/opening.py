"""From a kernel's id to a kernel that answers: websocket, first words, and the check that it is still the same process.

Law: a kernel counts as taken over only when it names the same process as when it was started; a server that restarted
it meanwhile still offers the id, without the variables.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from supervisord_py.errors import PxError, ReadinessTimeoutError, StartFailedError, TimedOutError
from supervisord_py.kernels.gateway.conversation import Unclaimed
from supervisord_py.kernels.gateway.handle import GatewayKernel
from supervisord_py.kernels.gateway.init_code import FACTS, fact
from supervisord_py.kernels.gateway.refusals import GatewayUnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.gateway.handle import KernelPlan

ATTACH_SECONDS = 15.0
BUSY_SECONDS = 2.0
"""How long a kernel that is taken over may take to answer, before it is believed to be busy with a cell."""
LOOK_SECONDS = 0.5
"""How often a server is asked whether a kernel that starts still lives."""
_log = structlog.get_logger(__name__)


class EndedEarlyError(StartFailedError):
    """A kernel ended before it was ready."""


class SilentKernelError(ReadinessTimeoutError):
    """A kernel was started and has not said a word; nothing of ours was run in it."""


def remaining(deadline: float) -> float:
    """Return the seconds until a loop time, at least a little: whoever gets them then times out at once."""
    return max(0.05, deadline - asyncio.get_running_loop().time())


async def open_new(
    plan: KernelPlan, code: str | None, deadline: float, phases: dict[str, float], first_word_by: float | None = None
) -> GatewayKernel:
    """Return the handle of a kernel that was just started, when it answers.

    Args:
        plan: What it is made of.
        code: Python to be run silently first; None for a kernel of another language.
        deadline: Loop time.
        phases: Gets `connect` and `init`, seconds.
        first_word_by: Loop time at which it must have answered once; None where only the deadline counts.

    Raises:
        SilentKernelError: It had not answered by then.
        PxError: It does not answer, or its server does not; nothing is left open then, but the kernel is not deleted.
    """
    kernel = GatewayKernel(plan, phases)
    try:
        began = time.monotonic()
        is_python = await _first_contact(kernel, deadline, first_word_by)
        phases["connect"] = time.monotonic() - began
        began = time.monotonic()
        facts = await _facts(kernel, code, remaining(deadline)) if is_python and code is not None else ()
        phases["init"] = time.monotonic() - began
    except BaseException:
        await kernel.close()
        raise
    kernel.talk.is_settled = True
    kernel.plan = replace(plan, held=replace(plan.held, facts=facts))
    return kernel


async def open_again(plan: KernelPlan) -> GatewayKernel | None:
    """Return the handle of a kernel that an earlier control plane started; None when its state is lost."""
    kernel = GatewayKernel(plan)
    kernel.talk.is_settled = True
    kernel.talk.unclaimed = Unclaimed()
    try:
        await kernel.connect(ATTACH_SECONDS)
        is_same = await _is_same(kernel)
    except PxError as error:
        _log.info("gateway_attach_failed", unit=f"kernel:{plan.held.session_id}", detail=error.detail)
        is_same = False
    except BaseException:
        await kernel.close()
        raise
    if is_same:
        return kernel
    await kernel.close()
    return None


async def _first_contact(kernel: GatewayKernel, deadline: float, first_word_by: float | None) -> bool:
    """Reach it and learn its language; return whether that is Python."""
    limit = deadline if first_word_by is None else min(first_word_by, deadline)
    try:
        await _connect(kernel, limit)
        about = await kernel.ask("kernel_info_request", {}, remaining(limit))
    except (GatewayUnreachableError, TimedOutError) as error:
        if limit == deadline or asyncio.get_running_loop().time() < limit:
            raise
        where = kernel.plan.client.place.shown
        raise SilentKernelError(f"The kernel at {where} does not answer.", reason="readiness_timeout") from error
    language = about.content.get("language_info")
    return isinstance(language, dict) and language.get("name") == "python"


async def _connect(kernel: GatewayKernel, deadline: float) -> None:
    """Open the websocket. A server lets that wait for a kernel that has died already: so it is asked meanwhile."""
    connecting = asyncio.create_task(kernel.connect(remaining(deadline)))
    try:
        while not connecting.done():
            await asyncio.wait([connecting], timeout=LOOK_SECONDS)
            if not connecting.done() and await _is_dead(kernel):
                raise EndedEarlyError(
                    f"The kernel at {kernel.plan.client.place.shown} ended before it was ready.", reason="early_exit"
                )
        connecting.result()
    finally:
        connecting.cancel()
        await asyncio.wait([connecting])


async def _is_dead(kernel: GatewayKernel) -> bool:
    try:
        model = await kernel.plan.client.model(kernel.plan.held.kernel)
    except PxError:
        return False
    return model is None or model.get("execution_state") == "dead"


async def _facts(kernel: GatewayKernel, code: str, seconds: float) -> tuple[str, ...]:
    answer = await kernel.ask("execute_request", _silent(code), seconds)
    expressions = answer.content.get("user_expressions")
    told = expressions if isinstance(expressions, dict) else {}
    if answer.content.get("status") != "ok":
        _log.warning("gateway_init_failed", kernel=kernel.plan.held.kernel, error=str(answer.content.get("evalue")))
    return tuple(fact(told, name) or "" for name in FACTS)


async def _is_same(kernel: GatewayKernel) -> bool:
    """Ask it which process it is; one that is busy cannot say so, and is believed."""
    known = kernel.plan.held.facts
    if not known:
        return True
    try:
        found = await _facts(kernel, "", BUSY_SECONDS)
    except PxError:
        return not kernel.died.done()
    return found[:2] == tuple(known[:2])


def _silent(code: str) -> Mapping[str, object]:
    return {
        "code": code,
        "silent": True,
        "store_history": False,
        "user_expressions": FACTS,
        "allow_stdin": False,
        "stop_on_error": False,  # one cell at a time; ipykernel 6 would abort the next one, too
    }
