"""Sessions as users name them: `x`, an id, `kernel:x`, globs; among several of one name, the one of this folder."""

from __future__ import annotations

import os

from pxctl.client import bare_name, expand, is_glob, query, route
from pxctl.failure import INACTIVE, UNKNOWN_UNIT, Failure, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from pxctl.client import Answer, Client

BACKENDS = ("direct", "gateway-local", "gateway-external")
CALLER_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX", "PATH")
"""What decides between interpreters; nothing else of the caller's environment is sent."""


def find_kernel(client: Client, name: str, *, cwd: str | None = None) -> Answer:
    """Return the session (px.kernel/1) that a name means.

    Args:
        client: Of the daemon.
        name: As the user said it.
        cwd: The folder that decides; None is the present one, and only asked where the name alone does not do.

    Raises:
        Failure: There is none, or several between which the folder does not decide.
    """
    try:
        folder = None if cwd is None else os.path.realpath(cwd)
        return client.get(query(route("kernel", name), [("cwd", folder)]))
    except Problem as problem:
        if problem.kind != "ambiguous_name":
            raise
        kernels = client.get("/api/kernels").document.get("kernels", [])
        chosen = choose(kernels, bare_name("kernel", name), os.path.realpath(cwd or "."))
        if chosen is None:
            raise
        return client.get(route("kernel", chosen))


def choose(kernels: Sequence[dict[str, Any]], name: str, cwd: str) -> str | None:
    """Return the id of the session that is meant among those of one name; None where that stays open.

    That of the folder is meant, one that lives before one that is remembered, and one with a kernel before the shell's.
    """
    found = [kernel for kernel in kernels if kernel.get("name") == name and kernel.get("cwd") == cwd]
    found = [kernel for kernel in found if kernel.get("state") != "stopped"] or found
    found = [kernel for kernel in found if kernel.get("language") != "bash"] or found
    return str(found[0].get("id")) if len(found) == 1 else None


def kernel_id(client: Client, name: str, *, cwd: str | None = None) -> str:
    """Return the id of the session that a name means."""
    return str(find_kernel(client, name, cwd=cwd).document.get("id"))


def kernel_units(client: Client, names: Sequence[str], *, cwd: str | None = None) -> list[str]:
    """Return the units that names and globs mean, each once.

    Args:
        client: Of the daemon.
        names: As the user said them.
        cwd: Whose sessions a glob means, all of them without it; of names as in `find_kernel`.
    """
    found: list[str] = []
    for name in names:
        bare = bare_name("kernel", name)
        if not is_glob(bare):
            found.append(f"kernel:{kernel_id(client, bare, cwd=cwd)}")
        else:
            units = expand(client, [f"kernel:{bare}"])
            found += units if cwd is None else _of_folder(client, units, cwd)
    return list(dict.fromkeys(found))


def _of_folder(client: Client, units: Sequence[str], cwd: str) -> list[str]:
    """Return those of the units that are sessions of a folder.

    Raises:
        Failure: None of them is.
    """
    folder = os.path.realpath(cwd)
    kernels = client.get("/api/kernels").document.get("kernels", [])
    there = {kernel.get("unit") for kernel in kernels if kernel.get("cwd") == folder}
    if found := [unit for unit in units if unit in there]:
        return found
    raise Failure(
        f"no session of {folder} is called so",
        kind="unknown_unit",
        hint="pxctl kernel list --all shows all sessions with their folders",
        exit_code=UNKNOWN_UNIT,
    )


def failure_words(kernel: Mapping[str, Any]) -> str:
    """Return why a session failed, in a sentence; its document has a whole problem. Empty where it did not."""
    failure = kernel.get("failure")
    return str(failure.get("detail") or "") if isinstance(failure, dict) else str(failure or "")


def own_session(client: Client, env: Mapping[str, str], name: str, cwd: str, language: str) -> str | None:
    """Return the id of the session in whose cell this call runs, where it is the one that is meant; else None.

    A kernel's environment is not its user's: without this the same name could mean another interpreter inside of it.
    """
    kind, _, own = env.get("PX_UNIT", "").partition(":")
    if kind != "kernel" or name != own.rpartition("-")[0]:
        return None
    try:
        kernel = client.get(route("kernel", own)).document
    except Problem:
        return None
    same = kernel.get("cwd") == os.path.realpath(cwd) and kernel.get("language") == language
    return own if same else None


def connection_file(kernel: dict[str, Any]) -> str:
    """Return the file by which Jupyter's clients join a session.

    Raises:
        Failure: It does not run, or is none that can be joined.
    """
    if file := kernel.get("connection_file"):
        return str(file)
    unit = str(kernel.get("unit"))
    if kernel.get("language") == "bash":
        raise Failure(
            "its cells are shell scripts; there is no kernel to join", kind="not_joinable", unit=unit, hint="bash"
        )
    if str(kernel.get("backend", "")).startswith("gateway"):
        raise Failure(
            "it is held by a gateway; join it through that", kind="not_joinable", unit=unit, hint="pxctl kernel list"
        )
    raise Failure(
        f"it is {kernel.get('state')}",
        kind="inactive",
        unit=unit,
        hint=f"pxctl kernel start {kernel.get('id')}",
        exit_code=INACTIVE,
    )
