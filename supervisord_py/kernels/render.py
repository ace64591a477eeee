"""What is shown of a cell, made from its files: one text, and outputs as notebooks have them.
Notebooks and scripts.

Text and outputs tell the same in the same order. Memory is bounded by the limits, not by what the
cell printed: the streams are read at their two ends, large rich outputs become files beside the
cell's own, `<cell id>.<n>.<extension>`. Of a notebook what a user wrote stays: cells, ids, metadata
and the minor version of the format; only outputs and counts are replaced. It is valid whatever a
cell gave: a reference to an artifact, which no schema knows, becomes a sentence and metadata.
Blocking: call it in a thread; nbformat alone takes a tenth of a second to import.
"""

from __future__ import annotations

import base64
import codecs
import importlib
import json
import mimetypes
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, convert
from msgspec.structs import replace

from supervisord_py.errors import InvalidInputError, UnknownUnitError
from supervisord_py.kernels.cell_files import CellLog, OutputGoneError, Reading, Record, StreamSpan
from supervisord_py.kernels.config import CellLimits
from supervisord_py.kernels.connection_file import write_private
from supervisord_py.kernels.inside.cell_writer import STATUS_MIME
from supervisord_py.kernels.session import Cell, CellError, CellResult, CellStatus
from supervisord_py.ledger.kernels import KernelCellRow

Output = dict[str, Any]
MOST_OUTPUTS = 500
INLINE_MOST_BYTES = 8 * 1024 * 1024  # of rich outputs in an answer; later ones are held to less
INLINE_LATER_BYTES = 4 * 1024
MARKDOWN, PLAIN, HTML = "text/markdown", "text/plain", "text/html"
TRANSIENT = "transient"
_SHOWN = ("display", "result", "error", "status")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TYPES = mimetypes.MimeTypes()  # without what the machine adds to them
_TYPES.add_type(MARKDOWN, ".md")
_TYPES.add_type("text/latex", ".tex")
_ARTIFACT = re.compile(r"[A-Za-z0-9_-]{1,64}\.[0-9]{1,20}\.[a-z0-9-]{1,40}\Z")
# Types that kernels give as base64: pictures (but SVG), sound, films, PDF.
_BASE64 = re.compile(r"(?:image/(?!svg\+xml)|audio/|video/|application/pdf\Z)")
MAJOR = 4
RICH_BYTES = 16 * 1024 * 1024  # of one picture or table in a notebook
TEXT_BYTES = 16 * 1024 * 1024  # of what one cell printed in a notebook
CELL_RICH_BYTES = 64 * 1024 * 1024  # of all pictures and tables of one cell in a notebook
NOTEBOOK_BYTES = 256 * 1024 * 1024  # of a notebook; its later cells are held to what an answer has
ALL_OUTPUTS = 100_000
_MARKER = re.compile(r"#\s?%%(?:[ \t]+(?P<rest>[^\r\n]*?))?[ \t]*(?:\r\n|\n|\r|\Z)")
_TYPE = re.compile(r"\[(\w+)\]")


class CellOutput(Struct, frozen=True):
    """What a cell gave, as far as its files tell; members without a comment as in CellResult."""

    text: str = ""
    outputs: tuple[Output, ...] = ()
    truncated: bool = False
    artifact: str | None = None
    total_bytes: int = 0
    error: CellError | None = None  # what was raised last, if anything
    end: Record | None = None  # None where it runs, or its writer was killed
    # that something which was printed is not on disk, for another reason than the cap
    unkept: str | None = None
    notices: tuple[str, ...] = ()  # output beyond the cap, outputs that are not listed


class _Part(Struct, eq=False):
    """A stretch of a stream, or what a record shows: `words` in the text, `output` among the
    outputs.
    """

    stream: str = ""
    start: int = 0
    size: int = 0
    offset: int = -1  # of the record
    words: bytes = b""
    output: Output | None = None
    display_id: str | None = None
    is_update: bool = False  # of a display that is not of this cell

    def read(self, log: CellLog, low: int, high: int) -> bytes:
        return (
            log.read(self.stream, self.start + low, high - low)
            if self.stream
            else self.words[low:high]
        )


