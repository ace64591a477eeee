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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from supervisord_py.errors import InvalidInputError
from supervisord_py.kernels.cell_files import CellLog, OutputGoneError
from supervisord_py.kernels.config import CellLimits
from supervisord_py.kernels.inside.cell_writer import STATUS_MIME
from supervisord_py.kernels.render import PLAIN, Output, joined, show
from supervisord_py.kernels.session import Cell, CellError, CellResult, CellStatus
from supervisord_py.ledger.kernels import KernelCellRow

SKIP_TAG = "skip-execution"
MAJOR = 4
IDS_SINCE = (4, 5)
RICH_BYTES = 16 * 1024 * 1024
ALL_OUTPUTS = 100_000
_MARKER = re.compile(r"#\s?%%(?:[ \t]+(?P<rest>[^\r\n]*?))?[ \t]*(?:\r\n|\n|\r|\Z)")
_TYPE = re.compile(r"\[(\w+)\]")


def cells_of_notebook(text: str) -> tuple[tuple[Cell, ...], str | None]:
    """Return the code cells of a notebook that are to be run, and the name of the kernel that it was made with.

    Blank cells and those tagged `skip-execution` are not among them. Raises InvalidInputError, with line and column or
    a JSON pointer.
    """
    notebook = _read(text)
    cells = (Cell(it.source, _text(it.metadata.get("title") or it.metadata.get("name"))) for it in _runnable(notebook))
    return tuple(cells), _text(notebook.metadata.get("kernelspec", {}).get("name"))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _runnable(notebook: Any) -> Iterator[Any]:
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.source.strip() and SKIP_TAG not in cell.metadata.get("tags", ()):
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
    for cell, result in zip(_runnable(notebook), results, strict=True):
        is_run = result.status is not CellStatus.ABORTED
        cell.outputs = _outputs(outputs_of(result), result.status, result.error) if is_run else []
        cell.execution_count = result.execution_count
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
    name = kernelspec or {"python": "python3"}.get(language, language)
    spec = {"name": name, "display_name": kernelspec or language.capitalize(), "language": language}
    about = {"language_info": {"name": language}, "px": {"session": session_id}}
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
        raised = None if row.error is None else convert(row.error, CellError)
        found = _outputs(outputs, status, raised)
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
    found: list[dict[str, Any]] = []
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
                kept[mime] = value if mime.endswith("json") else joined(value)
        metadata = dict(output.get("metadata") or {})
        if away:
            metadata["px"] = {"artifacts": away}
            words = [f"[{mime}, {it['bytes']} bytes: artifact {it['artifact']}]" for mime, it in away.items()]
            kept.setdefault(PLAIN, "\n".join(words))
        if kept or not output["data"]:
            found.append({**output, "data": kept, "metadata": metadata})
    if status is not CellStatus.OK and not any(output["output_type"] == "error" for output in found):
        error = error or CellError(status.value, status.value)
        traceback = list(error.traceback) or [f"{error.name}: {error.value}"]
        told = {"ename": error.name, "evalue": error.value, "traceback": traceback}
        found.append({"output_type": "error", **told})
    from_dict = importlib.import_module("nbformat").from_dict
    return [from_dict(output) for output in found]


def _read(text: str) -> Any:
    """Return a notebook of major version 4, older ones upgraded, with cell ids where its version wants them."""
    nbformat = importlib.import_module("nbformat")
    try:
        plain = json.loads(text)
        major = plain.get("nbformat") if isinstance(plain, dict) else None
        if major not in range(1, MAJOR + 1):
            raise ValueError(f"nbformat is {major!r}; versions 1 to {MAJOR} can be read")
        notebook = nbformat.convert(nbformat.reader.reads(text), MAJOR)
        if (MAJOR, notebook.nbformat_minor) >= IDS_SINCE:
            with warnings.catch_warnings(action="ignore"):  # it tells of each id that it gives
                _, notebook = nbformat.validator.normalize(notebook, relax_add_props=True)
        nbformat.validate(notebook)
    except Exception as error:  # a broken notebook breaks the library in any way
        pointer = "".join(f"/{part}" for part in getattr(error, "absolute_path", ()))
        why = str(getattr(error, "message", None) or error)[:300]
        raise InvalidInputError(
            f"the notebook is not valid: {pointer}{': ' if pointer else ''}{why}",
            hint="open it in Jupyter and save it again, or give `pxctl exec -f` a script",
            errors=[{"pointer": pointer, "message": why}],
        ) from error
    return notebook


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
