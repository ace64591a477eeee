"""Queries and bodies of requests: their types, how they are read, and how a mistake in them is
told.

A name that a route does not know is refused with the nearest match, as an unknown setting would be:
a misspelt `folow=1` must not silently mean something else. In bodies null is the same as absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta
from multidict import MultiMapping

from supervisord_py.config import documents
from supervisord_py.errors import BadRequestError, InvalidInputError
from supervisord_py.kernels.session import BackendName

B = TypeVar("B")
LONGEST = 2**63 - 1
_AGE_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_AGE = re.compile(r"\d+(?:\.\d+)?|(?:\d+(?:\.\d+)?[smhdw])+", re.ASCII)
_AGE_PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)", re.ASCII)
_SHOWN = 80

# A path has at most 4,096 bytes (PATH_MAX of Linux), and no name that is used here is longer.
Text = Annotated[str, Meta(pattern=r"\S", max_length=4096)]
Environment = Annotated[dict[str, str], Meta(max_length=4096)]
MOST_CELLS = 10_000
MOST_LINES = 200_000  # of a script
Seconds = Annotated[float, Meta(ge=0, le=7 * 86400)]
Position = Annotated[int, Meta(ge=0, le=LONGEST)]
PageBytes = Annotated[int, Meta(ge=1, le=16 * 1024 * 1024)]
Moment = Annotated[str, Meta(description="RFC 3339, or an age like 10m or 1h30m")]
Count = Annotated[int, Meta(ge=0, le=50)]
KeepAlive = Annotated[float, Meta(ge=-1, le=1e9)]
Stream = Literal["stdout", "stderr"]
File = Annotated[str, Meta(pattern="^/[^\\x00]*[^/\\x00]$", description="an absolute path")]
Folder = Annotated[str, Meta(pattern="^/", description="an absolute path")]


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """No members: the path says it all."""


class New(Body):
    """A tool or pipe to be written."""

    name: Text


class NewPipe(New):
    """A pipe to be written; with a `command` it is one that needs no agent."""

    command: Text | None = None


class Add(Body):
    """What is to be copied: a path (of tools, an absolute one), an https address (of pipes), or
    `example:NAME`.
    """

    source: Text
    name: Text | None = None


class RunPipe(Body):
    """A run by hand; with several contexts one for each, in one transaction, and they wait in
    line.
    """

    context: (
        dict[str, Any] | Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=1000)] | None
    ) = None
    queue: bool | None = None
    timeout: Annotated[float, Meta(gt=0)] | None = None
    advance: bool | None = None


class RetryExecution(Body):
    """The same again; with `queue` it waits in line where its pipe runs already."""

    queue: bool | None = None


class Happening(Body):
    """What happened, for the pipes that it starts; the same key starts each of them once."""

    key: Text | None = None
    data: dict[str, Any] | None = None


class Place(Body):
    cwd: Text | None = None
    interpreter: Text | None = None
    kernelspec: Text | None = None
    backend: BackendName | None = None
    language: Literal["python", "bash"] | None = None
    environ: Environment | None = None


class StartKernel(Place):
    """A session that is to have a living kernel, or, with `explain`, only to be explained."""

    name: Text | None = None
    env: Environment | None = None
    arguments: (
        Annotated[list[Annotated[str, Meta(pattern=r"^[^\x00]*$")]], Meta(max_length=4096)] | None
    ) = None
    owner: Literal["session", "jupyter"] | None = None
    timeout: Annotated[float, Meta(ge=0)] | None = None
    explain: bool | None = None


class CellBody(Body):
    code: str
    title: Text | None = None
    allow_error: bool | None = None


class Execute(Place):
    """Cells: as `code`, as `cells`, as the text of a `notebook`, or as a `script` that is split
    at its `# %%` lines.
    """

    code: str | None = None
    cells: Annotated[list[CellBody], Meta(max_length=MOST_CELLS)] | None = None
    notebook: str | None = None
    script: str | None = None
    file: File | None = None  # where the script is
    timeout: float | None = None  # clamped, not refused
    reset: bool | None = None
    per_call: bool | None = None


class JupyterKernel(msgspec.Struct, frozen=True):
    """A kernel as Jupyter's clients ask for one; they send what they like beside it."""

    name: Text | None = None
    path: str | None = None
    env: Environment | None = None


