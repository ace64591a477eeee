"""Messages: framings, signatures, sockets of a kernel that only talks, and front ends that read slowly."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.kernel_rig import eventually, kernel_house
from supervisord_py.errors import ConflictError, InvalidInputError, OverloadedError
from supervisord_py.kernels import connection_file as place
from supervisord_py.kernels import wire
from supervisord_py.kernels.channels import GAP, OVERRUN, KernelSockets, open_channels
from supervisord_py.kernels.direct import DirectBackend
from supervisord_py.kernels.wire import V1, Message

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=3)
MESSAGES = st.builds(
    lambda channel, objects, buffers: Message(channel, [*map(wire.dump, objects), *buffers]),
    st.sampled_from(("shell", "control", "stdin", "iopub")),
    st.tuples(OBJECTS, OBJECTS, OBJECTS, OBJECTS),
    st.lists(st.binary(max_size=20), max_size=3),
)


def told(message: Message, *, buffers: bool = True) -> tuple[str, list[Any], list[bytes]]:
    rest = list(message.parts[wire.BUFFERS :]) if buffers else []
    return message.channel, [wire.load(part) for part in message.parts[: wire.BUFFERS]], rest


@pytest.mark.parametrize("protocol", [V1, None])
@given(message=MESSAGES, data=st.data())
def test_what_is_packed_comes_back_and_other_bytes_are_a_message_or_a_value_error(
    protocol: str | None, message: Message, data: st.DataObject
) -> None:
    frame = wire.pack(message, protocol)
    assert told(wire.unpack(frame, protocol)) == told(message, buffers=protocol is not None)
    broken = bytearray(frame if isinstance(frame, bytes) else frame.encode())
    broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(broken[: data.draw(st.integers(0, len(broken)))])
    for noise in (cut, data.draw(st.binary(max_size=200))):
        with contextlib.suppress(ValueError):
            assert isinstance(wire.unpack(noise, protocol), Message)


def test_messages_with_a_wrong_signature_or_no_sense_are_none() -> None:
    message = wire.make("status", {"execution_state": "idle"}, "kernel")
    good = [wire.DELIMITER, wire.sign(b"key", message.parts), *message.parts]
    found = wire.from_frames(b"key", "iopub", [b"topic", *good])
    assert found is not None
    assert (found.id, found.state) == (message.id, "idle")
    for frames in ([good[0], b"0" * 64, *good[2:]], [b"nothing"], [wire.DELIMITER], good[:-1]):
        assert wire.from_frames(b"key", "iopub", frames) is None


async def test_a_kernel_that_reads_nothing_refuses_in_the_end_and_holds_nobody_up(short_tmp: Path) -> None:
    sockets = KernelSockets(place.make(short_tmp, "k"), "me", ("control",), lambda _: None)
    message = wire.make("kernel_info_request", {"fill": "x" * 10_000}, "me", "control")
    with pytest.raises(ConflictError, match="queue is full"):
        for _number in range(1_000_000):
            sockets.send(message)
    await sockets.close()
    sockets.send(message)  # reaches nobody, and harms nobody


# -- front ends --------------------------------------------------------------------------------------------------------

FLOOD = f"for _ in range(4096): print({'x' * 1023!r})"
PAYLOAD = """
from IPython.core.getipython import get_ipython
get_ipython().payload_manager.write_payload({'source': 'page', 'data': {'text/plain': 'y' * 100000}})
"""


async def test_a_front_end_that_stalls_gets_a_gap_and_all_that_matters_and_one_that_is_gone_is_given_up(
    short_tmp: Path,
) -> None:
    """What is left out is told; status and replies come all, so one that never reads must end."""
    limit = 256 * 1024
    async with kernel_house(short_tmp) as rig:
        handle = await rig.start(DirectBackend(rig.placement, rig.config), rig.launch())
        joined = await open_channels(handle.connection_file, limit_bytes=limit)

        def run(code: str) -> str:
            message = wire.make("execute_request", {**wire.EXECUTE, "code": code}, "front")
            joined.send(message)
            return message.id

        with pytest.raises(InvalidInputError):
            joined.send(wire.make("status", {}, "front", "iopub"))
        asked = run(FLOOD)
        await eventually(lambda: any(it.parent_id == asked and it.state == "idle" for it in joined.waiting), "the end")
        await eventually(lambda: any(it.type == "execute_reply" for it in joined.waiting), "the reply")
        assert 0 < joined.waiting_bytes < 2 * limit
        gaps, messages = [it for it in joined.waiting if GAP in str(it.content.get("text"))], len(joined.waiting)
        assert [it.content["name"] for it in gaps] == ["stderr"]
        async for _ in joined:
            messages -= 1
            if not messages:
                break
        for _ in range(40):
            run(PAYLOAD)
        await eventually(lambda: joined.waiting_bytes > OVERRUN * limit, "more than anybody leaves")
        with pytest.raises(OverloadedError):
            async for _ in joined:
                pass
        await joined.close()
