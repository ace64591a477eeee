"""Pure parts of the API of kernels: the two doors, members of a body, documents."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.kernel_fakes import ok
from supervisord_py.api.doors import JUPYTER, PX, Door, routed_path
from supervisord_py.api.kernel_documents import event_document
from supervisord_py.api.members import Members
from supervisord_py.errors import InvalidInputError
from supervisord_py.kernels.cell import (
    CellDone,
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
