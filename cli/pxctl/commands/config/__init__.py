"""`pxctl config …`: the settings."""

from __future__ import annotations

from pxctl.commanding import Entry, group

command = group(
    "config",
    {
        "show": Entry("pxctl.commands.config.show", "Show every setting, its value and where it comes from"),
        "check": Entry("pxctl.commands.config.check", "Check the settings files"),
    },
    "Show and check the settings.",
)
