"""Starts an ipykernel as the daemon wants it: lean, interruptible, with output captured and the
prelude in place.

    PYTHON launch.py -f CONNECTION_FILE [--px-overlay DIR] [--px-modules DIR]… [ARGUMENTS]
    PYTHON launch.py --px-zygote DESCRIPTOR [--px-overlay DIR]

ARGUMENTS are ipykernel's own. The second form forks such kernels: see zygote/main.py.

Law: whoever speaks Jupyter's protocol with this kernel finds an ordinary ipykernel. `sys.path` and
`sys.argv` are what `python -m ipykernel_launcher` gives: this folder is on no path; it is the
package `px_inside`.

A start that fails for a reason a user can mend exits with 78 (EX_CONFIG of sysexits.h) and says it
on stderr in one line, `px-launch: {"detail": TEXT, "hint": TEXT}`.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # What lies in this folder must not be found by the imports below, nor by the user's.
    del sys.path[0]

import argparse
import contextlib
import functools
import importlib
import json
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

EX_CONFIG = 78
PACKAGE = "px_inside"
LATER = (
    *("IPython.core." + each for each in ("completerlib", "debugger", "logger", "oinspect")),
    "IPython.extensions.storemagic",
    "sqlite3",
    "tornado.platform.asyncio",
)
"""What a kernel imports between its start and the end of its first cell; a zygote has that
ready.
"""


def read_options(argv: list[str]) -> tuple[Any, list[str]]:
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--px-overlay")
    parser.add_argument("--px-modules", action="append", default=[])
    parser.add_argument("--px-zygote", type=int)
    return parser.parse_known_args(argv)


def load_module(name: str, file: str, folders: list[str] | None = None) -> Any:
    """Import a module, or a package of `folders`, by its file; it is then cached as bytecode, as
    any other.
    """
    from importlib.util import module_from_spec, spec_from_file_location

    spec: Any = spec_from_file_location(name, file, submodule_search_locations=folders)
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def import_ipykernel(overlay: str | None) -> Any:
    if overlay is not None and overlay not in sys.path:
        sys.path.append(overlay)
    blocked = "debugpy" not in sys.modules
    if blocked:
        sys.modules["debugpy"] = None  # type: ignore[assignment] # a third of the start, for what nobody asked for
    try:
        importlib.import_module("ipykernel.debugger")  # decides now that there is none
        return importlib.import_module(PACKAGE + ".kernel_app")
    except ImportError as error:
        who = sys.executable + " (Python " + sys.version.split()[0] + ")"
        hint = "run `" + sys.executable + " -m pip install ipykernel`"
        if overlay is not None:
            hint += ", or remove " + overlay + " to have it built anew"
        detail = who + " cannot import ipykernel: " + type(error).__name__ + ": " + str(error)
        print(
            "px-launch: " + json.dumps({"detail": detail, "hint": hint}),
            file=sys.stderr,
            flush=True,
        )
        raise SystemExit(EX_CONFIG) from error
    finally:
        if blocked:
            del sys.modules["debugpy"]  # user code may import it


def import_all(overlay: str | None) -> None:
    """Import what a kernel will, for a zygote; what one version has elsewhere is imported by the
    kernel itself.
    """
    import_ipykernel(overlay)
    for name in LATER:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def ordered(
    parked: Any, fits: Any = lambda arguments: True, leave: Any = lambda: None
) -> tuple[list[str], list[str]]:
    """Return the arguments for ipykernel and the folders of modules, once a zygote's fork has
    its order.
    """
    _, *sys.argv = parked.take(lambda argv: fits(read_options(argv[2:])[1]), leave)
    options, sys.argv[1:] = read_options(sys.argv[1:])
    return sys.argv[1:], options.px_modules


def main() -> None:
    options, sys.argv[1:] = read_options(sys.argv[1:])
    folder = os.path.dirname(os.path.abspath(__file__))
    load_module(PACKAGE, os.path.join(folder, "__init__.py"), [folder])
    take: Any = lambda: (sys.argv[1:], options.px_modules)  # noqa: E731
    # a folder for the sockets of kernels to come
    prepared, place = os.environ.pop("PX_PREPARED", None), None
    if options.px_zygote is not None:
        zygote = load_module("px_zygote", os.path.join(folder, "..", "..", "zygote", "main.py"))
        parked = zygote.serve(options.px_zygote, lambda: import_all(options.px_overlay))
        take = functools.partial(ordered, parked)
        place = parked.prepare(prepared) if prepared else None
    kernel_app = import_ipykernel(options.px_overlay)

    # a shell that starts a job with `&` has it inherited
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    kernel_app.run(take, place)


if __name__ == "__main__":
    main()
