"""What an adapter's own files hold for one execution. Pure. They name the variable that holds the key, never it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.pipes.agents.command_line import needs
from supervisord_py.pipes.agents.templates import fill, fill_json

if TYPE_CHECKING:
    from supervisord_py.pipes.agents.spec import AgentSpec
    from supervisord_py.pipes.agents.templates import Values


@dataclass(frozen=True, slots=True)
class FileText:
    """One file to be written, below `agent/`."""

    path: str
    text: str


def file_texts(spec: AgentSpec, values: Values) -> tuple[FileText, ...]:
    """Return what the adapter's files hold for this execution.

    Raises:
        CannotRunError: `config_error`: a file needs a value that nobody gave.
    """
    found = []
    for file in spec.files:
        if any(values.get(gap) is None for gap in file.when):
            continue
        for gap in file.needs:
            if values.get(gap) is None:
                raise needs(spec.name, gap)
        if file.text is None:
            found.append(FileText(file.path, json.dumps(fill_json(file.json, values), indent=2) + "\n"))
        else:
            found.append(FileText(file.path, fill(file.text, values) or ""))
    return tuple(found)