def read_query(kind: type[msgspec.Struct], given: MultiMapping[str]) -> dict[str, Any]:
    """Read the query of a request; tuples are given repeated.

    Raises BadRequestError: one is unknown or impossible.
    """
    lists = {it.encode_name for it in msgspec.structs.fields(kind) if it.default == ()}
    values: dict[str, Any] = {}
    for name in given:
        every = given.getall(name)
        values[name] = every if name in lists or len(every) > 1 else every[0]
    query, problems = documents.convert(
        documents.Document(values, "", "", "json"), kind, strict=False
    )
    if query is not None:
        return msgspec.structs.asdict(query)
    name = problems[0].pointer.split("/")[1][:_SHOWN]
    message = f"Query parameter {name!r}: {problems[0].message}"
    raise BadRequestError(message, hint="see: GET /api/openapi.json", parameter=name)


def refuse_value(name: str, value: str, wanted: str) -> BadRequestError:
    """Make the error for a parameter or header with an impossible value; `wanted` is as `must be
    a number`.
    """
    message = f"{name!r} cannot be {value[:_SHOWN]!r}: it {wanted}."
    return BadRequestError(message, hint="see: GET /api/openapi.json", parameter=name)


def moment_of(name: str, text: str | None, now: float) -> float | None:
    """Return the Unix time of an RFC 3339 time (or UTC) or of an age.

    Raises BadRequestError: it is neither.
    """
    if text is None:
        return None
    if _AGE.fullmatch(text):
        age = sum(float(count) * _AGE_UNITS[unit] for count, unit in _AGE_PART.findall(text))
        return max(0.0, now - age)
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        wanted = "must be an RFC 3339 time (2026-01-31T12:00:00Z) or an age (90s, 10m, 1h30m, 2d)"
        raise refuse_value(name, text, wanted) from None


def last_id(headers: Mapping[str, str]) -> int | None:
    """Return the number in Last-Event-ID, None where there is none.

    Raises BadRequestError: it is no number.
    """
    seen = headers.get("Last-Event-ID", "")
    if seen and not (seen.isascii() and seen.isdigit() and int(seen[:20]) <= LONGEST):
        raise refuse_value("Last-Event-ID", seen, "must be the id of the last item")
    return int(seen) if seen else None


def read_body(kind: type[B], raw: bytes) -> B:
    """Read the JSON body of a request; none at all is `{}`.

    Raises BadRequestError if it is not JSON, or not an object; InvalidInputError if it does not
    fit, with the places as JSON pointers.
    """
    raw = raw or b"{}"
    try:
        return msgspec.json.decode(raw, type=kind)
    # the slow way says what is wrong, and takes a byte order mark
    except (ValueError, RecursionError):
        document = documents.parse_sent(raw, "The body")
    if not isinstance(document.value, dict):
        raise BadRequestError(
            "The body must be a JSON object.", hint='for example {"name": "my-tool"}'
        )
    read, problems = documents.convert(document, kind)
    if not problems:
        return cast(B, read)
    mistakes = [{"pointer": _clipped(it.pointer), "message": it.message} for it in problems]
    detail = f"{mistakes[0]['pointer'] or 'The body'}: {mistakes[0]['message']}."
    raise InvalidInputError(detail, hint="see: man pxd-api", errors=mistakes)


def _clipped(pointer: str) -> str:
    """Return a pointer that can be shown: names in a body may be as long as the body."""
    return (
        pointer
        if len(pointer) <= documents.MAX_MESSAGE
        else f"{pointer[: documents.MAX_MESSAGE - 1]}…"
    )
