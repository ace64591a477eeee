"""`POST /api/kernels/{k}/execute`: runs cells, and tells what becomes of them as one document or as a stream.

Law: a call ends with its client, by the ladder of the room; one that is told as server-sent events a moment later, for
its client may come back. It does not end with the control plane: when that is
replaced, the call is left to the room, its cells run on in their kernel, and their output stays where it is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from supervisord_py.api.call import cancel_and_wait, json_answer
from supervisord_py.api.caller import caller_instance
from supervisord_py.api.kernel_documents import call_document
from supervisord_py.api.kernel_orders import Order, read_call
from supervisord_py.api.kernel_streams import came_of, resume, running, tell
from supervisord_py.api.negotiation import JSON, NDJSON, SSE, choose
from supervisord_py.errors import InterruptedRunError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from supervisord_py.api.call import Call
    from supervisord_py.kernels.cell import CallEvent, CallResult


async def execute(call: Call) -> web.StreamResponse:
    """Run cells in a session, which is made where there is none of that name."""
    if seen := call.request.headers.get("Last-Event-ID"):
        return await resume(call, seen)
    arrived_at = asyncio.get_running_loop().time()
    order = await read_call(
        call.context.kernels,
        call.path("k").removeprefix("kernel:"),
        await call.body(),
        arrived_at=arrived_at,
        caller=caller_instance(call.request, _living(call)),
    )
    media = choose(call.wanted, (JSON, NDJSON, SSE))
    return await _stream(call, order, media) if media != JSON else await _answer(call, order)


def _living(call: Call) -> dict[int, str]:
    views = call.context.kernels.snapshot()
    return {view.pid: view.instance for view in views if view.pid is not None and view.instance is not None}


async def _answer(call: Call, order: Order) -> web.StreamResponse:
    cells = call.context.kernels.execute(order.request, _ignore)
    async with running(call, cells) as (work, given_up):
        giving_up = asyncio.create_task(given_up.wait())
        await asyncio.wait({work, giving_up}, return_when=asyncio.FIRST_COMPLETED)
        await cancel_and_wait(giving_up)
        result = came_of(work, _interrupted())
    response = json_answer(await _finished(call, order, result))
    if result.cold_start_ms is not None:
        response.headers["X-Px-Cold-Start"] = str(result.cold_start_ms)
    return response


async def _stream(call: Call, order: Order, media: str) -> web.StreamResponse:
    async def work(told: Callable[[CallEvent], None]) -> dict[str, Any]:
        return await _finished(call, order, await call.context.kernels.execute(order.request, told))

    return await tell(call, media, work, interrupted=_interrupted(), ends_with_client=True)


async def _finished(call: Call, order: Order, result: CallResult) -> dict[str, Any]:
    context = call.context
    limits = context.kernels.config.output
    return await order.finish(call_document(result), result, context.config.cells_dir, limits)


def _interrupted() -> InterruptedRunError:
    return InterruptedRunError(
        "The control plane is being replaced; the running cell goes on in its kernel, later ones are not run.",
        hint="pxctl kernel list; its output stays at /api/kernels/ID/cells",
    )


def _ignore(_: CallEvent) -> None:
    pass
