"""What a command is called here that other programs call otherwise: systemctl, docker, pm2,
supervisorctl, pueue, git.

Nothing of it is run: the nearest command is told, with the arguments that were given.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

_MOST_LETTERS = 200  # of arguments that a hint repeats

# By group ("" for pxctl itself) the other word and the commands that do it, as they are typed
# behind `pxctl`.
OTHER_WORDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "": {
        **dict.fromkeys(("ps", "ls", "list", "list-units", "units", "jlist"), ("status",)),
        **dict.fromkeys(
            ("top", "htop", "stats", "monit", "watch", "dashboard"), ("status --watch",)
        ),
        **dict.fromkeys(("kill", "down", "terminate"), ("stop",)),
        "up": ("start",),
        **dict.fromkeys(
            ("rm", "remove", "delete", "del", "unregister"), ("tools remove", "pipe remove")
        ),
        **dict.fromkeys(("add", "register"), ("tools add", "pipe add")),
        **dict.fromkeys(("new", "create", "init", "scaffold"), ("tools new", "pipe new")),
        **dict.fromkeys(("log", "journal", "journalctl"), ("logs",)),
        **dict.fromkeys(("tail", "follow"), ("logs",)),
        **dict.fromkeys(
            ("inspect", "describe", "show", "info", "cat"),
            ("tools show", "pipe show", "kernel show"),
        ),
        **dict.fromkeys(("explain", "reason"), ("why",)),
        **dict.fromkeys(("enable", "unpause", "resume", "unstash"), ("pipe enable",)),
        **dict.fromkeys(("disable", "pause", "stash"), ("pipe disable",)),
        **dict.fromkeys(("startup", "install", "save", "service"), ("daemon install",)),
        **dict.fromkeys(("unstartup", "uninstall"), ("daemon uninstall",)),
        **dict.fromkeys(("reload", "update", "reread", "daemon-reload"), ("daemon reload",)),
        "upgrade": ("daemon restart",),
        **dict.fromkeys(("shutdown", "quit"), ("daemon stop",)),
        **dict.fromkeys(("is-running", "is-up", "is-failed"), ("is-active",)),
        **dict.fromkeys(("list-timers", "timers", "schedule", "cron", "crontab"), ("pipe list",)),
        "next": ("pipe next",),
        "queue": ("pipe queue",),
        **dict.fromkeys(("runs", "executions", "jobs"), ("pipe runs",)),
        "output": ("pipe output",),
        "retry": ("pipe retry",),
        "cancel": ("pipe cancel",),
        **dict.fromkeys(("validate", "lint"), ("tools validate", "pipe validate")),
        **dict.fromkeys(("check", "health", "diagnose"), ("doctor",)),
        "debug": ("tools debug",),
        **dict.fromkeys(("sync", "build"), ("tools sync",)),
        **dict.fromkeys(("attach", "shell", "console", "repl"), ("kernel attach",)),
        **dict.fromkeys(("interrupt",), ("kernel interrupt",)),
        **dict.fromkeys(("reset", "restart-kernel"), ("kernel restart",)),
        "export": ("kernel export",),
        **dict.fromkeys(("python", "ipython", "notebook", "eval"), ("exec",)),
        **dict.fromkeys(("bash", "sh"), ("exec --bash",)),
        **dict.fromkeys(("call", "invoke"), ("run",)),
        **dict.fromkeys(("edit", "set", "set-property"), ("pipe config",)),
        **dict.fromkeys(("settings", "env"), ("config show",)),
        **dict.fromkeys(("monitor", "history"), ("events",)),
        **dict.fromkeys(("man", "docs", "doc"), ("help",)),
        **dict.fromkeys(("reasons", "codes"), ("help reasons",)),
        **dict.fromkeys(("tool", "catalog"), ("tools",)),
        **dict.fromkeys(("pipes", "agents"), ("pipe",)),
        **dict.fromkeys(("kernels", "sessions", "session"), ("kernel",)),
        "pxd": ("daemon",),
    },
    "tools": {
        **dict.fromkeys(("ls", "ps", "status"), ("tools list",)),
        **dict.fromkeys(("rm", "delete", "uninstall"), ("tools remove",)),
        "install": ("tools add",),
        **dict.fromkeys(("create", "init"), ("tools new",)),
        **dict.fromkeys(("inspect", "describe", "info", "cat", "schema"), ("tools show",)),
        **dict.fromkeys(("check", "lint", "test"), ("tools validate",)),
        **dict.fromkeys(("build", "update", "upgrade"), ("tools sync",)),
        **{
            word: (word,)
            for word in ("run", "start", "stop", "restart", "pin", "unpin", "logs", "why", "events")
        },
        "log": ("logs",),
        "call": ("run",),
    },
    "kernel": {
        **dict.fromkeys(("ls", "ps", "status"), ("kernel list",)),
        **dict.fromkeys(("rm", "remove", "kill", "shutdown", "delete"), ("kernel stop",)),
        "new": ("kernel start",),
        **dict.fromkeys(("inspect", "describe", "info"), ("kernel show",)),
        **dict.fromkeys(("console", "connect", "shell"), ("kernel attach",)),
        **dict.fromkeys(("output", "history", "notebook", "save"), ("kernel export",)),
        **dict.fromkeys(("run", "exec", "execute"), ("exec --kernel",)),
        "reset": ("kernel restart",),
        "cancel": ("kernel interrupt",),
        **{word: (word,) for word in ("logs", "why", "events", "wait")},
        "log": ("logs",),
    },
    "pipe": {
        **dict.fromkeys(("ls", "ps", "status"), ("pipe list",)),
        **dict.fromkeys(("rm", "delete", "uninstall"), ("pipe remove",)),
        "install": ("pipe add",),
        **dict.fromkeys(("create", "init"), ("pipe new",)),
        **dict.fromkeys(("inspect", "describe", "info", "cat"), ("pipe show",)),
        **dict.fromkeys(("check", "lint", "test"), ("pipe validate",)),
        **dict.fromkeys(("log", "logs"), ("pipe output",)),
        **dict.fromkeys(("history", "executions", "jobs"), ("pipe runs",)),
        **dict.fromkeys(("start", "trigger"), ("pipe run",)),
        **dict.fromkeys(("stop", "kill"), ("pipe cancel",)),
        **dict.fromkeys(("edit", "set"), ("pipe config",)),
        **dict.fromkeys(("pause", "stash"), ("pipe disable",)),
        **dict.fromkeys(("resume", "unpause", "unstash"), ("pipe enable",)),
        **dict.fromkeys(("follow", "watch", "attach"), ("pipe tail -f",)),
        **dict.fromkeys(("schedule", "when"), ("pipe next",)),
        **{word: (word,) for word in ("why", "events", "wait")},
    },
    "daemon": {
        **dict.fromkeys(("enable", "startup"), ("daemon install",)),
        **dict.fromkeys(("disable", "unstartup", "remove"), ("daemon uninstall",)),
        **dict.fromkeys(("kill", "shutdown", "down"), ("daemon stop",)),
        **dict.fromkeys(("run", "up"), ("daemon start",)),
        **dict.fromkeys(("upgrade", "update"), ("daemon restart",)),
        **dict.fromkeys(("info", "show", "ps", "health"), ("daemon status",)),
        **{word: (word,) for word in ("doctor", "events", "version")},
    },
    "config": {
        **dict.fromkeys(("ls", "list", "get", "cat", "path"), ("config show",)),
        **dict.fromkeys(("validate", "lint", "test"), ("config check",)),
        "reload": ("daemon reload",),
    },
}


def nearest_commands(
    group: str, word: str, arguments: Sequence[str], known: Sequence[str]
) -> list[str]:
    """Return what is typed instead of `pxctl [group] word arguments`: one command, several, or none
    where none is near.

    `group` is "" for pxctl itself, `known` its commands.
    """
    commands = list(OTHER_WORDS.get(group, {}).get(word, ()))
    if not commands:
        near = [name for name in known if name.startswith(word)] or get_close_matches(
            word, known, 1
        )
        commands = [f"{group} {name}".strip() for name in near[:1]]
    given = shlex.join(arguments)
    if len(given) > _MOST_LETTERS or not given.isprintable():
        given = ""
    return [f"pxctl {command} {given}".strip() for command in commands]
