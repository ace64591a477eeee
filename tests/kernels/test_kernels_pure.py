"""What needs no kernel: how the end of a cell is judged and told, what of an environment passes,
notebooks.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kernels.cell_folder import CELL, finish, log_of, writer_of
from supervisord_py.kernels import render
from supervisord_py.kernels.backend import KernelGoneError, Launch, Reply
from supervisord_py.kernels.config import CellLimits, legacy_settings
from supervisord_py.kernels.environment import (
    NOTHING,
    OURS,
    Activation,
    EnvRules,
    Why,
    deactivated,
    filtered,
)
from supervisord_py.kernels.inside.cell_writer import told_by
from supervisord_py.kernels.messages import CellOutcome, CellPlace, early_exit, judge, sentence
from supervisord_py.kernels.render import (
    WholeOutputs,
    cells_of_notebook,
    cells_of_script,
    executed,
    export,
    updated,
)
from supervisord_py.kernels.session import (
    BackendName,
    CallResult,
    Cell,
    CellError,
    CellResult,
    CellStatus,
    Step,
    Variables,
)
from supervisord_py.ledger.kernels import KernelCellRow
from supervisord_py.process.child_environment import Environment
from supervisord_py.process.instance import End
from supervisord_py.process.model import ExitRecord, Identity, Reason, Verdict
from supervisord_py.zygote import main as zygote

KEPT, LOST = Variables.KEPT, Variables.LOST
INT, KILL = Step("sigint", 0.0), Step("sigkill", 4.0)
OK, TIMED_OUT, CANCELLED, ERROR = (
    CellStatus.OK,
    CellStatus.TIMED_OUT,
    CellStatus.CANCELLED,
    CellStatus.ERROR,
)
ABORTED = CellStatus.ABORTED
GONE = KernelGoneError("gone")


def record(
    code: int | None = None, signum: int | None = None, verdict: Verdict | None = None
) -> ExitRecord:
    return ExitRecord(
        "k", "kernel:x", Identity(1, 1, "b"), 1.0, 2.0, code, signum, 0.0, 0.0, 0, 0, 0, verdict
    )


SEGV, STOP = End(Reason.SIGNAL, record(None, 11)), End(Reason.STOPPED, record(None, 15))
OVER = Verdict(Reason.MEMORY_LIMIT, "watchdog", 1.0, 9, 300 << 20, 200 << 20)
MEMORY = End(Reason.MEMORY_LIMIT, record(None, 9, OVER))


INTERRUPTED = {"reply": Reply(ERROR, CellError("KeyboardInterrupt", "")), "steps": (INT,)}
CASES: list[Any] = [
    # the outcome's members, kernel's end -> status, variables, name of the error, part of the
    # sentence
    ({"reply": Reply(OK)}, None, (OK, KEPT, None, None)),
    ({"reply": Reply(OK, ask_exit=True)}, None, (OK, LOST, None, "exit()")),
    (
        {"reply": Reply(OK, CellError("SystemExit", "0"), exit_code=0)},
        None,
        (OK, KEPT, None, "ended the call with exit code 0. Cell 3 was not run."),
    ),
    (
        {"reply": Reply(ERROR, CellError("SystemExit", "4"), exit_code=4)},
        None,
        (ERROR, KEPT, "SystemExit", "ended with exit code 4. Cell 3 was not run."),
    ),
    (
        {
            "reply": Reply(ERROR, CellError("SystemExit", "4"), exit_code=4),
            "cut": TIMED_OUT,
            "steps": (INT,),
        },
        None,
        (TIMED_OUT, KEPT, "SystemExit", "ran out of time"),
    ),
    (
        {"reply": Reply(ERROR, CellError("E", "no"))},
        None,
        (ERROR, KEPT, "E", "failed (E). Cell 3 was not run."),
    ),
    (
        {"reply": Reply(ERROR), "is_stateless": True},
        None,
        (ERROR, KEPT, None, "failed. Cell 3 was not run."),
    ),
    (
        {"reply": Reply(ERROR, CellError("StdinNotImplementedError", ""))},
        None,
        (ERROR, KEPT, "StdinNotImplementedError", "asked for input"),
    ),
    (
        {**INTERRUPTED, "cut": TIMED_OUT},
        None,
        (
            TIMED_OUT,
            KEPT,
            "KeyboardInterrupt",
            "ran out of time: interrupted after 30 s, by sigint; variables are kept.",
        ),
    ),
    (
        {"reply": Reply(OK), "cut": TIMED_OUT, "steps": (INT,)},
        None,
        (TIMED_OUT, KEPT, "TimedOut", "ran out of time"),
    ),
    (
        {"reply": Reply(OK), "cut": TIMED_OUT, "variables": LOST, "steps": (INT, KILL)},
        None,
        (
            TIMED_OUT,
            LOST,
            "TimedOut",
            "the kernel was killed after 30 s, by sigkill; all variables are lost.",
        ),
    ),
    ({"reply": Reply(OK), "cut": CANCELLED, "steps": (INT,)}, None, (OK, KEPT, None, None)),
    (
        {"gone": GONE, "cut": CANCELLED, "variables": LOST, "steps": (INT,)},
        None,
        (CANCELLED, LOST, "Cancelled", "was cancelled: the kernel was killed"),
    ),
    (
        {"gone": GONE, "variables": LOST},
        SEGV,
        (ERROR, LOST, "KernelDied", "cut off. The kernel was killed by SIGSEGV"),
    ),
    (
        {"gone": GONE, "variables": LOST},
        MEMORY,
        (ERROR, LOST, "ResourceLimitExceeded", "over its memory limit"),
    ),
    (
        {"gone": GONE, "variables": LOST},
        STOP,
        (CANCELLED, LOST, "KernelStopped", "stopped on request"),
    ),
    ({"reply": Reply(OK)}, STOP, (CANCELLED, LOST, "KernelStopped", "stopped on request")),
    ({"reply": Reply(OK)}, SEGV, (OK, LOST, None, None)),
    ({"reply": Reply(ERROR, CellError("E", ""))}, SEGV, (ERROR, LOST, "E", "The kernel is gone")),
    (
        {"reply": Reply(OK), "is_stateless": True},
        STOP,
        (CANCELLED, KEPT, "KernelStopped", "stopped on request"),
    ),
    (
        {"gone": GONE, "cut": TIMED_OUT, "is_stateless": True},
        None,
        (TIMED_OUT, KEPT, "TimedOut", "ended after 30 s."),
    ),
]


@pytest.mark.parametrize(("told", "kernel_end", "expected"), CASES)
def test_a_cell_is_judged_by_what_happened_to_it(
    told: dict[str, Any], kernel_end: End | None, expected: Any
) -> None:
    judged = judge(CellOutcome(**told), kernel_end)
    status, variables, name, part = expected
    assert (judged.status, judged.variables, judged.error and judged.error.name) == (
        status,
        variables,
        name,
    )
    said = sentence(CellPlace(1, 3, "load  the\ndata"), judged, 30.04)
    assert (said is None, (part or "") in (said or "")) == (part is None, True), said
    assert said is None or said.startswith("Cell 2 of 3 (load the data) "), said


@pytest.mark.parametrize(
    ("cells", "status"),
    [
        ([(OK, None, False), (OK, None, False)], OK),
        ([(OK, None, False), (ERROR, None, False), (ABORTED, None, False)], ERROR),
        ([(OK, 0, False), (ABORTED, None, False)], OK),
        ([(ERROR, 4, False), (ABORTED, None, False)], ERROR),
        ([(ERROR, None, True), (OK, None, False)], OK),
        ([(ERROR, 4, True), (ERROR, None, False)], ERROR),
        ([(OK, None, False), (ABORTED, None, False)], ABORTED),
    ],
)
def test_a_call_ends_as_the_cell_that_ended_it(cells: list[Any], status: CellStatus) -> None:
    results = [
        CellResult(CELL, None, it, exit_code=code, error_allowed=allowed)
        for it, code, allowed in cells
    ]
    call = CallResult("s", "/", "python", BackendName.DIRECT, KEPT, tuple(results), 30.0)
    assert call.status is status


@pytest.mark.parametrize(
    ("reply", "exit_code", "status"),
    [
        ({"status": "error", "ename": "SystemExit", "evalue": ""}, 0, "ok"),
        ({"status": "error", "ename": "SystemExit", "evalue": "None"}, 0, "ok"),
        ({"status": "error", "ename": "SystemExit", "evalue": "0"}, 0, "ok"),
        ({"status": "error", "ename": "SystemExit", "evalue": "-1"}, 255, "error"),
        ({"status": "error", "ename": "SystemExit", "evalue": "no data"}, 1, "error"),
        ({"status": "error", "ename": "SystemExit", "evalue": "0", "px_exit_code": 1}, 1, "error"),
        ({"status": "error", "ename": "ValueError", "evalue": "0"}, None, "error"),
        ({"status": "ok"}, None, "ok"),
        ({}, None, "error"),
    ],
)
def test_a_reply_tells_the_exit_code_of_a_program(
    reply: dict[str, Any], exit_code: int | None, status: str
) -> None:
    told = told_by(reply)
    assert (told["exit_code"], told["status"]) == (exit_code, status)


def test_of_a_session_of_its_own_nothing_is_said_to_be_kept() -> None:
    own = CellPlace(1, 5, is_own=True)
    for told in ({"reply": Reply(ERROR)}, {**INTERRUPTED, "cut": TIMED_OUT}):
        said = str(sentence(own, judge(CellOutcome(**told), None), 1.0))  # type: ignore[arg-type]
        assert "Cells 3 to 5 were not run." in said
        assert ("kept" in said, said.endswith("gone with it.")) == (False, True)
    assert sentence(CellPlace(0, 1), CellOutcome(status=ERROR), 0.0) == "The cell failed."


def test_a_death_in_a_cell_brings_the_last_words_and_of_a_crash_report_the_beginning() -> None:
    report = "noise\nFatal Python error: Segmentation fault\n" + "\n".join(
        f"frame {n}" for n in range(50)
    )
    judged = judge(
        CellOutcome(gone=GONE, variables=LOST), End(Reason.SIGNAL, record(None, 11), report)
    )
    assert judged.error is not None
    assert "not run again" in judged.error.value
    assert (
        "Last words of the kernel:\nFatal Python error: Segmentation fault\nframe 0"
        in judged.error.value
    )


@pytest.mark.parametrize("cut", [0, 1, 20, 60])
def test_the_launchers_last_word_may_be_cut_off(tmp_path: Path, cut: int) -> None:
    word = 'px-launch: {"detail": "/p cannot import ipykernel", "hint": "run pip"}'
    launch = Launch("s", "i", "/p", str(tmp_path), {}, tmp_path)
    error = early_exit(
        launch, End(Reason.EARLY_EXIT, record(78), f"before\n{word[: len(word) - cut]}")
    )
    assert (error.hint == "run pip") is (cut == 0)
    assert ("was not started: /p cannot" in error.detail) is (cut == 0), error.detail


def test_our_names_win_and_a_word_that_is_not_known_is_ignored_with_a_warning() -> None:
    bash, url = {"PI_PY": "bash"}, {"PI_PYTHON_GATEWAY_URL": "http://h"}
    assert legacy_settings({"PX_PY": "py", **bash}) == ({"kernels.expose": ("python", "PX_PY")}, ())
    assert legacy_settings({"PX_KERNELS__EXPOSE": "both", "PX_PY": "py", **bash}) == ({}, ())
    told = legacy_settings({"PX_KERNELS__BACKEND": "direct", **url})
    assert told == ({"kernels.gateway_url": ("http://h", "PI_PYTHON_GATEWAY_URL")}, ())
    environ = {
        "PX_PY": "snake",
        "PI_PY": "mix",
        "PI_DEBUG_STARTUP": "",
        "PI_PYTHON_GATEWAY_TOKEN": " ",
    }
    warning = "PX_PY='snake' is ignored: it knows 0, bash, 1, py, mix, both"
    assert legacy_settings(environ) == ({"kernels.expose": ("both", "PI_PY")}, (warning,))


# -- the environment: deny beats everything, what is ours never passes, the chosen one is active ---

VENV = Activation("/work/.venv/bin", "/work/.venv", "VIRTUAL_ENV")
CONDA = Activation("/opt/conda/envs/x/bin", "/opt/conda/envs/x", "CONDA_PREFIX")
PLAIN = Activation("/usr/bin", "/usr")
ACTIVATED = {"VIRTUAL_ENV", "CONDA_PREFIX", "PATH"}


def test_why_a_variable_is_left_out() -> None:
    """A known secret is found as a whole value, a long one inside a value, too."""
    extra = {
        "JPY_SESSION_NAME": "a.ipynb",
        "OPENAI_API_KEY": "k",
        "A=B": "",
        "": "x",
        "PI_A": "abc",
        "PI_B": "xabcx",
    }
    urls = {"PI_C": "http://h/?token=longsecret", "PI_E": "", "PX_HOME": "/x", "UNKNOWN": "1"}
    found = filtered(urls, EnvRules(), extra=extra, secrets=("abc", "longsecret", ""))
    assert found.env.items() >= {"JPY_SESSION_NAME": "a.ipynb", "PI_B": "xabcx", "PI_E": ""}.items()
    assert found.dropped == {
        "": Why.UNUSABLE,
        "A=B": Why.UNUSABLE,
        "OPENAI_API_KEY": Why.DENIED,
        "PI_A": Why.SECRET,
        "PI_C": Why.SECRET,
        "PX_HOME": Why.OURS,
        "UNKNOWN": Why.NOT_ALLOWED,
    }


def test_the_daemon_s_own_activation_says_nothing_about_projects() -> None:
    """D3: a daemon started from a project's shell must not serve that project's environment to
    all.
    """
    found = deactivated(
        {
            "PATH": "/a/.venv/bin:/c/bin:/bin",
            "VIRTUAL_ENV": "/a/.venv/",
            "CONDA_PREFIX": "/c",
            "X": "1",
        }
    )
    assert dict(found) == {"PATH": "/bin", "X": "1"}
    base = {
        "PATH": "/opt/conda/bin:/bin",
        "CONDA_PREFIX": "/opt/conda",
        "CONDA_DEFAULT_ENV": "base",
    }
    assert dict(deactivated(base)) == base
    named = {"CONDA_PREFIX": "/opt/conda/envs/x", "CONDA_DEFAULT_ENV": "x"}
    assert dict(deactivated(named)) == {}


OFTEN = """
PATH HOME VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PI_PYTHON_GATEWAY_TOKEN PI_X LC_ALL OPENAI_API_KEY PX_SOCKET
PX_INSTANCE px_home JPY_PARENT_PID XDG_DATA_HOME NOTIFY_SOCKET KERNEL_ID A=B
"""
WORDS = st.one_of(st.sampled_from(OFTEN.split()), st.text("ABPIX_", min_size=1, max_size=5))
NAMES = st.one_of(WORDS, st.just(""))
PATHS = st.lists(
    st.sampled_from(
        [
            "/bin",
            "/usr/bin",
            "/work/.venv/bin",
            "/work/.venv/bin/",
            "/v/bin",
            "",
            "relative",
            CONDA.bin,
        ]
    ),
    max_size=6,
).map(":".join)
VALUES = st.one_of(
    PATHS,
    st.sampled_from(["/v", "/work/.venv", CONDA.prefix, "s3", "supersecret", "a supersecret b"]),
)
MAPPINGS = st.dictionaries(NAMES, VALUES, max_size=12).map(Environment)
RULES = st.builds(
    EnvRules,
    allow=st.lists(WORDS, max_size=8).map(tuple),
    allow_prefixes=st.lists(
        st.sampled_from(["PI_", "LC_", "XDG_", "A", "PX_", ""]), max_size=3
    ).map(tuple),
    deny=st.lists(st.one_of(WORDS, st.just("P*")), max_size=5).map(tuple),
)
OWN = st.sampled_from([NOTHING, Environment({"PX_SOCKET": "/run/px"})])
SECRETS = ("s3", "supersecret", "")
ACTIVATIONS = st.sampled_from([None, VENV, CONDA, PLAIN])


def is_denied(name: str, rules: EnvRules) -> bool:
    return any(
        name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in rules.deny
    )


@given(MAPPINGS, MAPPINGS, OWN, RULES, ACTIVATIONS)
def test_the_laws_of_the_filter_hold_for_every_environment(
    source: Environment,
    extra: Environment,
    own: Environment,
    rules: EnvRules,
    activation: Activation | None,
) -> None:
    found = filtered(source, rules, activation, extra=extra, own=own, secrets=SECRETS)
    allowed = {*rules.allow, *extra, *own, *ACTIVATED}
    for name, value in found.env.items():
        assert not is_denied(name, rules)
        assert name in allowed or name.startswith(rules.allow_prefixes)
        assert name in own or not name.upper().startswith(("PX_", "PI_PYTHON_GATEWAY_"))
        assert name not in {*OURS, ""}
        assert "=" not in name
        assert value != "s3"
        assert "supersecret" not in value
    told = {*found.dropped, *found.env, *ACTIVATED}
    assert {name for name in (*source, *extra) if not is_denied(name, rules)} <= told
    if activation is None:
        return
    if not is_denied("PATH", rules):  # the chosen folder leads it, exactly once
        first, *rest = found.env["PATH"].split(":")
        assert first == activation.bin
        assert activation.bin not in {entry.rstrip("/") for entry in rest}
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        expected = (
            activation.prefix if activation.mark == name and not is_denied(name, rules) else None
        )
        assert found.env.get(name) == expected


# -- notebooks; the library's own schema judges ----------------------------------------------------

LIMITS = CellLimits(inline_bytes=1000)


def code(source: str | list[str], **members: Any) -> dict[str, Any]:
    usual = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    return {**usual, "source": source, **members}


def notebook(*cells: Any, **metadata: Any) -> str:
    given = [{"id": f"id-{number}", **cell} for number, cell in enumerate(cells)]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": given})


def valid(text: str) -> Any:
    made = nbformat.reads(text, as_version=nbformat.NO_CONVERT)
    nbformat.validate(made)
    return made


def test_code_cells_are_read_in_order_with_titles() -> None:
    cells = [
        {"cell_type": "markdown", "source": "# words", "metadata": {}},
        code("x = 1", metadata={"title": "First"}),
        code("  \n"),
        code("skipped", metadata={"tags": ["skip-execution"]}),
        code(["y = 2\n", "y"], metadata={"name": "named"}),
        code("1 / 0", metadata={"tags": ["x", "raises-exception"]}),
    ]
    text = notebook(
        *cells, kernelspec={"name": "python3", "display_name": "P", "language": "python"}
    )
    assert cells_of_notebook(text) == (
        (Cell("x = 1", "First"), Cell("y = 2\ny", "named"), Cell("1 / 0", allow_error=True)),
        "python3",
    )


def test_what_other_tools_run_is_run_though_its_schema_does_not_allow_it() -> None:
    """Each is refused by nbformat.validate and run by nbconvert."""
    cell = code("x = 1")
    ids = {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [{**cell, "id": "some"}]}
    bare = {
        **ids,
        "nbformat_minor": 5,
        "cells": [{"cell_type": "code", "source": "x = 1", "metadata": {}, "outputs": []}],
    }
    extra = {**ids, "cells": [{**cell, "collapsed": True, "attachments": {}}], "more": 1}
    spec = {**ids, "metadata": {"kernelspec": {"display_name": "no name"}}, "cells": [cell]}
    count = {
        **ids,
        "cells": [{**cell, "execution_count": "*", "outputs": [{"output_type": "strange"}]}],
    }
    three = {
        "nbformat": 3,
        "nbformat_minor": 0,
        "metadata": {"name": ""},
        "worksheets": [
            {
                "cells": [
                    {
                        "cell_type": "code",
                        "input": "x = 1",
                        "language": "python",
                        "outputs": [],
                        "metadata": {},
                    },
                ]
            }
        ],
    }
    for each in (ids, bare, extra, spec, count, three):
        text = json.dumps(each)
        assert cells_of_notebook(text) == ((Cell("x = 1"),), None), each
        made = json.loads(executed(text, [CellResult(CELL, None, OK, execution_count=7)]))
        assert [(it["execution_count"], it["outputs"]) for it in made["cells"]] == [(7, [])]
    assert (
        json.loads(executed(json.dumps(ids), [CellResult(CELL, None, OK)]))["cells"][0]["id"]
        == "some"
    )


def test_an_update_stands_where_it_was_displayed_also_in_an_earlier_cell() -> None:
    def display(text: str, name: str | None = None, *, update: bool = False) -> dict[str, Any]:
        shown = {"output_type": "display_data", "data": {"text/plain": text}, "metadata": {}}
        return {**shown, "transient": {"display_id": name, "update": update}} if name else shown

    cells = [
        [display("first", "a"), display("same", "a"), display("other", "b")],
        [
            display("second", "a", update=True),
            display("plain"),
            display("of nobody", "c", update=True),
        ],
        [display("third", "a", update=True), display("again", "c", update=True)],
    ]
    assert updated(cells) == [
        [display("third"), display("third"), display("other")],
        [display("plain"), display("again")],
        [],
    ]


def test_a_reference_is_a_sentence_where_the_schema_knows_none(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.display({"image/png": "A" * 4000})
    writer.display({"application/json": {"x": "y" * 4000}, "text/plain": ["a", "b"]})
    finish(writer)

    def outputs(found: Any) -> list[Any]:
        made = executed(notebook(code("1")), [CellResult(CELL, None, OK)], lambda _: found)
        return list(valid(made).cells[0].outputs)

    first, second = outputs(render.show(log_of(tmp_path), LIMITS).outputs)
    reference = first["metadata"]["px"]["artifacts"]["image/png"]
    assert first["data"] == {
        "text/plain": f"[image/png, 3000 bytes: artifact {reference['artifact']}]"
    }
    assert second["data"] == {"text/plain": "ab"}
    whole = WholeOutputs(LIMITS)
    assert outputs(whole.of(log_of(tmp_path)))[0]["data"] == {"image/png": "A" * 4000}
    assert whole.cut == []


def test_a_notebook_has_all_that_was_printed_up_to_a_limit_and_knows_what_it_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    for number in range(3):
        writer = writer_of(tmp_path, f"{number:016x}")
        writer.write("stdout", b"x" * 200_000)
        finish(writer)
        rows.append(KernelCellRow(f"{number:016x}", "s", "call", 0, "code", "ok", 0.0, 0.0))

    def exported() -> Any:
        return export(rows, lambda row: log_of(tmp_path, row.id), CellLimits(), session_id="s-1")

    made = exported()
    assert [len("".join(cell["outputs"][0]["text"])) for cell in made["cells"]] == [200_000] * 3
    assert "cut" not in made["metadata"]["px"]
    monkeypatch.setattr(render, "NOTEBOOK_BYTES", 300_000)
    made = exported()
    assert made["metadata"]["px"]["cut"] == [rows[2].id]
    assert "bytes omitted; artifact" in "".join(made["cells"][2]["outputs"][0]["text"])
    monkeypatch.setattr(render, "TEXT_BYTES", 100_000)
    assert exported()["metadata"]["px"]["cut"] == [row.id for row in rows]


def test_a_history_becomes_a_valid_notebook(tmp_path: Path) -> None:
    plain = KernelCellRow("", "s", "call", 0, "", "ok", 0.0, 0.0)

    def row(number: int, **changes: Any) -> KernelCellRow:
        return replace(
            plain, id=f"{number:016x}", code=f"code {number}", execution_count=number, **changes
        )

    rows = [
        row(1, title="The first"),
        row(2, status="aborted"),
        row(3, status="error", error={"name": "E", "value": "\ud800", "traceback": ["t"]}),
        row(4, status="running"),
        row(5, total_bytes=99),
    ]
    writer = writer_of(tmp_path, rows[0].id)
    writer.write("stdout", b"out \xff\n")
    writer.display({"image/png": "A" * 4000})
    finish(writer)
    made = json.dumps(
        export(rows, lambda each: log_of(tmp_path, each.id), LIMITS, session_id="s-1")
    )
    checked = valid(made)
    assert (checked.nbformat, checked.nbformat_minor) == (4, 5)
    assert checked.metadata.kernelspec == {
        "name": "python3",
        "display_name": "Python",
        "language": "python",
    }
    title, first, failed, running, gone = checked.cells
    assert (title.source, first.metadata.title) == ("### The first", "The first")
    assert (first.outputs[0].text, first.outputs[1].data) == (
        "out \ufffd\n",
        {"image/png": "A" * 4000},
    )
    assert (failed.outputs[0].ename, running.outputs) == ("E", [])
    assert "99 bytes of output were removed" in gone.outputs[0].text
    again, _ = cells_of_notebook(made)
    assert again == (Cell("code 1", "The first"), Cell("code 3"), Cell("code 4"), Cell("code 5"))


def test_a_script_is_split_at_its_markers_with_their_titles() -> None:
    script = (
        "import os\n\n# %% Load the data\nx = 1\n#%%\ny = 2\n# %% [markdown] About\n# words\n# %% "
        "Last\nz"
    )
    assert cells_of_script(script) == (
        Cell("import os\n\n"),
        Cell("# %% Load the data\nx = 1\n", "Load the data"),
        Cell("#%%\ny = 2\n"),
        Cell("# %% Last\nz", "Last"),
    )
    assert (
        cells_of_script("\n\n# %% nothing\n\n# %%\n  \n# %% [markdown]\n# text\n")
        == cells_of_script("")
        == ()
    )
    assert [cell.code for cell in cells_of_script("a\r# %% x\r\nb\n# %%")] == [
        "a\r",
        "# %% x\r\nb\n",
    ]


def test_two_kernels_are_prepared_at_most_and_none_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = socket.socketpair()
    monkeypatch.setattr(zygote, "_QUIET_SECONDS", 0.0)

    def prepared(env: dict[str, str] | None) -> str | None:
        return zygote.Parked(ends[0], ends[0].fileno(), (), -1, env).prepare(str(tmp_path / "k"))

    with monkeypatch.context() as patch:
        patch.setattr(zygote, "_is_memory_short", lambda: True)
        assert prepared(dict(os.environ)) is None
    assert prepared(None) is None, "not right after one that ended without an order"
    found = [prepared(dict(os.environ)) for _ in range(3)]
    assert found == [str(tmp_path / "k" / "0"), str(tmp_path / "k" / "1"), None]
    ends[1].send(b"an order")
    (tmp_path / "k" / "0").unlink()
    assert prepared(dict(os.environ)) is None, "what is ordered is carried out first"
    for end in ends:
        end.close()


@pytest.mark.parametrize("fails", [None, "renew", "touch"])
@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_waiting_fork_makes_itself_anew_whenever_its_order_comes(
    is_quiet: bool, fails: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the order if it is quiet, after it otherwise; what fails before is repeated after."""
    kind = (socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeper, owner = socket.socketpair(*kind)
    left, right = socket.socketpair(*kind)
    alive, life = os.pipe()
    steps: list[str] = []
    order = json.dumps({"argv": ["a"], "env": {}, "parks": False}).encode()

    def step(name: str) -> None:
        if name == "renew" and not steps:
            keeper.send(order)  # while it makes itself anew, if it is quiet
        steps.append(name)
        if name == fails and steps.count(name) == 1 and is_quiet:
            raise OSError(errno.EMFILE, "short")

    def become(given: Any, *_: Any) -> list[str]:
        steps.append("become")
        return list(given["argv"])

    monkeypatch.setattr(zygote, "_QUIET_SECONDS", 0.0 if is_quiet else 60.0)
    monkeypatch.setattr(zygote, "_renew_generators", lambda: step("renew"))
    monkeypatch.setattr(zygote, "_become", become)
    if not is_quiet:
        keeper.send(order)
    parked = zygote.Parked(owner, alive, (left, right), 0, None)
    assert parked.take(touch=lambda: step("touch")) == ["a"]
    expected = ["renew", "touch", "become"] if is_quiet else ["become", "renew"]
    if is_quiet and fails == "renew":
        expected = ["renew", "become", "renew"]
    if is_quiet and fails == "touch":
        expected = ["renew", "touch", "become", "renew"]
    assert steps == expected
    keeper.close()
    for fd in (alive, life, *parked._own[1:]):
        os.close(fd)
