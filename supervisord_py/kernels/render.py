"""What is shown of a cell, made from its files: one text, and outputs as notebooks have them. Notebooks and scripts.

Text and outputs tell the same in the same order. Memory is bounded by the limits, not by what the cell printed: the
streams are read at their two ends, large rich outputs become files beside the cell's own, `<cell id>.<n>.<extension>`.
Of a notebook what a user wrote stays: cells, ids, metadata and the minor version of the format; only outputs and counts
are replaced. It is valid whatever a cell gave: a reference to an artifact, which no schema knows, becomes a sentence
and metadata. Blocking: call it in a thread; nbformat alone takes a tenth of a second to import.
"""

from __future__ import annotations

import base64
import codecs
import importlib
import json
import mimetypes
import re
import warnings
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
_SHOWN = ("display", "result", "error", "status")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TYPES = mimetypes.MimeTypes()  # without what the machine adds to them
_TYPES.add_type(MARKDOWN, ".md")
_TYPES.add_type("text/latex", ".tex")
_ARTIFACT = re.compile(r"[A-Za-z0-9_-]{1,64}\.[0-9]{1,20}\.[a-z0-9-]{1,40}\Z")
# Types that kernels give as base64: pictures (but SVG), sound, films, PDF.
_BASE64 = re.compile(r"(?:image/(?!svg\+xml)|audio/|video/|application/pdf\Z)")
MAJOR = 4
RICH_BYTES = 16 * 1024 * 1024
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
    unkept: str | None = None  # that something which was printed is not on disk, for another reason than the cap
    notices: tuple[str, ...] = ()  # output beyond the cap, outputs that are not listed


class _Part(Struct, eq=False):
    """A stretch of a stream, or what a record shows: `words` in the text, `output` among the outputs."""

    stream: str = ""
    start: int = 0
    size: int = 0
    offset: int = -1  # of the record
    words: bytes = b""
    output: Output | None = None

    def read(self, log: CellLog, low: int, high: int) -> bytes:
        return log.read(self.stream, self.start + low, high - low) if self.stream else self.words[low:high]


def show(log: CellLog, limits: CellLimits, most_outputs: int = MOST_OUTPUTS) -> CellOutput:
    """Return what is shown of a cell as its files are now; of rich outputs the last are listed."""
    inline = 0
    try:
        parts, last, total = _parts(log)
        rich = [part for part in parts if not part.stream]
        dropped = frozenset(rich[:-most_outputs])
        parts = [part for part in parts if part not in dropped]
        for part in rich[-most_outputs:]:
            allowed = limits.inline_bytes if inline < INLINE_MOST_BYTES else INLINE_LATER_BYTES
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
        notices.append(f"{len(dropped)} of {len(rich)} rich outputs are not listed: only the last are")
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
    """Return all that could be shown, in order, the last record of each kind, and the bytes of both streams."""
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
    """Make the words and the output of a record; return about how many bytes of it are in the answer."""
    record, data = log.record_at(part.offset), {}
    if record.kind == "error":
        part.output = _error_output(record.raised)
        text = _ESCAPES.sub("", "\n".join(part.output["traceback"])).rstrip("\n")  # without its colours
        words = f"{text}\n".encode("utf-8", "replace")
    else:
        is_status = record.kind == "status"
        data = {STATUS_MIME: record.event} if is_status else _spilled(log, record, inline_bytes)
        part.output = {"output_type": "display_data", "metadata": record.metadata, "data": data}
        if record.kind == "result":
            part.output |= {"output_type": "execute_result", "execution_count": record.execution_count}
        words = b"" if is_status else text_of(record.data).encode("utf-8", "replace")
    part.words = words if len(words) <= 2 * most else words[:most] + words[-most:]  # of its middle nothing can be shown
    part.size = len(part.words)
    return sum(len(joined(value)) for value in data.values())


def _composed(log: CellLog, parts: list[_Part], limits: CellLimits) -> tuple[str, list[Output]]:
    """Put everything into one text and into outputs: of what is too much the two ends, with a marker between them."""
    whole = sum(part.size for part in parts)
    is_cut = whole > limits.preview_bytes
    head = limits.head_bytes if is_cut else whole
    tail = whole - max(0, limits.preview_bytes - limits.head_bytes) if is_cut else whole
    marker = f"… [{tail - head} bytes omitted; artifact {log.cell_id}] …\n"
    text, outputs, at = "", list[Output](), 0
    for part in parts:
        first = min(part.size, max(0, head - at))
        at += part.size
        rest = min(part.size - first, max(0, at - tail))
        data, end = part.read(log, 0, first), part.read(log, part.size - rest, part.size)
        if first + rest == part.size:
            words = (data + end).decode("utf-8", "replace")
        else:  # no character is divided
            words = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
            so_far = words or text
            words += marker and (marker if not so_far or so_far.endswith("\n") else f"\n{marker}")
            words += re.sub(rb"\A[\x80-\xbf]{1,3}", b"", end).decode("utf-8", "replace")
            marker = ""
        if part.stream:
            words = as_on_a_terminal(words)
            outputs += [{"output_type": "stream", "name": part.stream, "text": words}] if words else []
        elif part.output is not None:
            outputs.append(part.output)
            words = f"\n{words}" if words and text and not text.endswith("\n") else words
        text += words
    return text, outputs


