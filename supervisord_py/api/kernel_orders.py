"""Bodies that ask something of kernels become the values that the room takes; what does not fit is told by pointer.

Cells come as `code`, as `cells`, as the text of a `notebook`, or as a `script` that is split at its `# %%` lines:
exactly one of the four.
"""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.api.members import Members, refuse
from supervisord_py.kernels.cell import CallRequest, Cell
from supervisord_py.kernels.cell_files import CellLog
from supervisord_py.kernels.notebook import cells_of_script
from supervisord_py.kernels.room_requests import Owner, StartRequest
from supervisord_py.kernels.session import BackendName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from supervisord_py.kernels.cell import CallResult, CellResult
    from supervisord_py.kernels.config import OutputLimits
    from supervisord_py.kernels.room import Kernels

SHELL = "bash"
LANGUAGES = ("python", SHELL)
BACKENDS = tuple(name.value for name in BackendName)
OWNERS = (Owner.SESSION.value, Owner.JUPYTER.value)
_WHERE = ("cwd", "interpreter", "kernelspec", "backend", "language", "environ")
_SOURCES = ("code", "cells", "notebook", "script")
_CALL = (*_SOURCES, *_WHERE, "timeout", "reset", "per_call")
_START = ("name", *_WHERE, "env", "arguments", "owner", "timeout", "explain")
_CELL = ("code", "title")
_USUAL_SPEC = "python3"
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Order:
    """A call as it was ordered.

    Attributes:
        notebook: The text that the results go back into, None where there was none.
        missed_spec: Kernelspec that the notebook names and nobody has: it runs in what a call without one gets.
    """

    request: CallRequest
    notebook: str | None = None
    missed_spec: str | None = None

    async def finish(
        self, document: dict[str, Any], result: CallResult, cells_dir: Path, limits: OutputLimits
    ) -> dict[str, Any]:
        """Return the answer, with the executed notebook where one was ordered: pictures are whole in it."""
        if self.notebook is None:
            return document
        if self.missed_spec is not None:
            document = {**document, "notices": [*document["notices"], _missed(self.missed_spec, result)]}
        notebook = await _notebook_module()

        def outputs_of(cell: CellResult) -> Sequence[Mapping[str, Any]]:
            log = CellLog(cells_dir / result.session_id, cell.id)
            if not log.exists():
                return cell.outputs
            found: list[Mapping[str, Any]] = notebook.notebook_outputs(log, limits, rich=True)
            return found

        text = await asyncio.to_thread(notebook.executed, self.notebook, result.cells, outputs_of)
        return {**document, "notebook": text}


@dataclass(frozen=True, slots=True)
class _Content:
    """What is to be run, and what it says of its language."""

    cells: tuple[Cell, ...]
    notebook: str | None = None
    kernelspec: str | None = None
    missed_spec: str | None = None


async def read_call(
    kernels: Kernels, session: str, body: Mapping[str, Any], *, arrived_at: float, caller: str | None
) -> Order:
    """Read the body of an execute request.

    Raises:
        InvalidInputError: It does not fit, or is no notebook.
    """
    members = Members(body, _CALL)
    content = await _content(kernels, members)
    where = _where(members)
    is_open = where["kernelspec"] is None and where["interpreter"] is None
    if content.kernelspec is not None and is_open:
        where["kernelspec"] = content.kernelspec
    request = CallRequest(
        session=session,
        cells=content.cells,
        arrived_at=arrived_at,
        timeout_seconds=members.signed("timeout"),
        reset=members.flag("reset"),
        per_call=members.flag("per_call"),
        caller_instance=caller,
        **where,
    )
    return Order(request, content.notebook, content.missed_spec if is_open else None)


def _refuse_python_for_shell(where: Mapping[str, Any]) -> None:
    """Refuse what a shell cell could only ignore.

    Raises:
        InvalidInputError: A Python was named for cells that run in the shell.
    """
    if where["language"] != SHELL and where["backend"] is not BackendName.BASH:
        return
    for name in ("interpreter", "kernelspec"):
        if where[name] is not None:
            message = f"Shell cells run in bash; /{name} names something else to run them."
            raise refuse(f"/{name}", message, f"leave {name} out, or send the code as {LANGUAGES[0]}")


