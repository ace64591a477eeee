"""A rehearsal: this version of the keeper, started in full as a child of the one that runs, which
takes nothing over.

It imports every module of this package, builds a keeper from a copy of the hand-over, runs its
loop, and starts a control plane that loads everything, greets its keeper, and exits. Exit code 0
and TRIAL_PASSED as the last line of the output mean: this version could serve. Otherwise the last
line says what speaks against it.

Nothing is shared with the keeper that runs: the descriptors of the hand-over are replaced by pipes
of its own, its directories by a temporary one, and no process is signalled.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import signal
import tempfile

from supervisord_py.keeper.boot import Birth
from supervisord_py.keeper.journal import Journal
from supervisord_py.keeper.main import Keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from supervisord_py.keeper.boot import Boot
    from supervisord_py.keeper.parts import KeeperParts

TRIAL_WORD = "--check"
"""Of the keeper's command line, and of its control plane's."""
FOLDER_PREFIX = "trial-"
MANAGER_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class TrialFailedError(Exception):
    """This version could not serve."""


class QuietJournal(Journal):
    """Writes nothing: the only word of a trial is what speaks against this version."""

    def _write(self, level: str, event: str, **facts: Any) -> None:
        pass


def rehearse(boot: Boot) -> None:
    """Rehearse. Raises TrialFailedError, CannotGoOnError, or whatever this version breaks with."""
    _import_everything()
    document = boot.handover
    if document is None:
        raise TrialFailedError("a trial needs a hand-over")
    for name in MANAGER_VARIABLES:
        os.environ.pop(name, None)
    for name in os.listdir(boot.run_dir):
        if name.startswith(FOLDER_PREFIX):  # of a trial that was killed because it was late
            shutil.rmtree(f"{boot.run_dir}/{name}", ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=boot.run_dir)
    try:
        _separate(boot, folder)
        birth = Birth(boot)
        birth.inherited = []  # nothing of this process goes on
        # With a hand-over in its boot document a keeper neither sweeps nor founds a cgroup.
        keeper = Keeper(boot, birth, QuietJournal())
        keeper.take_over(_with_descriptors_of_its_own(document), is_trial=True)
        _check_stops(document)
        _see_a_control_plane(keeper.parts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _import_everything() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    for module in pkgutil.iter_modules([folder]):
        importlib.import_module(f"supervisord_py.keeper.{module.name}")


def _separate(boot: Boot, folder: str) -> None:
    boot.run_dir = folder
    boot.log_dir = folder
    boot.exit_records_path = ""
    boot.socket_owned = False
    boot.listen_fd = -1
    boot.lock_fd = -1
    boot.kept_fds = {}
    boot.control_argv = [*boot.control_argv, TRIAL_WORD]


def _with_descriptors_of_its_own(document: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a hand-over in which every descriptor is a pipe that was opened here."""
    children = []
    for child in document["children"]:
        pipes = [[_pipe(), stream, instance] for _, stream, instance in child["pipes"]]
        report = _pipe() if child["report"] >= 0 else -1
        children.append({**child, "pipes": pipes, "report": report})
    stored = {name: _pipe() for name in document["stored"]}
    return {**document, "children": children, "stored": stored}


def _pipe() -> int:
    """Return the read end of a pipe whose other end stays open as long as this process lives."""
    reader, _ = os.pipe()
    os.set_blocking(reader, False)
    return reader


def _check_stops(document: dict[str, Any]) -> None:
    keys = {child["key"] for child in document["children"]}
    for key, until in document["stops"].items():
        if key not in keys or not isinstance(until, float | int):
            raise TrialFailedError(f"the stop of {key} cannot be gone on with")


def _see_a_control_plane(parts: KeeperParts) -> None:
    """Run the loop until a control plane has greeted and ended well."""
    codes: list[int] = []
    parts.control.ended = codes.append
    was_greeted = False

    def keep_control(now: float) -> float | None:
        nonlocal was_greeted
        was_greeted = was_greeted or parts.control.machine.is_greeted
        return parts.control.reconcile(now, is_needed=not codes)

    def end_the_loop(_now: float) -> None:
        if codes:
            parts.loop.stop()

    parts.loop.reconcile_with(parts.control.reap, keep_control, end_the_loop)
    parts.loop.run()  # to the end of the control plane, or of the patience of the keeper that runs
    if codes[0] < 0:
        raise TrialFailedError(f"its control plane was ended by {signal.Signals(-codes[0]).name}")
    if codes[0] > 0:
        raise TrialFailedError("")  # it has said why on the line before
    if not was_greeted:
        raise TrialFailedError("its control plane ended without a word to the keeper")
