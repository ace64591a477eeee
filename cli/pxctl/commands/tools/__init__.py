"""`pxctl tools …`: the catalog."""

from __future__ import annotations

from pxctl.commanding import Entry, group

command = group(
    "tools",
    {
        "list": Entry("pxctl.commands.tools.list", "List the tools, broken ones with their error"),
        "show": Entry("pxctl.commands.tools.show", "Show one tool: inputs, limits, manifest"),
        "validate": Entry("pxctl.commands.tools.validate", "Run the twelve checks"),
        "debug": Entry("pxctl.commands.tools.debug", "Walk the failure table and find the cause"),
        "new": Entry("pxctl.commands.tools.new", "Write a working tool to start from"),
        "add": Entry("pxctl.commands.tools.add", "Add a tool from a folder or an example"),
        "sync": Entry("pxctl.commands.tools.sync", "Build a tool's .venv"),
        "remove": Entry("pxctl.commands.tools.remove", "Remove a tool and its folder"),
    },
    "The catalog of tools.",
)
