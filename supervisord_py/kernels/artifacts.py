"""Large rich outputs as files beside the cell's own: `<cell id>.<n>.<extension>`, 0600."""

from __future__ import annotations

import base64
import json
import mimetypes
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels.cell_files import CELL_ID, READ_BYTES, CellLog, Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_TYPES = mimetypes.MimeTypes()  # without what the machine adds to them
_TYPES.add_type("text/markdown", ".md")
_TYPES.add_type("text/latex", ".tex")
_RICH = re.compile(r"[A-Za-z0-9_-]{1,64}\.[0-9]{1,20}\.[a-z0-9-]{1,40}\Z")
# Types that kernels give as base64: pictures (but SVG), sound, films, PDF.
_BASE64 = re.compile(r"(?:image/(?!svg\+xml)|audio/|video/|application/pdf\Z)")


class ArtifactFile(NamedTuple):
    """An artifact as it lies there; `mime` is its type."""

    path: Path
    mime: str


def spill(folder: Path, cell_id: str, place: int, data: Mapping[str, Any], inline_bytes: int) -> dict[str, Any]:
    """Return a bundle (`{mime: value}`) of at most about `inline_bytes`: its largest values are files.

    In their place stand references, `{"artifact": id, "bytes": n}`; a disk that takes no file leaves one with
    `"artifact": None` and the `error`. `place`: offset of the record.
    """
    weights = {mime: weight(value) for mime, value in data.items()}
    total, kept = sum(weights.values()), dict(data)
    for position, mime in sorted(enumerate(data), key=lambda each: -weights[each[1]]):
        if total <= inline_bytes:
            break
        total -= weights[mime]
        known = _TYPES.guess_extension(mime, strict=False) or mime
        extension = re.sub(r"[^a-z0-9]+", "-", known.lower()).strip("-")[:40] or "bin"
        kept[mime] = _keep(folder / f"{cell_id}.{place + position}.{extension}", content(mime, data[mime]))
    return kept


def content(mime: str, value: Any) -> bytes:
    if isinstance(value, str) and _BASE64.match(mime):
        with suppress(ValueError):  # not base64 after all: kept as the text that it is
            return base64.b64decode(value, validate=False)
    text = json.dumps(value, ensure_ascii=False) if mime.endswith("json") else joined(value)
    return text.encode("utf-8", "surrogatepass")


def _keep(target: Path, data: bytes) -> dict[str, Any]:
    """Write a file whole or not at all, unless it is there already; return the reference to it."""
    draft = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        if not target.exists() or target.stat().st_size != len(data):
            _write(draft, [data])
            draft.replace(target)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        return {"artifact": None, "bytes": len(data), "error": f"not kept: {error.strerror}"}
    return {"artifact": target.name, "bytes": len(data)}


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.writelines(pieces)


def find_artifact(folder: Path, artifact_id: str) -> ArtifactFile:
    """Return the artifact of that id in a session's folder.

    A cell's own id names its complete output: the file of stdout, or one that is made of both streams. Raises
    UnknownUnitError: there is none, or it is no id of an artifact.
    """
    path, mime = folder / artifact_id, _TYPES.guess_type(artifact_id, strict=False)[0]
    if CELL_ID.match(artifact_id):
        log = CellLog(folder, artifact_id)
        path = log.paths["stdout"]
        if log.size("stderr"):
            path = path.with_suffix(".both")
            spans = Reading(log, span_bytes=READ_BYTES).spans()
            _write(path, (log.read(stream, start, end - start) for stream, start, end in spans))
    elif not _RICH.match(artifact_id):
        raise UnknownUnitError(f"{artifact_id!r} is not the id of an artifact", hint="ids are in the outputs of a cell")
    if path.is_symlink() or not path.is_file():
        raise UnknownUnitError(
            f"there is no artifact {artifact_id}: it never was, or was removed by age or for space",
            hint="`kernels.output` in the settings says how much is kept and for how long",
        )
    return ArtifactFile(path, mime or "application/octet-stream")


def joined(value: Any) -> str:
    """Return a value as one text; notebooks may hold it as a list of lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return json.dumps(value, ensure_ascii=False)


def weight(value: Any) -> int:
    return len(value) if isinstance(value, str) else len(json.dumps(value, ensure_ascii=False))
