"""The commands of `pxctl`: one a file, imported when called. This table is all that is loaded of them at the start."""

from __future__ import annotations

from pxctl.commanding import Entry

UNITS = "Tools and other units"
KERNELS = "Cells and kernels"
PIPES = "Pipes"
LOOKING = "What is and what happened"
DAEMON = "The daemon and this client"

ENTRIES = {
    "run": Entry("pxctl.commands.run", "Run a tool and print its answer", UNITS),
    "status": Entry("pxctl.commands.status", "Show everything that is held", UNITS),
    "start": Entry("pxctl.commands.start", "Warm up units", UNITS),
    "stop": Entry("pxctl.commands.stop", "Stop units, and say what survived", UNITS),
    "restart": Entry("pxctl.commands.restart", "Stop and start units", UNITS),
    "pin": Entry("pxctl.commands.pin", "Exempt tools from eviction", UNITS),
    "unpin": Entry("pxctl.commands.unpin", "Take a pin away", UNITS),
    "wait": Entry("pxctl.commands.wait", "Block until a unit is ready, stopped or done", UNITS),
    "tools": Entry("pxctl.commands.tools", "The catalog of tools", UNITS),
    "exec": Entry("pxctl.commands.exec", "Run code in a kernel that keeps its variables", KERNELS),
    "kernel": Entry("pxctl.commands.kernel", "Sessions: list, start, attach, export and more", KERNELS),
    "pipe": Entry("pxctl.commands.pipe", "Scheduled agents: run, queue, output, retry and more", PIPES),
    "logs": Entry("pxctl.commands.logs", "Show a unit's output", LOOKING),
    "events": Entry("pxctl.commands.events", "Show what happened", LOOKING),
    "why": Entry("pxctl.commands.why", "Explain a unit's state by what led to it", LOOKING),
    "doctor": Entry("pxctl.commands.doctor", "Check everything; name the repair of each fault", LOOKING),
    "daemon": Entry("pxctl.commands.daemon", "Start, stop, restart, reload, install the daemon", DAEMON),
    "config": Entry("pxctl.commands.config", "Show and check the settings", DAEMON),
    "completion": Entry("pxctl.commands.completion", "Print a completion script for a shell", DAEMON),
    "version": Entry("pxctl.commands.version", "Show the versions of client and daemon", DAEMON),
}