@dataclass(frozen=True, slots=True)
class StartOrder:
    """A session that is to be, or, with `explain`, only to be explained."""

    request: StartRequest
    explain: bool


def read_start(body: Mapping[str, Any], *, name: str | None = None) -> StartOrder:
    """Read the body of a start; `name` is the one of the path.

    Raises:
        InvalidInputError: It does not fit.
    """
    members = Members(body, _START)
    request = StartRequest(
        name=name or members.text("name") or "default",
        owner=Owner(members.choice("owner", OWNERS) or Owner.SESSION),
        env=members.texts("env"),
        arguments=members.strings("arguments"),
        timeout_seconds=members.number("timeout"),
        **_where(members),
    )
    return StartOrder(request, members.flag("explain"))


def _where(members: Members) -> dict[str, Any]:
    """Return the members that decide where code runs, by the names that both requests have for them."""
    backend = members.choice("backend", BACKENDS)
    language = members.choice("language", LANGUAGES)
    where = {
        "cwd": members.text("cwd"),
        "interpreter": members.text("interpreter"),
        "kernelspec": members.text("kernelspec"),
        "backend": None if backend is None else BackendName(backend),
        "language": language or LANGUAGES[0],
        "environ": members.texts("environ"),
    }
    _refuse_python_for_shell(where)
    return where


async def _content(kernels: Kernels, members: Members) -> _Content:
    given = [name for name in _SOURCES if name in members]
    if len(given) != 1:
        told = "none of them is there" if not given else f"there are {' and '.join(given)}"
        raise refuse("", f"The body must have one of {', '.join(_SOURCES)}; {told}.", 'for example {"code": "1 + 1"}')
    match given[0]:
        case "code":
            return _Content((Cell(members.source("code") or ""),))
        case "cells":
            return _Content(_cells(members))
        case "script":
            return _Content(_some(cells_of_script(members.source("script") or ""), "script"))
        case _:
            return await _notebook(kernels, members.source("notebook") or "")


def _cells(members: Members) -> tuple[Cell, ...]:
    cells = []
    for each in members.objects("cells", _CELL):
        code = each.source("code")
        if code is None:
            raise each.missing("code")
        cells.append(Cell(code, each.text("title")))
    return _some(tuple(cells), "cells")


def _some(cells: tuple[Cell, ...], name: str) -> tuple[Cell, ...]:
    if not cells:
        raise refuse(f"/{name}", f"/{name} has no cell to run.", 'for example {"code": "1 + 1"}')
    return cells


async def _notebook(kernels: Kernels, text: str) -> _Content:
    notebook = await _notebook_module()
    read = await asyncio.to_thread(notebook.cells_of_notebook, text)
    cells = _some(read.cells, "notebook")
    if read.kernelspec in {None, _USUAL_SPEC}:
        return _Content(cells, text)
    if await _is_missed(kernels, read.kernelspec, read.language):
        return _Content(cells, text, missed_spec=read.kernelspec)
    return _Content(cells, text, read.kernelspec)


async def _is_missed(kernels: Kernels, wanted: str, language: str | None) -> bool:
    """Say whether the usual choice takes the place of a notebook's kernelspec, which is told with the answer.

    Python notebooks name specs of the machine that they were written on; where there is none of that name, ours does.
    """
    return (language or "python").lower() == "python" and wanted not in await kernels.specs()


def _missed(spec: str, result: CallResult) -> str:
    return (
        f"The notebook names the kernelspec {spec[:_SHOWN]!r}, which is not installed here: "
        f"its cells ran in {result.interpreter} instead."
    )


async def _notebook_module() -> Any:
    """Return the module that knows notebooks; its library is slow to import and seldom needed."""
    return await asyncio.to_thread(importlib.import_module, "supervisord_py.kernels.notebook")
