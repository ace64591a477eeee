"""The control plane's process: `python -m supervisord_py.daemon.control`, started by the keeper,
never by a user.

Descriptors: 3 is the channel to the keeper, 4 the control socket, 5 the lock. Exit: 0 ended as
asked · 1 something of ours broke (the keeper starts another one) · 78 bad settings, or a ledger
that cannot be used as it is: starting again would fail again, so the keeper ends, too. When the
keeper is lost this process becomes the sweep that leaves nothing of its children alive, still
holding the lock.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

TRIAL_WORD = "--check"
"""On the command line after the order: only say whether this version could serve."""

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from supervisord_py.daemon.settings import ControlOrder


def main() -> int:
    """Load everything quickly, then run one control plane to its end; return its exit code."""
    started_at = time.time()
    faulthandler.enable()
    with suppress(OSError):  # what ps and pgrep show; nothing but Linux has it
        Path("/proc/self/comm").write_bytes(b"pxd: control")
    # The terminal tells the keeper as well, and the keeper tells us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Imports make tens of thousands of objects that live for ever: collecting among them costs a
    # tenth of the start.
    gc.disable()
    # structlog loads rich wherever it is installed, for tracebacks that we print plainly: a fifth
    # of the start. jsonschema loads a grammar of addresses that no notebook has: a second before
    # the first one runs.
    for unused in ("rich", "rfc3987_syntax"):
        sys.modules.setdefault(unused, None)  # type: ignore[arg-type]  # None means 'not there' to the import system
    import msgspec
    import structlog

    from supervisord_py.daemon import control_plane  # noqa: F401  # what takes long
    from supervisord_py.daemon.logging import configure_log
    from supervisord_py.daemon.settings import ControlOrder
    from supervisord_py.errors import EXIT_BAD_SETTINGS, EXIT_FAILED, PxError

    gc.freeze()
    gc.enable()
    order = msgspec.json.decode(sys.argv[1], type=ControlOrder)
    if TRIAL_WORD in sys.argv[2:]:
        return rehearse(order)
    for fd in order.fds:
        os.set_inheritable(fd, False)
    os.umask(0o077)
    # Python makes a number of its digits in a time that grows with their square; JSON from clients
    # may be full of them.
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
    configure_log("info")
    log = structlog.get_logger(__name__)
    try:
        return _run(order, started_at, log)
    except PxError as error:
        log.error("control_failed", kind=error.kind, detail=error.detail, hint=error.hint)
        return EXIT_BAD_SETTINGS if error.exit_code == EXIT_BAD_SETTINGS else EXIT_FAILED
    except Exception:
        log.exception("control_crashed")
        return EXIT_FAILED


def rehearse(order: ControlOrder) -> int:
    """Tell a keeper that tries this version whether a control plane of it could serve; see
    keeper/trial.py.

    Everything is imported by now. Here the settings are read and the keeper is greeted; nothing is
    written, nobody is adopted, and nothing is cleaned up at the end. Returns the exit code; why it
    could not is the last line of stderr.
    """
    from supervisord_py.daemon.settings import recall_valid
    from supervisord_py.daemon.settings_reader import read_settings
    from supervisord_py.errors import EXIT_FAILED, PxError
    from supervisord_py.keeper.protocol import PROTOCOL, FrameSocket

    channel_fd, _, _ = order.fds
    try:
        if recall_valid(order.flags.paths().run_dir) is None:
            read_settings(order.flags)
    except PxError as error:
        print(error.detail.replace("\n", "; "), file=sys.stderr)
        return EXIT_FAILED
    replies: list[dict[str, Any]] = []
    with socket.socket(fileno=channel_fd) as channel:
        frames = FrameSocket(channel)
        frames.push({"id": 1, "verb": "hello", "protocol": PROTOCOL})
        frames.flush()
        broken = None
        while not replies and broken is None:
            select.select([channel], [], [])
            broken = frames.read(lambda message, _fds: replies.append(message))
    if not replies or replies[0].get("ok") is not True:
        print(f"the keeper refuses this control plane: {replies or broken}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def _run(order: ControlOrder, started_at: float, log: Any) -> int:
    import asyncio

    from supervisord_py.daemon import control_plane
    from supervisord_py.daemon.lock import adopt_socket
    from supervisord_py.daemon.logging import set_level
    from supervisord_py.daemon.settings import daemon_id, keeper_argv, recall_valid

    channel_fd, listen_fd, lock_fd = order.fds
    paths = order.flags.paths()
    loaded = recall_valid(paths.run_dir)  # what pxd or a reload validated
    if loaded is None:
        # pydantic, after an upgrade in place
        from supervisord_py.daemon.settings_reader import read_settings

        loaded = read_settings(order.flags)
    set_level(loaded.settings.daemon.log_level)
    for warning in loaded.warnings:
        log.warning("settings_odd", detail=warning)
    # A duplicate of our end. Nobody closes it but the kernel, with the process: to the keeper, the
    # end of the channel means that we must be killed.
    guard = os.dup(channel_fd)
    channel, listening = socket.socket(fileno=channel_fd), adopt_socket(listen_fd)

    def trouble(_: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        error = context.get("exception")
        log.error(
            "loop_trouble",
            detail=str(context.get("message", "")),
            error=repr(error) if error else None,
        )

    async def live() -> control_plane.Shutdown:
        asyncio.get_running_loop().set_exception_handler(trouble)
        try:
            return await control_plane.run(order.flags, loaded, channel, listening, started_at)
        finally:
            # Nobody holds the other end: a keeper that is only slow, or broke the protocol, still
            # does.
            poll = select.poll()
            poll.register(guard, 0)
            if any(what & select.POLLHUP for _, what in poll.poll(0)):
                # Kill by mark, group and record what it held; the lock goes with us: nobody starts
                # meanwhile.
                os.set_inheritable(lock_fd, True)
                argv = keeper_argv(paths, loaded.settings, order.flags, "--sweep", lock_fd=lock_fd)
                log.warning("sweeping", daemon_id=daemon_id(paths.state_dir))
                os.execv(argv[0], argv)  # noqa: S606 - to become the sweep, without a shell, is the point

    ended = asyncio.run(live())
    log.info("control_ended", wish=ended.name.lower())
    return 0 if ended is not control_plane.Shutdown.KEEPER_LOST else 1


def try_main() -> int:
    """Run a trial; what this version breaks with, and where, is the last line of stderr."""
    try:
        return main()
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = ""
        if trace is not None and not isinstance(error, SyntaxError):  # whose text has its place
            place = (
                f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno})"
            )
        print(f"{type(error).__name__}: {error}{place}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(try_main() if TRIAL_WORD in sys.argv[2:] else main())
