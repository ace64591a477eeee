"""Messages on a kernel's websocket: whatever is packed comes back, whatever is broken is a ValueError."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from supervisord_py.kernels import websocket_frames as wire
from supervisord_py.kernels.websocket_frames import Message

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=3)
MESSAGES = st.builds(
    Message,
    channel=st.sampled_from(("shell", "control", "stdin", "iopub")),
    header=OBJECTS,
    parent=OBJECTS,
    metadata=OBJECTS,
    content=OBJECTS,
    buffers=st.lists(st.binary(max_size=20), max_size=3).map(tuple),
)


@pytest.mark.parametrize("protocol", [wire.V1, None])
@given(message=MESSAGES, noise=st.binary(max_size=200))
def test_what_is_packed_comes_back_and_any_other_bytes_are_a_message_or_a_value_error(
    protocol: str | None, message: Message, noise: bytes
) -> None:
    frame = wire.pack(message, protocol)
    assert wire.unpack(frame, protocol) == (message if protocol else structs.replace(message, buffers=()))
    with contextlib.suppress(ValueError):
        assert isinstance(wire.unpack(noise, protocol), Message)


@given(MESSAGES, st.data())
def test_a_frame_with_wrong_bytes_is_a_message_or_a_value_error(message: Message, data: st.DataObject) -> None:
    """Offsets that lie, JSON that breaks off: no other exception ever."""
    for protocol in (wire.V1, None):
        packed = wire.pack(message, protocol)
        frame = bytearray(packed if isinstance(packed, bytes) else packed.encode())
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(frame)))
        with contextlib.suppress(ValueError):
            wire.unpack(bytes(frame[:cut]), protocol)


def test_the_framing_is_that_of_the_real_server() -> None:
    """What jupyter_server writes is read, and what we write it reads."""
    base = pytest.importorskip("jupyter_server.services.kernels.connection.base")
    message = Message("shell", {"msg_id": "1"}, {"p": 1}, {"m": 2}, {"c": "ü"}, (b"\x00\x01",))
    channel, parts = base.deserialize_msg_from_ws_v1(wire.pack(message, wire.V1))
    assert channel == "shell"
    assert [json.loads(part) for part in parts[:4]] == [{"msg_id": "1"}, {"p": 1}, {"m": 2}, {"c": "ü"}]
    assert parts[4:] == [b"\x00\x01"]
    assert wire.unpack(base.serialize_msg_to_ws_v1(parts, "shell"), wire.V1) == message