def show(
    log: CellLog,
    limits: CellLimits,
    most_outputs: int = MOST_OUTPUTS,
    rich_bytes: int | None = None,
) -> CellOutput:
    """Return what is shown of a cell as its files are now; of rich outputs the last are listed.

    `rich_bytes`: how much of rich outputs there may be; more are held to a few KiB each.
    """
    inline = 0
    rich_bytes = INLINE_MOST_BYTES if rich_bytes is None else rich_bytes
    try:
        parts, last, total = _parts(log)
        rich = [part for part in parts if not part.stream]
        dropped = frozenset(rich[:-most_outputs])
        parts = [part for part in parts if part not in dropped]
        for part in rich[-most_outputs:]:
            allowed = limits.inline_bytes if inline < rich_bytes else INLINE_LATER_BYTES
            inline += _fill(part, log, min(allowed, limits.inline_bytes), limits.preview_bytes)
        text, outputs = _composed(log, parts, limits)
    except OutputGoneError as error:  # also taken while they were read
        return CellOutput(unkept=error.detail)
    end, capped, raised = map(last.get, ("end", "capped", "error"))
    unkept, notices = None, []
    if capped is not None and capped.disk:
        unkept = capped.capped_words
    elif capped is not None:
        notices.append(capped.capped_words)
    elif end is not None and (lost := end.at + end.err_at - total) > 0:
        unkept = f"{lost} bytes of output are lost: they were removed from disk while the cell ran"
    if dropped:
        notices.append(
            f"{len(dropped)} of {len(rich)} rich outputs are not listed: only the last are"
        )
    return CellOutput(
        text=text,
        outputs=tuple(outputs),
        truncated=capped is not None or sum(part.size for part in parts) > limits.preview_bytes,
        artifact=log.cell_id if total else None,
        total_bytes=total,
        error=raised.raised if raised else None,
        end=end,
        unkept=unkept,
        notices=tuple(notices),
    )


def _parts(log: CellLog) -> tuple[list[_Part], dict[str, Record], int]:
    """Return all that could be shown, in order, the last record of each kind, and the bytes of
    both streams.
    """
    reading, is_cleared = Reading(log), False  # by a clear that waits for the next output
    parts: list[_Part] = []
    last: dict[str, Record] = {}
    displays: dict[str | None, list[_Part]] = {}
    for item in reading.news():
        if isinstance(item, StreamSpan):
            part = _Part(item.stream, item.start, item.end - item.start)
        else:
            last[item.kind] = item
            part = _Part(offset=item.offset)
            if item.kind == "clear":
                is_cleared = item.wait
                if not item.wait:
                    parts.clear()
            if item.kind == "display" and item.update and item.display_id in displays:
                for each in displays[item.display_id]:
                    each.offset = item.offset
                continue
            if item.kind not in _SHOWN:
                continue
            if item.kind == "display" and item.display_id is not None:
                part.display_id = item.display_id
                part.is_update = item.update
                displays.setdefault(item.display_id, []).append(part)
        if is_cleared:
            parts.clear()
            is_cleared = False
        if part.stream and parts and parts[-1].stream == part.stream:
            parts[-1].size += part.size
        else:
            parts.append(part)
    return parts, last, sum(reading.told.values())


def _fill(part: _Part, log: CellLog, inline_bytes: int, most: int) -> int:
    """Make the words and the output of a record; return about how many bytes of it are in the
    answer.
    """
    record, data = log.record_at(part.offset), {}
    if record.kind == "error":
        part.output = _error_output(record.raised)
        # without its colours
        text = _ESCAPES.sub("", "\n".join(part.output["traceback"])).rstrip("\n")
        words = f"{text}\n".encode("utf-8", "replace")
    else:
        is_status = record.kind == "status"
        data = {STATUS_MIME: record.event} if is_status else _spilled(log, record, inline_bytes)
        part.output = {"output_type": "display_data", "metadata": record.metadata, "data": data}
        if part.display_id is not None:  # as Jupyter's messages have it; a notebook is made without
            part.output[TRANSIENT] = {"display_id": part.display_id, "update": part.is_update}
        if record.kind == "result":
            part.output |= {
                "output_type": "execute_result",
                "execution_count": record.execution_count,
            }
        words = b"" if is_status else text_of(record.data).encode("utf-8", "replace")
    # of its middle nothing can be shown
    part.words = words if len(words) <= 2 * most else words[:most] + words[-most:]
    part.size = len(part.words)
    return sum(len(joined(value)) for value in data.values())


