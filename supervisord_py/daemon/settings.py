"""Flags and settings in force: where they are read from, how they are kept between processes, what
the keeper is told.

`pxd` reads and validates them (settings_reader.py, which needs pydantic) and leaves them in the
runtime directory, with a stamp of everything they were read from. The control plane takes that
file: its start costs no validation, and a pxd.toml that is broken meanwhile ends no children. The
keeper is told what it must know, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from supervisord_py import __version__
from supervisord_py.config.settings import DEFAULTS, KEYS, Settings, shown_value, value_of
from supervisord_py.daemon.paths import Paths, resolve_paths
from supervisord_py.errors import EXIT_BAD_SETTINGS, ConfigError
from supervisord_py.kernels.config import LEGACY_NAMES

PREFIX = "PX_"
NOT_SETTINGS = frozenset(
    {"PX_HOME", "PX_SOCKET", "PX_AUTOSTART", "PX_INSTANCE", "PX_UNIT", "PX_CONTROL"}
)
"""Variables that other parts read: places (CONTRACT §1), the client's switch, the marks of
children.
"""

VALID_NAME = "settings.valid.json"


class SettingsError(ConfigError):
    """Settings are wrong: `problems` has every mistake of every source, as JSON objects.

    `exit_code` is that of `pxd`; the problem document speaks to the client, whose codes end at 9
    (CONTRACT §3).
    """

    exit_code = EXIT_BAD_SETTINGS

    def __init__(self, problems: Sequence[dict[str, Any]]) -> None:
        meant = [f"; did you mean {it['nearest']}?" if it["nearest"] else "" for it in problems]
        lines = [
            f"{it['origin']}: {it['message']}{near}"
            for it, near in zip(problems, meant, strict=True)
        ]
        hint = (
            "`pxd --check-config` checks again; `pxd --show-config` shows every key with its value "
            "and origin"
        )
        super().__init__("\n".join(lines), hint=hint, problems=list(problems))

    def problem(self) -> dict[str, Any]:
        return {
            **super().problem(),
            "hint": "pxctl config check",
            "exit_code": ConfigError.exit_code,
        }


class Flags(msgspec.Struct, frozen=True):
    """The flags of `pxd`, which with the environment say where settings are read from; paths are
    absolute.
    """

    config_file: str | None = None  # then it must exist
    socket: str | None = None
    system: bool = False
    settings: tuple[str, ...] = ()  # `section.key=value` of `--set`, in their order

    def words(self) -> list[str]:
        pairs = [
            ("--config", self.config_file),
            ("--socket", self.socket),
            *(("--set", it) for it in self.settings),
        ]
        words = [word for flag, value in pairs if value is not None for word in (flag, value)]
        return [*words, "--system"] if self.system else words

    def paths(self) -> Paths:
        return resolve_paths(
            os.environ, system=self.system, config_file=self.config_file, socket=self.socket
        )

    def files(self) -> list[Path]:
        """Return the settings files to read, weakest first."""
        first = self.paths().config_file
        dropins = sorted(
            path for path in first.parent.glob("conf.d/*.toml") if not path.name.startswith(".")
        )
        return [first, *dropins] if self.config_file or os.path.lexists(first) else dropins

    def stamp(self) -> str:
        """Return a text that changes with whatever settings are read from, and tells nothing of
        it.
        """
        ours = [name for name in os.environ if name.startswith(PREFIX) and name not in NOT_SETTINGS]
        variables = [(name, os.environ.get(name)) for name in sorted({*ours, *LEGACY_NAMES})]
        files: list[tuple[Any, ...]] = []
        for path in self.files():
            try:
                seen = path.stat()
                files.append(
                    (
                        path,
                        seen.st_dev,
                        seen.st_ino,
                        seen.st_size,
                        seen.st_mtime_ns,
                        seen.st_ctime_ns,
                    )
                )
            except OSError as error:
                files.append((path, error.errno))
        parts = [__version__, self, variables, files]
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()


class Loaded(msgspec.Struct, frozen=True):
    """Valid settings: where each key that somebody set stands, what is odd but harmless, and the
    stamp of it all.
    """

    settings: Settings = DEFAULTS
    origins: dict[str, str] = {}
    warnings: tuple[str, ...] = ()
    stamp: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """Return `{key, value, origin}` of every setting: the key dotted, the value as it may be
        shown.
        """
        values = ((".".join(key), shown_value(*key, value_of(self.settings, *key))) for key in KEYS)
        return [
            {"key": key, "value": it, "origin": self.origins.get(key, "default")}
            for key, it in values
        ]


def keep_valid(folder: Path, loaded: Loaded) -> None:
    """Leave settings for the control planes to come.

    Secrets are among them: the file is ours alone.
    """
    # A reload and a restart may come at once, each in a thread of its own: each has its own draft.
    fresh = folder / f"{VALID_NAME}.{threading.get_native_id()}"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(loaded))
    fresh.replace(folder / VALID_NAME)


def recall_valid(folder: Path) -> Loaded | None:
    """Return what `keep_valid` left, or None when there is nothing that this version
    understands.
    """
    try:
        return msgspec.json.decode((folder / VALID_NAME).read_bytes(), type=Loaded)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def restart_needed(key: str) -> str | None:
    """Return the command that puts a changed setting in force, or None when a reload does."""
    section, at_once = key.split(".", 1)[0], {"daemon.log_level", "daemon.zygotes"}
    if key in at_once or (
        section in {"history", "tools", "kernels", "pipes"} and key != "tools.max_body_bytes"
    ):
        return None
    # The keeper was told at its birth.
    return "pxctl daemon restart --all" if section in {"daemon", "logs"} else "pxctl daemon restart"


class ControlOrder(msgspec.Struct, frozen=True):
    """What a control plane is started with, as JSON: flags, and its descriptors (channel,
    control socket, lock).
    """

    flags: Flags
    fds: tuple[int, int, int] = (3, 4, 5)


def versions_dir(state_dir: Path) -> Path:
    """Return where copies of versions are kept (kept_version.py)."""
    return state_dir / "versions"


def daemon_id(state_dir: Path) -> str:
    """Return the name of the daemon of this state directory: eight hex digits, the same at every
    start.
    """
    return hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:8]


def keeper_argv(
    paths: Paths,
    settings: Settings,
    flags: Flags,
    *words: str,
    lock_fd: int,
    listen_fd: int | None = None,
    kept_fds: dict[str, int] | None = None,
    socket_owned: bool = False,
    umask: int | None = None,
    nofile: tuple[int, int] | None = None,
) -> list[str]:
    """Return the command that becomes the keeper: no site packages, nothing of the user's
    environment.

    Its document lies in an inheritable descriptor, from which it can be read once. The given
    descriptors go over exec; `kept_fds`: by name, those that it only keeps open; `socket_owned`:
    unlink the socket file at the end. `umask` and `nofile` (soft and hard limit of open files) are
    what children get: those that pxd was started with.
    """
    order = msgspec.json.encode(ControlOrder(flags)).decode()
    document: dict[str, Any] = {
        "daemon_id": daemon_id(paths.state_dir),
        "run_dir": str(paths.run_dir),
        "log_dir": str(paths.log_dir),
        "socket_path": str(paths.socket),
        "socket_owned": socket_owned,
        "listen_fd": listen_fd,
        "lock_fd": lock_fd,
        "kept_fds": kept_fds,
        "versions_dir": str(versions_dir(paths.state_dir)),
        "exit_records_path": str(paths.state_dir / "exit-records.json"),
        "control_argv": [sys.executable, "-P", "-m", "supervisord_py.daemon.control", order],
        "pxd_argv": [sys.executable, "-P", "-m", "supervisord_py", "--foreground", *flags.words()],
        "umask": umask,
        "nofile": nofile,
        "log_segment_bytes": settings.logs.total_bytes // 8,
        "log_total_bytes": settings.logs.total_bytes,
        "backoff_initial_seconds": settings.daemon.backoff_initial_seconds,
        "backoff_max_seconds": settings.daemon.backoff_max_seconds,
    }
    # A pipe takes at least 16 KiB before a writer waits; the document has about two.
    fd, writer = os.pipe()
    os.write(writer, json.dumps(document).encode())
    os.close(writer)
    os.set_inheritable(fd, True)
    script = Path(__file__).parent.parent / "keeper" / "__main__.py"
    return [sys.executable, "-I", "-S", str(script), *words, "--boot-fd", str(fd)]
