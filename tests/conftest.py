"""What all rooms' tests share: short directories, honest skips, and a last look at what was left behind.

Law: after the last test no process and no mount of this session exists. A process belongs to the session when its
environment names the session's directory or its token, or bears the mark of a daemon whose state lay in that directory
(children get an allow-listed environment, so the mark is all that they have).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import warm_client
from beside import end_all
from rounds import DEEP
from waiting import remove_group

SESSION_MARK = "TEST_SESSION_OF_PX"
"""Not `PX_…`: the daemon reads those as settings."""
ELSEWHERE = ("only on macOS", "measured", "not shown here")
"""Beginnings of reasons for which a skip is right even in CI: the test is about another system, coverage would falsify
what it measures (the Makefile's target `unmeasured` runs those), or .ci/run could not install what it needs."""
LINGER_SECONDS = 60.0
# No test is timed: how long an example takes, or hypothesis to make one, tells of the machine only.
settings.register_profile(
    "ours",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    max_examples=200 if DEEP else 25,
    stateful_step_count=60 if DEEP else 40,
)
settings.load_profile("ours")
STATE_DEPTH = 4
LONG = (
    "tests/e2e/",
    "tests/kernels/",
    "tests/jupyter/",
    "tests/daemon/test_daemon_life.py",
    "tests/tools/test_sync.py",
    "tests/repo/",
)
"""Beginnings of the ids of files that take long."""
# Assertions are rewritten once, not in every process of every run: a sixth of the time of `make test`.
sys.dont_write_bytecode = False
# structlog and jsonschema load these wherever they are installed: 1.2 s in every process, for what no test looks at.
for _slow in ("rich", "rfc3987_syntax"):
    sys.modules.setdefault(_slow, None)  # type: ignore[arg-type]  # None means 'not there' to the import system
# A shell that starts us in the background has us ignore Ctrl-C, which all that we start would inherit.
for _number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


@dataclass(slots=True)
class Session:
    """One pytest run: its token, its directory, and the daemons that lived in it."""

    token: str
    root: Path
    mounts: frozenset[str]
    daemons: set[str] = field(default_factory=set)
    left_elsewhere: list[str] = field(default_factory=list)

    def note_daemons(self, folder: Path) -> None:
        """Remember the id of each daemon whose state directory lies in `folder`, before that is removed."""
        for path, names, files in os.walk(folder):
            if len(Path(path).relative_to(folder).parts) >= STATE_DEPTH:
                names.clear()
            if Path(path).name == "state" or "pxd.db" in files:
                self.daemons.add(hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:8])

    def remove_groups(self) -> None:
        """Remove what daemons that a test killed have left of theirs."""
        for daemon in self.daemons:
            remove_group(daemon)

    def owns(self, environ: bytes) -> bool:
        """Say whether a process with this environment block was started by a test of this session."""
        marks = [f"{SESSION_MARK}={self.token}".encode(), os.fsencode(self.root)]
        for daemon in self.daemons:
            marks += [f"PX_INSTANCE={daemon}.".encode(), f"PX_CONTROL={daemon}".encode()]
        return any(mark in environ for mark in marks)


def _mounts() -> frozenset[str]:
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(line.split()[4] for line in lines)


def _ancestors() -> set[int]:
    """Return this process and its ancestors: whoever runs us may bear our own marks."""
    found, pid = set(), os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            break
    return found


