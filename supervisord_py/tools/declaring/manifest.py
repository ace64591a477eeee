"""From a tool's folder to its spec, or to one error that lists everything wrong with its files (CONTRACT §5).

The two dialects are told apart by their keys and end in the same `ToolSpec`. A key that neither has is an error with
its nearest match; a key of the other dialect says so. Nothing of the tool is run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisord_py.process.bounded_file import read_bounded
from supervisord_py.tools.config import ToolDefaults
from supervisord_py.tools.declaring import pixie
from supervisord_py.tools.declaring.declaration import PLAIN_KEYS, name_trouble, read_plain
from supervisord_py.tools.declaring.fields import Fields, type_name
from supervisord_py.tools.declaring.fingerprint import MANIFEST, SIDECAR, digest
from supervisord_py.tools.declaring.json_positions import JsonSyntaxError, parse, parse_bytes
from supervisord_py.tools.declaring.own_settings import (
    COMMON_KEYS,
    OWN_KEYS,
    check_entrypoint,
    read_common,
    read_own,
)
from supervisord_py.tools.declaring.problems import Problems
from supervisord_py.tools.spec import Dialect, ToolSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisord_py.tools.declaring.declaration import Declaration
    from supervisord_py.tools.declaring.json_positions import Document
    from supervisord_py.tools.declaring.own_settings import CommonSettings, OwnSettings

_PIXIE_ONLY = frozenset(pixie.KEYS) - frozenset(PLAIN_KEYS)
_PLAIN_ONLY = (frozenset(PLAIN_KEYS) - frozenset(pixie.KEYS)) | frozenset(OWN_KEYS)
_NO_SIDECAR = parse("{}")


def load_tool(folder: Path, defaults: ToolDefaults | None = None) -> ToolSpec:
    """Read the declaration of the tool in `folder`.

    Args:
        folder: The tool's folder; its name is the tool's.
        defaults: What counts where the tool says nothing.

    Raises:
        ConfigError: With `file`, `line`, `column`, `pointer` of the first problem and `errors` with all of them.
    """
    folder = Path(os.path.abspath(folder))
    problems = Problems(f"tool:{folder.name}")
    trouble = name_trouble(folder.name)
    if trouble:
        problems.add_file(folder, f"the folder's name {trouble}")
        raise problems.error()
    raw, manifest = _read(folder / MANIFEST, problems)
    problems.raise_if_any()
    fields = Fields(folder / MANIFEST, manifest, "", manifest.value, problems)
    dialect = dialect_of(manifest.value)
    sidecar_raw, sidecar = _read_sidecar(folder, dialect, problems)
    if dialect is Dialect.PIXIE:
        fields.lenient_nulls = True
        own_fields = Fields(folder / SIDECAR, sidecar, "", sidecar.value, problems)
        declared, own = pixie.read_pixie(fields, folder.name), read_own(own_fields, defaults or ToolDefaults())
        own_fields.refuse_unknown(dict.fromkeys((*pixie.KEYS, *COMMON_KEYS), "it belongs into tool.json"))
    else:
        declared, own = read_plain(fields, folder.name), read_own(fields, defaults or ToolDefaults())
    common = read_common(fields, defaults or ToolDefaults())
    fields.refuse_unknown(_elsewhere(dialect), known=pixie.KEYS if dialect is Dialect.PIXIE else PLAIN_KEYS)
    if own.command is None:
        check_entrypoint(fields, folder, common.entrypoint)
    if not declared.concurrent and own_concurrency_asked(sidecar.value):
        problems.warn("concurrency in pxd.json is ignored: the tool says concurrent: false")
    problems.raise_if_any()
    stamped = digest(folder, (raw, sidecar_raw), sources_of(folder, common.entrypoint, own.command))
    parts = (declared, common, own)
    return _spec(folder, dialect, manifest.value, parts, stamped=stamped, warnings=tuple(problems.warnings))


def dialect_of(manifest: Mapping[str, Any]) -> Dialect:
    """Tell the dialects apart by the keys that only one of them has; the ones that matter most decide a tie."""
    keys = frozenset(manifest)
    if not keys & _PIXIE_ONLY:
        return Dialect.PLAIN
    telling = len(keys & {"id", "inputs", "outputs"}) - len(keys & {"input", "output"})
    telling = telling or len(keys & _PIXIE_ONLY) - len(keys & _PLAIN_ONLY)
    return Dialect.PIXIE if telling >= 0 else Dialect.PLAIN


def sources_of(folder: Path, entrypoint: str, command: Sequence[str] | None) -> tuple[str, ...]:
    """Return the files, relative to the folder, that an instance is started from."""
    if command is None:
        return (entrypoint,)
    relative = (each for each in command if each and not os.path.isabs(each) and ".." not in each.split("/"))
    return tuple(each for each in relative if "{port}" not in each and os.path.isfile(folder / each))


def own_concurrency_asked(sidecar: Mapping[str, Any]) -> bool:
    """Say whether a side file asks for more than one request at a time."""
    return bool(sidecar.get("concurrency", 1) != 1)


def _elsewhere(dialect: Dialect) -> dict[str, str]:
    if dialect is Dialect.PIXIE:
        own = dict.fromkeys(OWN_KEYS, "beside a Pixie tool it belongs into pxd.json")
        return own | dict.fromkeys(("input", "output"), "it belongs to the plain dialect; this file is in Pixie's")
    return dict.fromkeys(_PIXIE_ONLY, "it belongs to Pixie's dialect; this file is in the plain one")


def _read(path: Path, problems: Problems) -> tuple[bytes, Document]:
    """Read one JSON object; what is wrong is noted, and an empty one stands in."""
    try:
        raw = read_bounded(path)
        document = parse_bytes(raw)
    except OSError as error:
        problems.add_file(path, error.strerror or str(error))
        return b"", _NO_SIDECAR
    except JsonSyntaxError as error:
        problems.add_syntax(path, error)
        return b"", _NO_SIDECAR
    if not isinstance(document.value, dict):
        problems.add(path, document, "", f"must be a JSON object, not {type_name(document.value)}")
        return raw, _NO_SIDECAR
    return raw, document


def _read_sidecar(folder: Path, dialect: Dialect, problems: Problems) -> tuple[bytes, Document]:
    path = folder / SIDECAR
    if not os.path.lexists(path):
        return b"", _NO_SIDECAR
    if dialect is Dialect.PLAIN:
        problems.add_file(path, "stands beside a tool.json of the plain dialect; put its keys into tool.json")
        return b"", _NO_SIDECAR
    return _read(path, problems)


def _spec(
    folder: Path,
    dialect: Dialect,
    manifest: Mapping[str, Any],
    parts: tuple[Declaration, CommonSettings, OwnSettings],
    *,
    stamped: str,
    warnings: tuple[str, ...],
) -> ToolSpec:
    declared, common, own = parts
    return ToolSpec(
        name=folder.name,
        title=declared.title,
        version=declared.version,
        description=declared.description,
        dialect=dialect,
        folder=folder,
        manifest_path=folder / MANIFEST,
        manifest=manifest,
        input_schema=declared.input_schema,
        output_schema=declared.output_schema,
        digest=stamped,
        warm_keep_seconds=common.warm_keep_seconds,
        max_memory_mb=common.max_memory_mb,
        max_runtime_seconds=common.max_runtime_seconds,
        entrypoint=common.entrypoint,
        command=own.command,
        python=own.python,
        listen=own.listen,
        memory_limit=own.memory_limit,
        start_timeout_seconds=own.start_timeout_seconds,
        stop_timeout_seconds=own.stop_timeout_seconds,
        concurrency=own.concurrency if declared.concurrent else 1,
        preload=own.preload,
        forkable=own.forkable,
        env=own.env,
        pinned=own.pinned or declared.pinned,
        limits=own.limits,
        pixie=declared.pixie,
        warnings=warnings,
    )
