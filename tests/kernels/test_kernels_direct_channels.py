"""A Jupyter front end on the channels of a living kernel, and what happens when it reads slowly."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from kernels.kernel_rig import PATIENCE, answers, eventually, kernel_house
from supervisord_py.errors import InvalidInputError, OverloadedError
from supervisord_py.kernels.channels import open_channels
from supervisord_py.kernels.direct import DirectBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kernels.kernel_rig import KernelRig
    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.channels import Channels, Pending
    from supervisord_py.kernels.direct import DirectKernel


class Front:
    """A front end of one kernel."""

    def __init__(self, rig: KernelRig, launch: Launch, handle: DirectKernel, channels: Channels) -> None:
        self.rig = rig
        self.launch = launch
        self.handle = handle
        self.channels = channels
        self.heard: list[tuple[str, dict[str, Any]]] = []

    async def ask(self, kind: str, msg_id: str, channel: str = "shell", **content: Any) -> None:
        header = {"msg_id": msg_id, "msg_type": kind, "session": "front", "username": "u", "version": "5.4", "date": ""}
        await self.channels.send(channel, {"header": header, "parent_header": {}, "metadata": {}, "content": content})

    async def run(self, code: str, msg_id: str, **content: Any) -> None:
        await self.ask("execute_request", msg_id, code=code, silent=False, **content)

    async def until(self, condition: Callable[[str, dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first message that fits, of those heard and of those to come: channels are in no order."""
        if (found := next((it for channel, it in self.heard if condition(channel, it)), None)) is not None:
            return found
        async with asyncio.timeout(PATIENCE):
            async for channel, message, _ in self.channels:
                self.heard.append((channel, message))
                if condition(channel, message):
                    return message
        raise AssertionError("the channels were closed")

    async def idle(self, msg_id: str) -> None:
        """Read on until a request of ours is over."""
        await self.until(
            lambda _, it: (
                it["msg_type"] == "status"
                and it["content"]["execution_state"] == "idle"
                and it["parent_header"].get("msg_id") == msg_id
            )
        )


def is_end(waiting: Pending, msg_id: str) -> bool:
    """Say whether this is what comes behind all output of a request."""
    if waiting.dropped_bytes or waiting.channel != "iopub":
        return False
    return waiting.message.parent_id == msg_id and waiting.message.is_status("idle")


@pytest.fixture
async def front(short_tmp: Path) -> AsyncIterator[Front]:
    async with kernel_house(short_tmp) as rig:
        launch = rig.launch()
        handle = await rig.start(DirectBackend(rig.placement, rig.config), launch)
        channels = await open_channels(handle.connection_file, limit_bytes=256 * 1024)
        front = Front(rig, launch, handle, channels)
        await front.ask("kernel_info_request", "hello")
        await front.idle("hello")
        yield front
        await channels.close()


async def test_a_front_end_that_stalls_gets_a_gap_and_everything_that_matters(front: Front) -> None:
    """What is left out is counted; status and replies come all; our own reading is not disturbed."""
    line = "x" * 1023 + "\n"
    total = 4096 * len(line)
    await front.run(f"for _ in range(4096): print({line!r}, end='')", "front-1")
    waiting = front.channels._mailbox
    await eventually(lambda: any(is_end(it, "front-1") for it in waiting._waiting), "the end of the flood")
    assert 0 < waiting.waiting_bytes < 2 * 256 * 1024
    await front.idle("front-1")
    await front.until(lambda channel, it: channel == "shell" and it["msg_type"] == "execute_reply")
    texts = [it["content"]["text"] for _, it in front.heard if it["msg_type"] == "stream"]
    gaps = [text for text in texts if "left out" in text]
    shown = sum(len(text) for text in texts if text not in gaps)
    dropped = sum(int(text.split("[px: ")[1].split()[0]) for text in gaps)
    assert gaps
    assert shown + dropped >= total


async def test_messages_that_are_none_are_refused(front: Front) -> None:
    with pytest.raises(InvalidInputError):
        await front.channels.send("iopub", {"header": {}, "parent_header": {}, "metadata": {}, "content": {}})
    with pytest.raises(InvalidInputError, match="content"):
        await front.channels.send("shell", {"header": {}, "parent_header": {}, "metadata": {}})
    assert await answers(front.handle, PATIENCE)


async def test_a_front_end_that_is_gone_is_given_up(front: Front) -> None:
    """Replies are never dropped, so one that never reads must end."""
    for number in range(40):
        await front.run(
            "from IPython.core.getipython import get_ipython\n"
            "get_ipython().payload_manager.write_payload({'source': 'page', 'data': {'text/plain': 'y' * 100000}})",
            f"front-{number}",
        )
    await eventually(lambda: front.channels._mailbox.overrun, "more than anybody leaves")
    with pytest.raises(OverloadedError):
        await front.idle("never")
