"""`pxctl kernel …`: sessions and their kernels."""

from __future__ import annotations

from pxctl.commanding import Entry, group

command = group(
    "kernel",
    {
        "list": Entry("pxctl.commands.kernel.list", "List the sessions"),
        "show": Entry("pxctl.commands.kernel.show", "Show one session"),
        "start": Entry("pxctl.commands.kernel.start", "Start a session's kernel, or explain the choice of its Python"),
        "stop": Entry("pxctl.commands.kernel.stop", "Stop kernels, and say what survived"),
        "restart": Entry("pxctl.commands.kernel.restart", "Replace kernels; variables are lost"),
        "interrupt": Entry("pxctl.commands.kernel.interrupt", "Interrupt the running cell; again, harder"),
        "attach": Entry("pxctl.commands.kernel.attach", "Join a live session with jupyter console"),
        "cells": Entry("pxctl.commands.kernel.cells", "List what a session ran"),
        "output": Entry("pxctl.commands.kernel.output", "Print the complete output of a cell"),
        "export": Entry("pxctl.commands.kernel.export", "Write a session's history as a notebook"),
        "specs": Entry("pxctl.commands.kernel.specs", "List the kernelspecs that can be started"),
    },
    "Sessions and the kernels that keep their variables.",
)
