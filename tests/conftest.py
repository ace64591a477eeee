"""What all rooms' tests share: short directories, honest skips, and a last look at what was left
behind.

Law: after the last test no process and no mount of this session exists. A process belongs to the
session when its environment names the session's directory or its token, or bears the mark of a
daemon whose state lay in that directory (children get an allow-listed environment, so the mark is
all that they have).
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
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

from beside import end_all
from rounds import DEEP
from waiting import bearing, remove_group

SESSION_MARK = "TEST_SESSION_OF_PX"
"""Not `PX_…`: the daemon reads those as settings."""
ELSEWHERE = ("only on macOS", "measured", "not shown here")
"""Beginnings of reasons for which a skip is right even in CI: the test is about another system,
coverage would falsify what it measures (the Makefile's target `unmeasured` runs those), or .ci/run
could not install what it needs.
"""
IN_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}
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
TAKE_LONG = (
    "tests/e2e/",
    "tests/kernels/",
    "tests/jupyter/",
    "tests/repo/",
    "tests/daemon/test_daemon_life.py",
)
# Assertions are rewritten once, not in every process of every run: a sixth of the time of `make
# test`.
sys.dont_write_bytecode = False
# structlog and jsonschema load these wherever they are installed: 1.2 s in every process, for what
# no test looks at.
for _slow in ("rich", "rfc3987_syntax"):
    sys.modules.setdefault(_slow, None)  # type: ignore[arg-type]  # None means 'not there' to the import system
# A shell that starts us in the background has us ignore Ctrl-C, which all that we start would
# inherit.
for _number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(
            _number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        )


class Session:
    """One pytest run: its token, its directory, and the daemons that lived in it."""

    def __init__(self) -> None:
        # Short, because a socket's path may have 104 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="px", dir="/tmp"))
        self.mounts = _mounts()
        self.daemons: set[str] = set()
        self.left_elsewhere: list[str] = []

    def note_daemons(self, folder: Path) -> None:
        """Remember the id of each daemon whose state directory lies in `folder`, before that is
        removed.

        What daemons that a test killed have left of theirs in the cgroup file system is removed.
        """
        for path, names, files in os.walk(folder):
            if len(Path(path).relative_to(folder).parts) >= STATE_DEPTH:
                names.clear()
            if Path(path).name == "state" or "pxd.db" in files:
                self.daemons.add(
                    hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:8]
                )
        for daemon in self.daemons:
            remove_group(daemon)

    def left_processes(self) -> list[int]:
        """Return each live process of the session, but for ourselves and who runs us."""
        marks = [f"{SESSION_MARK}={self.root.name}", str(self.root)]
        for daemon in self.daemons:
            marks += [f"PX_INSTANCE={daemon}.", f"PX_CONTROL={daemon}"]
        ours = {os.getpid(), *(process.pid for process in psutil.Process().parents())}
        return [pid for pid in bearing(*marks) if pid not in ours]

    def end_what_is_left(self) -> list[str]:
        """Return a line for each process and each mount that stayed; the processes are killed."""
        self.note_daemons(self.root)
        deadline = time.monotonic() + LINGER_SECONDS
        while (left := self.left_processes()) and time.monotonic() < deadline:
            # not a wait for a test: the last children of the last test may be on their way out
            time.sleep(0.05)
        lines = []
        for pid in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                lines.append(f"process {pid}: {' '.join(process.cmdline())}")
                process.kill()
        # Elsewhere a mount may be another run's; in CI there is no other.
        alone = IN_CI and "PYTEST_XDIST_WORKER" not in os.environ
        places = (str(self.root), "/tmp/px") if alone else (str(self.root),)
        mounts = sorted(path for path in _mounts() - self.mounts if path.startswith(places))
        shutil.rmtree(self.root, ignore_errors=True)
        return lines + [f"mount {path}" for path in mounts]

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(prefix="t", dir=self.root))
        yield folder
        self.note_daemons(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _mounts() -> set[str]:
    with contextlib.suppress(OSError):
        return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return set()


_SESSION = pytest.StashKey[Session]()
_LEFT = "left_behind"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SESSION] = Session()
    os.environ[SESSION_MARK] = config.stash[_SESSION].root.name


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail the run when a process or a mount is left."""
    ours = session.config.stash[_SESSION]
    left = [*ours.left_elsewhere, *ours.end_what_is_left()]
    # one of several processes of pytest-xdist: the first one tells
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_LEFT] = left
        return
    for line in left:
        print(f"\nleft behind: {line}", file=sys.stderr)
    if left and exitstatus == 0:
        session.exitstatus = 1


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    found = getattr(node, "workeroutput", {}).get(_LEFT, ())
    node.config.stash[_SESSION].left_elsewhere.extend(found)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where CI is set every test must run: a skip is a failure."""
    report = yield
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    if IN_CI and report.skipped and not why.removeprefix("Skipped: ").startswith(ELSEWHERE):
        report.outcome = "failed"
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first, so that at the end nobody plays a minute's file alone; random order
    stays within that.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(TAKE_LONG))


@pytest.fixture(scope="session")
def require() -> Callable[[object, str], None]:
    """Return `require(condition, why)`: without the condition a test is skipped."""

    def check(condition: object, why: str) -> None:
        if not condition:
            pytest.skip(why)

    return check


@pytest.fixture
def require_root(require: Callable[[object, str], None]) -> None:
    """Only root may mount, and become somebody else."""
    require(os.geteuid() == 0, "needs root")


@pytest.fixture(autouse=True)
def _nothing_beside() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture
def short_tmp(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return an empty private directory with a short path under /tmp."""
    with request.config.stash[_SESSION].folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def short_tmp_of_module(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return such a directory for all tests of a file."""
    with request.config.stash[_SESSION].folder() as folder:
        yield folder


@pytest.fixture
def home() -> Iterator[Any]:
    """A throw-away home of a real daemon, with none in it yet."""
    from e2e.house import house  # which most tests do without

    with house(measured=True) as made:
        yield made


@pytest.fixture
def running(home: Any) -> Any:
    """Such a home whose daemon serves."""
    home.start()
    return home