def _cuts(parts: list[_Part], limits: CellLimits) -> list[tuple[int, int]]:
    """Return for each part how many bytes of its beginning and of its end are shown: of all
    parts the two ends.
    """
    whole = sum(part.size for part in parts)
    if whole <= limits.preview_bytes:
        return [(part.size, 0) for part in parts]
    head = limits.head_bytes
    tail = whole - max(0, limits.preview_bytes - limits.head_bytes)
    cuts = []
    at = 0
    for part in parts:
        first = min(part.size, max(0, head - at))
        at += part.size
        rest = min(part.size - first, max(0, at - tail))
        cuts.append((first, rest))
    return cuts


def _markers(log: CellLog, parts: list[_Part], cuts: list[tuple[int, int]]) -> dict[str, str]:
    """Return what stands in the place of the bytes of each stream that are not shown."""
    omitted = Counter[str]()
    for part, (first, rest) in zip(parts, cuts, strict=True):
        omitted[part.stream] += part.size - first - rest
    omitted = +omitted
    markers = {}
    for stream, size in omitted.items():
        of = f" of {stream or 'results'}" if len(omitted) > 1 else ""
        markers[stream] = f"… [{size} bytes{of} omitted; artifact {log.cell_id}] …\n"
    return markers


def _composed(log: CellLog, parts: list[_Part], limits: CellLimits) -> tuple[str, list[Output]]:
    """Put everything into one text and into outputs: of what is too much the two ends, and a
    marker for each stream.
    """
    cuts = _cuts(parts, limits)
    markers = _markers(log, parts, cuts)
    pieces = list[str]()
    last = ""  # piece that is not empty
    outputs = list[Output]()
    for part, (first, rest) in zip(parts, cuts, strict=True):
        data, end = part.read(log, 0, first), part.read(log, part.size - rest, part.size)
        if first + rest == part.size:
            words = (data + end).decode("utf-8", "replace")
        else:  # no character is divided
            words = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
            marker = markers.pop(part.stream, "")
            before = words or last
            if marker and before and not before.endswith("\n"):
                words += "\n"
            words += marker
            words += re.sub(rb"\A[\x80-\xbf]{1,3}", b"", end).decode("utf-8", "replace")
        if part.stream:
            words = as_on_a_terminal(words)
            outputs += (
                [{"output_type": "stream", "name": part.stream, "text": words}] if words else []
            )
        elif part.output is not None:
            outputs.append(part.output)
            words = f"\n{words}" if words and last and not last.endswith("\n") else words
        pieces.append(words)
        last = words or last
    return "".join(pieces), outputs


# -- text ------------------------------------------------------------------------------------------


