"""The pure parts of the direct backend: messages, mailboxes, foreign use, words of failures, command lines, replies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from supervisord_py.errors import ConfigError, StartFailedError
from supervisord_py.kernels import channels, kernelspecs, messages
from supervisord_py.kernels.backend import Launch
from supervisord_py.kernels.channels import Mailbox, Pending
from supervisord_py.kernels.kernel_client import Message
from supervisord_py.process.instance import End
from supervisord_py.process.model import Reason

LAUNCH = Launch("s-abcdef", "daemon.key", "/opt/my env/bin/python", "/", {}, Path("/cells"))


def made(kind: str = "stream", parent: str = "p", size: int = 0) -> Message:
    header = json.dumps({"msg_type": kind, "msg_id": "m"}).encode()
    about = {"msg_id": parent, "session": "s"}
    return Message(kind, about, [header, json.dumps(about).encode(), b"{}", b"x" * size])


def test_importing_the_backend_is_cheap() -> None:
    """The control plane imports it at its start: zmq and jupyter_client come with the first kernel."""
    code = (
        "import sys, supervisord_py.kernels.direct, supervisord_py.kernels.cell_files; "
        "print(*sorted({'zmq', 'jupyter_client', 'tornado', 'traitlets', 'nbformat'} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "\n"


# -- mailboxes ------------------------------------------------------------------------------------------------------

LETTERS = st.tuples(
    st.sampled_from(["stream", "display_data", "status", "execute_reply"]),
    st.sampled_from(["iopub", "shell"]),
    st.sampled_from(["p", "q"]),
    st.integers(0, 400),
)


@given(st.lists(st.one_of(LETTERS, st.none()), max_size=60))
def test_a_mailbox_is_bounded_and_accounts_for_every_byte(steps: list[Any]) -> None:
    """None takes; everything else is put. Order holds, what matters is never dropped, gaps count what was."""
    box, put, got = Mailbox(1000), list[tuple[str, Message]](), list[Pending]()
    for step in steps:
        if step is None:
            if (found := box.take()) is not None:
                got.append(found)
            continue
        kind, channel, parent, size = step
        put.append((channel, made(kind, parent, size)))
        box.put(*put[-1])
        output = [it.message.size for it in box._waiting if not it.dropped_bytes and is_output(it)]
        assert sum(output) <= 1000
        assert box.overrun is (box.waiting_bytes > channels.OVERRUN * 1000)
    while (found := box.take()) is not None:
        got.append(found)
    assert box.waiting_bytes == 0
    kept = [it.message for it in got if not it.dropped_bytes]
    assert [id(it) for it in kept] == [id(it) for _, it in put if any(it is each for each in kept)]
    important = [it for channel, it in put if channel == "shell" or it.type not in channels.OUTPUT]
    assert all(any(it is each for each in kept) for it in important)
    lost = sum(it.dropped_bytes for it in got)
    assert sum(it.size for it in kept) + lost == sum(it.size for _, it in put)


def is_output(letter: Pending) -> bool:
    return letter.channel == "iopub" and letter.message.type in channels.OUTPUT


# -- command lines --------------------------------------------------------------------------------------------------


def test_a_kernelspec_gets_its_connection_file() -> None:
    spec = replace(LAUNCH, interpreter=None, kernelspec="ir", kernelspec_argv=("R", "--args", "{connection_file}"))
    assert kernelspecs.command(spec, "/run/c.json") == ("R", "--args", "/run/c.json")
    for argv in (None, (), ("R",)):
        with pytest.raises(ConfigError, match="'ir'"):
            kernelspecs.command(replace(spec, kernelspec_argv=argv), "/run/c.json")


# -- words of failures ----------------------------------------------------------------------------------------------


def tail(**said: Any) -> str:
    return f"noise\npx-launch: {json.dumps(said)}\n"


@pytest.mark.parametrize(
    ("said", "kind", "words", "hint"),
    [
        ({"error": "ipykernel", "detail": "No module", "version": "3.9"}, StartFailedError, "3.9", "pip install"),
        ({"error": "overlay", "detail": "no folder", "path": "/o"}, StartFailedError, "/o", "remove /o"),
        ({"error": "old_python", "detail": "too old"}, StartFailedError, "too old", "--python"),
        ({"error": "usage", "detail": "what?"}, StartFailedError, "what?", "daemon restart"),
        ({"error": "news"}, StartFailedError, "exited with code", "pxctl logs"),
    ],
)
def test_each_trouble_of_the_launcher_has_its_words_and_its_step(
    said: dict[str, Any], kind: type, words: str, hint: str
) -> None:
    error = messages.early_exit(LAUNCH, End(Reason.EARLY_EXIT, None, tail(**said)))
    assert type(error) is kind
    assert error.hint is not None
    assert hint in error.hint
    if "detail" in said:
        assert words in error.detail
    assert error.unit == "kernel:s-abcdef"
    assert error.extra["reason"] == "early_exit"
