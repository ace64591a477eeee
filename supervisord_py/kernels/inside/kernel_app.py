"""ipykernel's application, kernel, shell and session, with what cells of ours need. Other requests
see no difference.

SIGINT ends user code and nothing else. ipykernel raises KeyboardInterrupt from before it calls the
handler of a request until after that has returned: in its own code that means no reply, or no
kernel. For cells of ours the handler looks where it is: above user code it raises; before, it
remembers, and raises when the code begins; later it does nothing.
"""

from __future__ import annotations

# mypy: allow-untyped-calls
# ipykernel and IPython are typed in parts only.
import asyncio
import atexit
import contextlib
import faulthandler
import fcntl
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

import zmq
from ipykernel import ipkernel, kernelapp, zmqshell
from IPython.core.autocall import ZMQExitAutocall
from IPython.core.events import EventManager
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client import session as jupyter_session
from jupyter_client.connect import port_names
from traitlets import Type, default
from traitlets.config import Config

from .cell_writer import exit_code_of  # noqa: TID252
from .prelude import offered, run_to_end  # noqa: TID252
from .streams import CELLS, CURRENT, NUMBERS, attribute_threads  # noqa: TID252

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType
    from typing import Any

    from .streams import OwnCell  # noqa: TID252

DESCRIPTORS_AHEAD = 255
LAST_WORDS_SECONDS = 1.0
_FOLDER = os.path.dirname(__file__)
_DISPLAYS = ("display_data", "update_display_data", "clear_output")
_RECORDED = (*_DISPLAYS, "execute_result", "error", "execute_reply")


