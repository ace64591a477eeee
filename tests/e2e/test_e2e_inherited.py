"""What everything that is started inherits from the shell, or the service manager, that started
pxd.
"""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from e2e.house import house, server, until
from e2e.pipe_house import SETTINGS, PipeHouse

REPORT = """
def report():
    import resource, signal
    mask = os.umask(0)
    os.umask(mask)
    file = os.open("made", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.close(file)
    mode = os.stat("made").st_mode & 0o777
    os.unlink("made")
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {
        "umask": "%04o" % mask,
        "mode": "%o" % mode,
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "nice": os.nice(0),
        "oom_score_adj": int(open("/proc/self/oom_score_adj").read()),
        "blocked": int(status["SigBlk"], 16),
        "stdin": os.readlink("/proc/self/fd/0"),
    }
"""
PROGRAM = f"import json, os\n{REPORT}\nprint(json.dumps(report()))\n"
SHELL = "umask; ulimit -Sn; ulimit -Hn; touch made; stat -c %a made; rm made"
_HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
OPEN_FILES = {"0022": (200, 300), "0077": (1000, _HARD)}
"""Soft and hard limit of open files that pxd is started with, by umask."""


def expected(umask: str) -> dict[str, Any]:
    own = Path("/proc/self/oom_score_adj").read_text()
    return {
        "umask": umask,
        "mode": {"0022": "644", "0077": "600"}[umask],
        "nofile": list(OPEN_FILES[umask]),
        "core": list(resource.getrlimit(resource.RLIMIT_CORE)),
        "nice": 3,
        "oom_score_adj": int(own),
        "blocked": 0,
        "stdin": "/dev/null",
    }


def reports(home: PipeHouse) -> dict[str, Any]:
    """Return what a tool, a kernel, a shell cell and an agent report of themselves."""
    found = {"tool": home.run("tool").json()}
    cell = home.json("exec", PROGRAM)
    found["kernel"] = json.loads(cell["cells"][0]["text"])
    agent = home.execute("agent")
    assert agent.status == "completed", agent.stderr
    found["agent"] = json.loads(agent.stdout)
    for report in (found["kernel"], found["agent"]):
        report["stdin"] = "/dev/null"  # a kernel's is its own affair, an agent's is its prompt
    found["shell cell"] = home.json("exec", "--bash", SHELL)["cells"][0]["text"].split()
    return found


@pytest.mark.parametrize("umask", OPEN_FILES)
def test_children_have_the_umask_and_limits_that_pxd_was_started_with(umask: str) -> None:
    """The files of the daemon itself are private all the same: test_e2e_api.py."""
    soft, hard = OPEN_FILES[umask]
    with house(SETTINGS, PipeHouse) as home:
        limits = f"ulimit -Sn {soft}; ulimit -Hn {hard}" if hard > 0 else f"ulimit -Sn {soft}"
        home.runner = ("nice", "-n", "3", "sh", "-c", f'umask {umask}; {limits}; exec "$0" "$@"')
        home.start()
        home.tool("tool", REPORT + server("return report()"))
        folder = home.write(
            "agent", "schedule: manual\nagent: command\ncommand: [python3, report.py]"
        )
        (folder / "report.py").write_text(PROGRAM)
        want = expected(umask)
        in_words = [want["umask"], *map(str, want["nofile"]), want["mode"]]
        whole = {"tool": want, "kernel": want, "agent": want, "shell cell": in_words}
        assert reports(home) == whole
        for _ in range(2):  # what becomes pxd anew has both from the one before
            assert home.pxctl("daemon", "restart", "--all").returncode == 0
            until(home.answers, "the next daemon answers")
        assert reports(home) == whole


def test_what_is_forked_has_them_too() -> None:
    """A zygote's forks: of a tool, and of kernels, one of which was prepared before it had an
    order.
    """
    with house(kind=PipeHouse) as home:
        home.runner = ("sh", "-c", 'umask 022; ulimit -Sn 500; exec "$0" "$@"')
        home.start()
        home.tool("forked", REPORT + server("return report()"), preload=["json", "http.server"])
        method, found = "", {}
        while method != "zygote":  # its first start may come before its zygote
            found = home.run("forked").json()
            method = home.status("forked")["start_method"]
            home.post("/api/tools/forked/stop")
        assert (found["umask"], found["mode"], found["nofile"][0]) == ("0022", "644", 500)
        for kernel in ("a", "b", "c"):
            cell = home.json("exec", "--kernel", kernel, PROGRAM)["cells"][0]
            found = json.loads(cell["text"])
            assert (found["umask"], found["mode"], found["nofile"][0]) == ("0022", "644", 500)
