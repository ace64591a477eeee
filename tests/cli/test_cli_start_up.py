"""The client is thin: what it may import, how long it may take, which commands it may load."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

import pytest

from cli.fake_daemon import FakeDaemon, document
from cli.px import REPOSITORY

if TYPE_CHECKING:
    from cli.px import Px

PACKAGE = REPOSITORY / "cli" / "pxctl"
ALLOWED = {
    "json", "json.decoder", "json.encoder", "json.scanner", "_json",  # documents
    "socket", "_socket", "select", "selectors", "array",  # the socket
    "signal",  # Ctrl-C
    "locale", "_locale",  # click's translations, where a language is set
    "difflib", "_heapq", "heapq",  # click, when it meets a short option
    "pxctl", "pxctl.app", "pxctl.client", "pxctl.commands", "pxctl.commands.units", "pxctl.completion", "pxctl.main",
    "pxctl.output", "pxctl.paths",
}  # fmt: skip
HEAVY = {
    "asyncio",
    "http.client",
    "urllib",
    "urllib.parse",
    "pathlib",
    "dataclasses",
    "subprocess",
    "platformdirs",
    "shutil",
    "tempfile",
}
LOOK = """
import sys, click
before = set(sys.modules)
from pxctl.main import main
code = main(sys.argv[1:])
sys.stderr.write("\\n".join(sorted(set(sys.modules) - before)))
sys.exit(code)
"""
STATUS = {
    "schema": "px.status/1",
    "daemon": {},
    "units": [{"unit": "tool:a", "state": "ready", "last_used": "2026-01-01T00:00:00Z"}],
}


@pytest.mark.parametrize(
    "arguments", [["status"], ["status", "-q"], ["status", "a", "--json"], ["--color", "always", "status"]]
)
def test_status_loads_nothing_beyond_the_list(px: Px, daemon: FakeDaemon, arguments: list[str]) -> None:
    daemon.on("GET /api/status", document(STATUS))
    ended = px(*arguments, argv=[sys.executable, "-c", LOOK])
    assert ended.code == 0
    loaded = set(ended.err.split())
    assert loaded <= ALLOWED, f"beyond the list: {sorted(loaded - ALLOWED)}"
    assert not loaded & HEAVY


def test_each_command_loads_no_other(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/status", document(STATUS))
    loaded = px("status", argv=[sys.executable, "-c", LOOK]).err.split()
    assert [name for name in loaded if name.startswith("pxctl.commands.")] == ["pxctl.commands.units"]


def test_the_package_never_imports_the_daemons() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "supervisord_py"], path
