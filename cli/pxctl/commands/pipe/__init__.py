"""`pxctl pipe …`: pipes and their executions."""

from __future__ import annotations

from pxctl.commanding import Entry, group

PIPES = "Pipes"
EXECUTIONS = "Executions"

command = group(
    "pipe",
    {
        "list": Entry("pxctl.commands.pipe.list", "List the pipes", PIPES),
        "show": Entry("pxctl.commands.pipe.show", "Show a pipe, its prompt, or one execution", PIPES),
        "validate": Entry("pxctl.commands.pipe.validate", "Check pipes; nothing is run", PIPES),
        "new": Entry("pxctl.commands.pipe.new", "Write a pipe to start from", PIPES),
        "add": Entry("pxctl.commands.pipe.add", "Install a pipe: disabled, checked", PIPES),
        "remove": Entry("pxctl.commands.pipe.remove", "Remove a pipe and its folder", PIPES),
        "config": Entry("pxctl.commands.pipe.config", "Change keys of a pipe's front matter", PIPES),
        "enable": Entry("pxctl.commands.pipe.enable", "Let schedule and events start pipes", PIPES),
        "disable": Entry("pxctl.commands.pipe.disable", "Keep schedule and events from starting pipes", PIPES),
        "mute": Entry("pxctl.commands.pipe.mute", "Silence the failure hooks of pipes", PIPES),
        "unmute": Entry("pxctl.commands.pipe.unmute", "Let the failure hooks of pipes speak", PIPES),
        "next": Entry("pxctl.commands.pipe.next", "Say when a pipe is due next, and why", PIPES),
        "run": Entry("pxctl.commands.pipe.run", "Run a pipe by hand and follow its output", EXECUTIONS),
        "queue": Entry("pxctl.commands.pipe.queue", "Show what runs and what waits in line", EXECUTIONS),
        "runs": Entry("pxctl.commands.pipe.runs", "List executions, newest first", EXECUTIONS),
        "output": Entry("pxctl.commands.pipe.output", "Print an execution's output, byte for byte", EXECUTIONS),
        "tail": Entry("pxctl.commands.pipe.tail", "Show an execution's output, live with -f", EXECUTIONS),
        "retry": Entry("pxctl.commands.pipe.retry", "Queue an execution again", EXECUTIONS),
        "cancel": Entry("pxctl.commands.pipe.cancel", "Cancel executions, waiting or running", EXECUTIONS),
    },
    "Pipes: agents that run on a schedule, on events or by hand; and their executions.",
)