def _left_processes(session: Session) -> dict[int, str]:
    """Return pid and command line of each live process of the session, but for ourselves."""
    left: dict[int, str] = {}
    ours = _ancestors()
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) in ours:
            continue
        try:
            if session.owns((entry / "environ").read_bytes()):
                left[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # gone, a zombie, or not ours to read
    return left


_SESSION = pytest.StashKey[Session]()
_LEFT = "left_behind"


def pytest_configure(config: pytest.Config) -> None:
    """Open the session's directory: short, because a socket's path may have 104 bytes."""
    root = Path(tempfile.mkdtemp(prefix="px", dir="/tmp"))
    session = Session(token=root.name, root=root, mounts=_mounts())
    os.environ[SESSION_MARK] = session.token
    config.stash[_SESSION] = session


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail the run when a process or a mount is left; end what is left by its id."""
    ours = session.config.stash[_SESSION]
    warm_client.close()
    left = [*ours.left_elsewhere, *_end_what_is_left(ours)]
    shutil.rmtree(ours.root, ignore_errors=True)
    if hasattr(session.config, "workeroutput"):  # one of several processes of pytest-xdist: the first one tells
        session.config.workeroutput[_LEFT] = left
        return
    for line in left:
        print(f"\nleft behind: {line}", file=sys.stderr)
    if left and exitstatus == 0:
        session.exitstatus = 1


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what another process of pytest-xdist has found."""
    found = getattr(node, "workeroutput", {}).get(_LEFT, ())
    node.config.stash[_SESSION].left_elsewhere.extend(found)


def _end_what_is_left(ours: Session) -> list[str]:
    """Return a line for each process and each mount that stayed; the processes are killed."""
    ours.note_daemons(ours.root)
    ours.remove_groups()
    deadline = time.monotonic() + LINGER_SECONDS
    while (left := _left_processes(ours)) and time.monotonic() < deadline:
        time.sleep(0.05)  # not a wait for a test: the last children of the last test may be on their way out
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # Elsewhere a mount may be another run's; in CI there is no other.
    places = (str(ours.root), "/tmp/px") if _in_ci() and "PYTEST_XDIST_WORKER" not in os.environ else (str(ours.root),)
    mounts = sorted(path for path in _mounts() - ours.mounts if path.startswith(places))
    return [f"process {pid}: {command}" for pid, command in left.items()] + [f"mount {path}" for path in mounts]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Where CI is set every test must run: say which did not."""
    if skipped := _wrong_skips(terminalreporter):
        terminalreporter.write_line(f"CI is set, and {len(skipped)} tests were skipped:", red=True)
        for line in skipped:
            terminalreporter.write_line(f"  {line}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Take the mark back."""
    os.environ.pop(SESSION_MARK, None)


def _wrong_skips(reporter: pytest.TerminalReporter | None) -> list[str]:
    if reporter is None or not _in_ci():
        return []
    found = []
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not reason.removeprefix("Skipped: ").startswith(ELSEWHERE):
            found.append(f"{report.nodeid}: {reason}")
    return found


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Turn skips into a failure of the run where CI is set."""
    result = yield
    if _wrong_skips(session.config.pluginmanager.get_plugin("terminalreporter")):
        session.testsfailed += 1
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first, so that at the end nobody plays a minute's file alone; random order stays within that."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.fixture(scope="session")
def require() -> Callable[[object, str], None]:
    """Return `require(condition, why)`: without the condition a test is skipped, and in CI it fails."""

    def check(condition: object, why: str) -> None:
        if condition:
            return
        if _in_ci() and not why.startswith(ELSEWHERE):
            pytest.fail(f"needed in CI: {why}")
        pytest.skip(why)

    return check


@pytest.fixture(autouse=True)
def _nothing_beside() -> Iterator[None]:
    """A test that fails leaves no process of its own behind."""
    yield
    end_all()


@pytest.fixture
def short_tmp(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return an empty private directory with a short path under /tmp; it is removed afterwards."""
    with _short_folder(request.config.stash[_SESSION]) as folder:
        yield folder


@pytest.fixture(scope="module")
def short_tmp_of_module(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return such a directory for all tests of a file."""
    with _short_folder(request.config.stash[_SESSION]) as folder:
        yield folder


@contextlib.contextmanager
def _short_folder(session: Session) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="t", dir=session.root))
    yield folder
    session.note_daemons(folder)
    session.remove_groups()
    shutil.rmtree(folder, ignore_errors=True)