class Session(jupyter_session.Session):
    """Sends messages, and records those about cells of ours before."""

    def send(
        self,
        stream: Any,
        msg_or_type: Any,
        content: Any = None,
        parent: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        message = msg_or_type if isinstance(msg_or_type, dict) else None
        kind = message["header"]["msg_type"] if message else msg_or_type
        if kind in _RECORDED and os.getpid() == CELLS.pid:
            current = CELLS.output_cell(CURRENT.get())
            if message and current is not None and kind in _DISPLAYS:
                # of the thread or task, which may be a late one
                message["parent_header"] = current.header
            header = (
                message["parent_header"]
                if message
                else jupyter_session.extract_header(parent or {})
            )
            self._record(kind, message["content"] if message else content, header, parent)
        return super().send(stream, msg_or_type, content, parent, *args, **kwargs)

    def _record(
        self, kind: str, content: dict[str, Any], header: Mapping[str, Any], request: Any
    ) -> None:
        cell = CELLS.get(header)
        if cell is None and kind == "execute_reply":
            cell = CELLS.open(request)  # not open yet: it was aborted
        if cell is None:
            return
        for each in CELLS.streams.values():
            each.publish()
        if kind != "execute_reply":
            cell.writer.message(kind, content)
            return
        if cell.exit is not None and content.get("ename") == cell.exit[0]:
            content["px_exit_code"] = cell.exit[1]
        # everything that it wrote is in its files, and `end` says how it went
        CELLS.give_back(cell)
        cell.writer.reply(content)


class Exit(ZMQExitAutocall):
    """`exit` and `quit`. In cells of ours nothing behind the call is run, and a number is the exit
    code.

    Without one, or with 0, the session ends, as IPython has it.
    """

    def __call__(self, keep_kernel: object = False) -> None:
        if CURRENT.get() is None or keep_kernel is True:
            super().__call__(keep_kernel)
            return
        if not keep_kernel:
            super().__call__()
        raise SystemExit(keep_kernel or 0)


class ZMQInteractiveShell(zmqshell.ZMQInteractiveShell):
    """ipykernel's shell.

    `offered`: what user code finds, unless it makes the names its own; `news`: of its import.
    """

    offered: Mapping[str, Any] = MappingProxyType({})
    news = ""

    @default("exiter")
    def _exit_default(self) -> Exit:
        return Exit(self)

    async def run_code(self, *args: Any, **kwargs: Any) -> Any:
        """Run user code; an interrupt that came before it is raised here."""
        INTERRUPTS.deliver()
        return await super().run_code(*args, **kwargs)

    async def run_ast_nodes(self, *args: Any, **kwargs: Any) -> Any:
        """Run the statements of a cell."""
        has_failed = await super().run_ast_nodes(*args, **kwargs)
        if os.getpid() != CELLS.pid and CURRENT.get() is not None:
            # A cell forked, and this is the child. A copy of the kernel would read the same sockets
            # for ever.
            _end_forked_child(failed=bool(has_failed))
        return has_failed

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        """Show what was raised; an interrupt without our frames, whose sources say nothing to
        users.

        A cell of ours that ends by SystemExit ends as a program does: silently, but for an exit
        "code" that is a text.
        """
        kind, error, trace = sys.exc_info()
        cell = CURRENT.get()
        if (
            cell is not None
            and isinstance(error, SystemExit)
            and trace is not None
            # and not `%run`, which goes on
            and trace.tb_frame.f_code is InteractiveShell.run_code.__code__
        ):
            cell.exit = (type(error).__name__, exit_code_of(error.code))
            if cell.exit[1] == 1 and not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
            self._last_traceback: list[str] = []  # which ipykernel replies with: nothing was shown
            # IPython's advice, which it gives after this.
            warnings.filterwarnings("ignore", "To exit: use 'exit'")
            return
        if kind is KeyboardInterrupt and trace is not None:
            while (
                trace.tb_next is not None
                and not trace.tb_next.tb_frame.f_code.co_filename.startswith(_FOLDER)
            ):
                trace = trace.tb_next
            trace.tb_next = None
        super().showtraceback(*args, **kwargs)

    def init_user_ns(self) -> None:
        super().init_user_ns()
        self.offer()

    def offer(self) -> None:
        for name, value in self.offered.items():
            if self.user_ns.setdefault(name, value) is value:
                self.user_ns_hidden[name] = value

    def system(self, command: str) -> None:
        """Run a `!` line; its exit code is in `_exit_code`.

        In cells of ours its input is at its end.
        """
        is_captured = sys.stdout is not CELLS.streams.get("stdout")  # by %%capture, say
        if (
            CURRENT.get() is None
            or is_captured
            or (self.kernel is not None and self.kernel._allow_stdin)
        ):
            super().system(command)
            return
        expanded = str(self.var_expand(command, depth=1))
        arguments = [shutil.which(os.environ.get("SHELL") or "sh") or "/bin/sh", "-c", expanded]
        code, _ = run_to_end(arguments, stdin=subprocess.DEVNULL, stdout=1, stderr=1)
        self.user_ns["_exit_code"] = code


def _end_forked_child(*, failed: bool) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it is whatever user code made of it
            stream.flush()
    cell = CURRENT.get()
    code = int(failed)
    if failed and cell is not None and cell.exit is not None:
        code = cell.exit[1]
    os._exit(code)


class Interrupts:
    """What SIGINT does around a cell of ours. Signal handlers are the main thread's."""

    _came = False

    def arm(self) -> Any:
        """Take SIGINT over for a cell of ours; return the handler that was in force."""
        self._came = False
        return signal.signal(signal.SIGINT, self._handle)

    def deliver(self) -> None:
        came, self._came = self._came, False
        if came:
            raise KeyboardInterrupt

    @contextmanager
    def awaiting(self, cell: asyncio.Future[Any]) -> Iterator[None]:
        """Interrupt an asynchronous cell, now and not when the loop happens to wake (ipykernel
        #881).
        """
        loop = cell.get_loop()

        def handle(_number: int, frame: FrameType | None) -> None:
            if _is_user_code(frame):
                raise KeyboardInterrupt
            if asyncio.current_task(loop) is cell:
                self._came = True  # between two statements: raised when the next one begins
            else:
                cell.cancel()
                loop.call_soon_threadsafe(int)  # any call: the loop wakes

        before = signal.signal(signal.SIGINT, handle)
        _let_signals_wake(loop)
        if self._came:
            signal.raise_signal(signal.SIGINT)
        try:
            yield
        finally:
            self._came = False
            signal.signal(signal.SIGINT, before)

    def _handle(self, _number: int, frame: FrameType | None) -> None:
        if _is_user_code(frame):
            raise KeyboardInterrupt
        self._came = True


def _let_signals_wake(loop: Any) -> None:
    """Have C wake the loop: Python sees a signal that comes right before it sleeps only when it
    wakes by itself.

    A descriptor of somebody else stays.
    """
    socket = getattr(loop, "_csock", None)  # no other name for it; uvloop has its own
    if socket is not None:
        there = signal.set_wakeup_fd(socket.fileno(), warn_on_full_buffer=False)
        if there not in {-1, socket.fileno()}:
            signal.set_wakeup_fd(there)


INTERRUPTS = Interrupts()
# Cells, callbacks such as the drawing of figures, and expressions: the calls that lead to a user's
# code.
_LEADING = (
    ZMQInteractiveShell.run_code.__code__,
    EventManager.trigger.__code__,
    InteractiveShell.user_expressions.__code__,
)


def _is_user_code(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code not in _LEADING:
        frame = frame.f_back
    return frame is not None


class IPythonKernel(ipkernel.IPythonKernel):
    """Runs cells of ours with their files as descriptors, and every other request as ipykernel
    does.
    """

    shell_class = Type(ZMQInteractiveShell)

    def pre_handler_hook(self) -> None:
        """Before a request is handled: SIGINT is let in, for cells of ours only into their code."""
        if ((self.get_parent("shell") or {}).get("metadata") or {}).get("px") is None:
            super().pre_handler_hook()
        else:
            self.saved_sigint_handler = INTERRUPTS.arm()

    def post_handler_hook(self) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # from here on nobody would catch it
            super().post_handler_hook()

    async def do_execute(self, *arguments: Any, **options: Any) -> Any:
        """Run a cell.

        A process that the cell has forked ends here: it would go on as a second kernel.
        """
        pid = os.getpid()
        try:
            return await super().do_execute(*arguments, **options)
        finally:
            if os.getpid() != pid:
                for written in (sys.stdout, sys.stderr):
                    with suppress(Exception):
                        written.flush()
                os._exit(0)  # what was registered for the kernel's own exit is not for this process

    async def execute_request(self, stream: Any, ident: Any, parent: Any) -> None:
        cell = CELLS.open(parent)
        token = CURRENT.set(cell)
        try:
            if cell is None:
                await super().execute_request(stream, ident, parent)
            else:
                await self._run_ours(cell, stream, ident, parent)
        finally:
            CURRENT.reset(token)

    async def _run_ours(self, cell: OwnCell, stream: Any, ident: Any, parent: Any) -> None:
        number, pause = self.execution_count, self._execute_sleep
        try:
            # it lets outputs overtake the reply: those of ours are read from files
            self._execute_sleep = 0.0
            CELLS.take_descriptors(cell)
            CELLS.set_parent(parent)
            news, ZMQInteractiveShell.news = ZMQInteractiveShell.news, ""
            sys.stderr.write(news)
            with self._as_script(cell.file):
                await super().execute_request(stream, ident, parent)
        except (KeyboardInterrupt, asyncio.CancelledError, Exception) as error:
            if not cell.writer.ended:  # ipykernel would log it, and the client would wait for ever
                CELLS.set_parent(parent)
                self._answer_for(error, stream, ident, parent, number)
        finally:
            self._execute_sleep = pause

    @contextmanager
    def _as_script(self, file: str | None) -> Iterator[None]:
        """While a cell of a script runs, have it find what `python FILE` gives a script; `%run`
        does the same.

        That is `__file__`, `sys.argv`, and modules beside the file before all others.
        """
        if file is None:
            yield
            return
        names: dict[str, Any] = self.shell.user_ns  # type: ignore[union-attr]
        before = names.get("__file__")
        arguments = sys.argv
        folder = os.path.dirname(file)
        names["__file__"] = file
        sys.argv = [file]
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.argv = arguments
            with contextlib.suppress(ValueError):  # user code may have taken it away
                sys.path.remove(folder)
            names.pop("__file__", None)
            if before is not None:
                names["__file__"] = before

    def _answer_for(
        self, error: BaseException, stream: Any, ident: Any, parent: Any, number: int | None
    ) -> None:
        """Reply to a request of ours that was broken off outside of the user's code."""
        name, session = type(error).__name__, self.session
        raised = {"ename": name, "evalue": str(error), "traceback": [name + ": " + str(error)]}
        content: Any = {
            "status": "error",
            "execution_count": number,
            "user_expressions": {},
            "payload": [],
            **raised,
        }
        session.send(self.iopub_socket, "error", raised, parent, ident=self._topic("error"))  # type: ignore[union-attr]
        session.send(stream, "execute_reply", content, parent, ident=ident)  # type: ignore[union-attr]
        if parent["content"].get("stop_on_error", True):
            self._abort_queues()

    def _cancel_on_sigint(self, future: Any) -> Any:
        return INTERRUPTS.awaiting(future)


class IPKernelApp(kernelapp.IPKernelApp):
    """`take` gives arguments and folders of modules, once they are ordered; what is prepared has
    sockets at `place`.
    """

    take: Any = None
    place: str | None = None

    @default("session")
    def _session_default(self) -> Session:
        return Session(parent=self)

    def parse_command_line(self, argv: Any = None) -> None:
        """Take the one argument that we give; a parser of all that ipykernel knows takes a fifth
        of a start to make.
        """
        if argv is not None and len(argv) == 2 and argv[0] == "-f":
            self.cli_config = Config({"IPKernelApp": {"connection_file": argv[1]}})
            self.update_config(self.cli_config)
        else:
            super().parse_command_line(argv)

    def load_config_file(self, *args: Any, **kwargs: Any) -> None:
        """Read the user's configuration, in the user's folder: where there is any, nothing is
        prepared.
        """
        if self.place is None:
            super().load_config_file(*args, **kwargs)
        elif self._is_configured():
            os._exit(0)

    def _is_configured(self) -> bool:
        names = {os.path.splitext(name)[0] for name in ("ipython_config.py", *self.config_files)}
        files = (os.path.join(folder, name) for folder in self.config_file_paths for name in names)
        return any(os.path.exists(file + kind) for file in files for kind in (".py", ".json"))

    def init_connection_file(self) -> None:
        if self.place is None:
            super().init_connection_file()
            return
        self.transport, self.ip = "ipc", self.place
        for left in glob.glob(self.place + "-*"):  # by one that was killed
            os.unlink(left)

    def write_connection_file(self, **kwargs: Any) -> None:
        if self.place is None:
            super().write_connection_file(**kwargs)

    def init_gui_pylab(self) -> None:
        """Where a kernel is prepared, become the one that is ordered; what comes now depends on
        the user.
        """
        if self.place is not None:
            self._take_order()
        super().init_gui_pylab()

    def _take_order(self) -> None:
        shell: Any = self.shell
        for name in self.default_extensions:
            shell.extension_manager.load_extension(name)
        # most of what a first cell costs more than a second one
        shell.run_cell("pass", silent=True)
        sockets = {name: f"{self.ip}-{getattr(self, name)}" for name in port_names}
        captures = {number: os.dup(number) for number in NUMBERS.values()}

        def fits(words: list[str]) -> bool:
            """Say whether this is what was prepared; its sockets are where they are to be, then."""
            if len(words) != 2 or self._is_configured():
                return False
            try:
                with open(words[1], encoding="utf-8") as file:
                    wanted = json.load(file)
                for name, path in sockets.items():
                    os.rename(path, f"{wanted['ip']}-{wanted[name]}")
            except OSError:
                return False
            return True

        arguments, modules = self.take(
            fits, lambda: list(map(os.unlink, glob.glob(self.ip + "-*")))
        )
        for name, number in NUMBERS.items():
            original = getattr(CELLS.streams[name], "_original_stdstream_copy", None)
            # what is written to 1 and 2 goes through the kernel, and this is what they were
            if original is not None:
                os.dup2(number, original)
                os.dup2(captures[number], number)
            os.close(captures[number])
        for name in sockets:
            setattr(self, name, 0)  # so that the file's counts
        self.place = None
        self.parse_command_line(arguments)
        self.load_connection_file()
        ZMQInteractiveShell.offered, ZMQInteractiveShell.news = offered(modules)
        shell.starting_dir = os.getcwd()
        shell.history_manager.reset(new_session=False)  # which remembers the folder, too
        shell.offer()

    def log_connection_info(self) -> None:
        """Keep ipykernel's advice for terminals to itself: a kernel that dies would have it as
        its last words.
        """

    def _bind_socket(self, s: Any, port: int) -> int:
        """Welcome every subscriber of iopub, not only the first one of a topic: the daemon is
        always there before.
        """
        if s.type == zmq.XPUB:
            s.setsockopt(zmq.XPUB_VERBOSE, 1)
        return int(super()._bind_socket(s, port))

    def init_io(self) -> None:
        """Take the streams over; from here on a native crash reports to the original stderr."""
        super().init_io()
        original = getattr(CELLS.streams.get("stderr"), "_original_stdstream_copy", None)
        if original is not None:
            faulthandler.enable(file=original)
        attribute_threads()

    def init_iopub(self, context: Any) -> None:
        super().init_iopub(context)
        # before iopub's own end, which closes the sockets of other threads
        atexit.register(self._end_control)

    def _end_control(self) -> None:
        """Let the control thread say its last words: their sockets would be closed under its
        hands (an abort).
        """
        if self.control_thread is not None and self.control_thread.is_alive():
            self.control_thread.stop()
            self.control_thread.join(LAST_WORDS_SECONDS)


def _grow_descriptor_table() -> None:
    """Have the kernel grow this process's table of descriptors while there is a single thread.

    Linux grows it at 64, 128, … descriptors. With several threads it then waits for all processors
    (synchronize_rcu): some 10 ms, in the middle of the first cell. It never shrinks, but in a fork.
    """
    with suppress(OSError):  # the limit is lower
        os.close(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, DESCRIPTORS_AHEAD))


def run(take: Any, place: str | None) -> None:
    """Be the kernel until it is told to end; see `IPKernelApp` for both."""
    CELLS.pid = os.getpid()  # this may have been forked since it was imported
    _grow_descriptor_table()
    app = IPKernelApp.instance(
        kernel_class=IPythonKernel, outstream_class=__package__ + ".streams.OutStream"
    )
    # nobody asks for yesterday's, and the disk takes time
    app.config.HistoryManager.hist_file = ":memory:"
    app.take, app.place, arguments = take, place, ["-f", ""]
    if place is None:
        arguments, modules = take()
        ZMQInteractiveShell.offered, ZMQInteractiveShell.news = offered(modules)
    try:
        app.initialize(arguments)
    except BaseException:
        if app.place is None:
            raise
        traceback.print_exc(file=sys.__stderr__)
        os._exit(1)  # nobody asked for it: its threads are not waited for
    # after os.chdir imports from the folder of the start go on
    if "" in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(sys.path.index("") + 1, os.getcwd())
    app.start()