def as_on_a_terminal(text: str) -> str:
    """Return the text with what stands behind the last carriage return of each line: progress as
    it was last.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def text_of(data: Mapping[str, Any]) -> str:
    """Return the words that stand for a bundle, ending with a line end: markdown, else plain
    text, else HTML; or "".
    """
    mime = next((each for each in (MARKDOWN, PLAIN, HTML) if each in data), None)
    text = "" if mime is None else joined(data[mime])
    if mime == HTML:  # the first time imports the library, a tenth of a second
        text = (
            importlib.import_module("markdownify")
            .markdownify(text, heading_style="ATX")
            .strip("\n")
        )
    return text if not text or text.endswith("\n") else f"{text}\n"


def joined(value: Any) -> str:
    # as notebooks may have a text
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# -- artifacts -------------------------------------------------------------------------------------


def _spilled(log: CellLog, record: Record, inline_bytes: int) -> dict[str, Any]:
    """Return the bundle of a record; values of more than `inline_bytes` are files.

    In their place stand references, `{"artifact": id, "bytes": n}`; a disk that takes no file
    leaves one with `"artifact": None` and the `error`.
    """
    kept = dict(record.data)
    for position, (mime, value) in enumerate(record.data.items()):
        if len(joined(value)) <= inline_bytes:
            continue
        known = _TYPES.guess_extension(mime, strict=False) or mime
        extension = re.sub(r"[^a-z0-9]+", "-", known.lower()).strip("-")[:40] or "bin"
        data = _content(mime, value)
        target = log.folder / f"{log.cell_id}.{record.offset + position}.{extension}"
        kept[mime] = {"artifact": target.name, "bytes": len(data)}
        try:
            if not target.exists():
                write_private(target, data)
        except OSError as error:
            kept[mime] |= {"artifact": None, "error": f"not kept: {error.strerror}"}
    return kept


def _content(mime: str, value: Any) -> bytes:
    if isinstance(value, str) and _BASE64.match(mime):
        with suppress(ValueError):  # not base64 after all: kept as the text that it is
            return base64.b64decode(value, validate=False)
    text = json.dumps(value, ensure_ascii=False) if mime.endswith("json") else joined(value)
    return text.encode("utf-8", "surrogatepass")


def find_artifact(folder: Path, artifact_id: str) -> tuple[Path, str]:
    """Return file and type of the artifact of that id in a session's folder.

    Raises UnknownUnitError: there is none.
    """
    path = folder / artifact_id
    if not _ARTIFACT.match(artifact_id) or path.is_symlink() or not path.is_file():
        raise UnknownUnitError(
            f"there is no artifact {artifact_id!r}: it never was, or was removed by age or for "
            "space",
            hint="ids are in the outputs of a cell; what a cell printed is at "
            "/api/kernels/{k}/cells/{id}/output",
        )
    return path, _TYPES.guess_type(artifact_id, strict=False)[0] or "application/octet-stream"


# -- notebooks and scripts -------------------------------------------------------------------------


def cells_of_notebook(text: str) -> tuple[tuple[Cell, ...], str | None]:
    """Return the code cells of a notebook that are to be run, and the name of the kernel that it
    was made with.

    Blank cells and those tagged `skip-execution` are not among them, and one tagged
    `raises-exception` may fail, as nbclient has it. Raises InvalidInputError, with line and column
    or a JSON pointer.
    """
    notebook = _read(text)
    cells = []
    for cell in _runnable(notebook):
        title = _text(cell.metadata.get("title") or cell.metadata.get("name"))
        cells.append(Cell(cell.source, title, allow_error="raises-exception" in _tags(cell)))
    kernelspec = notebook.metadata.get("kernelspec")
    return tuple(cells), _text(kernelspec.get("name")) if isinstance(kernelspec, dict) else None


def _tags(cell: Any) -> Sequence[str]:
    tags = cell.metadata.get("tags")
    return tags if isinstance(tags, list) else ()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _runnable(notebook: Any) -> Iterator[Any]:
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.source.strip() and "skip-execution" not in _tags(cell):
            yield cell


def executed(
    text: str,
    results: Sequence[CellResult],
    outputs_of: Callable[[CellResult], Sequence[Mapping[str, Any]]] = lambda result: result.outputs,
) -> str:
    """Return the notebook, as it was sent, with what its cells gave: `results`, in order, of
    `cells_of_notebook`.

    A cell that was not run is left without outputs. `outputs_of` returns those of a result in more
    detail.
    """
    notebook = _read(text)
    outputs = [outputs_of(it) if it.status is not CellStatus.ABORTED else () for it in results]
    for cell, result, shown in zip(_runnable(notebook), results, updated(outputs), strict=True):
        is_run = result.status is not CellStatus.ABORTED
        cell.outputs = _outputs(shown, result.status, result.error) if is_run else []
        cell.execution_count = result.execution_count
    return _written(notebook)


def updated(cells: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[Output]]:
    """Return the outputs of cells with each update of a display in the place of what an earlier
    cell displayed.

    An update of what none of them displayed stays where it came.
    """
    displays: dict[str, list[Output]] = {}
    made = []
    for outputs in cells:
        kept = list[Output]()
        for output in outputs:
            new = dict(output)
            about = new.pop(TRANSIENT, None)
            known = displays.get(about["display_id"]) if about else None
            if about and about["update"] and known:
                for display in known:
                    display["data"] = new["data"]
                    display["metadata"] = new["metadata"]
                continue
            if about:
                displays.setdefault(about["display_id"], []).append(new)
            kept.append(new)
        made.append(kept)
    return made


def _written(notebook: Any) -> str:
    text: str = importlib.import_module("nbformat").writes(notebook)
    # half a surrogate pair would make it no file at all
    text = text.encode("utf-8", "replace").decode()
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
    v4 = importlib.import_module("nbformat.v4")
    name = kernelspec or {"python": "python3"}.get(language, language)
    spec = {"name": name, "display_name": kernelspec or language.capitalize(), "language": language}
    about = {"language_info": {"name": language}, "px": {"session": session_id}}
    notebook = v4.new_notebook(metadata={"kernelspec": spec, **about})
    whole = WholeOutputs(limits)
    code_cells = []  # with status, error and outputs
    for row in (row for row in rows if row.status != CellStatus.ABORTED):
        metadata: dict[str, Any] = {"px": {"cell": row.id, "status": row.status}}
        if row.title:
            notebook.cells.append(
                v4.new_markdown_cell(f"### {row.title}", id=f"{row.id[:58]}-title")
            )
            metadata["title"] = row.title
        outputs: Sequence[Output] = ()
        is_kept = False
        with suppress(OutputGoneError, OSError):
            log = log_of(row)
            outputs = whole.of(log)
            is_kept = log.exists()
        if not is_kept and row.total_bytes:
            gone = f"… [{row.total_bytes} bytes of output were removed by age or for space] …\n"
            outputs = [{"output_type": "stream", "name": "stdout", "text": gone}]
        # One that runs has not failed.
        status = CellStatus(row.status) if row.status in set(CellStatus) else CellStatus.OK
        raised = None if row.error is None else convert(row.error, CellError)
        members: dict[str, Any] = {
            "id": row.id,
            "metadata": metadata,
            "execution_count": row.execution_count,
        }
        cell = v4.new_code_cell(row.code, **members)
        notebook.cells.append(cell)
        code_cells.append((cell, status, raised, outputs))
    shown = updated([outputs for *_, outputs in code_cells])
    for (cell, status, raised, _), outputs in zip(code_cells, shown, strict=True):
        cell.outputs = _outputs(outputs, status, raised)
    if whole.cut:
        notebook.metadata["px"]["cut"] = whole.cut
    return dict(json.loads(_written(notebook)))


class WholeOutputs:
    """The outputs of the cells of one notebook, whole up to limits that hardly anything reaches.

    `cut`: ids of the cells of which something is left out.
    """

    def __init__(self, limits: CellLimits) -> None:
        self.cut: list[str] = []
        self._usual = limits
        self._left = NOTEBOOK_BYTES

    def of(self, log: CellLog) -> list[Output]:
        """Return all outputs of a cell. Raises OSError."""
        limits = self._usual
        rich_bytes = INLINE_MOST_BYTES
        if self._left > 0:
            large = max(TEXT_BYTES, limits.preview_bytes)
            limits = replace(
                limits, inline_bytes=RICH_BYTES, preview_bytes=large, head_bytes=large // 2
            )
            rich_bytes = CELL_RICH_BYTES
        shown = show(log, limits, ALL_OUTPUTS, rich_bytes)
        is_cut = shown.truncated
        for output in shown.outputs:
            values = output.get("data", {}).values()
            self._left -= len(output.get("text", ""))
            for value in values:
                self._left -= len(joined(value))
                is_cut = is_cut or is_reference(value)
        if is_cut:
            self.cut.append(log.cell_id)
        return list(shown.outputs)


def is_reference(value: Any) -> bool:
    """Say whether a value of a bundle is not there itself, but a file beside the cell's."""
    return isinstance(value, dict) and {"artifact", "bytes"} <= set(value) <= {
        "artifact",
        "bytes",
        "error",
    }


