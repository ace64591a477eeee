"""`pxctl daemon …`: the daemon itself."""

from __future__ import annotations

from pxctl.commanding import Entry, group

command = group(
    "daemon",
    {
        "start": Entry("pxctl.commands.daemon.start", "Start pxd in the background"),
        "stop": Entry("pxctl.commands.daemon.stop", "Stop pxd and everything it holds"),
        "restart": Entry("pxctl.commands.daemon.restart", "Replace the control plane and keep every child"),
        "reload": Entry("pxctl.commands.daemon.reload", "Read settings and tools again"),
        "status": Entry("pxctl.commands.daemon.status", "Show the daemon's own state"),
        "install": Entry("pxctl.commands.daemon.install", "Write and enable the systemd or launchd unit"),
        "uninstall": Entry("pxctl.commands.daemon.uninstall", "Disable and remove that unit"),
    },
    "Start, stop, restart, reload, install the daemon.",
)
