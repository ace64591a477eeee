"""What is said to a new kernel at somebody else's server: where to work, the harmless part of the environment. Pure.

Law: a secret is never sent. What is passed on is chosen by name from what the filter let through, and whatever looks
like a secret by its name stays here; so do the paths of this machine, which mean nothing on another.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HARMLESS = frozenset(("LANG", "TERM", "TZ"))
HARMLESS_PREFIXES = ("LC_", "PI_")
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE|KEY|AUTH|SESSION", re.IGNORECASE)
_KERNEL = "KERNEL_"
_VALUE_CHARACTERS = 4096
_NOT_TAKEN = frozenset("$`\n\r\0")
"""What Enterprise Gateway refuses in a value."""
MARK = "PX_INSTANCE"
FACTS = {
    "pid": "__import__('os').getpid()",
    "mark": f"__import__('os').environ.get('{MARK}')",
    "cwd": "__import__('os').getcwd()",
}
"""`user_expressions` by which a kernel says which process it is."""


def harmless(env: Mapping[str, str]) -> dict[str, str]:
    """Return what of a kernel's environment may be told to another machine's kernel."""
    return {
        name: value
        for name, value in env.items()
        if (name in HARMLESS or name.startswith(HARMLESS_PREFIXES)) and not _SECRET.search(name)
    }


def kernel_variables(env: Mapping[str, str], cwd: str, user: str) -> dict[str, str]:
    """Return the `KERNEL_…` variables for Enterprise Gateway; a value that it would refuse is left out."""
    wanted = {name: value for name, value in env.items() if name.startswith(_KERNEL) and not _SECRET.search(name)}
    wanted |= {"KERNEL_USERNAME": user, "KERNEL_WORKING_DIR": cwd}
    return {
        name: value
        for name, value in wanted.items()
        if value and len(value) <= _VALUE_CHARACTERS and not _NOT_TAKEN & set(value)
    }


def init_code(cwd: str, env: Mapping[str, str], instance: str, unit: str) -> str:
    """Return Python that makes a kernel at home, without a trace in its namespace.

    A directory that is not there is no error here: the kernel says afterwards where it is.
    """
    variables = {**harmless(env), MARK: instance, "PX_UNIT": unit}
    return f"""
def _px_init(cwd, variables):
    import os, sys
    os.environ.update(variables)
    try:
        os.chdir(cwd)
    except OSError:
        return
    if cwd not in sys.path:
        sys.path.insert(0, cwd)
_px_init({cwd!r}, {variables!r})
del _px_init
"""


def fact(expressions: Mapping[str, object], name: str) -> str | None:
    """Return one answer to `FACTS` from an execute_reply's `user_expressions`, as Python wrote it; None without one."""
    answer = expressions.get(name)
    data = answer.get("data") if isinstance(answer, dict) else None
    text = data.get("text/plain") if isinstance(data, dict) else None
    return text if isinstance(text, str) else None
