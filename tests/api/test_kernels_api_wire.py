"""Pure parts of the API of kernels: messages on a WebSocket, the two doors, members of a body, documents."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_server.services.kernels.connection.base import (
    deserialize_binary_message,
    deserialize_msg_from_ws_v1,
    serialize_binary_message,
    serialize_msg_to_ws_v1,
)

from api.kernel_fakes import ok
from supervisord_py.api.doors import JUPYTER, PX, Door, routed_path
from supervisord_py.api.jupyter_wire import PARTS, V1, Message, WireError, decode, encode
from supervisord_py.api.kernel_documents import event_document
from supervisord_py.api.members import Members
from supervisord_py.errors import InvalidInputError
from supervisord_py.kernels.cell import (
    CellDone,
    CellNews,
    CellStarted,
    KernelStarting,
    Notice,
    Queued,
    RungClimbed,
    Step,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=3)
HEADERS = st.builds(lambda kind, more: {**more, "msg_type": kind, "msg_id": "m"}, st.text(min_size=1), OBJECTS)
MESSAGES = st.builds(
    lambda channel, header, parent, metadata, content, buffers: Message(
        channel, dict(zip(PARTS, (header, parent, metadata, content), strict=True)), tuple(buffers)
    ),
    st.sampled_from(["shell", "control", "stdin", "iopub"]),
    HEADERS,
    OBJECTS,
    OBJECTS,
    OBJECTS,
    st.lists(st.binary(max_size=20), max_size=3),
)
PROTOCOLS = st.sampled_from([None, "", V1])


# -- messages ----------------------------------------------------------------------------------------------------


@given(MESSAGES, PROTOCOLS)
def test_a_message_survives_its_way(message: Message, protocol: str | None) -> None:
    assert decode(encode(message, protocol), protocol) == message


@given(MESSAGES)
def test_jupyters_own_code_reads_what_we_write(message: Message) -> None:
    channel, pieces = deserialize_msg_from_ws_v1(encode(message, V1))
    assert channel == message.channel
    assert [json.loads(piece) for piece in pieces[:4]] == [message.parts[name] for name in PARTS]
    assert tuple(pieces[4:]) == message.buffers
    framed = encode(message, None)
    document = json.loads(framed) if isinstance(framed, str) else deserialize_binary_message(framed)
    assert document["channel"] == message.channel
    assert {name: document[name] for name in PARTS} == message.parts
    assert tuple(document["buffers"]) == message.buffers
    assert (document["msg_id"], document["msg_type"]) == ("m", message.parts["header"]["msg_type"])


@given(MESSAGES)
def test_we_read_what_jupyters_own_code_writes(message: Message) -> None:
    pieces = [json.dumps(message.parts[name]).encode() for name in PARTS]
    assert decode(serialize_msg_to_ws_v1([*pieces, *message.buffers], message.channel), V1) == message
    document = {**message.parts, "channel": message.channel, "buffers": list(message.buffers)}
    assert decode(serialize_binary_message(document), None) == message


@given(st.binary(max_size=80) | st.text(max_size=80), PROTOCOLS)
def test_nonsense_is_refused_and_nothing_else_happens(data: bytes | str, protocol: str | None) -> None:
    try:
        decode(data, protocol)
    except WireError:
        return


@pytest.mark.parametrize(
    "data",
    [
        "[]",
        "{}",
        '{"header": {}}',
        '{"header": {"msg_type": "x"}, "content": 5}',
        struct.pack("!I", 0),
        struct.pack("!II", 1, 999) + b"{}",
        struct.pack("!III", 2, 12, 4) + b"{}",
        b"",
        "[" * 100_000,
    ],
)
def test_what_lacks_something_is_refused(data: str | bytes) -> None:
    with pytest.raises(WireError):
        decode(data, None)


def test_a_v1_message_that_lacks_parts_is_refused() -> None:
    with pytest.raises(WireError, match="lacks parts"):
        decode(serialize_msg_to_ws_v1([b"{}"], "shell"), V1)
    with pytest.raises(WireError):
        decode("text", V1)


def test_without_a_channel_it_is_for_shell() -> None:
    assert decode('{"header": {"msg_type": "x"}}', None).channel == "shell"


# -- doors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "unix", "tcp"),
    [
        ("/api", "/api", "/jupyter/api"),
        ("/api?x=1", "/api?x=1", "/jupyter/api?x=1"),
        ("/api/kernels", "/api/kernels", "/jupyter/api/kernels"),
        ("/api/kernels/a/x?y=1", "/api/kernels/a/x?y=1", "/jupyter/api/kernels/a/x?y=1"),
        ("/api/kernelspecs/python3", "/api/kernelspecs/python3", "/jupyter/api/kernelspecs/python3"),
        ("/api/kernelsx", "/api/kernelsx", "/api/kernelsx"),
        ("/api/status", "/api/status", "/api/status"),
        ("/px/api/kernels?cwd=/a", "/api/kernels?cwd=/a", "/api/kernels?cwd=/a"),
        ("/px/api/status", "/api/status", "/api/status"),
        ("/px", "/px", "/px"),
        ("/jupyter/api/kernels", "/jupyter/api/kernels", "/jupyter/api/kernels"),
        ("/px/px/api/x", "/px/px/api/x", "/px/px/api/x"),
        ("/", "/", "/"),
        ("*", "*", "*"),
    ],
)  # fmt: skip
def test_each_door_has_its_reading(path: str, unix: str, tcp: str) -> None:
    assert (routed_path(path, Door.UNIX), routed_path(path, Door.TCP)) == (unix, tcp)


@given(st.text(), st.sampled_from(Door))
def test_a_door_adds_or_takes_one_prefix_and_leaves_the_rest(path: str, door: Door) -> None:
    assert routed_path(path, door) in {path, JUPYTER + path, path.removeprefix(PX)}
    assert routed_path(routed_path(path, Door.TCP), Door.UNIX) in {routed_path(path, Door.TCP), path.removeprefix(PX)}


# -- members -----------------------------------------------------------------------------------------------------

KNOWN = ("text", "number", "signed", "flag", "texts", "objects", "choice", "source")


def test_members_are_read_by_their_types() -> None:
    members = Members(
        {
            "text": "a",
            "number": 5,
            "flag": True,
            "texts": {"a": "b"},
            "objects": [{"a": 1}],
            "choice": "x",
            "source": "",
        },
        KNOWN,
    )
    assert (members.text("text"), members.number("number"), members.flag("flag")) == ("a", 5.0, True)
    assert (members.texts("texts"), members.choice("choice", ("x", "y")), members.source("source")) == (
        {"a": "b"},
        "x",
        "",
    )
    assert "a" in members.objects("objects", ("a",))[0]


@pytest.mark.parametrize("wrong", ["5", True, float("nan"), float("inf"), 10**400])
def test_a_signed_number_is_one_that_can_be_counted_with(wrong: Any) -> None:
    assert Members({"signed": -5}, KNOWN).signed("signed") == -5.0
    assert Members({"signed": None}, KNOWN).signed("signed") is None
    with pytest.raises(InvalidInputError):
        Members({"signed": wrong}, KNOWN).signed("signed")


def test_null_is_absent() -> None:
    members = Members(dict.fromkeys(KNOWN), KNOWN)
    assert (members.text("text"), members.number("number"), members.flag("flag")) == (None, None, False)
    assert (members.texts("texts"), members.objects("objects", ()), members.source("source")) == ({}, (), None)
    assert members.choice("choice", ("x",)) is None


@given(VALUES, st.sampled_from(["text", "number", "signed", "flag", "texts", "objects", "choice", "source"]))
def test_a_wrong_value_is_told_by_pointer_and_nothing_else_is_raised(value: Any, name: str) -> None:
    members = Members({name: value}, KNOWN, "/at")
    reads: dict[str, Any] = {
        "text": members.text,
        "number": members.number,
        "signed": members.signed,
        "flag": members.flag,
        "texts": members.texts,
        "objects": lambda each: members.objects(each, ()),
        "choice": lambda each: members.choice(each, ("x",)),
        "source": members.source,
    }
    pointers = []
    try:
        reads[name](name)
    except InvalidInputError as error:
        pointers = [each["pointer"] for each in error.extra["errors"]]
    assert all(pointer.startswith(f"/at/{name}") for pointer in pointers)


def test_an_unknown_member_names_the_nearest_or_all() -> None:
    with pytest.raises(InvalidInputError) as caught:
        Members({"nmuber": 1}, KNOWN)
    assert "number" in str(caught.value.hint)
    with pytest.raises(InvalidInputError) as caught:
        Members({"zzzz": 1}, KNOWN)
    assert str(caught.value.hint).startswith("known: text, number")


# -- events ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "word"),
    [
        (Queued(2), "queued"),
        (KernelStarting("s", "/p"), "starting"),
        (CellStarted(0, "c", None, "s"), "cell_started"),
        (RungClimbed("c", Step("sigint", 0.0)), "rung"),
        (CellDone(ok()), "cell_done"),
        (Notice("x"), "notice"),
    ],
)
def test_every_event_has_its_word(event: Any, word: str) -> None:
    document = event_document(event)
    assert document is not None
    assert document["event"] == word


def test_news_are_found_in_the_files() -> None:
    assert event_document(CellNews("c")) is None
