"""What cells print and show: complete, byte for byte, whoever reads or does not. 50 MB are
nothing special.
"""

from __future__ import annotations

import base64
import hashlib
import os
import random
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.house import of_module, until
from e2e.kernel_house import GATEWAY, PATIENT, Calls, kernels_house
from rounds import mostly_deep

MIB = 1024 * 1024
PREVIEW = 64 * 1024
LINES = "".join(f"{i:06d} ".ljust(9999, ".") + "\n" for i in range(5000)).encode()
SOURCE = "def pieces():\n    for i in range(5000): yield f'{i:06d} '.ljust(9999, '.') + '\\n'\n"
PRINT = f"{SOURCE}for piece in pieces(): print(piece, end='')"
CHILD = f"{SOURCE}import sys\nfor piece in pieces(): sys.stdout.write(piece)"
WRITTEN = {
    "by os.write": f"{SOURCE}import os\nfor piece in pieces(): os.write(1, piece.encode())",
    "by a child": f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}], "
    "check=True)",
}
calls = of_module(kernels_house, {**PATIENT, "PX_KERNELS__LADDER_TERMINATE_SECONDS": "15"})


def consistent(calls: Calls, kernel: str, code: str) -> tuple[dict[str, Any], bytes]:
    """Run a cell; return it after checking that its numbers agree with what is kept, and that."""
    cell = calls.run(kernel, code, timeout=60).cell
    kept = calls.output(kernel, cell["id"]) if cell["artifact"] else b""
    assert len(kept) == cell["total_bytes"], cell["total_bytes"]
    assert (cell["status"], cell["lossy"]) == ("ok", False), cell["notices"]
    return cell, kept


@pytest.mark.parametrize("row", mostly_deep(WRITTEN, "by os.write"))
def test_what_is_kept_is_what_was_written(calls: Calls, row: str) -> None:
    cell, kept = consistent(calls, "written", WRITTEN[row])
    assert hashlib.sha256(kept).digest() == hashlib.sha256(LINES).digest()
    assert (cell["truncated"], cell["artifact"]) == (True, cell["id"])
    assert len(cell["text"]) < PREVIEW + 1024


def test_a_pipe_that_is_closed_early_ends_the_client_and_leaves_the_session_usable(
    calls: Calls,
) -> None:
    process = calls.house.pxctl_later("exec", "--kernel", "head", PRINT)
    assert process.stdout.readline().startswith("000000 ")
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.wait(60)
    calls.wait_state("head", "idle")
    assert calls.value("head", "1 + 1") == "2"


def test_both_streams_are_kept_in_order_and_can_be_read_apart_and_in_pages(calls: Calls) -> None:
    code = "import sys\nfor i in range(300):\n    print('ö', i)\n    print('€', i, file=sys.stderr)"
    cell, kept = consistent(calls, "written", code)
    assert kept == "".join(f"ö {i}\n€ {i}\n" for i in range(300)).encode() == cell["text"].encode()
    for stream, word in (("stdout", "ö"), ("stderr", "€")):
        expected = "".join(f"{word} {i}\n" for i in range(300)).encode()
        assert calls.output("written", cell["id"], f"?stream={stream}") == expected
    short = calls.run("written", "print('äöü€' * 21)").cell
    assert calls.output("written", short["id"], limit=7) == ("äöü€" * 21 + "\n").encode()
    beyond = calls.house.request(
        "GET", f"/api/kernels/written/cells/{short['id']}/output?offset=1000"
    )
    assert (beyond.status, beyond.body, beyond.headers["x-complete"]) == (200, b"", "true")


