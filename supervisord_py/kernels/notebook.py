"""Notebooks and scripts: cells out of them, outputs into a notebook, and a session's history as a new one.

nbformat is imported when it is first needed (a tenth of a second: call these in a thread). What a user wrote stays:
cells, ids, metadata and the minor version of the format; only outputs and counts are replaced. A notebook is valid
whatever a cell gave: a reference to an artifact, which no schema knows, becomes a sentence and metadata.
"""

from __future__ import annotations

import importlib
import json
import re
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from supervisord_py.errors import InvalidInputError
from supervisord_py.kernels.artifacts import joined
from supervisord_py.kernels.cell import Cell, CellError, CellStatus
from supervisord_py.kernels.cell_files import OutputGoneError, error_of
from supervisord_py.kernels.inside.cell_writer import STATUS_MIME
from supervisord_py.kernels.render import PLAIN, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from supervisord_py.kernels.cell import CellResult
    from supervisord_py.kernels.cell_files import CellLog
    from supervisord_py.kernels.config import CellLimits
    from supervisord_py.kernels.render import Output
    from supervisord_py.ledger.kernels import KernelCellRow

SKIP_TAG = "skip-execution"
MAJOR = 4
IDS_SINCE = (4, 5)
RICH_BYTES = 16 * 1024 * 1024
ALL_OUTPUTS = 100_000
_MARKER = re.compile(r"#\s?%%(?:[ \t]+(?P<rest>[^\r\n]*?))?[ \t]*(?:\r\n|\n|\r|\Z)")
_TYPE = re.compile(r"\[(\w+)\]")
_HINT = "open it in Jupyter and save it again, or give `pxctl exec -f` a script"
_LANGUAGES = {
    "python": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
    "bash": {"name": "bash", "file_extension": ".sh", "mimetype": "text/x-sh"},
}
_WORDS = {
    CellStatus.TIMED_OUT: "the cell ran out of its time and was ended",
    CellStatus.CANCELLED: "the cell was cancelled",
}


class NotebookCells(NamedTuple):
    """What a notebook asks to be run: its code cells, and name and language of the kernel it was made with.

    Blank cells and those tagged `skip-execution` are not among them.
    """

    cells: tuple[Cell, ...]
    kernelspec: str | None
    language: str | None


def cells_of_notebook(text: str) -> NotebookCells:
    """Return what a notebook asks to be run. Raises InvalidInputError, with line and column or a JSON pointer."""
    notebook = _read(text)
    metadata = notebook.get("metadata") or {}
    spec = metadata.get("kernelspec") or {}
    language = (metadata.get("language_info") or {}).get("name") or spec.get("language")
    abouts = [(cell["source"], cell.get("metadata") or {}) for cell in _runnable(notebook)]
    cells = tuple(Cell(code, _text(about.get("title")) or _text(about.get("name"))) for code, about in abouts)
    return NotebookCells(cells, _text(spec.get("name")), _text(language))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _runnable(notebook: Any) -> Iterator[Any]:
    for cell in notebook["cells"]:
        tags = (cell.get("metadata") or {}).get("tags") or ()
        if cell.get("cell_type") == "code" and cell["source"].strip() and SKIP_TAG not in tags:
            yield cell


def executed(
    text: str,
    results: Sequence[CellResult],
    outputs_of: Callable[[CellResult], Sequence[Mapping[str, Any]]] = lambda result: result.outputs,
) -> str:
    """Return the notebook, as it was sent, with what its cells gave: `results`, in order, of `cells_of_notebook`.

    A cell that was not run is left without outputs. `outputs_of` returns those of a result in more detail.
    """
    notebook = _read(text)
    for position, cell in enumerate(_runnable(notebook)):
        result = results[position] if position < len(results) else None
        if result is None or result.status is CellStatus.ABORTED:
            cell["outputs"], cell["execution_count"] = [], None
            continue
        cell["outputs"] = _outputs(outputs_of(result), result.status, result.error)
        cell["execution_count"] = result.execution_count
    return _written(notebook)


def _written(notebook: Any) -> str:
    text: str = importlib.import_module("nbformat").writes(notebook)
    text = text.encode("utf-8", "replace").decode()  # half a surrogate pair would make it no file at all
    return text if text.endswith("\n") else f"{text}\n"


def export(
    rows: Iterable[KernelCellRow],
    log_of: Callable[[KernelCellRow], CellLog],
    limits: CellLimits,
    *,
    session_id: str,
    language: str = "python",
    kernelspec: str | None = None,
) -> dict[str, Any]:
    """Return a session's history as a notebook, nbformat 4.5, valid by its schema; cells never run are left out."""
    v4 = importlib.import_module("nbformat.v4")
    spec = {
        "name": kernelspec or {"python": "python3"}.get(language, language),
        "display_name": kernelspec or language.capitalize(),
        "language": language,
    }
    about = {"language_info": _LANGUAGES.get(language, {"name": language}), "px": {"session": session_id}}
    notebook = v4.new_notebook(metadata={"kernelspec": spec, **about})
    for row in rows:
        if row.status == CellStatus.ABORTED:
            continue
        metadata: dict[str, Any] = {"px": {"cell": row.id, "status": row.status}}
        if row.title:
            notebook.cells.append(v4.new_markdown_cell(f"### {row.title}", id=f"{row.id[:58]}-title"))
            metadata["title"] = row.title
        outputs, is_kept = [], False
        with suppress(OutputGoneError, OSError):
            log = log_of(row)
            outputs, is_kept = detailed_outputs(log, limits), log.exists()
        if not is_kept and row.total_bytes:
            gone = f"… [{row.total_bytes} bytes of output were removed by age or for space] …\n"
            outputs = [{"output_type": "stream", "name": "stdout", "text": gone}]
        # One that runs has not failed.
        status = CellStatus(row.status) if row.status in set(CellStatus) else CellStatus.OK
        found = _outputs(outputs, status, error_of(row.error))
        members: dict[str, Any] = {"id": row.id, "metadata": metadata, "execution_count": row.execution_count}
        notebook.cells.append(v4.new_code_cell(row.code, outputs=found, **members))
    plain: dict[str, Any] = json.loads(_written(notebook))
    return plain


