"""Read a SPAWN message: JSON at the edge becomes a plan here, or a refusal that says which member is wrong."""

from __future__ import annotations

import json

from supervisord_py.keeper.spawn import RLIMITS, Plan, SpawnError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FIRST_GRANT = 3
LAST_GRANT = 1023


class Refusal(Exception):
    """An error reply: kind, detail and further members."""

    def __init__(self, kind: str, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.document = {"kind": kind, "detail": detail, **members}


def spawn_failed(error: SpawnError) -> Refusal:
    """Say on the wire that a child did not come to be."""
    return Refusal("spawn_failed", str(error), stage=error.stage, errno=error.error)


def fingerprint(message: Mapping[str, Any]) -> int:
    """Return a number that is equal for equal orders (within this process's life)."""
    return hash(json.dumps({name: value for name, value in message.items() if name != "id"}, sort_keys=True))


def text(message: Mapping[str, Any], name: str) -> str:
    """Return a member that must be a string.

    Raises:
        Refusal: It is not.
    """
    value = message.get(name)
    if not isinstance(value, str):
        raise Refusal("bad_request", f"member {name!r} must be a string")
    return value


def number(message: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """Return a member that must be a number; `default` where it is absent.

    Raises:
        Refusal: It is not.
    """
    value = message.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refusal("bad_request", f"member {name!r} must be a number")
    return value


def plan(message: Mapping[str, Any], stdio: tuple[int, int, int], stored: Mapping[str, int]) -> Plan:
    """Return the plan of a SPAWN message.

    Args:
        message: The message.
        stdio: The keeper's descriptors for 0 (where the message names none), 1, 2.
        stored: The fd store.

    Raises:
        Refusal: A member is missing, wrong, or names an unknown descriptor.
        SpawnError: The words cannot be handed to the kernel.
    """
    argv, env = message.get("argv"), message.get("env")
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        raise Refusal("bad_request", "member 'argv' must be a list of strings, the program first")
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise Refusal("bad_request", "member 'env' must be a map of strings")
    made = Plan(argv, env, (_stdin(message, stored, stdio[0]), *stdio[1:]))
    made.in_directory(text(message, "cwd"))
    made.umask = int(number(message, "umask", 0o077))
    made.nice = int(number(message, "nice", 0))
    made.listen_pid = message.get("set_listen_pid") is True
    made.grants = [_grant(entry, stored) for entry in message.get("grant_fds") or ()]
    made.rlimits = [_rlimit(entry) for entry in message.get("rlimits") or ()]
    if len({target for target, _ in made.grants}) != len(made.grants):
        raise Refusal("bad_request", "two granted descriptors have the same number")
    return made


def cpu_limit(message: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return soft and hard CPU seconds of a SPAWN message whose rlimits were read before; None without such a limit."""
    for name, soft, hard in message.get("rlimits") or ():
        if name == "cpu" and soft >= 0:
            return int(soft), int(hard)
    return None


def _stdin(message: Mapping[str, Any], stored: Mapping[str, int], default: int) -> int:
    name = message.get("stdin_name")
    if name is None:
        return default
    if name not in stored:
        raise Refusal("unknown_fd", f"no descriptor is stored under the name {name!r}")
    return stored[name]


def _grant(entry: Any, stored: Mapping[str, int]) -> tuple[int, int]:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], int):
        raise Refusal("bad_request", "a granted descriptor is [number, stored name]")
    target, name = entry
    if not FIRST_GRANT <= target <= LAST_GRANT:
        raise Refusal("bad_request", f"a granted descriptor's number is {FIRST_GRANT}..{LAST_GRANT}, not {target}")
    if name not in stored:
        raise Refusal("unknown_fd", f"no descriptor is stored under the name {name!r}")
    return target, stored[name]


def _rlimit(entry: Any) -> tuple[int, int, int]:
    if not isinstance(entry, list) or len(entry) != 3 or entry[0] not in RLIMITS:
        raise Refusal("bad_request", f"a limit is [name, soft, hard], name one of {', '.join(sorted(RLIMITS))}")
    name, soft, hard = entry
    if not isinstance(soft, int) or not isinstance(hard, int):
        raise Refusal("bad_request", f"limit {name!r} must have integers")
    return RLIMITS[name], soft, hard