def test_what_a_thread_or_a_child_prints_after_the_end_is_kept_with_its_cell(
    calls: Calls, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    code = (
        "import os, subprocess, sys, threading, time\n"
        "def late():\n"
        f"    while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        # at one stroke: print would write the end of the line by itself
        "    sys.stdout.write('late\\n')\n"
        "threading.Thread(target=late).start()\n"
        f"subprocess.Popen('while [ ! -e {go} ]; do sleep 0.01; done; echo LATE', "
        "shell=True)\nprint('early')"
    )
    first = calls.run("written", code).cell
    assert first["text"] == "early\n"
    go.touch()

    def kept() -> list[bytes]:
        return sorted(calls.output("written", first["id"]).splitlines())

    until(lambda: kept() == [b"LATE", b"early", b"late"], "the late output is with its cell")
    assert calls.value("written", "print('mine')") == "mine"


@pytest.mark.parametrize("backend", mostly_deep(["direct", GATEWAY], "direct"))
def test_d1_a_subscriber_that_stalls_holds_up_nobody_and_gets_everything(
    calls: Calls, backend: str
) -> None:
    """It reads nothing until the cell has ended and another call has been answered: then all of
    it is there.
    """
    name = f"stalled-{backend}"
    with calls.stream(name, PRINT, timeout=60, backend=backend) as stream:
        cell = stream.until("cell_started")["id"]
        until(lambda: calls.show(name)["running"] is None, "the cell ends though nobody reads")
        assert calls.value(name, "1 + 1", backend=backend) == "2"
        events = stream.rest()
    output = [event for event in events if event["event"] == "output"]
    told = "".join(event["text"] for event in output).encode()
    assert hashlib.sha256(told).digest() == hashlib.sha256(LINES).digest()
    assert (output[0]["offset"], events[-1]["event"], events[-1]["result"]["status"]) == (
        0,
        "done",
        "ok",
    )
    done = events[-1]["result"]["cells"][0]
    assert (done["id"], done["total_bytes"]) == (cell, len(told))


@pytest.mark.deep
@pytest.mark.timeout(400)
def test_a_gigabyte_does_not_grow_the_daemon(calls: Calls) -> None:
    """1 GB print, with a subscriber that reads nothing: the control plane grows by less than 150
    MB.
    """
    calls.run("giga", "mib = 'x' * (1 << 20)")
    control = psutil.Process(calls.house.pids()[1])
    before = control.memory_info().rss
    with calls.stream("giga", "for _ in range(1024): print(mib, end='')", timeout=300) as stream:
        cell = stream.until("cell_started")["id"]
        sizes: list[int] = []

        def ended() -> bool:
            sizes.append(control.memory_info().rss)
            return bool(calls.history("giga")[-1]["status"] != "running")

        until(ended, "the cell has ended", 300)
    (row,) = [item for item in calls.history("giga") if item["id"] == cell]
    assert (row["status"], row["total_bytes"]) == ("ok", 1 << 30), row
    assert max(sizes) - before < 150 * MIB, (before, max(sizes))
    last = calls.house.request(
        "GET", f"/api/kernels/giga/cells/{cell}/output?offset={(1 << 30) - 10}&limit=100"
    )
    assert (last.body, last.headers["x-complete"]) == (b"x" * 10, "true")


DEAF = """
import ctypes, os
gate, nothing, hold = os.open({path!r}, os.O_RDWR), ctypes.create_string_buffer(1), ctypes.PyDLL(None).read
print('begun', flush=True); os.read(gate, 1)
print('deaf'); hold(gate, nothing, 1)
"""


@pytest.mark.parametrize("backend", mostly_deep(["direct", GATEWAY], "direct"))
def test_what_a_cell_prints_is_told_while_it_holds_the_interpreter(
    calls: Calls, backend: str, tmp_path: Path
) -> None:
    """In a C call no thread of the kernel can send a message: the daemon finds the bytes in the
    file by itself.
    """
    path = tmp_path / "gate"
    os.mkfifo(path)
    with (
        open(path, "r+b", buffering=0) as gate,
        calls.stream(
            f"deaf-{backend}", DEAF.format(path=str(path)), backend=backend, timeout=60
        ) as stream,
    ):
        cell = stream.until("cell_started")["id"]
        for said in ("begun\n", "deaf\n"):
            text = ""
            while len(text) < len(said):
                text += stream.until("output")["text"]
            assert text == said
            page = calls.house.request("GET", f"/api/kernels/deaf-{backend}/cells/{cell}/output")
            assert page.body.endswith(said.encode())
            assert page.headers["x-complete"] == "false", "of a cell that runs there may be more"
            gate.write(b"x")
        assert stream.until("done")["result"]["status"] == "ok"


RICH: dict[str, tuple[dict[str, Any], str]] = {
    "markdown first": (
        {"text/markdown": "# m", "text/plain": "p", "text/html": "<b>h</b>"},
        "# m\n",
    ),
    "plain before html": ({"text/plain": "p", "text/html": "<b>h</b>"}, "p\n"),
    "html to markdown": ({"text/html": "<h1>T</h1><p>a <b>b</b></p>"}, "# T\n\na **b**\n"),
    "json": ({"application/json": {"a": [1, None]}, "text/plain": "p"}, "p\n"),
    "jpeg": ({"image/jpeg": base64.b64encode(b"\xff\xd8..").decode()}, ""),
    "status alone": ({"application/x-px-status+json": {"op": "mine", "n": 1}}, ""),
}


@pytest.mark.parametrize("row", RICH)
def test_rich_outputs_are_shown_by_precedence_and_kept_whole(calls: Calls, row: str) -> None:
    bundle, text = RICH[row]
    with calls.stream("rich", f"display({bundle!r}, raw=True)") as stream:
        events = {event["event"]: event for event in stream.rest()}
    cell = events["done"]["result"]["cells"][0]
    assert cell["text"] == text, cell
    (output,) = cell["outputs"]
    assert (output["output_type"], output["data"]) == ("display_data", bundle)
    if row == "status alone":
        assert events["status"]["status"] == {"op": "mine", "n": 1}
    assert events.get("display", {}).get("data") == (None if row == "status alone" else bundle)


def test_a_large_rich_output_is_a_reference_that_can_be_fetched(calls: Calls) -> None:
    image = "base64.b64encode(random.Random(5).randbytes(1 << 20)).decode()"
    code = (
        f"import base64, random\ndisplay({{'image/png': {image}, 'text/plain': 'big'}}, raw=True)"
    )
    cell = calls.run("rich", code).cell
    reference = cell["outputs"][0]["data"]["image/png"]
    assert (cell["text"], reference["bytes"]) == ("big\n", MIB)
    answer = calls.house.request("GET", f"/api/kernels/rich/artifacts/{reference['artifact']}")
    assert (answer.status, answer.headers["content-type"]) == (200, "image/png")
    assert answer.body == random.Random(5).randbytes(MIB)
    assert (
        calls.house.request("GET", f"/api/kernels/rich/artifacts/{cell['id']}.9999.png").status
        == 404
    )


@pytest.mark.parametrize(
    "code",
    [
        "print('before')\nraise ValueError('why')",
        "class A:\n    def __repr__(self): raise ValueError('why')\nA()",
    ],
)
def test_a_traceback_is_in_the_text_without_colours_and_in_the_error_as_it_was(
    calls: Calls, code: str
) -> None:
    cell = calls.run("rich", code).cell
    assert ("ValueError: why" in cell["text"], "\x1b" in cell["text"]) == (True, False)
    assert (cell["error"]["name"], cell["error"]["value"]) == ("ValueError", "why")
    assert cell["error"]["traceback"]
