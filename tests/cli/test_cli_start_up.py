"""The client is thin: what it may import, how long it may take, which commands it may load."""

from __future__ import annotations

import sys

import pytest

from cli.fake_daemon import FakeDaemon, document
from cli.px import Px

ALLOWED = {
    "json", "json.decoder", "json.encoder", "json.scanner", "_json",  # documents
    "socket", "_socket", "select", "selectors", "array",  # the socket
    "signal",  # Ctrl-C
    "locale", "_locale",  # click's translations, where a language is set
    "difflib", "_heapq", "heapq",  # click, when it meets a short option
    "pxctl", "pxctl.app", "pxctl.client", "pxctl.commands", "pxctl.commands.units", "pxctl.completion",
    "pxctl.failures", "pxctl.invocation", "pxctl.main", "pxctl.output", "pxctl.paths",
}  # fmt: skip
LOOK = """
import sys, click
before = set(sys.modules)
from pxctl.main import main
code = main(sys.argv[1:])
sys.stderr.write("\\n".join(sorted(set(sys.modules) - before)))
sys.exit(code)
"""
UNIT = {"unit": "tool:a", "state": "ready", "last_used": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    "arguments", [["status"], ["status", "-q"], ["status", "a", "--json"], ["--color", "always", "status"]]
)
def test_status_loads_nothing_beyond_the_list(px: Px, daemon: FakeDaemon, arguments: list[str]) -> None:
    daemon.on("GET /api/status", document({"schema": "px.status/1", "daemon": {}, "units": [UNIT]}))
    ended = px(*arguments, argv=[sys.executable, "-c", LOOK])
    assert ended.code == 0
    assert set(ended.err.split()) <= ALLOWED