# -- text --------------------------------------------------------------------------------------------------------------


def as_on_a_terminal(text: str) -> str:
    """Return the text with what stands behind the last carriage return of each line: progress as it was last."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def text_of(data: Mapping[str, Any]) -> str:
    """Return the words that stand for a bundle, ending with a line end: markdown, else plain text, else HTML; or ""."""
    mime = next((each for each in (MARKDOWN, PLAIN, HTML) if each in data), None)
    text = "" if mime is None else joined(data[mime])
    if mime == HTML:  # the first time imports the library, a tenth of a second
        text = importlib.import_module("markdownify").markdownify(text, heading_style="ATX").strip("\n")
    return text if not text or text.endswith("\n") else f"{text}\n"


def joined(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):  # as notebooks may have a text
        return "".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# -- artifacts ---------------------------------------------------------------------------------------------------------


def _spilled(log: CellLog, record: Record, inline_bytes: int) -> dict[str, Any]:
    """Return the bundle of a record; values of more than `inline_bytes` are files.

    In their place stand references, `{"artifact": id, "bytes": n}`; a disk that takes no file leaves one with
    `"artifact": None` and the `error`.
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
    """Return file and type of the artifact of that id in a session's folder. Raises UnknownUnitError: there is none."""
    path = folder / artifact_id
    if not _ARTIFACT.match(artifact_id) or path.is_symlink() or not path.is_file():
        raise UnknownUnitError(
            f"there is no artifact {artifact_id!r}: it never was, or was removed by age or for space",
            hint="ids are in the outputs of a cell; what a cell printed is at /api/kernels/{k}/cells/{id}/output",
        )
    return path, _TYPES.guess_type(artifact_id, strict=False)[0] or "application/octet-stream"


# -- notebooks and scripts ---------------------------------------------------------------------------------------------


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
        if cell.cell_type == "code" and cell.source.strip() and "skip-execution" not in cell.metadata.get("tags", ()):
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
    v4 = importlib.import_module("nbformat.v4")
    name = kernelspec or {"python": "python3"}.get(language, language)
    spec = {"name": name, "display_name": kernelspec or language.capitalize(), "language": language}
    about = {"language_info": {"name": language}, "px": {"session": session_id}}
    notebook = v4.new_notebook(metadata={"kernelspec": spec, **about})
    for row in (row for row in rows if row.status != CellStatus.ABORTED):
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
    return dict(json.loads(_written(notebook)))


def detailed_outputs(log: CellLog, limits: CellLimits, *, rich: bool = False) -> list[Output]:
    """Return all outputs of a cell. With `rich`, pictures and tables are whole, up to 16 MiB each."""
    limits = replace(limits, inline_bytes=RICH_BYTES) if rich else limits
    return list(show(log, limits, ALL_OUTPUTS).outputs)


def _outputs(outputs: Iterable[Mapping[str, Any]], status: CellStatus, error: CellError | None) -> list[Any]:
    """Return outputs of an answer as a notebook may hold them, and the failure of a cell, where none tells it."""
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
            elif mime != STATUS_MIME:  # events have no place there
                kept[mime] = value if mime.endswith("json") else joined(value)
        metadata = dict(output.get("metadata") or {})
        if away:
            metadata["px"] = {"artifacts": away}
            words = [f"[{mime}, {it['bytes']} bytes: artifact {it['artifact']}]" for mime, it in away.items()]
            kept.setdefault(PLAIN, "\n".join(words))
        if kept or not output["data"]:
            found.append({**output, "data": kept, "metadata": metadata})
    if status is not CellStatus.OK and not any(output["output_type"] == "error" for output in found):
        found.append(_error_output(error or CellError(status.value, status.value)))
    return list(map(importlib.import_module("nbformat").from_dict, found))


def _error_output(error: CellError) -> Output:
    traceback = list(error.traceback) or [f"{error.name}: {error.value}"]
    return {"output_type": "error", "ename": error.name, "evalue": error.value, "traceback": traceback}


def _read(text: str) -> Any:
    nbformat = importlib.import_module("nbformat")
    try:
        plain = json.loads(text)
        major = plain.get("nbformat") if isinstance(plain, dict) else None
        if major != MAJOR:
            raise ValueError(f"nbformat is {major!r}; version {MAJOR} can be read")
        notebook = nbformat.reader.reads(text)
        if notebook.nbformat_minor >= 5:  # which wants an id for each cell
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
