"""What users and programs get wrong, and what cells do to themselves: a clear error each time, and nobody else notices.

Every test ends with a look at a second session: it keeps its process and its variables.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.house import Answer, House
from e2e.kernel_house import Call, environment, kernels_house, kernelspec, row, run, value

EMPTY_NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
HUGE = 10**400


@pytest.fixture(scope="module")
def home() -> Iterator[House]:
    """The house, and at the end proof that the session beside the tests' own was never touched."""
    with kernels_house() as made:
        assert run(made, "other", "keep = 42").ok
        pid = row(made, "other")["pid"]
        yield made
        assert (value(made, "other", "keep"), row(made, "other")["pid"]) == ("42", pid)


def execute(home: House, body: object, *, session: str = "bad", headers: Mapping[str, str] | None = None) -> Answer:
    """Send a body as it is; an object gets the house's folder as cwd where it names none."""
    sent = {"cwd": str(home.home), **body} if isinstance(body, dict) else body
    return home.request("POST", f"/api/kernels/{session}/execute", sent, headers=headers)


def refused(answer: Answer, status: int, kind: str, *words: str) -> dict[str, Any]:
    """Assert a problem document that says what, where, why and what next."""
    problem: dict[str, Any] = answer.json()
    assert (answer.status, problem["status"], problem["kind"]) == (status, status, kind), problem
    for word in words:
        assert word in problem["detail"], problem
    assert problem["hint"], problem
    return problem


# -- bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"\xff\xfe{}", b'{"code": "1", "timeout": NaN}', b"[" * 100_000],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_no_json_object_is_a_bad_request(home: House, body: bytes) -> None:
    problem = refused(execute(home, body), 400, "bad_request")
    assert problem["exit_code"] == 2


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({}, ""),
        ({"code": "1", "cells": []}, ""),
        ({"code": ["1"]}, "/code"),
        ({"cells": []}, "/cells"),
        ({"cells": [{"code": "1"}, {}]}, "/cells/1/code"),
        ({"cells": [{"code": "1", "titel": "x"}]}, "/cells/0/titel"),
        ({"script": ""}, "/script"),
        ({"notebook": json.dumps(EMPTY_NOTEBOOK)}, "/notebook"),
        ({"code": "1", "cwd": "relative"}, "/cwd"),
        ({"code": "1", "cwd": "/no/such/place"}, "/cwd"),
        ({"code": "1", "cwd": "/etc/passwd"}, "/cwd"),
        ({"code": "1", "cwd": "/tmp\0x"}, "/cwd"),
        ({"code": "1", "cwd": "/" + "x" * 5000}, "/cwd"),
        ({"code": "1", "timeout": "5"}, "/timeout"),
        ({"code": "1", "timeout": HUGE}, "/timeout"),
        ({"code": "1", "per_call": "yes"}, "/per_call"),
        ({"code": "1", "interpreter": "/no/python"}, "/interpreter"),
        ({"code": "1", "interpreter": "/bin/false"}, "/interpreter"),
        ({"code": "1", "interpreter": "/etc/passwd"}, "/interpreter"),
        ({"code": "1", "interpreter": "py\0thon"}, "/interpreter"),
        ({"code": "1", "kernelspec": "../../x"}, "/kernelspec"),
        ({"code": "1", "backend": "tcp"}, "/backend"),
        ({"code": "1", "language": "ruby"}, "/language"),
        ({"code": "1", "environ": []}, "/environ"),
        ({"code": "1", "bogus": 1}, "/bogus"),
    ],
    ids=lambda told: repr(told)[:48],
)
def test_a_member_that_does_not_fit_is_named_by_its_pointer(home: House, members: dict[str, Any], pointer: str) -> None:
    """And nothing was started for it."""
    before = [k["id"] for k in home.get("/api/kernels")["kernels"]]
    problem = refused(execute(home, members, session="unfit"), 422, "invalid_input")
    assert [error["pointer"] for error in problem["errors"]] == [pointer], problem
    assert len(problem["detail"]) < 500, "nobody wants to read it all back"
    assert [k["id"] for k in home.get("/api/kernels")["kernels"]] == before


