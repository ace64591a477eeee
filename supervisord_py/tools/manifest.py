"""From a tool's folder to its spec, or to one error that lists everything wrong with its files
(CONTRACT §5).

The two dialects of `tool.json` are told apart by their keys and end in the same `ToolSpec`. A key
that neither has is an error with its nearest match; a key of the other dialect says so. Nothing of
the tool is run.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, structs

from supervisord_py.config import documents
from supervisord_py.config.documents import Document, DocumentError, Problem, convert
from supervisord_py.config.settings import ToolsSettings
from supervisord_py.errors import ConfigError, InvalidInputError, TooLargeError
from supervisord_py.process.child_environment import ENV_NAME, MARKS
from supervisord_py.process.pool import Rules
from supervisord_py.tools import pixie
from supervisord_py.tools.pixie import YEAR, Megabytes, PixieManifest, Runtime, Text, WarmKeep, Word
from supervisord_py.tools.schema import (
    UNIQUE_VALUES,
    compares_items,
    compile_schema,
    measure,
    schema_problems,
    violations,
)

MEBIBYTE = 1024 * 1024
MANIFEST = "tool.json"
SIDECAR = "pxd.json"
DOTENV = ".env"
VENV = ".venv"
MAX_NAME = 64
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_Module = Annotated[str, Meta(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$")]
_LOADED_ONCE = (DOTENV, f"{VENV}/pyvenv.cfg")

Stamp: TypeAlias = tuple[int, int, int] | None
"""(mtime in ns, size, inode) of a file; None where there is none or it cannot be looked at."""


class ToolLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """Hard limits; None leaves the daemon's own.

    `cpu_seconds` counts over the life of one process, `processes` the tool's where its cgroup
    counts them, else all of the user's. `cpu_percent`, of one processor, needs a cgroup.
    """

    open_files: Annotated[int, Meta(ge=16, le=1024 * 1024)] | None = None
    processes: Annotated[int, Meta(ge=1, le=4 * 1024 * 1024)] | None = None
    cpu_seconds: Annotated[int, Meta(ge=1, le=100 * YEAR)] | None = None
    cpu_percent: Annotated[int, Meta(ge=1, le=100 * 1024)] | None = None
    address_space_mb: Annotated[int, Meta(ge=16, le=16 * 1024 * 1024)] | None = None


class OwnKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is ours alone: keys of a plain `tool.json`, or of `pxd.json` beside a Pixie tool."""

    command: Annotated[tuple[Word, ...], Meta(min_length=1)] = ()  # () for Python tools
    python: Word = ""  # "" for what `environment.find_interpreter` finds
    listen: Literal["handover", "port", "fd"]
    # which of the two `max_memory_mb` bounds
    memory_limit: Literal["resident", "address_space"] = "resident"
    start_timeout_seconds: Annotated[float, Meta(ge=0.1, le=3600)] = 30.0  # from the spawn to ready
    stop_timeout_seconds: Annotated[float, Meta(ge=0, le=3600)] = 5.0  # from TERM to KILL
    concurrency: Annotated[int, Meta(ge=1, le=10_000)] = 16  # requests at a time for one instance
    # modules for a zygote, () for those that it learns, False for none
    preload: tuple[_Module, ...] | bool = ()
    env: dict[str, Text] = {}
    pinned: bool = False
    limits: ToolLimits = ToolLimits()


