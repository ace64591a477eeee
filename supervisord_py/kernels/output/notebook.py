"""Notebooks in both directions: cells out of one, outputs into it, and a session's history as a new one.

nbformat is imported when it is first needed (a tenth of a second: call these in a thread). Law: what a user wrote
stays: cells, ids, metadata and the minor version of the format; only outputs and counts are replaced. A file that is no
notebook is refused with the place of the mistake.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from supervisord_py.errors import InvalidInputError
from supervisord_py.kernels.cell import Cell, CellError, CellStatus
from supervisord_py.kernels.output.cell_log import OutputGoneError
from supervisord_py.kernels.output.notebook_outputs import Detail, notebook_outputs, valid_outputs, with_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from supervisord_py.kernels.cell import CellResult
    from supervisord_py.kernels.config import OutputLimits
    from supervisord_py.kernels.output.cell_log import CellLog
    from supervisord_py.kernels.output.render import Output

__all__ = ["Detail", "NotebookCells", "NotebookSession", "cells_of_notebook", "executed", "export", "notebook_outputs"]

SKIP_TAG = "skip-execution"
MAJOR = 4
IDS_SINCE = (4, 5)
_HINT = "open it in Jupyter and save it again, or give `pxctl exec -f` a script"
_LANGUAGES = {
    "python": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
    "bash": {"name": "bash", "file_extension": ".sh", "mimetype": "text/x-sh"},
}


@dataclass(frozen=True, slots=True)
class NotebookCells:
    """What a notebook asks to be run.

    Attributes:
        cells: Its code cells in order; blank ones and those tagged `skip-execution` are not among them.
        kernelspec: Name of the one that it was made with.
        language: Of that kernel.
    """

    cells: tuple[Cell, ...]
    kernelspec: str | None
    language: str | None


@dataclass(frozen=True, slots=True)
class NotebookSession:
    """The session whose history is exported."""

    session_id: str
    language: str = "python"
    kernelspec: str | None = None


class HistoryRow(Protocol):
    """One cell of a history, as the ledger has it."""

    @property
    def id(self) -> str:
        """Names its files."""

    @property
    def code(self) -> str:
        """What was run."""

    @property
    def title(self) -> str | None:
        """What the user called it."""

    @property
    def status(self) -> str:
        """`running` or a word of CellStatus."""

    @property
    def execution_count(self) -> int | None:
        """The kernel's number."""

    @property
    def total_bytes(self) -> int:
        """Of its stream output."""

    @property
    def error(self) -> Mapping[str, Any] | None:
        """What it raised."""


# -- out of a notebook ---------------------------------------------------------------------------------------------


def cells_of_notebook(text: str) -> NotebookCells:
    """Return what a notebook asks to be run.

    Raises:
        InvalidInputError: It is no notebook; line and column, or a JSON pointer, in `errors`.
    """
    notebook = _read(text)
    metadata = notebook.get("metadata") or {}
    spec = metadata.get("kernelspec") or {}
    language = (metadata.get("language_info") or {}).get("name") or spec.get("language")
    cells = tuple(Cell(cell["source"], _title(cell)) for cell in _runnable(notebook))
    return NotebookCells(cells, _text(spec.get("name")), _text(language))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _title(cell: Mapping[str, Any]) -> str | None:
    metadata = cell.get("metadata") or {}
    return _text(metadata.get("title")) or _text(metadata.get("name"))


def _runnable(notebook: Any) -> Iterator[Any]:
    for cell in notebook["cells"]:
        tags = (cell.get("metadata") or {}).get("tags") or ()
        if cell.get("cell_type") == "code" and cell["source"].strip() and SKIP_TAG not in tags:
            yield cell


# -- into a notebook -----------------------------------------------------------------------------------------------


def executed(
    text: str,
    results: Sequence[CellResult],
    outputs_of: Callable[[CellResult], Sequence[Mapping[str, Any]]] | None = None,
) -> str:
    """Return the notebook with what its cells gave.

    Args:
        text: The notebook as it was sent.
        results: Of the cells of `cells_of_notebook`, in that order; a cell without one, or whose result says that it
            was not run, is left without outputs.
        outputs_of: Returns the outputs of a result, in more detail than the result has them.

    Raises:
        InvalidInputError: It is no notebook.
    """
    notebook = _read(text)
    for position, cell in enumerate(_runnable(notebook)):
        result = results[position] if position < len(results) else None
        if result is None or result.status is CellStatus.ABORTED:
            cell["outputs"], cell["execution_count"] = [], None
            continue
        outputs = valid_outputs(result.outputs if outputs_of is None else outputs_of(result))
        cell["outputs"] = _nodes(with_failure(outputs, result.status, result.error))
        cell["execution_count"] = result.execution_count
    return _written(notebook)


def _nodes(outputs: Iterable[Mapping[str, Any]]) -> list[Any]:
    from_dict = importlib.import_module("nbformat").from_dict
    return [from_dict(dict(output)) for output in outputs]


def _written(notebook: Any) -> str:
    text: str = importlib.import_module("nbformat").writes(notebook)
    text = text.encode("utf-8", "replace").decode()  # half a surrogate pair would make it no file at all
    return text if text.endswith("\n") else f"{text}\n"


# -- history as a notebook -----------------------------------------------------------------------------------------