@pytest.mark.parametrize("name", ["..", "a%2Fb", "..%2F..%2Fetc", "-a", "a%00b", "%FF", "x" * 65])
def test_a_name_that_is_no_name_is_refused_everywhere(home: House, name: str) -> None:
    """No path of a session's folder can be made of it."""
    refused(execute(home, {"code": "1"}, session=name), 422, "invalid_input")
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/restart"), ("GET", "/cells"), ("GET", "/notebook")):
        answer = home.request(method, f"/api/kernels/{name}{path}")
        assert answer.status in {400, 404, 422}, (method, path, answer.body)
    assert home.request("GET", f"/api/kernels/other/cells/{name}/output").status in {400, 404, 422}
    assert home.request("GET", f"/api/kernels/other/artifacts/{name}").status in {400, 404, 422}


@pytest.mark.parametrize("name", ["../x", "", 5, "a\0b", "é"])
def test_a_session_of_such_a_name_is_not_made(home: House, name: object) -> None:
    refused(home.request("POST", "/api/kernels", {"name": name, "cwd": str(home.home)}), 422, "invalid_input")


def test_pages_out_of_bounds(home: House) -> None:
    call = run(home, "pages", "print('0123456789')")
    path = f"/api/kernels/{row(home, 'pages')['id']}/cells/{call.cell['id']}/output"
    for query in ("offset=-1", "limit=0", "offset=x", "stream=stdin", "offset=9999999999999999999", "bogus=1"):
        answer = home.request("GET", f"{path}?{query}")
        assert answer.status == 400, (query, answer.body)
        assert answer.json()["hint"]
    assert home.request("GET", f"{path}?offset=4&limit=3").body == b"456"
    assert home.request("GET", f"{path}?offset=999").body == b""


# -- the client -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code", "word"),
    [
        (("--kernelspec", "nosuch", "1"), 2, "nosuch"),
        (("--interpreter", "/bin/false", "1"), 2, "/bin/false"),
        (("--cwd", "/no/such/place", "1"), 2, "/no/such/place"),
        (("--kernel", "../x", "1"), 2, "../x"),
        (("--bash", "--interpreter", "python3", "1"), 2, "bash"),
        (("--timeout", "nan", "1"), 2, "timeout"),
        (("-f", "/no/such/file.py"), 2, "/no/such/file.py"),
        (("1", "-f", "/etc/hostname"), 2, ""),
        (("1/0",), 1, "ZeroDivisionError"),
        (("input('name?')",), 1, "nobody is there to type it"),
    ],
    ids=lambda told: repr(told)[:40],
)
def test_pxctl_exec_exits_as_promised_and_says_why(home: House, args: tuple[str, ...], code: int, word: str) -> None:
    done = home.pxctl("exec", *(() if "--kernel" in args else ("--kernel", "cli")), *args)
    assert done.returncode == code, done
    said = done.stderr
    assert word.lower() in said.lower()
    assert "Traceback (most recent call last):\n  File" not in said, "no traceback of ours"
    assert "pxctl: " in said or "ExitCode: " in said or "Traceback" in said, "a failed cell tells its error itself"
    if code == 2:
        assert "\nhint: " in said, said


@pytest.mark.parametrize("command", ["show", "stop", "export", "cells"])
def test_pxctl_kernel_without_such_a_session_exits_4(home: House, command: str) -> None:
    done = home.pxctl("kernel", command, "nosuch")
    assert done.returncode == 4, done
    assert "nosuch" in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize(
    "content",
    [
        b"{nope",
        b"\xff\xfe\x00",
        b'{"cells": [{"cell_type": "code", "source": 5}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
        b'{"cells": [], "metadata": [], "nbformat": 99, "nbformat_minor": 5}',
    ],
    ids=lambda content: repr(content[:40]),
)
def test_a_notebook_that_is_none_exits_2_and_stays_as_it_was(home: House, tmp_path: Path, content: bytes) -> None:
    bad = tmp_path / "bad.ipynb"
    bad.write_bytes(content)
    done = home.pxctl("exec", "--kernel", "cli", "-o", str(bad), "-f", str(bad))
    assert done.returncode == 2, done
    assert "hint: " in done.stderr
    assert "notebook" in done.stderr or "UTF-8" in done.stderr
    assert bad.read_bytes() == content