def _outputs(
    outputs: Iterable[Mapping[str, Any]], status: CellStatus, error: CellError | None
) -> list[Any]:
    """Return outputs of an answer as a notebook may hold them, and the failure of a cell, where
    none tells it.
    """
    found: list[dict[str, Any]] = []
    for output in outputs:
        if "data" not in output:
            found.append(dict(output))
            continue
        kept: dict[str, Any] = {}
        away: dict[str, Any] = {}
        for mime, value in output["data"].items():
            if is_reference(value):
                away[mime] = value
            elif mime != STATUS_MIME:  # events have no place there
                kept[mime] = value if mime.endswith("json") else joined(value)
        metadata = dict(output.get("metadata") or {})
        if away:
            metadata["px"] = {"artifacts": away}
            words = [
                f"[{mime}, {it['bytes']} bytes: artifact {it['artifact']}]"
                for mime, it in away.items()
            ]
            kept.setdefault(PLAIN, "\n".join(words))
        if kept or not output["data"]:
            found.append({**output, "data": kept, "metadata": metadata})
    if status is not CellStatus.OK and not any(
        output["output_type"] == "error" for output in found
    ):
        found.append(_error_output(error or CellError(status.value, status.value)))
    return list(map(importlib.import_module("nbformat").from_dict, found))