def export(
    rows: Iterable[HistoryRow],
    log_of: Callable[[Any], CellLog],
    session: NotebookSession,
    limits: OutputLimits,
    detail: Detail = Detail.CUT,
) -> dict[str, Any]:
    """Return a session's history as a notebook, nbformat 4.5, valid by its schema.

    Args:
        rows: In order; cells that were never run are left out.
        log_of: Returns the files of a row's cell.
        session: Whose history it is.
        limits: How much of large outputs it holds, with
        detail: how much more than answers do.
    """
    v4 = importlib.import_module("nbformat.v4")
    notebook = v4.new_notebook(metadata=_metadata(session))
    for row in rows:
        if row.status == CellStatus.ABORTED:
            continue
        metadata: dict[str, Any] = {"px": {"cell": row.id, "status": row.status}}
        if row.title:
            notebook.cells.append(v4.new_markdown_cell(f"### {row.title}", id=f"{row.id[:58]}-title"))
            metadata = {"title": row.title, **metadata}
        outputs = _nodes(_history_outputs(row, log_of, limits, detail))
        count = row.execution_count
        cell = v4.new_code_cell(row.code, id=row.id, metadata=metadata, execution_count=count, outputs=outputs)
        notebook.cells.append(cell)
    plain: dict[str, Any] = json.loads(_written(notebook))
    return plain


def _metadata(session: NotebookSession) -> dict[str, Any]:
    language = session.language
    name = session.kernelspec or {"python": "python3"}.get(language, language)
    return {
        "kernelspec": {"name": name, "display_name": session.kernelspec or language.capitalize(), "language": language},
        "language_info": _LANGUAGES.get(language, {"name": language}),
        "px": {"session": session.session_id},
    }


def _history_outputs(
    row: HistoryRow, log_of: Callable[[Any], CellLog], limits: OutputLimits, detail: Detail
) -> list[Output]:
    try:
        log = log_of(row)
        outputs = notebook_outputs(log, limits, detail)
        is_kept = log.exists()
    except (OutputGoneError, OSError):
        outputs, is_kept = [], False
    if not is_kept and row.total_bytes:
        gone = f"… [{row.total_bytes} bytes of output were removed by age or for space] …\n"
        outputs = [{"output_type": "stream", "name": "stdout", "text": gone}]
    return with_failure(outputs, _status(row.status), _error(row.error))


def _status(word: str) -> CellStatus:
    """Return the status of a row; one that runs has not failed yet."""
    return CellStatus(word) if word in set(CellStatus) else CellStatus.OK


def _error(said: Mapping[str, Any] | None) -> CellError | None:
    if not said:
        return None
    return CellError(str(said.get("name")), str(said.get("value")), tuple(map(str, said.get("traceback") or ())))


# -- reading -------------------------------------------------------------------------------------------------------


def _read(text: str) -> Any:
    """Return a notebook of major version 4, older ones upgraded, with cell ids where its version wants them."""
    try:
        plain = json.loads(text)
    except ValueError as error:
        raise _not_json(error) from error
    except RecursionError:
        raise _refused("", "it is nested too deeply") from None
    if not isinstance(plain, dict):
        raise _refused("", f"it is a JSON {type(plain).__name__}, not an object")
    major = plain.get("nbformat")
    if not isinstance(major, int) or isinstance(major, bool) or not 1 <= major <= MAJOR:
        raise _refused("/nbformat", f"is {major!r}; versions 1 to {MAJOR} can be read")
    if major == MAJOR:  # the schema names the place of a mistake, the library's own reading does not
        return importlib.import_module("nbformat.v4").to_notebook_json(_checked(plain))
    return _checked(_upgraded(text))


def _upgraded(text: str) -> Any:
    nbformat = importlib.import_module("nbformat")
    try:
        return nbformat.convert(nbformat.reader.reads(text), MAJOR)
    except Exception as error:  # a broken old notebook breaks the converters in any way
        raise _refused("", f"it cannot be read: {type(error).__name__}: {error}") from error


def _checked(notebook: Any) -> Any:
    """Give ids to cells that lack them or share them, then compare with the schema."""
    if not isinstance(notebook.get("cells"), list):
        raise _refused("/cells", "is missing or no list")
    if (MAJOR, notebook.get("nbformat_minor", 0)) >= IDS_SINCE:
        _give_ids(notebook["cells"])
    validator = importlib.import_module("nbformat.validator")
    for error in validator.iter_validate(notebook, strip_invalid_metadata=False):
        pointer = "".join(f"/{part}" for part in getattr(error, "absolute_path", None) or error.path)
        raise _refused(pointer, str(error.message)[:300])
    return notebook


def _give_ids(cells: Sequence[Any]) -> None:
    seen: set[str] = set()
    for position, cell in enumerate(cells):
        if not isinstance(cell, dict):
            continue
        if not isinstance(cell.get("id"), str) or cell["id"] in seen:
            cell["id"] = hashlib.sha256(f"{position}:{cell.get('source')}".encode()).hexdigest()[:8]
        seen.add(cell["id"])


def _not_json(error: ValueError) -> InvalidInputError:
    place = f"line {error.lineno}, column {error.colno}: " if isinstance(error, json.JSONDecodeError) else ""
    why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    return InvalidInputError(
        f"the notebook is not JSON: {place}{why}", hint=_HINT, errors=[{"pointer": "", "message": f"{place}{why}"}]
    )


def _refused(pointer: str, why: str) -> InvalidInputError:
    where = f"{pointer} " if pointer else ""
    return InvalidInputError(
        f"the notebook is not valid: {where}{why}", hint=_HINT, errors=[{"pointer": pointer, "message": why}]
    )