# -- interpreters and folders ---------------------------------------------------------------------------------------


def test_an_interpreter_that_died_since_is_told_and_the_next_choice_is_not_taken_in_silence(
    home: House, short_tmp: Path
) -> None:
    """A session whose environment was removed says so, also where another one would be found by the usual order."""
    python = environment(short_tmp / ".venv")
    assert run(home, "dies", "1", interpreter=str(python), cwd=str(short_tmp)).ok
    assert home.pxctl("kernel", "stop", row(home, "dies")["id"]).returncode == 0
    shutil.rmtree(short_tmp / ".venv")
    call = run(home, "dies", "1", interpreter=str(python), cwd=str(short_tmp))
    assert (call.status, call.document["kind"]) == (422, "invalid_input"), call.document
    assert str(python) in call.told
    by_id = home.request("POST", f"/api/kernels/{row(home, 'dies')['id']}/execute", {"code": "1"})
    assert by_id.status in {422, 503}, by_id.body
    assert str(short_tmp) in by_id.json()["detail"]
    assert by_id.json()["hint"]


@pytest.mark.deep
def test_an_interpreter_without_ipykernel_names_the_exact_command(home: House, short_tmp: Path) -> None:
    python = environment(short_tmp / "bare")
    next((short_tmp / "bare").rglob("ours.pth")).unlink()
    with kernels_house(PX_KERNELS__MANAGED="false") as strict:
        call = run(strict, "bare", "1", interpreter=str(python))
        assert call.status == 422, call.document
        assert "ipykernel" in call.told
        assert str(python.parent) in call.document["hint"]
        assert "ipykernel" in call.document["hint"]


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["/no/such/kernel", "{connection_file}"], "/no/such/kernel"),
        ([sys.executable, "-c", "import sys; sys.exit('my own words')", "{connection_file}"], "my own words"),
        ([sys.executable, "-c", "pass"], "connection_file"),
        ([], "argv"),
    ],
    ids=["missing", "exits", "no connection file", "empty"],
)
def test_a_kernelspec_that_cannot_start_says_why(home: House, argv: list[str], word: str) -> None:
    kernelspec(home, "broken", argv)
    call = run(home, f"broken-{len(argv)}-{word[-4:]}", "1", kernelspec="broken")
    assert call.status in {422, 503}, call.document
    assert word in json.dumps(call.document), call.document
    assert call.document["hint"]


def test_a_kernelspec_that_is_no_json_takes_no_other_down(home: House) -> None:
    kernelspec(home, "fine", [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    kernelspec(home, "garbage", [])
    (home.home / "jupyter" / "kernels" / "garbage" / "kernel.json").write_text("{nope")
    assert run(home, "fine", "1", kernelspec="fine").ok
    answer = run(home, "garbage", "1", kernelspec="garbage")
    assert answer.status == 422, answer.document
    assert home.request("GET", "/api/kernelspecs").status == 200


def test_a_folder_that_is_gone_meanwhile_is_told_and_a_living_kernel_still_answers(
    home: House, short_tmp: Path
) -> None:
    folder = short_tmp / "work"
    folder.mkdir()
    assert run(home, "gone", "x = 7", cwd=str(folder)).ok
    kernel = row(home, "gone")["id"]
    folder.rmdir()
    problem = refused(
        execute(home, {"code": "x", "cwd": str(folder)}, session="gone"), 422, "invalid_input", str(folder)
    )
    assert problem["errors"][0]["pointer"] == "/cwd"
    by_id = Call(200, home.request("POST", f"/api/kernels/{kernel}/execute", {"code": "x"}).json())
    assert by_id.text == "7", by_id.document
    assert home.pxctl("kernel", "stop", kernel).returncode == 0
    answer = home.request("POST", f"/api/kernels/{kernel}/execute", {"code": "x"})
    assert answer.status in {422, 503}, answer.body
    assert str(folder) in answer.json()["detail"]
    assert answer.json()["hint"]
