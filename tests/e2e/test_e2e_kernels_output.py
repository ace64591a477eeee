"""What cells print and show: complete, byte for byte, whoever reads or does not.

Law: the expected bytes are computed here, from the same generator that the cell runs, and never come from the daemon.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from beside import beside
from e2e.house import BIN, Answer, House, house, until
from e2e.kernel_house import Calls
from ports import free_port
from rounds import mostly_deep

MIB = 1024 * 1024
PREVIEW = 64 * 1024
TOKEN = "a-token-of-a-test"  # noqa: S105 - of a server that lives for one test
GENERATORS = {
    "lines": "def pieces():\n    for i in range(5000): yield f'{i:06d} '.ljust(9999, '.') + '\\n'",
    "words": "def pieces():\n    for i in range(2000): yield f'{i:06d} '.ljust(9999, '-') + '\\n'",
    "bytes": "def pieces():\n    for i in range(2000): yield bytes((i * j) % 256 for j in range(300))",
}
CHILD = """
import subprocess, sys
program = SOURCE + "\\nimport sys\\nfor piece in pieces(): sys.stdout.write(piece)"
subprocess.run([sys.executable, "-c", program], check=True)
"""
WRITTEN = {
    "50 MB in lines": ("lines", "for piece in pieces(): print(piece, end='')"),
    "50 MB in one print": ("lines", "print(''.join(pieces()), end='')"),
    "20 MB by os.write": ("words", "import os\nfor piece in pieces(): os.write(1, piece.encode())"),
    "20 MB of a child": ("words", CHILD),
    "invalid UTF-8": ("bytes", "import os\nfor piece in pieces(): assert os.write(1, piece) == len(piece)"),
}
PATIENT = {
    "PX_KERNELS__TIMEOUT_SECONDS": "50",
    "PX_KERNELS__LADDER_AGAIN_SECONDS": "5",
    "PX_KERNELS__LADDER_TERMINATE_SECONDS": "40",
    "PX_KERNELS__LADDER_KILL_SECONDS": "45",
}
"""A cell that yields to an interrupt, and is only slow about it, keeps its kernel."""


def pieces(generator: str) -> Iterator[bytes]:
    names: dict[str, Any] = {}
    exec(GENERATORS[generator], names)  # noqa: S102 - our own text, above
    for piece in names["pieces"]():
        yield piece if isinstance(piece, bytes) else piece.encode()


def digest(parts: Iterator[bytes]) -> tuple[str, int]:
    found, size = hashlib.sha256(), 0
    for part in parts:
        found.update(part)
        size += len(part)
    return found.hexdigest(), size


def cell_of(generator: str, code: str) -> str:
    source = GENERATORS[generator]
    return f"SOURCE = {source!r}\n{source}\n{code}"


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    with house(PATIENT) as made:
        made.start()
        yield Calls(made, str(tmp_path_factory.mktemp("output")))


def only(document: dict[str, Any]) -> dict[str, Any]:
    (cell,) = document["cells"]
    found: dict[str, Any] = cell
    return found


def consistent(calls: Calls, document: dict[str, Any]) -> dict[str, Any]:
    """Return the only cell after checking that its numbers agree with one another and with what is kept."""
    cell = only(document)
    kept = calls.output(document["kernel"], cell["id"]) if cell["artifact"] else b""
    assert len(kept) == cell["total_bytes"], cell["total_bytes"]
    assert cell["lossy"] is False, cell["notices"]
    return cell


# -- not a byte is lost ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", mostly_deep(WRITTEN, "invalid UTF-8"))
def test_what_is_kept_is_what_was_written(calls: Calls, row: str) -> None:
    generator, code = WRITTEN[row]
    document = calls.run("written", cell_of(generator, code), timeout=60)
    assert document["status"] == "ok", only(document)["text"][-2000:]
    cell = only(document)
    wanted = digest(pieces(generator))
    assert calls.digest("written", cell["id"]) == wanted
    assert cell["total_bytes"] == wanted[1]
    assert (cell["truncated"], cell["artifact"]) == (True, cell["id"])
    assert len(cell["text"]) < PREVIEW + 1024
    assert cell["lossy"] is False


def test_a_pipe_that_is_closed_early_ends_the_client_and_leaves_the_session_usable(calls: Calls) -> None:
    """As with `pxctl exec … | head -1`."""
    code = cell_of("lines", "for piece in pieces(): print(piece, end='')")
    command = [BIN / "pxctl", "exec", "--cwd", calls.cwd, "--kernel", "head", code]
    process = beside(
        command, env=calls.house.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"000000 ")
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    process.wait(60)
    assert b"Traceback" not in err, err
    calls.wait_state("head", "idle")
    assert calls.value("head", "1 + 1") == "2"


def test_both_streams_are_kept_in_order_and_can_be_read_apart(calls: Calls) -> None:
    code = "import sys\nfor i in range(300):\n    print('o', i)\n    print('e', i, file=sys.stderr)"
    cell = consistent(calls, calls.run("written", code))
    out = "".join(f"o {i}\n" for i in range(300)).encode()
    err = "".join(f"e {i}\n" for i in range(300)).encode()
    whole = "".join(f"o {i}\ne {i}\n" for i in range(300)).encode()
    assert calls.output("written", cell["id"]) == whole
    assert calls.output("written", cell["id"], "&stream=stdout") == out
    assert calls.output("written", cell["id"], "&stream=stderr") == err
    assert cell["text"].encode() == whole


FLOODS = {
    "print": "while True: print('x' * 100)",
    "os.write": "import os\nwhile True: os.write(1, b'y' * 1000)",
    "child": "import subprocess; subprocess.run(['yes'])",
}


@pytest.mark.deep
@pytest.mark.parametrize("row", FLOODS)
def test_an_endless_flood_is_interrupted_and_everybody_else_is_served(calls: Calls, row: str) -> None:
    calls.run("flood", "mine = 42")
    for seconds in (1, 5, 25):
        answer = flooded(calls, FLOODS[row], seconds)
        if answer.status == 200 and only(answer.json())["total_bytes"] > 0:
            break  # else a busy machine did not come as far as to print
    else:
        pytest.fail(f"it never printed: {answer.body!r}")
    document = answer.json()
    assert (document["status"], document["variables"]) == ("timed_out", "kept"), document["message"]
    assert calls.value("flood", "mine") == "42"


def flooded(calls: Calls, code: str, seconds: float) -> Answer:
    """Return the answer of a flood that had so much time; another session was served meanwhile."""
    flood = calls.later("flood", code, timeout=seconds)
    until(lambda: flood.done() or calls.known()["flood"]["running"], "the flood runs, or has run")
    assert calls.value("dry", "1 + 1") == "2"
    return flood.result()


def test_a_cell_that_breaks_its_streams_breaks_them_for_itself_only(calls: Calls) -> None:
    for code in ("import sys; sys.stdout.close()", "import os; os.close(1)", "import os; os.close(2)"):
        calls.run("broken", code)
        assert calls.value("broken", "print('again')") == "again"


def test_a_value_whose_repr_raises_names_what_was_raised(calls: Calls) -> None:
    document = calls.run("rich", "class A:\n    def __repr__(self): raise ValueError('r')\nA()")
    cell = only(document)
    assert "ValueError: r" in cell["text"]
    assert (cell["error"]["name"], cell["error"]["value"]) == ("ValueError", "r"), cell["error"]


def test_pages_put_together_are_the_whole_and_beyond_the_end_is_nothing(calls: Calls) -> None:
    cell = consistent(calls, calls.run("written", "print('äöü€' * 21)"))
    assert calls.output("written", cell["id"], limit=7) == ("äöü€" * 21 + "\n").encode()
    answer = calls.house.request("GET", f"/api/kernels/written/cells/{cell['id']}/output?offset=1000")
    assert (answer.status, answer.body, answer.headers["x-complete"]) == (200, b"", "true"), answer
    assert answer.headers["x-total-bytes"] == "190"


def test_a_page_of_a_cell_that_runs_says_that_there_may_be_more(calls: Calls, tmp_path: Path) -> None:
    call = calls.later(
        "written", f"print('begun', flush=True)\nrun('while ! [ -e {tmp_path}/go ]; do sleep 0.02; done')"
    )
    cell = calls.wait_running("written")
    path = f"/api/kernels/written/cells/{cell}/output"
    until(lambda: calls.house.request("GET", path).body == b"begun\n", "the output is there while the cell runs")
    assert calls.house.request("GET", path).headers["x-complete"] == "false"
    (tmp_path / "go").touch()
    assert call.document()["status"] == "ok"
    assert calls.house.request("GET", path).headers["x-complete"] == "true"


def test_what_a_thread_prints_after_the_end_is_kept_with_its_cell(calls: Calls, tmp_path: Path) -> None:
    code = (
        "import threading, pathlib, time\n"
        "def late():\n"
        f"    while not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)\n"
        "    print('late')\n"
        "threading.Thread(target=late).start()\nprint('early')"
    )
    first = only(calls.run("written", code))
    assert first["text"] == "early\n"
    (tmp_path / "go").touch()
    path = f"/api/kernels/written/cells/{first['id']}/output"
    until(lambda: calls.house.request("GET", path).body == b"early\nlate\n", "the late output is with its cell")
    assert calls.value("written", "print('mine')") == "mine"


# -- readers that do not read ---------------------------------------------------------------------------------------


def test_a_subscriber_that_stalls_holds_up_nobody_and_gets_everything(calls: Calls) -> None:
    """It reads nothing until the cell has ended and another call has been answered: then all of it is there."""
    code = cell_of("lines", "for piece in pieces(): print(piece, end='')")
    with calls.stream("stalled", code, timeout=60) as stream:
        cell = stream.until("cell_started")["id"]
        until(lambda: calls.show("stalled")["running"] is None, "the cell ends though nobody reads")
        assert calls.value("stalled", "1 + 1") == "2"
        events = stream.rest()
    told = "".join(event["text"] for event in events if event["event"] == "output").encode()
    assert digest(iter([told])) == digest(pieces("lines"))
    assert next(event["offset"] for event in events if event["event"] == "output") == 0
    assert events[-1]["event"] == "done", events[-1]
    assert events[-1]["result"]["status"] == "ok"
    assert events[-1]["result"]["cells"][0]["id"] == cell
    assert events[-1]["result"]["cells"][0]["total_bytes"] == len(told)


@pytest.mark.deep
@pytest.mark.timeout(400)
def test_a_gigabyte_does_not_grow_the_daemon(calls: Calls) -> None:
    """1 GB print, with a subscriber that reads nothing: the control plane grows by less than 150 MB."""
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
    first = calls.house.request("GET", f"/api/kernels/giga/cells/{cell}/output?offset={(1 << 30) - 10}&limit=100")
    assert (first.body, first.headers["x-complete"]) == (b"x" * 10, "true")
    assert calls.state("giga") == "idle"


# -- what is shown --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, PREVIEW - 1, PREVIEW, PREVIEW + 1, PREVIEW * 4])
def test_the_text_is_whole_or_says_that_it_is_not(calls: Calls, size: int) -> None:
    body = "".join(random.Random(size).choices("abc \n", k=size))
    cell = consistent(calls, calls.run("shown", f"print({body!r}, end='')"))
    assert cell["total_bytes"] == size
    if cell["truncated"]:
        assert size > PREVIEW
        assert cell["artifact"] == cell["id"]
        assert cell["text"].startswith(body[:1000])
        assert cell["text"].endswith(body[-1000:])
        assert len(cell["text"].encode()) <= PREVIEW + 512
        assert cell["id"] in cell["text"] or str(size) in cell["text"].replace(",", ""), "the gap is marked"
    else:
        assert size <= PREVIEW
        assert cell["text"] == body


RICH: dict[str, tuple[dict[str, Any], str]] = {
    "markdown first": ({"text/markdown": "# m", "text/plain": "p", "text/html": "<b>h</b>"}, "# m\n"),
    "plain before html": ({"text/plain": "p", "text/html": "<b>h</b>"}, "p\n"),
    "html to markdown": ({"text/html": "<h1>T</h1><p>a <b>b</b></p>"}, "# T\n\na **b**\n"),
    "json": ({"application/json": {"a": [1, None]}, "text/plain": "p"}, "p\n"),
    "png": ({"image/png": base64.b64encode(b"\x89PNG...").decode(), "text/plain": "<Figure>"}, "<Figure>\n"),
    "jpeg": ({"image/jpeg": base64.b64encode(b"\xff\xd8..").decode()}, ""),
    "svg": ({"image/svg+xml": "<svg xmlns='http://www.w3.org/2000/svg'/>"}, ""),
    "status alone": ({"application/x-px-status+json": {"op": "mine", "n": 1}, "text/plain": "hidden"}, ""),
}


@pytest.mark.parametrize("row", RICH)
def test_rich_outputs_are_shown_by_precedence_and_kept_whole(calls: Calls, row: str) -> None:
    bundle, text = RICH[row]
    with calls.stream("rich", f"display({bundle!r}, raw=True)") as stream:
        events = stream.rest()
    cell = events[-1]["result"]["cells"][0]
    assert cell["text"] == text, cell
    (output,) = cell["outputs"]
    assert output["output_type"] == "display_data"
    names = {event["event"] for event in events}
    if "application/x-px-status+json" in bundle:
        assert output["data"] == {"application/x-px-status+json": {"op": "mine", "n": 1}}
        assert next(event for event in events if event["event"] == "status")["status"] == {"op": "mine", "n": 1}
        assert "display" not in names
    else:
        assert output["data"] == bundle
        assert next(event for event in events if event["event"] == "display")["data"] == bundle


def test_an_updated_display_is_shown_once_as_it_was_last(calls: Calls) -> None:
    cell = only(calls.run("rich", "shown = display('a', display_id=True)\nfor i in range(5): shown.update(i)"))
    assert cell["text"] == "4\n"
    assert [output["data"]["text/plain"] for output in cell["outputs"]] == ["4"]


@pytest.mark.parametrize(
    ("wait", "after", "text"),
    [("False", "print('new')", "new\n"), ("False", "", ""), ("True", "print('new')", "new\n"), ("True", "", "old\n")],
)
def test_cleared_output_is_not_shown_but_kept(calls: Calls, wait: str, after: str, text: str) -> None:
    """As nbclient does: with `wait` the clearing waits for the next output."""
    code = f"from IPython.display import clear_output\nprint('old')\nclear_output(wait={wait})\n{after}"
    cell = only(calls.run("rich", code))
    assert cell["text"] == text, cell
    assert calls.output("rich", cell["id"]).startswith(b"old\n")
    assert cell["truncated"] is False


def test_a_large_rich_output_is_a_reference_that_can_be_fetched(calls: Calls) -> None:
    image = random.Random(5).randbytes(MIB)
    code = (
        "import base64, random\n"
        "display({'image/png': base64.b64encode(random.Random(5).randbytes(1 << 20)).decode(), 'text/plain': 'big'},"
        " raw=True)"
    )
    document = calls.run("rich", code)
    cell = only(document)
    assert cell["text"] == "big\n"
    reference = cell["outputs"][0]["data"]["image/png"]
    assert reference["bytes"] == MIB
    answer = calls.house.request("GET", f"/api/kernels/{document['kernel']}/artifacts/{reference['artifact']}")
    assert (answer.status, answer.headers["content-type"]) == (200, "image/png")
    assert answer.body == image
    missing = calls.house.request("GET", f"/api/kernels/{document['kernel']}/artifacts/{cell['id']}.9999.png")
    assert missing.status == 404, missing.body


def test_a_traceback_is_in_the_text_without_colours_and_in_the_error_as_it_was(calls: Calls) -> None:
    cell = only(calls.run("rich", "print('before')\nraise ValueError('why')"))
    assert cell["text"].startswith("before\n")
    assert "ValueError: why" in cell["text"]
    assert "\x1b" not in cell["text"]
    assert (cell["error"]["name"], cell["error"]["value"]) == ("ValueError", "why")
    assert cell["error"]["traceback"]


# -- behind gateways ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def gateway(folder: Path) -> Iterator[str]:
    """Run a real kernel_gateway with a token on loopback; yields its address."""
    port = free_port()
    folder.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PX_", "PI_", "JUPYTER", "PYTEST"))}
    places = {"JUPYTER_RUNTIME_DIR": str(folder / "run"), "JUPYTER_CONFIG_DIR": str(folder / "etc")}
    command = [sys.executable, "-m", "kernel_gateway", f"--KernelGatewayApp.port={port}"]
    command += ["--KernelGatewayApp.port_retries=0", "--JupyterWebsocketPersonality.list_kernels=True"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**kept, **places, "KG_AUTH_TOKEN": TOKEN, "PYTHONWARNINGS": "ignore"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: _listens(port), f"the gateway listens: {(folder / 'log').read_text()}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


DEAF = """
import ctypes, os
gate, nothing, hold = os.open({path!r}, os.O_RDWR), ctypes.create_string_buffer(1), ctypes.PyDLL(None).read
print('begun', flush=True); os.read(gate, 1)
print('deaf'); hold(gate, nothing, 1)
"""


@pytest.mark.parametrize("backend", mostly_deep(["direct", "gateway-local"], "direct"))
def test_what_a_cell_prints_is_told_while_it_holds_the_interpreter(calls: Calls, backend: str, tmp_path: Path) -> None:
    """In a C call no thread of the kernel can send a message: the daemon finds the bytes in the file by itself."""
    path = str(tmp_path / "gate")
    os.mkfifo(path)
    gate = os.open(path, os.O_RDWR)
    try:
        with calls.stream(f"deaf-{backend}", DEAF.format(path=path), backend=backend, timeout=60) as stream:
            for said in ("begun\n", "deaf\n"):
                assert stream.printed(len(said)) == said
                os.write(gate, b"x")
            assert stream.until("done")["result"]["status"] == "ok"
    finally:
        os.close(gate)


@pytest.mark.deep
def test_what_is_wrong_with_an_external_gateway_is_said_and_a_reload_repairs_it(home: House, tmp_path: Path) -> None:
    """A wrong token names its setting, an address where nobody listens is named, the right settings work."""
    calls = Calls(home, str(tmp_path))
    with gateway(tmp_path / "gateway") as url:
        configure(home, url, "not-the-token")
        home.start()
        _, problem = calls.problem("x", "1", backend="gateway-external")
        assert "gateway_token" in json.dumps(problem), problem
        assert "not-the-token" not in json.dumps(problem), problem
        configure(home, "http://127.0.0.1:9", TOKEN)
        assert home.request("POST", "/api/daemon/reload").status == 200
        status, problem = calls.problem("x", "1", backend="gateway-external")
        assert status == 503, problem
        assert "127.0.0.1:9" in json.dumps(problem), problem
        configure(home, url, TOKEN)
        assert home.request("POST", "/api/daemon/reload").status == 200
        assert calls.value("x", "1 + 1", backend="gateway-external") == "2"


def configure(home: House, url: str, token: str) -> None:
    (home.home / "pxd.toml").write_text(f'[kernels]\ngateway_url = "{url}"\ngateway_token = "{token}"\n')
    (home.home / "pxd.toml").chmod(0o600)
