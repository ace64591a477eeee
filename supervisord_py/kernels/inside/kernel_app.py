"""ipykernel's application, kernel and session, with what cells of ours need. Nothing differs for other requests."""

from __future__ import annotations

# mypy: allow-untyped-calls
# ipykernel and IPython are typed in parts only.
import asyncio
import faulthandler
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import zmq
from ipykernel import ipkernel, kernelapp
from IPython.core.error import StdinNotImplementedError
from jupyter_client import session as jupyter_session
from traitlets import default

from .cell_writer import STATUS_MIME  # noqa: TID252
from .descriptors import flush_native  # noqa: TID252
from .interrupts import GATE  # noqa: TID252
from .live_cell import LiveCell, Publisher  # noqa: TID252
from .shell import run_to_end, text_of  # noqa: TID252
from .streams import WIRING  # noqa: TID252
from .threads import attribute, parent_of_this_thread  # noqa: TID252

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

NO_TERMINAL = (
    "{name}() was called, but nobody can answer: this cell runs without a terminal. "
    "Put the value into the code instead, e.g. name = 'value', or read it from a file or from os.environ"
)


class Session(jupyter_session.Session):
    """Sends messages, and records those about cells of ours before."""

    def send(
        self, stream: Any, msg_or_type: Any, content: Any = None, parent: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Send; see jupyter_client. What is about a cell of ours is recorded before."""
        message = msg_or_type if isinstance(msg_or_type, dict) else None
        kind = message["header"]["msg_type"] if message else msg_or_type
        if kind not in _RECORDED or os.getpid() != WIRING.cells.pid:
            return super().send(stream, msg_or_type, content, parent, *args, **kwargs)
        if message:
            content, parent = message["content"], message["parent_header"]
        header: Mapping[str, Any] = jupyter_session.extract_header(parent or {})
        if message and kind in _DISPLAYS:
            header = parent_of_this_thread() or header
            message["parent_header"] = dict(header)
        if kind == "execute_reply":
            cell = WIRING.cells.get(header) or WIRING.cells.open(parent)  # not open yet: it was aborted
            if cell is not None and not cell.replied:
                finish(cell, content)
                cell.replied = True
        elif (cell := WIRING.cells.get(header)) is not None:
            if WIRING.capture is not None:
                WIRING.capture.catch_up()
            cell.flush()
            _RECORDED[kind](cell, content)
        return super().send(stream, msg_or_type, content, parent, *args, **kwargs)


def finish(cell: LiveCell, reply: Mapping[str, Any]) -> None:
    """Close a cell: everything that it wrote is in its file, and `end` says how it went."""
    if WIRING.capture is not None:
        flush_native()
        WIRING.capture.release(cell.pipes)
    cell.flush()
    failed = reply.get("status") == "error"
    error = {"name": reply.get("ename"), "value": reply.get("evalue"), "traceback": reply.get("traceback")}
    asked = [each for each in reply.get("payload") or () if each.get("source") == "ask_exit"]
    cell.writer.end(
        str(reply.get("status")),
        execution_count=reply.get("execution_count"),
        duration=time.monotonic() - cell.started,
        ask_exit=any(not each.get("keepkernel") for each in asked),
        error=error if failed else None,
    )


def _display(cell: LiveCell, content: Mapping[str, Any], *, update: bool = False) -> None:
    data = content["data"]
    if STATUS_MIME in data:
        cell.writer.status(data[STATUS_MIME])
        return
    display_id = (content.get("transient") or {}).get("display_id")
    cell.writer.display(data, content.get("metadata"), display_id, update=update)


def _update(cell: LiveCell, content: Mapping[str, Any]) -> None:
    _display(cell, content, update=True)


def _result(cell: LiveCell, content: Mapping[str, Any]) -> None:
    cell.writer.result(content["data"], content.get("metadata") or {}, content.get("execution_count"))


def _clear(cell: LiveCell, content: Mapping[str, Any]) -> None:
    cell.writer.clear(bool(content.get("wait")))


def _error(cell: LiveCell, content: Mapping[str, Any]) -> None:
    cell.writer.error(content["ename"], content["evalue"], content["traceback"])


def _reply(cell: LiveCell, content: Mapping[str, Any]) -> None:
    """Be in the table: replies are recorded by `finish`."""


_DISPLAYS = {"display_data": _display, "update_display_data": _update, "clear_output": _clear}
_RECORDED = {**_DISPLAYS, "execute_result": _result, "error": _error, "execute_reply": _reply}


_ANYTHING = (KeyboardInterrupt, asyncio.CancelledError, Exception)


class IPythonKernel(ipkernel.IPythonKernel):
    """Runs cells of ours with their output captured, and every other request as ipykernel does."""

    def pre_handler_hook(self) -> None:
        """Before a request is handled: SIGINT is let in, for cells of ours only into their code."""
        if WIRING.cells.concerns(self.get_parent("shell") or {}):
            self.saved_sigint_handler = GATE.arm()
        else:
            super().pre_handler_hook()

    def post_handler_hook(self) -> None:
        """After it was handled: SIGINT does what it did before."""
        if threading.current_thread() is threading.main_thread():
            GATE.disarm()  # from here on nobody would catch it
            super().post_handler_hook()

    async def execute_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Run one cell."""
        cell = WIRING.cells.open(parent)
        if cell is None:
            await super().execute_request(stream, ident, parent)
            return
        try:
            cell.number = self.execution_count
            cell.pipes = None if WIRING.capture is None else WIRING.capture.claim(cell)
            WIRING.put_right(parent)
            with _lines_without_input(self.shell, parent):
                await super().execute_request(stream, ident, parent)
        except _ANYTHING as error:  # ipykernel logs it, and the client waits for ever
            if not cell.replied:
                self._answer_for(error, stream, ident, parent, cell.number)

    def _answer_for(self, error: BaseException, stream: Any, ident: Any, parent: Any, number: int | None) -> None:
        """Reply to a request of ours that was broken off outside of the user's code."""
        content: dict[str, Any] = {
            "status": "error",
            "ename": type(error).__name__,
            "evalue": str(error),
            "traceback": [type(error).__name__ + ": " + str(error)],
            "execution_count": number,
            "user_expressions": {},
            "payload": [],
        }
        WIRING.put_right(parent)
        raised = {key: content[key] for key in ("ename", "evalue", "traceback")}
        session: Any = self.session
        session.send(self.iopub_socket, "error", raised, parent, ident=self._topic("error"))
        session.send(stream, "execute_reply", content, parent, ident=ident)
        if parent["content"].get("stop_on_error", True):
            self._abort_queues()

    def raw_input(self, prompt: str = "") -> str:
        """Ask the client; for cells of ours, say that there is nobody to ask."""
        self._need_somebody("input")
        return str(super().raw_input(prompt))

    def getpass(self, *args: Any, **kwargs: Any) -> str:
        """Ask the client for a secret; for cells of ours, say that there is nobody to ask."""
        self._need_somebody("getpass")
        return super().getpass(*args, **kwargs)

    def _need_somebody(self, name: str) -> None:
        header = jupyter_session.extract_header(self.get_parent("shell") or {})
        if not self._allow_stdin and WIRING.cells.get(header or {}) is not None:
            raise StdinNotImplementedError(NO_TERMINAL.format(name=name))

    @contextmanager
    def _cancel_on_sigint(self, future: Any) -> Iterator[None]:
        """Cancel an `await` on SIGINT, now and not when the loop happens to wake."""
        with super()._cancel_on_sigint(future), GATE.awaiting(future):
            yield


@contextmanager
def _lines_without_input(shell: Any, request: Mapping[str, Any]) -> Iterator[None]:
    """Let `!command` lines of a cell of ours find the end of their input at once; IPython's own would wait for ever.

    Where the client can answer, or somebody put another way there, nothing is changed.
    """
    if shell is None or request["content"].get("allow_stdin") or "system" in vars(shell):
        yield
        return

    def system(command: str) -> None:
        """Run a shell line; its exit code is in `_exit_code`."""
        expanded = str(shell.var_expand(command, depth=1))
        arguments = [shutil.which(os.environ.get("SHELL") or "sh") or "/bin/sh", "-c", expanded]
        with tempfile.TemporaryFile() as file:
            is_captured = sys.stdout is not WIRING.streams.get("stdout")  # by %%capture, say
            out = file if is_captured else 1
            code, _ = run_to_end(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            if is_captured:
                sys.stdout.write(text_of(file))
        shell.user_ns["_exit_code"] = code
        if code != 0 and getattr(shell, "system_raise_on_error", False):
            raise subprocess.CalledProcessError(code, expanded)

    shell.system = system
    try:
        yield
    finally:
        if vars(shell).get("system") is system:
            del shell.system


class IPKernelApp(kernelapp.IPKernelApp):
    """ipykernel's application with our streams, session and kernel."""

    @default("kernel_class")
    def _kernel_class_default(self) -> type[IPythonKernel]:
        return IPythonKernel

    @default("session")
    def _session_default(self) -> Session:
        return Session(parent=self)

    @default("outstream_class")
    def _outstream_class_default(self) -> str:
        return WIRING.__class__.__module__ + ".OutStream"

    def log_connection_info(self) -> None:
        """Keep ipykernel's advice for terminals to itself: a kernel that dies would have it as its last words."""
        printed = sys.__stdout__
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            setattr(sys, "__stdout__", nowhere)  # noqa: B010 - it is Final for type checkers
            try:
                super().log_connection_info()
            finally:
                setattr(sys, "__stdout__", printed)  # noqa: B010

    def _bind_socket(self, s: Any, port: int) -> int:
        """Welcome every subscriber of iopub, not only the first one of a topic: the daemon is always there before."""
        if s.type == zmq.XPUB:
            s.setsockopt(zmq.XPUB_VERBOSE, 1)
        return int(super()._bind_socket(s, port))

    def init_io(self) -> None:
        """Take the streams over; from here on a native crash reports to the original stderr."""
        super().init_io()
        WIRING.cells.publisher = Publisher(jupyter_session.Session.send.__get__(self.session), self.iopub_thread)
        if WIRING.capture is not None:
            faulthandler.enable(file=WIRING.capture.original["stderr"])
        attribute(_current_parent, _adopt_parent)


def _current_parent() -> Mapping[str, Any] | None:
    outstream = WIRING.streams.get("stdout")
    header = None if outstream is None else outstream.parent_header
    return header if header and WIRING.cells.get(header) is not None else None


def _adopt_parent(header: Mapping[str, Any]) -> None:
    for outstream in WIRING.streams.values():
        outstream.set_own_parent(header)


def run(arguments: Any, offered: Mapping[str, Any]) -> None:
    """Be the kernel until it is told to end.

    Args:
        arguments: For ipykernel.
        offered: Names that user code finds, unless it makes them its own.
    """
    app = IPKernelApp.instance()
    app.config.HistoryManager.hist_file = (
        ":memory:"  # nobody asks a kernel of ours for yesterday, and the disk takes time
    )
    app.initialize(arguments)
    GATE.surround(app.shell)
    offer(app.shell, offered)
    app.start()


def offer(shell: Any, offered: Mapping[str, Any]) -> None:
    """Put names into the user's namespace, now and whenever `%reset` has emptied it; what is there stays."""
    init_user_ns = shell.init_user_ns

    def init_with_names() -> None:
        init_user_ns()
        for name, value in offered.items():
            if shell.user_ns.setdefault(name, value) is value:
                shell.user_ns_hidden[name] = value

    shell.init_user_ns = init_with_names
    init_with_names()