class PlainManifest(OwnKeys, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Word  # Pixie's `id`
    version: str = ""
    description: str = ""
    # Schema of a run's input; derived from `inputs` for Pixie tools. `{}` accepts everything.
    input: dict[str, Any] = {}
    output: dict[str, Any] = {}
    warm_keep_seconds: WarmKeep
    max_memory_mb: Megabytes
    max_runtime_seconds: Runtime
    entrypoint: Word = "main.py"


COMMON_KEYS = ("warm_keep_seconds", "max_memory_mb", "max_runtime_seconds", "entrypoint")
OWN_KEYS = tuple(OwnKeys.__struct_fields__)
PLAIN_KEYS = ("name", "version", "description", "input", "output")
PIXIE_KEYS = tuple(key for key in PixieManifest.__struct_fields__ if key not in COMMON_KEYS)


class ToolSpec(PlainManifest, frozen=True, kw_only=True):
    """One tool, whichever dialect it is written in: a value, made by `load_tool` and by nothing
    else.
    """

    unit: str  # `tool:<name>`
    title: str
    folder: Path  # absolute path; the working directory of an instance
    manifest: Mapping[str, Any]  # `tool.json` as parsed: what the tool's `GET /schema` must give
    validator: Any  # of `input`
    compares_items: bool  # whether `input` asks that items are unique
    sources: tuple[str, ...]  # the files, relative to the folder, that an instance is started from
    digest: str  # SHA-256 (hex) over everything that makes a running instance stale when it changes
    rules: Rules  # what the pool goes by
    pixie: PixieManifest | None  # what only Pixie's dialect has; None for plain tools
    warnings: tuple[str, ...]  # what does not fit together, but is no error

    def __repr__(self) -> str:
        """Name the tool; `env` may hold secrets."""
        return f"ToolSpec({self.name!r}, {str(self.folder)!r}, digest={self.digest[:12]!r})"

    @property
    def dialect(self) -> str:
        return "plain" if self.pixie is None else "pixie"

    @property
    def settings_file(self) -> str:
        """The file in the folder where `listen`, `command`, `python` and `env` are set."""
        return MANIFEST if self.pixie is None else SIDECAR

    @property
    def max_rss_bytes(self) -> int | None:
        """Resident limit of the tree in bytes; None when there is none or the limit is one of
        address space.
        """
        return self.max_memory_mb * MEBIBYTE or None if self.memory_limit == "resident" else None

    @property
    def max_address_space_bytes(self) -> int | None:
        """RLIMIT_AS in bytes: the smaller of `limits.address_space_mb` and, in that mode,
        `max_memory_mb`.
        """
        asked = (
            self.limits.address_space_mb,
            self.max_memory_mb if self.memory_limit == "address_space" else None,
        )
        return min((each * MEBIBYTE for each in asked if each), default=None)


def check_input(spec: ToolSpec, value: Any) -> None:
    """Check the input of one run, as parsed from JSON, before anything is spawned.

    Raises InvalidInputError: with `errors=[{pointer, message}]`, one for each place that does not
    fit; TooLargeError.
    """
    if spec.compares_items and measure(value, UNIQUE_VALUES)[0] > UNIQUE_VALUES:
        detail = f"The input for {spec.unit} has too many values for a schema with uniqueItems."
        hint = f"send at most {UNIQUE_VALUES:,}, or leave uniqueItems out of the schema"
        raise TooLargeError(detail, hint=hint, unit=spec.unit, limit_values=UNIQUE_VALUES)
    if spec.pixie is not None:
        # null stands for absent
        value = pixie.without_nulls(pixie.fill_defaults(spec.pixie, value))
    elif spec.validator.is_valid(value):
        return
    if found := violations(spec.validator, value):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise InvalidInputError(
            f"input of {spec.unit}: {found[0].pointer or 'the input'} {found[0].message}{more}",
            hint=f"pxctl tools show {spec.name}",
            unit=spec.unit,
            errors=[{"pointer": each.pointer, "message": each.message} for each in found],
        )


def load_tool(folder: Path, settings: ToolsSettings | None = None) -> ToolSpec:
    """Read the declaration of the tool in `folder`; the settings count where it says nothing.

    Raises ConfigError: with `file`, `line`, `column`, `pointer` of the first problem and `errors`
    with all of them.
    """
    folder, settings = folder.absolute(), settings or ToolsSettings()
    name, has_sidecar = folder.name, os.path.lexists(folder / SIDECAR)
    try:
        manifest = _read(folder / MANIFEST)
        # The dialects are told apart by the keys that matter most: they are called alike, but for a
        # letter.
        keys = manifest.value.keys()
        is_pixie = len(keys & {"id", "inputs", "outputs"}) > len(keys & {"input", "output"})
        if is_pixie and not name_trouble(str(manifest.value.get("id"))):
            name = manifest.value["id"]
        sidecar = (
            _read(folder / SIDECAR)
            if has_sidecar
            else documents.parse_json("{}", str(folder / SIDECAR))
        )
    except DocumentError as error:
        raise broken([error.problem], name) from None
    own = sidecar if is_pixie else manifest
    usual = {key: getattr(settings, key) for key in COMMON_KEYS[:3]}
    asked = {"listen": "port" if own.value.get("command") else "handover", **own.value}
    if is_pixie:
        fields, problems = _read_pixie(manifest, usual, sidecar, asked)
    else:
        fields, problems = _read_plain(manifest, usual | asked)
        problems += (
            [sidecar.problem((), "stands beside a plain tool.json: put its keys there")]
            if has_sidecar
            else []
        )
    problems = problems or list(_rules(fields, folder, manifest, own))
    if problems:
        raise broken(problems, name)
    relative = (
        each
        for each in fields["command"]
        if not each.startswith("/") and ".." not in each.split("/")
    )
    sources = tuple(each for each in relative if (folder / each).is_file())
    sources = sources if fields["command"] else (fields["entrypoint"],)
    loaded = [(name, _stamp(f"{folder}/{name}")) for name in (*_LOADED_ONCE, *sources)]
    texts = (manifest.text.encode(), sidecar.text.encode() if has_sidecar else b"")
    digest = hashlib.sha256(repr((texts, loaded)).encode()).hexdigest()
    return ToolSpec(
        **fields,
        unit=f"tool:{name}",
        folder=folder,
        manifest=manifest.value,
        sources=sources,
        digest=digest,
        rules=Rules(digest, fields["concurrency"], fields["warm_keep_seconds"]),
        validator=compile_schema(fields["input"]),
        compares_items=compares_items(fields["input"]),
    )


def broken(problems: list[Problem], name: str) -> ConfigError:
    return documents.config_error(
        problems, f"tool:{name}", f"mend the file, then: pxctl tools validate {name}"
    )


def _read(path: Path) -> Document:
    document = documents.read_document(path)
    if not isinstance(document.value, dict):
        raise DocumentError(
            document.problem(
                (), f"must be a JSON object, not {documents.type_name(document.value)}"
            )
        )
    return document


def name_trouble(name: str) -> str | None:
    """Say why a name cannot be a tool's; None when it can."""
    if len(name) <= MAX_NAME and NAME.fullmatch(name):
        return None
    return (
        f"must be at most {MAX_NAME} lower-case letters, digits and '-', beginning with a letter "
        "or digit"
    )


def _read_plain(
    document: Document, value: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Problem]]:
    read, problems = convert(document, PlainManifest, value=value)
    for key in ("input", "output"):
        for path, message in schema_problems(value.get(key, {})):
            problems.append(document.problem((key, *path), f"JSON Schema: {message}"))
    if read is None or problems:
        return {}, problems
    return structs.asdict(read) | {"title": read.name, "pixie": None, "warnings": ()}, []


