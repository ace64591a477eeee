"""`pxctl pipe new NAME`: a pipe to start from. It runs by hand only, until its schedule says otherwise. Blocking."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from supervisord_py.pipes.declaring.files import PIPE_FILE
from supervisord_py.pipes.declaring.placing import place_for, placed

if TYPE_CHECKING:
    from pathlib import Path

TEMPLATE = """\
---
description: What this pipe is for, in one line
schedule: manual          # every 30m, daily at 9:30am, weekday at 18:00, '0 9 * * 1' ...
agent: pi                 # or: agent: command, with command: ./agent.sh
# preset: fast            # a name of presets.toml; without it, the default preset
# timeout: 10m
---

Say here what the agent is to do, as you would say it to a person.

Above this text the agent finds five lines: the time range since the last successful run, the date, the time zone,
the output directory of this run and the address of the daemon. Refer to them by name:

1. Look at what changed in the given time range.
2. Write a short report to report.md in the given output directory.
3. End with one sentence that says what you did.
"""


def scaffold(name: str, pipes_dir: Path) -> Path:
    """Write a new pipe and return its folder; it appears whole or not at all.

    Raises:
        BadRequestError: The name cannot be a pipe's.
        ConflictError: There is something of that name already.
        DiskError: The directory cannot be written.
    """
    folder = place_for(pipes_dir, name, "pxctl pipe new my-pipe")
    with placed(folder) as draft:
        os.mkdir(draft, 0o700)
        (draft / PIPE_FILE).write_text(TEMPLATE, encoding="utf-8")
    return folder
