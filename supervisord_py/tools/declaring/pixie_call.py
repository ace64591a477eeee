"""The body and headers of a run in Pixie's dialect: `{run_id, inputs, <each input again>, _pixie}` (CONTRACT §5).

The flat copy of the inputs serves older tools. With `input_transport: multipart` every input becomes a form field;
files, images and audio, which come as data URLs, become file parts.
"""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from supervisord_py.errors import BadRequestError
from supervisord_py.tools.declaring.input import fill_defaults
from supervisord_py.tools.spec import InputTransport

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from supervisord_py.tools.spec import ToolSpec

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
FILE_TYPES = frozenset({"file", "image", "audio"})
_DATA_URL = re.compile(r"data:(?P<type>[^;,]*)(?P<parameters>(?:;[^;,]*)*),(?P<content>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PixieCall:
    """One request to a Pixie tool: bytes to POST to `/run`, its headers, and where its artefacts may go.

    The directory is not made here.
    """

    body: bytes
    headers: Mapping[str, str]
    artefacts_dir: Path


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    content: bytes
    content_type: str = ""
    filename: str = ""


def pixie_call(spec: ToolSpec, inputs: Mapping[str, Any], run_id: str, artefacts_root: Path) -> PixieCall:
    """Build the request of one run.

    Args:
        spec: A tool of Pixie's dialect.
        inputs: The inputs as the caller gave them, already checked; defaults are filled in here.
        run_id: Letters, digits, `-`, `_`; at most 64.
        artefacts_root: `artefacts_root/<tool>/<run_id>` becomes the run's directory.

    Raises:
        BadRequestError: The run id cannot be one, or the inputs cannot be told as JSON.
    """
    if not RUN_ID.fullmatch(run_id):
        raise BadRequestError(f"{run_id[:80]!r} is no run id: letters, digits, '-' and '_', at most 64", unit=spec.unit)
    directory = artefacts_root / spec.name / run_id
    filled = fill_defaults(spec, inputs)
    own = {"run_id": run_id, "_pixie": {"run_id": run_id, "artefacts_dir": str(directory)}}
    try:
        if spec.pixie is not None and spec.pixie.input_transport is InputTransport.MULTIPART:
            files = {each.key for each in spec.pixie.inputs if each.type in FILE_TYPES}
            parts = [part for key, value in {**filled, **own}.items() for part in _parts(key, value, files)]
            body, content_type = _multipart(parts)
        else:
            document = {**filled, "inputs": filled, **own}
            body = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
                "utf-8", "replace"
            )
            content_type = "application/json"
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadRequestError(f"The input for {spec.unit} cannot be passed on: {why}.", unit=spec.unit) from error
    headers = {"Content-Type": content_type, "X-Pixie-Run-Id": run_id, "X-Pixie-Artefacts-Dir": str(directory)}
    return PixieCall(body, headers, directory)


def _parts(key: str, value: Any, files: set[str]) -> Iterator[_Part]:
    """Yield the form fields of one input: none for null, one each for several files, JSON for what is composed."""
    if value is None:
        return
    if key in files and isinstance(value, list):
        for index, each in enumerate(value):
            yield _file_part(key, each, index)
    elif key in files:
        yield _file_part(key, value, 0)
    elif isinstance(value, str):
        yield _Part(key, value.encode("utf-8", "replace"))
    else:
        yield _Part(key, json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace"))


def _file_part(key: str, value: Any, index: int) -> _Part:
    """Decode a data URL; what is none goes as it is, so that the tool can say what it thinks of it."""
    text = value if isinstance(value, str) else json.dumps(value)
    url = _DATA_URL.fullmatch(text)
    if url is None:
        return _Part(key, text.encode("utf-8", "replace"), "application/octet-stream", f"{key}-{index}")
    content_type = url["type"] or "text/plain"
    content = unquote_to_bytes(url["content"])
    if url["parameters"].endswith(";base64"):
        try:
            content = base64.b64decode(content)
        except binascii.Error as error:
            raise BadRequestError(f"input {key!r} is a data URL with broken base64: {error}") from None
    return _Part(key, content, content_type, f"{key}-{index}{mimetypes.guess_extension(content_type) or ''}")


def _multipart(parts: list[_Part]) -> tuple[bytes, str]:
    """Encode form fields as RFC 7578 asks; the boundary is random, so no content can contain it."""
    boundary = secrets.token_hex(16)
    lines: list[bytes] = []
    for part in parts:
        disposition = f'form-data; name="{_quoted(part.name)}"'
        if part.filename:
            disposition += f'; filename="{_quoted(part.filename)}"'
        lines += [f"--{boundary}".encode(), f"Content-Disposition: {disposition}".encode("utf-8", "replace")]
        if part.content_type:
            lines.append(f"Content-Type: {_quoted(part.content_type)}".encode("utf-8", "replace"))
        lines += [b"", part.content]
    lines += [f"--{boundary}--".encode(), b""]
    return b"\r\n".join(lines), f"multipart/form-data; boundary={boundary}"


def _quoted(text: str) -> str:
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
