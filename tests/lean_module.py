"""`python -m` for Jupyter's programs, as the daemon runs its own gateway (gateway_command).

jsonschema asks a package for the format of addresses where that is there, which builds a grammar as it is imported: a
second of each start, which no test is about. To these programs it is as if the package were not installed.
"""

from __future__ import annotations

_CODE = (
    "import runpy, sys; sys.modules['rfc3987_syntax'] = None; "
    "runpy.run_module({!r}, run_name='__main__', alter_sys=True)"
)


def lean_module(python: str, name: str) -> list[str]:
    """Return the beginning of the command line that runs a module."""
    return [python, "-c", _CODE.format(name)]