def _error_output(error: CellError) -> Output:
    traceback = list(error.traceback) or [f"{error.name}: {error.value}"]
    return {
        "output_type": "error",
        "ename": error.name,
        "evalue": error.value,
        "traceback": traceback,
    }


def _read(text: str) -> Any:
    """Return a notebook as version 4 has it. What cannot be run is refused; what is only not valid
    is not.

    nbconvert and papermill run notebooks that their schema does not allow: cells of format 4.4 with
    ids, say.
    """
    nbformat = importlib.import_module("nbformat")
    try:
        plain = json.loads(text)
        major = plain.get("nbformat") if isinstance(plain, dict) else None
        if major not in range(1, MAJOR + 1):
            raise ValueError(f"nbformat is {major!r}; versions up to {MAJOR} can be read")
        with warnings.catch_warnings(action="ignore"):  # it tells of each id that it gives
            notebook = nbformat.reader.reads(text)
            if major != MAJOR:
                notebook = nbformat.convert(notebook, MAJOR)
            _complete(notebook)
            if notebook.nbformat_minor >= 5:  # which wants an id for each cell
                _, notebook = nbformat.validator.normalize(notebook, relax_add_props=True)
        if not _is_runnable(notebook):
            nbformat.validate(notebook, relax_add_props=True)
            raise ValueError("it has no cells that can be run")
    except Exception as error:  # a broken notebook breaks the library in any way
        pointer = "".join(f"/{part}" for part in getattr(error, "absolute_path", ()))
        why = str(getattr(error, "message", None) or error)[:300]
        raise InvalidInputError(
            f"the notebook is not valid: {pointer}{': ' if pointer else ''}{why}",
            hint="open it in Jupyter and save it again, or give `pxctl exec -f` a script",
            errors=[{"pointer": pointer, "message": why}],
        ) from error
    return notebook


def _complete(notebook: Any) -> None:
    """Add members that a cell must have and that say nothing."""
    notebook.setdefault("metadata", {})
    cells = notebook.get("cells")
    for cell in cells if isinstance(cells, list) else ():
        if not isinstance(cell, dict):
            continue
        cell.setdefault("metadata", {})
        if cell.get("cell_type") == "code":
            cell.setdefault("outputs", [])
            cell.setdefault("execution_count", None)


def _is_runnable(notebook: Any) -> bool:
    """Say whether there is what running needs: cells with a type, and code with a text and
    metadata.
    """
    if not isinstance(notebook.metadata, dict) or not isinstance(notebook.get("cells"), list):
        return False
    return all(
        isinstance(cell, dict)
        and isinstance(cell.get("cell_type"), str)
        and isinstance(cell.get("source"), str)
        and isinstance(cell.get("metadata"), dict)
        for cell in notebook.cells
    )


def cells_of_script(script: str) -> tuple[Cell, ...]:
    """Return the cells of a script that is split at its `# %%` lines: its code parts, each with its
    marker.

    Behind a marker stand a title and a type in brackets (`[markdown]`: no code). `# %%time` is a
    commented magic.
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