def detailed_outputs(log: CellLog, limits: CellLimits, *, rich: bool = False) -> list[Output]:
    """Return all outputs of a cell; blocking. With `rich`, pictures and tables are whole, up to 16 MiB each."""
    limits = replace(limits, inline_bytes=RICH_BYTES) if rich else limits
    return list(show(log, limits, ALL_OUTPUTS).outputs)


def _outputs(outputs: Iterable[Mapping[str, Any]], status: CellStatus, error: CellError | None) -> list[Any]:
    """Return outputs of an answer as a notebook may hold them, and the failure of a cell, where none tells it.

    Status events have no place there.
    """
    found = []
    for output in outputs:
        if "data" not in output:
            found.append(dict(output))
            continue
        kept: dict[str, Any] = {}
        away: dict[str, Any] = {}
        for mime, value in output["data"].items():
            if isinstance(value, dict) and {"artifact", "bytes"} <= set(value) <= {"artifact", "bytes", "error"}:
                away[mime] = value
            elif mime != STATUS_MIME:
                kept[mime] = value if mime.endswith("json") or isinstance(value, str) else joined(value)
        metadata = dict(output.get("metadata") or {})
        if away:
            metadata["px"] = {"artifacts": away}
            places = [f"artifact {it['artifact']}" if it["artifact"] else it.get("error") for it in away.values()]
            words = (f"[{mime}, {away[mime]['bytes']} bytes: {at}]" for mime, at in zip(away, places, strict=True))
            kept.setdefault(PLAIN, "\n".join(words))
        if kept or not output["data"]:
            found.append({**output, "data": kept, "metadata": metadata})
    if status is not CellStatus.OK and not any(output["output_type"] == "error" for output in found):
        name = error.name if error is not None else status.value
        value = error.value if error is not None else _WORDS.get(status, status.value)
        traceback = list(error.traceback) if error is not None else []
        told = {"ename": name, "evalue": value, "traceback": traceback or [f"{name}: {value}"]}
        found.append({"output_type": "error", **told})
    from_dict = importlib.import_module("nbformat").from_dict
    return [from_dict(output) for output in found]


def _read(text: str) -> Any:
    """Return a notebook of major version 4, older ones upgraded, with cell ids where its version wants them."""
    nbformat = importlib.import_module("nbformat")
    try:
        plain = json.loads(text)
        major = plain.get("nbformat") if isinstance(plain, dict) else None
        if not isinstance(major, int) or isinstance(major, bool) or not 1 <= major <= MAJOR:
            raise _refused("/nbformat", f"is {major!r}; versions 1 to {MAJOR} can be read")
        notebook = nbformat.convert(nbformat.reader.reads(text), MAJOR)
        if (MAJOR, notebook.nbformat_minor) >= IDS_SINCE:
            with warnings.catch_warnings(action="ignore"):  # it tells of each id that it gives
                _, notebook = nbformat.validator.normalize(notebook, relax_add_props=True)
        nbformat.validate(notebook)
        return notebook
    except InvalidInputError:
        raise
    except nbformat.ValidationError as error:
        pointer = "".join(f"/{part}" for part in error.absolute_path)
        raise _refused(pointer, str(error.message)[:300]) from error
    except ValueError as error:
        raise _refused("", f"it is not JSON: {error}") from error
    except Exception as error:  # a broken notebook breaks the library in any way
        raise _refused("", f"it cannot be read: {type(error).__name__}: {error}") from error


def _refused(pointer: str, why: str) -> InvalidInputError:
    where = f"{pointer} " if pointer else ""
    return InvalidInputError(
        f"the notebook is not valid: {where}{why}", hint=_HINT, errors=[{"pointer": pointer, "message": why}]
    )


def cells_of_script(script: str) -> tuple[Cell, ...]:
    """Return the cells of a script that is split at its `# %%` lines: its code parts, each with its marker.

    Behind a marker stand a title and a type in brackets (`[markdown]`: no code). `# %%time` is a commented magic.
    """
    parts: list[tuple[list[str], str | None, str]] = [([], None, "code")]
    for line in script.splitlines(keepends=True):
        marker = _MARKER.fullmatch(line)
        if marker is not None:
            rest = marker["rest"] or ""
            kind = _TYPE.search(rest)
            title = " ".join(_TYPE.sub(" ", rest, count=1).split())
            parts.append(([], title or None, kind[1].lower() if kind is not None else "code"))
        parts[-1][0].append(line)
    return tuple(
        Cell("".join(lines), title)
        for lines, title, kind in parts
        if kind == "code" and any(line.strip() and not _MARKER.fullmatch(line) for line in lines)
    )
