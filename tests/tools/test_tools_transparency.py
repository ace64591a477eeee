"""A forked start is a plain one: whatever a package does to its process, at the first, the second
and the third start.

Each row is a package that changes one kind of state while it is imported (DESIGN.md lists them).
The tool that imports it sees the same at each start, and another tool of the same interpreter never
sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from supervisord_py.process import zygote_pool
from tools.tool_house import ToolHouse, eventually

SPAWNED, FORKED = "spawn", "zygote"
FACTS = Path(__file__).parent / "children" / "facts"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote_pool, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(zygote_pool, "LOOK_SECONDS", 0.0)


@pytest.fixture
def packages(house: ToolHouse) -> Iterator[Path]:
    folder = house.rig.dir / "site-packages"
    folder.mkdir()
    # A package of its own, so that there is something to import ahead in every tool.
    (folder / "plain_package.py").write_text("import plistlib\n")
    yield folder


def add(house: ToolHouse, packages: Path, name: str, lines: str, **keys: Any) -> None:
    """Add a tool that reports the facts of its process; `lines` are its own imports."""
    house.add("facts", name, env={"PYTHONPATH": str(packages)}, **keys)
    rewrite(house, name, "# IMPORTS", lines)


def rewrite(house: ToolHouse, name: str, old: str, new: str) -> None:
    """Replace a text of a tool's program; the catalog looks at it at once, so that no later look
    finds it changed.
    """
    program = house.tools / name / "main.py"
    program.write_text(program.read_text().replace(old, new))
    house.launcher.catalog.refresh()


async def settled(house: ToolHouse) -> None:
    """Wait until every start so far has its zygote, or none for a reason."""
    for tool in house.launcher.snapshot():
        if tool.state in {"ready", "busy"}:
            _, writer = await asyncio.open_connection("127.0.0.1", tool.port)
            writer.close()
    zygotes = house.launcher.zygotes

    def is_settled() -> bool:
        live = [tool for tool in house.launcher.snapshot() if tool.pid is not None]
        for tool in live:
            recipe = house.launcher.instance_of(tool.name).recipe
            zygote, finding = zygotes.get(recipe), zygotes.finding(recipe)
            learnt = house.launcher.states.of(tool.name).learnt
            if learnt is not None and not learnt.holds():
                return False  # what this start imports has not come yet
            if (
                zygote is not None
                and learnt is not None
                and learnt.steps[: len(zygote.modules)] != zygote.modules
            ):
                return False
            if (
                zygote is not None
                and learnt is not None
                and finding is None
                and learnt.steps != zygote.modules
            ):
                return False  # it has what an earlier program imported, which this one continues
            if zygote is not None and zygote.made_from is None:
                return False
            if zygote is None and finding is None and (learnt is None or learnt.steps):
                return False
        return True

    await eventually(is_settled, "a zygote, or a reason for none")


async def three_starts(house: ToolHouse, name: str) -> tuple[list[Any], list[str]]:
    answers, methods = [], []
    for _ in range(3):
        answers.append(await house.ask(name))
        methods.append(house.state(name).start_method)
        await settled(house)
        await house.launcher.stop(name)
    return answers, methods


ROWS = {
    # What the kernel holds: the package is not imported ahead, nor is what comes after it.
    "limits": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
    "umask": "import os; os.umask(0)",
    "ignored_signal": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "signal_handler": "import signal; signal.signal(signal.SIGUSR1, lambda *_: None)",
    "blocked_signal": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})",
    "working_directory": "import os; os.chdir('/')",
    "child": "import subprocess; child = subprocess.Popen(['cat'], stdin=subprocess.PIPE)",
    "thread": "import threading; threading.Thread(target=threading.Event().wait, "
    "daemon=True).start()",
    "open_file": "file = open(__file__)",
    "socket": "import socket; pair = socket.socketpair()",
    "locked_file": "import fcntl, tempfile; file = tempfile.TemporaryFile(); fcntl.flock(file, "
    "fcntl.LOCK_EX)",
    "timer": "import signal; signal.setitimer(signal.ITIMER_VIRTUAL, 1000)",
    "priority": "import os; os.nice(1)",
    "affinity": "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
    "oom_score": "open('/proc/self/oom_score_adj', 'w').write('500')",
    "no_new_privileges": "import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)",
    "faulthandler": "import faulthandler; faulthandler.enable()",
    "sys_path": "import sys; sys.path.insert(0, '/nowhere')",
    "output": "print('imported')",
    "global_random": "import random; random.seed(42)",
    "drawn_identity": "import uuid; identity = uuid.uuid4()",
    "process_id": "import os; pid = os.getpid()",
    "system_exit": "raise SystemExit(0)",
    # What lies in memory: it is imported ahead, for this tool alone.
    "environment": "import os; os.environ['BY_IMPORT'] = 'x'",
    "time_zone": "import os, time; os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()",
    "meta_path": "import sys; sys.meta_path.append(type('Finder', (), {'find_spec': lambda *_: "
    "None}))",
    "path_hooks": "import sys; sys.path_hooks.append(lambda path: (_ for _ in "
    "()).throw(ImportError()))",
    "locale": "import locale; locale.setlocale(locale.LC_ALL, 'C.UTF-8')",
    "hooks": "import sys, threading; sys.excepthook = threading.excepthook = print; "
    "sys.displayhook = print",
    "recursion_limit": "import sys; sys.setrecursionlimit(4321)",
    "switch_interval": "import sys; sys.setswitchinterval(0.25)",
    "collector": "import gc; gc.set_threshold(7, 8, 9); gc.callbacks.append(lambda *_: None)",
    "collector_off": "import gc; gc.disable()",
    "warnings": "import warnings; warnings.simplefilter('error', ResourceWarning)",
    "socket_timeout": "import socket; socket.setdefaulttimeout(12.5)",
    "decimal": "import decimal; decimal.getcontext().prec = 7",
    "stdout": "import sys; sys.stdout.reconfigure(encoding='latin-1')",
    "builtins": "import builtins; builtins.made_by_import = 1",
    "replaced_module": "import sys, types; sys.modules['json'] = types.ModuleType('other_json')",
    "atexit": "import atexit; atexit.register(int)",
    "start_method": "import multiprocessing; multiprocessing.set_start_method('spawn')",
    "temporary_folder": "import tempfile; tempfile.tempdir = '/var/tmp'",
    "event_loop_policy": "import asyncio as a; a.set_event_loop_policy(type('Own', "
    "(a.DefaultEventLoopPolicy,), {})())",
    "root_logger": "import logging; logging.basicConfig(level='DEBUG')",
    "codec": "import codecs; codecs.register(lambda name: codecs.lookup('utf-8') if name == "
    "'px_own' else None)",
    # What is read at import.
    "start": "import os, sys, __main__ as m; seen = [os.getcwd(), sys.argv[:2], sys.path[0], "
    "m.__file__[-7:]]",
    "given_seed": "import random; seen = random.Random(42).random(); kept = random.Random(42)",
}
NOT_AHEAD = tuple(ROWS)[: tuple(ROWS).index("environment")]
UNSTARTABLE = {"system_exit"}


@pytest.mark.parametrize("row", [row for row in ROWS if row not in UNSTARTABLE])
async def test_a_package_does_the_same_at_each_start_and_nothing_to_others(
    house: ToolHouse, packages: Path, row: str
) -> None:
    (packages / "changes.py").write_text(ROWS[row] + "\n")
    add(house, packages, "other", "import plain_package")
    add(house, packages, "own", "import plain_package, changes")
    before, _ = await three_starts(house, "other")
    answers, methods = await three_starts(house, "own")
    after, other_methods = await three_starts(house, "other")
    assert answers[1] == answers[0]
    assert answers[2] == answers[0]
    assert [*before, *after] == [before[0]] * 6
    assert methods == [SPAWNED, FORKED, FORKED]
    assert other_methods == [FORKED] * 3
    finding = "".join(
        house.launcher.zygotes.finding(recipe).why for recipe in house.launcher.zygotes._findings
    )
    assert ("changes: its import" in finding) == (row in NOT_AHEAD), finding


@pytest.mark.parametrize(
    "own_lines",
    [
        "import os; os.environ['PLACE'] = 'own'",
        "import sys; sys.path.insert(0, 'vendor')",
        "import os; os.chdir('vendor')",
        "import sys, types; sys.modules['plistlib'] = types.ModuleType('plistlib')",
        "import warnings; warnings.simplefilter('error', ResourceWarning)",
        "import os; os.umask(0o27)",
        "import locale; locale.setlocale(locale.LC_ALL, 'C.UTF-8')",
        "import logging; logging.basicConfig(level='DEBUG')",
        "import sys; sys.excepthook = print",
        "import builtins; builtins.made_by_tool = 1",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))",
        "import sys; sys.meta_path.insert(0, type('Finder', (), {'find_spec': lambda *_: None}))",
        "import own_settings",
    ],
)
async def test_what_the_program_does_before_an_import_counts_at_each_start(
    house: ToolHouse, packages: Path, own_lines: str
) -> None:
    """The package notes at its import what it finds; another tool imports it without that."""
    (packages / "reads.py").write_text(
        "import builtins, locale, logging, os, plistlib, resource, sys, warnings\n"
        "umask = os.umask(0); os.umask(umask)\n"
        "seen = [os.environ.get('PLACE'), sys.path[0].endswith('vendor'), os.getcwd(), "
        "plistlib.__name__, umask,\n"
        "    hasattr(plistlib, 'dumps'), len(warnings.filters), locale.setlocale(locale.LC_ALL), "
        "logging.root.level,\n"
        "    sys.excepthook is print, hasattr(builtins, 'made_by_tool'), "
        "resource.getrlimit(resource.RLIMIT_NOFILE),\n"
        "    getattr(sys.meta_path[0], '__name__', '')]\n"
    )
    add(house, packages, "other", "import plain_package, reads")
    add(house, packages, "own", f"import plain_package\n{own_lines}\nimport reads")
    (house.tools / "own" / "vendor").mkdir()
    (house.tools / "own" / "own_settings.py").write_text(
        "import os\nos.environ['PLACE'] = 'settings'\n"
    )
    before, _ = await three_starts(house, "other")
    answers, methods = await three_starts(house, "own")
    after, _ = await three_starts(house, "other")
    assert answers == [answers[0]] * 3
    assert [*before, *after] == [before[0]] * 6
    assert answers[0]["seen"] != before[0]["seen"]
    assert methods == [SPAWNED, FORKED, FORKED], "what it imported before is imported ahead"
    (limit,) = [why for tool, why in house.launcher.import_limits() if tool == "own"]
    assert "without the imports from reads: the tool changes" in limit
    assert limit in house.state("own").warnings


async def test_warnings_that_are_silenced_for_a_moment_end_nothing(
    house: ToolHouse, packages: Path
) -> None:
    (packages / "warns.py").write_text("import warnings\nwarnings.warn('loud')\n")
    (packages / "reads.py").write_text("seen = 1\n")
    lines = (
        "import warnings, plain_package\nwith warnings.catch_warnings():\n    "
        "warnings.simplefilter('ignore')\n"
    )
    add(house, packages, "quiet", f"{lines}    import reads\nimport colorsys")
    add(house, packages, "loud", f"{lines}    import warns\nimport colorsys")
    answers, methods = await three_starts(house, "quiet")
    assert answers == [answers[0]] * 3
    assert methods == [SPAWNED, FORKED, FORKED]
    assert not house.launcher.states.of("quiet").learnt.change
    assert "colorsys" in house.launcher.states.of("quiet").learnt.steps
    answers, methods = await three_starts(house, "loud")
    assert answers == [answers[0]] * 3
    assert methods == [SPAWNED, FORKED, FORKED]
    (finding,) = house.launcher.zygotes._findings.values()
    assert finding.why == "warns: its import changes what it has written to stdout or stderr"


async def test_a_program_that_was_edited_is_started_plainly_and_learnt_anew(
    house: ToolHouse, packages: Path
) -> None:
    (packages / "reads.py").write_text("import os\nseen = os.environ.get('PLACE')\n")
    add(house, packages, "own", "import plain_package, own_settings, reads")
    settings = house.tools / "own" / "own_settings.py"
    for _ in range(2):
        settings.write_text("")
        answers, methods = await three_starts(house, "own")
        assert ([each["seen"] for each in answers], methods) == (
            [None] * 3,
            [SPAWNED, FORKED, FORKED],
        )
        settings.write_text("import os\nos.environ['PLACE'] = 'own'\n")
        answers, methods = await three_starts(house, "own")
        assert ([each["seen"] for each in answers], methods) == (
            ["own"] * 3,
            [SPAWNED, FORKED, FORKED],
        )


async def test_one_tools_path_is_not_that_of_another(house: ToolHouse, packages: Path) -> None:
    patched = house.rig.dir / "patched" / "site-packages"
    patched.mkdir(parents=True)
    (packages / "reads.py").write_text("seen = 'installed'\n")
    (patched / "reads.py").write_text("seen = 'patched'\n")
    add(
        house,
        packages,
        "own",
        f"import sys; sys.path.insert(0, {str(patched)!r})\nimport reads, plain_package",
    )
    add(house, packages, "other", "import reads, plain_package")
    for _ in range(2):
        answers, _ = await three_starts(house, "own")
        assert [each["seen"] for each in answers] == ["patched"] * 3
        answers, _ = await three_starts(house, "other")
        assert [each["seen"] for each in answers] == ["installed"] * 3


async def test_generators_that_the_system_seeds_differ_and_given_seeds_stay(
    house: ToolHouse, packages: Path
) -> None:
    (packages / "reads.py").write_text(
        "import random\nby_system = random.Random()\ngiven = random.Random(42)\n"
        "class Own(random.Random):\n    pass\nown = Own()\n"
    )
    lines = "import plain_package, reads\nimport random"
    add(house, packages, "own", lines)
    drawn = "[reads.by_system.random(), reads.own.random(), random.random()], reads.given.random()"
    rewrite(house, "own", "# MORE", f"FACTS = [{drawn}]")
    answers, methods = await three_starts(house, "own")
    assert methods == [SPAWNED, FORKED, FORKED]
    assert len({number for numbers, _ in answers for number in numbers}) == 9
    assert len({given for _, given in answers}) == 1


@pytest.mark.parametrize("kind", ["data", "pth", "pth_twice"])
async def test_a_file_that_was_read_at_import_makes_a_zygote_old(
    house: ToolHouse, packages: Path, kind: str
) -> None:
    (packages / "data.json").write_text('"first"')
    (packages / "paths.pth").write_text("")
    (packages / "reads.py").write_text(
        "import json, os\nwith open(os.path.join(os.path.dirname(__file__), 'data.json')) as "
        "file:\n"
        "    seen = json.load(file)\n"
    )
    add(house, packages, "own", "import plain_package, reads")
    await three_starts(house, "own")
    for text in ("second", "third"):
        changed = packages / ("data.json" if kind == "data" else "paths.pth")
        changed.write_text(f'"{text}"' if kind == "data" else f"# {text}\n")
        answer = await house.ask("own")
        assert house.state("own").start_method == SPAWNED
        assert answer["seen"] == (text if kind == "data" else "first")
        await settled(house)
        await house.launcher.stop("own")
        assert await house.ask("own") == answer
        assert house.state("own").start_method == FORKED
        await house.launcher.stop("own")


async def test_forks_that_fail_are_spawned_and_twice_give_the_zygote_up(
    house: ToolHouse, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = house.placement.spawn

    def cannot_fork(key: str, spec: Any) -> Any:
        # The order of a fork asks for a folder that is not there; that of a spawn is as it was.
        return spawn(key, spec if spec.zygote is None else replace(spec, cwd="/nowhere"))

    add(house, packages, "own", "import plain_package")
    for _ in range(2):
        await three_starts(house, "own")
        with monkeypatch.context() as patch:
            patch.setattr(house.placement, "spawn", cannot_fork)
            for number in (1, 2):
                await house.ask("own")
                assert house.state("own").start_method == SPAWNED, (
                    "a fork that fails is no failed start"
                )
                warnings = "".join(house.state("own").warnings)
                assert ("its forks fail" in warnings) == (number == 2)
                await house.launcher.stop("own")
        patch.undo()
        house.launcher.zygotes._findings.clear()


async def test_a_zygote_that_is_killed_while_it_imports_is_tried_again(
    house: ToolHouse, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_pool, "RETRY_SECONDS", 0.0)
    (packages / "kills.py").write_text(
        "import os, signal\nif 'NOTIFY_SOCKET' not in os.environ and not os.path.exists(__file__ + "
        "'.once'):\n"
        "    open(__file__ + '.once', 'w').close()\n"
        "    os.kill(int(os.readlink('/proc/self')), signal.SIGKILL)\n"
    )
    add(house, packages, "own", "import plain_package, kills")
    answers, _ = await three_starts(house, "own")
    assert answers == [answers[0]] * 3
    await house.ask("own")
    await settled(house)
    await house.launcher.stop("own")
    await house.ask("own")
    assert house.state("own").start_method == FORKED