def _read_pixie(
    document: Document, usual: dict[str, Any], sidecar: Document, asked: dict[str, Any]
) -> tuple[dict[str, Any], list[Problem]]:
    read, problems = pixie.read_manifest(document, usual)
    own, wrong = convert(sidecar, OwnKeys, value=asked)
    if read is None or own is None or problems or wrong:
        return {}, problems + wrong
    fields = structs.asdict(own) | {
        key: getattr(read, key) for key in (*COMMON_KEYS, "version", "description")
    }
    fields |= {"name": read.id, "title": read.name, "pinned": own.pinned or read.pinned_warm}
    fields |= {"pixie": read, "warnings": tuple(pixie.incoherences(read))}
    fields |= {} if read.concurrent else {"concurrency": 1}
    return fields | {
        "input": pixie.input_schema(read),
        "output": pixie.answer_schema(read.outputs),
    }, []


def _rules(
    fields: Mapping[str, Any], folder: Path, document: Document, own: Document
) -> Iterator[Problem]:
    """Yield what is wrong with a declaration beyond its types; only a plain name must be the
    folder's.
    """
    name, entrypoint, is_plain = fields["name"], fields["entrypoint"], fields["pixie"] is None
    if trouble := name_trouble(name):
        yield document.problem(("name" if is_plain else "id",), f"{name!r} {trouble}")
    elif is_plain and name != folder.name:
        yield document.problem(
            ("name",), f"must equal the folder's name: {name!r} in the folder {folder.name!r}"
        )
    target = (folder / entrypoint).resolve()
    if not target.is_relative_to(folder.resolve()):
        yield document.problem(
            ("entrypoint",), f"must be a file inside the tool's folder, not {str(target)!r}"
        )
    elif not fields["command"] and not target.is_file():
        yield document.problem(
            ("entrypoint",), f"{entrypoint!r} is not there; write it, or name another or a command"
        )
    if fields["command"] and fields["listen"] == "handover":
        yield own.problem(
            ("listen",), "handover needs python + entrypoint; with a command use 'port' or 'fd'"
        )
    if fields["preload"] is True:
        yield own.problem(("preload",), "must be an array of module names or false")
    for name in fields["env"]:
        if not ENV_NAME.fullmatch(name) or name in MARKS:
            yield own.problem(
                ("env", name), f"{name!r} is no name of an environment variable of a tool"
            )


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def signature(folder: Path, sources: Sequence[str]) -> tuple[Stamp, ...]:
    """Stamp everything whose change means that the tool must be read again; `sources` are
    relative to the folder.
    """
    return tuple(
        _stamp(f"{folder}/{name}") for name in (MANIFEST, SIDECAR, *_LOADED_ONCE, *sources)
    )
