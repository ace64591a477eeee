"""JSON that leaves and JSON that comes in, with what UTF-8 and JSON cannot hold."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.api.call import parse_json
from supervisord_py.api.json_text import json_bytes, json_text
from supervisord_py.api.streams import ndjson_line, sse_frame
from supervisord_py.errors import InvalidInputError
from supervisord_py.kernels.websocket_frames import Message, pack_json, pack_v1, unpack_json, unpack_v1

_ANY_TEXT = st.text(st.characters(exclude_categories=()))
_WHOLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(_ANY_TEXT, inner),
    max_leaves=12,
)


@given(_WHOLE)
def test_whatever_a_kernel_gave_can_be_told(document: Any) -> None:
    assert json.loads(json_bytes(document)) == _joined(document)
    assert json.loads(json_text(document)) == _joined(document)
    assert json.loads(ndjson_line(document)) == _joined(document)
    assert json.loads(sse_frame(document).removeprefix(b"data: ")) == _joined(document)


def _joined(value: Any) -> Any:
    """Return what a document is after JSON: the two halves of a pair, side by side, are one character."""
    return json.loads(json.dumps(value))


def test_what_is_no_number_leaves_as_null() -> None:
    assert json.loads(json_bytes({"a": [math.nan, 1.5, (math.inf,)], "b": "\ud800"})) == {
        "a": [None, 1.5, [None]],
        "b": "\ud800",
    }


def test_what_json_does_not_know_is_a_defect_unless_it_may_be_a_text() -> None:
    with pytest.raises(TypeError):
        json_bytes({"a": object})
    assert b"class" in json_bytes({"a": object}, default=str)


@pytest.mark.parametrize("body", [rb'{"code": "\ud800"}', rb'{"a": {"\udc80": 1}}', rb'"\uD83d"'])
def test_half_a_character_in_a_body_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInputError, match="no Unicode text") as refused:
        parse_json(body)
    assert refused.value.hint


def test_whole_characters_outside_of_the_first_plane_are_welcome() -> None:
    assert parse_json(rb'{"code": "\ud83d\ude00"}') == {"code": "😀"}


@pytest.mark.parametrize(("pack", "unpack"), [(pack_json, unpack_json), (pack_v1, unpack_v1)])
def test_a_message_to_a_front_end_may_hold_half_a_character(pack: Any, unpack: Any) -> None:
    message = Message("iopub", {"msg_type": "error"}, content={"evalue": "\udc80"})
    assert unpack(pack(message)) == message
